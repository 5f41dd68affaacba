/* Retention: the table of methods, requests and what they are refused for, budgets, selection,
 * report. */
#include "paged_kv/retention/retention.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const pkv_geometry by_layer = {
    .page_tokens = 16, .n_layers = 7, .n_kv_heads = 3, .layers_per_group = 1, .heads_per_group = 3};

static json_t *parse_json(const char *text)
{
    json_t *json;
    error err;
    if (!status_ok(json_read_text("test", text, strlen(text), &json, &err)))
        fail_msg("%s", err.text);
    return json;
}

static status parse(const char *text, const pkv_geometry *geometry, retention_policy *out,
                    error *err)
{
    retention_limits limits = {.geometry = *geometry, .max_window = 512};
    json_t *json = parse_json(text);
    status s = retention_parse(json, &limits, out, err);
    json_decref(json);
    return s;
}

/* ---- the tables ------------------------------------------------------------------------------ */

static void tables_are_sound(void **state)
{
    (void)state;
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    assert_true(n >= 2);
    assert_string_equal(presets[0].name, "full");
    for (size_t i = 0; i < n; i++) {
        const retention_preset *p = &presets[i];
        assert_ptr_equal(retention_find(p->name), p);
        assert_true(p->summary[0] && p->source[0]);
        const uint32_t chosen[RETENTION_PARTS] = {
            [RETENTION_PART_SCORE] = p->defaults.score,
            [RETENTION_PART_UNIT] = p->defaults.unit,
            [RETENTION_PART_SCOPE] = p->defaults.scope,
            [RETENTION_PART_ALLOCATOR] = p->defaults.allocator,
            [RETENTION_PART_SCHEDULE] = p->defaults.schedule,
        };
        for (retention_part part = 0; part < RETENTION_PARTS; part++) {
            assert_true(p->choices[part] >> chosen[part] & 1);
            assert_int_equal(p->choices[part] >> retention_part_size(part), 0);
        }
        assert_true(p->defaults.reuse_layers >= 1);
        assert_true(!p->needs_budget || (p->fields & RETENTION_FIELD_BUDGET));
    }
    assert_null(retention_find("no-such-method"));
    for (retention_part part = 0; part < RETENTION_PARTS; part++) {
        assert_true(retention_part_name(part)[0]);
        for (size_t i = 0; i < retention_part_size(part); i++) {
            assert_true(retention_part_choice(part, i).name[0]);
            assert_true(retention_part_choice(part, i).summary[0]);
        }
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

static void requests_are_resolved(void **state)
{
    (void)state;
    retention_policy p;
    assert_true(status_ok(parse("{\"method\":\"chunkkv\",\"ratio\":0.25}", &by_layer, &p, NULL)));
    assert_string_equal(p.preset->name, "chunkkv");
    assert_true(p.ratio == 0.25);
    assert_int_equal(p.tokens, 0);
    assert_int_equal(p.window, 32);
    assert_int_equal(p.sinks, 0);
    assert_int_equal(p.reuse_layers, 1);
    assert_false(p.report_positions);
    measure_spec spec = retention_measure(&p);
    assert_int_equal(spec.kind, MEASURE_MASS);
    assert_int_equal(spec.rows, 32);
    assert_int_equal(spec.layer_step, 1);
    assert_int_equal(retention_next_point(&p, 100, 0), 100);
    assert_int_equal(retention_next_point(&p, 100, 99), 100);
    assert_int_equal(retention_next_point(&p, 100, 100), UINT32_MAX);

    assert_true(status_ok(parse("{\"method\":\"chunkkv\",\"tokens\":256,\"window\":8,\"sinks\":4,"
                                "\"reuse_layers\":2,\"report\":\"positions\",\"score\":\"window\","
                                "\"unit\":\"page\",\"scope\":\"layer\",\"allocator\":\"uniform\","
                                "\"schedule\":\"prompt\",\"ratio\":null}",
                                &by_layer, &p, NULL)));
    assert_true(p.ratio == 0);
    assert_int_equal(p.tokens, 256);
    assert_int_equal(p.window, 8);
    assert_int_equal(p.sinks, 4);
    assert_int_equal(p.reuse_layers, 2);
    assert_true(p.report_positions);

    static const char *const whole[] = {"null", "{\"method\":\"full\"}",
                                        "{\"method\":\"full\",\"report\":\"counts\"}"};
    for (size_t i = 0; i < 3; i++) {
        assert_true(status_ok(parse(whole[i], &by_layer, &p, NULL)));
        assert_string_equal(p.preset->name, "full");
        assert_int_equal(retention_measure(&p).kind, MEASURE_NONE);
        assert_int_equal(retention_next_point(&p, 100, 0), UINT32_MAX);
    }
    retention_limits limits = {.geometry = by_layer, .max_window = 512};
    assert_true(status_ok(retention_parse(NULL, &limits, &p, NULL)));
    assert_string_equal(p.preset->name, "full");
}

static void requests_are_refused_by_name(void **state)
{
    (void)state;
    static const pkv_geometry pairs = {16, 7, 4, 2, 2};
    static const struct {
        const pkv_geometry *geometry;
        const char *text;
        const char *says;
    } cases[] = {
        {&by_layer, "3", "retention: must be an object"},
        {&by_layer, "[]", "retention: must be an object"},
        {&by_layer, "{}", "retention.method: must be given"},
        {&by_layer, "{\"method\":7}", "retention: \"method\" must be a string"},
        {&by_layer, "{\"method\":\"magic\"}",
         "retention.method: 'magic' is unknown (have: full, chunkkv"},
        {&by_layer, "{\"method\":\"chunkkv\"}", "retention.ratio or retention.tokens"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.1,\"tokens\":5}", "only one of them"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0}", "retention.ratio is 0"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":-0.5}", "\"ratio\" is -0.5"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":1.01}", "\"ratio\" is 1.01"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":\"half\"}", "\"ratio\" must be a number"},
        {&by_layer, "{\"method\":\"chunkkv\",\"tokens\":0}", "\"tokens\" is 0"},
        {&by_layer, "{\"method\":\"chunkkv\",\"tokens\":1.5}", "\"tokens\" must be an integer"},
        {&by_layer, "{\"method\":\"chunkkv\",\"tokens\":99999999999}", "\"tokens\" is 99999999999"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"colour\":1}",
         "retention.colour: unknown key"},
        {&by_layer, "{\"method\":\"full\",\"ratio\":0.5}",
         "retention.ratio is not available for method 'full'"},
        {&by_layer, "{\"method\":\"full\",\"unit\":\"page\"}",
         "retention.unit is not available for method 'full'"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"chunk\":10}",
         "retention.chunk is not available for method 'chunkkv'"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"pool\":{\"kind\":\"max\"}}",
         "retention.pool is not available"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"variant\":\"raw\"}",
         "retention.variant"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"interval\":4}", "retention.interval"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"recurrent_chunk\":4}",
         "retention.recurrent_chunk"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"pressure\":true}",
         "retention.pressure"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"prefill\":{}}", "retention.prefill"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"decode\":{}}", "retention.decode"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"unit\":\"token\"}",
         "retention.unit: 'token' is not available for method 'chunkkv' (have: page)"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"scope\":\"head\"}",
         "retention.scope: 'head' is not available for method 'chunkkv' (have: layer)"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"score\":\"none\"}",
         "retention.score: 'none' is not available for method 'chunkkv' (have: window)"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"allocator\":\"pyramid\"}",
         "(have: uniform)"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"schedule\":\"never\"}",
         "(have: prompt)"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"schedule\":3}",
         "\"schedule\" must be a string"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"report\":\"all\"}",
         "retention.report: 'all'"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"window\":0}", "\"window\" is 0"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"window\":513}",
         "retention.window is 513: more than the prefill chunk of 512"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"sinks\":-1}", "\"sinks\" is -1"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"reuse_layers\":0}",
         "\"reuse_layers\" is 0"},
        {&by_layer, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"reuse_layers\":8}",
         "retention.reuse_layers is 8: the model has 7 layers"},
        {&pairs, "{\"method\":\"chunkkv\",\"ratio\":0.5}",
         "retention.reuse_layers is 1: must be a multiple of the 2 layers that share a page table"},
        {&pairs, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"reuse_layers\":3}",
         "--kv-group-layers 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error err = {""};
        retention_policy p = {.window = 77};
        status s = parse(cases[i].text, cases[i].geometry, &p, &err);
        if (s.code != STATUS_INVALID) fail_msg("taken: %s", cases[i].text);
        if (!strstr(err.text, cases[i].says)) fail_msg("%s: %s", cases[i].text, err.text);
        assert_int_equal(p.window, 77); /* what is refused leaves no trace */
    }
    /* The union of all groups is whole, even when the last one is short. */
    retention_policy p;
    assert_true(status_ok(
        parse("{\"method\":\"chunkkv\",\"ratio\":0.5,\"reuse_layers\":7}", &pairs, &p, NULL)));
    assert_true(status_ok(
        parse("{\"method\":\"chunkkv\",\"ratio\":0.5,\"reuse_layers\":4}", &pairs, &p, NULL)));
}

/* ---- budgets --------------------------------------------------------------------------------- */

static void budgets_follow_the_definition(void **state)
{
    (void)state;
    static const struct {
        double ratio;
        uint32_t tokens, sinks, window, page_tokens, n_prompt;
        uint32_t pages, protected_pages, kept_pages;
        bool raised;
    } cases[] = {
        {0.1, 0, 0, 32, 16, 4096, 256, 2, 25, false}, /* floor(409 / 16) */
        {0.1, 0, 0, 32, 16, 4090, 256, 3, 25,
         false}, /* a partial last page: the window touches 3 */
        {0.5, 0, 0, 32, 16, 96, 6, 2, 3, false},
        {0.25, 0, 0, 32, 16, 96, 6, 2, 3, true},      /* 1 page, raised to protected + 1 */
        {0.1, 0, 0, 32, 16, 1600, 100, 2, 10, false}, /* 0.1 * 1600 is 160 */
        {0.29, 0, 0, 8, 16, 6400, 400, 1, 116,
         false}, /* 0.29 * 6400 = 1855.9999999999998 in binary */
        {0.07, 0, 0, 8, 16, 6400, 400, 1, 28, false},     /* 448.00000000000006 */
        {0.99999, 0, 0, 32, 16, 1600, 100, 2, 99, false}, /* 1599.984 is not 1600 */
        {1.0, 0, 0, 32, 16, 1600, 100, 2, 100, false},
        {1.0, 0, 0, 32, 16, 1000, 63, 3, 62, false}, /* floor(1000 / 16): pages, not tokens */
        {0.5, 0, 0, 32, 16, 20, 2, 2, 2, true},      /* shorter than the window */
        {0, 128, 16, 32, 16, 1000, 63, 4, 8, false}, /* methods.md section 5: 8 - 1 - 3 = 4 picks */
        {0, 128, 1, 32, 32, 1024, 32, 2, 4, false},  /* a sink token protects its page */
        {0, 128, 0, 8, 32, 1024, 32, 1, 4, false},
        {0, 48, 0, 32, 16, 1000, 63, 3, 4, true}, /* just the protected pages: one more */
        {0, 5000, 0, 32, 16, 1000, 63, 3, 63, false},
        {0.9, 0, 2000, 32, 16, 1000, 63, 63, 63, true}, /* sinks cover everything */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        retention_policy p = retention_find("chunkkv")->defaults;
        p.preset = retention_find("chunkkv");
        p.ratio = cases[i].ratio;
        p.tokens = cases[i].tokens;
        p.sinks = cases[i].sinks;
        p.window = cases[i].window;
        retention_budget b;
        assert_true(
            status_ok(retention_budget_for(&p, cases[i].page_tokens, cases[i].n_prompt, &b, NULL)));
        if (b.pages != cases[i].pages || b.protected_pages != cases[i].protected_pages ||
            b.kept_pages != cases[i].kept_pages || b.raised != cases[i].raised) {
            fail_msg("case %zu: %u pages, %u protected, %u kept, raised %d", i, b.pages,
                     b.protected_pages, b.kept_pages, b.raised);
        }
    }
    /* Every whole percentage of a whole number of hundreds is exact. */
    for (uint32_t percent = 1; percent <= 100; percent++) {
        for (uint32_t hundreds = 16; hundreds < 3200; hundreds += 16) {
            retention_policy p = retention_find("chunkkv")->defaults;
            p.ratio = percent / 100.0;
            p.window = 16;
            retention_budget b;
            assert_true(status_ok(retention_budget_for(&p, 16, hundreds * 100, &b, NULL)));
            uint32_t want = percent * hundreds / 16;
            assert_int_equal(b.kept_pages, want < 2 ? 2 : want);
        }
    }
    retention_policy p = retention_find("chunkkv")->defaults;
    p.tokens = 47;
    retention_budget b;
    error err;
    assert_int_equal(retention_budget_for(&p, 16, 1000, &b, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "retention.tokens is 47: below the 3 protected pages"));
}

/* ---- selection ------------------------------------------------------------------------------- */

enum { STRIDE = 80, LAYERS_MAX = 8, HEADS_MAX = 4, WORDS = 2 };

typedef struct chosen {
    pkv *kv;
    pkv_geometry geometry;
    uint32_t n_prompt, n_pages;
    float values[LAYERS_MAX * HEADS_MAX * STRIDE]; // [measured layers, heads, STRIDE]
    measure_result measures;
    uint64_t keep[LAYERS_MAX * HEADS_MAX * WORDS];
    retention_selection out;
} chosen;

static chosen *begin(const pkv_geometry *geometry, uint32_t n_prompt)
{
    chosen *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->geometry = *geometry;
    c->n_prompt = n_prompt;
    c->n_pages = (n_prompt + geometry->page_tokens - 1) / geometry->page_tokens;
    pkv_options options = {.geometry = *geometry, .n_pages = 4096, .max_seqs = 1};
    uint32_t hit;
    assert_true(status_ok(pkv_create(&options, &c->kv)));
    assert_true(status_ok(pkv_seq_open(c->kv, 0, NULL, 0, 0, n_prompt, &hit)));
    assert_true(status_ok(pkv_seq_append(c->kv, 0, n_prompt)));
    for (size_t i = 0; i < sizeof c->values / sizeof c->values[0]; i++) c->values[i] = NAN;
    c->measures = (measure_result){.values = c->values,
                                   .n_layers = geometry->n_layers,
                                   .n_kv_heads = geometry->n_kv_heads,
                                   .stride = STRIDE};
    c->out = (retention_selection){.keep = c->keep, .words = WORDS};
    return c;
}

static void end(chosen *c)
{
    pkv_destroy(c->kv);
    free(c);
}

static retention_policy policy_of(uint32_t tokens, uint32_t window, uint32_t sinks, uint32_t reuse)
{
    retention_policy p = retention_find("chunkkv")->defaults;
    p.preset = retention_find("chunkkv");
    p.tokens = tokens;
    p.window = window;
    p.sinks = sinks;
    p.reuse_layers = reuse;
    return p;
}

static float *score_at(chosen *c, uint32_t measured_layer, uint32_t head, uint32_t page)
{
    return &c->values[((size_t)measured_layer * c->geometry.n_kv_heads + head) * STRIDE + page];
}

static bool kept(const chosen *c, uint32_t layer, uint32_t head, uint32_t page)
{
    const uint64_t *row = c->keep + (size_t)pkv_group_of(&c->geometry, layer, head) * WORDS;
    return row[page / 64] >> page % 64 & 1;
}

static void ties_go_to_the_first_page(void **state)
{
    (void)state;
    static const pkv_geometry g = {16, 1, 1, 1, 1};
    chosen *c = begin(&g, 10 * 16);
    static const float scores[10] = {1, 3, 3, NAN, -0.0f, 3, 0.0f, -1, 99, 99};
    for (uint32_t i = 0; i < 10; i++) *score_at(c, 0, 0, i) = scores[i];
    /* In the order of choice: 8 and 9 are the window; then 1, 2, 5, 0, 4 (-0 is 0), 6, 7, and
     * NaN last. */
    static const uint32_t order[10] = {8, 9, 1, 2, 5, 0, 4, 6, 7, 3};
    for (uint32_t n = 3; n <= 10; n++) {
        retention_policy p = policy_of(n * 16, 32, 0, 1);
        memset(c->keep, 0, sizeof c->keep);
        assert_true(
            status_ok(retention_select(&p, c->kv, 0, c->n_prompt, &c->measures, &c->out, NULL)));
        assert_int_equal(c->out.pages_dropped, 10 - n);
        for (uint32_t i = 0; i < 10; i++) {
            if (kept(c, 0, 0, order[i]) != (i < n)) fail_msg("%u pages: page %u", n, order[i]);
        }
    }
    end(c);
}

static void heads_are_summed_in_ascending_order(void **state)
{
    (void)state;
    static const pkv_geometry g = {16, 1, 3, 1, 3};
    chosen *c = begin(&g, 4 * 16);
    static const float scores[3][4] = {{1e8f, 0.25f, 0, 0}, {-1e8f, 0.25f, 0, 0}, {1, 0.25f, 0, 0}};
    for (uint32_t h = 0; h < 3; h++) {
        for (uint32_t i = 0; i < 4; i++) *score_at(c, 0, h, i) = scores[h][i];
    }
    /* (1e8 - 1e8) + 1 = 1 beats 0.75; from the other end it would be 0. */
    retention_policy p = policy_of(32, 16, 0, 1);
    assert_true(
        status_ok(retention_select(&p, c->kv, 0, c->n_prompt, &c->measures, &c->out, NULL)));
    assert_int_equal(c->keep[0], 0x9);
    end(c);
}

/* The definition, word for word: sort candidates by (score descending, NaN last, index
 * ascending). */
typedef struct candidate {
    float score;
    uint32_t page;
} candidate;

static int by_score(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (isnan(x->score) != isnan(y->score)) return isnan(x->score) ? 1 : -1;
    if (x->score > y->score) return -1;
    if (x->score < y->score) return 1;
    return x->page < y->page ? -1 : 1;
}

static void compare_with_sorting(chosen *c, const retention_policy *p, uint64_t seed)
{
    retention_budget b;
    uint32_t size = c->geometry.page_tokens;
    assert_true(status_ok(retention_budget_for(p, size, c->n_prompt, &b, NULL)));
    for (uint32_t layer = 0; layer < c->geometry.n_layers; layer++) {
        bool wanted[STRIDE] = {false};
        candidate list[STRIDE];
        uint32_t n = 0, n_wanted = 0, measured = layer / p->reuse_layers;
        for (uint32_t i = 0; i < c->n_pages; i++) {
            bool forced = i * size < p->sinks || (i + 1) * size + p->window > c->n_prompt;
            wanted[i] = forced;
            n_wanted += forced;
            float sum = *score_at(c, measured, 0, i);
            for (uint32_t h = 1; h < c->geometry.n_kv_heads; h++)
                sum += *score_at(c, measured, h, i);
            if (!forced) list[n++] = (candidate){sum, i};
        }
        assert_int_equal(n_wanted, b.protected_pages);
        qsort(list, n, sizeof *list, by_score);
        for (uint32_t i = 0; n_wanted < b.kept_pages; i++, n_wanted++) wanted[list[i].page] = true;
        for (uint32_t h = 0; h < c->geometry.n_kv_heads; h++) {
            for (uint32_t i = 0; i < c->n_pages; i++) {
                if (kept(c, layer, h, i) != wanted[i]) {
                    fail_msg("seed %llu: layer %u, head %u, page %u", (unsigned long long)seed,
                             layer, h, i);
                }
            }
        }
    }
    assert_int_equal(c->out.pages_dropped, (b.pages - b.kept_pages) * pkv_groups(&c->geometry));
}

static void selection_equals_sorting(void **state)
{
    (void)state;
    static const struct {
        pkv_geometry geometry;
        uint32_t reuse[4]; // 0 ends
    } cases[] = {
        {{16, 7, 3, 1, 3}, {1, 2, 3, 7}}, /* 3: a last run of one layer */
        {{16, 7, 4, 2, 2}, {2, 4, 7}},    /* a short last group */
        {{32, 8, 4, 4, 1}, {4, 8}},       /* tables for each head follow one choice */
        {{16, 6, 2, 6, 2}, {6}},
    };
    for (uint64_t seed = 1; seed <= 200; seed++) {
        rng r = rng_seed(seed);
        size_t i = rng_below(&r, 4), k = 0;
        const pkv_geometry *g = &cases[i].geometry;
        while (k < 3 && cases[i].reuse[k + 1] != 0 && rng_below(&r, 2)) k++;
        uint32_t reuse = cases[i].reuse[k];
        chosen *c = begin(g, 1 + rng_below(&r, 75 * 16));
        c->measures.n_layers = (g->n_layers + reuse - 1) / reuse;
        uint32_t levels = 1 + rng_below(&r, 40); /* few levels, many ties */
        for (uint32_t v = 0; v < c->measures.n_layers * g->n_kv_heads; v++) {
            for (uint32_t page = 0; page < c->n_pages; page++) {
                float score = (float)rng_below(&r, levels) * 0.125f;
                if (levels == 40) score = rng_normal(&r);
                if (rng_below(&r, 60) == 0) score = NAN;
                c->values[(size_t)v * STRIDE + page] = score;
            }
        }
        retention_policy p =
            policy_of(0, 1 + rng_below(&r, 70), rng_below(&r, 3) ? 0 : rng_below(&r, 90), reuse);
        p.ratio = (1 + rng_below(&r, 100)) / 100.0;
        assert_true(
            status_ok(retention_select(&p, c->kv, 0, c->n_prompt, &c->measures, &c->out, NULL)));
        compare_with_sorting(c, &p, seed);
        end(c);
    }
}

static void misfits_are_refused(void **state)
{
    (void)state;
    chosen *c = begin(&by_layer, 640);
    retention_policy p = policy_of(320, 32, 0, 2);
    error err;
    /* Measures of seven layers, where every second one was due. */
    assert_int_equal(retention_select(&p, c->kv, 0, 640, &c->measures, &c->out, &err).code,
                     STATUS_INTERNAL);
    c->measures.n_layers = 4;
    assert_true(status_ok(retention_select(&p, c->kv, 0, 640, &c->measures, &c->out, &err)));
    c->measures.stride = 39;
    assert_int_equal(retention_select(&p, c->kv, 0, 640, &c->measures, &c->out, &err).code,
                     STATUS_INTERNAL);
    assert_int_equal(c->out.pages_dropped, 0);
    assert_int_equal(retention_select(&p, c->kv, 0, 640, NULL, &c->out, &err).code,
                     STATUS_INTERNAL);
    assert_int_equal(retention_select(&p, c->kv, 0, 600, &c->measures, &c->out, &err).code,
                     STATUS_INTERNAL);
    p.tokens = 31;
    assert_int_equal(retention_select(&p, c->kv, 0, 640, &c->measures, &c->out, &err).code,
                     STATUS_INVALID);
    /* Where nothing goes, nothing need have been measured. */
    p.tokens = 640;
    assert_true(status_ok(retention_select(&p, c->kv, 0, 640, NULL, &c->out, &err)));
    assert_int_equal(c->out.pages_dropped, 0);
    end(c);
}

/* ---- report ---------------------------------------------------------------------------------- */

static void reports_say_what_stayed(void **state)
{
    (void)state;
    static const pkv_geometry g = {16, 3, 4, 2, 2};
    chosen *c = begin(&g, 70);
    pkv_seq_drop(c->kv, 0, 0, &(uint64_t){0x19});
    pkv_seq_drop(c->kv, 0, 3, &(uint64_t){0x10});
    uint32_t keep[] = {3, 4, 69};
    assert_true(status_ok(pkv_seq_compact(c->kv, 0, 1, keep, 3)));
    strbuf json = {0};
    retention_kept_json(c->kv, 0, &json);
    assert_string_equal(
        json.data, "[{\"layers\": [0, 1], \"heads\": [0, 1], \"ranges\": [[0, 16], [48, 70]]}, "
                   "{\"layers\": [0, 1], \"heads\": [2, 3], \"ranges\": [[3, 5], [69, 70]]}, "
                   "{\"layers\": [2, 2], \"heads\": [0, 1], \"ranges\": [[0, 70]]}, "
                   "{\"layers\": [2, 2], \"heads\": [2, 3], \"ranges\": [[64, 70]]}]");
    /* (38 * 2 + 3 * 2 + 70 + 6) layer-tokens of 2 heads each / (3 layers * 2 head groups) */
    assert_true(fabs(retention_kept_tokens(c->kv, 0) - 158.0 / 6) < 1e-12);

    retention_report report = {.method = "chunkkv",
                               .logical_tokens = 70,
                               .kept_tokens = 38,
                               .pages_dropped = 6,
                               .budget_raised = true,
                               .scoring_ms = 0.25};
    strbuf_clear(&json);
    retention_report_json(&report, &json);
    assert_string_equal(json.data,
                        "{\"method\": \"chunkkv\", \"logical_tokens\": 70, \"kept_tokens\": 38, "
                        "\"pages_dropped\": 6, \"budget_raised\": true, \"scoring_ms\": 0.250}");
    char positions[] = "[{\"ranges\": []}]";
    report.kept_json = positions;
    report.kept_tokens = 158.0 / 6;
    strbuf_clear(&json);
    retention_report_json(&report, &json);
    json_t *parsed = parse_json(json.data);
    assert_int_equal(json_array_size(json_object_get(parsed, "kept")), 1);
    assert_true(fabs(json_real_value(json_object_get(parsed, "kept_tokens")) - 158.0 / 6) < 1e-6);
    json_decref(parsed);
    strbuf_destroy(&json);
    end(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_sound),
        cmocka_unit_test(requests_are_resolved),
        cmocka_unit_test(requests_are_refused_by_name),
        cmocka_unit_test(budgets_follow_the_definition),
        cmocka_unit_test(ties_go_to_the_first_page),
        cmocka_unit_test(heads_are_summed_in_ascending_order),
        cmocka_unit_test(selection_equals_sorting),
        cmocka_unit_test(misfits_are_refused),
        cmocka_unit_test(reports_say_what_stayed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
