/* The pages that every method of docs/retention.md keeps, and the model's answers afterwards,
 * against tools/retention_oracle, which was written from that document without knowledge of this
 * code. */
#include "tests/e2e/house.h"

enum { LAYERS_MAX = 8, HEADS_MAX = 8, POSITIONS_MAX = 1024, BATCH = 32 };

/* kept[layer][KV head][position] */
typedef struct kept_set {
    bool token[LAYERS_MAX][HEADS_MAX][POSITIONS_MAX];
} kept_set;

static kept_set expected, got;

typedef struct running {
    const json_t *want;
    engine_stream *stream;
} running;

static json_int_t whole(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static json_int_t item(const json_t *array, size_t i)
{
    return json_integer_value(json_array_get(array, i));
}

/* Marks tokens [from, to) as kept in a rectangle of layers and heads. */
static void set_range(kept_set *out, const json_int_t corner[4], json_int_t from, json_int_t to)
{
    assert_in_range(corner[1], corner[0], LAYERS_MAX - 1);
    assert_in_range(corner[3], corner[2], HEADS_MAX - 1);
    assert_in_range(to, from + 1, POSITIONS_MAX);
    for (json_int_t l = corner[0]; l <= corner[1]; l++)
        for (json_int_t h = corner[2]; h <= corner[3]; h++)
            memset(&out->token[l][h][from], true, (size_t)(to - from));
}

/* The golden's rows: [first layer, last layer, first head, last head, [from, to, from, to, …]]. */
static void read_expected(const json_t *kept, kept_set *out)
{
    size_t i;
    json_t *row;
    memset(out, 0, sizeof *out);
    json_array_foreach(kept, i, row)
    {
        json_int_t corner[4];
        for (size_t c = 0; c < 4; c++) corner[c] = item(row, c);
        const json_t *ends = json_array_get(row, 4);
        for (size_t e = 0; e + 1 < json_array_size(ends); e += 2)
            set_range(out, corner, item(ends, e), item(ends, e + 1));
    }
}

/* Reads the report's "kept". */
static void read_reported(const char *text, kept_set *out)
{
    json_t *kept, *table, *range;
    size_t i, j;
    memset(out, 0, sizeof *out);
    assert_non_null(text);
    assert_true(status_ok(json_read_text("kept", text, strlen(text), &kept, NULL)));
    json_array_foreach(kept, i, table)
    {
        const json_t *layers = json_object_get(table, "layers");
        const json_t *heads = json_object_get(table, "heads");
        json_int_t corner[4] = {item(layers, 0), item(layers, 1), item(heads, 0), item(heads, 1)};
        json_array_foreach(json_object_get(table, "ranges"), j, range)
            set_range(out, corner, item(range, 0), item(range, 1));
    }
    json_decref(kept);
}

static void describe(const json_t *want, const char *what)
{
    char *retention = json_dumps(json_object_get(want, "retention"), JSON_COMPACT);
    print_error("%s %s: %s\n", json_string_value(json_object_get(want, "name")), retention, what);
    free(retention);
}

static engine_stream *submit(house *h, const json_t *prompts, const json_t *want)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    const json_t *ids =
        json_object_get(prompts, json_string_value(json_object_get(want, "prompt")));
    size_t n = (size_t)whole(want, "n"), from = (size_t)whole(want, "from");
    engine_request r;
    engine_stream *s;
    error err = {{0}};
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = malloc(n * sizeof *r.prompt_token_ids);
    assert_non_null(r.prompt_token_ids);
    for (size_t i = 0; i < n; i++) r.prompt_token_ids[i] = (uint32_t)item(ids, from + i);
    r.n_prompt_token_ids = (uint32_t)n;
    r.max_tokens = (uint32_t)whole(want, "max_tokens");
    r.ignore_eos = true;
    r.retention = json_deep_copy(json_object_get(want, "retention"));
    json_object_set_new(r.retention, "report", json_string("positions"));
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err))) {
        describe(want, err.text);
        s = NULL;
    }
    engine_request_destroy(&r);
    return s;
}

/* A "soft" table has only its size fixed: f32 cannot separate the scores at its cut, so which slots
 * stay depends on the kernels. Replaces both sets by the expected one. */
static void settle_soft(const json_t *soft)
{
    size_t i;
    json_t *table;
    json_array_foreach(soft, i, table)
    {
        bool *a = expected.token[item(table, 0)][item(table, 1)];
        bool *b = got.token[item(table, 0)][item(table, 1)];
        size_t n[2] = {0};
        for (int p = 0; p < POSITIONS_MAX; p++) {
            n[0] += a[p];
            n[1] += b[p];
        }
        if (n[0] == n[1]) memcpy(b, a, POSITIONS_MAX * sizeof *a);
    }
}

static bool same_sets(const json_t *want)
{
    char text[160];
    for (int l = 0; l < LAYERS_MAX; l++)
        for (int h = 0; h < HEADS_MAX; h++)
            for (int p = 0; p < POSITIONS_MAX; p++)
                if (expected.token[l][h][p] != got.token[l][h][p]) {
                    snprintf(text, sizeof text, "layer %d head %d %s token %d", l, h,
                             got.token[l][h][p] ? "keeps" : "drops", p);
                    describe(want, text);
                    return false;
                }
    return true;
}

static bool finish(running *r)
{
    const json_t *ids = json_object_get(r->want, "token_ids");
    engine_output out;
    size_t n = 0;
    bool same = r->stream != NULL;
    while (r->stream && engine_stream_wait(r->stream, &out)) {
        if (out.has_token && (json_int_t)out.sample.token != item(ids, n++)) {
            if (same) describe(r->want, "another token");
            same = false;
        }
        if (out.finish == ENGINE_FINISH_NONE) continue;
        if (out.finish == ENGINE_FINISH_ERROR) {
            describe(r->want, out.error_text);
            same = false;
            continue;
        }
        read_expected(json_object_get(r->want, "kept"), &expected);
        read_reported(out.report->kept_json, &got);
        settle_soft(json_object_get(r->want, "soft"));
        if (!same_sets(r->want)) same = false;
        if (out.report->budget_raised != json_is_true(json_object_get(r->want, "budget_raised"))) {
            describe(r->want, "budget_raised");
            same = false;
        }
    }
    if (r->stream) engine_stream_release(r->stream);
    return same && n == json_array_size(ids);
}

/* True when what a method keeps does not depend on the page size. */
static bool is_without_pages(const json_t *want)
{
    const retention_limits limits = {.geometry = {.page_tokens = 16,
                                                  .n_layers = LAYERS_MAX,
                                                  .n_kv_heads = HEADS_MAX,
                                                  .layers_per_group = 1,
                                                  .heads_per_group = 1},
                                     .max_window = 512};
    retention_policy policy;
    error err;
    if (!status_ok(retention_parse(json_object_get(want, "retention"), &limits, &policy, &err)))
        fail_msg("%s", err.text);
    return policy.unit != RETENTION_UNIT_PAGE || policy.schedule == RETENTION_SCHEDULE_NEVER;
}

static house open_for(const json_t *want, uint32_t page_tokens)
{
    const char *dir = json_string_value(json_object_get(want, "model"));
    setting s = {.what = dir,
                 .dir = strcmp(dir, "models/demo") == 0 ? NULL : dir,
                 .kv_type = KERN_KV_F32,
                 .precision = KERN_PRECISION_HIGH, /* the oracle rounds no activation */
                 .prefill_chunk = 512,
                 .layers_per_group = (uint32_t)whole(want, "layers_per_group"),
                 .heads_per_group = (uint32_t)whole(want, "heads_per_group"),
                 .page_tokens = page_tokens,
                 .max_model_len = strcmp(dir, "models/demo") == 0 ? POSITIONS_MAX : 256,
                 .kv_bytes = 64 << 20,
                 .prefix_cache = true};
    return open_house(&s);
}

static bool same_house(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"model", "layers_per_group", "heads_per_group",
                                       "page_tokens"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i]))) return false;
    return true;
}

/* Runs the cases, or with another page size those that do not depend on pages; returns their
 * number. Cases of one house run side by side, BATCH at a time. */
static size_t run_cases(const json_t *golden, uint32_t page_tokens)
{
    const json_t *prompts = json_object_get(golden, "prompts"), *open_with = NULL;
    const json_t *cases = json_object_get(golden, "cases");
    size_t n = 0, n_same = 0;
    house h = {0};
    for (size_t at = 0, end; at < json_array_size(cases); at = end) {
        const json_t *first = json_array_get(cases, at);
        if (!open_with || !same_house(open_with, first)) {
            if (open_with) close_house(&h);
            h = open_for(first, page_tokens ? page_tokens : (uint32_t)whole(first, "page_tokens"));
            open_with = first;
        }
        running batch[BATCH];
        size_t n_batch = 0;
        for (end = at; end < json_array_size(cases) && end < at + BATCH; end++) {
            const json_t *want = json_array_get(cases, end);
            if (!same_house(first, want)) break;
            if (!page_tokens || is_without_pages(want))
                batch[n_batch++] = (running){want, submit(&h, prompts, want)};
        }
        for (size_t i = 0; i < n_batch; i++) n_same += finish(&batch[i]);
        n += n_batch;
    }
    close_house(&h);
    print_message("%zu of %zu cases equal\n", n_same, n);
    assert_int_equal(n_same, n);
    return n;
}

static json_t *read_golden(void)
{
    json_t *golden;
    error err = {{0}};
    if (!status_ok(json_read_file("tests/golden/retention_methods.json", 1 << 20, &golden, &err)))
        fail_msg("%s", err.text);
    return golden;
}

static void methods_keep_what_the_oracle_keeps(void **state)
{
    (void)state;
    json_t *golden = read_golden();
    assert_true(run_cases(golden, 0) >= 150);
    json_decref(golden);
}

/* A selection by tokens or by chunks of tokens does not depend on the pages below. */
static void pages_of_any_size_keep_the_same(void **state)
{
    (void)state;
    json_t *golden = read_golden();
    for (uint32_t page_tokens = is_light() ? 64 : 16; page_tokens <= 64; page_tokens *= 2)
        assert_true(run_cases(golden, page_tokens) >= 150);
    json_decref(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(methods_keep_what_the_oracle_keeps),
        cmocka_unit_test(pages_of_any_size_keep_the_same),
    };
    return cmocka_run_group_tests_name("retention_methods", tests, NULL, NULL);
}
