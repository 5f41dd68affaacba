#include "model/cpu/forward.h"

#include "base/minmax.h"
#include "model/cpu/embeds.h"
#include "model/cpu/experts.h"
#include "model/cpu/kv_filling.h"
#include "model/cpu/kv_hold.h"
#include "model/cpu/readings.h"
#include "model/measures.h"
#include "model/rope.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Rows of logits that one gather over ranks carries. */
enum { GATHER_ROWS = 32 };

/* Activations, all f32, carved out of one block:
 *
 *   x      [max_rows, hidden]      the residual stream
 *   normed [max_rows, hidden]      its norm: input of qkv and gate_up
 *   delta  [max_rows, hidden]      what o and down add to it
 *   angles [max_rows, head_dim]    cosines and sines of each row's position
 *   local  [max_rows, head_dim]    the same for layers with local RoPE, if there are any
 *   wide   [max_rows, max(qkv + attn, 2 ffn)]
 *                                  either q, k, v and the attention's output, or gate and up
 *   act    [max_rows, ffn]         swiglu's output; ffn is the larger one of feed-forwards and
 *                                  experts
 *
 * and, with more than one rank, GATHER_ROWS rows of this rank's logits and of all ranks'. */
struct forward {
    forward_options o;
    uint32_t heads, kv_heads; /* this rank's */
    uint32_t ffn;             /* this rank's width of dense layers */
    uint32_t qkv_width, attn_width;
    float *x, *normed, *delta, *angles, *local, *wide, *act; /* local may be NULL */
    float *part, *gathered;                                  /* NULL with one rank */
    float *inv_freq;       /* [head_dim / 2], then as many for local RoPE */
    kern_attn_item *items; /* [max_seqs, kv_heads] and more */
    size_t items_capacity;
    measures *measures;
    retrieve *retrieve;
    readings *readings;
    embeds *embeds;
    experts *experts; /* NULL without sparse layers */
    backend_times times;
    float *memory;
    size_t memory_bytes;
};

/* Columns of `act`. */
static size_t act_columns(const tensor_slice *s)
{
    return max_size(max_size(s->n_ffn, s->n_expert_ffn), s->n_shared_ffn);
}

/* Columns of `wide`. */
static size_t wide_columns(const model_config *c, const tensor_slice *s)
{
    size_t attention = (size_t)2 * (s->n_heads + s->n_kv_heads) * c->head_dim;
    return max_size(attention, 2 * act_columns(s));
}

static size_t n_ropes(const model_config *c) { return c->family->local_theta != 0.0 ? 2 : 1; }

size_t forward_bytes(const model_config *c, const tensor_slice *slice, size_t head_rows,
                     uint32_t max_rows, uint32_t ranks)
{
    size_t row = 3 * (size_t)c->hidden + n_ropes(c) * c->head_dim + wide_columns(c, slice) +
                 act_columns(slice);
    size_t part = ranks > 1 ? GATHER_ROWS * head_rows : 0;
    size_t floats = max_rows * row + n_ropes(c) * (c->head_dim / 2) + part * (ranks + 1);
    return floats * sizeof(float);
}

/* Takes the next n floats of a block. */
static float *carve_floats(float **at, size_t n)
{
    float *carved = *at;
    *at += n;
    return carved;
}

status forward_create(const forward_options *options, forward **out)
{
    const model_config *c = options->config;
    forward *f = calloc(1, sizeof *f);
    if (!f) return status_make(STATUS_NO_MEMORY, "forward pass");
    const layer_weights *first = &options->weights->layers[0];
    f->o = *options;
    f->kv_heads = options->store->n_heads;
    f->attn_width = (uint32_t)first->o.k;
    f->heads = f->attn_width / c->head_dim;
    f->qkv_width = (uint32_t)first->qkv.n;
    f->ffn = options->weights->slice.n_ffn;

    size_t rows = options->max_rows, hidden = c->hidden, ropes = n_ropes(c);
    const tensor_slice *slice = &options->weights->slice;
    size_t ffn = act_columns(slice), wide = wide_columns(c, slice);
    size_t ranks = (size_t)comm_size(options->group), head_rows = options->weights->head.n;
    size_t part = ranks > 1 ? GATHER_ROWS * head_rows : 0;
    assert(f->qkv_width + f->attn_width <= wide);
    f->memory_bytes = forward_bytes(c, slice, head_rows, options->max_rows, (uint32_t)ranks);
    f->memory = alloc_pages(f->memory_bytes);
    f->items_capacity = (size_t)options->max_seqs * f->kv_heads;
    f->items = calloc(f->items_capacity, sizeof *f->items);
    if (!f->memory || !f->items) {
        forward_destroy(f);
        return status_make(STATUS_NO_MEMORY, "forward pass");
    }
    float *at = f->memory;
    f->x = carve_floats(&at, rows * hidden);
    f->normed = carve_floats(&at, rows * hidden);
    f->delta = carve_floats(&at, rows * hidden);
    f->angles = carve_floats(&at, rows * c->head_dim);
    if (ropes > 1) f->local = carve_floats(&at, rows * c->head_dim);
    f->wide = carve_floats(&at, rows * wide);
    f->act = carve_floats(&at, rows * ffn);
    f->inv_freq = carve_floats(&at, ropes * (c->head_dim / 2));
    if (part) {
        f->part = carve_floats(&at, part);
        f->gathered = carve_floats(&at, part * ranks);
    }
    assert((size_t)(at - f->memory) * sizeof *at == f->memory_bytes);
    rope_frequencies(&c->rope, c->head_dim, f->inv_freq);
    if (f->local) rope_frequencies(&c->local_rope, c->head_dim, f->inv_freq + c->head_dim / 2);
    status s = measures_create(&f->o, f->inv_freq, &f->measures);
    if (status_ok(s))
        s = retrieve_create(&f->o, f->heads / f->kv_heads, f->qkv_width, &f->retrieve);
    if (status_ok(s))
        s = readings_create(&f->o, f->heads / f->kv_heads, f->qkv_width, f->retrieve, &f->readings);
    if (status_ok(s)) s = embeds_create(&f->o, f->heads, f->kv_heads, &f->embeds);
    if (status_ok(s) && c->n_experts) s = experts_create(&f->o, &f->experts);
    if (status_ok(s)) *out = f;
    else forward_destroy(f);
    return s;
}

void forward_end_notes(forward *f, const uint32_t *notes, uint32_t n)
{
    retrieve_end_notes(f->retrieve, notes, n);
}

void forward_destroy(forward *f)
{
    if (!f) return;
    measures_destroy(f->measures);
    readings_destroy(f->readings);
    retrieve_destroy(f->retrieve);
    embeds_destroy(f->embeds);
    experts_destroy(f->experts);
    alloc_pages_free(f->memory, f->memory_bytes);
    free(f->items);
    free(f);
}

/* The attention's output [max_rows, attn_width], which lies in `wide` behind q, k and v. */
static float *attention_output(const forward *f)
{
    return f->wide + (size_t)f->o.max_rows * f->qkv_width;
}

/* ---- rows in --------------------------------------------------------------------------------- */

typedef struct embed_job {
    const forward *f;
    const uint32_t *tokens;
} embed_job;

static void embed_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const embed_job *job = ctx;
    const forward *f = job->f;
    size_t hidden = f->o.config->hidden;
    const tensor_slice *slice = &f->o.weights->slice;
    float scale = f->o.weights->embed_scale;
    for (size_t row = from; row < to; row++) {
        uint32_t token = job->tokens[row] - slice->first_token;
        float *x = f->x + row * hidden;
        if (token < slice->n_tokens) kern_matrix_row(f->o.kernels, &f->o.weights->embed, token, x);
        else memset(x, 0, hidden * sizeof *x); /* another rank has it: the sum adds it */
        for (size_t i = 0; scale != 1.0f && i < hidden; i++) x[i] *= scale;
    }
}

static status embed_tokens(forward *f, const uint32_t *tokens, uint32_t n_rows)
{
    embed_job job = {f, tokens};
    thread_pool_for(f->o.pool, n_rows, 16, embed_range, &job);
    return comm_all_reduce_sum(f->o.group, f->x, (size_t)n_rows * f->o.config->hidden);
}

static void fill_angles(forward *f, const forward_seq *seqs, uint32_t n_seqs)
{
    const model_config *c = f->o.config;
    uint32_t head_dim = c->head_dim;
    for (uint32_t s = 0; s < n_seqs; s++)
        for (uint32_t i = 0; i < seqs[s].n_rows; i++) {
            uint32_t position = seqs[s].position + i;
            size_t at = (size_t)(seqs[s].first_row + i) * head_dim;
            rope_scaled_angles(&c->rope, f->inv_freq, head_dim, position, f->angles + at);
            if (f->local)
                rope_scaled_angles(&c->local_rope, f->inv_freq + head_dim / 2, head_dim, position,
                                   f->local + at);
        }
}

/* ---- K and V to their pages ------------------------------------------------------------------ */

typedef struct kv_write_job {
    const forward *f;
    const forward_seq *seqs;
    uint32_t n_seqs;
    uint32_t layer;
} kv_write_job;

/* Writes rows [from, to) of the job's sequence `index` for one head. */
static void write_head(const kv_write_job *job, uint32_t index, uint32_t head, uint32_t from,
                       uint32_t to)
{
    const forward *f = job->f;
    const forward_seq *s = &job->seqs[index];
    const kv_store *store = f->o.store;
    const kern_kv_shape shape = kern_kv_wide(&store->shape);
    const uint8_t *const *filling =
        store->filling ? kv_filling_tiles(store->filling, index, head) : NULL;
    uint32_t page_tokens = store->shape.page_tokens, head_dim = store->shape.head_dim;
    pkv_table_view table =
        pkv_mirror_table(f->o.mirror, s->seq, kv_store_group(store, job->layer, head));
    uint8_t *tiles = kv_store_tiles(store, job->layer, head, table.offset);
    uint32_t first_slot = table.kept_tokens - s->n_rows;
    uint32_t first_filling = kv_store_first_wide(store, first_slot);
    for (uint32_t i = from; i < to; i++) {
        uint32_t slot = first_slot + i, page = slot / page_tokens;
        uint8_t *tile = filling ? (uint8_t *)filling[page - first_filling]
                                : tiles + table.pages[page] * store->page_bytes;
        const float *row = f->wide + (size_t)(s->first_row + i) * f->qkv_width;
        const float *k = row + (size_t)(f->heads + head) * head_dim;
        const float *v = k + (size_t)f->kv_heads * head_dim;
        kern_kv_write(f->o.kernels, &shape, tile, slot % page_tokens, k, v);
    }
}

static void kv_write_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const kv_write_job *job = ctx;
    for (uint32_t s = 0; s < job->n_seqs; s++) {
        const forward_seq *seq = &job->seqs[s];
        size_t first = seq->first_row, last = first + seq->n_rows;
        if (last <= from || first >= to) continue;
        uint32_t a = (uint32_t)(max_size(from, first) - first);
        uint32_t b = (uint32_t)((to < last ? to : last) - first);
        for (uint32_t head = 0; head < job->f->kv_heads; head++) write_head(job, s, head, a, b);
    }
}

/* Pages that rows are written to are a part of no representative of the layer any more. */
static void forget_written(const kv_write_job *job)
{
    const kv_store *store = job->f->o.store;
    for (uint32_t i = 0; i < job->n_seqs; i++)
        for (uint32_t head = 0; head < job->f->kv_heads; head++) {
            const forward_seq *s = &job->seqs[i];
            pkv_table_view table =
                pkv_mirror_table(job->f->o.mirror, s->seq, kv_store_group(store, job->layer, head));
            uint64_t *marks = kv_store_marks(store, job->layer, head, table.offset);
            uint32_t first = (table.kept_tokens - s->n_rows) / store->shape.page_tokens;
            for (uint32_t page = first; page < table.n_pages; page++)
                marks[table.pages[page] * store->page_tiles] = 0;
        }
}

static status write_rows(forward *f, uint32_t layer, uint32_t n_rows, const forward_seq *seqs,
                         uint32_t n_seqs)
{
    kv_filling *filling = f->o.store->filling;
    kv_write_job job = {f, seqs, n_seqs, layer};
    if (f->o.store->has_marks) forget_written(&job);
    if (filling) RETURN_IF_ERROR(kv_filling_begin(filling, layer, seqs, n_seqs));
    thread_pool_for(f->o.pool, n_rows, 16, kv_write_range, &job);
    if (filling) kv_filling_store(filling);
    return STATUS_IS_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Where attention writes the mass by page that the sequence asks for, alone or beside another
 * measure; NULL: it does not in this layer. */
static float *mass_of(const forward *f, const forward_seq *s, uint32_t layer, uint32_t head)
{
    const measure_spec *m = &s->measure;
    bool alone = m->kind == MEASURE_MASS && !m->by_slot;
    if (m->kind == MEASURE_NONE || (!alone && !m->beside)) return NULL;
    const pkv_geometry *g = &f->o.store->geometry;
    uint32_t row = measure_layer_of(g, layer, m->layer_step);
    if (row == MEASURE_NO_LAYER) return NULL;
    if (m->beside) row += measures_own_arrays(m) * measure_layers(g, m->layer_step);
    return s->values + ((size_t)row * f->kv_heads + head) * s->stride;
}

/* Rows [from, from + n) of a sequence for one head, which read everything. */
static kern_attn_item item_of(const forward *f, uint32_t layer, const forward_seq *seqs,
                              uint32_t index, uint32_t head, uint32_t from, uint32_t n)
{
    const kv_store *store = f->o.store;
    const forward_seq *seq = &seqs[index];
    const model_config *c = f->o.config;
    pkv_table_view table =
        pkv_mirror_table(f->o.mirror, seq->seq, kv_store_group(store, layer, head));
    size_t column = (size_t)head * (f->heads / f->kv_heads) * store->shape.head_dim;
    uint32_t first_slot = table.kept_tokens - seq->n_rows;
    float *attn = attention_output(f);
    float *mass = from + n == seq->n_rows ? mass_of(f, seq, layer, head) : NULL;
    return (kern_attn_item){
        .pages = table.pages,
        .tiles = kv_store_tiles(store, layer, head, table.offset),
        .filling = store->filling ? kv_filling_tiles(store->filling, index, head) : NULL,
        .first_filling = kv_store_first_wide(store, first_slot),
        .residual_pages = store->residual_pages,
        .first_slot = first_slot + from,
        .n_rows = n,
        .window = c->layers[layer] & LAYER_WINDOW ? c->window : 0,
        .q = f->wide + (size_t)(seq->first_row + from) * f->qkv_width + column,
        .out = attn + (size_t)(seq->first_row + from) * f->attn_width + column,
        .mass = mass,
        .mass_rows = !mass                 ? 0
                     : seq->measure.beside ? 1
                                           : seq->measure.rows,
    };
}

/* Makes the items of one sequence: one for each head, or, where the last rows read few blocks, one
 * for the rows before and one for each of those. nth: the first of those among the step's. */
static kern_attn_item *add_items(forward *f, uint32_t layer, const forward_seq *seqs,
                                 uint32_t index, uint32_t nth, kern_attn_item *out)
{
    const forward_seq *seq = &seqs[index];
    bool few = retrieve_reads_few(f->retrieve, seq, layer);
    uint32_t dense = few ? seq->dense_rows : seq->n_rows;
    for (uint32_t head = 0; head < f->kv_heads; head++) {
        if (dense > 0) *out++ = item_of(f, layer, seqs, index, head, 0, dense);
        for (uint32_t i = dense; i < seq->n_rows; i++) {
            *out = item_of(f, layer, seqs, index, head, i, 1);
            retrieve_narrow(f->retrieve, nth + i - dense, head, out++);
        }
    }
    return out;
}

/* The mass of a row that read few blocks was written for its gathered pages: gives each of them its
 * place, and the others -1. */
static void spread_masses(const forward *f, uint32_t layer, const forward_seq *seq, uint32_t nth)
{
    if (!retrieve_reads_few(f->retrieve, seq, layer) || seq->dense_rows == seq->n_rows) return;
    for (uint32_t head = 0; head < f->kv_heads; head++) {
        float *mass = mass_of(f, seq, layer, head);
        if (!mass) return;
        retrieve_spread(f->retrieve, nth, head, mass);
    }
}

/* Makes room for the items of a layer. */
static status reserve_items(forward *f, uint32_t n_seqs)
{
    size_t n = ((size_t)n_seqs + retrieve_rows(f->retrieve)) * f->kv_heads;
    if (n <= f->items_capacity) return STATUS_IS_OK;
    kern_attn_item *grown = alloc_resize(NULL, f->items, n, sizeof *grown);
    if (!grown) return status_make(STATUS_NO_MEMORY, "attention's items");
    f->items = grown;
    f->items_capacity = n;
    return STATUS_IS_OK;
}

static status attend_layer(forward *f, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs)
{
    const kv_store *store = f->o.store;
    uint32_t head_dim = store->shape.head_dim, nth = 0;
    kern_attn_item *end = f->items;
    int64_t start = clock_now_ns();
    RETURN_IF_ERROR(retrieve_layer(f->retrieve, layer, f->wide));
    RETURN_IF_ERROR(kv_hold_rows(&f->o, f->retrieve, layer, seqs, n_seqs));
    int64_t selected = clock_now_ns();
    RETURN_IF_ERROR(readings_layer(f->readings, layer, seqs, n_seqs, f->wide));
    for (uint32_t s = 0; s < n_seqs; s++) {
        end = add_items(f, layer, seqs, s, nth, end);
        if (seqs[s].retrieval.block_tokens) nth += seqs[s].n_rows - seqs[s].dense_rows;
    }
    kern_attn_batch batch = {
        .shape = store->shape,
        .page_stride = store->page_bytes,
        .q_heads = f->heads / f->kv_heads,
        .scale = forward_scale(head_dim),
        .q_stride = f->qkv_width,
        .out_stride = f->attn_width,
        .items = f->items,
        .n_items = (size_t)(end - f->items),
    };
    RETURN_IF_ERROR(kern_attention(f->o.kernels, &batch));
    nth = 0;
    for (uint32_t s = 0; s < n_seqs; s++) {
        if (!seqs[s].retrieval.block_tokens) continue;
        nth += seqs[s].n_rows - seqs[s].dense_rows;
        spread_masses(f, layer, &seqs[s], nth - 1);
    }
    f->times.selection_ns += selected - start;
    f->times.attention_ns += clock_now_ns() - start;
    return STATUS_IS_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Sums delta over all ranks, then norms it where the model has a norm there. */
static status sum_ranks(forward *f, const float *post_norm, uint32_t n_rows)
{
    const model_config *c = f->o.config;
    RETURN_IF_ERROR(comm_all_reduce_sum(f->o.group, f->delta, (size_t)n_rows * c->hidden));
    if (post_norm)
        kern_rmsnorm(f->o.kernels, f->delta, post_norm, c->rms_eps, n_rows, c->hidden, f->delta);
    return STATUS_IS_OK;
}

/* Reads normed and sets delta to the attention's contribution to the residual stream. */
static status attention_block(forward *f, uint32_t layer, uint32_t n_rows, const forward_seq *seqs,
                              uint32_t n_seqs)
{
    const layer_weights *w = &f->o.weights->layers[layer];
    kern_context *kc = f->o.kernels;
    size_t hidden = f->o.config->hidden, head_dim = f->o.config->head_dim;
    float *qkv = f->wide, *attn = attention_output(f);

    kern_matmul(kc, &w->qkv, w->qkv_bias, f->normed, hidden, n_rows, qkv, f->qkv_width);
    RETURN_IF_ERROR(embeds_layer(f->embeds, layer, seqs, n_seqs, qkv));
    if (w->q_norm) {
        float eps = f->o.config->rms_eps, *k = qkv + f->attn_width;
        kern_rmsnorm_heads(kc, qkv, f->qkv_width, w->q_norm, eps, n_rows, f->heads, head_dim);
        kern_rmsnorm_heads(kc, k, f->qkv_width, w->k_norm, eps, n_rows, f->kv_heads, head_dim);
    }
    measures_queries(f->measures, layer, seqs, n_seqs, qkv);
    const float *angles = f->o.config->layers[layer] & LAYER_LOCAL ? f->local : f->angles;
    kern_rope(kc, qkv, f->qkv_width, angles, n_rows, f->heads + f->kv_heads, head_dim);
    if (f->o.watch) f->o.watch(f->o.watch_ctx, layer, n_rows, qkv);
    RETURN_IF_ERROR(kv_hold_layer(&f->o, f->retrieve, layer, seqs, n_seqs));
    RETURN_IF_ERROR(write_rows(f, layer, n_rows, seqs, n_seqs));
    RETURN_IF_ERROR(attend_layer(f, layer, seqs, n_seqs));
    RETURN_IF_ERROR(measures_layer(f->measures, layer, seqs, n_seqs, qkv, attn));
    if (f->o.store->filling) kv_filling_end(f->o.store->filling, layer);
    kv_hold_end(&f->o, layer);
    kern_matmul(kc, &w->o, NULL, attn, f->attn_width, n_rows, f->delta, hidden);
    return sum_ranks(f, w->attn_post_norm, n_rows);
}

/* Reads normed and sets delta to the feed-forward's contribution. */
static status ffn_block(forward *f, uint32_t layer, uint32_t n_rows)
{
    const layer_weights *w = &f->o.weights->layers[layer];
    kern_context *kc = f->o.kernels;
    size_t hidden = f->o.config->hidden;
    size_t gate_up_width = (size_t)2 * f->ffn;

    if (w->experts) {
        RETURN_IF_ERROR(experts_run(f->experts, w, f->normed, n_rows, f->wide, f->act, f->delta));
        return sum_ranks(f, w->ffn_post_norm, n_rows);
    }
    if (f->o.config->family->gelu) {
        kern_matmul(kc, &w->gate_up, NULL, f->normed, hidden, n_rows, f->wide, gate_up_width);
        kern_geglu(kc, f->wide, n_rows, f->ffn, f->act);
    } else {
        kern_matmul_swiglu(kc, &w->gate_up, f->normed, hidden, n_rows, f->wide, f->act);
    }
    kern_matmul(kc, &w->down, NULL, f->act, f->ffn, n_rows, f->delta, hidden);
    return sum_ranks(f, w->ffn_post_norm, n_rows);
}

/* Checked before each block of each layer, so that an interrupted pass ends within one block. */
static status check_interrupted(const forward *f)
{
    return atomic_load_explicit(f->o.interrupted, memory_order_relaxed)
               ? status_make(STATUS_INTERNAL, "interrupted")
               : STATUS_IS_OK;
}

/* Takes the sequences that leave before `layer` off the pass. Where they embed heads of that layer,
 * it is projected for their rows, which needs only what came before. */
static status drop_leaving(forward *f, uint32_t layer, const forward_seq *seqs, uint32_t *n_rows,
                           uint32_t *n_seqs)
{
    uint32_t stay = *n_seqs;
    while (stay > 0 && layer > 0 && seqs[stay - 1].n_layers == layer) stay--;
    if (stay == *n_seqs) return STATUS_IS_OK;
    uint32_t first = seqs[stay].first_row, rows = *n_rows - first, gone = *n_seqs - stay;
    *n_rows = first;
    *n_seqs = stay;
    if (!embeds_wanted(f->embeds, layer, seqs + stay, gone)) return STATUS_IS_OK;
    const layer_weights *w = &f->o.weights->layers[layer];
    size_t hidden = f->o.config->hidden;
    kern_matmul(f->o.kernels, &w->qkv, w->qkv_bias, f->normed + first * hidden, hidden, rows,
                f->wide + (size_t)first * f->qkv_width, f->qkv_width);
    return embeds_layer(f->embeds, layer, seqs + stay, gone, f->wide);
}

status forward_run(forward *f, const uint32_t *tokens, uint32_t n_rows, const forward_seq *seqs,
                   uint32_t n_seqs)
{
    const model_config *c = f->o.config;
    const layer_weights *layers = f->o.weights->layers;
    kern_context *kc = f->o.kernels;

    RETURN_IF_ERROR(measures_start(f->measures, seqs, n_seqs));
    RETURN_IF_ERROR(retrieve_start(f->retrieve, seqs, n_seqs));
    readings_start(seqs, n_seqs, f->retrieve);
    RETURN_IF_ERROR(reserve_items(f, n_seqs));
    RETURN_IF_ERROR(embed_tokens(f, tokens, n_rows));
    fill_angles(f, seqs, n_seqs);
    kern_rmsnorm(kc, f->x, layers[0].attn_norm, c->rms_eps, n_rows, c->hidden, f->normed);
    for (uint32_t l = 0; l < c->n_layers; l++) {
        RETURN_IF_ERROR(check_interrupted(f));
        RETURN_IF_ERROR(drop_leaving(f, l, seqs, &n_rows, &n_seqs));
        if (n_seqs == 0) return STATUS_IS_OK;
        RETURN_IF_ERROR(attention_block(f, l, n_rows, seqs, n_seqs));
        kern_add_rmsnorm(kc, f->x, f->delta, layers[l].ffn_norm, c->rms_eps, n_rows, c->hidden,
                         f->normed);
        RETURN_IF_ERROR(check_interrupted(f));
        RETURN_IF_ERROR(ffn_block(f, l, n_rows));
        /* Behind the last layer comes the model's final norm, which the head reads. */
        const float *next = l + 1 < c->n_layers ? layers[l + 1].attn_norm : f->o.weights->norm;
        kern_add_rmsnorm(kc, f->x, f->delta, next, c->rms_eps, n_rows, c->hidden, f->normed);
    }
    return STATUS_IS_OK;
}

backend_times forward_times(const forward *f) { return f->times; }

int64_t forward_measure_us(const forward *f) { return measures_us(f->measures); }

/* Gathers all ranks' logits [n, slice] into rows [n, vocab_size]. Where the ranks do not divide the
 * vocabulary, the tail is left out. */
static status gather_logits(forward *f, uint32_t n, float *logits)
{
    size_t slice = f->o.weights->head.n, vocab = f->o.config->vocab_size;
    RETURN_IF_ERROR(comm_all_gather(f->o.group, f->part, n * slice, f->gathered));
    for (uint32_t i = 0; i < n; i++)
        for (size_t at = 0; at < vocab; at += slice) {
            size_t some = vocab - at < slice ? vocab - at : slice;
            const float *from = f->gathered + (at / slice * n + i) * slice;
            memcpy(logits + i * vocab + at, from, some * sizeof *logits);
        }
    return STATUS_IS_OK;
}

const float *forward_states(const forward *f, uint32_t row)
{
    return f->normed + (size_t)row * f->o.config->hidden;
}

/* This rank's logits of at most max_rows rows. */
static void multiply_head(forward *f, const uint32_t *rows, uint32_t n, float *logits)
{
    const kern_matrix *head = &f->o.weights->head;
    size_t hidden = f->o.config->hidden;
    for (uint32_t i = 0; i < n; i++) /* delta is free now: it takes the head's input */
        memcpy(f->delta + i * hidden, f->normed + rows[i] * hidden, hidden * sizeof(float));
    kern_matmul(f->o.kernels, head, NULL, f->delta, hidden, n, logits, head->n);
}

status forward_own_logits(forward *f, const uint32_t *rows, uint32_t n, float *logits)
{
    for (uint32_t done = 0, some; done < n; done += some) {
        RETURN_IF_ERROR(check_interrupted(f));
        some = n - done < f->o.max_rows ? n - done : f->o.max_rows;
        multiply_head(f, rows + done, some, logits + done * f->o.weights->head.n);
    }
    return STATUS_IS_OK;
}

status forward_logits(forward *f, const uint32_t *rows, uint32_t n, float *logits)
{
    if (!f->part) return forward_own_logits(f, rows, n, logits);
    for (uint32_t done = 0, some; done < n; done += some) {
        RETURN_IF_ERROR(check_interrupted(f));
        some = n - done < GATHER_ROWS ? n - done : GATHER_ROWS;
        multiply_head(f, rows + done, some, f->part);
        RETURN_IF_ERROR(gather_logits(f, some, logits + done * f->o.config->vocab_size));
    }
    return STATUS_IS_OK;
}
