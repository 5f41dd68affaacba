/* Quantised matrix product, AVX2. 8 bits: madd of the even and of the odd bytes of w, as 16 bits,
 * with those of x, which is wide in both precisions. maddubs would saturate, and avoiding that (by
 * moving the signs of w to x, for each row) costs as many instructions as it saves. 4 bits: maddubs
 * of w + 8 and x; the products are so small that a run of columns is summed in 16 bits. */
#include "kernels/isa.h"
#include "kernels/quant_groups.h"

#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    TILE_ROWS = 6,
    RUN = 32, /* columns of a run that begins with 0: 8 products of 15 * 127 * 2 stay below 2^15 */
    LONG_RUN = 64, /* columns of a run that begins with x's part: it ends within 32 * 8 * 127 */
};

/* Columns whose products are summed in 16 bits before they are added up in 32. */
INLINE size_t run_of(const size_t group) { return group <= LONG_RUN ? group : RUN; }

INLINE __m256i quad_of(const int8_t *x)
{
    int32_t quad;
    memcpy(&quad, x, sizeof quad);
    return _mm256_set1_epi32(quad);
}

INLINE __m256i pair_of(const int16_t *x)
{
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return _mm256_set1_epi32(pair);
}

/* Stops the compiler from adding products first, for which it runs out of registers. */
#define KEEP(v) __asm__("" : "+x"(v))

/* Stops the compiler from keeping a tile's sums of f32 on the stack too, where each group would
 * store them a second time. */
#define SUMS_STAY_IN_MEMORY() __asm__ volatile("" ::: "memory")

/* Prefetches a line of weights. Those of 8 bits that one row reads come past the second-level
 * cache, which makes a step 4 to 10 % faster on Zen 3. With 4 bits it changes nothing. */
INLINE void prefetch(const int bits, const int rows, const uint8_t *line)
{
    if (bits == 8 && rows == 1) _mm_prefetch((const char *)line, _MM_HINT_NTA);
    else _mm_prefetch((const char *)line, _MM_HINT_T0);
}

/* sums [rows][2] += a group of a panel times x [rows][group]. Prefetches one line, from `line` on,
 * for each line of w that it reads: seventeen prefetches at once would wait for each other. */
INLINE void run_8(const int rows, const uint8_t *w, const int16_t *x, size_t group, __m256i *sums,
                  const uint8_t *line, size_t step)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < group; i += 4, w += 64, x += 4, line += step) {
        prefetch(8, rows, line);
#pragma GCC unroll 2
        for (size_t odd = 0; odd < 2; odd++) {
            __m256i v[2];
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                v[h] = _mm256_load_si256((const __m256i *)(w + 32 * h));
                v[h] = _mm256_srai_epi16(odd ? v[h] : _mm256_slli_epi16(v[h], 8), 8);
            }
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                __m256i pair = pair_of(x + (size_t)r * group + 2 * odd);
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++) {
                    __m256i product = _mm256_madd_epi16(v[h], pair);
                    sums[2 * r + h] = _mm256_add_epi32(sums[2 * r + h], product);
                    KEEP(sums[2 * r + h]);
                }
            }
        }
    }
}

INLINE __m256 scales_of(const int bits, const uint8_t *scales)
{
    __m128i half = _mm_load_si128((const __m128i *)(const void *)scales);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), bits == 8 ? 15 : 16));
}

/* acc [8] += sums, scaled. */
INLINE void add_scaled(__m256i sums, __m256 w_scales, float x_scale, float *acc)
{
    __m256 by = _mm256_mul_ps(w_scales, _mm256_set1_ps(x_scale));
    _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), by, _mm256_loadu_ps(acc)));
}

/* acc [rows][16] += sums [rows][2], scaled. */
INLINE void add_sums(const int bits, const int rows, const uint8_t *scales, const __m256i *sums,
                     const float *x_scales, float *acc)
{
    const __m256 w_scales[] = {scales_of(bits, scales), scales_of(bits, scales + 16)};
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
            add_scaled(sums[2 * r + h], w_scales[h], x_scales[r], acc + r * KERN_PANEL + 8 * h);
}

/* acc [rows][16] += a group of a panel. line and step are those of run_8. */
INLINE void add_group_8(const int rows, const uint8_t *scales, const uint8_t *w, size_t group,
                        const uint8_t *x, float *acc, const uint8_t *line, size_t step)
{
    __m256i sums[2 * TILE_ROWS];
    const int16_t *q = (const int16_t *)(const void *)x;
    const float *x_scales = (const float *)(const void *)(q + (size_t)rows * group);
#pragma GCC unroll 12
    for (int i = 0; i < 2 * rows; i++) sums[i] = _mm256_setzero_si256();
    run_8(rows, w, q, group, sums, line, step);
    SUMS_STAY_IN_MEMORY();
    add_sums(8, rows, scales, sums, x_scales, acc);
}

/* pairs [rows][2] += a run of a panel times x, in 16 bits. Both halves of the panel use a quad of x
 * while it is in a register. */
INLINE void run_4(const int rows, const uint8_t *w, const int8_t *x, size_t group, __m256i *pairs)
{
    const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 8
    for (size_t i = 0; i < run_of(group); i += 8, w += 64) {
#pragma GCC unroll 2
        for (size_t odd = 0; odd < 2; odd++) {
            __m256i v[2];
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                v[h] = _mm256_load_si256((const __m256i *)(w + 32 * h));
                v[h] = _mm256_and_si256(odd ? _mm256_srli_epi16(v[h], 4) : v[h], low);
            }
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                __m256i quad = quad_of(x + (size_t)r * group + i + 4 * odd);
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++) {
                    __m256i product = _mm256_maddubs_epi16(v[h], quad);
                    pairs[2 * r + h] = _mm256_add_epi16(pairs[2 * r + h], product);
                    KEEP(pairs[2 * r + h]);
                }
            }
        }
    }
}

/* The start of the sums of a 4-bit group, as its x has it: -8 times the sum of x, because w + 8
 * is multiplied. A group of one run begins in 16 bits, with a number for the first two columns of
 * each quad and one for the others: sums there may wrap on the way, but end within 32 * 8 * 127. */
INLINE int32_t start_of(const unsigned group, int16_t first, int16_t second)
{
    if (group > LONG_RUN) return -8 * (first + second);
    const int16_t starts[] = {(int16_t)(-8 * first), (int16_t)(-8 * second)};
    int32_t start;
    memcpy(&start, starts, sizeof start);
    return start;
}

/* The 4-bit run for one row, without a loop: it bounds decoding at batch 1 where memory is fast. */
INLINE __m256i run_4_row(const uint8_t *w, const int8_t *x, __m256i start)
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
    pairs[0] = _mm256_add_epi16(_mm256_add_epi16(pairs[0], pairs[1]), start);
    return _mm256_madd_epi16(pairs[0], _mm256_set1_epi16(1));
}

/* sums [rows][2] = starts + a group of a panel times x [rows][group]. */
INLINE void group_4(const int rows, const uint8_t *w, const int8_t *x, size_t group,
                    const int32_t *starts, __m256i *sums)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const bool one_run = group == run_of(group);
    size_t at = 0;
#pragma GCC unroll 12
    for (int i = 0; i < 2 * rows; i++) sums[i] = _mm256_set1_epi32(starts[i / 2]);
    do {
        __m256i pairs[2 * TILE_ROWS];
#pragma GCC unroll 12
        for (int i = 0; i < 2 * rows; i++)
            pairs[i] = one_run ? _mm256_set1_epi32(starts[i / 2]) : _mm256_setzero_si256();
        run_4(rows, w + at * 8, x + at, group, pairs);
        SUMS_STAY_IN_MEMORY();
#pragma GCC unroll 12
        for (int i = 0; i < 2 * rows; i++) {
            __m256i sum = _mm256_madd_epi16(pairs[i], ones);
            sums[i] = one_run ? sum : _mm256_add_epi32(sums[i], sum);
        }
        at += run_of(group);
    } while (at < group);
}

/* group_4 for one row, in short runs. Where x's part is in 16 bits, the first run ends within
 * 16 * 8 * 127 of its own products and as much of x's part for the second. */
INLINE void group_4_row(const uint8_t *w, const int8_t *x, size_t group, const int32_t *starts,
                        __m256i *sums)
{
    const __m256i start = _mm256_set1_epi32(starts[0]), zero = _mm256_setzero_si256();
    const bool in_16 = group <= LONG_RUN;
    for (int h = 0; h < 2; h++, w += 32) {
        sums[h] = in_16 ? zero : start;
        for (size_t at = 0; at < group; at += RUN) {
            __m256i run = run_4_row(w + at * 8, x + at, at == 0 && in_16 ? start : zero);
            sums[h] = _mm256_add_epi32(sums[h], run);
        }
    }
}

/* acc [rows][16] += a group of a panel. */
INLINE void add_group_4(const int rows, const uint8_t *scales, const uint8_t *w, size_t group,
                        const uint8_t *x, float *acc)
{
    __m256i sums[2 * TILE_ROWS];
    const int8_t *q = (const int8_t *)x;
    const float *x_scales = (const float *)(const void *)(x + (size_t)rows * group);
    const int32_t *starts = (const int32_t *)(const void *)(x_scales + rows);
    if (rows == 1) group_4_row(w, q, group, starts, sums);
    else group_4(rows, w, q, group, starts, sums);
    add_sums(4, rows, scales, sums, x_scales, acc);
}

INLINE void add_group(const int bits, const int rows, const uint8_t *scales, const uint8_t *w,
                      size_t group, const uint8_t *x, float *acc, const uint8_t *line, size_t step)
{
    if (bits == 8) {
        add_group_8(rows, scales, w, group, x, acc, line, step);
        return;
    }
    add_group_4(rows, scales, w, group, x, acc);
}

INLINE void tile(const int bits, const int rows, const int side, const uint8_t *w, size_t w_stride,
                 size_t k, size_t group, const uint8_t *x, float *acc, const kern_ahead *ahead)
{
    const size_t group_bytes = group * KERN_PANEL * (size_t)bits / 8;
    const size_t x_bytes = (size_t)rows * kern_quant_x_bytes(bits == 8, (unsigned)group);
    const size_t lines = 1 + 2 * group_bytes / 64;
    const uint8_t *next = ahead->at;
    for (size_t n = k / (2 * group); n > 0; n--) {
        for (int i = 0; i < side; i++) {
            const uint8_t *at = w + (size_t)i * w_stride, *line = next + (size_t)i * ahead->stride;
            /* 8 bits: run_8 prefetches the other lines; only the line of scales is prefetched
             * here. Tiles that share a prefetch have steps of a few bytes. */
            for (size_t l = 0; l < (bits == 8 ? 1 : lines * ahead->step); l += 64)
                prefetch(bits, rows, line + l);
            for (size_t g = 0; g < 2; g++)
                add_group(bits, rows, at + 32 * g, at + 64 + g * group_bytes, group,
                          x + g * x_bytes, acc + i * rows * KERN_PANEL,
                          line + (1 + g * group / 4) * ahead->step, ahead->step);
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
        if (group == 32) tile(bits, rows, side, w, w_stride, k, 32, x, acc, ahead);                \
        else if (rows == 1) tile(bits, rows, side, w, w_stride, k, group, x, acc, ahead);          \
        else if (group == 64) tile(bits, rows, side, w, w_stride, k, 64, x, acc, ahead);           \
        else tile(bits, rows, side, w, w_stride, k, 128, x, acc, ahead);                           \
    }
#define TILE1(bits, rows, side)                                                                    \
    static void tile1_##bits##_##rows##__avx2(const void *w, size_t w_stride, size_t k,            \
                                              unsigned group, const void *x, float *acc,           \
                                              const kern_ahead *ahead)                             \
    {                                                                                              \
        if (group == 32) tile(bits, rows, 1, w, w_stride, k, 32, x, acc, ahead);                   \
        else if (rows == 1) tile(bits, rows, 1, w, w_stride, k, group, x, acc, ahead);             \
        else if (group == 64) tile(bits, rows, 1, w, w_stride, k, 64, x, acc, ahead);              \
        else tile(bits, rows, 1, w, w_stride, k, 128, x, acc, ahead);                              \
    }

FOR_TILES(TILE, 8)
FOR_TILES(TILE1, 8)
FOR_TILES(TILE, 4)
FOR_TILES(TILE1, 4)

/* ---- to integers ----------------------------------------------------------------------------- */

/* The largest lane, in all lanes. */
INLINE __m256i max_lanes(__m256i v)
{
    v = _mm256_max_epi32(v, _mm256_permute2x128_si256(v, v, 1));
    v = _mm256_max_epi32(v, _mm256_shuffle_epi32(v, 0x4e));
    return _mm256_max_epi32(v, _mm256_shuffle_epi32(v, 0xb1));
}

/* The sums of the even and of the odd 16-bit lanes. */
INLINE __m128i add_pairs(__m256i v)
{
    __m128i sum = _mm_add_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0xb1));
}

/* The bits of the largest |x|. */
INLINE uint32_t largest_of(const float *x, const unsigned group)
{
    const __m256i size = _mm256_set1_epi32(0x7fffffff);
    __m256i bits = _mm256_setzero_si256();
    for (unsigned i = 0; i < group; i += 8) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        bits = _mm256_max_epi32(bits, _mm256_and_si256(v, size));
    }
    return (uint32_t)_mm256_cvtsi256_si32(max_lanes(bits));
}

INLINE __m256i to_integers(const float *x, __m256 inverse)
{
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

/* Orders the columns of each quad 0, 2, 1, 3, because a vector of quads of w is split into its even
 * and its odd bytes. */
INLINE void to_16(const float *x, const unsigned group, float most, int16_t *q, float *scale)
{
    const float inverse = quant_scale_of(largest_of(x, group), most, scale);
    if (inverse == 0.0f) {
        memset(q, 0, group * sizeof *q);
        return;
    }
    const __m256 by = _mm256_set1_ps(inverse);
    for (unsigned i = 0; i < group; i += 16) {
        __m256i v = _mm256_packs_epi32(to_integers(x + i, by), to_integers(x + i + 8, by));
        v = _mm256_permute4x64_epi64(v, 0xd8);
        v = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(v, 0xd8), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(q + i), v);
    }
}

INLINE void x_wide(const float *x, size_t groups, const unsigned group, float most, size_t rows,
                   size_t r, uint8_t *out)
{
    for (; groups > 0; groups--, x += group, out += rows * kern_quant_x_bytes(true, group)) {
        float *scales = (float *)(void *)(out + 2 * rows * group);
        to_16(x, group, most, (int16_t *)(void *)out + r * group, scales + r);
    }
}

/* start is for start_of. */
INLINE void to_8(const float *x, const unsigned group, int8_t *q, float *scale, int32_t *start)
{
    const float inverse = quant_scale_of(largest_of(x, group), 127.0f, scale);
    *start = 0;
    if (inverse == 0.0f) {
        memset(q, 0, group);
        return;
    }
    const __m256 by = _mm256_set1_ps(inverse);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i pairs = _mm256_setzero_si256();
    for (unsigned at = 0; at < group; at += RUN) {
        __m256i v[4];
        for (unsigned i = 0; i < 4; i++) v[i] = to_integers(x + at + 8 * i, by);
        __m256i left = _mm256_packs_epi32(v[0], v[1]), right = _mm256_packs_epi32(v[2], v[3]);
        __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(left, right), order);
        _mm256_storeu_si256((__m256i *)(void *)(q + at), bytes);
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes));
    }
    const __m128i sums = add_pairs(pairs); /* each within 64 * 127 */
    *start =
        start_of(group, (int16_t)_mm_extract_epi16(sums, 0), (int16_t)_mm_extract_epi16(sums, 1));
}

INLINE void x_narrow(const float *x, size_t groups, const unsigned group, size_t rows, size_t r,
                     uint8_t *out)
{
    for (; groups > 0; groups--, x += group, out += rows * kern_quant_x_bytes(false, group)) {
        float *scales = (float *)(void *)(out + rows * group);
        int32_t *starts = (int32_t *)(void *)(scales + rows);
        to_8(x, group, (int8_t *)out + r * group, scales + r, starts + r);
    }
}

#define X_WIDE(name, most)                                                                         \
    static void quant_x_##name##__avx2(const float *x, size_t groups, unsigned group, size_t rows, \
                                       size_t r, uint8_t *out)                                     \
    {                                                                                              \
        if (group == RUN) x_wide(x, groups, RUN, most, rows, r, out);                              \
        else x_wide(x, groups, group, most, rows, r, out);                                         \
    }
X_WIDE(8, 127.0f)
X_WIDE(8_high, 32767.0f)

static void quant_x_4__avx2(const float *x, size_t groups, unsigned group, size_t rows, size_t r,
                            uint8_t *out)
{
    if (group == RUN) x_narrow(x, groups, RUN, rows, r, out);
    else x_narrow(x, groups, group, rows, r, out);
}

static uint16_t quant_w8__avx2(const float *w, unsigned group, int8_t *q)
{
    return group == RUN ? quant_group_8(w, RUN, q) : quant_group_8(w, group, q);
}

static uint16_t quant_w4__avx2(const float *w, unsigned group, int8_t *q)
{
    return group == RUN ? quant_group_4(w, RUN, q) : quant_group_4(w, group, q);
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
    isa->quant_many = isa->quant_many_least = 1;
    isa->quant_many_rows = TILE_ROWS;
    isa->quant_x_wide[0] = true;
    isa->quant_x_wide[1] = false;
    isa->quant_x[0] =
        isa->precision == KERN_PRECISION_HIGH ? quant_x_8_high__avx2 : quant_x_8__avx2;
    isa->quant_x[1] = quant_x_4__avx2;
    isa->quant_w[0] = quant_w8__avx2;
    isa->quant_w[1] = quant_w4__avx2;
}
