/* backend: the contract between the scheduler and the code that holds weights and pages. model/
 * implements it for the CPU, for CUDA and for ranks, tests/sim with a fake.
 *
 * What     a step plan goes in, a step result comes out. Both are plain data, the same in process
 *          and on a wire. A backend returns tokens and measures, never decisions about pages.
 * Owner    plans belong to the scheduler and stay valid until the result was collected; where
 *          max_in_flight is 2 deltas only until submit returns, for the next plan is made then.
 *          Results belong to the backend and stay valid until the next submit, whatever else is in
 *          flight.
 * Threads  one thread calls submit and collect; at most backend_info.max_in_flight steps between.
 * Order    steps are done one after the other, as submitted, and collected so. A second one is
 *          submitted only ahead of the first one's tokens (step_seq.token_from): it has no opens,
 *          each of its shares is one row and one draw, and so is each share of the first.
 * Units    microseconds; tokens; rows (one query token each).
 * Errors   a plan the backend cannot run is an error of that step: result.status; the backend
 *          lives on unless it says STATUS_INTERNAL, or STATUS_UNAVAILABLE: a rank of it is lost. */
#ifndef SCHEDULER_BACKEND_H
#define SCHEDULER_BACKEND_H

#include "paged_kv/retention/retention.h"

/* How the next token is drawn from logits, in vLLM's order: min_tokens, logit_bias, penalties,
 * greedy when temperature < 1e-5, else / temperature, min_p, top_k, top_p, Gumbel-max by Philox. */
typedef struct sample_params {
    float temperature;        // 0 = greedy
    float top_p;              // (0, 1]
    float min_p;              // [0, 1]
    uint32_t top_k;           // 0 = all
    float presence_penalty;   // [-2, 2], output tokens
    float frequency_penalty;  // [-2, 2], output tokens
    float repetition_penalty; // (0, 2], prompt and output; 1 = off
    uint64_t seed;            // drawn at submission when the user gave none
    int32_t n_logprobs;       // -1 = none, else the top n beside the sampled one
    uint32_t min_tokens;      // stop ids are -inf before that many outputs
    const uint32_t *stop_ids; // [n_stop_ids]
    uint32_t n_stop_ids;
    const uint32_t *bias_ids; // [n_bias]
    const float *bias;        // [n_bias]
    uint32_t n_bias;
} sample_params;

enum { SAMPLE_LOGPROBS_MAX = 20 };

/* Tells the backend how sequence `seq` samples from now on. Sent when a sequence is opened, forked
 * or opened again after a preemption. history is what penalties count: all tokens known so far
 * (n_history is 0 when no penalty is set); the first n_prompt of them are the prompt. */
typedef struct step_open {
    uint32_t seq;
    uint32_t choice; // index among the request's n: part of the random key
    const sample_params *params;
    const uint32_t *history;
    uint32_t n_history;
    uint32_t n_prompt;
    uint32_t n_most; // tokens it will ever know: room for its history is made now
} step_open;

/* One sequence's share of a step. Its tokens already have slots: the deltas of this plan appended
 * them. */
typedef struct step_seq {
    uint32_t seq;     // the sequence's number in the tables
    uint64_t request; // whose it is: the backend hands these two back untouched
    uint32_t choice;
    uint32_t first_token;  // tokens[first_token .. + n_tokens)
    uint32_t n_tokens;     // >= 1
    uint32_t position;     // RoPE position of its first token
    uint32_t n_samples;    // draws from the last row's logits: 0 while the prompt goes on, n at its
                           // end. Draw j uses choice + j. Over a plan step_most_draws at most
    uint32_t sample_index; // how many tokens the sequence has sampled before: the Philox counter
    bool want_logits;      // result.logits receives every row's logits of this share
    /* 0, or 1 + n: the share's result has scores, how likely the token after each row was and which
     * n were the likeliest. At most 1 + SAMPLE_LOGPROBS_MAX. */
    uint32_t want_scores;
    uint32_t next_token; // token after the last row, where scores or measure.novelty ask for it
    /* 0: tokens[] has its tokens. Else the step before is in flight, and 1 + the index of the share
     * there whose draw is this share's only token; that of tokens[] is 0. Where the step before
     * failed the result of this one is discarded. */
    uint32_t token_from;
    measure_spec measure;
} step_seq;

typedef struct step_plan {
    uint64_t step; // 1, 2, 3, …
    /* The words are applied first, then the moves are made in their order (copies to and from the
     * host tier are among them), then comes compute. A step that fails must have made them all: the
     * pages they wrote are counted on. */
    pkv_deltas deltas;
    const step_open *opens;
    uint32_t n_opens;
    const step_seq *seqs; // may be none: deltas only
    uint32_t n_seqs;
    const uint32_t *tokens;
    uint32_t n_tokens; // sum over seqs
    uint64_t checksum; // of the coordinator's tables after the deltas
} step_plan;

/* Draws that a plan may ask of a backend for max_seqs sequences: one of each sequence, and those of
 * the choices that a prompt's end begins, which need no sequence to be drawn. */
static inline uint32_t step_most_draws(uint32_t max_seqs) { return 2 * max_seqs; }

/* One draw, or a score of a token that was there. */
typedef struct step_sample {
    uint32_t token;
    float logprob; // log-softmax of the raw logits; NaN when no logprobs were asked for
    uint32_t rank; // 1 = most likely
    uint32_t n_top;
    uint32_t top_ids[SAMPLE_LOGPROBS_MAX];
    float top_logprobs[SAMPLE_LOGPROBS_MAX];
} step_sample;

typedef struct step_seq_result {
    const step_sample *samples; // [n_samples]
    uint32_t n_samples;
    measure_result measure;    // values NULL when not asked for
    const float *novelty;      // [n_tokens] of the tokens after each row; NULL when not asked for
    const step_sample *scores; // [n_tokens] likewise
} step_seq_result;

typedef struct step_result {
    uint64_t step;
    status status;
    const step_seq_result *seqs; // [plan.n_seqs], in the plan's order
    uint32_t n_seqs;
    const float *logits; // [rows that wanted them, vocab], in the plan's order
    uint32_t n_logit_rows;
    uint64_t checksum; // of the backend's mirror: must equal the plan's
    int64_t compute_us;
    int64_t measure_us; // the part of it spent on measures, as far as it can be told apart
} step_result;

typedef struct backend_info {
    const char *name;       // "cpu"
    uint32_t vocab_size;    // width of the logits
    uint32_t max_positions; // context limit of the model
    uint32_t max_rows;      // tokens in one plan
    uint32_t max_seqs;
    uint32_t max_logit_rows; // rows of want_logits or want_scores in one plan; 0 = all
    uint32_t lacks;          // bits of retention_measures that it cannot do
    uint32_t n_pages;
    uint32_t n_host_pages;  // of the host tier, as large as the pool's; 0 = it has none
    uint32_t max_in_flight; // 1, or 2: the next step is given while one runs
    pkv_geometry geometry;
    uint64_t identity; // of the weights and RoPE base: part of the prefix salt
} backend_info;

typedef struct backend_ops {
    const backend_info *(*info)(void *ctx);
    status (*submit)(void *ctx, const step_plan *plan);
    /* Waits for the oldest step in flight. */
    status (*collect)(void *ctx, const step_result **out);
    /* Asks the steps in flight to give up soon; collect then returns STATUS_INTERNAL, and the
     * backend can only be destroyed. Any thread. */
    void (*interrupt)(void *ctx);
    /* Steps may still be in flight where one failed for good. */
    void (*destroy)(void *ctx);
} backend_ops;

typedef struct backend {
    const backend_ops *ops;
    void *ctx;
} backend;

#endif
