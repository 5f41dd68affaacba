/* The packed weights of one rank (private to model/).
 *
 * Loaded tensor by tensor: each is read from its mapping, sliced for (rank, size), packed by the pool, and its
 * mapping let go, so that memory never holds two copies of the model. Column-parallel matrices (qkv,
 * gate_up, head) keep a run of rows of each part, row-parallel ones (o, down) a run of columns. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "kernels/kernels.h"
#include "model/model.h"

typedef struct layer_weights {
    float *attn_norm;    // [hidden]
    kern_matrix qkv;     // [(heads + 2 * kv_heads) * head_dim of this rank, hidden]: q rows, k rows, v rows
    kern_matrix o;       // [hidden, heads * head_dim of this rank]
    float *ffn_norm;     // [hidden]
    kern_matrix gate_up; // [2 * ffn of this rank, hidden]: gate rows, then up rows
    kern_matrix down;    // [hidden, ffn of this rank]
} layer_weights;

typedef struct model_weights {
    kern_matrix embed;   // [vocab, hidden], whole on every rank's row slice; tied: also the head
    kern_matrix head;    // [vocab, hidden]; the same data as embed when tied
    float *norm;         // [hidden]
    layer_weights *layers; // [n_layers]
    void *memory;        // one block that all of the above point into
    size_t bytes;
    uint64_t identity;   // hash of config, names, shapes and samples of the data: the prefix salt
} model_weights;

typedef struct weights_options {
    const char *dir;
    const model_config *config;
    bool dummy;
    uint64_t dummy_seed;
    dtype type;          // wanted; 16-bit stored weights stay as they are under DTYPE_F32 (exact)
    kern_context *kernels;
    int rank, size;      // tensor-parallel slice
} weights_options;

status weights_load(const weights_options *options, model_weights *out, error *err);
void weights_destroy(model_weights *w);

#endif
