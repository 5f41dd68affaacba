/* Strings: bounds, patterns, formats. */
#include "engine/grammar/schema.h"

#include <math.h>
#include <string.h>

// The year 0000 is left out: it is none of many calendars, such as Python's.
#define YEAR "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
#define LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"                                \
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME                                                                                       \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?"                                     \
    "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define HOURS "[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S"
#define DAYS  "[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D"
#define LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define HOST  LABEL "(?:\\." LABEL ")*"
#define ATOM  "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4  OCTET "(?:\\." OCTET "){3}"
#define H16   "[0-9a-fA-F]{1,4}"
#define LS32  "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32      \
    "|(?:(?:" H16 ":)?" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16   \
    ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16       \
    ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define PCHAR   "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define NOCOLON "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
#define AUTHORITY                                                                                  \
    "//(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?"                                     \
    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*|\\[" IPV6 "\\])(?::[0-9]*)?(?:/" PCHAR     \
    "*)*"
#define TAIL     "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define ABSOLUTE "/(?:" PCHAR "+(?:/" PCHAR "*)*)?"
#define URI                                                                                        \
    "[A-Za-z][A-Za-z0-9+.-]*:(?:" AUTHORITY "|" ABSOLUTE "|" PCHAR "+(?:/" PCHAR "*)*)?" TAIL
#define RELATIVE "(?:" AUTHORITY "|" ABSOLUTE "|" NOCOLON "+(?:/" PCHAR "*)*)?" TAIL
#define POINTER  "(?:/(?:[^/~]|~[01])*)*"

static const struct {
    const char *name, *regex; // NULL: a format that is not kept
    bool whole;               // the expression has every text of the format
} formats[] = {
    {"date", DATE, false},
    {"time", TIME, false},
    {"date-time", DATE "[Tt]" TIME, false},
    {"duration", "P(?:(?:" DAYS ")(?:T(?:" HOURS "))?|T(?:" HOURS ")|[0-9]+W)", false},
    {"email", ATOM "(?:\\." ATOM ")*@" HOST, false},
    {"hostname", HOST, true},
    {"ipv4", IPV4, true},
    {"ipv6", IPV6, true},
    {"uuid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", true},
    {"uri", URI, false},
    {"uri-reference", "(?:" URI "|" RELATIVE ")", false},
    {"json-pointer", POINTER, true},
    {"relative-json-pointer", "(?:0|[1-9][0-9]*)(?:#|" POINTER ")", true},
    {"uri-template", NULL, false},
    {"idn-email", NULL, false},
    {"idn-hostname", NULL, false},
    {"iri", NULL, false},
    {"iri-reference", NULL, false},
    {"regex", NULL, false},
};

_Static_assert(sizeof formats / sizeof *formats <= FORMATS_MOST, "schema_reader.formats");

/* The language of a named format; NULL and `known` false: no format that JSON Schema names. */
static language *format_language(schema_reader *r, const char *name, bool *known)
{
    *known = false;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(name, formats[i].name) != 0) continue;
        *known = true;
        const char *regex = formats[i].regex;
        if (regex && !r->formats[i])
            r->formats[i] = regex_language(r->b, regex, strlen(regex), true);
        return r->formats[i];
    }
    return NULL;
}

bool schema_format_known(const char *name, bool *whole)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        *whole = formats[i].whole;
        if (strcmp(name, formats[i].name) == 0) return true;
    }
    return false;
}

language *schema_any_text(schema_reader *r)
{
    if (!r->any_text) r->any_text = json_any_text(r->b);
    return r->any_text;
}

uint32_t schema_bound(schema_reader *r, const json_t *schema, const char *key, uint32_t fallback)
{
    const json_t *v = json_object_get(schema, key);
    double x = json_number_value(v);
    if (!v || json_is_null(v)) return fallback;
    if (!json_is_number(v) || x < 0 || x != floor(x))
        schema_fail(r, STATUS_INVALID, key, "must be a whole number of at least 0");
    return x < REPEAT_MANY - 1 ? (uint32_t)x : REPEAT_MANY - 1;
}

/* l: the strings so far, NULL: all. */
static language *also(schema_reader *r, language *l, language *more)
{
    return l && more ? language_and(r->b, l, more) : more;
}

static language *add_pattern(schema_reader *r, language *l, const json_t *pattern)
{
    const char *text = json_string_value(pattern);
    error *err = r->b->err, own = {{0}};
    if (!text) {
        schema_fail(r, STATUS_INVALID, "pattern", "must be a string");
        return l;
    }
    r->b->err = &own;
    language *one = regex_language(r->b, text, json_string_length(pattern), false);
    r->b->err = err;
    if (!build_ok(r->b)) {
        status_code code = r->b->failure.code;
        r->b->failure = STATUS_IS_OK;
        schema_fail(r, code, "pattern", "%s", own.text);
    }
    return build_ok(r->b) ? also(r, l, one) : l;
}

static language *add_format(schema_reader *r, language *l, const json_t *format)
{
    const char *name = json_string_value(format);
    bool known = false;
    language *one = name ? format_language(r, name, &known) : NULL;
    if (known && !one && build_ok(r->b))
        schema_fail(r, STATUS_UNSUPPORTED, "format", "the format '%s' is not supported", name);
    return one && build_ok(r->b) ? also(r, l, one) : l;
}

static language *texts_of(schema_reader *r, const json_t *list)
{
    expr_list all = {0};
    const json_t *v;
    size_t i;
    json_array_foreach(list, i, v) if (json_is_string(v))
        expr_list_add(r->b, &all, expr_text(r->b, json_string_value(v), json_string_length(v)));
    return build_ok(r->b) && all.n ? language_of(r->b, expr_alt(r->b, all.items, all.n)) : NULL;
}

/* Without the values, patterns and formats that the schema forbids. */
static language *forbidden(schema_reader *r, const json_t *s, language *l)
{
    language *values = texts_of(r, json_object_get(s, SCHEMA_NOT_VALUES));
    const json_t *one;
    size_t i;
    if (values) l = language_without(r->b, l ? l : schema_any_text(r), values);
    json_array_foreach(json_object_get(s, SCHEMA_NOT_PATTERNS), i, one)
    {
        language *matched = build_ok(r->b) ? add_pattern(r, NULL, one) : NULL;
        if (matched) l = language_without(r->b, l ? l : schema_any_text(r), matched);
    }
    json_array_foreach(json_object_get(s, SCHEMA_NOT_FORMATS), i, one)
    {
        language *matched = build_ok(r->b) ? add_format(r, NULL, one) : NULL;
        if (matched) l = language_without(r->b, l ? l : schema_any_text(r), matched);
    }
    return l;
}

/* Strings with a pattern or format. */
static language *patterned(schema_reader *r, const json_t *s)
{
    const json_t *pattern = json_object_get(s, "pattern"), *format = json_object_get(s, "format");
    language *l = NULL;
    const json_t *one;
    size_t i;
    if (json_is_array(pattern)) {
        json_array_foreach(pattern, i, one) l = add_pattern(r, l, one);
    } else if (pattern) {
        l = add_pattern(r, l, pattern);
    }
    if (format) l = add_format(r, l, format);
    return forbidden(r, s, l);
}

/* Where the language of a schema or a pattern is kept; NULL when the build failed. */
static schema_texts *find_texts(schema_reader *r, const void *of)
{
    uint32_t n = r->n_texts;
    if (!build_room(r->b, &r->texts, n, 1, &r->texts_room, sizeof *r->texts)) return NULL;
    uint32_t at = key_map_put(r->b, &r->text_places, (uint64_t)(uintptr_t)of, n);
    if (!build_ok(r->b)) return NULL;
    if (at == n) r->texts[r->n_texts++] = (schema_texts){0};
    return &r->texts[at];
}

const language *schema_patterns(schema_reader *r, const json_t *schema)
{
    schema_texts *kept = find_texts(r, schema);
    if (!kept) return NULL;
    if (!kept->made) kept->own = patterned(r, schema);
    kept->made = build_ok(r->b);
    return kept->own;
}

language *schema_name_pattern(schema_reader *r, const char *pattern)
{
    schema_texts *kept = find_texts(r, pattern);
    if (!kept) return NULL;
    if (!kept->made) kept->own = regex_language(r->b, pattern, strlen(pattern), false);
    kept->made = build_ok(r->b);
    return kept->own;
}

/* Without calls of its own, and so that a failure names the place. */
static language *bounded(schema_reader *r, const json_t *s, language *l)
{
    uint32_t min = schema_bound(r, s, "minLength", 0);
    uint32_t max = schema_bound(r, s, "maxLength", REPEAT_MANY);
    if (!build_ok(r->b) || (min == 0 && max == REPEAT_MANY)) return l;
    language *out = language_chars(r->b, l ? l : schema_any_text(r), min, max);
    if (r->b->failure.code == STATUS_LIMIT) {
        r->b->failure = STATUS_IS_OK;
        schema_fail(r, STATUS_LIMIT, "maxLength", "too large together with a pattern or format");
    }
    return out;
}

/* The strings among the schema's values. */
static language *listed(schema_reader *r, const json_t *s, const json_t *values)
{
    expr_list all = {0};
    const json_t *v;
    size_t i;
    json_array_foreach(values, i, v) if (json_is_string(v) && schema_fits_listed(r, s, values, v))
        expr_list_add(r->b, &all, expr_text(r->b, json_string_value(v), json_string_length(v)));
    return build_ok(r->b) ? language_of(r->b, expr_alt(r->b, all.items, all.n)) : NULL;
}

/* Whether no string fits a schema of names. */
static bool refuses_texts(schema_reader *r, const json_t *s)
{
    json_t *text = json_string("");
    if (!text) build_fail(r->b, STATUS_NO_MEMORY, "out of memory");
    bool refused = build_ok(r->b) && (json_is_false(s) || !schema_type_fits(r, s, text));
    json_decref(text);
    return refused;
}

/* The strings, without quotes and escapes, that the bounds, the pattern and the format of a schema
 * allow; NULL: all of them. Lists of values are the caller's. */
static language *schema_text(schema_reader *r, const json_t *schema)
{
    return bounded(r, schema, patterned(r, schema));
}

language *schema_names(schema_reader *r, const json_t *schema)
{
    size_t path = schema_enter(r, "propertyNames");
    const json_t *values = schema_values(r, schema), *s = schema;
    language *l = NULL;
    if (!values) s = schema_flat(r, schema);
    if (!values && (json_object_get(s, "anyOf") || json_object_get(s, "oneOf")))
        schema_fail(r, STATUS_UNSUPPORTED, NULL, "alternatives are not supported here");
    if (build_ok(r->b) && !values) values = schema_values(r, s);
    if (build_ok(r->b) && values) l = listed(r, s, values);
    else if (refuses_texts(r, s)) l = language_of(r->b, expr_never(r->b));
    else if (json_is_object(s) && build_ok(r->b)) l = schema_text(r, s);
    schema_leave(r, path);
    return l;
}

expr schema_string(schema_reader *r, const json_t *schema)
{
    build *b = r->b;
    expr inside;
    language *l = patterned(r, schema);
    uint32_t min = schema_bound(r, schema, "minLength", 0);
    uint32_t max = schema_bound(r, schema, "maxLength", REPEAT_MANY);
    if (!build_ok(b)) return 0;
    if (!l && min == 0 && max == REPEAT_MANY) return json_expr(b, RULE_STRING);
    if (max < min) return expr_never(b);
    if (l) inside = expr_language(b, language_json(b, bounded(r, schema, l)));
    else inside = expr_count(b, json_expr(b, RULE_CHAR), min, max);
    if (!build_ok(b)) return 0;
    uint32_t rule = rule_create(b, NULL);
    rule_define(b, rule,
                expr_seq(b, (expr[]){expr_words(b, "\""), inside, expr_words(b, "\"")}, 3));
    return expr_rule(b, rule);
}
