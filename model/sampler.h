/* sampler: logits to tokens (private to model/).
 *
 * The order is vLLM's: raw logprobs are taken first, then min_tokens, logit_bias, penalties, greedy
 * argmax below temperature 1e-5, else temperature, min_p, top_k, top_p, and a Gumbel-max draw whose
 * noise is Philox(key = (seed, choice), counter = (sample index, token id)): a draw depends on
 * nothing but its own request. Among equal logits the lowest id wins. */
#ifndef MODEL_SAMPLER_H
#define MODEL_SAMPLER_H

#include "scheduler/backend.h"

typedef struct sampler sampler;

status sampler_create(uint32_t max_seqs, uint32_t vocab_size, thread_pool *pool, sampler **out);
void sampler_destroy(sampler *s);

/* Takes over a sequence's parameters and history; replaces what the number meant before. */
status sampler_open(sampler *s, const step_open *open);

/* Draws from one row of logits. */
typedef struct sampler_draw {
    uint32_t seq;
    uint32_t choice; // key of the random draw; differs from the sequence's own when n > 1
    uint32_t sample_index;
    bool own;            // the token goes into the sequence's history
    const float *logits; // [vocab_size], not changed
    step_sample *out;
} sampler_draw;

/* All draws of a step, over the pool. */
void sampler_run(sampler *s, const sampler_draw *draws, size_t n);

/* ---- for who makes the draws elsewhere ---- */

/* One logit that a draw changes before temperature. */
typedef struct sampler_edit {
    uint32_t token;
    uint32_t outputs; // of one seen: times sampled
    float bias;
} sampler_edit;

/* First the banned ones, which are -inf, then those with a bias, then those with penalties. */
typedef struct sampler_edits {
    uint32_t n_banned, n_biased, n_seen;
} sampler_edits;

/* The draw's parameters, its random key, its edits (NULL: only how many). */
const sample_params *sampler_describe(const sampler *s, const sampler_draw *d, uint64_t *key,
                                      sampler_edit *edits, sampler_edits *n);
/* What was drawn joins the histories. */
void sampler_told(sampler *s, const sampler_draw *draws, size_t n);

#endif
