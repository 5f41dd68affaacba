/* One result of many: checks that all ranks did the same, and puts together what each has a part
 * of. */
#include "model/backend_ranks.h"
#include "model/embed_heads.h"
#include "model/measures.h"

#include <stdio.h>
#include <string.h>

static status trouble(backend_ranks *all, const rank *r, const char *what)
{
    snprintf(all->trouble, sizeof all->trouble, "rank %u: %s", r->index, what);
    return status_make(STATUS_INTERNAL, all->trouble);
}

/* How well a rank's failure explains the group's: a lost rank (3) says most, then an error of its
 * own (2), then losing its peers or following them (1). */
static int weight_of(const rank *r)
{
    if (status_ok(r->status)) return 0;
    if (r->result && r->result->end != STEP_ENDED_ALONE)
        return r->result->end == STEP_ENDED_FIRST ? 2 : 1;
    if (r->status.code == STATUS_IO) return 1;
    return r->status.code == STATUS_UNAVAILABLE ? 3 : 2;
}

const rank *ranks_failed(const backend_ranks *all)
{
    const rank *failed = &all->ranks[0];
    for (uint32_t i = 1; i < all->n_ranks; i++) {
        const rank *r = &all->ranks[i];
        int more = weight_of(r) - weight_of(failed);
        if (more > 0 || (more == 0 && r->failed < failed->failed)) failed = r;
    }
    return status_ok(failed->status) ? NULL : failed;
}

static bool ended_together(const backend_ranks *all)
{
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        const step_result *r = all->ranks[i].result;
        if (!r || r->end == STEP_ENDED_ALONE) return false;
    }
    return true;
}

/* The group's status for a rank's failure. A driven rank's message names the rank already. After a
 * step that all ranks have ended because of this one the group goes on; otherwise it is made again,
 * and that a rank was lost, or had no memory, says nothing about the next group:
 * STATUS_UNAVAILABLE. */
static status failure_of(backend_ranks *all, const rank *r)
{
    const char *text = r->status.message ? r->status.message : status_text(r->status.code);
    status_code code = r->status.code;
    bool unsaid = code == STATUS_NO_MEMORY && !strstr(text, "memory");
    bool together = ended_together(all);
    if (!together) {
        bool blameless = code == STATUS_UNAVAILABLE || code == STATUS_NO_MEMORY;
        code = blameless ? STATUS_UNAVAILABLE : STATUS_INTERNAL;
    }
    error err;
    error_set(&err, code, "%s%s", text, unsaid ? ": out of memory" : "");
    if (!all->driven) (together ? error_insert : error_prefix)(&err, "rank %u", r->index);
    snprintf(all->trouble, sizeof all->trouble, "%s", err.text);
    return status_make(code, all->trouble);
}

/* Whether two ranks' measures have the same shape, so that they can be joined. */
static bool same_measures(const step_result *a, const step_result *b)
{
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const measure_result *x = &a->seqs[i].measure, *y = &b->seqs[i].measure;
        if (!x->values != !y->values || x->n_layers != y->n_layers ||
            x->n_kv_heads != y->n_kv_heads || x->stride != y->stride)
            return false;
    }
    return true;
}

static bool same_samples(const step_result *a, const step_result *b)
{
    if (a->n_seqs != b->n_seqs) return false;
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const step_seq_result *x = &a->seqs[i], *y = &b->seqs[i];
        if (x->n_samples != y->n_samples) return false;
        for (uint32_t j = 0; j < x->n_samples; j++)
            if (x->samples[j].token != y->samples[j].token ||
                x->samples[j].undefined != y->samples[j].undefined ||
                memcmp(&x->samples[j].logprob, &y->samples[j].logprob, sizeof(float)) != 0)
                return false;
    }
    return true;
}

/* Whether a rank has given its parts of all embeddings. */
static bool has_embeddings(const backend_ranks *all, const rank *r)
{
    for (uint32_t i = 0; i < all->plan->n_seqs; i++) {
        uint32_t heads = embed_heads_of(&all->info, &all->plan->seqs[i], r->index, all->n_ranks);
        if (heads > 0 && !r->result->seqs[i].embeddings) return false;
    }
    return true;
}

/* Whether rank 0 has given what its shares pool. */
static bool has_pooled(const backend_ranks *all)
{
    for (uint32_t i = 0; i < all->plan->n_seqs; i++)
        if (all->plan->seqs[i].pooling && !all->ranks[0].result->seqs[i].pooled) return false;
    return true;
}

/* Whether two ranks counted what the same rows read. */
static bool same_readings(const step_result *a, const step_result *b)
{
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const step_seq_result *x = &a->seqs[i], *y = &b->seqs[i];
        if (x->n_readings != y->n_readings) return false;
        for (uint32_t j = 0; j < x->n_readings; j++)
            if (x->readings[j].context != y->readings[j].context) return false;
    }
    return true;
}

/* Checks that all ranks have done the same step on the same tables. */
static status check_ranks(backend_ranks *all)
{
    const rank *failed = ranks_failed(all);
    if (failed) return failure_of(all, failed);
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        const rank *r = &all->ranks[i];
        if (r->result->checksum != all->plan->checksum)
            return trouble(all, r, "page tables differ from the coordinator's");
        if (!same_samples(all->ranks[0].result, r->result))
            return trouble(all, r, "samples differ from rank 0's");
        if (!same_measures(all->ranks[0].result, r->result))
            return trouble(all, r, "measures have another shape than rank 0's");
        if (!has_embeddings(all, r)) return trouble(all, r, "embeddings are missing");
        if (!same_readings(all->ranks[0].result, r->result))
            return trouble(all, r, "it counts what other rows read than rank 0");
    }
    if (!has_pooled(all)) return trouble(all, &all->ranks[0], "pooled hidden states are missing");
    return STATUS_IS_OK;
}

/* Whether a measure depends on query heads. Others are equal on all ranks that hold the KV head. */
static bool sums_query_heads(measure_kind kind)
{
    return kind != MEASURE_VALUE_NORM && kind != MEASURE_KEY_NORM && kind != MEASURE_KEY_COSINE;
}

/* Joins array `array` of one sequence's measure into out [layers, all KV heads, stride]. Where a KV
 * head is copied to several ranks, each has measured its own query heads. These are summed in rank
 * order, which is the order of the heads. */
static void join_array(const backend_ranks *all, uint32_t seq, uint32_t array, measure_kind kind,
                       float *out)
{
    const measure_result *m = &all->ranks[0].result->seqs[seq].measure;
    uint32_t heads = all->info.geometry.n_kv_heads;
    uint32_t copies = all->n_ranks * m->n_kv_heads / heads;
    uint32_t parts = sums_query_heads(kind) ? copies : 1;
    for (uint32_t layer = array * m->n_layers; layer < (array + 1) * m->n_layers; layer++) {
        for (uint32_t head = 0; head < heads; head++, out += m->stride) {
            const rank *first = &all->ranks[head / m->n_kv_heads * copies];
            size_t at = ((size_t)layer * m->n_kv_heads + head % m->n_kv_heads) * m->stride;
            memcpy(out, first->result->seqs[seq].measure.values + at, m->stride * sizeof *out);
            for (const rank *r = first + 1; r < first + parts; r++) {
                const float *values = r->result->seqs[seq].measure.values + at;
                for (uint32_t i = 0; i < m->stride; i++) out[i] += values[i];
            }
        }
    }
}

/* Floats in one joined array. */
static size_t joined_floats(const backend_ranks *all, const measure_result *m)
{
    return m->values ? (size_t)m->n_layers * all->info.geometry.n_kv_heads * m->stride : 0;
}

/* Joins the ranks' parts of one share's embeddings into out [n_tokens, n_embeds, head_dim]: each
 * rank's heads come in the order of the share's list. */
static void join_share(const backend_ranks *all, uint32_t seq, uint16_t *out)
{
    const step_seq *s = &all->plan->seqs[seq];
    uint32_t dim = all->info.head_dim;
    for (uint32_t r = 0; r < all->n_ranks; r++) {
        uint32_t heads = embed_heads_of(&all->info, s, r, all->n_ranks), part = 0;
        const uint16_t *from = heads ? all->ranks[r].result->seqs[seq].embeddings : NULL;
        for (uint32_t i = 0; from && i < s->n_embeds; i++) {
            if (embed_rank(all->info.n_heads, all->info.geometry.n_kv_heads, &s->embeds[i],
                           all->n_ranks) != r)
                continue;
            for (size_t t = 0; t < s->n_tokens; t++)
                memcpy(out + (t * s->n_embeds + i) * dim, from + (t * heads + part) * dim,
                       dim * sizeof *out);
            part++;
        }
    }
}

static status join_embeddings(backend_ranks *all)
{
    size_t n = 0, at = 0;
    for (uint32_t i = 0; i < all->plan->n_seqs; i++)
        n += (size_t)all->plan->seqs[i].n_tokens * all->plan->seqs[i].n_embeds * all->info.head_dim;
    if (n == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(embed_room_reserve(&all->embeddings, n));
    for (uint32_t i = 0; i < all->plan->n_seqs; i++) {
        const step_seq *s = &all->plan->seqs[i];
        all->seq_results[i].embeddings = s->n_embeds ? all->embeddings.values + at : NULL;
        if (s->n_embeds) join_share(all, i, all->embeddings.values + at);
        at += (size_t)s->n_tokens * s->n_embeds * all->info.head_dim;
    }
    return STATUS_IS_OK;
}

/* Adds up what each rank counted of a sequence's rows, in rank order. */
static const retrieval_reading *join_readings(const backend_ranks *all, uint32_t seq)
{
    const step_seq_result *first = &all->ranks[0].result->seqs[seq];
    retrieval_reading *out = all->readings + all->plan->seqs[seq].first_token;
    for (uint32_t i = 0; i < first->n_readings; i++) {
        out[i] = first->readings[i];
        for (uint32_t r = 1; r < all->n_ranks; r++)
            retrieval_join_reading(&out[i], &all->ranks[r].result->seqs[seq].readings[i]);
    }
    return first->n_readings ? out : NULL;
}

static status join_seqs(backend_ranks *all)
{
    const step_result *first = all->ranks[0].result;
    size_t floats = 0;
    for (uint32_t i = 0; i < first->n_seqs; i++)
        floats += measures_arrays(&all->plan->seqs[i].measure) *
                  joined_floats(all, &first->seqs[i].measure);
    if (floats > 0) RETURN_IF_ERROR(measured_reserve(&all->measures, floats));
    float *at = floats > 0 ? all->measures.first->values : NULL;
    for (uint32_t i = 0; i < first->n_seqs; i++) all->seq_results[i] = first->seqs[i];
    RETURN_IF_ERROR(join_embeddings(all));
    for (uint32_t i = 0; i < first->n_seqs; i++) {
        step_seq_result *s = &all->seq_results[i];
        s->readings = join_readings(all, i);
        if (!s->measure.values) continue;
        const measure_spec *spec = &all->plan->seqs[i].measure;
        s->measure.values = at;
        s->measure.holders = &all->measures.first->holders;
        for (uint32_t array = 0; array < measures_arrays(spec); array++) {
            join_array(all, i, array, measures_kind_of(spec, array), at);
            at += joined_floats(all, &s->measure);
        }
        s->measure.n_kv_heads = all->info.geometry.n_kv_heads;
    }
    return STATUS_IS_OK;
}

static backend_tier sum_tiers(const backend_ranks *all)
{
    backend_tier sum = {0};
    for (uint32_t i = 0; i < all->n_ranks; i++)
        if (all->ranks[i].result) backend_tier_add(&sum, &all->ranks[i].result->tier);
    return sum;
}

void ranks_join(backend_ranks *all)
{
    status s = check_ranks(all);
    backend_tier tier = sum_tiers(all);
    if (!status_ok(s)) {
        all->result = (step_result){.step = all->plan->step, .status = s, .tier = tier};
        return;
    }
    all->result = *all->ranks[0].result;
    all->result.seqs = all->seq_results;
    all->result.tier = tier;
    all->result.status = join_seqs(all);
    if (!status_ok(all->result.status)) all->result.n_seqs = 0;
    for (uint32_t i = 1; i < all->n_ranks; i++) {
        const step_result *r = all->ranks[i].result;
        if (r->compute_us > all->result.compute_us) all->result.compute_us = r->compute_us;
        if (r->measure_us > all->result.measure_us) all->result.measure_us = r->measure_us;
        if (r->model_us > all->result.model_us) all->result.model_us = r->model_us;
    }
}
