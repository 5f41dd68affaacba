/* How many pages of an open sequence other tables hold too. A long sequence with a table for each
 * head has millions of pages, so they are counted in portions. Between two counts an upper bound is
 * known: the pages that the last whole count saw, and every cell of the pool that several tables
 * have come to hold since, whether this sequence has it or not. */
#include "paged_kv/pool.h"
#include "paged_kv/table.h"

/* ---- what changes in the pool ---------------------------------------------------------------- */

/* How many cells the coarsest run around a node has that tables hold as a run; 0 = none do. */
static uint32_t held_around(const pkv_tree *t, uint32_t node)
{
    uint32_t cells = 0;
    while (node < tree_whole_at(t)) {
        node = node_above(t, node);
        if (t->nodes[node].refs > 0) cells = cells_in(t, node_grain(t, node));
    }
    return cells;
}

/* A table of a run counts it as a whole, so the pages that are shared from now on are at most the
 * coarsest run around the node that tables hold. Runs have as many cells in each share. */
void shared_note(pkv *p, const uint32_t *nodes, uint32_t n, bool more)
{
    const pkv_tree *t = &p->pool;
    pkv_grain grain = node_grain(t, nodes[0]);
    uint32_t around = held_around(t, nodes[0]);
    uint32_t one = grain == PKV_HEAD ? t->n_shares : cells_in(t, grain);
    for (uint32_t i = 0; i < n; i++) {
        bool others = around > 0 || t->nodes[nodes[i]].refs > more;
        if (nodes[i] >= t->n_cells) others |= run_at(t, nodes[i])->below[COVER_USED] > 0;
        if (!others) continue;
        p->sharing_changes++;
        if (more) p->sharings += around > one ? around : one;
    }
}

/* ---- counting -------------------------------------------------------------------------------- */

uint64_t shared_most(const pkv *p, const pkv_seq *s)
{
    uint64_t held = seq_held_evenly(p, s), most = s->shared.counted + p->sharings - s->shared.came;
    return most < held ? most : held;
}

/* The shared ones of a table's pages first .. end - 1. */
static uint32_t count_rows(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t first,
                           uint32_t end)
{
    const uint32_t *pages = seq_pages(s, table);
    uint32_t n = 0;
    for (uint32_t i = first; i < end; i++) {
        if (i + POOL_AHEAD < end) pool_expect(p, s->grain, pages[i + POOL_AHEAD]);
        n += node_is_shared(&p->pool, node_of(&p->pool, s->grain, pages[i]));
    }
    return n;
}

uint64_t shared_count(const pkv *p, const pkv_seq *s)
{
    uint64_t n = 0;
    shares_clear(p);
    for (uint32_t g = 0; g < s->groups; g++) {
        uint32_t of_table = count_rows(p, s, g, 0, s->tables[g].n_pages);
        if (s->grain == PKV_HEAD) shares_add(p, 0, g, of_table);
        n += of_table;
    }
    return s->grain == PKV_HEAD ? shares_even(p, 0) : n * cells_of(p, s);
}

/* ---- in portions ----------------------------------------------------------------------------- */

/* Pages of the count under way, by the share that they come from. */
static uint32_t *sums_of(const pkv *p, uint32_t id)
{
    return p->shared_sums + (size_t)id * p->pool.n_shares;
}

static void begin_count(pkv *p, uint32_t id)
{
    pkv_shared_count *c = &p->seqs[id].shared;
    c->on = true;
    c->table = c->page = 0;
    c->came_going = p->sharings;
    c->as_of_going = p->sharing_changes;
    memset(sums_of(p, id), 0, p->pool.n_shares * sizeof(uint32_t));
}

static void end_count(pkv *p, uint32_t id)
{
    pkv_seq *s = &p->seqs[id];
    const uint32_t *sums = sums_of(p, id);
    uint32_t most = 0;
    for (uint32_t i = 0; i < p->pool.n_shares; i++)
        if (sums[i] > most) most = sums[i];
    uint64_t size = s->grain == PKV_HEAD ? p->pool.n_shares : cells_of(p, s);
    s->shared = (pkv_shared_count){
        .counted = most * size, .came = s->shared.came_going, .as_of = s->shared.as_of_going};
}

/* A page that is appended meanwhile, or takes another's place, is held by no other table. */
static void go_on(pkv *p, uint32_t id, uint32_t *looks)
{
    pkv_seq *s = &p->seqs[id];
    pkv_shared_count *c = &s->shared;
    if (!c->on) begin_count(p, id);
    for (; c->table < s->groups; c->table++, c->page = 0) {
        uint32_t pages = s->tables[c->table].n_pages, end = pages;
        if (c->page >= pages) continue;
        if (end - c->page > *looks) end = c->page + *looks;
        uint32_t share = s->grain == PKV_HEAD ? table_share(&p->pool, c->table) : 0;
        sums_of(p, id)[share] += count_rows(p, s, c->table, c->page, end);
        *looks -= end - c->page;
        c->page = end;
        if (end < pages) return;
    }
    end_count(p, id);
}

pkv_shared pkv_seq_pages_shared(pkv *p, uint32_t id, uint32_t *looks)
{
    const pkv_seq *s = seq_opened(p, id);
    bool rests = !s->splitting && !s->leaving.on && s->arriving.number == 0;
    while (rests && *looks > 0 && s->shared.as_of != p->sharing_changes) go_on(p, id, looks);
    return (pkv_shared){shared_most(p, s), s->shared.as_of};
}

uint64_t pkv_sharing_changes(const pkv *p) { return p->sharing_changes; }
