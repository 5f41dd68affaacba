/* Expressions to automata with free moves (Thompson's construction). */
#include "engine/grammar/internal.h"

enum { DEPTH_MAX = 1000 };

typedef struct maker {
    nfa *a;
    build *b;
    uint32_t depth;
} maker;

static uint32_t add_state(maker *m)
{
    nfa *a = m->a;
    if (!build_work(m->b, 1)) return 0;
    if (a->n_states >= STATES_MAX) {
        build_fail(m->b, STATUS_LIMIT, "too large: more than %d states", STATES_MAX);
        return 0;
    }
    if (!build_room(m->b, &a->heads, a->n_states, 1, &a->states_room, sizeof *a->heads)) return 0;
    a->heads[a->n_states] = NONE;
    return a->n_states++;
}

static void add_edge(maker *m, uint32_t from, uint32_t to, nfa_kind kind, uint32_t what)
{
    nfa *a = m->a;
    if (!build_room(m->b, &a->edges, a->n_edges, 1, &a->edges_room, sizeof *a->edges)) return;
    a->edges[a->n_edges] = (nfa_edge){a->heads[from], to, kind, what};
    a->heads[from] = a->n_edges++;
}

static void connect(maker *m, expr e, uint32_t from, uint32_t to);

static void connect_text(maker *m, expr_node n, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < n.b && build_ok(m->b); i++) {
        uint32_t next = i + 1 == n.b ? to : add_state(m);
        uint32_t byte = (uint8_t)m->b->texts[n.a + i];
        add_edge(m, from, next, NFA_BYTES, byte | byte << 8);
        from = next;
    }
}

static void connect_repeat(maker *m, expr_node n, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < n.b && build_ok(m->b); i++) {
        uint32_t next = add_state(m);
        connect(m, n.a, from, next);
        from = next;
    }
    if (n.c == REPEAT_MANY) {
        uint32_t loop = add_state(m), behind = add_state(m);
        add_edge(m, from, loop, NFA_FREE, 0);
        connect(m, n.a, loop, behind);
        add_edge(m, behind, loop, NFA_FREE, 0);
        add_edge(m, loop, to, NFA_FREE, 0);
        return;
    }
    for (uint32_t i = n.b; i < n.c && build_ok(m->b); i++) {
        uint32_t next = add_state(m);
        add_edge(m, from, to, NFA_FREE, 0);
        connect(m, n.a, from, next);
        from = next;
    }
    add_edge(m, from, to, NFA_FREE, 0);
}

static void connect_language(maker *m, const language *l, uint32_t from, uint32_t to)
{
    uint32_t *at = build_alloc(m->b, l->n_states, sizeof *at);
    for (uint32_t s = 0; at && s < l->n_states; s++) at[s] = add_state(m);
    if (!build_ok(m->b)) return;
    add_edge(m, from, at[0], NFA_FREE, 0);
    for (uint32_t s = 0; s < l->n_states && build_ok(m->b); s++) {
        if (l->ends[s]) add_edge(m, at[s], to, NFA_FREE, 0);
        for (uint32_t e = l->first[s]; e < l->first[s + 1]; e++)
            add_edge(m, at[s], at[l->edges[e].to], NFA_BYTES,
                     (uint32_t)l->edges[e].lo | (uint32_t)l->edges[e].hi << 8);
    }
}

static void connect_graph(maker *m, expr_node n, uint32_t from, uint32_t to)
{
    uint32_t *at = build_alloc(m->b, n.c, sizeof *at);
    for (uint32_t i = 0; at && i < n.c; i++) at[i] = add_state(m);
    if (!build_ok(m->b)) return;
    add_edge(m, from, at[0], NFA_FREE, 0);
    add_edge(m, at[1], to, NFA_FREE, 0);
    for (uint32_t i = 0; i < n.b && build_ok(m->b); i++) {
        expr_arc arc = m->b->arcs[n.a + i];
        connect(m, arc.label, at[arc.from], at[arc.to]);
    }
}

static void connect_seq(maker *m, expr_node n, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < n.b && build_ok(m->b); i++) {
        uint32_t next = i + 1 == n.b ? to : add_state(m);
        connect(m, m->b->lists[n.a + i], from, next);
        from = next;
    }
}

/* Adds the paths of an expression between two states. Other paths may leave `from` and enter `to`,
 * so that no construction adds an edge into `from` or out of `to`. */
static void connect(maker *m, expr e, uint32_t from, uint32_t to)
{
    if (!build_work(m->b, 1)) return;
    expr_node n = m->b->nodes[e];
    if (++m->depth > DEPTH_MAX)
        build_fail(m->b, STATUS_LIMIT, "too deep: more than %d levels", DEPTH_MAX);
    switch (n.kind) {
    case EXPR_NEVER: break;
    case EXPR_EMPTY: add_edge(m, from, to, NFA_FREE, 0); break;
    case EXPR_RANGE: add_edge(m, from, to, NFA_BYTES, n.a | n.b << 8); break;
    case EXPR_TEXT: connect_text(m, n, from, to); break;
    case EXPR_SEQ: connect_seq(m, n, from, to); break;
    case EXPR_ALT:
        for (uint32_t i = 0; i < n.b && build_ok(m->b); i++)
            connect(m, m->b->lists[n.a + i], from, to);
        break;
    case EXPR_REPEAT: connect_repeat(m, n, from, to); break;
    case EXPR_RULE:
        if (m->b->rules[n.a].inlined) connect(m, m->b->rules[n.a].body, from, to);
        else add_edge(m, from, to, NFA_CALL, n.a);
        break;
    case EXPR_LANGUAGE: connect_language(m, m->b->languages[n.a], from, to); break;
    case EXPR_GRAPH: connect_graph(m, n, from, to); break;
    }
    m->depth--;
}

/* Whether free moves alone lead from a state, and to the end. */
static bool only_ends(const nfa *a, uint32_t state)
{
    enum { MOVES_MAX = 64 };
    for (uint32_t i = 0; i < MOVES_MAX && state != a->end; i++) {
        uint32_t e = a->heads[state];
        if (e == NONE || a->edges[e].next != NONE || a->edges[e].kind != NFA_FREE) return false;
        state = a->edges[e].to;
    }
    return state == a->end;
}

/* A rule that calls itself at its end begins again instead, so that lists which are written with a
 * recursion have the automata of those with a repetition. */
static void loop_last_calls(nfa *a, uint32_t rule)
{
    for (uint32_t e = 0; e < a->n_edges; e++) {
        nfa_edge *edge = &a->edges[e];
        if (edge->kind != NFA_CALL || edge->what != rule || !only_ends(a, edge->to)) continue;
        edge->kind = NFA_FREE;
        edge->to = a->start;
    }
}

void nfa_make(build *b, expr e, uint32_t rule, nfa *out)
{
    *out = (nfa){.b = b};
    maker m = {out, b, 0};
    out->start = add_state(&m);
    out->end = add_state(&m);
    connect(&m, e, out->start, out->end);
    if (build_ok(b)) loop_last_calls(out, rule);
}
