/* Steps for ranks at workers that take two at a time: what they ask for, and their bits. */
#ifndef TESTS_UNIT_RPC_WORKER_WALK_H
#define TESTS_UNIT_RPC_WORKER_WALK_H

#include "tests/unit/rpc_worker_fixture.h"

enum { SHARES = 3, LAST = 9, MOST = 40 };

/* Ranks that take two steps each. */
static inline site *site_of(void **state, uint32_t n)
{
    site *s = *state = site_create(n);
    for (uint32_t i = 0; i < n; i++) s->ranks[i].ahead = true;
    return s;
}

/* Some sequences, of which each step has all, in another order than the step before. */
typedef struct walk {
    const backend *b;
    pkv *kv;
    uint32_t depth; // 2: a step takes the draws of the one that is in flight
    uint32_t step, n_collected, length[SHARES];
    uint32_t drawn[SHARES]; // by sequence
    sample_params params[SHARES];
    step_open opens[SHARES];
    embed_head head;
    struct {
        step_plan plan;
        step_seq seqs[SHARES];
        uint32_t tokens[SITE_ROWS];
    } plans[2]; // in flight
} walk;

static inline void walk_begin(walk *w, const backend *b, uint32_t depth)
{
    const backend_info *info = b->ops->info(b->ctx);
    pkv_options o = {.geometry = info->geometry, .n_pages = info->n_pages, .max_seqs = SITE_SEQS};
    uint32_t hit;
    *w = (walk){.b = b, .depth = depth, .head = {1, EMBED_Q, info->n_heads - 1}};
    assert_true(status_ok(pkv_create(&o, &w->kv)));
    for (uint32_t q = 0; q < SHARES; q++) {
        assert_true(
            status_ok(pkv_seq_open(w->kv, q, PKV_HEAD, w->plans[0].tokens, 0, 0, MOST, &hit)));
        w->params[q] = (sample_params){.temperature = 0.9f,
                                       .top_p = 1,
                                       .repetition_penalty = q == 1 ? 1.5f : 1,
                                       .n_logprobs = q == 2 ? 3 : -1,
                                       .seed = 70 + q};
        w->opens[q] = (step_open){.seq = q, .params = &w->params[q], .n_most = MOST};
    }
}

/* Which sequence has share i of a step. */
static inline uint32_t seq_of(uint32_t step, uint32_t i) { return (i + step) % SHARES; }

/* Has the step ask for results beside its draws, other ones than the next step asks for. */
static inline void ask_for_more(const walk *w, step_seq *s)
{
    if (s->seq == w->step % SHARES)
        s->measure = (measure_spec){.kind = MEASURE_MASS, .rows = 1, .layer_step = 1};
    if (s->seq != (w->step + 1) % SHARES) return;
    s->embeds = &w->head;
    s->n_embeds = 1;
}

static inline const step_plan *walk_plan(walk *w)
{
    step_seq *seqs = w->plans[w->step % 2].seqs;
    uint32_t *tokens = w->plans[w->step % 2].tokens, n_tokens = 0;
    step_plan *plan = &w->plans[w->step % 2].plan;
    bool ahead = w->depth == 2 && w->step > w->n_collected;
    w->step++;
    for (uint32_t i = 0; i < SHARES; i++) {
        uint32_t q = seq_of(w->step, i), n = w->step == 1 ? 5 + 7 * q : 1;
        assert_true(status_ok(pkv_seq_append(w->kv, q, n)));
        seqs[i] = (step_seq){.seq = q,
                             .first_token = n_tokens,
                             .n_tokens = n,
                             .position = w->length[q],
                             .n_samples = 1,
                             .sample_index = w->step - 1};
        ask_for_more(w, &seqs[i]);
        for (uint32_t t = 0; t < n; t++) tokens[n_tokens + t] = 11 * q + t;
        if (w->step > 1) tokens[n_tokens] = ahead ? 0 : w->drawn[q];
        for (uint32_t k = 0; ahead && k < SHARES; k++)
            if (seq_of(w->step - 1, k) == q) seqs[i].token_from = 1 + k;
        w->length[q] += n;
        n_tokens += n;
    }
    *plan = (step_plan){.step = w->step,
                        .deltas = pkv_take_deltas(w->kv),
                        .opens = w->opens,
                        .n_opens = w->step == 1 ? SHARES : 0,
                        .seqs = seqs,
                        .n_seqs = SHARES,
                        .tokens = tokens,
                        .n_tokens = n_tokens,
                        .checksum = pkv_checksum(w->kv)};
    return plan;
}

static inline void walk_submit(walk *w)
{
    assert_true(status_ok(w->b->ops->submit(w->b->ctx, walk_plan(w))));
}

/* The end of the oldest step; its text is copied, because the next end may reuse it. */
static inline status walk_collect(walk *w, const step_result **out, char text[512])
{
    status s = w->b->ops->collect(w->b->ctx, out);
    w->n_collected++;
    if (status_ok(s)) s = (*out)->status;
    snprintf(text, 512, "%s", s.message ? s.message : "");
    return s;
}

static inline void walk_take(walk *w, uint32_t step, strbuf *to)
{
    const step_result *r;
    char text[512];
    status s = walk_collect(w, &r, text);
    if (!status_ok(s)) fail_msg("step %u: %s", step, text);
    assert_int_equal(r->step, step);
    const step_plan *plan = &w->plans[(step - 1) % 2].plan;
    for (uint32_t i = 0; i < SHARES; i++) {
        const step_seq_result *q = &r->seqs[i];
        const measure_result *m = &q->measure;
        size_t values = (size_t)m->n_layers * m->n_kv_heads * m->stride;
        w->drawn[plan->seqs[i].seq] = q->samples[0].token;
        strbuf_append(to, &q->samples[0].token, sizeof q->samples[0].token);
        strbuf_append(to, q->samples[0].top_logprobs, q->samples[0].n_top * sizeof(float));
        assert_int_equal(m->values != NULL, plan->seqs[i].measure.kind != MEASURE_NONE);
        if (m->values) strbuf_append(to, m->values, values * sizeof(float));
        assert_int_equal(q->embeddings != NULL, plan->seqs[i].n_embeds > 0);
        size_t rows = plan->seqs[i].n_tokens * w->b->ops->info(w->b->ctx)->head_dim;
        if (q->embeddings) strbuf_append(to, q->embeddings, rows * sizeof(uint16_t));
    }
}

static inline void walk_end(walk *w) { pkv_destroy(w->kv); }

/* Every step, each submitted as early as `depth` allows. */
static inline void walk_all(const backend *b, uint32_t depth, strbuf *out)
{
    walk *w = malloc(sizeof *w);
    walk_begin(w, b, depth);
    for (uint32_t collected = 0; collected < LAST;) {
        if (w->step < LAST && w->step - collected < depth) walk_submit(w);
        else walk_take(w, ++collected, out);
    }
    walk_end(w);
    free(w);
}

static inline void expect_same_bits(site *s, uint32_t depth)
{
    strbuf there = {0}, here = {0};
    backend b = site_make_sure(s), local = site_local(s);
    assert_int_equal(b.ops->info(b.ctx)->max_in_flight, depth);
    walk_all(&b, depth, &there);
    walk_all(&local, 1, &here);
    assert_int_equal(there.size, here.size);
    assert_memory_equal(there.data, here.data, here.size);
    b.ops->destroy(b.ctx);
    local.ops->destroy(local.ctx);
    strbuf_destroy(&there);
    strbuf_destroy(&here);
}

static inline void expect_contains(const char *text, const char *word)
{
    if (!strstr(text, word)) fail_msg("\"%s\" does not say '%s'", text, word);
}

#endif
