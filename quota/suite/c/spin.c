// spin SHAPE NANOSECONDS KERNEL: launches kernels of so many nanoseconds each until they are so many in all,
// in one of these shapes; prints how many nanoseconds of kernels that was, and how many passed. With
// NANOSECONDS 0 it goes on for ever, from the moment on at which it says "ready".
//
//   wait      each kernel is waited for
//   stream    none is
//   streams   sixteen streams by turns, which end one after the other
//   graph     a graph of eight kernels, captured, launched again and again
//   threads   four threads with per-thread default streams, and cooperative kernels
//   events    the program waits by asking an event
//   copies    a hundred hundredths of a kernel and seven whole ones, and a copy that waits for them
//   asks      the same, and the program asks the stream whether they have ended
//   tells     the same, and a host function tells the program
//   records   the same, and an event is recorded, which is queried only after they should have ended
//   green     each kernel in a green context of its own
//   leave     each kernel in a green context of its own, which is destroyed long after the kernel has ended
//   greens    each kernel in another one of 72 green contexts that live at once
//   idle      none at all, for ever
//   capture   one thread launches, another one captures graphs at the same time, which nothing may disturb
#include "app.h"
#include <pthread.h>
#include <time.h>

int cuDeviceGet(int *, int);
int cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *);
int cuEventQuery(void *);
int cuStreamQuery(void *);
int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuMemcpyDtoH_v2(void *, u64, size_t);
int cuGraphGetNodes(void *, void **, size_t *);
int cuStreamSynchronize_ptsz(void *);
int cuGraphLaunch(void *, void *);
int cuLaunchKernel_ptsz(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuLaunchCooperativeKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);

static void *context, *spin;
static u64 kernel, rounds;

static u64 now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static int launch(void *stream) {
    u64 nanoseconds = kernel;
    void *arguments[] = {&nanoseconds};
    return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

static void told(void *byte) { *(char *)byte = 1; }

static void *thread(void *own) {
    u64 nanoseconds = kernel;
    void *arguments[] = {&nanoseconds};
    check(cuCtxSetCurrent(context) == 0);
    for (u64 i = 0; i < rounds / 4; i++) {
        if (own) check(cuLaunchKernel_ptsz(spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL) == 0);
        else check(cuLaunchCooperativeKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments) == 0);
        if (i % 8 == 7) check(own ? cuStreamSynchronize_ptsz(NULL) == 0 : cuCtxSynchronize() == 0);
    }
    return NULL;
}

// Captures in global mode forbid to every thread what may wait; ours must not be among what is forbidden.
static void *captures(void *done) {
    void *stream, *graph, *event;
    size_t nodes;
    check(cuCtxSetCurrent(context) == 0 && cuStreamCreate(&stream, 0) == 0 && cuEventCreate(&event, 0) == 0);
    for (int i = 0; i < 100 || !atomic_load((_Atomic int *)done); i++) {
        // The legacy stream rejects these questions once a stream is captured that it waits for.
        for (int k = 0; k < 3; k++) check(launch(NULL) == 0);
        usleep(300);
        check(cuStreamBeginCapture_v2(stream, 0) == 0 && cuEventRecord(event, stream) == 0);
        for (int k = 0; k < 20; k++) {
            check(launch(stream) == 0);
            if (k % 5 == 0) usleep(200);
        }
        check(cuStreamEndCapture(stream, &graph) == 0);
        check(cuGraphGetNodes(graph, NULL, &nodes) == 0 && nodes == 20);
        check(cuGraphDestroy(graph) == 0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    check(argc == 4);
    const char *shape = argv[1];
    u64 all = strtoull(argv[2], NULL, 0), launched = 0;
    kernel = strtoull(argv[3], NULL, 0);
    rounds = all ? all / kernel : ~0ull;
    void *module;
    check(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    check(cuModuleLoadData(&module, "an image") == 0 && cuModuleGetFunction(&spin, module, "spin_ns") == 0);
    printf("ready\n");
    fflush(stdout);
    void *green, *in_green, *top;
    u64 start = now();
    if (!strcmp(shape, "wait")) {
        for (; launched < rounds; launched++) check(launch(NULL) == 0 && cuCtxSynchronize() == 0);
    } else if (!strcmp(shape, "stream")) {
        for (; launched < rounds; launched++) check(launch(NULL) == 0);
    } else if (!strcmp(shape, "streams")) {
        void *streams[16];
        for (int i = 0; i < 16; i++) check(cuStreamCreate(&streams[i], 1) == 0);
        for (; launched < rounds; launched++) check(launch(streams[launched % 16]) == 0);
        for (int i = 0; i < 16; i++) check(cuStreamDestroy_v2(streams[i]) == 0);
    } else if (!strcmp(shape, "graph")) {
        void *stream, *graph, *executable;
        check(cuStreamCreate(&stream, 1) == 0 && cuStreamBeginCapture_v2(stream, 0) == 0);
        for (int i = 0; i < 8; i++) check(launch(stream) == 0);
        check(cuStreamEndCapture(stream, &graph) == 0 && cuGraphInstantiateWithFlags(&executable, graph, 0) == 0);
        for (; launched < rounds; launched += 8) check(cuGraphLaunch(executable, stream) == 0);
    } else if (!strcmp(shape, "threads")) {
        pthread_t threads[4];
        for (long i = 0; i < 4; i++) check(pthread_create(&threads[i], NULL, thread, (void *)(i % 2)) == 0);
        for (int i = 0; i < 4; i++) check(pthread_join(threads[i], NULL) == 0);
        launched = rounds / 4 * 4;
    } else if (!strcmp(shape, "events")) {
        void *event;
        check(cuEventCreate(&event, 0) == 0);
        for (; launched < rounds; launched++) {
            check(launch(NULL) == 0 && cuEventRecord(event, NULL) == 0);
            while (cuEventQuery(event)) usleep(100);
        }
    } else if (strstr("copies asks tells records", shape)) {
        u64 memory, whole = kernel;
        char byte;
        void *event;
        check(cuMemAlloc_v2(&memory, 1) == 0 && cuEventCreate(&event, 0) == 0);
        while (launched < rounds) {
            kernel = whole / 100;
            for (int i = 0; i < 100; i++) check(launch(NULL) == 0);
            kernel = whole;
            for (int i = 0; i < 7; i++) check(launch(NULL) == 0);
            launched += 8;
            switch (*shape) {
            case 'c': check(cuMemcpyDtoH_v2(&byte, memory, 1) == 0); break;
            case 'a': while (cuStreamQuery(NULL)) usleep(100); break;
            case 't': check(cuLaunchHostFunc(NULL, told, &byte) == 0); break;
            case 'r': check(cuEventRecord(event, NULL) == 0); usleep(9 * whole / 1000);
            }
        }
    } else if (!strcmp(shape, "idle")) {
        for (;;) pause();
    } else if (!strcmp(shape, "green")) {
        for (; launched < rounds; launched++) {
            check(cuGreenCtxCreate(&green, NULL, 0, 1) == 0 && cuCtxFromGreenCtx(&in_green, green) == 0);
            check(cuCtxPushCurrent_v2(in_green) == 0 && launch(NULL) == 0 && cuCtxSynchronize() == 0);
            check(cuCtxPopCurrent_v2(&top) == 0 && cuGreenCtxDestroy(green) == 0);
        }
    } else if (!strcmp(shape, "leave")) {
        for (; launched < rounds; launched++) {
            check(cuGreenCtxCreate(&green, NULL, 0, 1) == 0 && cuCtxFromGreenCtx(&in_green, green) == 0);
            check(cuCtxPushCurrent_v2(in_green) == 0 && launch(NULL) == 0 && cuCtxPopCurrent_v2(&top) == 0);
            usleep(50 * kernel / 1000);
            check(cuGreenCtxDestroy(green) == 0);
        }
    } else if (!strcmp(shape, "greens")) {
        enum { CONTEXTS = 72 };
        void *greens[CONTEXTS];
        for (int i = 0; i < CONTEXTS; i++)
            check(cuGreenCtxCreate(&green, NULL, 0, 1) == 0 && cuCtxFromGreenCtx(&greens[i], green) == 0);
        for (; launched < rounds; launched++) {
            check(cuCtxPushCurrent_v2(greens[launched % CONTEXTS]) == 0 && launch(NULL) == 0);
            check(cuCtxSynchronize() == 0 && cuCtxPopCurrent_v2(&top) == 0);
        }
    } else if (!strcmp(shape, "capture")) {
        static _Atomic int done;
        pthread_t other;
        void *stream;
        check(cuStreamCreate(&stream, 1) == 0 && pthread_create(&other, NULL, captures, &done) == 0);
        for (; launched < rounds; launched++) {
            check(launch(stream) == 0);
            if (launched % 3 == 0) usleep(300);
        }
        atomic_store(&done, 1);
        check(pthread_join(other, NULL) == 0);
    } else {
        check(!"a shape");
    }
    check(cuCtxSynchronize() == 0);
    printf("%llu %llu\n", launched * kernel, now() - start);
    return 0;
}
