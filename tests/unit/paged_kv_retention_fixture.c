#include "tests/unit/paged_kv_retention_fixture.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

retention_fx *fx_create(const pkv_geometry *geometry, uint32_t n_tokens)
{
    retention_fx *fx = calloc(1, sizeof *fx);
    assert_non_null(fx);
    fx->geometry = *geometry;
    pkv_options options = {.geometry = *geometry, .n_pages = 1 << 15, .max_seqs = 1};
    uint32_t hit;
    assert_true(status_ok(pkv_create(&options, &fx->kv)));
    assert_true(status_ok(pkv_seq_open(fx->kv, 0, PKV_HEAD, NULL, 0, 0, n_tokens, &hit)));
    assert_true(status_ok(pkv_seq_append(fx->kv, 0, n_tokens)));
    fx->out = (retention_selection){.keep = fx->keep,
                                    .words = FX_WORDS,
                                    .scratch = fx->scratch,
                                    .n_scratch = sizeof fx->scratch / sizeof fx->scratch[0]};
    return fx;
}

void fx_destroy(retention_fx *fx)
{
    pkv_destroy(fx->kv);
    free(fx);
}

bool fx_try_policy(const pkv_geometry *geometry, const char *text, retention_policy *out,
                   error *err)
{
    retention_limits limits = {.geometry = *geometry, .max_window = 512};
    json_t *json;
    error unread;
    if (!status_ok(json_read_text("test", text, strlen(text), &json, &unread)))
        fail_msg("%s: %s", text, unread.text);
    status s = retention_parse(json, &limits, out, err);
    json_decref(json);
    return status_ok(s);
}

retention_policy fx_policy(const retention_fx *fx, const char *text)
{
    retention_policy policy;
    error err;
    if (!fx_try_policy(&fx->geometry, text, &policy, &err)) fail_msg("%s: %s", text, err.text);
    return policy;
}

static uint32_t runs(uint32_t n, uint32_t length) { return (n + length - 1) / length; }

float *fx_value(retention_fx *fx, uint32_t kind, uint32_t measured_layer, uint32_t head,
                uint32_t slot)
{
    const measure_result *m = &fx->measures;
    return &fx->values[((kind * (size_t)m->n_layers + measured_layer) * m->n_kv_heads + head) *
                           m->stride +
                       slot];
}

uint32_t fx_selecting(const pkv_geometry *g, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < end; l++) n += pkv_window_of(g, l) == 0;
    return n;
}

void fx_measure(retention_fx *fx, const retention_policy *policy, rng *r, uint32_t levels)
{
    uint32_t selecting = fx_selecting(&fx->geometry, fx->geometry.n_layers);
    fx->measures =
        (measure_result){.values = fx->values,
                         .n_layers = runs(selecting > 0 ? selecting : 1, policy->reuse_layers),
                         .n_kv_heads = fx->geometry.n_kv_heads,
                         .stride = FX_SLOTS,
                         .q_heads = 1 + rng_below(r, 8),
                         .novelty = fx->novelty};
    size_t n = sizeof fx->values / sizeof fx->values[0];
    for (size_t i = 0; i < n; i++) {
        fx->values[i] = levels > 0 ? (float)rng_below(r, levels) * 0.125f : rng_unit(r);
        if (rng_below(r, 200) == 0) fx->values[i] = NAN;
    }
    for (size_t i = 0; i < FX_SLOTS; i++) fx->novelty[i] = (float)rng_below(r, 64) * 0.125f;
}

bool fx_kept(const retention_fx *fx, uint32_t group, uint32_t slot)
{
    return fx->keep[group * FX_WORDS + slot / 64] >> slot % 64 & 1;
}

uint32_t fx_count(const retention_fx *fx, uint32_t group)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < FX_SLOTS; i++) n += fx_kept(fx, group, i);
    return n;
}

void fx_select(retention_fx *fx, const retention_policy *policy, uint32_t n_prompt)
{
    error err;
    bool keeps_all = retention_keeps_all(policy, fx->kv, 0, n_prompt);
    if (!status_ok(retention_select(policy, fx->kv, 0, n_prompt, &fx->measures, &fx->out, &err)))
        fail_msg("%s", err.text);
    assert_false(keeps_all && (fx->out.gives_up || fx->out.budget_raised));
}

void fx_apply(retention_fx *fx, const retention_policy *policy)
{
    for (uint32_t i = 0; fx->out.gives_up && i < pkv_groups(&fx->geometry); i++) {
        assert_true(
            status_ok(pkv_seq_keep(fx->kv, 0, i, fx->keep + i * FX_WORDS, policy->contiguous)));
    }
    const char *wrong = pkv_check_integrity(fx->kv);
    if (wrong) fail_msg("%s", wrong);
}

/* ---- random requests -------------------------------------------------------------------------
 */

/* Models. */
static const pkv_geometry geometries[] = {
    {.page_tokens = 16, .n_layers = 7, .n_kv_heads = 3},
    {.page_tokens = 16, .n_layers = 5, .n_kv_heads = 4},
    {.page_tokens = 32, .n_layers = 8, .n_kv_heads = 4},
    {.page_tokens = 16, .n_layers = 4, .n_kv_heads = 2},
    {.page_tokens = 16, .n_layers = 1, .n_kv_heads = 1},
    /* some layers have a window, all have one */
    {.page_tokens = 16, .n_layers = 7, .n_kv_heads = 3, .window = 40, .window_layers = {0x36}},
    {.page_tokens = 32, .n_layers = 8, .n_kv_heads = 4, .window = 100, .window_layers = {0x0f}},
    {.page_tokens = 16, .n_layers = 3, .n_kv_heads = 2, .window = 1, .window_layers = {0x7}},
};
enum { N_GEOMETRIES = sizeof geometries / sizeof geometries[0] };

static const char *pick_option(rng *r, retention_part part)
{
    return retention_part_option(part, rng_below(r, (uint32_t)retention_part_size(part))).name;
}

/* A random preset, with random keys now and then. */
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
                      pick_option(r, RETENTION_PART_SCOPE));
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
                          pick_option(r, parts[i]));
    }
    if (rng_below(r, 4) == 0) strbuf_printf(out, ",\"sinks\":%u", rng_below(r, 40));
    if (rng_below(r, 3) == 0) strbuf_printf(out, ",\"window\":%u", 1 + rng_below(r, 80));
    if (rng_below(r, 4) == 0) strbuf_printf(out, ",\"reuse_layers\":%u", 1 + rng_below(r, 5));
    if (rng_below(r, 4) == 0) strbuf_printf(out, ",\"chunk\":%u", 1 + rng_below(r, 20));
    if (rng_below(r, 4) == 0) strbuf_printf(out, ",\"interval\":%u", 1 + rng_below(r, 20));
    if (rng_below(r, 4) == 0) strbuf_printf(out, ",\"recurrent_chunk\":%u", 1 + rng_below(r, 200));
    if (rng_below(r, 6) == 0) strbuf_printf(out, ",\"rows\":%u", 1 + rng_below(r, 40));
    if (rng_below(r, 6) == 0) strbuf_printf(out, ",\"beta\":%u.5", 1 + rng_below(r, 30));
    if (rng_below(r, 6) == 0) strbuf_printf(out, ",\"floor\":0.%u", rng_below(r, 10));
    if (rng_below(r, 20) == 0) strbuf_printf(out, ",\"bias\":0.%u", rng_below(r, 10));
    if (rng_below(r, 4) == 0)
        strbuf_printf(out, ",\"positions\":\"%s\"", rng_below(r, 2) ? "cache" : "original");
    if (rng_below(r, 4) == 0)
        strbuf_printf(out, ",\"pool\":{\"kind\":\"%s\",\"kernel\":%u}",
                      rng_below(r, 2) ? "max" : "avg", 1 + 2 * rng_below(r, 8));
    strbuf_puts(out, "}");
}

/* Tables as coarse as the policy's selections allow, or finer. */
static pkv_geometry random_tables(rng *r, const pkv_geometry *g, const retention_policy *policy)
{
    pkv_grain coarsest = retention_grain(policy, g);
    if (coarsest == PKV_ALL && g->window > 0) coarsest = PKV_LAYER;
    return pkv_geometry_at(g, coarsest + rng_below(r, 1 + PKV_HEAD - coarsest));
}

fx_drawn fx_draw(rng *r)
{
    fx_drawn d;
    strbuf text = {0};
    error err;
    do {
        strbuf_clear(&text);
        random_object(r, &text, false);
        d.geometry = geometries[rng_below(r, N_GEOMETRIES)];
        d.geometry.layers_per_group = d.geometry.heads_per_group = 1;
    } while (text.size >= sizeof d.text || !fx_try_policy(&d.geometry, text.data, &d.policy, &err));
    d.geometry = random_tables(r, &d.geometry, &d.policy);
    memcpy(d.text, text.data, text.size + 1);
    strbuf_destroy(&text);
    return d;
}
