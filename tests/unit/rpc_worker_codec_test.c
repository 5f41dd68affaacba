/* Plans and results on their way: what is packed comes out the same, what is wrong is named, and a
 * running sequence takes few bytes. */
#include "rpc/grpc/grpc.h"
#include "rpc/worker/codec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROUNDS = 300, SEQS = 16, ROWS = 64, VOCAB = 1000, LAYERS = 6, KV_HEADS = 4, PAGES = 50 };

static const backend_info info = {
    .name = "test",
    .vocab_size = VOCAB,
    .max_positions = 512,
    .max_rows = ROWS,
    .max_seqs = SEQS,
    .max_logit_rows = 0,
    .n_pages = PAGES,
    .n_host_pages = 20,
    .max_in_flight = 1,
    .geometry = {.page_tokens = 16,
                 .n_layers = LAYERS,
                 .n_kv_heads = KV_HEADS,
                 .layers_per_group = 2,
                 .heads_per_group = KV_HEADS},
    .identity = 77,
};

/* ---- over the wire and back ------------------------------------------------------------------ */

static const ProtobufCMessage *travel(const ProtobufCMessage *m, arena *a)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(n + 1);
    const ProtobufCMessage *out;
    error err;
    protobuf_c_message_pack(m, bytes);
    if (!status_ok(message_unpack(m->descriptor, bytes, n, 64 << 20, a, &out, &err)))
        fail_msg("%s", err.text);
    free(bytes);
    return out;
}

/* ---- plans ----------------------------------------------------------------------------------- */

typedef struct random_plan {
    step_plan plan;
    uint32_t words[40], tokens[ROWS], history[30], stops[4], bias_ids[3];
    float bias[3];
    pkv_move moves[12];
    step_open opens[5];
    sample_params params[5];
    step_seq seqs[SEQS];
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

static void random_move(rng *r, pkv_move *m)
{
    *m = (pkv_move){.kind = rng_below(r, 3), .group = rng_below(r, 3)};
    m->src_page = rng_below(r, m->kind == PKV_MOVE_IN ? info.n_host_pages : PAGES);
    m->dst_page = rng_below(r, m->kind == PKV_MOVE_OUT ? info.n_host_pages : PAGES);
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
    m.sum = rng_below(r, 3);
    m.silent = coin(r);
    m.sinks = rng_below(r, 5);
    m.window = rng_below(r, 40);
    m.chunk = rng_below(r, 12);
    return m;
}

/* decode: every sequence as most steps have them. */
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
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        step_seq *s = &p->seqs[i];
        *s = (step_seq){.seq = rng_below(r, SEQS), .first_token = plan->n_tokens, .n_tokens = 1};
        s->position = rng_below(r, 400);
        s->n_samples = 1;
        if (!decode) {
            s->choice = rng_below(r, 3);
            s->n_tokens = 1 + rng_below(r, 8);
            s->n_samples = rng_below(r, 3);
            s->sample_index = rng_below(r, 1000);
            s->want_logits = coin(r);
            s->next_token = rng_below(r, VOCAB);
            s->measure = random_measure(r);
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
    assert_int_equal(a->n_seqs, b->n_seqs);
    for (uint32_t i = 0; i < a->n_seqs; i++)
        assert_memory_equal(&a->seqs[i], &b->seqs[i], sizeof a->seqs[i]);
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
    *s = (step_sample){.token = rng_below(r, VOCAB), .logprob = NAN};
    if (!logprobs) return;
    s->logprob = random_float(r);
    s->rank = 1 + rng_below(r, VOCAB);
    s->n_top = rng_below(r, SAMPLE_LOGPROBS_MAX + 1);
    for (uint32_t i = 0; i < s->n_top; i++) {
        s->top_ids[i] = rng_below(r, VOCAB);
        s->top_logprobs[i] = random_float(r);
    }
}

/* A result that such a plan may have, of a rank of two. */
static void make_result(rng *r, const step_plan *plan, random_result *out)
{
    memset(out, 0, sizeof *out);
    step_result *result = &out->result;
    *result = (step_result){.step = plan->step,
                            .seqs = out->seqs,
                            .n_seqs = plan->n_seqs,
                            .checksum = plan->checksum,
                            .compute_us = rng_below(r, 1000000),
                            .measure_us = rng_below(r, 1000)};
    step_sample *sample = out->samples;
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
        if (s->want_logits) result->n_logit_rows += s->n_tokens;
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

static void expect_same_samples(const step_seq_result *a, const step_seq_result *b)
{
    assert_int_equal(a->n_samples, b->n_samples);
    for (uint32_t i = 0; i < a->n_samples; i++) {
        const step_sample *x = &a->samples[i], *y = &b->samples[i];
        assert_true(x->token == y->token && x->rank == y->rank && x->n_top == y->n_top);
        assert_true(isnan(x->logprob) ? isnan(y->logprob) : x->logprob == y->logprob);
        assert_memory_equal(x->top_ids, y->top_ids, x->n_top * sizeof *x->top_ids);
        assert_memory_equal(x->top_logprobs, y->top_logprobs, x->n_top * sizeof(float));
    }
}

static void expect_same_result(const step_plan *plan, const step_result *a, const step_result *b,
                               bool with_logits)
{
    assert_true(a->step == b->step && a->checksum == b->checksum && a->n_seqs == b->n_seqs);
    assert_true(a->compute_us == b->compute_us && a->measure_us == b->measure_us);
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const step_seq_result *x = &a->seqs[i], *y = &b->seqs[i];
        const measure_result *m = &x->measure;
        expect_same_samples(x, y);
        assert_int_equal(!m->values, !y->measure.values);
        assert_true(m->stride == y->measure.stride && m->n_layers == y->measure.n_layers);
        assert_true(m->n_kv_heads == y->measure.n_kv_heads && m->q_heads == y->measure.q_heads);
        size_t n = (size_t)m->n_layers * m->n_kv_heads * m->stride;
        if (m->values)
            assert_memory_equal(m->values, y->measure.values,
                                n * measured_arrays(&plan->seqs[i].measure) * sizeof(float));
        assert_int_equal(!x->novelty, !y->novelty);
        if (x->novelty)
            assert_memory_equal(x->novelty, y->novelty, plan->seqs[i].n_tokens * sizeof(float));
    }
    assert_int_equal(b->n_logit_rows, with_logits ? a->n_logit_rows : 0);
    assert_memory_equal(a->logits, b->logits, (size_t)b->n_logit_rows * VOCAB * sizeof(float));
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
        make_plan(&r, p, i % 3 == 0);
        make_result(&r, &p->plan, &result);
        arena_init(&packing, 4096, 0);
        assert_true(status_ok(result_pack(&p->plan, &result.result, &info, first, &packing, &m)));
        const result_message *there = (const result_message *)travel(&m.base, &message);
        result_source source = {&p->plan, &info, first ? 0 : 1, 2};
        if (!status_ok(result_unpack(there, &source, &message, &out, &err)))
            fail_msg("%s", err.text);
        expect_same_result(&p->plan, &result.result, &out.result, first);
        free_result(&result);
        arena_destroy(&packing);
        arena_destroy(&message);
    }
    free(p);
}

static void a_failed_step_says_why(void **state)
{
    (void)state;
    arena a;
    result_message m;
    result_store out;
    error err = {{0}};
    step_plan plan = {.step = 3};
    step_result failed = {
        .step = 3, .status = status_make(STATUS_NO_MEMORY, "a full\nhouse"), .checksum = 11};
    arena_init(&a, 4096, 0);
    assert_true(status_ok(result_pack(&plan, &failed, &info, true, &a, &m)));
    result_source source = {&plan, &info, 0, 2};
    assert_true(status_ok(result_unpack(&m, &source, &a, &out, &err)));
    assert_int_equal(out.result.status.code, STATUS_NO_MEMORY);
    assert_string_equal(out.result.status.message, "a full?house");
    assert_true(out.result.checksum == 11);
    arena_destroy(&a);
}

/* ---- what is wrong is named ------------------------------------------------------------------ */

/* A plan of two sequences, one of three tokens, an open and a move. */
typedef struct sound_plan {
    uint32_t seq[2], rows[2], samples[2], position[2], tokens[4], zeros[4], ones[2];
    uint32_t history[2], bias_ids[1];
    float bias[1];
    uint32_t move[1];
    open_message open, *opens[1];
    plan_message m;
} sound_plan;

static void make_sound(sound_plan *p)
{
    *p = (sound_plan){.seq = {3, 5}, .rows = {3, 1}, .samples = {0, 1}, .tokens = {1, 2, 3, 4}};
    p->ones[0] = p->ones[1] = 1;
    p->open = (open_message)OCTAVO__WORKER__V1__OPEN__INIT;
    p->open.history = p->history;
    p->open.n_history = 2;
    p->open.bias_ids = p->bias_ids;
    p->open.n_bias_ids = 1;
    p->open.bias = (ProtobufCBinaryData){sizeof p->bias, (uint8_t *)p->bias};
    p->opens[0] = &p->open;
    p->m = (plan_message)OCTAVO__WORKER__V1__STEP_PLAN__INIT;
    p->m.opens = p->opens;
    p->m.n_opens = 1;
    p->m.tokens = p->tokens;
    p->m.n_tokens = 4;
    p->m.seq = p->seq;
    p->m.rows = p->rows;
    p->m.samples = p->samples;
    p->m.position = p->position;
    p->m.n_seq = p->m.n_rows = p->m.n_samples = p->m.n_position = 2;
    p->m.move_kind = p->move;
    p->m.n_move_kind = 1;
}

/* Whether the plan is taken; else its error is in err. */
static bool is_taken(const sound_plan *p, error *err)
{
    arena a;
    step_plan out;
    arena_init(&a, 4096, 0);
    bool ok = status_ok(plan_unpack(&p->m, &info, &a, &out, err));
    arena_destroy(&a);
    return ok;
}

#define WRONG_PLAN(change, word)                                                                   \
    do {                                                                                           \
        sound_plan p;                                                                              \
        error err = {{0}};                                                                         \
        make_sound(&p);                                                                            \
        change;                                                                                    \
        if (is_taken(&p, &err)) fail_msg("%s: taken", #change);                                    \
        if (!strstr(err.text, word)) fail_msg("%s: \"%s\"", #change, err.text);                    \
    } while (0)

static void wrong_plans_are_refused_by_field(void **state)
{
    (void)state;
    sound_plan sound;
    error none = {{0}};
    make_sound(&sound);
    if (!is_taken(&sound, &none)) fail_msg("%s", none.text);
    WRONG_PLAN(p.seq[1] = SEQS, "seq: 16");
    WRONG_PLAN(p.m.n_rows = 1, "rows: 1 values");
    WRONG_PLAN(p.rows[0] = 4, "rows: ");
    WRONG_PLAN(p.rows[0] = 2, "rows: ");
    WRONG_PLAN(p.rows[0] = 0, "rows: ");
    WRONG_PLAN(p.rows[0] = UINT32_MAX, "rows: ");
    WRONG_PLAN(p.samples[0] = SEQS, "samples: ");
    WRONG_PLAN(p.samples[0] = UINT32_MAX, "samples: ");
    WRONG_PLAN(p.position[0] = 510, "position: 510");
    WRONG_PLAN(p.position[1] = UINT32_MAX, "position: ");
    WRONG_PLAN(p.tokens[2] = VOCAB, "tokens: 1000");
    WRONG_PLAN(p.m.n_tokens = ROWS + 1, "tokens: 65");
    WRONG_PLAN(p.m.n_seq = SEQS + 1, "seq: 17 sequences");
    WRONG_PLAN((p.zeros[0] = 2, p.m.want_logits = p.zeros, p.m.n_want_logits = 2),
               "want_logits: 2");
    WRONG_PLAN((p.zeros[0] = VOCAB, p.m.next_token = p.zeros, p.m.n_next_token = 2,
                p.m.measure_novelty = p.ones, p.m.n_measure_novelty = 2),
               "next_token: 1000");
    WRONG_PLAN((p.zeros[0] = MEASURE_KINDS, p.m.measure_kind = p.zeros, p.m.n_measure_kind = 2),
               "measure_kind: ");
    WRONG_PLAN((p.zeros[0] = 3, p.m.measure_sum = p.zeros, p.m.n_measure_sum = 2), "measure_sum: ");
    WRONG_PLAN(p.move[0] = 3, "move_kind: 3");
    WRONG_PLAN((p.zeros[0] = PAGES, p.m.move_src_page = p.zeros, p.m.n_move_src_page = 1),
               "move_src_page: 50");
    WRONG_PLAN((p.move[0] = PKV_MOVE_OUT, p.zeros[0] = 20, p.m.move_dst_page = p.zeros,
                p.m.n_move_dst_page = 1),
               "move_dst_page: 20");
    WRONG_PLAN((p.zeros[0] = 17, p.m.move_n_slots = p.zeros, p.m.n_move_n_slots = 1),
               "move_n_slots: 17");
    WRONG_PLAN((p.zeros[0] = 3, p.m.move_group = p.zeros, p.m.n_move_group = 1), "move_group: 3");
    WRONG_PLAN((p.m.n_move_fresh = 2, p.m.move_fresh = p.zeros), "move_fresh: 2 values");
    WRONG_PLAN(p.open.seq = SEQS, "opens.seq: 16");
    WRONG_PLAN(p.open.n_logprobs = 21, "opens.n_logprobs: 21");
    WRONG_PLAN(p.open.n_logprobs = -2, "opens.n_logprobs: -2");
    WRONG_PLAN(p.open.bias.len = 3, "opens.bias: 3 bytes");
    WRONG_PLAN(p.history[1] = VOCAB, "opens.history: 1000");
    WRONG_PLAN(p.open.n_history = 513, "opens.history: 513 tokens");
    WRONG_PLAN(p.m.n_opens = SEQS + 1, "opens: 17");
}

/* A result of a plan with one draw, one measure, one row of logits and its novelty. */
typedef struct sound_result {
    step_seq seq;
    step_plan plan;
    uint32_t token, rank, n_top, top_id, stride, q_heads;
    float floats[LAYERS * 2 * 4 + VOCAB];
    uint32_t rank_index;
    result_message m;
} sound_result;

static ProtobufCBinaryData some_floats(sound_result *s, size_t n)
{
    return (ProtobufCBinaryData){n * sizeof(float), (uint8_t *)s->floats};
}

static void make_sound_result(sound_result *s)
{
    memset(s, 0, sizeof *s);
    s->seq = (step_seq){.n_tokens = 1,
                        .n_samples = 1,
                        .want_logits = true,
                        .measure = {.kind = MEASURE_MASS, .layer_step = 1, .novelty = true}};
    s->plan = (step_plan){.step = 4, .seqs = &s->seq, .n_seqs = 1, .n_tokens = 1};
    s->rank = s->n_top = s->q_heads = 1;
    s->stride = 4;
    s->m = (result_message)OCTAVO__WORKER__V1__STEP_RESULT__INIT;
    result_message *m = &s->m;
    m->step = 4;
    m->sample_token = &s->token;
    m->sample_rank = &s->rank;
    m->sample_n_top = &s->n_top;
    m->top_id = &s->top_id;
    m->measure_stride = &s->stride;
    m->measure_q_heads = &s->q_heads;
    m->n_sample_token = m->n_sample_rank = m->n_sample_n_top = m->n_top_id = 1;
    m->n_measure_stride = m->n_measure_q_heads = 1;
    m->sample_logprob = m->top_logprob = m->novelty = some_floats(s, 1);
    m->measures = some_floats(s, LAYERS * 2 * 4);
    m->logits = some_floats(s, VOCAB);
}

static bool result_is_taken(const sound_result *s, error *err)
{
    arena a;
    result_store out;
    result_source source = {&s->plan, &info, s->rank_index, 2};
    arena_init(&a, 4096, 0);
    bool ok = status_ok(result_unpack(&s->m, &source, &a, &out, err));
    arena_destroy(&a);
    return ok;
}

#define WRONG_RESULT(change, word)                                                                 \
    do {                                                                                           \
        sound_result s;                                                                            \
        error err = {{0}};                                                                         \
        make_sound_result(&s);                                                                     \
        change;                                                                                    \
        if (result_is_taken(&s, &err)) fail_msg("%s: taken", #change);                             \
        if (!strstr(err.text, word)) fail_msg("%s: \"%s\"", #change, err.text);                    \
    } while (0)

static void wrong_results_are_refused_by_field(void **state)
{
    (void)state;
    sound_result sound;
    error none = {{0}};
    make_sound_result(&sound);
    if (!result_is_taken(&sound, &none)) fail_msg("%s", none.text);
    WRONG_RESULT(s.m.step = 5, "step: 5");
    WRONG_RESULT(s.m.status = STATUS_INTERNAL + 1, "status: ");
    WRONG_RESULT(s.m.compute_us = UINT64_MAX, "compute_us");
    WRONG_RESULT(s.m.n_sample_token = 0, "sample_token: 0 values");
    WRONG_RESULT(s.m.n_sample_rank = 2, "sample_rank: 2 values");
    WRONG_RESULT(s.token = VOCAB, "sample_token: 1000");
    WRONG_RESULT(s.rank = VOCAB + 1, "sample_rank: 1001");
    WRONG_RESULT(s.n_top = SAMPLE_LOGPROBS_MAX + 1, "sample_n_top: 21");
    WRONG_RESULT(s.n_top = 2, "top_id: 1 values");
    WRONG_RESULT(s.top_id = VOCAB, "top_id: 1000");
    WRONG_RESULT(s.m.top_logprob.len = 3, "top_logprob: 3 bytes");
    WRONG_RESULT(s.m.sample_logprob.len = 8, "sample_logprob: 8 bytes");
    WRONG_RESULT(s.m.n_measure_stride = 0, "measure_stride: 0 values");
    WRONG_RESULT(s.stride = 5, "measures: ");
    WRONG_RESULT(s.stride = 3, "measures: ");
    WRONG_RESULT(s.stride = 0, "measure_stride: 0");
    WRONG_RESULT(s.stride = PAGES + 1, "measure_stride: 51");
    WRONG_RESULT(s.stride = UINT32_MAX, "measure_stride: ");
    WRONG_RESULT(s.q_heads = 0, "measure_q_heads: 0");
    WRONG_RESULT(s.m.novelty.len = 0, "novelty: 0 bytes");
    WRONG_RESULT(s.m.logits.len = 4, "logits: 4 bytes");
    WRONG_RESULT(s.rank_index = 1, "logits: "); /* only rank 0 sends them */
}

/* ---- what ranks are made of ------------------------------------------------------------------ */

static worker_config a_config(void)
{
    static const char *const overrides[] = {"a=1", "b=\"x\""};
    return (worker_config){
        .rank = 1,
        .size = 2,
        .model = "models/demo",
        .overrides = overrides,
        .n_overrides = 2,
        .config_fingerprint = UINT64_MAX,
        .weights_fingerprint = 12,
        .dummy = true,
        .dummy_seed = 4,
        .comm = "ucx",
        .device = "cpu",
        .device_index = 3,
        .kv_type = "bf16",
        .weight_type = "f32",
        .quant_bits = 8,
        .quant_attention = 4,
        .quant_group = 64,
        .n_threads = 2,
        .isa = "",
        .geometry = info.geometry,
        .kv_bytes = UINT64_MAX - 1,
        .swap_bytes = 9,
        .max_rows = ROWS,
        .max_seqs = SEQS,
        .max_model_len = 256,
        .cache_dir = "",
    };
}

static status send_config(configure_message *m, const char *version, arena *a, worker_config *out,
                          error *err)
{
    return config_unpack((const configure_message *)travel(&m->base, a), version, a, out, err);
}

static void configs_come_out_as_they_went_in(void **state)
{
    (void)state;
    arena packing, a;
    configure_message m;
    worker_config from = a_config(), to;
    error err = {{0}};
    arena_init(&packing, 4096, 0);
    assert_true(status_ok(config_pack(&from, 5, "1.2.3", &packing, &m)));
    if (!status_ok(send_config(&m, "1.2.3", &a, &to, &err))) fail_msg("%s", err.text);
    assert_string_equal(from.model, to.model);
    assert_string_equal(from.comm, to.comm);
    assert_string_equal(from.device, to.device);
    assert_string_equal(from.kv_type, to.kv_type);
    assert_string_equal(from.weight_type, to.weight_type);
    assert_string_equal(from.isa, to.isa);
    assert_string_equal(from.cache_dir, to.cache_dir);
    assert_string_equal(from.overrides[1], to.overrides[1]);
    from.model = to.model, from.comm = to.comm, from.device = to.device, from.isa = to.isa;
    from.kv_type = to.kv_type, from.weight_type = to.weight_type, from.cache_dir = to.cache_dir;
    from.overrides = to.overrides;
    assert_memory_equal(&from, &to, sizeof from);
    arena_destroy(&a);

    static const struct {
        uint32_t protocol, rank, size, max_seqs;
        const char *version, *word;
    } wrong[] = {
        {WORKER_PROTOCOL + 1, 0, 1, 1, "1.2.3",
         "protocol: the coordinator (octavo 1.2.3) speaks 2"},
        {WORKER_PROTOCOL, 0, 1, 1, "1.2.4",
         "version: the coordinator is octavo 1.2.4, this worker"},
        {WORKER_PROTOCOL, 2, 2, 1, "1.2.3", "rank: 2 of 2"},
        {WORKER_PROTOCOL, 0, 0, 1, "1.2.3", "size: 0"},
        {WORKER_PROTOCOL, 0, 5000, 1, "1.2.3", "size: 5000"},
        {WORKER_PROTOCOL, 0, 1, 0, "1.2.3", "max_seqs: 0"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        m.protocol = wrong[i].protocol;
        m.rank = wrong[i].rank;
        m.size = wrong[i].size;
        m.max_seqs = wrong[i].max_seqs;
        m.version = call_bytes(wrong[i].version, strlen(wrong[i].version));
        assert_false(status_ok(send_config(&m, "1.2.3", &a, &to, &err)));
        if (!strstr(err.text, wrong[i].word)) fail_msg("\"%s\"", err.text);
        arena_destroy(&a);
    }
    arena_destroy(&packing);
}

static void what_a_rank_says_is_checked(void **state)
{
    (void)state;
    arena a;
    load_message m;
    rank_facts out;
    error err = {{0}};
    worker_config config = a_config();
    worker_facts facts = {.device = "cpu, avx2", .n_threads = 2, .pool_bytes = 1 << 20};
    arena_init(&a, 4096, 0);
    assert_true(status_ok(load_pack(&info, &facts, &a, &m)));
    if (!status_ok(load_unpack(&m, &config, &out, &err))) fail_msg("%s", err.text);
    assert_string_equal(out.info.name, "test");
    assert_string_equal(out.facts.device, "cpu, avx2");
    assert_memory_equal(&out.info.geometry, &info.geometry, sizeof info.geometry);
    assert_true(out.info.identity == 77 && out.info.n_pages == PAGES);

#define WRONG_RANK(field, value, word)                                                             \
    do {                                                                                           \
        load_message wrong = m;                                                                    \
        geometry_message geometry = *m.geometry;                                                   \
        wrong.geometry = &geometry;                                                                \
        wrong.field = value;                                                                       \
        assert_false(status_ok(load_unpack(&wrong, &config, &out, &err)));                         \
        if (!strstr(err.text, word)) fail_msg("%s: \"%s\"", #field, err.text);                     \
    } while (0)
    WRONG_RANK(vocab_size, 0, "vocab_size: 0");
    WRONG_RANK(max_rows, 65, "max_rows: 65");
    WRONG_RANK(max_seqs, 15, "max_seqs: 15");
    WRONG_RANK(n_pages, 1, "n_pages: 1");
    WRONG_RANK(geometry, NULL, "geometry: it is missing");
    WRONG_RANK(geometry->n_layers, 0, "geometry.n_layers: 0");
    WRONG_RANK(geometry->n_kv_heads, 3, "geometry");
    WRONG_RANK(geometry->page_tokens, 32, "geometry.page_tokens: 32");
    WRONG_RANK(geometry->n_window_layers, 17, "geometry.window_layers: 17");
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
        assert_true(status_ok(pkv_seq_open(kv, i, tokens, 0, 0, 2000, &hit)));
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
        assert_true(status_ok(result_pack(&plan, &result, &info, false, &a, &m)));
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
        cmocka_unit_test(a_failed_step_says_why),
        cmocka_unit_test(wrong_plans_are_refused_by_field),
        cmocka_unit_test(wrong_results_are_refused_by_field),
        cmocka_unit_test(configs_come_out_as_they_went_in),
        cmocka_unit_test(what_a_rank_says_is_checked),
        cmocka_unit_test(a_running_sequence_takes_few_bytes),
    };
    return cmocka_run_group_tests_name("rpc_worker_codec", tests, NULL, NULL);
}
