/* represent: what stands for a page's keys when a query is compared with the page.
 *
 * What     sums, maxima and boxes of the keys in a tile, dim by dim, by which retrieval scores
 *          blocks (docs/retrieval.md, section 3).
 * Owner    scratch is the context's; everything else the caller's.
 * Threads  the rules of kernels.h.
 * Shapes   all slots of a tile are written; representatives are f32.
 * Invariance   a representative depends on the tile alone. In formats without grids its bits are
 *          those of every ISA.
 * Errors   STATUS_NO_MEMORY when scratch cannot grow. Arguments are the caller's duty
 *          (asserted). */
#ifndef KERNELS_REPRESENT_H
#define KERNELS_REPRESENT_H

#include "kernels/kernels.h"

typedef enum kern_represent_kind {
    KERN_REPRESENT_SUM, // [head_dim] the sum over the marked slots
    KERN_REPRESENT_MAX, // [head_dim] the largest value of each dim
    KERN_REPRESENT_BOX, // [2, head_dim] the largest, then the smallest value of each dim
} kern_represent_kind;

typedef struct kern_represent_item {
    const uint8_t *tile; // formats with grids: as stored
    kern_represent_kind kind;
    uint64_t slots[4]; // SUM: bit i = slot i of the page is marked
    float *out;
} kern_represent_item;

status kern_represent(kern_context *kc, const kern_kv_shape *shape,
                      const kern_represent_item *items, size_t n_items);

#endif
