/* The page for people and its data: what is served to whom. */
#include "tests/unit/rpc_http_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const client_keys[] = {"alice", "bob"};
static const char *const admin_keys[] = {"root"};

static int setup(void **state)
{
    *state = fixture_make(64);
    return 0;
}

static int setup_keys(void **state)
{
    fixture *f = fixture_make(64);
    f->options.api_keys = client_keys;
    f->options.n_api_keys = 2;
    f->options.admin_keys = admin_keys;
    f->options.n_admin_keys = 1;
    fixture_start(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_destroy(*state);
    return 0;
}

static reply get(const fixture *f, const char *path, const char *key)
{
    char request[512];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: x\r\n%s%s%s\r\n", path,
             key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "");
    return ask(f, request);
}

static void expect(reply r, unsigned code, const char *in_head, const char *in_body)
{
    if (r.status != code || r.cut || (in_head && !strstr(r.head, in_head)) ||
        (in_body && !strstr(r.body, in_body)))
        fail_msg("expected %u, '%s', '%s'; got:\n%s%s", code, in_head ? in_head : "",
                 in_body ? in_body : "", r.head, r.body);
    reply_free(&r);
}

/* A request of a key that is running, and its connection. */
static int start(fixture *f, const char *key, const char *id)
{
    char headers[256];
    uint32_t n = fixture_in_flight(f);
    int fd = client_open(f);
    snprintf(headers, sizeof headers, "X-Request-Id: %s\r\n%s%s%s", id,
             key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "");
    send_post(fd, "/v1/completions", headers,
              "{\"prompt\": \"x\", \"max_tokens\": 1900, \"ignore_eos\": true, \"stream\": true}");
    wait_running(f, n + 1);
    return fd;
}

/* ---- the files ------------------------------------------------------------------------------- */

static void the_page_is_open_and_bound_to_its_files(void **state)
{
    fixture *f = *state;
    static const char policy[] = "Content-Security-Policy: default-src 'none'; script-src 'self'; ";
    expect(get(f, "/", NULL), 200, "Content-Type: text/html; charset=utf-8\r\n", "</html>");
    expect(get(f, "/octavo/page.css", NULL), 200, "Content-Type: text/css", "color-scheme: dark");
    expect(get(f, "/octavo/page.js", NULL), 200, "Content-Type: text/javascript", "use strict");
    static const char *const paths[] = {"/", "/octavo/page.css", "/octavo/page.js"};
    for (int i = 0; i < 3; i++) {
        expect(get(f, paths[i], NULL), 200, policy, NULL);
        expect(get(f, paths[i], NULL), 200, "X-Content-Type-Options: nosniff\r\n", NULL);
        reply r = get(f, paths[i], NULL);
        assert_null(strstr(r.body, "://")); /* nothing of another server */
        assert_null(strstr(r.body, "innerHTML"));
        assert_null(strstr(r.body, " onclick="));
        reply_free(&r);
    }
    /* Nothing below it is the page. */
    expect(get(f, "/octavo", NULL), 404, "application/json", "no such path");
    expect(get(f, "/octavo/page.html", NULL), 404, NULL, "no such path");
    expect(ask(f, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"), 405,
           "Allow: GET, HEAD\r\n", NULL);
    expect(ask(f, "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"), 200, policy, "");
    reply other = get(f, "/health", NULL);
    assert_null(strstr(other.head, "Content-Security-Policy"));
    reply_free(&other);
}

static void without_ui_there_is_none(void **state)
{
    fixture *f = *state;
    static const char *const paths[] = {"/", "/octavo/page.css", "/octavo/page.js", "/octavo/pages",
                                        "/octavo/pages/x"};
    f->options.no_ui = true;
    fixture_start(f);
    for (int i = 0; i < 5; i++) expect(get(f, paths[i], NULL), 404, NULL, "no such path");
    expect(get(f, "/health", NULL), 200, NULL, "serving");
}

/* ---- the data -------------------------------------------------------------------------------- */

static void a_key_sees_its_own_requests(void **state)
{
    fixture *f = *state;
    atomic_store(&f->model.hold, true);
    int fds[] = {start(f, "alice", "work-of-alice"), start(f, "bob", "work-of-bob")};
    static const char *const paths[] = {"/octavo/pages", "/octavo/pages/work-of-alice"};
    for (int i = 0; i < 2; i++) {
        expect(get(f, paths[i], NULL), 401, "WWW-Authenticate: Bearer", "API key");
        expect(get(f, paths[i], "nobody"), 401, NULL, "API key");
    }
    static const char *const who[] = {"alice", "bob", "root"};
    for (int i = 0; i < 3; i++) {
        reply list = get(f, "/octavo/pages", who[i]);
        assert_int_equal(list.status, 200);
        assert_int_equal(strstr(list.body, "work-of-alice") != NULL, i != 1);
        assert_int_equal(strstr(list.body, "work-of-bob") != NULL, i != 0);
        reply_free(&list);
        expect(get(f, "/octavo/pages/work-of-alice", who[i]), i == 1 ? 404 : 200, NULL,
               i == 1 ? "no request with this id is running" : "\"id\":\"work-of-alice\"");
    }
    expect(get(f, "/octavo/pages/nothing", "root"), 404, NULL, "no request with this id");
    atomic_store(&f->model.hold, false);
    for (int i = 0; i < 2; i++) close(fds[i]);
}

/* Asks until the answer has the word. */
static void await_answer(const fixture *f, const char *path, const char *word)
{
    for (bool found = false; !found; nap_ms(1)) {
        reply r = get(f, path, NULL);
        assert_int_equal(r.status, 200);
        found = strstr(r.body, word) != NULL;
        reply_free(&r);
    }
}

static void a_map_comes_and_goes_with_its_request(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    atomic_store(&f->model.nap_us, 5000); /* it runs for 10 s, as maps may be drawn seconds apart */
    int fd = start(f, NULL, "job");
    await_answer(f, "/octavo/pages/job", "\"state\":\"running\"");
    await_answer(f, "/octavo/pages/job", "\"rows\":[[2,\"");
    await_answer(f, "/octavo/pages", "\"running\":1,");
    close(fd); /* its client goes away, so it is aborted */
    wait_aborted(f, 1);
    wait_in_flight(f, 0);
    expect(get(f, "/octavo/pages/job", NULL), 404, NULL, "no request with this id is running");
    await_answer(f, "/octavo/pages", "\"requests\":[],\"left_out\":0}");
}

/* A page that asks for requests which have ended leaves the log's lines to refusals. */
static void an_ended_request_is_no_refusal(void **state)
{
    fixture *f = *state;
    FILE *file = tmpfile();
    char text[8192] = "";
    assert_true(status_ok(rpc_log_create(fileno(file), false, &f->options.log)));
    fixture_start(f);
    for (int i = 0; i < 20; i++)
        expect(get(f, "/octavo/pages/ended", NULL), 404, NULL, "no request with this id");
    expect(get(f, "/octavo", NULL), 404, NULL, "no such path");
    fixture_stop(f);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    assert_null(strstr(text, "/octavo/pages/"));
    assert_non_null(strstr(text, "\"event\":\"refusal\",\"surface\":\"http\",\"route\":\"other\""));
    rpc_log_destroy(f->options.log);
    f->options.log = NULL;
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_page_is_open_and_bound_to_its_files, setup_keys,
                                        teardown),
        cmocka_unit_test_setup_teardown(without_ui_there_is_none, setup, teardown),
        cmocka_unit_test_setup_teardown(a_key_sees_its_own_requests, setup_keys, teardown),
        cmocka_unit_test_setup_teardown(an_ended_request_is_no_refusal, setup, teardown),
        cmocka_unit_test_setup_teardown(a_map_comes_and_goes_with_its_request, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
