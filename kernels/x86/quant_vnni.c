/* Quantised matrix product, AVX512-VNNI: a register holds a quad of all rows of a panel, x is
 * broadcast from memory. 8 bits: the even and the odd bytes of w as 16 bits, as x is. 4 bits: w + 8
 * and x of 8 bits, the signed operand. */
#include "kernels/isa.h"
#include "kernels/x86/quant_avx512.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { TILE_ROWS = 16 };

/* A pair of 16 bits or a quad of 8. */
INLINE __m512i some_of(const uint8_t *x)
{
    int32_t some;
    memcpy(&some, x, sizeof some);
    return _mm512_set1_epi32(some);
}

INLINE void run_8(const int rows, const uint8_t *w, size_t group, const uint8_t *x, __m512i *sums)
{
    for (size_t at = 0; at < group; at += 4, w += 64, x += 8) {
        __m512i v = _mm512_load_si512(w), odd = _mm512_srai_epi16(v, 8);
        __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const uint8_t *quad = x + (size_t)r * group * 2;
            sums[r] = _mm512_dpwssd_epi32(sums[r], even, some_of(quad));
            sums[r] = _mm512_dpwssd_epi32(sums[r], odd, some_of(quad + 4));
        }
    }
}

INLINE void run_4(const int rows, const uint8_t *w, size_t group, const uint8_t *x, __m512i *sums)
{
    const __m512i low = _mm512_set1_epi8(15);
    for (size_t at = 0; at < group; at += 8, w += 64, x += 8) {
        __m512i both = _mm512_load_si512(w), even = _mm512_and_si512(both, low);
        __m512i odd = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const uint8_t *quad = x + (size_t)r * group;
            sums[r] = _mm512_dpbusd_epi32(sums[r], even, some_of(quad));
            sums[r] = _mm512_dpbusd_epi32(sums[r], odd, some_of(quad + 4));
        }
    }
}

/* acc [rows][16] += a group of a panel. */
INLINE void add_group(const int bits, const int rows, const uint8_t *scales, const uint8_t *w,
                      size_t group, const uint8_t *x, float *acc)
{
    __m512i sums[TILE_ROWS];
    const size_t q_bytes = (size_t)rows * group * (bits == 8 ? 2 : 1);
    const float *x_scales = (const float *)(const void *)(x + q_bytes);
    const int32_t *starts = (const int32_t *)(const void *)(x_scales + rows);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        sums[r] = bits == 8 ? _mm512_setzero_si512() : _mm512_set1_epi32(starts[r]);
    if (bits == 8) run_8(rows, w, group, x, sums);
    else run_4(rows, w, group, x, sums);
    __m256i half = _mm256_load_si256((const __m256i *)(const void *)scales);
    __m512 scale =
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), bits == 8 ? 15 : 16));
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        __m512 by = _mm512_mul_ps(scale, _mm512_set1_ps(x_scales[r]));
        __m512 sum = _mm512_loadu_ps(acc + r * KERN_PANEL);
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]), by, sum);
        _mm512_storeu_ps(acc + r * KERN_PANEL, sum);
    }
}

INLINE void tile(const int bits, const int rows, const int side, const uint8_t *w, size_t w_stride,
                 size_t k, size_t group, const uint8_t *x, float *acc, const kern_ahead *ahead)
{
    const size_t group_bytes = group * KERN_PANEL * (size_t)bits / 8;
    const kern_quant quant = {(uint8_t)bits, (uint8_t)group};
    const size_t x_bytes = (size_t)rows * kern_quant_x_bytes(quant);
    const size_t lines = 1 + 2 * group_bytes / 64;
    const uint8_t *next = ahead->at;
    for (size_t n = k / (2 * group); n > 0; n--) {
        for (int i = 0; i < side; i++) {
            const uint8_t *at = w + (size_t)i * w_stride, *line = next + (size_t)i * ahead->stride;
            for (size_t l = 0; l < lines; l++)
                _mm_prefetch((const char *)(line + l * ahead->step), _MM_HINT_T0);
            for (size_t g = 0; g < 2; g++)
                add_group(bits, rows, at + 32 * g, at + 64 + g * group_bytes, group,
                          x + g * x_bytes, acc + i * rows * KERN_PANEL);
        }
        w += 64 + 2 * group_bytes;
        x += 2 * x_bytes;
        next += lines * ahead->step;
    }
}

/* Rows of a tile, and the panels it takes at once: streams of weights. */
// clang-format off
#define FOR_TILES(X, bits)                                                                         \
    X(bits, 1, 8)  X(bits, 2, 4)  X(bits, 3, 4)  X(bits, 4, 2)                                     \
    X(bits, 5, 2)  X(bits, 6, 2)  X(bits, 7, 2)  X(bits, 8, 2)                                     \
    X(bits, 9, 1)  X(bits, 10, 1) X(bits, 11, 1) X(bits, 12, 1)                                    \
    X(bits, 13, 1) X(bits, 14, 1) X(bits, 15, 1) X(bits, 16, 1)
// clang-format on

#define TILE(bits, rows, side)                                                                     \
    static void tile_##bits##_##rows##__vnni(const void *w, size_t w_stride, size_t k,             \
                                             unsigned group, const void *x, float *acc,            \
                                             const kern_ahead *ahead)                              \
    {                                                                                              \
        tile(bits, rows, side, w, w_stride, k, group, x, acc, ahead);                              \
    }
#define TILE1(bits, rows, side)                                                                    \
    static void tile1_##bits##_##rows##__vnni(const void *w, size_t w_stride, size_t k,            \
                                              unsigned group, const void *x, float *acc,           \
                                              const kern_ahead *ahead)                             \
    {                                                                                              \
        tile(bits, rows, 1, w, w_stride, k, group, x, acc, ahead);                                 \
    }

FOR_TILES(TILE, 8)
FOR_TILES(TILE1, 8)
FOR_TILES(TILE, 4)
FOR_TILES(TILE1, 4)

static void quant_x16__vnni(const float *x, unsigned group, int16_t *q, float *scale)
{
    const float inverse = quant_scale_of(quant_largest_avx512(x, group), 32767.0f, scale);
    if (inverse == 0.0f) {
        memset(q, 0, group * sizeof *q);
        return;
    }
    for (unsigned i = 0; i < group; i += 16) {
        __m256i v = _mm512_cvtepi32_epi16(quant_integers_avx512(x + i, inverse));
        v = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(v, 0xd8), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(q + i), v);
    }
}

static void quant_x8__vnni(const float *x, unsigned group, int8_t *q, float *scale, int32_t *sum)
{
    quant_x8_avx512(x, group, q, scale, sum);
}

void kern_quant_fill_vnni(kern_isa *isa)
{
    isa->quant_rows = TILE_ROWS;
#define SET_TILE(bits, rows, side)                                                                 \
    isa->quant_panels[rows] = side;                                                                \
    isa->quant_tile[bits == 4][rows] = tile_##bits##_##rows##__vnni;                               \
    isa->quant_tile1[bits == 4][rows] = tile1_##bits##_##rows##__vnni;
    FOR_TILES(SET_TILE, 8)
    FOR_TILES(SET_TILE, 4)
    isa->quant_offset = 8;
    isa->quant_x16 = quant_x16__vnni;
    isa->quant_x8 = quant_x8__vnni;
}
