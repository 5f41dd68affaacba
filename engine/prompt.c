/* The rows of a prompt give scores and vectors besides K and V: each row of its chunks comes back
 * with a score of the token after it, and each chunk with a pooled vector of its hidden states. */
#include "engine/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Allocates all four lists in one block, with the first rows, so that waiting requests cost
 * nothing. */
static bool make_room(engine_stream *s)
{
    prompt_scores *p = &s->scores;
    size_t n = s->n_tokens, n_top = (size_t)s->request.prompt_logprobs;
    p->logprobs = calloc(n, (1 + n_top) * (sizeof(float) + sizeof(uint32_t)));
    if (!p->logprobs) return false;
    p->top_logprobs = p->logprobs + n;
    p->ranks = (uint32_t *)(p->top_logprobs + n * n_top);
    p->top_ids = p->ranks + n;
    p->logprobs[0] = NAN;
    return true;
}

bool prompt_take_scores(engine_stream *s, uint32_t n_rows, const step_sample *scores)
{
    prompt_scores *p = &s->scores;
    if (!p->logprobs && !make_room(s)) return false;
    uint32_t most = (uint32_t)s->request.prompt_logprobs;
    for (uint32_t i = 0; i < n_rows; i++) {
        uint32_t at = p->n_rows + i + 1, n_top = scores[i].n_top < most ? scores[i].n_top : most;
        if (at >= s->n_tokens) break; /* the token after the last row is generated */
        size_t top = (size_t)at * most;
        p->logprobs[at] = scores[i].logprob;
        p->ranks[at] = scores[i].rank;
        memcpy(p->top_ids + top, scores[i].top_ids, n_top * sizeof *p->top_ids);
        memcpy(p->top_logprobs + top, scores[i].top_logprobs, n_top * sizeof *p->top_logprobs);
    }
    p->n_rows += n_rows;
    p->complete |= p->n_rows >= s->n_tokens;
    return true;
}

engine_prompt engine_stream_prompt(const engine_stream *s)
{
    engine_prompt out = {.tokens = s->tokens, .n_tokens = s->n_tokens};
    const prompt_scores *p = &s->scores;
    if (!p->complete) return out;
    out.logprobs = p->logprobs;
    out.ranks = p->ranks;
    out.n_top = (uint32_t)s->request.prompt_logprobs;
    out.top_ids = p->top_ids;
    out.top_logprobs = p->top_logprobs;
    return out;
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* The mean over all tokens, or the last token's state, which is a mean over one. */
static bool finish_pooled(engine_stream *s)
{
    prompt_pooled *p = &s->pooled;
    p->values = alloc_resize(NULL, NULL, p->hidden, sizeof *p->values);
    if (!p->values) return false;
    for (uint32_t i = 0; i < p->hidden; i++) p->values[i] = (float)(p->sum[i] / p->n_rows);
    return true;
}

bool prompt_take_pooled(engine_stream *s, uint32_t n_rows, const float *values, uint32_t hidden)
{
    prompt_pooled *p = &s->pooled;
    bool is_last = s->request.pooling == POOLING_LAST;
    if (!p->sum) p->sum = calloc(hidden, sizeof *p->sum);
    if (!p->sum) return false;
    p->hidden = hidden;
    p->n_rows += is_last ? 1 : n_rows;
    for (uint32_t i = 0; i < hidden; i++) p->sum[i] += (double)values[i];
    return (!is_last && p->n_rows < s->n_tokens) || p->values || finish_pooled(s);
}

const float *engine_stream_pooled(const engine_stream *s, uint32_t *n)
{
    *n = s->pooled.hidden;
    return s->pooled.values;
}
