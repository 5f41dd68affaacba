#include "model/draw.h"

#include "base/logits.h"

#include <math.h>
#include <stdlib.h>

/* ---- sets of candidates ---------------------------------------------------------------------- */

int candidate_order(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Quickselect. */
void candidates_select(candidate *c, size_t n, size_t k)
{
    size_t from = 0, to = n;
    while (to - from > 1) {
        candidate pivot = c[from + (to - from - 1) / 2]; /* not the last: both sides shrink */
        size_t i = from, j = to - 1;
        for (;;) {
            while (candidate_order(&c[i], &pivot) < 0) i++;
            while (candidate_order(&c[j], &pivot) > 0) j--;
            if (i >= j) break;
            candidate t = c[i];
            c[i++] = c[j];
            c[j--] = t;
        }
        size_t split = j + 1;
        if (k < split) to = split;
        else if (k > split) from = split;
        else return;
    }
}

size_t candidates_collect(const float *logits, uint32_t first, uint32_t n, float floor,
                          candidate *out)
{
    size_t m = 0;
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] >= floor && logits[i] > -INFINITY)
            out[m++] = (candidate){logits[i], first + i};
    return m;
}

/* Fills the room twice as long as asked for, and halves what is in it when it is full. A token as
 * likely as the last one of a half comes after it, because its id is higher. */
size_t candidates_collect_top(const float *logits, uint32_t first, uint32_t n, size_t most,
                              candidate *out)
{
    float above = -INFINITY;
    size_t m = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!(logits[i] > above)) continue;
        out[m++] = (candidate){logits[i], first + i};
        if (m < 2 * most) continue;
        candidates_select(out, m, most);
        m = most;
        above = out[0].logit;
        for (size_t k = 1; k < m; k++)
            if (out[k].logit < above) above = out[k].logit;
    }
    qsort(out, m, sizeof *out, candidate_order);
    return m < most ? m : most;
}

size_t candidates_keep_top_k(candidate *c, size_t n, uint32_t k)
{
    if (k == 0 || k >= n) return n;
    candidates_select(c, n, k);
    float kth = c[0].logit;
    for (size_t i = 1; i < k; i++)
        if (c[i].logit < kth) kth = c[i].logit;
    size_t kept = k;
    for (size_t i = k; i < n; i++)
        if (c[i].logit == kth) c[kept++] = c[i];
    return kept;
}

size_t candidates_keep_top_p(candidate *c, size_t n, float top_p)
{
    if (top_p >= 1 || n <= 1) return n;
    float max = c[0].logit;
    for (size_t i = 1; i < n; i++)
        if (c[i].logit > max) max = c[i].logit;
    uint64_t total = 0, before = 0;
    for (size_t i = 0; i < n; i++) total += logits_share(c[i].logit, max);
    double target = (double)top_p * (double)total;
    size_t sorted = 0;
    for (size_t want = 256;; want *= 4) {
        size_t end = want < n ? want : n;
        if (end < n) candidates_select(c + sorted, n - sorted, end - sorted);
        qsort(c + sorted, end - sorted, sizeof *c, candidate_order);
        for (; sorted < end; sorted++) {
            if (sorted > 0 && (double)before >= target) return sorted;
            before += logits_share(c[sorted].logit, max);
        }
        if (end == n) return n;
    }
}

/* ---- noise ----------------------------------------------------------------------------------- */

enum { NOISE_BITS = 23 };

/* The noise of a token whose random number has these upper bits. Half a unit is added to them,
 * which is exact in f32, so that u is never 0 and never 1. */
static float noise_of(uint32_t bits)
{
    float u = ((float)bits + 0.5f) * 0x1p-23f;
    return -logf(-logf(u));
}

/* No less than noise_of(bits): -log(-log(u)) < -log(1 - u), and the power of two at or below 1 - u
 * is read off the bits. The factor is above log(2) by more than rounding takes away. */
static float noise_at_most(uint32_t bits)
{
    uint32_t rest = (2u << NOISE_BITS) - 1 - 2 * bits; /* 1 - u = rest / 2^24 */
    return 0.6932f * (float)(__builtin_clz(rest) - (31 - NOISE_BITS - 1));
}

static bool wins(candidate a, candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

candidate draw_gumbel(draw_noise noise, const candidate *c, size_t n)
{
    candidate best = {-INFINITY, DRAW_NO_TOKEN};
    philox_block block = {{0}};
    uint64_t block_at = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        uint64_t at = c[i].id / 4;
        if (at != block_at) block = philox4x32(noise.key, noise.sample_index, at);
        block_at = at;
        candidate one = {c[i].logit + noise_of(block.v[c[i].id % 4] >> 9), c[i].id};
        if (wins(one, best)) best = one;
    }
    return best;
}

/* Whether one of a few tokens may come and win, should its noise be the largest that there is. */
static bool may_win(const float *logits, uint32_t n, float floor, float best)
{
    const float most = noise_at_most((1u << NOISE_BITS) - 1);
    bool may = false;
    for (uint32_t i = 0; i < n; i++) may |= logits[i] >= floor && logits[i] + most >= best;
    return may;
}

candidate draw_gumbel_row(draw_noise noise, const float *logits, uint32_t first, uint32_t n,
                          float floor, uint32_t largest)
{
    if (n == 0 || !(logits[largest] >= floor && logits[largest] > -INFINITY))
        return (candidate){-INFINITY, DRAW_NO_TOKEN};
    /* The noise of the largest comes first, because most tokens can then not reach its sum. */
    candidate best = draw_gumbel(noise, &(candidate){logits[largest], first + largest}, 1);
    for (uint32_t from = 0, to; from < n; from = to) {
        uint64_t at = (first + from) / 4;
        uint32_t left = 4 - (first + from) % 4;
        to = n - from < left ? n : from + left;
        if (!may_win(logits + from, to - from, floor, best.logit)) continue;
        philox_block block = philox4x32(noise.key, noise.sample_index, at);
        for (uint32_t i = from; i < to; i++) {
            uint32_t bits = block.v[(first + i) % 4] >> 9;
            if (!(logits[i] >= floor && logits[i] + noise_at_most(bits) >= best.logit)) continue;
            candidate one = {logits[i] + noise_of(bits), first + i};
            if (wins(one, best)) best = one;
        }
    }
    return best;
}
