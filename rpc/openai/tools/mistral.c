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
    tool_hold(r, mark, strlen(mark));
    r->list = false;
    r->seen = 0;
    r->state = AFTER_MARK;
    return at + strlen(mark);
}

static bool begins_with(const char *text, size_t n, const char *word)
{
    return n >= strlen(word) && memcmp(text, word, strlen(word)) == 0;
}

/* The length of the name in "name", "name[ARGS]" or "name[CALL_ID]id[ARGS]"; 0 = the text is
 * something else. */
static size_t name_length(const char *text, size_t n)
{
    static const char id[] = "[CALL_ID]", arguments[] = "[ARGS]";
    size_t length = 0;
    while (length < n && text[length] != '[' && !tool_blanks(text + length, 1)) length++;
    size_t at = length + tool_blanks(text + length, n - length);
    if (begins_with(text + at, n - at, id)) {
        at += strlen(id);
        while (at < n && text[at] != '[') at++;
    }
    if (begins_with(text + at, n - at, arguments)) at += strlen(arguments);
    at += tool_blanks(text + at, n - at);
    return at == n && length <= TOOL_NAME_BYTES_MAX ? length : 0;
}

/* Reads what is in front of an object. */
static size_t read_name(tool_reader *r, const char *text, size_t n, bool last)
{
    bool all = last || n >= TOOL_HEAD_BYTES_MAX;
    const char *brace = memchr(text, '{', n < TOOL_HEAD_BYTES_MAX ? n : TOOL_HEAD_BYTES_MAX);
    if (!brace && !all) return 0;
    size_t before = brace ? (size_t)(brace - text) : 0, length = name_length(text, before);
    r->state = length ? IN_ARGUMENTS : IN_CONTENT;
    if (length == 0) return 0;
    tool_begin_arguments(r, text, length);
    return before;
}

static size_t read_after_mark(tool_reader *r, const char *text, size_t n, bool last)
{
    size_t at = tool_blanks(text, n);
    if (at == 0 && text[0] != '[' && text[0] != '{') return read_name(r, text, n, last);
    if (at == 0) {
        r->list = text[0] == '[';
        r->state = r->list ? IN_LIST : IN_OBJECT;
        at = r->list;
    }
    tool_hold(r, text, at);
    return at;
}

static size_t read_object(tool_reader *r, const char *text, size_t n)
{
    size_t used;
    object_result result = tool_read_object(r, text, n, &used);
    if (result == OBJECT_CALL) r->state = r->state == IN_ARGUMENTS ? IN_CONTENT : IN_LIST;
    r->seen |= result == OBJECT_CALL;
    if (result == OBJECT_TEXT) r->state = IN_CONTENT;
    return used;
}

/* Takes what is between calls. The end of a list without a call, or behind content, is content. */
static size_t read_list(tool_reader *r, char c)
{
    if (tool_blanks(&c, 1) || c == ',') {
        tool_hold(r, &c, 1);
        return 1;
    }
    bool ends = c == ']' && r->list && r->seen && r->behind_call;
    if (ends) tool_drop(r);
    r->state = c == '{' ? IN_OBJECT : IN_CONTENT;
    return ends;
}

static size_t read(tool_reader *r, const char *text, size_t n, bool last)
{
    switch (r->state) {
    case IN_CONTENT: return read_content(r, text, n, last);
    case AFTER_MARK: return read_after_mark(r, text, n, last);
    case IN_LIST: return read_list(r, text[0]);
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
