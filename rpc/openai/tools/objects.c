/* Reads a text that is nothing but calls as JSON objects: one, several, or a list of them. */
#include "rpc/openai/tools/tools.h"

#include <string.h>

enum { AT_START, IN_LIST, IN_OBJECT, BETWEEN, IN_TEXT };

/* True when text may still become the tag. */
static bool may_become(const char *text, size_t n, const char *tag)
{
    size_t length = strlen(tag);
    return n < length && memcmp(text, tag, n) == 0;
}

static bool begins_with(const char *text, size_t n, const char *tag)
{
    size_t length = strlen(tag);
    return length && n >= length && memcmp(text, tag, length) == 0;
}

static size_t begin(tool_reader *r, const char *text, size_t n, bool last, const char *tag,
                    bool lists)
{
    size_t at = tool_blanks(text, n);
    if (!last && (at == n || may_become(text + at, n - at, tag))) return 0;
    if (begins_with(text + at, n - at, tag)) return at + strlen(tag);
    r->state = at < n && text[at] == '{' ? IN_OBJECT : IN_TEXT;
    if (at < n && text[at] == '[' && lists) r->state = IN_LIST;
    return r->state == IN_TEXT ? 0 : r->state == IN_LIST ? at + 1 : at;
}

/* A list that does not begin with an object is text. */
static size_t begin_list(tool_reader *r, const char *text, size_t n)
{
    size_t at = tool_blanks(text, n);
    if (at == n) return 0;
    r->state = text[at] == '{' ? IN_OBJECT : IN_TEXT;
    strbuf_putc(&r->word, '[');
    if (r->state == IN_OBJECT) return at;
    tool_content(r, "[", 1);
    return 0;
}

static size_t read_one(tool_reader *r, const char *text, size_t n)
{
    size_t used;
    object_result result = tool_read_object(r, text, n, &used);
    if (result == OBJECT_CALL) r->state = BETWEEN;
    if (result == OBJECT_TEXT) {
        tool_reject(r, r->n_calls == 0 && r->word.data ? r->word.data : "");
        r->state = IN_TEXT;
    }
    return used;
}

size_t tool_read_objects(tool_reader *r, const char *text, size_t n, bool last, const char *tag,
                         bool lists)
{
    switch (r->state) {
    case AT_START: return begin(r, text, n, last, tag, lists);
    case IN_LIST: return begin_list(r, text, n);
    case IN_OBJECT: return read_one(r, text, n);
    case BETWEEN:
        if (tool_blanks(text, 1) || text[0] == ';' || text[0] == ',' || text[0] == ']') return 1;
        r->state = text[0] == '{' ? IN_OBJECT : IN_TEXT;
        return 0;
    default: tool_content(r, text, n); return n;
    }
}
