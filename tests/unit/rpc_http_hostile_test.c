/* Hostile HTTP: requests with two readings, huge ones, and clients that trickle, stall or
 * vanish. */
#include "rpc/http/internal.h"
#include "tests/unit/rpc_http_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const char LONG[] =
    "{\"prompt\": \"x\", \"max_tokens\": 1900, \"ignore_eos\": true, \"stream\": true}";

static int setup(void **state)
{
    fixture *f = fixture_make(64);
    fixture_start(f);
    *state = f;
    return 0;
}

static int setup_unstarted(void **state)
{
    *state = fixture_make(64);
    return 0;
}

static int teardown(void **state)
{
    fixture_destroy(*state);
    return 0;
}

/* ---- requests with two readings -------------------------------------------------------------- */

typedef struct shape {
    const char *what;
    unsigned code; // expected; 0 = closed without an answer
    const char *bytes;
    size_t n; // 0 = strlen
} shape;

#define SHAPE(what, code, text)                                                                    \
    {                                                                                              \
        what, code, text, sizeof(text) - 1                                                         \
    }
#define H "POST /tokenize HTTP/1.1\r\nHost: x\r\n"
#define G "GET /health HTTP/1.1\r\nHost: x\r\n"
/* The request that an attacker would smuggle. */
#define S    "GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
#define BODY "{\"prompt\":\"x\"}"

static const shape shapes[] = {
    SHAPE("length and coding", 400,
          H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" S),
    SHAPE("coding and length", 400,
          H "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" S),
    SHAPE("two lengths", 400, H "Content-Length: 14\r\nContent-Length: 0\r\n\r\n" BODY S),
    SHAPE("two equal lengths", 400, H "Content-Length: 14\r\nContent-Length: 14\r\n\r\n" BODY S),
    SHAPE("list of lengths", 400, H "Content-Length: 14, 14\r\n\r\n" BODY S),
    SHAPE("signed length", 400, H "Content-Length: +14\r\n\r\n" BODY S),
    SHAPE("negative length", 400, H "Content-Length: -1\r\n\r\n" BODY S),
    SHAPE("hex length", 400, H "Content-Length: 0x0e\r\n\r\n" BODY S),
    SHAPE("empty length", 400, H "Content-Length: \r\n\r\n" BODY S),
    SHAPE("length and blank", 400, H "Content-Length: 14 \r\n\r\n" BODY S),
    SHAPE("length that overflows", 413,
          H "Content-Length: 99999999999999999999999999\r\n\r\n" BODY S),
    SHAPE("length near the top", 400, H "Content-Length: 18446744073709551615\r\n\r\n" BODY S),
    SHAPE("folded length", 400, H "Content-Length: 1\r\n 4\r\n\r\n" BODY S),
    SHAPE("folded by a tab", 400, H "Content-Length: 0\r\n\t14\r\n\r\n" BODY S),
    SHAPE("folded coding", 400, H "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" S),
    SHAPE("folded other", 400, G "X: a\r\n b\r\n\r\n" S),
    SHAPE("first line folded", 400, "GET /health HTTP/1.1\r\n Host: x\r\n\r\n" S),
    SHAPE("blank before the colon", 400, H "Content-Length : 14\r\n\r\n" BODY S),
    SHAPE("tab before the colon", 400, H "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" S),
    SHAPE("no name", 400, G ": x\r\n\r\n" S),
    SHAPE("no colon", 400, G "nonsense\r\n\r\n" S),
    SHAPE("coding unknown", 501, H "Transfer-Encoding: gzip\r\n\r\n" BODY S),
    SHAPE("coding list", 501, H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" S),
    SHAPE("coding identity", 501, H "Transfer-Encoding: identity\r\n\r\n" BODY S),
    SHAPE("coding with a tab", 501, H "Transfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n" S),
    SHAPE("coding in quotes", 501, H "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n" S),
    SHAPE("coding with a control", 400,
          H "Transfer-Encoding: \x0b"
            "chunked\r\n\r\n0\r\n\r\n" S),
    SHAPE("two codings", 400,
          H "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n" S),
    SHAPE("coding in HTTP/1.0", 400,
          "POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" S),
    SHAPE("NUL in a value", 400, G "X: a\0b\r\n\r\n" S),
    SHAPE("NUL in a coding", 400, H "Transfer-Encoding: chunked\0x\r\n\r\n0\r\n\r\n" S),
    SHAPE("NUL in a length", 400,
          H "Content-Length: 14\0"
            "0\r\n\r\n" BODY S),
    SHAPE("NUL in a name", 400, H "Content-\0Length: 14\r\n\r\n" BODY S),
    SHAPE("NUL starts a line", 400, H "\0X: y\r\nContent-Length: 14\r\n\r\n" BODY S),
    SHAPE("NUL line", 400, G "\0\r\n" S),
    SHAPE("NUL in the path", 400, "GET /health\0 HTTP/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("bare LF", 400, "GET /health HTTP/1.1\nHost: x\n\n" S),
    SHAPE("one bare LF", 400, G "A: b\nContent-Length: 36\r\n\r\n" S),
    SHAPE("bare LF at the end", 400, G "A: b\r\n\n" S),
    SHAPE("bare CR", 400, G "A: b\rContent-Length: 36\r\n\r\n" S),
    SHAPE("control in a value", 400, G "A: \x01\r\n\r\n" S),
    SHAPE("no host", 400, "GET /health HTTP/1.1\r\n\r\n" S),
    SHAPE("two hosts", 400, G "Host: y\r\n\r\n" S),
    SHAPE("another scheme", 400, "GET ftp://x/health HTTP/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("no authority", 400, "GET http:///health HTTP/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("no slash", 400, "GET health HTTP/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("asterisk", 400, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("authority", 400, "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("blank in the path", 0, "GET /health /x HTTP/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("two blanks", 400, "GET  /health HTTP/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("tab for a blank", 0, "GET\t/health\tHTTP/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("beyond ASCII in the path", 400, "GET /h\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("control in the method", 400, "G\x01T /health HTTP/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("HTTP/0.9", 400, "GET /health\r\n\r\n" S),
    SHAPE("HTTP/2.0", 505, "GET /health HTTP/2.0\r\nHost: x\r\n\r\n" S),
    SHAPE("HTTP/2's preface", 505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" S),
    SHAPE("http/1.1", 400, "GET /health http/1.1\r\nHost: x\r\n\r\n" S),
    SHAPE("HTTP/1.1x", 400, "GET /health HTTP/1.1x\r\nHost: x\r\n\r\n" S),
    SHAPE("unknown expectation", 417, G "Expect: magic\r\n\r\n" S),
    SHAPE("TLS's hello", 0, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n" S),
    SHAPE("a method alone", 0, "GET\r\n\r\n" S),
    SHAPE("chunk size not hex", 400, H "Transfer-Encoding: chunked\r\n\r\nzz\r\n" BODY S),
    SHAPE("chunk size with a sign", 400,
          H "Transfer-Encoding: chunked\r\n\r\n+e\r\n" BODY "\r\n0\r\n\r\n" S),
    SHAPE("chunk size with 0x", 400,
          H "Transfer-Encoding: chunked\r\n\r\n0xe\r\n" BODY "\r\n0\r\n\r\n" S),
    SHAPE("chunk size that overflows", 413,
          H "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" BODY S),
    SHAPE("chunk longer than said", 400,
          H "Transfer-Encoding: chunked\r\n\r\n5\r\n" BODY "\r\n0\r\n\r\n" S),
    /* Each is read as one valid request; what follows must not be read as a second one. */
    SHAPE("chunk ended by LF", 200, H "Transfer-Encoding: chunked\r\n\r\ne\n" BODY "\n0\n\n" S),
    SHAPE("chunk extension with LF", 200,
          H "Transfer-Encoding: chunked\r\n\r\ne;a\n" BODY "\r\n0\r\n\r\n" S),
    SHAPE("trailer with a length", 200,
          H "Transfer-Encoding: chunked\r\n\r\ne\r\n" BODY "\r\n0\r\nContent-Length: 9\r\n\r\n" S),
};

/* Expects one answer with the right status, then the end: what follows is not taken for a request.
 * (Where libmicrohttpd 0.9.75 answers a bad content-length itself, it sends the head twice.) */
static void run_shape(fixture *f, const shape *s, bool trickle)
{
    int fd = client_open(f);
    for (size_t i = 0; trickle && i < s->n; i++) client_send_bytes(fd, s->bytes + i, 1);
    if (!trickle) client_send_bytes(fd, s->bytes, s->n);
    strbuf all = {0};
    char byte;
    while (client_receive(fd, &byte, 1)) strbuf_putc(&all, byte);
    const char *text = all.data ? all.data : "";
    unsigned code = all.size > 12 ? (unsigned)strtoul(text + 9, NULL, 10) : 0;
    if (code != s->code || strstr(text, "\"version\"") ||
        count_of(text, "HTTP/1.1 200") > (code == 200))
        fail_msg("%s%s: expected %u, got: %s", s->what, trickle ? " (trickled)" : "", s->code,
                 text);
    strbuf_destroy(&all);
    close(fd);
}

static void nothing_is_smuggled(void **state)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        run_shape(*state, &shapes[i], false);
        run_shape(*state, &shapes[i], true);
    }
    reply r = ask(*state, G "\r\n"); // the server goes on
    assert_int_equal(r.status, 200);
    reply_free(&r);
}

/* Appends n times the letter a. Byte by byte this takes seconds under ThreadSanitizer. */
static void add_filling(strbuf *b, size_t n)
{
    char part[4096];
    memset(part, 'a', sizeof part);
    for (size_t more; n > 0; n -= more) {
        more = n < sizeof part ? n : sizeof part;
        strbuf_append(b, part, more);
    }
}

/* The count of answers on the metrics page. */
static unsigned long n_answers(fixture *f, const char *code, const char *route)
{
    char labels[128];
    snprintf(labels, sizeof labels, ",code=\"%s\",route=\"%s\"} ", code, route);
    reply r = ask(f, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    const char *row = strstr(r.body, "\noctavo:http_requests_total{");
    const char *at = row ? strstr(row, labels) : NULL;
    unsigned long n = at ? strtoul(at + strlen(labels), NULL, 10) : 0;
    reply_free(&r);
    return n;
}

static void answers_of_the_library_are_counted(void **state)
{
    static const struct {
        const char *code, *start, *end;
        size_t filling;
    } rows[] = {
        {"400", H "Content-Length: -1\r\n\r\n", "", 0},
        {"400", H "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "", 0},
        {"505", "GET /health HTTP/2.0\r\nHost: x\r\n\r\n", "", 0},
        {"414", "GET /", " HTTP/1.1\r\n\r\n", 100000},
        {"431", G "X: ", "\r\n\r\n", 100000},
        {"500", H "Transfer-Encoding: chunked\r\n\r\ne;", "\r\n", 33000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned long before = n_answers(*state, rows[i].code, "other");
        int fd = client_open(*state);
        strbuf b = {0};
        strbuf_puts(&b, rows[i].start);
        add_filling(&b, rows[i].filling);
        strbuf_puts(&b, rows[i].end);
        client_send_bytes(fd, b.data, b.size);
        char all[16] = {0};
        size_t n = client_receive(fd, all, sizeof all - 1);
        if (n < 12 || strncmp(all + 9, rows[i].code, 3) != 0)
            fail_msg("row %zu: expected %s, got: %s", i, rows[i].code, all);
        assert_int_equal(n_answers(*state, rows[i].code, "other"), before + 1);
        strbuf_destroy(&b);
        close(fd);
    }
    reply r = ask(*state, "PUT /tokenize HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(r.status, 405);
    reply_free(&r);
    assert_int_equal(n_answers(*state, "405", "/tokenize"), 1);
}

/* Truncated requests are closed, and leave nothing behind. */
static void truncated_requests_end(void **state)
{
    static const char whole[] = H "Content-Length: 14\r\n\r\n" BODY;
    for (size_t n = 0; n < sizeof whole - 1; n += 7) {
        int fd = client_open(*state);
        client_send_bytes(fd, whole, n);
        shutdown(fd, SHUT_WR);
        reply r = client_read(fd, false);
        assert_int_equal(r.status, 0);
        reply_free(&r);
        close(fd);
    }
}

static uint32_t n_busy(fixture *f)
{
    http_watch *w = &f->server->watch;
    pthread_mutex_lock(&w->lock);
    uint32_t n = w->n_busy;
    pthread_mutex_unlock(&w->lock);
    return n;
}

/* libmicrohttpd keeps a record of each cookie. Those that do not fit its memory end the connection,
 * and their request. */
static void cookies_end_with_their_request(void **state)
{
    fixture *f = *state;
    for (int n = 100; n <= 3200; n *= 2) {
        strbuf b = {0};
        strbuf_puts(&b, G "Cookie: ");
        for (int i = 0; i < n; i++) strbuf_puts(&b, "a=b; ");
        strbuf_puts(&b, "\r\n\r\n");
        reply r = ask(f, b.data);
        if (n == 100) assert_int_equal(r.status, 200);
        reply_free(&r);
        strbuf_destroy(&b);
    }
    for (int ms = 0; n_busy(f) > 0; ms++) {
        if (ms == 60000) fail_msg("%u requests have not ended", n_busy(f));
        nap_ms(1);
    }
}

/* ---- huge requests --------------------------------------------------------------------------- */

static strbuf with_header_of(size_t n)
{
    strbuf b = {0};
    strbuf_puts(&b, G "X: ");
    add_filling(&b, n);
    strbuf_puts(&b, "\r\n\r\n");
    return b;
}

static void heads_are_bounded(void **state)
{
    static const struct {
        size_t bytes;
        unsigned code;
    } rows[] = {{8 * 1024, 200}, {16 * 1024, 200}, {64 * 1024, 431}, {1024 * 1024, 431}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        strbuf b = with_header_of(rows[i].bytes);
        reply r = ask(*state, b.data);
        assert_int_equal(r.status, rows[i].code);
        reply_free(&r);
        strbuf_destroy(&b);
    }
    strbuf many = {0};
    strbuf_puts(&many, G);
    for (int i = 0; i < 200; i++) strbuf_printf(&many, "X%d: y\r\n", i);
    strbuf_puts(&many, "\r\n");
    reply r = ask(*state, many.data);
    assert_int_equal(r.status, 431);
    reply_free(&r);
    strbuf_destroy(&many);
}

/* The largest allowed body. */
static strbuf large_body(const fixture *f)
{
    strbuf b = {0};
    strbuf_puts(&b, "{\"prompt\": \"x\", \"max_tokens\": 1, \"user\": \"");
    add_filling(&b, f->options.max_body_bytes - 2 - b.size);
    strbuf_puts(&b, "\"}");
    assert_int_equal(b.size, f->options.max_body_bytes);
    return b;
}

/* The status of a request with the largest allowed body. */
static unsigned code_of_large(fixture *f)
{
    strbuf b = large_body(f);
    reply r = post(f, "/v1/completions", b.data);
    unsigned code = r.status;
    if (code == 503) {
        assert_non_null(strstr(r.body, "too many large requests, or too little memory"));
        assert_non_null(strstr(r.head, "Retry-After: "));
    }
    reply_free(&r);
    strbuf_destroy(&b);
    return code;
}

static void unfinished_bodies_do_not_take_all_memory(void **state)
{
    enum { MOST = 200 };
    fixture *f = *state;
    size_t n = f->options.max_body_bytes;
    int fds[MOST], n_open = 0;
    char head[256];
    snprintf(head, sizeof head, H "Content-Length: %zu\r\n\r\n", n);
    char *bytes = calloc(n, 1);
    assert_non_null(bytes);
    while (code_of_large(f) != 503) {
        if (n_open == MOST) fail_msg("%d large requests were let in", MOST);
        fds[n_open] = client_open(f);
        client_send(fds[n_open], head);
        client_send_bytes(fds[n_open++], bytes, n - 1);
    }
    assert_in_range(n_open, 32, MOST);
    /* There is room again when the connections are gone. */
    for (int i = 0; i < n_open; i++) close(fds[i]);
    for (int i = 0; code_of_large(f) != 200; i++) {
        if (i == 18000) fail_msg("there is no room again");
        nap_ms(10);
    }
    free(bytes);
}

/* A body counts until its request is answered, since its prompt and its tokens are in memory. */
static void memory_of_bodies_is_bounded(void **state)
{
    fixture *f = *state;
    f->options.max_body_bytes = 1 << 16;
    f->options.body_memory_bytes = RPC_BODY_FACTOR * (f->options.max_body_bytes + 1000);
    fixture_start(f);
    atomic_store(&f->model.hold, true);
    int fd = client_open(f);
    strbuf b = large_body(f);
    send_post(fd, "/v1/completions", "", b.data);
    strbuf_destroy(&b);
    wait_in_flight(f, 1);
    assert_int_equal(code_of_large(f), 503);
    atomic_store(&f->model.hold, false);
    reply r = client_read(fd, false);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    close(fd);
    for (int i = 0; code_of_large(f) != 200; i++) {
        if (i == 18000) fail_msg("there is no room again");
        nap_ms(10);
    }
}

static void bodies_are_bounded(void **state)
{
    fixture *f = *state;
    char head[256];
    snprintf(head, sizeof head, H "Content-Length: %zu\r\n\r\n", f->options.max_body_bytes + 1);
    reply r = ask(f, head);
    assert_int_equal(r.status, 413);
    assert_non_null(strstr(r.head, "Connection: close"));
    assert_non_null(strstr(r.body, "too large"));
    reply_free(&r);
    /* The chunks of a body are counted. */
    size_t n = f->options.max_body_bytes * 3 / 2;
    strbuf b = {0};
    strbuf_printf(&b, H "Transfer-Encoding: chunked\r\n\r\n%zx\r\n", n);
    add_filling(&b, n);
    strbuf_puts(&b, "\r\n0\r\n\r\n");
    int fd = client_open(f);
    client_send_bytes(fd, b.data, b.size);
    r = client_read(fd, false);
    assert_int_equal(r.status, 413);
    assert_true(client_at_end(fd));
    reply_free(&r);
    close(fd);
    strbuf_destroy(&b);
    /* The largest allowed size is accepted. */
    b = large_body(f);
    r = post(f, "/v1/completions", b.data);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    strbuf_destroy(&b);
}

static void expectations_are_met(void **state)
{
    fixture *f = *state;
    int fd = client_open(f);
    client_send(fd, H "Expect: 100-continue\r\nContent-Length: 14\r\n\r\n");
    reply r = client_read(fd, false);
    assert_int_equal(r.status, 100);
    reply_free(&r);
    client_send(fd, BODY);
    r = client_read(fd, false);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    close(fd);
    /* A refusal does not wait for the body. */
    r = ask(f,
            "POST /nope HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n");
    assert_int_equal(r.status, 404);
    reply_free(&r);
}

/* ---- clients that go, trickle or stall ------------------------------------------------------- */

static int stream(fixture *f, const char *json)
{
    int fd = client_open(f);
    send_post(fd, "/v1/completions", "", json);
    return fd;
}

static void vanished_clients_are_noticed(void **state)
{
    fixture *f = *state;
    atomic_store(&f->model.nap_us, 10000);
    /* While tokens are streamed. */
    int fd = stream(f, LONG);
    char byte;
    assert_int_equal(recv(fd, &byte, 1, 0), 1);
    close(fd);
    wait_in_flight(f, 0);
    wait_aborted(f, 1);
    /* While no token is: a whole answer, and a stream that waits for its first token. */
    atomic_store(&f->model.hold, true);
    fd = stream(f, "{\"prompt\": \"x\", \"max_tokens\": 1900, \"ignore_eos\": true}");
    int other = stream(f, LONG);
    wait_in_flight(f, 2);
    close(fd);
    wait_in_flight(f, 1);
    shutdown(other, SHUT_WR); // half-closed counts as gone
    wait_in_flight(f, 0);
    assert_true(client_at_end(other));
    atomic_store(&f->model.hold, false);
    wait_aborted(f, 3);
    close(other);
}

/* Many clients at once, at any moment. */
static void vanishing_at_any_moment_is_fine(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 300; i++) {
        int fd = stream(f, i % 3 ? LONG : "{\"prompt\": \"x\", \"max_tokens\": 20}");
        char part[64];
        if (i % 4 == 0) nap_ms(i % 7);
        if (i % 5 == 0) (void)!recv(fd, part, sizeof part, 0);
        close(fd);
    }
    wait_in_flight(f, 0);
    reply r = post(f, "/v1/completions", "{\"prompt\": \"x\"}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
}

static int open_with_small_buffer(fixture *f)
{
    int fd = client_open(f), size = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    return fd;
}

/* Waits until the first request has begun. It may have been cut already: this thread may have lost
 * its core meanwhile. */
static void wait_begun(fixture *f)
{
    while (fixture_in_flight(f) == 0 && engine_get_stats(f->engine).requests_aborted == 0)
        nap_ms(1);
}

static void clients_that_never_read_are_cut(void **state)
{
    fixture *f = *state;
    f->options.stall_timeout_us = 1500000; // a busy machine may delay the others, too
    fixture_start(f);
    int fd = open_with_small_buffer(f);
    send_post(fd, "/v1/completions", "",
              "{\"prompt\": \"x\", \"max_tokens\": 1900, \"ignore_eos\": true, \"n\": 8, "
              "\"stream\": true, \"logprobs\": 1}");
    wait_begun(f);
    int reader = stream(f, "{\"prompt\": \"x\", \"max_tokens\": 100, \"stream\": true}");
    reply r = client_read(reader, false); // other clients are served
    assert_int_equal(count_of(r.body, "[DONE]"), 1);
    reply_free(&r);
    wait_aborted(f, 1);
    wait_in_flight(f, 0);
    close(fd);
    close(reader);
}

/* Sends single bytes with pauses until the server closes the connection. */
static void trickle(fixture *f, const char *start, char byte)
{
    int fd = client_open(f);
    client_send(fd, start);
    for (int i = 0; i < 2000; i++) {
        if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1) break;
        nap_ms(10);
        if (recv(fd, &(char){0}, 1, MSG_DONTWAIT | MSG_PEEK) == 0) break;
    }
    reply r = client_read(fd, false);
    assert_int_equal(r.status, 0);
    reply_free(&r);
    close(fd);
}

static void trickling_requests_are_cut(void **state)
{
    fixture *f = *state;
    f->options.keepalive_timeout_us = 300000;
    fixture_start(f);
    trickle(f, "", 'G');
    trickle(f, G "X: ", 'a');
    trickle(f, H "Content-Length: 100000\r\n\r\n", 'a');
    trickle(f, H "Transfer-Encoding: chunked\r\n\r\nfffff\r\n", 'a');
}

static void idle_connections_are_cut(void **state)
{
    fixture *f = *state;
    f->options.keepalive_timeout_us = 1500000; // time for a request on a busy machine
    fixture_start(f);
    /* A connection with a running request is not idle. */
    atomic_store(&f->model.hold, true);
    int idle = client_open(f), busy = stream(f, "{\"prompt\": \"x\"}");
    assert_true(client_at_end(idle));
    nap_ms(1600);
    assert_int_equal(fixture_in_flight(f), 1);
    atomic_store(&f->model.hold, false);
    reply r = client_read(busy, false);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    assert_true(client_at_end(busy)); // now it is idle, too
    close(idle);
    close(busy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_is_smuggled, setup, teardown),
        cmocka_unit_test_setup_teardown(answers_of_the_library_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(truncated_requests_end, setup, teardown),
        cmocka_unit_test_setup_teardown(cookies_end_with_their_request, setup, teardown),
        cmocka_unit_test_setup_teardown(heads_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(bodies_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(unfinished_bodies_do_not_take_all_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_of_bodies_is_bounded, setup_unstarted, teardown),
        cmocka_unit_test_setup_teardown(expectations_are_met, setup, teardown),
        cmocka_unit_test_setup_teardown(vanished_clients_are_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(vanishing_at_any_moment_is_fine, setup, teardown),
        cmocka_unit_test_setup_teardown(clients_that_never_read_are_cut, setup_unstarted, teardown),
        cmocka_unit_test_setup_teardown(idle_connections_are_cut, setup_unstarted, teardown),
        cmocka_unit_test_setup_teardown(trickling_requests_are_cut, setup_unstarted, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
