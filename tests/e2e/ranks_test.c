/* The demo model as tensor-parallel ranks behind the whole engine: a batch of short requests that
 * fork, hit prefixes, sample and drop pages is answered as by a single rank. Short enough for
 * ThreadSanitizer; longer tests are in retention_golden_test and invariance_test. */
#include "tests/e2e/house.h"

#include <math.h>

enum { REQUESTS = 9, CHOICES = 2, OUTPUTS = 6, PROMPT = 150 };

/* ThreadSanitizer sees the same code in any number of ranks, over tables of all heads or of one. */
#if defined(__SANITIZE_THREAD__)
enum { FEWEST = 8, MOST_BY_HEADS = 2, FEWEST_READING = 4, MOST_READING = 4 };
#else
enum { FEWEST = 2, MOST_BY_HEADS = 8, FEWEST_READING = 2, MOST_READING = 8 };
#endif

typedef struct answer {
    uint32_t n[CHOICES];
    uint32_t tokens[CHOICES][OUTPUTS];
    char kept[4096]; /* positions of the report */
    retrieval_totals reading;
} answer;

/* The requests' fields `retrieval`; the requests without one read everything. */
static const char *const few[REQUESTS] = {
    "{\"method\":\"ktransformers\",\"block_size\":16,\"local_windows_len\":16,"
    "\"second_select_num\":2}",
    NULL,
    "{\"method\":\"quest\",\"block_size\":16,\"local_windows_len\":16,"
    "\"second_select_num\":2}",
    "{\"method\":\"quest\",\"head_select_mode\":\"GROUP\",\"group_heads\":2,"
    "\"block_size\":16,\"local_windows_len\":16,\"second_select_num\":2}",
    "{\"method\":\"ktransformers\",\"anchor_type\":\"FIX\",\"layer_step\":3,\"block_size\":32,"
    "\"local_windows_len\":32,\"second_select_num\":1}",
    "{\"method\":\"ktransformers\",\"anchor_type\":\"MAX\",\"token_step\":3,\"block_size\":16,"
    "\"local_windows_len\":16,\"second_select_num\":1}",
    "{\"method\":\"dynamic\",\"anchor_num\":2,\"block_size\":16,\"local_windows_len\":16,"
    "\"second_select_num\":2,\"audit\":2}",
    "{\"method\":\"ktransformers\",\"preselect_block\":true,\"preselect_block_count\":3,"
    "\"block_size\":16,\"local_windows_len\":16,\"second_select_num\":1,\"audit\":1}",
    "{\"method\":\"quest\",\"head_select_mode\":\"SHARED\",\"dense_layer_num\":0,"
    "\"block_size\":16,\"local_windows_len\":16,\"epsilon\":0.4,\"audit\":1}",
};

static json_t *object_of(const char *text)
{
    json_t *out;
    error err = {{0}};
    if (!status_ok(json_read_text("test", text, strlen(text), &out, &err)))
        fail_msg("%s", err.text);
    return out;
}

static engine_stream *submit(house *h, uint32_t i, bool reads_few)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    engine_stream *s;
    error err = {{0}};
    uint32_t ids[PROMPT];
    rng random = rng_seed(5 + i / 2); /* pairs share a beginning */
    for (int t = 0; t < PROMPT; t++) ids[t] = rng_below(&random, 1000);
    ids[PROMPT - 1] = i;
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = ids;
    r.n_prompt_token_ids = PROMPT;
    r.max_tokens = OUTPUTS;
    r.ignore_eos = true;
    r.n = i == 1 ? CHOICES : 1;
    if (i % 2) {
        r.temperature = 0.8f;
        r.has_seed = true;
        r.seed = i;
    }
    if (reads_few && few[i]) r.retrieval = object_of(few[i]);
    if (i >= 2 && !reads_few)
        r.retention = json_pack("{s:s, s:f, s:i, s:s}", "method", "chunkkv", "ratio", 0.5, "window",
                                16, "report", "positions");
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
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
        if (out.has_token) a->tokens[out.choice][a->n[out.choice]++] = out.sample.token;
        if (out.reading) a->reading = *out.reading;
        if (out.finish == ENGINE_FINISH_NONE || !out.report) continue;
        if (out.report->kept_json) snprintf(a->kept, sizeof a->kept, "%s", out.report->kept_json);
    }
    engine_stream_release(s);
}

static void answer_all(uint32_t n_ranks, uint32_t heads_per_group, bool reads_few, answer *answers)
{
    setting s = {.kv_type = KERN_KV_F32,
                 .precision = KERN_PRECISION_HIGH,
                 .prefill_chunk = reads_few ? 128 : 64, /* retrieval measures 128 rows at once */
                 .layers_per_group = 1,
                 .heads_per_group = heads_per_group,
                 .page_tokens = 16,
                 .max_model_len = 512,
                 .kv_bytes = 16 << 20,
                 .prefix_cache = true,
                 .n_ranks = n_ranks};
    engine_stream *streams[REQUESTS];
    house h = open_house(&s);
    for (uint32_t i = 0; i < REQUESTS; i++) streams[i] = submit(&h, i, reads_few);
    for (uint32_t i = 0; i < REQUESTS; i++) read_answer(streams[i], &answers[i]);
    sched_stats stats = engine_get_stats(h.engine).sched;
    assert_int_equal(stats.retrieval_read_tokens < stats.retrieval_seen_tokens, reads_few);
    close_house(&h);
}

static void expect_equal(const answer *want, const answer *got, uint32_t n_ranks, bool drops)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        if (memcmp(want[i].n, got[i].n, sizeof want->n) ||
            memcmp(want[i].tokens, got[i].tokens, sizeof want->tokens))
            fail_msg("%u ranks: request %u has other tokens", n_ranks, i);
        if (strcmp(want[i].kept, got[i].kept) != 0)
            fail_msg("%u ranks: request %u keeps %s, not %s", n_ranks, i, got[i].kept,
                     want[i].kept);
        assert_int_equal(want[i].kept[0] != 0, drops && i >= 2);
    }
}

/* Sums of recalls depend on the last bits of queries and keys. */
static void expect_equal_readings(const answer *want, const answer *got)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const retrieval_totals *x = &want[i].reading, *y = &got[i].reading;
        assert_int_equal(x->rows > 0, few[i] != NULL);
        assert_int_equal(x->audits > 0, i >= 6);
        assert_int_equal(x->exams > 0, i == 8);
        assert_int_equal(x->rows, y->rows);
        assert_int_equal(x->context, y->context);
        assert_int_equal(x->selections, y->selections);
        assert_int_equal(x->audited, y->audited);
        assert_int_equal(x->audits, y->audits);
        assert_int_equal(x->exams, y->exams);
        assert_int_equal(x->failed, y->failed);
        assert_true(x->tokens == y->tokens && x->blocks == y->blocks);
        assert_true(fabs(x->recall_sum - y->recall_sum) <= 1e-4 * (double)x->audits);
        assert_true(fabs(x->least_recall - y->least_recall) < 1e-4);
        assert_true(fabs(x->most_missed - y->most_missed) < 1e-4);
    }
}

static void ranks_answer_as_one(void **state)
{
    (void)state;
    static answer alone[REQUESTS], got[REQUESTS];
    answer_all(0, 4, false, alone);
    for (uint32_t n_ranks = FEWEST; n_ranks <= 8; n_ranks *= 2) {
        answer_all(n_ranks, 4, false, got);
        expect_equal(alone, got, n_ranks, true);
    }
}

/* Tables of single heads: each rank writes to the pages of its own heads. */
static void ranks_answer_as_one_by_heads(void **state)
{
    (void)state;
    static answer alone[REQUESTS], got[REQUESTS];
    answer_all(0, 1, false, alone);
    for (uint32_t n_ranks = 2; n_ranks <= MOST_BY_HEADS; n_ranks *= 2) {
        answer_all(n_ranks, 1, false, got);
        expect_equal(alone, got, n_ranks, true);
    }
}

/* Query heads of a KV head and KV heads that select together lie on several ranks. */
static void ranks_read_few_as_one(void **state)
{
    (void)state;
    static answer alone[REQUESTS], got[REQUESTS];
    answer_all(0, 1, true, alone);
    for (uint32_t n_ranks = FEWEST_READING; n_ranks <= MOST_READING; n_ranks *= 2) {
        answer_all(n_ranks, n_ranks == 4 ? 4 : 1, true, got);
        expect_equal(alone, got, n_ranks, false);
        expect_equal_readings(alone, got);
    }
}

/* The engine is destroyed while steps run. */
static void ranks_stop_while_they_work(void **state)
{
    (void)state;
    setting s = {.kv_type = KERN_KV_BF16,
                 .precision = KERN_PRECISION_HIGH,
                 .prefill_chunk = 64,
                 .layers_per_group = 1,
                 .heads_per_group = 4,
                 .page_tokens = 16,
                 .max_model_len = 512,
                 .kv_bytes = 8 << 20,
                 .n_ranks = 4};
    engine_stream *streams[REQUESTS];
    house h = open_house(&s);
    for (uint32_t i = 0; i < REQUESTS; i++) streams[i] = submit(&h, i, false);
    engine_output out;
    assert_true(engine_stream_wait(streams[0], &out));
    for (uint32_t i = 0; i < REQUESTS; i++) engine_stream_release(streams[i]);
    close_house(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_answer_as_one),
        cmocka_unit_test(ranks_answer_as_one_by_heads),
        cmocka_unit_test(ranks_read_few_as_one),
        cmocka_unit_test(ranks_stop_while_they_work),
    };
    return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
