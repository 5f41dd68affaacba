/* What the steps of a choice share: docs/retention.md section 2, one file for each step.
 *
 *   choose.c      scopes: who chooses, and whose tables follow
 *   candidates.c  a table's protected slots, and a key for every unit that may be chosen
 *   rank.c        the best of the keys */
#ifndef PAGED_KV_RETENTION_CHOOSE_H
#define PAGED_KV_RETENTION_CHOOSE_H

#include "paged_kv/retention/method.h"

typedef struct chooser {
    const retention_policy *policy;
    const pkv_geometry *geometry;
    const pkv *kv;
    uint32_t seq;
    uint32_t n_prompt, len;
    retention_phase phase;
    uint32_t sinks, window_from; // positions below and from here on are protected
    bool protects;               // or would be
    const measure_result *measures;
    bool by_slot;
    uint32_t rows, q_heads;
    /* Arrays of room for the longest table each. */
    float *scores, *more, *pooled, *sum, *second_sum;
    uint32_t *positions, *order;
    uint32_t *keys; // of n_kv_heads tables, one after the other
    retention_choice_out *out;
} chooser;

/* A scope's first table, for which it chooses. */
typedef struct contest {
    uint32_t layer_index; // among the measured layers
    uint32_t head_from, head_to;
    uint32_t group;
    uint32_t n;                // slots
    const uint32_t *positions; // NULL: nothing was given up so far
    const uint32_t *order;     // [n] slots by ascending position; NULL: as they are
    retention_unit unit;
    retention_pool pool;
    uint32_t size;    // slots of a unit
    uint32_t budget;  // tokens
    uint32_t n_units; // in the order of positions (pages: of the table); the last may be short
    uint32_t fixed;   // protected slots, or pages
    uint32_t *keys;   // [n_units]
    uint64_t *keep;   // a bit for each slot
} contest;

enum { KEY_NONE = 0, KEY_CHOSEN = UINT32_MAX }; // no candidate; one no more

/* ---- candidates.c ---- */
void keep_range(uint64_t *keep, uint32_t from, uint32_t to);
/* How much there is to choose from. */
void contest_open(const chooser *c, contest *t);
/* The table's positions, and its slots in their order. Contests share the arrays of the chooser:
 * what one has ordered holds until another is. */
void contest_order(chooser *c, contest *t);
/* Protected slots and their bits; orders the table first. */
void contest_protect(chooser *c, contest *t);
/* The keys of its units. */
void contest_score(chooser *c, contest *t);
/* The keys of those that are left, by the score's second measure. */
void contest_refine(chooser *c, contest *t);
/* The slots of the chosen units stay. The table must be the one ordered last. */
void contest_close(const contest *t);

/* ---- rank.c ---- */
/* Ascending keys for ascending scores. Both zeros are one score; a NaN comes before everything. */
uint32_t rank_key(float score);
/* Chooses the `want` greatest keys, of equal ones the first, and returns how many there were. */
uint32_t rank_choose(uint32_t *keys, uint32_t n, uint32_t want);

#endif
