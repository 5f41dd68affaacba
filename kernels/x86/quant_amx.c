/* Quantised matrix product, AMX-INT8. A group of a panel is a tile of its quads by 16 rows of W
 * (two tiles where the group has 128 columns); x is a tile of 16 rows. Wide x, for high precision
 * beside 8-bit weights, is two tiles, its high bytes and its low ones, each with its own sums. A
 * group's sums go through memory to AVX-512, which scales and adds them, while the tiles of the
 * next groups are multiplied. 4-bit weights become bytes once for all rows of a block. The integers
 * are those of every other ISA, so products of few rows stay with VNNI. */
#include "kernels/x86/quant_avx512.h"
#include "kernels/x86/tiles_amx.h"

#include "kernels/isa.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    ROWS = KERN_DOT_ROWS,
    MIN_ROWS = 9, /* for fewer rows VNNI reads weights as fast, from several panels at once */
    K_BLOCK = 512,
    PIECE_BYTES = K_BLOCK * KERN_PANEL + K_BLOCK / KERN_GROUP_MIN * 32, /* with scales */
};

/* The sums of a pair of groups before they are scaled; `low`: those of the low bytes of x. */
typedef struct pair_sums {
    _Alignas(64) int32_t group[2][ROWS][KERN_PANEL], low[2][ROWS][KERN_PANEL];
} pair_sums;

/* Tile registers: 0, 1 sums; 2, 3 x; 4, 5 weights; 6, 7 sums of the low bytes. */
static void begin__amx(size_t rows, unsigned group)
{
    tiles_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        c.row_bytes[t] = (uint16_t)(t >= 2 && t < 4 && group < 64 ? group : 64);
        c.rows[t] = (uint8_t)(t < 4 || t >= 6 ? rows : group < 64 ? group / 4 : 16);
    }
    tiles_begin(&c);
}

static void end__amx(void) { tiles_end(); }

INLINE size_t x_group_bytes(const bool wide, const unsigned group)
{
    return ROWS * kern_quant_x_bytes(wide, group);
}

/* Multiplies both groups of a unit: x [2][group of x as in isa.h], w [2][group / 4][16][4]. */
INLINE void multiply_narrow(const unsigned group, const uint8_t *w, const uint8_t *x,
                            pair_sums *sums)
{
    const uint8_t *w2 = w + group * KERN_PANEL;
    const uint8_t *x2 = x + x_group_bytes(false, group);
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(2, x, group);
    _tile_loadd(4, w, 64);
    _tile_dpbssd(0, 2, 4);
    _tile_loadd(3, x2, group);
    _tile_loadd(5, w2, 64);
    _tile_dpbssd(1, 3, 5);
    if (group == 128) {
        _tile_loadd(2, x + 64, group);
        _tile_loadd(4, w + 64 * KERN_PANEL, 64);
        _tile_dpbssd(0, 2, 4);
        _tile_loadd(3, x2 + 64, group);
        _tile_loadd(5, w2 + 64 * KERN_PANEL, 64);
        _tile_dpbssd(1, 3, 5);
    }
    _tile_stored(0, sums->group[0], 64);
    _tile_stored(1, sums->group[1], 64);
    tiles_settle();
}

/* multiply_narrow for wide x: x [2][high and low bytes as pack_wide__amx lays them out]. */
INLINE void multiply_wide(const unsigned group, const uint8_t *w, const uint8_t *x, pair_sums *sums)
{
    const uint8_t *w2 = w + group * KERN_PANEL;
    const uint8_t *low = x + ROWS * group;
    const uint8_t *x2 = x + x_group_bytes(true, group), *low2 = low + x_group_bytes(true, group);
    _tile_zero(0);
    _tile_zero(6);
    _tile_loadd(4, w, 64);
    _tile_loadd(2, x, group);
    _tile_dpbssd(0, 2, 4);
    _tile_loadd(3, low, group);
    _tile_dpbusd(6, 3, 4);
    _tile_zero(1);
    _tile_zero(7);
    _tile_loadd(5, w2, 64);
    _tile_loadd(2, x2, group);
    _tile_dpbssd(1, 2, 5);
    _tile_loadd(3, low2, group);
    _tile_dpbusd(7, 3, 5);
    if (group == 128) {
        _tile_loadd(4, w + 64 * KERN_PANEL, 64);
        _tile_loadd(2, x + 64, group);
        _tile_dpbssd(0, 2, 4);
        _tile_loadd(3, low + 64, group);
        _tile_dpbusd(6, 3, 4);
        _tile_loadd(5, w2 + 64 * KERN_PANEL, 64);
        _tile_loadd(2, x2 + 64, group);
        _tile_dpbssd(1, 2, 5);
        _tile_loadd(3, low2 + 64, group);
        _tile_dpbusd(7, 3, 5);
    }
    _tile_stored(0, sums->group[0], 64);
    _tile_stored(6, sums->low[0], 64);
    _tile_stored(1, sums->group[1], 64);
    _tile_stored(7, sums->low[1], 64);
    tiles_settle();
}

INLINE void multiply(const bool wide, const unsigned group, const uint8_t *w, const uint8_t *x,
                     pair_sums *sums)
{
    tiles_settle(); /* earlier loads of *sums stay before the stores of tiles */
    if (wide) multiply_wide(group, w, x, sums);
    else multiply_narrow(group, w, x, sums);
}

/* acc [16] += the sums of a unit, scaled. */
INLINE void add_scaled(const int bits, const bool wide, const unsigned group,
                       const uint8_t *w_scales, const uint8_t *x, const pair_sums *sums,
                       __m512 *acc)
{
    for (size_t g = 0; g < 2; g++, x += x_group_bytes(wide, group)) {
        const size_t q_bytes = (size_t)ROWS * group * (wide ? 2 : 1);
        const float *x_scales = (const float *)(const void *)(x + q_bytes);
        /* As in quant_scale: 8 bits: f32 without its sign and last 15 bits; 4 bits: bf16. */
        __m256i half = _mm256_load_si256((const __m256i *)(const void *)(w_scales + 32 * g));
        __m512 scale = _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), bits == 8 ? 15 : 16));
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            __m512 by = _mm512_mul_ps(scale, _mm512_set1_ps(x_scales[r]));
            __m512i sum = _mm512_load_si512(sums->group[g][r]);
            if (wide)
                sum =
                    _mm512_add_epi32(_mm512_slli_epi32(sum, 8), _mm512_load_si512(sums->low[g][r]));
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), by, acc[r]);
        }
    }
}

/* Multiplies one tile of rows by a piece of a panel in bytes: units of 64 bytes of scales and two
 * groups. Prefetches `lines` lines from `next` on with each unit; `next` moves by `step`. */
INLINE void tile(const int bits, const bool wide, const unsigned group, const uint8_t *w, size_t k,
                 const uint8_t *x, float *acc, const uint8_t *next, size_t lines, size_t step)
{
    const size_t unit = 64 + (size_t)2 * group * KERN_PANEL;
    const size_t x_unit = 2 * x_group_bytes(wide, group);
    pair_sums sums[2];
    __m512 total[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) total[r] = _mm512_loadu_ps(acc + r * KERN_PANEL);
    const size_t units = k / (2 * group);
    for (size_t u = 0; u < units; u++) {
        for (size_t l = 0; l < lines; l++)
            _mm_prefetch((const char *)(next + u * step + l * 64), _MM_HINT_T0);
        multiply(wide, group, w + u * unit + 64, x + u * x_unit, &sums[u % 2]);
        if (u > 0)
            add_scaled(bits, wide, group, w + (u - 1) * unit, x + (u - 1) * x_unit,
                       &sums[(u - 1) % 2], total);
    }
    add_scaled(bits, wide, group, w + (units - 1) * unit, x + (units - 1) * x_unit,
               &sums[(units - 1) % 2], total);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) _mm512_storeu_ps(acc + r * KERN_PANEL, total[r]);
}

/* Unpacks a piece of 4-bit weights into one of 8 bits. */
static void to_bytes(const uint8_t *w, size_t k, size_t group, uint8_t *out)
{
    const __m512i low = _mm512_set1_epi8(15), offset = _mm512_set1_epi8(8);
    for (size_t u = k / (2 * group); u > 0; u--) {
        _mm512_store_si512(out, _mm512_load_si512(w));
        for (size_t at = 0; at < 2 * group; at += 8) {
            w += 64;
            out += 64;
            __m512i both = _mm512_load_si512(w);
            __m512i even = _mm512_and_si512(both, low);
            __m512i odd = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
            _mm512_store_si512(out, _mm512_sub_epi8(even, offset));
            out += 64;
            _mm512_store_si512(out, _mm512_sub_epi8(odd, offset));
        }
        w += 64;
        out += 64;
    }
}

INLINE void run(const int bits, const bool wide, const unsigned group, const kern_dot_block *b)
{
    _Alignas(64) uint8_t bytes[PIECE_BYTES];
    const size_t w_unit = 64 + (size_t)2 * group * KERN_PANEL * (size_t)bits / 8;
    const size_t lines = (w_unit / 64 + b->tiles - 1) / b->tiles;
    for (size_t i = 0; i < b->panels; i++) {
        const uint8_t *w = b->w + i * b->w_stride, *next = b->next + i * b->w_stride;
        if (bits == 4) {
            to_bytes(w, b->k, group, bytes);
            tiles_settle(); /* the stores above stay before the loads of tiles */
            w = bytes;
        }
        float *acc = b->acc + i * b->tiles * ROWS * KERN_PANEL;
        for (size_t t = 0; t < b->tiles; t++, acc += ROWS * KERN_PANEL)
            tile(bits, wide, group, w, b->k, b->x + t * b->x_stride, acc, next + t * lines * 64,
                 lines, w_unit);
    }
}

#define RUN(name, bits, wide)                                                                      \
    static void run_##name##__amx(const kern_dot_block *b)                                         \
    {                                                                                              \
        if (b->group == 32) run(bits, wide, 32, b);                                                \
        else if (b->group == 64) run(bits, wide, 64, b);                                           \
        else run(bits, wide, 128, b);                                                              \
    }
RUN(8_wide, 8, true)
RUN(8, 8, false)
RUN(4, 4, false)

/* Packs q [rows][group] and the scales. isa.h's `start` undoes an offset of weights; signed weights
 * have none, so it is not written. */
static void pack__amx(const float *x, size_t units, unsigned group, size_t rows, size_t r,
                      uint8_t *out)
{
    for (; units > 0; units--, x += group, out += rows * kern_quant_x_bytes(false, group)) {
        float *scales = (float *)(void *)(out + rows * group);
        int32_t sum;
        quant_x8_avx512(x, group, (int8_t *)out + r * group, scales + r, &sum);
    }
}

/* Packs high [rows][group] int8, low [rows][group] uint8, scale [rows]. */
static void pack_wide__amx(const float *x, size_t units, unsigned group, size_t rows, size_t r,
                           uint8_t *out)
{
    const __m512i byte = _mm512_set1_epi32(255);
    for (; units > 0; units--, x += group, out += rows * kern_quant_x_bytes(true, group)) {
        uint8_t *high = out + r * group, *low = high + rows * group;
        float *scales = (float *)(void *)(out + 2 * rows * group);
        const float inverse = quant_scale_of(quant_largest_avx512(x, group), 32767.0f, scales + r);
        if (inverse == 0.0f) {
            memset(high, 0, group);
            memset(low, 0, group);
            continue;
        }
        for (unsigned i = 0; i < group; i += 16) {
            __m512i v = quant_integers_avx512(x + i, inverse);
            __m512i top = _mm512_srai_epi32(v, 8), rest = _mm512_and_si512(v, byte);
            _mm_storeu_si128((__m128i *)(void *)(high + i), _mm512_cvtepi32_epi8(top));
            _mm_storeu_si128((__m128i *)(void *)(low + i), _mm512_cvtepi32_epi8(rest));
        }
    }
}

static size_t rows__amx(size_t m)
{
    (void)m;
    return ROWS;
}

static size_t panels__amx(size_t rows, size_t tiles)
{
    (void)rows;
    (void)tiles;
    return 1;
}

#define OPS(name, pack_name, wide)                                                                 \
    static const kern_dot_ops quant_block_##name##__amx = {                                        \
        .min_rows = MIN_ROWS,                                                                      \
        .rows = rows__amx,                                                                         \
        .panels = panels__amx,                                                                     \
        .few_k = K_BLOCK,                                                                          \
        .k = K_BLOCK,                                                                              \
        .x_wide = wide,                                                                            \
        .pack = pack_name,                                                                         \
        .begin = begin__amx,                                                                       \
        .run = run_##name##__amx,                                                                  \
        .end = end__amx,                                                                           \
    };
OPS(8_wide, pack_wide__amx, true)
OPS(8, pack__amx, false)
OPS(4, pack__amx, false)

void kern_quant_fill_amx(kern_isa *isa)
{
    isa->quant_block[0] =
        isa->precision == KERN_PRECISION_HIGH ? &quant_block_8_wide__amx : &quant_block_8__amx;
    isa->quant_block[1] = &quant_block_4__amx;
}
