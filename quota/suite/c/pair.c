// pair ROUNDS: the cost of a cuMemAlloc and cuMemFree pair, and of a call that is not limited, in
// nanoseconds.
#include "app.h"
#include <time.h>

int cuDriverGetVersion(int *);
// A driver that wants no initialisation has none of these; the lab's bench runs this over one that does.
#pragma weak cuInit
#pragma weak cuDevicePrimaryCtxRetain

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int argc, char **argv) {
    int rounds = atoi(argv[1]), version;
    double pair = 1e9, other = 1e9;
    u64 held[64];
    if (cuInit && cuDevicePrimaryCtxRetain) {
        void *context;
        check(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    }
    for (int i = 0; i < 64; i++) check(cuMemAlloc_v2(&held[i], 1024) == 0);
    // The best of several: what is slower was disturbed.
    for (int batch = 0; batch < 20; batch++) {
        double start = now();
        for (int i = 0; i < rounds; i++) {
            u64 pointer;
            check(cuMemAlloc_v2(&pointer, 1024) == 0 && cuMemFree_v2(pointer) == 0);
        }
        double middle = now();
        for (int i = 0; i < rounds; i++) cuDriverGetVersion(&version);
        double end = now();
        if ((middle - start) / rounds < pair) pair = (middle - start) / rounds;
        if ((end - middle) / rounds < other) other = (end - middle) / rounds;
    }
    printf("%.1f %.2f\n", pair, other);
}
