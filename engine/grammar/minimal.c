/* The fewest states for an automaton (Moore's partition refinement). A call of a rule counts as a
 * letter. */
#include "engine/grammar/internal.h"

#include <string.h>

/* A state's class and where its letters lead, as a hash. */
static uint64_t signature(const rule_fsm *f, uint32_t s, const uint32_t *classes)
{
    uint64_t h = hash_mix64(classes[s] + 1);
    for (uint32_t e = f->first_edge[s]; e < f->first_edge[s + 1]; e++) {
        uint32_t c = classes[f->edges[e].to], lo = f->edges[e].lo, hi = f->edges[e].hi;
        while (e + 1 < f->first_edge[s + 1] && f->edges[e + 1].lo == hi + 1 &&
               classes[f->edges[e + 1].to] == c)
            hi = f->edges[++e].hi;
        h = hash_mix64(h ^ ((uint64_t)c << 16 | lo << 8 | hi));
    }
    for (uint32_t c = f->first_call[s]; c < f->first_call[s + 1]; c++)
        h = hash_mix64(~h ^ ((uint64_t)classes[f->calls[c].to] << 32 | f->calls[c].rule));
    return h;
}

typedef struct renumber {
    const uint32_t *classes;
    uint32_t *number, *queue, met; // number [classes]; queue: a state of each class that was met
} renumber;

static uint32_t number_of(renumber *r, uint32_t state)
{
    uint32_t c = r->classes[state];
    if (r->number[c] == NONE) {
        r->number[c] = r->met;
        r->queue[r->met++] = state;
    }
    return r->number[c];
}

/* Numbers the classes in the order in which a walk from the start meets them, and writes one state
 * for each. */
static void write_classes(build *b, rule_fsm *f, const uint32_t *classes, uint32_t n)
{
    language_writer w = {.b = b};
    renumber r = {classes, build_alloc(b, n, sizeof(uint32_t)), build_alloc(b, n, sizeof(uint32_t)),
                  0};
    uint32_t *first_call = build_alloc(b, (size_t)n + 1, sizeof *first_call), n_calls = 0;
    call_edge *calls = build_alloc(b, f->n_calls, sizeof *calls);
    if (!build_ok(b)) return;
    memset(r.number, 0xff, n * sizeof *r.number);
    number_of(&r, 0);
    for (uint32_t i = 0; i < r.met && build_ok(b); i++) {
        uint32_t s = r.queue[i];
        writer_state(&w, f->ends[s]);
        for (uint32_t e = f->first_edge[s]; e < f->first_edge[s + 1]; e++)
            writer_edge(&w, f->edges[e].lo, f->edges[e].hi, number_of(&r, f->edges[e].to));
        for (uint32_t c = f->first_call[s]; c < f->first_call[s + 1]; c++)
            calls[n_calls++] = (call_edge){f->calls[c].rule, number_of(&r, f->calls[c].to)};
        first_call[i + 1] = n_calls;
    }
    language *l = writer_finish(&w);
    if (!l || !build_ok(b)) return;
    *f = (rule_fsm){l->n_states, l->n_edges, n_calls, l->first, first_call,
                    l->edges,    calls,      l->ends, true};
}

void fsm_minimal(build *b, rule_fsm *f)
{
    enum { SMALL = 2048 };
    if (!build_ok(b) || !f->deterministic || f->n_states > SMALL) return;
    uint32_t *classes = build_alloc(b, f->n_states, sizeof *classes);
    uint32_t *next = build_alloc(b, f->n_states, sizeof *next), n = 0;
    if (!classes || !next) return;
    for (uint32_t s = 0; s < f->n_states; s++) classes[s] = f->ends[s];
    for (uint32_t before = 1; n != before;) {
        key_map seen = {0};
        before = n;
        n = 0;
        if (!build_work(b, (uint64_t)f->n_states + f->n_edges + f->n_calls)) return;
        for (uint32_t s = 0; s < f->n_states; s++) {
            next[s] = key_map_put(b, &seen, signature(f, s, classes), n);
            if (next[s] == n) n++;
        }
        if (!build_ok(b)) return;
        memcpy(classes, next, f->n_states * sizeof *classes);
    }
    write_classes(b, f, classes, n);
}
