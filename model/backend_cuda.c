/* The CUDA backend: a step plan in, tokens and measures out (scheduler/backend.h). What models have
 * that this backend does not do is refused by name, in cuda/create.c. */
#include "model/cuda/backend.h"
#include "model/plan.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens -------------------------------------------------------------------------------------
 */

/* A draw that is the largest of the raw logits, and nothing else of them. */
static bool is_plain_greedy(const sample_params *p)
{
    return p->temperature < 1e-5f && p->presence_penalty == 0.0f && p->frequency_penalty == 0.0f &&
           p->repetition_penalty == 1.0f && p->n_logprobs < 0 && p->min_tokens == 0 &&
           p->n_bias == 0;
}

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

status cuda_join_logits(backend_cuda *b, const float *part, uint32_t n, float *out)
{
    size_t slice = b->weights.head.n, vocab = b->config.vocab_size;
    const float *all;
    RETURN_IF_ERROR(cuda_gather(&b->device, part, n * slice, &all));
    for (uint32_t i = 0; i < n; i++)
        for (size_t at = 0; at < vocab; at += slice) {
            size_t some = vocab - at < slice ? vocab - at : slice;
            const float *from = all + (at / slice * n + i) * slice;
            memcpy(out + i * vocab + at, from, some * sizeof *out);
        }
    return STATUS_IS_OK;
}

/* Logits of n rows to the host, or only the largest of each. */
static status fetch_logits(backend_cuda *b, uint32_t n, bool largest)
{
    cuda_device *d = &b->device;
    size_t vocab = b->config.vocab_size, row = largest ? sizeof(uint32_t) : vocab * sizeof(float);
    const uint32_t *rows;
    uint32_t *mine;
    /* Row numbers, then what comes back. The device's half holds the numbers and the tokens. */
    RETURN_IF_ERROR(cuda_pack_begin(d, &b->logits, n * sizeof *mine + 128 + n * row));
    mine = cuda_pack_take(&b->logits, n * sizeof *mine, &rows);
    memcpy(mine, b->logit_rows, n * sizeof *mine);
    RETURN_IF_ERROR(cuda_pack_send(d, &b->logits));
    uint32_t *tokens = (uint32_t *)(void *)(b->logits.device + b->logits.size);
    uint8_t *out = b->logits.host + b->logits.size;
    for (uint32_t done = 0; done < n; done += CUDA_LOGIT_ROWS) {
        uint32_t some = n - done < CUDA_LOGIT_ROWS ? n - done : CUDA_LOGIT_ROWS;
        float *logits;
        if (atomic_load(&b->interrupted)) return status_make(STATUS_INTERNAL, "interrupted");
        RETURN_IF_ERROR(cuda_forward_logits(b->forward, rows + done, some, &logits));
        if (comm_size(d->group) > 1) {
            RETURN_IF_ERROR(cuda_join_logits(b, logits, some, (float *)(void *)(out + done * row)));
            continue;
        }
        if (largest) RETURN_IF_GPU_ERROR(d->api->argmax(d->g, logits, some, vocab, tokens));
        RETURN_IF_GPU_ERROR(d->api->copy_out(
            d->g, out + done * row, largest ? (void *)tokens : (void *)logits, some * row));
    }
    return cuda_wait(d);
}

static bool all_greedy(const backend_cuda *b, const step_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].n_samples && !b->is_greedy[plan->seqs[i].seq]) return false;
    return true;
}

static void take_tokens(backend_cuda *b, const step_plan *plan, const uint32_t *tokens)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (!s->n_samples) continue;
        b->seq_results[i].samples = &b->samples[n];
        b->seq_results[i].n_samples = s->n_samples;
        for (uint32_t j = 0; j < s->n_samples; j++)
            b->samples[n++] = (step_sample){.token = *tokens, .logprob = NAN};
        tokens++;
    }
}

/* b->draws of a step, from rows of logits on the host, or (NULL) on the device. Returns how many.
 */
static uint32_t list_draws(backend_cuda *b, const step_plan *plan, const float *row)
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
                                         .out = &b->samples[n]};
        if (row) row += b->config.vocab_size;
    }
    return n;
}

static status sample(backend_cuda *b, const step_plan *plan)
{
    uint32_t n_asked, n = list_logit_rows(b, plan, &n_asked);
    bool largest = n_asked == 0 && comm_size(b->device.group) == 1 && all_greedy(b, plan);
    if (n == 0) return cuda_wait(&b->device);
    if (n_asked == 0 && comm_size(b->device.group) == 1 && !largest)
        return cuda_draw(b, n, list_draws(b, plan, NULL));
    RETURN_IF_ERROR(fetch_logits(b, n, largest));
    const void *fetched = b->logits.host + b->logits.size;
    if (largest) {
        take_tokens(b, plan, fetched);
        return STATUS_IS_OK;
    }
    b->result.logits = fetched;
    b->result.n_logit_rows = n_asked;
    const float *rows = b->result.logits + (size_t)n_asked * b->config.vocab_size;
    sampler_run(b->sampler, b->draws, list_draws(b, plan, rows));
    return STATUS_IS_OK;
}

/* ---- the interface ----------------------------------------------------------------------------
 */

static const backend_info *cuda_info(void *ctx) { return &((backend_cuda *)ctx)->info; }

static status cuda_submit(void *ctx, const step_plan *plan)
{
    backend_cuda *b = ctx;
    assert(!b->plan && "one step in flight");
    b->plan = plan;
    return STATUS_IS_OK;
}

/* Of what must not be left half done: the device's tables would differ from the mirror's. */
static status fatal(status s)
{
    bool half_done = s.code == STATUS_NO_MEMORY || s.code == STATUS_LIMIT;
    return half_done ? status_make(STATUS_INTERNAL, s.message) : s;
}

static status run_step(backend_cuda *b, const step_plan *plan)
{
    cuda_batch batch;
    RETURN_IF_ERROR(pkv_mirror_apply(b->mirror, plan->deltas.words, plan->deltas.n_words));
    if (pkv_mirror_checksum(b->mirror) != plan->checksum)
        return status_make(STATUS_INTERNAL, "page tables differ from the coordinator's");
    RETURN_IF_ERROR(
        fatal(cuda_tables_update(&b->tables, b->mirror, plan->deltas.words, plan->deltas.n_words)));
    /* A plan that is refused makes its moves all the same: its pages are counted on. */
    status checked = plan_check(&b->info, b->mirror, plan);
    bool computes = status_ok(checked) && plan->n_seqs > 0;
    RETURN_IF_ERROR(fatal(cuda_send(b, plan, computes, &batch)));
    for (uint32_t i = 0; i < plan->n_opens; i++) {
        RETURN_IF_ERROR(sampler_open(b->sampler, &plan->opens[i]));
        b->is_greedy[plan->opens[i].seq] = is_plain_greedy(plan->opens[i].params);
    }
    if (!computes) {
        RETURN_IF_ERROR(cuda_wait(&b->device));
        return checked;
    }
    RETURN_IF_ERROR(cuda_lay_out_measures(b, plan));
    if (b->is_measuring) {
        batch.wants_lse = true;
        batch.measure = cuda_measure_layer;
        batch.ctx = b;
    }
    RETURN_IF_ERROR(cuda_graphs_run(b->graphs, b->forward, &batch, &b->interrupted));
    RETURN_IF_ERROR(cuda_novelty(b, plan));
    return sample(b, plan);
}

/* What is still under way must not read what the next step writes. */
static void tell_failure(backend_cuda *b)
{
    const gpu_api *api = b->device.api;
    status_code code = b->result.status.code;
    bool of_plan = code == STATUS_INVALID || code == STATUS_LIMIT; /* every rank says so */
    if (!of_plan && comm_on_device(b->device.group)) comm_abort(b->device.group); /* or they wait */
    (void)api->wait(b->device.g);
    const char *what = b->result.status.message; /* a capture may have failed long ago */
    if (code == STATUS_INTERNAL && what && strncmp(what, "cuda:", 5) == 0)
        fprintf(stderr, "octavo: cuda: %s\n", api->why(b->device.g));
}

static status cuda_collect(void *ctx, const step_result **out)
{
    backend_cuda *b = ctx;
    assert(b->plan);
    int64_t start = clock_now_us();
    b->result = (step_result){.step = b->plan->step, .seqs = b->seq_results};
    b->result.status = run_step(b, b->plan);
    if (status_ok(b->result.status)) b->result.n_seqs = b->plan->n_seqs;
    else tell_failure(b);
    b->result.checksum = pkv_mirror_checksum(b->mirror);
    b->result.compute_us = clock_now_us() - start;
    b->plan = NULL;
    *out = &b->result;
    return atomic_load(&b->interrupted) ? status_make(STATUS_INTERNAL, "interrupted")
                                        : STATUS_IS_OK;
}

static void cuda_interrupt(void *ctx) { atomic_store(&((backend_cuda *)ctx)->interrupted, true); }

static void cuda_destroy(void *ctx)
{
    backend_cuda *b = ctx;
    if (!b) return;
    cuda_device *d = &b->device;
    sampler_destroy(b->sampler);
    pkv_mirror_destroy(b->mirror);
    if (d->g) {
        (void)d->api->wait(d->g);
        cuda_graphs_destroy(b->graphs);
        cuda_forward_destroy(b->forward);
        cuda_tables_destroy(d, &b->tables);
        cuda_weights_destroy(d, &b->weights);
        cuda_pack_destroy(d, &b->step);
        cuda_pack_destroy(d, &b->measures);
        cuda_pack_destroy(d, &b->logits);
        cuda_pack_destroy(d, &d->stage);
        if (b->pages.data) d->api->release(d->g, b->pages.data);
        if (b->draw_scratch) d->api->release(d->g, b->draw_scratch);
        if (b->host) d->api->release_host(d->g, b->host);
        if (b->scratch) d->api->release(d->g, b->scratch);
        cuda_sums_destroy(b);
        if (!d->borrowed) d->api->close(d->g);
    }
    thread_pool_destroy(b->pool);
    free(b->is_greedy);
    free(b->seq_results);
    free(b->seqs);
    free(b->samples);
    free(b->draws);
    free(b->logit_rows);
    free(b->novelty);
    cuda_moves_destroy(&b->moves);
    free(b);
}

const backend_ops cuda_ops = {
    .info = cuda_info,
    .submit = cuda_submit,
    .collect = cuda_collect,
    .interrupt = cuda_interrupt,
    .destroy = cuda_destroy,
};
