/* The pages that chunkkv keeps under the demo model's real attention, and the model's answers
 * afterwards, against tools/retention_reference.py, which was written from the papers without
 * knowledge of this code. */
#include "tests/e2e/house.h"

enum { LAYERS_MAX = 16, PAGES_MAX = 512 };

/* kept[layer][page of the prompt] */
typedef struct kept_set {
    bool page[LAYERS_MAX][PAGES_MAX];
} kept_set;

/* Reads a "kept" array; here all heads of a layer keep the same pages. */
static void read_kept(const json_t *kept, kept_set *out)
{
    size_t i, j;
    json_t *table, *range;
    memset(out, 0, sizeof *out);
    json_array_foreach(kept, i, table)
    {
        json_int_t first = json_integer_value(json_array_get(json_object_get(table, "layers"), 0));
        json_int_t last = json_integer_value(json_array_get(json_object_get(table, "layers"), 1));
        assert_in_range(last, first, LAYERS_MAX - 1);
        json_array_foreach(json_object_get(table, "ranges"), j, range)
        {
            json_int_t from = json_integer_value(json_array_get(range, 0));
            json_int_t to = json_integer_value(json_array_get(range, 1));
            assert_in_range(to, from + 1, PAGES_MAX * 16);
            assert_int_equal(from % 16, 0);
            for (json_int_t l = first; l <= last; l++)
                for (json_int_t p = from / 16; p * 16 < to; p++) out->page[l][p] = true;
        }
    }
}

/* Finds the line of a .jsonl file with this "id". */
static json_t *find_line(const char *text, const char *id)
{
    for (const char *line = text, *end; *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        json_t *json;
        if (end == line ||
            !status_ok(json_read_text("needle set", line, (size_t)(end - line), &json, NULL)))
            continue;
        if (strcmp(json_string_value(json_object_get(json, "id")), id) == 0) return json;
        json_decref(json);
    }
    fail_msg("no prompt '%s'", id);
    return NULL;
}

static engine_stream *submit(house *h, const json_t *prompt, const json_t *retention,
                             uint32_t max_tokens)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    engine_stream *s;
    error err = {{0}};
    engine_request_init(&r, &defaults);
    const char *text = json_string_value(json_object_get(prompt, "prompt"));
    r.prompt = strdup(text);
    r.prompt_bytes = strlen(text);
    r.max_tokens = max_tokens;
    r.retention = json_deep_copy(retention);
    json_object_set_new(r.retention, "report", json_string("positions"));
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    engine_request_destroy(&r);
    return s;
}

static void check_kept(house *h, const json_t *prompt, const json_t *want)
{
    kept_set expected, got;
    read_kept(json_object_get(want, "kept"), &expected);
    engine_stream *s = submit(h, prompt, json_object_get(want, "retention"), 1);
    const char *id = json_string_value(json_object_get(want, "id"));
    engine_output out;
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_NONE) continue;
        if (out.finish == ENGINE_FINISH_ERROR) fail_msg("%s: %s", id, out.error_text);
        assert_int_equal(out.usage.prompt_tokens,
                         json_integer_value(json_object_get(want, "prompt_tokens")));
        json_t *kept;
        assert_true(status_ok(json_read_text("kept", out.report->kept_json,
                                             strlen(out.report->kept_json), &kept, NULL)));
        read_kept(kept, &got);
        json_decref(kept);
        assert_int_equal(out.report->budget_raised,
                         json_is_true(json_object_get(want, "budget_raised")));
    }
    engine_stream_release(s);
    for (int l = 0; l < LAYERS_MAX; l++)
        for (int p = 0; p < PAGES_MAX; p++)
            if (expected.page[l][p] != got.page[l][p])
                fail_msg("%s: layer %d %s page %d", id, l, got.page[l][p] ? "keeps" : "drops", p);
}

static void check_answer(house *h, const json_t *prompt, const json_t *want)
{
    const json_t *ids = json_object_get(want, "token_ids");
    engine_stream *s = submit(h, prompt, json_object_get(want, "retention"), 16);
    engine_output out;
    size_t n = 0;
    while (engine_stream_wait(s, &out)) {
        if (!out.has_token || n >= json_array_size(ids)) continue;
        assert_int_equal(out.sample.token, json_integer_value(json_array_get(ids, n)));
        n++;
    }
    assert_int_equal(n, json_array_size(ids));
    engine_stream_release(s);
}

/* Checks one case in `every`. */
static void check_all(uint32_t n_ranks, size_t every)
{
    json_t *golden;
    char *prompts;
    size_t bytes, i;
    error err = {{0}};
    if (!status_ok(json_read_file("tests/golden/retention_demo.json", 1 << 20, &golden, &err)) ||
        !status_ok(file_read("tests/golden/needle_200.jsonl", 16 << 20, &prompts, &bytes, &err)))
        fail_msg("%s", err.text);
    setting s = {.what = "f32",
                 .kv_type = KERN_KV_F32,
                 .precision = KERN_PRECISION_HIGH, /* the reference rounds no activation */
                 .prefill_chunk = 512,
                 .layers_per_group = 1,
                 .heads_per_group = 4,
                 .page_tokens = 16,
                 .max_model_len = 4096,
                 .kv_bytes = 64 << 20,
                 .prefix_cache = true,
                 .n_ranks = n_ranks};
    house h = open_house(&s);
    json_t *want;
    size_t n_checked = 0;
    json_array_foreach(json_object_get(golden, "cases"), i, want)
    {
        if (i % every != 0) continue;
        n_checked++;
        json_t *prompt = find_line(prompts, json_string_value(json_object_get(want, "id")));
        check_kept(&h, prompt, want);
        check_answer(&h, prompt, want);
        json_decref(prompt);
    }
    print_message("%u ranks, %zu prompts: kept pages and answers equal\n", n_ranks, n_checked);
    assert_true(n_checked >= (every > 1 ? 2 : 10));
    close_house(&h);
    free(prompts);
    json_decref(golden);
}

static void chunkkv_keeps_what_the_reference_keeps(void **state)
{
    (void)state;
    check_all(0, is_light() ? 3 : 1);
}

/* Ranks sum the outputs of o and down in another order than a single rank, which changes no page or
 * token of the reference. With 8 ranks each KV head is on two. All prompts are a soak's. */
static void ranks_keep_the_same(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 8; n_ranks *= 2)
        check_all(n_ranks, getenv("OCTAVO_SOAK") ? 1 : is_light() ? 5 : 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunkkv_keeps_what_the_reference_keeps),
        cmocka_unit_test(ranks_keep_the_same),
    };
    return cmocka_run_group_tests_name("retention_golden", tests, NULL, NULL);
}
