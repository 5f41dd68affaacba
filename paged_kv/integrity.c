/* Checks what must hold between operations. Everything is counted again from tables, lists and
 * blocks. */
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"
#include "paged_kv/portions.h"
#include "paged_kv/prefix.h"
#include "paged_kv/table.h"

/* Returns `what` from the calling check when the condition does not hold. */
#define REQUIRE(condition, what)                                                                   \
    do {                                                                                           \
        if (!(condition)) return (what);                                                           \
    } while (0)

/* How a node is held: all holders must agree, and those of a run around it. */
typedef struct holder {
    uint32_t refs;
    uint32_t parked; // references of parked sequences, counted in refs too
    uint32_t table;
    uint32_t fill;  // tokens in it
    uint32_t first; // position of its first token
} holder;

/* Whether a node's record is set: a part's is not while its run has no taken part. */
static bool is_set(const pkv_tree *t, uint32_t node)
{
    if (node >= tree_whole_at(t)) return node - tree_whole_at(t) < t->touched;
    uint32_t up = node_above(t, node);
    if (!is_set(t, up)) return false;
    const pkv_run *run = run_at(t, up);
    return (node < t->n_cells ? run->below[COVER_TAKEN] : run->busy[COVER_TAKEN]) > 0;
}

/* Cells of whole run 0 that are never handed out. */
static bool is_reserved(const pkv_tree *t, uint32_t node)
{
    if (node >= t->n_cells || node_above(t, node_above(t, node)) != tree_whole_at(t)) return false;
    return cell_layer(t, node) * t->n_heads + cell_head(t, node) < t->n_reserved;
}

/* A page of a table, and what a holder of it says. */
static const char *check_page(const pkv *p, const pkv_seq *s, pkv_grain grain, uint32_t page,
                              const holder *now, holder *holders)
{
    REQUIRE(page >= 1 && page < p->pool.n_cells, "a table holds no page");
    uint32_t node = node_of(&p->pool, grain, page);
    REQUIRE(page_of(&p->pool, node) == page, "a table holds a page that begins no run");
    REQUIRE(grain != PKV_HEAD || cell_share(&p->pool, page) == table_share(&p->pool, now->table),
            "a table holds a cell of another share");
    REQUIRE(is_set(&p->pool, node) && p->pool.nodes[node].refs > 0,
            "a table holds a page without references");
    holder *h = &holders[node];
    REQUIRE(h->refs == 0 ||
                (h->table == now->table && h->fill == now->fill && h->first == now->first),
            "the holders of a page disagree about it");
    bool hashed = node_is_hashed(&p->pool, node), full = now->fill == p->geometry.page_tokens;
    REQUIRE(!hashed || full, "a page that is being filled is hashed");
    REQUIRE(!hashed || !s->sealed, "a page from before a flush is hashed");
    REQUIRE(!node_is_shared(&p->pool, node) || full || s->forked,
            "a page that is being filled is shared unnoticed");
    holder with = *now;
    with.refs = h->refs + 1;
    with.parked += h->parked;
    *h = with;
    return NULL;
}

/* A page whose references its parts have, in a sequence that is being split. */
static const char *check_split_page(const pkv *p, const pkv_seq *s, uint32_t table, uint32_t index,
                                    const holder *now, holder *holders)
{
    const pkv_splitting *x = s->splitting;
    uint32_t parts = x->groups / s->groups,
             node = node_of(&p->pool, s->grain, seq_pages(s, table)[index]);
    for (uint32_t g = table * parts; g < (table + 1) * parts; g++) {
        uint32_t page = x->pages[(size_t)g * s->row + index];
        uint32_t part =
            node_inside(&p->pool, node, x->grain, layer_of(p, x->grain, g), g % p->pool.n_heads);
        REQUIRE(part == node_of(&p->pool, x->grain, page), "a page is split into other parts");
        REQUIRE(x->bases[(size_t)g * s->row + index] == seq_bases(s, table)[index],
                "a part has another base than its page");
        holder of_part = *now;
        of_part.table = g;
        const char *wrong = check_page(p, s, x->grain, page, &of_part, holders);
        if (wrong) return wrong;
    }
    return NULL;
}

static bool is_split(const pkv_seq *s, uint32_t table, uint32_t index)
{
    const pkv_splitting *x = s->splitting;
    return x && (table < x->table || (table == x->table && index < x->page));
}

/* Checks that no two slots share a position. `seen` has a 0 byte for each position, and is left
 * so. */
static const char *check_positions(const pkv *p, const pkv_seq *s, uint32_t table, uint8_t *seen)
{
    uint32_t kept = s->tables[table].kept;
    for (uint32_t slot = 0, last = 0; slot < kept; slot++) {
        uint32_t position = table_position(p, s, table, slot);
        REQUIRE(position < s->length, "a position is past its sequence's end");
        REQUIRE(!seen[position]++, "two slots have one position");
        REQUIRE(s->dropped || position == slot, "a whole sequence has a position out of place");
        REQUIRE(!s->contiguous || slot == 0 || position > last,
                "positions of a contiguous sequence do not ascend");
        last = position;
    }
    memset(seen, 0, s->length);
    const pkv_table *t = &s->tables[table];
    REQUIRE(table_room(p, t) == 0 || t->slot_pages == t->n_pages ||
                seq_bases(s, table)[t->n_pages - 1] + kept % p->geometry.page_tokens == s->length,
            "a token that is appended would get another position than its own");
    return NULL;
}

static const char *check_table(const pkv *p, const pkv_seq *s, uint32_t table, bool parked,
                               holder *holders)
{
    const pkv_table *t = &s->tables[table];
    uint32_t size = p->geometry.page_tokens;
    REQUIRE(t->n_pages == pages_for(p, t->kept), "a table has pages that its tokens do not fill");
    REQUIRE(t->n_pages <= s->row, "a table is longer than its list");
    uint32_t seen = table < tables_filled(p, s) ? s->length : 0; /* tokens that it has taken */
    REQUIRE(t->kept <= seen, "a table keeps more tokens than it has taken");
    REQUIRE(t->slot_pages <= t->n_pages, "a table has positions of pages that it has not");
    REQUIRE((uint64_t)t->slot_pages * size <= t->slots_cap, "a table's positions overflow");
    bool whole = !s->arriving.number && !s->leaving.on && !s->adopting.on;
    REQUIRE(s->dropped || !whole || t->kept == seen, "a whole sequence lacks tokens");
    REQUIRE(s->dropped || t->slot_pages == 0, "a whole sequence has compacted pages");
    for (uint32_t i = 0; i < t->n_pages; i++) {
        holder now = {.table = table,
                      .parked = parked,
                      .fill = t->kept - i * size < size ? t->kept - i * size : size,
                      .first = table_position(p, s, table, i * size)};
        if (s->to && has_come(p, &p->seqs[s->to - 1], table, i)) continue;
        if (is_left(p, s, table, i)) {
            if (s->leaving.way != PKV_PARK) continue; /* it is no longer the sequence's */
            now.parked = 1;
        }
        const char *wrong = is_split(s, table, i)
                                ? check_split_page(p, s, table, i, &now, holders)
                                : check_page(p, s, s->grain, seq_pages(s, table)[i], &now, holders);
        if (wrong) return wrong;
    }
    return NULL;
}

/* Checks a sequence on the pool's pages: an open or a parked one. */
static const char *check_seq(const pkv *p, const pkv_seq *s, bool parked, holder *holders)
{
    uint32_t held = 0;
    REQUIRE(s->groups == groups_at(p, s->grain), "a sequence has not the tables of its grain");
    REQUIRE(!is_of_some_layers(p, s) || (s->grain != PKV_ALL && s->published == 0),
            "a sequence of some layers has a table of all, or published a block");
    for (uint32_t g = 0; g < s->groups; g++) {
        const char *wrong = check_table(p, s, g, parked, holders);
        if (wrong) return wrong;
        held += s->tables[g].n_pages * cells_of(p, s);
    }
    REQUIRE(held == s->held, "a sequence miscounts its pages");
    REQUIRE(s->arriving.number || s->leaving.on || s->adopting.on || keeps_evenly(p, s),
            "tables of a contiguous sequence keep unequally many");
    REQUIRE(s->dropped || !s->contiguous, "a whole sequence is contiguous");
    REQUIRE(s->published <= s->length / p->geometry.page_tokens, "a sequence published too much");
    uint8_t *seen = alloc_zeroed(NULL, (size_t)s->length + 1, sizeof *seen);
    if (!seen) return "out of memory";
    const char *wrong = NULL;
    for (uint32_t g = 0; g < s->groups && !wrong; g++) wrong = check_positions(p, s, g, seen);
    alloc_free(NULL, seen);
    if (wrong || s->dropped || s->cursor == 0) return wrong;
    REQUIRE(p->blocks[s->cursor].generation >= s->cursor_generation,
            "a sequence published into the future");
    return NULL;
}

/* Checks that records know which sequences arrive from them, and what those were promised. */
static const char *check_arriving(const pkv *p)
{
    uint32_t n = 0, promised = 0;
    for (uint32_t id = 0; id < p->max_seqs; id++) {
        const pkv_arriving *x = &p->seqs[id].arriving;
        if (x->number == 0) continue;
        n++;
        promised += x->promised;
        REQUIRE(p->seqs[id].open && p->swaps[x->number].seq.open &&
                    p->swaps[x->number].seq.to == id + 1,
                "a sequence arrives from no record");
        REQUIRE(x->promised == 0 || !p->swaps[x->number].parked,
                "a parked sequence was promised pages");
    }
    for (uint32_t i = 1; i <= p->n_swaps; i++) {
        const pkv_seq *s = &p->swaps[i].seq;
        n -= s->to != 0;
        promised += s->adopting.promised;
        REQUIRE(s->adopting.promised == 0 || (s->open && s->adopting.on && s->to == 0),
                "pages were promised to a record that takes none");
    }
    REQUIRE(n == 0, "a record goes to no sequence");
    REQUIRE(promised == p->promised, "promised pages are miscounted");
    return NULL;
}

/* Checks what is known of the pages that other tables hold too, by a count of all of them. */
static const char *check_shared(const pkv *p, const pkv_seq *s)
{
    if (s->splitting || s->leaving.on || s->arriving.number) return NULL;
    uint64_t n = shared_count(p, s), most = shared_most(p, s);
    REQUIRE(n <= most, "more pages of a sequence are shared than was noted");
    REQUIRE(s->shared.as_of != p->sharing_changes || n == most,
            "the shared pages of a sequence are miscounted");
    return NULL;
}

static const char *check_seqs(const pkv *p, holder *holders)
{
    uint64_t checksum = 0;
    size_t reserve = 0, drops = 0;
    for (uint32_t id = 0; id < p->max_seqs; id++) {
        const pkv_seq *s = &p->seqs[id];
        if (!s->open) continue;
        const char *wrong = check_seq(p, s, false, holders);
        if (!wrong) wrong = check_shared(p, s);
        if (wrong) return wrong;
        checksum += checksum_seq(id);
        reserve += s->splitting ? splitting_reserve(s) : log_reserve_of(s->groups, s->row);
        for (uint32_t g = 0; g < s->groups; g++) {
            const pkv_table *t = &s->tables[g];
            drops +=
                t->drop_epoch == p->log.epoch ? 0 : DELTA_DROP_HEAD + delta_bit_words(t->n_pages);
            uint64_t key = checksum_key(id, g);
            checksum += checksum_kept(key, t->kept);
            for (uint32_t i = 0; i < t->n_pages; i++) {
                if (!is_left(p, s, g, i)) checksum += checksum_page(key, i, seq_pages(s, g)[i]);
            }
        }
        drops += DELTA_CLOSE_WORDS;
    }
    for (uint32_t i = 1; i <= p->n_swaps; i++) {
        if (!p->swaps[i].seq.open || !p->swaps[i].parked || p->swaps[i].from) continue;
        const char *wrong = check_seq(p, &p->swaps[i].seq, true, holders);
        if (wrong) return wrong;
    }
    REQUIRE(checksum == p->checksum, "the checksum does not match the tables");
    REQUIRE(reserve == p->log.reserve, "the log's reserve does not match the tables");
    REQUIRE(p->log.n_words + drops <= p->log.cap_words, "the log lacks room for drops and closes");
    return NULL;
}

/* The sums of a tree, counted again from cell to cell. */
typedef struct tree_sums {
    uint32_t covered[N_COVERS], unused_wholes, unused_layers, hashed;
} tree_sums;

static bool has_property(const pkv_tree *t, uint32_t node, cover k)
{
    if (!is_set(t, node)) return false;
    const pkv_node *n = &t->nodes[node];
    return k == COVER_TAKEN  ? n->refs > 0 || n->block != 0
           : k == COVER_USED ? n->refs > 0
                             : n->refs > n->parked;
}

/* Checks one layer run and adds to sums[k] of the whole run its cells with property k. */
static const char *check_layer_run(const pkv_tree *t, uint32_t layer, uint32_t *sums,
                                   uint32_t *busy)
{
    uint32_t below[N_COVERS] = {0};
    for (uint32_t h = 0; h < t->n_heads; h++) {
        uint32_t cell = node_part(t, layer, h);
        for (cover k = 0; k < N_COVERS; k++) below[k] += has_property(t, cell, k);
    }
    for (cover k = 0; k < N_COVERS; k++) {
        uint32_t n = has_property(t, layer, k) ? t->n_heads : below[k];
        REQUIRE(!is_set(t, layer) || run_at(t, layer)->below[k] == below[k],
                "a layer run miscounts its cells");
        sums[k] += n;
        busy[k] += n > 0;
    }
    for (uint32_t s = 0; is_set(t, layer) && s < t->n_shares; s++) {
        uint32_t free_cells = 0;
        for (uint32_t i = 0; tree_layer_is_broken(t, layer) && i < t->in_share; i++)
            free_cells += !has_property(t, node_part(t, layer, s * t->in_share + i), COVER_TAKEN);
        REQUIRE(t->layer_lists[s].links[(size_t)(layer - t->n_cells) * t->n_shares].listed ==
                    free_cells,
                "a layer run is in a wrong list");
    }
    return NULL;
}

static const char *check_whole_run(const pkv_tree *t, uint32_t whole, tree_sums *all)
{
    uint32_t sums[N_COVERS] = {0}, busy[N_COVERS] = {0};
    for (uint32_t l = 0; l < t->n_layers; l++) {
        const char *wrong = check_layer_run(t, node_part(t, whole, l), sums, busy);
        if (wrong) return wrong;
    }
    const pkv_run *run = run_at(t, whole);
    for (cover k = 0; k < N_COVERS; k++) {
        REQUIRE(run->below[k] == sums[k] && run->busy[k] == busy[k], "a run miscounts its cells");
        all->covered[k] += has_property(t, whole, k) ? cells_in(t, PKV_ALL) : sums[k];
    }
    bool used = has_property(t, whole, COVER_USED);
    all->unused_wholes += !used && busy[COVER_USED] == 0;
    all->unused_layers += used ? 0 : t->n_layers - busy[COVER_USED];
    uint32_t free_parts = has_property(t, whole, COVER_TAKEN) ? 0 : t->n_layers - busy[COVER_TAKEN];
    REQUIRE(t->whole_lists.links[whole - tree_whole_at(t)].listed == free_parts,
            "a whole run is in a wrong list");
    return NULL;
}

/* Checks what a share counts: its cells with a property that no run around them has. */
static const char *check_share(const pkv_tree *t, uint32_t share, cover k)
{
    uint32_t n = 0, size = t->n_cells / t->n_shares;
    for (uint32_t cell = share * size; cell < (share + 1) * size; cell++) {
        if (!has_property(t, cell, k)) continue;
        uint32_t layer = node_above(t, cell);
        n += !has_property(t, layer, k) && !has_property(t, node_above(t, layer), k);
    }
    REQUIRE(t->n_shares == 1 || n == t->loose[k][share], "a share miscounts its cells");
    return NULL;
}

static const char *check_lists(const pkv_tree *t, const run_lists *l)
{
    uint32_t n = 0;
    for (uint32_t parts = 1; parts <= l->most; parts++) {
        REQUIRE(l->heads[parts] == 0 || parts >= l->lowest, "a list of runs is forgotten");
        for (uint32_t run = l->heads[parts], last = 0; run != 0;) {
            const run_link *link = &l->links[(size_t)(run - 1) * l->stride];
            REQUIRE(n++ <= t->n_cells && link->listed == parts && link->prev == last,
                    "a list of runs is broken");
            last = run;
            run = link->next;
        }
    }
    return NULL;
}

static const char *check_tree(const pkv_tree *t, uint32_t usable)
{
    tree_sums sums = {.unused_wholes = t->n_whole - t->touched,
                      .unused_layers = (t->n_whole - t->touched) * t->n_layers};
    for (uint32_t r = 0; r < t->touched; r++) {
        const char *wrong = check_whole_run(t, tree_whole_at(t) + r, &sums);
        if (wrong) return wrong;
    }
    for (cover k = 0; k < N_COVERS; k++)
        REQUIRE(sums.covered[k] == t->covered[k], "cells are miscounted");
    REQUIRE(sums.unused_wholes == t->unused_wholes && sums.unused_layers == t->unused_layers,
            "unused runs are miscounted");
    REQUIRE(t->n_cells - t->n_reserved == usable, "cells are lost");
    for (uint32_t s = 0; s < t->n_shares; s++) {
        const char *wrong = check_lists(t, &t->layer_lists[s]);
        if (wrong) return wrong;
        for (cover k = COVER_USED; !wrong && k < N_COVERS; k++) wrong = check_share(t, s, k);
        if (wrong) return wrong;
    }
    return check_lists(t, &t->whole_lists);
}

static const char *check_pages(const pkv *p, const holder *holders)
{
    const pkv_tree *t = &p->pool;
    uint32_t hashed = 0, ringed = 0;
    for (uint32_t node = 0; node < tree_node_count(t); node++) {
        if (!is_set(t, node)) {
            REQUIRE(holders[node].refs == 0, "a table holds a page that was never handed out");
            continue;
        }
        const pkv_node *n = &t->nodes[node];
        if (holders[node].refs == 0 && n->refs == 1 && is_reserved(t, node)) continue;
        REQUIRE(n->refs == holders[node].refs, "a page's references are not those in the tables");
        REQUIRE(n->parked == holders[node].parked, "a page miscounts its parked holders");
        hashed += n->block != 0 ? cells_in(t, node_grain(t, node)) : 0;
        pkv_grain grain = node_grain(t, node);
        bool in_ring =
            n->block != 0 && n->refs == 0 &&
            (grain == PKV_HEAD || run_at(t, node)->below[COVER_USED] < cells_in(t, grain));
        REQUIRE(n->ringed == in_ring, "a page is cached, or in the list of cached pages, alone");
        ringed += in_ring;
    }
    REQUIRE(hashed == (uint64_t)p->n_blocks * p->groups, "a hashed page belongs to no block");
    uint32_t n = 0;
    for (uint32_t i = p->ring_head, last = 0; i != 0; last = i, i = t->nodes[i].next, n++)
        REQUIRE(n <= ringed && t->nodes[i].ringed && t->nodes[i].prev == last,
                "the list of cached pages is broken");
    REQUIRE(n == ringed, "the list of cached pages is not the cached pages");
    return check_tree(t, p->n_pages - 1);
}

/* Checks the host pages of a swapped sequence, and counts their cells. While a sequence leaves to
 * it, or it is moved there itself, it has those that have left. */
static const char *check_swapped(const pkv *p, const pkv_swap *record, uint8_t *seen,
                                 uint32_t *held)
{
    const pkv_seq *s = &record->seq, *from = record->from ? &p->seqs[record->from - 1] : NULL;
    REQUIRE(!from || (from->open && from->leaving.on && &p->swaps[from->leaving.number] == record),
            "a record is filled by no sequence");
    uint32_t own = 0;
    bool moves = record_moves(record), leaves = s->leaving.on;
    for (uint32_t g = 0; g < s->groups; g++) {
        const pkv_table *t = from ? &from->tables[g] : &s->tables[g];
        REQUIRE(t->n_pages == pages_for(p, t->kept) && t->n_pages <= s->row &&
                    t->kept <= s->length && t->slot_pages <= t->n_pages,
                "a swapped table is out of shape");
        for (uint32_t k = 0; k < t->n_pages; k++) {
            if (from && !is_left(p, from, g, k)) continue;
            if (s->to && has_come(p, &p->seqs[s->to - 1], g, k)) continue;
            if (leaves && is_left(p, s, g, k) != moves) continue;
            uint32_t node = node_of(&p->host, s->grain, seq_pages(s, g)[k]);
            REQUIRE(is_set(&p->host, node) && p->host.nodes[node].refs == 1 && !seen[node]++,
                    "a swapped table holds a host page that is not its own");
            own += cells_in(&p->host, s->grain);
        }
    }
    REQUIRE(from || s->to || leaves || (own == s->held && own > 0),
            "a swapped sequence miscounts its pages");
    *held += own;
    return NULL;
}

/* Checks the list of records that are discarded in portions. */
static const char *check_discards(const pkv *p)
{
    uint32_t n = 0, n_host = 0, n_leaving = 0, last = 0;
    for (uint32_t i = p->discard_first; i != 0; last = i, i = p->swaps[i].next) {
        REQUIRE(n++ < p->n_swaps && p->swaps[i].seq.open && p->swaps[i].seq.leaving.on,
                "the list of discarded records is broken");
        n_host += !p->swaps[i].parked;
    }
    for (uint32_t i = 1; i <= p->n_swaps; i++)
        n_leaving +=
            p->swaps[i].seq.open && p->swaps[i].seq.leaving.on && !record_moves(&p->swaps[i]);
    REQUIRE(last == p->discard_last && n == p->n_discards && n_host == p->n_host_discards &&
                n == n_leaving,
            "discarded records are miscounted");
    return NULL;
}

/* Checks that every host page is in one swapped sequence. */
static const char *check_host(const pkv *p, uint8_t *seen)
{
    uint32_t held = 0, n_free = 0, n_open = 0;
    bool is_swapping = false;
    for (uint32_t i = 1; i <= p->n_swaps; i++) {
        const pkv_swap *record = &p->swaps[i];
        if (!record->seq.open) continue;
        n_open++;
        if (record->parked && !record_moves(record)) continue;
        is_swapping |= record->from != 0 || record_moves(record);
        const char *wrong = check_swapped(p, record, seen, &held);
        if (wrong) return wrong;
    }
    REQUIRE(held == host_used(p), "used host pages are not those of swapped sequences");
    REQUIRE(is_swapping == p->is_swapping, "the host tier is promised to no sequence");
    for (uint32_t i = p->n_swaps > 0 ? p->swaps[0].next : 0; i != 0; i = p->swaps[i].next) {
        REQUIRE(i <= p->n_swaps && n_free++ < p->n_swaps && !p->swaps[i].seq.open,
                "the list of free records is broken");
    }
    REQUIRE(n_free + n_open == p->n_swaps, "a record is lost");
    const char *wrong = check_discards(p);
    if (wrong) return wrong;
    return p->n_host_pages > 0 ? check_tree(&p->host, p->n_host_pages) : NULL;
}

static const char *check_blocks(const pkv *p)
{
    uint32_t live = 0, children = 0;
    for (uint32_t b = 0; b < p->blocks_touched; b++) {
        const pkv_block *k = &p->blocks[b];
        if (b != 0 && k->generation % 2 == 0) continue;
        uint32_t n = 0;
        for (uint32_t c = k->first_child, last = 0; c != 0;
             last = c, c = p->blocks[c].next_sibling) {
            REQUIRE(c < p->blocks_touched && n++ < p->max_blocks, "a list of blocks is broken");
            REQUIRE(p->blocks[c].generation % 2 == 1, "a block's child left the cache");
            REQUIRE(p->blocks[c].parent == b && p->blocks[c].prev_sibling == last,
                    "a list of blocks is broken");
        }
        children += n;
        if (b == 0) continue;
        live++;
        const uint32_t *tokens = block_tokens(p, b);
        REQUIRE(k->hash == prefix_hash(p, p->blocks[k->parent].hash, tokens, k->salt),
                "a block has another block's hash");
        REQUIRE(k->parent == 0 || p->blocks[k->parent].salt == k->salt, "a chain mixes salts");
        REQUIRE(prefix_find(p, k->parent, k->hash, tokens, k->salt) == b,
                "a block is twice in the cache, or cannot be found");
        uint32_t nodes = 0;
        for (uint32_t node = k->first_node; node != 0; node = p->pool.nodes[node].block_next) {
            REQUIRE(nodes++ < p->groups && p->pool.nodes[node].block == b &&
                        node_grain(&p->pool, node) == k->grain,
                    "a block lacks one of its pages");
        }
        REQUIRE(nodes == groups_at(p, k->grain), "a block lacks one of its pages");
    }
    REQUIRE(live == p->n_blocks && children == live, "blocks are miscounted");
    return NULL;
}

const char *pkv_check_integrity(const pkv *p)
{
    /* Not from p's allocator, whose calls tests count and make fail. */
    holder *holders = alloc_zeroed(NULL, tree_node_count(&p->pool), sizeof *holders);
    if (!holders) return "out of memory";
    const char *wrong = check_seqs(p, holders);
    if (!wrong) wrong = check_arriving(p);
    if (!wrong) wrong = check_pages(p, holders);
    alloc_free(NULL, holders);
    uint8_t *seen =
        alloc_zeroed(NULL, p->n_host_pages ? tree_node_count(&p->host) : 1, sizeof *seen);
    if (!seen) return "out of memory";
    if (!wrong) wrong = check_host(p, seen);
    alloc_free(NULL, seen);
    if (!wrong && p->prefix_cache) wrong = check_blocks(p);
    if (!wrong && p->prefix_cache) wrong = watch_check(p);
    return wrong;
}
