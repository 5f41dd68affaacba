#include "cli/plan_sizes.h"

#include <stdio.h>
#include <string.h>

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* The CPU has no fp8 pages, so that its arithmetic has none: a pool of them holds as many pages as
 * one of twice the bytes in 16 bits. */
static status measure(const plan_question *q, double share, backend_cpu_measures *out, error *err)
{
    const loaded_model *m = q->model;
    backend_cpu_options o = m->options;
    uint64_t all = q->memory * q->n_devices;
    RETURN_IF_ERROR(backend_cpu_measure(&o, m->n_ranks, all, share, out, err));
    if (!q->fp8) return STATUS_IS_OK;
    uint64_t weights = out->weight_bytes * m->n_ranks, left = all > weights ? all - weights : 0;
    o.kv_bytes = 2 * (o.kv_bytes ? o.kv_bytes : (uint64_t)((double)left * share));
    RETURN_IF_ERROR(backend_cpu_measure(&o, m->n_ranks, all, share, out, err));
    out->page_bytes /= 2;
    return STATUS_IS_OK;
}

status plan_measure(const plan_question *q, plan_answer *out, error *err)
{
    const loaded_model *m = q->model;
    backend_cpu_measures *is = &out->measures;
    uint32_t ranks = m->n_ranks;
    double share = q->gpu ? PLAN_GPU_POOL_SHARE : MODEL_POOL_SHARE;
    *out = (plan_answer){.rank_memory = q->memory * q->n_devices / ranks};
    RETURN_IF_ERROR(measure(q, share, is, err));
    /* Swapped sequences lie in the host's memory, which nobody told us. */
    if (q->gpu) {
        uint64_t n = m->options.swap_bytes / (is->page_bytes * ranks);
        is->n_host_pages = n > INT32_MAX ? INT32_MAX : (uint32_t)n;
    }
    const pkv_geometry *g = &is->geometry;
    uint32_t groups = pkv_groups(g);
    out->rank_pool = is->n_pages * is->page_bytes;
    uint64_t takes = is->weight_bytes + out->rank_pool + is->filling_bytes;
    if (takes <= out->rank_memory) out->rank_left = out->rank_memory - takes;
    else out->short_of = takes - out->rank_memory;
    out->token_bytes = (double)is->page_bytes * ranks * groups / g->page_tokens;
    out->pages = is->n_pages ? is->n_pages - 1 : 0;
    out->tokens = out->pages / groups * g->page_tokens;
    return STATUS_IS_OK;
}

status plan_fill(const plan_question *q, const retention_policy *policy, plan_answer *a, error *err)
{
    uint32_t n_prompt = q->context - q->output;
    const pkv_geometry *g = &a->measures.geometry;
    RETURN_IF_ERROR(retention_check_budget(policy, g, n_prompt, err));
    sched_need need = sched_need_of(g, policy, n_prompt, q->output);
    a->room = (plan_room){.need = need, .in_prefill = a->pages / need.peak};
    if (a->pages < need.peak) return STATUS_IS_OK;
    a->room.fit = (a->pages - need.peak) / (need.most ? need.most : 1) + 1;
    return STATUS_IS_OK;
}

/* ---- words ----------------------------------------------------------------------------------- */

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
    const backend_cpu_measures *m = &a->measures;
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
        snprintf(out, size, "does not fit: weights and KV pool are %s%s too much", some, rank);
    } else if (a->room.fit == 0) {
        plan_number(a->room.need.peak, some);
        plan_number(a->pages, all);
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
