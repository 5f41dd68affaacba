/* key_sums: the softmax sums of single pages, by which the mass of a part of a table is known.
 *
 * What     for one page and each query head of a KV head: log2 of the sum over the page's visible
 *          slots of 2^(score), where a score is q . k times scale times log2(e). Sums of several
 *          pages are added by the caller.
 * Owner    everything is the caller's.
 * Threads  not threaded; calls with scratch of their own may run at the same time.
 * Shapes   scratch [kern_key_sums_bytes], aligned to 64.
 * Errors   none. Arguments are the caller's duty (asserted). */
#ifndef KERNELS_KEY_SUMS_H
#define KERNELS_KEY_SUMS_H

#include "kernels/kernels.h"

typedef struct kern_key_query {
    const float *q; // [q_heads, head_dim] after RoPE, without scale
    uint32_t q_heads;
    float scale;
} kern_key_query;

size_t kern_key_sums_bytes(const kern_kv_shape *shape, uint32_t q_heads);
/* Lays the queries out in scratch, for the calls after it. */
void kern_key_sums_begin(const kern_kv_shape *shape, const kern_key_query *query, void *scratch);
/* Sets out [q_heads] for the first n_slots slots of the page, at least one, whose tile has the
 * shape; `wide`: the tile is one of kern_kv_wide(shape). f32 products of the unrounded queries,
 * whatever precision the attention has. */
void kern_key_sums(const kern_context *kc, const kern_kv_shape *shape, const kern_key_query *query,
                   const uint8_t *tile, bool wide, uint32_t n_slots, void *scratch, double *out);

#endif
