/* The CUDA backend: a step plan in, tokens and measures out (backend/backend.h). cuda/create.c
 * refuses models that it has no kernels for. */
#include "model/cuda/backend.h"
#include "model/cuda/retrieve.h"
#include "model/plan.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Lists the rows whose logits the plan wants; those that are drawn from come after them. */
static uint32_t list_logit_rows(backend_cuda *b, const step_plan *plan, uint32_t *n_asked)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        for (uint32_t t = 0; plan->seqs[i].want_logits && t < plan->seqs[i].n_tokens; t++)
            b->logit_rows[n++] = plan->seqs[i].first_token + t;
    *n_asked = n;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].n_samples)
            b->logit_rows[n++] = plan->seqs[i].first_token + plan->seqs[i].n_tokens - 1;
    return n;
}

/* Copies whole logits of these rows to the host. */
static status fetch_some(backend_cuda *b, const uint32_t *rows, uint32_t n, float *out)
{
    cuda_device *d = &b->device;
    size_t slice = b->weights.head.n, vocab = b->config.vocab_size;
    for (uint32_t done = 0; done < n; done += b->head_rows) {
        uint32_t some = n - done < b->head_rows ? n - done : b->head_rows;
        float *logits;
        if (atomic_load(&b->interrupted)) return status_make(STATUS_INTERNAL, "interrupted");
        RETURN_IF_ERROR(cuda_forward_logits(b->forward, rows + done, some, &logits));
        if (cuda_is_alone(d))
            RETURN_IF_GPU_ERROR(
                d->api->copy_out(d->g, out + done * vocab, logits, some * vocab * sizeof *out));
        else RETURN_IF_ERROR(cuda_join_logits(d, logits, some, slice, vocab, out + done * vocab));
    }
    return STATUS_IS_OK;
}

static status fetch_logits(backend_cuda *b, uint32_t n, float **out)
{
    cuda_device *d = &b->device;
    size_t values = (size_t)n * b->config.vocab_size;
    const uint32_t *rows;
    uint32_t *mine;
    /* The pack's host memory holds row numbers, then the logits. */
    RETURN_IF_ERROR(cuda_pack_begin(d, &b->logits, n * sizeof *mine + 128 + values * sizeof **out));
    mine = cuda_pack_take(&b->logits, n * sizeof *mine, &rows);
    memcpy(mine, b->logit_rows, n * sizeof *mine);
    RETURN_IF_ERROR(cuda_pack_send(d, &b->logits));
    *out = (float *)(void *)(b->logits.host + b->logits.size);
    RETURN_IF_ERROR(fetch_some(b, rows, n, *out));
    return cuda_wait(d);
}

/* Draws of a single rank are made from the logits on the host where the plan wants any. */
static status sample_flight(backend_cuda *b, const step_plan *plan)
{
    step_result *result = &b->flight->result;
    uint32_t n_asked, n = list_logit_rows(b, plan, &n_asked);
    bool here = n_asked == 0 || !cuda_is_alone(&b->device);
    float *logits = NULL;
    if (n_asked > 0) RETURN_IF_ERROR(fetch_logits(b, here ? n_asked : n, &logits));
    result->logits = logits;
    result->n_logit_rows = n_asked;
    if (here) {
        RETURN_IF_ERROR(cuda_draws_send(b));
        RETURN_IF_ERROR(cuda_draw(b));
        RETURN_IF_ERROR(cuda_wait(&b->device));
        cuda_drawn(b, b->flight);
        return STATUS_IS_OK;
    }
    cuda_list_draws(b, logits + (size_t)n_asked * b->config.vocab_size);
    sampler_run(b->sampler, b->flight->draws, b->flight->n_draws);
    return STATUS_IS_OK;
}

/* ---- the interface --------------------------------------------------------------------------- */

static const backend_info *cuda_info(void *ctx) { return &((backend_cuda *)ctx)->info; }

/* Makes a failure final that leaves the device's tables different from the mirror's. */
static status fatal(status s)
{
    bool half_done = s.code == STATUS_NO_MEMORY || s.code == STATUS_LIMIT;
    return half_done ? status_make(STATUS_INTERNAL, s.message) : s;
}

/* Checks a plan some of whose tokens come from draws of the step in flight, which stay on the
 * device. */
static status check_ahead(const backend_cuda *b, const step_plan *plan)
{
    const cuda_flight *before = &b->flights[b->flight == b->flights];
    if (!b->flight->ahead) return STATUS_IS_OK;
    if (b->n_in_flight < 2 || plan->step != before->plan->step + 1)
        return status_make(STATUS_INVALID, "plan: a token of a step that is not in flight");
    if (!status_ok(before->status)) return status_make(STATUS_IO, "the step before has failed");
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        uint32_t from = plan->seqs[i].token_from;
        if (from > before->plan->n_seqs || (from && before->plan->seqs[from - 1].n_samples != 1))
            return status_make(STATUS_INVALID,
                               "plan: a token of a draw that the step before does not have");
    }
    return STATUS_IS_OK;
}

/* Pages in host memory come to the device in a step with a chunk of a prompt or a measure, whose
 * rows share the copy; single rows leave them to the CPU. The two differ by rounding. */
static status plan_window(backend_cuda *b, const step_plan *plan)
{
    bool leaves = !b->invariant;
    for (uint32_t i = 0; leaves && i < plan->n_seqs; i++)
        leaves = plan->seqs[i].n_tokens == 1 && plan->seqs[i].measure.kind == MEASURE_NONE;
    b->flight->batch.far = leaves ? b->far : NULL;
    cuda_far_start(b->far, plan);
    return cuda_window_plan(b->window, b->mirror, plan, leaves);
}

/* Applies a plan's deltas and sends the device what the step reads. */
static status begin_step(backend_cuda *b, const step_plan *plan)
{
    cuda_flight *f = b->flight;
    RETURN_IF_ERROR(fatal(cuda_retrieve_end_notes(b, plan)));
    RETURN_IF_ERROR(plan_follow(b->mirror, plan));
    f->result.checksum = pkv_mirror_checksum(b->mirror);
    if (!b->window)
        RETURN_IF_ERROR(fatal(cuda_tables_update(&b->device, &b->tables, b->mirror,
                                                 plan->deltas.words, plan->deltas.n_words)));
    /* A refused plan still makes its moves, because later plans rely on the pages. */
    status checked = plan_check(&b->info, b->mirror, plan);
    if (status_ok(checked)) checked = check_ahead(b, plan);
    bool computes = status_ok(checked) && plan->n_seqs > 0;
    RETURN_IF_ERROR(fatal(cuda_send(b, plan, computes, &f->batch)));
    for (uint32_t i = 0; i < plan->n_opens; i++)
        RETURN_IF_ERROR(sampler_open(b->sampler, &plan->opens[i]));
    if (!computes) return checked;
    sampler_count_given(b->sampler, plan);
    if (b->window) RETURN_IF_ERROR(plan_window(b, plan));
    RETURN_IF_ERROR(cuda_measures_reserve(b, plan));
    return cuda_retrieve_lay_out(b, plan, &f->batch);
}

static status run_rows(backend_cuda *b)
{
    cuda_batch *batch = &b->flight->batch;
    cuda_measures_join(b, batch);
    status s = b->one_by_one ? cuda_forward_run(b->forward, batch, &b->interrupted)
                             : cuda_graphs_run(b->graphs, b->forward, batch, &b->interrupted);
    RETURN_IF_ERROR(s);
    return cuda_fetch_measures(b);
}

/* Starts a step, draws included, without waiting for it. */
static status start_step(backend_cuda *b)
{
    RETURN_IF_ERROR(cuda_draws_send(b));
    RETURN_IF_ERROR(run_rows(b));
    RETURN_IF_ERROR(cuda_draw(b));
    return cuda_status(b->device.api->note(b->device.g, (uint32_t)(b->flight - b->flights)));
}

static status await_step(backend_cuda *b, cuda_flight *f)
{
    RETURN_IF_ERROR(cuda_await(&b->device, (uint32_t)(f - b->flights)));
    cuda_drawn(b, f);
    return STATUS_IS_OK;
}

/* Runs a step that submit did not start, and waits for it. */
static status run_step(backend_cuda *b, const step_plan *plan)
{
    if (plan->n_seqs == 0) return cuda_wait(&b->device);
    RETURN_IF_ERROR(run_rows(b));
    RETURN_IF_ERROR(cuda_scores(b, plan));
    RETURN_IF_ERROR(cuda_pooled(b, plan));
    return sample_flight(b, plan);
}

/* Whether all ranks refuse the plan, so that none waits. */
static bool is_of_plan(status s) { return s.code == STATUS_INVALID || s.code == STATUS_LIMIT; }

/* Waits for work in flight, which must not read what the next step writes. Returns the failure,
 * with the device's own words where it is the device's. */
static status end_failed(backend_cuda *b, status s)
{
    const gpu_api *api = b->device.api;
    bool of_plan = is_of_plan(s);
    if (!of_plan && comm_on_device(b->device.group))
        comm_abort(b->device.group); /* else other ranks wait */
    if (!of_plan) cuda_peers_stop(&b->device);
    if (b->window) (void)cuda_window_settle(b->window);
    (void)api->wait(b->device.g);
    /* `why` may be old, such as a failed capture's, unless this status is the device's own. */
    if (s.code != STATUS_INTERNAL || !s.message || strncmp(s.message, "cuda:", 5) != 0) return s;
    snprintf(b->trouble, sizeof b->trouble, "%s: %s", s.message, api->why(b->device.g));
    return status_make(s.code, b->trouble);
}

/* Whether collect must compute the step: logits or states of it go through the host, to the caller
 * or to the other ranks. Submit starts every other step. */
static bool defers(const backend_cuda *b, const step_plan *plan)
{
    bool host = !cuda_meets_here(&b->device);
    for (uint32_t i = 0; !host && i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        host = s->want_logits || s->want_scores || s->measure.novelty || s->pooling;
    }
    return host;
}

static bool takes_draws(const step_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].token_from) return true;
    return false;
}

/* Makes f the step that is being laid out. */
static void enter_flight(backend_cuda *b, cuda_flight *f)
{
    b->flight = f;
    b->plan = f->plan;
    b->seq_results = f->seq_results;
}

static status cuda_submit(void *ctx, const step_plan *plan)
{
    backend_cuda *b = ctx;
    assert(b->n_in_flight < b->info.max_in_flight);
    if (b->n_in_flight > 0 && b->flights[b->first].defers)
        return status_make(STATUS_INVALID,
                           "plan: behind a step with logits, scores, novelty or pooling");
    cuda_flight *f = &b->flights[(b->first + b->n_in_flight++) % CUDA_FLIGHTS];
    f->plan = plan;
    f->ahead = takes_draws(plan);
    f->defers = defers(b, plan);
    f->start_us = clock_now_us();
    f->result = (step_result){.step = plan->step, .seqs = f->seq_results};
    f->n_draws = 0;
    enter_flight(b, f);
    f->status = begin_step(b, plan);
    f->started = plan->n_seqs > 0 && !f->defers && status_ok(f->status);
    if (f->started) f->status = start_step(b);
    if (status_ok(f->status) || cuda_is_alone(&b->device) || is_of_plan(f->status))
        return STATUS_IS_OK;
    b->n_in_flight--; /* the caller learns it now, because the other ranks wait already */
    return end_failed(b, f->status);
}

static status cuda_collect(void *ctx, const step_result **out)
{
    backend_cuda *b = ctx;
    assert(b->n_in_flight > 0);
    cuda_flight *f = &b->flights[b->first];
    step_result *r = &f->result;
    r->status = f->status;
    if (status_ok(r->status)) r->status = f->started ? await_step(b, f) : run_step(b, f->plan);
    if (status_ok(r->status)) r->n_seqs = f->plan->n_seqs;
    else r->status = end_failed(b, r->status);
    /* Compute time starts when the step before was collected: the two did not run side by side. */
    int64_t start = f->start_us > b->collected_us ? f->start_us : b->collected_us;
    b->collected_us = clock_now_us();
    r->compute_us = b->collected_us - start;
    b->first = (b->first + 1) % CUDA_FLIGHTS;
    b->n_in_flight--;
    *out = r;
    return atomic_load(&b->interrupted) ? status_make(STATUS_INTERNAL, "interrupted")
                                        : STATUS_IS_OK;
}

static void cuda_interrupt(void *ctx)
{
    backend_cuda *b = ctx;
    atomic_store(&b->interrupted, true);
    if (b->meeting) comm_abort(b->meeting); /* a call that waits for a lost rank ends only so */
    cuda_peers_stop(&b->device);
}

static void cuda_rest(void *ctx)
{
    backend_cuda *b = ctx;
    cuda_device *d = &b->device;
    if (!d->g) return;
    if (!cuda_is_alone(d) && !status_ok(comm_check(d->group))) cuda_peers_stop(d);
    (void)d->api->wait(d->g);
}

static void cuda_destroy(void *ctx)
{
    backend_cuda *b = ctx;
    if (!b) return;
    cuda_device *d = &b->device;
    sampler_destroy(b->sampler);
    pkv_mirror_destroy(b->mirror);
    cuda_rest(b);
    if (d->g) {
        cuda_peers_destroy(d); /* first, because the other ranks wait for it */
        cuda_graphs_destroy(b->graphs);
        cuda_forward_destroy(b->forward);
        cuda_tables_destroy(d, &b->tables);
        cuda_weights_destroy(d, &b->weights);
        cuda_far_destroy(b->far);
        cuda_window_destroy(b->window);
        cuda_pack_destroy(d, &b->step);
        cuda_pack_destroy(d, &b->changes);
        cuda_pack_destroy(d, &b->moved);
        cuda_pack_destroy(d, &b->logits);
        cuda_pack_destroy(d, &b->draws);
        cuda_pack_destroy(d, &d->stage);
        for (int i = 0; i < CUDA_FLIGHTS; i++) {
            if (b->flights[i].host) d->api->release_host(d->g, b->flights[i].host);
            measured_destroy(&b->flights[i].measured);
        }
        if (b->pages.data) d->api->release(d->g, b->pages.data);
        if (b->drawn) d->api->release(d->g, b->drawn);
        if (b->draw_scratch) d->api->release(d->g, b->draw_scratch);
        if (b->joined) d->api->release(d->g, b->joined);
        if (b->parts) d->api->release(d->g, b->parts);
        if (b->gathered) d->api->release(d->g, b->gathered);
        cuda_limits_destroy(b);
        if (b->host) d->api->release_host(d->g, b->host);
        cuda_measuring_destroy(b);
        cuda_sums_destroy(b);
        cuda_retrieve_destroy(b);
        cuda_cells_destroy(b);
        comm_destroy(b->meeting); /* its work is on the gpu's stream */
        if (!d->borrowed) d->api->close(d->g);
    }
    thread_pool_destroy(b->pool);
    for (int i = 0; i < CUDA_FLIGHTS; i++) {
        free(b->flights[i].seq_results);
        free(b->flights[i].samples);
        free(b->flights[i].draws);
        free(b->flights[i].drawn_at);
        free(b->flights[i].rows);
    }
    free(b->seqs);
    free(b->logit_rows);
    free(b->scores);
    free(b->novelty);
    free(b->pooled);
    free(b->pooled_sum);
    cuda_moves_destroy(&b->moves);
    cuda_copies_destroy(b);
    free(b);
}

const backend_ops cuda_ops = {
    .info = cuda_info,
    .submit = cuda_submit,
    .collect = cuda_collect,
    .interrupt = cuda_interrupt,
    .read_cells = cuda_read_cells,
    .write_cells = cuda_write_cells,
    .rest = cuda_rest,
    .destroy = cuda_destroy,
};

/* ---- launches, timed ------------------------------------------------------------------------- */

static status tell_trace(const cuda_device *d, gpu_status s, error *err)
{
    status st = cuda_status(s);
    return status_ok(st) ? st : error_set(err, st.code, "%s", d->api->why(d->g));
}

status backend_cuda_trace(const backend *b, bool one_by_one, error *err)
{
    backend_cuda *c = b->ctx;
    if (b->ops != &cuda_ops)
        return error_set(err, STATUS_UNSUPPORTED, "launches are timed on one GPU of this process");
    RETURN_IF_ERROR(tell_trace(&c->device, c->device.api->trace(c->device.g), err));
    c->one_by_one = one_by_one;
    return STATUS_IS_OK;
}

status backend_cuda_traced(const backend *b, gpu_launches *out, error *err)
{
    backend_cuda *c = b->ctx;
    c->one_by_one = false;
    return tell_trace(&c->device, c->device.api->traced(c->device.g, out), err);
}
