// launch ROUNDS: the cost in nanoseconds of cuLaunchKernel in a row, with a wait after each, and with an
// event recorded after each; and of asking that event.
#include "app.h"
#include <time.h>

int cuDevicePrimaryCtxRetain(void **, int);
int cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *);
int cuEventQuery(void *);

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int argc, char **argv) {
    int rounds = atoi(argv[1]);
    double row = 1e9, alone = 1e9, recorded = 1e9, asked = 1e9;
    void *context, *module, *function, *event;
    u64 nothing = 0, keep;
    void *arguments[] = {&nothing};
    check(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    check(cuModuleLoadData(&module, "an image") == 0 && cuModuleGetFunction(&function, module, "spin_ns") == 0);
    // As any program that computes: it has memory, and so an account.
    check(cuMemAlloc_v2(&keep, 1024) == 0 && cuEventCreate(&event, 0) == 0);
    // The best of many short ones: what is slower was disturbed.
    for (int batch = 0; batch < 400; batch++) {
        double start = now();
        for (int i = 0; i < rounds; i++)
            check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL) == 0);
        double middle = now();
        check(cuCtxSynchronize() == 0);
        double again = now();
        for (int i = 0; i < rounds / 10; i++)
            check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL) == 0 && cuCtxSynchronize() == 0);
        double end = now();
        for (int i = 0; i < rounds / 10; i++)
            check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL) == 0 && cuEventRecord(event, NULL) == 0);
        double record = now();
        check(cuCtxSynchronize() == 0);
        double ask = now();
        for (int i = 0; i < rounds; i++) check(cuEventQuery(event) == 0);
        double over = now();
        if ((middle - start) / rounds < row) row = (middle - start) / rounds;
        if ((end - again) / (rounds / 10) < alone) alone = (end - again) / (rounds / 10);
        if ((record - end) / (rounds / 10) < recorded) recorded = (record - end) / (rounds / 10);
        if ((over - ask) / rounds < asked) asked = (over - ask) / rounds;
    }
    printf("%.1f %.1f %.1f %.1f\n", row, alone, recorded, asked);
}
