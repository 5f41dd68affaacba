/* Makes a request's messages what chat templates expect: contents that are strings, and arguments
 * of tool calls that are objects. */
#include "engine/internal.h"

#include <stdio.h>
#include <string.h>

static status out_of_memory(size_t message, error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "messages[%zu]: out of memory", message);
}

/* ---- contents -------------------------------------------------------------------------------- */

/* Joins a list of {"type": "text", "text": …} parts with newlines. */
static status join_parts(const json_t *parts, size_t message, strbuf *out, error *err)
{
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        if (!json_is_word(json_object_get(part, "type"), "text") || !json_is_string(text))
            return error_set(err, STATUS_UNSUPPORTED,
                             "messages[%zu].content[%zu]: only {\"type\":\"text\",\"text\":…} "
                             "parts are supported",
                             message, i);
        if (i) strbuf_putc(out, '\n');
        strbuf_append(out, json_string_value(text), json_string_length(text));
    }
    return STATUS_IS_OK;
}

static status join_content(json_t *message, const json_t *parts, size_t at, error *err)
{
    strbuf joined = {0};
    status s = join_parts(parts, at, &joined, err);
    if (status_ok(s) &&
        (joined.failed ||
         json_object_set_new(message, "content",
                             json_stringn(joined.data ? joined.data : "", joined.size))))
        s = out_of_memory(at, err);
    strbuf_destroy(&joined);
    return s;
}

/* Users and systems say something. Messages of other roles may have no content: what that means is
 * the chat template's matter. */
static bool must_speak(const char *role)
{
    return strcmp(role, "user") == 0 || strcmp(role, "system") == 0 ||
           strcmp(role, "developer") == 0;
}

/* An assistant that called tools may have said nothing: clients send null, or no content. */
static status set_content(json_t *message, const char *role, size_t at, error *err)
{
    const json_t *content = json_object_get(message, "content");
    bool absent = !content || json_is_null(content);
    if (absent && strcmp(role, "assistant") == 0)
        return json_object_set_new(message, "content", json_string("")) ? out_of_memory(at, err)
                                                                        : STATUS_IS_OK;
    if (json_is_array(content)) return join_content(message, content, at, err);
    if (json_is_string(content) || (absent && !must_speak(role))) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "messages[%zu].content: must be a string or a list", at);
}

status messages_normalise(json_t *messages, error *err)
{
    size_t i;
    json_t *message;
    if (json_array_size(messages) == 0)
        return error_set(err, STATUS_INVALID, "messages: must be a non-empty array");
    json_array_foreach(messages, i, message)
    {
        const char *role = json_word(json_object_get(message, "role"));
        if (!role)
            return error_set(err, STATUS_INVALID,
                             "messages[%zu]: must be an object whose role is a string without NUL",
                             i);
        RETURN_IF_ERROR(set_content(message, role, i, err));
    }
    return STATUS_IS_OK;
}

/* ---- arguments of tool calls ----------------------------------------------------------------- */

/* The most lists, objects and further members in all arguments of a request: a value of two bytes
 * takes a hundred times as much memory. */
enum { ARGUMENT_VALUES_MAX = 1 << 16 };

static size_t count_values(const char *text, size_t n)
{
    size_t values = 0;
    for (size_t i = 0; i < n; i++) values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return values;
}

static status read_arguments(const json_t *text, const char *where, size_t *values, json_t **out,
                             error *err)
{
    error why;
    size_t n = json_string_length(text);
    *values += count_values(json_string_value(text), n);
    if (*values > ARGUMENT_VALUES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: more than %d values in the arguments of all calls",
                         where, ARGUMENT_VALUES_MAX);
    *out = NULL;
    status s = n ? json_read_text("", json_string_value(text), n, out, &why) : STATUS_IS_OK;
    if (n == 0) *out = json_object();
    if (s.code == STATUS_NO_MEMORY || (n == 0 && !*out))
        return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    if (status_ok(s) && json_is_object(*out)) return STATUS_IS_OK;
    json_decref(*out);
    return error_set(err, STATUS_INVALID, "%s: must be a JSON object, as a string", where);
}

static status decode_call(json_t *call, const char *where, size_t *values, error *err)
{
    json_t *function = json_object_get(call, "function"), *arguments;
    if (!json_is_object(function) || !json_is_string(json_object_get(function, "name")))
        return error_set(err, STATUS_INVALID,
                         "%s: must be an object with a function that has a name", where);
    const json_t *text = json_object_get(function, "arguments");
    if (!json_is_string(text)) return STATUS_IS_OK;
    char place[96];
    snprintf(place, sizeof place, "%s.function.arguments", where);
    RETURN_IF_ERROR(read_arguments(text, place, values, &arguments, err));
    if (json_object_set_new(function, "arguments", arguments) == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
}

static status decode_message(const json_t *message, size_t at, size_t *values, error *err)
{
    size_t i;
    json_t *call;
    char where[64];
    const json_t *calls = json_object_get(message, "tool_calls");
    if (calls && !json_is_array(calls) && !json_is_null(calls))
        return error_set(err, STATUS_INVALID, "messages[%zu].tool_calls: must be a list", at);
    json_array_foreach(calls, i, call)
    {
        snprintf(where, sizeof where, "messages[%zu].tool_calls[%zu]", at, i);
        RETURN_IF_ERROR(decode_call(call, where, values, err));
    }
    return STATUS_IS_OK;
}

static bool has_calls(const json_t *messages)
{
    size_t i;
    const json_t *message;
    json_array_foreach(messages, i,
                       message) if (json_object_get(message, "tool_calls")) return true;
    return false;
}

status messages_with_objects(json_t *messages, json_t **out, error *err)
{
    size_t i, values = 0;
    json_t *message;
    *out = has_calls(messages) ? json_copy_whole(messages) : json_incref(messages);
    if (!*out) return error_set(err, STATUS_NO_MEMORY, "messages: out of memory");
    if (*out == messages) return STATUS_IS_OK;
    status s = STATUS_IS_OK;
    json_array_foreach(*out, i, message)
    {
        s = decode_message(message, i, &values, err);
        if (!status_ok(s)) break;
    }
    if (status_ok(s)) return s;
    json_decref(*out);
    *out = NULL;
    return s;
}
