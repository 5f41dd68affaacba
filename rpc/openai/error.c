/* Errors in the form that OpenAI's clients expect. */
#include "rpc/openai/internal.h"

#include <string.h>

typedef struct error_row {
    status_code code;
    unsigned status;
    const char *type;
    bool retry;
} error_row;

/* HTTP status and type of each status code; a code without a row is an internal error, 500. */
static const error_row rows[] = {
    {STATUS_INVALID, 400, "BadRequestError", false},
    {STATUS_UNSUPPORTED, 400, "BadRequestError", false},
    {STATUS_CORRUPT, 400, "BadRequestError", false},
    {STATUS_LIMIT, 400, "BadRequestError", false},
    {STATUS_NOT_FOUND, 404, "NotFoundError", false},
    {STATUS_QUEUE_FULL, 503, "ServiceUnavailableError", true},
    {STATUS_NO_PAGES, 503, "ServiceUnavailableError", true},
    {STATUS_UNAVAILABLE, 503, "ServiceUnavailableError", true},
    {STATUS_ABORTED, 503, "ServiceUnavailableError", true},
    {STATUS_NO_MEMORY, 503, "ServiceUnavailableError", true},
};

static const error_row *row_of(status_code code)
{
    static const error_row internal = {STATUS_INTERNAL, 500, "InternalServerError", false};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].code == code) return &rows[i];
    return &internal;
}

static bool begins_with(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static void set_param(openai_error *e, const char *name, size_t n)
{
    snprintf(e->param, sizeof e->param, "%.*s", (int)(n < sizeof e->param ? n : 0), name);
}

static const char unknown[] = "unknown field '";
static const char letters[] = "abcdefghijklmnopqrstuvwxyz_0123456789.[]";

/* Appends the member to the param: JSON readers write 'field: "member" is …'. */
static void add_member(const char *text, openai_error *e)
{
    size_t n = strlen(e->param), chars = strspn(text, letters);
    if (chars && begins_with(text + chars, "\" "))
        snprintf(e->param + n, sizeof e->param - n, ".%.*s", (int)chars, text);
}

/* Finds the field in an error text: "field: what is wrong", "field.member is …" or
 * "unknown field 'name'". */
static void find_param(const char *text, openai_error *e)
{
    if (begins_with(text, unknown)) {
        const char *name = text + sizeof unknown - 1, *end = strrchr(name, '\'');
        if (end) set_param(e, name, (size_t)(end - name));
        return;
    }
    size_t n = strspn(text, letters);
    bool path = memchr(text, '.', n) || memchr(text, '[', n);
    if (n && (text[n] == ':' || (path && text[n] == ' '))) set_param(e, text, n);
    if (e->param[0] && begins_with(text + n, ": \"")) add_member(text + n + 3, e);
}

/* True when the prompt, alone or with the tokens to generate, does not fit the context. (Texts of a
 * parser begin with "request: " and are about something else.) */
static bool is_too_long(status_code code, const char *text)
{
    return code == STATUS_LIMIT && begins_with(text, "prompt: ");
}

/* Tells that the context is exceeded in the words by which LiteLLM and LangChain know it. */
static bool tell_overflow(const char *text, openai_error *out)
{
    static const char limit[] = "; the maximum context length is ";
    const char *at = strstr(text, limit);
    if (!at) return false;
    const char *number = at + sizeof limit - 1;
    int digits = (int)strspn(number, "0123456789");
    snprintf(out->message, sizeof out->message,
             "This model's maximum context length is %.*s tokens; %.*s%s", digits, number,
             (int)(at - text), text, number + digits);
    out->code = "context_length_exceeded";
    return true;
}

/* Replaces line ends and other control characters, which a client's field names may hold. */
static void make_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ') *text = ' ';
}

void openai_error_from(service *s, status why, const error *err, openai_error *out)
{
    const error_row *row = row_of(why.code);
    const char *text = err && err->text[0] ? err->text
                       : why.message       ? why.message
                                           : status_text(why.code);
    *out = (openai_error){.status = row->status, .type = row->type};
    if (row->retry) out->retry_after_s = service_retry_after_s(s);
    bool too_long = is_too_long(why.code, text);
    if (begins_with(text, "request: ")) text += strlen("request: ");
    if (too_long) set_param(out, "input_tokens", strlen("input_tokens"));
    else if (row->status == 400) find_param(text, out);
    if (!too_long || !tell_overflow(text, out))
        snprintf(out->message, sizeof out->message, "%s", text);
    make_one_line(out->message);
    make_one_line(out->param);
}

void openai_body_error(service *s, status why, const error *err, openai_error *out)
{
    openai_error_from(s, why, err, out);
    /* "body: line 1, …" names no field. Only the model can be not found. */
    if (why.code == STATUS_CORRUPT) out->param[0] = '\0';
    if (why.code == STATUS_NOT_FOUND) set_param(out, "model", strlen("model"));
}

/* Puts `to` in the place of the n bytes at `at` of a text in `size` bytes. */
static void replace_text(char *text, size_t size, size_t at, size_t n, const char *to)
{
    char rest[sizeof((openai_error *)0)->message];
    snprintf(rest, sizeof rest, "%s", text + at + n);
    snprintf(text + at, size - at, "%s%s", to, rest);
}

/* The bytes of the param that `name` is about; 0 when it is about another. *at is where. */
static size_t find_name(const openai_name *name, const char *param, size_t *at)
{
    size_t n = strlen(name->chat);
    const char *found =
        name->whole && !begins_with(param, name->chat) ? NULL : strstr(param, name->chat);
    if (!found) return 0;
    *at = (size_t)(found - param);
    if (!name->whole) return n;
    return param[n] == '\0' || param[n] == '.' || param[n] == '[' ? strlen(param) : 0;
}

void openai_rename(const openai_name *names, openai_error *e)
{
    /* An unknown field is the client's own word. */
    if (begins_with(e->message, unknown)) return;
    for (const openai_name *name = names; name->chat; name++) {
        size_t at, n = find_name(name, e->param, &at);
        if (n == 0) continue;
        /* The message may lack the param's last member: 'field: "member" is …'. */
        size_t said = strspn(e->message, letters);
        if (said >= at + strlen(name->chat) && strncmp(e->message, e->param, said) == 0)
            replace_text(e->message, sizeof e->message, at, n < said - at ? n : said - at,
                         name->own);
        replace_text(e->param, sizeof e->param, at, n, name->own);
        return;
    }
}

/* Whether the name is all of the param but for a place in it: "prompt", "prompt[2]". */
static bool names_prompt(const char *param, const char *name)
{
    size_t n = strlen(name);
    return begins_with(param, name) && (param[n] == '\0' || param[n] == '[');
}

void openai_place_prompt(const char *name, uint32_t n_prompts, uint32_t at, openai_error *e)
{
    static const openai_name ids[] = {{"prompt_token_ids", "prompt", false}, {NULL, NULL, false}};
    static const char overflow[] = " tokens; prompt: ";
    char place[32];
    openai_rename(ids, e);
    snprintf(place, sizeof place, n_prompts < 2 ? "%s" : "%s[%u]", name, at);
    if (names_prompt(e->param, name)) {
        if (begins_with(e->message, e->param))
            replace_text(e->message, sizeof e->message, 0, strlen(name), place);
        replace_text(e->param, sizeof e->param, 0, strlen(name), place);
    }
    const char *found = strstr(e->message, overflow);
    if (found && e->code) {
        size_t from = (size_t)(found - e->message) + strlen(" tokens; ");
        replace_text(e->message, sizeof e->message, from, strlen("prompt"), place);
    }
}

void openai_error_json(const openai_error *e, strbuf *out)
{
    strbuf_puts(out, "{\"error\":{\"message\":");
    strbuf_json_string(out, e->message, strlen(e->message));
    strbuf_printf(out, ",\"type\":\"%s\",\"param\":", e->type);
    if (e->param[0]) strbuf_json_string(out, e->param, strlen(e->param));
    else strbuf_puts(out, "null");
    if (e->code) strbuf_printf(out, ",\"code\":\"%s\"}}", e->code);
    else strbuf_printf(out, ",\"code\":%u}}", e->status);
}

const char openai_starved[] =
    "data: {\"error\":{\"message\":\"out of memory\",\"type\":\"ServiceUnavailableError\","
    "\"param\":null,\"code\":503}}\n\ndata: [DONE]\n\n";
