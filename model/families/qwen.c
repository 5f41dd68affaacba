/* Qwen2, 2.5 and R1-Distill-Qwen are Llama with biases of q, k and v (transformers, models/qwen2).
 * Qwen2-MoE adds experts and a shared expert, which every row uses (models/qwen2_moe). Qwen3 has
 * head norms instead of biases (models/qwen3). Qwen3-MoE adds experts to it (models/qwen3_moe). */
#include "model/family.h"

static status read_qwen2(const json_t *json, const char *where, model_config *c, error *err)
{
    c->qkv_bias = true;
    return family_read_optional_window(json, where, true, c, err);
}

static const char *const qwen3_biases[] = {"attention_bias", NULL};

static status read_qwen3(const json_t *json, const char *where, model_config *c, error *err)
{
    c->qk_norm = true;
    RETURN_IF_ERROR(family_refuse_true(json, where, qwen3_biases, err));
    return family_read_optional_window(json, where, true, c, err);
}

/* Layer i is dense if mlp_only_layers has it or (i + 1) % decoder_sparse_step is not 0. */
static status read_sparse_layers(const json_t *json, const char *where, model_config *c, error *err)
{
    int64_t step;
    RETURN_IF_ERROR(
        json_get_int(json, where, "decoder_sparse_step", 1, MODEL_LAYERS_MAX, 1, &step, err));
    for (uint32_t l = 0; l < c->n_layers; l++)
        if ((l + 1) % (uint32_t)step == 0) c->layers[l] |= LAYER_SPARSE;
    const json_t *dense = json_object_get(json, "mlp_only_layers");
    if (!dense || json_is_null(dense)) return STATUS_IS_OK;
    if (!json_is_array(dense))
        return error_set(err, STATUS_INVALID, "%s: \"mlp_only_layers\" must be a list of layers",
                         where);
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *layer = json_array_get(dense, i);
        json_int_t l = json_is_integer(layer) ? json_integer_value(layer) : -1;
        if (l < 0 || l >= c->n_layers)
            return error_set(err, STATUS_INVALID,
                             "%s: \"mlp_only_layers\" must be a list of layers", where);
        c->layers[l] &= (uint8_t)~LAYER_SPARSE;
    }
    return STATUS_IS_OK;
}

static status read_experts(const json_t *json, const char *where, model_config *c, error *err)
{
    RETURN_IF_ERROR(
        family_read_experts(json, where, "num_experts", "moe_intermediate_size", c, err));
    RETURN_IF_ERROR(json_get_bool(json, where, "norm_topk_prob", false, &c->expert_norm, err));
    return read_sparse_layers(json, where, c, err);
}

/* A window is refused: which layers have it differs between versions of transformers, and no
 * published model has one. */
static status read_qwen2_moe(const json_t *json, const char *where, model_config *c, error *err)
{
    static const char *const windows[] = {"use_sliding_window", NULL};
    RETURN_IF_ERROR(family_refuse_true(json, where, windows, err));
    RETURN_IF_ERROR(json_get_bool(json, where, "qkv_bias", true, &c->qkv_bias, err));
    RETURN_IF_ERROR(read_experts(json, where, c, err));
    return family_read_shared_expert(json, where, "shared_expert_intermediate_size", c, err);
}

static status read_qwen3_moe(const json_t *json, const char *where, model_config *c, error *err)
{
    c->qk_norm = true;
    RETURN_IF_ERROR(family_refuse_true(json, where, qwen3_biases, err));
    RETURN_IF_ERROR(family_read_optional_window(json, where, false, c, err));
    return read_experts(json, where, c, err);
}

#define QKV_BIAS_NAMES                                                                             \
    [TENSOR_Q_BIAS] = "model.layers.%u.self_attn.q_proj.bias",                                     \
    [TENSOR_K_BIAS] = "model.layers.%u.self_attn.k_proj.bias",                                     \
    [TENSOR_V_BIAS] = "model.layers.%u.self_attn.v_proj.bias"
#define EXPERT_NAMES                                                                               \
    [TENSOR_ROUTER] = "model.layers.%u.mlp.gate.weight",                                           \
    [TENSOR_EXPERT_GATE] = "model.layers.%u.mlp.experts.%u.gate_proj.weight",                      \
    [TENSOR_EXPERT_UP] = "model.layers.%u.mlp.experts.%u.up_proj.weight",                          \
    [TENSOR_EXPERT_DOWN] = "model.layers.%u.mlp.experts.%u.down_proj.weight"

static const model_family qwen2 = {
    .architecture = "Qwen2ForCausalLM",
    .read_config = read_qwen2,
    .needs = {"num_key_value_heads"},
    .names = {LLAMA_NAMES, LLAMA_QKV_NAMES, LLAMA_FFN_NAMES, QKV_BIAS_NAMES},
};

static const model_family qwen2_moe = {
    .architecture = "Qwen2MoeForCausalLM",
    .read_config = read_qwen2_moe,
    .needs = {"num_key_value_heads"},
    .names =
        {
            LLAMA_NAMES,
            LLAMA_QKV_NAMES,
            LLAMA_FFN_NAMES,
            QKV_BIAS_NAMES,
            EXPERT_NAMES,
            [TENSOR_SHARED_GATE] = "model.layers.%u.mlp.shared_expert.gate_proj.weight",
            [TENSOR_SHARED_UP] = "model.layers.%u.mlp.shared_expert.up_proj.weight",
            [TENSOR_SHARED_DOWN] = "model.layers.%u.mlp.shared_expert.down_proj.weight",
            [TENSOR_SHARED_SWITCH] = "model.layers.%u.mlp.shared_expert_gate.weight",
        },
};

static const model_family qwen3 = {
    .architecture = "Qwen3ForCausalLM",
    .read_config = read_qwen3,
    .needs = {"num_key_value_heads", "head_dim"},
    .names = {LLAMA_NAMES, LLAMA_QKV_NAMES, LLAMA_FFN_NAMES, HEAD_NORM_NAMES},
};

static const model_family qwen3_moe = {
    .architecture = "Qwen3MoeForCausalLM",
    .read_config = read_qwen3_moe,
    .needs = {"num_key_value_heads"},
    .names = {LLAMA_NAMES, LLAMA_QKV_NAMES, LLAMA_FFN_NAMES, HEAD_NORM_NAMES, EXPERT_NAMES},
};

const model_family *const model_families_qwen[] = {&qwen2, &qwen2_moe, &qwen3, &qwen3_moe, NULL};
