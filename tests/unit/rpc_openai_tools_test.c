/* Tool calls in texts of all formats, cut into pieces in many ways: the result is always the same.
 */
#include "rpc/openai/tools/python.h"
#include "rpc/openai/tools/tools.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The calls of a sink: content as it is, «name» for a call, and its arguments behind it. */
static void on_content(void *ctx, const char *text, size_t n) { strbuf_append(ctx, text, n); }

static void on_call(void *ctx, const char *name, size_t n)
{
    strbuf_puts(ctx, "«");
    strbuf_append(ctx, name, n);
    strbuf_puts(ctx, "»");
}

static void on_arguments(void *ctx, const char *text, size_t n) { strbuf_append(ctx, text, n); }

typedef struct text_case {
    const char *parser, *text, *expected;
} text_case;

static void compare(const text_case *c, const strbuf *told, const char *how)
{
    const char *got = told->data ? told->data : "";
    if (strcmp(got, c->expected) != 0)
        fail_msg("%s, %s: %s\n  got:      %s\n  expected: %s", c->parser, how, c->text, got,
                 c->expected);
}

/* Takes the text in pieces of `piece` bytes, after a first one of `first`. */
static void expect(const text_case *c, size_t first, size_t piece)
{
    strbuf told = {0};
    const talk_sink sink = {&told, on_content, on_call, on_arguments};
    const tool_parser *parser = tool_parser_find(c->parser);
    char how[64];
    tool_reader r;
    size_t n = strlen(c->text), at = 0;
    assert_non_null(parser);
    tool_reader_init(&r, parser, &sink);
    while (at < n) {
        size_t size = at == 0 && first ? first : piece;
        if (size > n - at) size = n - at;
        /* A copy, so that ASan sees a byte read too far. */
        char *copy = malloc(size);
        memcpy(copy, c->text + at, size);
        tool_reader_take(&r, copy, size);
        free(copy);
        at += size;
    }
    tool_reader_end(&r);
    assert_false(r.failed);
    snprintf(how, sizeof how, "cut at %zu, then every %zu", first, piece);
    compare(c, &told, how);
    tool_reader_destroy(&r);
    strbuf_destroy(&told);
}

#define HERMES(object) "<tool_call>\n" object "\n</tool_call>"
#define CALLS          "<｜tool▁calls▁begin｜>"
#define CALL           "<｜tool▁call▁begin｜>"
#define SEP            "<｜tool▁sep｜>"
#define CALL_END       "<｜tool▁call▁end｜>"
#define CALLS_END      "<｜tool▁calls▁end｜>"

static const text_case cases[] = {
    {"hermes", "Just text.", "Just text."},
    {"hermes", " A < B, <tool>, 2 <tool_", " A < B, <tool>, 2 <tool_"},
    {"hermes", HERMES("{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\"}]}}"),
     "«f»{\"a\": [1, {\"b\": \"}\"}]}"},
    {"hermes",
     "Let me look.\n" HERMES("{\"name\":\"f\",\"arguments\":{}}") "\n" HERMES(
         "{\"arguments\": {\"x\": 1}, \"name\": \"g\"}") "\n",
     "Let me look.«f»{}«g»{\"x\": 1}"},
    {"hermes", HERMES("{\"name\": \"f\"}"), "«f»{}"},
    {"hermes", HERMES("{\"name\": \"f\", \"arguments\": null}"), "«f»{}"},
    {"hermes", HERMES("{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"é\\\"}\"}"),
     "«f»{\"a\": \"é\"}"},
    {"hermes", HERMES("{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}") " done",
     "«f»{\"a\": \"</tool_call>\"} done"},
    {"hermes", HERMES("not JSON") " x", HERMES("not JSON") " x"},
    {"hermes", HERMES("{\"name\": 5}"), HERMES("{\"name\": 5}")},
    {"hermes", HERMES("{\"na\\u006de\": \"f\"}"),
     "<tool_call>\n{\"na\\u006de\": \"f\"}\n</tool_call>"},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"long", "«f»{\"a\": \"long"},
    {"hermes", "<tool_call>{\"name\": \"f", "<tool_call>{\"name\": \"f"},
    {"hermes", "a <tool_call>\n", "a <tool_call>\n"},
    {"hermes", HERMES("{\"name\": \"f\", \"arguments\": {\"a\": 1}, oops}") "!",
     "«f»{\"a\": 1}, oops}\n</tool_call>!"},
    {"hermes", HERMES("{\"name\": \"f\", \"arguments\": {}, ") "!", "«f»{}, \n</tool_call>!"},
    {"hermes", "<tool_call>{\"name\": \"f\"} and more</tool_call> z ",
     "«f»{} and more</tool_call> z "},
    {"hermes", "<tool_call>{\"name\": \"f\"}<tool_call>{\"name\": \"g\"}</tool", "«f»{}«g»{}"},
    {"hermes", "<tool_call>{<tool_call>{\"name\": \"g\"}", "<tool_call>{«g»{}"},
    {"hermes", HERMES("{\"name\": \"f\"}") "\n<tool_call>x", "«f»{}\n<tool_call>x"},
    {"hermes", HERMES("{\"name\": \"f\", \"arguments\": \"\\ud800\"}"),
     HERMES("{\"name\": \"f\", \"arguments\": \"\\ud800\"}")},
    {"hermes", HERMES("{\"name\": \"f\", \"arguments\": {}, \"parameters\": {\"a\": 1}}"), "«f»{}"},
    {"llama3_json", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "«f»{\"a\": 1}"},
    {"llama3_json",
     "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; "
     "{\"name\": \"g\", \"parameters\": {\"q\": \"a\\\"b\"}}",
     "«f»{}«g»{\"q\": \"a\\\"b\"}"},
    {"llama3_json", "  It is {\"name\": \"f\"}", "  It is {\"name\": \"f\"}"},
    {"llama3_json", "{\"city\": {\"name\": \"f\"}}", "{\"city\": {\"name\": \"f\"}}"},
    {"llama3_json", "[{\"name\": \"f\"}]", "[{\"name\": \"f\"}]"},
    {"llama3_json", "<|python", "<|python"},
    {"llama3_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)"},
    {"llama3_json", "<|python_tag|>{\"a\": 1}", "<|python_tag|>{\"a\": 1}"},
    {"llama3_json", "{\"name\": \"f\"}; then {", "«f»{}; then {"},
    {"llama3_json", "{\"name\": \"f\"};\n", "«f»{}"},
    {"llama3_json", "{\"name\": \"f\"}, {\"a\": 1}", "«f»{}, {\"a\": 1}"},
    {"json", "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\"}]\n",
     "«f»{\"a\": 1}«g»{}"},
    {"json", "{\"id\": 7, \"name\": \"f\", \"arguments\": [true]}", "«f»[true]"},
    {"json", "[1, 2]", "[1, 2]"},
    {"json", "[{\"a\": 1}]", "[{\"a\": 1}]"},
    {"json", "[]", "[]"},
    {"json", "{}", "{}"},
    {"json", "[ 1]", "[ 1]"},
    {"json", "[{\"name\": \"f\"}] so it is]", "«f»{} so it is]"},
    {"json", "[{\"name\": \"f\"}, 7]", "«f»{}, 7]"},
    {"json", "[{\"name\": \"f\", \"arguments\": {},]} so", "«f»{},]} so"},
    {"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {},]} so", "«f»{},]} so"},
    {"deepseek", CALLS CALL "f" SEP "{}" CALL CALLS_END " so", "«f»{}" CALL CALLS_END " so"},
    {"json", " \n ", " \n "},
    {"json", "{\"name\": \"f\", \"arguments\": 12.5}", "«f»12.5"},
    {"mistral", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\"}]",
     "«f»{\"a\": 1}«g»{}"},
    {"mistral", "Yes.[TOOL_CALLS]f[ARGS]{\"a\": {}}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}",
     "Yes.«f»{\"a\": {}}«g»{}"},
    {"mistral", "[TOOL_CALLS]f{\"a\": 1}", "«f»{\"a\": 1}"},
    {"mistral", "[TOOL_CALLS]nothing here", "[TOOL_CALLS]nothing here"},
    {"mistral", "[TOOL] [TOOL_CALLS][{\"a\": 1}]", "[TOOL] [TOOL_CALLS][{\"a\": 1}]"},
    {"mistral", "[TOOL_CALLS] ", "[TOOL_CALLS] "},
    {"mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]"},
    {"mistral", "[TOOL_CALLS]I call the function {}", "[TOOL_CALLS]I call the function {}"},
    {"mistral", "[TOOL_CALLS][{\"name\": \"f\"}] done]", "«f»{} done]"},
    {"mistral", "[TOOL_CALLS]f{} done ", "«f»{} done "},
    {"deepseek",
     "Looking.\n" CALLS CALL "function" SEP "f\n```json\n{\"a\": 1}\n```" CALL_END "\n" CALL
     "function" SEP "g\n```json\n{}\n```" CALL_END CALLS_END,
     "Looking.«f»{\"a\": 1}«g»{}"},
    {"deepseek", CALLS CALL "f" SEP "{\"a\": 1}" CALL_END CALL "g" SEP "{}" CALL_END CALLS_END,
     "«f»{\"a\": 1}«g»{}"},
    {"deepseek", "a <｜b｜> c", "a <｜b｜> c"},
    {"deepseek", CALLS CALL "f" SEP "oops", CALLS CALL "f" SEP "oops"},
    {"deepseek", CALLS "no call" CALLS_END, CALLS "no call" CALLS_END},
    {"deepseek", CALLS CALL "f" SEP "{}" CALL_END CALLS_END " done", "«f»{} done"},
    {"deepseek", CALLS CALL "f" SEP "{} x" CALL_END CALL "g" SEP "{}" CALL_END,
     "«f»{} x" CALL_END "«g»{}"},
    {"deepseek", CALLS CALL "function" SEP "f, perhaps\nthis: {}",
     CALLS CALL "function" SEP "f, perhaps\nthis: {}"},
    {"deepseek", CALLS CALL "never", CALLS CALL "never"},
    {"pythonic", "[f(a=1, b='x'), g.h()]", "«f»{\"a\":1,\"b\":\"x\"}«g.h»{}"},
    {"pythonic", "<|python_start|>[f(a=\"(]\")]<|python_end|>", "«f»{\"a\":\"(]\"}"},
    {"pythonic", "[1, 2]", "[1, 2]"},
    {"pythonic", "[f(a=b)] x", "[f(a=b)] x"},
    {"pythonic", "[f(a=1", "[f(a=1"},
    {"pythonic", "[f(), 7]", "«f»{}, 7]"},
    {"pythonic", "[f()] and [g()]", "«f»{} and [g()]"},
    {"pythonic", "<|python_start|> 7", "<|python_start|> 7"},
    {"pythonic", " No [f()]", " No [f()]"},
};

static void pieces_do_not_matter(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = strlen(cases[i].text);
        for (size_t piece = 1; piece <= 7; piece++) expect(&cases[i], 0, piece);
        for (size_t cut = 1; cut <= n; cut++) expect(&cases[i], cut, n);
    }
}

static void every_parser_has_a_case(void **state)
{
    (void)state;
    size_t n;
    const tool_parser *const *parsers = tool_parsers(&n);
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        for (size_t j = 0; j < sizeof cases / sizeof cases[0]; j++)
            found |= strcmp(cases[j].parser, parsers[i]->name) == 0;
        if (!found) fail_msg("no case of '%s'", parsers[i]->name);
    }
}

static void python_literals_become_json(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"()", "{}"},
        {"( a = 1 , )", "{\"a\":1}"},
        {"(a='it\\'s', b=\"\\u00e9\\x41\\n\")", "{\"a\":\"it's\",\"b\":\"éA\\n\"}"},
        {"(a=True, b=False, c=None)", "{\"a\":true,\"b\":false,\"c\":null}"},
        {"(a=[1, -2.5e3, (3,)], b={'k': {}})", "{\"a\":[1,-2.5e3,[3]],\"b\":{\"k\":{}}}"},
        {"(a=01)", NULL},
        {"(a=+1)", NULL},
        {"(a=1.)", NULL},
        {"(a=0x10)", NULL},
        {"(1)", NULL},
        {"(a=f(1))", NULL},
        {"(a=1)(", NULL},
        {"(a={1: 2})", NULL},
        {"(a='\\ud800')", NULL},
        {"(a='x", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        strbuf out = {0};
        bool ok = python_arguments(rows[i][0], strlen(rows[i][0]), &out);
        if (ok != (rows[i][1] != NULL)) fail_msg("%s", rows[i][0]);
        if (ok) assert_string_equal(out.data, rows[i][1]);
        strbuf_destroy(&out);
    }
}

static void deep_literals_are_refused(void **state)
{
    (void)state;
    strbuf text = {0}, out = {0};
    strbuf_puts(&text, "(a=");
    for (int i = 0; i < 100000; i++) strbuf_putc(&text, '[');
    assert_false(python_arguments(text.data, text.size, &out));
    strbuf_destroy(&text);
    strbuf_destroy(&out);
}

/* A parser that kept blanks as pending would look at all of them with each piece. */
static void blanks_are_taken_as_they_come(void **state)
{
    (void)state;
    size_t n;
    const tool_parser *const *parsers = tool_parsers(&n);
    for (size_t i = 0; i < n; i++) {
        strbuf told = {0};
        const talk_sink sink = {&told, on_content, on_call, on_arguments};
        tool_reader r;
        tool_reader_init(&r, parsers[i], &sink);
        for (int piece = 0; piece < 100; piece++) {
            tool_reader_take(&r, "  \n ", 4);
            if (r.pending.size) fail_msg("%s: %zu bytes wait", parsers[i]->name, r.pending.size);
        }
        tool_reader_end(&r);
        assert_int_equal(told.size, 400);
        tool_reader_destroy(&r);
        strbuf_destroy(&told);
    }
}

static void templates_tell_their_format(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"{{ '<tool_call>' }}", "hermes"},
        {"{{ '<tool_call><function=' }}", NULL},
        {"{{ '[TOOL_CALLS]' }}", "mistral"},
        {"{{ '<｜tool▁calls▁begin｜>' }}", "deepseek"},
        {"{{ 'x' }}", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        error err;
        chat_template *t;
        assert_true(status_ok(tmpl_compile(rows[i][0], strlen(rows[i][0]), &t, &err)));
        const tool_parser *p = tool_parser_of(t);
        if (!rows[i][1]) assert_null(p);
        else assert_string_equal(p->name, rows[i][1]);
        tmpl_destroy(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_do_not_matter),
        cmocka_unit_test(every_parser_has_a_case),
        cmocka_unit_test(python_literals_become_json),
        cmocka_unit_test(deep_literals_are_refused),
        cmocka_unit_test(templates_tell_their_format),
        cmocka_unit_test(blanks_are_taken_as_they_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
