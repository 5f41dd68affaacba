/* Products of a text's rows with a question's, for AVX2. */
#include "base/half.h"
#include "kernels/isa.h"

#include <immintrin.h>
#include <string.h>

enum { LANES = 16, HALF = 8, ROWS = 4 };

static inline __m256 load(const uint16_t *x, size_t n)
{
    uint16_t some[HALF] = {0};
    if (n >= HALF) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x));
    memcpy(some, x, n * sizeof *x);
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)some));
}

/* The sum of 16 lanes, which are halved four times. */
static inline float sum_of(const __m256 lanes[2])
{
    __m256 eight = _mm256_add_ps(lanes[0], lanes[1]);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static void widen_rows(const uint16_t *rows, size_t n, size_t dim, size_t stride, float *out,
                       float *squares)
{
    for (size_t i = 0; i < n; i++, rows += dim, out += stride) {
        __m256 lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (size_t d = 0; d < stride; d += HALF) {
            __m256 x = load(rows + d, d < dim ? dim - d : 0);
            _mm256_storeu_ps(out + d, x);
            lanes[d / HALF % 2] = _mm256_fmadd_ps(x, x, lanes[d / HALF % 2]);
        }
        squares[i] = sum_of(lanes);
    }
}

static inline __attribute__((always_inline)) void take_rows(const float *rows, size_t stride,
                                                            size_t n_rows, const float *question,
                                                            size_t dim, float *out)
{
    __m256 sums[ROWS][2];
    for (size_t r = 0; r < n_rows; r++) sums[r][0] = sums[r][1] = _mm256_setzero_ps();
    for (size_t d = 0; d < dim; d++, question += LANES) {
        __m256 low = _mm256_loadu_ps(question), high = _mm256_loadu_ps(question + HALF);
        for (size_t r = 0; r < n_rows; r++) {
            __m256 x = _mm256_broadcast_ss(&rows[r * stride + d]);
            sums[r][0] = _mm256_fmadd_ps(x, low, sums[r][0]);
            sums[r][1] = _mm256_fmadd_ps(x, high, sums[r][1]);
        }
    }
    for (size_t r = 0; r < n_rows; r++) {
        _mm256_storeu_ps(out + r * LANES, sums[r][0]);
        _mm256_storeu_ps(out + r * LANES + HALF, sums[r][1]);
    }
}

static void row_products(const float *rows, size_t stride, size_t n, const float *question,
                         size_t dim, float *out)
{
    size_t i = 0;
    for (; i + ROWS <= n; i += ROWS)
        take_rows(rows + i * stride, stride, ROWS, question, dim, out + i * LANES);
    for (; i < n; i++) take_rows(rows + i * stride, stride, 1, question, dim, out + i * LANES);
}

void kern_cosines_fill_avx2(kern_isa *isa)
{
    isa->widen_rows = widen_rows;
    isa->row_products = row_products;
}
