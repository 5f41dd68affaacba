/* Property: a "quantization_config" is refused in one line that names its place, or a matrix is
 * found in a safetensors file, missing, or refused in one line; and a matrix that was found gives
 * rows without a read outside the file.
 *
 * Input: rows and columns of "m.weight" (a byte each), the size of config.json (two bytes, low
 * first), config.json, the file. */
#include "model/load/quantized/quantized.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD = 4 };

static void check_refusal(status s, const error *err)
{
    FUZZ_CHECK(status_ok(s) || (err->text[0] && !strchr(err->text, '\n')));
}

static void check_rows(const quantized_weight *w, const file_map *file)
{
    uint8_t *row = malloc(w->cols * dtype_bytes(w->type));
    if (!row) return;
    FUZZ_CHECK(w->n_groups >= 1 && w->n_groups <= QUANTIZED_GROUPS_MAX && w->group_cols >= 1);
    for (int i = 0; i < QUANTIZED_TENSORS; i++) {
        const quantized_bytes *in = &w->in[i];
        if (!in->data) continue;
        FUZZ_CHECK(in->data >= file->data && in->bytes <= file->size);
        FUZZ_CHECK((size_t)(in->data - file->data) <= file->size - in->bytes);
    }
    for (size_t i = 0; i < w->rows; i++) quantized_rows(w, i, 1, row);
    free(row);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const safetensors_tensor *)a)->name, ((const safetensors_tensor *)b)->name);
}

static void match(quantized *q, const uint8_t *data, size_t size, size_t rows, size_t cols)
{
    uint8_t *exact = malloc(size ? size : 1); /* exact, so that over-reads are seen */
    bool *used = NULL;
    error err = {""};
    if (!exact) return;
    if (size) memcpy(exact, data, size);
    safetensors_file file = {.path = "file", .map = {.data = exact, .size = size}};
    safetensors st = {.files = &file, .n_files = 1};
    arena_init(&st.names, 1 << 10, 0);
    status s = safetensors_parse(&st, "file", 0, exact, size, &err);
    check_refusal(s, &err);
    if (st.n_tensors > 0) qsort(st.tensors, st.n_tensors, sizeof *st.tensors, by_name);
    if (status_ok(s)) used = calloc(st.n_tensors + 1, sizeof *used);
    if (used && status_ok(quantized_reserve(q, 1, &err))) {
        tensor_part p = {.rows = rows, .cols = cols, .name = "m.weight"};
        bool found = false;
        s = quantized_match(q, &st, used, &p, &found, &err);
        check_refusal(s, &err);
        FUZZ_CHECK(!status_ok(s) || found == (p.source.quantized != NULL));
        if (status_ok(s) && found) check_rows(p.source.quantized, &file.map);
    }
    free(used);
    free(st.tensors);
    arena_destroy(&st.names);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD || data[0] == 0 || data[1] == 0) return 0;
    size_t text = (size_t)data[2] | (size_t)data[3] << 8;
    if (text > size - HEAD) text = size - HEAD;
    json_t *config;
    quantized q;
    strbuf description = {0};
    error err = {""};
    if (!status_ok(json_read_text("config", (const char *)data + HEAD, text, &config, &err)))
        return 0;
    status s = quantized_read(config, "config", &q, &err);
    json_decref(config);
    check_refusal(s, &err);
    FUZZ_CHECK(status_ok(s) || strncmp(err.text, "config: \"quantization_config\"", 29) == 0);
    if (status_ok(s) && q.scheme) {
        quantized_describe(&q, &description);
        match(&q, data + HEAD + text, size - HEAD - text, data[0], data[1]);
    }
    strbuf_destroy(&description);
    quantized_close(&q);
    return 0;
}
