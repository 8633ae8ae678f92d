// tenant LIBRARY MIB: takes so much memory of the first GPU, keeps it busy for a minute, says its pid and
// waits for the end of stdin. LIBRARY is the libcuda to use: the real one, for a tenant that must stay
// invisible to others, or ours.
#include "app.h"

int main(int argc, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW), *context, *module, *kernel;
    check(argc == 3 && library);
    int (*init)(unsigned) = dlsym(library, "cuInit"), device;
    int (*create)(void **, unsigned, int) = dlsym(library, "cuCtxCreate_v2");
    int (*alloc)(u64 *, size_t) = dlsym(library, "cuMemAlloc_v2");
    int (*load)(void **, const void *) = dlsym(library, "cuModuleLoadData");
    int (*find)(void **, void *, const char *) = dlsym(library, "cuModuleGetFunction");
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        dlsym(library, "cuLaunchKernel");
    u64 at, nanoseconds = 60000000000ull;
    void *arguments[] = {&nanoseconds};
    check(init(0) == 0 && create(&context, 0, 0) == 0 && alloc(&at, atoi(argv[2]) * MIB) == 0);
    check(load(&module, "an image") == 0 && find(&kernel, module, "spin_ns") == 0);
    check(launch(kernel, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0) == 0);
    printf("%d\n", getpid());
    fflush(stdout);
    while (getchar() != EOF) {}
    _exit(0);
}
