/* "fp8": E4M3 values with a scale for each block of "weight_block_size" (transformers,
 * integrations/finegrained_fp8.py; DeepSeek-V3), or one for the whole tensor (vLLM). */
#include "model/load/quantized/scheme.h"

static status fp8_read(const json_t *json, const char *where, quantized *q, error *err)
{
    static const char *const refused[] = {"kv_cache_scheme", "kv_cache_quant_method", NULL};
    static const struct {
        const char *key, *known[3];
    } words[] = {{"activation_scheme", {"dynamic", "static"}}, {"fmt", {"e4m3"}}};
    RETURN_IF_ERROR(quantized_refuse(json, where, refused, err));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *value;
        RETURN_IF_ERROR(json_get_string(json, where, words[i].key, &value, err));
        bool known = !value;
        for (size_t k = 0; words[i].known[k] && !known; k++)
            known = strcmp(words[i].known[k], value) == 0;
        if (!known)
            return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": \"%.64s\" is not supported",
                             where, words[i].key, value);
    }
    bool own = json_object_get(json, "modules_to_not_convert") != NULL;
    RETURN_IF_ERROR(quantized_read_names(q, json, where,
                                         own ? "modules_to_not_convert" : "ignored_layers", false,
                                         &q->ignored, err));
    quantized_group *g = quantized_add_group(q, "fp8");
    if (!g) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    g->bits = 8;
    g->is_float = g->symmetric = true;
    const json_t *block = json_object_get(json, "weight_block_size");
    if (!block || json_is_null(block)) return STATUS_IS_OK;
    return quantized_read_block(json, where, "weight_block_size", g, err);
}

static status fp8_match(const quantized_place *at, quantized_weight *w, bool *found, error *err)
{
    const quantized_group *g = &at->q->groups[0];
    const safetensors_tensor *t = quantized_find(at, "weight");
    const char *name = quantized_find(at, "weight_scale_inv") ? "weight_scale_inv" : "weight_scale";
    const safetensors_tensor *scales = quantized_find(at, name);
    if (!t || (t->type != SAFETENSORS_F8_E4M3 && !scales)) return STATUS_IS_OK;
    RETURN_IF_ERROR(quantized_refuse_ignored(at, err));
    *found = true;
    w->bits = 8;
    w->is_float = true;
    const uint64_t shape[] = {at->rows, at->cols};
    RETURN_IF_ERROR(quantized_take(at, "weight", 1u << SAFETENSORS_F8_E4M3, shape, 2,
                                   QUANTIZED_VALUES, w, err));
    w->unpack = quantized_unpack_e4m3;
    RETURN_IF_ERROR(quantized_set_groups(at, g->group_cols, true, w, err));
    w->group_rows = g->group_rows ? g->group_rows : at->rows;
    w->scale_row_step = w->n_groups;
    w->scale_step = 1;
    const uint64_t blocks[] = {(at->rows + w->group_rows - 1) / w->group_rows, w->n_groups};
    bool flat = scales && scales->n_dims < 2 && !g->group_rows;
    RETURN_IF_ERROR(quantized_take_scales(at, name, blocks, flat ? scales->n_dims : 2, w, err));
    quantized_skip(at, "input_scale");
    quantized_skip(at, "activation_scale");
    return STATUS_IS_OK;
}

const quantized_scheme quantized_fp8 = {"fp8", fp8_read, fp8_match};
