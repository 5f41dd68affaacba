/* Row operations for AVX2 and FMA. A row's last, partial vector goes through a small buffer. */
#include "kernels/isa.h"
#include "kernels/x86/math_avx2.h"

#include <math.h>
#include <string.h>

/* The vector at i of a row of d; zeros behind the row's end. */
static inline __m256 load(const float *x, size_t i, size_t d)
{
    if (i + 8 <= d) return _mm256_loadu_ps(x + i);
    float part[8] = {0};
    if (i < d) memcpy(part, x + i, (d - i) * sizeof *x);
    return _mm256_loadu_ps(part);
}

static inline void store(float *x, size_t i, size_t d, __m256 v)
{
    if (i + 8 <= d) {
        _mm256_storeu_ps(x + i, v);
        return;
    }
    float part[8];
    _mm256_storeu_ps(part, v);
    if (i < d) memcpy(x + i, part, (d - i) * sizeof *x);
}

/* out = x / sqrt(sum / d + eps) * weight; sums[u] adds up vectors u, u + 4, u + 8, … */
static void scale_row(const float *x, const float *weight, float eps, size_t d,
                      const __m256 sums[4], float *out)
{
    __m256 all = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
    __m256 scale = _mm256_set1_ps(1.0f / sqrtf(sum_avx2(all) / (float)d + eps));
    for (size_t i = 0; i < d; i += 8)
        store(out, i, d, _mm256_mul_ps(_mm256_mul_ps(load(x, i, d), scale), load(weight, i, d)));
}

static void rmsnorm(const float *x, const float *weight, float eps, size_t d, float *out)
{
    __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                      _mm256_setzero_ps()};
    for (size_t i = 0; i < d; i += 32)
        for (size_t u = 0; u < 4; u++) {
            __m256 v = load(x, i + 8 * u, d);
            sums[u] = _mm256_fmadd_ps(v, v, sums[u]);
        }
    scale_row(x, weight, eps, d, sums, out);
}

static void add_rmsnorm(float *x, const float *delta, const float *weight, float eps, size_t d,
                        float *out)
{
    __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                      _mm256_setzero_ps()};
    for (size_t i = 0; i < d; i += 32)
        for (size_t u = 0; u < 4; u++) {
            __m256 v = _mm256_add_ps(load(x, i + 8 * u, d), load(delta, i + 8 * u, d));
            store(x, i + 8 * u, d, v);
            sums[u] = _mm256_fmadd_ps(v, v, sums[u]);
        }
    scale_row(x, weight, eps, d, sums, out);
}

static void swiglu(const float *gate, const float *up, size_t d, float *out)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    for (size_t i = 0; i < d; i += 8) {
        __m256 g = load(gate, i, d);
        __m256 e = exp_avx2(_mm256_sub_ps(_mm256_setzero_ps(), g));
        store(out, i, d, _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), load(up, i, d)));
    }
}

static void rope(float *x, const float *cos_sin, size_t n_heads, size_t head_dim)
{
    size_t half = head_dim / 2;
    for (size_t h = 0; h < n_heads; h++, x += head_dim)
        for (size_t i = 0; i < half; i += 8) {
            __m256 a = load(x, i, half), b = load(x + half, i, half);
            __m256 c = load(cos_sin, i, half), s = load(cos_sin + half, i, half);
            store(x, i, half, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
            store(x + half, i, half, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
        }
}

void kern_rows_fill_avx2(kern_isa *isa)
{
    isa->rmsnorm = rmsnorm;
    isa->add_rmsnorm = add_rmsnorm;
    isa->swiglu = swiglu;
    isa->rope = rope;
}
