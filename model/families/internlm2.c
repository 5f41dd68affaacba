/* InternLM2 and 2.5: Llama with other names, and q, k and v in one tensor, KV head by KV head
 * (modeling_internlm2.py beside the models; transformers has no class of its own). */
#include "model/family.h"

static status read_config(const json_t *json, const char *where, model_config *c, error *err)
{
    (void)c;
    static const char *const biases[] = {"bias", NULL};
    return family_refuse_true(json, where, biases, err);
}

static const model_family internlm2 = {
    .architecture = "InternLM2ForCausalLM",
    .read_config = read_config,
    .qkv = QKV_GROUPED,
    .names =
        {
            [TENSOR_EMBED] = "model.tok_embeddings.weight",
            [TENSOR_HEAD] = "output.weight",
            [TENSOR_NORM] = "model.norm.weight",
            [TENSOR_ATTN_NORM] = "model.layers.%u.attention_norm.weight",
            [TENSOR_Q] = "model.layers.%u.attention.wqkv.weight",
            [TENSOR_K] = "model.layers.%u.attention.wqkv.weight",
            [TENSOR_V] = "model.layers.%u.attention.wqkv.weight",
            [TENSOR_O] = "model.layers.%u.attention.wo.weight",
            [TENSOR_FFN_NORM] = "model.layers.%u.ffn_norm.weight",
            [TENSOR_GATE] = "model.layers.%u.feed_forward.w1.weight",
            [TENSOR_UP] = "model.layers.%u.feed_forward.w3.weight",
            [TENSOR_DOWN] = "model.layers.%u.feed_forward.w2.weight",
        },
};

const model_family *const model_families_internlm2[] = {&internlm2, NULL};
