/* The system's calls as a disk_io, and whole writes by one. */
#include "disk/internal.h"

#include <errno.h>
#include <unistd.h>

static ssize_t system_read(void *ctx, int fd, void *to, size_t n, off_t at)
{
    (void)ctx;
    return pread(fd, to, n, at);
}

static ssize_t system_write(void *ctx, int fd, const void *from, size_t n, off_t at)
{
    (void)ctx;
    return pwrite(fd, from, n, at);
}

static int system_sync(void *ctx, int fd)
{
    (void)ctx;
    return fsync(fd);
}

const disk_io calls_system = {system_read, system_write, system_sync, NULL};

int calls_write(const disk_io *io, int fd, const void *from, size_t n, off_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = io->write(io->ctx, fd, (const char *)from + done, n - done, at + (off_t)done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return errno;
        if (put == 0) return ENOSPC;
        done += (size_t)put;
    }
    return 0;
}

int calls_sync(const disk_io *io, int fd) { return io->sync(io->ctx, fd) == 0 ? 0 : errno; }
