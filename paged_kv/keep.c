/* Applies a selection of retention to a table: drops whole pages, fills holes from the table's end,
 * or gathers everything. Which of the three depends on the bits, and on whether positions are to be
 * contiguous: then it gathers. */
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"
#include "paged_kv/table.h"

/* The first bit from `from` on that is set (or not), or `end`. */
static uint32_t find_bit(const uint64_t *bits, size_t from, uint32_t end, bool set)
{
    while (from < end) {
        uint64_t word = (set ? bits[from / 64] : ~bits[from / 64]) >> from % 64;
        if (word != 0) {
            size_t at = from + (size_t)__builtin_ctzll(word);
            return at < end ? (uint32_t)at : end;
        }
        from = (from / 64 + 1) * 64;
    }
    return end;
}

static uint32_t count_bits(const uint64_t *bits, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n / 64; i++) count += (uint32_t)__builtin_popcountll(bits[i]);
    if (n % 64 != 0) count += (uint32_t)__builtin_popcountll(bits[n / 64] << (64 - n % 64));
    return count;
}

/* Scratch of one pkv_seq_keep; grows by doubling. */
static void *scratch_room(pkv *p, size_t bytes)
{
    if (bytes > p->scratch_bytes) {
        size_t n = bytes > 2 * p->scratch_bytes ? bytes : 2 * p->scratch_bytes;
        void *grown = alloc_resize(&p->alloc, p->scratch, n, 1);
        if (!grown) return NULL;
        p->scratch = grown;
        p->scratch_bytes = n;
    }
    return p->scratch;
}

/* ---- pages replaced by copies ---------------------------------------------------------------- */

static void log_replaced(pkv *p, size_t count_at, uint32_t index)
{
    log_word(p, index);
    log_word(p, 0);
    p->log.words[count_at]++;
}

/* Replaces the pages listed in a TRIM by copies and returns their number. The copies are the last
 * moves of the log. The old pages keep their references. */
static uint32_t replace_pages(pkv *p, uint32_t id, uint32_t table, size_t count_at)
{
    const pkv_seq *s = &p->seqs[id];
    const pkv_table *t = &s->tables[table];
    uint32_t *pages = seq_pages(s, table), size = p->geometry.page_tokens;
    uint64_t key = checksum_key(id, table);
    uint32_t *word = p->log.words + count_at, n = *word++;
    for (uint32_t i = 0; i < n; i++, word += 2) {
        uint32_t index = word[0], old = pages[index], fresh = pool_take(p, s->grain, table);
        uint32_t fill = t->kept - index * size;
        word[1] = pages[index] = fresh;
        p->checksum += checksum_page(key, index, fresh) - checksum_page(key, index, old);
        log_move(p, (pkv_move){.grain = s->grain,
                               .group = table,
                               .src_page = old,
                               .dst_page = fresh,
                               .n_slots = fill < size ? fill : size,
                               .fresh = 1});
    }
    return n;
}

static void unref_sources(pkv *p, const pkv_seq *s, size_t first_move, uint32_t n)
{
    while (n-- > 0) pool_unref(p, s->grain, p->log.moves[first_move + n].src_page);
}

/* Counts the pages that others hold too; *cells are theirs, as many from each share. */
static uint32_t count_common(const pkv *p, const pkv_seq *s, uint64_t *cells)
{
    uint32_t n = 0;
    shares_clear(p);
    for (uint32_t g = 0; g < s->groups; g++) {
        uint32_t before = n;
        for (uint32_t i = 0; i < s->tables[g].n_pages; i++)
            n += is_common(p, s->grain, seq_pages(s, g)[i]);
        if (s->grain == PKV_HEAD) shares_add(p, 0, g, n - before);
    }
    *cells = s->grain == PKV_HEAD ? shares_even(p, 0) : (uint64_t)n * cells_of(p, s);
    return n;
}

status pkv_seq_unshare(pkv *p, uint32_t id)
{
    pkv_seq *s = seq_changing(p, id);
    uint64_t cells;
    uint32_t n = count_common(p, s, &cells);
    if (cells > pkv_available(p)) return status_make(STATUS_NO_PAGES, NULL);
    RETURN_IF_ERROR(pkv_seq_split(p, id, s->grain, n * cells_of(p, s)));
    n = count_common(p, s, &cells);
    RETURN_IF_ERROR(log_room(p, (size_t)s->groups * DELTA_TRIM_HEAD + (size_t)2 * n, n, 0));
    for (uint32_t g = 0; g < s->groups; g++) {
        pkv_table *t = &s->tables[g];
        uint32_t i = 0;
        while (i < t->n_pages && !is_common(p, s->grain, seq_pages(s, g)[i])) i++;
        if (i == t->n_pages) continue;
        size_t count_at = log_trim(p, id, g, t->kept), first_move = p->log.n_moves;
        for (; i < t->n_pages; i++) {
            if (is_common(p, s->grain, seq_pages(s, g)[i])) log_replaced(p, count_at, i);
        }
        unref_sources(p, s, first_move, replace_pages(p, id, g, count_at));
        t->drop_epoch = 0;
    }
    s->forked = false;
    s->unshared = true;
    return STATUS_IS_OK;
}

/* ---- few slots: holes are filled from the end ------------------------------------------------ */

/* Slot from[i] moves to to[i]; both ascend. */
typedef struct hole_list {
    uint32_t n;
    uint32_t to[PAGE_TOKENS_MOST], from[PAGE_TOKENS_MOST];
} hole_list;

static void find_holes(const uint64_t *keep, uint32_t kept, uint32_t left, hole_list *holes)
{
    holes->n = 0;
    uint32_t to = find_bit(keep, 0, left, false), from = find_bit(keep, left, kept, true);
    while (to < left) {
        holes->to[holes->n] = to;
        holes->from[holes->n++] = from;
        to = find_bit(keep, (size_t)to + 1, left, false);
        from = find_bit(keep, (size_t)from + 1, kept, true);
    }
}

/* The number of next moves that form one run inside one source page and one destination page. */
static uint32_t run_of(const hole_list *holes, uint32_t i, uint32_t size)
{
    uint32_t n = 1;
    while (i + n < holes->n && holes->to[i + n] == holes->to[i] + n &&
           holes->from[i + n] == holes->from[i] + n && holes->to[i + n] % size != 0 &&
           holes->from[i + n] % size != 0) {
        n++;
    }
    return n;
}

/* Lists the shared or hashed pages that the moves or the next token will write. */
static uint32_t list_written(const pkv *p, pkv_grain grain, const uint32_t *pages,
                             const hole_list *holes, uint32_t left,
                             uint32_t list[PAGE_TOKENS_MOST + 1])
{
    uint32_t size = p->geometry.page_tokens, n = 0, seen = UINT32_MAX;
    for (uint32_t i = 0; i < holes->n; i++) {
        uint32_t index = holes->to[i] / size;
        if (index != seen && is_common(p, grain, pages[index])) list[n++] = index;
        seen = index;
    }
    uint32_t last = left / size;
    if (left % size != 0 && last != seen && is_common(p, grain, pages[last])) list[n++] = last;
    return n;
}

/* Writes the positions of the first n pages to `slots`, which has room for them. */
static void list_positions(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t n)
{
    pkv_table *t = &s->tables[table];
    uint32_t size = p->geometry.page_tokens;
    for (; t->slot_pages < n; t->slot_pages++) {
        uint32_t base = seq_bases(s, table)[t->slot_pages];
        uint32_t *slots = t->slots + (size_t)t->slot_pages * size;
        for (uint32_t i = 0; i < size; i++) slots[i] = base + i;
    }
}

static status fill_holes(pkv *p, uint32_t id, uint32_t table, const uint64_t *keep, uint32_t left)
{
    pkv_seq *s = &p->seqs[id];
    pkv_table *t = &s->tables[table];
    uint32_t *pages = seq_pages(s, table), size = p->geometry.page_tokens;
    uint32_t n_old = t->n_pages, n_new = pages_for(p, left);
    hole_list holes;
    uint32_t written[PAGE_TOKENS_MOST + 1];
    find_holes(keep, t->kept, left, &holes);
    uint32_t n_written = list_written(p, s->grain, pages, &holes, left, written);
    if (!pool_has(p, s->grain, table, n_written)) return status_make(STATUS_NO_PAGES, NULL);
    RETURN_IF_ERROR(table_reserve_slots(p, t, n_new));
    RETURN_IF_ERROR(
        log_room(p, DELTA_TRIM_HEAD + (size_t)2 * n_written, (size_t)n_written + holes.n, 0));

    size_t count_at = log_trim(p, id, table, left), first_move = p->log.n_moves;
    for (uint32_t i = 0; i < n_written; i++) log_replaced(p, count_at, written[i]);
    replace_pages(p, id, table, count_at);
    for (uint32_t i = 0, n; i < holes.n; i += n) {
        n = run_of(&holes, i, size);
        log_move(p, (pkv_move){.grain = s->grain,
                               .group = table,
                               .src_page = pages[holes.from[i] / size],
                               .src_slot = holes.from[i] % size,
                               .dst_page = pages[holes.to[i] / size],
                               .dst_slot = holes.to[i] % size,
                               .n_slots = n});
    }
    list_positions(p, s, table, n_new);
    for (uint32_t i = 0; i < holes.n; i++) {
        t->slots[holes.to[i]] = table_position(p, s, table, holes.from[i]);
    }
    t->slot_pages = n_new;

    uint64_t key = checksum_key(id, table);
    for (uint32_t i = n_old; i-- > n_new;) {
        p->checksum -= checksum_page(key, i, pages[i]);
        pool_unref(p, s->grain, pages[i]);
    }
    unref_sources(p, s, first_move, n_written);
    t->n_pages = n_new;
    t->drop_epoch = 0;
    table_set_kept(p, id, table, left);
    s->held -= (n_old - n_new) * cells_of(p, s);
    s->dropped = true;
    p->counts.pages_dropped += (n_old - n_new) * (uint64_t)cells_of(p, s);
    return STATUS_IS_OK;
}

/* ---- which of the three ---------------------------------------------------------------------- */

/* Whether each page keeps all of its slots or none; page_keep then has a bit for each page. */
static bool whole_pages(const pkv *p, const pkv_table *t, const uint64_t *keep, uint64_t *page_keep)
{
    uint32_t size = p->geometry.page_tokens;
    memset(page_keep, 0, ((size_t)t->n_pages + 63) / 64 * sizeof *page_keep);
    for (uint32_t i = 0; i < t->n_pages; i++) {
        uint32_t from = i * size, to = t->kept - from < size ? t->kept : from + size;
        bool stays = keep_bit(keep, from);
        if (find_bit(keep, from, to, !stays) < to) return false;
        if (stays) page_keep[i / 64] |= UINT64_C(1) << i % 64;
    }
    return true;
}

static status gather_slots(pkv *p, uint32_t id, uint32_t table, const uint64_t *keep, uint32_t left,
                           bool contiguous)
{
    uint32_t kept = p->seqs[id].tables[table].kept, n = 0;
    uint32_t *list = scratch_room(p, ((size_t)left + 1) * sizeof *list);
    if (!list) return status_make(STATUS_NO_MEMORY, NULL);
    for (uint32_t i = find_bit(keep, 0, kept, true); i < kept;
         i = find_bit(keep, (size_t)i + 1, kept, true)) {
        list[n++] = i;
    }
    RETURN_IF_ERROR(table_gather(p, id, table, list, left, contiguous));
    p->seqs[id].contiguous = contiguous;
    return STATUS_IS_OK;
}

status pkv_seq_keep(pkv *p, uint32_t id, uint32_t table, const uint64_t *keep, bool contiguous)
{
    const pkv_seq *s = seq_changing(p, id);
    assert(table < s->groups);
    const pkv_table *t = &s->tables[table];
    uint32_t size = p->geometry.page_tokens, left = count_bits(keep, t->kept);
    uint32_t given_up = t->kept - left;
    if (given_up == 0) return STATUS_IS_OK;
    assert(contiguous == s->contiguous || !s->dropped);
    if (contiguous) return gather_slots(p, id, table, keep, left, true);
    /* Dropping whole pages gives up a multiple of the page, except for a last page that is not
     * full. */
    if (given_up % size == 0 || given_up % size == t->kept % size) {
        uint64_t *page_keep = scratch_room(p, ((size_t)t->n_pages + 63) / 64 * sizeof *page_keep);
        if (!page_keep) return status_make(STATUS_NO_MEMORY, NULL);
        if (whole_pages(p, t, keep, page_keep)) {
            pkv_seq_drop(p, id, table, page_keep);
            return STATUS_IS_OK;
        }
    }
    if (given_up <= size) return fill_holes(p, id, table, keep, left);
    return gather_slots(p, id, table, keep, left, false);
}
