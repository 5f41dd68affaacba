/* When a policy selects, what it must know for that, and how much it may keep. */
#include "paged_kv/retention/method.h"
#include <math.h>

uint32_t retention_next_point(const retention_policy *policy, uint32_t n_prompt, uint32_t from)
{
    return retention_schedules[policy->schedule].next_point(n_prompt, from);
}

measure_spec retention_measure(const retention_policy *policy)
{
    measure_kind kind = retention_scores[policy->score].measure;
    if (kind == MEASURE_NONE) return (measure_spec){.kind = MEASURE_NONE};
    return (measure_spec){.kind = kind, .rows = policy->window, .layer_step = policy->reuse_layers};
}

/* A ratio is a decimal that a user wrote: where its product with n differs from a whole number
 * by less than binary fractions can tell, that number is meant. */
static uint32_t budget_tokens(const retention_policy *policy, uint32_t n_prompt)
{
    if (policy->tokens > 0) return policy->tokens;
    double product = policy->ratio * n_prompt, whole = nearbyint(product);
    return (uint32_t)(fabs(product - whole) < 1e-6 ? whole : floor(product));
}

static uint32_t pages_for(uint32_t tokens, uint32_t page_tokens)
{
    return tokens / page_tokens + (tokens % page_tokens != 0);
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

status retention_budget_for(const retention_policy *policy, uint32_t page_tokens, uint32_t n_prompt,
                            retention_budget *out, error *err)
{
    uint32_t all = pages_for(n_prompt, page_tokens);
    *out = (retention_budget){.pages = all, .protected_pages = all, .kept_pages = all};
    if (policy->schedule == RETENTION_SCHEDULE_NEVER) return STATUS_IS_OK;

    uint32_t sinks = smaller(pages_for(policy->sinks, page_tokens), all);
    /* The pages that the window touches; without a window the last page, when partial. */
    uint32_t last = all - (n_prompt - smaller(policy->window, n_prompt)) / page_tokens;
    uint32_t budget = budget_tokens(policy, n_prompt) / page_tokens;
    out->protected_pages = smaller(all - last, sinks) + last;
    if (policy->tokens > 0 && budget < out->protected_pages) {
        return error_set(
            err, STATUS_INVALID,
            "retention.tokens is %u: below the %u protected pages of %u tokens (sinks %u, "
            "window %u, the last partial page)",
            policy->tokens, out->protected_pages, page_tokens, policy->sinks, policy->window);
    }
    uint32_t least = out->protected_pages + 1;
    out->kept_pages = smaller(all, budget > least ? budget : least);
    out->raised = budget < out->kept_pages;
    return STATUS_IS_OK;
}
