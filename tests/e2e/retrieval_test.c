/* Answers of the demo model that read few blocks: the same tokens and logprobs alone, batched, and
 * in a pool so small that they are swapped or computed again; none of what they compute is given to
 * a request that reads everything. On disk: retrieval_disk_test. */
#include "tests/e2e/retrieval_requests.h"

#include <math.h>

/* The report says what the server counted. */
static void check_report(const answer *a, const sched_stats *stats, uint32_t i)
{
    uint64_t rows = 0, context = 0, audits = 0;
    double recall = 0;
    for (uint32_t c = 0; c < CHOICES; c++) {
        const retrieval_totals *t = &a->reading[c];
        rows += t->rows;
        context += t->context;
        audits += t->audits;
        recall += t->recall_sum;
        if (t->audits) assert_true(t->least_recall > 0 && t->least_recall < 1);
    }
    /* The last token is never computed. */
    assert_int_equal(rows, asked[i] ? (i == 5 ? CHOICES : 1) * (OUTPUTS - 1) : 0);
    assert_int_equal(context, stats->retrieval_seen_tokens);
    assert_int_equal(audits, stats->retrieval_audits);
    assert_int_equal(audits > 0, i == 1 || i == 2);
    double missed = (double)audits - recall, counted = (double)stats->retrieval_missed / 1e6;
    assert_true(fabs(missed - counted) < 1e-6 * (double)rows + 1e-9);
}

/* Each request alone, in a backend that has computed nothing else. */
static int setup(void **state)
{
    answer *alone = calloc(REQUESTS, sizeof *alone), full;
    uint32_t differ = 0;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        house h = open_house(&usual);
        read_answer(submit_nth(&h, i, true), &alone[i]);
        assert_int_equal(alone[i].n[0], OUTPUTS);
        sched_stats stats = engine_get_stats(h.engine).sched;
        assert_int_equal(stats.retrieval_seen_tokens > 0, asked[i] != NULL);
        uint64_t least =
            kept[i] ? stats.retrieval_seen_tokens / 10 : stats.retrieval_seen_tokens / 3;
        if (asked[i])
            assert_true(stats.retrieval_read_tokens < stats.retrieval_seen_tokens - least);
        check_report(&alone[i], &stats, i);
        read_answer(submit_nth(&h, i, false), &full);
        differ += !same_answers(&full, &alone[i]);
        close_house(&h);
    }
    assert_int_equal(differ, REQUESTS - 1); /* one reads everything */
    *state = alone;
    return 0;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

/* A prompt takes 13 blocks, an answer 4 more. */
static sched_stats run(const answer *alone, uint32_t blocks, uint32_t swap_blocks,
                       bool prefix_cache)
{
    setting s = usual;
    s.kv_bytes = blocks * (uint64_t)BLOCK;
    s.swap_bytes = swap_blocks * (uint64_t)BLOCK;
    s.prefix_cache = prefix_cache;
    return run_in(alone, &s, blocks, swap_blocks, prefix_cache);
}

static void in_a_batch(void **state)
{
    for (int cache = is_light(); cache < 2; cache++)
        assert_int_equal(run(*state, 2000, 0, cache).preemptions, 0);
}

static void swapped_to_the_host_tier(void **state)
{
    sched_stats stats = run(*state, 44, 200, true);
    assert_true(stats.swaps_in > 0);
}

static void computed_again(void **state)
{
    for (int cache = is_light(); cache < 2; cache++)
        assert_true(run(*state, 44, 0, cache).replayed_tokens > 0);
}

/* A request that reads everything has the answer of one that reads few as part of its prompt, and
 * holds these blocks while the other is preempted. Computed again, the other takes none of them. */
static void computed_again_beside_its_own_text(void **state)
{
    const answer *few = *state;
    uint32_t tokens[PROMPT + OUTPUTS], others[PROMPT] = {0};
    rng random = rng_seed(40);
    for (uint32_t t = 0; t < PROMPT; t++) tokens[t] = rng_below(&random, 1000);
    memcpy(tokens + PROMPT, few->tokens[0], sizeof few->tokens[0]);
    setting s = usual;
    s.prefix_cache = true;
    s.kv_bytes = 40 * (uint64_t)BLOCK;
    house h = open_house(&s);
    engine_stream *streams[3];
    answer got[3];
    shut_gate(&h);
    engine_request r = request_of(tokens, PROMPT + OUTPUTS, NULL);
    streams[0] = submit(&h, &r);
    r = request_of(others, PROMPT, NULL);
    streams[1] = submit(&h, &r);
    streams[2] = submit_nth(&h, 0, true);
    open_gate(&h);
    for (uint32_t i = 0; i < 3; i++) read_answer(streams[i], &got[i]);
    sched_stats stats = engine_get_stats(h.engine).sched;
    assert_true(stats.replayed_tokens > 0);
    assert_true(same_answers(&got[2], few));
    close_house(&h);
}

/* One after another through few pages, which are used again and again. */
static void on_pages_of_others(void **state)
{
    const answer *alone = *state;
    setting s = usual;
    s.kv_bytes = 36 * (uint64_t)BLOCK; /* two choices */
    house h = open_house(&s);
    for (uint32_t i = 0; i < (is_light() ? 1 : 2) * REQUESTS; i++) {
        answer got;
        read_answer(submit_nth(&h, i % REQUESTS, true), &got);
        if (!same_answers(&got, &alone[i % REQUESTS])) fail_msg("request %u", i);
    }
    close_house(&h);
}

/* A request that reads everything finds no block of what others computed by reading few, and one
 * that reads few finds none of its own answer computed by reading everything. */
static void what_few_blocks_gave_is_not_shared(void **state)
{
    (void)state;
    uint32_t tokens[PROMPT + OUTPUTS];
    answer few, first, again, fresh;
    setting s = usual;
    s.prefix_cache = true;
    rng random = rng_seed(7);
    for (uint32_t t = 0; t < PROMPT; t++) tokens[t] = rng_below(&random, 1000);
    house h = open_house(&s);
    engine_request r = request_of(tokens, PROMPT, asked[0]);
    read_answer(submit(&h, &r), &few);
    memcpy(tokens + PROMPT, few.tokens[0], sizeof few.tokens[0]);
    r = request_of(tokens, PROMPT + OUTPUTS, NULL);
    read_answer(submit(&h, &r), &first);
    assert_in_range(first.cached, 1, PROMPT);
    r = request_of(tokens, PROMPT, asked[0]);
    read_answer(submit(&h, &r), &again);
    assert_true(same_answers(&again, &few));
    close_house(&h);
    h = open_house(&usual);
    r = request_of(tokens, PROMPT + OUTPUTS, NULL);
    read_answer(submit(&h, &r), &fresh);
    assert_true(same_answers(&fresh, &first));
    close_house(&h);
}

/* Two prompts end differently in the middle of a block, whose first pages they share. */
static engine_request half_of_a_block(uint32_t which, uint32_t *tokens)
{
    enum { SHARED = 96 };
    rng common = rng_seed(70), own = rng_seed(71 + which);
    for (uint32_t t = 0; t < PROMPT; t++) tokens[t] = rng_below(t < SHARED ? &common : &own, 1000);
    return request_of(tokens, PROMPT,
                      "{\"method\": \"quest\", \"block_size\": 64, \"initial_tokens\": 0, "
                      "\"local_windows_len\": 64, \"second_select_num\": 1}");
}

static void blocks_that_share_some_pages(void **state)
{
    (void)state;
    uint32_t tokens[2][PROMPT];
    answer alone[2], got[2];
    engine_stream *streams[2];
    setting s = usual;
    for (uint32_t i = 0; i < 2; i++) {
        house h = open_house(&usual);
        engine_request r = half_of_a_block(i, tokens[i]);
        read_answer(submit(&h, &r), &alone[i]);
        close_house(&h);
    }
    s.prefix_cache = true;
    house h = open_house(&s);
    engine_request r = half_of_a_block(0, tokens[0]);
    read_answer(submit(&h, &r), &got[0]);
    shut_gate(&h);
    for (uint32_t i = 0; i < 2; i++) {
        r = half_of_a_block(i, tokens[i]);
        streams[i] = submit(&h, &r);
    }
    open_gate(&h);
    for (uint32_t i = 0; i < 2; i++) {
        read_answer(streams[i], &got[i]);
        assert_in_range(got[i].cached, 96, PROMPT);
        assert_true(same_answers(&got[i], &alone[i]));
    }
    close_house(&h);
}

/* Each method makes its own representatives of the blocks that the prefix cache gives it, whatever
 * another method has made of them: in an earlier answer, or in the step before. */
static void methods_take_turns_on_one_prompt(void **state)
{
    (void)state;
    enum { METHODS = 3 };
    static const char *const methods[METHODS] = {
        "{\"method\": \"ktransformers\", \"anchor_type\": \"BLOCK_MAX\", " FEW "}",
        "{\"method\": \"ktransformers\", " FEW "}",
        "{\"method\": \"dynamic\", \"anchor_num\": 2, \"observed_rows\": 31, " FEW "}",
    };
    static const uint8_t turns[] = {0, 2, 0, 1, 2, 1};
    uint32_t tokens[PROMPT];
    answer alone[METHODS], got;
    engine_stream *streams[METHODS];
    setting s = usual;
    rng random = rng_seed(8);
    for (uint32_t t = 0; t < PROMPT; t++) tokens[t] = rng_below(&random, 1000);
    for (uint32_t m = 0; m < METHODS; m++) {
        house h = open_house(&usual);
        engine_request r = request_of(tokens, PROMPT, methods[m]);
        read_answer(submit(&h, &r), &alone[m]);
        close_house(&h);
        for (uint32_t other = 0; other < m; other++)
            assert_false(same_answers(&alone[other], &alone[m]));
    }
    s.prefix_cache = true;
    house h = open_house(&s);
    for (size_t i = 0; i < sizeof turns; i++) {
        engine_request r = request_of(tokens, PROMPT, methods[turns[i]]);
        read_answer(submit(&h, &r), &got);
        if (i > 0) assert_in_range(got.cached, PROMPT / 2, PROMPT);
        if (!same_answers(&got, &alone[turns[i]])) fail_msg("turn %zu", i);
    }
    shut_gate(&h);
    for (uint32_t m = 0; m < METHODS; m++) {
        engine_request r = request_of(tokens, PROMPT, methods[m]);
        streams[m] = submit(&h, &r);
    }
    open_gate(&h);
    for (uint32_t m = 0; m < METHODS; m++) {
        read_answer(streams[m], &got);
        if (!same_answers(&got, &alone[m])) fail_msg("method %u beside the others", m);
    }
    close_house(&h);
}

static void every_block_is_full_attention(void **state)
{
    (void)state;
    uint32_t tokens[PROMPT];
    answer all, full;
    rng random = rng_seed(8);
    for (uint32_t t = 0; t < PROMPT; t++) tokens[t] = rng_below(&random, 1000);
    house h = open_house(&usual);
    engine_request r = request_of(tokens, PROMPT,
                                  "{\"method\": \"quest\", \"block_size\": 16, "
                                  "\"local_windows_len\": 16}");
    read_answer(submit(&h, &r), &all);
    r = request_of(tokens, PROMPT, NULL);
    read_answer(submit(&h, &r), &full);
    assert_true(same_answers(&all, &full));
    close_house(&h);
}

/* ---- epsilon --------------------------------------------------------------------------------- */

/* Runs one request and returns what its rows missed and how much of their context they read. */
static retrieval_totals examine(house *h, uint64_t seed, const char *retrieval)
{
    uint32_t tokens[PROMPT];
    answer got;
    rng random = rng_seed(seed);
    for (uint32_t t = 0; t < PROMPT; t++) tokens[t] = rng_below(&random, 1000);
    engine_request r = request_of(tokens, PROMPT, retrieval);
    read_answer(submit(h, &r), &got);
    return got.reading[0];
}

/* Every row is audited, in pages of every type: 45,312 recalls of a layer and query head; 10^6 with
 * OCTAVO_SOAK. */
static void no_head_misses_more_than_epsilon(void **state)
{
    (void)state;
    static const kern_kv_format formats[] = {KERN_KV_F32, KERN_KV_BF16, KERN_KV_INT8, KERN_KV_INT4};
    static const char *const shares[] = {"0.02", "0.1", "0.4"};
    static const char *const heads[] = {"SEPARATE", "SHARED"};
    uint64_t triples = 0, read = 0, context = 0;
    uint32_t n = getenv("OCTAVO_SOAK") ? 140 : is_light() ? 2 : 6; /* requests */
    for (uint32_t f = 0; f < 4; f++) {
        setting s = usual;
        s.kv_type = formats[f];
        s.page_tokens = formats[f] == KERN_KV_INT4 ? 32 : 16;
        s.kv_bytes = 64 << 20;
        house h = open_house(&s);
        for (uint32_t i = 0; i < n; i++) {
            char text[256];
            double epsilon = strtod(shares[i % 3], NULL);
            snprintf(text, sizeof text,
                     "{\"method\": \"quest\", \"dense_layer_num\": 0, \"local_windows_len\": 16, "
                     "\"block_size\": 32, \"audit\": 1, \"epsilon\": %s, \"head_select_mode\": "
                     "\"%s\"}",
                     shares[i % 3], heads[i / 3 % 2]);
            retrieval_totals t = examine(&h, 60 + i, text);
            assert_int_equal(t.rows, OUTPUTS - 1);
            assert_int_equal(t.audited, t.rows);
            assert_int_equal(t.failed, 0);
            assert_true(t.most_missed <= epsilon);
            assert_true(1 - t.least_recall <= t.most_missed * (1 + 1e-4) + 1e-9);
            triples += t.audits;
            read += (uint64_t)t.tokens;
            context += t.context;
        }
        close_house(&h);
    }
    assert_true(triples >= (uint64_t)n * 4 * 1800 && read < context);
}

/* The message of a request that is refused when it is submitted or before it runs. */
static void assert_refused(house *h, engine_request *r, const char *why)
{
    engine_stream *s;
    engine_output out;
    error err = {{0}};
    char got[512] = "";
    if (status_ok(try_submit(h, r, &s, &err))) {
        while (engine_stream_wait(s, &out))
            if (out.finish == ENGINE_FINISH_ERROR) snprintf(got, sizeof got, "%s", out.error_text);
        engine_stream_release(s);
        assert_string_equal(got, why);
    } else {
        assert_string_equal(err.text, why);
    }
}

static void what_cannot_be_had_is_refused(void **state)
{
    (void)state;
    uint32_t tokens[PROMPT] = {0};
    house h = open_house(&usual);
    engine_request r = request_of(tokens, PROMPT, asked[0]);
    r.retention = object_of("{\"method\": \"adakv\", \"ratio\": 0.5}");
    assert_refused(&h, &r,
                   "retrieval: needs KV heads that keep equally many tokens once the prompt is "
                   "over, so it cannot go with retention method 'adakv' as it is asked for");
    r = request_of(tokens, PROMPT, asked[3]);
    r.retention = object_of(kept[8]);
    assert_refused(&h, &r,
                   "retrieval: what the prompt's end attends to is measured before retention "
                   "selects, so DYNAMIC and preselect_block cannot go with retention method "
                   "'snapkv'");
    close_house(&h);
    setting s = usual;
    s.prefill_chunk = 64;
    h = open_house(&s);
    r = request_of(tokens, PROMPT, "{\"method\": \"dynamic\", \"observed_rows\": 65, " FEW "}");
    assert_refused(&h, &r,
                   "retrieval: the prompt's last 65 rows are measured, which do not fit in a "
                   "prefill chunk of 64");
    close_house(&h);
}

/* The method, with a budget that the prompt exceeds. */
static json_t *small_budget(const retention_preset *preset)
{
    json_t *r = json_pack("{s:s}", "method", preset->name);
    if (preset->fields & RETENTION_FIELD_BUDGET) json_object_set_new(r, "tokens", json_integer(64));
    if (preset->defaults.contiguous) {
        json_object_set_new(r, "recurrent_chunk", json_integer(48));
        json_object_set_new(r, "sinks", json_integer(4));
        json_object_set_new(r, "window", json_integer(8));
    }
    if (preset->defaults.gather_tokens) {
        json_object_set_new(r, "gather_tokens", json_integer(64));
        json_object_set_new(r, "query_tokens", json_integer(4));
    }
    return r;
}

/* Each retention method goes with retrieval or is refused by name: none fails a step. */
static void prompts_may_keep_a_part(void **state)
{
    (void)state;
    size_t n, n_taken = 0;
    const retention_preset *presets = retention_presets(&n);
    setting wide = usual;
    wide.prefill_chunk = 256;
    house h = open_house(&wide);
    for (size_t i = 0; i < n; i++) {
        uint32_t tokens[PROMPT], n_tokens = 0;
        rng random = rng_seed(9);
        for (uint32_t t = 0; t < PROMPT; t++) tokens[t] = rng_below(&random, 1000);
        engine_request r = request_of(tokens, PROMPT, asked[8]);
        r.max_tokens = 4;
        r.retention = small_budget(&presets[i]);
        engine_stream *s;
        engine_output out;
        error err = {{0}};
        const char *why = err.text;
        bool refused = !status_ok(try_submit(&h, &r, &s, &err));
        while (!refused && engine_stream_wait(s, &out)) {
            n_tokens += out.has_token;
            if (out.finish != ENGINE_FINISH_ERROR) continue;
            snprintf(err.text, sizeof err.text, "%s", out.error_text);
        }
        if (!refused) engine_stream_release(s);
        if (why[0] ? !strstr(why, "needs KV heads that keep equally many tokens") : n_tokens != 4)
            fail_msg("%s: %u tokens; %s", presets[i].name, n_tokens, why);
        n_taken += !why[0];
    }
    assert_int_equal(n_taken, 14);
    sched_stats stats = engine_get_stats(h.engine).sched;
    assert_true(stats.retrieval_seen_tokens < n_taken * 3 * (PROMPT / 2 + 4));
    assert_true(stats.retrieval_read_tokens < stats.retrieval_seen_tokens);
    close_house(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_a_batch),
        cmocka_unit_test(swapped_to_the_host_tier),
        cmocka_unit_test(computed_again),
        cmocka_unit_test(computed_again_beside_its_own_text),
        cmocka_unit_test(on_pages_of_others),
        cmocka_unit_test(what_few_blocks_gave_is_not_shared),
        cmocka_unit_test(blocks_that_share_some_pages),
        cmocka_unit_test(methods_take_turns_on_one_prompt),
        cmocka_unit_test(every_block_is_full_attention),
        cmocka_unit_test(no_head_misses_more_than_epsilon),
        cmocka_unit_test(prompts_may_keep_a_part),
        cmocka_unit_test(what_cannot_be_had_is_refused),
    };
    return cmocka_run_group_tests_name("retrieval", tests, setup, teardown);
}
