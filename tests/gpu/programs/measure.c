/* measure [--device N] WORD...: what the driver takes and how long its calls last; a JSON line for each word. Run with
 * and without fgpu.
 *
 *   costs                   device memory that a context, a module, its first launch and a module with 8 MiB take
 *   rounding                what allocations of 1 B to 4 MiB take each, and how far apart they lie
 *   pair ROUNDS             nanoseconds of a pair of cuMemAlloc and cuMemFree, of 1 KiB and of 4 MiB
 *   launch ROUNDS           nanoseconds of cuLaunchKernel of an empty kernel, and of a launch and its end
 *   calibrate               rounds of the busy kernel that fill the GPU for about a millisecond
 *   busy ROUNDS SECONDS     busy kernels, two in flight, from the next byte or the end of stdin on; how many ended, and how many
 *                           in each tenth of a second
 *
 * Memory is asked of NVML (which is not limited where this runs without fgpu), as the whole GPU's: so nobody else should
 * use the GPU meanwhile.
 */
#include "cuda.h"
#include "kernels.h"

static int ordinal;

static struct { u64 version_and_size, total, reserved, left, used; } memory; /* nvmlMemory_v2_t, 40 bytes */
static int (*nvml_memory)(void *, void *);
static void *nvml_device;

/* By bus id: NVML's order of GPUs is not CUDA's. */
static void open_nvml(void)
{
    char id[32];
    int domain, bus, slot;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) failed("dlopen libnvidia-ml.so.1", -1);
    int (*init)(void), (*by_id)(const char *, void **);
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&by_id = dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&nvml_memory = dlsym(library, "nvmlDeviceGetMemoryInfo_v2");
    if (!init || !by_id || !nvml_memory) failed("NVML lacks a function", -1);
    must(cuDeviceGetAttribute(&bus, 33, device));
    must(cuDeviceGetAttribute(&slot, 34, device));
    must(cuDeviceGetAttribute(&domain, 50, device));
    snprintf(id, sizeof id, "%08X:%02X:%02X.0", domain, bus, slot);
    must(init());
    must(by_id(id, &nvml_device));
}

static u64 outside(void)
{
    memory.version_and_size = sizeof memory | 2u << 24;
    must(nvml_memory(nvml_device, &memory));
    return memory.used;
}

static void *function(const char *name)
{
    static void *module;
    void *found;
    if (!module) must(cuModuleLoadData(&module, KERNELS));
    must(cuModuleGetFunction(&found, module, name));
    return found;
}

static int launch(void *kernel, unsigned blocks, unsigned threads, void **arguments)
{
    return cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, NULL, arguments, NULL);
}

static void costs(void)
{
    void *large, *reads;
    u64 target, step[7];
    step[0] = outside();
    enter();
    step[1] = outside();
    u64 said = in_use();
    void *empty = function("empty");
    step[2] = outside();
    must(launch(empty, 1, 1, NULL));
    must(cuCtxSynchronize());
    step[3] = outside();
    must(cuModuleLoadData(&large, LARGE));
    must(cuModuleGetFunction(&reads, large, "reads"));
    step[4] = outside();
    must(cuMemAlloc_v2(&target, 4));
    step[5] = outside();
    void *arguments[] = {&target};
    must(launch(reads, 1, 1, arguments));
    must(cuCtxSynchronize());
    step[6] = outside();
    must(cuMemFree_v2(target));
    printf("{\"context\": %lld, \"module\": %lld, \"first_launch\": %lld, \"module_of_8_mib\": %lld, \"first_byte\": %lld, "
           "\"launch_of_8_mib\": %lld, \"said_in_use\": %llu}\n",
           (long long)(step[1] - step[0]), (long long)(step[2] - step[1]), (long long)(step[3] - step[2]),
           (long long)(step[4] - step[3]), (long long)(step[5] - step[4]), (long long)(step[6] - step[5]),
           (unsigned long long)said);
}

/* So many of each size that the pieces of the driver show. */
static void rounding(void)
{
    static const u64 sizes[] = {1, 256, 511, 512, 513, 1000, 4 * KIB, 4 * KIB + 1, 64 * KIB, 64 * KIB + 1, 128 * KIB,
                                256 * KIB, 512 * KIB, 512 * KIB + 1, MIB - 1, MIB, MIB + 1, 3 * MIB / 2, 2 * MIB - 1, 2 * MIB,
                                2 * MIB + 1, 3 * MIB, 3 * MIB + 1, 4 * MIB - 1, 4 * MIB};
    static u64 pointers[65536];
    enter();
    printf("{\"rounding\": [");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t many = 64 * MIB / sizes[i];
        if (many > 16384) many = 16384;
        u64 before = outside(), nearest = ~0ull;
        for (size_t k = 0; k < many; k++) {
            must(cuMemAlloc_v2(&pointers[k], sizes[i]));
            if (k && pointers[k] > pointers[k - 1] && pointers[k] - pointers[k - 1] < nearest)
                nearest = pointers[k] - pointers[k - 1];
        }
        u64 taken = outside() - before;
        for (size_t k = many; k--;) must(cuMemFree_v2(pointers[k]));
        printf("%s{\"bytes\": %llu, \"count\": %zu, \"taken\": %llu, \"apart\": %lld, \"left\": %lld}", i ? ", " : "",
               (unsigned long long)sizes[i], many, (unsigned long long)taken, nearest == ~0ull ? -1 : (long long)nearest,
               (long long)(outside() - before));
    }
    printf("]}\n");
}

static int ascending(const void *a, const void *b)
{
    u64 x = *(const u64 *)a, y = *(const u64 *)b;
    return (x > y) - (x < y);
}

static u64 median(u64 *values, size_t many)
{
    qsort(values, many, sizeof *values, ascending);
    return values[many / 2];
}

static void pair(size_t rounds)
{
    static const size_t sizes[2] = {KIB, 4 * MIB};
    u64 *took = malloc(rounds * sizeof *took), pointer, keep, result[2];
    enter();
    must(cuMemAlloc_v2(&keep, KIB)); /* so that the driver has its piece for small ones */
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < rounds; k++) {
            u64 before = now();
            must(cuMemAlloc_v2(&pointer, sizes[i]));
            must(cuMemFree_v2(pointer));
            took[k] = now() - before;
        }
        result[i] = median(took, rounds);
    }
    printf("{\"pair_1_kib\": %llu, \"pair_4_mib\": %llu}\n", (unsigned long long)result[0], (unsigned long long)result[1]);
    free(took);
}

static void launches(size_t rounds)
{
    u64 *took = malloc(rounds * sizeof *took), alone, ended, many;
    enter();
    void *empty = function("empty");
    for (int i = 0; i < 100; i++) must(launch(empty, 1, 1, NULL));
    must(cuCtxSynchronize());
    for (size_t k = 0; k < rounds; k++) {
        u64 before = now();
        must(launch(empty, 1, 1, NULL));
        took[k] = now() - before;
        /* Not into a full queue. */
        if (k % 64 == 63) must(cuCtxSynchronize());
    }
    alone = median(took, rounds);
    must(cuCtxSynchronize());
    for (size_t k = 0; k < rounds; k++) {
        u64 before = now();
        must(launch(empty, 1, 1, NULL));
        must(cuCtxSynchronize());
        took[k] = now() - before;
    }
    ended = median(took, rounds);
    u64 before = now();
    for (size_t k = 0; k < rounds; k++) must(launch(empty, 1, 1, NULL));
    must(cuCtxSynchronize());
    many = (now() - before) / rounds;
    printf("{\"launch\": %llu, \"launch_and_end\": %llu, \"in_a_row\": %llu}\n", (unsigned long long)alone,
           (unsigned long long)ended, (unsigned long long)many);
    free(took);
}

/* A grid that fills every multiprocessor: eight blocks of 256 threads each. */
static unsigned whole_grid(void)
{
    int processors;
    must(cuDeviceGetAttribute(&processors, 16, device));
    return (unsigned)processors * 8;
}

static void calibrate(void)
{
    u64 target, took = 0;
    unsigned rounds = 256, grid;
    enter();
    grid = whole_grid();
    must(cuMemAlloc_v2(&target, 4));
    void *kernel = function("busy"), *arguments[] = {&target, &rounds};
    must(launch(kernel, grid, 256, arguments));
    must(cuCtxSynchronize());
    for (; rounds < 1u << 26; rounds *= 2) {
        u64 before = now();
        must(launch(kernel, grid, 256, arguments));
        must(cuCtxSynchronize());
        took = now() - before;
        if (took >= 1000000) break;
    }
    u64 wanted = (u64)rounds * 1000000 / took;
    printf("{\"rounds\": %llu, \"nanoseconds\": %llu}\n", (unsigned long long)(wanted ? wanted : 1), (unsigned long long)took);
}

static void busy(unsigned rounds, double seconds)
{
    enum { TENTHS = 6000 };
    static unsigned tenths[TENTHS];
    u64 target, ended = 0, start, until, last;
    void *events[2];
    unsigned grid;
    enter();
    grid = whole_grid();
    must(cuMemAlloc_v2(&target, 4));
    void *kernel = function("busy"), *arguments[] = {&target, &rounds};
    for (int i = 0; i < 2; i++) must(cuEventCreate(&events[i], 2)); /* 2: without timing */
    must(launch(kernel, grid, 256, arguments));
    must(cuCtxSynchronize());
    printf("{\"ready\": true}\n");
    fflush(stdout);
    char byte;
    if (read(0, &byte, 1) < 0) failed("read", -1);
    last = start = now();
    until = start + (u64)(seconds * 1e9);
    for (u64 k = 0; last < until; k++) {
        must(launch(kernel, grid, 256, arguments));
        must(cuEventRecord(events[k % 2], NULL));
        if (k == 0) continue;
        must(cuEventSynchronize(events[(k - 1) % 2]));
        last = now();
        ended++;
        u64 tenth = (last - start) / 100000000;
        if (tenth < TENTHS) tenths[tenth]++;
    }
    must(cuCtxSynchronize());
    printf("{\"kernels\": %llu, \"nanoseconds\": %llu, \"tenths\": [", (unsigned long long)ended,
           (unsigned long long)(last - start));
    for (u64 i = 0; i < (last - start) / 100000000 && i < TENTHS; i++) printf("%s%u", i ? ", " : "", tenths[i]);
    printf("]}\n");
}

int main(int argc, char **argv)
{
    int i = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2 && !strcmp(argv[1], "--device")) ordinal = atoi(argv[2]), i = 3;
    load(ordinal);
    for (; i < argc; i++) {
        const char *word = argv[i];
        if (!strcmp(word, "costs")) open_nvml(), costs();
        else if (!strcmp(word, "rounding")) open_nvml(), rounding();
        else if (!strcmp(word, "pair") && i + 1 < argc) pair(strtoull(argv[++i], NULL, 0));
        else if (!strcmp(word, "launch") && i + 1 < argc) launches(strtoull(argv[++i], NULL, 0));
        else if (!strcmp(word, "calibrate")) calibrate();
        else if (!strcmp(word, "busy") && i + 2 < argc) {
            unsigned rounds = (unsigned)strtoul(argv[++i], NULL, 0);
            busy(rounds, atof(argv[++i]));
        } else {
            fprintf(stderr, "measure: what is %s?\n", word);
            return 2;
        }
    }
    return 0;
}
