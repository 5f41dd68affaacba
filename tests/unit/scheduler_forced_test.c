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
        cmocka_unit_test(an_ended_choice_is_forced_to_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
