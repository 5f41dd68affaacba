/* Retention's choices: against the definition for random policies, tables and measures, and what
 * must hold whatever is chosen. */
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

/* Tables that share a choice lose the same slots, any of them. */
static void scramble(retention_fx *fx, const retention_policy *p, bool decode, rng *r)
{
    const pkv_geometry *g = &fx->geometry;
    bool growth = decode && p->growth != RETENTION_GROWTH_JOINT;
    bool by_head = (growth ? p->decode_scope : p->scope) == RETENTION_SCOPE_HEAD;
    uint32_t share = 1 + rng_below(r, 8);
    for (uint32_t l = 0; l < g->n_layers; l += g->layers_per_group) {
        for (uint32_t h = 0; h < g->n_kv_heads; h += g->heads_per_group) {
            uint32_t group = pkv_group_of(g, l, h);
            uint64_t keep[FX_WORDS] = {0};
            rng mine = rng_seed(l / p->reuse_layers * 77 + (by_head ? h : 0) + share);
            uint32_t n = pkv_seq_table(fx->kv, 0, group).kept_tokens;
            for (uint32_t i = 0; i < n; i++) {
                if (rng_below(&mine, share + 1)) keep[i / 64] |= UINT64_C(1) << i % 64;
            }
            if (n > 0) keep[0] |= 1;
            assert_true(status_ok(pkv_seq_keep(fx->kv, 0, group, keep, false)));
        }
    }
}

static void choices_are_as_defined(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        rng r = rng_seed(seed);
        fx_drawn d = fx_draw(&r);
        uint32_t n_prompt = 1 + rng_below(&r, 600),
                 more = rng_below(&r, 3) ? 0 : rng_below(&r, 200);
        retention_fx *fx = fx_create(&d.geometry, n_prompt);
        if (rng_below(&r, 3) == 0 && !d.policy.contiguous) scramble(fx, &d.policy, more > 0, &r);
        assert_true(status_ok(pkv_seq_append(fx->kv, 0, more)));
        retention_policy_resolve(&d.policy, 150);
        fx_measure(fx, &d.policy, &r, rng_below(&r, 2) ? 0 : 1 + rng_below(&r, 20));
        if (d.policy.schedule == RETENTION_SCHEDULE_NEVER &&
            (more == 0 || d.policy.growth == RETENTION_GROWTH_JOINT)) {
            fx_choose(fx, &d.policy, n_prompt);
            assert_false(fx->out.gives_up);
        } else if (!(d.policy.variant == RETENTION_VARIANT_MEAN && more > 0)) {
            fx_choose(fx, &d.policy, n_prompt);
            fx_define(fx, &d.policy, n_prompt);
            compare(fx, &d, seed);
        }
        fx_destroy(fx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_as_defined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
