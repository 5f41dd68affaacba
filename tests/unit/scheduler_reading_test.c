/* Readings: requests that are run for the embeddings of their rows. Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Keeps 20 tokens after every 40. */
#define RECURRENT                                                                                  \
    "{\"method\": \"h2o-recurrent\", \"tokens\": 20, \"sinks\": 2, \"window\": 4, \"rows\": 4, "   \
    "\"recurrent_chunk\": 40}"

static const embed_head heads[] = {{0, EMBED_K, 0}, {1, EMBED_V, 0}};

static sched_request reading(fixture *f, uint64_t id, uint32_t first, uint32_t n_prompt)
{
    sched_request r = with_policy(f, id, first, n_prompt, 1, RECURRENT);
    r.embeds = heads;
    r.n_embeds = 2;
    r.n_layers = 1;
    return r;
}

static void every_row_is_embedded_once_and_nothing_is_drawn(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = reading(f, 1, 0, 100);
    add(f, &a);
    assert_string_equal(step(f), "1@0+40m4e2/1");
    assert_string_equal(step(f), "1@20+40m4e2/1");
    assert_string_equal(step(f), "1@20+20m4e2/1");
    assert_string_equal(step(f), ""); /* waits for its END */
    assert_string_equal(step(f), "");
    assert_int_equal(describe(f, 1, 0).report.kept_tokens, 20);
    end(f, 1, 0);
    step(f);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

/* Its K and V are those of some layers, behind selections. */
static void the_prefix_cache_neither_gives_nor_gets(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = reading(f, 1, 0, 40), b = request(f, 2, 0, 40, 2), c = reading(f, 3, 0, 40);
    add(f, &a);
    step(f);
    end(f, 1, 0);
    add(f, &b);
    assert_string_equal(step(f), "2@0+40*");
    step(f);
    end(f, 2, 0);
    add(f, &c);
    assert_string_equal(step(f), "3@0+40m4e2/1"); /* 2 blocks of b are cached */
    assert_true(sched_get_stats(f->s).pages.cached > 0);
    step(f);
    end(f, 3, 0);
    step(f);
    finish(f);
}

/* Rows that were embedded before a preemption are computed again without embeddings. */
static void a_replay_gives_no_row_twice(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.n_pages = 1 + 2 * 6;
    fixture *f = begin(o);
    sched_request a = reading(f, 1, 0, 70), b = request(f, 2, 500, 60, 30);
    b.priority = -1;
    add(f, &a);
    assert_string_equal(step(f), "1@0+40m4e2/1");
    add(f, &b);
    for (int i = 0; i < 40 && describe(f, 1, 0).preemptions == 0; i++) step(f);
    assert_int_equal(describe(f, 1, 0).preemptions, 1);
    end(f, 2, 0);
    assert_string_equal(step(f), "1@0+40m4/1");
    finish(f);
}

static void a_failed_step_is_embedded_again(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = reading(f, 1, 0, 70);
    add(f, &a);
    step(f);
    assert_string_equal(step(f), "1@20+30m4e2/1");
    answer(f, status_make(STATUS_NO_MEMORY, NULL));
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    assert_string_equal(step(f), "1@0+40m4/1");
    assert_string_equal(step(f), "1@20+30m4e2/1");
    finish(f);
}

/* One of two layers is run, so a reading holds half of the cells, and is admitted by half. */
static void cells_are_those_of_the_layers_that_are_run(void **state)
{
    (void)state;
    uint32_t most[2] = {0}, needs[2];
    sched_options o = small_options();
    for (uint32_t all = 0; all < 2; all++) {
        fixture *f = begin(o);
        sched_request a = reading(f, 1, 0, 200);
        if (all) a.n_layers = 0;
        needs[all] = (uint32_t)sched_need_of(&o.geometry, a.n_layers, &a.policy, 200, 1).peak;
        add(f, &a);
        for (int i = 0; i < 12; i++) {
            step(f);
            if (used_pages(f) > most[all]) most[all] = used_pages(f);
        }
        assert_int_equal(describe(f, 1, 0).report.kept_tokens, 20);
        assert_true(sched_get_stats(f->s).kept_tokens == (all ? 20.0 : 10.0));
        end(f, 1, 0);
        step(f);
        assert_int_equal(used_pages(f), 0);
        finish(f);
    }
    assert_int_equal(2 * most[0], most[1]);
    /* Pages of each table, and those that a selection takes for a moment in one of them. */
    assert_int_equal(needs[0], 1 * 6 + 2);
    assert_int_equal(needs[1], 2 * 6 + 2);
    for (uint32_t lacks = 0; lacks < 2; lacks++) {
        o.n_pages = 1 + needs[0] - lacks;
        fixture *f = begin(o);
        sched_request a = reading(f, 1, 0, 200);
        error err;
        assert_int_equal(status_ok(sched_check(f->s, &a, &err)), !lacks);
        if (!lacks) add(f, &a);
        for (int i = 0; i < 12; i++) step(f);
        if (!lacks) assert_int_equal(describe(f, 1, 0).preemptions, 0);
        if (!lacks) end(f, 1, 0);
        finish(f);
    }
}

/* Only the rows of a reading leave early. */
static void only_a_reading_runs_some_layers(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request a = request(f, 1, 0, 20, 2);
    error err;
    a.n_layers = 1;
    assert_int_equal(sched_check(f->s, &a, &err).code, STATUS_INVALID);
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_embedded_once_and_nothing_is_drawn),
        cmocka_unit_test(the_prefix_cache_neither_gives_nor_gets),
        cmocka_unit_test(a_replay_gives_no_row_twice),
        cmocka_unit_test(a_failed_step_is_embedded_again),
        cmocka_unit_test(cells_are_those_of_the_layers_that_are_run),
        cmocka_unit_test(only_a_reading_runs_some_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
