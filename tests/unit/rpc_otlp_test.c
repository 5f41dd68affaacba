/* The tracer against a receiver: what it sends, when it sends again, what it drops, how it ends. */
#include "tests/unit/rpc_otlp_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a tracer -------------------------------------------------------------------------------- */

static const char *const *environment;

static const char *variable(const char *name)
{
    for (const char *const *v = environment; v && *v; v += 2)
        if (strcmp(v[0], name) == 0) return v[1];
    return NULL;
}

typedef struct troubles {
    pthread_mutex_t lock;
    int n;
    char last[512];
} troubles;

static void on_trouble(void *ctx, const char *text)
{
    troubles *t = ctx;
    pthread_mutex_lock(&t->lock);
    t->n++;
    snprintf(t->last, sizeof t->last, "%s", text);
    pthread_mutex_unlock(&t->lock);
}

#define VARIABLES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define AT_ONCE        "OTEL_BSP_SCHEDULE_DELAY", "0"

static tracer *open_tracer(const char *url, const char *const *variables, troubles *t)
{
    const tracer_options o = {.endpoint = url,
                              .version = "0.9",
                              .variable = variable,
                              .on_trouble = t ? on_trouble : NULL,
                              .on_trouble_ctx = t};
    tracer *out = NULL;
    error err;
    environment = variables;
    if (!status_ok(tracer_create(&o, &out, &err))) fail_msg("%s", err.text);
    return out;
}

static void put_span(tracer *t)
{
    trace_span *s = trace_begin(t, NULL);
    assert_non_null(s);
    trace_end(s, "work", 1000);
}

/* Waits until every one of n spans has met its fate. */
static tracer_counts await_counts(tracer *t, uint64_t n)
{
    for (int64_t until_us = clock_now_us() + WAIT_S * INT64_C(1000000);;) {
        tracer_counts c = tracer_count(t);
        if (c.sent + c.queue_full + c.failed + c.rejected >= n) return c;
        if (clock_now_us() > until_us) fail_msg("spans are left");
        usleep(1000);
    }
}

static void check_counts(tracer_counts c, uint64_t sent, uint64_t rejected, uint64_t failed,
                         uint64_t queue_full)
{
    assert_int_equal(c.sent, sent);
    assert_int_equal(c.rejected, rejected);
    assert_int_equal(c.failed, failed);
    assert_int_equal(c.queue_full, queue_full);
}

/* ---- tests: what is sent --------------------------------------------------------------------- */

static bool is_text(ProtobufCBinaryData d, const char *text)
{
    return d.len == strlen(text) && memcmp(d.data, text, d.len) == 0;
}

static const Otlp__AnyValue *find(Otlp__KeyValue *const *pairs, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (is_text(pairs[i]->key, key)) return pairs[i]->value;
    fail_msg("no attribute %s", key);
    return NULL;
}

static const Otlp__AnyValue *attribute(const Otlp__Span *s, const char *key)
{
    return find(s->attributes, s->n_attributes, key);
}

static trace_context parent_of(const char *state)
{
    trace_headers h = {0};
    trace_context c;
    static const char parent[] = "00-0102030405060708090a0b0c0d0e0f10-1112131415161718-01";
    trace_headers_add(&h, "traceparent", 11, parent, sizeof parent - 1);
    trace_headers_add(&h, "tracestate", 10, state, strlen(state));
    assert_true(trace_context_read(&h, &c));
    return c;
}

static void put_full_span(tracer *t)
{
    static const char *const texts[] = {"stop", "length"};
    trace_context parent = parent_of("a=1");
    char id[TRACE_ID_TEXT_BYTES];
    trace_span *s = trace_begin(t, &parent);
    assert_non_null(s);
    trace_id_text(s, id);
    assert_string_equal(id, "0102030405060708090a0b0c0d0e0f10");
    trace_put_text(s, "text", "\xc3\xa9", 2);
    trace_put_text(s, "bytes", "\xff\xfe", 2);
    trace_put_int(s, "int", -7);
    trace_put_double(s, "double", 0.5);
    trace_put_texts(s, "texts", texts, 2);
    trace_fail(s, "unavailable");
    trace_end(s, "llm_request", 2500000);
}

static void check_full_span(const Otlp__Span *s)
{
    assert_true(
        is_text(s->trace_id, "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10"));
    assert_true(is_text(s->parent_span_id, "\x11\x12\x13\x14\x15\x16\x17\x18"));
    assert_int_equal(s->span_id.len, 8);
    assert_true(is_text(s->trace_state, "a=1"));
    assert_true(is_text(s->name, "llm_request"));
    assert_int_equal(s->kind, OTLP__SPAN__SPAN_KIND__SPAN_KIND_SERVER);
    assert_int_equal(s->flags, 0x301);
    assert_true(s->end_time_unix_nano - s->start_time_unix_nano == 2500000000u);
    assert_true(s->start_time_unix_nano > 1600000000u * UINT64_C(1000000000));
    assert_int_equal(s->status->code, OTLP__STATUS__STATUS_CODE__STATUS_CODE_ERROR);
    assert_true(is_text(attribute(s, "text")->string_value, "\xc3\xa9"));
    assert_true(is_text(attribute(s, "bytes")->string_value, "(not UTF-8)"));
    assert_int_equal(attribute(s, "int")->int_value, -7);
    assert_true(attribute(s, "double")->double_value == 0.5);
    const Otlp__ArrayValue *list = attribute(s, "texts")->array_value;
    assert_int_equal(list->n_values, 2);
    assert_true(is_text(list->values[1]->string_value, "length"));
    assert_true(is_text(attribute(s, "error.type")->string_value, "unavailable"));
}

static void spans_arrive_with_all_they_have(void **state)
{
    (void)state;
    static const char *const answers[] = {OK};
    receiver *r = open_receiver(answers, 1);
    tracer *t = open_tracer(r->url,
                            VARIABLES(AT_ONCE, "OTEL_SERVICE_NAME", "llm",
                                      "OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b,x-empty="),
                            NULL);
    put_full_span(t);
    check_counts(await_counts(t, 1), 1, 0, 0, 0);
    put_span(t);
    check_counts(await_counts(t, 2), 2, 0, 0, 0);
    tracer_destroy(t);
    const Otlp__ScopeSpans *spans = spans_of(r, 0);
    const Otlp__Resource *resource = r->bodies[0]->resource_spans[0]->resource;
    assert_int_equal(spans->n_spans, 1);
    check_full_span(spans->spans[0]);
    assert_true(is_text(spans->scope->name, "octavo"));
    assert_true(is_text(spans->scope->version, "0.9"));
    assert_true(is_text(
        find(resource->attributes, resource->n_attributes, "service.name")->string_value, "llm"));
    assert_memory_equal(r->heads[0], "POST /v1/traces HTTP/1.1\r\n", 26);
    assert_non_null(strstr(r->heads[0], "\r\nContent-Type: application/x-protobuf\r\n"));
    assert_non_null(strstr(r->heads[0], "\r\nx-tenant: a b\r\n"));
    assert_non_null(strstr(r->heads[0], "\r\nx-empty:\r\n"));
    /* A span without a parent begins a trace of its own. */
    const Otlp__Span *root = spans_of(r, 1)->spans[0];
    assert_int_equal(root->trace_id.len, 16);
    assert_int_equal(root->parent_span_id.len, 0);
    assert_int_equal(root->flags, 0x101);
    assert_int_equal(root->status->code, OTLP__STATUS__STATUS_CODE__STATUS_CODE_UNSET);
    assert_memory_not_equal(root->span_id.data, spans->spans[0]->span_id.data, 8);
    assert_int_equal(r->n_connections, 1);
    close_receiver(r);
}

static void bodies_can_be_compressed(void **state)
{
    (void)state;
    static const char *const answers[] = {OK};
    receiver *r = open_receiver(answers, 1);
    tracer *t =
        open_tracer(r->url, VARIABLES(AT_ONCE, "OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"), NULL);
    put_full_span(t);
    check_counts(await_counts(t, 1), 1, 0, 0, 0);
    tracer_destroy(t);
    check_full_span(spans_of(r, 0)->spans[0]); // decompressed by the receiver
    assert_non_null(strstr(r->heads[0], "\r\nContent-Encoding: gzip\r\n"));
    close_receiver(r);
}

static void spans_that_are_not_sampled_are_none(void **state)
{
    (void)state;
    trace_context parent = parent_of("");
    tracer *t = open_tracer("http://127.0.0.1:9/", NULL, NULL);
    assert_null(trace_begin(NULL, &parent));
    parent.sampled = false;
    assert_null(trace_begin(t, &parent));
    parent.sampled = true;
    trace_span *s = trace_begin(t, &parent);
    assert_non_null(s);
    trace_put_int(s, "a", 1);
    trace_drop(s);
    trace_drop(NULL);
    tracer_destroy(t);
}

static void too_many_attributes_drop_the_span(void **state)
{
    (void)state;
    tracer *t = open_tracer("http://127.0.0.1:9/", NULL, NULL);
    trace_span *s = trace_begin(t, NULL);
    for (int i = 0; i <= TRACE_ATTRIBUTES_MAX; i++) trace_put_int(s, "a", i);
    trace_end(s, "work", 1);
    check_counts(tracer_count(t), 0, 0, 0, 1);
    tracer_destroy(t);
}

static void a_full_batch_does_not_wait(void **state)
{
    (void)state;
    static const char *const answers[] = {OK};
    receiver *r = open_receiver(answers, 1);
    tracer *t = open_tracer(
        r->url,
        VARIABLES("OTEL_BSP_SCHEDULE_DELAY", "86400000", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "3"),
        NULL);
    for (int i = 0; i < 7; i++) put_span(t);
    check_counts(await_counts(t, 6), 6, 0, 0, 0);
    tracer_destroy(t);
    assert_int_equal(r->n, 2);
    for (size_t i = 0; i < 2; i++) assert_int_equal(spans_of(r, i)->n_spans, 3);
    close_receiver(r);
}

/* ---- tests: receivers that fail -------------------------------------------------------------- */

/* Puts a span for each expected fate; all of the spans go one by one. */
static void check_answers(const char *const *answers, size_t n, size_t requests, uint64_t sent,
                          uint64_t rejected, uint64_t failed)
{
    receiver *r = open_receiver(answers, n);
    tracer *t = open_tracer(
        r->url, VARIABLES(AT_ONCE, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "86400000"), NULL);
    for (uint64_t i = 1; i <= sent + rejected + failed; i++) {
        put_span(t);
        await_counts(t, i);
    }
    check_counts(tracer_count(t), sent, rejected, failed, 0);
    tracer_destroy(t);
    assert_int_equal(r->n, requests);
    /* What is sent again is the same. */
    for (size_t i = 1; i < requests && requests > sent + rejected + failed; i++)
        assert_memory_equal(spans_of(r, i)->spans[0]->span_id.data,
                            spans_of(r, 0)->spans[0]->span_id.data, 8);
    close_receiver(r);
}

static void passing_errors_are_tried_again(void **state)
{
    (void)state;
    static const char *const codes[] = {
        BUSY,
        "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nabc",
        "HTTP/1.1 504 Gateway Timeout\r\nConnection: close\r\n\r\n",
        HANG_UP,
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        check_answers((const char *const[]){codes[i], OK}, 2, 2, 1, 0, 0);
}

static void lasting_errors_are_not(void **state)
{
    (void)state;
    static const char *const codes[] = {
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 413 Content Too Large\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: /v2\r\nContent-Length: 0\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        check_answers((const char *const[]){codes[i], OK}, 2, 2, 1, 0, 1);
}

static void answers_tell_of_rejected_spans(void **state)
{
    (void)state;
    /* partial_success {rejected_spans: 1, error_message: "no"} */
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n\x0a\x06\x08\x01\x12\x02no",
        /* {rejected_spans: 99}: more than there were */
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\x0a\x02\x08\x63",
        /* {error_message: "hm"}: a warning */
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n\x0a\x04\x12\x02hm",
        /* no message */
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{\"a\"",
        "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
    };
    check_answers(answers, 5, 5, 3, 2, 0);
}

static void a_receiver_may_send_too_much(void **state)
{
    (void)state;
    enum { BODY = 3 << 20 };
    char *answer = malloc(BODY + 128);
    int n = snprintf(answer, 128, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", BODY);
    memset(answer + n, 'x', BODY);
    answer[n + BODY] = '\0';
    check_answers((const char *const[]){answer, OK}, 2, 2, 2, 0, 0);
    free(answer);
}

static void a_silent_receiver_is_left(void **state)
{
    (void)state;
    static const char *const answers[] = {HOLD, OK};
    troubles seen = {.lock = PTHREAD_MUTEX_INITIALIZER};
    receiver *r = open_receiver(answers, 2);
    tracer *t = open_tracer(r->url, VARIABLES(AT_ONCE, "OTEL_EXPORTER_OTLP_TIMEOUT", "200"), &seen);
    put_span(t);
    check_counts(await_counts(t, 1), 1, 0, 0, 0);
    tracer_destroy(t);
    assert_int_equal(r->n, 2);
    assert_int_equal(seen.n, 1);
    assert_non_null(strstr(seen.last, "1 spans wait: no answer in time"));
    close_receiver(r);
}

static void a_batch_is_given_up_in_the_end(void **state)
{
    (void)state;
    static const char *const answers[] = {
        "HTTP/1.1 503 x\r\nRetry-After: 4\r\nContent-Length: 0\r\n\r\n", OK};
    troubles seen = {.lock = PTHREAD_MUTEX_INITIALIZER};
    receiver *r = open_receiver(answers, 2);
    /* Enough for a pause of the tracer's own, and less than what the receiver asks for. */
    tracer *t = open_tracer(r->url, VARIABLES(AT_ONCE, "OTEL_BSP_EXPORT_TIMEOUT", "3000"), &seen);
    put_span(t);
    check_counts(await_counts(t, 1), 0, 0, 1, 0);
    /* The next batch comes only when the receiver wants it. */
    put_span(t);
    check_counts(await_counts(t, 2), 1, 0, 1, 0);
    tracer_destroy(t);
    assert_int_equal(r->n, 2);
    assert_memory_not_equal(spans_of(r, 0)->spans[0]->span_id.data,
                            spans_of(r, 1)->spans[0]->span_id.data, 8);
    assert_int_equal(seen.n, 1); // at most one line in half a minute
    assert_non_null(strstr(seen.last, "127.0.0.1"));
    assert_non_null(strstr(seen.last, "1 spans were dropped: HTTP 503"));
    close_receiver(r);
}

static void nobody_may_listen(void **state)
{
    (void)state;
    static const char *const answers[] = {OK};
    char url[64];
    troubles seen = {.lock = PTHREAD_MUTEX_INITIALIZER};
    receiver *r = open_receiver(answers, 1);
    snprintf(url, sizeof url, "%s", r->url);
    close_receiver(r);
    tracer *t = open_tracer(url, VARIABLES(AT_ONCE, "OTEL_BSP_EXPORT_TIMEOUT", "1"), &seen);
    put_span(t);
    check_counts(await_counts(t, 1), 0, 0, 1, 0);
    tracer_destroy(t);
    assert_int_equal(seen.n, 1);
    assert_non_null(strstr(seen.last, "1 spans were dropped: "));
}

static void a_full_queue_drops(void **state)
{
    (void)state;
    static const char *const answers[] = {HOLD};
    receiver *r = open_receiver(answers, 1);
    tracer *t = open_tracer(r->url,
                            VARIABLES(AT_ONCE, "OTEL_BSP_MAX_QUEUE_SIZE", "4",
                                      "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1",
                                      "OTEL_EXPORTER_OTLP_TIMEOUT", "86400000"),
                            NULL);
    put_span(t);
    await_requests(r, 1); // one is on its way, and stays there
    for (int i = 0; i < 10; i++) put_span(t);
    check_counts(tracer_count(t), 0, 0, 0, 6);
    tracer_destroy(t);
    close_receiver(r);
}

/* ---- tests: the end -------------------------------------------------------------------------- */

static void the_end_sends_what_waits(void **state)
{
    (void)state;
    static const char *const answers[] = {OK};
    receiver *r = open_receiver(answers, 1);
    tracer *t = open_tracer(
        r->url,
        VARIABLES("OTEL_BSP_SCHEDULE_DELAY", "86400000", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4"),
        NULL);
    for (int i = 0; i < 10; i++) put_span(t);
    tracer_flush_until(t, clock_now_us() + WAIT_S * INT64_C(1000000));
    tracer_destroy(t);
    await_requests(r, 3);
    assert_int_equal(r->n, 3);
    assert_int_equal(spans_of(r, 2)->n_spans, 2);
    close_receiver(r);
}

static void the_end_without_a_flush_sends_nothing(void **state)
{
    (void)state;
    static const char *const answers[] = {HOLD};
    receiver *r = open_receiver(answers, 1);
    tracer *t =
        open_tracer(r->url, VARIABLES(AT_ONCE, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1"), NULL);
    put_span(t);
    await_requests(r, 1);
    for (int i = 0; i < 10; i++) put_span(t);
    tracer_destroy(t); // ends the request on its way
    assert_int_equal(r->n, 1);
    close_receiver(r);
}

static void the_end_does_not_wait_for_a_silent_receiver(void **state)
{
    (void)state;
    static const char *const answers[] = {HOLD};
    receiver *r = open_receiver(answers, 1);
    tracer *t = open_tracer(r->url,
                            VARIABLES(AT_ONCE, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1",
                                      "OTEL_EXPORTER_OTLP_TIMEOUT", "86400000",
                                      "OTEL_BSP_EXPORT_TIMEOUT", "86400000"),
                            NULL);
    for (int i = 0; i < 10; i++) put_span(t);
    await_requests(r, 1);
    tracer_flush_until(t, 1); // has passed: a second is left
    tracer_destroy(t);
    assert_true(r->n <= 2); // and not one request for each of the spans
    close_receiver(r);
}

static void the_end_tries_a_waiting_batch_once_more(void **state)
{
    (void)state;
    static const char *const answers[] = {
        "HTTP/1.1 503 x\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n", OK};
    receiver *r = open_receiver(answers, 2);
    tracer *t =
        open_tracer(r->url, VARIABLES(AT_ONCE, "OTEL_BSP_EXPORT_TIMEOUT", "86400000"), NULL);
    put_span(t);
    await_requests(r, 1);
    tracer_flush_until(t, clock_now_us() + WAIT_S * INT64_C(1000000));
    tracer_destroy(t);
    assert_int_equal(r->n, 2);
    close_receiver(r);
}

/* ---- tests: threads -------------------------------------------------------------------------- */

enum { PUTTERS = 4, SPANS = 500 };

static void *put_many(void *ctx)
{
    for (int i = 0; i < SPANS; i++) put_full_span(ctx);
    return NULL;
}

static void many_threads_put_spans(void **state)
{
    (void)state;
    static const char *const answers[] = {OK};
    pthread_t threads[PUTTERS];
    receiver *r = open_receiver(answers, 1);
    tracer *t = open_tracer(r->url, VARIABLES(AT_ONCE, "OTEL_BSP_MAX_QUEUE_SIZE", "100"), NULL);
    for (int i = 0; i < PUTTERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, put_many, t), 0);
    for (int i = 0; i < PUTTERS; i++) pthread_join(threads[i], NULL);
    tracer_counts c = await_counts(t, PUTTERS * SPANS);
    assert_int_equal(c.sent + c.queue_full, PUTTERS * SPANS);
    assert_true(c.sent > 0);
    tracer_destroy(t);
    close_receiver(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_arrive_with_all_they_have),
        cmocka_unit_test(bodies_can_be_compressed),
        cmocka_unit_test(spans_that_are_not_sampled_are_none),
        cmocka_unit_test(too_many_attributes_drop_the_span),
        cmocka_unit_test(a_full_batch_does_not_wait),
        cmocka_unit_test(passing_errors_are_tried_again),
        cmocka_unit_test(lasting_errors_are_not),
        cmocka_unit_test(answers_tell_of_rejected_spans),
        cmocka_unit_test(a_receiver_may_send_too_much),
        cmocka_unit_test(a_silent_receiver_is_left),
        cmocka_unit_test(a_batch_is_given_up_in_the_end),
        cmocka_unit_test(nobody_may_listen),
        cmocka_unit_test(a_full_queue_drops),
        cmocka_unit_test(the_end_sends_what_waits),
        cmocka_unit_test(the_end_without_a_flush_sends_nothing),
        cmocka_unit_test(the_end_does_not_wait_for_a_silent_receiver),
        cmocka_unit_test(the_end_tries_a_waiting_batch_once_more),
        cmocka_unit_test(many_threads_put_spans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
