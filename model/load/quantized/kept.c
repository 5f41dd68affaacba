/* E4M3 weights that a device multiplies by: their values stay as they are, and their scales become
 * f32, which holds all types of scales exactly, one for each row and group of columns. */
#include "model/load/quantized/scheme.h"

#include <math.h>
#include <stdatomic.h>

enum { ROWS_AT_ONCE = 16 };
#define E4M3_MOST 448.0f

bool quantized_can_keep(const quantized_weight *w, size_t n, uint8_t *group)
{
    static const uint8_t groups[] = {128, 64, 32};
    if (w->unpack != quantized_unpack_e4m3 || w->zero || w->in[QUANTIZED_ORDER].data) return false;
    *group = 0;
    if (w->n_groups == 1) return true;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        *group = groups[i];
        if (w->group_cols % *group == 0 && (n == w->cols || n % *group == 0)) return true;
    }
    return false;
}

uint8_t quantized_join_groups(uint8_t a, uint8_t b)
{
    if (a == 0 || b == 0) return a + b;
    return a < b ? a : b;
}

typedef struct keep_job {
    const quantized_kept *k;
    _Atomic size_t bad;
} keep_job;

static bool keep_row(const quantized_kept *k, size_t i)
{
    const quantized_weight *w = k->w;
    size_t row = k->row + i, groups = (k->n + k->group - 1) / k->group;
    const uint8_t *in = w->in[QUANTIZED_VALUES].data + row * w->cols + k->col;
    uint8_t *out = k->values + i * k->n;
    bool good = true;
    memcpy(out, in, k->n);
    for (size_t c = 0; c < k->n; c++) good &= (out[c] & 0x7f) != 0x7f;
    for (size_t g = 0; g < groups; g++) {
        float scale = quantized_scale(w, row, (k->col + g * k->group) / w->group_cols);
        good &= isfinite(scale * E4M3_MOST) != 0;
        k->scales[i * groups + g] = scale;
    }
    return good;
}

static void keep_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    keep_job *j = ctx;
    (void)thread;
    for (size_t i = from; i < to; i++) {
        size_t first = atomic_load(&j->bad);
        if (keep_row(j->k, i)) continue;
        while (i < first && !atomic_compare_exchange_weak(&j->bad, &first, i)) continue;
    }
}

bool quantized_keep_rows(const quantized_kept *k, thread_pool *pool, size_t *bad)
{
    keep_job j = {.k = k};
    atomic_init(&j.bad, SIZE_MAX);
    if (pool) thread_pool_for(pool, k->rows, ROWS_AT_ONCE, keep_range, &j);
    else keep_range(&j, 0, k->rows, 0);
    size_t first = atomic_load(&j.bad);
    *bad = k->row + first;
    return first == SIZE_MAX;
}
