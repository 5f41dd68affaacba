#include "text/tokenizer/bpe.h"

#include "text/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

#define SHORT_WORD      64 /* symbols; for fewer a scan for the lowest rank beats the heap */
#define CACHED_BYTES    51 /* longer words are rare and not cached */
#define CACHE_WORDS_MAX 4096
#define BASIC_PLANE     65536
#define NO_RANK         INT32_MAX

struct tok_bpe_cached {
    uint32_t first; /* index of its ids in the output */
    uint32_t count;
    uint32_t hash;  /* hash bits that are not in the slot's index */
    uint8_t length; /* 0: free */
    uint8_t bytes[CACHED_BYTES];
};
_Static_assert(sizeof(tok_bpe_cached) == 64, "a cached word is a cache line");

/* A symbol and its right neighbour as a pair. Dead symbols have rank NO_RANK. */
struct tok_bpe_symbol {
    uint32_t id;
    int32_t rank;        /* rank of (this, next); NO_RANK: they do not merge */
    uint32_t merged;     /* token that they merge into */
    uint32_t prev, next; /* TOK_NONE: none */
};

/* ---- tables ---- */

bool tok_bpe_create(tok_bpe_model *m, size_t n_max)
{
    size_t size = 16, bits = 64;
    while (size < n_max * 2) size *= 2;
    while (bits < n_max * 8) bits *= 2;
    m->merges = alloc_resize(NULL, NULL, size, sizeof *m->merges);
    m->may_merge = alloc_zeroed(NULL, bits / 64, sizeof *m->may_merge);
    if (!m->merges || !m->may_merge) return false;
    m->merge_mask = size - 1;
    m->may_mask = bits - 1;
    for (size_t i = 0; i < size; i++) m->merges[i].left = TOK_NONE;
    for (unsigned b = 0; b < 256; b++) m->byte_id[b] = m->fallback[b] = TOK_NONE;
    m->unk_id = TOK_NONE;
    return true;
}

void tok_bpe_destroy(tok_bpe_model *m)
{
    alloc_free(NULL, m->merges);
    alloc_free(NULL, m->may_merge);
    alloc_free(NULL, m->basic);
    m->merges = NULL;
    m->may_merge = NULL;
    m->basic = NULL;
}

bool tok_bpe_set_characters(tok_bpe_model *m, const tok_map *characters)
{
    m->characters = characters;
    m->basic = alloc_resize(NULL, NULL, BASIC_PLANE, sizeof *m->basic);
    if (!m->basic) return false;
    memset(m->basic, 0xff, BASIC_PLANE * sizeof *m->basic);
    for (size_t i = 0; i <= characters->mask; i++) {
        const tok_map_slot *slot = &characters->slots[i];
        uint32_t cp;
        if (!slot->key || slot->length == 0 || slot->length > 3) continue;
        unsigned length = utf8_decode((const uint8_t *)slot->key, slot->length, &cp);
        if (length == slot->length && cp < BASIC_PLANE) m->basic[cp] = slot->value;
    }
    return true;
}

static uint64_t pair_hash(uint32_t left, uint32_t right)
{
    return hash_mix64((uint64_t)left << 32 | right);
}

static tok_bpe_merge *merge_slot(const tok_bpe_model *m, uint32_t left, uint32_t right,
                                 uint64_t hash)
{
    size_t i = hash & m->merge_mask;
    while (m->merges[i].left != TOK_NONE &&
           (m->merges[i].left != left || m->merges[i].right != right))
        i = (i + 1) & m->merge_mask;
    return &m->merges[i];
}

void tok_bpe_add_merge(tok_bpe_model *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t hash = pair_hash(left, right), bit = hash >> 32 & m->may_mask;
    *merge_slot(m, left, right, hash) = (tok_bpe_merge){left, right, rank, id};
    m->may_merge[bit / 64] |= UINT64_C(1) << bit % 64;
}

/* The rank of a pair and the token it merges into; NO_RANK when it does not merge. */
static inline int32_t find_pair(const tok_bpe_model *m, uint32_t left, uint32_t right,
                                uint32_t *merged)
{
    uint64_t hash = pair_hash(left, right), bit = hash >> 32 & m->may_mask;
    if (!(m->may_merge[bit / 64] >> bit % 64 & 1)) return NO_RANK;
    const tok_bpe_merge *slot = merge_slot(m, left, right, hash);
    *merged = slot->id;
    return slot->left == TOK_NONE ? NO_RANK : (int32_t)slot->rank;
}

/* ---- scratch ---- */

bool tok_bpe_scratch_create(tok_bpe_scratch *s, size_t text_bytes)
{
    size_t words = 64;
    while (words < CACHE_WORDS_MAX && words < text_bytes / 4) words *= 2;
    *s = (tok_bpe_scratch){.cache_mask = words - 1};
    s->cache = alloc_zeroed(NULL, words, sizeof *s->cache);
    return s->cache != NULL;
}

void tok_bpe_scratch_destroy(tok_bpe_scratch *s)
{
    alloc_free(NULL, s->cache);
    alloc_free(NULL, s->symbols);
    alloc_free(NULL, s->heap);
}

static bool reserve_symbols(tok_bpe_scratch *s, size_t n)
{
    if (n <= s->capacity) return true;
    size_t capacity = s->capacity ? s->capacity : 256;
    while (capacity < n) capacity *= 2;
    tok_bpe_symbol *symbols = alloc_resize(NULL, s->symbols, capacity, sizeof *symbols);
    if (!symbols) return false;
    s->symbols = symbols;
    /* There are n - 1 pairs at first, and each of at most n - 1 merges adds at most two. */
    uint64_t *heap = alloc_resize(NULL, s->heap, capacity * 3, sizeof *heap);
    if (!heap) return false;
    s->heap = heap;
    s->capacity = capacity;
    return true;
}

bool tok_ids_reserve(tok_ids *ids, size_t n)
{
    if (ids->capacity - ids->n >= n) return true;
    size_t capacity = ids->capacity ? ids->capacity : 64;
    while (capacity - ids->n < n) capacity *= 2;
    uint32_t *grown = realloc(ids->ids, capacity * sizeof *grown);
    if (!grown) return false;
    ids->ids = grown;
    ids->capacity = capacity;
    return true;
}

/* ---- merging ---- */

/* Replaces every byte by its token. A byte without a token becomes unk, or nothing. At most n
 * ids. */
static size_t first_bytes(const tok_bpe_model *m, const uint8_t *word, size_t n, uint32_t *ids)
{
    size_t count = 0;
    bool after_unk = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = m->byte_id[word[i]];
        bool unk = id == TOK_NONE;
        if (unk) {
            if (m->unk_id == TOK_NONE || (after_unk && m->fuse_unk)) continue;
            id = m->unk_id;
        }
        after_unk = unk;
        ids[count++] = id;
    }
    return count;
}

/* Writes the tokens of the bytes of one character: all of them, or none if any is missing. */
static size_t fall_back(const tok_bpe_model *m, const uint8_t *character, size_t n, uint32_t *ids)
{
    for (size_t i = 0; i < n; i++) {
        ids[i] = m->fallback[character[i]];
        if (ids[i] == TOK_NONE) return 0;
    }
    return n;
}

/* Replaces every character by its token, or by the tokens of its bytes, or by unk. The library
 * delays an unk until a character has a token again, so bytes in between come before it. */
static size_t first_characters(const tok_bpe_model *m, const uint8_t *word, size_t n, uint32_t *ids)
{
    size_t count = 0;
    bool unk = false;
    unsigned length;
    for (size_t i = 0; i < n; i += length) {
        uint32_t cp = tok_unicode_read(word + i, &length);
        uint32_t id =
            cp < BASIC_PLANE ? m->basic[cp] : tok_map_find(m->characters, word + i, length);
        if (id != TOK_NONE) {
            if (unk) ids[count++] = m->unk_id;
            unk = false;
            ids[count++] = id;
            continue;
        }
        size_t bytes = fall_back(m, word + i, length, ids + count);
        count += bytes;
        if (bytes > 0 || m->unk_id == TOK_NONE) continue;
        if (unk && !m->fuse_unk) ids[count++] = m->unk_id;
        unk = true;
    }
    if (unk) ids[count++] = m->unk_id;
    return count;
}

/* The symbol of the lowest rank, the leftmost among equals; n when no pair merges. */
static inline unsigned lowest(const int32_t *rank, unsigned n)
{
    int32_t low = NO_RANK;
    unsigned at = 0;
    for (unsigned i = 0; i < n; i++) low = rank[i] < low ? rank[i] : low;
    if (low == NO_RANK) return n;
    while (rank[at] != low) at++;
    return at;
}

/* Merges ids[0..n) in place by scanning for the lowest rank; n <= SHORT_WORD. rank[i] belongs to
 * the pair of symbol i and the next living one; `alive` has a bit for every living symbol. */
static size_t merge_short(const tok_bpe_model *m, uint32_t *ids, unsigned n)
{
    int32_t rank[SHORT_WORD];
    uint32_t merged[SHORT_WORD];
    if (n < 2) return n;
    uint64_t alive = UINT64_MAX >> (64 - n);
    for (unsigned i = 0; i + 1 < n; i++) rank[i] = find_pair(m, ids[i], ids[i + 1], &merged[i]);
    rank[n - 1] = NO_RANK;
    for (;;) {
        unsigned at = lowest(rank, n);
        if (at == n) break;
        uint64_t behind = alive & ~UINT64_C(1) << at, before = alive & ((UINT64_C(1) << at) - 1);
        unsigned gone = (unsigned)__builtin_ctzll(behind);
        alive &= ~(UINT64_C(1) << gone);
        behind &= behind - 1;
        ids[at] = merged[at];
        rank[gone] = rank[at] = NO_RANK;
        if (behind) rank[at] = find_pair(m, ids[at], ids[__builtin_ctzll(behind)], &merged[at]);
        if (before) {
            unsigned prev = 63 - (unsigned)__builtin_clzll(before);
            rank[prev] = find_pair(m, ids[prev], ids[at], &merged[prev]);
        }
    }
    size_t count = 0;
    for (; alive; alive &= alive - 1) ids[count++] = ids[__builtin_ctzll(alive)];
    return count;
}

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t v = heap[i];
    for (size_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= v) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = v;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t v)
{
    size_t i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2] > v; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = v;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n > 0) sift_down(heap, *n, 0);
    return top;
}

/* Ranks symbol `at` against its right neighbour and queues the pair. */
static void queue_pair(const tok_bpe_model *m, tok_bpe_scratch *s, size_t *n_heap, uint32_t at)
{
    tok_bpe_symbol *left = &s->symbols[at];
    left->rank = NO_RANK;
    if (left->next == TOK_NONE) return;
    left->rank = find_pair(m, left->id, s->symbols[left->next].id, &left->merged);
    if (left->rank != NO_RANK) heap_push(s->heap, n_heap, (uint64_t)left->rank << 32 | at);
}

/* Merges with a heap, in n log n, because a megabyte of one letter is one word. */
static bool merge_long(const tok_bpe_model *m, tok_bpe_scratch *s, uint32_t *ids, size_t *n_ids)
{
    size_t n = *n_ids, n_heap = 0;
    if (!reserve_symbols(s, n)) return false;
    for (size_t i = 0; i < n; i++)
        s->symbols[i] = (tok_bpe_symbol){.id = ids[i],
                                         .rank = NO_RANK,
                                         .prev = i > 0 ? (uint32_t)(i - 1) : TOK_NONE,
                                         .next = i + 1 < n ? (uint32_t)(i + 1) : TOK_NONE};
    for (size_t i = 0; i < n; i++) {
        tok_bpe_symbol *left = &s->symbols[i];
        if (left->next == TOK_NONE) break;
        left->rank = find_pair(m, left->id, s->symbols[i + 1].id, &left->merged);
        if (left->rank != NO_RANK) s->heap[n_heap++] = (uint64_t)left->rank << 32 | i;
    }
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(s->heap, n_heap, i);

    while (n_heap > 0) {
        uint64_t top = heap_pop(s->heap, &n_heap);
        uint32_t at = (uint32_t)top;
        tok_bpe_symbol *left = &s->symbols[at];
        /* A rank identifies one pair, and a symbol never shrinks back: an entry whose rank is no
         * longer the symbol's belongs to a pair that is gone. */
        if ((uint32_t)left->rank != top >> 32) continue;
        tok_bpe_symbol *right = &s->symbols[left->next];
        left->id = left->merged;
        left->next = right->next;
        right->rank = NO_RANK;
        right->id = TOK_NONE;
        if (left->next != TOK_NONE) s->symbols[left->next].prev = at;
        if (left->prev != TOK_NONE) queue_pair(m, s, &n_heap, left->prev);
        queue_pair(m, s, &n_heap, at);
    }
    size_t count = 0;
    for (uint32_t i = 0; i != TOK_NONE; i = s->symbols[i].next) ids[count++] = s->symbols[i].id;
    *n_ids = count;
    return true;
}

/* The slot of the cache where the word is, or would go. */
static tok_bpe_cached *cache_slot(const tok_bpe_scratch *s, uint64_t hash)
{
    return &s->cache[hash & s->cache_mask];
}

static bool is_cached(const tok_bpe_cached *c, const uint8_t *word, size_t n, uint64_t hash)
{
    return c->length == n && c->hash == (uint32_t)(hash >> 32) && memcmp(c->bytes, word, n) == 0;
}

static bool merge_word(const tok_bpe_model *m, tok_bpe_scratch *s, const uint8_t *word, size_t n,
                       uint64_t hash, uint32_t *ids, size_t *count)
{
    *count = 1;
    if (m->words) {
        ids[0] = tok_map_find_hashed(m->words, word, n, hash);
        if (ids[0] != TOK_NONE) return true;
    }
    *count = m->characters ? first_characters(m, word, n, ids) : first_bytes(m, word, n, ids);
    if (*count > SHORT_WORD) return merge_long(m, s, ids, count);
    *count = merge_short(m, ids, (unsigned)*count);
    return true;
}

bool tok_bpe_encode_word(const tok_bpe_model *m, tok_bpe_scratch *s, const uint8_t *word, size_t n,
                         tok_ids *out)
{
    if (!tok_ids_reserve(out, n)) return false;
    uint32_t *ids = out->ids + out->n;
    uint64_t hash = n <= CACHED_BYTES || m->words ? tok_map_hash(word, n) : 0;
    tok_bpe_cached *cached = n <= CACHED_BYTES ? cache_slot(s, hash) : NULL;
    size_t count;
    if (cached && is_cached(cached, word, n, hash)) {
        count = cached->count;
        memcpy(ids, out->ids + cached->first, count * sizeof *ids);
        out->n += count;
        return true;
    }
    if (!merge_word(m, s, word, n, hash, ids, &count)) return false;
    if (cached && out->n <= UINT32_MAX) {
        cached->first = (uint32_t)out->n;
        cached->count = (uint32_t)count;
        cached->hash = (uint32_t)(hash >> 32);
        cached->length = (uint8_t)n;
        memcpy(cached->bytes, word, n);
    }
    out->n += count;
    return true;
}
