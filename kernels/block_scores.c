/* Scores of blocks: each piece of a head's blocks is one thread's. */
#include "kernels/context.h"
#include "kernels/represent.h"

#include <assert.h>
#include <string.h>

enum { PIECE = 256 }; /* blocks: 64 KiB of boxes of 64 dims */

/* A head's queries as one vector to multiply with a block's representative. A product with the
 * greater of q * largest and q * smallest is one with `largest` where q > 0 and with `smallest`
 * where q < 0, so even the sum of boxes over query heads needs one product for each block. Positive
 * and negative parts are summed apart, the others together. */
static void fold_queries(const kern_score_batch *batch, const kern_score_item *it, float *folded)
{
    size_t dim = batch->head_dim;
    bool apart = it->smallest != NULL;
    memset(folded, 0, (apart ? 2 : 1) * dim * sizeof *folded);
    for (uint32_t h = 0; h < batch->q_heads; h++) {
        const float *q = it->q + h * dim;
        for (size_t d = 0; d < dim; d++) folded[(apart && !(q[d] >= 0) ? dim : 0) + d] += q[d];
    }
}

typedef struct score_job {
    const kern_context *kc;
    const kern_score_batch *batch;
    size_t pieces; /* of an item */
} score_job;

static void score_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const score_job *job = ctx;
    const kern_score_batch *batch = job->batch;
    float folded[2 * KERN_HEAD_DIM_MAX];
    for (size_t i = from; i < to; i++) {
        const kern_score_item *it = &batch->items[i / job->pieces];
        size_t first = i % job->pieces * PIECE, left = batch->n_blocks - first;
        fold_queries(batch, it, folded);
        const kern_vectors vectors = {.first = it->vectors,
                                      .second = it->smallest,
                                      .stride = batch->stride,
                                      .head_dim = batch->head_dim,
                                      .step = batch->block_pages};
        job->kc->isa.block_scores(&vectors, it->pages + first * batch->block_pages,
                                  left < PIECE ? left : PIECE, folded, it->scores + first);
    }
}

void kern_score_blocks(kern_context *kc, const kern_score_batch *batch)
{
    score_job job = {kc, batch, (batch->n_blocks + PIECE - 1) / PIECE};
    assert(batch->head_dim % KERN_STRIP == 0 && batch->head_dim <= KERN_HEAD_DIM_MAX);
    thread_pool_for(kc->pool, batch->n_items * job.pieces, 1, score_range, &job);
}
