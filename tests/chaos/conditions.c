/* What one process meets: a clock that was set, and a place where files cannot be written or read; changed at any time.
 *
 * $CHAOS_CONDITIONS names a file of one page: nanoseconds to add to CLOCK_REALTIME, an error number, whether it is met at
 * reading, too, and the beginning of the paths at which it is met. The page is mapped, so that whoever writes it reaches all
 * processes that share it. libfaketime cannot be used for the clock: it replaces clock_nanosleep too, and with it Python's
 * time.sleep(), which names a deadline on the monotonic clock, does not sleep. A step of the wall clock never touches the
 * monotonic one, so nothing else is needed than this.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct conditions {
    int64_t offset_ns;
    int32_t error;
    int32_t at_reading;
    char place[1024];
};

static const volatile struct conditions *now;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CONDITIONS");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *now, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) now = page;
    if (fd >= 0) close(fd);
}

/* ---- the clock ---- */

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    if (failed || !now || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    int64_t ns = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + now->offset_ns;
    time->tv_sec = ns / 1000000000;
    time->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    time->tv_sec = exact.tv_sec;
    time->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result) *result = exact.tv_sec;
    return exact.tv_sec;
}

/* ---- files ---- */

static int lies_there(const char *path) { return !strncmp(path, (const char *)now->place, strlen((const char *)now->place)); }

/* Does a write stay within what the file has? A full disk has the blocks for that already. */
static int stays_within(int fd, size_t size, off64_t at) {
    struct stat64 file;
    if (size == 0 || now->at_reading || fstat64(fd, &file) || !S_ISREG(file.st_mode)) return 0;
    if (at < 0) at = fcntl(fd, F_GETFL) & O_APPEND ? file.st_size : lseek64(fd, 0, SEEK_CUR);
    return at >= 0 && at + (off64_t)size <= file.st_size;
}

/* The error that an open file meets; 0: none. Where `at` is negative, the position is the file's own. */
static int of_file(int fd, int reads, size_t size, off64_t at) {
    char link[64], path[2048];
    int before = errno, error = 0;
    if (now && now->error && (!reads || now->at_reading)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        path[length < 0 ? 0 : length] = 0;
        if (length > 0 && lies_there(path) && !stays_within(fd, size, at)) error = now->error;
    }
    errno = before;
    return error;
}

/* The error that whoever makes a name, or opens it, meets. */
static int of_name(const char *path, int reads) {
    if (!now || !now->error || (reads && !now->at_reading) || path[0] != '/' || !lies_there(path)) return 0;
    int before = errno, exists = !access(path, F_OK);
    errno = before;
    return exists && !now->at_reading ? 0 : now->error; /* a full disk has room for what is there */
}

static size_t length_of(const struct iovec *data, int count) {
    size_t length = 0;
    while (count-- > 0) length += data++->iov_len;
    return length;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define REFUSE(error) do { int refused = (error); if (refused) { errno = refused; return -1; } } while (0)

#define WRAP(kind, name, fd, reads, size, at, parameters, arguments) \
    kind name parameters { REAL(name); REFUSE(of_file(fd, reads, size, at)); return real arguments; }

WRAP(ssize_t, write, fd, 0, size, -1, (int fd, const void *data, size_t size), (fd, data, size))
WRAP(ssize_t, writev, fd, 0, length_of(data, count), -1, (int fd, const struct iovec *data, int count), (fd, data, count))
WRAP(ssize_t, pwrite, fd, 0, size, at, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRAP(ssize_t, pwrite64, fd, 0, size, at, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRAP(ssize_t, pwritev, fd, 0, length_of(data, count), at, (int fd, const struct iovec *data, int count, off_t at), (fd, data, count, at))
WRAP(ssize_t, pwritev64, fd, 0, length_of(data, count), at, (int fd, const struct iovec *data, int count, off64_t at), (fd, data, count, at))
WRAP(ssize_t, read, fd, 1, 0, -1, (int fd, void *data, size_t size), (fd, data, size))
WRAP(ssize_t, copy_file_range, to, 0, 0, -1, (int from, off64_t *at, int to, off64_t *to_at, size_t size, unsigned flags),
     (from, at, to, to_at, size, flags))
ssize_t sendfile(int to, int from, off_t *at, size_t size);
ssize_t sendfile64(int to, int from, off64_t *at, size_t size);
WRAP(ssize_t, sendfile, to, 0, 0, -1, (int to, int from, off_t *at, size_t size), (to, from, at, size))
WRAP(ssize_t, sendfile64, to, 0, 0, -1, (int to, int from, off64_t *at, size_t size), (to, from, at, size))
int mkdir(const char *path, mode_t mode);
int mkdir(const char *path, mode_t mode) { REAL(mkdir); REFUSE(of_name(path, 0)); return real(path, mode); }

#define GROWS(name, offset) \
    int name(int fd, offset at, offset size) { REAL(name); int error = of_file(fd, 0, (size_t)size, at); return error ? error : real(fd, at, size); }
GROWS(posix_fallocate, off_t)
GROWS(posix_fallocate64, off64_t)

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        REFUSE(of_name(path, !(flags & (O_CREAT | O_TRUNC)))); \
        return real(path, flags, mode); }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        REFUSE(of_name(path, !(flags & (O_CREAT | O_TRUNC)))); \
        return real(folder, path, flags, mode); }
OPENS_AT(openat)
OPENS_AT(openat64)
