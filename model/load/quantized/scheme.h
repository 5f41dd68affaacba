/* Helpers that the schemes' files share (private to model/load/quantized/). */
#ifndef MODEL_LOAD_QUANTIZED_SCHEME_H
#define MODEL_LOAD_QUANTIZED_SCHEME_H

#include "model/load/quantized/quantized.h"

#include <string.h>

/* A module whose weight is looked for, and where to look. */
typedef struct quantized_place {
    const quantized *q;
    const safetensors *st;
    bool *used;
    const char *module;  /* the weight's name without ".weight" */
    bool is_linear;      /* it is not the embeddings */
    uint64_t *work_left; /* q->work_left */
    size_t rows, cols;
} quantized_place;

struct quantized_scheme {
    const char *method; /* "quant_method" */
    /* Reads json, the "quantization_config". q->memory is ready, and q's lists are empty. */
    status (*read)(const json_t *json, const char *where, quantized *q, error *err);
    /* w has rows and cols already. *found is false when the module's weight is plain. */
    status (*match)(const quantized_place *at, quantized_weight *w, bool *found, error *err);
};

extern const quantized_scheme quantized_compressed_tensors;
extern const quantized_scheme quantized_fp8;
extern const quantized_scheme quantized_awq;
extern const quantized_scheme quantized_gptq;

/* ---- configuration --------------------------------------------------------------------------- */

/* Adds a group; NULL when out of memory. */
quantized_group *quantized_add_group(quantized *q, const char *name);
/* Reads a list of names, or null, from of[key]. */
status quantized_read_names(quantized *q, const json_t *of, const char *where, const char *key,
                            bool patterns, quantized_names *out, error *err);
/* Refuses keys that have a value other than null, false, "", {} and []. */
status quantized_refuse(const json_t *json, const char *where, const char *const *keys, error *err);
/* Reads a group size from json[key]: -1 is all columns, and a missing key means `fallback`. */
status quantized_read_group_size(const json_t *json, const char *where, const char *key,
                                 int64_t fallback, size_t *out, error *err);
/* Reads the rows and columns of the blocks that share a scale from the array json[key]. */
status quantized_read_block(const json_t *json, const char *where, const char *key,
                            quantized_group *g, error *err);

/* ---- names (names.c) ------------------------------------------------------------------------- */

typedef enum quantized_match_kind { NAME_NONE, NAME_PATTERN, NAME_EXACT } quantized_match_kind;

/* Sets *kind to how a list names a module and *text to the item that does (of several patterns, the
 * first in alphabetical order). STATUS_LIMIT: one pattern, or all of them, took too long. */
status quantized_names_find(const quantized_place *at, const quantized_names *names,
                            quantized_match_kind *kind, const char **text, error *err);
/* The limit of matching's total cost for n_modules modules. */
uint64_t quantized_names_work(size_t n_modules);
bool quantized_names_has(const quantized_names *names, const char *text);
void quantized_names_close(quantized_names *names);

/* ---- tensors --------------------------------------------------------------------------------- */

/* The tensor module.name, or NULL. */
const safetensors_tensor *quantized_find(const quantized_place *at, const char *name);
/* Finds module.name, which must exist with this shape and one of `types` (bits 1 << type), marks it
 * as used and makes it tensor `which` of w. */
status quantized_take(const quantized_place *at, const char *name, uint32_t types,
                      const uint64_t *shape, uint32_t n_dims, quantized_tensor which,
                      quantized_weight *w, error *err);
/* quantized_take for scales, whose type becomes the weight's. */
status quantized_take_scales(const quantized_place *at, const char *name, const uint64_t *shape,
                             uint32_t n_dims, quantized_weight *w, error *err);
/* Marks as used a tensor that changes nothing here; it may be missing. */
void quantized_skip(const quantized_place *at, const char *name);
/* Checks i32 [cols] under this name against w's groups and makes it w's order. An order that
 * changes nothing is left out: all zeros, groups in sequence, or any -1 where that `means_none`. */
status quantized_take_order(const quantized_place *at, const char *name, bool means_none,
                            quantized_weight *w, error *err);
/* A module that the configuration leaves alone must not be quantised: the error names it. */
status quantized_refuse_ignored(const quantized_place *at, error *err);
/* Sets group_cols and n_groups from a size, where 0 is all columns. A size that does not divide the
 * columns is refused unless `ragged`. */
status quantized_set_groups(const quantized_place *at, size_t size, bool ragged,
                            quantized_weight *w, error *err);

/* ---- values (decode.c) ----------------------------------------------------------------------- */

static inline uint32_t quantized_word(const quantized_weight *w, quantized_tensor which, size_t i)
{
    uint32_t word;
    memcpy(&word, w->in[which].data + 4 * i, sizeof word);
    return word;
}

/* The scale of a row's group. */
float quantized_scale(const quantized_weight *w, size_t row, size_t group);
/* quantized_weight.unpack for rows of bytes: E4M3 floats, and signed integers. */
void quantized_unpack_e4m3(const quantized_weight *w, size_t row, size_t col, size_t n, float *out);
void quantized_unpack_i8(const quantized_weight *w, size_t row, size_t col, size_t n, float *out);

#endif
