/* Filters of single values: text, numbers, JSON. */
#include "text/chat_template/render.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FILTER(name)                                                                               \
    static bool name(render *r, value self, const value *args, const call_args *call, value *out)

FILTER(filter_string)
{
    (void)args, (void)call;
    return value_str(r, self, out);
}

FILTER(filter_safe)
{
    (void)args, (void)call;
    if (!value_str(r, self, out)) return false;
    out->safe = true;
    return true;
}

FILTER(filter_trim)
{
    (void)call;
    text chars = {NULL, 0};
    value t;
    if (!value_str(r, self, &t) || !arg_text(r, "trim", args[0], &chars)) return false;
    *out = value_text(text_strip(text_of(t), chars, true, true));
    return render_step(r, t.size);
}

static bool to_case(render *r, value self, enum text_case to, value *out)
{
    value t;
    return value_str(r, self, &t) && text_to_case(r, text_of(t), to, out);
}

FILTER(filter_lower)
{
    (void)args, (void)call;
    return to_case(r, self, CASE_LOWER, out);
}

FILTER(filter_upper)
{
    (void)args, (void)call;
    return to_case(r, self, CASE_UPPER, out);
}

FILTER(filter_capitalize)
{
    (void)args, (void)call;
    return to_case(r, self, CASE_CAPITALIZE, out);
}

static bool starts_word_after(text t, size_t at)
{
    return code_point_is_space((unsigned char)t.s[at]) || strchr("-({[<", t.s[at]);
}

/* Capitalises words by Jinja's rule: white space, '-' and opening brackets separate words. */
FILTER(filter_title)
{
    (void)args, (void)call;
    value whole, part;
    builder b = builder_new(r);
    if (!value_str(r, self, &whole)) return false;
    text t = text_of(whole);
    for (size_t i = 0; i < t.n && !b.failed;) {
        size_t end = i, first = text_char_size(t, i);
        bool gap = starts_word_after(t, i);
        while (end < t.n && starts_word_after(t, end) == gap) end += text_char_size(t, end);
        if (gap) first = end - i;
        if (!text_to_case(r, (text){t.s + i, first}, CASE_UPPER, &part)) return false;
        builder_add(&b, text_of(part));
        if (!text_to_case(r, (text){t.s + i + first, end - i - first}, CASE_LOWER, &part))
            return false;
        builder_add(&b, text_of(part));
        i = end;
    }
    return builder_finish(&b, out);
}

FILTER(filter_replace)
{
    (void)call;
    value t, from, to;
    int64_t count = -1;
    if (!value_str(r, self, &t) || !value_str(r, args[0], &from) || !value_str(r, args[1], &to))
        return false;
    if (args[2].kind != V_NONE && !arg_int(r, args[2], &count)) return false;
    return text_replace(r, text_of(t), text_of(from), text_of(to), count, out);
}

/* Indents every line but the first; empty lines only with `blank`. */
FILTER(filter_indent)
{
    (void)call;
    int64_t width = 4;
    text by = {NULL, 0}, line, t = text_of(self);
    value made;
    builder b = builder_new(r), spaces = builder_new(r);
    if (self.kind != V_STRING) {
        if (self.kind == V_UNDEFINED) return value_fail_undefined(r, self);
        return render_fail(r, STATUS_INVALID, "indent wants a str, not %s", value_type(self));
    }
    if (args[0].kind == V_STRING) {
        by = text_of(args[0]);
    } else {
        if (!arg_int(r, args[0], &width)) return false;
        for (int64_t i = 0; i < width && !spaces.failed; i++) builder_char(&spaces, ' ');
        if (!builder_finish(&spaces, &made)) return false;
        by = text_of(made);
    }
    bool first = arg_truth(args[1]), blank = arg_truth(args[2]);
    if (first) builder_add(&b, by);
    size_t at = 0, n = 0;
    /* A text that ends in a newline has one more, empty line, since Jinja adds "\n" before it
     * splits. */
    while (text_next_line(t, &at, &line)) {
        if (n++) builder_char(&b, '\n');
        if (n > 1 && (blank || line.n)) builder_add(&b, by);
        builder_add(&b, line);
    }
    bool ended = t.n == 0 || at != t.n || line.s + line.n < t.s + t.n;
    if (ended && t.n > 0) {
        builder_char(&b, '\n');
        if (blank) builder_add(&b, by);
    }
    return builder_finish(&b, out);
}

FILTER(filter_default)
{
    (void)r, (void)call;
    bool use = self.kind == V_UNDEFINED || (arg_truth(args[1]) && !value_truth(self));
    *out = !use ? self : arg_given(args[0]) ? args[0] : value_text(TEXT(""));
    return true;
}

FILTER(filter_format)
{
    (void)args;
    value t;
    list *l = list_new(r, call->n_positional);
    dict *d = dict_new(r, call->n_keywords);
    if (!l || !d || !value_str(r, self, &t)) return false;
    if (call->n_positional && call->n_keywords)
        return render_fail(r, STATUS_INVALID,
                           "can't handle positional and keyword arguments at the same time");
    for (size_t i = 0; i < call->n_positional; i++) l->items[i] = call->positional[i];
    l->n = call->n_positional;
    for (size_t i = 0; i < call->n_keywords; i++)
        if (!dict_set(r, d, value_text(call->keywords[i].name), call->keywords[i].value))
            return false;
    return value_percent_format(r, text_of(t), d->n ? value_dict(d) : value_tuple(l), out);
}

/* ---- numbers ---- */

FILTER(filter_abs)
{
    (void)args, (void)call;
    if (self.kind == V_UNDEFINED) return value_fail_undefined(r, self);
    if (!value_is_number(self))
        return render_fail(r, STATUS_INVALID, "bad operand type for abs(): '%s'", value_type(self));
    if (self.kind == V_FLOAT) *out = value_float(fabs(self.f));
    else if (value_as_int(self) < 0) return value_negate(r, self, out);
    else *out = value_int(value_as_int(self));
    return true;
}

/* Python's int(text, base): white space around, a sign, a prefix, underscores between digits. */
static bool parse_int(text t, int64_t base, int64_t *out)
{
    t = text_strip(t, (text){NULL, 0}, true, true);
    bool negative = t.n > 0 && t.s[0] == '-';
    if (t.n > 0 && (t.s[0] == '-' || t.s[0] == '+')) t = (text){t.s + 1, t.n - 1};
    int64_t prefix = 10;
    if (t.n > 1 && t.s[0] == '0') {
        char c = (char)(t.s[1] | 0x20);
        prefix = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
    }
    if (base == 0) base = prefix;
    if (prefix != 10 && prefix == base) t = (text){t.s + 2, t.n - 2};
    else if (t.n > 0 && t.s[0] == '_') return false;
    int64_t v = 0;
    bool digit = false;
    for (size_t i = 0; i < t.n; i++) {
        char c = t.s[i];
        int d = c >= '0' && c <= '9'                     ? c - '0'
                : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                         : 99;
        if (c == '_' && i + 1 < t.n && t.s[i + 1] != '_') continue;
        if (d >= base || __builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, d, &v))
            return false;
        digit = true;
    }
    *out = negative ? -v : v;
    return digit;
}

/* Python's float(text). */
static bool parse_float(text t, double *out)
{
    char buffer[400];
    size_t n = 0;
    t = text_strip(t, (text){NULL, 0}, true, true);
    if (t.n == 0 || t.n >= sizeof buffer) return false;
    for (size_t i = 0; i < t.n; i++) {
        char c = t.s[i];
        bool between = i > 0 && i + 1 < t.n && t.s[i - 1] >= '0' && t.s[i - 1] <= '9' &&
                       t.s[i + 1] >= '0' && t.s[i + 1] <= '9';
        if (c == '_' && between) continue;
        if (c == 'x' || c == 'X' || c == '(' || c == '_' || c == '\0')
            return false; /* only strtod knows these */
        buffer[n++] = c;
    }
    buffer[n] = '\0';
    char *end;
    *out = strtod(buffer, &end);
    return *end == '\0' && end != buffer;
}

static bool to_float(value v, double *out)
{
    if (v.kind == V_STRING) return parse_float(text_of(v), out);
    if (!value_is_number(v)) return false;
    *out = value_as_float(v);
    return true;
}

FILTER(filter_int)
{
    (void)call;
    int64_t base = 10, i;
    double f;
    value fallback = arg_given(args[0]) ? args[0] : value_int(0);
    if (self.kind == V_UNDEFINED) return value_fail_undefined(r, self);
    if (!arg_int(r, args[1], &base)) return false;
    if (base != 0 && (base < 2 || base > 36))
        return render_fail(r, STATUS_INVALID, "int() base must be >= 2 and <= 36, or 0");
    if (value_is_integer(self)) *out = value_int(value_as_int(self));
    else if (self.kind == V_STRING && parse_int(text_of(self), base, &i)) *out = value_int(i);
    else if (!to_float(self, &f) || isnan(f) || (isinf(f) && self.kind == V_STRING))
        *out = fallback;
    else if (fabs(f) >= 9.2e18)
        return render_fail(r, STATUS_LIMIT, "an integer does not fit 64 bits");
    else *out = value_int((int64_t)f);
    return true;
}

FILTER(filter_float)
{
    (void)call;
    double f;
    if (self.kind == V_UNDEFINED) return value_fail_undefined(r, self);
    *out = to_float(self, &f) ? value_float(f) : arg_given(args[0]) ? args[0] : value_float(0);
    return true;
}

FILTER(filter_round)
{
    (void)call;
    int64_t precision = 0;
    char digits[400];
    text method = TEXT("common");
    if (!arg_int(r, args[0], &precision) || !arg_text(r, "round", args[1], &method)) return false;
    if (self.kind == V_UNDEFINED) return value_fail_undefined(r, self);
    if (!value_is_number(self))
        return render_fail(r, STATUS_INVALID, "type %s doesn't define __round__ method",
                           value_type(self));
    if (precision < 0 || precision > 40)
        return render_fail(r, STATUS_UNSUPPORTED, "round: a precision outside 0 to 40");
    double f = value_as_float(self), scale = pow(10, (double)precision);
    if (text_is(method, "ceil")) *out = value_float(ceil(f * scale) / scale);
    else if (text_is(method, "floor")) *out = value_float(floor(f * scale) / scale);
    else if (!text_is(method, "common"))
        return render_fail(r, STATUS_INVALID, "method must be common, ceil or floor");
    else if (value_is_integer(self)) *out = value_int(value_as_int(self));
    else {
        snprintf(digits, sizeof digits, "%.*f", (int)precision, f); /* correctly rounded */
        *out = value_float(strtod(digits, NULL));
    }
    return true;
}

/* ---- JSON ---- */

static bool json_indent(render *r, value indent, json_style *style)
{
    int64_t width = 0;
    value made;
    builder b = builder_new(r);
    if (!arg_given(indent) || indent.kind == V_NONE) return true;
    style->pretty = true;
    style->item_separator = TEXT(",");
    if (indent.kind == V_STRING) {
        style->indent = text_of(indent);
        return true;
    }
    if (!arg_int(r, indent, &width)) return false;
    for (int64_t i = 0; i < width && !b.failed; i++) builder_char(&b, ' ');
    if (!builder_finish(&b, &made)) return false;
    style->indent = text_of(made);
    return true;
}

/* json.dumps(ensure_ascii=False), as Hugging Face defines the filter. */
FILTER(filter_tojson)
{
    (void)call;
    json_style style = {.ensure_ascii = arg_truth(args[0]),
                        .sort_keys = arg_truth(args[3]),
                        .item_separator = TEXT(", "),
                        .key_separator = TEXT(": ")};
    value *separators;
    size_t n;
    if (!json_indent(r, args[1], &style)) return false;
    if (arg_given(args[2]) && args[2].kind != V_NONE) {
        if (!value_items(r, args[2], &separators, &n)) return false;
        if (n != 2 || separators[0].kind != V_STRING || separators[1].kind != V_STRING)
            return render_fail(r, STATUS_INVALID, "tojson: separators must be two strings");
        style.item_separator = text_of(separators[0]);
        style.key_separator = text_of(separators[1]);
    }
    return value_to_json(r, self, &style, out);
}

const builtin tmpl_filters_text[] = {
    {"string", "", 0, filter_string, 0},
    {"safe", "", 0, filter_safe, 0},
    {"trim", "chars", 0, filter_trim, 0},
    {"lower", "", 0, filter_lower, 0},
    {"upper", "", 0, filter_upper, 0},
    {"capitalize", "", 0, filter_capitalize, 0},
    {"title", "", 0, filter_title, 0},
    {"replace", "old new count", 2, filter_replace, 0},
    {"indent", "width first blank", 0, filter_indent, 0},
    {"default", "default_value boolean", 0, filter_default, 0},
    {"d", "default_value boolean", 0, filter_default, 0},
    {"format", NULL, 0, filter_format, 0},
    {"abs", "", 0, filter_abs, 0},
    {"int", "default base", 0, filter_int, 0},
    {"float", "default", 0, filter_float, 0},
    {"round", "precision method", 0, filter_round, 0},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson, 0},
    {0},
};
