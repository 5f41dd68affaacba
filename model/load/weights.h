/* The packed weights of one rank (private to model/).
 *
 * Weights are loaded tensor by tensor: each is read from its mapping, sliced for (rank, size) and
 * packed by the pool, and its mapping is released, so that memory never holds two copies of the
 * model. Column-parallel matrices (qkv, gate_up, embed, head) keep a run of rows of each part,
 * row-parallel ones (o, down) a run of columns.
 *
 * A vocabulary that the ranks do not divide is padded: every rank has slice.n_tokens rows, and rows
 * past vocab_size are zeros. When logits are gathered by rank, [0, vocab_size) are in place and the
 * tail is to be ignored.
 *
 * With quantisation the layers' matrices are integers as `quant` says (attention's may have bits of
 * their own), and the head's have 8 bits; embeddings, norms, biases and routers stay as they are. A
 * tied head is then a copy of its own. A row-parallel slice must begin and end with whole groups of
 * columns, so that its weights have the bits that the whole matrix would have.
 *
 * With block_floats the matrices that a product reads, embeddings that are the head among them, are
 * block floats (kernels.h) where `type` is bf16, nothing is quantised, and the rank's columns are
 * whole groups. Routers and embeddings that are only looked up stay as they are.
 *
 * With keep_floats, matrices that would be of a 16-bit `type` and are stored as e4m3 (the "fp8" and
 * compressed-tensors schemes) keep their bytes, with f32 scales. A scale must be one for all
 * columns or for runs of columns that 32 divides, which must also divide the columns of a
 * row-parallel slice; other matrices, and those of which a part is stored otherwise, are widened.
 *
 * Element types: a 16-bit `type` rounds every stored value to it. DTYPE_F32 keeps a matrix as it is
 * stored (16-bit values are exact in f32 arithmetic), and converts to f32 a matrix whose parts are
 * stored in different types. Integers and block floats are made of the values as they are stored,
 * without rounding to `type` first. */
#ifndef MODEL_LOAD_WEIGHTS_H
#define MODEL_LOAD_WEIGHTS_H

#include "kernels/kernels.h"
#include "model/load/tensors.h"

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
    kern_matrix gate_up;                   // a dense layer's, or the shared expert's
    kern_matrix down;
    kern_matrix router;        // [n_experts, hidden], or empty; whole on every rank
    kern_matrix shared_switch; // [1, hidden]: weight of the shared expert; or empty
    ffn_weights *experts;      // [n_experts], each a slice of its own ffn; NULL when dense
} layer_weights;

typedef struct model_weights {
    kern_matrix embed;     // [slice.n_tokens, hidden]: the rows of tokens from slice.first_token on
    kern_matrix head;      // the same rows of the head; the same data as embed when tied,
                           // unless quantised
    float *norm;           // [hidden]
    float embed_scale;     // an embedding is its row times this
    layer_weights *layers; // [n_layers]
    ffn_weights *experts;  // [n_layers, n_experts]
    tensor_slice slice;    // the part that this rank holds
    void *memory;          // one block that all of the above point into
    size_t bytes;
    uint64_t identity; // hash of config, names, shapes and samples of the data, the same on every
                       // rank: the prefix salt
    uint64_t files;    // hash of the files' place, names, sizes and times before they were read
    bool from_cache;   // the weights came packed from the cache
} model_weights;

typedef struct weights_options {
    const char *dir;
    const model_config *config;
    bool dummy;
    uint64_t dummy_seed;
    dtype type;       // wanted; 16-bit stored weights stay as they are under DTYPE_F32 (exact)
    kern_quant quant; // bits 0: matrices of `type`
    uint8_t attention_bits;  // 8, 4: for q, k, v and o; 0 = quant.bits
    kern_quant block_floats; // of bf16 matrices that quant leaves; bits 0: they stay as they are
    bool keep_floats;        // what is stored as e4m3 stays that, where it can (below)
    kern_context *kernels;
    int rank, size;        // tensor-parallel slice
    uint32_t ranks_here;   // ranks that share this machine's memory; 0 = all
    const char *cache_dir; // NULL, or the cache of packed weights; unused with dummy
    thread_pool *pool;     // its threads read, check and pack
    void (*log_line)(void *ctx, const char *line); // log line about the cache; may be NULL
    void *log_ctx;
    /* Called on the calling thread with the number of elements packed so far; elements that come
     * from the cache are not counted. May be NULL. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *progress_ctx;
    const _Atomic bool *given_up; // another thread sets it to stop loading; NULL: never
} weights_options;

status weights_load(const weights_options *options, model_weights *out, error *err);

/* Sizes of what weights_load would make, from the files' headers alone (from config alone when
 * dummy). kernels, pool, cache_dir, tell and progress are ignored. */
typedef struct weights_measures {
    uint64_t bytes;    // model_weights.bytes
    uint64_t elements; // elements of all tensors that this rank holds
    uint64_t shapes;   // hash of their names, shapes and types
    tensor_slice slice;
} weights_measures;

status weights_measure(const weights_options *options, weights_measures *out, error *err);
/* Calls `use` with the shapes and types that weights_load would give, and passes its error on.
 * Pointers are NULL where weights_load's would be; the memory they point to must not be read. */
status weights_shapes(const weights_options *options,
                      status (*use)(void *ctx, const model_weights *shapes), void *ctx, error *err);
/* Hash of the fields that change K and V for equal tokens and equal tensors. */
uint64_t weights_config_hash(const model_config *config);
void weights_destroy(model_weights *w);

#endif
