/* Makes a chat's body of a body of /v1/responses. */
#include "rpc/openai/responses/responses.h"

#include "base/clock.h"
#include "base/json.h"
#include "rpc/openai/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A body being read. */
typedef struct reading {
    service *s;
    const json_t *body;
    const char *also[FIELDS_MAX];
    response_writer *w;
    size_t *stored_bytes; // the call's
    json_t *chat;         // the body that is made
} reading;

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
}

static const json_t *member(const reading *in, const char *key)
{
    return json_object_get(in->body, key);
}

static status set_new(const reading *in, const char *key, json_t *value, error *err)
{
    return json_object_set_new(in->chat, key, value) == 0 ? STATUS_IS_OK : out_of_memory(err);
}

/* Passes a member on under chat's name for it. */
static status pass(const reading *in, const char *from, const char *to, error *err)
{
    json_t *value = (json_t *)(uintptr_t)member(in, from);
    return value ? set_new(in, to, json_incref(value), err) : STATUS_IS_OK;
}

/* ---- the conversation ------------------------------------------------------------------------ */

static status find_before(const reading *in, error *err)
{
    const json_t *given = member(in, "previous_response_id");
    const char *id = json_word(given);
    response_writer *w = in->w;
    if (!given) return STATUS_IS_OK;
    if (!id)
        return error_set(err, STATUS_INVALID,
                         "request: previous_response_id: must be a string without NUL");
    if (in->s->responses)
        w->before = response_store_get(in->s->responses, w->identity, id, clock_now_us());
    if (w->before) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "request: previous_response_id: there is no response '%.64s': it was not "
                     "stored, was deleted, or has been forgotten",
                     id);
}

static status add_turn(const stored_response *r, size_t *left, size_t *lists, chat_turns *t,
                       error *err)
{
    size_t n;
    json_t *messages;
    const char *text = stored_turn(r, &n);
    if (n > *left)
        return error_set(err, STATUS_LIMIT,
                         "request: previous_response_id: the conversation is longer than a body "
                         "may be (--max-body)");
    *left -= n;
    RETURN_IF_ERROR(openai_check_stored(text, n, lists, err));
    RETURN_IF_ERROR(json_read_text("previous_response_id", text, n, &messages, err));
    t->failed |= json_array_extend(t->messages, messages) != 0;
    json_decref(messages);
    return STATUS_IS_OK;
}

/* A stored conversation takes no more than one that a client sends whole. */
static status add_before(const reading *in, chat_turns *t, error *err)
{
    const stored_response *chain[RESPONSE_TURNS_MAX];
    size_t n = stored_turns(in->w->before, chain), left = in->s->o.max_body_bytes, lists = 0;
    if (n > RESPONSE_TURNS_MAX)
        return error_set(err, STATUS_LIMIT,
                         "request: previous_response_id: the conversation has more than %d turns",
                         RESPONSE_TURNS_MAX);
    for (size_t i = 0; i < n; i++) RETURN_IF_ERROR(add_turn(chain[i], &left, &lists, t, err));
    *in->stored_bytes = in->s->o.max_body_bytes - left;
    return STATUS_IS_OK;
}

static status add_instructions(const reading *in, chat_turns *t, error *err)
{
    const json_t *text = member(in, "instructions");
    if (!text) return STATUS_IS_OK;
    if (!json_is_string(text))
        return error_set(err, STATUS_INVALID, "request: instructions: must be a string");
    turns_add_text(t, turns_open(t, "system", false), json_string_value(text),
                   json_string_length(text));
    return STATUS_IS_OK;
}

/* The request's own messages are kept apart: they are what is stored. */
static status read_own(const reading *in, chat_turns *own, error *err)
{
    const json_t *input = member(in, "input");
    if (!input) return error_set(err, STATUS_INVALID, "request: input: must be given");
    RETURN_IF_ERROR(response_read_input(input, own, err));
    RETURN_IF_ERROR(turns_end(own, err));
    if (json_array_size(own->messages) == 0 && !in->w->before)
        return error_set(err, STATUS_INVALID, "request: input: must not be empty");
    if (!in->w->store) return STATUS_IS_OK;
    char *text = json_write(own->messages, JSON_COMPACT);
    if (text) strbuf_puts(&in->w->turn, text);
    free(text);
    return text && !in->w->turn.failed ? STATUS_IS_OK : out_of_memory(err);
}

static status read_messages(const reading *in, error *err)
{
    chat_turns own, all;
    turns_init(&own);
    turns_init(&all);
    status st = read_own(in, &own, err);
    if (status_ok(st)) st = add_instructions(in, &all, err);
    if (status_ok(st)) st = add_before(in, &all, err);
    all.failed |= json_array_extend(all.messages, own.messages) != 0;
    turns_join_systems(&all);
    if (status_ok(st)) st = turns_end(&all, err);
    if (status_ok(st)) st = set_new(in, "messages", json_incref(all.messages), err);
    turns_destroy(&own);
    turns_destroy(&all);
    return st;
}

/* ---- tools ----------------------------------------------------------------------------------- */

static status refuse_type(const char *where, const json_t *object, error *err)
{
    const char *type = json_word(json_object_get(object, "type"));
    if (!type)
        return error_set(err, STATUS_INVALID, "request: %s: must be an object with a type", where);
    return error_set(err, STATUS_UNSUPPORTED, "request: %s: the type '%.40s' is not supported",
                     where, type);
}

/* {"type": "function", "name": …} as chat has it: {"type": "function", "function": {"name": …}}. */
static json_t *wrap_function(const json_t *flat)
{
    json_t *function = json_copy((json_t *)(uintptr_t)flat);
    if (!function) return NULL;
    json_object_del(function, "type");
    return json_pack("{s:s,s:o}", "type", "function", "function", function);
}

static status read_tools(const reading *in, error *err)
{
    const json_t *tools = member(in, "tools"), *tool;
    char where[32];
    size_t i;
    if (!tools) return STATUS_IS_OK;
    if (!json_is_array(tools))
        return error_set(err, STATUS_INVALID, "request: tools: must be a list of tools");
    json_t *list = json_array();
    RETURN_IF_ERROR(set_new(in, "tools", list, err));
    json_array_foreach(tools, i, tool)
    {
        snprintf(where, sizeof where, "tools[%zu]", i);
        if (!json_is_word(json_object_get(tool, "type"), "function"))
            return refuse_type(where, tool, err);
        const char *name;
        RETURN_IF_ERROR(turns_need_text(tool, "name", where, &name, err));
        if (json_array_append_new(list, wrap_function(tool)) != 0) return out_of_memory(err);
    }
    return STATUS_IS_OK;
}

static status read_choice(const reading *in, error *err)
{
    const json_t *choice = member(in, "tool_choice");
    const char *name;
    if (!json_is_object(choice)) return pass(in, "tool_choice", "tool_choice", err);
    if (!json_is_word(json_object_get(choice, "type"), "function"))
        return refuse_type("tool_choice", choice, err);
    RETURN_IF_ERROR(turns_need_text(choice, "name", "tool_choice", &name, err));
    return set_new(in, "tool_choice", wrap_function(choice), err);
}

/* ---- text, reasoning, include ---------------------------------------------------------------- */

/* Refuses a member that is none of `keys`, a NULL-terminated list. */
static status check_members(const json_t *object, const char *where, const char *const *keys,
                            error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const char *const *known = keys;
        while (*known && strcmp(*known, key) != 0) known++;
        if (!*known && !json_is_null(value))
            return error_set(err, STATUS_UNSUPPORTED, "request: %s.%.40s: is not supported", where,
                             key);
    }
    return STATUS_IS_OK;
}

static status need_object(const json_t *value, const char *where, error *err)
{
    if (json_is_object(value)) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "request: %s: must be an object", where);
}

/* A schema's members lie beside the type here, and in an object of their own in chat. */
static status read_format(const reading *in, const json_t *format, error *err)
{
    RETURN_IF_ERROR(need_object(format, "text.format", err));
    if (!json_is_word(json_object_get(format, "type"), "json_schema"))
        return set_new(in, "response_format", json_incref((json_t *)(uintptr_t)format), err);
    json_t *inside = json_copy((json_t *)(uintptr_t)format);
    if (!inside) return out_of_memory(err);
    json_object_del(inside, "type");
    return set_new(in, "response_format",
                   json_pack("{s:s,s:o}", "type", "json_schema", "json_schema", inside), err);
}

static status read_text(const reading *in, error *err)
{
    static const char *const keys[] = {"format", "verbosity", NULL};
    const json_t *text = member(in, "text");
    if (!text) return STATUS_IS_OK;
    RETURN_IF_ERROR(need_object(text, "text", err));
    RETURN_IF_ERROR(check_members(text, "text", keys, err));
    const json_t *verbosity = json_object_get(text, "verbosity"),
                 *format = json_object_get(text, "format");
    if (verbosity && !json_is_null(verbosity) && !json_is_word(verbosity, "medium"))
        return error_set(err, STATUS_UNSUPPORTED,
                         "request: text.verbosity: of its values only [\"medium\"] is supported");
    return format && !json_is_null(format) ? read_format(in, format, err) : STATUS_IS_OK;
}

/* A summary is what the server likes: none, since the reasoning itself is in the answer. */
static status read_reasoning(const reading *in, error *err)
{
    static const char *const keys[] = {"effort", "summary", NULL};
    const json_t *reasoning = member(in, "reasoning");
    if (!reasoning) return STATUS_IS_OK;
    RETURN_IF_ERROR(need_object(reasoning, "reasoning", err));
    RETURN_IF_ERROR(check_members(reasoning, "reasoning", keys, err));
    json_t *effort = json_object_get(reasoning, "effort");
    const json_t *summary = json_object_get(reasoning, "summary");
    if (summary && !json_is_null(summary) && !json_is_word(summary, "auto"))
        return error_set(err, STATUS_UNSUPPORTED,
                         "request: reasoning.summary: of its values only [\"auto\"] is supported");
    if (!effort || json_is_null(effort)) return STATUS_IS_OK;
    return set_new(in, "reasoning_effort", json_incref(effort), err);
}

/* An item of reasoning has its text, so there is nothing to encrypt for a client that brings it
 * back. */
static status read_include(const reading *in, error *err)
{
    const json_t *include = member(in, "include"), *value;
    size_t i;
    if (include && !json_is_array(include))
        return error_set(err, STATUS_INVALID, "request: include: must be a list");
    json_array_foreach(include, i, value)
    {
        if (!json_is_word(value, "reasoning.encrypted_content"))
            return error_set(err, STATUS_UNSUPPORTED,
                             "request: include[%zu]: '%.40s' is not supported", i,
                             json_word(value) ? json_word(value) : "");
    }
    return STATUS_IS_OK;
}

static status read_stream_options(const reading *in, error *err)
{
    const json_t *options = member(in, "stream_options"), *value;
    const char *key;
    if (!options) return STATUS_IS_OK;
    RETURN_IF_ERROR(need_object(options, "stream_options", err));
    json_object_foreach((json_t *)(uintptr_t)options, key, value)
    {
        if (strcmp(key, "include_obfuscation") != 0 || json_is_true(value))
            return error_set(err, STATUS_UNSUPPORTED,
                             "request: stream_options.%.40s: is not supported", key);
    }
    return STATUS_IS_OK;
}

/* OpenAI's bounds. The response repeats it, and may be stored. */
static status read_metadata(const reading *in, error *err)
{
    enum { PAIRS_MAX = 16, KEY_CHARACTERS_MAX = 64, VALUE_CHARACTERS_MAX = 512 };
    const json_t *metadata = member(in, "metadata"), *value;
    const char *key;
    if (json_object_size(metadata) > PAIRS_MAX)
        return error_set(err, STATUS_LIMIT, "request: metadata: more than %d pairs", PAIRS_MAX);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (count_characters(key, strlen(key)) > KEY_CHARACTERS_MAX)
            return error_set(err, STATUS_LIMIT,
                             "request: metadata: the key '%.40s…' has more than %d characters", key,
                             KEY_CHARACTERS_MAX);
        if (!json_is_string(value))
            return error_set(err, STATUS_INVALID, "request: metadata: '%s' must be a string", key);
        if (count_characters(json_string_value(value), json_string_length(value)) >
            VALUE_CHARACTERS_MAX)
            return error_set(err, STATUS_LIMIT,
                             "request: metadata: the text of '%s' has more than %d characters", key,
                             VALUE_CHARACTERS_MAX);
    }
    return STATUS_IS_OK;
}

/* ---- what the response repeats --------------------------------------------------------------- */

static void put_json(strbuf *out, const char *key, const json_t *value, const char *absent)
{
    char *text = value ? json_write(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    strbuf_printf(out, ",\"%s\":", key);
    strbuf_puts(out, text ? text : absent);
    out->failed |= value && !text;
    free(text);
}

static void put_text(const json_t *text, strbuf *out)
{
    static const char plain[] = "{\"type\":\"text\"}";
    const json_t *format = json_object_get(text, "format");
    strbuf_puts(out, ",\"text\":{\"verbosity\":\"medium\"");
    put_json(out, "format", format && !json_is_null(format) ? format : NULL, plain);
    strbuf_putc(out, '}');
}

static void put_reasoning(const json_t *reasoning, strbuf *out)
{
    strbuf_puts(out, ",\"reasoning\":{\"summary\":null");
    put_json(out, "effort", json_object_get(reasoning, "effort"), "null");
    strbuf_putc(out, '}');
}

static status write_echo(const reading *in, const engine_request *r, error *err)
{
    static const struct {
        const char *key, *absent;
    } same[] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"metadata", "{}"},
        {"parallel_tool_calls", "true"},
        {"previous_response_id", "null"},
        {"prompt_cache_key", "null"},
        {"safety_identifier", "null"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"user", "null"},
    };
    strbuf *out = &in->w->echo;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        put_json(out, same[i].key, member(in, same[i].key), same[i].absent);
    put_text(member(in, "text"), out);
    put_reasoning(member(in, "reasoning"), out);
    strbuf_puts(out, ",\"temperature\":");
    strbuf_json_float(out, r->temperature);
    strbuf_puts(out, ",\"top_p\":");
    strbuf_json_float(out, r->top_p);
    strbuf_printf(out, ",\"store\":%s", in->w->store ? "true" : "false");
    strbuf_puts(out, ",\"background\":false,\"service_tier\":\"default\",\"top_logprobs\":0,"
                     "\"truncation\":\"disabled\"");
    return out->failed ? out_of_memory(err) : STATUS_IS_OK;
}

/* ---- the session ----------------------------------------------------------------------------- */

static status copy_text(const char *text, char **out, error *err)
{
    *out = text ? strdup(text) : NULL;
    return text && !*out ? out_of_memory(err) : STATUS_IS_OK;
}

/* The salt keeps a conversation apart in the cache, so it goes on with the conversation. A request
 * with retention whose response is stored leaves its pages to the one that goes on from it; without
 * retention the prefix cache has them. A prompt that goes from one server to another is of no
 * session. */
static status choose_session(const reading *in, engine_request *r, error *err)
{
    response_writer *w = in->w;
    const char *before = w->before ? stored_session(w->before) : NULL;
    const char *salt = w->before ? stored_salt(w->before) : NULL;
    if (!r->cache_salt) RETURN_IF_ERROR(copy_text(salt, &r->cache_salt, err));
    bool moves = r->hands_over || r->takes_over, keeps = w->store && !moves;
    if (!r->session && keeps && before) RETURN_IF_ERROR(copy_text(before, &r->session, err));
    if (!r->session && keeps && r->retention) RETURN_IF_ERROR(copy_text(w->id, &r->session, err));
    if (!w->store) return STATUS_IS_OK;
    RETURN_IF_ERROR(copy_text(r->session, &w->session, err));
    return copy_text(r->cache_salt, &w->salt, err);
}

/* ---- the whole body -------------------------------------------------------------------------- */

/* Makes an id that cannot be guessed. */
static status make_id(char out[RESPONSE_ID_BYTES], error *err)
{
    uint64_t words[2];
    if (getrandom(words, sizeof words, 0) != sizeof words)
        return error_set(err, STATUS_INTERNAL, "request: no random numbers");
    snprintf(out, RESPONSE_ID_BYTES, "resp_%016llx%016llx", (unsigned long long)words[0],
             (unsigned long long)words[1]);
    return STATUS_IS_OK;
}

static status read_store(const reading *in, error *err)
{
    bool store = true;
    RETURN_IF_ERROR(openai_read_bool(in->body, "store", &store, err));
    in->w->store = store && in->s->responses;
    return make_id(in->w->id, err);
}

static status make_chat(const reading *in, error *err)
{
    static const char *const same[] = {"model", "stream", "request_id", "parallel_tool_calls",
                                       "include_reasoning"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        RETURN_IF_ERROR(pass(in, same[i], same[i], err));
    const json_t *most = member(in, "max_output_tokens");
    if (json_is_integer(most) && json_integer_value(most) < 1)
        return error_set(err, STATUS_INVALID, "request: max_output_tokens: must be 1 or more");
    RETURN_IF_ERROR(pass(in, "max_output_tokens", "max_completion_tokens", err));
    RETURN_IF_ERROR(read_store(in, err));
    RETURN_IF_ERROR(find_before(in, err));
    RETURN_IF_ERROR(read_messages(in, err));
    RETURN_IF_ERROR(read_tools(in, err));
    RETURN_IF_ERROR(read_choice(in, err));
    RETURN_IF_ERROR(read_text(in, err));
    RETURN_IF_ERROR(read_reasoning(in, err));
    RETURN_IF_ERROR(read_include(in, err));
    RETURN_IF_ERROR(read_metadata(in, err));
    return read_stream_options(in, err);
}

static status read_body(reading *in, openai_call *call, error *err)
{
    RETURN_IF_ERROR(openai_engine_fields(in->body, in->also, &in->chat, err));
    RETURN_IF_ERROR(make_chat(in, err));
    RETURN_IF_ERROR(openai_read_chat(in->s, in->chat, call, err));
    RETURN_IF_ERROR(choose_session(in, call->requests, err));
    return write_echo(in, call->requests, err);
}

bool openai_parse_response(service *s, const char *identity, const char *body, size_t n,
                           openai_call *out, openai_error *failure)
{
    error err = {{0}};
    json_t *doc = NULL;
    *out = (openai_call){.form = &response_form, .writer = calloc(1, sizeof(response_writer))};
    reading in = {.s = s, .w = out->writer, .stored_bytes = &out->stored_bytes};
    status st = in.w ? openai_read_body(s, body, n, FOR_RESPONSES, &doc, in.also, &err)
                     : out_of_memory(&err);
    in.body = doc;
    if (in.w) {
        in.w->s = s;
        snprintf(in.w->identity, sizeof in.w->identity, "%s", identity);
    }
    if (status_ok(st)) st = read_body(&in, out, &err);
    json_decref(in.chat);
    json_decref(doc);
    if (status_ok(st)) return true;
    openai_call_destroy(out);
    openai_body_error(s, st, &err, failure);
    openai_rename(response_form.names, failure);
    return false;
}
