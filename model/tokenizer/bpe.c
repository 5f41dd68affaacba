#include "model/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#define SHORT_WORD      32 /* symbols; up to here a scan for the lowest rank beats the heap */
#define CACHED_BYTES    27 /* longer words are rare and not cached */
#define CACHE_WORDS_MAX 4096

struct tok_bpe_cached {
    uint32_t first; /* index of its ids in the output */
    uint32_t count;
    uint32_t hash;  /* the bits that did not choose the slot */
    uint8_t length; /* 0: free */
    uint8_t bytes[CACHED_BYTES];
};
_Static_assert(sizeof(tok_bpe_cached) == 40, "a cached word fits a cache line");

/* A symbol and its right neighbour as a pair. Dead symbols have rank TOK_NONE. */
struct tok_bpe_symbol {
    uint32_t id;
    uint32_t rank;       /* of (this, next); TOK_NONE: they do not merge */
    uint32_t merged;     /* what they merge into */
    uint32_t prev, next; /* TOK_NONE: none */
};

/* ---- tables ---- */

bool tok_bpe_create(tok_bpe_model *m, size_t n_max)
{
    size_t size = 16;
    while (size < n_max * 2) size *= 2;
    m->merges = alloc_resize(NULL, NULL, size, sizeof *m->merges);
    if (!m->merges) return false;
    m->merge_mask = size - 1;
    for (size_t i = 0; i < size; i++) m->merges[i].left = TOK_NONE;
    for (unsigned b = 0; b < 256; b++) m->byte_id[b] = m->fallback[b] = TOK_NONE;
    m->unk_id = TOK_NONE;
    return true;
}

void tok_bpe_destroy(tok_bpe_model *m)
{
    alloc_free(NULL, m->merges);
    m->merges = NULL;
}

static tok_bpe_merge *merge_slot(const tok_bpe_model *m, uint32_t left, uint32_t right)
{
    size_t i = hash_mix64((uint64_t)left << 32 | right) & m->merge_mask;
    while (m->merges[i].left != TOK_NONE &&
           (m->merges[i].left != left || m->merges[i].right != right))
        i = (i + 1) & m->merge_mask;
    return &m->merges[i];
}

void tok_bpe_add_merge(tok_bpe_model *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    *merge_slot(m, left, right) = (tok_bpe_merge){left, right, rank, id};
}

static void find_pair(const tok_bpe_model *m, uint32_t left, uint32_t right, uint32_t *rank,
                      uint32_t *merged)
{
    const tok_bpe_merge *slot = merge_slot(m, left, right);
    *rank = slot->left == TOK_NONE ? TOK_NONE : slot->rank;
    *merged = slot->id;
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
    /* n - 1 pairs at first, and every one of at most n - 1 merges adds at most two. */
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

/* Replaces every byte by its token; a byte that has none becomes unk, or nothing. At most n ids. */
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

/* The bytes of one character as tokens: all of them or none. */
static size_t fall_back(const tok_bpe_model *m, const uint8_t *character, size_t n, uint32_t *ids)
{
    for (size_t i = 0; i < n; i++) {
        ids[i] = m->fallback[character[i]];
        if (ids[i] == TOK_NONE) return 0;
    }
    return n;
}

/* Replaces every character by its token, or by those of its bytes, or by unk. The library holds an
 * unk back until a character has a token again, so that bytes in between come before it. */
static size_t first_characters(const tok_bpe_model *m, const uint8_t *word, size_t n, uint32_t *ids)
{
    size_t count = 0;
    bool unk = false;
    for (size_t i = 0, length; i < n; i += length) {
        uint8_t lead = word[i];
        length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
        uint32_t id =
            length == 1 ? m->byte_id[lead] : tok_map_find(m->characters, word + i, length);
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

/* Merges ids[0..n) in place by scanning for the lowest rank; n <= SHORT_WORD. */
static size_t merge_short(const tok_bpe_model *m, uint32_t *ids, size_t n)
{
    uint32_t rank[SHORT_WORD], merged[SHORT_WORD];
    if (n < 2) return n;
    for (size_t i = 0; i + 1 < n; i++) find_pair(m, ids[i], ids[i + 1], &rank[i], &merged[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == TOK_NONE) break;
        ids[best] = merged[best];
        n--;
        size_t moved = n - best - 1;
        memmove(ids + best + 1, ids + best + 2, moved * sizeof *ids);
        memmove(rank + best, rank + best + 1, moved * sizeof *rank);
        memmove(merged + best, merged + best + 1, moved * sizeof *merged);
        if (best > 0) find_pair(m, ids[best - 1], ids[best], &rank[best - 1], &merged[best - 1]);
        if (best + 1 < n) find_pair(m, ids[best], ids[best + 1], &rank[best], &merged[best]);
    }
    return n;
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
    left->rank = TOK_NONE;
    if (left->next == TOK_NONE) return;
    find_pair(m, left->id, s->symbols[left->next].id, &left->rank, &left->merged);
    if (left->rank != TOK_NONE) heap_push(s->heap, n_heap, (uint64_t)left->rank << 32 | at);
}

/* The same with a heap, in n log n: a megabyte of one letter is one word. */
static bool merge_long(const tok_bpe_model *m, tok_bpe_scratch *s, uint32_t *ids, size_t *n_ids)
{
    size_t n = *n_ids, n_heap = 0;
    if (!reserve_symbols(s, n)) return false;
    for (size_t i = 0; i < n; i++)
        s->symbols[i] = (tok_bpe_symbol){.id = ids[i],
                                         .rank = TOK_NONE,
                                         .prev = i > 0 ? (uint32_t)(i - 1) : TOK_NONE,
                                         .next = i + 1 < n ? (uint32_t)(i + 1) : TOK_NONE};
    for (size_t i = 0; i < n; i++) {
        tok_bpe_symbol *left = &s->symbols[i];
        if (left->next == TOK_NONE) break;
        find_pair(m, left->id, s->symbols[i + 1].id, &left->rank, &left->merged);
        if (left->rank != TOK_NONE) s->heap[n_heap++] = (uint64_t)left->rank << 32 | i;
    }
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(s->heap, n_heap, i);

    while (n_heap > 0) {
        uint64_t top = heap_pop(s->heap, &n_heap);
        uint32_t at = (uint32_t)top;
        tok_bpe_symbol *left = &s->symbols[at];
        /* A rank names one pair, and a symbol never shrinks back: an entry whose rank is no longer
         * the symbol's is about a pair that is gone. */
        if (left->rank != (uint32_t)(top >> 32)) continue;
        tok_bpe_symbol *right = &s->symbols[left->next];
        left->id = left->merged;
        left->next = right->next;
        right->rank = TOK_NONE;
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

bool tok_bpe_encode_word(const tok_bpe_model *m, tok_bpe_scratch *s, const uint8_t *word, size_t n,
                         tok_ids *out)
{
    if (!tok_ids_reserve(out, n)) return false;
    uint32_t *ids = out->ids + out->n;
    if (m->words) {
        uint32_t whole = tok_map_find(m->words, word, n);
        if (whole != TOK_NONE) {
            ids[0] = whole;
            out->n++;
            return true;
        }
    }
    tok_bpe_cached *cached = NULL;
    uint64_t hash = 0;
    if (n <= CACHED_BYTES) {
        hash = hash_bytes(word, n, 0);
        cached = &s->cache[hash & s->cache_mask];
        if (cached->length == n && cached->hash == (uint32_t)(hash >> 32) &&
            memcmp(cached->bytes, word, n) == 0) {
            memcpy(ids, out->ids + cached->first, cached->count * sizeof *ids);
            out->n += cached->count;
            return true;
        }
    }
    size_t count = m->characters ? first_characters(m, word, n, ids) : first_bytes(m, word, n, ids);
    if (count <= SHORT_WORD) {
        count = merge_short(m, ids, count);
    } else if (!merge_long(m, s, ids, &count)) {
        return false;
    }
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
