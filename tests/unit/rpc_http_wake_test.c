/* Suspending and waking connections: no wake is lost, a connection that is not suspended is not
 * resumed, and the thread that wakes many connections resumes one of them. Also the ends of work on
 * large bodies: by an answer, or with the server. */
#include "rpc/http/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static _Atomic int n_suspended, n_resumed;
static void (*on_resume)(struct MHD_Connection *mhd); /* called on resume; NULL = nothing */

void __wrap_MHD_suspend_connection(struct MHD_Connection *mhd);
void __wrap_MHD_resume_connection(struct MHD_Connection *mhd);

void __wrap_MHD_suspend_connection(struct MHD_Connection *mhd)
{
    (void)mhd;
    n_suspended++;
}

void __wrap_MHD_resume_connection(struct MHD_Connection *mhd)
{
    n_resumed++;
    if (on_resume) on_resume(mhd);
}

static int setup(void **state)
{
    static http_worker worker;
    static http_wake w;
    n_suspended = n_resumed = 0;
    on_resume = NULL;
    wake_init(&w, &worker, NULL);
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
static void close_at_once(struct MHD_Connection *mhd)
{
    (void)mhd;
    assert_int_equal(pthread_create(&destroyer, NULL, destroy_doomed, NULL), 0);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    assert_false(atomic_load(&destroyed));
}

static void a_wake_outlives_its_release(void **state)
{
    http_worker worker = {0};
    http_wake w;
    (void)state;
    n_suspended = n_resumed = 0;
    wake_init(&w, &worker, NULL);
    doomed = &w;
    on_resume = close_at_once;
    wake_hold(&w);
    assert_true(wake_sleep(&w));
    wake_release(&w);
    pthread_join(destroyer, NULL);
    assert_int_equal(n_resumed, 1);
    on_resume = NULL;
}

/* ---- many connections of a worker ------------------------------------------------------------ */

enum { CROWD = 8 };

/* Connections whose handles for libmicrohttpd are their own addresses. */
typedef struct crowd {
    http_worker worker;
    http_wake wakes[CROWD];
    int resumed[CROWD];
} crowd;

static crowd *watched;

static void count_resumed(struct MHD_Connection *mhd)
{
    http_wake *w = (http_wake *)(void *)mhd;
    watched->resumed[w - watched->wakes]++;
}

static int setup_crowd(void **state)
{
    static crowd c;
    memset(&c, 0, sizeof c);
    for (int i = 0; i < CROWD; i++) {
        http_wake *w = &c.wakes[i];
        wake_init(w, &c.worker, (struct MHD_Connection *)(void *)w);
        wake_begin(w);
        if (!wake_sleep(w)) return -1;
    }
    watched = &c;
    on_resume = count_resumed;
    *state = &c;
    return 0;
}

static void assert_each_resumed_once(const crowd *c)
{
    for (int i = 0; i < CROWD; i++) assert_int_equal(c->resumed[i], 1);
    assert_null(atomic_load(&c->worker.woken));
}

static void the_first_woken_resumes_the_others(void **state)
{
    crowd *c = *state;
    for (int round = 0; round < 3; round++) {
        memset(c->resumed, 0, sizeof c->resumed);
        int leader = (5 + round) % CROWD;
        for (int i = 0; i < CROWD; i++) wake_notify(&c->wakes[(leader + i) % CROWD]);
        wake_notify(&c->wakes[leader]);
        for (int i = 0; i < CROWD; i++) assert_int_equal(c->resumed[i], i == leader);
        wake_begin(&c->wakes[leader]);
        assert_each_resumed_once(c);
        for (int i = 0; i < CROWD; i++) wake_begin(&c->wakes[i]);
        assert_each_resumed_once(c);
        for (int i = 0; i < CROWD; i++) assert_true(wake_sleep(&c->wakes[i]));
    }
    for (int i = 0; i < CROWD; i++) wake_destroy(&c->wakes[i]);
}

static void a_closed_leader_resumes_the_others(void **state)
{
    crowd *c = *state;
    for (int i = 0; i < CROWD; i++) wake_cut(&c->wakes[i]);
    wake_destroy(&c->wakes[0]);
    assert_each_resumed_once(c);
    for (int i = 1; i < CROWD; i++) wake_destroy(&c->wakes[i]);
    assert_each_resumed_once(c);
}

static void a_connection_woken_while_the_leader_runs_leads_again(void **state)
{
    crowd *c = *state;
    wake_notify(&c->wakes[0]);
    wake_begin(&c->wakes[0]);
    for (int i = 1; i < CROWD; i++) wake_notify(&c->wakes[i]);
    wake_begin(&c->wakes[0]);
    assert_int_equal(c->resumed[1], 1);
    assert_int_equal(c->resumed[2], 0);
    wake_begin(&c->wakes[1]);
    assert_each_resumed_once(c);
    for (int i = 0; i < CROWD; i++) wake_destroy(&c->wakes[i]);
}

/* ---- a worker and the threads that wake its connections -------------------------------------- */

enum { STREAMS = 48, TOKENS = 300 };

/* A stream as the engine and its connection see it. */
typedef struct stream {
    http_wake wake;
    pthread_mutex_t lock; // the engine's, for a stream: guards what follows
    bool released;        // the connection is closed: the engine notifies it no more
    int tokens, taken;    // pushed by the engine, read by the worker
    bool closed;          // the worker's
} stream;

typedef struct world {
    http_worker worker;
    stream streams[STREAMS];
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t resumed;
    stream *queue[STREAMS + 1]; // resumed connections
    int n_queue;
    bool overflow;
} world;

static world *the_world;

static void queue_stream(struct MHD_Connection *mhd)
{
    world *w = the_world;
    pthread_mutex_lock(&w->lock);
    w->overflow |= w->n_queue == STREAMS; /* a connection was resumed twice */
    if (!w->overflow) w->queue[w->n_queue++] = (stream *)(void *)mhd;
    pthread_cond_signal(&w->resumed);
    pthread_mutex_unlock(&w->lock);
}

static void push_token(stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->tokens++;
    if (!s->released) wake_notify(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

static bool is_behind(stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool behind = !s->released && s->taken < s->tokens;
    pthread_mutex_unlock(&s->lock);
    return behind;
}

/* Each step finds all connections asleep, as a step of the engine does. */
static void push_tokens(world *w, int from)
{
    static const struct timespec nap = {0, 20000};
    for (int step = 0; step < TOKENS; step++) {
        for (int i = from; i < STREAMS; i += 2) push_token(&w->streams[i]);
        for (int i = from; i < STREAMS; i += 2)
            while (is_behind(&w->streams[i])) nanosleep(&nap, NULL);
    }
}

/* Two threads push, as an engine's thread and its watchdog do. */
static void *push_even(void *ctx)
{
    push_tokens(ctx, 0);
    return NULL;
}

static void *push_odd(void *ctx)
{
    push_tokens(ctx, 1);
    return NULL;
}

/* Cuts the last few connections. */
static void *run_watch(void *ctx)
{
    world *w = ctx;
    for (int i = STREAMS - 4; i < STREAMS; i++) {
        stream *s = &w->streams[i];
        pthread_mutex_lock(&s->lock);
        if (!s->released) wake_cut(&s->wake);
        pthread_mutex_unlock(&s->lock);
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return NULL;
}

static void close_stream(stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->released = true;
    pthread_mutex_unlock(&s->lock);
    wake_destroy(&s->wake);
    s->closed = true;
}

/* Runs a connection until it sleeps or ends. */
static void run_stream(stream *s)
{
    do {
        if (wake_begin(&s->wake) == NEWS_CUT || s->taken == TOKENS) {
            close_stream(s);
            return;
        }
        pthread_mutex_lock(&s->lock);
        s->taken = s->tokens;
        pthread_mutex_unlock(&s->lock);
    } while (s->taken == TOKENS || !wake_sleep(&s->wake));
}

static stream *next_resumed(world *w)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&w->lock);
    int rc = 0;
    while (w->n_queue == 0 && rc == 0) rc = pthread_cond_timedwait(&w->resumed, &w->lock, &until);
    stream *s = NULL;
    if (w->n_queue > 0) {
        s = w->queue[0];
        memmove(w->queue, w->queue + 1, (size_t)--w->n_queue * sizeof w->queue[0]);
    }
    pthread_mutex_unlock(&w->lock);
    return s;
}

static void every_token_of_every_stream_arrives(void **state)
{
    static world w;
    static void *(*const others[])(void *) = {push_even, push_odd, run_watch};
    pthread_t threads[3];
    (void)state;
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.resumed, NULL);
    the_world = &w;
    on_resume = queue_stream;
    for (int i = 0; i < STREAMS; i++) {
        stream *s = &w.streams[i];
        pthread_mutex_init(&s->lock, NULL);
        wake_init(&s->wake, &w.worker, (struct MHD_Connection *)(void *)s);
        run_stream(s);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, others[i], &w), 0);
    for (int n = 0; n < STREAMS;) {
        stream *s = next_resumed(&w);
        assert_non_null(s); /* otherwise a wake was lost */
        run_stream(s);
        n += s->closed;
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    assert_false(w.overflow);
    assert_null(atomic_load(&w.worker.woken));
    for (int i = 0; i < STREAMS - 4; i++) assert_int_equal(w.streams[i].taken, TOKENS);
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
    assert_true(answers_init(&w->service.answers, 0));
    w->server.service = &w->service;
    w->e.server = &w->server;
    wake_init(&w->e.wake, &w->server.workers[0], NULL);
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
        cmocka_unit_test_setup(the_first_woken_resumes_the_others, setup_crowd),
        cmocka_unit_test_setup(a_closed_leader_resumes_the_others, setup_crowd),
        cmocka_unit_test_setup(a_connection_woken_while_the_leader_runs_leads_again, setup_crowd),
        cmocka_unit_test(every_token_of_every_stream_arrives),
        cmocka_unit_test(work_that_comes_too_late_is_given_up),
        cmocka_unit_test(a_refusal_counts_although_a_generation_has_begun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
