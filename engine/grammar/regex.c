/* Regular expressions as JSON Schema (ECMA-262) and vLLM write them, to languages.
 *
 * "^" and "$" are letters while an expression is read: bytes that UTF-8 does not have stand for the
 * beginning and the end of a text. In the end, only texts with one of each in their places stay,
 * and the two bytes are taken away. */
#include "engine/grammar/internal.h"

#include <string.h>

enum { BEGIN = 0xfe, END = 0xff, DEPTH_MAX = 200, COUNT_MAX = 100000 };

typedef struct regex_reader {
    build *b;
    const uint8_t *text;
    size_t n, at;
    unsigned depth;
} regex_reader;

static expr refuse(regex_reader *r, status_code code, const char *what)
{
    build_fail(r->b, code, "at byte %zu: %s", r->at, what);
    return 0;
}

static bool more(const regex_reader *r) { return r->at < r->n && build_ok(r->b); }

static bool take(regex_reader *r, char c)
{
    if (r->at >= r->n || r->text[r->at] != (uint8_t)c) return false;
    r->at++;
    return true;
}

/* The next character. */
static uint32_t next_char(regex_reader *r)
{
    uint32_t cp = UINT32_MAX;
    if (r->at < r->n) r->at += utf8_decode(r->text + r->at, r->n - r->at, &cp);
    if (cp == UINT32_MAX) refuse(r, STATUS_INVALID, "not a character of UTF-8");
    return cp;
}

/* ---- classes --------------------------------------------------------------------------------- */

static void add_ranges(build *b, char_set *s, const uint32_t *pairs, unsigned n)
{
    for (unsigned i = 0; i < n; i++) char_set_add(b, s, pairs[2 * i], pairs[2 * i + 1]);
}

/* \d \w \s and their opposites. False: the letter names no class. */
static bool add_class(build *b, char_set *s, uint32_t letter)
{
    static const uint32_t digit[] = {'0', '9'};
    static const uint32_t word[] = {'0', '9', 'A', 'Z', '_', '_', 'a', 'z'};
    static const uint32_t space[] = {9,      13,     ' ',    ' ',    0xa0,   0xa0,   0x1680,
                                     0x1680, 0x2000, 0x200a, 0x2028, 0x2029, 0x202f, 0x202f,
                                     0x205f, 0x205f, 0x3000, 0x3000, 0xfeff, 0xfeff};
    char_set one = {0};
    switch (letter | 0x20) {
    case 'd': add_ranges(b, &one, digit, 1); break;
    case 'w': add_ranges(b, &one, word, 4); break;
    case 's': add_ranges(b, &one, space, 10); break;
    default: return false;
    }
    if (!(letter & 0x20)) char_set_invert(b, &one);
    char_set_add_set(b, s, &one);
    return true;
}

static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static uint32_t read_hex(regex_reader *r, unsigned digits)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < digits; i++, r->at++) {
        int digit = r->at < r->n ? hex_value(r->text[r->at]) : -1;
        if (digit < 0) return refuse(r, STATUS_INVALID, "hexadecimal digits are missing");
        value = value * 16 + (uint32_t)digit;
    }
    return value;
}

/* \u: four digits, or any number of them in braces. */
static uint32_t read_unicode(regex_reader *r)
{
    uint32_t value = 0;
    if (!take(r, '{')) {
        value = read_hex(r, 4);
        if (value < 0xd800 || value > 0xdbff) return value;
        if (r->n - r->at < 6 || r->text[r->at] != '\\' || r->text[r->at + 1] != 'u') return value;
        r->at += 2;
        return 0x10000 + ((value - 0xd800) << 10) + ((read_hex(r, 4) - 0xdc00) & 0x3ff);
    }
    while (more(r) && !take(r, '}')) {
        value = value * 16 + read_hex(r, 1);
        if (value > 0x10ffff) return refuse(r, STATUS_INVALID, "not a character of Unicode");
    }
    return value;
}

/* The character of an escape, behind the backslash. */
static uint32_t read_escape(regex_reader *r)
{
    uint32_t c = next_char(r);
    switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'f': return '\f';
    case 'v': return '\v';
    case '0': return 0;
    case 'x': return read_hex(r, 2);
    case 'u': return read_unicode(r);
    case 'c': c = next_char(r); return c & 0x1f;
    default: break;
    }
    if (c < 0x80 && ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')) {
        r->at--;
        return refuse(r, STATUS_UNSUPPORTED, "an escape that is not supported");
    }
    if (c >= '1' && c <= '9')
        return refuse(r, STATUS_UNSUPPORTED, "references to groups are not supported");
    return c;
}

/* One element of a class in brackets: a range or a class; `alone`: it cannot begin a range. */
static uint32_t read_element(regex_reader *r, char_set *s, bool *alone)
{
    *alone = false;
    if (!take(r, '\\')) return next_char(r);
    if (take(r, 'b')) return '\b';
    if (r->at < r->n && add_class(r->b, s, r->text[r->at])) {
        *alone = true;
        r->at++;
        return 0;
    }
    return read_escape(r);
}

static expr read_brackets(regex_reader *r)
{
    char_set s = {0};
    bool invert = take(r, '^'), alone, second;
    while (more(r) && r->text[r->at] != ']') {
        uint32_t lo = read_element(r, &s, &alone), hi = lo;
        bool range =
            !alone && r->n - r->at >= 2 && r->text[r->at] == '-' && r->text[r->at + 1] != ']';
        if (range) {
            r->at++;
            hi = read_element(r, &s, &second);
            if (second) {
                char_set_add(r->b, &s, '-', '-');
                hi = lo;
            }
        }
        if (hi < lo) return refuse(r, STATUS_INVALID, "a range of characters is out of order");
        if (!alone) char_set_add(r->b, &s, lo, hi);
    }
    if (!take(r, ']')) return refuse(r, STATUS_INVALID, "']' is missing");
    if (invert) char_set_invert(r->b, &s);
    return expr_chars(r->b, &s);
}

/* ---- atoms ----------------------------------------------------------------------------------- */

static expr read_alternatives(regex_reader *r);

static expr read_group(regex_reader *r)
{
    if (take(r, '?')) {
        bool named = take(r, 'P');
        if (!named && take(r, ':')) {
        } else if (take(r, '<') && r->at < r->n && r->text[r->at] != '=' && r->text[r->at] != '!') {
            while (more(r) && !take(r, '>')) r->at++;
        } else {
            return refuse(r, STATUS_UNSUPPORTED, "this kind of group is not supported");
        }
    }
    if (++r->depth > DEPTH_MAX) return refuse(r, STATUS_LIMIT, "groups are nested too deeply");
    expr e = read_alternatives(r);
    r->depth--;
    if (!take(r, ')')) return refuse(r, STATUS_INVALID, "')' is missing");
    return e;
}

static expr one_char(regex_reader *r, uint32_t c)
{
    char_set s = {0};
    char_set_add(r->b, &s, c, c);
    return expr_chars(r->b, &s);
}

static expr any_but_line_ends(regex_reader *r)
{
    static const uint32_t ends[] = {'\n', '\n', '\r', '\r', 0x2028, 0x2029};
    char_set s = {0};
    add_ranges(r->b, &s, ends, 3);
    char_set_invert(r->b, &s);
    return expr_chars(r->b, &s);
}

static expr read_backslash(regex_reader *r)
{
    char_set s = {0};
    uint8_t c = r->at < r->n ? r->text[r->at] : 0;
    if (c == 'b' || c == 'B')
        return refuse(r, STATUS_UNSUPPORTED, "word boundaries are not supported");
    if ((c | 0x20) == 'p')
        return refuse(r, STATUS_UNSUPPORTED, "classes of Unicode properties are not supported");
    if (!add_class(r->b, &s, c)) return one_char(r, read_escape(r));
    r->at++;
    return expr_chars(r->b, &s);
}

static expr read_atom(regex_reader *r)
{
    if (take(r, '(')) return read_group(r);
    if (take(r, '[')) return read_brackets(r);
    if (take(r, '.')) return any_but_line_ends(r);
    if (take(r, '^')) return expr_range(r->b, BEGIN, BEGIN);
    if (take(r, '$')) return expr_range(r->b, END, END);
    if (take(r, '\\')) return read_backslash(r);
    if (strchr("*+?", r->text[r->at])) return refuse(r, STATUS_INVALID, "nothing to repeat");
    return one_char(r, next_char(r));
}

static bool read_number(regex_reader *r, uint32_t *out)
{
    size_t from = r->at;
    *out = 0;
    for (; r->at < r->n && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++)
        if (*out <= COUNT_MAX) *out = *out * 10 + (r->text[r->at] - '0');
    return r->at > from;
}

/* {n}, {n,} or {n,m}; false, and nothing read: the brace is a character. */
static bool read_bounds(regex_reader *r, uint32_t *min, uint32_t *max)
{
    size_t from = r->at++;
    bool ok = read_number(r, min);
    *max = *min;
    if (ok && take(r, ',') && !read_number(r, max)) *max = REPEAT_MANY;
    ok = ok && take(r, '}');
    if (!ok) r->at = from;
    return ok;
}

static expr read_repeated(regex_reader *r)
{
    expr e = read_atom(r);
    while (more(r)) {
        uint32_t min = 0, max = REPEAT_MANY;
        uint8_t c = r->text[r->at];
        if (c == '+') min = 1;
        else if (c == '?') max = 1;
        else if (c == '{' && !read_bounds(r, &min, &max)) break;
        else if (c != '*' && c != '{') break;
        if (c != '{') r->at++;
        if (max < min) return refuse(r, STATUS_INVALID, "bounds are out of order");
        if (min > COUNT_MAX || (max > COUNT_MAX && max != REPEAT_MANY))
            return refuse(r, STATUS_LIMIT, "bounds above 100,000");
        e = expr_repeat(r->b, e, min, max);
        if (take(r, '?')) continue; // fewest first: the same language
    }
    return e;
}

static expr read_alternatives(regex_reader *r)
{
    expr_list all = {0};
    for (;;) {
        expr_list seq = {0};
        while (more(r) && r->text[r->at] != '|' && r->text[r->at] != ')')
            expr_list_add(r->b, &seq, read_repeated(r));
        if (!build_ok(r->b)) return 0;
        expr_list_add(r->b, &all, expr_seq(r->b, seq.items, seq.n));
        if (!take(r, '|')) break;
    }
    return build_ok(r->b) ? expr_alt(r->b, all.items, all.n) : 0;
}

/* ---- whole expressions ----------------------------------------------------------------------- */

static uint32_t behind(const language *l, uint32_t state, uint8_t byte)
{
    for (uint32_t e = l->first[state]; e < l->first[state + 1]; e++)
        if (l->edges[e].lo <= byte && byte <= l->edges[e].hi) return l->edges[e].to;
    return NONE;
}

/* The texts between BEGIN and END. */
static language *between_ends(build *b, const language *l)
{
    language_writer w = {.b = b};
    uint32_t start = behind(l, 0, BEGIN);
    for (uint32_t i = 0; i < l->n_states + 1 && build_ok(b); i++) {
        uint32_t s = i == 0 ? start : i - 1; // a copy of the new start, then every state
        uint32_t last = s == NONE ? NONE : behind(l, s, END);
        writer_state(&w, last != NONE && l->ends[last]);
        for (uint32_t e = s == NONE ? 0 : l->first[s]; s != NONE && e < l->first[s + 1]; e++)
            if (l->edges[e].lo < BEGIN)
                writer_edge(&w, l->edges[e].lo, l->edges[e].hi < BEGIN ? l->edges[e].hi : BEGIN - 1,
                            l->edges[e].to + 1);
    }
    return writer_finish(&w);
}

language *regex_language(build *b, const char *text, size_t n, bool whole)
{
    regex_reader r = {.b = b, .text = (const uint8_t *)text, .n = n};
    expr e = read_alternatives(&r);
    if (build_ok(b) && r.at < r.n) refuse(&r, STATUS_INVALID, "')' without '('");
    expr begin = expr_range(b, BEGIN, BEGIN), end = expr_range(b, END, END);
    if (!whole) {
        expr any = expr_repeat(b, expr_any_char(b), 0, REPEAT_MANY);
        begin = expr_then(b, begin, any);
        end = expr_then(b, any, end);
    }
    expr parts[] = {expr_optional(b, begin), e, expr_optional(b, end)};
    language *l = language_of(b, expr_seq(b, parts, 3));
    return l && build_ok(b) ? between_ends(b, l) : NULL;
}

uint32_t front_regex(build *b, const char *text, size_t n)
{
    uint32_t rule = rule_create(b, "regex");
    language *l = regex_language(b, text, n, true);
    if (l) rule_define(b, rule, expr_language(b, l));
    return rule;
}
