/* Page tables on the device: turns a step's delta words into patches. */
#include "model/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

status cuda_tables_create(cuda_device *d, const pkv_geometry *geometry, const tensor_slice *slice,
                          uint32_t max_seqs, uint32_t row, cuda_tables *out)
{
    uint32_t groups = pkv_groups(geometry);
    *out =
        (cuda_tables){.device = {NULL, groups, row}, .geometry = *geometry, .max_seqs = max_seqs};
    out->head_groups = pkv_head_groups(geometry);
    out->first_head = slice->first_kv_head / geometry->heads_per_group;
    out->n_heads = (slice->n_kv_heads + geometry->heads_per_group - 1) / geometry->heads_per_group;
    out->counts[PKV_ALL] = 1;
    out->counts[PKV_LAYER] = pkv_layer_groups(geometry);
    out->counts[PKV_HEAD] = groups;
    out->sent = calloc((size_t)max_seqs * groups, sizeof *out->sent);
    out->touched = calloc(max_seqs, 1);
    if (!out->sent || !out->touched) return status_make(STATUS_NO_MEMORY, "page tables");
    return cuda_alloc(d, ((size_t)max_seqs + 1) * groups * row * sizeof(uint32_t),
                      &out->device.pages);
}

void cuda_tables_destroy(cuda_device *d, cuda_tables *t)
{
    if (t->device.pages) d->api->release(d->g, t->device.pages);
    free(t->sent);
    free(t->touched);
    free(t->patches);
    free(t->values);
    *t = (cuda_tables){0};
}

pkv_table_view cuda_tables_view(const cuda_tables *t, const pkv_mirror *mirror, uint32_t seq,
                                pkv_grain grain, uint32_t table)
{
    uint32_t first = grain == PKV_LAYER ? table * t->head_groups : table;
    return pkv_mirror_table(mirror, seq, first);
}

/* Sends the table, or all of the sequence's, again from the start: first pages may have changed,
 * and so may the sequence's grain where all are sent. */
static void forget_table(cuda_tables *t, uint32_t seq, uint32_t table)
{
    uint32_t *sent = t->sent + (size_t)seq * t->device.groups;
    if (table == PKV_ALL_GROUPS) memset(sent, 0, t->device.groups * sizeof *sent);
    else sent[table] = 0;
}

/* ---- patches --------------------------------------------------------------------------------- */

static bool grow_array(void **array, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity) return true;
    void *grown = alloc_resize(NULL, *array, need + need / 2, size);
    if (!grown) return false;
    *array = grown;
    *capacity = need + need / 2;
    return true;
}

static status patch_table(cuda_tables *t, uint32_t seq, pkv_grain grain, uint32_t number,
                          pkv_table_view view)
{
    size_t table = (size_t)seq * t->device.groups + number;
    uint32_t first = t->sent[table];
    if (view.n_pages <= first) return STATUS_IS_OK;
    if (view.n_pages > t->device.row)
        return status_make(STATUS_LIMIT, "plan: a table longer than --max-model-len");
    uint32_t n = view.n_pages - first;
    void *patches = t->patches, *values = t->values;
    bool ok = grow_array(&patches, &t->patches_capacity, t->n_patches + 1, sizeof *t->patches) &&
              grow_array(&values, &t->values_capacity, t->n_values + n, sizeof *t->values);
    t->patches = patches;
    t->values = values;
    if (!ok) return status_make(STATUS_NO_MEMORY, "page tables");
    t->patches[t->n_patches++] =
        (gpu_patch){table * t->device.row + first, (uint32_t)t->n_values, n};
    uint32_t less = grain == PKV_HEAD ? t->first_cell : 0;
    for (uint32_t i = 0; i < n; i++) t->values[t->n_values++] = view.pages[first + i] - less;
    t->sent[table] = view.n_pages;
    return STATUS_IS_OK;
}

status cuda_tables_update(cuda_tables *t, const pkv_mirror *mirror, const uint32_t *words,
                          size_t n_words)
{
    t->n_patches = t->n_values = 0;
    memset(t->touched, 0, t->max_seqs);
    for (size_t i = 0; i < n_words;) {
        pkv_touch touch;
        i += pkv_delta_touch(&t->geometry, words + i, &touch);
        t->touched[touch.seq] = 1;
        if (!touch.appends) forget_table(t, touch.seq, touch.group);
    }
    for (uint32_t seq = 0; seq < t->max_seqs; seq++) {
        pkv_grain grain = pkv_mirror_grain(mirror, seq);
        for (uint32_t i = 0; t->touched[seq] && i < t->counts[grain]; i++) {
            if (grain == PKV_HEAD && i % t->head_groups - t->first_head >= t->n_heads) continue;
            RETURN_IF_ERROR(
                patch_table(t, seq, grain, i, cuda_tables_view(t, mirror, seq, grain, i)));
        }
    }
    return STATUS_IS_OK;
}
