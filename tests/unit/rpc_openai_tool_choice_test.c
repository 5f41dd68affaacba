/* tool_choice: the texts that an answer may be where calls are forced, and what is refused. */
#include "rpc/openai/reasoning.h"
#include "rpc/openai/tools/tools.h"
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

#define MESSAGES       "'messages': [{'role': 'user', 'content': 'x'}]"
#define FUNCTION(rest) "{'type': 'function', 'function': {" rest "}}"
#define CITY                                                                                       \
    "'parameters': {'type': 'object', 'required': ['city'], 'additionalProperties': false, "       \
    "'properties': {'city': {'$ref': '#/$defs/c'}}, '$defs': {'c': {'enum': ['Rome', 'Bonn']}}}"
#define WEATHER FUNCTION("'name': 'weather', " CITY)
#define TIME    FUNCTION("'name': 'time'")

/* Parses a chat body with these tools, in which ' stands for ". */
static openai_call parse_choice(void **state, const char *tools, const char *rest)
{
    strbuf body = {0};
    strbuf_printf(&body, "{" MESSAGES ", 'tools': [%s], %s}", tools, rest);
    for (size_t i = 0; i < body.size; i++)
        if (body.data[i] == '\'') body.data[i] = '"';
    openai_call c;
    openai_error e = {0};
    service *s = &((openai_fixture *)*state)->service;
    if (!openai_parse_chat(s, body.data, body.size, &c, &e)) fail_msg("%s", e.message);
    strbuf_destroy(&body);
    return c;
}

/* Texts that the answer may be, NULL, texts that it may not be, NULL. */
static void check_answers(openai_call *c, const char *const *texts)
{
    const engine_form *f = &c->requests[0].form;
    grammar *g = NULL;
    error err = {{0}};
    assert_true(f->given);
    assert_string_equal(f->field, "tool_choice");
    const grammar_source source = {f->kind, f->text, f->n, f->compact};
    if (!status_ok(grammar_create(&source, NULL, &g, &err))) fail_msg("%s", err.text);
    for (bool allowed = true; *texts || allowed; texts++) {
        if (!*texts) {
            allowed = false;
            continue;
        }
        grammar_matcher *m = grammar_matcher_create(g);
        bool ok = status_ok(grammar_accept_bytes(m, *texts, strlen(*texts))) && grammar_may_end(m);
        if (ok != allowed) fail_msg("%s: %s", allowed ? "refused" : "allowed", *texts);
        grammar_matcher_destroy(m);
    }
    grammar_release(g);
    openai_call_destroy(c);
}
#define ANSWERS(c, ...) check_answers(&(c), (const char *const[]){__VA_ARGS__})

#define JSON_ROME  "{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}"
#define JSON_OSLO  "{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}"
#define JSON_TIME  "{\"name\": \"time\", \"arguments\": {}}"
#define LLAMA_ROME "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}"
#define LLAMA_TIME "{\"name\": \"time\", \"parameters\": {}}"
#define TAG(call)  "<tool_call>\n" call "\n</tool_call>"

static void forced_answers_are_calls(void **state)
{
    service *s = &((openai_fixture *)*state)->service;
    static const char tools[] = WEATHER "," TIME, required[] = "'tool_choice': 'required'",
                      one[] = "'tool_choice': 'required', 'parallel_tool_calls': false",
                      named[] = "'tool_choice': {'type': 'function', 'function': {'name': 'time'}}";
    const chat_template *demo = s->o.model.chat;
    s->o.model.chat = NULL;
    s->tool_parser = tool_parser_find("json");
    openai_call c = parse_choice(state, tools, required);
    ANSWERS(c, "[" JSON_ROME "]", "[" JSON_TIME ", " JSON_ROME ", " JSON_TIME "]", NULL, "", "[]",
            "Hello", JSON_TIME, "[" JSON_OSLO "]", "[" JSON_TIME, NULL);
    c = parse_choice(state, tools, one);
    ANSWERS(c, JSON_ROME, JSON_TIME, NULL, JSON_OSLO, "[" JSON_TIME "]", JSON_TIME JSON_TIME, NULL);
    c = parse_choice(state, tools, named);
    ANSWERS(c, JSON_TIME, NULL, JSON_ROME, "[" JSON_TIME "]", NULL);
    s->tool_parser = tool_parser_find("hermes");
    c = parse_choice(state, tools, required);
    ANSWERS(c, TAG(JSON_ROME), TAG(JSON_TIME) "\n" TAG(JSON_ROME), NULL, JSON_ROME, TAG(JSON_OSLO),
            TAG(JSON_TIME) "\n", NULL);
    s->tool_parser = tool_parser_find("llama3_json");
    c = parse_choice(state, tools, required);
    ANSWERS(c, LLAMA_ROME, LLAMA_TIME "; " LLAMA_ROME, NULL, JSON_ROME, LLAMA_TIME LLAMA_TIME,
            NULL);
    /* A parser of reasoning would take a forced call for thoughts where the prompt begins them. */
    s->reasoning_parser = reasoning_parser_find("qwen3");
    c = parse_choice(state, tools, one);
    assert_null(c.reasoning);
    openai_call_destroy(&c);
    c = parse_choice(state, tools, "'tool_choice': 'auto'");
    assert_ptr_equal(c.reasoning, s->reasoning_parser);
    assert_false(c.requests[0].form.given);
    openai_call_destroy(&c);
    s->reasoning_parser = NULL;
    s->tool_parser = NULL;
    s->o.model.chat = demo;
}

static void calls_that_cannot_be_forced_are_refused(void **state)
{
    service *s = &((openai_fixture *)*state)->service;
    static const struct {
        const char *parser, *body, *param, *text;
    } refused[] = {
        {"mistral", TIME "], 'tool_choice': 'required'", "tool_choice", "mistral"},
        {"json", TIME "], 'tool_choice': {'type': 'function', 'function': {'name': 'f'}}",
         "tool_choice", "no tool is named 'f'"},
        {"json", "{}], 'tool_choice': 'required'", "tools[0].function.name", "1 to 256 bytes"},
        {"json", FUNCTION("'name': 'a\\u0000b'") "], 'tool_choice': 'required'",
         "tools[0].function.name", "1 to 256 bytes"},
        {"json",
         TIME "], 'tool_choice': {'type': 'function', 'function': {'name': 'time\\u0000x'}}",
         "tool_choice", "must be"},
        {"json", TIME "], 'tool_choice': {'type': 'function\\u0000', 'function': {'name': 'time'}}",
         "tool_choice", "must be"},
        {"json", TIME "], 'tool_choice': 'required\\u0000'", "tool_choice", "must be"},
        {"json",
         FUNCTION("'name': 'f', 'parameters': {'type': 'object\\u0000x'}") "], "
                                                                           "'tool_choice': "
                                                                           "'required'",
         "tools[0].function.parameters", "of type \"object\""},
        {"json",
         TIME
         "," FUNCTION("'name': 'f', 'parameters': {'type': 'string'}") "], "
                                                                       "'tool_choice': 'required'",
         "tools[1].function.parameters", "of type \"object\""},
        {"json", TIME "], 'tool_choice': 'required', 'response_format': {'type': 'json_object'}",
         "tool_choice", "response_format gives a form already"},
    };
    const chat_template *demo = s->o.model.chat;
    s->o.model.chat = NULL;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char body[512];
        snprintf(body, sizeof body, "{" MESSAGES ", 'tools': [%s}", refused[i].body);
        for (char *at = body; *at; at++)
            if (*at == '\'') *at = '"';
        s->tool_parser = tool_parser_find(refused[i].parser);
        openai_call c;
        openai_error e = {0};
        assert_false(openai_parse_chat(s, body, strlen(body), &c, &e));
        assert_string_equal(e.param, refused[i].param);
        if (!strstr(e.message, refused[i].text)) fail_msg("%s: %s", body, e.message);
    }
    s->tool_parser = NULL;
    s->o.model.chat = demo;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forced_answers_are_calls),
        cmocka_unit_test(calls_that_cannot_be_forced_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
