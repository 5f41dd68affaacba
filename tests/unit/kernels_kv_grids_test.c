/* Pages of formats with grids: quantised like a plain C version, within half a step, with the same
 * bits on every ISA; single slots written later; attention and measures over them equal those over
 * bf16 pages that hold the dequantised values. */
#include "tests/unit/kernels_fixture.h"

#include "kernels/measure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

enum { GROUP = 32, TOKENS = 64, DIM_MOST = 256 };

static const kern_kv_format formats[] = {KERN_KV_INT4, KERN_KV_INT2};

/* ---- a tile, plain and packed ---------------------------------------------------------------- */

typedef struct tile {
    kern_kv_shape shape, wide;
    float k[TOKENS][DIM_MOST], v[TOKENS][DIM_MOST]; /* bf16 values */
    uint8_t *in_bf16, *packed;
} tile;

/* Channels of K have their own means and sizes, as real keys do; so have tokens of V. */
static tile *make_tile(const kern_context *kc, rng *r, kern_kv_format format, uint32_t dim)
{
    tile *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->shape = (kern_kv_shape){format, TOKENS, dim};
    t->wide = kern_kv_wide(&t->shape);
    t->in_bf16 = malloc(kern_kv_tile_bytes(&t->wide));
    t->packed = malloc(kern_kv_tile_bytes(&t->shape));
    for (uint32_t d = 0; d < dim; d++) {
        float mean = rng_normal(r) * 4.0f, size = expf(rng_normal(r));
        for (uint32_t i = 0; i < TOKENS; i++) {
            t->k[i][d] = bf16_to_f32(bf16_from_f32(mean + size * rng_normal(r)));
            t->v[i][d] = bf16_to_f32(bf16_from_f32(rng_normal(r) * (float)(1 + i)));
        }
    }
    for (uint32_t i = 0; i < TOKENS; i++)
        kern_kv_write(kc, &t->wide, t->in_bf16, i, t->k[i], t->v[i]);
    memset(t->packed, 0xee, kern_kv_tile_bytes(&t->shape));
    kern_kv_pack(kc, &t->shape, t->in_bf16, t->packed);
    return t;
}

static void free_tile(tile *t)
{
    free(t->in_bf16);
    free(t->packed);
    free(t);
}

/* ---- quantising a group in plain C ----------------------------------------------------------- */

static float half_up(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x8000u) & 0xffff0000u;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* Replaces x [n], `stride` apart, by its dequantised values; returns the scale. */
static float plain_group(const float *x, uint32_t n, size_t stride, int bits, float *out)
{
    float min = x[0], max = x[0], top = (float)((1 << bits) - 1);
    for (uint32_t i = 1; i < n; i++) {
        min = fminf(min, x[i * stride]);
        max = fmaxf(max, x[i * stride]);
    }
    float exact = (max - min) / top, scale = bf16_to_f32(bf16_from_f32(exact));
    if (scale < exact) scale = bf16_to_f32((uint16_t)(bf16_from_f32(exact) + 1));
    for (uint32_t i = 0; i < n; i++) {
        float q = scale > 0 ? fminf(rintf((x[i * stride] - min) * (1.0f / scale)), top) : 0.0f;
        out[i] = half_up(q * scale + min);
    }
    return scale;
}

static void expect_group(const float *x, const float *got, uint32_t n, size_t stride, int bits)
{
    float want[GROUP];
    float scale = plain_group(x, n, stride, bits, want);
    for (uint32_t i = 0; i < n; i++) {
        if (want[i] != got[i * stride])
            fail_msg("%d bits: %g reads as %g, not %g", bits, (double)x[i * stride],
                     (double)got[i * stride], (double)want[i]);
        float most = scale * 0.5001f + fabsf(want[i]) * 0x1p-8f;
        assert_true(fabsf(want[i] - x[i * stride]) <= most);
    }
}

static void pages_read_as_the_definition(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(41);
    static const uint32_t dims[] = {16, 48, 64, 128, 256};
    float(*k)[DIM_MOST] = calloc(TOKENS, sizeof *k), (*v)[DIM_MOST] = calloc(TOKENS, sizeof *v);
    for (size_t i = 0; i < 2 * sizeof dims / sizeof dims[0]; i++) {
        uint32_t dim = dims[i / 2];
        tile *t = make_tile(f->isas[0], &r, formats[i % 2], dim);
        int bits = kern_kv_facts_of(t->shape.format).bits;
        for (uint32_t s = 0; s < TOKENS; s++)
            kern_kv_read(f->isas[0], &t->shape, t->packed, s, k[s], v[s]);
        for (uint32_t d = 0; d < dim; d++)
            for (uint32_t s = 0; s < TOKENS; s += GROUP)
                expect_group(&t->k[s][d], &k[s][d], GROUP, DIM_MOST, bits);
        for (uint32_t s = 0; s < TOKENS; s++)
            for (uint32_t d = 0; d < dim; d += GROUP)
                expect_group(&t->v[s][d], &v[s][d], dim - d < GROUP ? dim - d : GROUP, 1, bits);
        free_tile(t);
    }
    free(k);
    free(v);
}

static void isas_agree(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(42);
    for (uint32_t dim = 16; dim <= 256; dim += 48)
        for (int i = 0; i < 2; i++) {
            tile *t = make_tile(f->isas[0], &r, formats[i], dim);
            size_t bytes = kern_kv_tile_bytes(&t->shape), wide = kern_kv_tile_bytes(&t->wide);
            uint8_t *got = malloc(bytes), *back = malloc(wide), *want = malloc(wide);
            for (uint32_t s = 0; s < TOKENS; s++) {
                float k[DIM_MOST], v[DIM_MOST];
                kern_kv_read(f->isas[0], &t->shape, t->packed, s, k, v);
                kern_kv_write(f->isas[0], &t->wide, want, s, k, v);
            }
            for (size_t isa = 0; isa < f->n_isas; isa++) {
                memset(got, 0x11, bytes);
                kern_kv_pack(f->isas[isa], &t->shape, t->in_bf16, got);
                assert_memory_equal(got, t->packed, bytes);
                memset(back, 0xff, wide);
                kern_kv_unpack(f->isas[isa], &t->shape, got, back);
                assert_memory_equal(back, want, wide);
            }
            free(got);
            free(back);
            free(want);
            free_tile(t);
        }
}

/* ---- one slot written later ------------------------------------------------------------------ */

static void a_slot_written_again(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(43);
    enum { DIM = 48, SLOT = 37 };
    for (int i = 0; i < 2; i++) {
        tile *t = make_tile(f->isas[0], &r, formats[i], DIM);
        float before[TOKENS][2][DIM], k[DIM], v[DIM], gotk[DIM], gotv[DIM];
        for (uint32_t s = 0; s < TOKENS; s++)
            kern_kv_read(f->isas[0], &t->shape, t->packed, s, before[s][0], before[s][1]);
        for (uint32_t d = 0; d < DIM; d++) {
            k[d] = d % 3 ? t->k[SLOT - 1][d] : 1000.0f; /* in range, or far outside */
            v[d] = rng_normal(&r) * 1e-2f;
        }
        kern_kv_write(f->isas[0], &t->shape, t->packed, SLOT, k, v);
        for (uint32_t s = 0; s < TOKENS; s++) {
            kern_kv_read(f->isas[0], &t->shape, t->packed, s, gotk, gotv);
            for (uint32_t d = 0; d < DIM && s != SLOT; d++) {
                assert_true(gotv[d] == before[s][1][d]);
                bool stays = d % 3 || s < GROUP; /* a key in range changes no other slot */
                if (stays) assert_true(gotk[d] == before[s][0][d]);
                else assert_true(fabsf(gotk[d] - before[s][0][d]) < 200.0f);
            }
            for (uint32_t d = 0; d < DIM && s == SLOT; d++) {
                assert_true(fabsf(gotv[d] - v[d]) < 2e-2f);
                if (d % 3) assert_true(gotk[d] == before[SLOT - 1][0][d]);
                else assert_true(fabsf(gotk[d] - 1000.0f) < 10.0f);
            }
        }
        free_tile(t);
    }
}

static void what_is_special(void **state)
{
    fixture *f = *state;
    enum { DIM = 32 };
    static const float specials[] = {INFINITY, -INFINITY, NAN, 0.0f, -3.5f, 1e-38f};
    kern_kv_shape shape = {KERN_KV_INT4, GROUP, DIM}, wide = kern_kv_wide(&shape);
    uint8_t *in = malloc(kern_kv_tile_bytes(&wide)), *page = malloc(kern_kv_tile_bytes(&shape));
    float k[DIM], v[DIM];
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++)
        for (size_t isa = 0; isa < f->n_isas; isa++) {
            for (uint32_t s = 0; s < GROUP; s++) {
                for (uint32_t d = 0; d < DIM; d++) {
                    k[d] = d == 5 && (s == 7 || isfinite(specials[i])) ? specials[i] : 1.0f;
                    v[d] = s == 7 && (d == 5 || isfinite(specials[i])) ? specials[i] : 2.0f;
                }
                kern_kv_write(f->isas[isa], &wide, in, s, k, v);
            }
            kern_kv_pack(f->isas[isa], &shape, in, page);
            kern_kv_unpack(f->isas[isa], &shape, page, in);
            for (uint32_t s = 0; s < GROUP; s++) {
                kern_kv_read(f->isas[isa], &wide, in, s, k, v);
                for (uint32_t d = 0; d < DIM; d++) {
                    float bf16 = bf16_to_f32(bf16_from_f32(specials[i]));
                    if (d != 5) assert_true(k[d] == 1.0f);
                    else if (isfinite(bf16)) assert_true(k[d] == bf16);
                    else assert_true(isnan(k[d]));
                    if (s != 7) assert_true(v[d] == 2.0f);
                    else if (isfinite(bf16)) assert_true(v[d] == bf16);
                    else assert_true(isnan(v[d]));
                }
            }
        }
    free(in);
    free(page);
}

/* ---- attention and measures ------------------------------------------------------------------ */

enum { PAGE = 32, SLOTS = 150, ROWS = 75, HEADS = 3, HEAD_DIM = 48, PAGES = (SLOTS + 31) / 32 };

/* One table twice: with packed pages, and bf16 pages for the last rows; and as a row of page `own`
 * reads it, all in bf16. With a residual, page 1 no longer has a bf16 form. */
typedef struct twice {
    kern_kv_shape shape, wide;
    uint8_t *filling[PAGES], *packed, *seen;
    const uint8_t *pointers[PAGES];
    uint32_t pages[PAGES], residual;
    float *q;
} twice;

static twice make_twice(const kern_context *kc, kern_kv_format format, uint32_t residual)
{
    rng r = rng_seed(44);
    twice t = {.shape = {format, PAGE, HEAD_DIM}, .residual = residual};
    t.wide = kern_kv_wide(&t.shape);
    size_t wide = kern_kv_tile_bytes(&t.wide), bytes = kern_kv_tile_bytes(&t.shape);
    t.packed = malloc(PAGES * bytes);
    t.seen = malloc(PAGES * wide);
    memset(t.packed, 0xff, PAGES * bytes);
    for (uint32_t p = 0; p < PAGES; p++) {
        t.pages[p] = (p * 2 + 1) % PAGES;
        t.filling[p] = malloc(wide);
        t.pointers[p] = t.filling[p];
        memset(t.filling[p], 0xff, wide);
        for (uint32_t s = 0; s < PAGE && p * PAGE + s < SLOTS; s++) {
            float k[HEAD_DIM], v[HEAD_DIM];
            for (uint32_t d = 0; d < HEAD_DIM; d++) {
                k[d] = rng_normal(&r);
                v[d] = rng_normal(&r);
            }
            kern_kv_write(kc, &t.wide, t.filling[p], s, k, v);
        }
        if ((p + 1) * PAGE <= SLOTS)
            kern_kv_pack(kc, &t.shape, t.filling[p], t.packed + t.pages[p] * bytes);
    }
    if (residual) t.pointers[1] = NULL;
    t.q = malloc(ROWS * HEADS * HEAD_DIM * sizeof *t.q);
    for (uint32_t i = 0; i < ROWS * HEADS * HEAD_DIM; i++) t.q[i] = rng_normal(&r);
    return t;
}

static uint32_t first_wide(const twice *t, uint32_t own)
{
    return own > t->residual ? own - t->residual : 0;
}

static void see_from(const kern_context *kc, twice *t, uint32_t own)
{
    size_t wide = kern_kv_tile_bytes(&t->wide), bytes = kern_kv_tile_bytes(&t->shape);
    for (uint32_t p = 0; p < PAGES; p++) {
        uint8_t *seen = t->seen + t->pages[p] * wide;
        if (p >= first_wide(t, own) && t->pointers[p]) memcpy(seen, t->filling[p], wide);
        else kern_kv_unpack(kc, &t->shape, t->packed + t->pages[p] * bytes, seen);
    }
}

static void free_twice(twice *t)
{
    for (uint32_t p = 0; p < PAGES; p++) free(t->filling[p]);
    free(t->packed);
    free(t->seen);
    free(t->q);
}

static void attend(kern_context *kc, const twice *t, bool packed, uint32_t row, uint32_t n,
                   float *out, float *mass)
{
    uint32_t first = SLOTS - ROWS + row;
    kern_attn_item it = {.pages = t->pages,
                         .tiles = packed ? t->packed : t->seen,
                         .filling = t->pointers + first_wide(t, first / PAGE),
                         .first_filling = first_wide(t, first / PAGE),
                         .residual_pages = t->residual,
                         .first_slot = first,
                         .n_rows = n,
                         .window = row % 2 ? 70 : 0,
                         .q = t->q + row * HEADS * HEAD_DIM,
                         .out = out + row * HEADS * HEAD_DIM,
                         .mass = mass,
                         .mass_rows = 1};
    kern_attn_batch b = {.shape = packed ? t->shape : t->wide,
                         .page_stride = kern_kv_tile_bytes(packed ? &t->shape : &t->wide),
                         .q_heads = HEADS,
                         .scale = 0.1f,
                         .q_stride = HEADS * HEAD_DIM,
                         .out_stride = HEADS * HEAD_DIM,
                         .items = &it,
                         .n_items = 1};
    assert_true(status_ok(kern_attention(kc, &b)));
}

/* Row by row and all rows at once: a row's own page and its residual are bf16, pages before them
 * packed. */
static void attention_reads_them(void **state)
{
    fixture *f = *state;
    static float one[ROWS * HEADS * HEAD_DIM], all[ROWS * HEADS * HEAD_DIM],
        want[ROWS * HEADS * HEAD_DIM];
    for (size_t i = 0; i < 4 * f->n_isas; i++) {
        kern_context *kc = f->isas[i / 4];
        twice t = make_twice(kc, formats[i % 2], i % 4 / 2 * 2);
        float mass[PAGES], want_mass[PAGES];
        for (uint32_t row = 0; row < ROWS; row++) {
            see_from(kc, &t, (SLOTS - ROWS + row) / PAGE);
            attend(kc, &t, false, row, 1, want, want_mass);
            attend(kc, &t, true, row, 1, one, mass);
            assert_memory_equal(mass, want_mass, ((SLOTS - ROWS + row) / PAGE + 1) * sizeof *mass);
        }
        assert_memory_equal(one, want, sizeof one);
        attend(kc, &t, true, 0, ROWS, all, mass);
        for (uint32_t row = 0; row < ROWS; row += 2) /* rows without a window */
            assert_memory_equal(all + row * HEADS * HEAD_DIM, want + row * HEADS * HEAD_DIM,
                                HEADS * HEAD_DIM * sizeof *all);
        free_twice(&t);
    }
}

static void measure_rows(kern_context *kc, const twice *t, bool packed, uint32_t row, uint32_t n,
                         float *out)
{
    uint32_t end = SLOTS - ROWS + row + n, first = first_wide(t, (end - n) / PAGE);
    kern_rows_item it = {.table = {t->pages, packed ? t->packed : t->seen, end, t->pointers + first,
                                   first, t->residual},
                         .kind = KERN_MEASURE_PROJECTION,
                         .n_rows = n,
                         .q = t->q + row * HEADS * HEAD_DIM,
                         .y = t->q + row * HEADS * HEAD_DIM,
                         .out = out};
    kern_rows_batch b = {.shape = packed ? t->shape : t->wide,
                         .page_stride = kern_kv_tile_bytes(packed ? &t->shape : &t->wide),
                         .q_heads = HEADS,
                         .scale = 0.1f,
                         .q_stride = HEADS * HEAD_DIM,
                         .y_stride = HEADS * HEAD_DIM,
                         .items = &it,
                         .n_items = 1};
    assert_true(status_ok(kern_measure_rows(kc, &b)));
}

static void measures_read_them(void **state)
{
    fixture *f = *state;
    float sum[SLOTS], one[SLOTS], all[SLOTS], want[SLOTS], got[SLOTS];
    for (size_t i = 0; i < 4 * f->n_isas; i++) {
        kern_context *kc = f->isas[i / 4];
        twice t = make_twice(kc, formats[i % 2], i % 4 / 2 * 2);
        memset(sum, 0, sizeof sum);
        for (uint32_t row = 0; row < ROWS; row++) {
            see_from(kc, &t, (SLOTS - ROWS + row) / PAGE);
            measure_rows(kc, &t, false, row, 1, one);
            for (uint32_t s = 0; s <= SLOTS - ROWS + row; s++) sum[s] += one[s];
        }
        measure_rows(kc, &t, true, 0, ROWS, all);
        assert_memory_equal(all, sum, sizeof all);

        see_from(kc, &t, SLOTS / PAGE);
        for (int kind = 0; kind < KERN_TABLE_MEASURES; kind++) {
            kern_table_item it = {.table = {t.pages, t.seen, SLOTS, NULL, 0, 0},
                                  .kind = (kern_table_measure)kind,
                                  .out = want};
            assert_true(
                status_ok(kern_measure_tables(kc, &t.wide, kern_kv_tile_bytes(&t.wide), &it, 1)));
            it.table = (kern_table){t.pages, t.packed, SLOTS, t.pointers, 0, t.residual};
            it.out = got;
            assert_true(
                status_ok(kern_measure_tables(kc, &t.shape, kern_kv_tile_bytes(&t.shape), &it, 1)));
            assert_memory_equal(got, want, sizeof got);
        }
        free_twice(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_read_as_the_definition), cmocka_unit_test(isas_agree),
        cmocka_unit_test(a_slot_written_again),         cmocka_unit_test(what_is_special),
        cmocka_unit_test(attention_reads_them),         cmocka_unit_test(measures_read_them),
    };
    return cmocka_run_group_tests_name("kernels_kv_grids", tests, setup, teardown);
}
