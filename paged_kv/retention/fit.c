/* Defaults that fit the model's positions. A policy whose positions close up takes at most `tokens`
 * and a chunk of them. Where a request gives neither, these are three quarters at most: the rest is
 * for the answer, and for what the next request of a session adds to it. */
#include "paged_kv/retention/parse.h"

/* Lowers a value that the request did not give, to 1 or more. */
static void lower(const parsing *p, const char *key, uint32_t most, uint32_t *value)
{
    if (*value > most && !has_member(p->json, key)) *value = larger(1, most);
}

/* The positions that `used` of them leave. */
static uint32_t left_of(uint32_t positions, uint32_t used)
{
    return positions > used ? positions - used : 0;
}

void fit_defaults(const parsing *p, retention_policy *policy)
{
    uint32_t all = p->limits->max_positions;
    if (all == 0) return;
    lower(p, "gather_tokens", all / 2, &policy->gather_tokens);
    if (!policy->contiguous || policy->schedule != RETENTION_SCHEDULE_CHUNK) return;
    lower(p, "sinks", all / 16, &policy->sinks);
    lower(p, "window", all / 16, &policy->window);
    lower(p, "tokens", all / 2, &policy->tokens);
    if (has_member(p->json, "recurrent_chunk")) {
        uint32_t least = policy->sinks + policy->window + 1;
        lower(p, "tokens", larger(left_of(all, policy->recurrent_chunk), least), &policy->tokens);
    }
    uint32_t beside = left_of(all, policy->tokens);
    lower(p, "recurrent_chunk", beside > 0 ? smaller(all / 4, beside) : all / 4,
          &policy->recurrent_chunk);
}
