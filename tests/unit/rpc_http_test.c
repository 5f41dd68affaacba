/* HTTP as correct clients use it: routes, answers, keys, keep-alive, draining, overload. */
#include "tests/unit/rpc_http_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
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
    *state = fixture_make(2);
    return 0;
}

static int teardown(void **state)
{
    fixture_destroy(*state);
    return 0;
}

static void expect(reply r, unsigned code, const char *in_head, const char *in_body)
{
    if (r.status != code || r.cut || (in_head && !strstr(r.head, in_head)) ||
        (in_body && !strstr(r.body, in_body)))
        fail_msg("expected %u, '%s', '%s'; got:\n%s%s", code, in_head ? in_head : "",
                 in_body ? in_body : "", r.head, r.body);
    reply_free(&r);
}

/* ---- routes ---------------------------------------------------------------------------------- */

static void routes_answer(void **state)
{
    fixture *f = *state;
    expect(ask(f, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200, "application/json", "serving");
    expect(ask(f, "HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200, "Content-Length: ", "");
    expect(ask(f, "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n"), 200, NULL, "serving");
    expect(ask(f, "GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"), 200, NULL, "serving");
    expect(ask(f, "GET /version HTTP/1.1\r\nHost: x\r\n\r\n"), 200, NULL, "test");
    expect(ask(f, "GET /metrics?x=%00 HTTP/1.1\r\nHost: x\r\n\r\n"), 200,
           "text/plain; version=0.0.4", "octavo:");
    expect(ask(f, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"), 200, NULL, "\"demo\"");
    expect(ask(f, "GET /v1/models/de%6Do HTTP/1.1\r\nHost: x\r\n\r\n"), 200, NULL, "\"demo\"");
    expect(ask(f, "GET /v1/models/other HTTP/1.1\r\nHost: x\r\n\r\n"), 404, NULL, "NotFoundError");
    expect(post(f, "/tokenize", "{\"prompt\": \"hello\"}"), 200, NULL, "tokens");
    expect(post(f, "/detokenize", "{\"tokens\": [5]}"), 200, NULL, "prompt");
}

/* A browser asks with OPTIONS before a page's request, without the key. */
static void pages_of_allowed_origins_may_call(void **state)
{
    fixture *f = *state;
    static const char *const origins[] = {"https://a.example", "http://b.example:81"};
    static const char *const keys[] = {"secret"};
#define PREFLIGHT(path, origin)                                                                    \
    "OPTIONS " path " HTTP/1.1\r\nHost: x\r\nOrigin: " origin                                      \
    "\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "                  \
    "authorization, x-stainless-os\r\n\r\n"
    f->options.cors_origins = origins;
    f->options.n_cors_origins = 2;
    f->options.api_keys = keys;
    f->options.n_api_keys = 1;
    fixture_start(f);
    expect(ask(f, PREFLIGHT("/v1/completions", "https://a.example")), 200,
           "Access-Control-Allow-Origin: https://a.example\r\n", "");
    expect(ask(f, PREFLIGHT("/v1/completions", "https://a.example")), 200,
           "Access-Control-Allow-Headers: authorization, x-stainless-os\r\n", "");
    expect(ask(f, PREFLIGHT("/v1/completions", "http://b.example:81")), 200,
           "Access-Control-Allow-Methods: POST, OPTIONS\r\n", "");
    reply r = ask(f, PREFLIGHT("/v1/completions", "https://a.example.evil"));
    assert_int_equal(r.status, 200);
    assert_null(strstr(r.head, "Access-Control"));
    assert_non_null(strstr(r.head, "Vary: Origin\r\n"));
    reply_free(&r);
    expect(ask(f, PREFLIGHT("/nope", "https://a.example")), 404,
           "Access-Control-Allow-Origin: https://a.example\r\n", NULL);
    expect(ask(f, "GET /v1/models HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n\r\n"), 401,
           "Access-Control-Allow-Origin: https://a.example\r\n", NULL);
    expect(ask(f, "GET /health HTTP/1.1\r\nHost: x\r\nOrigin: http://b.example:81\r\n\r\n"), 200,
           "Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n", "serving");
    r = ask(f, "OPTIONS /health HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n"
               "Access-Control-Request-Headers: a;b\r\n\r\n");
    assert_non_null(strstr(r.head, "Access-Control-Allow-Methods: GET, HEAD, OPTIONS\r\n"));
    assert_null(strstr(r.head, "Access-Control-Allow-Headers"));
    reply_free(&r);
}

static void without_origins_there_are_no_headers_for_pages(void **state)
{
    reply r = ask(*state, PREFLIGHT("/v1/completions", "https://a.example"));
    assert_int_equal(r.status, 200);
    assert_null(strstr(r.head, "Access-Control"));
    assert_null(strstr(r.head, "Vary"));
    assert_non_null(strstr(r.head, "Allow: POST, OPTIONS\r\n"));
    reply_free(&r);
}

/* A browser sends such a body from any page without asking before. */
static void pages_cannot_generate_unasked(void **state)
{
#define FROM_PAGE(type)                                                                            \
    "POST /tokenize HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n" type                     \
    "Content-Length: 14\r\n\r\n{\"prompt\":\"x\"}"
    fixture *f = *state;
    expect(ask(f, FROM_PAGE("")), 415, NULL, "application/json");
    expect(ask(f, FROM_PAGE("Content-Type: text/plain;charset=UTF-8\r\n")), 415, NULL,
           "content-type");
    expect(ask(f, FROM_PAGE("Content-Type: application/jsonp\r\n")), 415, NULL, "content-type");
    expect(ask(f, FROM_PAGE("Content-Type: application/json\r\n")), 200, NULL, "tokens");
    expect(ask(f, FROM_PAGE("Content-Type: Application/JSON;charset=UTF-8\r\n")), 200, NULL,
           "tokens");
}

static void origins_are_checked(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "a.example", "https://", "https://a/", "https://a b", "", "://a", "https://a,https://b"};
    error err;
    int fd;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const rpc_options o = {.cors_origins = &wrong[i], .n_cors_origins = 1};
        assert_int_equal(http_server_check(&o, &fd, &err).code, STATUS_INVALID);
        assert_non_null(strstr(err.text, "--cors-origin"));
    }
    const char *all = "*";
    const rpc_options o = {.cors_origins = &all, .n_cors_origins = 1};
    assert_true(status_ok(http_server_check(&o, &fd, &err)));
}

static void wrong_turns_are_named(void **state)
{
    fixture *f = *state;
    expect(ask(f, "GET /nope HTTP/1.1\r\nHost: x\r\n\r\n"), 404, "application/json",
           "NotFoundError");
    expect(ask(f, "GET /v1/models/ HTTP/1.1\r\nHost: x\r\n\r\n"), 404, NULL, "\"code\":404");
    expect(ask(f, "GET /health%00x HTTP/1.1\r\nHost: x\r\n\r\n"), 404, NULL, NULL);
    expect(ask(f, "GET /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n"), 405, "Allow: POST\r\n",
           "\"code\":405");
    expect(ask(f, "DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n"), 405, "Allow: GET, HEAD\r\n", NULL);
    expect(ask(f, "POST /tokenize HTTP/1.1\r\nHost: x\r\n\r\n"), 400, NULL, "no body");
    expect(ask(f, "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: "
                  "application/x-www-form-urlencoded\r\nContent-Length: 1\r\n\r\nx"),
           415, NULL, "curl: use --json");
    expect(post(f, "/v1/completions", "{"), 400, NULL, "BadRequestError");
}

/* ---- answers --------------------------------------------------------------------------------- */

static void whole_answers(void **state)
{
    fixture *f = *state;
    expect(post(f, "/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 5}"), 200,
           "application/json", "\"text\":\"aaaaa\"");
    expect(post(f, "/v1/completions", "{\"prompt\": [\"x\", \"y\"], \"n\": 2, \"max_tokens\": 5}"),
           200, NULL, "\"completion_tokens\":20");
    expect(post(f, "/v1/chat/completions",
                "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 3}"),
           200, NULL, "\"content\":\"aaa\"");
    wait_in_flight(f, 0);
}

static void streams_have_a_frame_for_each_token(void **state)
{
    fixture *f = *state;
    reply r = post(f, "/v1/completions",
                   "{\"prompt\": \"x\", \"max_tokens\": 700, \"ignore_eos\": true, \"n\": 2, "
                   "\"stream\": true}");
    assert_int_equal(r.status, 200);
    assert_int_equal(count_of(r.body, "\"text\":\"a\""), 1400);
    assert_int_equal(count_of(r.body, "data: [DONE]\n\n"), 1);
    assert_non_null(strstr(r.head, "text/event-stream"));
    assert_non_null(strstr(r.head, "Cache-Control: no-cache"));
    assert_non_null(strstr(r.head, "X-Accel-Buffering: no"));
    assert_false(r.cut);
    reply_free(&r);
}

static void http_1_0_gets_its_stream_until_the_end(void **state)
{
    fixture *f = *state;
    reply r = ask(f, "POST /v1/completions HTTP/1.0\r\nContent-Length: 49\r\n\r\n"
                     "{\"prompt\": \"x\", \"max_tokens\": 9, \"stream\": true }");
    assert_int_equal(r.status, 200);
    assert_int_equal(count_of(r.body, "\"text\":\"a\""), 9);
    assert_int_equal(count_of(r.body, "data: [DONE]\n\n"), 1);
    reply_free(&r);
}

static void errors_before_the_first_token_are_plain(void **state)
{
    fixture *f = *state;
    expect(
        post(f, "/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 9000, \"stream\": true}"),
        400, "application/json", "2048");
    expect(post(f, "/v1/completions", "{\"prompt\": [5000], \"stream\": true}"), 400, NULL,
           "BadRequestError");
    expect(post(f, "/v1/completions", "{\"prompt\": \"x\", \"temperature\": -1}"), 400, NULL,
           "\"param\":\"temperature\"");
    expect(post(f, "/v1/completions", "{\"prompt\": \"x\", \"model\": \"other\"}"), 404, NULL,
           "other");
}

static void request_ids_are_echoed(void **state)
{
    fixture *f = *state;
    int one = client_open(f), two = client_open(f);
    atomic_store(&f->model.nap_us, 10000);
    send_post(one, "/v1/completions", "X-Request-Id: abc-1\r\n", LONG);
    wait_running(f, 1);
    /* The same id again, while the first runs: both are served. */
    send_post(two, "/v1/completions", "X-Request-Id: abc-1\r\n", "{\"prompt\": \"x\"}");
    expect(client_read(two, false), 200, "X-Request-Id: abc-1\r\n", "\"text\"");
    assert_true(service_abort(&f->service, "", "abc-1", 5));
    reply r = client_read(one, false);
    assert_non_null(strstr(r.head, "X-Request-Id: abc-1\r\n"));
    assert_non_null(strstr(r.body, "cmpl-abc-1"));
    assert_non_null(strstr(r.body, "\"finish_reason\":\"abort\""));
    reply_free(&r);
    expect(ask(f, "GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: a b\r\n\r\n"), 200,
           "X-Request-Id: ", NULL);
    r = ask(f, "GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: a b\r\n\r\n");
    assert_null(strstr(r.head, "X-Request-Id: a b"));
    reply_free(&r);
    close(one);
    close(two);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void connections_live_on(void **state)
{
    fixture *f = *state;
    int fd = client_open(f);
    for (int i = 0; i < 3; i++) {
        send_post(fd, "/v1/completions", "", "{\"prompt\": \"x\", \"stream\": true}");
        reply r = client_read(fd, false);
        assert_int_equal(count_of(r.body, "[DONE]"), 1);
        reply_free(&r);
        send_post(fd, "/nope", "", "{\"refused\": \"after its body\"}");
        expect(client_read(fd, false), 404, NULL, NULL);
    }
    /* Three requests sent at once are answered in order. */
    client_send(fd, "GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
                    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n"
                    "{\"prompt\": \"x\" }"
                    "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    expect(client_read(fd, false), 200, NULL, "test");
    expect(client_read(fd, false), 200, NULL, "text_completion");
    expect(client_read(fd, false), 200, NULL, "serving");
    assert_true(client_at_end(fd));
    close(fd);
}

static void surplus_connections_are_answered(void **state)
{
    fixture *f = *state;
    f->options.max_connections = 2;
    fixture_start(f);
    int one = client_open(f), two = client_open(f);
    client_send(one, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    client_send(two, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(client_read(one, false), 200, NULL, NULL);
    expect(client_read(two, false), 200, NULL, NULL);
    expect(ask(f, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"), 503,
           "Retry-After: ", "connections");
    /* A connection that comes before the server has taken the one above apart waits for it. */
    expect(ask(f, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200, "HTTP/1.1", NULL);
    close(one);
    close(two);
}

static void idle_connections_make_room(void **state)
{
    enum { MOST = 6, IDLE = 40 };
    static const char HEALTH[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    fixture *f = *state;
    f->options.max_connections = 4; // and a surplus of 2
    f->options.keepalive_timeout_us = 3600000000;
    fixture_start(f);
    atomic_store(&f->model.hold, true);
    int busy = client_open(f), idle[IDLE];
    send_post(busy, "/v1/completions", "", "{\"prompt\": \"x\", \"max_tokens\": 1}");
    wait_running(f, 1);
    for (int i = 0; i < IDLE; i++) {
        idle[i] = client_open(f);
        if (i % 2) client_send(idle[i], "GET /health HTTP/1.1\r\nX: "); // and no more
    }
    for (int i = 0; i < 20; i++) expect(ask(f, HEALTH), 200, NULL, "serving");
    /* The oldest ones were closed, and a connection with a request was not. */
    for (int i = 0; i < IDLE - MOST; i++) assert_true(client_at_end(idle[i]));
    atomic_store(&f->model.hold, false);
    expect(client_read(busy, false), 200, NULL, NULL);
    reply page = ask(f, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    const char *at = strstr(page.body, "\noctavo:http_idle_connections_closed_total{");
    assert_non_null(at);
    assert_true(strtoul(strchr(at, '}') + 1, NULL, 10) >= IDLE - MOST);
    reply_free(&page);
    for (int i = 0; i < IDLE; i++) close(idle[i]);
    close(busy);
}

static void a_burst_is_answered(void **state)
{
    enum { BURST = 100 };
    fixture *f = *state;
    f->options.max_connections = 4; // and a surplus of 2
    fixture_start(f);
    int fds[BURST];
    for (int i = 0; i < BURST; i++) {
        fds[i] = client_open(f);
        client_send(fds[i], "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    for (int i = 0; i < BURST; i++) {
        expect(client_read(fds[i], false), 200, NULL, "serving");
        close(fds[i]);
    }
}

static void silent_surplus_connections_are_closed_soon(void **state)
{
    enum { MOST = 4 };
    fixture *f = *state;
    f->options.max_connections = MOST; // and a surplus of 2
    f->options.keepalive_timeout_us = 3600000000;
    fixture_start(f);
    int kept[MOST], surplus;
    for (int i = 0; i < MOST; i++) {
        kept[i] = client_open(f);
        client_send(kept[i], "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        expect(client_read(kept[i], false), 200, NULL, NULL);
    }
    surplus = client_open(f);
    assert_true(client_at_end(surplus));
    for (int i = 0; i < MOST; i++) {
        client_send(kept[i], "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        expect(client_read(kept[i], false), 200, NULL, NULL);
        close(kept[i]);
    }
    close(surplus);
}

static void a_taken_address_is_an_error(void **state)
{
    fixture *f = *state;
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%u", http_server_port(f->server));
    service other = f->service;
    http_server *second = NULL;
    error err = {{0}};
    other.o.http_address = address;
    assert_false(status_ok(http_server_create(&other, &second, &err)));
    if (!strstr(err.text, "in use") || !strstr(err.text, address)) fail_msg("%s", err.text);
    other.o.http_address = "nonsense";
    assert_false(status_ok(http_server_create(&other, &second, &err)));
    assert_non_null(strstr(err.text, "nonsense"));
    other.o.http_address = "[::1]:0";
    if (status_ok(http_server_create(&other, &second, &err))) http_server_destroy(second);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void keys_are_asked_for(void **state)
{
    static const char *const keys[] = {"secret"};
    fixture *f = *state;
    f->options.api_keys = keys;
    f->options.n_api_keys = 1;
    fixture_start(f);
    expect(ask(f, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"), 401,
           "WWW-Authenticate: Bearer\r\n", "\"code\":401");
    expect(ask(f, "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n\r\n"), 401,
           NULL, NULL);
    expect(post(f, "/v1/completions", "{\"prompt\": \"x\"}"), 401, NULL, NULL);
    expect(ask(f, "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n"),
           200, NULL, NULL);
    expect(ask(f, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 200, NULL, NULL);
    expect(ask(f, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), 200, NULL, NULL);
}

/* ---- overload, drain, end -------------------------------------------------------------------- */

static void overload_answers_at_once(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    int one = client_open(f), two = client_open(f);
    atomic_store(&f->model.hold, true);
    send_post(one, "/v1/completions", "", LONG);
    send_post(two, "/v1/completions", "", LONG);
    wait_running(f, 2);
    expect(post(f, "/v1/completions", LONG), 503, "Retry-After: ", "\"code\":503");
    /* Refused before any work is done for the request. */
    expect(post(f, "/v1/completions", "{"), 503, "Retry-After: ", "running already");
    atomic_store(&f->model.hold, false);
    close(one);
    close(two);
    wait_in_flight(f, 0);
}

static void draining_finishes_what_runs(void **state)
{
    fixture *f = *state;
    int fd = client_open(f), kept = client_open(f);
    client_send(kept, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(client_read(kept, false), 200, NULL, "serving");
    atomic_store(&f->model.hold, true);
    send_post(fd, "/v1/completions", "",
              "{\"prompt\": \"x\", \"max_tokens\": 50, \"ignore_eos\": true, \"stream\": true}");
    wait_running(f, 1);
    service_drain(&f->service);
    http_server_drain(f->server);
    send_post(kept, "/v1/completions", "", LONG);
    expect(client_read(kept, false), 503, "Connection: close", "shutting down");
    assert_true(client_at_end(kept));
    expect(ask(f, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 503, "Connection: close", "draining");
    atomic_store(&f->model.hold, false);
    reply r = client_read(fd, false);
    assert_int_equal(count_of(r.body, "\"text\":\"a\""), 50);
    assert_int_equal(count_of(r.body, "[DONE]"), 1);
    reply_free(&r);
    assert_true(client_at_end(fd));
    wait_in_flight(f, 0);
    close(fd);
    close(kept);
}

static void stopping_answers_clients(void **state)
{
    fixture *f = *state;
    int stream = client_open(f), whole = client_open(f), idle = client_open(f);
    atomic_store(&f->model.nap_us, 10000);
    send_post(stream, "/v1/completions", "", LONG);
    send_post(whole, "/v1/completions", "",
              "{\"prompt\": \"x\", \"max_tokens\": 1900, \"ignore_eos\": true}");
    wait_running(f, 2);
    fixture_stop(f);
    reply r = client_read(stream, false);
    assert_non_null(strstr(r.body, "\"finish_reason\":\"abort\""));
    assert_int_equal(count_of(r.body, "[DONE]"), 1);
    reply_free(&r);
    expect(client_read(whole, false), 200, NULL, "\"finish_reason\":\"abort\"");
    assert_true(client_at_end(idle));
    close(stream);
    close(whole);
    close(idle);
}

/* The engine hangs: clients are cut off, and the server still ends. */
static void stopping_waits_for_a_limited_time(void **state)
{
    fixture *f = *state;
    int fd = client_open(f);
    atomic_store(&f->model.hold, true);
    send_post(fd, "/v1/completions", "", LONG);
    wait_running(f, 1);
    fixture_stop(f);
    while (!client_at_end(fd)) continue;
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(routes_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_turns_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(pages_of_allowed_origins_may_call, setup_unstarted,
                                        teardown),
        cmocka_unit_test_setup_teardown(pages_cannot_generate_unasked, setup, teardown),
        cmocka_unit_test_setup_teardown(without_origins_there_are_no_headers_for_pages, setup,
                                        teardown),
        cmocka_unit_test(origins_are_checked),
        cmocka_unit_test_setup_teardown(whole_answers, setup, teardown),
        cmocka_unit_test_setup_teardown(streams_have_a_frame_for_each_token, setup, teardown),
        cmocka_unit_test_setup_teardown(http_1_0_gets_its_stream_until_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(errors_before_the_first_token_are_plain, setup, teardown),
        cmocka_unit_test_setup_teardown(request_ids_are_echoed, setup, teardown),
        cmocka_unit_test_setup_teardown(connections_live_on, setup, teardown),
        cmocka_unit_test_setup_teardown(surplus_connections_are_answered, setup_unstarted,
                                        teardown),
        cmocka_unit_test_setup_teardown(idle_connections_make_room, setup_unstarted, teardown),
        cmocka_unit_test_setup_teardown(a_burst_is_answered, setup_unstarted, teardown),
        cmocka_unit_test_setup_teardown(silent_surplus_connections_are_closed_soon, setup_unstarted,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_taken_address_is_an_error, setup, teardown),
        cmocka_unit_test_setup_teardown(keys_are_asked_for, setup_unstarted, teardown),
        cmocka_unit_test_setup_teardown(overload_answers_at_once, setup_unstarted, teardown),
        cmocka_unit_test_setup_teardown(draining_finishes_what_runs, setup, teardown),
        cmocka_unit_test_setup_teardown(stopping_answers_clients, setup, teardown),
        cmocka_unit_test_setup_teardown(stopping_waits_for_a_limited_time, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
