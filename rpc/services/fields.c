#include "rpc/services/fields.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

enum { FIELD_METHOD_BYTES = 128 }; // of a method's word, with the NUL

/* ---- texts ----------------------------------------------------------------------------------- */

static status no_memory(const char *name, error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", name);
}

status field_text(const char *name, ProtobufCBinaryData text, char **out, error *err)
{
    if (!utf8_valid(text.data, text.len))
        return error_set(err, STATUS_INVALID, "%s: is not UTF-8", name);
    char *copy = malloc(text.len + 1);
    if (!copy) return no_memory(name, err);
    if (text.len) memcpy(copy, text.data, text.len);
    copy[text.len] = '\0';
    free(*out);
    *out = copy;
    return STATUS_IS_OK;
}

status field_word(const char *name, ProtobufCBinaryData text, char *out, size_t size, error *err)
{
    if (text.len >= size)
        return error_set(err, STATUS_INVALID, "%s: is longer than %zu bytes", name, size - 1);
    if (!utf8_valid(text.data, text.len) || (text.len && memchr(text.data, 0, text.len)))
        return error_set(err, STATUS_INVALID, "%s: must be UTF-8 without NUL", name);
    if (text.len) memcpy(out, text.data, text.len);
    out[text.len] = '\0';
    return STATUS_IS_OK;
}

status field_prompt(const char *name, ProtobufCBinaryData text, engine_request *r, error *err)
{
    r->prompt_bytes = text.len;
    return field_text(name, text, &r->prompt, err);
}

status field_stops(const char *name, const ProtobufCBinaryData *stops, size_t n, engine_request *r,
                   error *err)
{
    if (n > ENGINE_STOPS_MAX)
        return error_set(err, STATUS_INVALID, "%s: more than %d strings", name, ENGINE_STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        if (stops[i].len == 0 || stops[i].len > ENGINE_STOP_BYTES_MAX ||
            memchr(stops[i].data, 0, stops[i].len))
            return error_set(err, STATUS_INVALID, "%s: strings have 1 to %d bytes and no NUL", name,
                             ENGINE_STOP_BYTES_MAX);
        RETURN_IF_ERROR(field_text(name, stops[i], &r->stop[r->n_stop], err));
        r->n_stop++;
    }
    return STATUS_IS_OK;
}

/* The engine checks how long they are. */
status field_bad_words(const char *name, const ProtobufCBinaryData *words, size_t n,
                       engine_request *r, error *err)
{
    if (n == 0) return STATUS_IS_OK;
    if (n > ENGINE_BAD_WORDS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: more than %d strings", name, ENGINE_BAD_WORDS_MAX);
    r->bad_words = json_array();
    for (size_t i = 0; r->bad_words && i < n; i++) {
        if (!utf8_valid(words[i].data, words[i].len))
            return error_set(err, STATUS_INVALID, "%s[%zu]: is not UTF-8", name, i);
        json_t *text = json_stringn(words[i].len ? (const char *)words[i].data : "", words[i].len);
        if (!text || json_array_append_new(r->bad_words, text) != 0) return no_memory(name, err);
    }
    return r->bad_words ? STATUS_IS_OK : no_memory(name, err);
}

status field_json(const char *name, ProtobufCBinaryData text, json_type type, json_t **out,
                  error *err)
{
    if (text.len == 0) return STATUS_IS_OK;
    if (text.len > FIELD_JSON_BYTES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: more than %d bytes of JSON", name,
                         FIELD_JSON_BYTES_MAX);
    json_t *doc = NULL;
    RETURN_IF_ERROR(json_read_argument(name, (const char *)text.data, text.len, &doc, err));
    if (json_typeof(doc) != type) {
        json_decref(doc);
        return error_set(err, STATUS_INVALID, "%s: must be %s", name,
                         type == JSON_OBJECT ? "a JSON object" : "a JSON array");
    }
    json_decref(*out);
    *out = doc;
    return STATUS_IS_OK;
}

/* Reads a method's word by `read`, or an object in JSON. */
static status read_method(const char *name, ProtobufCBinaryData text,
                          status (*read)(const char *name, const char *text, json_t **out,
                                         error *err),
                          json_t **out, error *err)
{
    char word[FIELD_METHOD_BYTES];
    if (text.len == 0 || !isalpha(text.data[0]))
        return field_json(name, text, JSON_OBJECT, out, err);
    RETURN_IF_ERROR(field_word(name, text, word, sizeof word, err));
    json_t *object = NULL;
    RETURN_IF_ERROR(read(name, word, &object, err));
    json_decref(*out);
    *out = object;
    return STATUS_IS_OK;
}

status field_retention(const char *name, ProtobufCBinaryData text, json_t **out, error *err)
{
    return read_method(name, text, retention_read_text, out, err);
}

status field_retrieval(const char *name, ProtobufCBinaryData text, json_t **out, error *err)
{
    return read_method(name, text, retrieval_read_text, out, err);
}

status field_model(const service *s, const char *name, ProtobufCBinaryData text, error *err)
{
    if (service_knows_model(s, (const char *)text.data, text.len)) return STATUS_IS_OK;
    char shown[65];
    if (!status_ok(field_word(name, text, shown, sizeof shown, err)))
        return error_set(err, STATUS_NOT_FOUND, "%s: is not served here", name);
    return error_set(err, STATUS_NOT_FOUND, "%s: '%s' is not served here", name, shown);
}

status field_session(const char *name, ProtobufCBinaryData text, engine_request *r, error *err)
{
    char word[ENGINE_SESSION_BYTES_MAX + 1];
    if (text.len == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(field_word(name, text, word, sizeof word, err));
    return field_text(name, text, &r->session, err);
}

/* ---- numbers --------------------------------------------------------------------------------- */

status field_ids(const char *name, const uint32_t *ids, size_t n, uint32_t **out, uint32_t *n_out,
                 error *err)
{
    if (n > INT32_MAX) return error_set(err, STATUS_INVALID, "%s: too many token ids", name);
    for (size_t i = 0; i < n; i++)
        if (ids[i] > INT32_MAX)
            return error_set(err, STATUS_INVALID, "%s[%zu]: %u is no token id", name, i, ids[i]);
    /* One more element, so that an empty list is not NULL. */
    uint32_t *copy = malloc((n + 1) * sizeof *copy);
    if (!copy) return no_memory(name, err);
    if (n) memcpy(copy, ids, n * sizeof *copy);
    free(*out);
    *out = copy;
    *n_out = (uint32_t)n;
    return STATUS_IS_OK;
}

static status check_finite(const char *name, float value, error *err)
{
    if (isfinite(value)) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: must be a finite number", name);
}

static int64_t whole_of(const ProtobufCFieldDescriptor *d, const void *member)
{
    switch (d->type) {
    case PROTOBUF_C_TYPE_BOOL: return *(const protobuf_c_boolean *)member;
    case PROTOBUF_C_TYPE_INT32: return *(const int32_t *)member;
    case PROTOBUF_C_TYPE_UINT32: return *(const uint32_t *)member;
    default: return *(const int64_t *)member;
    }
}

/* Whether the message has a value for the row. */
static bool is_given(const engine_field *f, const ProtobufCFieldDescriptor *d,
                     const ProtobufCMessage *m)
{
    const char *bytes = (const char *)m;
    if (d->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return *(const uint32_t *)(bytes + d->quantifier_offset) == d->id;
    if (engine_field_in_range(f, 0)) return true;
    const void *member = bytes + d->offset;
    return d->type == PROTOBUF_C_TYPE_FLOAT ? *(const float *)member != 0
                                            : whole_of(d, member) != 0;
}

static status read_whole(const char *name, const engine_field *f, int64_t value, engine_request *r,
                         error *err)
{
    bool likeliest = f->kind == ENGINE_FIELD_TOP || f->kind == ENGINE_FIELD_LOGPROBS;
    if (likeliest && !engine_field_in_range(f, (double)value))
        return error_set(err, STATUS_INVALID, "%s: must be in %g .. %g", name, f->range.min,
                         f->range.max);
    if (f->kind != ENGINE_FIELD_SEED && value > INT32_MAX)
        return error_set(err, STATUS_INVALID, "%s: %lld is more than %d", name, (long long)value,
                         INT32_MAX);
    engine_field_set_whole(f, value, r);
    return STATUS_IS_OK;
}

status field_rows(const char *prefix, const ProtobufCMessage *m, engine_request *r, error *err)
{
    for (size_t i = 0; i < ENGINE_FIELDS; i++) {
        const engine_field *f = &engine_fields()[i];
        const ProtobufCFieldDescriptor *d =
            protobuf_c_message_descriptor_get_field_by_name(m->descriptor, f->name);
        if (!d || !is_given(f, d, m)) continue;
        const void *member = (const char *)m + d->offset;
        char name[64];
        snprintf(name, sizeof name, "%s%s", prefix, f->name);
        if (f->kind != ENGINE_FIELD_FLOAT) {
            RETURN_IF_ERROR(read_whole(name, f, whole_of(d, member), r, err));
            continue;
        }
        RETURN_IF_ERROR(check_finite(name, *(const float *)member, err));
        engine_field_set_float(f, *(const float *)member, r);
    }
    return STATUS_IS_OK;
}

status field_bias_begin(size_t n, engine_request *r, error *err)
{
    r->bias_ids = malloc((n + 1) * sizeof *r->bias_ids);
    r->bias = malloc((n + 1) * sizeof *r->bias);
    return r->bias_ids && r->bias ? STATUS_IS_OK : no_memory("logit_bias", err);
}

status field_bias_add(const char *name, int64_t id, float value, engine_request *r, error *err)
{
    if (id < 0 || id > INT32_MAX)
        return error_set(err, STATUS_INVALID, "%s: %lld is no token id", name, (long long)id);
    RETURN_IF_ERROR(check_finite(name, value, err));
    r->bias[r->n_bias] = value;
    r->bias_ids[r->n_bias++] = (uint32_t)id;
    return STATUS_IS_OK;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

status field_bias_end(const char *name, const engine_request *r, error *err)
{
    uint32_t *sorted = malloc((r->n_bias + 1) * sizeof *sorted);
    if (!sorted) return no_memory(name, err);
    if (r->n_bias) memcpy(sorted, r->bias_ids, r->n_bias * sizeof *sorted);
    qsort(sorted, r->n_bias, sizeof *sorted, by_value);
    status s = STATUS_IS_OK;
    for (uint32_t i = 1; i < r->n_bias && status_ok(s); i++)
        if (sorted[i] == sorted[i - 1])
            s = error_set(err, STATUS_INVALID, "%s: token %u is given twice", name, sorted[i]);
    free(sorted);
    return s;
}
