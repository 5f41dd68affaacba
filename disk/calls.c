/* The system's calls as a disk_io. */
#include "disk/internal.h"

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
