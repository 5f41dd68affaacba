/* Requests that read few blocks of their context, with retention, choices and shared prefixes among
 * them, and what they answer. */
#ifndef TESTS_E2E_RETRIEVAL_REQUESTS_H
#define TESTS_E2E_RETRIEVAL_REQUESTS_H

#include "tests/e2e/house.h"

enum {
    REQUESTS = 10,
    PROMPT = 200,
    OUTPUTS = 60,
    CHOICES = 2,
    BLOCK = 17408,
};

typedef struct answer {
    uint32_t n[CHOICES], cached;
    uint32_t tokens[CHOICES][OUTPUTS];
    float logprobs[CHOICES][OUTPUTS];
    retrieval_totals reading[CHOICES];
} answer;

/* Every row selects 3 of about 12 blocks, and reads one before and two or three behind them. */
#define FEW "\"block_size\": 16, \"local_windows_len\": 32, \"second_select_num\": 3"
static const char *const asked[REQUESTS] = {
    "{\"method\": \"ktransformers\", " FEW "}",
    "{\"method\": \"quest\", \"token_step\": 4, \"audit\": 4, " FEW "}",
    "{\"method\": \"ktransformers\", \"anchor_type\": \"BLOCK_MAX\", \"layer_step\": 3, "
    "\"token_step\": 7, \"audit\": 1, " FEW "}",
    "{\"method\": \"quest\", \"head_select_mode\": \"GROUP\", \"group_heads\": 2, "
    "\"dense_layer_num\": 0, \"preselect_block\": true, \"preselect_block_count\": 5, " FEW "}",
    "{\"method\": \"dynamic\", \"anchor_num\": 2, \"observed_rows\": 31, " FEW "}",
    "{\"method\": \"quest\", \"anchor_type\": \"FIXED\", \"block_size\": 32, "
    "\"local_windows_len\": 32, \"second_select_num\": 1, \"token_step\": 33, "
    "\"preselect_block\": true, \"preselect_block_count\": 2}",
    NULL,
    "{\"method\": \"quest\", \"block_size\": 32, \"local_windows_len\": 32, "
    "\"second_select_num\": 1, \"epsilon\": 0.5}",
    "{\"method\": \"quest\", \"block_size\": 16, \"local_windows_len\": 16, "
    "\"second_select_num\": 1}",
    "{\"method\": \"ktransformers\", \"block_size\": 16, \"local_windows_len\": 16, "
    "\"second_select_num\": 1, \"token_step\": 5}",
};

/* The requests' fields `retention`; the requests without one keep everything. */
static const char *const kept[REQUESTS] = {
    [8] = "{\"method\": \"snapkv\", \"ratio\": 0.5}",
    [9] = "{\"method\": \"chunkkv\", \"tokens\": 112}",
};

static const setting usual = {.kv_type = KERN_KV_INT8,
                              .prefill_chunk = 128,
                              .layers_per_group = 1,
                              .heads_per_group = 1,
                              .page_tokens = 16,
                              .max_model_len = 1024,
                              .kv_bytes = 2000 * (uint64_t)BLOCK};

static inline json_t *object_of(const char *text)
{
    json_t *out;
    error err = {{0}};
    if (!status_ok(json_read_text("test", text, strlen(text), &out, &err)))
        fail_msg("%s", err.text);
    return out;
}

static inline engine_request request_of(uint32_t *tokens, uint32_t n, const char *retrieval)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = tokens;
    r.n_prompt_token_ids = n;
    r.max_tokens = OUTPUTS;
    r.ignore_eos = true;
    r.logprobs = 1;
    if (retrieval) r.retrieval = object_of(retrieval);
    return r;
}

/* Takes the request. The tokens stay the test's. */
static inline status try_submit(house *h, engine_request *r, engine_stream **out, error *err)
{
    status s = engine_submit(h->engine, r, NULL, NULL, out, err);
    r->prompt_token_ids = NULL;
    engine_request_destroy(r);
    return s;
}

static inline engine_stream *submit(house *h, engine_request *r)
{
    engine_stream *s;
    error err = {{0}};
    if (!status_ok(try_submit(h, r, &s, &err))) fail_msg("%s", err.text);
    return s;
}

/* Random ids; requests 0 and 1, 2 and 3, … have one prompt, for the prefix cache. */
static inline engine_stream *submit_nth(house *h, uint32_t i, bool few)
{
    uint32_t tokens[PROMPT];
    rng random = rng_seed(40 + i / 2);
    for (uint32_t t = 0; t < PROMPT; t++) tokens[t] = rng_below(&random, 1000);
    engine_request r = request_of(tokens, PROMPT - i % 2 * 7, few ? asked[i] : NULL);
    if (kept[i]) r.retention = object_of(kept[i]);
    r.n = i == 5 ? CHOICES : 1;
    if (i % 2) {
        r.temperature = 0.9f;
        r.has_seed = true;
        r.seed = i;
    }
    return submit(h, &r);
}

static inline void read_answer(engine_stream *s, answer *a)
{
    engine_output out;
    memset(a, 0, sizeof *a);
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_ERROR) fail_msg("%s", out.error_text);
        uint32_t c = out.choice;
        if (out.has_token) {
            a->tokens[c][a->n[c]] = out.sample.token;
            a->logprobs[c][a->n[c]++] = out.sample.logprob;
        }
        if (out.finish == ENGINE_FINISH_NONE) continue;
        a->cached = out.usage.cached_tokens;
        if (out.reading) a->reading[c] = *out.reading;
    }
    engine_stream_release(s);
}

static inline bool same_answers(const answer *a, const answer *b)
{
    return memcmp(a->n, b->n, sizeof a->n) == 0 &&
           memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0 &&
           memcmp(a->logprobs, b->logprobs, sizeof a->logprobs) == 0;
}

static inline sched_stats run_in(const answer *alone, const setting *s, uint32_t blocks,
                                 uint32_t swap_blocks, bool prefix_cache)
{
    house h = open_house(s);
    engine_stream *streams[REQUESTS];
    answer got;
    shut_gate(&h);
    for (uint32_t i = 0; i < REQUESTS; i++) streams[i] = submit_nth(&h, i, true);
    open_gate(&h);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        read_answer(streams[i], &got);
        if (!same_answers(&got, &alone[i]))
            fail_msg("%u blocks, %u to swap%s: request %u has other tokens or logprobs", blocks,
                     swap_blocks, prefix_cache ? ", prefix cache" : "", i);
        if (memcmp(got.reading, alone[i].reading, sizeof got.reading) != 0)
            fail_msg("%u blocks, %u to swap%s: request %u has another report", blocks, swap_blocks,
                     prefix_cache ? ", prefix cache" : "", i);
    }
    backend_tier tier = engine_get_stats(h.engine).tier;
    assert_int_equal(tier.reads > 0 && tier.writes > 0, s->kv_disk != NULL);
    sched_stats stats = engine_get_stats(h.engine).sched;
    close_house(&h);
    print_message(
        "%u blocks%s: %llu preemptions, %llu swapped, %llu back, %llu refused, %llu tokens "
        "computed again\n",
        blocks, prefix_cache ? ", prefix cache" : "", (unsigned long long)stats.preemptions,
        (unsigned long long)stats.swaps_out, (unsigned long long)stats.swaps_in,
        (unsigned long long)stats.swaps_refused, (unsigned long long)stats.replayed_tokens);
    return stats;
}

#endif
