/* Schemas turned around: "not", "if", dependencies, and the branches of "oneOf" that have to fail.
 *
 * They become ordinary words, and words of schema.h that JSON Schema has not (SCHEMA_NOT_...). What
 * cannot be turned around is left out of the alternatives, so that the result allows at most what
 * the source refuses: an answer always satisfies its schema. */
#include "engine/grammar/schema.h"

#include <string.h>

enum {
    DEPTH_MAX = 60,
    TURNED_MAX = 500,      // schemas that one word may turn around
    ALTERNATIVES_MAX = 48, // ways in which schemas fail at once
    BRANCHES_MAX = 24,     // of a "oneOf" whose branches are told apart
    BRANCH_ALTERNATIVES = 12,
    BRANCH_MERGES = 100,
    ALTERNATIVE_WORK = 200,
    LISTED_MOST = 500, // texts and numbers of a branch that are tried one by one
};

typedef struct turning {
    schema_reader *r;
    json_t *out; // array: the alternatives so far
    bool all;    // false: some word's alternative is left out
} turning;

static json_t *checked(schema_reader *r, json_t *value)
{
    if (!value) build_fail(r->b, STATUS_NO_MEMORY, "out of memory");
    return value;
}

/* Adds an alternative, whose reference is taken. It costs so much work because of its memory. */
static void add(turning *t, json_t *one)
{
    if (!build_work(t->r->b, ALTERNATIVE_WORK)) json_decref(one);
    else if (!one || json_array_append_new(t->out, one) != 0)
        build_fail(t->r->b, STATUS_NO_MEMORY, "out of memory");
}

static json_t *shared(const json_t *value) { return json_incref((json_t *)(uintptr_t)value); }

static const json_t *turned_around(schema_reader *r, const json_t *schema, bool *all);

/* ---- words ----------------------------------------------------------------------------------- */

static void turn_type(turning *t, const json_t *type)
{
    static const char *const names[] = {"string", "number", "object", "array", "boolean", "null"};
    if (!build_work(t->r->b, 8 * json_array_size(type))) return;
    json_t *others = checked(t->r, json_array());
    bool whole = false, number = false;
    for (size_t i = 0; others && i < sizeof names / sizeof *names; i++) {
        bool named = false;
        for (size_t k = 0; k < (json_is_array(type) ? json_array_size(type) : 1); k++) {
            const char *own =
                json_string_value(json_is_array(type) ? json_array_get(type, k) : type);
            named |= own && (strcmp(own, names[i]) == 0 ||
                             (strcmp(own, "integer") == 0 && strcmp(names[i], "number") == 0));
            whole |= own && strcmp(own, "integer") == 0;
            number |= own && strcmp(own, "number") == 0;
        }
        if (!named) json_array_append_new(others, json_string(names[i]));
    }
    if (json_array_size(others) > 0) add(t, json_pack("{s:o}", "type", others));
    else json_decref(others);
    if (whole && !number) add(t, json_pack("{s:s, s:b}", "type", "number", SCHEMA_NOT_WHOLE, 1));
}

/* Lists and objects among the values cannot be told from others: their types are left out. */
static void turn_values(turning *t, json_t *values)
{
    bool objects = false, arrays = false;
    size_t i;
    const json_t *v;
    (void)build_work(t->r->b, json_array_size(values));
    json_array_foreach(values, i, v)
    {
        objects |= json_is_object(v);
        arrays |= json_is_array(v);
    }
    json_t *types = json_pack("[s, s, s, s]", "string", "number", "boolean", "null");
    if (types && !objects) json_array_append_new(types, json_string("object"));
    if (types && !arrays) json_array_append_new(types, json_string("array"));
    t->all &= !objects && !arrays;
    add(t, json_pack("{s:o, s:o}", "type", types, SCHEMA_NOT_VALUES, values));
}

static void turn_required(turning *t, const json_t *names)
{
    size_t i;
    const json_t *name;
    json_array_foreach(names, i, name)
    {
        if (!build_ok(t->r->b)) return;
        if (json_is_string(name))
            add(t, json_pack("{s:s, s:{s:b}}", "type", "object", "properties",
                             json_string_value(name), 0));
    }
}

static void turn_properties(turning *t, const json_t *properties)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)properties, key, value)
    {
        const json_t *other = turned_around(t->r, value, &t->all);
        if (!build_ok(t->r->b)) return;
        if (!other || json_is_false(other)) continue;
        add(t, json_pack("{s:s, s:[s], s:{s:o}}", "type", "object", "required", key, "properties",
                         key, shared(other)));
    }
}

static void turn_items(turning *t, const json_t *items)
{
    const json_t *other = json_is_array(items) ? NULL : turned_around(t->r, items, &t->all);
    if (!other || !json_is_false(other)) t->all = false; // one wrong element would be enough
    if (other && !json_is_false(other) && build_ok(t->r->b))
        add(t,
            json_pack("{s:s, s:i, s:o}", "type", "array", "minItems", 1, "items", shared(other)));
}

/* Each way in which a list of schemas fails: all of them at once. */
static void turn_alternatives(turning *t, const json_t *list)
{
    const json_t *none = NULL, *one;
    size_t i, size = 1;
    json_array_foreach(list, i, one)
    {
        const json_t *other = turned_around(t->r, one, &t->all);
        if (!build_ok(t->r->b)) return;
        const json_t *ways = json_object_get(other, "anyOf");
        size *= ways ? json_array_size(ways) : 1;
        if (!other || size > ALTERNATIVES_MAX) {
            t->all = false;
            return;
        }
        none = none ? schema_merge(t->r, none, other) : other;
        if (!build_ok(t->r->b)) return;
    }
    if (none && !json_is_false(none)) add(t, shared(none));
}

static void turn_all(turning *t, const json_t *list)
{
    size_t i;
    const json_t *one;
    json_array_foreach(list, i, one)
    {
        const json_t *other = turned_around(t->r, one, &t->all);
        if (build_ok(t->r->b) && other && !json_is_false(other)) add(t, shared(other));
    }
}

/* A bound of the other direction. */
static bool turn_bound(turning *t, const json_t *s, const char *key, const json_t *v)
{
    static const struct {
        const char *key, *other, *type;
        int step; // 0: a bound of numbers
    } bounds[] = {{"minLength", "maxLength", "string", -1},
                  {"maxLength", "minLength", "string", 1},
                  {"minItems", "maxItems", "array", -1},
                  {"maxItems", "minItems", "array", 1},
                  {"minProperties", "maxProperties", "object", -1},
                  {"maxProperties", "minProperties", "object", 1},
                  {"minimum", "exclusiveMaximum", "number", 0},
                  {"maximum", "exclusiveMinimum", "number", 0},
                  {"exclusiveMinimum", "maximum", "number", 0},
                  {"exclusiveMaximum", "minimum", "number", 0}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        if (strcmp(key, bounds[i].key) != 0) continue;
        double x = json_number_value(v);
        bool lowers = bounds[i].step < 0, open = json_is_boolean(v);
        if (open) return true; // draft 4: said of the bound beside it
        if (!json_is_number(v) || (lowers && x < 1)) return true;
        const char *beside = strcmp(key, "minimum") == 0   ? "exclusiveMinimum"
                             : strcmp(key, "maximum") == 0 ? "exclusiveMaximum"
                                                           : "";
        if (bounds[i].step && !(x >= 0 && x < REPEAT_MANY)) { // no length that is counted
            t->all = false;
            return true;
        }
        const char *other = bounds[i].other;
        if (json_is_true(json_object_get(s, beside))) other = key[1] == 'i' ? "maximum" : "minimum";
        json_t *limit = bounds[i].step ? json_integer((json_int_t)x + bounds[i].step) : shared(v);
        add(t, json_pack("{s:s, s:o}", "type", bounds[i].type, other, limit));
        return true;
    }
    return false;
}

static void turn_word(turning *t, const json_t *s, const char *key, const json_t *v)
{
    if (!schema_restricts(key) || turn_bound(t, s, key, v)) return;
    if (strcmp(key, "type") == 0) turn_type(t, v);
    else if (strcmp(key, "enum") == 0 && json_is_array(v)) turn_values(t, shared(v));
    else if (strcmp(key, "const") == 0) turn_values(t, json_pack("[O]", v));
    else if (strcmp(key, "required") == 0) turn_required(t, v);
    else if (strcmp(key, "properties") == 0) turn_properties(t, v);
    else if (strcmp(key, "items") == 0) turn_items(t, v);
    else if (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0) turn_alternatives(t, v);
    else if (strcmp(key, "allOf") == 0) turn_all(t, v);
    else if (strcmp(key, "not") == 0) add(t, shared(v));
    else if (strcmp(key, "pattern") == 0 && json_is_string(v))
        add(t, json_pack("{s:s, s:[O]}", "type", "string", SCHEMA_NOT_PATTERNS, v));
    else if (strcmp(key, "additionalProperties") == 0 && json_is_true(v)) return;
    else if (strcmp(key, "$ref") == 0 && json_is_string(v)) {
        const json_t *target = schema_resolve(t->r, json_string_value(v));
        const json_t *other = target ? turned_around(t->r, target, &t->all) : NULL;
        if (build_ok(t->r->b) && other && !json_is_false(other)) add(t, shared(other));
    } else t->all = false;
}

/* Returns a schema of the values that this one refuses; NULL where none can be written. */
static const json_t *turned_around(schema_reader *r, const json_t *schema, bool *all)
{
    const char *key;
    json_t *value;
    if (!build_work(r->b, 1)) return NULL;
    if (json_is_boolean(schema)) return schema_keep(r, json_boolean(json_is_false(schema)));
    if (!json_is_object(schema) || r->depth > DEPTH_MAX || ++r->n_turned > TURNED_MAX) {
        *all = false;
        return NULL;
    }
    turning t = {.r = r, .out = checked(r, json_array()), .all = true};
    r->depth++;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) if (build_ok(r->b))
        turn_word(&t, schema, key, value);
    r->depth--;
    const json_t *out = NULL;
    size_t n = json_array_size(t.out);
    if (!build_ok(r->b)) json_decref(t.out);
    else if (n == 0) {
        json_decref(t.out);
        if (t.all) out = schema_keep(r, json_false());
    } else if (n == 1) {
        out = schema_keep(r, shared(json_array_get(t.out, 0)));
        json_decref(t.out);
    } else {
        out = schema_keep(r, json_pack("{s:o}", "anyOf", t.out));
    }
    *all &= t.all;
    return out;
}

/* ---- words that become others ---------------------------------------------------------------- */

static void fail_word(schema_reader *r, const char *key)
{
    if (build_ok(r->b)) schema_unsupported(r, key);
}

static const json_t *opened_not(schema_reader *r, const json_t *s)
{
    bool all = true;
    r->n_turned = 0;
    const json_t *other = turned_around(r, json_object_get(s, "not"), &all);
    if (!other) fail_word(r, "not");
    return other;
}

static const json_t *opened_if(schema_reader *r, const json_t *s)
{
    bool all = true;
    const json_t *test = json_object_get(s, "if"), *then = json_object_get(s, "then");
    const json_t *otherwise = json_object_get(s, "else");
    r->n_turned = 0;
    const json_t *other = turned_around(r, test, &all);
    if (!other) fail_word(r, "if");
    if (!build_ok(r->b)) return NULL;
    json_t *yes =
        then && !json_is_null(then) ? json_pack("{s:[O, O]}", "allOf", test, then) : shared(test);
    json_t *no = otherwise && !json_is_null(otherwise)
                     ? json_pack("{s:[O, O]}", "allOf", other, otherwise)
                     : shared(other);
    return schema_keep(r, json_pack("{s:[o, o]}", "anyOf", yes, no));
}

/* A name's absence, or what its presence asks for. */
static const json_t *opened_dependencies(schema_reader *r, const json_t *s, const char *word)
{
    const json_t *list = json_object_get(s, word);
    json_t *all = checked(r, json_array()), *value;
    const char *key;
    if (!json_is_object(list)) schema_fail(r, STATUS_INVALID, word, "must be an object");
    json_object_foreach((json_t *)(uintptr_t)list, key, value)
    {
        json_t *asked = json_is_array(value)    ? json_pack("{s:O}", "required", value)
                        : json_is_string(value) ? json_pack("{s:[O]}", "required", value)
                                                : shared(value);
        if (json_is_array(value) && json_array_size(value) == 0) json_object_clear(asked);
        json_array_append_new(
            all, json_pack("{s:[{s:{s:b}}, o]}", "anyOf", "properties", key, 0, asked));
    }
    return schema_keep(r, json_pack("{s:o}", "allOf", all));
}

const json_t *schema_opened(schema_reader *r, const json_t *schema)
{
    static const char *const words[] = {"not", "if", "dependencies", "dependentRequired",
                                        "dependentSchemas"};
    const json_t *s = schema;
    if (!json_is_object(schema)) return schema;
    for (size_t i = 0; i < sizeof words / sizeof *words && build_ok(r->b); i++) {
        if (!json_object_get(schema, words[i])) continue;
        const json_t *more = i == 0   ? opened_not(r, schema)
                             : i == 1 ? opened_if(r, schema)
                                      : opened_dependencies(r, schema, words[i]);
        if (!build_ok(r->b)) return NULL;
        s = schema_without(r, s, words[i]);
        if (i == 1 && s) s = schema_without(r, schema_without(r, s, "then"), "else");
        if (build_ok(r->b)) s = schema_merge(r, s, more);
    }
    return build_ok(r->b) ? s : NULL;
}

/* ---- "oneOf" --------------------------------------------------------------------------------- */

/* Whether both have types, and none in common. */
static bool types_differ(const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "type"), *y = json_object_get(b, "type");
    if (!json_is_string(x) || !json_is_string(y) || json_equal(x, y)) return false;
    const char *p = json_string_value(x), *q = json_string_value(y);
    return !((strcmp(p, "number") == 0 && strcmp(q, "integer") == 0) ||
             (strcmp(q, "number") == 0 && strcmp(p, "integer") == 0));
}

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

/* Whether no value but an object fits both. A schema without "type" that names properties is one of
 * objects alone where its own values are written, and of any others where they are checked. */
static bool both_objects(const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "type"), *y = json_object_get(b, "type");
    bool object = (json_is_string(x) && strcmp(json_string_value(x), "object") == 0) ||
                  (json_is_string(y) && strcmp(json_string_value(y), "object") == 0);
    return object || (!x && !y);
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
        if (lists_other(r, a, b, key)) return true;
    }
    return false;
}

/* Whether it is plain that no value fits both. */
static bool apart(schema_reader *r, const json_t *a, const json_t *b)
{
    a = schema_flat(r, a);
    b = build_ok(r->b) ? schema_flat(r, b) : NULL;
    return build_ok(r->b) &&
           (types_differ(a, b) ||
            (both_objects(a, b) && (requires_other(r, a, b) || requires_other(r, b, a))));
}

/* The branch without what another allows; NULL where that cannot be written in few words. */
static const json_t *without_branch(schema_reader *r, const json_t *one, const json_t *other,
                                    size_t *size)
{
    bool all = true;
    r->n_turned = 0;
    const json_t *not = turned_around(r, other, &all);
    const json_t *ways = json_object_get(not, "anyOf");
    *size *= ways ? json_array_size(ways) : 1;
    if (!build_ok(r->b) || !not || *size > BRANCH_ALTERNATIVES || (!all && !schema_free(one)))
        return NULL;
    return schema_merge(r, one, not );
}

/* Whether no value of a property fits both schemas. */
static bool property_tells(schema_reader *r, const json_t *a, const json_t *b, const char *name,
                           bool within)
{
    const json_t *x = json_object_get(json_object_get(a, "properties"), name);
    const json_t *y = json_object_get(json_object_get(b, "properties"), name);
    return lists_other(r, a, b, name) || lists_other(r, b, a, name) ||
           (within && x && y && apart(r, x, y));
}

/* Branch i with a property required whose values tell it from all others; NULL: it has none.
 * `within`: or whose value has such a property. */
static const json_t *told_by_property(schema_reader *r, const json_t *list, size_t i, bool within)
{
    const json_t *one = json_array_get(list, i), *flat = schema_flat(r, one), *other;
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(flat, "properties"), name, value)
    {
        bool tells = true;
        size_t k;
        json_array_foreach(list, k, other)
        {
            if (!tells || !build_ok(r->b)) break;
            tells = k == i || apart(r, one, other) ||
                    property_tells(r, flat, schema_flat(r, other), name, within);
        }
        if (!build_ok(r->b)) return NULL;
        if (tells)
            return schema_merge(r, one, schema_keep(r, json_pack("{s:[s]}", "required", name)));
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

const json_t *schema_one_of(schema_reader *r, const json_t *list, size_t i)
{
    const json_t *one = json_array_get(list, i), *out, *other;
    uint32_t merged = r->n_merged, most = r->merged_max;
    error *err = r->b->err, own = {{0}};
    size_t k, size = 1;
    if (json_array_size(list) > BRANCHES_MAX) return one;
    r->b->err = &own; // what is too much here is no failure
    if (merged + BRANCH_MERGES < most) r->merged_max = merged + BRANCH_MERGES;
    const json_t *values = values_alone(r, list, i);
    out = values ? values : one;
    json_array_foreach(list, k, other)
    {
        if (values || k == i || apart(r, one, other)) continue;
        out = without_branch(r, out, other, &size);
        if (!out) break;
    }
    if (!build_ok(r->b) && r->b->failure.code != STATUS_NO_MEMORY && r->b->fuel > 0) {
        r->b->failure = STATUS_IS_OK;
        out = NULL;
    }
    if (!out && build_ok(r->b)) {
        r->n_merged = merged; // what was joined is not used
        out = told_by_property(r, list, i, false);
        if (!out && build_ok(r->b)) out = told_by_property(r, list, i, true);
    }
    r->b->err = err;
    r->merged_max = most;
    if (build_ok(r->b)) return out ? out : one;
    if (r->b->failure.code == STATUS_NO_MEMORY || r->b->fuel <= 0) {
        *err = own;
        return NULL;
    }
    r->b->failure = STATUS_IS_OK;
    r->n_merged = merged;
    return one;
}
