/* nuisance lease SECONDS: takes a lease on every file that is mounted into the container or is below /run/fgpu, of the strongest kind
 *   that it gets, and holds it. Prints "holds=N", and "broken PATH" when somebody opens such a file: his open waits, if it may.
 * nuisance all SECONDS: does to those files what root can do, again and again and at random: cuts, fills, locks, leases, changes mode
 *   and owner, sets attributes; and stops itself now and then. Prints "did N" at its end.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static char *paths[4096], *of[4096];
static int many;

/* Each file once: a second open of a file breaks one's own lease on it. */
static void note(const char *path)
{
    static struct { dev_t device; ino_t inode; } known[4096];
    struct stat found;
    if (many == 4096 || stat(path, &found) || !S_ISREG(found.st_mode))
        return;
    for (int i = 0; i < many; i++)
        if (known[i].device == found.st_dev && known[i].inode == found.st_ino)
            return;
    known[many].device = found.st_dev;
    known[many].inode = found.st_ino;
    paths[many++] = strdup(path);
}

/* What fgpu mounts is on mounts that a container has besides its root. */
static int collect(void)
{
    char line[8192], point[4096];
    FILE *mounts = fopen("/proc/self/mountinfo", "r");
    while (mounts && fgets(line, sizeof line, mounts))
        if (sscanf(line, "%*s %*s %*s %*s %4095s", point) == 1 && strncmp(point, "/proc", 5) && strncmp(point, "/sys", 4) &&
            strncmp(point, "/dev", 4) && strcmp(point, "/"))
            note(point);
    return mounts ? fclose(mounts) : -1;
}

static int add(const char *path, const struct stat *stat, int kind, struct FTW *place)
{
    (void)stat, (void)place;
    if (kind == FTW_F)
        note(path);
    return 0;
}

static void act(const char *path)
{
    static char page[4096];
    int file = open(path, rand() % 2 ? O_RDWR | O_NONBLOCK : O_RDONLY | O_NONBLOCK), kept;
    if (file < 0)
        return;
    switch (rand() % 10) {
    case 0: (void)!ftruncate(file, 0); break;
    case 1: (void)!ftruncate(file, 4096); break;
    case 2: (void)!ftruncate(file, 1 << 30); break;
    case 3: (void)!fallocate(file, 0, 0, 1 << 26); break;
    case 4: (void)!fchmod(file, rand() & 0777); break;
    case 5: (void)!fchown(file, rand() % 9, rand() % 9); break;
    case 6: (void)!fsetxattr(file, "user.nuisance", page, sizeof page, 0); break;
    case 7: (void)!flock(file, LOCK_EX | LOCK_NB); break;
    case 8: (void)!pwrite(file, memset(page, rand(), sizeof page), sizeof page, 0); break;
    case 9: (void)!(fcntl(file, F_SETLEASE, F_WRLCK) && fcntl(file, F_SETLEASE, F_RDLCK)); break;
    }
    /* Kept for a while, with its lock or lease. */
    kept = dup2(file, 100 + rand() % 100);
    if (kept != file)
        close(file);
}

int main(int argc, char **argv)
{
    time_t end = time(NULL) + (argc > 2 ? atoi(argv[2]) : 0);
    unsigned long count = 0;
    if (argc < 3)
        return 2;
    signal(SIGIO, SIG_IGN);
    collect();
    nftw("/run/fgpu", add, 16, FTW_PHYS);
    if (!strcmp(argv[1], "lease")) {
        sigset_t broken;
        sigemptyset(&broken);
        sigaddset(&broken, SIGRTMIN);
        sigprocmask(SIG_BLOCK, &broken, NULL);
        for (int i = 0; i < many; i++) {
            int file = open(paths[i], O_RDONLY | O_NONBLOCK);
            if (file < 0 || (fcntl(file, F_SETLEASE, F_WRLCK) && fcntl(file, F_SETLEASE, F_RDLCK)))
                continue;
            fcntl(file, F_SETSIG, SIGRTMIN);
            of[file] = paths[i];
            count++;
        }
        printf("leases holds=%lu\n", count);
        fflush(stdout);
        for (;;) {
            struct timespec left = {end - time(NULL), 0};
            siginfo_t told;
            if (left.tv_sec <= 0 || sigtimedwait(&broken, &told, &left) < 0)
                return 0;
            printf("broken %s\n", told.si_fd >= 0 && told.si_fd < 4096 && of[told.si_fd] ? of[told.si_fd] : "?");
            fflush(stdout);
        }
    }
    srand(1);
    printf("begins\n");
    fflush(stdout);
    while (time(NULL) < end) {
        act(paths[rand() % many]);
        count++;
        /* It is to be a nuisance, and not to take the processors. */
        usleep(200);
        if (rand() % 1000 == 0 && !fork()) {
            /* Whoever stops itself is woken by somebody else. */
            pid_t parent = getppid();
            kill(parent, SIGSTOP);
            usleep(rand() % 20000);
            kill(parent, SIGCONT);
            _exit(0);
        }
    }
    printf("did %lu\n", count);
    return 0;
}
