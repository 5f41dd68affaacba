/* Quantised matrix product of many rows, AVX2: weights are unpacked once for all tiles of a block
 * of rows, 4 bits to 8 and 8 bits to 16, so that a tile only multiplies. An unpacked group is its
 * scales [16] f32, then lines of 64 bytes, each of two columns (8 bits) or four (4 bits) of all 16
 * outputs, in the order of x. The integers and the order of their sums are those of quant_avx2.c,
 * and so are the bits of the results. */
#include "kernels/x86/quant_avx2.h"

INLINE void load_panel(const uint8_t *w, __m256i v[2])
{
    v[0] = _mm256_load_si256((const __m256i *)w);
    v[1] = _mm256_load_si256((const __m256i *)(w + 32));
}

/* Prefetches from the weights that are unpacked next. Tiles call it once for each 64 bytes that the
 * present weights take as they are stored. */
INLINE void prefetch(const uint8_t **line, size_t step)
{
    _mm_prefetch((const char *)*line, _MM_HINT_T0);
    *line += step;
}

/* sums [rows][2] = a group of 8-bit weights times x [rows][group]. */
INLINE void group_8(const int rows, const uint8_t *w, const int16_t *x, const size_t group,
                    __m256i *sums, const uint8_t **line, size_t step)
{
#pragma GCC unroll 12
    for (int i = 0; i < 2 * rows; i++) sums[i] = _mm256_setzero_si256();
#pragma GCC unroll 2
    for (size_t i = 0; i < group; i += 4) {
        prefetch(line, step);
#pragma GCC unroll 2
        for (size_t at = i; at < i + 4; at += 2, w += 64) {
            __m256i v[2];
            load_panel(w, v);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) add_pair(sums + 2 * r, v, x + (size_t)r * group + at);
        }
    }
    SUMS_STAY_IN_MEMORY();
}

/* pairs [rows][2] += a run of 4-bit weights times x, in 16 bits. */
INLINE void run_4(const int rows, const uint8_t *w, const int8_t *x, const size_t group,
                  __m256i *pairs, const uint8_t **line, size_t step)
{
#pragma GCC unroll 8
    for (size_t i = 0; i < run_of(group); i += 8) {
        prefetch(line, step);
#pragma GCC unroll 2
        for (size_t at = i; at < i + 8; at += 4, w += 64) {
            __m256i v[2];
            load_panel(w, v);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) add_quad(pairs + 2 * r, v, x + (size_t)r * group + at);
        }
    }
}

/* sums [rows][2] = starts + a group of 4-bit weights times x. */
INLINE void group_4(const int rows, const uint8_t *w, const int8_t *x, const size_t group,
                    const int32_t *starts, __m256i *sums, const uint8_t **line, size_t step)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const bool one_run = group == run_of(group);
#pragma GCC unroll 12
    for (int i = 0; i < 2 * rows; i++) sums[i] = _mm256_set1_epi32(starts[i / 2]);
    for (size_t at = 0; at < group; at += run_of(group)) {
        __m256i pairs[2 * TILE_ROWS];
#pragma GCC unroll 12
        for (int i = 0; i < 2 * rows; i++)
            pairs[i] = one_run ? _mm256_set1_epi32(starts[i / 2]) : _mm256_setzero_si256();
        run_4(rows, w + at * KERN_PANEL, x + at, group, pairs, line, step);
        SUMS_STAY_IN_MEMORY();
#pragma GCC unroll 12
        for (int i = 0; i < 2 * rows; i++) {
            __m256i sum = _mm256_madd_epi16(pairs[i], ones);
            sums[i] = one_run ? sum : _mm256_add_epi32(sums[i], sum);
        }
    }
}

/* acc [rows][16] += k columns of unpacked weights times x. */
INLINE void tile(const int bits, const int rows, const uint8_t *w, size_t k, const size_t group,
                 const uint8_t *x, float *acc, const kern_ahead *ahead)
{
    const bool wide = bits == 8;
    const uint8_t *line = ahead->at;
    for (size_t g = 0; g < k / group; g++) {
        const float *x_scales = (const float *)(const void *)(x + rows * group * (wide ? 2 : 1));
        __m256i sums[2 * TILE_ROWS];
        if (g % 2 == 0) prefetch(&line, ahead->step); /* for the scales of a pair of groups */
        if (wide)
            group_8(rows, w + 64, (const int16_t *)(const void *)x, group, sums, &line,
                    ahead->step);
        else
            group_4(rows, w + 64, (const int8_t *)x, group,
                    (const int32_t *)(const void *)(x_scales + rows), sums, &line, ahead->step);
        const __m256 w_scales[] = {_mm256_load_ps((const float *)(const void *)w),
                                   _mm256_load_ps((const float *)(const void *)(w + 32))};
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++)
                add_scaled(sums[2 * r + h], w_scales[h], x_scales[r], acc + r * KERN_PANEL + 8 * h);
        w += 64 + group * KERN_PANEL * (wide ? 2 : 1);
        x += rows * kern_quant_x_bytes(wide, (unsigned)group);
    }
}

#define TILE(bits, rows)                                                                           \
    static void tile_##bits##_##rows##__avx2(const void *w, size_t w_stride, size_t k,             \
                                             unsigned group, const void *x, float *acc,            \
                                             const kern_ahead *ahead)                              \
    {                                                                                              \
        (void)w_stride;                                                                            \
        if (group == 32) tile(bits, rows, w, k, 32, x, acc, ahead);                                \
        else if (group == 64) tile(bits, rows, w, k, 64, x, acc, ahead);                           \
        else tile(bits, rows, w, k, 128, x, acc, ahead);                                           \
    }
TILE(8, 5)
TILE(8, 6)
TILE(4, 5)
TILE(4, 6)

/* ---- unpacking ------------------------------------------------------------------------------- */

/* Unpacks 32 bytes: the columns in the lower and those in the upper half of their bits. */
INLINE void unpack_line(const int bits, __m256i v, __m256i *lower, __m256i *upper)
{
    if (bits == 8) {
        *lower = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
        *upper = _mm256_srai_epi16(v, 8);
        return;
    }
    const __m256i low = _mm256_set1_epi8(15);
    *lower = _mm256_and_si256(v, low);
    *upper = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
}

/* out = k columns of a panel, which are whole pairs of groups. */
INLINE void unpack(const int bits, const uint8_t *w, size_t k, size_t group, uint8_t *out)
{
    const size_t bytes = group * KERN_PANEL * (size_t)bits / 8;
    for (size_t pair = 0; pair < k / (2 * group); pair++) {
        const uint8_t *scales = w;
        w += 64;
        for (size_t g = 0; g < 2; g++, scales += 32) {
            _mm256_store_ps((float *)(void *)out, scales_of(bits, scales));
            _mm256_store_ps((float *)(void *)(out + 32), scales_of(bits, scales + 16));
            out += 64;
            for (const uint8_t *end = w + bytes; w < end; w += 64, out += 128) {
                __m256i v[2], lower[2], upper[2];
                load_panel(w, v);
                unpack_line(bits, v[0], &lower[0], &upper[0]);
                unpack_line(bits, v[1], &lower[1], &upper[1]);
                _mm256_store_si256((__m256i *)(void *)out, lower[0]);
                _mm256_store_si256((__m256i *)(void *)(out + 32), lower[1]);
                _mm256_store_si256((__m256i *)(void *)(out + 64), upper[0]);
                _mm256_store_si256((__m256i *)(void *)(out + 96), upper[1]);
            }
        }
    }
}

static void unpack_8__avx2(const uint8_t *w, size_t k, unsigned group, uint8_t *out)
{
    unpack(8, w, k, group, out);
}

static void unpack_4__avx2(const uint8_t *w, size_t k, unsigned group, uint8_t *out)
{
    unpack(4, w, k, group, out);
}

void kern_quant_unpacked_fill_avx2(kern_isa *isa)
{
    isa->quant_unpack[0] = unpack_8__avx2;
    isa->quant_unpack[1] = unpack_4__avx2;
    isa->quant_unpacked[0][5] = tile_8_5__avx2;
    isa->quant_unpacked[0][6] = tile_8_6__avx2;
    isa->quant_unpacked[1][5] = tile_4_5__avx2;
    isa->quant_unpacked[1][6] = tile_4_6__avx2;
}
