/* Pages of sequences without a slot that are given up, or moved to the host tier, in portions: what
 * others do meanwhile. A page of all groups is 2 cells, and a step changes one such page. Plans are
 * read as traces, and what a step did is counted in pages. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static sched_options in_portions(uint32_t blocks, uint32_t host_blocks)
{
    sched_options o = small_options();
    o.prefill_chunk = 200;
    o.n_pages = 1 + 2 * blocks;
    o.n_host_pages = 2 * host_blocks;
    o.prefix_cache = false;
    o.max_sessions = 4;
    o.session_ttl_us = 1000000;
    o.hand_out_slots = 4;
    return o;
}

static uint32_t idle_sessions(const fixture *f) { return sched_get_stats(f->s).sessions_idle; }
static uint32_t swapped_sessions(const fixture *f)
{
    return sched_get_stats(f->s).sessions_swapped;
}
static uint32_t host_pages(const fixture *f) { return sched_get_stats(f->s).pages.host_used; }
static size_t moves(const fixture *f) { return f->plan ? f->plan->deltas.n_moves : 0; }

/* Pages that the plan copies to the host tier. */
static uint32_t copies_out(const fixture *f)
{
    uint32_t n = 0;
    for (size_t i = 0; i < moves(f); i++) n += f->plan->deltas.moves[i].kind == PKV_MOVE_OUT;
    return n;
}

/* Request 1 leaves session 7, of 51 tokens in 4 pages. */
static void leave_session(fixture *f)
{
    sched_request a = of_session(request(f, 1, 0, 50, 9), 7);
    add(f, &a);
    step(f);
    step(f);
    finish_choice(f, 1);
    while (idle_sessions(f) == 0) step(f);
    assert_int_equal(used_pages(f), 2 * 4);
}

/* Tokens that the fixture's backend drew, and new ones. */
static sched_request second_turn(fixture *f, uint64_t id)
{
    sched_request r = request(f, id, 0, 72, 4);
    for (uint32_t i = 50; i < 52; i++) ((uint32_t *)r.prompt)[i] = 500;
    return of_session(r, 7);
}

static void forget(fixture *f) { post(f, (sched_event){.kind = SCHED_FORGET, .session = {7}}); }

/* Request 2 decodes in one page. */
static void run_beside(fixture *f)
{
    sched_request b = request(f, 2, 500, 4, 40);
    add(f, &b);
    step(f);
}

static void a_session_is_forgotten_page_by_page(void **state)
{
    (void)state;
    for (int expires = 0; expires < 2; expires++) {
        fixture *f = begin(in_portions(40, 0));
        leave_session(f);
        run_beside(f);
        if (expires) f->now_us += 1000000;
        else forget(f);
        for (uint32_t left = 4; left-- > 0;) {
            assert_int_equal(strncmp(step(f), "2@", 2), 0);
            assert_int_equal(idle_sessions(f), 0);
            assert_int_equal(used_pages(f), 2 * (1 + left));
        }
        finish(f);
    }
}

/* Nobody waits for the portions where nothing runs, and perhaps no other call comes. */
static void all_at_once_where_nothing_runs(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(40, 0));
    leave_session(f);
    forget(f);
    step(f);
    assert_int_equal(used_pages(f), 0);
    leave_session(f);
    sched_request b = request(f, 2, 500, 16 * 39, 4); /* it needs pages of the session */
    add(f, &b);
    assert_int_equal(strncmp(step(f), "2@0+", 4), 0);
    assert_int_equal(idle_sessions(f), 0);
    finish(f);
}

/* Request 2 decodes in a pool that the session keeps from being enough for it. */
static void press(fixture *f)
{
    sched_request b = request(f, 2, 500, 16 * 6 - 2, 40);
    add(f, &b);
    for (int i = 0; i < 40 && host_pages(f) == 0; i++)
        assert_int_equal(strncmp(step(f), "2@", 2), 0);
}

static void a_session_moves_page_by_page(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(10, 10));
    leave_session(f);
    press(f);
    for (uint32_t moved = 1; moved <= 4; moved++) {
        assert_int_equal(moves(f), 1);
        assert_int_equal(host_pages(f), 2 * moved);
        assert_int_equal(swapped_sessions(f), moved == 4);
        assert_int_equal(idle_sessions(f), moved < 4);
        assert_int_equal(describe(f, 2, 0).preemptions, 0);
        if (moved < 4) assert_int_equal(strncmp(step(f), "2@", 2), 0);
    }
    step(f);
    assert_int_equal(moves(f), 0);
    end(f, 2, 0);
    sched_request c = second_turn(f, 3);
    add(f, &c);
    for (int i = 0; i < 10 && host_pages(f) > 0; i++) step(f); /* until 2 has left its pages */
    assert_string_equal(f->trace, "3@51+21*");
    finish(f);
}

static void a_session_that_moves_may_be_forgotten(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(10, 10));
    leave_session(f);
    press(f);
    forget(f);
    step(f);
    assert_int_equal(idle_sessions(f) + swapped_sessions(f), 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(strncmp(f->trace, "2@", 2), 0);
        step(f);
    }
    assert_int_equal(host_pages(f), 0);
    assert_int_equal(sched_get_stats(f->s).swapped_tokens, 0);
    finish(f);
}

static void the_next_turn_waits_for_a_move(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(20, 20));
    leave_session(f);
    sched_request b = request(f, 2, 500, 16 * 16 - 2, 40);
    add(f, &b);
    for (int i = 0; i < 40 && host_pages(f) == 0; i++) step(f);
    uint32_t copied = copies_out(f);
    sched_request c = second_turn(f, 3);
    add(f, &c);
    end(f, 2, 0);
    for (int i = 0; i < 8 && !strstr(f->trace, "3@"); i++) {
        assert_in_range(copies_out(f), 0, 1);
        step(f); /* also where the plan has nothing but copies */
        copied += copies_out(f);
        assert_int_equal(idle_sessions(f) + swapped_sessions(f), 0);
        assert_string_equal(describe(f, 3, 0).report.session, "continued");
    }
    assert_string_equal(f->trace, "3@51+21*");
    assert_int_equal(copied, 4);
    finish(f);
}

/* A backend gets a plan that has nothing but copies. */
static void a_session_moves_where_nothing_runs(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(20, 20));
    leave_session(f);
    sched_request b = request(f, 2, 500, 16 * 16 - 2, 40);
    add(f, &b);
    for (int i = 0; i < 40 && host_pages(f) == 0; i++) step(f);
    uint32_t copied = copies_out(f);
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 2});
    for (int i = 0; i < 3; i++) {
        assert_string_equal(step(f), "");
        copied += copies_out(f);
    }
    assert_int_equal(copied, 4);
    assert_int_equal(swapped_sessions(f), 1);
    finish(f);
}

/* Three requests need a page each in one step: one is free, and one of the session comes free. */
static void others_wait_for_its_pages(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(14, 0));
    leave_session(f);
    sched_request r[3];
    for (uint32_t i = 0; i < 3; i++) {
        r[i] = request(f, 2 + i, 500 * (2 + i), 46, 20);
        add(f, &r[i]);
    }
    for (int i = 0; i < 10 && idle_sessions(f) > 0; i++) step(f);
    assert_string_equal(f->trace, "2@48+1* 3@48+1*");
    assert_int_equal(used_pages(f), 2 * 14);
    assert_string_equal(step(f), "2@49+1* 3@49+1* 4@48+1*");
    for (uint32_t i = 2; i <= 4; i++) assert_int_equal(describe(f, i, 0).preemptions, 0);
    finish(f);
}

static void what_waits_may_end_while_it_moves(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(10, 10));
    leave_session(f);
    press(f);
    sched_request c = second_turn(f, 3);
    add(f, &c);
    step(f);
    end(f, 3, 0);
    for (int i = 0; i < 9; i++) step(f);
    assert_int_equal(host_pages(f), 0);
    assert_int_equal(sched_get_stats(f->s).swapped_tokens, 0);
    finish(f);
}

/* Its 4 parked pages were to come back one by one. */
static void a_request_that_ends_before_its_tables_are_back_gives_them_up(void **state)
{
    (void)state;
    for (uint32_t come = 1; come <= 3; come++) {
        fixture *f = begin(in_portions(40, 0));
        leave_session(f);
        run_beside(f);
        sched_request c = second_turn(f, 3);
        c.policy.report_positions = true;
        add(f, &c);
        for (uint32_t i = 0; i < come; i++) step(f);
        sched_choice_info info = describe(f, 3, 0);
        assert_true(info.arriving);
        free(info.report.kept_json);
        end(f, 3, 0);
        step(f);
        info = describe(f, 3, 0);
        assert_false(info.arriving);
        assert_string_equal(info.report.kept_json, "[{\"layers\": [0, 0], \"heads\": [0, 0], "
                                                   "\"ranges\": [[0, 51]]}, {\"layers\": "
                                                   "[1, 1], \"heads\": [0, 0], \"ranges\": "
                                                   "[[0, 51]]}]");
        free(info.report.kept_json);
        uint32_t used = used_pages(f);
        assert_true(used >= 2 * (1 + 2));
        while (used > 2 * 1) {
            step(f);
            assert_in_range(used - used_pages(f), 2, 4); /* of what had come, and of the rest */
            used = used_pages(f);
        }
        finish(f);
    }
}

/* Session 7 is in a tier without room for the victim, which waits until it is forgotten. */
static void a_victim_waits_for_room_in_the_tier(void **state)
{
    (void)state;
    fixture *f = begin(in_portions(15, 8));
    leave_session(f);
    sched_request a = request(f, 2, 500, 100, 60), b = request(f, 3, 1000, 100, 60);
    a.priority = -1;
    add(f, &a);
    add(f, &b);
    bool waits = false;
    step(f);
    for (int i = 0; i < 80 && describe(f, 3, 0).preemptions == 0; i++) {
        step(f);
        assert_non_null(strstr(f->trace, "2@"));
        assert_true(moves(f) <= 1);
        uint32_t gone = idle_sessions(f) + swapped_sessions(f);
        waits |= gone == 0 && moves(f) == 0 && host_pages(f) > 0;
    }
    assert_true(waits);
    sched_stats stats = sched_get_stats(f->s);
    assert_int_equal(stats.swaps_out, 1);
    assert_int_equal(stats.swaps_refused, 0);
    assert_int_equal(stats.sessions_expired, 1);
    assert_int_equal(host_pages(f), 2 * 7);
    finish(f);
}

/* ---- looks at pages that come back ----------------------------------------------------------- */

/* Session 7 has 10 pages and session 8 has 6. Where 4 are free, the next turn of 7 takes 6 more, so
 * it must be known which of its pages others hold; a step looks at 2. */
static fixture *with_two_sessions_in(uint32_t n_free, size_t hand_out_slots)
{
    sched_options o = in_portions(16 + n_free, 0);
    o.hand_out_slots = hand_out_slots;
    fixture *f = begin(o);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t key = 7 + i, n_prompt = i == 0 ? 16 * 10 - 2 : 16 * 6 - 2;
        sched_request a = of_session(request(f, 1, i * 2000, n_prompt, 9), key);
        add(f, &a);
        step(f);
        step(f);
        finish_choice(f, 1);
        while (idle_sessions(f) == i) step(f);
    }
    assert_int_equal(used_pages(f), 2 * 16);
    return f;
}

static fixture *with_two_sessions(uint32_t n_free) { return with_two_sessions_in(n_free, 4); }

static sched_request long_turn(fixture *f)
{
    sched_request r = request(f, 3, 0, 16 * 15 + 2, 4);
    uint32_t *tokens = (uint32_t *)r.prompt;
    for (uint32_t i = 16 * 10 - 2; i < 16 * 10; i++) tokens[i] = 500;
    return of_session(r, 7);
}

static void a_turn_waits_until_its_pages_were_looked_at(void **state)
{
    (void)state;
    fixture *f = with_two_sessions(4);
    sched_request b = request(f, 2, 500, 4, 40), c = long_turn(f);
    add(f, &b);
    step(f);
    add(f, &c);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(strncmp(step(f), "2@", 2), 0);
        assert_int_equal(sched_get_stats(f->s).sessions_expired, 0);
        assert_false(describe(f, 3, 0).arriving);
    }
    step(f);
    assert_int_equal(sched_get_stats(f->s).sessions_expired, 1); /* 8 gives way */
    for (int i = 0; i < 20 && !describe(f, 3, 0).arriving; i++) step(f);
    assert_true(describe(f, 3, 0).arriving);
    for (int i = 0; i < 20 && !strstr(f->trace, "3@"); i++) step(f);
    assert_non_null(strstr(f->trace, "3@159+"));
    finish(f);
}

/* No other call is sure where nothing runs. */
static void its_pages_are_looked_at_where_nothing_runs(void **state)
{
    (void)state;
    fixture *f = with_two_sessions(4);
    sched_request c = long_turn(f);
    add(f, &c);
    step(f);
    assert_int_equal(sched_get_stats(f->s).sessions_expired, 1);
    assert_true(describe(f, 3, 0).arriving);
    for (int i = 0; i < 20 && !strstr(f->trace, "3@"); i++) step(f);
    assert_non_null(strstr(f->trace, "3@159+"));
    finish(f);
}

/* Session 8 gives way with less than a portion, behind a look that is complete. */
static void it_starts_in_the_call_in_which_another_gave_way(void **state)
{
    (void)state;
    fixture *f = with_two_sessions_in(4, 4 * 16);
    sched_request c = long_turn(f);
    add(f, &c);
    step(f);
    assert_int_equal(sched_get_stats(f->s).sessions_expired, 1);
    assert_int_equal(strncmp(f->trace, "3@159+", 6), 0);
    finish(f);
}

/* The scheduler looks at the pages of a long turn before it knows whether they fit. Until then a
 * paused sequence, which would be preempted first, keeps its own. */
static void nobody_is_preempted_before_its_pages_were_looked_at(void **state)
{
    (void)state;
    fixture *f = with_two_sessions(4);
    sched_request b = request(f, 2, 500, 4, 40), c = long_turn(f);
    add(f, &b);
    step(f);
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 2, .choice = SCHED_ALL_CHOICES});
    add(f, &c);
    step(f);
    assert_int_equal(sched_get_stats(f->s).preemptions, 0);
    assert_int_equal(sched_get_stats(f->s).sessions_expired, 1);
    assert_true(describe(f, 3, 0).arriving);
    finish(f);
}

/* Pages come back one in a step: those of a later turn, of a session that is shorter, do not go
 * before those of the turn that waits. */
static void the_first_turn_comes_back_first(void **state)
{
    (void)state;
    fixture *f = with_two_sessions(30);
    sched_request first = long_turn(f), second = request(f, 4, 2000, 16 * 7 + 2, 4);
    for (uint32_t i = 16 * 6 - 2; i < 16 * 6; i++) ((uint32_t *)second.prompt)[i] = 500;
    second = of_session(second, 8);
    add(f, &first);
    step(f);
    add(f, &second);
    step(f);
    assert_true(describe(f, 3, 0).arriving && describe(f, 4, 0).arriving);
    for (int i = 0; i < 30 && !strstr(f->trace, "3@"); i++) {
        assert_null(strstr(f->trace, "4@"));
        step(f);
    }
    assert_non_null(strstr(f->trace, "3@159+"));
    for (int i = 0; i < 10 && !strstr(f->trace, "4@"); i++) step(f);
    assert_non_null(strstr(f->trace, "4@95+"));
    finish(f);
}

/* Requests 1 and 2 begin with the same 8 pages. Request 1, of 14 pages, was swapped out for request
 * 3, and its pages were looked at while request 2 held the common ones. When request 2 ends,
 * request 1 would have to take these 8 too, and lacks a page for its next row beside them: it
 * waits. */
static void tables_that_come_at_once_are_counted_anew(void **state)
{
    (void)state;
    sched_options o = in_portions(18, 40);
    o.prefill_chunk = 400;
    o.prefix_cache = true;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 16 * 8 + 94, 60), b = request(f, 2, 0, 16 * 8 + 1, 60);
    sched_request c = request(f, 3, 1000, 32, 60);
    for (uint32_t i = 16 * 8; i < a.n_prompt; i++) ((uint32_t *)a.prompt)[i] = 700 + i;
    b.priority = -1;
    c.priority = -2;
    const sched_request *in_order[] = {&b, &a, &c};
    for (int i = 0; i < 3; i++) {
        add(f, in_order[i]);
        step(f);
        step(f);
    }
    for (int i = 0; i < 60 && sched_get_stats(f->s).swaps_out == 0; i++) step(f);
    assert_int_equal(describe(f, 1, 0).preemptions, 1);
    for (int i = 0; i < 8; i++) step(f); /* 7 of these look at 2 pages each */
    end(f, 2, 0);
    for (int i = 0; i < 20; i++) step(f); /* its 14 pages were free, but no other */
    assert_int_equal(sched_get_stats(f->s).swaps_in, 0);
    end(f, 3, 0);
    for (int i = 0; i < 20 && sched_get_stats(f->s).swaps_in == 0; i++) step(f);
    assert_string_equal(f->trace, "1@224+1*");
    assert_int_equal(sched_get_stats(f->s).preemptions, 1);
    finish(f);
}

/* Requests 1 to 3 and 5 of the next test. */
typedef struct returning {
    sched_request session, common, swapped, other;
} returning;

static void run_selections(fixture *f)
{
    for (sched_selection *x; (x = sched_next_selection(f->s)) != NULL;) {
        sched_selection_run(x);
        post(f, (sched_event){.kind = SCHED_SELECTED, .selection = x});
    }
}

/* Request 3 begins with the 8 blocks of request 2, and has tables of heads. It was swapped out for
 * request 4, which has ended, and has begun to come back beside the pages that request 2 holds.
 * Session 8 is in the tier, too. */
static fixture *begin_to_return(returning *r)
{
    sched_options o = in_portions(46, 60);
    o.prefill_chunk = 400;
    o.prefix_cache = true;
    fixture *f = begin(o);
    sched_request in_tier = of_session(request(f, 6, 7000, 16 * 8 - 2, 9), 8);
    add(f, &in_tier);
    step(f);
    step(f);
    finish_choice(f, 6);
    while (idle_sessions(f) == 0) step(f);
    r->session = of_session(request(f, 1, 3000, 16 * 6, 200), 7);
    r->session.priority = -3;
    add(f, &r->session);
    step(f);
    r->common = request(f, 2, 0, 16 * 8 + 1, 200);
    r->common.priority = -1;
    add(f, &r->common);
    step(f);
    step(f);
    r->swapped = retained(f, 3, 0, 16 * 14, 60, 8, 16 * 12);
    add(f, &r->swapped);
    for (int i = 0; i < 30 && !strstr(f->trace, "3@224"); i++) {
        step(f);
        run_selections(f);
    }
    sched_request third = request(f, 4, 1000, 16 * 14, 200);
    third.priority = -2;
    add(f, &third);
    for (int i = 0; i < 100 && sched_get_stats(f->s).swaps_out == 0; i++) step(f);
    for (int i = 0; i < 10; i++) step(f);
    end(f, 4, 0);
    for (int i = 0; i < 100 && !describe(f, 3, 0).arriving; i++) step(f);
    assert_true(describe(f, 3, 0).arriving);
    assert_int_equal(swapped_sessions(f), 1);
    return f;
}

static uint32_t pages_to_be_had(const fixture *f)
{
    pkv_counts pages = sched_get_stats(f->s).pages;
    return pages.free + pages.cached;
}

/* Request 2 gives up its pages before request 3 has come to them, and request 5 takes them. The
 * session of request 1, idle since, gives way, so that nothing is computed again. busy: the steps
 * have no portion for that at first, because session 8 is forgotten. */
static void give_way_to_request_3(bool busy)
{
    returning r;
    fixture *f = begin_to_return(&r);
    uint32_t in_tier = 2 * 8;
    end(f, 2, 0);
    for (int i = 0; i < 100 && sched_get_stats(f->s).running > 2; i++) step(f);
    uint32_t promised = host_pages(f) - in_tier, left = (pages_to_be_had(f) - promised) / 2;
    r.other = request(f, 5, 5000, 16 * (left - 1) - 6, 200);
    r.other.priority = -4;
    add(f, &r.other);
    finish_choice(f, 1);
    for (int i = 0; i < 200 && pages_to_be_had(f) > 0; i++) step(f);
    assert_true(describe(f, 3, 0).arriving);
    assert_int_equal(idle_sessions(f), 1);
    if (busy) post(f, (sched_event){.kind = SCHED_FORGET, .session = {8}});
    for (int i = 0; i < 100 && !strstr(f->trace, "3@"); i++) step(f);
    assert_non_null(strstr(f->trace, "3@256+1*"));
    assert_int_equal(describe(f, 3, 0).preemptions, 1);
    for (int i = 0; i < 40 && idle_sessions(f) > 0; i++) step(f);
    assert_int_equal(swapped_sessions(f), busy ? 1 : 2);
    finish(f);
}

static void a_session_gives_way_to_tables_that_come_back(void **state)
{
    (void)state;
    give_way_to_request_3(false);
    give_way_to_request_3(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_is_forgotten_page_by_page),
        cmocka_unit_test(all_at_once_where_nothing_runs),
        cmocka_unit_test(a_session_moves_page_by_page),
        cmocka_unit_test(a_session_that_moves_may_be_forgotten),
        cmocka_unit_test(the_next_turn_waits_for_a_move),
        cmocka_unit_test(a_session_moves_where_nothing_runs),
        cmocka_unit_test(others_wait_for_its_pages),
        cmocka_unit_test(what_waits_may_end_while_it_moves),
        cmocka_unit_test(a_request_that_ends_before_its_tables_are_back_gives_them_up),
        cmocka_unit_test(a_victim_waits_for_room_in_the_tier),
        cmocka_unit_test(a_turn_waits_until_its_pages_were_looked_at),
        cmocka_unit_test(its_pages_are_looked_at_where_nothing_runs),
        cmocka_unit_test(it_starts_in_the_call_in_which_another_gave_way),
        cmocka_unit_test(nobody_is_preempted_before_its_pages_were_looked_at),
        cmocka_unit_test(the_first_turn_comes_back_first),
        cmocka_unit_test(tables_that_come_at_once_are_counted_anew),
        cmocka_unit_test(a_session_gives_way_to_tables_that_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
