/* Renders a request's messages by the model's chat template, or by the request's own. */
#include "base/bytes.h"
#include "engine/internal.h"

#include <string.h>
#include <time.h>

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "chat template: out of memory");
}

/* ---- variables ------------------------------------------------------------------------------- */

/* Adds the request's own variables. One that the template does not read would change nothing, so it
 * is refused. */
static status add_kwargs(const chat_template *t, const json_t *kwargs, json_t *vars, error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)kwargs, key, value)
    {
        if (json_object_get(vars, key) || strcmp(key, "tools") == 0)
            return error_set(err, STATUS_INVALID,
                             "chat_template_kwargs.%.64s: is set by other fields of a request",
                             key);
        if (!tmpl_uses(t, key))
            return error_set(err, STATUS_UNSUPPORTED,
                             "chat_template_kwargs.%.64s: the chat template has no such variable",
                             key);
    }
    return json_object_update(vars, (json_t *)kwargs) ? out_of_memory(err) : STATUS_IS_OK;
}

static status make_vars(const engine *e, const engine_request *r, const chat_template *t,
                        json_t *messages, json_t **out, error *err)
{
    bool prompts = r->add_generation_prompt && !r->continue_final_message;
    json_t *vars = json_pack("{s:O, s:b, s:s, s:s}", "messages", messages, "add_generation_prompt",
                             prompts, "bos_token", e->o.bos, "eos_token", e->o.eos);
    status s = vars ? STATUS_IS_OK : out_of_memory(err);
    if (status_ok(s) && r->chat_template_kwargs)
        s = add_kwargs(t, r->chat_template_kwargs, vars, err);
    if (status_ok(s) && r->tools && json_object_set(vars, "tools", r->tools))
        s = out_of_memory(err);
    if (status_ok(s)) *out = vars;
    else json_decref(vars);
    return s;
}

static status render_messages(const engine *e, const engine_request *r, const chat_template *t,
                              json_t *messages, strbuf *out, error *err)
{
    json_t *vars;
    RETURN_IF_ERROR(make_vars(e, r, t, messages, &vars, err));
    status s = tmpl_render(t, vars, (int64_t)time(NULL), NULL, out, err);
    json_decref(vars);
    return s;
}

/* ---- the final message ----------------------------------------------------------------------- */

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Cuts what the template writes behind the last message's text, so that the model goes on with it.
 * Templates may trim the text, as in Hugging Face's apply_chat_template. */
static status cut_behind_final(const json_t *messages, strbuf *out, error *err)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(last, "content");
    const char *text = json_string_value(content), *at;
    size_t n = json_string_length(content), skip = 0;
    while (skip < n && is_blank(text[skip])) skip++;
    size_t end = n;
    while (end > skip && is_blank(text[end - 1])) end--;
    if (skip == end)
        return error_set(err, STATUS_INVALID,
                         "continue_final_message: the last message has no text to go on from");
    if (!status_ok(bytes_find_last(out->data, out->size, text + skip, end - skip, &at)))
        return out_of_memory(err);
    if (!at)
        return error_set(err, STATUS_UNSUPPORTED,
                         "continue_final_message: the chat template does not write the last "
                         "message's text as it is");
    size_t begin = (size_t)(at - out->data), kept = begin + n - skip;
    bool whole = kept <= out->size && memcmp(at, text + skip, n - skip) == 0;
    out->size = whole ? kept : begin + end - skip;
    out->data[out->size] = '\0';
    return STATUS_IS_OK;
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Templates write the arguments of tool calls from objects, as Hugging Face passes them; some, such
 * as DeepSeek's, fail on these and write the texts that clients send. */
static status render_by(const engine *e, const engine_request *r, const chat_template *t,
                        strbuf *out, error *err)
{
    json_t *decoded;
    error ignored;
    RETURN_IF_ERROR(messages_normalise(r->messages, err));
    RETURN_IF_ERROR(messages_with_objects(r->messages, &decoded, err));
    status s = render_messages(e, r, t, decoded, out, err);
    bool differ = decoded != r->messages;
    json_decref(decoded);
    if (s.code == STATUS_INVALID && differ &&
        status_ok(render_messages(e, r, t, r->messages, out, &ignored)))
        s = STATUS_IS_OK;
    if (status_ok(s) && r->continue_final_message) s = cut_behind_final(r->messages, out, err);
    return s;
}

status engine_render(const engine *e, const engine_request *r, strbuf *out, error *err)
{
    chat_template *own;
    if (!r->chat_template) return render_by(e, r, e->o.chat, out, err);
    RETURN_IF_ERROR(tmpl_compile(r->chat_template, strlen(r->chat_template), &own, err));
    status s = engine_check_tools(r, own, err);
    if (status_ok(s)) s = render_by(e, r, own, out, err);
    tmpl_destroy(own);
    return s;
}
