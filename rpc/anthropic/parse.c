/* Makes a chat's body of a body of /v1/messages. */
#include "rpc/anthropic/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_BYTES_MAX = 1 << 18 }; // of a body whose tokens are counted, as for /tokenize

/* A body being read. */
typedef struct reading {
    service *s;
    const json_t *body;
    const char *also[FIELDS_MAX];
    bool counts;  // for its tokens alone
    json_t *chat; // the body that is made
} reading;

static bool is(const char *word, const char *what) { return word && strcmp(word, what) == 0; }

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
}

static json_t *member(const reading *in, const char *key) { return json_object_get(in->body, key); }

static status set_new(const reading *in, const char *key, json_t *value, error *err)
{
    return json_object_set_new(in->chat, key, value) == 0 ? STATUS_IS_OK : out_of_memory(err);
}

static status pass(const reading *in, const char *from, const char *to, error *err)
{
    json_t *value = member(in, from);
    return value ? set_new(in, to, json_incref(value), err) : STATUS_IS_OK;
}

static status need_object(const json_t *value, const char *where, error *err)
{
    if (json_is_object(value)) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "request: %s: must be an object", where);
}

static const char *type_of(const json_t *object)
{
    return json_word(json_object_get(object, "type"));
}

/* ---- the conversation ------------------------------------------------------------------------ */

static status read_messages(const reading *in, error *err)
{
    chat_turns t;
    bool prefilled = false;
    turns_init(&t);
    status st = anthropic_read_system(member(in, "system"), &t, err);
    if (status_ok(st)) st = anthropic_read_messages(member(in, "messages"), &t, &prefilled, err);
    if (status_ok(st)) st = set_new(in, "messages", json_incref(t.messages), err);
    turns_destroy(&t);
    if (!status_ok(st) || !prefilled) return st;
    RETURN_IF_ERROR(set_new(in, "continue_final_message", json_true(), err));
    return set_new(in, "add_generation_prompt", json_false(), err);
}

/* ---- tools ----------------------------------------------------------------------------------- */

/* A tool as chat has it. New reference. */
static json_t *wrap_tool(const json_t *tool)
{
    json_t *function =
        json_pack("{s:O*,s:O*,s:O*,s:O*}", "name", json_object_get(tool, "name"), "description",
                  json_object_get(tool, "description"), "parameters",
                  json_object_get(tool, "input_schema"), "strict", json_object_get(tool, "strict"));
    return function ? json_pack("{s:s,s:o}", "type", "function", "function", function) : NULL;
}

static status read_tool(const json_t *tool, size_t i, json_t *list, error *err)
{
    char where[32], schema[48];
    const char *name, *type = type_of(tool);
    const json_t *given = json_object_get(tool, "type");
    bool typed = given && !json_is_null(given);
    snprintf(where, sizeof where, "tools[%zu]", i);
    snprintf(schema, sizeof schema, "%s.input_schema", where);
    if (typed && !is(type, "custom"))
        return error_set(err, STATUS_UNSUPPORTED, "request: %s: the type '%.40s' is not supported",
                         where, type ? type : "");
    RETURN_IF_ERROR(turns_need_text(tool, "name", where, &name, err));
    RETURN_IF_ERROR(need_object(json_object_get(tool, "input_schema"), schema, err));
    return json_array_append_new(list, wrap_tool(tool)) == 0 ? STATUS_IS_OK : out_of_memory(err);
}

static status read_tools(const reading *in, error *err)
{
    const json_t *tools = member(in, "tools"), *tool;
    size_t i;
    if (!tools) return STATUS_IS_OK;
    if (!json_is_array(tools))
        return error_set(err, STATUS_INVALID, "request: tools: must be a list of tools");
    json_t *list = json_array();
    RETURN_IF_ERROR(set_new(in, "tools", list, err));
    json_array_foreach(tools, i, tool) RETURN_IF_ERROR(read_tool(tool, i, list, err));
    return STATUS_IS_OK;
}

static status read_choice(const reading *in, error *err)
{
    const json_t *choice = member(in, "tool_choice");
    const char *type = type_of(choice), *name;
    bool one = false;
    if (!choice) return STATUS_IS_OK;
    RETURN_IF_ERROR(need_object(choice, "tool_choice", err));
    status st = openai_read_bool(choice, "disable_parallel_tool_use", &one, err);
    if (!status_ok(st)) return st;
    if (one) RETURN_IF_ERROR(set_new(in, "parallel_tool_calls", json_false(), err));
    if (is(type, "auto") || is(type, "none"))
        return set_new(in, "tool_choice", json_string(type), err);
    if (is(type, "any")) return set_new(in, "tool_choice", json_string("required"), err);
    if (!is(type, "tool"))
        return error_set(err, STATUS_INVALID,
                         "request: tool_choice.type: must be auto, any, tool or none");
    RETURN_IF_ERROR(turns_need_text(choice, "name", "tool_choice", &name, err));
    return set_new(in, "tool_choice",
                   json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", name), err);
}

/* ---- thinking and the form ------------------------------------------------------------------- */

static status set_variable(const reading *in, const char *key, bool value, error *err)
{
    const json_t *given = json_object_get(in->chat, "chat_template_kwargs");
    if (given && !json_is_object(given)) return STATUS_IS_OK; /* the engine's parser refuses it */
    json_t *vars = given ? json_copy((json_t *)(uintptr_t)given) : json_object();
    RETURN_IF_ERROR(set_new(in, "chat_template_kwargs", vars, err));
    return json_object_set_new(vars, key, json_boolean(value)) == 0 ? STATUS_IS_OK
                                                                    : out_of_memory(err);
}

/* Models think as long as they like: budget_tokens bounds nothing. */
static status read_thinking(const reading *in, error *err)
{
    const json_t *thinking = member(in, "thinking");
    const chat_template *chat = in->s->o.model.chat;
    const char *type = type_of(thinking);
    if (!thinking) return STATUS_IS_OK;
    RETURN_IF_ERROR(need_object(thinking, "thinking", err));
    bool off = is(type, "disabled"), on = is(type, "enabled") || is(type, "adaptive");
    if (!off && !on)
        return error_set(err, STATUS_INVALID,
                         "request: thinking.type: must be enabled, adaptive or disabled");
    if (is(type, "enabled") && !in->s->reasoning_parser)
        return error_set(err, STATUS_UNSUPPORTED,
                         "request: thinking: this model's reasoning is not known "
                         "(--reasoning-parser)");
    if (!chat || !tmpl_uses(chat, "enable_thinking")) return STATUS_IS_OK;
    return set_variable(in, "enable_thinking", on, err);
}

static status read_config(const reading *in, error *err)
{
    const json_t *config = member(in, "output_config"), *value;
    const char *key;
    if (!config) return STATUS_IS_OK;
    RETURN_IF_ERROR(need_object(config, "output_config", err));
    json_object_foreach((json_t *)(uintptr_t)config, key, value)
    {
        if (!is(key, "format") && !is(key, "effort") && !json_is_null(value))
            return error_set(err, STATUS_UNSUPPORTED,
                             "request: output_config.%.40s: is not supported", key);
    }
    json_t *effort = json_object_get(config, "effort");
    const json_t *format = json_object_get(config, "format");
    if (effort && !json_is_null(effort))
        RETURN_IF_ERROR(set_new(in, "reasoning_effort", json_incref(effort), err));
    if (!format || json_is_null(format)) return STATUS_IS_OK;
    json_t *schema = json_object_get(format, "schema");
    if (!is(type_of(format), "json_schema") || !json_is_object(schema))
        return error_set(err, STATUS_INVALID,
                         "request: output_config.format: must be "
                         "{\"type\": \"json_schema\", \"schema\": {…}}");
    return set_new(in, "response_format",
                   json_pack("{s:s,s:{s:s,s:O,s:b}}", "type", "json_schema", "json_schema", "name",
                             "output", "schema", schema, "strict", 1),
                   err);
}

/* ---- the whole body -------------------------------------------------------------------------- */

static status read_most(const reading *in, error *err)
{
    const json_t *most = member(in, "max_tokens");
    if (in->counts && !most) return STATUS_IS_OK;
    if (!json_is_integer(most) || json_integer_value(most) < 1)
        return error_set(err, STATUS_INVALID,
                         "request: max_tokens: must be given, as an integer of 1 or more");
    return pass(in, "max_tokens", "max_tokens", err);
}

static status make_chat(const reading *in, error *err)
{
    static const char *const same[] = {"model", "stream", "request_id", "include_reasoning"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        RETURN_IF_ERROR(pass(in, same[i], same[i], err));
    RETURN_IF_ERROR(pass(in, "stop_sequences", "stop", err));
    RETURN_IF_ERROR(read_most(in, err));
    RETURN_IF_ERROR(read_messages(in, err));
    RETURN_IF_ERROR(read_tools(in, err));
    RETURN_IF_ERROR(read_choice(in, err));
    RETURN_IF_ERROR(read_thinking(in, err));
    return read_config(in, err);
}

static status read_body(reading *in, const char *body, size_t n, openai_call *call, error *err)
{
    json_t *doc = NULL;
    RETURN_IF_ERROR(openai_read_body(in->s, body, n, FOR_MESSAGES, &doc, in->also, err));
    in->body = doc;
    status st = openai_engine_fields(doc, in->also, &in->chat, err);
    if (status_ok(st)) st = make_chat(in, err);
    if (status_ok(st)) st = openai_read_chat(in->s, in->chat, call, err);
    json_decref(in->chat);
    json_decref(doc);
    return st;
}

static bool parse_body(reading *in, const char *body, size_t n, openai_call *out,
                       openai_error *failure)
{
    error err = {{0}};
    *out = (openai_call){.form = &anthropic_form, .writer = anthropic_writer()};
    status st = out->writer ? read_body(in, body, n, out, &err) : out_of_memory(&err);
    if (status_ok(st)) return true;
    openai_call_destroy(out);
    openai_body_error(in->s, st, &err, failure);
    openai_rename(anthropic_form.names, failure);
    return false;
}

bool anthropic_parse(service *s, const char *body, size_t n, openai_call *out, openai_error *err)
{
    reading in = {.s = s};
    return parse_body(&in, body, n, out, err);
}

bool anthropic_count_tokens(service *s, const char *body, size_t n, strbuf *out,
                            openai_error *failure)
{
    reading in = {.s = s, .counts = true};
    openai_call call;
    error err = {{0}};
    size_t count = 0;
    if (n > COUNT_BYTES_MAX) {
        status too_long = error_set(
            &err, STATUS_LIMIT, "count_tokens takes bodies of at most %d bytes", COUNT_BYTES_MAX);
        openai_error_from(s, too_long, &err, failure);
        return false;
    }
    if (!parse_body(&in, body, n, &call, failure)) return false;
    status st = openai_count_tokens(s, &call, &count, &err);
    openai_call_destroy(&call);
    if (!status_ok(st)) {
        openai_error_from(s, st, &err, failure);
        openai_rename(anthropic_form.names, failure);
        return false;
    }
    strbuf_printf(out, "{\"input_tokens\":%zu}", count);
    return true;
}
