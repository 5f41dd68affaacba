/* Representatives of blocks: which of them a row's candidates lack, and how they are made. */
#include "model/cpu/kv_hold.h"
#include "model/cpu/retrieve_state.h"

#include <string.h>

/* A mark says what a representative is made of and, from bit MARK_SPEC_BITS on, its number. All
 * tiles of its block have the same mark; a block whose pages are not all those of the
 * representative has different marks. */
enum { MARK_SPEC_BITS = 20 };
static const uint64_t mark_spec = (UINT64_C(1) << MARK_SPEC_BITS) - 1;
static uint64_t mark_of(retrieval_representative made, uint32_t n_keys, uint32_t block_pages)
{
    return 1 + (uint32_t)made + (n_keys << 3) + (block_pages << 10);
}
_Static_assert(1 + RETRIEVAL_REPRESENTATIVES <= 1 << 3 && RETRIEVAL_KEYS_MOST < 1 << 7 &&
                   RETRIEVAL_BLOCK_PAGES < 1 << (MARK_SPEC_BITS - 10),
               "the fields of a mark");

const uint64_t *retrieve_left_out(const retrieve *r, const sparse_row *row, uint32_t run)
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

status retrieve_take_row(retrieve *r, const sparse_row *row)
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
    r->unmarked = false;
    set_marks(r, row);
    for (uint32_t h = 0; h < store->n_heads; h++) {
        pkv_table_view table = retrieve_table(r, row->seq, r->layer, h);
        all[h] = (candidates){
            .pages = table.pages + (size_t)e.first * r->block_pages,
            .tiles = kv_store_tiles(store, r->layer, h, table.offset),
            .marks = kv_store_marks(store, r->layer, h, table.offset),
            .vectors = kv_store_vectors(store, store->vectors, r->layer, h, table.offset),
            .smallest =
                boxes ? kv_store_vectors(store, store->smallest, r->layer, h, table.offset) : NULL,
            .left_out = retrieve_left_out(r, row, retrieve_list_of_head(r, row, h)),
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
    if (r->unmarked) return !differ && !mark;
    if (is_dynamic(r, block)) return differ || mark != r->dynamic;
    return differ || (mark & mark_spec) != r->wanted;
}

/* The sum of is_missing over blocks of one page that all have the wanted representative, or lack
 * it. A step looks at every block of a long context, so the loop has nothing else in it. */
static uint32_t count_unwanted(const retrieve *r, const candidates *c)
{
    const size_t tiles = r->o.store->page_tiles;
    uint32_t n = 0;
    for (uint32_t b = 0; b < r->n_blocks; b++)
        n += (c->marks[c->pages[b] * tiles] & mark_spec) != r->wanted;
    return n;
}

static void count_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const retrieve *r = ctx;
    for (size_t h = from; h < to; h++) {
        candidates *c = (candidates *)r->candidates.data + h;
        bool plain = r->block_pages == 1 && !c->left_out && !r->dynamic && !r->unmarked;
        uint32_t n = plain ? count_unwanted(r, c) : 0;
        for (uint32_t b = 0; !plain && b < r->n_blocks; b++) n += is_missing(r, c, b);
        c->n_missing = n;
    }
}

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
status retrieve_make(retrieve *r, const sparse_row *row)
{
    const kv_store *store = r->o.store;
    const retrieval_spec *spec = &row->seq->retrieval;
    const candidates *all = r->candidates.data;
    size_t n_missing = 0;
    thread_pool_for(r->o.pool, store->n_heads, 1, count_range, r);
    for (uint32_t h = 0; h < store->n_heads; h++) n_missing += all[h].n_missing;
    if (n_missing == 0) return STATUS_IS_OK;
    if (!room_reserve(&r->items, n_missing, sizeof(kern_represent_item)) ||
        !room_reserve(&r->listed, n_missing, sizeof(block_at)))
        return retrieve_no_memory();
    r->n_items = 0;
    if (spec->representative == RETRIEVAL_FIX) retrieval_fixed_slots(spec, r->fixed_slots);
    for (uint32_t h = 0; h < store->n_heads; h++) list_missing(r, row, &all[h]);
    return make_listed(r, spec);
}

/* DYNAMIC's representatives and a preselection follow from the prompt's last rows, so nothing is
 * made for them before these rows. Until then a block that has a representative of another kind
 * keeps it, because a running request may select by it. */
status retrieve_make_ahead(retrieve *r, const forward_seq *seq)
{
    const retrieval_spec *spec = &seq->retrieval;
    uint32_t kept = retrieve_table(r, seq, r->layer, 0).kept_tokens;
    uint32_t dense_end = kept - seq->n_rows + seq->dense_rows;
    bool ends = dense_end >= seq->n_prompt;
    sparse_row row = {.seq = seq,
                      .n_slots = dense_end + 1,
                      .together = retrieval_heads_together(spec, &r->o.store->geometry)};
    row.n_lists = retrieve_list_of_head(r, &row, r->o.store->n_heads - 1) + 1;
    if (!ends && retrieval_observed_rows(spec, seq->n_prompt) > 0) return STATUS_IS_OK;
    if (!room_reserve(&r->candidates, r->o.store->n_heads, sizeof(candidates)))
        return retrieve_no_memory();
    RETURN_IF_ERROR(retrieve_take_row(r, &row));
    r->unmarked = !ends;
    return r->n_blocks > 0 ? retrieve_make(r, &row) : STATUS_IS_OK;
}
