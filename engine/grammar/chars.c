/* Sets of characters as expressions over the bytes of UTF-8. */
#include "engine/grammar/internal.h"

#include <stdlib.h>

enum { SURROGATE_FIRST = 0xd800, SURROGATE_LAST = 0xdfff, CHAR_LAST = 0x10ffff };

void char_set_add(build *b, char_set *s, uint32_t lo, uint32_t hi)
{
    if (lo > hi || !build_work(b, 1)) return;
    if (build_room(b, &s->items, s->n, 1, &s->room, sizeof *s->items))
        s->items[s->n++] = (char_range){lo, hi};
}

void char_set_add_set(build *b, char_set *s, const char_set *other)
{
    for (uint32_t i = 0; i < other->n; i++)
        char_set_add(b, s, other->items[i].lo, other->items[i].hi);
}

static int by_first(const void *x, const void *y)
{
    const char_range *a = x, *c = y;
    return a->lo < c->lo ? -1 : a->lo > c->lo;
}

/* Sorts and joins the ranges; without the surrogates. */
static void char_set_normalise(char_set *s)
{
    uint32_t n = 0;
    if (s->n == 0) return;
    qsort(s->items, s->n, sizeof *s->items, by_first);
    for (uint32_t i = 0; i < s->n; i++) {
        char_range r = s->items[i];
        if (n > 0 && r.lo <= s->items[n - 1].hi + 1) {
            if (r.hi > s->items[n - 1].hi) s->items[n - 1].hi = r.hi;
        } else {
            s->items[n++] = r;
        }
    }
    s->n = n;
}

void char_set_invert(build *b, char_set *s)
{
    char_set out = {0};
    uint32_t from = 0;
    char_set_normalise(s);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->items[i].lo > from) char_set_add(b, &out, from, s->items[i].lo - 1);
        from = s->items[i].hi + 1;
    }
    if (from <= CHAR_LAST) char_set_add(b, &out, from, CHAR_LAST);
    *s = out;
}

/* Adds the sequences of bytes of the characters lo .. hi, which have n bytes each: where the ends
 * differ in their first byte, the range is cut so that the later bytes are full ranges. */
static void add_range(build *b, expr_list *out, uint32_t lo, uint32_t hi, unsigned n)
{
    for (unsigned i = 1; i < n; i++) {
        uint32_t mask = (1u << 6 * i) - 1;
        if ((lo & ~mask) == (hi & ~mask)) continue;
        if ((lo & mask) != 0) {
            add_range(b, out, lo, lo | mask, n);
            add_range(b, out, (lo | mask) + 1, hi, n);
            return;
        }
        if ((hi & mask) != mask) {
            add_range(b, out, lo, (hi & ~mask) - 1, n);
            add_range(b, out, hi & ~mask, hi, n);
            return;
        }
    }
    uint8_t first[4], last[4];
    expr bytes[4];
    utf8_encode(lo, first);
    utf8_encode(hi, last);
    for (unsigned i = 0; i < n; i++) bytes[i] = expr_range(b, first[i], last[i]);
    expr_list_add(b, out, expr_seq(b, bytes, n));
}

/* Cuts a range where the number of bytes changes, and around the surrogates. */
static void add_cut(build *b, expr_list *out, char_range r)
{
    static const char_range whole[] = {{0, 0x7f},
                                       {0x80, 0x7ff},
                                       {0x800, SURROGATE_FIRST - 1},
                                       {SURROGATE_LAST + 1, 0xffff},
                                       {0x10000, CHAR_LAST}};
    static const uint8_t bytes[] = {1, 2, 3, 3, 4};
    for (unsigned i = 0; i < 5; i++) {
        uint32_t lo = r.lo > whole[i].lo ? r.lo : whole[i].lo;
        uint32_t hi = r.hi < whole[i].hi ? r.hi : whole[i].hi;
        if (lo <= hi) add_range(b, out, lo, hi, bytes[i]);
    }
}

expr expr_chars(build *b, char_set *s)
{
    expr_list out = {0};
    char_set_normalise(s);
    for (uint32_t i = 0; i < s->n && build_work(b, 1); i++) add_cut(b, &out, s->items[i]);
    return build_ok(b) ? expr_alt(b, out.items, out.n) : 0;
}

expr expr_any_char(build *b)
{
    char_set s = {0};
    char_set_add(b, &s, 0, CHAR_LAST);
    return expr_chars(b, &s);
}
