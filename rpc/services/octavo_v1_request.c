/* Converts octavo.v1's messages into engine requests. */
#include "rpc/services/octavo_v1.h"

/* ---- sampling -------------------------------------------------------------------------------- */

/* A field that is not set keeps the model's default. */
static status read_sampling(const Octavo__V1__SamplingParams *m, engine_request *r, error *err)
{
    RETURN_IF_ERROR(field_rows("sampling.", &m->base, r, err));
    RETURN_IF_ERROR(field_stops("sampling.stop", m->stop, m->n_stop, r, err));
    RETURN_IF_ERROR(field_bad_words("sampling.bad_words", m->bad_words, m->n_bad_words, r, err));
    if (m->n_allowed_token_ids > 0)
        RETURN_IF_ERROR(field_ids("sampling.allowed_token_ids", m->allowed_token_ids,
                                  m->n_allowed_token_ids, &r->allowed_token_ids,
                                  &r->n_allowed_token_ids, err));
    return field_ids("sampling.stop_token_ids", m->stop_token_ids, m->n_stop_token_ids,
                     &r->stop_token_ids, &r->n_stop_token_ids, err);
}

static status read_bias(const Octavo__V1__SamplingParams *m, engine_request *r, error *err)
{
    static const char name[] = "sampling.logit_bias";
    if (m->n_logit_bias == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(field_bias_begin(m->n_logit_bias, r, err));
    for (size_t i = 0; i < m->n_logit_bias; i++) {
        const Octavo__V1__LogitBias *bias = m->logit_bias[i];
        RETURN_IF_ERROR(field_bias_add(name, bias->token_id, bias->bias, r, err));
    }
    return field_bias_end(name, r, err);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* The most messages of a chat: a message can be two bytes on the wire and takes hundreds in
 * memory. */
enum { MESSAGES_MAX = 16384 };

/* Sets message[key] to a text; leaves it out when it is optional and "". */
static status set_text(json_t *message, size_t i, const char *key, ProtobufCBinaryData text,
                       bool optional, error *err)
{
    if (optional && text.len == 0) return STATUS_IS_OK;
    if (!utf8_valid(text.data, text.len))
        return error_set(err, STATUS_INVALID, "chat.messages[%zu].%s: is not UTF-8", i, key);
    json_t *value = json_stringn(text.len ? (const char *)text.data : "", text.len);
    if (value && json_object_set_new(message, key, value) == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_NO_MEMORY, "chat.messages[%zu]: out of memory", i);
}

static status set_tool_calls(json_t *message, size_t i, ProtobufCBinaryData text, error *err)
{
    char name[64];
    json_t *calls = NULL;
    snprintf(name, sizeof name, "chat.messages[%zu].tool_calls_json", i);
    RETURN_IF_ERROR(field_json(name, text, JSON_ARRAY, &calls, err));
    if (!calls || json_object_set_new(message, "tool_calls", calls) == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", name);
}

static status fill_message(const Octavo__V1__ChatMessage *m, size_t i, json_t *out, error *err)
{
    RETURN_IF_ERROR(set_text(out, i, "role", m->role, false, err));
    RETURN_IF_ERROR(set_text(out, i, "content", m->content, false, err));
    RETURN_IF_ERROR(set_text(out, i, "name", m->name, true, err));
    RETURN_IF_ERROR(set_text(out, i, "tool_call_id", m->tool_call_id, true, err));
    return set_tool_calls(out, i, m->tool_calls_json, err);
}

/* Limits the number of messages and the JSON bytes of all messages together. */
static status check_chat_size(const Octavo__V1__Chat *m, error *err)
{
    if (m->n_messages > MESSAGES_MAX)
        return error_set(err, STATUS_LIMIT, "chat.messages: more than %d", MESSAGES_MAX);
    size_t bytes = m->tools_json.len;
    for (size_t i = 0; i < m->n_messages; i++) bytes += m->messages[i]->tool_calls_json.len;
    if (bytes <= FIELD_JSON_BYTES_MAX) return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT,
                     "chat: more than %d bytes of JSON in tools_json and tool_calls_json",
                     FIELD_JSON_BYTES_MAX);
}

static status read_chat(const Octavo__V1__Chat *m, engine_request *r, error *err)
{
    RETURN_IF_ERROR(check_chat_size(m, err));
    r->messages = json_array();
    for (size_t i = 0; r->messages && i < m->n_messages; i++) {
        json_t *message = json_object();
        if (!message || json_array_append_new(r->messages, message))
            return error_set(err, STATUS_NO_MEMORY, "chat: out of memory");
        RETURN_IF_ERROR(fill_message(m->messages[i], i, message, err));
    }
    if (!r->messages) return error_set(err, STATUS_NO_MEMORY, "chat: out of memory");
    return field_json("chat.tools_json", m->tools_json, JSON_ARRAY, &r->tools, err);
}

/* ---- requests -------------------------------------------------------------------------------- */

static status read_input(const Octavo__V1__GenerateRequest *m, engine_request *r, error *err)
{
    switch (m->input_case) {
    case OCTAVO__V1__GENERATE_REQUEST__INPUT_PROMPT:
        return field_prompt("prompt", m->prompt, r, err);
    case OCTAVO__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS:
        return field_ids("token_ids", m->token_ids->ids, m->token_ids->n_ids, &r->prompt_token_ids,
                         &r->n_prompt_token_ids, err);
    case OCTAVO__V1__GENERATE_REQUEST__INPUT_CHAT: return read_chat(m->chat, r, err);
    default:
        return error_set(err, STATUS_INVALID,
                         "input: one of prompt, token_ids and chat must be given");
    }
}

static status read_salt(const Octavo__V1__GenerateRequest *m, engine_request *r, error *err)
{
    if (m->cache_salt.len == 0) return STATUS_IS_OK;
    if (memchr(m->cache_salt.data, 0, m->cache_salt.len))
        return error_set(err, STATUS_INVALID, "cache_salt: holds a NUL byte");
    return field_text("cache_salt", m->cache_salt, &r->cache_salt, err);
}

static status read_form(const Octavo__V1__GenerateRequest *m, engine_request *r, error *err)
{
    static const char name[] = "structured_outputs_json";
    json_t *form = NULL;
    RETURN_IF_ERROR(field_json(name, m->structured_outputs_json, JSON_OBJECT, &form, err));
    status s = form ? engine_request_read_form(r, name, form, err) : STATUS_IS_OK;
    json_decref(form);
    return s;
}

status octavo_v1_request_of(const service *s, const Octavo__V1__GenerateRequest *m,
                            engine_request *out, error *err)
{
    engine_request_init(out, &s->o.model.defaults);
    RETURN_IF_ERROR(field_model(s, "model", m->model, err));
    RETURN_IF_ERROR(field_session("session", m->session, out, err));
    RETURN_IF_ERROR(read_input(m, out, err));
    if (m->sampling) {
        RETURN_IF_ERROR(read_sampling(m->sampling, out, err));
        RETURN_IF_ERROR(read_bias(m->sampling, out, err));
    }
    RETURN_IF_ERROR(field_rows("", &m->base, out, err));
    out->progress = m->progress;
    RETURN_IF_ERROR(read_salt(m, out, err));
    RETURN_IF_ERROR(read_form(m, out, err));
    RETURN_IF_ERROR(field_retention("retention_json", m->retention_json, &out->retention, err));
    return field_retrieval("retrieval_json", m->retrieval_json, &out->retrieval, err);
}

status octavo_v1_tokenize_of(const service *s, const Octavo__V1__TokenizeRequest *m,
                             engine_request *out, error *err)
{
    engine_request_init(out, &s->o.model.defaults);
    RETURN_IF_ERROR(field_rows("", &m->base, out, err));
    switch (m->input_case) {
    case OCTAVO__V1__TOKENIZE_REQUEST__INPUT_PROMPT:
        return field_prompt("prompt", m->prompt, out, err);
    case OCTAVO__V1__TOKENIZE_REQUEST__INPUT_CHAT: return read_chat(m->chat, out, err);
    default: return error_set(err, STATUS_INVALID, "input: one of prompt and chat must be given");
    }
}
