#include "rpc/worker/codec.h"

#include <math.h>
#include <string.h>

enum { Q_HEADS_MAX = 4096 };
static const uint64_t times_max = (uint64_t)1 << 50; // 35 years

static const float *floats_of(const ProtobufCBinaryData *b)
{
    return (const float *)(const void *)b->data;
}

static status check_count(const char *name, size_t have, size_t want, bool optional, error *err)
{
    if (have == want || (optional && have == 0)) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: %zu values, there should be %zu", name, have, want);
}

static status check_bytes(const char *name, const ProtobufCBinaryData *b, uint64_t floats,
                          error *err)
{
    if (b->len % sizeof(float) == 0 && b->len / sizeof(float) == floats) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: %zu bytes, there should be %llu floats", name,
                     b->len, (unsigned long long)floats);
}

static status check_below(const char *name, uint32_t value, uint32_t limit, error *err)
{
    if (value < limit) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: %u, there are %u", name, value, limit);
}

/* A logprob may be minus infinity, and NaN: a model whose logits are NaN gives NaN in one process
 * too, where the request fails. Refusing it would restart the backend for one client's request. */
static status check_logprobs(const char *name, const ProtobufCBinaryData *b, error *err)
{
    const float *values = floats_of(b);
    for (size_t i = 0; i < b->len / sizeof *values; i++)
        if (values[i] == INFINITY)
            return error_set(err, STATUS_INVALID, "%s: inf is no logarithm of a probability", name);
    return STATUS_IS_OK;
}

/* ---- draws ----------------------------------------------------------------------------------- */

static status check_draws(const result_message *m, size_t n, uint32_t vocab, error *err)
{
    size_t n_top = 0;
    RETURN_IF_ERROR(check_count("sample_token", m->n_sample_token, n, false, err));
    RETURN_IF_ERROR(check_count("sample_rank", m->n_sample_rank, n, true, err));
    RETURN_IF_ERROR(check_count("sample_n_top", m->n_sample_n_top, n, true, err));
    RETURN_IF_ERROR(check_count("sample_undefined", m->n_sample_undefined, n, true, err));
    RETURN_IF_ERROR(
        check_bytes("sample_logprob", &m->sample_logprob, m->sample_logprob.len ? n : 0, err));
    for (size_t i = 0; i < n; i++)
        RETURN_IF_ERROR(check_below("sample_token", m->sample_token[i], vocab, err));
    for (size_t i = 0; i < m->n_sample_rank; i++)
        if (m->sample_rank[i] > vocab)
            return error_set(err, STATUS_INVALID, "sample_rank: %u of %u", m->sample_rank[i],
                             vocab);
    for (size_t i = 0; i < m->n_sample_undefined; i++)
        if (m->sample_undefined[i] > 1)
            return error_set(err, STATUS_INVALID, "sample_undefined: %u, it is 0 or 1",
                             m->sample_undefined[i]);
    for (size_t i = 0; i < m->n_sample_n_top; i++) {
        RETURN_IF_ERROR(
            check_below("sample_n_top", m->sample_n_top[i], SAMPLE_LOGPROBS_MAX + 1, err));
        n_top += m->sample_n_top[i];
    }
    RETURN_IF_ERROR(check_count("top_id", m->n_top_id, n_top, false, err));
    for (size_t i = 0; i < n_top; i++)
        RETURN_IF_ERROR(check_below("top_id", m->top_id[i], vocab, err));
    RETURN_IF_ERROR(check_bytes("top_logprob", &m->top_logprob, n_top, err));
    RETURN_IF_ERROR(check_logprobs("sample_logprob", &m->sample_logprob, err));
    return check_logprobs("top_logprob", &m->top_logprob, err);
}

static void read_draws(const result_message *m, size_t n, step_sample *samples)
{
    size_t top = 0;
    for (size_t i = 0; i < n; i++) {
        step_sample *s = &samples[i];
        s->token = m->sample_token[i];
        s->logprob = m->sample_logprob.len ? floats_of(&m->sample_logprob)[i] : NAN;
        s->rank = m->n_sample_rank ? m->sample_rank[i] : 0;
        s->n_top = m->n_sample_n_top ? m->sample_n_top[i] : 0;
        s->undefined = m->n_sample_undefined ? m->sample_undefined[i] : 0;
        if (s->n_top == 0) continue;
        memcpy(s->top_ids, m->top_id + top, s->n_top * sizeof *s->top_ids);
        memcpy(s->top_logprobs, floats_of(&m->top_logprob) + top, s->n_top * sizeof(float));
        top += s->n_top;
    }
}

static status unpack_draws(const result_message *m, const result_source *source, arena *a,
                           step_seq_result *seqs, error *err)
{
    const step_plan *plan = source->plan;
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) n += plan->seqs[i].n_samples;
    RETURN_IF_ERROR(check_draws(m, n, source->info->vocab_size, err));
    step_sample *samples = arena_alloc_array(a, n, sizeof *samples);
    if (!samples) return error_set(err, STATUS_NO_MEMORY, "result: out of memory");
    read_draws(m, n, samples);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        seqs[i].n_samples = plan->seqs[i].n_samples;
        if (seqs[i].n_samples) seqs[i].samples = samples;
        samples += seqs[i].n_samples;
    }
    return STATUS_IS_OK;
}

/* ---- measures -------------------------------------------------------------------------------- */

static status read_shape(const result_message *m, size_t k, const result_source *source,
                         const measure_spec *spec, measure_result *out, error *err)
{
    const pkv_geometry *g = &source->info->geometry;
    uint64_t most = source->info->n_pages;
    if (spec->by_slot) most *= g->page_tokens;
    if (m->measure_stride[k] == 0 || m->measure_stride[k] > most)
        return error_set(err, STATUS_INVALID, "measure_stride: %u is not 1 to %llu",
                         m->measure_stride[k], (unsigned long long)most);
    if (m->measure_q_heads[k] == 0 || m->measure_q_heads[k] > Q_HEADS_MAX)
        return error_set(err, STATUS_INVALID, "measure_q_heads: %u is not 1 to %d",
                         m->measure_q_heads[k], Q_HEADS_MAX);
    out->n_layers = measure_layers(g, spec->layer_step ? spec->layer_step : 1);
    out->n_kv_heads = rank_kv_heads(g, source->size);
    out->stride = m->measure_stride[k];
    out->q_heads = m->measure_q_heads[k];
    return STATUS_IS_OK;
}

static status unpack_measures(const result_message *m, const result_source *source,
                              step_seq_result *seqs, error *err)
{
    const step_plan *plan = source->plan;
    size_t n = 0, k = 0;
    uint64_t at = 0, most = m->measures.len / sizeof(float);
    for (uint32_t i = 0; i < plan->n_seqs; i++) n += measured_arrays(&plan->seqs[i].measure) > 0;
    RETURN_IF_ERROR(check_count("measure_stride", m->n_measure_stride, n, false, err));
    RETURN_IF_ERROR(check_count("measure_q_heads", m->n_measure_q_heads, n, false, err));
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const measure_spec *spec = &plan->seqs[i].measure;
        measure_result *r = &seqs[i].measure;
        if (measured_arrays(spec) == 0) continue;
        RETURN_IF_ERROR(read_shape(m, k++, source, spec, r, err));
        /* Layers times heads fit 32 bits (load_unpack), so this fits 64. */
        uint64_t rows = (uint64_t)measured_arrays(spec) * r->n_layers * r->n_kv_heads;
        if (r->stride > (most - at) / rows)
            return error_set(err, STATUS_INVALID, "measures: %zu bytes are too few",
                             m->measures.len);
        r->values = floats_of(&m->measures) + at;
        at += rows * r->stride;
    }
    return check_bytes("measures", &m->measures, at, err);
}

static status unpack_novelty(const result_message *m, const step_plan *plan, step_seq_result *seqs,
                             error *err)
{
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].measure.novelty) n += plan->seqs[i].n_tokens;
    RETURN_IF_ERROR(check_bytes("novelty", &m->novelty, n, err));
    n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        if (!plan->seqs[i].measure.novelty) continue;
        seqs[i].novelty = floats_of(&m->novelty) + n;
        n += plan->seqs[i].n_tokens;
    }
    return STATUS_IS_OK;
}

/* Elements of the embeddings that the rank gives of a share: its rows are at most max_rows, so that
 * the sums of a plan fit 64 bits. */
static uint64_t embedding_values(const result_source *source, const step_seq *s)
{
    uint64_t heads = embed_heads_of(source->info, s, source->rank, source->size);
    return s->n_tokens * heads * source->info->head_dim;
}

static status unpack_embeddings(const result_message *m, const result_source *source,
                                step_seq_result *seqs, error *err)
{
    const step_plan *plan = source->plan;
    const uint16_t *values = (const uint16_t *)(const void *)m->embeddings.data;
    uint64_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) n += embedding_values(source, &plan->seqs[i]);
    if (m->embeddings.len % sizeof *values != 0 || m->embeddings.len / sizeof *values != n)
        return error_set(err, STATUS_INVALID, "embeddings: %zu bytes, there should be %llu values",
                         m->embeddings.len, (unsigned long long)n);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        uint64_t some = embedding_values(source, &plan->seqs[i]);
        if (some == 0) continue; /* there may be no bytes at all */
        seqs[i].embeddings = values;
        values += some;
    }
    return STATUS_IS_OK;
}

static status unpack_pooled(const result_message *m, const result_source *source,
                            step_seq_result *seqs, error *err)
{
    size_t n = 0;
    for (uint32_t i = 0; source->rank == 0 && i < source->plan->n_seqs; i++)
        n += source->plan->seqs[i].pooling != POOLING_NONE;
    RETURN_IF_ERROR(check_bytes("pooled", &m->pooled, n * source->info->hidden, err));
    const float *values = n ? floats_of(&m->pooled) : NULL;
    for (uint32_t i = 0; values && i < source->plan->n_seqs; i++) {
        if (!source->plan->seqs[i].pooling) continue;
        seqs[i].pooled = values;
        values += source->info->hidden;
    }
    return STATUS_IS_OK;
}

static status unpack_logits(const result_message *m, const result_source *source, step_result *out,
                            error *err)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; source->rank == 0 && i < source->plan->n_seqs; i++)
        if (source->plan->seqs[i].want_logits) rows += source->plan->seqs[i].n_tokens;
    RETURN_IF_ERROR(check_bytes("logits", &m->logits, rows * source->info->vocab_size, err));
    out->n_logit_rows = (uint32_t)rows;
    out->logits = rows ? floats_of(&m->logits) : NULL;
    return STATUS_IS_OK;
}

/* Counts the scored rows of a plan; *n_top: the likeliest tokens listed with them. */
static size_t count_scores(const result_source *source, size_t *n_top)
{
    size_t rows = 0;
    *n_top = 0;
    for (uint32_t i = 0; source->rank == 0 && i < source->plan->n_seqs; i++) {
        const step_seq *s = &source->plan->seqs[i];
        if (!s->want_scores) continue;
        rows += s->n_tokens;
        *n_top += (size_t)s->n_tokens * score_tops(s, source->info);
    }
    return rows;
}

static status check_scores(const result_message *m, const result_source *source, size_t rows,
                           size_t n_top, error *err)
{
    uint32_t vocab = source->info->vocab_size;
    RETURN_IF_ERROR(check_bytes("score_logprob", &m->score_logprob, rows, err));
    RETURN_IF_ERROR(check_count("score_rank", m->n_score_rank, rows, false, err));
    RETURN_IF_ERROR(check_count("score_top_id", m->n_score_top_id, n_top, false, err));
    RETURN_IF_ERROR(check_bytes("score_top_logprob", &m->score_top_logprob, n_top, err));
    for (size_t i = 0; i < rows; i++)
        if (m->score_rank[i] > vocab)
            return error_set(err, STATUS_INVALID, "score_rank: %u of %u", m->score_rank[i], vocab);
    for (size_t i = 0; i < n_top; i++)
        RETURN_IF_ERROR(check_below("score_top_id", m->score_top_id[i], vocab, err));
    RETURN_IF_ERROR(check_logprobs("score_logprob", &m->score_logprob, err));
    return check_logprobs("score_top_logprob", &m->score_top_logprob, err);
}

static uint32_t token_after(const step_plan *plan, const step_seq *s, uint32_t row)
{
    return row + 1 < s->n_tokens ? plan->tokens[s->first_token + row + 1] : s->next_token;
}

static status unpack_scores(const result_message *m, const result_source *source, arena *a,
                            step_seq_result *seqs, error *err)
{
    const step_plan *plan = source->plan;
    size_t n_top, rows = count_scores(source, &n_top), row = 0, top = 0;
    RETURN_IF_ERROR(check_scores(m, source, rows, n_top, err));
    step_sample *scores = rows ? arena_alloc_array(a, rows, sizeof *scores) : NULL;
    if (rows && !scores) return error_set(err, STATUS_NO_MEMORY, "result: out of memory");
    for (uint32_t i = 0; rows && i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (!s->want_scores) continue;
        seqs[i].scores = scores + row;
        for (uint32_t t = 0; t < s->n_tokens; t++, row++) {
            step_sample *score = &scores[row];
            score->token = token_after(plan, s, t);
            score->logprob = floats_of(&m->score_logprob)[row];
            score->rank = m->score_rank[row];
            score->n_top = score_tops(s, source->info);
            score->undefined = 0;
            if (score->n_top == 0) continue;
            size_t bytes = score->n_top * sizeof(uint32_t);
            memcpy(score->top_ids, m->score_top_id + top, bytes);
            memcpy(score->top_logprobs, floats_of(&m->score_top_logprob) + top, bytes);
            top += score->n_top;
        }
    }
    return STATUS_IS_OK;
}

/* ---- the whole result ------------------------------------------------------------------------ */

void text_copy(const void *bytes, size_t n, char *out, size_t size)
{
    const uint8_t *from = bytes;
    if (n >= size) n = size - 1;
    for (size_t i = 0; i < n; i++) out[i] = from[i] < 0x20 || from[i] == 0x7f ? '?' : (char)from[i];
    out[n] = '\0';
}

static status unpack_seqs(const result_message *m, const result_source *source, arena *a,
                          step_result *out, error *err)
{
    uint32_t n = source->plan->n_seqs;
    step_seq_result *seqs = arena_alloc_array(a, n, sizeof *seqs);
    if (!seqs) return error_set(err, STATUS_NO_MEMORY, "result: out of memory");
    RETURN_IF_ERROR(unpack_draws(m, source, a, seqs, err));
    RETURN_IF_ERROR(unpack_measures(m, source, seqs, err));
    RETURN_IF_ERROR(unpack_novelty(m, source->plan, seqs, err));
    RETURN_IF_ERROR(readings_unpack(m, source, a, seqs, err));
    RETURN_IF_ERROR(unpack_embeddings(m, source, seqs, err));
    RETURN_IF_ERROR(unpack_pooled(m, source, seqs, err));
    RETURN_IF_ERROR(unpack_logits(m, source, out, err));
    RETURN_IF_ERROR(unpack_scores(m, source, a, seqs, err));
    out->seqs = seqs;
    out->n_seqs = n;
    return STATUS_IS_OK;
}

static status unpack_tier(const result_message *m, backend_tier *t, error *err)
{
#define TIER_PLACE(field, metric, help) &t->field,
    uint64_t *const places[] = {BACKEND_TIER_COUNTERS(TIER_PLACE)};
#undef TIER_PLACE
    RETURN_IF_ERROR(check_count("tier", m->n_tier, sizeof places / sizeof *places, true, err));
    for (size_t i = 0; i < m->n_tier; i++) {
        if (m->tier[i] > times_max)
            return error_set(err, STATUS_INVALID, "tier: more than %llu",
                             (unsigned long long)times_max);
        *places[i] = m->tier[i];
    }
    return STATUS_IS_OK;
}

status result_unpack(const result_message *m, const result_source *source, arena *a,
                     result_store *out, error *err)
{
    step_result *r = &out->result;
    if (m->step != source->plan->step)
        return error_set(err, STATUS_INVALID, "step: %llu, the plan was %llu",
                         (unsigned long long)m->step, (unsigned long long)source->plan->step);
    if (m->status > STATUS_INTERNAL)
        return error_set(err, STATUS_INVALID, "status: there is no %u", m->status);
    if (m->compute_us > times_max || m->measure_us > times_max || m->model_us > times_max)
        return error_set(err, STATUS_INVALID, "compute_us, measure_us, model_us: more than %llu",
                         (unsigned long long)times_max);
    *r = (step_result){.step = m->step,
                       .checksum = m->checksum,
                       .compute_us = (int64_t)m->compute_us,
                       .measure_us = (int64_t)m->measure_us,
                       .model_us = (int64_t)m->model_us};
    RETURN_IF_ERROR(unpack_tier(m, &r->tier, err));
    if (m->end > STEP_ENDED_AFTER)
        return error_set(err, STATUS_INVALID, "end: there is no %u", m->end);
    if (m->status == STATUS_OK) return unpack_seqs(m, source, a, r, err);
    text_copy(m->error.data, m->error.len, out->text, sizeof out->text);
    r->status = status_make((status_code)m->status, out->text);
    r->end = (step_end)m->end;
    return STATUS_IS_OK;
}
