/* retrieval: which blocks of its context a generated token reads.
 *
 * What     Retention gives tokens up; retrieval keeps all of them and reads few at each step. Here
 *          are the table of methods (presets), the request's JSON, which layers and tokens select,
 *          and the selection itself: one pure function of the blocks' scores and the spec.
 *          It owns no pages and reads no keys: a backend makes representatives and scores.
 * Owner    a retrieval_spec is a plain value without pointers; lists go to the caller's arrays.
 * Threads  pure functions.
 * Units    tokens, blocks of `block_tokens` slots of one table, pages of that table.
 * Shapes   row-major f32, given beside each argument.
 * Errors   an unknown key, an impossible value: STATUS_INVALID with the field's name.
 * Source   docs/retrieval.md fixes every meaning. */
#ifndef PAGED_KV_RETRIEVAL_RETRIEVAL_H
#define PAGED_KV_RETRIEVAL_RETRIEVAL_H

#include "paged_kv/paged_kv.h"

/* ---- the parts of a method, as tables: an option's index is its enum value ------------------- */

/* A representative stands for a block's keys when a query is compared with the block. */
typedef enum retrieval_representative {
    RETRIEVAL_MEAN,    // all keys
    RETRIEVAL_MAX,     // the largest value of each dim
    RETRIEVAL_QUEST,   // the box of the smallest and the largest value of each dim
    RETRIEVAL_FIX,     // evenly spread keys
    RETRIEVAL_DYNAMIC, // the keys that the end of the prompt attended to most
    RETRIEVAL_REPRESENTATIVES,
} retrieval_representative;

/* Which KV heads of a layer share a selection. */
typedef enum retrieval_heads {
    RETRIEVAL_SHARED,   // all
    RETRIEVAL_SEPARATE, // none: each selects for itself
    RETRIEVAL_GROUP,    // runs of `group_heads`
    RETRIEVAL_HEAD_MODES,
} retrieval_heads;

typedef enum retrieval_part {
    RETRIEVAL_PART_REPRESENTATIVE,
    RETRIEVAL_PART_HEADS,
    RETRIEVAL_PARTS,
} retrieval_part;

typedef struct retrieval_option {
    const char *name;    // "MEAN": what the request's field says
    const char *alias;   // the same in KTransformers' code, or NULL
    const char *summary; // one line for help and docs
} retrieval_option;

const char *retrieval_part_name(retrieval_part part); // the request's field
size_t retrieval_part_size(retrieval_part part);
retrieval_option retrieval_part_option(retrieval_part part, size_t index);

/* ---- requests -------------------------------------------------------------------------------- */

enum {
    RETRIEVAL_BLOCK_MOST = 4096, // tokens of a block
    RETRIEVAL_BLOCK_PAGES = RETRIEVAL_BLOCK_MOST / 16,
    RETRIEVAL_KEYS_MOST = 64, // representative_num
    RETRIEVAL_OBSERVED = 128, // most of the prompt's last rows whose attention is measured
};

typedef struct retrieval_spec {
    uint32_t block_tokens; // a multiple of the page's tokens; 0 = everything is read
    retrieval_representative representative;
    uint32_t representative_num; // keys of a block: FIX, DYNAMIC; else 1
    retrieval_heads heads;
    uint32_t group_heads;      // heads GROUP; else 1
    uint32_t initial_tokens;   // first tokens that are always read, rounded up to blocks
    uint32_t local_tokens;     // last tokens that are always read, rounded up to blocks; > 0
    uint32_t top_blocks;       // blocks read of those between, > 0
    uint32_t preselect_blocks; // of the prompt's, to which selections are limited; 0: to no part
    uint32_t observed_rows; // last rows of the prompt whose attention preselects, or DYNAMIC sees
    uint32_t dense_layers;  // the first layers that read everything
    uint32_t layer_step;    // of the others every layer_step-th selects, and others follow it
    uint32_t token_step;    // of the generated tokens every token_step-th selects, likewise
    uint32_t audit;         // rows whose table has a multiple of this many slots; 0 = none
    /* > 0: as many blocks are read as certify.h needs to miss at most this share of the softmax
     * mass; top_blocks is the most of them. Needs QUEST and
     * selections by each row in each layer, among all blocks. */
    float epsilon;
} retrieval_spec;

typedef struct retrieval_preset {
    const char *name;    // "quest"
    const char *summary; // one line for help and docs
    const char *source;
    retrieval_spec defaults;
} retrieval_preset;

const retrieval_preset *retrieval_presets(size_t *n);
const retrieval_preset *retrieval_find(const char *name);

/* Reads the "retrieval" object of a request. NULL and JSON null read everything. A block size that
 * is the preset's is rounded up to whole pages, a given one must have them. Errors name the field;
 * they leave *out unchanged. */
status retrieval_parse(const json_t *json, const pkv_geometry *geometry, retrieval_spec *out,
                       error *err);
/* Makes such an object, which the caller owns, of a text: METHOD, METHOD:TOKENS, or an object in
 * JSON. Errors begin with `name`, of a flag or a field; names of methods and members are left to
 * retrieval_parse. */
status retrieval_read_text(const char *name, const char *text, json_t **out, error *err);

/* Whether a spec that was not parsed here can be computed with such pages: it has the ranges that
 * retrieval_parse gives it. STATUS_INVALID names the request's field. */
status retrieval_spec_check(const retrieval_spec *spec, const pkv_geometry *geometry, error *err);

/* The abilities that a backend needs for a spec: bit 1 << representative, and the bits below. */
enum {
    RETRIEVAL_NEEDS_HISTORY = 1 << 30,      // token_step > 1: tokens follow earlier selections
    RETRIEVAL_NEEDS_PRESELECTION = 1 << 29, // preselect_blocks
    RETRIEVAL_NEEDS_EXAM = 1 << 28,         // epsilon: selections read keys
    RETRIEVAL_NEEDS_AUDIT = 1 << 27,        // audit: some rows read everything besides
    /* For these the backend measures the attention of the prompt's last rows. */
    RETRIEVAL_OBSERVES = RETRIEVAL_NEEDS_PRESELECTION | 1 << RETRIEVAL_DYNAMIC,
};
uint32_t retrieval_needs(const retrieval_spec *spec);
/* STATUS_INVALID names the field that needs more than `retrieves` has, bits of retrieval_needs. */
status retrieval_check(const retrieval_spec *spec, uint32_t retrieves, error *err);

/* Whether a backend keeps something of the request between steps beside its pages. */
static inline bool retrieval_keeps(const retrieval_spec *spec)
{
    return (retrieval_needs(spec) & (RETRIEVAL_NEEDS_HISTORY | RETRIEVAL_OBSERVES)) != 0;
}

/* The most bytes that a backend keeps so, on a rank with any of the KV heads, for a request whose
 * prompt has n_prompt tokens and whose n_choices choices have at most n_most with it: by token_step
 * each choice's lists, for each layer and run of KV heads that select together; the prompt's bits
 * once. 0 where it keeps nothing. */
uint64_t retrieval_kept_bytes(const retrieval_spec *spec, const pkv_geometry *geometry,
                              uint32_t n_prompt, uint32_t n_most, uint32_t n_choices);

/* ---- which layers and tokens select ---------------------------------------------------------- */

enum { RETRIEVAL_ALL = UINT32_MAX };

/* The layer whose selection a layer reads by, perhaps itself. RETRIEVAL_ALL: the layer reads
 * everything, because it is one of the dense layers or has a sliding window. */
uint32_t retrieval_layer_leader(const retrieval_spec *spec, const pkv_geometry *geometry,
                                uint32_t layer);
/* The first layer that selects. */
uint32_t retrieval_first_leader(const retrieval_spec *spec, const pkv_geometry *geometry);
/* The generated token whose selection generated token i (0, 1, …) reads by, perhaps itself. */
static inline uint32_t retrieval_token_leader(const retrieval_spec *spec, uint32_t i)
{
    return i - i % spec->token_step;
}
/* Whether the recall is computed of a row that sees n_slots slots. */
static inline bool retrieval_is_audited(const retrieval_spec *spec, uint32_t n_slots)
{
    return spec->audit > 0 && n_slots % spec->audit == 0;
}
/* How many KV heads in a row share a selection. */
uint32_t retrieval_heads_together(const retrieval_spec *spec, const pkv_geometry *geometry);

/* ---- one selection --------------------------------------------------------------------------- */

/* The blocks of a table of n_slots slots, the first n_prompt of them the prompt's; the row that
 * reads is in the last one. */
typedef struct retrieval_extent {
    uint32_t n_blocks;   // the last may be partial
    uint32_t first, end; // blocks [first, end) are all full; others are read
    uint32_t top;        // those of them that are read; end - first: the row reads everything
    bool exam;           // as many of `top` are read as their exam needs
} retrieval_extent;

retrieval_extent retrieval_extent_of(const retrieval_spec *spec, uint32_t n_prompt,
                                     uint32_t n_slots);
static inline bool retrieval_reads_all(const retrieval_extent *e)
{
    return e->first == e->end || (!e->exam && e->top == e->end - e->first);
}
/* The tokens that a row behind a prompt reads of the n_slots that it sees; with epsilon at most. */
uint32_t retrieval_tokens_read(const retrieval_spec *spec, uint32_t n_prompt, uint32_t n_slots);
/* The most blocks that a list has: of a row that selects, or of the last row that follows it. */
uint32_t retrieval_most_blocks(const retrieval_spec *spec);

/* ---- what the prompt's end attends to -------------------------------------------------------- */

/* How many of the prompt's last rows are measured, which are computed in one step: 0 where none
 * are. */
uint32_t retrieval_observed_rows(const retrieval_spec *spec, uint32_t n_prompt);
/* How many blocks the preselection leaves out, in every layer and head. */
uint32_t retrieval_left_out(const retrieval_spec *spec, uint32_t n_prompt);
/* Sets out [floor(n_prompt / block_tokens)] to the mass of each full block of the prompt in one KV
 * head, whose slots have mass [n_prompt] from the observed rows: that of the block's slots and of
 * block_tokens / 4 slots on each side, ascending. */
void retrieval_pool_mass(const retrieval_spec *spec, uint32_t n_prompt, const float *mass,
                         float *out);
/* Marks the full blocks of the prompt that are left out: bit b = block b. pooled [n_heads][blocks]
 * are those masses in the KV heads that select together. A candidate at the prompt's end stays if
 * it is among the preselect_blocks with the greatest mass, summed over heads in their order, the
 * first of equal ones. keys: scratch, one for each block. */
void retrieval_preselect(const retrieval_spec *spec, uint32_t n_prompt, const float *const *pooled,
                         uint32_t n_heads, uint32_t *keys, uint64_t *left_out);

/* ---- representatives ------------------------------------------------------------------------- */

/* Marks the slots of a block whose keys a FIX representative sums: bit i = slot i, in
 * ceil(block_tokens / 64) words. Key j of n is at slot floor((2j + 1) block_tokens / 2n). */
void retrieval_fixed_slots(const retrieval_spec *spec, uint64_t *slots);
/* Marks the slots of a block whose keys a DYNAMIC representative sums, those with the greatest mass
 * [block_tokens]: descending, then slot ascending; NaN is below everything. bit i = slot i, in
 * ceil(block_tokens / 64) words. */
void retrieval_dynamic_slots(const retrieval_spec *spec, const float *mass, uint64_t *slots);

/* The queries and tables by which a row selects. */
typedef struct retrieval_query {
    uint32_t n_slots;         // that the row sees, its own included
    uint32_t n_prompt;        // blocks behind it have MEAN's representatives instead of DYNAMIC's
    const uint64_t *left_out; // blocks of the prompt that are not read (retrieval_preselect); NULL:
                              // every candidate may be
    const float *const *scores; // [n_heads][end - first] of each KV head that shares the selection
    uint32_t n_heads;
} retrieval_query;

/* Sets blocks to those that the row reads, ascending, at most retrieval_most_blocks, and returns
 * their number. Blocks [first, end) that are not left out are candidates. A candidate's score is
 * the sum of its scores over heads, ascending, and the `top` candidates of the highest scores are
 * read, of equal ones the first; NaN is below everything. keys [end - first] is scratch. Where the
 * row reads everything, neither scores nor keys are used. */
uint32_t retrieval_select(const retrieval_spec *spec, const retrieval_query *query, uint32_t *keys,
                          uint32_t *blocks);
/* Makes a list of n blocks, which a row of a table of `before` slots read, that of a following row
 * in a table of n_slots: what was born since is read. Returns the new number. */
uint32_t retrieval_follow(const retrieval_spec *spec, uint32_t before, uint32_t n_slots,
                          uint32_t *blocks, uint32_t n);
/* The table's pages in the listed blocks, in order: a list for the attention kernel, whose slots
 * are those read. Returns the number of slots; the last one is the row's. Every listed block but
 * the last is full. out [n_blocks * block_tokens / page_tokens]. */
uint32_t retrieval_gather(const retrieval_spec *spec, uint32_t page_tokens, uint32_t n_slots,
                          const uint32_t *pages, const uint32_t *blocks, uint32_t n_blocks,
                          uint32_t *out);

#endif
