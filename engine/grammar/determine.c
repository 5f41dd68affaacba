/* Automata without free moves, deterministic where that stays small (the subset construction). A
 * call of a rule counts as a letter of its own. */
#include "engine/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct numbers {
    uint32_t *items, n, room;
} numbers;

typedef struct subsets {
    build *b;
    const nfa *a;
    uint32_t *stamps, stamp; // [a->n_states]: the last closure that visited a state
    numbers stack, closure;
    numbers pool, first;         // the states of subset s are pool[first[s] .. first[s + 1])
    uint32_t *table, table_size; // open addressing: a subset, or NONE
    struct {
        uint32_t *lo, *hi, *to, n, room_lo, room_hi, room_to;
    } bytes; // edges of the subset that is expanded
    numbers call_rules, call_targets;
    uint32_t heads[256]; // edges of one byte alone, linked by `links`
    numbers links;
    language_writer out;
    numbers calls, first_call; // pairs of rule and target
    int64_t work;
    bool too_large;
} subsets;

static void add_number(build *b, numbers *l, uint32_t x)
{
    if (build_room(b, &l->items, l->n, 1, &l->room, sizeof x)) l->items[l->n++] = x;
}

static bool spend(subsets *s, uint32_t n)
{
    s->work -= n;
    if (s->work < 0) s->too_large = true;
    return build_work(s->b, n) && !s->too_large;
}

/* ---- closures -------------------------------------------------------------------------------- */

static void close_begin(subsets *s)
{
    s->stamp++;
    s->closure.n = 0;
}

/* Adds what is reached from a state by free moves; keeps states that have a letter or end. */
static void close_over(subsets *s, uint32_t state)
{
    const nfa *a = s->a;
    if (s->stamps[state] == s->stamp) return;
    s->stamps[state] = s->stamp;
    s->stack.n = 0;
    add_number(s->b, &s->stack, state);
    while (s->stack.n > 0 && build_ok(s->b)) {
        uint32_t at = s->stack.items[--s->stack.n];
        bool keep = at == a->end;
        for (uint32_t e = a->heads[at]; e != NONE; e = a->edges[e].next) {
            const nfa_edge *edge = &a->edges[e];
            if (edge->kind != NFA_FREE) keep = true;
            else if (s->stamps[edge->to] != s->stamp) {
                s->stamps[edge->to] = s->stamp;
                add_number(s->b, &s->stack, edge->to);
            }
        }
        if (keep) add_number(s->b, &s->closure, at);
        spend(s, 1);
    }
}

static int by_number(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, c = *(const uint32_t *)y;
    return a < c ? -1 : a > c;
}

static void table_grow(subsets *s)
{
    uint32_t size = s->table_size ? s->table_size * 2 : 64, n = s->first.n ? s->first.n - 1 : 0;
    uint32_t *table = build_alloc(s->b, size, sizeof *table);
    if (!table) return;
    memset(table, 0xff, size * sizeof *table);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = s->first.items[i], count = s->first.items[i + 1] - from;
        uint64_t h = hash_bytes(s->pool.items + from, count * sizeof(uint32_t), 1);
        while (table[h & (size - 1)] != NONE) h++;
        table[h & (size - 1)] = i;
    }
    s->table = table;
    s->table_size = size;
}

/* The number of the closure as a subset; a new one is appended. */
static uint32_t subset_of_closure(subsets *s)
{
    uint32_t n = s->closure.n, known = s->first.n ? s->first.n - 1 : 0;
    if (!build_ok(s->b)) return 0;
    if (n > 0) qsort(s->closure.items, n, sizeof *s->closure.items, by_number);
    spend(s, n);
    if (!s->table || known * 2 >= s->table_size) table_grow(s);
    if (!build_ok(s->b)) return 0;
    uint64_t h = hash_bytes(s->closure.items, n * sizeof(uint32_t), 1);
    for (uint32_t at; (at = s->table[h & (s->table_size - 1)]) != NONE; h++) {
        uint32_t from = s->first.items[at];
        if (s->first.items[at + 1] - from == n &&
            (n == 0 || memcmp(s->pool.items + from, s->closure.items, n * sizeof(uint32_t)) == 0))
            return at;
    }
    if (known >= RULE_STATES_MAX) s->too_large = true;
    s->table[h & (s->table_size - 1)] = known;
    if (s->first.n == 0) add_number(s->b, &s->first, 0);
    for (uint32_t i = 0; i < n; i++) add_number(s->b, &s->pool, s->closure.items[i]);
    add_number(s->b, &s->first, s->pool.n);
    return known;
}

/* ---- one subset's edges ---------------------------------------------------------------------- */

static void gather_edge(subsets *s, const nfa_edge *e)
{
    build *b = s->b;
    if (e->kind == NFA_CALL) {
        add_number(b, &s->call_rules, e->what);
        add_number(b, &s->call_targets, e->to);
    } else if (e->kind == NFA_BYTES) {
        uint32_t n = s->bytes.n, lo = e->what & 255, hi = e->what >> 8;
        if (!build_room(b, &s->bytes.lo, n, 1, &s->bytes.room_lo, sizeof(uint32_t)) ||
            !build_room(b, &s->bytes.hi, n, 1, &s->bytes.room_hi, sizeof(uint32_t)) ||
            !build_room(b, &s->bytes.to, n, 1, &s->bytes.room_to, sizeof(uint32_t)))
            return;
        s->bytes.lo[n] = lo;
        s->bytes.hi[n] = hi;
        s->bytes.to[n] = e->to;
        s->bytes.n++;
    }
}

static bool gather(subsets *s, uint32_t subset)
{
    bool ends = false;
    s->bytes.n = s->call_rules.n = s->call_targets.n = 0;
    for (uint32_t i = s->first.items[subset]; i < s->first.items[subset + 1]; i++) {
        uint32_t state = s->pool.items[i];
        if (state == s->a->end) ends = true;
        for (uint32_t e = s->a->heads[state]; e != NONE; e = s->a->edges[e].next) {
            gather_edge(s, &s->a->edges[e]);
            if (!spend(s, 1)) return ends;
        }
    }
    return ends;
}

/* Links the edges of one byte by that byte, and the others in the list of wide edges. */
static uint32_t sort_edges(subsets *s, bool cut[257])
{
    uint32_t wide = NONE;
    memset(s->heads, 0xff, sizeof s->heads);
    memset(cut, 0, 257);
    s->links.n = 0;
    for (uint32_t i = 0; i < s->bytes.n && build_ok(s->b); i++) {
        uint32_t lo = s->bytes.lo[i], hi = s->bytes.hi[i];
        uint32_t *head = lo == hi ? &s->heads[lo] : &wide;
        cut[lo] = cut[hi + 1] = true;
        add_number(s->b, &s->links, *head);
        *head = i;
    }
    return wide;
}

static void write_bytes(subsets *s)
{
    bool cut[257];
    uint32_t wide = sort_edges(s, cut);
    for (uint32_t lo = 0, hi; lo < 256 && build_ok(s->b) && !s->too_large; lo = hi) {
        for (hi = lo + 1; hi < 256 && !cut[hi];) hi++;
        close_begin(s);
        for (uint32_t i = s->heads[lo]; i != NONE; i = s->links.items[i])
            close_over(s, s->bytes.to[i]);
        for (uint32_t i = wide; i != NONE && spend(s, 1); i = s->links.items[i])
            if (s->bytes.lo[i] <= lo && lo <= s->bytes.hi[i]) close_over(s, s->bytes.to[i]);
        if (s->closure.n > 0) writer_edge(&s->out, lo, hi - 1, subset_of_closure(s));
    }
}

static void write_calls(subsets *s)
{
    uint32_t from = s->calls.n / 2;
    for (uint32_t i = 0; i < s->call_rules.n && build_ok(s->b); i++) {
        uint32_t rule = s->call_rules.items[i];
        if (rule == NONE) continue;
        close_begin(s);
        for (uint32_t k = i; k < s->call_rules.n && spend(s, 1); k++) {
            if (s->call_rules.items[k] != rule) continue;
            close_over(s, s->call_targets.items[k]);
            s->call_rules.items[k] = NONE;
        }
        add_number(s->b, &s->calls, rule);
        add_number(s->b, &s->calls, subset_of_closure(s));
    }
    if (build_ok(s->b) && s->calls.n / 2 > from)
        qsort(s->calls.items + (size_t)2 * from, s->calls.n / 2 - from, 2 * sizeof(uint32_t),
              by_number);
    add_number(s->b, &s->first_call, s->calls.n / 2);
}

static void finish(subsets *s, rule_fsm *out)
{
    language *l = writer_finish(&s->out);
    if (!l) return;
    *out = (rule_fsm){l->n_states, l->n_edges, s->calls.n / 2, l->first, s->first_call.items,
                      l->edges,    NULL,       l->ends,        true};
    out->calls = build_alloc(s->b, out->n_calls, sizeof *out->calls);
    for (uint32_t i = 0; out->calls && i < out->n_calls; i++)
        out->calls[i] = (call_edge){s->calls.items[2 * i], s->calls.items[2 * i + 1]};
}

static bool determine(build *b, const nfa *a, rule_fsm *out)
{
    subsets s = {.b = b, .a = a, .work = RULE_WORK_MAX, .out = {.b = b}};
    s.stamps = build_alloc(b, a->n_states, sizeof *s.stamps);
    if (!s.stamps) return true;
    add_number(b, &s.first_call, 0);
    close_begin(&s);
    close_over(&s, a->start);
    subset_of_closure(&s);
    for (uint32_t i = 0; build_ok(b) && !s.too_large && i + 1 < s.first.n; i++) {
        writer_state(&s.out, gather(&s, i));
        write_bytes(&s);
        write_calls(&s);
    }
    if (build_ok(b) && !s.too_large) finish(&s, out);
    return !s.too_large;
}

/* ---- without free moves, but with several edges for a byte ----------------------------------- */

static int by_lo(const void *x, const void *y)
{
    const byte_edge *a = x, *c = y;
    return a->lo != c->lo ? (int)a->lo - c->lo : (a->to > c->to) - (a->to < c->to);
}

/* State i of `out` is state i of the NFA but for the start, which becomes 0. */
static void branch(build *b, const nfa *a, rule_fsm *out)
{
    subsets s = {.b = b, .a = a, .work = INT64_MAX, .out = {.b = b}};
    s.stamps = build_alloc(b, a->n_states, sizeof *s.stamps);
    if (!s.stamps) return;
    add_number(b, &s.first_call, 0);
    for (uint32_t i = 0; i < a->n_states && build_ok(b); i++) {
        uint32_t from = s.out.n_edges;
        bool ends = false;
        close_begin(&s);
        close_over(&s, i == 0 ? a->start : i == a->start ? 0 : i);
        for (uint32_t k = 0; k < s.closure.n; k++) ends |= s.closure.items[k] == a->end;
        writer_state(&s.out, ends);
        s.bytes.n = s.call_rules.n = s.call_targets.n = 0;
        for (uint32_t k = 0; k < s.closure.n && build_ok(b); k++)
            for (uint32_t e = a->heads[s.closure.items[k]]; e != NONE; e = a->edges[e].next)
                gather_edge(&s, &a->edges[e]);
        if (!build_work(b, s.bytes.n + s.call_rules.n)) return;
        for (uint32_t k = 0; k < s.bytes.n; k++)
            writer_edge(&s.out, s.bytes.lo[k], s.bytes.hi[k], s.bytes.to[k]);
        for (uint32_t k = 0; k < s.call_rules.n; k++) {
            add_number(b, &s.calls, s.call_rules.items[k]);
            add_number(b, &s.calls, s.call_targets.items[k]);
        }
        add_number(b, &s.first_call, s.calls.n / 2);
        if (build_ok(b) && s.out.n_edges > from)
            qsort(s.out.edges + from, s.out.n_edges - from, sizeof(byte_edge), by_lo);
    }
    if (build_ok(b)) finish(&s, out);
    out->deterministic = false;
}

static void keep_fsm(build *b, rule_fsm *f)
{
    size_t states = (size_t)f->n_states + 1;
    if (!build_ok(b)) return;
    f->first_edge = build_copy(b, f->first_edge, states, sizeof *f->first_edge);
    f->first_call = build_copy(b, f->first_call, states, sizeof *f->first_call);
    f->edges = build_copy(b, f->edges, f->n_edges, sizeof *f->edges);
    f->calls = build_copy(b, f->calls, f->n_calls, sizeof *f->calls);
    f->ends = build_copy(b, f->ends, f->n_states, 1);
}

static void make(build *b, expr e, uint32_t rule, bool may_branch, rule_fsm *out)
{
    nfa a;
    if (b->nodes[e].kind == EXPR_LANGUAGE) {
        const language *l = b->languages[b->nodes[e].a];
        uint32_t *no_calls = build_alloc(b, (size_t)l->n_states + 1, sizeof *no_calls);
        *out = (rule_fsm){l->n_states, l->n_edges, 0,       l->first, no_calls,
                          l->edges,    NULL,       l->ends, true};
        return;
    }
    nfa_make(b, e, rule, &a);
    if (!build_ok(b) || determine(b, &a, out) || !build_ok(b)) return;
    if (may_branch) branch(b, &a, out);
    else build_fail(b, STATUS_LIMIT, "too large: more than %d states", RULE_STATES_MAX);
}

void fsm_make(build *b, expr e, uint32_t rule, bool may_branch, rule_fsm *out)
{
    memset(out, 0, sizeof *out);
    if (!build_ok(b)) return;
    build_scratch(b);
    make(b, e, rule, may_branch, out);
    fsm_minimal(b, out);
    build_keep(b);
    keep_fsm(b, out);
    build_forget(b);
}
