/* Functions that every template may call. */
#include "text/chat_template/render.h"
#include <time.h>

#define FUNCTION(name)                                                                             \
    static bool name(render *r, value self, const value *args, const call_args *call, value *out)

enum { RANGE_MAX = 100000 }; /* limit of Jinja's sandbox */

FUNCTION(fn_range)
{
    (void)self, (void)call;
    int64_t start = 0, stop = 0, step = 1;
    bool one = !arg_given(args[1]);
    if (!arg_int(r, args[0], one ? &stop : &start) || !arg_int(r, args[1], &stop) ||
        !arg_int(r, args[2], &step))
        return false;
    if (step == 0) return render_fail(r, STATUS_INVALID, "range() arg 3 must not be zero");
    if (start < -INT64_MAX / 2 || start > INT64_MAX / 2 || stop < -INT64_MAX / 2 ||
        stop > INT64_MAX / 2 || step < -INT64_MAX / 2)
        return render_fail(r, STATUS_LIMIT, "range() is out of range");
    uint64_t distance = step > 0 ? (stop > start ? (uint64_t)(stop - start) : 0)
                                 : (start > stop ? (uint64_t)(start - stop) : 0);
    uint64_t stride = (uint64_t)(step > 0 ? step : -step);
    uint64_t n = distance ? (distance - 1) / stride + 1 : 0;
    if (n > RANGE_MAX)
        return render_fail(r, STATUS_LIMIT,
                           "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                           RANGE_MAX);
    range *g = render_alloc(r, 1, sizeof *g);
    if (!g) return false;
    *g = (range){start, stop, step, (size_t)n};
    *out = (value){.kind = V_RANGE, .range = g};
    return true;
}

static bool add_pairs(render *r, dict *d, value from)
{
    value *items, *pair;
    size_t n, two;
    if (from.kind == V_DICT) {
        for (size_t i = 0; i < from.dict->n; i++)
            if (!dict_set(r, d, from.dict->entries[i].key, from.dict->entries[i].item))
                return false;
        return true;
    }
    if (!value_items(r, from, &items, &n)) return false;
    for (size_t i = 0; i < n; i++) {
        if (!value_items(r, items[i], &pair, &two)) return false;
        if (two != 2)
            return render_fail(
                r, STATUS_INVALID,
                "dictionary update sequence element #%zu has length %zu; 2 is required", i, two);
        if (!value_hashable(pair[0]))
            return render_fail(r, STATUS_INVALID, "unhashable type: '%s'", value_type(pair[0]));
        if (!dict_set(r, d, pair[0], pair[1])) return false;
    }
    return true;
}

FUNCTION(fn_dict)
{
    (void)self, (void)args;
    dict *d = dict_new(r, call->n_keywords);
    if (!d) return false;
    if (call->n_positional > 1)
        return render_fail(r, STATUS_INVALID, "dict expected at most 1 argument, got %zu",
                           call->n_positional);
    if (call->n_positional == 1 && !add_pairs(r, d, call->positional[0])) return false;
    for (size_t i = 0; i < call->n_keywords; i++)
        if (!dict_set(r, d, value_text(call->keywords[i].name), call->keywords[i].value))
            return false;
    *out = value_dict(d);
    return true;
}

FUNCTION(fn_namespace)
{
    if (!fn_dict(r, self, args, call, out)) return false;
    for (size_t i = 0; i < out->dict->n; i++) {
        value key = out->dict->entries[i].key;
        if (key.kind == V_STRING && key.size > 0 && key.s[0] == '_')
            return render_fail(r, STATUS_INVALID,
                               "a namespace cannot have the attribute '%.*s': it begins with '_'",
                               key.size > 200 ? 200 : (int)key.size, key.s);
    }
    out->kind = V_NAMESPACE;
    return true;
}

FUNCTION(fn_raise_exception)
{
    (void)self, (void)call, (void)out;
    value message;
    return value_str(r, args[0], &message) && render_fail_text(r, text_of(message));
}

FUNCTION(fn_strftime_now)
{
    (void)self, (void)call;
    char format[200], buffer[400];
    struct tm tm;
    time_t now = (time_t)r->now_unix;
    text t = {0};
    if (!arg_text(r, "strftime_now", args[0], &t)) return false;
    if (t.n == 0) {
        *out = value_text(TEXT(""));
        return true;
    }
    if (t.n >= sizeof format || memchr(t.s, '\0', t.n) || !gmtime_r(&now, &tm))
        return render_fail(r, STATUS_LIMIT, "strftime_now: the format is too long");
    memcpy(format, t.s, t.n);
    format[t.n] = '\0';
    size_t n = strftime(buffer, sizeof buffer, format, &tm);
    builder b = builder_new(r);
    builder_add(&b, (text){buffer, n});
    return builder_finish(&b, out);
}

const builtin tmpl_functions[] = {
    {"range", "start stop step", 1, fn_range, 0},
    {"dict", NULL, 0, fn_dict, 0},
    {"namespace", NULL, 0, fn_namespace, 0},
    {"raise_exception", "message", 1, fn_raise_exception, 0},
    {"strftime_now", "format", 1, fn_strftime_now, 0},
    {0},
};
