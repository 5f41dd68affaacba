#include "cli/heads_search.h"

#include "engine/reform/gather.h"

#include <stdlib.h>
#include <string.h>

enum { POOL = 20, VALUES_BYTES_MOST = 1 << 30 };

/* ---- opening --------------------------------------------------------------------------------- */

static uint32_t list_heads(const model_config *c, embed_head *out)
{
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        for (uint32_t kind = 0; kind < EMBED_KINDS; kind++)
            for (uint32_t i = 0; i < (kind == EMBED_Q ? c->n_heads : c->n_kv_heads); i++)
                out[n++] = (embed_head){layer, (embed_kind)kind, i};
    return n;
}

static uint32_t least(uint64_t a, uint64_t b) { return (uint32_t)(a < b ? a : b); }

static status make_scratch(heads_search *h, uint32_t max_tokens, error *err)
{
    const model_config *c = &h->model->config;
    size_t all = (size_t)c->n_layers * (c->n_heads + 2 * (size_t)c->n_kv_heads);
    size_t of_head = (size_t)h->dim * sizeof(uint16_t), rows = h->model->prefill_chunk;
    h->capacity = max_tokens;
    h->at_once = least(least(EMBED_HEADS_MOST, EMBED_BYTES_MOST / (rows * of_head)),
                       VALUES_BYTES_MOST / (max_tokens * of_head));
    if (h->at_once > all) h->at_once = (uint32_t)all;
    if (h->at_once == 0)
        return error_set(err, STATUS_LIMIT, "--tokens: %u are too many", max_tokens);
    h->heads = calloc(all, sizeof *h->heads);
    h->scores = calloc(all, sizeof *h->scores);
    h->values = alloc_resize(NULL, NULL, max_tokens * (size_t)h->at_once, of_head);
    h->context = alloc_resize(NULL, NULL, max_tokens, of_head);
    h->question = alloc_resize(NULL, NULL, max_tokens, of_head);
    h->found = calloc(max_tokens, sizeof *h->found);
    h->smooth = calloc(max_tokens, sizeof *h->smooth);
    h->order = calloc(max_tokens, sizeof *h->order);
    if (!h->heads || !h->scores || !h->values || !h->context || !h->question || !h->found ||
        !h->smooth || !h->order)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    h->n = list_heads(c, h->heads);
    for (uint32_t i = 0; i < h->n; i++) h->scores[i].head = h->heads[i];
    return STATUS_IS_OK;
}

status heads_search_open(loaded_model *m, const json_t *retention, uint32_t max_tokens,
                         heads_search *out, error *err)
{
    const backend_info *info = m->backend.ops->info(m->backend.ctx);
    *out = (heads_search){.model = m, .dim = info->head_dim};
    if (info->n_heads == 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the %s backend has no embeddings of tokens; a CPU has (--device cpu)",
                         info->name);
    const retention_limits limits = {info->geometry, m->prefill_chunk, m->max_model_len};
    RETURN_IF_ERROR(retention_parse(retention, &limits, &out->policy, err));
    retention_policy_resolve(&out->policy, 1);
    RETURN_IF_ERROR(make_scratch(out, max_tokens, err));
    return steps_create(m, m->max_model_len + 1, false, &out->steps, err);
}

void heads_search_close(heads_search *h)
{
    steps_destroy(&h->steps);
    free(h->heads);
    free(h->scores);
    free(h->values);
    free(h->context);
    free(h->question);
    free(h->found);
    free(h->smooth);
    free(h->order);
}

/* ---- a sample through the model -------------------------------------------------------------- */

/* The heads of one pass, and where their vectors go. */
typedef struct embed_pass {
    uint32_t first, n; // heads
    uint32_t n_tokens; // of the sample
    uint32_t done;     // rows embedded so far
} embed_pass;

/* Runs the scheduler's plan with embeddings of every row of the sample. */
static status run_plan(heads_search *h, embed_pass *p, const step_plan *plan,
                       const step_result **result, error *err)
{
    const backend *b = h->steps.backend;
    step_plan asked = *plan;
    step_seq seq;
    bool embeds = plan->n_seqs == 1 && p->done < p->n_tokens;
    if (embeds) {
        seq = plan->seqs[0];
        seq.embeds = h->heads + p->first;
        seq.n_embeds = p->n;
        asked.seqs = &seq;
    }
    status s = b->ops->submit(b->ctx, &asked);
    if (status_ok(s)) s = b->ops->collect(b->ctx, result);
    if (status_ok(s)) s = (*result)->status;
    if (!status_ok(s))
        return error_set(err, s.code, "step %llu: %s", (unsigned long long)plan->step,
                         s.message ? s.message : status_text(s.code));
    if (!embeds) return STATUS_IS_OK;
    uint32_t rows = seq.n_tokens;
    if (rows > p->n_tokens - p->done)
        return error_set(err, STATUS_INTERNAL, "the scheduler planned other rows than a prompt's");
    size_t row = (size_t)p->n * h->dim;
    if (!gather_are_finite((*result)->seqs[0].embeddings, rows * row))
        return error_set(err, STATUS_INTERNAL,
                         "the model's embeddings are not finite (NaN or infinity)");
    memcpy(h->values + p->done * row, (*result)->seqs[0].embeddings,
           rows * row * sizeof *h->values);
    p->done += rows;
    return STATUS_IS_OK;
}

/* Runs steps until the sample's request has ended. */
static status run_pass(heads_search *h, embed_pass *p, const heads_sample *sample, error *err)
{
    sched_request r = {.id = ++h->next_id,
                       .prompt = sample->ids.ids,
                       .n_prompt = (uint32_t)sample->ids.n,
                       .max_new_tokens = 1,
                       .n = 1,
                       .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1},
                       .policy = h->policy};
    RETURN_IF_ERROR(sched_check(h->steps.sched, &r, err));
    sched_event events[2] = {{.kind = SCHED_ADD, .add = &r}};
    size_t n = 1;
    for (bool ended = false;;) {
        const step_plan *plan = sched_step(h->steps.sched, clock_now_us(), events, n);
        n = 0;
        if (!sched_plan_empty(plan)) {
            const step_result *result = NULL;
            RETURN_IF_ERROR(run_plan(h, p, plan, &result, err));
            events[n++] = (sched_event){.kind = SCHED_RESULT, .result = result};
        } else if (ended) {
            return STATUS_IS_OK;
        }
        if (p->done == p->n_tokens && !ended) {
            events[n++] =
                (sched_event){.kind = SCHED_END, .request = r.id, .choice = SCHED_ALL_CHOICES};
            ended = true;
        } else if (n == 0) {
            return error_set(err, STATUS_INTERNAL, "the scheduler stopped at token %u of %u",
                             p->done, p->n_tokens);
        }
    }
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Means over the POOL tokens around each: POOL / 2 before it, and one less behind it. */
static void pool_means(const float *found, uint32_t n, float *out)
{
    double sum = 0;
    uint32_t from = 0, to = 0;
    for (uint32_t i = 0; i < n; i++) {
        while (to < n && to < i + POOL / 2) sum += (double)found[to++];
        while (from + POOL / 2 < i) sum -= (double)found[from++];
        out[i] = (float)(sum / (to - from));
    }
}

/* A score as an integer whose order is descending, above the index. */
static uint64_t key_of(float score, uint32_t index)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    bits = bits >> 31 ? bits : ~bits & 0x7fffffffu;
    return (uint64_t)bits << 32 | index;
}

static int compare_keys(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

double heads_rank(const float *found, const bool *gold, uint32_t n, float *smooth, uint64_t *order)
{
    uint64_t ranks = 0;
    uint32_t n_gold = 0;
    pool_means(found, n, smooth);
    for (uint32_t i = 0; i < n; i++) order[i] = key_of(smooth[i], i);
    qsort(order, n, sizeof *order, compare_keys);
    for (uint32_t rank = 0; rank < n; rank++) {
        if (!gold[(uint32_t)order[rank]]) continue;
        ranks += rank;
        n_gold++;
    }
    return n_gold ? (double)ranks / n_gold / n : 1;
}

/* Copies one head's part of the embeddings of rows [from, to). */
static void copy_part(const heads_search *h, const embed_pass *p, uint32_t part, uint32_t from,
                      uint32_t to, uint16_t *out)
{
    for (uint32_t i = from; i < to; i++, out += h->dim)
        memcpy(out, h->values + ((size_t)i * p->n + part) * h->dim, h->dim * sizeof *out);
}

static status score_heads(heads_search *h, const embed_pass *p, heads_task task,
                          const heads_sample *s, error *err)
{
    uint32_t n = s->n_context, m = p->n_tokens - n;
    for (uint32_t i = 0; i < p->n; i++) {
        copy_part(h, p, i, 0, n, h->context);
        copy_part(h, p, i, n, p->n_tokens, h->question);
        status st = gather_scores(h->context, n, h->question, m, h->dim, 0, h->found);
        if (!status_ok(st)) return error_set(err, st.code, "out of memory");
        h->scores[p->first + i].mnr[task] += heads_rank(h->found, s->gold, n, h->smooth, h->order);
    }
    return STATUS_IS_OK;
}

status heads_search_add(heads_search *h, heads_task task, const heads_sample *sample, error *err)
{
    if (sample->ids.n > h->capacity || sample->n_context == sample->ids.n)
        return error_set(err, STATUS_INVALID, "a sample of %zu tokens, %zu are the most",
                         sample->ids.n, h->capacity);
    double before = h->n_samples[task]++, now = h->n_samples[task];
    for (uint32_t i = 0; i < h->n; i++) h->scores[i].mnr[task] *= before;
    for (uint32_t first = 0; first < h->n; first += h->at_once) {
        embed_pass p = {.first = first,
                        .n = least(h->at_once, h->n - first),
                        .n_tokens = (uint32_t)sample->ids.n};
        RETURN_IF_ERROR(run_pass(h, &p, sample, err));
        RETURN_IF_ERROR(score_heads(h, &p, task, sample, err));
    }
    for (uint32_t i = 0; i < h->n; i++) h->scores[i].mnr[task] /= now;
    return STATUS_IS_OK;
}

/* ---- choice ---------------------------------------------------------------------------------- */

static bool is_chosen(const heads_choice *c, uint32_t score)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->scores[i] == score) return true;
    return false;
}

heads_choice heads_choose(const heads_score *scores, uint32_t n, uint32_t n_layers)
{
    heads_choice out = {.n = 0};
    for (uint32_t task = 0; task < HEADS_TASKS; task++)
        for (uint32_t k = 0; k < HEADS_OF_TASK; k++) {
            uint32_t best = UINT32_MAX;
            for (uint32_t i = 0; i < n; i++) {
                bool deep = (uint64_t)scores[i].head.layer * 10 >= (uint64_t)n_layers * 7;
                if ((task == HEADS_PATTERN && deep) || is_chosen(&out, i)) continue;
                if (best == UINT32_MAX || scores[i].mnr[task] < scores[best].mnr[task]) best = i;
            }
            if (best == UINT32_MAX) continue;
            out.tasks[out.n] = (heads_task)task;
            out.scores[out.n++] = best;
        }
    return out;
}
