/* tool_choice: which tools an answer may call, and the form that holds it to calls. */
#include "base/json.h"
#include "rpc/openai/internal.h"
#include "rpc/openai/tools/tools.h"

#include <stdlib.h>
#include <string.h>

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "request: tools: out of memory");
}

/* ---- the field ------------------------------------------------------------------------------- */

status openai_read_tool_choice(const json_t *body, tool_choice *out, error *err)
{
    const json_t *choice = json_object_get(body, "tool_choice");
    *out = (tool_choice){.kind = TOOL_CHOICE_AUTO};
    if (!choice || json_is_null(choice) || json_is_word(choice, "auto")) return STATUS_IS_OK;
    if (json_is_word(choice, "none")) out->kind = TOOL_CHOICE_NONE;
    else if (json_is_word(choice, "required")) out->kind = TOOL_CHOICE_FORCED;
    else if (json_is_word(json_object_get(choice, "type"), "function")) {
        out->kind = TOOL_CHOICE_FORCED;
        out->name = json_word(json_object_get(json_object_get(choice, "function"), "name"));
    }
    if (out->kind != TOOL_CHOICE_AUTO && (json_is_string(choice) || out->name)) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "request: tool_choice: must be \"auto\", \"none\", \"required\" or "
                     "{\"type\": \"function\", \"function\": {\"name\": …}}");
}

/* ---- the form -------------------------------------------------------------------------------- */

/* Arguments are an object, and a function without parameters has none. New reference. */
static status read_parameters(const json_t *function, size_t i, json_t **out, error *err)
{
    const json_t *given = json_object_get(function, "parameters");
    const json_t *type = json_object_get(given, "type");
    bool absent = !given || json_is_null(given);
    if (!absent && (!json_is_object(given) || (type && !json_is_word(type, "object"))))
        return error_set(err, STATUS_INVALID,
                         "request: tools[%zu].function.parameters: must be a schema of type "
                         "\"object\"",
                         i);
    *out = absent ? json_pack("{s:b}", "additionalProperties", 0) : json_copy((json_t *)given);
    if (*out && json_object_set_new(*out, "type", json_string("object")) == 0) return STATUS_IS_OK;
    json_decref(*out);
    return out_of_memory(err);
}

/* A parser takes a name that is written without escapes. */
static status check_name(const json_t *value, size_t i, error *err)
{
    const char *name = json_string_value(value);
    size_t n = json_string_length(value);
    bool plain = n >= 1 && n <= TOOL_NAME_BYTES_MAX;
    for (size_t k = 0; plain && k < n; k++)
        plain = (unsigned char)name[k] >= ' ' && name[k] != '"' && name[k] != '\\';
    if (plain) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "request: tools[%zu].function.name: must be a string of 1 to %d bytes without "
                     "quotes and backslashes",
                     i, TOOL_NAME_BYTES_MAX);
}

/* Adds the function's call to the values of the form. */
static status add_call(const tool_form *form, const json_t *function, size_t i, json_t *values,
                       error *err)
{
    const char *name = json_word(json_object_get(function, "name"));
    json_t *parameters = NULL;
    RETURN_IF_ERROR(check_name(json_object_get(function, "name"), i, err));
    RETURN_IF_ERROR(read_parameters(function, i, &parameters, err));
    strbuf begin = {0};
    strbuf_printf(&begin, "%s%s%s", form->before_name, name, form->before_arguments);
    json_t *value = begin.failed
                        ? NULL
                        : json_pack("{s:s,s:s%,s:s,s:O}", "name", name, "begin", begin.data,
                                    begin.size, "end", form->after_arguments, "schema", parameters);
    strbuf_destroy(&begin);
    json_decref(parameters);
    return value && json_array_append_new(values, value) == 0 ? STATUS_IS_OK : out_of_memory(err);
}

static status add_calls(const tool_form *form, const json_t *tools, const char *name,
                        json_t *values, error *err)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        if (name && !json_is_word(json_object_get(function, "name"), name)) continue;
        RETURN_IF_ERROR(add_call(form, function, i, values, err));
    }
    if (json_array_size(values) > 0) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "request: tool_choice: no tool is named '%.64s'", name);
}

static status set_form(const tool_form *form, json_t *values, bool many, engine_request *r,
                       error *err)
{
    json_t *doc = json_pack("{s:O,s:b,s:s,s:s,s:s}", "values", values, "many", many, "begin",
                            form->begin, "separator", form->separator, "end", form->end);
    char *text = doc ? json_write(doc, JSON_COMPACT) : NULL;
    json_decref(doc);
    if (!text) return out_of_memory(err);
    status s = engine_request_set_form(r, "tool_choice", GRAMMAR_TAGGED, text, strlen(text), err);
    free(text);
    if (status_ok(s)) r->form.compact = true; // as templates write calls
    else error_prefix(err, "request");
    return s;
}

status openai_force_calls(const tool_parser *parser, const tool_choice *choice, const json_t *tools,
                          bool many, engine_request *r, error *err)
{
    if (!parser || !parser->form)
        return error_set(err, STATUS_UNSUPPORTED,
                         "request: tool_choice: of its values only [\"auto\",\"none\"] is "
                         "supported with --tool-call-parser %s",
                         parser ? parser->name : "none");
    json_t *values = json_array();
    if (!values) return out_of_memory(err);
    status s = add_calls(parser->form, tools, choice->name, values, err);
    if (status_ok(s)) s = set_form(parser->form, values, many && !choice->name, r, err);
    json_decref(values);
    return s;
}
