/* str(), repr() and json.dumps(), with exactly Python's output. */
#include "text/chat_template/ast.h"
#include "text/chat_template/render.h"
#include "text/chat_template/scope.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- numbers ---- */

/* The shortest digits that read back, as Python prints them. */
static void print_float(builder *b, double f)
{
    if (isnan(f) || isinf(f)) {
        builder_printf(b, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    /* Writes the fewest significant digits that read back as f: "d.ddde±xx". */
    char e[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(e, sizeof e, "%.*e", digits - 1, f);
        if (strtod(e, NULL) == f) break;
    }
    int exponent = (int)strtol(strchr(e, 'e') + 1, NULL, 10);
    char digits[24];
    int n = 0;
    for (const char *c = e; *c != 'e'; c++)
        if (*c >= '0' && *c <= '9') digits[n++] = *c;
    while (n > 1 && digits[n - 1] == '0') n--;
    if (signbit(f)) builder_char(b, '-');
    if (exponent < -4 || exponent >= 16) {
        builder_char(b, digits[0]);
        if (n > 1) builder_char(b, '.');
        builder_add(b, (text){digits + 1, (size_t)n - 1});
        builder_printf(b, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) builder_add(b, (text){"0.0000", (size_t)(1 - exponent)});
    for (int i = 0; i <= exponent || i < n; i++) {
        if (i == exponent + 1 && exponent >= 0) builder_char(b, '.');
        builder_char(b, i < n ? digits[i] : '0');
    }
    if (exponent >= n - 1) builder_add(b, TEXT(".0"));
}

/* ---- repr ---- */

static void print_string_repr(builder *b, text t)
{
    bool single = memchr(t.s, '\'', t.n) != NULL, two = memchr(t.s, '"', t.n) != NULL;
    char quote = single && !two ? '"' : '\'';
    builder_char(b, quote);
    for (size_t i = 0; i < t.n && !b->failed;) {
        uint32_t cp;
        size_t n = utf8_decode((const uint8_t *)t.s + i, t.n - i, &cp);
        if (cp == (uint32_t)quote || cp == '\\') builder_printf(b, "\\%c", (char)cp);
        else if (cp == '\n') builder_add(b, TEXT("\\n"));
        else if (cp == '\r') builder_add(b, TEXT("\\r"));
        else if (cp == '\t') builder_add(b, TEXT("\\t"));
        else if (code_point_is_printable(cp)) builder_add(b, (text){t.s + i, n});
        else if (cp < 0x100) builder_printf(b, "\\x%02x", (unsigned)cp);
        else if (cp < 0x10000) builder_printf(b, "\\u%04x", (unsigned)cp);
        else builder_printf(b, "\\U%08x", (unsigned)cp);
        i += n;
    }
    builder_char(b, quote);
}

static void print_items(builder *b, const value *items, size_t n)
{
    for (size_t i = 0; i < n && !b->failed; i++) {
        if (i) builder_add(b, TEXT(", "));
        print_value(b, items[i], true);
    }
}

static void print_dict(builder *b, const dict *d)
{
    builder_char(b, '{');
    for (size_t i = 0; i < d->n && !b->failed; i++) {
        if (i) builder_add(b, TEXT(", "));
        print_value(b, d->entries[i].key, true);
        builder_add(b, TEXT(": "));
        print_value(b, d->entries[i].item, true);
    }
    builder_char(b, '}');
}

static void print_view(builder *b, value v)
{
    value *items;
    size_t n;
    builder_printf(b, "%s([", value_type(v));
    if (!value_items(b->r, v, &items, &n)) {
        b->failed = true;
        return;
    }
    print_items(b, items, n);
    builder_add(b, TEXT("])"));
}

static void print_range(builder *b, const range *g)
{
    builder_printf(b, "range(%" PRId64 ", %" PRId64, g->start, g->stop);
    if (g->step != 1) builder_printf(b, ", %" PRId64, g->step);
    builder_char(b, ')');
}

static void print_any(builder *b, value v, bool repr)
{
    switch ((value_kind)v.kind) {
    case V_MISSING: break;
    case V_UNDEFINED:
        if (repr) builder_add(b, TEXT("Undefined"));
        break;
    case V_NONE: builder_add(b, TEXT("None")); break;
    case V_BOOL: builder_printf(b, "%s", v.b ? "True" : "False"); break;
    case V_INT: builder_printf(b, "%" PRId64, v.i); break;
    case V_FLOAT: print_float(b, v.f); break;
    case V_STRING:
        if (repr) print_string_repr(b, text_of(v));
        else builder_add(b, text_of(v));
        break;
    case V_LIST:
        builder_char(b, '[');
        print_items(b, v.list->items, v.list->n);
        builder_char(b, ']');
        break;
    case V_TUPLE:
        builder_char(b, '(');
        print_items(b, v.list->items, v.list->n);
        builder_add(b, v.list->n == 1 ? TEXT(",)") : TEXT(")"));
        break;
    case V_DICT: print_dict(b, v.dict); break;
    case V_NAMESPACE:
        builder_add(b, TEXT("<Namespace "));
        print_dict(b, v.dict);
        builder_char(b, '>');
        break;
    case V_RANGE: print_range(b, v.range); break;
    case V_VIEW: print_view(b, v); break;
    case V_ITER: builder_add(b, TEXT("<generator object>")); break;
    case V_LOOP: builder_printf(b, "<LoopContext %zu/%zu>", v.loop->index0 + 1, v.loop->n); break;
    case V_CALLABLE:
        builder_printf(b, "<%s ", value_type(v));
        print_string_repr(b, v.callable->macro ? v.callable->macro->name
                                               : (text){v.callable->builtin->name,
                                                        strlen(v.callable->builtin->name)});
        builder_char(b, '>');
        break;
    }
}

void print_value(builder *b, value v, bool repr)
{
    if (b->failed || !render_step(b->r, 0) || !render_enter(b->r)) {
        b->failed = true;
        return;
    }
    print_any(b, v, repr);
    render_leave(b->r);
}

bool value_str(render *r, value v, value *out)
{
    builder b = builder_new(r);
    if (v.kind == V_STRING) {
        *out = v;
        return true;
    }
    print_value(&b, v, false);
    return builder_finish(&b, out);
}

bool value_repr(render *r, value v, value *out)
{
    builder b = builder_new(r);
    print_value(&b, v, true);
    return builder_finish(&b, out);
}

/* ---- JSON ---- */

typedef struct json_writer {
    builder b;
    const json_style *style;
    unsigned level;
} json_writer;

static void write_code_point(builder *b, text c, uint32_t cp, bool ascii)
{
    static const char escaped[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    const char *e = cp > 0 && cp < 0x80 ? strchr(escaped, (int)cp) : NULL;
    if (e) builder_printf(b, "\\%c", letters[e - escaped]);
    else if (cp < 0x20 || (ascii && cp >= 0x7f && cp < 0x10000))
        builder_printf(b, "\\u%04x", (unsigned)cp);
    else if (ascii && cp >= 0x10000)
        builder_printf(b, "\\u%04x\\u%04x", 0xd800 + ((unsigned)(cp - 0x10000) >> 10),
                       0xdc00 + ((unsigned)(cp - 0x10000) & 0x3ff));
    else builder_add(b, c);
}

static void write_string(json_writer *w, text t)
{
    builder_char(&w->b, '"');
    for (size_t i = 0; i < t.n && !w->b.failed;) {
        uint32_t cp;
        size_t n = utf8_decode((const uint8_t *)t.s + i, t.n - i, &cp);
        write_code_point(&w->b, (text){t.s + i, n}, cp, w->style->ensure_ascii);
        i += n;
    }
    builder_char(&w->b, '"');
}

static void write_newline(json_writer *w)
{
    if (!w->style->pretty) return;
    builder_char(&w->b, '\n');
    for (unsigned i = 0; i < w->level && !w->b.failed; i++) builder_add(&w->b, w->style->indent);
}

static bool write_value(json_writer *w, value v);

static bool write_number(json_writer *w, value v)
{
    if (v.kind == V_FLOAT && !isfinite(v.f))
        builder_printf(&w->b, "%s", isnan(v.f) ? "NaN" : v.f > 0 ? "Infinity" : "-Infinity");
    else print_value(&w->b, v, false);
    return !w->b.failed;
}

static bool write_array(json_writer *w, const list *l)
{
    builder_char(&w->b, '[');
    w->level++;
    for (size_t i = 0; i < l->n; i++) {
        if (i) builder_add(&w->b, w->style->item_separator);
        write_newline(w);
        if (!write_value(w, l->items[i])) return false;
    }
    w->level--;
    if (l->n) write_newline(w);
    builder_char(&w->b, ']');
    return true;
}

static bool write_key(json_writer *w, value key)
{
    switch ((value_kind)key.kind) {
    case V_STRING: write_string(w, text_of(key)); return true;
    case V_NONE: builder_add(&w->b, TEXT("\"null\"")); return true;
    case V_BOOL: builder_printf(&w->b, "\"%s\"", key.b ? "true" : "false"); return true;
    case V_INT:
    case V_FLOAT: {
        builder_char(&w->b, '"');
        bool ok = write_number(w, key);
        builder_char(&w->b, '"');
        return ok;
    }
    default:
        return render_fail(w->b.r, STATUS_INVALID,
                           "keys must be str, int, float, bool or None, not %s", value_type(key));
    }
}

/* The order in which a dict's entries are written; NULL: their own order. */
static bool write_order(json_writer *w, const dict *d, value **order)
{
    *order = NULL;
    if (!w->style->sort_keys) return true;
    value *keys = render_alloc(w->b.r, d->n + 1, sizeof *keys);
    *order = render_alloc(w->b.r, d->n + 1, sizeof **order);
    if (!keys || !*order) return false;
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->entries[i].key;
        (*order)[i] = value_int((int64_t)i);
    }
    return value_sort(w->b.r, *order, keys, d->n, false);
}

static bool write_object(json_writer *w, const dict *d)
{
    value *order;
    if (!write_order(w, d, &order)) return false;
    builder_char(&w->b, '{');
    w->level++;
    for (size_t i = 0; i < d->n; i++) {
        const dict_entry *e = &d->entries[order ? (size_t)order[i].i : i];
        if (i) builder_add(&w->b, w->style->item_separator);
        write_newline(w);
        if (!write_key(w, e->key)) return false;
        builder_add(&w->b, w->style->key_separator);
        if (!write_value(w, e->item)) return false;
    }
    w->level--;
    if (d->n) write_newline(w);
    builder_char(&w->b, '}');
    return true;
}

static bool write_value(json_writer *w, value v)
{
    render *r = w->b.r;
    bool ok = true;
    if (w->b.failed || !render_step(r, 0) || !render_enter(r)) return false;
    switch ((value_kind)v.kind) {
    case V_NONE: builder_add(&w->b, TEXT("null")); break;
    case V_BOOL: builder_printf(&w->b, "%s", v.b ? "true" : "false"); break;
    case V_INT:
    case V_FLOAT: ok = write_number(w, v); break;
    case V_STRING: write_string(w, text_of(v)); break;
    case V_LIST:
    case V_TUPLE: ok = write_array(w, v.list); break;
    case V_DICT: ok = write_object(w, v.dict); break;
    default:
        return render_fail(r, STATUS_INVALID, "Object of type %s is not JSON serializable",
                           value_type(v));
    }
    render_leave(r);
    return ok;
}

bool value_to_json(render *r, value v, const json_style *style, value *out)
{
    json_writer w = {.b = builder_new(r), .style = style};
    return write_value(&w, v) && builder_finish(&w.b, out);
}
