/* Measures by slot: every ISA against float64 loops written from docs/retention.md, and the promise
 * that running sums do not depend on how their rows were cut. */
#include "kernels/measure.h"
/* Measures are f32 in either precision; attention outputs, which some measures read, are not. */
#define FIXTURE_PRECISION KERN_PRECISION_HIGH
#include "tests/unit/kernels_fixture.h"
#include "tests/unit/kernels_tables.h"
#include "tests/unit/measure_naive.h"

#include <math.h>

/* TSan makes a memory access 20 times as slow, emulation an instruction 100 times: fewer shapes. */
#if defined(__SANITIZE_THREAD__) || defined(OCTAVO_EMULATED)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

static const kern_kv_format all_types[] = {KERN_KV_F32, KERN_KV_BF16, KERN_KV_F16, KERN_KV_INT8};
static const char *const row_names[KERN_ROW_MEASURES] = {"mass", "raw", "projection", "outside",
                                                         "pooled"};

/* Each value must be within 1e-5 of itself plus the largest; within 1e-4 over int8 pages, where the
 * fast kernels take q in 16 bits. */
static void compare(const char *what, const kern_context *kc, const sequence *s, const float *got,
                    const double *want, size_t n, double scale)
{
    const double most = s->shape.format == KERN_KV_INT8 ? 1e-4 : 1e-5;
    for (size_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= most * (fabs(want[i]) + scale)))
            fail_msg("%s: %s %s head_dim %u page %u heads %u slots %u: slot %zu is %.9g, want %.9g",
                     what, kern_isa_name(kc), kern_kv_name(s->shape.format), s->shape.head_dim,
                     s->shape.page_tokens, s->q_heads, s->n_slots, i, got[i], want[i]);
}

static void same_bits(const char *what, const kern_context *kc, const float *a, const float *b,
                      size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s: %s: slot %zu is %.9g and %.9g", what, kern_isa_name(kc), i, a[i], b[i]);
}

static kern_rows_item rows_item(const sequence *s, const layout *l, kern_row_measure kind,
                                uint32_t end, uint32_t n_rows)
{
    size_t row = (size_t)s->q_heads * s->shape.head_dim;
    return (kern_rows_item){.table = {l->pages, l->tiles, end, NULL, 0, 0},
                            .kind = kind,
                            .n_rows = n_rows,
                            .q = s->q + (end - n_rows) * row};
}

static kern_rows_batch rows_batch(const sequence *s, const layout *l, const kern_rows_item *items,
                                  size_t n)
{
    size_t row = (size_t)s->q_heads * s->shape.head_dim;
    return (kern_rows_batch){.shape = s->shape,
                             .page_stride = l->page_stride,
                             .q_heads = s->q_heads,
                             .scale = 1.0f / sqrtf((float)s->shape.head_dim),
                             .q_stride = row,
                             .y_stride = row,
                             .items = items,
                             .n_items = n};
}

/* y of all rows, as attention computes it. */
static float *outputs_of(kern_context *kc, const sequence *s, const layout *l)
{
    size_t row = (size_t)s->q_heads * s->shape.head_dim;
    float *y = malloc(s->n_slots * row * sizeof *y);
    kern_attn_item it = {
        .pages = l->pages, .tiles = l->tiles, .n_rows = s->n_slots, .q = s->q, .out = y};
    kern_attn_batch b = {.shape = s->shape,
                         .page_stride = l->page_stride,
                         .q_heads = s->q_heads,
                         .scale = 1.0f / sqrtf((float)s->shape.head_dim),
                         .q_stride = row,
                         .out_stride = row,
                         .items = &it,
                         .n_items = 1};
    assert_non_null(y);
    assert_true(status_ok(kern_attention(kc, &b)));
    return y;
}

static void run_rows(kern_context *kc, const kern_rows_batch *b)
{
    assert_true(status_ok(kern_measure_rows(kc, b)));
}

/* ---- under rows: values ---------------------------------------------------------------------- */

/* All kinds in one batch over one sequence. */
static void random_rows(fixture *f, uint64_t seed)
{
    static const uint32_t pages[] = {16, 32, 48, 256}, dims[] = {64, 16, 112, 128, 256};
    rng r = rng_seed(seed);
    uint32_t dim = dims[seed % 5], q_heads = 1 + (uint32_t)(seed % 8);
    sequence s = make_sequence(&r, all_types[seed % 4], pages[seed % 4], dim, q_heads,
                               1 + rng_below(&r, 400));
    uint32_t most = SLOW ? 20 : 24, n = s.n_slots, n_rows = 1 + rng_below(&r, n < most ? n : most);
    static const float temperatures[] = {0.05f, 0.5f, 3.0f, 1e6f};
    kern_rows_item items[KERN_ROW_MEASURES];
    double *want = doubles((size_t)n * KERN_ROW_MEASURES), scales[KERN_ROW_MEASURES] = {0};
    for (uint32_t kind = 0; kind < KERN_ROW_MEASURES; kind++) {
        items[kind] = (kern_rows_item){.kind = (kern_row_measure)kind,
                                       .n_rows = n_rows,
                                       .window = rng_below(&r, 48),
                                       .chunk = 1 + rng_below(&r, 12)};
        bool along = kind >= KERN_MEASURE_PROJECTION;
        if (along && rng_below(&r, 2)) items[kind].bias = (float)rng_below(&r, 9) * 0.5f - 2.0f;
        if (along && rng_below(&r, 2)) items[kind].theta = temperatures[rng_below(&r, 4)];
        for (uint32_t row = n - n_rows; row < n; row++)
            for (uint32_t h = 0; h < q_heads; h++)
                naive_row(&s, &items[kind], row, h, want + (size_t)kind * n, &scales[kind]);
    }
    for (size_t k = 0; k < f->n_isas; k++) {
        float *got = malloc((size_t)n * KERN_ROW_MEASURES * sizeof *got);
        layout l = make_layout(f->isas[k], &r, &s, n);
        float *y = outputs_of(f->isas[k], &s, &l);
        for (uint32_t kind = 0; kind < KERN_ROW_MEASURES; kind++) {
            kern_rows_item it = rows_item(&s, &l, (kern_row_measure)kind, n, n_rows);
            it.window = items[kind].window;
            it.chunk = items[kind].chunk;
            it.bias = items[kind].bias;
            it.theta = items[kind].theta;
            it.y = y + (size_t)(n - n_rows) * q_heads * dim;
            it.out = got + (size_t)kind * n;
            items[kind] = it;
        }
        kern_rows_batch b = rows_batch(&s, &l, items, KERN_ROW_MEASURES);
        run_rows(f->isas[k], &b);
        for (uint32_t kind = 0; kind < KERN_ROW_MEASURES; kind++)
            compare(row_names[kind], f->isas[k], &s, got + (size_t)kind * n,
                    want + (size_t)kind * n, n, scales[kind]);
        free(y);
        free(got);
        free_layout(&l);
    }
    free(want);
    free_sequence(&s);
}

static void test_rows_against_naive(void **state)
{
    for (uint64_t seed = 1; seed <= (SLOW ? 5 : 40); seed++) random_rows(*state, seed);
}

/* Sums run over query heads first, then rows: single rows and heads, added here in that order, have
 * the same bits, as do other batches, threads and page sizes. */
static void test_rows_order(void **state)
{
    enum { SLOTS = 203, HEADS = 5, ROWS = 29, DIM = 32 };
    fixture *f = *state;
    rng r = rng_seed(13);
    for (size_t k = 0; k < f->n_isas; k++)
        for (uint32_t kind = 0; kind <= KERN_MEASURE_PROJECTION; kind++) {
            kern_context *single;
            sequence s = make_sequence(&r, KERN_KV_BF16, 16, DIM, HEADS, SLOTS);
            layout l = make_layout(f->isas[k], &r, &s, SLOTS);
            float *y = outputs_of(f->isas[k], &s, &l);
            float got[SLOTS], want[SLOTS] = {0}, one[SLOTS], row_sum[SLOTS];
            const float *rows_y = y + (size_t)(SLOTS - ROWS) * HEADS * DIM;
            kern_rows_item it = rows_item(&s, &l, (kern_row_measure)kind, SLOTS, ROWS);
            it.y = rows_y;
            it.out = got;
            kern_rows_batch b = rows_batch(&s, &l, &it, 1);
            run_rows(f->isas[k], &b);
            b.q_heads = 1;
            for (uint32_t i = 0; i < ROWS; i++) {
                for (uint32_t h = 0; h < HEADS; h++) {
                    bool raw = kind == KERN_MEASURE_RAW; /* the raw kind has no mask */
                    uint32_t end = SLOTS - ROWS + i + 1;
                    it = rows_item(&s, &l, (kern_row_measure)kind, raw ? SLOTS : end, 1);
                    it.q = s.q + ((size_t)(end - 1) * HEADS + h) * DIM;
                    it.y = y + ((size_t)(end - 1) * HEADS + h) * DIM;
                    it.out = one;
                    memset(one, 0, sizeof one);
                    run_rows(f->isas[k], &b);
                    for (uint32_t j = 0; j < SLOTS; j++)
                        row_sum[j] = h == 0 ? one[j] : row_sum[j] + one[j];
                }
                for (uint32_t j = 0; j < SLOTS; j++) want[j] += row_sum[j];
            }
            same_bits(row_names[kind], f->isas[k], want, got, SLOTS);
            assert_true(status_ok(
                kern_create(&(kern_options){.pool = f->single, .isa = kern_isa_name(f->isas[k])},
                            &single, NULL)));
            s.shape.page_tokens = 64;
            free_layout(&l);
            l = make_layout(single, &r, &s, SLOTS);
            it = rows_item(&s, &l, (kern_row_measure)kind, SLOTS, ROWS);
            it.y = rows_y;
            it.out = one;
            b = rows_batch(&s, &l, &it, 1);
            run_rows(single, &b);
            same_bits("one thread, other pages", single, got, one, SLOTS);
            kern_destroy(single);
            free(y);
            free_layout(&l);
            free_sequence(&s);
        }
}

/* ---- running sums ---------------------------------------------------------------------------- */

/* Runs all rows of s in calls of at most `chunk` rows (0: any size). want [n_slots]. */
static void run_sums(kern_context *kc, rng *r, const sequence *s, kern_row_measure kind,
                     uint32_t chunk, float *out)
{
    layout l = make_layout(kc, r, s, s->n_slots);
    uint32_t page_tokens = s->shape.page_tokens, stride = page_tokens * 3, most = 0;
    for (uint32_t p = 0; p <= (s->n_slots - 1) / page_tokens; p++)
        most = l.pages[p] > most ? l.pages[p] : most;
    float *sums = calloc((size_t)(most + 1) * stride, sizeof *sums), *y = outputs_of(kc, s, &l);
    float *returned = malloc(s->n_slots * sizeof *returned);
    for (uint32_t from = 0, n; from < s->n_slots; from += n) {
        n = chunk ? chunk : 1 + rng_below(r, s->n_slots);
        if (n > s->n_slots - from) n = s->n_slots - from;
        kern_rows_item it = rows_item(s, &l, kind, from + n, n);
        it.y = y + (size_t)from * s->q_heads * s->shape.head_dim;
        it.sums = sums + page_tokens;
        it.out = rng_below(r, 2) || from + n == s->n_slots ? returned : NULL;
        kern_rows_batch b = rows_batch(s, &l, &it, 1);
        b.sums_stride = stride;
        run_rows(kc, &b);
    }
    for (uint32_t j = 0; j < s->n_slots; j++)
        out[j] = sums[(size_t)l.pages[j / page_tokens] * stride + page_tokens + j % page_tokens];
    same_bits("returned", kc, out, returned, s->n_slots);
    free(returned);
    free(sums);
    free(y);
    free_layout(&l);
}

static void test_running_sums(void **state)
{
    static const uint32_t pages[] = {16, 32, 64};
    fixture *f = *state;
    rng r = rng_seed(21);
    for (size_t k = 0; k < f->n_isas; k++)
        for (uint32_t round = 0; round < (SLOW ? 2 : 8); round++) {
            kern_row_measure kind = round % 2 ? KERN_MEASURE_PROJECTION : KERN_MEASURE_MASS;
            sequence s = make_sequence(&r, all_types[round % 4], 16, 32, 1 + rng_below(&r, 8),
                                       60 + rng_below(&r, 130));
            uint32_t n = s.n_slots;
            float *whole = malloc(n * sizeof *whole), *cut = malloc(n * sizeof *cut);
            double *want = doubles(n), scale = 0;
            kern_rows_item it = {.kind = kind};
            for (uint32_t row = 0; row < n; row++)
                for (uint32_t h = 0; h < s.q_heads; h++) naive_row(&s, &it, row, h, want, &scale);
            run_sums(f->isas[k], &r, &s, kind, n, whole);
            compare("running", f->isas[k], &s, whole, want, n, scale / n);
            for (uint32_t p = 0; p < 3; p++) {
                s.shape.page_tokens = pages[p];
                run_sums(f->isas[k], &r, &s, kind, p == 0 ? 1 : 0, cut);
                same_bits("cut", f->isas[k], whole, cut, n);
            }
            free(want);
            free(whole);
            free(cut);
            free_sequence(&s);
        }
}

/* More rows x slots than a wave and a unit hold. */
static void test_long_sums(void **state)
{
    enum { SLOTS = SLOW ? 700 : 3100 };
    fixture *f = *state;
    kern_context *kc = f->isas[f->n_isas - 1];
    rng r = rng_seed(22);
    sequence s = make_sequence(&r, KERN_KV_F16, 16, 16, 1, SLOTS);
    float *whole = malloc(SLOTS * sizeof *whole), *cut = malloc(SLOTS * sizeof *cut);
    double total = 0;
    run_sums(kc, &r, &s, KERN_MEASURE_MASS, SLOTS, whole);
    run_sums(kc, &r, &s, KERN_MEASURE_MASS, 257, cut);
    same_bits("long", kc, whole, cut, SLOTS);
    layout l = make_layout(kc, &r, &s, SLOTS);
    kern_rows_item it = rows_item(&s, &l, KERN_MEASURE_MASS, SLOTS, SLOTS);
    it.out = cut; /* without sums of its own, the result is added up in the output */
    kern_rows_batch b = rows_batch(&s, &l, &it, 1);
    run_rows(kc, &b);
    same_bits("long, of one step", kc, whole, cut, SLOTS);
    free_layout(&l);
    for (uint32_t j = 0; j < SLOTS; j++) total += whole[j];
    assert_true(fabs(total - SLOTS) < 1e-5 * SLOTS);
    free(whole);
    free(cut);
    free_sequence(&s);
}

/* ---- measured from a table alone ------------------------------------------------------------- */

static void test_tables_against_naive(void **state)
{
    static const uint32_t pages[] = {16, 32, 80}, dims[] = {16, 64, 128, 256};
    static const char *const names[] = {"key norm", "key cosine", "value norm"};
    fixture *f = *state;
    rng r = rng_seed(31);
    for (uint32_t round = 0; round < (SLOW ? 4 : 24); round++) {
        sequence s = make_sequence(&r, all_types[round % 4], pages[round % 3], dims[round % 4], 1,
                                   1 + rng_below(&r, 300));
        uint32_t n = s.n_slots, dim = s.shape.head_dim;
        double *want = doubles((size_t)3 * n);
        for (uint32_t j = 0; j < n; j++) {
            want[KERN_MEASURE_KEY_NORM * n + j] = norm(s.k + (size_t)j * dim, dim);
            want[KERN_MEASURE_VALUE_NORM * n + j] = norm(s.v + (size_t)j * dim, dim);
        }
        naive_cosines(&s, want + (size_t)KERN_MEASURE_KEY_COSINE * n);
        for (size_t k = 0; k < f->n_isas; k++) {
            layout l = make_layout(f->isas[k], &r, &s, n);
            float *got = malloc((size_t)3 * n * sizeof *got);
            kern_table_item items[3];
            for (uint32_t kind = 0; kind < 3; kind++)
                items[kind] = (kern_table_item){{l.pages, l.tiles, n, NULL, 0, 0},
                                                (kern_table_measure)kind,
                                                got + (size_t)kind * n};
            assert_true(
                status_ok(kern_measure_tables(f->isas[k], &s.shape, l.page_stride, items, 3)));
            for (uint32_t kind = 0; kind < 3; kind++)
                compare(names[kind], f->isas[k], &s, got + (size_t)kind * n,
                        want + (size_t)kind * n, n, kind == KERN_MEASURE_KEY_COSINE ? 0.1 : 0.0);
            free(got);
            free_layout(&l);
        }
        free(want);
        free_sequence(&s);
    }
}

/* Zero keys have no direction: they yield no NaN. */
static void test_cosine_of_nothing(void **state)
{
    fixture *f = *state;
    rng r = rng_seed(32);
    sequence s = make_sequence(&r, KERN_KV_F32, 16, 16, 1, 20);
    float got[20];
    for (uint32_t all = 0; all < 2; all++) {
        memset(s.k, 0, (all ? 20 : 3) * 16 * sizeof *s.k);
        layout l = make_layout(f->isas[0], &r, &s, 20);
        kern_table_item it = {{l.pages, l.tiles, 20, NULL, 0, 0}, KERN_MEASURE_KEY_COSINE, got};
        assert_true(status_ok(kern_measure_tables(f->isas[0], &s.shape, l.page_stride, &it, 1)));
        for (uint32_t j = 0; j < 20; j++) assert_true(isfinite(got[j]) && (j >= 3 || got[j] == 0));
        free_layout(&l);
    }
    free_sequence(&s);
}

/* ---- measured under expected queries --------------------------------------------------------- */

static void test_expected_against_naive(void **state)
{
    static const uint32_t pages[] = {16, 32, 256}, dims[] = {16, 64, 48, 128};
    fixture *f = *state;
    rng r = rng_seed(41);
    for (uint32_t round = 0; round < (SLOW ? 3 : 16); round++) {
        sequence s = make_sequence(&r, all_types[round % 4], pages[round % 3], dims[round % 4],
                                   1 + rng_below(&r, 5), 8 + rng_below(&r, 200));
        uint32_t n = s.n_slots, dim = s.shape.head_dim;
        float *mean_rope = random_floats(&r, dim, 0.4f);
        float *got = malloc(n * sizeof *got);
        kern_expected_item it = {
            .sinks = rng_below(&r, 6), .q = s.q, .mean_rope = mean_rope, .out = got};
        it.n_rows = round % 8 == 7 ? 0 : 1 + rng_below(&r, n);
        double *want = doubles(n);
        for (uint32_t h = 0; h < s.q_heads; h++) naive_expected(&s, &it, h, want);
        for (size_t k = 0; k < f->n_isas; k++) {
            layout l = make_layout(f->isas[k], &r, &s, n);
            it.table = (kern_table){l.pages, l.tiles, n, NULL, 0, 0};
            kern_expected_batch b = {
                s.shape, l.page_stride, s.q_heads, (size_t)s.q_heads * dim, &it, 1};
            assert_true(status_ok(kern_measure_expected(f->isas[k], &b)));
            compare("expected", f->isas[k], &s, got, want, n, 0.1 * s.q_heads / n);
            free_layout(&l);
        }
        free(mean_rope);
        free(got);
        free(want);
        free_sequence(&s);
    }
    /* All slots are sinks: no expected query sees one. */
    sequence s = make_sequence(&r, KERN_KV_F32, 16, 16, 2, 5);
    layout l = make_layout(f->isas[0], &r, &s, 5);
    float got[5] = {1, 1, 1, 1, 1}, mean_rope[16] = {0};
    kern_expected_item it = {{l.pages, l.tiles, 5, NULL, 0, 0}, 9, 5, s.q, mean_rope, got};
    kern_expected_batch b = {s.shape, l.page_stride, 2, 32, &it, 1};
    assert_true(status_ok(kern_measure_expected(f->isas[0], &b)));
    for (uint32_t j = 0; j < 5; j++) assert_true(got[j] == 0.0f);
    free_layout(&l);
    free_sequence(&s);
}

/* ---- behind the output projection ------------------------------------------------------------ */

static void value_weight(fixture *f, rng *r, kern_kv_format kv, dtype type, uint32_t dim,
                         uint32_t q_heads, uint32_t hidden, uint32_t n)
{
    sequence s = make_sequence(r, kv, 32, dim, 1, n);
    uint32_t columns = 3 * q_heads * dim, first = q_heads * dim;
    float *w = random_floats(r, (size_t)hidden * columns, 0.1f), *got = malloc(n * sizeof *got);
    for (size_t i = 0; i < (size_t)hidden * columns; i++) w[i] = rounded(type, w[i]);
    double *want = doubles(n);
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t h = 0; h < q_heads; h++)
            for (uint32_t o = 0; o < hidden; o++)
                want[j] += fabs(
                    dot(w + (size_t)o * columns + first + h * dim, s.v + (size_t)j * dim, dim));
    for (size_t k = 0; k < f->n_isas; k++) {
        kern_matrix m = {.type = type, .n = hidden, .k = columns};
        size_t bytes = (kern_matrix_bytes(type, hidden, columns) + 63) / 64 * 64;
        m.data = aligned_alloc(64, bytes);
        memset(m.data, 0, bytes);
        kern_matrix_pack(f->isas[k], &m, 0, hidden, w, DTYPE_F32, columns);
        layout l = make_layout(f->isas[k], r, &s, n);
        kern_table table = {l.pages, l.tiles, n, NULL, 0, 0};
        assert_true(status_ok(kern_measure_value_weight(f->isas[k], &s.shape, l.page_stride, &table,
                                                        &m, first, q_heads, got)));
        compare("value weight", f->isas[k], &s, got, want, n, 0.0);
        free(m.data);
        free_layout(&l);
    }
    free(w);
    free(got);
    free(want);
    free_sequence(&s);
}

static void test_value_weight_against_naive(void **state)
{
    rng r = rng_seed(51);
    for (size_t t = 0; t < 4; t++) {
        dtype weights = t < 3 ? (dtype)all_types[t] : DTYPE_F32;
        value_weight(*state, &r, all_types[t], weights, 16, 3, 50, 300);
        value_weight(*state, &r, all_types[t], weights, 64, 2, 130, 1);
        if (!SLOW) value_weight(*state, &r, all_types[t], weights, 256, 4, 144, 37);
    }
}

/* ---- attention after retention --------------------------------------------------------------- */

typedef struct kept {
    uint32_t token[400]; /* of each slot */
    uint32_t n;
} kept;

/* Drops whole pages, then single slots, whose holes the last slots fill. */
static void retain(rng *r, const sequence *s, layout *l, kept *t)
{
    uint32_t page = s->shape.page_tokens, n_pages = s->n_slots / page, out = 0;
    for (uint32_t p = 0; p < n_pages; p++) { /* n_slots is a multiple of the page here */
        if (p + 1 < n_pages && rng_below(r, 2)) continue;
        l->pages[out] = l->pages[p];
        for (uint32_t i = 0; i < page; i++) t->token[out * page + i] = p * page + i;
        out++;
    }
    t->n = out * page;
    for (uint32_t holes = rng_below(r, page); holes > 0 && t->n > 1; holes--) {
        uint32_t hole = rng_below(r, t->n), last = t->n - 1;
        kern_kv_move(&s->shape, l->tiles + l->pages[hole / page] * l->page_stride, hole % page,
                     l->tiles + l->pages[last / page] * l->page_stride, last % page, 1);
        t->token[hole] = t->token[last];
        t->n--;
    }
}

static void test_attention_after_retention(void **state)
{
    static const uint32_t pages[] = {16, 32}, dims[] = {64, 128, 16};
    fixture *f = *state;
    for (size_t k = 0; k < f->n_isas; k++)
        for (uint64_t seed = 1; seed <= 12; seed++) {
            rng r = rng_seed(seed);
            uint32_t page = pages[seed % 2], dim = dims[seed % 3], heads = 1 + (uint32_t)(seed % 8);
            sequence s = make_sequence(&r, KERN_KV_F32, page, dim, heads,
                                       page * (2 + rng_below(&r, 200 / page)));
            layout l = make_layout(f->isas[k], &r, &s, s.n_slots);
            kept t;
            retain(&r, &s, &l, &t);
            /* One more token attends: the query of the last one, whose K and V are in the table. */
            float *out = malloc((size_t)heads * dim * sizeof *out);
            kern_attn_item it = {.pages = l.pages,
                                 .tiles = l.tiles,
                                 .first_slot = t.n - 1,
                                 .n_rows = 1,
                                 .q = s.q,
                                 .out = out};
            size_t row = (size_t)heads * dim;
            kern_attn_batch b = {s.shape, l.page_stride, heads, 1.0f / sqrtf((float)dim),
                                 row,     row,           &it,   1};
            assert_true(status_ok(kern_attention(f->isas[k], &b)));
            sequence dense = s; /* the kept tokens, contiguous */
            dense.n_slots = t.n;
            dense.k = malloc((size_t)t.n * dim * sizeof(float));
            dense.v = malloc((size_t)t.n * dim * sizeof(float));
            for (uint32_t j = 0; j < t.n; j++) {
                memcpy(dense.k + (size_t)j * dim, s.k + (size_t)t.token[j] * dim,
                       dim * sizeof(float));
                memcpy(dense.v + (size_t)j * dim, s.v + (size_t)t.token[j] * dim,
                       dim * sizeof(float));
            }
            double *a = doubles(t.n);
            for (uint32_t h = 0; h < heads; h++) {
                double off = 0, size = 0;
                attention_row(&dense, s.q + (size_t)h * dim, t.n, 1, a);
                for (uint32_t d = 0; d < dim; d++) {
                    double want = 0;
                    for (uint32_t j = 0; j < t.n; j++) want += a[j] * dense.v[(size_t)j * dim + d];
                    off += pow(out[h * dim + d] - want, 2);
                    size += want * want;
                }
                if (!(sqrt(off / size) <= 1e-6))
                    fail_msg("%s seed %llu: head %u of %u kept tokens is off by %.3g",
                             kern_isa_name(f->isas[k]), (unsigned long long)seed, h, t.n,
                             sqrt(off / size));
            }
            free(a);
            free(out);
            free(dense.k);
            free(dense.v);
            free_layout(&l);
            free_sequence(&s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_against_naive),
        cmocka_unit_test(test_rows_order),
        cmocka_unit_test(test_running_sums),
        cmocka_unit_test(test_long_sums),
        cmocka_unit_test(test_tables_against_naive),
        cmocka_unit_test(test_cosine_of_nothing),
        cmocka_unit_test(test_expected_against_naive),
        cmocka_unit_test(test_value_weight_against_naive),
        cmocka_unit_test(test_attention_after_retention),
    };
    return cmocka_run_group_tests_name("kernels_measure", tests, setup, teardown);
}
