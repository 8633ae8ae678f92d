/* fill [--device N] WORD...: takes device memory as it is told and prints a JSON line for each word.
 *
 *   info            what cuMemGetInfo, cuDeviceTotalMem and cuDeviceGetCount say
 *   fill ROAD       allocate until the driver refuses, in steps of 64 MiB and then of 2 MiB; ROAD as in roads.h
 *   each BYTES      allocations of so many bytes by cuMemAlloc until the driver refuses
 *   take ROAD BYTES one allocation; a multiple of 2 MiB, but for `alloc`
 *   free            give back everything, and wait for it
 *   race N          N processes fill at the same time; their sum; then they are killed. Before any other word but
 *                   `killed`, as a context does not survive a fork
 *   killed          another process fills, and is killed; how long until its end was seen
 *   pause           wait for one byte of stdin
 *   hold            wait for the end of stdin
 *   wait            wait for ever
 */
#include "roads.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static held all[1 << 17];
static const road *by[1 << 17];
static size_t count;
static int ordinal;

static void start(void)
{
    static int started;
    if (started++) return;
    load(ordinal);
    enter();
    must(cuStreamCreate(&stream, 1)); /* 1: does not wait for the default stream */
}

static int take(const road *road, size_t bytes)
{
    if (count == sizeof all / sizeof *all) failed("too many allocations", -1);
    int code = road->take(&all[count], bytes);
    if (!code) {
        all[count].bytes = bytes;
        by[count++] = road;
    }
    return code;
}

static u64 fill(const road *road, int *code)
{
    u64 got = 0;
    for (size_t step = 64 * MIB; step >= 2 * MIB; step /= 32)
        while (!(*code = take(road, step))) got += step;
    return got;
}

static void give_back(void)
{
    while (count) {
        count--;
        by[count]->give(&all[count]);
    }
    must(cuStreamSynchronize(stream));
    must(cuCtxSynchronize());
    if (HAVE(cuDeviceGraphMemTrim)) must(cuDeviceGraphMemTrim(device));
}

/* A child that fills, tells what it got by `report`, and waits. */
static pid_t filler(int go, int report)
{
    pid_t child = fork();
    if (child < 0) failed("fork", -1);
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char byte;
    struct { u64 got; int code; } line;
    start();
    /* All have their contexts before one allocates. */
    line.got = 0, line.code = 0;
    if (go >= 0 && (write(report, &line, sizeof line) != sizeof line || read(go, &byte, 1) < 0)) _exit(1);
    line.got = fill(road_of("alloc"), &line.code);
    if (write(report, &line, sizeof line) != sizeof line) _exit(1);
    for (;;) pause();
}

static void race(int racers)
{
    int go[2], report[2], codes = 0;
    struct { u64 got; int code; } line;
    u64 sum = 0, least = ~0ull, most = 0;
    pid_t pids[256];
    if (racers < 1 || racers > 256 || pipe(go) || pipe(report)) failed("race", -1);
    for (int i = 0; i < racers; i++) pids[i] = filler(go[0], report[1]);
    for (int i = 0; i < racers; i++)
        if (read(report[0], &line, sizeof line) != sizeof line) failed("a racer did not begin", -1);
    /* Each takes one byte, so all are let go by so many. */
    char bytes[256] = {0};
    if (write(go[1], bytes, racers) != racers) failed("race", -1);
    close(report[1]);
    for (int i = 0; i < racers; i++) {
        if (read(report[0], &line, sizeof line) != sizeof line) failed("a racer ended", -1);
        sum += line.got;
        if (line.got < least) least = line.got;
        if (line.got > most) most = line.got;
        if (line.code != OUT_OF_MEMORY) codes = line.code;
    }
    printf("{\"race\": %d, \"got\": %llu, \"least\": %llu, \"most\": %llu, \"other_code\": %d}\n", racers,
           (unsigned long long)sum, (unsigned long long)least, (unsigned long long)most, codes);
    fflush(stdout);
    /* Until stdin ends the sum can be looked at from outside. */
    while (read(0, bytes, 1) > 0) ;
    for (int i = 0; i < racers; i++) kill(pids[i], SIGKILL);
    for (int i = 0; i < racers; i++) waitpid(pids[i], NULL, 0);
}

static void killed(void)
{
    int report[2];
    struct { u64 got; int code; } line;
    if (pipe(report)) failed("pipe", -1);
    pid_t child = filler(-1, report[1]);
    close(report[1]);
    if (read(report[0], &line, sizeof line) != sizeof line) failed("the one to be killed ended", -1);
    u64 before = now();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    printf("{\"killed\": true, \"held\": %llu, \"nanoseconds\": %llu}\n", (unsigned long long)line.got,
           (unsigned long long)(now() - before));
}

int main(int argc, char **argv)
{
    int i = 1;
    char byte;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2 && !strcmp(argv[1], "--device")) ordinal = atoi(argv[2]), i = 3;
    for (; i < argc; i++) {
        const char *word = argv[i];
        if (!strcmp(word, "info")) {
            size_t left, total, device_total;
            int devices;
            start();
            must(cuMemGetInfo_v2(&left, &total));
            must(cuDeviceTotalMem_v2(&device_total, device));
            must(cuDeviceGetCount(&devices));
            printf("{\"free\": %zu, \"total\": %zu, \"device_total\": %zu, \"devices\": %d}\n", left, total, device_total,
                   devices);
        } else if (!strcmp(word, "each") && i + 1 < argc) {
            size_t bytes = strtoull(argv[++i], NULL, 0), before = count;
            int code;
            start();
            while (!(code = take(road_of("alloc"), bytes))) ;
            printf("{\"got\": %llu, \"code\": %d, \"in_use\": %llu}\n", (unsigned long long)(count - before) * bytes, code,
                   (unsigned long long)in_use());
        } else if (!strcmp(word, "fill") && i + 1 < argc) {
            const road *road = road_of(argv[++i]);
            int code;
            start();
            if (!road->exists()) {
                printf("{\"road\": \"%s\", \"missing\": true}\n", road->name);
                continue;
            }
            u64 got = fill(road, &code);
            printf("{\"road\": \"%s\", \"got\": %llu, \"code\": %d, \"in_use\": %llu, \"count\": %zu}\n", road->name,
                   (unsigned long long)got, code, (unsigned long long)in_use(), count);
        } else if (!strcmp(word, "take") && i + 2 < argc) {
            const road *road = road_of(argv[++i]);
            size_t bytes = strtoull(argv[++i], NULL, 0);
            start();
            printf("{\"road\": \"%s\", \"bytes\": %zu, \"code\": %d}\n", road->name, bytes, take(road, bytes));
        } else if (!strcmp(word, "free")) {
            give_back();
            printf("{\"in_use\": %llu}\n", (unsigned long long)in_use());
        } else if (!strcmp(word, "race") && i + 1 < argc) {
            race(atoi(argv[++i]));
        } else if (!strcmp(word, "killed")) {
            killed();
        } else if (!strcmp(word, "pause")) {
            printf("{\"pid\": %d}\n", getpid());
            if (read(0, &byte, 1) != 1) failed("pause", -1);
        } else if (!strcmp(word, "hold")) {
            printf("{\"pid\": %d}\n", getpid());
            while (read(0, &byte, 1) > 0) ;
        } else if (!strcmp(word, "wait")) {
            printf("{\"pid\": %d}\n", getpid());
            for (;;) pause();
        } else {
            fprintf(stderr, "fill: what is %s?\n", word);
            return 2;
        }
    }
    return 0;
}
