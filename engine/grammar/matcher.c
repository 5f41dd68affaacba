/* The matcher: Earley's algorithm over the rules' automata.
 *
 * After each byte there is a set of readings (rule state, where the rule began, how often it was
 * repeated). A rule that is called begins at the set itself; one that ends lets the readings that
 * called it go on. A text that JSON's rules read in one way has a handful of readings in each set,
 * and every other grammar ends within bounds, left recursion included. */
#include "engine/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

enum { SMALL_SET = 24 }; // sets up to this size are searched one by one

status sets_init(item_sets *s, const grammar *g)
{
    *s = (item_sets){.g = g, .work = SETS_WORK};
    s->items_room = 256;
    s->starts_room = 256;
    s->items = malloc(s->items_room * sizeof *s->items);
    s->starts = calloc(s->starts_room, sizeof *s->starts);
    s->predicted = calloc(g->n_rules, sizeof *s->predicted);
    if (s->items && s->starts && s->predicted) return STATUS_IS_OK;
    sets_destroy(s);
    return status_make(STATUS_NO_MEMORY, NULL);
}

void sets_destroy(item_sets *s)
{
    free(s->items);
    free(s->starts);
    free(s->predicted);
    free(s->seen);
    *s = (item_sets){0};
}

static bool fail(item_sets *s, status_code code, const char *message)
{
    if (status_ok(s->failure)) s->failure = status_make(code, message);
    return false;
}

/* ---- a set in the making --------------------------------------------------------------------- */

void sets_begin(item_sets *s)
{
    if (s->n_sets + 2 > s->starts_room) {
        uint32_t room = s->starts_room * 2;
        uint32_t *grown = realloc(s->starts, room * sizeof *grown);
        if (!grown) {
            fail(s, STATUS_NO_MEMORY, NULL);
            return;
        }
        s->starts = grown;
        s->starts_room = room;
    }
    s->starts[s->n_sets++] = s->n_items;
    s->starts[s->n_sets] = s->n_items;
    s->ended = false;
    if (++s->stamp == 0) {
        memset(s->predicted, 0, s->g->n_rules * sizeof *s->predicted);
        s->stamp = 1;
    }
}

static uint64_t item_hash(item i)
{
    return hash_mix64(((uint64_t)i.state << 32 | i.origin) ^ (uint64_t)i.count << 17 ^
                      (uint64_t)i.rule << 41);
}

static bool same(item x, item y)
{
    return x.state == y.state && x.origin == y.origin && x.rule == y.rule && x.count == y.count;
}

/* Puts items [from, to) into the hash table, made afresh. */
static bool fill_table(item_sets *s, uint32_t from, uint32_t to)
{
    uint32_t size = 64;
    while (size < (to - from) * 4) size *= 2;
    if (size > s->seen_size) {
        uint32_t *grown = realloc(s->seen, size * sizeof *grown);
        if (!grown) return fail(s, STATUS_NO_MEMORY, NULL);
        s->seen = grown;
        s->seen_size = size;
    }
    memset(s->seen, 0xff, s->seen_size * sizeof *s->seen);
    for (uint32_t i = from; i < to; i++) {
        uint64_t h = item_hash(s->items[i]);
        while (s->seen[h & (s->seen_size - 1)] != NONE) h++;
        s->seen[h & (s->seen_size - 1)] = i;
    }
    return true;
}

/* Whether the set in the making has the item already; notes it in the table of a large set. */
static bool known(item_sets *s, item i)
{
    uint32_t from = s->starts[s->n_sets - 1], n = s->n_items - from;
    if (n < SMALL_SET) {
        for (uint32_t k = s->n_items; k-- > from;)
            if (same(s->items[k], i)) return true;
        return false;
    }
    if ((n == SMALL_SET || n * 2 > s->seen_size) && !fill_table(s, from, s->n_items)) return true;
    uint64_t h = item_hash(i);
    for (uint32_t at; (at = s->seen[h & (s->seen_size - 1)]) != NONE; h++)
        if (same(s->items[at], i)) return true;
    s->seen[h & (s->seen_size - 1)] = s->n_items;
    return false;
}

void sets_add(item_sets *s, item i)
{
    if (!status_ok(s->failure)) return;
    uint32_t n = s->n_items - s->starts[s->n_sets - 1];
    s->work -= 4 + (n < SMALL_SET ? n : SMALL_SET);
    if (known(s, i)) return;
    if (s->work < 0 || n >= ITEMS_MAX) {
        fail(s, STATUS_LIMIT, "the grammar reads the text in too many ways");
        return;
    }
    if (s->n_items == s->items_room) {
        uint32_t room = s->items_room * 2;
        if (room > ITEMS_ALL_MAX) {
            fail(s, STATUS_LIMIT, "the grammar's readings of the text take too much memory");
            return;
        }
        item *grown = realloc(s->items, room * sizeof *grown);
        if (!grown) {
            fail(s, STATUS_NO_MEMORY, NULL);
            return;
        }
        s->items = grown;
        s->items_room = room;
    }
    s->items[s->n_items++] = i;
}

/* Adds what a reading becomes behind a call that ended. A counted rule counts. */
static void advance(item_sets *s, item i, const call_edge *call)
{
    const fsm_rule *r = &s->g->rules[s->g->states[i.state].rule];
    if (!r->counted) sets_add(s, (item){call->to, i.origin, i.rule, 0});
    else if (i.count < r->max) sets_add(s, (item){i.state, i.origin, i.rule, i.count + 1});
}

/* Whether nothing can follow a call but the end of the rule that makes it. */
static bool is_last(const grammar *g, const call_edge *call)
{
    const fsm_state *to = &g->states[call->to];
    return to->ends && to->first_edge == to[1].first_edge && to->first_call == to[1].first_call;
}

static void call_rules(item_sets *s, item i)
{
    const grammar *g = s->g;
    const fsm_rule *own = &g->rules[g->states[i.state].rule];
    uint32_t here = s->n_sets - 1;
    if (own->counted && i.count >= own->max) return;
    for (uint32_t c = g->states[i.state].first_call; c < g->states[i.state + 1].first_call; c++) {
        const call_edge *call = &g->calls[c];
        if (!own->counted && is_last(g, call)) {
            sets_add(s, (item){g->rules[call->rule].start, i.origin, i.rule, 0});
        } else if (s->predicted[call->rule] != s->stamp) {
            s->predicted[call->rule] = s->stamp;
            sets_add(s, (item){g->rules[call->rule].start, here, call->rule, 0});
        }
        // A counted rule with an empty unit has min 0, so that nothing is lost by not counting.
        if (g->rules[call->rule].nullable && !own->counted) advance(s, i, call);
    }
}

static bool item_ends(const grammar *g, item i)
{
    const fsm_state *state = &g->states[i.state];
    return state->ends && (!g->rules[state->rule].counted || i.count >= g->rules[state->rule].min);
}

/* Lets the readings that called a rule at set `origin` go on. */
static void end_rule(item_sets *s, uint32_t rule, uint32_t origin)
{
    const grammar *g = s->g;
    s->work -= s->starts[origin + 1] - s->starts[origin];
    for (uint32_t k = s->starts[origin]; k < s->starts[origin + 1]; k++) {
        item caller = s->items[k];
        uint32_t c = g->states[caller.state].first_call;
        for (; c < g->states[caller.state + 1].first_call; c++)
            if (g->calls[c].rule == rule) advance(s, caller, &g->calls[c]);
    }
}

void sets_close(item_sets *s)
{
    const grammar *g = s->g;
    uint32_t here = s->n_sets - 1;
    if (!status_ok(s->failure)) return;
    for (uint32_t k = s->starts[here]; k < s->n_items && status_ok(s->failure); k++) {
        item i = s->items[k];
        if (g->states[i.state].first_call != g->states[i.state + 1].first_call) call_rules(s, i);
        if (!item_ends(g, i)) continue;
        if (i.origin == 0) s->ended = true;
        if (i.origin != here) end_rule(s, i.rule, i.origin);
    }
    s->starts[s->n_sets] = s->n_items;
}

void sets_cut(item_sets *s, uint32_t n_sets)
{
    if (n_sets >= s->n_sets) return;
    s->n_sets = n_sets;
    s->n_items = s->starts[n_sets];
}

bool sets_step(item_sets *s, uint8_t byte)
{
    const grammar *g = s->g;
    uint32_t last = s->n_sets - 1, from = s->starts[last], to = s->starts[last + 1];
    s->work -= to - from;
    sets_begin(s);
    if (!status_ok(s->failure)) return false;
    for (uint32_t k = from; k < to; k++) {
        item i = s->items[k];
        uint32_t e = g->states[i.state].first_edge, end = g->states[i.state + 1].first_edge;
        for (; e < end && g->edges[e].lo <= byte; e++)
            if (byte <= g->edges[e].hi) sets_add(s, (item){g->edges[e].to, i.origin, i.rule, 0});
    }
    if (s->n_items == s->starts[s->n_sets - 1]) {
        s->n_sets--;
        return false;
    }
    sets_close(s);
    if (status_ok(s->failure)) return true;
    sets_cut(s, s->n_sets - 1);
    return false;
}

void sets_after(item_sets *s, uint32_t rule, uint32_t origin)
{
    sets_begin(s);
    if (!status_ok(s->failure)) return;
    end_rule(s, rule, origin);
    sets_close(s);
}

/* ---- the matcher ----------------------------------------------------------------------------- */

grammar_matcher *grammar_matcher_create(grammar *g)
{
    grammar_matcher *m = calloc(1, sizeof *m);
    if (!m || !status_ok(sets_init(&m->sets, g))) {
        free(m);
        return NULL;
    }
    m->g = grammar_hold(g);
    sets_begin(&m->sets);
    sets_add(&m->sets, (item){g->rules[g->root].start, 0, g->root, 0});
    sets_close(&m->sets);
    if (status_ok(m->sets.failure)) return m;
    grammar_matcher_destroy(m);
    return NULL;
}

void grammar_matcher_destroy(grammar_matcher *m)
{
    if (!m) return;
    sets_destroy(&m->sets);
    free(m->tokens);
    grammar_release(m->g);
    free(m);
}

status grammar_accept_bytes(grammar_matcher *m, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    uint32_t before = m->sets.n_sets;
    m->sets.work = SETS_WORK;
    if (m->n_tokens == m->tokens_room) {
        uint32_t room = m->tokens_room ? m->tokens_room * 2 : 64;
        uint32_t *grown = realloc(m->tokens, room * sizeof *grown);
        if (!grown) return status_make(STATUS_NO_MEMORY, NULL);
        m->tokens = grown;
        m->tokens_room = room;
    }
    for (size_t i = 0; i < n; i++) {
        if (sets_step(&m->sets, at[i])) continue;
        sets_cut(&m->sets, before);
        return status_ok(m->sets.failure)
                   ? status_make(STATUS_INVALID, "the grammar does not allow this text")
                   : m->sets.failure;
    }
    m->tokens[m->n_tokens++] = m->sets.n_sets;
    return STATUS_IS_OK;
}

status grammar_accept(grammar_matcher *m, uint32_t token)
{
    const grammar_vocab *v = m->g->vocab;
    if (!v || token >= v->n_tokens || v->first_byte[token] == v->first_byte[token + 1])
        return status_make(STATUS_INVALID, "the grammar does not allow this token");
    return grammar_accept_bytes(m, v->bytes + v->first_byte[token],
                                v->first_byte[token + 1] - v->first_byte[token]);
}

uint32_t grammar_accepted(const grammar_matcher *m) { return m->n_tokens; }

void grammar_rollback(grammar_matcher *m, uint32_t n)
{
    if (n >= m->n_tokens) return;
    m->n_tokens = n;
    sets_cut(&m->sets, n > 0 ? m->tokens[n - 1] : 1);
    m->sets.failure = STATUS_IS_OK;
}

bool grammar_may_end(const grammar_matcher *m)
{
    const item_sets *s = &m->sets;
    for (uint32_t k = s->starts[s->n_sets - 1]; k < s->starts[s->n_sets]; k++) {
        item i = s->items[k];
        if (i.origin == 0 && i.rule == m->g->root && item_ends(m->g, i)) return true;
    }
    return false;
}

/* The bytes that may come next, up to two of them: 0, 1 or 2 (more than one). */
static unsigned next_bytes(const item_sets *s, uint8_t *byte)
{
    const grammar *g = s->g;
    unsigned n = 0;
    for (uint32_t k = s->starts[s->n_sets - 1]; k < s->starts[s->n_sets]; k++) {
        uint32_t state = s->items[k].state, e = g->states[state].first_edge;
        for (; e < g->states[state + 1].first_edge; e++) {
            if (g->edges[e].lo != g->edges[e].hi || (n && *byte != g->edges[e].lo)) return 2;
            *byte = g->edges[e].lo;
            n = 1;
        }
    }
    return n;
}

/* The node of the trie of all tokens that the bytes lead to; 0: no token begins so. */
static uint32_t find_node(const grammar_vocab *v, const uint8_t *bytes, size_t n)
{
    const trie *t = &v->all;
    uint32_t node = v->all_child[bytes[0]];
    if (node == v->all_child[bytes[0] + 1]) return 0;
    for (size_t i = 1; i < n; i++) {
        uint32_t child = node + 1, end = t->end[node];
        while (child < end && t->byte[child] != bytes[i]) child = t->end[child];
        if (child >= end) return 0;
        node = child;
    }
    return node;
}

/* Whether a token that begins with the bytes, behind which the last set is, goes on behind them. */
static bool runs_past(item_sets *s, const uint8_t *bytes, size_t n)
{
    const trie *t = &s->g->vocab->all;
    uint32_t node = find_node(s->g->vocab, bytes, n), base = s->n_sets;
    bool found = false;
    if (node == 0) return false;
    for (uint32_t i = node + 1; i < t->end[node] && !found && status_ok(s->failure);) {
        sets_cut(s, base + t->depth[i] - t->depth[node] - 1);
        bool steps = sets_step(s, t->byte[i]);
        found = steps && t->first_token[i] < t->first_token[i + 1];
        i = steps ? i + 1 : t->end[i];
    }
    sets_cut(s, base);
    return found;
}

status grammar_forced(grammar_matcher *m, size_t most, strbuf *out, size_t *settled)
{
    uint32_t before = m->sets.n_sets;
    uint8_t byte = 0;
    size_t from = out->size, n = 0;
    m->sets.work = SETS_WORK;
    for (; n < most; n++) {
        if (next_bytes(&m->sets, &byte) != 1 || grammar_may_end(m)) break;
        if (!sets_step(&m->sets, byte)) break;
        strbuf_putc(out, (char)byte);
    }
    *settled = out->failed ? 0 : n;
    for (size_t i = 0; m->g->vocab && i < *settled; i++)
        if (runs_past(&m->sets, (const uint8_t *)out->data + from + i, n - i)) *settled = i;
    sets_cut(&m->sets, before);
    status result = m->sets.failure;
    m->sets.failure = STATUS_IS_OK;
    if (status_ok(result) && out->failed) return status_make(STATUS_NO_MEMORY, NULL);
    return result;
}
