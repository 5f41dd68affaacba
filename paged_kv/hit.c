/* Opens sequences on the blocks that the prefix cache has of their tokens, at once or in portions.
 * Between two portions a sequence is an ordinary one whose hit was shorter: the tokens of the
 * blocks that it has taken count as computed. */
#include "paged_kv/delta_log.h"
#include "paged_kv/pool.h"
#include "paged_kv/prefix.h"
#include "paged_kv/table.h"

/* The finest grain of a chain's blocks, or `grain` where that is finer. */
static pkv_grain finest_of(const pkv *p, uint32_t last, pkv_grain grain)
{
    for (uint32_t b = last; b != 0; b = p->blocks[b].parent) {
        if (p->blocks[b].grain > grain) grain = p->blocks[b].grain;
    }
    return grain;
}

/* Enters the pages of a block, one into each table. The tables' grain is the block's or finer. */
static void take_block(pkv *p, pkv_seq *s, uint32_t b, uint32_t index)
{
    uint32_t heads = p->pool.n_heads, table = 0, node = p->blocks[b].first_node;
    uint32_t parts = s->groups / groups_at(p, p->blocks[b].grain);
    for (; node != 0; node = p->pool.nodes[node].block_next) {
        for (uint32_t i = 0; i < parts; i++, table++) {
            uint32_t part =
                node_inside(&p->pool, node, s->grain, layer_of(p, s->grain, table), table % heads);
            seq_pages(s, table)[index] = page_of(&p->pool, part);
            seq_bases(s, table)[index] = index * p->geometry.page_tokens;
            pool_ref(p, s->grain, seq_pages(s, table)[index]);
        }
    }
}

/* Appends the last n blocks of a chain, which ends with block `last`, to the tables' lists and
 * takes references to their pages. The lists have room. enter_pages makes them part of the
 * tables. */
static void take_blocks(pkv *p, pkv_seq *s, uint32_t last, uint32_t n)
{
    uint32_t index = s->published + n;
    for (uint32_t b = last; index > s->published; b = p->blocks[b].parent)
        take_block(p, s, b, --index);
    s->published += n;
    s->length = s->published * p->geometry.page_tokens;
    s->held += n * p->groups;
    s->cursor = last;
    s->cursor_generation = last != 0 ? p->blocks[last].generation : 0;
    p->counts.hit_tokens += (uint64_t)n * p->geometry.page_tokens;
}

/* Makes the pages that take_blocks has listed behind a table's end part of the table, and logs
 * them. */
static void enter_pages(pkv *p, uint32_t id, uint32_t table)
{
    pkv_seq *s = &p->seqs[id];
    pkv_table *t = &s->tables[table];
    uint64_t key = checksum_key(id, table);
    for (; t->n_pages < s->published; t->n_pages++) {
        uint32_t page = seq_pages(s, table)[t->n_pages];
        p->checksum += checksum_page(key, t->n_pages, page);
        log_word(p, page);
    }
}

/* The blocks of a portion: at least one, where there are any. */
static uint32_t portion_of(const pkv_seq *s, uint32_t n, uint32_t most)
{
    uint32_t blocks = most / s->groups > 0 ? most / s->groups : 1;
    return n < blocks ? n : blocks;
}

status pkv_seq_open_some(pkv *p, uint32_t id, pkv_grain grain, const uint32_t *tokens,
                         uint32_t max_hit, uint64_t salt, uint32_t expect_tokens, uint32_t most,
                         uint32_t *hit_tokens)
{
    assert(id < p->max_seqs);
    pkv_seq *s = &p->seqs[id];
    assert(!s->open);
    uint32_t n_hit, n;
    uint32_t last = prefix_walk(p, tokens, max_hit, salt, &n_hit);
    uint32_t row = row_for(p, expect_tokens);
    grain = finest_of(p, last, pkv_grain_fit(&p->geometry, grain));
    RETURN_IF_ERROR(seq_shape(p, s, grain, row > n_hit ? row : n_hit));
    n = portion_of(s, n_hit, most);
    for (uint32_t left = n_hit - n; left > 0; left--) last = p->blocks[last].parent;
    RETURN_IF_ERROR(
        log_room(p, DELTA_OPEN_HEAD + (size_t)n * s->groups, 0, log_reserve_of(s->groups, s->row)));
    seq_enter(p, s, id);
    s->dropped = s->sealed = s->silent = false;
    s->contiguous = s->unshared = s->forked = s->hidden = false;
    s->salt = salt;
    s->published = s->held = 0;
    for (uint32_t g = 0; g < s->groups; g++) table_clear(&s->tables[g]);
    take_blocks(p, s, last, n);
    log_word(p, DELTA_OPEN);
    log_word(p, id);
    log_word(p, s->grain);
    log_word(p, s->row);
    log_word(p, n);
    for (uint32_t g = 0; g < s->groups; g++) {
        enter_pages(p, id, g);
        s->tables[g].kept = s->length;
    }
    p->checksum += s->weight * s->length;
    p->counts.queried_tokens += p->prefix_cache ? max_hit : 0;
    *hit_tokens = s->length;
    return STATUS_IS_OK;
}

status pkv_seq_open(pkv *p, uint32_t id, pkv_grain grain, const uint32_t *tokens, uint32_t max_hit,
                    uint64_t salt, uint32_t expect_tokens, uint32_t *hit_tokens)
{
    return pkv_seq_open_some(p, id, grain, tokens, max_hit, salt, expect_tokens, UINT32_MAX,
                             hit_tokens);
}

/* How many cached blocks, at most `most`, follow the sequence's last one; *last is the last of
 * them. A block whose pages are finer than the sequence's tables ends them: such a block can have
 * been published since the sequence was opened. */
static uint32_t blocks_behind(const pkv *p, const pkv_seq *s, const uint32_t *tokens, uint32_t most,
                              uint32_t *last)
{
    uint32_t n = 0, size = p->geometry.page_tokens;
    *last = s->cursor;
    if (!p->prefix_cache) return 0;
    if (chain_is_cut(p, s)) return 0;
    for (; n < most; n++) {
        const uint32_t *block_of = tokens + (size_t)(s->published + n) * size;
        uint64_t hash = prefix_hash(p, p->blocks[*last].hash, block_of, s->salt);
        uint32_t b = prefix_find(p, *last, hash, block_of, s->salt);
        if (b == 0 || p->blocks[b].grain > s->grain) break;
        *last = b;
    }
    return n;
}

status pkv_seq_hit_more(pkv *p, uint32_t id, const uint32_t *tokens, uint32_t max_hit,
                        uint32_t most, uint32_t *hit_tokens)
{
    pkv_seq *s = seq_changing(p, id);
    uint32_t size = p->geometry.page_tokens, last;
    assert(!s->dropped && s->length == s->published * size && !is_of_some_layers(p, s));
    uint32_t wanted = max_hit > s->length ? (max_hit - s->length) / size : 0;
    uint32_t n = blocks_behind(p, s, tokens, portion_of(s, wanted, most), &last);
    *hit_tokens = 0;
    if (n == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(seq_reserve(p, s, s->published + n));
    RETURN_IF_ERROR(log_room(p, (size_t)s->groups * (DELTA_BACK_HEAD + n), 0, 0));
    take_blocks(p, s, last, n);
    for (uint32_t g = 0; g < s->groups; g++) {
        log_word(p, DELTA_BACK);
        log_word(p, id);
        log_word(p, 0);
        log_word(p, g);
        log_word(p, s->length);
        log_word(p, n);
        enter_pages(p, id, g);
        table_set_kept(p, id, g, s->length);
    }
    *hit_tokens = n * size;
    return STATUS_IS_OK;
}
