#include "cli/plan_sizes.h"

#include "kernels/cuda/cuda_kernels.h"

#include <stdio.h>
#include <string.h>

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* Memory that a rank can use. */
static uint64_t rank_memory(const plan_question *q)
{
    uint64_t driver = q->model->on_gpu ? PLAN_GPU_DRIVER_BYTES : 0;
    uint64_t device = q->memory > driver ? q->memory - driver : 0;
    return device * q->n_devices / q->model->n_ranks;
}

static status measure_model(const plan_question *q, backend_measures *out, error *err)
{
    const loaded_model *m = q->model;
    uint64_t memory = rank_memory(q);
    if (!m->on_gpu)
        return backend_cpu_measure(&m->options, m->n_ranks, q->memory * q->n_devices,
                                   MODEL_POOL_SHARE, out, err);
    gpu_facts facts = {
        .n_sms = PLAN_GPU_SMS, .shared_bytes = PLAN_GPU_SHARED_BYTES, .free_bytes = memory};
    backend_cuda_options o = {.common = m->options,
                              .kv = m->gpu_kv,
                              .batch_invariant = m->batch_invariant,
                              .gpu_facts = &facts,
                              .own_gpus = q->n_devices > 1};
    return backend_cuda_measure(&o, m->n_ranks, out, err);
}

/* A chunk reads all K and V before it and its own, and writes its own. What lies on the device is
 * not copied. */
static void count_copies(const plan_question *q, plan_answer *a)
{
    const backend_measures *m = &a->measures;
    if (m->n_here == 0) return;
    uint32_t prompt = q->context > q->output ? q->context - q->output : 1;
    a->host_pool = (uint64_t)(m->n_pages - m->n_here) * m->page_bytes;
    a->windows = (uint64_t)(m->n_frames - m->n_here) * m->page_bytes;
    a->chunk = q->chunk < prompt ? q->chunk : prompt;
    double token = a->token_bytes * (m->n_pages - m->n_here) / m->n_pages;
    uint64_t chunks = (prompt + a->chunk - 1) / a->chunk, full = chunks * (chunks - 1) / 2;
    a->chunk_up = (prompt - a->chunk) * token;
    a->chunk_down = a->chunk * token;
    a->prompt_up = (double)full * a->chunk * token;
}

/* Embeddings may have half of what is left, as in serve_check_needs, which counts a request's body
 * too. */
static void count_embeddings(const plan_question *q, plan_answer *a)
{
    const loaded_model *m = q->model;
    if (m->on_gpu || m->embeds.n == 0) return;
    uint32_t here = q->n_devices == 1 ? m->n_ranks : 1;
    uint64_t left = a->rank_left * here, swap = backend_host_bytes(&a->measures) * here;
    uint64_t most = left > swap ? (left - swap) / 2 : 0;
    uint32_t n_prompt = q->context > q->output ? q->context - q->output : 1;
    a->embed_token = reform_token_bytes(m->embeds.n, m->config.head_dim);
    a->embed_bytes = m->embed_memory < most ? m->embed_memory : most;
    a->embed_sessions = a->embed_bytes / (a->embed_token * n_prompt);
}

status plan_measure(const plan_question *q, plan_answer *out, error *err)
{
    const loaded_model *m = q->model;
    backend_measures *is = &out->measures;
    *out = (plan_answer){.rank_memory = rank_memory(q)};
    RETURN_IF_ERROR(measure_model(q, is, err));
    const pkv_geometry *g = &is->geometry;
    uint32_t groups = pkv_groups(g);
    out->rank_pool = backend_pool_bytes(is);
    if (m->on_gpu) out->rank_sums = backend_rank_pages(is, is->n_pages) * is->sums_of_page;
    out->rank_representatives = backend_representatives_bytes(is);
    uint64_t takes = is->weight_bytes + is->step_bytes + out->rank_pool + out->rank_sums +
                     out->rank_representatives + is->note_bytes + is->scratch_bytes +
                     is->filling_bytes + is->tier_bytes;
    if (takes <= out->rank_memory) out->rank_left = out->rank_memory - takes;
    else out->short_of = takes - out->rank_memory;
    out->token_bytes = (double)backend_page_bytes(is, m->n_ranks) * groups / g->page_tokens;
    out->pages = is->n_pages ? is->n_pages - 1 : 0;
    out->tokens = out->pages / groups * g->page_tokens;
    count_copies(q, out);
    count_embeddings(q, out);
    return STATUS_IS_OK;
}

/* A request of method reform is a reading, which takes pages of the layers that it runs, and then
 * an ordinary request of the gathered tokens (docs/reform.md). A short prompt is that alone. */
static sched_need need_of_reform(const plan_question *q, const retention_policy *policy,
                                 const pkv_geometry *g, uint32_t n_prompt)
{
    const embed_choice *c = &q->model->embeds;
    uint32_t heads_need = c->n ? reform_layers(c->heads, c->n) : 0;
    retention_policy all = retention_find("full")->defaults;
    bool reads = n_prompt > policy->gather_tokens;
    sched_need need =
        sched_need_of(g, 0, &all, reads ? policy->gather_tokens : n_prompt, q->output);
    if (!reads) return need;
    uint32_t n_layers = policy->exit_layer ? policy->exit_layer : heads_need;
    sched_need reading = sched_need_of(g, n_layers, policy, n_prompt, 1);
    if (reading.peak > need.peak) need.peak = reading.peak;
    if (reading.positions > need.positions) need.positions = reading.positions;
    return need;
}

status plan_fill(const plan_question *q, const retention_policy *policy, plan_answer *a, error *err)
{
    uint32_t n_prompt = q->context - q->output;
    const pkv_geometry *g = &a->measures.geometry;
    RETURN_IF_ERROR(retention_check_budget(policy, g, n_prompt, err));
    sched_need need = policy->gather_tokens ? need_of_reform(q, policy, g, n_prompt)
                                            : sched_need_of(g, 0, policy, n_prompt, q->output);
    uint64_t pages = a->pages ? pkv_even_pages(g, (uint32_t)a->pages) : 0;
    a->room = (plan_room){.need = need, .in_prefill = pages / need.peak};
    if (pages < need.peak) return STATUS_IS_OK;
    a->room.fit = (pages - need.peak) / (need.most ? need.most : 1) + 1;
    return STATUS_IS_OK;
}

status plan_check_context(const plan_question *q, const retention_policy *policy,
                          const sched_need *need, error *err)
{
    uint32_t longest = q->model->max_model_len, logical = q->model->max_logical_len;
    if (!policy->contiguous && q->context > longest)
        return error_set(err, STATUS_INVALID, "--context: %u is more than the model's %u positions",
                         q->context, longest);
    if (q->context > logical)
        return error_set(err, STATUS_INVALID, "--context: %u is more than --max-logical-len %u",
                         q->context, logical);
    if (need->positions > longest)
        return error_set(err, STATUS_INVALID,
                         "--context: %u tokens take %u positions under retention method '%s', the "
                         "model has %u",
                         q->context, need->positions, policy->preset->name, longest);
    return STATUS_IS_OK;
}

/* ---- texts ----------------------------------------------------------------------------------- */

const char *plan_number(uint64_t n, char out[32])
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

bool plan_verdict(const plan_question *q, const plan_answer *a, char *out, size_t size)
{
    const backend_measures *m = &a->measures;
    const char *rank = q->model->n_ranks > 1 ? " a rank" : "";
    char some[32], all[32], context[32];
    plan_number(q->context, context);
    if (!m->fits) {
        format_bytes(some, sizeof some, m->weight_bytes);
        format_bytes(all, sizeof all, a->rank_memory);
        snprintf(out, size, "does not fit: the weights take %s%s, of %s", some, rank, all);
    } else if (m->n_pages == 0) {
        snprintf(out, size, "does not fit: the weights leave no room for a page of each table");
    } else if (a->short_of) {
        format_bytes(some, sizeof some, a->short_of);
        snprintf(out, size,
                 "does not fit: weights, KV pool and what lies beside it are %s%s too much", some,
                 rank);
    } else if (a->room.fit == 0) {
        plan_number(a->room.need.peak, some);
        plan_number(pkv_even_pages(&m->geometry, (uint32_t)a->pages), all);
        snprintf(out, size, "does not fit: a sequence of %s tokens takes %s pages, of %s", context,
                 some, all);
    } else if (a->room.fit < q->sequences) {
        snprintf(out, size, "%llu of %u sequences of %s tokens fit at once, the others wait",
                 (unsigned long long)a->room.fit, q->sequences, context);
    } else {
        snprintf(out, size, "fits: %u sequence%s of %s tokens at once", q->sequences,
                 q->sequences == 1 ? "" : "s", context);
        return true;
    }
    return false;
}
