/* Row operations for AVX-512. A row's last, partial vector is masked. */
#include "kernels/isa.h"
#include "kernels/x86/math_avx512.h"

#include <math.h>

/* The lanes of the vector at i that lie inside a row of d. */
static inline __mmask16 lanes(size_t i, size_t d)
{
    return d >= i + 16 ? 0xffff : d <= i ? 0 : (__mmask16)((1u << (d - i)) - 1);
}

static inline __m512 load(const float *x, size_t i, size_t d)
{
    return _mm512_maskz_loadu_ps(lanes(i, d), x + i);
}

static inline void store(float *x, size_t i, size_t d, __m512 v)
{
    _mm512_mask_storeu_ps(x + i, lanes(i, d), v);
}

/* out = x / sqrt(sum / d + eps) * weight; sums[u] adds up vectors u, u + 4, u + 8, … */
static void scale_row(const float *x, const float *weight, float eps, size_t d,
                      const __m512 sums[4], float *out)
{
    __m512 all = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
    __m512 scale = _mm512_set1_ps(1.0f / sqrtf(sum_avx512(all) / (float)d + eps));
    for (size_t i = 0; i < d; i += 16)
        store(out, i, d, _mm512_mul_ps(_mm512_mul_ps(load(x, i, d), scale), load(weight, i, d)));
}

static void rmsnorm(const float *x, const float *weight, float eps, size_t d, float *out)
{
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                      _mm512_setzero_ps()};
    for (size_t i = 0; i < d; i += 64)
        for (size_t u = 0; u < 4; u++) {
            __m512 v = load(x, i + 16 * u, d);
            sums[u] = _mm512_fmadd_ps(v, v, sums[u]);
        }
    scale_row(x, weight, eps, d, sums, out);
}

static void add_rmsnorm(float *x, const float *delta, const float *weight, float eps, size_t d,
                        float *out)
{
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                      _mm512_setzero_ps()};
    for (size_t i = 0; i < d; i += 64)
        for (size_t u = 0; u < 4; u++) {
            __m512 v = _mm512_add_ps(load(x, i + 16 * u, d), load(delta, i + 16 * u, d));
            store(x, i + 16 * u, d, v);
            sums[u] = _mm512_fmadd_ps(v, v, sums[u]);
        }
    scale_row(x, weight, eps, d, sums, out);
}

static void swiglu(const float *gate, const float *up, size_t d, float *out)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    for (size_t i = 0; i < d; i += 16) {
        __m512 g = load(gate, i, d);
        __m512 e = exp_avx512(_mm512_sub_ps(_mm512_setzero_ps(), g));
        store(out, i, d, _mm512_mul_ps(_mm512_div_ps(g, _mm512_add_ps(one, e)), load(up, i, d)));
    }
}

static void rope(float *x, const float *cos_sin, size_t n_heads, size_t head_dim)
{
    size_t half = head_dim / 2;
    for (size_t h = 0; h < n_heads; h++, x += head_dim)
        for (size_t i = 0; i < half; i += 16) {
            __m512 a = load(x, i, half), b = load(x + half, i, half);
            __m512 c = load(cos_sin, i, half), s = load(cos_sin + half, i, half);
            store(x, i, half, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
            store(x + half, i, half, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
        }
}

void kern_rows_fill_avx512(kern_isa *isa)
{
    isa->rmsnorm = rmsnorm;
    isa->add_rmsnorm = add_rmsnorm;
    isa->swiglu = swiglu;
    isa->rope = rope;
}
