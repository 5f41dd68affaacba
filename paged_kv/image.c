/* Sequences that go to another pool: the image of a parked one, and a parked one made of an image,
 * on fresh pages. The cells of an image are told in the order of KV groups, whatever the grain is,
 * because the other pool may have no runs of that grain. */
#include "paged_kv/pool.h"
#include "paged_kv/portions.h"
#include "paged_kv/records.h"
#include "paged_kv/table.h"

static uint32_t image_tables(const pkv_geometry *g, pkv_grain grain)
{
    pkv_geometry at = pkv_geometry_at(g, grain);
    return pkv_groups(&at);
}

static uint32_t pages_of_tokens(uint32_t page_tokens, uint32_t n)
{
    return n / page_tokens + (n % page_tokens != 0);
}

uint32_t pkv_image_slots(const pkv_geometry *g, const pkv_image_table *t)
{
    uint64_t n = (uint64_t)t->slot_pages * g->page_tokens;
    return n < t->kept ? (uint32_t)n : t->kept;
}

/* ---- out ------------------------------------------------------------------------------------- */

uint32_t pkv_parked_tables(const pkv *p, uint32_t parked) { return parked_at(p, parked)->groups; }

pkv_image pkv_parked_image(const pkv *p, uint32_t parked, pkv_image_table *tables)
{
    const pkv_seq *s = parked_at(p, parked);
    for (uint32_t i = 0; i < s->groups; i++) {
        const pkv_table *t = &s->tables[i];
        tables[i] = (pkv_image_table){.kept = t->kept,
                                      .slot_pages = t->slot_pages,
                                      .bases = seq_bases(s, i),
                                      .slots = t->slots,
                                      .pages = seq_pages(s, i)};
    }
    return (pkv_image){.grain = s->grain,
                       .length = s->length,
                       .dropped = s->dropped,
                       .contiguous = s->contiguous,
                       .tables = tables};
}

uint32_t pkv_list_cells(const pkv *p, const pkv_image *image, uint32_t first, uint32_t n,
                        uint32_t *to)
{
    uint32_t done = 0, heads = p->pool.n_heads;
    uint32_t parts = p->groups / image_tables(&p->geometry, image->grain);
    for (uint32_t g = 0; g < p->groups && done < n; g++) {
        const pkv_image_table *t = &image->tables[g / parts];
        uint32_t pages = pages_for(p, t->kept);
        uint32_t offset =
            pkv_cell_offset(&p->geometry, p->n_pages - 1, image->grain, g / heads, g % heads);
        for (uint32_t i = first; i < pages && done < n; i++) to[done++] = t->pages[i] + offset;
        first -= first < pages ? first : pages;
    }
    return done;
}

/* ---- checks ---------------------------------------------------------------------------------- */

uint64_t pkv_image_cells(const pkv_geometry *g, const pkv_image *image)
{
    uint32_t tables = image_tables(g, image->grain), parts = pkv_groups(g) / tables;
    uint64_t n = 0;
    for (uint32_t i = 0; i < tables; i++)
        n += (uint64_t)pages_of_tokens(g->page_tokens, image->tables[i].kept) * parts;
    return n;
}

static uint32_t image_position(const pkv_geometry *g, const pkv_image_table *t, uint32_t slot)
{
    uint32_t page = slot / g->page_tokens;
    return page < t->slot_pages ? t->slots[slot] : t->bases[page] + slot % g->page_tokens;
}

/* Whether each slot has a position of its own below the length. `seen` has a bit for each, all 0,
 * and is left so. */
static bool positions_fit(const pkv_geometry *g, const pkv_image *image, const pkv_image_table *t,
                          uint64_t *seen)
{
    bool fits = true;
    uint32_t n = 0, last = 0;
    for (; fits && n < t->kept; n++) {
        uint32_t at = image_position(g, t, n);
        fits = at < image->length && !(seen[at / 64] >> at % 64 & 1) &&
               (image->dropped || at == n) && (!image->contiguous || n == 0 || at > last);
        if (fits) seen[at / 64] |= 1ull << at % 64;
        last = at;
    }
    memset(seen, 0, ((size_t)image->length / 64 + 1) * sizeof *seen);
    return fits;
}

/* Whether the next token of a table gets the position that follows the sequence: where a page with
 * a base has room, that is its next slot's. */
static bool goes_on(const pkv_geometry *g, const pkv_image *image, const pkv_image_table *t)
{
    bool has_room = t->kept % g->page_tokens != 0;
    bool scattered = t->slot_pages == pages_of_tokens(g->page_tokens, t->kept);
    return !has_room || scattered || image_position(g, t, t->kept) == image->length;
}

bool pkv_image_fits(const pkv_geometry *g, const pkv_image *image)
{
    uint32_t tables = image_tables(g, image->grain), size = g->page_tokens;
    bool fits = image->length > 0 && (image->dropped || !image->contiguous);
    for (uint32_t i = 0; fits && i < tables; i++) {
        const pkv_image_table *t = &image->tables[i];
        fits = t->kept <= image->length && t->slot_pages <= pages_of_tokens(size, t->kept) &&
               (image->dropped || (t->kept == image->length && t->slot_pages == 0)) &&
               (!image->contiguous || t->kept == image->tables[0].kept);
    }
    uint64_t *seen = fits ? alloc_zeroed(NULL, (size_t)image->length / 64 + 1, sizeof *seen) : NULL;
    for (uint32_t i = 0; seen && fits && i < tables; i++)
        fits = positions_fit(g, image, &image->tables[i], seen) &&
               goes_on(g, image, &image->tables[i]);
    fits = fits && seen != NULL;
    alloc_free(NULL, seen);
    return fits;
}

/* ---- in -------------------------------------------------------------------------------------- */

uint64_t pkv_image_cost(const pkv *p, const pkv_image *image)
{
    if (image->grain != PKV_HEAD || p->pool.n_shares == 1)
        return pkv_image_cells(&p->geometry, image);
    shares_clear(p);
    for (uint32_t g = 0; g < p->groups; g++)
        shares_add(p, 0, g, pages_for(p, image->tables[g].kept));
    return shares_even(p, 0);
}

/* Gives the record tables of `grain` with room for the image's pages and positions. */
static status shape_record(pkv *p, pkv_seq *s, const pkv_image *image, pkv_grain grain)
{
    uint32_t tables = image_tables(&p->geometry, image->grain), row = 1;
    for (uint32_t i = 0; i < tables; i++) {
        uint32_t n = pages_for(p, image->tables[i].kept);
        if (n > row) row = n;
    }
    RETURN_IF_ERROR(seq_shape(p, s, grain, row));
    for (uint32_t i = 0; i < s->groups; i++) {
        const pkv_image_table *from = &image->tables[i / (s->groups / tables)];
        RETURN_IF_ERROR(table_reserve_slots(p, &s->tables[i], from->slot_pages));
    }
    return STATUS_IS_OK;
}

/* Takes the next n pages of a table, whose positions are those of the image's. */
static void take_pages(pkv *p, pkv_seq *s, uint32_t table, const pkv_image_table *from, uint32_t n)
{
    pkv_table *t = &s->tables[table];
    uint32_t size = p->geometry.page_tokens, first = t->n_pages, end = first + n;
    for (uint32_t i = first; i < end;)
        i += pool_take_some(p, s->grain, table, end - i, seq_pages(s, table) + i);
    for (uint32_t i = first; i < end; i++)
        seq_bases(s, table)[i] = i < from->slot_pages ? 0 : from->bases[i];
    t->n_pages = end;
    t->kept = end == pages_for(p, from->kept) ? from->kept : end * size;
    t->slot_pages = end < from->slot_pages ? end : from->slot_pages;
    if (t->slot_pages > first) {
        uint32_t stop = t->slot_pages * size < t->kept ? t->slot_pages * size : t->kept;
        size_t at = (size_t)first * size;
        memcpy(t->slots + at, from->slots + at, (stop - at) * sizeof *t->slots);
    }
    s->held += n * cells_of(p, s);
    /* The record has the references. */
    rows_add_refs(p, &p->pool, s, (table_rows){table, table + 1, first, end}, 0, 1);
}

static void promise(pkv *p, pkv_seq *s, uint32_t cells)
{
    p->promised += cells - s->adopting.promised;
    s->adopting.promised = cells;
}

/* How many tables of the record are parts of one table of the image. */
static uint32_t parts_of(const pkv *p, const pkv_seq *s, const pkv_image *image)
{
    return s->groups / image_tables(&p->geometry, image->grain);
}

/* Begins to make the record's tables finer, up to a grain of which the pool has the pages that the
 * record lacks. */
static status begin_finer(pkv *p, pkv_seq *s, const pkv_image *image)
{
    uint64_t left = pkv_image_cells(&p->geometry, image) - s->held;
    RETURN_IF_ERROR(splitting_begin(p, s, tree_grain(p, &p->pool, s->grain + 1, left)));
    pkv_splitting *x = s->splitting;
    uint32_t parts = x->groups / image_tables(&p->geometry, image->grain);
    for (uint32_t i = 0; i < x->groups; i++) {
        status st = table_reserve_slots(p, &x->tables[i], image->tables[i / parts].slot_pages);
        if (!status_ok(st)) {
            splitting_free(p, s);
            return st;
        }
    }
    return STATUS_IS_OK;
}

/* Splits pages that the record has, at least one. Each counts as many pages as it has parts,
 * because it takes their time. Returns how many of `most` pages were spent. */
static uint32_t go_on_finer(pkv *p, pkv_seq *s, uint32_t most)
{
    uint32_t parts = s->splitting->groups / s->groups;
    uint64_t spent = (uint64_t)record_split_some(p, s, most > parts ? most / parts : 1) * parts;
    if (s->splitting) return most;
    return spent < most ? (uint32_t)spent : most;
}

/* Takes at most `most` pages of one table. Where others have broken the runs that it needs, its
 * tables become finer first. */
static status take_some(pkv *p, pkv_seq *s, const pkv_image *image, uint32_t most, uint32_t *n)
{
    pkv_adopting *x = &s->adopting;
    const pkv_image_table *from = &image->tables[x->table / parts_of(p, s, image)];
    uint32_t left = pages_for(p, from->kept) - s->tables[x->table].n_pages;
    uint32_t now = left < most ? left : most, cells = now * cells_of(p, s);
    *n = 0;
    if (!pool_has(p, s->grain, x->table, now))
        return s->grain == PKV_HEAD ? status_make(STATUS_NO_PAGES, NULL) : begin_finer(p, s, image);
    if (now > 0) take_pages(p, s, x->table, from, now);
    promise(p, s, cells < x->promised ? x->promised - cells : 0);
    *n = now;
    if (now == left) x->on = ++x->table < s->groups;
    return STATUS_IS_OK;
}

void seq_stop_adopting(pkv *p, pkv_seq *s)
{
    if (s->splitting) (void)record_split_some(p, s, UINT32_MAX);
    promise(p, s, 0);
    s->adopting.on = false;
}

status pkv_adopt_some(pkv *p, uint32_t parked, const pkv_image *image, uint32_t most, uint32_t *n)
{
    pkv_seq *s = parked_at(p, parked);
    status st = STATUS_IS_OK;
    for (*n = 0; s->adopting.on && *n < most && status_ok(st);) {
        uint32_t now = 0;
        if (s->splitting) now = go_on_finer(p, s, most - *n);
        else st = take_some(p, s, image, most - *n, &now);
        *n += now;
    }
    if (!s->adopting.on) promise(p, s, 0);
    return st;
}

status pkv_adopt(pkv *p, const pkv_image *image, uint64_t salt, bool hidden, bool may_publish,
                 uint32_t *parked)
{
    uint64_t cost = pkv_image_cost(p, image);
    if (cost > pkv_available(p)) return status_make(STATUS_NO_PAGES, NULL);
    uint32_t number = record_find(p);
    if (number == 0) return status_make(STATUS_NO_MEMORY, NULL);
    pkv_grain grain = tree_grain(p, &p->pool, image->grain, pkv_image_cells(&p->geometry, image));
    RETURN_IF_ERROR(shape_record(p, &p->swaps[number].seq, image, grain));
    record_take(p, number, true);
    pkv_seq *s = &p->swaps[number].seq;
    s->dropped = image->dropped;
    s->contiguous = image->contiguous;
    s->sealed = s->unshared = s->forked = false;
    s->silent = !may_publish;
    s->hidden = hidden;
    s->salt = salt;
    s->length = image->length;
    s->held = s->published = s->cursor = s->cursor_generation = 0;
    for (uint32_t i = 0; i < s->groups; i++) table_clear(&s->tables[i]);
    s->adopting = (pkv_adopting){.on = true};
    promise(p, s, (uint32_t)cost);
    *parked = number;
    return STATUS_IS_OK;
}
