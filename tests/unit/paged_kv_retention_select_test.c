/* Retention's selections: compared with the definition for random policies, tables and measures;
 * and what must hold for every selection. */
#include "tests/unit/paged_kv_retention_fixture.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- against the definition ------------------------------------------------------------------ */

static void compare(const retention_fx *fx, const fx_drawn *d, uint64_t seed)
{
    for (uint32_t g = 0; g < pkv_groups(&fx->geometry); g++) {
        uint32_t n = pkv_seq_table(fx->kv, 0, g).kept_tokens;
        for (uint32_t i = 0; i < FX_SLOTS; i++) {
            bool want = fx->want[g * FX_WORDS + i / 64] >> i % 64 & 1;
            if (fx_kept(fx, g, i) == want && (i < n || !want)) continue;
            fail_msg("seed %llu: %s: %u tokens, group %u, slot %u of %u: %s",
                     (unsigned long long)seed, d->text, pkv_seq_length(fx->kv, 0), g, i, n,
                     want ? "should stay" : "should go");
        }
    }
    if (fx->out.budget_raised != fx->want_raised)
        fail_msg("seed %llu: %s: raised: %d", (unsigned long long)seed, d->text,
                 fx->out.budget_raised);
}

/* Tables that share a selection lose the same random slots, one in so many. When the drops free
 * less than a page, the table's last slots move into the holes. */
static void scramble(retention_fx *fx, const retention_policy *p, bool decode, uint32_t share,
                     uint32_t salt)
{
    const pkv_geometry *g = &fx->geometry;
    bool growth = decode && p->growth != RETENTION_GROWTH_JOINT;
    bool by_head = (growth ? p->decode_scope : p->scope) == RETENTION_SCOPE_HEAD;
    for (uint32_t l = 0; l < g->n_layers; l += g->layers_per_group) {
        for (uint32_t h = 0; h < g->n_kv_heads; h += g->heads_per_group) {
            uint32_t group = pkv_group_of(g, l, h);
            uint64_t keep[FX_WORDS] = {0};
            uint32_t run = fx_selecting(g, l) / p->reuse_layers;
            rng mine = rng_seed(run * 77 + (by_head ? h : 0) + salt);
            uint32_t n = pkv_seq_table(fx->kv, 0, group).kept_tokens;
            uint32_t window = pkv_window_of(g, l), dead = n > window ? (n - window) / 16 : 0;
            uint32_t from = rng_below(&mine, dead + 1) * 16 / g->page_tokens * g->page_tokens;
            for (uint32_t i = window ? from : 0; i < n; i++) {
                if (window || rng_below(&mine, share + 1)) keep[i / 64] |= UINT64_C(1) << i % 64;
            }
            if (n > 0 && !window) keep[0] |= 1;
            assert_true(status_ok(pkv_seq_keep(fx->kv, 0, group, keep, false)));
        }
    }
}

static void selections_are_as_defined(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 1200; seed++) {
        rng r = rng_seed(seed);
        fx_drawn d = fx_draw(&r);
        uint32_t n_prompt = 1 + rng_below(&r, 600),
                 more = rng_below(&r, 3) ? 0 : rng_below(&r, 200);
        retention_fx *fx = fx_create(&d.geometry, n_prompt);
        bool scrambled = rng_below(&r, 3) == 0 && !d.policy.contiguous;
        if (scrambled) scramble(fx, &d.policy, more > 0, 1 + rng_below(&r, 8), rng_below(&r, 8));
        for (uint32_t i = rng_below(&r, 4); scrambled && i > 0; i--)
            scramble(fx, &d.policy, more > 0, 64, 8 + i);
        assert_true(status_ok(pkv_seq_append(fx->kv, 0, more)));
        retention_policy_resolve(&d.policy, 150);
        fx_measure(fx, &d.policy, &r, rng_below(&r, 2) ? 0 : 1 + rng_below(&r, 20));
        if (!retention_selects(&d.policy) &&
            (more == 0 || d.policy.growth == RETENTION_GROWTH_JOINT)) {
            fx_select(fx, &d.policy, n_prompt);
            assert_false(fx->out.gives_up);
        } else if (!(d.policy.variant == RETENTION_VARIANT_MEAN && more > 0)) {
            fx_select(fx, &d.policy, n_prompt);
            fx_define(fx, &d.policy, n_prompt);
            compare(fx, &d, seed);
        }
        fx_destroy(fx);
    }
}

/* ---- by hand --------------------------------------------------------------------------------- */

static const pkv_geometry one_table = {.page_tokens = 16,
                                       .n_layers = 1,
                                       .n_kv_heads = 1,
                                       .layers_per_group = 1,
                                       .heads_per_group = 1},
                          two_heads = {.page_tokens = 16,
                                       .n_layers = 1,
                                       .n_kv_heads = 2,
                                       .layers_per_group = 1,
                                       .heads_per_group = 1};

/* Puts measures of one KV head of the first measured layer; 0 beyond them. */
static void put(retention_fx *fx, uint32_t kind, uint32_t head, uint32_t n, const float *values)
{
    fx->measures = (measure_result){.values = fx->values,
                                    .n_layers = 1,
                                    .n_kv_heads = fx->geometry.n_kv_heads,
                                    .stride = FX_SLOTS,
                                    .q_heads = 2};
    memset(fx_value(fx, kind, 0, head, 0), 0, FX_SLOTS * sizeof *values);
    memcpy(fx_value(fx, kind, 0, head, 0), values, n * sizeof *values);
}

#define PUT(fx, kind, head, ...)                                                                   \
    put(fx, kind, head, sizeof((const float[]){__VA_ARGS__}) / sizeof(float),                      \
        (const float[]){__VA_ARGS__})

/* Expects that exactly these positions stay in a table. */
static void expect(const retention_fx *fx, uint32_t group, uint32_t n, const uint32_t *positions)
{
    for (uint32_t i = 0; i < pkv_seq_table(fx->kv, 0, group).kept_tokens; i++) {
        uint32_t at = pkv_seq_position(fx->kv, 0, group, i);
        bool want = false;
        for (uint32_t k = 0; k < n; k++) want |= positions[k] == at;
        if (fx_kept(fx, group, i) != want) fail_msg("group %u, position %u", group, at);
    }
}

#define EXPECT(fx, group, ...)                                                                     \
    expect(fx, group, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t),                  \
           (const uint32_t[]){__VA_ARGS__})

static void ties_go_to_the_first_and_nan_comes_last(void **state)
{
    (void)state;
    static const float scores[10] = {1, 3, 3, NAN, -0.0f, 3, 0.0f, -1, 99, 99};
    /* 8 and 9 are the window; then 1, 2, 5, 0, 4 (-0 is 0), 6, 7, and NaN last. */
    static const uint32_t order[10] = {8, 9, 1, 2, 5, 0, 4, 6, 7, 3};
    retention_fx *tokens = fx_create(&one_table, 10), *pages = fx_create(&one_table, 160);
    put(tokens, 0, 0, 10, scores);
    put(pages, 0, 0, 10, scores);
    for (uint32_t n = 3; n <= 10; n++) {
        retention_policy p = fx_policy(tokens, "{\"method\":\"snapkv\",\"ratio\":1,\"window\":2,"
                                               "\"pool\":{\"kind\":\"none\"}}");
        p.ratio = n / 10.0;
        fx_select(tokens, &p, 10);
        expect(tokens, 0, n, order);
        p = fx_policy(pages, "{\"method\":\"chunkkv\",\"ratio\":1}");
        p.ratio = n / 10.0;
        fx_select(pages, &p, 160);
        for (uint32_t i = 0; i < 160; i++) {
            bool want = false;
            for (uint32_t k = 0; k < n; k++) want |= order[k] == i / 16;
            assert_true(fx_kept(pages, 0, i) == want);
        }
    }
    fx_destroy(tokens);
    fx_destroy(pages);
}

static void heads_are_summed_in_ascending_order(void **state)
{
    (void)state;
    static const pkv_geometry g = {.page_tokens = 16,
                                   .n_layers = 1,
                                   .n_kv_heads = 3,
                                   .layers_per_group = 1,
                                   .heads_per_group = 3};
    retention_fx *fx = fx_create(&g, 4);
    retention_policy p = fx_policy(fx, "{\"method\":\"tova\",\"tokens\":2}");
    PUT(fx, 0, 0, 1e8f, 0.25f);
    PUT(fx, 0, 1, -1e8f, 0.25f);
    PUT(fx, 0, 2, 1, 0.25f);
    fx_select(fx, &p, 4);
    EXPECT(fx, 0, 0, 3); /* (1e8 - 1e8) + 1 beats 0.75; from the other end it would be 0 */
    fx_destroy(fx);
}

static void pools_reach_neighbours_outside_the_window(void **state)
{
    (void)state;
    retention_fx *fx = fx_create(&one_table, 12);
    PUT(fx, 0, 0, 0, 0, 0, 5, 0, 0, 4, 0, 0, 0, 9, 9);
    retention_policy p = fx_policy(fx, "{\"method\":\"snapkv\",\"tokens\":5,\"window\":2,"
                                       "\"pool\":{\"kind\":\"max\",\"kernel\":3}}");
    fx_select(fx, &p, 12);
    EXPECT(fx, 0, 2, 3, 4, 10, 11); /* the window's 9 would have come first by slot 9 */
    /* Means of three: 5/3 three times, then 4/3 three times; values outside count as 0. */
    p.pool = RETENTION_POOL_AVG;
    p.tokens = 6;
    PUT(fx, 0, 0, 4.5f, 0, 0, 5, 0, 0, 0, 0, 0, 0, 9, 9);
    fx_select(fx, &p, 12);
    EXPECT(fx, 0, 0, 2, 3, 4, 10, 11);
    fx_destroy(fx);
}

/* A table of 20 tokens after dropping tokens 1 and 2: the tokens of slots 18 and 19 took their
 * places. */
static retention_fx *permuted(void)
{
    retention_fx *fx = fx_create(&one_table, 20);
    uint64_t keep[FX_WORDS] = {0xffff9};
    assert_true(status_ok(pkv_seq_keep(fx->kv, 0, 0, keep, false)));
    assert_int_equal(pkv_seq_position(fx->kv, 0, 0, 1), 18);
    return fx;
}

/* In a permuted table a token's neighbours are those by position, and equal scores are ordered by
 * position. */
static void neighbours_are_neighbours_in_position(void **state)
{
    (void)state;
    retention_fx *fx = permuted();
    retention_policy p = fx_policy(fx, "{\"method\":\"snapkv\",\"tokens\":5,\"window\":1,"
                                       "\"pool\":{\"kind\":\"max\",\"kernel\":3}}");
    PUT(fx, 0, 0, 0, 5); /* token 18, whose neighbours are 17 in slot 17 and 19 in slot 2 */
    fx_select(fx, &p, 20);
    EXPECT(fx, 0, 0, 3, 17, 18, 19); /* the window's 19, then 17 and 18, then the first two */
    p = fx_policy(fx, "{\"method\":\"chunkkv\",\"tokens\":5,\"window\":1,\"unit\":\"chunk\","
                      "\"chunk\":4}");
    PUT(fx, 0, 0, 0, 5, 0, 4, 4, 4); /* chunks: 0 3 4 5 with 12, 6 … 9, 10 … 13, 14 … 17, 18 */
    fx_select(fx, &p, 20);
    EXPECT(fx, 0, 0, 3, 4, 5, 19);
    PUT(fx, 0, 0, 0, 5, 0, 1, 1, 1);
    fx_select(fx, &p, 20);
    EXPECT(fx, 0, 18, 19);
    p = fx_policy(fx, "{\"method\":\"tova\",\"tokens\":3}");
    PUT(fx, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5);
    fx_select(fx, &p, 20);
    EXPECT(fx, 0, 17, 18, 19);
    p.tokens = 2; /* 17 and 18 have the same score: the earlier stays */
    fx_select(fx, &p, 20);
    EXPECT(fx, 0, 17, 19);
    fx_destroy(fx);
}

static void chunks_that_hold_window_slots_compete_by_algorithm_3(void **state)
{
    (void)state;
    retention_fx *fx = fx_create(&one_table, 18);
    PUT(fx, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7);
    /* k = floor((12 - 4) / 4) = 2 chunks: [12, 16), which scores 14, then [16, 18), which scores
     * 14. */
    retention_policy p = fx_policy(fx, "{\"method\":\"chunkkv\",\"tokens\":12,\"window\":4,"
                                       "\"unit\":\"chunk\",\"chunk\":4,\"variant\":\"alg3\"}");
    fx_select(fx, &p, 18);
    EXPECT(fx, 0, 12, 13, 14, 15, 16, 17);
    /* Without the variant, chunks with window slots do not compete: the best is 4 … 8, then 0 …
     * 4. */
    p.variant = RETENTION_VARIANT_PLAIN;
    fx_select(fx, &p, 18);
    EXPECT(fx, 0, 0, 1, 2, 3, 4, 5, 6, 7, 14, 15, 16, 17);
    /* They do not compete in AnDPro either. */
    p = fx_policy(fx, "{\"method\":\"andpro\",\"tokens\":12,\"window\":4,\"sinks\":0}");
    fx_select(fx, &p, 18);
    EXPECT(fx, 0, 0, 1, 2, 3, 4, 5, 6, 7, 14, 15, 16, 17);
    assert_false(fx->out.budget_raised);
    p.tokens = 7; /* less than a chunk beside the window: still one chunk */
    fx_select(fx, &p, 18);
    EXPECT(fx, 0, 4, 5, 6, 7, 14, 15, 16, 17);
    assert_true(fx->out.budget_raised);
    fx_destroy(fx);
}

static void kvpress_means_and_shares(void **state)
{
    (void)state;
    retention_fx *fx = fx_create(&one_table, 10);
    PUT(fx, 0, 0, 8, 0, 0, 0, 8, 8, 8, 8, 0, 0);
    /* Over two rows and two query heads, in chunks of four: means 0.5, 2, and 1 + the best slot's
     * 2. floor(3 * 0.7) = 2 chunks stay. */
    retention_policy p =
        fx_policy(fx, "{\"method\":\"chunkkv\",\"ratio\":0.7,\"window\":2,\"unit\":\"chunk\","
                      "\"chunk\":4,\"variant\":\"mean\",\"pool\":{\"kind\":\"none\"}}");
    fx_select(fx, &p, 10);
    EXPECT(fx, 0, 4, 5, 6, 7, 8, 9);
    p.ratio = 0.3; /* floor(0.9): still one; the window counts by its mean, not its sum */
    fx_select(fx, &p, 10);
    EXPECT(fx, 0, 8, 9);
    fx_destroy(fx);
}

/* Keeps the first n slots of a table. */
static void keep_first(retention_fx *fx, uint32_t group, uint32_t n)
{
    const uint64_t keep[FX_WORDS] = {(UINT64_C(1) << n) - 1};
    assert_true(status_ok(pkv_seq_keep(fx->kv, 0, group, keep, false)));
}

/* Whether a selection gives up nothing follows from what each table holds, or heads that compete
 * hold together. */
static void whether_all_is_kept_is_known_before(void **state)
{
    (void)state;
    static const pkv_geometry two_layers = {.page_tokens = 16,
                                            .n_layers = 2,
                                            .n_kv_heads = 1,
                                            .layers_per_group = 1,
                                            .heads_per_group = 1};
    for (int by_layer = 0; by_layer < 2; by_layer++) {
        retention_fx *fx = fx_create(by_layer ? &two_layers : &two_heads, 20);
        retention_policy p = fx_policy(fx, "{\"method\":\"knorm\",\"tokens\":16}");
        assert_false(retention_keeps_all(&p, fx->kv, 0, 20));
        keep_first(fx, 0, 12);
        assert_false(retention_keeps_all(&p, fx->kv, 0, 20));
        p.tokens = 20;
        assert_true(retention_keeps_all(&p, fx->kv, 0, 20));
        p.tokens = 19;
        assert_false(retention_keeps_all(&p, fx->kv, 0, 20));
        p = fx_policy(fx, "{\"method\":\"adakv\",\"tokens\":16,\"window\":1}");
        assert_int_equal(retention_keeps_all(&p, fx->kv, 0, 20), !by_layer);
        keep_first(fx, 1, 16);
        assert_true(retention_keeps_all(&p, fx->kv, 0, 20));
        fx_destroy(fx);
    }
}

static void heads_compete_for_a_layer(void **state)
{
    (void)state;
    retention_fx *fx = fx_create(&two_heads, 12);
    PUT(fx, 0, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    PUT(fx, 0, 1, 0, 0, 0.5f, 0, 0.25f);
    /* A budget of 2 * 5 tokens, one of each head in the window: 8 to select, of which none is
     * guaranteed to head 1. */
    retention_policy p = fx_policy(fx, "{\"method\":\"adakv\",\"tokens\":5,\"window\":1,"
                                       "\"pool\":{\"kind\":\"none\"}}");
    fx_select(fx, &p, 12);
    EXPECT(fx, 0, 0, 1, 2, 3, 4, 5, 6, 7, 11);
    EXPECT(fx, 1, 11);
    p.floor = 0.6f; /* floor(0.6 * 5) - 1 = 2 guaranteed to each head */
    fx_select(fx, &p, 12);
    EXPECT(fx, 0, 0, 1, 2, 3, 4, 5, 11);
    EXPECT(fx, 1, 2, 4, 11);
    fx_destroy(fx);
    /* Chunks of four: (2 * 16 - 2 * 4) / 4 = 6 of them; floor(0.6 * 16 / 4) - 1 are guaranteed to
     * head 1. */
    fx = fx_create(&two_heads, 40);
    p = fx_policy(fx, "{\"method\":\"andpro\",\"tokens\":16,\"sinks\":0,\"window\":4}");
    p.floor = 0.6f;
    PUT(fx, 0, 0, 99, 98, 97, 96, 95, 94, 93, 92, 91, 90, 89, 88, 87, 86, 85, 84, 83, 82, 81, 80,
        79, 78, 77, 76);
    PUT(fx, 0, 1, 0, 0, 0, 0, 1);
    fx_select(fx, &p, 40);
    assert_int_equal(fx_count(fx, 0), 5 * 4 + 4);
    EXPECT(fx, 1, 4, 5, 6, 7, 36, 37, 38, 39);
    fx_destroy(fx);
}

static void the_second_half_is_weighed_by_values(void **state)
{
    (void)state;
    retention_fx *fx = fx_create(&one_table, 10);
    PUT(fx, 0, 0, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0);
    PUT(fx, 1, 0, 1, 1, 1, 1, 9, 8e4f, 1, 1, 1, 1);
    /* Six tokens: one is the window, floor(6 / 2) - 1 = 2 by attention (0, 1); then (base + 1e-4) *
     * weight puts slot 5 before slot 4, and 2 last. */
    retention_policy p = fx_policy(fx, "{\"method\":\"criticalkv\",\"tokens\":6,\"window\":1,"
                                       "\"pool\":{\"kind\":\"none\"}}");
    fx_select(fx, &p, 10);
    EXPECT(fx, 0, 0, 1, 2, 4, 5, 9);
    p.tokens = 4;
    fx_select(fx, &p, 10);
    EXPECT(fx, 0, 0, 4, 5, 9);
    fx_destroy(fx);
}

static void layers_have_budgets_of_their_own(void **state)
{
    (void)state;
    static const pkv_geometry g = {.page_tokens = 16,
                                   .n_layers = 5,
                                   .n_kv_heads = 1,
                                   .layers_per_group = 1,
                                   .heads_per_group = 1};
    retention_fx *fx = fx_create(&g, 1000);
    rng r = rng_seed(1);
    /* 100 tokens beside the window: the range is 5 (top) to 195 (bottom), in steps of floor(190 /
     * 4) = 47. */
    retention_policy p = fx_policy(fx, "{\"method\":\"pyramidkv\",\"tokens\":132}");
    fx_measure(fx, &p, &r, 0);
    fx_select(fx, &p, 1000);
    static const uint32_t want[5] = {227, 180, 133, 86, 39};
    for (uint32_t l = 0; l < 5; l++) assert_int_equal(fx_count(fx, l), want[l]);
    /* Chunks in layers 0 … 2, tokens in 3 and 4. */
    p = fx_policy(fx, "{\"method\":\"chunkkv-hybrid\",\"tokens\":136}");
    fx_select(fx, &p, 1000);
    for (uint32_t l = 0; l < 5; l++) {
        uint32_t runs = 0;
        for (uint32_t i = 0; i < 968; i++) runs += fx_kept(fx, l, i) && i % 10 == 0;
        uint32_t n = fx_count(fx, l);
        if (l < 3 && (n > 132 || n < 132 - 9 || runs < 9)) fail_msg("layer %u: %u, %u", l, n, runs);
        if (l >= 3) assert_int_equal(n, 136);
    }
    fx_destroy(fx);
}

static void forced_tokens_are_those_that_no_score_moves(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t n_prompt, len, first_to, last_from; /* [0, first_to) and [last_from, …) */
    } cases[] = {
        {"{\"method\":\"snapkv\",\"ratio\":0.5,\"sinks\":3,\"window\":10}", 100, 130, 3, 90},
        {"{\"method\":\"chunkkv\",\"ratio\":0.5,\"sinks\":3,\"window\":10}", 100, 130, 16, 80},
        {"{\"method\":\"chunkkv\",\"ratio\":0.5,\"window\":0,\"rows\":8}", 100, 130, 0, 96},
        {"{\"method\":\"tova\",\"tokens\":60,\"window\":40}", 100, 130, 0, 90},
        {"{\"method\":\"knorm\",\"ratio\":0.5}", 100, 100, 0, 100},
        {"{\"method\":\"full\"}", 100, 130, 0, 100},
        {"{\"method\":\"chunkkv\",\"ratio\":0.5,\"unit\":\"chunk\",\"variant\":\"mean\"}", 100, 130,
         0, 100},
    };
    retention_fx *fx = fx_create(&one_table, 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        retention_policy p = fx_policy(fx, cases[i].text);
        bool forced[100];
        retention_forced(&p, cases[i].n_prompt, cases[i].len, forced);
        for (uint32_t k = 0; k < 100; k++)
            if (forced[k] != (k < cases[i].first_to || k >= cases[i].last_from))
                fail_msg("%s: token %u", cases[i].text, k);
    }
    fx_destroy(fx);
}

static void a_frozen_prompt_stays(void **state)
{
    (void)state;
    retention_fx *fx = fx_create(&one_table, 8);
    retention_policy p =
        fx_policy(fx, "{\"method\":\"scope-slide\",\"decode\":{\"beta1\":2,\"beta2\":3},"
                      "\"prefill\":{\"method\":\"streaming\",\"tokens\":2,\"sinks\":0}}");
    fx_select(fx, &p, 8);
    EXPECT(fx, 0, 6, 7);
    fx_apply(fx, &p);
    assert_true(status_ok(pkv_seq_append(fx->kv, 0, 5)));
    fx_select(fx, &p, 8);
    assert_false(fx->out.gives_up);
    assert_true(status_ok(pkv_seq_append(fx->kv, 0, 1)));
    PUT(fx, 0, 0, 0, 0, 1, 3, 2, 9, 9, 9); /* slots: 6 7 8 9 10 | 11 12 13 */
    fx_select(fx, &p, 8);
    EXPECT(fx, 0, 6, 7, 9, 10, 11, 12, 13);
    assert_false(fx->out.budget_raised);
    fx_destroy(fx);
}

/* ---- what must not matter, and refusals ------------------------------------------------------ */

static void page_numbers_do_not_matter(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        rng r = rng_seed(seed);
        fx_drawn d = fx_draw(&r);
        uint32_t n_prompt = 1 + rng_below(&r, 400);
        retention_fx *a = fx_create(&d.geometry, n_prompt), *b = fx_create(&d.geometry, n_prompt);
        /* The pages of the other pool come from the free list in another order. */
        pkv_seq_close(b->kv, 0);
        uint32_t hit;
        assert_true(status_ok(pkv_seq_open(b->kv, 0, PKV_HEAD, NULL, 0, 0, n_prompt, &hit)));
        assert_true(status_ok(pkv_seq_append(b->kv, 0, n_prompt)));
        retention_policy_resolve(&d.policy, 10);
        fx_measure(a, &d.policy, &r, 4);
        memcpy(b->values, a->values, sizeof a->values);
        b->measures = a->measures;
        b->measures.values = b->values;
        fx_select(a, &d.policy, n_prompt);
        fx_select(b, &d.policy, n_prompt);
        assert_memory_equal(a->keep, b->keep, sizeof a->keep);
        fx_destroy(a);
        fx_destroy(b);
    }
}

static status select_with(retention_fx *fx, const retention_policy *p, const measure_result *m,
                          error *err)
{
    return retention_select(p, fx->kv, 0, 640, m, &fx->out, err);
}

static void misfits_are_refused(void **state)
{
    (void)state;
    static const pkv_geometry g = {.page_tokens = 16,
                                   .n_layers = 7,
                                   .n_kv_heads = 2,
                                   .layers_per_group = 1,
                                   .heads_per_group = 1};
    retention_fx *fx = fx_create(&g, 640);
    rng r = rng_seed(1);
    error err;
    retention_policy p =
        fx_policy(fx, "{\"method\":\"chunkkv\",\"tokens\":320,\"reuse_layers\":2}");
    fx_measure(fx, &p, &r, 0);
    measure_result m = fx->measures;
    assert_true(status_ok(select_with(fx, &p, &m, &err)));
    m.n_layers = 7; /* every second layer was due */
    assert_int_equal(select_with(fx, &p, &m, &err).code, STATUS_INTERNAL);
    m = fx->measures;
    m.stride = 39; /* there are 40 pages */
    assert_int_equal(select_with(fx, &p, &m, &err).code, STATUS_INTERNAL);
    m.stride = 40;
    assert_true(status_ok(select_with(fx, &p, &m, &err)));
    p.unit = RETENTION_UNIT_TOKEN;
    assert_int_equal(select_with(fx, &p, &m, &err).code, STATUS_INTERNAL);
    assert_int_equal(select_with(fx, &p, NULL, &err).code, STATUS_INTERNAL);
    p.tokens = 640; /* where no slot is dropped, no measure is needed */
    assert_true(status_ok(select_with(fx, &p, NULL, &err)));
    assert_false(fx->out.gives_up);
    fx->out.words = 9;
    assert_int_equal(select_with(fx, &p, NULL, &err).code, STATUS_INTERNAL);
    fx->out.words = FX_WORDS;
    fx->out.n_scratch = retention_scratch_floats(&g, 640) - 1;
    assert_int_equal(select_with(fx, &p, NULL, &err).code, STATUS_INTERNAL);
    fx->out.n_scratch++;
    assert_true(status_ok(select_with(fx, &p, NULL, &err)));
    /* A head's table that another policy has thinned out. */
    uint64_t keep[FX_WORDS];
    memset(keep, 0xff, sizeof keep);
    keep[3] = 1;
    assert_true(status_ok(pkv_seq_keep(fx->kv, 0, 1, keep, false)));
    p.tokens = 320;
    assert_int_equal(select_with(fx, &p, &fx->measures, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "retention.scope: tables that would share a selection"));
    fx_destroy(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selections_are_as_defined),
        cmocka_unit_test(ties_go_to_the_first_and_nan_comes_last),
        cmocka_unit_test(heads_are_summed_in_ascending_order),
        cmocka_unit_test(pools_reach_neighbours_outside_the_window),
        cmocka_unit_test(neighbours_are_neighbours_in_position),
        cmocka_unit_test(chunks_that_hold_window_slots_compete_by_algorithm_3),
        cmocka_unit_test(kvpress_means_and_shares),
        cmocka_unit_test(whether_all_is_kept_is_known_before),
        cmocka_unit_test(heads_compete_for_a_layer),
        cmocka_unit_test(the_second_half_is_weighed_by_values),
        cmocka_unit_test(layers_have_budgets_of_their_own),
        cmocka_unit_test(forced_tokens_are_those_that_no_score_moves),
        cmocka_unit_test(a_frozen_prompt_stays),
        cmocka_unit_test(page_numbers_do_not_matter),
        cmocka_unit_test(misfits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
