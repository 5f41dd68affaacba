/* Turns the items of `input` into messages. Reasoning, a message and calls that follow each other
 * are one message of the assistant, as templates expect it. */
#include "rpc/openai/responses/responses.h"

#include <stdio.h>
#include <string.h>

enum { WHERE_BYTES = 64 };

static const char *const text_types[] = {"input_text", "output_text", "text", "refusal", NULL};

/* Templates know no developer: OpenAI's newer name of the system. */
static const char *role_of(const json_t *item)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const json_t *role = json_object_get(item, "role");
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (json_is_word(role, roles[i])) return i == 3 ? "system" : roles[i];
    return NULL;
}

static status read_message(const json_t *item, const char *where, chat_turns *t, error *err)
{
    char place[WHERE_BYTES + 16];
    const char *role = role_of(item);
    if (!role)
        return error_set(err, STATUS_INVALID,
                         "request: %s.role: must be user, assistant, system or developer", where);
    snprintf(place, sizeof place, "%s.content", where);
    json_t *message = turns_open(t, role, strcmp(role, "assistant") == 0);
    return turns_add_content(t, message, json_object_get(item, "content"), text_types, place, err);
}

static status read_reasoning(const json_t *item, const char *where, chat_turns *t, error *err)
{
    const json_t *parts = json_object_get(item, "content"), *part;
    size_t i;
    json_t *message = turns_open(t, "assistant", true);
    if (parts && !json_is_null(parts) && !json_is_array(parts))
        return error_set(err, STATUS_INVALID, "request: %s.content: must be a list", where);
    json_array_foreach(parts, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        if (!json_is_word(json_object_get(part, "type"), "reasoning_text") || !json_is_string(text))
            return error_set(err, STATUS_INVALID,
                             "request: %s.content[%zu]: must be "
                             "{\"type\": \"reasoning_text\", \"text\": …}",
                             where, i);
        turns_add_reasoning(t, message, json_string_value(text), json_string_length(text));
    }
    return STATUS_IS_OK;
}

/* The engine parses arguments, too, but counts messages, not items, and bounds how many values all
 * calls have: such a text is left to it. */
static bool may_be_object(const json_t *text)
{
    enum { CHECKED_VALUES_MAX = 1 << 16 };
    error ignored;
    json_t *value = NULL;
    const char *bytes = json_string_value(text);
    size_t n = json_string_length(text), values = 0;
    for (size_t i = 0; i < n; i++) values += bytes[i] == ',' || bytes[i] == '[' || bytes[i] == '{';
    if (n == 0 || values > CHECKED_VALUES_MAX) return true;
    status s = json_read_text("", bytes, n, &value, &ignored);
    bool ok = s.code == STATUS_NO_MEMORY || (status_ok(s) && json_is_object(value));
    json_decref(value);
    return ok;
}

static status read_call(const json_t *item, const char *where, chat_turns *t, error *err)
{
    const char *id, *name;
    const json_t *arguments = json_object_get(item, "arguments");
    RETURN_IF_ERROR(turns_need_text(item, "call_id", where, &id, err));
    RETURN_IF_ERROR(turns_need_text(item, "name", where, &name, err));
    if (!json_is_string(arguments))
        return error_set(err, STATUS_INVALID, "request: %s.arguments: must be a string", where);
    if (!may_be_object(arguments))
        return error_set(err, STATUS_INVALID,
                         "request: %s.arguments: must be a JSON object, as a string", where);
    turns_add_call(t, turns_open(t, "assistant", true), id, name, json_string_value(arguments),
                   json_string_length(arguments));
    return STATUS_IS_OK;
}

static status read_output(const json_t *item, const char *where, chat_turns *t, error *err)
{
    const char *id;
    char place[WHERE_BYTES + 16];
    RETURN_IF_ERROR(turns_need_text(item, "call_id", where, &id, err));
    snprintf(place, sizeof place, "%s.output", where);
    return turns_add_content(t, turns_open_result(t, id), json_object_get(item, "output"),
                             text_types, place, err);
}

typedef struct item_row {
    const char *type;
    status (*read)(const json_t *item, const char *where, chat_turns *t, error *err);
} item_row;

static const item_row rows[] = {
    {"message", read_message},
    {"reasoning", read_reasoning},
    {"function_call", read_call},
    {"function_call_output", read_output},
};

static status read_item(const json_t *item, size_t at, chat_turns *t, error *err)
{
    char where[WHERE_BYTES];
    const json_t *given = json_object_get(item, "type");
    const char *type = given ? json_word(given) : "message";
    snprintf(where, sizeof where, "input[%zu]", at);
    if (!json_is_object(item) || !type)
        return error_set(err, STATUS_INVALID, "request: %s: must be an object with a type", where);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].type, type) == 0) return rows[i].read(item, where, t, err);
    return error_set(err, STATUS_UNSUPPORTED, "request: %s: the type '%.40s' is not supported",
                     where, type);
}

status response_read_input(const json_t *input, chat_turns *turns, error *err)
{
    static const char *const none[] = {NULL};
    const json_t *item;
    size_t i;
    if (json_is_string(input))
        return turns_add_content(turns, turns_open(turns, "user", false), input, none, "input",
                                 err);
    if (!json_is_array(input))
        return error_set(err, STATUS_INVALID,
                         "request: input: must be a string or a list of items");
    json_array_foreach(input, i, item) RETURN_IF_ERROR(read_item(item, i, turns, err));
    return STATUS_IS_OK;
}
