/* The JSON reader accepts and refuses what jansson's own reader does (except NULs outside strings).
 * Whichever allocation fails, it reports "out of memory" and leaks nothing. (The linker wraps this
 * program's allocations, json_set_alloc_funcs those of jansson.) */
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- allocations that fail ------------------------------------------------------------------- */

static long left = -1; /* allocations until one fails; -1: none does */
static long alive;     /* jansson's allocations that are not freed yet */

static bool fails(void) { return left >= 0 && left-- == 0; }

void *__real_malloc(size_t n);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t n);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);

void *__wrap_malloc(size_t n) { return fails() ? NULL : __real_malloc(n); }
void *__wrap_realloc(void *p, size_t n) { return fails() ? NULL : __real_realloc(p, n); }
char *__wrap_strdup(const char *s) { return fails() ? NULL : __real_strdup(s); }

static void *count_malloc(size_t n)
{
    void *p = malloc(n);
    alive += p != NULL;
    return p;
}

static void count_free(void *p)
{
    alive -= p != NULL;
    free(p);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const char *const texts[] = {
    "",
    " ",
    "0",
    "-0",
    "-",
    "01",
    "1.",
    ".5",
    "1.5e+3",
    "1e",
    "1E5",
    "-1.25e-2",
    "1e999",
    "1e-999",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "+1",
    "0x10",
    "1 2",
    "true",
    "false",
    "null",
    "tru",
    "truey",
    "True",
    "NaN",
    "Infinity",
    "nul",
    "[]",
    "[ ]",
    "[1,]",
    "[,1]",
    "[1 2]",
    "[1",
    "[1,2,[3]]",
    "]",
    "{}",
    "{ }",
    "{\"a\":1}",
    "{\"a\":1,}",
    "{,}",
    "{\"a\"}",
    "{\"a\":}",
    "{\"a\" 1}",
    "{a:1}",
    "{'a':1}",
    "{\"a\":1 \"b\":2}",
    "{\"a\":1,\"a\":1}",
    "{\"\":1,\"b\":{\"\":[true,null]}}",
    "{\"a\":1",
    "{\"a\\u0000b\":1}",
    "\"\"",
    "\"abc",
    "\"a\nb\"",
    "\"a\tb\"",
    "\"\x7f\"",
    "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
    "\"\\x\"",
    "\"\\",
    "\"\\u12\"",
    "\"\\u00e9\"",
    "\"\\u0000\"",
    "\"\\ud83d\\ude00\"",
    "\"\\ud83d\"",
    "\"\\ud83dx\"",
    "\"\\ude00\"",
    "\"\\ud83d\\u0041\"",
    "\"\\uD83D\\uDE00\\uFFFF\"",
    "\"\\u00g0\"",
    "\"é\"",
    "\"\xff\"",
    "\"\xc3\"",
    "\"\xed\xa0\x80\"",
    "\"\xf0\x9f\x98\x80\"",
    "\"\xc0\x80\"",
    "\xef\xbb\xbf[]",
    "\xc3\xa9",
    "[1]x",
    " [ 1 , \"x\" ] \r\n\t",
    "/**/1",
    "[\"a\",1.5,{\"b\":[]}]",
};

static void test_as_jansson(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t n = strlen(texts[i]), flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
        json_t *due = json_loadb(texts[i], n, flags | JSON_DECODE_ANY, NULL), *got = NULL;
        error err;
        status s = json_read_text("t", texts[i], n, &got, &err);
        if (status_ok(s) != (due != NULL)) fail_msg("'%s': %s", texts[i], due ? err.text : "taken");
        if (due && !json_equal(due, got)) fail_msg("'%s' is another value", texts[i]);
        if (!due) assert_int_equal(s.code, STATUS_CORRUPT);
        json_decref(due);
        json_decref(got);
    }
}

/* A number of 100,000 bytes is read like a short one. */
static void test_long_numbers(void **state)
{
    static const struct {
        const char *before, *after;
        status_code code;
        double value;
    } numbers[] = {
        {"1.5", "", STATUS_OK, 1.5},     {"0.", "1e+100000", STATUS_OK, 0.1},
        {"1", "e-100000", STATUS_OK, 1}, {"1", "", STATUS_CORRUPT, 0},
        {"1", ".5", STATUS_CORRUPT, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        strbuf text = {0};
        json_t *got = NULL;
        strbuf_puts(&text, numbers[i].before);
        for (int j = 0; j < 100000; j++) strbuf_putc(&text, '0');
        strbuf_puts(&text, numbers[i].after);
        assert_int_equal(json_read_text("t", text.data, text.size, &got, NULL).code,
                         numbers[i].code);
        if (got) assert_true(json_real_value(got) == numbers[i].value);
        json_decref(got);
        strbuf_destroy(&text);
    }
}

/* A NUL outside strings, and the text after it, are refused. */
static void test_nul_outside_strings(void **state)
{
    static const char *const outside[] = {"1\0", "{}\0", "[]\0 ", "\0001", "[\0001]", "{}\0{}"};
    static const size_t sizes[] = {2, 3, 4, 2, 4, 5};
    (void)state;
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        json_t *got = NULL;
        assert_int_equal(json_read_text("t", outside[i], sizes[i], &got, NULL).code,
                         STATUS_CORRUPT);
    }
}

/* Lists may be nested 2,048 deep, on a thread's default stack. */
static void test_nesting(void **state)
{
    static const char *const kinds[][2] = {{"[", "]"}, {"{\"a\":", "}"}};
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (int depth = 2047; depth <= 2049; depth++) {
            strbuf text = {0};
            json_t *got = NULL;
            for (int i = 0; i < depth; i++) strbuf_puts(&text, kinds[kind][0]);
            strbuf_putc(&text, '1');
            for (int i = 0; i < depth; i++) strbuf_puts(&text, kinds[kind][1]);
            status s = json_read_text("t", text.data, text.size, &got, NULL);
            assert_int_equal(s.code, depth <= 2048 ? STATUS_OK : STATUS_CORRUPT);
            json_decref(got);
            strbuf_destroy(&text);
        }
}

/* A text is never read beyond its length. */
static void test_cut_off(void **state)
{
    (void)state;
    static const char whole[] = "{\"key\": [1.5e3, \"a\\ud83d\\ude00\", true, {\"x\": null}]}";
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        char *part = malloc(n + 1); /* a heap block, so that a sanitizer sees reads past its end */
        memcpy(part, whole, n);
        char *exact = realloc(part, n ? n : 1);
        json_t *doc = NULL;
        assert_int_equal(json_read_text("t", exact, n, &doc, NULL).code, STATUS_CORRUPT);
        free(exact);
    }
}

/* A text with many keys and long strings, so that tables and buffers grow. */
static char *make_text(void)
{
    strbuf b = {0};
    strbuf_puts(&b, "{\"list\":[");
    for (int i = 0; i < 40; i++) strbuf_printf(&b, "%s%d.5,{\"n\":[%d]}", i ? "," : "", i, i);
    strbuf_puts(&b, "],\"text\":\"");
    for (int i = 0; i < 2000; i++) strbuf_puts(&b, "long\\n");
    strbuf_putc(&b, '"');
    for (int i = 0; i < 40; i++) strbuf_printf(&b, ",\"key %d\":%d", i, i);
    strbuf_putc(&b, '}');
    return b.data;
}

static void test_memory_is_out(void **state)
{
    (void)state;
    char *text = make_text();
    size_t n = strlen(text);
    json_t *whole = NULL;
    assert_true(status_ok(json_read_text("t", text, n, &whole, NULL)));
    long before = alive, i = 0;
    for (bool done = false; !done; i++) {
        json_t *doc = NULL;
        error err = {{0}};
        left = i;
        status s = json_read_text("t", text, n, &doc, &err);
        done = left >= 0;
        left = -1;
        if (!done && s.code != STATUS_NO_MEMORY) fail_msg("allocation %ld: %s", i, err.text);
        if (done) assert_true(status_ok(s) && json_equal(doc, whole));
        json_decref(doc);
        assert_int_equal(alive, before);
    }
    assert_true(i > 300);
    i = 0;
    for (bool done = false; !done; i++) {
        left = i;
        json_t *copy = json_copy_whole(whole);
        done = left >= 0;
        left = -1;
        assert_true(done == (copy != NULL));
        if (copy) assert_true(json_equal(copy, whole));
        json_decref(copy);
        assert_int_equal(alive, before);
    }
    assert_true(i > 300);
    json_decref(whole);
    free(text);
}

/* A text that lacks what there was no memory for would be another document, or none. */
static void test_memory_is_out_for_a_text(void **state)
{
    (void)state;
    json_t *keys = json_object();
    for (int i = 0; i < 400; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        json_object_set_new(keys, key, json_true());
    }
    char *due = json_dumps(keys, JSON_COMPACT);
    long i = 0;
    for (bool done = false; !done; i++) {
        left = i;
        char *text = json_write(keys, JSON_COMPACT);
        done = left >= 0;
        left = -1;
        assert_true(done == (text != NULL));
        if (text) assert_string_equal(text, due);
        free(text);
    }
    assert_true(i > 5);
    assert_null(json_write(json_true(), 0));
    free(due);
    json_decref(keys);
}

int main(void)
{
    json_set_alloc_funcs(count_malloc, count_free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_jansson),
        cmocka_unit_test(test_long_numbers),
        cmocka_unit_test(test_nul_outside_strings),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_memory_is_out),
        cmocka_unit_test(test_memory_is_out_for_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
