// smi-empty: no process uses the first GPU of the grant. smi-empty refused: there is no grant.
#include "app.h"

int nvmlDeviceGetCount_v2(unsigned *);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetHandleByUUID(const char *, void **);
int nvmlDeviceGetMemoryInfo(void *, u64 *);
int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *, void *);

int main(int argc, char **argv) {
    void *device;
    u64 memory[3];
    unsigned count = 0;
    if (argc > 1) {
        check(nvmlDeviceGetCount_v2(&count) == 4);
        check(nvmlDeviceGetHandleByIndex_v2(0, &device) == 4);
        check(nvmlDeviceGetHandleByUUID("GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0", &device) == 4 && !device);
        return 0;
    }
    check(nvmlDeviceGetHandleByIndex_v2(0, &device) == 0);
    check(nvmlDeviceGetMemoryInfo(device, memory) == 0 && memory[2] == 0);
    check(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, 0) == 0 && count == 0);
    printf("empty ok\n");
}
