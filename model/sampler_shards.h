/* sampler_shards: draws of ranks that share the vocabulary (private to model/).
 *
 * What     each rank reduces its own tokens' logits to a few words a draw, one gather joins those
 *          of all draws, and every rank decides from the same words. That is repeated for draws
 *          which the first words leave open. Token, logprob, rank and likeliest tokens have the
 *          bits that sampler_run gives from whole rows.
 * Rounds   one for temperature without limits, for greedy draws, and for top_k where the candidates
 *          suffice; two for min_p alone and for top_p; one more for logprobs. Draws whose sets are
 *          wider than the candidates of the ranks, and those alone, are made from whole rows, which
 *          are gathered for them.
 * Words    in the order of enum stage in the .c file. All sums are of integers, and all choices are
 *          by total orders.
 * Threads  one thread of each rank; every rank makes the same calls with the same draws.
 * Errors   those of the group, or STATUS_NO_MEMORY. */
#ifndef MODEL_SAMPLER_SHARDS_H
#define MODEL_SAMPLER_SHARDS_H

#include "comm/comm.h"
#include "model/sampler.h"

/* Most candidates of one rank for one draw. */
enum { SHARDS_CANDIDATES = 128 };

typedef struct sampler_shards_options {
    sampler *sampler; /* has opened this rank's sequences; borrowed, as all here is */
    thread_pool *pool;
    comm *group; /* its buffers are host memory */
    uint32_t max_draws;
    uint32_t vocab_size;
    uint32_t slice; /* tokens of each rank, in rank order; the last ones may have fewer or none */
} sampler_shards_options;

typedef struct sampler_shards sampler_shards;

status sampler_shards_create(const sampler_shards_options *options, sampler_shards **out);
void sampler_shards_destroy(sampler_shards *s);

/* Makes all draws of a step. draws[i].logits has this rank's tokens alone. */
status sampler_shards_run(sampler_shards *s, const sampler_draw *draws, size_t n);

#endif
