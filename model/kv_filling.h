/* Pages that are read as bf16 (private to model/). A page of a format with grids (kernels.h) is
 * quantised when it is full. Until then its slots lie beside the pool, in a tile of bf16 for each
 * of its tiles: those of the last page of each table, and of the pages that a step's rows write,
 * while a layer computes.
 *
 * With a residual (kv_store.residual_pages) a page keeps these tiles beside its quantised form for
 * so many pages more, and rows read them instead. One page beyond keeps them too, for rows of a
 * step ahead may be taken back (pkv_seq_cut). What retention writes into such a page goes to both
 * forms; a page that it gathers of several others has the quantised form alone.
 *
 * A page without tiles is as it is stored. When one that has been stored is to be written again (a
 * table was cut short, so that it is the last one now), it becomes tiles of what it reads as.
 *
 * There are tiles for what can run at once, and as many for sequences that wait (swapped out, or
 * idle sessions). Of more than that those that have waited longest are quantised as if full. What
 * ended leaves its tiles before any of them. */
#ifndef MODEL_KV_FILLING_H
#define MODEL_KV_FILLING_H

#include "model/forward.h"
#include "model/rope.h"

typedef struct kv_filling kv_filling;

typedef struct kv_filling_options {
    const kv_store *store; // borrowed, as are those below
    const pkv_mirror *mirror;
    kern_context *kernels;
    thread_pool *pool;
    uint32_t n_host_pages;
    uint32_t max_rows, max_seqs;
} kv_filling_options;

status kv_filling_create(const kv_filling_options *options, kv_filling **out);
void kv_filling_destroy(kv_filling *f);
size_t kv_filling_bytes(const kv_filling *f); /* committed as tiles are used */
/* The same of a store that has its layout, before there is one. */
size_t kv_filling_size(const kv_store *store, uint32_t max_rows, uint32_t max_seqs);

/* Moves of K and V between pages, and to and from the host tier; page numbers have been checked.
 * Not threaded. */
status kv_filling_move(kv_filling *f, const rope_config *rope, const pkv_move *m);
status kv_filling_copy(kv_filling *f, const pkv_move *m);

/* A layer of a step: tiles for the pages that rows are written to; when the rows are written, pages
 * that became full to the pool; when the layer has attended, the tiles of those that no later row
 * reads in bf16 are free. */
status kv_filling_begin(kv_filling *f, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs);
void kv_filling_store(kv_filling *f);
void kv_filling_end(kv_filling *f, uint32_t layer);
/* Those of the step's sequence `index` for one KV head, from the first page on that its first row
 * reads in bf16 (kv_store_first_wide). NULL in it: the page has none, and is read as it is stored.
 */
const uint8_t *const *kv_filling_tiles(const kv_filling *f, uint32_t index, uint32_t head);

#endif
