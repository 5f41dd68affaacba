/* The demo model in a pool too small for its requests, all of which have dropped pages: whether
 * swapped to the host tier, replayed, or a mix, a request's tokens and logprobs are the same as
 * when it runs alone. */
#include "tests/e2e/house.h"

enum { REQUESTS = 8, PROMPT = 200, OUTPUTS = 100, CHOICES = 2, BLOCK = 17408 };

typedef struct answer {
    uint32_t n[CHOICES];
    uint32_t tokens[CHOICES][OUTPUTS];
    float logprobs[CHOICES][OUTPUTS];
    uint64_t pages_dropped;
} answer;

/* The scales of pages have to be swapped too. */
static const setting usual = {.kv_type = KERN_KV_INT8,
                              .prefill_chunk = 128,
                              .layers_per_group = 1,
                              .heads_per_group = 4,
                              .page_tokens = 16,
                              .max_model_len = 1024,
                              .kv_bytes = 2000 * (uint64_t)BLOCK};

/* Random ids; some sample with penalties, so that their histories have to be restored too. */
static engine_stream *submit(house *h, uint32_t i)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    uint32_t tokens[PROMPT];
    rng random = rng_seed(40 + i / 2); /* pairs, for the prefix cache */
    for (uint32_t t = 0; t < PROMPT; t++) tokens[t] = rng_below(&random, 1000);
    engine_request r;
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = tokens;
    r.n_prompt_token_ids = PROMPT - i % 2 * 7;
    r.max_tokens = OUTPUTS;
    r.ignore_eos = true;
    r.logprobs = 1;
    r.n = i == 5 ? CHOICES : 1;
    if (i % 2) {
        r.temperature = 0.9f;
        r.has_seed = true;
        r.seed = i;
        r.frequency_penalty = 0.3f;
        r.repetition_penalty = 1.1f;
    }
    r.retention = json_pack("{s:s, s:f, s:i}", "method", "chunkkv", "ratio", 0.3, "window", 16);
    engine_stream *s;
    error err = {{0}};
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
        uint32_t c = out.choice;
        if (out.has_token) {
            a->tokens[c][a->n[c]] = out.sample.token;
            a->logprobs[c][a->n[c]++] = out.sample.logprob;
        }
        if (out.report) a->pages_dropped = out.report->pages_dropped;
    }
    engine_stream_release(s);
}

static int setup(void **state)
{
    answer *alone = calloc(REQUESTS, sizeof *alone);
    house h = open_house(&usual);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        read_answer(submit(&h, i), &alone[i]);
        assert_int_equal(alone[i].n[0], OUTPUTS);
        assert_true(alone[i].pages_dropped > 0);
    }
    assert_int_equal(engine_get_stats(h.engine).sched.preemptions, 0);
    close_house(&h);
    *state = alone;
    return 0;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

/* A pool of 34 blocks: a prompt takes 13; kept and generated tokens 10 or 11. */
static sched_stats run(const answer *alone, uint32_t swap_blocks, bool prefix_cache)
{
    setting s = usual;
    s.kv_bytes = 34 * (uint64_t)BLOCK;
    s.swap_bytes = swap_blocks * (uint64_t)BLOCK;
    s.prefix_cache = prefix_cache;
    house h = open_house(&s);
    engine_stream *streams[REQUESTS];
    answer got;
    shut_gate(&h);
    for (uint32_t i = 0; i < REQUESTS; i++) streams[i] = submit(&h, i);
    open_gate(&h);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        read_answer(streams[i], &got);
        if (memcmp(&got, &alone[i], sizeof got) != 0)
            fail_msg("%u blocks to swap%s: request %u has other tokens or logprobs", swap_blocks,
                     prefix_cache ? ", prefix cache" : "", i);
    }
    sched_stats stats = engine_get_stats(h.engine).sched;
    close_house(&h);
    print_message(
        "%u blocks to swap: %llu preemptions, %llu swapped, %llu back, %llu refused; "
        "%llu pages copied back, %llu still there; %llu tokens computed again\n",
        swap_blocks, (unsigned long long)stats.preemptions, (unsigned long long)stats.swaps_out,
        (unsigned long long)stats.swaps_in, (unsigned long long)stats.swaps_refused,
        (unsigned long long)stats.pages.pages_swapped_in,
        (unsigned long long)stats.pages.pages_retaken, (unsigned long long)stats.replayed_tokens);
    assert_true(stats.preemptions > 0);
    assert_true(stats.swaps_in == stats.swaps_out); /* no request ends while swapped out */
    return stats;
}

static void a_tier_for_all(void **state)
{
    for (int cache = 0; cache < 2; cache++) {
        sched_stats stats = run(*state, 200, cache);
        assert_true(stats.swaps_out > 0 && stats.swaps_refused == 0);
        assert_int_equal(stats.replayed_tokens, 0);
    }
}

static void a_tier_that_is_soon_full(void **state)
{
    sched_stats stats = run(*state, 9, false);
    assert_true(stats.swaps_out > 0 && stats.swaps_refused > 0 && stats.replayed_tokens > 0);
}

static void no_tier(void **state)
{
    sched_stats stats = run(*state, 0, false);
    assert_true(stats.swaps_out == 0 && stats.replayed_tokens > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tier_for_all),
        cmocka_unit_test(a_tier_that_is_soon_full),
        cmocka_unit_test(no_tier),
    };
    return cmocka_run_group_tests_name("swap", tests, setup, teardown);
}
