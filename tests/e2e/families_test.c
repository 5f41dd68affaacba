/* Every family through the whole engine: alone or in a batch, in chunks, from cached prefixes, with
 * retention, on pages and weights of any format, on ranks. Tokens and bits are the same, and near
 * the f32 results. Each two of these settings meet in some row of an array (all pairs), or in all
 * of them with OCTAVO_SOAK; four requests of each house use each retention. */
#include "tests/e2e/house.h"

#include <math.h>

enum { REQUESTS = 8, PROMPT_MAX = 120, OUTPUTS = 10, VOCAB = 60, TOP = SAMPLE_LOGPROBS_MAX };

/* Requests use these in turn; NULL keeps everything. */
static const char *const retentions[] = {
    NULL, "{\"method\": \"chunkkv\", \"tokens\": 48, \"window\": 16}",
    "{\"method\": \"snapkv\", \"tokens\": 48}",
    "{\"method\": \"scope-slide\", \"prefill\": {\"method\": \"snapkv\", \"tokens\": 48},"
    " \"decode\": {\"beta1\": 3, \"beta2\": 2}}"};
enum { RETENTIONS = sizeof retentions / sizeof retentions[0] };

typedef struct prompt {
    uint32_t tokens[PROMPT_MAX];
    uint32_t n;
} prompt;

typedef struct answer {
    uint32_t tokens[OUTPUTS], n;
    float logprobs[OUTPUTS];
    step_sample first; /* with the most likely tokens, where requested */
    uint64_t pages_dropped;
    char kept[8192]; /* from the report, where positions are requested */
} answer;

/* All prompts share a beginning, then differ. */
static void make_prompts(prompt *prompts)
{
    rng r = rng_seed(7);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        prompts[i].n = i < RETENTIONS ? PROMPT_MAX - i : 20 + rng_below(&r, PROMPT_MAX - 20);
        for (uint32_t t = 0; t < PROMPT_MAX; t++)
            prompts[i].tokens[t] = t < 40 && i > 0 ? prompts[0].tokens[t] : rng_below(&r, VOCAB);
    }
}

static engine_stream *submit(house *h, prompt *p, uint32_t i, const char *retention, int32_t top)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    engine_stream *s;
    error err = {{0}};
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = p->tokens;
    r.n_prompt_token_ids = p->n;
    r.max_tokens = OUTPUTS;
    r.ignore_eos = true;
    r.logprobs = top;
    if (retention) r.retention = json_loads(retention, 0, NULL);
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err)))
        fail_msg("request %u: %s", i, err.text);
    r.prompt_token_ids = NULL; /* it belongs to the test */
    engine_request_destroy(&r);
    return s;
}

static void read_answer(engine_stream *s, answer *a)
{
    engine_output out;
    *a = (answer){0};
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_ERROR) fail_msg("%s", out.error_text);
        if (out.has_token) {
            if (a->n == 0) a->first = out.sample;
            a->tokens[a->n] = out.sample.token;
            a->logprobs[a->n++] = out.sample.logprob;
        }
        if (!out.report) continue;
        a->pages_dropped = out.report->pages_dropped;
        const char *kept = out.report->kept_json ? out.report->kept_json : "";
        assert_true(strlen(kept) < sizeof a->kept);
        snprintf(a->kept, sizeof a->kept, "%s", kept);
    }
    engine_stream_release(s);
}

static setting setting_of(const char *name)
{
    static char dir[128];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    return (setting){.dir = dir,
                     .prefill_chunk = 256,
                     .kv_type = KERN_KV_F32,
                     .precision = KERN_PRECISION_HIGH,
                     .layers_per_group = 1,
                     .heads_per_group = 1,
                     .page_tokens = 16,
                     .max_model_len = 200,
                     .kv_bytes = 16 << 20};
}

/* ---- all pairs ------------------------------------------------------------------------------- */

static const char *const models[] = {
    "llama3_rope_f32",   "mistral_f32",         "mistral_window_f32", "qwen2_window_bf16",
    "qwen3_layers_bf16", "mixtral_window_bf16", "mixtral_three_bf16", "qwen3_moe_f32",
    "qwen2_moe_f32",     "internlm2_f32",       "phi3_long_bf16",     "gemma3_f32"};
static const kern_kv_format formats[] = {KERN_KV_F32, KERN_KV_INT8, KERN_KV_BF16};
static const uint32_t chunks[] = {48, 33, 256};

enum { MODEL, FORMAT, CHUNK, WEIGHTS, PREFIX, RANKS, AXES };
static const uint8_t sizes[AXES] = {sizeof models / sizeof *models,
                                    sizeof formats / sizeof *formats,
                                    sizeof chunks / sizeof *chunks,
                                    2,
                                    2,
                                    2};
enum { ROWS_MAX = 12 * 3 * 3 * 8, VALUES_MAX = 12 };

typedef struct row {
    uint8_t value[AXES];
} row;

typedef bool pairs[AXES][VALUES_MAX][AXES][VALUES_MAX];

/* Groups of quantised weights are wider than a rank's columns in these small models. */
static bool is_valid(const row *r)
{
    model_config c;
    if (!r->value[RANKS]) return true;
    setting s = setting_of(models[r->value[MODEL]]);
    assert_true(status_ok(model_config_load(s.dir, NULL, 0, &c, NULL)));
    return !r->value[WEIGHTS] && status_ok(model_ranks_check(&c, 2, NULL));
}

static uint32_t list_rows(row *out)
{
    uint32_t n = 0, all = 1;
    for (int a = 0; a < AXES; a++) all *= sizes[a];
    assert_true(all <= ROWS_MAX);
    for (uint32_t i = 0; i < all; i++) {
        row r;
        uint32_t left = i;
        for (int a = 0; a < AXES; a++, left /= sizes[a - 1])
            r.value[a] = (uint8_t)(left % sizes[a]);
        if (is_valid(&r)) out[n++] = r;
    }
    return n;
}

/* Number of pairs in a row that are not covered yet; with `now` they become covered. */
static uint32_t meet(const row *r, pairs met, bool now)
{
    uint32_t n = 0;
    for (int a = 0; a < AXES; a++)
        for (int b = a + 1; b < AXES; b++) {
            bool *at = &met[a][r->value[a]][b][r->value[b]];
            n += !*at;
            *at = *at || now;
        }
    return n;
}

/* Finds the row with the most new pairs, any of equals. False: no row has new pairs. */
static bool next_row(const row *rows, uint32_t n, pairs met, rng *r, row *out)
{
    uint32_t most = 0, from = rng_below(r, n);
    for (uint32_t i = 0; i < n; i++) {
        const row *one = &rows[(from + i) % n];
        uint32_t gain = meet(one, met, false);
        if (gain > most) *out = *one;
        if (gain > most) most = gain;
    }
    if (most > 0) meet(out, met, true);
    return most > 0;
}

/* ---- a row ----------------------------------------------------------------------------------- */

static void ask_alone(const setting *s, prompt *prompts, answer *answers)
{
    house h = open_house(s);
    for (uint32_t i = 0; i < REQUESTS; i++)
        read_answer(submit(&h, &prompts[i], i, retentions[i % RETENTIONS], TOP), &answers[i]);
    close_house(&h);
}

static void expect_equal(const char *what, const answer *want, const answer *got, uint32_t i)
{
    assert_int_equal(want->n, OUTPUTS);
    if (memcmp(want->tokens, got->tokens, sizeof want->tokens) ||
        memcmp(want->logprobs, got->logprobs, sizeof want->logprobs) ||
        want->pages_dropped != got->pages_dropped)
        fail_msg("%s: request %u says something else in a batch", what, i);
}

/* Sends all requests at once, and twice where the second round hits the prefixes of the first. */
static void ask_together(const char *what, const setting *s, prompt *prompts, const answer *alone)
{
    answer got;
    house h = open_house(s);
    for (int round = 0; round < (s->prefix_cache ? 2 : 1); round++) {
        engine_stream *streams[REQUESTS];
        for (uint32_t i = 0; i < REQUESTS; i++)
            streams[i] = submit(&h, &prompts[i], i, retentions[i % RETENTIONS], TOP);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            read_answer(streams[i], &got);
            expect_equal(what, &alone[i], &got, i);
        }
    }
    close_house(&h);
}

/* The first token of an answer, before any drop: in the exact answer it is nearly the most likely
 * token, with about the same probability. */
static void expect_near(const char *what, const answer *exact, const answer *got, double within)
{
    const step_sample *e = &exact->first;
    double logprob = -INFINITY;
    for (uint32_t k = 0; k < e->n_top; k++)
        if (e->top_ids[k] == got->first.token) logprob = (double)e->top_logprobs[k];
    double nats = (double)e->top_logprobs[0] - logprob;
    double off = fabs((double)got->first.logprob - logprob);
    if (!(nats <= within && off <= within))
        fail_msg("%s: %.4f nat less likely, %.4f off", what, nats, off);
}

static void check_row(const row *r, prompt *prompts, const answer *exact)
{
    char what[192];
    answer alone[REQUESTS];
    uint64_t dropped = 0;
    setting s = setting_of(models[r->value[MODEL]]);
    s.kv_type = formats[r->value[FORMAT]];
    s.quant_bits = r->value[WEIGHTS] ? 8 : 0;
    s.n_ranks = r->value[RANKS] ? 2 : 0;
    ask_alone(&s, prompts, alone);
    s.prefill_chunk = chunks[r->value[CHUNK]];
    s.prefix_cache = r->value[PREFIX];
    snprintf(what, sizeof what, "%s: pages %s, weights %u, chunks of %u, prefixes %d, ranks %u",
             s.dir, kern_kv_name(s.kv_type), s.quant_bits, s.prefill_chunk, s.prefix_cache,
             s.n_ranks);
    ask_together(what, &s, prompts, alone);
    bool rounded = s.quant_bits || s.kv_type != KERN_KV_F32;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        expect_near(what, &exact[i], &alone[i], rounded ? 0.5 : 1e-3);
        dropped += alone[i].pages_dropped;
    }
    assert_true(dropped > 0);
}

static void families_compose(void **state)
{
    (void)state;
    static row rows[ROWS_MAX];
    static pairs met;
    static answer exact[VALUES_MAX][REQUESTS];
    prompt prompts[REQUESTS];
    uint32_t n = list_rows(rows), n_run = 0;
    rng r = rng_seed(31);
    make_prompts(prompts);
    for (uint32_t m = 0; m < sizes[MODEL]; m++) {
        setting s = setting_of(models[m]);
        ask_alone(&s, prompts, exact[m]);
    }
    if (getenv("OCTAVO_SOAK")) {
        for (; n_run < n; n_run++)
            check_row(&rows[n_run], prompts, exact[rows[n_run].value[MODEL]]);
    } else {
        for (row one; next_row(rows, n, met, &r, &one); n_run++)
            check_row(&one, prompts, exact[one.value[MODEL]]);
        assert_true(n_run >= 36 && n_run < 60);
    }
    print_message("%u of %u rows have every pair\n", n_run, n);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* A layer with a window reads nothing outside it, and retention drops nothing inside: where all
 * layers have a window, every method gives the answer of keeping everything. */
static void windows_are_all_that_is_read(void **state)
{
    (void)state;
    static const char *const windowed[] = {"mistral_window_f32", "mistral_odd_bf16",
                                           "mixtral_window_bf16", "phi3_odd_bf16"};
    static const char *const methods[] = {
        "{\"method\": \"chunkkv\", \"tokens\": 48, \"window\": 16}",
        "{\"method\": \"snapkv\", \"tokens\": 33}", "{\"method\": \"h2o\", \"tokens\": 20}",
        "{\"method\": \"streaming\", \"tokens\": 20}",
        "{\"method\": \"scope-slide\", \"prefill\": {\"method\": \"adakv\", \"tokens\": 33},"
        " \"decode\": {\"beta1\": 3, \"beta2\": 2}}"};
    prompt prompts[REQUESTS];
    make_prompts(prompts);
    for (size_t m = 0; m < sizeof windowed / sizeof *windowed; m++) {
        setting s = setting_of(windowed[m]);
        house h = open_house(&s);
        answer whole, got;
        read_answer(submit(&h, &prompts[0], 0, NULL, 0), &whole);
        for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
            read_answer(submit(&h, &prompts[0], 0, methods[i], 0), &got);
            assert_true(got.pages_dropped > 0);
            for (uint32_t t = 0; t < OUTPUTS; t++)
                if (got.tokens[t] != whole.tokens[t] ||
                    !(fabsf(got.logprobs[t] - whole.logprobs[t]) < 1e-3f))
                    fail_msg("%s, %s: token %u: %u (%g), not %u (%g)", s.dir, methods[i], t,
                             got.tokens[t], (double)got.logprobs[t], whole.tokens[t],
                             (double)whole.logprobs[t]);
        }
        close_house(&h);
    }
}

/* The part of the report that says what a layer's tables keep. */
static char *kept_of(const answer *a, json_int_t layer)
{
    json_t *kept = json_loads(a->kept, 0, NULL), *ranges = json_array(), *table;
    size_t i;
    json_array_foreach(kept, i, table)
    {
        const json_t *layers = json_object_get(table, "layers");
        if (json_integer_value(json_array_get(layers, 0)) == layer)
            json_array_append(ranges, json_object_get(table, "ranges"));
    }
    char *text = json_dumps(ranges, JSON_COMPACT);
    assert_true(json_array_size(ranges) > 0);
    json_decref(ranges);
    json_decref(kept);
    return text;
}

static void expect_kept(const answer *a, json_int_t i, const answer *b, json_int_t j, bool same)
{
    char *x = kept_of(a, i), *y = kept_of(b, j);
    if ((strcmp(x, y) == 0) != same) fail_msg("layer %zu keeps %s, layer %zu %s", i, x, j, y);
    free(x);
    free(y);
}

/* Layers 0 and 2 of this model have a window: `reuse_layers` counts layers 1 and 3 only, so that 3
 * uses the selection of 1. */
static void only_layers_that_select_share_a_selection(void **state)
{
    (void)state;
    static const char alone[] = "{\"method\": \"chunkkv\", \"tokens\": 48, \"window\": 8,"
                                " \"unit\": \"token\", \"report\": \"positions\"}";
    static const char shared[] = "{\"method\": \"chunkkv\", \"tokens\": 48, \"window\": 8,"
                                 " \"unit\": \"token\", \"report\": \"positions\","
                                 " \"reuse_layers\": 2}";
    prompt prompts[REQUESTS];
    make_prompts(prompts);
    setting s = setting_of("gemma3_f32");
    house h = open_house(&s);
    answer each, both;
    read_answer(submit(&h, &prompts[0], 0, alone, 0), &each);
    read_answer(submit(&h, &prompts[0], 0, shared, 0), &both);
    expect_kept(&each, 1, &each, 3, false);
    expect_kept(&both, 1, &both, 3, true);
    expect_kept(&both, 1, &each, 1, true);
    expect_kept(&both, 0, &each, 0, true);
    expect_kept(&both, 2, &both, 0, true);
    close_house(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(families_compose),
                                       cmocka_unit_test(windows_are_all_that_is_read),
                                       cmocka_unit_test(only_layers_that_select_share_a_selection)};
    return cmocka_run_group_tests_name("families", tests, NULL, NULL);
}
