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
int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxDestroy(void *);
int cuCtxDestroy_v2(void *);
int cuCtxPushCurrent_v2(void *);
int cuCtxPopCurrent_v2(void **);
int cuCtxSetLimit(int, size_t);
int cuCtxSynchronize(void);
int cuCtxFromGreenCtx(void **, void *);
int cuDevicePrimaryCtxRetain(void **, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuDevicePrimaryCtxReset_v2(int);
int cuGreenCtxCreate(void **, void *, int, unsigned);
int cuGreenCtxDestroy(void *);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamSynchronize(void *);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);
int cuMemPoolCreate(void **, const void *);
int cuMemPoolDestroy(void *);
int cuMemPoolTrimTo(void *, size_t);
int cuMemPoolSetAttribute(void *, int, void *);
int cuArrayCreate_v2(void **, const void *);
int cuArray3DCreate_v2(void **, const void *);
int cuMemMapArrayAsync(void *, unsigned, void *);
int cuArrayDestroy(void *);
int cuMipmappedArrayDestroy(void *);
int cuGraphCreate(void **, unsigned);
int cuGraphDestroy(void *);
int cuGraphAddMemAllocNode(void **, void *, void *, size_t, void *);
int cuGraphAddMemFreeNode(void **, void *, void *, size_t, u64);
int cuGraphAddChildGraphNode(void **, void *, void *, size_t, void *);
int cuGraphInstantiateWithFlags(void **, void *, u64);
int cuGraphLaunch(void *, void *);
int cuGraphExecDestroy(void *);
int cuDeviceGraphMemTrim(int);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuModuleUnload(void *);
int cuLibraryUnload(void *);
int cuMemAddressReserve(u64 *, size_t, size_t, u64, u64);
int cuMemAddressFree(u64, size_t);
int cuMemExportToShareableHandle(void *, u64, int, u64);
int cuMemImportFromShareableHandle(u64 *, void *, int);
int cuIpcGetMemHandle(void *, u64);
int cuIpcCloseMemHandle(u64);
int cuImportExternalMemory(void **, const void *);
int cuExternalMemoryGetMappedBuffer(u64 *, void *, const void *);
int cuDestroyExternalMemory(void *);
int cuMulticastCreate(u64 *, const void *);
int cuMulticastBindMem(u64, size_t, u64, size_t, size_t, u64);
int cuMulticastBindAddr(u64, size_t, u64, size_t, u64);
int cuMulticastBindMem_v2(u64, int, size_t, u64, size_t, size_t, u64);
int cuMulticastBindAddr_v2(u64, int, size_t, u64, size_t, u64);
int cuCtxSynchronize_v2(void *);
int cuMemGetDefaultMemPool(void **, const void *, int);
int cuMulticastUnbind(u64, int, size_t, size_t);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
void fakeFailNext(int);
void fakePitchStep(u64);
u64 fakeHeld(int);
u64 fakeMost(int);

#define OUT_OF_MEMORY 2

// The container's use of the current device, as cuMemGetInfo reports it.
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
