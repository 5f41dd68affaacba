/* "compressed-tensors" (quantization/quant_args.py, compressors/): groups of modules, each
 * quantised in its own way. Packed integers lie along a row, the low bits of a 32-bit word first,
 * with half of their range added. Packed zero points lie in the same way along a column. */
#include "model/load/quantized/scheme.h"

/* How "format" says that a group's values are stored. */
typedef enum storage { STORED_EITHER, STORED_PLAIN, STORED_PACKED } storage;

static const struct {
    const char *name;
    storage storage;
} formats[] = {
    {"pack-quantized", STORED_PACKED},  {"int-quantized", STORED_PLAIN},
    {"float-quantized", STORED_PLAIN},  {"naive-quantized", STORED_PLAIN},
    {"mixed-precision", STORED_EITHER}, /* each group has its own format */
};

static status read_format(const json_t *json, const char *where, storage fallback, storage *out,
                          error *err)
{
    const char *name;
    *out = fallback;
    RETURN_IF_ERROR(json_get_string(json, where, "format", &name, err));
    if (!name) return STATUS_IS_OK;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, name) != 0) continue;
        *out = formats[i].storage;
        return STATUS_IS_OK;
    }
    return error_set(err, STATUS_UNSUPPORTED, "%s: \"format\": \"%.64s\" is not supported", where,
                     name);
}

/* Refuses keys outside this list, as the library does: the effect of a new key is unknown. */
static status know_keys(const json_t *json, const char *where, const char *const *known, error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)json, key, value)
    {
        bool found = json_is_null(value);
        for (size_t i = 0; !found && known[i]; i++) found = strcmp(known[i], key) == 0;
        if (!found)
            return error_set(err, STATUS_UNSUPPORTED, "%s: \"%.64s\" is not supported", where, key);
    }
    return STATUS_IS_OK;
}

/* ---- "weights" of a group -------------------------------------------------------------------- */

/* Reads which weights share a scale. */
static status read_strategy(const json_t *json, const char *where, quantized_group *g, error *err)
{
    const char *name;
    size_t size;
    RETURN_IF_ERROR(json_get_string(json, where, "strategy", &name, err));
    RETURN_IF_ERROR(quantized_read_group_size(json, where, "group_size", -1, &size, err));
    if (!name) {
        bool given = json_is_integer(json_object_get(json, "group_size"));
        name = size ? "group" : given ? "channel" : "tensor";
    }
    g->group_rows = 1;
    g->group_cols = size;
    if (strcmp(name, "group") == 0 && size) return STATUS_IS_OK;
    if (strcmp(name, "channel") == 0 && !size) return STATUS_IS_OK;
    if (strcmp(name, "block") == 0 && !size && g->is_float)
        return quantized_read_block(json, where, "block_structure", g, err);
    g->group_rows = 0;
    if (strcmp(name, "tensor") == 0 && !size) return STATUS_IS_OK;
    return error_set(
        err, STATUS_UNSUPPORTED,
        "%s: \"strategy\": \"%.64s\" with a \"group_size\" of %zu is not supported for "
        "%s",
        where, name, size, g->is_float ? "floats" : "integers");
}

static status read_weights(const json_t *json, const char *where, quantized_group *g, error *err)
{
    static const char *const known[] = {
        "num_bits", "type",     "symmetric", "strategy", "group_size",  "block_structure",
        "actorder", "observer", "dynamic",   "zp_dtype", "scale_dtype", "observer_kwargs",
        NULL};
    static const char *const refused[] = {"dynamic", NULL};
    int64_t bits;
    const char *type;
    if (!json_is_object(json))
        return error_set(err, STATUS_UNSUPPORTED, "%s: is missing, or no object", where);
    RETURN_IF_ERROR(know_keys(json, where, known, err));
    RETURN_IF_ERROR(quantized_refuse(json, where, refused, err));
    RETURN_IF_ERROR(json_get_int(json, where, "num_bits", 1, 64, 8, &bits, err));
    RETURN_IF_ERROR(json_get_bool(json, where, "symmetric", true, &g->symmetric, err));
    RETURN_IF_ERROR(json_get_string(json, where, "type", &type, err));
    g->bits = (uint8_t)bits;
    g->is_float = type && strcmp(type, "float") == 0;
    bool known_type = !type || g->is_float || strcmp(type, "int") == 0;
    if (!known_type || !(bits == 8 || (bits == 4 && !g->is_float)))
        return error_set(
            err, STATUS_UNSUPPORTED,
            "%s: \"num_bits\" %d of \"type\" \"%.64s\" is not supported, only float of "
            "8 bits and int of 4 and 8",
            where, (int)bits, type ? type : "int");
    RETURN_IF_ERROR(read_strategy(json, where, g, err));
    if (!g->symmetric && (g->is_float || g->group_rows != 1))
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"symmetric\": false is supported for integers by \"group\" and "
                         "\"channel\" only",
                         where);
    return STATUS_IS_OK;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static status read_group(const json_t *json, const char *name, const char *where, storage fallback,
                         quantized *q, error *err)
{
    static const char *const known[] = {"targets", "weights", "input_activations", "format", NULL};
    char place[320];
    storage stored;
    if (!json_is_object(json))
        return error_set(err, STATUS_UNSUPPORTED, "%s: must be an object (presets are not known)",
                         where);
    RETURN_IF_ERROR(know_keys(json, where, known, err));
    quantized_group *g = quantized_add_group(q, name);
    if (!g)
        return error_set(err, STATUS_LIMIT, "%s: more than %d groups, or out of memory", where,
                         QUANTIZED_WAYS_MAX);
    snprintf(place, sizeof place, "%s: \"weights\"", where);
    RETURN_IF_ERROR(read_weights(json_object_get(json, "weights"), place, g, err));
    RETURN_IF_ERROR(read_format(json, where, fallback, &stored, err));
    RETURN_IF_ERROR(quantized_read_names(q, json, where, "targets", true, &g->targets, err));
    if (g->targets.n == 0)
        return error_set(err, STATUS_INVALID, "%s: \"targets\" is missing or empty", where);
    if (g->is_float && stored == STORED_PACKED)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"format\": \"pack-quantized\" of floats is not supported", where);
    g->packed = stored == STORED_PACKED || (stored == STORED_EITHER && !g->is_float);
    return STATUS_IS_OK;
}

static status read_groups(const json_t *json, const char *where, quantized *q, error *err)
{
    const json_t *groups = json_object_get(json, "config_groups");
    storage stored;
    char place[256];
    const char *name;
    json_t *group;
    RETURN_IF_ERROR(read_format(json, where, STORED_EITHER, &stored, err));
    if (json_object_size(groups) == 0)
        return error_set(err, STATUS_INVALID, "%s: \"config_groups\" is missing or empty", where);
    json_object_foreach((json_t *)(uintptr_t)groups, name, group)
    {
        for (const char *c = name; *c; c++)
            if ((uint8_t)*c < 0x20 || *c == 0x7f)
                return error_set(err, STATUS_INVALID,
                                 "%s: \"config_groups\": a name with control characters", where);
        /* Only the end of a long path is kept, so that the group's name has room. */
        size_t n = strlen(where), cut = n > 160 ? n - 160 : 0;
        snprintf(place, sizeof place, "%s: \"%.64s\"", where + cut, name);
        RETURN_IF_ERROR(read_group(group, name, place, stored, q, err));
    }
    return STATUS_IS_OK;
}

/* Older writers left "frozen" here, compressed or not; the files decide. */
static status read_status(const json_t *json, const char *where, error *err)
{
    const char *name;
    RETURN_IF_ERROR(json_get_string(json, where, "quantization_status", &name, err));
    if (!name || strcmp(name, "compressed") == 0 || strcmp(name, "frozen") == 0)
        return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "%s: \"quantization_status\": \"%.64s\" is not supported, only compressed",
                     where, name);
}

/* Accepts the "dense" that older writers give for a model without sparsity. */
static status read_sparsity(const json_t *json, const char *where, error *err)
{
    static const char *const keys[] = {"sparsity_config", NULL};
    const json_t *sparsity = json_object_get(json, keys[0]);
    const char *format = json_string_value(json_object_get(sparsity, "format"));
    if (format && strcmp(format, "dense") == 0) return STATUS_IS_OK;
    if (format)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"sparsity_config\": \"format\": \"%.64s\" is not supported", where,
                         format);
    return quantized_refuse(json, where, keys, err);
}

static status ct_read(const json_t *json, const char *where, quantized *q, error *err)
{
    static const char *const refused[] = {"kv_cache_scheme", "transform_config",
                                          "moe_sparsity_config", NULL};
    RETURN_IF_ERROR(quantized_refuse(json, where, refused, err));
    RETURN_IF_ERROR(read_sparsity(json, where, err));
    RETURN_IF_ERROR(read_status(json, where, err));
    RETURN_IF_ERROR(quantized_read_names(q, json, where, "ignore", true, &q->ignored, err));
    return read_groups(json, where, q, err);
}

/* ---- values ---------------------------------------------------------------------------------- */

static size_t words_of(const quantized_weight *w, size_t n) { return (n * w->bits + 31) / 32; }

static void ct_unpack(const quantized_weight *w, size_t row, size_t col, size_t n, float *out)
{
    const uint8_t *in = w->in[QUANTIZED_VALUES].data + row * words_of(w, w->cols) * 4;
    for (size_t i = 0; i < n; i++) {
        size_t k = col + i;
        out[i] = (float)(w->bits == 8 ? in[k] : in[k / 2] >> (k % 2 * 4) & 15);
    }
}

/* Half of the range, which packing added to every value. */
static float zero_of_none(const quantized_weight *w, size_t row, size_t group)
{
    (void)row;
    (void)group;
    return (float)(1u << (w->bits - 1));
}

static float zero_packed(const quantized_weight *w, size_t row, size_t group)
{
    size_t each = 32 / w->bits;
    uint32_t word = quantized_word(w, QUANTIZED_ZEROS, row / each * w->n_groups + group);
    return (float)(word >> (row % each * w->bits) & ((1u << w->bits) - 1));
}

static float zero_plain(const quantized_weight *w, size_t row, size_t group)
{
    return (float)(int8_t)w->in[QUANTIZED_ZEROS].data[row * w->n_groups + group];
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Finds the group that names a module best: by exact name, else by a pattern, else as Linear. */
static status group_of(const quantized_place *at, const quantized_group **out, error *err)
{
    quantized_match_kind best = NAME_NONE;
    const char *best_text = NULL;
    const quantized_group *linear = NULL;
    *out = NULL;
    for (size_t i = 0; i < at->q->n_groups; i++) {
        const quantized_group *g = &at->q->groups[i];
        quantized_match_kind kind;
        const char *text;
        RETURN_IF_ERROR(quantized_names_find(at, &g->targets, &kind, &text, err));
        if (!linear && at->is_linear && quantized_names_has(&g->targets, "Linear")) linear = g;
        if (kind < best || kind == NAME_NONE) continue;
        if (kind == best && strcmp(text, best_text) >= 0) continue;
        best = kind;
        best_text = text;
        *out = g;
    }
    if (!*out) *out = linear;
    return STATUS_IS_OK;
}

/* Takes the scales. Their shape is [rows, groups]; a whole tensor has one scale, and whole rows may
 * have [rows]. */
static status take_scales(const quantized_place *at, const quantized_group *g, quantized_weight *w,
                          error *err)
{
    size_t tall = g->group_rows ? g->group_rows : at->rows;
    RETURN_IF_ERROR(quantized_set_groups(at, g->group_cols, tall > 1, w, err));
    w->group_rows = tall;
    w->scale_row_step = w->n_groups;
    w->scale_step = 1;
    const uint64_t shape[] = {(at->rows + tall - 1) / tall, w->n_groups};
    const safetensors_tensor *t = quantized_find(at, "weight_scale");
    uint32_t n_dims = 2;
    if (t && t->n_dims < 2 && !g->group_rows) n_dims = t->n_dims; /* [1], or no dimensions */
    if (t && t->n_dims == 1 && tall == 1 && w->n_groups == 1) n_dims = 1;
    return quantized_take_scales(at, "weight_scale", shape, n_dims, w, err);
}

static status take_packed(const quantized_place *at, const quantized_group *g, quantized_weight *w,
                          error *err)
{
    static const uint32_t words = 1u << SAFETENSORS_I32;
    const uint64_t values[] = {at->rows, words_of(w, at->cols)}, two[] = {2};
    const uint64_t zeros[] = {words_of(w, at->rows), w->n_groups};
    RETURN_IF_ERROR(
        quantized_take(at, "weight_packed", words, values, 2, QUANTIZED_VALUES, w, err));
    w->unpack = ct_unpack;
    w->zero = zero_of_none;
    if (!g->symmetric) {
        RETURN_IF_ERROR(
            quantized_take(at, "weight_zero_point", words, zeros, 2, QUANTIZED_ZEROS, w, err));
        w->zero = zero_packed;
    }
    if (!quantized_find(at, "weight_shape")) return STATUS_IS_OK;
    quantized_weight shape = {0};
    RETURN_IF_ERROR(quantized_take(at, "weight_shape", 1u << SAFETENSORS_I64 | words, two, 1,
                                   QUANTIZED_VALUES, &shape, err));
    int64_t is[2] = {0};
    const quantized_bytes *in = &shape.in[QUANTIZED_VALUES];
    for (size_t i = 0; i < 2; i++) memcpy(&is[i], in->data + i * in->bytes / 2, in->bytes / 2);
    if ((uint64_t)is[0] == at->rows && (uint64_t)is[1] == at->cols) return STATUS_IS_OK;
    return error_set(
        err, STATUS_CORRUPT,
        "%s: tensor \"%s.weight_shape\" is %lld x %lld, config.json makes it %zu x %zu",
        at->q->where, at->module, (long long)is[0], (long long)is[1], at->rows, at->cols);
}

static status take_plain(const quantized_place *at, const quantized_group *g, quantized_weight *w,
                         error *err)
{
    const uint64_t shape[] = {at->rows, at->cols}, zeros[] = {at->rows, w->n_groups};
    uint32_t type = 1u << (g->is_float ? SAFETENSORS_F8_E4M3 : SAFETENSORS_I8);
    RETURN_IF_ERROR(quantized_take(at, "weight", type, shape, 2, QUANTIZED_VALUES, w, err));
    w->unpack = g->is_float ? quantized_unpack_e4m3 : quantized_unpack_i8;
    if (g->symmetric) return STATUS_IS_OK;
    RETURN_IF_ERROR(quantized_take(at, "weight_zero_point", 1u << SAFETENSORS_I8, zeros, 2,
                                   QUANTIZED_ZEROS, w, err));
    w->zero = zero_plain;
    return STATUS_IS_OK;
}

static bool is_plain_float(const safetensors_tensor *t)
{
    return t && (t->type == SAFETENSORS_F32 || t->type == SAFETENSORS_F16 ||
                 t->type == SAFETENSORS_BF16);
}

static status ct_match(const quantized_place *at, quantized_weight *w, bool *found, error *err)
{
    const quantized_group *g;
    if (is_plain_float(quantized_find(at, "weight")) && !quantized_find(at, "weight_scale"))
        return STATUS_IS_OK;
    RETURN_IF_ERROR(quantized_refuse_ignored(at, err));
    RETURN_IF_ERROR(group_of(at, &g, err));
    if (!g) return STATUS_IS_OK; /* the caller reports an unknown or missing tensor */
    *found = true;
    w->bits = g->bits;
    w->is_float = g->is_float;
    RETURN_IF_ERROR(take_scales(at, g, w, err));
    RETURN_IF_ERROR(g->packed ? take_packed(at, g, w, err) : take_plain(at, g, w, err));
    static const char *const of_activations[] = {"input_scale", "input_zero_point"};
    for (size_t i = 0; i < sizeof of_activations / sizeof *of_activations; i++)
        quantized_skip(at, of_activations[i]);
    return quantized_take_order(at, "weight_g_idx", true, w, err);
}

const quantized_scheme quantized_compressed_tensors = {"compressed-tensors", ct_read, ct_match};
