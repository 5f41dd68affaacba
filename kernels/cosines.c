/* The largest cosines of rows with a question: the question's unit vectors are laid out side by
 * side, 16 to a block, then an ISA's inner loop multiplies the rows tile by tile. */
#include "kernels/cosines.h"

#include "base/half.h"
#include "kernels/isa.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

/* A call's arguments and scratch. */
typedef struct cosines_job {
    kern_isa isa;
    const uint16_t *rows;
    size_t n, dim, n_blocks;
    float *question; /* [blocks][dim][16] unit vectors */
    float *less;     /* [blocks][16] what is taken off each column's cosines */
    float *wide;     /* [KERN_COSINE_ROWS][padded dim] */
    float *cosines;  /* [KERN_COSINE_ROWS][16] */
    float *most; /* [16][nth] the largest cosines of a block's columns: heaps, the least first */
} cosines_job;

static size_t padded(size_t dim) { return (dim + LANES - 1) / LANES * LANES; }
static size_t blocks_of(size_t m) { return (m + LANES - 1) / LANES; }

/* 1 / the norm of a row; 0 for a row of zeros. */
static float inverse_norm(const uint16_t *row, size_t dim)
{
    double sum = 0;
    for (size_t d = 0; d < dim; d++) {
        double x = (double)f16_to_f32(row[d]);
        sum += x * x;
    }
    return sum > 0 ? (float)(1 / sqrt(sum)) : 0;
}

/* Columns behind the last row repeat it, which changes no maximum. */
static void lay_out_question(const uint16_t *question, size_t m, size_t dim, float *out)
{
    for (size_t i = 0; i < blocks_of(m) * LANES; i++) {
        const uint16_t *row = question + (i < m ? i : m - 1) * dim;
        float inverse = inverse_norm(row, dim), *to = out + i / LANES * dim * LANES + i % LANES;
        for (size_t d = 0; d < dim; d++) to[d * LANES] = f16_to_f32(row[d]) * inverse;
    }
}

/* Sets `scales` to 1 / the norm of each of `some` rows, which are made f32. */
static void widen(const cosines_job *j, size_t at, size_t some, float *scales)
{
    size_t stride = padded(j->dim);
    j->isa.widen_rows(j->rows + at * j->dim, some, j->dim, stride, j->wide, scales);
    for (size_t i = 0; i < some; i++) scales[i] = scales[i] > 0 ? 1 / sqrtf(scales[i]) : 0;
}

/* Cosines of the rows that are f32 with a block's columns. */
static void multiply(const cosines_job *j, size_t block, size_t some, const float *scales)
{
    const float *columns = j->question + block * j->dim * LANES;
    j->isa.row_products(j->wide, padded(j->dim), some, columns, j->dim, j->cosines);
    for (size_t i = 0; i < some; i++)
        for (size_t l = 0; l < LANES; l++) j->cosines[i * LANES + l] *= scales[i];
}

static size_t tile_at(const cosines_job *j, size_t at)
{
    return j->n - at < KERN_COSINE_ROWS ? j->n - at : KERN_COSINE_ROWS;
}

/* ---- the nth largest ------------------------------------------------------------------------- */

/* Replaces the least number of a heap. */
static void replace_least(float *heap, size_t n, float x)
{
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= x) break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

/* Sets a block's `less` to the nth largest cosine of each of its columns; nth <= n. */
static void find_nth(const cosines_job *j, size_t block, size_t nth)
{
    float *less = j->less + block * LANES, scales[KERN_COSINE_ROWS];
    for (size_t i = 0; i < LANES * nth; i++) j->most[i] = -INFINITY;
    for (size_t l = 0; l < LANES; l++) less[l] = -INFINITY;
    for (size_t at = 0; at < j->n; at += KERN_COSINE_ROWS) {
        size_t some = tile_at(j, at);
        widen(j, at, some, scales);
        multiply(j, block, some, scales);
        for (size_t i = 0; i < some * LANES; i++) {
            size_t l = i % LANES;
            if (!(j->cosines[i] > less[l])) continue;
            replace_least(j->most + l * nth, nth, j->cosines[i]);
            less[l] = j->most[l * nth];
        }
    }
}

/* ---- the largest ----------------------------------------------------------------------------- */

static void take_largest(const cosines_job *j, float *out)
{
    float scales[KERN_COSINE_ROWS];
    for (size_t at = 0; at < j->n; at += KERN_COSINE_ROWS, out += KERN_COSINE_ROWS) {
        size_t some = tile_at(j, at);
        widen(j, at, some, scales);
        for (size_t i = 0; i < some; i++) out[i] = -INFINITY;
        for (size_t b = 0; b < j->n_blocks; b++) {
            const float *less = j->less + b * LANES;
            multiply(j, b, some, scales);
            for (size_t i = 0; i < some * LANES; i++) {
                float x = j->cosines[i] - less[i % LANES];
                if (x > out[i / LANES]) out[i / LANES] = x;
            }
        }
    }
}

status kern_largest_cosines(const char *isa, const uint16_t *rows, size_t n,
                            const uint16_t *question, size_t m, size_t dim, size_t nth, float *out,
                            error *err)
{
    cosines_job j = {.rows = rows, .n = n, .dim = dim, .n_blocks = blocks_of(m)};
    RETURN_IF_ERROR(kern_isa_find(isa, &j.isa, err));
    if (nth > n) nth = n;
    size_t columns = j.n_blocks * LANES;
    j.question = alloc_resize(
        NULL, NULL, columns * (dim + 1) + KERN_COSINE_ROWS * (padded(dim) + LANES) + LANES * nth,
        sizeof(float));
    if (!j.question) return error_set(err, STATUS_NO_MEMORY, "cosines: out of memory");
    j.less = j.question + columns * dim;
    j.wide = j.less + columns;
    j.cosines = j.wide + KERN_COSINE_ROWS * padded(dim);
    j.most = j.cosines + KERN_COSINE_ROWS * LANES;
    lay_out_question(question, m, dim, j.question);
    memset(j.less, 0, columns * sizeof *j.less);
    for (size_t b = 0; nth > 0 && b < j.n_blocks; b++) find_nth(&j, b, nth);
    take_largest(&j, out);
    alloc_free(NULL, j.question);
    return STATUS_IS_OK;
}
