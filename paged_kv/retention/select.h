/* The steps of a selection (docs/retention.md section 2), one file for each step, and their shared
 * state.
 *
 *   select.c      scopes: tables that select, and tables that copy their selection
 *   candidates.c  a table's protected slots, and a key for every unit that may be selected
 *   rank.c        selection of the best keys */
#ifndef PAGED_KV_RETENTION_SELECT_H
#define PAGED_KV_RETENTION_SELECT_H

#include "paged_kv/retention/method.h"

typedef struct selector {
    const retention_policy *policy;
    const pkv_geometry *geometry; // its groups are the tables that are selected in
    const pkv *kv;
    uint32_t seq;
    uint32_t parts; // of them that lie in one table of the sequence
    uint32_t n_prompt, len;
    retention_phase phase;
    uint32_t sinks, window_from; // positions below and from here on are protected
    bool protects;               // false: nothing is protected
    const measure_result *measures;
    bool by_slot;
    uint32_t rows, q_heads;
    /* Arrays, each with room for the longest table. */
    float *scores, *more, *pooled, *sum, *second_sum;
    uint32_t *positions, *order;
    uint32_t *keys; // keys of n_kv_heads tables, one after the other
    retention_selection *out;
} selector;

/* The selection in one table: the first one of a scope. */
typedef struct contest {
    uint32_t layer_index; // among the measured layers
    uint32_t head_from, head_to;
    uint32_t group;
    uint32_t n;                // slots
    const uint32_t *positions; // [n] position of each slot; NULL: position = slot
    const uint32_t *order;     // [n] slots by ascending position; NULL: in slot order
    retention_unit unit;
    retention_pool pool;
    uint32_t size;    // slots of a unit
    uint32_t budget;  // tokens
    uint32_t n_units; // by position (pages: by slot); the last may be short
    uint32_t fixed;   // protected slots, or pages
    uint32_t *keys;   // [n_units]
    uint64_t *keep;   // a bit for each slot
} contest;

static inline uint32_t table_kept(const selector *c, uint32_t group)
{
    return pkv_seq_table(c->kv, c->seq, group / c->parts).kept_tokens;
}
static inline uint32_t table_position(const selector *c, uint32_t group, uint32_t slot)
{
    return pkv_seq_position(c->kv, c->seq, group / c->parts, slot);
}

enum { KEY_NONE = 0, KEY_SELECTED = UINT32_MAX }; // not a candidate; already selected

/* ---- candidates.c ---- */
void keep_range(uint64_t *keep, uint32_t from, uint32_t to);
/* Sets the size of the table and its units. */
void contest_open(const selector *c, contest *t);
/* Orders the table, then counts the protected slots and sets their bits. */
void contest_protect(selector *c, contest *t);
/* Sets the keys of the units. */
void contest_score(selector *c, contest *t);
/* Sets new keys, by the score's second stage, for the units not yet selected. */
void contest_refine(selector *c, contest *t);
/* Keeps the slots of the selected units. The table must be the one ordered last. */
void contest_close(const contest *t);

/* ---- rank.c ---- */
/* Maps ascending scores to ascending keys. Both zeros have one key; NaN comes before everything. */
uint32_t rank_key(float score);
/* Marks the `want` greatest keys as KEY_SELECTED, of equal keys the first, and returns how many it
 * marked. */
uint32_t rank_select(uint32_t *keys, uint32_t n, uint32_t want);

#endif
