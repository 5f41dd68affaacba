/* Python's "…{}…".format(arguments), as Jinja's sandbox runs it: fields by position or by name,
 * attributes and items of them, !s and !r. Format specifications (after a colon) are refused. */
#include "text/chat_template/render.h"

typedef struct filler {
    render *r;
    builder out;
    text format;
    const call_args *call;
    int64_t next;       /* position of the next {} */
    bool counts, picks; /* seen {}; seen {0} */
} filler;

static bool fail_format(filler *f, const char *what)
{
    return render_fail(f->r, STATUS_INVALID, "%s", what);
}

static bool is_number(text t)
{
    for (size_t i = 0; i < t.n; i++)
        if (t.s[i] < '0' || t.s[i] > '9') return false;
    return t.n > 0;
}

/* Reads a position. Too many digits give a position past the end of any list of arguments. */
static int64_t number_of(text t)
{
    int64_t n = 0;
    for (size_t i = 0; i < t.n && n < INT32_MAX; i++) n = n * 10 + (t.s[i] - '0');
    return n;
}

static bool positional(filler *f, int64_t at, value *out)
{
    if ((uint64_t)at >= f->call->n_positional)
        return render_fail(f->r, STATUS_INVALID,
                           "Replacement index %lld out of range for positional args tuple",
                           (long long)at);
    *out = f->call->positional[at];
    return true;
}

/* Gets the argument that the start of a field names; an empty name means the next argument. */
static bool argument(filler *f, text name, bool whole, value *out)
{
    if (name.n == 0 && whole) {
        if (f->picks)
            return fail_format(f,
                               "cannot switch from manual field specification to automatic field "
                               "numbering");
        f->counts = true;
        return positional(f, f->next++, out);
    }
    if (is_number(name)) {
        if (whole && f->counts && f->next > 0)
            return fail_format(f,
                               "cannot switch from manual field specification to automatic field "
                               "numbering");
        f->picks = f->picks || whole;
        return positional(f, number_of(name), out);
    }
    for (size_t i = 0; i < f->call->n_keywords; i++) {
        if (!text_equal(f->call->keywords[i].name, name)) continue;
        *out = f->call->keywords[i].value;
        return true;
    }
    return render_fail(f->r, STATUS_INVALID, "'%.*s'", name.n > 200 ? 200 : (int)name.n, name.s);
}

static size_t end_of_name(text field, size_t at)
{
    while (at < field.n && field.s[at] != '.' && field.s[at] != '[') at++;
    return at;
}

/* Evaluates name.attribute[item]… */
static bool look_up(filler *f, text field, value *out)
{
    size_t at = end_of_name(field, 0);
    if (!argument(f, (text){field.s, at}, at == field.n, out)) return false;
    while (at < field.n) {
        bool item = field.s[at++] == '[';
        size_t end = at;
        if (item)
            while (end < field.n && field.s[end] != ']') end++;
        else end = end_of_name(field, at);
        text name = {field.s + at, end - at};
        if (name.n == 0) return fail_format(f, "Empty attribute in format string");
        if (item && end == field.n) return fail_format(f, "Missing ']' in format string");
        value key = is_number(name) ? value_int(number_of(name)) : value_text(name);
        if (!(item ? value_get_item(f->r, *out, key, out) : value_get_attr(f->r, *out, name, out)))
            return false;
        at = end + item;
        if (item && at < field.n && field.s[at] != '.' && field.s[at] != '[')
            return fail_format(f, "Only '.' or '[' may follow ']' in format field specifier");
    }
    return true;
}

/* Replaces the field with the text `inside` between { and }. */
static bool fill_field(filler *f, text inside)
{
    size_t end = 0;
    value v, shown;
    bool brackets = false;
    for (; end < inside.n; end++) {
        char c = inside.s[end];
        if (c == '[') brackets = true;
        if (c == ']') brackets = false;
        if (!brackets && (c == '!' || c == ':')) break;
    }
    text field = {inside.s, end};
    bool repr = false;
    if (end < inside.n && inside.s[end] == '!') {
        char how = end + 1 < inside.n ? inside.s[end + 1] : 0;
        if (how != 's' && how != 'r')
            return render_fail(f->r, STATUS_UNSUPPORTED,
                               "format(): this conversion is not supported");
        repr = how == 'r';
        end += 2;
        if (end < inside.n && inside.s[end] != ':')
            return fail_format(f, "expected ':' after conversion specifier");
    }
    if (end + 1 < inside.n)
        return render_fail(f->r, STATUS_UNSUPPORTED,
                           "format(): a format specification is not supported");
    if (!look_up(f, field, &v)) return false;
    if (!(repr ? value_repr(f->r, v, &shown) : value_str(f->r, v, &shown))) return false;
    builder_add(&f->out, text_of(shown));
    return true;
}

/* Replaces the field that starts at *at, behind a single {, and moves *at behind its }. */
static bool take_field(filler *f, size_t *at)
{
    size_t end = *at;
    if (end >= f->format.n) return fail_format(f, "Single '{' encountered in format string");
    while (end < f->format.n && f->format.s[end] != '}' && f->format.s[end] != '{') end++;
    if (end == f->format.n) return fail_format(f, "expected '}' before end of string");
    if (f->format.s[end] == '{')
        return render_fail(f->r, STATUS_UNSUPPORTED,
                           "format(): a field within a field is not supported");
    text inside = {f->format.s + *at, end - *at};
    *at = end + 1;
    return render_step(f->r, inside.n) && fill_field(f, inside);
}

bool value_brace_format(render *r, text format, const call_args *call, value *out)
{
    filler f = {.r = r, .out = builder_new(r), .format = format, .call = call};
    if (!render_step(r, format.n)) return false;
    for (size_t at = 0; at < format.n && !f.out.failed;) {
        char c = format.s[at++];
        bool twice = at < format.n && format.s[at] == c;
        if ((c == '{' || c == '}') && twice) at++;
        else if (c == '}') return fail_format(&f, "Single '}' encountered in format string");
        else if (c == '{') {
            if (!take_field(&f, &at)) return false;
            continue;
        }
        builder_char(&f.out, c);
    }
    return builder_finish(&f.out, out);
}
