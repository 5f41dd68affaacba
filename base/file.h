/* Whole files: mapped or read under a cap. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/status.h"
#include <stdint.h>

typedef struct file_map {
    const uint8_t *data; /* read-only, private; NULL for an empty file */
    size_t size;
} file_map;

/* Maps a regular file for reading. The error names the path. */
status file_map_open(const char *path, file_map *out, error *err);
void file_map_close(file_map *map);
/* Tells the kernel that [from, to) will not be read again (its pages leave our RSS). */
void file_map_release(const file_map *map, size_t from, size_t to);

/* Reads a file of at most max_bytes into malloc'd memory with a NUL behind it (caller frees). */
status file_read(const char *path, size_t max_bytes, char **out, size_t *out_size, error *err);

/* "dir/name" into out; STATUS_LIMIT when it does not fit. */
status file_join(char *out, size_t out_size, const char *dir, const char *name, error *err);
bool file_exists(const char *path);

#endif
