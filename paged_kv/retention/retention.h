/* retention: which tokens of a sequence stay.
 *
 * What     the table of methods (presets), the request's JSON and its report (one parser, one
 *          writer), the retention points, the measures a method needs from a backend, and the
 *          selection itself: plain C, deterministic, the same for every device and rank. A method
 *          is a row of `retention_presets`.
 * Owner    a retention_policy is a plain value; selections go to caller-owned bitmaps.
 * Threads  pure functions.
 * Units    tokens and pages of one table; ratio = the share KEPT of the prompt's tokens.
 * Errors   a field the method cannot use, an unknown key, an impossible value: STATUS_INVALID with
 *          the field's name.
 * Source   docs/retention.md fixes every meaning; each row names its paper. */
#ifndef PAGED_KV_RETENTION_RETENTION_H
#define PAGED_KV_RETENTION_RETENTION_H

#include "paged_kv/paged_kv.h"

#include <stdatomic.h>

/* ---- the parts a method is composed of (docs/retention.md says what each means) -------------- */

/* Index of a score. The scores are the files paged_kv/retention/score_*.c; code outside retention
 * does not distinguish them. */
typedef uint32_t retention_score;
enum { RETENTION_SCORE_NONE }; // no score: nothing is measured

typedef enum retention_unit {
    RETENTION_UNIT_PAGE,
    RETENTION_UNIT_CHUNK,
    RETENTION_UNIT_TOKEN,
} retention_unit;

typedef enum retention_scope { RETENTION_SCOPE_LAYER, RETENTION_SCOPE_HEAD } retention_scope;

typedef enum retention_allocator {
    RETENTION_ALLOCATOR_UNIFORM,
    RETENTION_ALLOCATOR_PYRAMID,
    RETENTION_ALLOCATOR_ADAPTIVE,
    RETENTION_ALLOCATOR_HYBRID,
    RETENTION_ALLOCATOR_PYRAMID_ADAPTIVE,
} retention_allocator;

typedef enum retention_schedule {
    RETENTION_SCHEDULE_NEVER,
    RETENTION_SCHEDULE_PROMPT, // once, at the prompt's end
    RETENTION_SCHEDULE_CHUNK,  // at each `recurrent_chunk` of the prompt
    RETENTION_SCHEDULE_DECODE, // at the prompt's end, then every `interval` generated tokens
    RETENTION_SCHEDULE_INPUT,  // never: tokens are cut from the prompt before it is computed
} retention_schedule;

typedef enum retention_variant {
    RETENTION_VARIANT_PLAIN,
    RETENTION_VARIANT_RAW,
    RETENTION_VARIANT_MEAN,
    RETENTION_VARIANT_ALG1,
    RETENTION_VARIANT_CODE,
    RETENTION_VARIANT_ALG3,
} retention_variant;

typedef enum retention_pool {
    RETENTION_POOL_NONE,
    RETENTION_POOL_MAX,
    RETENTION_POOL_AVG
} retention_pool;

/* SCOPE: the budget of the generated tokens, beside a prompt part that stays as it is. */
typedef enum retention_growth {
    RETENTION_GROWTH_JOINT, // prompt and generated tokens share one budget
    RETENTION_GROWTH_SLIDE,
    RETENTION_GROWTH_ADAPTIVE,
    RETENTION_GROWTH_DISCONTINUOUS,
} retention_growth;

/* The parts as tables, so that parsing, help and docs iterate over them. An option's index is its
 * enum value. */
typedef enum retention_part {
    RETENTION_PART_SCORE,
    RETENTION_PART_UNIT,
    RETENTION_PART_SCOPE,
    RETENTION_PART_ALLOCATOR,
    RETENTION_PART_SCHEDULE,
    RETENTION_PART_VARIANT,
    RETENTION_PARTS,
} retention_part;

typedef struct retention_option {
    const char *name;    // "window": what the request's field says
    const char *summary; // one line for help and docs
} retention_option;

const char *retention_part_name(retention_part part); // the request's field: "score"
size_t retention_part_size(retention_part part);
retention_option retention_part_option(retention_part part, size_t index);

/* Request fields that a method may accept besides `method`, `report` and `pressure`. Whether
 * `chunk`, `interval` and the like have an effect depends on the options of the parts. */
typedef enum retention_field {
    RETENTION_FIELD_BUDGET = 1 << 0, // ratio or tokens
    RETENTION_FIELD_PARTS = 1 << 1,  // the parts and their settings
    RETENTION_FIELD_PHASES = 1 << 2, // prefill, decode
    RETENTION_FIELD_INPUT = 1 << 3,  // sinks, of the prompt's tokens
    RETENTION_FIELD_GATHER = 1 << 4, // gather_tokens, gather_window, query_tokens, exit_layer
} retention_field;

/* A resolved request: the preset's row with the request's overrides. A plain value. */
typedef struct retention_policy {
    const struct retention_preset *preset; // never NULL after retention_parse
    retention_score score;
    retention_variant variant;
    retention_unit unit;
    uint32_t chunk; // tokens of a unit `chunk`, also in hybrid's lower half
    retention_scope scope;
    retention_allocator allocator;
    float beta;  // pyramid's slope
    float floor; // share of its budget that adaptive guarantees each head
    retention_pool pool;
    uint32_t kernel; // width of the pool, odd
    retention_schedule schedule;
    uint32_t interval;        // schedule `decode`
    uint32_t recurrent_chunk; // schedule `chunk`
    bool contiguous;          // positions are reassigned after each selection
    double ratio;             // (0, 1], or 0 when `tokens` is given
    uint32_t tokens;          // budget, or 0 when `ratio` is given
    uint32_t sinks;           // first tokens protected
    uint32_t window;          // last tokens protected
    float bias, theta;        // score `projection`: AnDPro's b and temperature
    bool window_half;         // window is at most half of the budget (INT32_MAX: exactly half)
    uint32_t rows;            // query rows measured; 0 = `window`
    uint32_t reuse_layers;    // this many selecting layers in a row share a selection
    retention_growth growth;
    retention_score decode_score; // after the prompt's end; NONE = `score`
    /* For the generated tokens, when growth is not joint. */
    retention_unit decode_unit;
    retention_scope decode_scope;
    uint32_t beta1, beta2, horizon; // growth other than joint; horizon 0 = max_tokens
    /* REFORM (docs/reform.md): 0, or the policy is that of a reading, and the answer is decoded
     * behind so many of its tokens, the question's among them. */
    uint32_t gather_tokens;
    uint32_t gather_window; // of the max-pool of their scores, odd
    uint32_t query_tokens;  // at the end of the question's message; 0 = the whole message
    uint32_t exit_layer;    // layers that the reading runs; 0 = as many as its embeddings need
    bool pressure;          // may be compressed before a sequence is preempted
    bool report_positions;
    uint32_t page_tokens; // the engine's page size; 0 = not known
} retention_policy;

typedef struct retention_preset {
    const char *name;                  // "chunkkv"
    const char *summary;               // one line for help and docs
    const char *source;                // paper and section
    bool needs_budget;                 // ratio or tokens must be given
    uint32_t fields;                   // retention_field bits: what a request may set
    uint32_t options[RETENTION_PARTS]; // bit i = option i of the part is available
    retention_policy defaults;         // its `preset` is unused here
} retention_preset;

const retention_preset *retention_presets(size_t *n);
const retention_preset *retention_find(const char *name);

/* Limits of the engine, which requests are checked against. */
typedef struct retention_limits {
    /* Its groups are never coarser than a selection; those of one layer and one KV head suit every
     * policy. */
    pkv_geometry geometry;
    uint32_t max_window;    // the prefill chunk
    uint32_t max_positions; // of a sequence, which defaults are lowered to; 0 = not known
} retention_limits;

/* The "retention" object of a request (NULL = "full"), with defaults that fit max_positions. Errors
 * name the field. */
status retention_parse(const json_t *json, const retention_limits *limits, retention_policy *out,
                       error *err);
/* Makes such an object, which the caller owns, of a text: METHOD:RATIO, "full", or an object in
 * JSON. Errors begin with `name`, of a flag or a field; names of methods and members are left to
 * retention_parse. */
status retention_read_text(const char *name, const char *text, json_t **out, error *err);

/* ---- at work --------------------------------------------------------------------------------- */

/* Resolves what depends on the request's length; call it once for each request before anything
 * below. A horizon that was not given becomes max_new_tokens. */
void retention_policy_resolve(retention_policy *policy, uint32_t max_new_tokens);

/* The coarsest grain of tables that the policy's selections can be made in. */
pkv_grain retention_grain(const retention_policy *policy, const pkv_geometry *geometry);
/* Whether the policy ever selects among computed tokens. */
static inline bool retention_selects(const retention_policy *policy)
{
    return policy->schedule != RETENTION_SCHEDULE_NEVER &&
           policy->schedule != RETENTION_SCHEDULE_INPUT;
}

/* The tokens that schedule `input` leaves of a prompt of n_prompt tokens: its first `sinks` tokens
 * and the last ones. Every other schedule leaves all. Functions below know nothing of tokens that
 * were cut: for a cut prompt, n_prompt is retention_input_tokens. */
uint32_t retention_input_tokens(const retention_policy *policy, uint32_t n_prompt);
/* Copies the tokens that stay; out [retention_input_tokens]. */
void retention_cut(const retention_policy *policy, const uint32_t *prompt, uint32_t n_prompt,
                   uint32_t *out);
/* Whether sinks + 1 exceeds the budget of a prompt that is cut. */
bool retention_cut_raises(const retention_policy *policy, uint32_t n_prompt);

/* The first logical length > from at which this policy selects, for a prompt of n_prompt tokens;
 * UINT32_MAX when there is none. A length at which no table can exceed its budget is no such
 * point. */
uint32_t retention_next_point(const retention_policy *policy, uint32_t n_prompt, uint32_t from);

/* The measures that a backend can make at a retention point. A closed list, defined in
 * docs/retention.md, section 4. */
typedef enum measure_kind {
    MEASURE_NONE,
    /* Summed over the query heads of a KV head, then over rows, both ascending. */
    MEASURE_MASS,               // softmax attention
    MEASURE_RAW,                // q . k: no scale, no mask, no softmax
    MEASURE_PROJECTION,         // attention times <output, value>
    MEASURE_PROJECTION_OUTSIDE, // softmax and output over the slots outside the window
    MEASURE_PROJECTION_POOLED,  // AnDPro's code: pooled attention, anchor of evictable chunks
    MEASURE_EXPECTED,           // softmax under the expected query; sum over query heads only
    MEASURE_VALUE_WEIGHT,       // sum over query heads of the 1-norm of W_o,h v
    /* From the KV head alone. */
    MEASURE_VALUE_NORM, // 2-norm
    MEASURE_KEY_NORM,   // 2-norm
    MEASURE_KEY_COSINE, // cosine with the mean direction of the table's keys
    MEASURE_KINDS,
} measure_kind;

/* Where a measure's sums go. Running sums are one f32 for each slot beside its K and V: they are
 * moved, dropped and swapped with it. */
typedef enum measure_sum {
    MEASURE_SUM_STEP,  // sums of this step's rows alone
    MEASURE_SUM_START, // running sums: all are set to 0, then added to
    MEASURE_SUM_ADD,   // running sums: this step's slots start at 0, the rest continues
} measure_sum;

typedef struct measure_spec {
    measure_kind kind;
    measure_kind second; // a second measure, of keys or values; NONE for most
    uint32_t rows;       // the last `rows` query rows of the sequence in this step, at most all
    uint32_t layer_step; // measures the first selecting layer and every layer_step-th after it
    bool by_slot;        // values by slot; else by page (MASS with MEASURE_SUM_STEP only)
    measure_sum sum;     // running sums: MASS and PROJECTION by slot only
    bool silent;         // only adds to the running sums, returns nothing
    bool novelty;        // also returns each row's - log p of the next token, with any `kind`
    uint32_t sinks;      // EXPECTED
    uint32_t window;     // PROJECTION_OUTSIDE, PROJECTION_POOLED
    uint32_t chunk;      // PROJECTION_POOLED
    float bias;          // PROJECTION*: added to <output, value>
    float theta;         // PROJECTION*: temperature of the softmax that makes the output; 0 = 1
    bool beside;         // with by_slot: one more array, the last: MASS by page of the last row
} measure_spec;

/* Number of layers below `end` that select: those without a sliding window. */
uint32_t retention_selecting_layers(const pkv_geometry *geometry, uint32_t end);
/* Every step-th of the selecting layers is measured. measure_layers: how many those are (1, of
 * zeros, when no layer selects). measure_layer_of: the index of a layer among them. step > 0. */
enum { MEASURE_NO_LAYER = UINT32_MAX }; // not measured
uint32_t measure_layers(const pkv_geometry *geometry, uint32_t step);
uint32_t measure_layer_of(const pkv_geometry *geometry, uint32_t layer, uint32_t step);

/* A backend's measures: f32 [arrays, n_layers measured, n_kv_heads, stride], an array for each kind
 * that is returned and one for `beside`; entries past a table's slots or pages are unused. */
typedef struct measure_result {
    const float *values;
    uint32_t n_layers;
    uint32_t n_kv_heads;
    uint32_t stride;  // slots or pages of the longest table
    uint32_t q_heads; // query heads for each KV head
    /* A caller that needs the values beyond the next submit adds 1 here, and takes it off on any
     * thread. While it is above 0, the backend keeps them and is not destroyed. NULL: they cannot
     * be held. */
    _Atomic uint32_t *holders;
    const float *novelty; // [n_prompt] - log p of each prompt token, kept by the scheduler
} measure_result;

/* The measure to make with the rows at logical indices [from, to) of a sequence. `to` ends a
 * planned chunk, which never crosses a retention point. kind is NONE when there is nothing to
 * measure. */
measure_spec retention_measure_rows(const retention_policy *policy, uint32_t n_prompt,
                                    uint32_t from, uint32_t to);
/* Everything that a sequence's selections may ask of a backend: bit 1 << kind for each kind, and
 * the bits below. */
enum { MEASURES_SUMS = 1 << 30, MEASURES_NOVELTY = 1 << 29 };
/* Measures for people who look at a sequence, which no policy asks for: masses of rows that read by
 * retrieval, and measure_spec.beside. */
enum { MEASURES_READS = 1 << 28, MEASURES_BESIDE = 1 << 27 };
uint32_t retention_measures(const retention_policy *policy, uint32_t n_prompt);
/* The name of the lowest bit: "attention mass", "running sums". */
const char *retention_measure_name(uint32_t bits);
/* The number of rows before `point` that must be computed in one step with it (0: any chunks will
 * do). */
uint32_t retention_rows_together(const retention_policy *policy, uint32_t n_prompt, uint32_t point);
/* The most tokens of a sequence that may come from the prefix cache, because rows that are measured
 * must be computed. UINT32_MAX = retention sets no limit. */
uint32_t retention_hit_limit(const retention_policy *policy, uint32_t n_prompt);
/* Whether the policy keeps running sums. They make the sequence's pages private: it takes no hit
 * and publishes nothing. */
bool retention_has_sums(const retention_policy *policy);
/* Whether all tables of a sequence always have equally many slots, and nothing is given up or
 * measured behind the prompt's end: then generated tokens may read them by retrieval. */
bool retention_suits_retrieval(const retention_policy *policy, const pkv_geometry *geometry);
/* Whether the policy needs - log p of each prompt token. Such a sequence takes no hit. */
bool retention_wants_novelty(const retention_policy *policy);

/* Upper bounds after the selection at a point, for any measures, for a sequence for which only this
 * policy has selected, and whose tokens are in tables of the first n_layers layers alone, 0 = all
 * (pkv_seq_fill_layers). Used by admission. */
typedef struct retention_bound {
    uint64_t pages;         // at most, over all tables
    uint64_t even_pages;    // likewise, as many in each share as in the one with most
    uint32_t longest_pages; // at most, of one table: fresh pages that the selection may take
    uint32_t longest;       // tokens, at most, of one table
} retention_bound;

retention_bound retention_bound_at(const retention_policy *policy, const pkv_geometry *geometry,
                                   uint32_t n_layers, uint32_t n_prompt, uint32_t point);
/* Marks the prompt's tokens that the last selection of a sequence of `len` tokens keeps for any
 * measures: sinks and window, by whole pages where pages are selected. Marks none for a method that
 * protects nothing or never selects. */
void retention_forced(const retention_policy *policy, uint32_t n_prompt, uint32_t len,
                      bool *forced);
/* Checks that the budget can be met for a prompt of that length: STATUS_INVALID names
 * retention.tokens when it is below the protected tokens. */
status retention_check_budget(const retention_policy *policy, const pkv_geometry *geometry,
                              uint32_t n_prompt, error *err);

/* A selection at a retention point, for every group of a sequence, whatever its tables hold.
 *   keep     [groups][words] bit i of a group's row = slot i of its table stays
 *   scratch  retention_scratch_floats
 *   grain    whose tables are selected in, where the sequence's are coarser: the groups are its
 *            tables then, each with the slots of the table that it lies in
 * Allocates nothing. Tables that share a selection get the row of their first table. The length is
 * not checked to be a retention point: a policy that ever selects does so now. */
typedef struct retention_selection {
    uint64_t *keep; // caller-owned, zeroed by the callee
    uint32_t words; // >= ceil(slots of the longest table / 64)
    float *scratch;
    size_t n_scratch; // floats
    pkv_grain grain;
    const _Atomic bool *cancelled; // NULL, or what ends the selection early once it is true
    bool gives_up;                 // some slot of some table is given up
    bool budget_raised;            // protected slots and one unit more exceed the budget
} retention_selection;

size_t retention_scratch_floats(const pkv_geometry *geometry, uint32_t max_slots);
/* Reads of the kv only what the sequence's tables keep, so another thread may change other
 * sequences meanwhile. STATUS_ABORTED when it was cancelled. STATUS_INTERNAL when measures or
 * arrays do not fit the sequence. STATUS_INVALID when tables that would share a selection hold
 * different tokens, as another policy may have left them; empty tables share any selection. Budgets
 * are those of a sequence with tokens in all its tables. */
status retention_select(const retention_policy *policy, const pkv *kv, uint32_t seq,
                        uint32_t n_prompt, const measure_result *measures, retention_selection *out,
                        error *err);
/* Whether a selection at the sequence's length gives up nothing, whatever its measures are: no
 * scope holds more than it may keep. Growing budgets are not looked into: false. */
bool retention_keeps_all(const retention_policy *policy, const pkv *kv, uint32_t seq,
                         uint32_t n_prompt);

/* ---- the report of what was kept, as responses carry it -------------------------------------- */

/* Tokens that a request of REFORM read, and those that it read again (docs/reform.md). */
typedef struct retention_gathering {
    uint32_t layers;     // that the reading ran; 0: nothing was read, all tokens were computed
    uint32_t read;       // tokens of the prompt whose embeddings were computed
    uint32_t reused;     // tokens whose embeddings its session had
    uint32_t gathered;   // tokens before the question that were taken
    uint32_t recomputed; // all that were computed with all layers: gathered ones and the question
    double kept;         // tokens in the reading's cache at its end
    double read_ms, gather_ms, recompute_ms; // recompute: until the first token
} retention_gathering;

/* Fields of a policy that selects at chunks, whose defaults depend on the model's positions. */
typedef struct retention_fields {
    uint32_t tokens;          // 0 = the request gave `ratio`
    uint32_t recurrent_chunk; // 0 = the policy selects at other points
    uint32_t sinks, window;
    uint32_t gather_tokens; // 0 = not of method `reform`
} retention_fields;

typedef struct retention_report {
    const char *method;
    retention_fields fields;
    uint32_t logical_tokens;
    double kept_tokens;     // kept bytes / bytes of one full token (pkv_full_tokens)
    uint64_t pages_dropped; // of tables as fine as the method needs (retention_grain)
    bool budget_raised;
    double scoring_ms; // measuring and selecting
    char session[96];  // "continued", "stored", "restarted: …", "ignored: …"; "" = absent
    char *kept_json;   // malloc'd "kept" array when positions were requested, else NULL
    bool has_gathering;
    retention_gathering gathering;
} retention_report;

/* The "kept" array of a sequence as it is now. Each layer group is listed alone, with one entry
 * where all heads keep the same tokens, else with one for each head group. Ranges count the tokens
 * that the client sent: `cut` tokens are missing from the sequence before its position `cut_at`. */
void retention_kept_json(const pkv *kv, uint32_t seq, uint32_t cut_at, uint32_t cut, strbuf *out);
/* The "kept" array of a sequence that has the same n tokens, ascending, in all layers and heads. */
void retention_same_json(const pkv_geometry *geometry, const uint32_t *tokens, uint32_t n,
                         strbuf *out);
retention_fields retention_fields_of(const retention_policy *policy);
/* Appends the report as a JSON object. */
void retention_report_json(const retention_report *report, strbuf *out);

#endif
