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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_embedded_once_and_nothing_is_drawn),
        cmocka_unit_test(the_prefix_cache_neither_gives_nor_gets),
        cmocka_unit_test(a_replay_gives_no_row_twice),
        cmocka_unit_test(a_failed_step_is_embedded_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
