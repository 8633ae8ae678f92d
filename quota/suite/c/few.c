// few: the extra calls of the driver for a launch that is waited for: few, and none about captures before the
// first capture.
#include "app.h"

enum { LAUNCHES = 2000 };
enum { CREATE, RECORD, QUERY, ELAPSED, STREAM, CAPTURING, MODE, KINDS };
u64 fakeCalls(int);

static void *function;

// Launches and waits; gives how often each function was called for that.
static void count(u64 calls[KINDS]) {
    u64 nothing = 0;
    void *arguments[] = {&nothing};
    for (int kind = 0; kind < KINDS; kind++) calls[kind] = fakeCalls(kind);
    for (int i = 0; i < LAUNCHES; i++)
        check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL) == 0 && cuCtxSynchronize() == 0);
    for (int kind = 0; kind < KINDS; kind++) calls[kind] = fakeCalls(kind) - calls[kind];
}

int main(void) {
    u64 keep, calls[KINDS];
    void *context, *module, *graph;
    check(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    check(cuModuleLoadData(&module, "an image") == 0 && cuModuleGetFunction(&function, module, "spin_ns") == 0);
    check(cuMemAlloc_v2(&keep, 1024) == 0);
    count(calls);
    count(calls);
    // Two records, a question whether the stream is idle, and the time between the records.
    check(calls[RECORD] + calls[QUERY] + calls[ELAPSED] + calls[STREAM] <= 4 * LAUNCHES);
    check(calls[RECORD] >= LAUNCHES && calls[ELAPSED] > 0);
    check(calls[CREATE] + calls[CAPTURING] == 0);
    check(cuStreamBeginCapture_v2((void *)0x1000, 0) == 0 && cuStreamEndCapture((void *)0x1000, &graph) == 0);
    count(calls);
    check(calls[CAPTURING] >= LAUNCHES && calls[MODE] >= 2 * LAUNCHES);
    printf("few ok\n");
}
