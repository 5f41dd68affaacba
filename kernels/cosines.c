/* The largest cosines of rows with a question: the question's unit vectors are laid out side by
 * side, then an ISA's inner loop takes the rows tile by tile. */
#include "kernels/cosines.h"

#include "base/half.h"
#include "kernels/isa.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

typedef struct cosines_scratch {
    float *question; /* [blocks][dim][16] unit vectors */
    float *wide;     /* [KERN_COSINE_ROWS][padded dim] */
} cosines_scratch;

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

static void scale(float *cosines, const float *squares, size_t n)
{
    for (size_t i = 0; i < n; i++) cosines[i] *= squares[i] > 0 ? 1 / sqrtf(squares[i]) : 0;
}

static void compute(const kern_isa *isa, const cosines_scratch *s, const uint16_t *rows, size_t n,
                    size_t m, size_t dim, float *out)
{
    for (size_t at = 0; at < n; at += KERN_COSINE_ROWS) {
        size_t some = n - at < KERN_COSINE_ROWS ? n - at : KERN_COSINE_ROWS;
        float squares[KERN_COSINE_ROWS];
        isa->widen_rows(rows + at * dim, some, dim, padded(dim), s->wide, squares);
        isa->largest_products(s->wide, padded(dim), some, s->question, blocks_of(m), dim, out + at);
        scale(out + at, squares, some);
    }
}

status kern_largest_cosines(const char *isa, const uint16_t *rows, size_t n,
                            const uint16_t *question, size_t m, size_t dim, float *out, error *err)
{
    kern_isa table = {0};
    RETURN_IF_ERROR(kern_isa_find(isa, &table, err));
    size_t laid_out = blocks_of(m) * dim * LANES;
    cosines_scratch s = {0};
    s.question = alloc_resize(NULL, NULL, laid_out + KERN_COSINE_ROWS * padded(dim), sizeof(float));
    if (!s.question) return error_set(err, STATUS_NO_MEMORY, "cosines: out of memory");
    s.wide = s.question + laid_out;
    lay_out_question(question, m, dim, s.question);
    compute(&table, &s, rows, n, m, dim, out);
    alloc_free(NULL, s.question);
    return STATUS_IS_OK;
}
