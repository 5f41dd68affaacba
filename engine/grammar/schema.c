/* JSON Schema (draft 2020-12) to rules. Members that only describe are ignored, and so are words
 * that are none of JSON Schema's; a word that restricts and is not kept is refused by name. */
#include "engine/grammar/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MERGED_MAX = 20000, TYPE_WORK = 8 };

/* ---- places ---------------------------------------------------------------------------------- */

void schema_fail(schema_reader *r, status_code code, const char *key, const char *fmt, ...)
{
    char what[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    build_fail(r->b, code, "\"%.160s%s%.60s\": %s", r->path.data ? r->path.data : "",
               key ? "/" : "", key ? key : "", what);
}

void schema_unsupported(schema_reader *r, const char *key)
{
    schema_fail(r, STATUS_UNSUPPORTED, key, "`%.60s` is not supported", key);
}

size_t schema_enter(schema_reader *r, const char *key)
{
    size_t before = r->path.size;
    strbuf_putc(&r->path, '/');
    for (; *key; key++) {
        if (*key == '~') strbuf_puts(&r->path, "~0");
        else if (*key == '/') strbuf_puts(&r->path, "~1");
        else strbuf_putc(&r->path, (uint8_t)*key < 0x20 ? '?' : *key);
    }
    if (r->path.failed) build_fail(r->b, STATUS_NO_MEMORY, "out of memory");
    return before;
}

void schema_leave(schema_reader *r, size_t size)
{
    if (r->path.data) r->path.data[size] = '\0';
    r->path.size = size;
}

bool schema_deeper(schema_reader *r)
{
    if (++r->depth > SCHEMA_DEPTH_MAX)
        schema_fail(r, STATUS_LIMIT, NULL, "schemas are nested more than %d deep",
                    SCHEMA_DEPTH_MAX);
    return build_ok(r->b);
}

expr schema_member(schema_reader *r, const json_t *schema, const char *key, int64_t index)
{
    char number[24];
    size_t path = schema_enter(r, key);
    snprintf(number, sizeof number, "%lld", (long long)index);
    if (index >= 0) schema_enter(r, number);
    expr e = schema_expr(r, schema);
    schema_leave(r, path);
    return e;
}

/* ---- words ----------------------------------------------------------------------------------- */

bool schema_restricts(const char *key)
{
    static const char *const words[] = {"type",
                                        "enum",
                                        "const",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "patternProperties",
                                        "propertyNames",
                                        "minProperties",
                                        "maxProperties",
                                        "items",
                                        "prefixItems",
                                        "additionalItems",
                                        "minItems",
                                        "maxItems",
                                        "minLength",
                                        "maxLength",
                                        "pattern",
                                        "format",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "multipleOf",
                                        "anyOf",
                                        "oneOf",
                                        "allOf",
                                        "$ref",
                                        "not",
                                        "if",
                                        "then",
                                        "else",
                                        "dependencies",
                                        "dependentRequired",
                                        "dependentSchemas",
                                        "contains",
                                        "minContains",
                                        "maxContains",
                                        "uniqueItems",
                                        "unevaluatedItems",
                                        "unevaluatedProperties",
                                        "$dynamicRef",
                                        "$recursiveRef",
                                        SCHEMA_NOT_VALUES,
                                        SCHEMA_NOT_PATTERNS,
                                        SCHEMA_NOT_FORMATS,
                                        SCHEMA_NOT_WHOLE};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(key, words[i]) == 0) return true;
    return false;
}

static void refuse_unsupported(schema_reader *r, const json_t *s)
{
    static const char *const words[] = {"contains", "$dynamicRef", "$recursiveRef"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (json_object_get(s, words[i])) schema_unsupported(r, words[i]);
}

/* ---- types ----------------------------------------------------------------------------------- */

typedef enum type_bit {
    TYPE_STRING = 1,
    TYPE_NUMBER = 2,
    TYPE_INTEGER = 4,
    TYPE_OBJECT = 8,
    TYPE_ARRAY = 16,
    TYPE_BOOLEAN = 32,
    TYPE_NULL = 64,
    TYPE_ALL = 127 - TYPE_INTEGER,
} type_bit;

static const struct {
    const char *name;
    unsigned bit;
} type_names[] = {{"string", TYPE_STRING}, {"number", TYPE_NUMBER}, {"integer", TYPE_INTEGER},
                  {"object", TYPE_OBJECT}, {"array", TYPE_ARRAY},   {"boolean", TYPE_BOOLEAN},
                  {"null", TYPE_NULL}};

static unsigned type_of_name(schema_reader *r, const json_t *name)
{
    const char *text = json_word(name);
    for (size_t i = 0; text && i < sizeof type_names / sizeof *type_names; i++)
        if (strcmp(text, type_names[i].name) == 0) return type_names[i].bit;
    schema_fail(r, STATUS_INVALID, "type", "must name types of JSON");
    return 0;
}

/* Words that say which type is meant where "type" is missing, as xgrammar reads them. */
static unsigned implied_types(const json_t *s)
{
    static const struct {
        const char *word;
        unsigned type;
    } words[] = {{"properties", TYPE_OBJECT},
                 {"required", TYPE_OBJECT},
                 {"additionalProperties", TYPE_OBJECT},
                 {"unevaluatedProperties", TYPE_OBJECT},
                 {"patternProperties", TYPE_OBJECT},
                 {"propertyNames", TYPE_OBJECT},
                 {"minProperties", TYPE_OBJECT},
                 {"maxProperties", TYPE_OBJECT},
                 {"items", TYPE_ARRAY},
                 {"prefixItems", TYPE_ARRAY},
                 {"additionalItems", TYPE_ARRAY},
                 {"minItems", TYPE_ARRAY},
                 {"maxItems", TYPE_ARRAY},
                 {"pattern", TYPE_STRING},
                 {"minLength", TYPE_STRING},
                 {"maxLength", TYPE_STRING},
                 {"format", TYPE_STRING},
                 {SCHEMA_NOT_PATTERNS, TYPE_STRING},
                 {SCHEMA_NOT_FORMATS, TYPE_STRING},
                 {"minimum", TYPE_NUMBER},
                 {"maximum", TYPE_NUMBER},
                 {"exclusiveMinimum", TYPE_NUMBER},
                 {"exclusiveMaximum", TYPE_NUMBER},
                 {"multipleOf", TYPE_NUMBER}};
    unsigned types = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (json_object_get(s, words[i].word)) types |= words[i].type;
    return types ? types : TYPE_ALL;
}

static unsigned types_of(schema_reader *r, const json_t *s)
{
    const json_t *type = json_object_get(s, "type"), *name;
    unsigned types = 0;
    size_t i;
    if (!type) return implied_types(s);
    if (!json_is_array(type)) types = type_of_name(r, type);
    else if (build_work(r->b, TYPE_WORK * json_array_size(type)))
        json_array_foreach(type, i, name) types |= type_of_name(r, name);
    if (json_is_true(json_object_get(s, "nullable"))) types |= TYPE_NULL;
    return types;
}

const json_t *schema_typed(schema_reader *r, const json_t *s)
{
    unsigned types = implied_types(s);
    if (!json_is_object(s) || json_object_get(s, "type") || types == TYPE_ALL) return s;
    json_t *copy = json_copy((json_t *)(uintptr_t)s), *names = json_array();
    for (size_t i = 0; i < sizeof type_names / sizeof *type_names; i++)
        if (types & type_names[i].bit)
            json_array_append_new(names, json_string(type_names[i].name));
    if (!copy || json_object_set_new(copy, "type", names) != 0)
        build_fail(r->b, STATUS_NO_MEMORY, "out of memory");
    return schema_keep(r, copy);
}

bool schema_types_differ(schema_reader *r, const json_t *a, const json_t *b)
{
    if (!json_object_get(a, "type") || !json_object_get(b, "type")) return false;
    unsigned x = types_of(r, a), y = types_of(r, b);
    if (x & TYPE_NUMBER) x |= TYPE_INTEGER;
    if (y & TYPE_NUMBER) y |= TYPE_INTEGER;
    return !(x & y);
}

static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return TYPE_OBJECT;
    case JSON_ARRAY: return TYPE_ARRAY;
    case JSON_STRING: return TYPE_STRING;
    case JSON_INTEGER: return TYPE_NUMBER | TYPE_INTEGER;
    case JSON_REAL: return TYPE_NUMBER | (schema_whole(v) ? TYPE_INTEGER : 0);
    case JSON_NULL: return TYPE_NULL;
    default: return TYPE_BOOLEAN;
    }
}

bool schema_type_fits(schema_reader *r, const json_t *s, const json_t *v)
{
    return !json_object_get(s, "type") || (types_of(r, s) & type_of_value(v));
}

/* true, false or null, unless the schema forbids the value. */
static expr word_unless(schema_reader *r, const json_t *s, const json_t *value)
{
    const json_t *one;
    size_t i;
    json_array_foreach(json_object_get(s, SCHEMA_NOT_VALUES), i,
                       one) if (json_typeof(one) == json_typeof(value)) return expr_never(r->b);
    return json_literal(r->b, value);
}

static expr expr_of_type(schema_reader *r, const json_t *s, unsigned type)
{
    build *b = r->b;
    switch (type) {
    case TYPE_STRING: return schema_string(r, s);
    case TYPE_NUMBER: return schema_number(r, s, false);
    case TYPE_INTEGER: return schema_number(r, s, true);
    case TYPE_OBJECT: return schema_object(r, s);
    case TYPE_ARRAY: return schema_array(r, s);
    case TYPE_BOOLEAN:
        return expr_or(b, word_unless(r, s, json_true()), word_unless(r, s, json_false()));
    default: return word_unless(r, s, json_null());
    }
}

bool schema_free(const json_t *s)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)s, key, value) if (schema_restricts(key)) return false;
    return true;
}

static expr expr_of_types(schema_reader *r, const json_t *s)
{
    expr_list all = {0};
    unsigned types = types_of(r, s);
    if (types & TYPE_NUMBER) types &= ~(unsigned)TYPE_INTEGER;
    for (unsigned bit = 1; bit <= TYPE_NULL && build_ok(r->b); bit *= 2)
        if (types & bit) expr_list_add(r->b, &all, expr_of_type(r, s, bit));
    return build_ok(r->b) ? expr_alt(r->b, all.items, all.n) : 0;
}

/* ---- "enum" and "const" ---------------------------------------------------------------------- */

/* A list as one language: its texts stand side by side in `text`. */
typedef struct value_list {
    expr_list nested; // objects and arrays
    strbuf text;
    text_span *spans; // s is the offset while the text grows
    uint32_t n, room;
} value_list;

static void add_value(schema_reader *r, value_list *l, const json_t *v)
{
    size_t before = l->text.size;
    if (json_is_object(v) || json_is_array(v)) {
        expr_list_add(r->b, &l->nested, json_literal(r->b, v));
        return;
    }
    json_literal_text(r->b, v, &l->text);
    if (!build_room(r->b, &l->spans, l->n, 1, &l->room, sizeof *l->spans)) return;
    l->spans[l->n++] = (text_span){NULL, l->text.size - before};
}

/* The values of the schema's list that its other words allow. */
static expr expr_of_values(schema_reader *r, const json_t *s, const json_t *list)
{
    value_list l = {0};
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v)
    {
        if (schema_fits_listed(r, s, list, v)) add_value(r, &l, v);
        if (!build_ok(r->b)) break;
    }
    size_t at = 0;
    for (uint32_t k = 0; build_ok(r->b) && k < l.n; at += l.spans[k++].n)
        l.spans[k].s = l.text.data + at;
    if (build_ok(r->b) && l.n > 0) expr_list_add(r->b, &l.nested, expr_texts(r->b, l.spans, l.n));
    strbuf_destroy(&l.text);
    return build_ok(r->b) ? expr_alt(r->b, l.nested.items, l.nested.n) : 0;
}

/* ---- alternatives, references ---------------------------------------------------------------- */

static expr expr_of_alternatives(schema_reader *r, const json_t *s, const char *key)
{
    const json_t *list = json_object_get(s, key), *one;
    const json_t *rest = schema_without(r, s, key);
    bool exclusive = key[0] == 'o';
    expr_list all = {0};
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0) {
        schema_fail(r, STATUS_INVALID, key, "must be an array of schemas, not empty");
        return 0;
    }
    bool alone = exclusive || (rest && schema_free(rest));
    if (exclusive) list = schema_one_of(r, s);
    json_array_foreach(list, i, one)
    {
        if (!build_ok(r->b)) return 0;
        const json_t *both = alone ? one : schema_join(r, rest, one);
        if (build_ok(r->b)) expr_list_add(r->b, &all, schema_member(r, both, key, (int64_t)i));
    }
    return build_ok(r->b) ? expr_alt(r->b, all.items, all.n) : 0;
}

/* A schema that is met again, by a reference or within itself, becomes a rule, once. `place`: its
 * JSON pointer. */
static expr expr_of_rule(schema_reader *r, const json_t *target, const char *place)
{
    if (!target || !build_ok(r->b)) return 0;
    uint32_t fresh = r->b->n_rules;
    uint32_t rule = key_map_put(r->b, &r->rules, (uint64_t)(uintptr_t)target, fresh);
    if (rule != fresh || !build_ok(r->b)) return expr_rule(r->b, rule);
    rule_create(r->b, NULL);
    if (build_room(r->b, &r->pending, r->n_pending, 1, &r->pending_room, sizeof *r->pending))
        r->pending[r->n_pending++] = (schema_pending){rule, target, place};
    return expr_rule(r->b, rule);
}

static expr expr_of_flat(schema_reader *r, const json_t *s)
{
    const json_t *list = schema_values(r, s);
    if (!list) s = schema_flat(r, s);
    if (!build_ok(r->b)) return 0;
    if (!json_is_object(s)) return schema_expr(r, s);
    if (!list) list = schema_values(r, s); // "not" of "not" may have become one
    if (list) return expr_of_values(r, s, list);
    refuse_unsupported(r, s);
    if (json_object_get(s, "anyOf")) return expr_of_alternatives(r, s, "anyOf");
    if (json_object_get(s, "oneOf")) return expr_of_alternatives(r, s, "oneOf");
    if (schema_free(s)) return json_expr(r->b, RULE_VALUE);
    return expr_of_types(r, s);
}

/* The reference of a schema that is nothing else, or NULL. */
static const char *plain_reference(schema_reader *r, const json_t *s)
{
    const char *reference = json_string_value(json_object_get(s, "$ref"));
    return reference && schema_free(schema_without(r, s, "$ref")) ? reference : NULL;
}

static expr expr_of_object(schema_reader *r, const json_t *s)
{
    const char *reference = plain_reference(r, s);
    if (reference)
        return expr_of_rule(r, schema_resolve(r, reference),
                            reference[0] == '#' ? reference + 1 : reference);
    if (!json_object_get(s, "$ref") && !json_object_get(s, "allOf") && !json_object_get(s, "oneOf"))
        return expr_of_flat(r, s);
    const char *place = r->path.size ? build_copy(r->b, r->path.data, r->path.size + 1, 1) : "";
    return expr_of_rule(r, s, place);
}

static void read_pending(schema_reader *r)
{
    while (r->n_pending > 0 && build_ok(r->b)) {
        schema_pending p = r->pending[--r->n_pending];
        schema_leave(r, 0);
        strbuf_puts(&r->path, p.place);
        bool object = json_is_object(p.schema) && !plain_reference(r, p.schema);
        expr body = object ? expr_of_flat(r, p.schema) : schema_expr(r, p.schema);
        rule_define(r->b, p.rule, body);
    }
}

expr schema_expr(schema_reader *r, const json_t *schema)
{
    if (!build_work(r->b, 1)) return 0;
    if (json_is_true(schema)) return json_expr(r->b, RULE_VALUE);
    if (json_is_false(schema)) return expr_never(r->b);
    if (!json_is_object(schema)) {
        schema_fail(r, STATUS_INVALID, NULL, "a schema must be an object, true or false");
        return 0;
    }
    expr e = schema_deeper(r) ? expr_of_object(r, schema) : 0;
    if (r->b->failure.code == STATUS_LIMIT && r->b->err && r->b->err->text[0] != '"')
        error_prefix(r->b->err, "\"%.160s\"", r->path.data ? r->path.data : "");
    r->depth--;
    return e;
}

/* ---- NULs ------------------------------------------------------------------------------------ */

/* Whether a text, or one in a list or in the members of an object, is none of json_word's. */
static bool holds_nul(const json_t *v)
{
    const char *key;
    json_t *one;
    size_t i;
    json_array_foreach(v, i, one) if (holds_nul(one)) return true;
    json_object_foreach((json_t *)(uintptr_t)v, key, one)
    {
        if (!json_is_object(one) && holds_nul(one)) return true;
    }
    return json_is_string(v) && !json_word(v);
}

static bool is_listed(const char *key, const char *const *words)
{
    while (*words && strcmp(*words, key) != 0) words++;
    return *words != NULL;
}

/* Refuses NULs in the schema's words and names, which are read as C strings: "object\u0000" is no
 * type. Values and patterns may hold them. `names`: the keys of s are names, not words. */
static void refuse_nuls(schema_reader *r, const json_t *s, bool names)
{
    static const char *const values[] = {"const", "enum", NULL};
    static const char *const words[] = {"type",    "format",   "$ref",         "$id",
                                        "$anchor", "required", "dependencies", "dependentRequired",
                                        NULL};
    static const char *const maps[] = {"properties",   "patternProperties", "$defs", "definitions",
                                       "dependencies", "dependentSchemas",  NULL};
    const char *key;
    json_t *v;
    size_t i;
    json_array_foreach(s, i, v) refuse_nuls(r, v, false);
    json_object_foreach((json_t *)(uintptr_t)s, key, v)
    {
        if (!names && is_listed(key, values)) continue;
        size_t path = schema_enter(r, key);
        if (!names && is_listed(key, words) && holds_nul(v))
            schema_fail(r, STATUS_INVALID, NULL, "must not hold a NUL");
        refuse_nuls(r, v, !names && is_listed(key, maps));
        schema_leave(r, path);
    }
}

/* ---- the whole schema ------------------------------------------------------------------------ */

uint32_t front_schema(build *b, const json_t *schema)
{
    schema_reader r = {.b = b, .root = schema, .made = json_array(), .merged_max = MERGED_MAX};
    if (!r.made) build_fail(b, STATUS_NO_MEMORY, "out of memory");
    uint32_t root = rule_create(b, "root");
    if (build_ok(b)) refuse_nuls(&r, schema, false);
    expr e = build_ok(b) ? schema_expr(&r, schema) : 0;
    rule_define(b, root, e);
    read_pending(&r);
    strbuf_destroy(&r.path);
    json_decref(r.made);
    return root;
}
