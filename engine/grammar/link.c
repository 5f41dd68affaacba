/* Rules to one grammar: automata side by side, without what leads nowhere. */
#include "engine/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct linker {
    build *b;
    rule_fsm *fsms;   // [n]
    uint32_t *rules;  // [n]: the build's rules that are reached
    uint32_t *number; // [b->n_rules]: into rules, or NONE
    uint32_t n, n_states;
    uint32_t *base;  // [n]: its first state
    uint8_t *live;   // [n_states]: an end is reached from it
    uint8_t *null;   // [n_states]: by no text
    uint32_t *owner; // [n_states]: its rule
} linker;

static uint32_t reach(linker *k, uint32_t rule)
{
    if (k->number[rule] == NONE) {
        k->number[rule] = k->n;
        k->rules[k->n++] = rule;
    }
    return k->number[rule];
}

/* ---- one rule -------------------------------------------------------------------------------- */

/* One state that calls the unit and counts. */
static void make_counted(linker *k, const build_rule *r, rule_fsm *out)
{
    build *b = k->b;
    uint32_t *zeros = build_alloc(b, 2, sizeof *zeros), *calls = build_alloc(b, 2, sizeof *calls);
    *out = (rule_fsm){.n_states = 1, .n_calls = 1, .first_edge = zeros, .first_call = calls};
    out->calls = build_alloc(b, 1, sizeof *out->calls);
    out->edges = build_alloc(b, 1, sizeof *out->edges);
    out->ends = build_alloc(b, 1, 1);
    if (!build_ok(b)) return;
    calls[1] = 1;
    out->calls[0] = (call_edge){b->nodes[r->body].a, 0};
    out->ends[0] = 1; // the matcher asks the count
}

static void make_rules(linker *k, uint32_t root)
{
    build *b = k->b;
    k->fsms = build_alloc(b, b->n_rules, sizeof *k->fsms);
    k->rules = build_alloc(b, b->n_rules, sizeof *k->rules);
    k->number = build_alloc(b, b->n_rules, sizeof *k->number);
    k->base = build_alloc(b, b->n_rules + 1, sizeof *k->base);
    if (!build_ok(b)) return;
    memset(k->number, 0xff, b->n_rules * sizeof *k->number);
    reach(k, root);
    for (uint32_t i = 0; i < k->n && build_ok(b); i++) {
        const build_rule *r = &b->rules[k->rules[i]];
        rule_fsm *f = &k->fsms[i];
        if (r->counted) make_counted(k, r, f);
        else fsm_make(b, r->body, k->rules[i], true, f);
        for (uint32_t c = 0; build_ok(b) && c < f->n_calls; c++)
            f->calls[c].rule = reach(k, f->calls[c].rule);
        k->base[i] = k->n_states;
        k->n_states += f->n_states;
        if (k->n_states > STATES_MAX)
            build_fail(b, STATUS_LIMIT, "too large: more than %d states", STATES_MAX);
    }
    if (build_ok(b)) k->base[k->n] = k->n_states;
}

/* ---- which states lead to an end ------------------------------------------------------------- */

/* One pass over all states, the last first. Returns whether anything changed. */
static bool mark_pass(linker *k)
{
    bool changed = false;
    for (uint32_t i = k->n; i-- > 0;) {
        const rule_fsm *f = &k->fsms[i];
        const build_rule *r = &k->b->rules[k->rules[i]];
        for (uint32_t s = f->n_states; s-- > 0;) {
            uint8_t *live = &k->live[k->base[i] + s], *null = &k->null[k->base[i] + s];
            bool is_live = f->ends[s] && !r->counted, is_null = is_live;
            for (uint32_t e = f->first_edge[s]; e < f->first_edge[s + 1] && !is_live; e++)
                is_live = k->live[k->base[i] + f->edges[e].to];
            for (uint32_t c = f->first_call[s]; c < f->first_call[s + 1]; c++) {
                uint32_t start = k->base[f->calls[c].rule], to = k->base[i] + f->calls[c].to;
                is_live |= k->live[start] && (k->live[to] || r->counted);
                is_null |= k->null[start] && (k->null[to] || r->counted);
            }
            if (r->counted && r->min == 0) is_live = is_null = true;
            changed |= is_live != *live || is_null != *null;
            *live = is_live;
            *null = is_null;
        }
    }
    return changed;
}

static void mark(linker *k)
{
    build *b = k->b;
    k->live = build_alloc(b, k->n_states, 1);
    k->null = build_alloc(b, k->n_states, 1);
    uint64_t work = k->n_states;
    for (uint32_t i = 0; i < k->n; i++) work += k->fsms[i].n_edges + k->fsms[i].n_calls;
    while (build_work(b, work) && mark_pass(k)) continue;
}

/* ---- the grammar's arrays -------------------------------------------------------------------- */

static bool allocate(linker *k, grammar *g)
{
    size_t n_edges = 0, n_calls = 0;
    for (uint32_t i = 0; i < k->n; i++) {
        n_edges += k->fsms[i].n_edges;
        n_calls += k->fsms[i].n_calls;
    }
    if (n_edges > EDGES_MAX || n_calls > EDGES_MAX) {
        build_fail(k->b, STATUS_LIMIT, "too large: more than %d edges", EDGES_MAX);
        return false;
    }
    g->n_states = k->n_states;
    g->n_rules = k->n;
    g->states = calloc((size_t)k->n_states + 1, sizeof *g->states);
    g->edges = calloc(n_edges + 1, sizeof *g->edges);
    g->calls = calloc(n_calls + 1, sizeof *g->calls);
    g->rules = calloc(k->n, sizeof *g->rules);
    g->parts = calloc(k->n_states, sizeof *g->parts);
    g->bytes = sizeof *g + (size_t)k->n_states * (sizeof *g->states + sizeof *g->parts) +
               n_edges * sizeof *g->edges + n_calls * sizeof *g->calls + k->n * sizeof *g->rules;
    if (g->states && g->edges && g->calls && g->rules && g->parts) return true;
    build_fail(k->b, STATUS_NO_MEMORY, "out of memory");
    return false;
}

static void copy_state(linker *k, grammar *g, uint32_t i, uint32_t s)
{
    const rule_fsm *f = &k->fsms[i];
    uint32_t base = k->base[i];
    bool counted = k->b->rules[k->rules[i]].counted;
    g->states[base + s] = (fsm_state){g->n_edges, g->n_calls, i, f->ends[s], false};
    for (uint32_t e = f->first_edge[s]; e < f->first_edge[s + 1]; e++) {
        byte_edge edge = f->edges[e];
        if (!k->live[base + edge.to]) continue;
        edge.to += base;
        g->edges[g->n_edges++] = edge;
    }
    for (uint32_t c = f->first_call[s]; c < f->first_call[s + 1]; c++) {
        call_edge call = f->calls[c];
        if (!k->live[k->base[call.rule]] || (!k->live[base + call.to] && !counted)) continue;
        call.to += base;
        g->calls[g->n_calls++] = call;
    }
}

uint32_t fsm_next(const grammar *g, uint32_t state, uint32_t byte)
{
    for (uint32_t e = g->states[state].first_edge; e < g->states[state + 1].first_edge; e++)
        if (g->edges[e].lo <= byte && byte <= g->edges[e].hi) return g->edges[e].to;
    return NONE;
}

/* Whether every character of several bytes leads from one state to another. */
static bool wide_chars_lead(const grammar *g, uint32_t from, uint32_t to)
{
    static const uint8_t forms[][2 + 2] = {
        // first byte, bounds of the second, bytes behind it
        {0xc2, 0x80, 0xbf, 0}, {0xe0, 0xa0, 0xbf, 1}, {0xe1, 0x80, 0xbf, 1}, {0xed, 0x80, 0x9f, 1},
        {0xee, 0x80, 0xbf, 1}, {0xf0, 0x90, 0xbf, 2}, {0xf1, 0x80, 0xbf, 2}, {0xf4, 0x80, 0x8f, 2}};
    static const uint8_t last[] = {0xdf, 0xe0, 0xec, 0xed, 0xef, 0xf0, 0xf3, 0xf4};
    for (unsigned f = 0; f < sizeof last; f++) {
        for (uint32_t lead = forms[f][0]; lead <= last[f]; lead++) {
            uint32_t first = fsm_next(g, from, lead);
            for (uint32_t c = forms[f][1]; first != NONE && c <= forms[f][2]; c++) {
                uint32_t at = fsm_next(g, first, c);
                for (unsigned k = 0; k < forms[f][3] && at != NONE; k++) {
                    uint32_t low = fsm_next(g, at, 0x80);
                    for (uint32_t d = 0x81; d <= 0xbf; d++)
                        if (fsm_next(g, at, d) != low) return false;
                    at = low;
                }
                if (at != to) return false;
            }
            if (first == NONE) return false;
        }
    }
    return true;
}

static bool safe_chars_lead(const grammar *g, uint32_t from, uint32_t to)
{
    for (uint32_t c = 0x20; c < 0x7f; c++)
        if (safe_byte((uint8_t)c) && fsm_next(g, from, c) != to) return false;
    return wide_chars_lead(g, from, to);
}

/* Names a plain rule's automaton by its bytes, so that equal ones share their masks. */
static void plain_key(linker *k, const rule_fsm *f, char key[SHA256_HEX_BYTES])
{
    uint32_t n = 0, *words = build_alloc(k->b, 2 * ((size_t)f->n_states + f->n_edges), 4);
    sha256 hash;
    if (!words) return;
    for (uint32_t s = 0; s < f->n_states; s++) {
        words[n++] = f->first_edge[s];
        words[n++] = f->ends[s];
    }
    for (uint32_t e = 0; e < f->n_edges; e++) {
        words[n++] = (uint32_t)f->edges[e].lo << 8 | f->edges[e].hi;
        words[n++] = f->edges[e].to;
    }
    sha256_init(&hash);
    sha256_add(&hash, words, n * sizeof *words);
    sha256_finish(&hash, key);
}

/* Whether the only state that ends the rule is one that nothing leaves, and safe characters lead
 * there. */
static bool is_text_unit(const grammar *g, const fsm_rule *r)
{
    uint32_t end = NONE;
    if (!r->plain || r->nullable) return false;
    for (uint32_t s = r->start; s < r->start + r->n_states; s++) {
        if (!g->states[s].ends) continue;
        if (end != NONE || g->states[s].first_edge != g->states[s + 1].first_edge) return false;
        end = s;
    }
    return end != NONE && safe_chars_lead(g, r->start, end);
}

static void describe_rules(linker *k, grammar *g)
{
    for (uint32_t i = 0; i < k->n; i++) {
        const build_rule *from = &k->b->rules[k->rules[i]];
        fsm_rule *r = &g->rules[i];
        r->plain = k->fsms[i].deterministic && k->fsms[i].n_calls == 0;
        r->nullable = k->null[r->start];
        r->counted = from->counted;
        r->min = from->min;
        r->max = from->max;
        r->loop = NONE;
        if (r->plain) plain_key(k, &k->fsms[i], r->key);
        for (uint32_t c = 0; c < k->fsms[i].n_calls; c++)
            g->rules[k->fsms[i].calls[c].rule].called = true;
        for (uint32_t s = r->start; s < r->start + r->n_states && k->fsms[i].deterministic; s++) {
            g->states[s].text_loop = g->states[s].first_call == g->states[s + 1].first_call &&
                                     fsm_next(g, s, 'a') == s && safe_chars_lead(g, s, s);
            if (r->plain && g->states[s].text_loop && !g->states[s].ends) r->loop = s;
        }
    }
    for (uint32_t i = 0; i < k->n; i++) {
        fsm_rule *r = &g->rules[i];
        uint32_t call = g->states[r->start].first_call;
        if (!r->counted || g->states[r->start + 1].first_call == call) continue;
        fsm_rule *unit = &g->rules[g->calls[call].rule];
        if (unit->nullable) r->min = 0;
        unit->unit = r->text = is_text_unit(g, unit);
    }
}

static void assemble(linker *k, grammar *g)
{
    if (!allocate(k, g)) return;
    for (uint32_t i = 0; i < k->n; i++) {
        g->rules[i].start = k->base[i];
        g->rules[i].n_states = k->fsms[i].n_states;
        for (uint32_t s = 0; s < k->fsms[i].n_states; s++) copy_state(k, g, i, s);
    }
    g->states[g->n_states] = (fsm_state){.first_edge = g->n_edges, .first_call = g->n_calls};
    describe_rules(k, g);
}

status link_grammar(build *b, uint32_t root, grammar **out)
{
    linker k = {.b = b};
    *out = NULL;
    make_rules(&k, root);
    if (build_ok(b)) mark(&k);
    if (build_ok(b) && !k.live[0]) build_fail(b, STATUS_INVALID, "no text can satisfy it");
    if (!build_ok(b)) return b->failure;
    grammar *g = calloc(1, sizeof *g);
    if (!g) return error_set(b->err, STATUS_NO_MEMORY, "out of memory");
    atomic_init(&g->references, 1);
    pthread_mutex_init(&g->lock, NULL);
    assemble(&k, g);
    if (build_ok(b)) *out = g;
    else grammar_release(g);
    return b->failure;
}
