/* The logprobs of a prompt: rows of logits come with its chunks, and score the token after each. */
#include "engine/internal.h"

#include <math.h>
#include <stdlib.h>

/* One block for all four lists; made with the first rows, so that waiting requests cost nothing. */
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

bool prompt_take_logits(engine_stream *s, uint32_t position, uint32_t n_rows, const float *logits,
                        uint32_t vocab_size)
{
    prompt_scores *p = &s->scores;
    if (!p->logprobs && !make_room(s)) return false;
    uint32_t n_top = (uint32_t)s->request.prompt_logprobs;
    for (uint32_t i = 0; i < n_rows; i++, logits += vocab_size) {
        uint32_t at = position + i + 1;
        if (at >= s->n_tokens) break; /* the last row's next token is no prompt's */
        size_t top = (size_t)at * n_top;
        logit_score score = logits_score(logits, vocab_size, s->tokens[at], n_top, p->top_ids + top,
                                         p->top_logprobs + top);
        p->logprobs[at] = score.logprob;
        p->ranks[at] = score.rank;
    }
    p->complete |= position + n_rows >= s->n_tokens;
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
