#include "base/logits.h"

#include <math.h>

#define SHARE_ONE   0x1p39 /* shares of the largest logit */
#define SHARE_FLOOR -28.0f /* exp of less is no half share */

/* In lanes, which compilers make vectors of: a maximum in order would wait for itself. */
float logits_largest(const float *logits, uint32_t n)
{
    enum { LANES = 16 };
    float most[LANES];
    uint32_t i = 0;
    for (uint32_t k = 0; k < LANES; k++) most[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++)
            most[k] = logits[i + k] > most[k] ? logits[i + k] : most[k];
    for (; i < n; i++) most[0] = logits[i] > most[0] ? logits[i] : most[0];
    for (uint32_t k = 1; k < LANES; k++) most[0] = most[k] > most[0] ? most[k] : most[0];
    return most[0];
}

uint32_t logits_argmax(const float *logits, uint32_t n)
{
    float largest = logits_largest(logits, n);
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] == largest) return i;
    return n - 1;
}

uint64_t logits_share(float logit, float max)
{
    float below = logit - max;
    return below >= SHARE_FLOOR ? (uint64_t)(int64_t)((double)expf(below) * SHARE_ONE + 0.5) : 0;
}

uint32_t logits_greater(const float *logits, uint32_t n, float than)
{
    uint32_t greater = 0;
    for (uint32_t i = 0; i < n; i++) greater += logits[i] > than;
    return greater;
}

bool logits_before(float a, float b) { return a > b || (isnan(b) && !isnan(a)); }

uint32_t logits_top(const float *logits, uint32_t n, uint32_t n_top, uint32_t *top_ids)
{
    uint32_t n_found = 0;
    for (uint32_t i = 0; n_top && i < n; i++) { /* insertion into a short descending list */
        uint32_t at = n_found;
        if (at == n_top && !logits_before(logits[i], logits[top_ids[at - 1]])) continue;
        if (at < n_top) n_found++;
        else at--;
        while (at > 0 && logits_before(logits[i], logits[top_ids[at - 1]])) {
            top_ids[at] = top_ids[at - 1];
            at--;
        }
        top_ids[at] = i;
    }
    return n_found;
}

logits_sum logits_add_up(const float *logits, uint32_t n, float max)
{
    logits_sum sum = {.is_nan = !isfinite(max)};
    for (uint32_t i = 0; i < n; i++) {
        sum.shares += logits_share(logits[i], max);
        sum.is_nan |= isnan(logits[i]);
    }
    return sum;
}

float logits_logprob(float logit, float max, logits_sum sum)
{
    if (sum.is_nan) return NAN;
    double lse = (double)max + log((double)sum.shares / SHARE_ONE);
    return (float)((double)logit - lse);
}

logit_score logits_score(const float *logits, uint32_t n, uint32_t id, uint32_t n_top,
                         uint32_t *top_ids, float *top_logprobs)
{
    float max = logits[logits_argmax(logits, n)];
    logits_sum sum = logits_add_up(logits, n, max);
    logit_score s = {.logprob = logits_logprob(logits[id], max, sum),
                     .rank = logits_greater(logits, n, logits[id]) + 1,
                     .n_top = logits_top(logits, n, n_top, top_ids)};
    for (uint32_t i = 0; i < s.n_top; i++)
        top_logprobs[i] = logits_logprob(logits[top_ids[i]], max, sum);
    return s;
}
