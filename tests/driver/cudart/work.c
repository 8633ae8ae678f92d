// What a program does with its memory: code out of a fat binary, launches, streams, events and copies.
#include "cudart.h"
#include <string.h>
#include <unistd.h>

// What nvcc writes into a program: the fat binary (of kernels.ptx), and a stub for each kernel and variable.
extern const unsigned long long fatbin[];
__asm__(".section .nv_fatbin,\"a\"\n.balign 8\n.globl fatbin\nfatbin:\n.incbin \"kernels.fatbin\"\n.previous");
static const struct {
    int magic, version;
    const unsigned long long *data;
    void *name;
} wrapper __attribute__((section(".nvFatBinSegment"), used)) = {0x466243b1, 1, fatbin, 0};
static char table[MIB], scale[4096];
static void spin_ns(void) {}
static void fill_stub(void) {}

void **__cudaRegisterFatBinary(const void *);
void __cudaRegisterFatBinaryEnd(void **);
void __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
static void **handle;

__attribute__((constructor)) static void begin(void) {
    handle = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(handle, (char *)spin_ns, "spin_ns", "spin_ns", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(handle, (char *)fill_stub, "fill", "fill", -1, 0, 0, 0, 0, 0);
    __cudaRegisterVar(handle, table, "table", "table", 0, sizeof table, 0, 0);
    __cudaRegisterVar(handle, scale, "scale", "scale", 0, sizeof scale, 1, 0);
    __cudaRegisterFatBinaryEnd(handle);
}

__attribute__((destructor)) static void end(void) { __cudaUnregisterFatBinary(handle); }

static void code(void) {
    struct cudaFuncAttributes of;
    int blocks;
    size_t size, before = free_now();
    void *address;
    OK(cudaGetSymbolAddress(&address, table));
    OK(cudaGetSymbolSize(&size, table));
    IS(size == sizeof table);
    OK(cudaMemcpyToSymbol(table, "abc", 4, 0, cudaMemcpyHostToDevice));
    OK(cudaMemcpyToSymbol(scale, "abc", 4, 0, cudaMemcpyHostToDevice));
    OK(cudaFuncGetAttributes(&of, (void *)fill_stub));
    OK(cudaFuncSetAttribute((void *)fill_stub, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (void *)fill_stub, 256, 0));
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&size, (void *)fill_stub, 1, 256));
    printf("code shared=%zu constant=%zu threads=%d registers=%d binary=%d ptx=%d blocks=%d dynamic=%zu", of.sharedSizeBytes,
           of.constSizeBytes, of.maxThreadsPerBlock, of.numRegs, of.binaryVersion, of.ptxVersion, blocks, size);
    void *to;
    unsigned long long nanoseconds = 2000000;
    unsigned value = 7;
    OK(cudaMalloc(&to, MIB));
    void *of_fill[] = {&to, &value}, *of_spin[] = {&nanoseconds};
    OK(cudaLaunchKernel((void *)fill_stub, (dim3){64, 1, 1}, (dim3){256, 1, 1}, of_fill, 0, 0));
    OK(cudaLaunchCooperativeKernel((void *)fill_stub, (dim3){64, 1, 1}, (dim3){256, 1, 1}, of_fill, 0, 0));
    cudaLaunchConfig_t wanted = {.gridDim = {1, 1, 1}, .blockDim = {1, 1, 1}};
    OK(cudaLaunchKernelExC(&wanted, (void *)spin_ns, of_spin));
    OK(cudaDeviceSynchronize());
    OK(cudaGetLastError());
    OK(cudaFree(to));
    printf(" cost=%zu\n", before - free_now());
}

static void counted(void *count) { ++*(int *)count; }

static void streams(void) {
    cudaStream_t stream, urgent;
    cudaEvent_t begun, done;
    enum cudaStreamCaptureStatus status;
    int least, greatest, priority, count = 0;
    float took;
    unsigned long long nanoseconds = 5000000, number;
    void *of_spin[] = {&nanoseconds};
    unsigned flags;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
    OK(cudaStreamGetPriority(urgent, &priority));
    OK(cudaStreamGetFlags(urgent, &flags));
    OK(cudaStreamGetId(urgent, &number));
    OK(cudaStreamIsCapturing(stream, &status));
    IS(priority == greatest && flags == cudaStreamNonBlocking && status == cudaStreamCaptureStatusNone);
    OK(cudaEventCreate(&begun));
    OK(cudaEventCreateWithFlags(&done, cudaEventBlockingSync));
    OK(cudaEventRecord(begun, stream));
    OK(cudaLaunchKernel((void *)spin_ns, (dim3){1, 1, 1}, (dim3){1, 1, 1}, of_spin, 0, stream));
    IS(cudaStreamQuery(stream) == cudaErrorNotReady);
    OK(cudaEventRecord(done, stream));
    OK(cudaStreamWaitEvent(urgent, done, 0));
    OK(cudaLaunchHostFunc(stream, counted, &count));
    OK(cudaEventSynchronize(done));
    OK(cudaStreamSynchronize(stream));
    OK(cudaEventQuery(done));
    OK(cudaStreamQuery(stream));
    OK(cudaEventElapsedTime(&took, begun, done));
    IS(count == 1 && took >= 5);
    OK(cudaEventDestroy(begun));
    OK(cudaEventDestroy(done));
    OK(cudaStreamDestroy(urgent));
    OK(cudaStreamDestroy(stream));
}

static void copies(void) {
    char from[8192], to[8192] = {0};
    char *one, *two;
    size_t pitch;
    cudaStream_t stream;
    struct cudaPointerAttributes is;
    OK(cudaStreamCreate(&stream));
    for (unsigned i = 0; i < sizeof from; i++) from[i] = (char)i;
    OK(cudaMalloc((void **)&one, sizeof from));
    OK(cudaMallocPitch((void **)&two, &pitch, 64, 128));
    OK(cudaMemcpy(one, from, sizeof from, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(two, pitch, one, 64, 64, 128, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy2DAsync(to, 64, two, pitch, 64, 128, cudaMemcpyDefault, stream));
    OK(cudaStreamSynchronize(stream));
    IS(!memcmp(from, to, sizeof to));
    struct cudaMemcpy3DParms box = {0};
    box.srcPtr = (struct cudaPitchedPtr){one, 64, 64, 16}, box.dstPtr = (struct cudaPitchedPtr){to, 64, 64, 16};
    box.extent = (struct cudaExtent){64, 16, 8}, box.kind = cudaMemcpyDeviceToHost;
    memset(to, 0, sizeof to);
    OK(cudaMemcpy3D(&box));
    IS(!memcmp(from, to, sizeof to));
    OK(cudaMemset(one, 3, sizeof from));
    OK(cudaMemset2D(two, pitch, 5, 64, 128));
    OK(cudaMemset3D((struct cudaPitchedPtr){one, 64, 64, 16}, 4, (struct cudaExtent){64, 16, 8}));
    OK(cudaMemsetAsync(one, 6, 4, stream));
    OK(cudaMemcpyAsync(to, one, sizeof to, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    IS(to[0] == 6 && to[4] == 4 && to[8191] == 4);
    OK(cudaPointerGetAttributes(&is, one + 100));
    IS(is.type == cudaMemoryTypeDevice && is.device == device());
    OK(cudaPointerGetAttributes(&is, from));
    IS(is.type == cudaMemoryTypeUnregistered);
    OK(cudaFree(one));
    OK(cudaFree(two));
    OK(cudaStreamDestroy(stream));
    // A wrong pointer is an error of that call, and the context lives.
    IS(cudaFree(from) == cudaErrorInvalidValue && cudaGetLastError() == cudaErrorInvalidValue);
    OK(cudaDeviceSynchronize());
}

// What kernels may have beyond their arguments.
static void limits(void) {
    size_t heap, before = free_now();
    OK(cudaDeviceGetLimit(&heap, cudaLimitMallocHeapSize));
    OK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, heap + 64 * MIB));
    size_t more = free_now();
    OK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, heap));
    printf("limits heap=%zu cost=%zu left=%zu\n", heap, before - more, before - free_now());
}

void work(void) {
    limits();
    code();
    streams();
    copies();
    printf("work done\n");
}
