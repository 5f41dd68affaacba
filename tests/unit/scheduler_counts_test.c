/* Pages that others hold too, which are counted in portions: who waits for a count, and how long.
 * Plans are read as traces. */
#include "scheduler/portions.h"
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Request 3 comes to share pages of request 2 while request 1 computes its prompt, which raises the
 * bound of those of request 1. Where pages lack by that bound alone, no sequence is
 * preempted: the one that lacks them waits until the pages of request 1 are counted, two in each
 * step. */
static void shared_pages_are_counted_first(void **state)
{
    (void)state;
    uint32_t waits = 0;
    for (uint32_t blocks = 17; blocks <= 20; blocks++) {
        sched_options o = small_options();
        o.n_pages = 1 + 2 * blocks;
        o.hand_out_slots = 4;
        fixture *f = begin(o);
        sched_request a = with_policy(f, 1, 0, 110, 4,
                                      "{\"method\": \"snapkv\", \"tokens\": 80, \"window\": 8}"),
                      b = request(f, 2, 500, 65, 12), c = request(f, 3, 500, 65, 12);
        add(f, &b);
        for (int i = 0; i < 3; i++) step(f);
        add(f, &a);
        step(f);
        add(f, &c);
        sched_selection *x = NULL;
        for (int i = 0; i < 60; i++) {
            waits += step(f)[0] == '\0' && describe(f, 2, 0).output_tokens < 12;
            /* A sequence that has a share has its pages, and waits no more. */
            for (uint32_t k = 0; f->plan && k < f->plan->n_seqs; k++)
                assert_int_equal(
                    sched_entry_find(f->s, f->plan->seqs[k].request)->seqs[0].counts_from, 0);
            if (!x) x = sched_next_selection(f->s);
            if (!x || i != 16) continue;
            sched_selection_run(x);
            post(f, (sched_event){.kind = SCHED_SELECTED, .selection = x});
        }
        for (uint64_t id = 1; id <= 3; id++) {
            assert_int_equal(describe(f, id, 0).output_tokens, id == 1 ? 4 : 12);
            assert_int_equal(describe(f, id, 0).preemptions, 0);
        }
        finish(f);
    }
    assert_true(waits > 0);
}

/* Request 3 comes to share pages of request 2 before request 1 computes the end of its prompt. The
 * selection behind that end may have to copy as many pages of request 1 as became shared, since it
 * is not known yet that none of those is its own. Where pages lack by this bound alone, request 1
 * waits until its own are counted, and nothing is preempted for it. */
static void own_pages_are_counted_first(void **state)
{
    (void)state;
    for (uint32_t blocks = 21; blocks <= 23; blocks++) {
        sched_options o = small_options();
        o.n_pages = 1 + 2 * blocks;
        o.hand_out_slots = 4;
        fixture *f = begin(o);
        sched_request a = with_policy(f, 1, 0, 190, 4,
                                      "{\"method\": \"snapkv\", \"tokens\": 96, \"window\": 8}"),
                      b = request(f, 2, 500, 65, 12), c = request(f, 3, 500, 65, 12);
        add(f, &b);
        for (int i = 0; i < 3; i++) step(f);
        add(f, &a);
        step(f);
        add(f, &c);
        uint32_t waits = 0;
        for (int i = 0; i < 80; i++) {
            step(f);
            waits += f->s->looks && sched_entry_find(f->s, 1)->seqs[0].counts_from > 0;
            sched_selection *x = sched_next_selection(f->s);
            if (!x) continue;
            sched_selection_run(x);
            post(f, (sched_event){.kind = SCHED_SELECTED, .selection = x});
        }
        assert_true(waits > 0);
        for (uint64_t id = 1; id <= 3; id++) {
            assert_int_equal(describe(f, id, 0).output_tokens, id == 1 ? 4 : 12);
            assert_int_equal(describe(f, id, 0).preemptions, 0);
        }
        finish(f);
    }
}

/* Request 2 forks while request 1 is selected in, which makes the bound of request 1's shared pages
 * larger. The forks lack more pages than a count can show not to be needed: one is preempted in the
 * same step, and does not wait for the count first. */
static void a_count_that_cannot_help_is_not_awaited(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.n_pages = 1 + 2 * 15;
    o.hand_out_slots = 4;
    fixture *f = begin(o);
    sched_request a = with_policy(f, 1, 0, 110, 4,
                                  "{\"method\": \"snapkv\", \"tokens\": 80, \"window\": 8}"),
                  b = request(f, 2, 500, 65, 20);
    b.n = 2;
    add(f, &a);
    step(f);
    add(f, &b);
    for (int i = 0; !f->s->looks; i++) {
        assert_true(i < 10);
        step(f);
    }
    assert_int_equal(describe(f, 2, 0).output_tokens, 1);
    const sched_seq *fork = &sched_entry_find(f->s, 2)->seqs[1];
    assert_true(fork->leaving || fork->preemptions > 0);
    sched_selection *x = sched_next_selection(f->s);
    assert_non_null(x);
    sched_selection_run(x);
    post(f, (sched_event){.kind = SCHED_SELECTED, .selection = x});
    for (int i = 0; i < 60; i++) step(f);
    assert_int_equal(describe(f, 1, 0).output_tokens, 4);
    for (uint32_t choice = 0; choice < 2; choice++)
        assert_int_equal(describe(f, 2, choice).output_tokens, 20);
    finish(f);
}

/* A count that begins anew in each step must not keep other sequences from theirs, but a sequence
 * that waits for its count takes all that a step may look at. */
static void a_count_leaves_half_to_others(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.n_pages = 1 + 2 * 40;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 110, 20), b = request(f, 2, 500, 65, 20),
                  c = request(f, 3, 500, 65, 20);
    add(f, &a);
    add(f, &b);
    for (int i = 0; i < 6; i++) step(f);
    add(f, &c); /* it comes to share pages of request 2 */
    step(f);
    sched *s = f->s;
    sched_seq *q = &sched_entry_find(s, 1)->seqs[0];
    uint64_t now = pkv_sharing_changes(s->kv);
    s->looks_left = 4;
    assert_true(sched_pages_shared(s, q).as_of < now);
    assert_int_equal(s->looks_left, 2);
    q->counts_from = now;
    assert_true(sched_pages_shared(s, q).as_of < now);
    assert_int_equal(s->looks_left, 0);
    q->counts_from = 0;
    s->looks_left = 1;
    (void)sched_pages_shared(s, q);
    assert_int_equal(s->looks_left, 0);
    s->looks_left = UINT32_MAX; /* nothing is looked at in portions */
    assert_int_equal(sched_pages_shared(s, q).as_of, now);
    for (uint64_t id = 1; id <= 3; id++) end(f, id, 0);
    finish(f);
}

/* Bounds that a count may lower are added up, and the oldest of them says what is to be counted. */
static void bounds_add_up(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request b = request(f, 2, 500, 65, 20), c = request(f, 3, 500, 65, 20);
    add(f, &b);
    for (int i = 0; i < 3; i++) step(f);
    add(f, &c);
    step(f);
    sched *s = f->s;
    uint64_t now = pkv_sharing_changes(s->kv);
    assert_true(now > 2);
    s->lasting = 0;
    s->uncounted = (sched_bounds){0};
    sched_reserve_lasting(s, 5, now);
    sched_reserve_lasting(s, 0, now - 2);
    assert_int_equal(s->uncounted.pages, 0);
    static const struct {
        uint64_t pages, ago, sum, oldest;
    } rows[] = {{3, 1, 3, 1}, {2, 2, 5, 2}, {1, 1, 6, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sched_reserve_lasting(s, rows[i].pages, now - rows[i].ago);
        assert_int_equal(s->uncounted.pages, rows[i].sum);
        assert_int_equal(s->uncounted.as_of, now - rows[i].oldest);
    }
    assert_int_equal(s->lasting, 11);
    for (uint64_t id = 2; id <= 3; id++) end(f, id, 0);
    finish(f);
}

/* Request 1 is selected in, and copies what request 2 holds too. Requests that end one after the
 * other change what is shared, so that its pages are never counted as of now. Those that begin a
 * page wait for one count nevertheless, not until all have ended. */
static void one_count_is_awaited(void **state)
{
    (void)state;
    enum { FIRST = 3, GROWING = 4, ENDING = 8, BEHIND = FIRST + GROWING + ENDING, LONG_WAIT = 10 };
    uint32_t n_waits = 0, n_preempted = 0;
    for (uint32_t blocks = 44; blocks <= 52; blocks++) {
        sched_options o = small_options();
        o.n_pages = 1 + 2 * blocks;
        o.max_seqs = o.max_requests = 16;
        o.hand_out_slots = 16;
        fixture *f = begin(o);
        sched_request others[BEHIND];
        others[2] = request(f, 2, 0, 97, 100);
        add(f, &others[2]);
        for (int i = 0; i < 4; i++) step(f);
        for (uint32_t id = FIRST; id < BEHIND; id++) {
            bool ends = id >= FIRST + GROWING;
            others[id] = request(f, id, ends ? 700 : 1000 + 50 * id, ends ? 33 : 1, 100);
            add(f, &others[id]);
        }
        for (int i = 0; i < 9; i++) step(f);
        sched_request a =
            with_policy(f, 1, 0, 330, 4, "{\"method\": \"snapkv\", \"tokens\": 80, \"window\": 8}");
        a.priority = -1;
        add(f, &a);
        uint32_t waits = 0, n_ended = 0;
        for (int i = 0; i < 50; i++) {
            step(f);
            waits = f->s->looks ? waits + 1 : 0;
            n_waits += waits > 0;
            assert_true(waits < LONG_WAIT);
            if (waits % 3 == 1 && n_ended < ENDING) end(f, FIRST + GROWING + n_ended++, 0);
        }
        for (uint64_t id = 1; id < FIRST + GROWING; id++)
            n_preempted += describe(f, id, 0).preemptions;
        sched_selection *x = sched_next_selection(f->s);
        if (x) sched_selection_run(x);
        if (x) post(f, (sched_event){.kind = SCHED_SELECTED, .selection = x});
        for (uint64_t id = 1; id < BEHIND; id++)
            if (id < FIRST + GROWING || id >= FIRST + GROWING + n_ended) end(f, id, 0);
        for (int i = 0; i < 100; i++) step(f);
        finish(f);
    }
    assert_true(n_waits > 0 && n_preempted > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_pages_are_counted_first),
        cmocka_unit_test(own_pages_are_counted_first),
        cmocka_unit_test(a_count_that_cannot_help_is_not_awaited),
        cmocka_unit_test(a_count_leaves_half_to_others),
        cmocka_unit_test(bounds_add_up),
        cmocka_unit_test(one_count_is_awaited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
