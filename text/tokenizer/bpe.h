/* BPE: one pre-token to ids. A model of bytes starts from the bytes of the word, a model of
 * characters from its characters.
 *
 * The merge order is the library's: always the pair of lowest rank, the leftmost of equals
 * (Sennrich et al. 2016, algorithm 1, applied at inference). */
#ifndef TEXT_TOKENIZER_BPE_H
#define TEXT_TOKENIZER_BPE_H

#include "text/tokenizer.h"
#include "text/tokenizer/map.h"

typedef struct tok_bpe_merge {
    uint32_t left, right; /* ids; left is TOK_NONE in a free slot */
    uint32_t rank;
    uint32_t id; /* id of the merged token */
} tok_bpe_merge;

typedef struct tok_bpe_model {
    uint32_t byte_id[256]; /* byte model: each byte's token, or TOK_NONE */
    /* Model of characters: its tokens by spelling, and those of U+0000 to U+FFFF by code point.
     * NULL for other models. */
    const tok_map *characters;
    uint32_t *basic;        // [65536] owned
    uint32_t fallback[256]; /* tokens for the bytes of a character without a token */
    tok_bpe_merge *merges;  // [merge_mask + 1] open addressing
    size_t merge_mask;
    uint64_t *may_merge;  // [(may_mask + 1) / 64] a bit by pair hash: most pairs do not
    size_t may_mask;      // merge, and this tells so from near memory
    const tok_map *words; /* whole pre-tokens by their bytes with ignore_merges, else NULL */
    uint32_t unk_id;      /* TOK_NONE: text without a token is dropped */
    bool fuse_unk;
} tok_bpe_model;

/* Makes room for n_max merges; false when out of memory. */
bool tok_bpe_create(tok_bpe_model *m, size_t n_max);
void tok_bpe_destroy(tok_bpe_model *m);
/* Makes this a model of characters; false when out of memory. The map is borrowed. */
bool tok_bpe_set_characters(tok_bpe_model *m, const tok_map *characters);
/* Adds a merge. A pair given twice keeps its last rank. */
void tok_bpe_add_merge(tok_bpe_model *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);

typedef struct tok_bpe_cached tok_bpe_cached;
typedef struct tok_bpe_symbol tok_bpe_symbol;

/* Buffers that one tok_encode call reuses for all words. */
typedef struct tok_bpe_scratch {
    tok_bpe_cached
        *cache; // [cache_mask + 1] words of this call and where their ids are in its output
    size_t cache_mask;
    tok_bpe_symbol *symbols;
    uint64_t *heap;  /* rank << 32 | position */
    size_t capacity; /* symbols */
} tok_bpe_scratch;

/* Makes the buffers; text_bytes sizes the cache. */
bool tok_bpe_scratch_create(tok_bpe_scratch *s, size_t text_bytes);
void tok_bpe_scratch_destroy(tok_bpe_scratch *s);

/* Makes room for n more ids. */
bool tok_ids_reserve(tok_ids *ids, size_t n);

/* Appends the ids of one pre-token of n bytes, n > 0. False when out of memory. */
bool tok_bpe_encode_word(const tok_bpe_model *m, tok_bpe_scratch *s, const uint8_t *word, size_t n,
                         tok_ids *out);

#endif
