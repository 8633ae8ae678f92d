// matrix: every case of cases.h, which is generated: a function that allocates, a way to it, and what kind of
// allocation it is. Each takes memory, is seen to count exactly, is filled up to the limit, is refused there
// with CUDA's own code, gives everything back, and works again. One line per case.
#include "app.h"

typedef struct { size_t width, height; unsigned format, channels; } flat;
typedef struct { unsigned width, height, format, channels; } flat_32;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } deep;
typedef struct { unsigned width, height, depth, format, channels, flags; } deep_32;
typedef struct { int kind, types, on, id; u64 rest[11]; size_t bytes; u64 pointer; } alloc_node;
typedef struct { int kind, reserved[3]; alloc_node alloc; u64 more[16]; } any_node;

#define STEP (8 * MIB)
#define FLOAT 0x20
enum { MANY = 64 };
static u64 held[MANY];
static void *things[MANY], *others[MANY];
static void *pool, *stream, *context;
static const int on_device[24] = {1, 0, 1, 0};
static struct { char magic[8]; u64 now, later; } image = {"simcode", STEP, 0};
static const char *image_file;

#define AS(type) ((int (*) type)f)

static int alloc_64(void *f, int i) { return AS((u64 *, size_t))(&held[i], STEP); }
static int free_64(int i) { return cuMemFree_v2(held[i]); }
static int alloc_32(void *f, int i) { unsigned low; int r = AS((unsigned *, unsigned))(&low, STEP); return held[i] = low, r; }
static int free_32(int i) { return cuMemFree(held[i]); }
static int pitch_64(void *f, int i) { size_t pitch; return AS((u64 *, size_t *, size_t, size_t, unsigned))(&held[i], &pitch, 1000, STEP / 1024, 4); }
static int pitch_32(void *f, int i) { unsigned low, pitch; int r = AS((unsigned *, unsigned *, unsigned, unsigned, unsigned))(&low, &pitch, 1000, STEP / 1024, 4); return held[i] = low, r; }
static int managed(void *f, int i) { return AS((u64 *, size_t, unsigned))(&held[i], STEP, 1); }
static int async(void *f, int i) { return AS((u64 *, size_t, void *))(&held[i], STEP, stream); }
static int from_pool(void *f, int i) { return AS((u64 *, size_t, void *, void *))(&held[i], STEP, pool, stream); }
static int free_async(int i) {
    int r = i % 2 ? cuMemFreeAsync(held[i], stream) : cuMemFreeAsync_ptsz(held[i], stream);
    return r ? r : cuStreamSynchronize(stream);
}
static int create(void *f, int i) { return AS((u64 *, size_t, const void *, u64))(&held[i], STEP, on_device, 0); }
static int release(int i) { return cuMemRelease(held[i]); }

static int array_64(void *f, int i) { flat d = {1024, STEP / 4096, FLOAT, 1}; return AS((void **, flat *))(&things[i], &d); }
static int array_32(void *f, int i) { flat_32 d = {1024, STEP / 4096, FLOAT, 1}; return AS((void **, flat_32 *))(&things[i], &d); }
static int deep_64(void *f, int i) { deep d = {1024, 64, STEP / 4096 / 64, FLOAT, 1, 0}; return AS((void **, deep *))(&things[i], &d); }
static int deep_of_32(void *f, int i) { deep_32 d = {1024, 64, STEP / 4096 / 64, FLOAT, 1, 0}; return AS((void **, deep_32 *))(&things[i], &d); }
static int destroy_array(int i) { return cuArrayDestroy(things[i]); }
// One level of half of it, one of an eighth: counts in pieces of 2 MiB.
static int mipmapped(void *f, int i) { deep d = {1024, STEP / 4096, 0, FLOAT, 1, 0}; return AS((void **, deep *, unsigned))(&things[i], &d, 2); }
static int destroy_mipmapped(int i) { return cuMipmappedArrayDestroy(things[i]); }

// Graphs. The memory is there when the executable has been launched; it is not freed by the graph.
static alloc_node node_of(void) { return (alloc_node){.kind = 1, .on = 1, .bytes = STEP}; }
static int add_plain(void *graph) { void *node; alloc_node a = node_of(); return cuGraphAddMemAllocNode(&node, graph, 0, 0, &a); }
static int run(int i) {
    int r = cuGraphInstantiateWithFlags(&others[i], things[i], 0);
    return r ? r : cuGraphLaunch(others[i], stream);
}
static int with_graph(int i, int r) {
    if (!r) r = run(i);
    if (r) cuGraphDestroy(things[i]);
    return r;
}
static int node_added(void *f, int i) {
    void *node; alloc_node a = node_of();
    check(cuGraphCreate(&things[i], 0) == 0);
    return with_graph(i, AS((void **, void *, void *, size_t, alloc_node *))(&node, things[i], 0, 0, &a));
}
static int any_added(void *f, int i) {
    void *node; any_node a = {.kind = 10, .alloc = node_of()};
    check(cuGraphCreate(&things[i], 0) == 0);
    return with_graph(i, AS((void **, void *, void *, size_t, any_node *))(&node, things[i], 0, 0, &a));
}
static int any_added_2(void *f, int i) {
    void *node; any_node a = {.kind = 10, .alloc = node_of()};
    check(cuGraphCreate(&things[i], 0) == 0);
    return with_graph(i, AS((void **, void *, void *, void *, size_t, any_node *))(&node, things[i], 0, 0, 0, &a));
}
static int captured(void *f, int i) {
    u64 before = used();
    check(cuStreamBeginCapture_v2(stream, 0) == 0);
    check(AS((u64 *, size_t, void *))(&held[i], STEP, stream) == 0);
    check(cuStreamEndCapture(stream, &things[i]) == 0 && used() == before);
    return with_graph(i, 0);
}
static int captured_from_pool(void *f, int i) {
    u64 before = used();
    check(cuStreamBeginCapture_v2(stream, 0) == 0);
    check(AS((u64 *, size_t, void *, void *))(&held[i], STEP, pool, stream) == 0);
    check(cuStreamEndCapture(stream, &things[i]) == 0 && used() == before);
    return with_graph(i, 0);
}
static void graph_in_graph(int i) {
    void *inner, *node;
    check(cuGraphCreate(&inner, 0) == 0 && add_plain(inner) == 0 && cuGraphCreate(&things[i], 0) == 0);
    check(cuGraphAddChildGraphNode(&node, things[i], 0, 0, inner) == 0);
}
static int launched(int i, int r) {
    if (!r) {
        r = cuGraphLaunch(others[i], stream);
        if (r) cuGraphExecDestroy(others[i]);
    }
    if (r) cuGraphDestroy(things[i]);
    return r;
}
static int instantiated(void *f, int i) {
    void *node;
    graph_in_graph(i);
    return launched(i, AS((void **, void *, void **, char *, size_t))(&others[i], things[i], &node, 0, 0));
}
static int instantiated_flags(void *f, int i) { graph_in_graph(i); return launched(i, AS((void **, void *, u64))(&others[i], things[i], 0)); }
static int instantiated_params(void *f, int i) {
    u64 params[4] = {0};
    graph_in_graph(i);
    return launched(i, AS((void **, void *, void *))(&others[i], things[i], params));
}
static int drop_graph(int i) {
    int r = cuGraphExecDestroy(others[i]);
    if (!r) r = cuGraphDestroy(things[i]);
    return r ? r : cuDeviceGraphMemTrim(0);
}
// Executables that all are there before the first is launched: the launch itself is refused.
static int ready;
static int launch(void *f, int i) {
    for (; ready < MANY; ready++) {
        check(cuGraphCreate(&things[ready], 0) == 0 && add_plain(things[ready]) == 0);
        check(cuGraphInstantiateWithFlags(&others[ready], things[ready], 0) == 0);
    }
    int r = AS((void *, void *))(others[i], stream);
    // Once it has its memory it can be launched at will.
    for (int again = 0; !r && again < 3; again++) check(AS((void *, void *))(others[i], stream) == 0);
    return r;
}
static int drop_ready(int i) {
    if (i) return 0;
    for (; ready; ready--) check(cuGraphExecDestroy(others[ready - 1]) == 0 && cuGraphDestroy(things[ready - 1]) == 0);
    return cuDeviceGraphMemTrim(0);
}

static int popped(int i, int r) { void *top; return r ? r : cuCtxPopCurrent_v2(&top); }
static int context_1(void *f, int i) { return popped(i, AS((void **, unsigned, int))(&things[i], 0, 0)); }
static int context_3(void *f, int i) { return popped(i, AS((void **, void *, int, unsigned, int))(&things[i], 0, 0, 0, 0)); }
static int context_4(void *f, int i) { return popped(i, AS((void **, void *, unsigned, int))(&things[i], 0, 0, 0)); }
static int destroy_context(int i) { return i % 2 ? cuCtxDestroy(things[i]) : cuCtxDestroy_v2(things[i]); }
static int primary(void *f, int i) { return AS((void **, int))(&things[i], 0); }
static int release_primary(int i) { return cuDevicePrimaryCtxRelease_v2(0); }
static int green(void *f, int i) { return AS((void **, void *, int, unsigned))(&things[i], 0, 0, 0); }
static int destroy_green(int i) { return cuGreenCtxDestroy(things[i]); }
static int heap(void *f, int i) { return AS((int, size_t))(2, (i + 2) * STEP); }
static int less_heap(int i) { return cuCtxSetLimit(2, (i + 1) * STEP); }

static int from_data(void *f, int i) { return AS((void **, void *))(&things[i], &image); }
static int from_data_ex(void *f, int i) { return AS((void **, void *, unsigned, void *, void *))(&things[i], &image, 0, 0, 0); }
static int from_file(void *f, int i) { return AS((void **, const char *))(&things[i], image_file); }
static int library(void *f, int i) { return AS((void **, void *, void *, void *, unsigned, void *, void *, unsigned))(&things[i], &image, 0, 0, 0, 0, 0, 0); }
static int library_file(void *f, int i) { return AS((void **, const char *, void *, void *, unsigned, void *, void *, unsigned))(&things[i], image_file, 0, 0, 0, 0, 0, 0); }
static int unload(int i) { return cuModuleUnload(things[i]); }
static int unload_library(int i) { return cuLibraryUnload(things[i]); }

static const struct family {
    const char *name;
    int (*take)(void *, int), (*give)(int);
    u64 counts;
    int once;
} families[] = {
    {"alloc_64", alloc_64, free_64, STEP}, {"alloc_32", alloc_32, free_32, STEP},
    {"pitch_64", pitch_64, free_64, STEP}, {"pitch_32", pitch_32, free_32, STEP},
    {"managed", managed, free_64, STEP}, {"async", async, free_async, STEP}, {"from_pool", from_pool, free_async, STEP},
    {"async_freed", async, free_64, STEP}, {"create", create, release, STEP},
    {"array_64", array_64, destroy_array, STEP}, {"array_32", array_32, destroy_array, STEP},
    {"deep_64", deep_64, destroy_array, STEP}, {"deep_32", deep_of_32, destroy_array, STEP},
    {"mipmapped", mipmapped, destroy_mipmapped, STEP + STEP / 4},
    {"node_added", node_added, drop_graph, STEP}, {"any_added", any_added, drop_graph, STEP},
    {"any_added_2", any_added_2, drop_graph, STEP}, {"captured", captured, drop_graph, STEP},
    {"captured_from_pool", captured_from_pool, drop_graph, STEP},
    {"instantiated", instantiated, drop_graph, STEP}, {"instantiated_flags", instantiated_flags, drop_graph, STEP},
    {"instantiated_params", instantiated_params, drop_graph, STEP}, {"launch", launch, drop_ready, STEP},
    {"context_1", context_1, destroy_context, CONTEXT}, {"context_3", context_3, destroy_context, CONTEXT}, {"context_4", context_4, destroy_context, CONTEXT},
    {"primary", primary, release_primary, CONTEXT, 1}, {"green", green, destroy_green, 2 * MIB},
    {"heap", heap, less_heap, STEP},
    {"from_data", from_data, unload, STEP}, {"from_data_ex", from_data_ex, unload, STEP},
    {"from_file", from_file, unload, STEP}, {"library", library, unload_library, STEP},
    {"library_file", library_file, unload_library, STEP},
};

#include "declarations.h"
struct test { const char *family, *symbol, *way, *name; int version, flags; void *linked; };
static const struct test tests[] = {
#include "cases.h"
};

static int (*real_info)(size_t *, size_t *);
static u64 physical(void) {
    size_t left, total;
    check(real_info(&left, &total) == 0);
    return total - left;
}

// What the ledger says, without a call into the library, which might put it right.
static u64 ledger(void) {
    static volatile u64 *page;
    if (!page) {
        int fd = open("/run/fgpu/ledger", O_RDONLY);
        page = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
        check(fd >= 0 && page != MAP_FAILED && close(fd) == 0);
    }
    return page[8];
}

static void *ours;
static void *resolve(const struct test *t) {
    void *address = 0;
    int status = 9;
    if (!strcmp(t->way, "link")) return t->linked;
    if (!strcmp(t->way, "dlsym")) return dlsym(ours, t->symbol);
    if (!strcmp(t->way, "default")) return dlsym(RTLD_DEFAULT, t->symbol);
    if (!strcmp(t->way, "dlvsym")) return dlvsym(ours, t->symbol, "libcuda.so.1");
    if (!strcmp(t->way, "v1")) check(cuGetProcAddress(t->name, &address, t->version, t->flags) == 0);
    else check(cuGetProcAddress_v2(t->name, &address, t->version, t->flags, &status) == 0 && status == 0);
    return address;
}

static const struct test *now;
static void say(void) { if (now) fprintf(stderr, "in %s by %s %s %d %d\n", now->symbol, now->way, now->name, now->version, now->flags); }
#define must(condition) do { if (!(condition)) { say(); check(condition); } } while (0)

static void one(const struct test *t, const struct family *family) {
    u64 base = used(), room = limit() - base, filler = 0;
    int count = 0, result = 0, expected = room / family->counts;
    now = t;
    void *f = resolve(t);
    must(f && f == dlsym(ours, t->symbol));
    must(physical() == base);
    if (family->once) {
        must(cuMemAlloc_v2(&filler, room - family->counts + 2 * MIB) == 0);
        must(family->take(f, 0) == OUT_OF_MEMORY && cuMemFree_v2(filler) == 0 && used() == base);
        expected = 1;
    }
    while (count < (family->once ? 1 : MANY) && (result = family->take(f, count)) == 0) {
        count++;
        must(ledger() == base + count * family->counts && physical() == ledger() && used() == ledger());
    }
    must(count == expected && (family->once || result == OUT_OF_MEMORY));
    must(used() <= limit() && physical() <= limit() + 2 * MIB);
    // Refused again, by this and by another call, and what was refused has changed nothing.
    if (!family->once) must(family->take(f, count) == OUT_OF_MEMORY);
    must(cuMemAlloc_v2(&filler, limit() - used() + 1) == OUT_OF_MEMORY);
    must(used() == base + count * family->counts);
    while (count--) must(family->give(count) == 0);
    must(ledger() == base && used() == base && physical() == base);
    must(family->take(f, 0) == 0 && used() == base + family->counts && family->give(0) == 0 && used() == base);
}

int main(int argc, char **argv) {
    const int pool_of[24] = {1, 0, 1, 0};
    const char *only = argc > 2 ? argv[2] : 0;
    image_file = argv[1];
    FILE *file = fopen(image_file, "w");
    check(file && fwrite(&image, sizeof image, 1, file) == 1 && fclose(file) == 0);
    ours = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *real = dlopen("/run/fgpu/driver-00000000000000000000000000000000/cuda", RTLD_NOW | RTLD_NOLOAD);
    check(ours && real && (real_info = dlsym(real, "cuMemGetInfo_v2")) && (void *)real_info != (void *)cuMemGetInfo_v2);

    check(cuInit(0) == 0 && cuCtxCreate_v2(&context, 0, 0) == 0 && used() == CONTEXT);
    check(cuStreamCreate(&stream, 0) == 0 && cuMemPoolCreate(&pool, pool_of) == 0 && used() == CONTEXT);
    for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++)
        for (unsigned j = 0; j < sizeof families / sizeof *families; j++)
            if (!strcmp(tests[i].family, families[j].name) && (!only || !strcmp(only, tests[i].symbol))) {
                void *retained;
                // A green context is part of the primary one, which is there before.
                if (!strcmp(tests[i].family, "green")) check(cuDevicePrimaryCtxRetain(&retained, 0) == 0);
                one(&tests[i], &families[j]);
                if (!strcmp(tests[i].family, "green")) check(cuDevicePrimaryCtxRelease_v2(0) == 0);
                printf("%s %s %s %d %d\n", tests[i].symbol, tests[i].family, tests[i].way, tests[i].version, tests[i].flags);
            }
    now = 0;
    check(cuMemPoolDestroy(pool) == 0 && cuStreamDestroy_v2(stream) == 0);
    check(physical() == CONTEXT && cuCtxDestroy_v2(context) == 0);
    printf("done\n");
    // What is left in the ledger is for the host to say, while the process lives.
    fflush(stdout);
    char byte;
    read(0, &byte, 1);
}
