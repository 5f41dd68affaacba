/* The reader that all parsers share: it keeps what a parser cannot judge yet. */
#include "rpc/openai/tools/tools.h"

#include <string.h>

void tool_reader_init(tool_reader *r, const tool_parser *parser, const talk_sink *sink)
{
    *r = (tool_reader){.parser = parser, .sink = *sink};
}

/* Returns how many bytes the parser took. A parser that takes none goes on in another state. */
static size_t feed(tool_reader *r, const char *text, size_t n, bool last)
{
    size_t at = 0;
    while (at < n) {
        int state = r->state;
        size_t took = r->parser->read(r, text + at, n - at, last);
        if (took == 0 && r->state == state) break;
        at += took;
    }
    return at;
}

static void keep_rest(strbuf *b, size_t from)
{
    b->size -= from;
    memmove(b->data, b->data + from, b->size);
    b->data[b->size] = '\0';
}

void tool_reader_take(tool_reader *r, const char *text, size_t n)
{
    if (n == 0) return;
    if (r->pending.size == 0) {
        size_t took = feed(r, text, n, false);
        strbuf_append(&r->pending, text + took, n - took);
    } else {
        strbuf_append(&r->pending, text, n);
        if (!r->pending.failed)
            keep_rest(&r->pending, feed(r, r->pending.data, r->pending.size, false));
    }
    r->failed |= r->pending.failed || r->held.failed || r->word.failed || r->object.raw.failed ||
                 r->object.key.failed || r->object.name.failed || r->object.arguments.failed;
}

/* True when nothing but separators, white space and fences is held. */
static bool holds_glue(const strbuf *held)
{
    static const char glue[] = " \n\r\t,;`";
    size_t i = 0;
    while (i < held->size && memchr(glue, held->data[i], strlen(glue))) i++;
    return i == held->size;
}

void tool_reader_end(tool_reader *r)
{
    size_t took = feed(r, r->pending.data ? r->pending.data : "", r->pending.size, true);
    tool_end_object(r);
    if (took < r->pending.size) tool_content(r, r->pending.data + took, r->pending.size - took);
    strbuf_clear(&r->pending);
    if (r->held.size && !(r->behind_call && holds_glue(&r->held)))
        r->sink.content(r->sink.ctx, r->held.data, r->held.size);
    strbuf_clear(&r->held);
}

size_t tool_reader_bytes(const tool_reader *r)
{
    return r->pending.size + r->held.size + r->word.size + r->object.raw.size +
           r->object.arguments.size;
}

void tool_reader_destroy(tool_reader *r)
{
    strbuf_destroy(&r->pending);
    strbuf_destroy(&r->held);
    strbuf_destroy(&r->word);
    strbuf_destroy(&r->object.raw);
    strbuf_destroy(&r->object.key);
    strbuf_destroy(&r->object.name);
    strbuf_destroy(&r->object.arguments);
}

/* ---- for parsers ----------------------------------------------------------------------------- */

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

size_t tool_blanks(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && is_blank(text[i])) i++;
    return i;
}

size_t tool_find(const char *text, size_t n, const char *mark, bool last, bool *found)
{
    size_t length = strlen(mark);
    const char *hit = memmem(text, n, mark, length);
    *found = hit != NULL;
    if (hit) return (size_t)(hit - text);
    if (last) return n;
    size_t keep = length - 1 < n ? length - 1 : n;
    while (keep > 0 && memcmp(text + n - keep, mark, keep) != 0) keep--;
    return n - keep;
}

size_t tool_mark(const char *text, size_t n, const char *mark, bool last, bool *more)
{
    size_t length = strlen(mark), seen = n < length ? n : length;
    bool fits = seen > 0 && memcmp(text, mark, seen) == 0;
    *more = fits && seen < length && !last;
    return fits && !*more ? seen : 0;
}

void tool_hold(tool_reader *r, const char *text, size_t n) { strbuf_append(&r->held, text, n); }

void tool_drop(tool_reader *r) { strbuf_clear(&r->held); }

void tool_keep(tool_reader *r)
{
    if (r->held.size == 0) return;
    r->sink.content(r->sink.ctx, r->held.data, r->held.size);
    strbuf_clear(&r->held);
    r->behind_call = false;
}

void tool_content(tool_reader *r, const char *text, size_t n)
{
    size_t end = n;
    while (end > 0 && is_blank(text[end - 1])) end--;
    if (end > 0) {
        tool_keep(r);
        r->sink.content(r->sink.ctx, text, end);
        r->behind_call = false;
    }
    tool_hold(r, text + end, n - end);
}

void tool_call(tool_reader *r, const char *name, size_t n)
{
    tool_drop(r);
    r->behind_call = true;
    r->sink.call(r->sink.ctx, name, n);
}

void tool_arguments(tool_reader *r, const char *text, size_t n)
{
    if (n) r->sink.arguments(r->sink.ctx, text, n);
}
