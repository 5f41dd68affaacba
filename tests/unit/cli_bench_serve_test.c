/* `octavo bench serve`: the decoder of HTTP answers and events, percentiles, arrivals, prompts. */
#include "cli/bench/bench_serve_http.h"
#include "cli/bench/bench_serve_stats.h"
#include "cli/bench/bench_serve_track.h"
#include "cli/bench/bench_serve_work.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- HTTP ------------------------------------------------------------------------------------ */

static void collect(void *ctx, const char *bytes, size_t n) { strbuf_append(ctx, bytes, n); }

/* Feeds `text` in pieces of `step` bytes; checks the body; returns the outcome. */
static http_outcome decode(http_response *r, const char *text, size_t step, const char *body,
                           size_t *total)
{
    strbuf got = {0};
    http_outcome outcome = HTTP_MORE;
    size_t n = strlen(text), at = 0;
    while (at < n && outcome == HTTP_MORE) {
        size_t used, piece = n - at < step ? n - at : step;
        outcome = http_response_feed(r, text + at, piece, &used, collect, &got);
        if (outcome == HTTP_MORE) assert_int_equal(used, piece);
        at += used;
    }
    if (total) *total = at;
    assert_string_equal(got.data ? got.data : "", body);
    strbuf_destroy(&got);
    return outcome;
}

static void test_bodies(void **state)
{
    (void)state;
    static const struct {
        const char *text, *body;
        unsigned status;
        bool keep_alive, events;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, true, false},
        {"HTTP/1.1 200 OK\nCONTENT-LENGTH:5 \n\nhello", "hello", 200, true, false},
        {"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nconnection: Close\r\ncontent-length: 0\r\n\r\n",
         "", 503, false, false},
        {"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx", "x", 200, false, false},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204\r\n\r\n", "", 204, true, false},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream; "
         "charset=utf-8\r\n\r\n5\r\nhello\r\n1;a=b\r\n \r\n00A\r\n0123456789\r\n0\r\nX: y\r\n\r\n",
         "hello 0123456789", 200, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t step = 1; step <= strlen(cases[i].text); step++) {
            http_response r = {0};
            size_t total;
            assert_int_equal(decode(&r, cases[i].text, step, cases[i].body, &total), HTTP_WHOLE);
            assert_int_equal(total, strlen(cases[i].text));
            assert_int_equal(r.status, cases[i].status);
            assert_int_equal(r.keep_alive, cases[i].keep_alive);
            assert_int_equal(r.is_event_stream, cases[i].events);
            http_response_destroy(&r);
        }
}

static void test_several_on_one_connection(void **state)
{
    (void)state;
    http_response r = {0};
    const char *both = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nabHTTP/1.1 404 No\r\n"
                       "content-length: 1\r\n\r\nc";
    size_t total;
    assert_int_equal(decode(&r, both, strlen(both), "ab", &total), HTTP_WHOLE);
    http_response_reset(&r);
    assert_int_equal(decode(&r, both + total, strlen(both), "c", NULL), HTTP_WHOLE);
    assert_int_equal(r.status, 404);
    http_response_destroy(&r);
}

static void test_closed(void **state)
{
    (void)state;
    http_response r = {0};
    assert_int_equal(decode(&r, "HTTP/1.1 200 OK\r\n\r\nall of it", 3, "all of it", NULL),
                     HTTP_MORE);
    assert_false(r.keep_alive);
    assert_int_equal(http_response_end(&r), HTTP_WHOLE);
    http_response_reset(&r);
    decode(&r, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", 50, "abc", NULL);
    assert_int_equal(http_response_end(&r), HTTP_BAD);
    http_response_reset(&r);
    decode(&r, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", 50, "abc",
           NULL);
    assert_int_equal(http_response_end(&r), HTTP_BAD);
    http_response_destroy(&r);
}

static void test_malformed(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/2 200\r\n",
        "HTTP/1.1 20x OK\r\n",
        "HTTP/1.1 2000 OK\r\n",
        "HTTP/1.1 099 OK\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n",
        "HTTP/1.1 200 OK\r\n: no name\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1x\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 9999999999999999999\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1 2\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1000000000000000\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (size_t step = 1; step < 60; step += 7) {
            http_response r = {0};
            assert_int_equal(decode(&r, bad[i], step, "", NULL), HTTP_BAD);
            assert_non_null(r.wrong);
            http_response_destroy(&r);
        }
    http_response r = {0};
    assert_int_equal(
        decode(&r, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n", 9,
               "ab", NULL),
        HTTP_BAD);
    http_response_destroy(&r);
}

static void test_endless_head(void **state)
{
    (void)state;
    http_response r = {0};
    size_t used;
    http_outcome got = http_response_feed(&r, "HTTP/1.1 200 OK\r\n", 17, &used, collect, NULL);
    for (int i = 0; i < 10000 && got == HTTP_MORE; i++)
        got = http_response_feed(&r, "a: bcdefghij\r\n", 14, &used, collect, NULL);
    assert_int_equal(got, HTTP_BAD);
    http_response_reset(&r);
    got = HTTP_MORE;
    for (int i = 0; i < 10000 && got == HTTP_MORE; i++)
        got = http_response_feed(&r, "HTTP/1.1 200 OK", 15, &used, collect, NULL);
    assert_int_equal(got, HTTP_BAD);
    http_response_destroy(&r);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void collect_event(void *ctx, const char *bytes, size_t n)
{
    strbuf_putc(ctx, '<');
    strbuf_append(ctx, bytes, n);
    strbuf_putc(ctx, '>');
}

static void test_events(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"data: {\"a\":1}\n\ndata: [DONE]\n\n", "<{\"a\":1}><[DONE]>"},
        {"data: a\r\n\r\ndata: b\r\n\r\n", "<a><b>"},
        {"data: a\r\rdata: b\r\r", "<a><b>"},
        {": ping\n\nevent: x\nid: 7\ndata:tight\n\n", "<tight>"},
        {"data: one\ndata: two\ndata\n\n", "<one\ntwo\n>"},
        {"data: one\r\ndata: two\r\n\r\n", "<one\ntwo>"},
        {"data:  two spaces\n\n\n\n", "< two spaces>"},
        {"database: no\ndata: yes\n\n", "<yes>"},
        {"data: never ended\n", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t step = 1; step <= strlen(cases[i][0]); step++) {
            sse_reader s = {0};
            strbuf got = {0};
            for (size_t at = 0, n = strlen(cases[i][0]); at < n; at += step)
                sse_feed(&s, cases[i][0] + at, n - at < step ? n - at : step, collect_event, &got);
            assert_false(s.failed);
            assert_string_equal(got.data ? got.data : "", cases[i][1]);
            strbuf_destroy(&got);
            sse_destroy(&s);
        }
}

static void test_event_too_long(void **state)
{
    (void)state;
    sse_reader s = {0};
    strbuf got = {0};
    char bytes[4096];
    memset(bytes, 'x', sizeof bytes);
    for (int i = 0; i < 5000 && !s.failed; i++)
        sse_feed(&s, bytes, sizeof bytes, collect_event, &got);
    assert_true(s.failed);
    sse_feed(&s, "\n\n", 2, collect_event, &got);
    assert_null(got.data);
    sse_destroy(&s);
}

/* ---- statistics ------------------------------------------------------------------------------ */

static void test_percentiles(void **state)
{
    (void)state;
    samples s = {0};
    assert_true(samples_percentile(&s, 50) == 0);
    assert_true(samples_mean(&s) == 0 && samples_std(&s) == 0);
    for (int i = 1000; i >= 0; i--) samples_add(&s, i); /* 0 .. 1000 */
    samples_sort(&s);
    assert_float_equal(samples_percentile(&s, 0), 0, 1e-9);
    assert_float_equal(samples_percentile(&s, 50), 500, 1e-9);
    assert_float_equal(samples_percentile(&s, 99), 990, 1e-9);
    assert_float_equal(samples_percentile(&s, 99.95), 999.5, 1e-9);
    assert_float_equal(samples_percentile(&s, 100), 1000, 1e-9);
    assert_float_equal(samples_mean(&s), 500, 1e-9);
    assert_float_equal(samples_std(&s), sqrt(1001.0 * 1001 / 12 - 1.0 / 12), 1e-6);
    samples_destroy(&s);
    samples_add(&s, 1);
    samples_add(&s, 2);
    assert_float_equal(samples_percentile(&s, 90), 1.9, 1e-9);
    samples_destroy(&s);
}

/* Mean 1 / rate, variance that over burstiness; the same for the same seed. */
static void test_arrivals(void **state)
{
    (void)state;
    enum { N = 200000 };
    static const double shapes[] = {0.25, 1, 4};
    for (int i = 0; i < 3; i++) {
        rng r = rng_seed(7), again = rng_seed(7), other = rng_seed(8);
        samples gaps = {0};
        uint32_t equal = 0, above = 0;
        for (int k = 0; k < N; k++) {
            double gap = arrival_gap(&r, 50, shapes[i]);
            assert_true(gap >= 0 && gap == arrival_gap(&again, 50, shapes[i]));
            equal += gap == arrival_gap(&other, 50, shapes[i]);
            above += gap > 1.0 / 50;
            samples_add(&gaps, gap);
        }
        assert_true(equal < N / 1000);
        assert_float_equal(samples_mean(&gaps) * 50, 1, 0.02);
        assert_float_equal(samples_std(&gaps) * 50, 1 / sqrt(shapes[i]), 0.03);
        /* An exponential exceeds its mean with probability 1/e: checks the shape beyond the
         * moments. */
        if (shapes[i] == 1) assert_float_equal((double)above / N, exp(-1), 0.01);
        samples_destroy(&gaps);
    }
}

/* ---- prompts --------------------------------------------------------------------------------- */

typedef struct prompt {
    json_t *json;
    work_item item;
} prompt;

static prompt prompt_of(const work *w, uint64_t i)
{
    strbuf text = {0};
    prompt p = {.item = work_prompt(w, i, &text)};
    assert_false(text.failed);
    p.json = json_loadb(text.data, text.size, JSON_DECODE_ANY, NULL);
    assert_non_null(p.json);
    strbuf_destroy(&text);
    return p;
}

static work *make(work_options o)
{
    work *w = NULL;
    error err = {{0}};
    if (o.vocab == 0) o.vocab = 1000;
    if (o.scale == 0) o.scale = 1;
    assert_true(status_ok(work_create(&o, &w, &err)));
    return w;
}

/* Length of the common prefix of two lists. */
static size_t shared(const json_t *a, const json_t *b)
{
    size_t n = 0;
    while (n < json_array_size(a) && n < json_array_size(b) &&
           json_equal(json_array_get(a, n), json_array_get(b, n)))
        n++;
    return n;
}

static void test_random_prompts(void **state)
{
    (void)state;
    work *w = make((work_options){
        .kind = "random", .input_len = 100, .output_len = 10, .range_ratio = 0.5, .distinct = 50});
    size_t least = 1000, most = 0;
    for (uint64_t i = 0; i < 50; i++) {
        prompt p = prompt_of(w, i), again = prompt_of(w, i + 50), next = prompt_of(w, i + 1);
        size_t n = json_array_size(p.json);
        assert_int_equal(n, p.item.input_len);
        assert_true(p.item.output_len >= 5 && p.item.output_len <= 15);
        assert_true(json_equal(p.json, again.json));
        assert_int_equal(p.item.output_len, again.item.output_len);
        assert_true(shared(p.json, next.json) < 4);
        for (size_t k = 0; k < n; k++) {
            json_int_t id = json_integer_value(json_array_get(p.json, k));
            assert_true(id >= 16 && id < 1000);
        }
        if (n < least) least = n;
        if (n > most) most = n;
        json_decref(p.json);
        json_decref(again.json);
        json_decref(next.json);
    }
    assert_true(least >= 50 && least < 70 && most <= 150 && most > 130);
    work_destroy(w);
}

static void test_prefix_prompts(void **state)
{
    (void)state;
    work *w =
        make((work_options){.kind = "prefix", .input_len = 20, .prefixes = 2, .prefix_len = 64});
    prompt first = prompt_of(w, 0);
    assert_int_equal(json_array_size(first.json), 84);
    int same = 0, different = 0;
    for (uint64_t i = 1; i < 40; i++) {
        prompt p = prompt_of(w, i);
        size_t n = shared(first.json, p.json);
        same += n >= 64 && n < 68;
        different += n < 4;
        json_decref(p.json);
    }
    assert_int_equal(same + different, 39);
    assert_true(same > 8 && different > 8);
    json_decref(first.json);
    work_destroy(w);
}

/* Writes a file for the length of a test. */
static void write_file(char path[64], const char *text)
{
    snprintf(path, 64, "%s/octavo-serve-XXXXXX", P_tmpdir);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void test_trace_prompts(void **state)
{
    (void)state;
    char path[64];
    write_file(
        path,
        "{\"timestamp\":0,\"input_length\":1100,\"output_length\":64,\"hash_ids\":[5,6,7]}\n"
        "\n"
        "{\"timestamp\":2500,\"input_length\":1536,\"output_length\":3,\"hash_ids\":[5,6,9]}\n");
    work *w = make((work_options){.kind = "trace", .file = path, .scale = 32});
    assert_int_equal(work_count(w), 2);
    assert_float_equal(work_arrival_s(w, 1), 2.5, 1e-9);
    prompt a = prompt_of(w, 0), b = prompt_of(w, 1);
    assert_int_equal(json_array_size(a.json), 34); /* 1100 / 32 */
    assert_int_equal(json_array_size(b.json), 48);
    assert_int_equal(a.item.output_len, 2);
    assert_int_equal(b.item.output_len, 1);
    assert_int_equal(shared(a.json, b.json), 32); /* two blocks of 16 */
    json_decref(a.json);
    json_decref(b.json);
    work_destroy(w);

    w = make((work_options){.kind = "trace",
                            .file = path,
                            .scale = 32,
                            .block_tokens = 8,
                            .whole_blocks = true,
                            .output_len = 7});
    a = prompt_of(w, 0);
    assert_int_equal(json_array_size(a.json), 25);
    assert_int_equal(a.item.output_len, 7);
    json_decref(a.json);
    work_destroy(w);
    unlink(path);
}

static void test_text_prompts(void **state)
{
    (void)state;
    char path[64];
    write_file(path, "first line\nsecond line\nthird\n");
    work *w = make((work_options){.kind = "text", .file = path, .input_len = 2});
    for (uint64_t i = 0; i < 20; i++) {
        prompt p = prompt_of(w, i);
        const char *s = json_string_value(p.json);
        assert_int_equal(strlen(s), 8);
        assert_true(strcmp(s, "first li") == 0 || strcmp(s, "second l") == 0);
        json_decref(p.json);
    }
    work_destroy(w);
    unlink(path);
}

static void test_bad_traces(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", ": holds no requests"},
        {"{", "trace, line 1"},
        {"{\"hash_ids\":[]}", "trace, line 1: input_length is missing"},
        {"{\"input_length\":5}", "trace, line 1: hash_ids: must be a list"},
        {"{\"input_length\":5,\"hash_ids\":[\"a\"]}", "hash_ids: must be whole numbers"},
        {"{\"input_length\":0,\"hash_ids\":[]}", "input_length"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char path[64];
        write_file(path, bad[i][0]);
        work_options o = {.kind = "trace", .file = path, .scale = 1, .vocab = 1000};
        work *w = NULL;
        error err = {{0}};
        assert_false(status_ok(work_create(&o, &w, &err)));
        assert_non_null(strstr(err.text, bad[i][1]));
        unlink(path);
    }
}

/* ---- records --------------------------------------------------------------------------------- */

static void test_examples(void **state)
{
    (void)state;
    char text[400];
    serve_run run = {.n_calls = 0};
    serve_tracker t = {.run = &run};
    track_example(&t, SERVE_STATUS, "HTTP 400: \x1b]0;x\x07\xc2\x9b");
    track_example(&t, SERVE_STATUS, "a later one");
    assert_string_equal(run.example[SERVE_STATUS], "HTTP 400: ?]0;x???");
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    track_example(&t, SERVE_CLOSED, text);
    assert_int_equal(strlen(run.example[SERVE_CLOSED]), 159);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies),         cmocka_unit_test(test_several_on_one_connection),
        cmocka_unit_test(test_closed),         cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_endless_head),   cmocka_unit_test(test_events),
        cmocka_unit_test(test_event_too_long), cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_arrivals),       cmocka_unit_test(test_random_prompts),
        cmocka_unit_test(test_prefix_prompts), cmocka_unit_test(test_trace_prompts),
        cmocka_unit_test(test_text_prompts),   cmocka_unit_test(test_bad_traces),
        cmocka_unit_test(test_examples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
