/* Mistral 7B and Nemo: Llama with a window in all layers, which is null since v0.2 (transformers,
 * models/mistral). Mixtral: its feed-forwards are experts (models/mixtral). */
#include "model/family.h"

enum { WINDOW_OF_V01 = 4096 };

static status read_mistral(const json_t *json, const char *where, model_config *c, error *err)
{
    return family_read_window(json, where, WINDOW_OF_V01, c, err);
}

static status read_mixtral(const json_t *json, const char *where, model_config *c, error *err)
{
    RETURN_IF_ERROR(family_read_window(json, where, 0, c, err));
    RETURN_IF_ERROR(
        family_read_experts(json, where, "num_local_experts", "intermediate_size", c, err));
    c->expert_norm = true;
    for (uint32_t l = 0; l < c->n_layers; l++) c->layers[l] |= LAYER_SPARSE;
    return STATUS_IS_OK;
}

static const model_family mistral = {
    .architecture = "MistralForCausalLM",
    .read_config = read_mistral,
    .needs = {"num_key_value_heads"},
    .names = {LLAMA_NAMES, LLAMA_QKV_NAMES, LLAMA_FFN_NAMES},
};

static const model_family mixtral = {
    .architecture = "MixtralForCausalLM",
    .read_config = read_mixtral,
    .needs = {"num_key_value_heads", "rms_norm_eps"},
    .theta = 1e6,
    .names =
        {
            LLAMA_NAMES,
            LLAMA_QKV_NAMES,
            [TENSOR_ROUTER] = "model.layers.%u.block_sparse_moe.gate.weight",
            [TENSOR_EXPERT_GATE] = "model.layers.%u.block_sparse_moe.experts.%u.w1.weight",
            [TENSOR_EXPERT_UP] = "model.layers.%u.block_sparse_moe.experts.%u.w3.weight",
            [TENSOR_EXPERT_DOWN] = "model.layers.%u.block_sparse_moe.experts.%u.w2.weight",
        },
};

const model_family *const model_families_mistral[] = {&mistral, &mixtral, NULL};
