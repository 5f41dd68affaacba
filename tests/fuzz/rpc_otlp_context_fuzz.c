/* Properties: a parent that is accepted has the only form of its version, with the ids that are
 * read from it, none of them zero; a state that is kept is printable, within its limits, and is
 * kept again when it comes alone. The input is lines, each a value; the first byte of a line says
 * of which header. */
#include "rpc/otlp/otlp.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void add(trace_headers *h, const char *line, size_t n)
{
    static const char *const names[] = {"traceparent", "Tracestate", "traceparen", "tracestate2"};
    if (n == 0) return;
    const char *name = names[(unsigned char)line[0] % 4];
    trace_headers_add(h, name, strlen(name), line + 1, n - 1);
}

static void write_hex(char *out, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static void check_parent(const trace_headers *h, const trace_context *c)
{
    static const uint8_t zero[16];
    char text[33];
    FUZZ_CHECK(h->n_parents == 1 && h->parent_bytes >= 55);
    FUZZ_CHECK(h->parent_bytes == 55 || (h->parent[55] == '-' && memcmp(h->parent, "00", 2) != 0));
    FUZZ_CHECK(memcmp(h->parent, "ff", 2) != 0);
    write_hex(text, c->trace, 16);
    FUZZ_CHECK(memcmp(h->parent + 3, text, 32) == 0);
    write_hex(text, c->span, 8);
    FUZZ_CHECK(memcmp(h->parent + 36, text, 16) == 0);
    FUZZ_CHECK(memcmp(c->trace, zero, 16) != 0 && memcmp(c->span, zero, 8) != 0);
}

static void check_state(const trace_headers *h, const trace_context *c)
{
    trace_headers alone = {0};
    trace_context again;
    FUZZ_CHECK(c->state_bytes <= TRACE_STATE_BYTES_MAX);
    for (size_t i = 0; i < c->state_bytes; i++)
        FUZZ_CHECK((c->state[i] >= ' ' && c->state[i] <= '~') || c->state[i] == '\t');
    trace_headers_add(&alone, "traceparent", 11, h->parent, h->parent_bytes);
    trace_headers_add(&alone, "tracestate", 10, c->state, c->state_bytes);
    FUZZ_CHECK(trace_context_read(&alone, &again));
    FUZZ_CHECK(again.state_bytes == c->state_bytes &&
               memcmp(again.state, c->state, c->state_bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *at = (const char *)data, *end = at + size;
    trace_headers h = {0};
    trace_context c;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((newline ? newline : end) - at);
        add(&h, at, n);
        at += n + 1;
    }
    if (!trace_context_read(&h, &c)) return 0;
    check_parent(&h, &c);
    check_state(&h, &c);
    return 0;
}
