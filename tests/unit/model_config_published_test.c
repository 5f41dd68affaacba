/* config.json of each family's published models: which members are read. Most keys that do not
 * describe the model (model_type, initializer_range, use_cache, …) are left out. */
#include "model/family.h"
#include "tests/unit/model_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

typedef struct published {
    const char *name, *json; /* '@': a list of head_dim / 2 factors */
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, positions;
    double theta;
    rope_kind rope;
    double factor;
    uint32_t window, window_layers; /* window_layers: number of layers with a window */
    uint32_t experts, of_token, expert_ffn, shared_ffn;
} published;

#define LLAMA_31                                                                                   \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"hidden_act\": "      \
    "\"silu\", \"hidden_size\": 4096, \"intermediate_size\": 14336, \"max_position_embeddings\": " \
    "131072, \"mlp_bias\": false, \"num_attention_heads\": 32, \"num_hidden_layers\": 32, "        \
    "\"num_key_value_heads\": 8, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, "                 \
    "\"rope_scaling\": {\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "    \
    "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}, \"rope_theta\": "     \
    "500000.0, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"vocab_size\": "    \
    "128256, \"bos_token_id\": 128000, \"eos_token_id\": "
#define MISTRAL                                                                                    \
    "{\"architectures\": [\"MistralForCausalLM\"], \"attention_dropout\": 0.0, \"bos_token_id\": " \
    "1, \"eos_token_id\": 2, \"hidden_act\": \"silu\", \"intermediate_size\": 14336, "             \
    "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05, "           \
    "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", "
#define QWEN2                                                                                      \
    "{\"architectures\": [\"Qwen2ForCausalLM\"], \"attention_dropout\": 0.0, \"bos_token_id\": "   \
    "151643, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-06, \"torch_dtype\": \"bfloat16\", "   \
    "\"use_sliding_window\": false, "
#define QWEN3                                                                                      \
    "\"attention_bias\": false, \"bos_token_id\": 151643, \"eos_token_id\": 151645, "              \
    "\"head_dim\": 128, \"hidden_act\": \"silu\", \"max_position_embeddings\": 40960, "            \
    "\"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 1000000, "                   \
    "\"sliding_window\": null, \"torch_dtype\": \"bfloat16\", \"use_sliding_window\": false, "     \
    "\"vocab_size\": 151936, "
#define INTERNLM2                                                                                  \
    "{\"architectures\": [\"InternLM2ForCausalLM\"], \"attn_implementation\": \"eager\", "         \
    "\"bias\": false, \"bos_token_id\": 1, \"eos_token_id\": 2, \"hidden_act\": \"silu\", "        \
    "\"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_attention_heads\": 32, "           \
    "\"num_hidden_layers\": 32, \"num_key_value_heads\": 8, \"pretraining_tp\": 1, "               \
    "\"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", "     \
    "\"vocab_size\": 92544, "
#define PHI3                                                                                       \
    "{\"architectures\": [\"Phi3ForCausalLM\"], \"attention_bias\": false, \"bos_token_id\": 1, "  \
    "\"eos_token_id\": 32000, \"embd_pdrop\": 0.0, \"hidden_act\": \"silu\", "                     \
    "\"original_max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-05, \"rope_theta\": "        \
    "10000.0, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"vocab_size\": "     \
    "32064, "
#define PHI3_MINI                                                                                  \
    "\"hidden_size\": 3072, \"intermediate_size\": 8192, \"num_attention_heads\": 32, "            \
    "\"num_hidden_layers\": 32, \"num_key_value_heads\": 32, "
#define GEMMA3                                                                                     \
    "{\"architectures\": [\"Gemma3ForCausalLM\"], \"attention_bias\": false, "                     \
    "\"attn_logit_softcapping\": null, \"bos_token_id\": 2, \"cache_implementation\": \"hybrid\"," \
    "\"eos_token_id\": [1, 106], \"final_logit_softcapping\": null, \"hidden_activation\": "       \
    "\"gelu_pytorch_tanh\", \"rms_norm_eps\": 1e-06, \"rope_local_base_freq\": 10000, "            \
    "\"rope_theta\": 1000000, \"torch_dtype\": \"bfloat16\", "

static const published models[] = {
    {"Llama-2-7B",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"bos_token_id\": 1, \"eos_token_id\": 2, "
     "\"hidden_act\": \"silu\", \"hidden_size\": 4096, \"intermediate_size\": 11008, "
     "\"max_position_embeddings\": 4096, \"num_attention_heads\": 32, \"num_hidden_layers\": 32, "
     "\"num_key_value_heads\": 32, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, "
     "\"rope_scaling\": null, \"tie_word_embeddings\": false, \"torch_dtype\": \"float16\", "
     "\"vocab_size\": 32000}",
     32, 4096, 32, 32, 128, 11008, 32000, 4096, 1e4, ROPE_DEFAULT, 1, .window = 0},
    {"Llama-3.1-8B-Instruct", LLAMA_31 "[128001, 128008, 128009]}", 32, 4096, 32, 8, 128, 14336,
     128256, 131072, 5e5, ROPE_LLAMA3, 8, .window = 0},
    {"R1-Distill-Llama-8B", LLAMA_31 "128001}", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 5e5,
     ROPE_LLAMA3, 8, .window = 0},
    {"Mistral-7B-v0.1",
     MISTRAL "\"hidden_size\": 4096, \"num_hidden_layers\": 32, \"max_position_embeddings\": "
             "32768, \"rope_theta\": 10000.0, \"sliding_window\": 4096, \"vocab_size\": 32000}",
     32, 4096, 32, 8, 128, 14336, 32000, 32768, 1e4, ROPE_DEFAULT, 1, .window = 4096,
     .window_layers = 32},
    {"Mistral-7B-Instruct-v0.2",
     MISTRAL "\"hidden_size\": 4096, \"num_hidden_layers\": 32, \"max_position_embeddings\": "
             "32768, \"rope_theta\": 1000000.0, \"sliding_window\": null, \"vocab_size\": 32000}",
     32, 4096, 32, 8, 128, 14336, 32000, 32768, 1e6, ROPE_DEFAULT, 1, .window = 0},
    {"Mistral-7B-Instruct-v0.3",
     MISTRAL "\"hidden_size\": 4096, \"num_hidden_layers\": 32, \"max_position_embeddings\": "
             "32768, \"rope_theta\": 1000000.0, \"sliding_window\": null, \"vocab_size\": 32768}",
     32, 4096, 32, 8, 128, 14336, 32768, 32768, 1e6, ROPE_DEFAULT, 1, .window = 0},
    {"Mistral-Nemo-Instruct-2407",
     MISTRAL "\"head_dim\": 128, \"hidden_size\": 5120, \"num_hidden_layers\": 40, "
             "\"max_position_embeddings\": 1024000, \"rope_theta\": 1000000.0, "
             "\"sliding_window\": null, \"vocab_size\": 131072}",
     40, 5120, 32, 8, 128, 14336, 131072, 1024000, 1e6, ROPE_DEFAULT, 1, .window = 0},
    {"Mixtral-8x7B-Instruct-v0.1",
     "{\"architectures\": [\"MixtralForCausalLM\"], \"bos_token_id\": 1, \"eos_token_id\": 2, "
     "\"hidden_act\": \"silu\", \"hidden_size\": 4096, \"intermediate_size\": 14336, "
     "\"max_position_embeddings\": 32768, \"num_attention_heads\": 32, \"num_experts_per_tok\": 2, "
     "\"num_hidden_layers\": 32, \"num_key_value_heads\": 8, \"num_local_experts\": 8, "
     "\"output_router_logits\": false, \"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, "
     "\"router_aux_loss_coef\": 0.02, \"sliding_window\": null, \"tie_word_embeddings\": false, "
     "\"torch_dtype\": \"bfloat16\", \"vocab_size\": 32000}",
     32, 4096, 32, 8, 128, 0, 32000, 32768, 1e6, ROPE_DEFAULT, 1, 0, 0, 8, 2, 14336, 0},
    {"Qwen2.5-7B-Instruct",
     QWEN2 "\"eos_token_id\": 151645, \"hidden_size\": 3584, \"intermediate_size\": 18944, "
           "\"max_position_embeddings\": 32768, \"max_window_layers\": 28, "
           "\"num_attention_heads\": 28, \"num_hidden_layers\": 28, \"num_key_value_heads\": 4, "
           "\"rope_theta\": 1000000.0, \"sliding_window\": 131072, \"tie_word_embeddings\": false, "
           "\"vocab_size\": 152064}",
     28, 3584, 28, 4, 128, 18944, 152064, 32768, 1e6, ROPE_DEFAULT, 1, .window = 0},
    {"R1-Distill-Qwen-7B",
     QWEN2 "\"eos_token_id\": 151643, \"hidden_size\": 3584, \"intermediate_size\": 18944, "
           "\"max_position_embeddings\": 131072, \"max_window_layers\": 28, "
           "\"num_attention_heads\": 28, \"num_hidden_layers\": 28, \"num_key_value_heads\": 4, "
           "\"rope_theta\": 10000, \"sliding_window\": 4096, \"tie_word_embeddings\": false, "
           "\"use_mrope\": false, \"vocab_size\": 152064}",
     28, 3584, 28, 4, 128, 18944, 152064, 131072, 1e4, ROPE_DEFAULT, 1, .window = 0},
    {"Qwen3-8B",
     "{\"architectures\": [\"Qwen3ForCausalLM\"], " QWEN3
     "\"hidden_size\": 4096, \"intermediate_size\": 12288, \"max_window_layers\": 36, "
     "\"num_attention_heads\": 32, \"num_hidden_layers\": 36, \"num_key_value_heads\": 8, "
     "\"tie_word_embeddings\": false}",
     36, 4096, 32, 8, 128, 12288, 151936, 40960, 1e6, ROPE_DEFAULT, 1, .window = 0},
    {"Qwen3-30B-A3B",
     "{\"architectures\": [\"Qwen3MoeForCausalLM\"], " QWEN3
     "\"decoder_sparse_step\": 1, \"hidden_size\": 2048, \"intermediate_size\": 6144, "
     "\"max_window_layers\": 48, \"mlp_only_layers\": [], \"moe_intermediate_size\": 768, "
     "\"norm_topk_prob\": true, \"num_attention_heads\": 32, \"num_experts\": 128, "
     "\"num_experts_per_tok\": 8, \"num_hidden_layers\": 48, \"num_key_value_heads\": 4, "
     "\"output_router_logits\": false, \"router_aux_loss_coef\": 0.001, "
     "\"tie_word_embeddings\": false}",
     48, 2048, 32, 4, 128, 0, 151936, 40960, 1e6, ROPE_DEFAULT, 1, 0, 0, 128, 8, 768, 0},
    {"Qwen1.5-MoE-A2.7B",
     "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"bos_token_id\": 151643, "
     "\"decoder_sparse_step\": 1, \"eos_token_id\": 151643, \"hidden_act\": \"silu\", "
     "\"hidden_size\": 2048, \"intermediate_size\": 5632, \"max_position_embeddings\": 8192, "
     "\"max_window_layers\": 21, \"moe_intermediate_size\": 1408, \"norm_topk_prob\": false, "
     "\"num_attention_heads\": 16, \"num_experts\": 60, \"num_experts_per_tok\": 4, "
     "\"num_hidden_layers\": 24, \"num_key_value_heads\": 16, \"output_router_logits\": false, "
     "\"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000.0, \"router_aux_loss_coef\": 0.001, "
     "\"shared_expert_intermediate_size\": 5632, \"sliding_window\": 32768, "
     "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", "
     "\"use_sliding_window\": false, \"vocab_size\": 151936}",
     24, 2048, 16, 16, 128, 0, 151936, 8192, 1e6, ROPE_DEFAULT, 1, 0, 0, 60, 4, 1408, 5632},
    {"InternLM2.5-7B-Chat",
     INTERNLM2 "\"max_position_embeddings\": 32768, \"rope_scaling\": {\"type\": \"dynamic\", "
               "\"factor\": 2.0}, \"rope_theta\": 1000000}",
     32, 4096, 32, 8, 128, 14336, 92544, 32768, 1e6, ROPE_DYNAMIC, 2, .window = 0},
    {"InternLM2.5-7B-Chat-1M",
     INTERNLM2 "\"max_position_embeddings\": 262144, \"rope_scaling\": {\"type\": \"dynamic\", "
               "\"factor\": 2.5}, \"rope_theta\": 50000000}",
     32, 4096, 32, 8, 128, 14336, 92544, 262144, 5e7, ROPE_DYNAMIC, 2.5, .window = 0},
    {"Phi-3-mini-4k-instruct",
     PHI3 PHI3_MINI "\"max_position_embeddings\": 4096, \"rope_scaling\": null, "
                    "\"sliding_window\": 2047}",
     32, 3072, 32, 32, 96, 8192, 32064, 4096, 1e4, ROPE_DEFAULT, 1, .window = 2047,
     .window_layers = 32},
    {"Phi-3-mini-128k-instruct",
     PHI3 PHI3_MINI "\"max_position_embeddings\": 131072, \"rope_scaling\": {\"long_factor\": @, "
                    "\"short_factor\": @, \"type\": \"longrope\"}, \"sliding_window\": 262144}",
     32, 3072, 32, 32, 96, 8192, 32064, 131072, 1e4, ROPE_LONGROPE, 32, .window = 0},
    {"Phi-3-mini-128k-instruct, as first published",
     PHI3 PHI3_MINI "\"max_position_embeddings\": 131072, \"rope_scaling\": {\"long_factor\": @, "
                    "\"short_factor\": @, \"type\": \"su\"}, \"sliding_window\": 262144}",
     32, 3072, 32, 32, 96, 8192, 32064, 131072, 1e4, ROPE_LONGROPE, 32, .window = 0},
    {"Phi-3-medium-128k-instruct",
     PHI3 "\"hidden_size\": 5120, \"intermediate_size\": 17920, \"max_position_embeddings\": "
          "131072, \"num_attention_heads\": 40, \"num_hidden_layers\": 40, "
          "\"num_key_value_heads\": 10, \"rope_scaling\": {\"long_factor\": @, "
          "\"short_factor\": @, \"type\": \"longrope\"}, \"sliding_window\": 131072}",
     40, 5120, 40, 10, 128, 17920, 32064, 131072, 1e4, ROPE_LONGROPE, 32, .window = 0},
    {"Gemma-3-1b-it",
     GEMMA3 "\"head_dim\": 256, \"hidden_size\": 1152, \"intermediate_size\": 6912, "
            "\"max_position_embeddings\": 32768, \"num_attention_heads\": 4, "
            "\"num_hidden_layers\": 26, \"num_key_value_heads\": 1, \"query_pre_attn_scalar\": "
            "256, \"rope_scaling\": null, \"sliding_window\": 512, \"sliding_window_pattern\": 6, "
            "\"vocab_size\": 262144}",
     26, 1152, 4, 1, 256, 6912, 262144, 32768, 1e6, ROPE_DEFAULT, 1, .window = 512,
     .window_layers = 22},
    {"Gemma-3-4b, text",
     GEMMA3 "\"head_dim\": 256, \"hidden_size\": 2560, \"intermediate_size\": 10240, "
            "\"max_position_embeddings\": 131072, \"num_attention_heads\": 8, "
            "\"num_hidden_layers\": 34, \"num_key_value_heads\": 4, \"query_pre_attn_scalar\": "
            "256, \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, "
            "\"sliding_window\": 1024, \"vocab_size\": 262208}",
     34, 2560, 8, 4, 256, 10240, 262208, 131072, 1e6, ROPE_LINEAR, 8, .window = 1024,
     .window_layers = 29},
    {"Gemma-3-27b, text",
     GEMMA3 "\"head_dim\": 128, \"hidden_size\": 5376, \"intermediate_size\": 21504, "
            "\"max_position_embeddings\": 131072, \"num_attention_heads\": 32, "
            "\"num_hidden_layers\": 62, \"num_key_value_heads\": 16, \"query_pre_attn_scalar\": "
            "168, \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, "
            "\"sliding_window\": 1024, \"vocab_size\": 262208}",
     62, 5376, 32, 16, 128, 21504, 262208, 131072, 1e6, ROPE_LINEAR, 8, .window = 1024,
     .window_layers = 52},
};

static folder dir;

static int setup(void **state)
{
    (void)state;
    folder_make(&dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_remove(&dir);
    return 0;
}

static model_config load(const published *p)
{
    model_config c;
    error err = {""};
    strbuf text = {0};
    for (const char *at = p->json; *at; at++) {
        if (*at != '@') strbuf_putc(&text, *at);
        for (uint32_t i = 0; *at == '@' && i < p->head_dim / 2; i++)
            strbuf_printf(&text, "%s%g", i ? ", " : "[", 1.0 + i);
        if (*at == '@') strbuf_putc(&text, ']');
    }
    assert_false(text.failed);
    folder_write(&dir, "config.json", text.data, text.size);
    if (!status_ok(model_config_load(dir.dir, NULL, 0, &c, &err)))
        fail_msg("%s: %s", p->name, err.text);
    strbuf_destroy(&text);
    return c;
}

static void expect(const published *p, const char *what, double is, double due)
{
    if (is != due) fail_msg("%s: %s is %g, published as %g", p->name, what, is, due);
}

static void published_models_are_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const published *p = &models[i];
        model_config c = load(p);
        uint32_t windows = 0, sparse = 0;
        for (uint32_t l = 0; l < c.n_layers; l++) {
            windows += (c.layers[l] & LAYER_WINDOW) != 0;
            sparse += (c.layers[l] & LAYER_SPARSE) != 0;
        }
        expect(p, "layers", c.n_layers, p->layers);
        expect(p, "hidden", c.hidden, p->hidden);
        expect(p, "heads", c.n_heads, p->heads);
        expect(p, "KV heads", c.n_kv_heads, p->kv_heads);
        expect(p, "head_dim", c.head_dim, p->head_dim);
        expect(p, "ffn", c.ffn, p->ffn);
        expect(p, "vocabulary", c.vocab_size, p->vocab);
        expect(p, "positions", c.max_positions, p->positions);
        expect(p, "theta", c.rope.theta, p->theta);
        expect(p, "kind of RoPE", c.rope.kind, p->rope);
        expect(p, "factor", c.rope.factor, p->factor);
        expect(p, "window", c.window, p->window);
        expect(p, "layers with it", windows, p->window_layers);
        expect(p, "experts", c.n_experts, p->experts);
        expect(p, "layers with them", sparse, p->experts ? p->layers : 0);
        expect(p, "experts of a token", c.experts_per_token, p->of_token);
        expect(p, "their ffn", c.expert_ffn, p->expert_ffn);
        expect(p, "the shared one's", c.shared_ffn, p->shared_ffn);
        expect(p, "bf16", c.stored == DTYPE_BF16, strcmp(p->name, "Llama-2-7B") != 0);
    }
}

/* Values that are not numbers of the table. */
static void families_differ_as_published(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const published *p = &models[i];
        model_config c = load(p);
        bool gemma = strncmp(p->name, "Gemma", 5) == 0, qwen3 = strncmp(p->name, "Qwen3", 5) == 0;
        bool qwen2 = strncmp(p->name, "Qwen", 4) == 0 || strstr(p->name, "Distill-Qwen");
        expect(p, "tied", c.tied_embeddings, gemma);
        expect(p, "norms of heads", c.qk_norm, gemma || qwen3);
        expect(p, "biases", c.qkv_bias, qwen2 && !qwen3);
        expect(p, "local theta", c.local_rope.theta, gemma ? 1e4 : 0);
        for (uint32_t l = 0; l < c.n_layers; l++)
            expect(p, "local layer", (c.layers[l] & LAYER_LOCAL) != 0, gemma && (l + 1) % 6 != 0);
        float factor = strstr(p->name, "27b") ? sqrtf(128.0f / 168.0f) : 1.0f;
        if (fabsf(c.query_factor - factor) > 1e-7f) fail_msg("%s: %g", p->name, c.query_factor);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_models_are_read),
        cmocka_unit_test(families_differ_as_published),
    };
    return cmocka_run_group_tests_name("model_config_published", tests, setup, teardown);
}
