#include "quality/score/kept.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS_MAX = 4096, TABLES_MAX = 1 << 18 };

static bool read_pair(const json_t *pair, uint32_t most, uint32_t *from, uint32_t *to)
{
    json_int_t a = json_integer_value(json_array_get(pair, 0));
    json_int_t b = json_integer_value(json_array_get(pair, 1));
    if (json_array_size(pair) != 2 || a < 0 || b < a || b > most) return false;
    *from = (uint32_t)a;
    *to = (uint32_t)b;
    return true;
}

static bool read_table(const json_t *json, kept_sets *sets, kept_table *t)
{
    uint32_t from, to;
    if (!read_pair(json_object_get(json, "layers"), LAYERS_MAX, &t->first_layer, &t->last_layer) ||
        !read_pair(json_object_get(json, "heads"), UINT32_MAX >> 1, &t->first_head, &t->last_head))
        return false;
    if (t->last_layer >= sets->n_layers) sets->n_layers = t->last_layer + 1;
    const json_t *ranges = json_object_get(json, "ranges");
    size_t i;
    json_t *range;
    json_array_foreach(ranges, i, range)
    {
        if (!read_pair(range, UINT32_MAX >> 1, &from, &to)) return false;
        for (uint32_t p = from; p < to && p < sets->n_tokens; p++)
            t->bits[p / 64] |= UINT64_C(1) << p % 64;
    }
    return true;
}

void kept_sets_destroy(kept_sets *s)
{
    free(s->bits);
    free(s->tables);
    *s = (kept_sets){0};
}

static status read_sets(const json_t *json, kept_sets *out, error *err)
{
    if (out->n == 0 || out->n > TABLES_MAX)
        return error_set(err, STATUS_INTERNAL, "the report lists no kept tokens");
    out->tables = calloc(out->n, sizeof *out->tables);
    out->bits = calloc(out->n * out->words, sizeof *out->bits);
    if (!out->tables || !out->bits) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < out->n; i++) {
        out->tables[i].bits = out->bits + i * out->words;
        if (!read_table(json_array_get(json, i), out, &out->tables[i]))
            return error_set(err, STATUS_INTERNAL, "the report's kept[%zu] cannot be read", i);
    }
    return STATUS_IS_OK;
}

status kept_sets_read(const char *kept_json, uint32_t n_tokens, kept_sets *out, error *err)
{
    json_t *json = NULL;
    *out = (kept_sets){.n_tokens = n_tokens, .words = n_tokens / 64 + 1};
    RETURN_IF_ERROR(json_read_text("report", kept_json, strlen(kept_json), &json, err));
    out->n = json_array_size(json);
    status st = read_sets(json, out, err);
    json_decref(json);
    if (!status_ok(st)) kept_sets_destroy(out);
    return st;
}

const kept_table *kept_table_of(const kept_sets *s, uint32_t layer, uint32_t kv_head)
{
    for (size_t i = 0; i < s->n; i++) {
        const kept_table *t = &s->tables[i];
        if (kept_covers(t, layer) && t->first_head <= kv_head && kv_head <= t->last_head) return t;
    }
    return NULL;
}
