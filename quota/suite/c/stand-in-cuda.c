// A libcuda to stand in front of: it allocates nothing and keeps count.
//
// Two GPUs; FGPU_TEST_ORDER=10 swaps their ordinals. What all processes together hold is in the shared file
// /run/fgpu/driver/held, per GPU, with the highest value it ever had: that is what a real GPU would have had
// to find room for. A context is its device plus 1; so is a stream, plus 0x1000.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PHYSICAL (64ull << 30)
typedef unsigned long long u64;

static struct held { _Atomic u64 now[8], most[8]; } *held;
static __thread long current = 1, below;
static int fail_next;
static u64 pitch_step = 512;

struct memory { u64 bytes; int device, references, mappings; };
static struct { u64 at, bytes; struct memory *memory; } mappings[64];

__attribute__((constructor)) static void open_held(void) {
    static struct held alone;
    int fd = open("/run/fgpu/driver/held", O_RDWR | O_CLOEXEC);
    held = fd < 0 ? &alone : mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (held == MAP_FAILED) held = &alone;
    if (fd >= 0) close(fd);
}

static int physical(int ordinal) {
    const char *order = getenv("FGPU_TEST_ORDER");
    return order ? order[ordinal] - '0' : ordinal;
}

static void take(int device, u64 bytes) {
    u64 now = (held->now[device] += bytes), most = held->most[device];
    while (now > most && !atomic_compare_exchange_weak(&held->most[device], &most, now));
}

// Above a MiB, memory is had in pieces of two.
static u64 pieces(u64 bytes) { return bytes > 1 << 20 ? (bytes + (2 << 20) - 1) >> 21 << 21 : bytes; }

static struct memory *make(int device, u64 bytes) {
    bytes = pieces(bytes);
    struct memory *memory = malloc(sizeof *memory);
    *memory = (struct memory){bytes, device, 1, 0};
    take(device, bytes);
    return memory;
}

static void end(struct memory *memory) {
    if (memory->references || memory->mappings) return;
    held->now[memory->device] -= memory->bytes;
    free(memory);
}

// For the tests.
void fakeFailNext(int error) { fail_next = error; }
void fakePitchStep(u64 step) { pitch_step = step; }
u64 fakeHeld(int device) { return held->now[device]; }
u64 fakeMost(int device) { return held->most[device]; }

static int start(u64 bytes) {
    int error = fail_next;
    fail_next = 0;
    if (error) return error;
    if (!current) return 201;
    return bytes ? 0 : 1;
}

static int stream_device(void *stream) {
    return physical((long)stream >= 0x1000 ? (long)stream - 0x1000 : current - 1);
}

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) {
    if (device < 0 || device > 1) return 101;
    memset(uuid, 0xa0 + physical(device), 16);
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(long)(device + 1); return device < 2 ? 0 : 101; }
int cuCtxSetCurrent(void *context) { current = (long)context; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)current; return 0; }
int cuCtxGetDevice(int *device) { *device = current - 1; return current ? 0 : 201; }
int cuCtxPushCurrent_v2(void *context) { below = current, current = (long)context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = (void *)current; current = below; return 0; }
int cuStreamGetCtx(void *stream, void **context) { *context = (void *)((long)stream - 0x1000 + 1); return 0; }

// Kernels that end at once, having taken 10 ns.
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **parameters, void **extra) { return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)0x100; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = (void *)0x200; return 0; }
int cuCtxSynchronize(void) { return 0; }

// One capture at a time, of a stream that the legacy one waits for: what is asked of that one then breaks it.
static _Atomic int capturing, broken;
static void (*meanwhile)(void);
int cuStreamBeginCapture_v2(void *stream, int mode) { capturing = 1; return 0; }
int cuStreamEndCapture(void *stream, void **graph) { capturing = 0; return 0; }
static void ask(void *stream) { if ((long)stream <= 1 && capturing) broken++; }
int fakeBroken(void) { return broken; }
// Called after a question whether a stream is captured, before it has its answer.
void fakeMeanwhile(void (*call)(void)) { meanwhile = call; }

// How often each of these was called, by one thread at a time.
static u64 calls[7];
u64 fakeCalls(int which) { return calls[which]; }
int cuEventCreate(void **event, unsigned flags) { static long last; calls[0]++; *event = (void *)(last += 16); return 0; }
int cuEventRecord(void *event, void *stream) { calls[1]++, ask(stream); return 0; }
int cuEventQuery(void *event) { calls[2]++; return 0; }
int cuEventElapsedTime(float *milliseconds, void *from, void *to) { calls[3]++; *milliseconds = 1e-5; return 0; }
int cuStreamQuery(void *stream) { calls[4]++, ask(stream); return 0; }
int cuStreamIsCapturing(void *stream, int *status) {
    int result = (long)stream <= 1 && capturing ? 906 : 0; // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    calls[5]++;
    *status = 0;
    if (meanwhile) meanwhile();
    return result;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int now;
    int before = now;
    calls[6]++;
    now = *mode;
    *mode = before;
    return 0;
}

int cuMemAlloc_v2(u64 *pointer, size_t bytes) {
    int error = start(bytes);
    if (!error) *pointer = (u64)make(physical(current - 1), bytes);
    return error;
}
int cuMemFree_v2(u64 pointer) {
    int error = fail_next;
    fail_next = 0;
    if (error || !pointer) return error;
    ((struct memory *)pointer)->references--;
    end((struct memory *)pointer);
    return 0;
}
int cuMemAlloc(unsigned *pointer, unsigned bytes) {
    int error = start(bytes);
    if (error) return error;
    struct memory *memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    *memory = (struct memory){pieces(bytes), physical(current - 1), 1, 0};
    take(memory->device, memory->bytes);
    *pointer = (unsigned)(u64)memory;
    return 0;
}
int cuMemFree(unsigned pointer) {
    struct memory *memory = (struct memory *)(u64)pointer;
    held->now[memory->device] -= memory->bytes;
    return munmap(memory, 4096);
}
int cuMemAllocPitch_v2(u64 *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    int error = start(width * height);
    if (error) return error;
    *pitch = (width + pitch_step - 1) / pitch_step * pitch_step;
    *pointer = (u64)make(physical(current - 1), *pitch * height);
    return 0;
}
int cuMemAllocManaged(u64 *pointer, size_t bytes, unsigned flags) { return cuMemAlloc_v2(pointer, bytes); }
int cuMemAllocAsync(u64 *pointer, size_t bytes, void *stream) {
    int error = start(bytes);
    if (!error) *pointer = (u64)make(stream_device(stream), bytes);
    return error;
}
int cuMemAllocAsync_ptsz(u64 *pointer, size_t bytes, void *stream) { return cuMemAllocAsync(pointer, bytes, stream); }
int cuMemAllocFromPoolAsync(u64 *pointer, size_t bytes, void *pool, void *stream) { return cuMemAllocAsync(pointer, bytes, stream); }
int cuMemAllocFromPoolAsync_ptsz(u64 *pointer, size_t bytes, void *pool, void *stream) { return cuMemAllocAsync(pointer, bytes, stream); }
int cuMemFreeAsync(u64 pointer, void *stream) { return cuMemFree_v2(pointer); }
int cuMemFreeAsync_ptsz(u64 pointer, void *stream) { return cuMemFree_v2(pointer); }

int cuMemCreate(u64 *handle, size_t bytes, const int *properties, u64 flags) {
    int error = start(bytes);
    if (error) return error;
    *handle = (u64)(properties[2] == 1 ? make(physical(properties[3]), bytes) : calloc(1, sizeof(struct memory)));
    return 0;
}
int cuMemRelease(u64 handle) {
    int error = fail_next;
    fail_next = 0;
    if (error) return error;
    ((struct memory *)handle)->references--;
    end((struct memory *)handle);
    return 0;
}
int cuMemRetainAllocationHandle(u64 *handle, void *address) {
    for (int i = 0; i < 64; i++)
        if (mappings[i].memory && (u64)address - mappings[i].at < mappings[i].bytes) {
            mappings[i].memory->references++;
            *handle = (u64)mappings[i].memory;
            return 0;
        }
    return 1;
}
int cuMemMap(u64 pointer, size_t bytes, size_t offset, u64 handle, u64 flags) {
    for (int i = 0; i < 64; i++)
        if (!mappings[i].memory) {
            mappings[i].at = pointer, mappings[i].bytes = bytes, mappings[i].memory = (struct memory *)handle;
            mappings[i].memory->mappings++;
            return 0;
        }
    return 2;
}
int cuMemUnmap(u64 pointer, size_t bytes) {
    for (int i = 0; i < 64; i++)
        if (mappings[i].memory && mappings[i].at >= pointer && mappings[i].at < pointer + bytes) {
            struct memory *memory = mappings[i].memory;
            mappings[i].memory = 0;
            memory->mappings--;
            end(memory);
        }
    return 0;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    if (!current) return 201;
    *total = PHYSICAL;
    *free = PHYSICAL - held->now[physical(current - 1)];
    return 0;
}
int cuMemGetInfo(unsigned *free, unsigned *total) { *free = *total = -1; return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = PHYSICAL; return device < 2 ? 0 : 101; }
int cuDeviceTotalMem(unsigned *bytes, int device) { *bytes = -1; return device < 2 ? 0 : 101; }

int cuGetProcAddress_v2(const char *, void **, int, u64, int *);
int cuGetProcAddress(const char *, void **, int, u64);
#define ENTRY(name) {#name, (void *)name}
static const struct { const char *name; void *address; } entries[] = {
    ENTRY(cuInit), ENTRY(cuMemAlloc_v2), ENTRY(cuMemFree_v2), ENTRY(cuMemGetInfo_v2), ENTRY(cuDeviceTotalMem_v2),
    ENTRY(cuMemAllocAsync), ENTRY(cuMemAllocAsync_ptsz), ENTRY(cuMemFreeAsync), ENTRY(cuMemFreeAsync_ptsz),
    ENTRY(cuGetProcAddress_v2), ENTRY(cuCtxSetCurrent), ENTRY(cuCtxGetDevice), ENTRY(cuMemAlloc), ENTRY(cuMemCreate),
};
static void *entry(const char *name, const char *suffix) {
    char full[64];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    for (unsigned i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!strcmp(entries[i].name, full)) return entries[i].address;
    return 0;
}
int cuGetProcAddress_v2(const char *name, void **address, int version, u64 flags, int *status) {
    *address = flags & 2 ? entry(name, "_ptsz") : 0;
    if (!*address && version >= 3020) *address = entry(name, "_v2");
    if (!*address) *address = entry(name, "");
    if (status) *status = *address ? 0 : version < 1000 ? 2 : 1;
    return *address ? 0 : 500;
}
int cuGetProcAddress(const char *name, void **address, int version, u64 flags) {
    return cuGetProcAddress_v2(name, address, version, flags, 0);
}
