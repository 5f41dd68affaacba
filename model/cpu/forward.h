/* The forward pass over a ragged batch (private to model/).
 *
 * Rows are the new tokens of all scheduled sequences, one after the other. Every projection is one
 * product over all rows; attention reads the mirror's page tables; new K and V go straight to their
 * pages. */
#ifndef MODEL_CPU_FORWARD_H
#define MODEL_CPU_FORWARD_H

#include "backend/backend.h"
#include "comm/comm.h"
#include "model/cpu/kv_store.h"
#include "model/load/weights.h"
#include "model/model.h"
#include "paged_kv/retention/retention.h"
#include "paged_kv/retrieval/reading.h"

#include <math.h>

/* One sequence's rows. The last n_rows slots of its table in every group are theirs already. */
typedef struct forward_seq {
    uint32_t seq; // number in the mirror
    uint32_t first_row;
    uint32_t n_rows;
    uint32_t position;    // RoPE position of the first row
    measure_spec measure; // at most n_rows rows
    uint32_t stride;      // pages or slots of its longest table
    float *values;        // [kinds, measured layers, kv heads of this rank, stride], or NULL
    retrieval_spec retrieval;
    uint32_t dense_rows;   // the first rows, which read everything; the others go by `retrieval`
    uint32_t n_prompt;     // slots before those of generated tokens
    uint32_t note, choice; // what is kept of it between steps (retrieve_notes.h)
    retrieval_reading *readings; // [n_rows - dense_rows] set by the pass, where there is retrieval
    const embed_head *embeds;    // [n_embeds]
    uint32_t n_embeds;
    uint16_t *embeddings; // f16 [n_rows, heads of `embeds` that this rank gives, head_dim]
    uint32_t n_layers;    // layers that its rows run; 0 = all
} forward_seq;

/* The factor by which attention multiplies scores. */
static inline float forward_scale(uint32_t head_dim) { return 1.0f / sqrtf((float)head_dim); }

typedef struct forward_options {
    const model_config *config;
    const model_weights *weights;
    kern_context *kernels;
    thread_pool *pool;
    comm *group;
    kv_store *store;
    const pkv_mirror *mirror;
    uint32_t max_rows;
    uint32_t max_seqs;
    uint64_t note_bytes; // most that retrieval keeps for requests (backend_info); 0 = without limit
    const _Atomic bool *interrupted; // set by another thread: the pass ends with STATUS_INTERNAL
    /* Called in each layer once q and k are rotated, with qkv [n_rows, this rank's q, k and v]; may
     * be NULL. The probe (model/probe.h) sets it, a backend's own pass does not. */
    void (*watch)(void *ctx, uint32_t layer, uint32_t n_rows, const float *qkv);
    void *watch_ctx;
} forward_options;

typedef struct forward forward;

/* Bytes of the activations of max_rows rows, as forward_create allocates them. head_rows are the
 * rows of this rank's head. */
size_t forward_bytes(const model_config *c, const tensor_slice *slice, size_t head_rows,
                     uint32_t max_rows, uint32_t ranks);
status forward_create(const forward_options *options, forward **out);
void forward_destroy(forward *f);
/* Gives up what retrieval keeps for requests that are over (step_plan.ended_notes). */
void forward_end_notes(forward *f, const uint32_t *notes, uint32_t n);

/* Runs the layers over tokens [n_rows]. Sequences that leave early come last, those of fewer layers
 * behind those of more (row_order.h). */
status forward_run(forward *f, const uint32_t *tokens, uint32_t n_rows, const forward_seq *seqs,
                   uint32_t n_seqs);
/* Microseconds that the last run spent on measures; the mass of pages is not counted. */
int64_t forward_measure_us(const forward *f);
/* Time that all runs spent on attention, and on selections alone. */
backend_times forward_times(const forward *f);
/* The last hidden states [.., hidden] of the last run's rows from this one on, behind the final
 * norm. Valid until the next run, of rows that did not leave early. */
const float *forward_states(const forward *f, uint32_t row);
/* Computes logits [n, vocab_size] of the named rows of the last run. n may exceed max_seqs. */
status forward_logits(forward *f, const uint32_t *rows, uint32_t n, float *logits);
/* Computes this rank's logits of the named rows: [n, slice]. The slices of all ranks, joined, are
 * the vocabulary and what pads it. */
status forward_own_logits(forward *f, const uint32_t *rows, uint32_t n, float *logits);

/* Gives the config, weights, store and group of a CPU backend that runs the whole model alone, so
 * that a second pass can use the same weights. False for every other backend. */
bool backend_cpu_pass(const backend *of, forward_options *out);

#endif
