/* Matrix product, op level: cuts the work, keeps the scratch, knows the edges.
 *
 *   rows of x:    [ tile | tile | ... ] [ tile | ... ]      row blocks of at most ROW_BLOCK rows
 *   panels of W:  [ p p p p ] [ p p p p ] ...               groups of at most GROUP_PANELS panels
 *
 * A work item is one row block by one panel group. Its sums live in scratch until they are complete, so
 * the tile kernels see neither strides nor the edge of n. With one tile to compute, weights stream
 * through once, whole panels long, several panels side by side. With more, k is cut into K_BLOCK columns:
 * a panel's piece is widened to f32 once, stays in L1, and all tiles of the row block go over it; the sum
 * goes on from scratch, so each element is still one chain over ascending k. */
#include "kernels/context.h"

#include <assert.h>
#include <string.h>

enum {
    ROW_BLOCK = 128,     /* x [128, 256] f32 is 128 KiB and the sums as much: both stay in L2 */
    K_BLOCK = 256,       /* a widened panel piece is 16 KiB: half of the smallest L1 */
    GROUP_PANELS = 16,   /* so that packing x again for each item costs 2 % at most */
    X_FLOATS = 1 << 18,  /* x of a row block is packed whole, once for all items, when it fits */
    WIDE_PANELS = 2,     /* widened together */
    SERIAL_WORK = 1 << 17, /* multiply-adds that are done before other threads have woken up */
};

struct kern_matmul_scratch {
    uint64_t call;       /* x_packed holds ... of this product, or 0: nothing that another item can use */
    size_t block;        /* ... this row block */
    _Alignas(64) float acc[GROUP_PANELS * ROW_BLOCK * KERN_PANEL];
    _Alignas(64) float wide[WIDE_PANELS * K_BLOCK * KERN_PANEL];
    _Alignas(64) float x_packed[X_FLOATS + KERN_PANEL];
};

size_t kern_matmul_scratch_bytes(void) { return sizeof(struct kern_matmul_scratch); }

typedef struct product {
    const kern_context *kc;
    const kern_matrix *w;
    const float *bias;
    const float *x;
    size_t x_stride, m;
    float *y;
    size_t y_stride;
    uint64_t call;
    size_t n_tiles, n_blocks;            /* over m; tiles differ by one row at most */
    size_t n_panels, group_panels, n_groups; /* over n */
    size_t column_bytes;                 /* of one column of a panel */
} product;

/* One work item. Calls take `side` panels: call j has panels panel0 + j + i * calls, i < side. So each of
 * the `side` streams runs on through memory from call to call. */
typedef struct item {
    size_t block, tile0, tile1, row0, rows;
    size_t panel0, panels;
    size_t side, calls;
} item;

static size_t tile_row(const product *p, size_t tile) { return p->m * tile / p->n_tiles; }

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

static const uint8_t *panel_at(const product *p, size_t panel, size_t k)
{
    return (const uint8_t *)p->w->data +
           panel * kern_matrix_bytes(p->w->type, KERN_PANEL, p->w->k) + k * p->column_bytes;
}

/* x of the block's tiles, columns [k0, k0 + k): [tile][k][rows of the tile]. */
static void pack_block(const product *p, const item *it, size_t k0, size_t k, float *out)
{
    for (size_t t = it->tile0; t < it->tile1; t++) {
        size_t row = tile_row(p, t), rows = tile_row(p, t + 1) - row;
        p->kc->isa.pack_x(p->x + row * p->x_stride + k0, p->x_stride, rows, k, out);
        out += rows * k;
    }
}

/* Asks for part `tile` of the block's tiles of a call's next weights, while the tiles compute. */
static void prefetch_part(const uint8_t *w, size_t w_stride, size_t side, size_t bytes, size_t part,
                          size_t parts)
{
    size_t from = bytes / 64 * part / parts, to = bytes / 64 * (part + 1) / parts;
    for (size_t i = 0; i < side; i++)
        for (size_t line = from; line < to; line++)
            __builtin_prefetch(w + i * w_stride + line * 64, 0, 2);
}

/* Panels first + i * stride_panels, i < side, columns [k0, k0 + k), all tiles of the block.
 * `next` is what the following call will read. x as packed, x_k columns for each tile, from x_k0. */
static void run_call(const product *p, const item *it, struct kern_matmul_scratch *s, size_t first,
                     size_t stride_panels, size_t side, size_t k0, size_t k, const float *x,
                     size_t x_k, size_t x_k0, float *acc, const uint8_t *next)
{
    const kern_isa *isa = &p->kc->isa;
    dtype type = p->w->type;
    const void *w = panel_at(p, first, k0);
    size_t w_stride = stride_panels * kern_matrix_bytes(type, KERN_PANEL, p->w->k);
    size_t tiles = it->tile1 - it->tile0;
    size_t next_stride = w_stride;

    if (type != DTYPE_F32 && tiles >= isa->widen_tiles && side <= WIDE_PANELS) {
        for (size_t i = 0; i < side; i++)
            isa->widen[type]((const uint8_t *)w + i * w_stride, k, s->wide + i * K_BLOCK * KERN_PANEL);
        w = s->wide;
        w_stride = sizeof(float) * K_BLOCK * KERN_PANEL;
        type = DTYPE_F32;
    }
    for (size_t t = it->tile0; t < it->tile1; t++) {
        size_t row = tile_row(p, t), rows = tile_row(p, t + 1) - row, at = row - it->row0;
        const float *x_tile = rows == 1 ? p->x + row * p->x_stride + k0 : x + at * x_k + x_k0 * rows;
        kern_tile_fn tile = side == 1 ? isa->tile1[type][rows] : isa->tile[type][rows];
        if (tiles > 1)
            prefetch_part(next, next_stride, side, k * p->column_bytes, t - it->tile0, tiles);
        tile(w, w_stride, k, x_tile, acc + at * side * KERN_PANEL);
    }
}

/* The panel that position i of call j holds; the calls after `calls` take one panel each. */
static size_t call_first_panel(const item *it, size_t call)
{
    return it->panel0 + (call < it->calls ? call : it->calls * (it->side - 1) + call);
}

static float *call_acc(const item *it, struct kern_matmul_scratch *s, size_t call)
{
    size_t before = call < it->calls ? call * it->side : it->calls * (it->side - 1) + call;
    return s->acc + before * it->rows * KERN_PANEL;
}

typedef void (*panel_rows_fn)(const product *p, size_t panel, size_t row, size_t rows, float *acc);

static void start_sums(const product *p, size_t panel, size_t row, size_t rows, float *acc)
{
    (void)row;
    float start[KERN_PANEL] = {0};
    size_t n = min_size(KERN_PANEL, p->w->n - panel * KERN_PANEL);
    if (p->bias) memcpy(start, p->bias + panel * KERN_PANEL, n * sizeof(float));
    for (size_t r = 0; r < rows; r++) memcpy(acc + r * KERN_PANEL, start, sizeof start);
}

static void store_sums(const product *p, size_t panel, size_t row, size_t rows, float *acc)
{
    float *y = p->y + row * p->y_stride + panel * KERN_PANEL;
    size_t n = min_size(KERN_PANEL, p->w->n - panel * KERN_PANEL);
    if (n == KERN_PANEL) /* the size known: one move, no call */
        for (size_t r = 0; r < rows; r++)
            memcpy(y + r * p->y_stride, acc + r * KERN_PANEL, KERN_PANEL * sizeof(float));
    else
        for (size_t r = 0; r < rows; r++)
            memcpy(y + r * p->y_stride, acc + r * KERN_PANEL, n * sizeof(float));
}

/* Visits the sums of an item: acc is [call][tile][panel of the call][row of the tile][16]. */
static void for_each_sum(const product *p, const item *it, struct kern_matmul_scratch *s,
                         panel_rows_fn fn)
{
    size_t n_calls = it->panels - it->calls * (it->side - 1);
    for (size_t c = 0; c < n_calls; c++) {
        size_t side = c < it->calls ? it->side : 1;
        float *acc = call_acc(it, s, c);
        for (size_t t = it->tile0; t < it->tile1; t++) {
            size_t row = tile_row(p, t), rows = tile_row(p, t + 1) - row;
            for (size_t i = 0; i < side; i++, acc += rows * KERN_PANEL)
                fn(p, call_first_panel(it, c) + i * it->calls, row, rows, acc);
        }
    }
}

static item make_item(const product *p, size_t index)
{
    const kern_isa *isa = &p->kc->isa;
    item it = {.block = index / p->n_groups};
    it.tile0 = p->n_tiles * it.block / p->n_blocks;
    it.tile1 = p->n_tiles * (it.block + 1) / p->n_blocks;
    it.row0 = tile_row(p, it.tile0);
    it.rows = tile_row(p, it.tile1) - it.row0;
    it.panel0 = index % p->n_groups * p->group_panels;
    it.panels = min_size(p->group_panels, p->n_panels - it.panel0);

    /* Tiles of a block differ by one row: side by side only if they agree on how many panels. */
    size_t low = it.rows / (it.tile1 - it.tile0);
    size_t high = (it.rows + it.tile1 - it.tile0 - 1) / (it.tile1 - it.tile0);
    it.side = isa->tile_panels[low] == isa->tile_panels[high] ? isa->tile_panels[low] : 1;
    it.calls = it.panels / it.side;
    if (it.side == 1) it.calls = it.panels;
    return it;
}

static void run_item(const product *p, size_t index, struct kern_matmul_scratch *s)
{
    item it = make_item(p, index);
    size_t tiles = it.tile1 - it.tile0, k_all = p->w->k;
    bool direct = it.rows == tiles; /* tiles of one row are read where they lie */
    bool whole = it.rows * k_all <= X_FLOATS;
    if (!direct && whole && (s->call != p->call || s->block != it.block)) {
        pack_block(p, &it, 0, k_all, s->x_packed);
        s->call = p->call;
        s->block = it.block;
    }
    if (!direct && !whole) s->call = 0;

    for_each_sum(p, &it, s, start_sums);
    size_t n_calls = it.panels - it.calls * (it.side - 1);
    size_t k_block = tiles == 1 && (direct || whole) ? k_all : K_BLOCK;
    for (size_t k0 = 0; k0 < k_all; k0 += k_block) {
        size_t k = min_size(k_block, k_all - k0);
        if (!direct && !whole) pack_block(p, &it, k0, k, s->x_packed);
        for (size_t c = 0; c < n_calls; c++) {
            size_t after = c + 1 < n_calls ? c + 1 : 0;
            size_t next_k = c + 1 < n_calls ? k0 : min_size(k0 + k_block, k_all - 1);
            run_call(p, &it, s, call_first_panel(&it, c), it.calls, c < it.calls ? it.side : 1, k0, k,
                     s->x_packed, whole ? k_all : k, whole ? k0 : 0, call_acc(&it, s, c),
                     panel_at(p, call_first_panel(&it, after), next_k));
        }
    }
    for_each_sum(p, &it, s, store_sums);
}

static void run_items(void *ctx, size_t from, size_t to, unsigned thread)
{
    const product *p = ctx;
    for (size_t i = from; i < to; i++) run_item(p, i, p->kc->threads[thread].matmul);
}

void kern_matmul(kern_context *kc, const kern_matrix *w, const float *bias, const float *x,
                 size_t x_stride, size_t m, float *y, size_t y_stride)
{
    assert(x_stride >= w->k && y_stride >= w->n);
    if (m == 0 || w->n == 0) return;
    const kern_isa *isa = &kc->isa;
    product p = {.kc = kc, .w = w, .bias = bias, .x = x, .x_stride = x_stride, .m = m};
    p.y = y;
    p.y_stride = y_stride;
    p.call = ++kc->matmul_calls;
    p.n_tiles = (m + isa->tile_rows - 1) / isa->tile_rows;
    size_t block_tiles = ROW_BLOCK / isa->tile_rows;
    p.n_blocks = (p.n_tiles + block_tiles - 1) / block_tiles;
    p.n_panels = (w->n + KERN_PANEL - 1) / KERN_PANEL;
    p.column_bytes = KERN_PANEL * dtype_bytes(w->type);

    /* Sixteen items for each thread keep the last one short beside the whole; fewer panels than a tile
     * takes side by side would waste its streams. */
    size_t rows = (m + p.n_tiles - 1) / p.n_tiles;
    size_t groups = (size_t)16 * kc->n_threads / min_size(p.n_blocks, 16);
    size_t side = isa->tile_panels[rows];
    p.group_panels = p.n_panels / (groups > 0 ? groups : 1) / side * side;
    if (p.group_panels < side) p.group_panels = side;
    if (p.group_panels > GROUP_PANELS) p.group_panels = GROUP_PANELS;
    p.n_groups = (p.n_panels + p.group_panels - 1) / p.group_panels;

    size_t n_items = p.n_blocks * p.n_groups;
    bool serial = (double)m * (double)w->n * (double)w->k < SERIAL_WORK;
    thread_pool_for(kc->pool, n_items, serial ? n_items : 1, run_items, &p);
}
