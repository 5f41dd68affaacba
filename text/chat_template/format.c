/* Python's "format % arguments": %s %r %d %i %u %x %X %o %f %F %e %E %g %G %c %%. */
#include "text/chat_template/render.h"
#include <math.h>
#include <stdio.h>

enum { FORMAT_MAX_WIDTH = 1000 };

typedef struct spec {
    bool left, plus, space, zero, alternate;
    int width;
    int precision; /* -1 = not given */
    char type;
} spec;

typedef struct formatter {
    render *r;
    builder out;
    text format;
    size_t i;
    value arguments;
    size_t next; /* index of the next item of a tuple */
    bool named;
} formatter;

static bool next_argument(formatter *f, value *out)
{
    if (f->arguments.kind == V_TUPLE) {
        if (f->next >= f->arguments.list->n)
            return render_fail(f->r, STATUS_INVALID, "not enough arguments for format string");
        *out = f->arguments.list->items[f->next++];
        return true;
    }
    if (f->next++ > 0)
        return render_fail(f->r, STATUS_INVALID, "not enough arguments for format string");
    *out = f->arguments;
    return true;
}

static char current(const formatter *f) { return f->i < f->format.n ? f->format.s[f->i] : '\0'; }

static bool parse_number(formatter *f, int *out)
{
    *out = 0;
    if (current(f) == '*') {
        value v;
        f->i++;
        if (!next_argument(f, &v)) return false;
        if (!value_is_integer(v)) return render_fail(f->r, STATUS_INVALID, "* wants int");
        int64_t n = value_as_int(v);
        if (n < 0 || n > FORMAT_MAX_WIDTH)
            return render_fail(f->r, STATUS_LIMIT, "a format's width is out of range");
        *out = (int)n;
        return true;
    }
    for (; current(f) >= '0' && current(f) <= '9'; f->i++) {
        *out = *out * 10 + (current(f) - '0');
        if (*out > FORMAT_MAX_WIDTH)
            return render_fail(f->r, STATUS_LIMIT, "a format's width is out of range");
    }
    return true;
}

static bool parse_spec(formatter *f, spec *s)
{
    *s = (spec){.precision = -1};
    for (bool more = true; more;) {
        switch (current(f)) {
        case '-': s->left = true; break;
        case '+': s->plus = true; break;
        case ' ': s->space = true; break;
        case '0': s->zero = true; break;
        case '#': s->alternate = true; break;
        default: more = false; continue;
        }
        f->i++;
    }
    if (!parse_number(f, &s->width)) return false;
    if (current(f) == '.') {
        f->i++;
        if (!parse_number(f, &s->precision)) return false;
    }
    if (current(f) == 'h' || current(f) == 'l' || current(f) == 'L') f->i++;
    if (f->i >= f->format.n) return render_fail(f->r, STATUS_INVALID, "incomplete format");
    s->type = f->format.s[f->i++];
    return true;
}

/* Pads to the width. Padding zeros go between the sign and the digits. */
static void add_padded(formatter *f, const spec *s, text t, bool number)
{
    size_t n = text_length(t),
           pad = s->width > 0 && (size_t)s->width > n ? (size_t)s->width - n : 0;
    bool zero = number && s->zero && !s->left;
    if (zero && t.n > 0 && (t.s[0] == '-' || t.s[0] == '+' || t.s[0] == ' ')) {
        builder_char(&f->out, t.s[0]);
        t = (text){t.s + 1, t.n - 1};
    }
    if (zero && s->alternate && t.n > 2 && t.s[0] == '0' && (t.s[1] | 0x20) > '9') {
        builder_add(&f->out, (text){t.s, 2});
        t = (text){t.s + 2, t.n - 2};
    }
    for (size_t i = 0; !s->left && i < pad; i++) builder_char(&f->out, zero ? '0' : ' ');
    builder_add(&f->out, t);
    for (size_t i = 0; s->left && i < pad; i++) builder_char(&f->out, ' ');
}

static bool format_text(formatter *f, const spec *s, value v)
{
    value t;
    if (!(s->type == 's' ? value_str(f->r, v, &t) : value_repr(f->r, v, &t))) return false;
    text whole = text_of(t);
    if (s->precision >= 0) whole.n = text_offset(whole, (size_t)s->precision);
    add_padded(f, s, whole, false);
    return true;
}

static bool format_char(formatter *f, const spec *s, value v)
{
    uint8_t bytes[4];
    if (v.kind == V_STRING && text_length(text_of(v)) == 1) {
        add_padded(f, s, text_of(v), false);
        return true;
    }
    if (!value_is_integer(v)) return render_fail(f->r, STATUS_INVALID, "%%c requires int or char");
    int64_t cp = value_as_int(v);
    if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return render_fail(f->r, STATUS_INVALID, "%%c arg not in range(0x110000)");
    add_padded(f, s, (text){(char *)bytes, utf8_encode((uint32_t)cp, bytes)}, false);
    return true;
}

static bool format_int(formatter *f, const spec *s, value v)
{
    char digits[FORMAT_MAX_WIDTH + 32];
    bool decimal = s->type == 'd' || s->type == 'i' || s->type == 'u';
    if (decimal && v.kind == V_FLOAT && isfinite(v.f) && fabs(v.f) < 9e18)
        v = value_int((int64_t)v.f);
    if (!value_is_integer(v)) {
        return render_fail(f->r, STATUS_INVALID, "%%%c format: %s is required, not %s", s->type,
                           decimal ? "a real number" : "an integer", value_type(v));
    }
    int64_t i = value_as_int(v);
    uint64_t magnitude = i < 0 ? -(uint64_t)i : (uint64_t)i;
    const char *sign = i < 0 ? "-" : s->plus ? "+" : s->space ? " " : "";
    const char *prefix = !s->alternate || decimal ? ""
                         : s->type == 'o'         ? "0o"
                         : s->type == 'x'         ? "0x"
                                                  : "0X";
    const char *fmt = decimal          ? "%s%s%.*lu"
                      : s->type == 'o' ? "%s%s%.*lo"
                      : s->type == 'x' ? "%s%s%.*lx"
                                       : "%s%s%.*lX";
    int precision = s->precision < 0 ? 1 : s->precision == 0 ? 1 : s->precision;
    int n = snprintf(digits, sizeof digits, fmt, sign, prefix, precision, (unsigned long)magnitude);
    add_padded(f, s, (text){digits, (size_t)n}, true);
    return true;
}

static bool format_float(formatter *f, const spec *s, value v)
{
    char digits[FORMAT_MAX_WIDTH + 400]; /* the largest double has 309 digits */
    char fmt[16];
    if (v.kind == V_UNDEFINED) return value_fail_undefined(f->r, v);
    if (!value_is_number(v))
        return render_fail(f->r, STATUS_INVALID, "must be real number, not %s", value_type(v));
    snprintf(fmt, sizeof fmt, "%%%s%s%s.*%c", s->plus ? "+" : "", s->space ? " " : "",
             s->alternate ? "#" : "", s->type);
    int n = snprintf(digits, sizeof digits, fmt, s->precision < 0 ? 6 : s->precision,
                     value_as_float(v));
    add_padded(f, s, (text){digits, (size_t)n}, isfinite(value_as_float(v)));
    return true;
}

static bool named_argument(formatter *f, value *out)
{
    size_t from = ++f->i, depth = 1;
    for (; f->i < f->format.n; f->i++) {
        if (f->format.s[f->i] == '(') depth++;
        if (f->format.s[f->i] == ')' && --depth == 0) break;
    }
    if (depth > 0) return render_fail(f->r, STATUS_INVALID, "incomplete format key");
    text key = {f->format.s + from, f->i++ - from};
    if (f->arguments.kind != V_DICT)
        return render_fail(f->r, STATUS_INVALID, "format requires a mapping");
    const value *v = dict_get_text(f->r, f->arguments.dict, key);
    f->named = true;
    if (!v)
        return render_fail(f->r, STATUS_INVALID, "'%.*s'", key.n > 200 ? 200 : (int)key.n, key.s);
    *out = *v;
    return true;
}

static bool format_one(formatter *f)
{
    spec s;
    value v = {0};
    bool named = current(f) == '(';
    if (named && !named_argument(f, &v)) return false;
    if (!parse_spec(f, &s)) return false;
    if (s.type == '%') {
        builder_char(&f->out, '%');
        return true;
    }
    if (!strchr("srdiuxXofFeEgGc", s.type))
        return render_fail(f->r, STATUS_INVALID, "unsupported format character '%c'",
                           s.type >= ' ' && s.type < 0x7f ? s.type : '?');
    if (!named && !next_argument(f, &v)) return false;
    if (s.type == 's' || s.type == 'r') return format_text(f, &s, v);
    if (s.type == 'c') return format_char(f, &s, v);
    return strchr("diuxXo", s.type) ? format_int(f, &s, v) : format_float(f, &s, v);
}

bool value_percent_format(render *r, text format, value arguments, value *out)
{
    formatter f = {.r = r, .out = builder_new(r), .format = format, .arguments = arguments};
    while (f.i < format.n && !f.out.failed) {
        size_t percent = text_find(format, TEXT("%"), f.i);
        size_t to = percent == SIZE_MAX ? format.n : percent;
        builder_add(&f.out, (text){format.s + f.i, to - f.i});
        f.i = to + 1;
        if (percent != SIZE_MAX && (!render_step(r, 0) || !format_one(&f))) return false;
    }
    /* Every value with items counts as a mapping, whose items need not be used. */
    bool tuple = arguments.kind == V_TUPLE;
    bool ignored = arguments.kind == V_DICT || arguments.kind == V_LIST ||
                   arguments.kind == V_RANGE || arguments.kind == V_UNDEFINED;
    if (tuple ? f.next < arguments.list->n : f.next == 0 && !ignored && !f.named)
        return render_fail(r, STATUS_INVALID,
                           "not all arguments converted during string formatting");
    return builder_finish(&f.out, out);
}
