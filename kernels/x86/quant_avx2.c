/* Quantised matrix product, AVX2: maddubs of |w| and x with w's sign (8 bits), or of w + 8 and x,
 * whose products are so small that a run of columns is summed in 16 bits (4 bits). */
#include "kernels/isa.h"
#include "kernels/quant_groups.h"

#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    TILE_ROWS = 6,
    RUN = 32, /* columns: 8 products of 15 * 127 * 2 stay below 2^15 */
};

INLINE __m256i quad_of(const int8_t *x)
{
    int32_t quad;
    memcpy(&quad, x, sizeof quad);
    return _mm256_set1_epi32(quad);
}

/* sums [rows] += a run of a half panel times x [rows][group]. */
INLINE void run_8(const int rows, const uint8_t *w, const int8_t *x, size_t group, __m256i *sums)
{
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (size_t i = 0; i < RUN / 4; i++) {
        __m256i v = _mm256_load_si256((const __m256i *)(w + i * 64)), size = _mm256_abs_epi8(v);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m256i signed_x = _mm256_sign_epi8(quad_of(x + (size_t)r * group + 4 * i), v);
            __m256i pairs = _mm256_maddubs_epi16(size, signed_x);
            sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(pairs, ones));
        }
    }
}

INLINE void run_4(const int rows, const uint8_t *w, const int8_t *x, size_t group, __m256i *sums)
{
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
    __m256i pairs[TILE_ROWS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) pairs[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
    for (size_t i = 0; i < RUN / 8; i++) {
        __m256i both = _mm256_load_si256((const __m256i *)(w + i * 64));
        __m256i even = _mm256_and_si256(both, low);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const int8_t *at = x + (size_t)r * group + 8 * i;
            __m256i first = _mm256_maddubs_epi16(even, quad_of(at));
            __m256i second = _mm256_maddubs_epi16(odd, quad_of(at + 4));
            pairs[r] = _mm256_add_epi16(pairs[r], first);
            pairs[r] = _mm256_add_epi16(pairs[r], second);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(pairs[r], ones));
}

/* The same for one row, without a loop: decoding at batch 1 is bound by it where memory is fast. */
INLINE __m256i run_4_row(const uint8_t *w, const int8_t *x)
{
    const __m256i low = _mm256_set1_epi8(15);
    __m256i pairs[2];
#pragma GCC unroll 4
    for (size_t i = 0; i < RUN / 8; i++, w += 64, x += 8) {
        __m256i both = _mm256_load_si256((const __m256i *)w);
        __m256i even = _mm256_maddubs_epi16(_mm256_and_si256(both, low), quad_of(x));
        __m256i odd = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        odd = _mm256_maddubs_epi16(odd, quad_of(x + 4));
        pairs[0] = i == 0 ? even : _mm256_add_epi16(pairs[0], even);
        pairs[1] = i == 0 ? odd : _mm256_add_epi16(pairs[1], odd);
    }
    return _mm256_madd_epi16(_mm256_add_epi16(pairs[0], pairs[1]), _mm256_set1_epi16(1));
}

/* acc [rows][16] += a group of half a panel. scales points to its eight. */
INLINE void add_group(const int bits, const int rows, const uint8_t *scales, const uint8_t *w,
                      size_t group, const uint8_t *x, float *acc)
{
    __m256i sums[TILE_ROWS];
    const int8_t *q = (const int8_t *)x;
    const float *x_scales = (const float *)(const void *)(x + (size_t)rows * group);
    const int32_t *starts = (const int32_t *)(const void *)(x_scales + rows);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        sums[r] = bits == 8 ? _mm256_setzero_si256() : _mm256_set1_epi32(starts[r]);
    for (size_t at = 0; at < group; at += RUN) {
        if (bits == 8) run_8(rows, w + at * 16, q + at, group, sums);
        else if (rows == 1) sums[0] = _mm256_add_epi32(sums[0], run_4_row(w + at * 8, q + at));
        else run_4(rows, w + at * 8, q + at, group, sums);
    }
    __m128i half = _mm_load_si128((const __m128i *)(const void *)scales);
    __m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        __m256 by = _mm256_mul_ps(scale, _mm256_set1_ps(x_scales[r]));
        __m256 sum = _mm256_loadu_ps(acc + r * KERN_PANEL);
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), by, sum);
        _mm256_storeu_ps(acc + r * KERN_PANEL, sum);
    }
}

INLINE void tile(const int bits, const int rows, const int side, const uint8_t *w, size_t w_stride,
                 size_t k, size_t group, const uint8_t *x, float *acc, const kern_ahead *ahead)
{
    const size_t group_bytes = group * KERN_PANEL * (size_t)bits / 8;
    const size_t x_bytes = (size_t)rows * kern_quant_x_bytes((unsigned)group);
    const size_t lines = 1 + 2 * group_bytes / 64;
    const uint8_t *next = ahead->at;
    for (size_t n = k / (2 * group); n > 0; n--) {
        for (int i = 0; i < side; i++) {
            const uint8_t *at = w + (size_t)i * w_stride, *line = next + (size_t)i * ahead->stride;
            for (size_t l = 0; l < lines; l++)
                _mm_prefetch((const char *)(line + l * ahead->step), _MM_HINT_T0);
            for (size_t g = 0; g < 2; g++)
                for (size_t h = 0; h < 2; h++)
                    add_group(bits, rows, at + 32 * g + 16 * h, at + 64 + g * group_bytes + 32 * h,
                              group, x + g * x_bytes, acc + (i * rows * 2 + (int)h) * 8);
        }
        w += 64 + 2 * group_bytes;
        x += 2 * x_bytes;
        next += lines * ahead->step;
    }
}

/* Rows of a tile, and the panels it takes at once: streams of weights. */
// clang-format off
#define FOR_TILES(X, bits)                                                                         \
    X(bits, 1, 4) X(bits, 2, 2) X(bits, 3, 2) X(bits, 4, 1) X(bits, 5, 1) X(bits, 6, 1)
// clang-format on

#define TILE(bits, rows, side)                                                                     \
    static void tile_##bits##_##rows##__avx2(const void *w, size_t w_stride, size_t k,             \
                                             unsigned group, const void *x, float *acc,            \
                                             const kern_ahead *ahead)                              \
    {                                                                                              \
        if (group == RUN) tile(bits, rows, side, w, w_stride, k, RUN, x, acc, ahead);              \
        else tile(bits, rows, side, w, w_stride, k, group, x, acc, ahead);                         \
    }
#define TILE1(bits, rows, side)                                                                    \
    static void tile1_##bits##_##rows##__avx2(const void *w, size_t w_stride, size_t k,            \
                                              unsigned group, const void *x, float *acc,           \
                                              const kern_ahead *ahead)                             \
    {                                                                                              \
        if (group == RUN) tile(bits, rows, 1, w, w_stride, k, RUN, x, acc, ahead);                 \
        else tile(bits, rows, 1, w, w_stride, k, group, x, acc, ahead);                            \
    }

FOR_TILES(TILE, 8)
FOR_TILES(TILE1, 8)
FOR_TILES(TILE, 4)
FOR_TILES(TILE1, 4)

/* ---- to integers ----------------------------------------------------------------------------- */

/* In all lanes. */
INLINE __m256i max_lanes(__m256i v)
{
    v = _mm256_max_epi32(v, _mm256_permute2x128_si256(v, v, 1));
    v = _mm256_max_epi32(v, _mm256_shuffle_epi32(v, 0x4e));
    return _mm256_max_epi32(v, _mm256_shuffle_epi32(v, 0xb1));
}

INLINE int32_t add_lanes(__m256i v)
{
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

INLINE void to_integers(const float *x, const unsigned group, int8_t *q, float *scale, int32_t *sum)
{
    const __m256i size = _mm256_set1_epi32(0x7fffffff);
    __m256i bits = _mm256_setzero_si256();
    for (unsigned i = 0; i < group; i += 8) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        bits = _mm256_max_epi32(bits, _mm256_and_si256(v, size));
    }
    const uint32_t largest = (uint32_t)_mm256_cvtsi256_si32(max_lanes(bits));
    const float max = quant_float(largest);
    const bool finite = largest < 0x7f800000u;
    *sum = 0;
    *scale = finite ? 0.0f : NAN;
    if (!finite || max < QUANT_SMALLEST) {
        memset(q, 0, group);
        return;
    }
    *scale = max / 127.0f;
    const __m256 inverse = _mm256_set1_ps(127.0f / max);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i total = _mm256_setzero_si256();
    for (unsigned at = 0; at < group; at += RUN) {
        __m256i v[4];
        for (unsigned i = 0; i < 4; i++)
            v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + at + 8 * i), inverse));
        __m256i left = _mm256_packs_epi32(v[0], v[1]), right = _mm256_packs_epi32(v[2], v[3]);
        __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(left, right), order);
        _mm256_storeu_si256((__m256i *)(void *)(q + at), bytes);
        __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    *sum = add_lanes(total);
}

static void quant_x__avx2(const float *x, unsigned group, int8_t *q, float *scale, int32_t *sum)
{
    if (group == RUN) to_integers(x, RUN, q, scale, sum);
    else to_integers(x, group, q, scale, sum);
}

static uint16_t quant_w8__avx2(const float *w, unsigned group, int8_t *q)
{
    return group == RUN ? quant_group_8(w, RUN, q) : quant_group_8(w, group, q);
}

static uint16_t quant_w4__avx2(const float *w, unsigned group, int8_t *q)
{
    return group == RUN ? quant_group_4(w, RUN, q) : quant_group_4(w, group, q);
}

static double int_burst__avx2(size_t rounds, float *sink)
{
    enum { CHAINS = 6 };
    const __m256i ones = _mm256_set1_epi16(1), w = _mm256_set1_epi8(-3), size = _mm256_abs_epi8(w);
    __m256i sums[CHAINS];
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm256_set1_epi32(c);
    for (size_t i = 0; i < rounds; i++)
        for (int c = 0; c < CHAINS; c++) {
            __m256i x = _mm256_sign_epi8(_mm256_set1_epi32((int32_t)i + c), w);
            sums[c] =
                _mm256_add_epi32(sums[c], _mm256_madd_epi16(_mm256_maddubs_epi16(size, x), ones));
        }
    for (int c = 0; c < CHAINS; c++) *sink += (float)_mm256_extract_epi32(sums[c], 0);
    return 2.0 * 32 * CHAINS * (double)rounds;
}

void kern_quant_fill_avx2(kern_isa *isa)
{
    isa->quant_rows = TILE_ROWS;
#define SET_TILE(bits, rows, side)                                                                 \
    isa->quant_panels[rows] = side;                                                                \
    isa->quant_tile[bits == 4][rows] = tile_##bits##_##rows##__avx2;                               \
    isa->quant_tile1[bits == 4][rows] = tile1_##bits##_##rows##__avx2;
    FOR_TILES(SET_TILE, 8)
    FOR_TILES(SET_TILE, 4)
    isa->quant_offset[0] = 0;
    isa->quant_offset[1] = 8;
    isa->quant_x = quant_x__avx2;
    isa->quant_w[0] = quant_w8__avx2;
    isa->quant_w[1] = quant_w4__avx2;
    isa->int_burst = int_burst__avx2;
}
