/* Masks: what the readings of a matcher's last set allow together. */
#include "engine/grammar/internal.h"

#include <string.h>

typedef struct mask_maker {
    grammar_matcher *m;
    uint32_t *mask;
    bool direct; // every token has to be tried
} mask_maker;

static void allow(uint32_t *mask, uint32_t token) { mask[token / 32] |= 1u << token % 32; }

static void allow_words(mask_maker *k, const uint32_t *words)
{
    uint32_t n = grammar_mask_words(k->m->g->vocab->n_tokens);
    for (uint32_t w = 0; w < n; w++) k->mask[w] |= words[w];
}

/* Allows the tokens of a part's base, but for those that the part does not share with it; tokens
 * that other readings allow stay. */
static void allow_base(mask_maker *k, const mask_part *part)
{
    uint8_t kept[WITHOUT_MAX / 8] = {0};
    for (uint32_t i = 0; i < part->n_without; i++) {
        uint32_t t = part->without[i];
        kept[i / 8] |= (uint8_t)((k->mask[t / 32] >> t % 32 & 1) << i % 8);
    }
    if (part->base->words) allow_words(k, part->base->words);
    for (uint32_t i = 0; i < part->base->n_tokens; i++) allow(k->mask, part->base->tokens[i]);
    for (uint32_t i = 0; i < part->n_without; i++) {
        uint32_t t = part->without[i];
        if (!(kept[i / 8] >> i % 8 & 1)) k->mask[t / 32] &= ~(1u << t % 32);
    }
}

/* Tries the words of a trie behind the last set. */
static void try_words(mask_maker *k, const trie *t)
{
    item_sets *s = &k->m->sets;
    uint32_t base = s->n_sets;
    for (uint32_t i = 1; i < t->n && status_ok(s->failure);) {
        sets_cut(s, base + t->depth[i] - 1);
        if (!sets_step(s, t->byte[i])) {
            i = t->end[i];
            continue;
        }
        for (uint32_t w = t->first_token[i]; w < t->first_token[i + 1]; w++)
            allow(k->mask, t->tokens[w]);
        i++;
    }
    sets_cut(s, base);
}

/* Tries the words that are left behind the end of a rule that began at `origin`. */
static void try_after(mask_maker *k, uint32_t rule, uint32_t origin, const trie *t)
{
    item_sets *s = &k->m->sets;
    if (t->n <= 1 || !s->g->rules[rule].called) return;
    sets_after(s, rule, origin);
    if (status_ok(s->failure)) try_words(k, t);
    sets_cut(s, s->n_sets - 1);
}

/* Whether a byte that is safe may come next behind the last set. */
static bool safe_follows(const item_sets *s)
{
    const grammar *g = s->g;
    for (uint32_t i = s->starts[s->n_sets - 1]; i < s->starts[s->n_sets]; i++) {
        uint32_t state = s->items[i].state;
        for (uint32_t e = g->states[state].first_edge; e < g->states[state + 1].first_edge; e++)
            for (uint32_t c = g->edges[e].lo; c <= g->edges[e].hi; c++)
                if (safe_byte((uint8_t)c)) return true;
    }
    return false;
}

/* Tries what is left of tokens behind lo to hi more repetitions of a character. */
static void try_behind_text(mask_maker *k, const text_part *p, item i, uint32_t lo, uint32_t hi)
{
    item_sets *s = &k->m->sets;
    sets_after(s, i.rule, i.origin);
    if (!status_ok(s->failure)) return;
    if (safe_follows(s)) k->direct = true;
    else if (lo <= 1 && hi + 1 >= p->n_after) try_words(k, &p->after_any);
    else
        for (uint32_t n = lo; n <= hi && n < p->n_after; n++) try_words(k, &p->after[n]);
    sets_cut(s, s->n_sets - 1);
}

/* A repeated character of which every safe character is one. */
static bool add_text(mask_maker *k, item i, const fsm_rule *r)
{
    grammar *g = k->m->g;
    const grammar_vocab *v = g->vocab;
    fsm_rule *unit = &g->rules[g->calls[g->states[i.state].first_call].rule];
    const text_part *p = text_part_get(g, unit);
    uint32_t room = r->max - i.count, need = r->min > i.count ? r->min - i.count : 0;
    if (!p) k->direct = true;
    if (!p || room == 0) return true;
    if (room >= v->longest) {
        allow_words(k, v->safe_all);
    } else {
        allow_words(k, v->safe[room < LENGTHS_MAX ? room : LENGTHS_MAX]);
        for (uint32_t n = 0; n < v->n_long; n++)
            if (v->safe_chars[v->safe_long[n]] <= room) allow(k->mask, v->safe_long[n]);
    }
    if (p->n_tokens > 0 && p->chars[p->n_tokens - 1] <= room) allow_words(k, p->words);
    else
        for (uint32_t n = 0; n < p->n_tokens && p->chars[n] <= room; n++)
            allow(k->mask, p->tokens[n]);
    try_behind_text(k, p, i, need > 1 ? need : 1, room);
    return true;
}

static bool add_item(mask_maker *k, item i)
{
    grammar *g = k->m->g;
    const fsm_state *state = &g->states[i.state];
    const fsm_rule *r = &g->rules[state->rule];
    if (r->text) return add_text(k, i, r);
    if (state->first_edge == state[1].first_edge || (r->unit && i.state == r->start)) return true;
    mask_part *part = mask_part_get(g, i.state);
    if (!part) return false;
    if (part->direct) k->direct = true;
    if (part->base) allow_base(k, part);
    if (part->words) allow_words(k, part->words);
    for (uint32_t t = 0; t < part->n_tokens; t++) allow(k->mask, part->tokens[t]);
    if (!part->direct) try_after(k, i.rule, i.origin, part->after);
    if (part->temporary) mask_part_destroy(part);
    return true;
}

status grammar_mask(grammar_matcher *m, uint32_t *mask)
{
    mask_maker k = {.m = m, .mask = mask};
    item_sets *s = &m->sets;
    if (!m->g->vocab) return status_make(STATUS_INVALID, "the grammar has no vocabulary");
    uint32_t last = s->n_sets - 1, n = s->starts[last + 1];
    s->work = SETS_WORK;
    memset(mask, 0, grammar_mask_words(m->g->vocab->n_tokens) * sizeof *mask);
    for (uint32_t i = s->starts[last]; i < n && !k.direct && status_ok(s->failure); i++)
        if (!add_item(&k, s->items[i])) return status_make(STATUS_NO_MEMORY, NULL);
    if (k.direct) try_words(&k, &m->g->vocab->all);
    sets_cut(s, last + 1);
    return s->failure;
}
