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

/* ---- random requests -------------------------------------------------------------------------
 */

static const pkv_geometry geometries[] = {
    {16, 7, 3, 1, 3}, /* a table for each layer */
    {16, 5, 4, 1, 1}, /* and for each head */
    {32, 8, 4, 2, 2}, {16, 4, 2, 4, 1}, {16, 1, 1, 1, 1},
};
enum { N_GEOMETRIES = sizeof geometries / sizeof geometries[0] };

static const char *pick_choice(rng *r, retention_part part)
{
    return retention_part_choice(part, rng_below(r, (uint32_t)retention_part_size(part))).name;
}

/* Any preset, each key now and then. */
static void random_object(rng *r, strbuf *out, bool nested)
{
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    const retention_preset *p = &presets[rng_below(r, (uint32_t)n)];
    strbuf_printf(out, "{\"method\":\"%s\"", p->name);
    if (p->fields & RETENTION_FIELD_PHASES) {
        if (nested) {
            strbuf_puts(out, "}");
            return;
        }
        strbuf_printf(out,
                      ",\"decode\":{\"beta1\":%u,\"beta2\":%u,\"horizon\":%u,\"scope\":\"%s\"}",
                      1 + rng_below(r, 30), 1 + rng_below(r, 30), 31 + rng_below(r, 100),
                      pick_choice(r, RETENTION_PART_SCOPE));
        if (rng_below(r, 4)) {
            strbuf_puts(out, ",\"prefill\":");
            random_object(r, out, true);
        }
        strbuf_puts(out, "}");
        return;
    }
    if (!p->fields) {
        strbuf_puts(out, "}");
        return;
    }
    if (rng_below(r, 2)) strbuf_printf(out, ",\"ratio\":%.2f", 0.01 + rng_below(r, 99) * 0.01);
    else strbuf_printf(out, ",\"tokens\":%u", 1 + rng_below(r, 300));
    static const retention_part parts[] = {RETENTION_PART_SCORE,    RETENTION_PART_UNIT,
                                           RETENTION_PART_SCOPE,    RETENTION_PART_ALLOCATOR,
                                           RETENTION_PART_SCHEDULE, RETENTION_PART_VARIANT};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (rng_below(r, 3) == 0)
            strbuf_printf(out, ",\"%s\":\"%s\"", retention_part_name(parts[i]),
                          pick_choice(r, parts[i]));
    }
    if (rng_below(r, 4) == 0) strbuf_printf(out, ",\"sinks\":%u", rng_below(r, 40));
    if (rng_below(r, 3) == 0) strbuf_printf(out, ",\"window\":%u", 1 + rng_below(r, 80));
    if (rng_below(r, 4) == 0) strbuf_printf(out, ",\"reuse_layers\":%u", 1 + rng_below(r, 5));
    if (rng_below(r, 4) == 0) strbuf_printf(out, ",\"chunk\":%u", 1 + rng_below(r, 20));
    if (rng_below(r, 4) == 0) strbuf_printf(out, ",\"interval\":%u", 1 + rng_below(r, 20));
    if (rng_below(r, 4) == 0) strbuf_printf(out, ",\"recurrent_chunk\":%u", 1 + rng_below(r, 200));
    if (rng_below(r, 4) == 0)
        strbuf_printf(out, ",\"pool\":{\"kind\":\"%s\",\"kernel\":%u}",
                      rng_below(r, 2) ? "max" : "avg", 1 + 2 * rng_below(r, 8));
    strbuf_puts(out, "}");
}

typedef struct drawn {
    retention_policy policy;
    pkv_geometry geometry;
    char text[512];
} drawn;

/* One that is not refused. */
static drawn draw(rng *r)
{
    drawn d;
    strbuf text = {0};
    error err;
    do {
        strbuf_clear(&text);
        random_object(r, &text, false);
        d.geometry = geometries[rng_below(r, N_GEOMETRIES)];
    } while (text.size >= sizeof d.text || !fx_try_policy(&d.geometry, text.data, &d.policy, &err));
    memcpy(d.text, text.data, text.size + 1);
    strbuf_destroy(&text);
    return d;
}

/* ---- against the definition ------------------------------------------------------------------ */

static void compare(const retention_fx *fx, const drawn *d, uint64_t seed)
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
        drawn d = draw(&r);
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
