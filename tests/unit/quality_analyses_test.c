/* Analyses of attention after an eviction: cases by hand, and a model's attention computed here in
 * another way. */
#include "quality/score/analyses.h"
#include "tests/unit/model_pass.h"

/* ---- the arithmetic -------------------------------------------------------------------------- */

static void a_row_by_hand(void **state)
{
    (void)state;
    static const double weights[] = {0.4, 0.3, 0.2, 0.1};
    static const float values[] = {1, 0, 0, 1, 1, 1, 2, 0};
    const uint64_t first = 1, all = 7, none = 0;
    row_change c;
    /* The first stays, and the last, which is not a candidate: a^ = (0.8, 0, 0, 0.2), y = (0.8,
     * 0.5), y^ = (1.2, 0). */
    assert_true(analysis_change(weights, 4, values, 2, &first, 3, &c));
    assert_float_equal(c.attention_l1, 0.4 + 0.3 + 0.2 + 0.1, 1e-12);
    assert_float_equal(c.attention_cosine, sqrt(0.17 / 0.30), 1e-12);
    assert_float_equal(c.loss, sqrt(0.41 / 0.89), 1e-12);
    assert_float_equal(c.output_cosine, 0.8 / sqrt(0.89), 1e-12);

    assert_true(analysis_change(weights, 4, values, 2, &all, 3, &c));
    assert_float_equal(c.attention_l1, 0, 1e-12);
    assert_float_equal(c.attention_cosine, 1, 1e-12);
    assert_float_equal(c.loss, 0, 1e-12);
    assert_float_equal(c.output_cosine, 1, 1e-12);
    assert_false(analysis_change(weights, 4, values, 2, &none, 4, &c));
}

static void heavy_hitters_by_hand(void **state)
{
    (void)state;
    static const double sums[] = {0.1, 0.5, 0.5, 0.2, 0.0, 0.3};
    static const bool one[] = {0, 1, 0, 0, 0, 0}, half[] = {0, 1, 1, 0, 0, 1};
    bool heavy[6];
    assert_true(analysis_heavy(sums, 6, HEAVY_SHARE, heavy)); /* 0.9 of a token: the first one */
    assert_memory_equal(heavy, one, sizeof one);
    assert_true(analysis_heavy(sums, 6, 0.5, heavy));
    assert_memory_equal(heavy, half, sizeof half);
}

/* ---- over a model ---------------------------------------------------------------------------- */

enum { PROMPT = 60, ANSWER = 7, TOTAL = PROMPT + ANSWER - 1 }; /* the last token is never fed */

typedef struct bench {
    comm *group;
    model_config config;
    backend backend;
    model_probe *probe;
    uint32_t tokens[PROMPT + ANSWER];
    step_sample answer[ANSWER];
} bench;

static void open_bench(bench *b)
{
    const pass p = {.dir = "tests/golden/models/gqa4_tied_f32",
                    .kv_type = KERN_KV_F32,
                    .precision = KERN_PRECISION_HIGH,
                    .page_tokens = 16,
                    .layers_per_group = 1,
                    .heads_per_group = 1,
                    .chunk = 32,
                    .n_threads = 1};
    comm_options self = {.kind = "self", .size = 1};
    backend_options made_with = {.n_threads = 1, .precision = p.precision};
    error err = {{0}};
    *b = (bench){0};
    assert_true(status_ok(comm_create(&self, &b->group, NULL)));
    b->backend = open_backend(&p, b->group, &b->config);
    if (!status_ok(model_probe_create(&b->backend, &made_with, 700, &b->probe, &err)))
        fail_msg("%s", err.text);
    random_tokens(b->tokens, PROMPT + ANSWER, b->config.vocab_size);
    for (uint32_t i = 0; i < ANSWER; i++) b->answer[i].token = b->tokens[PROMPT + i];
}

static void close_bench(bench *b)
{
    model_probe_destroy(b->probe);
    b->backend.ops->destroy(b->backend.ctx);
    comm_destroy(b->group);
}

static analysis run_analysis(bench *b, const char *kept)
{
    analysis_input in = {.probe = b->probe,
                         .prompt = b->tokens,
                         .n_prompt = PROMPT,
                         .full = b->answer,
                         .n_full = ANSWER,
                         .own = b->answer,
                         .n_own = ANSWER,
                         .kept_json = kept,
                         .n_logical = TOTAL};
    analysis a;
    error err = {{0}};
    if (!status_ok(analysis_run(&in, &a, &err))) fail_msg("%s", err.text);
    return a;
}

static double value(const analysis *a, uint32_t row, uint32_t layer)
{
    return (double)a->values[row * a->n_layers + layer];
}

static void keeping_all_changes_nothing(void **state)
{
    (void)state;
    bench b;
    open_bench(&b);
    analysis a = run_analysis(&b, "[{\"layers\":[0,2],\"heads\":[0,1],\"ranges\":[[0,66]]}]");
    assert_int_equal(a.n_layers, 3);
    assert_int_equal(a.n_rows, ANSWER - 1);
    for (uint32_t l = 0; l < a.n_layers; l++) {
        assert_float_equal(value(&a, ANALYSIS_KV_L1, l), 0, 0);
        assert_float_equal(value(&a, ANALYSIS_ATTENTION_L1, l), 0, 1e-6);
        assert_float_equal(value(&a, ANALYSIS_ATTENTION_COSINE, l), 1, 1e-6);
        assert_float_equal(value(&a, ANALYSIS_LOSS, l), 0, 1e-6);
        assert_float_equal(value(&a, ANALYSIS_OUTPUT_COSINE, l), 1, 1e-6);
        assert_float_equal(value(&a, ANALYSIS_HEAVY_KEPT, l), 1, 1e-6);
        for (uint32_t i = 0; i < HEAVY_BINS; i++) {
            double kept = value(&a, ANALYSIS_KEPT + i, l);
            assert_true(isnan(kept) || fabs(kept - 1) < 1e-6);
        }
    }
    analysis_destroy(&a);
    close_bench(&b);
}

/* KV head 0 keeps tokens 0 to 9 and 50 to 59 of the prompt, KV head 1 all of it. */
static bool stays(uint32_t kv_head, uint32_t j) { return kv_head == 1 || j < 10 || j >= 50; }

static const char some[] = "[{\"layers\":[0,2],\"heads\":[0,0],\"ranges\":[[0,10],[50,66]]},"
                           "{\"layers\":[0,2],\"heads\":[1,1],\"ranges\":[[0,66]]}]";

/* Adds the contribution of one row of a query head, with a^ written out and subtracted. */
static void add_row(bench *b, uint32_t layer, uint32_t head, uint32_t row, double sums[4])
{
    uint32_t dim = b->config.head_dim, kv_head = head / (b->config.n_heads / b->config.n_kv_heads);
    const float *v = model_probe_values(b->probe, layer, kv_head);
    double a[TOTAL], left[TOTAL], mass = 0, l1 = 0, aa = 0, ll = 0, al = 0;
    double yy = 0, ww = 0, yw = 0, gap = 0;
    model_probe_weights(b->probe, layer, head, row, a);
    for (uint32_t j = 0; j <= row; j++) mass += left[j] = stays(kv_head, j) ? a[j] : 0;
    for (uint32_t j = 0; j <= row; j++) {
        left[j] /= mass;
        l1 += fabs(a[j] - left[j]);
        aa += a[j] * a[j];
        ll += left[j] * left[j];
        al += a[j] * left[j];
    }
    for (uint32_t d = 0; d < dim; d++) {
        double y = 0, w = 0;
        for (uint32_t j = 0; j <= row; j++) {
            y += a[j] * (double)v[j * dim + d];
            w += left[j] * (double)v[j * dim + d];
        }
        yy += y * y;
        ww += w * w;
        yw += y * w;
        gap += (y - w) * (y - w);
    }
    sums[0] += l1;
    sums[1] += al / sqrt(aa * ll);
    sums[2] += sqrt(gap / yy);
    sums[3] += yw / sqrt(yy * ww);
}

static double lost_norms(bench *b, uint32_t layer)
{
    uint32_t dim = b->config.head_dim;
    double all = 0, lost = 0;
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t i = 0; i < PROMPT * dim; i++) {
            double size = fabs((double)model_probe_keys(b->probe, layer, h)[i]) +
                          fabs((double)model_probe_values(b->probe, layer, h)[i]);
            all += size;
            if (!stays(h, i / dim)) lost += size;
        }
    return lost / all;
}

static void an_eviction_by_another_way(void **state)
{
    (void)state;
    bench b;
    open_bench(&b);
    analysis a = run_analysis(&b, some); /* leaves the probe at the same tokens */
    assert_int_equal(b.config.n_kv_heads, 2);
    for (uint32_t l = 0; l < a.n_layers; l++) {
        double sums[4] = {0}, n = (double)b.config.n_heads * (ANSWER - 1);
        for (uint32_t h = 0; h < b.config.n_heads; h++)
            for (uint32_t row = PROMPT; row < TOTAL; row++) add_row(&b, l, h, row, sums);
        assert_float_equal(value(&a, ANALYSIS_KV_L1, l), lost_norms(&b, l), 1e-6);
        assert_true(sums[0] / n > 0.05); /* the change is not negligible */
        for (uint32_t i = 0; i < 4; i++)
            assert_float_equal(value(&a, ANALYSIS_ATTENTION_L1 + i, l), sums[i] / n, 1e-5);
    }
    analysis_destroy(&a);
    close_bench(&b);
}

/* Marks the tokens with the most attention since the prompt's last row, by counting. */
static void mark_heavy(bench *b, uint32_t layer, uint32_t last, bool heavy[TOTAL])
{
    double sums[TOTAL] = {0}, a[TOTAL];
    for (uint32_t row = PROMPT - 1; row <= last; row++)
        for (uint32_t h = 0; h < b->config.n_heads; h++) {
            model_probe_weights(b->probe, layer, h, row, a);
            for (uint32_t j = 0; j <= row; j++) sums[j] += a[j];
        }
    uint32_t most = (uint32_t)ceil(HEAVY_SHARE * (last + 1));
    for (uint32_t j = 0; j < TOTAL; j++) {
        uint32_t before = 0;
        for (uint32_t i = 0; i <= last; i++)
            before += sums[i] > sums[j] || (sums[i] == sums[j] && i < j);
        heavy[j] = j <= last && before < most;
    }
}

static void heavy_hitters_by_another_way(void **state)
{
    (void)state;
    static const uint32_t slots[] = {0, HEAVY_STEPS - 1}, last[] = {PROMPT - 1, TOTAL - 1};
    bench b;
    bool heavy[TOTAL];
    open_bench(&b);
    analysis a = run_analysis(&b, some);
    assert_int_equal(a.n_steps, ANSWER);
    for (uint32_t l = 0; l < a.n_layers; l++) {
        for (uint32_t s = 0; s < 2; s++) {
            uint32_t n = 0, answer = 0, in_bin = 0, seen_answer = last[s] + 1 - PROMPT;
            mark_heavy(&b, l, last[s], heavy);
            for (uint32_t j = 0; j < TOTAL; j++) {
                n += heavy[j];
                answer += heavy[j] && j >= PROMPT;
                in_bin += heavy[j] && j / 3 == 19; /* three tokens in a bin: 57 to 59 */
            }
            assert_float_equal(value(&a, ANALYSIS_ANSWER + slots[s], l), (double)answer / n, 1e-6);
            assert_float_equal(value(&a, ANALYSIS_SEEN + slots[s], l),
                               (double)seen_answer / (last[s] + 1), 1e-6);
            assert_float_equal(value(&a, ANALYSIS_HEAVY + slots[s] * HEAVY_BINS + 19, l),
                               in_bin / 3.0, 1e-6);
        }
        uint32_t n = 0, kept = 0;
        for (uint32_t j = 0; j < TOTAL; j++)
            for (uint32_t h = 0; h < 2; h++) {
                n += heavy[j];
                kept += heavy[j] && stays(h, j);
            }
        assert_float_equal(value(&a, ANALYSIS_HEAVY_KEPT, l), (double)kept / n, 1e-6);
        assert_float_equal(value(&a, ANALYSIS_KEPT + 5, l), 0.5, 1e-6); /* 15 to 17: one head */
        assert_true(isnan(value(&a, ANALYSIS_ANSWER + 1, l)));          /* there is no step 300 */
    }
    analysis_destroy(&a);
    close_bench(&b);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void a_line_and_back(void **state)
{
    (void)state;
    bench b;
    strbuf line = {0};
    json_t *json;
    analysis again;
    error err = {{0}};
    open_bench(&b);
    analysis a = run_analysis(&b, NULL); /* of the full cache: heavy hitters only */
    assert_true(isnan(value(&a, ANALYSIS_LOSS, 0)) && isnan(value(&a, ANALYSIS_HEAVY_KEPT, 0)));
    analysis_write(&a, &line);
    assert_true(status_ok(json_read_text("line", line.data, line.size, &json, &err)));
    assert_true(analysis_read(json, &again));
    assert_int_equal(again.n_layers, a.n_layers);
    assert_int_equal(again.n_steps, ANSWER);
    for (uint32_t i = 0; i < ANALYSIS_ROWS * a.n_layers; i++)
        assert_true(isnan(a.values[i]) ? isnan(again.values[i])
                                       : fabsf(a.values[i] - again.values[i]) < 1e-3f);
    analysis_destroy(&again);
    json_decref(json);
    /* Lines without an analysis, or with another number of values. */
    assert_true(analysis_read(NULL, &again) && again.n_layers == 0);
    json = json_pack("{s:i, s:[f]}", "layers", 3, "values", 0.5);
    assert_true(analysis_read(json, &again) && again.n_layers == 0);
    json_decref(json);
    strbuf_destroy(&line);
    analysis_destroy(&a);

    /* Without an answer there is no analysis; an unreadable report is an error. */
    analysis_input in = {.probe = b.probe, .prompt = b.tokens, .n_prompt = PROMPT};
    assert_true(status_ok(analysis_run(&in, &a, &err)) && a.n_layers == 0);
    in = (analysis_input){b.probe, b.tokens, PROMPT, b.answer, b.answer, 1, 1, "[]", PROMPT};
    assert_false(status_ok(analysis_run(&in, &a, &err)));
    assert_null(a.values);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_by_hand),
        cmocka_unit_test(heavy_hitters_by_hand),
        cmocka_unit_test(keeping_all_changes_nothing),
        cmocka_unit_test(an_eviction_by_another_way),
        cmocka_unit_test(heavy_hitters_by_another_way),
        cmocka_unit_test(a_line_and_back),
    };
    return cmocka_run_group_tests_name("quality_analyses", tests, NULL, NULL);
}
