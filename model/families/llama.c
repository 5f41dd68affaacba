/* Llama 2, 3, 3.1, 3.2 and models that follow them exactly: no biases, RMSNorm before each block,
 * half-split RoPE over the whole head (transformers, models/llama). */
#include "model/family.h"

static status read_config(const json_t *json, const char *where, model_config *c, error *err)
{
    (void)c;
    static const char *const biases[] = {"attention_bias", "mlp_bias"};
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) {
        bool biased;
        RETURN_IF_ERROR(json_get_bool(json, where, biases[i], false, &biased, err));
        if (biased)
            return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": true is not supported", where,
                             biases[i]);
    }
    double rotated;
    RETURN_IF_ERROR(
        json_get_double(json, where, "partial_rotary_factor", 0.0, 1.0, 1.0, &rotated, err));
    if (rotated != 1.0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"partial_rotary_factor\": %g is not supported, only 1", where,
                         rotated);
    return STATUS_IS_OK;
}

const model_family model_family_llama = {
    .architecture = "LlamaForCausalLM",
    .read_config = read_config,
    .names =
        {
            [TENSOR_EMBED] = "model.embed_tokens.weight",
            [TENSOR_HEAD] = "lm_head.weight",
            [TENSOR_NORM] = "model.norm.weight",
            [TENSOR_ATTN_NORM] = "model.layers.%u.input_layernorm.weight",
            [TENSOR_Q] = "model.layers.%u.self_attn.q_proj.weight",
            [TENSOR_K] = "model.layers.%u.self_attn.k_proj.weight",
            [TENSOR_V] = "model.layers.%u.self_attn.v_proj.weight",
            [TENSOR_O] = "model.layers.%u.self_attn.o_proj.weight",
            [TENSOR_FFN_NORM] = "model.layers.%u.post_attention_layernorm.weight",
            [TENSOR_GATE] = "model.layers.%u.mlp.gate_proj.weight",
            [TENSOR_UP] = "model.layers.%u.mlp.up_proj.weight",
            [TENSOR_DOWN] = "model.layers.%u.mlp.down_proj.weight",
        },
};
