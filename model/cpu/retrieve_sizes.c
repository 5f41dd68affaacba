/* The memory that retrieval takes beside pages and representatives: the lists of a step's rows, and
 * the scratch of their selections. */
#include "kernels/key_sums.h"
#include "model/cpu/readings.h"
#include "model/cpu/retrieve_state.h"
#include "paged_kv/retrieval/certify.h"

uint32_t retrieve_longest_table(const model_config *config, const pkv_geometry *g, uint32_t n_pages)
{
    uint64_t positions = model_max_length(config);
    uint64_t pool = (uint64_t)n_pages / pkv_groups(g) * g->page_tokens;
    return (uint32_t)(pool < positions ? pool : positions);
}

/* The numbers that the bounds below are computed from. */
typedef struct extent {
    const kv_store *store;
    size_t rows;    /* of a step, that read by retrieval */
    size_t heads;   /* KV heads of a rank */
    size_t q_heads; /* of a KV head: of all ranks that copy it */
    size_t blocks;  /* of a table, where a block is as small as a page */
    size_t slots, ranks, copies, threads;
} extent;

/* Rows' lists, which are as long as tables where a request reads all of them, and what their
 * selections go through one after the other. */
static size_t room_bytes(const extent *e)
{
    const kv_store *s = e->store;
    size_t tiles = s->residual_pages + 1, scored = e->heads * e->q_heads;
    size_t row = sizeof(sparse_row) + sizeof(uint32_t) +
                 e->heads * (sizeof(block_list) + tiles * sizeof(uint8_t *) +
                             2 * e->blocks * sizeof(uint32_t)); /* blocks and their pages */
    size_t block = e->heads * (sizeof(uint32_t) + sizeof(kern_represent_item) + sizeof(block_at)) +
                   scored * sizeof(float);
    size_t head = e->heads * sizeof(candidates) + scored * sizeof(kern_score_item) +
                  s->geometry.n_kv_heads * e->q_heads * sizeof(const float *);
    return e->rows * row + e->blocks * block + head;
}

/* The masses of a prompt's end. */
static size_t observer_bytes(const extent *e)
{
    const kv_store *s = e->store;
    return e->slots * (e->heads + 1) * sizeof(float) + RETRIEVAL_OBSERVED * sizeof(uint32_t) +
           e->heads * sizeof(kern_rows_item) + s->geometry.n_kv_heads * sizeof(const float *) +
           e->ranks * e->heads * e->blocks * sizeof(float);
}

/* Queries, scores and sums that go over ranks. */
static size_t gathered_bytes(const extent *e)
{
    if (e->ranks == 1) return 0;
    size_t rows = e->rows > RETRIEVAL_OBSERVED ? e->rows : RETRIEVAL_OBSERVED;
    size_t queries = (e->ranks + e->copies) * rows * e->q_heads * e->store->shape.head_dim;
    size_t scores = e->ranks * e->rows * e->blocks * e->heads * e->q_heads;
    size_t sums = 2 * e->ranks * RETRIEVAL_SUMS_MOST * e->heads * e->q_heads;
    return (queries + scores + sums) * sizeof(float);
}

/* The exams of a row: one of each KV head alone, or one of several. Over ranks each thread reads
 * keys of one exam. */
static size_t exam_bytes(const extent *e)
{
    const kern_kv_shape *shape = &e->store->shape;
    size_t reader = e->heads * kern_key_sums_bytes(shape, (uint32_t)e->q_heads) +
                    e->q_heads * sizeof(double) + 64;
    size_t readers = e->ranks > 1 ? e->threads : e->heads;
    size_t one = retrieval_certify_bytes((uint32_t)e->blocks, (uint32_t)e->q_heads) + 64;
    return readers * reader + e->store->geometry.n_kv_heads * one;
}

size_t retrieve_scratch_bytes(const kv_store *store, const retrieve_limits *limits)
{
    size_t copies = limits->n_ranks * store->n_heads / store->geometry.n_kv_heads;
    extent e = {.store = store,
                .rows = step_most_sparse_rows(limits->max_seqs),
                .heads = store->n_heads,
                .q_heads = limits->q_heads * copies,
                .blocks = limits->n_slots / store->shape.page_tokens + 1,
                .slots = limits->n_slots,
                .ranks = limits->n_ranks,
                .copies = copies,
                .threads = limits->n_threads};
    if (e.rows > limits->max_rows) e.rows = limits->max_rows;
    return room_bytes(&e) + observer_bytes(&e) + gathered_bytes(&e) + exam_bytes(&e);
}

size_t retrieve_scratch_taken(const retrieve *r)
{
    const room *rooms[] = {&r->rows,        &r->lists,      &r->blocks,      &r->pages,
                           &r->tiles,       &r->scores,     &r->score_items, &r->keys,
                           &r->head_scores, &r->candidates, &r->items,       &r->listed,
                           &r->selecting};
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) bytes += rooms[i]->bytes;
    return bytes + retrieve_observer_bytes(&r->observer) + r->gathered.bytes +
           r->ranks.parts_bytes + r->ranks.queries_bytes + exam_scratch_bytes(r->exam);
}
