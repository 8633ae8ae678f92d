// meanwhile: another thread begins a capture after we have asked whether there is one, and before we do what
// would break it.
#include <pthread.h>

#include "app.h"

enum { ROUNDS = 24, QUESTIONS = 6 };
int fakeBroken(void);
void fakeMeanwhile(void (*)(void));

static void *context, *function;
static _Atomic int question, wanted, begun, ended;

// The other thread: begins a capture when it is wanted, and ends it afterwards.
static void *captures(void *nothing) {
    void *graph, *stream = (void *)0x1000;
    check(cuCtxSetCurrent(context) == 0);
    for (int round = 1; round <= ROUNDS; round++) {
        while (wanted < round) sched_yield();
        check(cuStreamBeginCapture_v2(stream, 0) == 0);
        begun = round;
        while (ended < round) sched_yield();
        check(cuStreamEndCapture(stream, &graph) == 0);
        begun = 0;
    }
    return NULL;
}

static int round_now;

// At one of the questions of a round. A thread that has to wait does not begin before we have gone on; it
// would wait for twenty times as long.
static void at_a_question(void) {
    if (question++ != round_now % QUESTIONS) return;
    wanted = round_now;
    for (int i = 0; i < 50 && begun != round_now; i++) usleep(100);
}

int main(void) {
    u64 keep, nothing = 0;
    void *module, *graph, *arguments[] = {&nothing};
    pthread_t other;
    check(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    check(cuModuleLoadData(&module, "an image") == 0 && cuModuleGetFunction(&function, module, "spin_ns") == 0);
    check(cuMemAlloc_v2(&keep, 1024) == 0);
    // Before the first capture nothing is asked.
    check(cuStreamBeginCapture_v2((void *)0x1000, 0) == 0 && cuStreamEndCapture((void *)0x1000, &graph) == 0);
    check(pthread_create(&other, NULL, captures, NULL) == 0);
    fakeMeanwhile(at_a_question);
    int asked = 0;
    for (round_now = 1; round_now <= ROUNDS; round_now++) {
        question = 0;
        // Far apart, so that each is marked.
        usleep(1000);
        check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL) == 0 && cuCtxSynchronize() == 0);
        asked += wanted == round_now;
        wanted = round_now;
        while (begun != round_now) sched_yield();
        ended = round_now;
        while (begun) sched_yield();
    }
    check(pthread_join(other, NULL) == 0);
    check(asked > ROUNDS / 2);
    check(fakeBroken() == 0);
    printf("meanwhile ok\n");
}
