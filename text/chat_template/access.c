/* Variables, attributes, items and slices. */
#include "text/chat_template/ast.h"
#include "text/chat_template/render.h"
#include "text/chat_template/scope.h"

scope *scope_new(render *r, scope *parent)
{
    scope *s = render_alloc(r, 1, sizeof *s);
    if (s) s->parent = parent;
    return s;
}

static binding *find_binding(const scope *s, text name)
{
    for (size_t i = 0; i < s->n; i++)
        if (text_equal(s->items[i].name, name)) return &s->items[i];
    return NULL;
}

bool scope_set(render *r, scope *s, text name, value v)
{
    binding *b = find_binding(s, name);
    if (!render_step(r, s->n)) return false;
    if (b) {
        b->value = v;
        return true;
    }
    if (s->n == s->capacity) {
        size_t larger = s->capacity ? s->capacity * 2 : 4;
        binding *moved = render_alloc(r, larger, sizeof *moved);
        if (!moved) return false;
        if (s->n) memcpy(moved, s->items, s->n * sizeof *moved);
        s->items = moved;
        s->capacity = larger;
    }
    s->items[s->n++] = (binding){name, v};
    return true;
}

static bool callable_value(render *r, callable c, value *out)
{
    callable *made = render_alloc(r, 1, sizeof *made);
    if (!made) return false;
    *made = c;
    *out = (value){.kind = V_CALLABLE, .callable = made};
    return true;
}

bool scope_get(render *r, const scope *s, text name, value *out)
{
    for (; s; s = s->parent) {
        const binding *b = find_binding(s, name);
        if (!render_step(r, s->n)) return false;
        if (b) {
            *out = b->value;
            return true;
        }
    }
    const value *v = dict_get_text(r, r->vars, name);
    if (v) {
        *out = *v;
        return true;
    }
    const builtin *function = tmpl_find_function(name);
    if (function) return callable_value(r, (callable){.builtin = function}, out);
    *out = value_undefined(r, NULL, (value){0}, value_text(name));
    return out->undefined != NULL;
}

/* Whether Jinja's sandbox hides the method, because it changes its object. */
static bool is_unsafe(value_kind kind, text name)
{
    static const char *const list_names[] = {"append", "clear", "pop",    "reverse",
                                             "insert", "sort",  "extend", "remove"};
    static const char *const dict_names[] = {"clear", "pop", "popitem", "setdefault", "update"};
    const char *const *names = kind == V_DICT ? dict_names : list_names;
    size_t n = kind == V_DICT ? 5 : kind == V_LIST ? 8 : 0;
    for (size_t i = 0; i < n; i++)
        if (text_is(name, names[i])) return true;
    return false;
}

bool value_hides(text name) { return is_unsafe(V_LIST, name) || is_unsafe(V_DICT, name); }

static bool unsafe_undefined(render *r, value obj, text name, value *out)
{
    value hint;
    builder b = builder_new(r);
    builder_add(&b, TEXT("access to attribute '"));
    builder_add(&b, name);
    builder_add(&b, TEXT("' of '"));
    builder_printf(&b, "%s", value_type(obj));
    builder_add(&b, TEXT("' object is unsafe."));
    builder_char(&b, '\0');
    if (!builder_finish(&b, &hint)) return false;
    *out = value_undefined(r, hint.s, obj, value_text(name));
    return out->undefined != NULL;
}

static bool loop_attr(render *r, const loop_state *l, text name, value *out)
{
    const struct {
        const char *name;
        int64_t v;
    } numbers[] = {
        {"index", (int64_t)l->index0 + 1},
        {"index0", (int64_t)l->index0},
        {"length", (int64_t)l->n},
        {"revindex", (int64_t)(l->n - l->index0)},
        {"depth", (int64_t)l->depth0 + 1},
        {"depth0", (int64_t)l->depth0},
        {"revindex0", (int64_t)(l->n - l->index0) - 1},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (text_is(name, numbers[i].name)) {
            *out = value_int(numbers[i].v);
            return true;
        }
    bool first = l->index0 == 0, last = l->index0 + 1 == l->n;
    value none = {0};
    if (text_is(name, "first")) *out = value_bool(first);
    else if (text_is(name, "last")) *out = value_bool(last);
    else if (text_is(name, "previtem"))
        *out = first ? value_undefined(r, "there is no previous item", none, none)
                     : l->items[l->index0 - 1];
    else if (text_is(name, "nextitem"))
        *out = last ? value_undefined(r, "there is no next item", none, none)
                    : l->items[l->index0 + 1];
    else return false;
    return true;
}

/* Attributes that the Python object itself has; false when there is none (or after a failure). */
static bool own_attr(render *r, value obj, text name, value *out)
{
    const builtin *method = tmpl_find_method(name, (value_kind)obj.kind);
    if (method && obj.kind == V_STRING && obj.safe)
        return render_fail(r, STATUS_UNSUPPORTED, "'%.*s' of safe text is not supported",
                           (int)name.n, name.s);
    if (method) return callable_value(r, (callable){.builtin = method, .self = obj}, out);
    if (obj.kind == V_LOOP) return loop_attr(r, obj.loop, name, out);
    if (obj.kind == V_NAMESPACE) {
        const value *v = dict_get_text(r, obj.dict, name);
        if (v) *out = *v;
        return v != NULL;
    }
    if (obj.kind == V_CALLABLE && obj.callable->macro && text_is(name, "name")) {
        *out = value_text(obj.callable->macro->name);
        return true;
    }
    return is_unsafe((value_kind)obj.kind, name) && unsafe_undefined(r, obj, name, out);
}

/* Python's obj[key]; false when that raises a TypeError or LookupError. */
static bool own_item(render *r, value obj, value key, value *out)
{
    if (obj.kind == V_DICT) {
        const value *v = value_hashable(key) ? dict_get(r, obj.dict, key) : NULL;
        if (v) *out = *v;
        return v != NULL;
    }
    bool sequence =
        obj.kind == V_STRING || obj.kind == V_LIST || obj.kind == V_TUPLE || obj.kind == V_RANGE;
    size_t n;
    if (!sequence || !value_is_integer(key) || !value_length(r, obj, &n)) return false;
    int64_t i = value_as_int(key);
    if (i < 0) i += (int64_t)n;
    if (i < 0 || i >= (int64_t)n) return false;
    if (obj.kind == V_RANGE) {
        *out = value_int(obj.range->start + i * obj.range->step);
    } else if (obj.kind == V_STRING) {
        text t = text_of(obj);
        size_t at = text_offset(t, (size_t)i);
        *out = value_text((text){t.s + at, text_char_size(t, at)});
        out->safe = obj.safe;
    } else {
        *out = obj.list->items[i];
    }
    return true;
}

static bool no_such(render *r, value obj, value name, value *out)
{
    if (r->failed != STATUS_OK) return false;
    *out = value_undefined(r, NULL, obj, name);
    return out->undefined != NULL;
}

bool value_get_attr(render *r, value obj, text name, value *out)
{
    if (obj.kind == V_UNDEFINED) return value_fail_undefined(r, obj);
    if (own_attr(r, obj, name, out) || own_item(r, obj, value_text(name), out)) return true;
    return no_such(r, obj, value_text(name), out);
}

bool value_get_item(render *r, value obj, value key, value *out)
{
    if (obj.kind == V_UNDEFINED) return value_fail_undefined(r, obj);
    if (own_item(r, obj, key, out)) return true;
    if (key.kind == V_STRING && own_attr(r, obj, text_of(key), out)) return true;
    return no_such(r, obj, key, out);
}

bool value_get_path(render *r, value obj, value path, value *out)
{
    *out = obj;
    if (path.kind != V_STRING) return value_get_item(r, obj, path, out);
    text rest = text_of(path);
    for (;;) {
        size_t dot = text_find(rest, TEXT("."), 0);
        text part = {rest.s, dot == SIZE_MAX ? rest.n : dot};
        value key = value_text(part);
        if (text_is_class(part, CLASS_DIGIT) && part.n < 19) {
            key = value_int(0);
            for (size_t i = 0; i < part.n; i++) key.i = key.i * 10 + (part.s[i] - '0');
        }
        if (!render_step(r, 0) || !value_get_item(r, *out, key, out)) return false;
        if (dot == SIZE_MAX) return true;
        rest = (text){rest.s + dot + 1, rest.n - dot - 1};
    }
}

/* ---- slices ---- */

typedef struct slice {
    int64_t start, step;
    size_t n;
} slice;

static int64_t clamp(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}

/* Python's slice.indices(n), and the number of items in the slice. */
static bool resolve_slice(render *r, value start, value stop, value step, int64_t n, slice *out)
{
    value parts[3] = {start, stop, step};
    for (int i = 0; i < 3; i++)
        if (parts[i].kind != V_NONE && !value_is_integer(parts[i]))
            return render_fail(
                r, STATUS_INVALID,
                "slice indices must be integers or None or have an __index__ method");
    int64_t by = step.kind == V_NONE ? 1 : value_as_int(step);
    if (by == 0) return render_fail(r, STATUS_INVALID, "slice step cannot be zero");
    if (by == INT64_MIN) by = -INT64_MAX;
    int64_t low = by < 0 ? -1 : 0, high = by < 0 ? n - 1 : n;
    int64_t from = by < 0 ? high : low, to = by < 0 ? low : high;
    if (start.kind != V_NONE) {
        int64_t v = value_as_int(start);
        from = clamp(v < 0 ? v + n : v, low, high);
    }
    if (stop.kind != V_NONE) {
        int64_t v = value_as_int(stop);
        to = clamp(v < 0 ? v + n : v, low, high);
    }
    uint64_t distance =
        by > 0 ? (to > from ? (uint64_t)(to - from) : 0) : (from > to ? (uint64_t)(from - to) : 0);
    uint64_t stride = (uint64_t)(by > 0 ? by : -by);
    *out = (slice){from, by, (size_t)(distance ? (distance - 1) / stride + 1 : 0)};
    return true;
}

static bool slice_string(render *r, text t, const slice *s, value *out)
{
    if (s->step == 1) {
        size_t from = text_offset(t, (size_t)s->start);
        size_t n = text_offset((text){t.s + from, t.n - from}, s->n);
        *out = value_text((text){t.s + from, n});
        return true;
    }
    value *chars;
    size_t n;
    builder b = builder_new(r);
    if (!value_items(r, value_text(t), &chars, &n)) return false;
    for (size_t i = 0; i < s->n; i++)
        builder_add(&b, text_of(chars[s->start + (int64_t)i * s->step]));
    return builder_finish(&b, out);
}

static bool slice_range(render *r, const range *from, const slice *s, value *out)
{
    range *made = render_alloc(r, 1, sizeof *made);
    if (!made) return false;
    made->start = from->start + s->start * from->step;
    made->step = s->n > 1 ? s->step * from->step : from->step;
    made->n = s->n;
    made->stop = made->start + (int64_t)s->n * made->step;
    *out = (value){.kind = V_RANGE, .range = made};
    return true;
}

bool value_slice(render *r, value obj, value start, value stop, value step, value *out)
{
    size_t n;
    slice s = {0};
    switch ((value_kind)obj.kind) {
    case V_UNDEFINED: return value_fail_undefined(r, obj);
    case V_STRING:
    case V_LIST:
    case V_TUPLE:
    case V_RANGE: break;
    case V_DICT: return render_fail(r, STATUS_INVALID, "unhashable type: 'slice'");
    default:
        return render_fail(r, STATUS_INVALID, "'%s' object is not subscriptable", value_type(obj));
    }
    if (!value_length(r, obj, &n)) return false;
    if (!resolve_slice(r, start, stop, step, (int64_t)n, &s) || !render_step(r, s.n)) return false;
    if (obj.kind == V_STRING) {
        if (!slice_string(r, text_of(obj), &s, out)) return false;
        out->safe = obj.safe;
        return true;
    }
    if (obj.kind == V_RANGE) return slice_range(r, obj.range, &s, out);
    list *l = list_new(r, s.n);
    if (!l) return false;
    for (size_t i = 0; i < s.n; i++) l->items[i] = obj.list->items[s.start + (int64_t)i * s.step];
    l->n = s.n;
    *out = obj.kind == V_TUPLE ? value_tuple(l) : value_list(l);
    return true;
}
