// cudart LIBRARY: makes NVIDIA's runtime library start. cudart all: has the spy ask for every name.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    if (!strcmp(argv[1], "all")) return ((void (*)(void))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "ask_all"))(), 0;
    void *library = dlopen(argv[1], RTLD_NOW);
    int (*malloc_of)(void **, unsigned long), (*version_of)(int *), version = 0, count = -1, (*count_of)(int *);
    void *pointer;
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    version_of = dlsym(library, "cudaRuntimeGetVersion");
    count_of = dlsym(library, "cudaGetDeviceCount");
    malloc_of = dlsym(library, "cudaMalloc");
    version_of(&version);
    int counted = count_of(&count), allocated = malloc_of(&pointer, 4096);
    printf("%d %d %d\n", version, counted, allocated);
}
