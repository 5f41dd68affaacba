/* Property: of a worker's result of a plan, or facts about its rank, the coordinator accepts what
 * follows from the plan, with all of it readable, or refuses the message with a text. */
#include "rpc/grpc/grpc.h"
#include "rpc/worker/codec.h"
#include "tests/fuzz/fuzz.h"

enum { LIMIT = 1 << 22, LAYERS = 6, VOCAB = 64, SEQS = 3, HEAD_DIM = 4, HIDDEN = 8 };

static const backend_info info = {
    .vocab_size = VOCAB,
    .max_positions = 512,
    .max_rows = 64,
    .max_seqs = 8,
    .n_pages = 50,
    .n_heads = 8,
    .head_dim = HEAD_DIM,
    .hidden = HIDDEN,
    .geometry = {.page_tokens = 16,
                 .n_layers = LAYERS,
                 .n_kv_heads = 4,
                 .layers_per_group = 2,
                 .heads_per_group = 4},
};

/* A step with every kind of request. */
static const step_seq seqs[SEQS] = {
    {.seq = 0, .n_tokens = 1, .n_samples = 1, .want_logits = true},
    {.seq = 1,
     .first_token = 1,
     .n_tokens = 2,
     .n_samples = 2,
     .measure = {.kind = MEASURE_MASS, .layer_step = 2, .novelty = true}},
    {.seq = 2,
     .first_token = 3,
     .n_tokens = 1,
     .measure =
         {.kind = MEASURE_MASS, .second = MEASURE_KEY_NORM, .by_slot = true, .layer_step = 1}},
};
static const step_plan plan = {.step = 1, .seqs = seqs, .n_seqs = SEQS, .n_tokens = 4};

/* A plan that asks for scores only. */
static const uint32_t scored_tokens[] = {4, 5};
static const step_seq scored = {.n_tokens = 2, .want_scores = 1 + 3, .next_token = 6};
static const step_plan scored_plan = {
    .step = 1, .seqs = &scored, .n_seqs = 1, .tokens = scored_tokens, .n_tokens = 2};

/* A plan whose sequences read by retrieval, one of them together with its prompt's last rows. */
static const step_seq few[] = {
    {.n_tokens = 3, .n_samples = 1, .retrieval = {.block_tokens = 32}},
    {.seq = 1, .first_token = 3, .n_tokens = 1, .retrieval = {.block_tokens = 16}},
};
static const step_plan few_plan = {.step = 1, .seqs = few, .n_seqs = 2, .n_tokens = 4};

/* A plan that asks for embeddings only: of two ranks the first gives two query heads. */
static const embed_head embeds[] = {{2, EMBED_Q, 1}, {3, EMBED_V, 3}, {0, EMBED_Q, 0}};
static const step_seq embedded = {.n_tokens = 2, .embeds = embeds, .n_embeds = 3, .n_layers = 3};
static const step_plan embedded_plan = {
    .step = 1, .seqs = &embedded, .n_seqs = 1, .tokens = scored_tokens, .n_tokens = 2};

/* A plan whose shares pool, but the one between them. */
static const step_seq pools[SEQS] = {
    {.n_tokens = 2, .pooling = POOLING_SUM},
    {.seq = 1, .first_token = 2, .n_tokens = 1},
    {.seq = 2, .first_token = 3, .n_tokens = 1, .n_samples = 1, .pooling = POOLING_LAST},
};
static const step_plan pools_plan = {.step = 1, .seqs = pools, .n_seqs = SEQS, .n_tokens = 4};

/* Reads every float, so that one outside its message is found. */
static void read_floats(const float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) (void)*(const volatile float *)&values[i];
}

static void check_result(const step_result *r)
{
    if (!status_ok(r->status)) {
        FUZZ_CHECK(r->status.message && r->n_seqs == 0);
        return;
    }
    FUZZ_CHECK(r->n_seqs == SEQS);
    read_floats(r->logits, (size_t)r->n_logit_rows * VOCAB);
    for (uint32_t i = 0; i < SEQS; i++) {
        const step_seq_result *s = &r->seqs[i];
        const measure_result *m = &s->measure;
        FUZZ_CHECK(s->n_samples == seqs[i].n_samples);
        for (uint32_t k = 0; k < s->n_samples; k++) {
            FUZZ_CHECK(s->samples[k].token < VOCAB);
            FUZZ_CHECK(s->samples[k].n_top <= SAMPLE_LOGPROBS_MAX);
        }
        FUZZ_CHECK(!m->values == (measured_arrays(&seqs[i].measure) == 0));
        size_t floats = (size_t)m->n_layers * m->n_kv_heads * m->stride;
        if (m->values) read_floats(m->values, floats * measured_arrays(&seqs[i].measure));
        if (seqs[i].measure.novelty) read_floats(s->novelty, seqs[i].n_tokens);
    }
}

static void check_scores(const step_result *r)
{
    if (!status_ok(r->status)) return;
    for (uint32_t i = 0; i < scored.n_tokens; i++) {
        const step_sample *s = &r->seqs[0].scores[i];
        FUZZ_CHECK(s->token == 5 + i && s->n_top == 3 && s->rank <= VOCAB);
        for (uint32_t k = 0; k < s->n_top; k++) FUZZ_CHECK(s->top_ids[k] < VOCAB);
        read_floats(s->top_logprobs, s->n_top);
    }
}

/* What is added up and divided stays in range, also when all ranks say the same. */
static void check_readings(const step_result *r)
{
    if (!status_ok(r->status)) return;
    for (uint32_t i = 0; i < few_plan.n_seqs; i++) {
        const step_seq_result *s = &r->seqs[i];
        retrieval_totals totals = {0};
        FUZZ_CHECK(s->n_readings <= few[i].n_tokens && !s->readings == (s->n_readings == 0));
        for (uint32_t k = 0; k < s->n_readings; k++) {
            retrieval_reading row = s->readings[k];
            retrieval_join_reading(&row, &s->readings[k]);
            retrieval_add_reading(&totals, &row);
            FUZZ_CHECK(row.context > 0 && retrieval_mean_tokens(&row) <= row.context);
            FUZZ_CHECK(row.recall_sum >= 0 && row.recall_sum <= row.audits);
        }
        FUZZ_CHECK(totals.tokens <= (double)totals.context && totals.failed <= totals.exams);
        FUZZ_CHECK(totals.most_missed >= 0 && totals.most_missed <= 1);
    }
}

static void check_embeddings(const step_result *r)
{
    if (!status_ok(r->status)) return;
    for (uint32_t i = 0; i < 2 * 2 * HEAD_DIM; i++)
        (void)*(const volatile uint16_t *)&r->seqs[0].embeddings[i];
}

static void check_pooled(const step_result *r)
{
    if (!status_ok(r->status)) return;
    for (uint32_t i = 0; i < SEQS; i++) {
        FUZZ_CHECK(!r->seqs[i].pooled == !pools[i].pooling);
        if (pools[i].pooling) read_floats(r->seqs[i].pooled, HIDDEN);
    }
}

static void fuzz_result(const uint8_t *data, size_t size, const step_plan *asked, uint32_t rank)
{
    arena a;
    const ProtobufCMessage *m;
    result_store out;
    error err = {{0}};
    status s = message_unpack(&octavo__worker__v1__step_result__descriptor, data, size, LIMIT, &a,
                              &m, &err);
    result_source source = {asked, &info, rank, 2};
    if (status_ok(s)) s = result_unpack((const result_message *)m, &source, &a, &out, &err);
    FUZZ_CHECK(status_ok(s) || err.text[0]);
    if (status_ok(s) && asked == &plan) check_result(&out.result);
    else if (status_ok(s) && asked == &few_plan) check_readings(&out.result);
    else if (status_ok(s) && asked == &scored_plan) check_scores(&out.result);
    else if (status_ok(s) && asked == &pools_plan) check_pooled(&out.result);
    else if (status_ok(s)) check_embeddings(&out.result);
    arena_destroy(&a);
}

static void fuzz_facts(const uint8_t *data, size_t size)
{
    arena a;
    const ProtobufCMessage *m;
    rank_facts out;
    error err = {{0}};
    worker_config config = {
        .size = 2, .max_rows = 64, .max_seqs = 8, .geometry = {.page_tokens = 16}};
    status s = message_unpack(&octavo__worker__v1__load_reply__descriptor, data, size, LIMIT, &a,
                              &m, &err);
    if (status_ok(s)) s = load_unpack((const load_message *)m, &config, &out, &err);
    FUZZ_CHECK(status_ok(s) || err.text[0]);
    if (status_ok(s)) FUZZ_CHECK(rank_kv_heads(&out.info.geometry, 2) > 0);
    arena_destroy(&a);
}

/* The first byte picks the kind of message. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    if (data[0] % 3 == 2) fuzz_facts(data + 1, size - 1);
    else if (data[0] >= 240) fuzz_result(data + 1, size - 1, &pools_plan, 0);
    else if (data[0] >= 224) fuzz_result(data + 1, size - 1, &embedded_plan, 0);
    else if (data[0] >= 192) fuzz_result(data + 1, size - 1, &few_plan, data[0] % 3);
    else if (data[0] >= 128) fuzz_result(data + 1, size - 1, &scored_plan, 0);
    else fuzz_result(data + 1, size - 1, &plan, data[0] % 3);
    return 0;
}
