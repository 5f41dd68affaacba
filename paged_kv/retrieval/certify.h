/* certify: a selection that reads as many blocks as its bound on the missed mass needs.
 *
 * What     Given for each candidate a bound on its keys' products with each query head (QUEST's
 *          score), and on demand the softmax sums of some blocks, reads candidates in descending
 *          order of bound until the share of the softmax mass that is not read is at most
 *          spec->epsilon for every query head. Sums are asked for together where bounds alone show
 *          that their blocks are all read, so that ranks exchange them in few rounds.
 * Owner    everything is the caller's.
 * Threads  pure functions, as far as `sums` is one.
 * Errors   those of `sums`.
 * Units    sums are log2 of the sum over a block's slots of 2^(product * scale * log2(e)).
 * Source   docs/retrieval.md, section 8. */
#ifndef PAGED_KV_RETRIEVAL_CERTIFY_H
#define PAGED_KV_RETRIEVAL_CERTIFY_H

#include "paged_kv/retrieval/retrieval.h"

enum { RETRIEVAL_SUMS_MOST = 32 }; // blocks whose sums are asked for at once

typedef struct retrieval_exam {
    uint32_t n_slots; // that the row sees, its own included
    uint32_t n_prompt;
    uint32_t n_heads; // query heads of the KV heads that share the selection
    double scale;     // by which attention multiplies products
    /* [n_heads][candidates of the extent] at least the greatest product of the head's query with a
     * key of the block. */
    const float *const *bounds;
    uint32_t sure; // blocks from here on are read without an exam; n_blocks: none of the candidates
    /* Sets out [n, n_heads] for the slots of n blocks that the row sees. The blocks of each call
     * follow from the exam's other fields and the sums before. */
    status (*sums)(void *ctx, const uint32_t *blocks, uint32_t n, double *out);
    void *ctx;
} retrieval_exam;

/* Bytes of scratch, aligned to 8. */
size_t retrieval_certify_bytes(uint32_t n_candidates, uint32_t n_heads);
/* Sets blocks [*n] to those that the row reads, ascending. *missed is a bound on the share of the
 * mass that any query head misses; it is above spec->epsilon only where spec->top_blocks candidates
 * were read and are too few. */
status retrieval_certify(const retrieval_spec *spec, const retrieval_exam *exam, void *scratch,
                         uint32_t *blocks, uint32_t *n, double *missed);

#endif
