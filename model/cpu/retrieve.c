#include "model/cpu/retrieve.h"

#include "model/cpu/kv_hold.h"
#include "model/cpu/retrieve_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

status retrieve_create(const forward_options *options, uint32_t q_heads, uint32_t qkv_width,
                       retrieve **out)
{
    retrieve *r = calloc(1, sizeof *r);
    if (!r) return retrieve_no_memory();
    r->o = *options;
    r->q_heads = q_heads;
    r->qkv_width = qkv_width;
    r->ranks = retrieve_ranks_of(options->group, options->store, q_heads);
    status s = retrieve_notes_create(options->config->n_layers, options->note_bytes, &r->notes);
    r->all_heads = q_heads * r->ranks.copies;
    r->most_scratch = retrieve_scratch_bytes(
        options->store,
        &(retrieve_limits){.q_heads = q_heads,
                           .max_rows = options->max_rows,
                           .max_seqs = options->max_seqs,
                           .n_slots = retrieve_longest_table(
                               options->config, &options->store->geometry, options->store->n_pages),
                           .n_ranks = (uint32_t)comm_size(options->group),
                           .n_threads = thread_pool_size(options->pool)});
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

void retrieve_end_notes(retrieve *r, const uint32_t *notes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) retrieve_notes_end(r->notes, notes[i]);
}

uint64_t retrieve_note_bytes(const retrieve *r) { return retrieve_notes_bytes(r->notes); }

uint32_t retrieve_rows(const retrieve *r) { return r->n_rows; }

uint32_t retrieve_slots(const retrieve *r, uint32_t nth)
{
    return ((const sparse_row *)r->rows.data)[nth].n_slots;
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

/* Lists a row, the i-th of its share. All tables of a sequence that reads by retrieval have equally
 * many slots. */
static void add_row(retrieve *r, const forward_seq *s, uint32_t i, size_t *blocks, size_t *pages,
                    size_t *longest)
{
    const kv_store *store = r->o.store;
    const retrieval_spec *spec = &s->retrieval;
    sparse_row *row = (sparse_row *)r->rows.data + r->n_rows;
    *row = (sparse_row){.seq = s,
                        .row = s->first_row + i,
                        .n_slots = retrieve_table(r, s, 0, 0).kept_tokens - s->n_rows + i + 1,
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
    uint32_t page_tokens = store->shape.page_tokens;
    uint64_t most_pages = (uint64_t)row->most_blocks * (spec->block_tokens / page_tokens);
    uint32_t all_pages = (row->n_slots + page_tokens - 1) / page_tokens;
    row->most_pages = most_pages < all_pages ? (uint32_t)most_pages : all_pages;
    row->n_lists = retrieve_list_of_head(r, row, store->n_heads - 1) + 1;
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
    if (!room_reserve(&r->rows, rows, sizeof(sparse_row)) ||
        !room_reserve(&r->lists, rows * heads, sizeof(block_list)))
        return retrieve_no_memory();
    for (uint32_t i = 0; i < n_seqs; i++)
        for (uint32_t n = seqs[i].n_rows - sparse_rows_of(&seqs[i]); n < seqs[i].n_rows; n++)
            add_row(r, &seqs[i], n, &blocks, &pages, &longest);
    size_t scored = (size_t)heads * r->all_heads; /* an exam has scores of each query head */
    size_t all_scored = (size_t)r->o.store->geometry.n_kv_heads * r->all_heads;
    size_t tiles = r->o.store->filling ? rows * heads * (r->o.store->residual_pages + 1) : 0;
    bool ok = room_reserve(&r->blocks, blocks, sizeof(uint32_t)) &&
              room_reserve(&r->pages, pages, sizeof(uint32_t)) &&
              room_reserve(&r->tiles, tiles, sizeof(uint8_t *)) &&
              room_reserve(&r->candidates, heads, sizeof(candidates)) &&
              room_reserve(&r->score_items, scored, sizeof(kern_score_item)) &&
              room_reserve(&r->scores, scored * longest, sizeof(float)) &&
              room_reserve(&r->head_scores, all_scored, sizeof(const float *)) &&
              room_reserve(&r->keys, heads * longest, sizeof(uint32_t));
    return ok ? STATUS_IS_OK : retrieve_no_memory();
}

bool retrieve_reads_few(const retrieve *r, const forward_seq *seq, uint32_t layer)
{
    return sparse_rows_of(seq) > 0 &&
           retrieval_layer_leader(&seq->retrieval, &r->o.store->geometry, layer) != RETRIEVAL_ALL;
}

/* Whether the layer's blocks are not those of an earlier layer. */
static bool is_selecting(const retrieve *r, const forward_seq *seq)
{
    return retrieval_layer_leader(&seq->retrieval, &r->o.store->geometry, r->layer) == r->layer;
}

static bool selects_in(const retrieve *r, const sparse_row *row)
{
    return row->behind == 0 && is_selecting(r, row->seq);
}

static uint32_t *blocks_of(const retrieve *r, const sparse_row *row, uint32_t list)
{
    return (uint32_t *)r->blocks.data + row->first_block + (size_t)list * row->most_blocks;
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
                                       .left_out = retrieve_left_out(r, row, (uint32_t)i),
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
    RETURN_IF_ERROR(retrieve_take_row(r, row));
    if (r->n_blocks > 0) {
        RETURN_IF_ERROR(retrieve_make(r, row));
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
    if (!room_reserve(&r->selecting, r->n_rows, sizeof(uint32_t))) return retrieve_no_memory();
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

/* ---- rows that follow an earlier one --------------------------------------------------------- */

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
        if (row->seq->retrieval.token_step == 1 || !is_selecting(r, row->seq)) continue;
        for (uint32_t list = 0; list < row->n_lists; list++)
            RETURN_IF_ERROR(row->behind ? follow_row(r, row, list) : keep_row(r, row, list));
    }
    return STATUS_IS_OK;
}

/* Lets each row that selects in the layer select. Rows make representatives of blocks that lack
 * one, whose pages may have to come in from disk, so ranks agree at the end whether all go on. */
static status select_rows(retrieve *r)
{
    const sparse_row *rows = r->rows.data;
    status s = STATUS_IS_OK;
    bool any = false;
    for (uint32_t i = 0; i < r->n_rows; i++) {
        if (!selects_in(r, &rows[i])) continue;
        any = true;
        if (status_ok(s)) s = select_row(r, &rows[i]);
    }
    return any ? kv_hold_agree(&r->o, s) : s;
}

/* Makes representatives with the rows that read everything, because all pages of their tables are
 * in memory. */
static status make_ahead(retrieve *r)
{
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        const forward_seq *s = &r->seqs[i];
        bool left = s->n_layers > 0 && r->layer >= s->n_layers;
        if (s->retrieval.block_tokens && s->dense_rows > 0 && !left && is_selecting(r, s))
            RETURN_IF_ERROR(retrieve_make_ahead(r, s));
    }
    return STATUS_IS_OK;
}

status retrieve_layer(retrieve *r, uint32_t layer, const float *qkv)
{
    r->layer = layer;
    r->qkv = qkv;
    RETURN_IF_ERROR(retrieve_observe(&r->observer, &r->o, &r->ranks, r->q_heads, r->qkv_width,
                                     layer, qkv, r->seqs, r->n_seqs, r->notes));
    RETURN_IF_ERROR(make_ahead(r));
    RETURN_IF_ERROR(begin_layer(r));
    RETURN_IF_ERROR(select_rows(r));
    RETURN_IF_ERROR(end_layer(r));
    assert(retrieve_scratch_taken(r) <= r->most_scratch);
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
    uint32_t index = retrieve_list_of_head(r, row, head);
    const block_list *list = (const block_list *)r->lists.data + row->first_list + index;
    bool is_first_copy = (uint32_t)comm_rank(r->o.group) % r->ranks.copies == 0;
    return (retrieve_list){.blocks = (const uint32_t *)r->blocks.data + row->first_block +
                                     (size_t)index * row->most_blocks,
                           .n = list->n,
                           .counts = is_first_copy && r->o.store->first_head + head == list->first,
                           .selected = selects_in(r, row),
                           .missed = list->missed};
}

void retrieve_spread(const retrieve *r, uint32_t nth, uint32_t head, float *mass)
{
    const sparse_row *row = (const sparse_row *)r->rows.data + nth;
    const retrieve_list list = retrieve_list_of(r, nth, head);
    uint32_t page_tokens = r->o.store->shape.page_tokens;
    uint32_t in_block = row->seq->retrieval.block_tokens / page_tokens;
    uint32_t n_pages = (row->n_slots + page_tokens - 1) / page_tokens, n = 0;
    for (uint32_t i = 0; i < list.n; i++)
        for (uint32_t page = list.blocks[i] * in_block;
             page < (list.blocks[i] + 1) * in_block && page < n_pages; page++)
            n++;
    /* From the end on, because a page lies at or behind its place among those that are read. */
    uint32_t page = n_pages;
    for (uint32_t i = list.n; i-- > 0;) {
        uint32_t first = list.blocks[i] * in_block, end = first + in_block;
        if (end > n_pages) end = n_pages;
        while (page > end) mass[--page] = -1.0f;
        while (page > first) mass[--page] = mass[--n];
    }
    while (page > 0) mass[--page] = -1.0f;
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
