/* retention: which tokens of a sequence stay.
 *
 * What     the table of methods (presets), the request's JSON and its report (one parser, one
 *          writer), the retention points, the measures a method needs from a backend, and the
 *          choice itself: plain C, deterministic, the same for every device and rank. A method is
 *          a row of `retention_presets`.
 * Owner    a retention_policy is a plain value; choices go to caller-owned bitmaps.
 * Threads  pure functions.
 * Units    tokens and pages of one table; ratio = the share KEPT of the prompt's tokens.
 * Errors   a field the method cannot use, an unknown key, an impossible value: STATUS_INVALID with
 *          the field's name.
 * Source   docs/retention.md fixes every meaning; each row names its paper. */
#ifndef PAGED_KV_RETENTION_RETENTION_H
#define PAGED_KV_RETENTION_RETENTION_H

#include "paged_kv/paged_kv.h"

/* ---- the parts a method is composed of (docs/retention.md says what each means) -------------- */

/* Which of the scores: an index like those of the other parts, but the names are those of the files
 * paged_kv/retention/score_*.c, and nobody outside needs to know one from another. */
typedef uint32_t retention_score;
enum { RETENTION_SCORE_NONE }; // nothing to measure

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

/* SCOPE: what the generated tokens may take, beside a prompt part that stays as it is. */
typedef enum retention_growth {
    RETENTION_GROWTH_JOINT, // prompt and generated tokens compete for one budget
    RETENTION_GROWTH_SLIDE,
    RETENTION_GROWTH_ADAPTIVE,
    RETENTION_GROWTH_DISCONTINUOUS,
} retention_growth;

/* The parts as tables, so that parsing, help and docs iterate over them. A choice's index is its
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

typedef struct retention_choice {
    const char *name;    // "window": what the request's field says
    const char *summary; // one line for help and docs
} retention_choice;

const char *retention_part_name(retention_part part); // the request's field: "score"
size_t retention_part_size(retention_part part);
retention_choice retention_part_choice(retention_part part, size_t index);

/* Fields of a request that a method may be able to use beside `method`, `report` and `pressure`.
 * Whether `chunk`, `interval` and the like say anything depends on the parts chosen. */
typedef enum retention_field {
    RETENTION_FIELD_BUDGET = 1 << 0, // ratio or tokens
    RETENTION_FIELD_PARTS = 1 << 1,  // the parts, and what goes with them
    RETENTION_FIELD_PHASES = 1 << 2, // prefill, decode
    RETENTION_FIELD_INPUT = 1 << 3,  // sinks, of the prompt's tokens
} retention_field;

/* A resolved request: the preset's row with the request's overrides. A plain value. */
typedef struct retention_policy {
    const struct retention_preset *preset; // never NULL after retention_parse
    retention_score score;
    retention_variant variant;
    retention_unit unit;
    uint32_t chunk; // tokens of a unit `chunk` (and of hybrid's lower half)
    retention_scope scope;
    retention_allocator allocator;
    float beta;  // pyramid's slope
    float floor; // adaptive's share that each head is sure of
    retention_pool pool;
    uint32_t kernel; // of the pool, odd
    retention_schedule schedule;
    uint32_t interval;        // decode
    uint32_t recurrent_chunk; // chunk
    bool contiguous;          // positions are reassigned after each choice
    double ratio;             // (0, 1], or 0 when `tokens` is given
    uint32_t tokens;          // budget, or 0 when `ratio` is given
    uint32_t sinks;           // first tokens protected
    uint32_t window;          // last tokens protected
    float bias, theta;        // score projection: AnDPro's b, and the temperature of its theta
    bool window_half;         // but at most half of the budget (INT32_MAX: just that half)
    uint32_t rows;            // query rows measured; 0 = as `window`
    uint32_t reuse_layers;    // so many layers that choose, one after the other, share a choice
    retention_growth growth;
    retention_score decode_score; // after the prompt's end; NONE = as for the prompt
    /* Of the generated tokens, when growth is not joint. */
    retention_unit decode_unit;
    retention_scope decode_scope;
    uint32_t beta1, beta2, horizon; // growth other than joint; horizon 0 = max_tokens
    bool pressure;                  // opts in to compress-before-preempt
    bool report_positions;
    uint32_t page_tokens; // of the tables it is for; 0 = not known
} retention_policy;

typedef struct retention_preset {
    const char *name;                  // "chunkkv"
    const char *summary;               // one line for help and docs
    const char *source;                // paper and section
    bool needs_budget;                 // ratio or tokens must be given
    uint32_t fields;                   // retention_field bits: what a request may set
    uint32_t choices[RETENTION_PARTS]; // bit i = choice i of the part is available
    retention_policy defaults;         // its `preset` is unused here
} retention_preset;

const retention_preset *retention_presets(size_t *n);
const retention_preset *retention_find(const char *name);

/* What the engine can do: checked when a request comes in. */
typedef struct retention_limits {
    pkv_geometry geometry;
    uint32_t max_window; // the prefill chunk
} retention_limits;

/* The "retention" object of a request (NULL = "full"). Errors name the field. */
status retention_parse(const json_t *json, const retention_limits *limits, retention_policy *out,
                       error *err);

/* ---- at work --------------------------------------------------------------------------------- */

/* What a request's length decides: call it once for each request before anything below. A horizon
 * that was not given is max_new_tokens. */
void retention_policy_resolve(retention_policy *policy, uint32_t max_new_tokens);

/* Whether the policy chooses at all among what a prompt has computed. */
static inline bool retention_chooses(const retention_policy *policy)
{
    return policy->schedule != RETENTION_SCHEDULE_NEVER &&
           policy->schedule != RETENTION_SCHEDULE_INPUT;
}

/* What schedule `input` leaves of a prompt of n_prompt tokens: its first `sinks` tokens, and the
 * last ones. Every other schedule leaves all. Nothing below knows of what is cut: for a prompt
 * that was cut, n_prompt is retention_input_tokens. */
uint32_t retention_input_tokens(const retention_policy *policy, uint32_t n_prompt);
/* out: [retention_input_tokens] */
void retention_cut(const retention_policy *policy, const uint32_t *prompt, uint32_t n_prompt,
                   uint32_t *out);
/* Whether the sinks and one token more exceed the budget of a prompt that is cut. */
bool retention_cut_raises(const retention_policy *policy, uint32_t n_prompt);

/* The first logical length > from at which this policy selects, for a prompt of n_prompt tokens;
 * UINT32_MAX when there is none. A length at which no table can hold more than its budget is no
 * such point. */
uint32_t retention_next_point(const retention_policy *policy, uint32_t n_prompt, uint32_t from);

/* What a backend must measure at a retention point. A closed list: docs/retention.md, section 4,
 * defines each. */
typedef enum measure_kind {
    MEASURE_NONE,
    /* Sums over the query heads of a KV head, then over rows, both ascending. */
    MEASURE_MASS,               // softmax attention
    MEASURE_RAW,                // q . k: no scale, no mask, no softmax
    MEASURE_PROJECTION,         // attention times <output, value>
    MEASURE_PROJECTION_OUTSIDE, // softmax and output over the slots outside the window
    MEASURE_PROJECTION_POOLED,  // AnDPro's code: pooled attention, anchor of evictable chunks
    MEASURE_EXPECTED,           // sum over query heads only: softmax under the expected query
    MEASURE_VALUE_WEIGHT,       // sum over query heads of the 1-norm of W_o,h v
    /* Of the KV head alone. */
    MEASURE_VALUE_NORM, // 2-norm
    MEASURE_KEY_NORM,   // 2-norm
    MEASURE_KEY_COSINE, // with the mean direction of the table's keys
    MEASURE_KINDS,
} measure_kind;

/* Running sums are f32 for each slot beside its K and V: they move, drop and swap with it. */
typedef enum measure_sum {
    MEASURE_SUM_STEP,  // of this share's rows alone
    MEASURE_SUM_START, // the running sums are set to 0, then added to
    MEASURE_SUM_ADD,   // this share's slots start at 0; added to what is there
} measure_sum;

typedef struct measure_spec {
    measure_kind kind;
    measure_kind second; // beside it, of the KV head or of the values; NONE for most
    uint32_t rows;       // the last `rows` query rows of the step's share (all, when it has fewer)
    uint32_t layer_step; // of the layers that choose the first, and every layer_step-th from there
    bool by_slot;        // a value for each slot; else for each page (MASS of one step only)
    measure_sum sum;     // MASS and PROJECTION by slot only, others are of the step
    bool silent;         // the sums are added to, and nothing is returned
    bool novelty;    // of each row: - log p of the token that comes after it, whatever `kind` is
    uint32_t sinks;  // EXPECTED
    uint32_t window; // PROJECTION_OUTSIDE, PROJECTION_POOLED
    uint32_t chunk;  // PROJECTION_POOLED
    float bias;      // PROJECTION and its kin: added to <output, value>
    float theta;     // likewise: temperature of the softmax that makes the output; 0 = 1
} measure_spec;

/* Layers below `end` that choose: those without a sliding window. */
uint32_t retention_choosing_layers(const pkv_geometry *geometry, uint32_t end);
/* Of the layers that choose every layer_step-th is measured: how many there are (1, of zeros, where
 * no layer chooses), and which of them a layer is. step > 0. */
enum { MEASURE_NO_LAYER = UINT32_MAX }; // not measured
uint32_t measure_layers(const pkv_geometry *geometry, uint32_t step);
uint32_t measure_layer_of(const pkv_geometry *geometry, uint32_t layer, uint32_t step);

/* What came back: f32 [1 or 2 kinds, n_layers measured, n_kv_heads, stride]; entries past a table's
 * slots or pages unused. */
typedef struct measure_result {
    const float *values;
    uint32_t n_layers;
    uint32_t n_kv_heads;
    uint32_t stride;  // slots or pages of the longest table
    uint32_t q_heads; // query heads for each KV head
    const float
        *novelty; // [n_prompt] - log p of each prompt token, for score `novelty`: the scheduler's
} measure_result;

/* What the rows at logical indices [from, to) of a sequence must measure: `to` ends a planned
 * chunk, which never crosses a retention point. kind is NONE when nothing. */
measure_spec retention_measure_rows(const retention_policy *policy, uint32_t n_prompt,
                                    uint32_t from, uint32_t to);
/* All that a sequence's choices may ask of a backend: 1 << kind for each, and these. */
enum { MEASURES_SUMS = 1 << 30, MEASURES_NOVELTY = 1 << 29 };
uint32_t retention_measures(const retention_policy *policy, uint32_t n_prompt);
/* The lowest bit's, in words: "attention mass", "running sums". */
const char *retention_measure_name(uint32_t bits);
/* How many rows before `point` have to be in one step with it (0: any chunks will do). */
uint32_t retention_rows_together(const retention_policy *policy, uint32_t n_prompt, uint32_t point);
/* Most tokens of a sequence that may come from the prefix cache: what is measured has to be
 * computed. UINT32_MAX = no limit of retention's. */
uint32_t retention_hit_limit(const retention_policy *policy, uint32_t n_prompt);
/* Its running sums make the sequence's pages nobody else's: it takes no hit and publishes
 * nothing. */
bool retention_has_sums(const retention_policy *policy);
/* It asks how unlikely each prompt token was: takes no hit. */
bool retention_wants_novelty(const retention_policy *policy);

/* What holds after the choice at a point, whatever is measured, for a sequence that only this
 * policy has chosen for: for admission. */
typedef struct retention_bound {
    uint64_t pages;         // over all tables, at most
    uint32_t longest_pages; // of one table, at most: fresh pages that making the choice may take
} retention_bound;

retention_bound retention_bound_at(const retention_policy *policy, const pkv_geometry *geometry,
                                   uint32_t n_prompt, uint32_t point);
/* Marks the prompt's tokens that the last choice of a sequence of `len` tokens leaves whatever is
 * measured: sinks and window, by whole pages where pages are chosen. None for a method that
 * protects nothing or never chooses. */
void retention_forced(const retention_policy *policy, uint32_t n_prompt, uint32_t len,
                      bool *forced);
/* Whether the budget can be met at all for a prompt of that length: STATUS_INVALID names
 * retention.tokens when it is below what is protected. */
status retention_check_budget(const retention_policy *policy, const pkv_geometry *geometry,
                              uint32_t n_prompt, error *err);

/* A choice at a retention point, for every group of a sequence, whatever its tables hold by then.
 *   keep     [groups][words] bit i of a group's row = slot i of its table stays
 *   scratch  retention_scratch_floats
 * Allocates nothing. Followers' tables get their leader's row. Whether `len` is a point is not
 * asked: a policy that chooses at all chooses now. */
typedef struct retention_choice_out {
    uint64_t *keep; // caller-owned, zeroed by the callee
    uint32_t words; // >= ceil(slots of the longest table / 64)
    float *scratch;
    size_t n_scratch;   // floats
    bool gives_up;      // some slot of some table
    bool budget_raised; // what is protected, and one more, is above the budget
} retention_choice_out;

size_t retention_scratch_floats(const pkv_geometry *geometry, uint32_t max_slots);
/* STATUS_INTERNAL when measures or arrays do not fit the sequence; STATUS_INVALID when tables that
 * would share a choice hold different tokens, as another policy has left them. */
status retention_choose(const retention_policy *policy, const pkv *kv, uint32_t seq,
                        uint32_t n_prompt, const measure_result *measures,
                        retention_choice_out *out, error *err);

/* ---- the report of what was kept, as responses carry it -------------------------------------- */

typedef struct retention_report {
    const char *method;
    uint32_t logical_tokens;
    double kept_tokens; // in bytes of full tokens (retention_kept_tokens)
    uint64_t pages_dropped;
    bool budget_raised;
    double scoring_ms; // measuring and selecting
    char session[96];  // "continued", "stored", "restarted: …", "ignored: …"; "" = absent
    char *kept_json;   // the "kept" array when positions were asked for, else NULL (malloc'd)
} retention_report;

/* Kept bytes of a sequence / bytes of one full token: the mean over its tables, each weighted by
 * its layers. */
double retention_kept_tokens(const pkv *kv, uint32_t seq);
/* The "kept" array of a sequence as it is now, layers and heads with equal ranges listed table
 * by table. Ranges are of the tokens that the client sent: `cut` tokens are missing from the
 * sequence before its position `cut_at`. */
void retention_kept_json(const pkv *kv, uint32_t seq, uint32_t cut_at, uint32_t cut, strbuf *out);
/* Appends the report as a JSON object. */
void retention_report_json(const retention_report *report, strbuf *out);

#endif
