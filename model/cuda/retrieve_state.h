/* State that retrieve.c and retrieve_tiles.c share: the rows of a step that read by retrieval, and
 * where they lie on the device (private to these two). */
#ifndef MODEL_CUDA_RETRIEVE_STATE_H
#define MODEL_CUDA_RETRIEVE_STATE_H

#include "model/cuda/retrieve.h"
#include "model/cuda/retrieve_lists.h"
#include "model/cuda/retrieve_observe.h"
#include "model/plan.h"

#include <string.h>

/* Memory on the device that grows to the largest need seen. */
typedef struct room {
    void *data;
    size_t bytes;
} room;

/* Attention's tiles of a step: of rows that read everything, or of lists. */
typedef struct cuda_tiles {
    gpu_tile *decode, *prefill;
    const gpu_tile *d_decode, *d_prefill;
    uint32_t n_decode, n_prefill;
} cuda_tiles;

struct cuda_retrieve {
    bool used; /* a plan has read by retrieval: until then there are no marks */
    cuda_lists *lists;
    cuda_endings endings;
    gpu_tile_mark *no_marks; /* pinned, of a run of cells: zeros */
    cuda_pack pack;
    room folded, scores, unmade, blocks, pages_of, lengths_of;
    retrieval_reading *readings[CUDA_FLIGHTS]; /* [max_rows] */
    /* The step's rows [n_rows] and what they do in each layer [n_layers, n_rows]. */
    gpu_sparse_row *rows;
    uint8_t *reads;
    const uint8_t *d_reads;
    uint32_t n_rows, capacity;
    uint32_t *waves; /* [n_waves + 1] first row of each */
    uint32_t n_waves;
    gpu_retrieval job; /* what all layers share */
    /* Where some row reads few blocks: the rows that read everything, and the lists. */
    const gpu_seq *full_seqs, *list_seqs;
    const uint32_t *full_lengths;
    cuda_tiles full, list;
    uint32_t part_slots;
};

static inline uint32_t ceil_div(uint32_t n, uint32_t by) { return n / by + (n % by != 0); }

static inline uint32_t cuda_sparse_rows(const backend_cuda *b, const step_seq *s)
{
    return s->retrieval.block_tokens ? s->n_tokens - plan_dense_rows(b->mirror, s) : 0;
}

static inline uint32_t cuda_kept_slots(const backend_cuda *b, const step_seq *s)
{
    return plan_longest_table(b->mirror, s->seq, true);
}

static inline bool cuda_some_row(const cuda_retrieve *r, uint32_t layer, gpu_reads reads)
{
    const uint8_t *of_layer = r->reads + (size_t)layer * r->n_rows;
    return r->n_rows > 0 && memchr(of_layer, (int)reads, r->n_rows) != NULL;
}

static inline bool cuda_reads_few(const cuda_retrieve *r, uint32_t layer)
{
    return cuda_some_row(r, layer, GPU_SELECTS) || cuda_some_row(r, layer, GPU_FOLLOWS) ||
           cuda_some_row(r, layer, GPU_READS_ON);
}

static inline uint32_t cuda_list_slots(const gpu_sparse_row *row, uint32_t page_tokens)
{
    uint32_t size = row->block_pages * page_tokens;
    return (row->n_list - 1) * size + (row->n_slots - 1) % size + 1;
}

/* ---- retrieve_tiles.c ------------------------------------------------------------------------ */

/* The slots of row i's tables of pages, in the layers where some row reads few blocks. */
uint32_t cuda_most_slots(const backend_cuda *b, uint32_t i);
/* Cuts attention in those layers into tiles. */
void cuda_add_tiles(backend_cuda *b, const step_plan *plan, const cuda_batch *batch);

#endif
