/* The host tier: pages of whole sequences are copied out of the pool and back. A swapped sequence
 * holds host pages of its own, never shared, and the rest of its tables' state. leave.c and
 * arrive.c say which pages go when. */
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"
#include "paged_kv/portions.h"
#include "paged_kv/prefix.h"
#include "paged_kv/records.h"
#include "paged_kv/table.h"

status host_create(pkv *p)
{
    if (p->n_host_pages == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(tree_create(&p->host, &p->alloc, &p->geometry, p->n_host_pages));
    p->host_most = tree_without(&p->host, COVER_USED);
    return STATUS_IS_OK;
}

bool host_has_room(const pkv *p, const pkv_seq *s)
{
    return s->held > 0 && !p->is_swapping &&
           seq_held_evenly(p, s) <= tree_without(&p->host, COVER_USED);
}

uint32_t pkv_host_most(const pkv *p) { return p->host_most; }

void host_destroy(pkv *p) { tree_destroy(&p->host, &p->alloc); }

static pkv_seq *swapped(const pkv *p, uint32_t swap)
{
    assert(swap >= 1 && swap <= p->n_swaps);
    assert(p->swaps[swap].seq.open && !p->swaps[swap].parked);
    return &p->swaps[swap].seq;
}

/* ---- out ------------------------------------------------------------------------------------- */

void table_copy_out(pkv *p, const pkv_seq *s, uint32_t table, uint32_t from, uint32_t to,
                    uint32_t *out)
{
    const uint32_t *pages = seq_pages(s, table);
    uint32_t share = table_share(&p->host, table), hosts[PAGES_TOGETHER];
    for (uint32_t i = from; i < to;) {
        uint32_t most = to - i < PAGES_TOGETHER ? to - i : PAGES_TOGETHER;
        uint32_t taken = tree_take(&p->host, s->grain, share, most, hosts);
        assert(taken > 0);
        for (uint32_t k = 0; k < taken; k++, i++) {
            uint32_t host = page_of(&p->host, hosts[k]);
            log_move(p, (pkv_move){.kind = PKV_MOVE_OUT,
                                   .grain = s->grain,
                                   .group = table,
                                   .src_page = pages[i],
                                   .dst_page = host,
                                   .n_slots = p->geometry.page_tokens});
            out[i] = host;
        }
    }
}

/* ---- in -------------------------------------------------------------------------------------- */

/* The cost of bringing the sequence back where the blocks up to `at` are resident. */
static pkv_swap_cost cost_beside(pkv *p, const pkv_seq *s, resident_at at)
{
    pkv_swap_cost cost;
    resident_count_begin(p, s, &cost);
    resident_count_some(p, s, &at, UINT32_MAX, &cost);
    resident_count_end(p, &cost);
    return cost;
}

pkv_swap_cost pkv_swap_in_cost(pkv *p, uint32_t swap, const uint32_t *tokens)
{
    const pkv_seq *s = swapped(p, swap);
    return cost_beside(p, s, resident_blocks(p, s, tokens));
}

pkv_swap_cost pkv_swap_in_cost_again(pkv *p, uint64_t key, uint32_t swap, const uint32_t *tokens)
{
    const pkv_seq *s = swapped(p, swap);
    prefix_watch *w = &p->watch;
    if (s->sealed || s->unshared) return cost_beside(p, s, (resident_at){0});
    pkv_lookup_again(p, key, tokens, s->published * p->geometry.page_tokens, s->salt);
    if (!w->has_cost) w->cost = cost_beside(p, s, (resident_at){w->last, w->n_blocks});
    w->has_cost = true;
    return w->cost;
}

pkv_swap_cost pkv_swap_in_most(const pkv *p, uint32_t swap)
{
    const pkv_seq *s = swapped(p, swap);
    uint32_t even = (uint32_t)seq_held_evenly(p, s);
    return (pkv_swap_cost){.held = s->held,
                           .fresh = s->held,
                           .uneven = even - s->held,
                           .held_even = even,
                           .shared_even = even};
}

/* Lists a resident page and takes a reference to it, so that it is not reclaimed for another. */
static void take_back(pkv *p, void *ctx, uint32_t table, uint32_t index, uint32_t node)
{
    pkv_seq *s = ctx;
    node_ref(p, &p->pool, node);
    p->counts.pages_retaken += cells_of(p, s);
    seq_pages(s, table)[index] = page_of(&p->pool, node);
}

/* Takes fresh pages for the first of a table's n next pages; to[i] is 0 where a page is not
 * resident. Takes at least one, and stops at a resident page and at the end of a run. */
static void take_fresh(pkv *p, pkv_grain grain, uint32_t table, uint32_t *to, uint32_t n)
{
    uint32_t most = 0, pages[PAGES_TOGETHER];
    while (most < n && most < PAGES_TOGETHER && to[most] == 0) most++;
    uint32_t taken = pool_take_some(p, grain, table, most, pages);
    for (uint32_t i = 0; i < taken; i++) to[i] = pages[i] | DELTA_FRESH;
}

void table_copy_in(pkv *p, uint32_t id, const pkv_seq *from, uint32_t table, uint32_t first,
                   uint32_t end)
{
    uint32_t *pages = seq_pages(&p->seqs[id], table);
    if (!p->seqs[id].arriving.retakes && end > first)
        memset(pages + first, 0, (end - first) * sizeof *pages);
    for (uint32_t i = first; i < end; i++) {
        if (pages[i] == 0) take_fresh(p, from->grain, table, pages + i, end - i);
        uint32_t word = pages[i], page = word & ~DELTA_FRESH;
        if (word & DELTA_FRESH) {
            p->counts.pages_swapped_in += cells_of(p, from);
            log_move(p, (pkv_move){.kind = PKV_MOVE_IN,
                                   .grain = from->grain,
                                   .group = table,
                                   .src_page = seq_pages(from, table)[i],
                                   .dst_page = page,
                                   .n_slots = p->geometry.page_tokens});
        }
        table_push(p, id, table, page, seq_bases(from, table)[i]);
        log_word(p, word);
    }
}

static uint64_t taken_by(const pkv_swap_cost *cost)
{
    return (uint64_t)cost->fresh + cost->cached_pages + cost->uneven;
}

/* Swaps all pages in at once. */
static status swap_in_whole(pkv *p, uint32_t swap, uint32_t id, const uint32_t *tokens,
                            uint32_t expect_tokens)
{
    pkv_seq *from = swapped(p, swap), *s = &p->seqs[id];
    pkv_swap_cost cost = pkv_swap_in_cost(p, swap, tokens);
    if (taken_by(&cost) > pkv_available(p)) return status_make(STATUS_NO_PAGES, NULL);
    /* Cached pages that are taken back are no longer free runs either. */
    pkv_grain grain =
        tree_grain(p, &p->pool, from->grain, (uint64_t)cost.fresh + cost.cached_pages);
    if (grain > from->grain) {
        RETURN_IF_ERROR(seq_split(p, &p->host, from, grain, false));
        p->watch.has_cost = false;
        look_forget(p, swap);
        cost = pkv_swap_in_cost(p, swap, tokens);
        if (taken_by(&cost) > pkv_available(p)) return status_make(STATUS_NO_PAGES, NULL);
    }
    resident_at last = resident_blocks(p, from, tokens);
    RETURN_IF_ERROR(seq_begin_arrive(p, swap, id, expect_tokens, UINT32_MAX));
    s->arriving.retakes = last.block != 0;
    for (uint32_t g = 0; last.block != 0 && g < s->groups; g++)
        memset(seq_pages(s, g), 0, from->tables[g].n_pages * sizeof *s->pages);
    each_resident(p, from, &last, UINT32_MAX, take_back, s);
    seq_arrive_first(p, id, UINT32_MAX);
    return STATUS_IS_OK;
}

/* The most cells that a sequence takes which comes in portions. Where as many are available as it
 * has, it does not matter which of its pages are resident. */
static uint64_t taken_in_portions(pkv *p, uint32_t swap, const uint32_t *tokens)
{
    const long_look *look = &p->look;
    uint64_t most = seq_held_evenly(p, swapped(p, swap));
    if (most <= pkv_available(p)) return most;
    if (look->number == swap && look->is_seen) return taken_by(&look->cost);
    pkv_swap_cost cost = pkv_swap_in_cost(p, swap, tokens);
    return taken_by(&cost);
}

/* Tables of a coarser grain come at once, because others may break the runs that they need before
 * the next portion. */
bool pkv_swap_has_portions(const pkv *p, uint32_t swap, uint32_t most)
{
    const pkv_seq *from = swapped(p, swap);
    return most < from->held && from->grain == PKV_HEAD;
}

status pkv_swap_in_some(pkv *p, uint32_t swap, uint32_t id, const uint32_t *tokens,
                        uint32_t expect_tokens, uint32_t most)
{
    pkv_seq *from = swapped(p, swap), *s = &p->seqs[id];
    if (!pkv_swap_has_portions(p, swap, most))
        return swap_in_whole(p, swap, id, tokens, expect_tokens);
    uint64_t taken = taken_in_portions(p, swap, tokens);
    if (taken > pkv_available(p)) return status_make(STATUS_NO_PAGES, NULL);
    resident_at last = resident_blocks(p, from, tokens);
    resident_block *chain;
    RETURN_IF_ERROR(resident_chain(p, last, &chain));
    status st = seq_begin_arrive(p, swap, id, expect_tokens, most);
    if (!status_ok(st)) {
        alloc_free(&p->alloc, chain);
        return st;
    }
    s->arriving.chain = chain;
    s->arriving.n_chain = last.n;
    s->arriving.retakes = chain != NULL;
    s->arriving.promised = (uint32_t)taken;
    p->promised += s->arriving.promised;
    seq_arrive_first(p, id, most);
    return STATUS_IS_OK;
}

status pkv_swap_in(pkv *p, uint32_t swap, uint32_t id, const uint32_t *tokens,
                   uint32_t expect_tokens)
{
    return pkv_swap_in_some(p, swap, id, tokens, expect_tokens, UINT32_MAX);
}

uint32_t pkv_swap_length(const pkv *p, uint32_t swap) { return swapped(p, swap)->length; }

uint32_t pkv_seq_shared_tokens(const pkv *p, uint32_t id)
{
    const pkv_seq *s = seq_opened(p, id);
    uint32_t n = s->dropped ? 0 : s->length / p->geometry.page_tokens;
    for (uint32_t g = 0, tables = tables_filled(p, s); g < tables; g++) {
        uint32_t i = 0;
        for (; i < n; i++) {
            uint32_t node = node_of(&p->pool, s->grain, seq_pages(s, g)[i]);
            if (!node_is_shared(&p->pool, node) || !node_is_hashed(&p->pool, node)) break;
        }
        n = i;
    }
    return n * p->geometry.page_tokens;
}
