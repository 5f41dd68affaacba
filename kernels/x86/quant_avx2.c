/* Quantised matrix product, AVX2. 8 bits: madd of the even and of the odd bytes of w, as 16 bits,
 * with those of x, which is wide in both precisions. maddubs would saturate, and avoiding that (by
 * moving the signs of w to x, for each row) costs as many instructions as it saves. 4 bits: maddubs
 * of w + 8 and x; the products are so small that a run of columns is summed in 16 bits. 12 bits
 * (block floats): madd of pairs of w, as 16 bits, and x. */
#include "kernels/x86/quant_avx2.h"
#include "kernels/quant_groups.h"

enum { AHEAD = 3072 }; /* bytes that a lone tile of several rows prefetches ahead */

INLINE __m256i pair_of(const int16_t *x)
{
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return _mm256_set1_epi32(pair);
}

/* Stops the compiler from adding products first, for which it runs out of registers. */
#define KEEP(v) __asm__("" : "+x"(v))

/* Prefetches a line of weights. Those that one row reads come past the second-level cache, which is
 * as fast on Zen 3 or 1 % faster. */
INLINE void prefetch(const int rows, const uint8_t *line)
{
    if (rows == 1) _mm_prefetch((const char *)line, _MM_HINT_NTA);
    else _mm_prefetch((const char *)line, _MM_HINT_T0);
}

/* sums [side][rows][2] += a group of `side` panels, w_stride bytes apart, times x [rows][group].
 * Prefetches a line of each panel, `ahead->stride` bytes apart, for each line of it that is read:
 * seventeen prefetches at once would wait for each other. */
INLINE void run_8(const int rows, const int side, const uint8_t *w, size_t w_stride,
                  const int16_t *x, const size_t group, __m256i *sums, const uint8_t *line,
                  const kern_ahead *ahead)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < group; i += 4, w += 64, x += 4, line += ahead->step) {
#pragma GCC unroll 4
        for (int s = 0; s < side; s++) {
            const uint8_t *at = w + (size_t)s * w_stride;
            prefetch(rows, line + (size_t)s * ahead->stride);
#pragma GCC unroll 2
            for (size_t odd = 0; odd < 2; odd++) {
                __m256i v[2];
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++) {
                    v[h] = _mm256_load_si256((const __m256i *)(at + 32 * h));
                    v[h] = _mm256_srai_epi16(odd ? v[h] : _mm256_slli_epi16(v[h], 8), 8);
                }
#pragma GCC unroll 6
                for (int r = 0; r < rows; r++) {
                    __m256i pair = pair_of(x + (size_t)r * group + 2 * odd);
#pragma GCC unroll 2
                    for (int h = 0; h < 2; h++) {
                        __m256i *sum = &sums[2 * (s * rows + r) + h];
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(v[h], pair));
                        KEEP(*sum);
                    }
                }
            }
        }
    }
}

/* run_8 for block floats, whose 8 columns are three lines. */
INLINE void run_12(const int rows, const int side, const uint8_t *w, size_t w_stride,
                   const int16_t *x, __m256i *sums, const uint8_t *line, const kern_ahead *ahead)
{
    const size_t group = QUANT_GROUP_12;
    for (size_t i = 0; i < group; i += 8, x += 8, w += 192) {
#pragma GCC unroll 4
        for (size_t pair = 0; pair < 4; pair++) {
#pragma GCC unroll 6
            for (int s = 0; s < side; s++) {
                const uint8_t *at = w + (size_t)s * w_stride;
                if (pair < 3) prefetch(rows, line + (size_t)s * ahead->stride);
                __m256i v[2];
                load_pair_12(at + 64 + 32 * pair, at + pair / 2 * 32, pair % 2, v);
#pragma GCC unroll 6
                for (int r = 0; r < rows; r++)
                    add_pair(sums + 2 * (s * rows + r), v, x + (size_t)r * group + 2 * pair);
            }
            if (pair < 3) line += ahead->step;
        }
    }
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

/* pairs [side][rows][2] += a run of `side` panels times x, in 16 bits; otherwise as run_8. */
INLINE void run_4(const int rows, const int side, const uint8_t *w, size_t w_stride,
                  const int8_t *x, const size_t group, __m256i *pairs, const uint8_t *line,
                  const kern_ahead *ahead)
{
    const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 8
    for (size_t i = 0; i < run_of(group); i += 8, w += 64, x += 8, line += ahead->step) {
#pragma GCC unroll 4
        for (int s = 0; s < side; s++) {
            const uint8_t *at = w + (size_t)s * w_stride;
            prefetch(rows, line + (size_t)s * ahead->stride);
#pragma GCC unroll 2
            for (size_t odd = 0; odd < 2; odd++) {
                __m256i v[2];
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++) {
                    v[h] = _mm256_load_si256((const __m256i *)(at + 32 * h));
                    v[h] = _mm256_and_si256(odd ? _mm256_srli_epi16(v[h], 4) : v[h], low);
                }
#pragma GCC unroll 6
                for (int r = 0; r < rows; r++)
                    add_quad(pairs + 2 * (s * rows + r), v, x + (size_t)r * group + 4 * odd);
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

/* sums [side][rows][2] = starts + a group of `side` panels times x [rows][group]; otherwise as
 * run_8. */
INLINE void group_4(const int rows, const int side, const uint8_t *w, size_t w_stride,
                    const int8_t *x, const size_t group, const int32_t *starts, __m256i *sums,
                    const uint8_t *line, const kern_ahead *ahead)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const bool one_run = group == run_of(group);
#pragma GCC unroll 12
    for (int i = 0; i < 2 * rows * side; i++) sums[i] = _mm256_set1_epi32(starts[i / 2 % rows]);
    for (size_t at = 0; at < group; at += run_of(group)) {
        __m256i pairs[2 * TILE_ROWS];
#pragma GCC unroll 12
        for (int i = 0; i < 2 * rows * side; i++)
            pairs[i] = one_run ? _mm256_set1_epi32(starts[i / 2 % rows]) : _mm256_setzero_si256();
        run_4(rows, side, w + at * 8, w_stride, x + at, group, pairs, line, ahead);
        SUMS_STAY_IN_MEMORY();
#pragma GCC unroll 12
        for (int i = 0; i < 2 * rows * side; i++) {
            __m256i sum = _mm256_madd_epi16(pairs[i], ones);
            sums[i] = one_run ? sum : _mm256_add_epi32(sums[i], sum);
        }
        line += run_of(group) / 8 * ahead->step;
    }
}

/* sums [side][rows][2] = a group of `side` panels times x; otherwise as run_8. Returns x's
 * scales. */
INLINE const float *add_group(const int bits, const int rows, const int side, const uint8_t *w,
                              size_t w_stride, const uint8_t *x, const size_t group, __m256i *sums,
                              const uint8_t *line, const kern_ahead *ahead)
{
    if (bits == 4) {
        const float *scales = (const float *)(const void *)(x + (size_t)rows * group);
        const int32_t *starts = (const int32_t *)(const void *)(scales + rows);
        group_4(rows, side, w, w_stride, (const int8_t *)x, group, starts, sums, line, ahead);
        return scales;
    }
    const int16_t *q = (const int16_t *)(const void *)x;
#pragma GCC unroll 12
    for (int i = 0; i < 2 * rows * side; i++) sums[i] = _mm256_setzero_si256();
    if (bits == 8) run_8(rows, side, w, w_stride, q, group, sums, line, ahead);
    else run_12(rows, side, w, w_stride, q, sums, line, ahead);
    SUMS_STAY_IN_MEMORY();
    return (const float *)(const void *)(q + (size_t)rows * group);
}

/* Lines of all panels are read in turns, so that as many as can be are on their way at any time. */
INLINE void tile(const int bits, const int rows, const int side, const uint8_t *w, size_t w_stride,
                 size_t k, const size_t group, const uint8_t *x, float *acc,
                 const kern_ahead *ahead)
{
    const size_t group_bytes = group * KERN_PANEL * (size_t)bits / 8, lines = group_bytes / 64;
    const size_t x_bytes = (size_t)rows * kern_quant_x_bytes(bits != 4, (unsigned)group);
    const uint8_t *next = ahead->at;
    for (size_t n = k / (2 * group); n > 0; n--) {
#pragma GCC unroll 6
        for (int s = 0; s < side; s++) prefetch(rows, next + (size_t)s * ahead->stride);
        next += ahead->step;
        for (size_t g = 0; g < 2; g++, x += x_bytes, next += lines * ahead->step) {
            __m256i sums[2 * TILE_ROWS];
            const float *x_scales = add_group(bits, rows, side, w + 64 + g * group_bytes, w_stride,
                                              x, group, sums, next, ahead);
#pragma GCC unroll 6
            for (int s = 0; s < side; s++)
                add_sums(bits, rows, w + (size_t)s * w_stride + 32 * g, sums + 2 * s * rows,
                         x_scales, acc + s * rows * KERN_PANEL);
        }
        w += 64 + 2 * group_bytes;
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

/* Tiles of one to three rows take several panels, so that they have as many sums as a tile of six
 * rows. With four or five panels one row is as fast on Zen 3. */
#define FOR_TILES_12(X) X(12, 1, 6) X(12, 2, 3) X(12, 3, 2) X(12, 4, 1) X(12, 5, 1) X(12, 6, 1)

#define TILE_12(bits, rows, side)                                                                  \
    static void tile_12_##rows##__avx2(const void *w, size_t w_stride, size_t k, unsigned group,   \
                                       const void *x, float *acc, const kern_ahead *ahead)         \
    {                                                                                              \
        (void)group;                                                                               \
        tile(12, rows, side, w, w_stride, k, QUANT_GROUP_12, x, acc, ahead);                       \
    }                                                                                              \
    static void tile1_12_##rows##__avx2(const void *w, size_t w_stride, size_t k, unsigned group,  \
                                        const void *x, float *acc, const kern_ahead *ahead)        \
    {                                                                                              \
        (void)group;                                                                               \
        tile(12, rows, 1, w, w_stride, k, QUANT_GROUP_12, x, acc, ahead);                          \
    }
FOR_TILES_12(TILE_12)

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
INLINE void to_16(const float *x, const unsigned group, const bool quads, float most, int16_t *q,
                  float *scale)
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
        if (quads) v = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(v, 0xd8), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(q + i), v);
    }
}

INLINE void x_wide(const float *x, size_t groups, const unsigned group, const bool quads,
                   float most, size_t rows, size_t r, uint8_t *out)
{
    for (; groups > 0; groups--, x += group, out += rows * kern_quant_x_bytes(true, group)) {
        float *scales = (float *)(void *)(out + 2 * rows * group);
        to_16(x, group, quads, most, (int16_t *)(void *)out + r * group, scales + r);
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

#define X_WIDE(name, quads, most)                                                                  \
    static void quant_x_##name##__avx2(const float *x, size_t groups, unsigned group, size_t rows, \
                                       size_t r, uint8_t *out)                                     \
    {                                                                                              \
        if (group == RUN) x_wide(x, groups, RUN, quads, most, rows, r, out);                       \
        else x_wide(x, groups, group, quads, most, rows, r, out);                                  \
    }
X_WIDE(8, true, 127.0f)
X_WIDE(8_high, true, 32767.0f)
X_WIDE(12, false, QUANT_X_MOST_12)

static void quant_x_4__avx2(const float *x, size_t groups, unsigned group, size_t rows, size_t r,
                            uint8_t *out)
{
    if (group == RUN) x_narrow(x, groups, RUN, rows, r, out);
    else x_narrow(x, groups, group, rows, r, out);
}

static uint16_t quant_w8__avx2(const float *w, unsigned group, void *q)
{
    return group == RUN ? quant_group_8(w, RUN, q) : quant_group_8(w, group, q);
}

static uint16_t quant_w4__avx2(const float *w, unsigned group, void *q)
{
    return group == RUN ? quant_group_4(w, RUN, q) : quant_group_4(w, group, q);
}

static uint16_t quant_w12__avx2(const float *w, unsigned group, void *q)
{
    return quant_group_12(w, group, q);
}

void kern_quant_fill_avx2(kern_isa *isa)
{
    isa->quant_rows = TILE_ROWS;
#define SET_TILE(bits, rows, side)                                                                 \
    isa->quant_panels[kern_quant_index((kern_quant){bits, 0})][rows] = side;                       \
    isa->quant_tile[kern_quant_index((kern_quant){bits, 0})][rows] = tile_##bits##_##rows##__avx2; \
    isa->quant_tile1[kern_quant_index((kern_quant){bits, 0})][rows] = tile1_##bits##_##rows##__avx2;
    FOR_TILES(SET_TILE, 8)
    FOR_TILES(SET_TILE, 4)
    FOR_TILES_12(SET_TILE)
    for (unsigned i = 0; i < KERN_QUANTS; i++) isa->quant_ahead[i] = AHEAD;
    isa->quant_many = isa->quant_many_least = 1;
    isa->quant_many_rows = TILE_ROWS;
    isa->quant_x_wide[0] = true;
    isa->quant_x_wide[1] = false;
    isa->quant_x_wide[2] = true;
    isa->quant_x[0] =
        isa->precision == KERN_PRECISION_HIGH ? quant_x_8_high__avx2 : quant_x_8__avx2;
    isa->quant_x[1] = quant_x_4__avx2;
    isa->quant_x[2] = quant_x_12__avx2;
    isa->quant_w[0] = quant_w8__avx2;
    isa->quant_w[1] = quant_w4__avx2;
    isa->quant_w[2] = quant_w12__avx2;
    kern_quant_unpacked_fill_avx2(isa);
}
