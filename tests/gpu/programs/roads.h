/* Every road to device memory that a C program can take: allocate so many bytes by it, and give them back. */
#ifndef FGPU_KIT_ROADS_H
#define FGPU_KIT_ROADS_H
#include "cuda.h"

typedef struct { u64 first, second; size_t bytes; } held;
typedef struct road {
    const char *name;
    int (*take)(held *, size_t); /* CUresult; what it took is in the held one if it is 0. Sizes are multiples of 2 MiB */
    void (*give)(held *);
    int (*exists)(void);
} road;

static void *stream, *pool;

static const access_of *everything(void)
{
    static access_of access;
    access = (access_of){{1, device}, 3};
    return &access;
}

#define POINTER(name, needs, call) \
    static int exists_##name(void) { return HAVE(needs); } \
    static int take_##name(held *it, size_t bytes) { (void)bytes; return call; }

POINTER(alloc, cuMemAlloc_v2, cuMemAlloc_v2(&it->first, bytes))
/* The pitch of rows of 64 KiB is 64 KiB. */
POINTER(pitch, cuMemAllocPitch_v2, cuMemAllocPitch_v2(&it->first, (size_t *)&it->second, 65536, bytes / 65536, 16))
POINTER(managed, cuMemAllocManaged, cuMemAllocManaged(&it->first, bytes, 1))
POINTER(async, cuMemAllocAsync, cuMemAllocAsync(&it->first, bytes, stream))
static void give_pointer(held *it) { must(cuMemFree_v2(it->first)); }
static void give_async(held *it) { must(cuMemFreeAsync(it->first, stream)); }

static int exists_pool(void) { return HAVE(cuMemAllocFromPoolAsync) && HAVE(cuMemPoolCreate); }
static int take_pool(held *it, size_t bytes)
{
    if (!pool) {
        pool_properties properties = {.type = 1, .at = {1, device}};
        must(cuMemPoolCreate(&pool, &properties));
    }
    return cuMemAllocFromPoolAsync(&it->first, bytes, pool, stream);
}

/* Virtual memory management, as expandable segments, NCCL and vLLM use it. */
static int exists_create(void) { return HAVE(cuMemCreate) && HAVE(cuMemSetAccess); }
static int take_create(held *it, size_t bytes)
{
    allocation properties = {.type = 1, .at = {1, device}};
    int code = cuMemCreate(&it->second, bytes, &properties, 0);
    if (code) return code;
    must(cuMemAddressReserve(&it->first, bytes, 0, 0, 0));
    must(cuMemMap(it->first, bytes, 0, it->second, 0));
    code = cuMemSetAccess(it->first, bytes, everything(), 1);
    if (code) {
        must(cuMemUnmap(it->first, bytes));
        must(cuMemAddressFree(it->first, bytes));
        must(cuMemRelease(it->second));
    }
    return code;
}
static void give_create(held *it)
{
    must(cuMemUnmap(it->first, it->bytes));
    must(cuMemAddressFree(it->first, it->bytes));
    must(cuMemRelease(it->second));
}

/* Rows of 16 KiB. */
static int exists_array(void) { return HAVE(cuArrayCreate_v2); }
static int take_array(held *it, size_t bytes)
{
    array_2d flat = {4096, bytes / 16384, 3, 1};
    return cuArrayCreate_v2((void **)&it->first, &flat);
}
static int exists_array3d(void) { return HAVE(cuArray3DCreate_v2); }
static int take_array3d(held *it, size_t bytes)
{
    array_3d cube = {512, 256, bytes / (512 * 256 * 4), 3, 1, 0};
    return cuArray3DCreate_v2((void **)&it->first, &cube);
}
static void give_array(held *it) { must(cuArrayDestroy((void *)it->first)); }
static int exists_mipmap(void) { return HAVE(cuMipmappedArrayCreate); }
static int take_mipmap(held *it, size_t bytes)
{
    array_3d flat = {4096, bytes / 16384, 0, 3, 1, 0};
    return cuMipmappedArrayCreate((void **)&it->first, &flat, 1);
}
static void give_mipmap(held *it) { must(cuMipmappedArrayDestroy((void *)it->first)); }

/* A graph of one memory node that nothing frees; it has its memory when it was launched. */
static int exists_graph(void) { return HAVE(cuGraphAddMemAllocNode) && HAVE(cuGraphInstantiateWithFlags); }
static int take_graph(held *it, size_t bytes)
{
    alloc_node node = {.pool = {.type = 1, .at = {1, device}}, .bytes = bytes};
    void *graph, *added, *executable;
    int code;
    must(cuGraphCreate(&graph, 0));
    code = cuGraphAddMemAllocNode(&added, graph, NULL, 0, &node);
    if (!code && !(code = cuGraphInstantiateWithFlags(&executable, graph, 0))) {
        if (!(code = cuGraphLaunch(executable, stream))) must(cuStreamSynchronize(stream));
        if (code) must(cuGraphExecDestroy(executable));
    }
    if (code) {
        must(cuGraphDestroy(graph));
        must(cuDeviceGraphMemTrim(device));
        return code;
    }
    must(cuGraphDestroy(graph));
    it->first = node.pointer;
    it->second = (u64)executable;
    return 0;
}
static void give_graph(held *it)
{
    must(cuMemFreeAsync(it->first, stream));
    must(cuStreamSynchronize(stream));
    must(cuGraphExecDestroy((void *)it->second));
}

static const road roads[] = {
    {"alloc", take_alloc, give_pointer, exists_alloc},
    {"pitch", take_pitch, give_pointer, exists_pitch},
    {"managed", take_managed, give_pointer, exists_managed},
    {"create", take_create, give_create, exists_create},
    {"async", take_async, give_async, exists_async},
    {"pool", take_pool, give_async, exists_pool},
    {"array", take_array, give_array, exists_array},
    {"array3d", take_array3d, give_array, exists_array3d},
    {"mipmap", take_mipmap, give_mipmap, exists_mipmap},
    {"graph", take_graph, give_graph, exists_graph},
    {NULL, NULL, NULL, NULL},
};

static const road *road_of(const char *name)
{
    const road *it = roads;
    while (it->name && strcmp(it->name, name)) it++;
    if (!it->name) failed("no such road", -1);
    return it;
}
#endif
