#include "model/cuda/experts.h"

#include <stdlib.h>

enum { BUFFERS = 8 };

/* Buffers of the longest step, on the device. */
struct cuda_experts {
    cuda_device *d;
    const model_config *config;
    float *logits, *switches, *part;
    void *router_rows, *switch_rows; /* normed rows for a router, a switch of another type */
    void *wide, *act;
    uint32_t *words;
};

typedef struct buffer {
    void *at; /* address of the pointer */
    size_t bytes;
} buffer;

/* ffn is this rank's width of one expert. */
static void list_buffers(cuda_experts *e, size_t rows, size_t ffn, buffer out[BUFFERS])
{
    const model_config *c = e->config;
    size_t entries = rows * c->experts_per_token, f32 = sizeof(float), hidden = c->hidden;
    size_t words = gpu_expert_words(rows, c->experts_per_token, c->n_experts);
    const buffer all[] = {
        {&e->logits, rows * c->n_experts * f32}, {&e->switches, rows * f32},
        {&e->part, entries * hidden * f32},      {&e->router_rows, rows * hidden * f32},
        {&e->switch_rows, rows * hidden * f32},  {&e->wide, entries * 2 * ffn * f32},
        {&e->act, entries * ffn * f32},          {&e->words, words * sizeof *e->words},
    };
    _Static_assert(sizeof all / sizeof *all == BUFFERS, "a row for each");
    for (size_t i = 0; i < BUFFERS; i++) out[i] = all[i];
}

status cuda_experts_create(cuda_device *d, const model_config *c, const cuda_weights *w,
                           uint32_t max_rows, cuda_experts **out)
{
    size_t ffn = 0;
    for (uint32_t l = 0; l < w->n_layers; l++)
        if (w->layers[l].experts_down.k > ffn) ffn = w->layers[l].experts_down.k;
    *out = NULL;
    if (ffn == 0) return STATUS_IS_OK;
    cuda_experts *e = calloc(1, sizeof *e);
    if (!e) return status_make(STATUS_NO_MEMORY, "experts");
    e->d = d;
    e->config = c;
    buffer list[BUFFERS];
    list_buffers(e, max_rows, ffn, list);
    status s = STATUS_IS_OK;
    for (size_t i = 0; status_ok(s) && i < BUFFERS; i++)
        s = cuda_alloc(d, list[i].bytes, list[i].at);
    if (status_ok(s)) *out = e;
    else cuda_experts_destroy(e);
    return s;
}

void cuda_experts_destroy(cuda_experts *e)
{
    if (!e) return;
    buffer list[BUFFERS];
    list_buffers(e, 0, 0, list);
    for (size_t i = 0; i < BUFFERS; i++) {
        void *device = *(void **)list[i].at;
        if (device) e->d->api->release(e->d->g, device);
    }
    free(e);
}

/* Sets *out to the rows as operands of w: `normed`, or a norm into `mine` when w's type differs. */
static status rows_for(const cuda_experts *e, const cuda_layer *layer, const cuda_expert_rows *rows,
                       const gpu_matrix *w, void *mine, const void **out)
{
    const model_config *c = e->config;
    *out = rows->normed;
    if (w->type == rows->type) return STATUS_IS_OK;
    *out = mine;
    return cuda_status(e->d->api->norm(e->d->g, rows->x, NULL, layer->ffn_norm, c->rms_eps, rows->n,
                                       c->hidden, mine, w->type));
}

/* Runs the shared expert into r->out, and its switch into switches [n]. */
static status run_shared(const cuda_experts *e, const cuda_layer *w, const cuda_expert_rows *r)
{
    const gpu_api *api = e->d->api;
    gpu *g = e->d->g;
    const void *x;
    gpu_type type = w->down.type;
    RETURN_IF_ERROR(rows_for(e, w, r, &w->shared_switch, e->switch_rows, &x));
    RETURN_IF_GPU_ERROR(
        api->product(g, &w->shared_switch, x, r->n, e->switches, GPU_F32, r->scratch));
    RETURN_IF_GPU_ERROR(api->product(g, &w->gate_up, r->normed, r->n, r->wide, type, r->scratch));
    RETURN_IF_GPU_ERROR(api->gate(g, r->wide, r->n, w->down.k, false, r->act, type));
    return cuda_status(api->product(g, &w->down, r->act, r->n, r->out, GPU_F32, r->scratch));
}

status cuda_experts_run(cuda_experts *e, const cuda_layer *w, const cuda_expert_rows *r)
{
    const model_config *c = e->config;
    const void *x;
    if (w->experts_up.type != r->type || (w->down.n && w->down.type != w->gate_up.type))
        return status_make(STATUS_UNSUPPORTED, "cuda: matrices of experts of different types");
    RETURN_IF_ERROR(rows_for(e, w, r, &w->router, e->router_rows, &x));
    RETURN_IF_GPU_ERROR(
        e->d->api->product(e->d->g, &w->router, x, r->n, e->logits, GPU_F32, r->scratch));
    bool shared = w->shared_switch.n > 0;
    if (shared) RETURN_IF_ERROR(run_shared(e, w, r));
    gpu_experts all = {.logits = e->logits,
                       .n_rows = r->n,
                       .n_experts = c->n_experts,
                       .of_row = c->experts_per_token,
                       .norm = c->expert_norm,
                       .gate_up = w->experts_up,
                       .down = w->experts_down,
                       .x = r->normed,
                       .switches = shared ? e->switches : NULL,
                       .out = r->out,
                       .wide = e->wide,
                       .act = e->act,
                       .part = e->part,
                       .words = e->words};
    return cuda_status(e->d->api->experts(e->d->g, &all));
}
