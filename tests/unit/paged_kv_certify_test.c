/* Selections with epsilon: the oracle's (tools/retrieval_oracle.py), and the mass that many of them
 * really miss. OCTAVO_SOAK runs 10^6 of these. */
#include "paged_kv/retrieval/certify.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/retrieval.json"
#define LOG2_E 1.44269504088896340736

enum { HEADS_MOST = 8, DIM = 16, BLOCKS_MOST = 64, SLOTS_MOST = BLOCKS_MOST * 32 };

/* ---- keys around a point of their block ------------------------------------------------------ */

typedef struct world {
    uint32_t n_slots, block_tokens, n_blocks, n_kv_heads, q_heads;
    double scale;
    float q[HEADS_MOST][DIM];                                 // of all query heads
    float *k;                                                 // [KV heads, n_slots, DIM]
    double (*score)[SLOTS_MOST];                              // [query heads]
    float bounds[HEADS_MOST][BLOCKS_MOST], *rows[HEADS_MOST]; // by candidate
    uint32_t first;                                           // query head of the exam
    uint32_t n_sums, n_calls; // blocks whose sums were asked for, in how many calls
    uint32_t fails_at;        // the call that fails, 1 = the first; 0: none does
} world;

/* The oracle's generator: -2, -1.75, … 2. */
static float value_at(uint64_t seed, uint64_t what, uint64_t i)
{
    return (float)((int)(hash_mix64(seed << 48 | what << 40 | i) % 17) - 8) / 4;
}

static void fill_world(world *w, uint64_t seed, double noise)
{
    w->n_blocks = (w->n_slots + w->block_tokens - 1) / w->block_tokens;
    assert_true(w->n_blocks <= BLOCKS_MOST && w->n_kv_heads * w->q_heads <= HEADS_MOST);
    for (uint32_t i = 0; i < w->n_kv_heads * w->q_heads * DIM; i++)
        w->q[i / DIM][i % DIM] = value_at(seed, 1, i);
    w->k = malloc((size_t)w->n_kv_heads * w->n_slots * DIM * sizeof *w->k);
    w->score = calloc(HEADS_MOST, sizeof *w->score);
    for (uint32_t h = 0; h < w->n_kv_heads; h++)
        for (uint32_t i = 0; i < w->n_slots * DIM; i++) {
            uint32_t block = i / DIM / w->block_tokens;
            w->k[(size_t)h * w->n_slots * DIM + i] =
                value_at(seed, 4, (uint64_t)(h * w->n_blocks + block) * DIM + i % DIM) +
                value_at(seed, 2, (uint64_t)h * w->n_slots * DIM + i) * (float)noise;
        }
}

/* Scores of single keys, and QUEST's bounds of the blocks from `first` on. */
static void score_world(world *w, uint32_t first, uint32_t end)
{
    for (uint32_t h = 0; h < w->n_kv_heads * w->q_heads; h++) {
        const float *k = w->k + (size_t)(h / w->q_heads) * w->n_slots * DIM;
        for (uint32_t s = 0; s < w->n_slots; s++) {
            double sum = 0;
            for (uint32_t d = 0; d < DIM; d++)
                sum += (double)w->q[h][d] * (double)k[(size_t)s * DIM + d];
            w->score[h][s] = sum * w->scale;
        }
        for (uint32_t b = first; b < end; b++) {
            float bound = 0;
            for (uint32_t d = 0; d < DIM; d++) {
                float most = -INFINITY;
                for (uint32_t s = b * w->block_tokens; s < (b + 1) * w->block_tokens; s++)
                    most = fmaxf(most, w->q[h][d] * k[(size_t)s * DIM + d]);
                bound += most;
            }
            w->bounds[h][b - first] = bound;
        }
        w->rows[h] = w->bounds[h];
    }
}

static double block_mass(const world *w, uint32_t head, uint32_t block)
{
    double sum = 0;
    for (uint32_t s = block * w->block_tokens; s < (block + 1) * w->block_tokens; s++)
        if (s < w->n_slots) sum += exp(w->score[head][s]);
    return sum;
}

typedef struct asked {
    world *w;
    uint32_t n_heads;
} asked;

static status sums(void *ctx, const uint32_t *blocks, uint32_t n, double *out)
{
    asked *a = ctx;
    assert_in_range(n, 1, RETRIEVAL_SUMS_MOST);
    a->w->n_sums += n;
    a->w->n_calls++;
    if (a->w->fails_at == a->w->n_calls) return status_make(STATUS_IO, "a rank is gone");
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < a->n_heads; h++)
            *out++ = log2(block_mass(a->w, a->w->first + h, blocks[i]));
    return STATUS_IS_OK;
}

static status try_certify(world *w, const retrieval_spec *spec, uint32_t n_heads, uint32_t sure,
                          uint32_t *blocks, uint32_t *n, double *missed)
{
    retrieval_extent e = retrieval_extent_of(spec, 0, w->n_slots);
    asked a = {w, n_heads};
    void *scratch = malloc(retrieval_certify_bytes(e.end - e.first, n_heads));
    const retrieval_exam exam = {.n_slots = w->n_slots,
                                 .n_heads = n_heads,
                                 .scale = w->scale,
                                 .bounds = (const float *const *)w->rows + w->first,
                                 .sure = sure,
                                 .sums = sums,
                                 .ctx = &a};
    w->n_sums = w->n_calls = 0;
    status s = retrieval_certify(spec, &exam, scratch, blocks, n, missed);
    free(scratch);
    return s;
}

static uint32_t certify(world *w, const retrieval_spec *spec, uint32_t n_heads, uint32_t sure,
                        uint32_t *blocks, double *missed)
{
    uint32_t n;
    assert_true(status_ok(try_certify(w, spec, n_heads, sure, blocks, &n, missed)));
    return n;
}

static void free_world(world *w)
{
    free(w->k);
    free(w->score);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static uint32_t number(const json_t *row, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(row, key));
}

static void exams_are_the_oracles(void **state)
{
    (void)state;
    json_t *all, *row;
    error err;
    size_t i;
    if (!status_ok(json_read_file(GOLDEN, 1 << 20, &all, &err))) fail_msg("%s", err.text);
    const json_t *rows = json_object_get(all, "exams");
    assert_true(json_array_size(rows) > 0);
    json_array_foreach(rows, i, row)
    {
        world w = {.n_slots = number(row, "n_slots"),
                   .n_kv_heads = number(row, "n_kv_heads"),
                   .q_heads = number(row, "q_heads"),
                   .scale = json_number_value(json_object_get(row, "scale"))};
        const pkv_geometry g = {.page_tokens = number(row, "page_tokens"),
                                .n_layers = 4,
                                .n_kv_heads = w.n_kv_heads,
                                .layers_per_group = 1,
                                .heads_per_group = 1};
        retrieval_spec spec;
        if (!status_ok(retrieval_parse(json_object_get(row, "retrieval"), &g, &spec, &err)))
            fail_msg("%s", err.text);
        w.block_tokens = spec.block_tokens;
        fill_world(&w, number(row, "seed"), 1.0 / 16);
        retrieval_extent e = retrieval_extent_of(&spec, 0, w.n_slots);
        score_world(&w, e.first, e.end);
        uint32_t step = retrieval_heads_together(&spec, &g), blocks[BLOCKS_MOST];
        for (uint32_t h = 0; h < w.n_kv_heads; h += step) {
            double missed;
            const json_t *want = json_array_get(json_object_get(row, "blocks"), h / step);
            w.first = h * w.q_heads;
            uint32_t n = certify(&w, &spec, step * w.q_heads, number(row, "sure"), blocks, &missed);
            assert_int_equal(n, json_array_size(want));
            for (uint32_t b = 0; b < n; b++)
                assert_int_equal(blocks[b], json_integer_value(json_array_get(want, b)));
            /* Only what is read needs its sums. */
            assert_int_equal(w.n_sums, n);
            double oracle =
                json_number_value(json_array_get(json_object_get(row, "missed"), h / step));
            assert_true(fabs(missed - oracle) < 1e-6);
        }
        free_world(&w);
    }
    json_decref(all);
}

/* The share of the softmax mass that a query head really misses. */
static double missed_by(const world *w, uint32_t head, const uint32_t *blocks, uint32_t n)
{
    double all = 0, unread = 0;
    for (uint32_t b = 0, next = 0; b < w->n_blocks; b++) {
        double mass = block_mass(w, head, b);
        bool read = next < n && blocks[next] == b;
        next += read;
        all += mass;
        unread += read ? 0 : mass;
    }
    return unread / all;
}

static void no_head_misses_more_than_epsilon(void **state)
{
    (void)state;
    static const float shares[] = {0.001f, 0.02f, 0.1f, 0.4f, 0.9f};
    static const double noises[] = {0, 1.0 / 256, 1.0 / 64, 1.0 / 16, 1.0 / 4};
    uint64_t most = getenv("OCTAVO_SOAK") ? 1000000 : 10000, n_heads = 0, read = 0, calls = 0,
             blocks_seen = 0;
    double closest = 0;
    for (uint64_t seed = 1; n_heads < most; seed++) {
        rng r = rng_seed(seed);
        world w = {.n_slots = 200 + rng_below(&r, 900),
                   .block_tokens = rng_below(&r, 2) ? 32 : 16,
                   .n_kv_heads = 2,
                   .q_heads = 1 + rng_below(&r, 4),
                   .scale = 0.05 * (1 + rng_below(&r, 30))};
        if (w.block_tokens == 16) w.n_slots = 200 + rng_below(&r, 700);
        retrieval_spec spec = {.block_tokens = w.block_tokens,
                               .representative = RETRIEVAL_QUEST,
                               .representative_num = 1,
                               .group_heads = 1,
                               .initial_tokens = rng_below(&r, 40),
                               .local_tokens = 1 + rng_below(&r, 100),
                               .top_blocks = INT32_MAX,
                               .layer_step = 1,
                               .token_step = 1,
                               .epsilon = shares[rng_below(&r, 5)]};
        fill_world(&w, seed, noises[rng_below(&r, 5)]);
        retrieval_extent e = retrieval_extent_of(&spec, 0, w.n_slots);
        score_world(&w, e.first, e.end);
        uint32_t together = 1 + rng_below(&r, 2), blocks[BLOCKS_MOST];
        for (w.first = 0; w.first < 2 * w.q_heads; w.first += together * w.q_heads) {
            double missed;
            uint32_t n = certify(&w, &spec, together * w.q_heads, UINT32_MAX, blocks, &missed);
            assert_true(missed <= (double)spec.epsilon);
            for (uint32_t h = w.first; h < w.first + together * w.q_heads; h++, n_heads++) {
                double really = missed_by(&w, h, blocks, n);
                if (!(really <= missed * (1 + 1e-9) + 1e-12))
                    fail_msg("seed %llu, head %u misses %g, by its bound at most %g",
                             (unsigned long long)seed, h, really, missed);
                closest = fmax(closest, really / (double)spec.epsilon);
            }
            read += n;
            calls += w.n_calls;
            blocks_seen += w.n_blocks;
        }
        free_world(&w);
    }
    /* The cases are not all easy: blocks are left out, and some bounds are tight. */
    print_message("%llu query heads: %.2f of the blocks read, %.1f in a call for sums, %.2f of "
                  "epsilon missed at most\n",
                  (unsigned long long)n_heads, (double)read / (double)blocks_seen,
                  (double)read / (double)calls, closest);
    assert_true(read < blocks_seen * 3 / 4 && calls < read / 3 && closest > 0.5 && closest <= 1);
}

/* Bounds and keys that are not numbers: everything is read, and the exam ends. */
static void what_is_not_known_is_read(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        world w = {.n_slots = 500, .block_tokens = 16, .n_kv_heads = 1, .q_heads = 2, .scale = 0.5};
        const retrieval_spec spec = {.block_tokens = 16,
                                     .representative = RETRIEVAL_QUEST,
                                     .representative_num = 1,
                                     .group_heads = 1,
                                     .local_tokens = 16,
                                     .top_blocks = INT32_MAX,
                                     .layer_step = 1,
                                     .token_step = 1,
                                     .epsilon = 0.5f};
        uint32_t blocks[BLOCKS_MOST];
        double missed;
        fill_world(&w, 5, 1.0 / 16);
        retrieval_extent e = retrieval_extent_of(&spec, 0, w.n_slots);
        score_world(&w, e.first, e.end);
        if (kind == 0)
            for (uint32_t b = 0; b < e.end; b++) w.bounds[1][b] = NAN;
        if (kind == 1)
            for (uint32_t b = 0; b < e.end; b++) w.bounds[0][b] = INFINITY;
        if (kind == 2)
            for (uint32_t s = 0; s < w.n_slots; s++) w.score[0][s] = NAN;
        assert_int_equal(certify(&w, &spec, 2, UINT32_MAX, blocks, &missed), w.n_blocks);
        assert_true(missed == 0);
        free_world(&w);
    }
}

/* The sums of a rank that is lost never come: each call may be the one that fails. */
static void a_failed_call_ends_the_exam(void **state)
{
    (void)state;
    world w = {.n_slots = 900, .block_tokens = 16, .n_kv_heads = 1, .q_heads = 2, .scale = 0.5};
    const retrieval_spec spec = {.block_tokens = 16,
                                 .representative = RETRIEVAL_QUEST,
                                 .representative_num = 1,
                                 .group_heads = 1,
                                 .local_tokens = 16,
                                 .top_blocks = INT32_MAX,
                                 .layer_step = 1,
                                 .token_step = 1,
                                 .epsilon = 0.001f};
    uint32_t blocks[BLOCKS_MOST], n;
    double missed;
    fill_world(&w, 5, 1.0 / 16);
    retrieval_extent e = retrieval_extent_of(&spec, 0, w.n_slots);
    score_world(&w, e.first, e.end);
    (void)certify(&w, &spec, 2, UINT32_MAX, blocks, &missed);
    uint32_t n_calls = w.n_calls;
    assert_true(n_calls > 1);
    for (w.fails_at = 1; w.fails_at <= n_calls; w.fails_at++) {
        status s = try_certify(&w, &spec, 2, UINT32_MAX, blocks, &n, &missed);
        assert_int_equal(s.code, STATUS_IO);
        assert_int_equal(w.n_calls, w.fails_at);
    }
    free_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exams_are_the_oracles),
        cmocka_unit_test(no_head_misses_more_than_epsilon),
        cmocka_unit_test(what_is_not_known_is_read),
        cmocka_unit_test(a_failed_call_ends_the_exam),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
