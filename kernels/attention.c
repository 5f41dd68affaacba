/* Paged attention, op level: cuts the items into units and sums up the attention mass.
 * attention_unit.c runs a unit. */
#include "kernels/attention_job.h"

#include "base/minmax.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Rows (query tokens x query heads) of a unit: enough to use each byte of K and V many times, few
 * enough for a unit's state to stay in the second-level cache. */
#define UNIT_ROWS 48u
/* Items run in waves, so that their mass scratch stays under this size (a single item may exceed
 * it). */
#define MASS_BYTES_MAX ((size_t)16 << 20)
/* Below this much work (rows x slots x dims) threads cost more than they give. */
#define SERIAL_WORK ((size_t)64 << 10)
/* A unit with more than 1 / SPLIT_SHARE of a thread's share of the work is split into pieces of
 * whole spans, up to SPLIT_PIECES for each thread. */
#define SPLIT_SHARE  2
#define SPLIT_PIECES 4

/* ---- mass ------------------------------------------------------------------------------------ */

static size_t mass_floats(const kern_attn_batch *b, const kern_attn_item *it)
{
    return it->mass ? (size_t)b->q_heads * it->mass_rows * attn_mass_row_floats(it) : 0;
}

/* mass [pages] += this row's mass: its strips' sums, rescaled to the final maximum, over its
 * sum. */
static void add_row_mass(const kern_attn_item *it, uint32_t row, attn_mass v, size_t page_strips,
                         float *mass)
{
    size_t from = attn_row_begin(it, row) / KERN_BLOCK, to = kern_blocks_of(attn_row_end(it, row));
    for (size_t b = from; b < to; b++) {
        float factor = v.last[1];
        if (v.maxima[b] != v.last[0]) factor *= exp2f(v.maxima[b] - v.last[0]);
        for (size_t t = 0; t < KERN_BLOCK_STRIPS; t++) v.sums[b * KERN_BLOCK_STRIPS + t] *= factor;
    }
    size_t end = to * KERN_BLOCK_STRIPS;
    size_t strips = min_size(end, ((size_t)attn_row_end(it, row) + KERN_STRIP - 1) / KERN_STRIP);
    size_t t = from * KERN_BLOCK_STRIPS;
    for (size_t page = t / page_strips; t < strips; page++) {
        size_t stop = min_size((page + 1) * page_strips, strips);
        float sum = 0.0f;
        for (; t < stop; t++) sum += v.sums[t];
        mass[page] += sum;
    }
}

static void sum_mass(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const attn_job *job = ctx;
    size_t page_tokens = job->batch->shape.page_tokens;
    for (size_t item = job->first_item + from; item < job->first_item + to; item++) {
        const kern_attn_item *it = &job->batch->items[item];
        if (!it->mass) continue;
        size_t pages = (attn_row_end(it, it->n_rows - 1) + page_tokens - 1) / page_tokens;
        memset(it->mass, 0, pages * sizeof *it->mass);
        for (uint32_t h = 0; h < job->batch->q_heads; h++)
            for (uint32_t i = 0; i < it->mass_rows; i++)
                add_row_mass(it, it->n_rows - it->mass_rows + i, attn_mass_of_row(job, item, h, i),
                             page_tokens / KERN_STRIP, it->mass);
    }
}

/* ---- cutting --------------------------------------------------------------------------------- */

static uint32_t unit_tokens(const kern_attn_batch *b) { return max_u32(1, UNIT_ROWS / b->q_heads); }

/* Formats with grids: units are cut at multiples of this many slots, a divisor of the page, so that
 * no unit has rows of two pages, which read different pages as bf16. 0: units are counted from an
 * item's first row. */
static uint32_t unit_anchor(const kern_attn_batch *b)
{
    if (!kern_kv_has_grids(b->shape.format)) return 0;
    uint32_t slots = KERN_STRIP;
    while (slots > unit_tokens(b)) slots /= 2;
    return slots;
}

static size_t unit_count(const kern_attn_batch *b, const kern_attn_item *it)
{
    uint32_t anchor = unit_anchor(b);
    if (anchor)
        return (attn_row_end(it, it->n_rows - 1) - 1) / anchor - it->first_slot / anchor + 1;
    return (it->n_rows + unit_tokens(b) - 1) / unit_tokens(b);
}

/* Work of a unit over its spans: slots x rows x dims. */
static size_t unit_work(const kern_attn_batch *b, const attn_unit *unit)
{
    const kern_attn_item *it = &b->items[unit->item];
    size_t begin = attn_row_begin(it, unit->row), from = (size_t)unit->first_span * KERN_SPAN;
    size_t end = attn_row_end(it, unit->row + unit->n_rows - 1);
    size_t slots = min_size(end, (size_t)unit->end_span * KERN_SPAN) - max_size(begin, from);
    return slots * unit->n_rows * b->q_heads * b->shape.head_dim;
}

static attn_unit unit_at(const kern_attn_batch *b, size_t item, size_t index)
{
    const kern_attn_item *it = &b->items[item];
    uint32_t step = unit_tokens(b), row = (uint32_t)index * step, anchor = unit_anchor(b);
    if (anchor) {
        row = max_u32((it->first_slot / anchor + (uint32_t)index) * anchor, it->first_slot);
        step = anchor - row % anchor;
        row -= it->first_slot;
    }
    attn_unit u = {.item = (uint32_t)item, .row = row, .n_rows = min_u32(step, it->n_rows - row)};
    u.first_span = attn_row_begin(it, row) / KERN_SPAN;
    u.end_span = (attn_row_end(it, row + u.n_rows - 1) - 1) / KERN_SPAN + 1;
    return u;
}

/* Floats that a unit leaves for each span. */
static size_t unit_part(const kern_attn_batch *b, const attn_unit *u)
{
    return (size_t)u->n_rows * b->q_heads * attn_part_floats(b->shape.head_dim);
}

/* The cutting of a wave into units. */
typedef struct cutting {
    const attn_job *job;
    size_t work;           /* of all units */
    size_t n_units, parts; /* a piece counts as a unit; floats of all pieces' parts */
    size_t n_split;
    size_t starts[65]; /* by power of two of the work: where the next unit goes */
    attn_unit *units, *split;
    float *scratch; /* [parts] */
} cutting;

typedef void (*cutting_fn)(cutting *c, attn_unit *unit);

static void each_unit(cutting *c, cutting_fn f)
{
    const attn_job *job = c->job;
    for (size_t i = job->first_item; i < job->first_item + job->n_items; i++)
        for (size_t n = 0; n < unit_count(job->batch, &job->batch->items[i]); n++) {
            attn_unit u = unit_at(job->batch, i, n);
            f(c, &u);
        }
}

static uint32_t pieces_of(const cutting *c, const attn_unit *u)
{
    size_t threads = c->job->kc->n_threads, work = unit_work(c->job->batch, u);
    if (threads == 1 || c->work < SERIAL_WORK || work <= c->work / threads / SPLIT_SHARE) return 1;
    return min_u32((uint32_t)threads * SPLIT_PIECES, u->end_span - u->first_span);
}

static void add_work(cutting *c, attn_unit *u) { c->work += unit_work(c->job->batch, u); }

static void count_pieces(cutting *c, attn_unit *u)
{
    uint32_t pieces = pieces_of(c, u);
    c->n_units += pieces;
    if (pieces == 1) return;
    c->n_split++;
    c->parts += (u->end_span - u->first_span) * unit_part(c->job->batch, u);
}

static attn_unit piece_at(const cutting *c, const attn_unit *u, uint32_t i, uint32_t pieces)
{
    attn_unit piece = *u;
    uint32_t spans = u->end_span - u->first_span;
    piece.first_span = u->first_span + spans * i / pieces;
    piece.end_span = u->first_span + spans * (i + 1) / pieces;
    if (u->parts) piece.parts += (piece.first_span - u->first_span) * unit_part(c->job->batch, u);
    return piece;
}

static void count_sizes(cutting *c, attn_unit *u)
{
    uint32_t pieces = pieces_of(c, u);
    for (uint32_t i = 0; i < pieces; i++) {
        attn_unit piece = piece_at(c, u, i, pieces);
        c->starts[1 + __builtin_clzll(unit_work(c->job->batch, &piece))]++;
    }
}

static void put_pieces(cutting *c, attn_unit *u)
{
    uint32_t pieces = pieces_of(c, u);
    if (pieces > 1) {
        u->parts = c->scratch;
        c->scratch += (u->end_span - u->first_span) * unit_part(c->job->batch, u);
        c->split[c->n_split++] = *u;
    }
    for (uint32_t i = 0; i < pieces; i++) {
        attn_unit piece = piece_at(c, u, i, pieces);
        c->units[c->starts[__builtin_clzll(unit_work(c->job->batch, &piece))]++] = piece;
    }
}

/* Lists the wave's units, the largest first (by powers of two), so that threads end together. The
 * units that were split stand behind them. false: no memory. */
static bool cut_wave(const attn_job *job, cutting *c)
{
    kern_attn_scratch *scratch = &job->kc->attention;
    *c = (cutting){.job = job};
    each_unit(c, add_work);
    each_unit(c, count_pieces);
    if (!kern_reserve(&scratch->units, (c->n_units + c->n_split) * sizeof(attn_unit)) ||
        !kern_reserve(&scratch->parts, c->parts * sizeof(float)))
        return false;
    c->units = scratch->units.data;
    c->split = c->units + c->n_units;
    c->scratch = scratch->parts.data;
    each_unit(c, count_sizes);
    for (size_t i = 1; i < 65; i++) c->starts[i] += c->starts[i - 1];
    c->n_split = 0;
    each_unit(c, put_pieces);
    return true;
}

static void run_units(void *ctx, size_t from, size_t to, unsigned thread)
{
    const attn_job *job = ctx;
    uint8_t *scratch = (uint8_t *)job->kc->attention.rows.data + thread * job->thread_bytes;
    for (size_t i = from; i < to; i++) attn_unit_run(job, &job->units[i], scratch);
}

static void merge_units(void *ctx, size_t from, size_t to, unsigned thread)
{
    const attn_job *job = ctx;
    uint8_t *scratch = (uint8_t *)job->kc->attention.rows.data + thread * job->thread_bytes;
    for (size_t i = from; i < to; i++) attn_unit_merge(job, &job->split[i], scratch);
}

static void check_batch(const kern_attn_batch *b)
{
    (void)b;
    assert(b->shape.page_tokens >= 16 && b->shape.page_tokens <= 256);
    assert(b->shape.page_tokens % KERN_STRIP == 0);
    assert(b->shape.head_dim >= 16 && b->shape.head_dim <= 256 && b->shape.head_dim % 16 == 0);
    assert(b->q_heads > 0);
    for (size_t i = 0; i < b->n_items; i++) {
        assert(b->items[i].n_rows > 0);
        assert(!kern_kv_has_grids(b->shape.format) || b->items[i].filling);
        assert(!b->items[i].mass || b->items[i].mass_rows > 0);
        assert(!b->items[i].mass || b->items[i].mass_rows <= b->items[i].n_rows);
    }
}

/* Puts items from job->first_item on into the wave while their mass fits; returns the floats that
 * the mass needs. */
static size_t next_wave(attn_job *job, size_t *offsets)
{
    const kern_attn_batch *b = job->batch;
    size_t floats = 0;
    for (job->n_items = 0; job->first_item + job->n_items < b->n_items; job->n_items++) {
        size_t more = mass_floats(b, &b->items[job->first_item + job->n_items]);
        if (floats > 0 && more > 0 && (floats + more) * sizeof(float) > MASS_BYTES_MAX) break;
        offsets[job->n_items] = floats;
        floats += more;
    }
    return floats;
}

status kern_attention(kern_context *kc, const kern_attn_batch *batch)
{
    check_batch(batch);
    const status no_memory = status_make(STATUS_NO_MEMORY, "scratch for attention");
    kern_attn_scratch *scratch = &kc->attention;
    size_t rows = (size_t)unit_tokens(batch) * batch->q_heads;
    attn_job job = {.kc = kc, .batch = batch};
    job.thread_bytes = attn_unit_bytes(rows, batch->shape.head_dim);
    if (!kern_reserve(&scratch->rows, job.thread_bytes * kc->n_threads) ||
        !kern_reserve(&scratch->mass_offsets, batch->n_items * sizeof(size_t)))
        return no_memory;

    for (; job.first_item < batch->n_items; job.first_item += job.n_items) {
        size_t floats = next_wave(&job, scratch->mass_offsets.data);
        cutting c;
        if (!kern_reserve(&scratch->mass, floats * sizeof(float)) || !cut_wave(&job, &c))
            return no_memory;
        job.units = c.units;
        job.split = c.split;
        thread_pool_for(kc->pool, c.n_units, c.work < SERIAL_WORK ? c.n_units : 1, run_units, &job);
        if (c.n_split > 0) thread_pool_for(kc->pool, c.n_split, 1, merge_units, &job);
        if (floats > 0) thread_pool_for(kc->pool, job.n_items, 1, sum_mass, &job);
    }
    return STATUS_IS_OK;
}
