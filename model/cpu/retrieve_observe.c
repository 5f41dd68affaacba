#include "model/cpu/retrieve_observe.h"

#include "model/cpu/kv_filling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A sequence whose prompt ends in this step. */
typedef struct ending {
    const forward_options *o;
    const forward_seq *seq;
    uint32_t index; /* of the sequence in the step */
    uint32_t layer, rows, together;
    retrieve_ranks *ranks;
    const float *q; /* of the first row that is measured and the first KV head */
    uint32_t q_heads;
    size_t q_stride;
} ending;

void retrieve_observe_free(retrieve_observer *w)
{
    free(w->mass);
    free(w->keys);
    free(w->rows);
    free(w->items);
    free(w->heads);
    retrieve_gather_free(&w->pooled);
    *w = (retrieve_observer){0};
}

static bool reserve(void **array, size_t *have, size_t n, size_t size)
{
    if (n <= *have) return true;
    void *grown = alloc_resize(NULL, *array, n, size);
    if (!grown) return false;
    *array = grown;
    *have = n;
    return true;
}

static bool reserve_all(retrieve_observer *w, const ending *e)
{
    uint32_t heads = e->o->store->n_heads, n_prompt = e->seq->n_prompt;
    return reserve((void **)&w->mass, &w->n_mass, (size_t)heads * n_prompt, sizeof *w->mass) &&
           reserve((void **)&w->keys, &w->n_keys, n_prompt, sizeof *w->keys) &&
           reserve((void **)&w->rows, &w->n_rows, e->rows, sizeof *w->rows) &&
           reserve((void **)&w->items, &w->n_items, heads, sizeof *w->items) &&
           reserve((void **)&w->heads, &w->n_heads, e->o->store->geometry.n_kv_heads,
                   sizeof *w->heads);
}

retrieve_bits retrieve_left_out_at(const forward_seq *seq, uint32_t layer, uint32_t run,
                                   uint32_t n_runs)
{
    uint32_t blocks = seq->n_prompt / seq->retrieval.block_tokens;
    return (retrieve_bits){.kind = RETRIEVE_LEFT_OUT,
                           .note = seq->note,
                           .layer = layer,
                           .row = run,
                           .n_rows = n_runs,
                           .n_words = (blocks + 63) / 64,
                           .spec = &seq->retrieval};
}

retrieve_bits retrieve_slots_at(const forward_seq *seq, uint32_t layer, uint32_t head,
                                uint32_t n_heads)
{
    return (retrieve_bits){.kind = RETRIEVE_SLOTS,
                           .note = seq->note,
                           .layer = layer,
                           .row = head,
                           .n_rows = n_heads,
                           .n_words = seq->n_prompt / seq->retrieval.block_tokens *
                                      retrieve_block_words(seq),
                           .spec = &seq->retrieval};
}

/* Attention of the rows by slot, as docs/retention.md defines the mass. */
static kern_rows_item item_of(const ending *e, uint32_t head, float *mass)
{
    const kv_store *store = e->o->store;
    const forward_seq *s = e->seq;
    pkv_table_view table =
        pkv_mirror_table(e->o->mirror, s->seq, kv_store_group(store, e->layer, head));
    kern_rows_item item = {.table = {.pages = table.pages,
                                     .tiles = kv_store_tiles(store, e->layer, head, table.offset),
                                     .n_slots = table.kept_tokens},
                           .kind = KERN_MEASURE_MASS,
                           .n_rows = e->rows,
                           .q = e->q + (size_t)head * e->q_heads * store->shape.head_dim,
                           .out = mass + (size_t)head * s->n_prompt};
    if (store->filling) {
        item.table.filling = kv_filling_tiles(store->filling, e->index, head);
        item.table.first_filling = kv_store_first_wide(store, table.kept_tokens - s->n_rows);
        item.table.residual_pages = store->residual_pages;
    }
    return item;
}

static status measure(retrieve_observer *w, const ending *e)
{
    const kv_store *store = e->o->store;
    for (uint32_t head = 0; head < store->n_heads; head++)
        w->items[head] = item_of(e, head, w->mass);
    kern_rows_batch batch = {.shape = store->shape,
                             .page_stride = store->page_bytes,
                             .q_heads = e->q_heads,
                             .scale = 1.0f / sqrtf((float)store->shape.head_dim),
                             .q_stride = e->q_stride,
                             .items = w->items,
                             .n_items = store->n_heads};
    return kern_measure_rows(e->o->kernels, &batch);
}

/* Lets the ranks that copy a KV head measure all its query heads, in their order. */
static status gather_queries(retrieve_observer *w, ending *e)
{
    if (e->ranks->copies == 1) return STATUS_IS_OK;
    for (uint32_t i = 0; i < e->rows; i++) w->rows[i] = i;
    RETURN_IF_ERROR(retrieve_ranks_queries(e->ranks, e->q, e->q_stride, w->rows, e->rows));
    e->q = retrieve_ranks_query(e->ranks, 0);
    e->q_heads *= e->ranks->copies;
    e->q_stride = e->ranks->copies * e->ranks->row_floats;
    return STATUS_IS_OK;
}

/* Sets w->heads to the masses of the prompt's blocks in each KV head of the model, or in those of
 * this rank alone. */
static status pool(retrieve_observer *w, const ending *e)
{
    const forward_seq *s = e->seq;
    const kv_store *store = e->o->store;
    size_t n_blocks = s->n_prompt / s->retrieval.block_tokens;
    RETURN_IF_ERROR(
        retrieve_gather_reserve(&w->pooled, e->ranks, (size_t)store->n_heads * n_blocks));
    float *own = retrieve_gather_own(&w->pooled, e->ranks);
    for (uint32_t h = 0; h < store->n_heads; h++, own += n_blocks) {
        w->heads[store->first_head + h] = own;
        retrieval_pool_mass(&s->retrieval, s->n_prompt, w->mass + (size_t)h * s->n_prompt, own);
    }
    if (!retrieve_ranks_cross(e->ranks, e->together)) return STATUS_IS_OK;
    RETURN_IF_ERROR(retrieve_gather_run(&w->pooled, e->ranks));
    for (uint32_t h = 0; h < store->geometry.n_kv_heads; h++)
        w->heads[h] = retrieve_gather_head(&w->pooled, e->ranks, h, 0, n_blocks);
    return STATUS_IS_OK;
}

static status preselect(retrieve_observer *w, const ending *e, retrieve_notes *notes)
{
    const forward_seq *s = e->seq;
    const kv_store *store = e->o->store;
    uint32_t first = store->first_head / e->together;
    uint32_t n_runs = (store->first_head + store->n_heads - 1) / e->together - first + 1;
    RETURN_IF_ERROR(pool(w, e));
    for (uint32_t run = 0; run < n_runs; run++) {
        retrieve_bits at = retrieve_left_out_at(s, e->layer, run, n_runs);
        uint64_t *left_out;
        RETURN_IF_ERROR(retrieve_notes_write(notes, &at, &left_out));
        retrieval_preselect(&s->retrieval, s->n_prompt, w->heads + (first + run) * e->together,
                            e->together, w->keys, left_out);
    }
    return STATUS_IS_OK;
}

/* The tag is new with the first layer that selects: those of later layers are written before a row
 * reads them. */
static status choose_keys(retrieve_observer *w, const ending *e, retrieve_notes *notes)
{
    const forward_seq *s = e->seq;
    kv_store *store = e->o->store;
    uint32_t size = s->retrieval.block_tokens, n_blocks = s->n_prompt / size;
    if (n_blocks == 0) return STATUS_IS_OK;
    for (uint32_t head = 0; head < store->n_heads; head++) {
        retrieve_bits at = retrieve_slots_at(s, e->layer, head, store->n_heads);
        uint64_t *slots;
        RETURN_IF_ERROR(retrieve_notes_write(notes, &at, &slots));
        const float *mass = w->mass + (size_t)head * s->n_prompt;
        for (uint32_t b = 0; b < n_blocks; b++)
            retrieval_dynamic_slots(&s->retrieval, mass + (size_t)b * size,
                                    slots + b * retrieve_block_words(s));
    }
    if (e->layer == retrieval_first_leader(&s->retrieval, &store->geometry))
        retrieve_notes_tag(notes, s->note, ++store->representatives);
    return STATUS_IS_OK;
}

static status observe(retrieve_observer *w, ending *e, retrieve_notes *notes)
{
    const retrieval_spec *spec = &e->seq->retrieval;
    bool chooses = spec->representative == RETRIEVAL_DYNAMIC;
    bool preselects = retrieval_left_out(spec, e->seq->n_prompt) > 0;
    if (!chooses && !preselects) return STATUS_IS_OK;
    if (!reserve_all(w, e)) return status_make(STATUS_NO_MEMORY, "attention of the prompt's end");
    RETURN_IF_ERROR(gather_queries(w, e));
    RETURN_IF_ERROR(measure(w, e));
    if (chooses) RETURN_IF_ERROR(choose_keys(w, e, notes));
    return preselects ? preselect(w, e, notes) : STATUS_IS_OK;
}

/* plan_check has seen that the rows are there. */
status retrieve_observe(retrieve_observer *w, const forward_options *o, retrieve_ranks *ranks,
                        uint32_t q_heads, uint32_t qkv_width, uint32_t layer, const float *qkv,
                        const forward_seq *seqs, uint32_t n_seqs, retrieve_notes *notes)
{
    const pkv_geometry *g = &o->store->geometry;
    for (uint32_t i = 0; i < n_seqs; i++) {
        const forward_seq *s = &seqs[i];
        if (s->retrieval.block_tokens == 0) continue;
        uint32_t rows = retrieval_observed_rows(&s->retrieval, s->n_prompt);
        pkv_table_view table =
            pkv_mirror_table(o->mirror, s->seq, kv_store_group(o->store, layer, 0));
        if (rows == 0 || table.kept_tokens != s->n_prompt ||
            retrieval_layer_leader(&s->retrieval, g, layer) != layer)
            continue;
        ending e = {.o = o,
                    .seq = s,
                    .index = i,
                    .layer = layer,
                    .rows = rows,
                    .together = retrieval_heads_together(&s->retrieval, g),
                    .ranks = ranks,
                    .q = qkv + (size_t)(s->first_row + s->n_rows - rows) * qkv_width,
                    .q_heads = q_heads,
                    .q_stride = qkv_width};
        RETURN_IF_ERROR(observe(w, &e, notes));
    }
    return STATUS_IS_OK;
}
