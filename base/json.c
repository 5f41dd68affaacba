#include "base/json.h"

#include "base/file.h"
#include "base/strbuf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DOUBLE_INTEGERS_MAX 9007199254740992.0 /* 2^53: doubles up to this are exact integers */

status json_read_file(const char *path, size_t max_bytes, json_t **out, error *err)
{
    char *text;
    size_t n;
    RETURN_IF_ERROR(file_read(path, max_bytes, &text, &n, err));
    status result = json_read_text(path, text, n, out, err);
    free(text);
    return result;
}

const char *json_word(const json_t *value)
{
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

bool json_is_word(const json_t *value, const char *word)
{
    const char *own = json_word(value);
    return own && strcmp(own, word) == 0;
}

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

static status wrong_type(const char *where, const char *key, const char *due, const json_t *v,
                         error *err)
{
    return error_set(err, STATUS_INVALID, "%s: \"%s\" must be %s, not %s", where, key, due,
                     type_name(v));
}

/* *member is NULL where the key is missing or null. */
static status find_member(const json_t *obj, const char *where, const char *key,
                          const json_t **member, error *err)
{
    *member = NULL;
    if (!obj || json_is_null(obj)) return STATUS_IS_OK;
    if (!json_is_object(obj))
        return error_set(err, STATUS_INVALID, "%s: must be an object, not %s", where,
                         type_name(obj));
    const json_t *v = json_object_get(obj, key);
    if (v && !json_is_null(v)) *member = v;
    return STATUS_IS_OK;
}

status json_get_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max,
                    int64_t fallback, int64_t *out, error *err)
{
    const json_t *v;
    RETURN_IF_ERROR(find_member(obj, where, key, &v, err));
    if (!v) {
        *out = fallback;
        return STATUS_IS_OK;
    }
    int64_t value;
    if (json_is_integer(v)) {
        value = json_integer_value(v);
    } else if (json_is_real(v)) {
        double real = json_real_value(v);
        if (real != floor(real) || fabs(real) > DOUBLE_INTEGERS_MAX)
            return error_set(err, STATUS_INVALID, "%s: \"%s\" must be an integer, not %.17g", where,
                             key, real);
        value = (int64_t)real;
    } else {
        return wrong_type(where, key, "an integer", v, err);
    }
    if (value < min || value > max)
        return error_set(err, STATUS_INVALID, "%s: \"%s\" is %lld, must be between %lld and %lld",
                         where, key, (long long)value, (long long)min, (long long)max);
    *out = value;
    return STATUS_IS_OK;
}

status json_get_double(const json_t *obj, const char *where, const char *key, double min,
                       double max, double fallback, double *out, error *err)
{
    const json_t *v;
    RETURN_IF_ERROR(find_member(obj, where, key, &v, err));
    if (!v) {
        *out = fallback;
        return STATUS_IS_OK;
    }
    if (!json_is_number(v)) return wrong_type(where, key, "a number", v, err);
    double value = json_number_value(v);
    if (!(value >= min && value <= max))
        return error_set(err, STATUS_INVALID, "%s: \"%s\" is %g, must be between %g and %g", where,
                         key, value, min, max);
    *out = value;
    return STATUS_IS_OK;
}

status json_get_bool(const json_t *obj, const char *where, const char *key, bool fallback,
                     bool *out, error *err)
{
    const json_t *v;
    RETURN_IF_ERROR(find_member(obj, where, key, &v, err));
    if (v && !json_is_boolean(v)) return wrong_type(where, key, "a boolean", v, err);
    *out = v ? json_is_true(v) : fallback;
    return STATUS_IS_OK;
}

status json_get_string(const json_t *obj, const char *where, const char *key, const char **out,
                       error *err)
{
    const json_t *v;
    RETURN_IF_ERROR(find_member(obj, where, key, &v, err));
    if (v && !json_is_string(v)) return wrong_type(where, key, "a string", v, err);
    const char *word = json_word(v);
    if (v && !word)
        return error_set(err, STATUS_INVALID, "%s: \"%s\" must not contain NUL", where, key);
    *out = word;
    return STATUS_IS_OK;
}

static int append_text(const char *text, size_t n, void *out)
{
    strbuf_append(out, text, n);
    return 0; // jansson passes over some failures of this function: the buffer remembers its own
}

char *json_write(const json_t *value, size_t flags)
{
    strbuf out = {0};
    if (json_dump_callback(value, append_text, &out, flags) == 0 && !out.failed) return out.data;
    strbuf_destroy(&out);
    return NULL;
}
