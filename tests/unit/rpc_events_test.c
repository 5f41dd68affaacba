/* KV events are numbered, kept while there is room, never torn, and every reader is notified. */
#include "tests/unit/rpc_fixture.h"

enum { PAGE = 4, KEPT = 8 };

static void stored(rpc_events *e, uint64_t n)
{
    uint32_t tokens[PAGE] = {(uint32_t)n, (uint32_t)n + 1, (uint32_t)n + 2, (uint32_t)n + 3};
    pkv_block_event event = {
        .kind = PKV_BLOCK_STORED, .hash = n, .parent = n - 1, .tokens = tokens};
    rpc_events_on_block(e, &event);
}

static void numbers_and_contents(void **state)
{
    (void)state;
    rpc_events *e;
    kv_event k;
    uint32_t tokens[PAGE];
    assert_true(status_ok(rpc_events_create(KEPT, PAGE, &e)));
    assert_int_equal(rpc_events_next(e), 1);
    assert_int_equal(rpc_events_oldest(e), 1);
    assert_int_equal(rpc_events_read(e, 1, &k, tokens).code, STATUS_NOT_FOUND);
    assert_int_equal(rpc_events_read(e, 0, &k, tokens).code, STATUS_LIMIT);
    stored(e, 100);
    rpc_events_on_block(e, &(pkv_block_event){.kind = PKV_BLOCK_REMOVED, .hash = 100});
    rpc_events_on_block(e, &(pkv_block_event){.kind = PKV_CLEARED});
    assert_int_equal(rpc_events_next(e), 4);

    assert_true(status_ok(rpc_events_read(e, 1, &k, tokens)));
    assert_int_equal(k.sequence, 1);
    assert_int_equal(k.kind, KV_STORED);
    assert_int_equal(k.hash, 100);
    assert_int_equal(k.parent, 99);
    assert_ptr_equal(k.tokens, tokens);
    assert_int_equal(tokens[3], 103);
    assert_true(k.time > 1.6e9);
    assert_true(status_ok(rpc_events_read(e, 2, &k, tokens)));
    assert_int_equal(k.kind, KV_REMOVED);
    assert_int_equal(k.hash, 100);
    assert_null(k.tokens);
    assert_true(status_ok(rpc_events_read(e, 3, &k, tokens)));
    assert_int_equal(k.kind, KV_CLEARED);
    rpc_events_destroy(e);
}

/* A block with hidden tokens leaves none in the ring: neither its own nor those of the event that
 * had the slot before. */
static void a_hidden_block_is_its_hash_alone(void **state)
{
    (void)state;
    rpc_events *e;
    kv_event k;
    uint32_t tokens[PAGE] = {9, 9, 9, 9};
    assert_true(status_ok(rpc_events_create(KEPT, PAGE, &e)));
    for (uint64_t n = 1; n <= KEPT; n++) stored(e, n);
    rpc_events_on_block(
        e, &(pkv_block_event){.kind = PKV_BLOCK_STORED, .hash = 50, .parent = 40, .tokens = NULL});
    assert_true(status_ok(rpc_events_read(e, KEPT + 1, &k, tokens)));
    assert_int_equal(k.kind, KV_STORED);
    assert_int_equal(k.hash, 50);
    assert_int_equal(k.parent, 40);
    assert_true(k.hidden);
    assert_null(k.tokens);
    for (int i = 0; i < PAGE; i++) assert_int_equal(tokens[i], 9);
    rpc_events_destroy(e);
}

static void the_oldest_are_forgotten(void **state)
{
    (void)state;
    rpc_events *e;
    kv_event k;
    uint32_t tokens[PAGE];
    assert_true(status_ok(rpc_events_create(KEPT, PAGE, &e)));
    for (uint64_t n = 1; n <= KEPT + 3; n++) stored(e, n);
    assert_int_equal(rpc_events_oldest(e), 4);
    assert_int_equal(rpc_events_read(e, 3, &k, tokens).code, STATUS_LIMIT);
    for (uint64_t n = 4; n <= KEPT + 3; n++) {
        assert_true(status_ok(rpc_events_read(e, n, &k, tokens)));
        assert_int_equal(k.hash, n);
        assert_int_equal(tokens[0], n);
    }
    assert_int_equal(rpc_events_read(e, KEPT + 4, &k, tokens).code, STATUS_NOT_FOUND);
    rpc_events_destroy(e);
}

static void count_call(void *ctx) { atomic_fetch_add((_Atomic int *)ctx, 1); }

static void one_word_for_many_events(void **state)
{
    (void)state;
    rpc_events *e;
    kv_event k;
    uint32_t tokens[PAGE];
    _Atomic int n_notified = 0;
    listener l = {.notify = count_call, .ctx = &n_notified};
    assert_true(status_ok(rpc_events_create(KEPT, PAGE, &e)));
    listeners_add(rpc_events_listeners(e), &l);
    for (uint64_t n = 1; n <= 5; n++) stored(e, n);
    assert_int_equal(atomic_load(&n_notified), 1);
    /* A reader in the middle finds the rest without a notification; one that saw the end is
     * notified. */
    assert_true(status_ok(rpc_events_read(e, 1, &k, tokens)));
    stored(e, 6);
    assert_int_equal(atomic_load(&n_notified), 1);
    assert_int_equal(rpc_events_read(e, 7, &k, tokens).code, STATUS_NOT_FOUND);
    stored(e, 7);
    assert_int_equal(atomic_load(&n_notified), 2);
    (void)rpc_events_next(e);
    stored(e, 8);
    assert_int_equal(atomic_load(&n_notified), 3);
    listeners_remove(rpc_events_listeners(e), &l);
    (void)rpc_events_next(e);
    stored(e, 9);
    assert_int_equal(atomic_load(&n_notified), 3);
    rpc_events_destroy(e);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { READERS = 3, EVENTS = 20000 };

typedef struct reader {
    rpc_events *events;
    _Atomic int n_notified;
    listener listener;
    uint64_t seen, lost;
    pthread_t thread;
} reader;

static void *follow(void *ctx)
{
    reader *r = ctx;
    kv_event k;
    uint32_t tokens[PAGE];
    for (uint64_t next = 1; next <= EVENTS;) {
        status st = rpc_events_read(r->events, next, &k, tokens);
        if (status_ok(st)) {
            assert_true(k.sequence == next && k.hash == next);
            for (uint32_t i = 0; i < PAGE; i++) assert_true(tokens[i] == (uint32_t)next + i);
            r->seen++;
            next++;
        } else if (st.code == STATUS_LIMIT) {
            uint64_t oldest = rpc_events_oldest(r->events);
            r->lost += oldest - next;
            next = oldest;
        } else {
            while (atomic_exchange(&r->n_notified, 0) == 0) rpc_fixture_nap();
        }
    }
    return NULL;
}

/* Readers sleep until they are notified: with a missed notification this test would not end. */
static void readers_follow_a_writer(void **state)
{
    (void)state;
    rpc_events *e;
    reader readers[READERS] = {0};
    assert_true(status_ok(rpc_events_create(64, PAGE, &e)));
    for (int i = 0; i < READERS; i++) {
        reader *r = &readers[i];
        r->events = e;
        r->listener = (listener){.notify = count_call, .ctx = &r->n_notified};
        listeners_add(rpc_events_listeners(e), &r->listener);
        assert_int_equal(pthread_create(&r->thread, NULL, follow, r), 0);
    }
    for (uint64_t n = 1; n <= EVENTS; n++) {
        stored(e, n);
        if (n % 50 == 0) rpc_fixture_nap();
    }
    for (int i = 0; i < READERS; i++) {
        pthread_join(readers[i].thread, NULL);
        listeners_remove(rpc_events_listeners(e), &readers[i].listener);
        assert_int_equal(readers[i].seen + readers[i].lost, EVENTS);
        assert_true(readers[i].seen > 0);
    }
    rpc_events_destroy(e);
}

/* Events of the engine arrive here. */
static void the_engine_feeds_them(void **state)
{
    (void)state;
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    rpc_fixture_answer(f, "one two three four five six seven eight nine ten eleven twelve");
    generation *g = rpc_fixture_start(
        f, "{\"prompt\": \"a prompt of more than a page of tokens, all of them different\"}", 1,
        NULL);
    rpc_fixture_wait_idle(f);
    generation_release(g);
    uint32_t tokens[16];
    kv_event k;
    assert_true(rpc_events_next(f->events) > 1);
    assert_true(status_ok(rpc_events_read(f->events, 1, &k, tokens)));
    assert_int_equal(k.kind, KV_STORED);
    assert_int_equal(k.parent, 0);
    rpc_fixture_destroy(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_contents),
        cmocka_unit_test(a_hidden_block_is_its_hash_alone),
        cmocka_unit_test(the_oldest_are_forgotten),
        cmocka_unit_test(one_word_for_many_events),
        cmocka_unit_test(readers_follow_a_writer),
        cmocka_unit_test(the_engine_feeds_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
