// resize: for every byte on the standard input, says the total and how much can be had, in MiB.
#include "app.h"

int main(void) {
    u64 held;
    char byte;
    check(cuMemAlloc_v2(&held, 10 * MIB) == 0);
    while (read(0, &byte, 1) == 1) {
        static u64 pointers[1000];
        u64 total = limit(), count = 0;
        while (cuMemAlloc_v2(&pointers[count], MIB) == 0) count++;
        printf("%llu %llu\n", total / MIB, count);
        fflush(stdout);
        while (count) check(cuMemFree_v2(pointers[--count]) == 0);
    }
}
