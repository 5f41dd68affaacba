/* Sent beside the answers: reports in metadata, and the tokenizer's zip. */
#include "rpc/services/reports.h"
#include "rpc/services/zip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- reports --------------------------------------------------------------------------------- */

static json_t *array_of(const reports *r, size_t max_bytes)
{
    strbuf text = {0};
    json_t *array = NULL;
    reports_json(r, max_bytes, &text);
    assert_true(text.size <= max_bytes);
    assert_true(status_ok(json_read_text("reports", text.data, text.size, &array, NULL)));
    assert_int_equal(json_array_size(array), r->n);
    strbuf_destroy(&text);
    return array;
}

static void test_reports_in_order(void **state)
{
    (void)state;
    reports r;
    retention_report report = {.method = "chunkkv", .logical_tokens = 1};
    assert_true(reports_init(&r, 3));
    const engine_output given = {.report = &report}, none = {0};
    assert_true(reports_keep(&r, 2, &given));
    report.logical_tokens = 2;
    assert_true(reports_keep(&r, 0, &given));
    assert_true(reports_keep(&r, 1, &none));
    assert_int_equal(r.n_given, 2);
    assert_int_equal(r.n_readings, 0);
    json_t *array = array_of(&r, REPORTS_BYTES_MAX);
    assert_int_equal(
        json_integer_value(json_object_get(json_array_get(array, 0), "logical_tokens")), 2);
    assert_true(json_is_null(json_array_get(array, 1)));
    assert_int_equal(
        json_integer_value(json_object_get(json_array_get(array, 2), "logical_tokens")), 1);
    json_decref(array);
    reports_destroy(&r);
}

/* Positions are dropped first, then whole reports; the array of all choices stays within its
 * size. */
static void test_reports_too_large(void **state)
{
    (void)state;
    enum { N = 100, POSITIONS = 3000 };
    static char positions[POSITIONS + 8];
    reports r;
    strbuf long_list = {0};
    strbuf_putc(&long_list, '[');
    for (int i = 0; i < POSITIONS / 2; i++) strbuf_puts(&long_list, i ? ",1" : "1");
    strbuf_putc(&long_list, ']');
    memcpy(positions, long_list.data, long_list.size + 1);
    strbuf_destroy(&long_list);
    retention_report report = {.method = "chunkkv", .kept_json = positions};
    assert_true(reports_init(&r, N));
    const engine_output given = {.report = &report};
    for (uint32_t i = 0; i < N; i++) assert_true(reports_keep(&r, i, &given));
    json_t *array = array_of(&r, REPORTS_BYTES_MAX);
    assert_true(json_is_array(json_object_get(json_array_get(array, 0), "kept")));
    const json_t *second = json_array_get(array, 2);
    assert_true(json_is_object(second) && json_is_null(json_object_get(second, "kept")));
    assert_true(json_is_null(json_array_get(array, N - 1)));
    json_decref(array);
    array = array_of(&r, SIZE_MAX);
    assert_true(json_is_array(json_object_get(json_array_get(array, N - 1), "kept")));
    json_decref(array);
    reports_destroy(&r);
}

/* Reports of retrieval are an array of their own, and whole ones are left out. */
static void test_readings(void **state)
{
    (void)state;
    enum { N = 100 };
    reports r;
    json_t *array = NULL;
    strbuf text = {0};
    retrieval_totals reading = {.rows = 4, .context = 800, .tokens = 200, .blocks = 6};
    const engine_output given = {.reading = &reading}, none = {0};
    assert_true(reports_init(&r, N));
    for (uint32_t i = 0; i < N; i++) assert_true(reports_keep(&r, i, i == 1 ? &none : &given));
    assert_int_equal(r.n_given, 0);
    assert_int_equal(r.n_readings, N - 1);
    reports_readings_json(&r, READINGS_BYTES_MAX, &text);
    assert_true(text.size <= READINGS_BYTES_MAX);
    assert_true(status_ok(json_read_text("readings", text.data, text.size, &array, NULL)));
    assert_int_equal(json_array_size(array), N);
    const json_t *first = json_array_get(array, 0);
    assert_true(json_number_value(json_object_get(first, "context_tokens")) == 200);
    assert_true(json_number_value(json_object_get(first, "read_tokens")) == 50);
    assert_null(json_object_get(first, "recall"));
    assert_true(json_is_null(json_array_get(array, 1)));
    assert_true(json_is_null(json_array_get(array, N - 1)));
    json_decref(array);
    strbuf_destroy(&text);
    reports_destroy(&r);
}

/* ---- zip ------------------------------------------------------------------------------------- */

static uint32_t at32(const strbuf *b, size_t i)
{
    const uint8_t *p = (const uint8_t *)b->data + i;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t at16(const strbuf *b, size_t i) { return at32(b, i) & 65535; }

static void test_zip(void **state)
{
    (void)state;
    zip z = {0};
    strbuf out = {0};
    zip_begin(&z, "a.json", &out);
    zip_add(&z, "1234", 4, &out);
    zip_add(&z, "56789", 5, &out);
    zip_end(&z, &out);
    zip_begin(&z, "empty", &out);
    zip_end(&z, &out);
    zip_finish(&z, &out);
    assert_false(out.failed);
    assert_int_equal(z.bytes, out.size);

    size_t end = out.size - 22;
    assert_int_equal(at32(&out, end), 0x06054b50);
    assert_int_equal(at16(&out, end + 10), 2);
    size_t central = at32(&out, end + 16);
    assert_int_equal(central + at32(&out, end + 12), end);
    assert_int_equal(at32(&out, central), 0x02014b50);
    assert_int_equal(at32(&out, central + 16), 0xcbf43926); // the check value of "123456789"
    assert_int_equal(at32(&out, central + 24), 9);
    assert_int_equal(at32(&out, central + 42), 0);
    assert_memory_equal(out.data + central + 46, "a.json", 6);

    size_t second = central + 46 + 6;
    assert_int_equal(at32(&out, second), 0x02014b50);
    assert_int_equal(at32(&out, second + 16), 0);
    size_t local = at32(&out, second + 42);
    assert_int_equal(at32(&out, local), 0x04034b50);
    assert_memory_equal(out.data + local + 30, "empty", 5);
    assert_memory_equal(out.data + 30 + 6, "123456789", 9);
    assert_int_equal(at32(&out, 30 + 6 + 9), 0x08074b50);
    assert_int_equal(at32(&out, 30 + 6 + 9 + 4), 0xcbf43926);
    strbuf_destroy(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reports_in_order),
        cmocka_unit_test(test_reports_too_large),
        cmocka_unit_test(test_readings),
        cmocka_unit_test(test_zip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
