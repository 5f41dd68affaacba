/* backend_cpu: the state of a CPU backend (private to model/cpu/). create.c makes it, and
 * backend_cpu.c runs its steps. */
#ifndef MODEL_CPU_BACKEND_CPU_H
#define MODEL_CPU_BACKEND_CPU_H

#include "model/cpu/embeds.h"
#include "model/cpu/forward.h"
#include "model/cpu/pooling.h"
#include "model/cpu/row_order.h"
#include "model/cpu/scores.h"
#include "model/measured.h"
#include "model/sampler_shards.h"

typedef struct backend_cpu {
    model_config config;
    backend_info info;
    backend_facts facts;
    comm *group; /* borrowed */
    thread_pool *pool;
    kern_context *kernels;
    model_weights weights;
    kv_store store;
    pkv_mirror *mirror;
    forward *forward;
    sampler *sampler;
    sampler_shards *shards; /* NULL: one rank */

    _Atomic bool interrupted;
    const step_plan *plan; /* submitted, not yet collected */
    step_result result;
    step_seq_result *seq_results; /* [max_seqs] */
    forward_seq *seqs;            /* [max_seqs] in the order of the pass */
    row_order order;
    step_sample *samples;        /* [step_most_draws] */
    sampler_draw *draws;         /* [step_most_draws] */
    uint32_t *logit_rows;        /* [max_rows + max_seqs] */
    retrieval_reading *readings; /* [max_rows] a row's lies at its index in the step */
    /* Both grow when a plan needs more; steady decoding does not grow them. */
    float *logits;
    size_t logits_capacity; /* floats */
    measured measures;
    embed_room embeddings;
    row_scores scores;
    row_pooling pooling;
    bool gives_scores; /* rank 0, whose scores stand for all ranks */
} backend_cpu;

/* ctx is a backend_cpu; destroy also takes one that is made in part. */
extern const backend_ops backend_cpu_ops;

#endif
