/* The demo model through the whole engine: a request's tokens and logprobs do not depend on other
 * requests. Alone, in a batch of 32, with other chunks, from cached prefixes, preempted, under any
 * geometry, the tokens and bits are the same. This holds for any number of ranks, with other bits
 * for each number. */
#include "tests/e2e/house.h"

#include <time.h>

enum { REQUESTS = 32, OUTPUTS = 28, CHOICES = 2, PROMPT_MAX = 420, TOPS = 2 };

static uint32_t n_requests(void) { return is_light() ? REQUESTS / 2 : REQUESTS; }

/* ---- requests -------------------------------------------------------------------------------- */

typedef struct prompt {
    uint32_t tokens[PROMPT_MAX];
    uint32_t n;
} prompt;

/* Random ids; every other prompt shares its neighbour's beginning, so that prefixes are shared. */
static void make_prompts(prompt *prompts)
{
    rng r = rng_seed(2026);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        prompt *p = &prompts[i];
        p->n = 20 + rng_below(&r, i % 8 == 0 ? PROMPT_MAX - 20 : 180);
        for (uint32_t t = 0; t < p->n; t++) p->tokens[t] = rng_below(&r, 1000);
        if (i % 2 == 0) continue;
        uint32_t shared = p->n < prompts[i - 1].n ? p->n : prompts[i - 1].n;
        memcpy(p->tokens, prompts[i - 1].tokens, shared / 2 * sizeof *p->tokens);
    }
}

/* A third of them use retention, a third sample, some fork. */
static void make_request(engine_request *r, prompt *p, uint32_t i)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    engine_request_init(r, &defaults);
    r->prompt_token_ids = p->tokens;
    r->n_prompt_token_ids = p->n;
    r->max_tokens = OUTPUTS;
    r->ignore_eos = true;
    r->logprobs = 3;
    if (i % 4 == 0) r->prompt_logprobs = TOPS;
    r->n = i % 7 == 3 ? CHOICES : 1;
    if (i % 3 == 1) {
        r->temperature = 0.9f;
        r->top_k = 50;
        r->top_p = 0.95f;
        r->has_seed = true;
        r->seed = i;
        r->frequency_penalty = 0.3f;
        r->repetition_penalty = 1.1f;
    }
    if (i % 3 == 2)
        r->retention = json_pack("{s:s, s:f, s:i, s:i}", "method", "chunkkv", "ratio", 0.3,
                                 "window", 16, "reuse_layers", 4);
}

typedef struct answer {
    uint32_t n[CHOICES];
    uint32_t tokens[CHOICES][OUTPUTS];
    float logprobs[CHOICES][OUTPUTS];
    float tops[CHOICES][OUTPUTS][3];
    uint32_t cached;
    uint64_t pages_dropped;
    uint32_t n_scored; /* scored prompt tokens, from the second on */
    float prompt_logprobs[PROMPT_MAX];
    float prompt_tops[PROMPT_MAX * TOPS];
} answer;

static void read_prompt(const engine_stream *s, answer *a)
{
    engine_prompt p = engine_stream_prompt(s);
    if (!p.logprobs) return;
    a->n_scored = p.n_tokens;
    memcpy(a->prompt_logprobs + 1, p.logprobs + 1, (p.n_tokens - 1) * sizeof(float));
    memcpy(a->prompt_tops, p.top_logprobs, p.n_tokens * TOPS * sizeof(float));
}

static void read_answer(engine_stream *s, answer *a)
{
    engine_output out;
    *a = (answer){0};
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_ERROR) fail_msg("%s", out.error_text);
        uint32_t c = out.choice, at = a->n[c];
        if (out.has_token) {
            a->tokens[c][at] = out.sample.token;
            a->logprobs[c][at] = out.sample.logprob;
            memcpy(a->tops[c][at], out.sample.top_logprobs, sizeof a->tops[c][at]);
            a->n[c]++;
        }
        if (out.finish == ENGINE_FINISH_NONE) continue;
        a->cached = out.usage.cached_tokens;
        if (out.report) a->pages_dropped = out.report->pages_dropped;
    }
    read_prompt(s, a);
    engine_stream_release(s);
}

static void expect_equal(const answer *want, const answer *got, uint32_t i, const char *what)
{
    if (want->pages_dropped != got->pages_dropped)
        fail_msg("%s: request %u dropped %llu pages, not %llu", what, i,
                 (unsigned long long)got->pages_dropped, (unsigned long long)want->pages_dropped);
    if (got->n_scored != want->n_scored || (got->n_scored > 0) != (i % 4 == 0))
        fail_msg("%s: %u tokens of prompt %u are scored", what, got->n_scored, i);
    if (memcmp(want->prompt_logprobs, got->prompt_logprobs, sizeof want->prompt_logprobs) ||
        memcmp(want->prompt_tops, got->prompt_tops, sizeof want->prompt_tops))
        fail_msg("%s: prompt %u has other logprobs", what, i);
    for (uint32_t c = 0; c < CHOICES; c++) {
        if (want->n[c] != got->n[c])
            fail_msg("%s: request %u choice %u has %u tokens", what, i, c, got->n[c]);
        for (uint32_t t = 0; t < want->n[c]; t++) {
            if (want->tokens[c][t] != got->tokens[c][t])
                fail_msg("%s: request %u choice %u token %u is %u, not %u", what, i, c, t,
                         got->tokens[c][t], want->tokens[c][t]);
            if (memcmp(&want->logprobs[c][t], &got->logprobs[c][t], sizeof(float)) ||
                memcmp(want->tops[c][t], got->tops[c][t], sizeof want->tops[c][t]))
                fail_msg("%s: request %u choice %u token %u: logprob %.9g, not %.9g", what, i, c, t,
                         (double)got->logprobs[c][t], (double)want->logprobs[c][t]);
        }
    }
}

/* ---- engines --------------------------------------------------------------------------------- */

static const setting usual = {.what = "alone",
                              .kv_type = KERN_KV_BF16,
                              .prefill_chunk = 512,
                              .layers_per_group = 1,
                              .heads_per_group = 4,
                              .page_tokens = 16,
                              .max_model_len = 1024,
                              .kv_bytes = 64 << 20};

static engine_stream *submit(house *h, prompt *p, uint32_t i)
{
    engine_request r;
    engine_stream *s;
    error err = {{0}};
    make_request(&r, p, i);
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err)))
        fail_msg("request %u: %s", i, err.text);
    r.prompt_token_ids = NULL; /* it belongs to the test */
    engine_request_destroy(&r);
    return s;
}

static void run_together(house *h, prompt *prompts, answer *answers)
{
    engine_stream *streams[REQUESTS];
    shut_gate(h);
    for (uint32_t i = 0; i < n_requests(); i++) streams[i] = submit(h, &prompts[i], i);
    open_gate(h);
    for (uint32_t i = 0; i < n_requests(); i++) read_answer(streams[i], &answers[i]);
}

typedef struct fixture {
    prompt prompts[REQUESTS];
    answer alone[REQUESTS]; /* the reference: one request at a time, nothing cached */
    answer got[REQUESTS];
} fixture;

static fixture *make_fixture(const setting *s)
{
    fixture *f = calloc(1, sizeof *f);
    make_prompts(f->prompts);
    house h = open_house(s);
    for (uint32_t i = 0; i < n_requests(); i++)
        read_answer(submit(&h, &f->prompts[i], i), &f->alone[i]);
    close_house(&h);
    return f;
}

static int setup(void **state)
{
    *state = make_fixture(&usual);
    return 0;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

static engine_stats run_setting(fixture *f, const setting *s)
{
    house h = open_house(s);
    run_together(&h, f->prompts, f->got);
    for (uint32_t i = 0; i < n_requests(); i++) expect_equal(&f->alone[i], &f->got[i], i, s->what);
    engine_stats stats = engine_get_stats(h.engine);
    close_house(&h);
    return stats;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void the_batch_does_not_matter(void **state)
{
    setting s = usual;
    s.what = "a batch of 32";
    run_setting(*state, &s);
    s.what = "a batch of 32, chunks of 64";
    s.prefill_chunk = 64;
    run_setting(*state, &s);
}

static void the_geometry_does_not_matter(void **state)
{
    static const uint32_t geometries[][2] = {{2, 4}, {4, 4}, {1, 2}, {4, 1}};
    size_t n = is_light() ? 1 : sizeof geometries / sizeof geometries[0];
    for (size_t i = 0; i < n; i++) {
        setting s = usual;
        s.what = "another geometry";
        s.layers_per_group = geometries[i][0];
        s.heads_per_group = geometries[i][1];
        run_setting(*state, &s);
    }
}

static sched_stats run_small_pool(fixture *f, const char *what, bool prefix_cache,
                                  uint64_t swap_blocks)
{
    setting s = usual;
    s.what = what;
    s.kv_bytes = 36 * 32768; /* 36 blocks of 16 tokens for 32 requests */
    s.swap_bytes = swap_blocks * 32768;
    s.prefix_cache = prefix_cache;
    sched_stats stats = run_setting(f, &s).sched;
    print_message("%s: %llu preemptions, %llu swapped, %llu back, %llu refused, %llu tokens "
                  "computed again\n",
                  what, (unsigned long long)stats.preemptions, (unsigned long long)stats.swaps_out,
                  (unsigned long long)stats.swaps_in, (unsigned long long)stats.swaps_refused,
                  (unsigned long long)stats.replayed_tokens);
    assert_true(stats.preemptions > 0);
    assert_true(stats.swaps_in == stats.swaps_out); /* no request ends while swapped out */
    return stats;
}

static void preemption_does_not_matter(void **state)
{
    sched_stats stats = run_small_pool(*state, "a small pool", false, 0);
    assert_true(stats.swaps_out == 0 && stats.replayed_tokens > 0);
    run_small_pool(*state, "a small pool with a prefix cache", true, 0);
}

static void swapping_does_not_matter(void **state)
{
    sched_stats stats = run_small_pool(*state, "a host tier", false, 400);
    assert_true(stats.swaps_in > 0 && stats.swaps_refused == 0);
    stats = run_small_pool(*state, "a host tier with a prefix cache", true, 400);
    assert_true(stats.swaps_in > 0);
}

/* The second round hits the prefixes of the first one, which include those of retained requests; in
 * the third the pool is as full of other requests' blocks as possible. Retained requests never
 * change what a full request reads. */
static void cached_prefixes_do_not_matter(void **state)
{
    fixture *f = *state;
    setting s = usual;
    s.prefix_cache = true;
    house h = open_house(&s);
    uint32_t hits = 0, hits_of_retained = 0;
    for (int round = 0; round < 3; round++) {
        run_together(&h, f->prompts, f->got);
        for (uint32_t i = 0; i < n_requests(); i++) {
            expect_equal(&f->alone[i], &f->got[i], i, "cached prefixes");
            hits += f->got[i].cached > 0;
            hits_of_retained += i % 3 == 2 && f->got[i].cached > 0;
        }
    }
    assert_true(hits > n_requests());
    assert_true(hits_of_retained > 0);
    /* All pages are freed in the step after the last end was read. */
    while (engine_get_stats(h.engine).sched.pages.used)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    close_house(&h);
}

/* Pages are dropped, never copied: the only moves are copies of half-full last pages by forks. */
static void retention_copies_nothing(void **state)
{
    fixture *f = *state;
    house h = open_house(&usual);
    uint64_t dropped = 0;
    for (uint32_t i = 2; i < n_requests(); i += 3) {
        if (i % 7 == 3) continue; /* forks */
        answer a;
        read_answer(submit(&h, &f->prompts[i], i), &a);
        dropped += a.pages_dropped;
    }
    engine_stats stats = engine_get_stats(h.engine);
    assert_true(dropped > 0);
    assert_int_equal(stats.sched.pages.slots_moved, 0);
    /* The pool counts cells: all layers share a selection, so each page is a cell of each. */
    const pkv_geometry *g = &h.backend.ops->info(h.backend.ctx)->geometry;
    assert_int_equal(stats.sched.pages.pages_dropped, dropped * pkv_groups(g));
    close_house(&h);
}

/* The same over tensor-parallel ranks, whose sums have their own bits, and on int2 pages: a page is
 * quantised when it is full, wherever chunks end, and forks share the pages that are not full. */
static void ranks_do_not_matter_to_neighbours(void **state)
{
    (void)state;
    setting s = usual;
    s.n_ranks = 2;
    s.kv_type = KERN_KV_INT2;
    s.page_tokens = 32;
    fixture *f = make_fixture(&s);
    s.what = "2 ranks, a batch of 32, chunks of 64";
    s.prefill_chunk = 64;
    run_setting(f, &s);
    s.what = "2 ranks, another geometry";
    s.layers_per_group = 4;
    s.heads_per_group = 1;
    run_setting(f, &s);
    s = usual;
    s.what = "2 ranks, a small pool with a prefix cache";
    s.n_ranks = 2;
    s.kv_type = KERN_KV_INT2;
    s.page_tokens = 32;
    s.prefix_cache = true;
    s.kv_bytes = 20 * 12288; /* blocks of 32 tokens */
    s.swap_bytes = 10 * 12288;
    assert_true(run_setting(f, &s).sched.preemptions > 0);
    free(f);
}

/* A residual belongs to a row, not to the chunk in which the row is computed: with the two pages
 * before its own in bf16, a request is the same alone, in a batch, preempted, and back from the
 * host tier. */
static void residuals_do_not_matter_to_neighbours(void **state)
{
    (void)state;
    setting s = usual;
    s.kv_type = KERN_KV_INT2;
    s.kv_residual = 64;
    s.page_tokens = 32;
    fixture *f = make_fixture(&s);
    s.what = "a residual, a batch of 32, chunks of 48";
    s.prefill_chunk = 48;
    run_setting(f, &s);
    s.what = "a residual, another geometry";
    s.layers_per_group = 2;
    s.heads_per_group = 2;
    run_setting(f, &s);
    s.what = "a residual, a small pool";
    s.layers_per_group = usual.layers_per_group;
    s.heads_per_group = usual.heads_per_group;
    s.prefill_chunk = usual.prefill_chunk;
    s.kv_bytes = 20 * 12288; /* blocks of 32 tokens */
    assert_true(run_setting(f, &s).sched.replayed_tokens > 0);
    s.what = "a residual, a small pool and a host tier";
    s.swap_bytes = 100 * 12288;
    assert_true(run_setting(f, &s).sched.swaps_in > 0);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_batch_does_not_matter),
        cmocka_unit_test(the_geometry_does_not_matter),
        cmocka_unit_test(preemption_does_not_matter),
        cmocka_unit_test(swapping_does_not_matter),
        cmocka_unit_test(cached_prefixes_do_not_matter),
        cmocka_unit_test(retention_copies_nothing),
        cmocka_unit_test(ranks_do_not_matter_to_neighbours),
        cmocka_unit_test(residuals_do_not_matter_to_neighbours),
    };
    return cmocka_run_group_tests_name("invariance", tests, setup, teardown);
}
