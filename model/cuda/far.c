#include "model/cuda/far.h"

#include "base/half.h"
#include "kernels/part_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The number of the note behind the copy of the queries. The backend notes a step's end under the
 * same number, but only after its last layer, and one step is in flight at a time. */
enum { QUERIES_READY = 0 };

struct cuda_far {
    cuda_far_options o;
    kern_context *kernels;
    uint32_t n_heads, q_heads; /* KV heads, and query heads of one */
    const step_plan *plan;
    /* Pinned: [max_seqs, query heads, head_dim] queries and the device's output, and its log2 sums
     * of exponentials. */
    uint8_t *q, *out;
    float *lse;
    /* The CPU's part: queries as f32, outputs and sums of items, a share's KV head each. */
    float *items_q, *items_out, *items_lse;
    kern_part_item *items; /* [max_seqs * n_heads] */
    uint32_t *rows;        /* [max_seqs * n_heads] of the items, times n_heads, plus the head */
    const uint8_t **tiles;
    size_t tiles_capacity;
};

/* ---- creation -------------------------------------------------------------------------------- */

static status make_pinned(cuda_far *f, size_t bytes, void *out)
{
    void *host;
    RETURN_IF_GPU_ERROR(f->o.device->api->alloc_host(f->o.device->g, bytes, &host));
    memcpy(out, &host, sizeof host);
    return STATUS_IS_OK;
}

static status make_arrays(cuda_far *f)
{
    size_t heads = (size_t)f->o.max_seqs * f->o.config->n_heads, n = heads * f->o.config->head_dim;
    size_t items = (size_t)f->o.max_seqs * f->n_heads;
    f->items_q = calloc(n, sizeof *f->items_q);
    f->items_out = calloc(n, sizeof *f->items_out);
    f->items_lse = calloc(heads, sizeof *f->items_lse);
    f->items = calloc(items, sizeof *f->items);
    f->rows = calloc(items, sizeof *f->rows);
    if (!f->items_q || !f->items_out || !f->items_lse || !f->items || !f->rows)
        return status_make(STATUS_NO_MEMORY, NULL);
    RETURN_IF_ERROR(make_pinned(f, n * 2, &f->q));
    RETURN_IF_ERROR(make_pinned(f, n * sizeof(float), &f->out));
    return make_pinned(f, heads * sizeof(float), &f->lse);
}

status cuda_far_create(const cuda_far_options *options, cuda_far **out, error *err)
{
    cuda_far *f = calloc(1, sizeof *f);
    if (!f) return error_set(err, STATUS_NO_MEMORY, "kv-host: out of memory");
    *out = f;
    f->o = *options;
    f->n_heads = options->config->n_kv_heads;
    f->q_heads = options->config->n_heads / f->n_heads;
    kern_options kernels = {.pool = options->pool, .isa = options->isa};
    RETURN_IF_ERROR(kern_create(&kernels, &f->kernels, err));
    status s = make_arrays(f);
    return status_ok(s) ? s : error_set(err, s.code, "kv-host: no memory to attend on the CPU");
}

void cuda_far_destroy(cuda_far *f)
{
    if (!f) return;
    cuda_device *d = f->o.device;
    void *pinned[] = {f->q, f->out, f->lse};
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++)
        if (pinned[i]) d->api->release_host(d->g, pinned[i]);
    kern_destroy(f->kernels);
    free(f->items_q);
    free(f->items_out);
    free(f->items_lse);
    free(f->items);
    free(f->rows);
    free(f->tiles);
    free(f);
}

/* ---- elements -------------------------------------------------------------------------------- */

static float load(const uint8_t *from, gpu_type type, size_t i)
{
    uint16_t half;
    float x;
    if (type == GPU_F32) {
        memcpy(&x, from + 4 * i, sizeof x);
        return x;
    }
    memcpy(&half, from + 2 * i, sizeof half);
    return type == GPU_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

static void store(uint8_t *to, gpu_type type, size_t i, float x)
{
    uint16_t half = type == GPU_BF16 ? bf16_from_f32(x) : f16_from_f32(x);
    if (type == GPU_F32) memcpy(to + 4 * i, &x, sizeof x);
    else memcpy(to + 2 * i, &half, sizeof half);
}

/* ---- a layer --------------------------------------------------------------------------------- */

void cuda_far_start(cuda_far *f, const step_plan *plan) { f->plan = plan; }

static uint32_t tables_of(const cuda_far *f)
{
    return f->plan->n_seqs * pkv_head_groups(&f->o.geometry);
}

bool cuda_far_has(const cuda_far *f, uint32_t layer)
{
    const uint32_t *cells;
    for (uint32_t t = 0; t < tables_of(f); t++)
        if (cuda_window_left(f->o.window, layer, t, &cells) > 0) return true;
    return false;
}

static size_t query_floats(const cuda_far *f)
{
    return (size_t)f->plan->n_tokens * f->o.config->n_heads * f->o.config->head_dim;
}

status cuda_far_begin(cuda_far *f, const void *q)
{
    const cuda_device *d = f->o.device;
    RETURN_IF_GPU_ERROR(d->api->copy_out(d->g, f->q, q, query_floats(f) * 2));
    return cuda_status(d->api->note(d->g, QUERIES_READY));
}

/* Makes room for the tiles of all items of a layer. */
static status reserve_tiles(cuda_far *f, uint32_t layer)
{
    const uint32_t *cells;
    size_t n = 0;
    for (uint32_t t = 0; t < tables_of(f); t++)
        n +=
            (size_t)cuda_window_left(f->o.window, layer, t, &cells) * f->o.geometry.heads_per_group;
    if (n <= f->tiles_capacity) return STATUS_IS_OK;
    free(f->tiles);
    f->tiles_capacity = 0;
    f->tiles = calloc(n + n / 2, sizeof *f->tiles);
    if (!f->tiles) return status_make(STATUS_NO_MEMORY, "step buffers");
    f->tiles_capacity = n + n / 2;
    return STATUS_IS_OK;
}

/* Lists the layer's items, for each KV head of each share that has pages left. */
static size_t list_items(cuda_far *f, uint32_t layer)
{
    const pkv_geometry *g = &f->o.geometry;
    uint32_t groups = pkv_head_groups(g), of_group = g->heads_per_group;
    size_t n = 0, tile = 0, dim = f->o.config->head_dim, of_item = f->q_heads * dim;
    for (uint32_t i = 0; i < f->plan->n_seqs; i++) {
        for (uint32_t head = 0; head < f->n_heads; head++) {
            const uint32_t *cells;
            uint32_t left =
                cuda_window_left(f->o.window, layer, i * groups + head / of_group, &cells);
            if (left == 0) continue;
            size_t in_cell =
                (layer % g->layers_per_group * of_group + head % of_group) * f->o.pages->tile_bytes;
            f->rows[n] = f->plan->seqs[i].first_token * f->n_heads + head;
            float *q = f->items_q + n * of_item;
            for (size_t d = 0; d < of_item; d++)
                q[d] = load(f->q, gpu_query_type(f->o.pages->format), f->rows[n] * of_item + d);
            f->items[n] = (kern_part_item){.tiles = f->tiles + tile,
                                           .n_tiles = left,
                                           .q = q,
                                           .out = f->items_out + n * of_item,
                                           .lse = f->items_lse + n * f->q_heads};
            for (uint32_t p = 0; p < left; p++)
                f->tiles[tile++] = cuda_window_host_page(f->o.window, cells[p]) + in_cell;
            n++;
        }
    }
    return n;
}

static status attend(cuda_far *f, size_t n, float scale)
{
    static const kern_part_format formats[] = {[GPU_KV_BF16] = KERN_PART_BF16,
                                               [GPU_KV_F16] = KERN_PART_F16,
                                               [GPU_KV_E4M3] = KERN_PART_E4M3,
                                               [GPU_KV_INT8] = KERN_PART_INT8};
    kern_part_batch batch = {.format = formats[f->o.pages->format],
                             .page_tokens = f->o.pages->page_tokens,
                             .head_dim = f->o.pages->head_dim,
                             .q_heads = f->q_heads,
                             .scale = scale,
                             .items = f->items,
                             .n_items = n};
    return kern_part_attention(f->kernels, &batch);
}

/* Merges the device's part of an item's heads into the CPU's, and makes it the output. */
static void merge_item(cuda_far *f, size_t item, gpu_type type)
{
    size_t dim = f->o.config->head_dim;
    float device_part[MODEL_HEAD_DIM_MAX];
    for (size_t h = 0; h < f->q_heads; h++) {
        size_t at = (size_t)f->rows[item] * f->q_heads + h;
        float *out = f->items[item].out + h * dim;
        for (size_t d = 0; d < dim; d++) device_part[d] = load(f->out, type, at * dim + d);
        kern_part_merge(device_part, f->lse[at], (uint32_t)dim, out, &f->items[item].lse[h]);
        for (size_t d = 0; d < dim; d++) store(f->out, type, at * dim + d, out[d]);
    }
}

status cuda_far_add(cuda_far *f, uint32_t layer, const gpu_attention *a)
{
    const cuda_device *d = f->o.device;
    size_t bytes = query_floats(f) * gpu_type_bytes(a->out_type);
    size_t heads = (size_t)f->plan->n_tokens * f->o.config->n_heads;
    RETURN_IF_GPU_ERROR(d->api->copy_out(d->g, f->out, a->out, bytes));
    RETURN_IF_GPU_ERROR(d->api->copy_out(d->g, f->lse, a->lse, heads * sizeof *f->lse));
    RETURN_IF_GPU_ERROR(d->api->await(d->g, QUERIES_READY));
    RETURN_IF_ERROR(reserve_tiles(f, layer));
    size_t n = list_items(f, layer);
    RETURN_IF_ERROR(attend(f, n, a->scale));
    RETURN_IF_GPU_ERROR(d->api->wait(d->g));
    for (size_t i = 0; i < n; i++) merge_item(f, i, a->out_type);
    return cuda_status(d->api->copy_in(d->g, a->out, f->out, bytes));
}
