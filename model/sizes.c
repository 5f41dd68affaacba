#include "model/sizes.h"

#include "model/cpu/forward.h"
#include "model/cpu/kv_filling.h"
#include "model/cpu/kv_tier.h"
#include "model/cpu/retrieve.h"

#include <string.h>

/* ---- what the options ask for ---------------------------------------------------------------- */

_Static_assert(MODEL_LAYERS_MAX <= 64 * PKV_WINDOW_WORDS, "a bit for each layer");

static void set_windows(const model_config *c, pkv_geometry *g)
{
    g->window = c->window;
    memset(g->window_layers, 0, sizeof g->window_layers);
    for (uint32_t l = 0; l < c->n_layers; l++)
        if (c->layers[l] & LAYER_WINDOW) g->window_layers[l / 64] |= UINT64_C(1) << l % 64;
}

static status check_residual(const backend_options *o, error *err)
{
    uint32_t n = o->kv_residual, page_tokens = o->geometry.page_tokens;
    if (n == 0) return STATUS_IS_OK;
    if (!kern_kv_has_grids(o->kv_type))
        return error_set(err, STATUS_INVALID,
                         "kv-residual: it goes with int4 and int2 pages, and these are %s",
                         kern_kv_name(o->kv_type));
    if (n > MODEL_RESIDUAL_MAX)
        return error_set(err, STATUS_INVALID, "kv-residual: %u tokens are more than %d", n,
                         MODEL_RESIDUAL_MAX);
    if (n % page_tokens != 0)
        return error_set(err, STATUS_INVALID,
                         "kv-residual: %u is not a multiple of the %u tokens of a page", n,
                         page_tokens);
    return STATUS_IS_OK;
}

static status check_format(const backend_options *o, error *err)
{
    uint32_t group = kern_kv_facts_of(o->kv_type).group, page_tokens = o->geometry.page_tokens;
    if (group == 0 || page_tokens % group == 0) return check_residual(o, err);
    return error_set(err, STATUS_INVALID,
                     "page-tokens: %u is not a multiple of %u, which pages of %s need", page_tokens,
                     group, kern_kv_name(o->kv_type));
}

status model_geometry(const backend_options *o, uint32_t n_ranks, pkv_geometry *out, error *err)
{
    *out = o->geometry;
    out->n_layers = o->config->n_layers;
    out->n_kv_heads = o->config->n_kv_heads;
    set_windows(o->config, out);
    if (out->heads_per_group > 0 && out->heads_per_group <= out->n_kv_heads)
        out->n_shares = pkv_shares_for(out, n_ranks);
    RETURN_IF_ERROR(pkv_geometry_check(out, err));
    RETURN_IF_ERROR(sizes_check_disk(o, err));
    return check_format(o, err);
}

status sizes_check_disk(const backend_options *o, error *err)
{
    if (!o->kv_disk) return STATUS_IS_OK;
    if (kern_kv_has_grids(o->kv_type))
        return error_set(err, STATUS_UNSUPPORTED,
                         "kv-disk: pages of %s cannot lie on disk: f32, bf16, f16 or int8",
                         kern_kv_name(o->kv_type));
    if (o->kv_disk_bytes > 0) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "kv-disk: kv-disk-size is missing");
}

status sizes_check_host(const backend_options *o, bool has_device, uint32_t n_ranks, error *err)
{
    if (!o->kv_host_bytes || (has_device && n_ranks == 1)) return STATUS_IS_OK;
    if (!has_device)
        return error_set(err, STATUS_UNSUPPORTED,
                         "kv-host: only a GPU's pool can have pages in host memory");
    return error_set(err, STATUS_UNSUPPORTED, "kv-host: needs one rank, and there are %u", n_ranks);
}

weights_options sizes_weights(const backend_options *o, const model_config *config, int rank,
                              int size)
{
    return (weights_options){
        .dir = o->dir,
        .config = config,
        .dummy = o->dummy,
        .dummy_seed = o->dummy_seed,
        .type = o->weight_type,
        .quant = {o->quant_bits, o->quant_group},
        .attention_bits = o->quant_attention,
        .rank = rank,
        .size = size,
        .ranks_here = o->ranks_here,
        .cache_dir = o->cache_dir,
        .log_line = o->log_line,
        .log_ctx = o->log_ctx,
        .progress = rank == 0 ? o->progress : NULL,
        .progress_ctx = o->progress_ctx,
        .given_up = o->given_up,
    };
}

/* ---- what a backend takes -------------------------------------------------------------------- */

/* The part of a pool that what retrieval keeps for requests may take. With token_step a choice that
 * reads 132 blocks keeps 46 KB in 22 layers of 4 KV heads; one that lists all its blocks of 16
 * tokens keeps a 1,024th of their K and V in bf16, as any other choice that shares these does. */
enum { NOTES_PART = 128, NOTES_LEAST = 1 << 20 };
/* Threads that read keys for exams over ranks, where the options leave their number open. */
enum { THREADS_ASSUMED = 128 };

static uint32_t whole_pages(uint64_t bytes, uint64_t page_bytes)
{
    uint64_t n = bytes / page_bytes;
    return n > PKV_PAGES_MOST ? PKV_PAGES_MOST : (uint32_t)n;
}

static status check_pages(const char *flag, uint64_t bytes, uint64_t page_bytes, error *err)
{
    if (bytes / page_bytes <= PKV_PAGES_MOST) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "%s: %llu bytes are %llu pages of %llu bytes, and a pool has at most "
                     "%d; page-tokens makes them larger",
                     flag, (unsigned long long)bytes, (unsigned long long)(bytes / page_bytes),
                     (unsigned long long)page_bytes, PKV_PAGES_MOST);
}

status sizes_check_pool(const backend_options *o, uint64_t page_bytes, error *err)
{
    if (o->kv_disk) return check_pages("kv-disk-size", o->kv_disk_bytes, page_bytes, err);
    return check_pages("kv-memory", o->kv_bytes, page_bytes, err);
}

static status count_pages(const char *flag, const pkv_geometry *g, uint64_t bytes,
                          uint64_t page_bytes, uint32_t *n, error *err)
{
    *n = whole_pages(bytes, page_bytes);
    *n -= *n % pkv_groups(g); /* whole runs: no memory for numbers that are not handed out */
    if (*n > pkv_groups(g)) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "%s: %llu bytes hold %u pages of %llu bytes; one block needs %u and "
                     "one is spare",
                     flag, (unsigned long long)bytes, *n, (unsigned long long)page_bytes,
                     pkv_groups(g));
}

status sizes_pool_pages(const pkv_geometry *g, uint64_t bytes, uint64_t page_bytes, uint32_t *n,
                        error *err)
{
    return count_pages("kv-memory", g, bytes, page_bytes, n, err);
}

/* The cells of a pool that this rank stores. */
static uint32_t own_cells(const kv_store *s, uint32_t n_pages)
{
    return pkv_cells_of(&s->geometry, n_pages - 1, s->first_head, s->n_heads).n;
}

/* A rank's memory holds all of its own that a layer of a step can read, and both runs of a move. */
static uint32_t least_frames(const kv_store *s, uint32_t n_cells)
{
    const pkv_geometry *g = &s->geometry;
    uint32_t layers = pkv_layer_groups(g), of_layer = (n_cells + layers - 1) / layers;
    uint32_t of_move = 2 * pkv_groups(g) / pkv_shares(g) * pkv_shares_of(g, s->n_heads);
    return of_layer > of_move ? of_layer : of_move;
}

/* page_bytes is that of all ranks. Each rank has an equal part of the memory. */
static status pool_on_disk(const backend_options *o, const kv_store *s, uint32_t n_ranks,
                           uint64_t page_bytes, uint64_t share, sizes_pool *out, error *err)
{
    RETURN_IF_ERROR(count_pages("kv-disk-size", &s->geometry, o->kv_disk_bytes, page_bytes,
                                &out->n_pages, err));
    uint32_t n_cells = own_cells(s, out->n_pages), least = least_frames(s, n_cells);
    uint64_t of_frames = s->page_bytes * n_ranks; /* one of each rank */
    uint64_t beside = n_cells * kv_store_retrieval_bytes(s) * n_ranks;
    uint64_t bytes = o->kv_bytes ? o->kv_bytes : share > beside ? share - beside : 0;
    uint64_t n = bytes / of_frames;
    out->n_frames = n < n_cells ? (uint32_t)n : n_cells;
    if (out->n_frames >= least || out->n_frames == n_cells) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "kv-memory: %llu bytes hold %u pages%s; a layer of a pool of this "
                     "kv-disk-size has %u, which take %llu bytes",
                     (unsigned long long)bytes, out->n_frames, n_ranks > 1 ? " a rank" : "", least,
                     (unsigned long long)(least * of_frames));
}

status sizes_of_pool(const backend_options *o, const kv_store *s, uint32_t n_ranks, uint64_t share,
                     sizes_pool *out, error *err)
{
    *out = (sizes_pool){0};
    uint64_t page_bytes = sizes_of_page(&s->geometry, s->page_bytes, s->n_heads, n_ranks);
    RETURN_IF_ERROR(sizes_check_pool(o, page_bytes, err));
    if (o->kv_disk) return pool_on_disk(o, s, n_ranks, page_bytes, share, out, err);
    uint64_t bytes = o->kv_bytes
                         ? o->kv_bytes
                         : sizes_pages_part(share, s->page_bytes, kv_store_retrieval_bytes(s));
    return sizes_pool_pages(&s->geometry, bytes, page_bytes, &out->n_pages, err);
}

uint32_t sizes_host_pages(const pkv_geometry *g, uint64_t bytes, uint64_t left, uint64_t pool_bytes,
                          uint64_t page_bytes)
{
    uint64_t most = left > pool_bytes ? (left - pool_bytes) / 2 : 0;
    uint32_t n = whole_pages(bytes < most ? bytes : most, page_bytes), groups = pkv_groups(g);
    /* pkv_cell_count has one more, the first, so less than two runs hold no whole block. */
    return n < 2 * groups ? 0 : n - n % groups - 1;
}

uint64_t sizes_note_bytes(const kv_store *s, uint32_t n_pages, uint32_t n_ranks)
{
    uint64_t page = sizes_of_page(&s->geometry, s->page_bytes, s->n_heads, n_ranks) / n_ranks;
    uint64_t bytes = n_pages * page / NOTES_PART;
    return bytes > NOTES_LEAST ? bytes : NOTES_LEAST;
}

/* ---- predictions before a backend is made ---------------------------------------------------- */

/* Measures the weights of a rank of `size`. */
static status measure_weights(const backend_options *o, kern_quant block_floats, int size,
                              weights_measures *out, error *err)
{
    weights_options wanted = sizes_weights(o, o->config, 0, size);
    wanted.block_floats = block_floats;
    return weights_measure(&wanted, out, err);
}

static void lay_out_store(const backend_options *o, const pkv_geometry *g,
                          const tensor_slice *slice, kv_store *store)
{
    kv_store_layout(store, o->kv_type, g, o->config->head_dim, slice->first_kv_head,
                    slice->n_kv_heads);
    if (o->kv_disk) kv_store_align(store, SPILL_ALIGN);
    store->residual_pages = o->kv_residual / g->page_tokens;
}

static uint64_t scratch_bytes(const backend_options *o, const kv_store *store, uint32_t n_ranks,
                              uint32_t n_pages)
{
    const model_config *c = o->config;
    uint32_t q_heads = c->n_heads / n_ranks / store->n_heads;
    const retrieve_limits limits = {.q_heads = q_heads ? q_heads : 1,
                                    .max_rows = o->max_rows,
                                    .max_seqs = o->max_seqs,
                                    .n_slots = retrieve_longest_table(c, &store->geometry, n_pages),
                                    .n_ranks = n_ranks,
                                    .n_threads = o->n_threads ? o->n_threads : THREADS_ASSUMED};
    return retrieve_scratch_bytes(store, &limits);
}

status backend_cpu_measure(const backend_options *o, uint32_t n_ranks, uint64_t memory,
                           double share, backend_measures *out, error *err)
{
    backend_measures m = {0};
    weights_measures slice, whole;
    kern_quant floats;
    const kern_options kernels = {.isa = o->isa, .precision = o->precision};
    RETURN_IF_ERROR(model_ranks_check(o->config, n_ranks, err));
    RETURN_IF_ERROR(sizes_check_host(o, false, n_ranks, err));
    RETURN_IF_ERROR(model_geometry(o, n_ranks, &m.geometry, err));
    RETURN_IF_ERROR(kern_block_floats_of(&kernels, DTYPE_BF16, &floats, err));
    RETURN_IF_ERROR(measure_weights(o, floats, 1, &whole, err));
    RETURN_IF_ERROR(measure_weights(o, floats, (int)n_ranks, &slice, err));
    m.parameters = whole.elements;
    m.weight_bytes = slice.bytes; /* slices are equal */
    m.fits = slice.bytes * n_ranks <= memory;

    kv_store store;
    lay_out_store(o, &m.geometry, &slice.slice, &store);
    uint64_t left = m.fits ? memory - slice.bytes * n_ranks : 0;
    uint64_t page_bytes = sizes_of_page(&m.geometry, store.page_bytes, store.n_heads, n_ranks);
    RETURN_IF_ERROR(sizes_check_pool(o, page_bytes, err));
    m.representatives_of_page = kv_store_retrieval_bytes(&store);
    uint64_t beside = sizes_of_page(&m.geometry, m.representatives_of_page, store.n_heads, n_ranks);
    m.page_bytes = store.page_bytes;
    m.rank_shares = pkv_shares_of(&m.geometry, store.n_heads);
    m.sums_of_page = store.page_sums * sizeof *store.sums;
    if (kern_kv_has_grids(o->kv_type))
        m.filling_bytes = kv_filling_size(&store, o->max_rows, o->max_seqs);
    sizes_pool pool = {0};
    uint64_t usual = sizes_default_pool(left, share);
    if (m.fits && o->kv_disk) RETURN_IF_ERROR(sizes_of_pool(o, &store, n_ranks, usual, &pool, err));
    else if (m.fits && !status_ok(sizes_of_pool(o, &store, n_ranks, usual, &pool, NULL)))
        pool = (sizes_pool){0};
    m.n_pages = pool.n_pages;
    m.n_frames = pool.n_frames;
    if (m.n_frames) m.tier_bytes = kv_tier_bytes(own_cells(&store, m.n_pages), m.n_frames);
    uint64_t held = m.n_frames ? m.n_frames * store.page_bytes * n_ranks : m.n_pages * page_bytes;
    m.note_bytes = sizes_note_bytes(&store, m.n_pages, n_ranks);
    m.scratch_bytes = scratch_bytes(o, &store, n_ranks, m.n_pages);
    m.n_host_pages = sizes_host_pages(&m.geometry, o->swap_bytes, left,
                                      held + (uint64_t)m.n_pages * beside, page_bytes);
    *out = m;
    return STATUS_IS_OK;
}

status backend_cpu_need(const backend_options *o, uint32_t n_ranks, uint64_t left,
                        backend_cpu_needs *out, error *err)
{
    backend_measures m;
    tensor_slice slice;
    RETURN_IF_ERROR(backend_cpu_measure(o, n_ranks, left, MODEL_POOL_SHARE, &m, err));
    RETURN_IF_ERROR(tensor_slice_of(o->config, 0, (int)n_ranks, &slice, err));
    if (m.n_pages == 0 && o->kv_bytes) {
        kv_store store;
        sizes_pool pool;
        lay_out_store(o, &m.geometry, &slice, &store);
        RETURN_IF_ERROR(sizes_of_pool(o, &store, n_ranks, 0, &pool, err));
    }
    uint64_t logits = (uint64_t)o->max_seqs * slice.n_tokens * sizeof(float);
    uint64_t rows = forward_bytes(o->config, &slice, slice.n_tokens, o->max_rows, n_ranks);
    *out = (backend_cpu_needs){
        .weights = m.weight_bytes * n_ranks,
        .pool = m.n_frames ? backend_pool_bytes(&m) * n_ranks
                           : backend_page_bytes(&m, n_ranks) * m.n_pages,
        .representatives = backend_representatives_bytes(&m) * n_ranks,
        .retrieval = (m.note_bytes + m.scratch_bytes) * n_ranks,
        .buffers = (rows + logits + m.filling_bytes + m.tier_bytes) * n_ranks,
        .swap = backend_host_bytes(&m) * n_ranks,
        .block_bytes = backend_page_bytes(&m, n_ranks) * pkv_groups(&m.geometry)};
    return STATUS_IS_OK;
}

status model_fingerprints(const backend_options *o, uint64_t *config, uint64_t *weights, error *err)
{
    weights_measures whole;
    *config = weights_config_hash(o->config);
    *weights = 0;
    if (o->dummy) return STATUS_IS_OK;
    RETURN_IF_ERROR(measure_weights(o, (kern_quant){0}, 1, &whole, err));
    *weights = whole.shapes ? whole.shapes : 1;
    return STATUS_IS_OK;
}

/* ---- what logits cost ------------------------------------------------------------------------ */

/* Writing a logit, its part of the softmax and its rank take about as long as this many of a matrix
 * product's multiplications do (6.5 ns a logit on one AVX-512 core). */
enum { LOGIT_PRODUCTS = 256 };

/* Weights that a row is multiplied with in a layer. */
static uint64_t layer_products(const model_config *c, uint32_t layer)
{
    uint64_t attention = 2 * ((uint64_t)c->n_heads + c->n_kv_heads) * c->head_dim;
    uint64_t ffn = c->ffn, router = 0;
    if (c->layers[layer] & LAYER_SPARSE) {
        ffn = (uint64_t)c->experts_per_token * c->expert_ffn + c->shared_ffn;
        router = c->n_experts;
    }
    return c->hidden * (attention + 3 * ffn + router);
}

uint32_t sizes_logit_row_cost(const model_config *config, int n_ranks)
{
    uint64_t scoring = (uint64_t)LOGIT_PRODUCTS * (uint64_t)n_ranks;
    uint64_t layers = 0, logits = config->vocab_size * (config->hidden + scoring);
    for (uint32_t l = 0; l < config->n_layers; l++) layers += layer_products(config, l);
    uint64_t cost = 100 + (100 * logits + layers - 1) / layers;
    return cost < INT32_MAX ? (uint32_t)cost : INT32_MAX;
}
