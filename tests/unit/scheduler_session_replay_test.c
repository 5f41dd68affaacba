/* A session whose request ends while its tokens are computed again. Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void run_to_end(fixture *f, uint64_t id)
{
    do step(f);
    while (describe(f, id, 0).output_tokens < 4);
    finish_choice(f, id);
    step(f);
    step(f);
}

/* Turn `id` of a conversation whose answers are at 20 and 100. *r is read by the next step. */
static void add_turn(fixture *f, sched_request *r, uint64_t id, uint32_t n_prompt)
{
    const char *policy = "{\"method\": \"snapkv\", \"tokens\": 64, \"window\": 8}";
    *r = of_session(with_policy(f, id, 0, n_prompt, 4, policy), 7);
    for (uint32_t t = 0; t < 4; t++)
        ((uint32_t *)r->prompt)[20 + t] = ((uint32_t *)r->prompt)[100 + t] = 500;
    add(f, r);
}

/* The third turn ends after a failed step, when 83 of its tokens are computed again: in the middle
 * of the second turn's prompt. The session has these tokens alone, and the next turn selects at the
 * end of its own prompt, not at that of the second turn's. */
static void a_turn_that_ends_in_a_replay_leaves_what_is_computed(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.prefill_chunk = 60;
    o.max_sessions = 4;
    o.session_ttl_us = 1000000;
    o.prefix_cache = false;
    fixture *f = begin(o);
    sched_request r;
    add_turn(f, &r, 1, 20);
    run_to_end(f, 1);
    add_turn(f, &r, 2, 100);
    run_to_end(f, 2);
    add_turn(f, &r, 3, 120);
    assert_string_equal(step(f), "3@103+17*m8");
    assert_string_equal(step(f), "3@120+1*");
    answer(f, status_make(STATUS_IO, NULL));
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    assert_string_equal(step(f), "3@0+23");
    assert_string_equal(step(f), "3@23+60");
    finish_choice(f, 3);
    step(f);
    assert_string_equal(describe(f, 3, 0).report.session, "continued");
    add_turn(f, &r, 4, 96);
    assert_string_equal(step(f), "4@83+13*m8");
    assert_string_equal(describe(f, 4, 0).report.session, "continued");
    end(f, 4, 0);
    step(f);
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_that_ends_in_a_replay_leaves_what_is_computed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
