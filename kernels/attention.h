/* kernels, private: what the attention driver (attention.c) shares with its inner loops.
 *
 * Slots of a table are read in strips of 16, four strips to a block, anchored at slot 0.
 * page_tokens is a multiple of 16, so a strip never straddles two pages and results do not depend
 * on page_tokens.
 *
 *     block   64 slots: one step of the online softmax
 *     span    1024 slots: each span has an online softmax of its own (attention_job.h)
 *     strip   16 slots of one page
 *     tile    at most attn_rows rows (a row is one query token and one query head)
 *
 * For each row: score = one chain of multiply-adds over head_dim ascending; block maximum; p =
 * 2^(score - m); output = one chain over the slots that the row sees, ascending. So the bits depend
 * on the row alone. Scores are in units of log2: the driver multiplies q by scale * log2(e). In
 * bf16 dot products (kern_attn_dots in isa.h) each step of a chain takes a pair of dims or of
 * slots, and a slot that the row does not see adds an exact 0. */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

enum {
    KERN_STRIP = 16,
    KERN_BLOCK_STRIPS = 4,
    KERN_BLOCK = KERN_STRIP * KERN_BLOCK_STRIPS,
    KERN_ATTN_ROWS = 12, /* most rows of any ISA's tile */
    /* Floats from row to row of q. A constant, so that addresses need no register per row; no power
     * of two, so that the rows of a tile do not share one set of the cache. */
    KERN_ATTN_Q_STRIDE = 272,
    KERN_HEAD_DIM_MAX = 256,
    KERN_ATTN_INT_STRIDE = 2 * KERN_ATTN_Q_STRIDE, /* q as 16-bit integers */
};

/* int8 pages: each row of q becomes integers up to KERN_ATTN_INT_MAX, and so does each row of p
 * times its slots' scales of V, block by block. A row whose values are all below
 * KERN_ATTN_INT_SMALLEST becomes zeros. 256 products of 16 and 8 bits stay under 2^31. */
#define KERN_ATTN_INT_MAX      32767.0f
#define KERN_ATTN_INT_SMALLEST 0x1p-100f

/* K or V of one block: where each strip begins. A step leads to the next pair of dims in K, and to
 * the next pair of slots in V. */
typedef struct kern_attn_strips {
    const uint8_t *at[KERN_BLOCK_STRIPS];
    const uint8_t *next[KERN_BLOCK_STRIPS];   /* the next block's strips, to prefetch */
    size_t step;                              /* bytes from pair to pair */
    size_t half;                              /* f32 only: bytes between the two of a pair */
    const uint8_t *scales[KERN_BLOCK_STRIPS]; /* int8 only: bf16 [16], a strip's slots */
} kern_attn_strips;

typedef struct kern_attn_row {
    _Alignas(64) float sum[KERN_STRIP]; /* sums of p by slot % 16, relative to max */
    float max;                          /* largest score so far */
    float fix;                          /* factor for the output so far */
    float q_scale;                      /* scale of q when it is in integers */
    uint32_t lo, hi;                    /* slots of this block that the row sees; lo == hi: none */
    float *mass;                        /* [KERN_BLOCK_STRIPS] sum of p for each strip, or NULL */
} kern_attn_row;

/* Every number of rows gets its own code: X(1) X(2) … */
#define KERN_ATTN_EACH_6(X)  X(1) X(2) X(3) X(4) X(5) X(6)
#define KERN_ATTN_EACH_12(X) KERN_ATTN_EACH_6(X) X(7) X(8) X(9) X(10) X(11) X(12)

#endif
