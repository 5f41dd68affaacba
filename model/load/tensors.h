/* The tensors that a configuration implies, how they are cut for one rank, and where each lies in
 * the files (private to model/). */
#ifndef MODEL_LOAD_TENSORS_H
#define MODEL_LOAD_TENSORS_H

#include "model/family.h"
#include "model/load/safetensors.h"

enum { TENSOR_NAME_MAX = 96 };

struct block_type;
struct quantized;
struct quantized_weight;

/* Where a tensor's bytes are and how they become rows. */
typedef struct tensor_source {
    const file_map *map; /* NULL before tensors_match, and for dummy weights */
    size_t begin, bytes; /* from the start of the file */
    size_t row_bytes;
    /* A row is blocks of this type, which become f32; NULL: elements of type `stored`. */
    const struct block_type *blocks;
    /* Rows of each head of `rotary` rows lie in pairs: i, then i + rotary / 2; 0: in order. */
    size_t rotary;
    /* Rows are computed from this weight, and the bytes are its values; NULL: rows are stored. */
    const struct quantized_weight *quantized;
} tensor_source;

/* The part of a model that one of `size` ranks holds. Heads, KV heads, ffn and each expert's ffn
 * are cut into equal runs; with fewer KV heads than ranks, several ranks hold a copy of each. The
 * vocabulary is cut into equal runs too, and the last run may reach beyond it. */
typedef struct tensor_slice {
    uint32_t first_head, n_heads;
    uint32_t first_kv_head, n_kv_heads;
    uint32_t first_ffn, n_ffn;
    uint32_t first_expert_ffn, n_expert_ffn; /* in every expert */
    uint32_t first_shared_ffn, n_shared_ffn;
    uint32_t first_token, n_tokens; /* first_token + n_tokens may exceed vocab_size */
} tensor_slice;

/* The error names the field that the ranks do not divide. */
status tensor_slice_of(const model_config *c, int rank, int size, tensor_slice *out, error *err);

/* One tensor, or one role's part of a tensor that several roles share: its whole shape, and the
 * slice of it that a rank takes. */
typedef struct tensor_part {
    tensor_role role;
    uint32_t layer, expert;
    char name[TENSOR_NAME_MAX];
    bool is_vector;     /* [cols], rows is 1 */
    float plus, times;  /* a vector's elements are (stored + plus) * times */
    size_t rows, cols;  /* the whole */
    size_t row, n_rows; /* the slice's rows; those beyond the whole are zeros */
    size_t run, step;   /* the slice is runs of `run` rows that start `step` apart; 0: one run */
    size_t col, n_cols;
    tensor_source source;
    dtype stored; /* element type of a row once read; f32 for blocks */
} tensor_part;

/* The row of the whole that is row i of the slice. Sets *n to the adjacent rows from it on. */
static inline size_t tensor_part_row(const tensor_part *p, size_t i, size_t *n)
{
    if (p->run == 0) {
        *n = p->n_rows - i;
        return p->row + i;
    }
    *n = p->run - i % p->run;
    return p->row + i / p->run * p->step + i % p->run;
}

/* The row of the file that is row `row` of the whole. */
static inline size_t tensor_source_row(const tensor_source *s, size_t row)
{
    if (s->rotary == 0) return row;
    size_t at = row % s->rotary, half = s->rotary / 2;
    return row - at + at % half * 2 + at / half;
}

/* Lists all of a model's tensors: embed, head (untied only), norm, then layer by layer in the order
 * of tensor_role, expert by expert. The caller frees the list. */
status tensors_list(const model_config *c, const tensor_slice *slice, tensor_part **out,
                    size_t *out_n, error *err);

/* Finds every part in the files. Each must have the due shape and an element type that this build
 * reads, and no tensor that the model would have to use may be left over. q is the folder's
 * "quantization_config", or NULL; sources point into it. */
status tensors_match(const model_config *c, const safetensors *st, struct quantized *q,
                     tensor_part *parts, size_t n, error *err);

/* Checks a tensor's shape; the error names the tensor and both shapes. */
status tensors_check_shape(const safetensors *st, const safetensors_tensor *t, const uint64_t *due,
                           uint32_t n_due, error *err);

#endif
