/* How likely the tokens that followed rows were, where a plan asks for scores or for novelty
 * (private to model/). The rows are scored where their logits are, over the pool: only scores
 * leave. */
#ifndef MODEL_SCORES_H
#define MODEL_SCORES_H

#include "model/forward.h"
#include "scheduler/backend.h"

typedef struct row_scores {
    float *logits;        /* of a block of rows */
    step_sample *samples; /* [rows of the plan that are scored] */
    float *novelty;       /* [rows of the plan that measure it] */
    size_t n_logits, n_samples, n_novelty;
} row_scores;

/* Sets the results' scores and novelty; they are valid until the next call. After the forward pass.
 * Ranks compute logits together: one that is not asked for scores takes part, and has none. */
status row_scores_run(row_scores *r, forward *f, thread_pool *pool, uint32_t vocab_size,
                      bool with_scores, const step_plan *plan, step_seq_result *results);
void row_scores_free(row_scores *r);

#endif
