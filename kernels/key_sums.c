/* Softmax sums of single pages: scores and softmax are those of attention, in f32. */
#include "kernels/key_sums.h"

#include "base/minmax.h"
#include "kernels/context.h"
#include "kernels/strips.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736

/* Scratch of one caller. */
typedef struct sums_state {
    kern_attn_row *rows; /* [q_heads] */
    float *q;            /* [q_heads][KERN_ATTN_Q_STRIDE], scaled */
    float *keys;         /* a block from kern_block_keys */
    float *scores;       /* [KERN_ATTN_ROWS][KERN_BLOCK] */
    uint8_t *wide;       /* formats with grids: a block as bf16 */
} sums_state;

static void *take(uint8_t *base, size_t *at, size_t bytes)
{
    void *part = base ? base + *at : NULL;
    *at += align64(bytes);
    return part;
}

/* Lays out a state at `base` and returns its bytes. base NULL: only returns the bytes. */
static size_t lay_state(uint8_t *base, size_t dim, size_t n, sums_state *s)
{
    size_t at = 0;
    s->rows = take(base, &at, n * sizeof *s->rows);
    s->q = take(base, &at, n * KERN_ATTN_Q_STRIDE * sizeof *s->q);
    s->keys = take(base, &at, KERN_BLOCK * dim * sizeof *s->keys);
    s->scores = take(base, &at, KERN_ATTN_ROWS * KERN_BLOCK * sizeof *s->scores);
    s->wide = take(base, &at, kern_wide_bytes(dim));
    return at;
}

size_t kern_key_sums_bytes(const kern_kv_shape *shape, uint32_t q_heads)
{
    sums_state s;
    return lay_state(NULL, shape->head_dim, q_heads, &s);
}

void kern_key_sums_begin(const kern_kv_shape *shape, const kern_key_query *query, void *scratch)
{
    sums_state s;
    size_t dim = shape->head_dim;
    float scale = (float)((double)query->scale * LOG2_E);
    lay_state(scratch, dim, query->q_heads, &s);
    for (size_t h = 0; h < query->q_heads; h++)
        for (size_t d = 0; d < dim; d++)
            s.q[h * KERN_ATTN_Q_STRIDE + d] = query->q[h * dim + d] * scale;
}

/* Adds one block of keys, n_slots of which are seen, to the rows. */
static void add_block(const kern_isa *isa, uint32_t dim, uint32_t q_heads, uint32_t n_slots,
                      const sums_state *s)
{
    kern_attn_strips strips = kern_block_strips(s->keys, dim);
    uint32_t n_strips = (n_slots + KERN_STRIP - 1) / KERN_STRIP;
    for (uint32_t r = 0; r < q_heads; r += isa->attn_rows) {
        uint32_t n = q_heads - r < isa->attn_rows ? q_heads - r : isa->attn_rows;
        isa->attn_scores[KERN_KV_F32](&strips, 0, n_strips, s->q + (size_t)r * KERN_ATTN_Q_STRIDE,
                                      n, dim, s->scores);
        for (uint32_t i = 0; i < n; i++) {
            s->rows[r + i].lo = 0;
            s->rows[r + i].hi = n_slots;
        }
        isa->attn_softmax(s->rows + r, n, s->scores);
    }
}

void kern_key_sums(const kern_context *kc, const kern_kv_shape *shape, const kern_key_query *query,
                   const uint8_t *tile, bool wide, uint32_t n_slots, void *scratch, double *out)
{
    static const uint32_t page = 0;
    const kern_kv_shape read_as = kern_kv_wide(shape), stored = wide ? read_as : *shape;
    const kern_pages pages = {&page, tile, 0, NULL, 0, SIZE_MAX};
    uint32_t dim = shape->head_dim;
    sums_state s;
    assert(n_slots > 0 && n_slots <= shape->page_tokens && dim <= KERN_HEAD_DIM_MAX);
    lay_state(scratch, dim, query->q_heads, &s);
    memset(s.rows, 0, query->q_heads * sizeof *s.rows);
    for (uint32_t h = 0; h < query->q_heads; h++) s.rows[h].max = -INFINITY;
    for (uint32_t from = 0; from < n_slots; from += KERN_BLOCK) {
        kern_block b = kern_block_of(&kc->isa, &stored, &pages, from / KERN_BLOCK, n_slots, s.wide);
        kern_block_keys(&kc->isa, &read_as, &b, s.keys);
        add_block(&kc->isa, dim, query->q_heads,
                  n_slots - from < KERN_BLOCK ? n_slots - from : KERN_BLOCK, &s);
    }
    for (uint32_t h = 0; h < query->q_heads; h++) {
        double sum = 0;
        for (uint32_t lane = 0; lane < KERN_STRIP; lane++) sum += (double)s.rows[h].sum[lane];
        out[h] = (double)s.rows[h].max + log2(sum);
    }
}
