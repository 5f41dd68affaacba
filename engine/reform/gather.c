#include "engine/reform/gather.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Columns of query vectors side by side, rows of context at a time, and rows that are f32 at a
 * time. */
enum { LANES = 16, PAIR = 2, TILE = 64 };

const char *gather_check(const gather_fields *f)
{
    if (f->window % 2 == 0) return "window: must be odd";
    if ((uint64_t)f->first + f->last > f->budget)
        return "budget: must have room for the first and the last tokens";
    return NULL;
}

/* ---- cosines --------------------------------------------------------------------------------- */

typedef struct cosines {
    const uint16_t *context;
    uint32_t m, dim, n_blocks;
    float *queries; /* [n_blocks, dim, LANES] unit vectors, padded with zeros */
    float *rows;    /* [TILE, dim] */
    float inverse[TILE];
} cosines;

/* A number of f16 as f32. An infinity or NaN, which no embedding has, becomes a large number. */
static float widen(uint16_t h)
{
    uint32_t bits = (uint32_t)(h & 0x8000) << 16 | (uint32_t)(h & 0x7fff) << 13;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f * 0x1p112f;
}

/* Widens a row and returns 1 / its norm; 0 for a row of zeros. */
static float widen_row(const uint16_t *from, uint32_t dim, float *to)
{
    double sum = 0;
    for (uint32_t d = 0; d < dim; d++) to[d] = widen(from[d]);
    for (uint32_t d = 0; d < dim; d++) sum += (double)to[d] * (double)to[d];
    return sum > 0 ? (float)(1 / sqrt(sum)) : 0;
}

static void lay_out_queries(cosines *c, const uint16_t *query)
{
    for (uint32_t i = 0; i < c->m; i++) {
        float scale = widen_row(query + (size_t)i * c->dim, c->dim, c->rows);
        float *to = c->queries + (size_t)(i / LANES) * c->dim * LANES + i % LANES;
        for (uint32_t d = 0; d < c->dim; d++) to[(size_t)d * LANES] = c->rows[d] * scale;
    }
}

/* Dot products of two rows with a block of queries; each is summed over the dims in ascending
 * order. */
static void multiply(const float *restrict a, const float *restrict b, const float *restrict q,
                     uint32_t dim, float *restrict out)
{
    float first[LANES] = {0}, second[LANES] = {0};
    for (uint32_t d = 0; d < dim; d++) {
        const float *column = q + (size_t)d * LANES;
        for (uint32_t l = 0; l < LANES; l++) first[l] += a[d] * column[l];
        for (uint32_t l = 0; l < LANES; l++) second[l] += b[d] * column[l];
    }
    memcpy(out, first, sizeof first);
    memcpy(out + LANES, second, sizeof second);
}

static float largest(const float *x, uint32_t n, float most)
{
    for (uint32_t i = 0; i < n; i++)
        if (x[i] > most) most = x[i];
    return most;
}

/* Scores the n rows of context from `from` on; n <= TILE. */
static void score_tile(cosines *c, uint32_t from, uint32_t n, float *scores)
{
    for (uint32_t i = 0; i < n; i++) {
        c->inverse[i] =
            widen_row(c->context + (size_t)(from + i) * c->dim, c->dim, c->rows + i * c->dim);
        scores[i] = -INFINITY;
    }
    for (uint32_t block = 0; block < c->n_blocks; block++) {
        const float *q = c->queries + (size_t)block * c->dim * LANES;
        uint32_t left = c->m - block * LANES, some = left < LANES ? left : LANES;
        for (uint32_t i = 0; i < n; i += PAIR) {
            float dots[PAIR * LANES];
            uint32_t other = i + 1 < n ? i + 1 : i;
            multiply(c->rows + i * c->dim, c->rows + other * c->dim, q, c->dim, dots);
            scores[i] = largest(dots, some, scores[i]);
            scores[other] = largest(dots + LANES, some, scores[other]);
        }
    }
    for (uint32_t i = 0; i < n; i++) scores[i] *= c->inverse[i];
}

status gather_scores(const uint16_t *context, uint32_t n, const uint16_t *query, uint32_t m,
                     uint32_t dim, float *scores)
{
    cosines c = {.context = context, .m = m, .dim = dim, .n_blocks = (m - 1) / LANES + 1};
    c.queries = calloc((size_t)c.n_blocks * dim, LANES * sizeof *c.queries);
    c.rows = calloc((size_t)TILE * dim, sizeof *c.rows);
    bool ok = c.queries && c.rows;
    if (ok) lay_out_queries(&c, query);
    for (uint32_t from = 0; ok && from < n; from += TILE)
        score_tile(&c, from, n - from < TILE ? n - from : TILE, scores + from);
    free(c.queries);
    free(c.rows);
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "scores of tokens to gather");
}

/* ---- selection ------------------------------------------------------------------------------- */

/* A score as an integer of the same order; -0 and 0 are equal. */
static uint32_t key_of(float score)
{
    uint32_t bits;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

/* Sets keys [n] to those of the largest score within half a window of each token. queue [n] holds
 * tokens whose scores fall. */
static void pool_scores(const float *scores, uint32_t n, uint32_t window, uint32_t *queue,
                        uint32_t *keys)
{
    uint32_t head = 0, tail = 0, half = window / 2, next = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (; next < n && next - i <= half; next++) {
            while (tail > head && scores[queue[tail - 1]] <= scores[next]) tail--;
            queue[tail++] = next;
        }
        while (queue[head] + (uint64_t)half < i) head++;
        keys[i] = key_of(scores[queue[head]]);
    }
}

/* The k-th largest of keys [n], 1 <= k <= n; *above: how many are larger. */
static uint32_t find_cut(const uint32_t *keys, uint32_t n, uint32_t k, uint32_t *counts,
                         uint32_t *above)
{
    uint32_t cut = 0;
    *above = 0;
    for (int shift = 16; shift >= 0; shift -= 16) {
        memset(counts, 0, ((size_t)1 << 16) * sizeof *counts);
        for (uint32_t i = 0; i < n; i++)
            if (shift == 16 || keys[i] >> 16 == cut >> 16) counts[keys[i] >> shift & 0xffff]++;
        uint32_t digit = 0xffff;
        while (*above + counts[digit] < k) *above += counts[digit--];
        cut |= digit << shift;
    }
    return cut;
}

/* Takes `k` of the tokens between the first and the last ones. */
static uint32_t take(const uint32_t *keys, uint32_t n, const gather_fields *f, uint32_t k,
                     uint32_t *counts, uint32_t *out)
{
    uint32_t above = 0, taken = 0, end = n - f->last;
    uint32_t cut = k ? find_cut(keys + f->first, end - f->first, k, counts, &above) : 0;
    uint32_t equals = k ? k - above : 0;
    for (uint32_t i = 0; i < n; i++) {
        bool stays = i < f->first || i >= end || (k > 0 && keys[i] > cut);
        if (!stays && equals > 0 && keys[i] == cut) {
            stays = true;
            equals--;
        }
        if (stays) out[taken++] = i;
    }
    return taken;
}

status gather_select(const float *scores, uint32_t n, const gather_fields *fields, uint32_t *out,
                     uint32_t *n_out)
{
    const char *wrong = gather_check(fields);
    if (wrong) return status_make(STATUS_INVALID, wrong);
    *n_out = n < fields->budget ? n : fields->budget;
    if (n <= fields->budget) {
        for (uint32_t i = 0; i < n; i++) out[i] = i;
        return STATUS_IS_OK;
    }
    uint32_t *keys = calloc(n, sizeof *keys), *queue = calloc(n, sizeof *queue);
    uint32_t *counts = calloc((size_t)1 << 16, sizeof *counts);
    bool ok = keys && queue && counts;
    if (ok) {
        pool_scores(scores, n, fields->window, queue, keys);
        take(keys, n, fields, fields->budget - fields->first - fields->last, counts, out);
    }
    free(keys);
    free(queue);
    free(counts);
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "tokens to gather");
}
