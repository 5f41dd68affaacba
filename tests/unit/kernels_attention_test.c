/* Paged attention and page mass: every ISA against a naive float64 loop, and the promise that a
 * row's bits depend on nothing but the row. */
#include "tests/unit/kernels_fixture.h"
#include "tests/unit/kernels_tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* TSan makes a memory access 20 times as slow, emulation an instruction 100 times: fewer shapes. */
#if defined(__SANITIZE_THREAD__) || defined(OCTAVO_EMULATED)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

static const kern_kv_format all_types[] = {KERN_KV_F32, KERN_KV_BF16, KERN_KV_F16, KERN_KV_INT8};

static kern_attn_item item_of(const sequence *s, const layout *l, uint32_t first, uint32_t n_rows,
                              float *out)
{
    return (kern_attn_item){.pages = l->pages,
                            .tiles = l->tiles,
                            .first_slot = first,
                            .n_rows = n_rows,
                            .q = s->q + (size_t)first * s->q_heads * s->shape.head_dim,
                            .out = out};
}

static kern_attn_batch batch_of(const sequence *s, const layout *l, const kern_attn_item *items,
                                size_t n)
{
    size_t row = (size_t)s->q_heads * s->shape.head_dim;
    return (kern_attn_batch){.shape = s->shape,
                             .page_stride = l->page_stride,
                             .q_heads = s->q_heads,
                             .scale = 1.0f / sqrtf((float)s->shape.head_dim),
                             .q_stride = row,
                             .out_stride = row,
                             .items = items,
                             .n_items = n};
}

static void run(kern_context *kc, const kern_attn_batch *b)
{
    assert_true(status_ok(kern_attention(kc, b)));
}

/* ---- the reference: float64, one row and head at a time ---- */

/* The reference reads what only this thread has written and kernels only read. ThreadSanitizer
 * would take longer for it than for the kernels. */
#define UNWATCHED __attribute__((no_sanitize("thread")))

/* True for the standard precision over bf16 pages, where the ISA has bf16 dot products. */
static bool rounds_to_bf16(const char *isa, const sequence *s)
{
    return s->shape.format == KERN_KV_BF16 && strcmp(isa, "avx512bf16") == 0;
}

/* The query that enters the products: q, or q rounded to bf16. */
UNWATCHED static void naive_query(const sequence *s, uint32_t slot, uint32_t head, bool rounds,
                                  double *q)
{
    const uint32_t dim = s->shape.head_dim;
    const float *from = s->q + ((size_t)slot * s->q_heads + head) * dim;
    const float scale = (float)((double)(1.0f / sqrtf((float)dim)) * 1.44269504088896340736);
    for (uint32_t d = 0; d < dim; d++)
        q[d] = rounds ? (double)bf16_to_f32(bf16_from_f32(from[d] * scale)) / (double)scale
                      : (double)from[d];
}

/* p [n_slots] of one row; out [head_dim]. */
UNWATCHED static void naive_row(const sequence *s, uint32_t slot, uint32_t head, uint32_t window,
                                bool rounds, double *p, double *out)
{
    uint32_t dim = s->shape.head_dim, end = slot + 1,
             begin = window && end > window ? end - window : 0;
    double q[256];
    naive_query(s, slot, head, rounds, q);
    double max = -INFINITY, sum = 0;
    for (uint32_t j = begin; j < end; j++) {
        p[j] = 0;
        for (uint32_t d = 0; d < dim; d++) p[j] += q[d] * s->k[(size_t)j * dim + d];
        p[j] *= 1.0 / sqrt(dim);
        max = fmax(max, p[j]);
    }
    for (uint32_t j = begin; j < end; j++) sum += p[j] = exp(p[j] - max);
    for (uint32_t j = 0; j < s->n_slots; j++) p[j] = j >= begin && j < end ? p[j] / sum : 0;
    for (uint32_t d = 0; d < dim; d++) {
        out[d] = 0;
        for (uint32_t j = begin; j < end; j++) out[d] += p[j] * s->v[(size_t)j * dim + d];
    }
}

/* Outputs are averages of values of size 1: an absolute tolerance, 40 f32 roundings of a score of
 * size 10. */
static const double tolerance = 2e-5;
/* With int8 pages every ISA but the reference quantises q, and p times the scales of V, to
 * integers. With p rounded to 1 / 32767 of the largest of 64 slots, outputs err by up to 7e-5 (rms,
 * where one slot has all the mass); the worst of many thousand outputs is three times that. The
 * mass is summed before that rounding. */
static const double int8_tolerance = 4e-4;
/* In bf16 dot products each p is rounded by up to 1 / 256 of itself, and outputs err by up to that
 * share of an average of |v|. The reference rounds q too. */
static const double bf16_tolerance = 5e-3, bf16_mass_tolerance = 4e-4;

static void compare_item(const char *isa, const sequence *s, const kern_attn_item *it,
                         uint64_t seed)
{
    uint32_t dim = s->shape.head_dim,
             n_pages = (it->first_slot + it->n_rows - 1) / s->shape.page_tokens + 1;
    const bool ints = s->shape.format == KERN_KV_INT8 && strcmp(isa, "ref") != 0;
    const bool dots = rounds_to_bf16(isa, s);
    const double most = ints ? int8_tolerance : dots ? bf16_tolerance : tolerance;
    const double most_mass = dots ? bf16_mass_tolerance : tolerance;
    double *p = malloc(s->n_slots * sizeof *p), *out = malloc(dim * sizeof *out);
    double *mass = calloc(n_pages, sizeof *mass);
    for (uint32_t i = 0; i < it->n_rows; i++)
        for (uint32_t h = 0; h < s->q_heads; h++) {
            naive_row(s, it->first_slot + i, h, it->window, dots, p, out);
            const float *got = it->out + ((size_t)i * s->q_heads + h) * dim;
            for (uint32_t d = 0; d < dim; d++)
                if (!(fabs(got[d] - out[d]) <= most))
                    fail_msg(
                        "%s %s seed %llu: head_dim %u page %u heads %u first %u row %u head %u dim "
                        "%u: %.9g, want %.9g",
                        isa, kern_kv_name(s->shape.format), (unsigned long long)seed, dim,
                        s->shape.page_tokens, s->q_heads, it->first_slot, i, h, d, got[d], out[d]);
            for (uint32_t j = 0; i >= it->n_rows - it->mass_rows && j <= it->first_slot + i; j++)
                mass[j / s->shape.page_tokens] += p[j];
        }
    for (uint32_t page = 0; it->mass && page < n_pages; page++)
        if (!(fabs(it->mass[page] - mass[page]) <= most_mass * s->q_heads * it->mass_rows))
            fail_msg("%s %s seed %llu: mass of page %u: %.9g, want %.9g", isa,
                     kern_kv_name(s->shape.format), (unsigned long long)seed, page, it->mass[page],
                     mass[page]);
    free(p);
    free(out);
    free(mass);
}

/* Ragged batches of random shape: prefill chunks and decode rows, windows, mass. */
static void random_batch(fixture *f, uint64_t seed, kern_kv_format type, uint32_t head_dim)
{
    enum { ITEMS = 4 };
    rng r = rng_seed(seed);
    uint32_t page_tokens = 16 * (1 + rng_below(&r, 6)), q_heads = 1 + rng_below(&r, 9);
    if (rng_below(&r, 8) == 0) q_heads = 49 + rng_below(&r, 16);
    sequence s[ITEMS];
    kern_attn_item items[ITEMS];
    for (size_t i = 0; i < ITEMS; i++) {
        s[i] = make_sequence(&r, type, page_tokens, head_dim, q_heads, 1 + rng_below(&r, 300));
        uint32_t n_rows =
            rng_below(&r, 3) ? 1 + rng_below(&r, s[i].n_slots < 40 ? s[i].n_slots : 40) : 1;
        size_t out = (size_t)n_rows * q_heads * head_dim, pages = s[i].n_slots / page_tokens + 1;
        items[i] = (kern_attn_item){.first_slot = s[i].n_slots - n_rows,
                                    .n_rows = n_rows,
                                    .window = rng_below(&r, 3) ? 0 : 1 + rng_below(&r, 150),
                                    .out = malloc(out * sizeof(float))};
        items[i].q = s[i].q + (size_t)items[i].first_slot * q_heads * head_dim;
        if (rng_below(&r, 2)) {
            items[i].mass = malloc(pages * sizeof(float));
            items[i].mass_rows = 1 + rng_below(&r, n_rows);
        }
    }
    for (size_t k = 0; k < f->n_isas; k++) {
        /* One stride for all items: the layouts are made from the same random numbers. */
        layout l[ITEMS];
        for (size_t i = 0; i < ITEMS; i++) {
            rng same = rng_seed(seed + 1);
            rng_below(&same, 5);
            l[i] = make_layout(f->isas[k], &same, &s[i], s[i].n_slots);
            items[i].pages = l[i].pages;
            items[i].tiles = l[i].tiles;
            /* Pages wholly before every row's window may be gone: attention must not look up their
             * ids. */
            uint32_t begin = items[i].first_slot + 1;
            begin = items[i].window && begin > items[i].window ? begin - items[i].window : 0;
            for (uint32_t p = 0; p < begin / page_tokens; p++) l[i].pages[p] = UINT32_MAX;
            memset(items[i].out, 0xff,
                   (size_t)items[i].n_rows * q_heads * head_dim * sizeof(float));
        }
        kern_attn_batch b = batch_of(&s[0], &l[0], items, ITEMS);
        run(f->isas[k], &b);
        for (size_t i = 0; i < ITEMS; i++) {
            assert_int_equal(l[i].page_stride, l[0].page_stride);
            compare_item(kern_isa_name(f->isas[k]), &s[i], &items[i], seed);
            free_layout(&l[i]);
        }
    }
    for (size_t i = 0; i < ITEMS; i++) {
        free(items[i].out);
        free(items[i].mass);
        free_sequence(&s[i]);
    }
}

static void test_against_naive(void **state)
{
    uint32_t step = SLOW ? 112 : 16;
    for (uint32_t dim = 16; dim <= 256; dim += step) /* two formats each, in turn */
        for (size_t t = dim / step % 2; t < 4; t += 2)
            random_batch(*state, 1000 + dim * 3 + t, all_types[t], dim);
}

static void test_against_naive_more_shapes(void **state)
{
    static const uint32_t dims[] = {64, 128, 80, 96};
    for (uint64_t seed = 1; seed <= (SLOW ? 6 : 24); seed++)
        random_batch(*state, seed, all_types[seed % 4], dims[seed % 4]);
}

/* ---- bit equality ---- */

static void assert_same_bits(const void *a, const void *b, size_t n_floats, const char *what,
                             const kern_context *kc, const sequence *s, uint32_t row)
{
    if (memcmp(a, b, n_floats * sizeof(float)) == 0) return;
    const float *x = a, *y = b;
    size_t i = 0;
    while (memcmp(&x[i], &y[i], sizeof *x) == 0) i++;
    fail_msg("%s: %s %s head_dim %u page %u heads %u row %u element %zu: %.9g and %.9g", what,
             kern_isa_name(kc), kern_kv_name(s->shape.format), s->shape.head_dim,
             s->shape.page_tokens, s->q_heads, row, i, x[i], y[i]);
}

/* Compares a causal prefill of all rows with the same rows computed one at a time as decode does,
 * in chunks, with other pages, strides and page sizes, and in one thread. Slots behind the last row
 * hold NaNs. */
static void invariance(fixture *f, kern_context *kc, rng *r, kern_kv_format type, uint32_t head_dim,
                       uint32_t q_heads, uint32_t window)
{
    static const uint32_t page_sizes[] = {16, 32, 64, 48, 256};
    uint32_t n = 70 + rng_below(r, 90), dim = head_dim;
    size_t row = (size_t)q_heads * dim;
    sequence s = make_sequence(r, type, 16, dim, q_heads, n);
    float *want = malloc(n * row * sizeof *want), *got = malloc(n * row * sizeof *got);
    for (size_t p = 0; p < sizeof page_sizes / sizeof page_sizes[0]; p++) {
        s.shape.page_tokens = page_sizes[p];
        layout l = make_layout(kc, r, &s, n);
        kern_attn_item it = item_of(&s, &l, 0, n, p == 0 ? want : got);
        it.window = window;
        kern_attn_batch b = batch_of(&s, &l, &it, 1);
        run(kc, &b);
        if (p > 0) assert_same_bits(want, got, n * row, "page size", kc, &s, 0);
        free_layout(&l);
    }
    for (size_t p = 0; p < 3; p++) { /* decode: only slots up to the row are written */
        s.shape.page_tokens = page_sizes[p];
        for (uint32_t i = 0; i < n; i += i < 20 || (i > 60 && !SLOW) ? 1 : 7) {
            layout l = make_layout(kc, r, &s, i + 1);
            kern_attn_item it = item_of(&s, &l, i, 1, got);
            it.window = window;
            kern_attn_batch b = batch_of(&s, &l, &it, 1);
            run(kc, &b);
            assert_same_bits(want + i * row, got, row, "decode", kc, &s, i);
            free_layout(&l);
        }
    }
    s.shape.page_tokens = 16;
    for (uint32_t from = 0, step; from < n; from += step) { /* chunks of random size */
        step = 1 + rng_below(r, n - from);
        layout l = make_layout(kc, r, &s, from + step);
        kern_attn_item it = item_of(&s, &l, from, step, got);
        it.window = window;
        kern_attn_batch b = batch_of(&s, &l, &it, 1);
        run(kc, &b);
        assert_same_bits(want + from * row, got, step * row, "chunk", kc, &s, from);
        free_layout(&l);
    }
    kern_context *single;
    assert_true(status_ok(
        kern_create(&(kern_options){.pool = f->single, .isa = kern_isa_name(kc)}, &single, NULL)));
    layout l = make_layout(kc, r, &s, n);
    kern_attn_item it = item_of(&s, &l, 0, n, got);
    it.window = window;
    kern_attn_batch b = batch_of(&s, &l, &it, 1);
    run(single, &b);
    assert_same_bits(want, got, n * row, "one thread", kc, &s, 0);
    /* Each query head alone. */
    b.q_heads = 1;
    for (uint32_t h = 0; h < q_heads; h++) {
        it.q = s.q + (size_t)h * dim;
        it.out = got + (size_t)h * dim;
        run(kc, &b);
    }
    assert_same_bits(want, got, n * row, "heads alone", kc, &s, 0);
    free_layout(&l);
    kern_destroy(single);
    free(want);
    free(got);
    free_sequence(&s);
}

static void test_row_bits(void **state)
{
    fixture *f = *state;
    static const uint32_t heads[] = {1, 4, 8, 3}, dims[] = {64, 16, 112, 128, 256};
    rng r = rng_seed(7);
    for (size_t k = 0; k < f->n_isas; k++)
        for (size_t t = 0; t < 4; t++)
            for (size_t d = 0; d < (SLOW ? 1 : 5); d++)
                for (size_t h = 0; h < (SLOW ? 2 : 4); h++) {
                    if (k == 0 && (d > 1 || h > 1)) continue; /* the reference is slow */
                    if (k > 0 && (t + d + h) % 2) continue;   /* each pair of the three occurs */
                    uint32_t window = rng_below(&r, 4) ? 0 : 1 + rng_below(&r, 90);
                    invariance(f, f->isas[k], &r, all_types[t], dims[d], heads[h], window);
                }
}

/* Infinities and NaNs in the K and V of a later token do not reach the rows before it. */
static void test_future_is_unseen(void **state)
{
    enum { SLOTS = 70, HEADS = 3, DIM = 64 };
    static const kern_kv_format types[] = {KERN_KV_F32, KERN_KV_BF16};
    fixture *f = *state;
    rng r = rng_seed(8);
    for (size_t k = 0; k < f->n_isas; k++)
        for (uint32_t bad = 1; bad < SLOTS; bad += SLOW ? 15 : 5) {
            sequence s = make_sequence(&r, types[bad / 5 % 2], 16, DIM, HEADS, SLOTS);
            float want[SLOTS * HEADS * DIM], got[SLOTS * HEADS * DIM];
            layout l = make_layout(f->isas[k], &r, &s, SLOTS);
            kern_attn_item it = item_of(&s, &l, 0, SLOTS, want);
            kern_attn_batch b = batch_of(&s, &l, &it, 1);
            run(f->isas[k], &b);
            free_layout(&l);
            for (size_t d = 0; d < DIM; d++)
                s.k[bad * DIM + d] = s.v[bad * DIM + d] = d % 2 ? INFINITY : NAN;
            l = make_layout(f->isas[k], &r, &s, SLOTS);
            it = item_of(&s, &l, 0, SLOTS, got);
            b = batch_of(&s, &l, &it, 1);
            run(f->isas[k], &b);
            assert_same_bits(want, got, (size_t)bad * HEADS * DIM, "future", f->isas[k], &s, bad);
            for (size_t i = (size_t)bad * HEADS * DIM; i < SLOTS * HEADS * DIM; i++)
                assert_true(isnan(got[i]));
            free_layout(&l);
            free_sequence(&s);
        }
}

/* A query with a NaN or an infinity yields NaNs, over int8 pages too, and does not affect other
 * rows. */
static void test_query_is_not_finite(void **state)
{
    enum { SLOTS = 70, DIM = 32, BAD = 66 };
    fixture *f = *state;
    rng r = rng_seed(15);
    for (size_t k = 0; k < f->n_isas; k++)
        for (size_t t = 0; t < 8; t++) {
            sequence s = make_sequence(&r, all_types[t % 4], 16, DIM, 1, SLOTS);
            layout l = make_layout(f->isas[k], &r, &s, SLOTS);
            float want[SLOTS * DIM], got[SLOTS * DIM];
            kern_attn_item it = item_of(&s, &l, 0, SLOTS, want);
            kern_attn_batch b = batch_of(&s, &l, &it, 1);
            run(f->isas[k], &b);
            s.q[BAD * DIM + 5] = t < 4 ? NAN : INFINITY;
            it.out = got;
            run(f->isas[k], &b);
            for (size_t d = 0; d < DIM; d++) assert_true(isnan(got[BAD * DIM + d]));
            memcpy(got + BAD * DIM, want + BAD * DIM, DIM * sizeof *got);
            assert_same_bits(want, got, SLOTS * DIM, "query", f->isas[k], &s, 0);
            free_layout(&l);
            free_sequence(&s);
        }
}

/* With more slots than one span holds, a row's spans may be shared by the threads (alone in its
 * batch), or not (beside others; in one thread), or be walked for many rows: bits, outputs and mass
 * are the same, and near float64. */
static void long_row(fixture *f, kern_context *kc, rng *r, kern_kv_format type, uint32_t window)
{
    enum { DIM = 32, HEADS = 2, SLOTS = 2600, ROWS = 40, PAGES = SLOTS / 32 + 1 };
    sequence s = make_sequence(r, type, 32, DIM, HEADS, SLOTS);
    layout l = make_layout(kc, r, &s, SLOTS);
    size_t row = (size_t)HEADS * DIM;
    float *want = malloc(ROWS * row * sizeof *want), *got = malloc(9 * row * sizeof *got);
    float mass[2][PAGES];
    kern_attn_item chunk = item_of(&s, &l, SLOTS - ROWS, ROWS, want);
    chunk.window = window;
    kern_attn_batch b = batch_of(&s, &l, &chunk, 1);
    run(kc, &b);
    kern_attn_item items[9];
    for (uint32_t i = 0; i < 9; i++) {
        items[i] = item_of(&s, &l, SLOTS - 1 - i, 1, got + i * row);
        items[i].window = window;
    }
    items[0].mass = mass[0];
    items[0].mass_rows = 1;
    b.items = items;
    run(kc, &b);
    assert_same_bits(want + (ROWS - 1) * row, got, row, "spans alone", kc, &s, SLOTS - 1);
    compare_item(kern_isa_name(kc), &s, &items[0], SLOTS);
    items[0].mass = mass[1];
    b.n_items = 9;
    run(kc, &b);
    for (uint32_t i = 0; i < 9; i++)
        assert_same_bits(want + (ROWS - 1 - i) * row, got + i * row, row, "spans beside others", kc,
                         &s, SLOTS - 1 - i);
    assert_same_bits(mass[0], mass[1], PAGES, "mass of spans", kc, &s, 0);
    kern_context *single;
    assert_true(status_ok(
        kern_create(&(kern_options){.pool = f->single, .isa = kern_isa_name(kc)}, &single, NULL)));
    b.n_items = 1;
    run(single, &b);
    assert_same_bits(want + (ROWS - 1) * row, got, row, "spans in one thread", kc, &s, SLOTS - 1);
    kern_destroy(single);
    free(want);
    free(got);
    free_layout(&l);
    free_sequence(&s);
}

static void test_spans(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(14);
    for (size_t k = 0; k < f->n_isas; k++)
        for (size_t t = 0; t < 4; t++) {
            if (k == 0 && t != 0) continue; /* the reference is slow */
            long_row(f, f->isas[k], &r, all_types[t], 0);
            if (t < 2 || t == 3) long_row(f, f->isas[k], &r, all_types[t], 1500);
        }
}

/* ---- mass ---- */

/* The mass of a set of rows has the same bits however the prefill is cut and whatever else is in
 * the batch; asking for mass changes no output. Tests include few slots and rows with very
 * different maxima. */
static void test_mass_bits(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(9);
    for (size_t k = 0; k < f->n_isas; k++)
        for (uint32_t round = 0; round < (SLOW ? 4 : 12); round++) {
            uint32_t page = 16u << round % 3, heads = 1 + rng_below(&r, 8),
                     rows = 1 + rng_below(&r, 32);
            uint32_t n = 150 + rng_below(&r, 100), window = round % 4 == 3 ? 40 : 0;
            sequence s = make_sequence(&r, all_types[round % 4], page, 64, heads, n);
            size_t row = (size_t)heads * 64, n_pages = (n - 1) / page + 1;
            layout l = make_layout(f->isas[k], &r, &s, n);
            float *plain = malloc(n * row * sizeof(float)), *out = malloc(n * row * sizeof(float));
            float *want = malloc(n_pages * sizeof(float)), *got = malloc(n_pages * sizeof(float));
            kern_attn_item it = item_of(&s, &l, 0, n, plain);
            it.window = window;
            kern_attn_batch b = batch_of(&s, &l, &it, 1);
            run(f->isas[k], &b);
            it.out = out;
            it.mass = want;
            it.mass_rows = rows;
            run(f->isas[k], &b);
            assert_same_bits(plain, out, n * row, "mass on", f->isas[k], &s, 0);
            double total = 0;
            for (size_t p = 0; p < n_pages; p++) total += want[p];
            assert_true(fabs(total - rows * heads) < 1e-4 * rows * heads);

            uint32_t first =
                n - rows - rng_below(&r, n - rows); /* a shorter last chunk, beside other items */
            kern_attn_item three[3] = {item_of(&s, &l, 0, n, out),
                                       item_of(&s, &l, first, n - first, out),
                                       item_of(&s, &l, n - 1, 1, out)};
            three[1].mass = got;
            three[1].mass_rows = rows;
            for (size_t i = 0; i < 3; i++) {
                three[i].out = out + (i == 0 ? 0 : (size_t)three[i].first_slot * row);
                three[i].window = window;
            }
            float *beside = malloc(2 * n * row * sizeof(float)),
                  *other = malloc(n_pages * sizeof(float));
            three[0].out = beside;
            three[0].mass = other;
            three[0].mass_rows = 1;
            three[2].out = beside + n * row;
            b.items = three;
            b.n_items = 3;
            run(f->isas[k], &b);
            assert_same_bits(want, got, n_pages, "mass", f->isas[k], &s, first);
            free(beside);
            free(other);
            free(plain);
            free(out);
            free(want);
            free(got);
            free_layout(&l);
            free_sequence(&s);
        }
}

/* The mass is summed over ascending query heads, then ascending rows: the masses of single rows and
 * heads, added here in that order, have the same bits. */
static void test_mass_order(void **state)
{
    enum { SLOTS = 120, PAGES = 8, HEADS = 5, ROWS = 9, DIM = 32 };
    fixture *f = *state;
    rng r = rng_seed(13);
    for (size_t k = 0; k < f->n_isas; k++) {
        sequence s = make_sequence(&r, KERN_KV_BF16, 16, DIM, HEADS, SLOTS);
        layout l = make_layout(f->isas[k], &r, &s, SLOTS);
        float out[ROWS * HEADS * DIM], got[PAGES], want[PAGES] = {0}, one[PAGES];
        kern_attn_item it = item_of(&s, &l, SLOTS - ROWS, ROWS, out);
        it.mass = got;
        it.mass_rows = ROWS;
        kern_attn_batch b = batch_of(&s, &l, &it, 1);
        run(f->isas[k], &b);
        b.q_heads = 1;
        it.mass = one;
        it.n_rows = it.mass_rows = 1;
        for (uint32_t h = 0; h < HEADS; h++)
            for (uint32_t i = 0; i < ROWS; i++) {
                it.first_slot = SLOTS - ROWS + i;
                it.q = s.q + ((size_t)it.first_slot * HEADS + h) * DIM;
                run(f->isas[k], &b);
                for (uint32_t p = 0; p <= it.first_slot / 16; p++) want[p] += one[p];
            }
        assert_same_bits(want, got, PAGES, "order of the sum", f->isas[k], &s, 0);
        free_layout(&l);
        free_sequence(&s);
    }
}

/* Scores whose exponentials all underflow but the largest, and a slot (LOW) whose score overflows
 * to minus infinity for every row: its weight is zero, as with float64 exp. */
static void check_extreme_scores(kern_context *kc, rng *r, kern_kv_format format)
{
    enum {
        SLOTS = 200,
        HEADS = 2,
        DIM = 32,
        PAGE = 32,
        PAGES = SLOTS / PAGE + 1,
        LOW = 5,
        ROWS = 7
    };
    sequence s = make_sequence(r, format, PAGE, DIM, HEADS, SLOTS);
    const size_t n = (size_t)SLOTS * HEADS * DIM;
    for (size_t i = 0; i < n; i++) s.q[i] = fabsf(s.q[i]) * 1000.0f;
    if (format != KERN_KV_F16) /* beyond the range of f16 */
        for (size_t d = 0; d < DIM; d++) s.k[LOW * DIM + d] = -3e38f;
    float *out = malloc(n * sizeof *out), mass[PAGES];
    layout l = make_layout(kc, r, &s, SLOTS);
    kern_attn_item it = item_of(&s, &l, 0, SLOTS, out);
    it.mass = mass;
    it.mass_rows = ROWS;
    kern_attn_batch b = batch_of(&s, &l, &it, 1);
    run(kc, &b);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            fail_msg("%s %s: output %zu is %g", kern_isa_name(kc), kern_kv_name(format), i, out[i]);
    double total = 0;
    for (size_t p = 0; p < PAGES; p++) total += mass[p];
    assert_true(fabs(total - ROWS * HEADS) < 1e-4);
    free(out);
    free_layout(&l);
    free_sequence(&s);
}

static void test_extreme_scores(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(10);
    for (size_t k = 0; k < f->n_isas; k++)
        for (size_t t = 0; t < sizeof all_types / sizeof *all_types; t++)
            check_extreme_scores(f->isas[k], &r, all_types[t]);
}

/* ---- precision ---- */

/* Energy of the error of a prefill over bf16 pages, over the energy of the float64 result. */
static double prefill_nmse(kern_context *kc, const sequence *s, const layout *l, float *out)
{
    kern_attn_item it = item_of(s, l, 0, s->n_slots, out);
    kern_attn_batch b = batch_of(s, l, &it, 1);
    run(kc, &b);
    double *p = malloc(s->n_slots * sizeof *p), want[256], lost = 0, energy = 0;
    for (uint32_t i = 0; i < s->n_slots; i++)
        for (uint32_t h = 0; h < s->q_heads; h++, out += s->shape.head_dim) {
            naive_row(s, i, h, 0, false, p, want);
            for (uint32_t d = 0; d < s->shape.head_dim; d++) {
                lost += (out[d] - want[d]) * (out[d] - want[d]);
                energy += want[d] * want[d];
            }
        }
    free(p);
    return lost / energy;
}

/* Over bf16 pages the standard precision rounds q and p to bf16 exactly once, where the ISA has
 * bf16 dot products: an rms error of 2^-9 in either is 1e-5 of the energy. The high precision is
 * f32 throughout. */
static void test_precision(void **state)
{
    enum { SLOTS = 150, HEADS = 4, DIM = 64 };
    fixture *f = *state;
    rng r = rng_seed(16);
    for (size_t k = 1; k < f->n_isas; k++) {
        const char *isa = kern_isa_name(f->isas[k]);
        sequence s = make_sequence(&r, KERN_KV_BF16, 32, DIM, HEADS, SLOTS);
        layout l = make_layout(f->isas[k], &r, &s, SLOTS);
        size_t n = (size_t)SLOTS * HEADS * DIM;
        float *standard = malloc(n * sizeof *standard), *high = malloc(n * sizeof *high);
        double most = rounds_to_bf16(isa, &s) ? 1.5e-5 : 1e-12;
        double got = prefill_nmse(f->isas[k], &s, &l, standard);
        if (!(got < most)) fail_msg("%s: NMSE %g, at most %g", isa, got, most);
        kern_context *kc;
        assert_true(status_ok(kern_create(
            &(kern_options){.pool = f->pool, .isa = isa, .precision = KERN_PRECISION_HIGH}, &kc,
            NULL)));
        got = prefill_nmse(kc, &s, &l, high);
        if (!(got < 1e-12)) fail_msg("%s, high: NMSE %g", isa, got);
        if (!rounds_to_bf16(isa, &s)) assert_same_bits(standard, high, n, "precision", kc, &s, 0);
        kern_destroy(kc);
        free(standard);
        free(high);
        free_layout(&l);
        free_sequence(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_naive),
        cmocka_unit_test(test_against_naive_more_shapes),
        cmocka_unit_test(test_row_bits),
        cmocka_unit_test(test_future_is_unseen),
        cmocka_unit_test(test_query_is_not_finite),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_mass_bits),
        cmocka_unit_test(test_mass_order),
        cmocka_unit_test(test_extreme_scores),
        cmocka_unit_test(test_precision),
    };
    return cmocka_run_group_tests_name("kernels_attention", tests, setup, teardown);
}
