/* Makes a CUDA backend: device, weights, buffers, pages, in this order. */
#include "model/cuda/backend.h"
#include "model/cuda/retrieve.h"
#include "model/kv_kind.h"
#include "model/sizes.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Limit of the logits of a step's prompt rows, the same as on the CPU. */
enum { LOGITS_BYTES = 64 << 20 };

/* ---- creation -------------------------------------------------------------------------------- */

/* Refuses models without kernels before anything is read. */
static status check_kernels(const model_config *c, error *err)
{
    if (c->n_experts > GPU_EXPERTS_MOST)
        return error_set(err, STATUS_UNSUPPORTED, "device cuda: %u experts; routing takes %d",
                         c->n_experts, GPU_EXPERTS_MOST);
    if (!gpu_has_head_dim(c->head_dim))
        return error_set(
            err, STATUS_UNSUPPORTED,
            "device cuda: heads of %u dims; attention is built for 32, 64, 96, 128 and 256",
            c->head_dim);
    return STATUS_IS_OK;
}

/* Refuses a device with too little shared memory. */
static status check_device(const backend_cuda *b, error *err)
{
    size_t wanted = GPU_ATTENTION_SHARED(b->config.head_dim), has = b->device.facts.shared_bytes;
    if (wanted <= has) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "device cuda: attention with heads of %u dims needs %zu KB of shared memory a "
                     "block; %s has %zu",
                     b->config.head_dim, wanted >> 10, b->device.facts.name, has >> 10);
}

static status open_device(backend_cuda *b, const backend_cuda_options *o, error *err)
{
    char why[256] = "";
    if (b->device.g) return STATUS_IS_OK; /* meet_on_gpus has opened it */
    b->device.api = o->api;
    if (o->gpu) {
        b->device.g = o->gpu;
        b->device.facts = *o->gpu_facts;
        b->device.borrowed = true;
        return STATUS_IS_OK;
    }
    gpu_status s = o->api->open(o->ordinal, &b->device.g, &b->device.facts, why, sizeof why);
    if (s == GPU_OK) return STATUS_IS_OK;
    return error_set(err, s == GPU_NO_MEMORY ? STATUS_NO_MEMORY : STATUS_UNAVAILABLE,
                     "--device cuda:%u: %s", o->ordinal, why);
}

status cuda_send_weights(backend_cuda *b, const model_weights *w, error *err)
{
    b->info.identity = w->identity;
    b->facts.from_cache = w->from_cache;
    return cuda_weights_load(&b->device, w, &b->local, &b->weights, err);
}

/* The CPU reads and packs as for itself; the device then reorders each matrix. */
static status load_weights(backend_cuda *b, const backend_options *o, error *err)
{
    thread_pool_options threads = {.n_threads = o->n_threads, .pin = comm_size(o->group) == 1};
    status s = thread_pool_create(&threads, &b->pool);
    if (!status_ok(s)) return error_set(err, s.code, "threads: cannot start %u", o->n_threads);
    weights_options wanted = cuda_weights_wanted(o, &b->config);
    wanted.pool = b->pool;
    kern_options kernels = {.pool = b->pool, .isa = o->isa};
    model_weights weights;
    RETURN_IF_ERROR(kern_create(&kernels, &wanted.kernels, err));
    s = weights_load(&wanted, &weights, err);
    if (status_ok(s)) {
        s = cuda_send_weights(b, &weights, err);
        weights_destroy(&weights);
    }
    kern_destroy(wanted.kernels);
    return s;
}

static void lay_out_pages(backend_cuda *b, const backend_cuda_options *o)
{
    const pkv_geometry *g = &b->info.geometry;
    uint32_t n_heads = b->slice.n_kv_heads;
    uint32_t heads = n_heads < g->heads_per_group ? n_heads : g->heads_per_group;
    size_t tile = gpu_tile_bytes(o->kv, g->page_tokens, b->config.head_dim);
    b->pages = (gpu_pages){.tile_bytes = tile,
                           .page_bytes = tile * g->layers_per_group * heads,
                           .page_tokens = g->page_tokens,
                           .head_dim = b->config.head_dim,
                           .n_tiles = g->layers_per_group * heads,
                           .format = o->kv,
                           .layer_groups = pkv_layer_groups(g),
                           .run_heads = pkv_head_groups(g) / pkv_shares(g)};
}

/* Subtracts `taken` bytes from the memory that was free when the device was opened. Ranks in
 * threads that share a GPU have equal parts of it. */
static uint64_t memory_left(const backend_cuda *b, const backend_options *o, uint64_t taken)
{
    uint64_t ranks = (uint64_t)comm_size(o->group);
    uint64_t free_bytes = b->device.facts.free_bytes / (comm_on_device(o->group) ? 1 : ranks);
    return free_bytes - (taken < free_bytes ? taken : free_bytes);
}

/* Sets how many rows of logits there is room for: those of the largest step that decodes, but no
 * more than fit into a part of the memory that the weights leave. What lies beside the weights does
 * not count, so that octavo plan, which meets no other rank, finds the same number. The rank with
 * least memory decides, because all ranks draw from the same rows at once. */
static status count_head_rows(backend_cuda *b, const backend_options *o)
{
    enum { MOST = 256, PART = 32, WHOLE = 8 /* chunks of rows then begin at 16 bytes */ };
    size_t ranks = (size_t)comm_size(o->group), part = b->weights.head.n;
    size_t row = (part + part * ranks + (ranks > 1 ? b->config.vocab_size : 0)) * sizeof(float);
    if (ranks > 1) row += cuda_limits_bytes(ranks);
    uint64_t rows = memory_left(b, o, b->weight_bytes) / PART / row / WHOLE * WHOLE;
    uint32_t wanted = cuda_graphs_round(o->max_seqs, CUDA_SHAPE_STEPS);
    if (rows > MOST) rows = MOST;
    if (rows > wanted) rows = (wanted + WHOLE - 1) / WHOLE * WHOLE;
    b->head_rows = rows < CUDA_HEAD_ROWS_LEAST ? CUDA_HEAD_ROWS_LEAST : (uint32_t)rows;
    return cuda_smallest(&b->device, &b->head_rows);
}

/* Memory that draws need on the device; of several ranks also rows of all of them. */
static status make_draw_buffers(backend_cuda *b, const backend_options *o)
{
    cuda_device *d = &b->device;
    size_t ranks = (size_t)comm_size(o->group), n_draws = step_most_draws(o->max_seqs);
    size_t rows = b->head_rows * sizeof(float);
    b->draws.is_double = true;
    RETURN_IF_ERROR(cuda_draws_reserve(b, (uint32_t)n_draws));
    RETURN_IF_ERROR(cuda_alloc(d, rows * b->weights.head.n * ranks, &b->draw_scratch));
    if (ranks == 1) return STATUS_IS_OK;
    RETURN_IF_ERROR(cuda_alloc(d, rows * b->config.vocab_size, &b->joined));
    RETURN_IF_ERROR(cuda_alloc(d, n_draws * sizeof *b->parts, &b->parts));
    RETURN_IF_ERROR(cuda_alloc(d, ranks * n_draws * sizeof *b->gathered, &b->gathered));
    return cuda_limits_create(b, ranks);
}

static status make_forward(backend_cuda *b, const backend_options *o, error *err)
{
    cuda_forward_options pass = {.device = &b->device,
                                 .config = &b->local,
                                 .weights = &b->weights,
                                 .pages = &b->pages,
                                 .geometry = b->info.geometry,
                                 .first_kv_head = b->slice.first_kv_head,
                                 .max_rows = o->max_rows,
                                 .max_seqs = cuda_graphs_round(o->max_seqs, CUDA_SHAPE_STEPS),
                                 .first_token = b->slice.first_token};
    uint32_t page_tokens = b->pages.page_tokens;
    /* With a window, steps bring their tables along. */
    uint32_t row =
        o->kv_host_bytes ? 1 : (b->info.max_positions + page_tokens - 1) / page_tokens + 1;
    status s = count_head_rows(b, o);
    if (status_ok(s))
        s = cuda_alloc(&b->device, CUDA_FLIGHTS * step_most_draws(o->max_seqs) * sizeof *b->drawn,
                       &b->drawn);
    pass.head_rows = b->head_rows;
    pass.drawn = b->drawn;
    if (status_ok(s)) s = cuda_forward_create(&pass, &b->forward);
    if (status_ok(s)) s = cuda_forward_settle(b->forward);
    if (status_ok(s)) s = cuda_graphs_create(&b->device, o, &b->graphs);
    if (status_ok(s)) s = make_draw_buffers(b, o);
    if (status_ok(s))
        s = cuda_tables_create(&b->device, &b->info.geometry, &b->slice, o->max_seqs, row,
                               &b->tables);
    if (status_ok(s)) return s;
    return error_set(err, s.code, "device cuda: %u rows, %u sequences and %u positions: %s",
                     o->max_rows, o->max_seqs, b->info.max_positions,
                     s.message ? s.message : status_text(s.code));
}

/* Called when all else is on the device. */
static uint64_t default_pool_bytes(const backend_cuda *b, const backend_options *o)
{
    uint64_t bytes =
        sizes_default_pool(memory_left(b, o, b->device.allocated), MODEL_GPU_POOL_SHARE);
    return sizes_pages_part(bytes, b->pages.page_bytes, cuda_retrieve_of_page(b)) *
           (uint64_t)comm_size(o->group);
}

static uint64_t cuda_page_bytes(const backend_cuda *b, uint32_t n_ranks)
{
    return sizes_of_page(&b->info.geometry, b->pages.page_bytes, b->slice.n_kv_heads, n_ranks);
}

/* How many pages a pool has whose device takes `bytes` of it. */
static status count_pages(backend_cuda *b, const backend_options *o, uint64_t bytes,
                          uint64_t page_bytes, error *err)
{
    const pkv_geometry *g = &b->info.geometry;
    uint64_t room = bytes / page_bytes, on_host = o->kv_host_bytes / page_bytes;
    if (!o->kv_host_bytes) return sizes_pool_pages(g, bytes, page_bytes, &b->info.n_pages, err);
    uint64_t n = cuda_window_cells(g, room, on_host);
    if (n == 0)
        return error_set(err, STATUS_INVALID,
                         "kv-memory: %llu bytes on the device hold %llu pages; two layers of a "
                         "pool with kv-host %llu have more",
                         (unsigned long long)bytes, (unsigned long long)room,
                         (unsigned long long)o->kv_host_bytes);
    return sizes_pool_pages(g, n * page_bytes, page_bytes, &b->info.n_pages, err);
}

/* Makes the window and says how many pages the device has memory for. */
static status make_window(backend_cuda *b, uint64_t room, uint32_t *pages_here, error *err)
{
    cuda_window_options w = {
        .device = &b->device, .pages = &b->pages, .geometry = b->info.geometry, .cells = b->cells};
    /* A pool of fewer cells than were counted, because it has whole blocks, fits too. */
    if (!cuda_window_fit(&w.geometry, w.cells.n, room, &w.sizes))
        return error_set(err, STATUS_INTERNAL, "kv-host: no window fits");
    *pages_here = w.sizes.n_here + 2 * w.sizes.n_frames;
    status s = cuda_window_create(&w, &b->window);
    if (status_ok(s)) return s;
    return error_set(err, STATUS_NO_MEMORY, "kv-host: cannot reserve %llu bytes of host memory: %s",
                     (unsigned long long)(w.cells.n - w.sizes.n_here) * b->pages.page_bytes,
                     b->device.api->why(b->device.g));
}

/* Page numbers mean the same on every rank, so the rank with least memory decides. */
static status make_pool(backend_cuda *b, const backend_options *o, error *err)
{
    uint64_t bytes = o->kv_bytes ? o->kv_bytes : default_pool_bytes(b, o);
    uint64_t page_bytes = cuda_page_bytes(b, (uint32_t)comm_size(o->group));
    RETURN_IF_ERROR(sizes_check_pool(o, page_bytes, err));
    RETURN_IF_ERROR(count_pages(b, o, bytes, page_bytes, err));
    status s = cuda_smallest(&b->device, &b->info.n_pages);
    if (!status_ok(s)) return error_set(err, s.code, "kv-memory: %s", status_text(s.code));
    b->cells = pkv_cells_of(&b->info.geometry, b->info.n_pages - 1, b->slice.first_kv_head,
                            b->slice.n_kv_heads);
    b->tables.first_cell = b->cells.first;
    b->pages.layer_stride = b->cells.n / b->pages.layer_groups;
    uint32_t here = b->cells.n;
    if (o->kv_host_bytes) RETURN_IF_ERROR(make_window(b, bytes / page_bytes, &here, err));
    b->pool_bytes = (uint64_t)here * b->pages.page_bytes;
    if (!status_ok(cuda_alloc(&b->device, b->pool_bytes, &b->pages.data)))
        return error_set(err, STATUS_NO_MEMORY, "kv-memory: cannot reserve %llu bytes: %s",
                         (unsigned long long)b->pool_bytes, b->device.api->why(b->device.g));
    return STATUS_IS_OK;
}

static status make_host_tier(backend_cuda *b, const backend_options *o, error *err)
{
    uint64_t ranks = sizes_ranks_here(o), all = (uint64_t)comm_size(o->group);
    uint32_t n = sizes_host_pages(&b->info.geometry, o->swap_bytes,
                                  sizes_for_ranks(memory_available_bytes(), ranks, all), 0,
                                  cuda_page_bytes(b, (uint32_t)all));
    status s = cuda_smallest(&b->device, &n);
    if (!status_ok(s)) return error_set(err, s.code, "swap-memory: %s", status_text(s.code));
    if (n == 0) return STATUS_IS_OK;
    void *host;
    b->host_cells = pkv_cells_of(&b->info.geometry, n, b->slice.first_kv_head, b->slice.n_kv_heads);
    if (b->device.api->alloc_host(b->device.g, b->host_cells.n * b->pages.page_bytes, &host) !=
        GPU_OK)
        return error_set(err, STATUS_NO_MEMORY, "swap-memory: %s", b->device.api->why(b->device.g));
    b->host = host;
    b->info.n_host_pages = n;
    return STATUS_IS_OK;
}

static status make_flight(backend_cuda *b, uint32_t max_seqs, cuda_flight *f)
{
    void *host;
    f->seq_results = calloc(max_seqs, sizeof *f->seq_results);
    uint32_t n_draws = step_most_draws(max_seqs);
    f->samples = calloc(n_draws, sizeof *f->samples);
    f->draws = calloc(n_draws, sizeof *f->draws);
    f->drawn_at = calloc(max_seqs, sizeof *f->drawn_at);
    f->rows = calloc(max_seqs, sizeof *f->rows);
    RETURN_IF_GPU_ERROR(b->device.api->alloc_host(b->device.g, n_draws * sizeof *f->host, &host));
    f->host = host;
    bool ok = f->seq_results && f->samples && f->draws && f->drawn_at && f->rows;
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, NULL);
}

static status make_step_buffers(backend_cuda *b, const backend_options *o)
{
    RETURN_IF_ERROR(
        pkv_mirror_create(&b->info.geometry, b->info.n_pages, o->max_seqs, NULL, &b->mirror));
    RETURN_IF_ERROR(sampler_create(o->max_seqs, b->config.vocab_size, b->pool, &b->sampler));
    for (int i = 0; i < CUDA_FLIGHTS; i++)
        RETURN_IF_ERROR(make_flight(b, o->max_seqs, &b->flights[i]));
    b->step.is_double = b->changes.is_double = true;
    RETURN_IF_ERROR(cuda_measuring_create(&b->measuring, o->max_seqs));
    b->seqs = calloc(o->max_seqs, sizeof *b->seqs);
    b->logit_rows = calloc((size_t)o->max_rows + o->max_seqs, sizeof *b->logit_rows);
    bool ok = b->seqs && b->logit_rows;
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "step buffers");
}

static void fill_info(backend_cuda *b, const backend_options *o)
{
    b->info.name = "cuda";
    b->info.vocab_size = b->config.vocab_size;
    b->info.masks = true;
    b->info.hidden = b->config.hidden;
    b->info.max_positions = model_max_length(&b->config);
    b->info.max_rows = o->max_rows;
    b->info.max_seqs = o->max_seqs;
    size_t rows = LOGITS_BYTES / (b->config.vocab_size * sizeof(float));
    b->info.max_logit_rows = rows < 16 ? 16 : rows > o->max_rows ? o->max_rows : (uint32_t)rows;
    b->info.logit_row_cost = sizes_logit_row_cost(&b->config, comm_size(o->group));
    /* Ranks that meet on the host do so at every layer, one step at a time. */
    b->info.max_in_flight = comm_size(o->group) == 1 || comm_on_device(o->group) ? CUDA_FLIGHTS : 1;
    b->info.lacks = MEASURES_READS | MEASURES_BESIDE;
    /* Selections do not cross GPUs yet. */
    b->info.retrieves = comm_size(o->group) == 1 ? CUDA_RETRIEVES : 0;
    if (!o->kv_host_bytes) return;
    /* A step's pages in host memory must have come down before the next one reads them there, and
     * running sums and representatives do not travel. */
    b->info.max_in_flight = 1;
    b->info.lacks |= MEASURES_SUMS;
    b->info.retrieves = 0;
}

status cuda_make_parts(backend_cuda *b, const backend_cuda_options *options, cuda_load *load,
                       error *err)
{
    const backend_options *o = &options->common;
    b->config = *o->config;
    if (o->max_model_len) b->config.rope.length = o->max_model_len;
    fill_info(b, o);
    RETURN_IF_ERROR(sizes_check_host(o, true, (uint32_t)comm_size(o->group), err));
    RETURN_IF_ERROR(check_kernels(&b->config, err));
    RETURN_IF_ERROR(model_geometry(o, (uint32_t)comm_size(o->group), &b->info.geometry, err));
    RETURN_IF_ERROR(
        tensor_slice_of(&b->config, comm_rank(o->group), comm_size(o->group), &b->slice, err));
    b->local = b->config;
    b->local.n_heads = b->slice.n_heads;
    b->local.n_kv_heads = b->slice.n_kv_heads;
    b->local.ffn = b->slice.n_ffn;
    RETURN_IF_ERROR(open_device(b, options, err));
    RETURN_IF_ERROR(check_device(b, err));
    b->invariant = options->batch_invariant;
    b->device.api->set_invariant(b->device.g, b->invariant);
    lay_out_pages(b, options);
    int64_t start = clock_now_us();
    RETURN_IF_ERROR(load(b, o, err));
    b->facts.load_us = clock_now_us() - start;
    cuda_narrow(b, o);
    b->weight_bytes = b->device.allocated;
    /* Attention's tiles follow from it, and steps must have one shape on all ranks. */
    status s = cuda_smallest(&b->device, &b->device.facts.n_sms);
    if (status_ok(s)) s = cuda_peers_create(&b->device, b->invariant);
    if (!status_ok(s)) return error_set(err, s.code, "device cuda: %s", status_text(s.code));
    return make_forward(b, o, err);
}

status cuda_make_pages(backend_cuda *b, const backend_options *o, error *err)
{
    RETURN_IF_ERROR(make_pool(b, o, err));
    RETURN_IF_ERROR(make_host_tier(b, o, err));
    status s = cuda_sums_create(b);
    if (status_ok(s)) s = cuda_retrieve_create(b);
    if (status_ok(s)) return s;
    return error_set(err, STATUS_NO_MEMORY,
                     "kv-memory: no room for running sums and representatives: %s",
                     b->device.api->why(b->device.g));
}

static status make_far(backend_cuda *b, const backend_options *o, error *err)
{
    cuda_far_options far = {.device = &b->device,
                            .window = b->window,
                            .pages = &b->pages,
                            .config = &b->config,
                            .pool = b->pool,
                            .isa = o->isa,
                            .geometry = b->info.geometry,
                            .max_seqs = o->max_seqs};
    return cuda_far_create(&far, &b->far, err);
}

/* ---- ranks with a GPU each ------------------------------------------------------------------- */

enum { CONNECT_US = 20 * 1000 * 1000, ADDRESS_MOST = 4096 };

/* Rank 0 tells the others where they meet. */
static status connect(comm *threads, comm *meeting, error *err)
{
    uint8_t bytes[ADDRESS_MOST];
    float own = (float)comm_own_address(meeting).n;
    float *all = calloc((size_t)comm_size(threads), sizeof *all);
    if (!all) return error_set(err, STATUS_NO_MEMORY, "backend: out of memory");
    status s = comm_all_gather(threads, &own, 1, all);
    comm_address first = {bytes, (size_t)all[0]};
    free(all);
    if (status_ok(s) && first.n > sizeof bytes) s = status_make(STATUS_LIMIT, NULL);
    if (status_ok(s) && comm_rank(threads) == 0)
        memcpy(bytes, comm_own_address(meeting).bytes, first.n);
    if (status_ok(s)) s = comm_broadcast(threads, bytes, first.n, 0);
    if (!status_ok(s)) return error_set(err, s.code, "backend: %s", status_text(s.code));
    return comm_connect(meeting, &first, CONNECT_US, err);
}

/* Opens the rank's own GPU, and has it meet the others there. Sets o->common.group. */
static status meet_on_gpus(backend_cuda *b, backend_cuda_options *o, error *err)
{
    comm *threads = o->common.group;
    o->ordinal += (uint32_t)comm_rank(threads);
    RETURN_IF_ERROR(open_device(b, o, err));
    comm_options c = {.kind = "nccl",
                      .rank = comm_rank(threads),
                      .size = comm_size(threads),
                      .stream = b->device.api->stream(b->device.g),
                      .library = o->nccl};
    RETURN_IF_ERROR(comm_create(&c, &b->meeting, err));
    RETURN_IF_ERROR(connect(threads, b->meeting, err));
    b->device.threads = threads;
    o->common.group = b->meeting;
    return STATUS_IS_OK;
}

/* Tells what K and V depend on. The device, its number of multiprocessors and the rows of a step
 * decide the order of sums, and so does the library's algorithm, which is chosen by time unless
 * results must not depend on the rows. Two servers on equal GPUs are taken to choose alike. */
static void tell_cells(backend_cuda *b, const backend_cuda_options *options)
{
    const gpu_facts *f = &b->device.facts;
    const uint64_t numbers[] = {b->info.identity, b->pages.format, b->pages.page_tokens,
                                f->compute,       f->n_sms,        b->invariant};
    uint64_t narrow = hash_bytes(b->narrow, strlen(b->narrow), 0);
    b->info.block_bytes = cuda_block_bytes(b);
    b->info.kv_identity = hash_bytes(numbers, sizeof numbers, narrow + 1);
    b->info.kv_kind = model_kv_kind(&options->common, b->info.identity,
                                    cuda_cpu_format(b->pages.format), b->pages.page_tokens);
}

static status make_cuda_backend(backend_cuda *b, backend_cuda_options *options, error *err)
{
    const backend_options *o = &options->common;
    if (options->own_gpus) RETURN_IF_ERROR(meet_on_gpus(b, options, err));
    b->device.group = o->group;
    RETURN_IF_ERROR(cuda_make_parts(b, options, load_weights, err));
    RETURN_IF_ERROR(cuda_make_pages(b, o, err));
    if (b->window) RETURN_IF_ERROR(make_far(b, o, err));
    status s = make_step_buffers(b, o);
    if (status_ok(s) && !b->window) s = cuda_cells_create(b, options->ordinal);
    if (status_ok(s) && !b->window) tell_cells(b, options);
    return status_ok(s) ? s : error_set(err, s.code, "backend: %s", status_text(s.code));
}

status backend_cuda_create(const backend_cuda_options *options, backend *out, error *err)
{
    backend_cuda *b = calloc(1, sizeof *b);
    if (!b) return error_set(err, STATUS_NO_MEMORY, "backend: out of memory");
    backend_cuda_options own = *options;
    status s = make_cuda_backend(b, &own, err);
    if (!status_ok(s)) {
        cuda_ops.destroy(b);
        return s;
    }
    b->facts.isa = b->device.facts.name;
    b->facts.n_threads = thread_pool_size(b->pool);
    b->facts.weight_bytes = b->weight_bytes;
    b->facts.page_bytes = b->pages.page_bytes;
    b->facts.pool_bytes = b->pool_bytes;
    b->facts.host_bytes = b->window ? cuda_window_host_bytes(b->window) : 0;
    b->facts.swap_bytes = b->host_cells.n * b->pages.page_bytes;
    if (b->narrow[0]) b->facts.narrow = b->narrow;
    if (b->device.sums[0]) b->facts.sums = b->device.sums;
    *out = (backend){&cuda_ops, b};
    return STATUS_IS_OK;
}

backend_facts backend_cuda_describe(const backend *b)
{
    assert(b->ops == &cuda_ops);
    return ((const backend_cuda *)b->ctx)->facts;
}
