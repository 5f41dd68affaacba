/* gather: which tokens of a long text are read again for a question.
 *
 * What     compares the embedding of each context token with those of the question's tokens, and
 *          returns the tokens to recompute (docs/reform.md, section 3). A token's score says how
 *          far its cosine with a token of the question stands out from those of the other context
 *          tokens; the scores are max-pooled over neighbours; the first and the last tokens always
 *          stay; the rest of the budget goes to the highest pooled scores.
 * Owner    the caller owns everything; memory for scores is taken and freed within a call.
 * Threads  pure functions of the calling thread: none of the arguments is kept.
 * Shapes   embeddings are f16 [tokens, dim], row-major, as step_seq_result.embeddings gives them.
 * Order    the same numbers give the same tokens. Among equal pooled scores the earlier token is
 *          taken.
 * Errors   fields that cannot be met: STATUS_INVALID; STATUS_NO_MEMORY. */
#ifndef ENGINE_REFORM_GATHER_H
#define ENGINE_REFORM_GATHER_H

#include "base/base.h"

typedef struct gather_fields {
    uint32_t budget; // tokens, the first and last ones among them; >= first + last
    uint32_t window; // of the max-pool, in tokens: odd
    uint32_t first;  // tokens at the beginning that always stay
    uint32_t last;   // tokens at the end that always stay
} gather_fields;

/* Says what is wrong with the fields; NULL when nothing is. */
const char *gather_check(const gather_fields *fields);

/* Whether none of these n values of embeddings is infinite or NaN. */
bool gather_are_finite(const uint16_t *values, size_t n);

/* One more than the places that the budget has room for: a token of the question whose cosines are
 * as high at so many places cannot say which of them to read. */
uint32_t gather_background(const gather_fields *fields);

/* Sets scores [n] to the largest, over the rows of query [m, dim], of the cosine of each row of
 * context [n, dim] with that row, less the row's `background`-th largest cosine with the context
 * (its smallest where n is less; nothing where background is 0). m and dim > 0. The cosine with a
 * vector of zeros is 0. */
status gather_scores(const uint16_t *context, uint32_t n, const uint16_t *query, uint32_t m,
                     uint32_t dim, uint32_t background, float *scores);

/* Writes the tokens to recompute, ascending, to out, which has room for min(n, budget); *n_out says
 * how many they are. A text of at most `budget` tokens stays whole. scores [n]: of gather_scores,
 * no NaN. */
status gather_select(const float *scores, uint32_t n, const gather_fields *fields, uint32_t *out,
                     uint32_t *n_out);

#endif
