/* Backends that fail or are lost, and are remade. */
#include "tests/unit/engine_watched.h"

/* ---- failed backends ------------------------------------------------------------------------- */

static void a_failed_backend_is_made_anew(void **state)
{
    watched *w = start(state, 0);
    fixture *f = &w->f;
    expect_answer(w);
    uint64_t before = engine_get_stats(f->engine).sched.generated_tokens;
    assert_true(before > 0);
    f->model.failure = status_make(STATUS_INTERNAL, "a device was lost");
    atomic_store(&f->model.fail_at, one_of_the_next(f));
    reading r = read_all(submit(f, "{\"prompt\": \"a\"}"));
    expect_lost(&r, "a device was lost");
    wait_for(w, ENGINE_WORKING);
    expect_answer(w);
    atomic_store(&f->model.lie_at, one_of_the_next(f));
    r = read_all(submit(f, "{\"prompt\": \"a\"}"));
    expect_lost(&r, "page tables");
    wait_for(w, ENGINE_WORKING);
    expect_answer(w);
    assert_int_equal(atomic_load(&w->restarts), 2);
    assert_int_equal(atomic_load(&w->cleared), 2);
    /* Counters continue over the new scheduler. */
    assert_true(engine_get_stats(f->engine).sched.generated_tokens > 2 * before);
}

static void a_backend_that_always_fails_is_given_up(void **state)
{
    watched *w = start(state, 0);
    fixture *f = &w->f;
    f->model.failure = status_make(STATUS_INTERNAL, "broken memory");
    for (int i = 0; i < 4; i++) {
        atomic_store(&f->model.fail_at, atomic_load(&f->model.steps) + 1);
        reading r = read_all(submit(f, "{\"prompt\": \"a\"}"));
        expect_lost(&r, "broken memory");
        wait_for(w, i < 3 ? ENGINE_WORKING : ENGINE_BROKEN);
    }
    assert_int_equal(atomic_load(&w->restarts), 3);
    expect_trouble(w, "3 restarts");
    assert_int_equal(expect_refused(f, "{\"prompt\": \"a\"}", "failed"), STATUS_UNAVAILABLE);
    assert_int_equal(engine_flush_cache(f->engine).code, STATUS_UNAVAILABLE);
    assert_int_equal(engine_get_stats(f->engine).n_live, 0);
}

static void break_by(void **state, const char *word)
{
    watched *w = start(state, 0);
    w->f.model.failure = status_make(STATUS_INTERNAL, "x");
    atomic_store(&w->f.model.fail_at, 1);
    reading r = read_all(submit(&w->f, "{\"prompt\": \"a\"}"));
    expect_lost(&r, "step 1 failed");
    wait_for(w, ENGINE_BROKEN);
    while (atomic_load(&w->restarts) == 0) nap();
    expect_refused(&w->f, "{\"prompt\": \"a\"}", "failed");
    engine_destroy(w->f.engine); /* so that every line has been logged */
    w->f.engine = NULL;
    expect_trouble(w, word);
}

static void a_restart_may_fail(void **state)
{
    ((watched *)*state)->restart_status = STATUS_IO;
    break_by(state, "no weights any more");
}

static void another_model_is_no_replacement(void **state)
{
    ((watched *)*state)->restart_vocab = 32;
    break_by(state, "differs from the old one");
}

/* Embeddings of sessions outlive a backend, so those of the next one must be of the same heads. */
static void a_backend_with_other_heads_is_no_replacement(void **state)
{
    ((watched *)*state)->restart_heads = 5;
    break_by(state, "differs from the old one");
}

static void a_backend_with_heads_of_another_size_is_no_replacement(void **state)
{
    ((watched *)*state)->restart_head_dim = 2 * EMBED_DIM;
    break_by(state, "differs from the old one");
}

/* A lost rank of another process is not this host's fault, however often it happens: the engine
 * waits for it. The rank may come back on a machine of another instruction set, whose K and V
 * differ in their last bits. */
static void a_lost_backend_is_waited_for(void **state)
{
    watched *w = start(state, 0);
    fixture *f = &w->f;
    w->restart_kv = 7;
    f->model.failure = status_make(STATUS_UNAVAILABLE, "rank 1: no heartbeat");
    for (uint32_t i = 1; i <= RESTARTS_MAX + 2; i++) {
        atomic_store(&w->absent, i == 1 ? 2 : 0);
        atomic_store(&f->model.fail_at, one_of_the_next(f));
        reading r = read_all(submit(f, "{\"prompt\": \"a\"}"));
        expect_lost(&r, "rank 1: no heartbeat");
        atomic_store(&f->model.fail_at, 0);
        wait_for(w, ENGINE_WORKING);
        expect_answer(w);
        assert_int_equal(atomic_load(&w->restarts), i + 2);
        expect_reason(w, "");
    }
    expect_trouble(w, "cannot be made yet: rank 1: no worker there");
}

static void a_loss_is_noticed_while_nothing_runs(void **state)
{
    watched *w = start(state, 0);
    expect_answer(w);
    engine_backend_lost(w->f.engine, "rank 1: no heartbeat");
    while (atomic_load(&w->restarts) == 0) nap();
    wait_for(w, ENGINE_WORKING);
    expect_answer(w);
    assert_int_equal(atomic_load(&w->restarts), 1);
    expect_trouble(w, "the backend was lost: rank 1: no heartbeat");
}

/* A loss that is reported while the next backend is made concerns the next backend. */
static void a_loss_of_the_next_one_is_not_forgotten(void **state)
{
    watched *w = start(state, 0);
    expect_answer(w);
    atomic_store(&w->lose_next, true);
    engine_backend_lost(w->f.engine, "rank 1: no heartbeat");
    while (atomic_load(&w->restarts) < 2) nap();
    wait_for(w, ENGINE_WORKING);
    expect_answer(w);
    assert_int_equal(atomic_load(&w->restarts), 2);
    expect_trouble(w, "the backend was lost: rank 0: gone");
}

/* The last step fails, and another thread reports the same loss: the backend is remade once. */
static void a_loss_reported_twice_is_one(void **state)
{
    watched *w = start(state, 0);
    fixture *f = &w->f;
    expect_answer(w);
    f->model.failure = status_make(STATUS_UNAVAILABLE, "rank 1: no heartbeat");
    atomic_store(&f->model.hold, true);
    atomic_store(&f->model.fail_at, atomic_load(&f->model.steps) + 1);
    engine_stream *s = submit(f, "{\"prompt\": \"a\"}");
    pthread_mutex_unlock(&lock_step(w)->lock);
    engine_backend_lost(f->engine, "rank 1: no heartbeat");
    atomic_store(&f->model.hold, false);
    read_all(s);
    while (atomic_load(&w->restarts) == 0) nap();
    wait_for(w, ENGINE_WORKING);
    expect_answer(w);
    assert_int_equal(atomic_load(&w->restarts), 1);
}

static void an_engine_may_end_while_its_backend_is_waited_for(void **state)
{
    watched *w = start(state, 0);
    atomic_store(&w->absent, UINT32_MAX);
    engine_backend_lost(w->f.engine, "rank 1: no heartbeat");
    while (atomic_load(&w->restarts) < 2) nap();
    assert_int_equal(engine_get_stats(w->f.engine).state, ENGINE_RESTARTING);
    expect_reason(w, "rank 1: no worker there");
    assert_int_equal(expect_refused(&w->f, "{\"prompt\": \"a\"}",
                                    "the backend is being restarted: rank 1: no worker there"),
                     STATUS_UNAVAILABLE);
}

static void a_refused_step_is_named(void **state)
{
    watched *w = start(state, 0);
    atomic_store(&w->f.model.refuse, true);
    reading r = read_all(submit(&w->f, ids(4, 60)));
    if (fixture_in_flight == 1) {
        assert_int_equal(r.finish, ENGINE_FINISH_LENGTH);
        return;
    }
    char text[64];
    snprintf(text, sizeof text, "step %u failed: one is enough", atomic_load(&w->f.model.refused));
    expect_lost(&r, text);
    atomic_store(&w->f.model.refuse, false);
    wait_for(w, ENGINE_WORKING);
    expect_answer(w);
}

/* Submits a request whose 8th step is held. */
static engine_stream *hold_a_step(watched *w)
{
    atomic_store(&w->f.model.hold_at, 8);
    engine_stream *s = submit(&w->f, ids(4, 60));
    while (!atomic_load(&w->f.model.hold)) nap();
    return s;
}

/* Expects that the stream gets the token of every step that was collected. */
static void expect_all_told(watched *w, engine_stream *s, const char *word)
{
    reading r = read_all(s);
    expect_lost(&r, word);
    assert_int_equal(r.tokens, 8);
    assert_int_equal(atomic_load(&w->f.model.steps), 8);
}

static void tokens_are_told_though_the_next_step_is_refused(void **state)
{
    watched *w = start(state, 0);
    engine_stream *s = hold_a_step(w);
    atomic_store(&w->f.model.refuse, true);
    atomic_store(&w->f.model.hold, false);
    if (fixture_in_flight == 1) {
        engine_stream_release(s); /* no step is refused */
        return;
    }
    expect_all_told(w, s, "one is enough");
    atomic_store(&w->f.model.refuse, false);
    wait_for(w, ENGINE_WORKING);
    expect_answer(w);
}

/* The engine thread has not told the last tokens when it submits, so the watchdog does. */
static void tokens_are_told_though_the_next_submit_hangs(void **state)
{
    watched *w = start(state, AGES);
    engine_stream *s = hold_a_step(w);
    atomic_store(&w->f.model.hang_submit, true);
    atomic_store(&w->f.model.hold, false);
    while (!atomic_load(&w->f.model.hanging)) nap();
    expire(w);
    expect_all_told(w, s, "was stuck");
    wait_for(w, ENGINE_WORKING);
    expect_answer(w);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_failed_backend_is_made_anew),
        CASE(a_backend_that_always_fails_is_given_up),
        CASE(a_restart_may_fail),
        CASE(another_model_is_no_replacement),
        CASE(a_backend_with_other_heads_is_no_replacement),
        CASE(a_backend_with_heads_of_another_size_is_no_replacement),
        CASE(a_lost_backend_is_waited_for),
        CASE(a_loss_is_noticed_while_nothing_runs),
        CASE(a_loss_of_the_next_one_is_not_forgotten),
        CASE(a_loss_reported_twice_is_one),
        CASE(an_engine_may_end_while_its_backend_is_waited_for),
        CASE(a_refused_step_is_named),
        CASE(tokens_are_told_though_the_next_step_is_refused),
        CASE(tokens_are_told_though_the_next_submit_hangs),
    };
    int failures = cmocka_run_group_tests_name("backends that are remade", tests, NULL, NULL);
    fixture_in_flight = 2;
    return failures + cmocka_run_group_tests_name("with two steps in flight", tests, NULL, NULL);
}
