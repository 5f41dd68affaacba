/* Retention: the tables of methods and fields, requests and their refusals. */
#include "paged_kv/retention/method.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const pkv_geometry model = {
    .page_tokens = 16, .n_layers = 7, .n_kv_heads = 3, .layers_per_group = 1, .heads_per_group = 1};

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

static retention_policy parsed(const char *text, const pkv_geometry *geometry)
{
    retention_policy policy;
    error err;
    if (!status_ok(parse(text, geometry, &policy, &err))) fail_msg("%s: %s", text, err.text);
    return policy;
}

/* ---- the tables ------------------------------------------------------------------------------ */

static uint32_t default_of(const retention_policy *p, retention_part part)
{
    switch (part) {
    case RETENTION_PART_SCORE: return p->score;
    case RETENTION_PART_UNIT: return p->unit;
    case RETENTION_PART_SCOPE: return p->scope;
    case RETENTION_PART_ALLOCATOR: return p->allocator;
    case RETENTION_PART_SCHEDULE: return p->schedule;
    case RETENTION_PART_VARIANT: return p->variant;
    case RETENTION_PARTS: break;
    }
    return UINT32_MAX;
}

static void tables_are_sound(void **state)
{
    (void)state;
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    assert_string_equal(presets[0].name, "full");
    for (size_t i = 0; i < n; i++) {
        const retention_preset *p = &presets[i];
        assert_ptr_equal(retention_find(p->name), p);
        assert_true(p->summary[0] && p->source[0]);
        for (retention_part part = 0; part < RETENTION_PARTS; part++) {
            assert_true(p->options[part] >> default_of(&p->defaults, part) & 1);
            assert_int_equal(p->options[part] >> retention_part_size(part), 0);
        }
        assert_true(p->defaults.reuse_layers >= 1);
        assert_true(p->defaults.kernel % 2 == 1);
        assert_true(!p->needs_budget || (p->fields & RETENTION_FIELD_BUDGET));
    }
    assert_null(retention_find("no-such-method"));
    for (retention_part part = 0; part < RETENTION_PARTS; part++) {
        assert_true(retention_part_name(part)[0]);
        for (size_t i = 0; i < retention_part_size(part); i++) {
            assert_true(retention_part_option(part, i).name[0]);
            assert_true(retention_part_option(part, i).summary[0]);
        }
    }
}

/* Each row by its name, with only a budget. */
static void every_row_can_be_asked_for(void **state)
{
    (void)state;
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    for (size_t i = 0; i < n; i++) {
        char text[96];
        snprintf(text, sizeof text, "{\"method\":\"%s\"%s}", presets[i].name,
                 presets[i].needs_budget ? ",\"ratio\":0.5" : "");
        retention_policy p = parsed(text, &model);
        assert_ptr_equal(p.preset, &presets[i]);
        assert_int_equal(p.page_tokens, 16);
    }
}

/* ---- docs/retention.md, section 6 ------------------------------------------------------------ */

/* True when the cell begins with this word, or refers to `prefill`. */
static bool says(const char *cell, const char *word)
{
    size_t n = strlen(word);
    return strncmp(cell, "of `prefill`", 12) == 0 ||
           (strncmp(cell, word, n) == 0 && !(cell[n] >= 'a' && cell[n] <= 'z'));
}

static void check_row(const retention_preset *p, char *const cells[9])
{
    bool full = p->defaults.schedule == RETENTION_SCHEDULE_NEVER;
    static const retention_part parts[] = {RETENTION_PART_SCORE, RETENTION_PART_UNIT,
                                           RETENTION_PART_SCOPE, RETENTION_PART_ALLOCATOR,
                                           RETENTION_PART_SCHEDULE};
    for (size_t i = 0; i < 5; i++) {
        bool scope = p->fields & RETENTION_FIELD_PHASES;
        const char *name =
            scope && parts[i] == RETENTION_PART_SCHEDULE
                ? "decode"
                : retention_part_option(parts[i], default_of(&p->defaults, parts[i])).name;
        if (!says(cells[i + 1], name)) fail_msg("%s: %s, not '%s'", p->name, name, cells[i + 1]);
    }
    char sinks[16], window[16];
    snprintf(sinks, sizeof sinks, "%u", p->defaults.sinks);
    snprintf(window, sizeof window, "%u", p->defaults.window);
    if (p->defaults.window == INT32_MAX) snprintf(window, sizeof window, "half");
    if (!full && !says(cells[6], sinks)) fail_msg("%s: sinks %s", p->name, cells[6]);
    if (!full && !says(cells[7], window)) fail_msg("%s: window %s", p->name, cells[7]);
    assert_true(p->defaults.window_half == (strstr(cells[7], "half") != NULL));
    const char *pool = p->defaults.pool == RETENTION_POOL_MAX ? "max 7" : "";
    if (!full && !says(cells[8], pool)) fail_msg("%s: pool %s", p->name, cells[8]);
}

/* "scope-slide, -adaptive, -discontinuous" are three rows. */
static size_t check_line(char *line, const retention_preset *presets, size_t at, size_t n)
{
    char *cells[9], *rest = line + 2;
    for (size_t i = 0; i < 9; i++) {
        cells[i] = rest;
        char *end = strstr(rest, "|");
        assert_non_null(end);
        end[end > rest && end[-1] == ' ' ? -1 : 0] = 0;
        rest = end + 1 + (end[1] == ' ');
    }
    char names[128], *more, prefix[32] = "";
    snprintf(names, sizeof names, "%s", cells[0]);
    for (char *name = strtok_r(names, ", ", &more); name; name = strtok_r(NULL, ", ", &more)) {
        char whole[64];
        snprintf(whole, sizeof whole, "%s%s", name[0] == '-' ? prefix : "", name);
        if (name[0] != '-') snprintf(prefix, sizeof prefix, "%.*s", (int)strcspn(name, "-"), name);
        assert_true(at < n);
        assert_string_equal(whole, presets[at].name);
        check_row(&presets[at++], cells);
    }
    return at;
}

static void the_document_names_exactly_these_rows(void **state)
{
    (void)state;
    FILE *file = fopen("docs/retention.md", "r");
    assert_non_null(file);
    size_t n, at = 0;
    const retention_preset *presets = retention_presets(&n);
    char line[4096];
    bool inside = false;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "## ", 3) == 0) inside = strncmp(line, "## 6. Presets", 13) == 0;
        bool row = inside && line[0] == '|' && line[2] != '-' && strncmp(line, "| preset", 8) != 0;
        if (row) at = check_line(line, presets, at, n);
    }
    fclose(file);
    assert_int_equal(at, n);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void requests_are_resolved(void **state)
{
    (void)state;
    retention_policy p = parsed("{\"method\":\"chunkkv\",\"ratio\":0.25}", &model);
    assert_string_equal(p.preset->name, "chunkkv");
    assert_true(p.ratio == 0.25);
    assert_int_equal(p.tokens, 0);
    assert_int_equal(p.window, 32);
    assert_int_equal(p.sinks, 0);
    assert_int_equal(p.reuse_layers, 1);
    assert_false(p.report_positions || p.pressure);

    p = parsed("{\"method\":\"chunkkv\",\"tokens\":256,\"window\":8,\"sinks\":4,"
               "\"reuse_layers\":2,\"report\":\"positions\",\"score\":\"window\","
               "\"unit\":\"page\",\"scope\":\"layer\",\"allocator\":\"uniform\","
               "\"schedule\":\"prompt\",\"ratio\":null,\"pressure\":true}",
               &model);
    assert_true(p.ratio == 0);
    assert_int_equal(p.tokens, 256);
    assert_int_equal(p.window, 8);
    assert_int_equal(p.sinks, 4);
    assert_int_equal(p.reuse_layers, 2);
    assert_true(p.report_positions && p.pressure);

    p = parsed("{\"method\":\"andpro\",\"tokens\":128,\"chunk\":8,\"variant\":\"code\","
               "\"pool\":{\"kind\":\"avg\",\"kernel\":5}}",
               &model);
    assert_int_equal(p.chunk, 8);
    assert_int_equal(p.variant, RETENTION_VARIANT_CODE);
    assert_int_equal(p.pool, RETENTION_POOL_AVG);
    assert_int_equal(p.kernel, 5);

    /* A row's variant belongs to its own score and points. */
    assert_int_equal(
        parsed("{\"method\":\"andpro\",\"ratio\":0.5,\"unit\":\"page\"}", &model).variant,
        RETENTION_VARIANT_CODE);
    assert_int_equal(
        parsed("{\"method\":\"andpro\",\"ratio\":0.5,\"score\":\"window\"}", &model).variant,
        RETENTION_VARIANT_PLAIN);
    assert_int_equal(
        parsed("{\"method\":\"andpro\",\"ratio\":0.5,\"schedule\":\"decode\"}", &model).variant,
        RETENTION_VARIANT_PLAIN);

    /* A given budget overrides the row's own. */
    p = parsed("{\"method\":\"tova-recurrent\",\"ratio\":0.5,\"recurrent_chunk\":64}", &model);
    assert_true(p.ratio == 0.5 && p.tokens == 0 && p.contiguous);
    assert_int_equal(p.recurrent_chunk, 64);

    p = parsed("{\"method\":\"adakv\",\"ratio\":0.5,\"allocator\":\"pyramid-adaptive\",\"rows\":20,"
               "\"beta\":2.5,\"floor\":0.5,\"positions\":\"original\"}",
               &model);
    assert_int_equal(p.rows, 20);
    assert_float_equal(p.beta, 2.5, 0);
    assert_float_equal(p.floor, 0.5, 0);
    p = parsed("{\"method\":\"streaming\",\"tokens\":40,\"positions\":\"cache\"}", &model);
    assert_true(p.contiguous);

    /* kvpress pools by default. */
    p = parsed("{\"method\":\"chunkkv\",\"ratio\":0.5,\"unit\":\"chunk\",\"variant\":\"mean\"}",
               &model);
    assert_true(p.pool == RETENTION_POOL_AVG && p.kernel == 5 && p.chunk == 10);
    p = parsed("{\"method\":\"chunkkv\",\"ratio\":0.5,\"unit\":\"chunk\",\"variant\":\"mean\","
               "\"pool\":{\"kind\":\"none\"}}",
               &model);
    assert_int_equal(p.pool, RETENTION_POOL_NONE);

    /* A given score applies at all points. */
    p = parsed("{\"method\":\"pyramidinfer\",\"ratio\":0.5}", &model);
    assert_int_equal(p.decode_score, RETENTION_SCORE_LAST);
    p = parsed("{\"method\":\"pyramidinfer\",\"ratio\":0.5,\"score\":\"accumulated\"}", &model);
    assert_int_equal(p.decode_score, RETENTION_SCORE_NONE);

    static const char *const whole[] = {"null", "{\"method\":\"full\"}",
                                        "{\"method\":\"full\",\"report\":\"counts\"}",
                                        "{\"method\":\"full\",\"pressure\":true}"};
    for (size_t i = 0; i < 4; i++) {
        p = parsed(whole[i], &model);
        assert_string_equal(p.preset->name, "full");
        assert_int_equal(retention_next_point(&p, 100, 0), UINT32_MAX);
    }
    retention_limits limits = {.geometry = model, .max_window = 512};
    assert_true(status_ok(retention_parse(NULL, &limits, &p, NULL)));
    assert_string_equal(p.preset->name, "full");
}

static void scope_has_two_policies(void **state)
{
    (void)state;
    retention_policy p =
        parsed("{\"method\":\"scope-adaptive\",\"report\":\"positions\",\"pressure\":true,"
               "\"prefill\":{\"method\":\"snapkv\",\"tokens\":2048,\"window\":8},"
               "\"decode\":{\"beta1\":100,\"beta2\":50,\"horizon\":1000}}",
               &model);
    assert_string_equal(p.preset->name, "scope-adaptive");
    assert_true(p.report_positions && p.pressure);
    assert_true(p.score == RETENTION_SCORE_WINDOW && p.unit == RETENTION_UNIT_TOKEN);
    assert_true(p.tokens == 2048 && p.window == 8 && p.pool == RETENTION_POOL_MAX);
    assert_int_equal(p.schedule, RETENTION_SCHEDULE_PROMPT);
    assert_int_equal(p.growth, RETENTION_GROWTH_ADAPTIVE);
    assert_true(p.beta1 == 100 && p.beta2 == 50 && p.horizon == 1000);
    assert_int_equal(p.decode_score, RETENTION_SCORE_LAST);
    assert_int_equal(p.decode_scope, RETENTION_SCOPE_HEAD);

    /* Fields of `prefill` that would select while generating are ignored. */
    p = parsed("{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"h2o\",\"ratio\":0.6}}",
               &model);
    assert_int_equal(p.schedule, RETENTION_SCHEDULE_PROMPT);
    assert_int_equal(p.score, RETENTION_SCORE_ACCUMULATED);
    assert_true(p.beta1 == 256 && p.beta2 == 256 && p.horizon == 0);

    /* Without a budget the prompt keeps the paper's 2,048 tokens, with the scope of the answer. */
    p = parsed("{\"method\":\"scope-slide\",\"decode\":{\"scope\":\"layer\"}}", &model);
    assert_int_equal(p.schedule, RETENTION_SCHEDULE_PROMPT);
    assert_int_equal(p.score, RETENTION_SCORE_ACCUMULATED);
    assert_true(p.tokens == 2048 && p.window == 8 && p.unit == RETENTION_UNIT_TOKEN);
    assert_true(p.scope == RETENTION_SCOPE_LAYER && p.decode_scope == RETENTION_SCOPE_LAYER);
    assert_int_equal(retention_next_point(&p, 2048, 0), 2048 + 513); /* everything fits */
    assert_int_equal(retention_next_point(&p, 2049, 0), 2049);
    assert_int_equal(p.reuse_layers, 1);
    p = parsed("{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"full\"},\"decode\":"
               "{\"score\":\"keydiff\"}}",
               &model);
    assert_int_equal(p.schedule, RETENTION_SCHEDULE_NEVER);
    assert_int_equal(p.decode_score, RETENTION_SCORE_KEYDIFF);
}

static void requests_are_refused_by_name(void **state)
{
    (void)state;
    static const pkv_geometry windows = {.page_tokens = 16,
                                         .n_layers = 4,
                                         .n_kv_heads = 4,
                                         .layers_per_group = 1,
                                         .heads_per_group = 1,
                                         .window = 40,
                                         .window_layers = {0x3}};
    static const struct {
        const pkv_geometry *geometry;
        const char *text;
        const char *says;
    } cases[] = {
        {&windows, "{\"method\":\"chunkkv\",\"ratio\":0.1,\"reuse_layers\":5}",
         "retention.reuse_layers is 5: the model has 4 layers"},
        {&windows, "{\"method\":\"h2o-recurrent\"}",
         "retention.method 'h2o-recurrent' gives kept tokens positions anew"},
        {&model, "3", "retention: must be an object"},
        {&model, "[]", "retention: must be an object"},
        {&model, "{}", "retention.method: must be given"},
        {&model, "{\"method\":7}", "retention: \"method\" must be a string"},
        {&model, "{\"method\":\"magic\"}",
         "retention.method: 'magic' is unknown (have: full, truncate,"},
        {&model, "{\"method\":\"chunkkv\"}",
         "retention.ratio or retention.tokens: method 'chunkkv' needs"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.1,\"tokens\":5}", "only one of them"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0}", "retention.ratio is 0"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":-0.5}", "\"ratio\" is -0.5"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":1.01}", "\"ratio\" is 1.01"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":\"half\"}", "\"ratio\" must be a number"},
        {&model, "{\"method\":\"chunkkv\",\"tokens\":0}", "\"tokens\" is 0"},
        {&model, "{\"method\":\"chunkkv\",\"tokens\":1.5}", "\"tokens\" must be an integer"},
        {&model, "{\"method\":\"chunkkv\",\"tokens\":99999999999}", "\"tokens\" is 99999999999"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"colour\":1}",
         "retention.colour: unknown key"},
        {&model, "{\"method\":\"full\",\"ratio\":0.5}",
         "retention.ratio is not available for method 'full'"},
        {&model, "{\"method\":\"full\",\"unit\":\"page\"}",
         "retention.unit is not available for method 'full'"},
        {&model, "{\"method\":\"full\",\"window\":4}",
         "retention.window is not available for method 'full'"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"chunk\":10}",
         "retention.chunk: needs unit 'chunk'"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"unit\":\"chunk\",\"chunk\":0}",
         "\"chunk\" is 0"},
        {&model, "{\"method\":\"chunkkv\",\"tokens\":40,\"unit\":\"chunk\",\"chunk\":41}",
         "retention.chunk is 41: more than the budget of 40 tokens"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"rows\":0}", "\"rows\" is 0"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"rows\":513}",
         "retention.rows is 513: more than the prefill chunk of 512 tokens"},
        {&model, "{\"method\":\"tova\",\"ratio\":0.5,\"rows\":4}",
         "retention.rows: needs a score of the last rows"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"beta\":4}",
         "retention.beta: needs allocator 'pyramid'"},
        {&model, "{\"method\":\"pyramidkv\",\"ratio\":0.5,\"beta\":0.5}", "\"beta\" is 0.5"},
        {&model, "{\"method\":\"pyramidkv\",\"ratio\":0.5,\"beta\":1e300}", "\"beta\" is 1e+300"},
        {&model, "{\"method\":\"pyramidkv\",\"ratio\":0.5,\"floor\":0.1}",
         "retention.floor: needs allocator 'adaptive'"},
        {&model, "{\"method\":\"adakv\",\"ratio\":0.5,\"floor\":1.5}", "\"floor\" is 1.5"},
        {&model, "{\"method\":\"adakv\",\"ratio\":0.5,\"floor\":\"much\"}",
         "\"floor\" must be a number"},
        {&model,
         "{\"method\":\"adakv\",\"ratio\":0.5,\"allocator\":\"pyramid-adaptive\","
         "\"scope\":\"layer\"}",
         "retention.scope: 'layer' does not go with allocator 'pyramid-adaptive' (have: head)"},
        {&model, "{\"method\":\"streaming\",\"ratio\":0.5,\"positions\":\"mine\"}",
         "retention.positions: 'mine' must be 'original' or 'cache'"},
        {&model, "{\"method\":\"streaming\",\"ratio\":0.5,\"positions\":3}",
         "\"positions\" must be a string"},
        {&model,
         "{\"method\":\"snapkv\",\"ratio\":0.5,\"positions\":\"cache\",\"allocator\":"
         "\"pyramid\"}",
         "retention.allocator: 'pyramid' does not go with positions 'cache' (have: uniform)"},
        {&model,
         "{\"method\":\"chunkkv\",\"ratio\":0.5,\"positions\":\"cache\",\"unit\":"
         "\"chunk\"}",
         "retention.unit: 'chunk' does not go with positions 'cache' (have: page, token)"},
        {&windows, "{\"method\":\"streaming\",\"ratio\":0.5,\"positions\":\"cache\"}",
         "retention.method 'streaming' gives kept tokens positions anew"},
        {&model, "{\"method\":\"scope-slide\",\"decode\":{\"score\":\"accumulated\"}}",
         "retention.decode.score: 'accumulated' is not available for method 'scope-slide'"},
        {&model, "{\"method\":\"scope-slide\",\"decode\":{\"score\":1}}",
         "\"score\" must be a string"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"pool\":7}",
         "retention.pool: must be an object"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"pool\":{}}",
         "retention.pool.kind: must be given"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"pool\":{\"kind\":\"min\"}}",
         "retention.pool.kind: 'min' is unknown (have: none, max, avg)"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"pool\":{\"kind\":\"max\",\"kernel\":4}}",
         "retention.pool.kernel is 4: must be odd"},
        {&model,
         "{\"method\":\"chunkkv\",\"ratio\":0.5,\"pool\":{\"kind\":\"max\",\"kernel\":257}}",
         "\"kernel\" is 257"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"pool\":{\"kind\":\"max\",\"size\":3}}",
         "retention.pool.size: unknown key"},
        {&model, "{\"method\":\"streaming\",\"ratio\":0.5,\"pool\":{\"kind\":\"max\"}}",
         "retention.pool: needs a score that is measured"},
        {&model, "{\"method\":\"snapkv\",\"ratio\":0.5,\"bias\":1}",
         "retention.bias: needs score 'projection'"},
        {&model, "{\"method\":\"andpro\",\"ratio\":0.5,\"score\":\"window\",\"theta\":2}",
         "retention.theta: needs score 'projection'"},
        {&model, "{\"method\":\"andpro\",\"ratio\":0.5,\"theta\":0}", "\"theta\" is 0"},
        {&model, "{\"method\":\"andpro\",\"ratio\":0.5,\"bias\":1e7}", "\"bias\" is 1e+07"},
        {&model, "{\"method\":\"andpro\",\"ratio\":0.5,\"bias\":\"much\"}", "\"bias\""},
        {&model, "{\"method\":\"truncate\",\"ratio\":0.5,\"schedule\":\"prompt\"}",
         "retention.schedule is not available for method 'truncate'"},
        {&model, "{\"method\":\"truncate\",\"ratio\":0.5,\"window\":4}",
         "retention.window is not available for method 'truncate'"},
        {&model, "{\"method\":\"truncate\",\"tokens\":5,\"sinks\":6}",
         "retention.tokens is 5: below the 6 protected tokens (sinks 6, window 0)"},
        {&model, "{\"method\":\"snapkv\",\"ratio\":0.5,\"schedule\":\"input\"}",
         "retention.schedule: 'input' is not available for method 'snapkv' (have: prompt, chunk, "
         "decode)"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"variant\":\"alg1\"}",
         "retention.score: 'window' does not go with variant 'alg1' (have: projection)"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"variant\":\"odd\"}",
         "retention.variant: 'odd' is not available for method 'chunkkv' (have: plain, raw, mean, "
         "alg1, code, alg3)"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"variant\":\"mean\",\"unit\":\"token\"}",
         "retention.unit: 'token' does not go with variant 'mean' (have: page, chunk)"},
        {&model,
         "{\"method\":\"chunkkv\",\"ratio\":0.5,\"variant\":\"raw\",\"schedule\":\"decode\"}",
         "retention.schedule: 'decode' does not go with variant 'raw' (have: prompt)"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"variant\":\"mean\",\"scope\":\"head\"}",
         "retention.scope: 'head' does not go with variant 'mean'"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"interval\":4}",
         "retention.interval: needs schedule 'decode'"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"schedule\":\"decode\",\"interval\":0}",
         "\"interval\" is 0"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"recurrent_chunk\":4}",
         "retention.recurrent_chunk: needs schedule 'chunk'"},
        {&model,
         "{\"method\":\"chunkkv\",\"ratio\":0.5,\"schedule\":\"chunk\",\"recurrent_chunk\":0}",
         "\"recurrent_chunk\" is 0"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"pressure\":3}", "\"pressure\" must be"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"prefill\":{}}",
         "retention.prefill is not available for method 'chunkkv'"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"decode\":{}}",
         "retention.decode is not available for method 'chunkkv'"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"unit\":\"block\"}",
         "retention.unit: 'block' is not available for method 'chunkkv' (have: page, chunk, "
         "token)"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"score\":\"none\"}",
         "retention.score: 'none' is not available for method 'chunkkv' (have: "},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"schedule\":\"never\"}",
         "(have: prompt, chunk, decode)"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"schedule\":3}",
         "\"schedule\" must be a string"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"allocator\":\"adaptive\"}",
         "retention.scope: 'layer' does not go with allocator 'adaptive' (have: head)"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"allocator\":\"hybrid\"}",
         "retention.unit: 'page' does not go with allocator 'hybrid' (have: chunk)"},
        {&model,
         "{\"method\":\"chunkkv\",\"ratio\":0.5,\"allocator\":\"hybrid\",\"unit\":\"chunk\","
         "\"score\":\"last\"}",
         "retention.allocator: 'hybrid' does not go with score 'last' (have: uniform, pyramid, "
         "adaptive, pyramid-adaptive)"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"score\":\"critical\"}",
         "retention.unit: 'page' does not go with score 'critical' (have: token)"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"score\":\"recency\",\"unit\":\"chunk\"}",
         "retention.unit: 'chunk' does not go with score 'recency' (have: page, token)"},
        {&model, "{\"method\":\"criticalkv\",\"ratio\":0.5,\"schedule\":\"decode\"}",
         "retention.schedule: 'decode' does not go with score 'critical' (have: prompt, chunk)"},
        {&model, "{\"method\":\"h2o-recurrent\",\"allocator\":\"pyramid\"}",
         "retention.allocator: 'pyramid' is not available for method 'h2o-recurrent' (have: "
         "uniform)"},
        {&model, "{\"method\":\"h2o-recurrent\",\"unit\":\"chunk\"}",
         "retention.unit: 'chunk' is not available for method 'h2o-recurrent' (have: page, token)"},
        {&model, "{\"method\":\"h2o-recurrent\",\"schedule\":\"prompt\"}", "(have: chunk)"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"report\":\"all\"}",
         "retention.report: 'all'"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"window\":0}",
         "retention.window is 0: score 'window' measures its rows"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"window\":513}",
         "retention.window is 513: more than the prefill chunk of 512"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"window\":2147483647}",
         "retention.window is 2147483647: more than the prefill chunk of 512"},
        {&model, "{\"method\":\"h2o\",\"ratio\":0.5,\"score\":\"window\"}",
         "retention.window is half of the budget: score 'window' measures its rows"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"sinks\":-1}", "\"sinks\" is -1"},
        {&model, "{\"method\":\"chunkkv\",\"tokens\":31}",
         "retention.tokens is 31: below the 2 protected pages"},
        {&model, "{\"method\":\"snapkv\",\"tokens\":33,\"sinks\":2}",
         "retention.tokens is 33: below the 34 protected tokens (sinks 2, window 32)"},
        {&model, "{\"method\":\"streaming-recurrent\",\"tokens\":511}",
         "retention.tokens is 511: below the 512 protected tokens"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"reuse_layers\":0}",
         "\"reuse_layers\" is 0"},
        {&model, "{\"method\":\"chunkkv\",\"ratio\":0.5,\"reuse_layers\":8}",
         "retention.reuse_layers is 8: the model has 7 layers"},
        {&model, "{\"method\":\"scope-slide\",\"ratio\":0.5}",
         "retention.ratio is not available for method 'scope-slide': it goes into "
         "retention.prefill"},
        {&model, "{\"method\":\"scope-slide\",\"prefill\":{}}",
         "retention.prefill.method: must be given"},
        {&model, "{\"method\":\"scope-slide\",\"prefill\":[]}",
         "retention.prefill: must be an object"},
        {&model, "{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"snapkv\"}}",
         "retention.prefill.ratio or retention.prefill.tokens: method 'snapkv' needs"},
        {&model,
         "{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"snapkv\",\"ratio\":0.5,\"report\":"
         "\"counts\"}}",
         "retention.prefill.report: unknown key"},
        {&model,
         "{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"snapkv\",\"ratio\":0.5,\"window\":"
         "600}}",
         "retention.prefill.window is 600"},
        {&model, "{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"scope-slide\"}}",
         "retention.prefill.method: 'scope-slide' cannot be the prefill of 'scope-slide'"},
        {&model, "{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"tova-recurrent\"}}",
         "retention.prefill.method: 'tova-recurrent' cannot be the prefill"},
        {&model,
         "{\"method\":\"scope-slide\",\"prefill\":{\"method\":\"snapkv\",\"ratio\":0.5},\"decode\":"
         "{\"scope\":\"layer\"}}",
         "retention.decode.scope: 'layer' cannot follow a prefill whose heads"},
        {&model, "{\"method\":\"scope-slide\",\"decode\":3}",
         "retention.decode: must be an object"},
        {&model, "{\"method\":\"scope-slide\",\"decode\":{\"beta3\":1}}",
         "retention.decode.beta3: unknown key (have: beta1, beta2, horizon, scope, score)"},
        {&model, "{\"method\":\"scope-slide\",\"decode\":{\"beta1\":0}}", "\"beta1\" is 0"},
        {&model, "{\"method\":\"scope-slide\",\"decode\":{\"beta2\":9,\"horizon\":9}}",
         "retention.decode.horizon is 9: must be above beta2, which is 9"},
        {&model, "{\"method\":\"scope-slide\",\"decode\":{\"scope\":\"page\"}}",
         "retention.decode.scope: 'page'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error err = {""};
        retention_policy p = {.window = 77};
        status s = parse(cases[i].text, cases[i].geometry, &p, &err);
        if (s.code != STATUS_INVALID) fail_msg("taken: %s", cases[i].text);
        if (!strstr(err.text, cases[i].says)) fail_msg("%s: %s", cases[i].text, err.text);
        assert_int_equal(p.window, 77); /* a refusal changes nothing */
    }
    /* The rows that a preset fixes have to fit too. */
    retention_policy p;
    retention_limits limits = {.geometry = model, .max_window = 255};
    json_t *json = parse_json("{\"method\":\"expected-attention\",\"ratio\":0.5}");
    error err;
    assert_int_equal(retention_parse(json, &limits, &p, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "retention.rows is 256: more than the prefill chunk of 255"));
    json_decref(json);
}

/* ---- report ---------------------------------------------------------------------------------- */

/* An allocator of JSON values that has no memory. */
static void *no_memory(size_t n)
{
    (void)n;
    return NULL;
}

/* The three forms of a command line, and texts that are none of them. */
static void command_lines_name_a_policy(void **state)
{
    (void)state;
    static const char *const forms[][2] = {
        {"chunkkv:0.25", "{\"method\":\"chunkkv\",\"ratio\":0.25}"},
        {"full", "{\"method\":\"full\"}"},
        {"{\"method\":\"h2o\",\"tokens\":64}", "{\"method\":\"h2o\",\"tokens\":64}"},
    };
    static const char *const refused[] = {"",
                                          "chunkkv",
                                          "full:",
                                          "fuller",
                                          "chunkkv:0",
                                          ":0.5",
                                          "chunkkv:0x1p-1",
                                          "chunkkv: 0.5",
                                          "chunkkv:0.5 ",
                                          "chunkkv:nan",
                                          "chunkkv:inf",
                                          "chunkkv:0,5"};
    error err;
    json_t *json;
    retention_policy policy;
    const retention_limits limits = {.geometry = model, .max_window = 512};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        assert_true(status_ok(retention_read_text("--retention", forms[i][0], &json, &err)));
        json_t *wanted = parse_json(forms[i][1]);
        assert_true(json_equal(json, wanted));
        assert_true(status_ok(retention_parse(json, &limits, &policy, &err)));
        json_decref(wanted);
        json_decref(json);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_int_equal(retention_read_text("--retention", refused[i], &json, &err).code,
                         STATUS_INVALID);
        assert_non_null(strstr(err.text, "METHOD:RATIO"));
    }
    assert_int_equal(retention_read_text("r", "\xff:0.5", &json, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "r: is not UTF-8");
    static const char *const words[] = {"full", "chunkkv:0.25"};
    json_set_alloc_funcs(no_memory, free);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(retention_read_text("r", words[i], &json, &err).code, STATUS_NO_MEMORY);
        assert_string_equal(err.text, "r: out of memory");
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_sound),
        cmocka_unit_test(every_row_can_be_asked_for),
        cmocka_unit_test(the_document_names_exactly_these_rows),
        cmocka_unit_test(requests_are_resolved),
        cmocka_unit_test(scope_has_two_policies),
        cmocka_unit_test(requests_are_refused_by_name),
        cmocka_unit_test(command_lines_name_a_policy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
