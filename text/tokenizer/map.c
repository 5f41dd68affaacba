#include "text/tokenizer/map.h"

#include <string.h>

bool tok_map_create(tok_map *m, size_t n_max)
{
    size_t size = 16;
    while (size < n_max * 2) size *= 2;
    m->slots = alloc_zeroed(NULL, size, sizeof *m->slots);
    m->mask = size - 1;
    return m->slots != NULL;
}

void tok_map_destroy(tok_map *m)
{
    alloc_free(NULL, m->slots);
    m->slots = NULL;
}

static tok_map_slot *slot_of(const tok_map *m, const void *key, size_t n, uint64_t hash)
{
    size_t i = hash & m->mask;
    while (m->slots[i].key && (m->slots[i].length != n || memcmp(m->slots[i].key, key, n) != 0))
        i = (i + 1) & m->mask;
    return &m->slots[i];
}

uint32_t tok_map_find_hashed(const tok_map *m, const void *key, size_t n, uint64_t hash)
{
    const tok_map_slot *slot = slot_of(m, key, n, hash);
    return slot->key ? slot->value : TOK_NONE;
}

uint32_t tok_map_find(const tok_map *m, const void *key, size_t n)
{
    return tok_map_find_hashed(m, key, n, tok_map_hash(key, n));
}

void tok_map_put(tok_map *m, const char *key, size_t n, uint32_t value)
{
    *slot_of(m, key, n, tok_map_hash(key, n)) = (tok_map_slot){key, (uint32_t)n, value};
}
