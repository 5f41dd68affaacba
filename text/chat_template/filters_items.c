/* Filters of sequences and mappings. */
#include "text/chat_template/render.h"

#define FILTER(name)                                                                               \
    static bool name(render *r, value self, const value *args, const call_args *call, value *out)

FILTER(filter_length)
{
    (void)args, (void)call;
    size_t n;
    if (!value_length(r, self, &n)) return false;
    *out = value_int((int64_t)n);
    return true;
}

static bool empty(render *r, const char *hint, value *out)
{
    *out = value_undefined(r, hint, (value){0}, (value){0});
    return out->undefined != NULL;
}

FILTER(filter_first)
{
    (void)args, (void)call;
    value *items;
    size_t n;
    if (self.kind == V_ITER && self.iter->next < self.iter->n) {
        *out = self.iter->items[self.iter->next++]; /* the generator keeps the other items */
        return true;
    }
    if (!value_items(r, self, &items, &n)) return false;
    if (n == 0) return empty(r, "No first item, sequence was empty.", out);
    *out = items[0];
    return true;
}

FILTER(filter_last)
{
    (void)args, (void)call;
    value *items;
    size_t n;
    if (self.kind == V_ITER)
        return render_fail(r, STATUS_INVALID, "'generator' object is not reversible");
    if (!value_items(r, self, &items, &n)) return false;
    if (n == 0) return empty(r, "No last item, sequence was empty.", out);
    *out = items[n - 1];
    return true;
}

/* Copies the items to a list that may be changed. */
static list *list_from(render *r, value v)
{
    value *items;
    size_t n;
    if (!value_items(r, v, &items, &n)) return NULL;
    list *l = list_new(r, n);
    if (!l || !render_step(r, n)) return NULL;
    if (n) memcpy(l->items, items, n * sizeof *items);
    l->n = n;
    return l;
}

FILTER(filter_list)
{
    (void)args, (void)call;
    list *l = list_from(r, self);
    if (!l) return false;
    *out = value_list(l);
    return true;
}

FILTER(filter_reverse)
{
    (void)args, (void)call;
    if (self.kind == V_STRING)
        return value_slice(r, self, value_none(), value_none(), value_int(-1), out);
    list *l = list_from(r, self);
    if (!l) return false;
    for (size_t i = 0; i < l->n / 2; i++) {
        value v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
    /* The reverse of a generator is a list, that of anything else an iterator. */
    if (self.kind != V_ITER) return value_iter(r, l, out);
    *out = value_list(l);
    return true;
}

FILTER(filter_items)
{
    (void)args, (void)call;
    value pairs;
    if (self.kind == V_UNDEFINED) {
        list *l = list_new(r, 0);
        return l && value_iter(r, l, out);
    }
    if (self.kind != V_DICT)
        return render_fail(r, STATUS_INVALID, "Can only get item pairs from a mapping.");
    if (!value_view(r, VIEW_ITEMS, self.dict, &pairs)) return false;
    list *l = list_from(r, pairs);
    return l && value_iter(r, l, out);
}

FILTER(filter_attr)
{
    (void)call;
    text name = TEXT("");
    if (!arg_text(r, "attr", args[0], &name)) return false;
    /* Only attributes count: the items of a mapping are not attributes. */
    if (self.kind == V_DICT && !tmpl_find_method(name, V_DICT)) {
        *out = value_undefined(r, NULL, self, args[0]);
        return out->undefined != NULL;
    }
    return value_get_attr(r, self, name, out);
}

FILTER(filter_join)
{
    (void)call;
    value *items, separator = value_text(TEXT(""));
    size_t n;
    builder b = builder_new(r);
    if (!value_items(r, self, &items, &n)) return false;
    if (arg_given(args[0]) && !value_str(r, args[0], &separator)) return false;
    for (size_t i = 0; i < n && !b.failed; i++) {
        value v = items[i];
        if (arg_given(args[1]) && args[1].kind != V_NONE && !value_get_path(r, v, args[1], &v))
            return false;
        if (i) builder_add(&b, text_of(separator));
        print_value(&b, v, false);
    }
    return builder_finish(&b, out);
}

FILTER(filter_sum)
{
    (void)call;
    value *items, total = arg_given(args[1]) ? args[1] : value_int(0);
    size_t n;
    if (!value_items(r, self, &items, &n)) return false;
    if (total.kind == V_STRING)
        return render_fail(r, STATUS_INVALID, "sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; i < n; i++) {
        value v = items[i];
        if (arg_given(args[0]) && args[0].kind != V_NONE && !value_get_path(r, v, args[0], &v))
            return false;
        if (!value_binary(r, OP_ADD, total, v, &total)) return false;
    }
    *out = total;
    return true;
}

/* ---- ordering ---- */

/* The sort key of an item: an attribute of it (or the item itself), strings without their case. */
static bool order_key(render *r, value item, value attribute, bool case_sensitive, value *out)
{
    *out = item;
    if (arg_given(attribute) && attribute.kind != V_NONE &&
        !value_get_path(r, item, attribute, out))
        return false;
    if (case_sensitive || out->kind != V_STRING) return true;
    return text_to_case(r, text_of(*out), CASE_LOWER, out);
}

/* The sort keys of an item as a list: one for each attribute of "a,b". A single key is a list too,
 * because lists compare by equality first. */
static bool order_keys(render *r, value item, value attribute, bool case_sensitive, value *out)
{
    list *l = list_new(r, 1);
    if (!l) return false;
    *out = value_list(l);
    text rest = attribute.kind == V_STRING ? text_of(attribute) : TEXT("");
    for (;;) {
        size_t comma = text_find(rest, TEXT(","), 0);
        text part = {rest.s, comma == SIZE_MAX ? rest.n : comma};
        value key, path = attribute.kind == V_STRING ? value_text(part) : attribute;
        if (!order_key(r, item, path, case_sensitive, &key) || !list_push(r, l, key)) return false;
        if (comma == SIZE_MAX) return true;
        rest = (text){rest.s + comma + 1, rest.n - comma - 1};
    }
}

static bool sort_list(render *r, list *l, value attribute, bool case_sensitive, bool reverse)
{
    value *keys = render_alloc(r, l->n + 1, sizeof *keys);
    if (!keys) return false;
    for (size_t i = 0; i < l->n; i++)
        if (!order_keys(r, l->items[i], attribute, case_sensitive, &keys[i])) return false;
    return value_sort(r, l->items, keys, l->n, reverse);
}

FILTER(filter_sort)
{
    (void)call;
    list *l = list_from(r, self);
    if (!l || !sort_list(r, l, args[2], arg_truth(args[1]), arg_truth(args[0]))) return false;
    *out = value_list(l);
    return true;
}

FILTER(filter_dictsort)
{
    (void)call;
    text by = TEXT("key");
    value pairs;
    if (self.kind == V_UNDEFINED) return value_fail_undefined(r, self);
    if (self.kind != V_DICT)
        return render_fail(r, STATUS_INVALID, "'%s' object has no attribute 'items'",
                           value_type(self));
    if (!arg_text(r, "dictsort", args[1], &by) || !value_view(r, VIEW_ITEMS, self.dict, &pairs))
        return false;
    if (!text_is(by, "key") && !text_is(by, "value"))
        return render_fail(r, STATUS_INVALID, "You can only sort by either \"key\" or \"value\"");
    list *l = list_from(r, pairs);
    if (!l ||
        !sort_list(r, l, value_int(text_is(by, "value")), arg_truth(args[0]), arg_truth(args[2])))
        return false;
    *out = value_list(l);
    return true;
}

FILTER(filter_unique)
{
    (void)call;
    value *items;
    size_t n;
    dict *seen = dict_new(r, 0);
    list *l = list_new(r, 0);
    if (!seen || !l || !value_items(r, self, &items, &n)) return false;
    for (size_t i = 0; i < n; i++) {
        value key;
        if (!order_key(r, items[i], args[1], arg_truth(args[0]), &key)) return false;
        if (!value_hashable(key))
            return render_fail(r, STATUS_INVALID, "unhashable type: '%s'", value_type(key));
        if (!render_step(r, 0)) return false;
        if (dict_get(r, seen, key)) continue;
        if (!dict_set(r, seen, key, value_none()) || !list_push(r, l, items[i])) return false;
    }
    return value_iter(r, l, out);
}

static bool extreme(render *r, value self, const value *args, bool largest, value *out)
{
    value *items, best = {0};
    size_t n;
    if (!value_items(r, self, &items, &n)) return false;
    if (n == 0) return empty(r, "No aggregated item, sequence was empty.", out);
    for (size_t i = 0; i < n; i++) {
        value key;
        bool better = i == 0;
        if (!order_key(r, items[i], args[1], arg_truth(args[0]), &key)) return false;
        if (i > 0 && !(largest ? value_less(r, ">", best, key, &better)
                               : value_less(r, "<", key, best, &better)))
            return false;
        if (!better) continue;
        best = key;
        *out = items[i];
    }
    return true;
}

FILTER(filter_min)
{
    (void)call;
    return extreme(r, self, args, false, out);
}

FILTER(filter_max)
{
    (void)call;
    return extreme(r, self, args, true, out);
}

/* ---- map and select ---- */

/* The arguments behind the first n positional ones. */
static call_args rest_of(const call_args *call, size_t n)
{
    call_args rest = *call;
    rest.positional += n;
    rest.n_positional -= n;
    return rest;
}

/* The items of v, none if v is false: map and select treat 0 and none as empty. */
static bool items_if_true(render *r, value v, value **items, size_t *n)
{
    *n = 0;
    *items = NULL;
    return !value_truth(v) || value_items(r, v, items, n);
}

static bool find_named(render *r, value name, const char *what, const builtin *(*lookup)(text name),
                       const builtin **out)
{
    *out = name.kind == V_STRING ? lookup(text_of(name)) : NULL;
    if (*out) return true;
    value shown;
    return value_repr(r, name, &shown) &&
           render_fail(r, STATUS_UNSUPPORTED, "no %s named %.*s", what,
                       shown.size > 200 ? 200 : (int)shown.size, shown.s);
}

static bool map_attribute(render *r, value *items, size_t n, const call_args *call, list *l)
{
    value path = {0}, fallback = value_none();
    for (size_t i = 0; i < call->n_keywords; i++) {
        const keyword_value *k = &call->keywords[i];
        if (text_is(k->name, "attribute")) path = k->value;
        else if (text_is(k->name, "default")) fallback = k->value;
        else
            return render_fail(r, STATUS_INVALID, "Unexpected keyword argument '%.*s'",
                               (int)k->name.n, k->name.s);
    }
    if (!arg_given(path)) return render_fail(r, STATUS_INVALID, "map requires a filter argument");
    for (size_t i = 0; i < n; i++) {
        value v;
        if (!value_get_path(r, items[i], path, &v)) return false;
        if (v.kind == V_UNDEFINED && fallback.kind != V_NONE) v = fallback;
        if (!list_push(r, l, v)) return false;
    }
    return true;
}

FILTER(filter_map)
{
    (void)args;
    value *items;
    size_t n;
    list *l = list_new(r, 0);
    if (!l || !items_if_true(r, self, &items, &n)) return false;
    if (n > 0 && call->n_positional == 0) {
        if (!map_attribute(r, items, n, call, l)) return false;
    } else if (n > 0) {
        const builtin *filter;
        call_args rest = rest_of(call, 1);
        if (!find_named(r, call->positional[0], "filter", tmpl_find_filter, &filter)) return false;
        for (size_t i = 0; i < n; i++) {
            value v;
            if (!tmpl_call_builtin(r, filter, items[i], &rest, &v) || !list_push(r, l, v))
                return false;
        }
    }
    return value_iter(r, l, out);
}

/* select, reject, selectattr and rejectattr: keeps the items that pass a test (or are true), or
 * those that do not. */
static bool select_items(render *r, value self, const call_args *call, bool attribute, bool keep,
                         value *out)
{
    value *items;
    size_t n, at = attribute;
    const builtin *test = NULL;
    call_args rest = {0};
    list *l = list_new(r, 0);
    if (!l || !items_if_true(r, self, &items, &n)) return false;
    if (n > 0 && call->n_positional < at)
        return render_fail(r, STATUS_INVALID, "Missing parameter for attribute name");
    if (n > 0 && call->n_positional > at) {
        if (!find_named(r, call->positional[at], "test", tmpl_find_test, &test)) return false;
        rest = rest_of(call, at + 1);
    }
    for (size_t i = 0; i < n; i++) {
        value v = items[i];
        if (attribute && !value_get_path(r, v, call->positional[0], &v)) return false;
        bool truth = value_truth(v);
        if (test && !tmpl_call_test(r, test, v, &rest, &truth)) return false;
        if (!render_step(r, 0) || (truth == keep && !list_push(r, l, items[i]))) return false;
    }
    return value_iter(r, l, out);
}

FILTER(filter_select)
{
    (void)args;
    return select_items(r, self, call, false, true, out);
}

FILTER(filter_reject)
{
    (void)args;
    return select_items(r, self, call, false, false, out);
}

FILTER(filter_selectattr)
{
    (void)args;
    return select_items(r, self, call, true, true, out);
}

FILTER(filter_rejectattr)
{
    (void)args;
    return select_items(r, self, call, true, false, out);
}

const builtin tmpl_filters_items[] = {
    {"length", "", 0, filter_length, 0},
    {"count", "", 0, filter_length, 0},
    {"first", "", 0, filter_first, 0},
    {"last", "", 0, filter_last, 0},
    {"list", "", 0, filter_list, 0},
    {"reverse", "", 0, filter_reverse, 0},
    {"items", "", 0, filter_items, 0},
    {"attr", "name", 1, filter_attr, 0},
    {"join", "d attribute", 0, filter_join, 0},
    {"sum", "attribute start", 0, filter_sum, 0},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort, 0},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort, 0},
    {"unique", "case_sensitive attribute", 0, filter_unique, 0},
    {"min", "case_sensitive attribute", 0, filter_min, 0},
    {"max", "case_sensitive attribute", 0, filter_max, 0},
    {"map", NULL, 0, filter_map, 0},
    {"select", NULL, 0, filter_select, 0},
    {"reject", NULL, 0, filter_reject, 0},
    {"selectattr", NULL, 0, filter_selectattr, 0},
    {"rejectattr", NULL, 0, filter_rejectattr, 0},
    {0},
};
