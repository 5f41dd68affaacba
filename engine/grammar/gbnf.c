/* GBNF, as llama.cpp and vLLM's guided_grammar take it: `name ::= alternatives`, with texts in
 * quotes, classes in brackets, groups, and * + ? {m,n}. A rule ends where the next name with "::="
 * begins, so that line ends mean nothing. */
#include "engine/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 200,     // groups in groups
    COUNT_MAX = 100000,  // of a repetition
    INLINE_SIZE = 4096,  // a rule of at most so many nodes stands in place of its calls
    INLINE_HEIGHT = 100, // calls of such rules in one another
};

typedef struct gbnf_name {
    const char *s;
    size_t n;
    uint32_t rule;
} gbnf_name;

typedef struct gbnf_reader {
    build *b;
    const uint8_t *text;
    size_t n, at;
    unsigned depth;
    gbnf_name *names; // a hash table
    uint32_t n_names, size;
} gbnf_reader;

static expr refuse(gbnf_reader *r, status_code code, const char *what)
{
    uint32_t line = 1;
    for (size_t i = 0; i < r->at && i < r->n; i++) line += r->text[i] == '\n';
    build_fail(r->b, code, "line %u: %s", line, what);
    return 0;
}

static void skip_space(gbnf_reader *r)
{
    while (r->at < r->n) {
        uint8_t c = r->text[r->at];
        if (c == '#')
            while (r->at < r->n && r->text[r->at] != '\n') r->at++;
        else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') r->at++;
        else return;
    }
}

static bool take(gbnf_reader *r, char c)
{
    if (r->at >= r->n || r->text[r->at] != (uint8_t)c) return false;
    r->at++;
    return true;
}

static bool is_name_char(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t name_end(const gbnf_reader *r)
{
    size_t at = r->at;
    while (at < r->n && is_name_char(r->text[at])) at++;
    return at;
}

/* Whether a name with "::=" begins here. */
static bool at_rule(const gbnf_reader *r)
{
    gbnf_reader look = *r;
    look.at = name_end(r);
    if (look.at == r->at) return false;
    skip_space(&look);
    return look.n - look.at >= 3 && memcmp(look.text + look.at, "::=", 3) == 0;
}

/* ---- names ----------------------------------------------------------------------------------- */

static void grow_names(gbnf_reader *r)
{
    uint32_t size = r->size ? r->size * 2 : 64;
    gbnf_name *names = build_alloc(r->b, size, sizeof *names);
    if (!names) return;
    for (uint32_t i = 0; i < r->size; i++) {
        if (!r->names[i].s) continue;
        uint64_t h = hash_bytes(r->names[i].s, r->names[i].n, 2);
        while (names[h & (size - 1)].s) h++;
        names[h & (size - 1)] = r->names[i];
    }
    r->names = names;
    r->size = size;
}

/* The rule of the name that ends at `end`; made where it is new. */
static uint32_t read_name(gbnf_reader *r, size_t end)
{
    const char *s = (const char *)r->text + r->at;
    size_t n = end - r->at;
    if (r->n_names * 2 >= r->size) grow_names(r);
    if (!build_ok(r->b)) return 0;
    uint64_t h = hash_bytes(s, n, 2);
    for (;; h++) {
        gbnf_name *name = &r->names[h & (r->size - 1)];
        if (!name->s) {
            char *copy = build_alloc(r->b, n + 1, 1);
            if (copy) memcpy(copy, s, n);
            *name = (gbnf_name){s, n, rule_create(r->b, copy)};
            r->n_names++;
        }
        if (name->n != n || memcmp(name->s, s, n) != 0) continue;
        r->at = end;
        return name->rule;
    }
}

/* ---- characters ------------------------------------------------------------------------------ */

static uint32_t read_hex(gbnf_reader *r, unsigned digits)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < digits; i++, r->at++) {
        uint8_t c = r->at < r->n ? r->text[r->at] : 0, low = c | 0x20;
        bool letter = low >= 'a' && low <= 'f';
        if (!letter && (c < '0' || c > '9'))
            return refuse(r, STATUS_INVALID, "hexadecimal digits are missing");
        value = value * 16 + (letter ? low - 'a' + 10u : c - '0' + 0u);
    }
    if (value > 0x10ffff) return refuse(r, STATUS_INVALID, "not a character of Unicode");
    return value;
}

static uint32_t read_char(gbnf_reader *r)
{
    uint32_t cp = UINT32_MAX;
    if (!take(r, '\\')) {
        if (r->at < r->n) r->at += utf8_decode(r->text + r->at, r->n - r->at, &cp);
        return cp == UINT32_MAX ? refuse(r, STATUS_INVALID, "not a character of UTF-8") : cp;
    }
    if (r->at >= r->n) return refuse(r, STATUS_INVALID, "the text ends in an escape");
    uint8_t c = r->text[r->at++];
    switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'x': return read_hex(r, 2);
    case 'u': return read_hex(r, 4);
    case 'U': return read_hex(r, 8);
    default: return c;
    }
}

static expr read_text(gbnf_reader *r)
{
    strbuf out = {0};
    while (r->at < r->n && r->text[r->at] != '"' && build_ok(r->b)) {
        uint8_t bytes[4];
        strbuf_append(&out, bytes, utf8_encode(read_char(r), bytes));
    }
    if (out.failed) build_fail(r->b, STATUS_NO_MEMORY, "out of memory");
    if (!take(r, '"')) refuse(r, STATUS_INVALID, "'\"' is missing");
    expr e = build_ok(r->b) ? expr_text(r->b, out.data, out.size) : 0;
    strbuf_destroy(&out);
    return e;
}

static expr read_brackets(gbnf_reader *r)
{
    char_set s = {0};
    bool invert = take(r, '^');
    while (r->at < r->n && r->text[r->at] != ']' && build_ok(r->b)) {
        uint32_t lo = read_char(r), hi = lo;
        if (r->n - r->at >= 2 && r->text[r->at] == '-' && r->text[r->at + 1] != ']') {
            r->at++;
            hi = read_char(r);
        }
        if (hi < lo) return refuse(r, STATUS_INVALID, "a range of characters is out of order");
        char_set_add(r->b, &s, lo, hi);
    }
    if (!take(r, ']')) return refuse(r, STATUS_INVALID, "']' is missing");
    if (invert) char_set_invert(r->b, &s);
    return expr_chars(r->b, &s);
}

/* ---- rules ----------------------------------------------------------------------------------- */

static expr read_alternatives(gbnf_reader *r);

static expr read_atom(gbnf_reader *r)
{
    if (take(r, '"')) return read_text(r);
    if (take(r, '[')) return read_brackets(r);
    if (take(r, '.')) return expr_any_char(r->b);
    if (take(r, '(')) {
        if (++r->depth > DEPTH_MAX) return refuse(r, STATUS_LIMIT, "groups are nested too deeply");
        expr e = read_alternatives(r);
        r->depth--;
        return take(r, ')') ? e : refuse(r, STATUS_INVALID, "')' is missing");
    }
    size_t end = name_end(r);
    if (end == r->at) return refuse(r, STATUS_INVALID, "a text, class, group or name is expected");
    return expr_rule(r->b, read_name(r, end));
}

static bool read_number(gbnf_reader *r, uint32_t *out)
{
    size_t from = r->at;
    *out = 0;
    for (; r->at < r->n && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++)
        if (*out <= COUNT_MAX) *out = *out * 10 + (r->text[r->at] - '0');
    return r->at > from;
}

/* Behind "{": n}, n,} or n,m}. */
static expr read_bounds(gbnf_reader *r, expr e)
{
    uint32_t min, max;
    skip_space(r);
    if (!read_number(r, &min)) min = 0;
    max = min;
    skip_space(r);
    if (take(r, ',')) {
        skip_space(r);
        if (!read_number(r, &max)) max = REPEAT_MANY;
        skip_space(r);
    }
    if (!take(r, '}')) return refuse(r, STATUS_INVALID, "'}' is missing");
    if (max < min) return refuse(r, STATUS_INVALID, "bounds are out of order");
    if (min > COUNT_MAX || (max > COUNT_MAX && max != REPEAT_MANY))
        return refuse(r, STATUS_LIMIT, "bounds above 100,000");
    return expr_count(r->b, e, min, max);
}

static expr read_repeated(gbnf_reader *r)
{
    expr e = read_atom(r);
    while (build_ok(r->b)) {
        skip_space(r);
        if (take(r, '*')) e = expr_repeat(r->b, e, 0, REPEAT_MANY);
        else if (take(r, '+')) e = expr_repeat(r->b, e, 1, REPEAT_MANY);
        else if (take(r, '?')) e = expr_optional(r->b, e);
        else if (take(r, '{')) e = read_bounds(r, e);
        else break;
    }
    return e;
}

static expr read_alternatives(gbnf_reader *r)
{
    expr_list all = {0};
    do {
        expr_list seq = {0};
        for (skip_space(r); r->at < r->n && build_ok(r->b); skip_space(r)) {
            if (r->text[r->at] == '|' || r->text[r->at] == ')' || at_rule(r)) break;
            expr_list_add(r->b, &seq, read_repeated(r));
        }
        if (!build_ok(r->b)) return 0;
        expr_list_add(r->b, &all, expr_seq(r->b, seq.items, seq.n));
    } while (take(r, '|'));
    return build_ok(r->b) ? expr_alt(r->b, all.items, all.n) : 0;
}

static void read_rule(gbnf_reader *r)
{
    if (!at_rule(r)) {
        refuse(r, STATUS_INVALID, "a rule is expected: name ::= ...");
        return;
    }
    uint32_t rule = read_name(r, name_end(r));
    skip_space(r);
    r->at += 3;
    if (build_ok(r->b) && r->b->rules[rule].defined)
        refuse(r, STATUS_INVALID, "a rule of this name came before");
    rule_define(r->b, rule, read_alternatives(r));
    skip_space(r);
}

/* ---- rules in place of their calls ----------------------------------------------------------- */

enum { NEW, OPEN, DONE };

typedef struct inliner {
    build *b;
    uint8_t *colour;
    uint32_t *size, *height; // of each rule, with the rules in place of its calls
    bool *recursive;
    uint32_t depth;
} inliner;

typedef struct extent {
    uint64_t size;
    uint32_t height;
} extent;

static extent measure_rule(inliner *k, uint32_t rule);

static extent measure(inliner *k, expr e)
{
    build *b = k->b;
    if (!build_work(b, 1)) return (extent){0, 0};
    expr_node n = b->nodes[e];
    extent sum = {1, 0};
    if (n.kind == EXPR_RULE) return measure_rule(k, n.a);
    k->depth++;
    if (n.kind == EXPR_TEXT) sum.size = n.b;
    if (n.kind == EXPR_REPEAT) {
        sum = measure(k, n.a);
        uint64_t times = n.c == REPEAT_MANY ? (uint64_t)n.b + 1 : n.c;
        sum.size = sum.size * times < UINT32_MAX ? sum.size * times : UINT32_MAX;
    }
    for (uint32_t i = 0; (n.kind == EXPR_SEQ || n.kind == EXPR_ALT) && i < n.b; i++) {
        extent one = measure(k, b->lists[n.a + i]);
        sum.size += one.size;
        if (one.height > sum.height) sum.height = one.height;
    }
    if (sum.size > UINT32_MAX) sum.size = UINT32_MAX;
    k->depth--;
    return sum;
}

/* The extent of a call: that of the rule's body where it stands in place of the call. */
static extent measure_rule(inliner *k, uint32_t rule)
{
    enum { CHAIN = 1500 }; // levels that are followed
    build_rule *r = &k->b->rules[rule];
    if (k->colour[rule] == OPEN || k->depth >= CHAIN) k->recursive[rule] = true;
    if (k->colour[rule] == NEW && k->depth < CHAIN && build_ok(k->b)) {
        k->colour[rule] = OPEN;
        k->depth++;
        extent own = measure(k, r->body);
        k->depth--;
        k->colour[rule] = DONE;
        k->size[rule] = (uint32_t)own.size;
        k->height[rule] = own.height + 1;
        r->inlined = !r->counted && !k->recursive[rule] && own.size <= INLINE_SIZE &&
                     own.height < INLINE_HEIGHT;
    }
    return r->inlined ? (extent){k->size[rule], k->height[rule]} : (extent){1, 0};
}

static void inline_rules(build *b, uint32_t root)
{
    inliner k = {.b = b};
    k.colour = build_alloc(b, b->n_rules, 1);
    k.size = build_alloc(b, b->n_rules, sizeof *k.size);
    k.height = build_alloc(b, b->n_rules, sizeof *k.height);
    k.recursive = build_alloc(b, b->n_rules, sizeof *k.recursive);
    if (!build_ok(b)) return;
    for (uint32_t i = b->n_rules; i-- > 0;) measure_rule(&k, i);
    if (build_ok(b)) b->rules[root].inlined = false;
}

uint32_t front_gbnf(build *b, const char *text, size_t n)
{
    gbnf_reader r = {.b = b, .text = (const uint8_t *)text, .n = n};
    uint32_t root = rule_create(b, "root");
    skip_space(&r);
    while (r.at < n && build_ok(b)) read_rule(&r);
    uint32_t found = NONE;
    for (uint32_t i = 0; i < r.size && build_ok(b); i++)
        if (r.names[i].s && r.names[i].n == 4 && memcmp(r.names[i].s, "root", 4) == 0)
            found = r.names[i].rule;
    if (build_ok(b) && found == NONE) build_fail(b, STATUS_INVALID, "there is no rule `root`");
    for (uint32_t i = 0; i < r.size && build_ok(b); i++)
        if (r.names[i].s && !b->rules[r.names[i].rule].defined)
            build_fail(b, STATUS_INVALID, "no rule is named `%.*s`",
                       (int)(r.names[i].n < 100 ? r.names[i].n : 100), r.names[i].s);
    if (!build_ok(b)) return 0;
    rule_define(b, root, expr_rule(b, found));
    inline_rules(b, root);
    return root;
}
