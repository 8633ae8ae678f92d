/* The part of the CUDA driver API that the kit's programs use, loaded with dlopen and dlsym as a framework does. NVIDIA's
 * headers are not needed: the types are plain integers and pointers, and the structures are laid out here after cuda.h.
 *
 * A function that the driver lacks is a null pointer; HAVE(name) asks. Every other failure ends the program with one
 * JSON line, {"failed": what, "code": CUresult}, and status 1.
 */
#ifndef FGPU_KIT_CUDA_H
#define FGPU_KIT_CUDA_H
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define OUT_OF_MEMORY 2 /* CUDA_ERROR_OUT_OF_MEMORY */

typedef struct { int type, id; } location;                     /* CUmemLocation; type 1 is a device */
typedef struct { location at; int flags; } access_of;          /* CUmemAccessDesc; flags 3: read and write */
typedef struct {                                               /* CUmemAllocationProp; type 1 is pinned */
    int type, handles;
    location at;
    void *win32;
    unsigned char flags[8];
} allocation;
typedef struct {                                               /* CUmemPoolProps */
    int type, handles;
    location at;
    void *win32;
    size_t most;
    unsigned char rest[56];
} pool_properties;
typedef struct {                                               /* CUDA_MEM_ALLOC_NODE_PARAMS */
    pool_properties pool;
    const access_of *access;
    size_t access_count, bytes;
    u64 pointer;
} alloc_node;
typedef struct { size_t width, height; int format; unsigned channels; } array_2d;                 /* format 3: uint32 */
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } array_3d;

#define FUNCTIONS(X) \
    X(cuInit, (unsigned)) \
    X(cuDriverGetVersion, (int *)) \
    X(cuDeviceGet, (int *, int)) \
    X(cuDeviceGetCount, (int *)) \
    X(cuDeviceGetName, (char *, int, int)) \
    X(cuDeviceGetAttribute, (int *, int, int)) \
    X(cuDeviceTotalMem_v2, (size_t *, int)) \
    X(cuDevicePrimaryCtxRetain, (void **, int)) \
    X(cuCtxSetCurrent, (void *)) \
    X(cuCtxSynchronize, (void)) \
    X(cuMemGetInfo_v2, (size_t *, size_t *)) \
    X(cuMemAlloc_v2, (u64 *, size_t)) \
    X(cuMemFree_v2, (u64)) \
    X(cuMemAllocPitch_v2, (u64 *, size_t *, size_t, size_t, unsigned)) \
    X(cuMemAllocManaged, (u64 *, size_t, unsigned)) \
    X(cuMemAllocAsync, (u64 *, size_t, void *)) \
    X(cuMemAllocFromPoolAsync, (u64 *, size_t, void *, void *)) \
    X(cuMemFreeAsync, (u64, void *)) \
    X(cuMemPoolCreate, (void **, const pool_properties *)) \
    X(cuMemPoolDestroy, (void *)) \
    X(cuMemGetAllocationGranularity, (size_t *, const allocation *, int)) \
    X(cuMemCreate, (u64 *, size_t, const allocation *, u64)) \
    X(cuMemRelease, (u64)) \
    X(cuMemAddressReserve, (u64 *, size_t, size_t, u64, u64)) \
    X(cuMemAddressFree, (u64, size_t)) \
    X(cuMemMap, (u64, size_t, size_t, u64, u64)) \
    X(cuMemUnmap, (u64, size_t)) \
    X(cuMemSetAccess, (u64, size_t, const access_of *, size_t)) \
    X(cuArrayCreate_v2, (void **, const array_2d *)) \
    X(cuArray3DCreate_v2, (void **, const array_3d *)) \
    X(cuArrayDestroy, (void *)) \
    X(cuMipmappedArrayCreate, (void **, const array_3d *, unsigned)) \
    X(cuMipmappedArrayDestroy, (void *)) \
    X(cuGraphCreate, (void **, unsigned)) \
    X(cuGraphDestroy, (void *)) \
    X(cuGraphAddMemAllocNode, (void **, void *, const void **, size_t, alloc_node *)) \
    X(cuGraphInstantiateWithFlags, (void **, void *, u64)) \
    X(cuGraphLaunch, (void *, void *)) \
    X(cuGraphExecDestroy, (void *)) \
    X(cuDeviceGraphMemTrim, (int)) \
    X(cuModuleLoadData, (void **, const void *)) \
    X(cuModuleUnload, (void *)) \
    X(cuModuleGetFunction, (void **, void *, const char *)) \
    X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
    X(cuStreamCreate, (void **, unsigned)) \
    X(cuStreamSynchronize, (void *)) \
    X(cuEventCreate, (void **, unsigned)) \
    X(cuEventRecord, (void *, void *)) \
    X(cuEventSynchronize, (void *))

#define DECLARE(name, arguments) static int (*name) arguments __attribute__((unused));
FUNCTIONS(DECLARE)
#define HAVE(name) ((name) != NULL)

__attribute__((noreturn)) static void failed(const char *what, int code)
{
    printf("{\"failed\": \"%s\", \"code\": %d}\n", what, code);
    fflush(stdout);
    _exit(1);
}

#define must(call) \
    do { \
        int code_ = (call); \
        if (code_) failed(#call, code_); \
    } while (0)

static int device;
static void *context;

/* Loads the driver and finds the device; no context yet. */
static void load(int ordinal)
{
    const char *named = getenv("FGPU_KIT_CUDA"); /* the real one, to see who holds whoever leaves ours out */
    void *library = dlopen(named ? named : "libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        failed("dlopen libcuda.so.1", -1);
    }
#define FIND(name, arguments) *(void **)&name = dlsym(library, #name);
    FUNCTIONS(FIND)
    must(cuInit(0));
    must(cuDeviceGet(&device, ordinal));
}

/* The primary context, as the CUDA runtime and all frameworks have it. */
static void enter(void)
{
    must(cuDevicePrimaryCtxRetain(&context, device));
    must(cuCtxSetCurrent(context));
}

static inline u64 now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (u64)time.tv_sec * 1000000000 + (u64)time.tv_nsec;
}

static inline u64 in_use(void)
{
    size_t left, total;
    must(cuMemGetInfo_v2(&left, &total));
    return total - left;
}
#endif
