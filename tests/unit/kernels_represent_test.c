/* Representatives of blocks, against keys that are read back one by one, and scores, against
 * products with them in float64. */
#include "base/half.h"
#include "kernels/represent.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define FIXTURE_LAST_ISA "avx512"
#include "tests/unit/kernels_fixture.h"

enum { BLOCKS = 9, PAGES_MOST = 8, DIM_MOST = 256 };

typedef struct block_case {
    kern_kv_format format;
    uint32_t page_tokens, head_dim, n_pages;
} block_case;

static const block_case cases[] = {
    {KERN_KV_F32, 16, 16, 3},  {KERN_KV_BF16, 16, 64, 8},  {KERN_KV_BF16, 128, 128, 1},
    {KERN_KV_F16, 80, 48, 2},  {KERN_KV_INT8, 64, 64, 2},  {KERN_KV_INT8, 256, 256, 1},
    {KERN_KV_INT4, 32, 64, 4}, {KERN_KV_INT4, 128, 80, 1}, {KERN_KV_INT2, 96, 128, 2},
};

static float next_value(rng *r) { return rng_unit(r) * 4 - 3; }

/* Fills every slot of n tiles. Most keys are negative, so that a maximum that began at 0 shows. */
static void fill_tiles(const kern_context *kc, const kern_kv_shape *shape, uint8_t *tiles, size_t n)
{
    const kern_kv_shape wide = kern_kv_wide(shape);
    uint8_t *page = malloc(kern_kv_tile_bytes(&wide));
    rng r = rng_seed(7);
    float k[DIM_MOST], v[DIM_MOST];
    for (size_t t = 0; t < n; t++) {
        uint8_t *tile = tiles + t * kern_kv_tile_bytes(shape);
        uint8_t *to = kern_kv_has_grids(shape->format) ? page : tile;
        for (uint32_t s = 0; s < shape->page_tokens; s++) {
            for (uint32_t d = 0; d < shape->head_dim; d++) {
                k[d] = next_value(&r);
                v[d] = next_value(&r);
            }
            kern_kv_write(kc, &wide, to, s, k, v);
        }
        if (to == page) kern_kv_pack(kc, shape, page, tile);
    }
    free(page);
}

/* A case's pages, mixed, and the representatives of its blocks. */
typedef struct blocks {
    kern_kv_shape shape;
    uint32_t n_pages; /* of a block */
    uint32_t pages[BLOCKS * PAGES_MOST];
    uint8_t *tiles;
    size_t tile_bytes;
    uint64_t slots[BLOCKS][8]; /* of those that have marks */
    kern_represent_item items[BLOCKS];
    uint16_t out[BLOCKS][2][DIM_MOST];
} blocks;

static blocks *blocks_of(const kern_context *kc, const block_case *c)
{
    blocks *b = calloc(1, sizeof *b);
    b->shape = (kern_kv_shape){c->format, c->page_tokens, c->head_dim};
    b->n_pages = c->n_pages;
    b->tile_bytes = kern_kv_tile_bytes(&b->shape);
    b->tiles = calloc(BLOCKS * c->n_pages, b->tile_bytes);
    fill_tiles(kc, &b->shape, b->tiles, BLOCKS * c->n_pages);
    for (uint32_t i = 0; i < BLOCKS * c->n_pages; i++) b->pages[i] = BLOCKS * c->n_pages - 1 - i;
    for (size_t i = 0; i < BLOCKS; i++) {
        for (size_t w = 0; w < 8 && i % 3 > 0; w++)
            b->slots[i][w] = i % 3 == 1 ? UINT64_C(0x8000040000210001) << w : 0;
        b->items[i] = (kern_represent_item){.pages = b->pages + i * c->n_pages,
                                            .tiles = b->tiles,
                                            .slots = i % 3 ? b->slots[i] : NULL,
                                            .out = b->out[i][0],
                                            .smallest = b->out[i][1]};
    }
    return b;
}

static void blocks_free(blocks *b)
{
    free(b->tiles);
    free(b);
}

static void represent(kern_context *kc, blocks *b, kern_represent_kind kind)
{
    const kern_represent_batch batch = {.shape = b->shape,
                                        .kind = kind,
                                        .page_stride = b->tile_bytes,
                                        .n_pages = b->n_pages,
                                        .items = b->items,
                                        .n_items = BLOCKS};
    memset(b->out, 0, sizeof b->out);
    assert_true(status_ok(kern_represent(kc, &batch)));
}

/* Whether bf16 `has` is the nearest to x on its side: at or above it, or at or below it. */
static bool is_outwards(uint16_t has, float x, bool up)
{
    float y = bf16_to_f32(has);
    bool nearest = fabsf(y - x) < fabsf(x) * 0x1p-7f || y == x;
    return nearest && (up ? y >= x : y <= x) && (bf16_to_f32(bf16_from_f32(x)) != x || y == x);
}

static void check_block(const kern_context *kc, const blocks *b, kern_represent_kind kind, size_t i)
{
    double sums[DIM_MOST] = {0};
    float largest[DIM_MOST], smallest[DIM_MOST], k[DIM_MOST], v[DIM_MOST];
    const kern_represent_item *it = &b->items[i];
    for (uint32_t s = 0; s < b->n_pages * b->shape.page_tokens; s++) {
        uint32_t page = it->pages[s / b->shape.page_tokens];
        kern_kv_read(kc, &b->shape, b->tiles + page * b->tile_bytes, s % b->shape.page_tokens, k,
                     v);
        bool marked = !it->slots || (it->slots[s / 64] >> s % 64 & 1);
        for (uint32_t d = 0; d < b->shape.head_dim; d++) {
            if (marked) sums[d] += (double)k[d];
            largest[d] = s == 0 ? k[d] : fmaxf(largest[d], k[d]);
            smallest[d] = s == 0 ? k[d] : fminf(smallest[d], k[d]);
        }
    }
    for (uint32_t d = 0; d < b->shape.head_dim; d++) {
        double sum = (double)bf16_to_f32(it->out[d]);
        if (kind == KERN_REPRESENT_SUM)
            assert_true(fabs(sum - sums[d]) <= fabs(sums[d]) * 0x1.01p-8 + 1e-6);
        else assert_true(is_outwards(it->out[d], largest[d], true));
        if (kind == KERN_REPRESENT_BOX)
            assert_true(is_outwards(it->smallest[d], smallest[d], false));
        else assert_int_equal(it->smallest[d], 0);
    }
}

static void representatives_are_those_of_the_keys(void **state)
{
    fixture *f = *state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        blocks *b = blocks_of(f->isas[0], &cases[c]);
        for (kern_represent_kind kind = 0; kind <= KERN_REPRESENT_BOX; kind++) {
            uint16_t first[BLOCKS][2][DIM_MOST];
            for (size_t i = 0; i < f->n_isas; i++) {
                represent(f->isas[i], b, kind);
                for (size_t n = 0; n < BLOCKS; n++) check_block(f->isas[i], b, kind, n);
                if (i == 0) memcpy(first, b->out, sizeof first);
                else if (!kern_kv_has_grids(b->shape.format))
                    assert_memory_equal(b->out, first, sizeof first);
            }
        }
        blocks_free(b);
    }
}

/* f32 keys that no bf16 holds, next to those that it does: 1 + 2^-20, its negative, and limits. */
static void boxes_hold_what_bf16_cannot(void **state)
{
    fixture *f = *state;
    const float more = 1 + 0x1p-20f;
    const float rows[][3] = {/* key, and the box */
                             {more, 1 + 0x1p-7f, 1},
                             {-more, -1, -1 - 0x1p-7f},
                             {1.5f, 1.5f, 1.5f},
                             {0x1.fffffep127f, INFINITY, 0x1.fep127f},
                             {-0x1.fffffep127f, -0x1.fep127f, -INFINITY},
                             {INFINITY, INFINITY, INFINITY},
                             {0x1p-149f, 0x1p-133f, 0}};
    const block_case c = {KERN_KV_F32, 16, 16, 1};
    blocks *b = blocks_of(f->isas[0], &c);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        float k[DIM_MOST], v[DIM_MOST] = {0};
        for (uint32_t d = 0; d < c.head_dim; d++) k[d] = rows[r][0];
        for (uint32_t s = 0; s < c.page_tokens; s++)
            kern_kv_write(f->isas[0], &b->shape, b->tiles + b->pages[0] * b->tile_bytes, s, k, v);
        represent(f->isas[0], b, KERN_REPRESENT_BOX);
        for (uint32_t d = 0; d < c.head_dim; d++) {
            assert_true(bf16_to_f32(b->out[0][0][d]) == rows[r][1]);
            assert_true(bf16_to_f32(b->out[0][1][d]) == rows[r][2]);
        }
    }
    blocks_free(b);
}

/* ---- scores ---------------------------------------------------------------------------------- */

enum { SCORED = 601, STEP = 3, Q_HEADS = 3, HEADS = 2 };

/* Two heads with SCORED blocks of STEP pages; their vectors lie at every third page. */
typedef struct scoring {
    uint32_t dim;
    float q[HEADS][Q_HEADS * DIM_MOST], scores[HEADS][SCORED];
    uint32_t pages[HEADS][SCORED * STEP];
    uint16_t *vectors, *smallest; /* [SCORED * STEP, HEADS, dim] */
} scoring;

static scoring *scoring_of(uint32_t dim)
{
    scoring *s = calloc(1, sizeof *s);
    size_t n = (size_t)SCORED * STEP * HEADS * dim;
    rng r = rng_seed(dim);
    s->dim = dim;
    s->vectors = calloc(n, sizeof *s->vectors);
    s->smallest = calloc(n, sizeof *s->smallest);
    for (size_t i = 0; i < n; i++) s->vectors[i] = bf16_from_f32(next_value(&r));
    for (size_t i = 0; i < n; i++) s->smallest[i] = bf16_from_f32(next_value(&r) - 4);
    for (size_t h = 0; h < HEADS; h++) {
        for (size_t i = 0; i < Q_HEADS * dim; i++) s->q[h][i] = rng_normal(&r);
        for (uint32_t i = 0; i < SCORED * STEP; i++) s->pages[h][i] = SCORED * STEP - 1 - i;
    }
    return s;
}

static void score(kern_context *kc, scoring *s, bool boxes)
{
    kern_score_item items[HEADS];
    for (size_t h = 0; h < HEADS; h++)
        items[h] = (kern_score_item){.q = s->q[h],
                                     .pages = s->pages[h],
                                     .vectors = s->vectors + h * s->dim,
                                     .smallest = boxes ? s->smallest + h * s->dim : NULL,
                                     .scores = s->scores[h]};
    const kern_score_batch batch = {.head_dim = s->dim,
                                    .q_heads = Q_HEADS,
                                    .block_pages = STEP,
                                    .n_blocks = SCORED,
                                    .stride = (size_t)HEADS * s->dim,
                                    .items = items,
                                    .n_items = HEADS};
    kern_score_blocks(kc, &batch);
}

static double want_score(const scoring *s, size_t head, uint32_t block, bool boxes, double *size)
{
    double sum = 0;
    *size = 0;
    size_t at = ((size_t)s->pages[head][block * STEP] * HEADS + head) * s->dim;
    for (uint32_t i = 0; i < Q_HEADS * s->dim; i++) {
        double q = (double)s->q[head][i], x = q * (double)bf16_to_f32(s->vectors[at + i % s->dim]);
        double y = q * (double)bf16_to_f32(s->smallest[at + i % s->dim]);
        sum += boxes ? fmax(x, y) : x;
        *size += fmax(fabs(x), fabs(y));
    }
    return sum;
}

static void scores_are_products_with_representatives(void **state)
{
    fixture *f = *state;
    static const uint32_t dims[] = {16, 64, 80, 256};
    for (size_t c = 0; c < 2 * sizeof dims / sizeof dims[0]; c++) {
        bool boxes = c % 2;
        scoring *s = scoring_of(dims[c / 2]);
        float first[HEADS][SCORED];
        for (size_t i = 0; i < f->n_isas; i++) {
            memset(s->scores, 0xff, sizeof s->scores);
            score(f->isas[i], s, boxes);
            if (i > 0) assert_memory_equal(s->scores, first, sizeof first);
            memcpy(first, s->scores, sizeof first);
        }
        for (size_t h = 0; h < HEADS; h++)
            for (uint32_t b = 0; b < SCORED; b++) {
                double size, want = want_score(s, h, b, boxes, &size);
                assert_true(fabs((double)first[h][b] - want) <= size * 1e-6);
            }
        free(s->vectors);
        free(s->smallest);
        free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(representatives_are_those_of_the_keys),
        cmocka_unit_test(boxes_hold_what_bf16_cannot),
        cmocka_unit_test(scores_are_products_with_representatives),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
