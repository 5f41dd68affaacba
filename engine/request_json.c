/* The JSON of a request, with OpenAI's names: one parser for every front end. The fields are the
 * rows of request_fields.inc. */
#include "engine/internal.h"

#include "base/number.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct field_place {
    const json_t *value;
    const char *where; /* the document */
    const char *key;
} field_place;

typedef status (*field_reader)(const field_place *at, engine_request *r, error *err);

static status refuse_field(const field_place *at, error *err, const char *what)
{
    return error_set(err, STATUS_INVALID, "%s: %s: %s", at->where, at->key, what);
}

/* ---- scalars --------------------------------------------------------------------------------- */

static status read_uint(const field_place *at, const engine_field *f, engine_request *r, error *err)
{
    json_int_t v = json_integer_value(at->value);
    if (!json_is_integer(at->value) || v < (json_int_t)f->range.min || v > INT32_MAX)
        return error_set(err, STATUS_INVALID, "%s: %s: must be an integer, %g or more", at->where,
                         at->key, f->range.min);
    engine_field_set_whole(f, v, r);
    return STATUS_IS_OK;
}

/* Reads a value of a field with a row. */
static status read_scalar(const field_place *at, const engine_field *f, engine_request *r,
                          error *err)
{
    json_int_t whole = json_integer_value(at->value);
    switch (f->kind) {
    case ENGINE_FIELD_FLOAT:
        if (!json_is_number(at->value)) return refuse_field(at, err, "must be a number");
        engine_field_set_float(f, (float)json_number_value(at->value), r);
        return STATUS_IS_OK;
    case ENGINE_FIELD_BOOL:
        if (!json_is_boolean(at->value)) return refuse_field(at, err, "must be true or false");
        engine_field_set_whole(f, json_is_true(at->value), r);
        return STATUS_IS_OK;
    case ENGINE_FIELD_INT:
        if (!json_is_integer(at->value) || whole < INT32_MIN || whole > INT32_MAX)
            return refuse_field(at, err, "must be an integer of 32 bits");
        engine_field_set_whole(f, whole, r);
        return STATUS_IS_OK;
    case ENGINE_FIELD_SEED:
        if (!json_is_integer(at->value))
            return refuse_field(at, err, "must be an integer of 64 bits");
        engine_field_set_whole(f, whole, r);
        return STATUS_IS_OK;
    case ENGINE_FIELD_LOGPROBS:
        /* Chat's boolean: true asks for the sampled token's logprob alone, and top_logprobs for
         * that many tokens beside it. */
        if (!json_is_boolean(at->value)) return read_uint(at, f, r, err);
        if (json_is_true(at->value) && r->logprobs < 0) r->logprobs = 0;
        return STATUS_IS_OK;
    case ENGINE_FIELD_UINT:
    case ENGINE_FIELD_LENGTH:
    case ENGINE_FIELD_TOP: return read_uint(at, f, r, err);
    }
    return STATUS_IS_OK;
}

static status read_max_completion_tokens(const field_place *at, engine_request *r, error *err)
{
    return read_uint(at, engine_field_find("max_tokens"), r, err);
}

static status read_top_logprobs(const field_place *at, engine_request *r, error *err)
{
    return read_uint(at, engine_field_find("logprobs"), r, err);
}

/* ---- strings and lists ----------------------------------------------------------------------- */

static status copy_string(const field_place *at, const json_t *value, char **out, error *err)
{
    if (!json_is_string(value)) return refuse_field(at, err, "must be a string");
    size_t n = json_string_length(value);
    char *copy = malloc(n + 1);
    if (!copy) return error_set(err, STATUS_NO_MEMORY, "%s: %s: out of memory", at->where, at->key);
    memcpy(copy, json_string_value(value), n + 1);
    free(*out);
    *out = copy;
    return STATUS_IS_OK;
}

static status read_prompt(const field_place *at, engine_request *r, error *err)
{
    r->prompt_bytes = json_string_length(at->value);
    return copy_string(at, at->value, &r->prompt, err);
}

/* Refuses a NUL byte in a string that is read as a C string. */
static status refuse_nul(const field_place *at, error *err)
{
    return json_word(at->value) ? STATUS_IS_OK : refuse_field(at, err, "holds a NUL byte");
}

static status read_word(const field_place *at, char **out, error *err)
{
    RETURN_IF_ERROR(copy_string(at, at->value, out, err));
    return refuse_nul(at, err);
}

#define READER(name, call)                                                                         \
    static status read_##name(const field_place *at, engine_request *r, error *err) { return call; }

READER(cache_salt, read_word(at, &r->cache_salt, err))

static status read_session(const field_place *at, engine_request *r, error *err)
{
    size_t n = json_string_length(at->value);
    if (json_is_string(at->value) && (n == 0 || n > ENGINE_SESSION_BYTES_MAX))
        return error_set(err, STATUS_INVALID, "%s: session: must have 1 to %d bytes", at->where,
                         ENGINE_SESSION_BYTES_MAX);
    return read_word(at, &r->session, err);
}

static status add_stop(const field_place *at, const json_t *value, engine_request *r, error *err)
{
    if (r->n_stop == ENGINE_STOPS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: stop: more than %d strings", at->where,
                         ENGINE_STOPS_MAX);
    char **slot = &r->stop[r->n_stop];
    *slot = NULL;
    RETURN_IF_ERROR(copy_string(at, value, slot, err));
    r->n_stop++;
    size_t n = json_string_length(value);
    if (n == 0 || n > ENGINE_STOP_BYTES_MAX || strlen(*slot) != n)
        return error_set(err, STATUS_INVALID, "%s: stop: strings have 1 to %d bytes and no NUL",
                         at->where, ENGINE_STOP_BYTES_MAX);
    return STATUS_IS_OK;
}

static status read_stop(const field_place *at, engine_request *r, error *err)
{
    /* A repeated field replaces the earlier one, as everywhere. */
    while (r->n_stop > 0) free(r->stop[--r->n_stop]);
    if (json_is_string(at->value)) return add_stop(at, at->value, r, err);
    if (!json_is_array(at->value))
        return refuse_field(at, err, "must be a string or a list of strings");
    size_t i;
    json_t *value;
    json_array_foreach(at->value, i, value) RETURN_IF_ERROR(add_stop(at, value, r, err));
    return STATUS_IS_OK;
}

static status read_ids(const field_place *at, uint32_t **ids, uint32_t *n, error *err)
{
    size_t count = json_array_size(at->value);
    if (!json_is_array(at->value) || count > INT32_MAX)
        return refuse_field(at, err, "must be a list of token ids");
    uint32_t *list = malloc((count + 1) * sizeof *list);
    if (!list) return error_set(err, STATUS_NO_MEMORY, "%s: %s: out of memory", at->where, at->key);
    free(*ids);
    *ids = list;
    *n = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_array_get(at->value, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return error_set(err, STATUS_INVALID, "%s: %s[%zu]: must be a token id", at->where,
                             at->key, i);
        list[i] = (uint32_t)json_integer_value(v);
    }
    return STATUS_IS_OK;
}

READER(prompt_token_ids, read_ids(at, &r->prompt_token_ids, &r->n_prompt_token_ids, err))
READER(allowed_token_ids, read_ids(at, &r->allowed_token_ids, &r->n_allowed_token_ids, err))
READER(stop_token_ids, read_ids(at, &r->stop_token_ids, &r->n_stop_token_ids, err))

static status read_truncate_prompt_tokens(const field_place *at, engine_request *r, error *err)
{
    json_int_t v = json_integer_value(at->value);
    if (!json_is_integer(at->value) || v < -1 || v == 0 || v > INT32_MAX)
        return refuse_field(at, err, "must be an integer, 1 or more, or -1");
    r->truncate_prompt_tokens = (int32_t)v;
    return STATUS_IS_OK;
}

static status read_logit_bias(const field_place *at, engine_request *r, error *err)
{
    if (!json_is_object(at->value))
        return refuse_field(at, err, "must be an object of token id to number");
    size_t n = json_object_size(at->value);
    free(r->bias_ids);
    free(r->bias);
    r->n_bias = 0;
    r->bias_ids = malloc((n + 1) * sizeof *r->bias_ids);
    r->bias = malloc((n + 1) * sizeof *r->bias);
    if (!r->bias_ids || !r->bias)
        return error_set(err, STATUS_NO_MEMORY, "%s: logit_bias: out of memory", at->where);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)at->value, key, value)
    {
        uint64_t id = 0;
        const char *end = number_read_whole(key, &id);
        if (!end || *end || id > INT32_MAX || !json_is_number(value))
            return refuse_field(at, err, "must be an object of token id to number");
        /* Other spellings of a number would give a token twice, which duplicate keys cannot. */
        if (key[0] == '0' && key[1])
            return error_set(err, STATUS_INVALID,
                             "%s: logit_bias: \"%.16s\": a token id has no leading zeros",
                             at->where, key);
        r->bias_ids[r->n_bias] = (uint32_t)id;
        r->bias[r->n_bias++] = (float)json_number_value(value);
    }
    return STATUS_IS_OK;
}

/* ---- trees ----------------------------------------------------------------------------------- */

static status keep_tree(const field_place *at, json_t **slot, bool right_type, const char *what,
                        error *err)
{
    if (!right_type) return refuse_field(at, err, what);
    json_decref(*slot);
    *slot = json_incref((json_t *)at->value);
    return STATUS_IS_OK;
}

/* Reads a method's word by `read`, or takes its object; `what` says which values there are. */
static status read_method(const field_place *at, json_t **slot,
                          status (*read)(const char *name, const char *text, json_t **out,
                                         error *err),
                          const char *what, error *err)
{
    if (!json_is_string(at->value))
        return keep_tree(at, slot, json_is_object(at->value), what, err);
    RETURN_IF_ERROR(refuse_nul(at, err));
    char name[64];
    json_t *object = NULL;
    snprintf(name, sizeof name, "%s: %s", at->where, at->key);
    RETURN_IF_ERROR(read(name, json_word(at->value), &object, err));
    json_decref(*slot);
    *slot = object;
    return STATUS_IS_OK;
}

READER(messages,
       keep_tree(at, &r->messages, json_is_array(at->value), "must be a list of messages", err))
READER(tools, keep_tree(at, &r->tools, json_is_array(at->value), "must be a list of tools", err))
READER(chat_template_kwargs,
       keep_tree(at, &r->chat_template_kwargs, json_is_object(at->value), "must be an object", err))
READER(chat_template, read_word(at, &r->chat_template, err))
READER(bad_words,
       keep_tree(at, &r->bad_words, json_is_array(at->value), "must be a list of strings", err))
READER(retention, read_method(at, &r->retention, retention_read_text,
                              "must be an object or METHOD:RATIO", err))
READER(retrieval, read_method(at, &r->retrieval, retrieval_read_text,
                              "must be an object, METHOD or METHOD:TOKENS", err))

READER(kv_transfer_params, engine_request_read_transfer(r, at->where, at->key, at->value, err))

#define FORM_READER(name) READER(name, form_read(at->where, at->key, at->value, &r->form, err))
FORM_READER(response_format)
FORM_READER(structured_outputs)
FORM_READER(guided_json)
FORM_READER(guided_regex)
FORM_READER(guided_choice)
FORM_READER(guided_grammar)
FORM_READER(grammar)
FORM_READER(json_schema)

/* ---- a whole request ------------------------------------------------------------------------- */

static const struct {
    const char *key;
    field_reader read;
} own_readers[] = {
#define OWN(name, ...) {#name, read_##name},
#include "engine/request_fields.inc"
};

static field_reader find_own_reader(const char *key)
{
    for (size_t i = 0; i < sizeof own_readers / sizeof own_readers[0]; i++)
        if (strcmp(own_readers[i].key, key) == 0) return own_readers[i].read;
    return NULL;
}

static bool is_among(const char *const *names, const char *key)
{
    for (; names && *names; names++)
        if (strcmp(*names, key) == 0) return true;
    return false;
}

status engine_request_parse(const json_t *json, const char *where, const char *const *also,
                            engine_request *r, error *err)
{
    if (!json_is_object(json))
        return error_set(err, STATUS_INVALID, "%s: must be a JSON object", where);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value)
    {
        if (is_among(also, key)) continue;
        const engine_field *row = engine_field_find(key);
        field_reader read = row ? NULL : find_own_reader(key);
        if (!row && !read)
            return error_set(err, STATUS_INVALID, "%s: unknown field '%.64s'", where, key);
        if (json_is_null(value)) continue;
        field_place at = {value, where, key};
        RETURN_IF_ERROR(row ? read_scalar(&at, row, r, err) : read(&at, r, err));
    }
    return STATUS_IS_OK;
}
