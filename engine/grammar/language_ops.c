/* Operations on languages: both, one without the other, bounds on characters, the form inside a
 * JSON string. */
#include "engine/grammar/internal.h"

#include <stdio.h>
#include <string.h>

/* States that are found while edges to them are written; each is a key. `next` is where the bytes
 * of the state that is written lead: NONE, nowhere. */
typedef struct explorer {
    language_writer w;
    key_map numbers;
    uint64_t *keys; // [n]: by number
    uint32_t n, room;
    uint32_t next[256];
} explorer;

static uint32_t meet(explorer *x, uint64_t key)
{
    build *b = x->w.b;
    uint32_t number = key_map_put(b, &x->numbers, key, x->n);
    if (number != x->n || !build_ok(b)) return number;
    if (x->n >= LANGUAGE_STATES_MAX) {
        build_fail(b, STATUS_LIMIT, "too large: more than %d states", LANGUAGE_STATES_MAX);
        return 0;
    }
    if (build_room(b, &x->keys, x->n, 1, &x->room, sizeof key)) x->keys[x->n++] = key;
    return number;
}

/* Ends the scratch memory that the operation began with. */
static language *finish(explorer *x)
{
    build *b = x->w.b;
    language *l = build_ok(b) ? writer_finish(&x->w) : NULL, *out = NULL;
    build_keep(b);
    if (l) out = build_alloc(b, 1, sizeof *out);
    if (out) {
        *out = *l;
        out->first = build_copy(b, l->first, (size_t)l->n_states + 1, sizeof *l->first);
        out->edges = build_copy(b, l->edges, l->n_edges, sizeof *l->edges);
        out->ends = build_copy(b, l->ends, l->n_states, 1);
    }
    build_forget(b);
    return build_ok(b) ? out : NULL;
}

/* The state behind a byte, or NONE. */
static uint32_t follow(const language *l, uint32_t state, uint32_t byte)
{
    if (state == NONE) return NONE;
    const byte_edge *e = l->edges + l->first[state], *end = l->edges + l->first[state + 1];
    while (e < end && e->hi < byte) e++;
    return e < end && e->lo <= byte ? e->to : NONE;
}

bool language_has(const language *l, const char *s, size_t n)
{
    uint32_t at = 0;
    for (size_t i = 0; i < n && at != NONE; i++) at = follow(l, at, (uint8_t)s[i]);
    return at != NONE && l->ends[at];
}

static void cut_state(const language *l, uint32_t state, bool cut[257])
{
    if (state != NONE)
        edges_cut(l->edges + l->first[state], l->first[state + 1] - l->first[state], cut);
}

/* The edges of a state, read by ascending bytes. */
typedef struct edge_cursor {
    const byte_edge *at, *end;
} edge_cursor;

static edge_cursor edges_from(const language *l, uint32_t state)
{
    if (state == NONE) return (edge_cursor){0};
    return (edge_cursor){l->edges + l->first[state], l->edges + l->first[state + 1]};
}

/* The state behind a byte that is not below the last one that was asked for, or NONE. */
static uint32_t pass_to(edge_cursor *c, uint32_t byte)
{
    while (c->at < c->end && c->at->hi < byte) c->at++;
    return c->at < c->end && c->at->lo <= byte ? c->at->to : NONE;
}

static void write_pair(explorer *x, const language *l, const language *r, uint64_t key, bool both)
{
    uint32_t s = (uint32_t)(key >> 32), t = (uint32_t)key;
    bool right = t != NONE && r->ends[t], cut[257] = {false};
    edge_cursor left = edges_from(l, s), other = edges_from(r, t);
    writer_state(&x->w, l->ends[s] && right == both);
    cut_state(l, s, cut);
    cut_state(r, t, cut);
    for (uint32_t lo = 0, hi; lo < 256 && build_work(x->w.b, 1); lo = hi) {
        for (hi = lo + 1; hi < 256 && !cut[hi];) hi++;
        uint32_t to = pass_to(&left, lo), beside = pass_to(&other, lo);
        if (to == NONE || (both && beside == NONE)) continue;
        writer_edge(&x->w, lo, hi - 1, meet(x, (uint64_t)to << 32 | beside));
    }
}

static language *combine(build *b, const language *l, const language *r, bool both)
{
    explorer x = {.w = {.b = b}};
    if (!l || !r || !build_ok(b)) return NULL;
    build_scratch(b);
    meet(&x, 0);
    for (uint32_t i = 0; i < x.n && build_ok(b); i++) write_pair(&x, l, r, x.keys[i], both);
    return finish(&x);
}

language *language_and(build *b, const language *x, const language *y)
{
    return combine(b, x, y, true);
}

language *language_without(build *b, const language *x, const language *y)
{
    return combine(b, x, y, false);
}

/* ---- bounds on characters -------------------------------------------------------------------- */

language *language_chars(build *b, const language *l, uint32_t min, uint32_t max)
{
    explorer x = {.w = {.b = b}};
    uint32_t most = max == REPEAT_MANY ? min : max;
    if (!l || !build_ok(b)) return NULL;
    build_scratch(b);
    meet(&x, 0);
    for (uint32_t i = 0; i < x.n && build_ok(b); i++) {
        uint32_t s = (uint32_t)(x.keys[i] >> 32), n = (uint32_t)x.keys[i];
        uint32_t more = n < most ? n + 1 : n;
        writer_state(&x.w, l->ends[s] && n >= min);
        for (uint32_t e = l->first[s]; e < l->first[s + 1] && build_work(b, 1); e++) {
            byte_edge edge = l->edges[e];
            bool inside = edge.lo >= 0x80 && edge.hi < 0xc0; // a later byte of a character
            if (!inside && n == most && max != REPEAT_MANY) continue;
            writer_edge(&x.w, edge.lo, edge.hi,
                        meet(&x, (uint64_t)edge.to << 32 | (inside ? n : more)));
        }
    }
    return finish(&x);
}

/* ---- the form inside a JSON string ----------------------------------------------------------- */

/* The letter of a byte's short escape; 0 where it has none. */
static uint8_t short_escape(uint32_t byte)
{
    switch (byte) {
    case '"': return '"';
    case '\\': return '\\';
    case '\b': return 'b';
    case '\f': return 'f';
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    default: return 0;
    }
}

/* The steps within an escape: behind the backslash, behind "u", "u0", "u00", "u000", "u001". */
enum { PLAIN, BACKSLASH, U, U0, U00, U000, U001 };

static uint64_t step_key(uint32_t state, uint32_t step) { return (uint64_t)state << 8 | step; }

static bool is_escaped(uint32_t byte) { return byte < 0x20 || byte == '"' || byte == '\\'; }

static void write_plain(explorer *x, uint32_t s)
{
    bool escapes = false;
    for (uint32_t c = 0; c <= '\\'; c++) escapes |= is_escaped(c) && x->next[c] != NONE;
    for (uint32_t c = 0x20, end; c < 256 && build_work(x->w.b, 1); c = end) {
        end = c + 1;
        if (c == '\\' && escapes) writer_edge(&x->w, c, c, meet(x, step_key(s, BACKSLASH)));
        if (is_escaped(c) || x->next[c] == NONE) continue;
        while (end < 256 && !is_escaped(end) && x->next[end] == x->next[c]) end++;
        writer_edge(&x->w, c, end - 1, meet(x, step_key(x->next[c], PLAIN)));
    }
}

static void write_backslash(explorer *x, uint32_t s)
{
    uint32_t to[128];
    memset(to, 0xff, sizeof to);
    for (uint32_t c = 0; c <= '\\'; c++) {
        if (!is_escaped(c) || x->next[c] == NONE) continue;
        uint8_t letter = short_escape(c);
        if (letter) to[letter] = meet(x, step_key(x->next[c], PLAIN));
        else if (to['u'] == NONE) to['u'] = meet(x, step_key(s, U));
    }
    for (uint32_t letter = 0; letter < 128; letter++)
        if (to[letter] != NONE) writer_edge(&x->w, letter, letter, to[letter]);
}

/* The last digit of \u00XX, for control characters without a short escape. */
static void write_last_digit(explorer *x, uint32_t high)
{
    static const char digits[] = "0123456789abcdef";
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t c = high * 16 + i, to = x->next[c];
        if (to != NONE && !short_escape(c))
            writer_edge(&x->w, (uint8_t)digits[i], (uint8_t)digits[i],
                        meet(x, step_key(to, PLAIN)));
    }
}

static void write_step(explorer *x, const language *l, uint64_t key)
{
    uint32_t s = (uint32_t)(key >> 8), step = key & 255;
    writer_state(&x->w, step == PLAIN && l->ends[s]);
    memset(x->next, 0xff, sizeof x->next);
    for (uint32_t e = l->first[s]; e < l->first[s + 1]; e++)
        for (uint32_t c = l->edges[e].lo; c <= l->edges[e].hi; c++) x->next[c] = l->edges[e].to;
    switch (step) {
    case PLAIN: write_plain(x, s); break;
    case BACKSLASH: write_backslash(x, s); break;
    case U: writer_edge(&x->w, '0', '0', meet(x, step_key(s, U0))); break;
    case U0: writer_edge(&x->w, '0', '0', meet(x, step_key(s, U00))); break;
    case U00:
        writer_edge(&x->w, '0', '0', meet(x, step_key(s, U000)));
        writer_edge(&x->w, '1', '1', meet(x, step_key(s, U001)));
        break;
    default: write_last_digit(x, step == U001); break;
    }
}

language *language_json(build *b, const language *l)
{
    explorer x = {.w = {.b = b}};
    if (!l || !build_ok(b)) return NULL;
    build_scratch(b);
    meet(&x, step_key(0, PLAIN));
    for (uint32_t i = 0; i < x.n && build_ok(b); i++) write_step(&x, l, x.keys[i]);
    return finish(&x);
}
