/* Quantised matrix product of several tiles of rows, AVX2: the first tile unpacks the weights for
 * all of them, 4 bits to 8, and 8 and 12 bits to 16, so that the others only multiply. An unpacked
 * group is its scales [16] f32, then lines of 64 bytes, each of two columns (8 and 12 bits) or four
 * (4 bits) of all 16 outputs, in the order of x. The integers and the order of their sums are those
 * of quant_avx2.c, and so are the bits of the results. */
#include "kernels/quant_groups.h"
#include "kernels/x86/quant_avx2.h"

/* A tile's weights. */
typedef struct source {
    const uint8_t *stored; /* for the tile that unpacks */
    uint8_t *unpacked;     /* that tile writes here, others read */
} source;

/* v = the next line of unpacked weights, the i-th of a unit. A unit is two lines, which are stored
 * as one; with block floats it is four, which are stored as three. */
INLINE void next_line(const int bits, const bool unpacks, const size_t i, source *w, __m256i v[2])
{
    __m256i *line = (__m256i *)(void *)w->unpacked;
    w->unpacked += 64;
    if (!unpacks) {
        v[0] = _mm256_load_si256(line);
        v[1] = _mm256_load_si256(line + 1);
        return;
    }
    if (bits == 12) {
        load_pair_12(w->stored + 64 + 32 * i, w->stored + i / 2 * 32, i % 2, v);
        if (i == 3) w->stored += 192;
    } else {
        const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            v[h] = _mm256_load_si256((const __m256i *)(const void *)(w->stored + 32 * h));
            if (bits == 8) v[h] = _mm256_srai_epi16(i ? v[h] : _mm256_slli_epi16(v[h], 8), 8);
            else v[h] = _mm256_and_si256(i ? _mm256_srli_epi16(v[h], 4) : v[h], low);
        }
        if (i == 1) w->stored += 64;
    }
    _mm256_store_si256(line, v[0]);
    _mm256_store_si256(line + 1, v[1]);
}

/* Prefetches from the weights that are unpacked next. Tiles call it once for each 64 bytes that the
 * present weights take as they are stored. */
INLINE void prefetch(const uint8_t **line, size_t step)
{
    _mm_prefetch((const char *)*line, _MM_HINT_T0);
    *line += step;
}

/* sums [rows][2] = a group of weights of 8 or 12 bits times x [rows][group]. */
INLINE void group_wide(const int bits, const bool unpacks, const int rows, source *w,
                       const int16_t *x, const size_t group, __m256i *sums, const uint8_t **line,
                       size_t step)
{
    const size_t unit = bits == 12 ? 4 : 2;
#pragma GCC unroll 12
    for (int i = 0; i < 2 * rows; i++) sums[i] = _mm256_setzero_si256();
    for (size_t at = 0; at < group; at += 8)
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            __m256i v[2];
            if (bits == 8 ? i % 2 == 0 : i < 3) prefetch(line, step);
            next_line(bits, unpacks, i % unit, w, v);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++)
                add_pair(sums + 2 * r, v, x + (size_t)r * group + at + 2 * i);
        }
    SUMS_STAY_IN_MEMORY();
}

/* pairs [rows][2] += a run of 4-bit weights times x, in 16 bits. */
INLINE void run_4(const bool unpacks, const int rows, source *w, const int8_t *x,
                  const size_t group, __m256i *pairs, const uint8_t **line, size_t step)
{
#pragma GCC unroll 8
    for (size_t at = 0; at < run_of(group); at += 8) {
        prefetch(line, step);
#pragma GCC unroll 2
        for (size_t i = 0; i < 2; i++) {
            __m256i v[2];
            next_line(4, unpacks, i, w, v);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++)
                add_quad(pairs + 2 * r, v, x + (size_t)r * group + at + 4 * i);
        }
    }
}

/* sums [rows][2] = starts + a group of 4-bit weights times x. */
INLINE void group_4(const bool unpacks, const int rows, source *w, const int8_t *x,
                    const size_t group, const int32_t *starts, __m256i *sums, const uint8_t **line,
                    size_t step)
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
        run_4(unpacks, rows, w, x + at, group, pairs, line, step);
        SUMS_STAY_IN_MEMORY();
#pragma GCC unroll 12
        for (int i = 0; i < 2 * rows; i++) {
            __m256i sum = _mm256_madd_epi16(pairs[i], ones);
            sums[i] = one_run ? sum : _mm256_add_epi32(sums[i], sum);
        }
    }
}

/* acc [rows][16] += k columns of weights times x. */
INLINE void tile(const int bits, const bool unpacks, const int rows, source w, size_t k,
                 const size_t group, const uint8_t *x, float *acc, const kern_ahead *ahead)
{
    const bool wide = bits != 4;
    const uint8_t *line = ahead->at, *scales = NULL;
    for (size_t g = 0; g < k / group; g++) {
        const float *x_scales = (const float *)(const void *)(x + rows * group * (wide ? 2 : 1));
        float *unpacked_scales = (float *)(void *)w.unpacked;
        __m256i sums[2 * TILE_ROWS];
        w.unpacked += 64;
        if (g % 2 == 0) { /* for the scales of a pair of groups */
            prefetch(&line, ahead->step);
            scales = w.stored;
            if (unpacks) w.stored += 64;
        }
        if (wide)
            group_wide(bits, unpacks, rows, &w, (const int16_t *)(const void *)x, group, sums,
                       &line, ahead->step);
        else
            group_4(unpacks, rows, &w, (const int8_t *)x, group,
                    (const int32_t *)(const void *)(x_scales + rows), sums, &line, ahead->step);
        __m256 w_scales[2];
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            float *at = unpacked_scales + 8 * h;
            w_scales[h] = unpacks ? scales_of(bits, scales + 16 * h) : _mm256_load_ps(at);
            if (unpacks) _mm256_store_ps(at, w_scales[h]);
        }
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++)
                add_scaled(sums[2 * r + h], w_scales[h], x_scales[r], acc + r * KERN_PANEL + 8 * h);
        if (unpacks) scales += 32;
        x += rows * kern_quant_x_bytes(wide, (unsigned)group);
    }
}

/* A tile that reads unpacked weights, and one that unpacks them. */
#define TILES(bits, rows, group_of)                                                                \
    INLINE void tile_##bits##_##rows(const bool unpacks, source w, size_t k, unsigned group,       \
                                     const void *x, float *acc, const kern_ahead *ahead)           \
    {                                                                                              \
        group_of(bits, unpacks, rows, w, k, group, x, acc, ahead);                                 \
    }                                                                                              \
    static void unpacked_##bits##_##rows##__avx2(uint8_t *unpacked, size_t k, unsigned group,      \
                                                 const void *x, float *acc,                        \
                                                 const kern_ahead *ahead)                          \
    {                                                                                              \
        tile_##bits##_##rows(false, (source){NULL, unpacked}, k, group, x, acc, ahead);            \
    }                                                                                              \
    static void unpacking_##bits##_##rows##__avx2(const uint8_t *w, uint8_t *unpacked, size_t k,   \
                                                  unsigned group, const void *x, float *acc,       \
                                                  const kern_ahead *ahead)                         \
    {                                                                                              \
        tile_##bits##_##rows(true, (source){w, unpacked}, k, group, x, acc, ahead);                \
    }

#define ANY_GROUP(bits, unpacks, rows, w, k, group, x, acc, ahead)                                 \
    if (group == 32) tile(bits, unpacks, rows, w, k, 32, x, acc, ahead);                           \
    else if (group == 64) tile(bits, unpacks, rows, w, k, 64, x, acc, ahead);                      \
    else tile(bits, unpacks, rows, w, k, 128, x, acc, ahead)
#define ONE_GROUP(bits, unpacks, rows, w, k, group, x, acc, ahead)                                 \
    (void)group;                                                                                   \
    tile(bits, unpacks, rows, w, k, QUANT_GROUP_12, x, acc, ahead)

// clang-format off
#define FOR_TILES(X)                                                                               \
    X(8, 3, ANY_GROUP) X(8, 4, ANY_GROUP) X(8, 5, ANY_GROUP) X(8, 6, ANY_GROUP)                    \
    X(4, 3, ANY_GROUP) X(4, 4, ANY_GROUP) X(4, 5, ANY_GROUP) X(4, 6, ANY_GROUP)                    \
    X(12, 3, ONE_GROUP) X(12, 4, ONE_GROUP) X(12, 5, ONE_GROUP) X(12, 6, ONE_GROUP)
// clang-format on
FOR_TILES(TILES)

void kern_quant_unpacked_fill_avx2(kern_isa *isa)
{
    isa->quant_unpacks = true;
#define SET_TILE(bits, rows, group_of)                                                             \
    isa->quant_unpacked[kern_quant_index((kern_quant){bits, 0})][rows] =                           \
        unpacked_##bits##_##rows##__avx2;                                                          \
    isa->quant_unpacking[kern_quant_index((kern_quant){bits, 0})][rows] =                          \
        unpacking_##bits##_##rows##__avx2;
    FOR_TILES(SET_TILE)
}
