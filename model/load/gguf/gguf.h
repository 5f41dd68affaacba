/* GGUF files, versions 2 and 3 (private to model/).
 *
 * What     maps a file and lists its metadata and tensors. Every count, length, type and offset is
 *          checked here, so that strings, array elements and a tensor's blocks lie inside the
 *          mapping, tensors do not overlap, and no key or name is there twice.
 * Owner    the gguf value owns mapping and names; values and tensors point into it.
 * Threads  one thread opens and closes; an open value is read-only.
 * Errors   one line that names the file and the key or tensor. Truncating a file while it is mapped
 *          kills the process (SIGBUS). */
#ifndef MODEL_LOAD_GGUF_GGUF_H
#define MODEL_LOAD_GGUF_GGUF_H

#include "model/load/gguf/blocks.h"

#include <string.h>

typedef enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
} gguf_type;

enum { GGUF_DIMS_MAX = 4 };

/* A value, or an array of n values (never of arrays). A string is a u64 length, then its bytes. */
typedef struct gguf_value {
    const char *key;
    gguf_type type; /* the value's, or an array's elements' */
    bool is_array;
    uint64_t n;          /* 1 unless an array */
    const uint8_t *data; /* the first value; unaligned */
} gguf_value;

typedef struct gguf_tensor {
    const char *name;
    const block_type *type;
    uint32_t n_dims;
    uint64_t shape[GGUF_DIMS_MAX]; /* the first is the length of a row */
    size_t begin, bytes;           /* from the start of the file */
} gguf_tensor;

typedef struct gguf {
    const char *path;
    file_map map; /* empty when the bytes came from gguf_parse */
    const uint8_t *data;
    size_t size;
    gguf_value *values; /* [n_values], by key */
    size_t n_values;
    gguf_tensor *tensors; /* [n_tensors], by name */
    size_t n_tensors;
    arena names;
} gguf;

/* Whether path ends as a GGUF file's. */
bool gguf_is_path(const char *path);
status gguf_open(const char *path, gguf *out, error *err);
/* Closing twice, or closing a zeroed value, is allowed. */
void gguf_close(gguf *g);
/* Parses and checks a file's bytes, which must outlive g. The caller closes g in every case.
 * `where` names the file in messages. */
status gguf_parse(gguf *g, const char *where, const uint8_t *data, size_t size, error *err);

const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name);
const gguf_value *gguf_find(const gguf *g, const char *key);

/* Getters of one value. A missing key leaves *out unchanged; a value of another type, or outside
 * [0, max], is an error. */
status gguf_get_u64(const gguf *g, const char *key, uint64_t max, uint64_t *out, error *err);
status gguf_get_double(const gguf *g, const char *key, double *out, error *err);
status gguf_get_bool(const gguf *g, const char *key, bool *out, error *err);
/* *out is borrowed from the mapping and has no terminating 0. */
status gguf_get_string(const gguf *g, const char *key, const char **out, size_t *n, error *err);
/* Finds an array of elements of this type; *out is NULL when the key is missing. */
status gguf_get_array(const gguf *g, const char *key, gguf_type type, const gguf_value **out,
                      error *err);

/* Returns the next string of an array. *at starts as value->data. */
static inline const char *gguf_next_string(const uint8_t **at, size_t *n)
{
    uint64_t length;
    memcpy(&length, *at, sizeof length);
    const char *text = (const char *)*at + sizeof length;
    *n = (size_t)length;
    *at += sizeof length + length;
    return text;
}
static inline uint32_t gguf_u32_at(const gguf_value *array, uint64_t i)
{
    uint32_t v;
    memcpy(&v, array->data + i * sizeof v, sizeof v);
    return v;
}
static inline float gguf_f32_at(const gguf_value *array, uint64_t i)
{
    float v;
    memcpy(&v, array->data + i * sizeof v, sizeof v);
    return v;
}

#endif
