/* Plans and results as messages: unpacking gives back what was packed, and a running sequence takes
 * few bytes. */
#include "tests/unit/rpc_worker_wire.h"

#include <math.h>

enum { ROUNDS = 300, EMBEDS = 5 };

/* ---- plans ----------------------------------------------------------------------------------- */

typedef struct random_plan {
    step_plan plan;
    uint32_t words[40], tokens[ROWS], history[30], stops[4], bias_ids[3];
    float bias[3];
    pkv_move moves[12];
    step_open opens[5];
    sample_params params[5];
    step_seq seqs[SEQS];
    embed_head embeds[SEQS][EMBEDS];
    uint32_t masks[SEQS][(VOCAB + 31) / 32];
} random_plan;

static bool coin(rng *r) { return rng_below(r, 2) == 0; }

static float random_float(rng *r) { return (float)rng_below(r, 2001) / 1000 - 1; }

static void random_open(rng *r, random_plan *p, uint32_t i)
{
    p->params[i] = (sample_params){
        .temperature = random_float(r),
        .top_p = random_float(r),
        .min_p = random_float(r),
        .top_k = rng_below(r, 100),
        .presence_penalty = random_float(r),
        .frequency_penalty = random_float(r),
        .repetition_penalty = random_float(r),
        .seed = (uint64_t)rng_below(r, UINT32_MAX) << 32 | 5,
        .n_logprobs = (int32_t)rng_below(r, 22) - 1,
        .min_tokens = rng_below(r, 9),
        .stop_ids = p->stops,
        .n_stop_ids = rng_below(r, 5),
        .bias_ids = p->bias_ids,
        .bias = p->bias,
        .n_bias = rng_below(r, 4),
    };
    p->opens[i] = (step_open){
        .seq = rng_below(r, SEQS),
        .choice = rng_below(r, 3),
        .params = &p->params[i],
        .history = p->history,
        .n_history = rng_below(r, 31),
        .n_prompt = rng_below(r, 31),
        .n_most = rng_below(r, 512),
    };
}

/* The first cell of a page of the grain. */
static uint32_t random_page(rng *r, pkv_grain grain, bool in_host)
{
    uint32_t usable = in_host ? info.n_host_pages : PAGES - 1,
             heads = pkv_head_groups(&info.geometry);
    if (grain == PKV_HEAD) return rng_below(r, pkv_cell_count(&info.geometry, usable));
    uint32_t cells = grain == PKV_ALL ? pkv_cell_offset(&info.geometry, usable, PKV_ALL, 1, 0)
                                      : pkv_cell_count(&info.geometry, usable);
    return rng_below(r, cells / heads) * heads;
}

static void random_move(rng *r, pkv_move *m)
{
    *m = (pkv_move){.kind = rng_below(r, 3), .grain = rng_below(r, 3)};
    const pkv_geometry at = pkv_geometry_at(&info.geometry, m->grain);
    m->group = rng_below(r, pkv_groups(&at));
    m->src_page = random_page(r, m->grain, m->kind == PKV_MOVE_IN);
    m->dst_page = random_page(r, m->grain, m->kind == PKV_MOVE_OUT);
    m->n_slots = rng_below(r, 17);
    m->src_slot = rng_below(r, 17 - m->n_slots);
    m->dst_slot = rng_below(r, 17 - m->n_slots);
    m->rotate = (int32_t)rng_below(r, 401) - 200;
    m->fresh = rng_below(r, 2);
}

static measure_spec random_measure(rng *r)
{
    measure_spec m = {.kind = rng_below(r, MEASURE_KINDS), .novelty = coin(r)};
    if (m.kind == MEASURE_NONE) return m;
    m.second = rng_below(r, MEASURE_KINDS);
    m.rows = rng_below(r, 40);
    m.layer_step = 1 + rng_below(r, 4);
    m.by_slot = coin(r);
    m.beside = m.by_slot && coin(r);
    m.sum = rng_below(r, 3);
    m.silent = coin(r);
    m.sinks = rng_below(r, 5);
    m.window = rng_below(r, 40);
    m.chunk = rng_below(r, 12);
    m.bias = coin(r) ? (float)rng_below(r, 9) - 4.0f : 0.0f;
    m.theta = coin(r) ? (float)rng_below(r, 9) * 0.25f : 0.0f;
    return m;
}

static retrieval_spec random_retrieval(rng *r)
{
    bool boxes = coin(r);
    return (retrieval_spec){
        .block_tokens = 16 * (1 + rng_below(r, RETRIEVAL_BLOCK_MOST / 16)),
        .representative = boxes ? RETRIEVAL_QUEST : rng_below(r, RETRIEVAL_REPRESENTATIVES),
        .epsilon = boxes ? 0.02f : 0.0f,
        .audit = rng_below(r, 3),
        .representative_num = 1 + rng_below(r, 16),
        .heads = rng_below(r, RETRIEVAL_HEAD_MODES),
        .group_heads = 1u << rng_below(r, 3),
        .initial_tokens = rng_below(r, 1000),
        .local_tokens = 1 + rng_below(r, 5000),
        .top_blocks = 1 + rng_below(r, INT32_MAX),
        .preselect_blocks = boxes ? 0 : rng_below(r, 100),
        .observed_rows = 1 + rng_below(r, RETRIEVAL_OBSERVED),
        .dense_layers = rng_below(r, LAYERS / 2),
        .layer_step = boxes ? 1 : 1 + rng_below(r, LAYERS / 2),
        .token_step = boxes ? 1 : 1 + rng_below(r, 16),
    };
}

/* decode: every sequence as in most steps. */
static void random_embeds(rng *r, random_plan *p, step_seq *s)
{
    s->n_embeds = rng_below(r, EMBEDS + 1);
    s->embeds = p->embeds[s - p->seqs];
    for (uint32_t i = 0; i < s->n_embeds; i++)
        p->embeds[s - p->seqs][i] = (embed_head){.layer = rng_below(r, LAYERS),
                                                 .kind = (embed_kind)rng_below(r, EMBED_KINDS),
                                                 .head = rng_below(r, KV_HEADS)};
}

static void make_plan(rng *r, random_plan *p, bool decode)
{
    memset(p, 0, sizeof *p);
    step_plan *plan = &p->plan;
    for (size_t i = 0; i < 40; i++) p->words[i] = rng_below(r, UINT32_MAX);
    for (size_t i = 0; i < 30; i++) p->history[i] = rng_below(r, VOCAB);
    for (size_t i = 0; i < 4; i++) p->stops[i] = rng_below(r, VOCAB);
    for (size_t i = 0; i < 3; i++) p->bias_ids[i] = rng_below(r, VOCAB);
    for (size_t i = 0; i < 3; i++) p->bias[i] = random_float(r);
    plan->step = 1 + rng_below(r, 100000);
    plan->checksum = (uint64_t)rng_below(r, UINT32_MAX) << 32 | rng_below(r, UINT32_MAX);
    plan->deltas = (pkv_deltas){p->words, rng_below(r, 41), p->moves, rng_below(r, 13)};
    for (size_t i = 0; i < plan->deltas.n_moves; i++) random_move(r, &p->moves[i]);
    plan->opens = p->opens;
    plan->n_opens = rng_below(r, 6);
    for (uint32_t i = 0; i < plan->n_opens; i++) random_open(r, p, i);
    plan->seqs = p->seqs;
    plan->n_seqs = rng_below(r, 9);
    plan->tokens = p->tokens;
    plan->ended_notes = p->words;
    plan->n_ended_notes = decode ? 0 : rng_below(r, 41);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        step_seq *s = &p->seqs[i];
        *s = (step_seq){.seq = SEQS - 1 - i, .first_token = plan->n_tokens, .n_tokens = 1};
        s->position = rng_below(r, 400);
        s->n_samples = 1;
        s->token_from = decode ? rng_below(r, SEQS + 1) : 0;
        if (!decode) {
            s->choice = rng_below(r, 3);
            s->n_tokens = 1 + rng_below(r, 8);
            s->n_samples = rng_below(r, 3);
            s->sample_index = rng_below(r, 1000);
            s->want_logits = coin(r);
            s->want_scores = coin(r) ? rng_below(r, 2 + SAMPLE_LOGPROBS_MAX) : 0;
            s->next_token = rng_below(r, VOCAB);
            s->n_uncounted = rng_below(r, s->n_tokens + 1);
            s->measure = random_measure(r);
            if (coin(r)) s->retrieval = random_retrieval(r);
            s->n_prompt = rng_below(r, 500);
            s->note = rng_below(r, STEP_NOTES_MOST);
            s->n_layers = coin(r) ? rng_below(r, LAYERS + 1) : 0;
            if (coin(r)) random_embeds(r, p, s);
            s->pooling = rng_below(r, POOLING_SUM + 1);
        }
        if (coin(r)) {
            s->n_mask_words = step_mask_words(VOCAB);
            s->mask = p->masks[i];
            for (uint32_t k = 0; k < s->n_mask_words; k++) p->masks[i][k] = rng_u32(r);
        }
        plan->n_tokens += s->n_tokens;
    }
    for (uint32_t i = 0; i < plan->n_tokens; i++) p->tokens[i] = rng_below(r, VOCAB);
}

static void expect_same_params(const sample_params *a, const sample_params *b)
{
    assert_memory_equal(a->stop_ids, b->stop_ids, a->n_stop_ids * sizeof(uint32_t));
    assert_memory_equal(a->bias_ids, b->bias_ids, a->n_bias * sizeof(uint32_t));
    assert_memory_equal(a->bias, b->bias, a->n_bias * sizeof(float));
    sample_params x = *a, y = *b;
    x.stop_ids = y.stop_ids = x.bias_ids = y.bias_ids = NULL;
    x.bias = y.bias = NULL;
    assert_memory_equal(&x, &y, sizeof x);
}

static void expect_same_plan(const step_plan *a, const step_plan *b)
{
    assert_true(a->step == b->step && a->checksum == b->checksum);
    assert_int_equal(a->deltas.n_words, b->deltas.n_words);
    assert_memory_equal(a->deltas.words, b->deltas.words, a->deltas.n_words * sizeof(uint32_t));
    assert_int_equal(a->deltas.n_moves, b->deltas.n_moves);
    assert_memory_equal(a->deltas.moves, b->deltas.moves, a->deltas.n_moves * sizeof(pkv_move));
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof(uint32_t));
    assert_int_equal(a->n_ended_notes, b->n_ended_notes);
    assert_memory_equal(a->ended_notes, b->ended_notes, a->n_ended_notes * sizeof(uint32_t));
    assert_int_equal(a->n_seqs, b->n_seqs);
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        step_seq there;
        memcpy(&there, &b->seqs[i], sizeof there);
        for (uint32_t k = 0; k < there.n_embeds && k < a->seqs[i].n_embeds; k++)
            assert_memory_equal(&a->seqs[i].embeds[k], &there.embeds[k], sizeof *there.embeds);
        there.embeds = a->seqs[i].embeds;
        assert_int_equal(there.n_mask_words, a->seqs[i].n_mask_words);
        if (there.n_mask_words)
            assert_memory_equal(a->seqs[i].mask, there.mask, there.n_mask_words * sizeof(uint32_t));
        there.mask = a->seqs[i].mask;
        assert_memory_equal(&a->seqs[i], &there, sizeof there);
    }
    assert_int_equal(a->n_opens, b->n_opens);
    for (uint32_t i = 0; i < a->n_opens; i++) {
        const step_open *x = &a->opens[i], *y = &b->opens[i];
        assert_true(x->seq == y->seq && x->choice == y->choice && x->n_prompt == y->n_prompt);
        assert_true(x->n_history == y->n_history && x->n_most == y->n_most);
        assert_memory_equal(x->history, y->history, x->n_history * sizeof(uint32_t));
        expect_same_params(x->params, y->params);
    }
}

static void plans_come_out_as_they_went_in(void **state)
{
    (void)state;
    rng r = rng_seed(1);
    random_plan *p = malloc(sizeof *p);
    for (int i = 0; i < ROUNDS; i++) {
        arena packing, message;
        plan_message m;
        step_plan out;
        error err = {{0}};
        make_plan(&r, p, i % 2);
        arena_init(&packing, 4096, 0);
        assert_true(status_ok(plan_pack(&p->plan, 9, &packing, &m)));
        const plan_message *there = (const plan_message *)travel(&m.base, &message);
        assert_true(there->session == 9);
        if (!status_ok(plan_unpack(there, &info, &message, &out, &err))) fail_msg("%s", err.text);
        expect_same_plan(&p->plan, &out);
        arena_destroy(&packing);
        arena_destroy(&message);
    }
    free(p);
}

/* ---- results --------------------------------------------------------------------------------- */

typedef struct random_result {
    step_result result;
    step_seq_result seqs[SEQS];
    step_sample samples[SEQS * 2];
    step_sample scores[SEQS * 8];
    retrieval_reading readings[ROWS];
    uint16_t embeddings[SEQS][8 * EMBEDS * HEAD_DIM];
    float *floats[SEQS * 2];
    size_t n_floats;
    float *logits;
} random_result;

static float *floats(rng *r, random_result *out, size_t n)
{
    float *v = malloc((n + 1) * sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = rng_below(r, 20) ? random_float(r) : NAN;
    out->floats[out->n_floats++] = v;
    return v;
}

static void random_sample(rng *r, step_sample *s, bool logprobs)
{
    *s = (step_sample){
        .token = rng_below(r, VOCAB), .logprob = NAN, .undefined = rng_below(r, 8) == 0};
    if (!logprobs) return;
    s->logprob = random_float(r);
    s->rank = 1 + rng_below(r, VOCAB);
    s->n_top = rng_below(r, SAMPLE_LOGPROBS_MAX + 1);
    for (uint32_t i = 0; i < s->n_top; i++) {
        s->top_ids[i] = rng_below(r, VOCAB);
        s->top_logprobs[i] = random_float(r);
    }
}

/* Random scores of the tokens that follow each row in the plan. */
static void random_scores(rng *r, const step_plan *plan, const step_seq *s, step_sample *scores)
{
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        bool last = i + 1 == s->n_tokens;
        do random_sample(r, &scores[i], true);
        while (scores[i].n_top < s->want_scores - 1);
        scores[i].token = last ? s->next_token : plan->tokens[s->first_token + i + 1];
        scores[i].n_top = s->want_scores - 1;
        scores[i].undefined = 0; /* of draws alone */
    }
}

/* What a rank of two may have counted of a row that reads by retrieval. */
static retrieval_reading random_reading(rng *r, const retrieval_spec *spec)
{
    retrieval_reading out = {.context = 1 + rng_below(r, info.max_positions),
                             .lists = rng_below(r, 1 + LAYERS * KV_HEADS / 2)};
    uint64_t blocks = (out.context - 1) / spec->block_tokens + 1;
    out.selections = rng_below(r, 1 + out.lists);
    out.tokens = rng_below(r, 1 + out.lists * out.context);
    out.blocks = rng_below(r, 1 + out.lists * (uint32_t)blocks);
    if (coin(r)) {
        out.audits = rng_below(r, 100);
        out.recall_sum = out.audits / (1.0 + rng_below(r, 9));
        out.least_recall = 1.0 / (1 + rng_below(r, 9));
    }
    if (coin(r)) {
        out.exams = rng_below(r, 1 + out.lists);
        out.failed = rng_below(r, 1 + out.exams);
        out.most_missed = 1.0 / (1 + rng_below(r, 9));
    }
    if (out.audits == 0) out.recall_sum = out.least_recall = 0;
    if (out.exams == 0) out.most_missed = 0;
    return out;
}

/* A random result that such a plan may have, of a rank of two. */
static void make_result(rng *r, const step_plan *plan, result_rank who, random_result *out)
{
    memset(out, 0, sizeof *out);
    step_result *result = &out->result;
    *result = (step_result){.step = plan->step,
                            .seqs = out->seqs,
                            .n_seqs = plan->n_seqs,
                            .checksum = plan->checksum,
                            .compute_us = rng_below(r, 1000000),
                            .measure_us = rng_below(r, 1000),
                            .model_us = rng_below(r, 1000)};
    if (coin(r)) result->tier = (backend_tier){.reads = 1 + rng_below(r, 9), .wait_us = 1u << 31};
    step_sample *sample = out->samples, *score = out->scores;
    retrieval_reading *reading = out->readings;
    bool logprobs = coin(r);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        step_seq_result *q = &out->seqs[i];
        q->n_samples = s->n_samples;
        q->samples = s->n_samples ? sample : NULL;
        for (uint32_t k = 0; k < s->n_samples; k++) random_sample(r, sample++, logprobs);
        if (measured_arrays(&s->measure)) {
            measure_result *m = &q->measure;
            m->n_layers = (LAYERS - 1) / s->measure.layer_step + 1;
            m->n_kv_heads = KV_HEADS / 2;
            m->stride = 1 + rng_below(r, 30);
            m->q_heads = 1 + rng_below(r, 4);
            size_t n = (size_t)m->n_layers * m->n_kv_heads * m->stride;
            m->values = floats(r, out, n * measured_arrays(&s->measure));
        }
        if (s->measure.novelty) q->novelty = floats(r, out, s->n_tokens);
        if (s->retrieval.block_tokens) {
            q->readings = reading;
            q->n_readings = rng_below(r, 1 + s->n_tokens);
            for (uint32_t k = 0; k < q->n_readings; k++)
                *reading++ = random_reading(r, &s->retrieval);
        }
        size_t values = (size_t)s->n_tokens * HEAD_DIM * embed_heads_of(&info, s, who.rank, 2);
        q->embeddings = values ? out->embeddings[i] : NULL;
        for (size_t k = 0; k < values; k++) out->embeddings[i][k] = (uint16_t)rng_below(r, 1 << 16);
        if (s->pooling) q->pooled = floats(r, out, HIDDEN);
        if (s->want_logits) result->n_logit_rows += s->n_tokens;
        if (!s->want_scores) continue;
        random_scores(r, plan, s, score);
        q->scores = score;
        score += s->n_tokens;
    }
    out->logits = malloc(((size_t)result->n_logit_rows * VOCAB + 1) * sizeof(float));
    for (size_t i = 0; i < (size_t)result->n_logit_rows * VOCAB; i++)
        out->logits[i] = random_float(r);
    result->logits = out->logits;
}

static void free_result(random_result *r)
{
    for (size_t i = 0; i < r->n_floats; i++) free(r->floats[i]);
    free(r->logits);
}

static void expect_same_samples(const step_sample *a, const step_sample *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const step_sample *x = &a[i], *y = &b[i];
        assert_true(x->token == y->token && x->rank == y->rank && x->n_top == y->n_top);
        assert_int_equal(x->undefined, y->undefined);
        assert_true(isnan(x->logprob) ? isnan(y->logprob) : x->logprob == y->logprob);
        assert_memory_equal(x->top_ids, y->top_ids, x->n_top * sizeof *x->top_ids);
        assert_memory_equal(x->top_logprobs, y->top_logprobs, x->n_top * sizeof(float));
    }
}

static void expect_same_reading(const retrieval_reading *x, const retrieval_reading *y)
{
    assert_true(x->context == y->context && x->lists == y->lists && x->tokens == y->tokens);
    assert_true(x->selections == y->selections && x->blocks == y->blocks);
    assert_true(x->audits == y->audits && x->exams == y->exams && x->failed == y->failed);
    assert_true(x->recall_sum == y->recall_sum && x->least_recall == y->least_recall);
    assert_true(x->most_missed == y->most_missed);
}

static void expect_same_result(const step_plan *plan, const step_result *a, const step_result *b,
                               bool with_rows)
{
    assert_true(a->step == b->step && a->checksum == b->checksum && a->n_seqs == b->n_seqs);
    assert_true(a->compute_us == b->compute_us && a->measure_us == b->measure_us);
    assert_true(a->model_us == b->model_us);
    assert_memory_equal(&a->tier, &b->tier, sizeof a->tier);
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const step_seq_result *x = &a->seqs[i], *y = &b->seqs[i];
        const measure_result *m = &x->measure;
        assert_int_equal(x->n_samples, y->n_samples);
        expect_same_samples(x->samples, y->samples, x->n_samples);
        assert_int_equal(with_rows && x->scores, y->scores != NULL);
        if (y->scores) expect_same_samples(x->scores, y->scores, plan->seqs[i].n_tokens);
        assert_int_equal(with_rows && x->pooled, y->pooled != NULL);
        if (y->pooled) assert_memory_equal(x->pooled, y->pooled, HIDDEN * sizeof(float));
        assert_int_equal(!m->values, !y->measure.values);
        assert_true(m->stride == y->measure.stride && m->n_layers == y->measure.n_layers);
        assert_true(m->n_kv_heads == y->measure.n_kv_heads && m->q_heads == y->measure.q_heads);
        size_t n = (size_t)m->n_layers * m->n_kv_heads * m->stride;
        if (m->values)
            assert_memory_equal(m->values, y->measure.values,
                                n * measured_arrays(&plan->seqs[i].measure) * sizeof(float));
        assert_int_equal(x->n_readings, y->n_readings);
        for (uint32_t k = 0; k < x->n_readings; k++)
            expect_same_reading(&x->readings[k], &y->readings[k]);
        assert_int_equal(!x->novelty, !y->novelty);
        if (x->novelty)
            assert_memory_equal(x->novelty, y->novelty, plan->seqs[i].n_tokens * sizeof(float));
        assert_int_equal(!x->embeddings, !y->embeddings);
        if (x->embeddings)
            assert_memory_equal(x->embeddings, y->embeddings,
                                plan->seqs[i].n_tokens * HEAD_DIM * sizeof *x->embeddings *
                                    embed_heads_of(&info, &plan->seqs[i], with_rows ? 0 : 1, 2));
    }
    assert_int_equal(b->n_logit_rows, with_rows ? a->n_logit_rows : 0);
    assert_memory_equal(a->logits, b->logits, (size_t)b->n_logit_rows * VOCAB * sizeof(float));
}

/* A chunk of a prompt with logprobs and 20 alternatives each, over a vocabulary of 128K: the logits
 * would be 66 MB. */
static void scores_are_small(void **state)
{
    (void)state;
    enum { CHUNK = 128 };
    static uint32_t tokens[CHUNK];
    static step_sample scores[CHUNK];
    backend_info large = info;
    large.vocab_size = 128 << 10;
    step_seq s = {.n_tokens = CHUNK, .want_scores = 1 + SAMPLE_LOGPROBS_MAX};
    step_seq_result q = {.scores = scores};
    step_plan plan = {.step = 1, .seqs = &s, .n_seqs = 1, .tokens = tokens, .n_tokens = CHUNK};
    step_result result = {.step = 1, .seqs = &q, .n_seqs = 1};
    rng r = rng_seed(3);
    random_scores(&r, &plan, &s, scores);
    arena packing;
    result_message m;
    arena_init(&packing, 4096, 0);
    assert_true(status_ok(result_pack(&plan, &result, &large, (result_rank){0, 1}, &packing, &m)));
    assert_in_range(protobuf_c_message_get_packed_size(&m.base), 1, CHUNK * 200);
    arena_destroy(&packing);
}

static void results_come_out_as_they_went_in(void **state)
{
    (void)state;
    rng r = rng_seed(2);
    random_plan *p = malloc(sizeof *p);
    for (int i = 0; i < ROUNDS; i++) {
        arena packing, message;
        result_message m;
        random_result result;
        result_store out;
        error err = {{0}};
        bool first = coin(&r);
        const result_rank who = {first ? 0 : 1, 2};
        make_plan(&r, p, i % 3 == 0);
        make_result(&r, &p->plan, who, &result);
        arena_init(&packing, 4096, 0);
        assert_true(status_ok(result_pack(&p->plan, &result.result, &info, who, &packing, &m)));
        const result_message *there = (const result_message *)travel(&m.base, &message);
        result_source source = {&p->plan, &info, who.rank, who.size};
        if (!status_ok(result_unpack(there, &source, &message, &out, &err)))
            fail_msg("%s", err.text);
        expect_same_result(&p->plan, &result.result, &out.result, first);
        free_result(&result);
        arena_destroy(&packing);
        arena_destroy(&message);
    }
    free(p);
}

static void a_failed_step_gives_its_reason(void **state)
{
    (void)state;
    arena a;
    result_message m;
    result_store out;
    error err = {{0}};
    step_plan plan = {.step = 3};
    step_result failed = {.step = 3,
                          .status = status_make(STATUS_NO_MEMORY, "a full\nhouse"),
                          .checksum = 11,
                          .end = STEP_ENDED_FIRST,
                          .tier = {.hits = 5, .written_bytes = UINT64_C(1) << 40}};
    arena_init(&a, 4096, 0);
    assert_true(status_ok(result_pack(&plan, &failed, &info, (result_rank){0, 2}, &a, &m)));
    result_source source = {&plan, &info, 0, 2};
    assert_true(status_ok(result_unpack(&m, &source, &a, &out, &err)));
    assert_int_equal(out.result.status.code, STATUS_NO_MEMORY);
    assert_string_equal(out.result.status.message, "a full?house");
    assert_true(out.result.checksum == 11);
    assert_int_equal(out.result.end, STEP_ENDED_FIRST);
    assert_memory_equal(&out.result.tier, &failed.tier, sizeof failed.tier);
    m.end = STEP_ENDED_AFTER + 1;
    assert_false(status_ok(result_unpack(&m, &source, &a, &out, &err)));
    assert_non_null(strstr(err.text, "end: there is no 3"));
    m.end = 0;
    m.n_tier--;
    assert_false(status_ok(result_unpack(&m, &source, &a, &out, &err)));
    assert_non_null(strstr(err.text, "tier: 6 values, there should be 7"));
    m.n_tier++;
    m.tier[2] = UINT64_MAX;
    assert_false(status_ok(result_unpack(&m, &source, &a, &out, &err)));
    assert_non_null(strstr(err.text, "tier: more than"));
    arena_destroy(&a);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* 64 sequences decode in a model of 22 layers with pages of 16 tokens. */
static void a_running_sequence_takes_few_bytes(void **state)
{
    (void)state;
    enum { N = 64, STEPS = 16, PROMPT = 700, BIG_VOCAB = 128256 };
    pkv_options o = {.geometry = {.page_tokens = 16,
                                  .n_layers = 22,
                                  .n_kv_heads = 4,
                                  .layers_per_group = 1,
                                  .heads_per_group = 4},
                     .n_pages = 120000,
                     .max_seqs = N};
    pkv *kv;
    uint32_t hit, tokens[N];
    step_seq seqs[N];
    rng r = rng_seed(3);
    size_t plan_bytes = 0, result_bytes = 0;
    assert_true(status_ok(pkv_create(&o, &kv)));
    for (uint32_t i = 0; i < N; i++) {
        assert_true(status_ok(pkv_seq_open(kv, i, PKV_HEAD, tokens, 0, 0, 2000, &hit)));
        assert_true(status_ok(pkv_seq_append(kv, i, PROMPT + 3 * i)));
    }
    (void)pkv_take_deltas(kv);
    for (uint32_t step = 0; step < STEPS; step++) {
        step_sample samples[N];
        step_seq_result results[N];
        for (uint32_t i = 0; i < N; i++) {
            assert_true(status_ok(pkv_seq_append(kv, i, 1)));
            tokens[i] = rng_below(&r, BIG_VOCAB);
            seqs[i] = (step_seq){.seq = i,
                                 .first_token = i,
                                 .n_tokens = 1,
                                 .position = PROMPT + 3 * i + step,
                                 .n_samples = 1,
                                 .sample_index = step + 500};
            samples[i] = (step_sample){.token = rng_below(&r, BIG_VOCAB), .logprob = NAN};
            results[i] = (step_seq_result){.samples = &samples[i], .n_samples = 1};
        }
        step_plan plan = {.step = 100000 + step,
                          .deltas = pkv_take_deltas(kv),
                          .seqs = seqs,
                          .n_seqs = N,
                          .tokens = tokens,
                          .n_tokens = N,
                          .checksum = pkv_checksum(kv)};
        step_result result = {.step = plan.step, .seqs = results, .n_seqs = N, .checksum = 1};
        arena a;
        plan_message p;
        result_message m;
        arena_init(&a, 4096, 0);
        assert_true(status_ok(plan_pack(&plan, UINT64_MAX, &a, &p)));
        assert_true(status_ok(result_pack(&plan, &result, &info, (result_rank){1, 2}, &a, &m)));
        plan_bytes += protobuf_c_message_get_packed_size(&p.base);
        result_bytes += protobuf_c_message_get_packed_size(&m.base);
        arena_destroy(&a);
    }
    pkv_destroy(kv);
    double plan_each = (double)plan_bytes / (N * STEPS);
    double result_each = (double)result_bytes / (N * STEPS);
    print_message("a running sequence: %.1f bytes of plan, %.1f of result\n", plan_each,
                  result_each);
    assert_true(plan_each < 64 && result_each < 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_come_out_as_they_went_in),
        cmocka_unit_test(results_come_out_as_they_went_in),
        cmocka_unit_test(scores_are_small),
        cmocka_unit_test(a_failed_step_gives_its_reason),
        cmocka_unit_test(a_running_sequence_takes_few_bytes),
    };
    return cmocka_run_group_tests_name("rpc_worker_codec", tests, NULL, NULL);
}
