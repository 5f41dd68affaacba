/* Making values, iterating over them, comparing them. */
#include "text/chat_template/render.h"
#include "text/chat_template/scope.h"

value value_undefined(render *r, const char *hint, value object, value name)
{
    undefined *u = render_alloc(r, 1, sizeof *u);
    if (u) *u = (undefined){hint, object, name};
    return (value){.kind = V_UNDEFINED, .undefined = u};
}

bool value_fail_undefined(render *r, value v)
{
    const undefined *u = v.undefined;
    value name;
    if (!u) return false; /* no memory for a message */
    if (u->hint) return render_fail(r, STATUS_INVALID, "%s", u->hint);
    if (u->object.kind == V_MISSING)
        return render_fail(r, STATUS_INVALID, "'%.*s' is undefined", (int)u->name.size, u->name.s);
    if (!value_repr(r, u->name, &name)) return false;
    const char *type = u->object.kind == V_NONE ? "None" : value_type(u->object);
    const char *word = u->object.kind == V_NONE ? "" : " object";
    bool attribute = u->name.kind == V_STRING;
    return render_fail(r, STATUS_INVALID, "%s%s%s%s has no %s %.*s", attribute ? "'" : "", type,
                       word, attribute ? "'" : "", attribute ? "attribute" : "element",
                       name.size > 300 ? 300 : (int)name.size, name.s);
}

const char *value_type(value v)
{
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    switch ((value_kind)v.kind) {
    case V_MISSING: break;
    case V_UNDEFINED: return "Undefined";
    case V_NONE: return "NoneType";
    case V_BOOL: return "bool";
    case V_INT: return "int";
    case V_FLOAT: return "float";
    case V_STRING: return "str";
    case V_LIST: return "list";
    case V_TUPLE: return "tuple";
    case V_DICT: return "dict";
    case V_NAMESPACE: return "Namespace";
    case V_RANGE: return "range";
    case V_VIEW: return views[v.view->kind];
    case V_ITER: return "generator";
    case V_LOOP: return "LoopContext";
    case V_CALLABLE: return v.callable->macro ? "Macro" : "function";
    }
    return "missing";
}

bool value_truth(value v)
{
    switch ((value_kind)v.kind) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE: return false;
    case V_BOOL: return v.b;
    case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0;
    case V_STRING: return v.size > 0;
    case V_LIST:
    case V_TUPLE: return v.list->n > 0;
    case V_DICT: return v.dict->n > 0;
    case V_RANGE: return v.range->n > 0;
    case V_VIEW: return v.view->dict->n > 0;
    case V_NAMESPACE:
    case V_ITER:
    case V_LOOP:
    case V_CALLABLE: return true;
    }
    return false;
}

bool value_callable(value v)
{
    return v.kind == V_CALLABLE || v.kind == V_LOOP || v.kind == V_UNDEFINED;
}

/* ---- containers ---- */

static bool reserve_room(render *r, void **items, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity) return true;
    size_t larger = *capacity ? *capacity * 2 : 4;
    void *moved = render_alloc(r, larger, size);
    if (!moved) return false;
    if (n) memcpy(moved, *items, n * size);
    *items = moved;
    *capacity = larger;
    return true;
}

list *list_new(render *r, size_t capacity)
{
    list *l = render_alloc(r, 1, sizeof *l);
    if (!l) return NULL;
    l->items = render_alloc(r, capacity ? capacity : 1, sizeof *l->items);
    l->capacity = capacity ? capacity : 1;
    return l->items ? l : NULL;
}

bool list_push(render *r, list *l, value item)
{
    void *items = l->items;
    if (!reserve_room(r, &items, l->n, &l->capacity, sizeof item)) return false;
    l->items = items;
    l->items[l->n++] = item;
    return true;
}

value value_list(list *l) { return (value){.kind = V_LIST, .list = l}; }
value value_tuple(list *l) { return (value){.kind = V_TUPLE, .list = l}; }
value value_dict(dict *d) { return (value){.kind = V_DICT, .dict = d}; }

static bool value_pair(render *r, value a, value b, value *out)
{
    list *l = list_new(r, 2);
    if (!l) return false;
    l->items[0] = a;
    l->items[1] = b;
    l->n = 2;
    *out = value_tuple(l);
    return true;
}

dict *dict_new(render *r, size_t capacity)
{
    dict *d = render_alloc(r, 1, sizeof *d);
    if (!d || capacity == 0) return d;
    d->entries = render_alloc(r, capacity, sizeof *d->entries);
    d->capacity = capacity;
    return d->entries ? d : NULL;
}

static void charge(render *r, size_t n)
{
    uint64_t cost = n / 16;
    r->steps_left -= cost < r->steps_left ? cost : r->steps_left;
}

/* Equality of hashable keys. Never fails; recurses into tuples only. */
static bool key_equal(value a, value b)
{
    if (value_is_integer(a) && value_is_integer(b)) return value_as_int(a) == value_as_int(b);
    if (value_is_number(a) && value_is_number(b)) return value_as_float(a) == value_as_float(b);
    if (a.kind != b.kind) return false;
    switch ((value_kind)a.kind) {
    case V_STRING: return text_equal(text_of(a), text_of(b));
    case V_NONE:
    case V_UNDEFINED: return true;
    case V_TUPLE:
        if (a.list->n != b.list->n) return false;
        for (size_t i = 0; i < a.list->n; i++)
            if (!key_equal(a.list->items[i], b.list->items[i])) return false;
        return true;
    default: return a.dict == b.dict; /* identity, by any member of the union */
    }
}

const value *dict_get(render *r, const dict *d, value key)
{
    for (size_t i = 0; i < d->n; i++) {
        if (!key_equal(d->entries[i].key, key)) continue;
        charge(r, i);
        return &d->entries[i].item;
    }
    charge(r, d->n);
    return NULL;
}

const value *dict_get_text(render *r, const dict *d, text key)
{
    return dict_get(r, d, value_text(key));
}

bool dict_set(render *r, dict *d, value key, value item)
{
    value *old = (value *)dict_get(r, d, key);
    if (old) {
        *old = item;
        return true;
    }
    void *entries = d->entries;
    if (!reserve_room(r, &entries, d->n, &d->capacity, sizeof *d->entries)) return false;
    d->entries = entries;
    d->entries[d->n++] = (dict_entry){key, item};
    return true;
}

bool value_hashable(value v)
{
    if (v.kind == V_TUPLE) {
        for (size_t i = 0; i < v.list->n; i++)
            if (!value_hashable(v.list->items[i])) return false;
        return true;
    }
    return v.kind != V_LIST && v.kind != V_DICT && v.kind != V_VIEW;
}

bool value_view(render *r, enum view_kind kind, const dict *d, value *out)
{
    view *v = render_alloc(r, 1, sizeof *v);
    if (!v) return false;
    *v = (view){kind, d};
    *out = (value){.kind = V_VIEW, .view = v};
    return true;
}

bool value_iter(render *r, list *items, value *out)
{
    iter *it = render_alloc(r, 1, sizeof *it);
    if (!it) return false;
    *it = (iter){.items = items->items, .n = items->n};
    *out = (value){.kind = V_ITER, .iter = it};
    return true;
}

/* ---- iteration ---- */

static bool dict_items(render *r, const dict *d, enum view_kind kind, value *items)
{
    for (size_t i = 0; i < d->n; i++) {
        const dict_entry *e = &d->entries[i];
        if (kind != VIEW_ITEMS) items[i] = kind == VIEW_KEYS ? e->key : e->item;
        else if (!value_pair(r, e->key, e->item, &items[i])) return false;
    }
    return true;
}

static void string_items(text t, value *items)
{
    size_t k = 0;
    for (size_t i = 0, n; i < t.n; i += n) {
        n = text_char_size(t, i);
        items[k++] = value_text((text){t.s + i, n});
    }
}

bool value_length(render *r, value v, size_t *n)
{
    *n = 0;
    switch ((value_kind)v.kind) {
    case V_UNDEFINED: return true;
    case V_STRING: *n = text_length(text_of(v)); return render_step(r, v.size);
    case V_LIST:
    case V_TUPLE: *n = v.list->n; return true;
    case V_DICT: *n = v.dict->n; return true;
    case V_VIEW: *n = v.view->dict->n; return true;
    case V_RANGE: *n = v.range->n; return true;
    case V_LOOP: *n = v.loop->n; return true;
    default:
        return render_fail(r, STATUS_INVALID, "object of type '%s' has no len()", value_type(v));
    }
}

bool value_items(render *r, value v, value **items, size_t *n)
{
    switch ((value_kind)v.kind) {
    case V_LIST:
    case V_TUPLE:
        *items = v.list->items;
        *n = v.list->n;
        return true;
    case V_ITER:
        *items = v.iter->items + v.iter->next;
        *n = v.iter->n - v.iter->next;
        v.iter->next = v.iter->n;
        return true;
    case V_UNDEFINED:
    case V_STRING:
    case V_DICT:
    case V_VIEW:
    case V_RANGE: break;
    default: return render_fail(r, STATUS_INVALID, "'%s' object is not iterable", value_type(v));
    }
    if (!value_length(r, v, n) || !render_step(r, *n)) return false;
    *items = render_alloc(r, *n ? *n : 1, sizeof **items);
    if (!*items) return false;
    switch ((value_kind)v.kind) {
    case V_STRING: string_items(text_of(v), *items); return true;
    case V_DICT: return dict_items(r, v.dict, VIEW_KEYS, *items);
    case V_VIEW: return dict_items(r, v.view->dict, v.view->kind, *items);
    case V_RANGE:
        for (size_t i = 0; i < *n; i++)
            (*items)[i] = value_int(v.range->start + (int64_t)i * v.range->step);
        return true;
    default: return true;
    }
}

/* ---- comparison ---- */

static bool list_equal(render *r, const list *a, const list *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++)
        if (!value_equal(r, a->items[i], b->items[i], out)) return false;
    return true;
}

static bool dict_equal(render *r, const dict *a, const dict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        const value *other = dict_get(r, b, a->entries[i].key);
        *out = other != NULL;
        if (other && !value_equal(r, a->entries[i].item, *other, out)) return false;
    }
    return true;
}

static bool range_equal(const range *a, const range *b)
{
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

bool value_equal(render *r, value a, value b, bool *out)
{
    bool ok = true;
    if (!render_step(r, a.kind == V_STRING ? a.size : 0) || !render_enter(r)) return false;
    if (a.kind != b.kind) *out = value_is_number(a) && value_is_number(b) && key_equal(a, b);
    else if (a.kind == V_LIST || a.kind == V_TUPLE) ok = list_equal(r, a.list, b.list, out);
    else if (a.kind == V_DICT) ok = dict_equal(r, a.dict, b.dict, out);
    else if (a.kind == V_RANGE) *out = range_equal(a.range, b.range);
    else *out = key_equal(a, b);
    render_leave(r);
    return ok;
}

static bool text_less(text a, text b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.s, b.s, n) : 0; /* UTF-8 bytes order as code points do */
    return c < 0 || (c == 0 && a.n < b.n);
}

static bool list_less(render *r, const char *op, const list *a, const list *b, bool *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool equal;
        if (!value_equal(r, a->items[i], b->items[i], &equal)) return false;
        if (!equal) return value_less(r, op, a->items[i], b->items[i], out);
    }
    *out = a->n < b->n;
    return true;
}

bool value_less(render *r, const char *op, value a, value b, bool *out)
{
    bool ok = true;
    value left = op[0] == '>' ? b : a, right = op[0] == '>' ? a : b; /* as in the template */
    if (!render_step(r, a.kind == V_STRING ? a.size : 0) || !render_enter(r)) return false;
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED)
        return value_fail_undefined(r, left.kind == V_UNDEFINED ? left : right);
    if (value_is_integer(a) && value_is_integer(b)) *out = value_as_int(a) < value_as_int(b);
    else if (value_is_number(a) && value_is_number(b)) *out = value_as_float(a) < value_as_float(b);
    else if (a.kind == V_STRING && b.kind == V_STRING) *out = text_less(text_of(a), text_of(b));
    else if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE))
        ok = list_less(r, op, a.list, b.list, out);
    else
        return render_fail(r, STATUS_INVALID,
                           "'%s' not supported between instances of '%s' and '%s'", op,
                           value_type(left), value_type(right));
    render_leave(r);
    return ok;
}

bool value_contains(render *r, value container, value item, bool *out)
{
    value *items;
    size_t n;
    *out = false;
    switch ((value_kind)container.kind) {
    case V_STRING:
        if (item.kind != V_STRING)
            return render_fail(r, STATUS_INVALID,
                               "'in <string>' requires string as left operand, not %s",
                               value_type(item));
        *out = text_find(text_of(container), text_of(item), 0) != SIZE_MAX;
        return render_step(r, container.size);
    case V_DICT:
        if (!value_hashable(item))
            return render_fail(r, STATUS_INVALID, "unhashable type: '%s'", value_type(item));
        *out = dict_get(r, container.dict, item) != NULL;
        return true;
    case V_UNDEFINED:
    case V_LIST:
    case V_TUPLE:
    case V_ITER:
    case V_VIEW:
    case V_RANGE: break;
    default:
        return render_fail(r, STATUS_INVALID, "argument of type '%s' is not iterable",
                           value_type(container));
    }
    if (!value_items(r, container, &items, &n)) return false;
    for (size_t i = 0; i < n && !*out; i++)
        if (!value_equal(r, items[i], item, out)) return false;
    return true;
}

/* ---- sorting: merge sort, bottom up ---- */

/* Whether b must come before a, where a precedes b now. */
static bool out_of_order(render *r, value a, value b, bool reverse, bool *out)
{
    return reverse ? value_less(r, "<", a, b, out) : value_less(r, "<", b, a, out);
}

static bool merge(render *r, const size_t *from, size_t *to, size_t left, size_t mid, size_t right,
                  const value *keys, bool reverse)
{
    size_t i = left, j = mid;
    for (size_t k = left; k < right; k++) {
        bool take_right = i == mid;
        if (i < mid && j < right &&
            !out_of_order(r, keys[from[i]], keys[from[j]], reverse, &take_right))
            return false;
        to[k] = take_right ? from[j++] : from[i++];
    }
    return true;
}

bool value_sort(render *r, value *items, value *keys, size_t n, bool reverse)
{
    size_t *order = render_alloc(r, n + 1, sizeof *order);
    size_t *spare = render_alloc(r, n + 1, sizeof *spare);
    value *moved = render_alloc(r, n + 1, sizeof *moved);
    if (!order || !spare || !moved) return false;
    for (size_t i = 0; i < n; i++) order[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t left = 0; left < n; left += 2 * width) {
            size_t mid = left + width < n ? left + width : n;
            size_t right = mid + width < n ? mid + width : n;
            if (!merge(r, order, spare, left, mid, right, keys, reverse)) return false;
        }
        size_t *swap = order;
        order = spare;
        spare = swap;
    }
    for (size_t i = 0; i < n; i++) moved[i] = items[order[i]];
    if (n) memcpy(items, moved, n * sizeof *items);
    for (size_t i = 0; i < n; i++) moved[i] = keys[order[i]];
    if (n) memcpy(keys, moved, n * sizeof *keys);
    return true;
}

/* ---- from JSON ---- */

static bool from_array(render *r, const json_t *j, value *out)
{
    list *l = list_new(r, json_array_size(j));
    if (!l) return false;
    for (size_t i = 0; i < json_array_size(j); i++) {
        value v;
        if (!value_from_json(r, json_array_get(j, i), &v) || !list_push(r, l, v)) return false;
    }
    *out = value_list(l);
    return true;
}

static bool from_object(render *r, const json_t *j, value *out)
{
    dict *d = dict_new(r, json_object_size(j));
    if (!d) return false;
    for (void *it = json_object_iter((json_t *)j); it;
         it = json_object_iter_next((json_t *)j, it)) {
        /* Keys are distinct, so they are appended without a search. */
        const char *key = json_object_iter_key(it);
        dict_entry *e = &d->entries[d->n];
        e->key = value_text((text){key, json_object_iter_key_len(it)});
        if (!value_from_json(r, json_object_iter_value(it), &e->item)) return false;
        d->n++;
    }
    *out = value_dict(d);
    return true;
}

bool value_from_json(render *r, const json_t *j, value *out)
{
    bool ok = true;
    if (!render_step(r, 0) || !render_enter(r)) return false;
    switch (json_typeof(j)) {
    case JSON_NULL: *out = value_none(); break;
    case JSON_TRUE: *out = value_bool(true); break;
    case JSON_FALSE: *out = value_bool(false); break;
    case JSON_INTEGER: *out = value_int(json_integer_value(j)); break;
    case JSON_REAL: *out = value_float(json_real_value(j)); break;
    case JSON_STRING: *out = value_text((text){json_string_value(j), json_string_length(j)}); break;
    case JSON_ARRAY: ok = from_array(r, j, out); break;
    case JSON_OBJECT: ok = from_object(r, j, out); break;
    }
    render_leave(r);
    return ok;
}
