/* The logprobs of a prompt: each row of its chunks comes back with a score of the token after
 * it. */
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
