/* Llama 3.2 and 4, and others: a Python list of calls, [f(a=1, b="x"), g()]. A call is told when
 * its parenthesis closes, with its arguments as JSON. */
#include "rpc/openai/tools/python.h"
#include "rpc/openai/tools/tools.h"

#include <string.h>

enum { AT_START, IN_LIST, IN_CALL, IN_TEXT, AT_END };

static const char tag[] = "<|python_start|>", end_tag[] = "<|python_end|>";

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_name(char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '.'; }

static size_t begin(tool_reader *r, const char *text, size_t n, bool last)
{
    size_t at = tool_blanks(text, n), length = strlen(tag);
    tool_hold(r, text, at); /* each byte is looked at once, however many blanks come */
    if (at) return at;
    if (!last && n < length && memcmp(text, tag, n) == 0) return 0;
    if (n >= length && memcmp(text, tag, length) == 0) at = length;
    else {
        r->state = text[0] == '[' ? IN_LIST : IN_TEXT;
        at = r->state == IN_LIST;
    }
    tool_hold(r, text, at);
    return at;
}

static size_t refuse(tool_reader *r)
{
    r->state = IN_TEXT;
    return 0;
}

/* Between calls: a comma, the list's end, or the next name. */
static size_t read_list(tool_reader *r, const char *text)
{
    if (tool_blanks(text, 1) || (text[0] == ',' && r->behind_call)) {
        tool_hold(r, text, 1);
        return 1;
    }
    if (text[0] == ']' && r->behind_call) {
        tool_drop(r);
        r->state = AT_END;
        return 1;
    }
    if (!is_letter(text[0])) return refuse(r);
    r->state = IN_CALL;
    r->seen = 0;
    r->object.depth = 0;
    r->object.quoted = r->object.escaped = false;
    return 0;
}

/* Finds the parenthesis that closes the call, looking at each byte once. 0 = it is not there. */
static size_t find_end(tool_reader *r, const char *text, size_t n)
{
    call_object *o = &r->object; /* `state` is the quote that the string ends with */
    for (; r->seen < n; r->seen++) {
        char c = text[r->seen];
        if (o->quoted) {
            if (o->escaped) o->escaped = false;
            else if (c == '\\') o->escaped = true;
            else if (c == (char)o->state) o->quoted = false;
        } else if (c == '"' || c == '\'') {
            o->quoted = true;
            o->state = c;
        } else if (c == '(' || c == '[' || c == '{') o->depth++;
        else if (c == ')' || c == ']' || c == '}') {
            if (o->depth <= 1) return r->seen + 1;
            o->depth--;
        }
    }
    return 0;
}

static size_t read_call(tool_reader *r, const char *text, size_t n, bool last)
{
    size_t name = 0, end;
    while (name < n && is_name(text[name])) name++;
    if (name > TOOL_NAME_BYTES_MAX || (name < n && text[name] != '(')) return refuse(r);
    end = find_end(r, text, n);
    if (end == 0 && !last) return 0;
    strbuf arguments = {0};
    bool ok = end && python_arguments(text + name, end - name, &arguments);
    r->failed |= arguments.failed;
    if (ok) {
        tool_call(r, text, name);
        tool_arguments(r, arguments.data, arguments.size);
        r->state = IN_LIST;
    }
    strbuf_destroy(&arguments);
    return ok ? end : refuse(r);
}

static size_t read_end(tool_reader *r, const char *text, size_t n, bool last)
{
    bool more;
    size_t at = tool_blanks(text, n), end = tool_mark(text + at, n - at, end_tag, last, &more);
    tool_hold(r, text, at);
    if (at == n || more) return at;
    if (end) tool_drop(r);
    r->state = IN_TEXT;
    return at + end;
}

static size_t read(tool_reader *r, const char *text, size_t n, bool last)
{
    switch (r->state) {
    case AT_START: return begin(r, text, n, last);
    case IN_LIST: return read_list(r, text);
    case IN_CALL: return read_call(r, text, n, last);
    case AT_END: return read_end(r, text, n, last);
    default: tool_content(r, text, n); return n;
    }
}

const tool_parser tool_parser_pythonic = {
    .name = "pythonic",
    .help = "Llama 3.2 and 4: a Python list of calls",
    .mark = "[func_name1(params_name1=",
    .special = true,
    .read = read,
};
