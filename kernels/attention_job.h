/* kernels, private: what the two halves of the attention driver share: attention.c cuts a batch
 * into units and sums up the mass, attention_unit.c walks a unit's pages.
 *
 * The table is also cut into spans of KERN_SPAN slots, anchored at slot 0. Each row starts a new
 * online softmax in every span, and the results of the spans are merged in their order. So several
 * threads may share the spans of one unit without changing a bit. */
#ifndef KERNELS_ATTENTION_JOB_H
#define KERNELS_ATTENTION_JOB_H

#include "kernels/context.h"
#include "kernels/strips.h"

enum { KERN_SPAN = 1024 };

/* The query tokens [row, row + n_rows) of an item, with all its query heads, over the spans
 * [first_span, end_span). */
typedef struct attn_unit {
    uint32_t item, row, n_rows;
    uint32_t first_span, end_span;
    float *parts; /* [spans][rows] attn_part_floats for the results; NULL: not split */
} attn_unit;

typedef struct attn_job {
    kern_context *kc;
    const kern_attn_batch *batch;
    size_t first_item; /* first item of this wave */
    size_t n_items;
    const attn_unit *units;
    const attn_unit *split; /* units cut into pieces, whose parts are merged at the end */
    size_t thread_bytes;    /* scratch for the rows of one thread */
} attn_job;

static inline uint32_t attn_row_end(const kern_attn_item *it, uint32_t i)
{
    return it->first_slot + i + 1;
}

static inline uint32_t attn_row_begin(const kern_attn_item *it, uint32_t i)
{
    uint32_t end = attn_row_end(it, i);
    return it->window > 0 && end > it->window ? end - it->window : 0;
}

/* ---- mass: kept for each row and strip, summed when the rows' normalisers are known ---------- */

/* The sums of p that one row leaves for the mass. */
typedef struct attn_mass {
    float *sums;   /* [blocks * KERN_BLOCK_STRIPS] sums of p, relative to the block's maximum */
    float *maxima; /* [blocks] the maximum of each block */
    float *last;   /* [2] the row's final maximum, 1 / its sum */
} attn_mass;

/* Floats of one row of the item. */
static inline size_t attn_mass_row_floats(const kern_attn_item *it)
{
    return kern_blocks_of(attn_row_end(it, it->n_rows - 1)) * (KERN_BLOCK_STRIPS + 1) + 2;
}

/* The mass of the mass_row-th row among the item's last mass_rows. */
attn_mass attn_mass_of_row(const attn_job *job, size_t item, uint32_t head, uint32_t mass_row);

/* ---- units ----------------------------------------------------------------------------------- */

/* Floats that a row leaves after a span: its sums, its maximum, its output. */
static inline size_t attn_part_floats(size_t head_dim) { return KERN_STRIP + 16 + head_dim; }

/* Bytes of a thread's scratch for units of at most n rows (tokens x query heads). */
size_t attn_unit_bytes(size_t n, size_t head_dim);
void attn_unit_run(const attn_job *job, const attn_unit *unit, uint8_t *scratch);
/* Merges the parts of all spans of a split unit, in order, into the outputs. */
void attn_unit_merge(const attn_job *job, const attn_unit *unit, uint8_t *scratch);

#endif
