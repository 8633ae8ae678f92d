// What the parts of `cudart` share.
#pragma once
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

// Ends the program with a word unless a call of the runtime succeeds.
#define OK(call) ok((call), #call, __FILE__, __LINE__)
static inline void ok(cudaError_t error, const char *call, const char *file, int line) {
    if (error == cudaSuccess) return;
    printf("%s:%d: %s = %d %s\n", file, line, call, error, cudaGetErrorName(error));
    exit(1);
}

// Likewise, unless something is so.
#define IS(condition) \
    do { \
        if (!(condition)) printf("%s:%d: not %s\n", __FILE__, __LINE__, #condition), exit(1); \
    } while (0)

#define MIB ((size_t)1 << 20)

int device(void);
size_t free_now(void);
void fill(void);
void share(const char *program);
int shared(void);
void work(void);
