/* The CPU backend: a step plan in, tokens and measures out (backend/backend.h). */
#include "model/cpu/backend_cpu.h"

#include "model/cpu/kv_filling.h"
#include "model/cpu/kv_hold.h"
#include "model/cpu/kv_moves.h"
#include "model/cpu/kv_pool.h"
#include "model/cpu/kv_tier.h"
#include "model/measures.h"
#include "model/plan.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

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

const backend_ops backend_cpu_ops = {
    .info = cpu_info,
    .submit = cpu_submit,
    .collect = cpu_collect,
    .interrupt = cpu_interrupt,
    .read_cells = cpu_read_cells,
    .write_cells = cpu_write_cells,
    .destroy = cpu_destroy,
};

/* ---- what others ask ------------------------------------------------------------------------- */

backend_facts backend_cpu_describe(const backend *b)
{
    assert(b->ops == &backend_cpu_ops);
    return ((const backend_cpu *)b->ctx)->facts;
}

bool backend_cpu_times(const backend *b, backend_times *out)
{
    if (b->ops != &backend_cpu_ops) return false;
    const backend_cpu *cpu = b->ctx;
    *out = forward_times(cpu->forward);
    return comm_size(cpu->group) == 1;
}

bool backend_cpu_pass(const backend *of, forward_options *out)
{
    if (of->ops != &backend_cpu_ops) return false;
    backend_cpu *b = of->ctx;
    *out = (forward_options){
        .config = &b->config, .weights = &b->weights, .group = b->group, .store = &b->store};
    return comm_size(b->group) == 1;
}
