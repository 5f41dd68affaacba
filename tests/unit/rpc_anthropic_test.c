/* Bodies of /v1/messages as chat's requests, and their answers' events and errors.
 *
 * Linked with --wrap=generation_prompt: there is no generation here, only its prompt. */
#include "rpc/anthropic/anthropic.h"
#include "tests/unit/rpc_openai_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

engine_prompt __wrap_generation_prompt(const generation *g, uint32_t request);
engine_prompt __wrap_generation_prompt(const generation *g, uint32_t request)
{
    static const uint32_t ids[] = {83, 257, 286, 308};
    (void)g;
    (void)request;
    return (engine_prompt){.tokens = ids, .n_tokens = 4};
}

static int setup(void **state)
{
    openai_fixture *f = calloc(1, sizeof *f);
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

/* ---- bodies ---------------------------------------------------------------------------------- */

static openai_call parse(void **state, const char *body)
{
    openai_fixture *f = *state;
    openai_call c;
    openai_error e = {0};
    if (!anthropic_parse(&f->service, body, strlen(body), &c, &e))
        fail_msg("%s: %s", body, e.message);
    return c;
}

static void refuse(void **state, const char *body, const char *param, const char *message)
{
    openai_fixture *f = *state;
    openai_call c;
    openai_error e = {0};
    if (anthropic_parse(&f->service, body, strlen(body), &c, &e)) fail_msg("taken: %s", body);
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, param);
    if (!strstr(e.message, message)) fail_msg("%s: %s", body, e.message);
}

#define TEXT(text)     "[{\"type\":\"text\",\"text\":\"" text "\"}]"
#define USER           "{\"max_tokens\": 4, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}], "
#define MESSAGES(list) "{\"max_tokens\": 4, \"messages\": [" list "]}"

static void check_messages(const openai_call *c, const char *expected)
{
    char *text = json_dumps(c->requests->messages, JSON_COMPACT);
    assert_string_equal(text, expected);
    free(text);
}

static void blocks_become_messages(void **state)
{
    openai_call c = parse(
        state,
        "{\"system\": [{\"type\": \"text\", \"text\": \"s\"}], \"max_tokens\": 9, \"messages\": ["
        "{\"role\": \"user\", \"content\": \"u\"},"
        "{\"role\": \"assistant\", \"content\": [{\"type\": \"thinking\", \"thinking\": \"t\", "
        "\"signature\": \"\"}, {\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"tool_use\", "
        "\"id\": \"1\", \"name\": \"f\", \"input\": {\"k\": 1}}]},"
        "{\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", \"tool_use_id\": \"1\", "
        "\"content\": \"r\"}, {\"type\": \"text\", \"text\": \"v\"}, {\"type\": \"text\", "
        "\"text\": \"w\"}]}]}");
    check_messages(
        &c,
        "[{\"role\":\"system\",\"content\":" TEXT("s") "},{\"role\":\"user\",\"content\":" TEXT(
            "u") "},{\"role\":\"assistant\",\"content\":" TEXT("a") ",\"reasoning_content\":\"t\","
                                                                    "\"tool_calls\":[{\"id\":\"1\","
                                                                    "\"type\":"
                                                                    "\"function\",\"function\":{"
                                                                    "\"name\":\"f\",\"arguments\":"
                                                                    "\"{\\\"k\\\":1}\""
                                                                    "}}]},{\"role\":\"tool\","
                                                                    "\"content\":" TEXT(
                                                                        "r") ",\"tool_call_id\":"
                                                                             "\"1\"},{\"role\":"
                                                                             "\"user\",\"content\":"
                                                                             "[{\"type\":"
                                                                             "\"text\",\"text\":"
                                                                             "\"v\"},{\"type\":"
                                                                             "\"text\",\"text\":"
                                                                             "\"w\"}]}]");
    assert_int_equal(c.requests->max_tokens, 9);
    assert_false(c.requests->continue_final_message);
    openai_call_destroy(&c);
}

static void fields_are_those_of_chat(void **state)
{
    openai_call c = parse(state, USER "\"stop_sequences\": [\"a\", \"b\"], \"top_k\": 3, "
                                      "\"session\": \"s\", \"output_config\": {\"format\": "
                                      "{\"type\": \"json_schema\", \"schema\": {}}}}");
    assert_true(c.requests->n_stop == 2 && c.requests->top_k == 3 && c.requests->form.given);
    assert_string_equal(c.requests->session, "s");
    openai_call_destroy(&c);
    c = parse(state, MESSAGES("{\"role\": \"user\", \"content\": \"x\"}, "
                              "{\"role\": \"assistant\", \"content\": \"so\"}"));
    assert_true(c.requests->continue_final_message && !c.requests->add_generation_prompt);
    openai_call_destroy(&c);
}

static void what_is_wrong_is_named(void **state)
{
    refuse(state, "{}", "max_tokens", "must be given");
    refuse(state, "{\"max_tokens\": 1}", "messages", "must be a list");
    refuse(state, MESSAGES("{\"role\": \"system\"}"), "messages[0].role", "user or assistant");
    refuse(state, MESSAGES("{\"role\": \"user\"}"), "messages[0].content", "a string or a list");
    refuse(state, MESSAGES("{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}"),
           "messages[0].content[0]", "the type 'image'");
    refuse(state,
           MESSAGES("{\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", "
                    "\"tool_use_id\": \"1\", \"content\": [{\"type\": \"image\"}]}]}"),
           "messages[0].content[0].content[0]", "the type 'image'");
    refuse(state,
           MESSAGES("{\"role\": \"user\", \"content\": [{\"type\": \"tool_use\", \"id\": \"1\", "
                    "\"name\": \"f\", \"input\": {}}]}"),
           "messages[0].content[0]", "in a message of the user");
    refuse(state, USER "\"system\": 1}", "system", "a string or a list");
    refuse(state, USER "\"tools\": [{\"type\": \"bash_20250124\", \"name\": \"bash\"}]}",
           "tools[0]", "'bash_20250124'");
    refuse(state, USER "\"tools\": [{\"name\": \"f\"}]}", "tools[0].input_schema", "an object");
    refuse(state, USER "\"tools\": [{\"type\": null, \"name\": \"f\"}]}", "tools[0].input_schema",
           "an object");
    refuse(state, USER "\"tool_choice\": {\"type\": \"x\"}}", "tool_choice.type", "auto, any");
    refuse(state, USER "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 1024}}",
           "thinking", "--reasoning-parser");
    refuse(state, USER "\"container\": \"c\"}", "container", "not supported");
    refuse(state, USER "\"n\": 2}", "n", "unknown field");
    refuse(state, USER "\"stop_sequences\": [\"\"]}", "stop_sequences", "");
}

/* A NUL ends no word: what is behind it counts. */
static void words_hold_no_nul(void **state)
{
    refuse(state, MESSAGES("{\"role\": \"user\\u0000x\", \"content\": \"x\"}"), "messages[0].role",
           "user or assistant");
    refuse(state,
           MESSAGES("{\"role\": \"user\", \"content\": [{\"type\": \"text\\u0000\", \"text\": "
                    "\"x\"}]}"),
           "messages[0].content[0]", "an object with a type");
    refuse(state,
           MESSAGES("{\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", "
                    "\"tool_use_id\": \"1\\u0000\"}]}"),
           "messages[0].content[0].tool_use_id", "without NUL");
    refuse(state, USER "\"system\": [{\"type\": \"text\\u0000\", \"text\": \"x\"}]}", "system[0]",
           "an object with a type");
    refuse(state,
           USER "\"tools\": [{\"type\": \"custom\\u0000x\", \"name\": \"f\", \"input_schema\": "
                "{}}]}",
           "tools[0]", "not supported");
    refuse(state, USER "\"tool_choice\": {\"type\": \"auto\\u0000\"}}", "tool_choice.type",
           "auto, any");
    refuse(state, USER "\"thinking\": {\"type\": \"disabled\\u0000\"}}", "thinking.type",
           "must be enabled");
    refuse(state,
           USER "\"output_config\": {\"format\": {\"type\": \"json_schema\\u0000\", \"schema\": "
                "{}}}}",
           "output_config.format", "must be");
    refuse(state, USER "\"service_tier\": \"auto\\u0000\"}", "service_tier", "only");
    refuse(state, USER "\"stop_sequences\": [\"a\\u0000b\"]}", "stop_sequences", "no NUL");
}

static void tokens_are_counted(void **state)
{
    openai_fixture *f = *state;
    static const char body[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}";
    static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}";
    strbuf count = {0}, tokens = {0};
    openai_error e;
    unsigned n = 0;
    assert_true(anthropic_count_tokens(&f->service, body, strlen(body), &count, &e));
    assert_true(openai_tokenize(&f->service, chat, strlen(chat), &tokens, &e));
    assert_int_equal(sscanf(tokens.data, "{\"count\":%u", &n), 1);
    strbuf_clear(&tokens);
    strbuf_printf(&tokens, "{\"input_tokens\":%u}", n);
    assert_string_equal(count.data, tokens.data);
    strbuf_destroy(&count);
    strbuf_destroy(&tokens);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void take(openai_answer *a, const char *text, engine_finish finish, strbuf *out)
{
    generation_output o = {.out = {.has_token = true, .stop_token = -1}};
    o.out.text = text;
    o.out.text_bytes = strlen(text);
    o.out.finish = finish;
    o.out.usage = (engine_usage){4, 2, 1};
    if (finish == ENGINE_FINISH_STOP) o.out.stop_string = "end";
    openai_answer_take(a, NULL, &o, out);
}

static void answer(void **state, const char *body, engine_finish finish, strbuf *out)
{
    openai_fixture *f = *state;
    openai_call c = parse(state, body);
    openai_answer *a = openai_answer_create(&f->service, &c, "ID");
    strbuf_clear(out);
    take(a, "A ", ENGINE_FINISH_NONE, out);
    take(a, "\"b\"", finish, out);
    openai_answer_finish(a, out);
    openai_answer_destroy(a);
}

#define EVENT(type, members) "event: " type "\ndata: {\"type\":\"" type "\"" members "}\n\n"
#define HEAD(content)                                                                              \
    "{\"id\":\"msg_ID\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"demo\","           \
    "\"content\":[" content "],"
#define USAGE(in, cached, out)                                                                     \
    ",\"usage\":{\"input_tokens\":" #in                                                            \
    ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":" #cached                      \
    ",\"output_tokens\":" #out "}"
#define START                                                                                      \
    EVENT(                                                                                         \
        "message_start",                                                                           \
        ",\"message\":" HEAD("") "\"stop_reason\":null,\"stop_sequence\":null" USAGE(4, 0, 0) "}")
#define BEGUN                                                                                      \
    START EVENT("content_block_start",                                                             \
                ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}")                \
        EVENT("content_block_delta",                                                               \
              ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"A \"}")

static void answers_are_anthropics(void **state)
{
    strbuf out = {0};
    answer(state, USER "\"stream\": false}", ENGINE_FINISH_STOP, &out);
    assert_string_equal(
        out.data,
        HEAD("{\"type\":\"text\",\"text\":\"A \\\"b\\\"\"}") "\"stop_reason\":\"stop_sequence\","
                                                             "\"stop_sequence\":\"end\"" USAGE(
                                                                 3, 1, 2) "}");
    answer(state, USER "\"stream\": true}", ENGINE_FINISH_LENGTH, &out);
    assert_string_equal(
        out.data,
        BEGUN EVENT("content_block_delta",
                    ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"\\\"b\\\"\"}")
            EVENT("content_block_stop", ",\"index\":0") EVENT(
                "message_delta",
                ",\"delta\":{\"stop_reason\":\"max_tokens\",\"stop_sequence\":null}" USAGE(3, 1, 2))
                EVENT("message_stop", ""));
    answer(state, USER "\"stream\": true}", ENGINE_FINISH_ERROR, &out);
    static const char failed[] = BEGUN "event: error\ndata: {\"type\":\"error\",\"error\":{";
    assert_memory_equal(out.data, failed, sizeof failed - 1);
    strbuf_destroy(&out);
}

static void errors_are_anthropics(void **state)
{
    (void)state;
    strbuf out = {0};
    anthropic_put_error(&(openai_error){.status = 503, .message = "full"}, "ID", &out);
    assert_string_equal(out.data, "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
                                  "\"message\":\"full\"},\"request_id\":\"ID\"}");
    strbuf_clear(&out);
    anthropic_put_error(&(openai_error){.status = 500, .message = "\""}, "", &out);
    assert_string_equal(out.data, "{\"type\":\"error\",\"error\":{\"type\":\"api_error\","
                                  "\"message\":\"\\\"\"}}");
    strbuf_destroy(&out);
}

/* The marks follow each other in the text. */
static void check_order(const strbuf *out, const char *const *marks, size_t n)
{
    const char *at = out->data;
    for (size_t i = 0; i < n; i++) {
        const char *hit = strstr(at, marks[i]);
        if (!hit) fail_msg("%s is not behind the others: %s", marks[i], out->data);
        at = hit + 1;
    }
}

/* All in one piece, as steps that verify several tokens give it. */
static void content_keeps_its_place_between_calls(void **state)
{
    static const char text[] = "a<tool_call>{\"name\": \"f\"}</tool_call>b"
                               "<tool_call>{\"name\": \"g\"}</tool_call>c";
    static const char *const marks[] = {"\"text\":\"a\"", "\"name\":\"f\"", "\"text\":\"b\"",
                                        "\"name\":\"g\"", "\"text\":\"c\""};
    const talk_options o = {.tools = tool_parser_find("hermes")};
    openai_call c = parse(state, MESSAGES("{\"role\": \"user\", \"content\": \"x\"}"));
    strbuf out = {0};
    talk t;
    talk_init(&t, &o);
    talk_take(&t, text, sizeof text - 1);
    talk_end(&t);
    c.form->take(c.writer, &t, &out);
    check_order(&out, marks, sizeof marks / sizeof marks[0]);
    strbuf_clear(&out);
    talk_put_message(&t, &out);
    assert_non_null(strstr(out.data, "\"content\":\"abc\""));
    talk_destroy(&t);
    openai_call_destroy(&c);
    strbuf_destroy(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_keeps_its_place_between_calls),
        cmocka_unit_test(blocks_become_messages),
        cmocka_unit_test(fields_are_those_of_chat),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(words_hold_no_nul),
        cmocka_unit_test(tokens_are_counted),
        cmocka_unit_test(answers_are_anthropics),
        cmocka_unit_test(errors_are_anthropics),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
