/* draw: one token from edited logits (private to model/).
 *
 * The set of tokens that may come is found by the total order of their pairs (logit, id): logits
 * descend, ids ascend. Each step gives the same set and the same token whatever the order of its
 * input, so that parts of a row can be reduced one by one. */
#ifndef MODEL_DRAW_H
#define MODEL_DRAW_H

#include "base/base.h"

enum { DRAW_NO_TOKEN = UINT32_MAX };

typedef struct candidate {
    float logit; // also a logit with noise
    uint32_t id;
} candidate;

/* For qsort: < 0 where a is likelier than b, or has the lower id of two that are as likely. */
int candidate_order(const void *a, const void *b);

/* Lists the tokens of logits [n] at or above `floor`, without those of -inf or NaN; ids count from
 * `first`. Returns how many there are. */
size_t candidates_collect(const float *logits, uint32_t first, uint32_t n, float floor,
                          candidate *out);
/* Lists the `most` likeliest of logits [n], likeliest first, without those of -inf or NaN. Returns
 * how many there are. out [2 * most]. */
size_t candidates_collect_top(const float *logits, uint32_t first, uint32_t n, size_t most,
                              candidate *out);
/* Moves the k likeliest and all that are as likely as the k-th to the front; k 0: all. Returns how
 * many these are. */
size_t candidates_keep_top_k(candidate *c, size_t n, uint32_t k);
/* Moves the smallest set of the likeliest whose mass reaches top_p to the front, at least one,
 * sorted. Sorts only as many candidates as that takes. Returns how many these are. */
size_t candidates_keep_top_p(candidate *c, size_t n, float top_p);

/* Where a draw's noise comes from. Each token has its own, whatever other tokens are drawn from. */
typedef struct draw_noise {
    uint64_t key;
    uint32_t sample_index;
} draw_noise;

/* A token drawn from softmax(logit), as the largest logit + g with Gumbel noise g = -log(-log(u)),
 * the lowest id of equal ones; in `logit` is that sum. DRAW_NO_TOKEN where n is 0. */
candidate draw_gumbel(draw_noise noise, const candidate *c, size_t n);
/* Draws as draw_gumbel from what candidates_collect would list of a row. `largest` is the index of
 * the largest logit. It computes the noise of those tokens alone that may still win. */
candidate draw_gumbel_row(draw_noise noise, const float *logits, uint32_t first, uint32_t n,
                          float floor, uint32_t largest);

#endif
