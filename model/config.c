/* config.json and generation_config.json, transformers 4 and 5 spellings (transformers,
 * configuration_utils.py and modeling_rope_utils.py). */
#include "model/config.h"

#include "model/family.h"
#include "model/load/gguf/gguf_model.h"
#include "model/load/quantized/quantized.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Limits far above any published model, so low that no product of two of them overflows. */
enum {
    HIDDEN_MAX = 1 << 20,
    HEADS_MAX = 4096,
    HEAD_DIM_STEP = 16,
    FFN_MAX = 1 << 22,
    VOCAB_MAX = 1 << 24,
};

/* Keys that may be overridden even where config.json leaves them to their default. */
static const char *const optional_keys[] = {
    "attention_bias",
    "bias",
    "bos_token_id",
    "decoder_sparse_step",
    "dtype",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "layer_types",
    "max_window_layers",
    "mlp_bias",
    "mlp_only_layers",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts",
    "num_experts_per_tok",
    "num_key_value_heads",
    "num_local_experts",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "qkv_bias",
    "query_pre_attn_scalar",
    "rms_norm_eps",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "shared_expert_intermediate_size",
    "sliding_window",
    "sliding_window_pattern",
    "tie_word_embeddings",
    "torch_dtype",
    "use_sliding_window",
};

status model_config_override(json_t *config, const char *assignment, error *err)
{
    const char *equals = strchr(assignment, '=');
    char key[128];
    size_t n = equals ? (size_t)(equals - assignment) : 0;
    if (n == 0 || n >= sizeof key)
        return error_set(err, STATUS_INVALID, "override \"%.64s\": must be key=value", assignment);
    memcpy(key, assignment, n);
    key[n] = 0;

    bool known = json_object_get(config, key) != NULL;
    for (size_t i = 0; i < sizeof optional_keys / sizeof *optional_keys; i++)
        known = known || strcmp(key, optional_keys[i]) == 0;
    if (!known)
        return error_set(err, STATUS_INVALID, "override \"%s\": config.json has no such key", key);

    json_t *value;
    status parsed = json_read_text("value", equals + 1, strlen(equals + 1), &value, err);
    if (!status_ok(parsed)) {
        error_prefix(err, "override \"%s\": not a JSON value (a string needs quotes)", key);
        return parsed;
    }
    if (strcmp(key, "quantization_config") == 0 && !json_is_null(value)) {
        json_decref(value);
        return error_set(err, STATUS_INVALID,
                         "override \"%s\": only null, for weights that are plain after all", key);
    }
    if (json_object_set_new(config, key, value) != 0)
        return error_set(err, STATUS_NO_MEMORY, "override \"%s\": out of memory", key);
    return STATUS_IS_OK;
}

/* Reads an integer that config.json must have. */
static status need_u32(const json_t *json, const char *where, const char *key, uint32_t max,
                       uint32_t *out, error *err)
{
    int64_t v;
    RETURN_IF_ERROR(json_get_int(json, where, key, 1, max, 0, &v, err));
    if (v == 0) return error_set(err, STATUS_INVALID, "%s: \"%s\" is missing", where, key);
    *out = (uint32_t)v;
    return STATUS_IS_OK;
}

static status read_family(const json_t *json, const char *where, model_config *c, error *err)
{
    const json_t *list = json_object_get(json, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (!name)
        return error_set(err, STATUS_INVALID,
                         "%s: \"architectures\" must be a list that starts with a name", where);
    const model_family *family;
    for (size_t i = 0; (family = model_family_at(i)); i++)
        if (strcmp(name, family->architecture) == 0) c->family = family;
    if (!c->family)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"architectures\": \"%.64s\" is not supported", where, name);
    memcpy(c->architecture, name, strlen(name) + 1); /* it equals a row's name, so it fits */
    return STATUS_IS_OK;
}

static status read_shape(const json_t *json, const char *where, model_config *c, error *err)
{
    RETURN_IF_ERROR(
        need_u32(json, where, "num_hidden_layers", MODEL_LAYERS_MAX, &c->n_layers, err));
    RETURN_IF_ERROR(need_u32(json, where, "hidden_size", HIDDEN_MAX, &c->hidden, err));
    RETURN_IF_ERROR(need_u32(json, where, "num_attention_heads", HEADS_MAX, &c->n_heads, err));
    RETURN_IF_ERROR(need_u32(json, where, "intermediate_size", FFN_MAX, &c->ffn, err));
    RETURN_IF_ERROR(need_u32(json, where, "vocab_size", VOCAB_MAX, &c->vocab_size, err));
    RETURN_IF_ERROR(need_u32(json, where, "max_position_embeddings", MODEL_POSITIONS_MAX,
                             &c->max_positions, err));

    int64_t kv_heads, head_dim;
    RETURN_IF_ERROR(
        json_get_int(json, where, "num_key_value_heads", 1, HEADS_MAX, c->n_heads, &kv_heads, err));
    c->n_kv_heads = (uint32_t)kv_heads;
    if (c->n_heads % c->n_kv_heads != 0)
        return error_set(err, STATUS_INVALID,
                         "%s: \"num_attention_heads\" is %u, not a multiple of "
                         "\"num_key_value_heads\" %u",
                         where, c->n_heads, c->n_kv_heads);

    RETURN_IF_ERROR(json_get_int(json, where, "head_dim", 1, HIDDEN_MAX, 0, &head_dim, err));
    if (head_dim == 0) {
        if (c->hidden % c->n_heads != 0)
            return error_set(err, STATUS_INVALID,
                             "%s: \"head_dim\" is missing, and \"hidden_size\" %u is not a "
                             "multiple of \"num_attention_heads\" %u",
                             where, c->hidden, c->n_heads);
        head_dim = c->hidden / c->n_heads;
    }
    if (head_dim % HEAD_DIM_STEP != 0 || head_dim > MODEL_HEAD_DIM_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: heads of %lld elements; the kernels take multiples of %d up to %d",
                         where, (long long)head_dim, HEAD_DIM_STEP, MODEL_HEAD_DIM_MAX);
    c->head_dim = (uint32_t)head_dim;

    double eps;
    RETURN_IF_ERROR(json_get_double(json, where, "rms_norm_eps", 0.0, 1.0, 1e-6, &eps, err));
    c->rms_eps = (float)eps;
    return json_get_bool(json, where, "tie_word_embeddings", c->family->tied, &c->tied_embeddings,
                         err);
}

/* Numbers of models that this build does not support, each with the value that changes nothing; NaN
 * where only null does. */
static const struct {
    const char *key;
    double neutral;
} foreign_numbers[] = {
    {"attention_multiplier", (double)NAN},
    {"attn_logit_softcapping", (double)NAN},
    {"clip_qkv", (double)NAN},
    {"dim_model_base", (double)NAN},
    {"embedding_multiplier", 1.0},
    {"final_logit_softcapping", (double)NAN},
    {"logit_scale", 1.0},
    {"logits_scaling", 1.0},
    {"n_routed_experts", (double)NAN},
    {"partial_rotary_factor", 1.0},
    {"query_pre_attn_scalar", (double)NAN},
    {"residual_multiplier", 1.0},
    {"rope_local_base_freq", (double)NAN},
    {"scale_depth", (double)NAN},
    {"scale_emb", 1.0},
};

static const char *const foreign_switches[] = {"parallel_residual",
                                               "qk_layernorm",
                                               "rope_interleaved",
                                               "use_bidirectional_attention",
                                               "use_parallel_residual",
                                               "use_qk_norm",
                                               NULL};

static bool is_known(const model_family *f, const char *key)
{
    for (size_t i = 0; i < FAMILY_KEYS_MAX && f->knows[i]; i++)
        if (strcmp(key, f->knows[i]) == 0) return true;
    return false;
}

static status refuse_foreign(const json_t *json, const char *where, const model_family *f,
                             error *err)
{
    for (size_t i = 0; i < sizeof foreign_numbers / sizeof *foreign_numbers; i++) {
        const char *key = foreign_numbers[i].key;
        const json_t *v = json_object_get(json, key);
        if (!v || json_is_null(v) || is_known(f, key) ||
            (json_is_number(v) && json_number_value(v) == foreign_numbers[i].neutral))
            continue;
        if (json_is_number(v))
            return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": %g is not supported", where, key,
                             json_number_value(v));
        return error_set(err, STATUS_INVALID, "%s: \"%s\" must be a number", where, key);
    }
    return family_refuse_true(json, where, foreign_switches, err);
}

/* Refuses activations and features that this build does not have, by name. */
static status read_refusals(const json_t *json, const char *where, const model_family *f,
                            error *err)
{
    const char *due = f->activation ? f->activation : "silu";
    static const char *const activations[] = {"hidden_act", "hidden_activation"};
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++) {
        const char *act;
        RETURN_IF_ERROR(json_get_string(json, where, activations[i], &act, err));
        if (act && strcmp(act, due) != 0)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: \"%s\": \"%.64s\" is not supported, only \"%s\"", where,
                             activations[i], act, due);
    }
    return refuse_foreign(json, where, f, err);
}

/* Checks that "layer_types", if present, agrees with the layers that the family's reader set. */
static status check_layer_types(const json_t *json, const char *where, const model_config *c,
                                error *err)
{
    const json_t *types = json_object_get(json, "layer_types");
    if (!types || json_is_null(types)) return STATUS_IS_OK;
    if (!json_is_array(types) || json_array_size(types) != c->n_layers)
        return error_set(err, STATUS_INVALID, "%s: \"layer_types\" must be a list of %u names",
                         where, c->n_layers);
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        if (!type)
            return error_set(err, STATUS_INVALID, "%s: \"layer_types\" must be a list of %u names",
                             where, c->n_layers);
        bool window = strcmp(type, "sliding_attention") == 0;
        if (!window && strcmp(type, "full_attention") != 0)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: \"layer_types\": \"%.64s\" is not supported", where, type);
        if (window != ((c->layers[l] & LAYER_WINDOW) != 0))
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s: \"layer_types\": layer %u is \"%s\", which contradicts the "
                             "window of that layer by the other fields",
                             where, l, type);
    }
    return STATUS_IS_OK;
}

static status read_particular(const json_t *json, const char *where, model_config *c, error *err)
{
    const model_family *f = c->family;
    for (size_t i = 0; i < FAMILY_KEYS_MAX && f->needs[i]; i++)
        if (!json_object_get(json, f->needs[i]))
            return error_set(err, STATUS_INVALID, "%s: \"%s\" is missing", where, f->needs[i]);
    if (f->read_config) RETURN_IF_ERROR(f->read_config(json, where, c, err));
    RETURN_IF_ERROR(check_layer_types(json, where, c, err));
    static const char *const counts[] = {"num_experts", "num_local_experts"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const json_t *v = json_object_get(json, counts[i]);
        if (c->n_experts == 0 && json_is_number(v) && json_number_value(v) > 0)
            return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": a %s has no experts", where,
                             counts[i], c->architecture);
    }
    bool dense = false, window = false;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        if (!c->window) c->layers[l] &= (uint8_t)~LAYER_WINDOW;
        dense = dense || !(c->layers[l] & LAYER_SPARSE);
        window = window || c->layers[l] & LAYER_WINDOW;
    }
    if (!dense) c->ffn = 0;
    if (!window) c->window = 0;
    return STATUS_IS_OK;
}

/* Reads all of it to find errors early; loading the weights reads it again. */
static status read_quantization(const json_t *json, const char *where, model_config *c, error *err)
{
    quantized q;
    RETURN_IF_ERROR(quantized_read(json, where, &q, err));
    c->quantized = q.scheme;
    quantized_close(&q);
    return STATUS_IS_OK;
}

static status read_dtype(const json_t *json, const char *where, dtype *out, error *err)
{
    const char *key = json_object_get(json, "dtype") ? "dtype" : "torch_dtype";
    const char *name;
    RETURN_IF_ERROR(json_get_string(json, where, key, &name, err));
    if (!name) name = "float32"; /* the default of torch and transformers */
    const char *bare = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    static const struct {
        const char *name;
        dtype type;
    } names[] = {{"float32", DTYPE_F32}, {"bfloat16", DTYPE_BF16}, {"float16", DTYPE_F16}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(bare, names[i].name) == 0) {
            *out = names[i].type;
            return STATUS_IS_OK;
        }
    }
    return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": \"%.64s\" is not supported", where, key,
                     name);
}

static status add_stop(const json_t *id, const char *where, model_config *c, error *err)
{
    if (!json_is_integer(id))
        return error_set(err, STATUS_INVALID, "%s: \"eos_token_id\" must be an id or a list of ids",
                         where);
    json_int_t v = json_integer_value(id);
    if (v < 0 || v >= c->vocab_size)
        return error_set(err, STATUS_INVALID,
                         "%s: \"eos_token_id\" %lld is outside the vocabulary of %u", where,
                         (long long)v, c->vocab_size);
    for (uint32_t i = 0; i < c->n_stop_ids; i++)
        if (c->stop_ids[i] == v) return STATUS_IS_OK;
    if (c->n_stop_ids == MODEL_STOPS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: \"eos_token_id\": more than %d ids", where,
                         MODEL_STOPS_MAX);
    c->stop_ids[c->n_stop_ids++] = (uint32_t)v;
    return STATUS_IS_OK;
}

static status add_stops(const json_t *json, const char *where, model_config *c, error *err)
{
    const json_t *ids = json_object_get(json, "eos_token_id");
    if (!ids || json_is_null(ids)) return STATUS_IS_OK;
    if (!json_is_array(ids)) return add_stop(ids, where, c, err);
    for (size_t i = 0; i < json_array_size(ids); i++)
        RETURN_IF_ERROR(add_stop(json_array_get(ids, i), where, c, err));
    return STATUS_IS_OK;
}

static status read_float(const json_t *json, const char *where, const char *key, double min,
                         double max, float *out, error *err)
{
    double v;
    RETURN_IF_ERROR(json_get_double(json, where, key, min, max, (double)NAN, &v, err));
    *out = (float)v;
    return STATUS_IS_OK;
}

/* With json NULL all fields are NaN or -1. */
static status read_sampling(const json_t *json, const char *where, model_config *c, error *err)
{
    const double above_zero = 1e-6;
    int64_t top_k;
    RETURN_IF_ERROR(read_float(json, where, "temperature", 0.0, 100.0, &c->temperature, err));
    RETURN_IF_ERROR(read_float(json, where, "top_p", above_zero, 1.0, &c->top_p, err));
    RETURN_IF_ERROR(read_float(json, where, "min_p", 0.0, 1.0, &c->min_p, err));
    RETURN_IF_ERROR(read_float(json, where, "repetition_penalty", above_zero, 2.0,
                               &c->repetition_penalty, err));
    RETURN_IF_ERROR(json_get_int(json, where, "top_k", -1, INT32_MAX, -1, &top_k, err));
    c->top_k = (int32_t)top_k;
    return json_get_bool(json, where, "do_sample", false, &c->do_sample, err);
}

status model_config_read(const json_t *config, const char *where, const json_t *generation,
                         const char *generation_where, model_config *out, error *err)
{
    if (!json_is_object(config))
        return error_set(err, STATUS_INVALID, "%s: must be an object", where);
    if (generation && !json_is_object(generation))
        return error_set(err, STATUS_INVALID, "%s: must be an object", generation_where);

    model_config c = {.query_factor = 1.0f};
    RETURN_IF_ERROR(read_family(config, where, &c, err));
    RETURN_IF_ERROR(read_refusals(config, where, c.family, err));
    RETURN_IF_ERROR(read_shape(config, where, &c, err));
    RETURN_IF_ERROR(model_config_read_rope(config, where, &c, err));
    RETURN_IF_ERROR(read_dtype(config, where, &c.stored, err));
    RETURN_IF_ERROR(read_quantization(config, where, &c, err));
    RETURN_IF_ERROR(read_particular(config, where, &c, err));

    RETURN_IF_ERROR(add_stops(config, where, &c, err));
    RETURN_IF_ERROR(add_stops(generation, generation_where, &c, err));
    RETURN_IF_ERROR(json_get_int(generation, generation_where, "bos_token_id", 0, c.vocab_size - 1,
                                 -1, &c.bos_id, err));
    RETURN_IF_ERROR(
        json_get_int(config, where, "bos_token_id", 0, c.vocab_size - 1, c.bos_id, &c.bos_id, err));
    RETURN_IF_ERROR(read_sampling(generation, generation_where, &c, err));
    *out = c;
    return STATUS_IS_OK;
}

/* Applies overrides, then reads. Takes over the reference to config. */
static status read_overridden(json_t *config, const char *where, const char *const *overrides,
                              size_t n_overrides, const json_t *generation,
                              const char *generation_where, model_config *out, error *err)
{
    status result = STATUS_IS_OK;
    if (!json_is_object(config))
        result = error_set(err, STATUS_INVALID, "%s: must be an object", where);
    for (size_t i = 0; status_ok(result) && i < n_overrides; i++)
        result = model_config_override(config, overrides[i], err);
    if (status_ok(result))
        result = model_config_read(config, where, generation, generation_where, out, err);
    json_decref(config);
    return result;
}

static status load_gguf(const char *path, const char *const *overrides, size_t n_overrides,
                        model_config *out, error *err)
{
    gguf g;
    json_t *config;
    RETURN_IF_ERROR(gguf_open(path, &g, err));
    status result = gguf_config(&g, &config, err);
    if (status_ok(result)) {
        result = read_overridden(config, path, overrides, n_overrides, NULL, path, out, err);
        if (status_ok(result)) out->quant_bits = gguf_quant_bits(&g);
    }
    gguf_close(&g);
    return result;
}

static bool is_config_file(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".json") == 0;
}

static status load_config_file(const char *path, const char *const *overrides, size_t n_overrides,
                               model_config *out, error *err)
{
    json_t *config;
    RETURN_IF_ERROR(json_read_file(path, MODEL_JSON_BYTES_MAX, &config, err));
    return read_overridden(config, path, overrides, n_overrides, NULL, path, out, err);
}

status model_config_load(const char *dir, const char *const *overrides, size_t n_overrides,
                         model_config *out, error *err)
{
    if (gguf_is_path(dir)) return load_gguf(dir, overrides, n_overrides, out, err);
    if (is_config_file(dir)) return load_config_file(dir, overrides, n_overrides, out, err);
    char path[4096], generation_path[4096];
    RETURN_IF_ERROR(file_join(path, sizeof path, dir, "config.json", err));
    RETURN_IF_ERROR(
        file_join(generation_path, sizeof generation_path, dir, "generation_config.json", err));
    json_t *config = NULL, *generation = NULL;
    RETURN_IF_ERROR(json_read_file(path, MODEL_JSON_BYTES_MAX, &config, err));
    status result = STATUS_IS_OK;
    if (file_exists(generation_path))
        result = json_read_file(generation_path, MODEL_JSON_BYTES_MAX, &generation, err);
    if (status_ok(result))
        result = read_overridden(json_incref(config), path, overrides, n_overrides, generation,
                                 generation_path, out, err);
    json_decref(config);
    json_decref(generation);
    return result;
}
