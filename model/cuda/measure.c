/* Measures the memory that a CUDA backend would take: create.c makes one on a device without memory
 * where every call succeeds. */
#include "model/cuda/backend.h"
#include "model/cuda/retrieve.h"
#include "model/sizes.h"

#include <stdlib.h>

/* ---- a device that only counts ------------------------------------------------------------------
 * cuda_alloc counts the bytes; every block has the same address, which is never read. */

static gpu_status no_memory_needed(gpu *g, size_t bytes, void **out)
{
    (void)bytes;
    *out = g;
    return GPU_OK;
}

static void nothing_to_release(gpu *g, void *block)
{
    (void)g;
    (void)block;
}

static gpu_status nothing_to_copy(gpu *g, void *to, const void *from, size_t bytes)
{
    (void)g;
    (void)to;
    (void)from;
    (void)bytes;
    return GPU_OK;
}

static gpu_status nothing_to_unpack(gpu *g, const void *packed, const gpu_matrix *w)
{
    (void)g;
    (void)packed;
    (void)w;
    return GPU_OK;
}

static gpu_status nothing_to_time(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                                  gpu_type y_type, void *scratch)
{
    (void)g, (void)w, (void)x, (void)m, (void)y, (void)y_type, (void)scratch;
    return GPU_OK;
}

static gpu_status nothing_to_wait_for(gpu *g)
{
    (void)g;
    return GPU_OK;
}

static void nothing_to_forget(gpu_graph *graph) { (void)graph; }

static void nothing_to_set(gpu *g, bool on)
{
    (void)g;
    (void)on;
}

static const char *no_failure(const gpu *g)
{
    (void)g;
    return "";
}

static const gpu_api counting = {
    .version = GPU_API_VERSION,
    .why = no_failure,
    .set_invariant = nothing_to_set,
    .set_narrow = nothing_to_set,
    .alloc = no_memory_needed,
    .release = nothing_to_release,
    .alloc_host = no_memory_needed,
    .release_host = nothing_to_release,
    .copy_in = nothing_to_copy,
    .wait = nothing_to_wait_for,
    .unpack = nothing_to_unpack,
    .settle = nothing_to_time,
    .forget = nothing_to_forget,
};

/* ---- measuring ------------------------------------------------------------------------------- */

typedef struct measuring {
    backend_cuda *b;
    error *err;
} measuring;

static status send_shapes(void *ctx, const model_weights *shapes)
{
    const measuring *m = ctx;
    return cuda_send_weights(m->b, shapes, m->err);
}

static status load_shapes(backend_cuda *b, const backend_options *o, error *err)
{
    weights_options wanted = cuda_weights_wanted(o, &b->config);
    measuring m = {b, err};
    return weights_shapes(&wanted, send_shapes, &m, err);
}

static status measure_memory(backend_cuda *b, const backend_cuda_options *o, uint32_t n_ranks,
                             backend_measures *out, error *err)
{
    uint64_t memory = o->gpu_facts->free_bytes;
    error why = {{0}};
    RETURN_IF_ERROR(cuda_make_parts(b, o, load_shapes, err));
    /* The other ranks cannot be met here, so cuda_peers_create has made nothing. */
    if (o->own_gpus) b->device.allocated += cuda_peers_bytes(n_ranks, o->batch_invariant);
    out->geometry = b->info.geometry;
    out->weight_bytes = b->weight_bytes;
    out->step_bytes = b->device.allocated - b->weight_bytes;
    out->page_bytes = b->pages.page_bytes;
    out->rank_shares = pkv_shares_of(&out->geometry, b->slice.n_kv_heads);
    out->sums_of_page = cuda_sums_of_page(b);
    out->representatives_of_page = cuda_retrieve_of_page(b);
    out->scratch_bytes = cuda_retrieve_of_step(b);
    out->fits = out->weight_bytes * n_ranks <= memory;
    status s = cuda_make_pages(b, &o->common, &why);
    if (s.code == STATUS_INVALID) return STATUS_IS_OK; /* no room for a page of each table */
    if (!status_ok(s)) return error_set(err, s.code, "%s", why.text);
    out->n_pages = b->info.n_pages;
    out->note_bytes = b->info.note_bytes;
    if (!b->window) return STATUS_IS_OK;
    cuda_window_sizes sizes = cuda_window_sizes_of(b->window);
    out->n_frames = sizes.n_here + 2 * sizes.n_frames;
    out->n_here = sizes.n_here;
    out->sums_of_page = 0;
    return STATUS_IS_OK;
}

static status count_parameters(const backend_options *o, uint64_t *out, error *err)
{
    weights_options whole = sizes_weights(o, o->config, 0, 1);
    weights_measures all;
    RETURN_IF_ERROR(weights_measure(&whole, &all, err));
    *out = all.elements;
    return STATUS_IS_OK;
}

/* Rank 0 of a group of n_ranks whose other ranks do not exist. */
static status join_group(uint32_t n_ranks, comm_group **group, comm **out, error *err)
{
    RETURN_IF_ERROR(comm_group_create("threads", (int)n_ranks, group, err));
    comm_options o = {.kind = "threads", .size = (int)n_ranks, .group = *group};
    return comm_create(&o, out, err);
}

status backend_cuda_measure(const backend_cuda_options *options, uint32_t n_ranks,
                            backend_measures *out, error *err)
{
    char nowhere;
    comm_group *group = NULL;
    comm *rank = NULL;
    backend_cuda_options o = *options;
    gpu_facts facts = *options->gpu_facts;
    facts.free_bytes *= n_ranks; /* all ranks share this device: each takes its part */
    o.api = &counting;
    o.gpu = (gpu *)(void *)&nowhere;
    o.gpu_facts = &facts;
    o.common.swap_bytes = 0; /* a host tier would be written to, so none is made */
    *out = (backend_measures){0};
    RETURN_IF_ERROR(model_ranks_check(options->common.config, n_ranks, err));
    RETURN_IF_ERROR(count_parameters(&o.common, &out->parameters, err));
    backend_cuda *b = calloc(1, sizeof *b);
    status s = b ? join_group(n_ranks, &group, &rank, err)
                 : error_set(err, STATUS_NO_MEMORY, "backend: out of memory");
    o.common.group = rank;
    if (status_ok(s)) s = measure_memory(b, &o, n_ranks, out, err);
    if (status_ok(s) && out->n_pages)
        out->n_host_pages = sizes_host_pages(&out->geometry, options->common.swap_bytes, UINT64_MAX,
                                             0, backend_page_bytes(out, n_ranks));
    if (b) cuda_ops.destroy(b);
    if (rank) comm_destroy(rank);
    comm_group_destroy(group);
    return s;
}
