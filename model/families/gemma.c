/* Gemma 3 for text: head norms, norms behind each block, GELU, and a window in most layers, which
 * have RoPE of their own (transformers, models/gemma3). Gemma 2 is missing because its attention
 * caps scores, which the attention kernels do not. */
#include "model/config.h"
#include "model/family.h"

#include <math.h>
#include <string.h>

enum { WINDOW = 4096, LAYERS_TO_A_FULL_ONE = 6 };

/* Layers with a window are those that "layer_types" names, or else all but every n-th. */
static status read_windows(const json_t *json, const char *where, model_config *c, error *err)
{
    const json_t *types = json_object_get(json, "layer_types");
    int64_t step;
    RETURN_IF_ERROR(json_get_int(json, where, "sliding_window_pattern", 1, MODEL_LAYERS_MAX,
                                 LAYERS_TO_A_FULL_ONE, &step, err));
    RETURN_IF_ERROR(family_read_window(json, where, WINDOW, c, err));
    /* Retention rotates and measures keys by `rope` alone, so layers with local RoPE keep a window
     * even where no sequence outgrows it: the window marks them. */
    if (c->window == 0) c->window = model_max_length(c);
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        bool local = type ? strcmp(type, "sliding_attention") == 0 : (l + 1) % (uint32_t)step != 0;
        c->layers[l] = local ? LAYER_WINDOW | LAYER_LOCAL : 0;
    }
    return STATUS_IS_OK;
}

static status read_gemma3(const json_t *json, const char *where, model_config *c, error *err)
{
    static const char *const biases[] = {"attention_bias", NULL};
    const double usual = 256.0;
    double scalar;
    c->qk_norm = true;
    RETURN_IF_ERROR(family_refuse_true(json, where, biases, err));
    RETURN_IF_ERROR(
        json_get_double(json, where, "query_pre_attn_scalar", 1e-3, 1e6, usual, &scalar, err));
    c->query_factor = (float)sqrt(c->head_dim / scalar);
    return read_windows(json, where, c, err);
}

static const model_family gemma3 = {
    .architecture = "Gemma3ForCausalLM",
    .read_config = read_gemma3,
    .needs = {"num_key_value_heads", "head_dim"},
    .knows = {"query_pre_attn_scalar", "rope_local_base_freq"},
    .activation = "gelu_pytorch_tanh",
    .gelu = true,
    .norms_from_one = true,
    .post_norms = true,
    .scaled_embeddings = true,
    .tied = true,
    .theta = 1e6,
    .local_theta = 1e4,
    .names =
        {
            [TENSOR_EMBED] = "model.embed_tokens.weight",
            [TENSOR_HEAD] = "lm_head.weight",
            [TENSOR_NORM] = "model.norm.weight",
            [TENSOR_ATTN_NORM] = "model.layers.%u.input_layernorm.weight",
            [TENSOR_O] = "model.layers.%u.self_attn.o_proj.weight",
            LLAMA_QKV_NAMES,
            LLAMA_FFN_NAMES,
            HEAD_NORM_NAMES,
            [TENSOR_ATTN_POST_NORM] = "model.layers.%u.post_attention_layernorm.weight",
            [TENSOR_FFN_NORM] = "model.layers.%u.pre_feedforward_layernorm.weight",
            [TENSOR_FFN_POST_NORM] = "model.layers.%u.post_feedforward_layernorm.weight",
        },
};

const model_family *const model_families_gemma[] = {&gemma3, NULL};
