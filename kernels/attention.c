/* Paged attention, op level: cuts the items into units, walks the pages of a unit block by block,
 * and sums up the attention mass. Arithmetic on K and V is in ref/attention.c and
 * x86/attention_*.c. */
#include "kernels/context.h"
#include "kernels/strips.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Rows (query tokens x query heads) of a unit: enough to use each byte of K and V many times, few
 * enough for a unit's state to stay in the second-level cache. */
#define UNIT_ROWS 48u
/* Items are taken in waves, so that their mass scratch stays under this (one item alone may exceed
 * it). */
#define MASS_BYTES_MAX ((size_t)16 << 20)
/* Below this much work (rows x slots x dims) threads cost more than they give. */
#define SERIAL_WORK ((size_t)64 << 10)

#define LOG2_E 1.44269504088896340736

/* The query tokens [row, row + n_rows) of an item, all its query heads. */
typedef struct attn_unit {
    uint32_t item, row, n_rows;
} attn_unit;

typedef struct attn_job {
    kern_context *kc;
    const kern_attn_batch *batch;
    size_t first_item; /* of this wave */
    size_t n_items;
    const attn_unit *units;
    size_t thread_bytes; /* of the rows' scratch */
} attn_job;

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* ---- what a row sees ------------------------------------------------------------------------- */

static uint32_t row_end(const kern_attn_item *it, uint32_t i) { return it->first_slot + i + 1; }

static uint32_t row_begin(const kern_attn_item *it, uint32_t i)
{
    uint32_t end = row_end(it, i);
    return it->window > 0 && end > it->window ? end - it->window : 0;
}

/* ---- mass: kept for each row and strip, summed when the rows' normalisers are known ---------- */

/* What one row leaves behind. */
typedef struct mass_view {
    float *sums;   /* [blocks * KERN_BLOCK_STRIPS] of p, relative to the maximum after that block */
    float *maxima; /* [blocks] that maximum */
    float *last;   /* [2] the row's final maximum, 1 / its sum */
} mass_view;

static size_t mass_row_floats(const kern_attn_item *it)
{
    return kern_blocks_of(row_end(it, it->n_rows - 1)) * (KERN_BLOCK_STRIPS + 1) + 2;
}

static size_t mass_floats(const kern_attn_batch *b, const kern_attn_item *it)
{
    return it->mass ? (size_t)b->q_heads * it->mass_rows * mass_row_floats(it) : 0;
}

static mass_view mass_of_row(const attn_job *job, size_t item, uint32_t head, uint32_t mass_row)
{
    const kern_attn_item *it = &job->batch->items[item];
    const kern_attn_scratch *scratch = &job->kc->attention;
    const size_t *offsets = scratch->mass_offsets.data;
    size_t index = (size_t)head * it->mass_rows + mass_row;
    size_t blocks = kern_blocks_of(row_end(it, it->n_rows - 1));
    float *base =
        (float *)scratch->mass.data + offsets[item - job->first_item] + index * mass_row_floats(it);
    return (mass_view){base, base + blocks * KERN_BLOCK_STRIPS,
                       base + blocks * (KERN_BLOCK_STRIPS + 1)};
}

/* mass [pages] += this row's share: its strips, brought to the final maximum, over its sum. */
static void add_row_mass(const kern_attn_item *it, uint32_t row, mass_view v, size_t page_strips,
                         float *mass)
{
    size_t from = row_begin(it, row) / KERN_BLOCK, to = kern_blocks_of(row_end(it, row));
    for (size_t b = from; b < to; b++) {
        float factor = v.last[1];
        if (v.maxima[b] != v.last[0]) factor *= exp2f(v.maxima[b] - v.last[0]);
        for (size_t t = 0; t < KERN_BLOCK_STRIPS; t++) v.sums[b * KERN_BLOCK_STRIPS + t] *= factor;
    }
    size_t end = to * KERN_BLOCK_STRIPS;
    size_t strips = min_size(end, ((size_t)row_end(it, row) + KERN_STRIP - 1) / KERN_STRIP);
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
        size_t pages = (row_end(it, it->n_rows - 1) + page_tokens - 1) / page_tokens;
        memset(it->mass, 0, pages * sizeof *it->mass);
        for (uint32_t h = 0; h < job->batch->q_heads; h++)
            for (uint32_t i = 0; i < it->mass_rows; i++)
                add_row_mass(it, it->n_rows - it->mass_rows + i, mass_of_row(job, item, h, i),
                             page_tokens / KERN_STRIP, it->mass);
    }
}

/* ---- one unit -------------------------------------------------------------------------------- */

/* A thread's scratch, drawn for n rows. */
typedef struct unit_state {
    kern_attn_row *rows; /* [n] */
    uint32_t *ends;      /* [n] slots [begins, ends) are seen */
    uint32_t *begins;
    float **mass; /* [n] where a row's sums begin, or NULL */
    float *q;     /* [n][KERN_ATTN_Q_STRIDE] times the scale, in units of log2 */
    float *o;     /* [n][head_dim] */
    float *s;     /* [KERN_ATTN_ROWS][KERN_BLOCK] */
} unit_state;

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

static size_t unit_state_bytes(size_t n, size_t head_dim)
{
    return n * sizeof(kern_attn_row) + align64(2 * n * sizeof(uint32_t)) +
           align64(n * sizeof(float *)) + n * (KERN_ATTN_Q_STRIDE + head_dim) * sizeof(float) +
           KERN_ATTN_ROWS * KERN_BLOCK * sizeof(float);
}

static unit_state unit_state_at(uint8_t *base, size_t n, size_t head_dim)
{
    unit_state u;
    u.rows = (kern_attn_row *)base;
    u.ends = (uint32_t *)(u.rows + n);
    u.begins = u.ends + n;
    u.mass = (float **)((uint8_t *)u.ends + align64(2 * n * sizeof(uint32_t)));
    u.q = (float *)((uint8_t *)u.mass + align64(n * sizeof(float *)));
    u.o = u.q + n * KERN_ATTN_Q_STRIDE;
    u.s = u.o + n * head_dim;
    return u;
}

static void start_rows(const attn_job *job, const attn_unit *unit, size_t n, unit_state *u)
{
    const kern_attn_batch *b = job->batch;
    const kern_attn_item *it = &b->items[unit->item];
    const uint32_t mass_from = it->mass ? it->n_rows - it->mass_rows : it->n_rows;
    const float scale = (float)((double)b->scale * LOG2_E);
    memset(u->rows, 0, n * sizeof *u->rows);
    memset(u->o, 0, n * b->shape.head_dim * sizeof *u->o);
    for (size_t r = 0; r < n; r++) {
        uint32_t i = unit->row + (uint32_t)(r / b->q_heads);
        u->rows[r].max = -INFINITY;
        u->begins[r] = row_begin(it, i);
        u->ends[r] = row_end(it, i);
        u->mass[r] =
            i < mass_from
                ? NULL
                : mass_of_row(job, unit->item, (uint32_t)(r % b->q_heads), i - mass_from).sums;
        const float *from = it->q + i * b->q_stride + r % b->q_heads * b->shape.head_dim;
        float *q = u->q + r * KERN_ATTN_Q_STRIDE;
        for (size_t d = 0; d < b->shape.head_dim; d++) q[d] = from[d] * scale;
    }
}

static void finish_rows(const attn_job *job, const attn_unit *unit, size_t n, unit_state *u)
{
    const kern_attn_batch *b = job->batch;
    const kern_attn_item *it = &b->items[unit->item];
    size_t blocks = kern_blocks_of(row_end(it, it->n_rows - 1));
    for (size_t r = 0; r < n; r++) {
        float sum = 0.0f;
        for (size_t lane = 0; lane < KERN_STRIP; lane++) sum += u->rows[r].sum[lane];
        float inverse = 1.0f / sum;
        const float *o = u->o + r * b->shape.head_dim;
        float *out = it->out + (unit->row + r / b->q_heads) * b->out_stride +
                     r % b->q_heads * b->shape.head_dim;
        /* + 0: a sum that underflowed to -0 becomes 0, whatever slots stood beside it. */
        for (size_t d = 0; d < b->shape.head_dim; d++) out[d] = o[d] * inverse + 0.0f;
        if (!u->mass[r]) continue;
        float *last = u->mass[r] + blocks * (KERN_BLOCK_STRIPS + 1);
        last[0] = u->rows[r].max;
        last[1] = inverse;
    }
}

/* Strips [from, to) of the table, all in one block, that are read. Others are never looked up:
 * their pages may have left the window. */
static void find_strips(const kern_attn_batch *b, const kern_attn_item *it, size_t from, size_t to,
                        const uint8_t *k[KERN_BLOCK_STRIPS], const uint8_t *v[KERN_BLOCK_STRIPS])
{
    for (size_t t = from; t < to; t++)
        kern_strip_at(&b->shape, b->page_stride, it->pages, it->tiles, t, &k[t % KERN_BLOCK_STRIPS],
                      &v[t % KERN_BLOCK_STRIPS]);
}

/* The unit's strips of a block: [*from, *to). */
static void block_range(size_t block, uint32_t begin, uint32_t end, size_t *from, size_t *to)
{
    *from = max_size(block * KERN_BLOCK_STRIPS, begin / KERN_STRIP);
    *to = min_size((block + 1) * KERN_BLOCK_STRIPS, ((size_t)end + KERN_STRIP - 1) / KERN_STRIP);
}

/* o = o * fix + p . v for a tile. Rows of a tile see almost the same slots: what all see is done at
 * once, the rest of each row alone, in its order; a slot that a row does not see never touches it.
 */
static void tile_values(const kern_isa *isa, const kern_attn_batch *b, const kern_attn_strips *v,
                        const float *p, kern_attn_row *rows, uint32_t n, float *o)
{
    kern_kv_format type = b->shape.format;
    uint32_t dim = b->shape.head_dim, from = 0, to = KERN_BLOCK;
    bool same = true;
    for (uint32_t r = 0; r < n; r++) {
        from = rows[r].lo > from ? rows[r].lo : from;
        to = rows[r].hi < to ? rows[r].hi : to;
        same = same && rows[r].lo == rows[0].lo && rows[r].hi == rows[0].hi;
    }
    if (same) {
        if (from < to) isa->attn_values[type](v, from, to, p, rows, n, dim, o);
        return;
    }
    if (from >= to) from = to = KERN_BLOCK; /* nothing in common: all of it is head */
    for (uint32_t r = 0; r < n; r++) {
        uint32_t stop = rows[r].hi < from ? rows[r].hi : from;
        if (rows[r].lo >= stop) continue;
        isa->attn_values[type](v, rows[r].lo, stop, p + r * KERN_BLOCK, rows + r, 1, dim,
                               o + r * dim);
        rows[r].fix = 1.0f;
    }
    if (from == to) return;
    isa->attn_values[type](v, from, to, p, rows, n, dim, o);
    for (uint32_t r = 0; r < n; r++) {
        rows[r].fix = 1.0f;
        if (rows[r].hi > to)
            isa->attn_values[type](v, to, rows[r].hi, p + r * KERN_BLOCK, rows + r, 1, dim,
                                   o + r * dim);
    }
}

/* One block for the rows [first, first + n) of the unit. */
static void tile_block(const attn_job *job, size_t block, const kern_attn_strips *k,
                       const kern_attn_strips *v, size_t first, size_t n, size_t mass_blocks,
                       unit_state *u)
{
    const kern_isa *isa = &job->kc->isa;
    const kern_attn_batch *b = job->batch;
    kern_attn_row *rows = u->rows + first;
    uint32_t base = (uint32_t)block * KERN_BLOCK, lo = KERN_BLOCK, hi = 0;
    bool all = u->begins[first + n - 1] <= base && u->ends[first] >= base + KERN_BLOCK;
    if (all) {
        lo = 0;
        hi = KERN_BLOCK;
    }
    for (size_t r = 0; r < n; r++) {
        rows[r].mass = u->mass[first + r] ? u->mass[first + r] + block * KERN_BLOCK_STRIPS : NULL;
        if (all) {
            rows[r].lo = 0;
            rows[r].hi = KERN_BLOCK;
            continue;
        }
        uint32_t begin = max_u32(u->begins[first + r], base) - base;
        uint32_t end = max_u32(min_u32(u->ends[first + r], base + KERN_BLOCK), base) - base;
        rows[r].lo = begin < end ? begin : 0;
        rows[r].hi = begin < end ? end : 0;
        if (begin >= end) continue;
        lo = min_u32(lo, begin);
        hi = max_u32(hi, end);
    }
    if (lo >= hi) return;
    isa->attn_scores[b->shape.format](k, lo / KERN_STRIP, (hi + KERN_STRIP - 1) / KERN_STRIP,
                                      u->q + first * KERN_ATTN_Q_STRIDE, (uint32_t)n,
                                      b->shape.head_dim, u->s);
    isa->attn_softmax(rows, (uint32_t)n, u->s);
    for (size_t r = 0; r < n; r++)
        if (u->mass[first + r] && rows[r].lo < rows[r].hi)
            u->mass[first + r][mass_blocks * KERN_BLOCK_STRIPS + block] = rows[r].max;
    tile_values(isa, b, v, u->s, rows, (uint32_t)n, u->o + first * b->shape.head_dim);
}

static void run_unit(const attn_job *job, const attn_unit *unit, uint8_t *scratch)
{
    const kern_attn_batch *b = job->batch;
    const kern_attn_item *it = &b->items[unit->item];
    size_t n = (size_t)unit->n_rows * b->q_heads, tile = job->kc->isa.attn_rows;
    size_t mass_blocks = kern_blocks_of(row_end(it, it->n_rows - 1));
    unit_state u = unit_state_at(scratch, n, b->shape.head_dim);
    start_rows(job, unit, n, &u);

    kern_attn_strips k = {0}, v = {0};
    kern_strip_steps(&b->shape, &k, &v);
    uint32_t begin = u.begins[0], end = u.ends[n - 1];
    size_t from, to, last = kern_blocks_of(end);
    block_range(begin / KERN_BLOCK, begin, end, &from, &to);
    find_strips(b, it, from, to, k.next, v.next);
    for (size_t t = 0; t < KERN_BLOCK_STRIPS; t++) { /* those not read may still be prefetched */
        if (k.next[t]) continue;
        k.next[t] = k.next[from % KERN_BLOCK_STRIPS];
        v.next[t] = v.next[from % KERN_BLOCK_STRIPS];
    }
    for (size_t block = begin / KERN_BLOCK; block < last; block++) {
        memcpy(k.at, k.next, sizeof k.at);
        memcpy(v.at, v.next, sizeof v.at);
        if (b->shape.format == KERN_KV_INT8) kern_strip_scales(&b->shape, &k, &v);
        block_range(block + 1, begin, end, &from, &to);
        find_strips(b, it, from, to, k.next, v.next);
        for (size_t r = 0; r < n; r += tile)
            tile_block(job, block, &k, &v, r, min_size(n - r, tile), mass_blocks, &u);
    }
    finish_rows(job, unit, n, &u);
}

static void run_units(void *ctx, size_t from, size_t to, unsigned thread)
{
    const attn_job *job = ctx;
    uint8_t *scratch = (uint8_t *)job->kc->attention.rows.data + thread * job->thread_bytes;
    for (size_t i = from; i < to; i++) run_unit(job, &job->units[i], scratch);
}

/* ---- cutting --------------------------------------------------------------------------------- */

static uint32_t unit_tokens(const kern_attn_batch *b) { return max_u32(1, UNIT_ROWS / b->q_heads); }

static size_t unit_count(const kern_attn_batch *b, const kern_attn_item *it)
{
    return (it->n_rows + unit_tokens(b) - 1) / unit_tokens(b);
}

static size_t unit_work(const kern_attn_batch *b, const attn_unit *unit)
{
    const kern_attn_item *it = &b->items[unit->item];
    size_t slots = row_end(it, unit->row + unit->n_rows - 1) - row_begin(it, unit->row);
    return slots * unit->n_rows * b->q_heads * b->shape.head_dim;
}

static attn_unit unit_at(const kern_attn_batch *b, size_t item, size_t index)
{
    uint32_t step = unit_tokens(b), row = (uint32_t)index * step;
    return (attn_unit){(uint32_t)item, row, min_u32(step, b->items[item].n_rows - row)};
}

/* Fills `units` with the wave's units, the largest first (by powers of two), so that threads end
 * together. Returns the work of all. */
static size_t order_units(const attn_job *job, attn_unit *units)
{
    const kern_attn_batch *b = job->batch;
    size_t starts[65] = {0}, work = 0;
    for (size_t i = job->first_item; i < job->first_item + job->n_items; i++)
        for (size_t u = 0; u < unit_count(b, &b->items[i]); u++) {
            attn_unit unit = unit_at(b, i, u);
            size_t w = unit_work(b, &unit);
            starts[1 + __builtin_clzll(w)]++;
            work += w;
        }
    for (size_t c = 1; c < 65; c++) starts[c] += starts[c - 1];
    for (size_t i = job->first_item; i < job->first_item + job->n_items; i++)
        for (size_t u = 0; u < unit_count(b, &b->items[i]); u++) {
            attn_unit unit = unit_at(b, i, u);
            units[starts[__builtin_clzll(unit_work(b, &unit))]++] = unit;
        }
    return work;
}

void kern_attn_scratch_free(kern_attn_scratch *s)
{
    alloc_pages_free(s->units.data, s->units.bytes);
    alloc_pages_free(s->mass_offsets.data, s->mass_offsets.bytes);
    alloc_pages_free(s->mass.data, s->mass.bytes);
    alloc_pages_free(s->rows.data, s->rows.bytes);
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
        assert(!b->items[i].mass || b->items[i].mass_rows > 0);
        assert(!b->items[i].mass || b->items[i].mass_rows <= b->items[i].n_rows);
    }
}

/* Takes items from job->first_item on while their mass fits; returns the floats that it needs. */
static size_t next_wave(attn_job *job, size_t *offsets, size_t *n_units)
{
    const kern_attn_batch *b = job->batch;
    size_t floats = 0;
    *n_units = 0;
    for (job->n_items = 0; job->first_item + job->n_items < b->n_items; job->n_items++) {
        const kern_attn_item *it = &b->items[job->first_item + job->n_items];
        size_t more = mass_floats(b, it);
        if (floats > 0 && more > 0 && (floats + more) * sizeof(float) > MASS_BYTES_MAX) break;
        offsets[job->n_items] = floats;
        floats += more;
        *n_units += unit_count(b, it);
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
    job.thread_bytes = align64(unit_state_bytes(rows, batch->shape.head_dim));
    if (!kern_reserve(&scratch->rows, job.thread_bytes * kc->n_threads) ||
        !kern_reserve(&scratch->mass_offsets, batch->n_items * sizeof(size_t)))
        return no_memory;

    for (; job.first_item < batch->n_items; job.first_item += job.n_items) {
        size_t n_units;
        size_t floats = next_wave(&job, scratch->mass_offsets.data, &n_units);
        if (!kern_reserve(&scratch->mass, floats * sizeof(float)) ||
            !kern_reserve(&scratch->units, n_units * sizeof(attn_unit)))
            return no_memory;
        size_t work = order_units(&job, scratch->units.data);
        job.units = scratch->units.data;
        thread_pool_for(kc->pool, n_units, work < SERIAL_WORK ? n_units : 1, run_units, &job);
        if (floats > 0) thread_pool_for(kc->pool, job.n_items, 1, sum_mass, &job);
    }
    return STATUS_IS_OK;
}
