#include "model/cpu/exam.h"

#include "kernels/key_sums.h"
#include "model/cpu/key_view.h"
#include "paged_kv/retrieval/certify.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

struct exam {
    forward_options o;
    uint32_t q_heads; /* of a KV head */
    exam_list *lists; /* [KV heads] */
    uint8_t *scratch; /* [threads, thread_bytes], aligned to 64 */
    size_t thread_bytes, capacity;
    const exam_row *row; /* in hand */
};

static status no_memory(void) { return status_make(STATUS_NO_MEMORY, "retrieval's exam"); }

status exam_create(const forward_options *options, uint32_t q_heads, exam **out)
{
    exam *x = calloc(1, sizeof *x);
    if (!x) return no_memory();
    x->o = *options;
    x->q_heads = q_heads;
    x->lists = calloc(options->store->n_heads, sizeof *x->lists);
    if (x->lists) {
        *out = x;
        return STATUS_IS_OK;
    }
    exam_destroy(x);
    return no_memory();
}

void exam_destroy(exam *x)
{
    if (!x) return;
    free(x->lists);
    free(x->scratch);
    free(x);
}

exam_list exam_list_of(const exam *x, uint32_t i) { return x->lists[i]; }

/* ---- lists ----------------------------------------------------------------------------------- */

/* The state by which the exam of one list reads keys. */
typedef struct reader {
    const exam *x;
    uint32_t first; /* KV head */
    double *page;   /* [q_heads] */
    uint8_t *sums;  /* scratch of kern_key_sums for each KV head */
    size_t sums_bytes;
} reader;

static double add_logs(double a, double b)
{
    if (a == -INFINITY) return b;
    return a > b ? a + log2(1 + exp2(b - a)) : b + log2(1 + exp2(a - b));
}

static kern_key_query query_of(const exam *x, uint32_t head)
{
    size_t dim = x->o.store->shape.head_dim;
    return (kern_key_query){.q = x->row->q + head * x->q_heads * dim,
                            .q_heads = x->q_heads,
                            .scale = forward_scale((uint32_t)dim)};
}

/* Sums up one KV head's slots of a block. */
static void sum_head(const reader *r, uint32_t head, uint32_t block, double *out)
{
    const exam *x = r->x;
    const exam_row *row = x->row;
    const kern_kv_shape *shape = &x->o.store->shape;
    uint32_t size = row->seq->retrieval.block_tokens, page_tokens = shape->page_tokens;
    uint32_t end = (block + 1) * size < row->n_slots ? (block + 1) * size : row->n_slots;
    key_view view =
        key_view_of(x->o.store, x->o.mirror, row->seq, row->index, row->layer, head, row->n_slots);
    kern_key_query query = query_of(x, head);
    uint8_t *scratch = r->sums + (head - r->first) * r->sums_bytes;
    for (uint32_t g = 0; g < x->q_heads; g++) out[g] = -INFINITY;
    for (uint32_t from = block * size; from < end; from += page_tokens) {
        bool wide;
        uint32_t n = end - from < page_tokens ? end - from : page_tokens;
        const uint8_t *tile = key_view_tile(&view, from / page_tokens, &wide);
        kern_key_sums(x->o.kernels, shape, &query, tile, wide, n, scratch, r->page);
        for (uint32_t g = 0; g < x->q_heads; g++) out[g] = add_logs(out[g], r->page[g]);
    }
}

static void sum_block(void *ctx, uint32_t block, double *out)
{
    const reader *r = ctx;
    for (uint32_t h = 0; h < r->x->row->together; h++)
        sum_head(r, r->first + h, block, out + h * r->x->q_heads);
}

static size_t reader_bytes(const exam *x, uint32_t together)
{
    size_t sums = kern_key_sums_bytes(&x->o.store->shape, x->q_heads);
    return sums * together + ((x->q_heads * sizeof(double) + 63) & ~(size_t)63);
}

/* Blocks from here on have keys that the row does not read as they are stored, so that no stored
 * representative bounds them. */
static uint32_t first_sure(const exam *x)
{
    const kv_store *store = x->o.store;
    if (!store->filling) return UINT32_MAX;
    uint32_t page = kv_store_first_wide(store, x->row->n_slots - 1);
    return page / (x->row->seq->retrieval.block_tokens / store->shape.page_tokens);
}

static void select_one(const exam *x, uint32_t i, uint8_t *scratch)
{
    const exam_row *row = x->row;
    uint32_t first = i * row->together;
    reader r = {.x = x, .first = first, .sums = scratch};
    r.sums_bytes = kern_key_sums_bytes(&x->o.store->shape, x->q_heads);
    r.page = (double *)(scratch + r.sums_bytes * row->together);
    for (uint32_t h = 0; h < row->together; h++) {
        kern_key_query query = query_of(x, first + h);
        kern_key_sums_begin(&x->o.store->shape, &query, scratch + h * r.sums_bytes);
    }
    const retrieval_exam of = {.n_slots = row->n_slots,
                               .n_prompt = row->seq->n_prompt,
                               .n_heads = row->together * x->q_heads,
                               .scale = (double)forward_scale(x->o.store->shape.head_dim),
                               .bounds = row->bounds + (size_t)first * x->q_heads,
                               .sure = first_sure(x),
                               .sums = sum_block,
                               .ctx = &r};
    exam_list *list = &x->lists[i];
    list->n = retrieval_certify(&row->seq->retrieval, &of, scratch + reader_bytes(x, row->together),
                                row->blocks + (size_t)i * row->stride, &list->missed);
    assert(list->n <= row->stride);
}

static void select_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    const exam *x = ctx;
    for (size_t i = from; i < to; i++)
        select_one(x, (uint32_t)i, x->scratch + thread * x->thread_bytes);
}

/* ---- a row ----------------------------------------------------------------------------------- */

static bool make_room(exam *x, const exam_row *row, uint32_t n_candidates)
{
    size_t bytes = reader_bytes(x, row->together) +
                   retrieval_certify_bytes(n_candidates, row->together * x->q_heads);
    size_t all = thread_pool_size(x->o.pool) * (x->thread_bytes = (bytes + 63) & ~(size_t)63);
    if (all <= x->capacity) return true;
    free(x->scratch);
    x->scratch = aligned_alloc(64, all);
    x->capacity = x->scratch ? all : 0;
    return x->scratch != NULL;
}

static void list_all(exam *x, const exam_row *row, uint32_t n_blocks)
{
    for (uint32_t i = 0; i < x->o.store->n_heads / row->together; i++) {
        x->lists[i] = (exam_list){.n = n_blocks};
        for (uint32_t b = 0; b < n_blocks; b++) row->blocks[(size_t)i * row->stride + b] = b;
    }
}

status exam_run(exam *x, const exam_row *row)
{
    retrieval_extent e =
        retrieval_extent_of(&row->seq->retrieval, row->seq->n_prompt, row->n_slots);
    x->row = row;
    if (retrieval_reads_all(&e)) {
        list_all(x, row, e.n_blocks);
        return STATUS_IS_OK;
    }
    if (!make_room(x, row, e.end - e.first)) return no_memory();
    thread_pool_for(x->o.pool, x->o.store->n_heads / row->together, 1, select_range, x);
    return STATUS_IS_OK;
}
