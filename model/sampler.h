/* sampler: logits to tokens (private to model/).
 *
 * The order is vLLM's: logits of tokens outside the mask become -inf, raw logprobs are taken, then
 * min_tokens, logit_bias and penalties are applied. Below temperature 1e-5 the largest logit wins;
 * else temperature, min_p, top_k and top_p follow, and a Gumbel-max draw whose noise is
 * Philox(key = (seed, choice), counter = (sample index, token id)), so that a draw depends on its
 * own request alone. Among equal logits the lowest id wins. draw.h has the arithmetic of sets and
 * noise. */
#ifndef MODEL_SAMPLER_H
#define MODEL_SAMPLER_H

#include "backend/backend.h"

typedef struct sampler sampler;

status sampler_create(uint32_t max_seqs, uint32_t vocab_size, thread_pool *pool, sampler **out);
void sampler_destroy(sampler *s);

/* Sets a sequence's parameters and history, in place of those that its number had before. */
status sampler_open(sampler *s, const step_open *open);
/* Adds the tokens of a plan's shares that no draw gave (step_seq.n_uncounted) to the histories.
 * plan_check has passed the plan. */
void sampler_count_given(sampler *s, const step_plan *plan);

/* One draw from one row of logits. */
typedef struct sampler_draw {
    uint32_t seq;
    uint32_t choice; // key of the random draw; differs from the sequence's own when n > 1
    uint32_t sample_index;
    bool own;             // the token joins the sequence's history
    const float *logits;  // [vocab_size], left unchanged
    const uint32_t *mask; // step_seq.mask; NULL: all tokens
    step_sample *out;
} sampler_draw;

/* Makes all draws of a step on the thread pool. */
void sampler_run(sampler *s, const sampler_draw *draws, size_t n);

/* ---- for draws from parts of a row ----------------------------------------------------------- */

static inline bool sampler_is_greedy(const sample_params *p) { return p->temperature < 1e-5f; }

/* How many of the likeliest tokens a draw lists, where it asks for logprobs. */
static inline uint32_t sampler_n_top(const sample_params *p)
{
    return p->n_logprobs < SAMPLE_LOGPROBS_MAX ? (uint32_t)p->n_logprobs : SAMPLE_LOGPROBS_MAX;
}

/* Writes the logits of tokens [first, first + n), which is what d->logits has here, as the draw
 * compares them: masked, edited, and divided by the temperature unless the draw is greedy. */
void sampler_edited(const sampler *s, const sampler_draw *d, uint32_t first, uint32_t n,
                    float *out);
/* Those that the draw's logprobs are of: d->logits, or in `room` their masked copy. */
const float *sampler_raw(const sampler_draw *d, uint32_t first, uint32_t n, float *room);
/* The least edited logit that min_p leaves, where this is the largest. */
float sampler_floor(const sample_params *p, float largest);

/* ---- for a backend that draws elsewhere ------------------------------------------------------ */

/* One logit that a draw changes before temperature. */
typedef struct sampler_edit {
    uint32_t token;
    uint32_t outputs; // how often a seen token was sampled
    float bias;
} sampler_edit;

/* How many edits ban a token (-inf), add a bias and apply penalties; edits lie in this order. */
typedef struct sampler_edits {
    uint32_t n_banned, n_biased, n_seen;
} sampler_edits;

/* Returns the draw's parameters; sets its random key, its edits (unless NULL) and their numbers. */
const sample_params *sampler_describe(const sampler *s, const sampler_draw *d, uint64_t *key,
                                      sampler_edit *edits, sampler_edits *n);
/* Adds the tokens that were drawn elsewhere to the histories. */
void sampler_count_drawn(sampler *s, const sampler_draw *draws, size_t n);

#endif
