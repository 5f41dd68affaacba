/* Expressions, rules, and the bounds of a compilation. */
#include "engine/grammar/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void build_init(build *b, error *err)
{
    *b = (build){.fuel = FUEL, .err = err};
    arena_init(&b->mem, (size_t)64 << 10, BUILD_BYTES_MAX);
    arena_init(&b->spare, (size_t)64 << 10, BUILD_BYTES_MAX);
    memset(b->json, 0xff, sizeof b->json);
    expr_empty(b); // expression 0, which functions return after a failure
}

void build_destroy(build *b)
{
    arena_destroy(&b->mem);
    arena_destroy(&b->spare);
}

static void swap_arenas(build *b)
{
    arena mem = b->mem;
    b->mem = b->spare;
    b->spare = mem;
}

void build_scratch(build *b)
{
    if (b->scratch++ == 0) swap_arenas(b);
}

void build_keep(build *b)
{
    if (--b->scratch == 0) swap_arenas(b);
}

void build_forget(build *b)
{
    if (b->scratch == 0) arena_reset(&b->spare);
}

void *build_copy(build *b, const void *from, size_t n, size_t size)
{
    void *to = build_alloc(b, n, size);
    if (to && n > 0) memcpy(to, from, n * size);
    return to;
}

bool build_ok(const build *b) { return status_ok(b->failure); }

void build_fail(build *b, status_code code, const char *fmt, ...)
{
    char text[400];
    va_list args;
    if (!build_ok(b)) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    b->failure = error_set(b->err, code, "%s", text);
}

bool build_work(build *b, uint64_t n)
{
    if (!build_ok(b)) return false;
    if ((uint64_t)b->fuel < n) {
        b->fuel = 0; // who goes on without this work does not go on with more
        build_fail(b, STATUS_LIMIT, "too large: compiling it takes too many operations");
        return false;
    }
    b->fuel -= (int64_t)n;
    return true;
}

void *build_alloc(build *b, size_t n, size_t size)
{
    if (!build_ok(b)) return NULL;
    void *p = arena_alloc_array(&b->mem, n, size);
    if (!p && b->mem.starved) build_fail(b, STATUS_NO_MEMORY, "out of memory");
    if (!p) build_fail(b, STATUS_LIMIT, "too large: compiling it takes too much memory");
    return p;
}

bool build_room(build *b, void *array, uint32_t n, uint32_t more, uint32_t *room, size_t size)
{
    void *old;
    if (!build_ok(b)) return false;
    if ((uint64_t)n + more <= *room) return true;
    uint64_t want = ((uint64_t)n + more) * 2;
    if (want < 16) want = 16;
    if (want > UINT32_MAX / 2) {
        build_fail(b, STATUS_LIMIT, "too large");
        return false;
    }
    void *grown = build_alloc(b, want, size);
    if (!grown) return false;
    memcpy(&old, array, sizeof old);
    if (n > 0) memcpy(grown, old, (size_t)n * size);
    memcpy(array, &grown, sizeof grown);
    *room = (uint32_t)want;
    return true;
}

/* ---- expressions ----------------------------------------------------------------------------- */

static expr add_node(build *b, expr_kind kind, uint32_t x, uint32_t y, uint32_t z)
{
    if (!build_work(b, 1)) return 0;
    if (!build_room(b, &b->nodes, b->n_nodes, 1, &b->nodes_room, sizeof *b->nodes)) return 0;
    b->nodes[b->n_nodes] = (expr_node){kind, x, y, z};
    return b->n_nodes++;
}

expr expr_never(build *b) { return add_node(b, EXPR_NEVER, 0, 0, 0); }
expr expr_empty(build *b) { return b->n_nodes > 0 ? 0 : add_node(b, EXPR_EMPTY, 0, 0, 0); }
expr expr_range(build *b, uint8_t lo, uint8_t hi) { return add_node(b, EXPR_RANGE, lo, hi, 0); }

expr expr_text(build *b, const char *s, size_t n)
{
    if (n == 0) return expr_empty(b);
    if (n > UINT32_MAX / 4 || !build_work(b, n)) return 0;
    uint32_t at = b->n_texts;
    if (!build_room(b, &b->texts, at, (uint32_t)n, &b->texts_room, 1)) return 0;
    memcpy(b->texts + at, s, n);
    b->n_texts += (uint32_t)n;
    return add_node(b, EXPR_TEXT, at, (uint32_t)n, 0);
}

expr expr_words(build *b, const char *s) { return expr_text(b, s, strlen(s)); }

static expr add_list(build *b, expr_kind kind, const expr *list, uint32_t n)
{
    if (!build_work(b, n)) return 0;
    uint32_t at = b->n_lists;
    if (!build_room(b, &b->lists, at, n, &b->lists_room, sizeof *b->lists)) return 0;
    memcpy(b->lists + at, list, n * sizeof *list);
    b->n_lists += n;
    return add_node(b, kind, at, n, 0);
}

expr expr_seq(build *b, const expr *list, uint32_t n)
{
    if (n == 0) return expr_empty(b);
    return n == 1 ? list[0] : add_list(b, EXPR_SEQ, list, n);
}

expr expr_alt(build *b, const expr *list, uint32_t n)
{
    if (n == 0) return expr_never(b);
    return n == 1 ? list[0] : add_list(b, EXPR_ALT, list, n);
}

expr expr_then(build *b, expr first, expr second)
{
    return expr_seq(b, (expr[]){first, second}, 2);
}

expr expr_or(build *b, expr one, expr other) { return expr_alt(b, (expr[]){one, other}, 2); }
expr expr_optional(build *b, expr e) { return expr_or(b, e, expr_empty(b)); }

expr expr_repeat(build *b, expr e, uint32_t min, uint32_t max)
{
    if (max == 0) return expr_empty(b);
    return min == 1 && max == 1 ? e : add_node(b, EXPR_REPEAT, e, min, max);
}

expr expr_rule(build *b, uint32_t rule) { return add_node(b, EXPR_RULE, rule, 0, 0); }

expr expr_language(build *b, language *l)
{
    uint32_t at = b->n_languages;
    if (!build_room(b, &b->languages, at, 1, &b->languages_room, sizeof l)) return 0;
    b->languages[b->n_languages++] = l;
    return add_node(b, EXPR_LANGUAGE, at, 0, 0);
}

expr expr_graph(build *b, const expr_arc *arcs, uint32_t n, uint32_t n_nodes)
{
    uint32_t at = b->n_arcs;
    if (!build_room(b, &b->arcs, at, n, &b->arcs_room, sizeof *arcs)) return 0;
    if (n > 0) memcpy(b->arcs + at, arcs, n * sizeof *arcs);
    b->n_arcs += n;
    return add_node(b, EXPR_GRAPH, at, n, n_nodes);
}

void expr_list_add(build *b, expr_list *l, expr e)
{
    if (build_room(b, &l->items, l->n, 1, &l->room, sizeof e)) l->items[l->n++] = e;
}

void arc_list_add(build *b, arc_list *l, uint32_t from, uint32_t to, expr label)
{
    if (build_room(b, &l->items, l->n, 1, &l->room, sizeof *l->items))
        l->items[l->n++] = (expr_arc){from, to, label};
}

/* ---- rules ----------------------------------------------------------------------------------- */

uint32_t rule_create(build *b, const char *name)
{
    if (!build_room(b, &b->rules, b->n_rules, 1, &b->rules_room, sizeof *b->rules)) return 0;
    b->rules[b->n_rules] = (build_rule){.name = name};
    return b->n_rules++;
}

void rule_define(build *b, uint32_t rule, expr body)
{
    if (!build_ok(b)) return;
    b->rules[rule].body = body;
    b->rules[rule].defined = true;
}

/* A rule that repeats `body` between min and max times and counts while it runs. */
static uint32_t rule_counted(build *b, expr body, uint32_t min, uint32_t max)
{
    uint32_t unit = rule_create(b, NULL), rule = rule_create(b, NULL);
    rule_define(b, unit, body);
    rule_define(b, rule, expr_rule(b, unit));
    if (!build_ok(b)) return 0;
    b->rules[rule].counted = true;
    b->rules[rule].min = min;
    b->rules[rule].max = max;
    return rule;
}

expr expr_count(build *b, expr e, uint32_t min, uint32_t max)
{
    enum { WRITTEN_OUT = 4 };
    if (max == REPEAT_MANY ? min <= WRITTEN_OUT : max <= WRITTEN_OUT)
        return expr_repeat(b, e, min, max);
    return expr_rule(b, rule_counted(b, e, min, max));
}

expr expr_texts(build *b, text_span *texts, uint32_t n)
{
    enum { FEW = 16 }; // become part of the rule around them
    expr_list all = {0};
    if (n > FEW) {
        uint32_t rule = rule_create(b, NULL);
        language *l = language_of_texts(b, texts, n);
        if (l) rule_define(b, rule, expr_language(b, l));
        return expr_rule(b, rule);
    }
    for (uint32_t i = 0; i < n; i++) expr_list_add(b, &all, expr_text(b, texts[i].s, texts[i].n));
    return build_ok(b) ? expr_alt(b, all.items, all.n) : 0;
}
