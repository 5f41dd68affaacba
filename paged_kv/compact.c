/* Compaction: the slow path, for retention that keeps single tokens. */
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"
#include "paged_kv/table.h"

/* The longest run keep[i], keep[i] + 1, … that leaves neither its source page nor its
 * destination page. */
static uint32_t run_length(const uint32_t *keep, uint32_t n_keep, uint32_t i, uint32_t page_tokens)
{
    uint32_t room_src = page_tokens - keep[i] % page_tokens,
             room_dst = page_tokens - i % page_tokens;
    uint32_t most = room_src < room_dst ? room_src : room_dst, n = 1;
    while (n < most && i + n < n_keep && keep[i + n] == keep[i] + n) n++;
    return n;
}

status table_gather(pkv *p, uint32_t id, uint32_t table, const uint32_t *keep, uint32_t n_keep,
                    bool rotated)
{
    pkv_seq *s = &p->seqs[id];
    pkv_table *t = &s->tables[table];
    uint32_t size = p->geometry.page_tokens, n_fresh = pages_for(p, n_keep), n_old = t->n_pages;
    size_t n_moves = 0;
    for (uint32_t i = 0; i < n_keep; i += run_length(keep, n_keep, i, size)) n_moves++;
    if (!pool_has(p, s->grain, table, n_fresh)) return status_make(STATUS_NO_PAGES, NULL);
    RETURN_IF_ERROR(table_reserve_slots(p, t, n_fresh));
    RETURN_IF_ERROR(log_room(p, DELTA_COMPACT_HEAD + (size_t)n_fresh, n_moves, 0));

    log_word(p, DELTA_COMPACT);
    log_word(p, id);
    log_word(p, table);
    log_word(p, n_keep);
    const uint32_t *fresh = p->log.words + p->log.n_words;
    for (uint32_t i = 0; i < n_fresh; i++) log_word(p, pool_take(p, s->grain, table));
    uint32_t *pages = seq_pages(s, table);
    for (uint32_t i = 0, n; i < n_keep; i += n) {
        n = run_length(keep, n_keep, i, size);
        log_move(p, (pkv_move){.grain = s->grain,
                               .group = table,
                               .src_page = pages[keep[i] / size],
                               .src_slot = keep[i] % size,
                               .dst_page = fresh[i / size],
                               .dst_slot = i % size,
                               .n_slots = n,
                               .rotate = rotated ? (int32_t)i - (int32_t)keep[i] : 0,
                               .fresh = 1});
    }
    /* In place: keep ascends, so keep[i] >= i, and each position is read before its slot is
     * written. */
    for (uint32_t i = 0; i < n_keep; i++) t->slots[i] = table_position(p, s, table, keep[i]);

    uint64_t key = checksum_key(id, table);
    for (uint32_t i = n_old; i-- > 0;) {
        if (i >= POOL_AHEAD) pool_expect(p, s->grain, pages[i - POOL_AHEAD]);
        p->checksum -= checksum_page(key, i, pages[i]);
        pool_unref(p, s->grain, pages[i]);
    }
    for (uint32_t i = 0; i < n_fresh; i++) {
        p->checksum += checksum_page(key, i, fresh[i]);
        pages[i] = fresh[i];
    }
    t->n_pages = t->slot_pages = n_fresh;
    t->drop_epoch = 0;
    table_set_kept(p, id, table, n_keep);
    s->held -= (n_old - n_fresh) * cells_of(p, s);
    s->dropped = true;
    p->counts.pages_dropped += (n_old - n_fresh) * (uint64_t)cells_of(p, s);
    return STATUS_IS_OK;
}

status pkv_seq_compact(pkv *p, uint32_t id, uint32_t table, const uint32_t *keep, uint32_t n_keep)
{
    assert(table < seq_changing(p, id)->groups);
    return table_gather(p, id, table, keep, n_keep, false);
}
