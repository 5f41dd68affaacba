/* The table of a request's scalar fields: what each row gives to its readers and to the check. */
#include "engine/internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const backend_info info = {.vocab_size = 100, .max_seqs = ENGINE_N_MAX};
static const engine_defaults defaults = {.temperature = 0.5f,
                                         .top_p = 0.75f,
                                         .min_p = 0.25f,
                                         .repetition_penalty = 1.5f,
                                         .top_k = 40,
                                         .max_tokens = 7};

static engine_request make_request(void)
{
    static uint32_t token = 1;
    engine_request r;
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = &token;
    r.n_prompt_token_ids = 1;
    return r;
}

static status parse(const char *key, json_t *value, engine_request *r, error *err)
{
    json_t *fields = json_pack("{s:o}", key, value);
    assert_non_null(fields);
    status st = engine_request_parse(fields, "t", NULL, r, err);
    json_decref(fields);
    return st;
}

static json_t *number(const engine_field *f, double v)
{
    return f->kind == ENGINE_FIELD_FLOAT ? json_real(v) : json_integer((json_int_t)v);
}

/* Parses and checks a request with one field. */
static status try_value(const engine_field *f, json_t *value, error *err)
{
    engine_request r = make_request();
    status st = parse(f->name, value, &r, err);
    if (status_ok(st) && r.score_only) r.prompt_logprobs = 0;
    return status_ok(st) ? engine_request_check(&r, &info, NULL, err) : st;
}

static void expect_taken(const engine_field *f, double v)
{
    error err = {{0}};
    if (!status_ok(try_value(f, number(f, v), &err)))
        fail_msg("%s: %g is refused: %s", f->name, v, err.text);
}

static void expect_refused(const engine_field *f, json_t *value)
{
    error err = {{0}};
    assert_int_equal(try_value(f, value, &err).code, STATUS_INVALID);
    if (!strstr(err.text, f->name)) fail_msg("\"%s\" does not name %s", err.text, f->name);
}

static bool has_range(const engine_field *f) { return isfinite(f->range.min); }

static void test_ranges(void **state)
{
    (void)state;
    for (size_t i = 0; i < ENGINE_FIELDS; i++) {
        const engine_field *f = &engine_fields()[i];
        double step = f->kind == ENGINE_FIELD_FLOAT ? 0.001 : 1;
        if (!has_range(f)) continue;
        expect_taken(f, f->range.above ? f->range.min + step : f->range.min);
        expect_refused(f, number(f, f->range.above ? f->range.min : f->range.min - step));
        if (isinf(f->range.max)) continue;
        expect_taken(f, f->range.max);
        expect_refused(f, number(f, f->range.max + step));
    }
}

static void test_types(void **state)
{
    (void)state;
    for (size_t i = 0; i < ENGINE_FIELDS; i++) {
        const engine_field *f = &engine_fields()[i];
        expect_refused(f, json_string("1"));
        if (f->kind != ENGINE_FIELD_FLOAT) expect_refused(f, json_real(1.5));
        if (f->kind == ENGINE_FIELD_BOOL) expect_refused(f, json_integer(1));
        else if (f->kind != ENGINE_FIELD_LOGPROBS) expect_refused(f, json_true());
        /* No field but the seed takes more than 32 bits. */
        if (f->kind != ENGINE_FIELD_FLOAT && f->kind != ENGINE_FIELD_SEED)
            expect_refused(f, json_integer(INT64_C(1) << 31));
    }
}

/* A front end may fill a request by hand: what it sets is checked too. */
static void test_bad_floats(void **state)
{
    (void)state;
    for (size_t i = 0; i < ENGINE_FIELDS; i++) {
        const engine_field *f = &engine_fields()[i];
        error err = {{0}};
        if (f->kind != ENGINE_FIELD_FLOAT) continue;
        engine_request r = make_request();
        engine_field_set_float(f, NAN, &r);
        assert_int_equal(engine_request_check(&r, &info, NULL, &err).code, STATUS_INVALID);
        assert_memory_equal(err.text, f->name, strlen(f->name));
    }
}

static void expect_text(const char *key, json_t *value, const char *text)
{
    error err = {{0}};
    const engine_field *f = engine_field_find(key);
    assert_false(status_ok(try_value(f, value, &err)));
    assert_string_equal(err.text, text);
}

static void test_error_texts(void **state)
{
    (void)state;
    expect_text("temperature", json_real(-1), "temperature: must be in [0, 100]");
    expect_text("top_p", json_real(0), "top_p: must be in (0, 1]");
    expect_text("repetition_penalty", json_real(3), "repetition_penalty: must be in (0, 2]");
    expect_text("presence_penalty", json_real(-3), "presence_penalty: must be in [-2, 2]");
    expect_text("top_k", json_integer(-2), "top_k: must be -1 or more");
    expect_text("logprobs", json_integer(21), "logprobs: must be in 0 .. 20");
    expect_text("prompt_logprobs", json_integer(21), "prompt_logprobs: must be in 0 .. 20");
    expect_text("n", json_integer(129), "n: 129 is not in 1 .. 128");
    expect_text("n", json_integer(0), "t: n: must be an integer, 1 or more");
    expect_text("top_p", json_true(), "t: top_p: must be a number");
    expect_text("ignore_eos", json_integer(1), "t: ignore_eos: must be true or false");
    expect_text("priority", json_real(0.5), "t: priority: must be an integer of 32 bits");
    expect_text("seed", json_real(0.5), "t: seed: must be an integer of 64 bits");
}

static void test_values(void **state)
{
    (void)state;
    engine_request r = make_request();
    assert_true(r.temperature == 0.5f && r.top_p == 0.75f && r.min_p == 0.25f && r.top_k == 40);
    assert_true(r.repetition_penalty == 1.5f && r.max_tokens == 7 && r.n == 1);
    assert_true(r.logprobs == -1 && r.prompt_logprobs == -1 && !r.has_seed && !r.score_only);
    assert_true(r.skip_special_tokens && r.add_special_tokens && !r.ignore_eos);
    assert_true(status_ok(parse("seed", json_integer(-5), &r, NULL)));
    assert_true(r.has_seed && r.seed == (uint64_t)-5);
    assert_true(status_ok(parse("max_completion_tokens", json_integer(9), &r, NULL)));
    assert_true(r.max_tokens == 9 && !r.score_only);
    assert_true(status_ok(parse("max_tokens", json_integer(0), &r, NULL)));
    assert_true(r.max_tokens == 0 && r.score_only);
    assert_true(status_ok(parse("skip_special_tokens", json_false(), &r, NULL)));
    assert_false(r.skip_special_tokens);
    assert_true(status_ok(parse("top_k", json_null(), &r, NULL)));
    assert_int_equal(r.top_k, 40);
}

/* Chat writes logprobs as a boolean, and their number as top_logprobs, in any order. */
static void test_logprobs(void **state)
{
    (void)state;
    engine_request r = make_request();
    assert_true(status_ok(parse("logprobs", json_false(), &r, NULL)));
    assert_int_equal(r.logprobs, -1);
    assert_true(status_ok(parse("logprobs", json_true(), &r, NULL)));
    assert_int_equal(r.logprobs, 0);
    assert_true(status_ok(parse("top_logprobs", json_integer(3), &r, NULL)));
    assert_true(status_ok(parse("logprobs", json_true(), &r, NULL)));
    assert_int_equal(r.logprobs, 3);
    assert_int_equal(parse("top_logprobs", json_true(), &r, NULL).code, STATUS_INVALID);
}

/* A flag has its field's name, with dashes. */
static void test_flags(void **state)
{
    (void)state;
    size_t n = 0;
    for (size_t i = 0; i < ENGINE_FIELDS; i++) {
        const engine_field *f = &engine_fields()[i];
        assert_ptr_equal(engine_field_find(f->name), f); /* no other row has its name */
        assert_true(*f->help);
        if (!f->flag.name) continue;
        n++;
        assert_int_equal(strlen(f->flag.name), strlen(f->name));
        for (size_t c = 0; f->name[c]; c++)
            assert_int_equal(f->flag.name[c], f->name[c] == '_' ? '-' : f->name[c]);
        assert_int_equal(f->flag.value == NULL, f->kind == ENGINE_FIELD_BOOL);
    }
    assert_true(n > 0);
}

static void check_allowed(const backend_info *of, const char *json, const char *text)
{
    engine_request r = make_request(), copy;
    error err = {{0}};
    json_t *fields = json_loads(json, 0, NULL);
    assert_non_null(fields);
    assert_true(status_ok(engine_request_parse(fields, "t", NULL, &r, NULL)));
    json_decref(fields);
    assert_true(status_ok(engine_request_check(&r, of, NULL, &err)) == (text == NULL));
    if (text) assert_string_equal(err.text, text);
    r.prompt_token_ids = NULL; /* borrowed */
    r.n_prompt_token_ids = 0;
    assert_true(status_ok(engine_request_copy(&r, &copy)));
    assert_int_equal(copy.n_allowed_token_ids, r.n_allowed_token_ids);
    engine_request_destroy(&r);
    engine_request_destroy(&copy);
}

static void test_allowed_token_ids(void **state)
{
    (void)state;
    backend_info masks = info;
    masks.masks = true;
    masks.name = "some";
    check_allowed(&masks, "{\"allowed_token_ids\": [7, 99, 7]}", NULL);
    check_allowed(&masks, "{\"allowed_token_ids\": null}", NULL);
    check_allowed(&masks, "{\"allowed_token_ids\": []}",
                  "allowed_token_ids: must have 1 to 100 ids");
    check_allowed(&masks, "{\"allowed_token_ids\": [7, 100]}",
                  "allowed_token_ids[1]: 100 is outside the vocabulary (100)");
    check_allowed(&masks, "{\"allowed_token_ids\": [7], \"guided_regex\": \"a\"}",
                  "allowed_token_ids: cannot be combined with guided_regex");
    masks.masks = false;
    check_allowed(&masks, "{\"allowed_token_ids\": [7]}",
                  "allowed_token_ids: the backend 'some' cannot keep tokens from being drawn");
}

static void test_a_retrieval_in_one_word(void **state)
{
    (void)state;
    engine_request r = make_request();
    error err = {{0}};
    assert_true(status_ok(parse("retrieval", json_string("quest"), &r, &err)));
    assert_string_equal(json_string_value(json_object_get(r.retrieval, "method")), "quest");
    assert_null(json_object_get(r.retrieval, "tokens"));
    assert_true(status_ok(parse("retrieval", json_string("dynamic:512"), &r, &err)));
    assert_string_equal(json_string_value(json_object_get(r.retrieval, "method")), "dynamic");
    assert_int_equal(json_integer_value(json_object_get(r.retrieval, "tokens")), 512);
    assert_int_equal(parse("retrieval", json_string("quest:2k"), &r, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "t: retrieval: 'quest:2k' must be METHOD or METHOD:TOKENS, such "
                                  "as quest:4096, or a JSON object (methods: ktransformers, quest, "
                                  "dynamic)");
    assert_int_equal(json_integer_value(json_object_get(r.retrieval, "tokens")), 512);
    assert_int_equal(parse("retrieval", json_stringn("quest:512\0x", 11), &r, &err).code,
                     STATUS_INVALID);
    assert_string_equal(err.text, "t: retrieval: holds a NUL byte");
    json_decref(r.retrieval);
}

static void test_a_policy_in_one_word(void **state)
{
    (void)state;
    engine_request r = make_request();
    error err = {{0}};
    assert_true(status_ok(parse("retention", json_string("h2o:0.25"), &r, &err)));
    assert_string_equal(json_string_value(json_object_get(r.retention, "method")), "h2o");
    assert_true(json_real_value(json_object_get(r.retention, "ratio")) == 0.25);
    assert_true(status_ok(parse("retention", json_string("full"), &r, &err)));
    assert_string_equal(json_string_value(json_object_get(r.retention, "method")), "full");
    assert_int_equal(parse("retention", json_string("h2o:2"), &r, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "t: retention: 'h2o:2' must be METHOD:RATIO with a ratio in (0, "
                                  "1], full, or a JSON object");
    assert_int_equal(parse("retention", json_stringn("h2o:0.5\0x", 9), &r, &err).code,
                     STATUS_INVALID);
    assert_string_equal(err.text, "t: retention: holds a NUL byte");
    json_decref(r.retention);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_bad_floats),
        cmocka_unit_test(test_error_texts),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_allowed_token_ids),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_a_policy_in_one_word),
        cmocka_unit_test(test_a_retrieval_in_one_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
