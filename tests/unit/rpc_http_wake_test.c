/* Suspending and waking a connection: no wake is lost, and a connection that is not suspended is
 * not resumed. Also the ends of work on large bodies: by an answer, or with the server. */
#include "rpc/http/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

static int n_suspended, n_resumed;
static void (*on_resume)(void); /* called on resume; NULL = nothing */

void __wrap_MHD_suspend_connection(struct MHD_Connection *mhd);
void __wrap_MHD_resume_connection(struct MHD_Connection *mhd);

void __wrap_MHD_suspend_connection(struct MHD_Connection *mhd)
{
    (void)mhd;
    n_suspended++;
}

void __wrap_MHD_resume_connection(struct MHD_Connection *mhd)
{
    (void)mhd;
    n_resumed++;
    if (on_resume) on_resume();
}

static int setup(void **state)
{
    static http_wake w;
    n_suspended = n_resumed = 0;
    on_resume = NULL;
    wake_init(&w, NULL);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    wake_destroy(*state);
    return 0;
}

static void news_before_sleep_keeps_it_awake(void **state)
{
    http_wake *w = *state;
    assert_int_equal(wake_begin(w), NEWS_NONE);
    wake_notify(w);
    assert_false(wake_sleep(w));
    assert_int_equal(n_suspended + n_resumed, 0);
    assert_int_equal(wake_begin(w), NEWS_NONE);
    assert_true(wake_sleep(w));
    assert_int_equal(n_suspended, 1);
}

static void news_in_sleep_wakes_once(void **state)
{
    http_wake *w = *state;
    wake_begin(w);
    assert_true(wake_sleep(w));
    wake_notify(w);
    wake_notify(w);
    wake_notify(w);
    assert_int_equal(n_resumed, 1);
    wake_begin(w);
    assert_true(wake_sleep(w));
    assert_int_equal(n_suspended, 2);
}

static void a_cut_connection_wakes(void **state)
{
    http_wake *w = *state;
    wake_begin(w);
    assert_true(wake_sleep(w));
    wake_cut(w);
    assert_int_equal(n_resumed, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(wake_begin(w), NEWS_CUT);
        assert_false(wake_sleep(w));
    }
}

static void an_abort_is_reported_once(void **state)
{
    http_wake *w = *state;
    wake_begin(w);
    wake_abort(w);
    assert_false(wake_sleep(w));
    assert_int_equal(wake_begin(w), NEWS_ABORT);
    assert_int_equal(wake_begin(w), NEWS_NONE);
    assert_true(wake_sleep(w));
}

/* While another thread works on a request, its connection stays suspended whatever happens. */
static void a_held_connection_sleeps_on(void **state)
{
    http_wake *w = *state;
    wake_hold(w);
    wake_notify(w);
    assert_true(wake_sleep(w));
    wake_cut(w);
    wake_abort(w);
    assert_true(wake_is_cut(w));
    assert_int_equal(n_resumed, 0);
    wake_release(w);
    assert_int_equal(n_resumed, 1);
    assert_int_equal(wake_begin(w), NEWS_CUT);
}

static void a_connection_released_before_sleep_stays_awake(void **state)
{
    http_wake *w = *state;
    wake_hold(w);
    wake_release(w);
    assert_false(wake_sleep(w));
    assert_int_equal(n_suspended + n_resumed, 0);
}

/* ---- a connection that is closed during its wake --------------------------------------------- */

static http_wake *doomed;
static pthread_t destroyer;
static _Atomic bool destroyed;

static void *destroy_doomed(void *ctx)
{
    (void)ctx;
    wake_destroy(doomed);
    atomic_store(&destroyed, true);
    return NULL;
}

/* libmicrohttpd's thread finds the client gone, and closes the resumed connection. */
static void close_at_once(void)
{
    assert_int_equal(pthread_create(&destroyer, NULL, destroy_doomed, NULL), 0);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    assert_false(atomic_load(&destroyed));
}

static void a_wake_outlives_its_release(void **state)
{
    http_wake w;
    (void)state;
    n_suspended = n_resumed = 0;
    wake_init(&w, NULL);
    doomed = &w;
    on_resume = close_at_once;
    wake_hold(&w);
    assert_true(wake_sleep(&w));
    wake_release(&w);
    pthread_join(destroyer, NULL);
    assert_int_equal(n_resumed, 1);
    on_resume = NULL;
}

/* ---- work on large bodies -------------------------------------------------------------------- */

/* An exchange whose connection is NULL for libmicrohttpd: no answer can be queued. */
typedef struct worked {
    service service;
    http_server server;
    exchange e;
} worked;

static worked *worked_make(void)
{
    error err;
    worked *w = calloc(1, sizeof *w);
    assert_non_null(w);
    answers_init(&w->service.answers);
    w->server.service = &w->service;
    w->e.server = &w->server;
    wake_init(&w->e.wake, NULL);
    assert_true(status_ok(work_pool_create(&w->server.work, &err)));
    n_suspended = n_resumed = 0;
    on_resume = NULL;
    return w;
}

static void worked_destroy(worked *w)
{
    work_pool_destroy(&w->server.work);
    wake_destroy(&w->e.wake);
    strbuf_destroy(&w->e.out);
    answers_destroy(&w->service.answers);
    free(w);
}

/* The request's body was complete just when the server stopped. Its connection must not be
 * suspended, since no thread would wake it. */
static void work_that_comes_too_late_is_given_up(void **state)
{
    (void)state;
    worked *w = worked_make();
    work_pool_stop(&w->server.work);
    http_work_put(&w->server.work, &w->e);
    assert_int_equal(n_suspended, 0);
    assert_true(w->e.failed);
    worked_destroy(w);
}

static _Atomic bool handled;

static void refuse_after_start(http_exchange *x)
{
    exchange *e = (exchange *)x;
    e->generation = (generation *)(void *)e; /* it runs, without an answer to read it by */
    http_reply_error(x, &(openai_error){.status = 503, .type = "T", .message = "out of memory"});
    atomic_store(&handled, true);
}

static void a_refusal_counts_although_a_generation_has_begun(void **state)
{
    static const http_route route = {"POST", "/r", false, true, refuse_after_start};
    (void)state;
    worked *w = worked_make();
    w->e.route = &route;
    atomic_store(&handled, false);
    http_work_put(&w->server.work, &w->e);
    for (int i = 0; i < 60000 && !atomic_load(&handled); i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_true(atomic_load(&handled));
    work_pool_stop(&w->server.work);
    if (n_suspended) http_work_resumed(&w->e);
    assert_int_equal(w->e.stage, STAGE_ANSWERED);
    assert_int_equal(w->service.answers.n_rows, 1);
    assert_string_equal(w->service.answers.rows[0].code, "503");
    worked_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(news_before_sleep_keeps_it_awake, setup, teardown),
        cmocka_unit_test_setup_teardown(news_in_sleep_wakes_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cut_connection_wakes, setup, teardown),
        cmocka_unit_test_setup_teardown(an_abort_is_reported_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_held_connection_sleeps_on, setup, teardown),
        cmocka_unit_test_setup_teardown(a_connection_released_before_sleep_stays_awake, setup,
                                        teardown),
        cmocka_unit_test(a_wake_outlives_its_release),
        cmocka_unit_test(work_that_comes_too_late_is_given_up),
        cmocka_unit_test(a_refusal_counts_although_a_generation_has_begun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
