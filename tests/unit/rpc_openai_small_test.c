/* OpenAI's small endpoints: tokens of a text and back, models, version. */
#include "rpc/openai/internal.h"
#include "tests/unit/rpc_openai_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int setup(void **state)
{
    openai_fixture *f = malloc(sizeof *f);
    error err = {{0}};
    if (!f || !status_ok(openai_fixture_open(f, &err))) fail_msg("%s", err.text);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    openai_fixture_close(*state);
    free(*state);
    return 0;
}

typedef bool (*small_call)(service *s, const char *body, size_t n, strbuf *out, openai_error *err);

static void check_small(void **state, small_call call, const char *body, const char *expected)
{
    openai_fixture *f = *state;
    strbuf out = {0};
    openai_error e = {0};
    if (!call(&f->service, body, strlen(body), &out, &e)) fail_msg("%s: %s", body, e.message);
    assert_string_equal(out.data, expected);
    strbuf_destroy(&out);
}

static void check_small_refusal(void **state, small_call call, const char *body, const char *param,
                                unsigned code)
{
    openai_fixture *f = *state;
    strbuf out = {0};
    openai_error e = {0};
    if (call(&f->service, body, strlen(body), &out, &e)) fail_msg("taken: %s", body);
    if (e.status != code || strcmp(e.param, param) != 0)
        fail_msg("%s: %u '%s' %s", body, e.status, e.param, e.message);
    assert_int_equal(out.size, 0);
    strbuf_destroy(&out);
}

static void tokenize_and_back(void **state)
{
    check_small(state, openai_tokenize, "{\"model\": \"demo\", \"prompt\": \"the cat\"}",
                "{\"count\":4,\"max_model_len\":2048,\"tokens\":[83,257,286,308],"
                "\"token_strs\":null}");
    check_small(state, openai_tokenize,
                "{\"prompt\": \"the\", \"add_special_tokens\": false, "
                "\"return_token_strs\": false}",
                "{\"count\":2,\"max_model_len\":2048,\"tokens\":[83,257],\"token_strs\":null}");
    check_small(state, openai_detokenize, "{\"tokens\": [83, 257, 286, 308, 1023]}",
                "{\"prompt\":\"the cat<|im_end|>\"}");
    check_small(state, openai_detokenize, "{\"tokens\": []}", "{\"prompt\":\"\"}");
    check_small(state, openai_detokenize, "{\"tokens\": [172, 253]}",
                "{\"prompt\":\"\xef\xbf\xbd\"}");
}

static void messages_are_tokenized_by_the_template(void **state)
{
    openai_fixture *f = *state;
    const char *body = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], "
                       "\"add_generation_prompt\": true}";
    strbuf out = {0}, text = {0};
    openai_error e = {0};
    assert_true(openai_tokenize(&f->service, body, strlen(body), &out, &e));
    json_t *doc = json_loads(out.data, 0, NULL);
    json_t *tokens = json_pack("{s:O}", "tokens", json_object_get(doc, "tokens"));
    char *back = json_dumps(tokens, 0);
    assert_true(openai_detokenize(&f->service, back, strlen(back), &text, &e));
    assert_string_equal(text.data, "{\"prompt\":\"<|im_start|>user\\nhi<|im_end|>\\n"
                                   "<|im_start|>assistant\\n\"}");
    free(back);
    json_decref(tokens);
    json_decref(doc);
    strbuf_destroy(&text);
    strbuf_destroy(&out);
}

static void small_bodies_are_refused_by_name(void **state)
{
    check_small_refusal(state, openai_tokenize, "{}", "prompt", 400);
    check_small_refusal(state, openai_tokenize, "{\"prompt\": 5}", "prompt", 400);
    check_small_refusal(state, openai_tokenize, "{\"prompt\": \"x\", \"messages\": []}", "prompt",
                        400);
    check_small_refusal(state, openai_tokenize, "{\"prompt\": \"x\", \"max_tokens\": 5}",
                        "max_tokens", 400);
    check_small_refusal(state, openai_tokenize, "{\"messages\": []}", "messages", 400);
    check_small_refusal(state, openai_tokenize,
                        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
                        "\"image_url\"}]}]}",
                        "messages[0].content[0]", 400);
    check_small_refusal(state, openai_tokenize, "{\"prompt\": \"x\", \"model\": \"y\"}", "model",
                        404);
    check_small_refusal(state, openai_tokenize,
                        "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}], "
                        "\"add_special_tokens\": true}",
                        "add_special_tokens", 400);
    check_small_refusal(state, openai_detokenize, "{}", "tokens", 400);
    check_small_refusal(state, openai_detokenize, "{\"tokens\": [1024]}", "tokens", 400);
    check_small_refusal(state, openai_detokenize, "{\"tokens\": [-1]}", "tokens", 400);
    check_small_refusal(state, openai_detokenize, "{\"tokens\": [1.5]}", "tokens", 400);
    check_small_refusal(state, openai_detokenize, "{\"tokens\": [1], \"prompt\": \"x\"}", "prompt",
                        400);
}

static void models_and_version(void **state)
{
    openai_fixture *f = *state;
    strbuf out = {0};
    openai_error e = {0};
    f->service.start_time = 1700000000.5;
#define DEMO(name)                                                                                 \
    "{\"id\":\"" name "\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"octavo\","    \
    "\"root\":\"models/demo\",\"parent\":null,\"max_model_len\":2048,"                             \
    "\"max_logical_len\":4194304}"
    openai_models(&f->service, &out);
    assert_string_equal(out.data,
                        "{\"object\":\"list\",\"data\":[" DEMO("demo") "," DEMO("also/demo") "]}");
    strbuf_clear(&out);
    assert_true(openai_model(&f->service, "also/demo", &out, &e));
    assert_string_equal(out.data, DEMO("also/demo"));
    strbuf_clear(&out);
    assert_false(openai_model(&f->service, "x", &out, &e));
    assert_int_equal(e.status, 404);
    assert_string_equal(e.param, "model");
    assert_string_equal(e.message, "The model `x` does not exist.");
    assert_false(openai_model(&f->service, "", &out, &e));
    assert_int_equal(out.size, 0);
    openai_version(&f->service, &out);
    assert_string_equal(out.data, "{\"version\":\"1.2.3\"}");
    strbuf_destroy(&out);
}

static void the_tokenizers_configuration(void **state)
{
    openai_fixture *f = *state;
    strbuf out = {0};
    openai_error e = {0};
    assert_null(tokenizer_info_read(NULL));
    assert_null(tokenizer_info_read("models/none"));
    assert_false(openai_tokenizer_info(&f->service, &out, &e));
    assert_int_equal(e.status, 404);
    assert_null(strchr(e.message, '/'));
    assert_int_equal(out.size, 0);
    f->service.tokenizer_info = tokenizer_info_read("models/demo");
    assert_true(openai_tokenizer_info(&f->service, &out, &e));
    assert_non_null(strstr(out.data, "\"chat_template\""));
    free(f->service.tokenizer_info);
    f->service.tokenizer_info = NULL;
    strbuf_destroy(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenize_and_back),
        cmocka_unit_test(messages_are_tokenized_by_the_template),
        cmocka_unit_test(small_bodies_are_refused_by_name),
        cmocka_unit_test(models_and_version),
        cmocka_unit_test(the_tokenizers_configuration),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
