/* The packed weights of one rank (private to model/).
 *
 * Loaded tensor by tensor: each is read from its mapping, sliced for (rank, size), packed by the
 * pool, and its mapping let go, so that memory never holds two copies of the model. Column-parallel
 * matrices (qkv, gate_up, embed, head) keep a run of rows of each part, row-parallel ones (o, down)
 * a run of columns.
 *
 * A vocabulary that the ranks do not divide is padded: every rank has slice.n_tokens rows, those
 * past vocab_size are zeros. Gathered by rank, logits [0, vocab_size) are in place and the tail is
 * to be ignored.
 *
 * Quantised, the layers' matrices are integers as `quant` says (those of attention of bits of their
 * own where asked for), and the head's of 8 bits; embeddings, norms, biases and routers stay as
 * they are. A tied head is then a copy of its own. A row-parallel slice must begin and end with
 * groups of columns: its weights are the bits that the whole would have.
 *
 * Element types: 16-bit `type` rounds whatever is stored to it; DTYPE_F32 keeps a matrix as it is
 * stored (16-bit values are exact in f32 arithmetic), and makes f32 of one whose parts are stored
 * differently. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "kernels/kernels.h"
#include "model/tensors.h"

typedef struct ffn_weights {
    kern_matrix gate_up; // [2 * ffn of this rank, hidden]: gate rows, then up rows
    kern_matrix down;    // [hidden, ffn of this rank]
} ffn_weights;

typedef struct layer_weights {
    float *attn_norm;       // [hidden]
    kern_matrix qkv;        // [(heads + 2 * kv_heads) * head_dim, hidden]: this rank's q, k and v
    float *qkv_bias;        // [rows of qkv], or NULL
    float *q_norm, *k_norm; // [head_dim], or NULL
    kern_matrix o;          // [hidden, heads * head_dim of this rank]
    float *ffn_norm;        // [hidden]
    float *attn_post_norm, *ffn_post_norm; // [hidden], or NULL
    kern_matrix gate_up; // those of a dense layer's ffn_weights, or of the expert of every row
    kern_matrix down;
    kern_matrix router;        // [n_experts, hidden] of a sparse one, whole on every rank
    kern_matrix shared_switch; // [1, hidden]: how much of the expert that every row has; or empty
    ffn_weights *experts;      // [n_experts], each a slice of its own ffn; NULL when dense
} layer_weights;

typedef struct model_weights {
    kern_matrix embed;     // [slice.n_tokens, hidden]: the rows of tokens from slice.first_token on
    kern_matrix head;      // the same rows of the head; the same data as embed when tied,
                           // unless quantised
    float *norm;           // [hidden]
    float embed_scale;     // embeddings are so many times their row
    layer_weights *layers; // [n_layers]
    ffn_weights *experts;  // [n_layers, n_experts]
    tensor_slice slice;    // what this rank holds; all of it with one rank
    void *memory;          // one block that all of the above point into
    size_t bytes;
    uint64_t identity; // hash of config, names, shapes and samples of the data, the same on every
                       // rank: the prefix salt
    bool from_cache;   // nothing was packed
} model_weights;

typedef struct weights_options {
    const char *dir;
    const model_config *config;
    bool dummy;
    uint64_t dummy_seed;
    dtype type;       // wanted; 16-bit stored weights stay as they are under DTYPE_F32 (exact)
    kern_quant quant; // bits 0: matrices of type
    uint8_t attention_bits; // 8, 4: of q, k, v and o instead of quant.bits; 0 = quant.bits
    kern_context *kernels;
    int rank, size;        // tensor-parallel slice
    uint32_t ranks_here;   // of them share this machine's memory; 0 = all
    const char *cache_dir; // NULL, or the folder that keeps what was packed; not of dummy weights
    thread_pool *pool;     // reads and checks it
    void (*tell)(void *ctx, const char *line); // what happened to the cache; NULL: nobody asks
    void *tell_ctx;
    /* Called on the calling thread with the number of elements that are packed so far; those that
     * come from the cache are not counted. May be NULL. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *progress_ctx;
    const _Atomic bool *given_up; // by another thread; NULL: never
} weights_options;

status weights_load(const weights_options *options, model_weights *out, error *err);

/* What weights_load would take, of the files' headers alone (of config alone when dummy): kernels,
 * pool, cache, tell and progress are not looked at. */
typedef struct weights_measures {
    uint64_t bytes;    // of model_weights
    uint64_t elements; // of all tensors, as far as this rank holds them
    uint64_t shapes;   // hash of their names, shapes and types
    tensor_slice slice;
} weights_measures;

status weights_measure(const weights_options *options, weights_measures *out, error *err);
/* `use` sees what weights_load would give, of the same headers, and its error is passed on: shapes
 * and types, and pointers that are NULL where nothing is. What they point to is not to be read. */
status weights_shapes(const weights_options *options,
                      status (*use)(void *ctx, const model_weights *shapes), void *ctx, error *err);
/* Of what the model is, tensors aside: what changes K and V for equal tokens. */
uint64_t weights_config_hash(const model_config *config);
void weights_destroy(model_weights *w);

#endif
