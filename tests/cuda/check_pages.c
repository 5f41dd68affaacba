/* K and V to pages, attention, measures and moves, over tables of shuffled pages, of all grains. */
#include "tests/cuda/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const format_names[GPU_KV_FORMATS] = {"bf16", "f16", "e4m3", "int8"};

/* The CPU's own pages do int8, which is computed by row. */
static float rounded(gpu_kv_format f, float x)
{
    if (f == GPU_KV_INT8) return x;
    if (f == GPU_KV_E4M3) return check_e4m3(x);
    return f == GPU_KV_BF16 ? bf16_to_f32(bf16_from_f32(x)) : f16_to_f32(f16_from_f32(x));
}

static void shuffle(check *c, uint32_t *x, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = rng_u32(&c->random) % i, t = x[i - 1];
        x[i - 1] = x[j];
        x[j] = t;
    }
}

/* Fills a sequence's tables with the cells of some whole runs, cut to its grain and shuffled. Of
 * whole run r the cells of layer l begin at (l * n_runs + r) * head_groups. */
static void fill_tables(check *c, const world *w, const uint32_t *runs, gpu_grain grain,
                        uint32_t *pages)
{
    uint32_t n_runs = w->n_cells / w->groups, n = 0;
    uint32_t layers = grain == GPU_GRAIN_ALL ? 1 : LAYERS;
    uint32_t heads = grain == GPU_GRAIN_HEAD ? w->head_groups : 1;
    for (uint32_t i = 0; i < w->pages_of_seq; i++)
        for (uint32_t l = 0; l < layers; l++)
            for (uint32_t h = 0; h < heads; h++)
                pages[n++] = (l * n_runs + runs[i]) * w->head_groups + h;
    shuffle(c, pages, n);
}

static void make_tables(check *c, world *w)
{
    uint32_t n_runs = w->s->n_seqs * w->pages_of_seq;
    uint32_t *runs = check_memory(n_runs, sizeof *runs);
    w->n_cells = (n_runs + 1) * w->groups; /* cells of run 0 are in no table */
    w->tables = check_memory((size_t)n_runs * w->groups, sizeof *w->tables);
    for (uint32_t i = 0; i < n_runs; i++) runs[i] = i + 1;
    shuffle(c, runs, n_runs);
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        uint32_t number = w->seqs[i].table / w->groups;
        fill_tables(c, w, runs + number * w->pages_of_seq, w->seqs[i].grain,
                    w->tables + (size_t)w->seqs[i].table * w->pages_of_seq);
    }
    free(runs);
}

/* The first sequence's tables are of the grain `first`. */
static void lay_out(check *c, const shape *s, uint32_t first, world *w)
{
    *w = (world){.s = s, .heads = s->kv_heads * s->q_heads};
    w->width = (w->heads + 2 * s->kv_heads) * s->dim;
    uint32_t longest = 0;
    w->head_groups = s->kv_heads % 2 == 0 ? 2 : 1;
    w->groups = LAYERS * w->head_groups; /* one layer each */
    w->layer = (gpu_layer){
        .layer_group = 1, .heads_per_group = s->kv_heads / w->head_groups, .window = s->window};
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        w->seqs[i] = (gpu_seq){.table = (s->n_seqs - 1 - i) * w->groups,
                               .first_row = w->total,
                               .n_rows = s->lengths[i],
                               .lengths = i * w->groups,
                               .grain = (gpu_grain)((first + i) % 3)};
        for (uint32_t t = 0; t < tables_of(w, w->seqs[i].grain); t++)
            w->lengths[i * w->groups + t] = s->lengths[i];
        w->total += s->lengths[i];
        if (s->lengths[i] > longest) longest = s->lengths[i];
    }
    w->pages_of_seq = (longest + s->page_tokens - 1) / s->page_tokens + 1;
    make_tables(c, w);
}

static void make_pages(check *c, world *w)
{
    const shape *s = w->s;
    size_t tile = gpu_tile_bytes(s->format, s->page_tokens, s->dim);
    w->pages = (gpu_pages){.page_bytes = tile * w->layer.heads_per_group,
                           .tile_bytes = tile,
                           .page_tokens = s->page_tokens,
                           .head_dim = s->dim,
                           .n_tiles = w->layer.heads_per_group,
                           .format = s->format,
                           .layer_groups = LAYERS,
                           .run_heads = w->head_groups,
                           .layer_stride = w->n_cells / LAYERS};
    size_t bytes = w->n_cells * w->pages.page_bytes;
    uint8_t *junk = check_memory(bytes, 1); /* NaNs, to show reads of unwritten memory */
    memset(junk, 0xff, bytes);
    w->pages.data = check_device(c, junk, bytes);
    free(junk);
    w->cpu = (kern_kv_shape){s->format == GPU_KV_INT8 ? KERN_KV_INT8 : KERN_KV_F32, s->page_tokens,
                             s->dim};
    w->cpu_page = kern_kv_tile_bytes(&w->cpu) * w->layer.heads_per_group;
    w->cpu_pages = check_memory(w->n_cells, w->cpu_page);

    /* Sets the tables by patches: the second half of each table first. */
    uint32_t rows = s->n_seqs * w->groups, half = w->pages_of_seq / 2;
    gpu_patch *patches = check_memory(2 * rows, sizeof *patches);
    for (uint32_t i = 0; i < rows; i++) {
        size_t at = (size_t)i * w->pages_of_seq;
        patches[2 * i] = (gpu_patch){at + half, (uint32_t)at + half, w->pages_of_seq - half};
        patches[2 * i + 1] = (gpu_patch){at, (uint32_t)at, half};
    }
    size_t table_bytes = (size_t)rows * w->pages_of_seq * 4;
    w->gpu_tables = (gpu_tables){.pages = check_device(c, NULL, table_bytes),
                                 .row = w->pages_of_seq,
                                 .head_groups = w->head_groups};
    void *d_patches = check_device(c, patches, 2 * rows * sizeof *patches);
    void *d_values = check_device(c, w->tables, table_bytes);
    check_ok(c, c->api->patch(c->g, w->gpu_tables.pages, d_patches, 2 * rows, d_values));
    check_ok(c, c->api->wait(c->g));
    c->api->release(c->g, d_patches);
    c->api->release(c->g, d_values);
    free(patches);
}

/* ---- K, V and queries ------------------------------------------------------------------------ */

/* The CPU's side: bias, norms, rotation; K and V are rounded into pages, q into cpu_q. */
static void write_cpu(check *c, world *w, const float *bias, const float *q_norm,
                      const float *k_norm, const float *angles)
{
    const shape *s = w->s;
    float *x = check_memory((size_t)w->total * w->width, 4);
    memcpy(x, w->qkv, (size_t)w->total * w->width * 4);
    for (uint32_t r = 0; bias && r < w->total; r++)
        for (uint32_t i = 0; i < w->width; i++) x[(size_t)r * w->width + i] += bias[i];
    float *k = x + w->heads * s->dim;
    if (q_norm) {
        kern_rmsnorm_heads(c->ref, x, w->width, q_norm, 1e-6f, w->total, w->heads, s->dim);
        kern_rmsnorm_heads(c->ref, k, w->width, k_norm, 1e-6f, w->total, s->kv_heads, s->dim);
    }
    size_t heads = (size_t)w->heads * s->dim;
    w->unrotated = check_memory(w->total * heads, 4);
    for (uint32_t r = 0; r < w->total; r++)
        memcpy(w->unrotated + r * heads, x + (size_t)r * w->width, heads * 4);
    kern_rope(c->ref, x, w->width, angles, w->total, w->heads + s->kv_heads, s->dim);
    w->cpu_q = check_memory((size_t)w->total * w->heads * s->dim, 4);
    for (uint32_t i = 0; i < s->n_seqs; i++)
        for (uint32_t slot = 0; slot < s->lengths[i]; slot++) {
            size_t row = w->seqs[i].first_row + slot;
            float *at = x + row * w->width;
            memcpy(w->cpu_q + row * w->heads * s->dim, at, (size_t)w->heads * s->dim * 4);
            for (uint32_t j = w->heads * s->dim; j < w->width; j++)
                at[j] = rounded(s->format, at[j]);
            for (uint32_t head = 0; head < s->kv_heads; head++) {
                uint32_t page = table_of(w, i, head)[slot / s->page_tokens];
                const float *key = at + (w->heads + head) * s->dim;
                kern_kv_write(c->ref, &w->cpu, cpu_tiles(w, i, head) + page * w->cpu_page,
                              slot % s->page_tokens, key, key + s->kv_heads * s->dim);
            }
        }
    free(x);
}

/* The K and V of every slot must be near on both sides: values may round differently. */
static void compare_pages(check *c, world *w, const char *name, double limit)
{
    const shape *s = w->s;
    size_t dim = s->dim, n = 0, bytes = w->n_cells * w->pages.page_bytes;
    uint8_t *raw = check_memory(bytes, 1);
    float *due = check_memory((size_t)w->total * s->kv_heads * 2 * dim, 4);
    float *got = check_memory((size_t)w->total * s->kv_heads * 2 * dim, 4);
    check_fetch(c, raw, w->pages.data, bytes);
    for (uint32_t i = 0; i < s->n_seqs; i++)
        for (uint32_t slot = 0; slot < s->lengths[i]; slot++)
            for (uint32_t head = 0; head < s->kv_heads; head++, n += 2 * dim) {
                uint32_t page = table_of(w, i, head)[slot / s->page_tokens],
                         in = slot % s->page_tokens;
                kern_kv_read(c->ref, &w->cpu, cpu_tiles(w, i, head) + page * w->cpu_page, in,
                             due + n, due + n + dim);
                const uint8_t *tile = raw + (page + cell_behind(w, i, head)) * w->pages.page_bytes +
                                      head % w->layer.heads_per_group * w->pages.tile_bytes;
                for (uint32_t v = 0; v < 2; v++)
                    for (size_t d = 0; d < dim; d++) {
                        size_t at = ((size_t)v * s->page_tokens + in) * dim + d;
                        float *x = got + n + v * dim + d;
                        if (s->format == GPU_KV_INT8) {
                            const uint16_t *scales =
                                (const void *)(tile + 2 * s->page_tokens * dim);
                            *x = (float)(int8_t)tile[at] *
                                 bf16_to_f32(scales[v * s->page_tokens + in]);
                        } else if (s->format == GPU_KV_E4M3) {
                            int e = tile[at] >> 3 & 15, m = tile[at] & 7;
                            *x = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
                            if (tile[at] >> 7) *x = -*x;
                        } else check_widen(tile + 2 * at, 1, gpu_query_type(s->format), x);
                    }
            }
    check_row(c, name, due, got, n, limit);
    free(raw), free(due), free(got);
}

static void write_both(check *c, world *w, const char *name)
{
    const shape *s = w->s;
    size_t rows = w->total;
    float *bias = check_memory(w->width, 4), *norms = check_memory(2 * s->dim, 4);
    float *angles = check_memory(rows * s->dim, 4);
    uint32_t *row_seqs = check_memory(rows, 4);
    w->qkv = check_memory(rows * w->width, 4);
    check_fill(c, w->qkv, rows * w->width);
    check_fill(c, bias, w->width);
    check_fill(c, norms, 2 * s->dim);
    for (uint32_t i = 0, r = 0; i < s->n_seqs; i++)
        for (uint32_t slot = 0; slot < s->lengths[i]; slot++, r++) {
            row_seqs[r] = i;
            for (uint32_t d = 0; d < s->dim / 2; d++) {
                double a = slot * pow(10000.0, -2.0 * d / s->dim);
                angles[(size_t)r * s->dim + d] = (float)cos(a);
                angles[(size_t)r * s->dim + s->dim / 2 + d] = (float)sin(a);
            }
        }
    w->d_seqs = check_device(c, w->seqs, sizeof w->seqs);
    w->d_lengths = check_device(c, w->lengths, sizeof w->lengths);
    w->q = check_output(c, rows * w->heads * s->dim * 2);
    w->out = check_output(c, rows * w->heads * s->dim * 4);
    w->lse = check_output(c, rows * w->heads * 4);
    void *d_rows = check_device(c, row_seqs, rows * 4);
    float *d_qkv = check_device(c, w->qkv, rows * w->width * 4);
    float *d_bias = check_device(c, bias, w->width * 4);
    float *d_norms = check_device(c, norms, 2 * s->dim * 4);
    float *d_angles = check_device(c, angles, rows * s->dim * 4);
    gpu_heads h = {w->pages,
                   w->gpu_tables,
                   w->layer,
                   w->d_seqs,
                   w->d_lengths,
                   d_rows,
                   w->total,
                   s->kv_heads,
                   s->q_heads,
                   d_qkv,
                   s->bias ? d_bias : NULL,
                   s->norms ? d_norms : NULL,
                   s->norms ? d_norms + s->dim : NULL,
                   1e-6f,
                   d_angles,
                   w->q};
    check_ok(c, c->api->heads(c->g, &h));
    check_ok(c, c->api->wait(c->g));
    write_cpu(c, w, s->bias ? bias : NULL, s->norms ? norms : NULL,
              s->norms ? norms + s->dim : NULL, angles);
    char text[160];
    snprintf(text, sizeof text, "k, v to pages, %s", name);
    compare_pages(c, w, text, gpu_kv_bytes(s->format) == 1 ? 1e-6 : 1e-8);
    w->gpu_qkv = d_qkv, w->gpu_bias = d_bias, w->gpu_norms = d_norms;
    void *device[] = {d_rows, d_angles};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
    free(bias), free(norms), free(angles), free(row_seqs);
}

/* Attention uses the queries that the GPU rounded. */
static void take_queries(check *c, world *w, const char *name)
{
    size_t n = (size_t)w->total * w->heads * w->s->dim;
    void *raw = check_memory(n, 2);
    float *got = check_memory(n, 4);
    gpu_type type = gpu_query_type(w->s->format);
    check_fetch(c, raw, w->q, n * 2);
    check_widen(raw, n, type, got);
    char text[160];
    snprintf(text, sizeof text, "queries, %s", name);
    check_row(c, text, w->cpu_q, got, n, type == GPU_BF16 ? 1e-5 : 1e-6);
    memcpy(w->cpu_q, got, n * 4);
    free(raw), free(got);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* How a step's attention is cut into tiles. */
typedef struct cut {
    uint32_t part_slots; /* of a decode tile */
    uint32_t cut_slots;  /* of a prefill tile; UINT32_MAX: all */
    uint32_t prefill_rows;
    bool invariant; /* all rows are prefill tiles */
} cut;

static bool goes_by_parts(const world *w, cut by, uint32_t i)
{
    return w->seqs[i].n_rows * w->s->q_heads <= GPU_DECODE_ROWS && !by.invariant;
}

/* Tiles as model/cuda/step.c makes them, and unused ones. Returns whether no sequence has several
 * decode tiles. */
static bool make_tiles(const world *w, cut by, gpu_attention *a, gpu_tile *decode,
                       gpu_tile *prefill)
{
    const shape *s = w->s;
    bool whole = true;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        uint32_t first = a->n_decode, parts = (s->lengths[i] + by.part_slots - 1) / by.part_slots;
        if (!goes_by_parts(w, by, i)) continue;
        whole &= parts <= 1;
        for (uint32_t p = 0; p < parts; p++)
            decode[a->n_decode++] =
                (gpu_tile){i, 0, p * by.part_slots, (p + 1) * by.part_slots, parts, first};
    }
    if (a->n_decode) decode[a->n_decode++] = (gpu_tile){0};
    for (int whole_ones = 0; whole_ones < 2; whole_ones++) {
        for (uint32_t i = 0; i < s->n_seqs; i++) {
            uint32_t packed = w->seqs[i].n_rows * s->q_heads, first_slot;
            first_slot = s->lengths[i] - w->seqs[i].n_rows;
            for (uint32_t r = 0; r < packed && !goes_by_parts(w, by, i); r += by.prefill_rows) {
                uint32_t last = r + by.prefill_rows < packed ? r + by.prefill_rows : packed;
                uint32_t sees = first_slot + (last - 1) / s->q_heads + 1, first = a->n_prefill;
                uint32_t parts = (uint32_t)(((uint64_t)sees + by.cut_slots - 1) / by.cut_slots);
                for (uint32_t p = 0; p < parts && (parts == 1) == whole_ones; p++)
                    prefill[a->n_prefill++] =
                        (gpu_tile){i, r, p * by.cut_slots, (p + 1) * by.cut_slots, parts, first};
            }
        }
        if (a->n_prefill) prefill[a->n_prefill++] = (gpu_tile){0};
        if (!whole_ones) a->n_cut = a->n_prefill;
    }
    return whole;
}

/* Only the last rows of each sequence attend from now on. */
static void leave_rows(world *w, const uint32_t *rows)
{
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        w->seqs[i].first_row += w->seqs[i].n_rows - rows[i];
        w->seqs[i].n_rows = rows[i];
    }
}

static void attend_gpu(check *c, world *w, cut by)
{
    const shape *s = w->s;
    uint32_t most = w->total * s->q_heads / 4 + 64;
    gpu_tile *decode = check_memory(most, sizeof *decode),
             *prefill = check_memory(most, sizeof *prefill);
    gpu_attention a = {.pages = w->pages,
                       .tables = w->gpu_tables,
                       .layer = w->layer,
                       .lengths = w->d_lengths,
                       .prefill_rows = by.prefill_rows,
                       .kv_heads = s->kv_heads,
                       .q_heads = s->q_heads,
                       .scale = 1.0f / sqrtf((float)s->dim),
                       .q = w->q,
                       .out = w->out,
                       .out_type = GPU_F32,
                       .lse = w->lse,
                       .kept = w->kept,
                       .kept_of = w->kept ? check_device(c, w->kept_of, sizeof w->kept_of) : NULL};
    a.whole = make_tiles(w, by, &a, decode, prefill);
    void *d_seqs = check_device(c, w->seqs, sizeof w->seqs);
    void *d_decode = check_device(c, decode, most * sizeof *decode);
    void *d_prefill = check_device(c, prefill, most * sizeof *prefill);
    a.seqs = d_seqs, a.decode = d_decode, a.prefill = d_prefill;
    a.partial =
        check_output(c, gpu_partial_floats(a.n_decode, GPU_DECODE_ROWS, s->kv_heads, s->dim) * 4);
    a.cut_partial =
        check_output(c, gpu_partial_floats(a.n_cut, by.prefill_rows, s->kv_heads, s->dim) * 4);
    check_ok(c, c->api->attention(c->g, &a));
    check_ok(c, c->api->wait(c->g));
    void *device[] = {d_seqs,    d_decode,      d_prefill,
                      a.partial, a.cut_partial, (void *)(uintptr_t)a.kept_of};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
    free(decode), free(prefill);
}

/* Makes zeros of the output of the rows that do not attend, as the reference leaves it; where the
 * kernel wrote there, the output stays. */
static void clear_unasked(const world *w, size_t stride, float *out)
{
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        uint32_t idle = w->s->lengths[i] - w->s->rows[i];
        float *first = out + (w->seqs[i].first_row - idle) * stride;
        for (size_t e = 0; e < idle * stride; e++) {
            uint32_t bits;
            memcpy(&bits, first + e, sizeof bits);
            if (bits == 0xffffffff) first[e] = 0.0f; /* check_output's */
        }
    }
}

static void check_attention(check *c, world *w, const char *name, cut by)
{
    const shape *s = w->s;
    size_t stride = (size_t)w->heads * s->dim, n = w->total * stride;
    float *due = check_memory(n, 4), *got = check_memory(n, 4);
    attend_gpu(c, w, by);
    check_fetch(c, got, w->out, n * 4);
    clear_unasked(w, stride, got);
    kern_attn_item *items = check_memory((size_t)s->n_seqs * s->kv_heads, sizeof *items);
    size_t n_items = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        for (uint32_t head = 0; head < s->kv_heads; head++) {
            size_t at = w->seqs[i].first_row * stride + (size_t)head * s->q_heads * s->dim;
            items[n_items++] = (kern_attn_item){.pages = table_of(w, i, head),
                                                .tiles = cpu_tiles(w, i, head),
                                                .first_slot = s->lengths[i] - s->rows[i],
                                                .n_rows = s->rows[i],
                                                .window = s->window,
                                                .q = w->cpu_q + at,
                                                .out = due + at};
        }
    kern_attn_batch batch = {w->cpu, w->cpu_page, s->q_heads, 1.0f / sqrtf((float)s->dim),
                             stride, stride,      items,      n_items};
    if (!status_ok(kern_attention(c->ref, &batch))) abort();
    check_row(c, name, due, got, n, gpu_query_type(s->format) == GPU_BF16 ? 3e-5 : 1e-6);
    free(due), free(got), free(items);
}

/* Lays out what attention keeps of the sequences whose rows are decode tiles: scores of all of
 * them, or sums of the first two. */
static size_t lay_out_kept(world *w, cut by, bool slots)
{
    size_t n = 0;
    w->keeps_slots = slots;
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        gpu_kept k = {n, (w->s->lengths[i] + GPU_KEPT_STRIP - 1) / GPU_KEPT_STRIP + i,
                      slots}; /* with gaps */
        bool keeps = goes_by_parts(w, by, i) && (slots || i < 2);
        w->kept_of[i] = keeps ? k : (gpu_kept){0};
        if (!keeps) continue;
        n += gpu_kept_floats(&k, w->s->kv_heads, w->seqs[i].n_rows * w->s->q_heads);
        n = (n + GPU_KEPT_STRIP - 1) / GPU_KEPT_STRIP * GPU_KEPT_STRIP;
    }
    return n;
}

/* Attention that keeps something has the bits of attention that does not, and measures of mass need
 * no K. */
static void check_kept(check *c, world *w, cut by, bool slots)
{
    size_t n = (size_t)w->total * w->heads * w->s->dim, n_lse = (size_t)w->total * w->heads;
    size_t n_kept = lay_out_kept(w, by, slots);
    float *due = check_memory(n + n_lse, 4), *got = check_memory(n + n_lse, 4);
    if (n_kept > 0) {
        attend_gpu(c, w, by);
        check_fetch(c, due, w->out, n * 4);
        check_fetch(c, due + n, w->lse, n_lse * 4);
        w->kept = check_output(c, n_kept * 4);
        attend_gpu(c, w, by);
        check_fetch(c, got, w->out, n * 4);
        check_fetch(c, got + n, w->lse, n_lse * 4);
        const float none = 0.0f, differ = (float)(memcmp(due, got, (n + n_lse) * 4) != 0);
        check_row(c, "attention that keeps: the same bits", &none, &differ, 1, 0.0);
        check_kept_mass(c, w);
        c->api->release(c->g, w->kept);
        w->kept = NULL;
    }
    memset(w->kept_of, 0, sizeof w->kept_of);
    free(due), free(got);
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Makes a move between two cells on the CPU's side. */
static void move_cells(check *c, world *w, const gpu_move *m, uint32_t src_cell, uint32_t dst_cell,
                       const float *rope_shift, float *sums)
{
    const shape *s = w->s;
    size_t tile = kern_kv_tile_bytes(&w->cpu);
    for (uint32_t k = 0; k < w->pages.n_tiles; k++) {
        float *of_src = sums + (src_cell * w->pages.n_tiles + k) * s->page_tokens;
        float *of_dst = sums + (dst_cell * w->pages.n_tiles + k) * s->page_tokens;
        memmove(of_dst + m->dst_slot, of_src + m->src_slot, m->n_slots * sizeof *sums);
        uint8_t *src = w->cpu_pages + src_cell * w->cpu_page + k * tile;
        uint8_t *dst = w->cpu_pages + dst_cell * w->cpu_page + k * tile;
        if (!m->rope_shift) {
            kern_kv_move(&w->cpu, dst, m->dst_slot, src, m->src_slot, m->n_slots);
            continue;
        }
        for (uint32_t j = 0; j < m->n_slots; j++) {
            float key[256], value[256];
            kern_kv_read(c->ref, &w->cpu, src, m->src_slot + j, key, value);
            kern_rope(c->ref, key, s->dim, rope_shift, 1, 1, s->dim);
            for (uint32_t d = 0; d < s->dim; d++) key[d] = rounded(s->format, key[d]);
            kern_kv_write(c->ref, &w->cpu, dst, m->dst_slot + j, key, value);
        }
    }
}

/* Moves in a sequence's first table: within a page, both ways and overlapping, to another page, and
 * with rotation. */
static void move_both(check *c, world *w, uint32_t seq, const float *rope_shift,
                      const float *d_rope_shift, float *sums)
{
    const uint32_t *t = table_of(w, seq, 0);
    uint32_t n = w->s->page_tokens - 3;
    gpu_grain grain = w->seqs[seq].grain;
    gpu_move moves[] = {{t[0], t[0], 3, 0, n, 0},
                        {t[0], t[0], 0, 2, n - 1, 0},
                        {t[0], t[1], 1, 0, 5, 0},
                        {t[1], t[0], 2, 4, 3, 1}};
    gpu_chain chain = {0, 4};
    void *d_moves = check_device(c, moves, sizeof moves);
    void *d_chain = check_device(c, &chain, sizeof chain);
    check_ok(c, c->api->move(c->g, &w->pages, grain, d_moves, d_chain, 1, d_rope_shift));
    check_ok(c, c->api->wait(c->g));
    uint32_t layers = grain == GPU_GRAIN_ALL ? LAYERS : 1;
    uint32_t heads = grain == GPU_GRAIN_HEAD ? 1 : w->head_groups;
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++)
        for (uint32_t l = 0; l < layers; l++)
            for (uint32_t h = 0; h < heads; h++) {
                uint32_t behind = l * (w->n_cells / LAYERS) + h;
                move_cells(c, w, &moves[i], moves[i].src_page + behind, moves[i].dst_page + behind,
                           rope_shift, sums);
            }
    c->api->release(c->g, d_moves);
    c->api->release(c->g, d_chain);
}

static void check_moves(check *c, world *w)
{
    const shape *s = w->s;
    size_t n_sums = (size_t)w->n_cells * w->pages.n_tiles * s->page_tokens;
    float *sums = check_memory(n_sums, 4), *moved = check_memory(n_sums, 4);
    check_fill(c, sums, n_sums);
    w->pages.sums = check_device(c, sums, n_sums * 4);
    float rope_shift[256];
    for (uint32_t d = 0; d < s->dim / 2; d++) {
        rope_shift[d] = cosf(0.3f * (float)d);
        rope_shift[s->dim / 2 + d] = sinf(0.3f * (float)d);
    }
    float *d_rope_shift = check_device(c, rope_shift, s->dim * 4);
    for (uint32_t i = 0; i < s->n_seqs; i++) move_both(c, w, i, rope_shift, d_rope_shift, sums);
    check_fetch(c, moved, w->pages.sums, n_sums * 4);
    check_row(c, "moves of running sums", sums, moved, n_sums, 0.0);
    c->api->release(c->g, w->pages.sums);
    free(sums), free(moved);
    compare_pages(c, w, "moves", gpu_kv_bytes(s->format) == 1 ? 1e-6 : 1e-8);
    c->api->release(c->g, d_rope_shift);
}

static void forget(check *c, world *w)
{
    void *device[] = {w->pages.data, w->gpu_tables.pages, w->d_seqs,   w->d_lengths, w->q, w->out,
                      w->lse,        w->gpu_qkv,          w->gpu_bias, w->gpu_norms};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
    free(w->tables), free(w->qkv), free(w->cpu_pages), free(w->cpu_q), free(w->unrotated);
}

static void check_shape(check *c, const shape *s, uint32_t first_grain, uint32_t part_slots,
                        bool cuts)
{
    world w;
    char name[96];
    lay_out(c, s, first_grain, &w);
    make_pages(c, &w);
    snprintf(name, sizeof name, "%s, %u dims, %u x %u heads, %u-token pages%s",
             format_names[s->format], s->dim, s->kv_heads, s->q_heads, s->page_tokens,
             s->window ? ", window" : "");
    write_both(c, &w, name);
    take_queries(c, &w, name);
    leave_rows(&w, s->rows);
    check_attention(c, &w, name, (cut){part_slots, UINT32_MAX, GPU_PREFILL_ROWS, false});
    snprintf(name + strlen(name), sizeof name - strlen(name), ", cut");
    if (cuts) check_attention(c, &w, name, (cut){part_slots, part_slots, GPU_PREFILL_ROWS, false});
    for (uint32_t i = 0; !s->window && i < s->n_seqs; i += 2) check_measures(c, &w, i);
    /* The tables' parts, and tables without parts. */
    for (uint32_t slots = 0; slots < 2; slots++) {
        uint32_t part = slots == cuts ? part_slots : 1 << 20;
        check_kept(c, &w, (cut){part, UINT32_MAX, GPU_PREFILL_ROWS, false}, slots);
    }
    check_moves(c, &w);
    forget(c, &w);
}

/* The kernel with wgmma: every row, and then the last one of each sequence alone, whose bits must
 * be the same. Then the tiles are cut, where they are no decode tiles. */
static void check_wide_shape(check *c, const shape *s, uint32_t first_grain)
{
    world w;
    char name[96];
    cut by = {64, UINT32_MAX, GPU_WIDE_ROWS, true};
    lay_out(c, s, first_grain, &w);
    make_pages(c, &w);
    snprintf(name, sizeof name, "wgmma, %s, %u dims, %u x %u heads, %u-token pages%s",
             format_names[s->format], s->dim, s->kv_heads, s->q_heads, s->page_tokens,
             s->window ? ", window" : "");
    write_both(c, &w, name);
    take_queries(c, &w, name);
    leave_rows(&w, s->rows);
    check_attention(c, &w, name, by);

    static const uint32_t ones[SEQS_MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    size_t stride = (size_t)w.heads * s->dim, n = w.total * stride;
    float *due = check_memory(n, 4), *got = check_memory(n, 4);
    check_fetch(c, due, w.out, n * 4);
    c->api->release(c->g, w.out);
    w.out = check_output(c, n * 4);
    leave_rows(&w, ones);
    attend_gpu(c, &w, by);
    check_fetch(c, got, w.out, n * 4);
    uint32_t differ = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        size_t at = w.seqs[i].first_row * stride;
        differ += memcmp(due + at, got + at, stride * 4) != 0;
    }
    const float none = 0.0f, found = (float)differ;
    check_row(c, "wgmma, rows of another step: the same bits", &none, &found, 1, 0.0);
    free(due), free(got);

    leave_rows(&w, s->rows);
    by.invariant = false;
    for (by.cut_slots = 64; by.cut_slots <= 192; by.cut_slots += 128) {
        char text[128];
        snprintf(text, sizeof text, "%s, cut by %u", name, by.cut_slots);
        c->api->release(c->g, w.out);
        w.out = check_output(c, n * 4);
        check_attention(c, &w, text, by);
    }
    forget(c, &w);
}

/* Which kernel prefill tiles have: of compute capability 9.0 that with wgmma, but for 32 dims. */
static void check_prefill_rows(check *c)
{
    static const uint32_t computes[] = {80, 89, 90, 100, 120}, dims[] = {32, 64, 96, 128, 256};
    float due[25], got[25];
    for (uint32_t i = 0; i < 25; i++) {
        due[i] = computes[i / 5] == 90 && i % 5 != 0 ? GPU_WIDE_ROWS : GPU_PREFILL_ROWS;
        got[i] = (float)gpu_prefill_rows(computes[i / 5], dims[i % 5]);
    }
    check_row(c, "rows of prefill tiles, by compute capability", due, got, 25, 0.0);
}

/* Rows of a step from 1 to 300, tiles that end within a warpgroup, tables that end within a stage,
 * and more stages than are kept. */
void check_wide(check *c)
{
    static const shape shapes[] = {
        {GPU_KV_BF16, 128, 2, 4, 16, 0, 3, {70, 5, 200}, {70, 5, 3}, 0, 0},
        {GPU_KV_BF16, 64, 1, 4, 16, 0, 4, {129, 1, 65, 520}, {33, 1, 17, 2}, 0, 0},
        {GPU_KV_BF16, 128, 1, 1, 128, 0, 3, {300, 128, 67}, {300, 1, 66}, 0, 0},
        {GPU_KV_BF16, 64, 1, 8, 128, 0, 3, {70, 257, 16}, {31, 17, 16}, 0, 0},
        {GPU_KV_BF16, 128, 1, 8, 16, 70, 2, {330, 64}, {20, 64}, 0, 0},
        {GPU_KV_BF16, 64, 2, 1, 48, 100, 3, {420, 150, 33}, {7, 140, 33}, 0, 0},
        {GPU_KV_BF16, 96, 2, 4, 32, 0, 3, {200, 5, 330}, {70, 5, 3}, 0, 0},
        {GPU_KV_BF16, 256, 1, 4, 16, 0, 3, {290, 37, 129}, {40, 37, 1}, 0, 0},
        {GPU_KV_F16, 64, 2, 2, 64, 0, 2, {330, 100}, {70, 9}, 0, 0},
        {GPU_KV_F16, 96, 1, 3, 16, 90, 2, {300, 64}, {50, 64}, 0, 0},
        {GPU_KV_F16, 128, 2, 4, 16, 0, 3, {70, 5, 331}, {70, 5, 3}, 0, 0},
        {GPU_KV_F16, 256, 2, 1, 48, 100, 2, {420, 33}, {140, 33}, 0, 0},
        {GPU_KV_E4M3, 64, 2, 4, 16, 0, 3, {129, 1, 520}, {33, 1, 2}, 0, 0},
        {GPU_KV_E4M3, 96, 1, 4, 48, 0, 2, {270, 65}, {40, 17}, 0, 0},
        {GPU_KV_E4M3, 128, 2, 4, 16, 0, 3, {70, 5, 331}, {70, 5, 3}, 0, 0},
        {GPU_KV_E4M3, 128, 1, 8, 128, 70, 2, {330, 64}, {20, 64}, 0, 0},
        {GPU_KV_E4M3, 256, 1, 2, 16, 0, 3, {290, 37, 129}, {80, 37, 1}, 0, 0},
        {GPU_KV_INT8, 64, 2, 1, 48, 100, 3, {420, 150, 33}, {7, 140, 33}, 0, 0},
        {GPU_KV_INT8, 96, 2, 2, 16, 0, 2, {270, 65}, {70, 17}, 0, 0},
        {GPU_KV_INT8, 128, 2, 4, 16, 0, 3, {70, 5, 331}, {70, 5, 3}, 0, 0},
        {GPU_KV_INT8, 256, 2, 2, 32, 60, 2, {290, 129}, {80, 30}, 0, 0},
    };
    static const shape large[] = {
        {GPU_KV_BF16, 128, 8, 4, 16, 0, 3, {6000, 2049, 700}, {500, 2049, 333}, 0, 0},
        {GPU_KV_BF16, 64, 4, 8, 128, 700, 3, {5000, 1500, 129}, {1100, 900, 128}, 0, 0},
        {GPU_KV_E4M3, 128, 8, 4, 16, 0, 3, {6000, 2049, 700}, {500, 2049, 333}, 0, 0},
    };
    check_prefill_rows(c);
    for (size_t i = 0; c->compute == 90 && i < sizeof shapes / sizeof *shapes; i++)
        check_wide_shape(c, &shapes[i], (uint32_t)i % 3);
    for (size_t i = 0; c->compute == 90 && !c->small && i < sizeof large / sizeof *large; i++)
        check_wide_shape(c, &large[i], (uint32_t)i % 3);
}

void check_pages(check *c)
{
    static const shape small[] = {
        {GPU_KV_BF16, 32, 4, 2, 16, 0, 4, {70, 33, 150, 64}, {1, 33, 2, 64}, false, true},
        {GPU_KV_F16, 64, 2, 4, 32, 0, 3, {129, 65, 40}, {1, 20, 40}, true, false},
        {GPU_KV_E4M3, 32, 3, 1, 48, 0, 2, {100, 97}, {1, 50}, false, false},
        {GPU_KV_BF16, 128, 1, 8, 16, 0, 2, {130, 70}, {2, 9}, false, false},
        {GPU_KV_BF16, 64, 2, 2, 16, 40, 3, {200, 130, 64}, {1, 70, 64}, false, false},
        {GPU_KV_E4M3, 128, 2, 4, 16, 0, 2, {96, 66}, {3, 5}, true, true},
        {GPU_KV_INT8, 64, 2, 4, 32, 0, 3, {129, 65, 40}, {1, 20, 40}, true, false},
        {GPU_KV_INT8, 128, 1, 2, 16, 50, 2, {130, 70}, {2, 40}, false, true},
        {GPU_KV_BF16, 96, 2, 2, 48, 0, 2, {100, 60}, {1, 40}, false, false},
        {GPU_KV_BF16, 256, 1, 4, 16, 0, 2, {100, 90}, {2, 30}, true, false},
        {GPU_KV_INT8, 256, 1, 1, 32, 0, 2, {70, 80}, {2, 30}, false, false},
        {GPU_KV_F16, 32, 1, 24, 16, 0, 2, {70, 40}, {1, 9}, false, false},
    };
    static const shape large[] = {
        {GPU_KV_BF16, 128, 8, 4, 16, 0, 4, {4096, 1000, 2049, 700}, {1, 1000, 2, 333}, 0, 0},
        {GPU_KV_F16, 128, 8, 4, 64, 0, 3, {5000, 800, 65}, {1, 100, 65}, true, true},
        {GPU_KV_E4M3, 128, 8, 8, 16, 0, 3, {3000, 513, 200}, {1, 513, 2}, false, false},
        {GPU_KV_BF16, 64, 4, 7, 256, 500, 3, {3000, 1500, 129}, {1, 900, 128}, false, true},
    };
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        check_shape(c, &small[i], (uint32_t)i % 3, 64, i % 2 == 0);
    for (size_t i = 0; !c->small && i < sizeof large / sizeof *large; i++)
        check_shape(c, &large[i], (uint32_t)i % 3, 512, true);
}
