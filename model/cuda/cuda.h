/* The CUDA backend's parts (private to model/): all of them call one gpu through the plugin's table
 * (kernels/cuda/cuda_kernels.h), which tests replace.
 *
 * Threads  as the backend: one.
 * Errors   a gpu_status becomes a status of a fixed text; gpu->why goes to stderr once, by the
 *          backend. A lost device is STATUS_INTERNAL: the backend can only be destroyed. */
#ifndef MODEL_CUDA_CUDA_H
#define MODEL_CUDA_CUDA_H

#include "kernels/cuda/cuda_kernels.h"
#include "model/model.h"
#include "model/weights.h"
#include "paged_kv/paged_kv.h"

/* Bytes that go to the device in one copy: laid out in pinned memory, at the same places there. */
typedef struct cuda_pack {
    uint8_t *host, *device;
    size_t size, capacity;
    /* Of a step that may be behind one in flight: each begins in the other of two such memories,
     * for the first may not have been copied yet. */
    bool in_turns;
    uint8_t *other;
} cuda_pack;

typedef struct cuda_device {
    const gpu_api *api;
    gpu *g;
    bool borrowed; /* g is closed by somebody else */
    gpu_facts facts;
    uint64_t allocated; /* bytes on the device */
    comm *group;        /* borrowed; NULL as long as there is nobody to meet */
    cuda_pack stage;    /* of what ranks exchange */
} cuda_device;

status cuda_status(gpu_status s);
#define RETURN_IF_GPU_ERROR(expr)                                                                  \
    do {                                                                                           \
        gpu_status gpu_status_ = (expr);                                                           \
        if (gpu_status_ != GPU_OK) return cuda_status(gpu_status_);                                \
    } while (0)

status cuda_alloc(cuda_device *d, size_t bytes, void *out); /* out: any pointer's address */

/* ---- ranks.c --------------------------------------------------------------------------------- */

/* For the stream, and that the group is well. */
status cuda_wait(cuda_device *d);
/* x [n] on the device becomes the sum over all ranks. */
status cuda_sum(cuda_device *d, float *x, size_t n);
/* *all [ranks, n], on the host until the next of these calls. Waits. */
status cuda_gather(cuda_device *d, const float *x, size_t n, const float **all);
/* The smallest of all ranks' numbers. Waits. */
status cuda_smallest(cuda_device *d, uint32_t *n);

/* ---- weights --------------------------------------------------------------------------------- */

typedef struct cuda_layer {
    float *attn_norm, *qkv_bias, *q_norm, *k_norm, *ffn_norm, *attn_post_norm, *ffn_post_norm;
    gpu_matrix qkv, o, gate_up, down;
    /* Of a sparse layer, whose gate_up and down are those of the expert of all rows, if any. */
    gpu_matrix router, shared_switch;
    gpu_matrix experts_up, experts_down; /* the first expert's; the others follow */
} cuda_layer;

typedef struct cuda_weights {
    gpu_matrix embed, head;
    float *norm;
    float embed_scale;
    cuda_layer *layers;
    uint32_t n_layers;
    size_t scratch; /* bytes of the largest product's */
    void **blocks;  /* everything on the device */
    size_t n_blocks;
} cuda_weights;

/* Copies what was packed for the CPU, row by row on the device. w may be destroyed afterwards. */
status cuda_weights_load(cuda_device *d, const model_weights *w, const model_config *c,
                         cuda_weights *out, error *err);
void cuda_weights_destroy(cuda_device *d, cuda_weights *w);

/* ---- a step's arrays ------------------------------------------------------------------------- */

/* Room for so many bytes, nothing in it. */
status cuda_pack_begin(cuda_device *d, cuda_pack *p, size_t bytes);
/* Takes `bytes` of it; *device is where they will be. */
void *cuda_pack_take(cuda_pack *p, size_t bytes, void *device);
status cuda_pack_send(cuda_device *d, cuda_pack *p);
void cuda_pack_destroy(cuda_device *d, cuda_pack *p);

/* ---- tables ---------------------------------------------------------------------------------- */

/* The tables on the device, and of each how many of its first pages are there. */
typedef struct cuda_tables {
    gpu_tables device;
    pkv_geometry geometry;
    uint32_t max_seqs; /* behind them is a table of page 0, which nobody has: of rows that pad */
    uint32_t *sent;    /* [max_seqs, groups] */
    uint8_t *touched;  /* [max_seqs] by this step's words */
    gpu_patch *patches;
    uint32_t *values;
    size_t n_patches, n_values, patches_capacity, values_capacity;
} cuda_tables;

status cuda_tables_create(cuda_device *d, const pkv_geometry *geometry, uint32_t max_seqs,
                          uint32_t row, cuda_tables *out);
void cuda_tables_destroy(cuda_device *d, cuda_tables *t);
/* What the words, which the mirror has applied, change on the device: patches and values. */
status cuda_tables_update(cuda_tables *t, const pkv_mirror *mirror, const uint32_t *words,
                          size_t n_words);

/* ---- the forward pass ------------------------------------------------------------------------ */

typedef struct cuda_forward_options {
    cuda_device *device;
    const model_config *config; /* heads and ffn are this rank's */
    const cuda_weights *weights;
    const gpu_pages *pages; /* borrowed: may get their place later */
    pkv_geometry geometry;
    uint32_t first_kv_head; /* of the model's: config has this rank's heads */
    uint32_t max_rows, max_seqs;
} cuda_forward_options;

/* One step's rows, its arrays on the device. */
typedef struct cuda_batch {
    uint32_t n_rows, n_seqs, n_decode, n_prefill, part_slots; /* those that pad included */
    const uint32_t *tokens, *positions, *row_seqs, *lengths;
    const uint32_t *draws; /* of each row: 0, or 1 + the draw before that is its token */
    const gpu_seq *seqs;
    const gpu_tile *decode, *prefill;
    gpu_tables tables;
    bool repeats;   /* rows and tiles are those of many steps: cuda_graphs_run */
    bool wants_lse; /* something is measured */
    /* Called after a layer's attention, where something is measured. */
    status (*measure)(void *ctx, uint32_t layer, gpu_measure *m);
    void *ctx;
} cuda_batch;

typedef struct cuda_forward cuda_forward;

status cuda_forward_create(const cuda_forward_options *options, cuda_forward **out);
void cuda_forward_destroy(cuda_forward *f);
/* The most decode tiles of a step, and how long a tile's part is when tables hold so many slots. */
uint32_t cuda_forward_tiles(const cuda_forward *f);
uint32_t cuda_forward_part(const cuda_forward *f, uint64_t slots, uint32_t longest);
status cuda_forward_run(cuda_forward *f, const cuda_batch *b, const _Atomic bool *interrupted);
/* logits [n, rows of the head] of rows [n] of the last run, on the device; n <= CUDA_LOGIT_ROWS. */
enum { CUDA_LOGIT_ROWS = 64 };
status cuda_forward_logits(cuda_forward *f, const uint32_t *rows, uint32_t n, float **logits);

#endif
