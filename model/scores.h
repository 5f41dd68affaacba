/* Scores and novelty of rows, private to model/: how likely the token after each row was, where a
 * plan asks for it. Rows are scored over the thread pool beside their logits, and only scores leave
 * the backend. */
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

/* Sets the results' scores and novelty; they are valid until the next call. Call it after the
 * forward pass. Ranks compute logits together, so a rank that is not asked for scores calls it too,
 * and gets none. */
status row_scores_run(row_scores *r, forward *f, thread_pool *pool, uint32_t vocab_size,
                      bool with_scores, const step_plan *plan, step_seq_result *results);
void row_scores_free(row_scores *r);

#endif
