/* The parts of a method as tables of functions. A new method is a row in presets.c. A new score is
 * a file score_NAME.c that defines `score_NAME`, which the build finds and numbers as
 * RETENTION_SCORE_NAME. A new option of another part is a row in its table and in the enum of
 * retention.h. */
#ifndef PAGED_KV_RETENTION_METHOD_H
#define PAGED_KV_RETENTION_METHOD_H

#include "paged_kv/retention/retention.h"
#include "paged_kv/retention/scores.gen.h" // RETENTION_SCORE_FILES, from the names of the files

#define ONLY(option) (UINT32_C(1) << (option))

/* Sets of options, one bit each. */
enum {
    PAGE = ONLY(RETENTION_UNIT_PAGE),
    CHUNK = ONLY(RETENTION_UNIT_CHUNK),
    TOKEN = ONLY(RETENTION_UNIT_TOKEN),
    ANY_UNIT = PAGE | CHUNK | TOKEN,
    UNIFORM = ONLY(RETENTION_ALLOCATOR_UNIFORM),
    PYRAMID = ONLY(RETENTION_ALLOCATOR_PYRAMID),
    ADAPTIVE = ONLY(RETENTION_ALLOCATOR_ADAPTIVE) | ONLY(RETENTION_ALLOCATOR_PYRAMID_ADAPTIVE),
    HYBRID = ONLY(RETENTION_ALLOCATOR_HYBRID),
    IN_PROMPT = ONLY(RETENTION_SCHEDULE_PROMPT) | ONLY(RETENTION_SCHEDULE_CHUNK),
    AT_ANY_TIME = IN_PROMPT | ONLY(RETENTION_SCHEDULE_DECODE),
};

/* ---- scores and their variants --------------------------------------------------------------- */

/* Query rows that a score is made of. */
typedef enum retention_rows {
    RETENTION_ROWS_NONE,
    RETENTION_ROWS_LAST,
    RETENTION_ROWS_POLICY, // `rows`, else `window`
    RETENTION_ROWS_ALL,
} retention_rows;

/* The input of one KV head's score. */
typedef struct score_input {
    const float *first, *second; // [n] the score's measures; NULL without
    const float *pooled;         // [n] the result of `score`, smoothed; for `refine` alone
    const float *novelty;        // [n_prompt] - log p of the token at each position
    const uint32_t *positions;   // [n] NULL: position = slot
    uint32_t n;                  // slots, or pages where the measure is by page
    uint32_t rows, q_heads;      // summed in the measures
} score_input;

/* Fills scores[n]; higher scores stay, NaN comes last. */
typedef void (*retention_score_fn)(const score_input *in, float *scores);

typedef struct retention_score_row {
    retention_option option;
    measure_kind kind, second;
    retention_rows rows;
    retention_score_fn score;
    retention_score_fn refine; // rescores what the first half of the budget left; NULL for most
    uint32_t units, allocators, schedules; // bits of the options it can be combined with
    bool page_mass;                        // the attention kernel measures it by page
    bool novelty;                          // needs - log p of every prompt token
} retention_score_row;

/* RETENTION_SCORE_WINDOW and the other scores, numbered from their files. */
enum {
    RETENTION_SCORE_BEFORE_FILES = RETENTION_SCORE_NONE,
#define ID_OF_FILE(ID, row) RETENTION_SCORE_##ID,
    RETENTION_SCORE_FILES(ID_OF_FILE)
#undef ID_OF_FILE
        RETENTION_SCORES,
};
#define ROW_OF_FILE(ID, row) extern const retention_score_row row;
RETENTION_SCORE_FILES(ROW_OF_FILE)
#undef ROW_OF_FILE
extern const retention_score_row *const retention_scores[RETENTION_SCORES];

typedef struct retention_variant_row {
    retention_option option;
    retention_score of;       // the score that it varies
    measure_kind kind;        // replaces the score's; NONE: the score's
    retention_score_fn score; // replaces the score's; NULL: the score's
    uint32_t units;           // bits of the units it can be combined with
    bool kvpress;             // nothing is protected; window slots score above all others
    bool whole_chunks;        // a chunk that holds window slots competes with all its slots
} retention_variant_row;
extern const retention_variant_row retention_variants[];

/* Scores that several rows use. */
void score_measured(const score_input *in, float *scores); // the first measure
void score_mean(const score_input *in, float *scores);     // over rows and query heads
void score_negated(const score_input *in, float *scores);  // the smaller, the better

/* ---- scopes, schedules, growth, pools -------------------------------------------------------- */

typedef struct retention_scope_row {
    retention_option option;
    uint32_t (*heads)(const pkv_geometry *geometry); // KV heads that share a selection
} retention_scope_row;
extern const retention_scope_row retention_scopes[];

typedef struct retention_schedule_row {
    retention_option option;
    /* The first point > from at which a table of more than `least` tokens may exceed its budget. */
    uint32_t (*next_point)(const retention_policy *policy, uint32_t n_prompt, uint32_t least,
                           uint32_t from);
} retention_schedule_row;
extern const retention_schedule_row retention_schedules[];

typedef struct retention_growth_row {
    retention_option option;
    /* The number of generated tokens that may stay once t were computed. */
    uint32_t (*allowance)(const retention_policy *policy, uint32_t t);
    uint32_t (*every)(const retention_policy *policy); // generated tokens between selections
} retention_growth_row;
extern const retention_growth_row retention_growths[];

typedef struct retention_pool_row {
    retention_option option;
    void (*pool)(const float *in, uint32_t n, uint32_t kernel, float *out); // NULL for none
} retention_pool_row;
extern const retention_pool_row retention_pools[];
enum { RETENTION_POOLS = RETENTION_POOL_AVG + 1, RETENTION_KERNEL_MAX = 255 };

void pool_max(const float *in, uint32_t n, uint32_t kernel, float *out);
void pool_avg(const float *in, uint32_t n, uint32_t kernel, float *out);

/* ---- one phase of a policy: the prompt's points, or those after it --------------------------- */

typedef struct retention_phase {
    const retention_score_row *score;
    const retention_variant_row *variant;
    measure_kind kind; // the first of the measures
    retention_unit unit;
    retention_scope scope;
    bool growth; // only generated tokens are selected among
    bool summed; // running sums add up the rows of several steps
} retention_phase;

retention_phase retention_phase_at(const retention_policy *policy, uint32_t n_prompt,
                                   uint32_t point);
bool retention_by_slot(const retention_policy *policy, const retention_phase *phase);
/* The number of query rows behind the measures of a selection at `point` when everything was
 * computed in one step. */
uint32_t retention_rows_at(const retention_policy *policy, uint32_t n_prompt, uint32_t point);

/* ---- budgets --------------------------------------------------------------------------------- */

uint32_t retention_window_of(const retention_policy *policy, uint32_t n_prompt);
/* floor(x), where a product of two decimals within 1e-6 of a whole number is that number. */
uint32_t retention_floor(double x);

/* The selecting layer with `nth` selecting layers below it; it exists. */
uint32_t retention_selecting_layer(const pkv_geometry *geometry, uint32_t nth);

/* The number of `chunks` that variant `mean` keeps. */
uint32_t retention_mean_chunks(const retention_policy *policy, uint32_t n_prompt, uint32_t chunks);

/* How an allocator divides the budget among layers and heads. */
typedef struct retention_allocator_row {
    retention_option option;
    /* The budget in tokens of run `index` of n_scopes runs of selecting layers. */
    uint32_t (*tokens)(const retention_policy *policy, uint32_t n_prompt, uint32_t index,
                       uint32_t n_scopes);
    uint32_t (*least)(const retention_policy *policy, uint32_t n_prompt); // least of all scopes
    bool joint;   // the heads of a layer compete for their budgets
    bool sloping; // the budget falls with the layer, by `beta`
} retention_allocator_row;
extern const retention_allocator_row retention_allocators[];

static inline uint32_t runs_of(uint32_t n, uint32_t length)
{
    return n / length + (n % length != 0);
}
static inline uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Sets the policy's option of a part; every part is an enum member of the policy. */
void retention_part_set(retention_policy *policy, retention_part part, size_t index);
uint32_t retention_part_get(const retention_policy *policy, retention_part part);
/* The index of a part's option, SIZE_MAX when the name is unknown. */
size_t retention_part_find(retention_part part, const char *name);

#endif
