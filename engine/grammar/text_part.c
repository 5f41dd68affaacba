/* Tokens that the repetition of a character, such as a string of at most 40 characters, allows, by
 * how many characters they take. */
#include "engine/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct counted_token {
    uint32_t token, chars;
} counted_token;

typedef struct text_maker {
    const grammar *g;
    const grammar_vocab *v;
    const fsm_rule *unit;
    counted_token *tokens;
    uint32_t n, room;
    trie_words *after; // [longest + 1]: by characters
    uint32_t n_after;
    bool failed;
} text_maker;

static void add_token(text_maker *m, uint32_t token, uint32_t chars)
{
    if (m->n == m->room) {
        uint32_t room = m->room ? m->room * 2 : 256;
        counted_token *grown = realloc(m->tokens, room * sizeof *grown);
        if (!grown) {
            m->failed = true;
            return;
        }
        m->tokens = grown;
        m->room = room;
    }
    m->tokens[m->n++] = (counted_token){token, chars};
}

static trie_words *after_chars(text_maker *m, uint32_t chars)
{
    if (chars >= m->n_after) {
        trie_words *grown = realloc(m->after, ((size_t)chars + 1) * sizeof *grown);
        if (!grown) {
            m->failed = true;
            return NULL;
        }
        memset(grown + m->n_after, 0, (chars + 1 - m->n_after) * sizeof *grown);
        m->after = grown;
        m->n_after = chars + 1;
    }
    return &m->after[chars];
}

/* Walks the tokens that are not safe. stack [depth]: the unit's state there; chars: how many whole
 * characters came before. */
static void walk(text_maker *m, uint32_t *stack, uint32_t *chars)
{
    const grammar *g = m->g;
    const trie *t = &m->v->unsafe;
    stack[0] = m->unit->start;
    chars[0] = 0;
    for (uint32_t i = 1; i < t->n && !m->failed;) {
        uint32_t depth = t->depth[i], state = fsm_next(g, stack[depth - 1], t->byte[i]);
        if (state == NONE) {
            i = t->end[i];
            continue;
        }
        bool whole = g->states[state].ends;
        stack[depth] = whole ? m->unit->start : state;
        chars[depth] = chars[depth - 1] + whole;
        for (uint32_t k = t->first_token[i]; k < t->first_token[i + 1]; k++)
            add_token(m, t->tokens[k], chars[depth] + !whole);
        trie_words *after = whole ? after_chars(m, chars[depth]) : NULL;
        if (after) trie_words_behind(m->v, t, i, true, after);
        i++;
    }
}

static int by_chars(const void *x, const void *y)
{
    const counted_token *a = x, *c = y;
    if (a->chars != c->chars) return a->chars < c->chars ? -1 : 1;
    return a->token < c->token ? -1 : a->token > c->token;
}

/* Also puts all the words that are left into one trie, for where every number of characters is
 * allowed. A token may leave behind several numbers of characters: equal words are kept once. */
static bool make_tries(text_maker *m, text_part *p)
{
    trie_words all = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_after; i++) n += m->after[i].n;
    all.items = malloc(((size_t)n + 1) * sizeof *all.items);
    p->after = calloc((size_t)m->n_after + 1, sizeof *p->after);
    bool ok = all.items && p->after;
    for (uint32_t i = 0; ok && i < m->n_after; i++) {
        if (m->after[i].n > 0)
            memcpy(all.items + all.n, m->after[i].items, m->after[i].n * sizeof *all.items);
        all.n += m->after[i].n;
        ok = !m->after[i].failed && trie_make(m->after[i].items, m->after[i].n, &p->after[i]);
        p->n_after = i + 1;
    }
    ok = ok && trie_make(all.items, all.n, &p->after_any);
    free(all.items);
    return ok;
}

static bool make_lists(text_maker *m, text_part *p)
{
    uint32_t n_words = grammar_mask_words(m->v->n_tokens);
    p->words = calloc(n_words, sizeof *p->words);
    p->tokens = malloc(((size_t)m->n + 1) * sizeof *p->tokens);
    p->chars = malloc(((size_t)m->n + 1) * sizeof *p->chars);
    if (!p->words || !p->tokens || !p->chars) return false;
    if (m->n > 0) qsort(m->tokens, m->n, sizeof *m->tokens, by_chars);
    for (uint32_t i = 0; i < m->n; i++) {
        uint32_t token = p->tokens[i] = m->tokens[i].token;
        p->chars[i] = m->tokens[i].chars;
        p->words[token / 32] |= 1u << token % 32;
    }
    p->n_tokens = m->n;
    return true;
}

text_part *text_part_make(const grammar *g, const fsm_rule *unit)
{
    text_maker m = {.g = g, .v = g->vocab, .unit = unit};
    uint32_t *stack = malloc(((size_t)UINT16_MAX + 1) * 2 * sizeof *stack);
    text_part *p = calloc(1, sizeof *p);
    if (stack && p) walk(&m, stack, stack + UINT16_MAX + 1);
    bool ok = stack && p && !m.failed && make_tries(&m, p) && make_lists(&m, p);
    for (uint32_t i = 0; i < m.n_after; i++) free(m.after[i].items);
    free(m.after);
    free(m.tokens);
    free(stack);
    if (ok) return p;
    text_part_destroy(p);
    return NULL;
}

void text_part_destroy(text_part *p)
{
    if (!p) return;
    for (uint32_t i = 0; i < p->n_after; i++) trie_destroy(&p->after[i]);
    trie_destroy(&p->after_any);
    free(p->after);
    free(p->tokens);
    free(p->chars);
    free(p->words);
    free(p);
}
