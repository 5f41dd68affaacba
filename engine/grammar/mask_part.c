/* What one reading allows wherever it stands: worked out at the first use, kept with the grammar,
 * or with the vocabulary where the rule's automaton is complete in itself, such as a JSON string's,
 * so that all grammars share it. */
#include "engine/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    WORDS_MAX = 200000, // words left behind a rule's end; with more of them, tokens are tried
    LISTED_MAX = 512,   // tokens that are kept as a list instead of a mask
    SHARED_MAX = 1024,  // parts of a vocabulary
};
#define PARTS_BYTES_MAX ((size_t)64 << 20)

typedef struct part_maker {
    grammar *g;
    const grammar_vocab *v;
    const fsm_rule *rule;
    uint32_t *words; // a mask
    trie_words after;
    bool direct;
} part_maker;

/* ---- words for tries ------------------------------------------------------------------------- */

static void add_word(trie_words *l, trie_word w)
{
    if (l->n == l->room) {
        uint32_t room = l->room ? l->room * 2 : 64;
        trie_word *grown = realloc(l->items, room * sizeof *grown);
        if (!grown) {
            l->failed = true;
            return;
        }
        l->items = grown;
        l->room = room;
    }
    l->items[l->n++] = w;
}

void trie_words_behind(const grammar_vocab *v, const trie *t, uint32_t node, bool unsafe,
                       trie_words *out)
{
    uint32_t depth = t->depth[node];
    for (uint32_t k = t->first_token[node + 1]; k < t->first_token[t->end[node]]; k++) {
        uint32_t token = t->tokens[k];
        const uint8_t *bytes = v->bytes + v->first_byte[token];
        if (unsafe && safe_byte(bytes[depth])) continue;
        uint32_t n = v->first_byte[token + 1] - v->first_byte[token];
        add_word(out, (trie_word){bytes + depth, n - depth, token});
    }
}

/* ---- walks ----------------------------------------------------------------------------------- */

static void allow(part_maker *p, uint32_t token) { p->words[token / 32] |= 1u << token % 32; }

/* Takes the tokens that end at a node; `ended`: the rule may end there, too. */
static void take_node(part_maker *p, const trie *t, uint32_t node, bool ended)
{
    for (uint32_t k = t->first_token[node]; k < t->first_token[node + 1]; k++)
        allow(p, t->tokens[k]);
    if (ended && p->rule->called && t->end[node] > node + 1)
        trie_words_behind(p->v, t, node, false, &p->after);
    if (p->after.n > WORDS_MAX) p->direct = true;
}

/* Walks nodes [from, to), children of the node of `depth` at which the automaton is in `state`. */
static void walk_plain(part_maker *p, const trie *t, uint32_t from, uint32_t to, uint32_t *stack)
{
    for (uint32_t i = from; i < to && !p->direct;) {
        uint32_t depth = t->depth[i], state = fsm_next(p->g, stack[depth - 1], t->byte[i]);
        if (state == NONE) {
            i = t->end[i];
            continue;
        }
        stack[depth] = state;
        take_node(p, t, i++, p->g->states[state].ends);
    }
}

/* The tokens by their first byte: where it leads to a state in which every safe character stays,
 * all safe tokens are allowed, and the others are walked. */
static void walk_children(part_maker *p, uint32_t *stack)
{
    const grammar_vocab *v = p->v;
    bool loops[256] = {false};
    uint32_t n_safe = 0;
    for (uint32_t c = 0; c < 128; c++) {
        uint32_t to = safe_byte((uint8_t)c) ? fsm_next(p->g, stack[0], c) : NONE;
        loops[c] = to != NONE && p->g->states[to].text_loop && !p->g->states[to].ends;
        if (loops[c]) n_safe += v->safe_first[c + 1] - v->safe_first[c];
    }
    bool most = n_safe > v->n_safe / 2;
    if (most) memcpy(p->words, v->safe_all, grammar_mask_words(v->n_tokens) * sizeof *p->words);
    for (uint32_t c = 0; c < 256; c++) {
        if (loops[c] != most)
            for (uint32_t k = v->safe_first[c]; k < v->safe_first[c + 1]; k++) {
                uint32_t token = v->safe_sorted[k];
                p->words[token / 32] ^= 1u << token % 32;
            }
        if (loops[c]) walk_plain(p, &v->unsafe, v->unsafe_child[c], v->unsafe_child[c + 1], stack);
        else walk_plain(p, &v->all, v->all_child[c], v->all_child[c + 1], stack);
    }
}

static void make_plain(part_maker *p, uint32_t state)
{
    const grammar_vocab *v = p->v;
    uint32_t *stack = malloc(((size_t)UINT16_MAX + 1) * sizeof *stack);
    if (!stack) {
        p->after.failed = true;
        return;
    }
    stack[0] = state;
    if (!p->g->states[state].text_loop) {
        walk_children(p, stack);
    } else if (p->g->states[state].ends && p->rule->called) {
        p->direct = true;
    } else {
        memcpy(p->words, v->safe_all, grammar_mask_words(v->n_tokens) * sizeof *p->words);
        walk_plain(p, &v->unsafe, 1, v->unsafe.n, stack);
    }
    free(stack);
}

static void walk_sets(part_maker *p, item_sets *s, const trie *t)
{
    uint32_t base = s->n_sets;
    for (uint32_t i = 1; i < t->n && !p->direct && status_ok(s->failure);) {
        sets_cut(s, base + t->depth[i] - 1);
        if (!sets_step(s, t->byte[i])) {
            i = t->end[i];
            continue;
        }
        take_node(p, t, i++, s->ended);
    }
    if (!status_ok(s->failure)) p->direct = true;
}

/* A rule with calls, or with several edges for a byte: a matcher with the state alone, which began
 * at an empty set, so that what ends there ends the rule. */
static void make_calling(part_maker *p, uint32_t state)
{
    const grammar_vocab *v = p->v;
    const fsm_state *from = &p->g->states[state];
    item_sets s;
    if (!status_ok(sets_init(&s, p->g))) {
        p->after.failed = true;
        return;
    }
    s.work = 4 * SETS_WORK;
    sets_begin(&s);
    sets_begin(&s);
    sets_add(&s, (item){state, 0, from->rule, 0});
    s.starts[s.n_sets] = s.n_items;
    if (from->text_loop && !from->ends) {
        memcpy(p->words, v->safe_all, grammar_mask_words(v->n_tokens) * sizeof *p->words);
        walk_sets(p, &s, &v->unsafe);
    } else {
        walk_sets(p, &s, &v->all);
    }
    sets_destroy(&s);
}

/* ---- parts ----------------------------------------------------------------------------------- */

void mask_part_destroy(mask_part *p)
{
    if (!p) return;
    trie_destroy(&p->after);
    free(p->words);
    free(p->tokens);
    free(p);
}

/* Keeps a mask of few tokens as a list. */
static bool keep_tokens(mask_part *part, uint32_t *words, uint32_t n_tokens)
{
    uint32_t n_words = grammar_mask_words(n_tokens), n = 0;
    for (uint32_t w = 0; w < n_words; w++) n += (uint32_t)__builtin_popcount(words[w]);
    part->bytes += (n > LISTED_MAX ? n_words : n) * sizeof *words;
    if (n > LISTED_MAX) {
        part->words = words;
        return true;
    }
    part->tokens = malloc(((size_t)n + 1) * sizeof *part->tokens);
    for (uint32_t w = 0; part->tokens && w < n_words; w++)
        for (uint32_t bits = words[w]; bits; bits &= bits - 1)
            part->tokens[part->n_tokens++] = w * 32 + (uint32_t)__builtin_ctz(bits);
    free(words);
    return part->tokens != NULL;
}

static mask_part *make_part(grammar *g, uint32_t state)
{
    const grammar_vocab *v = g->vocab;
    part_maker p = {.g = g, .v = v, .rule = &g->rules[g->states[state].rule]};
    mask_part *part = calloc(1, sizeof *part);
    p.words = calloc(grammar_mask_words(v->n_tokens), sizeof *p.words);
    if (part && p.words) {
        if (p.rule->plain) make_plain(&p, state);
        else make_calling(&p, state);
    }
    bool ok = part && p.words && !p.after.failed;
    if (ok && p.direct) {
        part->direct = true;
        free(p.words);
    } else if (ok) {
        ok = trie_make(p.after.items, p.after.n, &part->after);
        part->bytes = sizeof *part + (size_t)part->after.n * 12 + p.after.n * sizeof(uint32_t);
        ok = keep_tokens(part, p.words, v->n_tokens) && ok;
    } else {
        free(p.words);
    }
    free(p.after.items);
    if (ok) return part;
    mask_part_destroy(part);
    return NULL;
}

/* The vocabulary's entry, made where it is missing; NULL when there is no room. Under its lock. */
static shared_part *shared_get(grammar_vocab *v, const fsm_rule *r, uint32_t state, bool called)
{
    shared_part *s = v->shared;
    while (s &&
           (s->state != state || s->called != called || memcmp(s->key, r->key, sizeof s->key) != 0))
        s = s->next;
    if (s || v->shared_bytes >= PARTS_BYTES_MAX || v->n_shared >= SHARED_MAX) return s;
    s = calloc(1, sizeof *s);
    if (!s) return NULL;
    memcpy(s->key, r->key, sizeof s->key);
    s->state = state;
    s->called = called;
    s->next = v->shared;
    v->shared = s;
    v->n_shared++;
    return s;
}

void shared_parts_destroy(grammar_vocab *v)
{
    while (v->shared) {
        shared_part *s = v->shared;
        v->shared = s->next;
        mask_part_destroy(s->part);
        text_part_destroy(s->text);
        free(s);
    }
}

static mask_part *get_shared(grammar *g, uint32_t state)
{
    const fsm_rule *r = &g->rules[g->states[state].rule];
    grammar_vocab *v = g->vocab;
    pthread_mutex_lock(&v->lock);
    shared_part *s = shared_get(v, r, state - r->start, r->called);
    if (s && !s->part) {
        s->part = make_part(g, state);
        if (s->part) s->part->shared = true;
        v->shared_bytes += s->part ? s->part->bytes : 0;
    }
    mask_part *part = s ? s->part : NULL;
    pthread_mutex_unlock(&v->lock);
    return part;
}

mask_part *mask_part_get(grammar *g, uint32_t state)
{
    mask_part *part = atomic_load_explicit(&g->parts[state], memory_order_acquire);
    if (part) return part;
    pthread_mutex_lock(&g->lock);
    part = atomic_load_explicit(&g->parts[state], memory_order_acquire);
    if (!part && g->rules[g->states[state].rule].plain) part = get_shared(g, state);
    if (!part) part = make_part(g, state);
    if (part && !part->shared) {
        part->temporary = g->parts_bytes >= PARTS_BYTES_MAX;
        if (!part->temporary) g->parts_bytes += part->bytes;
    }
    if (part && !part->temporary)
        atomic_store_explicit(&g->parts[state], part, memory_order_release);
    pthread_mutex_unlock(&g->lock);
    return part;
}

const text_part *text_part_get(grammar *g, const fsm_rule *unit)
{
    grammar_vocab *v = g->vocab;
    pthread_mutex_lock(&v->lock);
    shared_part *s = shared_get(v, unit, NONE, true);
    if (s && !s->text) s->text = text_part_make(g, unit);
    const text_part *part = s ? s->text : NULL;
    pthread_mutex_unlock(&v->lock);
    return part;
}
