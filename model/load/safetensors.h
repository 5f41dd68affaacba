/* Safetensors, one file or the shards of an index (private to model/).
 *
 * What     opens the files of model.safetensors.index.json, or model.safetensors, maps them and
 *          lists their tensors. Only indexed files are opened. Everything in the headers is
 *          checked here, in the order of the reference reader (huggingface/safetensors,
 *          tensor.rs), so that a tensor's bytes lie inside its mapping and are as many as its
 *          shape says. Their alignment is arbitrary.
 * Owner    the safetensors value owns mappings and names; tensors point into it.
 * Threads  one thread opens and closes; an open value is read-only.
 * Errors   one line that names the file and the tensor. Truncating a file while it is mapped kills
 *          the process (SIGBUS): write a new file elsewhere and rename it. */
#ifndef MODEL_LOAD_SAFETENSORS_H
#define MODEL_LOAD_SAFETENSORS_H

#include "base/base.h"

/* Name in the file, bits of an element (safetensors, tensor.rs, Dtype::bitsize). */
#define SAFETENSORS_TYPES(X)                                                                       \
    X(BOOL, 8)                                                                                     \
    X(F4, 4)                                                                                       \
    X(F6_E2M3, 6)                                                                                  \
    X(F6_E3M2, 6)                                                                                  \
    X(U8, 8)                                                                                       \
    X(I8, 8)                                                                                       \
    X(F8_E5M2, 8)                                                                                  \
    X(F8_E4M3, 8)                                                                                  \
    X(F8_E8M0, 8)                                                                                  \
    X(F8_E4M3FNUZ, 8)                                                                              \
    X(F8_E5M2FNUZ, 8)                                                                              \
    X(I16, 16)                                                                                     \
    X(U16, 16)                                                                                     \
    X(F16, 16)                                                                                     \
    X(BF16, 16)                                                                                    \
    X(I32, 32)                                                                                     \
    X(U32, 32)                                                                                     \
    X(F32, 32)                                                                                     \
    X(C64, 64)                                                                                     \
    X(F64, 64)                                                                                     \
    X(I64, 64)                                                                                     \
    X(U64, 64)

typedef enum safetensors_type {
#define SAFETENSORS_ENUM(name, bits) SAFETENSORS_##name,
    SAFETENSORS_TYPES(SAFETENSORS_ENUM)
#undef SAFETENSORS_ENUM
        SAFETENSORS_TYPES_N
} safetensors_type;

const char *safetensors_type_name(safetensors_type t);

enum { SAFETENSORS_DIMS_MAX = 8, SAFETENSORS_FILES_MAX = 4096 };

typedef struct safetensors_tensor {
    const char *name;
    safetensors_type type;
    uint32_t n_dims;                      /* 0: one element */
    uint64_t shape[SAFETENSORS_DIMS_MAX]; /* row-major; 0 is a size like any other */
    uint32_t file;                        /* index into files */
    size_t begin;                         /* bytes from the start of the file */
    size_t bytes;
} safetensors_tensor;

typedef struct safetensors_file {
    const char *path;
    file_map map;
} safetensors_file;

typedef struct safetensors {
    safetensors_file *files; /* [n_files] */
    size_t n_files;
    safetensors_tensor *tensors; /* [n_tensors], by name */
    size_t n_tensors;
    arena names;
} safetensors;

/* STATUS_NOT_FOUND when dir has neither file. */
status safetensors_open(const char *dir, safetensors *out, error *err);
/* Closing twice, or closing a zeroed value, is allowed. */
void safetensors_close(safetensors *st);

/* NULL when no tensor has that name. */
const safetensors_tensor *safetensors_find(const safetensors *st, const char *name);

/* Checks a file's bytes without opening anything, and appends its tensors to st as those of file
 * number `file`, in the order of their bytes. `where` names the file in messages. */
status safetensors_parse(safetensors *st, const char *where, uint32_t file, const uint8_t *data,
                         size_t size, error *err);

#endif
