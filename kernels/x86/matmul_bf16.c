/* Matrix product, AVX512-BF16: a register holds a pair of columns of all rows of a panel, pairs of
 * both parts of x are broadcast from memory. Each sum is one chain of vdpbf16ps over k ascending.
 */
#include "kernels/x86/pack_bf16.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    UNIT = 32,
    MAX_SIDE = 8,
    MAX_SUMS = 16,
    AHEAD_BYTES = 2048, /* how early a lone tile fetches its own streams */
};

INLINE __m512bh pair_of(const uint8_t *x)
{
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* `pairs` columns of `side` panels, all rows of a tile. */
INLINE void unit(const int rows, const int side, const uint8_t *w, size_t w_stride, size_t pairs,
                 const uint8_t *x, __m512 *sums)
{
    for (size_t p = 0; p < pairs; p++) {
#pragma GCC unroll 8
        for (int i = 0; i < side; i++) {
            __m512bh v = (__m512bh)_mm512_load_si512(w + i * w_stride + p * 64);
#pragma GCC unroll 32
            for (int r = 0; r < 2 * rows; r++) {
                __m512 *sum = &sums[i * rows + r % rows];
                *sum = _mm512_dpbf16_ps(*sum, v, pair_of(x + r * UNIT * 2 + p * 4));
            }
        }
    }
}

/* Tile t of rows by `side` panels from `panel` on. Where there are several tiles each fetches its
 * share of what the next call reads. */
INLINE void tile(const int rows, const int side, const kern_dot_block *b, size_t t, size_t panel)
{
    __m512 sums[MAX_SUMS];
    const size_t acc_stride = b->tiles * b->rows * KERN_PANEL;
    float *acc = b->acc + panel * acc_stride + t * b->rows * KERN_PANEL;
    const uint8_t *w = b->w + panel * b->w_stride, *x = b->x + t * b->x_stride;
    const uint8_t *next = b->tiles == 1 ? w + AHEAD_BYTES : b->next + panel * b->w_stride;
    const size_t lines = (UNIT / 2 + b->tiles - 1) / b->tiles, from = t * lines * 64;
#pragma GCC unroll 16
    for (int s = 0; s < side * rows; s++)
        sums[s] = _mm512_loadu_ps(acc + (size_t)(s / rows) * acc_stride + s % rows * KERN_PANEL);
    for (size_t k = 0; k < b->k; k += UNIT) {
        for (int i = 0; i < side; i++)
            for (size_t l = 0; l < lines; l++)
                _mm_prefetch((const char *)(next + i * b->w_stride + from + l * 64), _MM_HINT_T0);
        size_t pairs = b->k - k < UNIT ? (b->k - k + 1) / 2 : UNIT / 2;
        unit(rows, side, w, b->w_stride, pairs, x, sums);
        w += UNIT / 2 * 64;
        next += UNIT / 2 * 64;
        x += rows * UNIT * 4;
    }
#pragma GCC unroll 16
    for (int s = 0; s < side * rows; s++)
        _mm512_storeu_ps(acc + (size_t)(s / rows) * acc_stride + s % rows * KERN_PANEL, sums[s]);
}

/* Rows of a tile, and the panels it takes at once: eight or more sums hide the latency. */
// clang-format off
#define FOR_TILES(X)                                                                               \
    X(1, 8)  X(2, 8)  X(3, 4)  X(4, 4)  X(5, 2)  X(6, 2)  X(7, 2)  X(8, 2)                         \
    X(9, 1)  X(10, 1) X(11, 1) X(12, 1) X(13, 1) X(14, 1) X(15, 1) X(16, 1)
// clang-format on

#define TILE(rows, side)                                                                           \
    static void tile_##rows##__bf16(const kern_dot_block *b, size_t t, size_t panel)               \
    {                                                                                              \
        tile(rows, side, b, t, panel);                                                             \
    }                                                                                              \
    static void tile1_##rows##__bf16(const kern_dot_block *b, size_t t, size_t panel)              \
    {                                                                                              \
        tile(rows, 1, b, t, panel);                                                                \
    }
FOR_TILES(TILE)

typedef void (*tile_fn)(const kern_dot_block *b, size_t t, size_t panel);

static const struct tile_row {
    tile_fn side, one;
    size_t panels;
} tile_rows[KERN_DOT_ROWS + 1] = {
#define TILE_ROW(rows, side) [rows] = {tile_##rows##__bf16, tile1_##rows##__bf16, side},
    FOR_TILES(TILE_ROW)};

static void run__bf16(const kern_dot_block *b)
{
    const struct tile_row *r = &tile_rows[b->rows];
    for (size_t t = 0; t < b->tiles; t++) {
        size_t panel = 0;
        for (; panel + r->panels <= b->panels; panel += r->panels) r->side(b, t, panel);
        for (; panel < b->panels; panel++) r->one(b, t, panel);
    }
}

static const kern_dot_ops bf16_block__bf16 = {
    .min_rows = 1,
    .short_tile = true,
    .few_panels = MAX_SIDE,
    .panels = 2,
    .k = 256,
    .pack = pack_bf16_row,
    .run = run__bf16,
};

void kern_matmul_fill_bf16(kern_isa *isa)
{
    isa->bf16_block = &bf16_block__bf16;
}
