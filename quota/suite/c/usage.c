// usage BUSY IDLE: NVML must report that the first of these two pids uses the GPU, and that the second does
// not.
#include "app.h"

int nvmlInit_v2(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetProcessUtilization(void *, void *, unsigned *, u64);
int nvmlDeviceGetProcessesUtilizationInfo(void *, void *);

struct sample { unsigned pid; u64 time; unsigned sm, memory, encoder, decoder; } samples[8];
struct info { u64 time; unsigned pid, sm, memory, encoder, decoder, jpeg, optical_flow; } infos[8];
struct list { unsigned version, count; u64 since; struct info *infos; };

enum { INSUFFICIENT_SIZE = 7 };

int main(int argc, char **argv) {
    unsigned busy = atoi(argv[1]), idle = atoi(argv[2]), count;
    void *device;
    check(argc == 3 && nvmlInit_v2() == 0 && nvmlDeviceGetHandleByIndex_v2(0, &device) == 0);
    // Until both have memory and the first has used time; which comes first in the list is of chance.
    struct sample *first, *second;
    do {
        usleep(1000);
        count = 8;
        int result = nvmlDeviceGetProcessUtilization(device, samples, &count, 0);
        check(result == (count ? 0 : 6) && count <= 2);
        first = &samples[samples[0].pid == idle], second = &samples[samples[0].pid != idle];
    } while (count < 2 || !first->sm);
    check(first->pid == busy && second->pid == idle);
    check(first->sm <= 100 && !second->sm && first->time > 1000000000ull * 1000000);
    count = 0;
    check(nvmlDeviceGetProcessUtilization(device, NULL, &count, 0) == INSUFFICIENT_SIZE && count == 2);
    count = 1, samples[1].pid = 77;
    check(nvmlDeviceGetProcessUtilization(device, samples, &count, 0) == INSUFFICIENT_SIZE && count == 2);
    check(samples[1].pid == 77);

    struct list list = {sizeof list | 1 << 24, 8, 0, infos};
    check(nvmlDeviceGetProcessesUtilizationInfo(device, &list) == 0 && list.count == 2);
    check(infos[0].pid + infos[1].pid == busy + idle && infos[0].sm + infos[1].sm <= 100);
    check(!infos[infos[0].pid != idle].sm);
    list = (struct list){sizeof list | 1 << 24, 0, 0, NULL};
    check(nvmlDeviceGetProcessesUtilizationInfo(device, &list) == INSUFFICIENT_SIZE && list.count == 2);
    printf("usage ok\n");
}
