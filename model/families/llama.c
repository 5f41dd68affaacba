/* Llama 2, 3, 3.1, 3.2, R1-Distill-Llama and models that follow them exactly: no biases, RMSNorm
 * before each block, half-split RoPE over the whole head (transformers, models/llama). */
#include "model/family.h"

static status read_config(const json_t *json, const char *where, model_config *c, error *err)
{
    (void)c;
    static const char *const biases[] = {"attention_bias", "mlp_bias", NULL};
    return family_refuse_true(json, where, biases, err);
}

static const model_family llama = {
    .architecture = "LlamaForCausalLM",
    .read_config = read_config,
    .names = {LLAMA_NAMES, LLAMA_QKV_NAMES, LLAMA_FFN_NAMES},
};

const model_family *const model_families_llama[] = {&llama, NULL};
