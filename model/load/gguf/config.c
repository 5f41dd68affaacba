/* Turns GGUF's metadata back into the config.json that it was made from (gguf-py, constants.py). */
#include "model/load/gguf/architectures.h"
#include "model/load/gguf/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const gguf_architecture gguf_architectures[] = {
    {"llama", "LlamaForCausalLM", true},
    {"qwen2", "Qwen2ForCausalLM", false},
    {"qwen3", "Qwen3ForCausalLM", false},
};

status gguf_architecture_of(const gguf *g, const gguf_architecture **out, error *err)
{
    static const char key[] = "general.architecture";
    const char *name = NULL;
    size_t n = 0;
    RETURN_IF_ERROR(gguf_get_string(g, key, &name, &n, err));
    if (!name) return error_set(err, STATUS_CORRUPT, "%s: \"%s\" is missing", g->path, key);
    for (size_t i = 0; i < sizeof gguf_architectures / sizeof *gguf_architectures; i++) {
        *out = &gguf_architectures[i];
        if (strlen((*out)->name) == n && memcmp((*out)->name, name, n) == 0) return STATUS_IS_OK;
    }
    char shown[65];
    size_t shown_n = n < 64 ? n : 64;
    for (size_t i = 0; i < shown_n; i++)
        shown[i] = name[i] >= 0x20 && name[i] < 0x7f ? name[i] : '?';
    shown[shown_n] = 0;
    return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": \"%s\" is not supported", g->path, key,
                     shown);
}

typedef struct builder {
    const gguf *g;
    const gguf_architecture *arch;
    json_t *out;
    bool failed; /* out of memory */
    char key[128];
} builder;

static const char *key_of(builder *b, const char *field)
{
    snprintf(b->key, sizeof b->key, "%s.%s", b->arch->name, field);
    return b->key;
}

static void set_member(builder *b, const char *key, json_t *value)
{
    if (json_object_set_new(b->out, key, value) != 0) b->failed = true;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static const struct {
    const char *field, *key; /* GGUF's name, config.json's name */
    bool needed;
} numbers[] = {
    {"block_count", "num_hidden_layers", true},
    {"embedding_length", "hidden_size", true},
    {"feed_forward_length", "intermediate_size", true},
    {"attention.head_count", "num_attention_heads", true},
    {"attention.head_count_kv", "num_key_value_heads", false},
    {"attention.key_length", "head_dim", false},
    {"context_length", "max_position_embeddings", true},
};

static status read_numbers(builder *b, error *err)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        uint64_t v = 0;
        RETURN_IF_ERROR(gguf_get_u64(b->g, key_of(b, numbers[i].field), INT32_MAX, &v, err));
        if (v == 0 && (numbers[i].needed || gguf_find(b->g, b->key)))
            return error_set(err, STATUS_CORRUPT, "%s: \"%s\" is missing or 0", b->g->path, b->key);
        if (v) set_member(b, numbers[i].key, json_integer((json_int_t)v));
    }
    double eps = 0.0;
    RETURN_IF_ERROR(
        gguf_get_double(b->g, key_of(b, "attention.layer_norm_rms_epsilon"), &eps, err));
    if (eps <= 0.0)
        return error_set(err, STATUS_CORRUPT, "%s: \"%s\" is missing or 0", b->g->path, b->key);
    set_member(b, "rms_norm_eps", json_real(eps));
    return STATUS_IS_OK;
}

static uint64_t number_of(const builder *b, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(b->out, key));
}

static uint64_t head_dim_of(const builder *b)
{
    uint64_t given = number_of(b, "head_dim"), heads = number_of(b, "num_attention_heads");
    return given ? given : number_of(b, "hidden_size") / heads;
}

/* Refuses fields with another value than the one that this build assumes. */
static status check_fields(builder *b, error *err)
{
    const struct {
        const char *field;
        uint64_t must;
    } rows[] = {
        {"expert_count", 0},
        {"attention.sliding_window", 0},
        {"attention.value_length", head_dim_of(b)},
        {"rope.dimension_count", head_dim_of(b)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t v = rows[i].must;
        RETURN_IF_ERROR(gguf_get_u64(b->g, key_of(b, rows[i].field), UINT32_MAX, &v, err));
        if (v != rows[i].must)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: \"%s\": %llu is not supported, only %llu", b->g->path, b->key,
                             (unsigned long long)v, (unsigned long long)rows[i].must);
    }
    return STATUS_IS_OK;
}

/* Refuses fields of other architectures and older writers, unless their value changes nothing. The
 * error names the field. */
static status check_neutral(builder *b, error *err)
{
    static const struct {
        const char *field;
        double neutral;
    } reals[] = {
        {"rope.scale_linear", 1.0},
        {"rope.scaling.attn_factor", 1.0},
        {"rope.scaling.alpha", 0.0},
        {"rope.scaling.yarn_ext_factor", 1.0},
        {"rope.scaling.yarn_log_multiplier", 0.0},
        {"attention.scale", 0.0},
        {"attention.output_scale", 1.0},
        {"attention.value_scale", 1.0},
        {"attention.clamp_kqv", 0.0},
        {"attention.max_alibi_bias", 0.0},
        {"attention.temperature_scale", 0.0},
        {"attn_logit_softcapping", 0.0},
        {"final_logit_softcapping", 0.0},
        {"logit_scale", 1.0},
        {"residual_scale", 1.0},
        {"embedding_scale", 1.0},
    };
    static const struct {
        const char *field;
        bool neutral;
    } switches[] = {{"attention.causal", true}, {"use_parallel_residual", false}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        double v = reals[i].neutral;
        RETURN_IF_ERROR(gguf_get_double(b->g, key_of(b, reals[i].field), &v, err));
        if (v != reals[i].neutral)
            return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": %g is not supported, only %g",
                             b->g->path, b->key, v, reals[i].neutral);
    }
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        bool v = switches[i].neutral;
        RETURN_IF_ERROR(gguf_get_bool(b->g, key_of(b, switches[i].field), &v, err));
        if (v != switches[i].neutral)
            return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": %s is not supported", b->g->path,
                             b->key, v ? "true" : "false");
    }
    return STATUS_IS_OK;
}

/* Refuses one file of several: without this check the error would be a missing tensor. */
static status check_split(const gguf *g, error *err)
{
    uint64_t n = 1;
    RETURN_IF_ERROR(gguf_get_u64(g, "split.count", UINT16_MAX, &n, err));
    if (n > 1)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"split.count\": one of %llu files; only whole ones are supported",
                         g->path, (unsigned long long)n);
    return STATUS_IS_OK;
}

/* ---- RoPE ------------------------------------------------------------------------------------ */

/* Reads factors that divide the frequencies, by which GGUF expresses Llama 3.1's scaling. They
 * become a longrope with equal factors for short and long sequences. */
static status read_rope_factors(builder *b, const gguf_tensor *t, error *err)
{
    uint64_t n = head_dim_of(b) / 2;
    if (strcmp(t->type->name, "F32") != 0 || t->n_dims != 1 || t->shape[0] != n)
        return error_set(err, STATUS_UNSUPPORTED, "%s: tensor \"%s\" must be %llu values of F32",
                         b->g->path, t->name, (unsigned long long)n);
    json_t *rope = json_object(), *list = json_array();
    const gguf_value values = {.data = b->g->data + t->begin};
    for (uint64_t i = 0; i < n; i++) {
        double f = (double)gguf_f32_at(&values, i);
        if (!(f >= 1e-6 && f <= 1e6)) {
            json_decref(rope);
            json_decref(list);
            return error_set(err, STATUS_CORRUPT, "%s: tensor \"%s\": value %llu is %g", b->g->path,
                             t->name, (unsigned long long)i, f);
        }
        b->failed |= json_array_append_new(list, json_real(f)) != 0;
    }
    b->failed |= json_object_set_new(rope, "rope_type", json_string("longrope")) != 0;
    b->failed |= json_object_set_new(rope, "factor", json_real(1.0)) != 0;
    b->failed |=
        json_object_set_new(rope, "original_max_position_embeddings",
                            json_integer((json_int_t)number_of(b, "max_position_embeddings"))) != 0;
    b->failed |= json_object_set(rope, "short_factor", list) != 0;
    b->failed |= json_object_set_new(rope, "long_factor", list) != 0;
    set_member(b, "rope_scaling", rope);
    return STATUS_IS_OK;
}

static status read_yarn(builder *b, json_t *rope, error *err)
{
    static const struct {
        const char *field, *key;
    } rows[] = {{"rope.scaling.yarn_beta_fast", "beta_fast"},
                {"rope.scaling.yarn_beta_slow", "beta_slow"},
                {"rope.scaling.yarn_attn_factor", "attention_factor"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double v = 0.0;
        RETURN_IF_ERROR(gguf_get_double(b->g, key_of(b, rows[i].field), &v, err));
        if (gguf_find(b->g, b->key))
            b->failed |= json_object_set_new(rope, rows[i].key, json_real(v)) != 0;
    }
    return STATUS_IS_OK;
}

static status read_scaling(builder *b, error *err)
{
    const char *type = NULL;
    size_t n = 0;
    double factor = 0.0;
    uint64_t original = 0;
    const gguf_tensor *factors = gguf_find_tensor(b->g, "rope_freqs.weight");
    RETURN_IF_ERROR(gguf_get_double(b->g, key_of(b, "rope.scaling.factor"), &factor, err));
    RETURN_IF_ERROR(gguf_get_u64(b->g, key_of(b, "rope.scaling.original_context_length"), INT32_MAX,
                                 &original, err));
    RETURN_IF_ERROR(gguf_get_string(b->g, key_of(b, "rope.scaling.type"), &type, &n, err));
    bool none = !type || (n == 4 && memcmp(type, "none", 4) == 0);
    if (none) return factors ? read_rope_factors(b, factors, err) : STATUS_IS_OK;
    bool linear = n == 6 && memcmp(type, "linear", 6) == 0;
    bool yarn = n == 4 && memcmp(type, "yarn", 4) == 0;
    if (factors || !(linear || yarn))
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"%s\": only none, linear and yarn, without "
                         "tensor \"rope_freqs.weight\", are supported",
                         b->g->path, b->key);
    json_t *rope = json_object();
    b->failed |=
        json_object_set_new(rope, "rope_type", json_string(linear ? "linear" : "yarn")) != 0;
    b->failed |= json_object_set_new(rope, "factor", json_real(factor)) != 0;
    if (yarn && original)
        b->failed |= json_object_set_new(rope, "original_max_position_embeddings",
                                         json_integer((json_int_t)original)) != 0;
    set_member(b, "rope_scaling", rope);
    return yarn ? read_yarn(b, rope, err) : STATUS_IS_OK;
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* The type that most bytes have. Integers count as f16, which keeps 11 bits of each product. */
static const char *stored_name(const gguf *g)
{
    size_t bytes[3] = {0}; /* F32, BF16, the rest */
    for (size_t i = 0; i < g->n_tensors; i++) {
        const gguf_tensor *t = &g->tensors[i];
        if (t->n_dims < 2) continue;
        bytes[strcmp(t->type->name, "F32") == 0    ? 0
              : strcmp(t->type->name, "BF16") == 0 ? 1
                                                   : 2] += t->bytes;
    }
    if (bytes[0] >= bytes[1] && bytes[0] >= bytes[2]) return "float32";
    return bytes[1] >= bytes[2] ? "bfloat16" : "float16";
}

uint8_t gguf_quant_bits(const gguf *g)
{
    size_t bytes[9] = {0};
    for (size_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i].n_dims > 1 && strncmp(g->tensors[i].name, "blk.", 4) == 0)
            bytes[g->tensors[i].type->bits] += g->tensors[i].bytes;
    if (bytes[0] >= bytes[4] && bytes[0] >= bytes[8]) return 0;
    return bytes[4] > bytes[8] ? 4 : 8;
}

static status read_tokens(builder *b, error *err)
{
    static const char *const stops[] = {"tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    json_t *list = json_array();
    set_member(b, "eos_token_id", list);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        uint64_t id = UINT64_MAX;
        RETURN_IF_ERROR(gguf_get_u64(b->g, stops[i], INT32_MAX, &id, err));
        if (id != UINT64_MAX)
            b->failed |= json_array_append_new(list, json_integer((json_int_t)id)) != 0;
    }
    uint64_t bos = UINT64_MAX;
    RETURN_IF_ERROR(gguf_get_u64(b->g, "tokenizer.ggml.bos_token_id", INT32_MAX, &bos, err));
    if (bos != UINT64_MAX) set_member(b, "bos_token_id", json_integer((json_int_t)bos));

    const gguf_tensor *embed = gguf_find_tensor(b->g, "token_embd.weight");
    if (!embed || embed->n_dims != 2 || embed->shape[1] > INT32_MAX)
        return error_set(err, STATUS_CORRUPT,
                         "%s: tensor \"token_embd.weight\" is missing or no matrix", b->g->path);
    set_member(b, "vocab_size", json_integer((json_int_t)embed->shape[1]));
    return STATUS_IS_OK;
}

static status build_config(builder *b, error *err)
{
    double theta = 10000.0;
    json_t *names = json_array();
    b->failed |= json_array_append_new(names, json_string(b->arch->transformers)) != 0;
    set_member(b, "architectures", names);
    set_member(b, "dtype", json_string(stored_name(b->g)));
    set_member(b, "tie_word_embeddings", json_boolean(!gguf_find_tensor(b->g, "output.weight")));
    RETURN_IF_ERROR(read_numbers(b, err));
    RETURN_IF_ERROR(check_fields(b, err));
    RETURN_IF_ERROR(check_neutral(b, err));
    RETURN_IF_ERROR(gguf_get_double(b->g, key_of(b, "rope.freq_base"), &theta, err));
    set_member(b, "rope_theta", json_real(theta));
    RETURN_IF_ERROR(read_scaling(b, err));
    return read_tokens(b, err);
}

status gguf_config(const gguf *g, json_t **out, error *err)
{
    builder b = {.g = g};
    RETURN_IF_ERROR(gguf_architecture_of(g, &b.arch, err));
    RETURN_IF_ERROR(check_split(g, err));
    b.out = json_object();
    status result = build_config(&b, err);
    if (status_ok(result) && (b.failed || !b.out))
        result = error_set(err, STATUS_NO_MEMORY, "%s: out of memory", g->path);
    if (status_ok(result)) *out = b.out;
    else json_decref(b.out);
    return result;
}
