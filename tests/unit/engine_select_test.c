/* Selections of retention on the select threads. A test that wants one to take long stops these
 * threads first, and starts them again when it has seen enough. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

#include <pthread.h>
#include <stdio.h>

/* With 64 layers, tables for each of them and 1,000 tokens a selection is handed out. */
enum { PROMPT = 1000 };

typedef struct selected {
    fixture f; /* the first member, since the fixture's teardown is used */
    _Atomic uint32_t restarts, held_at_restart;
} selected;

static status restart(void *ctx, backend *out, error *err)
{
    (void)err;
    selected *t = ctx;
    atomic_fetch_add(&t->restarts, 1);
    atomic_fetch_add(&t->held_at_restart, atomic_load(&t->f.model.holders));
    t->f.model.n_plans = 0;
    *out = t->f.backend;
    return STATUS_IS_OK;
}

static int setup(void **state)
{
    fixture *plain = fixture_create();
    selected *t = calloc(1, sizeof *t);
    t->f = *plain;
    free(plain);
    fixture *f = &t->f;
    f->backend.ctx = &f->model;
    f->alloc.ctx = f;
    f->model.info.geometry.n_layers = LAYERS_MAX;
    f->model.info.n_pages = 30000;
    engine_options *o = &f->options;
    o->backend = &f->backend;
    o->stop_ids = &f->eos;
    o->alloc = &f->alloc;
    o->restart = restart;
    o->restart_ctx = t;
    answer(f, "some words");
    fixture_start(f);
    *state = t;
    return 0;
}

static void stop_threads(engine *e)
{
    select_stop(e);
    e->selecting.n_threads = 0;
    e->selecting.stop = false;
}

static void start_threads(engine *e) { assert_true(status_ok(select_start(e))); }

static uint32_t n_waiting(engine *e)
{
    pthread_mutex_lock(&e->selecting.lock);
    uint32_t n = e->selecting.n_waiting;
    pthread_mutex_unlock(&e->selecting.lock);
    return n;
}

/* A request of a long prompt, of which a tenth is kept. */
static engine_stream *submit_long(fixture *f)
{
    static char json[16384];
    size_t at = (size_t)snprintf(json, sizeof json, "{\"prompt_token_ids\": [");
    for (uint32_t i = 0; i < PROMPT; i++)
        at += (size_t)snprintf(json + at, sizeof json - at, i ? ",%u" : "%u", 1 + i % 900);
    snprintf(json + at, sizeof json - at,
             "], \"max_tokens\": 20, \"ignore_eos\": true, \"retention\": {\"method\": "
             "\"chunkkv\", \"ratio\": 0.1}}");
    return submit(f, json);
}

/* The same, whose selection waits for a thread. */
static engine_stream *submit_selecting(fixture *f)
{
    stop_threads(f->engine);
    engine_stream *s = submit_long(f);
    while (n_waiting(f->engine) == 0) nap();
    return s;
}

static void expect_short_answer(fixture *f)
{
    reading r = read_all(submit(f, "{\"prompt\": \"a\"}"));
    assert_int_equal(r.finish, ENGINE_FINISH_STOP);
    assert_string_equal(r.text, "some words");
}

static retention_report read_report(engine_stream *s)
{
    retention_report report = {0};
    engine_output out;
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_NONE) continue;
        assert_int_equal(out.finish, ENGINE_FINISH_LENGTH);
        assert_non_null(out.report);
        report = *out.report;
    }
    engine_stream_release(s);
    return report;
}

static void others_are_answered_meanwhile(void **state)
{
    fixture *f = *state;
    engine_stream *s = submit_selecting(f);
    expect_short_answer(f);
    assert_int_equal(n_waiting(f->engine), 1);
    assert_int_equal(engine_get_stats(f->engine).n_live, 1);
    start_threads(f->engine);
    retention_report report = read_report(s);
    assert_true(report.kept_tokens < PROMPT / 4);
    assert_int_equal(report.logical_tokens, PROMPT + 19);
    assert_int_equal(atomic_load(&f->model.holders), 0);
    assert_int_equal(engine_get_stats(f->engine).sched.selections_handed_out, 1);
}

static void an_abort_does_not_wait_for_it(void **state)
{
    fixture *f = *state;
    engine_stream *s = submit_selecting(f);
    engine_stream_abort(s);
    reading r = read_all(s);
    assert_int_equal(r.finish, ENGINE_FINISH_ABORT);
    assert_int_equal(n_waiting(f->engine), 1);
    assert_int_equal(atomic_load(&f->model.holders), 1);
    start_threads(f->engine);
    expect_short_answer(f);
    while (engine_get_stats(f->engine).sched.running > 0) expect_short_answer(f);
    assert_int_equal(atomic_load(&f->model.holders), 0);
}

/* Once the engine is to stop, runs the selection that waits, in place of the select threads. */
static void *run_when_stopping(void *arg)
{
    engine *e = arg;
    select_queue *q = &e->selecting;
    for (bool stop = false; !stop; nap()) {
        pthread_mutex_lock(&e->inbox.lock);
        stop = e->inbox.stop;
        pthread_mutex_unlock(&e->inbox.lock);
    }
    sched_selection_run(q->waiting[q->first]);
    pthread_mutex_lock(&q->lock);
    q->n_waiting--;
    pthread_cond_signal(&q->done);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static void the_engine_may_stop_meanwhile(void **state)
{
    fixture *f = *state;
    engine_stream *s = submit_selecting(f);
    pthread_t helper;
    assert_int_equal(pthread_create(&helper, NULL, run_when_stopping, f->engine), 0);
    engine_stream_release(s);
    engine_destroy(f->engine); /* waits for it */
    f->engine = NULL;
    pthread_join(helper, NULL);
    assert_int_equal(atomic_load(&f->model.holders), 0);
}

/* The backend goes with the measures, so it waits until nobody reads them. */
static void the_backend_may_fail_meanwhile(void **state)
{
    selected *t = *state;
    fixture *f = &t->f;
    engine_stream *s = submit_selecting(f);
    f->model.failure = status_make(STATUS_INTERNAL, "a device was lost");
    atomic_store(&f->model.fail_at, atomic_load(&f->model.steps) + 1);
    reading other = read_all(submit(f, "{\"prompt\": \"a\"}"));
    reading r = read_all(s);
    assert_int_equal(other.error_code, STATUS_UNAVAILABLE);
    assert_int_equal(r.error_code, STATUS_UNAVAILABLE);
    assert_int_equal(atomic_load(&t->restarts), 0);
    start_threads(f->engine);
    while (engine_get_stats(f->engine).state != ENGINE_WORKING) nap();
    assert_int_equal(atomic_load(&t->restarts), 1);
    assert_int_equal(atomic_load(&t->held_at_restart), 0);
    expect_short_answer(f);
    assert_true(read_report(submit_long(f)).kept_tokens < PROMPT / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(others_are_answered_meanwhile, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(an_abort_does_not_wait_for_it, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(the_engine_may_stop_meanwhile, setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(the_backend_may_fail_meanwhile, setup, fixture_teardown),
    };
    for (fixture_in_flight = 1; fixture_in_flight <= 2; fixture_in_flight++) {
        int failed = cmocka_run_group_tests(tests, NULL, NULL);
        if (failed) return failed;
    }
    return 0;
}
