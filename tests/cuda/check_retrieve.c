/* Selections of blocks, against the CPU's representatives, scores and selection by the same keys
 * and queries: lists and tables of pages must be equal, ties included. */
#include "kernels/cuda/cuda_retrieval.h"
#include "kernels/represent.h"
#include "paged_kv/retrieval/retrieval.h"
#include "tests/cuda/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The second of two layers. Tiles of two KV heads lie in a cell. */
enum {
    LAYERS = 2,
    HEAD_GROUPS = 2,
    TILES = 2,
    KV_HEADS = HEAD_GROUPS * TILES,
    GROUPS = LAYERS * HEAD_GROUPS,
    SEQS = 4,
    ROWS = 7,
    SHARED_PAGES = 5, /* of sequences 0 and 2: they part within a block */
    PROMPT = 60,      /* tokens; all rows are behind it */
};

static const char *const format_names[GPU_KV_FORMATS] = {"bf16", "f16", "e4m3", "int8"};

typedef struct shape {
    gpu_kv_format format;
    uint32_t dim, q_heads, page_tokens, lengths[SEQS];
} shape;

static const gpu_grain grains[SEQS] = {GPU_GRAIN_ALL, GPU_GRAIN_LAYER, GPU_GRAIN_ALL,
                                       GPU_GRAIN_HEAD};

/* A row of a check: it reads by a spec, or follows an earlier row. */
typedef struct plan {
    uint32_t seq, before; /* slots of its table behind it */
    retrieval_spec spec;
    gpu_reads reads;
    uint32_t leader, selected_at; /* FOLLOWS */
    bool zero;                    /* its query: all scores are equal */
} plan;

typedef struct world {
    const shape *s;
    uint32_t pages_of_seq, n_runs, n_cells;
    uint32_t tables[SEQS][GROUPS * 64];
    gpu_pages pages;
    gpu_tables gpu_tables;
    gpu_seq seqs[SEQS];
    uint32_t lengths[SEQS * GROUPS];
    void *d_seqs, *d_lengths;
    uint8_t *raw; /* the device's pages */
    size_t raw_bytes;
    kern_kv_shape cpu;
    size_t cpu_tile;
    uint8_t *cpu_tiles;  /* [cell, tile] */
    float *qkv, *angles; /* [ROWS, …] on the host and the device */
    float *d_qkv, *d_angles;
    size_t width;
    unsigned long long *counts;
    uint32_t *kept; /* on the device */
} world;

enum { KEPT_ROOM = 32 };

/* ---- pages ----------------------------------------------------------------------------------- */

static uint32_t tables_of(gpu_grain grain)
{
    return grain == GPU_GRAIN_ALL ? 1 : grain == GPU_GRAIN_LAYER ? LAYERS : GROUPS;
}

/* The table of a KV head in the layer, and the cell behind its pages. */
static const uint32_t *table_of(const world *w, uint32_t seq, uint32_t head, uint32_t *behind)
{
    uint32_t group = head / TILES, table = 0;
    *behind = group;
    if (grains[seq] == GPU_GRAIN_ALL) *behind += w->n_runs * HEAD_GROUPS;
    else if (grains[seq] == GPU_GRAIN_LAYER) table = 1;
    else {
        table = HEAD_GROUPS + group;
        *behind = 0;
    }
    return w->tables[seq] + table * w->pages_of_seq;
}

static void fill_tables(check *c, world *w)
{
    uint32_t *runs = check_memory(w->n_runs, sizeof *runs), next = 0;
    for (uint32_t i = 0; i < w->n_runs; i++) runs[i] = i;
    for (uint32_t i = w->n_runs; i > 1; i--) {
        uint32_t j = rng_u32(&c->random) % i, t = runs[i - 1];
        runs[i - 1] = runs[j];
        runs[j] = t;
    }
    for (uint32_t seq = 0; seq < SEQS; seq++)
        for (uint32_t p = 0; p < w->pages_of_seq; p++) {
            uint32_t run = seq == 2 && p < SHARED_PAGES ? runs[p] : runs[next++];
            for (uint32_t t = 0; t < tables_of(grains[seq]); t++) {
                uint32_t layer = grains[seq] == GPU_GRAIN_HEAD ? t / HEAD_GROUPS : t;
                uint32_t group = grains[seq] == GPU_GRAIN_HEAD ? t % HEAD_GROUPS : 0;
                w->tables[seq][t * w->pages_of_seq + p] =
                    (layer * w->n_runs + run) * HEAD_GROUPS + group;
            }
        }
    free(runs);
}

static float key_at(const world *w, const uint8_t *tile, uint32_t slot, uint32_t d)
{
    size_t at = (size_t)slot * w->s->dim + d;
    const uint16_t *wide = (const void *)tile;
    switch (w->s->format) {
    case GPU_KV_BF16: return bf16_to_f32(wide[at]);
    case GPU_KV_F16: return f16_to_f32(wide[at]);
    case GPU_KV_INT8: {
        const uint16_t *scales = (const void *)(tile + 2 * (size_t)w->s->page_tokens * w->s->dim);
        return (float)(int8_t)tile[at] * bf16_to_f32(scales[slot]);
    }
    default: {
        int e = tile[at] >> 3 & 15, m = tile[at] & 7;
        float x = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
        return tile[at] >> 7 ? -x : x;
    }
    }
}

/* Gives the CPU the keys that the device has. */
static void take_pages(check *c, world *w)
{
    float key[256], value[256] = {0};
    check_fetch(c, w->raw, w->pages.data, w->raw_bytes);
    for (size_t t = 0; t < (size_t)w->n_cells * TILES; t++)
        for (uint32_t slot = 0; slot < w->s->page_tokens; slot++) {
            for (uint32_t d = 0; d < w->s->dim; d++)
                key[d] = key_at(w, w->raw + t * w->pages.tile_bytes, slot, d);
            kern_kv_write(c->ref, &w->cpu, w->cpu_tiles + t * w->cpu_tile, slot, key, value);
        }
}

/* Random K and V. The keys of some slots are those of others, so that blocks have equal scores. */
static void fill_page(check *c, const world *w, uint8_t *tile, const uint8_t *like)
{
    const shape *s = w->s;
    size_t n = (size_t)2 * s->page_tokens * s->dim;
    uint16_t *wide = (void *)tile;
    for (size_t i = 0; i < n; i++) {
        float x = rng_normal(&c->random);
        if (s->format == GPU_KV_BF16) wide[i] = bf16_from_f32(x);
        else if (s->format == GPU_KV_F16) wide[i] = f16_from_f32(x);
        else
            tile[i] = (uint8_t)(s->format == GPU_KV_INT8 ? rng_u32(&c->random)
                                                         : rng_u32(&c->random) & 0xbf);
    }
    uint16_t *scales = (void *)(tile + n);
    for (uint32_t i = 0; s->format == GPU_KV_INT8 && i < 2 * s->page_tokens; i++)
        scales[i] = bf16_from_f32(0.01f + 0.001f * (float)(rng_u32(&c->random) % 16));
    if (like) memcpy(tile, like, w->pages.tile_bytes);
}

static void fill_pages(check *c, world *w)
{
    size_t tiles = (size_t)w->n_cells * TILES, bytes = w->pages.tile_bytes;
    for (size_t t = 0; t < tiles; t++)
        fill_page(c, w, w->raw + t * bytes, t >= 64 && t % 3 == 0 ? w->raw + t % 6 * bytes : NULL);
    /* A key that is no number: its block is read last of all. */
    uint16_t nan = 0x7fff;
    uint32_t behind;
    const uint32_t *table = table_of(w, 1, 1, &behind);
    if (w->s->format <= GPU_KV_F16)
        memcpy(w->raw + ((size_t)(table[3] + behind) * TILES + 1) * bytes, &nan, sizeof nan);
    check_ok(c, c->api->copy_in(c->g, w->pages.data, w->raw, w->raw_bytes));
    check_ok(c, c->api->wait(c->g));
}

static void make_world(check *c, const shape *s, world *w)
{
    *w = (world){.s = s, .width = (size_t)(s->q_heads + 2) * KV_HEADS * s->dim};
    uint32_t longest = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        if (s->lengths[i] > longest) longest = s->lengths[i];
        w->seqs[i] = (gpu_seq){i * GROUPS, 0, 1, i * GROUPS, grains[i]};
        for (uint32_t t = 0; t < GROUPS; t++) w->lengths[i * GROUPS + t] = s->lengths[i];
    }
    w->pages_of_seq = (longest + s->page_tokens - 1) / s->page_tokens;
    w->n_runs = SEQS * w->pages_of_seq;
    w->n_cells = w->n_runs * GROUPS;
    size_t tile = gpu_tile_bytes(s->format, s->page_tokens, s->dim), n = w->n_cells * TILES;
    w->pages = (gpu_pages){.tile_bytes = tile,
                           .page_bytes = tile * TILES,
                           .page_tokens = s->page_tokens,
                           .head_dim = s->dim,
                           .n_tiles = TILES,
                           .format = s->format,
                           .layer_groups = LAYERS,
                           .run_heads = HEAD_GROUPS,
                           .layer_stride = w->n_runs * HEAD_GROUPS};
    w->raw_bytes = n * tile;
    w->raw = check_memory(w->raw_bytes, 1);
    w->pages.data = check_device(c, NULL, w->raw_bytes);
    w->pages.marks = check_device(c, NULL, n * sizeof *w->pages.marks);
    w->pages.vectors = check_device(c, NULL, n * 2 * s->dim * sizeof *w->pages.vectors);
    w->cpu = (kern_kv_shape){KERN_KV_F32, s->page_tokens, s->dim};
    w->cpu_tile = kern_kv_tile_bytes(&w->cpu);
    w->cpu_tiles = check_memory(n, w->cpu_tile);
    fill_tables(c, w);
    uint32_t *all = check_memory((size_t)SEQS * GROUPS * w->pages_of_seq, sizeof *all);
    for (uint32_t i = 0; i < SEQS; i++)
        memcpy(all + (size_t)i * GROUPS * w->pages_of_seq, w->tables[i],
               (size_t)GROUPS * w->pages_of_seq * sizeof *all);
    w->gpu_tables = (gpu_tables){
        .pages = check_device(c, all, (size_t)SEQS * GROUPS * w->pages_of_seq * sizeof *all),
        .row = w->pages_of_seq,
        .head_groups = HEAD_GROUPS};
    free(all);
    fill_pages(c, w);
    w->d_seqs = check_device(c, w->seqs, sizeof w->seqs);
    w->d_lengths = check_device(c, w->lengths, sizeof w->lengths);
    w->qkv = check_memory(ROWS * w->width, sizeof *w->qkv);
    w->angles = check_memory((size_t)ROWS * s->dim, sizeof *w->angles);
    for (uint32_t i = 0; i < ROWS * s->dim; i++)
        w->angles[i] = i % s->dim < s->dim / 2 ? 1.0f : 0.0f; /* rotates by nothing */
    w->d_angles = check_device(c, w->angles, (size_t)ROWS * s->dim * sizeof *w->angles);
    w->d_qkv = check_device(c, NULL, ROWS * w->width * sizeof *w->qkv);
    w->counts = check_device(c, NULL, 2 * sizeof *w->counts);
    w->kept = check_device(c, NULL, (size_t)LAYERS * KV_HEADS * KEPT_ROOM * sizeof *w->kept);
}

static void forget_world(check *c, world *w)
{
    void *device[] = {w->pages.data, w->pages.marks, w->pages.vectors, w->gpu_tables.pages,
                      w->d_seqs,     w->d_lengths,   w->d_qkv,         w->d_angles,
                      w->counts,     w->kept};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
    free(w->raw), free(w->cpu_tiles), free(w->qkv), free(w->angles);
}

/* ---- the CPU's lists ------------------------------------------------------------------------- */

typedef struct list {
    uint32_t n, blocks[256];
} list;

/* The scores of a row's candidates in a KV head. */
static void score_head(check *c, const world *w, const plan *p, uint32_t row, uint32_t head,
                       const retrieval_extent *e, float *out)
{
    const shape *s = w->s;
    uint32_t behind, in_block = p->spec.block_tokens / s->page_tokens, n = e->end - e->first;
    const uint32_t *table = table_of(w, p->seq, head, &behind);
    uint32_t *pages = check_memory((size_t)n * in_block, sizeof *pages);
    uint16_t *vectors = check_memory((size_t)w->n_cells * 2 * s->dim, sizeof *vectors);
    kern_represent_item *items = check_memory(n, sizeof *items);
    uint64_t slots[RETRIEVAL_BLOCK_MOST / 64];
    retrieval_representative r = p->spec.representative;
    for (uint32_t i = 0; i < n * in_block; i++) pages[i] = table[e->first * in_block + i] + behind;
    retrieval_fixed_slots(&p->spec, slots);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t *at = vectors + (size_t)pages[i * in_block] * 2 * s->dim;
        items[i] = (kern_represent_item){.pages = pages + (size_t)i * in_block,
                                         .tiles = w->cpu_tiles + head % TILES * w->cpu_tile,
                                         .slots = r == RETRIEVAL_FIX ? slots : NULL,
                                         .out = at,
                                         .smallest = at + s->dim};
    }
    kern_represent_batch made = {.shape = w->cpu,
                                 .kind = r == RETRIEVAL_QUEST ? KERN_REPRESENT_BOX
                                         : r == RETRIEVAL_MAX ? KERN_REPRESENT_MAX
                                                              : KERN_REPRESENT_SUM,
                                 .page_stride = TILES * w->cpu_tile,
                                 .n_pages = in_block,
                                 .items = items,
                                 .n_items = n};
    if (!status_ok(kern_represent(c->ref, &made))) abort();
    kern_score_item scored = {.q = w->qkv + row * w->width + (size_t)head * s->q_heads * s->dim,
                              .pages = pages,
                              .vectors = vectors,
                              .smallest = r == RETRIEVAL_QUEST ? vectors + s->dim : NULL,
                              .scores = out};
    kern_score_batch batch = {.head_dim = s->dim,
                              .q_heads = s->q_heads,
                              .block_pages = in_block,
                              .n_blocks = n,
                              .stride = (size_t)2 * s->dim,
                              .items = &scored,
                              .n_items = 1};
    kern_score_blocks(c->ref, &batch);
    free(pages), free(vectors), free(items);
}

static uint32_t together_of(const retrieval_spec *s)
{
    return s->heads == RETRIEVAL_SHARED ? KV_HEADS : s->group_heads;
}

static list select_on_cpu(check *c, const world *w, const plan *p, uint32_t row, uint32_t run)
{
    uint32_t n_slots = w->s->lengths[p->seq] - p->before, together = together_of(&p->spec);
    retrieval_extent e = retrieval_extent_of(&p->spec, PROMPT, n_slots);
    float *scores = check_memory((size_t)together * e.n_blocks, sizeof *scores);
    uint32_t *keys = check_memory(e.n_blocks, sizeof *keys);
    const float *of_head[KV_HEADS];
    for (uint32_t h = 0; h < together; h++) {
        of_head[h] = scores + (size_t)h * e.n_blocks;
        if (!retrieval_reads_all(&e))
            score_head(c, w, p, row, run * together + h, &e, scores + (size_t)h * e.n_blocks);
    }
    retrieval_query query = {
        .n_slots = n_slots, .n_prompt = PROMPT, .scores = of_head, .n_heads = together};
    list out;
    out.n = retrieval_select(&p->spec, &query, keys, out.blocks);
    free(scores), free(keys);
    return out;
}

/* ---- both ------------------------------------------------------------------------------------ */

static gpu_sparse_row row_of(const world *w, const plan *p, uint32_t row)
{
    const retrieval_spec *s = &p->spec;
    uint32_t size = s->block_tokens, n_slots = w->s->lengths[p->seq] - p->before;
    uint32_t selected_at = p->reads == GPU_FOLLOWS ? p->selected_at : n_slots;
    retrieval_extent e = retrieval_extent_of(s, PROMPT, selected_at);
    bool all = retrieval_reads_all(&e);
    gpu_sparse_row out = {
        .seq = p->seq,
        .row = row,
        .n_slots = n_slots,
        .block_pages = size / w->s->page_tokens,
        .together = together_of(s),
        .kind = s->representative == RETRIEVAL_QUEST ? GPU_REPRESENT_BOX
                : s->representative == RETRIEVAL_MAX ? GPU_REPRESENT_MAX
                                                     : GPU_REPRESENT_SUM,
        .n_keys = s->representative == RETRIEVAL_FIX ? s->representative_num : 0,
        .made_of = 1 + (uint32_t)s->representative + size / w->s->page_tokens * 16,
        .first = e.first,
        .end = all ? e.first : e.end,
        .top = e.top,
        .leader = p->reads == GPU_FOLLOWS ? p->leader : GPU_NO_ROW,
        .n_leader = all ? e.n_blocks : e.n_blocks - (e.end - e.first) + e.top,
        .added = (selected_at + size - 1) / size,
        .kept = w->kept,
        .kept_room = KEPT_ROOM,
        .keeps = p->reads == GPU_SELECTS && row == 0,
    };
    out.n_list = out.n_leader + (n_slots + size - 1) / size - out.added;
    out.room = out.n_list + 1;
    return out;
}

/* The tables of a row's pages: those of the CPU's lists, and the GPU's. */
static void compare_row(check *c, const world *w, const plan *p, const list *lists,
                        const uint32_t *pages, const uint32_t *lengths, const char *name)
{
    uint32_t n_slots = w->s->lengths[p->seq] - p->before;
    uint32_t n_all = (n_slots + w->s->page_tokens - 1) / w->s->page_tokens;
    float due[KV_HEADS * 65], got[KV_HEADS * 65];
    memset(due, 0, sizeof due);
    memset(got, 0, sizeof got);
    for (uint32_t head = 0; head < KV_HEADS; head++) {
        uint32_t behind, out[64], slots = n_slots, cells[64];
        const uint32_t *table = table_of(w, p->seq, head, &behind);
        const list *l = &lists[head / together_of(&p->spec)];
        for (uint32_t i = 0; i < n_all; i++) cells[i] = out[i] = table[i] + behind;
        if (p->reads != GPU_READS_ALL)
            slots =
                retrieval_gather(&p->spec, w->s->page_tokens, n_slots, cells, l->blocks, l->n, out);
        due[head * 65] = (float)slots;
        got[head * 65] = (float)lengths[head];
        for (uint32_t i = 0; i < (slots + w->s->page_tokens - 1) / w->s->page_tokens; i++) {
            due[head * 65 + 1 + i] = (float)out[i];
            got[head * 65 + 1 + i] = (float)pages[head * w->pages_of_seq + i];
        }
    }
    check_row(c, name, due, got, sizeof due / sizeof *due, 0.0);
}

/* The launch's arrays on the device. */
typedef struct arrays {
    void *rows, *reads, *folded, *scores, *unmade, *blocks, *pages, *lengths;
} arrays;

static void run_gpu(check *c, world *w, const plan *plans, uint32_t n, gpu_sparse_row *rows,
                    uint32_t *pages, uint32_t *lengths)
{
    uint8_t reads[ROWS];
    gpu_retrieval job = {.pages = w->pages,
                         .tables = w->gpu_tables,
                         .layer = {.layer_group = 1, .heads_per_group = TILES},
                         .seqs = w->d_seqs,
                         .lengths = w->d_lengths,
                         .gathers = true,
                         .n_rows = n,
                         .kv_heads = KV_HEADS,
                         .q_heads = w->s->q_heads,
                         .number = 1,
                         .qkv = w->d_qkv,
                         .angles = w->d_angles,
                         .counts = w->counts,
                         .page_stride = w->pages_of_seq};
    size_t scores = 0, blocks = 0;
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = row_of(w, &plans[i], i);
        reads[i] = (uint8_t)plans[i].reads;
        uint32_t candidates = rows[i].end - rows[i].first;
        rows[i].first_score = (uint32_t)scores;
        rows[i].first_list = (uint32_t)blocks;
        scores += (size_t)candidates * KV_HEADS;
        blocks += (size_t)rows[i].room * (KV_HEADS / rows[i].together);
        if (candidates > job.most_candidates) job.most_candidates = candidates;
        job.selects |= plans[i].reads == GPU_SELECTS;
        job.follows |= plans[i].reads == GPU_FOLLOWS;
        for (size_t k = 0; k < w->width; k++)
            w->qkv[i * w->width + k] = plans[i].zero ? 0.0f : rng_normal(&c->random);
    }
    check_ok(c, c->api->copy_in(c->g, w->d_qkv, w->qkv, n * w->width * sizeof *w->qkv));
    arrays d = {.rows = check_device(c, rows, n * sizeof *rows),
                .reads = check_device(c, reads, n),
                .folded = check_output(c, (size_t)n * KV_HEADS * 2 * w->s->dim * 4),
                .scores = check_output(c, scores * 4 + 4),
                .unmade = check_output(c, scores * sizeof(gpu_unmade) + 8),
                .blocks = check_output(c, blocks * 4),
                .pages = check_output(c, (size_t)n * KV_HEADS * w->pages_of_seq * 4),
                .lengths = check_output(c, (size_t)n * KV_HEADS * 4)};
    job.rows = d.rows, job.reads = d.reads, job.folded = d.folded, job.scores = d.scores;
    job.unmade = d.unmade, job.blocks = d.blocks, job.pages_of = d.pages,
    job.lengths_of = d.lengths;
    check_ok(c, c->api->retrieve(c->g, &job));
    check_fetch(c, pages, d.pages, (size_t)n * KV_HEADS * w->pages_of_seq * 4);
    check_fetch(c, lengths, d.lengths, (size_t)n * KV_HEADS * 4);
    void *device[] = {d.rows, d.reads, d.folded, d.scores, d.unmade, d.blocks, d.pages, d.lengths};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
}

/* kept: the lists of plans[0] of an earlier call, which rows without a leader follow. */
static void compare(check *c, world *w, const plan *plans, uint32_t n, list *kept, const char *when)
{
    gpu_sparse_row rows[ROWS];
    list lists[ROWS][KV_HEADS];
    size_t of_row = (size_t)KV_HEADS * w->pages_of_seq;
    uint32_t *pages = check_memory(n * of_row, 4), *lengths = check_memory(n * KV_HEADS, 4);
    run_gpu(c, w, plans, n, rows, pages, lengths);
    for (uint32_t i = 0; i < n; i++) {
        const plan *p = &plans[i];
        char name[96];
        for (uint32_t run = 0; run < KV_HEADS / together_of(&p->spec); run++) {
            if (p->reads == GPU_SELECTS) lists[i][run] = select_on_cpu(c, w, p, i, run);
            if (p->reads == GPU_FOLLOWS) {
                lists[i][run] = p->leader == GPU_NO_ROW ? kept[run] : lists[p->leader][run];
                lists[i][run].n =
                    retrieval_follow(&p->spec, p->selected_at, w->s->lengths[p->seq] - p->before,
                                     lists[i][run].blocks, lists[i][run].n);
            }
        }
        if (i == 0 && p->reads == GPU_SELECTS) memcpy(kept, lists[0], sizeof lists[0]);
        snprintf(name, sizeof name, "blocks read, %s, %u dims, %s, row %u",
                 format_names[w->s->format], w->s->dim, when, i);
        compare_row(c, w, p, lists[i], pages + i * of_row, lengths + i * KV_HEADS, name);
    }
    free(pages), free(lengths);
}

static unsigned long long count_made(check *c, const world *w)
{
    unsigned long long counts[2];
    check_fetch(c, counts, w->counts, sizeof counts);
    return counts[0];
}

static retrieval_spec spec_of(retrieval_representative r, retrieval_heads heads,
                              uint32_t block_tokens, uint32_t top)
{
    return (retrieval_spec){.block_tokens = block_tokens,
                            .representative = r,
                            .representative_num = r == RETRIEVAL_FIX ? 5 : 1,
                            .heads = heads,
                            .group_heads = heads == RETRIEVAL_GROUP ? 2 : 1,
                            .initial_tokens = 1,
                            .local_tokens = 20,
                            .top_blocks = top,
                            .layer_step = 1,
                            .token_step = 1};
}

/* Changes keys behind the marks: by moves, then by rows that are written again. */
static void change_pages(check *c, world *w, list *kept, const plan *plans)
{
    uint32_t behind;
    const uint32_t *table = table_of(w, 1, 0, &behind);
    gpu_move moves[] = {{table[2], table[4], 1, 0, w->s->page_tokens - 1, 0}};
    gpu_chain chain = {0, 1};
    void *d_moves = check_device(c, moves, sizeof moves);
    void *d_chain = check_device(c, &chain, sizeof chain);
    compare(c, w, plans, ROWS, kept, "back"); /* other rows have made others' representatives */
    check_ok(c, c->api->move(c->g, &w->pages, GPU_GRAIN_LAYER, d_moves, d_chain, 1, NULL));
    take_pages(c, w);
    unsigned long long made = count_made(c, w);
    compare(c, w, plans, ROWS, kept, "moved");
    /* The block that was moved to, and the one that is made in every call. */
    float due = 2 * KV_HEADS, got = (float)(count_made(c, w) - made);
    check_row(c, "representatives made behind a move", &due, &got, 1, 0.0);
    /* The last rows of each sequence, those that are candidates among them. */
    gpu_seq seqs[SEQS];
    memcpy(seqs, w->seqs, sizeof seqs);
    for (uint32_t i = 0; i < SEQS; i++) {
        seqs[i].n_rows = w->s->lengths[i] - w->s->page_tokens * SHARED_PAGES;
        for (uint32_t head = 0; head < KV_HEADS; head++) {
            table = table_of(w, i, head, &behind);
            for (uint32_t p = SHARED_PAGES; p < w->pages_of_seq; p++) {
                size_t tile = (size_t)(table[p] + behind) * TILES + head % TILES;
                fill_page(c, w, w->raw + tile * w->pages.tile_bytes, NULL);
            }
        }
    }
    check_ok(c, c->api->copy_in(c->g, w->pages.data, w->raw, w->raw_bytes));
    check_ok(c, c->api->wait(c->g));
    void *d_seqs = check_device(c, seqs, sizeof seqs);
    check_ok(c, c->api->unmark(c->g, &w->pages, &w->gpu_tables, d_seqs, SEQS, w->d_lengths));
    take_pages(c, w);
    compare(c, w, plans, ROWS, kept, "written");
    void *device[] = {d_moves, d_chain, d_seqs};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
}

static void check_shape(check *c, const shape *s)
{
    world w;
    list kept[KV_HEADS];
    uint32_t page = s->page_tokens, first = s->lengths[0];
    make_world(c, s, &w);
    take_pages(c, &w);
    const retrieval_spec mean = spec_of(RETRIEVAL_MEAN, RETRIEVAL_GROUP, 2 * page, 2);
    const plan plans[ROWS] = {
        {0, page + 3, mean, GPU_SELECTS, 0, 0, false},
        {0, 1, mean, GPU_FOLLOWS, 0, first - page - 3, false},
        {2, 0, mean, GPU_SELECTS, 0, 0, false}, /* its third block begins like row 0's */
        {1, 0, spec_of(RETRIEVAL_QUEST, RETRIEVAL_SEPARATE, page, 3), GPU_SELECTS, 0, 0, false},
        {3, 0, spec_of(RETRIEVAL_MAX, RETRIEVAL_SHARED, page, 4), GPU_SELECTS, 0, 0, false},
        {2, 2, spec_of(RETRIEVAL_FIX, RETRIEVAL_SEPARATE, page, 2), GPU_READS_ALL, 0, 0, false},
        {3, 1, spec_of(RETRIEVAL_MAX, RETRIEVAL_SEPARATE, page, 100), GPU_SELECTS, 0, 0, false},
    };
    compare(c, &w, plans, ROWS, kept, "first");
    unsigned long long made = count_made(c, &w);
    compare(c, &w, plans, ROWS, kept, "again");
    /* Only the block that two sequences want in different ways is made again. */
    float due = KV_HEADS, got = (float)(count_made(c, &w) - made);
    check_row(c, "representatives made again", &due, &got, 1, 0.0);
    const plan others[] = {
        {0, page, mean, GPU_FOLLOWS, GPU_NO_ROW, first - page - 3, false},
        {2, 0, spec_of(RETRIEVAL_FIX, RETRIEVAL_SEPARATE, page, 2), GPU_SELECTS, 0, 0, false},
        {1, 1, spec_of(RETRIEVAL_QUEST, RETRIEVAL_SHARED, 2 * page, 1), GPU_SELECTS, 0, 0, false},
        {3, 2, spec_of(RETRIEVAL_MEAN, RETRIEVAL_SHARED, page, 3), GPU_SELECTS, 0, 0, true},
    };
    compare(c, &w, others, 4, kept, "other");
    change_pages(c, &w, kept, plans);
    forget_world(c, &w);
}

/* ---- the prompt's end ------------------------------------------------------------------------ */

/* Unpacks bits of words of `bits` bits from index `first` on. */
static void unpack(const void *words, size_t bits, size_t first, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++) {
        size_t at = first + i;
        uint64_t word =
            bits == 64 ? ((const uint64_t *)words)[at / 64] : ((const uint32_t *)words)[at / 32];
        out[i] = (float)(word >> at % bits & 1);
    }
}

/* The masses of a prompt's slots choose blocks and keys, which must be the CPU's. */
static void check_observed(check *c, uint32_t n_prompt, uint32_t size, uint32_t together)
{
    retrieval_spec spec = spec_of(RETRIEVAL_DYNAMIC, RETRIEVAL_GROUP, size, 2);
    spec.representative_num = 5;
    spec.preselect_blocks = 3;
    uint32_t n = n_prompt / size, lists = KV_HEADS / together, keys[64];
    uint32_t words = (n + 31) / 32, of_block = (size + 31) / 32;
    float *mass = check_memory((size_t)KV_HEADS * n_prompt, sizeof *mass);
    check_fill(c, mass, (size_t)KV_HEADS * n_prompt);
    for (uint32_t i = 0; i < KV_HEADS * n_prompt; i++) /* many ties, and a block of no numbers */
        mass[i] = i < size && together == 1 ? NAN : (float)(int)(4 * mass[i] * mass[i]);
    retrieval_spec plain = spec;
    plain.preselect_blocks = 0;
    retrieval_extent e = retrieval_extent_of(&plain, n_prompt, n_prompt);
    uint32_t *left_out = check_memory((size_t)2 * lists * words, 4);
    uint32_t *chosen = check_memory((size_t)2 * KV_HEADS * n * of_block, 4);
    gpu_observed o = {
        .mass = check_device(c, mass, (size_t)KV_HEADS * n_prompt * 4),
        .n_prompt = n_prompt,
        .block_tokens = size,
        .kv_heads = KV_HEADS,
        .together = together,
        .number = 1,
        .first = e.first,
        .end = e.end,
        .n_left = spec.preselect_blocks,
        .left_out = check_output(c, (size_t)2 * lists * words * 4),
        .n_chosen = spec.representative_num,
        .chosen = check_output(c, (size_t)2 * KV_HEADS * n * of_block * 4),
        .pooled = check_output(c, (size_t)KV_HEADS * n * 4),
        .keys = check_output(c, (size_t)KV_HEADS * n_prompt * 4),
    };
    check_ok(c, c->api->observe(c->g, &o));
    check_fetch(c, left_out, o.left_out, (size_t)2 * lists * words * 4);
    check_fetch(c, chosen, o.chosen, (size_t)2 * KV_HEADS * n * of_block * 4);
    float *due = check_memory((size_t)KV_HEADS * (n + n_prompt), sizeof *due), *to = due;
    float *got = check_memory((size_t)KV_HEADS * (n + n_prompt), sizeof *got), *at = got;
    float *pooled = check_memory((size_t)KV_HEADS * n, sizeof *pooled);
    const float *of_head[KV_HEADS];
    uint64_t bits[RETRIEVAL_BLOCK_MOST / 64];
    for (uint32_t h = 0; h < KV_HEADS; h++) {
        of_head[h] = pooled + (size_t)h * n;
        retrieval_pool_mass(&spec, n_prompt, mass + (size_t)h * n_prompt, pooled + (size_t)h * n);
        for (uint32_t b = 0; b < n; b++, to += size, at += size) {
            size_t word = ((size_t)(KV_HEADS + h) * n + b) * of_block;
            retrieval_dynamic_slots(&spec, mass + (size_t)h * n_prompt + b * size, bits);
            unpack(bits, 64, 0, size, to);
            unpack(chosen, 32, word * 32, size, at);
        }
    }
    for (uint32_t run = 0; run < lists; run++, to += n, at += n) {
        retrieval_preselect(&spec, n_prompt, of_head + (size_t)run * together, together, keys,
                            bits);
        unpack(bits, 64, 0, n, to);
        unpack(left_out, 32, (size_t)(lists + run) * words * 32, n, at);
    }
    char name[96];
    snprintf(name, sizeof name, "the prompt's end, %u tokens in blocks of %u", n_prompt, size);
    check_row(c, name, due, got, (size_t)(to - due), 0.0);
    const void *device[] = {o.mass, o.left_out, o.chosen, o.pooled, o.keys};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        c->api->release(c->g, (void *)(uintptr_t)device[i]);
    free(mass), free(left_out), free(chosen), free(due), free(got), free(pooled);
}

void check_retrieve(check *c)
{
    check_observed(c, 330, 16, 1);
    check_observed(c, 331, 48, 2);
    check_observed(c, 1500, 128, 4);
    static const shape small[] = {
        {GPU_KV_BF16, 32, 2, 16, {202, 150, 190, 171}},
        {GPU_KV_F16, 96, 1, 16, {202, 150, 190, 171}},
        {GPU_KV_E4M3, 64, 3, 32, {394, 290, 401, 300}},
        {GPU_KV_INT8, 128, 2, 16, {202, 150, 190, 171}},
        {GPU_KV_BF16, 256, 1, 16, {202, 150, 190, 171}},
    };
    static const shape large[] = {
        {GPU_KV_BF16, 128, 4, 48, {2900, 2500, 2801, 3000}},
        {GPU_KV_INT8, 128, 8, 64, {2900, 2500, 2801, 3000}},
    };
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) check_shape(c, &small[i]);
    for (size_t i = 0; !c->small && i < sizeof large / sizeof *large; i++)
        check_shape(c, &large[i]);
}
