/* A map from byte strings to numbers: open addressing, keys borrowed, no removal. */
#ifndef TEXT_TOKENIZER_MAP_H
#define TEXT_TOKENIZER_MAP_H

#include "base/base.h"

#define TOK_NONE UINT32_MAX

typedef struct tok_map_slot {
    const char *key; /* NULL: free */
    uint32_t length;
    uint32_t value;
} tok_map_slot;

typedef struct tok_map {
    tok_map_slot *slots;
    size_t mask;
} tok_map;

/* Makes room for n_max keys; false when out of memory. */
bool tok_map_create(tok_map *m, size_t n_max);
void tok_map_destroy(tok_map *m);

/* The value of a key, or TOK_NONE. */
uint32_t tok_map_find(const tok_map *m, const void *key, size_t n);
/* Like tok_map_find, for a key whose tok_map_hash is known. */
uint32_t tok_map_find_hashed(const tok_map *m, const void *key, size_t n, uint64_t hash);
static inline uint64_t tok_map_hash(const void *key, size_t n) { return hash_bytes(key, n, 0); }
/* Adds or replaces; at most n_max different keys. */
void tok_map_put(tok_map *m, const char *key, size_t n, uint32_t value);

#endif
