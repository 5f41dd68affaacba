/* Schemas turned around: "not", "if", dependencies; schema_one_of.c has branches of "oneOf" fail.
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
    ALTERNATIVE_WORK = 200,
};

typedef struct turning {
    schema_reader *r;
    const json_t *schema;
    const json_t *names; // that members may have
    json_t *out;         // array: the alternatives so far
    bool all;            // false: some word's alternative is left out
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

/* Takes the reference. */
static const json_t *keep(turning *t, json_t *value) { return schema_keep(t->r, value); }

static const json_t *turn(turning *t, const json_t *schema)
{
    return schema_turned(t->r, schema, t->names, &t->all);
}

/* Whether something can be written that a schema refuses. */
static bool some(const turning *t, const json_t *other)
{
    return build_ok(t->r->b) && other && !json_is_false(other);
}

/* ---- words ----------------------------------------------------------------------------------- */

static void turn_type(turning *t, const json_t *type)
{
    static const char *const names[] = {"string", "number", "object", "array", "boolean", "null"};
    bool nullable = json_is_true(json_object_get(t->schema, "nullable"));
    if (!build_work(t->r->b, 8 * json_array_size(type))) return;
    json_t *others = checked(t->r, json_array());
    bool whole = false, number = false;
    for (size_t i = 0; others && i < sizeof names / sizeof *names; i++) {
        bool named = nullable && strcmp(names[i], "null") == 0;
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

/* A member of this name and schema. */
static void add_member(turning *t, const char *name, const json_t *schema)
{
    add(t, json_pack("{s:s, s:[s], s:{s:O}}", "type", "object", "required", name, "properties",
                     name, schema));
}

static void turn_properties(turning *t, const json_t *properties)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)properties, key, value)
    {
        const json_t *other = turn(t, value);
        if (!build_ok(t->r->b)) return;
        if (some(t, other)) add_member(t, key, other);
    }
}

/* Whether "additionalProperties" is for members of this name. */
static bool is_additional(turning *t, const char *name)
{
    const char *pattern;
    json_t *value;
    if (json_object_get(json_object_get(t->schema, "properties"), name)) return false;
    json_object_foreach(json_object_get(t->schema, "patternProperties"), pattern, value)
    {
        const language *l = schema_name_pattern(t->r, pattern);
        if (!l || language_has(l, name, strlen(name))) return false;
    }
    return true;
}

/* Adds objects of one member or more, whose names are all as `names` says and whose values are as
 * `value` says. */
static void add_members(turning *t, json_t *names, const json_t *value)
{
    add(t, json_pack("{s:s, s:i, s:o, s:O}", "type", "object", "minProperties", 1, "propertyNames",
                     names, "additionalProperties", value));
}

static void turn_additional(turning *t, const json_t *value)
{
    const json_t *other = turn(t, value), *name;
    bool named = false;
    size_t i;
    const char *key;
    json_t *one;
    if (!some(t, other)) return;
    t->all = false; // one member would be enough, whatever its name is
    json_array_foreach(t->names, i, name)
    {
        if (!build_work(t->r->b, 1) || !is_additional(t, json_string_value(name))) continue;
        add_member(t, json_string_value(name), other);
        named = true;
    }
    if (named) return;
    json_t *declared = json_array(), *patterns = json_array();
    json_object_foreach(json_object_get(t->schema, "properties"), key, one)
        json_array_append_new(declared, json_string(key));
    json_object_foreach(json_object_get(t->schema, "patternProperties"), key, one)
        json_array_append_new(patterns, json_string(key));
    add_members(t,
                json_pack("{s:s, s:o, s:o}", "type", "string", SCHEMA_NOT_VALUES, declared,
                          SCHEMA_NOT_PATTERNS, patterns),
                other);
}

static void turn_patterns(turning *t, const json_t *patterns)
{
    const char *pattern;
    json_t *value;
    const json_t *name;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)patterns, pattern, value)
    {
        const json_t *other = turn(t, value);
        if (!some(t, other)) continue;
        const language *l = schema_name_pattern(t->r, pattern);
        bool named = false;
        t->all = false;
        json_array_foreach(t->names, i, name)
        {
            const char *key = json_string_value(name);
            if (!l || !build_work(t->r->b, 1) || !language_has(l, key, strlen(key))) continue;
            add_member(t, key, other);
            named = true;
        }
        if (!named)
            add_members(t, json_pack("{s:s, s:s}", "type", "string", "pattern", pattern), other);
    }
}

/* The ways to satisfy a schema that are of strings, without alternatives. */
static void turn_names(turning *t, const json_t *names)
{
    const json_t *other = turn(t, names), *ways = json_object_get(other, "anyOf");
    size_t n = ways ? json_array_size(ways) : 1;
    t->all = false;
    for (size_t i = 0; i < n && some(t, other); i++) {
        const json_t *one = ways ? json_array_get(ways, i) : other;
        const char *type = json_string_value(json_object_get(one, "type"));
        if (json_is_true(one) || (type && strcmp(type, "string") == 0) ||
            json_object_get(one, SCHEMA_NOT_VALUES))
            add_members(t, shared(one), keep(t, json_true()));
    }
}

/* A member is there, and what its presence asks for is missing. */
static void turn_dependencies(turning *t, const json_t *list)
{
    const char *key;
    json_t *asked;
    const json_t *name;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)list, key, asked)
    {
        const json_t *names = json_is_string(asked) ? keep(t, json_pack("[O]", asked)) : asked;
        json_array_foreach(names, i, name)
        {
            if (build_ok(t->r->b) && json_is_string(name))
                add(t, json_pack("{s:s, s:[s], s:{s:b}}", "type", "object", "required", key,
                                 "properties", json_string_value(name), 0));
        }
        if (json_is_array(names) || !build_ok(t->r->b)) continue;
        const json_t *other = turn(t, asked);
        if (some(t, other))
            add(t, json_pack("{s:s, s:[s], s:[O]}", "type", "object", "required", key, "allOf",
                             other));
    }
}

static void turn_if(turning *t, const json_t *test)
{
    const json_t *then = json_object_get(t->schema, "then");
    const json_t *otherwise = json_object_get(t->schema, "else");
    const json_t *other = then && !json_is_null(then) ? turn(t, then) : NULL;
    if (some(t, other)) add(t, json_pack("{s:[O, O]}", "allOf", test, other));
    other = otherwise && !json_is_null(otherwise) ? turn(t, otherwise) : NULL;
    const json_t *fails = some(t, other) ? turn(t, test) : NULL;
    if (some(t, fails)) add(t, json_pack("{s:[O, O]}", "allOf", fails, other));
}

/* An array with element i that its schema refuses. */
static void add_element(turning *t, size_t i, const json_t *schema)
{
    json_t *fixed = checked(t->r, json_array());
    for (size_t k = 0; k < i && build_work(t->r->b, 1); k++)
        json_array_append_new(fixed, json_true());
    json_array_append(fixed, (json_t *)(uintptr_t)schema);
    add(t, json_pack("{s:s, s:I, s:o}", "type", "array", "minItems", (json_int_t)i + 1,
                     "prefixItems", fixed));
}

static void turn_fixed(turning *t, const json_t *list)
{
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one)
    {
        const json_t *other = turn(t, one);
        if (!build_ok(t->r->b)) return;
        if (some(t, other)) add_element(t, i, other);
    }
}

/* The first element behind those that have schemas of their own. */
static void turn_items(turning *t, const json_t *items)
{
    item_words words = schema_items(t->schema);
    const json_t *other = turn(t, items);
    if (!some(t, other)) return;
    t->all = false; // any other element would be enough
    add_element(t, json_array_size(words.fixed), other);
}

/* Each way in which a list of schemas fails: all of them at once. */
static void turn_alternatives(turning *t, const json_t *list)
{
    const json_t *none = NULL, *one;
    size_t i, size = 1;
    json_array_foreach(list, i, one)
    {
        const json_t *other = turn(t, one);
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
        const json_t *other = turn(t, one);
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

/* A format that JSON Schema does not name allows everything. */
static void turn_format(turning *t, const json_t *format)
{
    bool whole = false;
    if (!schema_format_known(json_string_value(format), &whole)) return;
    if (whole) add(t, json_pack("{s:s, s:[O]}", "type", "string", SCHEMA_NOT_FORMATS, format));
    else t->all = false;
}

static void turn_reference(turning *t, const char *reference)
{
    const json_t *target = schema_resolve(t->r, reference);
    const json_t *other = target ? turn(t, target) : NULL;
    if (some(t, other)) add(t, shared(other));
}

/* Words of members and elements. */
static bool turn_parts(turning *t, const char *key, const json_t *v)
{
    item_words words = schema_items(t->schema);
    if (strcmp(key, "required") == 0) turn_required(t, v);
    else if (strcmp(key, "properties") == 0) turn_properties(t, v);
    else if (strcmp(key, "additionalProperties") == 0) turn_additional(t, v);
    else if (strcmp(key, "patternProperties") == 0) turn_patterns(t, v);
    else if (strcmp(key, "propertyNames") == 0) turn_names(t, v);
    else if (strcmp(key, "dependencies") == 0 || strcmp(key, "dependentRequired") == 0 ||
             strcmp(key, "dependentSchemas") == 0)
        turn_dependencies(t, v);
    else if (v == words.fixed) turn_fixed(t, v);
    else if (v == words.items) turn_items(t, v);
    else return false;
    return true;
}

static void turn_word(turning *t, const char *key, const json_t *v)
{
    if (!schema_restricts(key) || turn_bound(t, t->schema, key, v) || turn_parts(t, key, v)) return;
    if (strcmp(key, "type") == 0) turn_type(t, v);
    else if (strcmp(key, "enum") == 0 && json_is_array(v)) turn_values(t, shared(v));
    else if (strcmp(key, "const") == 0) turn_values(t, json_pack("[O]", v));
    else if (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0) turn_alternatives(t, v);
    else if (strcmp(key, "allOf") == 0) turn_all(t, v);
    else if (strcmp(key, "not") == 0) add(t, shared(v));
    else if (strcmp(key, "if") == 0) turn_if(t, v);
    else if (strcmp(key, "then") == 0 || strcmp(key, "else") == 0) return; // as "if" says
    else if (strcmp(key, "pattern") == 0 && json_is_string(v))
        add(t, json_pack("{s:s, s:[O]}", "type", "string", SCHEMA_NOT_PATTERNS, v));
    else if (strcmp(key, "format") == 0 && json_is_string(v)) turn_format(t, v);
    else if (strcmp(key, "$ref") == 0 && json_is_string(v)) turn_reference(t, json_string_value(v));
    else t->all = false;
}

const json_t *schema_turned(schema_reader *r, const json_t *schema, const json_t *names, bool *all)
{
    const char *key;
    json_t *value;
    if (!build_work(r->b, 1)) return NULL;
    if (json_is_boolean(schema)) return schema_keep(r, json_boolean(json_is_false(schema)));
    if (!json_is_object(schema) || r->depth > DEPTH_MAX || ++r->n_turned > TURNED_MAX) {
        *all = false;
        return NULL;
    }
    turning t = {r, schema, names, checked(r, json_array()), true};
    r->depth++;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) if (build_ok(r->b))
        turn_word(&t, key, value);
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

/* Whether each member that an alternative of a turned schema speaks of is one that `s` names, or
 * may not be. */
static bool names_known(const json_t *s, const json_t *turned)
{
    static const char *const words[] = {"anyOf", "allOf", "not", "$ref", "additionalProperties"};
    const json_t *one, *properties = json_object_get(s, "properties");
    const char *name;
    json_t *value;
    size_t i;
    json_array_foreach(json_object_get(turned, "anyOf"), i, one)
    {
        if (json_object_get(one, "anyOf") || !names_known(s, one)) return false;
    }
    json_object_foreach(json_object_get(turned, "properties"), name, value)
    {
        if (!json_is_false(value) && !json_object_get(properties, name)) return false;
    }
    for (i = 1; i < sizeof words / sizeof *words; i++)
        if (json_object_get(turned, words[i])) return false;
    return true;
}

/* What a schema does not allow says nothing of members that it names: "unevaluatedProperties" is
 * for them as for others. */
static void check_unevaluated(schema_reader *r, const json_t *s, const json_t *turned)
{
    const json_t *rest = json_object_get(s, "unevaluatedProperties");
    if (rest && !json_is_true(rest) && !json_object_get(s, "additionalProperties") &&
        !names_known(s, turned))
        fail_word(r, "unevaluatedProperties");
}

static const json_t *opened_not(schema_reader *r, const json_t *s, const json_t *names)
{
    bool all = true;
    r->n_turned = 0;
    const json_t *other = schema_turned(r, json_object_get(s, "not"), names, &all);
    if (!other) fail_word(r, "not");
    check_unevaluated(r, s, other);
    return other;
}

static const json_t *opened_if(schema_reader *r, const json_t *s, const json_t *names)
{
    bool all = true;
    const json_t *test = json_object_get(s, "if"), *then = json_object_get(s, "then");
    const json_t *otherwise = json_object_get(s, "else");
    r->n_turned = 0;
    const json_t *other = schema_turned(r, test, names, &all);
    if (!other) fail_word(r, "if");
    check_unevaluated(r, s, other);
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
        json_array_append_new(all,
                              json_pack("{s:[{s:{s:b}}, {s:[s], s:[o]}]}", "anyOf", "properties",
                                        key, 0, "required", key, "allOf", asked));
    }
    return schema_keep(r, json_pack("{s:o}", "allOf", all));
}

/* The names of the schema's own members. */
static const json_t *own_names(schema_reader *r, const json_t *s)
{
    json_t *out = checked(r, json_array()), *value;
    const char *key;
    json_object_foreach(json_object_get(s, "properties"), key, value)
        json_array_append_new(out, json_string(key));
    return schema_keep(r, out);
}

const json_t *schema_opened(schema_reader *r, const json_t *schema)
{
    static const char *const words[] = {"not", "if", "dependencies", "dependentRequired",
                                        "dependentSchemas"};
    const json_t *s = schema, *names = json_is_object(schema) ? own_names(r, schema) : NULL;
    if (!json_is_object(schema)) return schema;
    for (size_t i = 0; i < sizeof words / sizeof *words && build_ok(r->b); i++) {
        if (!json_object_get(schema, words[i])) continue;
        const json_t *more = r->loose ? NULL
                             : i == 0 ? opened_not(r, schema, names)
                             : i == 1 ? opened_if(r, schema, names)
                                      : opened_dependencies(r, schema, words[i]);
        if (!build_ok(r->b)) return NULL;
        s = schema_without(r, s, words[i]);
        if (i == 1 && s) s = schema_without(r, schema_without(r, s, "then"), "else");
        if (build_ok(r->b) && more) s = schema_join(r, s, more);
    }
    return build_ok(r->b) ? s : NULL;
}
