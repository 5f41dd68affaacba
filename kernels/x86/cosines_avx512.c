/* Products of a text's rows with a question's, for AVX-512. */
#include "base/half.h"
#include "kernels/isa.h"
#include "kernels/x86/math_avx512.h"

enum { LANES = 16, ROWS = 16 };

static inline __m512 load(const uint16_t *x, size_t n)
{
    __mmask16 mask = n < LANES ? (__mmask16)((1u << n) - 1) : 0xffff;
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, x));
}

static void widen_rows(const uint16_t *rows, size_t n, size_t dim, size_t stride, float *out,
                       float *squares)
{
    for (size_t i = 0; i < n; i++, rows += dim, out += stride) {
        __m512 lanes = _mm512_setzero_ps();
        for (size_t d = 0; d < dim; d += LANES) {
            __m512 x = load(rows + d, dim - d);
            _mm512_storeu_ps(out + d, x);
            lanes = _mm512_fmadd_ps(x, x, lanes);
        }
        squares[i] = sum_avx512(lanes);
    }
}

static inline __attribute__((always_inline)) void take_rows(const float *rows, size_t stride,
                                                            size_t n_rows, const float *question,
                                                            size_t dim, float *out)
{
    __m512 sums[ROWS];
    for (size_t r = 0; r < n_rows; r++) sums[r] = _mm512_setzero_ps();
    for (size_t d = 0; d < dim; d++) {
        __m512 q = _mm512_loadu_ps(question + d * LANES);
        for (size_t r = 0; r < n_rows; r++)
            sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(rows[r * stride + d]), q, sums[r]);
    }
    for (size_t r = 0; r < n_rows; r++) _mm512_storeu_ps(out + r * LANES, sums[r]);
}

static void row_products(const float *rows, size_t stride, size_t n, const float *question,
                         size_t dim, float *out)
{
    size_t i = 0;
    for (; i + ROWS <= n; i += ROWS)
        take_rows(rows + i * stride, stride, ROWS, question, dim, out + i * LANES);
    for (; i < n; i++) take_rows(rows + i * stride, stride, 1, question, dim, out + i * LANES);
}

void kern_cosines_fill_avx512(kern_isa *isa)
{
    isa->widen_rows = widen_rows;
    isa->row_products = row_products;
}
