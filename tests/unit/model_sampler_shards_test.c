/* Draws of ranks that share the vocabulary, to the bit those of one sampler that has whole rows. */
#include "model/sampler_shards.h"

#include "base/logits.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DRAWS = 96, RANKS_MOST = 8, VOCAB_MOST = 4099, STEPS = 3, MASK_WORDS = 129 };

/* How a row's logits lie. */
typedef enum shape { WIDE, NARROW, TIED, EQUAL, SPARSE, ODD, DEAD, SHAPES } shape;

/* A step's draws, as all ranks get them. */
typedef struct workload {
    uint32_t vocab;
    sample_params params[DRAWS];
    uint32_t stops[DRAWS][3], bias_ids[DRAWS][6];
    float bias[DRAWS][6];
    uint32_t history[DRAWS][40];
    uint32_t masks[DRAWS][MASK_WORDS];
    bool has_mask[DRAWS];
    float *rows; /* [DRAWS, vocab] */
    step_sample due[DRAWS];
} workload;

static float logit_of(rng *r, shape kind, uint32_t i)
{
    float x = rng_normal(r);
    switch (kind) {
    case WIDE: return 6 * x;
    case NARROW: return 0.2f * x;
    case TIED: return floorf(2 * x);
    case EQUAL: return 1;
    case SPARSE: return rng_below(r, 30) ? -INFINITY : x;
    case ODD: return i % 7 == 3 ? NAN : i % 501 == 400 ? INFINITY : 3 * x;
    case DEAD: return rng_below(r, 2) ? NAN : -INFINITY;
    case SHAPES: break;
    }
    return 0;
}

static void choose_params(workload *w, uint32_t i, rng *r)
{
    static const uint32_t top_k[] = {0, 0, 1, 5, 40, 127, 128, 300, 5000};
    static const float top_p[] = {1, 1, 0.5f, 0.9f, 0.999f}, min_p[] = {0, 0, 0.02f, 1};
    static const int32_t logprobs[] = {-1, 0, 1, 5, 20};
    sample_params *p = &w->params[i];
    *p = (sample_params){.temperature = i % 4 ? 0.3f + 2 * rng_unit(r) : 0,
                         .top_p = top_p[rng_below(r, 5)],
                         .min_p = min_p[rng_below(r, 4)],
                         .top_k = top_k[rng_below(r, 9)],
                         .repetition_penalty = 1,
                         .seed = rng_u64(r),
                         .n_logprobs = logprobs[rng_below(r, 5)]};
    if (i % 5 == 1) p->repetition_penalty = 1.3f;
    if (i % 5 == 2) p->presence_penalty = 0.7f;
    if (i % 5 == 2) p->frequency_penalty = -0.4f;
    p->min_tokens = i % 3 ? 0 : 50;
    p->stop_ids = w->stops[i];
    p->n_stop_ids = 3;
    p->bias_ids = w->bias_ids[i];
    p->bias = w->bias[i];
    p->n_bias = rng_below(r, 7);
    if (i % 16 != 3) return; /* half of equal tokens are exactly half of the mass */
    *p = (sample_params){.temperature = 1, .top_p = 0.5f, .repetition_penalty = 1, .seed = i};
}

/* Row i of a step: of a shape, and with a mask for some. */
static void fill_row(workload *w, uint32_t i, rng *r)
{
    float *row = w->rows + (size_t)i * w->vocab;
    shape kind = i % 16 == 3 ? EQUAL : (shape)rng_below(r, SHAPES);
    for (uint32_t t = 0; t < w->vocab; t++) row[t] = logit_of(r, kind, t);
    w->has_mask[i] = i % 16 != 3 && rng_below(r, 4) == 0;
    uint32_t few = rng_below(r, 2);
    for (uint32_t k = 0; k < MASK_WORDS; k++)
        w->masks[i][k] = few ? (rng_below(r, 9) ? 0 : 1u << rng_below(r, 32)) : rng_u32(r);
}

static void make_workload(workload *w, uint32_t vocab, uint64_t seed)
{
    rng r = rng_seed(seed);
    w->vocab = vocab;
    w->rows = malloc((size_t)DRAWS * vocab * sizeof *w->rows);
    for (uint32_t i = 0; i < DRAWS; i++) {
        for (uint32_t k = 0; k < 3; k++) w->stops[i][k] = rng_below(&r, vocab + 3);
        for (uint32_t k = 0; k < 6; k++) w->bias_ids[i][k] = rng_below(&r, vocab);
        for (uint32_t k = 0; k < 6; k++) w->bias[i][k] = 4 * rng_normal(&r);
        for (uint32_t k = 0; k < 40; k++) w->history[i][k] = rng_below(&r, vocab);
        choose_params(w, i, &r);
        fill_row(w, i, &r);
    }
}

static void open_all(const workload *w, sampler *s)
{
    for (uint32_t i = 0; i < DRAWS; i++) {
        step_open open = {.seq = i,
                          .params = &w->params[i],
                          .history = w->history[i],
                          .n_history = 40,
                          .n_prompt = 25,
                          .n_most = 60};
        if (!status_ok(sampler_open(s, &open))) abort();
    }
}

/* The draws of a step, from rows of this many tokens that begin with token `first`. */
static void lay_out(workload *w, uint32_t step, const float *rows, size_t stride,
                    sampler_draw *draws, step_sample *out)
{
    for (uint32_t i = 0; i < DRAWS; i++)
        draws[i] = (sampler_draw){.seq = i,
                                  .choice = i % 3,
                                  .sample_index = 49 + step,
                                  .own = i % 7 > 0,
                                  .logits = rows + i * stride,
                                  .mask = w->has_mask[i] ? w->masks[i] : NULL,
                                  .out = &out[i]};
}

typedef struct rank {
    workload *w;
    comm_group *group;
    int index, ranks;
    sampler *sampler;
    sampler_shards *shards;
    thread_pool *pool;
    comm *comm;
    float *part;
    step_sample out[STEPS][DRAWS];
} rank;

static void *run_rank(void *arg)
{
    rank *k = arg;
    uint32_t vocab = k->w->vocab, slice = (vocab + (uint32_t)k->ranks - 1) / (uint32_t)k->ranks;
    uint32_t first = slice * (uint32_t)k->index;
    comm_options co = {.kind = "threads", .rank = k->index, .size = k->ranks, .group = k->group};
    thread_pool_options po = {.n_threads = k->index % 2 ? 1 : 2};
    if (!status_ok(comm_create(&co, &k->comm, NULL))) abort();
    if (!status_ok(thread_pool_create(&po, &k->pool))) abort();
    if (!status_ok(sampler_create(DRAWS, vocab, k->pool, &k->sampler))) abort();
    sampler_shards_options so = {.sampler = k->sampler,
                                 .pool = k->pool,
                                 .group = k->comm,
                                 .max_draws = DRAWS,
                                 .vocab_size = vocab,
                                 .slice = slice};
    if (!status_ok(sampler_shards_create(&so, &k->shards))) abort();
    k->part = calloc((size_t)DRAWS * slice, sizeof *k->part);
    for (uint32_t i = 0; i < DRAWS; i++)
        for (uint32_t t = first; t < first + slice && t < vocab; t++)
            k->part[(size_t)i * slice + t - first] = k->w->rows[(size_t)i * vocab + t];
    open_all(k->w, k->sampler);
    for (uint32_t step = 0; step < STEPS; step++) {
        sampler_draw draws[DRAWS];
        lay_out(k->w, step, k->part, slice, draws, k->out[step]);
        if (!status_ok(sampler_shards_run(k->shards, draws, DRAWS))) abort();
    }
    return NULL;
}

static void free_rank(rank *k)
{
    sampler_shards_destroy(k->shards);
    sampler_destroy(k->sampler);
    comm_destroy(k->comm);
    thread_pool_destroy(k->pool);
    free(k->part);
}

static void expect_same(const workload *w, const rank *k, uint32_t step, uint32_t i,
                        const step_sample *due)
{
    const step_sample *is = &k->out[step][i];
    const sample_params *p = &w->params[i];
    bool same =
        is->token == due->token && is->rank == due->rank && is->n_top == due->n_top &&
        is->undefined == due->undefined &&
        memcmp(&is->logprob, &due->logprob, sizeof is->logprob) == 0 &&
        memcmp(is->top_ids, due->top_ids, due->n_top * sizeof *due->top_ids) == 0 &&
        memcmp(is->top_logprobs, due->top_logprobs, due->n_top * sizeof *due->top_logprobs) == 0;
    if (!same)
        fail_msg("vocabulary %u, rank %d of %d, step %u, draw %u (temperature %g, top_k %u, top_p "
                 "%g, min_p %g, logprobs %d, mask %d): token %u, logprob %.9g, rank %u, %u listed; "
                 "due are %u, %.9g, %u, %u",
                 w->vocab, k->index, k->ranks, step, i, p->temperature, p->top_k, p->top_p,
                 p->min_p, p->n_logprobs, w->has_mask[i], is->token, is->logprob, is->rank,
                 is->n_top, due->token, due->logprob, due->rank, due->n_top);
}

static void check_ranks(workload *w, int ranks, step_sample due[STEPS][DRAWS])
{
    rank *all = calloc((size_t)ranks, sizeof *all);
    pthread_t threads[RANKS_MOST];
    comm_group *group;
    assert_true(status_ok(comm_group_create("threads", ranks, &group, NULL)));
    for (int i = 0; i < ranks; i++) {
        all[i] = (rank){.w = w, .group = group, .index = i, .ranks = ranks};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &all[i]), 0);
    }
    for (int i = 0; i < ranks; i++) pthread_join(threads[i], NULL);
    for (int r = 0; r < ranks; r++)
        for (uint32_t step = 0; step < STEPS; step++)
            for (uint32_t i = 0; i < DRAWS; i++) expect_same(w, &all[r], step, i, &due[step][i]);
    for (int i = 0; i < ranks; i++) free_rank(&all[i]);
    comm_group_destroy(group);
    free(all);
}

static void draw_alone(workload *w, step_sample due[STEPS][DRAWS])
{
    thread_pool *pool;
    sampler *s;
    sampler_draw draws[DRAWS];
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 2}, &pool)));
    assert_true(status_ok(sampler_create(DRAWS, w->vocab, pool, &s)));
    open_all(w, s);
    for (uint32_t step = 0; step < STEPS; step++) {
        lay_out(w, step, w->rows, w->vocab, draws, due[step]);
        sampler_run(s, draws, DRAWS);
    }
    sampler_destroy(s);
    thread_pool_destroy(pool);
}

/* Every kind of draw over every shape of logits, in vocabularies that ranks do and do not divide;
 * one is so small that ranks have no token. Later steps see histories that earlier ones made. */
static void ranks_draw_what_one_draws(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {VOCAB_MOST, 640, 34, 5};
    static step_sample due[STEPS][DRAWS];
    static workload w;
    for (uint32_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++)
        for (int ranks = 1; ranks <= RANKS_MOST; ranks += 1 + ranks / 3) {
            if (v == 0 && ranks > 2 && ranks != 6) continue;
            make_workload(&w, vocabs[v], 100 * v + (uint64_t)ranks);
            draw_alone(&w, due);
            check_ranks(&w, ranks, due);
            free(w.rows);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_draw_what_one_draws),
    };
    return cmocka_run_group_tests_name("model_sampler_shards", tests, NULL, NULL);
}
