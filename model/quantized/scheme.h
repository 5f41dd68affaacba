/* What the files of schemes share (private to model/quantized/). */
#ifndef MODEL_QUANTIZED_SCHEME_H
#define MODEL_QUANTIZED_SCHEME_H

#include "model/quantized/quantized.h"

#include <string.h>

/* A module whose weight is looked for, and what was found of it. */
typedef struct quantized_place {
    const quantized *q;
    const safetensors *st;
    bool *used;
    const char *module;  /* the weight's name without ".weight" */
    bool is_linear;      /* not the embeddings */
    uint64_t *work_left; /* of q */
    size_t rows, cols;
} quantized_place;

struct quantized_scheme {
    const char *method; /* "quant_method" */
    /* Reads json, the "quantization_config". q's memory is there, and its lists are empty. */
    status (*read)(const json_t *json, const char *where, quantized *q, error *err);
    /* w has rows and cols. *found false: the module's weight is plain. */
    status (*match)(const quantized_place *at, quantized_weight *w, bool *found, error *err);
};

extern const quantized_scheme quantized_compressed_tensors;
extern const quantized_scheme quantized_fp8;
extern const quantized_scheme quantized_awq;
extern const quantized_scheme quantized_gptq;

/* ---- configuration --------------------------------------------------------------------------- */

/* One more group; NULL when memory is out. */
quantized_group *quantized_add_group(quantized *q, const char *name);
/* A list of names, or null: lists[key], where `of` is the object. */
status quantized_read_names(quantized *q, const json_t *of, const char *where, const char *key,
                            bool patterns, quantized_names *out, error *err);
/* Refuses a key that is there with a value other than null, false, "", {} and []. */
status quantized_refuse(const json_t *json, const char *where, const char *const *keys, error *err);
/* "group_size", or under another name: -1 is all columns, and `fallback` is for a key that is not
 * there. */
status quantized_read_group_size(const json_t *json, const char *where, const char *key,
                                 int64_t fallback, size_t *out, error *err);

/* ---- names (names.c) ------------------------------------------------------------------------- */

typedef enum quantized_match_kind { NAME_NONE, NAME_PATTERN, NAME_EXACT } quantized_match_kind;

/* How a list names a module, and by which of its texts (the first of several patterns in the
 * alphabet's order). STATUS_LIMIT: a pattern takes too long, or all have. */
status quantized_names_find(const quantized_place *at, const quantized_names *names,
                            quantized_match_kind *kind, const char **text, error *err);
/* What all matching may cost for so many modules. */
uint64_t quantized_names_work(size_t n_modules);
bool quantized_names_has(const quantized_names *names, const char *text);
void quantized_names_close(quantized_names *names);

/* ---- tensors --------------------------------------------------------------------------------- */

/* module.name, or NULL. */
const safetensors_tensor *quantized_find(const quantized_place *at, const char *name);
/* The same, which must be there with this shape and one of `types` (bits 1 << type); it is marked
 * as used and becomes tensor `which` of w. */
status quantized_take(const quantized_place *at, const char *name, uint32_t types,
                      const uint64_t *shape, uint32_t n_dims, quantized_tensor which,
                      quantized_weight *w, error *err);
/* Scales likewise, whose type becomes the weight's. */
status quantized_take_scales(const quantized_place *at, const char *name, const uint64_t *shape,
                             uint32_t n_dims, quantized_weight *w, error *err);
/* Marks one as used that changes nothing here; none is fine. */
void quantized_skip(const quantized_place *at, const char *name);
/* Checks i32 [cols] under this name against w's groups and makes it w's order. One that says
 * nothing is left out: all zeros, or any -1 where that `means_none`. */
status quantized_take_order(const quantized_place *at, const char *name, bool means_none,
                            quantized_weight *w, error *err);
/* A module that the configuration leaves alone must not be quantised: the error names it. */
status quantized_refuse_ignored(const quantized_place *at, error *err);
/* Sets group_cols and n_groups from a size, 0 = all; refuses one that does not divide the columns
 * unless `ragged`. */
status quantized_set_groups(const quantized_place *at, size_t size, bool ragged,
                            quantized_weight *w, error *err);

/* ---- values (decode.c) ----------------------------------------------------------------------- */

static inline uint32_t quantized_word(const quantized_weight *w, quantized_tensor which, size_t i)
{
    uint32_t word;
    memcpy(&word, w->in[which].data + 4 * i, sizeof word);
    return word;
}

/* Rows of bytes: E4M3 floats, and signed integers. */
void quantized_unpack_e4m3(const quantized_weight *w, size_t row, size_t col, size_t n, float *out);
void quantized_unpack_i8(const quantized_weight *w, size_t row, size_t col, size_t n, float *out);

#endif
