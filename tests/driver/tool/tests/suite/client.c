/* A program that uses the CUDA driver API as it is told on standard input: one command a line, one answer a
 * line, the CUresult first. It declares what it needs of cuda.h itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*function)();
static void *library;

static function find(const char *name)
{
    function found = (function)dlsym(library, name);
    if (!found) {
        fprintf(stderr, "client: no %s\n", name);
        exit(3);
    }
    return found;
}
#define CU(name, ...) find(#name)(__VA_ARGS__)

struct properties {
    int type, handle_types, location_type, location_id;
    void *win32;
    uint64_t flags;
};
struct access {
    int location_type, location_id, flags;
};

/* What cuGetProcAddress_v2 answers for every name in a file, for many versions, with each flag. */
static int proc_addresses(const char *names)
{
    static const int versions[] = {0, 2000, 3010, 3020, 4000, 6050, 7000, 8000, 10000, 10010, 11000, 11010, 11020,
                                   11030, 11040, 11070, 12000, 12020, 12030, 12040, 12080};
    FILE *file = fopen(names, "r");
    char name[256];
    while (file && fscanf(file, "%255s", name) == 1)
        for (size_t v = 0; v < sizeof versions / sizeof *versions; v++)
            for (uint64_t flags = 0; flags < 3; flags++) {
                void *address = &address;
                int status = -1;
                Dl_info info = {0};
                int result = CU(cuGetProcAddress_v2, name, &address, versions[v], flags, &status);
                if (address)
                    dladdr(address, &info);
                printf("%s %d %d: %d %d %s\n", name, versions[v], (int)flags, result, status,
                       address ? info.dli_sname : "null");
            }
    return file ? 0 : 3;
}

static int virtual_memory(size_t size, uint64_t *address)
{
    struct properties properties = {1, 0, 1, 0, NULL, 0};
    struct access access = {1, 0, 3};
    uint64_t handle;
    int result = CU(cuMemCreate, &handle, size, &properties, 0ULL);
    if (result)
        return result;
    result = CU(cuMemAddressReserve, address, size, (size_t)0, 0ULL, 0ULL);
    result = result ? result : CU(cuMemMap, *address, size, (size_t)0, handle, 0ULL);
    result = result ? result : CU(cuMemSetAccess, *address, size, &access, (size_t)1);
    /* The mapping keeps the memory. */
    return result ? result : CU(cuMemRelease, handle);
}

static int round_trip(uint64_t address)
{
    char in[64] = "through the device and back", out[64] = "";
    int result = CU(cuMemcpyHtoD_v2, address, in, sizeof in);
    result = result ? result : CU(cuMemcpyDtoH_v2, out, address, sizeof out);
    return result ? result : memcmp(in, out, sizeof in) ? -1 : 0;
}

static int launch(void *kernel, uint64_t nanoseconds)
{
    void *parameters[] = {&nanoseconds};
    return CU(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

int main(int argc, char **argv)
{
    library = dlopen(argc > 2 ? argv[2] : "libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "client: %s\n", dlerror());
        return 3;
    }
    if (argc > 1 && strcmp(argv[1], "-"))
        return proc_addresses(argv[1]);

    char line[256], word[32];
    void *context = NULL, *module = NULL, *kernel = NULL, *start = NULL, *end = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long n = 0;
        uint64_t address = 0;
        size_t free_bytes = 0, total = 0;
        int result = -1, number = 0;
        if (sscanf(line, "%31s %llu", word, &n) < 1)
            continue;
        if (!strcmp(word, "init")) {
            printf("%d\n", CU(cuInit, 0));
        } else if (!strcmp(word, "count")) {
            result = CU(cuDeviceGetCount, &number);
            printf("%d %d\n", result, number);
        } else if (!strcmp(word, "name")) {
            char name[128] = "";
            result = CU(cuDeviceGetName, name, (int)sizeof name, (int)n);
            printf("%d %s\n", result, name);
        } else if (!strcmp(word, "context")) {
            printf("%d\n", CU(cuCtxCreate_v2, &context, 0, (int)n));
        } else if (!strcmp(word, "destroy")) {
            printf("%d\n", CU(cuCtxDestroy_v2, context));
        } else if (!strcmp(word, "alloc")) {
            result = CU(cuMemAlloc_v2, &address, (size_t)n);
            printf("%d %llu\n", result, (unsigned long long)address);
        } else if (!strcmp(word, "managed")) {
            result = CU(cuMemAllocManaged, &address, (size_t)n, 1);
            printf("%d %llu\n", result, (unsigned long long)address);
        } else if (!strcmp(word, "async")) {
            result = CU(cuMemAllocAsync, &address, (size_t)n, NULL);
            printf("%d %llu\n", result, (unsigned long long)address);
        } else if (!strcmp(word, "virtual")) {
            result = virtual_memory(n, &address);
            printf("%d %llu\n", result, (unsigned long long)address);
        } else if (!strcmp(word, "unmap")) {
            unsigned long long size = strtoull(strrchr(line, ' '), NULL, 10);
            printf("%d\n", CU(cuMemUnmap, (uint64_t)n, (size_t)size));
        } else if (!strcmp(word, "free")) {
            printf("%d\n", CU(cuMemFree_v2, (uint64_t)n));
        } else if (!strcmp(word, "freeasync")) {
            printf("%d\n", CU(cuMemFreeAsync, (uint64_t)n, NULL));
        } else if (!strcmp(word, "copy")) {
            printf("%d\n", round_trip(n));
        } else if (!strcmp(word, "info")) {
            result = CU(cuMemGetInfo_v2, &free_bytes, &total);
            printf("%d %zu %zu\n", result, free_bytes, total);
        } else if (!strcmp(word, "kernel")) {
            result = CU(cuModuleLoadData, &module, "an image");
            result = result ? result : CU(cuModuleGetFunction, &kernel, module, "spin_ns");
            result = result ? result : CU(cuEventCreate, &start, 0);
            printf("%d\n", result ? result : CU(cuEventCreate, &end, 0));
        } else if (!strcmp(word, "spin")) {
            printf("%d\n", launch(kernel, n));
        } else if (!strcmp(word, "query")) {
            printf("%d\n", CU(cuStreamQuery, NULL));
        } else if (!strcmp(word, "sync")) {
            printf("%d\n", CU(cuCtxSynchronize));
        } else if (!strcmp(word, "timed")) {
            float milliseconds = 0;
            result = CU(cuEventRecord, start, NULL);
            result = result ? result : launch(kernel, n);
            result = result ? result : CU(cuEventRecord, end, NULL);
            result = result ? result : CU(cuEventSynchronize, end);
            result = result ? result : CU(cuEventElapsedTime, &milliseconds, start, end);
            printf("%d %f\n", result, milliseconds);
        } else if (!strcmp(word, "begin")) {
            result = CU(cuEventRecord, start, NULL);
            result = result ? result : launch(kernel, n);
            printf("%d\n", result ? result : CU(cuEventRecord, end, NULL));
        } else if (!strcmp(word, "took")) {
            float milliseconds = 0;
            result = CU(cuEventElapsedTime, &milliseconds, start, end);
            printf("%d %f\n", result, milliseconds);
        } else if (!strcmp(word, "fork")) {
            /* What a forked child is answered: its memory and another init. */
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                printf("%d %d\n", CU(cuMemGetInfo_v2, &free_bytes, &total), CU(cuInit, 0));
                exit(0);
            }
            waitpid(child, NULL, 0);
        } else {
            printf("-1 unknown command %s\n", word);
        }
    }
    return 0;
}
