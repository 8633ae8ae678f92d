// loads: calls our libcuda with whatever C library the loader brings. Not linked with this machine's start
// files, which want its own.
#include <gnu/libc-version.h>
#include <stdio.h>
#include <unistd.h>

int cuInit(unsigned);
int cuMemAlloc_v2(unsigned long long *, size_t);

__attribute__((force_align_arg_pointer, noreturn)) void _start(void) {
    unsigned long long pointer;
    // There is no GPU here.
    if (cuInit(0) == 0 || cuMemAlloc_v2(&pointer, 4096) == 0) _exit(1);
    printf("with glibc %s\n", gnu_get_libc_version());
    fflush(stdout);
    _exit(0);
}
