/* How config.json differs between families: windows, experts, kinds of RoPE, and values that are
 * refused by name because this build does not support them. */
#include "model/family.h"
#include "tests/unit/model_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

enum { LAYERS = 4 };

static const char common[] =
    "\"hidden_size\": 64, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"head_dim\": 16, \"intermediate_size\": 96, \"vocab_size\": 100,"
    " \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 512";

static const char experts[] = "\"num_experts\": 8, \"num_experts_per_tok\": 2,"
                              " \"moe_intermediate_size\": 24";
static const char local_experts[] = "\"num_local_experts\": 8, \"num_experts_per_tok\": 2";

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

/* `more`: members after the common ones; the reader refuses duplicate keys. */
static status load(const char *family, const char *more, model_config *c, error *err)
{
    char text[2048];
    snprintf(text, sizeof text, "{\"architectures\": [\"%sForCausalLM\"], %s%s%s}", family, common,
             *more ? ", " : "", more);
    folder_puts(&dir, "config.json", text);
    return model_config_load(dir.dir, NULL, 0, c, err);
}

static model_config loaded(const char *family, const char *more)
{
    model_config c;
    error err = {""};
    if (!status_ok(load(family, more, &c, &err))) fail_msg("%s, %s: %s", family, more, err.text);
    return c;
}

/* The layers with the flag, as a bit mask. */
static unsigned layers_with(const model_config *c, uint8_t flag)
{
    unsigned bits = 0;
    for (uint32_t l = 0; l < c->n_layers; l++) bits |= (c->layers[l] & flag ? 1u : 0u) << l;
    return bits;
}

static void windows(void **state)
{
    (void)state;
    static const struct {
        const char *family, *more;
        uint32_t window;
        unsigned layers;
    } cases[] = {
        {"Mistral", "\"sliding_window\": null", 0, 0},
        {"Mistral", "\"sliding_window\": 100", 100, 15},
        {"Mistral", "\"sliding_window\": 512", 0, 0}, /* as long as the context: no window */
        {"Mistral", "", 0, 0},                        /* 4096, the default of transformers */
        {"Llama", "\"sliding_window\": 100", 0, 0},   /* transformers gives it no window either */
        {"Phi3", "\"sliding_window\": 99", 99, 15},
        {"Phi3", "", 0, 0},
        {"Qwen2", "\"sliding_window\": 100, \"max_window_layers\": 1", 0, 0},
        {"Qwen2", "\"use_sliding_window\": true, \"sliding_window\": null", 0, 0},
        {"Qwen2",
         "\"use_sliding_window\": true, \"sliding_window\": null, \"max_window_layers\": 0", 0, 0},
        {"Qwen3", "\"use_sliding_window\": true, \"sliding_window\": 512, \"max_window_layers\": 1",
         0, 0},
        {"Qwen2", "\"use_sliding_window\": true, \"sliding_window\": 100, \"max_window_layers\": 1",
         100, 14},
        {"Qwen2", "\"use_sliding_window\": true, \"sliding_window\": 100", 0, 0}, /* from 28 on */
        {"Qwen3",
         "\"use_sliding_window\": true, \"sliding_window\": 7, \"layer_types\":"
         " [\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"full_attention\"]",
         7, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_config c = loaded(cases[i].family, cases[i].more);
        if (c.window != cases[i].window || layers_with(&c, LAYER_WINDOW) != cases[i].layers)
            fail_msg("%s, %s: %u in layers %x", cases[i].family, cases[i].more, c.window,
                     layers_with(&c, LAYER_WINDOW));
    }
}

static void sparse_layers(void **state)
{
    (void)state;
    char more[512];
    model_config c = loaded("Mixtral", local_experts);
    assert_int_equal(c.n_experts, 8);
    assert_int_equal(c.experts_per_token, 2);
    assert_int_equal(c.expert_ffn, 96);
    assert_int_equal(c.ffn, 0);
    assert_true(c.expert_norm);
    assert_int_equal(layers_with(&c, LAYER_SPARSE), 15);

    c = loaded("Qwen3Moe", experts);
    assert_int_equal(c.expert_ffn, 24);
    assert_int_equal(c.ffn, 0);
    assert_false(c.expert_norm);
    assert_true(c.qk_norm && !c.qkv_bias);
    snprintf(more, sizeof more,
             "%s, \"norm_topk_prob\": true, \"decoder_sparse_step\": 2, \"mlp_only_layers\": [3]",
             experts);
    c = loaded("Qwen3Moe", more);
    assert_true(c.expert_norm);
    assert_int_equal(c.ffn, 96);
    assert_int_equal(layers_with(&c, LAYER_SPARSE), 2);
    assert_true(loaded("Qwen2", "").qkv_bias);

    snprintf(more, sizeof more, "%s, \"shared_expert_intermediate_size\": 40", experts);
    c = loaded("Qwen2Moe", more);
    assert_true(c.shared_ffn == 40 && c.qkv_bias && !c.qk_norm && !c.expert_norm);
    assert_int_equal(layers_with(&c, LAYER_SPARSE), 15);
}

/* Layers with their own RoPE have a window even when it is as long as the context: retention
 * identifies them by it. */
static void local_layers(void **state)
{
    (void)state;
    model_config c = loaded("Gemma3", "\"sliding_window\": 100, \"sliding_window_pattern\": 3,"
                                      " \"query_pre_attn_scalar\": 64");
    assert_int_equal(layers_with(&c, LAYER_LOCAL), 11);
    assert_int_equal(layers_with(&c, LAYER_WINDOW), 11);
    assert_true(c.query_factor == 0.5f && c.tied_embeddings && c.qk_norm);
    assert_true(c.rope.theta == 1e6 && c.local_rope.theta == 1e4);
    c = loaded("Gemma3", "\"sliding_window\": 512, \"layer_types\": [\"full_attention\","
                         " \"sliding_attention\", \"full_attention\", \"full_attention\"],"
                         " \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\","
                         " \"factor\": 4, \"rope_theta\": 3e5}, \"sliding_attention\":"
                         " {\"rope_type\": \"default\", \"rope_theta\": 5e3}}");
    assert_int_equal(layers_with(&c, LAYER_LOCAL), 2);
    assert_int_equal(layers_with(&c, LAYER_WINDOW), 2);
    assert_int_equal(c.window, c.max_positions);
    assert_true(c.rope.kind == ROPE_LINEAR && c.rope.theta == 3e5);
    assert_true(c.local_rope.kind == ROPE_DEFAULT && c.local_rope.theta == 5e3);
    c = loaded("Gemma3", "\"rope_local_base_freq\": 2e4, \"tie_word_embeddings\": false");
    assert_true(c.local_rope.theta == 2e4 && !c.tied_embeddings);
    c = loaded("Gemma3", "\"sliding_window\": null, \"sliding_window_pattern\": 2");
    assert_int_equal(layers_with(&c, LAYER_WINDOW), layers_with(&c, LAYER_LOCAL));
    assert_int_equal(c.window, c.max_positions);
}

static void rope_kinds(void **state)
{
    (void)state;
    rope_config r = loaded("InternLM2", "\"rope_scaling\": {\"type\": \"dynamic\","
                                        " \"factor\": 2.5}")
                        .rope;
    assert_true(r.kind == ROPE_DYNAMIC && r.factor == 2.5);
    assert_true(r.max_positions == 512 && r.length == 512);
    model_config c = loaded("Llama", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.5}");
    assert_int_equal(model_max_length(&c), 1280);

    r = loaded("Qwen2", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4,"
                        " \"original_max_position_embeddings\": 128}")
            .rope;
    assert_true(r.kind == ROPE_YARN && r.original_max_positions == 128 && r.truncate);
    assert_true(r.beta_fast == 32.0 && r.beta_slow == 1.0);
    assert_true(fabs(r.attention_factor - (0.1 * log(4.0) + 1.0)) < 1e-12);
    r = loaded("Qwen3", "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4,"
                        " \"rope_theta\": 1e6, \"attention_factor\": 0.5, \"truncate\": false}")
            .rope;
    assert_true(r.attention_factor == 0.5 && !r.truncate && r.theta == 1e6);
    assert_int_equal(r.original_max_positions, 512);

    r = loaded("Phi3", "\"original_max_position_embeddings\": 128, \"rope_scaling\": {\"type\":"
                       " \"longrope\", \"short_factor\": [1,1,1,1,1,1,1,1],"
                       " \"long_factor\": [1,2,3,4,5,6,7,8]}")
            .rope;
    assert_true(r.kind == ROPE_LONGROPE && r.original_max_positions == 128);
    assert_true(r.long_factor[7] == 8.0f && r.short_factor[7] == 1.0f);
    assert_true(fabs(r.attention_factor - sqrt(1.0 + log(4.0) / log(128.0))) < 1e-12);
}

/* The name of the count depends on the version of transformers that saved the folder. */
static void experts_are_counted_under_either_name(void **state)
{
    (void)state;
    static const char *const families[] = {"Qwen3Moe", "Qwen2Moe", "Mixtral"};
    static const char *const counts[] = {"\"num_experts\": 8", "\"num_local_experts\": 8",
                                         "\"num_experts\": null, \"num_local_experts\": 8",
                                         "\"num_local_experts\": 8, \"num_experts\": 8"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            char more[256];
            snprintf(more, sizeof more,
                     "%s, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24,"
                     " \"shared_expert_intermediate_size\": 28",
                     counts[i]);
            model_config c = loaded(families[f], more);
            assert_int_equal(c.n_experts, 8);
            assert_int_equal(c.experts_per_token, 2);
        }
    }
}

#define YARN "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4"

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *family, *more;
        status_code code;
        const char *says;
    } cases[] = {
        /* unsupported values that change a model */
        {"Llama", "\"final_logit_softcapping\": 30.0", STATUS_UNSUPPORTED, "final_logit_soft"},
        {"Llama", "\"attn_logit_softcapping\": 50.0", STATUS_UNSUPPORTED, "attn_logit_soft"},
        {"Llama", "\"query_pre_attn_scalar\": 256", STATUS_UNSUPPORTED, "query_pre_attn_scalar"},
        {"Llama", "\"residual_multiplier\": 0.22", STATUS_UNSUPPORTED, "residual_multiplier"},
        {"Llama", "\"logit_scale\": 0.0625", STATUS_UNSUPPORTED, "\"logit_scale\": 0.0625"},
        {"Llama", "\"logit_scale\": \"big\"", STATUS_INVALID, "logit_scale"},
        {"Llama", "\"clip_qkv\": 8", STATUS_UNSUPPORTED, "clip_qkv"},
        {"Llama", "\"use_qk_norm\": true", STATUS_UNSUPPORTED, "use_qk_norm"},
        {"Llama", "\"num_experts\": 8", STATUS_UNSUPPORTED, "a LlamaForCausalLM has no experts"},
        {"Qwen3", "\"attention_bias\": true", STATUS_UNSUPPORTED, "attention_bias"},
        {"InternLM2", "\"bias\": true", STATUS_UNSUPPORTED, "\"bias\": true"},
        {"Phi3", "\"partial_rotary_factor\": 0.75", STATUS_UNSUPPORTED, "partial_rotary_factor"},
        {"Llama", "\"hidden_activation\": \"gelu_pytorch_tanh\"", STATUS_UNSUPPORTED, "gelu_py"},
        {"Gemma2", "", STATUS_UNSUPPORTED, "\"Gemma2ForCausalLM\" is not supported"},
        {"Gemma3", "\"hidden_act\": \"silu\"", STATUS_UNSUPPORTED, "only \"gelu_pytorch_tanh\""},
        {"Gemma3", "\"attn_logit_softcapping\": 50.0", STATUS_UNSUPPORTED, "attn_logit_softcapp"},
        {"Gemma3", "\"final_logit_softcapping\": 30.0", STATUS_UNSUPPORTED, "final_logit_softc"},
        {"Gemma3", "\"use_bidirectional_attention\": true", STATUS_UNSUPPORTED, "use_bidirect"},
        {"Gemma3", "\"query_pre_attn_scalar\": 0", STATUS_INVALID, "query_pre_attn_scalar"},
        {"Gemma3", "\"sliding_window_pattern\": 0", STATUS_INVALID, "sliding_window_pattern"},
        {"Qwen2Moe", "\"use_sliding_window\": true", STATUS_UNSUPPORTED, "use_sliding_window"},
        /* layers */
        {"Llama", "\"layer_types\": [\"full_attention\"]", STATUS_INVALID, "a list of 4 names"},
        {"Qwen2",
         "\"layer_types\": [\"full_attention\", \"linear_attention\", \"full_attention\","
         " \"full_attention\"]",
         STATUS_UNSUPPORTED, "\"layer_types\": \"linear_attention\" is not supported"},
        {"Qwen2",
         "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\","
         " \"full_attention\"]",
         STATUS_UNSUPPORTED, "layer 1 is \"sliding_attention\""},
        {"Mistral", "\"sliding_window\": 0", STATUS_INVALID, "sliding_window"},
        /* experts */
        {"Mixtral", "", STATUS_INVALID, "\"num_local_experts\" is missing"},
        {"Mixtral", "\"num_local_experts\": 8", STATUS_INVALID, "\"num_experts_per_tok\" is miss"},
        {"Mixtral", "\"num_local_experts\": 8, \"num_experts_per_tok\": 9", STATUS_INVALID,
         "is 9 of 8 experts"},
        {"Mixtral", "\"num_local_experts\": 1025, \"num_experts_per_tok\": 2", STATUS_INVALID,
         "num_local_experts"},
        {"Qwen3Moe", "\"moe_intermediate_size\": 24, \"num_experts_per_tok\": 2", STATUS_INVALID,
         "\"num_experts\" is missing"},
        {"Qwen3Moe",
         "\"num_experts\": 8, \"num_local_experts\": 9, \"num_experts_per_tok\": 2,"
         " \"moe_intermediate_size\": 24",
         STATUS_INVALID, "\"num_experts\" is 8 and \"num_local_experts\" is 9"},
        {"Qwen3Moe",
         "\"num_local_experts\": 1025, \"num_experts_per_tok\": 2,"
         " \"moe_intermediate_size\": 24",
         STATUS_INVALID, "\"num_local_experts\""},
        {"Qwen3Moe",
         "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24,"
         " \"mlp_only_layers\": [4]",
         STATUS_INVALID, "mlp_only_layers"},
        {"Qwen3Moe",
         "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24,"
         " \"decoder_sparse_step\": 0",
         STATUS_INVALID, "decoder_sparse_step"},
        {"Qwen2Moe",
         "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24",
         STATUS_INVALID, "\"shared_expert_intermediate_size\" is missing"},
        /* RoPE */
        {"Gemma3", "\"rope_local_base_freq\": \"low\"", STATUS_INVALID, "rope_local_base_freq"},
        {"Gemma3", "\"rope_parameters\": {\"sliding_attention\": 1}", STATUS_INVALID,
         "\"sliding_attention\" must be an object"},
        {"Gemma3", "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"odd\"}}",
         STATUS_UNSUPPORTED, "\"odd\" is not supported"},
        {"Llama", YARN ", \"mrope_section\": [1, 2]}", STATUS_UNSUPPORTED,
         "\"mrope_section\" is not supported with \"rope_type\" \"yarn\""},
        {"Llama", YARN ", \"truncate\": 1}", STATUS_INVALID, "truncate"},
        {"Llama", YARN ", \"beta_fast\": 0}", STATUS_INVALID, "beta_fast"},
        {"Llama", YARN "}, \"rope_theta\": 1", STATUS_INVALID, "rope_theta"},
        {"Llama", "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}",
         STATUS_UNSUPPORTED, "\"full_attention\" is not supported"},
        {"Phi3",
         "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1]}",
         STATUS_INVALID, "original_max_position_embeddings"},
        {"Phi3",
         "\"original_max_position_embeddings\": 128, \"rope_scaling\": {\"type\": \"longrope\","
         " \"short_factor\": [1], \"long_factor\": [1]}",
         STATUS_INVALID, "\"short_factor\" must be a list of 8 numbers"},
        {"Phi3",
         "\"original_max_position_embeddings\": 128, \"rope_scaling\": {\"type\": \"longrope\","
         " \"short_factor\": [1,1,1,1,1,1,1,0], \"long_factor\": [1]}",
         STATUS_INVALID, "between 1e-3 and 1e6"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_config c;
        error err = {""};
        status s = load(cases[i].family, cases[i].more, &c, &err);
        if (s.code != cases[i].code || !strstr(err.text, cases[i].says))
            fail_msg("%s, %s: %s: %s", cases[i].family, cases[i].more, status_text(s.code),
                     err.text);
    }
}

/* Defaults that are one model's numbers are not assumed. */
static void some_keys_must_be_there(void **state)
{
    (void)state;
    const model_family *family;
    for (size_t i = 0; (family = model_family_at(i)); i++)
        for (size_t k = 0; k < FAMILY_KEYS_MAX && family->needs[k]; k++) {
            const char *key = family->needs[k];
            json_t *json;
            model_config c;
            error err = {""};
            char text[2048], path[512];
            snprintf(text, sizeof text, "{\"architectures\": [\"%s\"], %s, %s, %s}",
                     family->architecture, common, experts, local_experts);
            json = json_loads(text, 0, NULL); /* of duplicate keys the last one counts */
            assert_non_null(json);
            assert_int_equal(json_object_del(json, key), 0);
            snprintf(path, sizeof path, "%s/config.json", dir.dir);
            assert_int_equal(json_dump_file(json, path, 0), 0);
            json_decref(json);
            assert_int_equal(model_config_load(dir.dir, NULL, 0, &c, &err).code, STATUS_INVALID);
            if (!strstr(err.text, key) || !strstr(err.text, "is missing")) fail_msg("%s", err.text);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows),
        cmocka_unit_test(sparse_layers),
        cmocka_unit_test(local_layers),
        cmocka_unit_test(rope_kinds),
        cmocka_unit_test(experts_are_counted_under_either_name),
        cmocka_unit_test(refusals),
        cmocka_unit_test(some_keys_must_be_there),
    };
    return cmocka_run_group_tests_name("model_config_families", tests, setup, teardown);
}
