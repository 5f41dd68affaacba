/* Methods times budgets, users' files, findings about kept sets, and drawings. */
#include "quality/methods.h"
#include "quality/report/chart.h"
#include "quality/report/report.h"
#include "quality/report/svg.h"
#include "quality/score/findings.h"
#include "quality/tasks/sources.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- methods --------------------------------------------------------------------------------- */

static void products(void **state)
{
    (void)state;
    const char *methods[] = {"chunkkv",
                             "full",
                             "chunkkv={\"window\":16}",
                             "own={\"method\":\"chunkkv\",\"tokens\":99}",
                             "rag-bm25",
                             "chunkkv:0.25"};
    variant_list v;
    error err = {{0}};
    if (!status_ok(variants_create(methods, 6, "0.05,512", &v, &err))) fail_msg("%s", err.text);
    assert_int_equal(v.n, 1 + 2 + 2 + 1 + 2 + 1); /* full once */
    assert_string_equal(v.items[0].method, "full");
    assert_string_equal(v.items[0].budget, "-");
    assert_float_equal(json_number_value(json_object_get(v.items[1].retention, "ratio")), 0.05, 0);
    assert_int_equal(json_integer_value(json_object_get(v.items[2].retention, "tokens")), 512);
    assert_int_equal(json_integer_value(json_object_get(v.items[3].retention, "window")), 16);
    assert_float_equal(json_number_value(json_object_get(v.items[3].retention, "ratio")), 0.05, 0);
    assert_int_equal(json_integer_value(json_object_get(v.items[5].retention, "tokens")), 99);
    assert_string_equal(v.items[5].budget, "-");
    assert_int_equal(v.items[1].label_chars, strlen("chunkkv"));
    assert_int_equal(v.items[3].label_chars, strlen(methods[2])); /* differs from the first one's */
    assert_int_equal(v.items[5].label_chars, strlen("own"));
    assert_true(v.items[6].rag && !v.items[6].retention);
    assert_int_equal(variant_budget(&v.items[6], 1000), 50);
    assert_int_equal(variant_budget(&v.items[7], 1000), 512);
    assert_string_equal(v.items[8].budget, "-");
    assert_int_equal(v.items[8].label_chars, strlen("chunkkv:0.25"));
    assert_float_equal(json_number_value(json_object_get(v.items[8].retention, "ratio")), 0.25, 0);
    variants_destroy(&v);
}

/* Without a list: every preset. */
static void all_presets(void **state)
{
    (void)state;
    size_t n, with_budget = 0;
    const retention_preset *presets = retention_presets(&n);
    for (size_t i = 0; i < n; i++) with_budget += (presets[i].fields & RETENTION_FIELD_BUDGET) != 0;
    variant_list v;
    error err = {{0}};
    assert_true(status_ok(variants_create(NULL, 0, "0.1,0.2,0.3", &v, &err)));
    assert_int_equal(v.n, n + 2 * with_budget);
    variants_destroy(&v);
}

static void bad_methods(void **state)
{
    (void)state;
    static const struct {
        const char *method, *budgets, *says;
    } bad[] = {
        {"nonesuch", "0.1", "nonesuch"},        {"chunkkv={", "0.1", "--method"},
        {"chunkkv=[1]", "0.1", "object"},       {"chunkkv", "1.5", "--budgets"},
        {"chunkkv", "0", "--budgets"},          {"chunkkv", "0.1,,0.2", "--budgets"},
        {"chunkkv", "0x1p-1", "--budgets"},     {"chunkkv", " 0.1", "--budgets"},
        {"chunkkv", "inf", "--budgets"},        {"chunkkv", "x", "--budgets"},
        {"x={\"method\":3}", "0.1", "unknown"}, {"chunkkv:2", "0.1", "(0, 1]"},
        {"nonesuch:0.1", "0.1", "nonesuch"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        variant_list v;
        error err = {{0}};
        status st = variants_create(&bad[i].method, 1, bad[i].budgets, &v, &err);
        assert_false(status_ok(st));
        if (!strstr(err.text, bad[i].says)) fail_msg("'%s' lacks '%s'", err.text, bad[i].says);
    }
}

/* ---- users' files ---------------------------------------------------------------------------- */

static char path[64];

static const char *write_lines(const char *lines, const char *shape)
{
    static char spec[128];
    snprintf(path, sizeof path, "%s/octavo-data-XXXXXX", P_tmpdir);
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    fputs(lines, f);
    fclose(f);
    snprintf(spec, sizeof spec, "%s:%s", path, shape);
    return spec;
}

static status load(const char *spec, source_list *out, error *err)
{
    quality_options o = {
        .lengths = "1024", .max_tokens = 4096, .data = &spec, .n_data = 1, .samples = 10};
    return sources_create(&o, out, err);
}

static void longbench_lines(void **state)
{
    (void)state;
    source_list s;
    error err = {{0}};
    const char *spec =
        write_lines("{\"context\":\"Some text.\",\"input\":\"Who?\",\"answers\":[\"Ann\",\"Bo\"],"
                    "\"dataset\":\"hotpotqa\",\"all_classes\":null}\n\n"
                    "{\"context\":\"T\",\"input\":\"Q\",\"answers\":[\"Big\"],\"dataset\":\"trec\","
                    "\"all_classes\":[\"Big\",\"Small\"],\"template\":\"<{context}|{input}>\"}\n",
                    "longbench");
    if (!status_ok(load(spec, &s, &err))) fail_msg("%s", err.text);
    unlink(path);
    assert_int_equal(s.n, 2);
    assert_string_equal(s.items[0].name, "hotpotqa");
    assert_int_equal(s.items[0].scorer, SCORER_F1);
    assert_int_equal(s.items[0].documents[0].questions[0].references.n, 2);
    const document *d = &s.items[1].documents[0];
    assert_int_equal(s.items[1].scorer, SCORER_FIRST_LINE_CLASS);
    assert_int_equal(d->classes.n, 2);
    assert_string_equal(d->text.data, "<T");
    assert_string_equal(d->questions[0].text, "|Q>");
    sources_destroy(&s);
}

static void gsm8k_lines(void **state)
{
    (void)state;
    strbuf lines = {0};
    for (int i = 0; i < 10; i++)
        strbuf_printf(&lines, "{\"question\":\"q%d\",\"answer\":\"work %d\\n#### %d\"}\n", i, i, i);
    source_list s;
    error err = {{0}};
    const char *spec = write_lines(lines.data, "gsm8k");
    if (!status_ok(load(spec, &s, &err))) fail_msg("%s", err.text);
    unlink(path);
    strbuf_destroy(&lines);
    const document *d = &s.items[0].documents[0];
    assert_int_equal(d->n_questions, 2); /* the first eight are examples */
    assert_string_equal(d->questions[1].references.items[0], "9");
    assert_non_null(strstr(d->text.data, "Question: q7\nAnswer: work 7\nThe answer is 7."));
    assert_null(strstr(d->text.data, "q8"));
    sources_destroy(&s);
}

static void infinitebench_lines(void **state)
{
    (void)state;
    source_list s;
    error err = {{0}};
    const char *spec =
        write_lines("{\"dataset\":\"longbook_choice_eng\",\"context\":\"c\",\"input\":\"Which?\","
                    "\"answer\":[\"the sea\"],\"options\":[\"the hill\",\"the sea\"]}\n",
                    "infinitebench");
    if (!status_ok(load(spec, &s, &err))) fail_msg("%s", err.text);
    unlink(path);
    const question *q = &s.items[0].documents[0].questions[0];
    assert_int_equal(q->references.n, 2);
    assert_string_equal(q->references.items[1], "B");
    assert_non_null(strstr(q->text, "B. the sea\nAnswer:"));
    sources_destroy(&s);
}

static void bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *lines, *shape, *says;
    } bad[] = {
        {"{\"dataset\":\"nonesuch\"}\n", "longbench", "nonesuch"},
        {"{\"dataset\":\"qasper\"}\n", "longbench", "answers"},
        {"[1]\n", "longbench", "object"},
        {"{\n", "longbench", "line 1"},
        {"{\"question\":\"q\",\"answer\":\"1\"}\n", "gsm8k", "fewer"},
        {"{}\n", "nonesuch", "FILE:SHAPE"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        source_list s;
        error err = {{0}};
        status st = load(write_lines(bad[i].lines, bad[i].shape), &s, &err);
        unlink(path);
        assert_false(status_ok(st));
        if (!strstr(err.text, bad[i].says)) fail_msg("'%s' lacks '%s'", err.text, bad[i].says);
    }
}

/* ---- findings -------------------------------------------------------------------------------- */

static void kept_sets(void **state)
{
    (void)state;
    /* Two layers, two heads; head 0 agrees by half (8 of 24), head 1 wholly. */
    static const char kept[] = "[{\"layers\":[0,0],\"heads\":[0,0],\"ranges\":[[0,16],[90,200]]},"
                               "{\"layers\":[0,0],\"heads\":[1,1],\"ranges\":[[0,4],[10,12]]},"
                               "{\"layers\":[1,1],\"heads\":[0,0],\"ranges\":[[8,24],[90,91]]},"
                               "{\"layers\":[1,1],\"heads\":[1,1],\"ranges\":[[0,4],[10,12]]}]";
    bool needle[90] = {false};
    needle[2] = needle[3] = needle[10] = true;
    findings f;
    error err = {{0}};
    /* 90 tokens of prompt: generated tokens do not count. */
    bool forced[90] = {false};
    forced[2] = forced[10] = true;
    for (int i = 16; i < 24; i++) forced[i] = true;
    if (!status_ok(findings_of_kept(kept, 90, needle, forced, &f, &err))) fail_msg("%s", err.text);
    assert_int_equal(f.n_layers, 2);
    assert_float_equal(f.jaccard[1], (8.0 / 24 + 1) / 2, 1e-6);
    assert_float_equal(f.jaccard[2], f.jaccard[1], 0);
    assert_float_equal(f.jaccard[0], 1, 0);
    /* Head 0: 9 to 15 without 10 and 8 of 14; head 1 all of them. */
    assert_float_equal(f.unforced[1], (7.0 / 14 + 1) / 2, 1e-6);
    assert_float_equal(f.needle_whole[0], 1, 0); /* both heads */
    assert_float_equal(f.needle_whole[1], 0.5, 0);
    assert_float_equal(f.needle_share[1], (1.0 / 3 + 1) / 2, 1e-6);

    /* Writes the finding as a line and reads it back. */
    strbuf line = {0};
    json_t *json;
    findings again;
    f.n_compared = 3;
    f.n_agreed = 2;
    f.divergence = 0.25f;
    findings_write(&f, &line);
    assert_true(status_ok(json_read_text("line", line.data, line.size, &json, &err)));
    assert_true(findings_read(json, &again));
    assert_int_equal(again.n_layers, 2);
    assert_float_equal(again.jaccard[1], f.jaccard[1], 1e-3);
    assert_float_equal(again.unforced[1], f.unforced[1], 1e-3);
    assert_float_equal(again.needle_share[1], f.needle_share[1], 1e-3);
    assert_int_equal(again.n_agreed, 2);
    assert_float_equal(again.divergence, 0.25, 1e-6);
    findings_destroy(&again);
    findings_destroy(&f);
    json_decref(json);
    strbuf_destroy(&line);

    /* Where all kept tokens were forced, layers have no agreement. */
    memset(forced, true, sizeof forced);
    assert_true(status_ok(findings_of_kept(kept, 90, NULL, forced, &f, &err)));
    assert_true(isnan(f.unforced[1]));
    assert_float_equal(f.jaccard[0], 1, 0);
    findings_destroy(&f);

    /* No prompt token is left in either layer: the layers are equal, and selected nothing. */
    static const char gone[] = "[{\"layers\":[0,0],\"heads\":[0,0],\"ranges\":[[90,99]]},"
                               "{\"layers\":[1,1],\"heads\":[0,0],\"ranges\":[[90,99]]}]";
    if (!status_ok(findings_of_kept(gone, 90, NULL, forced, &f, &err))) fail_msg("%s", err.text);
    assert_float_equal(f.jaccard[1], 1, 0);
    assert_true(isnan(f.unforced[1]));
    findings_destroy(&f);

    assert_false(status_ok(findings_of_kept("[]", 90, NULL, forced, &f, &err)));
    assert_false(status_ok(findings_of_kept("[{\"layers\":[1,0]}]", 90, NULL, forced, &f, &err)));
}

/* Layers 0 and 1 keep only forced tokens in common; 1 and 2, and 2 and 3, keep others. */
static void means_of_measures(void **state)
{
    (void)state;
    float ones[16], unforced[2][16], needle[4] = {NAN, NAN, NAN, NAN};
    record items[2] = {{0}, {.question = 1}};
    for (int i = 0; i < 16; i++) ones[i] = 1;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 16; i++) unforced[k][i] = NAN;
        items[k].findings = (findings){.n_layers = 4,
                                       .jaccard = ones,
                                       .unforced = unforced[k],
                                       .needle_whole = needle,
                                       .needle_share = needle};
    }
    unforced[0][1 * 4 + 2] = 0.25f; /* layers 1 and 2, in the first prompt only */
    unforced[0][2 * 4 + 3] = 0.5f;
    unforced[1][2 * 4 + 3] = 1;

    source row = {.name = "task"};
    const source_list sources = {.items = &row, .n = 1};
    const record_store records = {.items = items, .n = 2, .sources = &sources};
    const results r = {.records = &records, .sources = &sources, .turns = 1};
    measure_means m;
    error err = {{0}};
    assert_true(status_ok(report_measures(&r, 0, 0, &m, &err)));
    assert_int_equal(m.n, 2);
    assert_true(isnan(m.unforced[1]));
    assert_false(isnan(m.neighbours)); /* assert_float_equal accepts NaN for any number */
    assert_float_equal(m.neighbours, (0.25 + 0.75) / 2, 1e-9);
    assert_float_equal(m.neighbours_all, 1, 1e-9);
    assert_true(isnan(m.whole[0]));
    measure_means_destroy(&m);

    unforced[0][1 * 4 + 2] = unforced[0][2 * 4 + 3] = unforced[1][2 * 4 + 3] = NAN;
    assert_true(status_ok(report_measures(&r, 0, 0, &m, &err)));
    assert_true(isnan(m.neighbours));
    measure_means_destroy(&m);
}

static step_sample sample(uint32_t token, float first, float second)
{
    return (step_sample){
        .token = token, .n_top = 2, .top_ids = {7, 8}, .top_logprobs = {logf(first), logf(second)}};
}

static void agreement(void **state)
{
    (void)state;
    step_sample full[] = {sample(7, 0.5f, 0.25f), sample(7, 0.5f, 0.25f), sample(7, 0.5f, 0.25f)};
    step_sample own[] = {sample(7, 0.5f, 0.25f), sample(8, 0.25f, 0.5f), sample(7, 0.9f, 0.05f)};
    findings f = {0};
    findings_agree(full, 3, own, 3, &f);
    /* Tokens after the first that differs are not compared. */
    assert_int_equal(f.n_compared, 2);
    assert_int_equal(f.n_agreed, 1);
    double kl = 0.5 * log(2) + 0.25 * log(0.5);
    assert_float_equal(f.divergence, kl / 2, 1e-6);
    /* Tokens that only one list names are counted with the rest. */
    own[0].top_ids[1] = 9;
    assert_float_equal(findings_divergence(&full[0], &own[0]), 0, 1e-9);
}

/* ---- at equal kept share --------------------------------------------------------------------- */

static double at_share(const kept_point *points, const double *scores, size_t n, double share)
{
    share_place place;
    if (!report_place(points, n, share, &place)) return NAN;
    return (1 - place.weight) * scores[place.low] + place.weight * scores[place.high];
}

static void scores_at_a_share(void **state)
{
    (void)state;
    /* A method that keeps 6.6 % at a budget of 10 %, and 16 % at 20 %. */
    static const kept_point points[] = {{0.066, 0}, {0.16, 1}, {0.3, 2}};
    static const double scores[] = {0.5, 0.8, 0.7};
    assert_true(fabs(at_share(points, scores, 3, 0.113) - 0.65) < 1e-9);
    assert_true(fabs(at_share(points, scores, 3, 0.16) - 0.8) < 1e-9);
    assert_true(fabs(at_share(points, scores, 3, 0.23) - 0.75) < 1e-9);
    assert_true(fabs(at_share(points, scores, 3, 0.31) - (0.7 - 0.01 / 1.4)) < 1e-9);
    assert_true(isnan(at_share(points, scores, 3, 0.06))); /* too far from what was measured */
    assert_true(isnan(at_share(points, scores, 3, 0.32)));
    assert_true(isnan(at_share(points, scores, 3, 0.5)));
    assert_true(isnan(at_share(points, scores, 1, 0.066)));
    static const kept_point equal[] = {{0.11, 0}, {0.11, 1}};
    assert_true(isnan(at_share(equal, scores, 2, 0.11)));
}

enum { CONTEXTS = 40 };

/* Two methods at two budgets: the first keeps its budget, the second a fifth less. */
static void table_at_a_share(void **state)
{
    (void)state;
    static const double kept[4] = {100, 200, 80, 160};
    record *items = calloc(4 * CONTEXTS, sizeof *items);
    for (uint32_t c = 0, i = 0; c < 4; c++)
        for (uint32_t d = 0; d < CONTEXTS; d++, i++) {
            bool right = c % 2 ? d % 4 > 0 : d % 4 > 1; /* half at the lower, 3/4 at the higher */
            if (c >= 2 && d % 4 == 1) right = true;     /* the second method: 3/4 at both */
            items[i] = (record){.column = c,
                                .document = d,
                                .score = right,
                                .kept = (float)kept[c],
                                .logical = 1000};
        }
    variant columns[] = {{.method = "a", .label_chars = 1, .budget = "0.1", .ratio = 0.1},
                         {.method = "a", .label_chars = 1, .budget = "0.2", .ratio = 0.2},
                         {.method = "b|c={}", .label_chars = 3, .budget = "0.1", .ratio = 0.1},
                         {.method = "b|c={}", .label_chars = 3, .budget = "0.2", .ratio = 0.2}};
    const variant_list variants = {.items = columns, .n = 4};
    source row = {.name = "task"};
    const source_list sources = {.items = &row, .n = 1};
    const record_store records = {
        .items = items, .n = 4 * CONTEXTS, .sources = &sources, .variants = &variants};
    const results r = {
        .records = &records, .sources = &sources, .variants = &variants, .seed = 1, .turns = 1};
    const uint32_t rows = 0;
    strbuf out = {0};
    error err = {{0}};
    assert_true(status_ok(report_equal_kept(&r, (row_set){&rows, 1}, &out, &err)));
    /* For the second method a share of 0.2 is too far from its measured points. */
    const char *says[] = {"difference to a over", "| a | 0.500 (0.3", " | | 0.750 (0.6", " | |\n",
                          "| b\\|c | 0.750 (0.6", " | +0.250 (+0.1",  " | | |\n"};
    const char *at = out.data;
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++) {
        const char *found = strstr(at, says[i]);
        if (!found) fail_msg("'%s' lacks '%s'", at, says[i]);
        at = found + strlen(says[i]);
    }
    strbuf_destroy(&out);
    free(items);
}

/* ---- drawings -------------------------------------------------------------------------------- */

static void drawings(void **state)
{
    (void)state;
    strbuf out = {0};
    char colour[8];
    svg_begin(&out, 100, 50);
    svg_text(&out, 1, 2, SVG_START, 10, 0, "#000000", "a<b & \"c\"\x01\xc3\xa9\xe2\x82");
    svg_end(&out);
    assert_non_null(strstr(out.data, "a&lt;b &amp; \"c\"\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd</text>"));
    strbuf_destroy(&out);
    svg_scale(0, colour);
    assert_string_equal(colour, "#30123b");
    svg_scale(2, colour);
    assert_string_equal(colour, "#fde725");
    svg_scale(NAN, colour);
    assert_string_equal(colour, "#d9d9d9");
}

static size_t count_of(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++) n++;
    return n;
}

/* Points lie where the axes have their values; those that have no place are left out. */
static void charts(void **state)
{
    (void)state;
    static const double some[] = {1, 10, 10, 100, 100, 1000, 1000, NAN, 10000, 0};
    static const double level[] = {1, 1000, 10000, 1000};
    const chart_line lines[] = {{"some", some, 5, 0, false, false},
                                {"most", level, 2, 1, true, true},
                                {"none", NULL, 0, 2, false, false}};
    const chart_panel panels[] = {{"both", {"x", true}, {"y", true}, lines, 3},
                                  {"empty", {"x", false}, {"y", false}, &lines[2], 1}};
    strbuf out = {0};
    chart_draw("a <title>", panels, 2, &out);
    assert_false(out.failed);
    assert_non_null(strstr(out.data, ">a &lt;title&gt;</text>"));
    assert_int_equal(count_of(out.data, "<circle"), 3);
    assert_int_equal(count_of(out.data, "<polyline"), 2);
    /* The box is 400 by 260 pixels from (64, 320) on; y goes from 10 to 2,000. */
    assert_non_null(strstr(out.data, " points=\"64.0,320.0 164.0,207.0 264.0,94.0\""));
    assert_non_null(strstr(out.data, " points=\"64.0,94.0 464.0,94.0\""));
    assert_non_null(strstr(out.data, ">1024</text>"));
    assert_non_null(strstr(out.data, ">2000</text>"));
    assert_null(strstr(out.data, "nan"));
    assert_null(strstr(out.data, "inf"));
    strbuf_destroy(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),          cmocka_unit_test(all_presets),
        cmocka_unit_test(bad_methods),       cmocka_unit_test(longbench_lines),
        cmocka_unit_test(gsm8k_lines),       cmocka_unit_test(infinitebench_lines),
        cmocka_unit_test(bad_lines),         cmocka_unit_test(kept_sets),
        cmocka_unit_test(means_of_measures), cmocka_unit_test(agreement),
        cmocka_unit_test(scores_at_a_share), cmocka_unit_test(table_at_a_share),
        cmocka_unit_test(drawings),          cmocka_unit_test(charts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
