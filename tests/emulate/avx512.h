/* The AVX-512 intrinsics that the kernels use, lane by lane or as two halves in AVX2. Most need one
 * line when a kernel uses a new one. */
#ifndef TESTS_EMULATE_AVX512_H
#define TESTS_EMULATE_AVX512_H

#include "tests/emulate/dot_bf16.h"

#include <immintrin.h> // the stand-in

typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef double __m512d __attribute__((vector_size(64), may_alias));
typedef long long __m512i __attribute__((vector_size(64), may_alias));
typedef short __m512bh __attribute__((vector_size(64), may_alias));
typedef short __m256bh __attribute__((vector_size(32), may_alias));
typedef uint8_t __mmask8;
typedef uint16_t __mmask16;
typedef uint32_t __mmask32;
typedef uint64_t __mmask64;

typedef union emulated_512 {
    __m512 ps;
    __m512d pd;
    __m512i si;
    __m512bh bh;
    __m256 half_ps[2];
    __m256d half_pd[2];
    __m256i half[2];
    float f[16];
    double d[8];
    int64_t i64[8];
    int32_t i32[16];
    int16_t i16[32];
    uint16_t u16[32];
    int8_t i8[64];
    uint8_t u8[64];
} emulated_512;

#define EMULATED static EMULATED_BODY

/* Two halves in AVX2. */
#define PS_2(name)                                                                                 \
    EMULATED __m512 _mm512_##name##_ps(__m512 a, __m512 b)                                         \
    {                                                                                              \
        emulated_512 x = {.ps = a}, y = {.ps = b};                                                 \
        for (int i = 0; i < 2; i++) x.half_ps[i] = _mm256_##name##_ps(x.half_ps[i], y.half_ps[i]); \
        return x.ps;                                                                               \
    }
#define PS_3(name)                                                                                 \
    EMULATED __m512 _mm512_##name##_ps(__m512 a, __m512 b, __m512 c)                               \
    {                                                                                              \
        emulated_512 x = {.ps = a}, y = {.ps = b}, z = {.ps = c};                                  \
        for (int i = 0; i < 2; i++)                                                                \
            x.half_ps[i] = _mm256_##name##_ps(x.half_ps[i], y.half_ps[i], z.half_ps[i]);           \
        return x.ps;                                                                               \
    }
#define SI_1(name)                                                                                 \
    EMULATED __m512i _mm512_##name(__m512i a)                                                      \
    {                                                                                              \
        emulated_512 x = {.si = a};                                                                \
        for (int i = 0; i < 2; i++) x.half[i] = _mm256_##name(x.half[i]);                          \
        return x.si;                                                                               \
    }
#define SI_2_AS(name, name_256)                                                                    \
    EMULATED __m512i _mm512_##name(__m512i a, __m512i b)                                           \
    {                                                                                              \
        emulated_512 x = {.si = a}, y = {.si = b};                                                 \
        for (int i = 0; i < 2; i++) x.half[i] = _mm256_##name_256(x.half[i], y.half[i]);           \
        return x.si;                                                                               \
    }
#define SI_2(name) SI_2_AS(name, name)
#define SHIFT(name)                                                                                \
    EMULATED __m512i _mm512_##name(__m512i a, unsigned by)                                         \
    {                                                                                              \
        emulated_512 x = {.si = a};                                                                \
        for (int i = 0; i < 2; i++) x.half[i] = _mm256_##name(x.half[i], (int)by);                 \
        return x.si;                                                                               \
    }
#define CAST(name, to, from)                                                                       \
    EMULATED to _mm512_##name(from v) { return (to)v; }

PS_2(add)
PS_2(sub)
PS_2(mul)
PS_2(div)
PS_2(min)
PS_2(max)
PS_3(fmadd)
PS_3(fmsub)
PS_3(fnmadd)
SI_2_AS(and_si512, and_si256)
SI_2_AS(or_si512, or_si256)
SI_2_AS(xor_si512, xor_si256)
SI_2_AS(andnot_si512, andnot_si256)
SI_2(add_epi32)
SI_2(sub_epi32)
SI_2(sub_epi8)
SI_2(add_epi8)
SI_2(maddubs_epi16)
SI_2(max_epi32)
SI_2(mullo_epi32)
SI_1(abs_epi32)
SI_2(unpacklo_epi8)
SI_2(unpackhi_epi8)
SHIFT(slli_epi32)
SHIFT(srli_epi32)
SHIFT(srai_epi32)
SHIFT(slli_epi16)
SHIFT(srli_epi16)
SHIFT(srai_epi16)
CAST(castsi512_ps, __m512, __m512i)
CAST(castps_si512, __m512i, __m512)
CAST(castps_pd, __m512d, __m512)
CAST(castpd_ps, __m512, __m512d)

#undef PS_2
#undef PS_3
#undef SI_1
#undef SI_2
#undef SI_2_AS
#undef SHIFT
#undef CAST

/* ---- set, load, store ------------------------------------------------------------------------ */

EMULATED __m512 _mm512_setzero_ps(void) { return (__m512){0}; }
EMULATED __m512i _mm512_setzero_si512(void) { return (__m512i){0}; }

#define SET_1(name, type, lane, member, n, result)                                                 \
    EMULATED type _mm512_set1_##name(lane v)                                                       \
    {                                                                                              \
        emulated_512 x;                                                                            \
        for (int i = 0; i < n; i++) x.member[i] = v;                                               \
        return x.result;                                                                           \
    }
SET_1(ps, __m512, float, f, 16, ps)
SET_1(epi32, __m512i, int32_t, i32, 16, si)
SET_1(epi16, __m512i, int16_t, i16, 32, si)
SET_1(epi8, __m512i, char, u8, 64, si)
#undef SET_1

EMULATED __m512i _mm512_setr_epi64(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f,
                                   int64_t g, int64_t h)
{
    return (__m512i){a, b, c, d, e, f, g, h};
}

#define _mm512_set_epi16(...) emulated_set_epi16((const int16_t[32]){__VA_ARGS__})
EMULATED __m512i emulated_set_epi16(const int16_t *high_to_low)
{
    emulated_512 x;
    for (int i = 0; i < 32; i++) x.i16[i] = high_to_low[31 - i];
    return x.si;
}

#define MEMORY(suffix, type)                                                                       \
    EMULATED type _mm512_loadu_##suffix(const void *from)                                          \
    {                                                                                              \
        type v;                                                                                    \
        memcpy(&v, from, sizeof v);                                                                \
        return v;                                                                                  \
    }                                                                                              \
    EMULATED void _mm512_storeu_##suffix(void *to, type v) { memcpy(to, &v, sizeof v); }           \
    EMULATED type _mm512_load_##suffix(const void *from)                                           \
    {                                                                                              \
        if ((uintptr_t)from % 64 != 0) __builtin_trap();                                           \
        return _mm512_loadu_##suffix(from);                                                        \
    }                                                                                              \
    EMULATED void _mm512_store_##suffix(void *to, type v)                                          \
    {                                                                                              \
        if ((uintptr_t)to % 64 != 0) __builtin_trap();                                             \
        _mm512_storeu_##suffix(to, v);                                                             \
    }
MEMORY(ps, __m512)
MEMORY(si512, __m512i)
#undef MEMORY

EMULATED __m512 _mm512_mask_loadu_ps(__m512 src, __mmask16 mask, const void *from)
{
    emulated_512 x = {.ps = src};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) memcpy(&x.f[i], (const char *)from + 4 * i, 4);
    return x.ps;
}

EMULATED __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void *from)
{
    return _mm512_mask_loadu_ps(_mm512_setzero_ps(), mask, from);
}

EMULATED __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void *from)
{
    emulated_512 x = {.si = _mm512_setzero_si512()};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) memcpy(&x.i16[i], (const char *)from + 2 * i, 2);
    return x.half[0];
}

EMULATED void _mm512_mask_storeu_ps(void *to, __mmask16 mask, __m512 v)
{
    emulated_512 x = {.ps = v};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) memcpy((char *)to + 4 * i, &x.f[i], 4);
}

EMULATED void _mm512_mask_storeu_epi16(void *to, __mmask32 mask, __m512i v)
{
    emulated_512 x = {.si = v};
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) memcpy((char *)to + 2 * i, &x.i16[i], 2);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

EMULATED __m512 _mm512_abs_ps(__m512 v)
{
    for (int i = 0; i < 16; i++) v[i] = fabsf(v[i]);
    return v;
}

EMULATED float _mm512_cvtss_f32(__m512 v) { return v[0]; }
EMULATED __m256 _mm512_castps512_ps256(__m512 v) { return ((emulated_512){.ps = v}).half_ps[0]; }
EMULATED __m256i _mm512_castsi512_si256(__m512i v) { return ((emulated_512){.si = v}).half[0]; }
EMULATED __m128i _mm512_castsi512_si128(__m512i v)
{
    return _mm256_castsi256_si128(_mm512_castsi512_si256(v));
}
EMULATED __m256 _mm512_extractf32x8_ps(__m512 v, int i)
{
    return ((emulated_512){.ps = v}).half_ps[i];
}
EMULATED __m256i _mm512_extracti64x4_epi64(__m512i v, int i)
{
    return ((emulated_512){.si = v}).half[i];
}

#define _mm512_shuffle_ps(a, b, order) emulated_shuffle_ps(a, b, order)
EMULATED __m512 emulated_shuffle_ps(__m512 a, __m512 b, unsigned order)
{
    emulated_512 x = {.ps = a}, y = {.ps = b}, r;
    for (unsigned i = 0; i < 16; i++)
        r.f[i] = (i % 4 < 2 ? x : y).f[i / 4 * 4 + (order >> i % 4 * 2 & 3)];
    return r.ps;
}

EMULATED __m512d _mm512_permutexvar_pd(__m512i order, __m512d v)
{
    emulated_512 x = {.pd = v}, o = {.si = order}, r;
    for (int i = 0; i < 8; i++) r.d[i] = x.d[o.i64[i] & 7];
    return r.pd;
}

EMULATED __m512i _mm512_permutexvar_epi16(__m512i order, __m512i v)
{
    emulated_512 x = {.si = v}, o = {.si = order}, r;
    for (int i = 0; i < 32; i++) r.i16[i] = x.i16[o.i16[i] & 31];
    return r.si;
}

EMULATED __m512i _mm512_permutexvar_epi32(__m512i order, __m512i v)
{
    emulated_512 x = {.si = v}, o = {.si = order}, r;
    for (int i = 0; i < 16; i++) r.i32[i] = x.i32[o.i32[i] & 15];
    return r.si;
}

EMULATED __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 v)
{
    for (int i = 0; i < 16; i++)
        if (!(mask >> i & 1)) v[i] = 0.0f;
    return v;
}

EMULATED __m512i _mm512_mask_or_epi32(__m512i src, __mmask16 mask, __m512i a, __m512i b)
{
    emulated_512 x = {.si = src}, y = {.si = _mm512_or_si512(a, b)};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) x.i32[i] = y.i32[i];
    return x.si;
}

#define _mm512_cmp_ps_mask(a, b, how)                                                              \
    emulated_mask(_mm256_cmp_ps(_mm512_extractf32x8_ps(a, 0), _mm512_extractf32x8_ps(b, 0), how),  \
                  _mm256_cmp_ps(_mm512_extractf32x8_ps(a, 1), _mm512_extractf32x8_ps(b, 1), how))
EMULATED __mmask16 emulated_mask(__m256 low, __m256 high)
{
    return (__mmask16)(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
}

EMULATED int _mm512_reduce_add_epi32(__m512i v)
{
    emulated_512 x = {.si = v};
    uint32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += (uint32_t)x.i32[i];
    return (int)sum;
}

EMULATED int _mm512_reduce_max_epi32(__m512i v)
{
    emulated_512 x = {.si = v};
    int max = x.i32[0];
    for (int i = 1; i < 16; i++) max = x.i32[i] > max ? x.i32[i] : max;
    return max;
}

/* ---- conversions, functions ------------------------------------------------------------------ */

EMULATED __m512 _mm512_cvtepi32_ps(__m512i v)
{
    emulated_512 x = {.si = v};
    for (int i = 0; i < 2; i++) x.half_ps[i] = _mm256_cvtepi32_ps(x.half[i]);
    return x.ps;
}

EMULATED __m512i _mm512_cvtps_epi32(__m512 v)
{
    emulated_512 x = {.ps = v};
    for (int i = 0; i < 2; i++) x.half[i] = _mm256_cvtps_epi32(x.half_ps[i]);
    return x.si;
}

EMULATED __m512i _mm512_cvtepu16_epi32(__m256i v)
{
    emulated_512 x;
    x.half[0] = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(v));
    x.half[1] = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1));
    return x.si;
}

EMULATED __m512i _mm512_cvtepi8_epi32(__m128i v)
{
    emulated_512 x;
    x.half[0] = _mm256_cvtepi8_epi32(v);
    x.half[1] = _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8));
    return x.si;
}

EMULATED __m512i _mm512_cvtepi8_epi16(__m256i v)
{
    emulated_512 x;
    x.half[0] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(v));
    x.half[1] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(v, 1));
    return x.si;
}

EMULATED __m256i _mm512_cvtepi32_epi16(__m512i v)
{
    emulated_512 x = {.si = v}, r;
    for (int i = 0; i < 16; i++) r.i16[i] = (int16_t)x.i32[i];
    return r.half[0];
}

EMULATED __m128i _mm512_cvtepi32_epi8(__m512i v)
{
    emulated_512 x = {.si = v}, r;
    for (int i = 0; i < 16; i++) r.i8[i] = (int8_t)x.i32[i];
    return _mm256_castsi256_si128(r.half[0]);
}

/* Saturates. */
EMULATED __m128i _mm512_cvtsepi32_epi8(__m512i v)
{
    emulated_512 x = {.si = v}, r;
    for (int i = 0; i < 16; i++)
        r.i8[i] = (int8_t)(x.i32[i] > 127 ? 127 : x.i32[i] < -128 ? -128 : x.i32[i]);
    return _mm256_castsi256_si128(r.half[0]);
}

EMULATED __m512 _mm512_cvtph_ps(__m256i v)
{
    emulated_512 x;
    x.half_ps[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
    x.half_ps[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
    return x.ps;
}

#define _mm512_cvtps_ph(v, how)                                                                    \
    _mm256_set_m128i(_mm256_cvtps_ph(_mm512_extractf32x8_ps(v, 1), (how)&7),                       \
                     _mm256_cvtps_ph(_mm512_extractf32x8_ps(v, 0), (how)&7))

#define _mm512_roundscale_ps(v, how)                                                               \
    emulated_from_halves(_mm256_round_ps(_mm512_extractf32x8_ps(v, 0), how),                       \
                         _mm256_round_ps(_mm512_extractf32x8_ps(v, 1), how))
EMULATED __m512 emulated_from_halves(__m256 low, __m256 high)
{
    return ((emulated_512){.half_ps = {low, high}}).ps;
}

/* a * 2^floor(b), rounded once. */
/* An infinite b decides by itself: a NaN in a gives 0 or infinity, as the instruction does. */
EMULATED __m512 _mm512_scalef_ps(__m512 a, __m512 b)
{
    for (int i = 0; i < 16; i++) {
        float by = floorf(b[i]);
        if (b[i] != b[i]) a[i] = b[i];
        else if (a[i] != a[i] && isinf(b[i])) a[i] = b[i] < 0 ? 0.0f : b[i];
        else a[i] = scalbnf(a[i], by > 1000.0f ? 1000 : by < -1000.0f ? -1000 : (int)by);
    }
    return a;
}

/* ---- dot products ---------------------------------------------------------------------------- */

EMULATED __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i u, __m512i s)
{
    emulated_512 x = {.si = sum}, a = {.si = u}, b = {.si = s};
    for (int i = 0; i < 16; i++) {
        int32_t dot = 0;
        for (int j = 4 * i; j < 4 * i + 4; j++) dot += a.u8[j] * b.i8[j];
        x.i32[i] = (int32_t)((uint32_t)x.i32[i] + (uint32_t)dot);
    }
    return x.si;
}

EMULATED __m512i _mm512_dpwssd_epi32(__m512i sum, __m512i a, __m512i b)
{
    emulated_512 x = {.si = sum}, y = {.si = a}, z = {.si = b};
    for (int i = 0; i < 16; i++) {
        int32_t dot = y.i16[2 * i] * z.i16[2 * i] + y.i16[2 * i + 1] * z.i16[2 * i + 1];
        x.i32[i] = (int32_t)((uint32_t)x.i32[i] + (uint32_t)dot);
    }
    return x.si;
}

/* The high half of a pair comes first. */
EMULATED __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b)
{
    emulated_512 x = {.ps = sum}, u = {.bh = a}, v = {.bh = b};
    for (int i = 0; i < 16; i++) {
        x.f[i] = emulated_fma_bf16(u.u16[2 * i + 1], v.u16[2 * i + 1], x.f[i]);
        x.f[i] = emulated_fma_bf16(u.u16[2 * i], v.u16[2 * i], x.f[i]);
    }
    return x.ps;
}

EMULATED __mmask32 _mm512_cmpeq_epi16_mask(__m512i a, __m512i b)
{
    emulated_512 x = {.si = a}, y = {.si = b};
    __mmask32 equal = 0;
    for (int i = 0; i < 32; i++) equal |= (__mmask32)(x.i16[i] == y.i16[i]) << i;
    return equal;
}

/* b becomes the low half. */
EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 a, __m512 b)
{
    emulated_512 r;
    for (int i = 0; i < 16; i++) {
        r.u16[i] = emulated_to_bf16(b[i]);
        r.u16[16 + i] = emulated_to_bf16(a[i]);
    }
    return r.bh;
}

#undef EMULATED

#endif
