/* The room of records that are held and of those that were fetched, among owners. */
#include "transfer/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { UNIT = 1000 };

static transfer *open_room(size_t units)
{
    const transfer_options o = {.bytes = units * UNIT, .ttl_us = INT64_MAX, .timeout_us = 1};
    transfer *t;
    error err;
    assert_true(status_ok(transfer_open(&o, &t, &err)));
    return t;
}

static bool fetch(transfer *t, uint64_t owner, size_t units)
{
    return room_make_for_fetched(t, owner, units * UNIT) == NULL;
}

static void release(transfer *t, uint64_t owner, size_t units)
{
    transfer_release(t, owner, units * UNIT);
}

/* Whether there was room for it. */
static bool hold(transfer *t, uint64_t owner, uint8_t number, size_t units)
{
    const transfer_key key = {{number}};
    if (!transfer_make_room(t, owner, units * UNIT)) return false;
    assert_true(transfer_hold(t, &key, owner, calloc(units, UNIT), units * UNIT));
    return true;
}

/* Fetched records cannot be forgotten, so an owner may have three times the room that all fetched
 * records leave: three quarters of the room while it is alone, less beside others. */
static void no_owner_fetches_into_all_of_the_room(void **state)
{
    (void)state;
    transfer *t = open_room(28);
    for (int i = 0; i < 3; i++) assert_true(fetch(t, 1, 7));
    const char *why = room_make_for_fetched(t, 1, 1); /* it has 21, and 7 are left */
    assert_non_null(strstr(why, "more prompts of its API key"));
    assert_true(fetch(t, 2, 5));
    assert_false(fetch(t, 2, 6)); /* more than is left */
    release(t, 1, 14);
    assert_true(fetch(t, 2, 7));  /* 12 beside 7: 9 are left */
    assert_false(fetch(t, 1, 7)); /* 14 beside 12: 2 would be left */
    assert_non_null(strstr(room_make_for_fetched(t, 3, 29 * UNIT), "no room for it"));
    assert_int_equal(transfer_count(t).bytes, 19 * UNIT);
    release(t, 1, 7);
    release(t, 2, 12);
    assert_null(t->room.owners);
    assert_int_equal(transfer_count(t).bytes, 0);
    transfer_close(t);
}

/* Where one alone could not have more, three quarters to the byte. */
static void a_share_is_exact(void **state)
{
    (void)state;
    transfer *t = open_room(1);
    assert_non_null(room_make_for_fetched(t, 1, 751));
    assert_null(room_make_for_fetched(t, 1, 750));
    assert_non_null(room_make_for_fetched(t, 2, 188));
    assert_null(room_make_for_fetched(t, 2, 187));
    transfer_release(t, 1, 750);
    transfer_release(t, 2, 187);
    transfer_close(t);
}

/* Records that are held can be forgotten, so that they count for no share, and make room for
 * fetched ones as for held ones. */
static void what_is_held_makes_room_for_what_is_fetched(void **state)
{
    (void)state;
    transfer *t = open_room(8);
    for (uint8_t i = 0; i < 4; i++) assert_true(hold(t, 1, i, 2));
    assert_non_null(strstr(room_make_for_fetched(t, 1, 2 * UNIT), "no room for it")); /* its own */
    for (int i = 0; i < 2; i++) assert_true(fetch(t, 2, 2));
    assert_false(fetch(t, 2, 2)); /* it would have more than the other */
    transfer_counts n = transfer_count(t);
    assert_int_equal(n.displaced, 2);
    assert_int_equal(n.records, 2);
    assert_int_equal(n.bytes, 8 * UNIT);
    /* The owner of most has nothing that can be forgotten: the next one gives up its own. */
    assert_true(hold(t, 3, 9, 2));
    assert_true(transfer_make_room(t, 4, 1));
    assert_int_equal(transfer_count(t).displaced, 4);
    transfer_release(t, 4, 1);
    release(t, 2, 4);
    transfer_close(t);
}

/* A record for which others would give up too little takes nothing of theirs. */
static void nothing_is_forgotten_for_a_record_without_room(void **state)
{
    (void)state;
    transfer *t = open_room(10);
    for (uint8_t i = 0; i < 7; i++) assert_true(hold(t, 1, i, 1));
    assert_true(hold(t, 2, 7, 3));
    assert_false(hold(t, 3, 8, 6)); /* the first would go down to 6, and 1 would be free */
    assert_false(hold(t, 3, 8, 4)); /* 3 would be free */
    assert_int_equal(transfer_count(t).displaced, 0);
    assert_true(hold(t, 3, 8, 3));
    assert_int_equal(transfer_count(t).displaced, 3);
    assert_int_equal(transfer_count(t).bytes, 10 * UNIT);
    transfer_close(t);
}

/* The room that an owner has includes what it has fetched when others need some. */
static void what_was_fetched_counts_among_owners(void **state)
{
    (void)state;
    transfer *t = open_room(8);
    assert_true(fetch(t, 1, 4));
    assert_true(hold(t, 1, 1, 1));
    assert_true(hold(t, 2, 2, 3));
    assert_true(hold(t, 3, 3, 1)); /* of the first: it has 5, 3 has the other */
    assert_int_equal(transfer_count(t).displaced, 1);
    assert_true(fetch(t, 3, 1)); /* of the second, because the first holds nothing */
    assert_int_equal(transfer_count(t).displaced, 2);
    assert_int_equal(transfer_count(t).records, 1);
    release(t, 3, 1);
    /* The first gives up all that it holds, though that is no more than the third gets. */
    assert_true(hold(t, 1, 1, 1));
    assert_true(hold(t, 1, 4, 1));
    assert_true(hold(t, 2, 2, 1));
    assert_true(hold(t, 3, 5, 2));
    assert_int_equal(transfer_count(t).displaced, 4);
    assert_int_equal(transfer_count(t).records, 3);
    release(t, 1, 4);
    transfer_close(t);
}

/* Held records can be forgotten, so an owner that has some may fetch as much as one without. */
static void what_an_owner_holds_is_no_part_of_its_share(void **state)
{
    (void)state;
    transfer *t = open_room(8);
    assert_true(fetch(t, 1, 4));
    assert_true(hold(t, 1, 1, 2));
    assert_true(fetch(t, 1, 2));
    release(t, 1, 6);
    transfer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_owner_fetches_into_all_of_the_room),
        cmocka_unit_test(a_share_is_exact),
        cmocka_unit_test(what_is_held_makes_room_for_what_is_fetched),
        cmocka_unit_test(nothing_is_forgotten_for_a_record_without_room),
        cmocka_unit_test(what_was_fetched_counts_among_owners),
        cmocka_unit_test(what_an_owner_holds_is_no_part_of_its_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
