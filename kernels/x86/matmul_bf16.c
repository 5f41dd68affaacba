/* Matrix product, AVX512-BF16: a register holds a pair of columns of all rows of a panel; pairs of
 * x are broadcast from memory. Each sum is one chain of vdpbf16ps over k ascending, in every
 * tile. */
#include "kernels/x86/pack_bf16.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    UNIT = 32,
    MAX_SIDE = 3,
    MAX_SUMS = 28,      /* most sums: the other 4 of 32 registers hold weights and x */
    LONE_ROWS = 14,     /* most rows of a lone tile */
    MANY_ROWS = 8,      /* most rows of a tile of several */
    AHEAD_BYTES = 4096, /* how far ahead a lone tile prefetches its streams */
};

INLINE __m512bh pair_of(const uint8_t *x)
{
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* The prefetches of a tile: `lines` lines of each panel for each unit of columns. */
typedef struct fetching {
    const uint8_t *next;
    size_t lines;
} fetching;

/* Adds `pairs` pairs of columns of `side` panels, for all rows of a tile, x in `parts` parts. */
INLINE void unit(const int rows, const int side, const int parts, const uint8_t *w, size_t w_stride,
                 size_t pairs, const uint8_t *x, const fetching *f, __m512 *sums)
{
    for (size_t p = 0; p < pairs; p++) {
        __m512bh v[MAX_SIDE];
#pragma GCC unroll 3
        for (int i = 0; i < side; i++) {
            if (p < f->lines)
                _mm_prefetch((const char *)(f->next + i * w_stride + p * 64), _MM_HINT_T0);
            v[i] = (__m512bh)_mm512_load_si512(w + i * w_stride + p * 64);
        }
#pragma GCC unroll 32
        for (int r = 0; r < parts * rows; r++) {
            __m512bh pair = pair_of(x + r * UNIT * 2 + p * 4);
#pragma GCC unroll 3
            for (int i = 0; i < side; i++) {
                __m512 *sum = &sums[i * rows + r % rows];
                *sum = _mm512_dpbf16_ps(*sum, v[i], pair);
            }
        }
    }
}

/* Multiplies tile t of rows by `side` panels from `panel` on. A lone tile prefetches its own
 * streams; of several tiles each prefetches its share of the next call's weights. */
INLINE void tile(const int rows, const int side, const int parts, const kern_dot_block *b, size_t t,
                 size_t panel)
{
    __m512 sums[MAX_SUMS];
    const size_t acc_stride = b->tiles * b->rows * KERN_PANEL;
    float *acc = b->acc + panel * acc_stride + t * b->rows * KERN_PANEL;
    const uint8_t *w = b->w + panel * b->w_stride, *x = b->x + t * b->x_stride;
    fetching f = {.lines = (UNIT / 2 + b->tiles - 1) / b->tiles};
    f.next = b->tiles == 1 ? w + AHEAD_BYTES : b->next + panel * b->w_stride + t * f.lines * 64;
#pragma GCC unroll 32
    for (int s = 0; s < side * rows; s++)
        sums[s] = _mm512_loadu_ps(acc + (size_t)(s / rows) * acc_stride + s % rows * KERN_PANEL);
    for (size_t k = 0; k < b->k; k += UNIT) {
        size_t pairs = b->k - k < UNIT ? (b->k - k + 1) / 2 : UNIT / 2;
        unit(rows, side, parts, w, b->w_stride, pairs, x, &f, sums);
        w += UNIT / 2 * 64;
        f.next += UNIT / 2 * 64;
        x += rows * parts * UNIT * 2;
    }
#pragma GCC unroll 32
    for (int s = 0; s < side * rows; s++)
        _mm512_storeu_ps(acc + (size_t)(s / rows) * acc_stride + s % rows * KERN_PANEL, sums[s]);
}

/* Rows of a tile, and the panels it takes at once. Twelve sums hide the latency of six cycles at
 * two products a cycle. Each broadcast of x serves at least two panels, better three: on Zen 5 one
 * panel by 16 rows reached half of the rate. Products of few rows wait for memory, which serves two
 * streams as fast as eight. */
// clang-format off
#define FOR_TILES(X)                                                                               \
    X(1, 2)  X(2, 2)  X(3, 2)  X(4, 3)  X(5, 3)  X(6, 3)  X(7, 3)  X(8, 3)                         \
    X(9, 3)  X(10, 2) X(11, 2) X(12, 2) X(13, 2) X(14, 2)
// clang-format on

#define TILE(rows, side)                                                                           \
    static void tile_##rows##__bf16(const kern_dot_block *b, size_t t, size_t panel)               \
    {                                                                                              \
        tile(rows, side, 1, b, t, panel);                                                          \
    }                                                                                              \
    static void tile1_##rows##__bf16(const kern_dot_block *b, size_t t, size_t panel)              \
    {                                                                                              \
        tile(rows, 1, 1, b, t, panel);                                                             \
    }                                                                                              \
    static void tile_high_##rows##__bf16(const kern_dot_block *b, size_t t, size_t panel)          \
    {                                                                                              \
        tile(rows, side, 2, b, t, panel);                                                          \
    }                                                                                              \
    static void tile1_high_##rows##__bf16(const kern_dot_block *b, size_t t, size_t panel)         \
    {                                                                                              \
        tile(rows, 1, 2, b, t, panel);                                                             \
    }
FOR_TILES(TILE)

typedef void (*tile_fn)(const kern_dot_block *b, size_t t, size_t panel);

static const struct tile_row {
    tile_fn side, one;           /* standard precision */
    tile_fn side_high, one_high; /* high precision */
    size_t panels;
} tile_rows[LONE_ROWS + 1] = {
#define TILE_ROW(rows, side)                                                                       \
    [rows] = {tile_##rows##__bf16, tile1_##rows##__bf16, tile_high_##rows##__bf16,                 \
              tile1_high_##rows##__bf16, side},
    FOR_TILES(TILE_ROW)};

static size_t rows__bf16(size_t m)
{
    if (m <= LONE_ROWS) return m;
    size_t tiles = (m + MANY_ROWS - 1) / MANY_ROWS;
    return (m + tiles - 1) / tiles;
}

static size_t panels__bf16(size_t rows, size_t tiles)
{
    (void)tiles;
    return tile_rows[rows].panels;
}

INLINE void run_tiles(const kern_dot_block *b, size_t side, tile_fn of_side, tile_fn one)
{
    for (size_t t = 0; t < b->tiles; t++) {
        size_t panel = 0;
        for (; panel + side <= b->panels; panel += side) of_side(b, t, panel);
        for (; panel < b->panels; panel++) one(b, t, panel);
    }
}

static void run__bf16(const kern_dot_block *b)
{
    const struct tile_row *r = &tile_rows[b->rows];
    run_tiles(b, r->panels, r->side, r->one);
}

static void run_high__bf16(const kern_dot_block *b)
{
    const struct tile_row *r = &tile_rows[b->rows];
    run_tiles(b, r->panels, r->side_high, r->one_high);
}

static const kern_dot_ops bf16_block__bf16 = {
    .min_rows = 1,
    .rows = rows__bf16,
    .panels = panels__bf16,
    .k = 256,
    .pack = pack_bf16_row,
    .run = run__bf16,
};

static const kern_dot_ops bf16_block_high__bf16 = {
    .min_rows = 1,
    .rows = rows__bf16,
    .panels = panels__bf16,
    .k = 256,
    .pack = pack_bf16_row_high,
    .run = run_high__bf16,
};

void kern_matmul_fill_bf16(kern_isa *isa)
{
    isa->bf16_block =
        isa->precision == KERN_PRECISION_HIGH ? &bf16_block_high__bf16 : &bf16_block__bf16;
}
