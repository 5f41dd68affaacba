/* The store of responses: whose they are, how long they stay, what makes room. */
#include "rpc/openai/responses/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TTL_US = 1000 };

static bool put(response_store *t, const char *who, const char *id, stored_response *before,
                size_t bytes, int64_t now_us)
{
    strbuf body = {0}, turn = {0};
    strbuf_printf(&body, "\"%s\"", id);
    while (body.size < bytes) strbuf_putc(&body, ' ');
    strbuf_printf(&turn, "[\"turn of %s\"]", id);
    const response_facts f = {
        .id = id, .identity = who, .before = before, .body = &body, .turn = &turn};
    bool ok = response_store_put(t, &f, now_us);
    strbuf_destroy(&body);
    strbuf_destroy(&turn);
    return ok;
}

static bool has(response_store *t, const char *who, const char *id, int64_t now_us)
{
    stored_response *r = response_store_get(t, who, id, now_us);
    response_store_release(t, r);
    return r != NULL;
}

/* Puts a response that goes on from `after`. */
static void put_after(response_store *t, const char *id, const char *after, int64_t now_us)
{
    stored_response *before = response_store_get(t, "alice", after, now_us);
    assert_non_null(before);
    assert_true(put(t, "alice", id, before, 0, now_us));
    response_store_release(t, before);
}

static void a_response_belongs_to_its_key(void **state)
{
    (void)state;
    response_store *t = response_store_create(1 << 20, TTL_US);
    assert_true(put(t, "alice", "resp_1", NULL, 0, 0));
    assert_true(put(t, "", "resp_2", NULL, 0, 0));
    assert_true(has(t, "alice", "resp_1", 0) && has(t, "", "resp_2", 0));
    assert_false(has(t, "bob", "resp_1", 0) || has(t, "", "resp_1", 0));
    assert_false(has(t, "alice", "resp_2", 0));
    assert_false(response_store_delete(t, "bob", "resp_1"));
    assert_true(has(t, "alice", "resp_1", 0));
    assert_true(response_store_delete(t, "alice", "resp_1"));
    assert_false(has(t, "alice", "resp_1", 0));
    assert_false(response_store_delete(t, "alice", "resp_1"));
    response_store_destroy(t);
}

static void a_conversation_is_read_from_its_first_turn_on(void **state)
{
    (void)state;
    response_store *t = response_store_create(1 << 20, TTL_US);
    const stored_response *chain[RESPONSE_TURNS_MAX];
    size_t n;
    put(t, "alice", "resp_1", NULL, 0, 0);
    put_after(t, "resp_2", "resp_1", 0);
    put_after(t, "resp_3", "resp_2", 0);
    put_after(t, "resp_3b", "resp_2", 0);
    stored_response *last = response_store_get(t, "alice", "resp_3", 0);
    assert_int_equal(stored_turns(last, chain), 3);
    assert_string_equal(stored_turn(chain[0], &n), "[\"turn of resp_1\"]");
    assert_string_equal(stored_turn(chain[2], &n), "[\"turn of resp_3\"]");
    /* A deleted response is in no conversation any more, nor are those that went on from it. */
    assert_true(response_store_delete(t, "alice", "resp_2"));
    assert_false(has(t, "alice", "resp_3", 0) || has(t, "alice", "resp_3b", 0));
    assert_true(has(t, "alice", "resp_1", 0));
    assert_string_equal(stored_turn(chain[1], &n), "[\"turn of resp_2\"]"); /* last holds it */
    response_store_release(t, last);
    response_store_destroy(t);
}

static void an_unused_response_is_forgotten(void **state)
{
    (void)state;
    response_store *t = response_store_create(1 << 20, TTL_US);
    put(t, "alice", "resp_1", NULL, 0, 0);
    put_after(t, "resp_2", "resp_1", 100);
    put(t, "alice", "resp_x", NULL, 0, 100);
    assert_true(has(t, "alice", "resp_2", TTL_US)); /* uses resp_1, too */
    assert_false(has(t, "alice", "resp_x", 101 + TTL_US));
    assert_true(has(t, "alice", "resp_1", 2 * TTL_US));
    assert_false(has(t, "alice", "resp_2", 2 * TTL_US + 1)); /* resp_1 alone does not use it */
    assert_false(has(t, "alice", "resp_1", 4 * TTL_US));
    assert_int_equal(response_store_bytes(t), 0);
    response_store_destroy(t);
}

static void who_has_most_makes_room(void **state)
{
    (void)state;
    char id[32];
    response_store *t = response_store_create(20000, TTL_US);
    assert_true(put(t, "bob", "resp_b", NULL, 1000, 0));
    for (int i = 0; i < 30; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        assert_true(put(t, "alice", id, NULL, 1000, i));
        assert_true(response_store_bytes(t) <= 20000);
    }
    assert_true(has(t, "bob", "resp_b", 30));
    assert_true(has(t, "alice", "resp_29", 30) && has(t, "alice", "resp_25", 30));
    assert_false(has(t, "alice", "resp_0", 30) || has(t, "alice", "resp_10", 30));
    assert_false(put(t, "alice", "resp_large", NULL, 30000, 31)); /* it would push out all others */
    assert_true(has(t, "alice", "resp_29", 31));
    response_store_destroy(t);
}

/* A conversation leaves as a whole, its memory too, although each turn refers to the one before. */
static void an_old_conversation_makes_room(void **state)
{
    (void)state;
    response_store *t = response_store_create(8000, TTL_US);
    put(t, "alice", "resp_1", NULL, 2000, 0);
    put_after(t, "resp_2", "resp_1", 0);
    put(t, "alice", "resp_x", NULL, 2000, 1);
    stored_response *held = response_store_get(t, "alice", "resp_x", 2);
    put(t, "alice", "resp_y", NULL, 4000, 3);
    assert_false(has(t, "alice", "resp_1", 3) || has(t, "alice", "resp_2", 3));
    assert_true(has(t, "alice", "resp_x", 3) && has(t, "alice", "resp_y", 3));
    assert_true(response_store_bytes(t) < 8000);
    response_store_release(t, held);
    response_store_destroy(t);
}

/* What requests of one key still refer to cannot be freed: no other key loses anything for it. */
static void what_requests_hold_takes_nothing_from_others(void **state)
{
    (void)state;
    enum { N = 4 };
    char id[32];
    stored_response *held[N];
    response_store *t = response_store_create(8000, TTL_US);
    put(t, "bob", "resp_b", NULL, 1000, 0);
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        put(t, "alice", id, NULL, 1500, 1);
        held[i] = response_store_get(t, "alice", id, 1);
        assert_non_null(held[i]);
    }
    assert_true(put(t, "alice", "resp_more", NULL, 1500, 2));
    assert_false(has(t, "alice", "resp_0", 2));
    assert_true(has(t, "bob", "resp_b", 2));
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "resp_b%d", i);
        put(t, "bob", id, NULL, 1000, 3);
        assert_true(has(t, "bob", id, 3));
        assert_true(response_store_bytes(t) <= 2 * 8000);
    }
    assert_true(has(t, "bob", "resp_b19", 3) && has(t, "bob", "resp_b16", 3));
    assert_false(has(t, "bob", "resp_b", 3)); /* now bob has most */
    for (int i = 0; i < N; i++) response_store_release(t, held[i]);
    put(t, "bob", "resp_last", NULL, 1000, 4);
    assert_true(response_store_bytes(t) <= 8000);
    response_store_destroy(t);
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct client {
    response_store *t;
    const char *who;
} client;

static void *converse(void *ctx)
{
    const client *c = ctx;
    char id[32], last[32] = "";
    for (int i = 0; i < 300; i++) {
        snprintf(id, sizeof id, "resp_%s%d", c->who, i);
        stored_response *before = response_store_get(c->t, c->who, last, i);
        put(c->t, c->who, id, i % 7 ? before : NULL, 200, i);
        response_store_release(c->t, before);
        if (i % 11 == 0) response_store_delete(c->t, c->who, last);
        snprintf(last, sizeof last, "%s", id);
    }
    return NULL;
}

static void several_keys_at_once(void **state)
{
    (void)state;
    response_store *t = response_store_create(30000, TTL_US);
    client clients[] = {{t, "alice"}, {t, "bob"}, {t, "bob"}};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, converse, &clients[i]), 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    assert_true(response_store_bytes(t) <= 30000);
    response_store_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_response_belongs_to_its_key),
        cmocka_unit_test(a_conversation_is_read_from_its_first_turn_on),
        cmocka_unit_test(an_unused_response_is_forgotten),
        cmocka_unit_test(who_has_most_makes_room),
        cmocka_unit_test(an_old_conversation_makes_room),
        cmocka_unit_test(what_requests_hold_takes_nothing_from_others),
        cmocka_unit_test(several_keys_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
