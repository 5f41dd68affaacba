/* Methods of strings, lists and mappings, one row each. */
#include "text/chat_template/render.h"
#include "text/chat_template/scope.h"

#define METHOD(name)                                                                               \
    static bool name(render *r, value self, const value *args, const call_args *call, value *out)

/* ---- strings ---- */

static bool strip_text(render *r, value self, value chars, bool left, bool right, value *out)
{
    text set = {NULL, 0};
    if (!arg_text(r, "strip", chars, &set) || !render_step(r, self.size)) return false;
    *out = value_text(text_strip(text_of(self), set, left, right));
    return true;
}

METHOD(str_strip)
{
    (void)call;
    return strip_text(r, self, args[0], true, true, out);
}

METHOD(str_lstrip)
{
    (void)call;
    return strip_text(r, self, args[0], true, false, out);
}

METHOD(str_rstrip)
{
    (void)call;
    return strip_text(r, self, args[0], false, true, out);
}

static bool push_text(render *r, list *l, const char *s, size_t n)
{
    return list_push(r, l, value_text((text){s, n}));
}

static void reverse_list(list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        value v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

/* Splits at white space. After max words the rest is one item; from the right, it is the first. */
static bool split_words(render *r, text t, int64_t max, bool from_right, list *l)
{
    text none = {NULL, 0};
    while ((t = text_strip(t, none, !from_right, from_right)).n > 0) {
        if (max-- == 0) return push_text(r, l, t.s, t.n); /* its other end is not stripped */
        size_t at = from_right ? t.n : 0;
        for (;;) { /* character by character, until white space */
            size_t n, next = at;
            if (from_right) {
                if (at == 0) break;
                do next--;
                while (next > 0 && ((unsigned char)t.s[next] & 0xc0) == 0x80);
                n = at - next;
            } else {
                if (at >= t.n) break;
                n = text_char_size(t, at);
            }
            if (text_is_class((text){t.s + next, n}, CLASS_SPACE)) break;
            at = from_right ? next : at + n;
        }
        bool ok = from_right ? push_text(r, l, t.s + at, t.n - at) : push_text(r, l, t.s, at);
        if (!ok || !render_step(r, 0)) return false;
        t = from_right ? (text){t.s, at} : (text){t.s + at, t.n - at};
    }
    return true;
}

static bool split_at(render *r, text t, text separator, int64_t max, bool from_right, list *l)
{
    for (;; max--) {
        size_t at = max == 0     ? SIZE_MAX
                    : from_right ? text_rfind(t, separator)
                                 : text_find(t, separator, 0);
        if (at == SIZE_MAX) return push_text(r, l, t.s, t.n);
        size_t end = at + separator.n;
        bool ok = from_right ? push_text(r, l, t.s + end, t.n - end) : push_text(r, l, t.s, at);
        if (!ok || !render_step(r, 0)) return false;
        t = from_right ? (text){t.s, at} : (text){t.s + end, t.n - end};
    }
}

static bool split_text(render *r, value self, const value *args, bool from_right, value *out)
{
    text separator = {NULL, 0};
    int64_t max = -1;
    list *l = list_new(r, 0);
    if (!l || !arg_text(r, "split", args[0], &separator) || !arg_int(r, args[1], &max) ||
        !render_step(r, self.size))
        return false;
    if (separator.s && separator.n == 0) return render_fail(r, STATUS_INVALID, "empty separator");
    if (max < 0) max = INT64_MAX;
    if (!(separator.s ? split_at(r, text_of(self), separator, max, from_right, l)
                      : split_words(r, text_of(self), max, from_right, l)))
        return false;
    if (from_right) reverse_list(l);
    *out = value_list(l);
    return true;
}

METHOD(str_split)
{
    (void)call;
    return split_text(r, self, args, false, out);
}

METHOD(str_rsplit)
{
    (void)call;
    return split_text(r, self, args, true, out);
}

METHOD(str_splitlines)
{
    (void)call;
    list *l = list_new(r, 0);
    text t = text_of(self), line;
    size_t at = 0, from = 0;
    if (!l || !render_step(r, t.n)) return false;
    while (text_next_line(t, &at, &line)) {
        if (arg_truth(args[0])) line.n = at - from;
        from = at;
        if (!list_push(r, l, value_text(line))) return false;
    }
    *out = value_list(l);
    return true;
}

/* startswith and endswith; the argument may be a tuple of texts. */
static bool has_affix(render *r, value self, value affix, bool end, value *out)
{
    const value *items = &affix;
    size_t n = 1;
    if (affix.kind == V_TUPLE) {
        items = affix.list->items;
        n = affix.list->n;
    }
    *out = value_bool(false);
    for (size_t i = 0; i < n; i++) {
        text a = {0}, t = text_of(self);
        if (items[i].kind != V_STRING)
            return render_fail(r, STATUS_INVALID,
                               "%s first arg must be str or a tuple of str, not %s",
                               end ? "endswith" : "startswith", value_type(items[i]));
        a = text_of(items[i]);
        if (a.n > t.n) continue;
        if (a.n == 0 || memcmp(end ? t.s + t.n - a.n : t.s, a.s, a.n) == 0) out->b = true;
    }
    return true;
}

METHOD(str_startswith)
{
    (void)call;
    return has_affix(r, self, args[0], false, out);
}

METHOD(str_endswith)
{
    (void)call;
    return has_affix(r, self, args[0], true, out);
}

static bool remove_affix(render *r, value self, value affix, bool end, value *out)
{
    text a = {NULL, 0}, t = text_of(self);
    if (!arg_text(r, "removeprefix", affix, &a)) return false;
    value has;
    if (!has_affix(r, self, affix, end, &has)) return false;
    if (has.b) t = end ? (text){t.s, t.n - a.n} : (text){t.s + a.n, t.n - a.n};
    *out = value_text(t);
    return true;
}

METHOD(str_removeprefix)
{
    (void)call;
    return remove_affix(r, self, args[0], false, out);
}

METHOD(str_removesuffix)
{
    (void)call;
    return remove_affix(r, self, args[0], true, out);
}

METHOD(str_lower)
{
    (void)args, (void)call;
    return text_to_case(r, text_of(self), CASE_LOWER, out);
}

METHOD(str_upper)
{
    (void)args, (void)call;
    return text_to_case(r, text_of(self), CASE_UPPER, out);
}

METHOD(str_capitalize)
{
    (void)args, (void)call;
    return text_to_case(r, text_of(self), CASE_CAPITALIZE, out);
}

METHOD(str_title)
{
    (void)args, (void)call;
    return text_to_case(r, text_of(self), CASE_TITLE, out);
}

METHOD(str_replace)
{
    (void)call;
    text from = {0}, to = {0};
    int64_t count = -1;
    if (args[0].kind != V_STRING || args[1].kind != V_STRING)
        return render_fail(r, STATUS_INVALID, "replace() argument must be str, not %s",
                           value_type(args[args[0].kind == V_STRING]));
    from = text_of(args[0]);
    to = text_of(args[1]);
    return arg_int(r, args[2], &count) && text_replace(r, text_of(self), from, to, count, out);
}

/* The position of a needle within [start, end), in code points, or -1. */
static bool find_in(render *r, value self, const value *args, bool last, int64_t *out)
{
    text needle = {0};
    size_t length;
    if (args[0].kind != V_STRING)
        return render_fail(r, STATUS_INVALID, "must be str, not %s", value_type(args[0]));
    needle = text_of(args[0]);
    if (!value_length(r, self, &length)) return false;
    int64_t n = (int64_t)length, start = 0, end = n;
    if (args[1].kind != V_NONE && !arg_int(r, args[1], &start)) return false;
    if (args[2].kind != V_NONE && !arg_int(r, args[2], &end)) return false;
    if (start < 0) start = start + n < 0 ? 0 : start + n;
    if (end < 0) end = end + n < 0 ? 0 : end + n;
    if (end > n) end = n;
    *out = -1;
    if (start > end) return true;
    text t = text_of(self);
    size_t from = text_offset(t, (size_t)start), to = text_offset(t, (size_t)end);
    text part = {t.s + from, to - from};
    size_t at = last ? text_rfind(part, needle) : text_find(part, needle, 0);
    if (at != SIZE_MAX) *out = start + (int64_t)text_length((text){part.s, at});
    return render_step(r, t.n);
}

METHOD(str_find)
{
    (void)call;
    int64_t at = -1;
    if (!find_in(r, self, args, false, &at)) return false;
    *out = value_int(at);
    return true;
}

METHOD(str_rfind)
{
    (void)call;
    int64_t at = -1;
    if (!find_in(r, self, args, true, &at)) return false;
    *out = value_int(at);
    return true;
}

METHOD(str_index)
{
    if (!str_find(r, self, args, call, out)) return false;
    return out->i >= 0 || render_fail(r, STATUS_INVALID, "substring not found");
}

METHOD(str_count)
{
    (void)call;
    text needle = {0}, t = text_of(self);
    int64_t n = 0;
    if (args[0].kind != V_STRING)
        return render_fail(r, STATUS_INVALID, "must be str, not %s", value_type(args[0]));
    needle = text_of(args[0]);
    if (needle.n == 0) n = (int64_t)text_length(t) + 1;
    for (size_t at = 0; needle.n > 0 && (at = text_find(t, needle, at)) != SIZE_MAX; n++)
        at += needle.n;
    *out = value_int(n);
    return render_step(r, t.n);
}

METHOD(str_join)
{
    (void)call;
    value *items;
    size_t n;
    builder b = builder_new(r);
    if (!value_items(r, args[0], &items, &n)) return false;
    for (size_t i = 0; i < n && !b.failed; i++) {
        if (items[i].kind != V_STRING)
            return render_fail(r, STATUS_INVALID,
                               "sequence item %zu: expected str instance, %s found", i,
                               value_type(items[i]));
        if (i) builder_add(&b, text_of(self));
        builder_add(&b, text_of(items[i]));
    }
    return builder_finish(&b, out);
}

static bool partition(render *r, value self, value separator, bool last, value *out)
{
    text t = text_of(self), s = {NULL, 0};
    list *l = list_new(r, 3);
    if (!l || !arg_text(r, "partition", separator, &s)) return false;
    if (s.n == 0) return render_fail(r, STATUS_INVALID, "empty separator");
    size_t at = last ? text_rfind(t, s) : text_find(t, s, 0);
    text parts[3] = {t, TEXT(""), TEXT("")};
    if (at != SIZE_MAX) {
        parts[0].n = at;
        parts[1] = s;
        parts[2] = (text){t.s + at + s.n, t.n - at - s.n};
    } else if (last) {
        parts[2] = t;
        parts[0] = TEXT("");
    }
    for (int i = 0; i < 3; i++) l->items[i] = value_text(parts[i]);
    l->n = 3;
    *out = value_tuple(l);
    return render_step(r, t.n);
}

METHOD(str_format)
{
    (void)args;
    return value_brace_format(r, text_of(self), call, out);
}

METHOD(str_partition)
{
    (void)call;
    return partition(r, self, args[0], false, out);
}

METHOD(str_rpartition)
{
    (void)call;
    return partition(r, self, args[0], true, out);
}

static bool is_class(render *r, value self, enum text_class wanted, value *out)
{
    *out = value_bool(text_is_class(text_of(self), wanted));
    return render_step(r, self.size);
}

METHOD(str_isalpha)
{
    (void)args, (void)call;
    return is_class(r, self, CLASS_ALPHA, out);
}

METHOD(str_isalnum)
{
    (void)args, (void)call;
    return is_class(r, self, CLASS_ALNUM, out);
}

METHOD(str_isdigit)
{
    (void)args, (void)call;
    return is_class(r, self, CLASS_DIGIT, out);
}

METHOD(str_isspace)
{
    (void)args, (void)call;
    return is_class(r, self, CLASS_SPACE, out);
}

METHOD(str_islower)
{
    (void)args, (void)call;
    return is_class(r, self, CLASS_LOWER, out);
}

METHOD(str_isupper)
{
    (void)args, (void)call;
    return is_class(r, self, CLASS_UPPER, out);
}

/* ---- mappings ---- */

METHOD(dict_method_items)
{
    (void)args, (void)call;
    return value_view(r, VIEW_ITEMS, self.dict, out);
}

METHOD(dict_method_keys)
{
    (void)args, (void)call;
    return value_view(r, VIEW_KEYS, self.dict, out);
}

METHOD(dict_method_values)
{
    (void)args, (void)call;
    return value_view(r, VIEW_VALUES, self.dict, out);
}

METHOD(dict_method_get)
{
    (void)call;
    if (!value_hashable(args[0]))
        return render_fail(r, STATUS_INVALID, "unhashable type: '%s'", value_type(args[0]));
    const value *v = dict_get(r, self.dict, args[0]);
    *out = v ? *v : arg_given(args[1]) ? args[1] : value_none();
    return true;
}

/* Returns self, because a list or mapping never changes once it is made. */
METHOD(copy)
{
    (void)r, (void)args, (void)call;
    *out = self;
    return true;
}

/* ---- lists, tuples, ranges ---- */

METHOD(list_index)
{
    (void)call;
    value *items;
    size_t n;
    if (!value_items(r, self, &items, &n)) return false;
    for (size_t i = 0; i < n; i++) {
        bool equal;
        if (!value_equal(r, items[i], args[0], &equal)) return false;
        if (!equal) continue;
        *out = value_int((int64_t)i);
        return true;
    }
    return render_fail(r, STATUS_INVALID, "the value is not in the list");
}

METHOD(list_count)
{
    (void)call;
    value *items;
    size_t n;
    int64_t count = 0;
    if (!value_items(r, self, &items, &n)) return false;
    for (size_t i = 0; i < n; i++) {
        bool equal;
        if (!value_equal(r, items[i], args[0], &equal)) return false;
        count += equal;
    }
    *out = value_int(count);
    return true;
}

/* ---- loop ---- */

METHOD(loop_cycle)
{
    (void)args;
    if (call->n_positional == 0)
        return render_fail(r, STATUS_INVALID, "no items for cycling given");
    *out = call->positional[self.loop->index0 % call->n_positional];
    return true;
}

/* Whether the arguments differ from those of the last call, or this is the first call. */
METHOD(loop_changed)
{
    (void)args;
    list *l = list_new(r, call->n_positional);
    bool equal = false;
    if (!l) return false;
    for (size_t i = 0; i < call->n_positional; i++) l->items[i] = call->positional[i];
    l->n = call->n_positional;
    value now = value_tuple(l);
    if (arg_given(self.loop->changed) && !value_equal(r, self.loop->changed, now, &equal))
        return false;
    self.loop->changed = now;
    *out = value_bool(!equal);
    return true;
}

enum {
    STR = 1u << V_STRING,
    SEQUENCE = 1u << V_LIST | 1u << V_TUPLE | 1u << V_RANGE,
    MAPPING = 1u << V_DICT,
    LOOP = 1u << V_LOOP,
};

const builtin tmpl_methods[] = {
    {"strip", "chars", 0, str_strip, STR},
    {"lstrip", "chars", 0, str_lstrip, STR},
    {"rstrip", "chars", 0, str_rstrip, STR},
    {"split", "sep maxsplit", 0, str_split, STR},
    {"rsplit", "sep maxsplit", 0, str_rsplit, STR},
    {"splitlines", "keepends", 0, str_splitlines, STR},
    {"startswith", "prefix", 1, str_startswith, STR},
    {"endswith", "suffix", 1, str_endswith, STR},
    {"removeprefix", "prefix", 1, str_removeprefix, STR},
    {"removesuffix", "suffix", 1, str_removesuffix, STR},
    {"lower", "", 0, str_lower, STR},
    {"upper", "", 0, str_upper, STR},
    {"capitalize", "", 0, str_capitalize, STR},
    {"title", "", 0, str_title, STR},
    {"replace", "old new count", 2, str_replace, STR},
    {"find", "sub start end", 1, str_find, STR},
    {"rfind", "sub start end", 1, str_rfind, STR},
    {"index", "sub start end", 1, str_index, STR},
    {"count", "sub", 1, str_count, STR},
    {"join", "iterable", 1, str_join, STR},
    {"format", NULL, 0, str_format, STR},
    {"partition", "sep", 1, str_partition, STR},
    {"rpartition", "sep", 1, str_rpartition, STR},
    {"isalpha", "", 0, str_isalpha, STR},
    {"isalnum", "", 0, str_isalnum, STR},
    {"isdigit", "", 0, str_isdigit, STR},
    {"isspace", "", 0, str_isspace, STR},
    {"islower", "", 0, str_islower, STR},
    {"isupper", "", 0, str_isupper, STR},
    {"items", "", 0, dict_method_items, MAPPING},
    {"keys", "", 0, dict_method_keys, MAPPING},
    {"values", "", 0, dict_method_values, MAPPING},
    {"get", "key default", 1, dict_method_get, MAPPING},
    {"copy", "", 0, copy, MAPPING | 1u << V_LIST},
    {"index", "value", 1, list_index, SEQUENCE},
    {"count", "value", 1, list_count, SEQUENCE},
    {"cycle", NULL, 0, loop_cycle, LOOP},
    {"changed", NULL, 0, loop_changed, LOOP},
    {0},
};
