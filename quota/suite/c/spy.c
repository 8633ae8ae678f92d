// Stands in for libcuda.so.1 before ours, and compares what ours answers with what the real one does.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*resolve_1)(const char *, void **, int, unsigned long long);
typedef int (*resolve_2)(const char *, void **, int, unsigned long long, int *);
static void *ours, *real;
static int asked, per_thread, twins, absent;

static void open_both(void) {
    if (ours) return;
    ours = dlopen(getenv("FGPU_TEST_OURS"), RTLD_NOW | RTLD_LOCAL);
    real = dlopen("/run/fgpu/driver-00000000000000000000000000000000/cuda", RTLD_NOW | RTLD_NOLOAD);
    if (!ours || !real) fprintf(stderr, "%s\n", dlerror()), abort();
}

static void differ(const char *name, int version, unsigned long long flags, const char *what) {
    fprintf(stderr, "%s %d %llx: %s\n", name, version, flags, what);
    _Exit(1);
}

// Ours where we have a function of the name that the real one's address has, the real one's where we have
// none.
static void compare(const char *name, int version, unsigned long long flags, void *mine, void *theirs) {
    Dl_info known;
    asked++, per_thread += flags == 2, absent += !theirs;
    if (!theirs) {
        if (mine) differ(name, version, flags, "ours has what the real one has not");
    } else if (!dladdr(theirs, &known) || !known.dli_sname) {
        // What the real one keeps to itself has no name.
        if (mine != theirs) differ(name, version, flags, "neither ours nor the real one's");
    } else {
        if (mine != dlsym(ours, known.dli_sname)) differ(name, version, flags, known.dli_sname);
        twins += mine != theirs;
    }
}

int cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long long flags, int *status) {
    void *theirs = 0, *mine = 0;
    int their_status = 7, my_status = 7;
    open_both();
    int expected = ((resolve_2)dlsym(real, "cuGetProcAddress_v2"))(name, &theirs, version, flags, &their_status);
    int result = ((resolve_2)dlsym(ours, "cuGetProcAddress_v2"))(name, &mine, version, flags, &my_status);
    if (result != expected || my_status != their_status) differ(name, version, flags, "another result or status");
    compare(name, version, flags, mine, theirs);
    *address = !strcmp(name, "cuGetProcAddress") ? (void *)cuGetProcAddress_v2 : mine;
    if (status) *status = my_status;
    return result;
}

int cuGetProcAddress(const char *name, void **address, int version, unsigned long long flags) {
    void *theirs = 0, *mine = 0;
    open_both();
    int expected = ((resolve_1)dlsym(real, "cuGetProcAddress"))(name, &theirs, version, flags);
    int result = ((resolve_1)dlsym(ours, "cuGetProcAddress"))(name, &mine, version, flags);
    if (result != expected) differ(name, version, flags, "another result");
    compare(name, version, flags, mine, theirs);
    *address = mine;
    return result;
}

// Every name of the list on the standard input, for many versions and all flags, by every way that the driver
// has.
void ask_all(void) {
    static const int versions[] = {2000, 3020, 4000, 5000, 7000, 10000, 11000, 11020, 11040, 11060, 11080, 12000, 12020, 12040, 12050, 12090, 13000, 13020, 13050, 99990};
    char name[128];
    open_both();
    int second = !!dlsym(real, "cuGetProcAddress_v2");
    resolve_2 our_second = (resolve_2)dlsym(ours, "cuGetProcAddress_v2");
    while (scanf("%127s", name) == 1)
        for (unsigned i = 0; i < sizeof versions / sizeof *versions; i++)
            for (int flags = 0; flags < 4; flags++) {
                void *address = 0, *again = 0;
                int status = 7, result = cuGetProcAddress(name, &address, versions[i], flags);
                if (second) {
                    cuGetProcAddress_v2(name, &address, versions[i], flags, &status);
                    continue;
                }
                // Ours has it over a driver that has not, and says what the first one says.
                int same = our_second(name, &again, versions[i], flags, &status) == result && again == address;
                if (!same || status != (result ? 1 : 0)) differ(name, versions[i], flags, "not what the first one says");
            }
}

// The rest is found through this: a handle on the spy leads to ours next.
__attribute__((destructor)) static void tell(void) { printf("%d %d %d %d\n", asked, per_thread, twins, absent); }

// A runtime newer than the driver would not ask for anything.
int cuDriverGetVersion(int *version) {
    const char *said = getenv("FGPU_TEST_VERSION");
    *version = said ? atoi(said) : 0;
    return 0;
}
