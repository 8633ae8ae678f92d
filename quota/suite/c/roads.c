// roads WHAT: what else takes and gives back device memory, and what does not. Each begins with a context
// that counts CONTEXT bytes, and ends with nothing.
#include "app.h"
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

typedef struct { int kind, types, on, id; u64 rest[11]; size_t bytes; u64 pointer; } alloc_node;
static const int on_device[24] = {1, 0, 1, 0}, on_host[24] = {1, 0, 2, 0};
static void *context, *stream;
static int (*real_info)(size_t *, size_t *);

static u64 physical(void) {
    size_t left, total;
    check(real_info(&left, &total) == 0);
    return total - left;
}

static u64 base(void) { return CONTEXT; }
#define counts(bytes) check(used() == base() + (bytes) && physical() == base() + (bytes))

// Memory that a pool keeps counts until it is given back; other allocations of the process can have it
// before.
static void pools(void) {
    void *pool, *host;
    u64 one, two, all, keep = 1ull << 40;
    check(cuMemPoolCreate(&pool, on_device) == 0);
    check(cuMemPoolSetAttribute(pool, 4, &keep) == 0);
    check(cuMemAllocFromPoolAsync(&one, 20 * MIB, pool, stream) == 0);
    check(cuMemAllocFromPoolAsync(&two, 10 * MIB, pool, stream) == 0);
    counts(30 * MIB);
    check(cuMemFreeAsync(one, stream) == 0 && cuStreamSynchronize(stream) == 0);
    counts(30 * MIB);
    // What fits into what the pool keeps takes nothing more.
    check(cuMemAllocFromPoolAsync(&one, 15 * MIB, pool, stream) == 0);
    counts(30 * MIB);
    check(cuMemFreeAsync(one, stream) == 0);
    // Another allocation gets what the pool does not use.
    check(cuMemAlloc_v2(&all, limit() - base() - 10 * MIB) == 0 && used() == limit());
    check(cuMemAllocFromPoolAsync(&one, MIB, pool, stream) == OUT_OF_MEMORY);
    check(cuMemFree_v2(all) == 0);
    counts(10 * MIB);
    check(cuMemAllocFromPoolAsync(&one, 20 * MIB, pool, stream) == 0 && cuMemFreeAsync(one, stream) == 0);
    counts(30 * MIB);
    check(cuMemPoolTrimTo(pool, 14 * MIB) == 0);
    counts(14 * MIB);
    // What outlives its pool counts until it is freed.
    check(cuMemPoolDestroy(pool) == 0);
    counts(10 * MIB);
    check(cuMemFreeAsync(two, stream) == 0);
    counts(0);
    check(cuMemAllocAsync(&one, 8 * MIB, stream) == 0 && cuMemFreeAsync(one, stream) == 0);
    counts(8 * MIB);
    check(cuCtxSynchronize() == 0);
    counts(0);
    // One that grows by more than is asked for: counted as it is, and undone where that is too much.
    const int exported[24] = {1, 1, 1, 0};
    void *large;
    check(cuMemPoolCreate(&large, exported) == 0 && cuMemAllocFromPoolAsync(&one, MIB, large, stream) == 0);
    counts(32 * MIB);
    check(cuMemFreeAsync(one, stream) == 0 && cuStreamSynchronize(stream) == 0);
    counts(0);
    check(cuMemAlloc_v2(&all, limit() - base() - 10 * MIB) == 0);
    for (int i = 0; i < 3; i++) check(cuMemAllocFromPoolAsync(&one, MIB, large, stream) == OUT_OF_MEMORY);
    counts(limit() - base() - 10 * MIB);
    check(cuMemFree_v2(all) == 0 && cuMemAllocFromPoolAsync(&one, MIB, large, stream) == 0);
    check(cuMemFreeAsync(one, stream) == 0 && cuMemPoolDestroy(large) == 0);
    counts(0);
    const int here[2] = {1, 0};
    void *by_place;
    check(cuMemGetDefaultMemPool(&by_place, here, 1) == 0 && cuMemAllocFromPoolAsync(&one, 8 * MIB, by_place, stream) == 0);
    check(cuMemFreeAsync(one, stream) == 0 && cuCtxSynchronize_v2(context) == 0);
    counts(0);
    // The simulated driver does not tell pools in the host's memory apart; we do.
    check(cuMemPoolCreate(&host, on_host) == 0);
    check(cuMemAllocFromPoolAsync(&one, 8 * MIB, host, stream) == 0 && used() == base());
    check(cuMemFreeAsync(one, stream) == 0 && cuStreamSynchronize(stream) == 0 && cuMemPoolDestroy(host) == 0);
    counts(0);
}

// A graph that frees what it allocates keeps its memory until another allocation needs it, and gets it back.
static void graphs(void) {
    alloc_node a = {.kind = 1, .on = 1, .bytes = 60 * MIB}, most = {.kind = 1, .on = 1, .bytes = 1000 * MIB};
    void *graph, *node, *executable, *other;
    u64 pointer;
    check(cuGraphCreate(&graph, 0) == 0);
    check(cuGraphAddMemAllocNode(&node, graph, 0, 0, &most) == OUT_OF_MEMORY);
    check(cuGraphAddMemAllocNode(&node, graph, 0, 0, &a) == 0);
    check(cuGraphAddMemFreeNode(&node, graph, 0, 0, a.pointer) == 0);
    check(cuGraphInstantiateWithFlags(&executable, graph, 0) == 0);
    check(cuGraphInstantiateWithFlags(&other, graph, 0) == 0);
    counts(0);
    for (int i = 0; i < 100; i++) check(cuGraphLaunch(executable, stream) == 0);
    counts(60 * MIB);
    check(cuMemAlloc_v2(&pointer, limit() - base() - 10 * MIB) == 0);
    counts(limit() - base() - 10 * MIB);
    check(cuGraphLaunch(executable, stream) == OUT_OF_MEMORY);
    check(cuGraphLaunch(executable, stream) == OUT_OF_MEMORY);
    check(cuMemFree_v2(pointer) == 0 && cuGraphLaunch(executable, stream) == 0);
    counts(60 * MIB);
    // The other one's memory is had from the first one's, for want of more.
    check(cuMemAlloc_v2(&pointer, limit() - base() - 70 * MIB) == 0 && cuGraphLaunch(other, stream) == 0);
    counts(limit() - base() - 10 * MIB);
    check(cuMemFree_v2(pointer) == 0 && cuGraphExecDestroy(executable) == 0 && cuGraphExecDestroy(other) == 0);
    check(cuGraphDestroy(graph) == 0 && cuDeviceGraphMemTrim(0) == 0);
    counts(0);
}

// What ends with a context, and what does not.
static void contexts(void) {
    struct { size_t width, height; unsigned format, channels; } flat = {1024, 1024, 0x20, 1};
    struct { char magic[8]; u64 now, later; } image = {"simcode", 6 * MIB, 0};
    void *second, *array, *module, *top, *primary, *green, *in_green;
    u64 pointer, low, handle;
    unsigned narrow;
    check(cuCtxCreate_v2(&second, 0, 0) == 0);
    counts(CONTEXT);
    check(cuMemAlloc_v2(&pointer, 10 * MIB) == 0 && cuMemAlloc(&narrow, 4 * MIB) == 0);
    check(cuMemAllocManaged(&low, 2 * MIB, 1) == 0 && cuArrayCreate_v2(&array, &flat) == 0);
    check(cuModuleLoadData(&module, &image) == 0 && cuCtxSetLimit(2, 16 * MIB) == 0);
    check(cuMemCreate(&handle, 2 * MIB, on_device, 0) == 0);
    counts(CONTEXT + (10 + 4 + 2 + 4 + 6 + 8 + 2) * MIB);
    check(cuCtxDestroy_v2(second) == 0);
    counts(2 * MIB);
    check(cuMemRelease(handle) == 0);
    counts(0);
    check(cuCtxDestroy_v2((void *)0x1234560) != 0);
    counts(0);

    check(cuCtxPushCurrent_v2(context) == 0);
    check(cuDevicePrimaryCtxRetain(&primary, 0) == 0 && cuDevicePrimaryCtxRetain(&primary, 0) == 0);
    counts(CONTEXT);
    check(cuCtxPushCurrent_v2(primary) == 0 && cuMemAlloc_v2(&pointer, 10 * MIB) == 0);
    counts(CONTEXT + 10 * MIB);
    check(cuDevicePrimaryCtxReset_v2(0) == 0);
    counts(CONTEXT);
    // A green context's memory is the primary's.
    check(cuGreenCtxCreate(&green, 0, 0, 0) == 0 && cuCtxFromGreenCtx(&in_green, green) == 0);
    counts(CONTEXT + 2 * MIB);
    check(cuCtxPushCurrent_v2(in_green) == 0 && cuMemAlloc_v2(&pointer, 10 * MIB) == 0);
    check(cuCtxPopCurrent_v2(&top) == 0 && cuGreenCtxDestroy(green) == 0);
    counts(CONTEXT + 10 * MIB);
    check(cuDevicePrimaryCtxRelease_v2(0) == 0);
    counts(CONTEXT + 10 * MIB);
    check(cuCtxPopCurrent_v2(&top) == 0 && cuDevicePrimaryCtxRelease_v2(0) == 0);
    counts(0);
    // Stacks are there for every thread that the GPU can run: 56 multiprocessors of 2048.
    check(cuCtxSetLimit(0, 512) == 0);
    counts(56 * MIB);
    check(cuCtxSetLimit(0, 1 << 20) == OUT_OF_MEMORY);
    counts(56 * MIB);
    check(cuCtxSetLimit(0, 0) == 0 && cuCtxSetLimit(1, 2 * MIB) == 0);
    counts(MIB);
    check(cuCtxSetLimit(1, MIB) == 0);
    counts(0);
}

struct ipc { u64 words[8]; };

// What is opened or imported counts once, and bindings keep memory.
static void sharing(void) {
    u64 pointer, other, handle, again, ipc[8], buffer[16] = {0, 50 * MIB}, object, address;
    void *external;
    int exported, (*open_ipc)(u64 *, struct ipc, unsigned) = dlsym(RTLD_DEFAULT, "cuIpcOpenMemHandle_v2");
    check(cuMemAlloc_v2(&pointer, 50 * MIB) == 0 && cuIpcGetMemHandle(ipc, pointer) == 0);
    check(open_ipc(&other, *(struct ipc *)ipc, 0) == 0);
    counts(50 * MIB);
    check(cuIpcCloseMemHandle(other) == 0);
    counts(50 * MIB);
    check(cuMemFree_v2(pointer) == 0);
    counts(0);
    check(cuImportExternalMemory(&external, buffer) == 0 && cuExternalMemoryGetMappedBuffer(&pointer, external, buffer) == 0);
    counts(0);
    check(cuMemFree_v2(pointer) == 0 && cuDestroyExternalMemory(external) == 0);
    counts(0);

    check(cuMemCreate(&handle, 20 * MIB, on_device, 0) == 0 && cuMemExportToShareableHandle(&exported, handle, 1, 0) == 0);
    check(cuMemImportFromShareableHandle(&again, (void *)(long)exported, 1) == 0);
    counts(20 * MIB);
    // Imported by its creator: one more reference.
    check(cuMemRelease(handle) == 0);
    counts(20 * MIB);
    check(cuMemRelease(again) == 0);
    counts(0);

    // A sparse array has no memory; what is mapped into it stays while it does.
    struct { size_t width, height, depth; unsigned format, channels, flags; } sparse = {4096, 4096, 0, 0x20, 1, 0x40};
    struct { u64 kind; void *array; u64 place[5]; unsigned operation, handle_kind; u64 memory, rest[3]; } tiles[2] = {{0}};
    void *array;
    check(cuArray3DCreate_v2(&array, &sparse) == 0);
    counts(0);
    check(cuMemCreate(&handle, 4 * MIB, on_device, 0) == 0);
    for (int i = 0; i < 2; i++) tiles[i].array = array, tiles[i].operation = 1, tiles[i].memory = handle;
    check(cuMemMapArrayAsync(tiles, 2, stream) == 0 && cuMemRelease(handle) == 0);
    counts(4 * MIB);
    check(cuArrayDestroy(array) == 0);
    counts(0);

    for (int version = 1; version <= 2; version++) {
        check(cuMulticastCreate(&object, ipc) == 0);
        check(cuMemCreate(&handle, 20 * MIB, on_device, 0) == 0 && cuMemCreate(&other, 10 * MIB, on_device, 0) == 0);
        check(cuMemAddressReserve(&address, 10 * MIB, 0, 0, 0) == 0 && cuMemMap(address, 10 * MIB, 0, other, 0) == 0);
        if (version == 1) {
            check(cuMulticastBindMem(object, 0, handle, 0, 20 * MIB, 0) == 0);
            check(cuMulticastBindAddr(object, 20 * MIB, address, 10 * MIB, 0) == 0);
        } else {
            check(cuMulticastBindMem_v2(object, 0, 0, handle, 0, 20 * MIB, 0) == 0);
            check(cuMulticastBindAddr_v2(object, 0, 20 * MIB, address, 10 * MIB, 0) == 0);
        }
        check(cuMemRelease(handle) == 0 && cuMemRelease(other) == 0 && cuMemUnmap(address, 10 * MIB) == 0);
        counts(30 * MIB);
        check(cuMulticastUnbind(object, 0, 0, 20 * MIB) == 0);
        counts(10 * MIB);
        check(cuMemRelease(object) == 0);
        counts(0);
        check(cuMemAddressFree(address, 10 * MIB) == 0);
    }
}

// Code that is loaded when a function is first launched cannot be refused; it counts, and the next allocation
// is.
static void late(void) {
    struct { char magic[8]; u64 now, later; } image = {"simcode", 4 * MIB, 2 * MIB};
    void *module, *function;
    u64 pointer;
    check(cuModuleLoadData(&module, &image) == 0 && cuModuleGetFunction(&function, module, "kernel") == 0);
    counts(4 * MIB);
    for (int i = 0; i < 10; i++) check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0) == 0);
    counts(6 * MIB);
    check(cuModuleUnload(module) == 0);
    counts(0);
    // Above the limit, if there is no room: by a piece of memory.
    check(cuModuleLoadData(&module, &image) == 0 && cuModuleGetFunction(&function, module, "kernel") == 0);
    check(cuMemAlloc_v2(&pointer, limit() - used()) == 0 && used() == limit());
    check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0) == 0);
    check(physical() == limit() + 2 * MIB && used() == limit());
    check(cuMemFree_v2(pointer) == 0);
    counts(6 * MIB);
    check(cuModuleUnload(module) == 0);
    counts(0);
}

// A process that does everything at random, until it is killed.
static void work(unsigned seed) {
    alloc_node node = {.kind = 1, .on = 1, .bytes = 4 * MIB};
    void *graph, *added, *executable, *own, *module;
    struct { char magic[8]; u64 now, later; } image = {"simcode", 2 * MIB, 0};
    u64 pointer, other, handle, address;
    check(cuInit(0) == 0 && cuCtxCreate_v2(&own, 0, 0) == 0 && cuStreamCreate(&stream, 0) == 0);
    check(cuGraphCreate(&graph, 0) == 0 && cuGraphAddMemAllocNode(&added, graph, 0, 0, &node) == 0);
    for (;; seed = seed * 1103515245 + 12345) switch (seed >> 16 & 7) {
        case 0: check(cuMemAllocAsync(&pointer, 3 * MIB, stream) == 0 && cuMemFreeAsync(pointer, stream) == 0); break;
        case 1: check(cuStreamSynchronize(stream) == 0); break;
        case 2: check(cuMemAlloc_v2(&pointer, MIB) == 0 && cuMemAlloc_v2(&other, 3 * MIB) == 0);
                check(cuMemFree_v2(pointer) == 0 && cuMemFree_v2(other) == 0); break;
        case 3: check(cuGraphInstantiateWithFlags(&executable, graph, 0) == 0 && cuGraphLaunch(executable, stream) == 0);
                check(cuGraphExecDestroy(executable) == 0); break;
        case 4: check(cuDeviceGraphMemTrim(0) == 0); break;
        case 5: check(cuMemCreate(&handle, 4 * MIB, on_device, 0) == 0 && cuMemAddressReserve(&address, 4 * MIB, 0, 0, 0) == 0);
                check(cuMemMap(address, 4 * MIB, 0, handle, 0) == 0 && cuMemRelease(handle) == 0);
                check(cuMemUnmap(address, 4 * MIB) == 0 && cuMemAddressFree(address, 4 * MIB) == 0); break;
        case 6: check(cuModuleLoadData(&module, &image) == 0 && cuModuleUnload(module) == 0); break;
        case 7: check(cuCtxSetLimit(2, 10 * MIB) == 0 && cuCtxSetLimit(2, 8 * MIB) == 0); break;
    }
}

// Makes the workers, since a process with a GPU has no children with one: a letter makes one, its end makes
// another.
static void make_workers(int from, int to) {
    char letter;
    for (unsigned seed = 1; read(from, &letter, 1) == 1; seed++) {
        pid_t worker = fork();
        if (!worker) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            work(seed * 2654435761u);
        }
        check(write(to, &worker, sizeof worker) == sizeof worker);
        reap(worker, SIGKILL);
        check(write(to, &worker, sizeof worker) == sizeof worker);
    }
    _exit(0);
}

// Two GPUs, of 200 and 100 MiB: what is taken counts where it is, whatever the current context.
static void gpus(void) {
    const int on_second[24] = {1, 0, 1, 1};
    alloc_node a = {.kind = 1, .on = 1, .id = 1, .bytes = 20 * MIB};
    void *second, *its_stream, *pool, *graph, *node, *executable, *top;
    u64 pointer, handle;
    check(cuCtxCreate_v2(&second, 0, 1) == 0 && used() == CONTEXT && limit() == 100 * MIB);
    check(cuStreamCreate(&its_stream, 0) == 0 && cuCtxPopCurrent_v2(&top) == 0);
    counts(0);
#define on_the_second(bytes) do { counts(0); check(cuCtxPushCurrent_v2(second) == 0); counts(bytes); check(cuCtxPopCurrent_v2(&top) == 0); } while (0)
    // A stream's memory is its own device's, though the simulated driver takes the current context's.
    check(cuCtxPushCurrent_v2(second) == 0 && cuMemAllocAsync(&pointer, 50 * MIB, its_stream) == 0);
    check(cuMemAllocAsync(&handle, 11 * MIB, its_stream) == OUT_OF_MEMORY && cuCtxPopCurrent_v2(&top) == 0);
    on_the_second(50 * MIB);
    check(cuMemFreeAsync(pointer, its_stream) == 0 && cuStreamSynchronize(its_stream) == 0);
    on_the_second(0);
    check(cuMemPoolCreate(&pool, on_second) == 0 && cuMemAllocFromPoolAsync(&pointer, 30 * MIB, pool, stream) == 0);
    on_the_second(30 * MIB);
    check(cuMemCreate(&handle, 20 * MIB, on_second, 0) == 0);
    on_the_second(50 * MIB);
    check(cuMemCreate(&handle, 20 * MIB, on_second, 0) == OUT_OF_MEMORY);
    check(cuMemFreeAsync(pointer, stream) == 0 && cuMemPoolDestroy(pool) == 0 && cuMemRelease(handle) == 0);
    on_the_second(0);
    check(cuGraphCreate(&graph, 0) == 0 && cuGraphAddMemAllocNode(&node, graph, 0, 0, &a) == 0);
    check(cuGraphInstantiateWithFlags(&executable, graph, 0) == 0 && cuGraphLaunch(executable, stream) == 0);
    on_the_second(20 * MIB);
    check(cuGraphExecDestroy(executable) == 0 && cuGraphDestroy(graph) == 0 && cuDeviceGraphMemTrim(1) == 0);
    on_the_second(0);
    check(cuCtxDestroy_v2(second) == 0);
}

// Threads that settle the same pools at the same time, at the limit: it is never passed, and nothing is left.
static void *pools_of;
static atomic_int refused, running;
static pthread_barrier_t together;
static void *settle_at_once(void *number) {
    unsigned seed = (unsigned)(size_t)number;
    u64 mine[8] = {0};
    check(cuCtxSetCurrent(context) == 0);
    for (int round = 0; round < 3000; round++, seed = seed * 1103515245 + 12345) {
        u64 *one = &mine[seed >> 16 & 7];
        // With what all of them have: else each might be done before the next one runs.
        if (round % 100 == 0) pthread_barrier_wait(&together);
        if (*one) {
            check((seed & 1 << 20 ? cuMemFreeAsync(*one, stream) : cuMemFree_v2(*one)) == 0);
            *one = 0;
        } else {
            size_t bytes = ((seed >> 19 & 15) + 1) * MIB / 2;
            int result = seed & 1 << 20 ? cuMemAllocAsync(one, bytes, stream) : cuMemAllocFromPoolAsync(one, bytes, pools_of, stream);
            check(result == 0 || result == OUT_OF_MEMORY);
            if (result) *one = 0, refused++;
        }
        if ((seed >> 24 & 15) == 0) check(cuStreamSynchronize(stream) == 0);
    }
    for (int i = 0; i < 8; i++) if (mine[i]) check(cuMemFreeAsync(mine[i], stream) == 0);
    running--;
    return 0;
}
static void threads(void) {
    pthread_t thread[6];
    u64 keep = 32 * MIB, rest, most = 0;
    check(cuMemPoolCreate(&pools_of, on_device) == 0 && cuMemPoolSetAttribute(pools_of, 4, &keep) == 0);
    check(cuMemAlloc_v2(&rest, limit() - base() - 60 * MIB) == 0);
    running = 6;
    check(pthread_barrier_init(&together, 0, 6) == 0);
    for (size_t i = 0; i < 6; i++) check(pthread_create(&thread[i], 0, settle_at_once, (void *)(i + 1)) == 0);
    while (running) {
        u64 now = physical();
        if (now > most) most = now;
        sched_yield();
    }
    for (int i = 0; i < 6; i++) check(pthread_join(thread[i], 0) == 0);
    check(refused > 0 && most <= limit() && most > limit() - 60 * MIB);
    check(cuMemFree_v2(rest) == 0 && cuMemPoolDestroy(pools_of) == 0 && cuStreamSynchronize(stream) == 0);
    counts(0);
}

static int to_maker, from_maker;
static void kills(int trials) {
    pid_t worker, ended;
    for (int trial = 0; trial < trials; trial++) {
        check(write(to_maker, "", 1) == 1 && read(from_maker, &worker, sizeof worker) == sizeof worker);
        struct timespec pause = {0, (trial * 7919 % 1000 + 200) * 1000};
        nanosleep(&pause, 0);
        kill(worker, SIGKILL);
        check(read(from_maker, &ended, sizeof ended) == sizeof ended && ended == worker);
        counts(0);
    }
}

int main(int argc, char **argv) {
    const char *what = argv[1];
    if (!strcmp(what, "kills")) {
        int to[2], from[2];
        check(pipe(to) == 0 && pipe(from) == 0);
        if (!fork()) close(to[1]), make_workers(to[0], from[1]);
        to_maker = to[1], from_maker = from[0];
    }
    void *real = dlopen("/run/fgpu/driver-00000000000000000000000000000000/cuda", RTLD_NOW | RTLD_NOLOAD);
    check(real && (real_info = dlsym(real, "cuMemGetInfo_v2")));
    check(cuInit(0) == 0 && cuCtxCreate_v2(&context, 0, 0) == 0 && cuStreamCreate(&stream, 0) == 0);
    counts(0);
    if (!strcmp(what, "pools")) pools();
    else if (!strcmp(what, "graphs")) graphs();
    else if (!strcmp(what, "contexts")) contexts();
    else if (!strcmp(what, "sharing")) sharing();
    else if (!strcmp(what, "late")) late();
    else if (!strcmp(what, "gpus")) gpus();
    else if (!strcmp(what, "threads")) threads();
    else if (!strcmp(what, "kills")) kills(atoi(argv[2]));
    else return 2;
    check(cuCtxDestroy_v2(context) == 0);
    printf("%s ok\n", what);
}
