#include "engine/reform/gather.h"

#include "kernels/cosines.h"

#include <stdlib.h>
#include <string.h>

const char *gather_check(const gather_fields *f)
{
    if (f->window % 2 == 0) return "window: must be odd";
    if ((uint64_t)f->first + f->last > f->budget)
        return "budget: must have room for the first and the last tokens";
    return NULL;
}

/* The loop ends at no value, so that compilers make vectors of it. */
bool gather_are_finite(const uint16_t *values, size_t n)
{
    uint16_t wrong = 0;
    for (size_t i = 0; i < n; i++) wrong |= (values[i] & 0x7c00u) == 0x7c00u;
    return wrong == 0;
}

uint32_t gather_background(const gather_fields *f) { return f->budget / f->window + 1; }

status gather_scores(const uint16_t *context, uint32_t n, const uint16_t *query, uint32_t m,
                     uint32_t dim, uint32_t background, float *scores)
{
    return kern_largest_cosines(NULL, context, n, query, m, dim, background, scores, NULL);
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
