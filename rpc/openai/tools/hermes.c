/* Hermes 2 and Qwen 2.5, 3: <tool_call>{"name": …, "arguments": {…}}</tool_call>, once for each
 * call, behind the content. */
#include "rpc/openai/tools/tools.h"

#include <string.h>

enum { IN_CONTENT, BEFORE_OBJECT, IN_OBJECT, AFTER_OBJECT };

static const char begins[] = "<tool_call>", ends[] = "</tool_call>";

static size_t read_content(tool_reader *r, const char *text, size_t n, bool last)
{
    bool found;
    size_t at = tool_find(text, n, begins, last, &found);
    tool_content(r, text, at);
    if (!found) return at;
    tool_hold(r, begins, strlen(begins));
    r->state = BEFORE_OBJECT;
    return at + strlen(begins);
}

static size_t read_blanks(tool_reader *r, const char *text, size_t n)
{
    size_t at = tool_blanks(text, n);
    tool_hold(r, text, at);
    if (at < n) r->state = IN_OBJECT;
    return at;
}

static size_t read_object(tool_reader *r, const char *text, size_t n)
{
    size_t used;
    object_result result = tool_read_object(r, text, n, &used);
    if (result == OBJECT_CALL) r->state = AFTER_OBJECT;
    if (result == OBJECT_TEXT) r->state = IN_CONTENT;
    return used;
}

/* Behind text of a malformed call its end is text too. */
static size_t read_end(tool_reader *r, const char *text, size_t n, bool last)
{
    bool more;
    size_t at = tool_blanks(text, n), end = tool_mark(text + at, n - at, ends, last, &more);
    tool_hold(r, text, at);
    if (at == n || more) return at;
    if (!r->behind_call) end = 0;
    if (end) tool_drop(r);
    r->state = IN_CONTENT;
    return at + end;
}

static size_t read(tool_reader *r, const char *text, size_t n, bool last)
{
    switch (r->state) {
    case IN_CONTENT: return read_content(r, text, n, last);
    case BEFORE_OBJECT: return read_blanks(r, text, n);
    case IN_OBJECT: return read_object(r, text, n);
    default: return read_end(r, text, n, last);
    }
}

static const tool_form form = {
    .before_name = "<tool_call>\n{\"name\": \"",
    .before_arguments = "\", \"arguments\": ",
    .after_arguments = "}\n</tool_call>",
    .begin = "",
    .separator = "\n",
    .end = "",
};

const tool_parser tool_parser_hermes = {
    .name = "hermes",
    .help = "Hermes 2 and Qwen 2.5, 3: <tool_call> and an object with name and arguments",
    .mark = "<tool_call>",
    .unless = "<function=",
    .special = true,
    .form = &form,
    .read = read,
};
