/* KV pages: writing, reading and moving slots. */
#include "tests/unit/kernels_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

static const kern_kv_format all_types[] = {KERN_KV_F32, KERN_KV_BF16, KERN_KV_F16, KERN_KV_INT8};

static float rounded(dtype t, float x)
{
    return t == DTYPE_F32    ? x
           : t == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(x))
                             : f16_to_f32(f16_from_f32(x));
}

/* Every ISA stores the reference's bits, touches no other slot, and reads back what it stored. */
static void test_kv_write(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(11);
    for (size_t t = 0; t < 3; t++)
        for (uint32_t dim = 16; dim <= 256; dim += 48) {
            kern_kv_shape shape = {all_types[t], 32, dim};
            size_t bytes = kern_kv_tile_bytes(&shape);
            uint8_t *want = malloc(bytes), *got = malloc(bytes);
            float k[256], v[256], k2[256], v2[256];
            for (uint32_t slot = 0; slot < 32; slot++) {
                for (uint32_t d = 0; d < dim; d++) {
                    uint32_t bits = rng_u32(&r);
                    memcpy(&k[d], &bits, 4);
                    v[d] = rng_normal(&r) * 1e-3f;
                    if (k[d] != k[d]) k[d] = INFINITY; /* the payload of a NaN may differ */
                }
                memset(want, 0xee, bytes);
                kern_kv_write(f->isas[0], &shape, want, slot, k, v);
                for (size_t i = 1; i < f->n_isas; i++) {
                    memset(got, 0xee, bytes);
                    kern_kv_write(f->isas[i], &shape, got, slot, k, v);
                    assert_memory_equal(want, got, bytes);
                    kern_kv_read(f->isas[i], &shape, got, slot, k2, v2);
                    for (uint32_t d = 0; d < dim; d++) {
                        float a = rounded((dtype)shape.format, k[d]),
                              b = rounded((dtype)shape.format, v[d]);
                        assert_memory_equal(&a, &k2[d], 4);
                        assert_memory_equal(&b, &v2[d], 4);
                    }
                }
            }
            free(want);
            free(got);
        }
}

/* Every ISA stores the same integers and scale, in this slot's bytes only; the values read back are
 * within half a step, the largest exact up to the scale's rounding; written again they give the
 * same bits. */
static void check_int8(const fixture *f, uint32_t dim, uint32_t slot, const float *k,
                       const float *v)
{
    kern_kv_shape shape = {KERN_KV_INT8, 32, dim};
    size_t bytes = kern_kv_tile_bytes(&shape);
    uint8_t *want = malloc(bytes), *got = malloc(bytes);
    float back[2][256];
    memset(want, 0xee, bytes);
    kern_kv_write(f->isas[0], &shape, want, slot, k, v);
    size_t changed = 0;
    for (size_t i = 0; i < bytes; i++) changed += want[i] != 0xee;
    assert_true(changed <= 2 * dim + 4);
    for (size_t i = 0; i < f->n_isas; i++) {
        memset(got, 0xee, bytes);
        kern_kv_write(f->isas[i], &shape, got, slot, k, v);
        assert_memory_equal(want, got, bytes);
        kern_kv_read(f->isas[i], &shape, got, slot, back[0], back[1]);
        for (int which = 0; which < 2; which++) {
            const float *x = which ? v : k;
            float largest = 0.0f;
            for (uint32_t d = 0; d < dim; d++) largest = fmaxf(largest, fabsf(x[d]));
            for (uint32_t d = 0; d < dim; d++)
                if (!(fabsf(back[which][d] - x[d]) <= largest * (0.5f / 126.5f)))
                    fail_msg("dim %u of %u: %g for %g, largest %g", d, dim, back[which][d], x[d],
                             largest);
        }
        kern_kv_write(f->isas[i], &shape, got, slot, back[0], back[1]);
        assert_memory_equal(want, got, bytes);
    }
    free(want);
    free(got);
}

static void test_kv_int8(void **state)
{
    rng r = rng_seed(13);
    float k[256], v[256];
    for (uint32_t dim = 16; dim <= 256; dim += 48)
        for (uint32_t slot = 0; slot < 32; slot++) {
            float size = exp2f(rng_normal(&r) * 20.0f);
            for (uint32_t d = 0; d < dim; d++) {
                k[d] = rng_normal(&r) * size;
                v[d] = rng_normal(&r) / size;
            }
            check_int8(*state, dim, slot, k, v);
        }
}

/* Values without a scale: zeros, values too small for one, and values that are not finite. They
 * affect only their own half, K or V. */
static void test_kv_int8_special(void **state)
{
    const fixture *f = *state;
    kern_kv_shape shape = {KERN_KV_INT8, 16, 32};
    static const float specials[] = {0.0f, -0.0f, 1e-38f, 1e-45f, INFINITY, -INFINITY, NAN};
    uint8_t *want = calloc(1, kern_kv_tile_bytes(&shape)), *got = calloc(1, 1 << 12);
    assert_true(kern_kv_tile_bytes(&shape) <= 1 << 12);
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++) {
        float x[32], plain[32], back[32], other[32];
        for (int d = 0; d < 32; d++) {
            x[d] = isfinite(specials[i]) ? specials[i] : (float)d;
            plain[d] = (float)d;
        }
        x[7] = specials[i];
        for (size_t isa = 0; isa < f->n_isas; isa++)
            for (int which = 0; which < 2; which++) {
                kern_kv_write(f->isas[0], &shape, want, 3, which ? plain : x, which ? x : plain);
                kern_kv_write(f->isas[isa], &shape, got, 3, which ? plain : x, which ? x : plain);
                assert_memory_equal(want, got, kern_kv_tile_bytes(&shape));
                kern_kv_read(f->isas[isa], &shape, got, 3, which ? other : back,
                             which ? back : other);
                for (int d = 0; d < 32; d++) {
                    assert_true(fabsf(other[d] - plain[d]) <= 31.0f * 0.5f / 126.5f);
                    if (isfinite(specials[i])) assert_true(back[d] == 0.0f);
                    else assert_true(isnan(back[d]));
                }
            }
    }
    free(want);
    free(got);
}

static void test_kv_move(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(12);
    for (uint32_t round = 0; round < 60; round++) {
        kern_kv_shape shape = {all_types[round % 4], 16 * (1 + rng_below(&r, 3)),
                               16 * (1 + rng_below(&r, 8))};
        size_t bytes = kern_kv_tile_bytes(&shape);
        uint8_t *src = malloc(bytes), *dst = malloc(bytes);
        for (size_t i = 0; i < bytes; i++) {
            src[i] = (uint8_t)(rng_u32(&r) & 0x3f);
            dst[i] = (uint8_t)(rng_u32(&r) & 0x3f);
        }
        bool same = round % 2; /* inside one tile, overlapping */
        uint32_t n = 1 + rng_below(&r, shape.page_tokens),
                 from = rng_below(&r, shape.page_tokens - n + 1);
        uint32_t to = rng_below(&r, shape.page_tokens - n + 1);
        if (same) memcpy(dst, src, bytes);
        float want[48][2][128], k[128], v[128];
        for (uint32_t i = 0; i < shape.page_tokens; i++)
            kern_kv_read(f->isas[0], &shape, dst, i, want[i][0], want[i][1]);
        for (uint32_t i = 0; i < n; i++)
            kern_kv_read(f->isas[0], &shape, src, from + i, want[to + i][0], want[to + i][1]);
        kern_kv_move(&shape, dst, to, same ? dst : src, from, n);
        for (uint32_t i = 0; i < shape.page_tokens; i++) {
            kern_kv_read(f->isas[0], &shape, dst, i, k, v);
            assert_memory_equal(want[i][0], k, shape.head_dim * sizeof(float));
            assert_memory_equal(want[i][1], v, shape.head_dim * sizeof(float));
        }
        free(src);
        free(dst);
    }
}

/* Rows and tiles are each other's bytes in another order, wherever they begin. */
static void test_kv_rows(void **state)
{
    const fixture *f = *state;
    static const kern_kv_format paired[] = {KERN_KV_BF16, KERN_KV_F16, KERN_KV_INT8};
    rng r = rng_seed(23);
    for (size_t t = 0; t < 3; t++)
        for (uint32_t dim = 16; dim <= 256; dim += 48)
            for (uint32_t tokens = 16; tokens <= 48; tokens += 16) {
                kern_kv_shape shape = {paired[t], tokens, dim};
                size_t n = kern_kv_tile_bytes(&shape), half = kern_kv_values_at(&shape);
                size_t element = kern_kv_facts_of(paired[t]).bits / 8;
                uint8_t *tile = malloc(n), *rows = malloc(n + 1), *back = malloc(n + 1);
                memset(tile, 0, n);
                for (uint32_t slot = 0; slot < tokens; slot++) {
                    float k[256], v[256];
                    for (uint32_t d = 0; d < dim; d++) {
                        k[d] = rng_normal(&r);
                        v[d] = rng_normal(&r);
                    }
                    kern_kv_write(f->isas[0], &shape, tile, slot, k, v);
                }
                memset(rows, 0xee, n + 1);
                memset(back, 0xee, n + 1);
                kern_kv_to_rows(&shape, tile, rows + 1);
                for (uint32_t slot = 0; slot < tokens; slot++)
                    for (uint32_t d = 0; d < dim; d++) {
                        size_t at = (slot * dim + d) * element;
                        size_t k = ((size_t)d / 2 * tokens + slot) * 2 + d % 2;
                        size_t v = ((size_t)slot / 2 * dim + d) * 2 + slot % 2;
                        assert_memory_equal(rows + 1 + at, tile + k * element, element);
                        assert_memory_equal(rows + 1 + half + at, tile + half + v * element,
                                            element);
                    }
                assert_memory_equal(rows + 1 + 2 * half, tile + 2 * half, n - 2 * half);
                kern_kv_from_rows(&shape, rows + 1, back + 1);
                assert_memory_equal(back + 1, tile, n);
                assert_true(rows[0] == 0xee && back[0] == 0xee);
                free(tile);
                free(rows);
                free(back);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_write),        cmocka_unit_test(test_kv_int8),
        cmocka_unit_test(test_kv_int8_special), cmocka_unit_test(test_kv_move),
        cmocka_unit_test(test_kv_rows),
    };
    return cmocka_run_group_tests_name("kernels_kv", tests, setup, teardown);
}
