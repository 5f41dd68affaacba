/* Readers of config.json that several families share. */
#include "model/config.h"
#include "model/family.h"

#include <string.h>

/* Limits far above any published model. */
enum { EXPERTS_MAX = 1024, EXPERTS_OF_TOKEN_MAX = 64, EXPERTS_OF_MODEL_MAX = 1 << 16 };
enum { EXPERT_FFN_MAX = 1 << 22 };

status family_refuse_true(const json_t *json, const char *where, const char *const *keys,
                          error *err)
{
    for (; *keys; keys++) {
        bool is;
        RETURN_IF_ERROR(json_get_bool(json, where, *keys, false, &is, err));
        if (is)
            return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": true is not supported", where,
                             *keys);
    }
    return STATUS_IS_OK;
}

uint32_t model_max_length(const model_config *c)
{
    if (c->rope.kind != ROPE_DYNAMIC) return c->max_positions;
    double stretched = c->max_positions * c->rope.factor;
    return stretched < MODEL_POSITIONS_MAX ? (uint32_t)stretched : MODEL_POSITIONS_MAX;
}

/* ---- windows --------------------------------------------------------------------------------- */

/* A window as long as the context is no window. */
static status read_window(const json_t *json, const char *where, uint32_t fallback, model_config *c,
                          error *err)
{
    int64_t window;
    if (json_is_null(json_object_get(json, "sliding_window"))) fallback = 0;
    RETURN_IF_ERROR(
        json_get_int(json, where, "sliding_window", 1, INT32_MAX, fallback, &window, err));
    c->window = window < model_max_length(c) ? (uint32_t)window : 0;
    return STATUS_IS_OK;
}

status family_read_window(const json_t *json, const char *where, uint32_t fallback, model_config *c,
                          error *err)
{
    RETURN_IF_ERROR(read_window(json, where, fallback, c, err));
    for (uint32_t l = 0; c->window && l < c->n_layers; l++) c->layers[l] |= LAYER_WINDOW;
    return STATUS_IS_OK;
}

/* Sets the layers with a window. model_config_read checks the names in "layer_types" later. */
static status choose_layers(const json_t *json, const char *where, model_config *c, error *err)
{
    const json_t *types = json_object_get(json, "layer_types");
    int64_t first;
    RETURN_IF_ERROR(json_get_int(json, where, "max_window_layers", 0, INT32_MAX, 28, &first, err));
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        bool window = type ? strcmp(type, "sliding_attention") == 0 : l >= first;
        if (window) c->layers[l] |= LAYER_WINDOW;
    }
    return STATUS_IS_OK;
}

status family_read_optional_window(const json_t *json, const char *where, bool by_layer,
                                   model_config *c, error *err)
{
    enum { TRANSFORMERS_DEFAULT = 4096 };
    bool wanted;
    RETURN_IF_ERROR(json_get_bool(json, where, "use_sliding_window", false, &wanted, err));
    if (!wanted) return STATUS_IS_OK;
    if (!by_layer) return family_read_window(json, where, TRANSFORMERS_DEFAULT, c, err);
    RETURN_IF_ERROR(read_window(json, where, TRANSFORMERS_DEFAULT, c, err));
    return choose_layers(json, where, c, err);
}

/* ---- experts --------------------------------------------------------------------------------- */

static status need_count(const json_t *json, const char *where, const char *key, int64_t max,
                         uint32_t *out, error *err)
{
    int64_t v;
    RETURN_IF_ERROR(json_get_int(json, where, key, 1, max, 0, &v, err));
    if (v == 0) return error_set(err, STATUS_INVALID, "%s: \"%s\" is missing", where, key);
    *out = (uint32_t)v;
    return STATUS_IS_OK;
}

static bool is_given(const json_t *json, const char *key)
{
    const json_t *v = json_object_get(json, key);
    return v && !json_is_null(v);
}

/* Reads the number of experts and sets *key to the key that gave it. Files of every family have it
 * under either name: transformers 5 saves a Qwen3-MoE with num_local_experts, transformers 4 with
 * num_experts. */
static status read_expert_count(const json_t *json, const char *where, const char **key,
                                model_config *c, error *err)
{
    static const char *const keys[] = {"num_experts", "num_local_experts"};
    const char *other = strcmp(*key, keys[0]) == 0 ? keys[1] : keys[0];
    bool both = is_given(json, *key) && is_given(json, other);
    if (!is_given(json, *key) && is_given(json, other)) *key = other;
    RETURN_IF_ERROR(need_count(json, where, *key, EXPERTS_MAX, &c->n_experts, err));
    if (!both) return STATUS_IS_OK;
    uint32_t again = 0;
    RETURN_IF_ERROR(need_count(json, where, other, EXPERTS_MAX, &again, err));
    if (again == c->n_experts) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: \"%s\" is %u and \"%s\" is %u", where, *key,
                     c->n_experts, other, again);
}

status family_read_experts(const json_t *json, const char *where, const char *count_key,
                           const char *ffn_key, model_config *c, error *err)
{
    RETURN_IF_ERROR(read_expert_count(json, where, &count_key, c, err));
    RETURN_IF_ERROR(need_count(json, where, ffn_key, EXPERT_FFN_MAX, &c->expert_ffn, err));
    RETURN_IF_ERROR(need_count(json, where, "num_experts_per_tok", EXPERTS_OF_TOKEN_MAX,
                               &c->experts_per_token, err));
    if (c->experts_per_token > c->n_experts)
        return error_set(err, STATUS_INVALID, "%s: \"num_experts_per_tok\" is %u of %u experts",
                         where, c->experts_per_token, c->n_experts);
    if (c->n_layers * c->n_experts > EXPERTS_OF_MODEL_MAX)
        return error_set(err, STATUS_LIMIT, "%s: \"%s\": %u in each of %u layers are too many",
                         where, count_key, c->n_experts, c->n_layers);
    return STATUS_IS_OK;
}

status family_read_shared_expert(const json_t *json, const char *where, const char *ffn_key,
                                 model_config *c, error *err)
{
    return need_count(json, where, ffn_key, EXPERT_FFN_MAX, &c->shared_ffn, err);
}
