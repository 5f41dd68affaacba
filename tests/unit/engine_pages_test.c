/* Maps of requests' pages: who asks gets one without waiting, also of a request that is not there
 * yet or no more, and those who ask often get the same. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

#include <stdio.h>

static int setup(void **state)
{
    fixture *f = fixture_create();
    f->model.script[0] = 40;
    f->model.n_script = 1;
    f->options.ring_capacity = 8;
    fixture_start(f);
    *state = f;
    return 0;
}

static engine_stream *submit_long(fixture *f, const char *json)
{
    enum { PROMPT = 320 };
    engine_stream *s = NULL;
    error err = {{0}};
    engine_request r = request(json);
    r.prompt_token_ids = calloc(PROMPT, sizeof *r.prompt_token_ids);
    r.n_prompt_token_ids = PROMPT;
    for (uint32_t i = 0; i < PROMPT; i++) r.prompt_token_ids[i] = 1 + i;
    if (!status_ok(engine_submit(f->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    engine_request_destroy(&r);
    return s;
}

#define STREAMING                                                                                  \
    "{\"max_tokens\": 100, \"ignore_eos\": true, "                                                 \
    "\"retention\": {\"method\": \"streaming\", \"tokens\": 64, \"sinks\": 16}}"

/* Asks until the map has the word. */
static void await_map(engine_stream *s, const char *word, strbuf *out)
{
    int64_t us;
    for (;;) {
        strbuf_clear(out);
        if (engine_stream_pages(s, out, &us) && strstr(out->data, word)) return;
        nap();
    }
}

static void what_is_dropped_is_seen(void **state)
{
    fixture *f = *state;
    engine_output out;
    strbuf map = {0};
    engine_stream *s = submit_long(f, STREAMING);
    for (uint32_t i = 0; i < 20; i++) assert_true(engine_stream_wait(s, &out));
    /* Nobody reads on: the ring fills, the request pauses, and the engine sleeps. */
    await_map(s, ".", &map);
    json_error_t err;
    json_t *doc = json_loads(map.data, 0, &err);
    if (!doc) fail_msg("%s: %s", err.text, map.data);
    assert_string_equal(json_string_value(json_object_get(doc, "state")), "running");
    assert_string_equal(json_string_value(json_object_get(doc, "method")), "streaming");
    assert_int_equal(json_integer_value(json_object_get(doc, "prompt_tokens")), 320);
    assert_int_equal(json_integer_value(json_object_get(doc, "column_tokens")), 16);
    assert_true(json_integer_value(json_object_get(doc, "output_tokens")) >= 20);
    assert_true(json_integer_value(json_object_get(doc, "pages_dropped")) > 0);
    json_int_t rows = 0, columns = json_integer_value(json_object_get(doc, "columns"));
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(doc, "rows"), i, row)
    {
        json_int_t cells = 0;
        rows += json_integer_value(json_array_get(row, 0));
        const char *at = json_string_value(json_array_get(row, 1));
        assert_int_equal(*at, 'h'); /* the sink */
        for (char *end; *at; at = end + 1) {
            long n = strtol(at, &end, 10);
            cells += end == at ? 1 : n;
            assert_non_null(strchr(".abcdefgh", *end));
        }
        assert_int_equal(cells, columns);
    }
    assert_int_equal(rows, f->model.info.geometry.n_layers);
    json_decref(doc);
    strbuf_destroy(&map);
    engine_stream_release(s);
}

/* The attention of one of the last rows is measured once somebody has looked. */
static void attention_is_seen(void **state)
{
    fixture *f = *state;
    engine_output out;
    strbuf map = {0};
    json_error_t err;
    engine_stream *s = submit_long(f, STREAMING);
    for (uint32_t i = 0; i < 20; i++) assert_true(engine_stream_wait(s, &out));
    await_map(s, "\"attention\":null", &map);
    for (uint32_t i = 0; i < 20; i++) assert_true(engine_stream_wait(s, &out));
    await_map(s, "\"attention\":{", &map);
    json_t *doc = json_loads(map.data, 0, &err);
    if (!doc) fail_msg("%s: %s", err.text, map.data);
    const json_t *a = json_object_get(doc, "attention");
    assert_true(json_integer_value(json_object_get(a, "token")) >= 320);
    assert_int_equal(json_integer_value(json_object_get(a, "layers")),
                     f->model.info.geometry.n_layers);
    assert_int_equal(json_integer_value(json_object_get(a, "column_tokens")), 16);
    size_t columns = (size_t)json_integer_value(json_object_get(a, "columns")), i;
    json_t *row;
    json_array_foreach(json_object_get(a, "rows"), i, row)
    {
        const char *cells = json_string_value(json_array_get(row, 1));
        double read = json_real_value(json_array_get(row, 0));
        assert_int_equal(strlen(cells), columns);
        assert_true(read > 0 && read < 100);
        assert_true(cells[0] != '.' && cells[3] == '.'); /* the sink, and what is dropped */
    }
    assert_int_equal(i, f->model.info.geometry.n_layers);
    json_decref(doc);
    strbuf_destroy(&map);
    while (engine_stream_wait(s, &out)) continue;
    assert_non_null(out.report);
    assert_true(out.report->scoring_ms == 0); /* no selection read the row */
    engine_stream_release(s);
}

static void before_and_after(void **state)
{
    fixture *f = *state;
    engine_output out;
    strbuf map = {0};
    int64_t us;
    atomic_store(&f->model.hold, true);
    engine_stream *s = submit_long(f, STREAMING);
    assert_false(engine_stream_pages(s, &map, &us));
    assert_int_equal(us, 0);
    assert_int_equal(map.size, 0);
    atomic_store(&f->model.hold, false);
    await_map(s, "{", &map);
    engine_stream_abort(s);
    while (engine_stream_wait(s, &out)) continue;
    await_map(s, "\"ended\"", &map);
    strbuf_destroy(&map);
    engine_stream_release(s);
}

/* One that is aborted at once may end before the scheduler knows it. */
static void an_end_before_the_start_is_seen(void **state)
{
    fixture *f = *state;
    engine_output out;
    strbuf map = {0};
    for (int i = 0; i < 20; i++) {
        engine_stream *s = submit_long(f, STREAMING);
        engine_stream_abort(s);
        while (engine_stream_wait(s, &out)) continue;
        await_map(s, "\"ended\"", &map);
        engine_stream_release(s);
    }
    strbuf_destroy(&map);
}

/* A stream that waits to be looked at is released, and so is one when the engine ends. */
static void nobody_waits_for_the_map(void **state)
{
    fixture *f = *state;
    strbuf map = {0};
    int64_t us;
    for (int i = 0; i < 20; i++) {
        engine_stream *s = submit_long(f, STREAMING);
        if (i % 2) nap();
        (void)engine_stream_pages(s, &map, &us);
        engine_stream_release(s);
    }
    strbuf_destroy(&map);
}

/* What is allowed follows from the time that the questions took. */
static void a_loop_of_questions_gets_few_maps(void **state)
{
    enum { ASK_US = 50000, EVERY_US = 200000 };
    fixture *f = *state;
    strbuf map = {0};
    engine_stream *s = submit_long(f, STREAMING);
    await_map(s, "{", &map);
    int64_t before = 0, us, start = clock_now_us();
    uint32_t n = 0;
    while (clock_now_us() - start < ASK_US) {
        strbuf_clear(&map);
        assert_true(engine_stream_pages(s, &map, &us));
        n += us != before;
        before = us;
    }
    assert_true(n <= 2 + (clock_now_us() - start) / EVERY_US);
    strbuf_destroy(&map);
    engine_stream_release(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_dropped_is_seen, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(attention_is_seen, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(before_and_after, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(an_end_before_the_start_is_seen, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(nobody_waits_for_the_map, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_loop_of_questions_gets_few_maps, setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
