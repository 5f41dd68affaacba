/* Languages: deterministic automata over bytes, how they are written and made minimal. */
#include "engine/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

void edges_cut(const byte_edge *edges, uint32_t n, bool cut[257])
{
    for (uint32_t i = 0; i < n; i++) cut[edges[i].lo] = cut[edges[i].hi + 1] = true;
}

/* ---- writing --------------------------------------------------------------------------------- */

void writer_state(language_writer *w, bool ends)
{
    build *b = w->b;
    if (!build_room(b, &w->first, w->n_states, 2, &w->first_room, sizeof *w->first) ||
        !build_room(b, &w->ends, w->n_states, 1, &w->ends_room, 1))
        return;
    w->ends[w->n_states] = ends;
    w->first[w->n_states++] = w->n_edges;
    w->first[w->n_states] = w->n_edges;
}

void writer_edge(language_writer *w, uint32_t lo, uint32_t hi, uint32_t to)
{
    if (!build_ok(w->b)) return;
    uint32_t from = w->first[w->n_states - 1];
    byte_edge *last = w->n_edges > from ? &w->edges[w->n_edges - 1] : NULL;
    if (last && last->to == to && (uint32_t)last->hi + 1 == lo) {
        last->hi = (uint8_t)hi;
        return;
    }
    if (w->n_edges >= EDGES_MAX) build_fail(w->b, STATUS_LIMIT, "too large");
    if (!build_room(w->b, &w->edges, w->n_edges, 1, &w->edges_room, sizeof *w->edges)) return;
    w->edges[w->n_edges++] = (byte_edge){(uint8_t)lo, (uint8_t)hi, to};
    w->first[w->n_states] = w->n_edges;
}

language *writer_finish(language_writer *w)
{
    language *l = build_alloc(w->b, 1, sizeof *l);
    if (l) *l = (language){w->n_states, w->n_edges, w->first, w->edges, w->ends};
    return l;
}

static uint64_t *map_keys_grow(build *b, key_map *m)
{
    uint32_t size = m->size ? m->size * 2 : 64;
    uint64_t *keys = build_alloc(b, size, sizeof *keys);
    uint32_t *values = build_alloc(b, size, sizeof *values);
    if (!keys || !values) return NULL;
    memset(values, 0xff, size * sizeof *values);
    for (uint32_t i = 0; i < m->size; i++) {
        if (m->values[i] == NONE) continue;
        uint64_t h = hash_mix64(m->keys[i]);
        while (values[h & (size - 1)] != NONE) h++;
        keys[h & (size - 1)] = m->keys[i];
        values[h & (size - 1)] = m->values[i];
    }
    m->keys = keys;
    m->values = values;
    m->size = size;
    return keys;
}

uint32_t key_map_put(build *b, key_map *m, uint64_t key, uint32_t fresh)
{
    if (m->n * 2 >= m->size && !map_keys_grow(b, m)) return NONE;
    uint64_t h = hash_mix64(key);
    for (; m->values[h & (m->size - 1)] != NONE; h++)
        if (m->keys[h & (m->size - 1)] == key) return m->values[h & (m->size - 1)];
    m->keys[h & (m->size - 1)] = key;
    m->values[h & (m->size - 1)] = fresh;
    m->n++;
    return fresh;
}

language *language_of(build *b, expr e)
{
    rule_fsm f;
    fsm_make(b, e, NONE, false, &f);
    language *l = build_alloc(b, 1, sizeof *l);
    if (l) *l = (language){f.n_states, f.n_edges, f.first_edge, f.edges, f.ends};
    return l;
}

bool language_empty(const language *l)
{
    for (uint32_t s = 0; s < l->n_states; s++)
        if (l->ends[s]) return false;
    return true;
}

/* ---- lists of texts -------------------------------------------------------------------------- */

static int by_bytes(const void *x, const void *y)
{
    const text_span *a = x, *c = y;
    size_t n = a->n < c->n ? a->n : c->n;
    int order = n ? memcmp(a->s, c->s, n) : 0;
    return order ? order : (a->n > c->n) - (a->n < c->n);
}

/* Texts [from, to), which have `depth` bytes in common: a state that is still to be written. */
typedef struct text_state {
    uint32_t from, to;
    size_t depth;
} text_state;

language *language_of_texts(build *b, text_span *texts, uint32_t n)
{
    language_writer w = {.b = b};
    text_state *queue = NULL;
    uint32_t n_queue = 1, room = 0;
    if (n > 0) qsort(texts, n, sizeof *texts, by_bytes);
    if (!build_room(b, &queue, 0, 1, &room, sizeof *queue)) return NULL;
    queue[0] = (text_state){0, n, 0};
    for (uint32_t i = 0; i < n_queue && build_work(b, 1); i++) {
        text_state s = queue[i];
        uint32_t at = s.from;
        while (at < s.to && texts[at].n == s.depth) at++;
        writer_state(&w, at > s.from);
        while (at < s.to && build_work(b, 1)) {
            uint8_t byte = (uint8_t)texts[at].s[s.depth];
            uint32_t from = at;
            while (at < s.to && (uint8_t)texts[at].s[s.depth] == byte) at++;
            if (!build_room(b, &queue, n_queue, 1, &room, sizeof *queue)) return NULL;
            writer_edge(&w, byte, byte, n_queue);
            queue[n_queue++] = (text_state){from, at, s.depth + 1};
        }
    }
    return build_ok(b) ? writer_finish(&w) : NULL;
}
