/* Steps that hang, and flushes of the prefix cache. */
#include "tests/unit/engine_watched.h"

/* ---- stuck steps ----------------------------------------------------------------------------- */

static void the_clock_finds_a_stuck_step(void **state)
{
    watched *w = start(state, 300000);
    atomic_store(&w->f.model.hang, true);
    reading r = read_all(submit(&w->f, "{\"prompt\": \"a\"}"));
    expect_lost(&r, "was stuck");
}

static void a_stuck_step_fails_its_requests_while_it_is_stuck(void **state)
{
    watched *w = start(state, AGES);
    fixture *f = &w->f;
    atomic_store(&f->model.hold, true); /* also after it was interrupted */
    atomic_store(&f->model.hang, true);
    engine_stream *s = submit(f, "{\"prompt\": \"a\", \"n\": 2}");
    while (!atomic_load(&f->model.hanging)) nap();
    expire(w);
    reading r = read_all(s);
    assert_int_equal(r.ends, 2);
    expect_lost(&r, "step 1 was stuck: 1 sequences");
    assert_true(atomic_load(&f->model.hanging));
    while (atomic_load(&f->model.interrupts) == 0) nap();
    assert_int_equal(engine_get_stats(f->engine).state, ENGINE_RESTARTING);
    assert_int_equal(engine_get_stats(f->engine).n_live, 0);
    assert_int_equal(expect_refused(f, "{\"prompt\": \"a\"}", "restarted"), STATUS_UNAVAILABLE);
    assert_int_equal(atomic_load(&w->restarts), 0); /* the backend is still in use */
    atomic_store(&f->model.hold, false);
    wait_for(w, ENGINE_WORKING);
    expect_answer(w);
    assert_int_equal(atomic_load(&w->restarts), 1);
    assert_int_equal(atomic_load(&f->model.interrupts), 1);
    engine_metrics m;
    engine_get_metrics(f->engine, &m);
    assert_int_equal(m.restarts, 1);
    assert_int_equal(m.choices_finished[ENGINE_FINISH_ERROR], 2);
    expect_trouble(w, "stuck");
    expect_trouble(w, "was restarted");
}

/* The hung step returns after all: its tokens are discarded, and its backend is not used again. */
static void a_late_result_is_discarded(void **state)
{
    watched *w = start(state, AGES);
    atomic_store(&w->f.model.hold, true);
    engine_stream *s = submit(&w->f, "{\"prompt\": \"a\"}");
    expire(w);
    reading r = read_stream(s);
    expect_lost(&r, "stuck");
    assert_int_equal(r.tokens, 0);
    atomic_store(&w->f.model.hold, false);
    wait_for(w, ENGINE_WORKING);
    engine_output out;
    assert_false(engine_stream_read(s, &out));
    engine_stream_release(s);
    assert_int_equal(atomic_load(&w->restarts), 1);
    expect_answer(w);
}

/* Submits one request that hangs in its first step, and another that waits behind it. */
static void submit_two(watched *w, const char *waiting, engine_stream **a, engine_stream **b)
{
    fixture *f = &w->f;
    atomic_store(&f->model.hang, true);
    *a = submit(f, "{\"prompt\": \"a\"}");
    while (!atomic_load(&f->model.hanging)) nap();
    *b = submit(f, waiting);
    bool waits = false;
    while (!waits) { /* until the request has been tokenized */
        pthread_mutex_lock(&f->engine->inbox.lock);
        waits = f->engine->inbox.added.first != NULL;
        pthread_mutex_unlock(&f->engine->inbox.lock);
        if (!waits) nap();
    }
}

/* Requests that wait for the engine thread when the step is given up run on the next backend. */
static void waiting_requests_run_on_the_next_backend(void **state)
{
    watched *w = start(state, AGES);
    engine_stream *a, *b;
    submit_two(w, "{\"prompt\": \"a\"}", &a, &b);
    expire(w);
    reading lost = read_all(a);
    expect_lost(&lost, "stuck");
    assert_string_equal(read_all(b).text, "some words");
    assert_int_equal(atomic_load(&w->restarts), 1);
}

/* The backend does not return: the engine does not wait for it for ever, and remakes it if it
 * returns later. */
static void no_request_waits_for_a_dead_backend(void **state)
{
    watched *w = start(state, AGES);
    fixture *f = &w->f;
    engine_stream *a, *b;
    atomic_store(&f->model.hold, true);
    submit_two(w, "{\"prompt\": \"a\"}", &a, &b);
    engine_flush_cache(f->engine);
    expire(w);
    reading lost = read_all(a);
    expect_lost(&lost, "stuck");
    expire(w);
    reading left = read_all(b);
    expect_lost(&left, "the backend has failed");
    wait_for(w, ENGINE_BROKEN);
    assert_int_equal(expect_refused(f, "{\"prompt\": \"a\"}", "failed"), STATUS_UNAVAILABLE);
    assert_int_equal(engine_get_stats(f->engine).n_live, 0);
    expect_trouble(w, "does not end");
    atomic_store(&f->model.hold, false);
    wait_for(w, ENGINE_WORKING);
    expect_answer(w);
    assert_int_equal(atomic_load(&w->restarts), 1);
}

/* The new pool is smaller: a request that no longer fits is refused instead of waiting for ever. */
static void a_request_that_no_longer_fits_fails(void **state)
{
    watched *w = start(state, AGES);
    engine_stream *a, *b;
    w->restart_pages = 9;
    submit_two(w, ids(200, 4), &a, &b);
    expire(w);
    reading lost = read_all(a);
    expect_lost(&lost, "stuck");
    reading refused = read_all(b);
    assert_int_equal(refused.finish, ENGINE_FINISH_ERROR);
    assert_int_equal(refused.error_code, STATUS_LIMIT);
    assert_non_null(strstr(refused.error_text, "the pool has 8"));
    wait_for(w, ENGINE_WORKING);
    expect_answer(w);
}

static void an_engine_may_end_while_a_step_is_stuck(void **state)
{
    watched *w = start(state, 300000);
    atomic_store(&w->f.model.hang, true);
    engine_stream *s = submit(&w->f, "{\"prompt\": \"a\"}");
    while (!atomic_load(&w->f.model.hanging)) nap();
    engine_stream_release(s);
    engine_destroy(w->f.engine); /* returns, since the watchdog runs to the end */
    w->f.engine = NULL;
}

/* ---- flushes --------------------------------------------------------------------------------- */

static uint32_t cached(watched *w)
{
    reading r = read_all(submit(&w->f, ids(PROMPT, 2)));
    assert_int_equal(r.finish, ENGINE_FINISH_LENGTH);
    return r.usage.cached_tokens;
}

static void a_flush_forgets_what_was_computed(void **state)
{
    watched *w = start(state, 0);
    assert_int_equal(cached(w), 0);
    assert_int_equal(cached(w), 16 * PROMPT_BLOCKS);
    assert_true(atomic_load(&w->stored) > 0);
    assert_true(status_ok(engine_flush_cache(w->f.engine)));
    assert_int_equal(cached(w), 0);
    assert_int_equal(cached(w), 16 * PROMPT_BLOCKS);
    assert_int_equal(atomic_load(&w->cleared), 1);
    /* Flushes also when nothing runs. */
    assert_true(status_ok(engine_flush_cache(w->f.engine)));
    while (engine_get_stats(w->f.engine).sched.pages.cached > 0) nap();
    assert_int_equal(engine_get_stats(w->f.engine).sched.pages.used, 0);
    assert_int_equal(atomic_load(&w->cleared), 2);
}

/* A running sequence continues, and no other sequence hits what it computed before the flush. */
static void a_flush_leaves_running_sequences_alone(void **state)
{
    watched *w = start(state, 0);
    engine_stream *s = submit(&w->f, ids(PROMPT, 60));
    engine_output out;
    assert_true(engine_stream_wait(s, &out));
    atomic_store(&w->f.model.hold, true);
    assert_true(status_ok(engine_flush_cache(w->f.engine)));
    atomic_store(&w->f.model.hold, false);
    assert_int_equal(read_all(s).usage.completion_tokens, 60);
    assert_int_equal(cached(w), 0);
    assert_int_equal(cached(w), 16 * PROMPT_BLOCKS);
}

static void a_new_backend_has_an_empty_cache(void **state)
{
    watched *w = start(state, 0);
    cached(w);
    assert_int_equal(cached(w), 16 * PROMPT_BLOCKS);
    w->f.model.failure = status_make(STATUS_INTERNAL, "x");
    atomic_store(&w->f.model.fail_at, one_of_the_next(&w->f));
    reading r = read_all(submit(&w->f, "{\"prompt\": \"a\"}"));
    expect_lost(&r, "x");
    wait_for(w, ENGINE_WORKING);
    assert_int_equal(atomic_load(&w->cleared), 1);
    assert_int_equal(cached(w), 0);
}

/* ---- many at once ---------------------------------------------------------------------------- */

typedef struct crowd {
    watched *w;
    _Atomic bool stop;
    _Atomic uint32_t answered;
} crowd;

static void *crowd_thread(void *arg)
{
    crowd *c = arg;
    for (uint32_t i = 0; !atomic_load(&c->stop); i++) {
        engine_request r = request("{\"prompt\": \"many of us\", \"n\": 2}");
        engine_stream *s = NULL;
        status st = engine_submit(c->w->f.engine, &r, NULL, NULL, &s, NULL);
        engine_request_destroy(&r);
        if (!status_ok(st)) {
            nap();
            continue;
        }
        if (i % 7 == 3) engine_stream_abort(s);
        reading done = read_all(s);
        if (done.ends != 2) return arg;
        atomic_fetch_add(&c->answered, done.finish == ENGINE_FINISH_STOP);
    }
    return NULL;
}

/* Readers, aborts and flushes meet hung steps at any moment; every stream ends. Of the crowd's
 * streams all may have their answers when a step hangs that was planned ahead; one stream has
 * not. */
static void a_crowd_survives_stuck_steps(void **state)
{
    watched *w = start(state, AGES);
    fixture *f = &w->f;
    crowd c = {.w = w};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_thread, &c), 0);
    for (uint32_t i = 1; i <= 2; i++) {
        uint32_t answered = atomic_load(&c.answered);
        while (atomic_load(&c.answered) < answered + 20) nap();
        engine_flush_cache(f->engine);
        engine_stream *endless = submit(f, "{\"prompt\": \"a\", \"ignore_eos\": true}");
        engine_output out;
        assert_true(engine_stream_wait(endless, &out));
        atomic_store(&f->model.hang, true);
        while (!atomic_load(&f->model.hanging)) nap();
        expire(w);
        reading r = read_all(endless);
        expect_lost(&r, "stuck");
        while (atomic_load(&w->restarts) < i) nap();
    }
    atomic_store(&c.stop, true);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong); /* a thread whose stream ended wrongly returns the reason */
    }
    while (engine_get_stats(w->f.engine).n_live > 0) nap();
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        CASE(the_clock_finds_a_stuck_step),
        CASE(a_stuck_step_fails_its_requests_while_it_is_stuck),
        CASE(a_late_result_is_discarded),
        CASE(waiting_requests_run_on_the_next_backend),
        CASE(a_request_that_no_longer_fits_fails),
        CASE(no_request_waits_for_a_dead_backend),
        CASE(an_engine_may_end_while_a_step_is_stuck),
        CASE(a_flush_forgets_what_was_computed),
        CASE(a_flush_leaves_running_sequences_alone),
        CASE(a_new_backend_has_an_empty_cache),
        CASE(a_crowd_survives_stuck_steps),
    };
    int failures = cmocka_run_group_tests_name("engine under watch", tests, NULL, NULL);
    fixture_in_flight = 2;
    return failures + cmocka_run_group_tests_name("with two steps in flight", tests, NULL, NULL);
}
