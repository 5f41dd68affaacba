/* The sizes of a backend's buffers by its options (private to model/): the arithmetic by
 * which every backend is made and by which backend_cpu_measure predicts it. Pure functions. */
#ifndef MODEL_SIZES_H
#define MODEL_SIZES_H

#include "model/cpu/kv_store.h"
#include "model/load/weights.h"
#include "model/model.h"

/* The weights of rank `rank` of `size` as the options ask for them. `config` is the backend's own
 * and is borrowed, as the options' texts are. The caller adds kernels and pool before it loads. */
weights_options sizes_weights(const backend_options *o, const model_config *config, int rank,
                              int size);

/* Ranks that share this machine's memory. */
static inline uint64_t sizes_ranks_here(const backend_options *o)
{
    return o->ranks_here ? o->ranks_here : (uint64_t)comm_size(o->group);
}

/* Scales the bytes of `some` ranks to `others` ranks. Equal numbers skip the lossy division. */
static inline uint64_t sizes_for_ranks(uint64_t bytes, uint64_t some, uint64_t others)
{
    return some == others ? bytes : bytes / some * others;
}

static inline uint64_t sizes_default_pool(uint64_t left, double share)
{
    return (uint64_t)((double)left * share);
}

/* The part of a default pool of `bytes` that its pages have: retrieval may write `beside` bytes
 * beside each page. */
static inline uint64_t sizes_pages_part(uint64_t bytes, uint64_t page_bytes, uint64_t beside)
{
    return bytes / (page_bytes + beside) * page_bytes;
}

/* Bytes that a page takes over all ranks, where page_bytes is what a rank stores of one. Ranks with
 * heads of their own store other pages; those with the same heads, or with some heads of every
 * page, store the same ones. */
static inline uint64_t sizes_of_page(const pkv_geometry *g, uint64_t page_bytes, uint32_t n_heads,
                                     uint32_t n_ranks)
{
    return page_bytes * n_ranks * pkv_shares_of(g, n_heads) / pkv_shares(g);
}

/* Refuses what a pool on disk does not go with. Errors name kv-disk. */
status sizes_check_disk(const backend_options *o, error *err);
/* Refuses a pool beyond a device where there is none, or several ranks. The error names kv-host. */
status sizes_check_host(const backend_options *o, bool has_device, uint32_t n_ranks, error *err);

/* Refuses a --kv-memory of more pages than have numbers; a default pool has as many as do.
 * page_bytes, here and below, is all ranks' slices of a page together. Errors name kv-memory. */
status sizes_check_pool(const backend_options *o, uint64_t page_bytes, error *err);
status sizes_pool_pages(const pkv_geometry *g, uint64_t bytes, uint64_t page_bytes, uint32_t *n,
                        error *err);

/* A CPU pool: its pages, and where it lies on disk how many of a rank's own its memory holds at
 * once (else 0). store has its layout. share: the part of memory that a pool of the default size
 * takes, with what retrieval writes beside it. Errors name kv-memory, kv-disk or kv-disk-size. */
typedef struct sizes_pool {
    uint32_t n_pages, n_frames;
} sizes_pool;

status sizes_of_pool(const backend_options *o, const kv_store *store, uint32_t n_ranks,
                     uint64_t share, sizes_pool *out, error *err);

/* Pages of the host tier. The weights leave `left` bytes, of which the pool takes pool_bytes, with
 * what retrieval writes beside it. The
 * tier takes at most `bytes` and half of the rest, and nothing where that is less than a block. */
uint32_t sizes_host_pages(const pkv_geometry *g, uint64_t bytes, uint64_t left, uint64_t pool_bytes,
                          uint64_t page_bytes);

/* Most bytes that one rank keeps for requests which read by retrieval, beside a pool of n_pages
 * pages: a 128th of its K and V, at least 1 MiB. */
uint64_t sizes_note_bytes(const kv_store *store, uint32_t n_pages, uint32_t n_ranks);

/* The cost of a prompt row whose logits are computed and scored, in hundredths of a row that
 * only goes through the layers (backend_info). Ranks share the products; rank 0 alone scores. */
uint32_t sizes_logit_row_cost(const model_config *config, int n_ranks);

#endif
