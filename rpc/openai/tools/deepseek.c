/* DeepSeek V3, R1 and V3.1: marks of their own around each call. Before V3.1 the word "function"
 * stands in place of the name, which follows on a line of its own before a fenced object. */
#include "rpc/openai/tools/tools.h"

#include <string.h>

enum { IN_CONTENT, BEFORE_CALL, IN_WORD, IN_NAME, IN_ARGUMENTS };

static const char begins[] = "<｜tool▁calls▁begin｜>", call_begins[] = "<｜tool▁call▁begin｜>",
                  separates[] = "<｜tool▁sep｜>";

static size_t read_content(tool_reader *r, const char *text, size_t n, bool last)
{
    bool found;
    size_t at = tool_find(text, n, begins, last, &found);
    tool_content(r, text, at);
    if (!found) return at;
    r->state = BEFORE_CALL;
    return at + strlen(begins);
}

/* Behind a call: its end mark, the next call, or the end of all. */
static size_t skip_to_call(tool_reader *r, const char *text, size_t n, bool last)
{
    bool found;
    size_t at = tool_find(text, n, call_begins, last, &found);
    if (!found) return at;
    r->state = IN_WORD;
    return at + strlen(call_begins);
}

static size_t read_word(tool_reader *r, const char *text, size_t n, bool last)
{
    bool found, all = last || n >= TOOL_HEAD_BYTES_MAX;
    if (n > TOOL_HEAD_BYTES_MAX) n = TOOL_HEAD_BYTES_MAX;
    size_t at = tool_find(text, n, separates, all, &found);
    strbuf_clear(&r->word);
    if (!found && !all) return 0;
    r->state = found ? IN_NAME : IN_CONTENT;
    if (!found) return 0;
    strbuf_append(&r->word, text, at);
    return at + strlen(separates);
}

static size_t read_name(tool_reader *r, const char *text, size_t n, bool last)
{
    bool all = last || n >= TOOL_HEAD_BYTES_MAX;
    const char *brace = memchr(text, '{', n < TOOL_HEAD_BYTES_MAX ? n : TOOL_HEAD_BYTES_MAX);
    if (!brace && !all) return 0;
    size_t before = brace ? (size_t)(brace - text) : 0, length = 0;
    while (length < before && text[length] != '\n') length++;
    bool own = tool_blanks(text, before) == before; /* V3.1: the word is the name */
    const char *name = own ? r->word.data : text;
    if (own) length = r->word.size;
    size_t skip = tool_blanks(name ? name : "", length);
    if (!brace || length == skip || length - skip > TOOL_NAME_BYTES_MAX) {
        r->state = IN_CONTENT;
        return 0;
    }
    tool_begin_arguments(r, name + skip, length - skip);
    r->state = IN_ARGUMENTS;
    return before;
}

static size_t read_arguments(tool_reader *r, const char *text, size_t n)
{
    size_t used;
    if (tool_read_object(r, text, n, &used) != OBJECT_MORE) r->state = BEFORE_CALL;
    return used;
}

static size_t read(tool_reader *r, const char *text, size_t n, bool last)
{
    switch (r->state) {
    case IN_CONTENT: return read_content(r, text, n, last);
    case BEFORE_CALL: return skip_to_call(r, text, n, last);
    case IN_WORD: return read_word(r, text, n, last);
    case IN_NAME: return read_name(r, text, n, last);
    default: return read_arguments(r, text, n);
    }
}

const tool_parser tool_parser_deepseek = {
    .name = "deepseek",
    .help = "DeepSeek V3, R1 and V3.1: marks of their own around name and arguments",
    .mark = begins,
    .special = true,
    .read = read,
};
