/* Schemas together: references, "allOf", and what stands beside "anyOf". */
#include "engine/grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 200, MEMBER_WORK = 16 };

/* Members and elements cost work because of their memory, which lives as long as the reader. */
const json_t *schema_keep(schema_reader *r, json_t *value)
{
    (void)build_work(r->b, MEMBER_WORK * json_object_size(value) + json_array_size(value));
    if (!value || json_array_append_new(r->made, value) != 0)
        build_fail(r->b, STATUS_NO_MEMORY, "out of memory");
    return build_ok(r->b) ? value : NULL;
}

static void set(schema_reader *r, json_t *object, const char *key, const json_t *value)
{
    if (!build_work(r->b, MEMBER_WORK)) return;
    if (!value || json_object_set(object, key, (json_t *)(uintptr_t)value) != 0)
        build_fail(r->b, STATUS_NO_MEMORY, "out of memory");
}

const json_t *schema_without(schema_reader *r, const json_t *schema, const char *key)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)schema);
    if (copy) json_object_del(copy, key);
    return schema_keep(r, copy);
}

/* ---- references ------------------------------------------------------------------------------ */

/* The member or element of a pointer's next part, which is cut off. */
static const json_t *step_into(const json_t *at, const char **pointer)
{
    char name[512];
    size_t n = 0;
    const char *p = *pointer + 1;
    for (; *p && *p != '/' && n + 1 < sizeof name; p++) {
        unsigned byte;
        if (p[0] == '~' && (p[1] == '0' || p[1] == '1')) name[n++] = *++p == '0' ? '~' : '/';
        else if (p[0] == '%' && sscanf(p + 1, "%2x", &byte) == 1 && p[1] && p[2]) {
            name[n++] = (char)byte;
            p += 2;
        } else name[n++] = *p;
    }
    name[n] = '\0';
    *pointer = p;
    if (json_is_array(at)) return json_array_get(at, strtoul(name, NULL, 10));
    return json_object_get(at, name);
}

/* The schema with an "$anchor" or "$id" of this name. */
static const json_t *find_named(schema_reader *r, const json_t *at, const char *key,
                                const char *name, unsigned depth)
{
    const char *member;
    json_t *value;
    size_t i;
    const json_t *found = NULL;
    if (depth > DEPTH_MAX || !build_work(r->b, 1)) return NULL;
    const char *own = json_string_value(json_object_get(at, key));
    if (own && strcmp(own, name) == 0) return at;
    json_object_foreach((json_t *)(uintptr_t)at, member, value) if (!found) found =
        find_named(r, value, key, name, depth + 1);
    json_array_foreach(at, i, value) if (!found) found = find_named(r, value, key, name, depth + 1);
    return found;
}

const json_t *schema_resolve(schema_reader *r, const char *reference)
{
    const json_t *at = r->root;
    const char *own = json_string_value(json_object_get(at, "$id")), *p = strchr(reference, '#');
    size_t before = p ? (size_t)(p - reference) : strlen(reference);
    if (!build_work(r->b, 1 + strlen(reference) / 16)) return NULL;
    if (before && !(own && strncmp(own, reference, before) == 0))
        at = p ? NULL : find_named(r, r->root, "$id", reference, 0);
    if (at && p && p[1] && p[1] != '/') at = find_named(r, r->root, "$anchor", p + 1, 0);
    else if (p) p++;
    while (at && p && *p == '/') at = step_into(at, &p);
    if (!at)
        schema_fail(r, STATUS_UNSUPPORTED, "$ref", "no schema here is named '%.100s'", reference);
    return at;
}

/* ---- two schemas ----------------------------------------------------------------------------- */

/* True for words whose larger (or smaller) bound decides. */
static int bound_direction(const char *key)
{
    static const char *const lower[] = {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                        "minProperties"};
    static const char *const upper[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                        "maxProperties"};
    for (size_t i = 0; i < 5; i++) {
        if (strcmp(key, lower[i]) == 0) return 1;
        if (strcmp(key, upper[i]) == 0) return -1;
    }
    return 0;
}

/* The names of types in both members. */
static const json_t *common_types(schema_reader *r, const json_t *a, const json_t *b)
{
    json_t *out = json_array();
    for (size_t i = 0; i < (json_is_array(a) ? json_array_size(a) : 1); i++) {
        if (!build_work(r->b, json_array_size(b))) break;
        const char *x = json_string_value(json_is_array(a) ? json_array_get(a, i) : a);
        for (size_t k = 0; x && k < (json_is_array(b) ? json_array_size(b) : 1); k++) {
            const char *y = json_string_value(json_is_array(b) ? json_array_get(b, k) : b);
            if (!y) continue;
            const char *both = strcmp(x, y) == 0 ? x : NULL;
            if (!both && strcmp(x, "number") == 0 && strcmp(y, "integer") == 0) both = y;
            if (!both && strcmp(y, "number") == 0 && strcmp(x, "integer") == 0) both = x;
            if (both) json_array_append_new(out, json_string(both));
        }
    }
    return schema_keep(r, out);
}

static const json_t *common_values(schema_reader *r, const json_t *a, const json_t *b)
{
    json_t *out = json_array(), *x;
    size_t i;
    json_array_foreach(a, i, x)
    {
        if (schema_lists(r, b, x)) json_array_append(out, x);
        if (!build_ok(r->b)) break;
    }
    return schema_keep(r, out);
}

/* The elements of both arrays. */
static const json_t *joined(schema_reader *r, const json_t *a, const json_t *b)
{
    json_t *out = json_is_array(a) ? json_copy((json_t *)(uintptr_t)a) : json_array();
    if (!json_is_array(a) && out) json_array_append(out, (json_t *)(uintptr_t)a);
    if (out && json_is_array(b)) json_array_extend(out, (json_t *)(uintptr_t)b);
    else if (out) json_array_append(out, (json_t *)(uintptr_t)b);
    return schema_keep(r, out);
}

/* Each alternative of a with each of b. */
static const json_t *crossed(schema_reader *r, const json_t *a, const json_t *b)
{
    json_t *out = json_array(), *x, *y;
    size_t i, k;
    if (!schema_keep(r, out)) return NULL;
    json_array_foreach(a, i, x) json_array_foreach(b, k, y)
    {
        const json_t *both = schema_merge(r, x, y);
        if (!build_ok(r->b)) return NULL;
        if (!json_is_false(both)) json_array_append(out, (json_t *)(uintptr_t)both);
    }
    return out;
}

/* Returns the schema for a property that `s` does not name; its patterns are applied again where
 * properties are read. */
static const json_t *unnamed_property(schema_reader *r, const json_t *s, const char *name)
{
    const char *pattern;
    json_t *value;
    json_object_foreach(json_object_get(s, "patternProperties"), pattern, value)
    {
        language *l = schema_name_pattern(r, pattern);
        if (!build_ok(r->b) || language_has(l, name, strlen(name))) return NULL;
    }
    return json_object_get(s, "additionalProperties");
}

/* The patterns of both. Names that match a pattern of one alone are among the other's additional
 * ones. */
static const json_t *merge_patterns(schema_reader *r, const json_t *a, const json_t *b)
{
    const json_t *sides[2] = {a, b};
    json_t *out = json_object(), *value;
    const char *key;
    if (!schema_keep(r, out)) return NULL;
    for (unsigned side = 0; side < 2 && build_ok(r->b); side++) {
        const json_t *other = sides[1 - side],
                     *theirs = json_object_get(other, "patternProperties");
        const json_t *more = json_object_get(other, "additionalProperties");
        json_object_foreach(json_object_get(sides[side], "patternProperties"), key, value)
        {
            const json_t *twin = json_object_get(theirs, key);
            if (side == 1 && twin) continue;
            if (!twin && more && !json_is_true(more)) {
                if (theirs) schema_unsupported(r, "allOf");
                twin = more;
            }
            const json_t *both = twin ? schema_merge(r, value, twin) : value;
            if (!build_ok(r->b)) return NULL;
            set(r, out, key, both);
        }
    }
    return out;
}

static const json_t *merge_properties(schema_reader *r, const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "properties"), *y = json_object_get(b, "properties");
    const json_t *sides[2] = {x, y}, *wholes[2] = {a, b};
    json_t *out = json_object(), *value;
    const char *key;
    if (!schema_keep(r, out)) return NULL;
    for (unsigned side = 0; side < 2 && build_ok(r->b); side++) {
        json_object_foreach((json_t *)(uintptr_t)sides[side], key, value)
        {
            const json_t *twin = json_object_get(sides[1 - side], key);
            if (side == 1 && twin) continue;
            if (!twin) twin = unnamed_property(r, wholes[1 - side], key);
            const json_t *both = twin ? schema_merge(r, value, twin) : value;
            if (!build_ok(r->b)) return NULL;
            set(r, out, key, both);
        }
    }
    return out;
}

/* Element i of an array whose first elements have schemas of their own; NULL: any. */
static const json_t *element_schema(const item_words *words, size_t i)
{
    return i < json_array_size(words->fixed) ? json_array_get(words->fixed, i) : words->items;
}

static const json_t *merge_optional(schema_reader *r, const json_t *a, const json_t *b)
{
    return a && b ? schema_merge(r, a, b) : a ? a : b;
}

/* Writes the elements of both to `out`, in the words of draft 2020-12. False: no schema has words
 * for its first elements, and each word is joined on its own. */
static bool merge_elements(schema_reader *r, const json_t *a, const json_t *b, json_t *out)
{
    item_words x = schema_items(a), y = schema_items(b);
    size_t n = json_array_size(x.fixed), more = json_array_size(y.fixed);
    if (n == 0 && more == 0) return false;
    json_t *fixed = json_array();
    if (more > n) n = more;
    if (!schema_keep(r, fixed)) return true;
    for (size_t i = 0; i < n && build_work(r->b, MEMBER_WORK); i++) {
        const json_t *one = merge_optional(r, element_schema(&x, i), element_schema(&y, i));
        if (!build_ok(r->b)) return true;
        if (one) json_array_append(fixed, (json_t *)(uintptr_t)one);
        else json_array_append_new(fixed, json_true());
    }
    const json_t *items = merge_optional(r, x.items, y.items);
    if (!build_ok(r->b)) return true;
    json_object_del(out, "additionalItems");
    json_object_del(out, "items");
    set(r, out, "prefixItems", fixed);
    if (items) set(r, out, "items", items);
    return true;
}

/* Words that merge_objects joins with others beside them. */
static bool joined_apart(const char *key, bool elements)
{
    return strcmp(key, "properties") == 0 || strcmp(key, "patternProperties") == 0 ||
           (elements && (strcmp(key, "prefixItems") == 0 || strcmp(key, "items") == 0 ||
                         strcmp(key, "additionalItems") == 0));
}

/* Returns the value that both members with this key mean together. */
static const json_t *merge_member(schema_reader *r, const char *key, const json_t *x,
                                  const json_t *y)
{
    int direction = bound_direction(key);
    if (json_equal((json_t *)(uintptr_t)x, (json_t *)(uintptr_t)y) || !schema_restricts(key))
        return x;
    if (direction && json_is_number(x) && json_is_number(y))
        return (schema_compare(x, y) < 0) == (direction > 0) ? y : x;
    if (strcmp(key, "type") == 0) return common_types(r, x, y);
    if (strcmp(key, "enum") == 0) return common_values(r, x, y);
    if (strcmp(key, "const") == 0) return schema_same(r, x, y) ? x : schema_keep(r, json_false());
    if (strcmp(key, "required") == 0 || strcmp(key, "pattern") == 0 ||
        strncmp(key, "not ", 4) == 0) // the words of schema_not.c
        return joined(r, x, y);
    if (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0) return crossed(r, x, y);
    if (strcmp(key, "additionalProperties") == 0 || strcmp(key, "propertyNames") == 0 ||
        strcmp(key, "items") == 0)
        return schema_merge(r, x, y);
    schema_fail(r, STATUS_UNSUPPORTED, "allOf", "two different values of `%.60s`", key);
    return NULL;
}

/* The schema, or false where it requires a property that cannot be. */
static const json_t *possible(schema_reader *r, const json_t *s)
{
    const json_t *properties = json_object_get(s, "properties"), *name;
    size_t i;
    const char *type = json_string_value(json_object_get(s, "type"));
    if (!properties || (type && strcmp(type, "object") != 0)) return s;
    if (json_is_array(json_object_get(s, "type"))) return s;
    json_array_foreach(
        json_object_get(s, "required"), i,
        name) if (json_is_string(name) &&
                  json_is_false(json_object_get(
                      properties, json_string_value(name)))) return schema_keep(r, json_false());
    return s;
}

static const json_t *merge_objects(schema_reader *r, const json_t *a, const json_t *b)
{
    json_t *out = json_copy((json_t *)(uintptr_t)a), *value;
    const char *key;
    if (!schema_keep(r, out)) return NULL;
    bool elements = merge_elements(r, a, b, out);
    json_object_foreach((json_t *)(uintptr_t)b, key, value)
    {
        if (!build_work(r->b, 1)) return NULL;
        const json_t *own = json_object_get(a, key);
        if (joined_apart(key, elements)) continue;
        const json_t *both = own ? merge_member(r, key, own, value) : value;
        if (!build_ok(r->b)) return NULL;
        bool none = strcmp(key, "const") == 0
                        ? own && both != own
                        : own && both != own && json_array_size(both) == 0 &&
                              (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0);
        if (none) return schema_keep(r, json_false());
        set(r, out, key, both);
    }
    if (json_object_get(a, "properties") || json_object_get(b, "properties")) {
        const json_t *properties = merge_properties(r, a, b);
        if (build_ok(r->b)) set(r, out, "properties", properties);
    }
    if (build_ok(r->b) &&
        (json_object_get(a, "patternProperties") || json_object_get(b, "patternProperties"))) {
        const json_t *patterns = merge_patterns(r, a, b);
        if (build_ok(r->b)) set(r, out, "patternProperties", patterns);
    }
    return build_ok(r->b) ? possible(r, out) : NULL;
}

const json_t *schema_closed(schema_reader *r, const json_t *s)
{
    const json_t *rest = json_object_get(s, "unevaluatedProperties");
    if (!rest || !build_ok(r->b)) return s;
    bool free = json_is_true(rest) || json_object_get(s, "additionalProperties");
    bool open = json_object_get(s, "anyOf") || json_object_get(s, "oneOf");
    if (!free && open && !r->loose) schema_unsupported(r, "unevaluatedProperties");
    json_t *copy = json_copy((json_t *)(uintptr_t)s);
    if (copy && !free && !open)
        json_object_set(copy, "additionalProperties", (json_t *)(uintptr_t)rest);
    if (copy) json_object_del(copy, "unevaluatedProperties");
    return schema_keep(r, copy);
}

/* `around`: the schema of the two that applies the other one to its own value, so that its
 * "unevaluatedProperties" are those that neither names; NULL: neither does. */
static const json_t *merge_two(schema_reader *r, const json_t *a, const json_t *b,
                               const json_t *around)
{
    if (!build_work(r->b, 1)) return NULL;
    if (json_is_false(a) || json_is_true(b)) return a;
    if (json_is_false(b) || json_is_true(a)) return b;
    if (++r->n_merged > r->merged_max)
        schema_fail(r, STATUS_LIMIT, NULL, "more than %u schemas to join", r->merged_max);
    if (++r->depth > 2 * DEPTH_MAX)
        schema_fail(r, STATUS_LIMIT, NULL, "schemas are joined with themselves");
    const json_t *x = build_ok(r->b) ? schema_flat(r, a) : NULL;
    const json_t *y = build_ok(r->b) ? schema_flat(r, b) : NULL;
    if (a != around) x = schema_closed(r, x);
    if (b != around) y = schema_closed(r, y);
    const json_t *out = NULL;
    if (build_ok(r->b)) {
        bool plain = json_is_object(x) && json_is_object(y);
        if (!plain && (json_is_boolean(x) || json_is_boolean(y)))
            out = merge_two(r, x, y, a == around ? x : b == around ? y : NULL);
        else if (plain) out = merge_objects(r, x, y);
        else schema_fail(r, STATUS_INVALID, NULL, "a schema must be an object, true or false");
    }
    r->depth--;
    return out;
}

const json_t *schema_merge(schema_reader *r, const json_t *a, const json_t *b)
{
    return merge_two(r, a, b, NULL);
}

const json_t *schema_join(schema_reader *r, const json_t *around, const json_t *within)
{
    return merge_two(r, around, within, around);
}

/* Whether the schema has words that schema_opened writes in other words. */
static bool opens(const json_t *s)
{
    return json_object_get(s, "not") || json_object_get(s, "if") ||
           json_object_get(s, "dependencies") || json_object_get(s, "dependentRequired") ||
           json_object_get(s, "dependentSchemas");
}

const json_t *schema_flat(schema_reader *r, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "allOf"), *one;
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    size_t i;
    if (!json_is_object(schema) || !build_ok(r->b)) return schema;
    if (!list && !reference) return opens(schema) ? schema_opened(r, schema) : schema;
    if (++r->depth > 2 * DEPTH_MAX)
        schema_fail(r, STATUS_LIMIT, NULL, "schemas are joined with themselves");
    const json_t *out = schema_without(r, schema, reference ? "$ref" : "allOf");
    if (reference) {
        const json_t *target = build_ok(r->b) ? schema_resolve(r, reference) : NULL;
        if (build_ok(r->b)) out = merge_two(r, target, out, out);
    } else if (!json_is_array(list)) {
        schema_fail(r, STATUS_INVALID, "allOf", "must be an array of schemas");
    } else {
        json_array_foreach(list, i, one) if (build_ok(r->b)) out = schema_join(r, out, one);
    }
    if (build_ok(r->b)) out = schema_flat(r, out);
    r->depth--;
    return out;
}
