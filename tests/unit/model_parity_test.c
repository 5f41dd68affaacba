/* The forward pass, teacher-forced: equal to Hugging Face's on tiny models, near it in bf16, and
 * with the same bits however the work is cut. Goldens: tests/golden/models/README.md. */
#include "tests/unit/model_pass.h"

/* ---- goldens --------------------------------------------------------------------------------- */

/* `bits` of quantised weights, `attention` bits of q, k, v and o; 0 = as stored. */
static double folder_nmse(const char *dir, const char *isa, kern_precision precision, uint8_t bits,
                          uint8_t attention)
{
    char tokens[160], logits[160];
    snprintf(tokens, sizeof tokens, "%s/tokens.jsonl", dir);
    snprintf(logits, sizeof logits, "%s/logits.f32", dir);
    pass p = {.dir = dir,
              .kv_type = KERN_KV_F32,
              .precision = precision,
              .quant_bits = bits,
              .quant_attention = attention,
              .quant_group = 32,
              .isa = isa,
              .page_tokens = 16,
              .layers_per_group = 1,
              .chunk = 64};
    return golden_nmse(&p, tokens, logits);
}

static const char *const goldens[] = {"gqa1_f32",        "gqa4_tied_f32",   "gqa8_bf16",
                                      "llama3_rope_f32", "linear_rope_f16", "v5_config_bf16",
                                      "sharded_f32"};
enum { GOLDENS = sizeof goldens / sizeof goldens[0] };

static const char *precision_name(kern_precision p)
{
    return p == KERN_PRECISION_HIGH ? "high" : "standard";
}

static void check_golden(size_t at, const char *isa, kern_precision precision, uint8_t bits,
                         uint8_t attention, double limit)
{
    char dir[128];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", goldens[at]);
    double e = folder_nmse(dir, isa, precision, bits, attention);
    print_message("%s, %s, %s precision, %u bits, %u in attention: NMSE %.2e (< %.1e)\n",
                  goldens[at], isa ? isa : "best", precision_name(precision), bits, attention, e,
                  limit);
    if (!(e < limit)) fail_msg("%s, %u bits: NMSE %.3e", goldens[at], bits, e);
}

/* High precision is f32 on every ISA. In standard precision bf16 dot products round x for the two
 * models with bf16 weights, as any engine that computes in bf16 does: NMSE 6.2e-5 and 1.3e-4. */
static void logits_equal_hugging_face_in_f32(void **state)
{
    (void)state;
    for (size_t i = 0; i < kern_isa_count(); i++) {
        bool available;
        const char *isa = kern_isa_at(i, &available);
        if (!available) {
            print_message("skipped: %s (this CPU lacks it)\n", isa);
            continue;
        }
        bool dots = strcmp(isa, "avx512bf16") == 0 || strcmp(isa, "amx") == 0;
        for (size_t d = 0; d < GOLDENS; d++) {
            bool rounds = dots && strstr(goldens[d], "_bf16");
            check_golden(d, isa, KERN_PRECISION_HIGH, 0, 0, 1e-9);
            check_golden(d, isa, KERN_PRECISION_STANDARD, 0, 0, rounds ? 2e-4 : 1e-9);
        }
    }
}

/* Products of quantised weights have the same bits on every ISA, so only the best ISA is tested.
 *
 * The q and k of these models are drawn so wide (0.3) that scores have a deviation of 5 and more:
 * attention magnifies their rounding, most where few weights make a head's score (v5: 64 columns,
 * 32 for each head). In high precision the bar for 8-bit weights is 1e-3. In standard precision x
 * has 8 bits too, and the bars are what llama.cpp's Q8_0 reaches on the same model (scale = largest
 * / 127 for each 32 weights and each 32 columns of x, run through this engine), except linear_rope:
 * 4.4e-4 there, 5.2e-4 here, while all seven together are at 0.76 of Q8_0's.
 *
 * With 4 bits the weights make nearly all of the error, whatever x is. No code of 4.5 bits a weight
 * reaches 3e-2 on all models: with weights as far off as rate-distortion theory allows for normal
 * ones, gqa8 has 4.0e-2 and v5 6.5e-2; llama.cpp's Q4_0 has 4.6e-2 to 1.9e-1. So 4 bits have limits
 * of their own here, and meet the bar with attention's matrices in 8 bits (mixed). A trained model
 * meets all bars: see below. */
static const struct {
    kern_precision precision;
    uint8_t bits, attention;
    double limit[GOLDENS];
} random_bars[] = {
    /* gqa1, gqa4_tied, gqa8, llama3_rope, linear_rope, v5_config, sharded */
    {KERN_PRECISION_HIGH, 8, 0, {1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3}},
    {KERN_PRECISION_STANDARD, 8, 0, {8.7e-4, 7.6e-4, 1.7e-3, 9e-4, 6e-4, 2.6e-3, 5.4e-4}},
    {KERN_PRECISION_STANDARD, 4, 8, {3e-2, 3e-2, 3e-2, 3e-2, 3e-2, 3e-2, 3e-2}},
    {KERN_PRECISION_STANDARD, 4, 0, {8e-2, 8e-2, 1.4e-1, 9.5e-2, 5e-2, 2e-1, 5.5e-2}},
};

static void quantised_logits_of_random_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof random_bars / sizeof random_bars[0]; i++)
        for (size_t d = 0; d < GOLDENS; d++)
            check_golden(d, NULL, random_bars[i].precision, random_bars[i].bits,
                         random_bars[i].attention, random_bars[i].limit[d]);
}

/* ---- the demo model -------------------------------------------------------------------------- */

enum { DEMO_TOKENS = 700, DEMO_VOCAB = 1024 };

static const pass demo = {.dir = "models/demo",
                          .kv_type = KERN_KV_BF16,
                          .page_tokens = 16,
                          .layers_per_group = 1,
                          .chunk = 512,
                          .mass_rows = 32,
                          .layer_step = 1};

/* The most exact pass, with which the others are compared. */
static pass exact_demo(void)
{
    pass p = demo;
    p.kv_type = KERN_KV_F32;
    p.precision = KERN_PRECISION_HIGH;
    return p;
}

static void check_near(const pass_result *exact, const uint32_t *tokens, const pass *p,
                       double limit, double nats)
{
    pass_result a = *exact, b = run(p, tokens, DEMO_TOKENS);
    double e = nmse(b.logits, a.logits, (size_t)DEMO_TOKENS * DEMO_VOCAB);
    double worst = 0; /* how much less likely our greedy token is than the oracle's, in nats */
    for (uint32_t t = 0; t < DEMO_TOKENS; t++) {
        const float *oracle = a.logits + (size_t)t * DEMO_VOCAB,
                    *ours = b.logits + (size_t)t * DEMO_VOCAB;
        uint32_t best = 0, mine = 0;
        for (uint32_t i = 1; i < DEMO_VOCAB; i++) {
            if (oracle[i] > oracle[best]) best = i;
            if (ours[i] > ours[mine]) mine = i;
        }
        if (oracle[best] - oracle[mine] > worst) worst = oracle[best] - oracle[mine];
    }
    print_message("%s precision, %s pages, residual %u: NMSE %.2e, greedy within %.4f nat\n",
                  precision_name(p->precision), kern_kv_name(p->kv_type), p->kv_residual, e, worst);
    assert_true(e < limit);
    assert_true(worst < nats);
    result_free(&b);
}

static void check_pages(const pass_result *exact, const uint32_t *tokens, kern_kv_format format,
                        uint32_t residual, double limit, double nats)
{
    pass rounded = exact_demo();
    rounded.kv_type = format;
    rounded.kv_residual = residual;
    if (kern_kv_has_grids(format)) rounded.page_tokens = kern_kv_facts_of(format).group;
    check_near(exact, tokens, &rounded, limit, nats);
}

static void narrow_pages_stay_near_f32(void **state)
{
    (void)state;
    uint32_t tokens[DEMO_TOKENS];
    random_tokens(tokens, DEMO_TOKENS, DEMO_VOCAB);
    pass exact = exact_demo();
    pass_result a = run(&exact, tokens, DEMO_TOKENS);
    check_pages(&a, tokens, KERN_KV_F16, 0, 1e-5, 0.5);
    check_pages(&a, tokens, KERN_KV_BF16, 0, 1e-4, 0.5);
    check_pages(&a, tokens, KERN_KV_INT8, 0, 1e-3, 0.5);
    check_pages(&a, tokens, KERN_KV_INT4, 0, 1e-2, 2.0);
    check_pages(&a, tokens, KERN_KV_INT2, 0, 2e-1, 12.0);
    check_pages(&a, tokens, KERN_KV_INT4, 128, 4e-3, 2.0);
    check_pages(&a, tokens, KERN_KV_INT4, 512, 5e-4, 0.5);
    check_pages(&a, tokens, KERN_KV_INT2, 128, 5e-2, 12.0);
    check_pages(&a, tokens, KERN_KV_INT2, 512, 1e-2, 6.0);
    result_free(&a);
}

/* The error of the default precision against the high one, with pages of f32 and of bf16. */
static void standard_precision_stays_near_high(void **state)
{
    (void)state;
    uint32_t tokens[DEMO_TOKENS];
    random_tokens(tokens, DEMO_TOKENS, DEMO_VOCAB);
    pass exact = exact_demo(), standard = exact;
    pass_result a = run(&exact, tokens, DEMO_TOKENS);
    standard.precision = KERN_PRECISION_STANDARD;
    check_near(&a, tokens, &standard, 1e-4, 0.5);
    standard.kv_type = KERN_KV_BF16;
    check_near(&a, tokens, &standard, 2e-4, 0.5);
    result_free(&a);
}

static void quantised_weights_stay_near_f32(void **state)
{
    (void)state;
    static const struct {
        kern_precision precision;
        uint8_t bits, attention;
        double limit;
    } cases[] = {{KERN_PRECISION_HIGH, 8, 0, 2e-4},
                 {KERN_PRECISION_STANDARD, 8, 0, 4.2e-4},
                 {KERN_PRECISION_STANDARD, 4, 8, 1.5e-2},
                 {KERN_PRECISION_STANDARD, 4, 0, 3e-2}};
    uint32_t tokens[DEMO_TOKENS];
    random_tokens(tokens, DEMO_TOKENS, DEMO_VOCAB);
    pass exact = exact_demo();
    pass_result a = run(&exact, tokens, DEMO_TOKENS);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pass p = exact;
        p.precision = cases[i].precision;
        p.quant_bits = cases[i].bits;
        p.quant_attention = cases[i].attention;
        p.quant_group = 32;
        pass_result b = run(&p, tokens, DEMO_TOKENS);
        double e = nmse(b.logits, a.logits, (size_t)DEMO_TOKENS * DEMO_VOCAB);
        print_message("%s precision, %u bits, %u in attention: NMSE %.2e\n",
                      precision_name(p.precision), p.quant_bits, p.quant_attention, e);
        assert_true(e < cases[i].limit);
        result_free(&b);
    }
    result_free(&a);
}

static void expect_same_bits(const pass_result *a, const pass_result *b, const char *what)
{
    if (memcmp(a->logits, b->logits, (size_t)DEMO_TOKENS * DEMO_VOCAB * sizeof(float)))
        fail_msg("%s: logits differ", what);
    assert_int_equal(a->mass_floats, b->mass_floats);
    if (memcmp(a->mass, b->mass, a->mass_floats * sizeof(float)))
        fail_msg("%s: page mass differs", what);
}

static void no_cut_of_the_work_changes_a_bit(void **state)
{
    (void)state;
    uint32_t tokens[DEMO_TOKENS];
    random_tokens(tokens, DEMO_TOKENS, DEMO_VOCAB);
    pass_result whole = run(&demo, tokens, DEMO_TOKENS);

    static const uint32_t chunks[] = {64, 222, DEMO_TOKENS};
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        pass p = demo;
        p.chunk = chunks[i];
        pass_result r = run(&p, tokens, DEMO_TOKENS);
        expect_same_bits(&whole, &r, "another chunk");
        result_free(&r);
    }
    static const uint32_t geometries[][2] = {{2, 0}, {4, 0}, {3, 2}, {1, 1}, {4, 1}};
    for (size_t i = 0; i < sizeof geometries / sizeof geometries[0]; i++) {
        pass p = demo;
        p.layers_per_group = geometries[i][0];
        p.heads_per_group = geometries[i][1];
        pass_result r = run(&p, tokens, DEMO_TOKENS);
        expect_same_bits(&whole, &r, "another geometry");
        result_free(&r);
    }
    pass single = demo;
    single.n_threads = 1;
    pass_result r = run(&single, tokens, DEMO_TOKENS);
    expect_same_bits(&whole, &r, "one thread");
    result_free(&r);
    result_free(&whole);
}

/* One row at a time, as in decode, gives the bits of one prefill. */
static void decode_equals_prefill(void **state)
{
    (void)state;
    enum { N = 60 };
    uint32_t tokens[N];
    random_tokens(tokens, N, DEMO_VOCAB);
    for (uint8_t bits = 0; bits <= 8; bits += 4) {
        pass p = demo;
        p.mass_rows = 1;
        p.kv_type = bits ? KERN_KV_INT8 : KERN_KV_BF16;
        p.quant_bits = bits;
        p.quant_group = 32;
        pass_result prefill = run(&p, tokens, N);
        p.chunk = 1;
        pass_result decode = run(&p, tokens, N);
        assert_memory_equal(prefill.logits, decode.logits, (size_t)N * DEMO_VOCAB * sizeof(float));
        assert_memory_equal(prefill.mass, decode.mass, prefill.mass_floats * sizeof(float));
        result_free(&prefill);
        result_free(&decode);
    }
}

/* A row's mass over all pages is 1, so masses sum to the number of heads and rows. A share with
 * fewer rows than requested is measured whole; with few layers, the first ones are. */
static void page_mass_sums_to_the_rows(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, layer_step;
    } cases[] = {{DEMO_TOKENS, 1}, {20, 1}, {DEMO_TOKENS, 3}, {DEMO_TOKENS, UINT32_MAX}};
    uint32_t tokens[DEMO_TOKENS];
    random_tokens(tokens, DEMO_TOKENS, DEMO_VOCAB);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint32_t n = cases[c].n, rows = n < demo.mass_rows ? n : demo.mass_rows, n_layers = 0;
        pass p = demo;
        p.layer_step = cases[c].layer_step;
        pass_result r = run(&p, tokens, n);
        size_t pages = (n + 15) / 16, q_heads = r.config.n_heads / r.config.n_kv_heads;
        for (uint64_t l = 0; l < r.config.n_layers; l += p.layer_step) n_layers++;
        assert_int_equal(r.mass_floats, n_layers * r.config.n_kv_heads * pages);
        for (size_t row = 0; row < r.mass_floats / pages; row++) {
            double sum = 0;
            for (size_t i = 0; i < pages; i++) sum += r.mass[row * pages + i];
            assert_true(fabs(sum - (double)(q_heads * rows)) < 1e-3);
        }
        result_free(&r);
    }
}

/* A step that is interrupted gives up in the middle of the pass, and the backend reports it. */
static void an_interrupted_step_gives_up(void **state)
{
    (void)state;
    uint32_t tokens[64], hit;
    random_tokens(tokens, 64, DEMO_VOCAB);
    pass p = demo;
    p.chunk = 64;
    model_config config;
    comm *group;
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &group, NULL)));
    backend b = open_backend(&p, group, &config);
    const backend_info *info = b.ops->info(b.ctx);
    pkv_options po = {.geometry = info->geometry, .n_pages = info->n_pages, .max_seqs = 2};
    pkv *kv;
    assert_true(status_ok(pkv_create(&po, &kv)));
    assert_true(status_ok(pkv_seq_open(kv, 1, PKV_HEAD, tokens, 0, 0, 64, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, 1, 64)));
    step_seq seq = {.seq = 1, .n_tokens = 64, .want_logits = true};
    step_plan plan = {.step = 1,
                      .deltas = pkv_take_deltas(kv),
                      .seqs = &seq,
                      .n_seqs = 1,
                      .tokens = tokens,
                      .n_tokens = 64,
                      .checksum = pkv_checksum(kv)};
    const step_result *r = NULL;
    assert_true(status_ok(b.ops->submit(b.ctx, &plan)));
    b.ops->interrupt(b.ctx);
    assert_int_equal(b.ops->collect(b.ctx, &r).code, STATUS_INTERNAL);
    assert_int_equal(r->status.code, STATUS_INTERNAL); /* the pass did not run to its end */
    assert_int_equal(r->n_seqs, 0);
    pkv_destroy(kv);
    b.ops->destroy(b.ctx);
    comm_destroy(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_equal_hugging_face_in_f32),
        cmocka_unit_test(quantised_logits_of_random_models),
        cmocka_unit_test(narrow_pages_stay_near_f32),
        cmocka_unit_test(standard_precision_stays_near_high),
        cmocka_unit_test(quantised_weights_stay_near_f32),
        cmocka_unit_test(no_cut_of_the_work_changes_a_bit),
        cmocka_unit_test(decode_equals_prefill),
        cmocka_unit_test(page_mass_sums_to_the_rows),
        cmocka_unit_test(an_interrupted_step_gives_up),
    };
    return cmocka_run_group_tests_name("model_parity", tests, NULL, NULL);
}
