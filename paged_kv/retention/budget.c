/* How much a table may keep. */
#include "paged_kv/retention/method.h"
#include <math.h>
#include <string.h>

/* A ratio is a decimal that a user wrote. Where its product with n differs from a whole number by
 * no more than the error of binary fractions, that number is meant. */
uint32_t retention_floor(double x)
{
    double whole = nearbyint(x);
    return (uint32_t)(fabs(x - whole) < 1e-6 ? whole : floor(x));
}

/* The budget B: the tokens that the policy keeps of a prompt. */
static uint32_t budget_tokens(const retention_policy *policy, uint32_t n_prompt)
{
    return policy->tokens > 0 ? policy->tokens : retention_floor(policy->ratio * n_prompt);
}

uint32_t retention_window_of(const retention_policy *policy, uint32_t n_prompt)
{
    uint32_t half = policy->window_half ? budget_tokens(policy, n_prompt) / 2 : INT32_MAX;
    return smaller(policy->window, half);
}

uint32_t retention_mean_chunks(const retention_policy *policy, uint32_t n_prompt, uint32_t chunks)
{
    double share = policy->tokens > 0 ? (double)policy->tokens / n_prompt : policy->ratio;
    return share >= 1 ? chunks : larger(1, retention_floor(chunks * share));
}

/* ---- schedule `input` ------------------------------------------------------------------------ */

uint32_t retention_input_tokens(const retention_policy *policy, uint32_t n_prompt)
{
    if (policy->schedule != RETENTION_SCHEDULE_INPUT) return n_prompt;
    return smaller(n_prompt, larger(budget_tokens(policy, n_prompt), policy->sinks + 1));
}

bool retention_cut_raises(const retention_policy *policy, uint32_t n_prompt)
{
    uint32_t left = retention_input_tokens(policy, n_prompt);
    return left < n_prompt && left > budget_tokens(policy, n_prompt);
}

void retention_cut(const retention_policy *policy, const uint32_t *prompt, uint32_t n_prompt,
                   uint32_t *out)
{
    uint32_t left = retention_input_tokens(policy, n_prompt);
    uint32_t first = left < n_prompt ? policy->sinks : left, last = left - first;
    memcpy(out, prompt, first * sizeof *out);
    memcpy(out + first, prompt + n_prompt - last, last * sizeof *out);
}

/* ---- allocators ------------------------------------------------------------------------------ */

static uint32_t uniform_tokens(const retention_policy *policy, uint32_t n_prompt, uint32_t index,
                               uint32_t n_scopes)
{
    (void)index;
    (void)n_scopes;
    return budget_tokens(policy, n_prompt);
}

static uint32_t uniform_least(const retention_policy *policy, uint32_t n_prompt)
{
    return budget_tokens(policy, n_prompt);
}

/* PyramidKV: tokens beside the window, of the lowest (max) and the highest scope (min). slope_of
 * returns false where the budget is uniform. */
typedef struct slope {
    int64_t window, max, min;
} slope;

static bool slope_of(const retention_policy *policy, uint32_t n_prompt, slope *out)
{
    int64_t w = retention_window_of(policy, n_prompt), t = n_prompt;
    int64_t beside = (int64_t)budget_tokens(policy, n_prompt) - w;
    if (beside <= 0 || t < 2 * beside) return false;
    int64_t min = (int64_t)floor((double)beside / (double)policy->beta), max = 2 * beside - min;
    if (max >= t - w) {
        max = t - w;
        min = 2 * beside - max;
    }
    *out = (slope){.window = w, .max = max, .min = min};
    return true;
}

static uint32_t pyramid_tokens(const retention_policy *policy, uint32_t n_prompt, uint32_t index,
                               uint32_t n_scopes)
{
    slope s;
    if (n_scopes == 1 || !slope_of(policy, n_prompt, &s)) return budget_tokens(policy, n_prompt);
    int64_t steps = n_scopes - 1, fall = s.max - s.min;
    int64_t step = fall >= 0 ? fall / steps : -((-fall + steps - 1) / steps);
    return (uint32_t)(s.window + s.max - index * step);
}

static uint32_t pyramid_least(const retention_policy *policy, uint32_t n_prompt)
{
    slope s;
    uint32_t budget = budget_tokens(policy, n_prompt);
    if (!slope_of(policy, n_prompt, &s)) return budget;
    return smaller(budget, (uint32_t)(s.window + (s.max < s.min ? s.max : s.min)));
}

const retention_allocator_row retention_allocators[] = {
    [RETENTION_ALLOCATOR_UNIFORM] = {.option = {"uniform", "every table keeps equally many"},
                                     .tokens = uniform_tokens,
                                     .least = uniform_least},
    [RETENTION_ALLOCATOR_PYRAMID] = {.option = {"pyramid", "more for lower layers, less for upper "
                                                           "ones"},
                                     .tokens = pyramid_tokens,
                                     .least = pyramid_least,
                                     .sloping = true},
    [RETENTION_ALLOCATOR_ADAPTIVE] = {.option = {"adaptive", "the heads of a layer compete (scope "
                                                             "head)"},
                                      .tokens = uniform_tokens,
                                      .least = uniform_least,
                                      .joint = true},
    [RETENTION_ALLOCATOR_HYBRID] = {.option = {"hybrid", "chunks in the lower half of the layers, "
                                                         "tokens in the upper half"},
                                    .tokens = uniform_tokens,
                                    .least = uniform_least},
    [RETENTION_ALLOCATOR_PYRAMID_ADAPTIVE] = {.option = {"pyramid-adaptive",
                                                         "the heads of a layer compete for what "
                                                         "pyramid gives the layer (scope head)"},
                                              .tokens = pyramid_tokens,
                                              .least = pyramid_least,
                                              .joint = true,
                                              .sloping = true},
};
