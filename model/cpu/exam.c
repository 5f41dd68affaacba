#include "model/cpu/exam.h"

#include "base/minmax.h"
#include "kernels/key_sums.h"
#include "model/cpu/key_view.h"
#include "paged_kv/retrieval/certify.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct exam {
    forward_options o;
    const retrieve_ranks *ranks;
    uint32_t q_heads; /* of a KV head */
    exam_list *lists; /* [KV heads] */
    uint8_t *scratch; /* aligned to 64: of the exams of a row */
    size_t capacity;
    size_t reader_bytes, exam_bytes; /* of keys that are read, of one exam */
    const exam_row *row;             /* in hand */
    retrieve_gather sums; /* [blocks, KV heads, q_heads] doubles, where lists cross ranks */
};

static status no_memory(void) { return status_make(STATUS_NO_MEMORY, "retrieval's exam"); }

status exam_create(const forward_options *options, const retrieve_ranks *ranks, uint32_t q_heads,
                   exam **out)
{
    exam *x = calloc(1, sizeof *x);
    if (!x) return no_memory();
    x->o = *options;
    x->ranks = ranks;
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
    retrieve_gather_free(&x->sums);
    free(x);
}

exam_list exam_list_of(const exam *x, uint32_t i) { return x->lists[i]; }

size_t exam_scratch_bytes(const exam *x) { return x->capacity + x->sums.bytes; }

/* ---- sums of blocks -------------------------------------------------------------------------- */

/* The state by which one thread reads keys. */
typedef struct reader {
    const exam *x;
    uint32_t first; /* KV head of this rank, of those that it reads */
    uint32_t n;
    double *page;  /* [q_heads] */
    uint8_t *sums; /* scratch of kern_key_sums for each KV head */
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

static size_t reader_bytes(const exam *x, uint32_t n_heads)
{
    size_t sums = kern_key_sums_bytes(&x->o.store->shape, x->q_heads);
    return sums * n_heads + ((x->q_heads * sizeof(double) + 63) & ~(size_t)63);
}

static reader begin_reader(const exam *x, uint32_t first, uint32_t n, uint8_t *scratch)
{
    reader r = {.x = x, .first = first, .n = n, .sums = scratch};
    r.sums_bytes = kern_key_sums_bytes(&x->o.store->shape, x->q_heads);
    r.page = (double *)(scratch + r.sums_bytes * n);
    for (uint32_t h = 0; h < n; h++) {
        kern_key_query query = query_of(x, first + h);
        kern_key_sums_begin(&x->o.store->shape, &query, scratch + h * r.sums_bytes);
    }
    return r;
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

static status sum_blocks(void *ctx, const uint32_t *blocks, uint32_t n, double *out)
{
    const reader *r = ctx;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < r->n; h++, out += r->x->q_heads)
            sum_head(r, r->first + h, blocks[i], out);
    return STATUS_IS_OK;
}

/* ---- one list -------------------------------------------------------------------------------- */

/* Blocks from here on have keys that the row does not read as they are stored, so that no stored
 * representative bounds them. */
static uint32_t first_sure(const exam *x)
{
    const kv_store *store = x->o.store;
    if (!store->filling) return UINT32_MAX;
    uint32_t page = kv_store_first_wide(store, x->row->n_slots - 1);
    return page / (x->row->seq->retrieval.block_tokens / store->shape.page_tokens);
}

/* The exam of the list whose bounds begin with KV head `first`. */
static retrieval_exam exam_of(const exam *x, uint32_t first)
{
    const exam_row *row = x->row;
    return (retrieval_exam){.n_slots = row->n_slots,
                            .n_prompt = row->seq->n_prompt,
                            .n_heads = row->together * x->q_heads,
                            .scale = (double)forward_scale(x->o.store->shape.head_dim),
                            .bounds = row->bounds + (size_t)first * x->q_heads,
                            .sure = first_sure(x)};
}

/* ---- lists of this rank's KV heads alone ----------------------------------------------------- */

static void select_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    const exam *x = ctx;
    const exam_row *row = x->row;
    (void)thread;
    for (size_t i = from; i < to; i++) {
        uint8_t *scratch = x->scratch + i * (x->reader_bytes + x->exam_bytes);
        uint32_t first = (uint32_t)i * row->together;
        reader r = begin_reader(x, first, row->together, scratch);
        retrieval_exam of = exam_of(x, first);
        of.sums = sum_blocks;
        of.ctx = &r;
        exam_list *list = &x->lists[i];
        (void)retrieval_certify(&row->seq->retrieval, &of, scratch + x->reader_bytes,
                                row->blocks + i * row->stride, &list->n, &list->missed);
        assert(list->n <= row->stride);
    }
}

/* ---- lists of KV heads of several ranks ------------------------------------------------------ */

/* A list in hand, and the KV heads of this rank, [from, to), that read by it. */
typedef struct shared_list {
    exam *x;
    reader *readers; /* [threads] */
    uint32_t first;  /* KV head of the model */
    uint32_t from, to;
    const uint32_t *blocks; /* asked for */
} shared_list;

/* Where the sums of a block and a KV head of this rank begin among a rank's doubles. */
static size_t sums_at(const exam *x, size_t block, uint32_t head)
{
    return (block * x->o.store->n_heads + head) * x->q_heads;
}

static void sum_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    const shared_list *l = ctx;
    double *own = (double *)(void *)retrieve_gather_own(&l->x->sums, l->x->ranks);
    uint32_t n = l->to - l->from;
    for (size_t i = from; i < to; i++) {
        uint32_t head = l->from + (uint32_t)(i % n);
        sum_head(&l->readers[thread], head, l->blocks[i / n], own + sums_at(l->x, i / n, head));
    }
}

/* Each rank sums up its own KV heads' slots, and all get the sums of all. */
static status sum_over_ranks(void *ctx, const uint32_t *blocks, uint32_t n, double *out)
{
    shared_list *l = ctx;
    exam *x = l->x;
    uint32_t heads = l->to - l->from, all = x->o.store->n_heads;
    size_t floats = sums_at(x, n, 0) * sizeof(double) / sizeof(float);
    RETURN_IF_ERROR(retrieve_gather_reserve(&x->sums, x->ranks, floats));
    l->blocks = blocks;
    if (heads < all) memset(retrieve_gather_own(&x->sums, x->ranks), 0, floats * sizeof(float));
    if (heads > 0) thread_pool_for(x->o.pool, (size_t)n * heads, 1, sum_range, l);
    RETURN_IF_ERROR(retrieve_gather_run(&x->sums, x->ranks));
    size_t bytes = x->q_heads * sizeof *out, each = bytes / sizeof(float);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = l->first; h < l->first + x->row->together; h++, out += x->q_heads)
            memcpy(out, retrieve_gather_head(&x->sums, x->ranks, h, i * all * each, each), bytes);
    return STATUS_IS_OK;
}

static uint32_t clamp(uint32_t v, uint32_t least, uint32_t most)
{
    return v < least ? least : v > most ? most : v;
}

/* Runs one list's exam on all ranks, which gives all the same blocks: *list, blocks. */
static status select_over_ranks(exam *x, uint32_t first, uint8_t *scratch, reader *readers,
                                exam_list *list, uint32_t *blocks)
{
    const exam_row *row = x->row;
    uint32_t own = x->o.store->first_head, end = own + x->o.store->n_heads;
    shared_list l = {.x = x, .readers = readers, .first = first};
    l.from = clamp(first, own, end) - own;
    l.to = clamp(first + row->together, own, end) - own;
    for (unsigned t = 0; t < thread_pool_size(x->o.pool); t++)
        readers[t] = begin_reader(x, l.from, l.to - l.from, scratch + t * x->reader_bytes);
    retrieval_exam of = exam_of(x, first);
    of.sums = sum_over_ranks;
    of.ctx = &l;
    scratch += thread_pool_size(x->o.pool) * x->reader_bytes;
    return retrieval_certify(&row->seq->retrieval, &of, scratch, blocks, &list->n, &list->missed);
}

/* Runs the exams of all lists of the model: each needs sums of all ranks. */
static status run_over_ranks(exam *x, const exam_row *row, uint32_t n_blocks)
{
    const kv_store *store = x->o.store;
    uint32_t first = store->first_head / row->together; /* list of this rank */
    uint32_t n = store->geometry.n_kv_heads / row->together;
    reader *readers = calloc(thread_pool_size(x->o.pool), sizeof *readers);
    uint32_t *others = malloc(n_blocks * sizeof *others);
    status s = readers && others ? STATUS_IS_OK : no_memory();
    for (uint32_t i = 0; i < n && status_ok(s); i++) {
        bool is_own = i >= first && i < first + row->n_lists;
        exam_list other, *list = is_own ? &x->lists[i - first] : &other;
        s = select_over_ranks(x, i * row->together, x->scratch, readers, list,
                              is_own ? row->blocks + (size_t)(i - first) * row->stride : others);
    }
    free(readers);
    free(others);
    return s;
}

/* ---- a row ----------------------------------------------------------------------------------- */

static bool make_room(exam *x, const exam_row *row, bool crosses, uint32_t n_candidates)
{
    size_t threads = thread_pool_size(x->o.pool);
    x->reader_bytes = reader_bytes(x, crosses ? x->o.store->n_heads : row->together);
    x->exam_bytes = align64(retrieval_certify_bytes(n_candidates, row->together * x->q_heads));
    size_t all = crosses ? threads * x->reader_bytes + x->exam_bytes
                         : row->n_lists * (x->reader_bytes + x->exam_bytes);
    if (all <= x->capacity) return true;
    free(x->scratch);
    x->scratch = aligned_alloc(64, all);
    x->capacity = x->scratch ? all : 0;
    return x->scratch != NULL;
}

static void list_all(exam *x, const exam_row *row, uint32_t n_blocks)
{
    for (uint32_t i = 0; i < row->n_lists; i++) {
        x->lists[i] = (exam_list){.n = n_blocks};
        for (uint32_t b = 0; b < n_blocks; b++) row->blocks[(size_t)i * row->stride + b] = b;
    }
}

status exam_run(exam *x, const exam_row *row)
{
    retrieval_extent e =
        retrieval_extent_of(&row->seq->retrieval, row->seq->n_prompt, row->n_slots);
    bool crosses = retrieve_ranks_cross(x->ranks, row->together);
    x->row = row;
    if (retrieval_reads_all(&e)) {
        list_all(x, row, e.n_blocks);
        return STATUS_IS_OK;
    }
    if (!make_room(x, row, crosses, e.end - e.first)) return no_memory();
    if (crosses) return run_over_ranks(x, row, e.n_blocks);
    thread_pool_for(x->o.pool, row->n_lists, 1, select_range, x);
    return STATUS_IS_OK;
}
