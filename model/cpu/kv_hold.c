#include "model/cpu/kv_hold.h"

#include "model/cpu/kv_tier.h"

/* Slots that attention reads at once, beginning with a multiple of that. */
enum { SLOTS_AT_ONCE = 64 };

status kv_hold_agree(const forward_options *o, status own)
{
    kv_store *s = o->store;
    if (!s->tier) return own;
    float n_failed = status_ok(own) ? 0.0f : 1.0f;
    RETURN_IF_ERROR(comm_all_reduce_sum(o->group, &n_failed, 1));
    if (n_failed == 0.0f) return STATUS_IS_OK;
    s->ended = status_ok(own) ? STEP_ENDED_AFTER : STEP_ENDED_FIRST;
    return status_ok(own) ? status_make(STATUS_IO, "kv-disk: another rank could not go on") : own;
}

/* Pages [from, to) of the table of a KV head. */
static void want_pages(const kv_store *s, pkv_table_view table, uint32_t from, uint32_t to,
                       kv_use use)
{
    for (uint32_t p = from; p < to; p++)
        kv_tier_want(s->tier, table.pages[p] + table.offset - s->cells.first, use);
}

static void want_written(const kv_store *s, const forward_seq *seq, pkv_table_view table)
{
    uint32_t slot = table.kept_tokens - seq->n_rows, page = slot / s->shape.page_tokens;
    if (slot % s->shape.page_tokens != 0) {
        want_pages(s, table, page, page + 1, KV_WRITE);
        page++;
    }
    want_pages(s, table, page, table.n_pages, KV_FRESH);
}

/* Whether some row reads pages that no selection names: its own reading, an audit's or an exam's.
 * What is measured of a row that reads few is the mass of the pages that it reads (plan.c). */
static bool reads_all(const retrieve *r, const forward_seq *seq, uint32_t layer, uint32_t kept)
{
    const retrieval_spec *spec = &seq->retrieval;
    if (seq->dense_rows > 0 || !retrieve_reads_few(r, seq, layer)) return true;
    if (spec->epsilon > 0) return true;
    for (uint32_t i = 0; i < seq->n_rows; i++)
        if (retrieval_is_audited(spec, kept - i)) return true;
    return false;
}

/* Whether the sequence's next row reads everything in the layer, if it has one. */
static bool reads_all_next(const kv_store *s, const forward_seq *seq, uint32_t layer, uint32_t kept)
{
    const retrieval_spec *spec = &seq->retrieval;
    if (spec->block_tokens == 0 || kept < seq->n_prompt || spec->epsilon > 0) return true;
    return retrieval_layer_leader(spec, &s->geometry, layer) == RETRIEVAL_ALL ||
           retrieval_is_audited(spec, kept + 1);
}

/* Rows of a layer with a window see its last slots alone, and no measure looks at such a layer
 * (measure_layer_of). */
static uint32_t first_read(const forward_options *o, const forward_seq *seq, uint32_t layer,
                           uint32_t kept)
{
    uint32_t window = o->config->layers[layer] & LAYER_WINDOW ? o->config->window : 0;
    uint32_t slot = kept - seq->n_rows + 1;
    if (window == 0 || slot <= window) return 0;
    return (slot - window) / SLOTS_AT_ONCE * SLOTS_AT_ONCE / o->store->shape.page_tokens;
}

status kv_hold_layer(const forward_options *o, const retrieve *r, uint32_t layer,
                     const forward_seq *seqs, uint32_t n_seqs)
{
    const kv_store *s = o->store;
    if (!s->tier) return STATUS_IS_OK;
    for (uint32_t i = 0; i < n_seqs; i++)
        for (uint32_t head = 0; head < s->n_heads; head += s->heads_in_page) {
            pkv_table_view table =
                pkv_mirror_table(o->mirror, seqs[i].seq, kv_store_group(s, layer, head));
            want_written(s, &seqs[i], table);
            if (reads_all(r, &seqs[i], layer, table.kept_tokens))
                want_pages(s, table, first_read(o, &seqs[i], layer, table.kept_tokens),
                           table.n_pages, KV_SCAN);
        }
    return kv_hold_agree(o, kv_tier_take(s->tier));
}

void kv_hold_block(const kv_store *s, const uint64_t *marks, const uint32_t *pages, uint32_t n)
{
    if (!s->tier) return;
    ptrdiff_t tiles = (ptrdiff_t)s->page_tiles, at = marks - s->marks;
    for (uint32_t p = 0; p < n; p++)
        kv_tier_want(s->tier, (uint32_t)((at + (ptrdiff_t)pages[p] * tiles) / tiles), KV_SCAN);
}

status kv_hold_blocks(const kv_store *s) { return s->tier ? kv_tier_take(s->tier) : STATUS_IS_OK; }

/* The pages that a row reads in a KV head, the nth of the rows that read by retrieval. */
static void want_blocks(const forward_options *o, const retrieve *r, uint32_t layer,
                        const forward_seq *seq, uint32_t nth, uint32_t head)
{
    const kv_store *s = o->store;
    const retrieve_list list = retrieve_list_of(r, nth, head);
    uint32_t page_tokens = s->shape.page_tokens;
    uint32_t in_block = seq->retrieval.block_tokens / page_tokens;
    uint32_t n_pages = (retrieve_slots(r, nth) + page_tokens - 1) / page_tokens;
    pkv_table_view table = pkv_mirror_table(o->mirror, seq->seq, kv_store_group(s, layer, head));
    for (uint32_t b = 0; b < list.n; b++) {
        uint32_t from = list.blocks[b] * in_block, to = from + in_block;
        want_pages(s, table, from, to < n_pages ? to : n_pages, KV_READ);
    }
}

/* Expects what the sequence reads as a whole in the next layer: of this step, whose reads are
 * known, or behind the last layer of the next step, if the sequence goes on. */
static void expect_whole(const forward_options *o, const retrieve *r, uint32_t layer,
                         const forward_seq *seq)
{
    const kv_store *s = o->store;
    uint32_t next = (layer + 1) % s->geometry.n_layers;
    if (next > 0 && seq->n_layers == next) return;
    for (uint32_t head = 0; head < s->n_heads; head += s->heads_in_page) {
        pkv_table_view table = pkv_mirror_table(o->mirror, seq->seq, kv_store_group(s, next, head));
        bool all = next > 0 ? reads_all(r, seq, next, table.kept_tokens)
                            : reads_all_next(s, seq, next, table.kept_tokens);
        for (uint32_t p = first_read(o, seq, next, table.kept_tokens); all && p < table.n_pages;
             p++)
            kv_tier_expect(s->tier, table.pages[p] + table.offset - s->cells.first);
    }
}

status kv_hold_rows(const forward_options *o, const retrieve *r, uint32_t layer,
                    const forward_seq *seqs, uint32_t n_seqs)
{
    const kv_store *s = o->store;
    uint32_t nth = 0;
    bool any = false;
    if (!s->tier) return STATUS_IS_OK;
    for (uint32_t i = 0; i < n_seqs; i++) {
        if (seqs[i].retrieval.block_tokens == 0) continue;
        uint32_t rows = seqs[i].n_rows - seqs[i].dense_rows;
        bool few = retrieve_reads_few(r, &seqs[i], layer);
        any |= few;
        for (uint32_t n = 0; n < rows && few; n++)
            for (uint32_t head = 0; head < s->n_heads; head++)
                want_blocks(o, r, layer, &seqs[i], nth + n, head);
        nth += rows;
    }
    if (any) RETURN_IF_ERROR(kv_hold_agree(o, kv_tier_take(s->tier)));
    for (uint32_t i = 0; i < n_seqs; i++) expect_whole(o, r, layer, &seqs[i]);
    kv_tier_begin(s->tier, (layer + 1) % s->geometry.n_layers);
    return STATUS_IS_OK;
}

void kv_hold_end(const forward_options *o, uint32_t layer)
{
    if (o->store->tier) kv_tier_release(o->store->tier, layer);
}

status kv_hold_move(const kv_store *s, const pkv_move *m, uint32_t n_host_pages)
{
    if (!s->tier) return STATUS_IS_OK;
    for (uint32_t i = 0, n = pkv_move_cells(&s->geometry, m); i < n; i++) {
        pkv_move cell = pkv_move_cell(&s->geometry, m, i, s->n_pages - 1, n_host_pages);
        bool fresh = m->kind == PKV_MOVE_IN || (cell.fresh && cell.dst_slot == 0);
        uint32_t src = cell.src_page - s->cells.first, dst = cell.dst_page - s->cells.first;
        if (m->kind != PKV_MOVE_IN && pkv_has_cell(s->cells, cell.src_page))
            kv_tier_want(s->tier, src, KV_SCAN);
        if (m->kind != PKV_MOVE_OUT && pkv_has_cell(s->cells, cell.dst_page))
            kv_tier_want(s->tier, dst, fresh ? KV_FRESH : KV_WRITE);
    }
    return kv_tier_take(s->tier);
}
