/* The state of a CUDA backend, shared by its files (private to model/): create.c makes it, step.c
 * lays out a step and its measures, model/backend_cuda.c runs it. */
#ifndef MODEL_CUDA_BACKEND_H
#define MODEL_CUDA_BACKEND_H

#include "model/cuda/cuda.h"
#include "model/sampler.h"
#include "model/tensors.h"

/* Of a step's moves. */
typedef struct cuda_moves {
    uint32_t *last;      /* [n_pages] 1 + the last move of the run that touches it */
    gpu_move *run;       /* [capacity] between two copies of pages */
    uint32_t *root, *at; /* [capacity] of the run's: the first of a chain, and which chain */
    uint32_t *chains;    /* [capacity + 1] of each run, how many */
    size_t capacity;
    const gpu_move *d_moves; /* on the device */
    const gpu_chain *d_chains;
    const float *d_turns;
} cuda_moves;

typedef struct cuda_graphs cuda_graphs;

/* A step between submit and collect, and its result. */
typedef struct cuda_flight {
    const step_plan *plan;
    bool started;  /* at submit, whole: only its draws are awaited */
    bool ahead;    /* its tokens are those that the step before draws */
    status status; /* of what submit has done */
    cuda_batch batch;
    int64_t start_us;
    step_result result;
    step_seq_result *seq_results; /* [max_seqs] */
    step_sample *samples;         /* [step_most_draws] */
    sampler_draw *draws;          /* [step_most_draws] */
    uint32_t n_draws;
    bool largest;            /* drawn and host have tokens alone: the largest logits' */
    gpu_drawn *drawn, *host; /* [step_most_draws] on the device, and pinned */
} cuda_flight;

enum { CUDA_FLIGHTS = 2 };

typedef struct backend_cuda {
    model_config config;
    model_config local; /* heads and ffn are this rank's */
    tensor_slice slice;
    backend_info info;
    backend_cpu_facts facts;
    cuda_device device;
    bool invariant; /* a sequence is computed the same way in every batch */
    thread_pool *pool;
    cuda_weights weights;
    gpu_pages pages;
    uint64_t pool_bytes, weight_bytes;
    uint8_t *host; /* [n_host_pages] of page_bytes, pinned: the tier of swapped sequences */
    pkv_mirror *mirror;
    cuda_tables tables;
    cuda_forward *forward;
    cuda_graphs *graphs;
    sampler *sampler;
    bool *is_greedy; /* [max_seqs]: the largest logit is all that it wants */

    _Atomic bool interrupted;
    cuda_flight flights[CUDA_FLIGHTS];
    uint32_t first, n_in_flight; /* flights[first] is the oldest */
    int64_t collected_us;        /* when the last one was */
    /* Of the step that is laid out: its flight, its plan and results there. */
    cuda_flight *flight;
    const step_plan *plan;
    step_seq_result *seq_results;
    gpu_seq *seqs;        /* [max_seqs] beside the device's */
    uint32_t *logit_rows; /* [max_rows + max_seqs] */
    cuda_moves moves;
    cuda_pack step;     /* what goes in */
    cuda_pack measures; /* what comes back; the device's half is written by kernels */
    bool is_measuring;  /* this step */
    uint8_t *scratch;   /* of measures */
    size_t scratch_bytes;
    const float *turns;  /* on the device: [head_dim] of each of the step's EXPECTED, in order */
    bool has_sums;       /* a plan has asked for running sums: until then all are 0 */
    float *host_sums;    /* of the host tier's pages, pinned */
    step_sample *scores; /* of the last step that was asked for some, and what it measured: */
    float *novelty;
    size_t scores_capacity, novelty_capacity;
    float *draw_scratch; /* [CUDA_LOGIT_ROWS, vocab] on the device */
    cuda_pack logits;    /* rows, tokens: the host's half alone is read */
} backend_cuda;

/* ---- create.c -------------------------------------------------------------------------------- */

/* The parts of a backend on its device, in this order. options.common.group says which rank of how
 * many; b->device.group is who is asked, or NULL. */
typedef status cuda_load(backend_cuda *b, const backend_cpu_options *o, error *err);
status cuda_make_parts(backend_cuda *b, const backend_cuda_options *options, cuda_load *load,
                       error *err);
/* Pages, of which the host may have some too. */
status cuda_make_pages(backend_cuda *b, const backend_cpu_options *o, error *err);
/* Of running sums, beside a page. */
size_t cuda_sums_of_page(const backend_cuda *b);
weights_options cuda_wanted_weights(const backend_cuda *b, const backend_cpu_options *o);
/* The weights as they are in the host's memory, or their shapes alone. */
status cuda_send_weights(backend_cuda *b, const model_weights *w, error *err);

/* ---- step.c ---------------------------------------------------------------------------------- */

/* seq_results are cleared, and their measures have their place; is_measuring is set. */
status cuda_lay_out_measures(backend_cuda *b, const step_plan *plan);
/* cuda_batch.measure; ctx is the backend, whose plan and seqs are the step's. */
status cuda_measure_layer(void *ctx, uint32_t layer, gpu_measure *m);
/* Everything that the step reads goes in one copy; tables and pages are brought up to date. Rows
 * only if it `computes`. */
status cuda_send(backend_cuda *b, const step_plan *plan, bool computes, cuda_batch *batch);

/* ---- sums.c ---------------------------------------------------------------------------------- */

/* Room for running sums beside the pool and the host tier, which are there. */
status cuda_sums_create(backend_cuda *b);
void cuda_sums_destroy(backend_cuda *b);
/* A copy of a page takes them along. */
status cuda_sums_copy(backend_cuda *b, const pkv_move *m);

/* ---- scores.c -------------------------------------------------------------------------------- */

/* Sets the results' scores and novelty; valid until the next step. After the forward pass. */
status cuda_scores(backend_cuda *b, const step_plan *plan);

/* ---- graphs.c -------------------------------------------------------------------------------- */

status cuda_graphs_create(cuda_device *d, cuda_graphs **out);
void cuda_graphs_destroy(cuda_graphs *all);
/* n or somewhat more, of few numbers: between powers of two there are so many, or twice that. */
enum { CUDA_SHAPE_STEPS = 4 };
uint32_t cuda_graphs_round(uint32_t n, uint32_t steps);
/* cuda_forward_run, by a graph where the batch repeats and its shape has been seen. */
status cuda_graphs_run(cuda_graphs *all, cuda_forward *f, const cuda_batch *batch,
                       const _Atomic bool *interrupted);

/* ---- draws.c --------------------------------------------------------------------------------- */

/* The draws that the flight lists, from the rows of logits that b->logit_rows [n_rows] lists: each
 * row has those of one sequence, in the order of both. They are on their way to the flight's host
 * memory: nothing is waited for. */
status cuda_draw(backend_cuda *b, uint32_t n_rows);
/* Only the largest of each row. */
status cuda_draw_largest(backend_cuda *b, uint32_t n_rows);
/* They have been waited for: results and histories have them. */
void cuda_drawn(backend_cuda *b, cuda_flight *f);
/* Where the draws of the step before are. */
gpu_before cuda_before(const backend_cuda *b);

/* ---- moves.c --------------------------------------------------------------------------------- */

size_t cuda_moves_bytes(const backend_cuda *b, const pkv_deltas *d); /* in the step's pack */
status cuda_moves_pack(backend_cuda *b, const pkv_deltas *d);
/* In their order, after the pack was sent. */
status cuda_moves_apply(backend_cuda *b, const pkv_deltas *d);
void cuda_moves_destroy(cuda_moves *m);

/* ---- backend_cuda.c -------------------------------------------------------------------------- */

/* Rows of logits from what each rank has of them; a vocabulary that the ranks do not divide leaves
 * a tail, which is no logits. */
status cuda_join_logits(backend_cuda *b, const float *part, uint32_t n, float *out);

extern const backend_ops cuda_ops;

#endif
