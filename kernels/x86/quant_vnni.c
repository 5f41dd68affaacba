/* Quantised matrix product, AVX512-VNNI: a register holds four columns (a quad), or two, of all
 * rows of a panel; x is broadcast from memory. A tile is a block of registers, rows of x by panels:
 * a line of weights is unpacked once for all rows, and four columns of a row of x are loaded once
 * for all panels. x is packed as the steps read it, four bytes of each row side by side.
 *     bytes     8-bit weights + 128, the unsigned operand, by x of 8 bits
 *     halves    4-bit weights + 8 by x of 8 bits
 *     pairs     even and odd bytes of 8-bit weights as 16 bits, by x of 16 (high precision) */
#include "kernels/isa.h"
#include "kernels/x86/quant_avx512.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef enum form { BYTES, HALVES, PAIRS } form;

/* Many rows are cut into tiles of five rows by two panels. In a larger tile the conversions and
 * products at the end of a group overlap less with the next group: from L1, with groups of 32,
 * tiles of 5, 6 and 8 rows reach 77, 75 and 74 % of the rate of vpdpbusd on Zen 5. A group costs
 * two products for every eight, so 80 % is the most. Wider groups end half as often or less, and
 * tiles of 8 rows then take up to 8 % less time. */
enum {
    TILE_ROWS = 8,
    MANY_ROWS = 5,
    MANY_LEAST = 4,
    SIDE = 2, /* panels of a tile: streams of weights while they come from memory */
    AHEAD_BYTES = 8192,
    SUMS = SIDE * TILE_ROWS, /* most sums of a tile */
    STEPS_A_LINE_MOST = 2,
};

static inline int steps_a_line(const form f) { return f == BYTES ? 1 : 2; }

/* A line of 64 bytes of weights as operands of its steps. */
INLINE void get_steps(const form f, const uint8_t *line, __m512i *step)
{
    const __m512i w = _mm512_load_si512(line);
    if (f == BYTES) {
        step[0] = _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80));
    } else if (f == HALVES) {
        const __m512i low = _mm512_set1_epi8(15);
        step[0] = _mm512_and_si512(w, low);
        step[1] = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
    } else {
        step[0] = _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8);
        step[1] = _mm512_srai_epi16(w, 8);
    }
}

/* Sixteen sums, in the type that gcc uses for them: as __m512i they are converted around each loop,
 * and spilled. */
typedef int32_t lanes __attribute__((vector_size(64)));
typedef float floats __attribute__((vector_size(64)));

INLINE lanes dot(const form f, lanes sum, __m512i w, __m512i x)
{
    return (lanes)(f == PAIRS ? _mm512_dpwssd_epi32((__m512i)sum, w, x)
                              : _mm512_dpbusd_epi32((__m512i)sum, w, x));
}

INLINE __m512i four_bytes(const uint8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}

/* The prefetches of a tile: one line, from `at` on, for each line of a panel. */
typedef struct fetch {
    const uint8_t *at;
    size_t stride, step;
} fetch;

/* sums [rows][side] += `lines` lines of each panel times x. */
INLINE void run_lines(const form f, const int rows, const int side, const uint8_t *w,
                      size_t w_stride, size_t lines, const uint8_t *x, lanes *sums, fetch ahead)
{
    const int steps = steps_a_line(f);
    do { /* a group has at least one line */
        __m512i step[SIDE][STEPS_A_LINE_MOST];
#pragma GCC unroll 8
        for (int i = 0; i < side; i++) {
            _mm_prefetch((const char *)ahead.at + (size_t)i * ahead.stride, _MM_HINT_T0);
            get_steps(f, w + (size_t)i * w_stride, step[i]);
        }
#pragma GCC unroll 2
        for (int s = 0; s < steps; s++)
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const __m512i four = four_bytes(x + (s * rows + r) * 4);
#pragma GCC unroll 8
                for (int i = 0; i < side; i++)
                    sums[r * side + i] = dot(f, sums[r * side + i], step[i][s], four);
            }
        w += 64;
        x += steps * rows * 4;
        ahead.at += ahead.step;
    } while (--lines > 0);
}

INLINE __m512 scales_of(const form f, const uint8_t *scales)
{
    const __m256i half = _mm256_load_si256((const __m256i *)(const void *)scales);
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), f == HALVES ? 16 : 15));
}

/* acc [side][rows] += a group of each panel. */
INLINE void add_group(const form f, const int rows, const int side, const uint8_t *scales,
                      const uint8_t *w, size_t w_stride, size_t group, const uint8_t *x,
                      floats *acc, fetch ahead)
{
    lanes sums[SUMS];
    const size_t q_bytes = (size_t)rows * group * (f == PAIRS ? 2 : 1);
    const float *x_scales = (const float *)(const void *)(x + q_bytes);
    const int32_t *starts = (const int32_t *)(const void *)(x_scales + rows);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        const __m512i start = f == PAIRS ? _mm512_setzero_si512() : _mm512_set1_epi32(starts[r]);
#pragma GCC unroll 8
        for (int i = 0; i < side; i++) sums[r * side + i] = (lanes)start;
    }
    run_lines(f, rows, side, w, w_stride, group / (f == HALVES ? 8 : 4), x, sums, ahead);
#pragma GCC unroll 8
    for (int i = 0; i < side; i++) {
        const __m512 scale = scales_of(f, scales + (size_t)i * w_stride);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            floats *at = &acc[i * rows + r];
            const __m512 by = _mm512_mul_ps(scale, _mm512_set1_ps(x_scales[r]));
            const __m512 sum = _mm512_cvtepi32_ps((__m512i)sums[r * side + i]);
            *at = (floats)_mm512_fmadd_ps(sum, by, (__m512)*at);
        }
    }
}

/* Runs a tile. The sums of groups stay in registers too while there are enough. In memory, where
 * every group loads and stores them, tiles of 5, 6 and 8 rows reach 75, 72 and 70 % instead of the
 * rates above. */
INLINE void tile(const form f, const int rows, const int side, const uint8_t *w, size_t w_stride,
                 size_t k, size_t group, const uint8_t *x, float *acc, const kern_ahead *ahead)
{
    const size_t lines = group / (f == HALVES ? 8 : 4); /* lines of a group */
    const size_t x_bytes = (size_t)rows * kern_quant_x_bytes(f == PAIRS, (unsigned)group);
    fetch next = {ahead->at, ahead->stride, ahead->step};
    floats total[SUMS];
#pragma GCC unroll 16
    for (int s = 0; s < rows * side; s++) total[s] = (floats)_mm512_loadu_ps(acc + s * KERN_PANEL);
    for (size_t n = k / (2 * group); n > 0; n--) {
        for (int i = 0; i < side; i++)
            _mm_prefetch((const char *)next.at + (size_t)i * next.stride, _MM_HINT_T0);
        next.at += next.step;
        for (size_t g = 0; g < 2; g++) {
            add_group(f, rows, side, w + 32 * g, w + 64 + g * lines * 64, w_stride, group, x, total,
                      next);
            next.at += lines * next.step;
            x += x_bytes;
        }
        w += 64 + 2 * lines * 64;
    }
#pragma GCC unroll 16
    for (int s = 0; s < rows * side; s++) _mm512_storeu_ps(acc + s * KERN_PANEL, (__m512)total[s]);
}

/* Rows of a tile. A tile of few rows waits for memory, and two streams of 4 KiB ahead are faster
 * than more streams: on Zen 5 one thread reads 8-bit weights for one row at 39 GB/s with two, 37
 * with four and 34 with eight streams. */
#define FOR_TILES(X, form)                                                                         \
    X(form, 1) X(form, 2) X(form, 3) X(form, 4) X(form, 5) X(form, 6) X(form, 7) X(form, 8)

#define TILE(form, rows)                                                                           \
    static void tile_##form##_##rows##__vnni(const void *w, size_t w_stride, size_t k,             \
                                             unsigned group, const void *x, float *acc,            \
                                             const kern_ahead *ahead)                              \
    {                                                                                              \
        tile(form, rows, SIDE, w, w_stride, k, group, x, acc, ahead);                              \
    }
#define TILE1(form, rows)                                                                          \
    static void tile1_##form##_##rows##__vnni(const void *w, size_t w_stride, size_t k,            \
                                              unsigned group, const void *x, float *acc,           \
                                              const kern_ahead *ahead)                             \
    {                                                                                              \
        tile(form, rows, 1, w, w_stride, k, group, x, acc, ahead);                                 \
    }

FOR_TILES(TILE, BYTES)
FOR_TILES(TILE1, BYTES)
FOR_TILES(TILE, HALVES)
FOR_TILES(TILE1, HALVES)
FOR_TILES(TILE, PAIRS)
FOR_TILES(TILE1, PAIRS)

/* ---- x --------------------------------------------------------------------------------------- */

/* Spreads `bytes` bytes over row r: each four of them 4 * rows bytes apart. */
INLINE void spread(const uint8_t *from, size_t bytes, size_t rows, size_t r, uint8_t *out)
{
    for (out += 4 * r; bytes > 0; bytes -= 4, from += 4, out += 4 * rows) memcpy(out, from, 4);
}

INLINE void x_narrow(const float *x, size_t groups, const unsigned group, int32_t offset,
                     size_t rows, size_t r, uint8_t *out)
{
    for (; groups > 0; groups--, x += group, out += rows * kern_quant_x_bytes(false, group)) {
        float *scales = (float *)(void *)(out + rows * group);
        int32_t *starts = (int32_t *)(void *)(scales + rows), sum;
        int8_t q[KERN_GROUP_MAX];
        quant_x8_avx512(x, group, q, scales + r, &sum);
        starts[r] = -offset * sum;
        spread((const uint8_t *)q, group, rows, r, out);
    }
}

#define X_NARROW(form, offset)                                                                     \
    static void quant_x_##form##__vnni(const float *x, size_t groups, unsigned group, size_t rows, \
                                       size_t r, uint8_t *out)                                     \
    {                                                                                              \
        if (group == 32) x_narrow(x, groups, 32, offset, rows, r, out);                            \
        else x_narrow(x, groups, group, offset, rows, r, out);                                     \
    }
X_NARROW(BYTES, 128)
X_NARROW(HALVES, 8)

/* Packs columns 0 and 2 of each quad, then 1 and 3: those of the even and of the odd bytes of w. */
static void quant_x_PAIRS__vnni(const float *x, size_t groups, unsigned group, size_t rows,
                                size_t r, uint8_t *out)
{
    for (; groups > 0; groups--, x += group, out += rows * kern_quant_x_bytes(true, group)) {
        float *scales = (float *)(void *)(out + 2 * rows * group);
        int16_t q[KERN_GROUP_MAX] = {0};
        const float inverse = quant_scale_of(quant_largest_avx512(x, group), 32767.0f, scales + r);
        for (unsigned i = 0; i < group && inverse != 0.0f; i += 16) {
            __m256i v = _mm512_cvtepi32_epi16(quant_integers_avx512(x + i, inverse));
            v = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(v, 0xd8), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(q + i), v);
        }
        spread((const uint8_t *)q, (size_t)2 * group, rows, r, out);
    }
}

void kern_quant_fill_vnni(kern_isa *isa)
{
    const bool wide = isa->precision == KERN_PRECISION_HIGH;
    isa->quant_rows = TILE_ROWS;
    isa->quant_many = SIDE;
    isa->quant_many_rows = MANY_ROWS;
    isa->quant_many_least = MANY_LEAST;
    isa->quant_ahead[0] = isa->quant_ahead[1] = AHEAD_BYTES;
#define SET_TILE(form, rows)                                                                       \
    isa->quant_panels[form == HALVES][rows] = SIDE;                                                \
    isa->quant_tile[form == HALVES][rows] = tile_##form##_##rows##__vnni;                          \
    isa->quant_tile1[form == HALVES][rows] = tile1_##form##_##rows##__vnni;
    FOR_TILES(SET_TILE, BYTES)
    FOR_TILES(SET_TILE, HALVES)
    if (wide) {
        FOR_TILES(SET_TILE, PAIRS)
    }
    isa->quant_unpacks = false;
    isa->quant_x_wide[0] = wide;
    isa->quant_x[0] = wide ? quant_x_PAIRS__vnni : quant_x_BYTES__vnni;
    isa->quant_x[1] = quant_x_HALVES__vnni;
}
