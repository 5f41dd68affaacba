/* Pages that are read as bf16 (private to model/). A page of a format with grids (kernels.h) is
 * quantised when it is full. Until then its slots lie beside the pool, in one bf16 tile for each of
 * the page's tiles. The last page of each table has such bf16 tiles, and so has each page that a
 * step's rows write, while a layer computes.
 *
 * With a residual (kv_store.residual_pages) a full page keeps its bf16 tiles beside its quantised
 * form while that many pages follow it, and rows read the bf16 tiles. One page more keeps them too,
 * because rows of a step ahead may be taken back (pkv_seq_cut). Slots that retention writes into
 * such a page go to both forms; a page gathered from several others has the quantised form alone.
 *
 * A page without bf16 tiles is read as it is stored. When a stored page is to be written again (its
 * table was cut short, so that it is the last page now), its values are expanded to bf16 tiles.
 *
 * There are bf16 tiles for all sequences that can run at once, and as many again for sequences that
 * wait (swapped out, or idle sessions). When these run out, pages of ended sequences give up their
 * tiles first, then the pages that have waited longest are quantised as if they were full. */
#ifndef MODEL_CPU_KV_FILLING_H
#define MODEL_CPU_KV_FILLING_H

#include "model/cpu/forward.h"
#include "model/rope.h"

typedef struct kv_filling kv_filling;

typedef struct kv_filling_options {
    const kv_store *store; // borrowed, as all pointers here
    const pkv_mirror *mirror;
    kern_context *kernels;
    thread_pool *pool;
    uint32_t n_host_pages;
    uint32_t max_rows, max_seqs;
} kv_filling_options;

status kv_filling_create(const kv_filling_options *options, kv_filling **out);
void kv_filling_destroy(kv_filling *f);
size_t kv_filling_bytes(const kv_filling *f); /* memory is committed as tiles are used */
/* Bytes that a kv_filling of this store would take; of the store only its layout is read. */
size_t kv_filling_size(const kv_store *store, uint32_t max_rows, uint32_t max_seqs);

/* Execute moves of K and V between pages, and to and from the host tier, on the calling thread. The
 * caller has checked page numbers. */
status kv_filling_move(kv_filling *f, const rope_config *rope, const pkv_move *m);
status kv_filling_copy(kv_filling *f, const pkv_move *m);

/* Called for each layer of a step. _begin gives tiles to the pages that rows are written to.
 * _store, after the rows are written, quantises the pages that became full into the pool. _end,
 * after the layer's attention, frees the tiles of pages that no later row reads in bf16. */
status kv_filling_begin(kv_filling *f, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs);
void kv_filling_store(kv_filling *f);
void kv_filling_end(kv_filling *f, uint32_t layer);
/* The bf16 tiles of the step's sequence `index` for one KV head, one for each page from the first
 * that its first row reads in bf16 (kv_store_first_wide). NULL stands for a page without bf16
 * tiles, which is read as it is stored. */
const uint8_t *const *kv_filling_tiles(const kv_filling *f, uint32_t index, uint32_t head);

#endif
