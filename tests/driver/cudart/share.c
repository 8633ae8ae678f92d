// Memory of this process in another one: by IPC handles, and by pools that are exported.
#include "cudart.h"
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// What is told to the other process, besides the descriptor of a pool.
struct message {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
    struct cudaMemPoolPtrExportData exported;
    size_t free;
};

#define SIZE (256 * MIB)
enum { SOCKET = 3 };

static void send_all(int socket, struct message *message, int descriptor) {
    char room[CMSG_SPACE(sizeof descriptor)] = {0};
    struct iovec part = {message, sizeof *message};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&header);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
    IS(sendmsg(socket, &header, 0) == sizeof *message);
}

static int receive_all(int socket, struct message *message) {
    int descriptor;
    char room[CMSG_SPACE(sizeof descriptor)];
    struct iovec part = {message, sizeof *message};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    IS(recvmsg(socket, &header, MSG_WAITALL) == sizeof *message && CMSG_FIRSTHDR(&header));
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof descriptor);
    return descriptor;
}

int shared(void) {
    struct message message;
    cudaMemPool_t pool;
    cudaEvent_t event;
    cudaStream_t stream;
    void *opened, *imported;
    int descriptor = receive_all(SOCKET, &message);
    // Its context.
    OK(cudaFree(0));
    size_t before = free_now();
    OK(cudaIpcOpenMemHandle(&opened, message.memory, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaMemset(opened, 1, SIZE));
    OK(cudaIpcOpenEventHandle(&event, message.event));
    OK(cudaEventSynchronize(event));
    OK(cudaMemPoolImportFromShareableHandle(&pool, (void *)(long)descriptor, cudaMemHandleTypePosixFileDescriptor, 0));
    OK(cudaMemPoolImportPointer(&imported, pool, &message.exported));
    OK(cudaStreamCreate(&stream));
    OK(cudaMemsetAsync(imported, 1, MIB, stream));
    // The allocating process counts it.
    IS(free_now() == before);
    OK(cudaFreeAsync(imported, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    OK(cudaMemPoolDestroy(pool));
    OK(cudaEventDestroy(event));
    OK(cudaIpcCloseMemHandle(opened));
    IS(free_now() == before);
    printf("shared context=%zu\n", message.free - before);
    return 0;
}

void share(const char *program) {
    struct message message;
    struct cudaMemPoolProps wanted = {0};
    cudaMemPool_t pool;
    cudaEvent_t event;
    void *memory, *exported;
    int pair[2], status, descriptor;
    size_t before = free_now();
    IS(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t other = fork();
    if (!other) {
        dup2(pair[1], SOCKET);
        execl("/proc/self/exe", program, "shared", (char *)0);
        _exit(127);
    }
    wanted.allocType = cudaMemAllocationTypePinned;
    wanted.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    wanted.location.type = cudaMemLocationTypeDevice;
    OK(cudaMalloc(&memory, SIZE));
    OK(cudaIpcGetMemHandle(&message.memory, memory));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    OK(cudaEventRecord(event, 0));
    OK(cudaIpcGetEventHandle(&message.event, event));
    OK(cudaMemPoolCreate(&pool, &wanted));
    OK(cudaMemPoolExportToShareableHandle(&descriptor, pool, cudaMemHandleTypePosixFileDescriptor, 0));
    OK(cudaMallocFromPoolAsync(&exported, MIB, pool, 0));
    OK(cudaStreamSynchronize(0));
    OK(cudaMemPoolExportPointer(&message.exported, exported));
    message.free = free_now();
    send_all(pair[0], &message, descriptor);
    IS(waitpid(other, &status, 0) == other && status == 0);
    close(descriptor), close(pair[0]), close(pair[1]);
    OK(cudaFreeAsync(exported, 0));
    OK(cudaStreamSynchronize(0));
    OK(cudaMemPoolDestroy(pool));
    OK(cudaEventDestroy(event));
    OK(cudaFree(memory));
    printf("share before=%zu after=%zu\n", before, free_now());
}
