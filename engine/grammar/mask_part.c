/* The tokens that one reading allows wherever it stands: worked out at the first use, kept with the
 * grammar, or with the vocabulary where the rule's automaton is complete in itself, such as a JSON
 * string's, so that all grammars share it. */
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
    uint32_t *words; // a mask, or NULL: the list
    uint32_t *list, n_list;
    uint32_t *without, n_without;
    uint32_t *stack;       // [2][longest token + 1]: the states at a token's bytes
    uint32_t (*rows)[256]; // [rule->n_states]: where bytes lead, of states that have_row
    bool *have_row;
    trie_words after;
    bool direct, failed;
} part_maker;

/* ---- words for tries ------------------------------------------------------------------------- */

static void trie_words_add(trie_words *l, trie_word w)
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
        trie_words_add(out, (trie_word){bytes + depth, n - depth, token});
    }
}

/* ---- tokens that are allowed ----------------------------------------------------------------- */

static void set_bit(uint32_t *words, uint32_t token) { words[token / 32] |= 1u << token % 32; }

/* A mask in place of the list of tokens so far. */
static bool make_words(part_maker *p)
{
    if (p->words) return true;
    p->words = calloc(grammar_mask_words(p->v->n_tokens), sizeof *p->words);
    p->failed |= !p->words;
    for (uint32_t i = 0; p->words && i < p->n_list; i++) set_bit(p->words, p->list[i]);
    p->n_list = 0;
    return p->words != NULL;
}

static void allow(part_maker *p, uint32_t token)
{
    if (!p->words && p->n_list < LISTED_MAX) p->list[p->n_list++] = token;
    else if (make_words(p)) set_bit(p->words, token);
}

static void allow_safe(part_maker *p)
{
    if (make_words(p))
        memcpy(p->words, p->v->safe_all, grammar_mask_words(p->v->n_tokens) * sizeof *p->words);
}

/* ---- walks ----------------------------------------------------------------------------------- */

/* Where a byte leads from a state of the rule; the state's bytes are written out at the first
 * question. */
static uint32_t next_of(part_maker *p, uint32_t state, uint32_t byte)
{
    uint32_t i = state - p->rule->start;
    if (!p->rows) return fsm_next(p->g, state, byte);
    if (!p->have_row[i]) {
        memset(p->rows[i], 0xff, sizeof p->rows[i]);
        for (uint32_t e = p->g->states[state].first_edge; e < p->g->states[state + 1].first_edge;
             e++)
            for (uint32_t c = p->g->edges[e].lo; c <= p->g->edges[e].hi; c++)
                p->rows[i][c] = p->g->edges[e].to;
        p->have_row[i] = true;
    }
    return p->rows[i][byte];
}

/* Adds what is left of the tokens behind a node at which the rule may end. */
static void take_after(part_maker *p, const trie *t, uint32_t node)
{
    if (!p->rule->called || t->end[node] == node + 1) return;
    trie_words_behind(p->v, t, node, false, &p->after);
    if (p->after.n > WORDS_MAX) p->direct = true;
}

/* Takes the tokens that end at a node; `ended`: the rule may end there, too. */
static void take_node(part_maker *p, const trie *t, uint32_t node, bool ended)
{
    for (uint32_t k = t->first_token[node]; k < t->first_token[node + 1]; k++)
        allow(p, t->tokens[k]);
    if (ended) take_after(p, t, node);
}

/* Walks nodes [from, to), children of the node of `depth` at which the automaton is in `state`. */
static void walk_plain(part_maker *p, const trie *t, uint32_t from, uint32_t to)
{
    uint32_t *stack = p->stack;
    for (uint32_t i = from; i < to && !p->direct;) {
        uint32_t depth = t->depth[i], state = next_of(p, stack[depth - 1], t->byte[i]);
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
static void walk_children(part_maker *p, uint32_t state)
{
    const grammar_vocab *v = p->v;
    bool loops[256] = {false};
    uint32_t n_safe = 0;
    for (uint32_t c = 0; c < 128; c++) {
        uint32_t to = safe_byte((uint8_t)c) ? next_of(p, state, c) : NONE;
        loops[c] = to != NONE && p->g->states[to].text_loop && !p->g->states[to].ends;
        if (loops[c]) n_safe += v->safe_first[c + 1] - v->safe_first[c];
    }
    bool most = n_safe > v->n_safe / 2;
    if (most) allow_safe(p);
    for (uint32_t c = 0; c < 256 && !p->failed; c++) {
        if (loops[c] != most && make_words(p))
            for (uint32_t k = v->safe_first[c]; k < v->safe_first[c + 1]; k++) {
                uint32_t token = v->safe_sorted[k];
                p->words[token / 32] ^= 1u << token % 32;
            }
        if (loops[c]) walk_plain(p, &v->unsafe, v->unsafe_child[c], v->unsafe_child[c + 1]);
        else if (next_of(p, state, c) != NONE)
            walk_plain(p, &v->all, v->all_child[c], v->all_child[c + 1]);
    }
}

static void make_plain(part_maker *p, uint32_t state)
{
    const grammar_vocab *v = p->v;
    p->stack[0] = state;
    if (!p->g->states[state].text_loop) {
        walk_children(p, state);
    } else if (p->g->states[state].ends && p->rule->called) {
        p->direct = true;
    } else {
        allow_safe(p);
        walk_plain(p, &v->unsafe, 1, v->unsafe.n);
    }
}

/* A subtree whose tokens the base may allow, and this state does not. */
static void leave_out(part_maker *p, const trie *t, uint32_t node)
{
    uint32_t from = t->first_token[node], to = t->first_token[t->end[node]];
    if (p->n_without + (to - from) > WITHOUT_MAX) {
        p->direct = true;
        return;
    }
    memcpy(p->without + p->n_without, t->tokens + from, (to - from) * sizeof *p->without);
    p->n_without += to - from;
}

/* Finds the tokens that set a state apart from its base: both walk the tokens until they are in the
 * same state. False where that says too little. */
static bool make_beside(part_maker *p, uint32_t state, uint32_t base)
{
    const trie *t = &p->v->all;
    uint32_t *stack = p->stack, *beside = stack + t->deepest + 1;
    stack[0] = state;
    beside[0] = base;
    for (uint32_t i = 1; i < t->n && !p->direct && !p->words;) {
        uint32_t depth = t->depth[i];
        uint32_t here = next_of(p, stack[depth - 1], t->byte[i]);
        uint32_t there =
            beside[depth - 1] == NONE ? NONE : next_of(p, beside[depth - 1], t->byte[i]);
        if (here == there || here == NONE) {
            if (here != there) leave_out(p, t, i);
            i = t->end[i];
            continue;
        }
        if (there != NONE && p->g->states[there].ends && p->rule->called) return false;
        stack[depth] = here;
        beside[depth] = there;
        if (there == NONE) take_node(p, t, i, false);
        if (p->g->states[here].ends) take_after(p, t, i);
        i++;
    }
    return !p->direct && !p->words;
}

static void walk_sets(part_maker *p, item_sets *s, const trie *t, uint32_t from, uint32_t to,
                      uint32_t base)
{
    for (uint32_t i = from; i < to && !p->direct && status_ok(s->failure);) {
        sets_cut(s, base + t->depth[i] - 1);
        if (!sets_step(s, t->byte[i])) {
            i = t->end[i];
            continue;
        }
        take_node(p, t, i++, s->ended);
    }
}

/* A rule with calls, or with several edges for a byte: a matcher with the state alone, which began
 * at an empty set, so that what ends there ends the rule. */
static void make_calling(part_maker *p, uint32_t state)
{
    const grammar_vocab *v = p->v;
    const fsm_state *from = &p->g->states[state];
    bool begins[256] = {false}, loop = from->text_loop && !from->ends;
    item_sets s;
    if (!status_ok(sets_init(&s, p->g))) {
        p->failed = true;
        return;
    }
    s.work = 4 * SETS_WORK;
    sets_begin(&s);
    sets_begin(&s);
    sets_add(&s, (item){state, 0, from->rule, 0});
    s.starts[s.n_sets] = s.n_items;
    for (uint32_t e = from->first_edge; e < from[1].first_edge; e++)
        memset(begins + p->g->edges[e].lo, 1, p->g->edges[e].hi - p->g->edges[e].lo + 1u);
    if (loop) allow_safe(p);
    uint32_t base = s.n_sets;
    const uint32_t *child = loop ? v->unsafe_child : v->all_child;
    for (uint32_t c = 0; c < 256; c++)
        if (begins[c]) walk_sets(p, &s, loop ? &v->unsafe : &v->all, child[c], child[c + 1], base);
    if (!status_ok(s.failure)) p->direct = true;
    sets_destroy(&s);
}

/* ---- parts ----------------------------------------------------------------------------------- */

void mask_part_destroy(mask_part *p)
{
    if (!p) return;
    trie_destroy(&p->own_after);
    free(p->words);
    free(p->tokens);
    free(p->without);
    free(p);
}

/* Adds the words of the base's trie but those of the tokens that are left out. Returns whether
 * there were any of these. */
static bool copy_after(part_maker *p, const trie *t)
{
    const grammar_vocab *v = p->v;
    bool some = false;
    uint32_t *out = calloc(grammar_mask_words(v->n_tokens), sizeof *out);
    p->failed |= !out;
    for (uint32_t i = 0; out && i < p->n_without; i++) set_bit(out, p->without[i]);
    for (uint32_t i = 1; out && i < t->n; i++) {
        for (uint32_t k = t->first_token[i]; k < t->first_token[i + 1]; k++) {
            uint32_t token = t->tokens[k], n = t->depth[i];
            if (out[token / 32] >> token % 32 & 1) some = true;
            else
                trie_words_add(&p->after,
                               (trie_word){v->bytes + v->first_byte[token + 1] - n, n, token});
        }
    }
    free(out);
    return some;
}

/* The words behind the rule's end: the base's, if they are the same. */
static bool keep_after(part_maker *p, mask_part *part)
{
    uint32_t own = p->after.n;
    part->after = &part->own_after;
    if (part->base) {
        bool fewer = (own > 0 || p->n_without > 0) && copy_after(p, part->base->after);
        if (own == 0 && !fewer) {
            part->after = part->base->after;
            p->after.n = 0;
        }
    }
    if (p->failed || p->after.failed || !trie_make(p->after.items, p->after.n, &part->own_after))
        return false;
    part->bytes += (size_t)part->own_after.n * 12 + p->after.n * sizeof(uint32_t);
    return true;
}

static uint32_t *copy_list(const uint32_t *list, uint32_t n)
{
    uint32_t *copy = malloc(((size_t)n + 1) * sizeof *copy);
    if (copy && n > 0) memcpy(copy, list, n * sizeof *copy);
    return copy;
}

/* Moves what was found to the part. */
static bool keep_part(part_maker *p, mask_part *part)
{
    if (p->direct) {
        part->direct = true;
        part->bytes = sizeof *part;
        return true;
    }
    if (!keep_after(p, part)) return false;
    part->words = p->words;
    p->words = NULL;
    part->tokens = copy_list(p->list, p->n_list);
    part->n_tokens = p->n_list;
    part->without = copy_list(p->without, p->n_without);
    part->n_without = p->n_without;
    part->bytes += sizeof *part + (p->n_list + p->n_without) * sizeof(uint32_t);
    if (part->words) part->bytes += grammar_mask_words(p->v->n_tokens) * sizeof(uint32_t);
    return part->tokens && part->without;
}

/* Memory of the walks. The stacks are for a plain rule alone. */
static bool open_maker(part_maker *p)
{
    enum { ROWS_MAX = 1024 };
    uint32_t n_states = p->rule->n_states;
    p->list = malloc(LISTED_MAX * sizeof *p->list);
    if (!p->rule->plain || !p->list) return p->list != NULL;
    p->without = malloc(WITHOUT_MAX * sizeof *p->without);
    p->stack = malloc(2 * ((size_t)p->v->all.deepest + 1) * sizeof *p->stack);
    if (n_states <= ROWS_MAX) {
        p->rows = malloc(n_states * sizeof *p->rows);
        p->have_row = calloc(n_states, sizeof *p->have_row);
    }
    return p->without && p->stack && (n_states > ROWS_MAX || (p->rows && p->have_row));
}

static void close_maker(part_maker *p)
{
    free(p->after.items);
    free(p->words);
    free(p->list);
    free(p->without);
    free(p->stack);
    free(p->rows);
    free(p->have_row);
}

/* base: the part of the rule's loop; NULL: on its own. NULL: memory is out, or the state has too
 * little in common with the base. */
static mask_part *make_part(grammar *g, uint32_t state, const mask_part *base)
{
    part_maker p = {.g = g, .v = g->vocab, .rule = &g->rules[g->states[state].rule]};
    mask_part *part = calloc(1, sizeof *part);
    bool ok = open_maker(&p) && part;
    if (ok && base) ok = make_beside(&p, state, p.rule->loop);
    else if (ok && p.rule->plain) make_plain(&p, state);
    else if (ok) make_calling(&p, state);
    if (ok) part->base = base;
    ok = ok && !p.failed && !p.after.failed && keep_part(&p, part);
    close_maker(&p);
    if (ok) return part;
    mask_part_destroy(part);
    return NULL;
}

/* ---- parts that grammars share --------------------------------------------------------------- */

/* Names what can follow a state of a plain rule: the states that are reached, numbered in the order
 * in which a walk meets them, with their edges. False where there are too many of them. */
static bool name_state(const grammar *g, uint32_t state, char key[SHA256_HEX_BYTES])
{
    enum { MOST = 256 };
    uint32_t met[MOST], n = 1;
    sha256 hash;
    met[0] = state;
    sha256_init(&hash);
    for (uint32_t i = 0; i < n; i++) {
        const fsm_state *s = &g->states[met[i]];
        uint32_t head[] = {s->ends, s[1].first_edge - s->first_edge};
        sha256_add(&hash, head, sizeof head);
        for (uint32_t e = s->first_edge; e < s[1].first_edge; e++) {
            uint32_t k = 0;
            while (k < n && met[k] != g->edges[e].to) k++;
            if (k == MOST) return false;
            if (k == n) met[n++] = g->edges[e].to;
            uint32_t edge[] = {g->edges[e].lo, g->edges[e].hi, k};
            sha256_add(&hash, edge, sizeof edge);
        }
    }
    sha256_finish(&hash, key);
    return true;
}

/* The vocabulary's entry, made where it is missing; NULL when there is no room. Under its lock. */
static shared_part *shared_get(grammar_vocab *v, const char key[SHA256_HEX_BYTES], uint32_t state,
                               bool called)
{
    shared_part **list = &v->shared[hash_bytes(key, SHA256_HEX_BYTES, state) % SHARED_LISTS];
    shared_part *s = *list;
    while (s && (s->state != state || s->called != called || memcmp(s->key, key, sizeof s->key)))
        s = s->next;
    if (s || v->shared_bytes >= PARTS_BYTES_MAX || v->n_shared >= SHARED_MAX) return s;
    s = calloc(1, sizeof *s);
    if (!s) return NULL;
    memcpy(s->key, key, sizeof s->key);
    s->state = state;
    s->called = called;
    s->next = *list;
    *list = s;
    v->n_shared++;
    return s;
}

void shared_parts_destroy(grammar_vocab *v)
{
    for (uint32_t i = 0; i < SHARED_LISTS; i++) {
        while (v->shared[i]) {
            shared_part *s = v->shared[i];
            v->shared[i] = s->next;
            mask_part_destroy(s->part);
            text_part_destroy(s->text);
            free(s);
        }
    }
}

static mask_part *get_shared(grammar *g, uint32_t state)
{
    const fsm_rule *r = &g->rules[g->states[state].rule];
    grammar_vocab *v = g->vocab;
    char key[SHA256_HEX_BYTES];
    bool named = name_state(g, state, key);
    if (!named) memcpy(key, r->key, sizeof key);
    pthread_mutex_lock(&v->lock);
    shared_part *s = shared_get(v, key, named ? 0 : state - r->start, r->called);
    if (s && !s->part) {
        s->part = make_part(g, state, NULL);
        if (s->part) s->part->shared = true;
        v->shared_bytes += s->part ? s->part->bytes : 0;
    }
    mask_part *part = s ? s->part : NULL;
    pthread_mutex_unlock(&v->lock);
    return part;
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* The part of the state that the rule's other states are kept beside; NULL: there is none. */
static const mask_part *get_base(grammar *g, const fsm_rule *r, uint32_t state)
{
    if (!r->plain || r->loop == NONE || r->loop == state) return NULL;
    mask_part *base = mask_part_get(g, r->loop);
    if (!base || (!base->temporary && !base->direct)) return base;
    if (base->temporary) mask_part_destroy(base);
    return NULL;
}

mask_part *mask_part_get(grammar *g, uint32_t state)
{
    const fsm_rule *r = &g->rules[g->states[state].rule];
    mask_part *part = atomic_load_explicit(&g->parts[state], memory_order_acquire);
    if (part) return part;
    const mask_part *base = get_base(g, r, state);
    pthread_mutex_lock(&g->lock);
    part = atomic_load_explicit(&g->parts[state], memory_order_acquire);
    if (!part && base) part = make_part(g, state, base);
    if (!part && r->plain) part = get_shared(g, state);
    if (!part) part = make_part(g, state, NULL);
    if (part && !part->shared) {
        part->temporary = g->parts_bytes >= PARTS_BYTES_MAX;
        if (!part->temporary) g->parts_bytes += part->bytes;
    }
    if (part && !part->temporary)
        atomic_store_explicit(&g->parts[state], part, memory_order_release);
    pthread_mutex_unlock(&g->lock);
    return part;
}

const text_part *text_part_get(grammar *g, fsm_rule *unit)
{
    grammar_vocab *v = g->vocab;
    const text_part *part = atomic_load_explicit(&unit->text_part, memory_order_acquire);
    if (part) return part;
    pthread_mutex_lock(&v->lock);
    shared_part *s = shared_get(v, unit->key, NONE, true);
    if (s && !s->text) s->text = text_part_make(g, unit);
    part = s ? s->text : NULL;
    pthread_mutex_unlock(&v->lock);
    atomic_store_explicit(&unit->text_part, part, memory_order_release);
    return part;
}
