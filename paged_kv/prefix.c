/* The prefix cache.
 *
 * A block is identified by its tokens and its parent block, a first block by its tokens and the
 * salt; the chain hash only finds it. So equal chains are one chain: when two sequences compute the
 * same block, the first sequence's pages stay the block's, the second one's pages stay unhashed,
 * and its next block becomes a child of that same block. Hence a block outlives neither its parent
 * nor any of its pages, and a sequence whose last published block was removed publishes again from
 * its first block (pkv_seq_publish). */
#include "paged_kv/prefix.h"
#include "paged_kv/pool.h"

status prefix_create(pkv *p)
{
    const allocator *a = &p->alloc;
    /* A block holds a cell of each group and no cell has two blocks. */
    p->max_blocks = (p->n_pages - 1) / p->groups;
    uint32_t n_buckets = 16;
    while (n_buckets < p->max_blocks) n_buckets *= 2;
    p->bucket_mask = n_buckets - 1;
    p->blocks_touched = 1;
    size_t n = (size_t)p->max_blocks + 1;
    p->buckets = alloc_zeroed(a, n_buckets, sizeof *p->buckets);
    p->blocks = alloc_resize(a, NULL, n, sizeof *p->blocks);
    p->block_tokens = alloc_resize(a, NULL, n * p->geometry.page_tokens, sizeof *p->block_tokens);
    if (!p->buckets || !p->blocks || !p->block_tokens) {
        return status_make(STATUS_NO_MEMORY, NULL);
    }
    p->blocks[0] = (pkv_block){0};
    return STATUS_IS_OK;
}

void prefix_destroy(pkv *p)
{
    alloc_free(&p->alloc, p->buckets);
    alloc_free(&p->alloc, p->blocks);
    alloc_free(&p->alloc, p->block_tokens);
}

uint64_t prefix_hash(const pkv *p, uint64_t parent_hash, const uint32_t *tokens, uint64_t salt)
{
    uint64_t seed = hash_mix64(parent_hash + hash_mix64(salt));
    uint64_t hash = hash_bytes(tokens, p->geometry.page_tokens * sizeof *tokens, seed);
    return hash != 0 ? hash : 1; /* 0 means "no parent" in events */
}

uint32_t prefix_find(const pkv *p, uint32_t parent, uint64_t hash, const uint32_t *tokens,
                     uint64_t salt)
{
    size_t bytes = p->geometry.page_tokens * sizeof *tokens;
    for (uint32_t b = p->buckets[hash & p->bucket_mask]; b != 0; b = p->blocks[b].next_in_bucket) {
        const pkv_block *k = &p->blocks[b];
        if (k->hash == hash && k->parent == parent && k->salt == salt &&
            memcmp(block_tokens(p, b), tokens, bytes) == 0) {
            return b;
        }
    }
    return 0;
}

uint32_t prefix_walk(const pkv *p, const uint32_t *tokens, uint32_t max_tokens, uint64_t salt,
                     uint32_t *n_blocks)
{
    uint32_t last = 0, n = 0, size = p->geometry.page_tokens;
    uint32_t n_max = p->prefix_cache ? max_tokens / size : 0;
    uint64_t hash = 0;
    for (; n < n_max; n++) {
        hash = prefix_hash(p, hash, tokens + (size_t)n * size, salt);
        uint32_t b = prefix_find(p, last, hash, tokens + (size_t)n * size, salt);
        if (b == 0) break;
        last = b;
    }
    *n_blocks = n;
    return last;
}

pkv_hit pkv_lookup(const pkv *p, const uint32_t *tokens, uint32_t max_tokens, uint64_t salt)
{
    uint32_t n;
    uint32_t b = prefix_walk(p, tokens, max_tokens, salt, &n);
    pkv_hit hit = {.tokens = n * p->geometry.page_tokens};
    for (; b != 0; b = p->blocks[b].parent) {
        for (uint32_t node = p->blocks[b].first_node; node != 0;
             node = p->pool.nodes[node].block_next) {
            hit.cached_pages +=
                cells_in(&p->pool, p->blocks[b].grain) - cells_with(&p->pool, node, COVER_USED);
            hit.parked_pages += cells_parked(p, node);
        }
    }
    return hit;
}

pkv_hit pkv_lookup_most(const pkv *p, const uint32_t *tokens, uint32_t max_tokens, uint64_t salt)
{
    uint32_t n;
    (void)prefix_walk(p, tokens, max_tokens, salt, &n);
    return (pkv_hit){.tokens = n * p->geometry.page_tokens, .cached_pages = n * p->groups};
}

/* tokens: NULL for a removed block, or one whose tokens are hidden. */
static void emit(const pkv *p, uint32_t b, bool stored, const uint32_t *tokens)
{
    if (!p->on_block) return;
    const pkv_block *k = &p->blocks[b];
    pkv_block_event event = {
        .kind = stored ? PKV_BLOCK_STORED : PKV_BLOCK_REMOVED,
        .hash = k->hash,
        .parent = k->parent != 0 ? p->blocks[k->parent].hash : 0,
        .tokens = tokens,
    };
    p->on_block(p->on_block_ctx, &event);
}

/* Enters block `index` of a sequence as a child of `parent`; its pages become the block's. */
static uint32_t insert_block(pkv *p, const pkv_seq *s, uint32_t index, uint32_t parent,
                             uint64_t hash, const uint32_t *tokens)
{
    uint32_t b = p->free_block;
    if (b != 0) {
        p->free_block = p->blocks[b].next_in_bucket;
    } else {
        assert(p->blocks_touched <= p->max_blocks);
        b = p->blocks_touched++;
        p->blocks[b].generation = 0;
    }
    pkv_block *k = &p->blocks[b], *up = &p->blocks[parent];
    uint32_t *bucket = &p->buckets[hash & p->bucket_mask];
    *k = (pkv_block){
        .hash = hash,
        .salt = s->salt,
        .parent = parent,
        .next_sibling = up->first_child,
        .next_in_bucket = *bucket,
        .generation = k->generation + 1,
        .grain = s->grain,
    };
    *bucket = b;
    if (up->first_child != 0) p->blocks[up->first_child].prev_sibling = b;
    up->first_child = b;
    p->n_blocks++;

    memcpy(block_tokens(p, b), tokens, p->geometry.page_tokens * sizeof *tokens);
    uint32_t *link = &k->first_node;
    for (uint32_t g = 0; g < s->groups; g++) {
        uint32_t node = node_of(&p->pool, s->grain, seq_pages(s, g)[index]);
        assert(p->pool.nodes[node].block == 0);
        pool_hash(p, node, b);
        *link = node;
        link = &p->pool.nodes[node].block_next;
    }
    *link = 0;
    lost_enter(p, b, s->salt, tokens);
    emit(p, b, true, s->hidden ? NULL : block_tokens(p, b));
    return b;
}

void pkv_seq_hide(pkv *p, uint32_t seq) { p->seqs[seq].hidden = true; }

bool pkv_seq_publishes(const pkv *p, uint32_t seq)
{
    const pkv_seq *s = seq_opened(p, seq);
    return !s->dropped && !s->sealed && !s->silent && !is_of_some_layers(p, s);
}

void pkv_seq_publish(pkv *p, uint32_t seq_id, const uint32_t *tokens, uint32_t n)
{
    pkv_seq *s = seq_changing(p, seq_id);
    assert(n <= s->length);
    if (!p->prefix_cache || !pkv_seq_publishes(p, seq_id)) return;
    uint32_t size = p->geometry.page_tokens, n_full = n / size;
    if (n_full <= s->published) return;
    if (chain_is_cut(p, s)) {
        /* The chain was cut: another sequence's pages were part of it and were reclaimed. This
         * sequence still holds pages for all of it. */
        s->cursor = s->published = 0;
    }
    uint32_t cursor = s->cursor;
    for (uint32_t i = s->published; i < n_full; i++) {
        const uint32_t *block_of = tokens + (size_t)i * size;
        uint64_t hash = prefix_hash(p, p->blocks[cursor].hash, block_of, s->salt);
        uint32_t b = prefix_find(p, cursor, hash, block_of, s->salt);
        cursor = b != 0 ? b : insert_block(p, s, i, cursor, hash, block_of);
    }
    s->published = n_full;
    s->cursor = cursor;
    s->cursor_generation = p->blocks[cursor].generation;
}

/* Detaches a block from its nodes: cells without references become free. */
static void release_nodes(pkv *p, uint32_t b)
{
    for (uint32_t node = p->blocks[b].first_node, next; node != 0; node = next) {
        next = p->pool.nodes[node].block_next;
        pool_hash(p, node, 0);
    }
}

/* Removes one block without children. */
static void remove_leaf(pkv *p, uint32_t b)
{
    pkv_block *k = &p->blocks[b];
    emit(p, b, false, NULL);
    uint32_t *link = &p->buckets[k->hash & p->bucket_mask];
    while (*link != b) link = &p->blocks[*link].next_in_bucket;
    *link = k->next_in_bucket;
    if (k->prev_sibling != 0) p->blocks[k->prev_sibling].next_sibling = k->next_sibling;
    else p->blocks[k->parent].first_child = k->next_sibling;
    if (k->next_sibling != 0) p->blocks[k->next_sibling].prev_sibling = k->prev_sibling;

    watch_remove(p, b);
    release_nodes(p, b);
    k->generation++;
    k->next_in_bucket = p->free_block;
    p->free_block = b;
    p->n_blocks--;
}

/* Removes children before their parent, without recursion, because chains are as long as
 * contexts. */
static void remove_tree(pkv *p, uint32_t top, bool is_lost)
{
    for (uint32_t b = top;;) {
        while (p->blocks[b].first_child != 0) b = p->blocks[b].first_child;
        uint32_t parent = p->blocks[b].parent;
        if (is_lost) lost_add(p, b);
        remove_leaf(p, b);
        if (b == top) return;
        b = parent;
    }
}

void prefix_remove(pkv *p, uint32_t top) { remove_tree(p, top, true); }

/* A sequence whose chain was cut before may hold pages of this one, and would publish them again
 * from its first block on. So it counts as one of those that hold them. */
static void silence_if_cut(const pkv *p, pkv_seq *s) { s->silent |= s->open && chain_is_cut(p, s); }

void pkv_distrust(pkv *p, const uint32_t *tokens, uint32_t n, uint64_t salt)
{
    uint32_t size = p->geometry.page_tokens, n_blocks;
    uint32_t top = prefix_walk(p, tokens, n < size ? n : size, salt, &n_blocks);
    p->lost.n = 0; /* blocks of this tree may have left a moment ago, the first one too */
    if (top == 0) return;
    remove_tree(p, top, false);
    for (uint32_t i = 0; i < p->max_seqs; i++) silence_if_cut(p, &p->seqs[i]);
    for (uint32_t i = 1; i <= p->n_swaps; i++) silence_if_cut(p, &p->swaps[i].seq);
}

void pkv_flush(pkv *p)
{
    if (!p->prefix_cache) return;
    p->lost.n = 0;
    for (uint32_t i = 0; i < p->max_seqs; i++) p->seqs[i].sealed = p->seqs[i].open;
    for (uint32_t i = 1; i <= p->n_swaps; i++) p->swaps[i].seq.sealed = true;
    p->free_block = 0;
    watch_forget(p);
    for (uint32_t b = p->blocks_touched; b-- > 1;) {
        pkv_block *k = &p->blocks[b];
        if (k->generation % 2 == 1) {
            release_nodes(p, b);
            k->generation++;
        }
        k->next_in_bucket = p->free_block;
        p->free_block = b;
    }
    memset(p->buckets, 0, ((size_t)p->bucket_mask + 1) * sizeof *p->buckets);
    p->blocks[0].first_child = 0;
    p->n_blocks = 0;
    if (p->on_block) p->on_block(p->on_block_ctx, &(pkv_block_event){.kind = PKV_CLEARED});
}
