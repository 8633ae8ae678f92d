// life WHAT: processes that race, die, fork, exec and close what is not theirs.
#include "app.h"
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <time.h>

static u64 random_state = 88172645463325252ull;
static u64 randomly(void) {
    random_state ^= random_state << 13, random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static void *shared(size_t bytes) {
    void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(at != MAP_FAILED);
    return at;
}

static void take(u64 bytes) {
    u64 pointer;
    check(cuMemAlloc_v2(&pointer, bytes) == 0);
}

static u64 all_of_it(void) {
    u64 pointer;
    check(cuMemAlloc_v2(&pointer, limit()) == 0);
    return pointer;
}

// So many processes at once, filling and emptying. What they hold together is the stand-in's to say. Large
// allocations take pieces of 2 MiB, of which the last one may be above the limit.
static void race(int processes, int rounds, int large) {
    pid_t children[256];
    for (int i = 0; i < processes; i++)
        if (!(children[i] = fork())) {
            random_state += i * 7919;
            static u64 mine[4096];
            int count = 0;
            for (int round = 0; round < rounds; round++) {
                u64 bytes = large && round % 4 ? randomly() % (5 * MIB) + 1 : (randomly() % 8 + 1) * 65536;
                if (count < 4096 && cuMemAlloc_v2(&mine[count], bytes) == 0) {
                    count++;
                    continue;
                }
                while (count) check(cuMemFree_v2(mine[--count]) == 0);
            }
            // The stand-in does not see which process ends.
            while (count) check(cuMemFree_v2(mine[--count]) == 0);
            _exit(0);
        }
    for (int i = 0; i < processes; i++) reap(children[i], 0);
    printf("most %llu\n", fakeMost(0));
    check(fakeMost(0) <= limit() + (large ? 2 * MIB : 0));
    check(fakeMost(0) >= limit() / 100 * 99);
    cuMemFree_v2(all_of_it());
}

// Processes that allocate and free without end, killed at random instants. After each death, what it held can
// be had at once, and no process is stuck.
static void kill_randomly(int trials) {
    enum { WORKERS = 4, AT_ONCE = 3, EACH = 8 };
    pid_t workers[WORKERS];
    _Atomic u64 *progress = shared(4096);
    for (int i = 0; i < WORKERS; i++) workers[i] = 0;
    for (int trial = 0; trial < trials; trial += AT_ONCE) {
        for (int i = 0; i < WORKERS; i++)
            if (!workers[i] && !(workers[i] = fork())) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                random_state += trial * 104729 + i;
                u64 mine[EACH] = {0};
                for (;;) {
                    int which = randomly() % EACH;
                    if (mine[which]) {
                        check(cuMemFree_v2(mine[which]) == 0);
                        mine[which] = 0;
                    } else check(cuMemAlloc_v2(&mine[which], MIB) == 0);
                    ++progress[i];
                }
            }
        struct timespec pause = {0, randomly() % 400000};
        nanosleep(&pause, 0);
        // Several at once, since forking takes most of the time; any one of them goes on.
        int survivor = randomly() % WORKERS;
        for (int i = 0; i < WORKERS; i++) if (i != survivor) kill(workers[i], SIGKILL);
        for (int i = 0; i < WORKERS; i++) if (i != survivor) reap(workers[i], SIGKILL), workers[i] = 0;
        // It holds EACH MiB at most; all the rest must be there.
        u64 pointer;
        check(cuMemAlloc_v2(&pointer, limit() - EACH * MIB) == 0);
        check(cuMemFree_v2(pointer) == 0);
    }
    // The survivors still get on.
    for (int i = 0; i < WORKERS; i++)
        if (workers[i])
            for (u64 before = progress[i]; progress[i] < before + 100;) sched_yield();
    for (int i = 0; i < WORKERS; i++)
        if (workers[i]) kill(workers[i], SIGKILL), reap(workers[i], SIGKILL);
    cuMemFree_v2(all_of_it());
}

// A process is killed before the n-th instruction of what `act` does, for every n (or every so many).
static void kill_stepwise(void (*prepare)(void), void (*act)(void), int first, int stride) {
    int longest = 0;
    for (int n = first;; n += stride) {
        pid_t child = fork();
        if (!child) {
            ptrace(PTRACE_TRACEME, 0, 0, 0);
            prepare();
            raise(SIGSTOP);
            act();
            raise(SIGSTOP);
            _exit(0);
        }
        int status, ended = 0, steps = 0;
        check(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
        for (; steps < n; steps++) {
            check(ptrace(PTRACE_SINGLESTEP, child, 0, 0) == 0);
            check(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
            if (WSTOPSIG(status) == SIGSTOP) {
                ended = 1;
                break;
            }
        }
        kill(child, SIGKILL);
        reap(child, SIGKILL);
        check(used() == 0);
        cuMemFree_v2(all_of_it());
        if (ended) {
            longest = steps;
            break;
        }
    }
    printf("instructions %d\n", longest);
    check(longest > 100);
}

static u64 kept;
static void nothing(void) {}
static void register_first(void) { take(MIB); }
static void hold_something(void) { check(cuMemAlloc_v2(&kept, MIB) == 0); }
static void one_pair(void) {
    u64 pointer;
    if (cuMemAlloc_v2(&pointer, 3 * MIB) == 0) cuMemFree_v2(pointer);
}
static void one_free(void) { cuMemFree_v2(kept); }
static void refused(void) {
    u64 pointer;
    cuMemAlloc_v2(&pointer, 1ull << 40);
}

// A child has nothing of its parent's, and its end takes nothing from the parent.
static void forked(void) {
    u64 pointer;
    check(cuMemAlloc_v2(&pointer, 10 * MIB) == 0);
    pid_t child = fork();
    if (!child) {
        check(used() == 10 * MIB);
        take(20 * MIB);
        check(used() == 30 * MIB);
        // The parent's pointer is not the child's to give back.
        fakeFailNext(1);
        check(cuMemFree_v2(pointer) == 1);
        check(used() == 30 * MIB);
        pid_t grandchild = fork();
        if (!grandchild) take(30 * MIB), _exit(used() == 60 * MIB ? 0 : 1);
        reap(grandchild, 0);
        check(used() == 30 * MIB);
        _exit(0);
    }
    reap(child, 0);
    check(used() == 10 * MIB);
    check(cuMemFree_v2(pointer) == 0 && used() == 0);
}

// The parent dies while a child lives that has everything the parent had, descriptors included.
static void orphan(int elsewhere) {
    int pipe_ends[2], back[2];
    pid_t init = 0;
    if (elsewhere) {
        // In a pid namespace where we cannot ask for its pid. Its first process must outlive it.
        check(unshare(CLONE_NEWPID) == 0);
        if (!(init = fork()))
            for (;;) pause();
    }
    check(pipe(pipe_ends) == 0 && pipe(back) == 0);
    pid_t parent = fork();
    if (!parent) {
        take(90 * MIB);
        if (!fork()) {
            char byte;
            close(back[1]);
            check(write(pipe_ends[1], "", 1) == 1);
            read(back[0], &byte, 1);
            _exit(0);
        }
        for (;;) pause();
    }
    char byte;
    check(read(pipe_ends[0], &byte, 1) == 1 && used() == 90 * MIB);
    kill(parent, SIGKILL);
    reap(parent, SIGKILL);
    check(used() == 0);
    cuMemFree_v2(all_of_it());
    close(back[1]);
    if (init) {
        kill(init, SIGKILL);
        reap(init, SIGKILL);
    }
}

// A program that closes every number it sees, and one that gets ours for a file of its own.
static void close_all(void) {
    int to[2], from[2];
    check(pipe(to) == 0 && pipe(from) == 0);
    dup2(from[1], 1000), dup2(to[0], 1001);
    pid_t child = fork();
    if (!child) {
        take(60 * MIB);
        for (int fd = 3; fd < 1000; fd++) close(fd);
        for (int i = 0; i < 50; i++) check(open("/run/fgpu/ledger", O_RDWR) >= 0);
        for (int fd = 3; fd < 1000; fd++) close(fd);
        check(write(1000, "", 1) == 1);
        char byte;
        read(1001, &byte, 1);
        check(used() == 60 * MIB);
        _exit(0);
    }
    char byte;
    u64 pointer;
    check(read(from[0], &byte, 1) == 1);
    check(used() == 60 * MIB);
    check(cuMemAlloc_v2(&pointer, 41 * MIB) == OUT_OF_MEMORY);
    check(write(to[1], "", 1) == 1);
    reap(child, 0);
    check(used() == 0);
}

// exec ends what the process had; the new program has the same pid.
static void exec_again(char *self) {
    pid_t child = fork();
    if (!child) {
        take(70 * MIB);
        execl(self, self, "after-exec", (char *)0);
        _exit(1);
    }
    reap(child, 0);
    check(used() == 0);
}

// Another thread forks without end while the process registers. Its children hold what was open at that
// moment, and outlive it; still its death shows.
static void *fork_without_end(void *barrier) {
    pthread_barrier_wait(barrier);
    for (int i = 0; i < 40; i++)
        if (!fork())
            for (;;) pause();
    return 0;
}
static void fork_storm(int trials) {
    while (trials--) {
        pid_t child = fork();
        if (!child) {
            setpgid(0, 0);
            pthread_t thread;
            pthread_barrier_t barrier;
            pthread_barrier_init(&barrier, 0, 2);
            check(pthread_create(&thread, 0, fork_without_end, &barrier) == 0);
            pthread_barrier_wait(&barrier);
            take(100 * MIB);
            check(used() == 100 * MIB);
            pthread_join(thread, 0);
            kill(getpid(), SIGKILL);
        }
        reap(child, SIGKILL);
        check(used() == 0);
        kill(-child, SIGKILL);
    }
}

// Two pid namespaces on one ledger: the locks alone decide.
static void namespaces(void) {
    int to[2], from[2];
    check(pipe(to) == 0 && pipe(from) == 0);
    take(10 * MIB);
    check(unshare(CLONE_NEWPID) == 0);
    pid_t child = fork();
    if (!child) {
        check(getpid() == 1);
        u64 pointer;
        // No process has the parent's pid here, and still the parent lives.
        check(cuMemAlloc_v2(&pointer, 91 * MIB) == OUT_OF_MEMORY);
        take(60 * MIB);
        check(used() == 70 * MIB);
        check(write(from[1], "", 1) == 1);
        for (;;) pause();
    }
    char byte;
    u64 pointer;
    check(read(from[0], &byte, 1) == 1);
    check(used() == 70 * MIB);
    check(cuMemAlloc_v2(&pointer, 31 * MIB) == OUT_OF_MEMORY);
    kill(child, SIGKILL);
    reap(child, SIGKILL);
    check(used() == 10 * MIB);
    check(cuMemAlloc_v2(&pointer, 90 * MIB) == 0);
}

// A process that is restored from an image has its memory and its mappings, and not its lock: meanwhile
// others have taken it for dead. It finds out, and has all that it had.
static void thawed(void) {
    enum { SLOTS_AT = 20480, GENERATION = 0, STATE = 1, USED = 8 };
    int fd = open("/run/fgpu/ledger", O_RDWR);
    char *ledger = mmap(0, SLOTS_AT + 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(fd >= 0 && ledger != MAP_FAILED);
    volatile unsigned *slot = (void *)(ledger + SLOTS_AT);
    volatile u64 *words = (void *)(ledger + SLOTS_AT), *total = (void *)(ledger + 64);
    u64 one, two;
    check(cuMemAlloc_v2(&one, 50 * MIB) == 0 && slot[STATE] == 1 && words[USED] == 50 * MIB && total[0] == 50 * MIB);
    for (int freed = 0; freed < 2; freed++) {
        slot[STATE] = 0, words[USED] = 0, total[0] = 0;
        // In the second round the slot is another's by now.
        slot[GENERATION] += freed;
        if (freed) check(cuMemFree_v2(two) == 0);
        else check(cuMemAlloc_v2(&two, 51 * MIB) == OUT_OF_MEMORY && cuMemAlloc_v2(&two, 10 * MIB) == 0);
        check(used() == (freed ? 50 : 60) * MIB && total[0] == used());
        slot = (void *)((char *)slot + 2048), words = (void *)slot;
        check(slot[STATE] == 1 && words[USED] == used());
    }
    check(cuMemFree_v2(one) == 0 && used() == 0);
}

// Holds half, reports it, and waits for a message to go on or for its death.
static void hold(void) {
    char byte;
    take(50 * MIB);
    printf("holding\n");
    fflush(stdout);
    read(0, &byte, 1);
}

int main(int argc, char **argv) {
    const char *what = argv[1];
    int number = argc > 2 ? atoi(argv[2]) : 0;
    if (!strcmp(what, "race")) race(number, 20000, 0);
    else if (!strcmp(what, "race-large")) race(number, 5000, 1);
    else if (!strcmp(what, "kill")) kill_randomly(number);
    else if (!strcmp(what, "step-register")) kill_stepwise(nothing, register_first, 1, number);
    else if (!strcmp(what, "step-pair")) kill_stepwise(hold_something, one_pair, 1, number);
    else if (!strcmp(what, "step-free")) kill_stepwise(hold_something, one_free, 1, number);
    else if (!strcmp(what, "step-refused")) kill_stepwise(hold_something, refused, 1, number);
    else if (!strcmp(what, "fork")) forked();
    else if (!strcmp(what, "orphan")) orphan(0);
    else if (!strcmp(what, "orphan-elsewhere")) orphan(1);
    else if (!strcmp(what, "fork-storm")) fork_storm(number);
    else if (!strcmp(what, "close")) close_all();
    else if (!strcmp(what, "exec")) exec_again(argv[0]);
    else if (!strcmp(what, "after-exec")) {
        check(used() == 0);
        take(100 * MIB);
    } else if (!strcmp(what, "namespaces")) namespaces();
    else if (!strcmp(what, "thawed")) thawed();
    else if (!strcmp(what, "hold")) hold();
    else return 2;
    printf("%s ok\n", what);
}
