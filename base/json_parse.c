/* The JSON reader: text in, jansson's values out.
 *
 * jansson's own reader ignores a failing malloc while it gathers a string, and then reads and
 * writes past the end of its buffer (2.14: lex_save). Here every allocation is checked, and a text
 * for which there is no memory is STATUS_NO_MEMORY. Both readers accept the same texts, but for two
 * cases: a NUL after the value is an error here and none for jansson, and the innermost of 2,048
 * nested lists may hold values here. */
#include "base/json.h"

#include "base/number.h"
#include "base/strbuf.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 2048, NEAR_BYTES = 16 };

typedef struct reader {
    const char *text, *at, *end;
    strbuf string; /* the last string that was read, without escapes, or the last number */
    unsigned depth;
    status_code code;
    const char *wrong; /* static */
} reader;

static json_t *refuse_text(reader *r, const char *wrong)
{
    if (status_ok((status){r->code, NULL})) {
        r->code = STATUS_CORRUPT;
        r->wrong = wrong;
    }
    return NULL;
}

static json_t *out_of_memory(reader *r)
{
    r->code = STATUS_NO_MEMORY;
    return NULL;
}

static json_t *made(reader *r, json_t *value) { return value ? value : out_of_memory(r); }

static void skip_blanks(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
}

/* The next byte that is not blank; NUL at the end (and for a NUL, which is refused as well). */
static char next_byte(reader *r)
{
    skip_blanks(r);
    return r->at < r->end ? *r->at : '\0';
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Four hex digits at r->at; UINT32_MAX when they are not there. */
static uint32_t read_hex(reader *r)
{
    uint32_t value = 0;
    if (r->end - r->at < 4) return UINT32_MAX;
    for (int i = 0; i < 4; i++) {
        char c = r->at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return UINT32_MAX;
        value = value * 16 + (uint32_t)digit;
    }
    r->at += 4;
    return value;
}

/* Reads the escape after "\u". */
static bool read_code_point(reader *r)
{
    uint8_t bytes[4];
    uint32_t cp = read_hex(r);
    if (cp >= 0xd800 && cp <= 0xdbff && r->end - r->at >= 6 && r->at[0] == '\\' &&
        r->at[1] == 'u') {
        r->at += 2;
        uint32_t low = read_hex(r);
        bool pair = low >= 0xdc00 && low <= 0xdfff;
        cp = pair ? 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00) : UINT32_MAX;
    }
    if (cp == UINT32_MAX || (cp >= 0xd800 && cp <= 0xdfff)) {
        refuse_text(r, "invalid Unicode escape");
        return false;
    }
    strbuf_append(&r->string, bytes, utf8_encode(cp, bytes));
    return true;
}

/* Reads the escape after a backslash. */
static bool read_escape(reader *r)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->end ? *r->at++ : '\0';
    if (c == 'u') return read_code_point(r);
    const char *name = c ? strchr(names, c) : NULL;
    if (name) strbuf_putc(&r->string, values[name - names]);
    else refuse_text(r, "invalid escape");
    return name != NULL;
}

/* Appends the bytes up to the next quote, backslash or control character. */
static bool read_plain(reader *r)
{
    const char *from = r->at;
    while (r->at < r->end && *r->at != '"' && *r->at != '\\' && (unsigned char)*r->at >= 0x20)
        r->at++;
    if (!utf8_valid((const uint8_t *)from, (size_t)(r->at - from))) {
        r->at = from;
        refuse_text(r, "invalid UTF-8 in a string");
        return false;
    }
    strbuf_append(&r->string, from, (size_t)(r->at - from));
    return true;
}

/* Reads a string into r->string, from its first quote on. */
static bool read_string(reader *r)
{
    strbuf_clear(&r->string);
    if (!strbuf_reserve(&r->string, 0)) return out_of_memory(r);
    for (r->at++; read_plain(r);) {
        if (r->at == r->end) return refuse_text(r, "a string has no end");
        if ((unsigned char)*r->at < 0x20) return refuse_text(r, "control character in a string");
        bool last = *r->at++ == '"';
        if (!last && !read_escape(r)) return false;
        if (r->string.failed) return out_of_memory(r);
        if (last) return true;
    }
    return false;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool skip_digits(const char **at, const char *end)
{
    const char *from = *at;
    while (*at < end && **at >= '0' && **at <= '9') ++*at;
    return *at > from;
}

/* The end of a number that begins at `at`, or NULL. *real: it has a fraction or an exponent. */
static const char *number_end(const char *at, const char *end, bool *real)
{
    *real = false;
    if (at < end && *at == '-') at++;
    if (at < end && *at == '0') at++;
    else if (!skip_digits(&at, end)) return NULL;
    if (at < end && *at == '.') {
        *real = true;
        at++;
        if (!skip_digits(&at, end)) return NULL;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        *real = true;
        at++;
        if (at < end && (*at == '+' || *at == '-')) at++;
        if (!skip_digits(&at, end)) return NULL;
    }
    return at;
}

static json_t *read_number(reader *r)
{
    bool real;
    const char *end = number_end(r->at, r->end, &real);
    if (!end) return refuse_text(r, "invalid number");
    strbuf_clear(&r->string); /* the text need not end in NUL: a copy does */
    strbuf_append(&r->string, r->at, (size_t)(end - r->at));
    if (r->string.failed) return out_of_memory(r);
    const char *digits = r->string.data;
    errno = 0;
    double value = 0;
    long long whole = real ? 0 : strtoll(digits, NULL, 10);
    if (!real && errno == ERANGE) return refuse_text(r, "integer is too large");
    if (real && !number_read(digits, &value)) return refuse_text(r, "number is too large");
    r->at = end;
    return made(r, real ? json_real(value) : json_integer(whole));
}

/* ---- values ---------------------------------------------------------------------------------- */

static json_t *read_value(reader *r);

static json_t *read_word(reader *r)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t n = 0;
    while (r->at + n < r->end && r->at[n] >= 'a' && r->at[n] <= 'z') n++;
    for (int i = 0; i < 3; i++) {
        if (strlen(words[i]) != n || memcmp(words[i], r->at, n) != 0) continue;
        r->at += n;
        return i == 2 ? json_null() : json_boolean(i == 0);
    }
    return refuse_text(r, "a value is expected");
}

/* Looks behind an item of a list. True at a comma, which is skipped; otherwise the list must end
 * here. */
static bool goes_on(reader *r, char last, const char *expected)
{
    char c = next_byte(r);
    if (c != ',' && c != last) return refuse_text(r, expected);
    r->at++;
    return c == ',';
}

static bool read_member(reader *r, json_t *object)
{
    if (next_byte(r) != '"') return refuse_text(r, "a string or '}' is expected");
    const char *place = r->at;
    if (!read_string(r)) return false;
    if (memchr(r->string.data, '\0', r->string.size))
        return refuse_text(r, "NUL in an object's key");
    char *key = strdup(r->string.data); /* the value may have strings of its own */
    if (!key) return out_of_memory(r);
    json_t *value = NULL;
    if (next_byte(r) == ':') {
        r->at++;
        value = read_value(r);
    } else refuse_text(r, "':' is expected");
    size_t before = json_object_size(object);
    bool set = value && json_object_set_new_nocheck(object, key, value) == 0;
    free(key);
    if (value && !set) return out_of_memory(r);
    if (!set) return false;
    if (json_object_size(object) > before) return true;
    r->at = place;
    return refuse_text(r, "duplicate object key");
}

static json_t *read_object(reader *r)
{
    json_t *object = json_object();
    if (!object) return out_of_memory(r);
    r->at++;
    bool more = next_byte(r) != '}';
    if (!more) r->at++;
    while (more && read_member(r, object)) more = goes_on(r, '}', "',' or '}' is expected");
    if (r->code == STATUS_OK) return object;
    json_decref(object);
    return NULL;
}

static json_t *read_array(reader *r)
{
    json_t *array = json_array();
    if (!array) return out_of_memory(r);
    r->at++;
    bool more = next_byte(r) != ']';
    if (!more) r->at++;
    while (more) {
        json_t *item = read_value(r);
        if (item && json_array_append_new(array, item) != 0) out_of_memory(r);
        more = r->code == STATUS_OK && goes_on(r, ']', "',' or ']' is expected");
    }
    if (r->code == STATUS_OK) return array;
    json_decref(array);
    return NULL;
}

static json_t *read_list(reader *r, json_t *(*read)(reader *r))
{
    if (r->depth == DEPTH_MAX) return refuse_text(r, "nested too deep");
    r->depth++;
    json_t *list = read(r);
    r->depth--;
    return list;
}

static json_t *read_value(reader *r)
{
    char c = next_byte(r);
    if (c == '{') return read_list(r, read_object);
    if (c == '[') return read_list(r, read_array);
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(r);
    if (c != '"') return read_word(r);
    if (!read_string(r)) return NULL;
    return made(r, json_stringn_nocheck(r->string.data, r->string.size));
}

/* ---- the whole text -------------------------------------------------------------------------- */

/* Makes the message: where reading stopped, and the character there when it can be shown. */
static status describe_error(const reader *r, const char *where, error *err)
{
    char near[NEAR_BYTES + 1];
    size_t line = 1, column = 1, n = 0;
    if (r->code == STATUS_NO_MEMORY)
        return error_set(err, r->code, "%s: out of memory for a text of %zu bytes", where,
                         (size_t)(r->end - r->text));
    for (const char *p = r->text; p < r->at; p++) {
        if (*p == '\n') {
            line++;
            column = 1;
        } else column += ((unsigned char)*p & 0xc0) != 0x80;
    }
    while (n < NEAR_BYTES && r->at + n < r->end && r->at[n] > ' ' && r->at[n] < 0x7f) {
        near[n] = r->at[n];
        n++;
    }
    near[n] = '\0';
    return error_set(err, r->code, "%s: line %zu, column %zu: %s%s%s%s", where, line, column,
                     r->wrong, n ? " near '" : "", near, n ? "'" : "");
}

status json_read_text(const char *where, const char *text, size_t n, json_t **out, error *err)
{
    reader r = {.text = text, .at = text, .end = text + n, .code = STATUS_OK};
    json_t *doc = read_value(&r);
    if (doc) skip_blanks(&r);
    if (doc && r.at < r.end) refuse_text(&r, "end of file expected");
    strbuf_destroy(&r.string);
    if (r.code == STATUS_OK) {
        *out = doc;
        return STATUS_IS_OK;
    }
    json_decref(doc);
    return describe_error(&r, where, err);
}

status json_read_argument(const char *name, const char *text, size_t n, json_t **out, error *err)
{
    status s = json_read_text(name, text, n, out, err);
    return s.code == STATUS_CORRUPT ? status_make(STATUS_INVALID, NULL) : s;
}

status json_refuse_word(const char *name, const char *text, error *err)
{
    bool valid = utf8_valid((const uint8_t *)text, strlen(text));
    return valid ? error_set(err, STATUS_NO_MEMORY, "%s: out of memory", name)
                 : error_set(err, STATUS_INVALID, "%s: is not UTF-8", name);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static json_t *copy_object(const json_t *from)
{
    json_t *to = json_object(), *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)from, key, value)
    {
        json_t *copy = to ? json_copy_whole(value) : NULL;
        if (copy && json_object_set_new_nocheck(to, key, copy) == 0) continue;
        json_decref(to);
        return NULL;
    }
    return to;
}

static json_t *copy_array(const json_t *from)
{
    json_t *to = json_array();
    for (size_t i = 0; to && i < json_array_size(from); i++) {
        json_t *copy = json_copy_whole(json_array_get(from, i));
        if (copy && json_array_append_new(to, copy) == 0) continue;
        json_decref(to);
        return NULL;
    }
    return to;
}

json_t *json_copy_whole(const json_t *from)
{
    switch (json_typeof(from)) {
    case JSON_OBJECT: return copy_object(from);
    case JSON_ARRAY: return copy_array(from);
    case JSON_STRING:
        return json_stringn_nocheck(json_string_value(from), json_string_length(from));
    case JSON_INTEGER: return json_integer(json_integer_value(from));
    case JSON_REAL: return json_real(json_real_value(from));
    case JSON_TRUE:
    case JSON_FALSE: return json_boolean(json_is_true(from));
    default: return json_null();
    }
}
