/* Model families (private to model/): how a family's config.json differs and what its tensors are
 * called. families/NAME.c defines the rows of one or more families and lists them, with NULL behind
 * the last one, in model_families_NAME. The build finds the file by its name. */
#ifndef MODEL_FAMILY_H
#define MODEL_FAMILY_H

#include "model/model.h"

/* Which matrix a tensor is. It decides where the rows go and how ranks slice them. */
typedef enum tensor_role {
    TENSOR_EMBED,
    TENSOR_HEAD,
    TENSOR_NORM,
    TENSOR_ATTN_NORM, /* this role and the following are per layer */
    TENSOR_Q,
    TENSOR_K,
    TENSOR_V,
    TENSOR_Q_BIAS,
    TENSOR_K_BIAS,
    TENSOR_V_BIAS,
    TENSOR_Q_NORM,
    TENSOR_K_NORM,
    TENSOR_O,
    TENSOR_ATTN_POST_NORM,
    TENSOR_FFN_NORM,
    TENSOR_GATE,
    TENSOR_UP,
    TENSOR_DOWN,
    TENSOR_FFN_POST_NORM,
    TENSOR_ROUTER,
    TENSOR_SHARED_GATE, /* the shared expert, which every row uses */
    TENSOR_SHARED_UP,
    TENSOR_SHARED_DOWN,
    TENSOR_SHARED_SWITCH, /* gives a row's logit of the shared expert's weight */
    TENSOR_EXPERT_GATE,   /* this role and the following are per expert */
    TENSOR_EXPERT_UP,
    TENSOR_EXPERT_DOWN,
    TENSOR_ROLES
} tensor_role;

/* How the rows of q, k and v lie in their tensors. */
typedef enum qkv_layout {
    QKV_SEPARATE,
    QKV_STACKED, /* one tensor: all q, all k, all v */
    QKV_GROUPED, /* one tensor: for each KV head its query heads, its k, its v */
} qkv_layout;

enum { FAMILY_KEYS_MAX = 4 };

typedef struct model_family {
    const char *architecture; // config.json's architectures[0]
    /* Reads the family's own fields of config.json after the common ones; NULL = it has none. */
    status (*read_config)(const json_t *json, const char *where, model_config *c, error *err);
    /* Keys that config.json must have, because transformers' default is one model's number. */
    const char *needs[FAMILY_KEYS_MAX];
    /* Keys that the family's reader knows, and that are refused in other families. */
    const char *knows[FAMILY_KEYS_MAX];
    const char *activation; // "hidden_act" must have this value; NULL = "silu"
    bool gelu;              // the gate goes through GELU (by tanh), not SiLU
    bool norms_from_one;    // norms are stored minus 1
    bool post_norms;        // attention's and feed-forward's outputs are normed, then added
    bool scaled_embeddings; // embeddings are scaled by the root of hidden
    bool tied;              // "tie_word_embeddings" where config.json lacks it
    double theta;           // RoPE's where config.json lacks it; 0 = 10000
    double local_theta;     // RoPE's in layers with a window; 0 = the same
    qkv_layout qkv;         // names[Q], [K] and [V] are the same unless separate
    bool gate_up_stacked;   // one tensor: gate rows, then up rows
    const char *names[TENSOR_ROLES]; // printf patterns: the first %u is the layer, the next the
                                     // expert
} model_family;

/* Names that families share with Llama: embeddings, norms, separate q, k and v, and o. */
#define LLAMA_NAMES                                                                                \
    [TENSOR_EMBED] = "model.embed_tokens.weight", [TENSOR_HEAD] = "lm_head.weight",                \
    [TENSOR_NORM] = "model.norm.weight",                                                           \
    [TENSOR_ATTN_NORM] = "model.layers.%u.input_layernorm.weight",                                 \
    [TENSOR_FFN_NORM] = "model.layers.%u.post_attention_layernorm.weight",                         \
    [TENSOR_O] = "model.layers.%u.self_attn.o_proj.weight"
#define LLAMA_QKV_NAMES                                                                            \
    [TENSOR_Q] = "model.layers.%u.self_attn.q_proj.weight",                                        \
    [TENSOR_K] = "model.layers.%u.self_attn.k_proj.weight",                                        \
    [TENSOR_V] = "model.layers.%u.self_attn.v_proj.weight"
#define HEAD_NORM_NAMES                                                                            \
    [TENSOR_Q_NORM] = "model.layers.%u.self_attn.q_norm.weight",                                   \
    [TENSOR_K_NORM] = "model.layers.%u.self_attn.k_norm.weight"
#define LLAMA_FFN_NAMES                                                                            \
    [TENSOR_GATE] = "model.layers.%u.mlp.gate_proj.weight",                                        \
    [TENSOR_UP] = "model.layers.%u.mlp.up_proj.weight",                                            \
    [TENSOR_DOWN] = "model.layers.%u.mlp.down_proj.weight"

/* ---- readers that families share (config_family.c) ------------------------------------------- */

/* Refuses true for any of the keys, a list that ends with NULL. */
status family_refuse_true(const json_t *json, const char *where, const char *const *keys,
                          error *err);
/* Reads "sliding_window" as all layers' window. A missing key means `fallback`, null no window. */
status family_read_window(const json_t *json, const char *where, uint32_t fallback, model_config *c,
                          error *err);
/* Reads "sliding_window" as Qwen has it: it counts only with "use_sliding_window". With `by_layer`
 * it is the window of the layers that "layer_types" or "max_window_layers" name. */
status family_read_optional_window(const json_t *json, const char *where, bool by_layer,
                                   model_config *c, error *err);
/* Reads the numbers of experts. The count stands under "num_experts" or "num_local_experts";
 * count_key is the key that the error asks for where neither is there. */
status family_read_experts(const json_t *json, const char *where, const char *count_key,
                           const char *ffn_key, model_config *c, error *err);
/* Reads the width of the shared expert, which every row uses. */
status family_read_shared_expert(const json_t *json, const char *where, const char *ffn_key,
                                 model_config *c, error *err);

/* The i-th family, or NULL from model_family_count on. */
const model_family *model_family_at(size_t i);

#endif
