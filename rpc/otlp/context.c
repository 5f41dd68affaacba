/* The headers traceparent and tracestate, by the W3C's Trace Context. They are bytes of a client:
 * what breaks a rule is left out. */
#include "rpc/otlp/otlp.h"

#include <string.h>
#include <strings.h>

static bool is_named(const char *name, size_t n, const char *wanted)
{
    return n == strlen(wanted) && strncasecmp(name, wanted, n) == 0;
}

/* Several headers of tracestate are one list. */
static void add_state(trace_headers *h, const char *value, size_t n)
{
    size_t comma = h->state_bytes > 0;
    if (n == 0 || h->state_is_bad) return;
    if (n > sizeof h->state || h->state_bytes + comma > sizeof h->state - n) {
        h->state_is_bad = true;
        return;
    }
    if (comma) h->state[h->state_bytes++] = ',';
    memcpy(h->state + h->state_bytes, value, n);
    h->state_bytes += n;
}

void trace_headers_add(trace_headers *h, const char *name, size_t n_name, const char *value,
                       size_t n_value)
{
    if (is_named(name, n_name, "traceparent")) {
        h->parent = value;
        h->parent_bytes = n_value;
        h->n_parents++;
    } else if (is_named(name, n_name, "tracestate")) {
        add_state(h, value, n_value);
    }
}

/* ---- traceparent ----------------------------------------------------------------------------- */

/* Lower-case digits alone. */
static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *text, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool is_zero(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i]) return false;
    return true;
}

/* "00-", 32 digits of the trace, "-", 16 of the span, "-", 2 of flags. A version above 00 may have
 * more behind another "-". */
static bool read_parent(const char *s, size_t n, trace_context *out)
{
    enum { TRACE_AT = 3, SPAN_AT = 36, FLAGS_AT = 53, BYTES = 55 };
    uint8_t version, flags;
    if (n < BYTES || !read_hex(s, &version, 1) || version == 0xff) return false;
    if (n > BYTES && (version == 0 || s[BYTES] != '-')) return false;
    if (s[TRACE_AT - 1] != '-' || s[SPAN_AT - 1] != '-' || s[FLAGS_AT - 1] != '-') return false;
    if (!read_hex(s + TRACE_AT, out->trace, sizeof out->trace) ||
        !read_hex(s + SPAN_AT, out->span, sizeof out->span) || !read_hex(s + FLAGS_AT, &flags, 1))
        return false;
    out->sampled = flags & 1;
    return !is_zero(out->trace, sizeof out->trace) && !is_zero(out->span, sizeof out->span);
}

/* ---- tracestate ------------------------------------------------------------------------------ */

static bool is_low_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

/* At most 256 characters, or 241 of a tenant, "@" and 14 of a system. */
static bool is_key(const char *s, size_t n)
{
    enum { KEY_MAX = 256, TENANT_MAX = 241, SYSTEM_MAX = 14 };
    const char *at = memchr(s, '@', n);
    size_t n_tenant = at ? (size_t)(at - s) : n, n_system = at ? n - n_tenant - 1 : 0;
    if (n_tenant == 0 || n_tenant > (at ? TENANT_MAX : KEY_MAX)) return false;
    if (at && (n_system == 0 || n_system > SYSTEM_MAX)) return false;
    for (size_t i = 0; i < n; i++) {
        if (s + i == at) continue;
        bool begins = i == 0 || s + i - 1 == at;
        if (!is_low_or_digit(s[i]) && (begins || !memchr("_-*/", s[i], 4))) return false;
    }
    return true;
}

static bool is_value(const char *s, size_t n)
{
    if (n == 0 || n > 256 || s[n - 1] == ' ') return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] < ' ' || s[i] > '~' || s[i] == ',' || s[i] == '=') return false;
    return true;
}

static bool is_member(const char *s, size_t n)
{
    const char *equal = memchr(s, '=', n);
    if (!equal) return false;
    size_t n_key = (size_t)(equal - s);
    return is_key(s, n_key) && is_value(equal + 1, n - n_key - 1);
}

static void trim(const char **s, size_t *n)
{
    for (; *n > 0 && (**s == ' ' || **s == '\t'); ++*s) --*n;
    while (*n > 0 && ((*s)[*n - 1] == ' ' || (*s)[*n - 1] == '\t')) --*n;
}

/* Checks the members; empty ones are allowed. */
static bool is_state(const char *s, size_t n)
{
    size_t members = 0;
    for (const char *end = s + n; s < end;) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        const char *item = s;
        size_t n_item = (size_t)((comma ? comma : end) - s);
        trim(&item, &n_item);
        if (n_item > 0 && (++members > TRACE_STATE_MEMBERS_MAX || !is_member(item, n_item)))
            return false;
        s = comma ? comma + 1 : end;
    }
    return members > 0;
}

bool trace_context_read(const trace_headers *h, trace_context *out)
{
    *out = (trace_context){0};
    if (h->n_parents != 1 || !read_parent(h->parent, h->parent_bytes, out)) return false;
    if (h->state_is_bad || !is_state(h->state, h->state_bytes)) return true;
    memcpy(out->state, h->state, h->state_bytes);
    out->state_bytes = h->state_bytes;
    return true;
}
