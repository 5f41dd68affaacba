/* Which record makes room: by the rule itself, which looks at all of them, after random changes. */
#include "disk/record_order.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { PLACES = 200, OWNERS = 40 };

/* The oldest record of the owner that has most, the first of equal ones. */
static const record_place *by_the_rule(const record_order *o, const record_place *places,
                                       const uint64_t *owners)
{
    uint32_t n[OWNERS] = {0};
    const record_place *found = NULL;
    for (uint32_t i = 0; i < PLACES; i++)
        if (places[i].owner) n[owners[i]]++;
    for (const record_place *p = o->oldest; p; p = p->newer)
        if (!found || n[owners[p - places]] > n[owners[found - places]]) found = p;
    return found;
}

static void the_first_is_that_of_the_rule(void **state)
{
    (void)state;
    rng r = rng_seed(3);
    record_order o = {0};
    record_place places[PLACES] = {0};
    uint64_t owners[PLACES];
    for (int round = 0; round < 20000; round++) {
        uint32_t i = rng_below(&r, PLACES), kind = rng_below(&r, 100);
        /* The order fills up and runs empty in turns. */
        bool fills = round / 1000 % 2;
        if (kind < 5 && places[i].owner) {
            record_order_renew(&o, &places[i]);
        } else if (kind < (fills ? 30 : 80) && places[i].owner) {
            record_order_leave(&o, &places[i]);
        } else {
            owners[i] = rng_below(&r, round % 3 ? OWNERS : 3);
            assert_true(record_order_enter(&o, &places[i], owners[i], 1));
            assert_int_equal(record_owner_id(places[i].owner), owners[i]);
            assert_ptr_equal(o.newest, &places[i]);
        }
        assert_ptr_equal(record_order_first(&o), by_the_rule(&o, places, owners));
    }
    while (record_order_first(&o)) record_order_leave(&o, record_order_first(&o));
    assert_true(o.n_owners == 0 && !o.oldest && !o.newest);
    record_order_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_is_that_of_the_rule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
