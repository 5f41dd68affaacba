/* The forward pass on a GPU: the steps of model/cpu/forward.c as kernels on one stream. */
#include "model/cuda/experts.h"
#include "model/cuda/far.h"

#include "model/rope.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Buffers on the device. Elements have the type of the next product's operands; each fits f32. */
struct cuda_forward {
    cuda_forward_options o;
    uint32_t heads, qkv_width, attn_width, ffn;
    float *x, *delta, *qkv, *angles, *local, *lse, *logits, *partial, *cut_partial;
    float *inv_freq, *local_inv_freq; /* local ones are NULL without local RoPE */
    void *normed, *q, *attn, *wide, *act, *picked, *scratch;
    uint32_t prefill_rows, at_once; /* of a prefill tile; blocks of such tiles that run at once */
    uint32_t max_cut;
    cuda_experts *experts; /* NULL without sparse layers */
};

/* Every buffer, for creation and destruction. */
typedef struct buffer {
    void *at; /* address of the pointer */
    size_t bytes;
} buffer;

enum { BUFFERS = 18 };

/* Bytes of scratch that the largest product of a step needs. */
static size_t largest_scratch(const cuda_forward *f)
{
    const cuda_weights *w = f->o.weights;
    size_t most = gpu_product_scratch(&w->head, f->o.head_rows);
    for (uint32_t l = 0; l < f->o.config->n_layers; l++) {
        const cuda_layer *of = &w->layers[l];
        const gpu_matrix *all[] = {&of->qkv,  &of->o,      &of->gate_up,
                                   &of->down, &of->router, &of->shared_switch};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            size_t bytes = all[i]->n ? gpu_product_scratch(all[i], f->o.max_rows) : 0;
            if (bytes > most) most = bytes;
        }
    }
    return most;
}

static size_t list_buffers(cuda_forward *f, buffer out[BUFFERS])
{
    const model_config *c = f->o.config;
    size_t rows = gpu_product_rows(f->o.max_rows), f32 = sizeof(float), hidden = c->hidden,
           dim = c->head_dim;
    bool local = c->family->local_theta != 0.0;
    size_t tiles = cuda_forward_tiles(f, f->o.max_seqs);
    size_t partial = gpu_partial_floats(tiles, GPU_DECODE_ROWS, c->n_kv_heads, dim);
    size_t cut = gpu_partial_floats(f->max_cut, f->prefill_rows, c->n_kv_heads, dim);
    const buffer all[] = {
        {&f->x, rows * hidden * f32},
        {&f->delta, rows * hidden * f32},
        {&f->normed, rows * hidden * f32},
        {&f->qkv, rows * f->qkv_width * f32},
        {&f->q, rows * f->attn_width * 2},
        {&f->attn, rows * f->attn_width * f32},
        {&f->wide, rows * 2 * f->ffn * f32},
        {&f->act, rows * f->ffn * f32},
        {&f->angles, rows * dim * f32},
        {&f->local, local ? rows * dim * f32 : 0},
        {&f->inv_freq, dim / 2 * f32},
        {&f->local_inv_freq, local ? dim / 2 * f32 : 0},
        {&f->lse, rows * f->heads * f32},
        {&f->partial, partial * f32},
        {&f->cut_partial, cut * f32},
        {&f->logits, f->o.head_rows * f->o.weights->head.n * f32},
        {&f->picked, f->o.head_rows * hidden * f32},
        {&f->scratch, largest_scratch(f)},
    };
    _Static_assert(sizeof all / sizeof *all == BUFFERS, "a row for each");
    for (size_t i = 0; i < BUFFERS; i++) out[i] = all[i];
    return BUFFERS;
}

static status send_frequencies(cuda_forward *f, const rope_config *rope, float *device)
{
    float inv_freq[MODEL_HEAD_DIM_MAX / 2];
    cuda_device *d = f->o.device;
    rope_frequencies(rope, f->o.config->head_dim, inv_freq);
    RETURN_IF_GPU_ERROR(
        d->api->copy_in(d->g, device, inv_freq, f->o.config->head_dim / 2 * sizeof *inv_freq));
    return cuda_status(d->api->wait(d->g));
}

static status make_buffers(cuda_forward *f)
{
    buffer list[BUFFERS];
    size_t n = list_buffers(f, list);
    for (size_t i = 0; i < n; i++)
        if (list[i].bytes) RETURN_IF_ERROR(cuda_alloc(f->o.device, list[i].bytes, list[i].at));
    RETURN_IF_ERROR(send_frequencies(f, &f->o.config->rope, f->inv_freq));
    if (!f->local) return STATUS_IS_OK;
    return send_frequencies(f, &f->o.config->local_rope, f->local_inv_freq);
}

status cuda_forward_create(const cuda_forward_options *options, cuda_forward **out)
{
    const model_config *c = options->config;
    cuda_forward *f = calloc(1, sizeof *f);
    if (!f) return status_make(STATUS_NO_MEMORY, "forward pass");
    f->o = *options;
    f->heads = c->n_heads;
    f->attn_width = c->n_heads * c->head_dim;
    f->qkv_width = (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    for (uint32_t l = 0; l < c->n_layers; l++)
        if (options->weights->layers[l].down.k > f->ffn)
            f->ffn = (uint32_t)options->weights->layers[l].down.k;
    const gpu_facts *facts = &options->device->facts;
    f->prefill_rows = gpu_prefill_rows(facts->compute, c->head_dim);
    f->at_once = gpu_blocks_at_once(facts->n_sms, f->prefill_rows);
    f->max_cut = gpu_most_cut(c->n_kv_heads, f->at_once);
    status s = make_buffers(f);
    if (status_ok(s))
        s = cuda_experts_create(options->device, c, options->weights, options->max_rows,
                                &f->experts);
    if (status_ok(s)) *out = f;
    else cuda_forward_destroy(f);
    return s;
}

void cuda_forward_destroy(cuda_forward *f)
{
    if (!f) return;
    cuda_experts_destroy(f->experts);
    buffer list[BUFFERS];
    size_t n = list_buffers(f, list);
    for (size_t i = 0; i < n; i++) {
        void *device = *(void **)list[i].at;
        if (device) f->o.device->api->release(f->o.device->g, device);
    }
    free(f);
}

/* ---- the library ----------------------------------------------------------------------------- */

/* A product of a step: rows of x by w. */
typedef struct producing {
    const gpu_matrix *w;
    const void *x;
    void *y;
    gpu_type y_type;
    uint32_t rows;
} producing;

/* The most shapes of products that are settled. Layers are alike, or of a few kinds; products of
 * further shapes take the library's first choice. */
enum { SHAPES = 16 };

static bool is_alike(const producing *a, const producing *b)
{
    return a->w->n == b->w->n && a->w->k == b->w->k && a->w->type == b->w->type &&
           a->w->bits == b->w->bits && a->w->group == b->w->group &&
           a->w->is_float == b->w->is_float && a->y_type == b->y_type && a->rows == b->rows;
}

/* Settles a product, unless one of the n before it is alike. */
static status settle(const cuda_forward *f, const producing *p, producing *before, size_t *n)
{
    const cuda_device *d = f->o.device;
    for (size_t i = 0; i < *n; i++)
        if (is_alike(p, &before[i])) return STATUS_IS_OK;
    if (p->w->n == 0 || *n == SHAPES) return STATUS_IS_OK;
    before[(*n)++] = *p;
    return cuda_status(d->api->settle(d->g, p->w, p->x, p->rows, p->y, p->y_type, f->scratch));
}

status cuda_forward_settle(const cuda_forward *f)
{
    const cuda_weights *w = f->o.weights;
    const producing head = {&w->head, f->picked, f->logits, GPU_F32, f->o.head_rows};
    producing before[SHAPES];
    size_t n = 0;
    RETURN_IF_ERROR(settle(f, &head, before, &n));
    for (uint32_t l = 0; l < f->o.config->n_layers; l++) {
        const cuda_layer *of = &w->layers[l];
        const producing all[] = {
            {&of->qkv, f->normed, f->qkv, GPU_F32, f->o.max_rows},
            {&of->o, f->attn, f->delta, GPU_F32, f->o.max_rows},
            {&of->gate_up, f->normed, f->wide, of->down.type, f->o.max_rows},
            {&of->down, f->act, f->delta, GPU_F32, f->o.max_rows},
        };
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            RETURN_IF_ERROR(settle(f, &all[i], before, &n));
    }
    return STATUS_IS_OK;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

uint32_t cuda_forward_tiles(const cuda_forward *f, uint32_t n_seqs)
{
    return gpu_most_tiles(n_seqs, f->o.config->n_kv_heads, f->o.device->facts.n_sms);
}

uint32_t cuda_forward_part(const cuda_forward *f, uint64_t slots, uint32_t longest)
{
    return gpu_part_slots(slots, longest, f->o.config->n_kv_heads, f->o.device->facts.n_sms);
}

uint32_t cuda_forward_most_cut(const cuda_forward *f) { return f->max_cut; }

uint32_t cuda_forward_cut(const cuda_forward *f, uint64_t slots, uint32_t longest)
{
    return gpu_cut_slots(slots, longest, f->o.config->n_kv_heads, f->at_once);
}

/* ---- layers ---------------------------------------------------------------------------------- */

static gpu_layer place_of(const cuda_forward *f, uint32_t layer)
{
    const pkv_geometry *g = &f->o.geometry;
    const model_config *c = f->o.config;
    uint32_t heads = c->n_kv_heads < g->heads_per_group ? c->n_kv_heads : g->heads_per_group;
    return (gpu_layer){
        .layer_group = layer / g->layers_per_group,
        .first_head_group = f->o.first_kv_head / g->heads_per_group,
        .first_tile = layer % g->layers_per_group * heads,
        .heads_per_group = heads, /* this rank's */
        .window = c->layers[layer] & LAYER_WINDOW ? c->window : 0,
    };
}

static cuda_layer_kv kv_of(const cuda_forward *f, const cuda_batch *b, uint32_t layer)
{
    return (cuda_layer_kv){*f->o.pages, b->tables, place_of(f, layer), b->lengths};
}

static gpu_heads heads_of(const cuda_forward *f, const cuda_batch *b, const cuda_layer_kv *kv,
                          uint32_t layer)
{
    const model_config *c = f->o.config;
    const cuda_layer *w = &f->o.weights->layers[layer];
    return (gpu_heads){
        .pages = kv->pages,
        .tables = kv->tables,
        .layer = kv->layer,
        .seqs = b->seqs,
        .lengths = kv->lengths,
        .row_seqs = b->row_seqs,
        .n_rows = b->n_rows,
        .kv_heads = c->n_kv_heads,
        .q_heads = c->n_heads / c->n_kv_heads,
        .qkv = f->qkv,
        .bias = w->qkv_bias,
        .q_norm = w->q_norm,
        .k_norm = w->k_norm,
        .eps = c->rms_eps,
        .angles = c->layers[layer] & LAYER_LOCAL ? f->local : f->angles,
        .q = f->q,
    };
}

static gpu_attention attention_of(const cuda_forward *f, const cuda_batch *b,
                                  const cuda_layer_kv *kv, uint32_t layer)
{
    const model_config *c = f->o.config;
    return (gpu_attention){
        .pages = kv->pages,
        .tables = kv->tables,
        .layer = kv->layer,
        .seqs = b->seqs,
        .lengths = kv->lengths,
        .decode = b->decode,
        .prefill = b->prefill,
        .n_decode = b->n_decode,
        .n_prefill = b->n_prefill,
        .prefill_rows = b->prefill_rows,
        .n_cut = b->n_cut,
        .whole = b->whole,
        .kv_heads = c->n_kv_heads,
        .q_heads = c->n_heads / c->n_kv_heads,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .q = f->q,
        .out = f->attn,
        .out_type = f->o.weights->layers[layer].o.type,
        .lse = b->wants_lse ? f->lse : NULL,
        .partial = f->partial,
        .cut_partial = f->cut_partial,
    };
}

/* Fills in what all measures of the layer share; the backend fills in the rest. */
static status measure_layer(const cuda_forward *f, const cuda_batch *b, const gpu_attention *a,
                            uint32_t layer)
{
    const cuda_layer *w = &f->o.weights->layers[layer];
    if (!b->measure) return STATUS_IS_OK;
    gpu_measure m = {.pages = a->pages,
                     .tables = a->tables,
                     .layer = a->layer,
                     .lengths = a->lengths,
                     .kv_heads = a->kv_heads,
                     .q_heads = a->q_heads,
                     .scale = a->scale,
                     .q = a->q,
                     .lse = a->lse,
                     .kept = a->kept,
                     .y = a->out,
                     .y_type = a->out_type,
                     .qkv = f->qkv,
                     .bias = w->qkv_bias,
                     .norm = w->q_norm,
                     .eps = f->o.config->rms_eps,
                     .o = w->o};
    return b->measure(b->ctx, layer, &m);
}

static status attention_block(cuda_forward *f, const cuda_batch *b, uint32_t layer)
{
    const gpu_api *api = f->o.device->api;
    gpu *g = f->o.device->g;
    const cuda_layer *w = &f->o.weights->layers[layer];
    cuda_layer_kv kv = kv_of(f, b, layer);
    RETURN_IF_GPU_ERROR(
        api->product(g, &w->qkv, f->normed, b->n_rows, f->qkv, GPU_F32, f->scratch));
    if (b->window) RETURN_IF_ERROR(cuda_window_begin(b->window, layer, &kv));
    gpu_heads heads = heads_of(f, b, &kv, layer);
    gpu_attention attention = attention_of(f, b, &kv, layer);
    if (b->keep) b->keep(b->ctx, layer, &attention);
    bool has_far = b->far && cuda_far_has(b->far, layer);
    if (has_far) attention.lse = f->lse;
    RETURN_IF_GPU_ERROR(api->heads(g, &heads));
    if (has_far) RETURN_IF_ERROR(cuda_far_begin(b->far, f->q));
    RETURN_IF_ERROR(b->attend ? b->attend(b->ctx, layer, &heads, &attention)
                              : cuda_status(api->attention(g, &attention)));
    if (has_far) RETURN_IF_ERROR(cuda_far_add(b->far, layer, &attention));
    RETURN_IF_ERROR(measure_layer(f, b, &attention, layer));
    if (b->window) RETURN_IF_ERROR(cuda_window_end(b->window, layer));
    return cuda_status(api->product(g, &w->o, f->attn, b->n_rows, f->delta, GPU_F32, f->scratch));
}

static status run_experts(cuda_forward *f, const cuda_batch *b, const cuda_layer *w)
{
    cuda_expert_rows rows = {.n = b->n_rows,
                             .x = f->x,
                             .normed = f->normed,
                             .type = w->experts_up.type,
                             .wide = f->wide,
                             .act = f->act,
                             .scratch = f->scratch,
                             .out = f->delta};
    return cuda_experts_run(f->experts, w, &rows);
}

static status run_dense(cuda_forward *f, const cuda_batch *b, const cuda_layer *w)
{
    const gpu_api *api = f->o.device->api;
    gpu *g = f->o.device->g;
    /* gate_up's product is either of its own type or f32. */
    gpu_type type = w->down.type == w->gate_up.type ? w->down.type : GPU_F32;
    if (type != w->down.type)
        return status_make(STATUS_UNSUPPORTED, "cuda: gate_up and down of different types");
    RETURN_IF_GPU_ERROR(
        api->product(g, &w->gate_up, f->normed, b->n_rows, f->wide, type, f->scratch));
    RETURN_IF_GPU_ERROR(
        api->gate(g, f->wide, b->n_rows, w->down.k, f->o.config->family->gelu, f->act, type));
    return cuda_status(api->product(g, &w->down, f->act, b->n_rows, f->delta, GPU_F32, f->scratch));
}

static status ffn_block(cuda_forward *f, const cuda_batch *b, uint32_t layer)
{
    const cuda_layer *w = &f->o.weights->layers[layer];
    return w->experts_up.data ? run_experts(f, b, w) : run_dense(f, b, w);
}

/* Makes all ranks' sum of `delta` part of x, and x's norm the operands of `next`. delta is x itself
 * where there is nothing to add to. post: NULL, or a norm of the sum before it is added. */
static status sum_and_norm(cuda_forward *f, const cuda_batch *b, float *delta, const float *post,
                           const float *weight, const gpu_matrix *next)
{
    const model_config *c = f->o.config;
    cuda_device *d = f->o.device;
    bool adds = delta != f->x;
    if (cuda_peers_take(d, b->n_rows, c->hidden, next->type))
        return cuda_peers_sum(d, (gpu_sums){.x = f->x,
                                            .delta = delta,
                                            .adds = adds,
                                            .post = post,
                                            .weight = weight,
                                            .eps = c->rms_eps,
                                            .m = b->n_rows,
                                            .d = c->hidden,
                                            .out = f->normed,
                                            .type = next->type});
    RETURN_IF_ERROR(cuda_sum(d, delta, (size_t)b->n_rows * c->hidden));
    if (post)
        RETURN_IF_GPU_ERROR(d->api->norm(d->g, delta, NULL, post, c->rms_eps, b->n_rows, c->hidden,
                                         delta, GPU_F32));
    return cuda_status(d->api->norm(d->g, f->x, adds ? delta : NULL, weight, c->rms_eps, b->n_rows,
                                    c->hidden, f->normed, next->type));
}

static status start_step(cuda_forward *f, const cuda_batch *b)
{
    const gpu_api *api = f->o.device->api;
    gpu *g = f->o.device->g;
    const model_config *c = f->o.config;
    const cuda_weights *w = f->o.weights;
    gpu_tokens tokens = {b->tokens, b->draws, f->o.drawn, f->o.first_token};
    RETURN_IF_GPU_ERROR(api->embed(g, &w->embed, &tokens, b->n_rows, w->embed_scale, f->x));
    RETURN_IF_GPU_ERROR(api->angles(g, f->inv_freq, b->positions, b->n_rows, c->head_dim,
                                    (float)c->rope.attention_factor, f->angles));
    if (f->local)
        RETURN_IF_GPU_ERROR(api->angles(g, f->local_inv_freq, b->positions, b->n_rows, c->head_dim,
                                        (float)c->local_rope.attention_factor, f->local));
    return sum_and_norm(f, b, f->x, NULL, w->layers[0].attn_norm, &w->layers[0].qkv);
}

static const gpu_matrix *ffn_input(const cuda_layer *w)
{
    return w->experts_up.data ? &w->experts_up : &w->gate_up;
}

status cuda_forward_run(cuda_forward *f, const cuda_batch *b, const _Atomic bool *interrupted)
{
    const cuda_weights *w = f->o.weights;
    uint32_t n = f->o.config->n_layers;
    RETURN_IF_ERROR(start_step(f, b));
    for (uint32_t l = 0; l < n; l++) {
        bool last = l + 1 == n;
        if (atomic_load_explicit(interrupted, memory_order_relaxed))
            return status_make(STATUS_INTERNAL, "interrupted");
        const cuda_layer *layer = &w->layers[l];
        RETURN_IF_ERROR(attention_block(f, b, l));
        RETURN_IF_ERROR(
            sum_and_norm(f, b, f->delta, layer->attn_post_norm, layer->ffn_norm, ffn_input(layer)));
        RETURN_IF_ERROR(ffn_block(f, b, l));
        RETURN_IF_ERROR(sum_and_norm(f, b, f->delta, layer->ffn_post_norm,
                                     last ? w->norm : layer[1].attn_norm,
                                     last ? &w->head : &layer[1].qkv));
    }
    return b->draw ? b->draw(b->ctx, &b->drawing) : STATUS_IS_OK;
}

const void *cuda_forward_states(const cuda_forward *f, uint32_t row)
{
    size_t element = gpu_type_bytes(f->o.weights->head.type);
    return (const uint8_t *)f->normed + row * f->o.config->hidden * element;
}

static status multiply_head(cuda_forward *f, const void *states, uint32_t n, float **logits)
{
    const cuda_device *d = f->o.device;
    *logits = f->logits;
    return cuda_status(
        d->api->product(d->g, &f->o.weights->head, states, n, f->logits, GPU_F32, f->scratch));
}

status cuda_forward_logits(cuda_forward *f, const uint32_t *rows, uint32_t n, float **logits)
{
    const cuda_device *d = f->o.device;
    size_t bytes = f->o.config->hidden * gpu_type_bytes(f->o.weights->head.type);
    RETURN_IF_GPU_ERROR(d->api->gather(d->g, f->normed, rows, n, bytes, f->picked));
    return multiply_head(f, f->picked, n, logits);
}

status cuda_forward_logits_from(cuda_forward *f, uint32_t row, uint32_t n, float **logits)
{
    return multiply_head(f, cuda_forward_states(f, row), n, logits);
}
