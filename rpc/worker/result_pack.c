#include "rpc/worker/codec.h"

#include <math.h>
#include <string.h>

/* Drops const for protobuf-c, which does not change what it packs. */
static ProtobufCBinaryData borrow(const void *p, size_t n)
{
    return (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)p};
}

/* ---- draws ----------------------------------------------------------------------------------- */

typedef struct draws {
    size_t n, n_top;
    bool has_logprobs, has_ranks, has_tops, has_undefined;
} draws;

static draws count_draws(const step_result *r)
{
    draws d = {0};
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        for (uint32_t k = 0; k < r->seqs[i].n_samples; k++) {
            const step_sample *s = &r->seqs[i].samples[k];
            d.n++;
            d.n_top += s->n_top;
            d.has_logprobs |= !isnan(s->logprob);
            d.has_ranks |= s->rank != 0;
            d.has_tops |= s->n_top != 0;
            d.has_undefined |= s->undefined != 0;
        }
    }
    return d;
}

static status pack_draws(const step_result *r, arena *a, result_message *out)
{
    draws d = count_draws(r);
    uint32_t *tokens = arena_alloc_array(a, d.n, sizeof *tokens);
    uint32_t *ranks = arena_alloc_array(a, d.n, sizeof *ranks);
    uint32_t *n_tops = arena_alloc_array(a, d.n, sizeof *n_tops);
    uint32_t *undefined = arena_alloc_array(a, d.n, sizeof *undefined);
    uint32_t *top_ids = arena_alloc_array(a, d.n_top, sizeof *top_ids);
    float *logprobs = arena_alloc_array(a, d.n, sizeof *logprobs);
    float *tops = arena_alloc_array(a, d.n_top, sizeof *tops);
    if (!tokens || !ranks || !n_tops || !undefined || !top_ids || !logprobs || !tops)
        return status_make(STATUS_NO_MEMORY, "a message's draws");
    size_t n = 0, at = 0;
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        for (uint32_t k = 0; k < r->seqs[i].n_samples; k++, n++) {
            const step_sample *s = &r->seqs[i].samples[k];
            tokens[n] = s->token;
            ranks[n] = s->rank;
            n_tops[n] = s->n_top;
            undefined[n] = s->undefined;
            logprobs[n] = s->logprob;
            memcpy(top_ids + at, s->top_ids, s->n_top * sizeof *top_ids);
            memcpy(tops + at, s->top_logprobs, s->n_top * sizeof *tops);
            at += s->n_top;
        }
    }
    out->sample_token = tokens;
    out->n_sample_token = d.n;
    out->sample_rank = ranks;
    out->n_sample_rank = d.has_ranks ? d.n : 0;
    out->sample_n_top = n_tops;
    out->n_sample_n_top = d.has_tops ? d.n : 0;
    out->sample_undefined = undefined;
    out->n_sample_undefined = d.has_undefined ? d.n : 0;
    out->top_id = top_ids;
    out->n_top_id = d.n_top;
    if (d.has_logprobs) out->sample_logprob = borrow(logprobs, d.n * sizeof *logprobs);
    out->top_logprob = borrow(tops, d.n_top * sizeof *tops);
    return STATUS_IS_OK;
}

/* ---- measures -------------------------------------------------------------------------------- */

static size_t measured_floats(const measure_spec *spec, const measure_result *m)
{
    return (size_t)measured_arrays(spec) * m->n_layers * m->n_kv_heads * m->stride;
}

static status pack_measures(const step_plan *plan, const step_result *r, arena *a,
                            result_message *out)
{
    size_t n = 0, floats = 0;
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        const measure_spec *spec = &plan->seqs[i].measure;
        n += measured_arrays(spec) > 0;
        floats += measured_floats(spec, &r->seqs[i].measure);
    }
    if (n == 0) return STATUS_IS_OK;
    uint32_t *strides = arena_alloc_array(a, n, sizeof *strides);
    uint32_t *q_heads = arena_alloc_array(a, n, sizeof *q_heads);
    float *values = arena_alloc_array(a, floats, sizeof *values);
    if (!strides || !q_heads || !values) return status_make(STATUS_NO_MEMORY, "measures");
    out->measure_stride = strides;
    out->measure_q_heads = q_heads;
    out->measures = borrow(values, floats * sizeof *values);
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        const measure_result *m = &r->seqs[i].measure;
        if (measured_arrays(&plan->seqs[i].measure) == 0) continue;
        strides[out->n_measure_stride++] = m->stride;
        q_heads[out->n_measure_q_heads++] = m->q_heads;
        size_t some = measured_floats(&plan->seqs[i].measure, m);
        memcpy(values, m->values, some * sizeof *values);
        values += some;
    }
    return STATUS_IS_OK;
}

static status pack_novelty(const step_plan *plan, const step_result *r, arena *a,
                           result_message *out)
{
    size_t floats = 0;
    for (uint32_t i = 0; i < r->n_seqs; i++)
        if (plan->seqs[i].measure.novelty) floats += plan->seqs[i].n_tokens;
    if (floats == 0) return STATUS_IS_OK;
    float *values = arena_alloc_array(a, floats, sizeof *values);
    if (!values) return status_make(STATUS_NO_MEMORY, "novelty of prompts");
    out->novelty = borrow(values, floats * sizeof *values);
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        if (!plan->seqs[i].measure.novelty) continue;
        memcpy(values, r->seqs[i].novelty, plan->seqs[i].n_tokens * sizeof *values);
        values += plan->seqs[i].n_tokens;
    }
    return STATUS_IS_OK;
}

/* ---- embeddings ------------------------------------------------------------------------------ */

/* Elements of the embeddings that a rank gives of a share. */
static size_t embedding_values(const step_seq *s, const backend_info *info, result_rank who)
{
    return (size_t)s->n_tokens * embed_heads_of(info, s, who.rank, who.size) * info->head_dim;
}

static status pack_embeddings(const step_plan *plan, const step_result *r, const backend_info *info,
                              result_rank who, arena *a, result_message *out)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->n_seqs; i++) n += embedding_values(&plan->seqs[i], info, who);
    if (n == 0) return STATUS_IS_OK;
    uint16_t *values = arena_alloc_array(a, n, sizeof *values);
    if (!values) return status_make(STATUS_NO_MEMORY, "embeddings");
    out->embeddings = borrow(values, n * sizeof *values);
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        size_t some = embedding_values(&plan->seqs[i], info, who);
        if (some) memcpy(values, r->seqs[i].embeddings, some * sizeof *values);
        values += some;
    }
    return STATUS_IS_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static status pack_scores(const step_plan *plan, const step_result *r, const backend_info *info,
                          arena *a, result_message *out)
{
    size_t n = 0, n_top = 0;
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        n += s->want_scores ? s->n_tokens : 0;
        n_top += (size_t)s->n_tokens * score_tops(s, info);
    }
    if (n == 0) return STATUS_IS_OK;
    float *logprobs = arena_alloc_array(a, n, sizeof *logprobs);
    float *tops = arena_alloc_array(a, n_top, sizeof *tops);
    uint32_t *ranks = arena_alloc_array(a, n, sizeof *ranks);
    uint32_t *ids = arena_alloc_array(a, n_top, sizeof *ids);
    if (!logprobs || !tops || !ranks || !ids) return status_make(STATUS_NO_MEMORY, "scores");
    out->score_logprob = borrow(logprobs, n * sizeof *logprobs);
    out->score_rank = ranks;
    out->n_score_rank = n;
    out->score_top_id = ids;
    out->n_score_top_id = n_top;
    out->score_top_logprob = borrow(tops, n_top * sizeof *tops);
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        uint32_t some = score_tops(s, info);
        for (uint32_t row = 0; s->want_scores && row < s->n_tokens; row++) {
            const step_sample *score = &r->seqs[i].scores[row];
            *logprobs++ = score->logprob;
            *ranks++ = score->rank;
            memcpy(ids, score->top_ids, some * sizeof *ids);
            memcpy(tops, score->top_logprobs, some * sizeof *tops);
            ids += some;
            tops += some;
        }
    }
    return STATUS_IS_OK;
}

/* ---- pooling --------------------------------------------------------------------------------- */

static status pack_pooled(const step_plan *plan, const step_result *r, const backend_info *info,
                          arena *a, result_message *out)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->n_seqs; i++) n += plan->seqs[i].pooling != POOLING_NONE;
    if (n == 0) return STATUS_IS_OK;
    float *values = arena_alloc_array(a, n * info->hidden, sizeof *values);
    if (!values) return status_make(STATUS_NO_MEMORY, "pooled hidden states");
    out->pooled = borrow(values, n * info->hidden * sizeof *values);
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        if (!plan->seqs[i].pooling) continue;
        memcpy(values, r->seqs[i].pooled, info->hidden * sizeof *values);
        values += info->hidden;
    }
    return STATUS_IS_OK;
}

/* ---- the whole result ------------------------------------------------------------------------ */

static size_t logit_floats(const step_result *r, uint32_t vocab_size)
{
    return (size_t)r->n_logit_rows * vocab_size;
}

/* The fields in the order of their list, or none where all are 0. */
static status pack_tier(const backend_tier *t, arena *a, result_message *out)
{
#define TIER_VALUE(field, metric, help) t->field,
    const uint64_t values[] = {BACKEND_TIER_COUNTERS(TIER_VALUE)};
#undef TIER_VALUE
    uint64_t any = 0;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) any |= values[i];
    if (!any) return STATUS_IS_OK;
    out->tier = arena_alloc_array(a, sizeof values / sizeof *values, sizeof *out->tier);
    if (!out->tier) return status_make(STATUS_NO_MEMORY, "what a step moved to and from the disk");
    memcpy(out->tier, values, sizeof values);
    out->n_tier = sizeof values / sizeof *values;
    return STATUS_IS_OK;
}

status result_pack(const step_plan *plan, const step_result *result, const backend_info *info,
                   result_rank who, arena *a, result_message *out)
{
    *out = (result_message)OCTAVO__WORKER__V1__STEP_RESULT__INIT;
    out->step = result->step;
    out->checksum = result->checksum;
    out->compute_us = (uint64_t)result->compute_us;
    out->measure_us = (uint64_t)result->measure_us;
    out->model_us = (uint64_t)result->model_us;
    out->status = result->status.code;
    RETURN_IF_ERROR(pack_tier(&result->tier, a, out));
    if (!status_ok(result->status)) {
        const char *text =
            result->status.message ? result->status.message : status_text(result->status.code);
        out->error = borrow(text, strlen(text));
        out->end = result->end;
        return STATUS_IS_OK;
    }
    RETURN_IF_ERROR(pack_draws(result, a, out));
    RETURN_IF_ERROR(pack_measures(plan, result, a, out));
    RETURN_IF_ERROR(pack_novelty(plan, result, a, out));
    RETURN_IF_ERROR(readings_pack(plan, result, a, out));
    RETURN_IF_ERROR(pack_embeddings(plan, result, info, who, a, out));
    if (who.rank != 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(pack_pooled(plan, result, info, a, out));
    out->logits = borrow(result->logits, logit_floats(result, info->vocab_size) * sizeof(float));
    return pack_scores(plan, result, info, a, out);
}
