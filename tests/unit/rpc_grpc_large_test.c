/* Large messages are parsed by a pool of threads: while the pool is busy, all other calls are
 * answered. */
#include "rpc/grpc/internal.h"
#include "tests/unit/rpc_grpc_fixture.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 1 << 17, LARGE = MOST - 64, SMALL = 1000 };

static _Atomic int n_delivered;

static void count(rpc_call *c, const ProtobufCMessage *m)
{
    const text_message *t = (const text_message *)m;
    char text[32];
    int n = snprintf(text, sizeof text, "%zu", t->service.len);
    text_message reply = text_of(text, (size_t)n);
    atomic_fetch_add(&n_delivered, 1);
    call_reply(c, &reply.base);
}

static void chat(rpc_call *c, const ProtobufCMessage *m)
{
    const text_message *t = (const text_message *)m;
    text_message reply = text_of((const char *)t->service.data, 3);
    call_send(c, &reply.base);
}

static void chat_more(rpc_call *c) { call_receive(c); }
static void chat_half_closed(rpc_call *c) { call_finish(c, GRPC_STATUS_OK, ""); }

static const rpc_method methods[] = {
    {.path = "/t.T/Count", .input = TEXT_INPUT, .message = count},
    {.path = "/t.T/Chat",
     .input = TEXT_INPUT,
     .client_streams = true,
     .message = chat,
     .half_closed = chat_half_closed,
     .writable = chat_more},
};
static const rpc_service test_service = {"t.T", methods, sizeof methods / sizeof *methods};
static const rpc_service *const services[] = {&test_service};

static char bytes[LARGE];

/* Jobs that keep all threads of the pool busy until released, at the latest by teardown, since a
 * front end cannot be destroyed while they run. */
static struct {
    work_job jobs[WORK_THREADS];
    _Atomic int n_running;
    sem_t go;
} block;

static void wait_for_go(void *owner, bool wanted)
{
    (void)owner;
    (void)wanted;
    atomic_fetch_add(&block.n_running, 1);
    while (sem_wait(&block.go) != 0) continue;
}

static void block_pool(fixture *f)
{
    for (int i = 0; i < WORK_THREADS; i++) {
        block.jobs[i] = (work_job){.run = wait_for_go};
        assert_true(work_pool_put(&f->front->work, &block.jobs[i]));
    }
    assert_true(reaches(&block.n_running, WORK_THREADS));
}

static void let_go(void)
{
    for (int i = 0; i < WORK_THREADS; i++) sem_post(&block.go);
}

static int start(void **state, uint64_t body_memory_bytes)
{
    fixture *f = *state = fixture_make(NULL, 0);
    f->core->service.o.max_body_bytes = MOST;
    f->core->service.o.body_memory_bytes = body_memory_bytes;
    atomic_store(&n_delivered, 0);
    atomic_store(&block.n_running, 0);
    sem_init(&block.go, 0, 0);
    memset(bytes, 'x', sizeof bytes);
    fixture_start(f, services, 1);
    return 0;
}

static int setup(void **state) { return start(state, 0); }

static int setup_bounded(void **state)
{
    return start(state, RPC_BODY_FACTOR * (LARGE + SMALL / 2));
}

static int teardown(void **state)
{
    let_go();
    fixture_destroy(*state);
    sem_destroy(&block.go);
    return 0;
}

static client_call *send_text(fixture *f, size_t n)
{
    text_message m = text_of(bytes, n);
    return client_ask(&f->client, "/t.T/Count", NULL, &m.base);
}

static void expect_count(client_call *k, size_t n)
{
    char due[32];
    strbuf in = {0};
    snprintf(due, sizeof due, "%zu", n);
    assert_true(client_read(k, &in));
    assert_int_equal(in.size, 2 + strlen(due));
    assert_memory_equal(in.data + 2, due, strlen(due));
    assert_int_equal(client_end(k), GRPC_STATUS_OK);
    client_destroy(k);
    strbuf_destroy(&in);
}

static void sizes_on_both_sides_of_the_bound(void **state)
{
    fixture *f = *state;
    static const size_t sizes[] = {
        0, SMALL, LARGE_MESSAGE_BYTES - 5, LARGE_MESSAGE_BYTES - 4, LARGE_MESSAGE_BYTES, LARGE};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        expect_count(send_text(f, sizes[i]), sizes[i]);
}

static void others_do_not_wait_for_large_messages(void **state)
{
    enum { N = 4 };
    fixture *f = *state;
    client_call *large[N];
    block_pool(f);
    for (int i = 0; i < N; i++) large[i] = send_text(f, LARGE);
    for (int i = 0; i < 20; i++) expect_count(send_text(f, SMALL), SMALL);
    assert_int_equal(atomic_load(&n_delivered), 20);
    let_go();
    for (int i = 0; i < N; i++) expect_count(large[i], LARGE);
}

static void a_stream_has_its_messages_in_order(void **state)
{
    fixture *f = *state;
    strbuf in = {0};
    client_call *k = client_start(&f->client, "/t.T/Chat", NULL, 0);
    for (int i = 0; i < 20; i++) {
        char due[16];
        snprintf(due, sizeof due, "%03d", i);
        memcpy(bytes, due, 3);
        text_message m = text_of(bytes, i % 2 ? SMALL : LARGE);
        assert_true(client_write(k, &m.base));
        assert_true(client_read(k, &in));
        assert_memory_equal(in.data + 2, due, 3);
    }
    client_half_close(k);
    assert_int_equal(client_end(k), GRPC_STATUS_OK);
    client_destroy(k);
    strbuf_destroy(&in);
}

static void what_is_no_message_is_refused(void **state)
{
    fixture *f = *state;
    client_call *k = client_start(&f->client, "/t.T/Count", NULL, 0);
    memset(bytes, 0xff, sizeof bytes);
    client_write_bytes(k, bytes, sizeof bytes);
    assert_int_equal(client_end(k), GRPC_STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(k->text, "request: not a valid"));
    client_destroy(k);
}

/* A client leaves while its message waits: the method is not called. */
static void a_call_that_ends_meanwhile_is_dropped(void **state)
{
    fixture *f = *state;
    block_pool(f);
    client_call *k = send_text(f, LARGE);
    expect_count(send_text(f, SMALL), SMALL);
    client_cancel(k);
    assert_int_equal(client_end(k), GRPC_STATUS_CANCELLED);
    client_destroy(k);
    expect_count(send_text(f, SMALL), SMALL);
    let_go();
    expect_count(send_text(f, LARGE), LARGE);
    grpc_front_destroy(f->front); // with every waiting message
    f->front = NULL;
    assert_int_equal(atomic_load(&n_delivered), 3);
}

static void *let_go_when_stopping(void *arg)
{
    const grpc_front *f = arg; // which waits for the pool
    while (!atomic_load(&f->stopping)) nap_ms(1);
    let_go();
    return NULL;
}

static void a_server_that_stops_reads_no_more(void **state)
{
    fixture *f = *state;
    pthread_t thread;
    block_pool(f);
    client_call *k = send_text(f, LARGE);
    expect_count(send_text(f, SMALL), SMALL);
    assert_int_equal(pthread_create(&thread, NULL, let_go_when_stopping, f->front), 0);
    grpc_front_destroy(f->front);
    f->front = NULL;
    pthread_join(thread, NULL);
    assert_int_equal(client_end(k), GRPC_STATUS_UNAVAILABLE);
    client_destroy(k);
    assert_int_equal(atomic_load(&n_delivered), 1);
}

/* Waiting messages have a common bound. Messages of one connection may arrive in any order, so the
 * test sends until one is refused. */
static void too_many_at_once_are_refused(void **state)
{
    enum { TRIES = 100, TRY_MS = 300 };
    fixture *f = *state;
    client_call *k[LARGE_MESSAGES];
    grpc_status_code code = GRPC_STATUS_OK;
    block_pool(f);
    for (int i = 0; i < LARGE_MESSAGES; i++) k[i] = send_text(f, LARGE);
    for (int i = 0; i < TRIES && code != GRPC_STATUS_RESOURCE_EXHAUSTED; i++) {
        size_t n;
        text_message m = text_of(bytes, LARGE);
        client_call *another = client_start(&f->client, "/t.T/Count", NULL, TRY_MS);
        client_write(another, &m.base);
        code = client_end(another);
        if (code == GRPC_STATUS_RESOURCE_EXHAUSTED) {
            assert_string_equal(another->text,
                                "request: too many large messages, or too little memory for more");
            assert_non_null(client_trailer(another, "retry-after-ms", &n));
        }
        client_destroy(another);
    }
    assert_int_equal(code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    expect_count(send_text(f, SMALL), SMALL);
    let_go();
    for (int i = 0; i < LARGE_MESSAGES; i++) {
        strbuf in = {0};
        client_read(k[i], &in);
        strbuf_destroy(&in);
        code = client_end(k[i]);
        assert_true(code == GRPC_STATUS_OK || code == GRPC_STATUS_RESOURCE_EXHAUSTED);
        client_destroy(k[i]);
    }
    expect_count(send_text(f, LARGE), LARGE); // there is room again
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static void wait_for_bodies(fixture *f, bool some)
{
    for (int i = 0; (atomic_load(&f->core->service.body_bytes) > 0) != some; i++) {
        if (i == 18000) fail_msg("the memory of bodies is not what it should be");
        nap_ms(10);
    }
}

/* The memory of all messages has a bound, too, and a call gives its part back when it ends. */
static void memory_of_messages_is_bounded(void **state)
{
    fixture *f = *state;
    block_pool(f);
    client_call *first = send_text(f, LARGE);
    wait_for_bodies(f, true);
    client_call *second = send_text(f, SMALL);
    assert_int_equal(client_end(second), GRPC_STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(second->text,
                        "request: too many large messages, or too little memory for more");
    client_destroy(second);
    let_go();
    expect_count(first, LARGE);
    wait_for_bodies(f, false);
    expect_count(send_text(f, LARGE), LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sizes_on_both_sides_of_the_bound),
        TEST(others_do_not_wait_for_large_messages),
        TEST(a_stream_has_its_messages_in_order),
        TEST(what_is_no_message_is_refused),
        TEST(a_call_that_ends_meanwhile_is_dropped),
        TEST(a_server_that_stops_reads_no_more),
        TEST(too_many_at_once_are_refused),
        cmocka_unit_test_setup_teardown(memory_of_messages_is_bounded, setup_bounded, teardown),
    };
    return cmocka_run_group_tests_name("rpc_grpc_large", tests, NULL, NULL);
}
