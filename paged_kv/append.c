/* Tables grow by tokens at their end, and are cut back to what they were. */
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"
#include "paged_kv/table.h"

/* Whether the next token of a table would be written into a page that others read. Only forks
 * share pages that are being filled. */
static bool must_replace(const pkv *p, const pkv_seq *s, uint32_t table)
{
    const pkv_table *t = &s->tables[table];
    return s->forked && table_room(p, t) > 0 &&
           node_is_shared(&p->pool,
                          node_of(&p->pool, s->grain, seq_pages(s, table)[t->n_pages - 1]));
}

typedef struct append_needs {
    uint64_t fresh;    // fresh pages, replacements included
    uint64_t cells;    // of them, as many from each share
    uint32_t replaced; // tables whose last page is replaced
    uint32_t row;      // pages of the longest table after the append
} append_needs;

static append_needs needs_of(const pkv *p, const pkv_seq *s, uint32_t n)
{
    append_needs needs = {0};
    shares_clear(p);
    for (uint32_t g = 0, tables = tables_filled(p, s); n > 0 && g < tables; g++) {
        const pkv_table *t = &s->tables[g];
        uint32_t room = table_room(p, t), more = n > room ? pages_for(p, n - room) : 0;
        bool replaced = must_replace(p, s, g);
        needs.fresh += more + replaced;
        needs.replaced += replaced;
        if (s->grain == PKV_HEAD) shares_add(p, 0, g, more + replaced);
        if (t->n_pages + more > needs.row) needs.row = t->n_pages + more;
    }
    needs.cells = s->grain == PKV_HEAD ? shares_even(p, 0) : needs.fresh * cells_of(p, s);
    return needs;
}

uint32_t pkv_append_cost(const pkv *p, uint32_t id, uint32_t n)
{
    const pkv_seq *s = seq_opened(p, id);
    uint64_t cells = needs_of(p, s, n).cells;
    return cells < UINT32_MAX ? (uint32_t)cells : UINT32_MAX;
}

static void replace_last(pkv *p, uint32_t id, uint32_t table)
{
    pkv_seq *s = &p->seqs[id];
    pkv_table *t = &s->tables[table];
    uint32_t index = t->n_pages - 1, *pages = seq_pages(s, table), old = pages[index];
    uint32_t fresh = pool_take(p, s->grain, table);
    uint64_t key = checksum_key(id, table);
    p->checksum += checksum_page(key, index, fresh) - checksum_page(key, index, old);
    pages[index] = fresh;
    pool_unref(p, s->grain, old);
    log_word(p, DELTA_REPLACE);
    log_word(p, id);
    log_word(p, table);
    log_word(p, fresh);
    log_move(p, (pkv_move){.grain = s->grain,
                           .group = table,
                           .src_page = old,
                           .dst_page = fresh,
                           .n_slots = t->kept % p->geometry.page_tokens,
                           .fresh = 1});
}

/* Appends to one table whose last page may be written. Slots of a compacted last page are filled
 * first. */
static void append_table(pkv *p, uint32_t id, uint32_t table, uint32_t n)
{
    pkv_seq *s = &p->seqs[id];
    pkv_table *t = &s->tables[table];
    uint32_t size = p->geometry.page_tokens;
    uint32_t room = table_room(p, t), filled = room < n ? room : n;
    if (filled > 0 && t->slot_pages == t->n_pages) {
        for (uint32_t i = 0; i < filled; i++) t->slots[t->kept + i] = s->length + i;
    }
    for (uint32_t at = filled; at < n; at += size) {
        uint32_t page = pool_take(p, s->grain, table);
        table_push(p, id, table, page, s->length + at);
        log_word(p, page);
    }
    t->kept += n;
    t->drop_epoch = 0; /* a later drop counts other pages: it gets words of its own */
}

status pkv_seq_append(pkv *p, uint32_t id, uint32_t n)
{
    if (n == 0) return STATUS_IS_OK;
    pkv_seq *s = seq_changing(p, id);
    assert(keeps_evenly(p, s));
    assert(n <= UINT32_MAX - p->geometry.page_tokens - s->length);
    append_needs needs = needs_of(p, s, n);
    if (needs.cells > pkv_available(p)) return status_make(STATUS_NO_PAGES, NULL);
    if (s->grain != PKV_HEAD && !pool_has(p, s->grain, 0, needs.fresh)) {
        RETURN_IF_ERROR(pkv_seq_split(p, id, s->grain, (uint32_t)needs.fresh * cells_of(p, s)));
        needs = needs_of(p, s, n);
    }
    RETURN_IF_ERROR(seq_reserve(p, s, needs.row));
    RETURN_IF_ERROR(
        log_room(p, (size_t)needs.replaced * DELTA_REPLACE_WORDS + DELTA_APPEND_HEAD + needs.fresh,
                 needs.replaced, 0));
    uint32_t tables = tables_filled(p, s);
    for (uint32_t g = 0; needs.replaced > 0 && g < tables; g++) {
        if (must_replace(p, s, g)) replace_last(p, id, g);
    }
    log_word(p, DELTA_APPEND);
    log_word(p, id);
    log_word(p, tables);
    log_word(p, n);
    log_word(p, (uint32_t)(needs.fresh - needs.replaced));
    for (uint32_t g = 0; g < tables; g++) append_table(p, id, g, n);
    p->checksum += s->weight * n;
    s->length += n;
    s->forked = false;
    return STATUS_IS_OK;
}

/* Gives up the pages behind those that `kept` tokens take; the log has room for a TRIM. */
static void table_cut(pkv *p, uint32_t id, uint32_t table, uint32_t kept)
{
    pkv_seq *s = &p->seqs[id];
    pkv_table *t = &s->tables[table];
    uint32_t left = pages_for(p, kept);
    uint64_t key = checksum_key(id, table);
    (void)log_trim(p, id, table, kept);
    s->held -= (t->n_pages - left) * cells_of(p, s);
    while (t->n_pages > left) {
        uint32_t page = seq_pages(s, table)[--t->n_pages];
        if (t->n_pages >= POOL_AHEAD)
            pool_expect(p, s->grain, seq_pages(s, table)[t->n_pages - POOL_AHEAD]);
        p->checksum -= checksum_page(key, t->n_pages, page);
        pool_unref(p, s->grain, page);
    }
    if (t->slot_pages > left) t->slot_pages = left;
    t->drop_epoch = 0;
    table_set_kept(p, id, table, kept);
}

status pkv_seq_cut(pkv *p, uint32_t id, uint32_t n)
{
    if (n == 0) return STATUS_IS_OK;
    pkv_seq *s = seq_changing(p, id);
    assert(n <= s->length && s->length - n >= s->published * p->geometry.page_tokens);
    uint32_t tables = tables_filled(p, s);
    RETURN_IF_ERROR(log_room(p, (size_t)tables * DELTA_TRIM_HEAD, 0, 0));
    for (uint32_t g = 0; g < tables; g++) {
        assert(n <= s->tables[g].kept);
        table_cut(p, id, g, s->tables[g].kept - n);
    }
    s->length -= n;
    return STATUS_IS_OK;
}
