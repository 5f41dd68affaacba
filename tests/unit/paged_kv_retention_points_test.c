/* When retention selects, what must be measured for it, and the upper bound of what a selection
 * leaves. */
#include "tests/unit/paged_kv_retention_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const pkv_geometry by_head = {
    .page_tokens = 16, .n_layers = 7, .n_kv_heads = 3, .layers_per_group = 1, .heads_per_group = 1};

static retention_policy policy_of(const char *text)
{
    retention_policy policy;
    error err;
    if (!fx_try_policy(&by_head, text, &policy, &err)) fail_msg("%s: %s", text, err.text);
    return policy;
}

/* ---- points ---------------------------------------------------------------------------------- */

static void points_are_where_a_budget_may_be_exceeded(void **state)
{
    (void)state;
    enum { END = UINT32_MAX };
    static const struct {
        const char *text;
        uint32_t n_prompt, points[6]; // the first points; 0 = not checked
    } cases[] = {
        {"{\"method\":\"full\"}", 100, {END}},
        {"{\"method\":\"snapkv\",\"ratio\":0.5}", 100, {100, END}},
        {"{\"method\":\"snapkv\",\"tokens\":100}", 100, {END}},
        {"{\"method\":\"snapkv\",\"tokens\":99}", 100, {100, END}},
        /* By page: 96 tokens are six whole pages, 97 are seven. */
        {"{\"method\":\"chunkkv\",\"tokens\":96}", 96, {END}},
        {"{\"method\":\"chunkkv\",\"tokens\":96}", 97, {97, END}},
        {"{\"method\":\"chunkkv\",\"tokens\":111}", 97, {97, END}},
        {"{\"method\":\"chunkkv\",\"tokens\":112}", 97, {END}},
        {"{\"method\":\"chunkkv\",\"ratio\":1}", 100, {100, END}},
        {"{\"method\":\"chunkkv\",\"ratio\":1}", 96, {END}},
        {"{\"method\":\"h2o\",\"ratio\":0.5}", 100, {100, 101, 102, 103}},
        {"{\"method\":\"h2o\",\"tokens\":102}", 100, {103, 104}},
        {"{\"method\":\"snapkv-decode\",\"tokens\":50}", 100, {100, 116, 132}},
        {"{\"method\":\"snapkv-decode\",\"tokens\":116}", 100, {132, 148}},
        {"{\"method\":\"snapkv-decode\",\"tokens\":100,\"interval\":5}", 100, {105, 110}},
        {"{\"method\":\"tova-recurrent\",\"tokens\":600,\"recurrent_chunk\":300}",
         1000,
         {900, 1000, END}},
        {"{\"method\":\"tova-recurrent\",\"tokens\":600,\"recurrent_chunk\":300}", 900, {900, END}},
        {"{\"method\":\"tova-recurrent\",\"tokens\":599,\"recurrent_chunk\":300}",
         1001,
         {600, 900, 1001, END}},
        {"{\"method\":\"scope-slide\",\"decode\":{\"beta1\":3,\"beta2\":2}}", 100, {106, 107, 108}},
        /* b(t) = 4 + floor((t - 4) * 2 / 6): 4 4 4 5 5 5 6 6 … for t = 4, 5, …: no selection where
         * b grows. */
        {"{\"method\":\"scope-adaptive\",\"decode\":{\"beta1\":2,\"beta2\":4,\"horizon\":10}}",
         100,
         {105, 106, 108, 109, 111, 112}},
        /* z = 3: t = 6, 9, 12, … */
        {"{\"method\":\"scope-discontinuous\",\"decode\":{\"beta1\":2,\"beta2\":4,\"horizon\":10}}",
         100,
         {106, 109, 112, 115}},
        {"{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"h2o\",\"tokens\":64},"
         "\"decode\":{\"beta1\":3,\"beta2\":2}}",
         100,
         {100, 106, 107}},
        /* PyramidKV: 18 slots beside the window, so 2 at least in the top layer: 34 tokens. */
        {"{\"method\":\"pyramidkv\",\"tokens\":50,\"schedule\":\"decode\"}", 40, {56, 72}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        retention_policy p = policy_of(cases[i].text);
        uint32_t at = 0;
        for (uint32_t k = 0; k < 6 && cases[i].points[k] != 0; k++) {
            uint32_t next = retention_next_point(&p, cases[i].n_prompt, at);
            if (next != cases[i].points[k])
                fail_msg("%s: after %u comes %u, not %u", cases[i].text, at, next,
                         cases[i].points[k]);
            if (next == END) break;
            /* The result is the same from any position in between. */
            assert_int_equal(retention_next_point(&p, cases[i].n_prompt, next - 1), next);
            at = next;
        }
    }
}

static void a_horizon_is_the_request_s_length(void **state)
{
    (void)state;
    retention_policy p = policy_of("{\"method\":\"scope-adaptive\",\"decode\":{\"beta1\":2,"
                                   "\"beta2\":4}}");
    assert_int_equal(p.horizon, 0);
    retention_policy_resolve(&p, 10);
    assert_int_equal(p.horizon, 10);
    assert_int_equal(retention_next_point(&p, 100, 106), 108);
    retention_policy_resolve(&p, 99); /* a resolved horizon stays */
    assert_int_equal(p.horizon, 10);
    p.horizon = 4; /* not above beta2 */
    assert_int_equal(retention_next_point(&p, 100, 0), 107);
}

/* The points of growth policies, where n(t) follows step by step from the rule itself. */
static void growth_points_are_those_of_a_simulation(void **state)
{
    (void)state;
    static const char *const names[] = {"scope-slide", "scope-adaptive", "scope-discontinuous"};
    for (uint64_t seed = 1; seed <= 300; seed++) {
        rng r = rng_seed(seed);
        uint32_t beta1 = 1 + rng_below(&r, 40), beta2 = 1 + rng_below(&r, 40);
        uint32_t horizon = beta2 + 1 + rng_below(&r, 120), kind = rng_below(&r, 3);
        char text[160];
        snprintf(text, sizeof text,
                 "{\"method\":\"%s\",\"decode\":{\"beta1\":%u,\"beta2\":%u,\"horizon\":%u}}",
                 names[kind], beta1, beta2, horizon);
        retention_policy p = policy_of(text);
        uint32_t n = 0, point = retention_next_point(&p, 50, 0);
        uint32_t z = kind == 2 && (horizon - beta2) / beta1 > 1 ? (horizon - beta2) / beta1 : 1;
        for (uint32_t t = 1; t < 400; t++) {
            uint32_t at = t < beta2 ? beta2 : t > horizon ? horizon : t;
            uint32_t b =
                kind == 0 ? beta1 + beta2 : beta2 + (at - beta2) * beta1 / (horizon - beta2);
            n++;
            bool selects = t % z == 0 && n > b;
            if (selects) n = b;
            if (selects != (point == 50 + t)) fail_msg("%s: t = %u, point %u", text, t, point);
            if (selects) point = retention_next_point(&p, 50, point);
            assert_true(n <= beta1 + beta2 + z);
        }
    }
}

/* ---- measures -------------------------------------------------------------------------------- */

static void measures_are_asked_for_where_they_count(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t from, to; // of a prompt of 100
        measure_kind kind, second;
        uint32_t rows, layer_step;
        bool by_slot;
        int sum;
        bool silent;
    } cases[] = {
        {"{\"method\":\"chunkkv\",\"ratio\":0.5}", 0, 64, MEASURE_NONE, MEASURE_NONE, 0, 0, 0, 0,
         0},
        {"{\"method\":\"chunkkv\",\"ratio\":0.5}", 64, 100, MEASURE_MASS, MEASURE_NONE, 32, 1, 0, 0,
         0},
        {"{\"method\":\"chunkkv-reuse\",\"ratio\":0.5}", 64, 100, MEASURE_MASS, MEASURE_NONE, 32, 2,
         0, 0, 0},
        {"{\"method\":\"chunkkv\",\"ratio\":0.5}", 100, 101, MEASURE_NONE, MEASURE_NONE, 0, 0, 0, 0,
         0},
        {"{\"method\":\"chunkkv\",\"ratio\":0.5,\"pool\":{\"kind\":\"max\"}}", 64, 100,
         MEASURE_MASS, MEASURE_NONE, 32, 1, 1, 0, 0},
        {"{\"method\":\"chunkkv\",\"ratio\":0.5,\"unit\":\"chunk\",\"variant\":\"mean\"}", 64, 100,
         MEASURE_MASS, MEASURE_NONE, 32, 1, 1, 0, 0},
        {"{\"method\":\"chunkkv\",\"ratio\":0.5,\"variant\":\"raw\"}", 64, 100, MEASURE_RAW,
         MEASURE_NONE, 32, 1, 1, 0, 0},
        {"{\"method\":\"tova\",\"ratio\":0.5}", 99, 100, MEASURE_MASS, MEASURE_NONE, 1, 1, 1, 0, 0},
        {"{\"method\":\"tova\",\"ratio\":0.5}", 100, 101, MEASURE_MASS, MEASURE_NONE, 1, 1, 1, 0,
         0},
        {"{\"method\":\"streaming\",\"ratio\":0.5}", 0, 100, MEASURE_NONE, MEASURE_NONE, 0, 0, 0, 0,
         0},
        {"{\"method\":\"criticalkv\",\"ratio\":0.5}", 0, 100, MEASURE_MASS, MEASURE_VALUE_WEIGHT,
         32, 1, 1, 0, 0},
        {"{\"method\":\"expected-attention\",\"ratio\":0.5}", 0, 100, MEASURE_EXPECTED,
         MEASURE_VALUE_NORM, 100, 1, 1, 0, 0},
        {"{\"method\":\"andpro\",\"ratio\":0.5}", 0, 100, MEASURE_PROJECTION_POOLED, MEASURE_NONE,
         32, 1, 1, 0, 0},
        {"{\"method\":\"andpro\",\"ratio\":0.5,\"variant\":\"plain\"}", 0, 100, MEASURE_PROJECTION,
         MEASURE_NONE, 32, 1, 1, 0, 0},
        {"{\"method\":\"andpro\",\"ratio\":0.5,\"variant\":\"alg1\"}", 0, 100,
         MEASURE_PROJECTION_OUTSIDE, MEASURE_NONE, 32, 1, 1, 0, 0},
        {"{\"method\":\"knorm\",\"ratio\":0.5}", 0, 100, MEASURE_KEY_NORM, MEASURE_NONE, 1, 1, 1, 0,
         0},
        /* Every row adds to the sums, and returns them only at a point. */
        {"{\"method\":\"h2o\",\"ratio\":0.5}", 0, 60, MEASURE_MASS, MEASURE_NONE, 60, 1, 1,
         MEASURE_SUM_ADD, 1},
        {"{\"method\":\"h2o\",\"ratio\":0.5}", 60, 100, MEASURE_MASS, MEASURE_NONE, 40, 1, 1,
         MEASURE_SUM_ADD, 0},
        {"{\"method\":\"h2o\",\"ratio\":0.5,\"interval\":4}", 100, 101, MEASURE_MASS, MEASURE_NONE,
         1, 1, 1, MEASURE_SUM_ADD, 1},
        {"{\"method\":\"h2o\",\"ratio\":0.5,\"interval\":4}", 103, 104, MEASURE_MASS, MEASURE_NONE,
         1, 1, 1, MEASURE_SUM_ADD, 0},
        /* The last 16 of 20: 105 … 120. */
        {"{\"method\":\"snapkv-decode\",\"ratio\":0.5,\"interval\":20}", 84, 100, MEASURE_MASS,
         MEASURE_NONE, 16, 1, 1, 0, 0},
        {"{\"method\":\"snapkv-decode\",\"ratio\":0.5,\"interval\":20}", 103, 104, MEASURE_NONE,
         MEASURE_NONE, 0, 0, 0, 0, 0},
        {"{\"method\":\"snapkv-decode\",\"ratio\":0.5,\"interval\":20}", 104, 105, MEASURE_MASS,
         MEASURE_NONE, 1, 1, 1, MEASURE_SUM_START, 1},
        {"{\"method\":\"snapkv-decode\",\"ratio\":0.5,\"interval\":20}", 105, 106, MEASURE_MASS,
         MEASURE_NONE, 1, 1, 1, MEASURE_SUM_ADD, 1},
        {"{\"method\":\"snapkv-decode\",\"ratio\":0.5,\"interval\":20}", 119, 120, MEASURE_MASS,
         MEASURE_NONE, 1, 1, 1, MEASURE_SUM_ADD, 0},
        /* A replay computes many rows at once. */
        {"{\"method\":\"snapkv-decode\",\"ratio\":0.5,\"interval\":20}", 100, 110, MEASURE_MASS,
         MEASURE_NONE, 6, 1, 1, MEASURE_SUM_START, 1},
        {"{\"method\":\"snapkv-decode\",\"ratio\":0.5,\"interval\":20}", 100, 120, MEASURE_MASS,
         MEASURE_NONE, 16, 1, 1, MEASURE_SUM_START, 0},
        /* Measured by page, except when rows are summed over steps. */
        {"{\"method\":\"chunkkv\",\"ratio\":0.5,\"schedule\":\"decode\"}", 115, 116, MEASURE_MASS,
         MEASURE_NONE, 1, 1, 1, MEASURE_SUM_ADD, 0},
        {"{\"method\":\"chunkkv\",\"ratio\":0.5,\"schedule\":\"decode\",\"interval\":1}", 115, 116,
         MEASURE_MASS, MEASURE_NONE, 1, 1, 0, 0, 0},
        {"{\"method\":\"pyramidinfer\",\"ratio\":0.5}", 60, 100, MEASURE_MASS, MEASURE_NONE, 40, 1,
         1, MEASURE_SUM_ADD, 0},
        {"{\"method\":\"pyramidinfer\",\"ratio\":0.5}", 100, 101, MEASURE_MASS, MEASURE_NONE, 1, 1,
         1, MEASURE_SUM_STEP, 0},
        /* Only rows since the point before count: that was at 90, and 10 are left. */
        {"{\"method\":\"h2o-recurrent\",\"tokens\":60,\"sinks\":2,\"window\":2,"
         "\"recurrent_chunk\":90}",
         90, 100, MEASURE_MASS, MEASURE_NONE, 10, 1, 1, 0, 0},
        {"{\"method\":\"scope-slide\",\"decode\":{\"beta1\":3,\"beta2\":2}}", 105, 106,
         MEASURE_MASS, MEASURE_NONE, 1, 1, 1, 0, 0},
        {"{\"method\":\"scope-slide\",\"decode\":{\"beta1\":3,\"beta2\":2}}", 104, 105,
         MEASURE_NONE, MEASURE_NONE, 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        retention_policy p = policy_of(cases[i].text);
        measure_spec m = retention_measure_rows(&p, 100, cases[i].from, cases[i].to);
        bool same = m.kind == cases[i].kind;
        if (m.kind != MEASURE_NONE)
            same &= m.second == cases[i].second && m.rows == cases[i].rows &&
                    m.layer_step == cases[i].layer_step && m.by_slot == cases[i].by_slot &&
                    (int)m.sum == cases[i].sum && m.silent == cases[i].silent;
        if (!same)
            fail_msg("%s: [%u, %u): kind %d, second %d, rows %u, step %u, by slot %d, sum %d, "
                     "silent %d",
                     cases[i].text, cases[i].from, cases[i].to, (int)m.kind, (int)m.second, m.rows,
                     m.layer_step, m.by_slot, (int)m.sum, m.silent);
    }
}

static uint32_t bits_of(measure_spec m)
{
    uint32_t bits = m.novelty ? MEASURES_NOVELTY : 0;
    if (m.kind == MEASURE_NONE) return bits;
    if (m.sum != MEASURE_SUM_STEP) bits |= MEASURES_SUMS;
    if (m.second != MEASURE_NONE) bits |= UINT32_C(1) << m.second;
    return bits | UINT32_C(1) << m.kind;
}

/* For every preset: the measures that a sequence's rows ask for, in chunks of any size, are those
 * announced before it began. */
static void all_measures_are_known_before(void **state)
{
    (void)state;
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    rng random = rng_seed(3);
    uint32_t seen = 0;
    for (size_t i = 0; i < n; i++)
        for (int round = 0; round < 8; round++) {
            char text[128];
            snprintf(text, sizeof text, "{\"method\":\"%s\"%s}", presets[i].name,
                     presets[i].needs_budget ? ",\"tokens\":150" : "");
            retention_policy policy;
            error err;
            if (!fx_try_policy(&by_head, text, &policy, &err)) fail_msg("%s: %s", text, err.text);
            retention_policy_resolve(&policy, 200);
            uint32_t n_prompt = 100 + rng_below(&random, 400), all = 0;
            uint32_t later = retention_next_point(&policy, n_prompt, n_prompt);
            uint32_t end = later < n_prompt + 5000 ? later + 20 : n_prompt + 20;
            for (uint32_t from = 0; from < end;) {
                uint32_t to = from < n_prompt ? from + 1 + rng_below(&random, 64) : from + 1;
                if (from < n_prompt && to > n_prompt) to = n_prompt;
                uint32_t point = retention_next_point(&policy, n_prompt, from);
                if (to > point) to = point;
                all |= bits_of(retention_measure_rows(&policy, n_prompt, from, to));
                from = to;
            }
            if (retention_measures(&policy, n_prompt) != all)
                fail_msg("%s, prompt of %u: %x told, %x asked for", text, n_prompt,
                         retention_measures(&policy, n_prompt), all);
            seen |= all;
        }
    for (uint32_t bit = 0; bit < 32; bit++)
        if (seen >> bit & 1)
            assert_string_not_equal(retention_measure_name(UINT32_C(1) << bit), "nothing");
    assert_true(seen & MEASURES_SUMS && seen & MEASURES_NOVELTY);
}

static void rows_that_are_measured_are_computed_together(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t n_prompt, together, hits;
        bool sums;
    } cases[] = {
        {"{\"method\":\"full\"}", 1000, 0, UINT32_MAX, false},
        {"{\"method\":\"chunkkv\",\"ratio\":0.5}", 1000, 32, 968, false},
        {"{\"method\":\"chunkkv\",\"ratio\":0.5}", 20, 20, 0, false},
        {"{\"method\":\"truncate\",\"ratio\":0.5}", 1000, 0, UINT32_MAX, false},
        {"{\"method\":\"streaming\",\"ratio\":0.5}", 1000, 0, 999, false},
        {"{\"method\":\"tova\",\"ratio\":0.5}", 1000, 0, 999, false},
        {"{\"method\":\"knorm\",\"ratio\":0.5}", 1000, 0, 999, false},
        {"{\"method\":\"expected-attention\",\"ratio\":0.5}", 1000, 256, 744, false},
        {"{\"method\":\"h2o\",\"ratio\":0.5}", 1000, 0, 0, true},
        {"{\"method\":\"pyramidinfer\",\"ratio\":0.5}", 1000, 0, 0, true},
        {"{\"method\":\"snapkv-decode\",\"ratio\":0.5}", 1000, 16, 0, true},
        {"{\"method\":\"snapkv-decode\",\"ratio\":0.5,\"interval\":1}", 1000, 16, 984, false},
        {"{\"method\":\"chunkkv\",\"tokens\":1000}", 992, 32, UINT32_MAX, false},
        {"{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"full\"},\"decode\":{\"beta1\":3,"
         "\"beta2\":2}}",
         1000, 0, 1005, false},
        {"{\"method\":\"scope-slide\"}", 1000, 0, 0, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        retention_policy p = policy_of(cases[i].text);
        uint32_t n = cases[i].n_prompt, together = retention_rows_together(&p, n, n);
        uint32_t hits = retention_hit_limit(&p, n);
        if (together != cases[i].together || hits != cases[i].hits ||
            retention_has_sums(&p) != cases[i].sums)
            fail_msg("%s: %u together, %u hits, sums %d", cases[i].text, together, hits,
                     retention_has_sums(&p));
    }
    retention_policy p = policy_of("{\"method\":\"snapkv-decode\",\"ratio\":0.5}");
    assert_int_equal(retention_rows_together(&p, 1000, 1016), 0);
    p = policy_of("{\"method\":\"h2o-recurrent\",\"recurrent_chunk\":300,\"tokens\":600}");
    assert_int_equal(retention_rows_together(&p, 1000, 900), 128);
    assert_int_equal(retention_rows_together(&p, 1000, 1000), 100);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

static uint32_t longest_table(const retention_fx *fx)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < pkv_groups(&fx->geometry); i++) {
        uint32_t pages = pkv_seq_table(fx->kv, 0, i).n_pages;
        if (pages > longest) longest = pages;
    }
    return longest;
}

/* Over a whole sequence, each selection leaves what was promised for its point. */
static void bounds_hold_at_every_point_of_a_life(void **state)
{
    (void)state;
    uint32_t n_selections = 0, tight = 0;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        rng r = rng_seed(seed);
        fx_drawn d = fx_draw(&r);
        uint32_t n_prompt = 1 + rng_below(&r, 500), end = n_prompt + rng_below(&r, 60);
        retention_policy_resolve(&d.policy, 60);
        retention_fx *fx = fx_create(&d.geometry, 1);
        uint32_t at = 1, point = retention_next_point(&d.policy, n_prompt, 0);
        for (; point <= end; point = retention_next_point(&d.policy, n_prompt, point)) {
            assert_true(point > 0);
            assert_true(status_ok(pkv_seq_append(fx->kv, 0, point - at)));
            at = point;
            fx_measure(fx, &d.policy, &r, rng_below(&r, 2) ? 0 : 3);
            fx_select(fx, &d.policy, n_prompt);
            fx_apply(fx, &d.policy);
            retention_bound bound = retention_bound_at(&d.policy, &d.geometry, 0, n_prompt, point);
            uint32_t held = pkv_seq_pages_held(fx->kv, 0), longest = longest_table(fx);
            if (held > bound.pages || longest > bound.longest_pages)
                fail_msg("seed %llu: %s: %u tokens, at %u: %u pages, promised %llu; longest %u of "
                         "%u",
                         (unsigned long long)seed, d.text, n_prompt, point, held,
                         (unsigned long long)bound.pages, longest, bound.longest_pages);
            n_selections++;
            tight += held == bound.pages;
        }
        fx_destroy(fx);
    }
    assert_true(n_selections > 1000);
    assert_true(tight > n_selections / 3); /* a bound that allows everything would be useless */
}

static void pages_are_promised_exactly(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t n_prompt, point;
        uint64_t pages; // of 21 tables
        uint32_t longest;
    } cases[] = {
        {"{\"method\":\"full\"}", 1000, 1000, 63 * 21, 63},
        {"{\"method\":\"chunkkv\",\"ratio\":0.1}", 4096, 4096, 25 * 21, 25},
        {"{\"method\":\"chunkkv\",\"ratio\":0.9}", 1000, 1000, 56 * 21, 56},
        {"{\"method\":\"snapkv\",\"tokens\":100}", 1000, 1000, 7 * 21, 7},
        {"{\"method\":\"snapkv\",\"tokens\":100}", 50, 50, 4 * 21, 4},
        /* 58 tokens beside the window: 114 for the lowest layer, 2 for the highest, in steps of
         * 18. */
        {"{\"method\":\"pyramidkv\",\"tokens\":90}", 1000, 1000, (10 + 8 + 7 + 6 + 5 + 4 + 3) * 3,
         10},
        /* Three heads share 300 tokens: 18 whole pages and a rest, in three tables. */
        {"{\"method\":\"adakv\",\"tokens\":100}", 1000, 1000, 21 * 7, 19},
        /* All stays: a partial page in each table. */
        {"{\"method\":\"adakv\",\"tokens\":120,\"unit\":\"page\"}", 98, 98, 7 * 21, 7},
        {"{\"method\":\"scope-slide\",\"decode\":{\"beta1\":3,\"beta2\":2}}", 96, 102, 7 * 21, 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        retention_policy p = policy_of(cases[i].text);
        retention_bound b = retention_bound_at(&p, &by_head, 0, cases[i].n_prompt, cases[i].point);
        if (b.pages != cases[i].pages || b.longest_pages != cases[i].longest)
            fail_msg("%s: %llu pages, longest %u", cases[i].text, (unsigned long long)b.pages,
                     b.longest_pages);
    }
}

static void budgets_below_what_is_protected_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t n_prompt;
        const char *says; // NULL: accepted
    } cases[] = {
        {"{\"method\":\"chunkkv\",\"tokens\":47}", 1000,
         "retention.tokens is 47: below the 3 protected pages of 16 tokens"},
        {"{\"method\":\"chunkkv\",\"tokens\":48}", 1000, NULL},
        {"{\"method\":\"chunkkv\",\"tokens\":32}", 1008, NULL},
        {"{\"method\":\"chunkkv\",\"ratio\":0.001}", 1000, NULL},
        {"{\"method\":\"snapkv\",\"tokens\":32}", 1000, NULL},
        {"{\"method\":\"streaming\",\"tokens\":4}", 1000, NULL},
        {"{\"method\":\"h2o\",\"tokens\":1}", 1000, NULL}, /* half of it is protected */
        {"{\"method\":\"full\"}", 1000, NULL},
        {"{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"chunkkv\",\"tokens\":40}}", 1000,
         "retention.prefill.tokens is 40: below the 3 protected pages"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        retention_policy p = policy_of(cases[i].text);
        error err = {""};
        status s = retention_check_budget(&p, &by_head, cases[i].n_prompt, &err);
        if (status_ok(s) != !cases[i].says || (cases[i].says && !strstr(err.text, cases[i].says)))
            fail_msg("%s: %s", cases[i].text, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(points_are_where_a_budget_may_be_exceeded),
        cmocka_unit_test(a_horizon_is_the_request_s_length),
        cmocka_unit_test(growth_points_are_those_of_a_simulation),
        cmocka_unit_test(measures_are_asked_for_where_they_count),
        cmocka_unit_test(all_measures_are_known_before),
        cmocka_unit_test(rows_that_are_measured_are_computed_together),
        cmocka_unit_test(bounds_hold_at_every_point_of_a_life),
        cmocka_unit_test(pages_are_promised_exactly),
        cmocka_unit_test(budgets_below_what_is_protected_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
