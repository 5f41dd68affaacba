/* backend: the contract between the scheduler and the code that holds weights and pages. model/
 * implements it for the CPU, for CUDA and for ranks, tests/sim with a fake.
 *
 * What     a step plan goes in, a step result comes out. Both are plain data, the same in process
 *          and on a wire. A backend returns tokens and measures; it never decides about pages.
 * Owner    plans belong to the scheduler and stay valid until their result was collected. Where
 *          max_in_flight is 2, the deltas of a plan are valid only until submit returns, because
 *          the next plan is made then. Results belong to the backend and stay valid until the next
 *          submit, whatever else is in flight; measures for as long as they are held
 *          (measure_result.holders).
 * Threads  one thread calls submit and collect; at most backend_info.max_in_flight steps are
 *          submitted and not yet collected.
 * Order    steps run one after the other and are collected in the order of submission. A second
 *          step may be any plan that does not need the first one's result: a sequence that drew one
 *          token there goes on with that token (step_seq.token_from), one that drew several has no
 *          share, and no sequence with a share there is opened. It is not submitted behind a step
 *          with want_logits, want_scores or measure.novelty, whose rows of logits may be computed
 *          when that step is collected.
 * Units    microseconds; tokens; rows (one query token each).
 * Errors   result.status is an error where the backend cannot run the plan. The backend stays
 *          usable, unless the status is STATUS_INTERNAL, or STATUS_UNAVAILABLE (one of its ranks is
 *          lost). */
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H

#include "paged_kv/log.h"
#include "paged_kv/retention/retention.h"
#include "paged_kv/retrieval/reading.h"

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
 * (n_history is 0 when no penalty is set); the first n_prompt of them are the prompt. Tokens that
 * are drawn later are counted by the draws, others by step_seq.n_uncounted. */
typedef struct step_open {
    uint32_t seq;
    uint32_t choice; // index among the request's n: part of the random key
    const sample_params *params;
    const uint32_t *history;
    uint32_t n_history;
    uint32_t n_prompt;
    uint32_t n_most; // tokens it will ever know: room for its history is made now
} step_open;

enum { STEP_SPARSE_ROWS = 32, STEP_NOTES_MOST = 1 << 20, STEP_ENDED_NOTES = 64 };

/* A head whose vector is a part of each row's embedding (docs/reform.md). Its number is among the
 * query heads of the model for EMBED_Q, otherwise among its KV heads. */
typedef enum embed_kind { EMBED_Q, EMBED_K, EMBED_V, EMBED_KINDS } embed_kind;
typedef struct embed_head {
    uint32_t layer;
    embed_kind kind;
    uint32_t head;
} embed_head;

/* The most heads of a share, and the most bytes of a step's embeddings. */
enum { EMBED_HEADS_MOST = 4096, EMBED_BYTES_MOST = 256 << 20 };

/* The pooled vector that a share gives of its rows' hidden states behind the final norm. */
typedef enum step_pooling {
    POOLING_NONE,
    POOLING_LAST, // the last row's
    POOLING_SUM,  // the sum over the rows
} step_pooling;

/* One sequence's share of a step. Its tokens already have slots: the deltas of this plan appended
 * them. */
typedef struct step_seq {
    uint32_t seq;     // the sequence's number in the tables
    uint64_t request; // of the sequence: the backend hands request and choice back untouched
    uint32_t choice;
    uint32_t first_token;  // tokens[first_token .. + n_tokens)
    uint32_t n_tokens;     // >= 1
    uint32_t position;     // RoPE position of its first token
    uint32_t n_samples;    // draws from the last row's logits: 0 while the prompt goes on, n at its
                           // end. Draw j uses choice + j. A plan has at most step_most_draws
    uint32_t sample_index; // how many tokens the sequence has sampled before: the Philox counter
    bool want_logits;      // result.logits receives every row's logits of this share
    /* 0, or 1 + n: the share's result then has scores, which say how likely the token after each
     * row was and which n tokens were likeliest. At most 1 + SAMPLE_LOGPROBS_MAX. */
    uint32_t want_scores;
    uint32_t next_token; // token after the last row, where scores or measure.novelty ask for it
    /* 0: tokens[] has the share's tokens. Otherwise the step before is in flight, and this is 1 +
     * the index of its share, of the same sequence, whose draw becomes the only token here; the
     * entry in tokens[] is 0 then. If the step before fails, the results of all shares of its
     * sequences are discarded. */
    uint32_t token_from;
    /* How many of the share's last tokens no draw gave and no history had: penalties count them as
     * tokens of the answer before the share's draws. 0 for a share with token_from. */
    uint32_t n_uncounted;
    /* Where rows read by retrieval: kind NONE, or MASS by page of the last row alone, where pages
     * that the row does not read have values below 0. */
    measure_spec measure;
    /* Rows of generated tokens, which lie behind the n_prompt slots that are left of the prompt,
     * read the blocks that `retrieval` says; block_tokens 0: all rows read everything. All tables
     * of such a sequence have equally many slots. At most STEP_SPARSE_ROWS rows of a share read so,
     * and step_most_sparse_rows of a plan, because each has lists of its own. */
    retrieval_spec retrieval;
    uint32_t n_prompt;
    /* The request's number, where retrieval_keeps says that it has one. Under it the backend keeps
     * what later rows of the request's choices read by, on the device or not, until a plan has it
     * among its ended_notes. All that are not ended keep at most backend_info.note_bytes together,
     * as retrieval_kept_bytes counts them. */
    uint32_t note;
    /* The result has an embedding of each row: the vectors of these heads, in this order. They
     * belong to the scheduler, as the plan does. n_embeds 0: none. */
    const embed_head *embeds; // [n_embeds]
    uint32_t n_embeds;
    /* 0, or the rows leave early: only the first n_layers layers are run for them, and K and V of
     * only these layers are written. Tables that have none of these layers need no slots for the
     * rows. Such a share has no samples, logits, scores, novelty, pooling or retrieval, and a
     * measure has zeros for the layers that are not run. It may embed heads of layer n_layers too,
     * because the layer's projections need nothing but the layers before. Rows that leave early and
     * others may be in one plan, in any order. A row that runs a layer reads what the layer's table
     * has: after a share that left early, the layers behind it have gaps, so they are not to be
     * run. */
    uint32_t n_layers;
    uint32_t pooling; // step_pooling; not of rows that leave early
    /* The tokens that its draws may give: bit t % 32 of word t / 32 stands for token t. 0 words:
     * all. Other logits are -inf before anything else, as in vLLM, so that logprobs are those of
     * the tokens that are left, and min_tokens bans nothing. The tokens before a masked draw are
     * known: the share has no token_from. */
    const uint32_t *mask;  // [n_mask_words]
    uint32_t n_mask_words; // 0, or step_mask_words of the backend's vocabulary
} step_seq;

static inline uint32_t step_mask_words(uint32_t vocab_size) { return (vocab_size + 31) / 32; }

typedef struct step_plan {
    uint64_t step; // 1, 2, 3, …
    /* Order: the words are applied, then the moves are made one after the other (copies to and from
     * the host tier are among them), then the step is computed. A step that fails must still have
     * made all moves, because the scheduler counts on the pages they wrote. */
    pkv_deltas deltas;
    const step_open *opens;
    uint32_t n_opens;
    const step_seq *seqs; // may be none: deltas only
    uint32_t n_seqs;
    const uint32_t *tokens;
    uint32_t n_tokens; // sum over seqs
    /* Numbers of requests that are over (step_seq.note): what is kept under them is given up before
     * the step is computed, and they may be those of other requests in this plan. */
    const uint32_t *ended_notes; // [n_ended_notes], at most STEP_ENDED_NOTES
    uint32_t n_ended_notes;
    uint64_t checksum; // of the coordinator's tables after the deltas
} step_plan;

/* The most draws in one plan for a backend of max_seqs sequences: one for each sequence, and those
 * for choices that are forked at a prompt's end, which need no sequence to be drawn. */
static inline uint32_t step_most_draws(uint32_t max_seqs) { return 2 * max_seqs; }

/* The most rows in one plan that read by retrieval: one for each sequence, and a replay's. */
static inline uint32_t step_most_sparse_rows(uint32_t max_seqs)
{
    return max_seqs + STEP_SPARSE_ROWS;
}

/* A sampled token, or the score of a token that was given. */
typedef struct step_sample {
    uint32_t token;
    float logprob; // log-softmax of the raw logits; NaN when no logprobs were asked for
    uint32_t rank; // 1 = most likely
    uint32_t n_top;
    /* 1: a draw's logits have no softmax, as they are edited: one is NaN, or the largest is not
     * finite. `token` is then any token of the vocabulary. A score has the logprob NaN instead. */
    uint32_t undefined;
    uint32_t top_ids[SAMPLE_LOGPROBS_MAX];
    float top_logprobs[SAMPLE_LOGPROBS_MAX];
} step_sample;

typedef struct step_seq_result {
    const step_sample *samples; // [n_samples]
    uint32_t n_samples;
    measure_result measure;    // values NULL when not asked for
    const float *novelty;      // [n_tokens], for the token after each row; NULL when not asked for
    const step_sample *scores; // [n_tokens], for the token after each row
    const retrieval_reading *readings; // [n_readings], one of each row that reads by retrieval
    uint32_t n_readings;               // 0: they were not counted
    /* f16 [n_tokens, n_embeds, head_dim]; NULL when not asked for. Each vector is the output of the
     * layer's projection, bias included, before norms and RoPE, divided by its L2 norm; one whose
     * norm is 0 is all zeros, and one whose norm is no finite number is all NaN. A rank of several
     * gives the heads of embed_rank alone, in the same order. */
    const uint16_t *embeddings;
    /* [backend_info.hidden]; NULL when not asked for. A sum is taken in double and rounded once.
     * Every rank may give it, the first does. */
    const float *pooled;
} step_seq_result;

/* X(field, metric, help): what a step moved between memory and the disk below it, where the pool is
 * larger than memory. */
#define BACKEND_TIER_COUNTERS(X)                                                                   \
    X(hits, "kv_disk_hits_total", "Pages of K and V that a step used and memory held.")            \
    X(reads, "kv_disk_reads_total", "Pages of K and V read from disk.")                            \
    X(ahead, "kv_disk_reads_ahead_total", "Pages of K and V read before their layer began.")       \
    X(writes, "kv_disk_writes_total", "Pages of K and V written to disk.")                         \
    X(read_bytes, "kv_disk_read_bytes_total", "Bytes of K and V read from disk.")                  \
    X(written_bytes, "kv_disk_written_bytes_total", "Bytes of K and V written to disk.")           \
    X(wait_us, NULL, "Microseconds that steps waited for the disk.")

#define BACKEND_TIER_FIELD(field, metric, help) uint64_t field;
typedef struct backend_tier {
    BACKEND_TIER_COUNTERS(BACKEND_TIER_FIELD)
} backend_tier;
#undef BACKEND_TIER_FIELD

static inline void backend_tier_add(backend_tier *to, const backend_tier *more)
{
#define BACKEND_TIER_ADD(field, metric, help) to->field += more->field;
    BACKEND_TIER_COUNTERS(BACKEND_TIER_ADD)
#undef BACKEND_TIER_ADD
}

/* How a rank of several ended a step that failed. Where none of them ended it alone, all have ended
 * it at the same place, and the group can run the next step. */
typedef enum step_end {
    STEP_ENDED_ALONE, // other ranks may wait for this one: the group is over
    STEP_ENDED_FIRST, // all ranks have ended the step because this one could not go on
    STEP_ENDED_AFTER, // likewise, because another one could not
} step_end;

typedef struct step_result {
    uint64_t step;
    status status;
    step_end end;                // of a step that failed
    const step_seq_result *seqs; // [plan.n_seqs], in the plan's order
    uint32_t n_seqs;
    const float *logits; // [rows that wanted them, vocab], in the plan's order
    uint32_t n_logit_rows;
    uint64_t checksum; // of the backend's mirror: must equal the plan's
    int64_t compute_us;
    int64_t measure_us; // part of compute_us spent on measures, as far as it can be told apart
    int64_t model_us;   // part of it spent on layers and logits, likewise; of ranks the longest
    backend_tier tier;  // also of a step that failed
} step_result;

typedef struct backend_info {
    const char *name;       // "cpu"
    uint32_t vocab_size;    // width of the logits
    uint32_t max_positions; // context limit of the model
    uint32_t max_rows;      // tokens in one plan
    uint32_t max_seqs;
    uint32_t max_logit_rows; // most rows with want_logits or want_scores in a plan; 0 = all
    uint32_t logit_row_cost; // of a row with its logits, in hundredths of a row without; 0 = 100
    uint32_t lacks;          // bits of retention_measures and MEASURES_* that it cannot compute
    uint32_t retrieves;      // bits of retrieval_needs that the backend has; 0 = no retrieval
    bool masks;              // draws follow step_seq.mask
    uint64_t note_bytes;     // most that it keeps for requests beside pages; 0 = without limit
    uint32_t n_heads;        // query heads of the model; 0 = neither embeddings nor early exit
    uint32_t head_dim;       // of a query or KV head, where n_heads is not 0
    uint32_t hidden;         // values of a hidden state; 0 = shares have no pooling
    uint32_t n_pages;
    uint32_t n_host_pages;  // of the host tier, each as large as a pool page; 0 = no host tier
    uint32_t max_in_flight; // 2 = the next step is submitted while one runs; else 1
    pkv_geometry geometry;
    uint64_t identity; // digest of weights and RoPE base: part of the prefix salt
    /* Bytes of K and V of a block, over all KV groups; of a rank of several, those of its own cells
     * and heads. 0 = read_cells and write_cells are not to be called. */
    size_t block_bytes;
    /* Digest of all that they depend on beside tokens, the state of the weights' files and the
     * number of ranks among it. */
    uint64_t block_identity;
    /* Digest of all that K and V of given tokens depend on, the number of ranks among it, equal on
     * every machine that has copies of the same files; 0 where they cannot go to other servers. */
    uint64_t kv_identity;
    /* Digest of what K and V of given tokens depend on but for rounding: equal also on another
     * device, with another instruction set and over another number of ranks. 0 where kv_identity
     * is. */
    uint64_t kv_kind;
} backend_info;

/* Bytes of K and V of a cell, where block_bytes is not 0, of all ranks. */
static inline size_t backend_cell_bytes(const backend_info *info)
{
    return info->block_bytes / pkv_groups(&info->geometry);
}

/* The rank of `ranks` that gives a head's vectors: the first that has the head. n_heads and
 * n_kv_heads are the model's. */
static inline uint32_t embed_rank(uint32_t n_heads, uint32_t n_kv_heads, const embed_head *h,
                                  uint32_t ranks)
{
    return (uint32_t)((uint64_t)h->head * ranks / (h->kind == EMBED_Q ? n_heads : n_kv_heads));
}

/* How many of a share's heads the rank gives; 0 where backends give none. info: of any rank. */
static inline uint32_t embed_heads_of(const backend_info *info, const step_seq *s, uint32_t rank,
                                      uint32_t ranks)
{
    uint32_t n = 0, n_kv_heads = info->geometry.n_kv_heads;
    for (uint32_t i = 0; info->n_heads && i < s->n_embeds; i++)
        n += embed_rank(info->n_heads, n_kv_heads, &s->embeds[i], ranks) == rank;
    return n;
}

/* A rank's slice of each cell: it has the cells of numbers `cells`, and `cell_bytes` bytes of each.
 * A whole cell's bytes are `n_slices` slices one behind the other, of which this is number `place`.
 * Ranks that share a head have equal slices, and the first of them `gives` it. cell_bytes is 0
 * where the rank has no block_bytes, or where KV heads cannot be divided among so many ranks. */
typedef struct backend_slice {
    pkv_cells cells;
    size_t cell_bytes;
    uint32_t place, n_slices;
    bool gives;
} backend_slice;

static inline backend_slice backend_slice_of(const backend_info *info, uint32_t rank,
                                             uint32_t ranks)
{
    const pkv_geometry *g = &info->geometry;
    uint32_t heads = g->n_kv_heads > ranks ? g->n_kv_heads / ranks : 1;
    uint32_t first = (uint32_t)((uint64_t)rank * g->n_kv_heads / ranks);
    uint32_t shares = pkv_shares(g), slices = g->n_kv_heads / heads;
    if (info->block_bytes == 0 || slices % shares != 0 || pkv_groups(g) % shares != 0)
        return (backend_slice){.n_slices = 1};
    return (backend_slice){.cells = pkv_cells_of(g, info->n_pages - 1, first, heads),
                           .cell_bytes = info->block_bytes / (pkv_groups(g) / shares),
                           .place = first / heads % (slices / shares),
                           .n_slices = slices / shares,
                           .gives = (uint64_t)first * ranks / g->n_kv_heads == rank};
}

typedef struct backend_ops {
    const backend_info *(*info)(void *ctx);
    status (*submit)(void *ctx, const step_plan *plan);
    /* Waits for the oldest step in flight. */
    status (*collect)(void *ctx, const step_result **out);
    /* Asks the steps in flight to stop soon. collect then returns STATUS_INTERNAL, and the backend
     * can only be destroyed. Any thread. */
    void (*interrupt)(void *ctx);
    /* Copy K and V of cells [n, backend_cell_bytes] out of the pool, and into it. Cells that are
     * read go to several places, `each` of them to one: cell i to to[i / each], where it is number
     * i % each. Of their slots the first n_slots are copied, and the others are zeros, because they
     * may have tokens of another sequence. A rank of several is called for its own cells alone. Any
     * thread, also while steps run that neither read nor write these cells. False: a rank cannot be
     * reached or memory is out, and what was copied is not to be used. May be NULL. */
    bool (*read_cells)(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                       uint8_t *const *to, uint32_t each);
    bool (*write_cells)(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from);
    /* Waits until steps in flight read nothing any more, also of other ranks. Only destroy comes
     * after it. NULL where collect leaves nothing to wait for. */
    void (*rest)(void *ctx);
    /* After a step that failed for good, others may still be in flight when this is called. No
     * measures are held. Ranks of one process have all rested before. */
    void (*destroy)(void *ctx);
} backend_ops;

typedef struct backend {
    const backend_ops *ops;
    void *ctx;
} backend;

#endif
