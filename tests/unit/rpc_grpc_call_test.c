/* Calls over a real connection: what a client sees, and that a method is told of each end. */
#include "tests/unit/rpc_grpc_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

/* ---- a service for tests --------------------------------------------------------------------- */

static _Atomic int begun, ended, n_sent; // counts of the current test
static listener_list ticker;

static void echo(rpc_call *c, const ProtobufCMessage *m) { call_reply(c, m); }

static void header(rpc_call *c, const ProtobufCMessage *m)
{
    (void)m;
    size_t n = 0;
    const char *value = call_metadata(c, "x-test", &n);
    text_message reply = text_of(value ? value : "none", value ? n : 4);
    call_reply(c, &reply.base);
}

static void refuse(rpc_call *c, const ProtobufCMessage *m)
{
    const text_message *t = (const text_message *)m;
    error err = {.text = "field: bad \xff byte"};
    call_fail(c, status_make((status_code)(t->service.data[0] - 'A'), NULL), &err);
}

/* Counts down from the number asked for, a message of 1,000 bytes each. */
static void stream_more(rpc_call *c)
{
    char text[1000] = {0};
    int *left = call_state(c);
    text_message m = text_of(text, sizeof text);
    if (*left == 0) {
        call_add_trailer(c, "x-sent", "all", 3);
        call_finish(c, GRPC_STATUS_OK, "");
    } else if (call_send(c, &m.base)) {
        --*left;
        n_sent++;
    }
}

static void stream_begin(rpc_call *c, const ProtobufCMessage *m)
{
    char digits[16] = {0};
    const text_message *t = (const text_message *)m;
    memcpy(digits, t->service.data, t->service.len < 15 ? t->service.len : 15);
    int *left = malloc(sizeof *left);
    *left = (int)strtol(digits, NULL, 10);
    call_set_state(c, left);
    stream_more(c);
}

static void free_state(rpc_call *c)
{
    free(call_state(c));
    ended++;
}

static void hang(rpc_call *c, const ProtobufCMessage *m)
{
    (void)m;
    call_set_state(c, malloc(1));
    begun++;
}

/* Sends a message at each notification of the ticker. */
static void tick_begin(rpc_call *c, const ProtobufCMessage *m)
{
    (void)m;
    listener *l = calloc(1, sizeof *l);
    *l = (listener){.notify = call_wake, .ctx = c};
    call_set_state(c, l);
    listeners_add(&ticker, l);
    begun++;
}

static void tick_more(rpc_call *c)
{
    text_message m = text_of("tick", 4);
    assert_true(call_can_send(c));
    assert_true(call_send(c, &m.base));
    assert_false(call_send(c, &m.base));
    n_sent++;
}

static void tick_end(rpc_call *c)
{
    listeners_remove(&ticker, call_state(c));
    free_state(c);
}

static void chat(rpc_call *c, const ProtobufCMessage *m) { call_send(c, m); }
static void chat_more(rpc_call *c) { call_receive(c); }
static void chat_half_closed(rpc_call *c) { call_finish(c, GRPC_STATUS_OK, "bye"); }

static const rpc_method methods[] = {
    {.path = "/t.T/Echo", .input = TEXT_INPUT, .message = echo},
    {.path = "/t.T/Open", .input = TEXT_INPUT, .open = true, .message = echo},
    {.path = "/t.T/Big", .input = &octavo__v1__chat__descriptor, .message = echo},
    {.path = "/t.T/Header", .input = TEXT_INPUT, .message = header},
    {.path = "/t.T/Fail", .input = TEXT_INPUT, .message = refuse},
    {.path = "/t.T/Stream",
     .input = TEXT_INPUT,
     .message = stream_begin,
     .writable = stream_more,
     .ended = free_state},
    {.path = "/t.T/Hang", .input = TEXT_INPUT, .message = hang, .ended = free_state},
    {.path = "/t.T/Tick",
     .input = TEXT_INPUT,
     .message = tick_begin,
     .writable = tick_more,
     .ended = tick_end},
    {.path = "/t.T/Chat",
     .input = TEXT_INPUT,
     .client_streams = true,
     .message = chat,
     .half_closed = chat_half_closed,
     .writable = chat_more,
     .ended = free_state},
};
static const rpc_service test_service = {"t.T", methods, sizeof methods / sizeof *methods};
static const rpc_service *const services[] = {&test_service};

static void begin(fixture *f)
{
    begun = ended = n_sent = 0;
    fixture_start(f, services, 1);
}

static int setup(void **state)
{
    *state = fixture_make(NULL, 0);
    listeners_init(&ticker);
    return 0;
}

static int teardown(void **state)
{
    fixture_destroy(*state);
    listeners_destroy(&ticker);
    return 0;
}

/* Sends `text` and returns the code of the call's end, with the whole call in *out if wanted. */
static grpc_status_code ask(fixture *f, const char *path, const client_header *headers,
                            const char *text, client_call **out)
{
    text_message m = text_of(text, strlen(text));
    client_call *k = client_ask(&f->client, path, headers, &m.base);
    strbuf answer = {0};
    client_read(k, &answer); // the end comes after the unread messages
    strbuf_destroy(&answer);
    grpc_status_code code = client_end(k);
    if (out) *out = k;
    else client_destroy(k);
    return code;
}

static bool echoes(fixture *f, const char *path, const char *text, size_t n)
{
    strbuf answer = {0};
    text_message m = text_of(text, n), *back = NULL;
    bool ok = client_unary(&f->client, path, &m.base, &answer);
    if (ok)
        back = grpc__health__v1__health_check_request__unpack(NULL, answer.size,
                                                              (uint8_t *)answer.data);
    ok = ok && back && back->service.len == n &&
         (n == 0 || memcmp(back->service.data, text, n) == 0);
    if (back) grpc__health__v1__health_check_request__free_unpacked(back, NULL);
    strbuf_destroy(&answer);
    return ok;
}

/* ---- requests and answers -------------------------------------------------------------------- */

static void test_unary(void **state)
{
    fixture *f = *state;
    begin(f);
    assert_true(echoes(f, "/t.T/Echo", "a\0b", 3)); // a NUL does not cut the text
    assert_true(echoes(f, "/t.T/Echo", "", 0));
    client_call *k;
    client_header headers[] = {{"x-test", "here"}, {0}};
    text_message m = TEXT_INIT;
    strbuf answer = {0};
    k = client_ask(&f->client, "/t.T/Header", headers, &m.base);
    assert_true(client_read(k, &answer));
    assert_memory_equal(answer.data + 2, "here", 4);
    assert_false(client_read(k, &answer));
    assert_int_equal(client_end(k), GRPC_STATUS_OK);
    client_destroy(k);
    strbuf_destroy(&answer);
}

static void test_unknown(void **state)
{
    fixture *f = *state;
    client_call *k;
    begin(f);
    assert_int_equal(ask(f, "/t.T/Nothing", NULL, "", &k), GRPC_STATUS_UNIMPLEMENTED);
    assert_string_equal(k->text, "there is no method /t.T/Nothing");
    client_destroy(k);
    assert_int_equal(ask(f, "/t.T/Ech", NULL, "", NULL), GRPC_STATUS_UNIMPLEMENTED);
    assert_int_equal(ask(f, "/t.T/Echoo", NULL, "", NULL), GRPC_STATUS_UNIMPLEMENTED);
}

static void test_bad_requests(void **state)
{
    fixture *f = *state;
    begin(f);
    client_call *k = client_start(&f->client, "/t.T/Hang", NULL, 0);
    client_write_bytes(k, "\xff\xff", 2);
    assert_int_equal(client_end(k), GRPC_STATUS_INVALID_ARGUMENT);
    assert_string_equal(k->text, "request: not a valid grpc.health.v1.HealthCheckRequest message");
    client_destroy(k);

    k = client_start(&f->client, "/t.T/Hang", NULL, 0);
    client_half_close(k);
    assert_int_equal(client_end(k), GRPC_STATUS_INVALID_ARGUMENT);
    assert_string_equal(k->text, "request: the message is missing");
    client_destroy(k);

    k = client_start(&f->client, "/t.T/Hang", NULL, 0);
    size_t n = f->core->service.o.max_body_bytes + 1;
    char *large = calloc(1, n);
    client_write_bytes(k, large, n);
    assert_int_equal(client_end(k), GRPC_STATUS_RESOURCE_EXHAUSTED);
    client_destroy(k);

    /* Half a million empty messages in a megabyte. */
    for (size_t i = 0; i < n; i += 2) large[i] = 0x0a;
    k = client_start(&f->client, "/t.T/Big", NULL, 0);
    client_write_bytes(k, large, n - 1);
    assert_int_equal(client_end(k), GRPC_STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(k->text, "unpacked"));
    client_destroy(k);
    free(large);
    assert_int_equal(begun + ended, 0); // the method was not called
    assert_true(echoes(f, "/t.T/Echo", "still there", 11));
}

static void test_compressed(void **state)
{
    fixture *f = *state;
    begin(f);
    grpc_client zip = grpc_client_gzip(grpc_front_port(f->front));
    char text[5000];
    memset(text, 'a', sizeof text);
    text_message m = text_of(text, sizeof text);
    client_call *k = client_ask(&zip, "/t.T/Echo", NULL, &m.base);
    assert_int_equal(client_end(k), GRPC_STATUS_UNIMPLEMENTED);
    client_destroy(k);
    grpc_client_destroy(&zip);
}

static void test_failures(void **state)
{
    fixture *f = *state;
    begin(f);
    char which[2] = {0};
    for (int code = STATUS_OK + 1; code <= STATUS_INTERNAL; code++) {
        client_call *k;
        size_t n;
        which[0] = (char)('A' + code);
        assert_int_equal(ask(f, "/t.T/Fail", NULL, which, &k), call_code_of((status_code)code));
        assert_string_equal(k->text, "field: bad ? byte");
        bool passing = code == STATUS_QUEUE_FULL || code == STATUS_NO_PAGES ||
                       code == STATUS_UNAVAILABLE || code == STATUS_NO_MEMORY;
        assert_int_equal(client_trailer(k, "retry-after-ms", &n) != NULL, passing);
        const char *bytes = client_trailer(k, "grpc-status-details-bin", &n);
        assert_int_equal(bytes != NULL, passing);
        if (bytes) {
            Google__Rpc__Status *s = google__rpc__status__unpack(NULL, n, (const uint8_t *)bytes);
            assert_non_null(s);
            assert_int_equal(s->code, k->code);
            assert_int_equal(s->n_details, 1);
            Google__Rpc__RetryInfo *r = google__rpc__retry_info__unpack(
                NULL, s->details[0]->value.len, s->details[0]->value.data);
            assert_non_null(r);
            assert_true(r->retry_delay->seconds >= 1);
            google__rpc__retry_info__free_unpacked(r, NULL);
            google__rpc__status__free_unpacked(s, NULL);
        }
        client_destroy(k);
    }
    assert_int_equal(call_code_of(STATUS_QUEUE_FULL), GRPC_STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(call_code_of(STATUS_INVALID), GRPC_STATUS_INVALID_ARGUMENT);
}

static void test_keys(void **state)
{
    fixture *f = *state;
    static const char *const keys[] = {"secret"};
    client_header right[] = {{"authorization", "Bearer secret"}, {0}};
    client_header wrong[] = {{"authorization", "Bearer secre"}, {0}};
    char long_value[2000];
    memset(long_value, 'x', sizeof long_value - 1);
    long_value[sizeof long_value - 1] = '\0';
    client_header longer[] = {{"authorization", long_value}, {0}};
    fixture_destroy(f);
    *state = f = fixture_make(keys, 1);
    begin(f);
    assert_int_equal(ask(f, "/t.T/Echo", NULL, "", NULL), GRPC_STATUS_UNAUTHENTICATED);
    assert_int_equal(ask(f, "/t.T/Echo", wrong, "", NULL), GRPC_STATUS_UNAUTHENTICATED);
    assert_int_equal(ask(f, "/t.T/Echo", longer, "", NULL), GRPC_STATUS_UNAUTHENTICATED);
    assert_int_equal(ask(f, "/t.T/Echo", right, "", NULL), GRPC_STATUS_OK);
    assert_int_equal(ask(f, "/t.T/Open", NULL, "", NULL), GRPC_STATUS_OK);
}

/* A value that must be single and comes twice is refused before the key is looked at, also where
 * both are right or equal. */
static void test_duplicates(void **state)
{
    fixture *f = *state;
    static const char *const keys[] = {"secret", "other"};
    static const char *const rest[] = {"octavo-retention", "octavo-retrieval", "octavo-session"};
    static const client_header pairs[][3] = {
        {{"authorization", "Bearer secret"}, {"authorization", "Bearer other"}},
        {{"authorization", "Bearer secret"}, {"authorization", "Bearer secret"}},
        {{"authorization", "Bearer wrong"}, {"authorization", "Bearer secret"}},
    };
    client_call *k;
    fixture_destroy(f);
    *state = f = fixture_make(keys, 2);
    begin(f);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        assert_int_equal(ask(f, "/t.T/Echo", pairs[i], "", &k), GRPC_STATUS_INVALID_ARGUMENT);
        assert_string_equal(k->text, "authorization: is there twice");
        client_destroy(k);
        assert_int_equal(ask(f, "/t.T/Open", pairs[i], "", NULL), GRPC_STATUS_INVALID_ARGUMENT);
    }
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) {
        client_header h[] = {
            {"authorization", "Bearer secret"}, {rest[i], "a"}, {"x-other", "b"}, {0}, {0}};
        assert_int_equal(ask(f, "/t.T/Echo", h, "", NULL), GRPC_STATUS_OK);
        h[3] = (client_header){rest[i], "a"};
        assert_int_equal(ask(f, "/t.T/Echo", h, "", NULL), GRPC_STATUS_INVALID_ARGUMENT);
        h[1].key = "x-other"; // other names may come twice
        assert_int_equal(ask(f, "/t.T/Echo", h, "", NULL), GRPC_STATUS_OK);
    }
}

/* ---- streams --------------------------------------------------------------------------------- */

static void test_stream(void **state)
{
    fixture *f = *state;
    begin(f);
    text_message m = text_of("3000", 4);
    strbuf in = {0};
    client_call *k = client_ask(&f->client, "/t.T/Stream", NULL, &m.base);
    int n = 0;
    size_t n_value;
    for (; client_read(k, &in); n++) assert_int_equal(in.size, 1003);
    assert_int_equal(n, 3000);
    assert_int_equal(client_end(k), GRPC_STATUS_OK);
    assert_non_null(client_trailer(k, "x-sent", &n_value));
    client_destroy(k);
    strbuf_destroy(&in);
    assert_true(reaches(&ended, 1));
}

/* A client that does not read blocks its own method, and no other. */
static void test_back_pressure(void **state)
{
    fixture *f = *state;
    begin(f);
    text_message m = text_of("100000", 6);
    strbuf in = {0};
    client_call *k = client_ask(&f->client, "/t.T/Stream", NULL, &m.base);
    int before = -1;
    while (before != n_sent) { // until no more is sent
        before = n_sent;
        for (int i = 0; i < 50; i++) {
            assert_true(echoes(f, "/t.T/Echo", "hello", 5));
            nap_ms(2);
        }
    }
    print_message("sent to a client that does not read: %d of 100000 messages of 1 kB\n", before);
    assert_true(before < 50000);
    int n = 0;
    while (client_read(k, &in)) n++;
    assert_int_equal(n, 100000);
    assert_int_equal(client_end(k), GRPC_STATUS_OK);
    client_destroy(k);
    strbuf_destroy(&in);
}

static void test_stalled_reader(void **state)
{
    fixture *f = *state;
    f->core->service.o.stall_timeout_us = 100000;
    begin(f);
    text_message m = text_of("100000", 6);
    client_call *k = client_ask(&f->client, "/t.T/Stream", NULL, &m.base);
    assert_true(reaches(&ended, 1));
    strbuf in = {0};
    while (client_read(k, &in)) continue;
    strbuf_destroy(&in);
    assert_int_not_equal(client_end(k), GRPC_STATUS_OK);
    client_destroy(k);
    assert_true(n_sent < 100000);
}

static void test_no_request_in_time(void **state)
{
    fixture *f = *state;
    f->core->service.o.keepalive_timeout_us = 100000;
    begin(f);
    client_call *k = client_start(&f->client, "/t.T/Hang", NULL, 0);
    client_call *chat_call = client_start(&f->client, "/t.T/Chat", NULL, 0);
    assert_int_equal(client_end(k), GRPC_STATUS_DEADLINE_EXCEEDED);
    assert_string_equal(k->text, "request: no message came in time");
    client_half_close(chat_call); // may wait any time
    assert_int_equal(client_end(chat_call), GRPC_STATUS_OK);
    client_destroy(k);
    client_destroy(chat_call);
}

static void test_chat(void **state)
{
    fixture *f = *state;
    begin(f);
    strbuf in = {0};
    client_call *k = client_start(&f->client, "/t.T/Chat", NULL, 0);
    for (int i = 0; i < 20; i++) {
        text_message m = text_of("question", 8);
        assert_true(client_write(k, &m.base));
        assert_true(client_read(k, &in));
        assert_memory_equal(in.data + 2, "question", 8);
    }
    client_half_close(k);
    assert_false(client_read(k, &in));
    assert_int_equal(client_end(k), GRPC_STATUS_OK);
    assert_true(reaches(&ended, 1));
    client_destroy(k);

    k = client_start(&f->client, "/t.T/Chat", NULL, 0);
    client_half_close(k); // without a message
    assert_int_equal(client_end(k), GRPC_STATUS_OK);
    client_destroy(k);
    k = client_start(&f->client, "/t.T/Chat", NULL, 0);
    client_write_bytes(k, "\x0a\xff", 2);
    assert_int_equal(client_end(k), GRPC_STATUS_INVALID_ARGUMENT);
    client_destroy(k);
    strbuf_destroy(&in);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void test_cancel(void **state)
{
    fixture *f = *state;
    begin(f);
    enum { N = 50 };
    client_call *k[N];
    text_message m = TEXT_INIT;
    for (int i = 0; i < N; i++) k[i] = client_ask(&f->client, "/t.T/Hang", NULL, &m.base);
    assert_true(reaches(&begun, N));
    assert_int_equal(ended, 0);
    int64_t at = clock_now_us();
    for (int i = 0; i < N; i++) client_cancel(k[i]);
    assert_true(reaches(&ended, N));
    print_message("%d calls cancelled: the last one ended after %.1f ms\n", N,
                  (double)(clock_now_us() - at) / 1e3);
    for (int i = 0; i < N; i++) {
        assert_int_equal(client_end(k[i]), GRPC_STATUS_CANCELLED);
        client_destroy(k[i]);
    }
}

static void test_deadline(void **state)
{
    fixture *f = *state;
    begin(f);
    text_message m = TEXT_INIT;
    for (int ms = 200; begun == 0; ms *= 2) { // on a busy machine the method may begin late
        client_call *k = client_start(&f->client, "/t.T/Hang", NULL, ms);
        client_write(k, &m.base);
        assert_int_equal(client_end(k), GRPC_STATUS_DEADLINE_EXCEEDED);
        client_destroy(k);
    }
    assert_true(reaches(&ended, 1));
}

/* The connection is closed with its calls. */
static void test_vanished(void **state)
{
    fixture *f = *state;
    begin(f);
    grpc_client other = grpc_client_plain(grpc_front_port(f->front));
    text_message m = TEXT_INIT;
    client_call *k = client_ask(&other, "/t.T/Hang", NULL, &m.base);
    assert_true(reaches(&begun, 1));
    client_destroy(k);
    grpc_client_destroy(&other);
    assert_true(reaches(&ended, 1));
}

typedef struct wakers {
    pthread_t thread;
    _Atomic bool stop;
} wakers;

static void *wake_always(void *arg)
{
    wakers *w = arg;
    while (!atomic_load(&w->stop)) listeners_notify(&ticker);
    return NULL;
}

/* Wakes from another thread while calls come and go. */
static void test_wake(void **state)
{
    fixture *f = *state;
    begin(f);
    wakers w = {0};
    strbuf in = {0};
    text_message m = TEXT_INIT;
    pthread_create(&w.thread, NULL, wake_always, &w);
    for (int round = 0; round < 10; round++) {
        client_call *k[5];
        for (int i = 0; i < 5; i++) k[i] = client_ask(&f->client, "/t.T/Tick", NULL, &m.base);
        for (int i = 0; i < 5; i++)
            for (int n = 0; n < 20; n++) assert_true(client_read(k[i], &in));
        for (int i = 0; i < 5; i++) client_destroy(k[i]);
    }
    assert_true(reaches(&ended, 50));
    atomic_store(&w.stop, true);
    pthread_join(w.thread, NULL);
    strbuf_destroy(&in);
}

/* One wake is enough. */
static void test_wake_once(void **state)
{
    fixture *f = *state;
    begin(f);
    strbuf in = {0};
    text_message m = TEXT_INIT;
    client_call *k = client_ask(&f->client, "/t.T/Tick", NULL, &m.base);
    assert_true(reaches(&begun, 1));
    listeners_notify(&ticker);
    assert_true(client_read(k, &in));
    assert_true(reaches(&n_sent, 1)); /* counted after it was sent */
    client_destroy(k);
    strbuf_destroy(&in);
    assert_true(reaches(&ended, 1));
}

/* ---- the server's own ends ------------------------------------------------------------------- */

static void test_drain(void **state)
{
    fixture *f = *state;
    begin(f);
    text_message m = text_of("100", 3);
    strbuf in = {0};
    client_call *running = client_ask(&f->client, "/t.T/Stream", NULL, &m.base);
    assert_true(client_read(running, &in));
    grpc_front_drain(f->front);
    client_call *k;
    assert_int_equal(ask(f, "/t.T/Echo", NULL, "", &k), GRPC_STATUS_UNAVAILABLE);
    assert_string_equal(k->text, "the server is draining");
    client_destroy(k);
    assert_int_equal(ask(f, "/t.T/Open", NULL, "", NULL), GRPC_STATUS_OK);
    int n = 1;
    while (client_read(running, &in)) n++;
    assert_int_equal(n, 100); // running calls go on
    assert_int_equal(client_end(running), GRPC_STATUS_OK);
    client_destroy(running);
    strbuf_destroy(&in);
}

static void test_destroy_with_calls(void **state)
{
    fixture *f = *state;
    begin(f);
    enum { N = 20 };
    client_call *k[N + 1];
    text_message m = TEXT_INIT, many = text_of("100000", 6);
    for (int i = 0; i < N; i++) k[i] = client_ask(&f->client, "/t.T/Hang", NULL, &m.base);
    k[N] = client_ask(&f->client, "/t.T/Stream", NULL, &many.base); // and one that is never read
    assert_true(reaches(&begun, N) && reaches(&n_sent, 1));
    grpc_front_destroy(f->front);
    f->front = NULL;
    assert_int_equal(ended, N + 1);
    for (int i = 0; i < N; i++) {
        assert_int_equal(client_end(k[i]), GRPC_STATUS_UNAVAILABLE);
        /* The connection's end may overtake it; then the client's library makes a text of its
         * own. */
        if (!strstr(k[i]->text, "msg:") && !strstr(k[i]->text, "losed"))
            assert_string_equal(k[i]->text, "the server is stopping");
        client_destroy(k[i]);
    }
    client_destroy(k[N]);
}

static void test_addresses(void **state)
{
    fixture *f = *state;
    begin(f);
    char taken[64], want[128];
    error err;
    grpc_front *second;
    snprintf(taken, sizeof taken, "127.0.0.1:%u", grpc_front_port(f->front));
    snprintf(want, sizeof want, "grpc: %s: Address already in use", taken);
    f->core->service.o.grpc_address = taken;
    assert_false(status_ok(grpc_front_create(&f->core->service, services, 1, &second, &err)));
    assert_string_equal(err.text, want);
    assert_null(second);
    static const char *const bad[] = {"",      "8000",         ":8000",       "::1:8000",
                                      "[]:80", "127.0.0.1:",   "127.0.0.1:x", "127.0.0.1:65536",
                                      "[::1]", "127.0.0.1:80x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        f->core->service.o.grpc_address = bad[i];
        assert_false(status_ok(grpc_front_create(&f->core->service, services, 1, &second, &err)));
        assert_non_null(strstr(err.text, "is not HOST:PORT"));
    }
    f->core->service.o.grpc_address = "localhost:0";
    assert_true(status_ok(grpc_front_create(&f->core->service, services, 1, &second, &err)));
    assert_int_not_equal(grpc_front_port(second), 0);
    grpc_front_destroy(second);
}

static long most_resident_kb(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void test_many_streams(void **state)
{
    fixture *f = *state;
    begin(f);
    enum { N = 500 };
    static client_call *k[N];
    text_message m = TEXT_INIT;
    assert_true(echoes(f, "/t.T/Echo", "warm", 4));
    long before = most_resident_kb();
    for (int i = 0; i < N; i++) k[i] = client_ask(&f->client, "/t.T/Hang", NULL, &m.base);
    assert_true(reaches(&begun, N));
    print_message("%d idle streams: %.1f kB each, client and server together\n", N,
                  (double)(most_resident_kb() - before) / N);
    for (int i = 0; i < N; i++) client_destroy(k[i]);
    assert_true(reaches(&ended, N));
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(many_streams), TEST(unary),         TEST(unknown),        TEST(bad_requests),
        TEST(compressed),   TEST(failures),      TEST(keys),           TEST(duplicates),
        TEST(stream),       TEST(back_pressure), TEST(stalled_reader), TEST(no_request_in_time),
        TEST(chat),         TEST(cancel),        TEST(deadline),       TEST(vanished),
        TEST(wake),         TEST(wake_once),     TEST(drain),          TEST(destroy_with_calls),
        TEST(addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
