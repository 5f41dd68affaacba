/* "oneOf": each branch without what other branches allow.
 *
 * Branches that no value fits together are left as they are. Of others, what the rest allows is
 * turned around and joined, as far as it takes few alternatives; or a branch asks for a member
 * whose values tell it from the rest. An answer never fits two branches: where nothing helps, the
 * schema is refused. */
#include "engine/grammar/schema.h"

#include <string.h>

enum {
    EXACT_ALTERNATIVES = 12, // ways in which other branches fail at once, of all that there are
    SOME_ALTERNATIVES = 48,  // the same where some are left out
    BRANCH_MERGES = 400,
    LISTED_MOST = 500, // texts and numbers of a branch that are tried one by one
    NAMES_MOST = 32,
};

typedef struct one_of {
    schema_reader *r;
    const json_t *list, *rest; // the branches, and the words beside them
    bool alone;                // nothing beside them restricts
    const json_t **loose;      // [n]: flat schemas that allow what a branch does, or more
    const json_t **typed;      // [n]: the same with types that words belong to
    const json_t *names;       // of members that the branches speak of
} one_of;

/* An attempt may fail without a failure of the build. */
typedef struct attempt {
    error own, *err;
    uint32_t merged, most;
} attempt;

static void attempt_begin(schema_reader *r, attempt *a)
{
    *a = (attempt){.err = r->b->err, .merged = r->n_merged, .most = r->merged_max};
    r->b->err = &a->own;
    if (a->merged + BRANCH_MERGES < a->most) r->merged_max = a->merged + BRANCH_MERGES;
}

/* False: it failed. The build fails with it where memory or operations are out. */
static bool attempt_end(schema_reader *r, attempt *a)
{
    bool failed = !build_ok(r->b);
    r->b->err = a->err;
    r->merged_max = a->most;
    if (!failed) return true;
    if (r->b->failure.code == STATUS_NO_MEMORY || r->b->fuel <= 0) {
        if (a->err) *a->err = a->own;
        return false;
    }
    r->b->failure = STATUS_IS_OK;
    r->n_merged = a->merged; // what was joined is not used
    return false;
}

/* ---- branches that no value fits together ---------------------------------------------------- */

/* Whether a lists values for a property, and b allows none of them there. */
static bool lists_other(schema_reader *r, const json_t *a, const json_t *b, const char *name)
{
    const json_t *own = json_object_get(json_object_get(a, "properties"), name), *one;
    const json_t *other = json_object_get(json_object_get(b, "properties"), name);
    const json_t *values = own && other ? schema_values(r, own) : NULL;
    size_t i;
    json_array_foreach(values, i, one)
    {
        if (schema_fits(r, other, one) || !build_ok(r->b)) return false;
    }
    return values;
}

/* Whether the values of a schema are of one type alone. */
static bool are_all(const json_t *s, const char *type)
{
    const json_t *own = json_object_get(s, "type");
    if (json_is_array(own) && json_array_size(own) == 1) own = json_array_get(own, 0);
    return json_is_string(own) && strcmp(json_string_value(own), type) == 0 &&
           !json_is_true(json_object_get(s, "nullable"));
}

/* Whether no string has the patterns and formats of both. */
static bool texts_differ(schema_reader *r, const json_t *a, const json_t *b)
{
    const language *x = schema_patterns(r, a), *y = x ? schema_patterns(r, b) : NULL;
    const language *both = y ? language_and(r->b, x, y) : NULL;
    return both && language_empty(both);
}

/* Whether a requires a property that b has not, or has with other values. */
static bool requires_other(schema_reader *r, const json_t *a, const json_t *b)
{
    const json_t *name, *properties = json_object_get(b, "properties");
    bool closed = json_is_false(json_object_get(b, "additionalProperties")) &&
                  !json_object_get(b, "patternProperties");
    size_t i;
    json_array_foreach(json_object_get(a, "required"), i, name)
    {
        const char *key = json_string_value(name);
        if (!key || !build_work(r->b, 1)) continue;
        if (closed && !json_object_get(properties, key)) return true;
        if (json_is_false(json_object_get(properties, key))) return true;
        if (lists_other(r, a, b, key)) return true;
    }
    return false;
}

/* Whether it is plain that no value fits both flat schemas. */
static bool are_apart(schema_reader *r, const json_t *a, const json_t *b)
{
    if (json_is_false(a) || json_is_false(b) || schema_types_differ(r, a, b)) return true;
    if (are_all(a, "string") || are_all(b, "string")) return texts_differ(r, a, b);
    return (are_all(a, "object") || are_all(b, "object")) &&
           (requires_other(r, a, b) || requires_other(r, b, a));
}

/* Whether no value fits branches i and k. `typed` becomes true where that needs types which the
 * words of branch i belong to. */
static bool branches_apart(one_of *o, size_t i, size_t k, bool *typed)
{
    if (are_apart(o->r, o->loose[i], o->loose[k])) return true;
    if (o->typed[i] == o->loose[i] || !are_apart(o->r, o->typed[i], o->loose[k])) return false;
    *typed = true;
    return true;
}

static const json_t *loose_flat(schema_reader *r, const json_t *s)
{
    bool before = r->loose;
    r->loose = true;
    const json_t *flat = schema_flat(r, s);
    r->loose = before;
    return flat;
}

/* A flat schema that allows what branch i does beside the other words, or more. */
static const json_t *loose_branch(one_of *o, size_t i)
{
    schema_reader *r = o->r;
    const json_t *one = json_array_get(o->list, i);
    attempt a;
    attempt_begin(r, &a);
    r->loose = true;
    if (!o->alone) one = schema_join(r, o->rest, one);
    one = build_ok(r->b) ? schema_flat(r, one) : NULL;
    r->loose = false;
    return attempt_end(r, &a) ? one : schema_keep(r, json_object());
}

static void add_names(one_of *o, json_t *names, const json_t *s)
{
    json_t *value;
    const char *key;
    json_object_foreach(json_object_get(s, "properties"), key, value)
    {
        bool known = json_array_size(names) >= NAMES_MOST || !build_work(o->r->b, NAMES_MOST);
        for (size_t i = 0; !known && i < json_array_size(names); i++)
            known = strcmp(json_string_value(json_array_get(names, i)), key) == 0;
        if (!known) json_array_append_new(names, json_string(key));
    }
}

static bool read_branches(one_of *o)
{
    build *b = o->r->b;
    size_t n = json_array_size(o->list);
    json_t *names = json_array();
    o->loose = build_alloc(b, n, sizeof *o->loose);
    o->typed = build_alloc(b, n, sizeof *o->typed);
    o->names = schema_keep(o->r, names);
    for (size_t i = 0; i < n && build_ok(b); i++) {
        o->loose[i] = loose_branch(o, i);
        o->typed[i] = build_ok(b) ? schema_typed(o->r, o->loose[i]) : NULL;
        if (build_ok(b)) add_names(o, names, o->loose[i]);
    }
    return build_ok(b);
}

/* ---- branches without others ----------------------------------------------------------------- */

/* A flat branch without what the others in `met` allow; NULL where that takes too many
 * alternatives. `exact`: every way in which they fail has to be among them. */
static const json_t *without_others(one_of *o, const json_t *base, const bool *met, bool exact)
{
    schema_reader *r = o->r;
    const json_t *out = schema_flat(r, base);
    size_t size = 1, most = exact ? EXACT_ALTERNATIVES : SOME_ALTERNATIVES;
    if (build_ok(r->b)) out = schema_closed(r, out);
    for (size_t k = 0; k < json_array_size(o->list) && build_work(r->b, 1); k++) {
        if (!met[k]) continue;
        bool all = true;
        r->n_turned = 0;
        const json_t *fails = schema_turned(r, json_array_get(o->list, k), o->names, &all);
        const json_t *ways = json_object_get(fails, "anyOf");
        size *= ways ? json_array_size(ways) : 1;
        if (!fails || size > most || (exact && !all)) return NULL;
        out = schema_merge(r, out, fails);
    }
    return out;
}

/* A schema of a property such that no value of it fits both schemas; NULL: nothing helps.
 * `within`: properties of the property may tell. */
static const json_t *telling_value(schema_reader *r, const json_t *a, const json_t *b,
                                   const char *name, bool within)
{
    const json_t *x = json_object_get(json_object_get(a, "properties"), name);
    const json_t *y = json_object_get(json_object_get(b, "properties"), name);
    if (lists_other(r, a, b, name) || lists_other(r, b, a, name))
        return schema_keep(r, json_true());
    if (!within || !x || !y) return NULL;
    x = loose_flat(r, x);
    y = build_ok(r->b) ? loose_flat(r, y) : NULL;
    if (!build_ok(r->b)) return NULL;
    if (are_apart(r, x, y)) return schema_keep(r, json_true());
    const json_t *typed = schema_typed(r, x);
    if (typed == x || !are_apart(r, typed, y)) return NULL;
    return schema_keep(r, json_pack("{s:O}", "type", json_object_get(typed, "type")));
}

/* Objects with a property whose values tell branch i from those in `met`; NULL: it has none. */
static const json_t *told_by_property(one_of *o, size_t i, const bool *met, bool within)
{
    schema_reader *r = o->r;
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(o->loose[i], "properties"), name, value)
    {
        const json_t *asked = schema_keep(r, json_true());
        for (size_t k = 0; k < json_array_size(o->list) && asked && build_work(r->b, 1); k++) {
            const json_t *one =
                met[k] ? telling_value(r, o->loose[i], o->loose[k], name, within) : asked;
            asked = !json_is_true(asked) && json_is_true(one) ? asked : one;
        }
        if (!build_ok(r->b)) return NULL;
        if (asked)
            return schema_keep(r, json_pack("{s:s, s:[s], s:{s:O}}", "type", "object", "required",
                                            name, "properties", name, asked));
    }
    return NULL;
}

/* The values of branch i that it allows and no other branch does; NULL: it lists none, or so many
 * texts and numbers that they are told apart as languages. */
static const json_t *values_alone(schema_reader *r, const json_t *list, size_t i)
{
    const json_t *one = json_array_get(list, i), *values = schema_values(r, one), *v;
    bool nested = false;
    size_t at;
    json_array_foreach(values, at, v) nested |= json_is_array(v) || json_is_object(v);
    if (!values || (!nested && json_array_size(values) > LISTED_MOST)) return NULL;
    json_t *out = json_array();
    const json_t *kept = schema_keep(r, json_pack("{s:o}", "enum", out));
    json_array_foreach(values, at, v)
    {
        bool alone = schema_fits_listed(r, one, values, v);
        for (size_t k = 0; alone && k < json_array_size(list); k++)
            alone = k == i || !schema_fits(r, json_array_get(list, k), v);
        if (!build_work(r->b, 1)) return NULL;
        if (alone) json_array_append(out, (json_t *)(uintptr_t)v);
    }
    return kept;
}

/* The branch without what others in `met` allow, by the first way that works. */
static const json_t *told_apart(one_of *o, const json_t *base, size_t i, const bool *met)
{
    schema_reader *r = o->r;
    const json_t *out = NULL;
    for (unsigned way = 0; way < 4 && !out && build_ok(r->b); way++) {
        attempt a;
        attempt_begin(r, &a);
        if (way == 0 || way == 3) {
            out = without_others(o, base, met, way == 0);
        } else {
            const json_t *told = told_by_property(o, i, met, way == 2);
            if (told && build_ok(r->b)) out = schema_join(r, base, told);
        }
        if (!attempt_end(r, &a)) out = NULL;
    }
    if (!out)
        schema_fail(r, STATUS_UNSUPPORTED, "oneOf",
                    "branch %zu cannot be told apart from the others", i);
    return out;
}

/* Branch i with the words beside it, as it is if no other has values of it. */
static const json_t *branch_alone(one_of *o, size_t i, bool *met)
{
    schema_reader *r = o->r;
    const json_t *one = json_array_get(o->list, i), *values;
    bool typed = false, any = false;
    attempt a;
    attempt_begin(r, &a);
    for (size_t k = 0; k < json_array_size(o->list) && build_work(r->b, 1); k++)
        any |= met[k] = k != i && !branches_apart(o, i, k, &typed);
    values = any && build_ok(r->b) ? values_alone(r, o->list, i) : NULL;
    if (!attempt_end(r, &a)) {
        if (!build_work(r->b, json_array_size(o->list))) return NULL;
        any = typed = true; // what cannot be compared is taken to be met
        for (size_t k = 0; k < json_array_size(o->list); k++) met[k] = k != i;
    }
    if (values) one = values;
    if (!o->alone) one = schema_join(r, o->rest, one);
    const json_t *type = typed ? json_object_get(o->typed[i], "type") : NULL;
    if (type && build_ok(r->b))
        one = schema_join(r, one, schema_keep(r, json_pack("{s:O}", "type", type)));
    return build_ok(r->b) && any && !values ? told_apart(o, one, i, met) : one;
}

const json_t *schema_one_of(schema_reader *r, const json_t *schema)
{
    one_of o = {.r = r, .list = json_object_get(schema, "oneOf")};
    size_t n = json_array_size(o.list);
    json_t *out = json_array();
    o.rest = schema_without(r, schema, "oneOf");
    if (!schema_keep(r, out)) return NULL;
    bool *met = build_alloc(r->b, n, sizeof *met);
    o.alone = build_ok(r->b) && schema_free(o.rest);
    if (!build_ok(r->b) || !read_branches(&o)) return NULL;
    for (size_t i = 0; i < n && build_ok(r->b); i++) {
        const json_t *one = branch_alone(&o, i, met);
        if (build_ok(r->b)) json_array_append(out, (json_t *)(uintptr_t)one);
    }
    return out;
}
