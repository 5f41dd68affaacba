#include "model/load/gguf/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_BYTES_MAX = 1024,
    TENSORS_MAX = 1 << 20,
    VALUES_MAX = 1 << 16,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MAX = 1 << 20,
    /* The least bytes of an entry: key, type and a byte; name, dimensions, a size, type, offset. */
    VALUE_BYTES_MIN = 8 + 4 + 1,
    TENSOR_BYTES_MIN = 8 + 4 + 8 + 4 + 8,
};

/* Bytes of a value; 0 = it has a length of its own. */
static const uint8_t value_bytes[GGUF_TYPES] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};

/* ---- the reader: what is left of the file ---------------------------------------------------- */

typedef struct reader {
    gguf *g;
    const uint8_t *data;
    size_t size, at;
} reader;

static bool take_bytes(reader *r, void *out, size_t n)
{
    if (n > r->size - r->at) return false;
    memcpy(out, r->data + r->at, n);
    r->at += n;
    return true;
}

static status truncated(const reader *r, const char *what, error *err)
{
    return error_set(err, STATUS_CORRUPT, "%s: the file ends at byte %zu inside %s (truncated?)",
                     r->g->path, r->size, what);
}

static bool take_string(reader *r, const char **out, size_t *n)
{
    uint64_t length;
    if (!take_bytes(r, &length, sizeof length) || length > r->size - r->at) return false;
    *out = (const char *)r->data + r->at;
    *n = (size_t)length;
    r->at += *n;
    return true;
}

/* A key or name, terminated: UTF-8, without NUL and controls, so that messages can show it. */
static status take_name(reader *r, const char *what, const char **out, error *err)
{
    const char *text;
    size_t n, start = r->at;
    if (!take_string(r, &text, &n)) return truncated(r, what, err);
    bool plain = n > 0 && n <= KEY_BYTES_MAX && utf8_valid((const uint8_t *)text, n);
    for (size_t i = 0; plain && i < n; i++) plain = (uint8_t)text[i] >= 0x20 && text[i] != 0x7f;
    if (!plain)
        return error_set(err, STATUS_CORRUPT,
                         "%s: %s at byte %zu: must be 1 to %d bytes of printable UTF-8", r->g->path,
                         what, start, KEY_BYTES_MAX);
    *out = arena_strndup(&r->g->names, text, n);
    if (!*out) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", r->g->path);
    return STATUS_IS_OK;
}

/* ---- metadata -------------------------------------------------------------------------------- */

static status skip_elements(reader *r, const gguf_value *v, error *err)
{
    size_t each = value_bytes[v->type], left = r->size - r->at;
    if (each) {
        if (v->n > left / each) return truncated(r, v->key, err);
        r->at += (size_t)v->n * each;
        return STATUS_IS_OK;
    }
    if (v->n > left / 8) return truncated(r, v->key, err);
    for (uint64_t i = 0; i < v->n; i++) {
        const char *text;
        size_t n;
        if (!take_string(r, &text, &n)) return truncated(r, v->key, err);
    }
    return STATUS_IS_OK;
}

static status take_value(reader *r, gguf_value *v, error *err)
{
    uint32_t type;
    *v = (gguf_value){.n = 1};
    RETURN_IF_ERROR(take_name(r, "a key", &v->key, err));
    if (!take_bytes(r, &type, sizeof type)) return truncated(r, v->key, err);
    if (type == GGUF_ARRAY) {
        v->is_array = true;
        if (!take_bytes(r, &type, sizeof type) || !take_bytes(r, &v->n, sizeof v->n))
            return truncated(r, v->key, err);
        if (type == GGUF_ARRAY)
            return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\": an array of arrays", r->g->path,
                             v->key);
    }
    if (type >= GGUF_TYPES)
        return error_set(err, STATUS_CORRUPT, "%s: \"%s\": value type %u is not known", r->g->path,
                         v->key, type);
    v->type = (gguf_type)type;
    v->data = r->data + r->at;
    return skip_elements(r, v, err);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Offsets are as in the file, relative to the data. */
static status take_tensor(reader *r, gguf_tensor *t, error *err)
{
    uint32_t type;
    uint64_t offset;
    *t = (gguf_tensor){.n_dims = 0};
    RETURN_IF_ERROR(take_name(r, "a tensor's name", &t->name, err));
    if (!take_bytes(r, &t->n_dims, sizeof t->n_dims)) return truncated(r, t->name, err);
    if (t->n_dims == 0 || t->n_dims > GGUF_DIMS_MAX)
        return error_set(err, STATUS_CORRUPT, "%s: tensor \"%s\": %u dimensions, must be 1 to %d",
                         r->g->path, t->name, t->n_dims, GGUF_DIMS_MAX);
    if (!take_bytes(r, t->shape, t->n_dims * sizeof *t->shape) ||
        !take_bytes(r, &type, sizeof type) || !take_bytes(r, &offset, sizeof offset))
        return truncated(r, t->name, err);
    t->type = block_type_find(type);
    if (!t->type)
        return error_set(err, STATUS_UNSUPPORTED, "%s: tensor \"%s\": type %u is not known",
                         r->g->path, t->name, type);
    uint64_t elements = 1;
    bool overflow = false;
    for (uint32_t i = 0; i < t->n_dims; i++)
        overflow = __builtin_mul_overflow(elements, t->shape[i], &elements) || overflow;
    if (overflow || elements == 0 || elements > SIZE_MAX / BLOCK_ELEMENTS_MAX)
        return error_set(err, STATUS_CORRUPT, "%s: tensor \"%s\": its dimensions are 0 or overflow",
                         r->g->path, t->name);
    if (t->shape[0] % t->type->elements)
        return error_set(err, STATUS_CORRUPT,
                         "%s: tensor \"%s\": rows of %llu, not a multiple of %s's blocks of %u",
                         r->g->path, t->name, (unsigned long long)t->shape[0], t->type->name,
                         t->type->elements);
    t->bytes = (size_t)(elements / t->type->elements * t->type->bytes);
    t->begin = (size_t)offset;
    return STATUS_IS_OK;
}

static int by_offset(const void *a, const void *b)
{
    const gguf_tensor *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Places every tensor in the file. */
static status place_tensors(reader *r, error *err)
{
    gguf *g = r->g;
    uint64_t alignment = ALIGNMENT_DEFAULT;
    RETURN_IF_ERROR(gguf_get_u64(g, "general.alignment", ALIGNMENT_MAX, &alignment, err));
    if (alignment < 8 || alignment & (alignment - 1))
        return error_set(err, STATUS_CORRUPT,
                         "%s: \"general.alignment\": %llu is no power of two from 8", g->path,
                         (unsigned long long)alignment);
    uint64_t start = (r->at + alignment - 1) & ~(alignment - 1);
    uint64_t data = start < r->size ? r->size - start : 0, end = 0;
    if (g->n_tensors > 0) qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_offset);
    for (size_t i = 0; i < g->n_tensors; i++) {
        gguf_tensor *t = &g->tensors[i];
        if (t->begin % alignment)
            return error_set(err, STATUS_CORRUPT,
                             "%s: tensor \"%s\": offset %zu is not a multiple of %llu", g->path,
                             t->name, t->begin, (unsigned long long)alignment);
        if (t->begin < end)
            return error_set(err, STATUS_CORRUPT,
                             "%s: tensor \"%s\": begins at %zu, inside another that ends at %llu",
                             g->path, t->name, t->begin, (unsigned long long)end);
        if (t->begin > data || t->bytes > data - t->begin)
            return error_set(err, STATUS_CORRUPT,
                             "%s: tensor \"%s\": %zu bytes from %zu on, and %llu of data in the "
                             "file (truncated?)",
                             g->path, t->name, t->bytes, t->begin, (unsigned long long)data);
        end = t->begin + t->bytes;
        t->begin += start;
    }
    return STATUS_IS_OK;
}

/* ---- a file ---------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const gguf_value *)a)->key, ((const gguf_value *)b)->key);
}

static status take_head(reader *r, uint64_t *n_tensors, uint64_t *n_values, error *err)
{
    char magic[4];
    uint32_t version;
    gguf *g = r->g;
    if (!take_bytes(r, magic, 4) || memcmp(magic, "GGUF", 4) != 0)
        return error_set(err, STATUS_CORRUPT, "%s: not a GGUF file", g->path);
    if (!take_bytes(r, &version, 4) || !take_bytes(r, n_tensors, 8) || !take_bytes(r, n_values, 8))
        return truncated(r, "the head", err);
    if (version != 2 && version != 3)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: GGUF version %u is not supported, only 2 and 3", g->path, version);
    size_t left = r->size - r->at;
    if (*n_tensors > TENSORS_MAX || *n_values > VALUES_MAX ||
        *n_tensors > left / TENSOR_BYTES_MIN || *n_values > left / VALUE_BYTES_MIN)
        return error_set(err, STATUS_CORRUPT,
                         "%s: %llu tensors and %llu keys in a file of %zu bytes", g->path,
                         (unsigned long long)*n_tensors, (unsigned long long)*n_values, r->size);
    return STATUS_IS_OK;
}

static status take_values(reader *r, uint64_t n, error *err)
{
    gguf *g = r->g;
    for (; g->n_values < n; g->n_values++)
        RETURN_IF_ERROR(take_value(r, &g->values[g->n_values], err));
    if (n > 0) qsort(g->values, n, sizeof *g->values, by_key);
    for (size_t i = 1; i < n; i++)
        if (strcmp(g->values[i].key, g->values[i - 1].key) == 0)
            return error_set(err, STATUS_CORRUPT, "%s: \"%s\" is there twice", g->path,
                             g->values[i].key);
    return STATUS_IS_OK;
}

static status take_tensors(reader *r, uint64_t n, error *err)
{
    gguf *g = r->g;
    for (; g->n_tensors < n; g->n_tensors++)
        RETURN_IF_ERROR(take_tensor(r, &g->tensors[g->n_tensors], err));
    RETURN_IF_ERROR(place_tensors(r, err));
    if (n > 0) qsort(g->tensors, n, sizeof *g->tensors, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(g->tensors[i].name, g->tensors[i - 1].name) == 0)
            return error_set(err, STATUS_CORRUPT, "%s: tensor \"%s\" is there twice", g->path,
                             g->tensors[i].name);
    return STATUS_IS_OK;
}

status gguf_parse(gguf *g, const char *where, const uint8_t *data, size_t size, error *err)
{
    *g = (gguf){.path = where, .data = data, .size = size};
    arena_init(&g->names, 16 << 10, 0);
    reader r = {.g = g, .data = data, .size = size};
    uint64_t n_tensors = 0, n_values = 0;
    RETURN_IF_ERROR(take_head(&r, &n_tensors, &n_values, err));
    g->values = alloc_zeroed(NULL, n_values + 1, sizeof *g->values);
    g->tensors = alloc_zeroed(NULL, n_tensors + 1, sizeof *g->tensors);
    if (!g->values || !g->tensors)
        return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    RETURN_IF_ERROR(take_values(&r, n_values, err));
    return take_tensors(&r, n_tensors, err);
}

bool gguf_is_path(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

status gguf_open(const char *path, gguf *out, error *err)
{
    file_map map;
    gguf g;
    RETURN_IF_ERROR(file_map_open(path, &map, err));
    status result = gguf_parse(&g, path, map.data, map.size, err);
    g.map = map;
    if (status_ok(result)) {
        g.path = arena_strndup(&g.names, path, strlen(path));
        if (!g.path) result = error_set(err, STATUS_NO_MEMORY, "%s: out of memory", path);
    }
    if (status_ok(result)) *out = g;
    else gguf_close(&g);
    return result;
}

void gguf_close(gguf *g)
{
    if (!g) return;
    if (g->map.data) file_map_close(&g->map);
    free(g->values);
    free(g->tensors);
    arena_destroy(&g->names);
    *g = (gguf){0};
}

/* ---- finding --------------------------------------------------------------------------------- */

const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name)
{
    gguf_tensor key = {.name = name};
    if (g->n_tensors == 0) return NULL;
    return bsearch(&key, g->tensors, g->n_tensors, sizeof *g->tensors, by_name);
}

const gguf_value *gguf_find(const gguf *g, const char *key)
{
    gguf_value wanted = {.key = key};
    if (g->n_values == 0) return NULL;
    return bsearch(&wanted, g->values, g->n_values, sizeof *g->values, by_key);
}

static status wrong(const gguf *g, const char *key, const char *must, error *err)
{
    return error_set(err, STATUS_CORRUPT, "%s: \"%s\" must be %s", g->path, key, must);
}

status gguf_get_u64(const gguf *g, const char *key, uint64_t max, uint64_t *out, error *err)
{
    const gguf_value *v = gguf_find(g, key);
    if (!v) return STATUS_IS_OK;
    uint64_t u = 0;
    size_t bytes = value_bytes[v->type];
    bool is_signed =
        v->type == GGUF_I8 || v->type == GGUF_I16 || v->type == GGUF_I32 || v->type == GGUF_I64;
    bool whole = is_signed || v->type == GGUF_U8 || v->type == GGUF_U16 || v->type == GGUF_U32 ||
                 v->type == GGUF_U64;
    if (v->is_array || !whole) return wrong(g, key, "one whole number", err);
    memcpy(&u, v->data, bytes); /* little-endian, as the file and every CPU that this runs on */
    bool negative = is_signed && v->data[bytes - 1] & 0x80;
    if (negative || u > max)
        return error_set(err, STATUS_CORRUPT, "%s: \"%s\" is out of range: 0 to %llu", g->path, key,
                         (unsigned long long)max);
    *out = u;
    return STATUS_IS_OK;
}

status gguf_get_double(const gguf *g, const char *key, double *out, error *err)
{
    const gguf_value *v = gguf_find(g, key);
    if (!v) return STATUS_IS_OK;
    double d;
    if (v->is_array || (v->type != GGUF_F32 && v->type != GGUF_F64))
        return wrong(g, key, "one floating-point number", err);
    if (v->type == GGUF_F32) d = (double)gguf_f32_at(v, 0);
    else memcpy(&d, v->data, sizeof d);
    if (!isfinite(d)) return wrong(g, key, "finite", err);
    *out = d;
    return STATUS_IS_OK;
}

status gguf_get_bool(const gguf *g, const char *key, bool *out, error *err)
{
    const gguf_value *v = gguf_find(g, key);
    if (!v) return STATUS_IS_OK;
    if (v->is_array || v->type != GGUF_BOOL || *v->data > 1)
        return wrong(g, key, "true or false", err);
    *out = *v->data == 1;
    return STATUS_IS_OK;
}

status gguf_get_string(const gguf *g, const char *key, const char **out, size_t *n, error *err)
{
    const gguf_value *v = gguf_find(g, key);
    if (!v) return STATUS_IS_OK;
    if (v->is_array || v->type != GGUF_STRING) return wrong(g, key, "a text", err);
    const uint8_t *at = v->data;
    *out = gguf_next_string(&at, n);
    if (!utf8_valid((const uint8_t *)*out, *n)) return wrong(g, key, "UTF-8", err);
    return STATUS_IS_OK;
}

status gguf_get_array(const gguf *g, const char *key, gguf_type type, const gguf_value **out,
                      error *err)
{
    const gguf_value *v = gguf_find(g, key);
    *out = v;
    if (!v) return STATUS_IS_OK;
    if (!v->is_array || v->type != type) return wrong(g, key, "an array of its kind", err);
    return STATUS_IS_OK;
}
