/* model/config.c: what config.json may contain, and what it may not. */
#include "model/model.h"
#include "tests/unit/model_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

/* Members of a small config; a case replaces or adds members after them, as overrides do. */
static const char base_config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 96,"
    " \"vocab_size\": 100, \"max_position_embeddings\": 512, \"torch_dtype\": \"bfloat16\","
    " \"eos_token_id\": 7}";

typedef struct fixture {
    folder f;
} fixture;

static int setup(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    folder_make(&x->f);
    folder_puts(&x->f, "config.json", base_config);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    fixture *x = *state;
    folder_remove(&x->f);
    free(x);
    return 0;
}

static status load(fixture *x, const char *override, model_config *c, error *err)
{
    return model_config_load(x->f.dir, &override, override ? 1 : 0, c, err);
}

static model_config loaded(fixture *x, const char *override)
{
    model_config c;
    error err = {""};
    if (!status_ok(load(x, override, &c, &err)))
        fail_msg("%s: %s", override ? override : "plain", err.text);
    return c;
}

static void plain_config(void **state)
{
    model_config c = loaded(*state, NULL);
    assert_string_equal(c.architecture, "LlamaForCausalLM");
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.ffn, 96);
    assert_int_equal(c.vocab_size, 100);
    assert_int_equal(c.max_positions, 512);
    assert_true(c.rms_eps == 1e-6f);
    assert_false(c.tied_embeddings);
    assert_int_equal(c.stored, DTYPE_BF16);
    assert_int_equal(c.rope.kind, ROPE_DEFAULT);
    assert_true(c.rope.theta == 10000.0);
    assert_int_equal(c.n_stop_ids, 1);
    assert_int_equal(c.stop_ids[0], 7);
    assert_int_equal(c.bos_id, -1);
    assert_true(isnan(c.temperature) && isnan(c.top_p) && isnan(c.min_p));
    assert_true(isnan(c.repetition_penalty));
    assert_int_equal(c.top_k, -1);
    assert_false(c.do_sample);
}

static void defaults_and_nulls(void **state)
{
    assert_int_equal(loaded(*state, "num_key_value_heads=null").n_kv_heads, 4);
    assert_int_equal(loaded(*state, "head_dim=null").head_dim, 16);
    assert_int_equal(loaded(*state, "head_dim=48").head_dim, 48);
    assert_int_equal(loaded(*state, "head_dim=256").head_dim, 256);
    assert_int_equal(loaded(*state, "hidden_act=null").n_layers, 2);
    assert_true(loaded(*state, "tie_word_embeddings=true").tied_embeddings);
    assert_true(loaded(*state, "rms_norm_eps=1e-5").rms_eps == 1e-5f);
    assert_int_equal(loaded(*state, "torch_dtype=null").stored, DTYPE_F32);
    assert_int_equal(loaded(*state, "dtype=\"float16\"").stored, DTYPE_F16);
    assert_int_equal(loaded(*state, "torch_dtype=\"torch.float32\"").stored, DTYPE_F32);
    assert_int_equal(loaded(*state, "attention_bias=false").n_layers, 2);
    assert_int_equal(loaded(*state, "num_hidden_layers=1.0").n_layers, 1);
    assert_int_equal(loaded(*state, "bos_token_id=99").bos_id, 99);
}

static void rope_spellings(void **state)
{
    rope_config r = loaded(*state, "rope_theta=500000").rope;
    assert_true(r.kind == ROPE_DEFAULT && r.theta == 500000.0);
    r = loaded(*state, "rope_scaling=null").rope;
    assert_int_equal(r.kind, ROPE_DEFAULT);
    r = loaded(*state, "rope_scaling={\"type\":\"linear\",\"factor\":4}").rope;
    assert_true(r.kind == ROPE_LINEAR && r.factor == 4.0 && r.theta == 10000.0);
    r = loaded(*state, "rope_scaling={\"rope_type\":\"llama3\",\"factor\":8.0,"
                       "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                       "\"original_max_position_embeddings\":8192}")
            .rope;
    assert_true(r.kind == ROPE_LLAMA3 && r.factor == 8.0);
    assert_true(r.low_freq_factor == 1.0 && r.high_freq_factor == 4.0);
    assert_int_equal(r.original_max_positions, 8192);
    r = loaded(*state, "rope_parameters={\"rope_theta\":1e6,\"rope_type\":\"default\"}").rope;
    assert_true(r.kind == ROPE_DEFAULT && r.theta == 1e6);
    r = loaded(*state, "rope_parameters={\"rope_theta\":2e6}").rope;
    assert_true(r.kind == ROPE_DEFAULT && r.theta == 2e6);
    r = loaded(*state, "rope_parameters={\"rope_theta\":2e6,\"rope_type\":\"linear\",\"factor\":2}")
            .rope;
    assert_true(r.kind == ROPE_LINEAR && r.theta == 2e6 && r.factor == 2.0);
}

static void generation_config_joins(void **state)
{
    fixture *x = *state;
    folder_puts(&x->f, "generation_config.json",
                "{\"eos_token_id\": [9, 7, 12], \"bos_token_id\": 3, \"do_sample\": true,"
                " \"temperature\": 0.6, \"top_p\": 0.9, \"top_k\": 20, \"min_p\": 0.05,"
                " \"repetition_penalty\": 1.05, \"transformers_version\": \"4.40\"}");
    model_config c = loaded(x, NULL);
    static const uint32_t stops[] = {7, 9, 12};
    assert_int_equal(c.n_stop_ids, 3);
    assert_memory_equal(c.stop_ids, stops, sizeof stops);
    assert_int_equal(c.bos_id, 3);
    assert_true(c.do_sample && c.temperature == 0.6f && c.top_p == 0.9f && c.min_p == 0.05f);
    assert_true(c.repetition_penalty == 1.05f);
    assert_int_equal(c.top_k, 20);
    assert_int_equal(loaded(x, "bos_token_id=4").bos_id, 4); /* config.json takes precedence */

    c = loaded(x, "eos_token_id=null");
    assert_int_equal(c.n_stop_ids, 3);
    assert_int_equal(c.stop_ids[0], 9);
}

/* Each case is refused with a line that contains `says`. */
static void refusals(void **state)
{
    static const struct {
        const char *override;
        status_code code;
        const char *says;
    } cases[] = {
        {"architectures=[\"GPT2LMHeadModel\"]", STATUS_UNSUPPORTED, "GPT2LMHeadModel"},
        {"architectures=[]", STATUS_INVALID, "architectures"},
        {"architectures=\"LlamaForCausalLM\"", STATUS_INVALID, "architectures"},
        {"hidden_act=\"gelu\"", STATUS_UNSUPPORTED, "\"hidden_act\": \"gelu\""},
        {"attention_bias=true", STATUS_UNSUPPORTED, "attention_bias"},
        {"mlp_bias=true", STATUS_UNSUPPORTED, "mlp_bias"},
        {"attention_bias=1", STATUS_INVALID, "attention_bias"},
        {"partial_rotary_factor=0.5", STATUS_UNSUPPORTED, "partial_rotary_factor"},
        {"torch_dtype=\"float8_e4m3fn\"", STATUS_UNSUPPORTED, "float8_e4m3fn"},
        {"num_hidden_layers=0", STATUS_INVALID, "num_hidden_layers"},
        {"num_hidden_layers=1025", STATUS_INVALID, "num_hidden_layers"},
        {"num_hidden_layers=-1", STATUS_INVALID, "num_hidden_layers"},
        {"num_hidden_layers=1.5", STATUS_INVALID, "num_hidden_layers"},
        {"num_hidden_layers=\"2\"", STATUS_INVALID, "num_hidden_layers"},
        {"num_hidden_layers=null", STATUS_INVALID, "\"num_hidden_layers\" is missing"},
        {"hidden_size=1048577", STATUS_INVALID, "hidden_size"},
        {"hidden_size=66", STATUS_INVALID, "head_dim"},
        {"hidden_size=32", STATUS_UNSUPPORTED, "heads of 8 elements"},
        {"head_dim=24", STATUS_UNSUPPORTED, "heads of 24 elements"},
        {"head_dim=272", STATUS_UNSUPPORTED, "heads of 272 elements"},
        {"head_dim=0", STATUS_INVALID, "head_dim"},
        {"num_key_value_heads=3", STATUS_INVALID, "num_key_value_heads"},
        {"num_key_value_heads=8", STATUS_INVALID, "num_key_value_heads"},
        {"vocab_size=99999999999999999999", STATUS_CORRUPT, "vocab_size"},
        {"vocab_size=1e30", STATUS_INVALID, "vocab_size"},
        {"vocab_size=7", STATUS_INVALID, "\"eos_token_id\" 7 is outside"},
        {"max_position_embeddings=null", STATUS_INVALID, "max_position_embeddings"},
        {"rms_norm_eps=-1", STATUS_INVALID, "rms_norm_eps"},
        {"tie_word_embeddings=\"yes\"", STATUS_INVALID, "tie_word_embeddings"},
        {"rope_theta=0", STATUS_INVALID, "rope_theta"},
        {"rope_theta=\"1e4\"", STATUS_INVALID, "rope_theta"},
        {"rope_scaling={\"type\":\"mrope\",\"factor\":4}", STATUS_UNSUPPORTED, "\"mrope\""},
        {"rope_scaling={\"rope_type\":\"dynamic\"}", STATUS_INVALID, "\"factor\" is missing"},
        {"rope_scaling={\"factor\":4}", STATUS_INVALID, "\"rope_type\" is missing"},
        {"rope_scaling={\"type\":\"linear\"}", STATUS_INVALID, "\"factor\" is missing"},
        {"rope_scaling={\"type\":\"linear\",\"factor\":0.5}", STATUS_INVALID, "factor"},
        {"rope_scaling=[1]", STATUS_INVALID, "rope_scaling"},
        {"rope_scaling={\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4}",
         STATUS_INVALID, "original_max_position_embeddings"},
        {"rope_scaling={\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}",
         STATUS_INVALID, "low_freq_factor"},
        {"eos_token_id=\"</s>\"", STATUS_INVALID, "eos_token_id"},
        {"eos_token_id=[1,null]", STATUS_INVALID, "eos_token_id"},
        {"eos_token_id=-1", STATUS_INVALID, "eos_token_id"},
        {"eos_token_id=100", STATUS_INVALID, "eos_token_id"},
        {"eos_token_id=[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", STATUS_LIMIT, "eos_token_id"},
        {"bos_token_id=100", STATUS_INVALID, "bos_token_id"},
        /* overrides themselves */
        {"num_hiden_layers=2", STATUS_INVALID, "num_hiden_layers"},
        {"num_hidden_layers", STATUS_INVALID, "key=value"},
        {"=2", STATUS_INVALID, "key=value"},
        {"torch_dtype=bfloat16", STATUS_CORRUPT, "torch_dtype"},
        {"num_hidden_layers=", STATUS_CORRUPT, "num_hidden_layers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_config c;
        error err = {""};
        status s = load(*state, cases[i].override, &c, &err);
        if (s.code != cases[i].code || !strstr(err.text, cases[i].says))
            fail_msg("%s: %s: %s", cases[i].override, status_text(s.code), err.text);
    }
}

static void broken_files(void **state)
{
    fixture *x = *state;
    model_config c;
    error err = {""};
    folder_puts(&x->f, "generation_config.json", "{\"temperature\": \"hot\"}");
    assert_int_equal(load(x, NULL, &c, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "generation_config.json: \"temperature\""));
    folder_puts(&x->f, "generation_config.json", "[]");
    assert_int_equal(load(x, NULL, &c, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "generation_config.json"));
    folder_puts(&x->f, "generation_config.json", "{");
    assert_int_equal(load(x, NULL, &c, &err).code, STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "generation_config.json"));
    folder_puts(&x->f, "generation_config.json", "{}");
    assert_true(status_ok(load(x, NULL, &c, &err)));

    folder_puts(&x->f, "config.json", "[1]");
    assert_int_equal(load(x, "vocab_size=3", &c, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "config.json: must be an object"));
    folder_puts(&x->f, "config.json", "{\"hidden_size\": 1, \"hidden_size\": 2}");
    assert_int_equal(load(x, NULL, &c, &err).code, STATUS_CORRUPT);

    char bomb[20001];
    memset(bomb, '[', 20000);
    bomb[20000] = 0;
    folder_puts(&x->f, "config.json", bomb);
    assert_int_equal(load(x, NULL, &c, &err).code, STATUS_CORRUPT);

    char *large = malloc(5 << 20);
    memset(large, ' ', 5 << 20);
    folder_write(&x->f, "config.json", large, 5 << 20);
    free(large);
    assert_int_equal(load(x, NULL, &c, &err).code, STATUS_LIMIT);

    folder_remove(&x->f);
    assert_int_equal(load(x, NULL, &c, &err).code, STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "config.json"));
}

/* The sections themselves are tested in model_quantized_test.c. */
static void quantized_weights_are_known(void **state)
{
    fixture *x = *state;
    model_config c;
    error err = {""};
    char text[1024];
    snprintf(text, sizeof text, "{\"quantization_config\": {\"quant_method\": \"awq\"}, %s",
             base_config + 1);
    folder_puts(&x->f, "config.json", text);
    assert_true(status_ok(load(x, NULL, &c, &err)));
    assert_non_null(c.quantized);
    assert_true(status_ok(load(x, "quantization_config=null", &c, &err)));
    assert_null(c.quantized);
    assert_int_equal(load(x, "quantization_config={}", &c, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "\"quantization_config\""));
    snprintf(text, sizeof text, "{\"quantization_config\": {\"quant_method\": \"hqq\"}, %s",
             base_config + 1);
    folder_puts(&x->f, "config.json", text);
    assert_int_equal(load(x, NULL, &c, &err).code, STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "\"hqq\" is not supported"));
}

static void theta_given_twice(void **state)
{
    fixture *x = *state;
    model_config c;
    error err = {""};
    char text[1024];
    snprintf(text, sizeof text, "{\"rope_parameters\": {\"rope_theta\": 5e5}, %s", base_config + 1);
    folder_puts(&x->f, "config.json", text);
    assert_true(loaded(x, "rope_theta=5e5").rope.theta == 5e5);
    assert_int_equal(load(x, "rope_theta=1e4", &c, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "rope_theta"));
}

static void families_are_listed(void **state)
{
    (void)state;
    assert_true(model_family_count() >= 1);
    bool llama = false;
    for (size_t i = 0; i < model_family_count(); i++) {
        assert_true(strlen(model_family_architecture(i)) < MODEL_NAME_MAX);
        llama = llama || strcmp(model_family_architecture(i), "LlamaForCausalLM") == 0;
    }
    assert_true(llama);
    assert_null(model_family_architecture(model_family_count()));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(plain_config, setup, teardown),
        cmocka_unit_test_setup_teardown(defaults_and_nulls, setup, teardown),
        cmocka_unit_test_setup_teardown(rope_spellings, setup, teardown),
        cmocka_unit_test_setup_teardown(generation_config_joins, setup, teardown),
        cmocka_unit_test_setup_teardown(refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(broken_files, setup, teardown),
        cmocka_unit_test_setup_teardown(quantized_weights_are_known, setup, teardown),
        cmocka_unit_test_setup_teardown(theta_given_twice, setup, teardown),
        cmocka_unit_test(families_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
