// calls WHAT: every call that allocates or frees, what it counts for, and what it does when refused.
#include "app.h"

static void pointers(void) {
    u64 pointer, other;
    unsigned low;
    size_t pitch;
    void *stream = 0;

    check(cuMemAlloc_v2(&pointer, 3 * MIB) == 0 && used() == 4 * MIB);
    check(cuMemFree_v2(pointer) == 0 && used() == 0);
    check(cuMemAlloc_v2(&pointer, 1000) == 0 && used() == 1024);
    check(cuMemFree_v2(pointer) == 0 && used() == 0);
    check(cuMemAlloc(&low, 4 * MIB) == 0 && used() == 4 * MIB);
    check(cuMemFree(low) == 0 && used() == 0);
    check(cuMemAllocManaged(&pointer, 4 * MIB, 1) == 0 && used() == 4 * MIB);
    check(cuMemFree_v2(pointer) == 0 && used() == 0);
    check(cuMemAllocAsync(&pointer, 4 * MIB, stream) == 0 && used() == 4 * MIB);
    check(cuMemAllocAsync_ptsz(&other, 4 * MIB, stream) == 0 && used() == 8 * MIB);
    check(cuMemFreeAsync(pointer, stream) == 0 && cuMemFreeAsync_ptsz(other, stream) == 0 && used() == 0);
    check(cuMemAllocFromPoolAsync(&pointer, 4 * MIB, 0, stream) == 0 && used() == 4 * MIB);
    check(cuMemAllocFromPoolAsync_ptsz(&other, 4 * MIB, 0, stream) == 0 && used() == 8 * MIB);
    // Each may free what the other allocated.
    check(cuMemFree_v2(pointer) == 0 && cuMemFree_v2(other) == 0 && used() == 0);
    check(cuMemAlloc_v2(&pointer, 4 * MIB) == 0 && cuMemFreeAsync(pointer, stream) == 0 && used() == 0);

    check(cuMemAllocPitch_v2(&pointer, &pitch, 1000, 1024, 4) == 0 && pitch == 1024 && used() == MIB);
    check(cuMemFree_v2(pointer) == 0 && used() == 0);
    // A pitch that is larger than we guess: counted, and undone if that is too much.
    fakePitchStep(16384);
    check(cuMemAllocPitch_v2(&pointer, &pitch, 1000, 1024, 4) == 0 && pitch == 16384);
    check(used() >= 16 * MIB && used() <= 18 * MIB);
    check(cuMemFree_v2(pointer) == 0 && used() == 0);
    check(cuMemAllocPitch_v2(&pointer, &pitch, 1000, 65536, 4) == OUT_OF_MEMORY);
    check(used() == 0 && fakeHeld(0) == 0);
}

static void errors(void) {
    u64 pointer;
    // What the driver refuses is not counted, and its error is what the application gets.
    fakeFailNext(719);
    check(cuMemAlloc_v2(&pointer, MIB) == 719 && used() == 0);
    check(cuMemAlloc_v2(&pointer, 0) == 1 && used() == 0);
    check(cuMemAlloc_v2(&pointer, -1) == OUT_OF_MEMORY && used() == 0);
    check(cuMemAlloc_v2(&pointer, 101 * MIB) == OUT_OF_MEMORY && used() == 0);
    cuCtxSetCurrent(0);
    check(cuMemAlloc_v2(&pointer, MIB) == 201);
    cuCtxSetCurrent((void *)1);
    // What it refuses to free counts on.
    check(cuMemAlloc_v2(&pointer, MIB) == 0);
    fakeFailNext(719);
    check(cuMemFree_v2(pointer) == 719 && used() == MIB);
    check(cuMemFree_v2(pointer) == 0 && used() == 0);
    check(cuMemFree_v2(0) == 0);
}

// The last piece need not fit as a whole: all that is called free can be had.
static void last(void) {
    u64 pointer, other;
    size_t left, total;
    check(cuMemAlloc_v2(&pointer, 2 * MIB + 1) == 0);
    check(cuMemGetInfo_v2(&left, &total) == 0 && left == 96 * MIB);
    check(cuMemFree_v2(pointer) == 0);
    check(cuMemAlloc_v2(&pointer, 99 * MIB) == 0 && used() == 100 * MIB);
    check(cuMemAlloc_v2(&other, 1) == OUT_OF_MEMORY);
    check(cuMemFree_v2(pointer) == 0 && used() == 0);
    check(cuMemAlloc_v2(&pointer, 100 * MIB) == 0 && cuMemFree_v2(pointer) == 0);
    check(cuMemAlloc_v2(&pointer, 100 * MIB + 1) == OUT_OF_MEMORY);
}

// Only the last one: a program that frees a piece and refills its place from two sides takes no more than
// before.
static void pieces(void) {
    u64 whole[49], part;
    for (int i = 0; i < 49; i++) check(cuMemAlloc_v2(&whole[i], 2 * MIB) == 0);
    for (int i = 0; i < 48; i++) {
        cuMemAlloc_v2(&part, MIB - 1024);
        cuMemAlloc_v2(&part, MIB + 1);
        check(fakeMost(0) <= 102 * MIB);
        check(cuMemFree_v2(whole[i]) == 0);
    }
    check(fakeMost(0) > 100 * MIB);
}

static void vmm(void) {
    const int on_device[8] = {1, 0, 1, 0}, on_host[8] = {1, 0, 2, 0};
    const u64 at = 1ull << 40;
    u64 handle, other, third;

    check(cuMemCreate(&handle, 20 * MIB, on_device, 0) == 0 && used() == 20 * MIB);
    check(cuMemRelease(handle) == 0 && used() == 0);
    check(cuMemCreate(&handle, 20 * MIB, on_host, 0) == 0 && used() == 0);
    check(cuMemRelease(handle) == 0 && used() == 0);
    check(cuMemCreate(&handle, 102 * MIB, on_device, 0) == OUT_OF_MEMORY && used() == 0);
    // Released while mapped: lives until it is unmapped.
    check(cuMemCreate(&handle, 20 * MIB, on_device, 0) == 0);
    check(cuMemMap(at, 10 * MIB, 0, handle, 0) == 0 && cuMemMap(at + 10 * MIB, 10 * MIB, 0, handle, 0) == 0);
    check(cuMemRelease(handle) == 0 && used() == 20 * MIB && fakeHeld(0) == 20 * MIB);
    check(cuMemUnmap(at, 10 * MIB) == 0 && used() == 20 * MIB);
    // Another reference, by an address in the middle of what is left.
    check(cuMemRetainAllocationHandle(&other, (void *)(at + 15 * MIB)) == 0 && other == handle);
    check(cuMemUnmap(at + 10 * MIB, 10 * MIB) == 0 && used() == 20 * MIB && fakeHeld(0) == 20 * MIB);
    check(cuMemRelease(other) == 0 && used() == 0 && fakeHeld(0) == 0);
    // Two handles unmapped at once, one of them released before.
    check(cuMemCreate(&handle, 2 * MIB, on_device, 0) == 0 && cuMemCreate(&other, 4 * MIB, on_device, 0) == 0);
    check(cuMemMap(at, 2 * MIB, 0, handle, 0) == 0 && cuMemMap(at + 2 * MIB, 4 * MIB, 0, other, 0) == 0);
    check(cuMemRelease(handle) == 0);
    check(cuMemUnmap(at, 6 * MIB) == 0 && used() == 4 * MIB);
    check(cuMemRelease(other) == 0 && used() == 0);
    // A handle that was not created through us, mapped between two that were.
    check(cuMemCreate(&handle, 2 * MIB, on_device, 0) == 0 && cuMemCreate(&third, 2 * MIB, on_device, 0) == 0);
    check(cuMemCreate(&other, 2 * MIB, on_host, 0) == 0);
    check(cuMemMap(at, 2 * MIB, 0, handle, 0) == 0 && cuMemMap(at + 4 * MIB, 2 * MIB, 0, third, 0) == 0);
    check(cuMemMap(at + 2 * MIB, 2 * MIB, 0, other, 0) == 0);
    check(cuMemRelease(handle) == 0 && cuMemRelease(third) == 0 && used() == 4 * MIB);
    check(cuMemUnmap(at, 6 * MIB) == 0 && used() == 0 && fakeHeld(0) == 0);
    // The driver refuses to release: nothing has changed.
    check(cuMemCreate(&handle, 2 * MIB, on_device, 0) == 0);
    fakeFailNext(719);
    check(cuMemRelease(handle) == 719 && used() == 2 * MIB);
    check(cuMemRelease(handle) == 0 && used() == 0);
}

// Ordinals are the application's, the grant's numbers ours; a stream's memory is its own device's.
static void devices(const char *order) {
    u64 pointer, other;
    size_t total;
    int first = order[0] - '0';
    const int on_second[8] = {1, 0, 1, 1};
    check(cuDeviceTotalMem_v2(&total, first) == 0 && total == 100 * MIB);
    check(cuDeviceTotalMem_v2(&total, !first) == 0 && total == 50 * MIB);
    cuCtxSetCurrent((void *)2);
    check(limit() == (first ? 100 : 50) * MIB);
    check(cuMemAlloc_v2(&pointer, 51 * MIB) == (first ? 0 : OUT_OF_MEMORY));
    check(!first || cuMemFree_v2(pointer) == 0);
    check(cuMemCreate(&pointer, 10 * MIB, on_second, 0) == 0 && used() == 10 * MIB);
    cuCtxSetCurrent((void *)1);
    check(used() == 0);
    check(cuMemAllocAsync(&other, 10 * MIB, (void *)0x1001) == 0 && used() == 0);
    cuCtxSetCurrent((void *)2);
    check(used() == 20 * MIB && cuMemFreeAsync(other, 0) == 0 && cuMemRelease(pointer) == 0 && used() == 0);
}

int main(int argc, char **argv) {
    const char *what = argv[1];
    if (!strcmp(what, "pointers")) pointers();
    else if (!strcmp(what, "errors")) errors();
    else if (!strcmp(what, "last")) last();
    else if (!strcmp(what, "pieces")) pieces();
    else if (!strcmp(what, "vmm")) vmm();
    else if (!strcmp(what, "devices")) devices(argv[2]);
    else if (!strcmp(what, "refused")) {
        // Nothing to limit by: out of memory, more than once, and the process lives on.
        u64 pointer;
        size_t left, total;
        for (int i = 0; i < 3; i++) check(cuMemAlloc_v2(&pointer, MIB) == OUT_OF_MEMORY);
        check(cuMemGetInfo_v2(&left, &total) != 0);
        check(fakeHeld(0) == 0);
    } else return 2;
    printf("%s ok\n", what);
}
