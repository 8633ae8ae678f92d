// A program on NVIDIA's runtime library (libcudart), as those that nvcc makes: it uses each of its calls that takes memory.
//
//   cudart COMMAND…   0, 1, …     cudaSetDevice: what follows is about that GPU
//                     until FILE  waits for a file
//                     info        versions, name, and what is free of how much
//                     properties  what cudaGetDeviceProperties says, KEY=VALUE a line
//                     fill        every kind of memory up to the limit, and life after it (fill.c)
//                     share       memory of this process in another one (share.c)
//                     work        code, launches, streams, events, copies (work.c)
//                     reset       cudaDeviceReset
//
// It ends with status 1 and a line that says where if anything is not as CUDA's documentation says.
#include "cudart.h"
#include <string.h>
#include <unistd.h>

size_t free_now(void) {
    size_t free, total;
    OK(cudaMemGetInfo(&free, &total));
    return free;
}

int device(void) {
    int device;
    OK(cudaGetDevice(&device));
    return device;
}

static void info(void) {
    int runtime, driver, count;
    size_t free, total;
    struct cudaDeviceProp of;
    OK(cudaRuntimeGetVersion(&runtime));
    OK(cudaDriverGetVersion(&driver));
    OK(cudaGetDeviceCount(&count));
    OK(cudaGetDeviceProperties(&of, device()));
    OK(cudaMemGetInfo(&free, &total));
    printf("info runtime=%d driver=%d devices=%d free=%zu total=%zu properties=%zu name=%s\n", runtime, driver, count,
           free, total, of.totalGlobalMem, of.name);
}

static int attribute(enum cudaDeviceAttr which) {
    int value;
    OK(cudaDeviceGetAttribute(&value, which, device()));
    return value;
}

static void properties(void) {
    struct cudaDeviceProp of;
    char bus[32];
    OK(cudaGetDeviceProperties(&of, device()));
    OK(cudaDeviceGetPCIBusId(bus, sizeof bus, device()));
    printf("name=%s\npci=%s\n", of.name, bus);
#define SAY(field) printf(#field "=%llu\n", (unsigned long long)of.field)
    SAY(totalGlobalMem), SAY(major), SAY(minor), SAY(multiProcessorCount), SAY(sharedMemPerBlock);
    SAY(sharedMemPerBlockOptin), SAY(sharedMemPerMultiprocessor), SAY(reservedSharedMemPerBlock), SAY(regsPerBlock);
    SAY(regsPerMultiprocessor), SAY(warpSize), SAY(maxThreadsPerBlock), SAY(maxThreadsPerMultiProcessor);
    SAY(maxBlocksPerMultiProcessor), SAY(totalConstMem), SAY(l2CacheSize), SAY(persistingL2CacheMaxSize);
    SAY(accessPolicyMaxWindowSize), SAY(memoryBusWidth), SAY(asyncEngineCount), SAY(maxTexture1D);
    SAY(maxTexture2D[0]), SAY(maxTexture3D[0]), SAY(maxSurface2D[0]), SAY(unifiedAddressing), SAY(managedMemory);
    SAY(concurrentManagedAccess), SAY(pageableMemoryAccess), SAY(cooperativeLaunch), SAY(memoryPoolsSupported);
    SAY(memoryPoolSupportedHandleTypes), SAY(ECCEnabled), SAY(integrated), SAY(computePreemptionSupported);
    SAY(hostNativeAtomicSupported), SAY(sparseCudaArraySupported), SAY(clusterLaunch), SAY(ipcEventSupported);
#define ASK(name) printf(#name "=%d\n", attribute(cudaDevAttr##name))
    ASK(ClockRate), ASK(MemoryClockRate), ASK(SingleToDoublePrecisionPerfRatio), ASK(MaxGridDimX), ASK(MaxPitch);
    ASK(MaxBlockDimZ), ASK(TextureAlignment), ASK(HostRegisterSupported), ASK(MemSyncDomainCount);
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0);
    // The other process of `share`.
    if (argc == 2 && !strcmp(argv[1], "shared")) return shared();
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] >= '0' && argv[i][0] <= '9') OK(cudaSetDevice(atoi(argv[i])));
        else if (!strcmp(argv[i], "until") && ++i < argc) while (access(argv[i], F_OK)) usleep(1000);
        else if (!strcmp(argv[i], "info")) info();
        else if (!strcmp(argv[i], "properties")) properties();
        else if (!strcmp(argv[i], "fill")) fill();
        else if (!strcmp(argv[i], "share")) share(argv[0]);
        else if (!strcmp(argv[i], "work")) work();
        else if (!strcmp(argv[i], "reset")) OK(cudaDeviceReset());
        else return fprintf(stderr, "cudart: unknown: %s\n", argv[i]), 2;
    }
}
