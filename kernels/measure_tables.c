/* Measures of keys and values alone, and of keys under the queries to come. One thread computes an
 * item. */
#include "base/minmax.h"
#include "kernels/context.h"
#include "kernels/measure.h"
#include "kernels/strips.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- norms and directions -------------------------------------------------------------------- */

typedef struct tables_job {
    const kern_context *kc;
    const kern_kv_shape *shape;
    size_t page_stride;
    const kern_table_item *items;
    size_t thread_bytes;
} tables_job;

/* A table's pages, as a row right after the last slot would read them. */
static kern_pages pages_of(const kern_kv_shape *shape, size_t page_stride, const kern_table *table)
{
    size_t own = table->n_slots / shape->page_tokens;
    return (kern_pages){table->pages,         table->tiles,
                        page_stride,          table->filling,
                        table->first_filling, kern_first_wide(own, table->residual_pages)};
}

/* Reads a block of keys or values of a table as f32. Returns how many slots it has. */
static uint32_t read_block(const kern_context *kc, const kern_kv_shape *shape, size_t page_stride,
                           const kern_table *table, size_t block, bool values, void *wide,
                           float *out)
{
    const kern_kv_shape read_as = kern_kv_wide(shape);
    kern_pages pages = pages_of(shape, page_stride, table);
    kern_block at = kern_block_of(&kc->isa, shape, &pages, block, table->n_slots, wide);
    (values ? kern_block_values : kern_block_keys)(&kc->isa, &read_as, &at, out);
    return at.n_slots;
}

static size_t wide_floats(size_t dim) { return kern_wide_bytes(dim) / sizeof(float); }

/* out [n] = <x, y> for n slots x, each one chain over head_dim. y NULL: <x, x>. */
static void block_dots(const float *x, const float *y, size_t dim, uint32_t n, float *out)
{
    for (uint32_t j = 0; j < n; j += KERN_STRIP, x += dim * KERN_STRIP) {
        float sum[KERN_STRIP] = {0};
        for (size_t d = 0; d < dim; d++)
            for (size_t i = 0; i < KERN_STRIP; i++) {
                float a = x[d * KERN_STRIP + i];
                sum[i] += a * (y ? y[d] : a);
            }
        memcpy(out + j, sum, min_size(KERN_STRIP, n - j) * sizeof *out);
    }
}

static void measure_norms(const tables_job *job, const kern_table_item *it, float *scratch)
{
    bool values = it->kind == KERN_MEASURE_VALUE_NORM;
    float *rows = scratch + wide_floats(job->shape->head_dim);
    for (size_t at = 0; at < it->table.n_slots; at += KERN_BLOCK) {
        uint32_t n = read_block(job->kc, job->shape, job->page_stride, &it->table, at / KERN_BLOCK,
                                values, scratch, rows);
        block_dots(rows, NULL, job->shape->head_dim, n, it->out + at);
        for (uint32_t j = 0; j < n; j++) it->out[at + j] = sqrtf(it->out[at + j]);
    }
}

/* sums [dim] += k / its norm, for n keys of a strip. */
static void add_directions(const float *keys, const float *norms, size_t dim, uint32_t n,
                           double *sums)
{
    double inverse[KERN_STRIP];
    for (uint32_t i = 0; i < n; i++) inverse[i] = norms[i] == 0.0f ? 0.0 : 1.0 / (double)norms[i];
    for (size_t d = 0; d < dim; d++)
        for (uint32_t i = 0; i < n; i++) sums[d] += (double)keys[d * KERN_STRIP + i] * inverse[i];
}

/* Cosines of the keys with their mean direction. A key of norm 0 has no direction: it adds nothing
 * to the mean, and its cosine is 0. */
static void measure_cosines(const tables_job *job, const kern_table_item *it, float *scratch)
{
    size_t dim = job->shape->head_dim, n_slots = it->table.n_slots;
    float *keys = scratch + wide_floats(dim);
    float *mean = keys + dim * KERN_BLOCK; /* [dim] */
    double *sums = (double *)(mean + dim); /* [dim] */
    memset(sums, 0, dim * sizeof *sums);
    measure_norms(job, it, scratch);
    for (size_t at = 0; at < n_slots; at += KERN_BLOCK) {
        uint32_t n = read_block(job->kc, job->shape, job->page_stride, &it->table, at / KERN_BLOCK,
                                false, scratch, keys);
        for (uint32_t j = 0; j < n; j += KERN_STRIP)
            add_directions(keys + j * dim, it->out + at + j, dim,
                           (uint32_t)min_size(KERN_STRIP, n - j), sums);
    }
    double square = 0.0;
    for (size_t d = 0; d < dim; d++) square += sums[d] * sums[d];
    for (size_t d = 0; d < dim; d++)
        mean[d] = square > 0.0 ? (float)(sums[d] / sqrt(square)) : 0.0f;
    for (size_t at = 0; at < n_slots; at += KERN_BLOCK) {
        float dots[KERN_BLOCK];
        uint32_t n = read_block(job->kc, job->shape, job->page_stride, &it->table, at / KERN_BLOCK,
                                false, scratch, keys);
        block_dots(keys, mean, dim, n, dots);
        for (uint32_t j = 0; j < n; j++) {
            float norm = it->out[at + j];
            it->out[at + j] = norm == 0.0f ? 0.0f : dots[j] / norm;
        }
    }
}

static void (*const table_measures[KERN_TABLE_MEASURES])(const tables_job *job,
                                                         const kern_table_item *it,
                                                         float *scratch) = {
    [KERN_MEASURE_KEY_NORM] = measure_norms,
    [KERN_MEASURE_KEY_COSINE] = measure_cosines,
    [KERN_MEASURE_VALUE_NORM] = measure_norms,
};

static void run_tables(void *ctx, size_t from, size_t to, unsigned thread)
{
    const tables_job *job = ctx;
    uint8_t *scratch = (uint8_t *)job->kc->measure.threads.data + thread * job->thread_bytes;
    for (size_t i = from; i < to; i++)
        table_measures[job->items[i].kind](job, &job->items[i], (float *)scratch);
}

status kern_measure_tables(kern_context *kc, const kern_kv_shape *shape, size_t page_stride,
                           const kern_table_item *items, size_t n_items)
{
    tables_job job = {kc, shape, page_stride, items, 0};
    job.thread_bytes = align64(kern_wide_bytes(shape->head_dim) +
                               (size_t)shape->head_dim * (KERN_BLOCK + 3) * sizeof(float));
    if (!kern_reserve(&kc->measure.threads, job.thread_bytes * kc->n_threads))
        return status_make(STATUS_NO_MEMORY, "scratch for measures");
    thread_pool_for(kc->pool, n_items, 1, run_tables, &job);
    return STATUS_IS_OK;
}

/* ---- under queries to come ------------------------------------------------------------------- */

typedef struct expected_job {
    const kern_context *kc;
    const kern_expected_batch *batch;
    size_t max_rows, max_slots;
    size_t thread_bytes;
} expected_job;

typedef struct expected_state {
    float *x;      /* [n_rows][head_dim] a head's queries, then less their mean */
    float *mean;   /* [KERN_ATTN_Q_STRIDE] */
    float *cov;    /* [head_dim][KERN_ATTN_Q_STRIDE] */
    float *keys;   /* a block */
    float *scores; /* [KERN_ATTN_ROWS][KERN_BLOCK] */
    float *logits; /* [n_slots] */
    float *wide;   /* formats with grids: a block as bf16 */
} expected_state;

static size_t state_floats(const kern_kv_shape *shape, size_t rows, size_t slots)
{
    size_t dim = shape->head_dim;
    return rows * dim + (dim + 1) * KERN_ATTN_Q_STRIDE + dim * KERN_BLOCK +
           KERN_ATTN_ROWS * KERN_BLOCK + wide_floats(dim) + slots + KERN_BLOCK;
}

static expected_state state_at(const kern_kv_shape *shape, size_t rows, float *base)
{
    size_t dim = shape->head_dim;
    expected_state s;
    s.x = base;
    s.mean = s.x + rows * dim;
    s.cov = s.mean + KERN_ATTN_Q_STRIDE;
    s.keys = s.cov + dim * KERN_ATTN_Q_STRIDE;
    s.scores = s.keys + dim * KERN_BLOCK;
    s.wide = s.scores + KERN_ATTN_ROWS * KERN_BLOCK;
    s.logits = s.wide + wide_floats(dim);
    return s;
}

/* Mean and covariance of one head's queries, rotated. Rotation is linear: rotating the queries less
 * their mean rotates the covariance from both sides. */
static void fit_queries(const expected_job *job, const kern_expected_item *it, uint32_t head,
                        expected_state *s)
{
    const kern_expected_batch *b = job->batch;
    const kern_isa *isa = &job->kc->isa;
    size_t dim = b->shape.head_dim, n = it->n_rows;
    memset(s->mean, 0, dim * sizeof *s->mean);
    memset(s->cov, 0, dim * KERN_ATTN_Q_STRIDE * sizeof *s->cov);
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) {
        memcpy(s->x + i * dim, it->q + i * b->q_stride + head * dim, dim * sizeof *s->x);
        for (size_t d = 0; d < dim; d++) s->mean[d] += s->x[i * dim + d];
    }
    for (size_t d = 0; d < dim; d++) s->mean[d] /= (float)n;
    for (size_t i = 0; i < n; i++) {
        float *x = s->x + i * dim;
        for (size_t d = 0; d < dim; d++) x[d] -= s->mean[d];
        isa->rope(x, it->mean_rope, 1, dim);
        for (size_t a = 0; a < dim; a++) {
            float *row = s->cov + a * KERN_ATTN_Q_STRIDE;
            for (size_t c = 0; c < dim; c++) row[c] += x[a] * x[c];
        }
    }
    for (size_t a = 0; a < dim; a++)
        for (size_t c = 0; c < dim; c++) s->cov[a * KERN_ATTN_Q_STRIDE + c] /= (float)n;
    isa->rope(s->mean, it->mean_rope, 1, dim);
}

/* logits [slots of the block] = (k . m + k' C k / (2 sqrt d)) / sqrt d. C k is computed as scores,
 * with the rows of C as queries. */
static void block_logits(const expected_job *job, const expected_state *s, uint32_t n,
                         float *logits)
{
    const kern_isa *isa = &job->kc->isa;
    uint32_t dim = job->batch->shape.head_dim, strips = (n + KERN_STRIP - 1) / KERN_STRIP;
    kern_attn_strips keys = kern_block_strips(s->keys, dim);
    float square[KERN_BLOCK] = {0}, root = sqrtf((float)dim);
    for (uint32_t d = 0; d < dim; d += isa->attn_rows) {
        uint32_t rows = (uint32_t)min_size(dim - d, isa->attn_rows);
        isa->attn_scores[KERN_KV_F32](&keys, 0, strips, s->cov + (size_t)d * KERN_ATTN_Q_STRIDE,
                                      rows, dim, s->scores);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t t = 0; t < strips; t++) {
                const float *k = s->keys + ((size_t)t * dim + d + r) * KERN_STRIP;
                const float *ck = s->scores + r * KERN_BLOCK + t * KERN_STRIP;
                for (uint32_t i = 0; i < KERN_STRIP; i++)
                    square[t * KERN_STRIP + i] += k[i] * ck[i];
            }
    }
    isa->attn_scores[KERN_KV_F32](&keys, 0, strips, s->mean, 1, dim, s->scores);
    for (uint32_t j = 0; j < n; j++) logits[j] = (s->scores[j] + square[j] / (2.0f * root)) / root;
}

/* out += softmax(logits [n]) */
static void add_softmax(float *logits, size_t n, float *out)
{
    float max = -INFINITY;
    double sum = 0.0;
    for (size_t j = 0; j < n; j++) max = logits[j] > max ? logits[j] : max;
    for (size_t j = 0; j < n; j++) sum += (double)(logits[j] = expf(logits[j] - max));
    float inverse = (float)(1.0 / sum);
    for (size_t j = 0; j < n; j++) out[j] += logits[j] * inverse;
}

static void run_expected(void *ctx, size_t from, size_t to, unsigned thread)
{
    const expected_job *job = ctx;
    const kern_expected_batch *b = job->batch;
    uint8_t *scratch = (uint8_t *)job->kc->measure.threads.data + thread * job->thread_bytes;
    expected_state s = state_at(&b->shape, job->max_rows, (float *)scratch);
    for (size_t i = from; i < to; i++) {
        const kern_expected_item *it = &b->items[i];
        size_t n_slots = it->table.n_slots, sinks = min_size(it->sinks, n_slots);
        memset(it->out, 0, n_slots * sizeof *it->out);
        for (uint32_t h = 0; h < b->q_heads && sinks < n_slots; h++) {
            fit_queries(job, it, h, &s);
            for (size_t at = 0; at < n_slots; at += KERN_BLOCK) {
                uint32_t n = read_block(job->kc, &b->shape, b->page_stride, &it->table,
                                        at / KERN_BLOCK, false, s.wide, s.keys);
                block_logits(job, &s, n, s.logits + at);
            }
            add_softmax(s.logits + sinks, n_slots - sinks, it->out + sinks);
        }
    }
}

status kern_measure_expected(kern_context *kc, const kern_expected_batch *batch)
{
    expected_job job = {.kc = kc, .batch = batch};
    for (size_t i = 0; i < batch->n_items; i++) {
        job.max_rows = max_size(job.max_rows, batch->items[i].n_rows);
        job.max_slots = max_size(job.max_slots, batch->items[i].table.n_slots);
    }
    job.thread_bytes =
        align64(state_floats(&batch->shape, job.max_rows, job.max_slots) * sizeof(float));
    if (!kern_reserve(&kc->measure.threads, job.thread_bytes * kc->n_threads))
        return status_make(STATUS_NO_MEMORY, "scratch for measures");
    thread_pool_for(kc->pool, batch->n_items, 1, run_expected, &job);
    return STATUS_IS_OK;
}

/* ---- behind the output projection ------------------------------------------------------------ */

enum { WEIGHT_SLOTS = 144 }; /* slots of one product: a row block of matmul.c */

typedef struct norm_job {
    const float *y;
    size_t width;
    bool first;
    float *out;
} norm_job;

/* out = (or +=) the 1-norm of each row: sixteen chains, then their sum. */
static void add_norms(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const norm_job *job = ctx;
    for (size_t r = from; r < to; r++) {
        const float *y = job->y + r * job->width;
        float lanes[KERN_STRIP] = {0}, sum = 0.0f;
        size_t i = 0;
        for (; i + KERN_STRIP <= job->width; i += KERN_STRIP)
            for (size_t l = 0; l < KERN_STRIP; l++) lanes[l] += fabsf(y[i + l]);
        for (; i < job->width; i++) lanes[i % KERN_STRIP] += fabsf(y[i]);
        for (size_t l = 0; l < KERN_STRIP; l++) sum += lanes[l];
        job->out[r] = job->first ? sum : job->out[r] + sum;
    }
}

status kern_measure_value_weight(kern_context *kc, const kern_kv_shape *shape, size_t page_stride,
                                 const kern_table *table, const kern_matrix *o, size_t first_column,
                                 uint32_t q_heads, float *out)
{
    const kern_kv_shape wide = kern_kv_wide(shape);
    const bool has_grids = kern_kv_has_grids(shape->format);
    const kern_pages pages = pages_of(shape, page_stride, table);
    size_t dim = shape->head_dim;
    assert(first_column + q_heads * dim <= o->k);
    if (!kern_reserve(&kc->measure.threads, (WEIGHT_SLOTS * (dim + o->n) + dim) * sizeof(float)))
        return status_make(STATUS_NO_MEMORY, "scratch for measures");
    float *v = kc->measure.threads.data, *y = v + WEIGHT_SLOTS * dim, *k = y + WEIGHT_SLOTS * o->n;
    for (size_t at = 0; at < table->n_slots; at += WEIGHT_SLOTS) {
        size_t n = min_size(WEIGHT_SLOTS, table->n_slots - at);
        for (size_t j = 0; j < n; j++) {
            size_t page = (at + j) / shape->page_tokens;
            const uint8_t *tile = table->tiles + (size_t)table->pages[page] * page_stride;
            const uint8_t *filling = has_grids ? kern_wide_tile(&pages, page) : NULL;
            kern_kv_read(kc, filling ? &wide : shape, filling ? filling : tile,
                         (uint32_t)((at + j) % shape->page_tokens), k, v + j * dim);
        }
        for (uint32_t h = 0; h < q_heads; h++) {
            kern_matmul_columns(kc, o, first_column + h * dim, dim, v, dim, n, y, o->n);
            norm_job job = {y, o->n, h == 0, out + at};
            thread_pool_for(kc->pool, n, 16, add_norms, &job);
        }
    }
    return STATUS_IS_OK;
}
