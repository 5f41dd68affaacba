/* sim: a model made of hashes, the backend that runs it on real page tables, and the reference that
 * runs it one request at a time, row by row.
 *
 * What     every (page, slot) of every group holds a 64-bit hash of the row's token and position
 *          and of all that the row attends to there: each kept slot before it, in order, with its
 *          RoPE position. A wrong page, drop, order, rotation or replay therefore changes every
 *          later token. Measures are pseudo-random in the contents of slots and rows; running sums
 *          are stored beside the slots.
 * Owner    a sim_backend owns its mirror, its contents and its results.
 * Threads  one.
 * Units    as in backend/backend.h. Logits rows have one column.
 * Errors   the first error of a plan is kept as text: sim_backend_wrong. */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include "scheduler/scheduler.h"

enum { SIM_VOCAB = 1000, SIM_GROUPS_MAX = 16, SIM_TURNS_MAX = 8, SIM_CHOICES_MAX = 4 };

/* ---- the model ------------------------------------------------------------------------------- */

static inline uint64_t sim_embed(uint32_t token, uint32_t position)
{
    return hash_mix64(((uint64_t)token << 32 | position) + 0x9e3779b97f4a7c15ull);
}
/* The key that attention sees for a slot. */
static inline uint64_t sim_key(uint64_t content, uint32_t rope)
{
    return content + rope * 0xa0761d6478bd642full;
}
/* A hash that depends on order: of slots in a page, pages in a table, tokens in a history. */
static inline uint64_t sim_fold(uint64_t fold, uint64_t next)
{
    return (fold + next) * 0x9fb21c651e98df25ull;
}
static inline uint64_t sim_content(uint64_t x, uint32_t group, uint64_t attended)
{
    return hash_mix64(x ^ (attended + 0xc2b2ae3d27d4eb4full * (group + 1)));
}
static inline uint64_t sim_next(uint64_t x, uint64_t content)
{
    return x * 0xd6e8feb86659fd93ull + content;
}
static inline float sim_unit(uint64_t bits) { return (float)(bits >> 40) * 0x1p-24f; }
/* -log p of the token that follows a row. */
static inline float sim_novelty(uint64_t x, uint32_t token)
{
    return (float)(hash_mix64(x ^ token) >> 60);
}
static inline float sim_logit(uint64_t x) { return sim_unit(hash_mix64(x)); }
static inline uint32_t sim_token(uint64_t x, uint64_t history, uint64_t seed, uint32_t choice,
                                 uint32_t sample_index)
{
    uint64_t key = seed + ((uint64_t)choice << 32 | sample_index);
    return (uint32_t)(hash_mix64(x ^ hash_mix64(key) ^ history) % SIM_VOCAB);
}
/* Whether the answer's token number `index` is forced, and that token, for requests with forced
 * tokens: runs of up to five, but not the first token, nor the last that the request may have. */
static inline bool sim_is_forced(const sched_request *r, uint32_t index)
{
    uint64_t run = hash_mix64(r->params.seed + index / 6) % 6;
    return index > 0 && index + 1 < r->max_new_tokens && index % 6 < run;
}
static inline uint32_t sim_forced_token(const sched_request *r, uint32_t index)
{
    return (uint32_t)(hash_mix64(r->params.seed ^ index) % SIM_VOCAB);
}
static inline bool sim_has_penalties(const sample_params *p) { return p->repetition_penalty != 1; }

/* One group's table, slot by slot. */
typedef struct sim_table {
    const uint64_t *content; // [n]
    float *sums;             // [n, layers and heads of the group]
    uint32_t n;
} sim_table;

/* The groups that a row runs which runs n_layers layers, 0 = all. */
static inline uint32_t sim_groups_of(const pkv_geometry *g, uint32_t n_layers)
{
    return pkv_filled_groups(g, n_layers) * pkv_head_groups(g);
}
static inline uint32_t sim_sums_of(const pkv_geometry *g)
{
    return g->layers_per_group * g->heads_per_group;
}
/* Upper bound of the floats that a measure takes. */
size_t sim_measure_floats(const pkv_geometry *g, uint32_t max_slots);
/* Measures the last rows of a share of n_rows rows, which are the last slots of every table.
 * Returns NULL, or what is wrong with the spec. */
const char *sim_measure(const pkv_geometry *g, const measure_spec *spec, uint32_t n_rows,
                        const sim_table *tables, float *values, measure_result *out);

/* ---- the backend ----------------------------------------------------------------------------- */

typedef struct sim_options {
    pkv_geometry geometry;
    uint32_t n_pages, n_host_pages, max_seqs, max_rows, max_model_len;
    uint32_t max_in_flight; // 1 or 2
} sim_options;

typedef struct sim_backend sim_backend;

sim_backend *sim_backend_create(const sim_options *options);
/* A backend interface to b; its destroy frees everything. */
backend sim_backend_as_backend(sim_backend *b);
/* The next step fails after its deltas and moves were applied, and leaves garbage in its new
 * slots. */
void sim_backend_fail_next(sim_backend *b);
/* NULL, or the first error that a plan contained. */
const char *sim_backend_wrong(const sim_backend *b);

/* ---- the reference --------------------------------------------------------------------------- */

typedef struct sim_turn {
    uint32_t n_prompt, end;
    retention_policy policy;
} sim_turn;

/* A request with the facts that only its history gives: the turns of the session that it resumed,
 * and where each choice was compressed because pages were short. */
typedef struct sim_story {
    const sched_request *request;
    sim_turn turns[SIM_TURNS_MAX]; // resolved
    uint32_t n_turns;
    const retention_policy *pressure;
    const uint32_t *pressure_drops[SIM_CHOICES_MAX];
    uint32_t n_pressure_drops[SIM_CHOICES_MAX];
    uint32_t cut; // prompt tokens that its method cut out of the given prompt
    bool forces;  // some of its answer's tokens are forced
} sim_story;

typedef struct sim_answer {
    uint32_t *tokens;  // [n, max_new_tokens]
    float *logits;     // [n_prompt]
    uint64_t *dropped; // [n, n_prompt + max_new_tokens] dropped pages, by logical length
    uint64_t *kept;    // same shape: hash of the kept positions, where they are reported
} sim_answer;

sim_answer sim_reference(const pkv_geometry *geometry, const sim_story *story);
void sim_answer_free(sim_answer *a);
uint64_t sim_hash_text(const char *text);

#endif
