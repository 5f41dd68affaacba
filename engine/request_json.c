/* The JSON of a request, with OpenAI's names: one parser for every front end. Each field is a
 * row. */
#include "engine/internal.h"

#include <limits.h>
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

static status read_uint(const field_place *at, uint32_t min, uint32_t *out, error *err)
{
    json_int_t v = json_integer_value(at->value);
    if (!json_is_integer(at->value) || v < (json_int_t)min || v > INT32_MAX)
        return error_set(err, STATUS_INVALID, "%s: %s: must be an integer, %u or more", at->where,
                         at->key, min);
    *out = (uint32_t)v;
    return STATUS_IS_OK;
}

static status read_int(const field_place *at, int32_t *out, error *err)
{
    json_int_t v = json_integer_value(at->value);
    if (!json_is_integer(at->value) || v < INT32_MIN || v > INT32_MAX)
        return refuse_field(at, err, "must be an integer of 32 bits");
    *out = (int32_t)v;
    return STATUS_IS_OK;
}

static status read_float(const field_place *at, float *out, error *err)
{
    if (!json_is_number(at->value)) return refuse_field(at, err, "must be a number");
    *out = (float)json_number_value(at->value);
    return STATUS_IS_OK;
}

static status read_bool(const field_place *at, bool *out, error *err)
{
    if (!json_is_boolean(at->value)) return refuse_field(at, err, "must be true or false");
    *out = json_is_true(at->value);
    return STATUS_IS_OK;
}

#define READER(name, call)                                                                         \
    static status read_##name(const field_place *at, engine_request *r, error *err) { return call; }

READER(min_tokens, read_uint(at, 0, &r->min_tokens, err))
READER(n, read_uint(at, 1, &r->n, err))
READER(top_k, read_int(at, &r->top_k, err))
READER(priority, read_int(at, &r->priority, err))
READER(temperature, read_float(at, &r->temperature, err))
READER(top_p, read_float(at, &r->top_p, err))
READER(min_p, read_float(at, &r->min_p, err))
READER(presence_penalty, read_float(at, &r->presence_penalty, err))
READER(frequency_penalty, read_float(at, &r->frequency_penalty, err))
READER(repetition_penalty, read_float(at, &r->repetition_penalty, err))
READER(ignore_eos, read_bool(at, &r->ignore_eos, err))
READER(include_stop, read_bool(at, &r->include_stop_str_in_output, err))
READER(skip_special, read_bool(at, &r->skip_special_tokens, err))
READER(add_special, read_bool(at, &r->add_special_tokens, err))

/* 0 asks for the prompt's logprobs alone. */
static status read_max_tokens(const field_place *at, engine_request *r, error *err)
{
    RETURN_IF_ERROR(read_uint(at, 0, &r->max_tokens, err));
    r->score_only = r->max_tokens == 0;
    return STATUS_IS_OK;
}

static status read_prompt_logprobs(const field_place *at, engine_request *r, error *err)
{
    uint32_t n = 0;
    RETURN_IF_ERROR(read_uint(at, 0, &n, err));
    r->prompt_logprobs = (int32_t)n;
    return STATUS_IS_OK;
}

static status read_seed(const field_place *at, engine_request *r, error *err)
{
    if (!json_is_integer(at->value)) return refuse_field(at, err, "must be an integer of 64 bits");
    r->seed = (uint64_t)json_integer_value(at->value);
    r->has_seed = true;
    return STATUS_IS_OK;
}

/* An integer, or chat's boolean: true asks for the sampled token's logprob alone, and top_logprobs
 * for that many tokens beside it. */
static status read_logprobs(const field_place *at, engine_request *r, error *err)
{
    if (json_is_boolean(at->value)) {
        if (json_is_true(at->value) && r->logprobs < 0) r->logprobs = 0;
        return STATUS_IS_OK;
    }
    return read_int(at, &r->logprobs, err);
}

static status read_top_logprobs(const field_place *at, engine_request *r, error *err)
{
    return read_int(at, &r->logprobs, err);
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

static status read_word(const field_place *at, char **out, error *err)
{
    RETURN_IF_ERROR(copy_string(at, at->value, out, err));
    if (strlen(*out) != json_string_length(at->value))
        return refuse_field(at, err, "holds a NUL byte");
    return STATUS_IS_OK;
}

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
READER(stop_token_ids, read_ids(at, &r->stop_token_ids, &r->n_stop_token_ids, err))

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
        char *end;
        unsigned long id = strtoul(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || id > INT32_MAX || !json_is_number(value))
            return refuse_field(at, err, "must be an object of token id to number");
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

READER(messages,
       keep_tree(at, &r->messages, json_is_array(at->value), "must be a list of messages", err))
READER(tools, keep_tree(at, &r->tools, json_is_array(at->value), "must be a list of tools", err))
READER(retention, keep_tree(at, &r->retention, json_is_object(at->value), "must be an object", err))

/* ---- the table ------------------------------------------------------------------------------- */

static const struct {
    const char *key;
    field_reader read;
} fields[] = {
    {"prompt", read_prompt},
    {"messages", read_messages},
    {"tools", read_tools},
    {"prompt_token_ids", read_prompt_token_ids},
    {"max_tokens", read_max_tokens},
    {"max_completion_tokens", read_max_tokens},
    {"min_tokens", read_min_tokens},
    {"n", read_n},
    {"temperature", read_temperature},
    {"top_p", read_top_p},
    {"min_p", read_min_p},
    {"top_k", read_top_k},
    {"presence_penalty", read_presence_penalty},
    {"frequency_penalty", read_frequency_penalty},
    {"repetition_penalty", read_repetition_penalty},
    {"seed", read_seed},
    {"logprobs", read_logprobs},
    {"top_logprobs", read_top_logprobs},
    {"prompt_logprobs", read_prompt_logprobs},
    {"stop", read_stop},
    {"stop_token_ids", read_stop_token_ids},
    {"ignore_eos", read_ignore_eos},
    {"include_stop_str_in_output", read_include_stop},
    {"skip_special_tokens", read_skip_special},
    {"add_special_tokens", read_add_special},
    {"logit_bias", read_logit_bias},
    {"priority", read_priority},
    {"cache_salt", read_cache_salt},
    {"retention", read_retention},
    {"session", read_session},
};

static field_reader find_reader(const char *key)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (strcmp(fields[i].key, key) == 0) return fields[i].read;
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
        field_reader read = find_reader(key);
        if (!read) return error_set(err, STATUS_INVALID, "%s: unknown field '%.64s'", where, key);
        field_place at = {value, where, key};
        if (!json_is_null(value)) RETURN_IF_ERROR(read(&at, r, err));
    }
    return STATUS_IS_OK;
}
