/* Which tensors a configuration makes, how they are cut for one rank, and where each lies in the
 * files (private to model/). */
#ifndef MODEL_TENSORS_H
#define MODEL_TENSORS_H

#include "model/family.h"
#include "model/safetensors.h"

enum { TENSOR_NAME_MAX = 96 };

struct block_type;
struct quantized;
struct quantized_weight;

/* Where a tensor's bytes are, and how they become rows. */
typedef struct tensor_source {
    const file_map *map; /* NULL before tensors_match, and of dummy weights */
    size_t begin, bytes; /* from the start of the file */
    size_t row_bytes;
    const struct block_type *blocks; /* a row is such blocks, which become f32; NULL = elements of
                                        `stored` */
    size_t rotary; /* rows of each head of so many lie in pairs: i, then i + rotary / 2; 0 = as in
                      the model */
    const struct quantized_weight *quantized; /* rows are made of it, and bytes are its values; NULL
                                                 = they are there */
} tensor_source;

/* What one of `size` ranks holds. Heads, KV heads, ffn and each expert's ffn are cut into equal
 * runs; a KV head is copied to several ranks when there are fewer of them than ranks. The
 * vocabulary is cut into equal runs too, the last of which may reach beyond it. */
typedef struct tensor_slice {
    uint32_t first_head, n_heads;
    uint32_t first_kv_head, n_kv_heads;
    uint32_t first_ffn, n_ffn;
    uint32_t first_expert_ffn, n_expert_ffn; /* of every expert */
    uint32_t first_shared_ffn, n_shared_ffn;
    uint32_t first_token, n_tokens; /* first_token + n_tokens may exceed vocab_size */
} tensor_slice;

/* The error names the field that the ranks do not divide. */
status tensor_slice_of(const model_config *c, int rank, int size, tensor_slice *out, error *err);

/* One tensor, or what one role takes of a tensor that several share: its whole shape, and the part
 * [rows, cols) of it that a rank takes. */
typedef struct tensor_part {
    tensor_role role;
    uint32_t layer, expert;
    char name[TENSOR_NAME_MAX];
    bool is_vector;     /* [cols], rows is 1 */
    float plus, times;  /* a vector's elements are (stored + plus) * times */
    size_t rows, cols;  /* the whole */
    size_t row, n_rows; /* the slice; rows beyond the whole are zeros */
    size_t run, step;   /* it comes in runs of so many rows, the first ones `step` apart; run 0: in
                           one */
    size_t col, n_cols;
    tensor_source source;
    dtype stored; /* what a row is when it is read: f32 of blocks */
} tensor_part;

/* Row i of a slice, in the whole; *n = rows from there on that lie together. */
static inline size_t tensor_part_row(const tensor_part *p, size_t i, size_t *n)
{
    if (p->run == 0) {
        *n = p->n_rows - i;
        return p->row + i;
    }
    *n = p->run - i % p->run;
    return p->row + i / p->run * p->step + i % p->run;
}

/* Row `row` of the whole, in the file. */
static inline size_t tensor_source_row(const tensor_source *s, size_t row)
{
    if (s->rotary == 0) return row;
    size_t at = row % s->rotary, half = s->rotary / 2;
    return row - at + at % half * 2 + at / half;
}

/* All of a model's tensors, in the order embed, head (untied only), norm, then layer by layer in
 * the order of tensor_role, expert by expert. The list is the caller's: free. */
status tensors_list(const model_config *c, const tensor_slice *slice, tensor_part **out,
                    size_t *out_n, error *err);

/* Finds every part in the files: same shape, an element type that this build reads, and nothing
 * left over that the model would have to use. q is the folder's "quantization_config", or NULL; it
 * keeps what sources point to. */
status tensors_match(const model_config *c, const safetensors *st, struct quantized *q,
                     tensor_part *parts, size_t n, error *err);

/* Whether a tensor has this shape: the error names it and both. */
status tensors_check_shape(const safetensors *st, const safetensors_tensor *t, const uint64_t *due,
                           uint32_t n_due, error *err);

#endif
