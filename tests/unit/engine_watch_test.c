/* Steps that hang, backends that fail and are remade, and flushes of the prefix cache.
 *
 * The machine's speed does not decide how long a step takes: the time-out is hours, and a test that
 * wants a hung step makes the running step old enough (expire). Only one test waits for the
 * clock. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

#include <pthread.h>
#include <stdio.h>

enum { PROMPT = 40, PROMPT_BLOCKS = 2 };
#define AGES INT64_C(10000000000) /* microseconds: longer than any test runs */
static const char usual[] =
    "{\"prompt_token_ids\": [%s], \"max_tokens\": %d, \"ignore_eos\": true}";

/* ---- an engine under watch ------------------------------------------------------------------- */

typedef struct watched {
    fixture f; /* the first member, since the fixture's teardown is used */
    _Atomic uint32_t restarts, cleared, stored;
    _Atomic uint32_t absent; /* this many restarts lack a worker, or memory */
    _Atomic bool lose_next;  /* the next remade backend is lost at once */
    status_code restart_status;
    uint32_t restart_pages, restart_vocab, restart_heads, restart_head_dim;
    uint64_t restart_kv; /* kv_identity */
    pthread_mutex_t lock;
    char trouble[4096]; /* lines of the log */
} watched;

static status restart(void *ctx, backend *out, error *err)
{
    watched *w = ctx;
    atomic_fetch_add(&w->restarts, 1);
    if (atomic_load(&w->absent) > 0) {
        bool even = atomic_fetch_sub(&w->absent, 1) % 2 == 0;
        return error_set(err, even ? STATUS_NO_MEMORY : STATUS_UNAVAILABLE,
                         "rank 1: no worker there");
    }
    if (w->restart_status != STATUS_OK)
        return error_set(err, w->restart_status, "no weights any more");
    if (atomic_exchange(&w->lose_next, false)) engine_backend_lost(w->f.engine, "rank 0: gone");
    if (w->restart_pages) w->f.model.info.n_pages = w->restart_pages;
    if (w->restart_kv) w->f.model.info.kv_identity = w->restart_kv;
    if (w->restart_vocab) w->f.model.info.vocab_size = w->restart_vocab;
    if (w->restart_heads) w->f.model.info.n_heads = w->restart_heads;
    if (w->restart_head_dim) w->f.model.info.head_dim = w->restart_head_dim;
    w->f.model.n_plans = 0; /* plans in flight went with the old backend */
    *out = w->f.backend;
    return STATUS_IS_OK;
}

static void on_trouble(void *ctx, const char *text)
{
    watched *w = ctx;
    pthread_mutex_lock(&w->lock);
    size_t n = strlen(w->trouble);
    snprintf(w->trouble + n, sizeof w->trouble - n, "%s\n", text);
    pthread_mutex_unlock(&w->lock);
}

static void on_block(void *ctx, const pkv_block_event *event)
{
    watched *w = ctx;
    atomic_fetch_add(&w->cleared, event->kind == PKV_CLEARED);
    atomic_fetch_add(&w->stored, event->kind == PKV_BLOCK_STORED);
}

static void expect_trouble(watched *w, const char *word)
{
    pthread_mutex_lock(&w->lock);
    bool found = strstr(w->trouble, word);
    pthread_mutex_unlock(&w->lock);
    if (!found) fail_msg("\"%s\" does not say '%s'", w->trouble, word);
}

static int setup(void **state)
{
    fixture *plain = fixture_create();
    watched *w = calloc(1, sizeof *w);
    w->f = *plain;
    free(plain);
    fixture *f = &w->f;
    f->backend.ctx = &f->model;
    f->alloc.ctx = f;
    engine_options *o = &f->options;
    o->backend = &f->backend;
    o->tokenizer = f->tokenizer;
    o->stop_ids = &f->eos;
    o->alloc = &f->alloc;
    o->restart = restart;
    o->restart_ctx = w;
    o->on_trouble = on_trouble;
    o->on_trouble_ctx = w;
    o->on_block = on_block;
    o->on_block_ctx = w;
    pthread_mutex_init(&w->lock, NULL);
    *state = w;
    answer(f, "some words");
    return 0;
}

static watched *start(void **state, int64_t timeout_us)
{
    watched *w = *state;
    w->f.options.step_timeout_us = timeout_us;
    fixture_start(&w->f);
    return w;
}

static const char *ids(uint32_t n, int max_tokens)
{
    static char list[8192], json[10240];
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, i ? ",%u" : "%u", 100 + i);
    snprintf(json, sizeof json, usual, list, max_tokens);
    return json;
}

/* Returns with the lock of a step that is being collected. */
static step_watch *lock_step(watched *w)
{
    step_watch *s = &w->f.engine->watch;
    pthread_mutex_lock(&s->lock);
    while (!s->started_us || !atomic_load(&w->f.model.collecting)) {
        pthread_mutex_unlock(&s->lock);
        nap();
        pthread_mutex_lock(&s->lock);
    }
    return s;
}

/* Makes the step in flight, or the next one, AGES old. */
static void expire(watched *w)
{
    step_watch *s = lock_step(w);
    if (s->abandoned) s->abandoned_us -= AGES;
    else s->started_us -= AGES;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Number of one of a request's first steps, which is to fail: the answer just read may have left a
 * step that was planned ahead, and one that tells the backend of pages taken back. */
static uint32_t one_of_the_next(const fixture *f)
{
    return atomic_load(&f->model.steps) + 1 + fixture_in_flight;
}

static void wait_for(watched *w, engine_state state)
{
    while (engine_get_stats(w->f.engine).state != state) nap();
}

/* Expects UNAVAILABLE with the reason for requests while the backend is down. */
static void expect_reason(watched *w, const char *word)
{
    char text[ENGINE_TROUBLE_BYTES];
    engine_get_trouble(w->f.engine, text, sizeof text);
    if (*word ? !strstr(text, word) : *text) fail_msg("\"%s\", not %s", text, word);
}

static void expect_lost(const reading *r, const char *word)
{
    assert_int_equal(r->finish, ENGINE_FINISH_ERROR);
    assert_int_equal(r->error_code, STATUS_UNAVAILABLE);
    if (!strstr(r->error_text, word)) fail_msg("\"%s\" does not say '%s'", r->error_text, word);
}

static void expect_answer(watched *w)
{
    reading r = read_all(submit(&w->f, "{\"prompt\": \"a\"}"));
    assert_int_equal(r.finish, ENGINE_FINISH_STOP);
    assert_string_equal(r.text, "some words");
}

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
        CASE(a_flush_forgets_what_was_computed),
        CASE(a_flush_leaves_running_sequences_alone),
        CASE(a_new_backend_has_an_empty_cache),
        CASE(a_crowd_survives_stuck_steps),
    };
    int failures = cmocka_run_group_tests_name("engine under watch", tests, NULL, NULL);
    fixture_in_flight = 2;
    return failures + cmocka_run_group_tests_name("with two steps in flight", tests, NULL, NULL);
}
