/* Scores of blocks: a piece of the blocks, in some heads, is one thread's. The vectors of a block's
 * heads lie side by side, so heads take turns every few blocks: one after the other they would open
 * every row of the memory again. */
#include "kernels/context.h"
#include "kernels/represent.h"

#include <assert.h>
#include <string.h>

enum {
    PIECE = 256, /* blocks */
    TURN = 4,    /* blocks */
    HEADS = 8,   /* of a piece */
};

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
    size_t pieces; /* of HEADS items */
} score_job;

/* Scores blocks [from, to) in n items. */
static void score_piece(const score_job *job, const kern_score_item *items, size_t n, size_t from,
                        size_t to)
{
    const kern_score_batch *batch = job->batch;
    float folded[HEADS][2 * KERN_HEAD_DIM_MAX];
    for (size_t i = 0; i < n; i++) fold_queries(batch, &items[i], folded[i]);
    for (size_t at = from; at < to; at += TURN) {
        for (size_t i = 0; i < n; i++) {
            const kern_vectors vectors = {.first = items[i].vectors,
                                          .second = items[i].smallest,
                                          .stride = batch->stride,
                                          .head_dim = batch->head_dim,
                                          .step = batch->block_pages};
            job->kc->isa.block_scores(&vectors, items[i].pages + at * batch->block_pages,
                                      to - at < TURN ? to - at : TURN, to - at, folded[i],
                                      items[i].scores + at);
        }
    }
}

static void score_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const score_job *job = ctx;
    const kern_score_batch *batch = job->batch;
    for (size_t unit = from; unit < to; unit++) {
        size_t item = unit / job->pieces * HEADS, left = batch->n_items - item;
        size_t first = unit % job->pieces * PIECE, end = first + PIECE;
        score_piece(job, &batch->items[item], left < HEADS ? left : HEADS, first,
                    end < batch->n_blocks ? end : batch->n_blocks);
    }
}

void kern_score_blocks(kern_context *kc, const kern_score_batch *batch)
{
    score_job job = {kc, batch, (batch->n_blocks + PIECE - 1) / PIECE};
    size_t runs = (batch->n_items + HEADS - 1) / HEADS;
    assert(batch->head_dim % KERN_STRIP == 0 && batch->head_dim <= KERN_HEAD_DIM_MAX);
    thread_pool_for(kc->pool, runs * job.pieces, 1, score_range, &job);
}
