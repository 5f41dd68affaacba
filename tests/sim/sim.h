/* sim: a model made of hashes, the backend that runs it on real page tables, and the reference that
 * runs it one request at a time on plain arrays.
 *
 * What     every (page, slot) of every group holds 64 bits that depend on the row's token and
 * position and on all that the row attends to there: each kept slot before it, in order. A wrong
 * page, drop, order, or replay therefore changes every token that comes after. Measures are
 * pseudo-random in the pages' contents and in those of the measured rows. Owner    a sim_backend
 * owns its mirror, its contents and its results. Threads  one. Units    as in scheduler/backend.h.
 * Logits rows have one column. Errors   what a plan got wrong is kept as text: sim_backend_wrong.
 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include "scheduler/scheduler.h"

enum { SIM_VOCAB = 1000 };

/* ---- the model ------------------------------------------------------------------------------- */

static inline uint64_t sim_embed(uint32_t token, uint32_t position)
{
    return hash_mix64(((uint64_t)token << 32 | position) + 0x9e3779b97f4a7c15ull);
}
/* Order matters: of slots in a page, of pages in a table, of tokens in a history. */
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
static inline float sim_logit(uint64_t x) { return sim_unit(hash_mix64(x)); }
static inline uint32_t sim_token(uint64_t x, uint64_t history, uint64_t seed, uint32_t choice,
                                 uint32_t sample_index)
{
    uint64_t key = seed + ((uint64_t)choice << 32 | sample_index);
    return (uint32_t)(hash_mix64(x ^ hash_mix64(key) ^ history) % SIM_VOCAB);
}
/* Coarse, so that ties are common: they have to go to the earlier page. */
static inline float sim_mass(uint64_t page, uint64_t rows, uint32_t layer, uint32_t head)
{
    uint64_t bits = hash_mix64(page ^ sim_fold(rows, (uint64_t)layer << 8 | head));
    return (float)(bits >> 59) / 8.0f;
}
static inline bool sim_has_penalties(const sample_params *p) { return p->repetition_penalty != 1; }

/* ---- the backend ----------------------------------------------------------------------------- */

typedef struct sim_options {
    pkv_geometry geometry;
    uint32_t n_pages, n_host_pages, max_seqs, max_rows, max_model_len;
} sim_options;

typedef struct sim_backend sim_backend;

sim_backend *sim_backend_create(const sim_options *options);
/* A backend over it; its destroy frees everything. */
backend sim_backend_as_backend(sim_backend *b);
/* The next step fails after its deltas and moves, with garbage in its new slots. */
void sim_backend_fail_next(sim_backend *b);
/* NULL, or what some plan got wrong. */
const char *sim_backend_wrong(const sim_backend *b);

/* ---- the reference --------------------------------------------------------------------------- */

typedef struct sim_answer {
    uint32_t *tokens;       // [n, max_new_tokens]
    float *logits;          // [n_prompt]
    uint64_t pages_dropped; // of each choice
} sim_answer;

sim_answer sim_reference(const pkv_geometry *geometry, const sched_request *r);
void sim_answer_free(sim_answer *a);

#endif
