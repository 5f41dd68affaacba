/* Selections of retrieval that read as many blocks as their bound needs (private to model/;
 * paged_kv/retrieval/certify.h), which takes the softmax sums of blocks. */
#ifndef MODEL_CPU_EXAM_H
#define MODEL_CPU_EXAM_H

#include "model/cpu/forward.h"
#include "model/cpu/retrieve_ranks.h"

typedef struct exam exam;

/* q_heads: the query heads of a KV head, those of all ranks that copy it. The ranks are borrowed,
 * as the options' objects. */
status exam_create(const forward_options *options, const retrieve_ranks *ranks, uint32_t q_heads,
                   exam **out);
void exam_destroy(exam *x);

/* Bytes that the scratch takes now. */
size_t exam_scratch_bytes(const exam *x);

/* A row of a step in one layer, whose candidates have QUEST representatives. */
typedef struct exam_row {
    const forward_seq *seq;
    uint32_t index; // of the sequence in the step
    uint32_t layer;
    uint32_t n_slots;  // that it sees
    uint32_t together; // KV heads that share a selection
    const float *q;    // [KV heads of this rank, q_heads, head_dim] after RoPE
    /* [KV heads, q_heads][candidates] QUEST's scores of single query heads: of this rank's KV
     * heads; of the model's where those that select together lie on several ranks. */
    const float *const *bounds;
    uint32_t *blocks; // receives the blocks of list i at i * stride
    uint32_t n_lists; // that this rank's KV heads read by
    uint32_t stride;
} exam_row;

typedef struct exam_list {
    uint32_t n;    // blocks
    double missed; // a bound on the share of the mass that a query head misses
} exam_list;

/* All ranks run the exams of the same rows, where these cross ranks. */
status exam_run(exam *x, const exam_row *row);
/* List i of the row. */
exam_list exam_list_of(const exam *x, uint32_t i);

#endif
