/* Packed weights on disk (private to model/): --weights-cache.
 *
 * What     one file holds one rank's packed weights: a header, the table of tensors, a hash of each
 *          piece of the data, and the data as it lies in memory. It is read with read(), never
 *          mapped: a mapped file might shrink under its reader, and read weights lie on huge pages.
 * Trust    the whole file is checked before use, data included. This guards against accidents, not
 *          against malice: a user who may write to the folder can change the weights.
 * Threads  any number of readers and writers, in this process or others: a file appears whole, by
 *          rename, and a file that a reader has open does not change.
 * Errors   one line that names the file and what is wrong with it. */
#ifndef MODEL_LOAD_WEIGHTS_CACHE_H
#define MODEL_LOAD_WEIGHTS_CACHE_H

#include "model/load/safetensors.h"

/* Must rise when the file's format changes, and when kernels/ lays out or rounds packed weights
 * differently: a test knows the bytes of the version. */
enum { WEIGHTS_CACHE_VERSION = 3 };

typedef struct weights_image {
    const char *cache_dir;
    const char *model_dir;
    const char *kind;  /* how it was packed, for the file's name: "int4.8-g32-bf16-rank0of1" */
    uint64_t key;      /* hash of the files it was packed from (weights_cache_key) */
    const char *table; /* says where each tensor lies in data */
    size_t table_bytes;
    uint8_t *data;
    size_t bytes;
    thread_pool *pool;
    const _Atomic bool *given_up; /* another thread sets it to stop; NULL: never */
} weights_image;

/* Hashes the files' names, sizes and times, starting from seed. */
uint64_t weights_cache_key(const safetensors *files, uint64_t seed);

/* Hashes the whole path of the model; 0 when there is no such file. */
uint64_t weights_place(const char *model_dir);

enum { WEIGHTS_CACHE_PATH_MAX = 1024 };

/* The image's file: one for each model folder, kind and version. */
status weights_cache_path(const weights_image *w, char out[WEIGHTS_CACHE_PATH_MAX], error *err);

/* Fills data, which must be zeros before and is zeros again on failure. STATUS_NOT_FOUND: there is
 * no file. */
status weights_cache_read(const weights_image *w, error *err);

/* Writes the file, or replaces it. On failure an existing file stays. */
status weights_cache_write(const weights_image *w, error *err);

#endif
