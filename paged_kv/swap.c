/* The host tier: whole sequences leave the pool and come back. A swapped sequence holds host pages
 * of its own, never shared, and the rest of its tables' state. */
#include "paged_kv/internal.h"

status host_create(pkv *p)
{
    if (p->n_host_pages == 0) return STATUS_IS_OK;
    /* Written as pages are handed out, so the list of an idle tier stays untouched. */
    p->host_free = alloc_resize(&p->alloc, NULL, p->n_host_pages, sizeof *p->host_free);
    return p->host_free ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, NULL);
}

void host_destroy(pkv *p)
{
    for (uint32_t i = 1; i <= p->n_swaps; i++) seq_free_lists(p, &p->swaps[i].seq);
    alloc_free(&p->alloc, p->swaps);
    alloc_free(&p->alloc, p->host_free);
}

uint32_t host_take(pkv *p)
{
    return p->n_host_free > 0 ? p->host_free[--p->n_host_free] : p->host_touched++;
}

/* ---- records of swapped and parked sequences ------------------------------------------------- */

/* These sequences have no id, so a record's index stands for one. swaps[0] heads the list of free
 * records. record_find makes a record if none is free; record_take removes it from the list. */

uint32_t record_find(pkv *p)
{
    if (p->n_swaps > 0 && p->swaps[0].next != 0) return p->swaps[0].next;
    if (p->n_swaps + 1 >= p->cap_swaps) {
        uint32_t cap = p->cap_swaps < 8 ? 8 : p->cap_swaps * 2;
        pkv_swap *grown = alloc_resize(&p->alloc, p->swaps, cap, sizeof *grown);
        if (!grown) return 0;
        p->swaps = grown;
        p->cap_swaps = cap;
    }
    if (p->n_swaps == 0) p->swaps[0] = (pkv_swap){0};
    p->swaps[++p->n_swaps] = (pkv_swap){0};
    return p->swaps[0].next = p->n_swaps;
}

void record_take(pkv *p, uint32_t number, bool parked)
{
    pkv_swap *r = &p->swaps[number];
    p->swaps[0].next = r->next;
    r->seq.open = true;
    r->parked = parked;
    p->sight.parked = 0;
    p->watch.has_cost = false;
}

void record_free(pkv *p, uint32_t number)
{
    pkv_swap *r = &p->swaps[number];
    for (uint32_t g = 0; g < p->groups; g++) table_clear(&r->seq.tables[g]);
    r->seq.open = false;
    r->next = p->swaps[0].next;
    p->swaps[0].next = number;
}

static const pkv_seq *swapped(const pkv *p, uint32_t swap)
{
    assert(swap >= 1 && swap <= p->n_swaps);
    assert(p->swaps[swap].seq.open && !p->swaps[swap].parked);
    return &p->swaps[swap].seq;
}

/* ---- out ------------------------------------------------------------------------------------- */

static void copy_out(pkv *p, pkv_seq *to, const pkv_seq *from, uint32_t group)
{
    const pkv_table *t = &from->tables[group];
    for (uint32_t i = 0; i < t->n_pages; i++) {
        uint32_t host = host_take(p);
        seq_pages(to, group)[i] = host;
        seq_bases(to, group)[i] = seq_bases(from, group)[i];
        log_move(p, (pkv_move){.kind = PKV_MOVE_OUT,
                               .group = group,
                               .src_page = seq_pages(from, group)[i],
                               .dst_page = host,
                               .n_slots = p->geometry.page_tokens});
    }
    to->tables[group].n_pages = t->n_pages;
    to->tables[group].kept = t->kept;
    table_copy_slots(p, &to->tables[group], t);
}

status pkv_seq_swap_out(pkv *p, uint32_t id, uint32_t *swap)
{
    assert(id < p->max_seqs && p->seqs[id].open);
    const pkv_seq *s = &p->seqs[id];
    if (s->held == 0 || s->held > p->n_host_pages - host_used(p)) {
        return status_make(STATUS_NO_PAGES, NULL);
    }
    uint32_t number = record_find(p);
    if (number == 0) return status_make(STATUS_NO_MEMORY, NULL);
    pkv_seq *kept = &p->swaps[number].seq;
    RETURN_IF_ERROR(seq_reserve_like(p, kept, s, 1));
    RETURN_IF_ERROR(log_room(p, 0, s->held, 0));

    record_take(p, number, false);
    kept->held = s->held;
    seq_copy_state(kept, s);
    for (uint32_t g = 0; g < p->groups; g++) copy_out(p, kept, s, g);
    p->counts.pages_swapped_out += s->held;
    pkv_seq_close(p, id);
    *swap = number;
    return STATUS_IS_OK;
}

/* ---- in -------------------------------------------------------------------------------------- */

/* The last resident block of those that the sequence had published, 0 = none; *n counts them. Equal
 * tokens have equal K and V up to there, even when another sequence computed them. A sequence
 * swapped out before a flush takes no block from after it. */
static uint32_t resident_blocks(const pkv *p, const pkv_seq *s, const uint32_t *tokens, uint32_t *n)
{
    *n = 0;
    if (s->sealed || s->unshared) return 0;
    return prefix_walk(p, tokens, s->published * p->geometry.page_tokens, s->salt, n);
}

/* A walk over the pages of a table that lie in resident blocks, last first. */
typedef struct resident_page {
    uint32_t block, n_blocks; // the next block to look at; its index in the chain is n_blocks - 1
    uint32_t index;           // index of the page found; n_pages before the first
} resident_page;

/* The next resident page, or 0 when there is none. */
static uint32_t next_resident(const pkv *p, const pkv_seq *s, uint32_t group, resident_page *at)
{
    uint32_t size = p->geometry.page_tokens;
    while (at->index > s->tables[group].slot_pages && at->block != 0) {
        uint32_t base = seq_bases(s, group)[at->index - 1], from = (at->n_blocks - 1) * size;
        if (base == from) {
            at->index--;
            return block_pages(p, at->block)[group];
        }
        if (base > from) {
            at->index--;
        } else {
            at->block = p->blocks[at->block].parent;
            at->n_blocks--;
        }
    }
    return 0;
}

/* The cost beside n resident blocks, of which the last is given. */
static pkv_swap_cost cost_beside(const pkv *p, const pkv_seq *s, uint32_t last, uint32_t n)
{
    pkv_swap_cost cost = {.held = s->held, .fresh = s->held};
    for (uint32_t g = 0; last != 0 && g < p->groups; g++) {
        resident_page at = {last, n, s->tables[g].n_pages};
        for (uint32_t page; (page = next_resident(p, s, g, &at)) != 0;) {
            cost.fresh--;
            cost.cached_pages += p->pages[page].refs == 0;
            cost.parked_pages += is_parked_alone(&p->pages[page]);
        }
    }
    return cost;
}

pkv_swap_cost pkv_swap_in_cost(const pkv *p, uint32_t swap, const uint32_t *tokens)
{
    const pkv_seq *s = swapped(p, swap);
    uint32_t n, last = resident_blocks(p, s, tokens, &n);
    return cost_beside(p, s, last, n);
}

pkv_swap_cost pkv_swap_in_cost_again(pkv *p, uint64_t key, uint32_t swap, const uint32_t *tokens)
{
    const pkv_seq *s = swapped(p, swap);
    prefix_watch *w = &p->watch;
    if (s->sealed || s->unshared) return cost_beside(p, s, 0, 0);
    pkv_lookup_again(p, key, tokens, s->published * p->geometry.page_tokens, s->salt);
    if (!w->has_cost) w->cost = cost_beside(p, s, w->last, w->n_blocks);
    w->has_cost = true;
    return w->cost;
}

/* Lists the resident pages of a table and takes a reference to each, so that none is reclaimed for
 * a fresh page. 0 stands for pages that are not resident. */
static void take_back(pkv *p, pkv_seq *to, const pkv_seq *from, uint32_t group, uint32_t last,
                      uint32_t n)
{
    uint32_t *pages = seq_pages(to, group);
    memset(pages, 0, from->tables[group].n_pages * sizeof *pages);
    resident_page at = {last, n, from->tables[group].n_pages};
    for (uint32_t page; (page = next_resident(p, from, group, &at)) != 0;) {
        pool_ref(p, page);
        p->counts.pages_retaken++;
        pages[at.index] = page;
    }
}

static void copy_in(pkv *p, uint32_t id, const pkv_seq *from, uint32_t group)
{
    pkv_seq *to = &p->seqs[id];
    const pkv_table *t = &from->tables[group];
    log_word(p, t->kept);
    for (uint32_t i = 0; i < t->n_pages; i++) {
        uint32_t page = seq_pages(to, group)[i], host = seq_pages(from, group)[i];
        if (page == 0) {
            page = pool_take(p);
            p->counts.pages_swapped_in++;
            log_move(p, (pkv_move){.kind = PKV_MOVE_IN,
                                   .group = group,
                                   .src_page = host,
                                   .dst_page = page,
                                   .n_slots = p->geometry.page_tokens});
        }
        table_push(p, id, group, page, seq_bases(from, group)[i]);
        log_word(p, page);
    }
    table_set_kept(p, id, group, t->kept);
    table_copy_slots(p, &to->tables[group], t);
}

status pkv_swap_in(pkv *p, uint32_t swap, uint32_t id, const uint32_t *tokens,
                   uint32_t expect_tokens)
{
    assert(id < p->max_seqs && !p->seqs[id].open);
    const pkv_seq *from = swapped(p, swap);
    pkv_seq *s = &p->seqs[id];
    pkv_swap_cost cost = pkv_swap_in_cost(p, swap, tokens);
    if ((uint64_t)cost.fresh + cost.cached_pages > pkv_available(p)) {
        return status_make(STATUS_NO_PAGES, NULL);
    }
    RETURN_IF_ERROR(seq_reserve_like(p, s, from, row_for(p, expect_tokens)));
    RETURN_IF_ERROR(log_room(p, DELTA_RETURN_HEAD + p->groups + (size_t)from->held, cost.fresh,
                             log_reserve_of(p, s->row)));
    seq_enter(p, s, id);
    seq_copy_state(s, from);
    s->forked = false;
    s->held = 0;
    uint32_t n, last = resident_blocks(p, from, tokens, &n);
    for (uint32_t g = 0; g < p->groups; g++) {
        table_clear(&s->tables[g]);
        take_back(p, s, from, g, last, n);
    }
    log_word(p, DELTA_RETURN);
    log_word(p, id);
    log_word(p, s->row);
    for (uint32_t g = 0; g < p->groups; g++) copy_in(p, id, from, g);
    pkv_swap_discard(p, swap);
    return STATUS_IS_OK;
}

void pkv_swap_discard(pkv *p, uint32_t swap)
{
    const pkv_seq *s = swapped(p, swap);
    for (uint32_t g = 0; g < p->groups; g++) {
        for (uint32_t i = 0; i < s->tables[g].n_pages; i++) {
            p->host_free[p->n_host_free++] = seq_pages(s, g)[i];
        }
    }
    record_free(p, swap);
}

uint32_t pkv_swap_length(const pkv *p, uint32_t swap) { return swapped(p, swap)->length; }

uint32_t pkv_seq_shared_tokens(const pkv *p, uint32_t id)
{
    assert(id < p->max_seqs && p->seqs[id].open);
    const pkv_seq *s = &p->seqs[id];
    uint32_t n = s->dropped ? 0 : s->length / p->geometry.page_tokens;
    for (uint32_t g = 0; g < p->groups; g++) {
        uint32_t i = 0;
        for (; i < n; i++) {
            const pkv_page *page = &p->pages[seq_pages(s, g)[i]];
            if (page->refs == 1 || page->block == 0) break;
        }
        n = i;
    }
    return n * p->geometry.page_tokens;
}
