/* Matrix product, AMX-BF16. Weights: a tile is 16 pairs of columns by 16 rows of W. x: a tile is up
 * to 16 rows by 32 columns; high precision has one for each of its two parts. A unit of 32 columns
 * is summed apart, in high precision first with one part of x, then with the other, and added to
 * the sums, in the instruction's own order. So that bits do not depend on m, all products of a
 * context go this way; those of one row wait for memory anyway. */
#include "kernels/x86/pack_bf16.h"
#include "kernels/x86/tiles_amx.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    UNIT = 32,          /* columns */
    W_UNIT = UNIT * 32, /* bytes of a panel's unit */
    TILE_ROWS = 16,
    FEW_PANELS = 4, /* panels of a call with one tile of rows: streams side by side */
    PANELS = 2, /* panels of a call with two tiles of rows: 4 tiles of sums, 2 of x, 2 of weights */
    LINES = W_UNIT / 64,
    AHEAD_BYTES = 4096, /* how far ahead a lone tile of rows prefetches its streams */
};

/* Tile registers: 0 to 3 sums; 4, 5 x; 6, 7 weights. */
static void begin__amx(size_t rows, unsigned group)
{
    (void)group;
    tiles_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        c.row_bytes[t] = 64;
        c.rows[t] = (uint8_t)(t < 6 ? rows : 16);
    }
    tiles_begin(&c);
}

static void end__amx(void) { tiles_end(); }

INLINE void fetch(const uint8_t *at, size_t lines)
{
    for (size_t l = 0; l < lines; l++) _mm_prefetch((const char *)(at + l * 64), _MM_HINT_T0);
}

/* Tile registers are named by constants, so no loop can replace these. */
#define SUM_TILES(panels, rows2, op)                                                               \
    op(0, 0, 0);                                                                                   \
    if (panels > 1) op(1, 1, 0);                                                                   \
    if (panels > 2) op(2, 2, 0);                                                                   \
    if (panels > 3) op(3, 3, 0);                                                                   \
    if (rows2) op(2, 0, 1);                                                                        \
    if (rows2 && panels > 1) op(3, 1, 1);
#define LOAD_SUMS(tile, panel, row)                                                                \
    _tile_loadd(tile, acc + panel * acc_stride + (row)*b->rows * KERN_PANEL, 64)
#define STORE_SUMS(tile, panel, row)                                                               \
    _tile_stored(tile, acc + panel * acc_stride + (row)*b->rows * KERN_PANEL, 64)

/* Multiplies one tile of rows, at x and its second part at x2, with up to four panels, panel i at
 * w + i * stride. Products of two panels alternate, so that none waits for the one before it. */
#define FEW_STEP(panels, parts, w, stride)                                                         \
    _tile_loadd(4, x, 64);                                                                         \
    if (parts > 1) _tile_loadd(5, x2, 64);                                                         \
    _tile_loadd(6, (w), 64);                                                                       \
    if (panels > 1) _tile_loadd(7, (w) + (stride), 64);                                            \
    _tile_dpbf16ps(0, 4, 6);                                                                       \
    if (panels > 1) _tile_dpbf16ps(1, 4, 7);                                                       \
    if (parts > 1) _tile_dpbf16ps(0, 5, 6);                                                        \
    if (parts > 1 && panels > 1) _tile_dpbf16ps(1, 5, 7);                                          \
    if (panels > 2) _tile_loadd(6, (w) + 2 * (stride), 64);                                        \
    if (panels > 3) _tile_loadd(7, (w) + 3 * (stride), 64);                                        \
    if (panels > 2) _tile_dpbf16ps(2, 4, 6);                                                       \
    if (panels > 3) _tile_dpbf16ps(3, 4, 7);                                                       \
    if (parts > 1 && panels > 2) _tile_dpbf16ps(2, 5, 6);                                          \
    if (parts > 1 && panels > 3) _tile_dpbf16ps(3, 5, 7);

/* Multiplies two tiles of rows of one part of x with one or two panels; all are loaded. */
#define PAIR_PRODUCTS(panels)                                                                      \
    _tile_dpbf16ps(0, 4, 6);                                                                       \
    _tile_dpbf16ps(2, 5, 6);                                                                       \
    if (panels > 1) {                                                                              \
        _tile_dpbf16ps(1, 4, 7);                                                                   \
        _tile_dpbf16ps(3, 5, 7);                                                                   \
    }

/* One step of two tiles of rows, at x and x2; the second part of each lies `part` bytes behind. */
#define PAIR_STEP(panels, parts, w, stride, part)                                                  \
    _tile_loadd(4, x, 64);                                                                         \
    _tile_loadd(5, x2, 64);                                                                        \
    _tile_loadd(6, (w), 64);                                                                       \
    if (panels > 1) _tile_loadd(7, (w) + (stride), 64);                                            \
    PAIR_PRODUCTS(panels)                                                                          \
    if (parts > 1) {                                                                               \
        _tile_loadd(4, x + (part), 64);                                                            \
        _tile_loadd(5, x2 + (part), 64);                                                           \
        PAIR_PRODUCTS(panels)                                                                      \
    }

/* Copies the last columns, fewer than a unit, with zeros behind them. */
INLINE void copy_rest(const int panels, const kern_dot_block *b, const uint8_t *w,
                      uint8_t (*rest)[W_UNIT])
{
    size_t bytes = (b->k % UNIT + 1) / 2 * 64;
    tiles_settle();
    memset(rest, 0, (size_t)panels * W_UNIT);
    for (int i = 0; i < panels; i++) memcpy(rest[i], w + (size_t)i * b->w_stride, bytes);
    tiles_settle();
}

INLINE void few(const int panels, const int parts, const kern_dot_block *b, size_t t)
{
    _Alignas(64) uint8_t rest[FEW_PANELS][W_UNIT];
    const size_t acc_stride = b->tiles * b->rows * KERN_PANEL, stride = b->w_stride;
    const size_t x_part = b->rows * UNIT * 2;
    float *acc = b->acc + t * b->rows * KERN_PANEL;
    const uint8_t *w = b->w, *x = b->x + t * b->x_stride, *x2 = x + x_part;
    const uint8_t *next = b->tiles == 1 ? w + AHEAD_BYTES : b->next;
    SUM_TILES(panels, false, LOAD_SUMS)
    for (size_t n = b->k / UNIT; n > 0; n--) {
        for (int i = 0; i < panels; i++) fetch(next + (size_t)i * stride, LINES);
        FEW_STEP(panels, parts, w, stride)
        w += W_UNIT;
        next += W_UNIT;
        x += (size_t)parts * x_part;
        x2 += (size_t)parts * x_part;
    }
    if (b->k % UNIT != 0) {
        copy_rest(panels, b, w, rest);
        FEW_STEP(panels, parts, rest[0], (size_t)W_UNIT)
    }
    SUM_TILES(panels, false, STORE_SUMS)
}

/* Runs tiles of rows t and t + 1. Each pair of tiles prefetches its share of the next call's
 * weights. */
INLINE void pair(const int panels, const int parts, const kern_dot_block *b, size_t t)
{
    _Alignas(64) uint8_t rest[PANELS][W_UNIT];
    const size_t acc_stride = b->tiles * b->rows * KERN_PANEL, stride = b->w_stride;
    const size_t x_part = b->rows * UNIT * 2, pairs = (b->tiles + 1) / 2;
    const size_t lines = (LINES + pairs - 1) / pairs;
    float *acc = b->acc + t * b->rows * KERN_PANEL;
    const uint8_t *w = b->w, *x = b->x + t * b->x_stride, *x2 = x + b->x_stride;
    const uint8_t *next = b->next + t / 2 * lines * 64;
    SUM_TILES(panels, true, LOAD_SUMS)
    for (size_t n = b->k / UNIT; n > 0; n--) {
        for (int i = 0; i < panels; i++) fetch(next + (size_t)i * stride, lines);
        PAIR_STEP(panels, parts, w, stride, x_part)
        w += W_UNIT;
        next += W_UNIT;
        x += (size_t)parts * x_part;
        x2 += (size_t)parts * x_part;
    }
    if (b->k % UNIT != 0) {
        copy_rest(panels, b, w, rest);
        PAIR_STEP(panels, parts, rest[0], (size_t)W_UNIT, x_part)
    }
    SUM_TILES(panels, true, STORE_SUMS)
}

INLINE void run_few(const int parts, const kern_dot_block *b, size_t t)
{
    switch (b->panels) {
    case 1: few(1, parts, b, t); break;
    case 2: few(2, parts, b, t); break;
    case 3: few(3, parts, b, t); break;
    default: few(4, parts, b, t);
    }
}

INLINE void run_tiles(const int parts, const kern_dot_block *b)
{
    size_t t = 0;
    for (; t + 2 <= b->tiles; t += 2) {
        if (b->panels == 1) pair(1, parts, b, t);
        else pair(2, parts, b, t);
    }
    if (t < b->tiles) run_few(parts, b, t);
    tiles_settle();
}

static void run__amx(const kern_dot_block *b) { run_tiles(1, b); }
static void run_high__amx(const kern_dot_block *b) { run_tiles(2, b); }

/* Divides m rows over the fewest tiles, equally many to each; the last one may have fewer. */
static size_t rows__amx(size_t m)
{
    size_t tiles = (m + TILE_ROWS - 1) / TILE_ROWS;
    return (m + tiles - 1) / tiles;
}

static size_t panels__amx(size_t rows, size_t tiles)
{
    (void)rows;
    return tiles == 1 ? FEW_PANELS : PANELS;
}

#define OPS(name, packing, running)                                                                \
    static const kern_dot_ops name = {                                                             \
        .min_rows = 1,                                                                             \
        .rows = rows__amx,                                                                         \
        .panels = panels__amx,                                                                     \
        .k = 256, /* 16 KiB of weights stay in L1 while a pair's x streams by */                   \
        .pack = packing,                                                                           \
        .begin = begin__amx,                                                                       \
        .run = running,                                                                            \
        .end = end__amx,                                                                           \
    };
OPS(bf16_block__amx, pack_bf16_row, run__amx)
OPS(bf16_block_high__amx, pack_bf16_row_high, run_high__amx)

void kern_matmul_fill_amx(kern_isa *isa)
{
    isa->bf16_block =
        isa->precision == KERN_PRECISION_HIGH ? &bf16_block_high__amx : &bf16_block__amx;
}
