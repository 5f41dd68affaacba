#include "model/sampler.h"

#include "base/logits.h"
#include "model/draw.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A token that a sequence has seen, for penalties: a slot of a table with open addressing. */
typedef struct token_count {
    uint32_t key;     /* token + 1; 0 = empty */
    uint32_t outputs; /* how often it was sampled */
} token_count;

typedef struct token_counts {
    token_count *slots;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t n;
} token_counts;

typedef struct sampler_seq {
    sample_params params; /* its arrays point into `memory` */
    void *memory;
    token_counts counts;
    bool counting;
} sampler_seq;

/* One thread's scratch for one row. */
typedef struct sampler_scratch {
    float *logits;         /* [vocab_size] */
    candidate *candidates; /* [vocab_size] */
} sampler_scratch;

struct sampler {
    uint32_t max_seqs;
    uint32_t vocab_size;
    thread_pool *pool;
    sampler_seq *seqs;        /* [max_seqs] */
    sampler_scratch *scratch; /* [threads] */
};

/* ---- histories ------------------------------------------------------------------------------- */

static token_count *counts_slot(token_counts *c, uint32_t token)
{
    uint32_t mask = c->capacity - 1;
    uint32_t i = (uint32_t)hash_mix64(token) & mask;
    while (c->slots[i].key != 0 && c->slots[i].key != token + 1) i = (i + 1) & mask;
    return &c->slots[i];
}

static bool counts_reserve(token_counts *c, uint32_t n)
{
    uint32_t capacity = c->capacity ? c->capacity : 64;
    while (capacity < 2 * n) capacity *= 2;
    if (capacity == c->capacity) return true;
    token_counts grown = {calloc(capacity, sizeof *grown.slots), capacity, c->n};
    if (!grown.slots) return false;
    for (uint32_t i = 0; i < c->capacity; i++)
        if (c->slots[i].key) *counts_slot(&grown, c->slots[i].key - 1) = c->slots[i];
    free(c->slots);
    *c = grown;
    return true;
}

/* Counts a token. Opening the sequence reserved room for the length announced then, so that drawing
 * allocates nothing; new tokens beyond that length are not counted. */
static void counts_add(token_counts *c, uint32_t token, bool output)
{
    token_count *slot = counts_slot(c, token);
    if (slot->key == 0) {
        if (2 * (c->n + 1) > c->capacity) return;
        *slot = (token_count){.key = token + 1};
        c->n++;
    }
    slot->outputs += output;
}

static bool has_penalties(const sample_params *p)
{
    return p->presence_penalty != 0 || p->frequency_penalty != 0 || p->repetition_penalty != 1;
}

/* ---- creation -------------------------------------------------------------------------------- */

status sampler_create(uint32_t max_seqs, uint32_t vocab_size, thread_pool *pool, sampler **out)
{
    unsigned n_threads = thread_pool_size(pool);
    sampler *s = calloc(1, sizeof *s);
    if (!s) return status_make(STATUS_NO_MEMORY, "sampler");
    *s = (sampler){.max_seqs = max_seqs, .vocab_size = vocab_size, .pool = pool};
    s->seqs = calloc(max_seqs, sizeof *s->seqs);
    s->scratch = calloc(n_threads, sizeof *s->scratch);
    bool ok = s->seqs && s->scratch;
    for (unsigned i = 0; ok && i < n_threads; i++) {
        s->scratch[i].logits = malloc(vocab_size * sizeof(float));
        s->scratch[i].candidates = malloc(vocab_size * sizeof(candidate));
        ok = s->scratch[i].logits && s->scratch[i].candidates;
    }
    if (!ok) {
        sampler_destroy(s);
        return status_make(STATUS_NO_MEMORY, "sampler");
    }
    *out = s;
    return STATUS_IS_OK;
}

void sampler_destroy(sampler *s)
{
    if (!s) return;
    for (uint32_t i = 0; s->seqs && i < s->max_seqs; i++) {
        free(s->seqs[i].memory);
        free(s->seqs[i].counts.slots);
    }
    for (unsigned i = 0; s->scratch && i < thread_pool_size(s->pool); i++) {
        free(s->scratch[i].logits);
        free(s->scratch[i].candidates);
    }
    free(s->scratch);
    free(s->seqs);
    free(s);
}

/* Copies the parameters, with their arrays in one block. */
static bool copy_params(sampler_seq *q, const sample_params *p)
{
    size_t stops = p->n_stop_ids * sizeof(uint32_t);
    size_t bias_ids = p->n_bias * sizeof(uint32_t), bias = p->n_bias * sizeof(float);
    uint8_t *memory = stops + bias_ids ? malloc(stops + bias_ids + bias) : NULL;
    if (stops + bias_ids && !memory) return false;
    free(q->memory);
    q->memory = memory;
    q->params = *p;
    if (stops) q->params.stop_ids = memcpy(memory, p->stop_ids, stops);
    if (bias_ids) {
        q->params.bias_ids = memcpy(memory + stops, p->bias_ids, bias_ids);
        q->params.bias = memcpy(memory + stops + bias_ids, p->bias, bias);
    }
    return true;
}

status sampler_open(sampler *s, const step_open *open)
{
    if (open->seq >= s->max_seqs) return status_make(STATUS_INVALID, "step_open.seq");
    for (uint32_t i = 0; i < open->n_history; i++)
        if (open->history[i] >= s->vocab_size)
            return status_make(STATUS_INVALID, "step_open.history");
    sampler_seq *q = &s->seqs[open->seq];
    if (!copy_params(q, open->params)) return status_make(STATUS_NO_MEMORY, "step_open");
    q->counting = has_penalties(open->params);
    if (q->counts.slots) memset(q->counts.slots, 0, q->counts.capacity * sizeof *q->counts.slots);
    q->counts.n = 0;
    if (!q->counting) return STATUS_IS_OK;
    uint32_t most = open->n_most > open->n_history ? open->n_most : open->n_history;
    if (!counts_reserve(&q->counts, most < s->vocab_size ? most : s->vocab_size))
        return status_make(STATUS_NO_MEMORY, "step_open");
    for (uint32_t i = 0; i < open->n_history; i++)
        counts_add(&q->counts, open->history[i], i >= open->n_prompt);
    return STATUS_IS_OK;
}

void sampler_count_given(sampler *s, const step_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *share = &plan->seqs[i];
        const uint32_t *end = plan->tokens + share->first_token + share->n_tokens;
        sampler_seq *q = &s->seqs[share->seq];
        for (const uint32_t *t = end - share->n_uncounted; q->counting && t < end; t++)
            counts_add(&q->counts, *t, true);
    }
}

/* ---- one draw -------------------------------------------------------------------------------- */

/* Copies the logits of tokens [first, first + n); those that are not in the mask become -inf. */
static void copy_masked(const sampler_draw *d, uint32_t first, uint32_t n, float *to)
{
    memcpy(to, d->logits, n * sizeof *to);
    for (uint32_t w = first / 32; d->mask && w < (first + n + 31) / 32; w++)
        for (uint32_t banned = ~d->mask[w]; banned; banned &= banned - 1) {
            uint32_t at = w * 32 + (uint32_t)__builtin_ctz(banned) - first;
            if (at < n) to[at] = -INFINITY;
        }
}

static void apply_penalties(const sampler_seq *q, uint32_t first, uint32_t n, float *logits)
{
    const sample_params *p = &q->params;
    for (uint32_t i = 0; i < q->counts.capacity; i++) {
        const token_count *c = &q->counts.slots[i];
        uint32_t at = c->key - 1 - first;
        if (!c->key || at >= n) continue;
        float *l = &logits[at];
        *l = *l > 0 ? *l / p->repetition_penalty : *l * p->repetition_penalty;
        *l -= p->frequency_penalty * (float)c->outputs;
        if (c->outputs) *l -= p->presence_penalty;
    }
}

/* With a mask min_tokens bans nothing: the mask says whether a stop token may come, and it may be
 * the only token that may. */
static void apply_edits(const sampler_seq *q, const sampler_draw *d, uint32_t first, uint32_t n,
                        float *logits)
{
    const sample_params *p = &q->params;
    if (d->sample_index < p->min_tokens && !d->mask)
        for (uint32_t i = 0; i < p->n_stop_ids; i++)
            if (p->stop_ids[i] - first < n) logits[p->stop_ids[i] - first] = -INFINITY;
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias_ids[i] - first < n) logits[p->bias_ids[i] - first] += p->bias[i];
    if (q->counting) apply_penalties(q, first, n, logits);
}

void sampler_edited(const sampler *s, const sampler_draw *d, uint32_t first, uint32_t n, float *out)
{
    const sampler_seq *q = &s->seqs[d->seq];
    copy_masked(d, first, n, out);
    apply_edits(q, d, first, n, out);
    if (sampler_is_greedy(&q->params) || q->params.temperature == 1) return;
    for (uint32_t i = 0; i < n; i++) out[i] /= q->params.temperature;
}

const float *sampler_raw(const sampler_draw *d, uint32_t first, uint32_t n, float *room)
{
    if (!d->mask) return d->logits;
    copy_masked(d, first, n, room);
    return room;
}

float sampler_floor(const sample_params *p, float largest)
{
    return p->min_p > 0 ? largest + logf(p->min_p) : -INFINITY;
}

static uint64_t draw_key(uint64_t seed, uint32_t choice)
{
    return hash_mix64(seed + 0x9e3779b97f4a7c15ull * ((uint64_t)choice + 1));
}

static void fill_logprobs(const float *logits, uint32_t n, uint32_t n_top, step_sample *out)
{
    logit_score s = logits_score(logits, n, out->token, n_top, out->top_ids, out->top_logprobs);
    out->logprob = s.logprob;
    out->rank = s.rank;
    out->n_top = s.n_top;
}

static uint32_t draw_token(const sample_params *p, draw_noise noise, uint32_t n, uint32_t largest,
                           sampler_scratch *scratch)
{
    const float *logits = scratch->logits;
    candidate *c = scratch->candidates, one;
    if (sampler_is_greedy(p)) return largest;
    float floor = sampler_floor(p, logits[largest]);
    if (p->top_k == 0 && p->top_p >= 1) {
        one = draw_gumbel_row(noise, logits, 0, n, floor, largest);
    } else {
        size_t m = candidates_collect(logits, 0, n, floor, c);
        m = candidates_keep_top_k(c, m, p->top_k);
        m = candidates_keep_top_p(c, m, p->top_p);
        one = draw_gumbel(noise, c, m);
    }
    /* All logits are -inf or NaN: the draw is undefined. */
    return one.id == DRAW_NO_TOKEN ? largest : one.id;
}

static void draw_one(const sampler *s, const sampler_draw *d, sampler_scratch *scratch)
{
    const sample_params *p = &s->seqs[d->seq].params;
    uint32_t n = s->vocab_size;
    sampler_edited(s, d, 0, n, scratch->logits);
    draw_noise noise = {draw_key(p->seed, d->choice), d->sample_index};
    logits_peak peak = logits_find_peak(scratch->logits, n);
    d->out->undefined = !logits_are_defined(peak.value, peak.is_nan);
    d->out->token = draw_token(p, noise, n, peak.index, scratch);
    d->out->logprob = NAN;
    d->out->rank = 0;
    d->out->n_top = 0;
    if (p->n_logprobs < 0) return;
    fill_logprobs(sampler_raw(d, 0, n, scratch->logits), n, sampler_n_top(p), d->out);
}

typedef struct sampler_job {
    sampler *s;
    const sampler_draw *draws;
} sampler_job;

static void run_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    sampler_job *job = ctx;
    for (size_t i = from; i < to; i++) draw_one(job->s, &job->draws[i], &job->s->scratch[thread]);
}

void sampler_run(sampler *s, const sampler_draw *draws, size_t n)
{
    sampler_job job = {s, draws};
    thread_pool_for(s->pool, n, 1, run_range, &job);
    sampler_count_drawn(s, draws, n);
}

/* ---- for a backend that draws elsewhere ------------------------------------------------------ */

const sample_params *sampler_describe(const sampler *s, const sampler_draw *d, uint64_t *key,
                                      sampler_edit *edits, sampler_edits *n)
{
    const sampler_seq *q = &s->seqs[d->seq];
    const sample_params *p = &q->params;
    *key = draw_key(p->seed, d->choice);
    *n =
        (sampler_edits){.n_banned = d->sample_index < p->min_tokens && !d->mask ? p->n_stop_ids : 0,
                        .n_biased = p->n_bias,
                        .n_seen = q->counting ? q->counts.n : 0};
    if (!edits) return p;
    for (uint32_t i = 0; i < n->n_banned; i++) *edits++ = (sampler_edit){.token = p->stop_ids[i]};
    for (uint32_t i = 0; i < n->n_biased; i++)
        *edits++ = (sampler_edit){.token = p->bias_ids[i], .bias = p->bias[i]};
    for (uint32_t i = 0; n->n_seen && i < q->counts.capacity; i++) {
        const token_count *c = &q->counts.slots[i];
        if (c->key) *edits++ = (sampler_edit){.token = c->key - 1, .outputs = c->outputs};
    }
    return p;
}

void sampler_count_drawn(sampler *s, const sampler_draw *draws, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sampler_seq *q = &s->seqs[draws[i].seq];
        if (draws[i].own && q->counting) counts_add(&q->counts, draws[i].out->token, true);
    }
}
