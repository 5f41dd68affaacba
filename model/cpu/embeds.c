#include "model/cpu/embeds.h"

#include <math.h>
#include <stdlib.h>

/* One head of one sequence in the layer at work. */
typedef struct embed_item {
    const forward_seq *seq;
    uint32_t column; /* of the head in a row of qkv */
    uint32_t part;   /* of the row's embedding */
    uint32_t n_parts;
} embed_item;

struct embeds {
    forward_options o;
    uint32_t rank, ranks;
    uint32_t heads, kv_heads; /* this rank's */
    size_t qkv_width;
    embed_item *items;
    size_t n_items, capacity;
    const float *qkv;
};

static status no_memory(void) { return status_make(STATUS_NO_MEMORY, "embeddings"); }

status embeds_create(const forward_options *options, uint32_t heads, uint32_t kv_heads,
                     embeds **out)
{
    embeds *e = calloc(1, sizeof *e);
    if (!e) return no_memory();
    e->o = *options;
    e->rank = (uint32_t)comm_rank(options->group);
    e->ranks = (uint32_t)comm_size(options->group);
    e->heads = heads;
    e->kv_heads = kv_heads;
    e->qkv_width = (size_t)(heads + 2 * kv_heads) * options->config->head_dim;
    *out = e;
    return STATUS_IS_OK;
}

void embeds_destroy(embeds *e)
{
    if (!e) return;
    free(e->items);
    free(e);
}

/* ---- which heads ----------------------------------------------------------------------------- */

static bool is_given(const embeds *e, const embed_head *h)
{
    const model_config *c = e->o.config;
    return embed_rank(c->n_heads, c->n_kv_heads, h, e->ranks) == e->rank;
}

/* Where a head of this rank begins in a row of qkv. */
static uint32_t column_of(const embeds *e, const embed_head *h)
{
    const tensor_slice *slice = &e->o.weights->slice;
    uint32_t head = h->kind == EMBED_Q ? h->head - slice->first_head
                                       : e->heads + h->head - slice->first_kv_head;
    if (h->kind == EMBED_V) head += e->kv_heads;
    return head * e->o.config->head_dim;
}

bool embeds_wanted(const embeds *e, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs)
{
    for (uint32_t s = 0; s < n_seqs; s++)
        for (uint32_t i = 0; i < seqs[s].n_embeds; i++)
            if (seqs[s].embeds[i].layer == layer && is_given(e, &seqs[s].embeds[i])) return true;
    return false;
}

static bool add_item(embeds *e, embed_item item)
{
    if (e->n_items == e->capacity) {
        size_t n = e->capacity ? 2 * e->capacity : 16;
        embed_item *grown = alloc_resize(NULL, e->items, n, sizeof *grown);
        if (!grown) return false;
        e->items = grown;
        e->capacity = n;
    }
    e->items[e->n_items++] = item;
    return true;
}

/* Lists the heads of one sequence in the layer. */
static bool add_items(embeds *e, uint32_t layer, const forward_seq *seq)
{
    size_t first = e->n_items;
    uint32_t part = 0;
    for (uint32_t i = 0; i < seq->n_embeds; i++) {
        const embed_head *h = &seq->embeds[i];
        if (!is_given(e, h)) continue;
        embed_item item = {.seq = seq, .column = column_of(e, h), .part = part++};
        if (h->layer == layer && !add_item(e, item)) return false;
    }
    for (size_t i = first; i < e->n_items; i++) e->items[i].n_parts = part;
    return true;
}

/* ---- their vectors --------------------------------------------------------------------------- */

static void embed_vector(const float *x, uint32_t dim, uint16_t *out)
{
    double sum = 0;
    for (uint32_t d = 0; d < dim; d++) sum += (double)x[d] * (double)x[d];
    if (sum == 0 || !isfinite(sum)) {
        uint16_t all = f16_from_f32(sum == 0 ? 0.0f : NAN);
        for (uint32_t d = 0; d < dim; d++) out[d] = all;
        return;
    }
    double scale = 1 / sqrt(sum);
    for (uint32_t d = 0; d < dim; d++) out[d] = f16_from_f32((float)((double)x[d] * scale));
}

static void embed_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const embeds *e = ctx;
    uint32_t dim = e->o.config->head_dim;
    for (const embed_item *item = e->items; item < e->items + e->n_items; item++) {
        const forward_seq *seq = item->seq;
        size_t first = seq->first_row, last = first + seq->n_rows;
        size_t row = from > first ? from : first;
        for (; row < to && row < last; row++)
            embed_vector(e->qkv + row * e->qkv_width + item->column, dim,
                         seq->embeddings + ((row - first) * item->n_parts + item->part) * dim);
    }
}

status embeds_layer(embeds *e, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs,
                    const float *qkv)
{
    size_t end = 0;
    e->n_items = 0;
    for (uint32_t s = 0; s < n_seqs; s++) {
        if (!add_items(e, layer, &seqs[s])) return no_memory();
        end = seqs[s].first_row + seqs[s].n_rows;
    }
    if (e->n_items == 0) return STATUS_IS_OK;
    e->qkv = qkv;
    thread_pool_for(e->o.pool, end, 16, embed_range, e);
    return STATUS_IS_OK;
}

/* ---- their place ----------------------------------------------------------------------------- */

status embeds_lay_out(embed_room *room, const backend_info *info, const comm *group,
                      const step_plan *plan, const uint32_t *place, forward_seq *seqs,
                      step_seq_result *results)
{
    uint32_t rank = (uint32_t)comm_rank(group), ranks = (uint32_t)comm_size(group);
    size_t n = 0, at = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        n += (size_t)plan->seqs[i].n_tokens * plan->seqs[i].n_embeds * info->head_dim;
    if (n == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(embed_room_reserve(room, n));
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        uint32_t heads = embed_heads_of(info, s, rank, ranks);
        if (heads == 0) continue;
        seqs[place[i]].embeddings = room->values + at;
        results[i].embeddings = room->values + at;
        at += (size_t)s->n_tokens * heads * info->head_dim;
    }
    return STATUS_IS_OK;
}
