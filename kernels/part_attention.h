/* part_attention: attention of single queries over some of their slots, whose result is a part that
 * is merged with another one: what a CPU adds to a GPU's attention.
 *
 * What     for each query head the softmax-weighted mean of V over the given slots alone, and the
 *          log2 of the sum of exponentials there, by which two parts are merged.
 * Owner    scratch is the context's; everything else the caller's.
 * Threads  the rules of kernels.h.
 * Shapes   tiles are a GPU's: K [page_tokens, head_dim] row by row, then V the same; int8: then the
 *          bf16 scales of K [page_tokens] and of V. All slots are written and seen. e4m3 has no
 *          scale.
 * Invariance   a head's bits depend on its query and its slots alone, not on threads.
 * Errors   STATUS_NO_MEMORY when scratch cannot grow. Arguments are the caller's duty
 *          (asserted). */
#ifndef KERNELS_PART_ATTENTION_H
#define KERNELS_PART_ATTENTION_H

#include "kernels/kernels.h"

typedef enum kern_part_format {
    KERN_PART_BF16,
    KERN_PART_F16,
    KERN_PART_E4M3,
    KERN_PART_INT8,
} kern_part_format;

typedef struct kern_part_item {
    const uint8_t *const *tiles; // [n_tiles], n_tiles > 0, of one KV head
    uint32_t n_tiles;
    const float *q; // [q_heads, head_dim]
    float *out;     // [q_heads, head_dim]
    float *lse;     // [q_heads]
} kern_part_item;

typedef struct kern_part_batch {
    kern_part_format format;
    uint32_t page_tokens; // of a tile, a multiple of 16
    uint32_t head_dim;    // a multiple of 16 up to 256
    uint32_t q_heads;     // query heads of a KV head
    float scale;
    const kern_part_item *items;
    size_t n_items;
} kern_part_batch;

status kern_part_attention(kern_context *kc, const kern_part_batch *batch);

/* Makes `out` [head_dim] and *lse, a head's part over some slots, the part over these and other
 * slots. */
void kern_part_merge(const float *other, float other_lse, uint32_t head_dim, float *out,
                     float *lse);

#endif
