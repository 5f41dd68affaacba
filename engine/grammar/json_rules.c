/* JSON's own rules, and values as JSON text. */
#include "engine/grammar/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static expr one_of(build *b, const char *bytes)
{
    char_set s = {0};
    for (; *bytes; bytes++) char_set_add(b, &s, (uint8_t)*bytes, (uint8_t)*bytes);
    return expr_chars(b, &s);
}

static expr digits(build *b) { return expr_range(b, '0', '9'); }

expr json_space(build *b)
{
    return b->compact ? expr_empty(b) : expr_repeat(b, one_of(b, " \n\t"), 0, REPEAT_MANY);
}

expr json_comma(build *b)
{
    if (b->compact) return expr_words(b, ", ");
    return expr_seq(b, (expr[]){json_space(b), expr_words(b, ","), json_space(b)}, 3);
}

expr json_colon(build *b)
{
    if (b->compact) return expr_words(b, ": ");
    return expr_seq(b, (expr[]){json_space(b), expr_words(b, ":"), json_space(b)}, 3);
}

/* ---- strings --------------------------------------------------------------------------------- */

static expr hex_digits(build *b, unsigned n)
{
    expr digit = one_of(b, "0123456789abcdefABCDEF");
    return expr_repeat(b, digit, n, n);
}

/* \uXXXX: a character, or two surrogates that are one. */
static expr unicode_escape(build *b)
{
    expr low[] = {expr_words(b, "\\u"), one_of(b, "dD"), one_of(b, "cdefCDEF"), hex_digits(b, 2)};
    expr high[] = {one_of(b, "dD"), one_of(b, "89abAB"), hex_digits(b, 2), expr_seq(b, low, 4)};
    expr plain[] = {one_of(b, "0123456789abcefABCEF"), hex_digits(b, 3)};
    expr rest[] = {one_of(b, "dD"), one_of(b, "01234567"), hex_digits(b, 2)};
    expr forms[] = {expr_seq(b, plain, 2), expr_seq(b, rest, 3), expr_seq(b, high, 4)};
    return expr_then(b, expr_words(b, "u"), expr_alt(b, forms, 3));
}

static expr string_char(build *b)
{
    char_set plain = {0};
    char_set_add(b, &plain, '"', '"');
    char_set_add(b, &plain, '\\', '\\');
    char_set_add(b, &plain, 0, 0x1f);
    char_set_invert(b, &plain);
    expr escape = expr_or(b, one_of(b, "\"\\/bfnrt"), unicode_escape(b));
    return expr_or(b, expr_chars(b, &plain), expr_then(b, expr_words(b, "\\"), escape));
}

static expr quoted(build *b, expr inside)
{
    return expr_seq(b, (expr[]){expr_words(b, "\""), inside, expr_words(b, "\"")}, 3);
}

language *json_any_text(build *b)
{
    return language_of(b, expr_repeat(b, expr_any_char(b), 0, REPEAT_MANY));
}

static expr key_string(build *b)
{
    return quoted(b, expr_language(b, language_json(b, json_any_text(b))));
}

/* ---- numbers, lists -------------------------------------------------------------------------- */

static expr integer(build *b)
{
    expr rest = expr_repeat(b, digits(b), 0, REPEAT_MANY);
    expr some = expr_then(b, expr_range(b, '1', '9'), rest);
    return expr_then(b, expr_optional(b, expr_words(b, "-")), expr_or(b, expr_words(b, "0"), some));
}

static expr number(build *b)
{
    expr many = expr_repeat(b, digits(b), 1, REPEAT_MANY);
    expr fraction = expr_then(b, expr_words(b, "."), many);
    expr sign = expr_optional(b, one_of(b, "+-"));
    expr exponent = expr_seq(b, (expr[]){one_of(b, "eE"), sign, many}, 3);
    expr parts[] = {integer(b), expr_optional(b, fraction), expr_optional(b, exponent)};
    return expr_seq(b, parts, 3);
}

/* open ws (element (comma element)*)? ws close */
static expr list_of(build *b, const char *open, expr element, const char *close)
{
    expr more = expr_repeat(b, expr_then(b, json_comma(b), element), 0, REPEAT_MANY);
    expr some = expr_seq(b, (expr[]){element, more, json_space(b)}, 3);
    expr parts[] = {expr_words(b, open), json_space(b), expr_optional(b, some),
                    expr_words(b, close)};
    return expr_seq(b, parts, 4);
}

static expr any_object(build *b)
{
    expr pair[] = {json_expr(b, RULE_STRING), json_colon(b), json_expr(b, RULE_VALUE)};
    return list_of(b, "{", expr_seq(b, pair, 3), "}");
}

static expr any_value(build *b)
{
    expr kinds[] = {json_expr(b, RULE_OBJECT), json_expr(b, RULE_ARRAY), json_expr(b, RULE_STRING),
                    json_expr(b, RULE_NUMBER), expr_words(b, "true"),    expr_words(b, "false"),
                    expr_words(b, "null")};
    return expr_alt(b, kinds, 7);
}

static expr rule_body(build *b, json_rule which)
{
    switch (which) {
    case RULE_VALUE: return any_value(b);
    case RULE_STRING: return quoted(b, expr_repeat(b, string_char(b), 0, REPEAT_MANY));
    case RULE_CHAR: return string_char(b);
    case RULE_KEY: return key_string(b);
    case RULE_INTEGER: return integer(b);
    case RULE_NUMBER: return number(b);
    case RULE_OBJECT: return any_object(b);
    case RULE_ARRAY: return list_of(b, "[", json_expr(b, RULE_VALUE), "]");
    }
    return expr_never(b);
}

expr json_expr(build *b, json_rule which)
{
    if (!build_ok(b)) return 0;
    if (which == RULE_CHAR) return string_char(b);
    if (b->json[which] == NONE) {
        uint32_t rule = b->json[which] = rule_create(b, NULL);
        rule_define(b, rule, rule_body(b, which));
    }
    return expr_rule(b, b->json[which]);
}

uint32_t front_json_object(build *b)
{
    json_expr(b, RULE_OBJECT);
    return b->json[RULE_OBJECT];
}

/* ---- literals -------------------------------------------------------------------------------- */

void json_literal_text(build *b, const json_t *value, strbuf *out)
{
    char text[64];
    if (json_is_string(value)) {
        strbuf_json_string(out, json_string_value(value), json_string_length(value));
    } else if (json_is_integer(value)) {
        strbuf_printf(out, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        // The shortest decimals that read back as the same number.
        for (int precision = 15; precision <= 17; precision++) { // zeros at the end are left out
            double back = 0;
            snprintf(text, sizeof text, "%.*g", precision, json_real_value(value));
            if (sscanf(text, "%lf", &back) == 1 && back == json_real_value(value)) break;
        }
        strbuf_puts(out, text);
    } else {
        strbuf_puts(out, json_is_true(value) ? "true" : json_is_false(value) ? "false" : "null");
    }
    if (out->failed) build_fail(b, STATUS_NO_MEMORY, "out of memory");
}

static expr literal_text(build *b, const json_t *value)
{
    strbuf out = {0};
    json_literal_text(b, value, &out);
    expr e = build_ok(b) ? expr_text(b, out.data, out.size) : 0;
    strbuf_destroy(&out);
    return e;
}

static expr enclosed(build *b, const char *open, const expr_list *items, const char *close)
{
    expr_list parts = {0};
    expr_list_add(b, &parts, expr_words(b, open));
    expr_list_add(b, &parts, json_space(b));
    for (uint32_t i = 0; i < items->n && build_ok(b); i++) {
        if (i > 0) expr_list_add(b, &parts, json_comma(b));
        expr_list_add(b, &parts, items->items[i]);
    }
    if (items->n > 0) expr_list_add(b, &parts, json_space(b));
    expr_list_add(b, &parts, expr_words(b, close));
    return build_ok(b) ? expr_seq(b, parts.items, parts.n) : 0;
}

expr json_literal(build *b, const json_t *value)
{
    expr_list items = {0};
    if (!build_work(b, 1)) return 0;
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++)
            expr_list_add(b, &items, json_literal(b, json_array_get(value, i)));
        return enclosed(b, "[", &items, "]");
    }
    if (!json_is_object(value)) return literal_text(b, value);
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        strbuf name = {0};
        strbuf_json_string(&name, key, strlen(key));
        if (name.failed) build_fail(b, STATUS_NO_MEMORY, "out of memory");
        expr text = build_ok(b) ? expr_text(b, name.data, name.size) : 0;
        strbuf_destroy(&name);
        expr pair[] = {text, json_colon(b), json_literal(b, member)};
        expr_list_add(b, &items, expr_seq(b, pair, 3));
    }
    return enclosed(b, "{", &items, "}");
}
