/* Shared by benches of whole models: known shapes in place of a model folder, and lists of numbers
 * in flags. */
#ifndef CLI_BENCH_BENCH_SHAPE_H
#define CLI_BENCH_BENCH_SHAPE_H

#include "base/base.h"

extern const char *const bench_shapes[]; // names, NULL at the end

/* A temporary folder that holds only the shape's config.json. */
typedef struct bench_shape {
    char dir[300];
} bench_shape;

status bench_shape_create(const char *name, bench_shape *out, error *err);
void bench_shape_remove(bench_shape *shape);

enum { BENCH_LIST_MAX = 16 };

typedef struct bench_list {
    uint32_t values[BENCH_LIST_MAX];
    size_t n;
} bench_list;

/* Reads the list "1,4,8" of the flag --flag. */
status bench_list_read(const char *flag, const char *text, bench_list *out, error *err);

#endif
