/* schema: what the files of the JSON Schema front end share. */
#ifndef ENGINE_GRAMMAR_SCHEMA_H
#define ENGINE_GRAMMAR_SCHEMA_H

#include "engine/grammar/internal.h"

enum { FORMATS_MOST = 24, SCHEMA_DEPTH_MAX = 400 };

/* Words that schema_not.c writes into schemas: values, patterns and formats that are not allowed,
 * and true where whole numbers are not. */
#define SCHEMA_NOT_VALUES   "not values"
#define SCHEMA_NOT_PATTERNS "not patterns"
#define SCHEMA_NOT_FORMATS  "not formats"
#define SCHEMA_NOT_WHOLE    "not whole"

typedef struct schema_pending {
    uint32_t rule;
    const json_t *schema;
    const char *place; // its JSON pointer
} schema_pending;

/* The strings that a schema or a pattern allows. */
typedef struct schema_texts {
    language *own; // NULL: all of them
    bool made;
} schema_texts;

typedef struct schema_reader {
    build *b;
    const json_t *root;
    strbuf path; // the JSON pointer of the schema that is read
    unsigned depth;
    key_map rules;           // a schema's address -> its rule
    schema_pending *pending; // schemas that references name, to be read
    uint32_t n_pending, pending_room;
    json_t *made;                  // array of merged schemas, which live as long as the reader
    uint32_t n_merged, merged_max; // merges so far, and how many there may be
    uint32_t n_turned;             // schemas that were turned around for the word that is read
    bool loose;                    // words that schema_opened writes in others are left out
    key_map other_names;           // a hash of declared names -> other names, in quotes
    key_map text_places;           // the address of a schema or a pattern -> its number in texts
    schema_texts *texts;
    uint32_t n_texts, texts_room;
    const json_t *listed, *listed_value; // a list, and a value of it that is tried
    language *any_text;                  // all strings
    language *formats[FORMATS_MOST];     // by the number of the format, once it was asked for
} schema_reader;

/* Fails with the pointer of the member `key` (NULL: of the schema itself). */
void schema_fail(schema_reader *r, status_code code, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void schema_unsupported(schema_reader *r, const char *key);
/* Adds a key to the path and returns the path's size before. */
size_t schema_enter(schema_reader *r, const char *key);
void schema_leave(schema_reader *r, size_t size);
/* Counts one level more of schemas within each other, which the caller takes back (r->depth). False
 * when the build failed, as it does where they are too many. */
bool schema_deeper(schema_reader *r);

/* The texts that a schema allows. */
expr schema_expr(schema_reader *r, const json_t *schema);
/* The texts that a schema allows which is the member `key` of the schema that is read, or with
 * `index` >= 0 an element of that member. */
expr schema_member(schema_reader *r, const json_t *schema, const char *key, int64_t index);

/* The words of an array's elements: "prefixItems" and "items", or as drafts before 2020-12 named
 * them. NULL: they are missing. */
typedef struct item_words {
    const json_t *fixed, *items;
    const char *fixed_word, *items_word;
} item_words;
item_words schema_items(const json_t *schema);

expr schema_object(schema_reader *r, const json_t *schema);
expr schema_array(schema_reader *r, const json_t *schema);
/* The elements of an array, without brackets: different ones, as "items" says. Fails as
 * "uniqueItems" unless these are a short list of words, numbers and strings. */
expr schema_unique(schema_reader *r, const json_t *items, uint32_t min, uint32_t max);
expr schema_string(schema_reader *r, const json_t *schema);
expr schema_number(schema_reader *r, const json_t *schema, bool integer);

/* -1, 0 or 1: a is below b, they are the same number, or a is above b. */
int schema_compare(const json_t *a, const json_t *b);
/* Whether a number is a multiple of another, as their decimal digits say. */
bool schema_multiple(const json_t *value, const json_t *factor);
bool schema_whole(const json_t *value);

/* The names that a schema of "propertyNames" allows, without quotes and escapes; NULL: all of them.
 * Its lists of values count too. */
language *schema_names(schema_reader *r, const json_t *schema);
language *schema_any_text(schema_reader *r);
/* The strings that "pattern", "format" and what is forbidden allow; NULL: all. Made once. */
const language *schema_patterns(schema_reader *r, const json_t *schema);
/* The names that a member of "patternProperties" is for. Made once for each address of a name. */
language *schema_name_pattern(schema_reader *r, const char *pattern);
/* Whether JSON Schema names the format. `whole`: all of its texts are in its language. */
bool schema_format_known(const char *name, bool *whole);
/* A member that is a bound >= 0, or `fallback`. */
uint32_t schema_bound(schema_reader *r, const json_t *schema, const char *key, uint32_t fallback);

/* A schema without "$ref" and "allOf" that allows what this one allows. Borrowed: it lives as long
 * as the reader. NULL when the build failed. */
const json_t *schema_flat(schema_reader *r, const json_t *schema);
/* Returns a schema of the values that both schemas allow. */
const json_t *schema_merge(schema_reader *r, const json_t *a, const json_t *b);
/* Merges a schema and one that it applies to its own value, as "allOf" and branches are: what its
 * "unevaluatedProperties" does not name, neither schema does. */
const json_t *schema_join(schema_reader *r, const json_t *around, const json_t *within);
/* A flat schema with "additionalProperties" in place of "unevaluatedProperties". */
const json_t *schema_closed(schema_reader *r, const json_t *schema);
/* Keeps a value that was made until the reader ends; NULL when memory is out. */
const json_t *schema_keep(schema_reader *r, json_t *value);
/* The schema with "not", "if" and dependencies written in other words. It allows at most what the
 * source allows; where r->loose is set, at least that. */
const json_t *schema_opened(schema_reader *r, const json_t *schema);
/* Returns a schema of values that this one refuses, not of all such values where `all` becomes
 * false; NULL where none can be written. `names`: an array of names that members may have, where
 * the schema speaks of members without naming them. */
const json_t *schema_turned(schema_reader *r, const json_t *schema, const json_t *names, bool *all);
/* Returns an array of the branches of the schema's "oneOf" with the words beside it, each without
 * what other branches allow. Fails where two branches cannot be told apart. */
const json_t *schema_one_of(schema_reader *r, const json_t *schema);
/* The schema that a reference names. */
const json_t *schema_resolve(schema_reader *r, const char *reference);
/* The schema without one member. */
const json_t *schema_without(schema_reader *r, const json_t *schema, const char *key);
/* Whether two values are the same, as JSON Schema compares: 1 and 1.0 are. The comparison of parts
 * and texts is work. */
bool schema_same(schema_reader *r, const json_t *a, const json_t *b);
/* Whether an array has the value; each comparison is work. */
bool schema_lists(schema_reader *r, const json_t *list, const json_t *value);
/* The values that a schema lists, itself or where "$ref" and "allOf" lead: it may allow fewer.
 * NULL: it lists none. */
const json_t *schema_values(schema_reader *r, const json_t *schema);
/* Whether a schema allows a value. Fails where a word of the schema is not supported. */
bool schema_fits(schema_reader *r, const json_t *schema, const json_t *value);
/* Whether a schema allows a value of its own list, which is not compared with the others. */
bool schema_fits_listed(schema_reader *r, const json_t *schema, const json_t *list,
                        const json_t *value);
/* The schema with a "type" of those types that its words belong to, where they say so. */
const json_t *schema_typed(schema_reader *r, const json_t *schema);
/* Whether the "type" of both is given, and no value has both. */
bool schema_types_differ(schema_reader *r, const json_t *a, const json_t *b);
/* Whether the schema's "type" allows it. */
bool schema_type_fits(schema_reader *r, const json_t *schema, const json_t *value);
/* Whether nothing in the schema restricts. */
bool schema_free(const json_t *schema);
/* Whether a keyword is one of JSON Schema's that restrict. */
bool schema_restricts(const char *key);

#endif
