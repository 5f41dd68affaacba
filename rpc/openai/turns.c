/* Builds the messages of a chat from those of other APIs. */
#include "rpc/openai/surface.h"

#include <string.h>

static const char reasoning_key[] = "reasoning_content";

void turns_init(chat_turns *t)
{
    *t = (chat_turns){.messages = json_array()};
    t->failed = !t->messages;
}

void turns_destroy(chat_turns *t)
{
    json_decref(t->messages);
    strbuf_destroy(&t->reasoning);
    *t = (chat_turns){0};
}

static bool has_role(const json_t *message, const char *role)
{
    return json_is_word(json_object_get(message, "role"), role);
}

json_t *turns_open(chat_turns *t, const char *role, bool joins)
{
    size_t n = json_array_size(t->messages);
    json_t *last = n ? json_array_get(t->messages, n - 1) : NULL;
    if (joins && last && has_role(last, role)) return last;
    json_t *message = json_pack("{s:s,s:[]}", "role", role, "content");
    t->failed |= json_array_append_new(t->messages, message) != 0;
    return t->failed ? NULL : message;
}

json_t *turns_open_result(chat_turns *t, const char *call_id)
{
    json_t *message = turns_open(t, "tool", false);
    t->failed |= json_object_set_new(message, "tool_call_id", json_string(call_id)) != 0;
    return message;
}

void turns_add_text(chat_turns *t, json_t *message, const char *text, size_t n)
{
    json_t *part = json_pack("{s:s,s:s%}", "type", "text", "text", text, n);
    t->failed |= json_array_append_new(json_object_get(message, "content"), part) != 0;
}

/* Gives the reasoning that was gathered to its message. */
static void end_reasoning(chat_turns *t)
{
    const strbuf *all = &t->reasoning;
    if (!t->thinker) return;
    json_t *text = json_stringn(all->data ? all->data : "", all->size);
    t->failed |= all->failed || json_object_set_new(t->thinker, reasoning_key, text) != 0;
    t->thinker = NULL;
    strbuf_clear(&t->reasoning);
}

/* Begins with what the message has; an empty text keeps the member's place. */
static void begin_reasoning(chat_turns *t, json_t *message)
{
    const json_t *old = json_object_get(message, reasoning_key);
    end_reasoning(t);
    if (old) strbuf_append(&t->reasoning, json_string_value(old), json_string_length(old));
    else t->failed |= json_object_set_new(message, reasoning_key, json_string("")) != 0;
    t->thinker = message;
}

void turns_add_reasoning(chat_turns *t, json_t *message, const char *text, size_t n)
{
    if (t->thinker != message) begin_reasoning(t, message);
    strbuf_append(&t->reasoning, text, n);
}

void turns_add_call(chat_turns *t, json_t *message, const char *id, const char *name,
                    const char *arguments, size_t n)
{
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls) {
        calls = json_array();
        t->failed |= json_object_set_new(message, "tool_calls", calls) != 0;
    }
    json_t *call = json_pack("{s:s,s:s,s:{s:s,s:s%}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments, n);
    t->failed |= t->failed || json_array_append_new(calls, call) != 0;
}

/* True for a type of the list; *text is the part's text. */
static bool is_text(const json_t *part, const char *const *types, const json_t **text)
{
    const json_t *type = json_object_get(part, "type");
    *text = json_object_get(part, "text");
    if (!json_is_string(*text)) *text = json_object_get(part, "refusal");
    for (; *types; types++)
        if (json_is_word(type, *types)) return json_is_string(*text);
    return false;
}

static status refuse_part(const json_t *part, const char *where, size_t i, error *err)
{
    const char *type = json_word(json_object_get(part, "type"));
    if (!type)
        return error_set(err, STATUS_INVALID,
                         "request: %s[%zu]: must be an object with a type and a text", where, i);
    if (strstr(type, "text"))
        return error_set(err, STATUS_INVALID, "request: %s[%zu].text: must be a string", where, i);
    return error_set(err, STATUS_UNSUPPORTED,
                     "request: %s[%zu]: the type '%.40s' is not supported here", where, i, type);
}

status turns_add_content(chat_turns *t, json_t *message, const json_t *content,
                         const char *const *types, const char *where, error *err)
{
    const json_t *part, *text;
    size_t i;
    if (json_is_string(content)) {
        turns_add_text(t, message, json_string_value(content), json_string_length(content));
        return STATUS_IS_OK;
    }
    if (!json_is_array(content))
        return error_set(err, STATUS_INVALID, "request: %s: must be a string or a list", where);
    json_array_foreach(content, i, part)
    {
        if (!is_text(part, types, &text)) return refuse_part(part, where, i, err);
        turns_add_text(t, message, json_string_value(text), json_string_length(text));
    }
    return STATUS_IS_OK;
}

void turns_join_systems(chat_turns *t)
{
    json_t *first = json_array_get(t->messages, 0), *next;
    size_t n = 1;
    if (!first || !has_role(first, "system")) return;
    for (; (next = json_array_get(t->messages, n)) && has_role(next, "system"); n++)
        t->failed |= json_array_extend(json_object_get(first, "content"),
                                       json_object_get(next, "content")) != 0;
    if (n == 1) return;
    json_t *joined = json_array();
    t->failed |= json_array_append(joined, first) != 0;
    while ((next = json_array_get(t->messages, n++)))
        t->failed |= json_array_append(joined, next) != 0;
    json_decref(t->messages);
    t->messages = joined;
}

status turns_end(chat_turns *t, error *err)
{
    end_reasoning(t);
    return t->failed ? error_set(err, STATUS_NO_MEMORY, "request: out of memory") : STATUS_IS_OK;
}

status turns_need_text(const json_t *object, const char *key, const char *where, const char **out,
                       error *err)
{
    *out = json_word(json_object_get(object, key));
    if (*out && **out) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "request: %s.%s: must be a string of at least one character, without NUL",
                     where, key);
}
