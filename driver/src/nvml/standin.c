/*
 * A stand-in for NVML, for the tests of the probe: one GPU per line of GPUS, each with the error that its first
 * call gives. It knows the calls that the probe makes and no others.
 *
 * VERSION   what nvmlSystemGetDriverVersion says
 * GPUS      comma list of nvmlReturn_t for nvmlDeviceGetHandleByIndex_v2
 * MIG       MIG mode of every GPU; without it the call is not there, as in old drivers
 * MEMORY_2  with it, the second version of the memory call is there
 * INIT      what nvmlInit_v2 returns
 * LINKS     NVLinks of every GPU, one GPU to the next (0-1, 2-3 …); SWITCH: to switches; NPU: to processors
 * REMOTE    with LINKS: the kind of device at their ends; without it the call is not there
 * NO_IDS    with LINKS: the PCI ids of what is there are 0, as NVIDIA's mock of NVML has it
 * LOG       a file to which every initialisation appends a byte
 * USED      a file that says how many MiB are in use, and which process says that it has as many
 * COMPUTE   with USED: the compute mode
 */
#include <stdio.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct device { unsigned index; } *nvmlDevice_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } nvmlPciInfo_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;

enum { INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
#define MIB (1ULL << 20)
static const nvmlReturn_t gpus[] = { GPUS };
static struct device devices[sizeof gpus / sizeof *gpus];

nvmlReturn_t nvmlInit_v2(void) {
#ifdef LOG
    FILE *log = fopen(LOG, "a");
    if (log) {
        fputc('.', log);
        fclose(log);
    }
#endif
    return INIT;
}

nvmlReturn_t nvmlShutdown(void) { return 0; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "%s", VERSION);
    return 0;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 12040;
    return 0;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    (void)version;
    return NOT_FOUND; /* as when the host's loader knows no libcuda */
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    *count = sizeof gpus / sizeof *gpus;
    return 0;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    if (index >= sizeof gpus / sizeof *gpus)
        return INVALID_ARGUMENT;
    devices[index].index = index;
    *device = &devices[index];
    return gpus[index];
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned length) {
    snprintf(text, length, "GPU-0000000%u-0000-0000-0000-000000000000", device->index);
    return 0;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned length) {
    (void)device;
    snprintf(text, length, "Stand-in");
    return 0;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
    *minor = device->index + 4; /* index and minor differ on some nodes */
    return 0;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x3b + device->index);
    return 0;
}

#ifdef USED
typedef struct { unsigned pid; unsigned long long used; unsigned instances[2]; } nvmlProcessInfo_t;

static unsigned long long read_used(unsigned *pid) {
    unsigned long long used = 0;
    FILE *file = fopen(USED, "r");
    *pid = 0;
    if (file) {
        if (fscanf(file, "%llu %u", &used, pid) < 1)
            used = 0;
        fclose(file);
    }
    return used * MIB;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode) {
    (void)device;
    *mode = COMPUTE;
    return 0;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list) {
    (void)device;
    unsigned pid, room = *count;
    unsigned long long used = read_used(&pid);
    *count = pid != 0;
    if (room < *count)
        return INSUFFICIENT_SIZE;
    if (pid)
        *list = (nvmlProcessInfo_t){ pid, used, { ~0u, ~0u } };
    return 0;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list) {
    (void)device, (void)list;
    *count = 0;
    return 0;
}
#endif

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    (void)device;
    *memory = (nvmlMemory_t){ 24576 * MIB, 24064 * MIB, 512 * MIB };
#ifdef USED
    unsigned pid;
    memory->used += read_used(&pid);
#endif
    return 0;
}

#ifdef MEMORY_2
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    (void)device;
    if (memory->version != (sizeof *memory | 2 << 24))
        return INVALID_ARGUMENT;
    memory->total = 24576 * MIB;
    memory->reserved = 512 * MIB;
    memory->free = 24064 * MIB;
    memory->used = 0;
    return 0;
}
#endif

#ifdef MIG
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    (void)device;
    *current = *pending = MIG;
    return 0;
}
#endif

#ifdef LINKS
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active) {
    (void)device;
    if (link > LINKS)
        return INVALID_ARGUMENT;
    *active = link < LINKS; /* the last one is not */
    return 0;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci) {
    (void)link;
    nvmlDeviceGetPciInfo_v3(&devices[device->index ^ 1], pci);
    pci->id = 0x233010de;
#if defined(SWITCH) || defined(NPU)
    snprintf(pci->bus_id, sizeof pci->bus_id, "0000000A:%02X:00.0", link);
#endif
#ifdef NPU
    pci->id = 0x04ea1014; /* IBM */
#endif
#ifdef NO_IDS
    pci->id = 0;
#endif
    return 0;
}

#ifdef REMOTE
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *kind) {
    (void)device, (void)link;
    *kind = REMOTE;
    return 0;
}
#endif

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level) {
    *level = one->index / 2 == other->index / 2 ? 10 : 50;
    return 0;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    *index = device->index;
    return 0;
}
#endif
