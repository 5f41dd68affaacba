/* Weights on the device. */
#include "model/cuda/cuda.h"
#include "model/sizes.h"

#include <stdlib.h>
#include <string.h>

/* Blocks of a layer: eight matrices of data and scales, and seven vectors. */
enum { BLOCKS_OF_LAYER = 8 * 2 + 7, OTHER_BLOCKS = 5 };

typedef struct loader {
    cuda_device *d;
    cuda_weights *w;
    void *packed; /* on the device, room for the largest matrix as the CPU packs it */
} loader;

weights_options cuda_weights_wanted(const backend_options *o, const model_config *config)
{
    weights_options wanted = sizes_weights(o, config, comm_rank(o->group), comm_size(o->group));
    wanted.keep_floats = true;
    return wanted;
}

static status take_block(loader *l, size_t bytes, void *out)
{
    RETURN_IF_ERROR(cuda_alloc(l->d, bytes, out));
    memcpy(&l->w->blocks[l->w->n_blocks++], out, sizeof(void *));
    return STATUS_IS_OK;
}

static status load_vector(loader *l, const float *x, size_t n, float **out)
{
    *out = NULL;
    if (!x) return STATUS_IS_OK;
    RETURN_IF_ERROR(take_block(l, n * sizeof *x, out));
    return cuda_status(l->d->api->copy_in(l->d->g, *out, x, n * sizeof *x));
}

/* Allocates `copies` matrices of m's shape, one behind the other. */
static status take_matrix(loader *l, const kern_matrix *m, size_t copies, gpu_matrix *out)
{
    static const gpu_type types[] = {
        [DTYPE_F32] = GPU_F32, [DTYPE_BF16] = GPU_BF16, [DTYPE_F16] = GPU_F16};
    *out = (gpu_matrix){.n = m->n,
                        .k = m->k,
                        .type = types[m->type],
                        .bits = m->quant.bits,
                        .group = m->quant.group,
                        .is_float = m->is_float};
    if (out->bits && out->type == GPU_F32) out->type = GPU_BF16;
    RETURN_IF_ERROR(take_block(l, copies * gpu_matrix_bytes(out), &out->data));
    if (out->bits) RETURN_IF_ERROR(take_block(l, copies * gpu_scale_bytes(out), &out->scales));
    return STATUS_IS_OK;
}

static status send_matrix(loader *l, const kern_matrix *m, const gpu_matrix *out)
{
    gpu *g = l->d->g;
    RETURN_IF_GPU_ERROR(l->d->api->copy_in(g, l->packed, m->data, kern_matrix_size(m)));
    return cuda_status(l->d->api->unpack(g, l->packed, out));
}

static status load_matrix(loader *l, const kern_matrix *m, gpu_matrix *out)
{
    *out = (gpu_matrix){0};
    if (m->n == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(take_matrix(l, m, 1, out));
    return send_matrix(l, m, out);
}

static status load_experts(loader *l, const layer_weights *w, uint32_t n, cuda_layer *out)
{
    RETURN_IF_ERROR(load_matrix(l, &w->router, &out->router));
    RETURN_IF_ERROR(load_matrix(l, &w->shared_switch, &out->shared_switch));
    RETURN_IF_ERROR(take_matrix(l, &w->experts[0].gate_up, n, &out->experts_up));
    RETURN_IF_ERROR(take_matrix(l, &w->experts[0].down, n, &out->experts_down));
    gpu_matrix up = out->experts_up, down = out->experts_down;
    for (uint32_t i = 0; i < n; i++) {
        RETURN_IF_ERROR(send_matrix(l, &w->experts[i].gate_up, &up));
        RETURN_IF_ERROR(send_matrix(l, &w->experts[i].down, &down));
        up.data = (uint8_t *)up.data + gpu_matrix_bytes(&up);
        down.data = (uint8_t *)down.data + gpu_matrix_bytes(&down);
        if (up.bits) up.scales = (uint8_t *)up.scales + gpu_scale_bytes(&up);
        if (down.bits) down.scales = (uint8_t *)down.scales + gpu_scale_bytes(&down);
    }
    return STATUS_IS_OK;
}

static status load_layer(loader *l, const layer_weights *w, const model_config *c, cuda_layer *out)
{
    size_t hidden = c->hidden, dim = c->head_dim;
    RETURN_IF_ERROR(load_vector(l, w->attn_norm, hidden, &out->attn_norm));
    RETURN_IF_ERROR(load_vector(l, w->qkv_bias, w->qkv.n, &out->qkv_bias));
    RETURN_IF_ERROR(load_vector(l, w->q_norm, dim, &out->q_norm));
    RETURN_IF_ERROR(load_vector(l, w->k_norm, dim, &out->k_norm));
    RETURN_IF_ERROR(load_vector(l, w->ffn_norm, hidden, &out->ffn_norm));
    RETURN_IF_ERROR(load_vector(l, w->attn_post_norm, hidden, &out->attn_post_norm));
    RETURN_IF_ERROR(load_vector(l, w->ffn_post_norm, hidden, &out->ffn_post_norm));
    RETURN_IF_ERROR(load_matrix(l, &w->qkv, &out->qkv));
    RETURN_IF_ERROR(load_matrix(l, &w->o, &out->o));
    RETURN_IF_ERROR(load_matrix(l, &w->gate_up, &out->gate_up));
    RETURN_IF_ERROR(load_matrix(l, &w->down, &out->down));
    return w->experts ? load_experts(l, w, c->n_experts, out) : STATUS_IS_OK;
}

static size_t larger_panel(size_t most, const kern_matrix *m)
{
    size_t bytes = m->n ? kern_matrix_size(m) : 0;
    return bytes > most ? bytes : most;
}

static size_t largest_matrix(const model_weights *w, const model_config *c)
{
    size_t most = larger_panel(kern_matrix_size(&w->embed), &w->head);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const layer_weights *l = &w->layers[i];
        const kern_matrix *all[] = {&l->qkv,  &l->o,      &l->gate_up,
                                    &l->down, &l->router, &l->shared_switch};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) most = larger_panel(most, all[j]);
        if (l->experts)
            most = larger_panel(larger_panel(most, &l->experts[0].gate_up), &l->experts[0].down);
    }
    return most;
}

static status load_all(loader *l, const model_weights *w, const model_config *c)
{
    cuda_weights *out = l->w;
    RETURN_IF_ERROR(load_matrix(l, &w->embed, &out->embed));
    if (w->head.data == w->embed.data) out->head = out->embed;
    else RETURN_IF_ERROR(load_matrix(l, &w->head, &out->head));
    RETURN_IF_ERROR(load_vector(l, w->norm, c->hidden, &out->norm));
    for (uint32_t i = 0; i < c->n_layers; i++)
        RETURN_IF_ERROR(load_layer(l, &w->layers[i], c, &out->layers[i]));
    return cuda_status(l->d->api->wait(l->d->g));
}

status cuda_weights_load(cuda_device *d, const model_weights *w, const model_config *c,
                         cuda_weights *out, error *err)
{
    loader l = {.d = d, .w = out};
    *out = (cuda_weights){.embed_scale = w->embed_scale, .n_layers = c->n_layers};
    out->layers = calloc(c->n_layers, sizeof *out->layers);
    out->blocks = calloc((size_t)c->n_layers * BLOCKS_OF_LAYER + OTHER_BLOCKS, sizeof *out->blocks);
    size_t packed = largest_matrix(w, c);
    status s = out->layers && out->blocks ? cuda_alloc(d, packed, &l.packed)
                                          : status_make(STATUS_NO_MEMORY, "list of weights");
    if (status_ok(s)) s = load_all(&l, w, c);
    if (l.packed) {
        d->api->release(d->g, l.packed);
        d->allocated -= packed;
    }
    if (status_ok(s)) return s;
    error_set(err, s.code, "weights: %s", s.message ? s.message : status_text(s.code));
    cuda_weights_destroy(d, out);
    return s;
}

void cuda_weights_destroy(cuda_device *d, cuda_weights *w)
{
    for (size_t i = 0; i < w->n_blocks; i++) d->api->release(d->g, w->blocks[i]);
    free(w->blocks);
    free(w->layers);
    *w = (cuda_weights){0};
}
