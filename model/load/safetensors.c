#include "model/load/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum {
    HEADER_BYTES_MAX = 100000000, /* the reference reader's limit */
    INDEX_BYTES_MAX = 64 << 20,
    /* Limits memory: a parsed value takes about fifty bytes, and its text may be two ("0,"). */
    JSON_VALUES_MAX = 4 << 20,
    NAME_MAX_BYTES = 1024,
};

const char *safetensors_type_name(safetensors_type t)
{
    static const char *const names[] = {
#define TYPE_NAME(name, bits) #name,
        SAFETENSORS_TYPES(TYPE_NAME)
#undef TYPE_NAME
    };
    return names[t];
}

static unsigned type_bits(safetensors_type t)
{
    static const uint8_t bits_of[] = {
#define TYPE_BITS(name, bits) bits,
        SAFETENSORS_TYPES(TYPE_BITS)
#undef TYPE_BITS
    };
    return bits_of[t];
}

static bool type_from_name(const char *name, safetensors_type *out)
{
    for (int t = 0; t < SAFETENSORS_TYPES_N; t++) {
        if (strcmp(name, safetensors_type_name((safetensors_type)t)) == 0) {
            *out = (safetensors_type)t;
            return true;
        }
    }
    return false;
}

static status parse_json(const char *where, const uint8_t *text, size_t n, json_t **out, error *err)
{
    if (!utf8_valid(text, n)) return error_set(err, STATUS_CORRUPT, "%s: not UTF-8", where);
    size_t values = 0; /* an upper bound: separators inside strings count too */
    for (size_t i = 0; i < n; i++)
        values += text[i] == ',' || text[i] == '[' || text[i] == '{' || text[i] == ':';
    if (values > JSON_VALUES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: more than %d JSON values", where, JSON_VALUES_MAX);
    RETURN_IF_ERROR(json_read_text(where, (const char *)text, n, out, err));
    if (json_is_object(*out)) return STATUS_IS_OK;
    json_decref(*out);
    return error_set(err, STATUS_CORRUPT, "%s: must be an object", where);
}

/* ---- one file's header ----------------------------------------------------------------------- */

static status read_size(const json_t *v, const char *where, const char *name, const char *field,
                        uint64_t *out, error *err)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return error_set(err, STATUS_CORRUPT,
                         "%s: tensor \"%.128s\": \"%s\" must be a list of sizes", where, name,
                         field);
    *out = (uint64_t)json_integer_value(v);
    return STATUS_IS_OK;
}

static status read_shape(const json_t *shape, const char *where, safetensors_tensor *t, error *err)
{
    if (!json_is_array(shape))
        return error_set(err, STATUS_CORRUPT, "%s: tensor \"%.128s\": no \"shape\"", where,
                         t->name);
    if (json_array_size(shape) > SAFETENSORS_DIMS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: tensor \"%.128s\": more than %d dimensions", where,
                         t->name, SAFETENSORS_DIMS_MAX);
    t->n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->n_dims; i++)
        RETURN_IF_ERROR(
            read_size(json_array_get(shape, i), where, t->name, "shape", &t->shape[i], err));
    return STATUS_IS_OK;
}

/* Reads an entry. Its begin, and for now its end in t->bytes, are relative to the header's end. */
static status read_entry(const json_t *entry, const char *where, safetensors_tensor *t, error *err)
{
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    if (!type)
        return error_set(err, STATUS_CORRUPT, "%s: tensor \"%.128s\": no \"dtype\"", where,
                         t->name);
    if (!type_from_name(type, &t->type))
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: tensor \"%.128s\": \"dtype\": \"%.32s\" is not known", where, t->name,
                         type);
    RETURN_IF_ERROR(read_shape(json_object_get(entry, "shape"), where, t, err));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (json_array_size(offsets) != 2)
        return error_set(err, STATUS_CORRUPT,
                         "%s: tensor \"%.128s\": \"data_offsets\" must be two numbers", where,
                         t->name);
    uint64_t from = 0, to = 0;
    RETURN_IF_ERROR(
        read_size(json_array_get(offsets, 0), where, t->name, "data_offsets", &from, err));
    RETURN_IF_ERROR(
        read_size(json_array_get(offsets, 1), where, t->name, "data_offsets", &to, err));
    t->begin = from;
    t->bytes = to;
    return STATUS_IS_OK;
}

static int by_offset(const void *a, const void *b)
{
    const safetensors_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Checks [begin, end) of a tensor against the tensor before it and against its own shape. */
static status check_extent(const char *where, const safetensors_tensor *t, size_t previous_end,
                           error *err)
{
    size_t begin = t->begin, end = t->bytes;
    if (begin != previous_end || end < begin)
        return error_set(err, STATUS_CORRUPT,
                         "%s: tensor \"%.128s\": bytes %zu to %zu, but the one before ends at %zu",
                         where, t->name, begin, end, previous_end);
    uint64_t bits = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(bits, t->shape[i], &bits))
            return error_set(err, STATUS_CORRUPT, "%s: tensor \"%.128s\": \"shape\" overflows",
                             where, t->name);
    if (__builtin_mul_overflow(bits, type_bits(t->type), &bits))
        return error_set(err, STATUS_CORRUPT, "%s: tensor \"%.128s\": \"shape\" overflows", where,
                         t->name);
    if (bits % 8 != 0)
        return error_set(err, STATUS_CORRUPT, "%s: tensor \"%.128s\": not a whole number of bytes",
                         where, t->name);
    if (bits / 8 != end - begin)
        return error_set(err, STATUS_CORRUPT,
                         "%s: tensor \"%.128s\": %zu bytes, but its shape and dtype make %llu",
                         where, t->name, end - begin, (unsigned long long)(bits / 8));
    return STATUS_IS_OK;
}

static status check_metadata(const json_t *metadata, const char *where, error *err)
{
    const char *key;
    json_t *value;
    bool ok = json_is_object(metadata);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value) ok = ok && json_is_string(value);
    if (ok) return STATUS_IS_OK;
    return error_set(err, STATUS_CORRUPT, "%s: \"__metadata__\" must map strings to strings",
                     where);
}

/* Appends the header's tensors to st, with relative offsets. */
static status read_entries(safetensors *st, json_t *header, const char *where, uint32_t file,
                           error *err)
{
    size_t n = json_object_size(header);
    safetensors_tensor *grown =
        alloc_resize(NULL, st->tensors, st->n_tensors + n, sizeof *st->tensors);
    if (!grown) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    st->tensors = grown;

    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            RETURN_IF_ERROR(check_metadata(entry, where, err));
            continue;
        }
        if (strlen(name) > NAME_MAX_BYTES)
            return error_set(err, STATUS_LIMIT,
                             "%s: tensor \"%.64s...\": a name of more than %d bytes", where, name,
                             NAME_MAX_BYTES);
        safetensors_tensor t = {.file = file};
        t.name = arena_strndup(&st->names, name, strlen(name));
        if (!t.name) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
        RETURN_IF_ERROR(read_entry(entry, where, &t, err));
        st->tensors[st->n_tensors++] = t;
    }
    return STATUS_IS_OK;
}

static status check_entries(safetensors_tensor *tensors, size_t n, const char *where,
                            size_t data_bytes, size_t data_start, error *err)
{
    if (n > 0) qsort(tensors, n, sizeof *tensors, by_offset);
    size_t end = 0;
    for (size_t i = 0; i < n; i++) {
        RETURN_IF_ERROR(check_extent(where, &tensors[i], end, err));
        end = tensors[i].bytes;
    }
    if (end != data_bytes)
        return error_set(err, STATUS_CORRUPT, "%s: %zu bytes of data, but its tensors end at %zu%s",
                         where, data_bytes, end, end > data_bytes ? " (truncated?)" : "");
    for (size_t i = 0; i < n; i++) {
        tensors[i].bytes -= tensors[i].begin;
        tensors[i].begin += data_start;
    }
    return STATUS_IS_OK;
}

status safetensors_parse(safetensors *st, const char *where, uint32_t file, const uint8_t *data,
                         size_t size, error *err)
{
    if (size < 8) return error_set(err, STATUS_CORRUPT, "%s: %zu bytes, no header", where, size);
    uint64_t n = 0;
    for (int i = 0; i < 8; i++) n |= (uint64_t)data[i] << (8 * i);
    if (n > HEADER_BYTES_MAX)
        return error_set(err, STATUS_CORRUPT, "%s: a header of %llu bytes, the limit is %d", where,
                         (unsigned long long)n, HEADER_BYTES_MAX);
    if (n > size - 8)
        return error_set(err, STATUS_CORRUPT,
                         "%s: a header of %llu bytes in a file of %zu (truncated?)", where,
                         (unsigned long long)n, size);
    json_t *header;
    RETURN_IF_ERROR(parse_json(where, data + 8, (size_t)n, &header, err));
    size_t first = st->n_tensors;
    status result = read_entries(st, header, where, file, err);
    json_decref(header);
    if (!status_ok(result)) return result;
    return check_entries(st->tensors + first, st->n_tensors - first, where, size - 8 - (size_t)n,
                         8 + (size_t)n, err);
}

/* ---- the files of a folder ------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const safetensors_tensor *)a)->name, ((const safetensors_tensor *)b)->name);
}

const safetensors_tensor *safetensors_find(const safetensors *st, const char *name)
{
    safetensors_tensor key = {.name = name};
    if (st->n_tensors == 0) return NULL;
    return bsearch(&key, st->tensors, st->n_tensors, sizeof *st->tensors, by_name);
}

static status add_file(safetensors *st, const char *dir, const char *name, error *err)
{
    char path[4096];
    RETURN_IF_ERROR(file_join(path, sizeof path, dir, name, err));
    safetensors_file *grown = alloc_resize(NULL, st->files, st->n_files + 1, sizeof *st->files);
    if (!grown) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", path);
    st->files = grown;

    safetensors_file f = {.path = arena_strndup(&st->names, path, strlen(path))};
    if (!f.path) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", path);
    RETURN_IF_ERROR(file_map_open(path, &f.map, err));
    st->files[st->n_files++] = f;
    return safetensors_parse(st, path, (uint32_t)(st->n_files - 1), f.map.data, f.map.size, err);
}

/* Sorts the tensors of all files by name, and refuses names that occur twice. */
static status sort_tensors(safetensors *st, error *err)
{
    if (st->n_tensors > 0) qsort(st->tensors, st->n_tensors, sizeof *st->tensors, by_name);
    for (size_t i = 1; i < st->n_tensors; i++) {
        const safetensors_tensor *a = &st->tensors[i - 1], *b = &st->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return error_set(err, STATUS_CORRUPT, "%s: tensor \"%.128s\" is also in %s",
                             st->files[b->file].path, b->name, st->files[a->file].path);
    }
    return STATUS_IS_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Whether a name is below the folder: relative, and without empty, "." and ".." parts. */
static bool is_below(const char *name)
{
    if (name[0] == 0 || name[0] == '/') return false;
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        size_t n = strcspn(part, "/");
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && memcmp(part, "..", 2) == 0))
            return false;
    }
    return true;
}

/* Lists the distinct file names of weight_map, sorted. The names are borrowed from weight_map; the
 * caller frees the list. */
static status list_shards(json_t *weight_map, const char *where, const char ***out, size_t *out_n,
                          error *err)
{
    size_t n = 0;
    const char **shards = alloc_zeroed(NULL, json_object_size(weight_map) + 1, sizeof *shards);
    if (!shards) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    const char *name;
    json_t *file;
    json_object_foreach(weight_map, name, file)
    {
        const char *shard = json_string_value(file);
        if (!shard || strlen(shard) != json_string_length(file) || !is_below(shard)) {
            free(shards);
            return error_set(err, STATUS_CORRUPT,
                             "%s: tensor \"%.128s\": \"%.128s\" is not a file of this folder",
                             where, name, shard ? shard : "");
        }
        shards[n++] = shard;
    }
    if (n > 0) qsort(shards, n, sizeof *shards, by_text);
    size_t distinct = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(shards[i], shards[i - 1]) != 0) shards[distinct++] = shards[i];
    if (distinct > SAFETENSORS_FILES_MAX) {
        free(shards);
        return error_set(err, STATUS_LIMIT, "%s: more than %d files", where, SAFETENSORS_FILES_MAX);
    }
    *out = shards;
    *out_n = distinct;
    return STATUS_IS_OK;
}

/* Checks that each tensor of the index is in the file that the index names. */
static status check_index(const safetensors *st, const char *dir, json_t *weight_map,
                          const char *where, error *err)
{
    const char *name;
    json_t *file;
    json_object_foreach(weight_map, name, file)
    {
        char path[4096];
        RETURN_IF_ERROR(file_join(path, sizeof path, dir, json_string_value(file), err));
        const safetensors_tensor *t = safetensors_find(st, name);
        if (!t || strcmp(st->files[t->file].path, path) != 0)
            return error_set(err, STATUS_CORRUPT, "%s: tensor \"%.128s\" is not in %.128s", where,
                             name, json_string_value(file));
    }
    return STATUS_IS_OK;
}

static status open_index(safetensors *st, const char *dir, const char *path, error *err)
{
    char *text;
    size_t n;
    json_t *index;
    RETURN_IF_ERROR(file_read(path, INDEX_BYTES_MAX, &text, &n, err));
    status result = parse_json(path, (const uint8_t *)text, n, &index, err);
    free(text);
    if (!status_ok(result)) return result;

    json_t *weight_map = json_object_get(index, "weight_map");
    const char **shards = NULL;
    size_t n_shards = 0;
    result = json_object_size(weight_map) > 0
                 ? list_shards(weight_map, path, &shards, &n_shards, err)
                 : error_set(err, STATUS_CORRUPT, "%s: no \"weight_map\"", path);
    for (size_t i = 0; status_ok(result) && i < n_shards; i++)
        result = add_file(st, dir, shards[i], err);
    if (status_ok(result)) result = sort_tensors(st, err);
    if (status_ok(result)) result = check_index(st, dir, weight_map, path, err);
    free(shards);
    json_decref(index);
    return result;
}

status safetensors_open(const char *dir, safetensors *out, error *err)
{
    char index[4096];
    RETURN_IF_ERROR(file_join(index, sizeof index, dir, "model.safetensors.index.json", err));
    safetensors st = {0};
    arena_init(&st.names, 16 << 10, 0);
    status result;
    if (file_exists(index)) {
        result = open_index(&st, dir, index, err);
    } else {
        result = add_file(&st, dir, "model.safetensors", err);
        if (status_ok(result)) result = sort_tensors(&st, err);
    }
    if (status_ok(result)) *out = st;
    else safetensors_close(&st);
    return result;
}

void safetensors_close(safetensors *st)
{
    if (!st) return;
    for (size_t i = 0; i < st->n_files; i++) file_map_close(&st->files[i].map);
    free(st->files);
    free(st->tensors);
    arena_destroy(&st->names);
    *st = (safetensors){0};
}
