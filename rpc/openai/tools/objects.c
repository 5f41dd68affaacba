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
    tool_hold(r, text, at); /* each byte is looked at once, however many blanks come */
    if (at) return at;
    if (!last && may_become(text, n, tag)) return 0;
    if (begins_with(text, n, tag)) at = strlen(tag);
    else if (text[0] == '{') r->state = IN_OBJECT;
    else if (text[0] == '[' && lists) {
        r->state = IN_LIST;
        r->list = true;
        at = 1;
    } else r->state = IN_TEXT;
    tool_hold(r, text, at);
    return at;
}

/* A list that does not begin with an object is text. */
static size_t begin_list(tool_reader *r, const char *text, size_t n)
{
    size_t at = tool_blanks(text, n);
    tool_hold(r, text, at);
    if (at < n) r->state = text[at] == '{' ? IN_OBJECT : IN_TEXT;
    return at;
}

static size_t read_one(tool_reader *r, const char *text, size_t n)
{
    size_t used;
    object_result result = tool_read_object(r, text, n, &used);
    if (result == OBJECT_CALL) r->state = BETWEEN;
    if (result == OBJECT_TEXT) r->state = IN_TEXT;
    return used;
}

/* Separators are text where neither a call nor the end follows. Behind text, as of a malformed
 * call, the list's end is text too. */
static size_t read_between(tool_reader *r, char c)
{
    if (tool_blanks(&c, 1) || c == ';' || c == ',') {
        tool_hold(r, &c, 1);
        return 1;
    }
    if (c == ']' && r->list && r->behind_call) {
        r->list = false;
        tool_drop(r);
        return 1;
    }
    r->state = c == '{' ? IN_OBJECT : IN_TEXT;
    return 0;
}

size_t tool_read_objects(tool_reader *r, const char *text, size_t n, bool last, const char *tag,
                         bool lists)
{
    switch (r->state) {
    case AT_START: return begin(r, text, n, last, tag, lists);
    case IN_LIST: return begin_list(r, text, n);
    case IN_OBJECT: return read_one(r, text, n);
    case BETWEEN: return read_between(r, text[0]);
    default: tool_content(r, text, n); return n;
    }
}
