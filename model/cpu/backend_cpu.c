/* The CPU backend: a step plan in, tokens and measures out (backend/backend.h). */
#include "model/cpu/embeds.h"
#include "model/cpu/forward.h"
#include "model/cpu/kv_filling.h"
#include "model/cpu/kv_hold.h"
#include "model/cpu/kv_moves.h"
#include "model/cpu/kv_pool.h"
#include "model/cpu/kv_tier.h"
#include "model/cpu/pooling.h"
#include "model/cpu/retrieve.h"
#include "model/cpu/row_order.h"
#include "model/cpu/scores.h"
#include "model/kv_kind.h"
#include "model/measured.h"
#include "model/measures.h"
#include "model/plan.h"
#include "model/sampler_shards.h"
#include "model/sizes.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Limit of the logits of a step's prompt rows: 128 rows with a vocabulary of 128K. Scored rows need
 * less memory (scores.c) but as much time, so they count against it too. */
enum { LOGITS_BYTES = 64 << 20 };

typedef struct backend_cpu {
    model_config config;
    backend_info info;
    backend_facts facts;
    comm *group; /* borrowed */
    thread_pool *pool;
    kern_context *kernels;
    model_weights weights;
    kv_store store;
    pkv_mirror *mirror;
    forward *forward;
    sampler *sampler;
    sampler_shards *shards; /* NULL: one rank */

    _Atomic bool interrupted;
    const step_plan *plan; /* submitted, not yet collected */
    step_result result;
    step_seq_result *seq_results; /* [max_seqs] */
    forward_seq *seqs;            /* [max_seqs] in the order of the pass */
    row_order order;
    step_sample *samples;        /* [step_most_draws] */
    sampler_draw *draws;         /* [step_most_draws] */
    uint32_t *logit_rows;        /* [max_rows + max_seqs] */
    retrieval_reading *readings; /* [max_rows] a row's lies at its index in the step */
    /* Both grow when a plan needs more; steady decoding does not grow them. */
    float *logits;
    size_t logits_capacity; /* floats */
    measured measures;
    embed_room embeddings;
    row_scores scores;
    row_pooling pooling;
    bool gives_scores; /* rank 0, whose scores stand for all ranks */
} backend_cpu;

/* Ends the use of pages that something outside layers, or a step that failed, still holds. */
static void release_pages(backend_cpu *b)
{
    if (b->store.tier) kv_tier_release(b->store.tier, b->info.geometry.n_layers);
}

/* ---- before compute: tables, moves, samplers ------------------------------------------------- */

/* Copies a whole page to the host tier or back. */
static status copy_page(backend_cpu *b, const pkv_move *m)
{
    const kv_store *s = &b->store;
    bool out = m->kind == PKV_MOVE_OUT;
    uint32_t page = out ? m->src_page : m->dst_page, host = out ? m->dst_page : m->src_page;
    if (!pkv_has_cell(s->cells, page) || !pkv_has_cell(s->host_cells, host))
        return status_make(STATUS_INVALID, "plan: a copy outside the pool or the host tier");
    uint8_t *here = kv_store_page(s, page), *there = kv_store_host_page(s, host);
    if (s->filling) RETURN_IF_ERROR(kv_filling_copy(s->filling, m));
    else memcpy(out ? there : here, out ? here : there, s->page_bytes);
    kv_store_move_sums(s, m);
    return STATUS_IS_OK;
}

/* Moves slots from one cell to another. */
static status move_slots(backend_cpu *b, const pkv_move *m)
{
    const kv_store *s = &b->store;
    uint32_t tiles = s->geometry.layers_per_group * s->heads_in_page;
    if (!pkv_has_cell(s->cells, m->src_page) || !pkv_has_cell(s->cells, m->dst_page) ||
        m->n_slots > s->shape.page_tokens || m->src_slot > s->shape.page_tokens - m->n_slots ||
        m->dst_slot > s->shape.page_tokens - m->n_slots)
        return status_make(STATUS_INVALID, "plan: a move outside the pool");
    if (llabs(m->rotate) >= b->info.max_positions)
        return status_make(STATUS_INVALID, "plan: a move that rotates keys too far");
    if (s->filling) {
        RETURN_IF_ERROR(kv_filling_move(s->filling, &b->config.rope, m));
    } else if (m->rotate != 0) {
        kv_move_rotated(s, b->kernels, &b->config.rope, m);
    } else {
        uint8_t *dst = kv_store_page(s, m->dst_page);
        const uint8_t *src = kv_store_page(s, m->src_page);
        for (uint32_t t = 0; t < tiles; t++)
            kern_kv_move(&s->shape, dst + t * s->tile_bytes, m->dst_slot, src + t * s->tile_bytes,
                         m->src_slot, m->n_slots);
    }
    kv_store_move_sums(s, m);
    return STATUS_IS_OK;
}

/* Makes the move for each cell of its two runs that is stored here. */
static status make_move(backend_cpu *b, const pkv_move *m)
{
    const pkv_geometry *g = &b->store.geometry;
    RETURN_IF_ERROR(kv_hold_move(&b->store, m, b->info.n_host_pages));
    for (uint32_t i = 0, n = pkv_move_cells(g, m); i < n; i++) {
        pkv_move cell = pkv_move_cell(g, m, i, b->store.n_pages - 1, b->info.n_host_pages);
        if (!kv_store_is_ours(&b->store, cell.group)) continue;
        RETURN_IF_ERROR(m->kind == PKV_MOVE_SLOTS ? move_slots(b, &cell) : copy_page(b, &cell));
        if (m->kind != PKV_MOVE_OUT) kv_store_forget(&b->store, cell.dst_page);
    }
    release_pages(b);
    return STATUS_IS_OK;
}

/* Later plans count on all moves, so one that cannot be made ends the backend. */
static status apply_moves(backend_cpu *b, const pkv_move *moves, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        status s = make_move(b, &moves[i]);
        if (!status_ok(s)) return status_make(STATUS_INTERNAL, s.message);
    }
    return STATUS_IS_OK;
}

static status prepare_step(backend_cpu *b, const step_plan *plan)
{
    forward_end_notes(b->forward, plan->ended_notes, plan->n_ended_notes);
    RETURN_IF_ERROR(plan_follow(b->mirror, plan));
    RETURN_IF_ERROR(apply_moves(b, plan->deltas.moves, plan->deltas.n_moves));
    for (uint32_t i = 0; i < plan->n_opens; i++)
        RETURN_IF_ERROR(sampler_open(b->sampler, &plan->opens[i]));
    RETURN_IF_ERROR(plan_check(&b->info, b->mirror, plan));
    sampler_count_given(b->sampler, plan);
    return STATUS_IS_OK;
}

static status grow_buffer(float **buffer, size_t *capacity, size_t n)
{
    if (n <= *capacity) return STATUS_IS_OK;
    float *grown = alloc_resize(NULL, *buffer, n, sizeof(float));
    if (!grown) return status_make(STATUS_NO_MEMORY, "step buffers");
    *buffer = grown;
    *capacity = n;
    return STATUS_IS_OK;
}

/* ---- measures -------------------------------------------------------------------------------- */

static void lay_out_measure(backend_cpu *b, const step_seq *s, forward_seq *f, measure_result *m)
{
    f->measure = s->measure;
    if (f->measure.rows > s->n_tokens) f->measure.rows = s->n_tokens;
    if (s->measure.sum != MEASURE_SUM_STEP) b->store.has_sums = true;
    if (measures_arrays(&s->measure) == 0) return;
    f->stride = plan_longest_table(b->mirror, s->seq, measures_by_slot(&s->measure));
    m->n_layers = measure_layers(&b->info.geometry, f->measure.layer_step);
    m->n_kv_heads = b->store.n_heads;
    m->stride = f->stride;
    m->q_heads = b->config.n_heads / b->config.n_kv_heads;
}

static forward_seq *seq_of(backend_cpu *b, uint32_t share)
{
    return &b->seqs[b->order.place[share]];
}

/* Lays out one share; adds the floats of its measure. */
static void lay_out_share(backend_cpu *b, const step_seq *s, uint32_t share, size_t *floats)
{
    forward_seq *f = seq_of(b, share);
    step_seq_result *r = &b->seq_results[share];
    *f = (forward_seq){.seq = s->seq,
                       .first_row = b->order.first_row[share],
                       .n_rows = s->n_tokens,
                       .position = s->position,
                       .retrieval = s->retrieval,
                       .dense_rows = plan_dense_rows(b->mirror, s),
                       .n_prompt = s->n_prompt,
                       .note = s->note,
                       .choice = s->choice,
                       .embeds = s->embeds,
                       .n_embeds = s->n_embeds,
                       .n_layers = s->n_layers};
    *r = (step_seq_result){0};
    if (s->retrieval.block_tokens) {
        b->store.has_marks = true;
        f->readings = b->readings + s->first_token + f->dense_rows;
        r->readings = f->readings;
        r->n_readings = s->n_tokens - f->dense_rows;
    }
    if (s->measure.kind == MEASURE_NONE) return;
    lay_out_measure(b, s, f, &r->measure);
    *floats += measures_arrays(&s->measure) * plan_measure_floats(&r->measure);
}

/* Lays out this step's sequences, their embeddings and their measures. */
static status lay_out(backend_cpu *b, const step_plan *plan)
{
    size_t floats = 0;
    row_order_set(&b->order, plan);
    for (uint32_t i = 0; i < plan->n_seqs; i++) lay_out_share(b, &plan->seqs[i], i, &floats);
    RETURN_IF_ERROR(embeds_lay_out(&b->embeddings, &b->info, b->group, plan, b->order.place,
                                   b->seqs, b->seq_results));
    if (floats == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(measured_reserve(&b->measures, floats));
    float *at = b->measures.first->values;
    const pkv_geometry *g = &b->info.geometry;
    bool selects = retention_selecting_layers(g, g->n_layers) > 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        measure_result *m = &b->seq_results[i].measure;
        uint32_t arrays = measures_arrays(&plan->seqs[i].measure);
        if (arrays == 0) continue;
        seq_of(b, i)->values = at;
        m->values = at;
        m->holders = &b->measures.first->holders;
        if (!selects || plan->seqs[i].n_layers)
            memset(at, 0, arrays * plan_measure_floats(m) * sizeof *at);
        at += arrays * plan_measure_floats(m);
    }
    return STATUS_IS_OK;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Lists the rows whose logits the plan wants, then one row for each sequence that samples. Returns
 * how many there are; the first *n_asked are wanted. */
static uint32_t list_logit_rows(backend_cpu *b, const step_plan *plan, uint32_t *n_asked)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        for (uint32_t t = 0; plan->seqs[i].want_logits && t < plan->seqs[i].n_tokens; t++)
            b->logit_rows[n++] = b->order.first_row[i] + t;
    *n_asked = n;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].n_samples)
            b->logit_rows[n++] = b->order.first_row[i] + plan->seqs[i].n_tokens - 1;
    return n;
}

/* Lays out all draws from rows of `width` logits. Returns how many there are. */
static uint32_t lay_out_draws(backend_cpu *b, const step_plan *plan, const float *row, size_t width)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (!s->n_samples) continue;
        b->seq_results[i].samples = &b->samples[n];
        b->seq_results[i].n_samples = s->n_samples;
        for (uint32_t j = 0; j < s->n_samples; j++, n++)
            b->draws[n] = (sampler_draw){.seq = s->seq,
                                         .choice = s->choice + j,
                                         .sample_index = s->sample_index,
                                         .own = j == 0,
                                         .logits = row,
                                         .mask = s->n_mask_words ? s->mask : NULL,
                                         .out = &b->samples[n]};
        row += width;
    }
    return n;
}

/* Computes logits and draws tokens. Rows whose logits the plan wants are joined over ranks and lie
 * together in the result. Behind them are those that are drawn from, of which each rank has its own
 * tokens alone. */
static status sample_rows(backend_cpu *b, const step_plan *plan)
{
    uint32_t n_asked, n_rows = list_logit_rows(b, plan, &n_asked), n_drawn = n_rows - n_asked;
    size_t asked = n_asked * (size_t)b->config.vocab_size, width = b->weights.head.n;
    RETURN_IF_ERROR(grow_buffer(&b->logits, &b->logits_capacity, asked + n_drawn * width));
    float *drawn = b->logits + asked;
    int64_t start = clock_now_us();
    RETURN_IF_ERROR(forward_logits(b->forward, b->logit_rows, n_asked, b->logits));
    RETURN_IF_ERROR(forward_own_logits(b->forward, b->logit_rows + n_asked, n_drawn, drawn));
    b->result.model_us += clock_now_us() - start;
    b->result.logits = b->logits;
    b->result.n_logit_rows = n_asked;
    uint32_t n_draws = lay_out_draws(b, plan, drawn, width);
    if (b->shards) return sampler_shards_run(b->shards, b->draws, n_draws);
    sampler_run(b->sampler, b->draws, n_draws);
    return STATUS_IS_OK;
}

/* ---- the interface --------------------------------------------------------------------------- */

static const backend_info *cpu_info(void *ctx)
{
    backend_cpu *b = ctx;
    return &b->info;
}

static status cpu_submit(void *ctx, const step_plan *plan)
{
    backend_cpu *b = ctx;
    assert(!b->plan && "one step in flight");
    b->plan = plan;
    return STATUS_IS_OK;
}

static status run_step(backend_cpu *b, const step_plan *plan)
{
    RETURN_IF_ERROR(prepare_step(b, plan));
    if (plan->n_seqs == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(lay_out(b, plan));
    int64_t start = clock_now_us();
    RETURN_IF_ERROR(
        forward_run(b->forward, b->order.tokens, plan->n_tokens, b->seqs, plan->n_seqs));
    b->result.model_us = clock_now_us() - start;
    b->result.measure_us = forward_measure_us(b->forward);
    RETURN_IF_ERROR(row_scores_run(&b->scores, b->forward, b->pool, b->config.vocab_size,
                                   b->gives_scores, plan, b->order.first_row, b->seq_results));
    RETURN_IF_ERROR(row_pooling_run(&b->pooling, b->forward, b->config.hidden, plan,
                                    b->order.first_row, b->seq_results));
    return sample_rows(b, plan);
}

/* Computes the step on the caller's thread and the pool, because the caller would only wait. */
static status cpu_collect(void *ctx, const step_result **out)
{
    backend_cpu *b = ctx;
    assert(b->plan);
    int64_t start = clock_now_us();
    b->result = (step_result){.step = b->plan->step, .seqs = b->seq_results};
    b->store.ended = STEP_ENDED_ALONE;
    b->result.status = run_step(b, b->plan);
    b->result.end = b->store.ended;
    if (status_ok(b->result.status)) b->result.n_seqs = b->plan->n_seqs;
    release_pages(b);
    if (b->store.tier) b->result.tier = kv_tier_count(b->store.tier);
    b->result.checksum = pkv_mirror_checksum(b->mirror);
    b->result.compute_us = clock_now_us() - start;
    b->plan = NULL;
    *out = &b->result;
    return atomic_load(&b->interrupted) ? status_make(STATUS_INTERNAL, "interrupted")
                                        : STATUS_IS_OK;
}

static void cpu_interrupt(void *ctx) { atomic_store(&((backend_cpu *)ctx)->interrupted, true); }

static void cpu_destroy(void *ctx)
{
    backend_cpu *b = ctx;
    if (!b) return;
    sampler_shards_destroy(b->shards);
    sampler_destroy(b->sampler);
    forward_destroy(b->forward);
    kv_filling_destroy(b->store.filling);
    pkv_mirror_destroy(b->mirror);
    kv_pool_destroy(&b->store);
    weights_destroy(&b->weights);
    kern_destroy(b->kernels);
    thread_pool_destroy(b->pool);
    free(b->seq_results);
    free(b->seqs);
    row_order_free(&b->order);
    free(b->embeddings.values);
    free(b->samples);
    free(b->draws);
    free(b->logit_rows);
    free(b->readings);
    free(b->logits);
    measured_destroy(&b->measures);
    row_scores_free(&b->scores);
    row_pooling_free(&b->pooling);
    free(b);
}

static bool cpu_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                           uint8_t *const *to, uint32_t each)
{
    const kv_store *store = &((backend_cpu *)ctx)->store;
    for (uint32_t i = 0; i < n; i += each)
        kv_read_cells(store, cells + i, n - i < each ? n - i : each, n_slots, to[i / each]);
    return true;
}

static bool cpu_write_cells(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from)
{
    kv_write_cells(&((backend_cpu *)ctx)->store, cells, n, from);
    return true;
}

static const backend_ops cpu_ops = {
    .info = cpu_info,
    .submit = cpu_submit,
    .collect = cpu_collect,
    .interrupt = cpu_interrupt,
    .read_cells = cpu_read_cells,
    .write_cells = cpu_write_cells,
    .destroy = cpu_destroy,
};

/* ---- creation -------------------------------------------------------------------------------- */

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
        cpu_destroy(b);
        return s;
    }
    fill_info(b, options);
    *out = (backend){&cpu_ops, b};
    return STATUS_IS_OK;
}

backend_facts backend_cpu_describe(const backend *b)
{
    assert(b->ops == &cpu_ops);
    return ((const backend_cpu *)b->ctx)->facts;
}

bool backend_cpu_times(const backend *b, backend_times *out)
{
    if (b->ops != &cpu_ops) return false;
    const backend_cpu *cpu = b->ctx;
    *out = forward_times(cpu->forward);
    return comm_size(cpu->group) == 1;
}

bool backend_cpu_pass(const backend *of, forward_options *out)
{
    if (of->ops != &cpu_ops) return false;
    backend_cpu *b = of->ctx;
    *out = (forward_options){
        .config = &b->config, .weights = &b->weights, .group = b->group, .store = &b->store};
    return comm_size(b->group) == 1;
}
