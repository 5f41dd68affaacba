/* Packed weights on disk (private to model/): --weights-cache.
 *
 * What     one file holds what one rank's packing made: a header, the table of its tensors, a hash
 *          of each piece of the data, and the data as it lies in memory. It is read with read(),
 *          never mapped: it may shrink under a reader, and the weights stay on huge pages.
 * Trust    everything is checked before it is used, all of the data too; against accidents, not
 *          against malice: who may write to the folder may change the weights.
 * Threads  any number of readers and writers, of this process or others: a file appears whole, by
 *          rename, and what a reader has open stays as it is.
 * Errors   one line that names the file and what is wrong with it. */
#ifndef MODEL_WEIGHTS_CACHE_H
#define MODEL_WEIGHTS_CACHE_H

#include "model/safetensors.h"

/* Rises with the form of the file, and with how kernels/ lays out or rounds packed weights: a test
 * knows the bytes of each version. */
enum { WEIGHTS_CACHE_VERSION = 3 };

typedef struct weights_image {
    const char *cache_dir;
    const char *model_dir;
    const char *kind;  /* how it was packed, for the file's name: "int4.8-g32-bf16-rank0of1" */
    uint64_t key;      /* of what it was made of */
    const char *table; /* what lies where in data */
    size_t table_bytes;
    uint8_t *data;
    size_t bytes;
    thread_pool *pool;
    const _Atomic bool *given_up; /* nothing more is read; NULL: never */
} weights_image;

/* A key: names, sizes and times of the files, on top of seed. */
uint64_t weights_cache_key(const safetensors *files, uint64_t seed);

enum { WEIGHTS_CACHE_PATH_MAX = 1024 };

/* The image's file: one for each model folder, kind and version. */
status weights_cache_path(const weights_image *w, char out[WEIGHTS_CACHE_PATH_MAX], error *err);

/* Fills data (zeros before), which is zeros again on failure. STATUS_NOT_FOUND: there is no file.
 */
status weights_cache_read(const weights_image *w, error *err);

/* Writes the file, or replaces it. On failure what was there before still is. */
status weights_cache_write(const weights_image *w, error *err);

#endif
