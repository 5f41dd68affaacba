/* Matrix product by blocks (isa.h), op level: for instructions that sum several products at once.
 * It cuts the work, keeps the scratch and knows the edges, as matmul.c does for tiles.
 *
 * A work item is a block of rows by a group of panels. Each thread packs the rows of its items
 * once, all columns of them where they fit. With one tile of rows several panels stream through
 * side by side; with more, k is cut so that a piece of the weights stays in L1 while the block's
 * rows pass from L2, and the sums go on from scratch. How k is cut changes no bit: a unit of
 * columns is one step of a chain, whoever takes it. */
#include "kernels/context.h"

#include <string.h>

enum {
    ROWS_MAX = 256,        /* weights are read once for so many rows */
    ROWS_MIN = 64,         /* ... and for so many at least: rather x in pieces */
    GROUP_PANELS = 16,     /* so that packing x again for each item costs little */
    BF16_UNIT = 32,        /* columns of a step */
    K_STEP = 512,          /* a multiple of the columns of any unit and any call */
    SERIAL_WORK = 1 << 18, /* multiply-adds that are done before other threads have woken up */
};

/* The head is that of matmul.c's scratch, which is the same memory. */
typedef struct scratch {
    uint64_t call;
    size_t block;
    _Alignas(64) uint8_t bytes[];
} scratch;

typedef struct job {
    const kern_context *kc;
    const kern_operands *o;
    const kern_dot_ops *ops;
    uint64_t call;
    unsigned group;
    size_t first, k; /* columns of w: o's, quantised ones widened to whole units */
    size_t unit;     /* columns of a unit of x; what it takes in a row of x, ... */
    size_t x_unit_bytes;
    size_t w_unit, w_unit_bytes, panel_bytes; /* ... and in a panel */
    size_t rows, tiles;                       /* of a tile; in all */
    size_t n_blocks, n_panels, group_panels, n_groups;
    size_t k_piece; /* columns of x that fit */
} job;

typedef struct item {
    size_t block, tile0, tiles, panel0, panels;
    size_t side, k_block; /* of a call */
    float *acc;           /* [panels][tiles][rows][16] */
    uint8_t *x;           /* [tiles][units][rows] */
    size_t x_stride;      /* of a tile */
} item;

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

/* ---- x ----------------------------------------------------------------------------------------
 */

/* One unit of a row at column k of w, of which x has a part. */
static void pack_edge(const job *j, const float *x, size_t k, size_t r, uint8_t *out)
{
    float padded[KERN_GROUP_MAX] = {0};
    size_t x_end = j->o->first + j->o->k;
    size_t from = k > j->o->first ? k : j->o->first, to = min_size(k + j->unit, x_end);
    if (from < to) memcpy(padded + (from - k), x + (from - j->o->first), (to - from) * 4);
    j->ops->pack(padded, 1, j->group, j->rows, r, out);
}

/* Columns [k0, k0 + k) of one row, counted from the job's first. */
static void pack_row(const job *j, const float *x, size_t k0, size_t k, size_t r, uint8_t *out)
{
    size_t at = j->first + k0, end = at + k, x_end = j->o->first + j->o->k;
    size_t step = j->x_unit_bytes * j->rows;
    while (at < end) {
        size_t whole = at >= j->o->first && at < x_end ? (min_size(end, x_end) - at) / j->unit : 0;
        if (whole > 0) j->ops->pack(x + (at - j->o->first), whole, j->group, j->rows, r, out);
        else pack_edge(j, x, at, r, out);
        if (whole == 0) whole = 1;
        at += whole * j->unit;
        out += whole * step;
    }
}

static void pack_tiles(const job *j, const item *it, size_t k0, size_t k)
{
    for (size_t t = 0; t < it->tiles; t++) {
        uint8_t *out = it->x + t * it->x_stride;
        size_t row0 = (it->tile0 + t) * j->rows, rows = min_size(j->rows, j->o->m - row0);
        if (rows < j->rows) memset(out, 0, it->x_stride);
        for (size_t r = 0; r < rows; r++)
            pack_row(j, j->o->x + (row0 + r) * j->o->x_stride, k0, k, r, out);
    }
}

/* ---- sums -------------------------------------------------------------------------------------
 */

static void start_sums(const job *j, const item *it)
{
    size_t rows = it->tiles * j->rows;
    if (!j->o->bias) {
        memset(it->acc, 0, it->panels * rows * KERN_PANEL * sizeof(float));
        return;
    }
    for (size_t i = 0; i < it->panels; i++) {
        float start[KERN_PANEL] = {0};
        size_t column = (it->panel0 + i) * KERN_PANEL;
        size_t n = min_size(KERN_PANEL, j->o->w->n - column);
        memcpy(start, j->o->bias + column, n * sizeof(float));
        for (size_t r = 0; r < rows; r++)
            memcpy(it->acc + (i * rows + r) * KERN_PANEL, start, sizeof start);
    }
}

static void store_sums(const job *j, const item *it)
{
    size_t rows = it->tiles * j->rows, row0 = it->tile0 * j->rows;
    for (size_t r = 0; r < rows && row0 + r < j->o->m; r++) {
        float *y = j->o->y + (row0 + r) * j->o->y_stride;
        for (size_t i = 0; i < it->panels; i++) {
            const float *acc = it->acc + (i * rows + r) * KERN_PANEL;
            size_t column = (it->panel0 + i) * KERN_PANEL;
            if (column + KERN_PANEL <= j->o->w->n) /* the size known: one move, no call */
                memcpy(y + column, acc, KERN_PANEL * sizeof(float));
            else memcpy(y + column, acc, (j->o->w->n - column) * sizeof(float));
        }
    }
}

/* ---- items ------------------------------------------------------------------------------------
 */

static const uint8_t *weights_at(const job *j, size_t panel, size_t k)
{
    return (const uint8_t *)j->o->w->data + panel * j->panel_bytes +
           (j->first + k) / j->w_unit * j->w_unit_bytes;
}

/* Columns [k0, k0 + k) with x of them packed: every panel of the item, `side` at a time. */
static void run_piece(const job *j, const item *it, size_t k0, size_t k)
{
    size_t tile = it->tiles * j->rows * KERN_PANEL;
    for (size_t at = 0; at < k; at += it->k_block) {
        size_t columns = min_size(it->k_block, k - at);
        for (size_t i = 0; i < it->panels; i += it->side) {
            bool last = i + it->side >= it->panels;
            kern_dot_block b = {.w = weights_at(j, it->panel0 + i, k0 + at)};
            b.next = weights_at(j, it->panel0 + (last ? 0 : i + it->side),
                                k0 + at + (last ? columns : 0));
            b.w_stride = j->panel_bytes;
            b.panels = min_size(it->side, it->panels - i);
            b.k = columns;
            b.group = j->group;
            b.x = it->x + at / j->unit * j->x_unit_bytes * j->rows;
            b.x_stride = it->x_stride;
            b.tiles = it->tiles;
            b.rows = j->rows;
            b.acc = it->acc + i * tile;
            j->ops->run(&b);
        }
    }
}

static item make_item(const job *j, size_t index, scratch *s)
{
    item it = {.block = index / j->n_groups};
    it.tile0 = j->tiles * it.block / j->n_blocks;
    it.tiles = j->tiles * (it.block + 1) / j->n_blocks - it.tile0;
    it.panel0 = index % j->n_groups * j->group_panels;
    it.panels = min_size(j->group_panels, j->n_panels - it.panel0);
    it.side = it.tiles == 1 ? j->ops->few_panels : j->ops->panels;
    it.k_block = it.tiles == 1 ? j->ops->few_k : j->ops->k;
    if (it.k_block == 0) it.k_block = j->k_piece;
    it.acc = (float *)(void *)s->bytes;
    it.x = s->bytes + j->group_panels * it.tiles * j->rows * KERN_PANEL * sizeof(float);
    it.x_stride = ceil_div(j->k_piece, j->unit) * j->x_unit_bytes * j->rows;
    return it;
}

static void run_item(const job *j, size_t index, scratch *s)
{
    item it = make_item(j, index, s);
    bool whole = j->k_piece >= j->k, packed = whole && s->call == j->call && s->block == it.block;
    s->call = j->call;
    s->block = it.block;
    start_sums(j, &it);
    if (j->ops->begin) j->ops->begin(j->rows, j->group);
    for (size_t k0 = 0; k0 < j->k; k0 += j->k_piece) {
        size_t k = min_size(j->k_piece, j->k - k0);
        if (!packed) pack_tiles(j, &it, k0, k);
        run_piece(j, &it, k0, k);
    }
    if (j->ops->end) j->ops->end();
    store_sums(j, &it);
}

static void run_items(void *ctx, size_t from, size_t to, unsigned thread)
{
    const job *j = ctx;
    for (size_t i = from; i < to; i++)
        run_item(j, i, (scratch *)(void *)j->kc->threads[thread].matmul);
}

/* ---- a product --------------------------------------------------------------------------------
 */

static void set_units(job *j)
{
    const kern_matrix *w = j->o->w;
    j->first = j->o->first;
    j->k = j->o->k;
    if (w->quant.bits) {
        j->group = w->quant.group;
        j->unit = j->group;
        j->x_unit_bytes = kern_quant_x_bytes(w->quant);
        j->w_unit = (size_t)2 * j->group;
        j->w_unit_bytes = kern_quant_bytes(w->quant);
        j->panel_bytes = ceil_div(w->k, j->w_unit) * j->w_unit_bytes;
        size_t end = ceil_div(j->first + j->k, j->w_unit) * j->w_unit;
        j->first -= j->first % j->w_unit;
        j->k = j->k > 0 ? end - j->first : 0;
        return;
    }
    j->unit = BF16_UNIT;
    j->x_unit_bytes = BF16_UNIT * 4;
    j->w_unit = 2;
    j->w_unit_bytes = (size_t)KERN_PANEL * 4;
    j->panel_bytes = kern_matrix_bytes(w->type, KERN_PANEL, w->k);
}

/* Rows of a block and columns of a piece, so that sums and x fit into scratch. */
static void set_blocks(job *j)
{
    size_t bytes = kern_matmul_scratch_bytes() - sizeof(scratch);
    size_t acc_row = GROUP_PANELS * KERN_PANEL * sizeof(float);
    size_t x_row = ceil_div(j->k, j->unit) * j->x_unit_bytes;
    size_t m = j->tiles * j->rows, fit = bytes / (acc_row + x_row);
    size_t rows = min_size(m, ROWS_MAX), pair = (size_t)2 * KERN_DOT_ROWS;
    if (rows > fit) rows = fit / pair * pair;
    j->k_piece = j->k;
    if (rows < min_size(m, ROWS_MIN)) {
        rows = min_size(m, ROWS_MIN);
        size_t piece = (bytes / rows - acc_row) / j->x_unit_bytes * j->unit;
        j->k_piece = piece / K_STEP * K_STEP;
    }
    j->n_blocks = ceil_div(j->tiles, rows / j->rows);
}

/* Sixteen items for each thread keep the last one short beside the whole. */
static void set_groups(job *j)
{
    j->n_panels = ceil_div(j->o->w->n, KERN_PANEL);
    size_t side = j->tiles == 1 ? j->ops->few_panels : j->ops->panels;
    size_t groups = (size_t)16 * j->kc->n_threads / min_size(j->n_blocks, 16);
    j->group_panels = j->n_panels / (groups > 0 ? groups : 1) / side * side;
    if (j->group_panels < side) j->group_panels = side;
    if (j->group_panels > GROUP_PANELS) j->group_panels = GROUP_PANELS;
    j->n_groups = ceil_div(j->n_panels, j->group_panels);
}

static const kern_dot_ops *ops_of(const kern_isa *isa, const kern_matrix *w)
{
    if (w->quant.bits) return isa->quant_block[kern_quant_index(w->quant)];
    return w->type == DTYPE_BF16 ? isa->bf16_block : NULL;
}

bool kern_matmul_blocks(kern_context *kc, const kern_operands *o)
{
    job j = {.kc = kc, .o = o, .ops = ops_of(&kc->isa, o->w)};
    if (!j.ops || o->m < j.ops->min_rows) return false;
    j.call = ++kc->matmul_calls;
    set_units(&j);
    j.rows = j.ops->short_tile ? min_size(o->m, KERN_DOT_ROWS) : KERN_DOT_ROWS;
    j.tiles = ceil_div(o->m, j.rows);
    set_blocks(&j);
    set_groups(&j);
    size_t n_items = j.n_blocks * j.n_groups;
    bool serial = (double)o->m * (double)o->w->n * (double)j.k < SERIAL_WORK;
    thread_pool_for(kc->pool, n_items, serial ? n_items : 1, run_items, &j);
    return true;
}
