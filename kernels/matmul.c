/* Matrix product, op level: cuts the work, keeps the scratch, handles the edges.
 *
 *   rows of x:    [ tile | tile | ... ] [ tile | ... ]      row blocks of at most ROW_BLOCK rows
 *   panels of W:  [ p p p p ] [ p p p p ] ...               groups of at most GROUP_PANELS panels
 *
 * A work item is one row block by one panel group. Its sums live in scratch until they are
 * complete, so the tile kernels see neither strides nor the edge of n. A product of one tile
 * streams its weights once, several panels side by side, and each stream runs on through a run of
 * items. With more tiles k is cut into blocks of K_BLOCK columns. A panel's piece stays in L1 while
 * all tiles of the row block use it, and the sums wait in scratch, so each element is still one
 * chain over ascending k.
 *
 * Quantised weights are cut in the same way, in units of two groups of columns instead of one
 * column. x is quantised where f32 x is packed: each thread does it for its own row blocks. Where
 * the ISA has tiles for it (quant_unpacks in isa.h), the first of several tiles unpacks a panel's
 * piece into scratch for the others.
 *
 * In a product that ends in swiglu an item has some panels of gates and the panels of their ups.
 * Sums of the gates wait in scratch; the calls of the ups store swiglu of both. */
#include "kernels/context.h"

#include "base/minmax.h"

#include <assert.h>
#include <string.h>

enum {
    ROW_BLOCK = 144,       /* x [144, 256] f32 is 144 KiB, the sums as much: both stay in L2 */
    BLOCK_ROWS_MIN = 32,   /* weights read once for 32 rows are far from the read bandwidth */
    K_BLOCK = 256,         /* a panel's piece is 8 KiB, in f32 16: half of the smallest L1 */
    BYTES_K_BLOCK = 512,   /* 9 KiB in 8 bits, unpacked 17 */
    HALVES_K_BLOCK = 1024, /* 9 KiB in 4 bits, unpacked 18 */
    FLOATS_K_BLOCK = 384,  /* 9 KiB in 12 bits, unpacked 12 */
    GROUP_PANELS = 16,     /* packing x again for each item then costs 2 % at most */
    AHEAD_MIN = 1024, /* bytes a stream is prefetched ahead; 2 KiB is 4 to 6 % slower on Zen 3 */
    SERIAL_WORK = 1 << 17, /* multiply-adds that one thread does while the others wake up */
    ACC_FLOATS = GROUP_PANELS * ROW_BLOCK * KERN_PANEL,
    X_SPILL = KERN_PANEL, /* floats that pack_x may write beyond the end */
    UNPACK_TILES = 2,     /* least tiles of a block that unpack its weights */
    UNPACK_TILES_4 = 3,   /* of 4 bits, which take fewer instructions to convert */
    UNPACKED_BYTES = HALVES_K_BLOCK * KERN_PANEL + HALVES_K_BLOCK / KERN_GROUP_MIN * KERN_PANEL * 4,
    X_FLOATS = (KERN_MATMUL_SCRATCH_BYTES - UNPACKED_BYTES) / 4 - ACC_FLOATS - X_SPILL - 16,
    X_BYTES = X_FLOATS * 4,
};

/* x of a row block is packed whole, once for all items of a thread, when it fits (k <= 3,300 for
 * 144 rows); otherwise piece by piece for each item. */
struct kern_matmul_scratch {
    uint64_t call; /* the product of the thread's last item */
    size_t block;  /* its row block: x_packed is still valid if it was whole */
    _Alignas(64) uint8_t unpacked[UNPACKED_BYTES];
    float acc[ACC_FLOATS];
    float x_packed[X_FLOATS + X_SPILL];
};
_Static_assert(sizeof(struct kern_matmul_scratch) == KERN_MATMUL_SCRATCH_BYTES, "one huge page");

typedef struct product {
    const kern_context *kc;
    const kern_matrix *w;
    const float *bias;
    const float *x;
    size_t x_stride, m;
    float *y;
    size_t y_stride;
    size_t first, k; /* columns [first, first + k) of w */
    /* x has columns [x_first, x_first + x_k) of those; the rest of their units are zeros. */
    size_t x_first, x_k;
    uint64_t call;
    size_t tile_rows;
    const uint8_t *tile_panels;
    /* For a product of several tiles: rows of a tile, panels of a call. */
    size_t many_rows, many_least, many_panels;
    size_t ahead; /* bytes that a lone tile prefetches ahead, over all streams */
    kern_quant_x_fn quant_x;
    size_t n_tiles, n_blocks;                /* along m; tiles differ by one row at most */
    size_t n_panels, group_panels, n_groups; /* along n, or along the gates */
    bool swiglu;
    size_t joined; /* most items of a run that are done as one */
    size_t k_block;
    size_t unit;         /* columns; k and first are multiples of it */
    size_t panel_bytes;  /* bytes of a panel */
    size_t w_unit_bytes; /* bytes of a unit of its columns */
    size_t x_unit_bytes; /* bytes of a unit of a packed row of x */
} product;

typedef struct item {
    size_t block, tile0, tile1, row0, rows;
    size_t panel0, panels;
    size_t side;                /* panels of one call */
    size_t ahead;               /* bytes that a lone tile prefetches ahead in each stream */
    size_t long_calls, n_calls; /* with swiglu: of the gates alone */
    size_t k_block;
    bool direct; /* tiles of one row: x is read where it lies */
    bool whole;  /* x of the row block fits in scratch and stays there for other items */
} item;

/* The panels that the tile kernels compute at once. The first long_calls calls of an item have
 * panels panel0 + call + i * long_calls, i < side, so that each of the `side` streams runs on
 * through memory from call to call. The remaining panels follow one by one. Sums are [tile][i][row
 * of the tile][16]. */
typedef struct call {
    size_t panel, stride, side; /* panel + i * stride */
    float *acc;
    float *gates; /* in a call of ups: sums of their gates */
    bool waits;   /* a call of gates: its sums are not stored */
} call;

static size_t tile_row(const product *p, size_t tile) { return p->m * tile / p->n_tiles; }

static size_t tile_rows(const product *p, size_t tile)
{
    return tile_row(p, tile + 1) - tile_row(p, tile);
}

static call get_call(const product *p, const item *it, struct kern_matmul_scratch *s, size_t index)
{
    bool ups = p->swiglu && index % 2 == 1;
    if (p->swiglu) index /= 2; /* calls of gates and of their ups alternate */
    bool is_long = index < it->long_calls;
    size_t before = is_long ? index * it->side : index + it->long_calls * (it->side - 1);
    call c = {.panel = it->panel0 + (is_long ? index : before), .stride = it->long_calls};
    c.side = is_long ? it->side : 1;
    c.acc = s->acc + before * it->rows * KERN_PANEL;
    c.waits = p->swiglu && !ups;
    if (!ups) return c;
    c.gates = c.acc;
    c.acc += it->panels * it->rows * KERN_PANEL;
    c.panel += p->n_panels;
    return c;
}

/* The bytes of k packed columns of one row of x. */
static size_t x_bytes(const product *p, size_t k) { return k / p->unit * p->x_unit_bytes; }

/* Packs columns [k, k + group) of w, of which x has only some: the others are zeros. */
static void put_edge(const product *p, const float *x, size_t k, size_t r, size_t rows,
                     uint8_t *out)
{
    float padded[KERN_GROUP_MAX] = {0};
    size_t from = k > p->x_first ? k : p->x_first;
    size_t to = min_size(k + p->w->quant.group, p->x_first + p->x_k);
    if (from < to) memcpy(padded + (from - k), x + (from - p->x_first), (to - from) * 4);
    p->quant_x(padded, 1, p->w->quant.group, rows, r, out);
}

/* Quantises columns [k0, k0 + k) of a tile's x, group by group. */
static void quantise_tile(const product *p, size_t tile, size_t k0, size_t k, uint8_t *out)
{
    size_t rows = tile_rows(p, tile), group = p->w->quant.group, x_end = p->x_first + p->x_k;
    for (size_t r = 0; r < rows; r++) {
        const float *x = p->x + (tile_row(p, tile) + r) * p->x_stride;
        uint8_t *to = out;
        for (size_t at = p->first + k0, end = at + k, n; at < end; at += n * group) {
            n = at >= p->x_first && at < x_end ? (min_size(end, x_end) - at) / group : 0;
            if (n > 0) p->quant_x(x + (at - p->x_first), n, (unsigned)group, rows, r, to);
            else put_edge(p, x, at, r, rows, to);
            if (n == 0) n = 1;
            to += n * rows * p->x_unit_bytes / 2;
        }
    }
}

/* Packs columns [k0, k1) of the block's x as [k block][tile][k of the block][row of the tile]. */
static void pack_block(const product *p, const item *it, size_t k0, size_t k1, uint8_t *out)
{
    for (; k0 < k1; k0 += it->k_block) {
        size_t k = min_size(it->k_block, k1 - k0);
        for (size_t t = it->tile0; t < it->tile1; t++) {
            const float *x = p->x + tile_row(p, t) * p->x_stride + k0;
            if (p->w->quant.bits) quantise_tile(p, t, k0, k, out);
            else p->kc->isa.pack_x(x, p->x_stride, tile_rows(p, t), k, (float *)(void *)out);
            out += tile_rows(p, t) * x_bytes(p, k);
        }
    }
}

static const uint8_t *weights_at(const product *p, size_t panel, size_t k)
{
    return (const uint8_t *)p->w->data + panel * p->panel_bytes +
           (p->first + k) / p->unit * p->w_unit_bytes;
}

/* ---- sums: [i][row of the tile][16] of a call's panels. They are started right before their
 * tile and stored right after it, while they lie in L1; storing overlaps the next tile. ---- */

static void start_sums(const product *p, const call *c, size_t rows, float *acc)
{
    if (!p->bias) {
        memset(acc, 0, c->side * rows * KERN_PANEL * sizeof(float));
        return;
    }
    for (size_t i = 0; i < c->side; i++) {
        float start[KERN_PANEL] = {0};
        size_t column = (c->panel + i * c->stride) * KERN_PANEL;
        memcpy(start, p->bias + column, min_size(KERN_PANEL, p->w->n - column) * sizeof(float));
        for (size_t r = 0; r < rows; r++, acc += KERN_PANEL) memcpy(acc, start, sizeof start);
    }
}

/* `before` counts the sums of the block's earlier tiles. */
static void store_sums(const product *p, const call *c, size_t row, size_t rows, size_t before)
{
    const float *acc = c->acc + before;
    size_t panel = c->panel, n = p->w->n;
    if (c->waits) return;
    if (c->gates) {
        float *gates = c->gates + before;
        p->kc->isa.swiglu(gates, acc, c->side * rows * KERN_PANEL, gates);
        acc = gates;
        panel -= p->n_panels;
        n /= 2;
    }
    for (size_t r = 0; r < rows; r++) {
        float *y = p->y + (row + r) * p->y_stride;
        for (size_t i = 0; i < c->side; i++) {
            const float *from = acc + (i * rows + r) * KERN_PANEL;
            size_t column = (panel + i * c->stride) * KERN_PANEL;
            if (column + KERN_PANEL <= n) /* a constant size: one move, no call */
                memcpy(y + column, from, KERN_PANEL * sizeof(float));
            else memcpy(y + column, from, (n - column) * sizeof(float));
        }
    }
}

/* Runs columns [k0, k0 + k) of all tiles of the block. x is packed [tile][k][row of the tile]; the
 * next call reads from `next` on. */
static void run_call(const product *p, const item *it, const call *c, size_t k0, size_t k,
                     const uint8_t *x, const uint8_t *next, uint8_t *unpacked)
{
    const kern_isa *isa = &p->kc->isa;
    dtype type = p->w->type;
    unsigned quant = kern_quant_index(p->w->quant), group = p->w->quant.group;
    const uint8_t *w = weights_at(p, c->panel, k0);
    size_t w_stride = c->stride * p->panel_bytes, tiles = it->tile1 - it->tile0;

    /* A lone tile prefetches its own streams. Several tiles prefetch what the next call reads, each
     * its share: a burst of prefetches between tiles would hold up the loads behind it. */
    kern_ahead ahead = {w + it->ahead, w_stride, 64};
    if (tiles > 1) {
        ahead.at = next;
        ahead.step = ceil_div(64, tiles);
    }
    const size_t least = p->w->quant.bits == 4 ? UNPACK_TILES_4 : UNPACK_TILES;
    const bool unpack = p->w->quant.bits && isa->quant_unpacks && tiles >= least;
    assert(!unpack || c->side == 1);
    const size_t x_row = x_bytes(p, k), lines = k / p->unit * p->w_unit_bytes / 64;
    for (size_t t = it->tile0, row = it->row0, rows; t < it->tile1; t++, row += rows) {
        rows = tile_row(p, t + 1) - row;
        const uint8_t *packed = x + (row - it->row0) * x_row;
        size_t before = (row - it->row0) * c->side * KERN_PANEL;
        float *acc = c->acc + before;
        if (k0 == 0) start_sums(p, c, rows, acc);
        if (unpack && t == it->tile0) {
            isa->quant_unpacking[quant][rows](w, unpacked, k, group, packed, acc, &ahead);
        } else if (unpack) {
            isa->quant_unpacked[quant][rows](unpacked, k, group, packed, acc, &ahead);
        } else if (p->w->quant.bits) {
            kern_quant_tile_fn tile =
                c->side == 1 ? isa->quant_tile1[quant][rows] : isa->quant_tile[quant][rows];
            tile(w, w_stride, k, group, packed, acc, &ahead);
        } else {
            const float *x_tile =
                rows == 1 ? p->x + row * p->x_stride + k0 : (const float *)(const void *)packed;
            kern_tile_fn tile = c->side == 1 ? isa->tile1[type][rows] : isa->tile[type][rows];
            tile(w, w_stride, k, x_tile, acc, &ahead);
        }
        if (k0 + k >= p->k) store_sums(p, c, row, rows, before);
        ahead.at += lines * ahead.step;
    }
}

/* Joins items [index, index + count), all of one row block, into one. */
static item make_item(const product *p, size_t index, size_t count)
{
    item it = {.block = index / p->n_groups};
    it.tile0 = p->n_tiles * it.block / p->n_blocks;
    it.tile1 = p->n_tiles * (it.block + 1) / p->n_blocks;
    it.row0 = tile_row(p, it.tile0);
    it.rows = tile_row(p, it.tile1) - it.row0;
    it.panel0 = index % p->n_groups * p->group_panels;
    it.panels = min_size(count * p->group_panels, p->n_panels - it.panel0);

    size_t tiles = it.tile1 - it.tile0;
    it.side = tiles == 1 ? p->tile_panels[it.rows] : p->many_panels;
    it.ahead = p->ahead / it.side > AHEAD_MIN ? p->ahead / it.side : AHEAD_MIN;
    if (it.rows == 1 && p->kc->isa.row_ahead > 0) it.ahead = p->kc->isa.row_ahead;
    it.long_calls = it.panels / it.side;
    it.n_calls = it.panels - it.long_calls * (it.side - 1);
    it.direct = it.rows == tiles && !p->w->quant.bits;
    it.whole = it.rows * x_bytes(p, p->k) <= X_BYTES;
    it.k_block = tiles == 1 && (it.direct || it.whole) ? p->k : p->k_block;
    return it;
}

/* Prefetches the first bytes of a tile's streams, which the tile itself would prefetch too late.
 * They arrive while x is packed. Inlined because gcc drops calls of a function that only
 * prefetches. */
static inline __attribute__((always_inline)) void fetch_start(const product *p, const item *it,
                                                              struct kern_matmul_scratch *s)
{
    call c = get_call(p, it, s, 0);
    for (size_t at = 0; at < it->ahead; at += 64)
        for (size_t i = 0; i < c.side; i++)
            __builtin_prefetch(weights_at(p, c.panel + i * c.stride, 0) + at);
}

static void run_item(const product *p, size_t index, size_t count, struct kern_matmul_scratch *s)
{
    item it = make_item(p, index, count);
    size_t k_all = p->k, n_calls = p->swiglu ? 2 * it.n_calls : it.n_calls;
    uint8_t *packed = (uint8_t *)s->x_packed;
    if (it.tile1 - it.tile0 == 1) fetch_start(p, &it, s);
    if (!it.direct && it.whole && (s->call != p->call || s->block != it.block))
        pack_block(p, &it, 0, k_all, packed);
    s->call = p->call;
    s->block = it.block;
    for (size_t k0 = 0; k0 < k_all; k0 += it.k_block) {
        size_t k = min_size(it.k_block, k_all - k0);
        if (!it.direct && !it.whole) pack_block(p, &it, k0, k0 + k, packed);
        const uint8_t *x = packed + (it.whole ? x_bytes(p, k0) * it.rows : 0);
        for (size_t i = 0; i < n_calls; i++) {
            call c = get_call(p, &it, s, i), after = get_call(p, &it, s, (i + 1) % n_calls);
            size_t next_k = i + 1 < n_calls ? k0 : k0 + k;
            run_call(p, &it, &c, k0, k, x, weights_at(p, after.panel, next_k), s->unpacked);
        }
    }
}

static void run_items(void *ctx, size_t from, size_t to, unsigned thread)
{
    const product *p = ctx;
    for (size_t i = from, n; i < to; i += n) {
        n = min_size(p->joined, to - i);
        n -= n > 1 && n % 2 == 0; /* streams an even number of panels apart are up to 8 % slower */
        run_item(p, i, n, p->kc->threads[thread].matmul);
    }
}

/* Rows of a block: few enough that their x fits whole, unless weights would then be read for fewer
 * than BLOCK_ROWS_MIN rows. */
static size_t block_rows(const product *p)
{
    size_t fit = p->k > 0 ? X_BYTES / x_bytes(p, p->k) : ROW_BLOCK;
    return fit < BLOCK_ROWS_MIN ? ROW_BLOCK : min_size(fit, ROW_BLOCK);
}

/* Sets units of columns: their layout in w and in packed x. */
static void set_units(const kern_isa *isa, product *p)
{
    const kern_matrix *w = p->w;
    p->x_first = p->first;
    p->x_k = p->k;
    if (!w->quant.bits) {
        p->unit = 1;
        p->w_unit_bytes = KERN_PANEL * dtype_bytes(w->type);
        p->x_unit_bytes = sizeof(float);
        p->panel_bytes = kern_matrix_bytes(w->type, KERN_PANEL, w->k);
        p->k_block = K_BLOCK;
        p->tile_rows = isa->tile_rows;
        p->tile_panels = isa->tile_panels;
        p->many_rows = isa->tile_rows;
        p->many_least = p->many_panels = 1;
        p->ahead = AHEAD_MIN;
        return;
    }
    p->unit = (size_t)2 * w->quant.group;
    p->w_unit_bytes = kern_quant_bytes(w->quant);
    unsigned index = kern_quant_index(w->quant);
    assert(w->quant.bits != 12 || isa->quant_tile[index][isa->quant_rows]);
    p->quant_x = isa->quant_x[index];
    p->x_unit_bytes = 2 * kern_quant_x_bytes(isa->quant_x_wide[index], w->quant.group);
    p->panel_bytes = ceil_div(w->k, p->unit) * p->w_unit_bytes;
    const size_t k_blocks[KERN_QUANTS] = {BYTES_K_BLOCK, HALVES_K_BLOCK, FLOATS_K_BLOCK};
    p->k_block = k_blocks[index];
    p->tile_rows = isa->quant_rows;
    p->tile_panels = isa->quant_panels[index];
    p->many_rows = w->quant.group > KERN_GROUP_MIN ? isa->quant_rows : isa->quant_many_rows;
    p->many_least = isa->quant_many_least;
    p->many_panels = isa->quant_many;
    p->ahead = isa->quant_ahead[index];
    size_t end = ceil_div(p->first + p->k, p->unit) * p->unit;
    p->first -= p->first % p->unit;
    p->k = p->k > 0 ? end - p->first : 0;
}

/* Sets the panels of a group. Fewer than a tile takes side by side would waste its streams. With
 * one tile a group has just these, because the pool joins groups in runs, and longer streams are
 * faster. With more tiles each thread gets sixteen items, so that the last one is short beside the
 * whole. */
static void set_groups(product *p)
{
    size_t side = p->n_tiles == 1 ? p->tile_panels[p->m] : p->many_panels;
    p->n_panels = ceil_div(p->w->n, KERN_PANEL) / (p->swiglu ? 2 : 1);
    p->group_panels = side;
    p->joined = ACC_FLOATS / KERN_PANEL / p->m / side;
    if (p->n_tiles > 1) {
        size_t groups = (size_t)16 * p->kc->n_threads / min_size(p->n_blocks, 16);
        size_t panels = p->n_panels / (groups > 0 ? groups : 1) / side * side;
        size_t most = p->swiglu ? GROUP_PANELS / 2 : GROUP_PANELS;
        if (panels > most) panels = most;
        if (panels > side) p->group_panels = panels;
        p->joined = 1;
    }
    p->n_groups = ceil_div(p->n_panels, p->group_panels);
}

/* Cuts and runs product p. Returns false and does nothing for a product of one tile that ends in
 * swiglu: its weights stream in long runs, which gates and ups would cut in two. */
static bool run_product(kern_context *kc, product p)
{
    size_t m = p.m;
    const kern_matrix *w = p.w;
    if (m == 0 || w->n == 0) return true;
    const kern_operands o = {.w = w,
                             .first = p.first,
                             .k = p.k,
                             .bias = p.bias,
                             .x = p.x,
                             .x_stride = p.x_stride,
                             .m = m,
                             .y = p.y,
                             .y_stride = p.y_stride,
                             .swiglu = p.swiglu};
    bool done = false;
    if (kern_matmul_blocks(kc, &o, &done)) return done;
    const kern_isa *isa = &kc->isa;
    p.kc = kc;
    set_units(isa, &p);
    p.n_tiles = 1;
    if (m > p.tile_rows) p.n_tiles = min_size(ceil_div(m, p.many_rows), m / p.many_least);
    if (p.swiglu && p.n_tiles == 1) return false;
    p.call = ++kc->matmul_calls;
    p.n_blocks = ceil_div(p.n_tiles, block_rows(&p) / p.many_rows);
    set_groups(&p);
    size_t n_items = p.n_blocks * p.n_groups;
    bool serial = (double)m * (double)w->n * (double)p.k < SERIAL_WORK;
    if (serial) run_items(&p, 0, n_items, 0);
    else thread_pool_for_runs(kc->pool, n_items, run_items, &p);
    return true;
}

void kern_matmul(kern_context *kc, const kern_matrix *w, const float *bias, const float *x,
                 size_t x_stride, size_t m, float *y, size_t y_stride)
{
    assert(x_stride >= w->k && y_stride >= w->n);
    run_product(kc, (product){.w = w,
                              .bias = bias,
                              .x = x,
                              .x_stride = x_stride,
                              .m = m,
                              .y = y,
                              .y_stride = y_stride,
                              .k = w->k});
}

void kern_matmul_columns(kern_context *kc, const kern_matrix *w, size_t first, size_t k,
                         const float *x, size_t x_stride, size_t m, float *y, size_t y_stride)
{
    assert(k > 0 && first + k <= w->k && first % 2 == 0 && k % 2 == 0);
    assert(x_stride >= k && y_stride >= w->n);
    run_product(kc, (product){.w = w,
                              .x = x,
                              .x_stride = x_stride,
                              .m = m,
                              .y = y,
                              .y_stride = y_stride,
                              .first = first,
                              .k = k});
}

void kern_matmul_swiglu(kern_context *kc, const kern_matrix *w, const float *x, size_t x_stride,
                        size_t m, float *gate_up, float *out)
{
    assert(x_stride >= w->k && w->n % 2 == 0);
    size_t n = w->n / 2;
    bool done = n % KERN_PANEL == 0 && run_product(kc, (product){.w = w,
                                                                 .x = x,
                                                                 .x_stride = x_stride,
                                                                 .m = m,
                                                                 .y = out,
                                                                 .y_stride = n,
                                                                 .k = w->k,
                                                                 .swiglu = true});
    if (done) return;
    kern_matmul(kc, w, NULL, x, x_stride, m, gate_up, w->n);
    kern_swiglu(kc, gate_up, m, n, out);
}
