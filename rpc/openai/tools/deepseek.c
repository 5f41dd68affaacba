/* DeepSeek V3, R1 and V3.1: marks of their own around each call. Before V3.1 the word "function"
 * stands in place of the name, which follows on a line of its own before a fenced object. */
#include "rpc/openai/tools/tools.h"

#include <string.h>

enum { IN_CONTENT, IN_WORD, IN_NAME, IN_ARGUMENTS, AFTER_ARGUMENTS };

static const char prefix[] = "<｜tool▁", begins[] = "<｜tool▁calls▁begin｜>",
                  ends[] = "<｜tool▁calls▁end｜>", call_begins[] = "<｜tool▁call▁begin｜>",
                  call_ends[] = "<｜tool▁call▁end｜>", separates[] = "<｜tool▁sep｜>";

/* Takes a mark between calls. */
static size_t read_mark(tool_reader *r, const char *text, size_t n, bool last)
{
    bool more[3];
    size_t end = tool_mark(text, n, ends, last, &more[0]);
    size_t all = tool_mark(text, n, begins, last, &more[1]);
    size_t call = tool_mark(text, n, call_begins, last, &more[2]);
    if (more[0] || more[1] || more[2]) return 0;
    size_t size = end ? end : all ? all : call;
    if (end && r->behind_call) tool_drop(r);
    else if (all || call) tool_hold(r, text, size);
    else {
        size = size ? size : strlen(prefix);
        tool_content(r, text, size);
    }
    if (size == call) r->state = IN_WORD;
    return size;
}

static size_t read_content(tool_reader *r, const char *text, size_t n, bool last)
{
    bool found;
    size_t at = tool_find(text, n, prefix, last, &found);
    tool_content(r, text, at);
    return at == 0 && found ? read_mark(r, text, n, last) : at;
}

static size_t read_word(tool_reader *r, const char *text, size_t n, bool last)
{
    bool found, all = last || n >= TOOL_HEAD_BYTES_MAX;
    if (n > TOOL_HEAD_BYTES_MAX) n = TOOL_HEAD_BYTES_MAX;
    size_t at = tool_find(text, n, separates, all, &found);
    if (!found && all) {
        tool_keep(r); // or the mark would be dropped with that of the calls' end
        r->state = IN_CONTENT;
    }
    if (!found) return 0;
    strbuf_clear(&r->word);
    strbuf_append(&r->word, text, at);
    at += strlen(separates);
    tool_hold(r, text, at);
    r->state = IN_NAME;
    return at;
}

/* A text without the white space around it. */
typedef struct span {
    const char *text;
    size_t n;
} span;

static span trim(const char *text, size_t n)
{
    size_t skip = tool_blanks(text, n);
    while (n > skip && tool_blanks(text + n - 1, 1)) n--;
    return (span){text + skip, n - skip};
}

static bool equals(span s, const char *word)
{
    return s.n == strlen(word) && memcmp(s.text, word, s.n) == 0;
}

/* The name, of which V3.1 has the word in place of; nothing when the text in front of the object
 * is none. */
static span find_name(const tool_reader *r, const char *text, size_t n)
{
    static const span none = {"", 0};
    span word = trim(r->word.data ? r->word.data : "", r->word.size);
    if (tool_blanks(text, n) == n) return word;
    const char *line = memchr(text, '\n', n);
    size_t length = line ? (size_t)(line - text) : n;
    span fence = trim(text + length, n - length);
    bool fits = equals(fence, "") || equals(fence, "```json") || equals(fence, "```");
    return equals(word, "function") && fits ? trim(text, length) : none;
}

static size_t read_name(tool_reader *r, const char *text, size_t n, bool last)
{
    bool all = last || n >= TOOL_HEAD_BYTES_MAX;
    const char *brace = memchr(text, '{', n < TOOL_HEAD_BYTES_MAX ? n : TOOL_HEAD_BYTES_MAX);
    if (!brace && !all) return 0;
    size_t before = brace ? (size_t)(brace - text) : 0;
    span name = find_name(r, text, before);
    bool fits = brace && name.n > 0 && name.n <= TOOL_NAME_BYTES_MAX;
    r->state = fits ? IN_ARGUMENTS : IN_CONTENT;
    if (!fits) tool_keep(r); // or the word would be dropped with the marks of the next call
    if (!fits) return 0;
    tool_begin_arguments(r, name.text, name.n);
    return before;
}

static size_t read_arguments(tool_reader *r, const char *text, size_t n)
{
    size_t used;
    r->seen = 0;
    if (tool_read_object(r, text, n, &used) != OBJECT_MORE) r->state = AFTER_ARGUMENTS;
    return used;
}

/* The fence's end, once, and the call's. Behind text of a malformed call its end is text too. */
static size_t read_end(tool_reader *r, const char *text, size_t n, bool last)
{
    bool more_fence = false, more;
    size_t at = tool_blanks(text, n);
    if (at == 0 && r->seen == 0) r->seen = at = tool_mark(text, n, "```", last, &more_fence);
    tool_hold(r, text, at);
    if (at || more_fence) return at;
    size_t end = tool_mark(text, n, call_ends, last, &more);
    if (more) return 0;
    if (!r->behind_call) end = 0;
    if (end) tool_drop(r);
    r->state = IN_CONTENT;
    return end;
}

static size_t read(tool_reader *r, const char *text, size_t n, bool last)
{
    switch (r->state) {
    case IN_CONTENT: return read_content(r, text, n, last);
    case IN_WORD: return read_word(r, text, n, last);
    case IN_NAME: return read_name(r, text, n, last);
    case IN_ARGUMENTS: return read_arguments(r, text, n);
    default: return read_end(r, text, n, last);
    }
}

const tool_parser tool_parser_deepseek = {
    .name = "deepseek",
    .help = "DeepSeek V3, R1 and V3.1: marks of their own around name and arguments",
    .mark = begins,
    .special = true,
    .read = read,
};
