/* The measures that retention selects by, against the CPU's reference. */
#include "tests/cuda/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 72, ROWS_MOST = 20 };

/* The operands of a measure, on the CPU. */
typedef struct inputs {
    const world *w;
    uint32_t seq;
    float *y, *mean_rope;
    kern_matrix o;
} inputs;

typedef struct kind_row {
    const char *name;
    void (*due)(check *c, const inputs *in, const gpu_measure *m, uint32_t head, int kind,
                float *out);
    int kind; /* of the reference */
    double limit;
} kind_row;

static kern_table table_on_cpu(const world *w, uint32_t head, uint32_t seq)
{
    return (kern_table){.pages = table_of(w, seq, head),
                        .tiles = cpu_tiles(w, seq, head),
                        .n_slots = w->s->lengths[seq]};
}

/* Index of the first measured row's queries of a KV head. */
static size_t first_query(const world *w, const gpu_measure *m, uint32_t head, uint32_t seq)
{
    const shape *s = w->s;
    return ((size_t)(w->seqs[seq].first_row + w->seqs[seq].n_rows - m->one.rows) * w->heads +
            head * s->q_heads) *
           s->dim;
}

static void due_rows(check *c, const inputs *in, const gpu_measure *m, uint32_t head, int kind,
                     float *out)
{
    const world *w = in->w;
    uint32_t seq = in->seq;
    const shape *s = w->s;
    size_t at = first_query(w, m, head, seq), stride = (size_t)w->heads * s->dim;
    kern_rows_item item = {.table = table_on_cpu(w, head, seq),
                           .kind = (kern_row_measure)kind,
                           .n_rows = m->one.rows,
                           .window = m->window,
                           .chunk = m->chunk,
                           .bias = m->add,
                           .theta = m->theta,
                           .q = w->cpu_q + at,
                           .y = in->y + at,
                           .out = out};
    kern_rows_batch batch = {.shape = w->cpu,
                             .page_stride = w->cpu_page,
                             .q_heads = s->q_heads,
                             .scale = m->scale,
                             .q_stride = stride,
                             .y_stride = stride,
                             .items = &item,
                             .n_items = 1};
    if (!status_ok(kern_measure_rows(c->ref, &batch))) abort();
}

static void due_table(check *c, const inputs *in, const gpu_measure *m, uint32_t head, int kind,
                      float *out)
{
    const world *w = in->w;
    uint32_t seq = in->seq;
    (void)m;
    kern_table_item item = {table_on_cpu(w, head, seq), (kern_table_measure)kind, out};
    if (!status_ok(kern_measure_tables(c->ref, &w->cpu, w->cpu_page, &item, 1))) abort();
}

static void due_expected(check *c, const inputs *in, const gpu_measure *m, uint32_t head, int kind,
                         float *out)
{
    const world *w = in->w;
    uint32_t seq = in->seq;
    (void)kind;
    kern_expected_item item = {.table = table_on_cpu(w, head, seq),
                               .sinks = m->sinks,
                               .n_rows = m->one.rows,
                               .q = w->unrotated + first_query(w, m, head, seq),
                               .mean_rope = in->mean_rope,
                               .out = out};
    kern_expected_batch batch = {.shape = w->cpu,
                                 .page_stride = w->cpu_page,
                                 .q_heads = w->s->q_heads,
                                 .q_stride = (size_t)w->heads * w->s->dim,
                                 .items = &item,
                                 .n_items = 1};
    if (!status_ok(kern_measure_expected(c->ref, &batch))) abort();
}

static void due_weight(check *c, const inputs *in, const gpu_measure *m, uint32_t head, int kind,
                       float *out)
{
    const world *w = in->w;
    uint32_t seq = in->seq;
    (void)m, (void)kind;
    kern_table table = table_on_cpu(w, head, seq);
    if (!status_ok(kern_measure_value_weight(c->ref, &w->cpu, w->cpu_page, &table, &in->o,
                                             (size_t)head * w->s->q_heads * w->s->dim,
                                             w->s->q_heads, out)))
        abort();
}

/* Here scores are sums of exact products, in the lse they are the tensor cores'; weights whose type
 * is not that of the queries are rounded. */
static const kind_row kinds[GPU_MEASURE_KINDS] = {
    [GPU_MEASURE_MASS] = {"mass", due_rows, KERN_MEASURE_MASS, 1e-6},
    [GPU_MEASURE_RAW] = {"raw", due_rows, KERN_MEASURE_RAW, 1e-6},
    [GPU_MEASURE_PROJECTION] = {"projection", due_rows, KERN_MEASURE_PROJECTION, 1e-6},
    [GPU_MEASURE_OUTSIDE] = {"outside", due_rows, KERN_MEASURE_OUTSIDE, 1e-6},
    [GPU_MEASURE_POOLED] = {"pooled", due_rows, KERN_MEASURE_POOLED, 1e-6},
    [GPU_MEASURE_EXPECTED] = {"expected", due_expected, 0, 1e-6},
    [GPU_MEASURE_VALUE_WEIGHT] = {"value weight", due_weight, 0, 1e-5},
    [GPU_MEASURE_VALUE_NORM] = {"value norm", due_table, KERN_MEASURE_VALUE_NORM, 1e-6},
    [GPU_MEASURE_KEY_NORM] = {"key norm", due_table, KERN_MEASURE_KEY_NORM, 1e-6},
    [GPU_MEASURE_KEY_COSINE] = {"key cosine", due_table, KERN_MEASURE_KEY_COSINE, 1e-6},
};

static const char *const format_names[GPU_KV_FORMATS] = {"bf16", "f16", "e4m3", "int8"};

/* Floats that start at a multiple of 256 bytes, as the backend has them. */
static size_t own_scratch(const gpu_measure *m, const gpu_measured *s)
{
    return (gpu_measure_scratch(m, s) + 63) / 64 * 64;
}

/* Measures m->one, and copies its n results to the host. */
static void measure(check *c, gpu_measure *m, size_t n, float *got)
{
    m->list = (gpu_measured_list){.scratch = gpu_measure_shared(m)};
    m->one.wave = gpu_measure_wave(m, &m->one);
    gpu_measure_add(m, &m->list, &m->one, own_scratch(m, &m->one));
    m->scratch = check_output(c, m->list.scratch * 4 + 4);
    m->values = check_output(c, n * 4);
    check_ok(c, c->api->measure(c->g, m));
    check_fetch(c, got, m->values, n * 4);
    c->api->release(c->g, m->values);
    c->api->release(c->g, m->scratch);
}

static void check_by_page(check *c, const world *w, gpu_measure m, const float *by_slot)
{
    uint32_t tokens = w->s->page_tokens, n = m.one.longest, pages = (n + tokens - 1) / tokens;
    size_t all = (size_t)w->s->kv_heads * pages;
    float *sums = check_memory(all, 4), *got = check_memory(all, 4);
    m.one.out = GPU_OUT_PAGES;
    m.one.stride = pages;
    measure(c, &m, all, got);
    for (size_t i = 0; i < (size_t)w->s->kv_heads * n; i++)
        sums[i / n * pages + i % n / tokens] += by_slot[i];
    check_row(c, "  by page", sums, got, all, 1e-6);
    free(sums), free(got);
}

/* START discards the old sums; measuring again adds to them, except for the share's own slots. */
static void check_sums(check *c, const world *w, gpu_measure *m, const float *by_slot)
{
    size_t n = (size_t)w->s->kv_heads * m->one.longest;
    size_t n_sums = (size_t)w->n_cells * w->pages.n_tiles * w->s->page_tokens;
    float *due = check_memory(n, 4), *got = check_memory(n, 4), *junk = check_memory(n_sums, 4);
    check_fill(c, junk, n_sums);
    m->pages.sums = check_device(c, junk, n_sums * 4);
    m->one.sum = GPU_SUM_START;
    measure(c, m, n, got);
    check_row(c, "  running sums, from 0", by_slot, got, n, 1e-6);
    m->one.sum = GPU_SUM_ADD;
    measure(c, m, n, got);
    for (size_t i = 0; i < n; i++) {
        bool is_new = i % m->one.longest + m->one.seq.n_rows >= m->one.longest;
        due[i] = is_new ? by_slot[i] : 2.0f * by_slot[i];
    }
    check_row(c, "  running sums, added to", due, got, n, 1e-6);
    c->api->release(c->g, m->pages.sums);
    m->pages.sums = NULL;
    m->one.sum = GPU_SUM_NONE;
    free(due), free(got), free(junk);
}

static void check_kind(check *c, const inputs *in, gpu_measure m)
{
    const world *w = in->w;
    const kind_row *kind = &kinds[m.kind];
    size_t n = (size_t)w->s->kv_heads * m.one.longest;
    float *due = check_memory(n, 4), *got = check_memory(n, 4);
    char name[96];
    measure(c, &m, n, got);
    for (uint32_t head = 0; head < w->s->kv_heads; head++)
        kind->due(c, in, &m, head, kind->kind, due + (size_t)head * m.one.longest);
    snprintf(name, sizeof name, "%s by slot, %s", kind->name, format_names[w->s->format]);
    check_row(c, name, due, got, n, kind->limit);
    if (m.kind == GPU_MEASURE_MASS) check_by_page(c, w, m, due);
    if (m.kind == GPU_MEASURE_MASS || m.kind == GPU_MEASURE_PROJECTION) check_sums(c, w, &m, due);
    free(due), free(got);
}

static gpu_measured measured_of(const world *w, uint32_t seq, gpu_measure_out out)
{
    uint32_t rows = w->s->rows[seq], n = w->s->lengths[seq], tokens = w->s->page_tokens;
    return (gpu_measured){.seq = w->seqs[seq],
                          .longest = n,
                          .rows = rows < ROWS_MOST ? rows : ROWS_MOST,
                          .stride = out == GPU_OUT_PAGES ? (n + tokens - 1) / tokens : n,
                          .step = 1,
                          .out = out,
                          .kept = w->kept_of[seq]};
}

/* The sequences of a call. */
enum { TIMES = 8 };
typedef struct crowd {
    gpu_measured seqs[TIMES * SEQS_MOST + 1];
    uint32_t n;
    size_t n_values;
} crowd;

/* Measures each sequence alone, `out` of them in turn, with results for all. */
static crowd measure_each(check *c, const world *w, gpu_measure *m, const gpu_measure_out out[2],
                          float *due)
{
    crowd all = {.n = w->s->n_seqs};
    for (uint32_t i = 0; i < all.n; i++) {
        m->one = measured_of(w, i, out[i % 2]);
        size_t n = (size_t)w->s->kv_heads * m->one.stride;
        measure(c, m, n, due + all.n_values);
        all.seqs[i] = m->one;
        all.seqs[i].values = all.n_values;
        all.n_values += n;
    }
    return all;
}

/* Makes the list of the crowd, with room for its results. */
static void make_list(check *c, gpu_measure *m, crowd *all)
{
    m->list = (gpu_measured_list){.scratch = gpu_measure_shared(m)};
    for (uint32_t i = 0; i < all->n; i++)
        gpu_measure_add(m, &m->list, &all->seqs[i], own_scratch(m, &all->seqs[i]));
    m->list.seqs = check_device(c, all->seqs, all->n * sizeof *all->seqs);
    m->scratch = check_output(c, m->list.scratch * 4 + 4);
    m->values = check_output(c, all->n_values * 4);
}

static void forget_list(check *c, const gpu_measure *m)
{
    c->api->release(c->g, m->values);
    c->api->release(c->g, m->scratch);
    c->api->release(c->g, (void *)(uintptr_t)m->list.seqs);
}

static size_t count_slots(const world *w)
{
    size_t n = 0;
    for (uint32_t i = 0; i < w->s->n_seqs; i++) n += (size_t)w->s->kv_heads * w->s->lengths[i];
    return n;
}

/* All sequences by one call: each has the bits that it has alone. */
static void check_together(check *c, const world *w, gpu_measure m)
{
    size_t total = count_slots(w);
    float *due = check_memory(total, 4), *got = check_memory(total, 4);
    for (int by_page = 0; by_page <= (m.kind == GPU_MEASURE_MASS); by_page++) {
        if (w->kept && by_page == w->keeps_slots) continue; /* not what is kept */
        const gpu_measure_out out = by_page ? GPU_OUT_PAGES : GPU_OUT_SLOTS, all_out[] = {out, out};
        crowd all = measure_each(c, w, &m, all_out, due);
        make_list(c, &m, &all);
        check_ok(c, c->api->measure(c->g, &m));
        check_fetch(c, got, m.values, all.n_values * 4);
        check_row(c, by_page ? "  together, by page" : "  together", due, got, all.n_values, 0.0);
        forget_list(c, &m);
    }
    free(due), free(got);
}

/* So many sequences by one call that each block takes the turns of several: the same ones TIMES
 * times, of which each fifth is not measured. */
static void check_many(check *c, const world *w, gpu_measure m)
{
    const gpu_measure_out out = w->keeps_slots ? GPU_OUT_SLOTS : GPU_OUT_PAGES, each[] = {out, out};
    float *alone = check_memory(count_slots(w), 4);
    crowd all = measure_each(c, w, &m, each, alone);
    uint32_t n = all.n;
    size_t n_values = all.n_values;
    float *due = check_memory(TIMES * n_values, 4), *got = check_memory(TIMES * n_values, 4);
    for (uint32_t t = 0; t < TIMES; t++)
        for (uint32_t i = 0; i < n; i++) {
            gpu_measured *s = &all.seqs[t * n + i];
            size_t from = all.seqs[i].values, of_seq = (size_t)w->s->kv_heads * all.seqs[i].stride;
            *s = all.seqs[i];
            s->values = t * n_values + from;
            s->step = (t * n + i) % 5 != 4;
            for (size_t j = 0; j < of_seq; j++)
                due[s->values + j] = s->step == 1 ? alone[from + j] : -1.0f;
        }
    all.n = TIMES * n;
    all.n_values = TIMES * n_values;
    make_list(c, &m, &all);
    check_ok(c, c->api->measure(c->g, &m));
    check_fetch(c, got, m.values, all.n_values * 4);
    for (size_t i = 0; i < all.n_values; i++)
        if (isnan(got[i])) got[i] = -1.0f; /* not written */
    check_row(c, "  many", due, got, all.n_values, 0.0);
    forget_list(c, &m);
    free(alone), free(due), free(got);
}

/* Sequences that are measured each in its own way, by one call in the fourth selecting layer: by
 * slot and by page, every layer and every third one, where the results of their measure are the
 * last of several. Nothing is written for one that is measured in other layers, nor for one that is
 * not measured at all. */
static void check_mixture(check *c, const world *w, gpu_measure m)
{
    enum { LAYER = 3, BEFORE = 2 };
    bool pages = m.kind == GPU_MEASURE_MASS && (!w->kept || !w->keeps_slots);
    bool slots = m.kind != GPU_MEASURE_MASS || !w->kept || w->keeps_slots;
    const gpu_measure_out out[] = {slots ? GPU_OUT_SLOTS : GPU_OUT_PAGES,
                                   pages ? GPU_OUT_PAGES : GPU_OUT_SLOTS};
    size_t total = (size_t)(LAYER + BEFORE + 1) * count_slots(w), at = 0;
    float *alone = check_memory(total, 4), *due = check_memory(total, 4),
          *got = check_memory(total, 4);
    crowd all = measure_each(c, w, &m, out, alone);
    all.n_values = 0;
    for (uint32_t i = 0; i < all.n; i++) {
        gpu_measured *s = &all.seqs[i];
        size_t n = (size_t)w->s->kv_heads * s->stride;
        s->values = all.n_values;
        s->step = i == 1 ? LAYER - 1 : i == 0 ? LAYER : 1;
        s->arrays = i % BEFORE;
        uint32_t array = i == 1 ? UINT32_MAX : s->arrays + LAYER / s->step;
        for (uint32_t a = 0; a <= LAYER + BEFORE - 1; a++)
            for (size_t j = 0; j < n; j++) due[all.n_values++] = a == array ? alone[at + j] : -1.0f;
        at += n;
    }
    make_list(c, &m, &all);
    c->api->release(c->g, (void *)(uintptr_t)m.list.seqs);
    all.seqs[all.n] = (gpu_measured){.work = m.list.work};
    m.list.n = all.n + 1;
    m.list.seqs = check_device(c, all.seqs, m.list.n * sizeof *all.seqs);
    m.selecting = LAYER;
    check_ok(c, c->api->measure(c->g, &m));
    check_fetch(c, got, m.values, all.n_values * 4);
    for (size_t i = 0; i < all.n_values; i++)
        if (isnan(got[i])) got[i] = -1.0f; /* not written */
    check_row(c, "  a mixture", due, got, all.n_values, 0.0);
    forget_list(c, &m);
    free(alone), free(due), free(got);
}

/* Running sums of all sequences by one call, of which attention has kept some: measured twice, the
 * sums of all but the last rows' slots are doubled. Of every second sequence they are started anew
 * instead, and of some of these no result is written. */
static void check_sums_together(check *c, const world *w, gpu_measure m)
{
    static const gpu_measure_out out[] = {GPU_OUT_SLOTS, GPU_OUT_SLOTS};
    size_t total = count_slots(w), at = 0;
    size_t n_sums = (size_t)w->n_cells * w->pages.n_tiles * w->s->page_tokens;
    float *due = check_memory(total, 4), *got = check_memory(total, 4);
    crowd all = measure_each(c, w, &m, out, due);
    m.pages.sums = check_output(c, n_sums * 4);
    for (int again = 0; again < 2; again++) {
        for (uint32_t i = 0; i < all.n; i++) {
            all.seqs[i].sum = again && i % 2 == 0 ? GPU_SUM_ADD : GPU_SUM_START;
            all.seqs[i].out = again && i % 4 == 3 ? GPU_OUT_SUMS : GPU_OUT_SLOTS;
        }
        if (again) forget_list(c, &m);
        make_list(c, &m, &all);
        check_ok(c, c->api->measure(c->g, &m));
    }
    check_fetch(c, got, m.values, total * 4);
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        uint32_t length = w->s->lengths[i], old = length - w->seqs[i].n_rows;
        for (size_t j = 0; j < (size_t)w->s->kv_heads * length; j++, at++) {
            if (i % 2 == 0 && j % length < old) due[at] *= 2.0f;
            if (i % 4 == 3 && isnan(got[at])) got[at] = due[at] = 0.0f;
        }
    }
    check_row(c, "  running sums, together", due, got, total, 1e-6);
    c->api->release(c->g, m.pages.sums);
    forget_list(c, &m);
    free(due), free(got);
}

/* Mass by slot of a sequence. */
static gpu_measure measure_of(const world *w, uint32_t seq)
{
    return (gpu_measure){.pages = w->pages,
                         .tables = w->gpu_tables,
                         .layer = w->layer,
                         .lengths = w->d_lengths,
                         .one = measured_of(w, seq, GPU_OUT_SLOTS),
                         .kv_heads = w->s->kv_heads,
                         .q_heads = w->s->q_heads,
                         .kind = GPU_MEASURE_MASS,
                         .scale = 1.0f / sqrtf((float)w->s->dim),
                         .q = w->q,
                         .lse = w->lse,
                         .kept = w->kept};
}

/* ---- what attention has kept ----------------------------------------------------------------- */

/* Adds the softmax of one query's scores of the slots up to `last` to out. keys [slots, dim]. */
static void add_weights(const world *w, const float *keys, const float *q, uint32_t last, double *p,
                        double *out)
{
    uint32_t dim = w->s->dim, window = w->s->window;
    uint32_t first = window && last + 1 > window ? last + 1 - window : 0;
    double most = -INFINITY, sum = 0.0;
    for (uint32_t j = first; j <= last; j++) {
        p[j] = 0.0;
        for (uint32_t d = 0; d < dim; d++) p[j] += (double)q[d] * (double)keys[j * dim + d];
        p[j] /= sqrt((double)dim);
        if (p[j] > most) most = p[j];
    }
    for (uint32_t j = first; j <= last; j++) sum += p[j] = exp(p[j] - most);
    for (uint32_t j = first; j <= last; j++) out[j] += p[j] / sum;
}

/* The mass of a KV head's slots under the last `rows` rows, the layer's window counted in, which
 * the reference does not have. */
static void due_mass(check *c, const world *w, uint32_t seq, uint32_t rows, uint32_t head,
                     float *out)
{
    const shape *s = w->s;
    uint32_t n = s->lengths[seq];
    float *keys = check_memory((size_t)n * s->dim, 4), value[256];
    double *p = check_memory(n, sizeof *p), *sums = check_memory(n, sizeof *sums);
    const uint32_t *pages = table_of(w, seq, head);
    for (uint32_t j = 0; j < n; j++)
        kern_kv_read(c->ref, &w->cpu,
                     cpu_tiles(w, seq, head) + pages[j / s->page_tokens] * w->cpu_page,
                     j % s->page_tokens, keys + (size_t)j * s->dim, value);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t h = 0; h < s->q_heads; h++) {
            size_t row = w->seqs[seq].first_row + w->seqs[seq].n_rows - rows + i;
            const float *q = w->cpu_q + (row * w->heads + head * s->q_heads + h) * s->dim;
            add_weights(w, keys, q, n - rows + i, p, sums);
        }
    for (uint32_t j = 0; j < n; j++) out[j] = (float)sums[j];
    free(keys), free(p), free(sums);
}

static void check_kept_seq(check *c, const world *w, uint32_t seq, uint32_t rows)
{
    gpu_measure m = measure_of(w, seq);
    uint32_t length = w->s->lengths[seq];
    size_t n = (size_t)w->s->kv_heads * length;
    float *due = check_memory(n, 4), *got = check_memory(n, 4);
    char name[96];
    m.one.rows = rows;
    for (uint32_t head = 0; head < w->s->kv_heads; head++)
        due_mass(c, w, seq, rows, head, due + (size_t)head * length);
    if (m.one.kept.slots) {
        snprintf(name, sizeof name, "mass by slot of what is kept, %s%s",
                 format_names[w->s->format], w->s->window ? ", window" : "");
        measure(c, &m, n, got);
        check_row(c, name, due, got, n, 1e-6);
        check_sums(c, w, &m, due);
    } else check_by_page(c, w, m, due);
    free(due), free(got);
}

void check_kept_mass(check *c, world *w)
{
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        if (w->kept_of[i].strips == 0) continue;
        check_kept_seq(c, w, i, w->seqs[i].n_rows);
        if (w->seqs[i].n_rows > 1) check_kept_seq(c, w, i, 1);
    }
    check_together(c, w, measure_of(w, 0));
    check_mixture(c, w, measure_of(w, 0));
    check_many(c, w, measure_of(w, 0));
    if (w->keeps_slots) check_sums_together(c, w, measure_of(w, 0));
}

/* ---- all kinds ------------------------------------------------------------------------------- */

/* The weights' values as a matrix for the reference, which would otherwise quantise values to
 * integers. */
static kern_matrix plain_matrix(check *c, const weights *o)
{
    kern_matrix m = {.type = DTYPE_F32, .n = o->cpu.n, .k = o->cpu.k};
    m.data = alloc_pages(kern_matrix_size(&m));
    kern_matrix_pack(c->ref, &m, 0, m.n, o->values, DTYPE_F32, m.k);
    return m;
}

void check_measures(check *c, world *w, uint32_t seq)
{
    static const check_form forms[] = {{DTYPE_BF16, 0, 0, false},
                                       {DTYPE_F16, 0, 0, false},
                                       {DTYPE_BF16, 4, 32, false},
                                       {DTYPE_F32, 0, 0, false},
                                       {DTYPE_BF16, 8, 64, true}};
    const shape *s = w->s;
    uint32_t of = rng_u32(&c->random) % (sizeof forms / sizeof *forms);
    size_t rows = (size_t)w->total * w->heads * s->dim;
    weights o = check_weights(c, HIDDEN, (size_t)w->heads * s->dim, forms[of], NULL);
    float mean_rope[256];
    for (uint32_t d = 0; d < s->dim; d++) mean_rope[d] = cosf(0.7f * (float)d);
    inputs in = {w, seq, check_memory(rows, 4), mean_rope, plain_matrix(c, &o)};
    check_fetch(c, in.y, w->out, rows * 4);
    gpu_measure m = measure_of(w, seq);
    m.y = w->out;
    m.y_type = GPU_F32;
    m.window = 11;
    m.chunk = 6;
    m.sinks = 3;
    m.qkv = w->gpu_qkv;
    m.bias = s->bias ? w->gpu_bias : NULL;
    m.norm = s->norms ? w->gpu_norms : NULL;
    m.eps = 1e-6f;
    m.mean_ropes = check_device(c, mean_rope, s->dim * 4);
    m.o = o.gpu;
    for (m.kind = GPU_MEASURE_MASS; m.kind < GPU_MEASURE_KINDS; m.kind++) {
        check_kind(c, &in, m);
        if (seq == 0) check_together(c, w, m);
        if (seq == 0) check_mixture(c, w, m);
    }
    m.add = 0.75f;
    m.theta = 2.5f;
    for (m.kind = GPU_MEASURE_PROJECTION; m.kind <= GPU_MEASURE_POOLED; m.kind++) {
        check_kind(c, &in, m);
        if (seq == 0) check_together(c, w, m);
    }
    m.add = m.theta = 0.0f;
    m.kind = GPU_MEASURE_EXPECTED; /* without queries */
    m.one.rows = 0;
    check_kind(c, &in, m);
    c->api->release(c->g, (void *)(uintptr_t)m.mean_ropes);
    alloc_pages_free((void *)(uintptr_t)in.o.data, kern_matrix_size(&in.o));
    check_forget_weights(c, &o, true);
    free(in.y);
}
