/* The inbox: which news a batch takes, and in which order. The engine has no threads here. */
#include "engine/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STREAMS = 3 * SCHED_ADDS_MOST };

typedef struct box {
    engine e;
    engine_stream streams[STREAMS];
} box;

static int setup(void **state)
{
    box *b = calloc(1, sizeof *b);
    if (!b) return -1;
    pthread_mutex_init(&b->e.inbox.lock, NULL);
    pthread_cond_init(&b->e.inbox.arrived, NULL);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    box *b = *state;
    pthread_cond_destroy(&b->e.inbox.arrived);
    pthread_mutex_destroy(&b->e.inbox.lock);
    free(b);
    return 0;
}

/* Checks that the batch holds exactly the streams first, first + 1, .. from `from` on, and returns
 * how many. */
static uint32_t count_in_order(const box *b, const engine_stream *from, uint32_t first)
{
    uint32_t n = 0;
    for (const engine_stream *s = from; s; s = s->taken_next, n++) {
        assert_ptr_equal(s, &b->streams[first + n]);
        assert_int_equal(s->queued, 0);
        assert_true(s->taken & INBOX_ADD);
    }
    return n;
}

static void many_arrivals_are_taken_in_order_and_in_parts(void **state)
{
    box *b = *state;
    uint32_t n = 2 * SCHED_ADDS_MOST + 7;
    for (uint32_t i = 0; i < n; i++) inbox_put(&b->e, INBOX_ADD, &b->streams[i]);
    inbox_batch batch = inbox_drain(&b->e, 0);
    assert_int_equal(count_in_order(b, batch.first, 0), SCHED_ADDS_MOST);
    /* One that arrives meanwhile is behind those that wait. No batch waits for news before all are
     * taken. */
    inbox_put(&b->e, INBOX_ADD, &b->streams[n]);
    batch = inbox_drain(&b->e, -1);
    assert_int_equal(count_in_order(b, batch.first, SCHED_ADDS_MOST), SCHED_ADDS_MOST);
    batch = inbox_drain(&b->e, -1);
    assert_int_equal(count_in_order(b, batch.first, 2 * SCHED_ADDS_MOST), 8);
    assert_null(inbox_drain(&b->e, 0).first);
}

/* A request of more tokens than a batch takes goes alone. */
static void tokens_bound_a_batch_too(void **state)
{
    box *b = *state;
    const uint32_t tokens[] = {SCHED_ADD_TOKENS_MOST / 2, SCHED_ADD_TOKENS_MOST / 2, 1,
                               SCHED_ADD_TOKENS_MOST + 1, 5};
    for (uint32_t i = 0; i < 5; i++) {
        b->streams[i].n_tokens = tokens[i];
        inbox_put(&b->e, INBOX_ADD, &b->streams[i]);
    }
    assert_int_equal(count_in_order(b, inbox_drain(&b->e, 0).first, 0), 2);
    assert_int_equal(count_in_order(b, inbox_drain(&b->e, 0).first, 2), 1);
    assert_int_equal(count_in_order(b, inbox_drain(&b->e, 0).first, 3), 1);
    assert_int_equal(count_in_order(b, inbox_drain(&b->e, 0).first, 4), 1);
}

/* An abort or a resumption never waits behind arrivals. The abort of a request that still waits
 * stays in its place, and is told with it. */
static void other_news_pass_arrivals(void **state)
{
    box *b = *state;
    uint32_t n = SCHED_ADDS_MOST + 2;
    for (uint32_t i = 0; i < n; i++) inbox_put(&b->e, INBOX_ADD, &b->streams[i]);
    inbox_put(&b->e, INBOX_RESUME, &b->streams[n]);
    inbox_put(&b->e, INBOX_ABORT, &b->streams[n]);
    inbox_put(&b->e, INBOX_ABORT, &b->streams[n - 1]);
    inbox_batch batch = inbox_drain(&b->e, 0);
    assert_ptr_equal(batch.first, &b->streams[n]);
    assert_int_equal(batch.first->taken, INBOX_RESUME | INBOX_ABORT);
    assert_int_equal(count_in_order(b, batch.first->taken_next, 0), SCHED_ADDS_MOST);
    batch = inbox_drain(&b->e, 0);
    assert_int_equal(count_in_order(b, batch.first, SCHED_ADDS_MOST), 2);
    assert_int_equal(b->streams[n - 1].taken, INBOX_ADD | INBOX_ABORT);
}

/* When the engine stops, or has no backend, every request is told so at once. */
static void the_last_batch_takes_all(void **state)
{
    box *b = *state;
    for (uint32_t i = 0; i < STREAMS; i++) inbox_put(&b->e, INBOX_ADD, &b->streams[i]);
    assert_int_equal(count_in_order(b, inbox_drain_all(&b->e, 0).first, 0), STREAMS);
    for (uint32_t i = 0; i < STREAMS; i++) inbox_put(&b->e, INBOX_ADD, &b->streams[i]);
    b->e.inbox.stop = true;
    inbox_batch batch = inbox_drain(&b->e, -1);
    assert_true(batch.stop);
    assert_int_equal(count_in_order(b, batch.first, 0), STREAMS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(many_arrivals_are_taken_in_order_and_in_parts, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(tokens_bound_a_batch_too, setup, teardown),
        cmocka_unit_test_setup_teardown(other_news_pass_arrivals, setup, teardown),
        cmocka_unit_test_setup_teardown(the_last_batch_takes_all, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
