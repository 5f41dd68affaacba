/* The backend keeps lists for requests that read by retrieval: never more at once than it has for
 * that, and given up as it is told. */
#include "tests/unit/scheduler_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PROMPT = 40, NEW = 90, REQUESTS = 12, NUMBERS = 64 };

static const retrieval_spec lists = {.block_tokens = 16,
                                     .representative_num = 1,
                                     .group_heads = 1,
                                     .local_tokens = 16,
                                     .top_blocks = 1 << 20,
                                     .observed_rows = 8,
                                     .layer_step = 1,
                                     .token_step = 3};

static sched_options options_for(uint64_t note_bytes)
{
    sched_options o = small_options();
    o.retrieves = 1 << RETRIEVAL_MEAN | RETRIEVAL_NEEDS_HISTORY;
    o.note_bytes = note_bytes;
    o.max_requests = REQUESTS;
    return o;
}

static uint64_t bytes_of(const fixture *f, uint32_t n)
{
    return retrieval_kept_bytes(&lists, &f->geometry, PROMPT, PROMPT + NEW, n);
}

static sched_request reader(fixture *f, uint64_t id, uint32_t n)
{
    sched_request r = request(f, id, 1000 * (uint32_t)id, PROMPT, NEW);
    r.retrieval = lists;
    r.n = n;
    return r;
}

/* A backend by its plans: the requests whose lists it has. */
typedef struct keeper {
    uint64_t request[NUMBERS]; /* by number; 0 = nothing is kept */
    uint32_t choices[REQUESTS + 1], drawn[REQUESTS + 1][4], n_over;
    uint64_t most; /* bytes, at any time */
    uint32_t rows; /* most of a plan that read by retrieval */
} keeper;

static void take_ended(keeper *k, const step_plan *plan)
{
    assert_true(plan->n_ended_notes <= STEP_ENDED_NOTES);
    for (uint32_t i = 0; i < plan->n_ended_notes; i++) {
        assert_true(plan->ended_notes[i] < NUMBERS && k->request[plan->ended_notes[i]] != 0);
        k->request[plan->ended_notes[i]] = 0;
    }
}

/* Takes a plan, and ends the choices that it draws the last token of. */
static void take_plan(fixture *f, keeper *k, const step_plan *plan)
{
    uint32_t rows = 0;
    uint64_t bytes = 0;
    take_ended(k, plan);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        assert_int_equal(s->note > 0, s->retrieval.block_tokens > 0);
        if (s->note > 0) {
            assert_true(s->note < NUMBERS);
            assert_true(k->request[s->note] == 0 || k->request[s->note] == s->request);
            k->request[s->note] = s->request;
            if (s->position >= PROMPT) rows += s->n_tokens;
        }
        for (uint32_t j = 0; j < s->n_samples; j++)
            if (++k->drawn[s->request][s->choice + j] == NEW) {
                end(f, s->request, s->choice + j);
                k->n_over++;
            }
    }
    for (uint32_t i = 0; i < NUMBERS; i++)
        if (k->request[i]) bytes += bytes_of(f, k->choices[k->request[i]]);
    if (bytes > k->most) k->most = bytes;
    if (rows > k->rows) k->rows = rows;
}

static void drive(fixture *f, keeper *k, uint32_t n_choices)
{
    for (int i = 0; i < 2000 && k->n_over < n_choices; i++) {
        (void)step(f);
        if (f->plan) take_plan(f, k, f->plan);
    }
    assert_int_equal(k->n_over, n_choices);
    for (int i = 0; i < 3; i++) (void)step(f);
}

/* More requests than there is room for, with several choices, some without, in a pool that is too
 * small for those that run at once. */
static void live_requests_keep_what_there_is_room_for(void **state)
{
    (void)state;
    for (uint32_t pages = 40; pages <= 200; pages += 80) {
        sched_options o = options_for(1);
        fixture probe = {.geometry = o.geometry};
        o.note_bytes = bytes_of(&probe, 2) * 3 / 2 + bytes_of(&probe, 1);
        o.n_pages = pages + 1;
        fixture *f = begin(o);
        keeper k = {0};
        uint32_t n_choices = 0;
        sched_request requests[REQUESTS];
        for (uint32_t i = 0; i < REQUESTS; i++) {
            k.choices[i + 1] = 1 + i % 2;
            requests[i] = reader(f, i + 1, k.choices[i + 1]);
            if (i % 4 == 3) requests[i].retrieval = (retrieval_spec){0};
            requests[i].priority = (int32_t)(i * 5 % 3);
            n_choices += requests[i].n;
            add(f, &requests[i]);
        }
        drive(f, &k, n_choices);
        assert_in_range(k.most, bytes_of(f, 2), o.note_bytes);
        assert_in_range(k.rows, 1, step_most_sparse_rows(o.max_seqs));
        if (pages == 40) assert_true(sched_get_stats(f->s).preemptions > 0);
        finish(f);
    }
}

/* Room for one request: the next one starts once the backend was told that the first is over, also
 * where no other step would tell it, and what needs no room does not wait. */
static void who_needs_no_room_does_not_wait(void **state)
{
    (void)state;
    sched_options o = options_for(1);
    fixture probe = {.geometry = o.geometry};
    o.note_bytes = bytes_of(&probe, 1);
    fixture *f = begin(o);
    sched_request a = reader(f, 1, 1), b = reader(f, 2, 1), c = request(f, 3, 7000, 16, 2);
    a.n_prompt = b.n_prompt = 16;
    o.note_bytes = bytes_of(f, 1);
    a.retrieval.top_blocks = b.retrieval.top_blocks = 1 << 20;
    a.max_new_tokens = b.max_new_tokens = PROMPT + NEW - 16; /* as long a list */
    add(f, &a);
    add(f, &b);
    add(f, &c);
    assert_string_equal(step(f), "1@0+16* 3@0+16*");
    end(f, 3, 0);
    assert_string_equal(step(f), "1@16+1*");
    end(f, 1, 0);
    assert_string_equal(step(f), "2@0+16*");
    assert_int_equal(f->plan->n_ended_notes, 1);
    assert_int_equal(f->plan->ended_notes[0], f->plan->seqs[0].note);
    end(f, 2, 0);
    (void)step(f);
    finish(f);
}

static void what_never_fits_is_refused(void **state)
{
    (void)state;
    sched_options o = options_for(1);
    fixture probe = {.geometry = o.geometry};
    o.note_bytes = bytes_of(&probe, 2);
    fixture *f = begin(o);
    error err;
    sched_request r = reader(f, 1, 2);
    assert_true(status_ok(sched_check(f->s, &r, &err)));
    r.n = 3;
    assert_int_equal(sched_check(f->s, &r, &err).code, STATUS_LIMIT);
    assert_non_null(strstr(err.text, "retrieval: what token_step"));
    r.retrieval.token_step = 1;
    assert_true(status_ok(sched_check(f->s, &r, &err)));
    finish(f);
}

/* Sequences that are computed again after a preemption share the rows of a step that read few. */
static void replays_share_a_steps_rows(void **state)
{
    (void)state;
    sched_options o = options_for(0);
    o.prefill_chunk = 400;
    o.n_pages = 2 * 4 * 13 + 1;
    fixture *f = begin(o);
    sched_request requests[4];
    for (uint32_t i = 0; i < 4; i++) {
        requests[i] = request(f, i + 1, 1000 * i, 20, 180);
        requests[i].retrieval = lists;
        add(f, &requests[i]);
    }
    for (int i = 0; i < 170; i++) (void)step(f);
    answer(f, status_make(STATUS_NO_MEMORY, "a test")); /* all are computed again */
    sched_event failed = {.kind = SCHED_RESULT, .result = &f->result};
    const step_plan *plan = sched_step(f->s, f->now_us, &failed, 1);
    uint32_t most = 0;
    for (int i = 0; i < 40 && !sched_plan_empty(plan); i++) {
        uint32_t rows = 0;
        for (uint32_t s = 0; s < plan->n_seqs; s++) {
            uint32_t to = plan->seqs[s].position + plan->seqs[s].n_tokens;
            uint32_t from = plan->seqs[s].position > 20 ? plan->seqs[s].position : 20;
            if (to > from) rows += to - from;
        }
        if (rows > most) most = rows;
        f->plan = plan;
        answer(f, STATUS_IS_OK);
        sched_event done = {.kind = SCHED_RESULT, .result = &f->result};
        plan = sched_step(f->s, f->now_us, &done, 1);
    }
    assert_int_equal(most, step_most_sparse_rows(o.max_seqs));
    f->plan = sched_plan_empty(plan) ? NULL : plan;
    for (uint32_t i = 1; i <= 4; i++) end(f, i, 0);
    for (int i = 0; i < 3; i++) (void)step(f);
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_requests_keep_what_there_is_room_for),
        cmocka_unit_test(who_needs_no_room_does_not_wait),
        cmocka_unit_test(what_never_fits_is_refused),
        cmocka_unit_test(replays_share_a_steps_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
