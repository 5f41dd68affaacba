/* Sessions: what a request leaves, how the next one continues from it, and why it sometimes cannot.
 * Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static sched_options with_sessions(uint32_t blocks, uint32_t n)
{
    sched_options o = small_options();
    o.prefill_chunk = 200;
    o.n_pages = 1 + 2 * blocks;
    o.max_sessions = n;
    o.session_ttl_us = 1000000;
    o.prefix_cache = false;
    return o;
}

/* Runs until `n_out` tokens have come and the choice ends. */
static void run_to_end(fixture *f, uint64_t id, uint32_t n_out)
{
    do step(f);
    while (describe(f, id, 0).output_tokens < n_out);
    finish_choice(f, id);
    step(f);
    step(f);
}

/* A prompt of tokens from `first` on, the fixture's answers (500 ..) from n_prompt on, then new
 * tokens. */
static sched_request next_turn(fixture *f, uint64_t id, uint32_t first, uint32_t n_prompt,
                               uint32_t n_out, uint32_t n_new)
{
    sched_request r = request(f, id, first, n_prompt + n_out + n_new, 4);
    for (uint32_t i = 0; i < n_out; i++) ((uint32_t *)r.prompt)[n_prompt + i] = 500;
    return r;
}

static void the_next_turn_goes_on(void **state)
{
    (void)state;
    fixture *f = begin(with_sessions(40, 4));
    sched_request a = of_session(request(f, 1, 0, 50, 9), 7);
    add(f, &a);
    assert_string_equal(step(f), "1@0+50*");
    assert_string_equal(describe(f, 1, 0).report.session, "");
    step(f);
    finish_choice(f, 1); /* with its second token */
    step(f);
    assert_string_equal(describe(f, 1, 0).report.session, "stored");
    sched_stats stats = sched_get_stats(f->s);
    assert_int_equal(stats.sessions_idle, 1);
    assert_int_equal(stats.logical_tokens, 51);
    assert_int_equal(stats.kept_tokens, 51);
    assert_int_equal(used_pages(f), 2 * 4);

    /* The prompt, two tokens of which one has K and V, and twenty new ones. */
    sched_request b = of_session(next_turn(f, 2, 0, 50, 2, 20), 7);
    add(f, &b);
    assert_string_equal(step(f), "2@51+21*");
    sched_choice_info info = describe(f, 2, 0);
    assert_string_equal(info.report.session, "continued");
    assert_int_equal(info.cached_tokens, 0); /* counts prefix-cache hits only */
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 0);
    run_to_end(f, 2, 4);
    stats = sched_get_stats(f->s);
    assert_int_equal(stats.sessions_stored, 2);
    assert_int_equal(stats.sessions_continued, 1);
    assert_int_equal(stats.sessions_ignored, 0);
    assert_int_equal(stats.sessions_idle, 1);
    finish(f);
}

/* T is the whole logical length; the first turn's selection is not made again. */
static void retention_goes_on(void **state)
{
    (void)state;
    const char *policy = "{\"method\": \"chunkkv\", \"ratio\": 0.5, \"window\": 10}";
    fixture *f = begin(with_sessions(40, 4));
    sched_request a = of_session(with_policy(f, 1, 0, 96, 4, policy), 7);
    add(f, &a);
    run_to_end(f, 1, 4);
    assert_int_equal(used_pages(f), 2 * 4); /* 3 of 6 pages, and three tokens */
    sched_request b = of_session(next_turn(f, 2, 0, 96, 4, 60), 7);
    b.policy = a.policy;
    add(f, &b);
    assert_string_equal(step(f), "2@99+61*m10");
    assert_string_equal(step(f), "2@160+1*");
    sched_choice_info info = describe(f, 2, 0);
    assert_int_equal(info.report.pages_dropped,
                     2 * 2); /* 3 + 4 pages and a part: 5 of 160 / 2 stay */
    assert_int_equal(info.report.logical_tokens, 161);

    /* A replay after a failed step goes through both turns as before. */
    answer(f, status_make(STATUS_IO, NULL));
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    assert_string_equal(step(f), "2@0+96m10");
    assert_string_equal(step(f), "2@96+3");
    assert_string_equal(step(f), "2@99+61m10");
    assert_string_equal(step(f), "2@160+1*");
    info = describe(f, 2, 0);
    assert_int_equal(info.report.pages_dropped, 2 * 2);
    end(f, 2, 0);
    step(f);
    finish(f);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void reasons_are_given(void **state)
{
    (void)state;
    const char *policy = "{\"method\": \"chunkkv\", \"ratio\": 0.5, \"window\": 10}";
    const char *other = "{\"method\": \"snapkv\", \"ratio\": 0.5, \"window\": 10}";
    struct {
        uint32_t n_new, n;
        bool other_prompt, other_policy, logits, ratio;
        const char *note;
    } cases[] = {
        {20, 1, false, false, false, false, "continued"},
        {20, 1, false, false, false, true, "continued"},
        {20, 2, false, false, false, false, "ignored: n is above 1"},
        {20, 1, true, false, false, false, "ignored: the prompt does not extend the session"},
        {20, 1, false, true, false, false, "ignored: made with another retention"},
        {20, 1, false, false, true, false, "ignored: logprobs of the whole prompt are asked for"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture *f = begin(with_sessions(40, 4));
        sched_request a = of_session(with_policy(f, 1, 0, 90, 4, policy), 7);
        add(f, &a);
        run_to_end(f, 1, 4);
        sched_request b = next_turn(f, 2, cases[i].other_prompt, 90, 3, cases[i].n_new);
        if (cases[i].other_policy) b.policy = with_policy(f, 3, 0, 9, 1, other).policy;
        else b.policy = a.policy;
        if (cases[i].ratio) b.policy.ratio = 0.9;
        b.n = cases[i].n;
        b.want_logits = cases[i].logits;
        b = of_session(b, 7);
        add(f, &b);
        step(f);
        assert_string_equal(describe(f, 2, 0).report.session, cases[i].note);
        bool ignored = cases[i].note[0] == 'i';
        assert_int_equal(sched_get_stats(f->s).sessions_ignored, ignored);
        assert_int_equal(sched_get_stats(f->s).sessions_idle, ignored); /* the session stays */
        end(f, 2, SCHED_ALL_CHOICES);
        step(f);
        finish(f);
    }
}

/* With one row per interval, a row is measured in its own step; otherwise rows are summed beside
 * the pages, and such pages cannot be shared with other sequences. */
static void sums_begin_with_the_session(void **state)
{
    (void)state;
    static const char *const policies[] = {
        "{\"method\": \"snapkv-decode\", \"tokens\": 200, \"interval\": 1}",
        "{\"method\": \"snapkv-decode\", \"tokens\": 200, \"interval\": 16}",
        "{\"method\": \"snapkv-decode\", \"tokens\": 200, \"interval\": 8}",
    };
    for (uint32_t i = 0; i < 9; i++) {
        fixture *f = begin(with_sessions(40, 4));
        sched_request a = of_session(with_policy(f, 1, 0, 90, 4, policies[i / 3]), 7);
        add(f, &a);
        run_to_end(f, 1, 4);
        sched_request b = of_session(next_turn(f, 2, 0, 90, 3, 20), 7);
        b.policy = with_policy(f, 3, 0, 9, 1, policies[i % 3]).policy;
        add(f, &b);
        step(f);
        assert_string_equal(describe(f, 2, 0).report.session,
                            (i / 3 == 0) == (i % 3 == 0) ? "continued"
                                                         : "ignored: made with another retention");
        finish(f);
    }
}

/* A head that gave up a position which is now a sink would keep one token less than another head,
 * and tables of positions in the cache keep equally many. */
static void sinks_of_a_recurrent_session_do_not_grow(void **state)
{
    (void)state;
    static const struct {
        uint32_t before, after;
        const char *note;
    } cases[] = {
        {4, 4, "continued"}, {4, 2, "continued"}, {4, 5, "ignored: made with fewer sinks"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char policies[2][160];
        for (int turn = 0; turn < 2; turn++)
            snprintf(policies[turn], sizeof policies[turn],
                     "{\"method\": \"tova-recurrent\", \"tokens\": 48, \"window\": 8, "
                     "\"recurrent_chunk\": 32, \"scope\": \"layer\", \"sinks\": %u}",
                     turn ? cases[i].after : cases[i].before);
        fixture *f = begin(with_sessions(40, 4));
        sched_request a = of_session(with_policy(f, 1, 0, 90, 4, policies[0]), 7);
        add(f, &a);
        run_to_end(f, 1, 4);
        sched_request b = of_session(next_turn(f, 2, 0, 90, 3, 20), 7);
        b.policy = with_policy(f, 3, 0, 9, 1, policies[1]).policy;
        add(f, &b);
        step(f);
        assert_string_equal(describe(f, 2, 0).report.session, cases[i].note);
        finish(f);
    }
}

/* The session holds all its tokens: none is left to compute. */
static void one_token_must_be_new(void **state)
{
    (void)state;
    for (uint32_t n_out = 3; n_out <= 4; n_out++) {
        fixture *f = begin(with_sessions(40, 4));
        sched_request a = of_session(request(f, 1, 0, 30, 4), 7);
        add(f, &a);
        run_to_end(f, 1, 4);
        sched_request b = of_session(next_turn(f, 2, 0, 30, n_out, 0), 7);
        add(f, &b);
        assert_string_equal(step(f), n_out == 3 ? "2@0+33*" : "2@33+1*");
        finish(f);
    }
}

static void one_request_at_a_time(void **state)
{
    (void)state;
    fixture *f = begin(with_sessions(40, 4));
    sched_request a = of_session(request(f, 1, 0, 30, 4), 7), b = a, c = a, d = a;
    b.id = 2;
    c.id = 3;
    c.session[0] = 8;
    d.id = 4;
    add(f, &a);
    add(f, &b);
    add(f, &c);
    step(f);
    step(f);
    assert_string_equal(describe(f, 2, 0).report.session, "ignored: busy");
    assert_string_equal(describe(f, 3, 0).report.session, "");
    /* The end comes while rows are in flight: the session is busy until their results are in. */
    finish_choice(f, 1);
    add(f, &d);
    step_in_flight(f);
    assert_string_equal(describe(f, 4, 0).report.session, "ignored: busy");
    end(f, 2, 0);
    end(f, 3, 0);
    end(f, 4, 0);
    step(f);
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 1);
    finish(f);
}

static void off_means_off(void **state)
{
    (void)state;
    fixture *f = begin(with_sessions(40, 0));
    sched_request a = of_session(request(f, 1, 0, 30, 4), 7);
    add(f, &a);
    step(f);
    assert_string_equal(describe(f, 1, 0).report.session, "ignored: sessions are off");
    run_to_end(f, 1, 4);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

static void only_what_finished_is_stored(void **state)
{
    (void)state;
    fixture *f = begin(with_sessions(40, 4));
    sched_request a = of_session(request(f, 1, 0, 30, 4), 7);
    add(f, &a);
    step(f);
    step(f);
    end(f, 1, 0);
    step(f);
    assert_string_equal(describe(f, 1, 0).report.session, "");
    assert_int_equal(sched_get_stats(f->s).sessions_stored, 0);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

static void an_end_in_flight_stores_whole_rows(void **state)
{
    (void)state;
    for (int fails = 0; fails < 2; fails++) {
        fixture *f = begin(with_sessions(40, 4));
        sched_request a = of_session(request(f, 1, 0, 30, 9), 7);
        add(f, &a);
        step(f);
        assert_string_equal(step(f), "1@30+1*");
        finish_choice(f, 1);
        step_in_flight(f);
        assert_string_equal(describe(f, 1, 0).report.session, "stored");
        answer(f, status_make(fails ? STATUS_IO : STATUS_OK, NULL));
        post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
        step(f);
        assert_int_equal(sched_get_stats(f->s).sessions_idle, !fails);
        assert_int_equal(used_pages(f), fails ? 0 : 2 * 2);
        sched_request b = of_session(next_turn(f, 2, 0, 30, 1, 9), 7);
        add(f, &b);
        assert_string_equal(step(f), fails ? "2@0+40*" : "2@31+9*");
        finish(f);
    }
}

/* ---- how long they stay ---------------------------------------------------------------------- */

static void they_expire(void **state)
{
    (void)state;
    fixture *f = begin(with_sessions(40, 2));
    for (uint64_t i = 1; i <= 3; i++) {
        sched_request a = of_session(request(f, i, 0, 30, 2), i);
        add(f, &a);
        run_to_end(f, i, 2);
        f->now_us += 400000;
    }
    sched_stats stats = sched_get_stats(f->s);
    assert_int_equal(stats.sessions_idle, 2); /* there is room for two: the oldest is gone */
    assert_int_equal(stats.sessions_expired, 1);
    step(f);
    f->now_us = 1399999;
    step(f);
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 2);
    f->now_us++;
    step(f);
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 1);
    f->now_us = 1800000;
    step(f);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

static void store_session(fixture *f, uint64_t id, uint64_t owner)
{
    sched_request a = of_session(request(f, id, 0, 30, 2), id);
    a.owner = owner;
    add(f, &a);
    run_to_end(f, id, 2);
    f->now_us += 1000;
}

/* Begins a request of this session, and checks what its report says of it. */
static void expect_note(fixture *f, uint64_t id, uint64_t session, const char *note)
{
    sched_request r = of_session(next_turn(f, id, 0, 30, 2, 5), session);
    add(f, &r);
    step(f);
    assert_string_equal(describe(f, id, 0).report.session, note);
}

/* The owner of many sessions makes room with the one that has been idle longest, though another
 * owner's has been idle longer. */
static void the_owner_of_most_makes_room(void **state)
{
    (void)state;
    fixture *f = begin(with_sessions(40, 3));
    store_session(f, 1, 100);
    for (uint64_t id = 2; id <= 6; id++) store_session(f, id, 200);
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 3);
    expect_note(f, 11, 1, "continued");
    expect_note(f, 12, 4, "");
    expect_note(f, 15, 5, "continued");
    expect_note(f, 16, 6, "continued");
    for (uint64_t id = 11; id <= 16; id++) {
        if (id == 13 || id == 14) continue;
        end(f, id, 0);
    }
    step(f);
    finish(f);
}

/* The same when pages are short. */
static void the_owner_of_most_gives_pages(void **state)
{
    (void)state;
    fixture *f = begin(with_sessions(8, 4));
    store_session(f, 1, 100);
    store_session(f, 2, 200);
    store_session(f, 3, 200);
    assert_int_equal(used_pages(f), 3 * 2 * 2);
    sched_request big = request(f, 9, 900, 60, 2); /* needs a block more than is free */
    add(f, &big);
    step(f);
    run_to_end(f, 9, 2);
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 2);
    expect_note(f, 11, 1, "continued");
    expect_note(f, 12, 2, "");
    end(f, 11, 0);
    end(f, 12, 0);
    step(f);
    finish(f);
}

/* The scheduler was not called since the session expired: the next turn comes too late. */
static void none_goes_on_after_its_time(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        fixture *f = begin(with_sessions(40, 2));
        sched_request a = of_session(request(f, 1, 0, 50, 9), 7);
        add(f, &a);
        run_to_end(f, 1, 2);
        f->now_us += 999999 + late;
        sched_request b = of_session(next_turn(f, 2, 0, 50, 2, 20), 7);
        add(f, &b);
        assert_string_equal(step(f), late ? "2@0+72*" : "2@52+20*");
        assert_int_equal(sched_get_stats(f->s).sessions_expired, late);
        finish(f);
    }
}

/* Two sessions of two blocks each in a pool of eight; then a request wants seven. */
static void they_give_way(void **state)
{
    (void)state;
    for (uint32_t tier = 0; tier < 2; tier++) {
        sched_options o = with_sessions(8, 4);
        o.n_host_pages = tier ? 4 : 0;
        fixture *f = begin(o);
        for (uint64_t i = 1; i <= 2; i++) {
            sched_request a = of_session(request(f, i, 0, 30, 2), i);
            add(f, &a);
            run_to_end(f, i, 2);
        }
        sched_request b = request(f, 3, 300, 112, 2);
        add(f, &b);
        assert_string_equal(step(f), "3@0+112*");
        sched_stats stats = sched_get_stats(f->s);
        assert_int_equal(stats.sessions_idle, 0);
        assert_int_equal(stats.sessions_swapped, tier); /* the tier has room for one */
        assert_int_equal(stats.swapped_tokens, tier ? 31 : 0);
        assert_int_equal(stats.sessions_expired, tier ? 1 : 2);
        assert_int_equal(stats.preemptions, 0);
        end(f, 3, 0);
        sched_request c = of_session(next_turn(f, 4, 0, 30, 1, 20), 1);
        add(f, &c);
        assert_string_equal(step(f), tier ? "4@31+20*" : "4@0+51*");
        assert_string_equal(describe(f, 4, 0).report.session, tier ? "continued" : "");
        finish(f);
    }
}

/* Sessions are not given up for a request that could not start anyway. */
static void not_for_nothing(void **state)
{
    (void)state;
    fixture *f = begin(with_sessions(8, 4));
    sched_request a = of_session(request(f, 1, 0, 30, 2), 1), b = request(f, 2, 100, 60, 20),
                  c = request(f, 3, 300, 100, 5);
    add(f, &a);
    run_to_end(f, 1, 2);
    add(f, &b);
    assert_string_equal(step(f), "2@0+60*");
    add(f, &c);
    assert_string_equal(step(f), "2@60+1*");
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 1);
    finish(f);
}

/* Twenty sessions with the same beginning: they share ten blocks, and each has one of its own. */
static fixture *sharing_sessions(void)
{
    sched_options o = with_sessions(40, 20);
    o.prefill_chunk = 640;
    o.prefix_cache = true;
    fixture *f = begin(o);
    for (uint32_t i = 1; i <= 20; i++) {
        sched_request a = of_session(request(f, i, 0, 170, 2), i);
        for (uint32_t k = 160; k < 170; k++) ((uint32_t *)a.prompt)[k] = 1000 * i + k;
        add(f, &a);
        run_to_end(f, i, 2);
    }
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 20);
    assert_int_equal(used_pages(f), 2 * (10 + 20));
    return f;
}

/* Pages that several sequences share become free once, with the last of them. */
static void shared_pages_are_counted_once(void **state)
{
    (void)state;
    fixture *f = sharing_sessions();
    sched_request a = request(f, 21, 5000, 100, 20), b = request(f, 22, 6000, 512, 2), c;
    add(f, &a);
    assert_string_equal(step(f), "21@0+100*"); /* 7 blocks of 10; 1 more is reserved for it */
    add(f, &b);
    /* 32 blocks: beside 21 there are 3 free ones and the 30 of the sessions, less the reserved
     * one. */
    assert_string_equal(step(f), "21@100+1* 22@0+512*");
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 0);
    end(f, 21, 0);
    end(f, 22, 0);
    step(f);
    finish(f);

    f = sharing_sessions();
    a = request(f, 21, 5000, 100, 20);
    b = request(f, 22, 6000, 513, 2);
    c = request(f, 23, 7000, 80, 2);
    add(f, &a);
    step(f);
    add(f, &b);
    assert_string_equal(step(f), "21@100+1*"); /* one token too many */
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 20);
    end(f, 22, 0);
    add(f, &c);
    /* 5 blocks, of which 2 are free: three sessions give up the blocks of their own. */
    assert_string_equal(step(f), "21@101+1* 23@0+80*");
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 17);
    finish(f);
}

/* Pages that the request itself will hit do not become free: its prompt begins as the sessions
 * did. */
static void pages_of_its_own_hit_do_not_come_free(void **state)
{
    (void)state;
    for (uint32_t more = 0; more < 2; more++) {
        fixture *f = sharing_sessions();
        sched_request a = request(f, 21, 5000, 10, 2), b = request(f, 22, 0, 624 + more, 1);
        for (uint32_t k = 160; k < b.n_prompt; k++) ((uint32_t *)b.prompt)[k] = 9000 + k;
        add(f, &a);
        assert_string_equal(step(f), "21@0+10*");
        add(f, &b);
        /* Another request has one block: 39 are left, including the ten that are hit. */
        assert_string_equal(step(f), more ? "21@10+1*" : "21@10+1* 22@160+464*");
        assert_int_equal(sched_get_stats(f->s).sessions_idle, more ? 20 : 0);
        finish(f);
    }
}

/* A request that waits to continue holds pages that a request of better rank may need. */
static void a_waiting_sequence_gives_way(void **state)
{
    (void)state;
    for (uint32_t tier = 0; tier < 2; tier++) {
        sched_options o = with_sessions(8, 4);
        o.max_seqs = 1;
        o.n_host_pages = tier ? 4 : 0;
        fixture *f = begin(o);
        sched_request a = of_session(request(f, 1, 0, 30, 2), 1), b = request(f, 2, 100, 60, 68);
        add(f, &a);
        run_to_end(f, 1, 2);
        add(f, &b);
        assert_string_equal(step(f), "2@0+60*");
        sched_request c = of_session(next_turn(f, 3, 0, 30, 1, 20), 1);
        add(f, &c);
        step(f);
        assert_int_equal(sched_get_stats(f->s).sessions_idle, 0);
        assert_int_equal(used_pages(f), 2 * (4 + 2));
        for (int i = 0; i < 60; i++) step(f);
        assert_string_equal(f->trace, "2@120+1*");
        assert_int_equal(used_pages(f), 2 * 8);
        assert_int_equal(sched_get_stats(f->s).pages.host_used, tier ? 4 : 0);
        end(f, 2, 0);
        assert_string_equal(step(f), tier ? "3@31+20*" : "3@0+31"); /* the session's turn again */
        assert_string_equal(describe(f, 3, 0).report.session, "continued");
        finish(f);
    }
}

static void what_was_swapped_is_stored(void **state)
{
    (void)state;
    sched_options o = with_sessions(9, 4);
    o.n_host_pages = 100;
    fixture *f = begin(o);
    const char *policy = "{\"method\": \"chunkkv\", \"ratio\": 0.5, \"window\": 10}";
    sched_request a = of_session(with_policy(f, 1, 0, 90, 20, policy), 1),
                  b = request(f, 2, 200, 115, 25);
    b.priority = -1;
    add(f, &a);
    step(f);
    step(f);
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 1, .choice = 0});
    f->now_us += 1;
    add(f, &b);
    step(f);
    f->now_us += 2000000; /* its reader is slow */
    step(f);
    assert_int_equal(sched_get_stats(f->s).swaps_out, 1);
    finish_choice(f, 1);
    step(f);
    assert_string_equal(describe(f, 1, 0).report.session, "stored");
    assert_int_equal(sched_get_stats(f->s).sessions_swapped, 1);
    end(f, 2, 0);
    sched_request c = of_session(next_turn(f, 3, 0, 90, 1, 20), 1);
    c.policy = a.policy;
    add(f, &c);
    assert_string_equal(step(f), "3@91+20*");
    finish(f);
}

static void turns_are_counted(void **state)
{
    (void)state;
    sched_options o = with_sessions(100, 4);
    o.max_model_len = 2000;
    fixture *f = begin(o);
    uint32_t n = 3;
    for (uint64_t i = 1; i <= 66; i++) {
        sched_request a = of_session(request(f, i, 0, n, 2), 1);
        for (uint32_t k = 3; k < n; k++) ((uint32_t *)a.prompt)[k] = k % 5 == 3 ? 500 : k;
        add(f, &a);
        step(f);
        const char *note = i == 65 ? "restarted: the session has had 64 turns" : "continued";
        assert_string_equal(describe(f, i, 0).report.session, i == 1 ? "" : note);
        run_to_end(f, i, 2);
        n += 5;
    }
    sched_stats stats = sched_get_stats(f->s);
    assert_int_equal(stats.sessions_continued, 64);
    assert_int_equal(stats.sessions_ignored, 0);
    assert_int_equal(stats.sessions_expired, 1);
    assert_int_equal(stats.sessions_idle, 1);
    finish(f);
}

static void memory_may_be_short(void **state)
{
    (void)state;
    long n_calls = 1;
    uint64_t continued = 0;
    for (long i = 0; i < n_calls; i++) {
        sched_options o = with_sessions(9, 2);
        o.n_host_pages = 8;
        fixture *f = begin(o);
        long before = f->heap.calls;
        f->heap.fail_at = before + i;
        for (uint64_t id = 1; id <= 4; id++) {
            sched_request a = request(f, id, 0, 30, 4);
            if (id > 2) a = next_turn(f, id, 0, 30, 3, 20);
            a = of_session(a, 1 + id % 2);
            sched_choice_info info;
            add(f, &a);
            for (int k = 0; k < 8; k++) step(f);
            if (status_ok(sched_describe(f->s, id, 0, &info))) finish_choice(f, id);
            step(f);
        }
        sched_request b = request(f, 5, 400, 100, 2);
        add(f, &b);
        for (int k = 0; k < 6; k++) step(f);
        end(f, 5, 0);
        if (i == 0) n_calls = f->heap.calls - before;
        f->now_us += 9000000;
        step(f);
        step(f);
        assert_int_equal(used_pages(f), 0);
        continued += sched_get_stats(f->s).sessions_continued;
        finish(f);
    }
    assert_true(n_calls > 6);
    assert_true(continued > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_turn_goes_on),
        cmocka_unit_test(retention_goes_on),
        cmocka_unit_test(reasons_are_given),
        cmocka_unit_test(sums_begin_with_the_session),
        cmocka_unit_test(sinks_of_a_recurrent_session_do_not_grow),
        cmocka_unit_test(one_token_must_be_new),
        cmocka_unit_test(one_request_at_a_time),
        cmocka_unit_test(off_means_off),
        cmocka_unit_test(only_what_finished_is_stored),
        cmocka_unit_test(an_end_in_flight_stores_whole_rows),
        cmocka_unit_test(they_expire),
        cmocka_unit_test(the_owner_of_most_makes_room),
        cmocka_unit_test(the_owner_of_most_gives_pages),
        cmocka_unit_test(none_goes_on_after_its_time),
        cmocka_unit_test(they_give_way),
        cmocka_unit_test(not_for_nothing),
        cmocka_unit_test(shared_pages_are_counted_once),
        cmocka_unit_test(pages_of_its_own_hit_do_not_come_free),
        cmocka_unit_test(a_waiting_sequence_gives_way),
        cmocka_unit_test(what_was_swapped_is_stored),
        cmocka_unit_test(turns_are_counted),
        cmocka_unit_test(memory_may_be_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
