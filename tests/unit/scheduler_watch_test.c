/* Rows that are measured because people look at their request: which ones, where what was measured
 * goes, and that nothing else changes. */
#include "tests/unit/scheduler_flight.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static pkv_map map;

static sched_sight look(fixture *f, uint64_t id)
{
    sched_sight sight;
    assert_true(sched_draw_map(f->s, id, &sight, &map));
    return sight;
}

/* The share of a request in the plan in flight. */
static const step_seq *share_of(const fixture *f, uint64_t id)
{
    for (uint32_t i = 0; f->plan && i < f->plan->n_seqs; i++)
        if (f->plan->seqs[i].request == id) return &f->plan->seqs[i];
    return NULL;
}

static bool is_measured(const fixture *f, uint64_t id)
{
    const step_seq *q = share_of(f, id);
    return q && q->measure.kind != MEASURE_NONE;
}

static void the_next_row_that_draws_is_measured(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request r = request(f, 1, 0, 70, 20);
    add(f, &r);
    sched_watch(f->s, 1); /* not known yet */
    assert_string_equal(step(f), "1@0+40");
    assert_string_equal(step(f), "1@40+30*");
    sched_watch(f->s, 1);
    assert_null(look(f, 1).attention);
    assert_string_equal(step(f), "1@70+1*m1");
    const measure_spec *m = &share_of(f, 1)->measure;
    assert_int_equal(m->kind, MEASURE_MASS);
    assert_true(!m->by_slot && !m->beside && !m->silent && m->sum == MEASURE_SUM_STEP);
    assert_int_equal(m->layer_step, 1);
    assert_null(look(f, 1).attention);
    assert_string_equal(step(f), "1@71+1*"); /* once */
    sched_sight sight = look(f, 1);
    assert_non_null(sight.attention);
    assert_null(sight.unmeasured);
    assert_int_equal(sight.attention_at, 70);
    assert_int_equal(sight.attention->n_rows, 2);
    assert_int_equal(sight.attention->n_columns, 5);
    for (uint32_t c = 0; c < 5; c++) assert_int_equal(sight.attention->levels[c], c ? 91 : 1);
    assert_true(sight.attention->read[0] == 71);
    assert_true(describe(f, 1, 0).report.scoring_ms == 0);
    end(f, 1, SCHED_ALL_CHOICES);
    step(f);
    finish(f);
}

/* The one that waits longest is measured, one in a step, and no more than the share of the time
 * allows. */
static void one_row_of_a_step_is_measured(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request r[3];
    for (uint32_t i = 0; i < 3; i++) {
        r[i] = request(f, i + 1, 100 * i, 10, 20);
        add(f, &r[i]);
    }
    step(f);
    for (uint64_t id = 3; id > 0; id--) sched_watch(f->s, id);
    for (uint64_t id = 3; id > 0; id--) sched_watch(f->s, id); /* they wait already */
    for (uint64_t id = 3; id > 0; id--) {
        step(f);
        for (uint64_t other = 1; other <= 3; other++)
            assert_int_equal(is_measured(f, other), other == id);
        step(f); /* in the same microsecond */
        for (uint64_t other = 1; other <= 3; other++) assert_false(is_measured(f, other));
        f->now_us += 1000;
    }
    step(f);
    for (uint64_t id = 1; id <= 3; id++) {
        assert_false(is_measured(f, id));
        assert_non_null(look(f, id).attention);
    }
    /* One whose reader is slow keeps no other waiting. */
    post(f, (sched_event){.kind = SCHED_PAUSE, .request = 2});
    step(f);
    sched_watch(f->s, 2);
    sched_watch(f->s, 1);
    step(f);
    assert_true(is_measured(f, 1));
    end(f, 2, SCHED_ALL_CHOICES); /* while it waits */
    for (uint64_t id = 1; id <= 3; id += 2) end(f, id, SCHED_ALL_CHOICES);
    step(f);
    sched_watch(f->s, 1);
    sched_watch(f->s, 2);
    step(f);
    finish(f);
}

/* ---- nothing else changes -------------------------------------------------------------------- */

static const char *const policies[] = {
    "{\"method\": \"full\"}",
    "{\"method\": \"h2o\", \"tokens\": 40}",
    "{\"method\": \"tova\", \"tokens\": 40}",
    "{\"method\": \"streaming\", \"tokens\": 40, \"sinks\": 4, \"window\": 12, \"interval\": 1}",
    "{\"method\": \"snapkv-decode\", \"tokens\": 30, \"window\": 3, \"interval\": 8}",
    "{\"method\": \"keydiff\", \"tokens\": 40}",
    "{\"method\": \"chunkkv\", \"tokens\": 48, \"window\": 16}",
};

static uint32_t attended(const pkv_mass_map *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_rows * m->n_columns; i++) n += m->levels[i] > 0;
    return n;
}

static bool has_all_tokens(const fixture *f, uint64_t id)
{
    sched_choice_info info;
    bool known = status_ok(sched_describe(f->s, id, 0, &info));
    if (known) free(info.report.kept_json);
    return known && info.output_tokens == 90;
}

static bool measure_alike(const measure_spec *a, const measure_spec *b)
{
    return a->kind == b->kind && a->second == b->second && a->rows == b->rows &&
           a->layer_step == b->layer_step && a->by_slot == b->by_slot && a->sum == b->sum &&
           a->silent == b->silent && a->novelty == b->novelty && a->sinks == b->sinks &&
           a->window == b->window && a->chunk == b->chunk && a->bias == b->bias &&
           a->theta == b->theta;
}

/* Two schedulers take the same requests, of which one is watched all the time: tables, positions
 * and reports are the same in each step. */
static void watching_changes_no_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        sched_options o = small_options();
        o.n_pages = 40; /* two sequences, of which one is preempted at times */
        fixture *a = begin(o), *b = begin(o);
        fixture *both[] = {a, b};
        sched_request r[2][3];
        for (int k = 0; k < 2; k++)
            for (uint32_t j = 0; j < 3; j++) {
                r[k][j] = with_policy(both[k], j + 1, 300 * j, 70, 90, policies[i]);
                add(both[k], &r[k][j]);
            }
        uint32_t n_seen = 0;
        for (uint32_t n = 0; n < 300; n++) {
            for (uint64_t id = 1; id <= 3; id++) sched_watch(b->s, id);
            b->now_us = a->now_us += 100;
            step(a);
            step(b);
            assert_int_equal(!a->plan, !b->plan);
            if (!a->plan) break;
            assert_int_equal(a->plan->n_seqs, b->plan->n_seqs);
            assert_true(a->plan->checksum == b->plan->checksum);
            for (uint32_t q = 0; q < a->plan->n_seqs; q++) {
                const step_seq *x = &a->plan->seqs[q], *y = &b->plan->seqs[q];
                assert_true(x->request == y->request && x->position == y->position &&
                            x->n_tokens == y->n_tokens && x->n_samples == y->n_samples);
                if (x->measure.kind != MEASURE_NONE) /* the policy's is as it was */
                    assert_true(measure_alike(&x->measure, &y->measure));
            }
            for (uint64_t id = 1; id <= 3; id++) {
                sched_sight x, y;
                if (!sched_draw_map(a->s, id, &x, &map)) continue;
                assert_true(sched_draw_map(b->s, id, &y, &map));
                assert_true(x.kept_tokens == y.kept_tokens && x.pages_dropped == y.pages_dropped);
                assert_null(x.attention);
                n_seen += y.attention && attended(y.attention) > 0;
                assert_int_equal(describe(a, id, 0).preemptions, describe(b, id, 0).preemptions);
            }
            for (int k = 0; k < 2; k++)
                for (uint64_t id = 1; id <= 3; id++)
                    if (has_all_tokens(both[k], id)) finish_choice(both[k], id);
        }
        if (n_seen == 0) fail_msg("%s", policies[i]);
        for (int k = 0; k < 2; k++) {
            for (uint64_t id = 1; id <= 3; id++) end(both[k], id, SCHED_ALL_CHOICES);
            step(both[k]);
            step(both[k]);
            finish(both[k]);
        }
    }
}

/* ---- what a backend lacks, memory, size ------------------------------------------------------ */

static void expect_unmeasured(uint32_t lacks, const char *policy, bool retrieves, const char *what)
{
    sched_options o = small_options();
    o.lacks = lacks;
    o.retrieves = 1 << RETRIEVAL_MEAN;
    fixture *f = begin(o);
    sched_request r = with_policy(f, 1, 0, 40, 20, policy);
    if (retrieves)
        r.retrieval = (retrieval_spec){.block_tokens = 16,
                                       .representative_num = 1,
                                       .group_heads = 1,
                                       .local_tokens = 16,
                                       .top_blocks = 1,
                                       .layer_step = 1,
                                       .token_step = 1};
    add(f, &r);
    for (uint32_t i = 0; i < 6; i++) {
        step(f);
        f->now_us += 1000;
        sched_watch(f->s, 1);
        const step_seq *q = share_of(f, 1);
        assert_false(q->measure.beside);
        assert_false(retrieves && q->measure.kind != MEASURE_NONE);
    }
    sched_sight sight = look(f, 1);
    assert_null(sight.attention);
    assert_string_equal(sight.unmeasured, what);
    assert_true(sight.output_tokens > 3); /* it goes on */
    end(f, 1, SCHED_ALL_CHOICES);
    step(f);
    finish(f);
}

static void what_cannot_be_measured_is_named(void **state)
{
    (void)state;
    expect_unmeasured(MEASURES_READS, policies[0], true, "what rows read by retrieval");
    expect_unmeasured(MEASURES_BESIDE, policies[1], false, "attention mass beside another measure");
    expect_unmeasured(1 << MEASURE_MASS, policies[0], false, "attention mass");
}

static void without_memory_nothing_is_seen(void **state)
{
    (void)state;
    fixture *f = begin(small_options());
    sched_request r = request(f, 1, 0, 10, 20);
    add(f, &r);
    step(f);
    f->heap.fail_at = f->heap.calls;
    sched_watch(f->s, 1);
    f->heap.fail_at = -1;
    assert_string_equal(step(f), "1@10+1*");
    sched_watch(f->s, 1);
    assert_string_equal(step(f), "1@11+1*m1");
    end(f, 1, SCHED_ALL_CHOICES);
    step(f);
    finish(f);
}

/* A model and a context that have too many values are measured in some layers. */
static void large_ones_are_measured_in_part(void **state)
{
    (void)state;
    sched_options o = small_options();
    o.geometry.n_layers = o.geometry.layers_per_group = 128;
    o.geometry.n_kv_heads = o.geometry.heads_per_group = 128;
    o.max_model_len = o.prefill_chunk = 1200;
    fixture *f = begin(o);
    sched_request r = request(f, 1, 0, 1030, 20);
    add(f, &r);
    step(f);
    sched_watch(f->s, 1);
    step(f);
    assert_int_equal(share_of(f, 1)->measure.layer_step, 2); /* 65 pages x 128 x 128 > 2^20 */
    f->now_us = 100000; /* half of that takes longer, at 1 part in 100 */
    sched_watch(f->s, 1);
    step(f);
    assert_false(is_measured(f, 1));
    f->now_us = 1000000;
    step(f);
    assert_true(is_measured(f, 1));
    end(f, 1, SCHED_ALL_CHOICES);
    step(f);
    finish(f);
}

/* With two steps in flight the tables have tokens of the step behind the one that was measured. */
static void tokens_planned_ahead_are_not_read(void **state)
{
    (void)state;
    fixture *f = begin_ahead(small_options());
    sched_request r = request(f, 1, 0, 20, 40);
    add(f, &r);
    plan(f);
    fine(f);
    for (uint32_t i = 0; i < 20; i++) {
        sched_watch(f->s, 1);
        f->now_us += 1000;
        while (*plan(f)) continue;
        fine(f);
        while (*plan(f)) continue;
        const pkv_mass_map *m = look(f, 1).attention;
        if (!m) continue;
        uint32_t at = look(f, 1).attention_at;
        assert_true(m->read[0] == (float)(at + 1));
        assert_int_equal(m->n_columns, at / 16 + 1);
    }
    assert_true(look(f, 1).attention_at > 25);
    end(f, 1, SCHED_ALL_CHOICES);
    plan(f);
    drain(f);
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_row_that_draws_is_measured),
        cmocka_unit_test(one_row_of_a_step_is_measured),
        cmocka_unit_test(watching_changes_no_table),
        cmocka_unit_test(what_cannot_be_measured_is_named),
        cmocka_unit_test(without_memory_nothing_is_seen),
        cmocka_unit_test(large_ones_are_measured_in_part),
        cmocka_unit_test(tokens_planned_ahead_are_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
