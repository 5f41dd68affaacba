/* base: UTF-8, string building and JSON. */
#include "base/base.h"
#include "base/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ---- */

static void expect_last(const char *text, const char *part, int64_t place)
{
    const char *at;
    assert_true(status_ok(bytes_find_last(text, strlen(text), part, strlen(part), &at)));
    if (place < 0) assert_null(at);
    else assert_ptr_equal(at, text + place);
}

static void test_find_last(void **state)
{
    (void)state;
    expect_last("one two one", "one", 8);
    expect_last("ababa", "aba", 2);
    expect_last("aaab", "b", 3);
    expect_last("aaab", "aaab", 0);
    expect_last("aaab", "ab ", -1);
    expect_last("b", "aaab", -1);
    expect_last("", "a", -1);

    /* Texts of one letter, for which a plain search would take hours. */
    enum { BYTES = 4 * 1000 * 1000 };
    const char *at;
    char *text = malloc(BYTES), *part = malloc(BYTES / 2);
    memset(text, 'a', BYTES);
    memset(part, 'a', BYTES / 2);
    assert_true(status_ok(bytes_find_last(text, BYTES, part, BYTES / 2, &at)));
    assert_ptr_equal(at, text + BYTES / 2);
    part[BYTES / 2 - 1] = 'b';
    assert_true(status_ok(bytes_find_last(text, BYTES, part, BYTES / 2, &at)));
    assert_null(at);
    part[BYTES / 2 - 1] = 'a';
    part[0] = 'b';
    assert_true(status_ok(bytes_find_last(text, BYTES, part, BYTES / 2, &at)));
    assert_null(at);
    free(text);
    free(part);
}

/* ---- text ---- */

static void test_utf8_all(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (cp >= 0xd800 && cp < 0xe000) continue;
        uint8_t bytes[4];
        uint32_t back;
        unsigned n = utf8_encode(cp, bytes);
        assert_int_equal(utf8_decode(bytes, n, &back), n);
        assert_int_equal(back, cp);
        for (unsigned part = 1; part < n; part++) {
            assert_int_equal(utf8_incomplete_tail(bytes, part), part);
            assert_int_equal(utf8_decode(bytes, part, &back), 1);
            assert_int_equal(back, UINT32_MAX);
        }
        assert_int_equal(utf8_incomplete_tail(bytes, n), 0);
    }
}

static void test_utf8_invalid(void **state)
{
    (void)state;
    static const char *bad[] = {
        "\x80",         "\xbf",         "\xc0\x80",         "\xc1\xbf",         "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "\xff",         "\xc3(",        "\xe2\x82(",        "\xf0\x9f\x98("};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint32_t cp;
        const uint8_t *s = (const uint8_t *)bad[i];
        size_t n = strlen(bad[i]);
        assert_int_equal(utf8_decode(s, n, &cp), 1);
        assert_int_equal(cp, UINT32_MAX);
        assert_false(utf8_valid(s, n));
        assert_int_equal(utf8_incomplete_tail(s, n), 0);
    }
    /* ASCII is checked eight bytes at a time: try one wrong byte at each place. */
    uint8_t ascii[19];
    memset(ascii, 'a', sizeof ascii);
    for (size_t i = 0; i < sizeof ascii; i++) {
        ascii[i] = 0xff;
        assert_false(utf8_valid(ascii, sizeof ascii));
        ascii[i] = 'a';
    }
    assert_true(utf8_valid(ascii, sizeof ascii));
    assert_true(utf8_valid((const uint8_t *)"", 0));
    assert_true(utf8_valid((const uint8_t *)"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10));
    assert_int_equal(utf8_incomplete_tail((const uint8_t *)"ab\xf0\x9f", 4), 2);
    assert_int_equal(utf8_incomplete_tail((const uint8_t *)"", 0), 0);
}

static void test_strbuf(void **state)
{
    (void)state;
    strbuf b = {0};
    for (int i = 0; i < 1000; i++) strbuf_printf(&b, "%d,", i);
    assert_int_equal(b.size, strlen(b.data));
    assert_int_equal(b.size, 3890);
    strbuf_clear(&b);
    assert_string_equal(b.data, "");
    static const char raw[] = "a\"\\\n\x01\0é\xff\x7f";
    strbuf_json_string(&b, raw, sizeof raw - 1);
    assert_string_equal(b.data, "\"a\\\"\\\\\\n\\u0001\\u0000é\xef\xbf\xbd\\u007f\"");
    strbuf_append(&b, "z", SIZE_MAX - 100);
    assert_true(b.failed);
    strbuf_puts(&b, "ignored");
    strbuf_destroy(&b);
    strbuf_destroy(&b);
    strbuf_destroy(NULL);
}

static void test_strbuf_float(void **state)
{
    (void)state;
    static const struct {
        float v;
        const char *text;
    } known[] = {{0, "0"},           {-0.0f, "-0"},     {100, "100"},           {0.1f, "0.1"},
                 {-12.5f, "-12.5"},  {1e-45f, "1e-45"}, {16777217, "16777216"}, {NAN, "null"},
                 {INFINITY, "null"}, {0.3f, "0.3"},     {1e20f, "1e+20"}};
    strbuf b = {0};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        strbuf_clear(&b);
        strbuf_json_float(&b, known[i].v);
        assert_string_equal(b.data, known[i].text);
    }
    rng r = rng_seed(3);
    for (int i = 0; i < 200000; i++) {
        uint32_t u = rng_u32(&r);
        float v;
        memcpy(&v, &u, sizeof v);
        if (!isfinite(v)) continue;
        strbuf_clear(&b);
        strbuf_json_float(&b, v);
        float back = strtof(b.data, NULL);
        if (memcmp(&back, &v, sizeof v) != 0)
            fail_msg("%s is not %a (bits %08x)", b.data, (double)v, u);
    }
    strbuf_destroy(&b);
}

/* ---- JSON ---- */

static json_t *parse(const char *text)
{
    json_t *doc = NULL;
    error err;
    assert_int_equal(json_read_text("t", text, strlen(text), &doc, &err).code, STATUS_OK);
    return doc;
}

static void test_json_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *place;
    } bad[] = {{"{\"a\":1,\"a\":2}", "conf: line 1, column"},
               {"{\n \"a\": }", "conf: line 2, column"},
               {"", "conf: line 1"},
               {"[1] x", "end of file expected"},
               {"\"\xff\"", "conf: line 1"},
               {"[1e999]", "conf: line 1"},
               {"[NaN]", "conf: line 1"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_t *doc = NULL;
        error err;
        status s = json_read_text("conf", bad[i].text, strlen(bad[i].text), &doc, &err);
        assert_int_equal(s.code, STATUS_CORRUPT);
        assert_null(doc);
        if (!strstr(err.text, bad[i].place)) fail_msg("%s", err.text);
    }
    enum { DEPTH = 100000 };
    char *deep = malloc(DEPTH);
    memset(deep, '[', DEPTH);
    json_t *doc;
    assert_int_equal(json_read_text("conf", deep, DEPTH, &doc, NULL).code, STATUS_CORRUPT);
    free(deep);
}

static void test_json_getters(void **state)
{
    (void)state;
    json_t *o = parse("{\"i\":5,\"r\":2.0,\"f\":2.5,\"s\":\"x\",\"z\":\"a\\u0000b\",\"n\":null,"
                      "\"t\":true,\"big\":1e300,\"min\":-9223372036854775808}");
    error err;
    int64_t i = 0;
    assert_true(status_ok(json_get_int(o, "w", "i", 0, 9, 1, &i, &err)) && i == 5);
    assert_true(status_ok(json_get_int(o, "w", "r", 0, 9, 1, &i, &err)) && i == 2);
    assert_true(status_ok(json_get_int(o, "w", "n", 0, 9, 77, &i, &err)) && i == 77);
    assert_true(status_ok(json_get_int(o, "w", "none", 0, 9, 78, &i, &err)) && i == 78);
    assert_true(status_ok(json_get_int(o, "w", "min", INT64_MIN, 0, 0, &i, &err)) &&
                i == INT64_MIN);
    assert_int_equal(json_get_int(o, "w", "f", 0, 9, 1, &i, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "w: \"f\" must be an integer, not 2.5");
    assert_int_equal(json_get_int(o, "w", "big", 0, 9, 1, &i, &err).code, STATUS_INVALID);
    assert_int_equal(json_get_int(o, "w", "i", 6, 9, 6, &i, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "w: \"i\" is 5, must be between 6 and 9");
    assert_int_equal(json_get_int(o, "w", "s", 0, 9, 1, &i, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "w: \"s\" must be an integer, not a string");
    assert_true(i == INT64_MIN); /* failures do not change outputs */

    double d = 0;
    assert_true(status_ok(json_get_double(o, "w", "i", 0, 9, 1, &d, &err)) && d == 5);
    assert_true(status_ok(json_get_double(o, "w", "f", 0, 9, 1, &d, &err)) && d == 2.5);
    assert_true(status_ok(json_get_double(o, "w", "n", 0, 9, -1, &d, &err)) && d == -1);
    assert_int_equal(json_get_double(o, "w", "f", 0, 2, 1, &d, &err).code, STATUS_INVALID);
    assert_int_equal(json_get_double(o, "w", "t", 0, 2, 1, &d, &err).code, STATUS_INVALID);

    bool b = false;
    assert_true(status_ok(json_get_bool(o, "w", "t", false, &b, &err)) && b);
    assert_true(status_ok(json_get_bool(o, "w", "none", true, &b, &err)) && b);
    assert_int_equal(json_get_bool(o, "w", "i", false, &b, &err).code, STATUS_INVALID);

    const char *s = NULL;
    assert_true(status_ok(json_get_string(o, "w", "s", &s, &err)));
    assert_string_equal(s, "x");
    assert_true(status_ok(json_get_string(o, "w", "n", &s, &err)));
    assert_null(s);
    assert_int_equal(json_get_string(o, "w", "z", &s, &err).code, STATUS_INVALID);
    assert_int_equal(json_get_string(o, "w", "t", &s, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "w: \"t\" must be a string, not a boolean");

    assert_string_equal(json_word(json_object_get(o, "s")), "x");
    assert_null(json_word(json_object_get(o, "z")));
    assert_null(json_word(json_object_get(o, "i")));
    assert_null(json_word(NULL));
    assert_true(json_is_word(json_object_get(o, "s"), "x"));
    assert_false(json_is_word(json_object_get(o, "s"), "xy"));
    assert_false(json_is_word(json_object_get(o, "z"), "a"));
    assert_false(json_is_word(json_object_get(o, "t"), "true"));
    assert_false(json_is_word(NULL, ""));

    json_t *array = parse("[1]");
    assert_int_equal(json_get_int(array, "w", "i", 0, 9, 1, &i, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "w: must be an object, not an array");
    assert_true(status_ok(json_get_int(NULL, "w", "i", 0, 9, 3, &i, &err)) && i == 3);
    json_decref(array);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_all),     cmocka_unit_test(test_utf8_invalid),
        cmocka_unit_test(test_strbuf),       cmocka_unit_test(test_strbuf_float),
        cmocka_unit_test(test_json_refuses), cmocka_unit_test(test_json_getters),
        cmocka_unit_test(test_find_last),
    };
    return cmocka_run_group_tests_name("base_text", tests, NULL, NULL);
}
