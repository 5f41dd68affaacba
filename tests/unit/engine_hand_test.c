/* Copies of a prompt that another server is to fetch, which are made while the backend is stuck or
 * the engine ends: none of their streams is held for ever. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

#include <pthread.h>

enum { CELL_BYTES = 32, ROOM = 1 << 20, LONG = 40 };
#define AGES INT64_C(10000000000) /* microseconds: longer than any test runs */

typedef struct handing {
    fixture f; /* the first member, since the fixture's teardown is used */
    backend_ops ops;
    const backend_ops *scripted;
    transfer *transfer;
    _Atomic bool reading;        /* a prompt is being copied */
    _Atomic bool block, blocked; /* no step with rows is collected; one is waiting for that */
    bool behind_prompt;          /* that step is the second behind one of a prompt of LONG tokens */
    uint32_t left;               /* steps until then */
} handing;

/* The scripted backend's context is the first member of the fixture, which is that of `handing`. */
static handing *handing_of(void *ctx) { return ctx; }

static const backend_info *own_info(void *ctx)
{
    return handing_of(ctx)->scripted->info(&handing_of(ctx)->f.model);
}

static status own_submit(void *ctx, const step_plan *plan)
{
    return handing_of(ctx)->scripted->submit(&handing_of(ctx)->f.model, plan);
}

static status own_collect(void *ctx, const step_result **out)
{
    handing *h = ctx;
    const step_plan *plan = h->f.model.plans[0];
    bool has_rows = plan->n_seqs > 0;
    while (has_rows && atomic_load(&h->block)) {
        atomic_store(&h->blocked, true);
        nap();
    }
    if (h->left > 0 && --h->left == 0) atomic_store(&h->block, true);
    for (uint32_t i = 0; h->behind_prompt && i < plan->n_seqs; i++)
        if (plan->seqs[i].n_tokens == LONG) h->left = 1;
    return h->scripted->collect(&h->f.model, out);
}

static void own_interrupt(void *ctx) { (void)ctx; }
static void own_destroy(void *ctx) { (void)ctx; }

/* Ends once the engine thread waits for a step. */
static bool own_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                           uint8_t *const *to, uint32_t each)
{
    handing *h = ctx;
    if (!h->behind_prompt) atomic_store(&h->block, true);
    atomic_store(&h->reading, true);
    while (!h->behind_prompt && !atomic_load(&h->blocked)) nap();
    return h->scripted->read_cells(&h->f.model, cells, n, n_slots, to, each);
}

static status restart(void *ctx, backend *out, error *err)
{
    handing *h = ctx;
    (void)err;
    h->f.model.n_plans = 0;
    *out = h->f.backend;
    return STATUS_IS_OK;
}

static int setup(void **state)
{
    handing *h = calloc(1, sizeof *h);
    fixture *plain = fixture_create();
    error err;
    h->f = *plain;
    free(plain);
    h->scripted = h->f.backend.ops;
    h->ops = (backend_ops){.info = own_info,
                           .submit = own_submit,
                           .collect = own_collect,
                           .interrupt = own_interrupt,
                           .destroy = own_destroy,
                           .read_cells = own_read_cells};
    h->f.backend = (backend){&h->ops, h};
    h->f.alloc.ctx = &h->f;
    h->f.model.info.kv_identity = 1;
    h->f.model.info.block_bytes = CELL_BYTES * pkv_groups(&h->f.model.info.geometry);
    const transfer_options t = {
        .listen = "127.0.0.1:0", .bytes = ROOM, .ttl_us = AGES, .timeout_us = AGES};
    if (!status_ok(transfer_open(&t, &h->transfer, &err))) fail_msg("%s", err.text);
    engine_options *o = &h->f.options;
    o->backend = &h->f.backend;
    o->tokenizer = h->f.tokenizer;
    o->stop_ids = &h->f.eos;
    o->alloc = &h->f.alloc;
    o->transfer = h->transfer;
    o->restart = restart;
    o->restart_ctx = h;
    o->step_timeout_us = AGES;
    *state = h;
    answer(&h->f, "some words");
    fixture_start(&h->f);
    return 0;
}

static int teardown(void **state)
{
    handing *h = *state;
    transfer *t = h->transfer;
    atomic_store(&h->block, false);
    int failed = fixture_teardown(state);
    transfer_close(t);
    return failed;
}

/* Submits a request whose prompt is to be fetched, and another one, for which the engine thread
 * waits in the backend. Returns once the prompt was copied, which the engine thread does not know
 * yet. */
static void copy_prompt(handing *h, engine_stream **prompt, engine_stream **beside)
{
    *prompt = submit(&h->f, "{\"prompt\": \"a\", \"max_tokens\": 1, "
                            "\"kv_transfer_params\": {\"do_remote_decode\": true}}");
    while (!atomic_load(&h->reading)) nap();
    *beside = submit(&h->f, "{\"prompt\": \"a\"}");
    inbox *in = &h->f.engine->inbox;
    for (bool copied = false; !copied;) {
        pthread_mutex_lock(&in->lock);
        copied = in->handed != NULL;
        pthread_mutex_unlock(&in->lock);
        if (!copied) nap();
    }
    assert_int_equal(transfer_count(h->transfer).records, 1);
}

/* Makes the step that the engine thread waits for AGES old, or its interruption. */
static void expire(handing *h)
{
    step_watch *w = &h->f.engine->watch;
    pthread_mutex_lock(&w->lock);
    if (w->abandoned) w->abandoned_us -= AGES;
    else w->started_us -= AGES;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static void wait_for(const handing *h, engine_state state)
{
    while (engine_get_stats(h->f.engine).state != state) nap();
}

static void a_copy_is_let_go_where_the_backend_is_given_up(void **state)
{
    handing *h = *state;
    engine_stream *prompt, *beside;
    copy_prompt(h, &prompt, &beside);
    expire(h);
    reading lost = read_all(beside);
    assert_int_equal(lost.error_code, STATUS_UNAVAILABLE);
    expire(h);
    wait_for(h, ENGINE_BROKEN);
    atomic_store(&h->block, false);
    wait_for(h, ENGINE_WORKING);
    assert_int_equal(atomic_load(&prompt->references), 1);
    engine_stream_release(prompt);
}

static void *end_engine(void *e)
{
    engine_destroy(e);
    return NULL;
}

static void a_copy_is_let_go_where_the_engine_ends(void **state)
{
    handing *h = *state;
    engine_stream *prompt, *beside;
    pthread_t thread;
    copy_prompt(h, &prompt, &beside);
    atomic_fetch_add(&prompt->references, 1); /* the test's own */
    engine_stream_release(prompt);
    engine_stream_release(beside);
    assert_int_equal(pthread_create(&thread, NULL, end_engine, h->f.engine), 0);
    inbox *in = &h->f.engine->inbox;
    for (bool stops = false; !stops;) {
        pthread_mutex_lock(&in->lock);
        stops = in->stop;
        pthread_mutex_unlock(&in->lock);
    }
    atomic_store(&h->block, false);
    pthread_join(thread, NULL);
    h->f.engine = NULL;
    assert_int_equal(atomic_load(&prompt->references), 1);
    stream_unref(prompt);
}

/* With two steps in flight those that were submitted by the time a copy is due may use its pages,
 * or move them: the one behind the prompt's, and the one that was planned when the prompt was
 * done. */
static void a_copy_waits_for_the_steps_in_front_of_it(void **state)
{
    handing *h = *state;
    strbuf json = {0};
    h->behind_prompt = true;
    atomic_store(&h->f.model.hold_at, 5); /* the other request goes on until the prompt has come */
    engine_stream *beside =
        submit(&h->f, "{\"prompt\": \"a\", \"ignore_eos\": true, \"max_tokens\": 400}");
    while (!atomic_load(&h->f.model.hold)) nap();
    strbuf_puts(&json, "{\"kv_transfer_params\": {\"do_remote_decode\": true}, \"max_tokens\": 1, "
                       "\"prompt_token_ids\": [1");
    for (uint32_t i = 1; i < LONG; i++) strbuf_printf(&json, ",%u", i);
    strbuf_puts(&json, "]}");
    engine_stream *prompt = submit(&h->f, json.data);
    strbuf_destroy(&json);
    while (engine_get_stats(h->f.engine).requests_prepared < 2) nap();
    atomic_store(&h->f.model.hold_at, 0);
    atomic_store(&h->f.model.hold, false);
    while (!atomic_load(&h->blocked)) nap();
    for (int i = 0; i < 100; i++) nap(); /* a copy that did not wait would begin */
    assert_false(atomic_load(&h->reading));
    atomic_store(&h->block, false);
    assert_int_equal(read_stream(prompt).finish, ENGINE_FINISH_LENGTH);
    assert_true(prompt->transfer.held && atomic_load(&h->reading));
    engine_stream_release(prompt);
    assert_int_equal(read_all(beside).finish, ENGINE_FINISH_LENGTH);
}

static int setup_ahead(void **state)
{
    fixture_in_flight = 2;
    int failed = setup(state);
    fixture_in_flight = 1;
    return failed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_copy_is_let_go_where_the_backend_is_given_up, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_copy_is_let_go_where_the_engine_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(a_copy_waits_for_the_steps_in_front_of_it, setup_ahead,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
