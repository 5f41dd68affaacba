/* Several completion queues: calls of one connection are spread over their threads, each call stays
 * on one thread, and a wake reaches every call. */
#include "tests/unit/rpc_grpc_fixture.h"

#include <unistd.h>

enum { QUEUES = 3, CALLS = 30, ROUNDS = 40 };

/* ---- a service for tests --------------------------------------------------------------------- */

static _Atomic int begun, ended, moved, ticks;
static _Atomic int threads_of[CALLS]; // the thread of each call
static listener_list ticker;

/* A call that sends a message for each tick, and ends with the last. */
typedef struct stay {
    listener wake;
    int thread; // the thread that the call began on
    int n_sent;
} stay;

static void stay_begin(rpc_call *c, const ProtobufCMessage *m)
{
    (void)m;
    stay *s = calloc(1, sizeof *s);
    int at = atomic_fetch_add(&begun, 1);
    assert_true(at < CALLS);
    s->thread = gettid();
    atomic_store(&threads_of[at], s->thread);
    s->wake = (listener){.notify = call_wake, .ctx = c};
    call_set_state(c, s);
    listeners_add(&ticker, &s->wake);
}

static void stay_writable(rpc_call *c)
{
    stay *s = call_state(c);
    text_message m = text_of("tick", 4);
    moved += gettid() != s->thread;
    if (s->n_sent == ROUNDS) call_finish(c, GRPC_STATUS_OK, "");
    else if (s->n_sent < atomic_load(&ticks)) s->n_sent += call_send(c, &m.base);
}

static void stay_end(rpc_call *c)
{
    stay *s = call_state(c);
    moved += gettid() != s->thread;
    listeners_remove(&ticker, &s->wake);
    free(s);
    ended++;
}

static const rpc_method methods[] = {
    {.path = "/t.T/Stay",
     .input = TEXT_INPUT,
     .message = stay_begin,
     .writable = stay_writable,
     .ended = stay_end},
};
static const rpc_service test_service = {"t.T", methods, 1};
static const rpc_service *const services[] = {&test_service};

static int setup(void **state)
{
    fixture *f = fixture_make(NULL, 0);
    *state = f;
    listeners_init(&ticker);
    begun = ended = moved = ticks = 0;
    f->core->service.o.grpc_threads = QUEUES;
    fixture_start(f, services, 1);
    return 0;
}

static int teardown(void **state)
{
    fixture_destroy(*state);
    listeners_destroy(&ticker);
    return 0;
}

static void start_calls(fixture *f, client_call *calls[CALLS])
{
    text_message nothing = text_of("", 0);
    for (int i = 0; i < CALLS; i++)
        calls[i] = client_ask(&f->client, "/t.T/Stay", NULL, &nothing.base);
    assert_true(reaches(&begun, CALLS));
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* All calls come over one connection, as a router's do: each queue gets a third of them. */
static void test_spread(void **state)
{
    fixture *f = *state;
    client_call *calls[CALLS];
    int seen[CALLS] = {0}, n_of[CALLS] = {0}, n_threads = 0;
    start_calls(f, calls);
    for (int i = 0; i < CALLS; i++) {
        int at = 0, thread = atomic_load(&threads_of[i]);
        while (at < n_threads && seen[at] != thread) at++;
        n_threads += at == n_threads;
        seen[at] = thread;
        n_of[at]++;
    }
    assert_int_equal(n_threads, QUEUES);
    for (int i = 0; i < QUEUES; i++)
        assert_in_range(n_of[i], CALLS / QUEUES - 4, CALLS / QUEUES + 4);
    for (int i = 0; i < CALLS; i++) client_destroy(calls[i]);
    assert_true(reaches(&ended, CALLS));
    assert_int_equal(moved, 0);
}

static void *make_ticks(void *unused)
{
    for (int i = 0; i < ROUNDS / 2; i++) {
        ticks++;
        listeners_notify(&ticker);
        if (i % 4 == 0) nap_ms(1);
    }
    return unused;
}

/* Wakes from two threads while the queues' threads send: none is lost, not even the last. */
static void test_wakes(void **state)
{
    fixture *f = *state;
    client_call *calls[CALLS];
    pthread_t makers[2];
    strbuf message = {0};
    start_calls(f, calls);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&makers[i], NULL, make_ticks, NULL), 0);
    for (int i = 0; i < CALLS; i++) {
        int n = 0;
        while (client_read(calls[i], &message)) n++;
        assert_int_equal(n, ROUNDS);
        assert_int_equal(client_end(calls[i]), GRPC_STATUS_OK);
        client_destroy(calls[i]);
    }
    for (int i = 0; i < 2; i++) pthread_join(makers[i], NULL);
    assert_true(reaches(&ended, CALLS));
    assert_int_equal(moved, 0);
    strbuf_destroy(&message);
}

/* The front ends while every queue has live calls, and while they are woken. */
static void test_stop(void **state)
{
    fixture *f = *state;
    client_call *calls[CALLS];
    start_calls(f, calls);
    listeners_notify(&ticker);
    grpc_front_destroy(f->front);
    f->front = NULL;
    assert_int_equal(ended, CALLS);
    assert_int_equal(moved, 0);
    for (int i = 0; i < CALLS; i++) client_destroy(calls[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_spread, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wakes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
