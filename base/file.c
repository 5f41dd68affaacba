#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens with O_NONBLOCK, so that a FIFO in a model's folder does not wait for a writer. */
static status open_regular(const char *path, int *fd, size_t *size, error *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) {
        status_code code = errno == ENOENT || errno == ENOTDIR ? STATUS_NOT_FOUND : STATUS_IO;
        return error_set(err, code, "%s: %s", path, strerror(errno));
    }
    struct stat st;
    status result = STATUS_IS_OK;
    if (fstat(*fd, &st) != 0) result = error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        result = error_set(err, STATUS_INVALID, "%s: not a regular file", path);
    if (!status_ok(result)) close(*fd);
    else *size = (size_t)st.st_size;
    return result;
}

status file_map_open(const char *path, file_map *out, error *err)
{
    int fd;
    size_t size = 0;
    RETURN_IF_ERROR(open_regular(path, &fd, &size, err));
    void *data = NULL;
    status result = STATUS_IS_OK;
    if (size > 0) {
        data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            result = error_set(err, STATUS_IO, "%s: cannot map: %s", path, strerror(errno));
    }
    close(fd);
    if (status_ok(result)) *out = (file_map){data, size};
    return result;
}

void file_map_close(file_map *map)
{
    if (!map) return;
    if (map->data) munmap((void *)(uintptr_t)map->data, map->size);
    *map = (file_map){0};
}

void file_map_release(const file_map *map, size_t from, size_t to)
{
    if (to > map->size) to = map->size;
    if (!map->data || from >= to) return;
    /* Rounds outwards to whole pages: bytes of neighbours in them are read from the file again if
     * needed. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    from -= from % page;
    madvise((void *)(uintptr_t)(map->data + from), to - from, MADV_DONTNEED);
}

status file_read(const char *path, size_t max_bytes, char **out, size_t *out_size, error *err)
{
    int fd;
    size_t size = 0;
    RETURN_IF_ERROR(open_regular(path, &fd, &size, err));
    if (size > max_bytes) {
        close(fd);
        return error_set(err, STATUS_LIMIT, "%s: %zu bytes, the limit is %zu", path, size,
                         max_bytes);
    }
    char *data = malloc(size + 1);
    if (!data) {
        close(fd);
        return error_set(err, STATUS_NO_MEMORY, "%s: no memory for %zu bytes", path, size);
    }
    size_t got = 0;
    ssize_t n = 1;
    while (got < size && n > 0) { /* a file that shrinks meanwhile ends early */
        n = read(fd, data + got, size - got);
        if (n > 0) got += (size_t)n;
        else if (n < 0 && errno == EINTR) n = 1;
    }
    int read_errno = errno;
    close(fd);
    if (n < 0) {
        free(data);
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(read_errno));
    }
    data[got] = 0;
    *out = data;
    *out_size = got;
    return STATUS_IS_OK;
}

status file_join(char *out, size_t out_size, const char *dir, const char *name, error *err)
{
    size_t dir_size = strlen(dir), name_size = strlen(name);
    bool slash = dir_size > 0 && dir[dir_size - 1] != '/';
    if (dir_size >= out_size || name_size >= out_size || dir_size + slash + name_size >= out_size)
        return error_set(err, STATUS_LIMIT, "path too long: %.100s/%.100s", dir, name);
    memcpy(out, dir, dir_size);
    if (slash) out[dir_size] = '/';
    memcpy(out + dir_size + slash, name, name_size + 1);
    return STATUS_IS_OK;
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}
