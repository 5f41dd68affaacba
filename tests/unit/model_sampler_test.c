/* The sampler against brute force in double precision, in vLLM's order of steps. */
#include "base/logits.h"
#include "model/draw.h"
#include "model/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* One draw at a time has no races. */
#if defined(__SANITIZE_THREAD__)
enum { DRAWS = 4000 };
#else
enum { DRAWS = 20000 };
#endif
enum { VOCAB = 512, SEQS = 8 };

static const sample_params neutral = {
    .temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};

typedef struct fixture {
    thread_pool *pool;
    sampler *sampler;
    float logits[VOCAB];
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    thread_pool_options o = {.n_threads = 2};
    assert_true(status_ok(thread_pool_create(&o, &f->pool)));
    assert_true(status_ok(sampler_create(SEQS, VOCAB, f->pool, &f->sampler)));
    rng r = rng_seed(7);
    for (int i = 0; i < VOCAB; i++) f->logits[i] = 2 * rng_normal(&r);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    sampler_destroy(f->sampler);
    thread_pool_destroy(f->pool);
    free(f);
    return 0;
}

static void open_seq(fixture *f, uint32_t seq, const sample_params *p, const uint32_t *history,
                     uint32_t n_history, uint32_t n_prompt)
{
    step_open open = {
        .seq = seq, .params = p, .history = history, .n_history = n_history, .n_prompt = n_prompt};
    assert_true(status_ok(sampler_open(f->sampler, &open)));
}

static step_sample draw(fixture *f, const sample_params *p, uint32_t index)
{
    open_seq(f, 0, p, NULL, 0, 0);
    step_sample out;
    sampler_draw d = {.sample_index = index, .logits = f->logits, .out = &out};
    sampler_run(f->sampler, &d, 1);
    return out;
}

/* ---- greedy ---------------------------------------------------------------------------------- */

static void greedy_takes_the_lowest_id_of_equal_logits(void **state)
{
    fixture *f = *state;
    sample_params p = neutral;
    p.temperature = 0;
    f->logits[77] = f->logits[300] = f->logits[301] = 50;
    assert_int_equal(draw(f, &p, 0).token, 77);
    f->logits[0] = f->logits[77] = NAN; /* a NaN never wins */
    assert_int_equal(draw(f, &p, 0).token, 300);
}

/* ---- rows without a softmax ------------------------------------------------------------------ */

static void draws_without_a_softmax_say_so(void **state)
{
    fixture *f = *state;
    static const uint32_t places[] = {0, 15, 77, VOCAB - 1};
    static const float temperatures[] = {0, 0.7f};
    for (int i = 0; i < 2; i++) {
        sample_params p = neutral;
        p.temperature = temperatures[i];
        assert_int_equal(draw(f, &p, 0).undefined, 0);
        for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
            float *at = &f->logits[places[k]], was = *at;
            *at = NAN;
            assert_int_equal(draw(f, &p, 0).undefined, 1);
            *at = INFINITY;
            assert_int_equal(draw(f, &p, 0).undefined, 1);
            *at = -INFINITY;
            assert_int_equal(draw(f, &p, 0).undefined, 0);
            *at = was;
        }
    }
    f->logits[VOCAB - 4] = NAN; /* behind the whole vectors of a row */
    assert_true(logits_find_peak(f->logits, VOCAB - 3).is_nan);
    assert_false(logits_find_peak(f->logits, VOCAB - 4).is_nan);
    for (int i = 0; i < VOCAB; i++) f->logits[i] = -INFINITY;
    assert_int_equal(draw(f, &neutral, 0).undefined, 1);
}

/* ---- allowed tokens -------------------------------------------------------------------------- */

static int by_logit(const void *a, const void *b)
{
    const float *x = *(const float *const *)a, *y = *(const float *const *)b;
    if (*x != *y) return *x > *y ? -1 : 1;
    return x < y ? -1 : 1;
}

/* The set that survives min_p, top_k, top_p in that order, in double precision. Returns the
 * probability of each token. */
static void allowed_set(const float *logits, const sample_params *p, double prob[VOCAB])
{
    const float *order[VOCAB];
    for (int i = 0; i < VOCAB; i++) order[i] = &logits[i];
    qsort(order, VOCAB, sizeof *order, by_logit);
    double e[VOCAB], max = *order[0] / p->temperature;
    size_t n = VOCAB;
    for (size_t i = 0; i < VOCAB; i++) e[i] = exp(*order[i] / p->temperature - max);
    while (n > 1 && e[n - 1] < p->min_p) n--;
    if (p->top_k && p->top_k < n) {
        size_t k = p->top_k;
        while (k < n && *order[k] == *order[p->top_k - 1]) k++;
        n = k;
    }
    double total = 0, before = 0;
    for (size_t i = 0; i < n; i++) total += e[i];
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && p->top_p < 1 && before >= p->top_p * total) {
            n = i;
            break;
        }
        before += e[i];
    }
    total = 0;
    for (size_t i = 0; i < n; i++) total += e[i];
    memset(prob, 0, VOCAB * sizeof *prob);
    for (size_t i = 0; i < n; i++) prob[order[i] - logits] = e[i] / total;
}

/* Draws many times: every token must be allowed, and the counts must fit the probabilities
 * (chi-square). */
static void check_distribution(fixture *f, sample_params p, const char *what)
{
    double prob[VOCAB];
    int count[VOCAB] = {0};
    allowed_set(f->logits, &p, prob);
    p.seed = 1234;
    open_seq(f, 0, &p, NULL, 0, 0);
    for (uint32_t i = 0; i < DRAWS; i++) {
        step_sample out;
        sampler_draw d = {.sample_index = i, .logits = f->logits, .out = &out};
        sampler_run(f->sampler, &d, 1);
        assert_in_range(out.token, 0, VOCAB - 1);
        count[out.token]++;
    }
    double chi = 0, rest_expected = 0, rest_count = 0;
    int degrees = -1;
    for (int i = 0; i < VOCAB; i++) {
        if (prob[i] == 0 && count[i]) fail_msg("%s: token %d is not allowed, but came", what, i);
        double expected = prob[i] * DRAWS;
        if (expected < 10) {
            rest_expected += expected;
            rest_count += count[i];
            continue;
        }
        chi += (count[i] - expected) * (count[i] - expected) / expected;
        degrees++;
    }
    if (rest_expected >= 10) {
        chi += (rest_count - rest_expected) * (rest_count - rest_expected) / rest_expected;
        degrees++;
    }
    /* 5 standard deviations of chi-square */
    if (degrees > 0 && chi > degrees + 5 * sqrt(2.0 * degrees))
        fail_msg("%s: chi-square %.1f over %d degrees", what, chi, degrees);
}

static void draws_follow_the_distribution(void **state)
{
    fixture *f = *state;
    sample_params p = neutral;
    check_distribution(f, p, "temperature 1");
    p.temperature = 0.6f;
    check_distribution(f, p, "temperature 0.6");
    p.top_k = 20;
    check_distribution(f, p, "top_k 20");
    p.top_p = 0.7f;
    check_distribution(f, p, "top_k 20, top_p 0.7");
    p.min_p = 0.1f;
    check_distribution(f, p, "top_k, top_p, min_p");
    p = neutral;
    p.top_p = 0.9f;
    check_distribution(f, p, "top_p 0.9");
    p.temperature = 3;
    p.top_p = 0.999f; /* more than the first 256 candidates */
    check_distribution(f, p, "top_p 0.999 at temperature 3");
}

/* Noise that is left out is of tokens that lose with it, in flat rows and in steep ones. */
static void a_row_draws_what_its_candidates_draw(void **state)
{
    fixture *f = *state;
    candidate c[VOCAB];
    rng r = rng_seed(3);
    for (uint32_t i = 0; i < 3000; i++) {
        draw_noise noise = {i, i / 7};
        uint32_t first = rng_below(&r, 9), n = 1 + rng_below(&r, VOCAB);
        float width = (float)(i % 6) * (float)(i % 6);
        for (uint32_t k = 0; k < n; k++)
            f->logits[k] = rng_below(&r, 40) ? floorf(width * rng_normal(&r)) : -INFINITY;
        uint32_t largest = logits_argmax(f->logits, n);
        float floor = i % 3 ? -INFINITY : f->logits[largest] - 4;
        size_t m = candidates_collect(f->logits, first, n, floor, c);
        candidate due = draw_gumbel(noise, c, m);
        candidate is = draw_gumbel_row(noise, f->logits, first, n, floor, largest);
        assert_int_equal(is.id, due.id);
        assert_memory_equal(&is.logit, &due.logit, sizeof(float));
    }
}

static void top_k_keeps_ties_at_the_kth_value(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < VOCAB; i++) f->logits[i] = i < 10 ? 5 : 0;
    sample_params p = neutral;
    p.top_k = 3;
    bool seen[VOCAB] = {0};
    for (uint32_t i = 0; i < 500; i++) seen[draw(f, &p, i).token] = true;
    for (int i = 0; i < VOCAB; i++) assert_int_equal(seen[i], i < 10);
}

static void top_p_always_keeps_the_most_likely(void **state)
{
    fixture *f = *state;
    sample_params p = neutral;
    p.top_p = 1e-6f;
    p.temperature = 2;
    uint32_t best = 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        if (f->logits[i] > f->logits[best]) best = i;
    for (uint32_t i = 0; i < 50; i++) assert_int_equal(draw(f, &p, i).token, best);
}

/* ---- edits ----------------------------------------------------------------------------------- */

static void penalties_follow_their_formulas(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < VOCAB; i++) f->logits[i] = -10;
    f->logits[1] = 4.0f;  /* in the prompt: 4 / 1.5 = 2.67 */
    f->logits[2] = 3.9f;  /* sampled twice: 3.9 / 1.5 - 2 * 0.25 - 0.5 = 1.6 */
    f->logits[3] = 2.3f;  /* never seen */
    f->logits[4] = -0.1f; /* in the prompt and negative: times 1.5 */
    sample_params p = neutral;
    p.temperature = 0;
    p.repetition_penalty = 1.5f;
    p.frequency_penalty = 0.25f;
    p.presence_penalty = 0.5f;
    uint32_t history[] = {1, 4, 2, 2};
    open_seq(f, 3, &p, history, 4, 2);
    step_sample out;
    sampler_draw d = {.seq = 3, .logits = f->logits, .out = &out, .own = true};
    sampler_run(f->sampler, &d, 1);
    assert_int_equal(out.token, 1); /* now it has been sampled: 2.67 - 0.25 - 0.5 = 1.92 */
    sampler_run(f->sampler, &d, 1);
    assert_int_equal(out.token, 3); /* 2.3; sampled: 2.3 / 1.5 - 0.75 = 0.78 */
    sampler_run(f->sampler, &d, 1);
    assert_int_equal(out.token, 1); /* 1.92; then 1.67 */
    sampler_run(f->sampler, &d, 1);
    assert_int_equal(out.token, 1); /* 1.67; then 1.42 */
    sampler_run(f->sampler, &d, 1);
    assert_int_equal(out.token, 2); /* 1.6 */
    /* Opening the sequence again forgets the counts. */
    open_seq(f, 3, &p, history, 0, 0);
    sampler_run(f->sampler, &d, 1);
    assert_int_equal(out.token, 1);
}

/* The last tokens of a share that no draw gave count as those that were drawn; other shares' tokens
 * do not, and nothing is counted where there are no penalties. */
static void given_tokens_count_as_drawn_ones(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < VOCAB; i++) f->logits[i] = -10;
    for (int i = 1; i <= 5; i++) f->logits[i] = 6 - i;
    sample_params p = neutral, plain = neutral;
    p.temperature = plain.temperature = 0;
    p.frequency_penalty = 1.25f;
    uint32_t history[] = {9};
    open_seq(f, 3, &p, history, 1, 1);
    open_seq(f, 2, &plain, NULL, 0, 0);
    uint32_t tokens[] = {1, 1, 2, 2, 4, 1, 1, 1};
    step_seq shares[] = {{.seq = 2, .n_tokens = 2, .n_uncounted = 2},
                         {.seq = 3, .first_token = 2, .n_tokens = 5, .n_uncounted = 2},
                         {.seq = 1, .first_token = 7, .n_tokens = 1}};
    step_plan plan = {.seqs = shares, .n_seqs = 3, .tokens = tokens, .n_tokens = 8};
    sampler_count_given(f->sampler, &plan);
    step_sample out;
    sampler_draw d = {.seq = 3, .logits = f->logits, .out = &out, .own = true};
    sampler_run(f->sampler, &d, 1);
    assert_int_equal(out.token, 2); /* 4; 1 was given twice: 5 - 2.5; then 2.75 */
    shares[1].n_uncounted = 0;
    sampler_count_given(f->sampler, &plan);
    sampler_run(f->sampler, &d, 1);
    assert_int_equal(out.token, 3); /* 3, then 1.75 */
    sampler_run(f->sampler, &d, 1);
    assert_int_equal(out.token, 2); /* 2.75 beside 1 at 2.5 */
    sampler_run(f->sampler, &d, 1);
    assert_int_equal(out.token, 1);
    d.seq = 2;
    sampler_run(f->sampler, &d, 1);
    assert_int_equal(out.token, 1);
}

static void min_tokens_masks_stops_and_bias_moves_logits(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < VOCAB; i++) f->logits[i] = 0;
    f->logits[9] = 5;
    f->logits[8] = 4;
    uint32_t stops[] = {9}, bias_ids[] = {30};
    float bias[] = {4.5f};
    sample_params p = neutral;
    p.temperature = 0;
    p.min_tokens = 2;
    p.stop_ids = stops;
    p.n_stop_ids = 1;
    assert_int_equal(draw(f, &p, 0).token, 8);
    assert_int_equal(draw(f, &p, 1).token, 8);
    assert_int_equal(draw(f, &p, 2).token, 9);
    p.bias_ids = bias_ids;
    p.bias = bias;
    p.n_bias = 1;
    assert_int_equal(draw(f, &p, 0).token, 30);
    assert_int_equal(draw(f, &p, 2).token, 9);
}

/* A mask leaves its tokens alone, before penalties and minimum; logprobs are those of what is left,
 * as in vLLM. */
static void a_mask_bans_all_other_tokens(void **state)
{
    fixture *f = *state;
    uint32_t mask[VOCAB / 32] = {0};
    uint32_t bias_ids[] = {4};
    float bias[] = {100};
    sample_params p = neutral;
    p.n_logprobs = 3;
    p.bias_ids = bias_ids;
    p.bias = bias;
    p.n_bias = 1;
    mask[0] = 1u << 7 | 1u << 31;
    mask[3] = 1u << 2; // token 98
    f->logits[7] = f->logits[31] = f->logits[98] = -9;
    open_seq(f, 0, &p, NULL, 0, 0);
    bool seen[VOCAB] = {false};
    for (uint32_t i = 0; i < 60; i++) {
        step_sample out;
        sampler_draw d = {.sample_index = i, .logits = f->logits, .mask = mask, .out = &out};
        sampler_run(f->sampler, &d, 1);
        assert_true(out.token == 7 || out.token == 31 || out.token == 98);
        seen[out.token] = true;
        assert_float_equal(out.logprob, -logf(3), 1e-5f);
        assert_true(out.n_top == 3 && out.top_ids[0] == 7 && out.top_ids[2] == 98);
    }
    assert_true(seen[7] && seen[31] && seen[98]);
}

/* ---- logprobs -------------------------------------------------------------------------------- */

static void logprobs_are_of_the_raw_logits(void **state)
{
    fixture *f = *state;
    sample_params p = neutral;
    p.temperature = 0.3f;
    p.top_k = 5;
    p.n_logprobs = 7;
    step_sample s = draw(f, &p, 11);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += exp((double)f->logits[i]);
    assert_true(fabs(s.logprob - (f->logits[s.token] - log(sum))) < 1e-5);
    uint32_t rank = 1;
    for (int i = 0; i < VOCAB; i++) rank += f->logits[i] > f->logits[s.token];
    assert_int_equal(s.rank, rank);
    assert_int_equal(s.n_top, 7);
    for (uint32_t i = 0; i < 7; i++) {
        uint32_t above = 0;
        for (int j = 0; j < VOCAB; j++) above += f->logits[j] > f->logits[s.top_ids[i]];
        assert_int_equal(above, i);
        assert_true(fabs(s.top_logprobs[i] - (f->logits[s.top_ids[i]] - log(sum))) < 1e-5);
    }
    p.n_logprobs = -1;
    assert_true(isnan(draw(f, &p, 11).logprob));
}

/* ---- independence from the batch ------------------------------------------------------------- */

static void a_draw_depends_on_its_own_request_alone(void **state)
{
    fixture *f = *state;
    sample_params p = neutral;
    p.n_logprobs = 3;
    step_sample alone[SEQS], together[SEQS];
    sampler_draw draws[SEQS];
    for (uint32_t i = 0; i < SEQS; i++) {
        p.seed = i / 2; /* pairs share a seed and differ by choice */
        p.top_k = 10 + i / 2;
        open_seq(f, i, &p, NULL, 0, 0);
        draws[i] = (sampler_draw){
            .seq = i, .choice = i % 2, .sample_index = 3, .logits = f->logits, .out = &alone[i]};
        sampler_run(f->sampler, &draws[i], 1);
        draws[i].out = &together[i];
    }
    sampler_run(f->sampler, draws, SEQS);
    bool differ = false;
    for (uint32_t i = 0; i < SEQS; i++) {
        assert_int_equal(alone[i].token, together[i].token);
        assert_memory_equal(&alone[i].logprob, &together[i].logprob, sizeof(float));
        differ |= i % 2 && alone[i].token != alone[i - 1].token;
    }
    assert_true(differ); /* choices of one request draw differently */
}

/* The history has room for as many tokens as the opening announced. */
static void a_long_history_counts_every_token(void **state)
{
    fixture *f = *state;
    sample_params p = neutral;
    p.temperature = 0;
    p.presence_penalty = 1;
    memset(f->logits, 0, VOCAB * sizeof *f->logits);
    step_open open = {.params = &p, .n_most = VOCAB};
    assert_true(status_ok(sampler_open(f->sampler, &open)));
    for (uint32_t i = 0; i < VOCAB; i++) { /* sampled tokens are not sampled again */
        step_sample out;
        sampler_draw d = {.sample_index = i, .own = true, .logits = f->logits, .out = &out};
        sampler_run(f->sampler, &d, 1);
        assert_int_equal(out.token, i);
    }
}

static void hostile_opens_are_refused(void **state)
{
    fixture *f = *state;
    uint32_t history[] = {VOCAB};
    sample_params p = neutral;
    step_open open = {.seq = SEQS, .params = &p};
    assert_int_equal(sampler_open(f->sampler, &open).code, STATUS_INVALID);
    open = (step_open){.params = &p, .history = history, .n_history = 1};
    assert_int_equal(sampler_open(f->sampler, &open).code, STATUS_INVALID);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(greedy_takes_the_lowest_id_of_equal_logits),
        CASE(draws_without_a_softmax_say_so),
        CASE(draws_follow_the_distribution),
        CASE(a_row_draws_what_its_candidates_draw),
        CASE(top_k_keeps_ties_at_the_kth_value),
        CASE(top_p_always_keeps_the_most_likely),
        CASE(penalties_follow_their_formulas),
        CASE(given_tokens_count_as_drawn_ones),
        CASE(min_tokens_masks_stops_and_bias_moves_logits),
        CASE(a_mask_bans_all_other_tokens),
        CASE(logprobs_are_of_the_raw_logits),
        CASE(a_draw_depends_on_its_own_request_alone),
        CASE(a_long_history_counts_every_token),
        CASE(hostile_opens_are_refused),
    };
    return cmocka_run_group_tests_name("model_sampler", tests, NULL, NULL);
}
