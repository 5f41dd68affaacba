/* Each kernel of the GPU alone, on memory that no cache holds, beside the device's limits. */
#include "cli/bench/bench_gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Prints a line; bytes (read and written) and operations (a multiply-add is two) are one call's. */
static void put_line(const bench_gpu *b, const char *name, double us, double bytes, double ops)
{
    double gb_s = bytes / us * 1e-3, tflop_s = ops / us * 1e-6;
    if (!bench_gpu_is_well(b)) return;
    printf("%-44s %10.1f us %8.0f GB/s %5.1f %% %8.1f TFLOP/s %5.1f %%\n", name, us, gb_s,
           100.0 * gb_s / b->copy_gb_s, tflop_s, 100.0 * tflop_s / b->product_tflop_s);
    fflush(stdout);
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct multiplying {
    bench_gpu *b;
    gpu_matrix w; /* the first of `copies` */
    size_t copies, m;
    void *x, *y, *scratch;
} multiplying;

static void multiply_once(void *ctx, size_t i)
{
    const multiplying *k = ctx;
    gpu_matrix w = k->w;
    w.data = (uint8_t *)w.data + i % k->copies * gpu_matrix_bytes(&k->w);
    if (w.bits) w.scales = (uint8_t *)w.scales + i % k->copies * gpu_scale_bytes(&k->w);
    bench_gpu_note(k->b, k->b->api->product(k->b->g, &w, k->x, k->m, k->y, w.type, k->scratch));
}

typedef struct matrix_shape {
    const char *name;
    size_t n, k;
} matrix_shape;

static const matrix_shape shapes[] = {
    {"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}};
static const size_t rows_list[] = {1, 2, 4, 8, 16, 32, 128, 256, 2048, 16384};
enum { SHAPES = sizeof shapes / sizeof *shapes, ROWS = sizeof rows_list / sizeof *rows_list };
enum { LAYERS = 32, COLD_ROWS = 256 /* products of more rows read W often: one copy will do */ };

/* Rows of an emulated product, of which more than few.cu multiplies are a multiple of 4. */
enum { EMULATED_ROWS = 132 };

gpu_matrix bench_gpu_shape(const bench_gpu *b, const bench_gpu_kernels_options *o, size_t n,
                           size_t k)
{
    return (gpu_matrix){.n = n / b->divide,
                        .k = k / b->divide,
                        .type = o->type,
                        .bits = o->bits,
                        .group = o->is_float ? 128
                                 : o->bits   ? 32
                                             : 0,
                        .is_float = o->is_float};
}

/* narrow: x is rounded to e4m3, too. */
static double bench_product(bench_gpu *b, const bench_gpu_kernels_options *o, const matrix_shape *s,
                            size_t rows, bool narrow)
{
    size_t m = b->divide > 1 && rows > EMULATED_ROWS ? EMULATED_ROWS : rows;
    multiplying p = {.b = b, .m = m};
    p.w = bench_gpu_shape(b, o, s->n, s->k);
    size_t n = p.w.n, k = p.w.k, element = gpu_type_bytes(o->type);
    size_t bytes = gpu_matrix_bytes(&p.w) + gpu_scale_bytes(&p.w);
    p.copies = m > COLD_ROWS ? 1 : b->cold / bytes + 1;
    p.w.data = bench_gpu_alloc(b, p.copies * gpu_matrix_bytes(&p.w), true);
    if (o->bits) p.w.scales = bench_gpu_alloc(b, p.copies * gpu_scale_bytes(&p.w), true);
    p.x = bench_gpu_alloc(b, m * k * element, true);
    p.y = bench_gpu_alloc(b, gpu_product_rows(m) * n * element, false);
    p.scratch = bench_gpu_alloc(b, gpu_product_scratch(&p.w, m), false);
    b->api->set_narrow(b->g, narrow);
    double us = bench_gpu_time(b, multiply_once, &p, m > COLD_ROWS ? 10 : 50);
    b->api->set_narrow(b->g, false);
    char name[96];
    snprintf(name, sizeof name, "%s %zu x %zu by %zu rows%s", s->name, s->n, s->k, rows,
             narrow         ? ", fp8 x fp8"
             : o->is_float  ? ", fp8"
             : o->bits == 8 ? ", int8"
             : o->bits == 4 ? ", int4"
                            : "");
    put_line(b, name, us, (double)bytes + (double)(m * (n + k) * element),
             2.0 * (double)n * (double)k * (double)m);
    void *const device[] = {p.w.data, p.w.scales, p.x, p.y, p.scratch};
    bench_gpu_release(b, device, sizeof device / sizeof *device);
    return us;
}

static void bench_products(bench_gpu *b, const bench_gpu_kernels_options *o)
{
    double us[ROWS] = {0.0};
    for (size_t r = 0; r < ROWS && rows_list[r] <= o->most_rows; r++)
        for (size_t i = 0; i < SHAPES; i++)
            us[r] += bench_product(b, o, &shapes[i], rows_list[r], false);
    for (size_t r = 0; r < ROWS && rows_list[r] <= o->most_rows && bench_gpu_is_well(b); r++)
        printf("  the products of %d such layers, %zu rows: %.2f ms\n", LAYERS, rows_list[r],
               us[r] * LAYERS * 1e-3);
}

/* Products of many rows with e4m3 weights, x in 16 bits and in 8. */
static void bench_narrow(bench_gpu *b, const bench_gpu_kernels_options *o)
{
    static const size_t rows[] = {256, 2048, 8192};
    if (!o->is_float) return;
    if (!b->facts.narrow_groups) {
        printf("  the device and its library multiply no fp8 by fp8 with scales of 128 columns\n");
        return;
    }
    for (size_t r = 0; r < sizeof rows / sizeof *rows && rows[r] <= o->most_rows; r++) {
        double us[2] = {0.0, 0.0};
        for (size_t i = 0; i < SHAPES; i++)
            for (int narrow = 0; narrow < 2; narrow++)
                us[narrow] += bench_product(b, o, &shapes[i], rows[r], narrow);
        if (bench_gpu_is_well(b))
            printf("  the products of %d such layers, %zu rows: %.2f ms, fp8 x fp8: %.2f ms\n",
                   LAYERS, rows[r], us[0] * LAYERS * 1e-3, us[1] * LAYERS * 1e-3);
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { KV_HEADS = 8, Q_HEADS = 4, DIM = 128, PAGE = 16, SEQS_MOST = 64, MASS_ROWS = 32 };

typedef struct attending {
    bench_gpu *b;
    gpu_attention a;
    gpu_measure m;
    size_t copies, of_copy; /* copies take turns; entries of one */
} attending;

static void attend_once(void *ctx, size_t i)
{
    const attending *k = ctx;
    gpu_attention a = k->a;
    a.tables.pages += i % k->copies * k->of_copy;
    bench_gpu_note(k->b, k->b->api->attention(k->b->g, &a));
}

static void measure_once(void *ctx, size_t i)
{
    (void)i;
    const attending *k = ctx;
    bench_gpu_note(k->b, k->b->api->measure(k->b->g, &k->m));
}

static void attend_and_measure(void *ctx, size_t i)
{
    attend_once(ctx, i);
    measure_once(ctx, i);
}

/* n sequences of `slots` tokens each; the last `rows` tokens of each attend. */
typedef struct crowd {
    uint32_t n, slots, rows;
} crowd;

/* Numbers 0 to n - 1 in random order: the pages of all copies. */
static uint32_t *shuffled(bench_gpu *b, size_t n)
{
    uint32_t *pages = calloc(n, sizeof *pages);
    for (size_t i = 0; pages && i < n; i++) {
        uint32_t j = rng_below(&b->random, (uint32_t)i + 1);
        pages[i] = pages[j];
        pages[j] = (uint32_t)i;
    }
    return pages;
}

/* The slots of a part, as if all tiles saw `slots` slots. A long prompt is never cut. */
static uint32_t part_of(const bench_gpu *b, const crowd *c, uint32_t rows, uint32_t blocks)
{
    uint64_t slots = (uint64_t)c->n * blocks * c->slots;
    uint32_t n_sms = b->facts.n_sms;
    if (b->part_slots && c->rows < c->slots) return b->part_slots;
    return rows == GPU_DECODE_ROWS
               ? gpu_part_slots(slots, c->slots, KV_HEADS, n_sms)
               : gpu_cut_slots(slots, c->slots, KV_HEADS, gpu_blocks_at_once(n_sms, rows));
}

/* `rows`: of a prefill tile. A long prompt's first rows see fewer slots than its last: where it is
 * cut, their last parts are empty. */
static void place_tiles(bench_gpu *b, const crowd *c, uint32_t rows, gpu_attention *a)
{
    uint32_t packed = c->rows * Q_HEADS, n = 0;
    bool decode = packed <= GPU_DECODE_ROWS;
    uint32_t of_tile = decode ? GPU_DECODE_ROWS : rows, blocks = (packed + of_tile - 1) / of_tile;
    uint32_t part = part_of(b, c, of_tile, blocks);
    uint32_t parts = c->slots / part + (c->slots % part != 0);
    gpu_tile *tiles = calloc((size_t)c->n * blocks * parts, sizeof *tiles);
    if (!tiles) {
        bench_gpu_note(b, GPU_NO_MEMORY);
        return;
    }
    for (uint32_t i = 0; i < c->n; i++)
        for (uint32_t k = 0; k < blocks; k++)
            for (uint32_t p = 0, first = n; p < parts; p++)
                tiles[n++] = (gpu_tile){i, k * of_tile, p * part, (p + 1) * part, parts, first};
    void *device = bench_gpu_send(b, tiles, n * sizeof *tiles);
    a->decode = decode ? device : NULL;
    a->prefill = decode ? NULL : device;
    a->n_decode = decode ? n : 0;
    a->n_prefill = decode ? 0 : n;
    a->n_cut = parts > 1 ? a->n_prefill : 0;
    a->prefill_rows = rows;
    size_t bytes = gpu_partial_floats(n, of_tile, KV_HEADS, DIM) * sizeof(float);
    a->partial = a->cut_partial = bench_gpu_alloc(b, parts > 1 ? bytes : sizeof(float), false);
    free(tiles);
}

static void place_pages(bench_gpu *b, const crowd *c, gpu_kv_format format, attending *k)
{
    uint32_t row = (c->slots + PAGE - 1) / PAGE, lengths[SEQS_MOST];
    gpu_seq seqs[SEQS_MOST];
    size_t tile = gpu_tile_bytes(format, PAGE, DIM), page = tile * KV_HEADS;
    k->of_copy = (size_t)c->n * row;
    k->copies = b->cold / (k->of_copy * page) + 1;
    uint32_t *pages = shuffled(b, k->copies * k->of_copy);
    if (!pages) bench_gpu_note(b, GPU_NO_MEMORY);
    for (uint32_t i = 0; i < c->n; i++) {
        lengths[i] = c->slots;
        seqs[i] = (gpu_seq){i, i * c->rows, c->rows, i, GPU_GRAIN_HEAD};
    }
    gpu_attention *a = &k->a;
    a->pages = (gpu_pages){.data = bench_gpu_alloc(b, k->copies * k->of_copy * page, true),
                           .page_bytes = page,
                           .tile_bytes = tile,
                           .page_tokens = PAGE,
                           .head_dim = DIM,
                           .n_tiles = KV_HEADS,
                           .run_heads = 1,
                           .format = format};
    a->tables =
        (gpu_tables){.pages = bench_gpu_send(b, pages, k->copies * k->of_copy * sizeof *pages),
                     .row = row,
                     .head_groups = 1};
    a->layer = (gpu_layer){.heads_per_group = KV_HEADS};
    a->seqs = bench_gpu_send(b, seqs, c->n * sizeof *seqs);
    a->lengths = bench_gpu_send(b, lengths, c->n * sizeof *lengths);
    k->m.one.seq = seqs[0];
    free(pages);
}

static void set_up(bench_gpu *b, const crowd *c, uint32_t rows, gpu_kv_format format, attending *k)
{
    size_t heads = (size_t)c->n * c->rows * KV_HEADS * Q_HEADS;
    *k = (attending){.b = b};
    place_pages(b, c, format, k);
    place_tiles(b, c, rows, &k->a);
    gpu_attention *a = &k->a;
    a->kv_heads = KV_HEADS;
    a->q_heads = Q_HEADS;
    a->scale = 0.088388f;
    a->q = bench_gpu_alloc(b, heads * DIM * 2, true);
    a->out = bench_gpu_alloc(b, heads * DIM * 2, false);
    a->out_type = GPU_BF16;
    a->lse = bench_gpu_alloc(b, heads * sizeof(float), false);
    k->m = (gpu_measure){
        .pages = a->pages,
        .tables = a->tables,
        .layer = a->layer,
        .lengths = a->lengths,
        .one = {.seq = k->m.one.seq,
                .longest = c->slots,
                .rows = c->rows < MASS_ROWS ? c->rows : MASS_ROWS,
                .stride = a->tables.row,
                .step = 1,
                .out = GPU_OUT_PAGES},
        .kv_heads = KV_HEADS,
        .q_heads = Q_HEADS,
        .kind = GPU_MEASURE_MASS,
        .scale = a->scale,
        .q = a->q,
        .lse = a->lse,
        .values = bench_gpu_alloc(b, (size_t)KV_HEADS * a->tables.row * sizeof(float), false),
        .scratch = bench_gpu_alloc(b, (size_t)KV_HEADS * c->slots * sizeof(float), false)};
    gpu_measure_add(&k->m, &k->m.list, &k->m.one, 0);
}

static void tear_down(bench_gpu *b, const attending *k)
{
    const gpu_attention *a = &k->a;
    void *const device[] = {a->pages.data,
                            a->tables.pages,
                            (void *)(uintptr_t)a->seqs,
                            (void *)(uintptr_t)a->lengths,
                            (void *)(uintptr_t)a->decode,
                            (void *)(uintptr_t)a->prefill,
                            (void *)(uintptr_t)a->q,
                            a->out,
                            a->lse,
                            a->partial,
                            k->m.values,
                            k->m.scratch};
    bench_gpu_release(b, device, sizeof device / sizeof *device);
}

/* Decode attention that keeps what the mass of all sequences needs, and this measure. */
static void bench_measured(bench_gpu *b, const crowd *c, attending k, bool by_slot, double bytes,
                           const char *attention)
{
    gpu_kept kept_of[SEQS_MOST];
    gpu_measured seqs[SEQS_MOST];
    size_t n_kept = 0, n_values = 0;
    char name[128];
    k.m.list = (gpu_measured_list){0};
    for (uint32_t i = 0; i < c->n; i++) {
        kept_of[i] = (gpu_kept){n_kept, (c->slots + GPU_KEPT_STRIP - 1) / GPU_KEPT_STRIP, by_slot};
        n_kept += gpu_kept_floats(&kept_of[i], KV_HEADS, Q_HEADS);
        seqs[i] = k.m.one;
        seqs[i].seq = (gpu_seq){i, i, 1, i, GPU_GRAIN_HEAD};
        seqs[i].out = by_slot ? GPU_OUT_SLOTS : GPU_OUT_PAGES;
        seqs[i].kept = kept_of[i];
        seqs[i].stride = by_slot ? c->slots : k.a.tables.row;
        seqs[i].values = n_values;
        n_values += (size_t)KV_HEADS * seqs[i].stride;
        gpu_measure_add(&k.m, &k.m.list, &seqs[i], 0);
    }
    k.m.list.seqs = bench_gpu_send(b, seqs, c->n * sizeof *seqs);
    k.a.kept_of = bench_gpu_send(b, kept_of, c->n * sizeof *kept_of);
    k.m.kept = k.a.kept = bench_gpu_alloc(b, n_kept * sizeof(float), false);
    k.m.values = bench_gpu_alloc(b, n_values * sizeof(float), false);
    snprintf(name, sizeof name, "%s, mass by %s", attention, by_slot ? "slot" : "page");
    put_line(b, name, bench_gpu_time(b, attend_and_measure, &k, 20), bytes, 0.0);
    void *const device[] = {(void *)(uintptr_t)k.m.list.seqs, (void *)(uintptr_t)k.a.kept_of,
                            k.a.kept, k.m.values};
    bench_gpu_release(b, device, sizeof device / sizeof *device);
}

/* `rows`: of a prefill tile. */
static void bench_crowd(bench_gpu *b, crowd c, uint32_t rows, gpu_kv_format format)
{
    static const char *const formats[GPU_KV_FORMATS] = {"bf16", "f16", "fp8", "int8"};
    attending k;
    char name[96];
    bool decode = c.rows == 1, chunk = c.rows < c.slots, many = c.n == SEQS_MOST;
    const crowd told = c;
    if (b->divide > 1) {
        c.n = 1;
        c.slots /= b->divide;
        if (!chunk) c.rows = c.slots;
    }
    set_up(b, &c, rows, format, &k);
    double us = bench_gpu_time(b, attend_once, &k, 20), all = (double)c.n * c.slots;
    double pairs = (double)c.n * c.rows * (c.slots - (c.rows - 1) / 2.0);
    snprintf(name, sizeof name, "%s attention %u x %u", decode ? "decode" : "prefill", told.n,
             told.slots);
    if (chunk && !decode)
        snprintf(name, sizeof name, "chunks of %u, attention %u x %u", told.rows, told.n,
                 told.slots);
    snprintf(name + strlen(name), sizeof name - strlen(name), ", %s%s", formats[format],
             !decode && rows == GPU_WIDE_ROWS ? ", wgmma" : "");
    double bytes = all * KV_HEADS * (double)gpu_tile_bytes(format, PAGE, DIM) / PAGE;
    put_line(b, name, us, bytes, 4.0 * pairs * KV_HEADS * Q_HEADS * DIM);
    for (int by_slot = 0; decode && many && by_slot < 2; by_slot++)
        bench_measured(b, &c, k, by_slot, bytes, name);
    if (!chunk && rows == GPU_PREFILL_ROWS) {
        us = bench_gpu_time(b, measure_once, &k, 20);
        snprintf(name, sizeof name, "mass by page of one of them, %s", formats[format]);
        put_line(b, name, us, 0.0, 0.0);
    }
    tear_down(b, &k);
}

static void bench_attentions(bench_gpu *b, gpu_kv_format format)
{
    static const crowd decodes[] = {{64, 4096, 1}, {8, 32768, 1}, {1, 4096, 1}, {1, 32768, 1}};
    static const crowd prefills[] = {
        {8, 2048, 2048}, {1, 32768, 32}, {2, 8192, 128}, {1, 8192, 8192}};
    uint32_t best = gpu_prefill_rows(b->facts.compute, DIM);
    uint32_t rows = b->prefill_rows ? b->prefill_rows : best;
    for (size_t i = 0; i < sizeof decodes / sizeof *decodes; i++)
        bench_crowd(b, decodes[i], rows, format);
    for (size_t i = 0; i < sizeof prefills / sizeof *prefills; i++) {
        bench_crowd(b, prefills[i], rows, format);
        if (!b->prefill_rows && best != GPU_PREFILL_ROWS)
            bench_crowd(b, prefills[i], GPU_PREFILL_ROWS, format);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

enum { HIDDEN = 4096, FFN = 14336, VOCAB = 128256, MANY_ROWS = 8192, LOGIT_ROWS = 64 };

typedef struct rowing {
    bench_gpu *b;
    size_t m;
    void *x, *delta, *weight, *out;
} rowing;

typedef struct drawing {
    bench_gpu *b;
    gpu_sampling s;
} drawing;

static void norm_once(void *ctx, size_t i)
{
    (void)i;
    const rowing *k = ctx;
    bench_gpu_note(k->b, k->b->api->norm(k->b->g, k->x, k->delta, k->weight, 1e-5f, k->m, HIDDEN,
                                         k->out, GPU_BF16));
}
static void gate_once(void *ctx, size_t i)
{
    (void)i;
    const rowing *k = ctx;
    bench_gpu_note(k->b, k->b->api->gate(k->b->g, k->x, k->m, FFN, false, k->out, GPU_BF16));
}
static void draw_once(void *ctx, size_t i)
{
    (void)i;
    const drawing *k = ctx;
    bench_gpu_note(k->b, k->b->api->sample(k->b->g, &k->s));
}

/* Rows of logits that are normally distributed, each with a draw of the usual limits, then with
 * one of the largest. */
static void bench_draws(bench_gpu *b, uint32_t n)
{
    float *logits = malloc((size_t)n * VOCAB * sizeof *logits);
    gpu_draw draws[LOGIT_ROWS];
    if (!logits) {
        bench_gpu_note(b, GPU_NO_MEMORY);
        return;
    }
    for (size_t i = 0; i < (size_t)n * VOCAB; i++) logits[i] = 3.0f * rng_normal(&b->random);
    for (uint32_t i = 0; i < n; i++)
        draws[i] = (gpu_draw){.key = i,
                              .row = i,
                              .result = i,
                              .given = GPU_NO_TOKEN,
                              .top_k = 50,
                              .temperature = 0.8f,
                              .top_p = 0.9f,
                              .log_min_p = -INFINITY,
                              .repetition = 1.0f,
                              .n_logprobs = -1};
    drawing k = {b,
                 {.logits = bench_gpu_send(b, logits, (size_t)n * VOCAB * sizeof *logits),
                  .n_vocab = VOCAB,
                  .stride = VOCAB,
                  .n = n,
                  .draws = bench_gpu_send(b, draws, n * sizeof *draws),
                  .scratch = bench_gpu_alloc(b, (size_t)n * VOCAB * sizeof(float), false),
                  .drawn = bench_gpu_alloc(b, n * sizeof(gpu_drawn), false)}};
    put_line(b, "draw by top-k and top-p of 128256 logits", bench_gpu_time(b, draw_once, &k, 20),
             (double)n * VOCAB * 4.0, 0.0);
    void *limited = (void *)(uintptr_t)k.s.draws;
    for (uint32_t i = 0; i < n; i++) draws[i].temperature = 0.0f;
    k.s.draws = bench_gpu_send(b, draws, n * sizeof *draws);
    put_line(b, "largest of 128256 logits", bench_gpu_time(b, draw_once, &k, 20),
             (double)n * VOCAB * 4.0, 0.0);
    void *const device[] = {(void *)(uintptr_t)k.s.logits, (void *)(uintptr_t)k.s.draws, limited,
                            k.s.scratch, k.s.drawn};
    bench_gpu_release(b, device, sizeof device / sizeof *device);
    free(logits);
}

static void bench_rows(bench_gpu *b)
{
    size_t m = b->divide > 1 ? 4 : MANY_ROWS, logits = b->divide > 1 ? 1 : LOGIT_ROWS;
    size_t bytes = m * 2 * FFN * sizeof(uint16_t);
    rowing k = {b,
                m,
                bench_gpu_alloc(b, bytes, true),
                bench_gpu_alloc(b, m * HIDDEN * sizeof(float), true),
                bench_gpu_alloc(b, HIDDEN * sizeof(float), true),
                bench_gpu_alloc(b, bytes, false)};
    put_line(b, "norm of sums of 4096", bench_gpu_time(b, norm_once, &k, 20),
             (double)m * HIDDEN * 14.0, 0.0);
    put_line(b, "swiglu of 14336", bench_gpu_time(b, gate_once, &k, 20), (double)m * FFN * 6.0,
             0.0);
    void *const device[] = {k.x, k.delta, k.weight, k.out};
    bench_gpu_release(b, device, sizeof device / sizeof *device);
    bench_draws(b, (uint32_t)logits);
}

status bench_gpu_kernels(bench_gpu *b, const bench_gpu_kernels_options *o, error *err)
{
    static const char *const types[GPU_TYPES] = {"f32", "bf16", "f16"};
    b->part_slots = o->part_slots;
    b->prefill_rows = o->prefill_rows;
    if (o->prefill_rows == GPU_WIDE_ROWS &&
        gpu_prefill_rows(b->facts.compute, DIM) != GPU_WIDE_ROWS)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--prefill-kernel: wgmma needs compute capability 9.0, and %s has %u.%u",
                         b->facts.name, b->facts.compute / 10, b->facts.compute % 10);
    const gpu_few few = {o->few.rows ? o->few.rows : GPU_FEW_ROWS,
                         o->few.quant_rows ? o->few.quant_rows : GPU_FEW_QUANT_ROWS,
                         o->few.of_expert ? o->few.of_expert : GPU_FEW_OF_EXPERT,
                         o->few.staged_rows ? o->few.staged_rows : GPU_STAGED_ROWS};
    b->api->set_few(b->g, &few);
    RETURN_IF_ERROR(bench_gpu_limits(b, o->type, err));
    printf("%s, %u multiprocessors, compute %u\n", b->facts.name, b->facts.n_sms, b->facts.compute);
    if (b->divide > 1)
        printf("emulated: sides of matrices and contexts are a %uth of what the lines say, of one "
               "sequence\n",
               b->divide);
    printf("limits: copy on the device %.0f GB/s, %s product of %zu by the library %.1f TFLOP/s\n",
           b->copy_gb_s, types[o->type], b->side, b->product_tflop_s);
    printf("%-44s %13s %13s of copy %15s of product\n", "", "", "", "");
    bench_attentions(b, o->kv);
    bench_products(b, o);
    bench_narrow(b, o);
    bench_gpu_experts(b, o);
    bench_rows(b);
    bench_gpu_layer(b, o);
    return bench_gpu_status(b, err);
}
