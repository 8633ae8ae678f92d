// Every kind of memory, piece by piece, until there is no more; then all of it is given back.
#include "cudart.h"
#include <string.h>

// Most pieces of a kind, and what each has.
enum { PIECES = 4096 };
#define PIECE (64 * MIB)

struct piece {
    void *pointer;
    cudaArray_t array;
    cudaMipmappedArray_t mipmapped;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
};

static cudaStream_t stream;
static cudaMemPool_t pool;
static const struct cudaChannelFormatDesc float4s = {32, 32, 32, 32, cudaChannelFormatKindFloat};

static cudaError_t linear(struct piece *of) { return cudaMalloc(&of->pointer, PIECE); }
static cudaError_t pitched(struct piece *of) {
    size_t pitch;
    cudaError_t error = cudaMallocPitch(&of->pointer, &pitch, MIB - 100, 64);
    IS(error || (pitch >= MIB - 100 && pitch % 512 == 0));
    return error;
}
static cudaError_t solid(struct piece *of) {
    struct cudaPitchedPtr pitched;
    cudaError_t error = cudaMalloc3D(&pitched, (struct cudaExtent){MIB, 8, 8});
    of->pointer = pitched.ptr;
    return error;
}
static cudaError_t managed(struct piece *of) {
    return cudaMallocManaged(&of->pointer, PIECE, cudaMemAttachGlobal);
}
static cudaError_t release(struct piece *of) { return cudaFree(of->pointer); }

static cudaError_t flat_array(struct piece *of) { return cudaMallocArray(&of->array, &float4s, 2048, 2048, 0); }
static cudaError_t solid_array(struct piece *of) {
    return cudaMalloc3DArray(&of->array, &float4s, (struct cudaExtent){256, 256, 64}, 0);
}
static cudaError_t release_array(struct piece *of) { return cudaFreeArray(of->array); }
static cudaError_t mipmapped(struct piece *of) {
    return cudaMallocMipmappedArray(&of->mipmapped, &float4s, (struct cudaExtent){2048, 1536, 0}, 4, 0);
}
static cudaError_t release_mipmapped(struct piece *of) { return cudaFreeMipmappedArray(of->mipmapped); }

static cudaError_t ordered(struct piece *of) { return cudaMallocAsync(&of->pointer, PIECE, stream); }
static cudaError_t pooled(struct piece *of) { return cudaMallocFromPoolAsync(&of->pointer, PIECE, pool, stream); }
static cudaError_t release_ordered(struct piece *of) { return cudaFreeAsync(of->pointer, stream); }

// A graph that allocates. Its memory comes with its first launch.
static cudaError_t launch(struct piece *of) {
    cudaError_t error = cudaGraphInstantiateWithFlags(&of->executable, of->graph, 0);
    if (!error && (error = cudaGraphLaunch(of->executable, stream))) cudaGraphExecDestroy(of->executable);
    if (error) cudaGraphDestroy(of->graph);
    return error;
}
static cudaError_t in_graph(struct piece *of) {
    struct cudaMemAllocNodeParams wanted = {0};
    cudaGraphNode_t node;
    wanted.poolProps.allocType = cudaMemAllocationTypePinned;
    wanted.poolProps.location.type = cudaMemLocationTypeDevice, wanted.poolProps.location.id = device();
    wanted.bytesize = PIECE;
    OK(cudaGraphCreate(&of->graph, 0));
    cudaError_t error = cudaGraphAddMemAllocNode(&node, of->graph, 0, 0, &wanted);
    if (error) return cudaGraphDestroy(of->graph), error;
    of->pointer = wanted.dptr;
    return launch(of);
}
static cudaError_t captured(struct piece *of) {
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaError_t error = cudaMallocAsync(&of->pointer, PIECE, stream);
    OK(cudaStreamEndCapture(stream, &of->graph));
    if (error) return cudaGraphDestroy(of->graph), error;
    return launch(of);
}
static cudaError_t release_graph(struct piece *of) {
    cudaError_t error = cudaFreeAsync(of->pointer, stream);
    if (!error) error = cudaGraphExecDestroy(of->executable);
    if (!error) error = cudaGraphDestroy(of->graph);
    return error;
}

// What a pool and graphs keep for the next time.
static void trim(void) {
    cudaMemPool_t of_device;
    OK(cudaStreamSynchronize(stream));
    OK(cudaDeviceSynchronize());
    OK(cudaDeviceGetDefaultMemPool(&of_device, device()));
    OK(cudaMemPoolTrimTo(of_device, 0));
    OK(cudaMemPoolTrimTo(pool, 0));
    OK(cudaDeviceGraphMemTrim(device()));
}

static const struct way {
    const char *name;
    cudaError_t (*take)(struct piece *);
    cudaError_t (*give)(struct piece *);
} ways[] = {
    {"cudaMalloc", linear, release},
    {"cudaMallocPitch", pitched, release},
    {"cudaMalloc3D", solid, release},
    {"cudaMallocManaged", managed, release},
    {"cudaMallocArray", flat_array, release_array},
    {"cudaMalloc3DArray", solid_array, release_array},
    {"cudaMallocMipmappedArray", mipmapped, release_mipmapped},
    {"cudaMallocAsync", ordered, release_ordered},
    {"cudaMallocFromPoolAsync", pooled, release_ordered},
    {"cudaGraphAddMemAllocNode", in_graph, release_graph},
    {"cudaStreamBeginCapture", captured, release_graph},
};

// Pinned memory is the host's: there is room for it while the GPU is full.
static void pinned(void) {
    void *one, *two, *of_device;
    unsigned flags;
    char *own = aligned_alloc(4096, MIB);
    struct cudaPointerAttributes is;
    size_t before = free_now();
    OK(cudaMallocHost(&one, PIECE));
    OK(cudaHostAlloc(&two, PIECE, cudaHostAllocMapped | cudaHostAllocPortable));
    OK(cudaHostGetDevicePointer(&of_device, two, 0));
    OK(cudaHostGetFlags(&flags, two));
    OK(cudaPointerGetAttributes(&is, one));
    IS(is.type == cudaMemoryTypeHost);
    OK(cudaHostRegister(own, MIB, cudaHostRegisterDefault));
    printf("pinned cost=%zu\n", before - free_now());
    OK(cudaHostUnregister(own));
    OK(cudaFreeHost(one));
    OK(cudaFreeHost(two));
    free(own);
}

static void one_way(const struct way *way) {
    static struct piece pieces[PIECES];
    size_t before = free_now(), count = 0;
    cudaError_t error = cudaSuccess;
    memset(pieces, 0, sizeof pieces);
    while (count < PIECES && !(error = way->take(&pieces[count]))) count++;
    // The error is the last one until somebody asks, and after that none.
    IS(error == cudaGetLastError() && cudaGetLastError() == cudaSuccess);
    size_t full = free_now();
    if (way == ways) pinned();
    for (size_t i = 0; i < count; i++) OK(way->give(&pieces[i]));
    trim();
    printf("fill %s before=%zu pieces=%zu full=%zu after=%zu error=%s\n", way->name, before, count, full, free_now(),
           cudaGetErrorName(error));
}

void fill(void) {
    struct cudaMemPoolProps wanted = {0};
    unsigned long long keep = 0;
    wanted.allocType = cudaMemAllocationTypePinned;
    wanted.location.type = cudaMemLocationTypeDevice, wanted.location.id = device();
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemPoolCreate(&pool, &wanted));
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) one_way(&ways[i]);
    OK(cudaMemPoolDestroy(pool));
    OK(cudaStreamDestroy(stream));
}
