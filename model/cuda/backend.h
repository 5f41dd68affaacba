/* The state of a CUDA backend, shared by its files (private to model/): create.c makes it, step.c
 * lays out a step and its measures, model/backend_cuda.c runs it. */
#ifndef MODEL_CUDA_BACKEND_H
#define MODEL_CUDA_BACKEND_H

#include "model/cuda/cuda.h"
#include "model/sampler.h"

typedef struct backend_cuda {
    model_config config;
    backend_info info;
    backend_cpu_facts facts;
    cuda_device device;
    thread_pool *pool;
    cuda_weights weights;
    gpu_pages pages;
    uint64_t pool_bytes, weight_bytes;
    uint8_t *host; /* [n_host_pages] of page_bytes, pinned: the tier of swapped sequences */
    pkv_mirror *mirror;
    cuda_tables tables;
    cuda_forward *forward;
    sampler *sampler;
    bool *is_greedy; /* [max_seqs]: the largest logit is all that it wants */

    _Atomic bool interrupted;
    const step_plan *plan; /* submitted, not yet collected */
    step_result result;
    step_seq_result *seq_results; /* [max_seqs] */
    gpu_seq *seqs;                /* [max_seqs] of the step, beside the device's */
    step_sample *samples;         /* [max_seqs] */
    sampler_draw *draws;          /* [max_seqs] */
    uint32_t *logit_rows;         /* [max_rows + max_seqs] */
    gpu_move *moves;
    size_t moves_capacity;
    cuda_pack step;     /* what goes in */
    cuda_pack measures; /* what comes back; the device's half is written by kernels */
    cuda_pack slots;    /* scratch of measures by page */
    cuda_pack logits;   /* rows, tokens: the host's half alone is read */
} backend_cuda;

/* ---- step.c -----------------------------------------------------------------------------------
 */

/* STATUS_UNSUPPORTED names the measure that has no kernel. */
status cuda_refuse_measure(const measure_spec *s);
/* seq_results are cleared, and their measures have their place: measures.size bytes. */
status cuda_lay_out_measures(backend_cuda *b, const step_plan *plan);
/* cuda_batch.measure; ctx is the backend, whose plan and seqs are the step's. */
status cuda_measure_layer(void *ctx, uint32_t layer, gpu_measure *m);
/* Everything that the step reads goes in one copy; tables and pages are brought up to date. Rows
 * only if it `computes`. */
status cuda_send(backend_cuda *b, const step_plan *plan, bool computes, cuda_batch *batch);

/* ---- backend_cuda.c ---------------------------------------------------------------------------
 */

extern const backend_ops cuda_ops;

#endif
