/* The time that page mass adds to attention. A difference of whole prefills drowns in noise, so the
 * kernel call itself is timed: the rows that a method measures, over as many pages as the prompt
 * has, for each layer that the method measures, without and with mass in turn. */
#include "cli/bench/bench_retention.h"
#include "cli/bench/bench_sched.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAIRS = 5,          /* pairs of calls for each layer in a round: their median counts */
    RANDOM_PAGES = 256, /* pages with random contents; all others are copies of them */
};

struct bench_mass {
    kern_context *kernels;
    uint32_t n_layers, kv_heads, q_heads, tokens, n_pages, max_rows;
    kern_kv_shape shape;
    size_t page_bytes, layer_bytes;
    uint8_t *pool;   /* [n_layers][n_pages] */
    uint32_t *pages; /* [n_pages] */
    float *q, *out;  /* [max_rows, query heads, head_dim] */
    float *values;   /* [kv_heads, n_pages] */
    kern_attn_item *items;
};

void bench_mass_destroy(bench_mass *m)
{
    if (!m) return;
    if (m->pool) alloc_pages_free(m->pool, m->n_layers * m->layer_bytes);
    free(m->pages);
    free(m->q);
    free(m->out);
    free(m->values);
    free(m->items);
    free(m);
}

/* Keys and values of size 1, so that scores are those of a real model. */
static void fill_pages(bench_mass *m, rng *r)
{
    float k[256], v[256]; /* the largest head_dim */
    size_t tile = kern_kv_tile_bytes(&m->shape), n = m->n_layers * (size_t)m->n_pages;
    size_t made = n < RANDOM_PAGES ? n : RANDOM_PAGES;
    for (size_t page = 0; page < made; page++)
        for (uint32_t i = 0; i < m->kv_heads * m->shape.page_tokens; i++) {
            for (uint32_t d = 0; d < m->shape.head_dim; d++) {
                k[d] = rng_normal(r);
                v[d] = rng_normal(r);
            }
            kern_kv_write(m->kernels, &m->shape,
                          m->pool + page * m->page_bytes + i / m->shape.page_tokens * tile,
                          i % m->shape.page_tokens, k, v);
        }
    for (size_t page = made; page < n; page++)
        memcpy(m->pool + page * m->page_bytes, m->pool + page % made * m->page_bytes,
               m->page_bytes);
}

status bench_mass_create(bench *b, uint32_t tokens, bench_mass **out, error *err)
{
    const model_config *c = &b->model.config;
    if (kern_kv_has_grids(b->model.kv_type))
        return error_set(err, STATUS_INVALID, "--kv-dtype: %s has no such bench: its pages fill",
                         kern_kv_name(b->model.kv_type));
    bench_mass *m = calloc(1, sizeof *m);
    if (!m) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    const pkv_geometry *g = &b->seqs.info->geometry;
    uint32_t page = g->page_tokens;
    *m = (bench_mass){.kernels = b->kernels,
                      .n_layers = measure_layers(g, 1),
                      .kv_heads = c->n_kv_heads,
                      .q_heads = c->n_heads,
                      .tokens = tokens,
                      .n_pages = (tokens + page - 1) / page,
                      .max_rows = b->model.prefill_chunk,
                      .shape = {b->model.kv_type, page, c->head_dim}};
    m->page_bytes = kern_kv_tile_bytes(&m->shape) * m->kv_heads;
    m->layer_bytes = m->n_pages * m->page_bytes;
    size_t row = (size_t)m->q_heads * c->head_dim;
    m->pool = alloc_pages(m->n_layers * m->layer_bytes);
    m->pages = calloc(m->n_pages, sizeof *m->pages);
    m->q = calloc(m->max_rows * row, sizeof *m->q);
    m->out = calloc(m->max_rows * row, sizeof *m->out);
    m->values = calloc((size_t)m->kv_heads * m->n_pages, sizeof *m->values);
    m->items = calloc(m->kv_heads, sizeof *m->items);
    if (!m->pool || !m->pages || !m->q || !m->out || !m->values || !m->items) {
        bench_mass_destroy(m);
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    }
    rng r = rng_seed(3);
    for (uint32_t i = 0; i < m->n_pages; i++) m->pages[i] = i;
    for (size_t i = 0; i < m->max_rows * row; i++) m->q[i] = rng_normal(&r);
    fill_pages(m, &r);
    *out = m;
    return STATUS_IS_OK;
}

/* Times attention of the last `rows` rows of the prompt in one layer. */
static status time_attention(bench_mass *m, uint32_t layer, uint32_t rows, bool mass, double *ms)
{
    uint32_t group = m->q_heads / m->kv_heads;
    size_t row = (size_t)m->q_heads * m->shape.head_dim, tile = kern_kv_tile_bytes(&m->shape);
    for (uint32_t h = 0; h < m->kv_heads; h++) {
        size_t at = (size_t)h * group * m->shape.head_dim;
        m->items[h] = (kern_attn_item){.pages = m->pages,
                                       .tiles = m->pool + layer * m->layer_bytes + h * tile,
                                       .first_slot = m->tokens - rows,
                                       .n_rows = rows,
                                       .q = m->q + at,
                                       .out = m->out + at,
                                       .mass = mass ? m->values + (size_t)h * m->n_pages : NULL,
                                       .mass_rows = mass ? rows : 0};
    }
    kern_attn_batch batch = {.shape = m->shape,
                             .page_stride = m->page_bytes,
                             .q_heads = group,
                             .scale = 1.0f / sqrtf((float)m->shape.head_dim),
                             .q_stride = row,
                             .out_stride = row,
                             .items = m->items,
                             .n_items = m->kv_heads};
    int64_t start = clock_now_ns();
    status st = kern_attention(m->kernels, &batch);
    *ms = (double)(clock_now_ns() - start) / 1e6;
    return st;
}

status bench_mass_time(bench_mass *m, const measure_spec *spec, double *ms, error *err)
{
    *ms = 0;
    uint32_t rows = spec->rows < m->tokens ? spec->rows : m->tokens;
    for (uint32_t layer = 0; layer < m->n_layers; layer += spec->layer_step) {
        double extra[PAIRS], pair[2];
        status st = time_attention(m, layer, rows, true, pair); /* brings the layer's pages into the
                                                         * caches */
        for (uint32_t i = 0; i < PAIRS && status_ok(st); i++) {
            bool first = i % 2;
            st = time_attention(m, layer, rows, first, &pair[first]);
            if (status_ok(st)) st = time_attention(m, layer, rows, !first, &pair[!first]);
            extra[i] = pair[true] - pair[false];
        }
        if (!status_ok(st)) return error_set(err, st.code, "attention: %s", status_text(st.code));
        *ms += bench_median(extra, PAIRS);
    }
    return STATUS_IS_OK;
}
