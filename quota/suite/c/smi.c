// smi PID: what the management library shows of a container with GPU 2 (100 MiB) and GPU 0 (50 MiB), in that
// order, in which the process PID holds 50 MiB of the first.
#include "app.h"

int nvmlInit_v2(void);
int nvmlDeviceGetCount(unsigned *);
int nvmlDeviceGetCount_v2(unsigned *);
static int (*nvmlDeviceGetHandleByIndex)(unsigned, void **);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetHandleByUUID(const char *, void **);
int nvmlDeviceGetHandleByPciBusId_v2(const char *, void **);
static int (*nvmlDeviceGetHandleByPciBusId)(const char *, void **);
int nvmlDeviceGetHandleBySerial(const char *, void **);
int nvmlDeviceGetUUID(void *, char *, unsigned);
int nvmlDeviceGetIndex(void *, unsigned *);
int nvmlDeviceGetMemoryInfo(void *, u64 *);
int nvmlDeviceGetMemoryInfo_v2(void *, u64 *);
static int (*nvmlDeviceGetComputeRunningProcesses)(void *, unsigned *, void *);
static int (*nvmlDeviceGetComputeRunningProcesses_v2)(void *, unsigned *, void *);
int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *, void *);
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *, unsigned *, void *);
static int (*nvmlDeviceGetMPSComputeRunningProcesses_v3)(void *, unsigned *, void *);
int nvmlInternalGetExportTable(void ***, const unsigned char *);

int main(int argc, char **argv) {
    unsigned pid = atoi(argv[1]), count = 0, index = 9;
    void *first, *second, *device;
    // The stand-in lacks these; ours has them.
    check((nvmlDeviceGetHandleByIndex = dlsym(RTLD_DEFAULT, "nvmlDeviceGetHandleByIndex")));
    check((nvmlDeviceGetHandleByPciBusId = dlsym(RTLD_DEFAULT, "nvmlDeviceGetHandleByPciBusId")));
    check((nvmlDeviceGetComputeRunningProcesses_v2 = dlsym(RTLD_DEFAULT, "nvmlDeviceGetComputeRunningProcesses_v2")));
    check((nvmlDeviceGetComputeRunningProcesses = dlsym(RTLD_DEFAULT, "nvmlDeviceGetComputeRunningProcesses")));
    check((nvmlDeviceGetMPSComputeRunningProcesses_v3 = dlsym(RTLD_DEFAULT, "nvmlDeviceGetMPSComputeRunningProcesses_v3")));
    check(nvmlInit_v2() == 0);
    check(nvmlDeviceGetCount(&count) == 0 && count == 2);
    check(nvmlDeviceGetCount_v2(&count) == 0 && count == 2);
    check(nvmlDeviceGetHandleByIndex_v2(0, &first) == 0 && nvmlDeviceGetHandleByIndex_v2(1, &second) == 0);
    check(nvmlDeviceGetHandleByIndex_v2(2, &device) == 2);
    check(nvmlDeviceGetHandleByIndex(1, &device) == 0 && device == second);
    char uuid[96];
    check(nvmlDeviceGetUUID(first, uuid, 96) == 0 && !strncmp(uuid, "GPU-a2a2a2a2-", 13));
    check(nvmlDeviceGetHandleByUUID(uuid, &device) == 0 && device == first);
    check(nvmlDeviceGetHandleByUUID("GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1", &device) == 6);
    check(nvmlDeviceGetHandleByPciBusId_v2("0", &device) == 0 && device == second);
    check(nvmlDeviceGetHandleByPciBusId_v2("1", &device) == 6 && !device);
    check(nvmlDeviceGetHandleBySerial("2", &device) == 0 && device == first);
    check(nvmlDeviceGetHandleBySerial("1", &device) == 6 && !device);
    check(nvmlDeviceGetHandleByPciBusId("1", &device) == 13); // The stand-in has no such function.
    check(nvmlDeviceGetIndex(first, &index) == 0 && index == 0);
    check(nvmlDeviceGetIndex(second, &index) == 0 && index == 1);

    u64 memory[5];
    check(nvmlDeviceGetMemoryInfo(first, memory) == 0);
    check(memory[0] == 100 * MIB && memory[1] == 50 * MIB && memory[2] == 50 * MIB);
    memory[0] = 40 | 2 << 24;
    check(nvmlDeviceGetMemoryInfo_v2(first, memory) == 0);
    check(memory[1] == 100 * MIB && memory[2] == 0 && memory[3] == 50 * MIB && memory[4] == 50 * MIB);
    memory[0] = 0;
    check(nvmlDeviceGetMemoryInfo_v2(first, memory) == 25); // A version that the real one does not know.
    check(nvmlDeviceGetMemoryInfo(second, memory) == 0);
    check(memory[0] == 50 * MIB && memory[1] == 50 * MIB && memory[2] == 0);
    check(nvmlDeviceGetMemoryInfo((void *)8, memory) == 2);

    struct { unsigned pid; u64 used; } v1[4];
    struct { unsigned pid; u64 used; unsigned gi, ci; } v2[4];
    count = 0;
    check(nvmlDeviceGetComputeRunningProcesses_v3(first, &count, 0) == 7 && count == 1);
    count = 4;
    check(nvmlDeviceGetComputeRunningProcesses_v3(first, &count, v2) == 0 && count == 1);
    check(v2[0].pid == pid && v2[0].used == 50 * MIB && v2[0].gi == -1u && v2[0].ci == -1u);
    count = 4, v2[0].pid = 0;
    check(nvmlDeviceGetComputeRunningProcesses_v2(first, &count, v2) == 0 && count == 1 && v2[0].pid == pid);
    count = 4;
    check(nvmlDeviceGetComputeRunningProcesses(first, &count, v1) == 0 && count == 1);
    check(v1[0].pid == pid && v1[0].used == 50 * MIB);
    count = 0;
    check(nvmlDeviceGetComputeRunningProcesses_v3(second, &count, 0) == 0 && count == 0);
    count = 4;
    check(nvmlDeviceGetGraphicsRunningProcesses_v3(first, &count, v2) == 0 && count == 0);
    count = 4;
    check(nvmlDeviceGetMPSComputeRunningProcesses_v3(first, &count, v2) == 0 && count == 0);

    // nvidia-smi's private table.
    static const unsigned char id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4}, other[16];
    void **table, **again;
    check(nvmlInternalGetExportTable(&table, other) == 3);
    check(nvmlInternalGetExportTable(&table, id) == 0 && nvmlInternalGetExportTable(&again, id) == 0);
    check(table == again && (u64)table[0] == 2048 && ((int (*)(void))table[100])() == 77);
    int (*by_index)(unsigned, void **, int) = table[81];
    check(by_index(0, &device, 0x22) == 0 && device == first);
    check(by_index(1, &device, 0x22) == 0 && device == second);
    check(by_index(2, &device, 0x22) == 2);
    struct { unsigned pid; u64 used; unsigned gi, ci; u64 secret; char name[4096]; } *list = malloc(4128 * 250);
    check(sizeof *list == 4128);
    for (int slot = 213; slot <= 215; slot++) {
        int (*processes)(void *, unsigned *, void *) = table[slot];
        count = 250;
        check(processes(first, &count, list) == 0 && count == (slot == 213));
    }
    check(list->pid == pid && list->used == 50 * MIB && list->gi == -1u && list->ci == -1u && !list->secret);
    check(strstr(list->name, "life"));
    printf("smi ok\n");
}
