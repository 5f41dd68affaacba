/* Tiles of attention in layers where rows read by retrieval: rows that read everything together,
 * and rows that read by lists. */
#include "model/cuda/retrieve_state.h"

#include <assert.h>

uint32_t cuda_most_slots(const backend_cuda *b, uint32_t i)
{
    const cuda_retrieve *r = b->retrieve;
    const gpu_sparse_row *row = &r->rows[i];
    for (uint32_t layer = 0; layer < b->info.geometry.n_layers; layer++)
        if (r->reads[(size_t)layer * r->n_rows + i] == GPU_READS_ALL && cuda_reads_few(r, layer))
            return row->n_slots;
    return cuda_list_slots(row, b->pages.page_tokens);
}

/* A sequence's rows as attention sees them: the rows that read everything together, or one row that
 * reads by lists. The row of a share with a single row is cut by parts of its table, as without
 * retrieval; of several rows, as after a preemption, each is a tile of its own. */
typedef struct item {
    uint32_t seq, n_rows, slots;
    bool by_parts;
} item;

static item full_item(const backend_cuda *b, const step_plan *plan, uint32_t i)
{
    if (i >= plan->n_seqs) return (item){i, 1, 1, cuda_goes_by_parts(b, 1)}; /* of padding */
    const step_seq *s = &plan->seqs[i];
    uint32_t sparse = cuda_sparse_rows(b, s), dense = s->n_tokens - sparse;
    return (item){i, dense, cuda_kept_slots(b, s) - sparse, cuda_goes_by_parts(b, dense)};
}

static item list_item(const backend_cuda *b, const step_plan *plan, uint32_t i)
{
    bool alone = plan->seqs[b->retrieve->rows[i].seq].n_tokens == 1;
    return (item){i, 1, cuda_most_slots(b, i), alone && cuda_goes_by_parts(b, 1)};
}

static void add_item(const backend_cuda *b, const item *it, uint32_t part, uint32_t prefill_rows,
                     cuda_tiles *t)
{
    uint32_t q_heads = b->local.n_heads / b->local.n_kv_heads, first = t->n_decode;
    uint32_t parts = ceil_div(it->slots, part);
    if (it->n_rows == 0) return;
    for (uint32_t p = 0; it->by_parts && p < parts; p++)
        t->decode[t->n_decode++] = (gpu_tile){it->seq, 0, p * part, (p + 1) * part, parts, first};
    for (uint32_t row = 0; !it->by_parts && row < it->n_rows * q_heads; row += prefill_rows)
        t->prefill[t->n_prefill++] =
            (gpu_tile){.seq = it->seq, .row = row, .end = UINT32_MAX, .parts = 1};
}

/* The slots of a part are those that the step would have if nothing were retrieved and its tables
 * had the lists' lengths: so a row that reads all blocks computes the bits of full attention. That
 * holds for a chunk's rows where nothing cuts its tiles (gpu_cut_slots): these rows are tiles of
 * their own, enough of them without parts. */
void cuda_add_tiles(backend_cuda *b, const step_plan *plan, const cuda_batch *batch)
{
    cuda_retrieve *r = b->retrieve;
    uint64_t slots = 0;
    uint32_t longest = 0, n = batch->n_seqs + r->n_rows;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < n; i++) {
            bool is_list = i >= batch->n_seqs;
            item it = is_list ? list_item(b, plan, i - batch->n_seqs) : full_item(b, plan, i);
            if (pass == 1)
                add_item(b, &it, r->part_slots, batch->prefill_rows, is_list ? &r->list : &r->full);
            else if (it.by_parts && it.n_rows > 0 && (is_list || i < plan->n_seqs)) {
                slots += it.slots;
                if (it.slots > longest) longest = it.slots;
            }
        }
        if (pass == 0) r->part_slots = cuda_forward_part(b->forward, slots, longest);
    }
    assert(r->full.n_decode + r->list.n_decode <= cuda_forward_tiles(b->forward, batch->n_seqs));
}
