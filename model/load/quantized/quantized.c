#include "model/load/quantized/quantized.h"

#include "model/config.h"
#include "model/load/quantized/scheme.h"

#include <string.h>

static const quantized_scheme *const schemes[] = {&quantized_compressed_tensors, &quantized_fp8,
                                                  &quantized_awq, &quantized_gptq};

/* ---- configuration --------------------------------------------------------------------------- */

static bool has_value(const json_t *v)
{
    if (!v || json_is_null(v) || json_is_false(v)) return false;
    if (json_is_object(v)) return json_object_size(v) > 0;
    if (json_is_array(v)) return json_array_size(v) > 0;
    return !json_is_string(v) || json_string_length(v) > 0;
}

status quantized_refuse(const json_t *json, const char *where, const char *const *keys, error *err)
{
    for (; *keys; keys++)
        if (has_value(json_object_get(json, *keys)))
            return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\" is not supported", where, *keys);
    return STATUS_IS_OK;
}

status quantized_read_group_size(const json_t *json, const char *where, const char *key,
                                 int64_t fallback, size_t *out, error *err)
{
    enum { GROUP_MAX = 1 << 20 };
    int64_t v;
    RETURN_IF_ERROR(json_get_int(json, where, key, -1, GROUP_MAX, fallback, &v, err));
    if (v == 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": 0 is not supported", where, key);
    *out = v < 0 ? 0 : (size_t)v;
    return STATUS_IS_OK;
}

status quantized_read_block(const json_t *json, const char *where, const char *key,
                            quantized_group *g, error *err)
{
    const json_t *block = json_object_get(json, key);
    json_int_t rows = json_integer_value(json_array_get(block, 0));
    json_int_t cols = json_integer_value(json_array_get(block, 1));
    if (json_array_size(block) != 2 || rows < 1 || cols < 1 || rows > INT32_MAX || cols > INT32_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\" must be two sizes, rows and columns",
                         where, key);
    g->group_rows = (size_t)rows;
    g->group_cols = (size_t)cols;
    return STATUS_IS_OK;
}

quantized_group *quantized_add_group(quantized *q, const char *name)
{
    if (!q->groups)
        q->groups = arena_alloc_array(&q->memory, QUANTIZED_WAYS_MAX, sizeof *q->groups);
    if (!q->groups || q->n_groups == QUANTIZED_WAYS_MAX) return NULL;
    quantized_group *g = &q->groups[q->n_groups];
    g->name = arena_strndup(&q->memory, name, strlen(name));
    if (!g->name) return NULL;
    q->n_groups++;
    return g;
}

/* Reads json, which is the "quantization_config" itself. */
static status read_scheme(const json_t *json, const char *where, quantized *q, error *err)
{
    const char *method;
    if (!json_is_object(json))
        return error_set(err, STATUS_INVALID, "%s: must be an object", where);
    RETURN_IF_ERROR(json_get_string(json, where, "quant_method", &method, err));
    if (!method) return error_set(err, STATUS_INVALID, "%s: \"quant_method\" is missing", where);
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (strcmp(method, schemes[i]->method) == 0) q->scheme = schemes[i];
    if (!q->scheme)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"quant_method\": \"%.64s\" is not supported", where, method);
    return q->scheme->read(json, where, q, err);
}

status quantized_read(const json_t *config, const char *where, quantized *out, error *err)
{
    *out = (quantized){0};
    const json_t *json = json_object_get(config, "quantization_config");
    if (!json || json_is_null(json)) return STATUS_IS_OK;
    arena_init(&out->memory, 4 << 10, 0);
    strbuf place = {0};
    strbuf_printf(&place, "%s: \"quantization_config\"", where);
    status s = place.failed ? error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where)
                            : read_scheme(json, place.data, out, err);
    if (status_ok(s)) {
        out->where = arena_strndup(&out->memory, place.data, place.size);
        if (!out->where) s = error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    }
    strbuf_destroy(&place);
    if (!status_ok(s)) quantized_close(out);
    return s;
}

status quantized_open(const char *dir, quantized *out, error *err)
{
    char path[4096];
    json_t *config;
    *out = (quantized){0};
    RETURN_IF_ERROR(file_join(path, sizeof path, dir, "config.json", err));
    RETURN_IF_ERROR(json_read_file(path, MODEL_JSON_BYTES_MAX, &config, err));
    status s = quantized_read(config, path, out, err);
    json_decref(config);
    return s;
}

void quantized_close(quantized *q)
{
    if (!q) return;
    for (size_t i = 0; i < q->n_groups; i++) quantized_names_close(&q->groups[i].targets);
    quantized_names_close(&q->ignored);
    arena_destroy(&q->memory);
    *q = (quantized){0};
}

void quantized_describe(const quantized *q, strbuf *out)
{
    strbuf_puts(out, q->scheme->method);
    for (size_t i = 0; i < q->n_groups; i++) {
        const quantized_group *g = &q->groups[i];
        strbuf_printf(out, "%s %s%u%s, a scale for ", i ? ";" : ":", g->is_float ? "fp" : "int",
                      g->bits, g->symmetric ? "" : " with zero points");
        if (g->group_rows > 1) strbuf_printf(out, "%zu rows x ", g->group_rows);
        else if (g->group_rows == 0) strbuf_puts(out, "all rows x ");
        if (g->group_cols) strbuf_printf(out, "%zu columns", g->group_cols);
        else strbuf_puts(out, "all columns");
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

const safetensors_tensor *quantized_find(const quantized_place *at, const char *name)
{
    char full[TENSOR_NAME_MAX + 32];
    snprintf(full, sizeof full, "%s.%s", at->module, name);
    return safetensors_find(at->st, full);
}

static void mark_tensor(const quantized_place *at, const safetensors_tensor *t)
{
    at->used[t - at->st->tensors] = true;
}

void quantized_skip(const quantized_place *at, const char *name)
{
    const safetensors_tensor *t = quantized_find(at, name);
    if (t) mark_tensor(at, t);
}

status quantized_take(const quantized_place *at, const char *name, uint32_t types,
                      const uint64_t *shape, uint32_t n_dims, quantized_tensor which,
                      quantized_weight *w, error *err)
{
    const safetensors_tensor *t = quantized_find(at, name);
    if (!t)
        return error_set(err, STATUS_CORRUPT, "%s: tensor \"%s.%s\" is missing", at->q->where,
                         at->module, name);
    const safetensors_file *file = &at->st->files[t->file];
    if (!(types >> t->type & 1))
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: tensor \"%s\": dtype %s is not supported in %s", file->path, t->name,
                         safetensors_type_name(t->type), at->q->scheme->method);
    RETURN_IF_ERROR(tensors_check_shape(at->st, t, shape, n_dims, err));
    mark_tensor(at, t);
    w->in[which] = (quantized_bytes){file->map.data + t->begin, t->bytes};
    if (which == QUANTIZED_VALUES) {
        w->map = &file->map;
        w->begin = t->begin;
    }
    return STATUS_IS_OK;
}

status quantized_take_scales(const quantized_place *at, const char *name, const uint64_t *shape,
                             uint32_t n_dims, quantized_weight *w, error *err)
{
    static const uint32_t floats =
        1u << SAFETENSORS_F32 | 1u << SAFETENSORS_F16 | 1u << SAFETENSORS_BF16;
    RETURN_IF_ERROR(quantized_take(at, name, floats, shape, n_dims, QUANTIZED_SCALES, w, err));
    safetensors_type type = quantized_find(at, name)->type;
    w->type = type == SAFETENSORS_F32   ? DTYPE_F32
              : type == SAFETENSORS_F16 ? DTYPE_F16
                                        : DTYPE_BF16;
    return STATUS_IS_OK;
}

status quantized_take_order(const quantized_place *at, const char *name, bool means_none,
                            quantized_weight *w, error *err)
{
    const uint64_t shape[] = {at->cols};
    const safetensors_tensor *t = quantized_find(at, name);
    if (!t) return STATUS_IS_OK;
    RETURN_IF_ERROR(
        quantized_take(at, name, 1u << SAFETENSORS_I32, shape, 1, QUANTIZED_ORDER, w, err));
    bool zeros = true, plain = true, unset = false;
    for (size_t i = 0; i < at->cols; i++) {
        uint32_t g = quantized_word(w, QUANTIZED_ORDER, i);
        unset = unset || (means_none && g == UINT32_MAX);
        zeros = zeros && g == 0;
        plain = plain && g == i / w->group_cols;
    }
    for (size_t i = 0; !unset && i < at->cols; i++) {
        uint32_t g = quantized_word(w, QUANTIZED_ORDER, i);
        if (g >= w->n_groups)
            return error_set(err, STATUS_CORRUPT,
                             "%s: tensor \"%s\": column %zu is in group %d of %zu",
                             at->st->files[t->file].path, t->name, i, (int)g, w->n_groups);
    }
    if (unset || zeros || plain) w->in[QUANTIZED_ORDER] = (quantized_bytes){NULL, 0};
    return STATUS_IS_OK;
}

status quantized_set_groups(const quantized_place *at, size_t size, bool ragged,
                            quantized_weight *w, error *err)
{
    w->group_cols = size && size < at->cols ? size : at->cols;
    w->n_groups = (at->cols + w->group_cols - 1) / w->group_cols;
    if (!ragged && at->cols % w->group_cols)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: \"%s\" has %zu columns, which groups of %zu do not divide",
                         at->q->where, at->module, at->cols, size);
    if (w->n_groups > QUANTIZED_GROUPS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: \"%s\": more than %d groups in a row",
                         at->q->where, at->module, QUANTIZED_GROUPS_MAX);
    return STATUS_IS_OK;
}

status quantized_refuse_ignored(const quantized_place *at, error *err)
{
    quantized_match_kind kind;
    const char *text;
    RETURN_IF_ERROR(quantized_names_find(at, &at->q->ignored, &kind, &text, err));
    if (kind == NAME_NONE) return STATUS_IS_OK;
    return error_set(
        err, STATUS_CORRUPT,
        "%s: \"%s\" is quantised in the files, though \"%.128s\" says that it is not to be",
        at->q->where, at->module, text);
}

/* ---- matches --------------------------------------------------------------------------------- */

status quantized_reserve(quantized *q, size_t n, error *err)
{
    q->weights = arena_alloc_array(&q->memory, n, sizeof *q->weights);
    q->n_weights = 0;
    q->work_left = quantized_names_work(n);
    if (!q->weights) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", q->where);
    return STATUS_IS_OK;
}

status quantized_match(quantized *q, const safetensors *st, bool *used, tensor_part *p, bool *found,
                       error *err)
{
    static const char tail[] = ".weight";
    char module[TENSOR_NAME_MAX];
    size_t n = strlen(p->name);
    *found = false;
    if (p->is_vector || n < sizeof tail || strcmp(p->name + n - (sizeof tail - 1), tail) != 0)
        return STATUS_IS_OK;
    n -= sizeof tail - 1;
    memcpy(module, p->name, n);
    module[n] = 0;
    quantized_place at = {.q = q,
                          .st = st,
                          .used = used,
                          .module = module,
                          .is_linear = p->role != TENSOR_EMBED,
                          .work_left = &q->work_left,
                          .rows = p->rows,
                          .cols = p->cols};
    quantized_weight *w = &q->weights[q->n_weights];
    *w = (quantized_weight){.rows = p->rows, .cols = p->cols, .group_rows = 1};
    RETURN_IF_ERROR(q->scheme->match(&at, w, found, err));
    if (!*found) return STATUS_IS_OK;
    q->n_weights++;
    p->stored = w->type;
    p->source = (tensor_source){
        .map = w->map, .begin = w->begin, .bytes = w->in[QUANTIZED_VALUES].bytes, .quantized = w};
    return STATUS_IS_OK;
}
