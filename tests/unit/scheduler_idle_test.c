/* The tables of idle sessions and claimed keys, beside a plain list that is searched from end to
 * end. */
#include "scheduler/sched_internal.h"
#include "scheduler/sessions.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 40, OWNERS = 6, OPERATIONS = 20000, CLAIMS = 100 };

/* sessions[n] are listed, the longest idle first. */
typedef struct model {
    sched s;
    rng random;
    sched_session *sessions[MOST];
    uint32_t n;
    uint64_t keys;
} model;

/* Stands for a session that gives up pages when it goes. */
static bool is_even(const sched *s, const sched_session *session)
{
    (void)s;
    return session->n_tokens % 2 == 0;
}

static uint32_t count_owner(const model *m, uint64_t id)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n; i++) n += m->sessions[i]->owner->id == id;
    return n;
}

/* The longest idle one of the owner that has most, among those in these places that can go. */
static sched_session *scan(const model *m, bool pool, bool tier, bool even)
{
    sched_session *found = NULL;
    uint32_t most = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        sched_session *x = m->sessions[i];
        uint32_t n = count_owner(m, x->owner->id);
        if (!(x->swap ? tier : pool) || (even && !is_even(&m->s, x)) || n <= most) continue;
        found = x;
        most = n;
    }
    return found;
}

static void add(model *m)
{
    if (m->n == MOST) return;
    sched_session *x = calloc(1, sizeof *x);
    assert_non_null(x);
    x->key[0] = ++m->keys % 7; /* many in one bucket */
    x->key[1] = m->keys;
    x->owner = sched_idle_owner(&m->s, rng_below(&m->random, OWNERS));
    assert_non_null(x->owner);
    x->n_tokens = rng_below(&m->random, 100);
    bool in_tier = rng_below(&m->random, 4) == 0;
    *(in_tier ? &x->swap : &x->parked) = 1;
    sched_idle_add(&m->s, x);
    m->sessions[m->n++] = x;
}

static void leave(model *m, uint32_t i)
{
    sched_session *x = m->sessions[i];
    sched_idle_remove(&m->s, x);
    sched_idle_release(&m->s, x->owner);
    free(x);
    m->n--;
    memmove(m->sessions + i, m->sessions + i + 1, (m->n - i) * sizeof *m->sessions);
}

static void compare(const model *m)
{
    const sched *s = &m->s;
    uint32_t i = 0, swapped = 0;
    for (const sched_session *x = s->idle.oldest; x; x = x->newer, i++) {
        assert_true(i < m->n && x == m->sessions[i]);
        assert_ptr_equal(sched_idle_find(s, x->key), x);
        swapped += x->swap != 0;
    }
    assert_int_equal(i, m->n);
    assert_int_equal(s->idle.n, m->n);
    assert_int_equal(s->stats.sessions_swapped, swapped);
    assert_int_equal(s->stats.sessions_idle, m->n - swapped);
    assert_null(sched_idle_find(s, (uint64_t[2]){1, 0}));
    assert_ptr_equal(sched_idle_first(s, SCHED_IN_POOL), scan(m, true, false, false));
    assert_ptr_equal(sched_idle_first(s, SCHED_IN_TIER), scan(m, false, true, false));
    assert_ptr_equal(sched_idle_first_of_all(s), scan(m, true, true, false));
    assert_ptr_equal(sched_idle_first_that(s, SCHED_IN_POOL, is_even), scan(m, true, false, true));
    assert_ptr_equal(sched_idle_first_that(s, SCHED_IN_TIER, is_even), scan(m, false, true, true));
}

static void the_same_one_goes_as_by_a_scan(void **state)
{
    (void)state;
    model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->random = rng_seed(1);
    m->s.alloc = allocator_default;
    m->s.options = (sched_options){.max_sessions = MOST, .max_requests = 1};
    assert_true(sched_idle_create(&m->s));
    for (uint32_t op = 0; op < OPERATIONS; op++) {
        uint32_t at = rng_below(&m->random, m->n + 1);
        /* Long runs that fill the tables, then long runs that empty them. */
        bool fills = op / 200 % 2 == 0;
        if (rng_below(&m->random, 5) < (fills ? 3u : 1u)) add(m);
        else if (at < m->n && m->sessions[at]->parked && rng_below(&m->random, 2))
            sched_idle_to_tier(&m->s, m->sessions[at], 1);
        else if (at < m->n) leave(m, at);
        compare(m);
    }
    while (m->n > 0) leave(m, m->n / 2);
    compare(m);
    sched_idle_destroy(&m->s);
    free(m);
}

static void claimed_keys_are_found(void **state)
{
    (void)state;
    sched *s = calloc(1, sizeof *s);
    sched_entry *entries = calloc(CLAIMS, sizeof *entries);
    assert_true(s && entries);
    s->alloc = allocator_default;
    s->options = (sched_options){.max_sessions = 1, .max_requests = 16};
    assert_true(sched_idle_create(s));
    for (uint32_t i = 0; i < CLAIMS; i++) {
        entries[i].session[0] = i / 2;
        entries[i].session[1] = i;
        sched_idle_claim(s, &entries[i]);
    }
    for (uint32_t i = 0; i < CLAIMS; i += 3) sched_idle_unclaim(s, &entries[i]);
    for (uint32_t i = 0; i < CLAIMS; i++)
        assert_int_equal(sched_idle_is_claimed(s, entries[i].session), i % 3 != 0);
    assert_false(sched_idle_is_claimed(s, (uint64_t[2]){0, 1000}));
    sched_idle_destroy(s);
    free(entries);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_one_goes_as_by_a_scan),
        cmocka_unit_test(claimed_keys_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
