/* kernels, private: elementary functions on 16 floats. Included by AVX-512 files only. */
#ifndef KERNELS_X86_MATH_AVX512_H
#define KERNELS_X86_MATH_AVX512_H

#include <immintrin.h>

/* 2^(n + f) for whole n and |f| <= 0.5: relative minimax polynomial, 0.94 ulp at most; underflow
 * and overflow by vscalefps. */
static inline __m512 exp2_parts_avx512(__m512 n, __m512 f)
{
    __m512 p = _mm512_set1_ps(0x1.41fbbcp-13f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.5f3e54p-10f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3b2d4cp-7f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6aee8p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebfbdcp-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e43p-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* 2^x for x <= 0; NaN stays NaN. Minus infinity makes f a NaN, which vscalefps turns into 0. */
static inline __m512 exp2_avx512(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return exp2_parts_avx512(n, _mm512_sub_ps(x, n));
}

/* e^x for any x; NaN stays NaN. x * log2(e) in two parts, so that large x keep their digits. */
static inline __m512 exp_avx512(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-120.0f), _mm512_min_ps(_mm512_set1_ps(120.0f), x));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_fmsub_ps(x, _mm512_set1_ps(0x1.715476p+0f), n);
    f = _mm512_fmadd_ps(x, _mm512_set1_ps(0x1.4ae0cp-26f), f);
    return exp2_parts_avx512(n, f);
}

/* The sum of the 16 lanes, in one fixed tree. */
static inline float sum_avx512(__m512 x)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float max_avx512(__m512 x)
{
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

#endif
