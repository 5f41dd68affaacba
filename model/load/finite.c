#include "model/load/finite.h"

#include <stdatomic.h>
#include <string.h>

enum { ROWS_AT_ONCE = 16 };

typedef struct job {
    const finite_rows *rows;
    _Atomic size_t first; /* first row found that is not finite */
} job;

/* An exponent of all ones is an infinity or a NaN. The data need not be aligned. */
static bool halves_are_finite(const uint8_t *data, size_t n, uint16_t exponent)
{
    unsigned bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, data + 2 * i, sizeof v);
        bad |= (v & exponent) == exponent;
    }
    return bad == 0;
}

static bool floats_are_finite(const uint8_t *data, size_t n)
{
    const uint32_t exponent = 0x7f800000;
    unsigned bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, data + 4 * i, sizeof v);
        bad |= (v & exponent) == exponent;
    }
    return bad == 0;
}

static bool row_is_finite(const finite_rows *r, size_t row)
{
    const uint8_t *data = r->data + (row * r->stride + r->col) * dtype_bytes(r->type);
    switch (r->type) {
    case DTYPE_BF16: return halves_are_finite(data, r->n, 0x7f80);
    case DTYPE_F16: return halves_are_finite(data, r->n, 0x7c00);
    case DTYPE_F32: return floats_are_finite(data, r->n);
    default: return true; /* integers are finite */
    }
}

static void check_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    job *j = ctx;
    (void)thread;
    for (size_t i = from; i < to; i++) {
        if (row_is_finite(j->rows, i)) continue;
        size_t first = atomic_load(&j->first);
        while (i < first && !atomic_compare_exchange_weak(&j->first, &first, i)) continue;
        return;
    }
}

bool rows_are_finite(const finite_rows *rows, thread_pool *pool, size_t *row)
{
    job j = {.rows = rows};
    atomic_init(&j.first, SIZE_MAX);
    if (pool) thread_pool_for(pool, rows->rows, ROWS_AT_ONCE, check_range, &j);
    else check_range(&j, 0, rows->rows, 0);
    *row = atomic_load(&j.first);
    return *row == SIZE_MAX;
}
