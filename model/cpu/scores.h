/* Scores and novelty of rows (private to model/): how likely the token after each row was, where a
 * plan asks for it. Rows are scored on the thread pool where their logits lie, and only scores
 * leave the backend. */
#ifndef MODEL_CPU_SCORES_H
#define MODEL_CPU_SCORES_H

#include "backend/backend.h"
#include "model/cpu/forward.h"

typedef struct row_scores {
    float *logits;        /* logits of one block of rows */
    step_sample *samples; /* one for each row of the plan that is scored */
    float *novelty;       /* one for each row of the plan that measures novelty */
    size_t n_logits, n_samples, n_novelty;
} row_scores;

/* Sets the results' scores and novelty, which are valid until the next call. It is called after the
 * forward pass, where share i has the rows from first_rows[i] on. Ranks compute logits
 * together, so a rank without scores calls it too. */
status row_scores_run(row_scores *r, forward *f, thread_pool *pool, uint32_t vocab_size,
                      bool with_scores, const step_plan *plan, const uint32_t *first_rows,
                      step_seq_result *results);
void row_scores_free(row_scores *r);

#endif
