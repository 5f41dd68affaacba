/* Every family against transformers on tiny random models, on every ISA, cut for ranks and into
 * chunks. Goldens: tests/golden/models/README.md. */
#include "tests/unit/model_pass.h"

enum { TOKENS = 48 };

typedef struct golden {
    const char *name;
    unsigned n_cuts; /* of 2 and 4 ranks, how many fit the model */
} golden;

static const golden goldens[] = {
    {"mistral_f32", 2},
    {"mistral_window_f32", 0},
    {"qwen2_f32", 1},
    {"qwen2_window_bf16", 2},
    {"qwen3_f32", 2},
    {"qwen3_layers_bf16", 2},
    {"mixtral_f32", 2},
    {"mixtral_window_bf16", 0},
    {"qwen3_moe_f32", 2},
    {"qwen3_moe_some_bf16", 0},
    {"internlm2_f32", 1},
    {"internlm2_long_bf16", 2},
    {"phi3_f32", 2},
    {"phi3_long_bf16", 0},
    {"yarn_rope_f32", 2},
    {"mistral_odd_bf16", 0},
    {"qwen3_yarn_bf16", 0},
    {"mixtral_three_bf16", 0},
    {"internlm2_equal_bf16", 0},
    {"phi3_odd_bf16", 0},
    {"qwen2_moe_f32", 2},
    {"qwen2_moe_some_bf16", 0},
    {"gemma3_f32", 2},
    {"gemma3_layers_bf16", 0},
};
enum { GOLDENS = sizeof goldens / sizeof goldens[0] };

typedef struct fixture {
    char dir[128];
    uint32_t tokens[TOKENS];
    float *logits;
    size_t floats;
    uint32_t vocab;
} fixture;

static fixture open_golden(const golden *g)
{
    fixture x = {0};
    char path[192], *bytes;
    size_t n;
    json_t *json;
    error err = {{0}};
    snprintf(x.dir, sizeof x.dir, "tests/golden/models/%s", g->name);
    snprintf(path, sizeof path, "%s/tokens.jsonl", x.dir);
    if (!status_ok(json_read_file(path, 1 << 20, &json, &err))) fail_msg("%s", err.text);
    const json_t *ids = json_object_get(json, "token_ids");
    assert_int_equal(json_array_size(ids), TOKENS);
    for (size_t i = 0; i < TOKENS; i++)
        x.tokens[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    json_decref(json);
    snprintf(path, sizeof path, "%s/logits.f32", x.dir);
    if (!status_ok(file_read(path, 1 << 20, &bytes, &n, &err))) fail_msg("%s", err.text);
    x.logits = (float *)(void *)bytes;
    x.floats = n / sizeof(float);
    x.vocab = (uint32_t)(x.floats / TOKENS);
    return x;
}

static pass usual(const fixture *x)
{
    return (pass){.dir = x->dir,
                  .kv_type = KERN_KV_F32,
                  .precision = KERN_PRECISION_HIGH,
                  .quant_group = 32,
                  .page_tokens = 16,
                  .layers_per_group = 1,
                  .chunk = TOKENS,
                  /* some RoPE depends on it: the length that transformers used */
                  .max_model_len = strstr(x->dir, "internlm2_long") ? TOKENS : 0};
}

static uint32_t most_likely(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Logits near the golden ones, and the same most likely tokens. */
static void expect_golden(const fixture *x, const pass *p)
{
    pass_result r = run(p, x->tokens, TOKENS);
    assert_int_equal(x->floats, (size_t)TOKENS * r.config.vocab_size);
    double e = nmse(r.logits, x->logits, x->floats);
    print_message("%s, %s, %u ranks: NMSE %.2e\n", x->dir, p->isa ? p->isa : "best", p->n_ranks, e);
    if (!(e < 1e-9)) fail_msg("%s: NMSE %.3e", x->dir, e);
    for (uint32_t t = 0; t < TOKENS; t++) {
        const float *ours = r.logits + (size_t)t * x->vocab,
                    *due = x->logits + (size_t)t * x->vocab;
        assert_int_equal(most_likely(ours, x->vocab), most_likely(due, x->vocab));
    }
    result_free(&r);
}

static void logits_equal_hugging_face(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDENS; i++) {
        fixture x = open_golden(&goldens[i]);
        pass p = usual(&x);
        for (size_t isa = 0; isa < kern_isa_count(); isa++) {
            bool available;
            p.isa = kern_isa_at(isa, &available);
            if (available) expect_golden(&x, &p);
        }
        free(x.logits);
    }
}

/* The same models as saved by the newest transformers, with its names in config.json and of
 * tensors. transformers has no InternLM2. */
static void newest_transformers_is_read(void **state)
{
    (void)state;
    static const char *const names[] = {
        "llama3_rope_f32",   "yarn_rope_f32",     "linear_rope_f16",     "mistral_window_f32",
        "qwen2_window_bf16", "qwen2_moe_f32",     "qwen3_layers_bf16",   "mixtral_f32",
        "qwen3_moe_f32",     "phi3_f32",          "qwen3_moe_some_bf16", "phi3_long_bf16",
        "gemma3_f32",        "gemma3_layers_bf16"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "transformers_5_23/%s", names[i]);
        golden g = {.name = name};
        fixture x = open_golden(&g);
        pass p = usual(&x);
        expect_golden(&x, &p);
        free(x.logits);
    }
}

/* Every architecture, and every kind of RoPE, has more than one golden. */
static void every_family_has_goldens(void **state)
{
    (void)state;
    static const char *const of_llama[] = {"llama3_rope_f32", "linear_rope_f16", "v5_config_bf16"};
    enum { FAMILIES_MAX = 32, LLAMAS = sizeof of_llama / sizeof *of_llama };
    uint32_t families[FAMILIES_MAX] = {0}, ropes[ROPE_LONGROPE + 1] = {0};
    assert_in_range(model_family_count(), 1, FAMILIES_MAX);
    for (size_t i = 0; i < GOLDENS + LLAMAS; i++) {
        model_config c;
        char dir[128];
        snprintf(dir, sizeof dir, "tests/golden/models/%s",
                 i < GOLDENS ? goldens[i].name : of_llama[i - GOLDENS]);
        assert_true(status_ok(model_config_load(dir, NULL, 0, &c, NULL)));
        ropes[c.rope.kind]++;
        for (size_t f = 0; f < model_family_count(); f++)
            families[f] += strcmp(c.architecture, model_family_architecture(f)) == 0;
    }
    for (size_t f = 0; f < model_family_count(); f++)
        if (families[f] < 2) fail_msg("%s has %u", model_family_architecture(f), families[f]);
    for (int k = ROPE_DEFAULT; k <= ROPE_LONGROPE; k++) assert_true(ropes[k] >= 2);
}

static void ranks_change_nothing(void **state)
{
    (void)state;
    size_t n_families = 0;
    char cut[4096] = "";
    for (size_t i = 0; i < GOLDENS; i++) {
        fixture x = open_golden(&goldens[i]);
        pass p = usual(&x);
        model_config config;
        unsigned n_cuts = 0;
        assert_true(status_ok(model_config_load(p.dir, NULL, 0, &config, NULL)));
        for (p.n_ranks = 2; p.n_ranks <= 4; p.n_ranks += 2) {
            if (!status_ok(model_ranks_check(&config, p.n_ranks, NULL))) continue;
            expect_golden(&x, &p);
            n_cuts++;
        }
        if (n_cuts != goldens[i].n_cuts) fail_msg("%s: %u cuts", x.dir, n_cuts);
        if (n_cuts > 0 && !strstr(cut, config.architecture)) {
            snprintf(cut + strlen(cut), sizeof cut - strlen(cut), " %s", config.architecture);
            n_families++;
        }
        free(x.logits);
    }
    if (n_families != model_family_count()) fail_msg("cut were only%s", cut);
}

/* Weights and pages of bf16, the usual setting, against f32 arithmetic on the same weights: logits
 * are near, and the most likely token is nearly the most likely one there. */
static void bf16_stays_near_f32(void **state)
{
    (void)state;
    size_t n_tested = 0;
    for (size_t i = 0; i < GOLDENS; i++) {
        if (!strstr(goldens[i].name, "_bf16")) continue;
        fixture x = open_golden(&goldens[i]);
        pass p = usual(&x);
        p.bf16 = true;
        p.kv_type = KERN_KV_BF16;
        pass_result r = run(&p, x.tokens, TOKENS);
        double e = nmse(r.logits, x.logits, x.floats), worst = 0;
        for (uint32_t t = 0; t < TOKENS; t++) {
            const float *due = x.logits + (size_t)t * x.vocab;
            uint32_t mine = most_likely(r.logits + (size_t)t * x.vocab, x.vocab);
            double nats = (double)due[most_likely(due, x.vocab)] - (double)due[mine];
            if (nats > worst) worst = nats;
        }
        print_message("%s: NMSE %.2e, greedy within %.4f nat\n", x.dir, e, worst);
        if (!(e < 1e-4 && worst <= 0.5)) fail_msg("%s: NMSE %.3e, %.3f nat", x.dir, e, worst);
        n_tested++;
        result_free(&r);
        free(x.logits);
    }
    assert_true(n_tested >= 12);
}

/* A whole prefill, chunks, and one token at a time as in decode give the same bits, quantised or
 * not. */
static void no_chunk_changes_a_bit(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 7};
    for (size_t i = 0; i < GOLDENS; i++) {
        fixture x = open_golden(&goldens[i]);
        for (uint8_t bits = 0; bits <= 8; bits += 8) {
            pass p = usual(&x);
            p.quant_bits = bits;
            pass_result whole = run(&p, x.tokens, TOKENS);
            for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
                p.chunk = chunks[c];
                pass_result r = run(&p, x.tokens, TOKENS);
                if (memcmp(whole.logits, r.logits, x.floats * sizeof(float)))
                    fail_msg("%s, %u bits, chunks of %u: other bits", x.dir, bits, p.chunk);
                result_free(&r);
            }
            result_free(&whole);
        }
        free(x.logits);
    }
}

/* A window as long as the prompts would hide nothing, and its failure would go unseen. */
static void windows_are_shorter_than_the_prompts(void **state)
{
    (void)state;
    static const golden windowed[] = {
        {"mistral_window_f32", 0},  {"qwen2_window_bf16", 0}, {"qwen3_layers_bf16", 0},
        {"mixtral_window_bf16", 0}, {"phi3_f32", 0},          {"mistral_odd_bf16", 0},
        {"phi3_odd_bf16", 0},       {"gemma3_f32", 0},        {"gemma3_layers_bf16", 0}};
    for (size_t i = 0; i < sizeof windowed / sizeof windowed[0]; i++) {
        fixture x = open_golden(&windowed[i]);
        model_config c;
        assert_true(status_ok(model_config_load(x.dir, NULL, 0, &c, NULL)));
        assert_in_range(c.window, 1, TOKENS - 1);
        free(x.logits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_equal_hugging_face),
        cmocka_unit_test(newest_transformers_is_read),
        cmocka_unit_test(every_family_has_goldens),
        cmocka_unit_test(ranks_change_nothing),
        cmocka_unit_test(bf16_stays_near_f32),
        cmocka_unit_test(no_chunk_changes_a_bit),
        cmocka_unit_test(windows_are_shorter_than_the_prompts),
    };
    return cmocka_run_group_tests_name("model_families", tests, NULL, NULL);
}
