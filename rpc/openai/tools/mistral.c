/* Mistral: [TOOL_CALLS] and a list of objects, or, from version 11 of its tokenizer on,
 * [TOOL_CALLS]name[ARGS]{…} for each call. */
#include "rpc/openai/tools/tools.h"

#include <string.h>

enum { IN_CONTENT, AFTER_MARK, IN_LIST, IN_OBJECT, IN_ARGUMENTS };

static const char mark[] = "[TOOL_CALLS]";

static size_t read_content(tool_reader *r, const char *text, size_t n, bool last)
{
    bool found;
    size_t at = tool_find(text, n, mark, last, &found);
    tool_content(r, text, at);
    if (!found) return at;
    r->state = AFTER_MARK;
    return at + strlen(mark);
}

static size_t refuse(tool_reader *r)
{
    tool_content(r, mark, strlen(mark));
    r->state = IN_CONTENT;
    return 0;
}

/* Reads "name", "name[ARGS]" or "name[CALL_ID]id[ARGS]", which an object follows. */
static size_t read_name(tool_reader *r, const char *text, size_t n, bool last)
{
    bool all = last || n >= TOOL_HEAD_BYTES_MAX;
    const char *brace = memchr(text, '{', n < TOOL_HEAD_BYTES_MAX ? n : TOOL_HEAD_BYTES_MAX);
    if (!brace && !all) return 0;
    size_t before = brace ? (size_t)(brace - text) : 0, length = 0;
    while (length < before && text[length] != '[' && !tool_blanks(text + length, 1)) length++;
    if (length == 0 || length > TOOL_NAME_BYTES_MAX) return refuse(r);
    tool_begin_arguments(r, text, length);
    r->state = IN_ARGUMENTS;
    return before;
}

static size_t read_after_mark(tool_reader *r, const char *text, size_t n, bool last)
{
    size_t at = tool_blanks(text, n);
    if (at == n) return 0;
    if (text[at] != '[' && text[at] != '{') return at ? at : read_name(r, text, n, last);
    r->state = IN_LIST;
    return at;
}

static size_t read_object(tool_reader *r, const char *text, size_t n)
{
    size_t used;
    object_result result = tool_read_object(r, text, n, &used);
    if (result == OBJECT_CALL) r->state = r->state == IN_ARGUMENTS ? IN_CONTENT : IN_LIST;
    if (result == OBJECT_TEXT) {
        tool_reject(r, r->n_calls == 0 ? mark : "");
        r->state = IN_CONTENT;
    }
    return used;
}

static size_t read(tool_reader *r, const char *text, size_t n, bool last)
{
    switch (r->state) {
    case IN_CONTENT: return read_content(r, text, n, last);
    case AFTER_MARK: return read_after_mark(r, text, n, last);
    case IN_LIST:
        if (tool_blanks(text, 1) || text[0] == ',' || text[0] == '[') return 1;
        r->state = text[0] == '{' ? IN_OBJECT : IN_CONTENT;
        return text[0] == ']';
    default: return read_object(r, text, n);
    }
}

const tool_parser tool_parser_mistral = {
    .name = "mistral",
    .help = "Mistral: [TOOL_CALLS] and a list of objects, or a name and [ARGS]",
    .mark = "[TOOL_CALLS]",
    .special = true,
    .id_bytes = 9,
    .read = read,
};
