/* Reasoning is told from the answer, however the text is cut. */
#include "rpc/openai/talk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct text_case {
    const char *parser;
    bool begun;
    const char *text, *reasoning, *content, *call;
} text_case;

#define CALL "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"

static const text_case cases[] = {
    {"qwen3", false, "<think>\nWell, 1 < 2.\n</think>\n\nYes.", "Well, 1 < 2.", "Yes.", NULL},
    {"qwen3", false, "\n<think>\n\n</think>\n\nYes. ", "", "Yes. ", NULL},
    {"qwen3", false, "Yes, <think> is a mark</think>.", "", "Yes, <think> is a mark</think>.",
     NULL},
    {"qwen3", false, "<thin", "", "<thin", NULL},
    {"qwen3", false, "<think>never done \n", "never done", "", NULL},
    {"qwen3", true, "\nHm </thi\n</think>Yes", "Hm </thi", "Yes", NULL},
    {"qwen3", true, "Hm.</think>\n\n" CALL, "Hm.", "", "f"},
    {"deepseek_r1", false, "Hm.\n</think>\nYes", "Hm.", "Yes", NULL},
    {"deepseek_r1", false, "<think>Hm.</think>Yes", "Hm.", "Yes", NULL},
    {"mistral", false, "[THINK]Hm.[/THINK]Yes", "Hm.", "Yes", NULL},
    {"granite", false, "Here is my thought process: Hm. Here is my response: Yes", "Hm.", "Yes",
     NULL},
};

static void expect(const text_case *c, size_t first, size_t piece, bool hidden)
{
    const talk_options o = {.reasoning = reasoning_parser_find(c->parser),
                            .begun = c->begun,
                            .hidden = hidden,
                            .tools = tool_parser_find("hermes")};
    talk t;
    size_t n = strlen(c->text), at = 0;
    assert_non_null(o.reasoning);
    talk_init(&t, &o);
    while (at < n) {
        size_t size = at == 0 && first ? first : piece;
        if (size > n - at) size = n - at;
        talk_take(&t, c->text + at, size);
        at += size;
    }
    talk_end(&t);
    assert_false(talk_failed(&t));
    const char *reasoning = t.reasoning.size ? t.reasoning.data : "";
    const char *content = t.content.size ? t.content.data : "";
    if (strcmp(reasoning, hidden ? "" : c->reasoning) != 0 || strcmp(content, c->content) != 0)
        fail_msg("%s, cut at %zu, then every %zu: %s: '%s' and '%s'", c->parser, first, piece,
                 c->text, reasoning, content);
    assert_int_equal(t.n_calls, c->call != NULL);
    if (c->call) assert_string_equal(t.calls[0].name.data, c->call);
    talk_destroy(&t);
}

static void pieces_do_not_matter(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = strlen(cases[i].text);
        for (size_t piece = 1; piece <= 5; piece++) expect(&cases[i], 0, piece, false);
        for (size_t cut = 1; cut <= n; cut++) expect(&cases[i], cut, n, cut % 2);
    }
}

static void every_parser_has_a_case(void **state)
{
    (void)state;
    size_t n;
    const reasoning_parser *parsers = reasoning_parsers(&n);
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        for (size_t j = 0; j < sizeof cases / sizeof cases[0]; j++)
            found |= strcmp(cases[j].parser, parsers[i].name) == 0;
        if (!found) fail_msg("no case of '%s'", parsers[i].name);
    }
}

static void ignore(void *ctx, const char *text, size_t n) { (void)ctx, (void)text, (void)n; }

/* Blanks wait for the mark behind them. Each is looked at once, however many there are. */
static void blanks_that_wait_are_known(void **state)
{
    (void)state;
    const reasoning_sink sink = {NULL, ignore, ignore};
    const char *const fronts[] = {"", "<think>a"};
    for (size_t i = 0; i < 2; i++) {
        reasoning_reader r;
        reasoning_init(&r, reasoning_parser_find("qwen3"), false);
        reasoning_take(&r, &sink, fronts[i], strlen(fronts[i]));
        for (size_t piece = 1; piece <= 100; piece++) {
            reasoning_take(&r, &sink, "  \n ", 4);
            assert_int_equal(r.pending.size, 4 * piece);
            assert_int_equal(r.blanks, 4 * piece);
        }
        reasoning_take(&r, &sink, "b", 1);
        assert_int_equal(r.pending.size, 0);
        assert_int_equal(r.blanks, 0);
        reasoning_destroy(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_do_not_matter),
        cmocka_unit_test(every_parser_has_a_case),
        cmocka_unit_test(blanks_that_wait_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
