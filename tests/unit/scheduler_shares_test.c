/* Admission where the cells of each KV head come from a share of the pool, and a session that is
 * idle took more from one share than from the other. Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { PROMPT = 96, SESSION = 7 };

/* One layer with two heads, a share for each, and pages of 16 tokens. */
static fixture *begin_in_shares(uint32_t cells_of_share)
{
    sched_options o = small_options();
    o.geometry = (pkv_geometry){.page_tokens = 16,
                                .n_layers = 1,
                                .n_kv_heads = 2,
                                .layers_per_group = 1,
                                .heads_per_group = 1,
                                .n_shares = 2};
    o.prefill_chunk = 400;
    o.n_pages = 1 + 2 * cells_of_share;
    o.max_sessions = 4;
    o.session_ttl_us = 1000000;
    o.prefix_cache = false;
    fixture *f = begin(o);
    f->second_more = 2 * FIXTURE_SLOTS;
    return f;
}

static sched_request competing(fixture *f, uint64_t id, uint32_t n_prompt)
{
    const char *policy = "{\"method\": \"adakv\", \"tokens\": 48, \"window\": 8, \"floor\": 0}";
    return of_session(with_policy(f, id, 0, n_prompt, 1, policy), SESSION);
}

/* The first head keeps the 8 slots of the window, the other one the rest of the 96 that both keep
 * together. */
static void leave_an_uneven_session(fixture *f)
{
    sched_request a = competing(f, 1, PROMPT);
    add(f, &a);
    assert_string_equal(step(f), "1@0+96*m8");
    finish_choice(f, 1);
    step(f);
    step(f);
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 1);
    assert_int_equal(used_pages(f), 1 + 6);
}

/* 7 cells of one share and 12 of the other are free, and the session would free 6 and 1. So 12 of
 * each can be had, though what both shares can give now and the session's pages make 21. */
static void a_session_gives_way_where_each_share_has_enough_then(void **state)
{
    (void)state;
    fixture *f = begin_in_shares(13);
    leave_an_uneven_session(f);
    sched_request b = request(f, 2, 1000, 12 * 16 - 4, 4);
    add(f, &b);
    assert_string_equal(step(f), "2@0+188*");
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 0);
    end(f, 2, 0);
    step(f);
    finish(f);
}

/* The turn's selection leaves at most 6 cells in each share. The session has that many in one, so
 * only what the turn grows by, and what the selection takes for a moment, has to be free: 14 of the
 * 16 cells that both shares can give. */
static void a_session_goes_on_from_what_its_largest_share_holds(void **state)
{
    (void)state;
    fixture *f = begin_in_shares(14);
    leave_an_uneven_session(f);
    sched_request b = competing(f, 2, PROMPT + 16);
    ((uint32_t *)b.prompt)[PROMPT] = 500; /* the first turn's answer */
    add(f, &b);
    assert_string_equal(step(f), "2@96+16*m8");
    assert_string_equal(describe(f, 2, 0).report.session, "continued");
    end(f, 2, 0);
    step(f);
    finish(f);
}

static void run_steps(fixture *f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        step(f);
        for (sched_selection *x; (x = sched_next_selection(f->s)) != NULL;) {
            sched_selection_run(x);
            post(f, (sched_event){.kind = SCHED_SELECTED, .selection = x});
        }
    }
}

/* Keeps 10 of the 12 pages of its prompt: `more` is what the second head's scores are larger by. */
static void add_of_pages(fixture *f, sched_request *r, uint64_t id, uint32_t first, float more)
{
    const char *policy =
        "{\"method\": \"adakv\", \"unit\": \"page\", \"tokens\": 80, \"window\": 8, \"floor\": 0}";
    *r = with_policy(f, id, first, PROMPT, 60, policy);
    f->second_more = more;
    add(f, r);
    run_steps(f, id == 4 ? 12 : 8);
}

/* Running requests hold all cells of request 1's blocks but one, which lies in the share that has
 * fewer free cells. A hit of these blocks takes it with its first portion, and so two of the pages
 * that can be had. The hit is owed nothing more, not less than nothing. */
static void a_hit_may_take_more_than_was_counted(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.geometry = (pkv_geometry){.page_tokens = 16,
                                .n_layers = 1,
                                .n_kv_heads = 2,
                                .layers_per_group = 1,
                                .heads_per_group = 1,
                                .n_shares = 2};
    o.prefill_chunk = 400;
    o.n_pages = 1 + 2 * 20;
    o.hand_out_slots = 4;
    fixture *f = begin(o);
    sched_request r[3];
    add_of_pages(f, &r[0], 1, 0, 2 * FIXTURE_SLOTS);
    add_of_pages(f, &r[1], 2, 1000, -2 * FIXTURE_SLOTS);
    add_of_pages(f, &r[2], 4, 0, 0);
    sched_request hit = request(f, 3, 0, PROMPT + 2, 4);
    add(f, &hit);
    run_steps(f, 1); /* checks the integrity of what the hit is owed */
    assert_true(describe(f, 3, 0).arriving);
    run_steps(f, 5);
    assert_non_null(strstr(f->trace, "3@96+2*"));
    finish(f);
}

/* The pool of 8 * n + 2 cells has only 8 * n that lie evenly, and a request that may need more than
 * those is refused. If it were accepted, it would wait for ever, and all others behind it. */
static void a_request_must_fit_into_each_share(void **state)
{
    (void)state;
    uint32_t tried = 0;
    for (uint32_t tokens = 20; tokens < 100; tokens++) {
        char policy[80];
        sched_options o = small_options();
        o.geometry = (pkv_geometry){.page_tokens = 16,
                                    .n_layers = 2,
                                    .n_kv_heads = 4,
                                    .layers_per_group = 1,
                                    .heads_per_group = 1,
                                    .n_shares = 2};
        snprintf(policy, sizeof policy, "{\"method\": \"adakv\", \"tokens\": %u, \"window\": 8}",
                 tokens);
        fixture *f = begin(o);
        sched_request r = with_policy(f, 1, 0, PROMPT, 8, policy);
        uint32_t peak = (uint32_t)sched_need_of(&o.geometry, 0, &r.policy, PROMPT, 8).peak;
        finish(f);
        if (peak % 8 != 2) continue;
        for (uint32_t more = 0; more <= 6; more += 6) {
            error err = {{0}};
            o.n_pages = 1 + peak + more;
            f = begin(o);
            r = with_policy(f, 1, 0, PROMPT, 8, policy);
            assert_int_equal(pkv_even_pages(&o.geometry, o.n_pages - 1),
                             more ? peak + 6 : peak - 2);
            assert_int_equal(sched_check(f->s, &r, &err).code, more ? STATUS_OK : STATUS_LIMIT);
            if (more) {
                add(f, &r);
                assert_string_equal(step(f), "1@0+40");
                end(f, 1, 0);
                step(f);
            }
            finish(f);
        }
        tried++;
    }
    assert_true(tried > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_must_fit_into_each_share),
        cmocka_unit_test(a_hit_may_take_more_than_was_counted),
        cmocka_unit_test(a_session_gives_way_where_each_share_has_enough_then),
        cmocka_unit_test(a_session_goes_on_from_what_its_largest_share_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
