/* Whether a schema allows a value that is there, word for word: for lists of values beside other
 * words, and for the branches of "oneOf". Each step takes work, so that a source of few bytes that
 * asks for many comparisons ends with an error. */
#include "engine/grammar/schema.h"

#include <stdio.h>
#include <string.h>

enum {
    SAME_WORK = 4,       // operations of comparing two values
    DIVISION_WORK = 200, // of "multipleOf"
    FITS_WORK = 32,      // of one value and one schema, without their parts
    BYTES_AT_ONCE = 8,   // of a text that is hashed or compared in one operation
    VALUES_DEPTH = 16,   // levels of "$ref" and "allOf" that lead to a list of values
};

/* Takes work for a text of n bytes. */
static bool work_text(schema_reader *r, size_t n)
{
    return build_work(r->b, 1 + n / BYTES_AT_ONCE);
}

/* The member with this name, or NULL. */
static const json_t *find_member(schema_reader *r, const json_t *object, const char *name)
{
    return object && work_text(r, strlen(name)) ? json_object_get(object, name) : NULL;
}

/* The elements or members, of which there are as many. */
static bool same_parts(schema_reader *r, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *one;
    size_t i;
    if (!build_work(r->b, SAME_WORK * json_array_size(a))) return false;
    json_array_foreach(a, i, one) if (!schema_same(r, one, json_array_get(b, i))) return false;
    json_object_foreach((json_t *)(uintptr_t)a, key, one)
    {
        const json_t *other = find_member(r, b, key);
        if (!other || !schema_same(r, one, other)) return false;
    }
    return true;
}

bool schema_same(schema_reader *r, const json_t *a, const json_t *b)
{
    if (a == b) return true;
    if (json_is_number(a) && json_is_number(b)) return schema_compare(a, b) == 0;
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_string(a)) {
        size_t n = json_string_length(a);
        return n == json_string_length(b) && work_text(r, n) &&
               memcmp(json_string_value(a), json_string_value(b), n) == 0;
    }
    return json_array_size(a) == json_array_size(b) && json_object_size(a) == json_object_size(b) &&
           same_parts(r, a, b);
}

bool schema_lists(schema_reader *r, const json_t *list, const json_t *value)
{
    const json_t *one;
    size_t i;
    if (!build_work(r->b, SAME_WORK * json_array_size(list))) return false;
    json_array_foreach(list, i, one)
    {
        if (schema_same(r, one, value)) return true;
    }
    return false;
}

static const json_t *find_values(schema_reader *r, const json_t *s, unsigned depth)
{
    const json_t *only = json_object_get(s, "const"), *list = json_object_get(s, "enum"), *one;
    const char *reference = json_string_value(json_object_get(s, "$ref"));
    size_t i;
    if (!json_is_object(s) || depth > VALUES_DEPTH || !build_work(r->b, 1)) return NULL;
    if (list && !json_is_array(list)) schema_fail(r, STATUS_INVALID, "enum", "must be an array");
    if (only) return schema_keep(r, json_pack("[O]", only));
    if (!list && reference) {
        const json_t *target = schema_resolve(r, reference);
        list = target ? find_values(r, target, depth + 1) : NULL;
    }
    json_array_foreach(json_object_get(s, "allOf"), i, one) if (!list && build_ok(r->b)) list =
        find_values(r, one, depth + 1);
    return build_ok(r->b) ? list : NULL;
}

const json_t *schema_values(schema_reader *r, const json_t *schema)
{
    return find_values(r, schema, 0);
}

/* ---- schemas of members and elements --------------------------------------------------------- */

/* Whether the schema at `word`, or at its member `key`, allows the value. */
static bool member_fits(schema_reader *r, const json_t *s, const char *word, const char *key,
                        const json_t *v)
{
    if (key && !work_text(r, strlen(key))) return false;
    size_t path = schema_enter(r, word);
    if (key) schema_enter(r, key);
    bool fits = schema_fits(r, s, v);
    schema_leave(r, path);
    return fits;
}

static bool element_fits(schema_reader *r, const json_t *list, const char *word, size_t i,
                         const json_t *v)
{
    char number[24];
    snprintf(number, sizeof number, "%zu", i);
    return member_fits(r, json_array_get(list, i), word, number, v);
}

/* How many schemas of a list allow the value; the count stops at `most`. */
static size_t count_fitting(schema_reader *r, const json_t *list, const char *word, size_t most,
                            const json_t *v)
{
    size_t found = 0;
    if (!json_is_array(list))
        schema_fail(r, STATUS_INVALID, word, "must be an array of schemas, not empty");
    for (size_t i = 0; i < json_array_size(list) && found < most && build_ok(r->b); i++)
        found += element_fits(r, list, word, i, v);
    return found;
}

/* ---- what is not evaluated ------------------------------------------------------------------- */

/* A member or an element of a value. */
typedef struct value_part {
    const json_t *whole, *value;
    const char *key; // NULL: an element
    size_t i;
} value_part;

/* Whether a name matches one of the schema's patterns. */
static bool matches_pattern(schema_reader *r, const json_t *s, const char *name)
{
    const char *pattern;
    json_t *own;
    json_object_foreach(json_object_get(s, "patternProperties"), pattern, own)
    {
        const language *l = schema_name_pattern(r, pattern);
        if (!l || !build_work(r->b, 1 + strlen(name))) return false;
        if (language_has(l, name, strlen(name))) return true;
    }
    return false;
}

/* Whether a schema's own words say something of a part. */
static bool names_part(schema_reader *r, const json_t *s, const value_part *p)
{
    if (p->key)
        return find_member(r, json_object_get(s, "properties"), p->key) ||
               json_object_get(s, "additionalProperties") || matches_pattern(r, s, p->key);
    item_words words = schema_items(s);
    const json_t *contains = json_object_get(s, "contains");
    return words.items || p->i < json_array_size(words.fixed) ||
           (contains && member_fits(r, contains, "contains", NULL, p->value));
}

static bool evaluates(schema_reader *r, const json_t *s, const value_part *p);

/* Whether the schemas say something of a part that `s` applies to the whole value. */
static bool joined_evaluate(schema_reader *r, const json_t *s, const value_part *p)
{
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    const char *reference = json_string_value(json_object_get(s, "$ref")), *name;
    const json_t *test = json_object_get(s, "if"), *one;
    json_t *own;
    size_t i;
    if (reference && evaluates(r, schema_resolve(r, reference), p)) return true;
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        json_array_foreach(json_object_get(s, lists[k]), i,
                           one) if (evaluates(r, one, p)) return true;
    if (test) {
        bool yes = schema_fits(r, test, p->whole);
        if (yes && evaluates(r, test, p)) return true;
        if (evaluates(r, json_object_get(s, yes ? "then" : "else"), p)) return true;
    }
    json_object_foreach(json_object_get(s, "dependentSchemas"), name, own)
    {
        if (find_member(r, p->whole, name) && evaluates(r, own, p)) return true;
    }
    return false;
}

static bool evaluates(schema_reader *r, const json_t *s, const value_part *p)
{
    const char *word = p->key ? "unevaluatedProperties" : "unevaluatedItems";
    bool found = schema_deeper(r) && json_is_object(s) && schema_fits(r, s, p->whole) &&
                 (json_object_get(s, word) || names_part(r, s, p) || joined_evaluate(r, s, p));
    r->depth--;
    return found;
}

/* Whether "unevaluatedProperties" or "unevaluatedItems" allows a part. */
static bool rest_fits(schema_reader *r, const json_t *s, const value_part *p)
{
    const char *word = p->key ? "unevaluatedProperties" : "unevaluatedItems";
    const json_t *rest = json_object_get(s, word);
    return !rest || names_part(r, s, p) || joined_evaluate(r, s, p) ||
           member_fits(r, rest, word, NULL, p->value);
}

/* ---- values of one type ---------------------------------------------------------------------- */

static bool text_fits(schema_reader *r, const json_t *s, const json_t *v)
{
    const char *text = json_string_value(v);
    size_t n = json_string_length(v), chars = 0;
    if (!build_work(r->b, n)) return false;
    for (size_t i = 0; i < n; i++) chars += ((uint8_t)text[i] & 0xc0) != 0x80;
    if (chars < schema_bound(r, s, "minLength", 0)) return false;
    if (chars > schema_bound(r, s, "maxLength", REPEAT_MANY)) return false;
    const language *l = schema_patterns(r, s);
    return !l || language_has(l, text, n);
}

static bool number_fits(schema_reader *r, const json_t *s, const json_t *v)
{
    const json_t *min = json_object_get(s, "minimum"), *max = json_object_get(s, "maximum");
    const json_t *above = json_object_get(s, "exclusiveMinimum");
    const json_t *below = json_object_get(s, "exclusiveMaximum");
    const json_t *factor = json_object_get(s, "multipleOf");
    if (factor && !build_work(r->b, DIVISION_WORK)) return false;
    // In draft 4 the exclusive ones are true or false.
    if (json_is_number(min) && schema_compare(v, min) < json_is_true(above)) return false;
    if (json_is_number(max) && schema_compare(max, v) < json_is_true(below)) return false;
    if (json_is_number(above) && schema_compare(v, above) <= 0) return false;
    if (json_is_number(below) && schema_compare(v, below) >= 0) return false;
    return (!factor || schema_multiple(v, factor)) &&
           !(json_object_get(s, SCHEMA_NOT_WHOLE) && schema_whole(v));
}

static bool elements_differ(schema_reader *r, const json_t *v)
{
    for (size_t i = 1; i < json_array_size(v) && build_work(r->b, SAME_WORK * i); i++)
        for (size_t k = 0; k < i; k++)
            if (schema_same(r, json_array_get(v, i), json_array_get(v, k))) return false;
    return true;
}

static bool array_fits(schema_reader *r, const json_t *s, const json_t *v)
{
    item_words words = schema_items(s);
    const json_t *contains = json_object_get(s, "contains"), *one;
    size_t n = json_array_size(v), fixed = json_array_size(words.fixed), found = 0, i;
    if (n < schema_bound(r, s, "minItems", 0)) return false;
    if (n > schema_bound(r, s, "maxItems", REPEAT_MANY)) return false;
    json_array_foreach(v, i, one)
    {
        if (i < fixed && !element_fits(r, words.fixed, words.fixed_word, i, one)) return false;
        if (i >= fixed && words.items && !member_fits(r, words.items, words.items_word, NULL, one))
            return false;
        if (!rest_fits(r, s, &(value_part){v, one, NULL, i}) || !build_ok(r->b)) return false;
        found += contains && member_fits(r, contains, "contains", NULL, one);
    }
    if (contains && (found < schema_bound(r, s, "minContains", 1) ||
                     found > schema_bound(r, s, "maxContains", REPEAT_MANY)))
        return false;
    return !json_is_true(json_object_get(s, "uniqueItems")) || elements_differ(r, v);
}

/* Whether an object has all of the names. */
static bool has_names(schema_reader *r, const json_t *v, const json_t *names)
{
    const json_t *name;
    size_t i;
    json_array_foreach(names, i, name)
    {
        if (json_is_string(name) && !find_member(r, v, json_string_value(name))) return false;
    }
    return true;
}

static bool dependencies_fit(schema_reader *r, const json_t *s, const json_t *v)
{
    static const char *const words[] = {"dependencies", "dependentRequired", "dependentSchemas"};
    const char *key;
    json_t *asked;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        json_object_foreach(json_object_get(s, words[i]), key, asked)
        {
            if (!find_member(r, v, key)) continue;
            bool fits = json_is_array(asked) ? has_names(r, v, asked)
                        : json_is_string(asked)
                            ? find_member(r, v, json_string_value(asked)) != NULL
                            : member_fits(r, asked, words[i], key, v);
            if (!fits) return false;
        }
    }
    return true;
}

/* Whether the patterns that a name matches allow its value. */
static bool patterns_fit(schema_reader *r, const json_t *s, const char *name, const json_t *v)
{
    const char *pattern;
    json_t *own;
    json_object_foreach(json_object_get(s, "patternProperties"), pattern, own)
    {
        const language *l = schema_name_pattern(r, pattern);
        if (!l || !build_work(r->b, 1 + strlen(name))) return false;
        if (language_has(l, name, strlen(name)) &&
            !member_fits(r, own, "patternProperties", pattern, v))
            return false;
    }
    return true;
}

static bool name_fits(schema_reader *r, const json_t *s, const char *name)
{
    const json_t *names = json_object_get(s, "propertyNames");
    if (!names || !work_text(r, strlen(name))) return true;
    json_t *text = json_string(name);
    if (!text) build_fail(r->b, STATUS_NO_MEMORY, "out of memory");
    bool fits = text && member_fits(r, names, "propertyNames", NULL, text);
    json_decref(text);
    return fits;
}

static bool object_fits(schema_reader *r, const json_t *s, const json_t *v)
{
    const json_t *more = json_object_get(s, "additionalProperties");
    size_t n = json_object_size(v);
    const char *key;
    json_t *value;
    if (n < schema_bound(r, s, "minProperties", 0)) return false;
    if (n > schema_bound(r, s, "maxProperties", REPEAT_MANY)) return false;
    if (!has_names(r, v, json_object_get(s, "required")) || !dependencies_fit(r, s, v))
        return false;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        const json_t *own = find_member(r, json_object_get(s, "properties"), key);
        bool rest = more && !own && !matches_pattern(r, s, key);
        if (own && !member_fits(r, own, "properties", key, value)) return false;
        if (rest && !member_fits(r, more, "additionalProperties", NULL, value)) return false;
        if (!patterns_fit(r, s, key, value) || !name_fits(r, s, key)) return false;
        if (!rest_fits(r, s, &(value_part){v, value, key, 0}) || !build_ok(r->b)) return false;
    }
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Whether the schemas allow a value that `s` applies to it. */
static bool joined_fit(schema_reader *r, const json_t *s, const json_t *v)
{
    const char *reference = json_string_value(json_object_get(s, "$ref"));
    const json_t *all = json_object_get(s, "allOf"), *any = json_object_get(s, "anyOf");
    const json_t *single = json_object_get(s, "oneOf"), *not = json_object_get(s, "not");
    const json_t *test = json_object_get(s, "if");
    static const char *const words[] = {"$dynamicRef", "$recursiveRef"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (json_object_get(s, words[i])) schema_unsupported(r, words[i]);
    if (reference && !schema_fits(r, schema_resolve(r, reference), v)) return false;
    for (size_t i = 0; i < json_array_size(all); i++)
        if (!element_fits(r, all, "allOf", i, v)) return false;
    if (any && count_fitting(r, any, "anyOf", 1, v) != 1) return false;
    if (single && count_fitting(r, single, "oneOf", 2, v) != 1) return false;
    if (not &&member_fits(r, not, "not", NULL, v)) return false;
    if (!test) return true;
    const char *word = member_fits(r, test, "if", NULL, v) ? "then" : "else";
    const json_t *asked = json_object_get(s, word);
    return !asked || json_is_null(asked) || member_fits(r, asked, word, NULL, v);
}

static bool object_schema_fits(schema_reader *r, const json_t *s, const json_t *v)
{
    const json_t *list = json_object_get(s, "enum"), *only = json_object_get(s, "const");
    const json_t *not = json_object_get(s, SCHEMA_NOT_VALUES);
    bool known = list == r->listed && v == r->listed_value;
    if (!schema_type_fits(r, s, v) || (only && !schema_same(r, only, v))) return false;
    if (list && !known && !schema_lists(r, list, v)) return false;
    if (not &&schema_lists(r, not, v)) return false;
    if (json_is_string(v) && !text_fits(r, s, v)) return false;
    if (json_is_number(v) && !number_fits(r, s, v)) return false;
    if (json_is_array(v) && !array_fits(r, s, v)) return false;
    if (json_is_object(v) && !object_fits(r, s, v)) return false;
    return build_ok(r->b) && joined_fit(r, s, v);
}

bool schema_fits(schema_reader *r, const json_t *schema, const json_t *value)
{
    if (!build_work(r->b, FITS_WORK)) return false;
    if (json_is_boolean(schema)) return json_is_true(schema);
    if (!json_is_object(schema))
        schema_fail(r, STATUS_INVALID, NULL, "a schema must be an object, true or false");
    bool fits = schema_deeper(r) && object_schema_fits(r, schema, value);
    r->depth--;
    return fits && build_ok(r->b);
}

bool schema_fits_listed(schema_reader *r, const json_t *schema, const json_t *list,
                        const json_t *value)
{
    r->listed = list;
    r->listed_value = value;
    bool fits = schema_fits(r, schema, value);
    r->listed = r->listed_value = NULL;
    return fits;
}
