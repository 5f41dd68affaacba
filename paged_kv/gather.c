/* Gathering: pages that lie alone in broken runs move into fuller runs, a few in each step, so that
 * the runs that they leave become whole again. Lengths and positions stay, so a selection that is
 * made on another thread may read the tables meanwhile. */
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"

/* Bounds of one call: pages that are looked at, some 20 ns each, and pages that move, which a
 * backend copies. */
enum { LOOKS = 1024, MOVES = 64 };

/* The budget that is left to one call, and the place for its next move. */
typedef struct gathering {
    uint32_t looks, moves;
    uint32_t place; // node that is taken for the next page that moves; 0 = none
    uint32_t used;  // cells that tables hold in the whole run around it, without its own
} gathering;

/* Cells that tables hold in the whole run around a node. */
static uint32_t used_around(const pkv *p, uint32_t node)
{
    while (node < tree_whole_at(&p->pool)) node = node_above(&p->pool, node);
    return cells_with(&p->pool, node, COVER_USED);
}

static void give_back(pkv *p, gathering *left)
{
    if (left->place != 0) node_unref(p, &p->pool, left->place);
    left->place = 0;
}

/* Takes a place of the grain for the next page of a table. It is in the fullest broken run. False
 * when none is free. */
static bool has_place(pkv *p, pkv_grain grain, uint32_t table, gathering *left)
{
    if (left->place != 0) return true;
    left->place = tree_find_free(&p->pool, grain, table_share(&p->pool, table));
    if (left->place == 0) return false;
    left->used = used_around(p, left->place);
    node_ref(p, &p->pool, left->place);
    return true;
}

/* Moves page `index` of a table to the place. The old page keeps its reference. */
static void move_page(pkv *p, uint32_t id, uint32_t table, uint32_t index, gathering *left)
{
    pkv_seq *s = &p->seqs[id];
    uint32_t size = p->geometry.page_tokens, fill = s->tables[table].kept - index * size;
    uint32_t *page = &seq_pages(s, table)[index], fresh = page_of(&p->pool, left->place);
    uint64_t key = checksum_key(id, table);
    log_word(p, index);
    log_word(p, fresh);
    log_move(p, (pkv_move){.grain = s->grain,
                           .group = table,
                           .src_page = *page,
                           .dst_page = fresh,
                           .n_slots = fill < size ? fill : size,
                           .fresh = 1});
    p->checksum += checksum_page(key, index, fresh) - checksum_page(key, index, *page);
    *page = fresh;
    p->counts.pages_gathered += cells_of(p, s);
    left->place = 0;
    left->moves--;
}

/* Whether a page moves: others do not hold it, and in the run of the place as many cells are in use
 * as in its own, so that the move makes the difference larger. Its own run is never the one: there
 * the place is in use, too. */
static bool should_move(pkv *p, pkv_grain grain, uint32_t table, uint32_t page, gathering *left)
{
    uint32_t node = node_of(&p->pool, grain, page);
    return !node_is_shared(&p->pool, node) && has_place(p, grain, table, left) &&
           left->used >= used_around(p, node);
}

/* Looks at a table from the page where the last call stopped. */
static void gather_table(pkv *p, uint32_t id, uint32_t table, gathering *left)
{
    const pkv_seq *s = &p->seqs[id];
    pkv_table *t = &s->tables[table];
    size_t count_at = 0, first_move = p->log.n_moves;
    uint32_t i = p->gather_page;
    for (; i < t->n_pages && left->looks > 0 && left->moves > 0; i++, left->looks--) {
        if (!should_move(p, s->grain, table, seq_pages(s, table)[i], left)) continue;
        if (count_at == 0) count_at = log_trim(p, id, table, t->kept);
        p->log.words[count_at]++;
        move_page(p, id, table, i, left);
    }
    p->gather_page = i < t->n_pages ? i : 0;
    p->gather_table += i >= t->n_pages;
    /* The old pages stay taken until here, because a mirror refuses them among the fresh ones. */
    for (size_t m = first_move; m < p->log.n_moves; m++)
        pool_unref(p, s->grain, p->log.moves[m].src_page);
    if (count_at > 0) t->drop_epoch = 0;
    give_back(p, left);
}

/* Looks at a sequence; false when something of it is left for the next call. */
static bool gather_seq(pkv *p, uint32_t id, gathering *left)
{
    const pkv_seq *s = &p->seqs[id];
    while (s->open && !s->splitting && !s->leaving.on && s->arriving.number == 0 &&
           s->grain != PKV_ALL && p->gather_table < s->groups) {
        if (left->looks == 0 || left->moves == 0) return false;
        gather_table(p, id, p->gather_table, left);
    }
    p->gather_table = p->gather_page = 0;
    return true;
}

status pkv_gather(pkv *p)
{
    uint64_t in_whole_runs = (uint64_t)p->pool.unused_wholes * p->groups;
    if (2 * in_whole_runs >= pkv_available(p)) return STATUS_IS_OK;
    RETURN_IF_ERROR(log_room(p, (size_t)MOVES * (DELTA_TRIM_HEAD + 2), MOVES, 0));
    gathering left = {.looks = LOOKS, .moves = MOVES};
    for (uint32_t n = 0; n < p->max_seqs && gather_seq(p, p->gather_at, &left); n++)
        p->gather_at = (p->gather_at + 1) % p->max_seqs;
    return STATUS_IS_OK;
}
