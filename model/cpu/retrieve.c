#include "model/cpu/retrieve.h"

#include "kernels/represent.h"
#include "model/cpu/exam.h"
#include "model/cpu/kv_hold.h"
#include "model/cpu/retrieve_observe.h"
#include "model/cpu/retrieve_ranks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A row that reads by retrieval. */
typedef struct sparse_row {
    const forward_seq *seq;
    uint32_t row;         /* of the step */
    uint32_t n_slots;     /* that it sees in every table */
    uint32_t together;    /* KV heads that share a selection, of all ranks */
    uint32_t first_list;  /* its lists, one for each run of `together` heads */
    uint32_t n_lists;     /* runs of which this rank has a head */
    size_t first_block;   /* where they begin in `blocks`, most_blocks each */
    uint32_t most_blocks; /* of one list */
    size_t first_page;    /* its gathered pages in `pages`, most_pages for each KV head */
    uint32_t most_pages;
    uint32_t behind;    /* rows since the one whose selection it reads by: 0 = it selects */
    uint32_t in_step;   /* sparse rows of the share before it */
    uint32_t query;     /* its number among the rows that select in the layer */
    size_t first_score; /* its scores [heads of this rank, candidates] among those gathered */
} sparse_row;

typedef struct block_list {
    uint32_t first; /* KV head of the model */
    uint32_t n;     /* blocks that the row reads, in the layer that selected last */
    double missed;  /* of a selection with an exam */
} block_list;

/* The candidates of the row in hand, in one layer and head. */
typedef struct candidates {
    const uint32_t *pages; /* [n blocks, pages of a block] */
    const uint8_t *tiles;
    uint64_t *marks;
    uint16_t *vectors, *smallest; /* smallest: NULL where blocks have no boxes */
    const uint64_t *left_out;     /* bits of the prompt's blocks; NULL: none is left out */
    const uint64_t *slots;        /* DYNAMIC: those chosen in the prompt's blocks; else NULL */
    uint32_t n_missing;           /* blocks without the row's representative */
} candidates;

/* Memory that grows to the largest need seen. */
typedef struct room {
    void *data;
    size_t bytes;
} room;

struct retrieve {
    forward_options o;
    uint32_t q_heads, qkv_width;
    /* The rows of a step and the blocks they read. */
    room rows, lists, blocks, pages, tiles;
    uint32_t n_rows, n_lists;
    /* Scratch of a selection: the row in hand has n_blocks candidates in each head. */
    room candidates;    /* candidates [n_heads] */
    uint32_t all_heads; /* query heads of a KV head, of all ranks that copy it */
    room score_items;   /* kern_score_item [scored heads]: KV heads; for an exam query heads */
    room scores, keys;  /* [scored heads, n_blocks] f32, [lists, n_blocks] uint32_t */
    room head_scores;   /* const float *, of each KV head of the model; for an exam of each query
                           head of this rank's KV heads, or of the model's where lists cross ranks */
    room items, listed; /* kern_represent_item, block_at: blocks without a representative */
    uint32_t n_items, n_blocks, block_pages;
    uint32_t first_block, n_known; /* number of the first candidate, of the prompt's blocks */
    uint64_t wanted;               /* the row's mark without its number */
    uint64_t dynamic;              /* the mark of the prompt's blocks with DYNAMIC; else 0 */
    uint64_t fixed_slots[RETRIEVAL_BLOCK_MOST / 64];
    uint32_t layer;
    const float *qkv;
    const forward_seq *seqs; /* the step's [n_seqs] */
    uint32_t n_seqs;
    retrieve_observer observer;
    retrieve_notes *notes;
    exam *exam;
    retrieve_ranks ranks;
    retrieve_gather gathered; /* scores, where selections cross ranks */
    room selecting;           /* uint32_t: the rows of the step that select in the layer */
};

static bool reserve(room *r, size_t n, size_t size)
{
    if (n <= r->bytes / size) return true;
    void *grown = alloc_resize(NULL, r->data, n, size);
    if (!grown) return false;
    r->data = grown;
    r->bytes = n * size;
    return true;
}

static status no_memory(void) { return status_make(STATUS_NO_MEMORY, "retrieval"); }

status retrieve_create(const forward_options *options, uint32_t q_heads, uint32_t qkv_width,
                       retrieve **out)
{
    retrieve *r = calloc(1, sizeof *r);
    if (!r) return no_memory();
    r->o = *options;
    r->q_heads = q_heads;
    r->qkv_width = qkv_width;
    r->ranks = retrieve_ranks_of(options->group, options->store, q_heads);
    status s = retrieve_notes_create(options->config->n_layers, &r->notes);
    r->all_heads = q_heads * r->ranks.copies;
    if (status_ok(s)) s = exam_create(options, &r->ranks, r->all_heads, &r->exam);
    if (status_ok(s)) *out = r;
    else retrieve_destroy(r);
    return s;
}

void retrieve_destroy(retrieve *r)
{
    if (!r) return;
    free(r->rows.data);
    free(r->lists.data);
    free(r->blocks.data);
    free(r->pages.data);
    free(r->tiles.data);
    free(r->candidates.data);
    free(r->score_items.data);
    free(r->scores.data);
    free(r->keys.data);
    free(r->head_scores.data);
    free(r->items.data);
    free(r->listed.data);
    free(r->selecting.data);
    retrieve_ranks_free(&r->ranks);
    retrieve_gather_free(&r->gathered);
    retrieve_observe_free(&r->observer);
    retrieve_notes_destroy(r->notes);
    exam_destroy(r->exam);
    free(r);
}

uint32_t retrieve_rows(const retrieve *r) { return r->n_rows; }

uint32_t retrieve_slots(const retrieve *r, uint32_t nth)
{
    return ((const sparse_row *)r->rows.data)[nth].n_slots;
}

static pkv_table_view table_of(const retrieve *r, const forward_seq *seq, uint32_t layer,
                               uint32_t head)
{
    return pkv_mirror_table(r->o.mirror, seq->seq, kv_store_group(r->o.store, layer, head));
}

/* ---- the rows of a step ---------------------------------------------------------------------- */

static uint32_t sparse_rows_of(const forward_seq *s)
{
    return s->retrieval.block_tokens ? s->n_rows - s->dense_rows : 0;
}

/* Whether KV heads that select together lie on several ranks. */
static bool crosses_ranks(const retrieve *r, const sparse_row *row)
{
    return retrieve_ranks_cross(&r->ranks, row->together);
}

/* The number, among the row's lists, of the one that a KV head of this rank reads by. */
static uint32_t list_of_head(const retrieve *r, const sparse_row *row, uint32_t head)
{
    uint32_t first = r->o.store->first_head;
    return (first + head) / row->together - first / row->together;
}

/* All tables of such a sequence have equally many slots. */
static void add_row(retrieve *r, const forward_seq *s, uint32_t i, size_t *blocks, size_t *pages,
                    size_t *longest)
{
    const kv_store *store = r->o.store;
    const retrieval_spec *spec = &s->retrieval;
    sparse_row *row = (sparse_row *)r->rows.data + r->n_rows;
    *row = (sparse_row){.seq = s,
                        .row = s->first_row + i,
                        .n_slots = table_of(r, s, 0, 0).kept_tokens - s->n_rows + i + 1,
                        .together = retrieval_heads_together(spec, &store->geometry),
                        .first_list = r->n_lists,
                        .first_block = *blocks,
                        .first_page = *pages};
    uint32_t generated = row->n_slots - 1 - s->n_prompt;
    row->behind = generated - retrieval_token_leader(spec, generated);
    row->in_step = i - s->dense_rows;
    uint32_t all = (row->n_slots + spec->block_tokens - 1) / spec->block_tokens;
    uint32_t most = retrieval_most_blocks(spec);
    row->most_blocks = all < most ? all : most;
    row->most_pages = row->most_blocks * (spec->block_tokens / store->shape.page_tokens);
    row->n_lists = list_of_head(r, row, store->n_heads - 1) + 1;
    *blocks += (size_t)row->most_blocks * row->n_lists;
    *pages += (size_t)row->most_pages * store->n_heads;
    if (all > *longest) *longest = all;
    block_list *lists = r->lists.data;
    uint32_t head = store->first_head / row->together * row->together;
    for (uint32_t n = 0; n < row->n_lists; n++, head += row->together)
        lists[r->n_lists++] = (block_list){.first = head};
    r->n_rows++;
}

status retrieve_start(retrieve *r, const forward_seq *seqs, uint32_t n_seqs)
{
    uint32_t heads = r->o.store->n_heads;
    size_t rows = 0, blocks = 0, pages = 0, longest = 0;
    r->n_rows = r->n_lists = 0;
    r->seqs = seqs;
    r->n_seqs = n_seqs;
    for (uint32_t i = 0; i < n_seqs; i++) rows += sparse_rows_of(&seqs[i]);
    if (rows == 0) return STATUS_IS_OK;
    if (!reserve(&r->rows, rows, sizeof(sparse_row)) ||
        !reserve(&r->lists, rows * heads, sizeof(block_list)))
        return no_memory();
    for (uint32_t i = 0; i < n_seqs; i++)
        for (uint32_t n = seqs[i].n_rows - sparse_rows_of(&seqs[i]); n < seqs[i].n_rows; n++)
            add_row(r, &seqs[i], n, &blocks, &pages, &longest);
    size_t scored = (size_t)heads * r->all_heads; /* an exam has scores of each query head */
    size_t all_scored = (size_t)r->o.store->geometry.n_kv_heads * r->all_heads;
    size_t tiles = r->o.store->filling ? rows * heads * (r->o.store->residual_pages + 1) : 0;
    bool ok = reserve(&r->blocks, blocks, sizeof(uint32_t)) &&
              reserve(&r->pages, pages, sizeof(uint32_t)) &&
              reserve(&r->tiles, tiles, sizeof(uint8_t *)) &&
              reserve(&r->candidates, heads, sizeof(candidates)) &&
              reserve(&r->score_items, scored, sizeof(kern_score_item)) &&
              reserve(&r->scores, scored * longest, sizeof(float)) &&
              reserve(&r->head_scores, all_scored, sizeof(const float *)) &&
              reserve(&r->keys, heads * longest, sizeof(uint32_t));
    return ok ? STATUS_IS_OK : no_memory();
}

bool retrieve_reads_few(const retrieve *r, const forward_seq *seq, uint32_t layer)
{
    return sparse_rows_of(seq) > 0 &&
           retrieval_layer_leader(&seq->retrieval, &r->o.store->geometry, layer) != RETRIEVAL_ALL;
}

/* Whether the layer's blocks are not those of an earlier layer. */
static bool is_selecting(const retrieve *r, const sparse_row *row)
{
    return retrieval_layer_leader(&row->seq->retrieval, &r->o.store->geometry, r->layer) ==
           r->layer;
}

static bool selects_in(const retrieve *r, const sparse_row *row)
{
    return row->behind == 0 && is_selecting(r, row);
}

static uint32_t *blocks_of(const retrieve *r, const sparse_row *row, uint32_t list)
{
    return (uint32_t *)r->blocks.data + row->first_block + (size_t)list * row->most_blocks;
}

/* ---- representatives ------------------------------------------------------------------------- */

/* A mark says what a representative is made of and, from bit MARK_SPEC_BITS on, its number. All
 * tiles of its block have the same mark; a block whose pages are not all those of the
 * representative has different marks. */
enum { MARK_SPEC_BITS = 20 };
static uint64_t mark_of(retrieval_representative made, uint32_t n_keys, uint32_t block_pages)
{
    return 1 + (uint32_t)made + (n_keys << 3) + (block_pages << 10);
}
_Static_assert(1 + RETRIEVAL_REPRESENTATIVES <= 1 << 3 && RETRIEVAL_KEYS_MOST < 1 << 7 &&
                   RETRIEVAL_BLOCK_PAGES < 1 << (MARK_SPEC_BITS - 10),
               "the fields of a mark");

/* The blocks that a run of KV heads leaves out; NULL where it leaves out none. */
static const uint64_t *left_out_of(const retrieve *r, const sparse_row *row, uint32_t run)
{
    const forward_seq *s = row->seq;
    if (retrieval_left_out(&s->retrieval, s->n_prompt) == 0) return NULL;
    retrieve_bits at = retrieve_left_out_at(s, r->layer, run, row->n_lists);
    return retrieve_notes_read(r->notes, &at);
}

/* The slots of the KV head whose keys stand for the prompt's blocks; NULL where none do. */
static const uint64_t *slots_of(const retrieve *r, const sparse_row *row, uint32_t head)
{
    if (row->seq->retrieval.representative != RETRIEVAL_DYNAMIC) return NULL;
    retrieve_bits at = retrieve_slots_at(row->seq, r->layer, head, r->o.store->n_heads);
    return retrieve_notes_read(r->notes, &at);
}

/* DYNAMIC's representatives are known by the request's tag instead of a number of their own: of one
 * request a page is in one block, at one place. Its later blocks have MEAN's. */
static void set_marks(retrieve *r, const sparse_row *row)
{
    const retrieval_spec *spec = &row->seq->retrieval;
    bool dynamic = spec->representative == RETRIEVAL_DYNAMIC;
    uint64_t mark = mark_of(spec->representative, spec->representative_num, r->block_pages);
    uint64_t tag = retrieve_notes_tag_of(r->notes, row->seq->note);
    r->wanted = dynamic ? mark_of(RETRIEVAL_MEAN, 1, r->block_pages) : mark;
    r->dynamic = dynamic ? mark | tag << MARK_SPEC_BITS : 0;
}

/* Sets the row in hand and its candidates. */
static status take_row(retrieve *r, const sparse_row *row)
{
    const kv_store *store = r->o.store;
    const retrieval_spec *spec = &row->seq->retrieval;
    uint32_t n_prompt = row->seq->n_prompt;
    retrieval_extent e = retrieval_extent_of(spec, n_prompt, row->n_slots);
    bool boxes = spec->representative == RETRIEVAL_QUEST;
    candidates *all = r->candidates.data;
    r->block_pages = spec->block_tokens / store->shape.page_tokens;
    r->n_blocks = retrieval_reads_all(&e) ? 0 : e.end - e.first;
    r->first_block = e.first;
    r->n_known = n_prompt / spec->block_tokens;
    set_marks(r, row);
    for (uint32_t h = 0; h < store->n_heads; h++) {
        pkv_table_view table = table_of(r, row->seq, r->layer, h);
        all[h] = (candidates){
            .pages = table.pages + (size_t)e.first * r->block_pages,
            .tiles = kv_store_tiles(store, r->layer, h, table.offset),
            .marks = kv_store_marks(store, r->layer, h, table.offset),
            .vectors = kv_store_vectors(store, store->vectors, r->layer, h, table.offset),
            .smallest =
                boxes ? kv_store_vectors(store, store->smallest, r->layer, h, table.offset) : NULL,
            .left_out = left_out_of(r, row, list_of_head(r, row, h)),
            .slots = slots_of(r, row, h),
        };
        if (r->n_blocks > 0 && r->n_known > 0 && !all[h].slots && r->dynamic)
            return status_make(STATUS_INVALID, "plan: a row behind a prompt that was not measured");
        if (r->n_blocks > 0 && !all[h].left_out && retrieval_left_out(spec, n_prompt) > 0)
            return status_make(STATUS_INVALID,
                               "plan: a row behind a prompt that was not preselected");
    }
    return STATUS_IS_OK;
}

/* Whether keys of the candidate were chosen at the prompt's end. */
static bool is_dynamic(const retrieve *r, uint32_t block)
{
    return r->dynamic && r->first_block + block < r->n_known;
}

/* Blocks that are left out need no representative. */
static bool is_missing(const retrieve *r, const candidates *c, uint32_t block)
{
    uint32_t number = r->first_block + block;
    if (c->left_out && number < r->n_known && c->left_out[number / 64] >> number % 64 & 1)
        return false;
    const uint32_t *pages = c->pages + (size_t)block * r->block_pages;
    const size_t tiles = r->o.store->page_tiles;
    uint64_t mark = c->marks[pages[0] * tiles], differ = 0;
    for (uint32_t p = 1; p < r->block_pages; p++) differ |= c->marks[pages[p] * tiles] ^ mark;
    if (is_dynamic(r, block)) return differ || mark != r->dynamic;
    return differ || (mark & ((UINT64_C(1) << MARK_SPEC_BITS) - 1)) != r->wanted;
}

static void count_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const retrieve *r = ctx;
    for (size_t h = from; h < to; h++) {
        candidates *c = (candidates *)r->candidates.data + h;
        for (uint32_t b = 0; b < r->n_blocks; b++) c->n_missing += is_missing(r, c, b);
    }
}

/* A listed block: its tile's marks in page 0, its pages, and its mark; 0: a mark with a number. */
typedef struct block_at {
    uint64_t *marks, mark;
    const uint32_t *pages;
} block_at;

/* The slots of a candidate that its representative sums; NULL: all. */
static const uint64_t *summed_slots(const retrieve *r, const sparse_row *row, const candidates *c,
                                    uint32_t block)
{
    if (row->seq->retrieval.representative == RETRIEVAL_FIX) return r->fixed_slots;
    if (!is_dynamic(r, block)) return NULL;
    return c->slots + (r->first_block + block) * retrieve_block_words(row->seq);
}

static void list_missing(retrieve *r, const sparse_row *row, const candidates *c)
{
    const kv_store *store = r->o.store;
    kern_represent_item *items = r->items.data;
    block_at *listed = r->listed.data;
    for (uint32_t b = 0; c->n_missing > 0 && b < r->n_blocks; b++) {
        if (!is_missing(r, c, b)) continue;
        const uint32_t *pages = c->pages + (size_t)b * r->block_pages;
        size_t at = pages[0] * store->page_vectors;
        kv_hold_block(store, c->marks, pages, r->block_pages);
        listed[r->n_items] = (block_at){c->marks, is_dynamic(r, b) ? r->dynamic : 0, pages};
        items[r->n_items++] =
            (kern_represent_item){.pages = pages,
                                  .tiles = c->tiles,
                                  .slots = summed_slots(r, row, c, b),
                                  .out = c->vectors + at,
                                  .smallest = c->smallest ? c->smallest + at : NULL};
    }
}

static kern_represent_kind kind_of(const retrieval_spec *spec)
{
    if (spec->representative == RETRIEVAL_QUEST) return KERN_REPRESENT_BOX;
    return spec->representative == RETRIEVAL_MAX ? KERN_REPRESENT_MAX : KERN_REPRESENT_SUM;
}

/* Computes the listed blocks' representatives. Blocks are marked at the end, because their pages
 * may be the prefix cache's: a mark that a failure left would let other requests score by what was
 * never computed. */
static status make_listed(retrieve *r, const retrieval_spec *spec)
{
    kv_store *store = r->o.store;
    const kern_represent_batch batch = {.shape = store->shape,
                                        .kind = kind_of(spec),
                                        .page_stride = store->page_bytes,
                                        .n_pages = r->block_pages,
                                        .items = r->items.data,
                                        .n_items = r->n_items};
    RETURN_IF_ERROR(kv_hold_blocks(store));
    RETURN_IF_ERROR(kern_represent(r->o.kernels, &batch));
    const block_at *listed = r->listed.data;
    for (uint32_t i = 0; i < r->n_items; i++) {
        uint64_t mark = listed[i].mark;
        if (!mark) mark = r->wanted | ++store->representatives << MARK_SPEC_BITS;
        for (uint32_t p = 0; p < r->block_pages; p++)
            listed[i].marks[listed[i].pages[p] * store->page_tiles] = mark;
    }
    return STATUS_IS_OK;
}

/* A page that two rows want in different ways would be listed twice: rows that select go one after
 * the other. */
static status make_representatives(retrieve *r, const sparse_row *row)
{
    const kv_store *store = r->o.store;
    const retrieval_spec *spec = &row->seq->retrieval;
    const candidates *all = r->candidates.data;
    size_t n_missing = 0;
    thread_pool_for(r->o.pool, store->n_heads, 1, count_range, r);
    for (uint32_t h = 0; h < store->n_heads; h++) n_missing += all[h].n_missing;
    if (n_missing == 0) return STATUS_IS_OK;
    if (!reserve(&r->items, n_missing, sizeof(kern_represent_item)) ||
        !reserve(&r->listed, n_missing, sizeof(block_at)))
        return no_memory();
    r->n_items = 0;
    if (spec->representative == RETRIEVAL_FIX) retrieval_fixed_slots(spec, r->fixed_slots);
    for (uint32_t h = 0; h < store->n_heads; h++) list_missing(r, row, &all[h]);
    return make_listed(r, spec);
}

/* ---- selections ------------------------------------------------------------------------------ */

/* How many query heads of a KV head have scores of their own. */
static uint32_t scores_apart(const retrieve *r, const sparse_row *row)
{
    return row->seq->retrieval.epsilon > 0 ? r->all_heads : 1;
}

/* All query heads of this rank's KV heads. */
static const float *queries_of(const retrieve *r, const sparse_row *row)
{
    return r->ranks.copies > 1 ? retrieve_ranks_query(&r->ranks, row->query)
                               : r->qkv + (size_t)row->row * r->qkv_width;
}

/* Scores the row in hand by each KV head of this rank. */
static void score_row(retrieve *r, const sparse_row *row)
{
    const kv_store *store = r->o.store;
    const candidates *all = r->candidates.data;
    bool examined = row->seq->retrieval.epsilon > 0;
    const float **scores = (const float **)r->head_scores.data + (examined ? 0 : store->first_head);
    kern_score_item *items = r->score_items.data;
    uint32_t apart = scores_apart(r, row), q_heads = r->all_heads / apart;
    float *out = crosses_ranks(r, row)
                     ? retrieve_gather_own(&r->gathered, &r->ranks) + row->first_score
                     : (float *)r->scores.data;
    const float *q = queries_of(r, row);
    for (uint32_t i = 0; i < store->n_heads * apart; i++) {
        const candidates *c = &all[i / apart];
        items[i] = (kern_score_item){.q = q + (size_t)i * q_heads * store->shape.head_dim,
                                     .pages = c->pages,
                                     .vectors = c->vectors,
                                     .smallest = c->smallest,
                                     .scores = out + (size_t)i * r->n_blocks};
        scores[i] = items[i].scores;
    }
    const kern_score_batch batch = {.head_dim = store->shape.head_dim,
                                    .q_heads = q_heads,
                                    .block_pages = r->block_pages,
                                    .n_blocks = r->n_blocks,
                                    .stride = store->page_vectors,
                                    .items = items,
                                    .n_items = (size_t)store->n_heads * apart};
    kern_score_blocks(r->o.kernels, &batch);
}

typedef struct select_job {
    retrieve *r;
    const sparse_row *row;
} select_job;

static void select_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const select_job *job = ctx;
    const retrieve *r = job->r;
    const sparse_row *row = job->row;
    for (size_t i = from; i < to; i++) {
        block_list *list = (block_list *)r->lists.data + row->first_list + i;
        const retrieval_query query = {.n_slots = row->n_slots,
                                       .n_prompt = row->seq->n_prompt,
                                       .left_out = left_out_of(r, row, (uint32_t)i),
                                       .scores = (const float **)r->head_scores.data + list->first,
                                       .n_heads = row->together};
        list->n = retrieval_select(&row->seq->retrieval, &query,
                                   (uint32_t *)r->keys.data + i * r->n_blocks,
                                   blocks_of(r, row, (uint32_t)i));
        assert(list->n <= row->most_blocks);
    }
}

/* Lets an exam select the lists of a row. */
static status examine_row(retrieve *r, const sparse_row *row)
{
    const exam_row of = {.seq = row->seq,
                         .index = (uint32_t)(row->seq - r->seqs),
                         .layer = r->layer,
                         .n_slots = row->n_slots,
                         .together = row->together,
                         .q = queries_of(r, row),
                         .bounds = (const float *const *)r->head_scores.data,
                         .blocks = blocks_of(r, row, 0),
                         .n_lists = row->n_lists,
                         .stride = row->most_blocks};
    RETURN_IF_ERROR(exam_run(r->exam, &of));
    block_list *lists = (block_list *)r->lists.data + row->first_list;
    for (uint32_t i = 0; i < row->n_lists; i++) {
        exam_list list = exam_list_of(r->exam, i);
        lists[i].n = list.n;
        lists[i].missed = list.missed;
    }
    return STATUS_IS_OK;
}

static void list_blocks(retrieve *r, const sparse_row *row)
{
    select_job job = {r, row};
    thread_pool_for(r->o.pool, row->n_lists, 1, select_range, &job);
}

/* Lists the blocks of a row by its scores. */
static status list_row(retrieve *r, const sparse_row *row)
{
    if (row->seq->retrieval.epsilon > 0) return examine_row(r, row);
    list_blocks(r, row);
    return STATUS_IS_OK;
}

/* Blocks of KV heads that lie on several ranks are listed once the scores of all rows are there. */
static status select_row(retrieve *r, const sparse_row *row)
{
    RETURN_IF_ERROR(take_row(r, row));
    if (r->n_blocks > 0) {
        RETURN_IF_ERROR(make_representatives(r, row));
        score_row(r, row);
    }
    return crosses_ranks(r, row) ? STATUS_IS_OK : list_row(r, row);
}

static uint32_t candidates_of(const sparse_row *row)
{
    const forward_seq *s = row->seq;
    retrieval_extent e = retrieval_extent_of(&s->retrieval, s->n_prompt, row->n_slots);
    return retrieval_reads_all(&e) ? 0 : e.end - e.first;
}

/* Numbers the rows that select in the layer, and gathers what they need before they score. */
static status begin_layer(retrieve *r)
{
    uint32_t n = 0;
    size_t n_scores = 0;
    if (!reserve(&r->selecting, r->n_rows, sizeof(uint32_t))) return no_memory();
    for (uint32_t i = 0; i < r->n_rows; i++) {
        sparse_row *row = (sparse_row *)r->rows.data + i;
        if (!selects_in(r, row)) continue;
        row->query = n;
        row->first_score = n_scores;
        if (crosses_ranks(r, row))
            n_scores += (size_t)candidates_of(row) * r->o.store->n_heads * scores_apart(r, row);
        ((uint32_t *)r->selecting.data)[n++] = row->row;
    }
    RETURN_IF_ERROR(retrieve_gather_reserve(&r->gathered, &r->ranks, n_scores));
    if (n == 0 || r->ranks.copies == 1) return STATUS_IS_OK;
    return retrieve_ranks_queries(&r->ranks, r->qkv, r->qkv_width, r->selecting.data, n);
}

/* Points head_scores to what all ranks gathered of the row. */
static void take_gathered(retrieve *r, const sparse_row *row)
{
    const float **scores = r->head_scores.data;
    uint32_t apart = scores_apart(r, row);
    size_t n = r->n_blocks = candidates_of(row);
    for (uint32_t h = 0; h < r->o.store->geometry.n_kv_heads; h++) {
        const float *of =
            retrieve_gather_head(&r->gathered, &r->ranks, h, row->first_score, apart * n);
        for (uint32_t i = 0; i < apart; i++) *scores++ = of + i * n;
    }
}

/* Lists the blocks of rows whose selections cross ranks. */
static status end_layer(retrieve *r)
{
    RETURN_IF_ERROR(retrieve_gather_run(&r->gathered, &r->ranks));
    for (uint32_t i = 0; i < r->n_rows; i++) {
        const sparse_row *row = (const sparse_row *)r->rows.data + i;
        if (!selects_in(r, row) || !crosses_ranks(r, row)) continue;
        take_gathered(r, row);
        RETURN_IF_ERROR(list_row(r, row));
    }
    return STATUS_IS_OK;
}

/* ---- rows that follow an earlier one ------------------------------------------------------- */

static retrieve_note note_of(const retrieve *r, const sparse_row *row, uint32_t list)
{
    return (retrieve_note){.note = row->seq->note,
                           .choice = row->seq->choice,
                           .layer = r->layer,
                           .list = list,
                           .n_lists = row->n_lists,
                           .spec = &row->seq->retrieval};
}

/* Sets the row's list to that of the row that it follows, in this step or in an earlier one, and
 * the blocks that were begun since. */
static status follow_row(retrieve *r, const sparse_row *row, uint32_t i)
{
    uint32_t n, selected_at = row->n_slots - row->behind, *blocks = blocks_of(r, row, i);
    block_list *lists = r->lists.data;
    const uint32_t *from;
    if (row->behind <= row->in_step) {
        const sparse_row *leader = row - row->behind;
        from = blocks_of(r, leader, i);
        n = lists[leader->first_list + i].n;
    } else {
        retrieve_note note = note_of(r, row, i);
        from = retrieve_notes_find(r->notes, &note, selected_at, &n);
        if (!from)
            return status_make(STATUS_INVALID, "plan: a row that follows no selection of the past");
    }
    memcpy(blocks, from, n * sizeof *blocks);
    n = retrieval_follow(&row->seq->retrieval, selected_at, row->n_slots, blocks, n);
    lists[row->first_list + i].n = n;
    return STATUS_IS_OK;
}

static status keep_row(retrieve *r, const sparse_row *row, uint32_t i)
{
    const block_list *list = (const block_list *)r->lists.data + row->first_list + i;
    retrieve_note note = note_of(r, row, i);
    return retrieve_notes_keep(r->notes, &note, row->n_slots, blocks_of(r, row, i), list->n);
}

/* Once all rows that select in the layer have: hands their lists to rows that follow them, in this
 * step or later. A row's predecessors come before it. */
static status follow_rows(retrieve *r)
{
    for (uint32_t i = 0; i < r->n_rows; i++) {
        const sparse_row *row = (const sparse_row *)r->rows.data + i;
        if (row->seq->retrieval.token_step == 1 || !is_selecting(r, row)) continue;
        for (uint32_t list = 0; list < row->n_lists; list++)
            RETURN_IF_ERROR(row->behind ? follow_row(r, row, list) : keep_row(r, row, list));
    }
    return STATUS_IS_OK;
}

status retrieve_layer(retrieve *r, uint32_t layer, const float *qkv)
{
    const sparse_row *rows = r->rows.data;
    r->layer = layer;
    r->qkv = qkv;
    RETURN_IF_ERROR(retrieve_observe(&r->observer, &r->o, &r->ranks, r->q_heads, r->qkv_width,
                                     layer, qkv, r->seqs, r->n_seqs, r->notes));
    RETURN_IF_ERROR(begin_layer(r));
    for (uint32_t i = 0; i < r->n_rows; i++)
        if (selects_in(r, &rows[i])) RETURN_IF_ERROR(select_row(r, &rows[i]));
    RETURN_IF_ERROR(end_layer(r));
    return follow_rows(r);
}

/* Formats with grids: of the pages that the row reads as bf16, those in its blocks are the last of
 * the gathered ones. */
static void narrow_filling(retrieve *r, uint32_t nth, uint32_t head, const uint32_t *blocks,
                           uint32_t n_blocks, kern_attn_item *item)
{
    const sparse_row *row = (const sparse_row *)r->rows.data + nth;
    const kv_store *store = r->o.store;
    uint32_t page_tokens = store->shape.page_tokens, own = (row->n_slots - 1) / page_tokens;
    uint32_t in_block = row->seq->retrieval.block_tokens / page_tokens;
    uint32_t first = kv_store_first_wide(store, row->n_slots - 1), n = 0;
    const uint8_t **tiles = (const uint8_t **)r->tiles.data +
                            ((size_t)nth * store->n_heads + head) * (store->residual_pages + 1);
    for (uint32_t i = 0; i < n_blocks; i++)
        for (uint32_t page = blocks[i] * in_block; page < (blocks[i] + 1) * in_block; page++)
            if (page >= first && page <= own)
                tiles[n++] = item->filling[page - item->first_filling];
    item->filling = tiles;
    item->first_filling = item->first_slot / page_tokens + 1 - n;
    item->residual_pages = n - 1;
}

retrieve_list retrieve_list_of(const retrieve *r, uint32_t nth, uint32_t head)
{
    const sparse_row *row = (const sparse_row *)r->rows.data + nth;
    uint32_t index = list_of_head(r, row, head);
    const block_list *list = (const block_list *)r->lists.data + row->first_list + index;
    bool is_first_copy = (uint32_t)comm_rank(r->o.group) % r->ranks.copies == 0;
    return (retrieve_list){.blocks = (const uint32_t *)r->blocks.data + row->first_block +
                                     (size_t)index * row->most_blocks,
                           .n = list->n,
                           .counts = is_first_copy && r->o.store->first_head + head == list->first,
                           .selected = selects_in(r, row),
                           .missed = list->missed};
}

void retrieve_narrow(retrieve *r, uint32_t nth, uint32_t head, kern_attn_item *item)
{
    const sparse_row *row = (const sparse_row *)r->rows.data + nth;
    uint32_t page_tokens = r->o.store->shape.page_tokens;
    const retrieve_list list = retrieve_list_of(r, nth, head);
    uint32_t *pages = (uint32_t *)r->pages.data + row->first_page + (size_t)head * row->most_pages;
    assert(item->first_slot + 1 == row->n_slots && item->n_rows == 1);
    item->first_slot = retrieval_gather(&row->seq->retrieval, page_tokens, row->n_slots,
                                        item->pages, list.blocks, list.n, pages) -
                       1;
    item->pages = pages;
    if (item->filling) narrow_filling(r, nth, head, list.blocks, list.n, item);
}
