/* Every family through the whole engine: alone or in a batch, in chunks, from cached prefixes, with
 * what retention drops, on f32 and on int8 pages: the same tokens, the same bits. */
#include "tests/e2e/house.h"

enum { REQUESTS = 8, PROMPT_MAX = 120, OUTPUTS = 12, VOCAB = 64 };

/* One after the other for the requests; NULL keeps all. */
static const char *const retentions[] = {
    NULL, "{\"method\": \"chunkkv\", \"tokens\": 48, \"window\": 16}",
    "{\"method\": \"snapkv\", \"tokens\": 48}",
    "{\"method\": \"scope-slide\", \"prefill\": {\"method\": \"snapkv\", \"tokens\": 48}}"};
enum { RETENTIONS = sizeof retentions / sizeof retentions[0] };

typedef struct prompt {
    uint32_t tokens[PROMPT_MAX];
    uint32_t n;
} prompt;

typedef struct answer {
    uint32_t tokens[OUTPUTS], n;
    float logprobs[OUTPUTS];
    uint64_t pages_dropped;
} answer;

/* All begin alike, and then each goes its own way. */
static void make_prompts(prompt *prompts)
{
    rng r = rng_seed(7);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        prompts[i].n = i < RETENTIONS ? PROMPT_MAX - i : 20 + rng_below(&r, PROMPT_MAX - 20);
        for (uint32_t t = 0; t < PROMPT_MAX; t++)
            prompts[i].tokens[t] = t < 40 && i > 0 ? prompts[0].tokens[t] : rng_below(&r, VOCAB);
    }
}

static engine_stream *submit(house *h, prompt *p, uint32_t i)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    engine_stream *s;
    error err = {{0}};
    const char *retention = retentions[i % RETENTIONS];
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = p->tokens;
    r.n_prompt_token_ids = p->n;
    r.max_tokens = OUTPUTS;
    r.ignore_eos = true;
    r.logprobs = 0;
    if (retention) r.retention = json_loads(retention, 0, NULL);
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err)))
        fail_msg("request %u: %s", i, err.text);
    r.prompt_token_ids = NULL; /* the test's own */
    engine_request_destroy(&r);
    return s;
}

static void read_answer(engine_stream *s, answer *a)
{
    engine_output out;
    *a = (answer){0};
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_ERROR) fail_msg("%s", out.error_text);
        if (out.has_token) {
            a->tokens[a->n] = out.sample.token;
            a->logprobs[a->n++] = out.sample.logprob;
        }
        if (out.report) a->pages_dropped = out.report->pages_dropped;
    }
    engine_stream_release(s);
}

static void expect_equal(const setting *s, const answer *want, const answer *got, uint32_t i)
{
    assert_int_equal(want->n, OUTPUTS);
    if (memcmp(want->tokens, got->tokens, sizeof want->tokens) ||
        memcmp(want->logprobs, got->logprobs, sizeof want->logprobs) ||
        want->pages_dropped != got->pages_dropped)
        fail_msg("%s: request %u says something else in a batch", s->dir, i);
}

static void check_model(const char *name, kern_kv_format format)
{
    prompt prompts[REQUESTS];
    answer alone[REQUESTS], got;
    uint64_t dropped = 0;
    char dir[128];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    make_prompts(prompts);
    setting s = {.dir = dir,
                 .kv_type = format,
                 .prefill_chunk = 256,
                 .layers_per_group = 1,
                 .heads_per_group = 1,
                 .page_tokens = 16,
                 .max_model_len = 200,
                 .kv_bytes = 16 << 20};
    house h = open_house(&s);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        read_answer(submit(&h, &prompts[i], i), &alone[i]);
        dropped += alone[i].pages_dropped;
    }
    close_house(&h);
    assert_true(dropped > 0);

    s.prefill_chunk = 48;
    s.prefix_cache = true;
    h = open_house(&s);
    for (int round = 0; round < 2; round++) {
        engine_stream *streams[REQUESTS];
        for (uint32_t i = 0; i < REQUESTS; i++) streams[i] = submit(&h, &prompts[i], i);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            read_answer(streams[i], &got);
            expect_equal(&s, &alone[i], &got, i);
        }
    }
    close_house(&h);
}

static void families_compose(void **state)
{
    (void)state;
    static const char *const models[] = {
        "mistral_f32",         "mistral_window_f32",  "qwen2_window_bf16", "qwen3_layers_bf16",
        "mixtral_window_bf16", "qwen3_moe_some_bf16", "internlm2_f32",     "phi3_long_bf16"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        check_model(models[i], KERN_KV_F32);
        check_model(models[i], KERN_KV_INT8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(families_compose)};
    return cmocka_run_group_tests_name("families", tests, NULL, NULL);
}
