#include "model/measures.h"

#include "model/cpu/kv_filling.h"
#include "model/rope.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Expected queries are averaged over the positions len .. len + 511. */
enum { FUTURE_POSITIONS = 512 };

struct measures {
    forward_options o;
    const float *inv_freq; /* borrowed */
    uint32_t heads;        /* query heads of this rank */
    uint32_t kv_heads, q_heads;
    uint32_t qkv_width, attn_width;
    /* Work items of one layer. */
    kern_rows_item *rows; /* [max_seqs, kv_heads] */
    size_t n_rows;
    kern_table_item *tables; /* [2 max_seqs, kv_heads] */
    size_t n_tables;
    kern_expected_item *expected; /* [max_seqs, kv_heads] */
    size_t n_expected;
    /* For sequences with MEASURE_EXPECTED. */
    float *mean_ropes;       /* [max_seqs, head_dim] mean rotations */
    size_t *first_query;     /* [max_seqs] row of `queries` */
    float *queries;          /* [rows, heads, head_dim] unrotated */
    size_t queries_capacity; /* rows */
    bool active;             /* this step has a measure */
    int64_t us;
};

/* The inputs and output of one (sequence, layer, KV head). */
typedef struct place {
    const forward_seq *seq;
    uint32_t index; /* the sequence's index in the step */
    uint32_t layer, head;
    uint32_t row; /* the layer's index among measured layers */
    kern_table table;
    const float *q, *y; /* at the first measured row and the KV head's first query head */
    float *sums;
    float *out; /* NULL when silent */
} place;

/* ---- the kinds ------------------------------------------------------------------------------- */

static status add_rows(measures *m, const place *p, int kind)
{
    const measure_spec *spec = &p->seq->measure;
    m->rows[m->n_rows++] = (kern_rows_item){.table = p->table,
                                            .kind = (kern_row_measure)kind,
                                            .n_rows = spec->rows,
                                            .window = spec->window,
                                            .chunk = spec->chunk,
                                            .bias = spec->bias,
                                            .theta = spec->theta,
                                            .q = p->q,
                                            .y = p->y,
                                            .sums = p->sums,
                                            .out = p->out};
    return STATUS_IS_OK;
}

static status add_table(measures *m, const place *p, int kind)
{
    m->tables[m->n_tables++] =
        (kern_table_item){.table = p->table, .kind = (kern_table_measure)kind, .out = p->out};
    return STATUS_IS_OK;
}

uint32_t measures_first_expected(const measure_spec *spec, uint32_t n_rows, uint32_t position)
{
    uint32_t from = n_rows - spec->rows;
    uint32_t sinks = spec->sinks > position ? spec->sinks - position : 0;
    if (from < sinks) from = sinks;
    return from < n_rows ? from : n_rows;
}

static uint32_t first_expected(const forward_seq *s)
{
    return measures_first_expected(&s->measure, s->n_rows, s->position);
}

static status add_expected(measures *m, const place *p, int kind)
{
    (void)kind;
    uint32_t head_dim = m->o.store->shape.head_dim;
    size_t row = m->first_query[p->index] * m->heads;
    m->expected[m->n_expected++] =
        (kern_expected_item){.table = p->table,
                             .sinks = p->seq->measure.sinks,
                             .n_rows = p->seq->n_rows - first_expected(p->seq),
                             .q = m->queries + (row + p->head * m->q_heads) * head_dim,
                             .mean_rope = m->mean_ropes + (size_t)p->index * head_dim,
                             .out = p->out};
    return STATUS_IS_OK;
}

/* A product that uses all threads by itself, so it is computed at once. */
static status measure_value_weight(measures *m, const place *p, int kind)
{
    (void)kind;
    const kv_store *store = m->o.store;
    if (atomic_load_explicit(m->o.interrupted, memory_order_relaxed))
        return status_make(STATUS_INTERNAL, "interrupted");
    return kern_measure_value_weight(m->o.kernels, &store->shape, store->page_bytes, &p->table,
                                     &m->o.weights->layers[p->layer].o,
                                     (size_t)p->head * m->q_heads * store->shape.head_dim,
                                     m->q_heads, p->out);
}

typedef struct kind_row {
    status (*measure)(measures *m, const place *p, int kind);
    int kind;        /* the kernel's number for the kind */
    bool needs_rows; /* needs rows of queries */
    bool may_sum;    /* may be summed over steps */
    bool may_second; /* may be a second measure */
    bool along;      /* projects on outputs: may have a bias and a theta */
} kind_row;

static const kind_row kinds[MEASURE_KINDS] = {
    [MEASURE_MASS] = {add_rows, KERN_MEASURE_MASS, .needs_rows = true, .may_sum = true},
    [MEASURE_RAW] = {add_rows, KERN_MEASURE_RAW, .needs_rows = true},
    [MEASURE_PROJECTION] = {add_rows, KERN_MEASURE_PROJECTION, .needs_rows = true, .may_sum = true,
                            .along = true},
    [MEASURE_PROJECTION_OUTSIDE] = {add_rows, KERN_MEASURE_OUTSIDE, .needs_rows = true,
                                    .along = true},
    [MEASURE_PROJECTION_POOLED] = {add_rows, KERN_MEASURE_POOLED, .needs_rows = true,
                                   .along = true},
    [MEASURE_EXPECTED] = {add_expected, 0, .needs_rows = true},
    [MEASURE_VALUE_WEIGHT] = {measure_value_weight, 0, .may_second = true},
    [MEASURE_VALUE_NORM] = {add_table, KERN_MEASURE_VALUE_NORM, .may_second = true},
    [MEASURE_KEY_NORM] = {add_table, KERN_MEASURE_KEY_NORM, .may_second = true},
    [MEASURE_KEY_COSINE] = {add_table, KERN_MEASURE_KEY_COSINE, .may_second = true},
};

const char *measures_check(const measure_spec *s)
{
    if (s->kind == MEASURE_NONE) return NULL;
    if ((unsigned)s->kind >= MEASURE_KINDS || (unsigned)s->second >= MEASURE_KINDS)
        return "plan: a measure of an unknown kind";
    const kind_row *kind = &kinds[s->kind];
    if (s->layer_step == 0 || (kind->needs_rows && s->rows == 0))
        return "plan: a measure of no rows or layers";
    if (s->second != MEASURE_NONE && !kinds[s->second].may_second)
        return "plan: a second measure that must be the first";
    if (!s->by_slot &&
        (s->kind != MEASURE_MASS || s->second != MEASURE_NONE || s->sum || s->silent || s->beside))
        return "plan: a measure by page of a kind or with options that go by slot";
    if ((unsigned)s->sum > MEASURE_SUM_ADD || (s->sum && !kind->may_sum))
        return "plan: running sums of a measure that has none";
    if (s->silent && !s->sum) return "plan: a measure whose values are neither returned nor summed";
    if (s->kind == MEASURE_PROJECTION_POOLED && s->chunk == 0)
        return "plan: a measure of chunks without tokens";
    bool plain = s->bias == 0.0f && s->theta == 0.0f;
    if (!plain && (!kind->along || !isfinite(s->bias) || !isfinite(s->theta) || s->theta < 0.0f))
        return "plan: a measure with a bias or a theta that it cannot have";
    return NULL;
}

uint32_t measures_arrays(const measure_spec *s)
{
    return measures_own_arrays(s) + (s->kind != MEASURE_NONE && s->beside);
}

uint32_t measures_own_arrays(const measure_spec *s)
{
    if (s->kind == MEASURE_NONE || s->silent) return 0;
    return s->second == MEASURE_NONE ? 1 : 2;
}

measure_kind measures_kind_of(const measure_spec *s, uint32_t array)
{
    if (array >= measures_own_arrays(s)) return MEASURE_MASS;
    return array == 0 ? s->kind : s->second;
}

bool measures_by_slot(const measure_spec *s) { return s->by_slot && !s->silent; }

/* ---- a step ---------------------------------------------------------------------------------- */

status measures_create(const forward_options *options, const float *inv_freq, measures **out)
{
    measures *m = calloc(1, sizeof *m);
    if (!m) return status_make(STATUS_NO_MEMORY, "measures");
    const layer_weights *first = &options->weights->layers[0];
    m->o = *options;
    m->inv_freq = inv_freq;
    m->kv_heads = options->store->n_heads;
    m->attn_width = (uint32_t)first->o.k;
    m->qkv_width = (uint32_t)first->qkv.n;
    m->heads = m->attn_width / options->config->head_dim;
    m->q_heads = m->heads / m->kv_heads;
    size_t items = (size_t)options->max_seqs * m->kv_heads;
    m->rows = calloc(items, sizeof *m->rows);
    m->tables = calloc(2 * items, sizeof *m->tables);
    m->expected = calloc(items, sizeof *m->expected);
    m->mean_ropes =
        calloc((size_t)options->max_seqs * options->config->head_dim, sizeof *m->mean_ropes);
    m->first_query = calloc(options->max_seqs, sizeof *m->first_query);
    if (!m->rows || !m->tables || !m->expected || !m->mean_ropes || !m->first_query) {
        measures_destroy(m);
        return status_make(STATUS_NO_MEMORY, "measures");
    }
    *out = m;
    return STATUS_IS_OK;
}

void measures_destroy(measures *m)
{
    if (!m) return;
    free(m->rows);
    free(m->tables);
    free(m->expected);
    free(m->mean_ropes);
    free(m->first_query);
    free(m->queries);
    free(m);
}

int64_t measures_us(const measures *m) { return m->us; }

static bool is_measured(const forward_seq *s)
{
    return s->measure.kind != MEASURE_NONE && s->measure.by_slot;
}

void measures_mean_rope(const rope_config *rope, const float *inv_freq, uint32_t head_dim,
                        uint32_t len, float *mean_rope)
{
    float angles[256]; /* the largest head_dim */
    double sums[256] = {0};
    for (uint32_t i = 0; i < FUTURE_POSITIONS; i++) {
        rope_scaled_angles(rope, inv_freq, head_dim, len + i, angles);
        for (uint32_t d = 0; d < head_dim; d++) sums[d] += (double)angles[d];
    }
    for (uint32_t d = 0; d < head_dim; d++) mean_rope[d] = (float)(sums[d] / FUTURE_POSITIONS);
}

status measures_start(measures *m, const forward_seq *seqs, uint32_t n_seqs)
{
    size_t rows = 0;
    m->us = 0;
    m->active = false;
    int64_t start = clock_now_us();
    for (uint32_t s = 0; s < n_seqs; s++) {
        if (!is_measured(&seqs[s])) continue;
        m->active = true;
        if (seqs[s].measure.kind != MEASURE_EXPECTED) continue;
        m->first_query[s] = rows;
        rows += seqs[s].n_rows - first_expected(&seqs[s]);
        uint32_t head_dim = m->o.store->shape.head_dim;
        measures_mean_rope(&m->o.config->rope, m->inv_freq, head_dim,
                           seqs[s].position + seqs[s].n_rows, m->mean_ropes + (size_t)s * head_dim);
    }
    if (rows > m->queries_capacity) {
        float *grown = alloc_resize(NULL, m->queries, rows, m->attn_width * sizeof *grown);
        if (!grown) return status_make(STATUS_NO_MEMORY, "queries to measure");
        m->queries = grown;
        m->queries_capacity = rows;
    }
    if (m->active) m->us += clock_now_us() - start;
    return STATUS_IS_OK;
}

void measures_queries(measures *m, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs,
                      const float *qkv)
{
    for (uint32_t s = 0; m->active && s < n_seqs; s++) {
        const forward_seq *seq = &seqs[s];
        if (!is_measured(seq) || seq->measure.kind != MEASURE_EXPECTED ||
            measure_layer_of(&m->o.store->geometry, layer, seq->measure.layer_step) ==
                MEASURE_NO_LAYER)
            continue;
        uint32_t from = first_expected(seq);
        for (uint32_t i = from; i < seq->n_rows; i++)
            memcpy(m->queries + (m->first_query[s] + i - from) * m->attn_width,
                   qkv + (size_t)(seq->first_row + i) * m->qkv_width, m->attn_width * sizeof *qkv);
    }
}

/* Sets slots [from, to) of a running sum to 0. */
static void clear_sums(const kv_store *store, const place *p, uint32_t from, uint32_t to)
{
    for (uint32_t j = from; j < to; j++) {
        size_t page = p->table.pages[j / store->shape.page_tokens];
        p->sums[page * store->page_sums + j % store->shape.page_tokens] = 0.0f;
    }
}

static status measure_head(measures *m, place *p, const float *qkv, const float *attn)
{
    const forward_seq *s = p->seq;
    const kv_store *store = m->o.store;
    pkv_table_view table =
        pkv_mirror_table(m->o.mirror, s->seq, kv_store_group(store, p->layer, p->head));
    p->table = (kern_table){.pages = table.pages,
                            .tiles = kv_store_tiles(store, p->layer, p->head, table.offset),
                            .n_slots = table.kept_tokens};
    if (store->filling) {
        p->table.filling = kv_filling_tiles(store->filling, p->index, p->head);
        p->table.first_filling = kv_store_first_wide(store, table.kept_tokens - s->n_rows);
        p->table.residual_pages = store->residual_pages;
    }
    size_t row = s->first_row + s->n_rows - s->measure.rows;
    size_t column = (size_t)p->head * m->q_heads * store->shape.head_dim;
    p->q = qkv + row * m->qkv_width + column;
    p->y = attn + row * m->attn_width + column;
    p->sums = NULL;
    if (s->measure.sum != MEASURE_SUM_STEP) {
        bool all = s->measure.sum == MEASURE_SUM_START;
        p->sums = kv_store_sums(store, p->layer, p->head, table.offset);
        clear_sums(store, p, all ? 0 : table.kept_tokens - s->n_rows, table.kept_tokens);
    }
    size_t layers = measure_layers(&store->geometry, s->measure.layer_step);
    size_t at = (size_t)p->row * m->kv_heads + p->head;
    p->out = s->measure.silent ? NULL : s->values + at * s->stride;
    const kind_row *kind = &kinds[s->measure.kind], *second = &kinds[s->measure.second];
    RETURN_IF_ERROR(kind->measure(m, p, kind->kind));
    if (measures_own_arrays(&s->measure) < 2) return STATUS_IS_OK;
    p->out += layers * m->kv_heads * s->stride;
    return second->measure(m, p, second->kind);
}

static status run_items(measures *m)
{
    const kv_store *store = m->o.store;
    if (m->n_rows > 0) {
        kern_rows_batch batch = {.shape = store->shape,
                                 .page_stride = store->page_bytes,
                                 .sums_stride = store->page_sums,
                                 .q_heads = m->q_heads,
                                 .scale = 1.0f / sqrtf((float)store->shape.head_dim),
                                 .q_stride = m->qkv_width,
                                 .y_stride = m->attn_width,
                                 .items = m->rows,
                                 .n_items = m->n_rows};
        RETURN_IF_ERROR(kern_measure_rows(m->o.kernels, &batch));
    }
    if (m->n_tables > 0)
        RETURN_IF_ERROR(kern_measure_tables(m->o.kernels, &store->shape, store->page_bytes,
                                            m->tables, m->n_tables));
    if (m->n_expected == 0) return STATUS_IS_OK;
    kern_expected_batch batch = {.shape = store->shape,
                                 .page_stride = store->page_bytes,
                                 .q_heads = m->q_heads,
                                 .q_stride = m->attn_width,
                                 .items = m->expected,
                                 .n_items = m->n_expected};
    return kern_measure_expected(m->o.kernels, &batch);
}

status measures_layer(measures *m, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs,
                      const float *qkv, const float *attn)
{
    if (!m->active) return STATUS_IS_OK;
    int64_t start = clock_now_us();
    m->n_rows = m->n_tables = m->n_expected = 0;
    for (uint32_t s = 0; s < n_seqs; s++) {
        if (!is_measured(&seqs[s])) continue;
        uint32_t row = measure_layer_of(&m->o.store->geometry, layer, seqs[s].measure.layer_step);
        if (row == MEASURE_NO_LAYER) continue;
        for (uint32_t head = 0; head < m->kv_heads; head++) {
            place p = {.seq = &seqs[s], .index = s, .layer = layer, .row = row, .head = head};
            RETURN_IF_ERROR(measure_head(m, &p, qkv, attn));
        }
    }
    RETURN_IF_ERROR(run_items(m));
    m->us += clock_now_us() - start;
    return STATUS_IS_OK;
}
