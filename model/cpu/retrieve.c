#include "model/cpu/retrieve.h"

#include "kernels/represent.h"
#include "model/cpu/retrieve_observe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A row that reads by retrieval. */
typedef struct sparse_row {
    const forward_seq *seq;
    uint32_t row;         /* of the step */
    uint32_t n_slots;     /* that it sees in every table */
    uint32_t together;    /* KV heads that share a selection */
    uint32_t first_list;  /* its lists, one for each run of `together` heads */
    size_t first_block;   /* where they begin in `blocks`, most_blocks each */
    uint32_t most_blocks; /* of one list */
    size_t first_page;    /* its gathered pages in `pages`, most_pages for each KV head */
    uint32_t most_pages;
    uint32_t
        behind; /* rows of the sequence since the one whose selection it reads by: 0 = it selects */
    uint32_t in_step; /* sparse rows of the share before it */
} sparse_row;

typedef struct block_list {
    uint32_t row;   /* index of the sparse row */
    uint32_t first; /* KV head */
    uint32_t n;     /* blocks that the row reads, in the layer that selected last */
} block_list;

/* Memory that grows to the largest need seen. */
typedef struct room {
    void *data;
    size_t bytes;
} room;

struct retrieve {
    forward_options o;
    uint32_t q_heads, qkv_width;
    unsigned n_threads;
    /* The rows of a step and the blocks they read. */
    room rows, lists, blocks, pages, tiles;
    uint32_t n_rows, n_lists;
    /* Scratch of a layer's selection. */
    room items; /* kern_represent_item: pages without a representative */
    room marks; /* uint32_t *: their marks */
    uint32_t n_items;
    room scratch; /* thread_bytes for each thread */
    size_t thread_bytes;
    uint32_t layer;
    const float *qkv;
    const forward_seq *seqs; /* the step's [n_seqs] */
    uint32_t n_seqs;
    retrieve_observer observer;
    retrieve_notes *notes;
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

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

status retrieve_create(const forward_options *options, uint32_t q_heads, uint32_t qkv_width,
                       retrieve **out)
{
    retrieve *r = calloc(1, sizeof *r);
    if (!r) return no_memory();
    r->o = *options;
    r->q_heads = q_heads;
    r->qkv_width = qkv_width;
    r->n_threads = thread_pool_size(options->pool);
    status s = retrieve_notes_create(options->config->n_layers, &r->notes);
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
    free(r->items.data);
    free(r->marks.data);
    free(r->scratch.data);
    retrieve_observe_free(&r->observer);
    retrieve_notes_destroy(r->notes);
    free(r);
}

uint32_t retrieve_rows(const retrieve *r) { return r->n_rows; }

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

/* All tables of such a sequence have as many slots as the sequence has tokens. */
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
    *blocks += (size_t)row->most_blocks * (store->n_heads / row->together);
    *pages += (size_t)row->most_pages * store->n_heads;
    if (all > *longest) *longest = all;
    block_list *lists = r->lists.data;
    for (uint32_t head = 0; head < store->n_heads; head += row->together)
        lists[r->n_lists++] = (block_list){.row = r->n_rows, .first = head};
    r->n_rows++;
}

/* A thread's scratch: the heads of a query, the folded query, scores and keys. */
static size_t scratch_bytes(const retrieve *r, size_t longest)
{
    const kv_store *store = r->o.store;
    return align64(store->n_heads * sizeof(retrieval_head)) +
           align64((size_t)2 * store->shape.head_dim * sizeof(float)) +
           2 * align64(longest * sizeof(float));
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
    size_t tiles = r->o.store->filling ? rows * heads * (r->o.store->residual_pages + 1) : 0;
    r->thread_bytes = scratch_bytes(r, longest);
    bool ok = reserve(&r->blocks, blocks, sizeof(uint32_t)) &&
              reserve(&r->pages, pages, sizeof(uint32_t)) &&
              reserve(&r->tiles, tiles, sizeof(uint8_t *)) &&
              reserve(&r->scratch, r->thread_bytes * r->n_threads, 1);
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

/* Names what a page's representative is made of; never 0, which marks a page without one. Only FIX
 * depends on more than the page: on its place in its block, which follows from its place in the
 * table and the block's pages. */
static uint32_t mark_of(const retrieval_spec *spec, uint32_t in_block)
{
    uint32_t mark = 1 + (uint32_t)spec->representative;
    if (spec->representative != RETRIEVAL_FIX) return mark;
    return mark | spec->representative_num << 3 | in_block << 16;
}
_Static_assert(RETRIEVAL_REPRESENTATIVES < 8 && RETRIEVAL_KEYS_MOST < 1 << 13 &&
                   RETRIEVAL_BLOCK_PAGES < 1 << 16,
               "the fields of a mark");

static void set_item(const retrieve *r, const retrieval_spec *spec, uint32_t place,
                     const uint8_t *tile, float *out, kern_represent_item *item)
{
    *item = (kern_represent_item){.tile = tile, .out = out};
    if (spec->representative == RETRIEVAL_QUEST) item->kind = KERN_REPRESENT_BOX;
    else if (spec->representative == RETRIEVAL_MAX) item->kind = KERN_REPRESENT_MAX;
    else if (spec->representative == RETRIEVAL_FIX)
        retrieval_fixed_slots(spec, r->o.store->shape.page_tokens, place, item->slots);
    else memset(item->slots, 0xff, sizeof item->slots);
}

static bool reserve_items(retrieve *r, size_t n)
{
    return reserve(&r->items, n, sizeof(kern_represent_item)) &&
           reserve(&r->marks, n, sizeof(uint32_t *));
}

/* The blocks that a run of KV heads leaves out; NULL where it leaves out none. */
static const uint64_t *left_out_of(const retrieve *r, const sparse_row *row, uint32_t run)
{
    const forward_seq *s = row->seq;
    if (retrieval_left_out(&s->retrieval, s->n_prompt) == 0) return NULL;
    retrieve_bits at = retrieve_left_out_at(s, r->layer, run, r->o.store->n_heads / row->together);
    return retrieve_notes_read(r->notes, &at);
}

/* Lists the candidate pages of one head that have no such representative. */
static status list_pages(retrieve *r, const sparse_row *row, uint32_t head, uint32_t wanted)
{
    const kv_store *store = r->o.store;
    const retrieval_spec *spec = &row->seq->retrieval;
    pkv_table_view table = table_of(r, row->seq, r->layer, head);
    const uint64_t *left_out = left_out_of(r, row, head / row->together);
    retrieval_extent e = retrieval_extent_of(spec, row->seq->n_prompt, row->n_slots);
    uint32_t in_block = spec->block_tokens / store->shape.page_tokens;
    if (retrieval_reads_all(&e)) return STATUS_IS_OK;
    if (!left_out && retrieval_left_out(spec, row->seq->n_prompt) > 0)
        return status_make(STATUS_INVALID, "plan: a row behind a prompt that was not preselected");
    if (!reserve_items(r, r->n_items + (size_t)(e.end - e.first) * in_block)) return no_memory();
    kern_represent_item *items = r->items.data;
    uint32_t **listed = r->marks.data;
    uint32_t *marks = kv_store_marks(store, r->layer, head, table.offset);
    float *representatives = kv_store_representatives(store, r->layer, head, table.offset);
    const uint8_t *tiles = kv_store_tiles(store, r->layer, head, table.offset);
    uint32_t n_known = row->seq->n_prompt / spec->block_tokens;
    for (uint32_t i = e.first * in_block; i < e.end * in_block; i++) {
        uint32_t page = table.pages[i];
        uint32_t *mark = marks + page * store->page_tiles, block = i / in_block;
        if (left_out && block < n_known && left_out[block / 64] >> block % 64 & 1) continue;
        if (*mark == wanted) continue;
        listed[r->n_items] = mark;
        set_item(r, spec, i % in_block, tiles + page * store->page_bytes,
                 representatives + page * store->page_representatives, &items[r->n_items++]);
    }
    return STATUS_IS_OK;
}

/* A page that two rows want in different ways would be listed twice: rows that select differently
 * go one after the other. Pages are marked at the end, because they may be the prefix cache's: a
 * mark that a failure left would let other requests score by what was never computed. */
static status make_representatives(retrieve *r, const sparse_row *row)
{
    const kv_store *store = r->o.store;
    const retrieval_spec *spec = &row->seq->retrieval;
    uint32_t wanted = mark_of(spec, spec->block_tokens / store->shape.page_tokens);
    r->n_items = 0;
    for (uint32_t head = 0; head < store->n_heads; head++)
        RETURN_IF_ERROR(list_pages(r, row, head, wanted));
    if (r->n_items == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(kern_represent(r->o.kernels, &store->shape, r->items.data, r->n_items));
    uint32_t **marks = r->marks.data;
    for (uint32_t i = 0; i < r->n_items; i++) *marks[i] = wanted;
    return STATUS_IS_OK;
}

/* ---- selections ------------------------------------------------------------------------------ */

static void set_heads(const retrieve *r, const sparse_row *row, uint32_t first,
                      retrieval_head *heads)
{
    const kv_store *store = r->o.store;
    const float *q = r->qkv + (size_t)row->row * r->qkv_width;
    for (uint32_t h = 0; h < row->together; h++) {
        pkv_table_view table = table_of(r, row->seq, r->layer, first + h);
        heads[h] = (retrieval_head){
            .q = q + (size_t)(first + h) * r->q_heads * store->shape.head_dim,
            .pages = table.pages,
            .representatives = kv_store_representatives(store, r->layer, first + h, table.offset),
        };
    }
}

static void select_list(const retrieve *r, block_list *list, uint8_t *scratch)
{
    const sparse_row *row = (const sparse_row *)r->rows.data + list->row;
    const kern_kv_shape *shape = &r->o.store->shape;
    const retrieval_spec *spec = &row->seq->retrieval;
    retrieval_head *heads = (retrieval_head *)scratch;
    retrieval_scratch s;
    uint8_t *at = scratch + align64(r->o.store->n_heads * sizeof *heads);
    s.folded = (float *)at;
    s.scores = (float *)(at += align64((size_t)2 * shape->head_dim * sizeof(float)));
    s.keys = (uint32_t *)(at + (r->thread_bytes - (size_t)(at - scratch)) / 2);
    set_heads(r, row, list->first, heads);
    const retrieval_query query = {.n_slots = row->n_slots,
                                   .n_prompt = row->seq->n_prompt,
                                   .left_out = left_out_of(r, row, list->first / row->together),
                                   .page_tokens = shape->page_tokens,
                                   .head_dim = shape->head_dim,
                                   .q_heads = r->q_heads,
                                   .stride = r->o.store->page_representatives,
                                   .heads = heads,
                                   .n_heads = row->together};
    uint32_t *blocks = (uint32_t *)r->blocks.data + row->first_block +
                       (size_t)(list->first / row->together) * row->most_blocks;
    list->n = retrieval_select(spec, &query, &s, blocks);
    assert(list->n <= row->most_blocks);
}

typedef struct select_job {
    retrieve *r;
    uint32_t first_list;
} select_job;

static void select_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    const select_job *job = ctx;
    uint8_t *scratch = (uint8_t *)job->r->scratch.data + thread * job->r->thread_bytes;
    block_list *lists = (block_list *)job->r->lists.data + job->first_list;
    for (size_t i = from; i < to; i++) select_list(job->r, &lists[i], scratch);
}

/* ---- rows that follow an earlier one ------------------------------------------------------- */

static retrieve_note note_of(const retrieve *r, const sparse_row *row, uint32_t list)
{
    const retrieval_spec *spec = &row->seq->retrieval;
    uint32_t most = retrieval_most_blocks(spec);
    uint32_t all = (model_max_length(r->o.config) + spec->block_tokens - 1) / spec->block_tokens;
    return (retrieve_note){.note = row->seq->note,
                           .choice = row->seq->choice,
                           .layer = r->layer,
                           .list = list,
                           .n_lists = r->o.store->n_heads / row->together,
                           .room = most < all ? most : all};
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
        for (uint32_t list = 0; list < r->o.store->n_heads / row->together; list++)
            RETURN_IF_ERROR(row->behind ? follow_row(r, row, list) : keep_row(r, row, list));
    }
    return STATUS_IS_OK;
}

status retrieve_layer(retrieve *r, uint32_t layer, const float *qkv)
{
    const sparse_row *rows = r->rows.data;
    r->layer = layer;
    r->qkv = qkv;
    RETURN_IF_ERROR(retrieve_observe(&r->observer, &r->o, r->q_heads, r->qkv_width, layer, qkv,
                                     r->seqs, r->n_seqs, r->notes));
    for (uint32_t i = 0; i < r->n_rows; i++) {
        if (!selects_in(r, &rows[i])) continue;
        RETURN_IF_ERROR(make_representatives(r, &rows[i]));
        select_job job = {r, rows[i].first_list};
        thread_pool_for(r->o.pool, r->o.store->n_heads / rows[i].together, 1, select_range, &job);
    }
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

void retrieve_narrow(retrieve *r, uint32_t nth, uint32_t head, kern_attn_item *item)
{
    const sparse_row *row = (const sparse_row *)r->rows.data + nth;
    uint32_t page_tokens = r->o.store->shape.page_tokens, index = head / row->together;
    const block_list *list = (const block_list *)r->lists.data + row->first_list + index;
    const uint32_t *blocks =
        (const uint32_t *)r->blocks.data + row->first_block + (size_t)index * row->most_blocks;
    uint32_t *pages = (uint32_t *)r->pages.data + row->first_page + (size_t)head * row->most_pages;
    assert(item->first_slot + 1 == row->n_slots && item->n_rows == 1);
    item->first_slot = retrieval_gather(&row->seq->retrieval, page_tokens, row->n_slots,
                                        item->pages, blocks, list->n, pages) -
                       1;
    item->pages = pages;
    if (item->filling) narrow_filling(r, nth, head, blocks, list->n, item);
}
