#include "model/cpu/kv_filling.h"

#include "model/cpu/kv_moves.h"

#include <assert.h>
#include <stdlib.h>

typedef struct filling_tile {
    uint32_t id;   /* the page's; 0 = the tile is free */
    uint32_t fill; /* slots that have been written */
    uint64_t used; /* clock of the last look-up */
    bool stored;   /* the page is quantised too: both forms are valid */
    bool wanted;   /* during a sweep: an open table still reads it */
} filling_tile;

/* A bf16 tile of a page that became full, and the quantised tile that it is packed into. */
typedef struct pack_job {
    const uint8_t *wide;
    uint8_t *tile;
} pack_job;

/* A page here is a cell, whatever run of cells a table holds it in. Its id is its number, or
 * n_cells + its number for a page of the host tier. Here a tile is a whole page in bf16; tiles are
 * numbered from 1. */
struct kv_filling {
    kv_filling_options o;
    kern_kv_shape wide;
    size_t tile_bytes, page_bytes; /* in bf16 */
    uint32_t tiles_in_page;
    uint32_t pages_before; /* full pages before a table's own that keep tiles */
    uint32_t *tile_of;     /* [ids] 0 = none; committed only where pages fill */
    size_t tile_of_bytes;
    filling_tile *tiles; /* [n_tiles + 1] */
    uint32_t n_tiles;
    uint32_t *free; /* [n_tiles] */
    uint32_t n_free;
    uint8_t *data; /* [n_tiles] */
    uint64_t clock;
    uint32_t *rows; /* [max_seqs] during a sweep: the step's rows of each sequence */

    /* Lists of the layer that is being computed. */
    const uint8_t **pointers; /* [max_pointers] */
    uint32_t *first;          /* [max_seqs, heads] index of a sequence's first pointer for a head */
    pack_job *jobs;           /* [max_pointers] */
    uint32_t *full;           /* [max_pointers] ids of pages that its rows make full */
    uint32_t *leaving;        /* [max_pointers] ids of pages that no later row reads as bf16 */
    size_t max_pointers, n_jobs, n_full, n_leaving;
};

static uint32_t cell_at(pkv_table_view table, uint32_t index)
{
    return table.pages[index] + table.offset;
}

/* ---- tiles of pages -------------------------------------------------------------------------- */

static uint8_t *tile_data(const kv_filling *f, uint32_t tile)
{
    return f->data + (size_t)(tile - 1) * f->page_bytes;
}

static uint8_t *stored_page(const kv_filling *f, uint32_t id)
{
    const kv_store *s = f->o.store;
    return id < s->n_cells ? kv_store_page(s, id) : kv_store_host_page(s, id - s->n_cells);
}

static uint32_t host_id(const kv_filling *f, uint32_t host) { return f->o.store->n_cells + host; }

/* The page's bf16 tile; NULL: the page is only stored. */
static uint8_t *find_tile(kv_filling *f, uint32_t id)
{
    uint32_t tile = f->tile_of[id];
    if (tile == 0) return NULL;
    f->tiles[tile].used = ++f->clock;
    return tile_data(f, tile);
}

static void drop_tile(kv_filling *f, uint32_t id)
{
    uint32_t tile = f->tile_of[id];
    if (tile == 0) return;
    f->tiles[tile].id = 0;
    f->tile_of[id] = 0;
    f->free[f->n_free++] = tile;
}

/* Whether the page is both in a bf16 tile and stored. */
static bool has_both(const kv_filling *f, uint32_t id) { return f->tiles[f->tile_of[id]].stored; }

static void pack_page(kv_filling *f, uint32_t id, const uint8_t *wide)
{
    const kv_store *s = f->o.store;
    for (uint32_t t = 0; t < f->tiles_in_page; t++)
        kern_kv_pack(f->o.kernels, &s->shape, wide + t * f->tile_bytes,
                     stored_page(f, id) + t * s->tile_bytes);
}

/* Makes unwritten slots copies of the last written one, so that they do not widen a grid. */
static void pad_page(kv_filling *f, uint8_t *wide, uint32_t fill)
{
    for (uint32_t t = 0; t < f->tiles_in_page; t++)
        for (uint32_t slot = fill; slot < f->wide.page_tokens; slot++)
            kern_kv_move(&f->wide, wide + t * f->tile_bytes, slot, wide + t * f->tile_bytes,
                         fill - 1, 1);
}

/* Whether the page is in an open table with heads of this rank. */
static bool is_running(const kv_filling *f, uint32_t id)
{
    if (id >= f->o.store->n_cells) return false;
    pkv_mirror_page page = pkv_mirror_page_at(f->o.mirror, id);
    return page.held && kv_store_is_ours(f->o.store, page.group);
}

/* The first page of a table that keeps its tile while a row is in `slot`. */
static uint32_t first_kept(const kv_filling *f, uint32_t slot)
{
    uint32_t own = slot / f->wide.page_tokens;
    return own > f->pages_before ? own - f->pages_before : 0;
}

/* Marks the tiles that open tables read in this step's rows or later. */
static void mark_wanted(kv_filling *f, const forward_seq *seqs, uint32_t n_seqs)
{
    memset(f->rows, 0, f->o.max_seqs * sizeof *f->rows);
    for (uint32_t i = 0; i < n_seqs; i++) f->rows[seqs[i].seq] = seqs[i].n_rows;
    for (uint32_t i = 1; i <= f->n_tiles; i++) f->tiles[i].wanted = false;
    for (uint32_t seq = 0; seq < f->o.max_seqs; seq++)
        for (uint32_t g = 0; g < pkv_groups(&f->o.store->geometry); g++) {
            if (!kv_store_is_ours(f->o.store, g)) continue;
            pkv_table_view table = pkv_mirror_table(f->o.mirror, seq, g);
            uint32_t first = first_kept(f, table.kept_tokens - f->rows[seq]);
            for (uint32_t p = first; p < table.n_pages; p++)
                f->tiles[f->tile_of[cell_at(table, p)]].wanted = true;
        }
}

/* Frees the tiles of pages that were given up, and of shared pages that no table reads as bf16 any
 * more. It runs once the step's moves, which may read such pages, are done. */
static void sweep(kv_filling *f, const forward_seq *seqs, uint32_t n_seqs)
{
    if (f->n_free >= f->n_tiles / 2) return;
    if (f->pages_before > 0) mark_wanted(f, seqs, n_seqs);
    for (uint32_t i = 1; i <= f->n_tiles; i++) {
        uint32_t id = f->tiles[i].id;
        if (id == 0 || id >= f->o.store->n_cells) continue;
        if (is_running(f, id) && (f->pages_before == 0 || f->tiles[i].wanted)) continue;
        if (!pkv_mirror_page_at(f->o.mirror, id).parked) drop_tile(f, id);
    }
}

/* Stores the least recently used page outside open tables as if it were full; frees its tile. */
static bool settle_one(kv_filling *f)
{
    uint32_t oldest = 0;
    for (uint32_t i = 1; i <= f->n_tiles; i++) {
        const filling_tile *t = &f->tiles[i];
        if (oldest && t->used >= f->tiles[oldest].used) continue;
        if (is_running(f, t->id)) continue;
        oldest = i;
    }
    if (oldest == 0) return false;
    uint32_t id = f->tiles[oldest].id;
    if (!has_both(f, id)) {
        pad_page(f, tile_data(f, oldest), f->tiles[oldest].fill);
        pack_page(f, id, tile_data(f, oldest));
    }
    drop_tile(f, id);
    return true;
}

static status take_tile(kv_filling *f, uint32_t id, uint8_t **out)
{
    *out = find_tile(f, id);
    if (*out) return STATUS_IS_OK;
    if (f->n_free == 0 && !settle_one(f))
        return status_make(STATUS_INTERNAL, "more pages fill than can run");
    uint32_t tile = f->free[--f->n_free];
    f->tile_of[id] = tile;
    f->tiles[tile] = (filling_tile){.id = id, .fill = 1};
    *out = find_tile(f, id);
    return STATUS_IS_OK;
}

/* Sets the number of written slots. The stored form, if any, is no longer valid. */
static void set_fill(kv_filling *f, uint32_t id, uint32_t fill)
{
    f->tiles[f->tile_of[id]].fill = fill;
    f->tiles[f->tile_of[id]].stored = false;
}

/* Gives the page a tile to write to, filled from the stored form if the page had none. */
static status reopen(kv_filling *f, uint32_t id, uint8_t **out)
{
    const kv_store *s = f->o.store;
    bool had = f->tile_of[id] != 0;
    RETURN_IF_ERROR(take_tile(f, id, out));
    for (uint32_t t = 0; !had && t < f->tiles_in_page; t++)
        kern_kv_unpack(f->o.kernels, &s->shape, stored_page(f, id) + t * s->tile_bytes,
                       *out + t * f->tile_bytes);
    return STATUS_IS_OK;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Copies page `src` to page `dst`, in each form that it has. */
static status copy_page(kv_filling *f, uint32_t src, uint32_t dst)
{
    if (f->tile_of[src]) {
        uint8_t *to;
        RETURN_IF_ERROR(take_tile(f, dst, &to));
    }
    const uint8_t *wide = find_tile(f, src); /* making room may have stored `src` */
    if (wide) {
        memcpy(find_tile(f, dst), wide, f->page_bytes);
        set_fill(f, dst, f->tiles[f->tile_of[src]].fill);
        f->tiles[f->tile_of[dst]].stored = has_both(f, src);
    } else {
        drop_tile(f, dst);
    }
    if (!wide || has_both(f, src))
        memcpy(stored_page(f, dst), stored_page(f, src), f->o.store->page_bytes);
    return STATUS_IS_OK;
}

status kv_filling_move(kv_filling *f, const rope_config *rope, const pkv_move *m)
{
    const kv_store *s = f->o.store;
    uint32_t end = m->dst_slot + m->n_slots, page_tokens = s->shape.page_tokens;
    bool whole = m->n_slots == page_tokens && m->rotate == 0;
    if (!kv_store_is_ours(s, m->group)) return STATUS_IS_OK;
    if (m->fresh && whole && (!find_tile(f, m->src_page) || has_both(f, m->src_page)))
        return copy_page(f, m->src_page, m->dst_page);
    uint8_t *dst = find_tile(f, m->dst_page);
    bool in_both = dst && !m->fresh && has_both(f, m->dst_page);
    if (m->fresh && m->dst_slot == 0) {
        RETURN_IF_ERROR(take_tile(f, m->dst_page, &dst));
        set_fill(f, m->dst_page, end); /* slots of the page's former use do not count */
    }
    const uint8_t *src = find_tile(f, m->src_page);
    kv_place from = src ? (kv_place){&f->wide, (uint8_t *)src, f->tile_bytes}
                        : (kv_place){&s->shape, stored_page(f, m->src_page), s->tile_bytes};
    const kv_place stored = {&s->shape, stored_page(f, m->dst_page), s->tile_bytes};
    kv_place to = dst ? (kv_place){&f->wide, dst, f->tile_bytes} : stored;
    if (in_both) kv_move_slots(f->o.kernels, rope, m, f->tiles_in_page, stored, from);
    kv_move_slots(f->o.kernels, rope, m, f->tiles_in_page, to, from);
    if (!dst || in_both) return STATUS_IS_OK;
    if (end > f->tiles[f->tile_of[m->dst_page]].fill) set_fill(f, m->dst_page, end);
    if (end < page_tokens) return STATUS_IS_OK;
    pack_page(f, m->dst_page, dst);
    drop_tile(f, m->dst_page);
    return STATUS_IS_OK;
}

status kv_filling_copy(kv_filling *f, const pkv_move *m)
{
    bool out = m->kind == PKV_MOVE_OUT;
    uint32_t src = out ? m->src_page : host_id(f, m->src_page);
    uint32_t dst = out ? host_id(f, m->dst_page) : m->dst_page;
    if (!kv_store_is_ours(f->o.store, m->group)) return STATUS_IS_OK;
    RETURN_IF_ERROR(copy_page(f, src, dst));
    if (!out) drop_tile(f, src); /* the host tier's page is free now */
    return STATUS_IS_OK;
}

/* ---- a layer --------------------------------------------------------------------------------- */

/* The pages of a table that its last n_rows slots lie in. */
typedef struct page_range {
    uint32_t first, end; /* pages */
    uint32_t first_slot; /* slot of the first page where the rows begin */
} page_range;

static page_range written_pages(const kv_store *s, pkv_table_view table, uint32_t n_rows)
{
    uint32_t slot = table.kept_tokens - n_rows, page_tokens = s->shape.page_tokens;
    return (page_range){slot / page_tokens, (table.kept_tokens - 1) / page_tokens + 1,
                        slot % page_tokens};
}

/* Lists a table's pages whose tiles the row behind its last slot no longer reads. Shared and parked
 * pages are left to the sweep, because another table may still read them; pages that this step
 * writes are the table's own. */
static void list_leaving(kv_filling *f, pkv_table_view table, page_range range)
{
    uint32_t first_slot = range.first * f->wide.page_tokens + range.first_slot;
    uint32_t end = first_kept(f, table.kept_tokens);
    for (uint32_t i = first_kept(f, first_slot); i < end; i++) {
        pkv_mirror_page page = pkv_mirror_page_at(f->o.mirror, cell_at(table, i));
        if (i >= range.first || (!page.shared && !page.parked))
            f->leaving[f->n_leaving++] = cell_at(table, i);
    }
}

/* Gives tiles to the pages that one table's rows are written to. */
static status open_pages(kv_filling *f, pkv_table_view table, page_range range)
{
    uint32_t page_tokens = f->wide.page_tokens;
    for (uint32_t i = range.first; i < range.end; i++) {
        uint8_t *wide;
        bool begun = i == range.first && range.first_slot > 0;
        RETURN_IF_ERROR((begun ? reopen : take_tile)(f, cell_at(table, i), &wide));
        uint32_t fill = table.kept_tokens - i * page_tokens;
        set_fill(f, cell_at(table, i), fill < page_tokens ? fill : page_tokens);
        if (fill >= page_tokens) f->full[f->n_full++] = cell_at(table, i);
    }
    list_leaving(f, table, range);
    return STATUS_IS_OK;
}

status kv_filling_begin(kv_filling *f, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs)
{
    const kv_store *s = f->o.store;
    size_t n = 0;
    f->n_jobs = f->n_full = f->n_leaving = 0;
    if (layer == 0) sweep(f, seqs, n_seqs);
    for (uint32_t i = 0; i < n_seqs; i++)
        for (uint32_t head = 0; head < s->n_heads; head++) {
            pkv_table_view table =
                pkv_mirror_table(f->o.mirror, seqs[i].seq, kv_store_group(s, layer, head));
            page_range range = written_pages(s, table, seqs[i].n_rows);
            if (head % s->heads_in_page == 0) RETURN_IF_ERROR(open_pages(f, table, range));
            f->first[(size_t)i * s->n_heads + head] = (uint32_t)n;
            size_t tile = kv_store_tile(s, layer, head);
            for (uint32_t p = kv_store_first_wide(s, table.kept_tokens - seqs[i].n_rows);
                 p < range.end; p++) {
                const uint8_t *page = find_tile(f, cell_at(table, p));
                const uint8_t *wide = page ? page + tile * f->tile_bytes : NULL;
                assert(n < f->max_pointers && (wide || p < range.first));
                f->pointers[n++] = wide;
                if (p >= range.first && table.kept_tokens / s->shape.page_tokens > p)
                    f->jobs[f->n_jobs++] =
                        (pack_job){wide, stored_page(f, cell_at(table, p)) + tile * s->tile_bytes};
            }
        }
    return STATUS_IS_OK;
}

static void run_jobs(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const kv_filling *f = ctx;
    for (size_t i = from; i < to; i++)
        kern_kv_pack(f->o.kernels, &f->o.store->shape, f->jobs[i].wide, f->jobs[i].tile);
}

void kv_filling_store(kv_filling *f)
{
    if (f->n_jobs > 0) thread_pool_for(f->o.pool, f->n_jobs, 1, run_jobs, f);
}

void kv_filling_end(kv_filling *f, uint32_t layer)
{
    const pkv_geometry *g = &f->o.store->geometry;
    bool last = (layer + 1) % g->layers_per_group == 0 || layer + 1 == g->n_layers;
    for (size_t i = 0; last && i < f->n_full; i++) f->tiles[f->tile_of[f->full[i]]].stored = true;
    for (size_t i = 0; last && i < f->n_leaving; i++) drop_tile(f, f->leaving[i]);
}

const uint8_t *const *kv_filling_tiles(const kv_filling *f, uint32_t index, uint32_t head)
{
    return f->pointers + f->first[(size_t)index * f->o.store->n_heads + head];
}

/* ---- creation -------------------------------------------------------------------------------- */

/* Pages before a table's own that keep tiles: with a residual, one more than rows read. */
static uint32_t count_before(const kv_store *s)
{
    return s->residual_pages ? s->residual_pages + 1 : 0;
}

/* Tiles for the last page and those kept before it, in each of this rank's tables that can run and
 * as many that wait; and for the pages that a layer's rows fill. */
static uint32_t count_tiles(const kv_store *s, uint32_t max_rows, uint32_t max_seqs)
{
    size_t filled = max_rows / s->shape.page_tokens + 2 * (size_t)max_seqs;
    size_t of_table = 1 + (size_t)count_before(s), of_layer = s->n_heads / s->heads_in_page;
    return (uint32_t)(2 * (size_t)max_seqs * of_table * pkv_layer_groups(&s->geometry) * of_layer +
                      filled * of_layer);
}

size_t kv_filling_size(const kv_store *s, uint32_t max_rows, uint32_t max_seqs)
{
    kern_kv_shape wide = kern_kv_wide(&s->shape);
    size_t page = kern_kv_tile_bytes(&wide) * s->geometry.layers_per_group * s->heads_in_page;
    return count_tiles(s, max_rows, max_seqs) * page;
}

size_t kv_filling_bytes(const kv_filling *f) { return f->n_tiles * f->page_bytes; }

status kv_filling_create(const kv_filling_options *options, kv_filling **out)
{
    const kv_store *s = options->store;
    kv_filling *f = calloc(1, sizeof *f);
    if (!f) return status_make(STATUS_NO_MEMORY, "pages that fill");
    f->o = *options;
    f->wide = kern_kv_wide(&s->shape);
    f->tile_bytes = kern_kv_tile_bytes(&f->wide);
    f->tiles_in_page = s->geometry.layers_per_group * s->heads_in_page;
    f->page_bytes = f->tile_bytes * f->tiles_in_page;
    f->n_tiles = count_tiles(s, options->max_rows, options->max_seqs);
    f->pages_before = count_before(s);
    f->max_pointers = s->n_heads * (options->max_rows / s->shape.page_tokens +
                                    (2 + (size_t)f->pages_before) * options->max_seqs);
    f->tile_of_bytes = ((size_t)s->n_cells + s->n_host_cells) * sizeof *f->tile_of;
    f->tile_of = alloc_pages(f->tile_of_bytes);
    f->data = alloc_pages(kv_filling_bytes(f));
    f->tiles = calloc((size_t)f->n_tiles + 1, sizeof *f->tiles);
    f->free = calloc(f->n_tiles, sizeof *f->free);
    f->pointers = calloc(f->max_pointers, sizeof *f->pointers);
    f->first = calloc((size_t)options->max_seqs * s->n_heads, sizeof *f->first);
    f->jobs = calloc(f->max_pointers, sizeof *f->jobs);
    f->full = calloc(f->max_pointers, sizeof *f->full);
    f->leaving = calloc(f->max_pointers, sizeof *f->leaving);
    f->rows = calloc(options->max_seqs, sizeof *f->rows);
    if (!f->tile_of || !f->data || !f->tiles || !f->free || !f->pointers || !f->first || !f->jobs ||
        !f->full || !f->leaving || !f->rows) {
        kv_filling_destroy(f);
        return status_make(STATUS_NO_MEMORY, "pages that fill");
    }
    for (uint32_t i = 0; i < f->n_tiles; i++) f->free[f->n_free++] = f->n_tiles - i;
    *out = f;
    return STATUS_IS_OK;
}

void kv_filling_destroy(kv_filling *f)
{
    if (!f) return;
    alloc_pages_free(f->tile_of, f->tile_of_bytes);
    alloc_pages_free(f->data, kv_filling_bytes(f));
    free(f->tiles);
    free(f->free);
    free(f->pointers);
    free(f->first);
    free(f->jobs);
    free(f->full);
    free(f->leaving);
    free(f->rows);
    free(f);
}
