/* Property: an accepted head has one reading. The target imitates libmicrohttpd's parser with its
 * laxities (bare LF ends a line, a NUL ends a text, a line that begins with NUL ends the head,
 * folded lines are moved elsewhere and corrupted); when the result passes the checks, a strict
 * reading of the same bytes finds the same end, the same fields and the same framing. */
#include "rpc/http/head.h"
#include "tests/fuzz/fuzz.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

enum { BYTES_MAX = 4096 };

typedef struct lax {
    char bytes[BYTES_MAX + 2]; // parsed in place
    char moved[BYTES_MAX + 2]; // receives folded lines
    size_t n, at, n_moved;
    http_head head;
} lax;

/* The next line, with its end replaced by NULs; NULL when there is none. */
static char *next_line(lax *l, size_t *n)
{
    for (size_t i = l->at; i < l->n; i++) {
        bool crlf = l->bytes[i] == '\r' && i + 1 < l->n && l->bytes[i + 1] == '\n';
        if (!crlf && l->bytes[i] != '\n') continue;
        char *line = l->bytes + l->at;
        *n = i - l->at;
        l->bytes[i] = 0;
        if (crlf) l->bytes[i + 1] = 0;
        l->at = i + (crlf ? 2 : 1);
        return line;
    }
    return NULL;
}

static bool lax_request_line(lax *l)
{
    size_t n;
    char *line = next_line(l, &n);
    char *blank = line ? memchr(line, ' ', n) : NULL;
    if (!blank) return false;
    *blank = 0;
    char *target = blank + 1;
    while (*target == ' ') target++;
    char *version = line + n;
    while (version > target && *version != ' ') version--;
    if (version <= target) return false;
    *version++ = 0;
    l->head.method = line;
    l->head.target = target;
    l->head.target_bytes = strlen(target);
    l->head.target_ok = head_is_target(target, l->head.target_bytes);
    l->head.version = version;
    return strcmp(version, "HTTP/1.1") == 0 || strcmp(version, "HTTP/1.0") == 0;
}

static void add_field(lax *l, const char *name, const char *value)
{
    http_head *h = &l->head;
    if (h->n_fields < HTTP_FIELDS_MAX)
        h->fields[h->n_fields] = (http_field){name, value, strlen(name), strlen(value)};
    h->n_fields++;
}

/* The text extends to the end of the name, as in libmicrohttpd. */
static void fold(lax *l, const char *line)
{
    if (l->head.n_fields == 0 || l->head.n_fields > HTTP_FIELDS_MAX) return;
    http_field *f = &l->head.fields[l->head.n_fields - 1];
    while (*line == ' ' || *line == '\t') line++;
    char *to = l->moved + l->n_moved;
    size_t n = strlen(line);
    if (l->n_moved + f->name_bytes + n + 1 > sizeof l->moved) return;
    memcpy(to, f->name, f->name_bytes);
    memcpy(to + f->name_bytes, line, n + 1);
    f->name = to;
    f->name_bytes += n;
    l->n_moved += f->name_bytes + 1;
}

/* False when the head is refused or incomplete. */
static bool lax_parse(lax *l)
{
    size_t n;
    if (!lax_request_line(l)) return false;
    for (char *line = next_line(l, &n); line; line = next_line(l, &n)) {
        if (line[0] == 0) {
            l->head.bytes = (size_t)(l->bytes + l->at - l->head.method);
            return true;
        }
        if ((line[0] == ' ' || line[0] == '\t') && l->head.n_fields) {
            fold(l, line);
            continue;
        }
        char *colon = strchr(line, ':');
        if (!colon) return false;
        *colon++ = 0;
        while (*colon == ' ' || *colon == '\t') colon++;
        add_field(l, line, colon);
    }
    return false;
}

/* ---- the strict reading ---------------------------------------------------------------------- */

static const char *crlf_in(const char *from, const char *end)
{
    return memmem(from, (size_t)(end - from), "\r\n", 2);
}

/* Field i of the accepted head must equal this line. */
static void check_line(const http_field *f, const char *line, size_t n)
{
    const char *colon = memchr(line, ':', n);
    FUZZ_CHECK(colon && !memchr(line, 0, n) && !memchr(line, '\n', n) && !memchr(line, '\r', n));
    FUZZ_CHECK(f->name_bytes == (size_t)(colon - line));
    FUZZ_CHECK(memcmp(f->name, line, f->name_bytes) == 0);
    const char *value = colon + 1, *end = line + n;
    while (value < end && (*value == ' ' || *value == '\t')) value++;
    FUZZ_CHECK(f->value_bytes == (size_t)(end - value));
    FUZZ_CHECK(memcmp(f->value, value, f->value_bytes) == 0);
}

static void check_framing(const http_head *h, const http_framing *framing)
{
    size_t lengths = 0, codings = 0;
    for (size_t i = 0; i < h->n_fields; i++) {
        const http_field *f = &h->fields[i];
        bool is_length = f->name_bytes == 14 && strncasecmp(f->name, "content-length", 14) == 0;
        bool is_coding = f->name_bytes == 17 && strncasecmp(f->name, "transfer-encoding", 17) == 0;
        lengths += is_length;
        codings += is_coding;
        if (is_length) FUZZ_CHECK(framing->length == strtoull(f->value, NULL, 10));
        if (is_coding) FUZZ_CHECK(f->value_bytes == 7);
    }
    FUZZ_CHECK(lengths + codings <= 1);
    FUZZ_CHECK(framing->has_length == (lengths == 1) && framing->chunked == (codings == 1));
}

static void check_same(const http_head *h, const char *bytes, size_t n)
{
    const char *end = bytes + n, *line = bytes;
    const char *stop = crlf_in(line, end);
    FUZZ_CHECK(stop && (size_t)(stop - line) == strlen(h->method) + h->target_bytes + 10);
    for (size_t i = 0; i < h->n_fields; i++) {
        line = stop + 2;
        stop = crlf_in(line, end);
        FUZZ_CHECK(stop != NULL);
        check_line(&h->fields[i], line, (size_t)(stop - line));
    }
    FUZZ_CHECK(end - stop >= 4 && stop[2] == '\r' && stop[3] == '\n');
    FUZZ_CHECK((size_t)(stop + 4 - bytes) == h->bytes);
}

static bool has_bare_lf(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] == '\n' && (i == 0 || bytes[i - 1] != '\r')) return true;
    return false;
}

/* Only these bytes name gzip, alone or among all codings. */
static void check_coding(const char *value, size_t n)
{
    http_head h = {.n_fields = 1, .fields = {{"accept-encoding", value, 15, n}}};
    if (head_takes_gzip(&h))
        FUZZ_CHECK(memchr(value, '*', n) || memmem(value, n, "ip", 2) ||
                   memmem(value, n, "IP", 2) || memmem(value, n, "iP", 2) ||
                   memmem(value, n, "Ip", 2));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[64], host[32];
    uint16_t port;
    http_framing framing;
    if (size == 0 || size > BYTES_MAX) return 0;
    lax *l = calloc(1, sizeof *l);
    if (!l) return 0;
    memcpy(l->bytes, data, size);
    l->n = size;
    // A limitation that head.h states.
    bool hidden = memchr(data, 0, size) && has_bare_lf(data, size);
    if (!hidden && lax_parse(l) && head_check(&l->head, &framing).status == 0 &&
        head_is_plain(&l->head)) {
        check_same(&l->head, (const char *)data, size);
        check_framing(&l->head, &framing);
    }
    memcpy(l->bytes, data, size);
    l->bytes[size] = 0;
    if (address_split(l->bytes, host, sizeof host, &port)) FUZZ_CHECK(strlen(host) < sizeof host);
    if (head_unescape((const char *)data, size, text, sizeof text))
        FUZZ_CHECK(strlen(text) < sizeof text && strlen(text) <= size);
    check_coding((const char *)data, size);
    free(l);
    return 0;
}
