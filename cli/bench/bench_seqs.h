/* Sequences whose step plans the bench writes itself, so that a context of any length costs a copy
 * of pages instead of a prefill: their pages repeat the keys and values of a prompt of seeded
 * random tokens. */
#ifndef CLI_BENCH_BENCH_SEQS_H
#define CLI_BENCH_BENCH_SEQS_H

#include "cli/model_open.h"

typedef struct bench_seqs {
    backend *backend; // borrowed
    const backend_info *info;
    uint32_t max_rows; // most tokens in one step
    pkv *kv;
    uint64_t step;
    uint32_t n_open;   // sequences 0 .. n_open - 1
    uint32_t *sources; // [n_sources] pages that contexts are copied from
    uint32_t n_sources;
    pkv_grain grain;  // of sources and contexts: the coarsest
    uint32_t *tokens; // [max_rows]
    uint32_t *none;   // [max_seqs] zeros, given where the step in flight draws the tokens
    step_seq *shares; // [2 * max_seqs] for the last two steps
    step_plan plans[2];
    retrieval_spec
        retrieval;        // that steps of one token read by; block_tokens 0: they read everything
    uint32_t n_prompt;    // tokens before those that do
    sample_params params; // of sequences that are opened from now on; greedy at first
    uint32_t n_in_flight; // steps of bench_seqs_decode not yet collected
    int64_t measure_us;   // what the steps that were collected spent on measures
    step_open *opens;     // [max_seqs]
    pkv_move *moves;
    size_t moves_capacity;
} bench_seqs;

/* While it exists nothing else may have sequences open on this backend. */
status bench_seqs_create(loaded_model *m, bench_seqs *out, error *err);
void bench_seqs_destroy(bench_seqs *b);
/* Opens n sequences of `context` tokens each. STATUS_NO_PAGES when the pool has no room. */
status bench_seqs_open(bench_seqs *b, uint32_t n, uint32_t context, error *err);
/* Runs one step: every open sequence takes n_tokens more, and draws when `draw` is set. The result
 * is valid until the next call. */
status bench_seqs_step(bench_seqs *b, uint32_t n_tokens, bool draw, const measure_spec *measure,
                       const step_result **out, error *err);
/* Runs a step in which every open sequence takes a token and draws the next, measured where
 * `measure` is not NULL. Where the backend takes two steps, one stays in flight, and the next call
 * submits its step before it waits for this one's result, as the scheduler does: a sequence's token
 * is the one that the step before draws. */
status bench_seqs_decode(bench_seqs *b, const measure_spec *measure, error *err);
/* Waits for the step that bench_seqs_decode has left in flight; every other call does so first. */
status bench_seqs_settle(bench_seqs *b, error *err);
status bench_seqs_close(bench_seqs *b, error *err);
/* Sends the backend what has changed in the page tables since the last step. */
status bench_seqs_flush(bench_seqs *b, error *err);
/* Writes keys and values to every page of the pool. No sequence may be open. */
status bench_seqs_fill_pool(bench_seqs *b, error *err);

#endif
