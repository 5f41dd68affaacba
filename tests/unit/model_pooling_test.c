/* Pooled hidden states: equal to transformers' (tools/pooling_oracle.py), over chunks, ranks and
 * beside other rows. */
#include "tests/unit/model_pass.h"

enum { TOKENS = 48, SEQS = 3, HIDDEN_MOST = 512 };

static const pass shape = {.precision = KERN_PRECISION_HIGH,
                           .page_tokens = 16,
                           .layers_per_group = 1,
                           .chunk = 256,
                           .n_threads = 2,
                           .kv_type = KERN_KV_F32,
                           .max_seqs = SEQS};

typedef struct site {
    model_config config;
    comm *group;
    backend b;
    const backend_info *info;
    pkv *kv;
    uint32_t length[SEQS];
    uint64_t step;
    uint32_t tokens[TOKENS]; /* of every sequence */
} site;

static void open_site(site *s, const char *dir, uint32_t n_ranks)
{
    comm_options self = {.kind = "self", .size = 1};
    pass p = shape;
    p.dir = dir;
    p.n_ranks = n_ranks;
    *s = (site){.step = 0};
    assert_true(status_ok(comm_create(&self, &s->group, NULL)));
    s->b = open_backend(&p, s->group, &s->config);
    s->info = s->b.ops->info(s->b.ctx);
    assert_int_equal(s->info->hidden, s->config.hidden);
    pkv_options o = {.geometry = s->info->geometry, .n_pages = s->info->n_pages, .max_seqs = SEQS};
    assert_true(status_ok(pkv_create(&o, &s->kv)));
}

static void close_site(site *s)
{
    pkv_destroy(s->kv);
    s->b.ops->destroy(s->b.ctx);
    comm_destroy(s->group);
}

/* Runs a step of these shares, whose tokens follow what each sequence has had. */
static const step_result *run_shares(site *s, step_seq *seqs, uint32_t n)
{
    static const sample_params greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    uint32_t tokens[SEQS * TOKENS], n_tokens = 0, n_opens = 0, hit;
    step_open opens[SEQS];
    for (uint32_t i = 0; i < n; i++) {
        step_seq *q = &seqs[i];
        if (s->length[q->seq] == 0) {
            assert_true(
                status_ok(pkv_seq_open(s->kv, q->seq, PKV_HEAD, s->tokens, 0, 0, TOKENS, &hit)));
            opens[n_opens++] = (step_open){.seq = q->seq, .params = &greedy};
        }
        assert_true(status_ok(pkv_seq_append(s->kv, q->seq, q->n_tokens)));
        q->first_token = n_tokens;
        q->position = s->length[q->seq];
        memcpy(tokens + n_tokens, s->tokens + q->position, q->n_tokens * sizeof *tokens);
        n_tokens += q->n_tokens;
        s->length[q->seq] += q->n_tokens;
    }
    const step_plan plan = {.step = ++s->step,
                            .deltas = pkv_take_deltas(s->kv),
                            .opens = opens,
                            .n_opens = n_opens,
                            .seqs = seqs,
                            .n_seqs = n,
                            .tokens = tokens,
                            .n_tokens = n_tokens,
                            .checksum = pkv_checksum(s->kv)};
    const step_result *r;
    assert_true(status_ok(s->b.ops->submit(s->b.ctx, &plan)));
    assert_true(status_ok(s->b.ops->collect(s->b.ctx, &r)));
    if (!status_ok(r->status)) fail_msg("step %u: %s", (unsigned)s->step, r->status.message);
    return r;
}

static void forget(site *s, uint32_t seq)
{
    pkv_seq_close(s->kv, seq);
    s->length[seq] = 0;
}

/* The mean over all tokens, from chunks of so many. */
static void mean_of_chunks(site *s, uint32_t chunk, double out[HIDDEN_MOST])
{
    memset(out, 0, HIDDEN_MOST * sizeof *out);
    for (uint32_t from = 0; from < TOKENS; from += chunk) {
        uint32_t left = TOKENS - from;
        step_seq q = {.seq = 0, .n_tokens = left < chunk ? left : chunk, .pooling = POOLING_SUM};
        const float *sum = run_shares(s, &q, 1)->seqs[0].pooled;
        assert_non_null(sum);
        for (uint32_t i = 0; i < s->info->hidden; i++) out[i] += (double)sum[i] / TOKENS;
    }
    forget(s, 0);
}

static void expect_vector(const char *what, const json_t *want, const double *got, size_t n)
{
    double worst = 0, size = 0;
    assert_int_equal(json_array_size(want), n);
    for (size_t i = 0; i < n; i++) {
        double value = json_number_value(json_array_get(want, i)), d = fabs(got[i] - value);
        if (!(d <= worst)) worst = d;
        if (fabs(value) > size) size = fabs(value);
    }
    if (!(worst < 2e-3 * size))
        fail_msg("%s: an element of at most %g is %.2e off", what, size, worst);
}

static void check_case(const json_t *c, uint32_t n_ranks)
{
    site s;
    double got[HIDDEN_MOST];
    const json_t *ids = json_object_get(c, "token_ids");
    const char *dir = json_string_value(json_object_get(c, "model"));
    assert_int_equal(json_array_size(ids), TOKENS);
    open_site(&s, dir, n_ranks);
    size_t hidden = s.info->hidden;
    assert_in_range(hidden, 1, HIDDEN_MOST);
    for (uint32_t i = 0; i < TOKENS; i++)
        s.tokens[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    for (uint32_t chunk = 7; chunk <= TOKENS; chunk += TOKENS - 7) { /* 7 and all */
        mean_of_chunks(&s, chunk, got);
        expect_vector(dir, json_object_get(c, "mean"), got, hidden);
    }
    step_seq q = {.seq = 0, .n_tokens = TOKENS, .pooling = POOLING_LAST};
    const float *last = run_shares(&s, &q, 1)->seqs[0].pooled;
    for (size_t i = 0; i < hidden; i++) got[i] = (double)last[i];
    expect_vector(dir, json_object_get(c, "last"), got, hidden);
    close_site(&s);
}

static void vectors_are_the_oracles(void **state)
{
    (void)state;
    json_t *cases;
    const json_t *c;
    size_t i;
    error err = {{0}};
    if (!status_ok(json_read_file("tests/golden/pooling.json", 1 << 20, &cases, &err)))
        fail_msg("%s", err.text);
    assert_int_equal(json_array_size(cases), 5);
    json_array_foreach(cases, i, c)
    {
        check_case(c, 0);
        check_case(c, 2);
    }
    json_decref(cases);
}

/* Shares that pool have the same bits beside others, and one that does not has none. */
static void shares_beside_keep_their_bits(void **state)
{
    (void)state;
    site s;
    float alone[2][HIDDEN_MOST];
    open_site(&s, "models/demo", 0);
    size_t bytes = s.info->hidden * sizeof(float);
    random_tokens(s.tokens, TOKENS, s.config.vocab_size);
    step_seq sum = {.seq = 0, .n_tokens = 33, .pooling = POOLING_SUM};
    step_seq plain = {.seq = 1, .n_tokens = 11, .n_samples = 1};
    step_seq last = {.seq = 2, .n_tokens = 20, .pooling = POOLING_LAST, .n_samples = 1};
    memcpy(alone[0], run_shares(&s, &sum, 1)->seqs[0].pooled, bytes);
    memcpy(alone[1], run_shares(&s, &last, 1)->seqs[0].pooled, bytes);
    forget(&s, 0);
    forget(&s, 2);
    step_seq all[SEQS] = {sum, plain, last};
    const step_result *r = run_shares(&s, all, SEQS);
    assert_memory_equal(alone[0], r->seqs[0].pooled, bytes);
    assert_null(r->seqs[1].pooled);
    assert_memory_equal(alone[1], r->seqs[2].pooled, bytes);
    close_site(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_are_the_oracles),
        cmocka_unit_test(shares_beside_keep_their_bits),
    };
    return cmocka_run_group_tests_name("model_pooling", tests, NULL, NULL);
}
