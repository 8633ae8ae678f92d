/* nodes: opens device nodes and says what came of it, a line each: `PATH RESULT`.
 *
 *   nodes PATH…           opens each
 *   nodes -m MAJOR:MINOR… makes a node of its own for each in /tmp and opens that
 *
 * RESULT is `ok` or the name of the error. EPERM: the device cgroup forbids it. ENXIO: it allows it and no
 * driver serves it, which is how an allowed node looks on a machine without a GPU. Static pie-free C, no
 * library but libc: the same source is built against glibc and musl.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char *name_of(int error)
{
    switch (error) {
    case 0: return "ok";
    case EPERM: return "EPERM";
    case EACCES: return "EACCES";
    case ENXIO: return "ENXIO";
    case ENODEV: return "ENODEV";
    case ENOENT: return "ENOENT";
    default: return strerror(error);
    }
}

static int try(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno;
    close(fd);
    return 0;
}

int main(int argc, char **argv)
{
    int i, make = argc > 1 && !strcmp(argv[1], "-m");
    for (i = 1 + make; i < argc; i++) {
        unsigned major_number, minor_number;
        char path[64];
        if (!make) {
            printf("%s %s\n", argv[i], name_of(try(argv[i])));
            continue;
        }
        if (sscanf(argv[i], "%u:%u", &major_number, &minor_number) != 2)
            return 2;
        snprintf(path, sizeof path, "/tmp/node-%u-%u", major_number, minor_number);
        unlink(path);
        if (mknod(path, S_IFCHR | 0666, makedev(major_number, minor_number)))
            printf("%s mknod:%s\n", argv[i], name_of(errno));
        else
            printf("%s %s\n", argv[i], name_of(try(path)));
    }
    return 0;
}
