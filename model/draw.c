#include "model/draw.h"

#include "base/logits.h"
#include "base/rng_blocks.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* ---- sets of candidates ---------------------------------------------------------------------- */

int candidate_order(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Moves the k likeliest of n to the front, in no order, by quickselect. k >= 1. */
static void candidates_select(candidate *c, size_t n, size_t k)
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

enum { NOISE_BITS = 23, RUN_TOKENS = 64 };

/* The noise of a token whose random number has these upper bits. Half a unit is added to them,
 * which is exact in f32, so that u is never 0 and never 1. */
static float noise_of(uint32_t bits)
{
    float u = ((float)bits + 0.5f) * 0x1p-23f;
    return -logf(-logf(u));
}

/* The least bits with which a logit of at most `most` may reach `best`, or 2^NOISE_BITS where none
 * do. noise = -log(-log(u)) < -log(1 - u), so that 1 - u is below exp(most - best); what is taken
 * off the difference is more than rounding takes. */
static uint32_t least_bits(float most, float best)
{
    const double one = 2 << NOISE_BITS; /* 1 - u = (one - 1 - 2 * bits) / one */
    double need = (double)best - (double)most - fabs((double)best) * 0x1p-22 - 1e-5;
    if (!(need > 0)) return 0; /* also where both are infinite */
    double rest = one * exp(-need);
    return rest < 1 ? 1u << NOISE_BITS : (uint32_t)((one - 1 - rest) / 2);
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

/* A run of tokens that are drawn from together. */
typedef struct noise_run {
    draw_noise noise;
    const float *logits; /* those of tokens from `first` on */
    uint32_t first, n;
    float most, floor; /* the largest logit, and the least that may come */
} noise_run;

/* Goes over a run by blocks of four random numbers, few of which have as many bits as it takes. */
static candidate draw_run(const noise_run *r, candidate best)
{
    uint32_t least = least_bits(r->most, best.logit), end = r->first + r->n;
    uint32_t at = r->first / 4 * 4, n_blocks = (end - at + 3) / 4;
    philox_block blocks[RUN_TOKENS / 4], *block = blocks;
    philox4x32_blocks(r->noise.key, r->noise.sample_index, at / 4, n_blocks, blocks);
    for (; at < end; at += 4, block++) {
        const uint32_t *v = block->v;
        for (uint32_t k = 0; k < 4; k++) block->v[k] >>= 32 - NOISE_BITS;
        if (v[0] < least && v[1] < least && v[2] < least && v[3] < least) continue;
        for (uint32_t id = at < r->first ? r->first : at; id < at + 4 && id < end; id++) {
            if (v[id % 4] < least || !(r->logits[id - r->first] >= r->floor)) continue;
            candidate one = {r->logits[id - r->first] + noise_of(v[id % 4]), id};
            if (!wins(one, best)) continue;
            best = one;
            least = least_bits(r->most, best.logit);
        }
    }
    return best;
}

candidate draw_gumbel_row(draw_noise noise, const float *logits, uint32_t first, uint32_t n,
                          float floor, uint32_t largest)
{
    if (n == 0 || !(logits[largest] >= floor && logits[largest] > -INFINITY))
        return (candidate){-INFINITY, DRAW_NO_TOKEN};
    if (!(floor > -FLT_MAX)) floor = -FLT_MAX;
    /* The noise of the largest comes first, because most tokens can then not reach its sum. */
    candidate best = draw_gumbel(noise, &(candidate){logits[largest], first + largest}, 1);
    for (uint32_t at = 0, n_run; at < n; at += n_run) {
        uint32_t left = RUN_TOKENS - (first + at) % RUN_TOKENS;
        n_run = n - at < left ? n - at : left;
        noise_run r = {noise, logits + at, first + at, n_run, 0, floor};
        r.most = logits_largest(r.logits, n_run);
        bool may_win = r.most >= floor && least_bits(r.most, best.logit) < 1u << NOISE_BITS;
        if (may_win) best = draw_run(&r, best);
    }
    return best;
}
