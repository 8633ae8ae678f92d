// reach WAY: gets the functions in one of the ways that programs do, fills the GPU to its limit and empties
// it. Not linked with libcuda (except by WAY=link, which is this program linked with it).
#include "app.h"

static int (*alloc)(u64 *, size_t);
static int (*release)(u64);
static int (*info)(size_t *, size_t *);
static int (*total_of)(size_t *, int);

static void *symbol(void *library, const char *name) {
    void *address = dlsym(library, name);
    if (!address) fprintf(stderr, "%s: %s\n", name, dlerror());
    check(address);
    return address;
}

int main(int argc, char **argv) {
    const char *way = argv[1];
#ifdef LINK
    alloc = cuMemAlloc_v2, release = cuMemFree_v2, info = cuMemGetInfo_v2, total_of = cuDeviceTotalMem_v2;
#else
    const char *name = strcmp(way, "absolute") ? "libcuda.so.1" : argv[2];
    int mode = strcmp(way, "local") ? RTLD_NOW | RTLD_GLOBAL : RTLD_LAZY | RTLD_LOCAL;
    // A copy of its own, with a libc of its own.
    int alone = !strcmp(way, "namespace");
    void *library = alone ? dlmopen(LM_ID_NEWLM, name, RTLD_NOW) : dlopen(name, mode);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    check(library);
    if (!strcmp(way, "resolve") || !strcmp(way, "resolve-twice")) {
        int (*resolve)(const char *, void **, int, u64, int *) = symbol(library, "cuGetProcAddress_v2");
        int status = 9;
        void *address;
        if (!strcmp(way, "resolve-twice")) {
            check(resolve("cuGetProcAddress", &address, 12000, 0, &status) == 0 && status == 0);
            check(address == (void *)resolve);
            resolve = address;
        }
        check(resolve("cuMemAlloc", (void **)&alloc, 12000, 0, &status) == 0 && status == 0);
        check(resolve("cuMemFree", (void **)&release, 12000, 0, 0) == 0);
        check(resolve("cuMemGetInfo", (void **)&info, 12000, 0, &status) == 0);
        check(resolve("cuDeviceTotalMem", (void **)&total_of, 12000, 0, &status) == 0);
        check(alloc == symbol(library, "cuMemAlloc_v2"));
        // Flags and status are the real one's.
        check(resolve("cuMemAllocAsync", &address, 12000, 2, &status) == 0);
        check(address == symbol(library, "cuMemAllocAsync_ptsz"));
        check(resolve("cuMemAllocAsync", &address, 12000, 0, &status) == 0);
        check(address == symbol(library, "cuMemAllocAsync"));
        check(resolve("cuMemAlloc", &address, 2000, 0, &status) == 0);
        check(address == symbol(library, "cuMemAlloc"));
        check(resolve("cuNoSuchThing", &address, 12000, 0, &status) == 500 && status == 1);
        check(resolve("cuNoSuchThing", &address, 10, 0, &status) == 500 && status == 2);
        // What we do not wrap is the real one's own.
        check(resolve("cuCtxSetCurrent", &address, 12000, 0, &status) == 0);
        check(address == symbol(library, "cuCtxSetCurrent"));
    } else if (!strcmp(way, "resolve-v1")) {
        int (*resolve)(const char *, void **, int, u64) = symbol(library, "cuGetProcAddress");
        check(resolve("cuMemAlloc", (void **)&alloc, 12000, 0) == 0);
        check(resolve("cuMemFree", (void **)&release, 12000, 0) == 0);
        check(resolve("cuMemGetInfo", (void **)&info, 12000, 0) == 0);
        check(resolve("cuDeviceTotalMem", (void **)&total_of, 12000, 0) == 0);
    } else {
        alloc = symbol(library, "cuMemAlloc_v2"), release = symbol(library, "cuMemFree_v2");
        info = symbol(library, "cuMemGetInfo_v2"), total_of = symbol(library, "cuDeviceTotalMem_v2");
    }
    if (!strcmp(way, "closed")) {
        u64 pointer;
        check(alloc(&pointer, MIB) == 0 && dlclose(library) == 0 && release(pointer) == 0);
    }
#endif
    size_t left, total, device;
    check(info(&left, &total) == 0 && total == 100 * MIB && left == total);
    check(total_of(&device, 0) == 0 && device == total);
    check(total_of(&device, 7) == 101);
    static u64 pointers[1000];
    for (int round = 0; round < 3; round++) {
        int count = 0;
        while (alloc(&pointers[count], MIB) == 0) check(++count < 1000);
        check(count == 100);
        check(info(&left, &total) == 0 && left == 0);
        check(alloc(&pointers[count], 1) == OUT_OF_MEMORY);
        while (count--) check(release(pointers[count]) == 0);
        check(info(&left, &total) == 0 && left == total);
    }
    printf("%s ok\n", way);
}
