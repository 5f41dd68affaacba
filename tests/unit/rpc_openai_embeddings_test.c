/* POST /v1/embeddings: bodies become requests that pool, wrong ones are refused by name, and hand-
 * written vectors come out exactly.
 *
 * Linked with --wrap=generation_pooled: there is no generation here, only its vectors. */
#include "tests/unit/rpc_openai_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const float vectors[2][4] = {{3, 0, -4, 0}, {0, 0, 0, 0}};
static bool has_vectors;

const float *__wrap_generation_pooled(const generation *g, uint32_t request, uint32_t *n);
const float *__wrap_generation_pooled(const generation *g, uint32_t request, uint32_t *n)
{
    (void)g;
    *n = 4;
    return has_vectors ? vectors[request] : NULL;
}

static int setup(void **state)
{
    openai_fixture *f = calloc(1, sizeof *f);
    error err = {{0}};
    if (!status_ok(openai_fixture_open(f, &err))) fail_msg("%s", err.text);
    has_vectors = true;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    openai_fixture_close(*state);
    free(*state);
    return 0;
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static openai_call parse(openai_fixture *f, const char *body)
{
    openai_call c;
    openai_error e = {0};
    if (!openai_parse_embeddings(&f->service, body, strlen(body), &c, &e))
        fail_msg("%s", e.message);
    return c;
}

static void bodies_become_requests(void **state)
{
    openai_call c = parse(*state, "{\"input\": \"some text\", \"user\": \"me\"}");
    assert_int_equal(c.n_requests, 1);
    assert_int_equal(c.n_choices, 1);
    assert_string_equal(c.requests[0].prompt, "some text");
    assert_int_equal(c.requests[0].pooling, POOLING_LAST);
    assert_true(c.requests[0].score_only);
    assert_int_equal(c.requests[0].max_tokens, 0);
    assert_string_equal(json_string_value(json_object_get(c.requests[0].retention, "method")),
                        "full");
    assert_false(c.vectors.base64 || c.vectors.raw);
    openai_call_destroy(&c);

    c = parse(*state, "{\"input\": [\"a\", \"b\"], \"pooling\": \"mean\", \"normalize\": false, "
                      "\"encoding_format\": \"base64\", \"truncate_prompt_tokens\": 7, "
                      "\"cache_salt\": \"s\", \"priority\": 0, \"add_special_tokens\": false}");
    assert_int_equal(c.n_requests, 2);
    assert_true(c.vectors.base64 && c.vectors.raw);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(c.requests[i].pooling, POOLING_SUM);
        assert_int_equal(c.requests[i].truncate_prompt_tokens, 7);
        assert_string_equal(c.requests[i].cache_salt, "s");
    }
    openai_call_destroy(&c);

    c = parse(*state, "{\"input\": [[1, 2], [3]], \"encoding_format\": \"float\"}");
    assert_int_equal(c.n_requests, 2);
    assert_int_equal(c.requests[0].n_prompt_token_ids, 2);
    assert_int_equal(c.requests[1].prompt_token_ids[0], 3);
    openai_call_destroy(&c);
}

static void wrong_bodies_are_refused_by_name(void **state)
{
    static const struct {
        const char *body, *param;
        unsigned status;
    } cases[] = {
        {"{}", "input", 400},
        {"{\"input\": []}", "input", 400},
        {"{\"input\": 5}", "input", 400},
        {"{\"input\": [\"a\", 5]}", "input", 400},
        {"{\"input\": [[1, -1]]}", "input", 400},
        {"{\"input\": \"x\", \"model\": \"other\"}", "model", 404},
        {"{\"input\": \"x\", \"dimensions\": 8}", "dimensions", 400},
        {"{\"input\": \"x\", \"encoding_format\": \"hex\"}", "encoding_format", 400},
        {"{\"input\": \"x\", \"encoding_format\": \"float\\u0000\"}", "encoding_format", 400},
        {"{\"input\": \"x\", \"pooling\": \"mean\\u0000x\"}", "pooling", 400},
        {"{\"input\": \"x\", \"pooling\": \"cls\"}", "pooling", 400},
        {"{\"input\": \"x\", \"normalize\": 1}", "normalize", 400},
        {"{\"input\": \"x\", \"session\": \"s\"}", "session", 400},
        {"{\"input\": \"x\", \"prompt\": \"y\"}", "prompt", 400},
        {"{\"input\": \"x\", \"retention\": {\"method\": \"h2o\"}}", "retention", 400},
        {"{\"input\": \"x\", \"max_tokens\": 3}", "max_tokens", 400},
        {"{\"input\": \"x\", \"stream\": true}", "stream", 400},
    };
    openai_fixture *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        openai_call c;
        openai_error e = {0};
        const char *body = cases[i].body;
        if (openai_parse_embeddings(&f->service, body, strlen(body), &c, &e))
            fail_msg("%s: taken", body);
        if (e.status != cases[i].status || !strstr(e.message, cases[i].param))
            fail_msg("%s: %u \"%s\"", body, e.status, e.message);
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Gives the ends of both requests, the second first. */
static char *answer(openai_fixture *f, const char *body, const generation_output *end)
{
    openai_call c = parse(f, body);
    uint32_t n = c.n_requests;
    openai_embeddings *e = openai_embeddings_create(&f->service, &c);
    strbuf out = {0};
    for (uint32_t i = n; i-- > 0;) {
        generation_output o = *end;
        o.index = o.request = i;
        openai_embeddings_take(e, NULL, &o);
    }
    openai_embeddings_finish(e, &out);
    assert_int_equal(openai_embeddings_error(e) != NULL, end->out.finish != ENGINE_FINISH_LENGTH);
    openai_embeddings_destroy(e);
    assert_false(out.failed);
    return out.data;
}

static void expect_answer(openai_fixture *f, const char *body, const char *expected)
{
    const generation_output end = {
        .out = {.finish = ENGINE_FINISH_LENGTH, .usage = {.prompt_tokens = 5}}};
    char *got = answer(f, body, &end);
    assert_string_equal(got, expected);
    free(got);
}

static void vectors_come_out_exactly(void **state)
{
    expect_answer(*state, "{\"input\": [\"a\", \"b\"]}",
                  "{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\":0,"
                  "\"embedding\":[0.6,0,-0.8,0]},{\"object\":\"embedding\",\"index\":1,"
                  "\"embedding\":[0,0,0,0]}],\"model\":\"demo\","
                  "\"usage\":{\"prompt_tokens\":10,\"total_tokens\":10}}");
    expect_answer(*state, "{\"input\": \"a\", \"normalize\": false, \"model\": \"also/demo\"}",
                  "{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\":0,"
                  "\"embedding\":[3,0,-4,0]}],\"model\":\"also/demo\","
                  "\"usage\":{\"prompt_tokens\":5,\"total_tokens\":5}}");
    /* Python: base64.b64encode(struct.pack("<4f", 3, 0, -4, 0)) */
    expect_answer(*state,
                  "{\"input\": \"a\", \"normalize\": false, \"encoding_format\": \"base64\"}",
                  "{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\":0,"
                  "\"embedding\":\"AABAQAAAAAAAAIDAAAAAAA==\"}],\"model\":\"demo\","
                  "\"usage\":{\"prompt_tokens\":5,\"total_tokens\":5}}");
}

static void errors_are_answers(void **state)
{
    generation_output end = {.out = {.finish = ENGINE_FINISH_ERROR,
                                     .error_code = STATUS_INVALID,
                                     .error_text = "prompt: has no tokens"}};
    char *got = answer(*state, "{\"input\": \"a\"}", &end);
    assert_non_null(strstr(got, "\"message\":\"input: has no tokens\""));
    assert_non_null(strstr(got, "\"param\":\"input\""));
    free(got);
    end.out.error_text = "prompt_token_ids[0]: 9999 is outside the vocabulary (1024)";
    got = answer(*state, "{\"input\": [9999]}", &end);
    assert_non_null(strstr(got, "\"message\":\"input: 9999 is outside the vocabulary (1024)\""));
    free(got);
    has_vectors = false;
    end = (generation_output){.out = {.finish = ENGINE_FINISH_ABORT}};
    got = answer(*state, "{\"input\": [\"a\", \"b\"]}", &end);
    assert_non_null(strstr(got, "the request was aborted"));
    free(got);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(bodies_become_requests),
        CASE(wrong_bodies_are_refused_by_name),
        CASE(vectors_come_out_exactly),
        CASE(errors_are_answers),
    };
    return cmocka_run_group_tests_name("openai: embeddings", tests, NULL, NULL);
}
