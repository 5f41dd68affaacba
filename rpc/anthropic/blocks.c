/* Turns messages of content blocks into a chat's messages. Results of tools, which a user's message
 * carries, become messages of their own. */
#include "rpc/anthropic/internal.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHERE_BYTES = 96 };

static const char *const text_types[] = {"text", NULL};

static bool is(const char *word, const char *what) { return word && strcmp(word, what) == 0; }

static const char *type_of(const json_t *block)
{
    return json_word(json_object_get(block, "type"));
}

/* The chat turns that the blocks of one message are added to. */
typedef struct place {
    chat_turns *turns;
    bool continues; // a block of the message's own role has been added
} place;

/* The chat message that takes a block of this role. */
static json_t *open_message(place *p, const char *role)
{
    json_t *message = turns_open(p->turns, role, p->continues);
    p->continues = true;
    return message;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static status read_text(const json_t *block, const char *role, const char *where, place *p,
                        error *err)
{
    const json_t *text = json_object_get(block, "text");
    if (!json_is_string(text))
        return error_set(err, STATUS_INVALID, "request: %s.text: must be a string", where);
    turns_add_text(p->turns, open_message(p, role), json_string_value(text),
                   json_string_length(text));
    return STATUS_IS_OK;
}

static status read_result(const json_t *block, const char *role, const char *where, place *p,
                          error *err)
{
    const char *id;
    char inner[WHERE_BYTES + 16];
    const json_t *content = json_object_get(block, "content");
    (void)role;
    RETURN_IF_ERROR(turns_need_text(block, "tool_use_id", where, &id, err));
    snprintf(inner, sizeof inner, "%s.content", where);
    json_t *message = turns_open_result(p->turns, id);
    if (!content || json_is_null(content)) return STATUS_IS_OK;
    return turns_add_content(p->turns, message, content, text_types, inner, err);
}

static status read_use(const json_t *block, const char *role, const char *where, place *p,
                       error *err)
{
    const char *id, *name;
    const json_t *input = json_object_get(block, "input");
    RETURN_IF_ERROR(turns_need_text(block, "id", where, &id, err));
    RETURN_IF_ERROR(turns_need_text(block, "name", where, &name, err));
    if (!json_is_object(input))
        return error_set(err, STATUS_INVALID, "request: %s.input: must be an object", where);
    char *arguments = json_write(input, JSON_COMPACT);
    p->turns->failed |= !arguments;
    if (arguments)
        turns_add_call(p->turns, open_message(p, role), id, name, arguments, strlen(arguments));
    free(arguments);
    return STATUS_IS_OK;
}

static status read_thinking(const json_t *block, const char *role, const char *where, place *p,
                            error *err)
{
    const json_t *text = json_object_get(block, "thinking");
    if (!json_is_string(text))
        return error_set(err, STATUS_INVALID, "request: %s.thinking: must be a string", where);
    turns_add_reasoning(p->turns, open_message(p, role), json_string_value(text),
                        json_string_length(text));
    return STATUS_IS_OK;
}

typedef struct block_row {
    const char *type, *role; // which role's messages have it; NULL = both
    status (*read)(const json_t *block, const char *role, const char *where, place *p, error *err);
} block_row;

static const block_row rows[] = {
    {"text", NULL, read_text},
    {"tool_result", "user", read_result},
    {"tool_use", "assistant", read_use},
    {"thinking", "assistant", read_thinking},
};

static status read_block(const json_t *block, const char *role, const char *where, place *p,
                         error *err)
{
    const char *type = type_of(block);
    if (!type)
        return error_set(err, STATUS_INVALID, "request: %s: must be an object with a type", where);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (is(type, rows[i].type) && (!rows[i].role || is(role, rows[i].role)))
            return rows[i].read(block, role, where, p, err);
    return error_set(err, STATUS_UNSUPPORTED,
                     "request: %s: the type '%.40s' is not supported in a message of the %s", where,
                     type, role);
}

/* ---- messages -------------------------------------------------------------------------------- */

static status read_content(const json_t *content, const char *role, size_t at, chat_turns *t,
                           error *err)
{
    char where[WHERE_BYTES];
    const json_t *block;
    size_t i;
    place p = {.turns = t};
    if (json_is_string(content)) {
        turns_add_text(t, open_message(&p, role), json_string_value(content),
                       json_string_length(content));
        return STATUS_IS_OK;
    }
    if (!json_is_array(content))
        return error_set(err, STATUS_INVALID,
                         "request: messages[%zu].content: must be a string or a list", at);
    json_array_foreach(content, i, block)
    {
        snprintf(where, sizeof where, "messages[%zu].content[%zu]", at, i);
        RETURN_IF_ERROR(read_block(block, role, where, &p, err));
    }
    return STATUS_IS_OK;
}

static const char *role_of(const json_t *message)
{
    const char *role = json_word(json_object_get(message, "role"));
    return is(role, "user") ? "user" : is(role, "assistant") ? "assistant" : NULL;
}

/* An answer can go on with a text, not with a call. */
static bool is_prefill(const chat_turns *t)
{
    const json_t *last = json_array_get(t->messages, json_array_size(t->messages) - 1);
    return json_is_word(json_object_get(last, "role"), "assistant") &&
           !json_object_get(last, "tool_calls");
}

status anthropic_read_messages(const json_t *messages, chat_turns *t, bool *prefilled, error *err)
{
    const json_t *message;
    size_t i;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return error_set(err, STATUS_INVALID, "request: messages: must be a list of messages");
    json_array_foreach(messages, i, message)
    {
        const char *role = role_of(message);
        if (!role)
            return error_set(err, STATUS_INVALID,
                             "request: messages[%zu].role: must be user or assistant", i);
        RETURN_IF_ERROR(read_content(json_object_get(message, "content"), role, i, t, err));
    }
    *prefilled = is_prefill(t);
    return turns_end(t, err);
}

status anthropic_read_system(const json_t *system, chat_turns *t, error *err)
{
    if (!system) return STATUS_IS_OK;
    return turns_add_content(t, turns_open(t, "system", false), system, text_types, "system", err);
}
