/* spin NANOSECONDS KERNEL [STREAMS]: launches kernels of KERNEL ns of the whole GPU, by turns into so many streams (1), until they
 * are NANOSECONDS in all; prints how many nanoseconds of kernels that was, and how many passed. The kernels are the simulated driver's.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *library;

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        printf("dlsym %s\n", name);
        exit(1);
    }
    return found;
}

static void check(const char *what, int error)
{
    if (error) {
        printf("%s error=%d\n", what, error);
        exit(1);
    }
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

#define CALL(name, types, ...) check(#name, ((int (*) types)function(#name))(__VA_ARGS__))

int main(int argc, char **argv)
{
    void *context, *module, *spin, *streams[64], *arguments[1];
    uint64_t all, kernel, launched, start;
    int many = argc > 3 ? atoi(argv[3]) : 1, i;
    if (argc < 3 || many < 1 || many > 64 || !(library = dlopen("libcuda.so.1", RTLD_NOW)))
        return 2;
    all = strtoull(argv[1], NULL, 0);
    kernel = strtoull(argv[2], NULL, 0);
    CALL(cuInit, (unsigned), 0);
    CALL(cuCtxCreate_v2, (void **, unsigned, int), &context, 0, 0);
    CALL(cuModuleLoadData, (void **, const void *), &module, "an image");
    CALL(cuModuleGetFunction, (void **, void *, const char *), &spin, module, "spin_ns");
    for (i = 0; i < many; i++)
        CALL(cuStreamCreate, (void **, unsigned), &streams[i], 1);
    arguments[0] = &kernel;
    start = now();
    for (launched = 0; launched * kernel < all; launched++)
        CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
             spin, 1, 1, 1, 1, 1, 1, 0, streams[launched % many], arguments, NULL);
    CALL(cuCtxSynchronize, (void));
    printf("spin kernels=%llu passed=%llu\n", (unsigned long long)(launched * kernel), (unsigned long long)(now() - start));
    return 0;
}
