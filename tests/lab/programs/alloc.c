/* alloc: a CUDA driver-API program that does what it is told and prints one line for each.
 *
 *   alloc [--lib PATH] [--proc] [--device N] WORD…
 *
 * --lib PATH   dlopen that file instead of libcuda.so.1
 * --proc       take every function from cuGetProcAddress instead of dlsym
 *
 * Words, done in order:
 *   info         free and total of cuMemGetInfo, and cuDeviceTotalMem
 *   count        number of devices
 *   fill         allocate until the driver refuses, in steps of 64 MiB and then of 1 MiB
 *   take BYTES   one allocation
 *   free         free everything this process holds
 *   race N       fork N processes that fill at the same time; prints their sum. Only before the first word
 *                that needs CUDA, as a CUDA context does not survive a fork
 *   kill-one     SIGKILL one of the racers and wait for it; prints what it had held
 *   kill-all     SIGKILL all of them
 *   hold         wait for the end of stdin
 *   wait         wait for ever
 *
 * Built twice, against glibc 2.31: `alloc` loads the library by itself, `alloc-linked` (-DLINKED) names it as
 * a dependency. NVIDIA's headers are not needed: the few types are plain integers and pointers.
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int result; /* CUresult; 2 is CUDA_ERROR_OUT_OF_MEMORY */
typedef int device;
typedef uint64_t pointer; /* CUdeviceptr */

/* The name that cuGetProcAddress knows, the name that the library exports, the arguments. */
#define FUNCTIONS(X) \
    X(cuInit, cuInit, (unsigned)) \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *)) \
    X(cuDeviceGet, cuDeviceGet, (device *, int)) \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, device)) \
    X(cuCtxCreate, cuCtxCreate_v2, (void **, unsigned, device)) \
    X(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *)) \
    X(cuMemAlloc, cuMemAlloc_v2, (pointer *, size_t)) \
    X(cuMemFree, cuMemFree_v2, (pointer))

#ifdef LINKED
#define DECLARE(name, symbol, args) extern result symbol args;
#else
#define DECLARE(name, symbol, args) static result (*symbol) args;
#endif
FUNCTIONS(DECLARE)

static const char *library = "libcuda.so.1";
static int by_proc_address, device_index;

static void fail(const char *what, result error)
{
    printf("%s error=%d\n", what, error);
    exit(1);
}

static void check(const char *what, result error)
{
    if (error)
        fail(what, error);
}

static void load(void)
{
#ifndef LINKED
    void *handle = dlopen(library, RTLD_NOW);
    if (!handle) {
        printf("dlopen: %s\n", dlerror());
        exit(1);
    }
    if (by_proc_address) {
        result (*get)(const char *, void **, int, uint64_t, int *);
        *(void **)&get = dlsym(handle, "cuGetProcAddress_v2");
        if (!get)
            fail("dlsym cuGetProcAddress_v2", -1);
/* As of CUDA 11.3: later ones know cuCtxCreate with other arguments. */
#define BY_PROC(name, symbol, args) check("cuGetProcAddress " #name, get(#name, (void **)&symbol, 11030, 0, NULL));
        FUNCTIONS(BY_PROC)
        return;
    }
#define BY_NAME(name, symbol, args) \
    if (!(*(void **)&symbol = dlsym(handle, #symbol))) \
        fail("dlsym " #symbol, -1);
    FUNCTIONS(BY_NAME)
#endif
}

static device the_device;

static void start(void)
{
    static int started;
    void *context;
    if (started++)
        return;
    load();
    check("cuInit", cuInit(0));
    check("cuDeviceGet", cuDeviceGet(&the_device, device_index));
    check("cuCtxCreate", cuCtxCreate_v2(&context, 0, the_device));
}

static struct { pointer at; size_t size; } held[1 << 20];
static size_t held_count;

static result take(size_t size)
{
    pointer at;
    result error = cuMemAlloc_v2(&at, size);
    if (!error) {
        held[held_count].at = at;
        held[held_count++].size = size;
    }
    return error;
}

/* Returns the bytes got; the refusal is stored in *error. */
static size_t fill(result *error)
{
    size_t got = 0, step;
    for (step = 64 << 20; step >= 1 << 20; step /= 64)
        while (!(*error = take(step)))
            got += step;
    return got;
}

static void give_back(void)
{
    while (held_count)
        check("cuMemFree", cuMemFree_v2(held[--held_count].at));
}

static struct racer { pid_t pid; size_t got; } racers[256];
static int racer_count;

/* All racers start to allocate when the parent closes its end of `go`, and each reports what it got. Before that each says with
 * a byte that it has its context: the others would leave no room for that. */
static void race(int count)
{
    int go[2], ready[2], report[2], i;
    char byte;
    struct { pid_t pid; size_t got; result error; } line;
    size_t sum = 0;
    if (count > 256 || pipe(go) || pipe(ready) || pipe(report))
        fail("race", -errno);
    for (i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid < 0)
            fail("fork", -errno);
        if (pid == 0) {
            close(go[1]);
            start();
            if (write(ready[1], "", 1) != 1 || close(ready[1]) || read(go[0], &byte, 1) < 0)
                _exit(1);
            line.pid = getpid();
            line.got = fill(&line.error);
            if (write(report[1], &line, sizeof line) != sizeof line)
                _exit(1);
            for (;;)
                pause();
        }
        racers[i].pid = pid;
    }
    racer_count = count;
    close(go[0]);
    close(ready[1]);
    close(report[1]);
    for (i = 0; i < count; i++)
        if (read(ready[0], &byte, 1) != 1)
            fail("race: a racer ended", -1);
    close(ready[0]);
    close(go[1]);
    for (i = 0; i < count; i++) {
        int k;
        if (read(report[0], &line, sizeof line) != sizeof line)
            fail("race: a racer ended", -1);
        if (line.error != 2)
            fail("race", line.error);
        for (k = 0; k < count; k++)
            if (racers[k].pid == line.pid)
                racers[k].got = line.got;
        sum += line.got;
    }
    printf("race processes=%d bytes=%zu\n", count, sum);
}

static size_t kill_racer(int i)
{
    kill(racers[i].pid, SIGKILL);
    waitpid(racers[i].pid, NULL, 0);
    racer_count--;
    return racers[i].got;
}

/* The one that holds most, so that what it gives back cannot be missed. */
static void kill_one(void)
{
    int i, most = 0;
    for (i = 1; i < racer_count; i++)
        if (racers[i].got > racers[most].got)
            most = i;
    struct racer last = racers[racer_count - 1], victim = racers[most];
    kill_racer(most);
    racers[most] = last;
    printf("kill-one bytes=%zu\n", victim.got);
}

int main(int argc, char **argv)
{
    int i = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--lib") && i + 1 < argc)
            library = argv[++i];
        else if (!strcmp(argv[i], "--proc"))
            by_proc_address = 1;
        else if (!strcmp(argv[i], "--device") && i + 1 < argc)
            device_index = atoi(argv[++i]);
        else
            break;
    }
    for (; i < argc; i++) {
        const char *word = argv[i];
        if (!strcmp(word, "race") && i + 1 < argc) {
            race(atoi(argv[++i]));
        } else if (!strcmp(word, "kill-one")) {
            kill_one();
        } else if (!strcmp(word, "kill-all")) {
            while (racer_count)
                kill_racer(racer_count - 1);
            printf("kill-all\n");
        } else if (!strcmp(word, "hold")) {
            char byte;
            printf("hold\n");
            while (read(0, &byte, 1) > 0)
                ;
        } else if (!strcmp(word, "wait")) {
            printf("wait\n");
            for (;;)
                pause();
        } else if (!strcmp(word, "info")) {
            size_t available, total, device_total;
            start();
            check("cuMemGetInfo", cuMemGetInfo_v2(&available, &total));
            check("cuDeviceTotalMem", cuDeviceTotalMem_v2(&device_total, the_device));
            printf("info free=%zu total=%zu device=%zu\n", available, total, device_total);
        } else if (!strcmp(word, "count")) {
            int count;
            start();
            check("cuDeviceGetCount", cuDeviceGetCount(&count));
            printf("count devices=%d\n", count);
        } else if (!strcmp(word, "fill")) {
            result error;
            start();
            size_t got = fill(&error);
            printf("fill bytes=%zu error=%d\n", got, error);
        } else if (!strcmp(word, "take") && i + 1 < argc) {
            size_t size = strtoull(argv[++i], NULL, 0);
            start();
            printf("take bytes=%zu error=%d\n", size, take(size));
        } else if (!strcmp(word, "free")) {
            give_back();
            printf("free\n");
        } else {
            fprintf(stderr, "alloc: what is %s?\n", word);
            return 2;
        }
    }
    return 0;
}
