/* Makes a CPU backend: weights, then the pool of pages, the host tier, and the buffers of steps. */
#include "model/cpu/backend_cpu.h"

#include "disk/spill.h"
#include "model/cpu/kv_filling.h"
#include "model/cpu/kv_moves.h"
#include "model/cpu/kv_pool.h"
#include "model/cpu/retrieve.h"
#include "model/kv_kind.h"
#include "model/sizes.h"

#include <stdlib.h>
#include <string.h>

/* Limit of the logits of a step's prompt rows: 128 rows with a vocabulary of 128K. Scored rows need
 * less memory (scores.c) but as much time, so they count against it too. */
enum { LOGITS_BYTES = 64 << 20 };

static status load_weights(backend_cpu *b, const backend_options *o, error *err)
{
    int64_t start = clock_now_us();
    /* Ranks on one machine would all pin their workers to its first cores. */
    thread_pool_options threads = {.n_threads = o->n_threads, .pin = comm_size(o->group) == 1};
    status s = thread_pool_create(&threads, &b->pool);
    if (!status_ok(s)) return error_set(err, s.code, "threads: cannot start %u", o->n_threads);
    kern_options kopts = {.pool = b->pool, .isa = o->isa, .precision = o->precision};
    RETURN_IF_ERROR(kern_create(&kopts, &b->kernels, err));
    weights_options wanted = sizes_weights(o, &b->config, comm_rank(o->group), comm_size(o->group));
    wanted.kernels = b->kernels;
    wanted.block_floats = kern_block_floats(b->kernels, DTYPE_BF16);
    wanted.pool = b->pool;
    RETURN_IF_ERROR(weights_load(&wanted, &b->weights, err));
    b->facts.load_us = clock_now_us() - start;
    return STATUS_IS_OK;
}

/* The default share of memory once all ranks have their weights. Rank 0's number counts for all. */
static status default_pool_bytes(const backend_options *o, uint64_t *bytes)
{
    float nothing = 0.0f;
    RETURN_IF_ERROR(comm_all_reduce_sum(o->group, &nothing, 1));
    *bytes = sizes_for_ranks(sizes_default_pool(memory_available_bytes(), MODEL_POOL_SHARE),
                             sizes_ranks_here(o), (uint64_t)comm_size(o->group));
    return comm_broadcast(o->group, bytes, sizeof *bytes, 0);
}

static status make_pool(backend_cpu *b, const backend_options *o, error *err)
{
    uint32_t n_ranks = (uint32_t)comm_size(o->group);
    RETURN_IF_ERROR(sizes_check_disk(o, err));
    RETURN_IF_ERROR(sizes_check_host(o, false, n_ranks, err));
    kv_store_layout(&b->store, o->kv_type, &b->info.geometry, b->config.head_dim,
                    b->weights.slice.first_kv_head, b->weights.slice.n_kv_heads);
    if (o->kv_disk) kv_store_align(&b->store, SPILL_ALIGN);
    b->store.residual_pages = o->kv_residual / b->info.geometry.page_tokens;

    uint64_t left = 0;
    if (o->kv_bytes == 0) {
        status s = default_pool_bytes(o, &left);
        if (!status_ok(s)) return error_set(err, s.code, "kv-memory: %s", s.message);
    }
    sizes_pool pool;
    RETURN_IF_ERROR(sizes_of_pool(o, &b->store, n_ranks, left, &pool, err));
    kv_store_set_pool(&b->store, pool.n_pages);
    return kv_pool_create(&b->store, o, pool.n_frames, err);
}

/* Reserves addresses for swapped sequences; memory is committed as pages are written. The tier
 * takes at most half of the memory that a full pool leaves, and nothing where that is less than a
 * block. All ranks have as many pages as rank 0 finds room for. */
static status make_host_tier(backend_cpu *b, const backend_options *o, error *err)
{
    uint64_t ranks = sizes_ranks_here(o), all = (uint64_t)comm_size(o->group);
    uint64_t page_bytes =
        sizes_of_page(&b->info.geometry, b->store.page_bytes, b->store.n_heads, (uint32_t)all);
    uint64_t n = sizes_host_pages(
        &b->info.geometry, o->swap_bytes, sizes_for_ranks(memory_available_bytes(), ranks, all),
        (kv_pool_memory(&b->store) + b->store.cells.n * kv_store_retrieval_bytes(&b->store)) * all,
        page_bytes);
    status s = comm_broadcast(o->group, &n, sizeof n, 0);
    if (!status_ok(s)) return error_set(err, s.code, "swap-memory: %s", s.message);
    if (n == 0) return STATUS_IS_OK;
    b->info.n_host_pages = (uint32_t)n;
    kv_store_set_host(&b->store, b->info.n_host_pages);
    return kv_pool_create_host(&b->store, err);
}

static status make_filling(backend_cpu *b, const backend_options *o)
{
    kv_filling_options filling = {
        .store = &b->store,
        .mirror = b->mirror,
        .kernels = b->kernels,
        .pool = b->pool,
        .n_host_pages = b->info.n_host_pages,
        .max_rows = o->max_rows,
        .max_seqs = o->max_seqs,
    };
    RETURN_IF_ERROR(kv_filling_create(&filling, &b->store.filling));
    b->facts.filling_bytes = kv_filling_bytes(b->store.filling);
    return STATUS_IS_OK;
}

static status make_shards(backend_cpu *b, const backend_options *o)
{
    sampler_shards_options shards = {.sampler = b->sampler,
                                     .pool = b->pool,
                                     .group = o->group,
                                     .max_draws = step_most_draws(o->max_seqs),
                                     .vocab_size = b->config.vocab_size,
                                     .slice = (uint32_t)b->weights.head.n};
    return sampler_shards_create(&shards, &b->shards);
}

static status make_step_buffers(backend_cpu *b, const backend_options *o)
{
    RETURN_IF_ERROR(
        pkv_mirror_create(&b->info.geometry, b->store.n_pages, o->max_seqs, NULL, &b->mirror));
    if (kern_kv_has_grids(o->kv_type)) RETURN_IF_ERROR(make_filling(b, o));
    RETURN_IF_ERROR(kv_pool_create_representatives(&b->store));
    b->info.note_bytes =
        sizes_note_bytes(&b->store, b->store.n_pages, (uint32_t)comm_size(o->group));
    RETURN_IF_ERROR(sampler_create(o->max_seqs, b->config.vocab_size, b->pool, &b->sampler));
    if (comm_size(o->group) > 1) RETURN_IF_ERROR(make_shards(b, o));
    forward_options pass = {
        .config = &b->config,
        .weights = &b->weights,
        .kernels = b->kernels,
        .pool = b->pool,
        .group = o->group,
        .store = &b->store,
        .mirror = b->mirror,
        .max_rows = o->max_rows,
        .max_seqs = o->max_seqs,
        .note_bytes = b->info.note_bytes,
        .interrupted = &b->interrupted,
    };
    RETURN_IF_ERROR(forward_create(&pass, &b->forward));
    RETURN_IF_ERROR(row_order_create(&b->order, o->max_seqs, o->max_rows));
    b->seq_results = calloc(o->max_seqs, sizeof *b->seq_results);
    b->seqs = calloc(o->max_seqs, sizeof *b->seqs);
    b->samples = calloc(step_most_draws(o->max_seqs), sizeof *b->samples);
    b->draws = calloc(step_most_draws(o->max_seqs), sizeof *b->draws);
    b->logit_rows = calloc((size_t)o->max_rows + o->max_seqs, sizeof *b->logit_rows);
    b->readings = calloc(o->max_rows, sizeof *b->readings);
    b->logits_capacity = o->max_seqs * b->weights.head.n;
    b->logits = malloc(b->logits_capacity * sizeof *b->logits);
    bool ok = b->seq_results && b->seqs && b->samples && b->draws && b->logit_rows && b->readings &&
              b->logits;
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "step buffers");
}

/* Stands for all that K and V of given tokens depend on, to the last bit: the weights' identity has
 * what the model's configuration says, RoPE among it. That identity samples the tensors, which
 * blocks that outlive the process may not rely on: a change of few weights may be in no sample, so
 * `files` stands for the files' sizes and times, too; 0 where they do not count. */
static uint64_t kv_identity(const backend_cpu *b, const backend_options *o, uint64_t files)
{
    const char *isa = kern_isa_name(b->kernels);
    const kern_quant floats = kern_block_floats(b->kernels, o->weight_type);
    const uint64_t numbers[] = {
        b->weights.identity,
        files,
        b->store.shape.format,
        b->store.shape.page_tokens,
        o->weight_type,
        o->quant_bits,
        (uint64_t)o->quant_attention,
        o->quant_group,
        o->precision,
        floats.bits,
    };
    return hash_bytes(isa, strlen(isa), hash_bytes(numbers, sizeof numbers, 0));
}

static void fill_info(backend_cpu *b, const backend_options *o)
{
    b->gives_scores = comm_rank(o->group) == 0;
    b->info.name = "cpu";
    b->info.vocab_size = b->config.vocab_size;
    b->info.max_positions = model_max_length(&b->config);
    b->info.max_rows = o->max_rows;
    b->info.max_seqs = o->max_seqs;
    size_t rows = LOGITS_BYTES / (b->config.vocab_size * sizeof(float));
    b->info.max_logit_rows = rows < 16 ? 16 : rows > o->max_rows ? o->max_rows : (uint32_t)rows;
    b->info.logit_row_cost = sizes_logit_row_cost(&b->config, comm_size(o->group));
    b->info.retrieves = RETRIEVE_CAN;
    b->info.masks = true;
    b->info.n_heads = b->config.n_heads;
    b->info.head_dim = b->config.head_dim;
    b->info.hidden = b->config.hidden;
    b->info.n_pages = b->store.n_pages;
    b->info.max_in_flight = 1;
    b->info.identity = b->weights.identity;
    /* Pages of formats with grids may be filling, and pages may be out of memory. */
    if (!b->store.filling && !b->store.tier) b->info.block_bytes = kv_block_bytes(&b->store);
    b->info.block_identity = kv_identity(b, o, b->weights.files);
    if (b->info.block_bytes) {
        b->info.kv_identity = kv_identity(b, o, 0);
        b->info.kv_kind = model_kv_kind(o, b->weights.identity, b->store.shape.format,
                                        b->store.shape.page_tokens);
    }
    b->facts.isa = kern_isa_name(b->kernels);
    b->facts.n_threads = thread_pool_size(b->pool);
    b->facts.weight_bytes = b->weights.bytes;
    b->facts.from_cache = b->weights.from_cache;
    b->facts.page_bytes = b->store.page_bytes;
    b->facts.pool_bytes = kv_pool_memory(&b->store);
    b->facts.disk_bytes = b->store.tier ? kv_pool_bytes(&b->store) : 0;
    b->facts.swap_bytes = kv_pool_host_bytes(&b->store);
}

status backend_cpu_create(const backend_options *options, backend *out, error *err)
{
    backend_cpu *b = calloc(1, sizeof *b);
    if (!b) return error_set(err, STATUS_NO_MEMORY, "backend: out of memory");
    b->config = *options->config;
    if (options->max_model_len) b->config.rope.length = options->max_model_len;
    b->group = options->group;
    status s = model_geometry(options, (uint32_t)comm_size(options->group), &b->info.geometry, err);
    if (status_ok(s)) s = load_weights(b, options, err);
    if (status_ok(s)) s = make_pool(b, options, err);
    if (status_ok(s)) s = make_host_tier(b, options, err);
    if (status_ok(s)) {
        s = make_step_buffers(b, options);
        if (!status_ok(s)) error_set(err, s.code, "backend: %s", status_text(s.code));
    }
    if (!status_ok(s)) {
        backend_cpu_ops.destroy(b);
        return s;
    }
    fill_info(b, options);
    *out = (backend){&backend_cpu_ops, b};
    return STATUS_IS_OK;
}
