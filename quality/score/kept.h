/* The "kept" array of a retention report (private to quality/): which tokens each table holds. */
#ifndef QUALITY_SCORE_KEPT_H
#define QUALITY_SCORE_KEPT_H

#include "base/base.h"

typedef struct kept_table {
    uint32_t first_layer, last_layer, first_head, last_head; // KV heads
    uint64_t *bits;                                          // [words]; bit i = token i is kept
} kept_table;

typedef struct kept_sets {
    kept_table *tables;
    size_t n;
    uint32_t n_layers, words, n_tokens;
    uint64_t *bits; // memory of all tables' bits
} kept_sets;

/* Reads which of the first n_tokens tokens are kept; later tokens are ignored. */
status kept_sets_read(const char *kept_json, uint32_t n_tokens, kept_sets *out, error *err);
void kept_sets_destroy(kept_sets *s);

static inline bool kept_covers(const kept_table *t, uint32_t layer)
{
    return t->first_layer <= layer && layer <= t->last_layer;
}

static inline bool kept_has(const uint64_t *bits, uint32_t token)
{
    return bits[token / 64] >> token % 64 & 1;
}

/* The table of a layer's KV head, or NULL. */
const kept_table *kept_table_of(const kept_sets *s, uint32_t layer, uint32_t kv_head);

#endif
