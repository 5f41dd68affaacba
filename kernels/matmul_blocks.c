/* Matrix product by blocks (isa.h), op level: for instructions that sum several products at once.
 * It cuts the work, keeps the scratch and handles the edges, as matmul.c does for tiles.
 *
 * A work item is a block of rows by a group of panels. Each thread packs the rows of its items
 * once, all columns of them where they fit. k is cut so that a piece of the weights stays in L1
 * while the block's rows pass from L2; the sums wait in scratch between pieces. How k is cut
 * changes no bit, because each unit of columns is one step of a chain in any piece.
 *
 * A product with few tiles of rows waits for memory, so its weights stream: each panel of a call is
 * a stream, and goes on through memory from piece to piece and from call to call. With more tiles
 * the same piece of all panels comes before the next piece of any, so that x of the piece stays in
 * L2.
 *
 * In a product that ends in swiglu an item has some panels of gates, then the panels of their
 * ups. */
#include "kernels/context.h"

#include "base/minmax.h"

#include <string.h>

enum {
    ROWS_MAX = 256,        /* rows for which weights are read once */
    ROWS_MIN = 64,         /* least rows of a block; x that does not fit is cut into pieces */
    GROUP_PANELS = 16,     /* packing x again for each item then costs little */
    ACC_BYTES = 512 << 10, /* most sums of an item: they stay in L2 until they are stored */
    STREAM_TILES = 4,      /* most tiles of rows for which weights stream */
    BF16_UNIT = 32,        /* columns of a step */
    K_STEP = 512,          /* a multiple of the columns of any unit and any call */
    SERIAL_WORK = 1 << 18, /* multiply-adds that one thread does while the others wake up */
};

/* The memory of matmul.c's scratch, whose first members these are. */
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
    size_t first, k;     /* the operands' columns of w; quantised: widened to whole units */
    size_t unit;         /* columns of a unit of x */
    size_t x_unit_bytes; /* bytes of a unit in one row of x */
    size_t w_unit, w_unit_bytes, panel_bytes; /* columns of a unit of w; its bytes in a panel */
    size_t rows, tiles;                       /* rows of a tile; tiles of x in all */
    size_t n_blocks, n_panels, group_panels, n_groups; /* panels: along n, or the gates */
    size_t item_panels; /* most panels of an item: one group, or several where weights stream */
    size_t k_piece;     /* columns of x that fit into scratch */
} job;

typedef struct item {
    size_t block, tile0, tiles, panel0, panels;
    size_t gates;         /* panels of gates, half of all panels; 0: none */
    size_t side, k_block; /* panels and columns of a call */
    size_t streamed;      /* calls whose panels lie this many apart; 0: weights do not stream */
    float *acc;           /* [panels][tiles][rows][16], panels in the order of the calls */
    uint8_t *x;           /* [k blocks][tiles][units][rows] */
} item;

/* The panels of one call: first, first + stride, ... counted from the item's first. */
typedef struct call {
    size_t first, stride, panels;
} call;

/* The call that starts with sums of panel `at`. */
static call get_call(const item *it, size_t at)
{
    if (at < it->streamed * it->side) return (call){at / it->side, it->streamed, it->side};
    size_t end = at < it->gates ? it->gates : it->panels;
    return (call){at, 1, min_size(it->side, end - at)};
}

/* The panel whose sums are the i-th, counted from the item's first. */
static size_t panel_of(const item *it, size_t i)
{
    if (i >= it->streamed * it->side) return i;
    return i / it->side + i % it->side * it->streamed;
}

/* ---- x --------------------------------------------------------------------------------------- */

/* Packs one unit of a row at column k of w, of which x has only a part. */
static void pack_edge(const job *j, const float *x, size_t k, size_t r, uint8_t *out)
{
    float padded[KERN_GROUP_MAX] = {0};
    size_t x_end = j->o->first + j->o->k;
    size_t from = k > j->o->first ? k : j->o->first, to = min_size(k + j->unit, x_end);
    if (from < to) memcpy(padded + (from - k), x + (from - j->o->first), (to - from) * 4);
    j->ops->pack(padded, 1, j->group, j->rows, r, out);
}

/* Packs columns [k0, k0 + k) of one row, counted from the job's first column. */
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

/* The bytes of k columns of a tile of x. */
static size_t x_bytes(const job *j, size_t k)
{
    return ceil_div(k, j->unit) * j->x_unit_bytes * j->rows;
}

/* Packs columns [k0, k0 + k) of all tiles so that the columns of one call lie side by side. Tiles
 * that lie all their columns apart, a power of two for many models, would share few sets of L2. */
static void pack_tiles(const job *j, const item *it, size_t k0, size_t k)
{
    uint8_t *out = it->x;
    for (size_t at = 0; at < k; at += it->k_block) {
        size_t columns = min_size(it->k_block, k - at), bytes = x_bytes(j, columns);
        for (size_t t = 0; t < it->tiles; t++, out += bytes) {
            size_t row0 = (it->tile0 + t) * j->rows, rows = min_size(j->rows, j->o->m - row0);
            if (rows < j->rows) memset(out, 0, bytes);
            for (size_t r = 0; r < rows; r++)
                pack_row(j, j->o->x + (row0 + r) * j->o->x_stride, k0 + at, columns, r, out);
        }
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void start_sums(const job *j, const item *it)
{
    size_t rows = it->tiles * j->rows;
    if (!j->o->bias) {
        memset(it->acc, 0, it->panels * rows * KERN_PANEL * sizeof(float));
        return;
    }
    for (size_t i = 0; i < it->panels; i++) {
        float start[KERN_PANEL] = {0};
        size_t column = (it->panel0 + panel_of(it, i)) * KERN_PANEL;
        size_t n = min_size(KERN_PANEL, j->o->w->n - column);
        memcpy(start, j->o->bias + column, n * sizeof(float));
        for (size_t r = 0; r < rows; r++)
            memcpy(it->acc + (i * rows + r) * KERN_PANEL, start, sizeof start);
    }
}

static void store_sums(const job *j, const item *it)
{
    size_t rows = it->tiles * j->rows, row0 = it->tile0 * j->rows, n = j->o->w->n;
    size_t panels = it->panels, sums = it->gates * rows * KERN_PANEL;
    if (it->gates) {
        j->kc->isa.swiglu(it->acc, it->acc + sums, sums, it->acc);
        panels = it->gates;
        n /= 2;
    }
    for (size_t r = 0; r < rows && row0 + r < j->o->m; r++) {
        float *y = j->o->y + (row0 + r) * j->o->y_stride;
        for (size_t i = 0; i < panels; i++) {
            const float *acc = it->acc + (i * rows + r) * KERN_PANEL;
            size_t column = (it->panel0 + panel_of(it, i)) * KERN_PANEL;
            if (column + KERN_PANEL <= n) /* a constant size: one move, no call */
                memcpy(y + column, acc, KERN_PANEL * sizeof(float));
            else memcpy(y + column, acc, (n - column) * sizeof(float));
        }
    }
}

/* ---- items ----------------------------------------------------------------------------------- */

/* Weights of the panel whose sums are the item's i-th. */
static const uint8_t *weights_at(const job *j, const item *it, size_t i, size_t k)
{
    size_t panel = it->panel0 + i;
    if (it->gates && i >= it->gates) panel += j->n_panels - it->gates;
    return (const uint8_t *)j->o->w->data + panel * j->panel_bytes +
           (j->first + k) / j->w_unit * j->w_unit_bytes;
}

/* Runs one call: columns [k0 + at, ...) of the panels whose sums begin at `i`. b.next points to the
 * weights of the call after it. */
static void run_call(const job *j, const item *it, size_t k0, size_t k, size_t at, size_t i)
{
    call c = get_call(it, i);
    size_t columns = min_size(it->k_block, k - at), next_at = at, next = i;
    bool last_piece = at + columns >= k, last_panels = i + c.panels >= it->panels;
    if (it->streamed) {
        next_at = last_piece ? 0 : at + columns;
        if (last_piece && !last_panels) next = i + c.panels;
    } else {
        next = last_panels ? 0 : i + c.panels;
        if (last_panels) next_at = at + columns;
    }
    call after = get_call(it, next);
    kern_dot_block b = {.w = weights_at(j, it, c.first, k0 + at)};
    b.next = weights_at(j, it, after.first, k0 + next_at);
    b.w_stride = c.stride * j->panel_bytes;
    b.panels = c.panels;
    b.k = columns;
    b.group = j->group;
    b.x = it->x + x_bytes(j, at) * it->tiles;
    b.x_stride = x_bytes(j, columns);
    b.tiles = it->tiles;
    b.rows = j->rows;
    b.acc = it->acc + i * it->tiles * j->rows * KERN_PANEL;
    j->ops->run(&b);
}

/* Multiplies columns [k0, k0 + k), whose x is packed, with every panel of the item. */
static void run_piece(const job *j, const item *it, size_t k0, size_t k)
{
    if (it->streamed) {
        for (size_t i = 0; i < it->panels; i += it->side)
            for (size_t at = 0; at < k; at += it->k_block) run_call(j, it, k0, k, at, i);
    } else {
        for (size_t at = 0; at < k; at += it->k_block)
            for (size_t i = 0; i < it->panels; i += get_call(it, i).panels)
                run_call(j, it, k0, k, at, i);
    }
}

/* Joins items [index, index + count), all in one block, into one. */
static item make_item(const job *j, size_t index, size_t count, scratch *s)
{
    item it = {.block = index / j->n_groups};
    it.tile0 = j->tiles * it.block / j->n_blocks;
    it.tiles = j->tiles * (it.block + 1) / j->n_blocks - it.tile0;
    it.panel0 = index % j->n_groups * j->group_panels;
    it.panels = min_size(count * j->group_panels, j->n_panels - it.panel0);
    if (j->o->swiglu) {
        it.gates = it.panels;
        it.panels *= 2;
    }
    it.side = j->ops->panels(j->rows, it.tiles);
    if (j->tiles <= STREAM_TILES) it.streamed = it.panels / it.side;
    it.k_block = it.tiles == 1 ? j->ops->few_k : j->ops->k;
    if (it.k_block == 0) it.k_block = j->k_piece;
    it.acc = (float *)(void *)s->bytes;
    size_t panels = j->o->swiglu ? 2 * j->item_panels : j->item_panels;
    it.x = s->bytes + panels * it.tiles * j->rows * KERN_PANEL * sizeof(float);
    return it;
}

static void run_item(const job *j, size_t index, size_t count, scratch *s)
{
    item it = make_item(j, index, count, s);
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
    size_t joined = j->item_panels / j->group_panels;
    for (size_t i = from, n; i < to; i += n) {
        n = min_size(joined, to - i);
        n -= n > 1 && n % 2 == 0; /* streams that lie an even number of panels apart are slower */
        run_item(j, i, n, (scratch *)(void *)j->kc->threads[thread].matmul);
    }
}

/* ---- a product ------------------------------------------------------------------------------- */

static void set_units(job *j)
{
    const kern_matrix *w = j->o->w;
    j->first = j->o->first;
    j->k = j->o->k;
    if (w->quant.bits) {
        j->group = w->quant.group;
        j->unit = j->group;
        j->x_unit_bytes = kern_quant_x_bytes(j->ops->x_wide, w->quant.group);
        j->w_unit = (size_t)2 * j->group;
        j->w_unit_bytes = kern_quant_bytes(w->quant);
        j->panel_bytes = ceil_div(w->k, j->w_unit) * j->w_unit_bytes;
        size_t end = ceil_div(j->first + j->k, j->w_unit) * j->w_unit;
        j->first -= j->first % j->w_unit;
        j->k = j->k > 0 ? end - j->first : 0;
        return;
    }
    j->unit = BF16_UNIT;
    j->x_unit_bytes = j->kc->isa.precision == KERN_PRECISION_HIGH ? BF16_UNIT * 4 : BF16_UNIT * 2;
    j->w_unit = 2;
    j->w_unit_bytes = (size_t)KERN_PANEL * 4;
    j->panel_bytes = kern_matrix_bytes(w->type, KERN_PANEL, w->k);
}

/* Sets the rows of a block and the columns of a piece, so that sums and x fit into scratch. */
static void set_blocks(job *j)
{
    size_t bytes = KERN_MATMUL_SCRATCH_BYTES - sizeof(scratch);
    size_t acc_row = GROUP_PANELS * KERN_PANEL * sizeof(float);
    size_t x_row = ceil_div(j->k, j->unit) * j->x_unit_bytes;
    size_t m = j->tiles * j->rows, fit = bytes / (acc_row + x_row);
    size_t rows = min_size(m, ROWS_MAX), pair = 2 * j->rows;
    if (rows > fit) rows = fit / pair * pair;
    j->k_piece = j->k;
    if (rows < min_size(m, ROWS_MIN)) {
        rows = ceil_div(min_size(m, ROWS_MIN), j->rows) * j->rows;
        size_t piece = (bytes / rows - acc_row) / j->x_unit_bytes * j->unit;
        j->k_piece = piece / K_STEP * K_STEP;
    }
    j->n_blocks = ceil_div(j->tiles, rows / j->rows);
}

/* Sets the panels of a group and of an item. With few tiles a group is the panels of one call; the
 * pool hands groups out in runs, and a run becomes one item as far as its sums fit, because longer
 * streams are faster. With more tiles each thread gets sixteen items, so that the last one is short
 * beside the whole. */
static void set_groups(job *j)
{
    size_t side = j->ops->panels(j->rows, ceil_div(j->tiles, j->n_blocks));
    j->n_panels = ceil_div(j->o->w->n, KERN_PANEL) / (j->o->swiglu ? 2 : 1);
    j->group_panels = j->item_panels = side;
    if (j->tiles <= STREAM_TILES) {
        size_t x = x_bytes(j, j->k_piece) * j->tiles, acc = j->tiles * j->rows * KERN_PANEL * 4;
        size_t panels = min_size(KERN_MATMUL_SCRATCH_BYTES - sizeof(scratch) - x, ACC_BYTES) / acc;
        if (panels > side) j->item_panels = panels / side * side;
    } else {
        size_t groups = (size_t)16 * j->kc->n_threads / min_size(j->n_blocks, 16);
        size_t most = j->o->swiglu ? GROUP_PANELS / 2 : GROUP_PANELS;
        size_t panels = min_size(j->n_panels / (groups > 0 ? groups : 1), most);
        if (panels > side) j->group_panels = j->item_panels = panels / side * side;
    }
    j->n_groups = ceil_div(j->n_panels, j->group_panels);
}

static const kern_dot_ops *ops_of(const kern_isa *isa, const kern_matrix *w)
{
    if (w->quant.bits) return isa->quant_block[kern_quant_index(w->quant)];
    return w->type == DTYPE_BF16 ? isa->bf16_block : NULL;
}

bool kern_matmul_blocks(kern_context *kc, const kern_operands *o, bool *done)
{
    job j = {.kc = kc, .o = o, .ops = ops_of(&kc->isa, o->w)};
    if (!j.ops || o->m < j.ops->min_rows) return false;
    j.rows = j.ops->rows(o->m);
    j.tiles = ceil_div(o->m, j.rows);
    *done = !o->swiglu || j.tiles > STREAM_TILES;
    if (!*done) return true;
    j.call = ++kc->matmul_calls;
    set_units(&j);
    set_blocks(&j);
    set_groups(&j);
    size_t n_items = j.n_blocks * j.n_groups;
    bool serial = (double)o->m * (double)o->w->n * (double)j.k < SERIAL_WORK;
    if (serial) run_items(&j, 0, n_items, 0);
    else if (j.tiles <= STREAM_TILES) thread_pool_for_runs(kc->pool, n_items, run_items, &j);
    else thread_pool_for(kc->pool, n_items, 1, run_items, &j);
    return true;
}
