// An NVML to stand in front of: three GPUs, of which the tests grant some, all full of others' memory.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;
static struct gpu { unsigned index; } gpus[3] = {{0}, {1}, {2}};

static struct gpu *known(void *device) {
    struct gpu *gpu = device;
    return gpu >= gpus && gpu < gpus + 3 ? gpu : 0;
}

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { return snprintf(text, length, "550.0"), 0; }
int nvmlDeviceGetCount(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index > 2) return 2;
    *device = gpus + index;
    return 0;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    struct gpu *gpu = known(device);
    if (!gpu) return 2;
    unsigned byte = 0xa0 + gpu->index, word = byte << 8 | byte;
    snprintf(text, length, "GPU-%x%x-%x-%x-%x-%x%x%x", word, word, word, word, word, word, word, word);
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    for (unsigned i = 0; i < 3; i++) {
        char text[96];
        nvmlDeviceGetUUID(gpus + i, text, sizeof text);
        if (!strcmp(uuid, text)) return *device = gpus + i, 0;
    }
    return 6;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) { return nvmlDeviceGetHandleByIndex_v2(atoi(bus), device); }
int nvmlDeviceGetHandleBySerial(const char *serial, void **device) { return nvmlDeviceGetHandleByIndex_v2(atoi(serial), device); }
int nvmlDeviceGetIndex(void *device, unsigned *index) {
    struct gpu *gpu = known(device);
    if (!gpu) return 2;
    *index = gpu->index;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, u64 *memory) {
    if (!known(device)) return 2;
    memory[0] = 64ull << 30, memory[1] = 60ull << 30, memory[2] = 4ull << 30;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, u64 *memory) {
    if (!known(device) || (unsigned)memory[0] != (40 | 2 << 24)) return 25;
    memory[1] = 64ull << 30, memory[2] = 1ull << 30, memory[3] = 59ull << 30, memory[4] = 4ull << 30;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *list) { *count = 9; return 7; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, void *list) { *count = 9; return 7; }

static int private_by_index(unsigned index, void **device, int flag) {
    return flag == 0x22 ? nvmlDeviceGetHandleByIndex_v2(index, device) : 2;
}
static int private_list(void *device, unsigned *count, void *list) { *count = 9; return 0; }
static int private_other(void) { return 77; }
static void *table[256];
int nvmlInternalGetExportTable(void ***out, const unsigned char *id) {
    static const unsigned char mine[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    if (memcmp(id, mine, 16)) return 3;
    for (int i = 1; i < 256; i++) table[i] = (void *)private_other;
    table[0] = (void *)sizeof table, table[81] = (void *)private_by_index;
    table[213] = table[214] = table[215] = (void *)private_list;
    *out = table;
    return 0;
}
