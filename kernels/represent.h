/* represent: what stands for a block's keys when a query is compared with the block.
 *
 * What     sums, maxima and boxes of the keys of a block, dim by dim, and the products of queries
 *          with them, by which retrieval scores blocks (docs/retrieval.md, section 3).
 * Owner    scratch is the context's; everything else the caller's.
 * Threads  the rules of kernels.h.
 * Shapes   a block is n_pages pages of a table with all slots written; representatives are bf16.
 * Rounding a sum is rounded to nearest even; a largest value is rounded up and a smallest one down,
 *          so that a box still holds all keys.
 * Invariance   a representative depends on the block's keys alone, a score on the queries and the
 *          representative. In formats without grids the bits are those of every ISA.
 * Errors   STATUS_NO_MEMORY when scratch cannot grow. Arguments are the caller's duty
 *          (asserted). */
#ifndef KERNELS_REPRESENT_H
#define KERNELS_REPRESENT_H

#include "kernels/kernels.h"

typedef enum kern_represent_kind {
    KERN_REPRESENT_SUM, // the sum over the marked slots
    KERN_REPRESENT_MAX, // the largest value of each dim
    KERN_REPRESENT_BOX, // the largest and the smallest value of each dim
} kern_represent_kind;

typedef struct kern_represent_item {
    const uint32_t *pages; // [n_pages] of the block
    const uint8_t *tiles;  // tile of page p at tiles + p * page_stride; grids: as stored
    const uint64_t *slots; // SUM: bit i = slot i of the block is marked; NULL: all are
    uint16_t *out;         // [head_dim]
    uint16_t *smallest;    // BOX [head_dim]
} kern_represent_item;

typedef struct kern_represent_batch {
    kern_kv_shape shape;
    kern_represent_kind kind;
    size_t page_stride; // bytes of a page
    uint32_t n_pages;   // of a block
    const kern_represent_item *items;
    size_t n_items;
} kern_represent_batch;

status kern_represent(kern_context *kc, const kern_represent_batch *batch);

/* The blocks that one KV head scores. */
typedef struct kern_score_item {
    const float *q;           // [q_heads, head_dim] after RoPE
    const uint32_t *pages;    // [n_blocks * block_pages]; a block's vectors lie at its first page
    const uint16_t *vectors;  // sums or largest values of page p at vectors + p * stride
    const uint16_t *smallest; // a box's other half, likewise; NULL: blocks have no boxes
    float *scores;            // [n_blocks]
} kern_score_item;

typedef struct kern_score_batch {
    uint32_t head_dim;    // a multiple of 16 up to 256
    uint32_t q_heads;     // query heads of a KV head
    uint32_t block_pages; // pages of a block
    uint32_t n_blocks;
    size_t stride; // elements between the vectors of two pages
    const kern_score_item *items;
    size_t n_items;
} kern_score_batch;

/* Sets scores to the sum over query heads of
 *     boxes   the sum over dims of the greater of q * largest and q * smallest: no key of the block
 *             has a greater product with q
 *     else    q . vector
 * in f32. Queries are summed first, positive and negative parts apart where there are boxes. Then
 * lane l of 16 is one chain of fused multiply-adds over dims l, l + 16, … of `vectors`, then of
 * `smallest`, and lanes l and l + 8 are added, then l and l + 4, + 2, + 1. */
void kern_score_blocks(kern_context *kc, const kern_score_batch *batch);

#endif
