/* The table of fields that bodies may have. A field without a row goes to the engine's parser if
 * the endpoint generates; otherwise it is unknown. */
#include "rpc/openai/internal.h"

#include <stdlib.h>
#include <string.h>

typedef enum field_rule {
    FIELD_HERE,    // read by rpc/openai
    FIELD_ENGINE,  // read by engine_request_parse
    FIELD_VALUES,  // not supported; text: JSON list of the values that ask for nothing
    FIELD_STRING,  // any string; the field is defined to change no answer
    FIELD_OBJECT,  // any object; the field is defined to change no answer
    FIELD_REFUSED, // refused; text: why
    FIELD_UNKNOWN, // the engine's parser knows the field, this endpoint does not have it
} field_rule;

typedef struct field_row {
    const char *key;
    unsigned endpoints;
    field_rule rule;
    const char *text;
} field_row;

enum {
    GENERATES = FOR_COMPLETION | FOR_CHAT,
    CONVERTED = FOR_RESPONSES | FOR_MESSAGES, // a chat's body is made of these
    ANSWERS = GENERATES | CONVERTED,
    HAS_TOOLS = FOR_CHAT | CONVERTED,
    HAS_PARALLEL = FOR_CHAT | FOR_RESPONSES,
    HAS_MESSAGES = FOR_CHAT | FOR_TOKENIZE,
    OPENAI_ANSWERS = GENERATES | FOR_RESPONSES,
    HAS_ID = ANSWERS | FOR_EMBEDDINGS,
    HAS_INPUT = FOR_RESPONSES | FOR_EMBEDDINGS,
    HAS_USER = OPENAI_ANSWERS | FOR_EMBEDDINGS,
    FOR_ANY = ANSWERS | FOR_TOKENIZE | FOR_DETOKENIZE | FOR_EMBEDDINGS,
};

static const field_row rows[] = {
    /* Fields of the endpoints. */
    {"model", FOR_ANY, FIELD_HERE, NULL},
    {"stream", ANSWERS, FIELD_HERE, NULL},
    {"stream_options", OPENAI_ANSWERS, FIELD_HERE, NULL},
    {"return_token_ids", GENERATES, FIELD_HERE, NULL},
    {"return_tokens_as_token_ids", GENERATES, FIELD_HERE, NULL},
    {"request_id", HAS_ID, FIELD_HERE, NULL},
    {"progress", GENERATES, FIELD_HERE, NULL},
    {"prompt", FOR_COMPLETION, FIELD_HERE, NULL},
    {"echo", FOR_COMPLETION, FIELD_HERE, NULL},
    {"best_of", FOR_COMPLETION, FIELD_HERE, NULL},
    {"tools", HAS_TOOLS, FIELD_HERE, NULL},
    {"tool_choice", HAS_TOOLS, FIELD_HERE, NULL},
    {"parallel_tool_calls", HAS_PARALLEL, FIELD_HERE, NULL},
    {"prompt", FOR_TOKENIZE, FIELD_ENGINE, NULL},
    {"messages", FOR_TOKENIZE, FIELD_ENGINE, NULL},
    {"tools", FOR_TOKENIZE, FIELD_ENGINE, NULL},
    {"add_special_tokens", FOR_TOKENIZE, FIELD_ENGINE, NULL},
    {"add_generation_prompt", FOR_TOKENIZE, FIELD_ENGINE, NULL},
    {"continue_final_message", FOR_TOKENIZE, FIELD_ENGINE, NULL},
    {"chat_template_kwargs", FOR_TOKENIZE, FIELD_ENGINE, NULL},
    {"chat_template", FOR_TOKENIZE, FIELD_ENGINE, NULL},
    {"reasoning_effort", HAS_MESSAGES, FIELD_HERE, NULL},
    {"documents", HAS_MESSAGES, FIELD_HERE, NULL},
    {"include_reasoning", HAS_TOOLS, FIELD_HERE, NULL},
    {"tokens", FOR_DETOKENIZE, FIELD_HERE, NULL},
    {"input", HAS_INPUT, FIELD_HERE, NULL},
    {"encoding_format", FOR_EMBEDDINGS, FIELD_HERE, NULL},
    {"dimensions", FOR_EMBEDDINGS, FIELD_HERE, NULL},
    {"pooling", FOR_EMBEDDINGS, FIELD_HERE, NULL},
    {"normalize", FOR_EMBEDDINGS, FIELD_HERE, NULL},
    {"add_special_tokens", FOR_EMBEDDINGS, FIELD_ENGINE, NULL},
    {"truncate_prompt_tokens", FOR_EMBEDDINGS, FIELD_ENGINE, NULL},
    {"priority", FOR_EMBEDDINGS, FIELD_ENGINE, NULL},
    {"cache_salt", FOR_EMBEDDINGS, FIELD_ENGINE, NULL},
    {"instructions", FOR_RESPONSES, FIELD_HERE, NULL},
    {"previous_response_id", FOR_RESPONSES, FIELD_HERE, NULL},
    {"store", FOR_RESPONSES, FIELD_HERE, NULL},
    {"max_output_tokens", FOR_RESPONSES, FIELD_HERE, NULL},
    {"text", FOR_RESPONSES, FIELD_HERE, NULL},
    {"reasoning", FOR_RESPONSES, FIELD_HERE, NULL},
    {"include", FOR_RESPONSES, FIELD_HERE, NULL},
    {"messages", FOR_MESSAGES, FIELD_HERE, NULL},
    {"max_tokens", FOR_MESSAGES, FIELD_HERE, NULL},
    {"system", FOR_MESSAGES, FIELD_HERE, NULL},
    {"stop_sequences", FOR_MESSAGES, FIELD_HERE, NULL},
    {"thinking", FOR_MESSAGES, FIELD_HERE, NULL},
    {"output_config", FOR_MESSAGES, FIELD_HERE, NULL},

    /* Fields of other endpoints. */
    {"messages", FOR_COMPLETION, FIELD_UNKNOWN, NULL},
    {"tools", FOR_COMPLETION, FIELD_UNKNOWN, NULL},
    {"add_generation_prompt", FOR_COMPLETION, FIELD_UNKNOWN, NULL},
    {"continue_final_message", FOR_COMPLETION, FIELD_UNKNOWN, NULL},
    {"chat_template_kwargs", FOR_COMPLETION, FIELD_UNKNOWN, NULL},
    {"chat_template", FOR_COMPLETION, FIELD_UNKNOWN, NULL},
    {"top_logprobs", FOR_COMPLETION, FIELD_UNKNOWN, NULL},
    {"prompt", FOR_CHAT, FIELD_UNKNOWN, NULL},
    {"prompt_token_ids", ANSWERS, FIELD_UNKNOWN, NULL},
    {"n", CONVERTED, FIELD_UNKNOWN, NULL},
    {"logprobs", CONVERTED, FIELD_UNKNOWN, NULL},
    {"prompt_logprobs", CONVERTED, FIELD_UNKNOWN, NULL},
    {"max_completion_tokens", CONVERTED, FIELD_UNKNOWN, NULL},
    {"response_format", CONVERTED, FIELD_UNKNOWN, NULL},
    {"add_generation_prompt", CONVERTED, FIELD_UNKNOWN, NULL},
    {"continue_final_message", CONVERTED, FIELD_UNKNOWN, NULL},
    {"add_special_tokens", CONVERTED, FIELD_UNKNOWN, NULL},
    {"messages", FOR_RESPONSES, FIELD_UNKNOWN, NULL},
    {"max_tokens", FOR_RESPONSES, FIELD_UNKNOWN, NULL},
    {"prompt", FOR_MESSAGES, FIELD_UNKNOWN, NULL},
    {"top_logprobs", FOR_MESSAGES, FIELD_UNKNOWN, NULL},
    {"stop", FOR_MESSAGES, FIELD_UNKNOWN, NULL},

    /* Fields that clients often send and that change no answer. */
    {"user", HAS_USER, FIELD_STRING, NULL},
    {"safety_identifier", OPENAI_ANSWERS, FIELD_STRING, NULL},
    {"prompt_cache_key", OPENAI_ANSWERS, FIELD_STRING, NULL},
    {"prompt_cache_retention", OPENAI_ANSWERS, FIELD_STRING, NULL},
    {"metadata", ANSWERS, FIELD_OBJECT, NULL},
    {"store", GENERATES, FIELD_VALUES, "[false]"},
    {"service_tier", OPENAI_ANSWERS, FIELD_VALUES, "[\"auto\",\"default\"]"},
    {"service_tier", FOR_MESSAGES, FIELD_VALUES, "[\"auto\",\"standard_only\"]"},
    {"cache_control", FOR_MESSAGES, FIELD_OBJECT, NULL},
    {"background", FOR_RESPONSES, FIELD_VALUES, "[false]"},
    {"truncation", FOR_RESPONSES, FIELD_VALUES, "[\"disabled\"]"},
    {"top_logprobs", FOR_RESPONSES, FIELD_VALUES, "[0]"},
    {"best_of", FOR_CHAT, FIELD_VALUES, "[1]"},
    {"suffix", FOR_COMPLETION, FIELD_VALUES, "[\"\"]"},
    {"echo", FOR_CHAT, FIELD_VALUES, "[false]"},
    {"modalities", FOR_CHAT, FIELD_VALUES, "[[\"text\"]]"},
    {"function_call", FOR_CHAT, FIELD_VALUES, "[\"none\"]"},
    {"functions", FOR_CHAT, FIELD_VALUES, "[[]]"},
    {"add_special_tokens", FOR_CHAT, FIELD_VALUES, "[false]"},
    {"use_beam_search", GENERATES, FIELD_VALUES, "[false]"},
    {"early_stopping", GENERATES, FIELD_VALUES, "[false]"},
    {"length_penalty", GENERATES, FIELD_VALUES, "[1,1.0]"},
    {"spaces_between_special_tokens", GENERATES, FIELD_VALUES, "[true]"},
    {"return_token_strs", FOR_TOKENIZE, FIELD_VALUES, "[false]"},

    /* Fields of OpenAI or vLLM that are not supported. */
    {"logits_processors", GENERATES, FIELD_REFUSED, "is not supported"},
    {"conversation", FOR_RESPONSES, FIELD_REFUSED, "is not supported: use previous_response_id"},
    {"prompt", FOR_RESPONSES, FIELD_REFUSED, "is not supported"},
    {"max_tool_calls", FOR_RESPONSES, FIELD_REFUSED, "is not supported"},
    {"context_management", CONVERTED, FIELD_REFUSED, "is not supported"},
    {"container", FOR_MESSAGES, FIELD_REFUSED, "is not supported"},
    {"mcp_servers", FOR_MESSAGES, FIELD_REFUSED, "is not supported"},
    {"output_format", FOR_MESSAGES, FIELD_REFUSED, "is not supported: use output_config.format"},
    {"audio", FOR_CHAT, FIELD_REFUSED, "is not supported"},
    {"prediction", FOR_CHAT, FIELD_REFUSED, "is not supported"},
    {"web_search_options", FOR_CHAT, FIELD_REFUSED, "is not supported"},
    {"verbosity", FOR_CHAT, FIELD_REFUSED, "is not supported"},
    {"mm_processor_kwargs", GENERATES, FIELD_REFUSED, "is not supported"},
    {"kv_transfer_params", FOR_MESSAGES, FIELD_REFUSED, "is not supported"},
    {"guided_decoding_backend", GENERATES, FIELD_STRING, NULL},
    {"guided_whitespace_pattern", GENERATES, FIELD_REFUSED, "is not supported"},
};

_Static_assert(sizeof rows / sizeof rows[0] < FIELDS_MAX, "openai_read_body's list is too short");

static const field_row *find_row(const char *key, unsigned endpoint)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if ((rows[i].endpoints & endpoint) && strcmp(rows[i].key, key) == 0) return &rows[i];
    return NULL;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static status check_values(const field_row *row, const json_t *value, error *err)
{
    json_t *values;
    RETURN_IF_ERROR(json_read_text("request", row->text, strlen(row->text), &values, err));
    bool found = false;
    for (size_t i = 0; i < json_array_size(values); i++)
        found |= json_equal(json_array_get(values, i), value);
    json_decref(values);
    if (found) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "request: %s: of its values only %s is supported",
                     row->key, row->text);
}

static status check_field(const field_row *row, const json_t *value, error *err)
{
    const char *due = NULL;
    if (row->rule == FIELD_UNKNOWN)
        return error_set(err, STATUS_INVALID, "request: unknown field '%s'", row->key);
    if (row->rule == FIELD_VALUES) return check_values(row, value, err);
    if (row->rule == FIELD_REFUSED)
        return error_set(err, STATUS_UNSUPPORTED, "request: %s: %s", row->key, row->text);
    if (row->rule == FIELD_STRING && !json_is_string(value)) due = "a string";
    if (row->rule == FIELD_OBJECT && !json_is_object(value)) due = "an object";
    if (due) return error_set(err, STATUS_INVALID, "request: %s: must be %s", row->key, due);
    return STATUS_IS_OK;
}

static status check_fields(const json_t *body, unsigned endpoint, error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)body, key, value)
    {
        const field_row *row = find_row(key, endpoint);
        if (row) RETURN_IF_ERROR(check_field(row, value, err));
        else if (!(endpoint & ANSWERS))
            return error_set(err, STATUS_INVALID, "request: unknown field '%.64s'", key);
    }
    return STATUS_IS_OK;
}

/* Counts of the parts of a body that take memory and time when it is parsed. */
typedef struct amounts {
    size_t lists, keys, strings, values; // lists: and objects; strings: keys among them
} amounts;

/* Every value needs a comma or an opening bracket before it, so counting these is enough. */
static amounts count_amounts(const char *body, size_t n)
{
    amounts a = {0};
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        char c = body[i];
        if (c == '"') a.strings += quoted = !quoted;
        else if (quoted) i += c == '\\';
        else if (c == ',') a.values++;
        else if (c == ':') a.keys++;
        else a.lists += c == '{' || c == '[';
    }
    return a;
}

enum { LISTS_MAX = 1 << 16 }; // of a body

static status too_many(error *err, size_t most, const char *what)
{
    return error_set(err, STATUS_LIMIT, "body: has more than %zu %s", most, what);
}

/* Limits what is in a body before it is parsed: each empty object of three bytes would take a
 * hundred times that and a microsecond. A number takes no more than RPC_BODY_FACTOR allows, so
 * numbers may be as many as the longest prompt of token ids has, and VALUES_MAX more. */
status openai_check_amount(const service *s, const char *body, size_t n, error *err)
{
    enum { KEYS_MAX = 1 << 18, VALUES_MAX = 1 << 20 };
    amounts a = count_amounts(body, n);
    size_t values = VALUES_MAX + (size_t)s->o.model.max_logical_len;
    if (a.lists > LISTS_MAX) return too_many(err, LISTS_MAX, "objects and lists");
    /* Enough for a bias for each token of a large vocabulary. */
    if (a.keys > KEYS_MAX) return too_many(err, KEYS_MAX, "keys");
    if (a.strings > VALUES_MAX) return too_many(err, VALUES_MAX, "strings");
    if (a.values > values) return too_many(err, values, "values");
    return STATUS_IS_OK;
}

status openai_check_stored(const char *turn, size_t n, size_t *lists, error *err)
{
    enum { LISTS_OF_ITEM = 3 }; // a message, its content and a part of it
    *lists += count_amounts(turn, n).lists;
    if (*lists <= LISTS_OF_ITEM * LISTS_MAX) return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT,
                     "request: previous_response_id: the conversation has more items than a body "
                     "may have");
}

/* Drops fields that are null: some clients send every field they know, null when it is not set. */
static void forget_nulls(json_t *body)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(body, next, key, value)
    {
        if (json_is_null(value)) json_object_del(body, key);
    }
}

void openai_list_fields(unsigned endpoint, const char **also)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if ((rows[i].endpoints & endpoint) && rows[i].rule != FIELD_ENGINE) *also++ = rows[i].key;
    *also = NULL;
}

status openai_read_body(const service *s, const char *body, size_t n, unsigned endpoint,
                        json_t **out, const char **also, error *err)
{
    RETURN_IF_ERROR(openai_check_amount(s, body, n, err));
    RETURN_IF_ERROR(json_read_text("body", body, n, out, err));
    forget_nulls(*out);
    status st = json_is_object(*out)
                    ? check_fields(*out, endpoint, err)
                    : error_set(err, STATUS_CORRUPT, "body: must be a JSON object");
    if (!status_ok(st)) {
        json_decref(*out);
        *out = NULL;
        return st;
    }
    openai_list_fields(endpoint, also);
    return STATUS_IS_OK;
}

status openai_engine_fields(const json_t *body, const char *const *also, json_t **out, error *err)
{
    const char *key;
    json_t *value, *left = json_copy((json_t *)(uintptr_t)body);
    if (!left) return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
    for (; *also; also++) json_object_del(left, *also);
    json_object_foreach(left, key, value)
    {
        const field_row *row = find_row(key, FOR_CHAT);
        if (!row || row->rule == FIELD_ENGINE) continue;
        status st = error_set(err, STATUS_INVALID, "request: unknown field '%s'", row->key);
        json_decref(left);
        return st;
    }
    *out = left;
    return STATUS_IS_OK;
}

/* ---- single fields --------------------------------------------------------------------------- */

status openai_read_bool(const json_t *body, const char *key, bool *out, error *err)
{
    const json_t *v = json_object_get(body, key);
    if (!v || json_is_null(v)) return STATUS_IS_OK;
    if (!json_is_boolean(v))
        return error_set(err, STATUS_INVALID, "request: %s: must be true or false", key);
    *out = json_is_true(v);
    return STATUS_IS_OK;
}

/* Adds a variable to the template's, which may be shared with the body. */
static status add_variable(engine_request *r, const char *key, const json_t *value, error *err)
{
    json_t *vars = r->chat_template_kwargs ? json_copy(r->chat_template_kwargs) : json_object();
    json_decref(r->chat_template_kwargs);
    r->chat_template_kwargs = vars;
    if (vars && json_object_set(vars, key, (json_t *)value) == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
}

status openai_read_template(service *s, const json_t *body, engine_request *r, error *err)
{
    const json_t *effort = json_object_get(body, "reasoning_effort"),
                 *documents = json_object_get(body, "documents");
    if (r->chat_template && !s->o.request_templates)
        return error_set(err, STATUS_UNSUPPORTED,
                         "request: chat_template: the server was started without "
                         "--trust-request-chat-template");
    if (effort && !json_word(effort))
        return error_set(err, STATUS_INVALID,
                         "request: reasoning_effort: must be a string without NUL");
    if (documents && !json_is_array(documents))
        return error_set(err, STATUS_INVALID, "request: documents: must be a list");
    const chat_template *t = r->chat_template ? NULL : s->o.model.chat;
    bool unread = effort && t && !tmpl_uses(t, "reasoning_effort");
    if (unread && !json_is_word(effort, "none"))
        return error_set(err, STATUS_UNSUPPORTED,
                         "request: reasoning_effort: the chat template has no such variable");
    if (json_array_size(documents) && t && !tmpl_uses(t, "documents"))
        return error_set(err, STATUS_UNSUPPORTED,
                         "request: documents: the chat template has no such variable");
    if (effort && !unread) RETURN_IF_ERROR(add_variable(r, "reasoning_effort", effort, err));
    if (json_array_size(documents)) RETURN_IF_ERROR(add_variable(r, "documents", documents, err));
    return STATUS_IS_OK;
}

status openai_read_model(service *s, const json_t *body, char **out, error *err)
{
    const json_t *v = json_object_get(body, "model");
    if (v && !json_is_null(v) && !json_is_string(v))
        return error_set(err, STATUS_INVALID, "request: model: must be a string");
    const char *name = json_is_string(v) ? json_string_value(v) : "";
    size_t n = json_is_string(v) ? json_string_length(v) : 0;
    if (!service_knows_model(s, name, n))
        return error_set(err, STATUS_NOT_FOUND, "The model `%.128s` does not exist.", name);
    *out = strdup(n ? name : s->o.model.names[0]);
    return *out ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "request: out of memory");
}
