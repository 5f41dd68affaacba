/* Messages as clients send them become messages as chat templates expect them. */
#include "engine/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_t *parse(const char *text)
{
    error err;
    json_t *out;
    if (!status_ok(json_read_text("test", text, strlen(text), &out, &err)))
        fail_msg("%s", err.text);
    return out;
}

static void expect_json(const json_t *found, const char *expected)
{
    json_t *wanted = parse(expected);
    if (!json_equal(found, wanted)) {
        char *text = json_dumps(found, 0);
        fail_msg("%s instead of %s", text, expected);
    }
    json_decref(wanted);
}

static void expect_normalised(const char *given, const char *expected)
{
    error err = {{0}};
    json_t *messages = parse(given);
    if (!status_ok(messages_normalise(messages, &err))) fail_msg("%s", err.text);
    expect_json(messages, expected);
    json_decref(messages);
}

static void an_assistant_may_say_nothing(void **state)
{
    (void)state;
    expect_normalised("[{\"role\":\"assistant\",\"content\":null}]",
                      "[{\"role\":\"assistant\",\"content\":\"\"}]");
    expect_normalised("[{\"role\":\"assistant\",\"tool_calls\":[]}]",
                      "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[]}]");
    expect_normalised("[{\"role\":\"tool\",\"content\":null}]",
                      "[{\"role\":\"tool\",\"content\":null}]");
    expect_normalised("[{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                      "{\"type\":\"text\",\"text\":\"b\"}]}]",
                      "[{\"role\":\"tool\",\"content\":\"a\\nb\"}]");
}

static void who_speaks_says_something(void **state)
{
    (void)state;
    static const char *const roles[] = {"user", "system", "developer"};
    static const char *const contents[] = {"", ",\"content\":null", ",\"content\":5"};
    for (size_t i = 0; i < 9; i++) {
        char text[128];
        error err = {{0}};
        snprintf(text, sizeof text, "[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"%s\"%s}]",
                 roles[i / 3], contents[i % 3]);
        json_t *messages = parse(text);
        assert_int_equal(messages_normalise(messages, &err).code, STATUS_INVALID);
        assert_string_equal(err.text, "messages[1].content: must be a string or a list");
        json_decref(messages);
    }
}

#define CALL(arguments)                                                                            \
    "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\",\"function\":{"       \
    "\"name\":\"f\",\"arguments\":" arguments "}}]}]"

static void arguments_become_objects(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {CALL("\"{\\\"a\\\": [1, null]}\""), CALL("{\"a\":[1,null]}")},
        {CALL("\"\""), CALL("{}")},
        {CALL("{\"a\":1}"), CALL("{\"a\":1}")},
        {"[{\"role\":\"user\",\"content\":\"x\"}]", "[{\"role\":\"user\",\"content\":\"x\"}]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error err = {{0}};
        json_t *messages = parse(cases[i][0]), *out;
        if (!status_ok(messages_with_objects(messages, &out, &err))) fail_msg("%s", err.text);
        expect_json(out, cases[i][1]);
        expect_json(messages, cases[i][0]); /* what was sent stays */
        json_decref(out);
        json_decref(messages);
    }
}

static void words_hold_no_nul(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"[{\"role\":\"user\\u0000x\",\"content\":\"\"}]",
         "messages[0]: must be an object whose role"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\\u0000\",\"text\":\"\"}]}]",
         "messages[0].content[0]: only"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error err = {{0}};
        json_t *messages = parse(cases[i][0]);
        assert_false(status_ok(messages_normalise(messages, &err)));
        if (!strstr(err.text, cases[i][1])) fail_msg("%s", err.text);
        json_decref(messages);
    }
    /* A text may hold one. */
    expect_normalised("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
                      "\"a\\u0000b\"}]}]",
                      "[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]");
}

static void expect_refused(const char *given, status_code code, const char *why)
{
    error err = {{0}};
    json_t *messages = parse(given), *out;
    assert_int_equal(messages_with_objects(messages, &out, &err).code, code);
    assert_null(out);
    if (!strstr(err.text, why)) fail_msg("%s", err.text);
    json_decref(messages);
}

static void wrong_calls_are_refused_by_place(void **state)
{
    (void)state;
    static const char place[] = "messages[0].tool_calls[0]";
    expect_refused(CALL("\"[1]\""), STATUS_INVALID, place);
    expect_refused(CALL("\"{\\\"a\\\"\""), STATUS_INVALID, ".function.arguments: must be a JSON");
    expect_refused("[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\"}]}]", STATUS_INVALID,
                   place);
    expect_refused("[{\"role\":\"assistant\",\"tool_calls\":{}}]", STATUS_INVALID,
                   "messages[0].tool_calls: must be a list");
}

/* A text of empty lists would take a hundred times its size. */
static void amount_of_values_is_bounded(void **state)
{
    (void)state;
    strbuf text = {0};
    strbuf_puts(&text, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                       "\"arguments\":\"{\\\"a\\\":[");
    for (int i = 0; i < 40000; i++) strbuf_puts(&text, i ? ",[]" : "[]");
    strbuf_puts(&text, "]}\"}}]}]");
    expect_refused(text.data, STATUS_LIMIT, "more than 65536 values");
    strbuf_destroy(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_assistant_may_say_nothing),
        cmocka_unit_test(who_speaks_says_something),
        cmocka_unit_test(words_hold_no_nul),
        cmocka_unit_test(arguments_become_objects),
        cmocka_unit_test(wrong_calls_are_refused_by_place),
        cmocka_unit_test(amount_of_values_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
