// What the test programs share: the functions of libcuda, by whatever way they were had, and a check.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long u64;
#define MIB (1ull << 20)

#define check(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1); \
        } \
    } while (0)

int cuMemAlloc(unsigned *, unsigned);
int cuMemAlloc_v2(u64 *, size_t);
int cuMemFree(unsigned);
int cuMemFree_v2(u64);
int cuMemAllocPitch_v2(u64 *, size_t *, size_t, size_t, unsigned);
int cuMemAllocManaged(u64 *, size_t, unsigned);
int cuMemAllocAsync(u64 *, size_t, void *);
int cuMemAllocAsync_ptsz(u64 *, size_t, void *);
int cuMemAllocFromPoolAsync(u64 *, size_t, void *, void *);
int cuMemAllocFromPoolAsync_ptsz(u64 *, size_t, void *, void *);
int cuMemFreeAsync(u64, void *);
int cuMemFreeAsync_ptsz(u64, void *);
int cuMemCreate(u64 *, size_t, const void *, u64);
int cuMemRelease(u64);
int cuMemRetainAllocationHandle(u64 *, void *);
int cuMemMap(u64, size_t, size_t, u64, u64);
int cuMemUnmap(u64, size_t);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemGetInfo(unsigned *, unsigned *);
int cuDeviceTotalMem_v2(size_t *, int);
int cuCtxSetCurrent(void *);
int cuGetProcAddress(const char *, void **, int, u64);
int cuGetProcAddress_v2(const char *, void **, int, u64, int *);
void fakeFailNext(int);
void fakePitchStep(u64);
u64 fakeHeld(int);
u64 fakeMost(int);

#define OUT_OF_MEMORY 2

// What the container uses of the current device, as cuMemGetInfo tells.
__attribute__((unused)) static u64 used(void) {
    size_t left, total;
    check(cuMemGetInfo_v2(&left, &total) == 0);
    return total - left;
}

__attribute__((unused)) static u64 limit(void) {
    size_t left, total;
    check(cuMemGetInfo_v2(&left, &total) == 0);
    return total;
}

__attribute__((unused)) static void reap(pid_t pid, int expected) {
    int status;
    check(waitpid(pid, &status, 0) == pid);
    check(status == expected);
}
