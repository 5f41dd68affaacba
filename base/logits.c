#include "base/logits.h"

#include <math.h>
#include <string.h>

#define SHARE_ONE   0x1p39   /* shares of the largest logit */
#define SHARE_FLOOR -28.0f   /* exp of less is no half share */
#define ROUND_SHARE 0x1.8p13 /* added to a double, it rounds it to whole shares */
#define ROUND_ONE   0x1.8p23f

/* Vectors of the compiler, because gcc makes none of loops over lanes or with exponentials. */
enum { QUAD = 4 };
typedef float quad __attribute__((vector_size(16)));
typedef uint32_t quad_bits __attribute__((vector_size(16)));
typedef double quad_doubles __attribute__((vector_size(32)));

/* Quads whose largest logits are apart, because a maximum in order would wait for itself. */
enum { QUADS = 4, LANES = QUADS * QUAD };

static inline float find_largest(const float *logits, uint32_t n, bool *is_nan)
{
    quad most[QUADS], v;
    quad_bits nans = {0};
    uint32_t i = 0;
    for (uint32_t k = 0; k < QUADS; k++)
        most[k] = (quad){-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    for (; i + LANES <= n; i += LANES) {
        for (uint32_t k = 0; k < QUADS; k++) {
            memcpy(&v, logits + i + QUAD * k, sizeof v);
            quad_bits greater = (quad_bits)(v > most[k]);
            most[k] = (quad)((greater & (quad_bits)v) | (~greater & (quad_bits)most[k]));
            nans |= (quad_bits)(v != v);
        }
    }
    float largest = -INFINITY;
    *is_nan = (nans[0] | nans[1] | nans[2] | nans[3]) != 0;
    for (; i < n; i++) {
        largest = logits[i] > largest ? logits[i] : largest;
        *is_nan |= isnan(logits[i]) != 0;
    }
    for (uint32_t k = 0; k < LANES; k++)
        largest = most[k / QUAD][k % QUAD] > largest ? most[k / QUAD][k % QUAD] : largest;
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

/* exp of numbers in [SHARE_FLOOR, 0], to 2^-23 of it. Sums and products alone, and no function of a
 * library, give all machines the same bits. x is n ln 2 + r: a sum with ROUND_ONE has n in its last
 * bits, from where it goes to the exponent. */
static inline quad exp_below(quad x)
{
    quad shifted = x * 0x1.715476p+0f + ROUND_ONE, n = shifted - ROUND_ONE;
    quad r = x - n * 0x1.63p-1f - n * -0x1.bd0106p-13f;
    quad p = r * 0x1.a0d2cep-13f + 0x1.6e879cp-10f;
    p = p * r + 0x1.1112fp-7f;
    p = p * r + 0x1.55549cp-5f;
    p = p * r + 0x1.555554p-3f;
    p = p * r + 0x1p-1f;
    p = p * r * r + r + 1.0f;
    return p * (quad)(((quad_bits)shifted + 127) << 23);
}

/* Adds whole shares, which doubles hold exactly, to `sums`. Those of logits below the floor and of
 * NaN are 0. */
static inline void add_shares(quad logits, float max, float floor, quad_doubles *sums)
{
    quad below = logits - max;
    quad_bits counts = (quad_bits)(below >= SHARE_FLOOR) & (quad_bits)(logits >= floor);
    quad e = (quad)((quad_bits)exp_below(below) & counts);
    *sums += __builtin_convertvector(e, quad_doubles) + ROUND_SHARE - ROUND_SHARE;
}

uint64_t logits_shares(const float *logits, uint32_t n, float max, float floor)
{
    enum { EXACT = 4096 }; /* logits whose shares a double adds up exactly */
    uint64_t shares = 0;
    for (uint32_t at = 0; at < n; at += EXACT) {
        uint32_t end = n - at < EXACT ? n : at + EXACT, i = at;
        quad_doubles sums = {0};
        quad some;
        for (; i + QUAD <= end; i += QUAD) {
            memcpy(&some, logits + i, sizeof some);
            add_shares(some, max, floor, &sums);
        }
        for (; i < end; i++) {
            some = (quad){logits[i], -INFINITY, -INFINITY, -INFINITY};
            add_shares(some, max, floor, &sums);
        }
        shares += (uint64_t)((sums[0] + sums[1] + sums[2] + sums[3]) * SHARE_ONE);
    }
    return shares;
}

uint64_t logits_share(float logit, float max)
{
    quad_doubles sums = {0};
    add_shares((quad){logit, -INFINITY, -INFINITY, -INFINITY}, max, -INFINITY, &sums);
    return (uint64_t)(sums[0] * SHARE_ONE);
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
    enum { RUN = 64 };
    uint32_t n_found = 0;
    for (uint32_t i = 0; n_top && i < n; i++) { /* insertion into a short descending list */
        uint32_t at = n_found;
        bool may_skip = n_found == n_top && i % RUN == 0 && i + RUN <= n;
        if (may_skip && !logits_before(logits_largest(logits + i, RUN), logits[top_ids[at - 1]])) {
            i += RUN - 1;
            continue;
        }
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
    uint32_t n_nan = 0;
    for (uint32_t i = 0; i < n; i++) n_nan += isnan(logits[i]) != 0;
    return (logits_sum){.shares = logits_shares(logits, n, max, -INFINITY),
                        .is_nan = !logits_are_defined(max, n_nan > 0)};
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
