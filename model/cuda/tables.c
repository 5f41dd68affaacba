/* Page tables on the device: gives sequences room for their tables, and turns a step's delta words
 * into patches. */
#include "model/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

status cuda_tables_create(cuda_device *d, const pkv_geometry *geometry, const tensor_slice *slice,
                          uint32_t max_seqs, uint32_t row, cuda_tables *out)
{
    uint32_t of_group = geometry->heads_per_group, layers = pkv_layer_groups(geometry);
    uint32_t heads = (slice->n_kv_heads + of_group - 1) / of_group;
    *out = (cuda_tables){
        .device = {.row = row,
                   .first_head_group = slice->first_kv_head / of_group,
                   .head_groups = heads},
        .geometry = *geometry,
        .counts = {[PKV_ALL] = 1, [PKV_LAYER] = layers, [PKV_HEAD] = layers * heads},
        .max_seqs = max_seqs,
    };
    out->n_placed = out->capacity = max_seqs + out->counts[PKV_HEAD];
    out->places = calloc(max_seqs, sizeof *out->places);
    out->sent = calloc(out->capacity, sizeof *out->sent);
    out->touched = calloc(max_seqs, 1);
    bool ok = out->places && out->sent && out->touched;
    for (pkv_grain grain = PKV_LAYER; grain <= PKV_HEAD; grain++) {
        out->spare[grain] = calloc(max_seqs, sizeof *out->spare[grain]);
        ok &= out->spare[grain] != NULL;
    }
    if (!ok) return status_make(STATUS_NO_MEMORY, "page tables");
    for (uint32_t seq = 0; seq < max_seqs; seq++) out->places[seq].first = seq;
    return cuda_alloc(d, (size_t)out->capacity * row * sizeof(uint32_t), &out->device.pages);
}

void cuda_tables_destroy(cuda_device *d, cuda_tables *t)
{
    if (t->device.pages) d->api->release(d->g, t->device.pages);
    for (pkv_grain grain = PKV_ALL; grain <= PKV_HEAD; grain++) free(t->spare[grain]);
    free(t->places);
    free(t->sent);
    free(t->touched);
    free(t->patches);
    free(t->values);
    *t = (cuda_tables){0};
}

bool cuda_tables_has(const cuda_tables *t, uint32_t group)
{
    uint32_t head = group % pkv_head_groups(&t->geometry);
    return head - t->device.first_head_group < t->device.head_groups;
}

pkv_table_view cuda_tables_view(const cuda_tables *t, const pkv_mirror *mirror, uint32_t seq,
                                pkv_grain grain, uint32_t table)
{
    uint32_t all = pkv_head_groups(&t->geometry), heads = t->device.head_groups;
    uint32_t group = grain == PKV_LAYER ? table * all : 0;
    if (grain == PKV_HEAD) group = table / heads * all + t->device.first_head_group + table % heads;
    return pkv_mirror_table(mirror, seq, group);
}

/* ---- places ---------------------------------------------------------------------------------- */

static void forget_tables(cuda_tables *t, uint32_t seq)
{
    const struct cuda_place *p = &t->places[seq];
    if (p->first + t->counts[p->grain] > t->capacity) return; /* new memory is on its way */
    memset(t->sent + p->first, 0, t->counts[p->grain] * sizeof *t->sent);
}

/* Gives the sequence tables of this grain, which may lie beyond the memory that there is. Steps in
 * flight have read what a place held before: patches come after them. */
static void take_place(cuda_tables *t, uint32_t seq, pkv_grain grain)
{
    struct cuda_place *p = &t->places[seq];
    if (p->grain == grain) return;
    if (p->grain != PKV_ALL) t->spare[p->grain][t->n_spare[p->grain]++] = p->first;
    *p = (struct cuda_place){seq, grain};
    if (grain != PKV_ALL && t->n_spare[grain] > 0) {
        p->first = t->spare[grain][--t->n_spare[grain]];
    } else if (grain != PKV_ALL) {
        p->first = t->n_placed;
        t->n_placed += t->counts[grain];
    }
    forget_tables(t, seq);
}

/* Makes room for all places. Every table is then to be sent again. */
static status reserve_tables(cuda_device *d, cuda_tables *t)
{
    if (t->n_placed <= t->capacity) return STATUS_IS_OK;
    uint32_t capacity = t->n_placed + t->n_placed / 2;
    RETURN_IF_ERROR(cuda_wait(d));
    d->api->release(d->g, t->device.pages);
    t->device.pages = NULL;
    free(t->sent);
    t->sent = calloc(capacity, sizeof *t->sent);
    if (!t->sent) return status_make(STATUS_NO_MEMORY, "page tables");
    RETURN_IF_ERROR(
        cuda_alloc(d, (size_t)capacity * t->device.row * sizeof(uint32_t), &t->device.pages));
    t->capacity = capacity;
    t->n_moved++;
    memset(t->touched, 1, t->max_seqs);
    return STATUS_IS_OK;
}

/* Sends a table again from the start, because first pages may have changed. `table` is numbered as
 * in the words: that of a grain which the sequence no longer has was forgotten with its place. */
static void forget_table(cuda_tables *t, uint32_t seq, uint32_t table)
{
    const struct cuda_place *p = &t->places[seq];
    uint32_t all = pkv_head_groups(&t->geometry), heads = t->device.head_groups;
    if (p->grain == PKV_HEAD) {
        if (!cuda_tables_has(t, table)) return;
        table = table / all * heads + table % all - t->device.first_head_group;
    }
    if (table < t->counts[p->grain]) t->sent[p->first + table] = 0;
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

static status patch_table(cuda_tables *t, const struct cuda_place *place, uint32_t number,
                          pkv_table_view view)
{
    size_t table = (size_t)place->first + number;
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
    uint32_t less = place->grain == PKV_HEAD ? t->first_cell : 0;
    for (uint32_t i = 0; i < n; i++) t->values[t->n_values++] = view.pages[first + i] - less;
    t->sent[table] = view.n_pages;
    return STATUS_IS_OK;
}

/* Finds room for the tables of sequences that the words changed, and what has to be sent again. */
static status place_tables(cuda_device *d, cuda_tables *t, const pkv_mirror *mirror,
                           const uint32_t *words, size_t n_words)
{
    pkv_touch touch;
    memset(t->touched, 0, t->max_seqs);
    for (size_t i = 0; i < n_words;) {
        i += pkv_delta_touch(&t->geometry, words + i, &touch);
        t->touched[touch.seq] = 1;
    }
    for (uint32_t seq = 0; seq < t->max_seqs; seq++)
        if (t->touched[seq]) take_place(t, seq, pkv_mirror_grain(mirror, seq));
    RETURN_IF_ERROR(reserve_tables(d, t));
    for (size_t i = 0; i < n_words;) {
        i += pkv_delta_touch(&t->geometry, words + i, &touch);
        if (touch.appends) continue;
        if (touch.group == PKV_ALL_GROUPS) forget_tables(t, touch.seq);
        else forget_table(t, touch.seq, touch.group);
    }
    return STATUS_IS_OK;
}

status cuda_tables_update(cuda_device *d, cuda_tables *t, const pkv_mirror *mirror,
                          const uint32_t *words, size_t n_words)
{
    t->n_patches = t->n_values = 0;
    RETURN_IF_ERROR(place_tables(d, t, mirror, words, n_words));
    for (uint32_t seq = 0; seq < t->max_seqs; seq++) {
        const struct cuda_place *p = &t->places[seq];
        for (uint32_t i = 0; t->touched[seq] && i < t->counts[p->grain]; i++)
            RETURN_IF_ERROR(patch_table(t, p, i, cuda_tables_view(t, mirror, seq, p->grain, i)));
    }
    return STATUS_IS_OK;
}
