/* Bodies of /v1/responses as chat's requests, and their answers' events.
 *
 * Linked with --wrap=generation_prompt: there is no generation here, only its prompt. */
#include "rpc/openai/responses/responses.h"
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
    f->service.o.max_body_bytes = 4000;
    f->service.o.responses_bytes = 64 << 20;
    f->service.o.responses_ttl_us = INT64_MAX;
    assert_true(openai_open(&f->service));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    openai_fixture *f = *state;
    openai_close(&f->service);
    openai_fixture_close(f);
    free(f);
    return 0;
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static openai_call parse(void **state, const char *body)
{
    openai_fixture *f = *state;
    openai_call c;
    openai_error e = {0};
    if (!openai_parse_response(&f->service, "alice", body, strlen(body), &c, &e))
        fail_msg("%s: %s", body, e.message);
    return c;
}

static void refuse(void **state, const char *body, const char *param, const char *message)
{
    openai_fixture *f = *state;
    openai_call c;
    openai_error e = {0};
    if (openai_parse_response(&f->service, "alice", body, strlen(body), &c, &e))
        fail_msg("taken: %s", body);
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, param);
    if (!strstr(e.message, message)) fail_msg("%s: %s", body, e.message);
}

#define TEXT(text) "[{\"type\":\"text\",\"text\":\"" text "\"}]"

static void check_messages(const openai_call *c, const char *expected)
{
    char *text = json_dumps(c->requests->messages, JSON_COMPACT);
    assert_string_equal(text, expected);
    free(text);
}

static void items_become_messages(void **state)
{
    openai_call c = parse(state, "{\"input\": \"hi\"}");
    check_messages(&c, "[{\"role\":\"user\",\"content\":" TEXT("hi") "}]");
    openai_call_destroy(&c);
    c = parse(state, "{\"input\": [{\"role\": \"user\", \"content\": \"a\"}, "
                     "{\"role\": \"user\", \"content\": \"b\"}]}");
    check_messages(&c, "[{\"role\":\"user\",\"content\":" TEXT(
                           "a") "},{\"role\":\"user\",\"content\":" TEXT("b") "}]");
    openai_call_destroy(&c);
    c = parse(state, "{\"instructions\": \"i\", \"input\": ["
                     "{\"role\": \"developer\", \"content\": \"d\"},"
                     "{\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": "
                     "\"u\"}]},"
                     "{\"type\": \"reasoning\", \"id\": \"rs\", \"summary\": [], \"content\": ["
                     "{\"type\": \"reasoning_text\", \"text\": \"r\"}]},"
                     "{\"type\": \"message\", \"role\": \"assistant\", \"content\": [{\"type\": "
                     "\"output_text\", \"text\": \"a\"}]},"
                     "{\"type\": \"function_call\", \"call_id\": \"c\", \"name\": \"f\", "
                     "\"arguments\": \"{}\"},"
                     "{\"type\": \"function_call_output\", \"call_id\": \"c\", \"output\": \"o\"}"
                     "]}");
    check_messages(
        &c,
        "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"i\"},"
        "{\"type\":\"text\",\"text\":\"d\"}]},{\"role\":\"user\",\"content\":" TEXT(
            "u") "},{\"role\":\"assistant\",\"content\":" TEXT("a") ",\"reasoning_content\":\"r\","
                                                                    "\"tool_calls\":[{\"id\":\"c\","
                                                                    "\"type\":\"function\","
                                                                    "\"function\":{\"name\":\"f\","
                                                                    "\"arguments\":\"{}\"}}]},{"
                                                                    "\"role\":\"tool\","
                                                                    "\"content\":" TEXT(
                                                                        "o") ",\"tool_call_id\":"
                                                                             "\"c\"}]");
    openai_call_destroy(&c);
}

static void metadata_has_bounds(void **state)
{
    strbuf body = {0};
    strbuf_puts(&body, "{\"input\": \"hi\", \"metadata\": {");
    for (int i = 0; i < 16; i++) strbuf_printf(&body, "\"key %d\": \"é\", ", i);
    size_t whole = body.size -= 2;
    strbuf_puts(&body, "}}");
    openai_call c = parse(state, body.data);
    openai_call_destroy(&c);
    body.size = whole;
    strbuf_puts(&body, ", \"one more\": \"\"}}");
    refuse(state, body.data, "metadata", "more than 16 pairs");
    static const struct {
        int key, value; /* characters */
        const char *param, *message;
    } rows[] = {
        {64, 512, NULL, NULL},
        {65, 1, "metadata", "more than 64 characters"},
        {1, 513, "metadata", "'é' has more than 512 characters"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        strbuf_clear(&body);
        strbuf_puts(&body, "{\"input\": \"hi\", \"metadata\": {\"");
        for (int k = 0; k < rows[i].key; k++) strbuf_puts(&body, "é");
        strbuf_puts(&body, "\": \"");
        for (int k = 0; k < rows[i].value; k++) strbuf_puts(&body, "é");
        strbuf_puts(&body, "\"}}");
        if (rows[i].param) refuse(state, body.data, rows[i].param, rows[i].message);
        else {
            c = parse(state, body.data);
            openai_call_destroy(&c);
        }
    }
    refuse(state, "{\"input\": \"hi\", \"metadata\": {\"a\": 1}}", "metadata",
           "'a' must be a string");
    strbuf_destroy(&body);
}

static void arguments_of_calls_are_objects(void **state)
{
    static const char *const wrong[] = {"{", "[]", "1", "{} {}"};
    char body[256];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        snprintf(body, sizeof body,
                 "{\"input\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"user\", "
                 "\"content\": \"v\"}, {\"type\": \"function_call\", \"call_id\": \"c\", "
                 "\"name\": \"f\", \"arguments\": \"%s\"}]}",
                 wrong[i]);
        refuse(state, body, "input[2].arguments", "must be a JSON object, as a string");
    }
}

static void fields_are_those_of_chat(void **state)
{
    openai_call c = parse(state, "{\"input\": \"hi\", \"max_output_tokens\": 7, \"temperature\": "
                                 "0.5, \"top_k\": 3, \"session\": \"s\", \"store\": false, "
                                 "\"text\": {\"format\": {\"type\": \"json_object\"}}}");
    const engine_request *r = c.requests;
    const response_writer *w = c.writer;
    assert_true(r->max_tokens == 7 && r->temperature == 0.5f && r->top_k == 3 && r->form.given);
    assert_string_equal(r->session, "s");
    assert_false(w->store || w->session);
    openai_call_destroy(&c);
    c = parse(state, "{\"input\": \"hi\", \"cache_salt\": \"salt\", "
                     "\"retention\": {\"method\": \"full\"}}");
    w = c.writer;
    assert_true(w->store);
    assert_string_equal(c.requests->session, w->id); /* kept for the one that goes on from it */
    assert_string_equal(w->session, w->id);
    assert_string_equal(w->salt, "salt");
    openai_call_destroy(&c);
}

static void what_is_wrong_is_named(void **state)
{
    refuse(state, "{}", "input", "must be given");
    refuse(state, "{\"input\": []}", "input", "must not be empty");
    refuse(state, "{\"input\": 1}", "input", "a string or a list");
    refuse(state, "{\"input\": [{\"type\": \"x\"}]}", "input[0]", "the type 'x'");
    refuse(state, "{\"input\": [1]}", "input[0]", "an object with a type");
    refuse(state, "{\"input\": [{\"role\": \"tool\", \"content\": \"\"}]}", "input[0].role",
           "must be user");
    refuse(state, "{\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_file\"}]}]}",
           "input[0].content[0]", "'input_file' is not supported");
    refuse(state, "{\"input\": [{\"type\": \"function_call\", \"call_id\": \"\"}]}",
           "input[0].call_id", "at least one");
    refuse(state, "{\"input\": \"x\", \"tools\": [{\"type\": \"mcp\"}]}", "tools[0]",
           "the type 'mcp'");
    refuse(state, "{\"input\": \"x\", \"max_output_tokens\": \"1\"}", "max_output_tokens",
           "must be");
    refuse(state, "{\"input\": \"x\", \"text\": {\"format\": {\"type\": \"x\"}}}", "text.format",
           "text.format: \"type\" must be");
    /* An unknown field keeps the client's name for it, also where chat has a field of that name. */
    refuse(state, "{\"input\": \"x\", \"max_tokens\": 5}", "max_tokens", "unknown field");
    refuse(state, "{\"input\": \"x\", \"messages\": []}", "messages", "unknown field");
    refuse(state, "{\"input\": \"x\", \"text\": {\"voice\": 1}}", "text.voice", "not supported");
    refuse(state, "{\"input\": \"x\", \"echo\": true}", "echo", "unknown field");
    refuse(state, "{\"input\": \"x\", \"previous_response_id\": \"resp_0\"}",
           "previous_response_id", "no response 'resp_0'");
    refuse(state, "{\"input\": \"x\", \"reasoning\": {\"effort\": \"low\"}}", "reasoning.effort",
           "no such variable");
}

/* A NUL ends no word: what is behind it counts. */
static void words_hold_no_nul(void **state)
{
    static const struct {
        const char *members, *param, *message;
    } rows[] = {
        {"'input': [{'type': 'message\\u0000x', 'role': 'user', 'content': 'x'}]", "input[0]",
         "an object with a type"},
        {"'input': [{'role': 'user\\u0000x', 'content': 'x'}]", "input[0].role", "must be user"},
        {"'input': [{'role': 'user', 'content': [{'type': 'text\\u0000', 'text': 'x'}]}]",
         "input[0].content[0]", "an object with a type"},
        {"'input': [{'type': 'reasoning', 'content': [{'type': 'reasoning_text\\u0000', "
         "'text': 'x'}]}]",
         "input[0].content[0]", "reasoning_text"},
        {"'input': [{'type': 'function_call', 'call_id': 'c', 'name': 'f\\u0000', "
         "'arguments': '{}'}]",
         "input[0].name", "without NUL"},
        {"'input': 'x', 'previous_response_id': 'resp_0\\u0000'", "previous_response_id",
         "without NUL"},
        {"'input': 'x', 'tools': [{'type': 'function\\u0000', 'name': 'f'}]", "tools[0]",
         "an object with a type"},
        {"'input': 'x', 'tool_choice': 'auto\\u0000'", "tool_choice", "must be"},
        {"'input': 'x', 'tool_choice': {'type': 'function\\u0000', 'name': 'f'}", "tool_choice",
         "an object with a type"},
        {"'input': 'x', 'text': {'format': {'type': 'text\\u0000'}}", "text.format", "without NUL"},
        {"'input': 'x', 'text': {'format': {'type': 'json_schema\\u0000', 'schema': {}}}",
         "text.format", "without NUL"},
        {"'input': 'x', 'text': {'verbosity': 'medium\\u0000'}", "text.verbosity", "only"},
        {"'input': 'x', 'reasoning': {'summary': 'auto\\u0000'}", "reasoning.summary", "only"},
        {"'input': 'x', 'reasoning': {'effort': 'none\\u0000'}", "reasoning.effort", "without NUL"},
        {"'input': 'x', 'include': ['reasoning.encrypted_content\\u0000']", "include[0]",
         "not supported"},
        {"'input': 'x', 'truncation': 'disabled\\u0000'", "truncation", "only"},
    };
    char body[512];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(body, sizeof body, "{%s}", rows[i].members);
        for (char *at = body; *at; at++)
            if (*at == '\'') *at = '"';
        refuse(state, body, rows[i].param, rows[i].message);
    }
    /* A text may hold one. */
    openai_call c = parse(state, "{\"input\": \"a\\u0000b\", \"instructions\": \"c\\u0000\"}");
    check_messages(&c, "[{\"role\":\"system\",\"content\":" TEXT(
                           "c\\u0000") "},{\"role\":\"user\",\"content\":" TEXT("a\\u0000b") "}]");
    openai_call_destroy(&c);
}

/* The engine reads the arguments of a call that is too long to be checked before, all of them. */
static void long_arguments_are_whole(void **state)
{
    strbuf body = {0};
    strbuf_puts(&body, "{\"input\": [{\"type\": \"function_call\", \"call_id\": \"c\", "
                       "\"name\": \"f\", \"arguments\": \"{}\\u0000");
    for (int i = 0; i <= 1 << 16; i++) strbuf_putc(&body, ',');
    strbuf_puts(&body, "\"}]}");
    openai_call c = parse(state, body.data);
    const json_t *call =
        json_array_get(json_object_get(json_array_get(c.requests->messages, 0), "tool_calls"), 0);
    const json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments");
    assert_int_equal(json_string_length(arguments), 3 + (1 << 16) + 1);
    openai_call_destroy(&c);
    strbuf_destroy(&body);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void take(openai_answer *a, const char *text, engine_finish finish, strbuf *out)
{
    generation_output o = {.out = {.has_token = true, .stop_token = -1}};
    o.out.text = text;
    o.out.text_bytes = strlen(text);
    o.out.finish = finish;
    o.out.usage = (engine_usage){4, 2, 1};
    openai_answer_take(a, NULL, &o, out);
}

/* Replaces times and the response's digits, which are random. */
static void hide(strbuf *out)
{
    for (char *at = out->data; (at = strstr(at, "\"created_at\":"));) {
        at += strlen("\"created_at\":");
        memset(at, '0', strspn(at, "0123456789"));
    }
    static const char *const prefixes[] = {"resp_", "msg_", "fc_", "rs_"};
    for (size_t i = 0; i < 4; i++)
        for (char *at = out->data; (at = strstr(at, prefixes[i]));) {
            at += strlen(prefixes[i]);
            if (strspn(at, "0123456789abcdef") >= 32) memset(at, '.', 32);
        }
}

/* Answers with two tokens; the text is the body, or all events. */
static void answer(void **state, const char *body, engine_finish finish, strbuf *out)
{
    openai_fixture *f = *state;
    openai_call c = parse(state, body);
    openai_answer *a = openai_answer_create(&f->service, &c, "ID");
    take(a, "A ", ENGINE_FINISH_NONE, out);
    take(a, "\"b\"", finish, out);
    openai_answer_finish(a, out);
    openai_answer_destroy(a);
}

static void a_body_has_what_openai_has(void **state)
{
    strbuf out = {0};
    answer(state, "{\"input\": \"hi\", \"temperature\": 0, \"metadata\": {\"a\": \"b\"}}",
           ENGINE_FINISH_STOP, &out);
    hide(&out);
    assert_string_equal(
        out.data,
        "{\"id\":\"resp_................................\",\"object\":\"response\",\"created_at\":"
        "0000000000,\"status\":\"completed\",\"model\":\"demo\",\"error\":null,"
        "\"incomplete_details\":null,\"output\":[{\"id\":\"msg_................................_0"
        "\",\"status\":\"completed\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[{"
        "\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":\"A \\\"b\\\"\"}]}],"
        "\"instructions\":null,\"max_output_tokens\":null,\"metadata\":{\"a\":\"b\"},"
        "\"parallel_tool_calls\":true,\"previous_response_id\":null,\"prompt_cache_key\":null,"
        "\"safety_identifier\":null,\"tool_choice\":\"auto\",\"tools\":[],\"user\":null,\"text\":{"
        "\"verbosity\":\"medium\",\"format\":{\"type\":\"text\"}},\"reasoning\":{\"summary\":null,"
        "\"effort\":null},\"temperature\":0,\"top_p\":1,\"store\":true,\"background\":false,"
        "\"service_tier\":\"default\",\"top_logprobs\":0,\"truncation\":\"disabled\",\"usage\":{"
        "\"input_tokens\":4,\"input_tokens_details\":{\"cached_tokens\":1},\"output_tokens\":2,"
        "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":6}}");
    strbuf_destroy(&out);
}

/* The names of the events, in their order. */
static void check_events(const strbuf *out, const char *expected)
{
    strbuf names = {0};
    for (const char *at = out->data; (at = strstr(at, "event: ")); at++) {
        at += strlen("event: ");
        strbuf_append(&names, at, strcspn(at, "\n"));
        strbuf_putc(&names, ' ');
    }
    assert_string_equal(names.data, expected);
    strbuf_destroy(&names);
}

static void a_stream_has_openais_events(void **state)
{
    strbuf out = {0};
    answer(state, "{\"input\": \"hi\", \"stream\": true}", ENGINE_FINISH_LENGTH, &out);
    hide(&out);
    check_events(&out, "response.created response.in_progress response.output_item.added "
                       "response.content_part.added response.output_text.delta "
                       "response.output_text.delta response.output_text.done "
                       "response.content_part.done response.output_item.done "
                       "response.incomplete ");
    assert_non_null(strstr(
        out.data, "event: response.output_text.delta\ndata: {\"type\":"
                  "\"response.output_text.delta\",\"sequence_number\":5,\"output_index\":0,"
                  "\"item_id\":\"msg_................................_0\",\"content_index\":0,"
                  "\"logprobs\":[],\"delta\":\"\\\"b\\\"\"}\n\n"));
    assert_non_null(strstr(out.data, "\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"));
    strbuf_clear(&out);
    answer(state, "{\"input\": \"hi\", \"stream\": true}", ENGINE_FINISH_ERROR, &out);
    check_events(&out, "response.created response.in_progress response.output_item.added "
                       "response.content_part.added response.output_text.delta error "
                       "response.failed ");
    strbuf_destroy(&out);
}

/* ---- conversations --------------------------------------------------------------------------- */

/* Answers and returns the response's id. */
static void answered(void **state, const char *body, char id[RESPONSE_ID_BYTES])
{
    strbuf out = {0};
    answer(state, body, ENGINE_FINISH_STOP, &out);
    json_t *doc = json_loads(out.data, 0, NULL);
    snprintf(id, RESPONSE_ID_BYTES, "%s", json_string_value(json_object_get(doc, "id")));
    json_decref(doc);
    strbuf_destroy(&out);
}

static void a_conversation_goes_on(void **state)
{
    openai_fixture *f = *state;
    char first[RESPONSE_ID_BYTES], second[RESPONSE_ID_BYTES], body[512];
    openai_call c;
    openai_error e = {0};
    strbuf out = {0};
    answered(state, "{\"input\": \"one\", \"instructions\": \"i\", \"cache_salt\": \"salt\"}",
             first);
    snprintf(body, sizeof body, "{\"input\": \"two\", \"previous_response_id\": \"%s\"}", first);
    answered(state, body, second);
    snprintf(body, sizeof body,
             "{\"input\": \"three\", \"store\": false, \"previous_response_id\": \"%s\"}", second);
    c = parse(state, body);
    check_messages(&c,
                   "[{\"role\":\"user\",\"content\":" TEXT(
                       "one") "},{\"role\":\"assistant\",\"content\":\"A \\\"b\\\"\"},"
                              "{\"role\":\"user\",\"content\":" TEXT(
                                  "two") "},{\"role\":\"assistant\",\"content\":\"A \\\"b\\\"\"},"
                                         "{\"role\":\"user\",\"content\":" TEXT("three") "}]");
    assert_string_equal(c.requests->cache_salt, "salt");
    assert_int_equal(c.stored_bytes, strlen("[{\"role\":\"user\",\"content\":" TEXT(
                                         "one") "},"
                                                "{\"role\":\"assistant\",\"content\":"
                                                "\"A \\\"b\\\"\"}]") *
                                         2);
    openai_call_destroy(&c);
    assert_false(openai_parse_response(&f->service, "bob", body, strlen(body), &c, &e));
    assert_string_equal(e.param, "previous_response_id");
    assert_false(openai_response(&f->service, "bob", second, &out, &e));
    assert_int_equal(e.status, 404);
    assert_true(openai_response(&f->service, "alice", second, &out, &e));
    assert_false(openai_delete_response(&f->service, "bob", first, &out, &e));
    assert_true(openai_delete_response(&f->service, "alice", first, &out, &e));
    refuse(state, body, "previous_response_id", "no response");
    strbuf_destroy(&out);
}

/* A conversation takes no more memory than a body that has all of it. */
static void a_conversation_is_bounded(void **state)
{
    char id[RESPONSE_ID_BYTES] = "", body[2048], text[1024] = "";
    memset(text, 'x', sizeof text - 1);
    for (int i = 0; i < 4; i++) {
        snprintf(body, sizeof body, "{\"input\": \"%s\"%s%s%s}", text,
                 *id ? ", \"previous_response_id\": \"" : "", id, *id ? "\"" : "");
        answered(state, body, id);
    }
    snprintf(body, sizeof body, "{\"input\": \"%s\", \"previous_response_id\": \"%s\"}", text, id);
    refuse(state, body, "previous_response_id", "longer than a body may be");
}

/* A chain of long turns has no more items than one body: each takes time and memory to read. */
static void a_conversation_has_a_bounded_number_of_items(void **state)
{
    enum { ITEMS = 34000 };
    openai_fixture *f = *state;
    char id[RESPONSE_ID_BYTES] = "", last[128];
    strbuf body = {0};
    f->service.o.max_body_bytes = 64 << 20;
    for (int i = 0; i < 2; i++) {
        strbuf_clear(&body);
        strbuf_puts(&body, "{\"input\": [");
        for (int item = 0; item < ITEMS; item++)
            strbuf_printf(&body, "%s{\"role\":\"user\",\"content\":\"x\"}", item ? "," : "");
        strbuf_printf(&body, "]%s%s%s}", *id ? ", \"previous_response_id\": \"" : "", id,
                      *id ? "\"" : "");
        answered(state, body.data, id);
    }
    snprintf(last, sizeof last, "{\"input\": \"x\", \"previous_response_id\": \"%s\"}", id);
    refuse(state, last, "previous_response_id", "more items than a body may have");
    strbuf_destroy(&body);
}

static void reasoning_belongs_to_its_message(void **state)
{
    openai_call c = parse(state, "{\"input\": [{\"type\":\"reasoning\",\"content\":["
                                 "{\"type\":\"reasoning_text\",\"text\":\"r\"},"
                                 "{\"type\":\"reasoning_text\",\"text\":\"s\"}]},"
                                 "{\"type\":\"reasoning\",\"content\":["
                                 "{\"type\":\"reasoning_text\",\"text\":\"t\"}]},"
                                 "{\"role\":\"user\",\"content\":\"u\"},"
                                 "{\"type\":\"reasoning\",\"content\":["
                                 "{\"type\":\"reasoning_text\",\"text\":\"v\"}]}]}");
    check_messages(
        &c, "[{\"role\":\"assistant\",\"content\":[],\"reasoning_content\":\"rst\"},"
            "{\"role\":\"user\",\"content\":" TEXT("u") "},{\"role\":\"assistant\",\"content\":[],"
                                                        "\"reasoning_content\":\"v\"}]");
    openai_call_destroy(&c);
}

/* As many items as a body may have take no longer each than a few. */
static void many_items_are_joined(void **state)
{
    enum { PARTS = 20000, SYSTEMS = 20000, TEXT_BYTES = 64 };
    openai_fixture *f = *state;
    strbuf body = {0};
    f->service.o.max_body_bytes = 64 << 20;
    strbuf_puts(&body, "{\"input\": [{\"type\":\"reasoning\",\"content\":[");
    for (int i = 0; i < PARTS; i++)
        strbuf_printf(&body, "%s{\"type\":\"reasoning_text\",\"text\":\"%0*d\"}", i ? "," : "",
                      TEXT_BYTES, i);
    strbuf_puts(&body, "]},{\"role\":\"assistant\",\"content\":\"a\"}]}");
    openai_call c = parse(state, body.data);
    const json_t *message = json_array_get(c.requests->messages, 0);
    const json_t *reasoning = json_object_get(message, "reasoning_content");
    assert_int_equal(json_array_size(c.requests->messages), 1);
    assert_int_equal(json_string_length(reasoning), PARTS * TEXT_BYTES);
    assert_string_equal(json_string_value(reasoning) + PARTS * TEXT_BYTES - 6, "019999");
    openai_call_destroy(&c);
    strbuf_clear(&body);
    strbuf_puts(&body, "{\"input\": [");
    for (int i = 0; i < SYSTEMS; i++)
        strbuf_puts(&body, "{\"role\":\"system\",\"content\":\"s\"},");
    strbuf_puts(&body, "{\"role\":\"user\",\"content\":\"u\"}]}");
    c = parse(state, body.data);
    assert_int_equal(json_array_size(c.requests->messages), 2);
    assert_int_equal(
        json_array_size(json_object_get(json_array_get(c.requests->messages, 0), "content")),
        SYSTEMS);
    openai_call_destroy(&c);
    strbuf_destroy(&body);
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
    static const char *const marks[] = {"\"delta\":\"a\"", "\"name\":\"f\"", "\"delta\":\"b\"",
                                        "\"name\":\"g\"", "\"delta\":\"c\""};
    const talk_options o = {.tools = tool_parser_find("hermes")};
    openai_call c = parse(state, "{\"input\": \"hi\"}");
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
        cmocka_unit_test(items_become_messages),
        cmocka_unit_test(fields_are_those_of_chat),
        cmocka_unit_test(metadata_has_bounds),
        cmocka_unit_test(arguments_of_calls_are_objects),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(words_hold_no_nul),
        cmocka_unit_test(long_arguments_are_whole),
        cmocka_unit_test(a_body_has_what_openai_has),
        cmocka_unit_test(a_stream_has_openais_events),
        cmocka_unit_test(a_conversation_goes_on),
        cmocka_unit_test(a_conversation_is_bounded),
        cmocka_unit_test(a_conversation_has_a_bounded_number_of_items),
        cmocka_unit_test(reasoning_belongs_to_its_message),
        cmocka_unit_test(many_items_are_joined),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
