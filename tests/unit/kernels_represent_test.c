/* Representatives of pages, against keys that are read back one by one. */
#include "kernels/represent.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define FIXTURE_LAST_ISA "avx512"
#include "tests/unit/kernels_fixture.h"

enum { TILES = 9, DIM_MOST = 256, PAGE_MOST = 256 };

typedef struct page_case {
    kern_kv_format format;
    uint32_t page_tokens, head_dim;
} page_case;

static const page_case cases[] = {
    {KERN_KV_F32, 16, 16},  {KERN_KV_BF16, 16, 64},  {KERN_KV_BF16, 128, 128},
    {KERN_KV_F16, 80, 48},  {KERN_KV_INT8, 64, 64},  {KERN_KV_INT8, 256, 256},
    {KERN_KV_INT4, 32, 64}, {KERN_KV_INT4, 128, 80}, {KERN_KV_INT2, 96, 128},
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

static bool is_marked(const kern_represent_item *it, uint32_t slot)
{
    return it->slots[slot / 64] >> slot % 64 & 1;
}

static void check_item(const kern_context *kc, const kern_kv_shape *shape,
                       const kern_represent_item *it)
{
    double sums[DIM_MOST] = {0};
    float largest[DIM_MOST], smallest[DIM_MOST], k[DIM_MOST], v[DIM_MOST];
    for (uint32_t s = 0; s < shape->page_tokens; s++) {
        kern_kv_read(kc, shape, it->tile, s, k, v);
        for (uint32_t d = 0; d < shape->head_dim; d++) {
            if (is_marked(it, s)) sums[d] += (double)k[d];
            largest[d] = s == 0 ? k[d] : fmaxf(largest[d], k[d]);
            smallest[d] = s == 0 ? k[d] : fminf(smallest[d], k[d]);
        }
    }
    for (uint32_t d = 0; d < shape->head_dim; d++) {
        if (it->kind == KERN_REPRESENT_SUM) {
            assert_true(fabs((double)it->out[d] - sums[d]) <= 1e-4);
            continue;
        }
        assert_true(it->out[d] == largest[d]);
        if (it->kind == KERN_REPRESENT_BOX)
            assert_true(it->out[shape->head_dim + d] == smallest[d]);
    }
}

/* A third of the items of each kind; sums of all slots, of some, of none. */
static void set_items(const kern_kv_shape *shape, const uint8_t *tiles, float *out,
                      kern_represent_item *items)
{
    static const uint64_t marks[3][4] = {
        {~UINT64_C(0), ~UINT64_C(0), ~UINT64_C(0), ~UINT64_C(0)},
        {UINT64_C(0x8000040000210001), UINT64_C(0xffff0000), 1, UINT64_C(1) << 63},
        {0},
    };
    for (size_t i = 0; i < TILES; i++) {
        items[i] = (kern_represent_item){.tile = tiles + i * kern_kv_tile_bytes(shape),
                                         .kind = (kern_represent_kind)(i % 3),
                                         .out = out + i * 2 * shape->head_dim};
        memcpy(items[i].slots, marks[i / 3], sizeof items[i].slots);
    }
}

static void representatives_are_those_of_the_keys(void **state)
{
    fixture *f = *state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const kern_kv_shape shape = {cases[c].format, cases[c].page_tokens, cases[c].head_dim};
        size_t floats = (size_t)TILES * 2 * shape.head_dim;
        uint8_t *tiles = calloc(TILES, kern_kv_tile_bytes(&shape));
        float *first = calloc(floats, sizeof *first), *out = calloc(floats, sizeof *out);
        kern_represent_item items[TILES];
        fill_tiles(f->isas[0], &shape, tiles, TILES);
        for (size_t i = 0; i < f->n_isas; i++) {
            set_items(&shape, tiles, i == 0 ? first : out, items);
            assert_true(status_ok(kern_represent(f->isas[i], &shape, items, TILES)));
            for (size_t n = 0; n < TILES; n++) check_item(f->isas[i], &shape, &items[n]);
            if (i > 0 && !kern_kv_has_grids(shape.format))
                assert_memory_equal(out, first, floats * sizeof *out);
        }
        free(tiles);
        free(first);
        free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(representatives_are_those_of_the_keys)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
