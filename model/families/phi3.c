/* Phi-3 mini and medium: Llama with q, k and v in one tensor, gate and up in another, and a window
 * (transformers, models/phi3). */
#include "model/family.h"

static status read_config(const json_t *json, const char *where, model_config *c, error *err)
{
    return family_read_window(json, where, 0, c, err);
}

static const model_family phi3 = {
    .architecture = "Phi3ForCausalLM",
    .read_config = read_config,
    .needs = {"rms_norm_eps"},
    .qkv = QKV_STACKED,
    .gate_up_stacked = true,
    .names =
        {
            LLAMA_NAMES,
            [TENSOR_Q] = "model.layers.%u.self_attn.qkv_proj.weight",
            [TENSOR_K] = "model.layers.%u.self_attn.qkv_proj.weight",
            [TENSOR_V] = "model.layers.%u.self_attn.qkv_proj.weight",
            [TENSOR_GATE] = "model.layers.%u.mlp.gate_up_proj.weight",
            [TENSOR_UP] = "model.layers.%u.mlp.gate_up_proj.weight",
            [TENSOR_DOWN] = "model.layers.%u.mlp.down_proj.weight",
        },
};

const model_family *const model_families_phi3[] = {&phi3, NULL};
