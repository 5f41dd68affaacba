/* JSON as jansson's values, with the caps and error texts that all readers share.
 *
 * Readers never trust a document: size is capped before parsing, nesting at 2,048, duplicate keys
 * are refused, and each getter names the key and place that are wrong. `where` is a short prefix
 * for messages: a file name or "retention". Reading and copying are our own (json_parse.c), because
 * jansson's reader crashes when memory is out, and its deep copy silently leaves values out; so
 * does json_dumps with keys, which json_write is for. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/status.h"
#include <jansson.h>
#include <stdint.h>

status json_read_file(const char *path, size_t max_bytes, json_t **out, error *err);
/* Parses text (NULs allowed inside strings, not in keys); `where` names it in messages. A text that
 * is not JSON is STATUS_CORRUPT with line and column; STATUS_NO_MEMORY means that memory ran
 * out. */
status json_read_text(const char *where, const char *text, size_t n, json_t **out, error *err);
/* Parses a command-line argument or a client's field, `name`, as json_read_text does, but a text
 * that is not JSON is STATUS_INVALID, since STATUS_CORRUPT means a damaged file. */
status json_read_argument(const char *name, const char *text, size_t n, json_t **out, error *err);
/* Copies a value; the copy shares nothing with `from`. NULL when there is no memory for all of
 * it. */
json_t *json_copy_whole(const json_t *from);
/* Says why json_pack gave nothing for a client's `text`, the value of `name`: STATUS_INVALID where
 * it is not UTF-8, else STATUS_NO_MEMORY. */
status json_refuse_word(const char *name, const char *text, error *err);
/* The value as text, to be freed by free(). `flags` are json_dumps's. NULL when there is no memory
 * for all of it. */
char *json_write(const json_t *value, size_t flags);

/* The value as a word: a text that is compared or copied as a C string. NULL where it is no string,
 * or one with a NUL inside, at which a C string would end: "auto\u0000x" is not the word "auto".
 * `value` may be NULL. Texts that may hold a NUL are read with json_string_length beside them. */
const char *json_word(const json_t *value);
/* Whether the value is exactly this string. */
bool json_is_word(const json_t *value, const char *word);

/* Typed members of an object. A missing key or JSON null gives `fallback`. A wrong type, a fraction
 * where an integer is required, or a value outside [min, max] is STATUS_INVALID with a message. */
status json_get_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max,
                    int64_t fallback, int64_t *out, error *err);
status json_get_double(const json_t *obj, const char *where, const char *key, double min,
                       double max, double fallback, double *out, error *err);
status json_get_bool(const json_t *obj, const char *where, const char *key, bool fallback,
                     bool *out, error *err);
/* Borrowed from obj; NULL when missing or null. Refuses strings with NUL inside. */
status json_get_string(const json_t *obj, const char *where, const char *key, const char **out,
                       error *err);

#endif
