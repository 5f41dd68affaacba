/* The memory of a kv_store (private to model/): the pages of pool and host tier, and what lies
 * beside them. All of it is reserved addresses, which take memory as they are written. */
#ifndef MODEL_CPU_KV_POOL_H
#define MODEL_CPU_KV_POOL_H

#include "model/cpu/kv_store.h"
#include "model/model.h"

/* Pages and running sums, after kv_store_set_pool. With options->kv_disk the pages lie in a file,
 * and n_frames of them are in memory at once. */
status kv_pool_create(kv_store *s, const backend_options *options, uint32_t n_frames, error *err);
/* The host tier, after kv_store_set_host. */
status kv_pool_create_host(kv_store *s, error *err);
status kv_pool_create_representatives(kv_store *s);
/* Frees all of these, as far as they were made. */
void kv_pool_destroy(kv_store *s);

static inline size_t kv_pool_bytes(const kv_store *s) { return s->cells.n * s->page_bytes; }
/* The bytes of the pool that are in memory at once. */
static inline size_t kv_pool_memory(const kv_store *s)
{
    return s->tier ? s->n_frames * s->page_bytes : kv_pool_bytes(s);
}
static inline size_t kv_pool_host_bytes(const kv_store *s)
{
    return s->host ? s->host_cells.n * s->page_bytes : 0;
}

#endif
