/* kernels, private: elementary functions on 8 floats. Included by AVX2 files only. */
#ifndef KERNELS_X86_MATH_AVX2_H
#define KERNELS_X86_MATH_AVX2_H

#include <immintrin.h>

/* 2^(n + f) for whole n in [-252, 254] and |f| <= 0.5: relative minimax polynomial, 0.94 ulp at
 * most. n is added to the exponent in two halves, so that both ends of the range come out right. */
static inline __m256 exp2_parts_avx2(__m256 n, __m256 f)
{
    __m256 p = _mm256_set1_ps(0x1.41fbbcp-13f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.5f3e54p-10f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.3b2d4cp-7f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c6aee8p-5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ebfbdcp-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e43p-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}

static inline __m256 nearest_avx2(__m256 x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* 2^x for x <= 0, -inf included; NaN stays NaN. Below 2^-126 it is 0. */
static inline __m256 exp2_avx2(__m256 x)
{
    __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
    x = _mm256_max_ps(_mm256_set1_ps(-126.0f), x);
    __m256 n = nearest_avx2(x);
    return _mm256_andnot_ps(tiny, exp2_parts_avx2(n, _mm256_sub_ps(x, n)));
}

/* e^x for any x; NaN stays NaN. x * log2(e) in two parts, so that large x keep their digits. */
static inline __m256 exp_avx2(__m256 x)
{
    x = _mm256_max_ps(_mm256_set1_ps(-120.0f), _mm256_min_ps(_mm256_set1_ps(120.0f), x));
    __m256 n = nearest_avx2(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0f)));
    __m256 f = _mm256_fmsub_ps(x, _mm256_set1_ps(0x1.715476p+0f), n);
    f = _mm256_fmadd_ps(x, _mm256_set1_ps(0x1.4ae0cp-26f), f);
    return exp2_parts_avx2(n, f);
}

/* The sum of the 8 lanes, in one fixed tree. */
static inline float sum_avx2(__m256 x)
{
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float max_avx2(__m256 x)
{
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

#endif
