/* "gptq" (AutoGPTQ and GPTQModel, nn_modules/qlinear). Values are words [columns of W / n, rows of
 * W], where a word holds n columns; a word of zeros holds n rows. "g_idx" is each column's group.
 * The first checkpoint format stores zeros minus one. Its readers add one to each field of a word
 * with carries between fields, because its writers subtracted it so. */
#include "model/load/quantized/scheme.h"

static status read_format(const json_t *json, const char *where, quantized *q, uint8_t bits,
                          error *err)
{
    const char *key = json_object_get(json, "checkpoint_format") ? "checkpoint_format" : "format";
    const char *name;
    RETURN_IF_ERROR(json_get_string(json, where, key, &name, err));
    bool second = name && strcmp(name, "gptq_v2") == 0;
    if (name && !second && strcmp(name, "gptq") != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"%s\": \"%.64s\" is not supported, only gptq and gptq_v2", where,
                         key, name);
    q->zero_plus = second ? 0 : bits == 8 ? 0x01010101 : 0x11111111;
    RETURN_IF_ERROR(json_get_string(json, where, "pack_dtype", &name, err));
    if (name && strcmp(name, "int32") != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"pack_dtype\": \"%.64s\" is not supported, only int32", where, name);
    return STATUS_IS_OK;
}

static status gptq_read(const json_t *json, const char *where, quantized *q, error *err)
{
    static const char *const refused[] = {"dynamic", "is_marlin_format",  "rotation",
                                          "adapter", "is_bitblas_format", "kv_cache_scheme",
                                          NULL};
    int64_t bits;
    size_t size;
    RETURN_IF_ERROR(quantized_refuse(json, where, refused, err));
    RETURN_IF_ERROR(json_get_int(json, where, "bits", 1, 64, 4, &bits, err));
    if (bits != 4 && bits != 8)
        return error_set(err, STATUS_UNSUPPORTED, "%s: \"bits\": %d is not supported, only 4 and 8",
                         where, (int)bits);
    RETURN_IF_ERROR(read_format(json, where, q, (uint8_t)bits, err));
    RETURN_IF_ERROR(quantized_read_group_size(json, where, "group_size", 128, &size, err));
    quantized_group *g = quantized_add_group(q, "gptq");
    if (!g) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    g->bits = (uint8_t)bits;
    g->group_rows = 1;
    g->group_cols = size;
    return STATUS_IS_OK;
}

static void gptq_unpack(const quantized_weight *w, size_t row, size_t col, size_t n, float *out)
{
    size_t each = 32 / w->bits;
    uint32_t mask = (1u << w->bits) - 1;
    for (size_t i = 0; i < n; i++) {
        size_t k = col + i;
        uint32_t word = quantized_word(w, QUANTIZED_VALUES, k / each * w->rows + row);
        out[i] = (float)(word >> (k % each * w->bits) & mask);
    }
}

static float gptq_zero(const quantized_weight *w, size_t row, size_t group)
{
    size_t each = 32 / w->bits;
    uint32_t word = quantized_word(w, QUANTIZED_ZEROS, group * (w->rows / each) + row / each);
    return (float)((word + w->zero_plus) >> (row % each * w->bits) & ((1u << w->bits) - 1));
}

/* Marks as used a bias of zeros, which some writers give every module. A bias with values is a part
 * of the model, or is left over and refused. */
static void skip_empty_bias(const quantized_place *at)
{
    const safetensors_tensor *t = quantized_find(at, "bias");
    bool zeros = t != NULL;
    for (size_t i = 0; zeros && i < t->bytes; i++)
        zeros = at->st->files[t->file].map.data[t->begin + i] == 0;
    if (zeros) quantized_skip(at, "bias");
}

static status gptq_match(const quantized_place *at, quantized_weight *w, bool *found, error *err)
{
    static const uint32_t words = 1u << SAFETENSORS_I32;
    if (!quantized_find(at, "qweight")) return STATUS_IS_OK;
    *found = true;
    w->bits = at->q->groups[0].bits;
    w->zero_plus = at->q->zero_plus;
    w->unpack = gptq_unpack;
    w->zero = gptq_zero;
    size_t each = 32 / w->bits;
    if (at->rows % each || at->cols % each)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"%s\" has %zu rows of %zu, not multiples of %zu", at->q->where,
                         at->module, at->rows, at->cols, each);
    RETURN_IF_ERROR(quantized_set_groups(at, at->q->groups[0].group_cols, true, w, err));
    w->scale_row_step = 1;
    w->scale_step = at->rows;
    const uint64_t values[] = {at->cols / each, at->rows}, scales[] = {w->n_groups, at->rows};
    const uint64_t zeros[] = {w->n_groups, at->rows / each};
    RETURN_IF_ERROR(quantized_take(at, "qweight", words, values, 2, QUANTIZED_VALUES, w, err));
    RETURN_IF_ERROR(quantized_take(at, "qzeros", words, zeros, 2, QUANTIZED_ZEROS, w, err));
    RETURN_IF_ERROR(quantized_take_scales(at, "scales", scales, 2, w, err));
    skip_empty_bias(at);
    return quantized_take_order(at, "g_idx", false, w, err);
}

const quantized_scheme quantized_gptq = {"gptq", gptq_read, gptq_match};
