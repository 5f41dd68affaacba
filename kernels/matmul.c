/* Matrix product, op level: cuts the work, keeps the scratch, knows the edges.
 *
 *   rows of x:    [ tile | tile | ... ] [ tile | ... ]      row blocks of at most ROW_BLOCK rows
 *   panels of W:  [ p p p p ] [ p p p p ] ...               groups of at most GROUP_PANELS panels
 *
 * A work item is one row block by one panel group. Its sums live in scratch until they are
 * complete, so the tile kernels see neither strides nor the edge of n. With one tile to compute,
 * weights stream through once, whole panels long, several panels side by side. With more, k is cut
 * into K_BLOCK columns: a panel's piece is widened to f32 once, stays in L1, and all tiles of the
 * row block go over it; the sum goes on from scratch, so each element is still one chain over
 * ascending k. */
#include "kernels/context.h"

#include <assert.h>
#include <string.h>

enum {
    ROW_BLOCK = 144,         /* x [144, 256] f32 is 144 KiB and the sums as much: both stay in L2 */
    K_BLOCK = 256,           /* a widened panel piece is 16 KiB: half of the smallest L1 */
    GROUP_PANELS = 16,       /* so that packing x again for each item costs 2 % at most */
    PREFETCH_BYTES = 2048,   /* how early a stream is fetched; within 5 % from 1 to 4 KiB */
    SERIAL_WORK = 1 << 17,   /* multiply-adds that are done before other threads have woken up */
    SCRATCH_BYTES = 2 << 20, /* a huge page */
    ACC_FLOATS = GROUP_PANELS * ROW_BLOCK * KERN_PANEL,
    WIDE_FLOATS = K_BLOCK * KERN_PANEL,
    X_SPILL = KERN_PANEL, /* floats that pack_x may write beyond the end */
    X_FLOATS = SCRATCH_BYTES / 4 - ACC_FLOATS - WIDE_FLOATS - X_SPILL - 16,
};

/* x of a row block is packed whole, once for all items of a thread, when it fits (k <= 3,300 for
 * 144 rows), else piece by piece for each item. */
struct kern_matmul_scratch {
    uint64_t call; /* x_packed is that of this product, or 0: nothing that another item can use */
    size_t block;  /* ... and of this row block */
    _Alignas(64) float acc[ACC_FLOATS];
    float wide[WIDE_FLOATS];
    float x_packed[X_FLOATS + X_SPILL];
};
_Static_assert(sizeof(struct kern_matmul_scratch) == SCRATCH_BYTES, "one huge page");

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
    size_t n_tiles, n_blocks;                /* over m; tiles differ by one row at most */
    size_t n_panels, group_panels, n_groups; /* over n */
    size_t column_bytes;                     /* of one column of a panel */
} product;

/* One work item. Calls take `side` panels: call j has panels panel0 + j + i * calls, i < side. So
 * each of the `side` streams runs on through memory from call to call. */
typedef struct item {
    size_t block, tile0, tile1, row0, rows;
    size_t panel0, panels;
    size_t side, calls;
    size_t k_block;
    bool direct; /* tiles of one row: x is read where it lies */
    bool whole;  /* x of the row block fits in scratch and stays there for other items */
} item;

static size_t tile_row(const product *p, size_t tile) { return p->m * tile / p->n_tiles; }

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

static const uint8_t *panel_at(const product *p, size_t panel, size_t k)
{
    return (const uint8_t *)p->w->data +
           panel * kern_matrix_bytes(p->w->type, KERN_PANEL, p->w->k) + k * p->column_bytes;
}

/* Columns [k0, k1) of the block's x as [k block][tile][k of the block][row of the tile]. */
static void pack_block(const product *p, const item *it, size_t k0, size_t k1, float *out)
{
    for (; k0 < k1; k0 += it->k_block) {
        size_t k = min_size(it->k_block, k1 - k0);
        for (size_t t = it->tile0; t < it->tile1; t++) {
            size_t row = tile_row(p, t), rows = tile_row(p, t + 1) - row;
            p->kc->isa.pack_x(p->x + row * p->x_stride + k0, p->x_stride, rows, k, out);
            out += rows * k;
        }
    }
}

/* Panels first + i * stride_panels, i < side, columns [k0, k0 + k), all tiles of the block.
 * x is packed [tile][k][row of the tile]; `next` is what the following call will read. */
static void run_call(const product *p, const item *it, struct kern_matmul_scratch *s, size_t first,
                     size_t stride_panels, size_t side, size_t k0, size_t k, const float *x,
                     float *acc, const uint8_t *next)
{
    const kern_isa *isa = &p->kc->isa;
    dtype type = p->w->type;
    const void *w = panel_at(p, first, k0);
    size_t w_stride = stride_panels * kern_matrix_bytes(type, KERN_PANEL, p->w->k);
    size_t tiles = it->tile1 - it->tile0;
    /* One tile: weights stream, fetched PREFETCH_BYTES early. More: the first tile fetches what the
     * next call reads, the others find that line there again and again. */
    kern_ahead ahead = {(const uint8_t *)w + PREFETCH_BYTES, w_stride, 64};
    if (tiles > 1) ahead.at = next;

    if (type != DTYPE_F32 && tiles > 1 && tiles >= isa->widen_tiles) {
        isa->widen[type](w, k, s->wide);
        w = s->wide;
        type = DTYPE_F32;
        ahead.step = 32; /* twice the rounds for as many bytes */
    }
    for (size_t t = it->tile0; t < it->tile1; t++) {
        size_t row = tile_row(p, t), rows = tile_row(p, t + 1) - row, at = row - it->row0;
        const float *x_tile = rows == 1 ? p->x + row * p->x_stride + k0 : x + at * k;
        kern_tile_fn tile = side == 1 ? isa->tile1[type][rows] : isa->tile[type][rows];
        tile(w, w_stride, k, x_tile, acc + at * side * KERN_PANEL, &ahead);
        ahead.step = 0;
    }
}

/* Calls of `side` panels, then the panels that are left, one by one. */
static size_t n_calls(const item *it) { return it->panels - it->calls * (it->side - 1); }

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

/* Sums lie as [call][tile][panel of the call][row of the tile][16]. These two go over them row by
 * row: y is then written in runs of a panel group, not in lines that are a whole row apart. */
static void start_sums(const product *p, const item *it, struct kern_matmul_scratch *s)
{
    if (!p->bias) {
        memset(s->acc, 0, it->panels * it->rows * KERN_PANEL * sizeof(float));
        return;
    }
    for (size_t c = 0; c < n_calls(it); c++) {
        size_t side = c < it->calls ? it->side : 1;
        float *acc = call_acc(it, s, c);
        for (size_t t = it->tile0; t < it->tile1; t++) {
            size_t rows = tile_row(p, t + 1) - tile_row(p, t);
            for (size_t i = 0; i < side; i++) {
                size_t column = (call_first_panel(it, c) + i * it->calls) * KERN_PANEL;
                size_t n = min_size(KERN_PANEL, p->w->n - column);
                for (size_t r = 0; r < rows; r++, acc += KERN_PANEL)
                    for (size_t j = 0; j < KERN_PANEL; j++)
                        acc[j] = j < n ? p->bias[column + j] : 0;
            }
        }
    }
}

static void store_row(const product *p, const item *it, struct kern_matmul_scratch *s, size_t tile,
                      size_t r)
{
    size_t row = tile_row(p, tile), rows = tile_row(p, tile + 1) - row;
    float *y = p->y + (row + r) * p->y_stride;
    for (size_t i = 0; i < it->side; i++)
        for (size_t c = 0; c < (i == 0 ? n_calls(it) : it->calls); c++) {
            size_t side = c < it->calls ? it->side : 1;
            const float *acc =
                call_acc(it, s, c) + ((row - it->row0) * side + i * rows + r) * KERN_PANEL;
            size_t column = (call_first_panel(it, c) + i * it->calls) * KERN_PANEL;
            if (column + KERN_PANEL <= p->w->n) /* the size known: one move, no call */
                memcpy(y + column, acc, KERN_PANEL * sizeof(float));
            else memcpy(y + column, acc, (p->w->n - column) * sizeof(float));
        }
}

static void store_sums(const product *p, const item *it, struct kern_matmul_scratch *s)
{
    for (size_t t = it->tile0; t < it->tile1; t++)
        for (size_t r = 0; r < tile_row(p, t + 1) - tile_row(p, t); r++) store_row(p, it, s, t, r);
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

    size_t tiles = it.tile1 - it.tile0;
    it.side = tiles == 1 ? isa->tile_panels[it.rows] : 1;
    it.calls = it.panels / it.side;
    it.direct = it.rows == tiles;
    it.whole = it.rows * p->w->k <= X_FLOATS;
    it.k_block = tiles == 1 && (it.direct || it.whole) ? p->w->k : K_BLOCK;
    return it;
}

static void run_item(const product *p, size_t index, struct kern_matmul_scratch *s)
{
    item it = make_item(p, index);
    size_t k_all = p->w->k, n = n_calls(&it);
    bool packed = s->call == p->call && s->block == it.block;
    if (!it.direct && it.whole && !packed) pack_block(p, &it, 0, k_all, s->x_packed);
    if (!it.direct) {
        s->call = it.whole ? p->call : 0;
        s->block = it.block;
    }
    start_sums(p, &it, s);
    for (size_t k0 = 0; k0 < k_all; k0 += it.k_block) {
        size_t k = min_size(it.k_block, k_all - k0);
        if (!it.direct && !it.whole) pack_block(p, &it, k0, k0 + k, s->x_packed);
        for (size_t c = 0; c < n; c++) {
            size_t after = c + 1 < n ? c + 1 : 0;
            size_t next_k = c + 1 < n ? k0 : min_size(k0 + k, k_all - 1);
            run_call(p, &it, s, call_first_panel(&it, c), it.calls, c < it.calls ? it.side : 1, k0,
                     k, s->x_packed + (it.whole ? k0 * it.rows : 0), call_acc(&it, s, c),
                     panel_at(p, call_first_panel(&it, after), next_k));
        }
    }
    store_sums(p, &it, s);
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

    /* Sixteen items for each thread keep the last one short beside the whole; fewer panels than a
     * tile takes side by side would waste its streams. */
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
