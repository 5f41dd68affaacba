#include "base/logits.h"

#include <math.h>
#include <string.h>

#define SHARE_ONE   0x1p39 /* shares of the largest logit */
#define SHARE_FLOOR -28.0f /* exp of less is no half share */

/* Vectors of the compiler, because gcc makes none of loops over lanes. There are several, because a
 * maximum in order would wait for itself. */
enum { QUADS = 4, LANES = QUADS * 4 };
typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_bits __attribute__((vector_size(16)));

static inline float find_largest(const float *logits, uint32_t n, bool *is_nan)
{
    quad most[QUADS], v;
    quad_bits nans = {0};
    uint32_t i = 0;
    for (uint32_t k = 0; k < QUADS; k++)
        most[k] = (quad){-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    for (; i + LANES <= n; i += LANES) {
        for (uint32_t k = 0; k < QUADS; k++) {
            memcpy(&v, logits + i + 4 * k, sizeof v);
            quad_bits greater = v > most[k];
            most[k] = (quad)((greater & (quad_bits)v) | (~greater & (quad_bits)most[k]));
            nans |= v != v;
        }
    }
    float largest = -INFINITY;
    *is_nan = (nans[0] | nans[1] | nans[2] | nans[3]) != 0;
    for (; i < n; i++) {
        largest = logits[i] > largest ? logits[i] : largest;
        *is_nan |= isnan(logits[i]) != 0;
    }
    for (uint32_t k = 0; k < LANES; k++)
        largest = most[k / 4][k % 4] > largest ? most[k / 4][k % 4] : largest;
    return largest;
}

float logits_largest(const float *logits, uint32_t n)
{
    bool is_nan;
    return find_largest(logits, n, &is_nan);
}

logits_peak logits_find_peak(const float *logits, uint32_t n)
{
    logits_peak peak = {.index = n - 1};
    peak.value = find_largest(logits, n, &peak.is_nan);
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] == peak.value) {
            peak.index = i;
            break;
        }
    return peak;
}

bool logits_are_defined(float largest, bool is_nan) { return !is_nan && isfinite(largest); }

uint32_t logits_argmax(const float *logits, uint32_t n)
{
    return logits_find_peak(logits, n).index;
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
    logits_sum sum = {.is_nan = !logits_are_defined(max, false)};
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
