/* Parts of attention over a GPU's pages against a naive softmax in f64, on every ISA, alone and
 * merged; with one thread and several. */
#include "kernels/part_attention.h"

#include "base/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TILES_MOST = 140, HEADS = 5 };

static float e4m3(uint8_t x)
{
    float m = (float)(x & 7), e = (float)(x >> 3 & 15);
    float v = e > 0 ? (1 + m / 8) * exp2f(e - 7) : m / 8 * exp2f(-6);
    return x >> 7 ? -v : v;
}

/* Element d of slot `slot`'s K (part 0) or V. */
static float element(const kern_part_batch *b, const uint8_t *tile, uint32_t slot, uint32_t part,
                     uint32_t d)
{
    size_t at = ((size_t)part * b->page_tokens + slot) * b->head_dim + d;
    uint16_t half;
    memcpy(&half, tile + 2 * at, sizeof half);
    if (b->format == KERN_PART_BF16) return bf16_to_f32(half);
    if (b->format == KERN_PART_F16) return f16_to_f32(half);
    if (b->format == KERN_PART_E4M3) return e4m3(tile[at]);
    memcpy(&half, tile + 2 * b->page_tokens * b->head_dim + 2 * (part * b->page_tokens + slot), 2);
    return (float)(int8_t)tile[at] * bf16_to_f32(half);
}

static void naive(const kern_part_batch *b, const kern_part_item *it, uint32_t head, double *out,
                  double *lse)
{
    uint32_t slots = it->n_tiles * b->page_tokens;
    double *scores = malloc(slots * sizeof *scores), top = -INFINITY, sum = 0;
    for (uint32_t s = 0; s < slots; s++) {
        const uint8_t *tile = it->tiles[s / b->page_tokens];
        scores[s] = 0;
        for (uint32_t d = 0; d < b->head_dim; d++)
            scores[s] += (double)it->q[head * b->head_dim + d] *
                         (double)element(b, tile, s % b->page_tokens, 0, d) * (double)b->scale;
        top = fmax(top, scores[s]);
    }
    for (uint32_t d = 0; d < b->head_dim; d++) out[d] = 0;
    for (uint32_t s = 0; s < slots; s++) {
        double p = exp(scores[s] - top);
        sum += p;
        for (uint32_t d = 0; d < b->head_dim; d++)
            out[d] +=
                p * (double)element(b, it->tiles[s / b->page_tokens], s % b->page_tokens, 1, d);
    }
    for (uint32_t d = 0; d < b->head_dim; d++) out[d] /= sum;
    *lse = (top + log(sum)) / log(2);
    free(scores);
}

static void fill_tile(rng *r, const kern_part_batch *b, uint8_t *tile)
{
    size_t n = 2 * (size_t)b->page_tokens * b->head_dim;
    for (size_t i = 0; i < n; i++) {
        float x = (float)(rng_below(r, 2000)) / 1000.0f - 1.0f;
        uint16_t half = b->format == KERN_PART_BF16 ? bf16_from_f32(x) : f16_from_f32(x);
        if (b->format == KERN_PART_BF16 || b->format == KERN_PART_F16)
            memcpy(tile + 2 * i, &half, sizeof half);
        else if (b->format == KERN_PART_INT8) tile[i] = (uint8_t)(int8_t)(x * 127);
        else tile[i] = (uint8_t)(rng_below(r, 56) | (x < 0 ? 128u : 0u));
    }
    for (size_t i = 0; b->format == KERN_PART_INT8 && i < 2 * b->page_tokens; i++) {
        uint16_t scale = bf16_from_f32((float)(1 + rng_below(r, 100)) / 5000.0f);
        memcpy(tile + n + 2 * i, &scale, sizeof scale);
    }
}

typedef struct world {
    kern_part_batch batch;
    uint8_t *bytes;
    const uint8_t *tiles[TILES_MOST];
    float q[2 * HEADS * 256], out[2 * HEADS * 256], lse[2 * HEADS];
    kern_part_item items[2];
} world;

/* Two items: one of most tiles, one of a few. */
static world *make_world(kern_part_format format, uint32_t page_tokens, uint32_t dim, uint32_t n)
{
    world *w = calloc(1, sizeof *w);
    rng r = rng_seed(7);
    w->batch = (kern_part_batch){.format = format,
                                 .page_tokens = page_tokens,
                                 .head_dim = dim,
                                 .q_heads = HEADS,
                                 .scale = 1.0f / sqrtf((float)dim),
                                 .items = w->items,
                                 .n_items = 2};
    size_t bytes = 2 * (size_t)page_tokens * (dim + 1) * 2;
    w->bytes = malloc(n * bytes);
    for (uint32_t i = 0; i < n; i++) {
        fill_tile(&r, &w->batch, w->bytes + i * bytes);
        w->tiles[n - 1 - i] = w->bytes + i * bytes; /* not in the order of memory */
    }
    for (size_t i = 0; i < 2 * (size_t)HEADS * dim; i++)
        w->q[i] = (float)rng_below(&r, 6000) / 1000.0f - 3.0f;
    uint32_t few = n / 3;
    w->items[0] = (kern_part_item){w->tiles, n - few, w->q, w->out, w->lse};
    w->items[1] = (kern_part_item){w->tiles + n - few, few, w->q + HEADS * dim,
                                   w->out + HEADS * dim, w->lse + HEADS};
    return w;
}

static void free_world(world *w)
{
    free(w->bytes);
    free(w);
}

static kern_context *context(thread_pool *pool, const char *isa)
{
    kern_context *kc;
    error err = {{0}};
    kern_options o = {.pool = pool, .isa = isa};
    if (!status_ok(kern_create(&o, &kc, &err))) fail_msg("%s", err.text);
    return kc;
}

static void check(kern_context *kc, kern_part_format format, uint32_t page_tokens, uint32_t dim,
                  uint32_t n)
{
    world *w = make_world(format, page_tokens, dim, n);
    double out[256], lse, wrong = 0, size = 0;
    assert_true(status_ok(kern_part_attention(kc, &w->batch)));
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t h = 0; h < HEADS; h++) {
            naive(&w->batch, &w->items[i], h, out, &lse);
            assert_true(fabs(lse - (double)w->items[i].lse[h]) < 1e-4);
            for (uint32_t d = 0; d < dim; d++) {
                double x = (double)w->items[i].out[h * dim + d] - out[d];
                wrong += x * x;
                size += out[d] * out[d];
            }
        }
    }
    assert_true(wrong < 1e-9 * size);
    free_world(w);
}

static void equals_a_softmax(void **state)
{
    (void)state;
    thread_pool *pool;
    thread_pool_options o = {.n_threads = 2};
    assert_true(status_ok(thread_pool_create(&o, &pool)));
    for (size_t i = 0; i < kern_isa_count(); i++) {
        bool available;
        const char *isa = kern_isa_at(i, &available);
        if (!available) continue;
        kern_context *kc = context(pool, isa);
        for (kern_part_format f = KERN_PART_BF16; f <= KERN_PART_INT8; f++) check(kc, f, 16, 32, 7);
        check(kc, KERN_PART_BF16, 16, 128, 20);
        check(kc, KERN_PART_F16, 32, 96, 3);
        check(kc, KERN_PART_INT8, 48, 256, 5);
        kern_destroy(kc);
    }
    thread_pool_destroy(pool);
}

/* A table of several spans: the bits do not depend on threads, and parts merged are the whole. */
static void parts_merge(void **state)
{
    (void)state;
    enum { DIM = 64, N = 140 };
    float first[2 * HEADS * DIM];
    for (unsigned threads = 1; threads <= 3; threads++) {
        thread_pool *pool;
        thread_pool_options o = {.n_threads = threads};
        assert_true(status_ok(thread_pool_create(&o, &pool)));
        kern_context *kc = context(pool, NULL);
        world *w = make_world(KERN_PART_BF16, 16, DIM, N);
        assert_true(status_ok(kern_part_attention(kc, &w->batch)));
        if (threads == 1) memcpy(first, w->out, sizeof first);
        assert_memory_equal(first, w->out, sizeof first);
        /* Item 1's queries over item 0's tiles, merged with its own part, and over all tiles. */
        float more[HEADS * DIM], lse[HEADS], whole[HEADS * DIM], of_whole[HEADS];
        kern_part_item items[] = {{w->tiles, w->items[0].n_tiles, w->items[1].q, more, lse},
                                  {w->tiles, N, w->items[1].q, whole, of_whole}};
        w->batch.items = items;
        assert_true(status_ok(kern_part_attention(kc, &w->batch)));
        for (uint32_t h = 0; h < HEADS; h++) {
            kern_part_merge(w->items[1].out + h * DIM, w->items[1].lse[h], DIM, more + h * DIM,
                            &lse[h]);
            assert_true(fabsf(lse[h] - of_whole[h]) < 1e-4f);
            for (uint32_t d = 0; d < DIM; d++)
                assert_true(fabsf(more[h * DIM + d] - whole[h * DIM + d]) < 1e-5f);
        }
        free_world(w);
        kern_destroy(kc);
        thread_pool_destroy(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_a_softmax),
        cmocka_unit_test(parts_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
