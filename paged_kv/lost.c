/* Blocks that leave the prefix cache because their pages are wanted, told so that the engine can
 * keep their K and V elsewhere, and the keys under which they are found there. */
#include "paged_kv/prefix.h"

#include "base/sha256.h"

status lost_create(pkv *p, uint32_t most)
{
    lost_blocks *l = &p->lost;
    if (most == 0) return STATUS_IS_OK;
    l->most = most;
    l->block_keys = alloc_zeroed(&p->alloc, (size_t)p->max_blocks + 1, sizeof *l->block_keys);
    l->keys = alloc_zeroed(&p->alloc, (size_t)2 * most, sizeof *l->keys);
    l->cells = alloc_zeroed(&p->alloc, (size_t)2 * most * p->groups, sizeof *l->cells);
    bool ok = l->block_keys && l->keys && l->cells;
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, NULL);
}

void lost_destroy(pkv *p)
{
    alloc_free(&p->alloc, p->lost.block_keys);
    alloc_free(&p->alloc, p->lost.keys);
    alloc_free(&p->alloc, p->lost.cells);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The first half of the digest. A digest that is easy to forge would show one client what another
 * has asked, so hash_bytes is not enough here, where no tokens are compared. */
static pkv_key finish_key(sha256 *s)
{
    char hex[SHA256_HEX_BYTES];
    pkv_key key = {{0}};
    sha256_finish(s, hex);
    for (size_t i = 0; i < 2 * sizeof key.bytes; i++) {
        uint8_t digit = (uint8_t)(hex[i] <= '9' ? hex[i] - '0' : hex[i] - 'a' + 10);
        key.bytes[i / 2] |= (uint8_t)(digit << (i % 2 ? 0 : 4));
    }
    return key;
}

pkv_key pkv_key_root(uint64_t salt)
{
    sha256 s;
    sha256_init(&s);
    sha256_add(&s, &salt, sizeof salt);
    return finish_key(&s);
}

void pkv_key_next(const pkv *p, pkv_key *key, const uint32_t *tokens)
{
    sha256 s;
    sha256_init(&s);
    sha256_add(&s, key, sizeof *key);
    sha256_add(&s, tokens, p->geometry.page_tokens * sizeof *tokens);
    *key = finish_key(&s);
}

pkv_key pkv_seq_key(const pkv *p, uint32_t seq)
{
    const pkv_seq *s = &p->seqs[seq];
    assert(p->lost.most > 0 && seq < p->max_seqs && s->open);
    return s->cursor != 0 ? p->lost.block_keys[s->cursor] : pkv_key_root(s->salt);
}

void lost_enter(pkv *p, uint32_t b, uint64_t salt, const uint32_t *tokens)
{
    lost_blocks *l = &p->lost;
    if (l->most == 0) return;
    uint32_t parent = p->blocks[b].parent;
    l->block_keys[b] = parent != 0 ? l->block_keys[parent] : pkv_key_root(salt);
    pkv_key_next(p, &l->block_keys[b], tokens);
}

/* ---- cells ----------------------------------------------------------------------------------- */

/* Writes the cells of a node of table `table` of a grain to their places among all KV groups. */
static void put_cells(const pkv *p, pkv_grain grain, uint32_t table, uint32_t node, uint32_t *cells)
{
    const pkv_tree *t = &p->pool;
    uint32_t n = p->groups / groups_at(p, grain);
    for (uint32_t group = table * n; group < (table + 1) * n; group++)
        cells[group] = node_inside(t, node, PKV_HEAD, group / t->n_heads, group % t->n_heads);
}

void pkv_seq_cells(const pkv *p, uint32_t seq, uint32_t index, uint32_t *cells)
{
    const pkv_seq *s = &p->seqs[seq];
    assert(seq < p->max_seqs && s->open && !s->dropped);
    for (uint32_t g = 0; g < s->groups; g++) {
        assert(index < s->tables[g].n_pages);
        put_cells(p, s->grain, g, node_of(&p->pool, s->grain, seq_pages(s, g)[index]), cells);
    }
}

/* Writes the key and the cells of a block to entry `at` of the lists. */
static void describe(pkv *p, uint32_t b, uint32_t at)
{
    lost_blocks *l = &p->lost;
    uint32_t table = 0;
    l->keys[at] = l->block_keys[b];
    for (uint32_t node = p->blocks[b].first_node; node != 0; node = p->pool.nodes[node].block_next)
        put_cells(p, p->blocks[b].grain, table++, node, l->cells + (size_t)at * p->groups);
}

/* When the ring is full, the block that left first makes room: children leave before their parent,
 * and are of no use without it. */
void lost_add(pkv *p, uint32_t b)
{
    lost_blocks *l = &p->lost;
    if (l->most == 0) return;
    uint32_t at = (l->first + l->n) % l->most;
    if (l->n == l->most) {
        l->first = (l->first + 1) % l->most;
        p->counts.blocks_untold++;
    } else {
        l->n++;
    }
    describe(p, b, at);
}

static uint32_t first_leaf(const pkv *p, uint32_t b)
{
    while (p->blocks[b].first_child != 0) b = p->blocks[b].first_child;
    return b;
}

/* The block behind `b` where children come before their parent; 0 behind the last. */
static uint32_t next_block(const pkv *p, uint32_t b)
{
    uint32_t sibling = p->blocks[b].next_sibling;
    return sibling != 0 ? first_leaf(p, sibling) : p->blocks[b].parent;
}

/* The room behind the ring serves, as it does for pkv_take_lost. */
pkv_lost pkv_tell_cached(pkv *p, uint32_t *cursor)
{
    lost_blocks *l = &p->lost;
    pkv_lost out = {.keys = l->keys + l->most, .cells = l->cells + (size_t)l->most * p->groups};
    if (l->most == 0) return (pkv_lost){.n = 0};
    uint32_t b = *cursor;
    if (b == UINT32_MAX) return out;
    if (b == 0) b = first_leaf(p, 0);
    for (; b != 0 && out.n < l->most; b = next_block(p, b)) describe(p, b, l->most + out.n++);
    *cursor = b != 0 ? b : UINT32_MAX;
    return out;
}

pkv_lost pkv_take_lost(pkv *p)
{
    lost_blocks *l = &p->lost;
    size_t groups = p->groups;
    pkv_lost out = {.keys = l->keys + l->most, .cells = l->cells + l->most * groups, .n = l->n};
    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t from = (l->first + i) % l->most, to = l->most + i;
        l->keys[to] = l->keys[from];
        memcpy(l->cells + to * groups, l->cells + from * groups, groups * sizeof *l->cells);
    }
    l->first = l->n = 0;
    return out;
}
