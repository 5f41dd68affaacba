/* Checks what must hold between operations. Everything is counted again from tables, lists and
 * blocks. */
#include "paged_kv/internal.h"

/* Returns `what` from the calling check when the condition does not hold. */
#define REQUIRE(condition, what)                                                                   \
    do {                                                                                           \
        if (!(condition)) return (what);                                                           \
    } while (0)

/* How a referenced page is held: all its holders must agree. */
typedef struct holder {
    uint32_t refs;
    uint32_t parked; // references of parked sequences, counted in refs too
    uint32_t group;
    uint32_t fill;  // tokens in it
    uint32_t first; // position of its first token
} holder;

/* Checks that no two slots share a position. `seen` has a 0 byte for each position, and is left
 * so. */
static const char *check_positions(const pkv *p, const pkv_seq *s, uint32_t group, uint8_t *seen)
{
    uint32_t kept = s->tables[group].kept;
    for (uint32_t slot = 0; slot < kept; slot++) {
        uint32_t position = table_position(p, s, group, slot);
        REQUIRE(position < s->length, "a position is past its sequence's end");
        REQUIRE(!seen[position]++, "two slots have one position");
        REQUIRE(s->dropped || position == slot, "a whole sequence has a position out of place");
        REQUIRE(!s->contiguous || slot == 0 || position > table_position(p, s, group, slot - 1),
                "positions of a contiguous sequence do not ascend");
    }
    for (uint32_t slot = 0; slot < kept; slot++) seen[table_position(p, s, group, slot)] = 0;
    return NULL;
}

static const char *check_table(const pkv *p, const pkv_seq *s, uint32_t group, bool parked,
                               holder *holders)
{
    const pkv_table *t = &s->tables[group];
    uint32_t size = p->geometry.page_tokens;
    REQUIRE(t->n_pages == pages_for(p, t->kept), "a table has pages that its tokens do not fill");
    REQUIRE(t->n_pages <= s->row, "a table is longer than its list");
    REQUIRE(t->kept <= s->length, "a table keeps more tokens than its sequence has seen");
    REQUIRE(t->slot_pages <= t->n_pages, "a table has positions of pages that it has not");
    REQUIRE((uint64_t)t->slot_pages * size <= t->slots_cap, "a table's positions overflow");
    REQUIRE(s->dropped || t->kept == s->length, "a whole sequence lacks tokens");
    REQUIRE(s->dropped || t->slot_pages == 0, "a whole sequence has compacted pages");
    for (uint32_t i = 0; i < t->n_pages; i++) {
        uint32_t id_page = seq_pages(s, group)[i];
        REQUIRE(id_page >= 1 && id_page < p->touched, "a table holds a page never handed out");
        const pkv_page *g = &p->pages[id_page];
        REQUIRE(g->refs > 0, "a table holds a page without references");
        holder *h = &holders[id_page];
        holder now = {.group = group,
                      .fill = t->kept - i * size < size ? t->kept - i * size : size,
                      .first = table_position(p, s, group, i * size)};
        REQUIRE(h->refs == 0 ||
                    (h->group == now.group && h->fill == now.fill && h->first == now.first),
                "the holders of a page disagree about it");
        REQUIRE(g->block == 0 || now.fill == size, "a page that is being filled is hashed");
        REQUIRE(g->block == 0 || !s->sealed, "a page from before a flush is hashed");
        REQUIRE(g->refs == 1 || now.fill == size || s->forked,
                "a page that is being filled is shared unnoticed");
        now.refs = h->refs + 1;
        now.parked = h->parked + parked;
        *h = now;
    }
    return NULL;
}

/* Checks a sequence on the pool's pages: an open or a parked one. */
static const char *check_seq(const pkv *p, const pkv_seq *s, bool parked, holder *holders)
{
    uint32_t held = 0;
    for (uint32_t g = 0; g < p->groups; g++) {
        const char *wrong = check_table(p, s, g, parked, holders);
        if (wrong) return wrong;
        held += s->tables[g].n_pages;
    }
    REQUIRE(held == s->held, "a sequence miscounts its pages");
    REQUIRE(keeps_evenly(p, s), "tables of a contiguous sequence keep unequally many");
    REQUIRE(s->dropped || !s->contiguous, "a whole sequence is contiguous");
    REQUIRE(s->published <= s->length / p->geometry.page_tokens, "a sequence published too much");
    uint8_t *seen = alloc_zeroed(NULL, (size_t)s->length + 1, sizeof *seen);
    if (!seen) return "out of memory";
    const char *wrong = NULL;
    for (uint32_t g = 0; g < p->groups && !wrong; g++) wrong = check_positions(p, s, g, seen);
    alloc_free(NULL, seen);
    if (wrong || s->dropped || s->cursor == 0) return wrong;
    REQUIRE(p->blocks[s->cursor].generation >= s->cursor_generation,
            "a sequence published into the future");
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
        if (wrong) return wrong;
        checksum += checksum_seq(id);
        reserve += log_reserve_of(p, s->row);
        for (uint32_t g = 0; g < p->groups; g++) {
            const pkv_table *t = &s->tables[g];
            drops +=
                t->drop_epoch == p->log.epoch ? 0 : DELTA_DROP_HEAD + delta_bit_words(t->n_pages);
            uint64_t key = checksum_key(id, g);
            checksum += checksum_kept(key, t->kept);
            for (uint32_t i = 0; i < t->n_pages; i++) {
                checksum += checksum_page(key, i, seq_pages(s, g)[i]);
            }
        }
        drops += DELTA_CLOSE_WORDS;
    }
    for (uint32_t i = 1; i <= p->n_swaps; i++) {
        if (!p->swaps[i].seq.open || !p->swaps[i].parked) continue;
        const char *wrong = check_seq(p, &p->swaps[i].seq, true, holders);
        if (wrong) return wrong;
    }
    REQUIRE(checksum == p->checksum, "the checksum does not match the tables");
    REQUIRE(reserve == p->log.reserve, "the log's reserve does not match the tables");
    REQUIRE(p->log.n_words + drops <= p->log.cap_words, "the log lacks room for drops and closes");
    return NULL;
}

static const char *check_pages(const pkv *p, const holder *holders)
{
    uint32_t used = 0, cached = 0, hashed = 0, alone = 0, unset = p->n_pages - p->touched;
    for (uint32_t i = 1; i < p->touched; i++) {
        const pkv_page *g = &p->pages[i];
        REQUIRE(g->refs == holders[i].refs, "a page's references are not those in the tables");
        REQUIRE(g->parked == holders[i].parked, "a page miscounts its parked holders");
        alone += is_parked_alone(g);
        used += g->refs > 0;
        cached += g->refs == 0 && g->block != 0;
        hashed += g->block != 0;
    }
    REQUIRE(used == p->used, "used pages are miscounted");
    REQUIRE(alone == p->parked_alone, "pages of parked sequences alone are miscounted");
    REQUIRE(cached == p->cached, "cached pages are miscounted");
    REQUIRE((uint64_t)p->free + p->used + p->cached == p->n_pages - 1,
            "free + used + cached is not the pool");
    REQUIRE(hashed == (uint64_t)p->n_blocks * p->groups, "a hashed page belongs to no block");

    uint32_t n = 0;
    for (uint32_t i = p->free_head; i != 0; i = p->pages[i].next, n++) {
        REQUIRE(i < p->touched && n < p->n_pages, "the free list is broken");
        REQUIRE(p->pages[i].refs == 0 && p->pages[i].block == 0, "a free page is in use");
    }
    REQUIRE(n + unset == p->free, "the free list is not the free pages");
    n = 0;
    for (uint32_t i = p->pages[0].next, last = 0; i != 0; last = i, i = p->pages[i].next, n++) {
        REQUIRE(i < p->touched && n < p->n_pages && p->pages[i].prev == last,
                "the list of cached pages is broken");
        REQUIRE(p->pages[i].refs == 0 && p->pages[i].block != 0,
                "a page in the list of cached pages is not cached");
    }
    REQUIRE(n == p->cached, "the list of cached pages is not the cached pages");
    return NULL;
}

/* Checks that every host page is in one swapped sequence, on the stack of free pages, or never
 * used. */
static const char *check_host(const pkv *p, uint8_t *seen)
{
    REQUIRE(p->host_touched <= p->n_host_pages && p->n_host_free <= p->host_touched,
            "host pages are miscounted");
    for (uint32_t i = 0; i < p->n_host_free; i++) {
        REQUIRE(p->host_free[i] < p->host_touched && !seen[p->host_free[i]]++,
                "the free host pages are broken");
    }
    uint32_t held = 0, n_free = 0, n_open = 0;
    for (uint32_t i = 1; i <= p->n_swaps; i++) {
        const pkv_seq *s = &p->swaps[i].seq;
        if (!s->open) continue;
        uint32_t own = 0;
        n_open++;
        if (p->swaps[i].parked) continue;
        for (uint32_t g = 0; g < p->groups; g++) {
            const pkv_table *t = &s->tables[g];
            REQUIRE(t->n_pages == pages_for(p, t->kept) && t->n_pages <= s->row &&
                        t->kept <= s->length && t->slot_pages <= t->n_pages,
                    "a swapped table is out of shape");
            for (uint32_t k = 0; k < t->n_pages; k++) {
                uint32_t page = seq_pages(s, g)[k];
                REQUIRE(page < p->host_touched && !seen[page]++,
                        "a swapped table holds a host page that is not its own");
            }
            own += t->n_pages;
        }
        REQUIRE(own == s->held && own > 0, "a swapped sequence miscounts its pages");
        held += own;
    }
    REQUIRE(held == host_used(p), "used host pages are not those of swapped sequences");
    for (uint32_t i = p->n_swaps > 0 ? p->swaps[0].next : 0; i != 0; i = p->swaps[i].next) {
        REQUIRE(i <= p->n_swaps && n_free++ < p->n_swaps && !p->swaps[i].seq.open,
                "the list of free records is broken");
    }
    REQUIRE(n_free + n_open == p->n_swaps, "a record is lost");
    return NULL;
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
        for (uint32_t g = 0; g < p->groups; g++) {
            REQUIRE(p->pages[block_pages(p, b)[g]].block == b, "a block lacks one of its pages");
        }
    }
    REQUIRE(live == p->n_blocks && children == live, "blocks are miscounted");
    return NULL;
}

const char *pkv_check_integrity(const pkv *p)
{
    /* Not from p's allocator, whose calls tests count and make fail. */
    holder *holders = alloc_zeroed(NULL, p->n_pages, sizeof *holders);
    if (!holders) return "out of memory";
    const char *wrong = check_seqs(p, holders);
    if (!wrong) wrong = check_pages(p, holders);
    alloc_free(NULL, holders);
    uint8_t *seen = alloc_zeroed(NULL, (size_t)p->host_touched + 1, sizeof *seen);
    if (!seen) return "out of memory";
    if (!wrong) wrong = check_host(p, seen);
    alloc_free(NULL, seen);
    if (!wrong && p->prefix_cache) wrong = check_blocks(p);
    if (!wrong && p->prefix_cache) wrong = watch_check(p);
    return wrong;
}
