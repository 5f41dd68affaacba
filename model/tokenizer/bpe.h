/* Byte-level BPE: the bytes of one pre-token to ids.
 *
 * The merge order is the library's: always the pair of lowest rank, the leftmost of equals
 * (Sennrich et al. 2016, algorithm 1, applied at inference). */
#ifndef MODEL_TOKENIZER_BPE_H
#define MODEL_TOKENIZER_BPE_H

#include "model/tokenizer.h"
#include "model/tokenizer/map.h"

typedef struct bpe_merge {
    uint32_t left, right; /* ids; left == TOK_NONE: a free slot */
    uint32_t rank;
    uint32_t id; /* of the merged token */
} bpe_merge;

typedef struct bpe_model {
    uint32_t byte_id[256]; /* TOK_NONE: that byte has no token */
    bpe_merge *merges;     // [merge_mask + 1] open addressing
    size_t merge_mask;
    const tok_map *words; /* whole pre-tokens by their bytes, when ignore_merges is set; or NULL */
    uint32_t unk_id;      /* TOK_NONE: bytes without a token are dropped */
    bool fuse_unk;
} bpe_model;

/* Room for n_max merges; false when out of memory. */
bool bpe_create(bpe_model *m, size_t n_max);
void bpe_destroy(bpe_model *m);
/* A pair given twice keeps its last rank. */
void bpe_add_merge(bpe_model *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);

typedef struct bpe_cached bpe_cached;
typedef struct bpe_symbol bpe_symbol;

/* What one tok_encode call reuses from word to word. */
typedef struct bpe_scratch {
    bpe_cached
        *cache; // [cache_mask + 1] words of this call and where their ids stand in its output
    size_t cache_mask;
    bpe_symbol *symbols;
    uint64_t *heap;  /* rank << 32 | position */
    size_t capacity; /* symbols */
} bpe_scratch;

/* text_bytes sizes the cache. */
bool bpe_scratch_create(bpe_scratch *s, size_t text_bytes);
void bpe_scratch_destroy(bpe_scratch *s);

/* Makes room for n more ids. */
bool tok_ids_reserve(tok_ids *ids, size_t n);

/* Appends the ids of one pre-token of n bytes, n > 0. False when out of memory. */
bool bpe_encode_word(const bpe_model *m, bpe_scratch *s, const uint8_t *word, size_t n,
                     tok_ids *out);

#endif
