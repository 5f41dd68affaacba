/* Retention at every kind of point: measures, positions, pages set aside, pressure. Plans are read
 * as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static sched_options pool_of(uint32_t blocks)
{
    sched_options o = small_options();
    o.prefill_chunk = 100;
    o.max_model_len = 20000;
    o.n_pages = 1 + 2 * blocks;
    o.prefix_cache = false;
    return o;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* What a selection takes for a moment may be above 2^32 cells. */
static void a_selection_may_take_more_than_32_bits_of_pages(void **state)
{
    (void)state;
    static const pkv_geometry g = {.page_tokens = 16,
                                   .n_layers = 80,
                                   .n_kv_heads = 64,
                                   .layers_per_group = 1,
                                   .heads_per_group = 1};
    fixture *f = begin(small_options());
    sched_request r = with_policy(f, 1, 0, 20, 1, "{\"method\": \"streaming\", \"tokens\": 64}");
    r.policy.tokens = 1u << 30;
    sched_need need = sched_need_of(&g, 0, &r.policy, INT32_MAX - 16, 16);
    assert_true(need.most >= need.kept + (uint64_t)(1 << 30) / 16 * 64);
    finish(f);
}

/* ---- points ---------------------------------------------------------------------------------- */

static void a_prompt_may_be_longer_than_the_pool(void **state)
{
    (void)state;
    const char *policy = "{\"method\": \"streaming-recurrent\", \"tokens\": 64, \"sinks\": 4, "
                         "\"window\": 10, \"recurrent_chunk\": 80}";
    fixture *f = begin(pool_of(15));
    sched_request a = with_policy(f, 1, 0, 2000, 20, policy), full = request(f, 2, 0, 2000, 20);
    assert_int_equal(sched_check(f->s, &full, NULL).code, STATUS_LIMIT);
    add(f, &a);
    assert_string_equal(step(f), "1@0+80");
    /* Positions continue after the 64 kept tokens. */
    assert_string_equal(step(f), "1@64+80");
    uint32_t most = 0;
    for (int i = 0; i < 23; i++) {
        step(f);
        if (used_pages(f) > most) most = used_pages(f);
    }
    assert_string_equal(f->trace, "1@64+80*");
    assert_in_range(most, 1, 2 * 9 + 5);
    assert_string_equal(step(f), "1@64+1*");
    sched_choice_info info = describe(f, 1, 0);
    assert_int_equal(info.report.logical_tokens, 2001);
    assert_float_equal(info.report.kept_tokens, 65, 0);
    finish(f);
}

static void an_answer_may_be_longer_than_the_pool(void **state)
{
    (void)state;
    fixture *f = begin(pool_of(40));
    const char *methods[] = {"scope-slide", "scope-adaptive", "scope-discontinuous"};
    for (size_t i = 0; i < 3; i++) {
        char policy[120];
        snprintf(policy, sizeof policy,
                 "{\"method\": \"%s\", \"decode\": {\"beta1\": 64, \"beta2\": 64}}", methods[i]);
        sched_request a = with_policy(f, 1, 0, 50, 16000, policy);
        error err = {""};
        if (!status_ok(sched_check(f->s, &a, &err))) fail_msg("%s: %s", methods[i], err.text);
    }
    sched_request full = request(f, 1, 0, 50, 16000);
    assert_int_equal(sched_check(f->s, &full, NULL).code, STATUS_LIMIT);
    finish(f);
}

/* The second request starts in the step whose rows decide what the first one keeps, and hits its
 * blocks: the selection then copies what it keeps, while the old pages stay with the second
 * request. */
static void a_hit_leaves_pages_to_the_selection(void **state)
{
    (void)state;
    const char *policy = "{\"method\": \"snapkv\", \"scope\": \"layer\", \"tokens\": 120, "
                         "\"window\": 16}";
    uint32_t hits = 0;
    for (uint32_t blocks = 18; blocks < 40; blocks++) {
        sched_options o = pool_of(blocks);
        o.prefix_cache = true;
        fixture *f = begin(o);
        sched_request a = with_policy(f, 1, 0, 160, 8, policy), b = request(f, 2, 0, 140, 8);
        add(f, &a);
        step(f);
        add(f, &b);
        step(f);
        hits += describe(f, 2, 0).cached_tokens > 0;
        for (int i = 0; i < 4; i++) step(f);
        assert_int_equal(sched_get_stats(f->s).preemptions, 0);
        finish(f);
    }
    assert_true(hits > 0);
}

/* One token in and one out, into the dropped token's slot; without allocations, however long. */
static void every_token_may_be_a_point(void **state)
{
    (void)state;
    const char *policies[] = {
        "{\"method\": \"streaming\", \"tokens\": 40}",
        "{\"method\": \"tova\", \"tokens\": 40}",
        "{\"method\": \"h2o\", \"tokens\": 40}",
        "{\"method\": \"scope-slide\", \"decode\": {\"beta1\": 8, \"beta2\": 8}}",
        "{\"method\": \"snapkv-decode\", \"tokens\": 40}",
    };
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        fixture *f = begin(pool_of(40));
        sched_request a = with_policy(f, 1, 0, 60, 600, policies[i]);
        add(f, &a);
        for (int k = 0; k < 100; k++) step(f);
        long calls = f->heap.calls;
        uint32_t used = used_pages(f);
        for (int k = 0; k < 400; k++) {
            step(f);
            assert_in_range(used_pages(f), used - 2 * 2, used + 2 * 2);
        }
        assert_int_equal(f->heap.calls, calls);
        sched_choice_info info = describe(f, 1, 0);
        assert_in_range((uint32_t)info.report.kept_tokens, 40, 60 + 16 + 1);
        assert_int_equal(info.report.logical_tokens, 559);
        finish(f);
    }
}

static void measures_end_where_points_are(void **state)
{
    (void)state;
    fixture *f = begin(pool_of(40));
    sched_request a = with_policy(f, 1, 0, 60, 60,
                                  "{\"method\": \"snapkv-decode\", \"tokens\": 40, \"window\": 3, "
                                  "\"interval\": 8}");
    add(f, &a);
    assert_string_equal(step(f), "1@0+60*m3");
    for (int i = 0; i < 5; i++) assert_null(strchr(step(f), 'm'));
    assert_string_equal(step(f), "1@65+1*m1");
    assert_int_equal(f->plan->seqs[0].measure.sum, MEASURE_SUM_START);
    assert_true(f->plan->seqs[0].measure.silent);
    step(f);
    assert_string_equal(step(f), "1@67+1*m1");
    assert_int_equal(f->plan->seqs[0].measure.sum, MEASURE_SUM_ADD);
    assert_false(f->plan->seqs[0].measure.silent);
    assert_int_equal(describe(f, 1, 0).report.pages_dropped, 2);
    step(f);
    assert_float_equal(describe(f, 1, 0).report.kept_tokens, 41, 0);
    finish(f);
}

/* ---- running sums ---------------------------------------------------------------------------- */

static void sums_share_nothing(void **state)
{
    (void)state;
    sched_options o = pool_of(60);
    o.prefix_cache = true;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 64, 1),
                  b = with_policy(f, 2, 0, 64, 10, "{\"method\": \"h2o\", \"tokens\": 50}");
    add(f, &a);
    step(f);
    end(f, 1, 0);
    step(f);
    b.n = 3;
    add(f, &b);
    assert_string_equal(step(f), "2@0+64*3m64"); /* no hit */
    assert_string_equal(step(f), "2@64+1*m1 2.1@64+1*m1 2.2@64+1*m1");
    assert_int_equal(used_pages(f), 3 * 2 * 4); /* no page is shared */
    end(f, 2, SCHED_ALL_CHOICES);
    step(f);
    step(f);
    assert_int_equal(sched_get_stats(f->s).pages.cached, 2 * 4); /* blocks of 1 */
    finish(f);
}

/* Choices of one token write nothing, and so copy no shared page. */
static void choices_of_one_token_take_no_pages(void **state)
{
    (void)state;
    fixture *f = begin(pool_of(60));
    sched_request a = with_policy(f, 1, 0, 90, 1, "{\"method\": \"h2o\", \"tokens\": 95}"),
                  b = request(f, 2, 500, 16 * 48, 2);
    a.n = 3;
    add(f, &b);
    for (int i = 0; i < 8; i++) step(f);
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 2, .choice = 0});
    add(f, &a); /* the pool has room for two of its prompt */
    step(f);
    step(f);
    assert_int_equal(sched_get_stats(f->s).running, 4);
    for (uint32_t i = 0; i < 3; i++) {
        sched_choice_info info = describe(f, 1, i);
        assert_int_equal(info.report.logical_tokens, 90);
        assert_true(info.report.kept_tokens == 90);
    }
    end(f, 1, SCHED_ALL_CHOICES);
    finish(f);
}

static void a_choice_without_pages_waits(void **state)
{
    (void)state;
    fixture *f = begin(pool_of(20));
    sched_request a = with_policy(f, 1, 0, 90, 10, "{\"method\": \"h2o\", \"tokens\": 80}"),
                  b = request(f, 2, 500, 150, 10);
    a.n = 2;
    b.priority = -1;
    add(f, &b);
    assert_string_equal(step(f), "2@0+100");
    add(f, &a);
    step(f);
    int n_waits = 0;
    for (int i = 0; i < 40; i++) {
        step(f);
        sched_choice_info info = describe(f, 1, 1);
        bool waits = info.report.kept_tokens == 0 && info.output_tokens == 1;
        if (waits) assert_int_equal(info.report.logical_tokens, 90); /* that token has no K and V */
        n_waits += waits;
    }
    assert_true(n_waits > 0);
    assert_int_equal(describe(f, 1, 0).output_tokens, 10);
    assert_int_equal(describe(f, 1, 1).output_tokens, 10);
    finish(f);
}

/* 3 of the 6 pages of each table go, however fine the pool's cells are. */
static void drops_are_pages_of_the_methods_tables(void **state)
{
    (void)state;
    static const struct {
        const char *parts;
        uint32_t tables;
    } cases[] = {
        {"\"reuse_layers\": 2", 1}, {"\"scope\": \"layer\"", 2}, {"\"scope\": \"head\"", 2 * 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sched_options o = small_options();
        o.geometry.n_kv_heads = 3;
        o.prefill_chunk = 100;
        fixture *f = begin(o);
        char policy[128];
        snprintf(policy, sizeof policy,
                 "{\"method\": \"streaming\", \"unit\": \"page\", \"schedule\": \"prompt\", "
                 "\"tokens\": 48, %s}",
                 cases[i].parts);
        sched_request a = with_policy(f, 1, 0, 96, 5, policy);
        add(f, &a);
        for (int turn = 0; turn < 4; turn++) step(f);
        assert_int_equal(describe(f, 1, 0).report.pages_dropped, 3 * cases[i].tables);
        assert_int_equal(sched_get_stats(f->s).pages.pages_dropped, 3 * 2 * 3);
        finish(f);
    }
}

/* ---- pages for selections -------------------------------------------------------------------- */

/* Gathering takes fresh pages before it frees any: they are set aside for the selection. */
static void pages_are_set_aside(void **state)
{
    (void)state;
    for (uint32_t blocks = 7; blocks <= 12; blocks++) {
        fixture *f = begin(pool_of(blocks));
        sched_request a = with_policy(f, 1, 0, 90, 10,
                                      "{\"method\": \"snapkv\", \"tokens\": 48, "
                                      "\"window\": 8}"),
                      b = request(f, 2, 500, 30, 40);
        error err;
        if (!status_ok(sched_check(f->s, &a, &err))) {
            assert_int_equal(blocks, 7); /* 12 pages, and three for a moment */
            finish(f);
            continue;
        }
        b.priority = 1;
        add(f, &b);
        step(f);
        add(f, &a);
        for (int i = 0; i < 60; i++) step(f);
        sched_choice_info info = describe(f, 1, 0);
        assert_int_equal(info.output_tokens, 10);
        assert_int_equal(info.preemptions, 0);
        assert_int_equal(info.report.pages_dropped, 2 * 3);
        finish(f);
    }
}

/* A selection that rewrites shared pages takes copies of them, and keeps these. */
static void shared_pages_are_copied(void **state)
{
    (void)state;
    sched_options o = pool_of(17);
    o.prefix_cache = true;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 96, 60), b = with_policy(f, 2, 0, 110, 10,
                                                                "{\"method\": \"snapkv\", "
                                                                "\"tokens\": 80, \"window\": 8}");
    add(f, &a);
    step(f);
    step(f);
    add(f, &b);
    for (int i = 0; i < 30; i++) step(f);
    assert_int_equal(describe(f, 2, 0).output_tokens, 10);
    assert_int_equal(describe(f, 2, 0).cached_tokens, 96);
    assert_int_equal(describe(f, 1, 0).preemptions + describe(f, 2, 0).preemptions, 0);
    finish(f);
}

/* ---- pressure -------------------------------------------------------------------------------- */

static retention_policy half(void)
{
    retention_policy p = retention_find("chunkkv")->defaults;
    p.preset = retention_find("chunkkv");
    p.ratio = 0.5;
    p.window = 8;
    return p;
}

static void compressed_before_preempted(void **state)
{
    (void)state;
    for (int willing = 0; willing < 2; willing++) {
        retention_policy pressure = half();
        sched_options o = pool_of(14);
        o.pressure = &pressure;
        fixture *f = begin(o);
        sched_request a = request(f, 1, 0, 91, 60), b = request(f, 2, 500, 100, 60);
        a.policy.pressure = willing;
        b.priority = -1;
        add(f, &a);
        step(f);
        step(f);
        add(f, &b);
        bool dropped = false;
        for (int i = 0; i < 30; i++) {
            step(f);
            dropped |= strstr(f->trace, "m1") != NULL;
        }
        sched_stats stats = sched_get_stats(f->s);
        assert_int_equal(stats.pressure_drops, willing);
        assert_int_equal(dropped, willing);
        assert_int_equal(stats.preemptions, !willing);
        if (willing) assert_true(describe(f, 1, 0).report.pages_dropped > 4);
        if (willing) assert_int_equal(describe(f, 2, 0).report.pages_dropped, 0);
        finish(f);
    }
}

/* A replay makes the same selection at the same length. */
static void pressure_is_replayed(void **state)
{
    (void)state;
    retention_policy pressure = half();
    sched_options o = pool_of(14);
    o.pressure = &pressure;
    fixture *f = begin(o);
    sched_request a = request(f, 1, 0, 91, 60), b = request(f, 2, 500, 100, 60);
    a.policy.pressure = true;
    b.priority = -1;
    add(f, &a);
    step(f);
    add(f, &b);
    while (!strstr(step(f), "m1")) continue;
    char drop[40];
    snprintf(drop, sizeof drop, "%s", strstr(f->trace, "1@"));
    uint32_t length = (uint32_t)strtoul(drop + 2, NULL, 10) + 1;
    step(f);
    end(f, 2, 0);
    step(f);
    uint64_t dropped = describe(f, 1, 0).report.pages_dropped;
    answer(f, status_make(STATUS_IO, NULL));
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    char expected[40];
    snprintf(expected, sizeof expected, "1@100+%um1", length - 100);
    assert_string_equal(step(f), "1@0+100");
    assert_string_equal(step(f), expected);
    step(f);
    assert_int_equal(describe(f, 1, 0).report.pages_dropped, dropped);
    assert_int_equal(sched_get_stats(f->s).pressure_drops, 1);
    finish(f);
}

static void bad_pressure_is_refused(void **state)
{
    (void)state;
    const char *methods[] = {"snapkv", "h2o", "streaming-recurrent"};
    for (size_t i = 0; i < 3; i++) {
        retention_policy p = retention_find(methods[i])->defaults;
        p.preset = retention_find(methods[i]);
        p.ratio = 0.5;
        sched_options o = pool_of(14);
        o.pressure = &p;
        sched *s;
        error err;
        assert_int_equal(sched_create(&o, &s, &err).code, STATUS_INVALID);
        assert_non_null(strstr(err.text, methods[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_selection_may_take_more_than_32_bits_of_pages),
        cmocka_unit_test(a_prompt_may_be_longer_than_the_pool),
        cmocka_unit_test(an_answer_may_be_longer_than_the_pool),
        cmocka_unit_test(a_hit_leaves_pages_to_the_selection),
        cmocka_unit_test(every_token_may_be_a_point),
        cmocka_unit_test(measures_end_where_points_are),
        cmocka_unit_test(sums_share_nothing),
        cmocka_unit_test(choices_of_one_token_take_no_pages),
        cmocka_unit_test(a_choice_without_pages_waits),
        cmocka_unit_test(drops_are_pages_of_the_methods_tables),
        cmocka_unit_test(pages_are_set_aside),
        cmocka_unit_test(shared_pages_are_copied),
        cmocka_unit_test(compressed_before_preempted),
        cmocka_unit_test(pressure_is_replayed),
        cmocka_unit_test(bad_pressure_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
