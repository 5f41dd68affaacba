/* Sources to grammars: reads with bounds, compiles, counts references. */
#include "engine/grammar/grammar.h"

#include "engine/grammar/internal.h"

#include <stdlib.h>

static uint32_t read_source(build *b, const grammar_source *s, const json_t *schema)
{
    switch (s->kind) {
    case GRAMMAR_JSON_SCHEMA: return front_schema(b, schema);
    case GRAMMAR_JSON_OBJECT: return front_json_object(b);
    case GRAMMAR_REGEX: return front_regex(b, s->text, s->n);
    case GRAMMAR_CHOICE: return front_choice(b, s->text, s->n);
    case GRAMMAR_GBNF: return front_gbnf(b, s->text, s->n);
    case GRAMMAR_TAGGED: return front_tagged(b, s->text, s->n);
    }
    return 0;
}

static status compile(const grammar_source *s, const json_t *schema, grammar_vocab *v,
                      grammar **out, error *err)
{
    build b;
    build_init(&b, err);
    b.compact = s->compact;
    uint32_t root = read_source(&b, s, schema);
    status result = build_ok(&b) ? link_grammar(&b, root, out) : b.failure;
    if (*out) (*out)->vocab = v;
    build_destroy(&b);
    return result;
}

status grammar_create(const grammar_source *source, grammar_vocab *v, grammar **out, error *err)
{
    json_t *schema = NULL;
    *out = NULL;
    if (source->n > GRAMMAR_SOURCE_MAX)
        return error_set(err, STATUS_LIMIT, "more than %zu bytes", GRAMMAR_SOURCE_MAX);
    if (source->kind == GRAMMAR_JSON_SCHEMA)
        RETURN_IF_ERROR(json_read_text("schema", source->text, source->n, &schema, err));
    status result = compile(source, schema, v, out, err);
    json_decref(schema);
    return result;
}

grammar *grammar_hold(grammar *g)
{
    atomic_fetch_add_explicit(&g->references, 1, memory_order_relaxed);
    return g;
}

void grammar_release(grammar *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->references, 1, memory_order_acq_rel) != 1) return;
    for (uint32_t s = 0; g->parts && s < g->n_states; s++) {
        mask_part *part = atomic_load_explicit(&g->parts[s], memory_order_relaxed);
        if (part && !part->shared) mask_part_destroy(part);
    }
    free(g->parts);
    free(g->states);
    free(g->edges);
    free(g->calls);
    free(g->rules);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

size_t grammar_bytes(grammar *g)
{
    pthread_mutex_lock(&g->lock);
    size_t n = g->bytes + g->parts_bytes;
    pthread_mutex_unlock(&g->lock);
    return n;
}

uint32_t front_choice(build *b, const char *text, size_t n)
{
    json_t *list = NULL;
    error err;
    text_span *choices = NULL;
    uint32_t n_choices = 0, room = 0;
    uint32_t rule = rule_create(b, "choice");
    status s = json_read_text("choice", text, n, &list, &err);
    if (!status_ok(s)) build_fail(b, s.code, "%s", err.text);
    else if (!json_is_array(list) || json_array_size(list) == 0)
        build_fail(b, STATUS_INVALID, "choice: must be an array of strings, not empty");
    for (size_t i = 0; build_ok(b) && i < json_array_size(list); i++) {
        const json_t *choice = json_array_get(list, i);
        if (!json_is_string(choice) || json_string_length(choice) == 0)
            build_fail(b, STATUS_INVALID, "choice: element %zu must be a string, not empty", i);
        else if (build_room(b, &choices, n_choices, 1, &room, sizeof *choices))
            choices[n_choices++] =
                (text_span){json_string_value(choice), json_string_length(choice)};
    }
    if (build_ok(b)) rule_define(b, rule, expr_texts(b, choices, n_choices));
    json_decref(list);
    return rule;
}
