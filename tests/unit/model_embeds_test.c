/* Embeddings of rows and rows that leave early: equal to a forward pass in float64
 * (tools/reform_oracle.py), bit-equal to the first layers of a full pass, and without an effect on
 * the rows beside them. */
#include "model/cpu/embeds.h"
#include "tests/unit/model_pass.h"

enum { TOKENS = 90, SEQS = 4, HEADS_MOST = 80 };

static const pass demo = {.dir = "models/demo",
                          .precision = KERN_PRECISION_HIGH,
                          .page_tokens = 16,
                          .layers_per_group = 1,
                          .chunk = 256,
                          .n_threads = 2,
                          .max_seqs = SEQS};

/* ---- a backend, step by step ----------------------------------------------------------------- */

typedef struct site {
    pass p;
    model_config config;
    comm *group;
    backend b;
    const backend_info *info;
    pkv *kv;
    uint32_t length[SEQS];
    uint64_t step;
    uint32_t tokens[TOKENS]; /* of every sequence */
} site;

static void open_site(site *s, const pass *p)
{
    comm_options self = {.kind = "self", .size = 1};
    *s = (site){.p = *p};
    assert_true(status_ok(comm_create(&self, &s->group, NULL)));
    s->b = open_backend(&s->p, s->group, &s->config);
    s->info = s->b.ops->info(s->b.ctx);
    pkv_options o = {.geometry = s->info->geometry, .n_pages = s->info->n_pages, .max_seqs = SEQS};
    assert_true(status_ok(pkv_create(&o, &s->kv)));
    random_tokens(s->tokens, TOKENS, s->config.vocab_size);
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

/* Every head of the first n_layers layers, in an order that ranks do not have. */
static uint32_t all_heads(const site *s, uint32_t n_layers, embed_head *out)
{
    uint32_t n = 0;
    for (uint32_t kind = 0; kind < EMBED_KINDS; kind++) {
        uint32_t heads = kind == EMBED_Q ? s->config.n_heads : s->config.n_kv_heads;
        for (uint32_t head = heads; head-- > 0;)
            for (uint32_t layer = 0; layer < n_layers; layer++)
                out[n++] = (embed_head){layer, (embed_kind)kind, head};
    }
    assert_in_range(n, 1, HEADS_MOST);
    return n;
}

static uint16_t *copy_of(const uint16_t *values, size_t n)
{
    uint16_t *out = malloc(n * sizeof *out);
    assert_non_null(values);
    memcpy(out, values, n * sizeof *out);
    return out;
}

/* ---- against float64 ------------------------------------------------------------------------- */

static unsigned hex_digit(char c) { return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10); }

/* One f16 of a text that has its bytes in hexadecimal. */
static double golden_value(const char *hex, size_t i)
{
    const char *at = hex + 4 * i;
    unsigned low = hex_digit(at[0]) << 4 | hex_digit(at[1]);
    unsigned high = hex_digit(at[2]) << 4 | hex_digit(at[3]);
    return (double)f16_to_f32((uint16_t)(high << 8 | low));
}

static uint32_t read_heads(const json_t *list, embed_head *out)
{
    size_t i;
    const json_t *row;
    json_array_foreach(list, i, row)
    {
        const char *kind = json_string_value(json_array_get(row, 1));
        out[i] = (embed_head){.layer = (uint32_t)json_integer_value(json_array_get(row, 0)),
                              .kind = *kind == 'q'   ? EMBED_Q
                                      : *kind == 'k' ? EMBED_K
                                                     : EMBED_V,
                              .head = (uint32_t)json_integer_value(json_array_get(row, 2))};
    }
    return (uint32_t)json_array_size(list);
}

static void check_case(const json_t *c, uint32_t n_ranks)
{
    site s;
    embed_head heads[HEADS_MOST];
    const json_t *ids = json_object_get(c, "token_ids");
    const char *hex = json_string_value(json_object_get(c, "f16"));
    step_seq q = {.seq = 1, .n_tokens = (uint32_t)json_array_size(ids), .embeds = heads};
    pass p = demo;
    p.dir = json_string_value(json_object_get(c, "model"));
    p.n_ranks = n_ranks;
    open_site(&s, &p);
    q.n_embeds = read_heads(json_object_get(c, "heads"), heads);
    for (uint32_t i = 0; i < q.n_tokens; i++)
        s.tokens[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    const uint16_t *ours = run_shares(&s, &q, 1)->seqs[0].embeddings;
    size_t n = (size_t)q.n_tokens * q.n_embeds * s.config.head_dim;
    assert_int_equal(strlen(hex), 4 * n);
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)f16_to_f32(ours[i]) - golden_value(hex, i));
        if (!(d <= worst)) worst = d;
    }
    print_message("%s, %u ranks: %.1e\n", p.dir, n_ranks, worst);
    if (!(worst < 6e-4)) fail_msg("%s: an element is %.2e off", p.dir, worst); /* 1 ulp: 5e-4 */
    close_site(&s);
}

static void embeddings_are_the_oracles(void **state)
{
    (void)state;
    json_t *json;
    error err = {{0}};
    if (!status_ok(json_read_file("tests/golden/reform.json", 16 << 20, &json, &err)))
        fail_msg("%s", err.text);
    const json_t *cases = json_object_get(json, "embeddings"), *c;
    size_t i;
    assert_int_equal(json_array_size(cases), 3);
    json_array_foreach(cases, i, c)
    {
        check_case(c, 0);
        check_case(c, 2);
    }
    json_decref(json);
}

/* ---- rows that leave early ------------------------------------------------------------------- */

static const measure_spec mass = {
    .kind = MEASURE_MASS, .rows = 32, .layer_step = 1, .by_slot = true};

/* Compares a pass that leaves after n_layers with the full pass: every bit of the embeddings, of
 * layer n_layers too, and of the measures of the layers that run. Chunks follow each other, so K
 * and V of the layers that run are read again. */
static void compare_exit(site *s, uint32_t n_layers)
{
    static const uint32_t chunks[] = {50, 24, TOKENS - 74};
    embed_head heads[HEADS_MOST];
    uint32_t most = n_layers < s->config.n_layers ? n_layers + 1 : n_layers;
    uint32_t n_heads = all_heads(s, most, heads), measured = 0;
    for (uint32_t l = 0; l < n_layers; l++)
        measured += measure_layer_of(&s->info->geometry, l, 1) != MEASURE_NO_LAYER;
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        step_seq q = {.seq = 0, .n_tokens = chunks[c], .measure = mass, .embeds = heads};
        q.n_embeds = n_heads;
        size_t n = (size_t)q.n_tokens * n_heads * s->config.head_dim;
        const step_seq_result *r = run_shares(s, &q, 1)->seqs;
        uint16_t *full = copy_of(r->embeddings, n);
        size_t of_layer = (size_t)r->measure.n_kv_heads * r->measure.stride;
        float *masses = malloc(r->measure.n_layers * of_layer * sizeof *masses);
        memcpy(masses, r->measure.values, r->measure.n_layers * of_layer * sizeof *masses);
        q.seq = 1;
        q.n_layers = n_layers;
        r = run_shares(s, &q, 1)->seqs;
        assert_memory_equal(full, r->embeddings, n * sizeof *full);
        assert_memory_equal(masses, r->measure.values, measured * of_layer * sizeof *masses);
        for (size_t i = measured * of_layer; i < r->measure.n_layers * of_layer; i++)
            assert_true(r->measure.values[i] == 0);
        free(full);
        free(masses);
    }
    forget(s, 0);
    forget(s, 1);
}

static void early_exit_is_the_first_layers(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 0; n_ranks <= 8; n_ranks += n_ranks ? 6 : 2) { /* 0, 2, 8 */
        site s;
        pass p = demo;
        p.n_ranks = n_ranks;
        open_site(&s, &p);
        for (uint32_t n = 1; n <= s.config.n_layers; n += SLOW ? 3 : 1) compare_exit(&s, n);
        close_site(&s);
    }
}

/* Ordinary rows beside rows that leave have the same bits as alone, wherever they are in the plan,
 * and the others the same as in steps of their own. */
static void rows_beside_keep_their_bits(void **state)
{
    (void)state;
    site s;
    embed_head heads[HEADS_MOST];
    open_site(&s, &demo);
    size_t vocab = s.config.vocab_size, dim = s.config.head_dim;
    uint32_t n_heads = all_heads(&s, 2, heads);
    step_seq ordinary = {
        .seq = 0, .n_tokens = 20, .want_logits = true, .want_scores = 3, .n_samples = 1};
    step_seq leaving = {
        .seq = 1, .n_tokens = 33, .embeds = heads, .n_embeds = n_heads, .n_layers = 1};
    step_seq later = {.seq = 2, .n_tokens = 7, .embeds = heads, .n_embeds = 3, .n_layers = 3};
    step_seq last = {.seq = 3, .n_tokens = 11, .want_logits = true, .embeds = heads, .n_embeds = 2};
    const step_result *r = run_shares(&s, &ordinary, 1);
    float *logits = malloc(31 * vocab * sizeof *logits);
    step_sample scores[20], sample = r->seqs[0].samples[0];
    memcpy(logits, r->logits, 20 * vocab * sizeof *logits);
    memcpy(scores, r->seqs[0].scores, sizeof scores);
    uint16_t *left = copy_of(run_shares(&s, &leaving, 1)->seqs[0].embeddings, 33 * n_heads * dim);
    uint16_t *left_later = copy_of(run_shares(&s, &later, 1)->seqs[0].embeddings, 7 * 3 * dim);
    r = run_shares(&s, &last, 1);
    memcpy(logits + 20 * vocab, r->logits, 11 * vocab * sizeof *logits);
    uint16_t *stayed = copy_of(r->seqs[0].embeddings, 11 * 2 * dim);
    for (uint32_t i = 0; i < SEQS; i++) forget(&s, i);

    step_seq all[SEQS] = {leaving, ordinary, later, last};
    r = run_shares(&s, all, SEQS);
    assert_int_equal(r->n_logit_rows, 31);
    assert_memory_equal(logits, r->logits, 31 * vocab * sizeof *logits);
    for (uint32_t i = 0; i < 20; i++) {
        assert_true(scores[i].token == r->seqs[1].scores[i].token);
        assert_memory_equal(&scores[i].logprob, &r->seqs[1].scores[i].logprob, sizeof(float));
    }
    assert_int_equal(sample.token, r->seqs[1].samples[0].token);
    assert_memory_equal(left, r->seqs[0].embeddings, 33 * n_heads * dim * sizeof *left);
    assert_memory_equal(left_later, r->seqs[2].embeddings, 7 * 3 * dim * sizeof *left);
    assert_memory_equal(stayed, r->seqs[3].embeddings, 11 * 2 * dim * sizeof *left);
    assert_null(r->seqs[1].embeddings);
    free(logits);
    free(left);
    free(left_later);
    free(stayed);
    close_site(&s);
}

/* All formats of pages, experts, and norms of queries and keys: the pass has the same rows. */
static void every_kind_of_model(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        kern_kv_format kv;
    } rows[] = {{"models/demo", KERN_KV_INT8},
                {"models/demo", KERN_KV_INT4},
                {"tests/golden/models/mixtral_f32", KERN_KV_BF16},
                {"tests/golden/models/qwen3_f32", KERN_KV_F32},
                {"tests/golden/models/gemma3_f32", KERN_KV_F32}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        site s;
        pass p = demo;
        p.dir = rows[i].dir;
        p.kv_type = rows[i].kv;
        p.page_tokens = 32;
        open_site(&s, &p);
        compare_exit(&s, 1);
        close_site(&s);
    }
}

/* Vectors without a direction: zeros stay zeros, and values that are not finite become NaN. */
static void vectors_without_a_norm(void **state)
{
    (void)state;
    enum { DIM = 4, ROWS = 4, WIDTH = 3 * DIM };
    static const float of_rows[ROWS][DIM] = {
        {3, 0, 0, -4}, {0, 0, 0, 0}, {1, NAN, 1, 1}, {0, 0, -INFINITY, 0}};
    static const float due[2][DIM] = {{0.6f, 0, 0, -0.8f}, {0, 0, 0, 0}};
    const embed_head head = {0, EMBED_K, 0};
    model_config config = {.head_dim = DIM, .n_heads = 1, .n_kv_heads = 1};
    model_weights weights = {.slice = {.n_heads = 1, .n_kv_heads = 1}};
    comm_options self = {.kind = "self", .size = 1};
    thread_pool_options one = {.n_threads = 1};
    forward_options o = {.config = &config, .weights = &weights};
    float qkv[ROWS * WIDTH];
    uint16_t got[ROWS * DIM];
    embeds *e;
    assert_true(status_ok(comm_create(&self, &o.group, NULL)));
    assert_true(status_ok(thread_pool_create(&one, &o.pool)));
    assert_true(status_ok(embeds_create(&o, 1, 1, &e)));
    for (uint32_t i = 0; i < ROWS * WIDTH; i++) qkv[i] = of_rows[i / WIDTH][i % DIM];
    const forward_seq seq = {.n_rows = ROWS, .embeds = &head, .n_embeds = 1, .embeddings = got};
    assert_true(status_ok(embeds_layer(e, 0, &seq, 1, qkv)));
    for (uint32_t i = 0; i < 2 * DIM; i++)
        assert_int_equal(got[i], f16_from_f32(due[i / DIM][i % DIM]));
    for (uint32_t i = 2 * DIM; i < ROWS * DIM; i++) assert_true(isnan(f16_to_f32(got[i])));
    embeds_destroy(e);
    thread_pool_destroy(o.pool);
    comm_destroy(o.group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_are_the_oracles),
        cmocka_unit_test(early_exit_is_the_first_layers),
        cmocka_unit_test(rows_beside_keep_their_bits),
        cmocka_unit_test(every_kind_of_model),
        cmocka_unit_test(vectors_without_a_norm),
    };
    return cmocka_run_group_tests_name("model_embeds", tests, NULL, NULL);
}
