/* Parts of attention over a GPU's pages. A slot's K and V are widened to f32 and K is transposed,
 * strip by strip, so that the inner loops of paged attention read them. A table is cut into spans,
 * and one thread computes a span; a head's spans are merged in their order. */
#include "kernels/part_attention.h"

#include "base/half.h"
#include "base/minmax.h"
#include "kernels/context.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736

enum { SPAN = 1024 };

typedef struct part_unit {
    size_t item;
    uint32_t from, to; /* slots */
} part_unit;

typedef struct part_job {
    const kern_context *kc;
    const kern_part_batch *batch;
    const part_unit *units;
    float *results; /* [unit, q_heads, head_dim + 1]: out, lse */
    uint8_t *threads;
    size_t thread_bytes;
} part_job;

/* A thread's scratch. */
typedef struct part_state {
    kern_attn_row *rows; /* [q_heads] */
    float *q;            /* [q_heads, KERN_ATTN_Q_STRIDE] */
    float *o;            /* [q_heads, head_dim] */
    float *s;            /* [KERN_ATTN_ROWS, KERN_BLOCK] */
    float *values;       /* [KERN_BLOCK, head_dim] */
    float *keys;         /* [KERN_BLOCK_STRIPS, head_dim, KERN_STRIP], and what pack_x spills */
    float *rows_of_keys; /* [KERN_STRIP, head_dim] */
} part_state;

static part_state state_at(const kern_part_batch *b, uint8_t *base, size_t *bytes)
{
    size_t heads = b->q_heads, dim = b->head_dim, n = 0;
    const size_t sizes[] = {
        heads * sizeof(kern_attn_row),    heads * KERN_ATTN_Q_STRIDE * sizeof(float),
        heads * dim * sizeof(float),      KERN_ATTN_ROWS * KERN_BLOCK * sizeof(float),
        KERN_BLOCK * dim * sizeof(float), (KERN_BLOCK * dim + KERN_PANEL) * sizeof(float),
        KERN_STRIP * dim * sizeof(float)};
    void *at[sizeof sizes / sizeof *sizes];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        at[i] = base ? base + n : NULL;
        n += align64(sizes[i]);
    }
    *bytes = n;
    return (part_state){at[0], at[1], at[2], at[3], at[4], at[5], at[6]};
}

/* ---- slots as f32 ---------------------------------------------------------------------------- */

/* fp8 e4m3 without infinities: 1 sign, 4 bits of exponent, 3 of mantissa. */
static float e4m3_to_f32(uint8_t x)
{
    int e = x >> 3 & 15, m = x & 7;
    float v = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    if ((x & 127) == 127) v = NAN;
    return x >> 7 ? -v : v;
}

/* out [16, head_dim] = rows of K or V from `slot` of a tile on; part 0 is K, 1 is V. */
static void widen_rows(const part_job *j, const uint8_t *tile, uint32_t slot, uint32_t part,
                       float *out)
{
    static const kern_kv_format formats[] = {[KERN_PART_BF16] = KERN_KV_BF16,
                                             [KERN_PART_F16] = KERN_KV_F16,
                                             [KERN_PART_INT8] = KERN_KV_INT8};
    const kern_part_batch *b = j->batch;
    size_t dim = b->head_dim, n = KERN_STRIP * dim, first = (size_t)part * b->page_tokens + slot;
    size_t element = b->format == KERN_PART_BF16 || b->format == KERN_PART_F16 ? 2 : 1;
    const uint8_t *from = tile + first * dim * element;
    if (b->format == KERN_PART_E4M3) {
        for (size_t i = 0; i < n; i++) out[i] = e4m3_to_f32(from[i]);
        return;
    }
    j->kc->isa.widen[formats[b->format]](from, n, out);
    if (b->format != KERN_PART_INT8) return;
    uint16_t scales[KERN_STRIP];
    memcpy(scales, tile + 2 * b->page_tokens * dim + first * 2, sizeof scales);
    for (size_t i = 0; i < KERN_STRIP; i++) {
        float scale = bf16_to_f32(scales[i]);
        for (size_t d = 0; d < dim; d++) out[i * dim + d] *= scale;
    }
}

static void load_strip(const part_job *j, const part_state *s, const kern_part_item *it,
                       uint32_t slot, uint32_t strip)
{
    size_t dim = j->batch->head_dim;
    const uint8_t *tile = it->tiles[slot / j->batch->page_tokens];
    uint32_t in = slot % j->batch->page_tokens;
    widen_rows(j, tile, in, 0, s->rows_of_keys);
    j->kc->isa.pack_x(s->rows_of_keys, dim, KERN_STRIP, dim, s->keys + strip * KERN_STRIP * dim);
    widen_rows(j, tile, in, 1, s->values + strip * KERN_STRIP * dim);
}

/* ---- a span ---------------------------------------------------------------------------------- */

static void start_unit(const part_job *j, const kern_part_item *it, const part_state *s)
{
    const kern_part_batch *b = j->batch;
    const float scale = (float)((double)b->scale * LOG2_E);
    memset(s->rows, 0, b->q_heads * sizeof *s->rows);
    memset(s->o, 0, (size_t)b->q_heads * b->head_dim * sizeof *s->o);
    for (size_t r = 0; r < b->q_heads; r++) {
        s->rows[r].max = -INFINITY;
        for (size_t d = 0; d < b->head_dim; d++)
            s->q[r * KERN_ATTN_Q_STRIDE + d] = it->q[r * b->head_dim + d] * scale;
    }
}

/* Takes in n strips from `slot` on, at most a block. */
static void take_block(const part_job *j, const kern_part_item *it, const part_state *s,
                       uint32_t slot, uint32_t n)
{
    const kern_isa *isa = &j->kc->isa;
    uint32_t dim = j->batch->head_dim, heads = j->batch->q_heads;
    size_t strip = (size_t)KERN_STRIP * dim * sizeof(float);
    kern_attn_strips k = {.half = KERN_STRIP * sizeof(float),
                          .step = 2 * KERN_STRIP * sizeof(float)};
    kern_attn_strips v = {.half = dim * sizeof(float), .step = 2 * dim * sizeof(float)};
    for (uint32_t t = 0; t < KERN_BLOCK_STRIPS; t++) {
        uint32_t there = t < n ? t : 0; /* strips from n on are not read */
        if (t < n) load_strip(j, s, it, slot + t * KERN_STRIP, t);
        k.at[t] = k.next[t] = (const uint8_t *)s->keys + there * strip;
        v.at[t] = v.next[t] = (const uint8_t *)s->values + there * strip;
    }
    for (uint32_t first = 0; first < heads; first += isa->attn_rows) {
        uint32_t some = heads - first < isa->attn_rows ? heads - first : isa->attn_rows;
        kern_attn_row *rows = s->rows + first;
        for (uint32_t r = 0; r < some; r++) rows[r].hi = n * KERN_STRIP;
        isa->attn_scores[KERN_KV_F32](&k, 0, n, s->q + first * KERN_ATTN_Q_STRIDE, some, dim, s->s);
        isa->attn_softmax(rows, some, s->s);
        isa->attn_values[KERN_KV_F32](&v, 0, n * KERN_STRIP, s->s, rows, some, dim,
                                      s->o + (size_t)first * dim);
    }
}

static void run_unit(const part_job *j, size_t unit, const part_state *s)
{
    const kern_part_batch *b = j->batch;
    const part_unit *u = &j->units[unit];
    const kern_part_item *it = &b->items[u->item];
    float *out = j->results + unit * b->q_heads * (b->head_dim + 1);
    start_unit(j, it, s);
    for (uint32_t slot = u->from; slot < u->to; slot += KERN_BLOCK) {
        uint32_t left = (u->to - slot) / KERN_STRIP;
        take_block(j, it, s, slot, left < KERN_BLOCK_STRIPS ? left : KERN_BLOCK_STRIPS);
    }
    for (size_t r = 0; r < b->q_heads; r++, out += b->head_dim + 1) {
        float sum = 0.0f;
        for (size_t lane = 0; lane < KERN_STRIP; lane++) sum += s->rows[r].sum[lane];
        for (size_t d = 0; d < b->head_dim; d++) out[d] = s->o[r * b->head_dim + d] / sum;
        out[b->head_dim] = s->rows[r].max + log2f(sum);
    }
}

static void run_units(void *ctx, size_t from, size_t to, unsigned thread)
{
    const part_job *j = ctx;
    size_t bytes;
    part_state s = state_at(j->batch, j->threads + thread * j->thread_bytes, &bytes);
    for (size_t i = from; i < to; i++) run_unit(j, i, &s);
}

/* ---- a batch --------------------------------------------------------------------------------- */

void kern_part_merge(const float *other, float other_lse, uint32_t head_dim, float *out, float *lse)
{
    float top = *lse > other_lse ? *lse : other_lse;
    float mine = exp2f(*lse - top), theirs = exp2f(other_lse - top), sum = mine + theirs;
    for (uint32_t d = 0; d < head_dim; d++) out[d] = (out[d] * mine + other[d] * theirs) / sum;
    *lse = top + log2f(sum);
}

static size_t cut_items(const kern_part_batch *b, part_unit *units)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n_items; i++) {
        uint32_t slots = b->items[i].n_tiles * b->page_tokens;
        for (uint32_t from = 0; from < slots; from += SPAN, n++) {
            uint32_t to = slots - from < SPAN ? slots : from + SPAN;
            if (units) units[n] = (part_unit){i, from, to};
        }
    }
    return n;
}

static void merge_units(const part_job *j, size_t n)
{
    const kern_part_batch *b = j->batch;
    const float *from = j->results;
    for (size_t i = 0; i < n; i++) {
        const kern_part_item *it = &b->items[j->units[i].item];
        for (size_t r = 0; r < b->q_heads; r++, from += b->head_dim + 1) {
            float *out = it->out + r * b->head_dim;
            if (j->units[i].from > 0) {
                kern_part_merge(from, from[b->head_dim], b->head_dim, out, &it->lse[r]);
                continue;
            }
            memcpy(out, from, b->head_dim * sizeof *out);
            it->lse[r] = from[b->head_dim];
        }
    }
}

status kern_part_attention(kern_context *kc, const kern_part_batch *b)
{
    assert(b->page_tokens % KERN_STRIP == 0 && b->head_dim % KERN_STRIP == 0);
    assert(b->head_dim <= KERN_HEAD_DIM_MAX);
    size_t n = cut_items(b, NULL);
    part_job j = {.kc = kc, .batch = b};
    (void)state_at(b, NULL, &j.thread_bytes);
    size_t results = n * b->q_heads * (b->head_dim + 1) * sizeof(float);
    kern_attn_scratch *scratch = &kc->attention;
    if (!kern_reserve(&scratch->units, n * sizeof *j.units) ||
        !kern_reserve(&scratch->parts, results) ||
        !kern_reserve(&scratch->rows, j.thread_bytes * kc->n_threads))
        return status_make(STATUS_NO_MEMORY, "scratch for parts of attention");
    part_unit *units = scratch->units.data;
    cut_items(b, units);
    j.units = units;
    j.results = scratch->parts.data;
    j.threads = scratch->rows.data;
    thread_pool_for(kc->pool, n, 1, run_units, &j);
    merge_units(&j, n);
    return STATUS_IS_OK;
}
