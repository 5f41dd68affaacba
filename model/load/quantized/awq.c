/* "awq" in its form "gemm" (AutoAWQ, modules/linear/gemm.py). Values are words [columns of W, rows
 * of W / 8]; a word holds eight rows, the even ones first. */
#include "model/load/quantized/scheme.h"

#include <strings.h>

enum { BITS = 4, EACH = 32 / BITS };

/* The half byte of a word that holds row i of eight. */
static const uint8_t place_of[EACH] = {0, 4, 1, 5, 2, 6, 3, 7};

static status awq_read(const json_t *json, const char *where, quantized *q, error *err)
{
    const char *version;
    bool zero_point;
    int64_t bits;
    size_t size;
    const char *bits_key = json_object_get(json, "bits") ? "bits" : "w_bit";
    const char *size_key = json_object_get(json, "group_size") ? "group_size" : "q_group_size";
    const char *form_key = json_object_get(json, "version") ? "version" : "format";
    RETURN_IF_ERROR(json_get_int(json, where, bits_key, 1, 64, BITS, &bits, err));
    if (bits != BITS)
        return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": %d is not supported, only %d", where,
                         bits_key, (int)bits, BITS);
    RETURN_IF_ERROR(json_get_string(json, where, form_key, &version, err));
    if (version && strcasecmp(version, "gemm") != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"%s\": \"%.64s\" is not supported, only gemm", where, form_key,
                         version);
    RETURN_IF_ERROR(json_get_bool(json, where, "zero_point", true, &zero_point, err));
    if (!zero_point)
        return error_set(err, STATUS_UNSUPPORTED, "%s: \"zero_point\": false is not supported",
                         where);
    RETURN_IF_ERROR(quantized_read_group_size(json, where, size_key, 128, &size, err));
    RETURN_IF_ERROR(
        quantized_read_names(q, json, where, "modules_to_not_convert", false, &q->ignored, err));
    quantized_group *g = quantized_add_group(q, "awq");
    if (!g) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    g->bits = BITS;
    g->group_rows = 1;
    g->group_cols = size;
    return STATUS_IS_OK;
}

static void awq_unpack(const quantized_weight *w, size_t row, size_t col, size_t n, float *out)
{
    size_t words = w->rows / EACH, shift = (size_t)place_of[row % EACH] * BITS;
    for (size_t i = 0; i < n; i++)
        out[i] =
            (float)(quantized_word(w, QUANTIZED_VALUES, (col + i) * words + row / EACH) >> shift &
                    15);
}

static float awq_zero(const quantized_weight *w, size_t row, size_t group)
{
    uint32_t word = quantized_word(w, QUANTIZED_ZEROS, group * (w->rows / EACH) + row / EACH);
    return (float)(word >> (place_of[row % EACH] * BITS) & 15);
}

static status awq_match(const quantized_place *at, quantized_weight *w, bool *found, error *err)
{
    static const uint32_t words = 1u << SAFETENSORS_I32;
    if (!quantized_find(at, "qweight")) return STATUS_IS_OK;
    RETURN_IF_ERROR(quantized_refuse_ignored(at, err));
    *found = true;
    w->bits = BITS;
    w->unpack = awq_unpack;
    w->zero = awq_zero;
    if (at->rows % EACH)
        return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\" has %zu rows, not a multiple of %d",
                         at->q->where, at->module, at->rows, EACH);
    RETURN_IF_ERROR(quantized_set_groups(at, at->q->groups[0].group_cols, false, w, err));
    w->scale_row_step = 1;
    w->scale_step = at->rows;
    const uint64_t values[] = {at->cols, at->rows / EACH}, zeros[] = {w->n_groups, values[1]};
    const uint64_t scales[] = {w->n_groups, at->rows};
    RETURN_IF_ERROR(quantized_take(at, "qweight", words, values, 2, QUANTIZED_VALUES, w, err));
    RETURN_IF_ERROR(quantized_take(at, "qzeros", words, zeros, 2, QUANTIZED_ZEROS, w, err));
    return quantized_take_scales(at, "scales", scales, 2, w, err);
}

const quantized_scheme quantized_awq = {"awq", awq_read, awq_match};
