/* Paged attention, one unit: walks its pages block by block, and merges its spans. Arithmetic on K
 * and V is in ref/attention.c and x86/attention_*.c. */
#include "kernels/attention_job.h"

#include "base/minmax.h"

#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736

/* A thread's scratch, laid out for n rows. */
typedef struct unit_state {
    const attn_job *job;
    const kern_attn_item *it;
    const attn_unit *unit;
    size_t n;
    kern_attn_row *rows; /* [n] of this span; o too */
    uint32_t *ends;      /* [n] a row sees slots [begins, ends) */
    uint32_t *begins;
    float *q_scales;            /* [n] 1, or the scale of q in integers */
    bool whole;                 /* rows' lo and hi are set to see the whole block */
    bool ints;                  /* int8 pages, and q in integers */
    const kern_attn_dots *dots; /* bf16 pages, and q in bf16; or NULL */
    float **mass;               /* [n] where a row's sums begin, or NULL */
    size_t mass_blocks;         /* blocks of sums, behind which the maxima stand */
    float *q;                   /* [n][KERN_ATTN_Q_STRIDE] times the scale, in units of log2 */
    float *o;                   /* [n][head_dim] */
    float *s;                   /* [KERN_ATTN_ROWS][KERN_BLOCK] */
    float *so_far;              /* [n] attn_part_floats: the earlier spans, merged */
    float *parts;               /* [n] attn_part_floats: this span */
    kern_pages pages;           /* formats with grids: the pages */
    uint8_t *wide;              /* formats with grids: a block of the pages as bf16 */
    uint8_t *seen;              /* with dots: copy of V of a block that rows see in part */
    bool finite;                /* with dots: the copy has neither infinities nor NaNs */
} unit_state;

size_t attn_unit_bytes(size_t n, size_t head_dim)
{
    return align64(n * sizeof(kern_attn_row) + align64(3 * n * sizeof(uint32_t)) +
                   align64(n * sizeof(float *)) +
                   n * (KERN_ATTN_Q_STRIDE + head_dim + 2 * attn_part_floats(head_dim)) *
                       sizeof(float) +
                   KERN_ATTN_ROWS * KERN_BLOCK * sizeof(float)) +
           kern_wide_bytes(head_dim) + kern_wide_bytes(head_dim) / 2;
}

static unit_state unit_state_at(const attn_job *job, const attn_unit *unit, uint8_t *base)
{
    unit_state u = {.job = job, .unit = unit, .it = &job->batch->items[unit->item]};
    size_t dim = job->batch->shape.head_dim;
    u.n = (size_t)unit->n_rows * job->batch->q_heads;
    const kern_attn_way way = kern_attention_way(&job->kc->isa, job->batch->shape.format);
    u.ints = way == KERN_ATTN_BY_INTS;
    if (way == KERN_ATTN_BY_DOTS) u.dots = job->kc->isa.attn_dots;
    u.rows = (kern_attn_row *)base;
    u.ends = (uint32_t *)(u.rows + u.n);
    u.begins = u.ends + u.n;
    u.q_scales = (float *)(u.begins + u.n);
    u.mass = (float **)((uint8_t *)u.ends + align64(3 * u.n * sizeof(uint32_t)));
    u.q = (float *)((uint8_t *)u.mass + align64(u.n * sizeof(float *)));
    u.so_far = u.q + u.n * KERN_ATTN_Q_STRIDE;
    u.parts = u.so_far + u.n * attn_part_floats(dim);
    u.o = u.parts + u.n * attn_part_floats(dim);
    u.s = u.o + u.n * dim;
    u.wide = (uint8_t *)(u.s + KERN_ATTN_ROWS * KERN_BLOCK);
    u.seen = u.wide + kern_wide_bytes(dim);
    u.mass_blocks = kern_blocks_of(attn_row_end(u.it, u.it->n_rows - 1));
    uint32_t page_tokens = job->batch->shape.page_tokens;
    u.pages = (kern_pages){.pages = u.it->pages,
                           .tiles = u.it->tiles,
                           .page_stride = job->batch->page_stride,
                           .filling = u.it->filling,
                           .first_filling = u.it->first_filling,
                           .first_wide = kern_first_wide(
                               (u.it->first_slot + unit->row) / page_tokens, u.it->residual_pages)};
    return u;
}

/* ---- mass ------------------------------------------------------------------------------------ */

attn_mass attn_mass_of_row(const attn_job *job, size_t item, uint32_t head, uint32_t mass_row)
{
    const kern_attn_item *it = &job->batch->items[item];
    const kern_attn_scratch *scratch = &job->kc->attention;
    const size_t *offsets = scratch->mass_offsets.data;
    size_t index = (size_t)head * it->mass_rows + mass_row;
    size_t blocks = kern_blocks_of(attn_row_end(it, it->n_rows - 1));
    float *base = (float *)scratch->mass.data + offsets[item - job->first_item] +
                  index * attn_mass_row_floats(it);
    return (attn_mass){base, base + blocks * KERN_BLOCK_STRIPS,
                       base + blocks * (KERN_BLOCK_STRIPS + 1)};
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void find_rows(unit_state *u)
{
    const kern_attn_batch *b = u->job->batch;
    const kern_attn_item *it = u->it;
    const uint32_t mass_from = it->mass ? it->n_rows - it->mass_rows : it->n_rows;
    for (size_t r = 0; r < u->n; r++) {
        uint32_t i = u->unit->row + (uint32_t)(r / b->q_heads), head = (uint32_t)(r % b->q_heads);
        u->begins[r] = attn_row_begin(it, i);
        u->ends[r] = attn_row_end(it, i);
        u->mass[r] = i < mass_from
                         ? NULL
                         : attn_mass_of_row(u->job, u->unit->item, head, i - mass_from).sums;
    }
}

static void load_queries(unit_state *u)
{
    const kern_attn_batch *b = u->job->batch;
    const float scale = (float)((double)b->scale * LOG2_E);
    const uint32_t dim = b->shape.head_dim;
    for (size_t r = 0; r < u->n; r++) {
        const float *from =
            u->it->q + (u->unit->row + r / b->q_heads) * b->q_stride + r % b->q_heads * dim;
        float *q = u->q + r * KERN_ATTN_Q_STRIDE;
        u->q_scales[r] = 1.0f;
        if (u->dots) u->dots->pack_query(from, scale, dim, (uint16_t *)q);
        else if (u->ints)
            u->q_scales[r] = u->job->kc->isa.attn_int_query(from, scale, dim, (int16_t *)q);
        else
            for (uint32_t d = 0; d < dim; d++) q[d] = from[d] * scale;
    }
}

static void start_span(unit_state *u)
{
    u->whole = false;
    memset(u->rows, 0, u->n * sizeof *u->rows);
    memset(u->o, 0, u->n * u->job->batch->shape.head_dim * sizeof *u->o);
    for (size_t r = 0; r < u->n; r++) {
        u->rows[r].max = -INFINITY;
        u->rows[r].q_scale = u->q_scales[r];
    }
}

static void keep_span(const unit_state *u, float *parts)
{
    size_t dim = u->job->batch->shape.head_dim, part = attn_part_floats(dim);
    for (size_t r = 0; r < u->n; r++, parts += part) {
        memcpy(parts, u->rows[r].sum, KERN_STRIP * sizeof *parts);
        parts[KERN_STRIP] = u->rows[r].max;
        memcpy(parts + part - dim, u->o + r * dim, dim * sizeof *parts);
    }
}

/* Merges a span's part of a row into so_far. */
static void merge_row(float *so_far, const float *sum, float max, const float *o, size_t dim)
{
    float top = max > so_far[KERN_STRIP] ? max : so_far[KERN_STRIP];
    float before = exp2f(so_far[KERN_STRIP] - top), now = exp2f(max - top);
    float *total = so_far + attn_part_floats(dim) - dim;
    for (size_t i = 0; i < KERN_STRIP; i++) so_far[i] = so_far[i] * before + sum[i] * now;
    for (size_t d = 0; d < dim; d++) total[d] = total[d] * before + o[d] * now;
    so_far[KERN_STRIP] = top;
}

/* Merges `span` into so_far for each row that sees some of it. A row's first span starts its
 * so_far. */
static void merge_span(unit_state *u, uint32_t span, const float *parts)
{
    size_t dim = u->job->batch->shape.head_dim, part = attn_part_floats(dim);
    for (size_t r = 0; r < u->n; r++) {
        if (u->ends[r] <= span * KERN_SPAN || u->begins[r] >= (span + 1) * KERN_SPAN) continue;
        const float *from = parts + r * part;
        float *so_far = u->so_far + r * part;
        if (u->begins[r] / KERN_SPAN == span) memcpy(so_far, from, part * sizeof *so_far);
        else merge_row(so_far, from, from[KERN_STRIP], from + part - dim, dim);
    }
}

static void finish_rows(unit_state *u)
{
    const kern_attn_batch *b = u->job->batch;
    size_t dim = b->shape.head_dim, part = attn_part_floats(dim);
    for (size_t r = 0; r < u->n; r++) {
        const float *so_far = u->so_far + r * part, *o = so_far + part - dim;
        float sum = 0.0f;
        for (size_t lane = 0; lane < KERN_STRIP; lane++) sum += so_far[lane];
        float inverse = 1.0f / sum;
        float *out =
            u->it->out + (u->unit->row + r / b->q_heads) * b->out_stride + r % b->q_heads * dim;
        /* + 0 turns a sum that underflowed to -0 into 0, so that slots beside it cannot change the
         * sign. */
        for (size_t d = 0; d < dim; d++) out[d] = o[d] * inverse + 0.0f;
        if (!u->mass[r]) continue;
        float *last = u->mass[r] + u->mass_blocks * (KERN_BLOCK_STRIPS + 1);
        last[0] = so_far[KERN_STRIP];
        last[1] = inverse;
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* A position in the table that moves from strip to strip. */
typedef struct strip_cursor {
    uint32_t strip, page, slot;
} strip_cursor;

/* Sets k and v to the strips of `block` that the unit reads. Other strips are never looked up,
 * because their pages may have left the window; they point to the first strip that is read. */
static void find_strips(const unit_state *u, size_t block, uint32_t begin, uint32_t end,
                        strip_cursor *c, const uint8_t *k[KERN_BLOCK_STRIPS],
                        const uint8_t *v[KERN_BLOCK_STRIPS])
{
    const kern_kv_shape *shape = &u->job->batch->shape;
    size_t from = max_size(block * KERN_BLOCK_STRIPS, begin / KERN_STRIP);
    size_t to =
        min_size((block + 1) * KERN_BLOCK_STRIPS, ((size_t)end + KERN_STRIP - 1) / KERN_STRIP);
    if (from >= to) return; /* behind the last block: its strips stay, and are prefetched again */
    if (c->strip != from)
        *c = (strip_cursor){(uint32_t)from, (uint32_t)(from * KERN_STRIP / shape->page_tokens),
                            (uint32_t)(from * KERN_STRIP % shape->page_tokens)};
    for (size_t t = from; t < to; t++, c->strip++) {
        kern_strip_in_page(shape, u->it->tiles + u->it->pages[c->page] * u->job->batch->page_stride,
                           c->slot, &k[t % KERN_BLOCK_STRIPS], &v[t % KERN_BLOCK_STRIPS]);
        c->slot += KERN_STRIP;
        if (c->slot < shape->page_tokens) continue;
        c->slot = 0;
        c->page++;
    }
    for (size_t t = 0; t < KERN_BLOCK_STRIPS; t++) {
        size_t strip = block * KERN_BLOCK_STRIPS + t;
        if (strip >= from && strip < to) continue;
        k[t] = k[from % KERN_BLOCK_STRIPS];
        v[t] = v[from % KERN_BLOCK_STRIPS];
    }
}

/* o = o * fix + p . v for a tile. Rows of a tile see almost the same slots: the slots that all rows
 * see are done for all at once, the others row by row, in order. A slot that a row does not see is
 * never read for it. */
static void tile_values(const kern_isa *isa, const kern_attn_batch *b, const kern_attn_strips *v,
                        const float *p, kern_attn_row *rows, uint32_t n, float *o)
{
    kern_kv_format type = kern_kv_wide(&b->shape).format;
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
    if (from >= to) from = to = KERN_BLOCK; /* nothing in common: every row is done alone */
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

/* Sets the slots of a block that each row sees. */
static void see_block(unit_state *u, size_t block)
{
    const uint32_t base = (uint32_t)block * KERN_BLOCK;
    const bool whole = u->begins[u->n - 1] <= base && u->ends[0] >= base + KERN_BLOCK;
    for (size_t r = 0; u->it->mass && r < u->n; r++)
        u->rows[r].mass = u->mass[r] ? u->mass[r] + block * KERN_BLOCK_STRIPS : NULL;
    if (whole && u->whole) return;
    u->whole = whole;
    for (size_t r = 0; r < u->n; r++) {
        uint32_t begin = max_u32(u->begins[r], base) - base;
        uint32_t end = max_u32(min_u32(u->ends[r], base + KERN_BLOCK), base) - base;
        u->rows[r].lo = begin < end ? begin : 0;
        u->rows[r].hi = begin < end ? end : 0;
    }
}

/* Sets [*lo, *hi) to the slots that any of n rows sees; false: none. */
static bool tile_range(const kern_attn_row *rows, size_t n, uint32_t *lo, uint32_t *hi)
{
    *lo = KERN_BLOCK;
    *hi = 0;
    for (size_t r = 0; r < n; r++) {
        if (rows[r].lo >= rows[r].hi) continue;
        *lo = min_u32(*lo, rows[r].lo);
        *hi = max_u32(*hi, rows[r].hi);
    }
    return *lo < *hi;
}

/* Copies V of the slots of this block that some row of the unit sees. */
static void copy_seen(unit_state *u, const kern_attn_strips *v)
{
    uint32_t lo, hi;
    if (tile_range(u->rows, u->n, &lo, &hi))
        u->finite = u->dots->seen_values(v, lo, hi, u->job->batch->shape.head_dim, u->seen);
}

/* o = o * fix + p . v for a tile, in bf16 dot products. Where rows see a part of the block, V is
 * read from the copy, which has zeros elsewhere. An infinity or NaN of a slot that a row does not
 * see would make the row's output NaN, even times 0; so with one in the copy each row is done
 * alone, over its own slots. */
static void tile_dots(unit_state *u, const kern_attn_strips *v, kern_attn_row *rows, uint32_t n,
                      float *o)
{
    const uint32_t dim = u->job->batch->shape.head_dim;
    const uint16_t *p = (const uint16_t *)u->s;
    if (u->whole) {
        u->dots->values(v, 0, KERN_BLOCK, p, rows, n, dim, o);
        return;
    }
    kern_attn_strips copy = *v;
    for (size_t t = 0; t < KERN_BLOCK_STRIPS; t++)
        copy.at[t] = u->seen + t * KERN_STRIP * dim * sizeof(uint16_t);
    copy.step = 2 * dim * sizeof(uint16_t);
    const uint32_t step = u->finite ? n : 1;
    for (uint32_t r = 0; r < n; r += step) {
        uint32_t lo, hi;
        if (!tile_range(rows + r, step, &lo, &hi)) continue;
        if (!u->finite) u->dots->seen_values(v, lo, hi, dim, u->seen);
        u->dots->values(&copy, lo & ~1u, (hi + 1) & ~1u, p + (size_t)r * 2 * KERN_BLOCK, rows + r,
                        step, dim, o + (size_t)r * dim);
    }
}

/* Computes one block for the rows [first, first + n) of the unit. */
static void tile_block(unit_state *u, size_t block, const kern_attn_strips *k,
                       const kern_attn_strips *v, size_t first, size_t n)
{
    const kern_isa *isa = &u->job->kc->isa;
    const kern_attn_batch *b = u->job->batch;
    const kern_kv_format type = kern_kv_wide(&b->shape).format;
    kern_attn_row *rows = u->rows + first;
    uint32_t lo = 0, hi = KERN_BLOCK, dim = b->shape.head_dim, m = (uint32_t)n;
    if (!u->whole && !tile_range(rows, n, &lo, &hi)) return;
    uint32_t strip = lo / KERN_STRIP, end = (hi + KERN_STRIP - 1) / KERN_STRIP;
    const float *q = u->q + first * KERN_ATTN_Q_STRIDE;
    if (u->dots) u->dots->scores(k, strip, end, (const uint16_t *)q, m, dim, u->s);
    else if (u->ints) isa->attn_int_scores(k, strip, end, (const int16_t *)q, rows, m, dim, u->s);
    else isa->attn_scores[type](k, strip, end, q, m, dim, u->s);
    if (u->dots) u->dots->softmax(rows, m, u->s);
    else isa->attn_softmax(rows, m, u->s);
    for (size_t r = 0; u->it->mass && r < n; r++)
        if (rows[r].mass && rows[r].lo < rows[r].hi)
            u->mass[first + r][u->mass_blocks * KERN_BLOCK_STRIPS + block] = rows[r].max;
    float *o = u->o + first * dim;
    if (u->dots) tile_dots(u, v, rows, m, o);
    else if (u->ints) isa->attn_int_values(v, lo, hi, u->s, rows, m, dim, o);
    else if (u->whole) isa->attn_values[type](v, lo, hi, u->s, rows, m, dim, o);
    else tile_values(isa, b, v, u->s, rows, m, o);
}

/* Sets what a tile prefetches of the next block's strips. The first two tiles share them, because
 * the CPU waits for only a few lines at once. The others prefetch their own strips again, which are
 * in cache. */
static void share_next(kern_attn_strips *strips, const uint8_t *const *next, size_t tile,
                       size_t n_tiles)
{
    for (size_t t = 0; t < KERN_BLOCK_STRIPS; t++) {
        bool mine = n_tiles == 1 || t / (KERN_BLOCK_STRIPS / 2) == tile;
        strips->next[t] = mine ? next[t] : strips->at[t];
    }
}

/* The strips of the current block and of the next one. */
typedef struct unit_strips {
    strip_cursor cursor;
    kern_attn_strips k, v;
    const uint8_t *next_k[KERN_BLOCK_STRIPS], *next_v[KERN_BLOCK_STRIPS];
} unit_strips;

/* Makes the next block the current one. The unit reads slots [begin, end). */
static void next_strips(const unit_state *u, size_t block, uint32_t begin, uint32_t end,
                        unit_strips *x)
{
    const kern_kv_shape *shape = &u->job->batch->shape;
    if (kern_kv_has_grids(shape->format)) {
        size_t first = block * KERN_BLOCK_STRIPS;
        size_t strips = ((size_t)end + KERN_STRIP - 1) / KERN_STRIP;
        kern_widen_strips(&u->job->kc->isa, shape, &u->pages, max_size(first, begin / KERN_STRIP),
                          min_size(first + KERN_BLOCK_STRIPS, strips), u->wide, &x->k, &x->v);
        memcpy(x->next_k, x->k.at, sizeof x->k.at);
        memcpy(x->next_v, x->v.at, sizeof x->v.at);
        return;
    }
    memcpy(x->k.at, x->next_k, sizeof x->k.at);
    memcpy(x->v.at, x->next_v, sizeof x->v.at);
    find_strips(u, block + 1, begin, end, &x->cursor, x->next_k, x->next_v);
    if (shape->format != KERN_KV_INT8) return;
    kern_strip_scales(shape, &x->k, &x->v);
    for (size_t t = 0; t < KERN_BLOCK_STRIPS; t++) {
        const uint8_t *scales = x->next_k[t] + kern_kv_scales_at(shape);
        __builtin_prefetch(scales, 0, 2);
        __builtin_prefetch(scales + kern_kv_scale_bytes(shape), 0, 2);
    }
}

/* Runs the blocks of one span, as far as they lie in [begin, end). On entry x->next_k and x->next_v
 * are those of the first block, on return those of the block behind the last. */
static void run_span(unit_state *u, uint32_t span, uint32_t begin, uint32_t end, unit_strips *x)
{
    size_t first = max_size(begin, (size_t)span * KERN_SPAN) / KERN_BLOCK;
    size_t last = kern_blocks_of(min_size(end, ((size_t)span + 1) * KERN_SPAN));
    const kern_isa *isa = &u->job->kc->isa;
    size_t most = u->dots ? u->dots->rows : u->ints ? isa->attn_int_rows : isa->attn_rows;
    size_t tiles = (u->n + most - 1) / most;
    size_t step = (u->n + tiles - 1) / tiles; /* tiles of equal size: few rows are slow */
    for (size_t block = first; block < last; block++) {
        next_strips(u, block, begin, end, x);
        see_block(u, block);
        if (u->dots && !u->whole) copy_seen(u, &x->v);
        for (size_t i = 0, r = 0; r < u->n; i++, r += step) {
            share_next(&x->k, x->next_k, i, tiles);
            share_next(&x->v, x->next_v, i, tiles);
            tile_block(u, block, &x->k, &x->v, r, min_size(u->n - r, step));
        }
    }
}

void attn_unit_run(const attn_job *job, const attn_unit *unit, uint8_t *scratch)
{
    unit_state u = unit_state_at(job, unit, scratch);
    size_t part = u.n * attn_part_floats(job->batch->shape.head_dim);
    find_rows(&u);
    load_queries(&u);
    uint32_t begin = max_u32(u.begins[0], unit->first_span * KERN_SPAN);
    uint32_t end = (uint32_t)min_size(u.ends[u.n - 1], (size_t)unit->end_span * KERN_SPAN);
    unit_strips x = {.cursor.strip = UINT32_MAX};
    kern_strip_steps(&job->batch->shape, &x.k, &x.v);
    if (!kern_kv_has_grids(job->batch->shape.format))
        find_strips(&u, begin / KERN_BLOCK, begin, end, &x.cursor, x.next_k, x.next_v);
    for (uint32_t span = unit->first_span; span < unit->end_span; span++) {
        start_span(&u);
        run_span(&u, span, begin, end, &x);
        float *parts = unit->parts ? unit->parts + (span - unit->first_span) * part : u.parts;
        keep_span(&u, parts);
        if (!unit->parts) merge_span(&u, span, parts);
    }
    if (!unit->parts) finish_rows(&u);
}

void attn_unit_merge(const attn_job *job, const attn_unit *unit, uint8_t *scratch)
{
    unit_state u = unit_state_at(job, unit, scratch);
    size_t part = u.n * attn_part_floats(job->batch->shape.head_dim);
    find_rows(&u);
    for (uint32_t span = unit->first_span; span < unit->end_span; span++)
        merge_span(&u, span, unit->parts + (span - unit->first_span) * part);
    finish_rows(&u);
}
