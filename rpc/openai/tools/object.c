/* Reads an object {"name": …, "arguments": {…}} byte by byte. The arguments may be called
 * "parameters", be a string that holds JSON, or be absent. */
#include "rpc/openai/tools/tools.h"

#include <string.h>

enum { AT_START, BEFORE_KEY, IN_KEY, AFTER_KEY, BEFORE_VALUE, IN_VALUE, AFTER_VALUE };
enum { MEMBER_OTHER, MEMBER_NAME, MEMBER_ARGUMENTS };

static bool is(const strbuf *b, const char *text)
{
    return b->size == strlen(text) && memcmp(b->data, text, b->size) == 0;
}

static void reset(call_object *o)
{
    strbuf_clear(&o->raw);
    strbuf_clear(&o->key);
    strbuf_clear(&o->name);
    strbuf_clear(&o->arguments);
    *o = (call_object){.raw = o->raw, .key = o->key, .name = o->name, .arguments = o->arguments};
}

void tool_end_object(tool_reader *r)
{
    const strbuf *raw = &r->object.raw;
    if (!r->object.begun && raw->size) tool_content(r, raw->data, raw->size);
    reset(&r->object);
}

static void begin_call(tool_reader *r)
{
    call_object *o = &r->object;
    o->begun = true;
    strbuf_clear(&o->raw);
    tool_call(r, o->name.data, o->name.size);
}

void tool_begin_arguments(tool_reader *r, const char *name, size_t n)
{
    call_object *o = &r->object;
    reset(o);
    strbuf_append(&o->name, name, n);
    if (o->name.failed) return;
    begin_call(r);
    o->bare = true;
    o->state = BEFORE_VALUE;
    o->member = MEMBER_ARGUMENTS;
}

/* True when a call is told whose arguments are JSON in a string. */
static bool tell_quoted(tool_reader *r)
{
    error ignored;
    json_t *list = NULL;
    strbuf text = {0};
    strbuf_printf(&text, "[%s]", r->object.arguments.data);
    bool ok = text.data && status_ok(json_read_text("", text.data, text.size, &list, &ignored));
    const json_t *inner = ok ? json_array_get(list, 0) : NULL;
    if (inner) {
        begin_call(r);
        tool_arguments(r, json_string_value(inner), json_string_length(inner));
    }
    strbuf_destroy(&text);
    json_decref(list);
    return inner != NULL;
}

/* At the object's end: tells a call whose arguments came before the name, are absent, or are no
 * object. */
static object_result finish(tool_reader *r)
{
    call_object *o = &r->object;
    const strbuf *a = &o->arguments;
    if (o->begun) return OBJECT_CALL;
    if (o->name.size == 0) return OBJECT_TEXT;
    if (a->size && a->data[0] == '"') return tell_quoted(r) ? OBJECT_CALL : OBJECT_TEXT;
    begin_call(r);
    if (a->size && !is(a, "null")) tool_arguments(r, a->data, a->size);
    else tool_arguments(r, "{}", 2);
    return OBJECT_CALL;
}

/* An object whose first members are others is an answer in JSON. A member that comes twice counts
 * once. */
static object_result end_key(call_object *o)
{
    o->state = AFTER_KEY;
    o->member = MEMBER_OTHER;
    if (is(&o->key, "name") && o->name.size == 0) o->member = MEMBER_NAME;
    if ((is(&o->key, "arguments") || is(&o->key, "parameters")) && !o->told &&
        o->arguments.size == 0)
        o->member = MEMBER_ARGUMENTS;
    bool fits =
        o->member != MEMBER_OTHER || o->name.size || is(&o->key, "type") || is(&o->key, "id");
    return fits ? OBJECT_MORE : OBJECT_TEXT;
}

static object_result read_key(call_object *o, char c)
{
    if (o->escaped) o->escaped = false;
    else if (c == '\\') o->escaped = true;
    else if (c == '"') return end_key(o);
    if (o->key.size < TOOL_NAME_BYTES_MAX) strbuf_putc(&o->key, c);
    return OBJECT_MORE;
}

/* True when the byte belongs to the value. Sets the state once the value has ended. */
static bool take_value_byte(call_object *o, char c)
{
    if (o->quoted) {
        if (o->escaped) o->escaped = false;
        else if (c == '\\') o->escaped = true;
        else if (c == '"') {
            o->quoted = false;
            if (o->depth == 0) o->state = AFTER_VALUE;
        }
        return true;
    }
    bool closes = c == '}' || c == ']';
    if (o->depth == 0 && (closes || c == ',' || tool_blanks(&c, 1))) {
        o->state = AFTER_VALUE;
        return false;
    }
    o->quoted = c == '"';
    if (c == '{' || c == '[') o->depth++;
    if (closes && --o->depth == 0) o->state = AFTER_VALUE;
    return true;
}

/* Arguments behind the name are passed on as they come if they are an object or a list. */
static bool streams(const call_object *o)
{
    return o->member == MEMBER_ARGUMENTS && o->begun && !o->told;
}

static object_result begin_value(tool_reader *r, char c)
{
    call_object *o = &r->object;
    if (o->member == MEMBER_NAME && c != '"') return OBJECT_TEXT;
    o->state = IN_VALUE;
    o->depth = 0;
    o->quoted = o->escaped = false;
    bool whole = c != '{' && c != '[';
    if (o->member == MEMBER_ARGUMENTS && o->name.size && !o->begun && !whole) begin_call(r);
    return OBJECT_MORE;
}

/* A name with an escape or of unlikely length makes no call. */
static object_result keep_value(tool_reader *r, char c)
{
    call_object *o = &r->object;
    if (o->member == MEMBER_ARGUMENTS && !streams(o)) strbuf_putc(&o->arguments, c);
    if (o->member != MEMBER_NAME || c == '"') return OBJECT_MORE;
    strbuf_putc(&o->name, c);
    return c == '\\' || o->name.size > TOOL_NAME_BYTES_MAX ? OBJECT_TEXT : OBJECT_MORE;
}

static object_result after_value(tool_reader *r, char c)
{
    if (tool_blanks(&c, 1)) return OBJECT_MORE;
    if (c == '}') return finish(r);
    if (c != ',') return OBJECT_TEXT;
    r->object.state = BEFORE_KEY;
    return OBJECT_MORE;
}

static object_result outside_value(tool_reader *r, char c)
{
    call_object *o = &r->object;
    bool blank = tool_blanks(&c, 1);
    switch (o->state) {
    case AT_START: o->state = BEFORE_KEY; return c == '{' ? OBJECT_MORE : OBJECT_TEXT;
    case BEFORE_KEY:
        if (c == '}') return finish(r);
        strbuf_clear(&o->key);
        if (c == '"') o->state = IN_KEY;
        return c == '"' || blank ? OBJECT_MORE : OBJECT_TEXT;
    case IN_KEY: return read_key(o, c);
    case AFTER_KEY:
        if (c == ':') o->state = BEFORE_VALUE;
        return c == ':' || blank ? OBJECT_MORE : OBJECT_TEXT;
    default: return after_value(r, c);
    }
}

/* Malformed text behind a call's arguments ends the call and is content. */
static object_result end_object(tool_reader *r, object_result result)
{
    call_object *o = &r->object;
    if (result == OBJECT_MORE) return result;
    if (result == OBJECT_TEXT) {
        if (o->raw.size) tool_content(r, o->raw.data, o->raw.size - 1);
        if (o->begun) result = OBJECT_CALL;
    }
    reset(o);
    return result;
}

object_result tool_read_object(tool_reader *r, const char *text, size_t n, size_t *used)
{
    call_object *o = &r->object;
    object_result result = OBJECT_MORE;
    size_t i = 0, run = 0; /* [run, i) are arguments to be passed on */
    bool running = false;
    for (; i < n && result == OBJECT_MORE; i++) {
        char c = text[i];
        if (!o->begun || o->told) strbuf_putc(&o->raw, c);
        if (o->state == BEFORE_VALUE && !tool_blanks(&c, 1)) result = begin_value(r, c);
        if (result != OBJECT_MORE || o->state == BEFORE_VALUE) continue;
        bool inside = o->state == IN_VALUE && take_value_byte(o, c);
        if (inside && streams(o) && !running) run = i;
        running = running || (inside && streams(o));
        if (inside) result = keep_value(r, c);
        if (running && o->state != IN_VALUE) {
            tool_arguments(r, text + run, i + inside - run);
            running = false;
            o->told = true;
        }
        if (o->bare && o->state == AFTER_VALUE) result = finish(r);
        else if (!inside) result = outside_value(r, c);
    }
    if (running) tool_arguments(r, text + run, i - run);
    if (result == OBJECT_TEXT) i--; /* the byte that does not fit is read again */
    *used = i;
    return end_object(r, result);
}
