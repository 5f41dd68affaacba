/* Numbers in words are decimal, whatever the locale is, and so are those that are written. */
#include "base/json.h"
#include "base/number.h"
#include "base/strbuf.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* `used`: bytes of the number; 0: none. */
static const struct {
    const char *text;
    size_t used;
    double value;
} numbers[] = {
    {"0", 1, 0},         {"0.25", 4, 0.25},
    {"-1.5,7", 4, -1.5}, {"+2", 2, 2},
    {".5", 2, .5},       {"5.", 2, 5},
    {"1e3", 3, 1000},    {"25E-2x", 5, 0.25},
    {"1e+2", 4, 100},    {"1e", 1, 1},
    {"1e+", 1, 1},       {"0.1 ", 3, 0.1},
    {"00.5", 4, .5},     {"1.2.3", 3, 1.2},
    {"1e-999", 6, 0},    {"1.7976931348623157e308", 22, 1.7976931348623157e308},
    {"0x1p-1", 0, 0},    {"-0X1", 0, 0},
    {"0x", 0, 0},        {"inf", 0, 0},
    {"-infinity", 0, 0}, {"nan", 0, 0},
    {" 1", 0, 0},        {"\t1", 0, 0},
    {"", 0, 0},          {"-", 0, 0},
    {".", 0, 0},         {"-.e5", 0, 0},
    {"e5", 0, 0},        {"+-1", 0, 0},
    {"1e309", 0, 0},     {"-1e999", 0, 0},
    {"\xd9\xa1", 0, 0}, /* a digit of another script */
};

static void decimals_are_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const char *text = numbers[i].text;
        double value = -7;
        const char *end = number_read(text, &value);
        double due = numbers[i].used ? numbers[i].value : -7;
        if (end != (numbers[i].used ? text + numbers[i].used : NULL) || value != due)
            fail_msg("'%s': %g, to byte %td", text, value, end ? end - text : -1);
    }
}

static void whole_numbers_are_digits(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t used;
        uint64_t value;
    } rows[] = {
        {"0", 1, 0},
        {"007", 3, 7},
        {"12,5", 2, 12},
        {"18446744073709551615", 20, UINT64_MAX},
        {"18446744073709551616", 0, 0},
        {"-1", 0, 0},
        {"+1", 0, 0},
        {" 1", 0, 0},
        {"0x10", 1, 0},
        {"x", 0, 0},
        {"", 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t value = 5;
        const char *end = number_read_whole(rows[i].text, &value);
        if (end != (rows[i].used ? rows[i].text + rows[i].used : NULL) ||
            value != (rows[i].used ? rows[i].value : 5))
            fail_msg("'%s': %llu", rows[i].text, (unsigned long long)value);
    }
}

/* Where this machine has a locale whose decimal point is a comma. */
static void locales_change_nothing(void **state)
{
    static const char *const commas[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "ru_RU.UTF-8"};
    const char *set = NULL;
    for (size_t i = 0; !set && i < sizeof commas / sizeof commas[0]; i++)
        set = setlocale(LC_ALL, commas[i]);
    if (!set) skip();
    assert_string_equal(localeconv()->decimal_point, ",");
    decimals_are_read(state);
    json_t *value;
    error err;
    assert_true(status_ok(json_read_text("t", "0.25", 4, &value, &err)));
    assert_true(json_real_value(value) == 0.25);
    json_decref(value);
    strbuf b = {0};
    strbuf_json_float(&b, -2.5e-7f);
    assert_string_equal(b.data, "-2.5e-07");
    strbuf_destroy(&b);
    setlocale(LC_ALL, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decimals_are_read),
        cmocka_unit_test(whole_numbers_are_digits),
        cmocka_unit_test(locales_change_nothing),
    };
    return cmocka_run_group_tests_name("base_number", tests, NULL, NULL);
}
