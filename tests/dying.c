// Counts the calls that change files below a folder, and kills the process at one of them.
//
// Preloaded into a process (LD_PRELOAD); `dying_arm` says which folder, which call and when:
// 0 before it, 1 after it, 2 in the middle, half of its bytes being written.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long target;
static int moment;
static atomic_long seen;

void dying_arm(const char *path, long at, int when) {
    strncpy(folder, path, sizeof folder - 1);
    target = at;
    moment = when;
    atomic_store(&seen, 0);
}

long dying_seen(void) { return atomic_load(&seen); }

// A process that is not started by the test is armed by its environment, where it is the one meant:
// DYING=RANK:AT:WHEN:FOLDER.
__attribute__((constructor)) static void from_environment(void) {
    const char *told = getenv("DYING"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    int mine, when, used = 0;
    long at;
    if (told && rank && sscanf(told, "%d:%ld:%d:%n", &mine, &at, &when, &used) == 3 && used &&
        mine == atoi(rank))
        dying_arm(told + used, at, when);
}

static void die(void) { kill(getpid(), SIGKILL); }

static int below(const char *path) {
    return folder[0] && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int below_file(int number) {
    char link[64], path[PATH_MAX];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", number);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return below(path);
}

static int below_at(int directory, const char *path) {
    return path && path[0] == '/' ? below(path) : below_file(directory);
}

// Whether this call is the one; before it if that was asked for, this does not return.
static int meant(int counts) {
    if (!counts || atomic_fetch_add(&seen, 1) + 1 != target) return 0;
    if (moment == 0) die();
    return 1;
}

#define REAL(name)                              \
    static __typeof__(name) *real;              \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define CHANGE(name, result, counts, params, args)          \
    result name params {                                    \
        REAL(name);                                         \
        int this_one = meant(counts);                       \
        result found = real args;                           \
        if (this_one) die();                                \
        return found;                                       \
    }
#define WRITE(name, params, whole, half)                    \
    ssize_t name params {                                   \
        REAL(name);                                         \
        int this_one = meant(below_file(fd));               \
        ssize_t found = this_one && moment == 2 ? real half : real whole; \
        if (this_one) die();                                \
        return found;                                       \
    }

WRITE(write, (int fd, const void *b, size_t n), (fd, b, n), (fd, b, n / 2))
WRITE(pwrite, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o), (fd, b, n / 2, o))
WRITE(pwrite64, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o), (fd, b, n / 2, o))
CHANGE(fsync, int, below_file(fd), (int fd), (fd))
CHANGE(fdatasync, int, below_file(fd), (int fd), (fd))
CHANGE(ftruncate, int, below_file(fd), (int fd, off_t n), (fd, n))
CHANGE(ftruncate64, int, below_file(fd), (int fd, off64_t n), (fd, n))
CHANGE(posix_fallocate, int, below_file(fd), (int fd, off_t o, off_t n), (fd, o, n))
CHANGE(posix_fallocate64, int, below_file(fd), (int fd, off64_t o, off64_t n), (fd, o, n))
CHANGE(rename, int, below(b), (const char *a, const char *b), (a, b))
CHANGE(renameat, int, below_at(q, b), (int p, const char *a, int q, const char *b), (p, a, q, b))
CHANGE(renameat2, int, below_at(q, b),
       (int p, const char *a, int q, const char *b, unsigned f), (p, a, q, b, f))
CHANGE(link, int, below(b), (const char *a, const char *b), (a, b))
CHANGE(linkat, int, below_at(q, b), (int p, const char *a, int q, const char *b, int f),
       (p, a, q, b, f))
CHANGE(mkdir, int, below(p), (const char *p, mode_t m), (p, m))
CHANGE(mkdirat, int, below_at(d, p), (int d, const char *p, mode_t m), (d, p, m))
CHANGE(unlink, int, below(p), (const char *p), (p))
CHANGE(unlinkat, int, below_at(d, p), (int d, const char *p, int f), (d, p, f))
CHANGE(rmdir, int, below(p), (const char *p), (p))

#define MODE                                   \
    mode_t mode = 0;                           \
    if (flags & O_CREAT) {                     \
        va_list rest;                          \
        va_start(rest, flags);                 \
        mode = va_arg(rest, mode_t);           \
        va_end(rest);                          \
    }
#define OPEN(name, params, args, counts)                    \
    int name params {                                       \
        MODE                                                \
        REAL(name);                                         \
        int this_one = meant((flags & O_CREAT) && counts);  \
        int found = real args;                              \
        if (this_one) die();                                \
        return found;                                       \
    }

OPEN(open, (const char *path, int flags, ...), (path, flags, mode), below(path))
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), below(path))
OPEN(openat, (int d, const char *path, int flags, ...), (d, path, flags, mode), below_at(d, path))
OPEN(openat64, (int d, const char *path, int flags, ...), (d, path, flags, mode), below_at(d, path))
