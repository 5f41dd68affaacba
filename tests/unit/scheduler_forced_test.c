/* Tokens that a form forces: they are computed as chunks, beside those of prompts. Plans are read
 * as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint32_t forced[8] = {601, 602, 603, 604, 605, 606, 607, 608};

/* Tokens behind the draw of the step in flight. */
static void force(fixture *f, uint64_t id, uint32_t n)
{
    post(f, (sched_event){.kind = SCHED_FORCED, .request = id, .forced = forced, .n_forced = n});
}

static void forced_tokens_are_one_chunk(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 16, 20);
    add(f, &a);
    assert_string_equal(step(f), "1@0+16*");
    force(f, 1, 8);
    assert_string_equal(step(f), "1@16+9*");
    assert_string_equal(step(f), "1@25+1*");
    assert_int_equal(describe(f, 1, 0).output_tokens, 10);
    assert_true(sched_get_stats(f->s).forced_tokens == 8);
    end(f, 1, 0);
    step(f);
    finish(f);
}

/* The 40 rows that the prompt measures are a whole chunk, and go in one step. Forced tokens take
 * what is left beside them, in every step. */
static void a_prompt_runs_beside_forced_tokens(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 16, 200), b = retained(f, 2, 500, 60, 2, 40, 48);
    add(f, &a);
    step(f);
    force(f, 1, 8);
    add(f, &b);
    assert_string_equal(step(f), "1@16+4 2@0+20");
    assert_string_equal(step(f), "1@20+4 2@20+40*m40");
    for (uint32_t i = 0; i < 2; i++) {
        end(f, 1 + i, 0);
        step(f);
    }
    finish(f);
}

/* How many tokens the plan in flight gives the backend for penalties, in histories and shares. */
static uint32_t told(const fixture *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->plan->n_opens; i++) n += f->plan->opens[i].n_history;
    for (uint32_t i = 0; i < f->plan->n_seqs; i++) n += f->plan->seqs[i].n_uncounted;
    return n;
}

/* The backend is told each token once, however long the answer is. It counts its draws itself. */
static void penalties_are_told_each_forced_token_once(void **state)
{
    (void)state;
    enum { RUNS = 60 };
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 16, 2 + 10 * RUNS);
    a.params.repetition_penalty = 1.2f;
    add(f, &a);
    step(f);
    assert_int_equal(told(f), 16);
    for (uint32_t i = 1; i <= RUNS; i++) {
        force(f, 1, 8);
        step(f);
        const step_seq *share = &f->plan->seqs[0];
        assert_true(f->plan->n_opens == 0 && share->n_uncounted == 8 && share->n_tokens == 9);
        assert_memory_equal(f->plan->tokens + 1, forced, sizeof forced);
        step(f);
        assert_int_equal(told(f), 0);
    }
    end(f, 1, 0);
    step(f);
    finish(f);
}

/* Each chunk of a run brings its own tokens; an open has them all. */
static void chunks_and_opens_share_a_run(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 16, 200), b = retained(f, 2, 500, 60, 2, 40, 48);
    a.params.frequency_penalty = 0.5f;
    add(f, &a);
    step(f);
    force(f, 1, 8);
    add(f, &b);
    assert_string_equal(step(f), "1@16+4 2@0+20");
    assert_int_equal(told(f), 3);
    assert_string_equal(step(f), "1@20+4 2@20+40*m40");
    assert_int_equal(told(f), 4);
    answer(f, status_make(STATUS_IO, NULL)); /* what it counted is lost */
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    end(f, 2, 0);
    assert_string_equal(step(f), "1@16+9*"); // its first block is in the cache
    assert_int_equal(f->plan->n_opens, 1);
    assert_int_equal(f->plan->opens[0].n_history, 25);
    assert_memory_equal(f->plan->opens[0].history + 17, forced, sizeof forced);
    assert_int_equal(told(f), 25);
    force(f, 1, 3);
    step(f);
    assert_int_equal(told(f), 3);
    assert_int_equal(f->plan->seqs[0].n_tokens, 4);
    end(f, 1, 0);
    step(f);
    finish(f);
}

/* Without penalties nothing is counted. */
static void forced_tokens_without_penalties_are_not_counted(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 16, 20);
    add(f, &a);
    step(f);
    force(f, 1, 8);
    assert_string_equal(step(f), "1@16+9*");
    assert_int_equal(told(f), 0);
    end(f, 1, 0);
    step(f);
    finish(f);
}

/* A choice that ended with the same result takes none. */
static void an_ended_choice_is_forced_to_nothing(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 16, 20);
    add(f, &a);
    step(f);
    end(f, 1, 0);
    force(f, 1, 8);
    force(f, 7, 8); /* a request that is not known */
    assert_string_equal(step(f), "");
    assert_true(sched_get_stats(f->s).forced_tokens == 0);
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forced_tokens_are_one_chunk),
        cmocka_unit_test(a_prompt_runs_beside_forced_tokens),
        cmocka_unit_test(penalties_are_told_each_forced_token_once),
        cmocka_unit_test(chunks_and_opens_share_a_run),
        cmocka_unit_test(forced_tokens_without_penalties_are_not_counted),
        cmocka_unit_test(an_ended_choice_is_forced_to_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
