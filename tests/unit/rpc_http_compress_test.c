/* Answers as gzip: the same bytes, for clients that take them. */
#include "tests/unit/rpc_http_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

static int setup(void **state)
{
    fixture *f = fixture_make(64);
    fixture_start(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_destroy(*state);
    return 0;
}

static reply send_and_read(const fixture *f, const char *path, const char *headers,
                           const char *json)
{
    int fd = client_open(f);
    send_post(fd, path, headers, json);
    reply r = client_read(fd, false);
    close(fd);
    return r;
}

/* Replaces r's body by what it says after gunzip, which must end with the body. */
static void unpack(reply *r)
{
    enum { MOST = 4 << 20 };
    char *text = malloc(MOST);
    z_stream z = {.next_in = (Bytef *)r->body,
                  .avail_in = (uInt)r->body_bytes,
                  .next_out = (Bytef *)text,
                  .avail_out = MOST - 1};
    assert_int_equal(inflateInit2(&z, 15 + 16), Z_OK);
    assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
    assert_int_equal(z.avail_in, 0);
    r->body_bytes = z.total_out;
    text[z.total_out] = 0;
    inflateEnd(&z);
    free(r->body);
    r->body = text;
}

/* The same answer with and without gzip; returns the share of the bytes that were sent. */
static double compare(const fixture *f, const char *path, const char *json)
{
    reply plain = send_and_read(f, path, "", json);
    reply packed = send_and_read(f, path, "Accept-Encoding: deflate, gzip;q=0.5\r\n", json);
    double share = (double)packed.body_bytes / (double)plain.body_bytes;
    assert_int_equal(plain.status, 200);
    assert_int_equal(packed.status, 200);
    assert_null(strstr(plain.head, "Content-Encoding"));
    assert_non_null(strstr(plain.head, "Vary: Accept-Encoding\r\n"));
    assert_non_null(strstr(packed.head, "Content-Encoding: gzip\r\n"));
    assert_non_null(strstr(packed.head, "Vary: Accept-Encoding\r\n"));
    unpack(&packed);
    assert_int_equal(plain.body_bytes, packed.body_bytes);
    assert_memory_equal(plain.body, packed.body, plain.body_bytes);
    reply_free(&plain);
    reply_free(&packed);
    return share;
}

/* /tokenize answers with a number for each token of the prompt: one portion, and several. */
static void long_answers_are_the_same_bytes(void **state)
{
    enum { MOST = 200000 };
    static const size_t sizes[] = {400, 3000, MOST};
    strbuf json = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        strbuf_clear(&json);
        strbuf_puts(&json, "{\"prompt\": \"");
        for (size_t j = 0; j < sizes[i]; j++) strbuf_putc(&json, (char)('a' + j * j % 26));
        strbuf_puts(&json, "\"}");
        assert_true(compare(*state, "/tokenize", json.data) < 0.5);
    }
    strbuf_destroy(&json);
}

/* These stay as they are: short answers, streams, and answers to clients that do not take gzip. */
static void other_answers_are_sent_as_they_are(void **state)
{
    static const char gzip[] = "Accept-Encoding: gzip\r\n";
    static const struct {
        const char *path, *headers, *json;
    } rows[] = {
        {"/detokenize", gzip, "{\"tokens\": [5]}"},
        {"/v1/completions", gzip, "{\"prompt\": \"x\", \"max_tokens\": 20, \"stream\": true}"},
        {"/v1/completions", "Accept-Encoding: gzip;q=0\r\n",
         "{\"prompt\": \"x\", \"max_tokens\": 1900, \"ignore_eos\": true}"},
        {"/nope", gzip, "{}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        reply r = send_and_read(*state, rows[i].path, rows[i].headers, rows[i].json);
        assert_null(strstr(r.head, "Content-Encoding"));
        assert_true(r.status && !r.cut);
        reply_free(&r);
    }
}

/* A client that leaves in the middle of a compressed answer, and one that asks again on the same
 * connection. */
static void connections_live_on(void **state)
{
    fixture *f = *state;
    static const char json[] = "{\"prompt\": \"x\", \"max_tokens\": 1900, \"ignore_eos\": true}";
    int fd = client_open(f), gone = client_open(f);
    char byte;
    send_post(gone, "/v1/completions", "Accept-Encoding: gzip\r\n", json);
    client_receive(gone, &byte, 1);
    close(gone);
    for (int i = 0; i < 2; i++) {
        send_post(fd, "/v1/completions", "Accept-Encoding: gzip\r\n", json);
        reply r = client_read(fd, false);
        unpack(&r);
        assert_int_equal(count_of(r.body, "\"finish_reason\":\"length\""), 1);
        reply_free(&r);
    }
    client_send(fd, "HEAD /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n");
    reply r = client_read(fd, true);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.head, "Content-Encoding: gzip\r\n"));
    reply_free(&r);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(long_answers_are_the_same_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(other_answers_are_sent_as_they_are, setup, teardown),
        cmocka_unit_test_setup_teardown(connections_live_on, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
