/* A temporary folder for a test of model/, and files in it. */
#ifndef TESTS_UNIT_MODEL_FOLDER_H
#define TESTS_UNIT_MODEL_FOLDER_H

#include "base/base.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct folder {
    char dir[64];
} folder;

static inline void folder_make(folder *f)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(f->dir, sizeof f->dir, "%.30s/octavo-test-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(f->dir)) {
        perror(f->dir);
        exit(1);
    }
}

/* Removes files only: tests make no nested folders. */
static inline void folder_remove(folder *f)
{
    DIR *d = opendir(f->dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", f->dir, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
    rmdir(f->dir);
}

static inline void folder_write(const folder *f, const char *name, const void *data, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, n, file) != n || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static inline void folder_puts(const folder *f, const char *name, const char *text)
{
    folder_write(f, name, text, strlen(text));
}

/* A safetensors file: the header's JSON, then data. */
static inline void folder_safetensors(const folder *f, const char *name, const char *header,
                                      const void *data, size_t n)
{
    size_t h = strlen(header);
    uint8_t *file = malloc(8 + h + n);
    if (!file) exit(1);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)h >> (8 * i));
    memcpy(file + 8, header, h);
    if (n > 0) memcpy(file + 8 + h, data, n);
    folder_write(f, name, file, 8 + h + n);
    free(file);
}

#endif
