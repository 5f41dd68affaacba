/* Numbers: bounds and multiples, as languages of digits. */
#include "engine/grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_WORK = 100 }; // operations of reading the digits of one

/* ---- single numbers -------------------------------------------------------------------------- */

/* A number without its sign: m * 10^e; m has no zeros at its end. */
typedef struct scaled {
    uint64_t m;
    int e;
} scaled;

/* The digits of a number; of one with a point or an exponent, as few as read back. */
static scaled scaled_of(const json_t *v)
{
    char text[40];
    scaled s = {0};
    if (json_is_integer(v)) {
        json_int_t x = json_integer_value(v);
        s.m = x < 0 ? -(uint64_t)x : (uint64_t)x;
    } else {
        double x = fabs(json_real_value(v));
        for (int precision = 14; precision <= 16; precision++) { // 15 digits and zeros, or more
            snprintf(text, sizeof text, "%.*e", precision, x);
            s.e = -precision;
            if (strtod(text, NULL) == x) break;
        }
        char *c = text;
        for (; *c && *c != 'e'; c++)
            if (*c != '.') s.m = s.m * 10 + (uint64_t)(*c - '0');
        s.e += *c ? (int)strtol(c + 1, NULL, 10) : 0;
    }
    for (; s.m && s.m % 10 == 0; s.m /= 10) s.e++;
    return s;
}

/* A decimal number: sign, digits before and behind the point, without needless zeros. */
typedef struct decimal {
    bool negative;
    char whole[360], part[360];
} decimal;

static void trim(decimal *d)
{
    size_t n = strlen(d->part);
    while (n > 0 && d->part[n - 1] == '0') d->part[--n] = '\0';
    if (strcmp(d->whole, "0") == 0 && n == 0) d->negative = false;
}

static decimal decimal_of(const json_t *v)
{
    char text[760];
    decimal d = {0};
    if (json_is_integer(v)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
    } else {
        int e = scaled_of(v).e;
        snprintf(text, sizeof text, "%.*f", e < 0 ? -e : 0, json_real_value(v));
    }
    const char *at = text;
    if (*at == '-') {
        d.negative = true;
        at++;
    }
    size_t n = strcspn(at, ".");
    memcpy(d.whole, at, n);
    if (at[n]) snprintf(d.part, sizeof d.part, "%s", at + n + 1);
    trim(&d);
    return d;
}

/* All digits of a whole number where long double has 64 bits of them, as on x86 and 64-bit ARM. */
static long double wide(const json_t *v)
{
    return json_is_integer(v) ? (long double)json_integer_value(v) : json_real_value(v);
}

int schema_compare(const json_t *a, const json_t *b)
{
    if (json_is_integer(a) && json_is_integer(b)) {
        json_int_t i = json_integer_value(a), k = json_integer_value(b);
        return (i > k) - (i < k);
    }
    long double x = wide(a), y = wide(b);
    return (x > y) - (x < y);
}

bool schema_multiple(const json_t *value, const json_t *factor)
{
    scaled v = scaled_of(value), f = scaled_of(factor);
    if (v.m == 0 || f.m == 0) return f.m > 0;
    if (v.e < f.e) return false;
    uint64_t rest = v.m % f.m;
    for (int i = v.e - f.e; i > 0 && rest > 0; i--)
        rest = (uint64_t)((unsigned __int128)rest * 10 % f.m);
    return rest == 0;
}

bool schema_whole(const json_t *value)
{
    return json_is_integer(value) || json_real_value(value) == floor(json_real_value(value));
}

/* ---- digits ---------------------------------------------------------------------------------- */

static expr digit(build *b, char lo, char hi)
{
    return lo > hi ? expr_never(b) : expr_range(b, (uint8_t)lo, (uint8_t)hi);
}

static expr digits(build *b, uint32_t min, uint32_t max)
{
    return expr_repeat(b, digit(b, '0', '9'), min, max);
}

/* Digits that differ from s first at place i, where they are larger (or smaller), with `rest`
 * behind. */
static expr differ(build *b, const char *s, size_t i, bool larger, expr rest)
{
    expr other = larger ? digit(b, (char)(s[i] + 1), '9') : digit(b, '0', (char)(s[i] - 1));
    return expr_seq(b, (expr[]){expr_text(b, s, i), other, rest}, 3);
}

/* Whole numbers beyond s, which may begin with zeros where they are shorter. */
static expr whole_beyond(build *b, const char *s, bool larger)
{
    expr_list all = {0};
    uint32_t n = (uint32_t)strlen(s);
    for (uint32_t i = 0; i < n; i++)
        expr_list_add(b, &all, differ(b, s, i, larger, digits(b, n - i - 1, n - i - 1)));
    if (larger) expr_list_add(b, &all, digits(b, n + 1, REPEAT_MANY));
    else if (n > 1) expr_list_add(b, &all, digits(b, 1, n - 1));
    return build_ok(b) ? expr_alt(b, all.items, all.n) : 0;
}

/* The part behind the point, with any zeros behind it. */
static expr same_part(build *b, const char *f)
{
    expr zeros = expr_repeat(b, expr_words(b, "0"), 0, REPEAT_MANY);
    if (*f) return expr_seq(b, (expr[]){expr_words(b, "."), expr_words(b, f), zeros}, 3);
    return expr_optional(b, expr_seq(b, (expr[]){expr_words(b, ".0"), zeros}, 2));
}

/* The rest of a number whose whole part equals the bound's: nothing, or a point and digits. */
static expr part_within(build *b, const char *f, bool larger, bool open)
{
    expr_list all = {0};
    size_t n = strlen(f);
    expr zeros = expr_repeat(b, expr_words(b, "0"), 0, REPEAT_MANY);
    expr point = expr_words(b, "."), any = digits(b, 0, REPEAT_MANY);
    for (size_t i = 0; i < n; i++)
        expr_list_add(b, &all, expr_then(b, point, differ(b, f, i, larger, any)));
    if (!open) expr_list_add(b, &all, same_part(b, f));
    expr nonzero = expr_seq(b, (expr[]){zeros, digit(b, '1', '9'), any}, 3);
    if (larger)
        expr_list_add(b, &all, expr_seq(b, (expr[]){point, expr_text(b, f, n), nonzero}, 3));
    for (size_t i = 0; i < n && !larger; i++) // fewer digits, and then zeros
        expr_list_add(b, &all,
                      i == 0 ? expr_empty(b)
                             : expr_seq(b, (expr[]){point, expr_text(b, f, i), zeros}, 3));
    return build_ok(b) ? expr_alt(b, all.items, all.n) : 0;
}

/* Numbers without a sign that are at least (or at most) a bound; `open`: not the bound itself. */
static expr beyond(build *b, const decimal *d, bool larger, bool open)
{
    expr fraction = expr_then(b, expr_words(b, "."), digits(b, 1, REPEAT_MANY));
    expr far = expr_then(b, whole_beyond(b, d->whole, larger), expr_optional(b, fraction));
    expr near = expr_then(b, expr_words(b, d->whole), part_within(b, d->part, larger, open));
    return expr_or(b, far, near);
}

/* Numbers without sign and needless zeros. */
static language *plain_numbers(build *b, bool integer)
{
    expr whole =
        expr_or(b, expr_words(b, "0"), expr_then(b, digit(b, '1', '9'), digits(b, 0, REPEAT_MANY)));
    expr fraction = expr_then(b, expr_words(b, "."), digits(b, 1, REPEAT_MANY));
    return language_of(b, integer ? whole : expr_then(b, whole, expr_optional(b, fraction)));
}

/* ---- multiples ------------------------------------------------------------------------------- */

/* Numbers without sign that are multiples of m / 10^places: the state is the remainder of the
 * digits so far, and how many of them stand behind the point. */
static language *multiples(schema_reader *r, uint64_t m, uint32_t places)
{
    build *b = r->b;
    language_writer w = {.b = b};
    uint64_t phases = (uint64_t)places + 2; // before the point, behind 0 .. places digits
    if (m == 0 || m * phases > LANGUAGE_STATES_MAX) {
        schema_fail(r, STATUS_UNSUPPORTED, "multipleOf", "this factor is not supported");
        return NULL;
    }
    for (uint32_t phase = 0; phase < phases; phase++) {
        // The factor that is left is 10^places before the point.
        uint32_t left = phase == 0 ? places : places - (phase - 1);
        uint64_t power = 1;
        for (uint32_t i = 0; i < left; i++) power = power * 10 % m;
        for (uint64_t rest = 0; rest < m && build_work(b, 10); rest++) {
            bool last = phase == phases - 1;
            uint32_t next = phase == 0 ? 0 : last ? phase : phase + 1;
            writer_state(&w, rest * power % m == 0);
            if (phase == 0)
                writer_edge(&w, '.', '.', (uint32_t)(m + rest)); // sorted: '.' is below '0'
            for (uint32_t c = 0; c < (last ? 1u : 10u); c++) {
                uint64_t to = last ? rest : (rest * 10 + c) % m;
                writer_edge(&w, '0' + c, '0' + c, (uint32_t)(next * m + to));
            }
        }
    }
    return writer_finish(&w);
}

static language *with_multiple(schema_reader *r, language *l, const json_t *factor)
{
    decimal d = {0};
    uint64_t m = 0;
    if (json_is_number(factor)) d = decimal_of(factor);
    if (d.negative || !json_is_number(factor) || json_number_value(factor) <= 0) {
        schema_fail(r, STATUS_INVALID, "multipleOf", "must be a number above 0");
        return l;
    }
    for (const char *c = d.whole; *c && m < 1000000; c++) m = m * 10 + (uint64_t)(*c - '0');
    for (const char *c = d.part; *c && m < 1000000; c++) m = m * 10 + (uint64_t)(*c - '0');
    language *all = multiples(r, m, (uint32_t)strlen(d.part));
    return all ? language_and(r->b, l, all) : l;
}

/* ---- the two sides of zero ------------------------------------------------------------------- */

typedef struct bounds {
    bool has_low, has_high, low_open, high_open;
    decimal low, high;
} bounds;

/* Without the numbers of this sign that the schema forbids, however they are written. */
static language *without_values(schema_reader *r, language *l, const json_t *s, bool negative)
{
    build *b = r->b;
    expr_list all = {0};
    const json_t *v;
    size_t i;
    json_array_foreach(json_object_get(s, SCHEMA_NOT_VALUES), i, v)
    {
        if (!json_is_number(v) || !build_work(b, NUMBER_WORK)) continue;
        decimal d = decimal_of(v);
        if (d.negative == negative)
            expr_list_add(b, &all, expr_then(b, expr_words(b, d.whole), same_part(b, d.part)));
    }
    if (json_object_get(s, SCHEMA_NOT_WHOLE))
        expr_list_add(b, &all, expr_then(b, digits(b, 1, REPEAT_MANY), same_part(b, "")));
    if (!build_ok(b) || all.n == 0) return l;
    language *values = language_of(b, expr_alt(b, all.items, all.n));
    return values ? language_without(b, l, values) : l;
}

/* Whether the schema forbids single numbers. */
static bool forbids_numbers(const json_t *s)
{
    const json_t *v;
    size_t i;
    json_array_foreach(json_object_get(s, SCHEMA_NOT_VALUES), i,
                       v) if (json_is_number(v)) return true;
    return json_object_get(s, SCHEMA_NOT_WHOLE) != NULL;
}

/* Numbers of one sign. Their distance from zero is at least `near` and at most `far`. */
static language *one_side(schema_reader *r, const json_t *s, bool integer, const bounds *b,
                          bool negative)
{
    const decimal *near = negative ? &b->high : &b->low, *far = negative ? &b->low : &b->high;
    bool has_near = negative ? b->has_high : b->has_low,
         has_far = negative ? b->has_low : b->has_high;
    bool near_open = negative ? b->high_open : b->low_open;
    bool far_open = negative ? b->low_open : b->high_open;
    decimal zero = {.whole = "0"};
    language *l = plain_numbers(r->b, integer);
    bool far_zero = strcmp(far->whole, "0") == 0 && !far->part[0];
    if (has_far && (far->negative != negative) && (negative || far->negative)) return NULL;
    if (has_far && far_zero && negative) return NULL;
    if (negative && (!has_near || !near->negative)) { // -0 is written as 0
        near = &zero;
        has_near = near_open = true;
    }
    if ((has_near && near->negative == negative) || near == &zero)
        l = language_and(r->b, l, language_of(r->b, beyond(r->b, near, true, near_open)));
    if (has_far && build_ok(r->b))
        l = language_and(r->b, l, language_of(r->b, beyond(r->b, far, false, far_open)));
    if (build_ok(r->b)) l = without_values(r, l, s, negative);
    const json_t *factor = json_object_get(s, "multipleOf");
    return factor && build_ok(r->b) ? with_multiple(r, l, factor) : l;
}

/* Reads "minimum" and "exclusiveMinimum", or the other two; draft 4 has a boolean beside it. */
static void read_bound(schema_reader *r, const json_t *s, const char *closed, const char *open,
                       int direction, decimal *out, bool *has, bool *is_open)
{
    const json_t *c = json_object_get(s, closed), *o = json_object_get(s, open), *v = c;
    if (c && !json_is_number(c)) schema_fail(r, STATUS_INVALID, closed, "must be a number");
    if (o && !json_is_number(o) && !json_is_boolean(o))
        schema_fail(r, STATUS_INVALID, open, "must be a number");
    *is_open = json_is_true(o);
    if (json_is_number(o) && (!c || schema_compare(o, c) * direction >= 0)) {
        v = o;
        *is_open = true;
    }
    *has = json_is_number(v);
    if (*has) *out = decimal_of(v);
}

expr schema_number(schema_reader *r, const json_t *schema, bool integer)
{
    build *b = r->b;
    bounds limits = {.low = {.whole = "0"}, .high = {.whole = "0"}};
    read_bound(r, schema, "minimum", "exclusiveMinimum", 1, &limits.low, &limits.has_low,
               &limits.low_open);
    read_bound(r, schema, "maximum", "exclusiveMaximum", -1, &limits.high, &limits.has_high,
               &limits.high_open);
    if (!build_ok(b)) return 0;
    if (!limits.has_low && !limits.has_high && !json_object_get(schema, "multipleOf") &&
        !forbids_numbers(schema))
        return json_expr(b, integer ? RULE_INTEGER : RULE_NUMBER);
    language *above = one_side(r, schema, integer, &limits, false);
    language *below = one_side(r, schema, integer, &limits, true);
    if (!build_ok(b)) return 0;
    expr up = above ? expr_language(b, above) : expr_never(b);
    expr down = below ? expr_then(b, expr_words(b, "-"), expr_language(b, below)) : expr_never(b);
    uint32_t rule = rule_create(b, NULL);
    rule_define(b, rule, expr_or(b, up, down));
    return expr_rule(b, rule);
}
