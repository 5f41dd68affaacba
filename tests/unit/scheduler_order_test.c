/* The order in which sequences get slots: the choices of one request beside other requests. Plans
 * are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static sched_options two_slots(void)
{
    sched_options o = small_options();
    o.max_seqs = 2;
    return o;
}

/* ---- choices without a slot ------------------------------------------------------------------ */

static void one_slot_admits_all_choices(void **state)
{
    (void)state;
    fixture *f = begin(two_slots());
    sched_request a = request(f, 1, 0, 10, 30), b = request(f, 2, 100, 20, 5);
    b.n = 2;
    add(f, &a);
    assert_string_equal(step(f), "1@0+10*");
    add(f, &b);
    assert_string_equal(step(f), "1@10+1* 2@0+20*2"); /* three draws, two sequences */
    assert_string_equal(step(f), "1@11+1* 2@20+1*");
    assert_int_equal(describe(f, 2, 1).output_tokens, 1); /* its first token is already there */
    assert_int_equal(describe(f, 2, 1).report.kept_tokens, 20);
    assert_int_equal(used_pages(f), 2 * (1 + 2 + 1)); /* one copy of the page that 2 continues in */
    end(f, 1, 0);
    /* It continues from the prompt's pages: one row, and a copy of the page that it writes. */
    assert_string_equal(step(f), "2@21+1* 2.1@20+1*");
    assert_int_equal(f->plan->tokens[1], 501);
    assert_int_equal(f->plan->n_opens, 1);
    assert_int_equal(f->plan->opens[0].choice, 1);
    assert_int_equal(used_pages(f), 2 * (1 + 2));
    assert_int_equal(sched_get_stats(f->s).replayed_tokens, 0);
    finish(f);
}

/* The sibling that ran has ended: the pages it shared now belong to the waiting choice. */
static void a_waiting_choice_keeps_its_prompt(void **state)
{
    (void)state;
    sched_options o = two_slots();
    o.prefix_cache = false;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 10, 30), b = request(f, 2, 100, 20, 5);
    b.n = 2;
    add(f, &a);
    add(f, &b);
    step(f);
    assert_string_equal(step(f), "1@10+1* 2@20+1*");
    end(f, 2, 0);
    assert_string_equal(step(f), "1@11+1* 2.1@20+1*");
    assert_int_equal(used_pages(f), 2 * (1 + 2));
    end(f, 2, 1);
    step(f);
    assert_int_equal(used_pages(f), 2);
    finish(f);
}

static void a_waiting_choice_can_end(void **state)
{
    (void)state;
    fixture *f = begin(two_slots());
    sched_request a = request(f, 1, 0, 10, 30), b = request(f, 2, 100, 20, 5);
    b.n = 2;
    add(f, &a);
    add(f, &b);
    step(f);
    assert_string_equal(step(f), "1@10+1* 2@20+1*");
    end(f, 2, 1);
    end(f, 2, 0);
    assert_string_equal(step(f), "1@11+1*");
    assert_int_equal(used_pages(f), 2);
    finish(f);
}

/* Sums beside K and V belong to one choice: a choice without a slot is computed again. */
static void sums_are_not_shared_while_waiting(void **state)
{
    (void)state;
    fixture *f = begin(two_slots());
    const char *policy = "{\"method\": \"h2o\", \"tokens\": 16}";
    sched_request a = request(f, 1, 0, 10, 30), b = with_policy(f, 2, 100, 20, 5, policy);
    b.n = 2;
    add(f, &a);
    add(f, &b);
    step(f);
    step(f);
    end(f, 1, 0);
    step(f);
    assert_int_equal(f->plan->n_seqs, 2);
    assert_int_equal(f->plan->seqs[1].choice, 1);
    assert_int_equal(f->plan->seqs[1].position, 0);
    finish(f);
}

/* Pages are short: the running choice gets the prompt's pages that the waiting one held. */
static void a_waiting_choice_gives_way(void **state)
{
    (void)state;
    sched_options o = two_slots();
    o.prefix_cache = false;
    o.n_pages = 1 + 2 * 5;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 20, 50), b = request(f, 2, 100, 20, 5);
    a.priority = -1;
    b.n = 2;
    add(f, &a);
    add(f, &b);
    step(f);
    assert_string_equal(step(f), "1@20+1* 2@20+1*");
    assert_int_equal(used_pages(f), 2 * 5);
    end(f, 2, 0);
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 2, .choice = 1});
    for (uint32_t i = 21; i < 49; i++) step(f);
    assert_string_equal(f->trace, "1@48+1*");
    assert_int_equal(used_pages(f), 2 * 4); /* two parked pages among them: none was short */
    for (uint32_t i = 49; i < 65; i++) step(f);
    assert_string_equal(f->trace, "1@64+1*");
    assert_int_equal(describe(f, 1, 0).preemptions, 0);
    finish(f);
}

/* 32 choices run and some requests wait; each finished request is followed by a new one. */
typedef struct crowd {
    fixture *f;
    uint64_t next; // id
    uint32_t n_live;
    bool wide_is_over;
    sched_request added[FIXTURE_PROMPTS]; // until the next step
    uint32_t n_added;
} crowd;

enum { CROWD = 36, WIDE = 1000 };

static uint32_t tokens_of(uint64_t id) { return 10 + (uint32_t)(id * 7 % 23); }

static void crowd_add(crowd *c, uint64_t id, uint32_t n)
{
    sched_request *r = &c->added[c->n_added++];
    *r = request(c->f, id, (uint32_t)id * 1000, 20, tokens_of(id));
    r->n = n;
    add(c->f, r);
    c->n_live++;
}

/* Runs a step and ends the requests that have their last token, as the engine does. Returns the
 * number of rows of the next plan. */
static uint32_t crowd_step(crowd *c)
{
    fixture *f = c->f;
    uint32_t wide_left = 0;
    for (uint32_t i = 0; f->plan && i < f->plan->n_seqs; i++) {
        const step_seq *q = &f->plan->seqs[i];
        for (uint32_t j = 0; j < q->n_samples; j++) {
            if (describe(f, q->request, q->choice + j).output_tokens + 1 < tokens_of(q->request))
                continue;
            end(f, q->request, q->choice + j);
            c->n_live -= q->request != WIDE;
        }
    }
    /* Steps take in prompts, never more at once than the fixture holds. */
    for (uint32_t i = 0; i < 8 && c->n_live < CROWD; i++) crowd_add(c, c->next++, 1);
    step(f);
    c->n_added = 0;
    for (uint32_t k = 0; k < 32; k++) {
        sched_choice_info info;
        wide_left +=
            status_ok(sched_describe(f->s, WIDE, k, &info)) && info.output_tokens < tokens_of(WIDE);
    }
    c->wide_is_over = wide_left == 0;
    return f->plan->n_tokens;
}

/* With n as large as the batch, a step always has at least 9 of 10 of the rows of the step
 * before. */
static void many_choices_do_not_empty_the_batch(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.max_seqs = 32;
    o.max_requests = 64;
    o.n_pages = 1 + 2 * 2000;
    fixture *f = begin(o);
    crowd c = {.f = f, .next = 1};
    for (uint32_t i = 0; i < 50; i++) crowd_step(&c);
    assert_true(crowd_step(&c) >= 32);
    crowd_add(&c, WIDE, 32);
    uint32_t fewest = UINT32_MAX, steps = 0;
    do {
        uint32_t rows = crowd_step(&c);
        if (rows < fewest) fewest = rows;
    } while (++steps < 1000 && !c.wide_is_over);
    assert_true(c.wide_is_over);
    assert_true(fewest >= 29);
    assert_int_equal(sched_get_stats(f->s).replayed_tokens, 0);
    finish(f);
}

/* ---- priorities ------------------------------------------------------------------------------ */

/* Fcfs refuses priorities with a message. */
static void fcfs_refuses_priorities(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.policy = SCHED_FCFS;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 10, 5);
    error err;
    assert_true(status_ok(sched_check(f->s, &a, &err)));
    a.priority = -1;
    assert_int_equal(sched_check(f->s, &a, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "priority: -1 is not 0"));
    assert_non_null(strstr(err.text, "--scheduling-policy fcfs"));
    finish(f);
}

/* One slot. Requests of the best priority, each `n_prompt` tokens long and ending with its first
 * token, follow each other endlessly. Returns how many of them started before the default request's
 * first token, out of `most`. */
static uint32_t passes_before_first_token(uint32_t slots, uint32_t n_prompt, uint32_t most)
{
    sched_options o = small_options();
    o.max_seqs = slots;
    fixture *f = begin(o);
    sched_request first = request(f, 1, 0, 10, 5), a = request(f, 2, 100, 400, 5), next[2];
    first.priority = INT32_MIN;
    add(f, &first);
    add(f, &a);
    step(f);
    end(f, 1, 0);
    uint32_t n = 0;
    for (uint64_t id = 3; n < most && describe(f, 2, 0).output_tokens == 0;) {
        for (uint32_t i = 0; i < 2 && sched_get_stats(f->s).waiting < 3; i++, id++) {
            next[i] = request(f, id, (uint32_t)id * 1000, n_prompt, 1);
            next[i].priority = INT32_MIN;
            add(f, &next[i]);
        }
        step(f);
        for (uint32_t i = 0; f->plan && i < f->plan->n_seqs; i++) {
            const step_seq *q = &f->plan->seqs[i];
            n += q->request != 2 && q->position == 0;
            if (q->request != 2 && q->n_samples > 0) end(f, q->request, 0);
        }
    }
    finish(f);
    return n;
}

static void no_request_is_passed_for_ever(void **state)
{
    (void)state;
    /* Waiting for the slot: after 8 later requests it is the first. */
    uint32_t n = passes_before_first_token(1, 10, 1000);
    assert_in_range(n, 8, 9);
    /* With a slot, but without tokens in a step: they go to the best prompts first. */
    n = passes_before_first_token(4, 40, 1000);
    assert_in_range(n, 8, 24);
}

/* Passed requests move up in order: the second one goes before all others 8 starts after the first
 * one, and an aged request keeps its place. */
static void each_one_of_a_line_is_passed_so_often(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.max_seqs = 1;
    fixture *f = begin(o);
    sched_request line[3], next;
    uint32_t started[3] = {0}, n = 0;
    for (uint32_t i = 0; i < 3; i++) {
        line[i] = request(f, i + 1, 100 * i, 10, 1);
        line[i].priority = 5 - (int32_t)i;
    }
    next = request(f, 10, 5000, 10, 1);
    add(f, &next);
    next.priority = -1;
    for (uint32_t i = 0; i < 3; i++) add(f, &line[i]);
    step(f);
    for (uint64_t id = 11; id < 60; id++) {
        end(f, f->plan->seqs[0].request, 0);
        next = request(f, id, (uint32_t)id * 1000, 10, 1);
        next.priority = -1;
        add(f, &next);
        step(f);
        uint64_t runs = f->plan->seqs[0].request;
        n += runs > 3;
        if (runs <= 3) started[runs - 1] = n;
    }
    assert_int_equal(started[0], 8);
    assert_int_equal(started[1], 16);
    assert_int_equal(started[2], 24);
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_slot_admits_all_choices),
        cmocka_unit_test(a_waiting_choice_keeps_its_prompt),
        cmocka_unit_test(a_waiting_choice_can_end),
        cmocka_unit_test(sums_are_not_shared_while_waiting),
        cmocka_unit_test(a_waiting_choice_gives_way),
        cmocka_unit_test(many_choices_do_not_empty_the_batch),
        cmocka_unit_test(fcfs_refuses_priorities),
        cmocka_unit_test(no_request_is_passed_for_ever),
        cmocka_unit_test(each_one_of_a_line_is_passed_so_often),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
