#include "model/probe.h"

#include "model/cpu/forward.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_ROWS = 512 };

struct model_probe {
    probe_shape shape;
    const model_config *config; /* the backend's */
    comm *group;                /* the backend's, of one rank */
    thread_pool *pool;
    kern_context *kernels;
    kv_store store;
    size_t store_bytes;
    pkv *kv;
    pkv_mirror *mirror;
    forward *forward;
    _Atomic bool interrupted; /* stays false: a probe's pass is never interrupted */

    uint32_t *tokens; /* [n]; n = 0: no run to read */
    uint32_t n, first_row;
    uint32_t done;                  /* rows of the run computed before this chunk */
    float *keys, *values, *queries; /* [layers, KV heads or heads, rows, head_dim] */
};

probe_shape model_probe_shape(const model_probe *p) { return p->shape; }

/* ---- creation -------------------------------------------------------------------------------- */

static void keep_layer(void *ctx, uint32_t layer, uint32_t n_rows, const float *qkv);

static status make_pages(model_probe *p, error *err)
{
    pkv_geometry g = p->store.geometry;
    pkv_options options = {.geometry = g, .n_pages = p->store.n_pages, .max_seqs = 1};
    kv_store_set_pool(&p->store, p->store.n_pages);
    p->store_bytes = (size_t)p->store.cells.n * p->store.page_bytes;
    p->store.data = alloc_pages(p->store_bytes);
    status s = p->store.data ? pkv_create(&options, &p->kv)
                             : status_make(STATUS_NO_MEMORY, "pages of a probe");
    if (status_ok(s)) s = pkv_mirror_create(&g, p->store.n_pages, 1, NULL, &p->mirror);
    return status_ok(s) ? s : error_set(err, s.code, "probe: %s", status_text(s.code));
}

/* Lays out one table for all layers and heads, because no page is ever taken out. */
static void lay_out_pages(model_probe *p, const forward_options *of)
{
    pkv_geometry g = of->store->geometry;
    g.layers_per_group = g.n_layers;
    g.heads_per_group = g.n_kv_heads;
    kv_store_layout(&p->store, KERN_KV_F32, &g, p->config->head_dim, 0, g.n_kv_heads);
    p->store.n_pages = (p->shape.max_tokens + g.page_tokens - 1) / g.page_tokens + 1;
}

static status make_pass(model_probe *p, const backend_options *made_with, error *err)
{
    thread_pool_options threads = {.n_threads = made_with->n_threads};
    status s = thread_pool_create(&threads, &p->pool);
    if (!status_ok(s)) return error_set(err, s.code, "probe: cannot start threads");
    kern_options kernels = {
        .pool = p->pool, .isa = made_with->isa, .precision = made_with->precision};
    return kern_create(&kernels, &p->kernels, err);
}

status model_probe_create(const backend *b, const backend_options *made_with, uint32_t max_tokens,
                          model_probe **out, error *err)
{
    forward_options of;
    if (!backend_cpu_pass(b, &of))
        return error_set(err, STATUS_UNSUPPORTED,
                         "attention can be probed on a CPU backend of one rank only, not with "
                         "several ranks, workers or a GPU");
    model_probe *p = calloc(1, sizeof *p);
    if (!p) return error_set(err, STATUS_NO_MEMORY, "probe: out of memory");
    p->config = of.config;
    p->shape = (probe_shape){of.config->n_layers, of.config->n_heads, of.config->n_kv_heads,
                             of.config->head_dim, max_tokens};
    lay_out_pages(p, &of);
    status s = make_pass(p, made_with, err);
    if (status_ok(s)) s = make_pages(p, err);
    if (status_ok(s)) {
        of.kernels = p->kernels;
        of.pool = p->pool;
        of.store = &p->store;
        of.mirror = p->mirror;
        of.max_rows = CHUNK_ROWS;
        of.max_seqs = 1;
        of.interrupted = &p->interrupted;
        of.watch = keep_layer;
        of.watch_ctx = p;
        s = forward_create(&of, &p->forward);
        if (!status_ok(s)) error_set(err, s.code, "probe: %s", status_text(s.code));
    }
    if (status_ok(s)) *out = p;
    else model_probe_destroy(p);
    return s;
}

static void forget_tables(model_probe *p)
{
    free(p->tokens);
    free(p->keys);
    free(p->values);
    free(p->queries);
    p->tokens = NULL;
    p->keys = p->values = p->queries = NULL;
    p->n = 0;
}

void model_probe_destroy(model_probe *p)
{
    if (!p) return;
    forget_tables(p);
    forward_destroy(p->forward);
    pkv_mirror_destroy(p->mirror);
    pkv_destroy(p->kv);
    alloc_pages_free(p->store.data, p->store_bytes);
    kern_destroy(p->kernels);
    thread_pool_destroy(p->pool);
    free(p);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static size_t head_floats(const model_probe *p, uint32_t rows)
{
    return (size_t)rows * p->shape.head_dim;
}

/* Copies n_heads heads of the rows, from `columns` on, into to [n_heads, stride, head_dim] from row
 * `at` on. */
static void keep_heads(const model_probe *p, const float *columns, size_t width, uint32_t n_heads,
                       uint32_t n_rows, uint32_t stride, uint32_t at, float *to)
{
    uint32_t dim = p->shape.head_dim;
    for (uint32_t h = 0; h < n_heads; h++)
        for (uint32_t i = 0; i < n_rows; i++)
            memcpy(to + head_floats(p, h * stride + at + i), columns + i * width + h * dim,
                   dim * sizeof *to);
}

static void keep_layer(void *ctx, uint32_t layer, uint32_t n_rows, const float *qkv)
{
    model_probe *p = ctx;
    const probe_shape *s = &p->shape;
    size_t width = (size_t)(s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
    const float *k = qkv + (size_t)s->n_heads * s->head_dim;
    const float *v = k + (size_t)s->n_kv_heads * s->head_dim;
    size_t at = layer * s->n_kv_heads * head_floats(p, p->n);
    keep_heads(p, k, width, s->n_kv_heads, n_rows, p->n, p->done, p->keys + at);
    keep_heads(p, v, width, s->n_kv_heads, n_rows, p->n, p->done, p->values + at);
    uint32_t rows = p->n - p->first_row, skip = p->first_row > p->done ? p->first_row - p->done : 0;
    if (skip >= n_rows) return;
    keep_heads(p, qkv + skip * width, width, s->n_heads, n_rows - skip, rows,
               p->done + skip - p->first_row,
               p->queries + layer * s->n_heads * head_floats(p, rows));
}

static status make_room(model_probe *p, const uint32_t *tokens, uint32_t n, uint32_t first_row)
{
    size_t layers = p->shape.n_layers, kv = layers * p->shape.n_kv_heads;
    p->tokens = malloc(n * sizeof *p->tokens);
    p->keys = alloc_resize(NULL, NULL, kv * head_floats(p, n), sizeof *p->keys);
    p->values = alloc_resize(NULL, NULL, kv * head_floats(p, n), sizeof *p->values);
    p->queries = alloc_resize(NULL, NULL, layers * p->shape.n_heads * head_floats(p, n - first_row),
                              sizeof *p->queries);
    if (!p->tokens || !p->keys || !p->values || !p->queries)
        return status_make(STATUS_NO_MEMORY, "keys and values of a probe");
    memcpy(p->tokens, tokens, n * sizeof *tokens);
    p->n = n;
    p->first_row = first_row;
    return STATUS_IS_OK;
}

static status run_chunks(model_probe *p)
{
    for (p->done = 0; p->done < p->n;) {
        uint32_t some = p->n - p->done < CHUNK_ROWS ? p->n - p->done : CHUNK_ROWS;
        RETURN_IF_ERROR(pkv_seq_append(p->kv, 0, some));
        pkv_deltas deltas = pkv_take_deltas(p->kv);
        RETURN_IF_ERROR(pkv_mirror_apply(p->mirror, deltas.words, deltas.n_words));
        forward_seq seq = {.n_rows = some, .position = p->done};
        RETURN_IF_ERROR(forward_run(p->forward, p->tokens + p->done, some, &seq, 1));
        p->done += some;
    }
    return STATUS_IS_OK;
}

static status run_rows(model_probe *p, const uint32_t *tokens, uint32_t n, uint32_t first_row)
{
    uint32_t hit;
    RETURN_IF_ERROR(make_room(p, tokens, n, first_row));
    RETURN_IF_ERROR(pkv_seq_open(p->kv, 0, PKV_HEAD, tokens, 0, 0, n, &hit));
    status s = run_chunks(p);
    pkv_seq_close(p->kv, 0);
    pkv_deltas deltas = pkv_take_deltas(p->kv);
    status closed = pkv_mirror_apply(p->mirror, deltas.words, deltas.n_words);
    return status_ok(s) ? closed : s;
}

status model_probe_run(model_probe *p, const uint32_t *tokens, uint32_t n_tokens,
                       uint32_t first_row, error *err)
{
    if (n_tokens == 0 || n_tokens > p->shape.max_tokens || first_row >= n_tokens)
        return error_set(err, STATUS_INVALID, "probe: rows from %u of %u tokens; %u are the most",
                         first_row, n_tokens, p->shape.max_tokens);
    if (p->n == n_tokens && p->first_row == first_row &&
        memcmp(p->tokens, tokens, n_tokens * sizeof *tokens) == 0)
        return STATUS_IS_OK;
    for (uint32_t i = 0; i < n_tokens; i++)
        if (tokens[i] >= p->config->vocab_size)
            return error_set(err, STATUS_INVALID, "probe: token %u is not in the vocabulary",
                             tokens[i]);
    forget_tables(p);
    status s = run_rows(p, tokens, n_tokens, first_row);
    if (status_ok(s)) return s;
    forget_tables(p);
    return error_set(err, s.code, "probe: %s", s.message ? s.message : status_text(s.code));
}

/* ---- reading the last run -------------------------------------------------------------------- */

const float *model_probe_keys(const model_probe *p, uint32_t layer, uint32_t kv_head)
{
    return p->keys + (layer * p->shape.n_kv_heads + kv_head) * head_floats(p, p->n);
}

const float *model_probe_values(const model_probe *p, uint32_t layer, uint32_t kv_head)
{
    return p->values + (layer * p->shape.n_kv_heads + kv_head) * head_floats(p, p->n);
}

uint32_t model_probe_first_seen(const model_probe *p, uint32_t layer, uint32_t row)
{
    uint32_t window = p->config->layers[layer] & LAYER_WINDOW ? p->config->window : 0;
    return window && row + 1 > window ? row + 1 - window : 0;
}

/* Sums in separate lanes, so that the compiler may use vectors. */
static float dot(const float *a, const float *b, uint32_t n)
{
    enum { LANES = 16 };
    float lanes[LANES] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t l = 0; l < LANES; l++) lanes[l] += a[i + l] * b[i + l];
    for (; i < n; i++) sum += a[i] * b[i];
    for (uint32_t l = 0; l < LANES; l++) sum += lanes[l];
    return sum;
}

void model_probe_weights(const model_probe *p, uint32_t layer, uint32_t head, uint32_t row,
                         double *weights)
{
    const probe_shape *s = &p->shape;
    uint32_t dim = s->head_dim, first = model_probe_first_seen(p, layer, row);
    const float *k = model_probe_keys(p, layer, head / (s->n_heads / s->n_kv_heads));
    const float *q = p->queries + (layer * s->n_heads + head) * head_floats(p, p->n - p->first_row);
    q += head_floats(p, row - p->first_row);
    double most = -INFINITY, sum = 0;
    memset(weights, 0, first * sizeof *weights);
    for (uint32_t j = first; j <= row; j++) {
        weights[j] = (double)dot(q, k + (size_t)j * dim, dim) / sqrt((double)dim);
        if (weights[j] > most) most = weights[j];
    }
    for (uint32_t j = first; j <= row; j++) sum += weights[j] = exp(weights[j] - most);
    for (uint32_t j = first; j <= row; j++) weights[j] /= sum;
}
