/* Progress of prompts that take several steps: who is told, and that a slow reader gets the latest
 * alone. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

#include <stdio.h>

enum { CHUNK = 64, PROMPT = 300 };

static int setup(void **state)
{
    fixture *f = fixture_create();
    f->model.script[0] = 40;
    f->model.n_script = 1;
    fixture_start(f);
    *state = f;
    return 0;
}

static engine_request long_request(uint32_t n, bool progress)
{
    engine_request r = request("{\"max_tokens\": 2, \"ignore_eos\": true}");
    r.prompt_token_ids = calloc(n, sizeof *r.prompt_token_ids);
    r.n_prompt_token_ids = n;
    r.progress = progress;
    for (uint32_t i = 0; i < n; i++) r.prompt_token_ids[i] = 1 + i;
    return r;
}

static engine_stream *submit_long(fixture *f, uint32_t n, bool progress)
{
    engine_stream *s = NULL;
    error err = {{0}};
    engine_request r = long_request(n, progress);
    if (!status_ok(engine_submit(f->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    engine_request_destroy(&r);
    return s;
}

static void assert_progress(const engine_output *out, uint32_t computed, uint32_t total)
{
    assert_non_null(out->progress.phase);
    assert_string_equal(out->progress.phase, "prefill");
    assert_int_equal(out->progress.computed_tokens, computed);
    assert_int_equal(out->progress.total_tokens, total);
    assert_false(out->has_token);
    assert_int_equal(out->finish, ENGINE_FINISH_NONE);
    assert_int_equal(out->choice, 0);
    assert_int_equal(out->text_bytes, 0);
}

static void the_first_step_is_told(void **state)
{
    fixture *f = *state;
    engine_output out;
    atomic_store(&f->model.hold_at, 2);
    engine_stream *s = submit_long(f, PROMPT, true);
    assert_true(engine_stream_wait(s, &out));
    assert_progress(&out, CHUNK, PROMPT);
    assert_int_equal(engine_stream_prompt(s).n_tokens, PROMPT);
    while (!atomic_load(&f->model.hold)) nap();
    atomic_store(&f->model.hold, false);
    uint32_t computed = CHUNK, tokens = 0;
    while (engine_stream_wait(s, &out)) {
        if (!out.progress.phase) {
            tokens += out.has_token;
            continue;
        }
        assert_int_equal(tokens, 0);
        assert_true(out.progress.computed_tokens > computed);
        assert_true(out.progress.computed_tokens < PROMPT);
        computed = out.progress.computed_tokens;
    }
    assert_int_equal(tokens, 2);
    engine_stream_release(s);
}

static void expect_no_progress(fixture *f, uint32_t n, bool progress)
{
    engine_output out;
    engine_stream *s = submit_long(f, n, progress);
    while (engine_stream_wait(s, &out)) assert_null(out.progress.phase);
    engine_stream_release(s);
}

static void others_are_told_nothing(void **state)
{
    fixture *f = *state;
    expect_no_progress(f, PROMPT, false);
    expect_no_progress(f, CHUNK, true); /* one step */
}

static void a_slow_reader_gets_the_latest(void **state)
{
    fixture *f = *state;
    engine_output out;
    atomic_store(&f->model.hold, true);
    engine_stream *s = submit_long(f, PROMPT, false);
    for (uint32_t i = 1; i < 100; i++)
        stream_push_progress(s, (engine_progress){"prefill", i, PROMPT});
    assert_true(engine_stream_read(s, &out));
    assert_progress(&out, 99, PROMPT);
    assert_false(engine_stream_read(s, &out));
    atomic_store(&f->model.hold, false);
    engine_stream_release(s);
}

static bool has_ended(engine_stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool ended = s->ends[0].finish != ENGINE_FINISH_NONE;
    pthread_mutex_unlock(&s->lock);
    return ended;
}

static void a_token_makes_progress_stale(void **state)
{
    fixture *f = *state;
    engine_output out;
    engine_stream *s = submit_long(f, CHUNK, false);
    stream_push_progress(s, (engine_progress){"prefill", 1, CHUNK});
    while (!has_ended(s)) nap();
    uint32_t n = 0;
    for (; engine_stream_wait(s, &out); n++) assert_true(out.has_token);
    assert_int_equal(n, 2);
    engine_stream_release(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_first_step_is_told, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(others_are_told_nothing, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_slow_reader_gets_the_latest, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_token_makes_progress_stale, setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
