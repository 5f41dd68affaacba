/* The method reform on the demo model, on one rank and on two: what it computes again of 100
 * prompts, and its answers, against tools/reform_oracle.py, which has none of this code. */
#include "tests/e2e/house.h"

enum { TOKENS_MAX = 512, ASKED = 6, ANSWER = 4, AT_ONCE = 20 };

static const char retention[] =
    "{\"method\":\"reform\",\"tokens\":48,\"recurrent_chunk\":64,\"rows\":16,\"sinks\":8,"
    "\"window\":8,\"gather_tokens\":64,\"gather_window\":9,\"query_tokens\":6,"
    "\"report\":\"positions\"}";

/* prompt_of of the oracle. */
static uint32_t make_prompt(uint32_t seed, uint32_t *out)
{
    uint32_t n = 180 + seed % 90, at = 20 + seed * 7 % 120, x = seed;
    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        out[i] = (x >> 16) % 1000;
    }
    memmove(out + n - ASKED, out + at, ASKED * sizeof *out);
    return n;
}

static engine_stream *submit(house *h, uint32_t seed)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    uint32_t tokens[TOKENS_MAX];
    engine_request r;
    engine_stream *s;
    error err = {{0}};
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = tokens;
    r.n_prompt_token_ids = make_prompt(seed, tokens);
    r.max_tokens = ANSWER;
    r.ignore_eos = true;
    r.retention = json_loads(retention, 0, NULL);
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    r.prompt_token_ids = NULL; /* it belongs to the test */
    engine_request_destroy(&r);
    return s;
}

static void check_kept(uint32_t seed, const char *text, const json_t *want)
{
    json_t *kept = json_loads(text ? text : "null", JSON_DECODE_ANY, NULL);
    const json_t *got = json_object_get(json_array_get(kept, 0), "ranges");
    if (!json_equal(got, want)) {
        char *is = json_dumps(got, JSON_COMPACT | JSON_ENCODE_ANY),
             *due = json_dumps(want, JSON_COMPACT);
        fail_msg("prompt %u: computed again are %s, not %s", seed, is, due);
    }
    json_decref(kept);
}

static void check(engine_stream *s, const json_t *want)
{
    uint32_t seed = (uint32_t)json_integer_value(json_object_get(want, "seed"));
    const json_t *answer = json_object_get(want, "answer");
    engine_output out;
    size_t n = 0;
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_ERROR) fail_msg("prompt %u: %s", seed, out.error_text);
        if (out.has_token)
            assert_int_equal(out.sample.token, json_integer_value(json_array_get(answer, n++)));
        if (out.finish != ENGINE_FINISH_NONE)
            check_kept(seed, out.report->kept_json, json_object_get(want, "kept"));
    }
    assert_int_equal(n, ANSWER);
    engine_stream_release(s);
}

static void check_all(uint32_t n_ranks, uint32_t prefill_chunk)
{
    const setting s = {.kv_type = KERN_KV_F32,
                       .precision = KERN_PRECISION_HIGH,
                       .prefill_chunk = prefill_chunk,
                       .layers_per_group = 1,
                       .heads_per_group = 1,
                       .page_tokens = 16,
                       .max_model_len = 512,
                       .kv_bytes = 64 << 20,
                       .prefix_cache = true,
                       .n_ranks = n_ranks};
    json_t *golden;
    error err = {{0}};
    if (!status_ok(json_read_file("tests/golden/reform.json", 16 << 20, &golden, &err)))
        fail_msg("%s", err.text);
    const json_t *cases = json_object_get(golden, "answers");
    size_t n = json_array_size(cases);
    house h = open_house(&s);
    assert_int_equal(n, 100);
    for (size_t i = 0; i < n; i += AT_ONCE) {
        engine_stream *streams[AT_ONCE];
        for (size_t k = 0; k < AT_ONCE; k++)
            streams[k] = submit(&h, (uint32_t)json_integer_value(
                                        json_object_get(json_array_get(cases, i + k), "seed")));
        for (size_t k = 0; k < AT_ONCE; k++) check(streams[k], json_array_get(cases, i + k));
    }
    close_house(&h);
    json_decref(golden);
}

static void one_rank_computes_what_the_oracle_does(void **state)
{
    (void)state;
    check_all(0, 96);
}

/* The oracle knows no steps: these are a quarter as long, and the last one of each recurrent chunk
 * is shorter. */
static void two_ranks_compute_it_in_shorter_steps(void **state)
{
    (void)state;
    check_all(2, 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_computes_what_the_oracle_does),
        cmocka_unit_test(two_ranks_compute_it_in_shorter_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
