/* Checks of a request's head: its characters, lengths and framing. */
#include "rpc/http/head.h"

#include <string.h>
#include <strings.h>

/* ---- characters ------------------------------------------------------------------------------ */

static bool is_token_char(unsigned char c)
{
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
    return c && strchr("!#$%&'*+-.^_`|~", c);
}

static bool is_token(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is_token_char((unsigned char)s[i])) return false;
    return n > 0;
}

/* True for visible characters, blanks, and bytes above ASCII. */
static bool is_field_value(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) return false;
    }
    return true;
}

/* The authority of an absolute-form target, or NULL. */
static const char *authority_of(const char *target)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        if (strncasecmp(target, schemes[i], strlen(schemes[i])) == 0)
            return target + strlen(schemes[i]);
    return NULL;
}

const char *head_path(const char *target)
{
    const char *authority = authority_of(target);
    if (!authority) return target;
    const char *path = strchr(authority, '/');
    return path ? path : "/";
}

bool head_is_target(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] <= 0x20 || (unsigned char)s[i] >= 0x7f) return false;
    const char *authority = n > 0 ? authority_of(s) : NULL;
    return n > 0 && (s[0] == '/' || (authority && *authority && !strchr("/?", *authority)));
}

/* ---- fields ---------------------------------------------------------------------------------- */

static bool is_named(const http_field *f, const char *name)
{
    return strlen(name) == f->name_bytes && strncasecmp(f->name, name, f->name_bytes) == 0;
}

static size_t n_known(const http_head *h)
{
    return h->n_fields < HTTP_FIELDS_MAX ? h->n_fields : HTTP_FIELDS_MAX;
}

const http_field *head_find(const http_head *h, const char *name)
{
    for (size_t i = 0; i < n_known(h); i++)
        if (is_named(&h->fields[i], name)) return &h->fields[i];
    return NULL;
}

/* True when a field that must be unique comes twice: which one counts would be ambiguous. */
static bool has_duplicate(const http_head *h)
{
    static const char *const single[] = {
        "content-length", "transfer-encoding", "host",
        "expect",         "content-type",      "content-encoding",
        "origin",         "authorization",     "x-api-key",
        "x-request-id",   "octavo-cache-salt", "inference-header-content-length"};
    for (size_t i = 0; i < sizeof single / sizeof single[0]; i++) {
        unsigned n = 0;
        for (size_t j = 0; j < n_known(h); j++) n += is_named(&h->fields[j], single[i]);
        if (n > 1) return true;
    }
    return false;
}

static bool parse_length(const http_field *f, uint64_t *out)
{
    uint64_t n = 0;
    if (f->value_bytes == 0 || f->value_bytes > 18) return false;
    for (size_t i = 0; i < f->value_bytes; i++) {
        if (f->value[i] < '0' || f->value[i] > '9') return false;
        n = n * 10 + (uint64_t)(f->value[i] - '0');
    }
    *out = n;
    return true;
}

static bool value_is(const http_field *f, const char *value)
{
    return strlen(value) == f->value_bytes && strncasecmp(f->value, value, f->value_bytes) == 0;
}

static http_verdict refuse_head(unsigned status, const char *message)
{
    return (http_verdict){status, message};
}

static http_verdict check_framing(const http_head *h, http_framing *out)
{
    const http_field *length = head_find(h, "content-length");
    const http_field *coding = head_find(h, "transfer-encoding");
    const http_field *expect = head_find(h, "expect");
    *out = (http_framing){.chunked = coding, .has_length = length};
    if (coding && length)
        return refuse_head(400, "content-length and transfer-encoding exclude each other");
    if (coding && strcmp(h->version, "HTTP/1.0") == 0)
        return refuse_head(400, "transfer-encoding: not in HTTP/1.0");
    if (coding && !value_is(coding, "chunked"))
        return refuse_head(501, "transfer-encoding: only \"chunked\" is known");
    if (length && !parse_length(length, &out->length))
        return refuse_head(400, "content-length: must be a number");
    if (expect && !value_is(expect, "100-continue"))
        return refuse_head(417, "expect: only \"100-continue\" is known");
    out->expects_continue = expect != NULL;
    return refuse_head(0, NULL);
}

http_verdict head_check(const http_head *h, http_framing *out)
{
    *out = (http_framing){0};
    if (h->n_fields > HTTP_FIELDS_MAX) return refuse_head(431, "too many header fields");
    if (!is_token(h->method, strlen(h->method))) return refuse_head(400, "the method is malformed");
    if (!h->target_ok)
        return refuse_head(400,
                           "the request target must be a path or an address of printable ASCII");
    for (size_t i = 0; i < h->n_fields; i++) {
        const http_field *f = &h->fields[i];
        if (!is_token(f->name, f->name_bytes))
            return refuse_head(400, "a header field's name is malformed");
        if (!is_field_value(f->value, f->value_bytes))
            return refuse_head(400, "a header field holds control characters");
    }
    if (has_duplicate(h))
        return refuse_head(400, "a header field that must be single is there twice");
    return check_framing(h, out);
}

/* ---- codings --------------------------------------------------------------------------------- */

/* The part of s [n] before `end`, without blanks around it; *rest is what follows `end`. */
static http_field cut_part(const char *s, size_t n, char end, http_field *rest)
{
    const char *at = n ? memchr(s, end, n) : NULL;
    size_t part = at ? (size_t)(at - s) : n;
    *rest = (http_field){.value = at ? at + 1 : s + n, .value_bytes = at ? n - part - 1 : 0};
    while (part && (*s == ' ' || *s == '\t')) s++, part--;
    while (part && (s[part - 1] == ' ' || s[part - 1] == '\t')) part--;
    return (http_field){.value = s, .value_bytes = part};
}

/* The thousandths of a weight such as "q=0.5"; 1000 for "", 0 for what is malformed. */
static int weight_of(const http_field *text)
{
    const char *v = text->value;
    size_t n = text->value_bytes;
    int weight = 0, unit = 1000;
    if (n == 0) return 1000;
    if (n < 3 || n > 7 || (v[0] != 'q' && v[0] != 'Q') || v[1] != '=') return 0;
    if ((v[2] != '0' && v[2] != '1') || (n > 3 && v[3] != '.')) return 0;
    for (size_t i = 2; i < n; i++) {
        if (i == 3) continue;
        if (v[i] < '0' || v[i] > '9') return 0;
        weight += (v[i] - '0') * unit;
        unit /= 10;
    }
    return weight <= 1000 ? weight : 0;
}

/* Weights that the client gave; -1 = none. */
typedef struct coding_weights {
    int gzip, identity, others;
} coding_weights;

static void take_coding(const http_field *member, coding_weights *out)
{
    http_field weight, rest, name = cut_part(member->value, member->value_bytes, ';', &weight);
    weight = cut_part(weight.value, weight.value_bytes, ';', &rest);
    int w = rest.value_bytes ? 0 : weight_of(&weight);
    if (value_is(&name, "gzip") || value_is(&name, "x-gzip")) out->gzip = w;
    else if (value_is(&name, "identity")) out->identity = w;
    else if (value_is(&name, "*")) out->others = w;
}

bool head_takes_gzip(const http_head *h)
{
    coding_weights w = {-1, -1, -1};
    for (size_t i = 0; i < n_known(h); i++) {
        const http_field *f = &h->fields[i];
        if (!is_named(f, "accept-encoding")) continue;
        http_field rest = *f;
        while (rest.value_bytes) {
            http_field member = cut_part(rest.value, rest.value_bytes, ',', &rest);
            take_coding(&member, &w);
        }
    }
    int gzip = w.gzip >= 0 ? w.gzip : w.others;
    return gzip > 0 && gzip >= w.identity;
}

/* ---- layout ---------------------------------------------------------------------------------- */

/* True when a line ends at p: two NULs, which were CRLF. */
static bool ends_here(const char *p) { return p[0] == 0 && p[1] == 0; }

bool head_is_plain(const http_head *h)
{
    if (h->n_fields > HTTP_FIELDS_MAX) return false;
    if (h->target != h->method + strlen(h->method) + 1) return false;
    if (h->version != h->target + h->target_bytes + 1) return false;
    const char *at = h->version + strlen(h->version);
    for (size_t i = 0; i < h->n_fields; i++) {
        const http_field *f = &h->fields[i];
        if (!ends_here(at) || f->name != at + 2) return false;
        const char *p = f->name + f->name_bytes;
        if (*p++ != 0) return false; // was the colon
        while (*p == ' ' || *p == '\t') p++;
        if (p != f->value) return false;
        at = f->value + f->value_bytes;
    }
    return ends_here(at) && ends_here(at + 2) && at + 4 == h->method + h->bytes;
}

/* ---- escapes and addresses ------------------------------------------------------------------- */

static int hex_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool head_unescape(const char *s, size_t n, char *out, size_t size)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)s[i];
        if (c == '%') {
            if (n - i < 3) return false;
            int high = hex_of(s[i + 1]), low = hex_of(s[i + 2]);
            if (high < 0 || low < 0) return false;
            c = high * 16 + low;
            i += 2;
        }
        if (c < 0x20 || c == 0x7f || m + 1 >= size) return false;
        out[m++] = (char)c;
    }
    if (m >= size) return false;
    out[m] = 0;
    return true;
}

static bool parse_port(const char *s, uint16_t *out)
{
    uint32_t n = 0;
    size_t digits = strlen(s);
    if (digits == 0 || digits > 5) return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9') return false;
        n = n * 10 + (uint32_t)(*s - '0');
    }
    *out = (uint16_t)n;
    return n <= UINT16_MAX;
}

bool address_split(const char *address, char *host, size_t size, uint16_t *port)
{
    const char *colon = strrchr(address, ':');
    if (!colon || !parse_port(colon + 1, port)) return false;
    const char *from = address;
    size_t n = (size_t)(colon - address);
    if (*address == '[') {
        if (n < 3 || address[n - 1] != ']') return false;
        from++;
        n -= 2;
    } else if (memchr(address, ':', n)) {
        return false; // an IPv6 address without its brackets
    }
    if (n >= size || memchr(from, '[', n) || memchr(from, ']', n)) return false;
    memcpy(host, from, n);
    host[n] = 0;
    return true;
}
