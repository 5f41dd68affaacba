/* How unlikely the tokens of prompts were, where a plan asks for it (private to model/). */
#ifndef MODEL_NOVELTY_H
#define MODEL_NOVELTY_H

#include "model/forward.h"
#include "scheduler/backend.h"

typedef struct novelty {
    float *logits; /* of a block of rows */
    float *values; /* [rows of the plan that want it] */
    size_t n_logits, n_values;
} novelty;

/* Sets the results' novelty; they are valid until the next call. After the forward pass. */
status novelty_run(novelty *n, forward *f, uint32_t vocab_size, const step_plan *plan,
                   step_seq_result *results);
void novelty_free(novelty *n);

#endif
