/* Status line, headers and chunks; then the `data:` lines of events. */
#include "cli/bench/bench_serve_http.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LINE_MAX_BYTES = 16 << 10, HEAD_MAX_BYTES = 64 << 10, EVENT_MAX_BYTES = 16 << 20 };

enum {
    AT_STATUS,
    AT_HEADER,
    AT_BODY,       // `left` bytes
    AT_BODY_CLOSE, // until the connection is closed
    AT_CHUNK_SIZE,
    AT_CHUNK,
    AT_CHUNK_END, // the line end behind a chunk
    AT_TRAILER,
    AT_END,
};

/* ---- lines ----------------------------------------------------------------------------------- */

static http_outcome refuse_answer(http_response *r, const char *why)
{
    r->wrong = why;
    r->state = AT_END;
    return HTTP_BAD;
}

/* Collects a line without its end in r->line. True when it is complete. */
static bool take_line(http_response *r, const char *bytes, size_t n, size_t *used)
{
    const char *end = memchr(bytes, '\n', n);
    size_t take = end ? (size_t)(end - bytes) : n;
    strbuf_append(&r->line, bytes, take);
    *used = take + (end != NULL);
    r->head_bytes += *used;
    if (!end) return false;
    if (r->line.size && r->line.data[r->line.size - 1] == '\r') r->line.data[--r->line.size] = '\0';
    return true;
}

/* Reads "HTTP/1.1 200 OK". */
static bool read_status(http_response *r)
{
    const char *s = r->line.data;
    if (!s || r->line.size < 12 || strncmp(s, "HTTP/1.", 7) != 0) return false;
    if ((s[7] != '0' && s[7] != '1') || s[8] != ' ') return false;
    for (int i = 9; i < 12; i++)
        if (s[i] < '0' || s[i] > '9') return false;
    if (s[12] != '\0' && s[12] != ' ') return false;
    r->version_1_0 = s[7] == '0';
    r->status =
        (unsigned)(s[9] - '0') * 100 + (unsigned)(s[10] - '0') * 10 + (unsigned)(s[11] - '0');
    r->keep_alive = !r->version_1_0;
    return r->status >= 100;
}

static bool read_length(const char *text, uint64_t *out)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 18 || text[digits + strspn(text + digits, " \t")]) return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

/* Returns NULL, or what is wrong with the header. */
static const char *read_header(http_response *r)
{
    char *name = r->line.data, *colon = strchr(name, ':');
    if (!colon || colon == name) return "a header line without a name";
    *colon = '\0';
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    if (strcasecmp(name, "content-length") == 0) {
        uint64_t length;
        if (!read_length(value, &length)) return "content-length is no number";
        if (r->has_length && length != r->left) return "two lengths";
        r->has_length = true;
        r->left = length;
    } else if (strcasecmp(name, "transfer-encoding") == 0) {
        if (strcasecmp(value, "chunked") != 0) return "a transfer-encoding other than chunked";
        r->chunked = true;
    } else if (strcasecmp(name, "connection") == 0) {
        if (strcasecmp(value, "close") == 0) r->keep_alive = false;
        else if (strcasecmp(value, "keep-alive") == 0) r->keep_alive = true;
    } else if (strcasecmp(name, "content-type") == 0) {
        r->is_event_stream = strncasecmp(value, "text/event-stream", 17) == 0;
    }
    return NULL;
}

static http_outcome end_head(http_response *r)
{
    if (r->status < 200) { /* an interim answer: the real one follows */
        r->state = AT_STATUS;
        return HTTP_MORE;
    }
    if (r->chunked && r->has_length) return refuse_answer(r, "both content-length and chunked");
    r->state = AT_BODY_CLOSE;
    if (r->status == 204 || r->status == 304) r->state = AT_END;
    else if (r->chunked) r->state = AT_CHUNK_SIZE;
    else if (r->has_length) r->state = r->left ? AT_BODY : AT_END;
    else r->keep_alive = false;
    return r->state == AT_END ? HTTP_WHOLE : HTTP_MORE;
}

static http_outcome read_chunk_size(http_response *r)
{
    const char *s = r->line.data ? r->line.data : "";
    size_t digits = strspn(s, "0123456789abcdefABCDEF");
    if (digits == 0 || digits > 12) return refuse_answer(r, "a chunk without a size");
    const char *rest = s + digits + strspn(s + digits, " \t");
    if (*rest && *rest != ';') return refuse_answer(r, "a chunk without a size");
    r->left = strtoull(s, NULL, 16);
    r->state = r->left ? AT_CHUNK : AT_TRAILER;
    return HTTP_MORE;
}

/* Handles a whole line in a state that reads lines. */
static http_outcome end_line(http_response *r)
{
    const char *wrong = NULL;
    switch (r->state) {
    case AT_STATUS:
        if (!read_status(r)) wrong = "no HTTP status line";
        r->state = AT_HEADER;
        break;
    case AT_HEADER:
        if (r->line.size == 0) return end_head(r);
        wrong = read_header(r);
        break;
    case AT_CHUNK_SIZE: return read_chunk_size(r);
    case AT_CHUNK_END:
        if (r->line.size) wrong = "a chunk longer than its size";
        r->state = AT_CHUNK_SIZE;
        r->head_bytes = 0;
        break;
    default: /* AT_TRAILER */
        if (r->line.size == 0) {
            r->state = AT_END;
            return HTTP_WHOLE;
        }
    }
    return wrong ? refuse_answer(r, wrong) : HTTP_MORE;
}

/* ---- the response ---------------------------------------------------------------------------- */

void http_response_reset(http_response *r)
{
    strbuf line = r->line;
    strbuf_clear(&line);
    *r = (http_response){.line = line};
}

void http_response_destroy(http_response *r) { strbuf_destroy(&r->line); }

/* Takes body bytes that are at hand. */
static http_outcome take_body(http_response *r, const char *bytes, size_t n, size_t *used,
                              bytes_fn body, void *ctx)
{
    size_t take = r->state == AT_BODY_CLOSE || r->left > n ? n : (size_t)r->left;
    if (take) body(ctx, bytes, take);
    *used = take;
    if (r->state == AT_BODY_CLOSE) return HTTP_MORE;
    r->left -= take;
    if (r->left) return HTTP_MORE;
    bool whole = r->state == AT_BODY;
    r->state = whole ? AT_END : AT_CHUNK_END;
    return whole ? HTTP_WHOLE : HTTP_MORE;
}

http_outcome http_response_feed(http_response *r, const char *bytes, size_t n, size_t *used,
                                bytes_fn body, void *ctx)
{
    http_outcome got = HTTP_MORE;
    size_t at = 0;
    while (at < n && got == HTTP_MORE && r->state != AT_END) {
        size_t took = 0;
        if (r->state == AT_BODY || r->state == AT_BODY_CLOSE || r->state == AT_CHUNK) {
            got = take_body(r, bytes + at, n - at, &took, body, ctx);
        } else if (take_line(r, bytes + at, n - at, &took)) {
            got = r->line.failed ? refuse_answer(r, "out of memory") : end_line(r);
            strbuf_clear(&r->line);
        }
        if (r->line.size > LINE_MAX_BYTES || r->head_bytes > HEAD_MAX_BYTES)
            got = refuse_answer(r, "a head that does not end");
        at += took;
    }
    *used = at;
    return got;
}

http_outcome http_response_end(http_response *r)
{
    if (r->state == AT_BODY_CLOSE) return HTTP_WHOLE;
    return refuse_answer(r, "closed in the middle of the answer");
}

/* ---- events ---------------------------------------------------------------------------------- */

void sse_reset(sse_reader *s)
{
    strbuf_clear(&s->line);
    strbuf_clear(&s->data);
    s->has_data = s->after_cr = s->failed = false;
}

void sse_destroy(sse_reader *s)
{
    strbuf_destroy(&s->line);
    strbuf_destroy(&s->data);
}

static void sse_line(sse_reader *s, bytes_fn event, void *ctx)
{
    if (s->line.size == 0) {
        if (s->has_data && !s->failed) event(ctx, s->data.data ? s->data.data : "", s->data.size);
        strbuf_clear(&s->data);
        s->has_data = false;
        return;
    }
    /* Only `data` lines matter: comments, ids and names are skipped. */
    if (strncmp(s->line.data, "data", 4) == 0 && (s->line.size == 4 || s->line.data[4] == ':')) {
        size_t from = s->line.size == 4 ? 4 : 5;
        if (from < s->line.size && s->line.data[from] == ' ') from++;
        if (s->has_data) strbuf_putc(&s->data, '\n');
        strbuf_append(&s->data, s->line.data + from, s->line.size - from);
        s->has_data = true;
    }
    strbuf_clear(&s->line);
}

void sse_feed(sse_reader *s, const char *bytes, size_t n, bytes_fn event, void *ctx)
{
    size_t at = 0;
    while (at < n && !s->failed) {
        if (s->after_cr && bytes[at] == '\n') at++; /* the LF of a CR LF */
        s->after_cr = false;
        size_t take = 0;
        while (at + take < n && bytes[at + take] != '\n' && bytes[at + take] != '\r') take++;
        strbuf_append(&s->line, bytes + at, take);
        at += take;
        if (at < n) {
            s->after_cr = bytes[at++] == '\r';
            sse_line(s, event, ctx);
        }
        s->failed |=
            s->line.failed || s->data.failed || s->line.size + s->data.size > EVENT_MAX_BYTES;
    }
}
