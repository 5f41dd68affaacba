/* Measures under query rows, op level. Two phases, in waves that bound the scratch:
 *
 *   units    some rows of an item with all its query heads: scores, softmax and the kind's own
 *            step, for all slots; then the heads are added up, ascending
 *   pieces   some slots of an item: the wave's rows are added to the sums so far, ascending
 *
 * A row's values depend on the row alone, and rows are added one by one in their order, so a sum
 * does not depend on units, waves or calls. */
#include "base/minmax.h"
#include "kernels/context.h"
#include "kernels/measure.h"
#include "kernels/strips.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736

enum {
    UNIT_ROWS = 48,        /* like attention.c's */
    UNIT_BYTES = 2 << 20,  /* most of a unit's values, unless one row with its heads has more */
    WAVE_BYTES = 32 << 20, /* most of all units' sums over heads, unless one unit has more */
    PIECE_SLOTS = 1024,
    SERIAL_WORK = 64 << 10,
    POOL = 7, /* AnDPro's kernel */
};

typedef struct rows_unit {
    uint32_t item, row, n_rows;
    float *sums; /* [n_rows][padded slots] over query heads */
} rows_unit;

typedef struct rows_piece {
    uint32_t from, to; /* slots */
    const rows_unit *units;
    size_t n_units;
} rows_piece;

typedef struct rows_job {
    kern_context *kc;
    const kern_rows_batch *batch;
    const rows_unit *units;
    const rows_piece *pieces;
    size_t thread_bytes;
} rows_job;

/* A thread's scratch, laid out for n rows (query tokens x query heads). */
typedef struct rows_state {
    kern_attn_row *rows; /* [n] */
    uint32_t *ends;      /* [n] a row sees slots [0, end) */
    float *q, *y;        /* [n][KERN_ATTN_Q_STRIDE] */
    float *o;            /* [n][head_dim] */
    float *maxima;       /* [blocks][n] */
    float *p;            /* [blocks][n][KERN_BLOCK] */
    float *values;       /* a block of V from kern_block_values */
    float *dots;         /* [KERN_ATTN_ROWS][KERN_BLOCK] */
    float *line;         /* [padded slots + POOL - 1] one row, for the pool */
    uint8_t *wide;       /* formats with grids: a block as bf16 */
    kern_pages pages;
    size_t n, blocks;
} rows_state;

static size_t padded(const kern_rows_item *it)
{
    return kern_blocks_of(it->table.n_slots) * KERN_BLOCK;
}

static void *take(uint8_t *base, size_t *at, size_t bytes)
{
    void *part = base ? base + *at : NULL;
    *at += align64(bytes);
    return part;
}

/* Lays out a state at `base` and returns its bytes. base NULL: only returns the bytes. */
static size_t lay_state(uint8_t *base, size_t n, size_t blocks, size_t dim, rows_state *u)
{
    size_t at = 0, f = sizeof(float);
    u->rows = take(base, &at, n * sizeof *u->rows);
    u->ends = take(base, &at, n * sizeof *u->ends);
    u->q = take(base, &at, n * KERN_ATTN_Q_STRIDE * f);
    u->y = take(base, &at, n * KERN_ATTN_Q_STRIDE * f);
    u->o = take(base, &at, n * dim * f);
    u->maxima = take(base, &at, blocks * n * f);
    u->p = take(base, &at, blocks * n * KERN_BLOCK * f);
    u->values = take(base, &at, dim * KERN_BLOCK * f);
    u->dots = take(base, &at, KERN_ATTN_ROWS * KERN_BLOCK * f);
    u->line = take(base, &at, (blocks * KERN_BLOCK + POOL) * f);
    u->wide = take(base, &at, kern_wide_bytes(dim));
    u->n = n;
    u->blocks = blocks;
    return at;
}

/* ---- one unit: from queries to weights ------------------------------------------------------- */

/* The slot of the item's row i. */
static uint32_t row_slot(const kern_rows_item *it, uint32_t i)
{
    return it->table.n_slots - it->n_rows + i;
}

/* Row i sees slots [0, end); returns end. */
static uint32_t row_end(const kern_rows_item *it, uint32_t i)
{
    uint32_t n = it->table.n_slots, end = row_slot(it, i) + 1;
    if (it->kind == KERN_MEASURE_RAW) return n;
    if (it->kind == KERN_MEASURE_OUTSIDE) return min_u32(end, n > it->window ? n - it->window : 0);
    return end;
}

/* Loads the queries, scaled so that scores come out divided by `theta`. */
static void start_rows(const kern_rows_batch *b, const rows_unit *unit, float theta, rows_state *u)
{
    const kern_rows_item *it = &b->items[unit->item];
    size_t dim = b->shape.head_dim;
    float scale =
        it->kind == KERN_MEASURE_RAW ? 1.0f : (float)((double)b->scale * LOG2_E / (double)theta);
    memset(u->rows, 0, u->n * sizeof *u->rows);
    for (size_t r = 0; r < u->n; r++) {
        size_t i = unit->row + r / b->q_heads, column = r % b->q_heads * dim;
        u->rows[r].max = -INFINITY;
        u->ends[r] = row_end(it, (uint32_t)i);
        const float *from = it->q + i * b->q_stride + column;
        float *q = u->q + r * KERN_ATTN_Q_STRIDE;
        for (size_t d = 0; d < dim; d++) q[d] = from[d] * scale;
        if (it->kind == KERN_MEASURE_PROJECTION && it->theta == 0.0f)
            memcpy(u->y + r * KERN_ATTN_Q_STRIDE, it->y + i * b->y_stride + column,
                   dim * sizeof *u->y);
    }
}

/* p of n rows of a block from `first` on: relative to the largest score so far, 0 for slots that a
 * row does not see. */
static void block_softmax(const kern_isa *isa, size_t block, size_t first, size_t n, rows_state *u)
{
    kern_attn_row *rows = u->rows + first;
    float *p = u->p + (block * u->n + first) * KERN_BLOCK;
    size_t base = block * KERN_BLOCK;
    for (size_t r = 0; r < n; r++) {
        rows[r].lo = 0;
        rows[r].hi = u->ends[first + r] > base
                         ? (uint32_t)min_size(u->ends[first + r] - base, KERN_BLOCK)
                         : 0;
    }
    isa->attn_softmax(rows, (uint32_t)n, p);
    for (size_t r = 0; r < n; r++) {
        float *row = p + r * KERN_BLOCK;
        memset(row + rows[r].hi, 0, (KERN_BLOCK - rows[r].hi) * sizeof *row);
        u->maxima[block * u->n + first + r] = rows[r].max;
    }
}

static void block_weights(const rows_job *job, const kern_rows_item *it, size_t block,
                          rows_state *u)
{
    const kern_isa *isa = &job->kc->isa;
    const kern_rows_batch *b = job->batch;
    kern_block at = kern_block_of(isa, &b->shape, &u->pages, block, it->table.n_slots, u->wide);
    for (size_t r = 0; r < u->n; r += isa->attn_rows) {
        size_t n = min_size(u->n - r, isa->attn_rows);
        isa->attn_scores[kern_kv_wide(&b->shape).format](
            &at.k, 0, at.n_strips, u->q + r * KERN_ATTN_Q_STRIDE, (uint32_t)n, b->shape.head_dim,
            u->p + (block * u->n + r) * KERN_BLOCK);
        if (it->kind != KERN_MEASURE_RAW) block_softmax(isa, block, r, n, u);
    }
}

/* Rescales all blocks to the final maximum and divides by the sum. */
static void normalise(rows_state *u)
{
    for (size_t r = 0; r < u->n; r++) {
        float sum = 0.0f;
        for (size_t lane = 0; lane < KERN_STRIP; lane++) sum += u->rows[r].sum[lane];
        float inverse = sum > 0.0f ? 1.0f / sum : 0.0f; /* a row that sees nothing has all zeros */
        for (size_t block = 0; block < u->blocks; block++) {
            float max = u->maxima[block * u->n + r], factor = inverse;
            if (max != u->rows[r].max) factor *= exp2f(max - u->rows[r].max);
            float *p = u->p + (block * u->n + r) * KERN_BLOCK;
            for (size_t i = 0; i < KERN_BLOCK; i++) p[i] *= factor;
        }
    }
}

/* Replaces each weight by the largest of the POOL weights around it. */
static void pool_rows(const kern_rows_item *it, rows_state *u)
{
    size_t n = it->table.n_slots;
    for (size_t r = 0; r < u->n; r++) {
        float *line = u->line + POOL / 2;
        memset(u->line, 0, POOL / 2 * sizeof *line); /* no weight is below 0 */
        memset(line + n, 0, (POOL / 2 + 1) * sizeof *line);
        for (size_t j = 0; j < n; j += KERN_BLOCK)
            memcpy(line + j, u->p + (j / KERN_BLOCK * u->n + r) * KERN_BLOCK,
                   min_size(n - j, KERN_BLOCK) * sizeof *line);
        for (size_t j = 0; j < n; j++) {
            const float *around = u->line + j;
            float max = around[0];
            for (size_t i = 1; i < POOL; i++) max = around[i] > max ? around[i] : max;
            u->p[(j / KERN_BLOCK * u->n + r) * KERN_BLOCK + j % KERN_BLOCK] = max;
        }
    }
}

/* ---- one unit: the weighted values, and the values along them -------------------------------- */

/* The slots [*from, *to) whose weighted values make up y. */
static void output_range(const kern_rows_item *it, size_t *from, size_t *to)
{
    size_t n = it->table.n_slots;
    *from = 0;
    *to = n;
    if (it->kind == KERN_MEASURE_OUTSIDE) *to = n > it->window ? n - it->window : 0;
    if (it->kind != KERN_MEASURE_POOLED) return;
    size_t chunks = (n + it->chunk - 1) / it->chunk, last = it->window / it->chunk;
    *from = it->chunk;
    *to = chunks > last ? min_size((chunks - last) * it->chunk, n) : 0;
}

static void sum_outputs(const rows_job *job, const kern_rows_item *it, rows_state *u)
{
    const kern_isa *isa = &job->kc->isa;
    const kern_rows_batch *b = job->batch;
    const kern_kv_shape wide = kern_kv_wide(&b->shape);
    size_t from, to, dim = b->shape.head_dim;
    output_range(it, &from, &to);
    memset(u->o, 0, u->n * dim * sizeof *u->o);
    for (size_t r = 0; r < u->n; r++) u->rows[r].fix = 1.0f;
    for (size_t block = from / KERN_BLOCK; block * KERN_BLOCK < to && from < to; block++) {
        kern_block at = kern_block_of(isa, &b->shape, &u->pages, block, it->table.n_slots, u->wide);
        size_t base = block * KERN_BLOCK, lo = max_size(from, base) - base;
        size_t hi = min_size(to, base + KERN_BLOCK) - base;
        for (size_t r = 0; r < u->n; r += isa->attn_rows)
            isa->attn_values[wide.format](&at.v, (uint32_t)lo, (uint32_t)hi,
                                          u->p + (block * u->n + r) * KERN_BLOCK, u->rows + r,
                                          (uint32_t)min_size(u->n - r, isa->attn_rows),
                                          (uint32_t)dim, u->o + r * dim);
    }
    for (size_t r = 0; r < u->n; r++)
        memcpy(u->y + r * KERN_ATTN_Q_STRIDE, u->o + r * dim, dim * sizeof *u->y);
}

/* p *= <y, v> + bias */
static void project(const rows_job *job, const kern_rows_item *it, rows_state *u)
{
    const kern_isa *isa = &job->kc->isa;
    const kern_rows_batch *b = job->batch;
    const kern_kv_shape wide = kern_kv_wide(&b->shape);
    kern_attn_strips strips = kern_block_strips(u->values, b->shape.head_dim);
    for (size_t block = 0; block < u->blocks; block++) {
        kern_block at = kern_block_of(isa, &b->shape, &u->pages, block, it->table.n_slots, u->wide);
        kern_block_values(isa, &wide, &at, u->values);
        for (size_t r = 0; r < u->n; r += isa->attn_rows) {
            size_t n = min_size(u->n - r, isa->attn_rows);
            isa->attn_scores[KERN_KV_F32](&strips, 0, at.n_strips, u->y + r * KERN_ATTN_Q_STRIDE,
                                          (uint32_t)n, b->shape.head_dim, u->dots);
            float *p = u->p + (block * u->n + r) * KERN_BLOCK;
            if (it->bias != 0.0f) /* -0 + 0 would change the sign of zero */
                for (size_t i = 0; i < n * KERN_BLOCK; i++) u->dots[i] += it->bias;
            for (size_t i = 0; i < n * KERN_BLOCK; i++) p[i] *= u->dots[i];
        }
    }
}

/* p of all blocks, made from scores / theta. */
static void weigh(const rows_job *job, const rows_unit *unit, float theta, rows_state *u)
{
    const kern_rows_item *it = &job->batch->items[unit->item];
    start_rows(job->batch, unit, theta, u);
    for (size_t block = 0; block < u->blocks; block++) block_weights(job, it, block, u);
    if (it->kind != KERN_MEASURE_RAW) normalise(u);
    if (it->kind == KERN_MEASURE_POOLED) pool_rows(it, u);
}

static void run_unit(const rows_job *job, const rows_unit *unit, uint8_t *scratch)
{
    const kern_rows_batch *b = job->batch;
    const kern_rows_item *it = &b->items[unit->item];
    size_t heads = b->q_heads, width = padded(it);
    rows_state u;
    lay_state(scratch, unit->n_rows * heads, width / KERN_BLOCK, b->shape.head_dim, &u);
    size_t page = row_slot(it, unit->row) / b->shape.page_tokens;
    u.pages =
        (kern_pages){it->table.pages,         it->table.tiles,
                     b->page_stride,          it->table.filling,
                     it->table.first_filling, kern_first_wide(page, it->table.residual_pages)};
    bool own = it->theta == 0.0f; /* y is made by the same weights that multiply <y, v> */
    if (!own) {
        weigh(job, unit, it->theta, &u);
        sum_outputs(job, it, &u);
    }
    weigh(job, unit, 1.0f, &u);
    if (own && (it->kind == KERN_MEASURE_OUTSIDE || it->kind == KERN_MEASURE_POOLED))
        sum_outputs(job, it, &u);
    if (it->kind >= KERN_MEASURE_PROJECTION) project(job, it, &u);
    for (size_t block = 0; block < u.blocks; block++)
        for (size_t i = 0; i < unit->n_rows; i++) {
            const float *p = u.p + (block * u.n + i * heads) * KERN_BLOCK;
            float *sums = unit->sums + i * width + block * KERN_BLOCK;
            memcpy(sums, p, KERN_BLOCK * sizeof *sums);
            for (size_t h = 1; h < heads; h++)
                for (size_t j = 0; j < KERN_BLOCK; j++) sums[j] += p[h * KERN_BLOCK + j];
        }
}

static void run_units(void *ctx, size_t from, size_t to, unsigned thread)
{
    const rows_job *job = ctx;
    uint8_t *scratch = (uint8_t *)job->kc->measure.threads.data + thread * job->thread_bytes;
    for (size_t i = from; i < to; i++) run_unit(job, &job->units[i], scratch);
}

/* ---- one piece ------------------------------------------------------------------------------- */

/* acc [from, to) += the rows of the piece's units, in order. */
static void add_rows(const rows_piece *piece, size_t width, uint32_t from, uint32_t to, float *acc)
{
    for (size_t k = 0; k < piece->n_units; k++) {
        const rows_unit *unit = &piece->units[k];
        for (uint32_t i = 0; i < unit->n_rows; i++) {
            const float *sums = unit->sums + i * width;
            for (uint32_t j = from; j < to; j++) acc[j - from] += sums[j];
        }
    }
}

static void run_piece(const kern_rows_batch *b, const rows_piece *piece)
{
    const kern_rows_item *it = &b->items[piece->units[0].item];
    size_t width = padded(it);
    uint32_t page_tokens = b->shape.page_tokens;
    if (!it->sums) {
        float *out = it->out + piece->from;
        if (piece->units[0].row == 0) memset(out, 0, (piece->to - piece->from) * sizeof *out);
        add_rows(piece, width, piece->from, piece->to, out);
        return;
    }
    for (uint32_t from = piece->from, to; from < piece->to; from = to) {
        to = min_u32(piece->to, (from / page_tokens + 1) * page_tokens);
        float *acc = it->sums + (size_t)it->table.pages[from / page_tokens] * b->sums_stride +
                     from % page_tokens;
        add_rows(piece, width, from, to, acc);
        if (it->out) memcpy(it->out + from, acc, (to - from) * sizeof *acc);
    }
}

static void run_pieces(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const rows_job *job = ctx;
    for (size_t i = from; i < to; i++) run_piece(job->batch, &job->pieces[i]);
}

/* ---- cutting --------------------------------------------------------------------------------- */

static uint32_t unit_tokens(const kern_rows_batch *b, const kern_rows_item *it)
{
    size_t row_bytes = b->q_heads * padded(it) * sizeof(float);
    size_t n = min_size(UNIT_ROWS / b->q_heads, UNIT_BYTES / row_bytes);
    return (uint32_t)max_size(min_size(n, it->n_rows), 1);
}

static void check_batch(const kern_rows_batch *b)
{
    (void)b;
    assert(b->shape.page_tokens % KERN_STRIP == 0 && b->shape.head_dim % 16 == 0);
    assert(b->shape.head_dim <= 256 && b->q_heads > 0);
    for (size_t i = 0; i < b->n_items; i++) {
        const kern_rows_item *it = &b->items[i];
        (void)it;
        assert(it->n_rows > 0 && it->n_rows <= it->table.n_slots);
        assert(it->kind < KERN_ROW_MEASURES && (it->out || it->sums));
        assert(it->kind != KERN_MEASURE_POOLED || it->chunk > 0);
        assert(it->theta == 0.0f || it->kind >= KERN_MEASURE_PROJECTION);
        assert(!kern_kv_has_grids(b->shape.format) || it->table.filling);
    }
}

typedef struct wave {
    size_t n_units, n_pieces, floats, work;
    uint32_t item, row; /* where the next wave begins */
} wave;

/* Makes the units and pieces of a wave from w->item, w->row on. Without arrays it only counts
 * them. */
static void next_wave(const kern_rows_batch *b, wave *w, rows_unit *units, rows_piece *pieces,
                      float *sums)
{
    uint32_t page = b->shape.page_tokens;
    w->n_units = w->n_pieces = w->floats = w->work = 0;
    for (; w->item < b->n_items; w->item++, w->row = 0) {
        const kern_rows_item *it = &b->items[w->item];
        size_t first = w->n_units, width = padded(it);
        uint32_t step = unit_tokens(b, it);
        for (uint32_t n; w->row < it->n_rows; w->row += n) {
            n = min_u32(step, it->n_rows - w->row);
            if (kern_kv_has_grids(b->shape.format)) /* all rows of a unit lie in one page */
                n = min_u32(n, page - row_slot(it, w->row) % page);
            if (w->n_units > 0 && (w->floats + n * width) * sizeof(float) > WAVE_BYTES) break;
            if (units) units[w->n_units] = (rows_unit){w->item, w->row, n, sums + w->floats};
            w->n_units++;
            w->floats += n * width;
            w->work += n * width * b->q_heads * b->shape.head_dim;
        }
        if (w->n_units == first) return;
        for (uint32_t from = 0, to; from < it->table.n_slots; from = to, w->n_pieces++) {
            to = min_u32(it->table.n_slots, from + PIECE_SLOTS);
            if (pieces)
                pieces[w->n_pieces] = (rows_piece){from, to, units + first, w->n_units - first};
        }
        if (w->row < it->n_rows) return;
    }
}

status kern_measure_rows(kern_context *kc, const kern_rows_batch *batch)
{
    check_batch(batch);
    const status no_memory = status_make(STATUS_NO_MEMORY, "scratch for measures");
    kern_measure_scratch *scratch = &kc->measure;
    rows_job job = {.kc = kc, .batch = batch};
    for (size_t i = 0; i < batch->n_items; i++) {
        const kern_rows_item *it = &batch->items[i];
        rows_state none;
        size_t bytes = lay_state(NULL, (size_t)unit_tokens(batch, it) * batch->q_heads,
                                 padded(it) / KERN_BLOCK, batch->shape.head_dim, &none);
        job.thread_bytes = max_size(job.thread_bytes, bytes);
    }
    if (!kern_reserve(&scratch->threads, job.thread_bytes * kc->n_threads)) return no_memory;

    for (wave w = {0}; w.item < batch->n_items;) {
        wave need = w;
        next_wave(batch, &need, NULL, NULL, NULL);
        if (!kern_reserve(&scratch->units, need.n_units * sizeof(rows_unit)) ||
            !kern_reserve(&scratch->pieces, need.n_pieces * sizeof(rows_piece)) ||
            !kern_reserve(&scratch->rows, need.floats * sizeof(float)))
            return no_memory;
        job.units = scratch->units.data;
        job.pieces = scratch->pieces.data;
        next_wave(batch, &w, scratch->units.data, scratch->pieces.data, scratch->rows.data);
        bool serial = w.work < SERIAL_WORK;
        thread_pool_for(kc->pool, w.n_units, serial ? w.n_units : 1, run_units, &job);
        thread_pool_for(kc->pool, w.n_pieces, serial ? w.n_pieces : 1, run_pieces, &job);
    }
    return STATUS_IS_OK;
}
