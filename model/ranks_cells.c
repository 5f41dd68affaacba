/* Reads and writes K and V of cells over all ranks, for blocks that are kept on disk and prompts
 * that go to another server. The bytes of a cell are the slices of the ranks that have it, so a
 * block has the slices of all ranks under one checksum, and no rank uses a block that another one
 * lacks. Layer by layer they lie in the order of their heads, as one rank would store the cell, so
 * that a group of another size cuts the same bytes for its own ranks. */
#include "model/backend_ranks.h"

#include <stdlib.h>
#include <string.h>

/* Bytes and cells that a rank is asked for at once: it may be behind a connection. */
enum { BYTES_AT_ONCE = 1 << 20, CELLS_AT_ONCE = 1024 };

/* Layers of a cell. */
static uint32_t layers_of(const backend_ranks *all) { return all->info.geometry.layers_per_group; }

void ranks_know_blocks(backend_ranks *all)
{
    backend_info *info = &all->info;
    bool can = true, can_go = true; // to other servers
    /* With one layer in a cell its bytes and the digest are those of earlier versions, so blocks
     * that these have left on disk stay good. */
    uint64_t several = (uint64_t)layers_of(all) - 1;
    uint64_t identity = all->n_ranks + (several << 32), kv = identity, kind = 0;
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        rank *r = &all->ranks[i];
        const backend_info *own = r->backend.ops->info(r->backend.ctx);
        r->slice = backend_slice_of(own, i, all->n_ranks);
        can &= r->slice.cell_bytes > 0 && r->slice.cell_bytes == all->ranks[0].slice.cell_bytes;
        if (i == 0) kind = own->kv_kind;
        can_go &= own->kv_identity != 0 && own->kv_kind == kind;
        identity = hash_bytes(&own->block_identity, sizeof own->block_identity, identity);
        kv = hash_bytes(&own->kv_identity, sizeof own->kv_identity, kv);
    }
    const backend_slice *first = &all->ranks[0].slice;
    info->block_bytes = can ? pkv_groups(&info->geometry) * first->n_slices * first->cell_bytes : 0;
    info->block_identity = identity;
    info->kv_identity = can && can_go ? kv : 0;
    info->kv_kind = can && can_go ? kind : 0;
}

/* Cells of a list that a rank has. */
typedef struct picked {
    uint32_t cells[CELLS_AT_ONCE];
    uint32_t at[CELLS_AT_ONCE]; /* their indices in the list */
    uint32_t n;
} picked;

/* Takes the next cells of the list that the rank has, from `from` on, as many as it is asked for at
 * once. Returns where to go on. */
static uint32_t pick(const backend_slice *s, const uint32_t *cells, uint32_t from, uint32_t n,
                     uint32_t most, picked *out)
{
    out->n = 0;
    for (; from < n && out->n < most; from++) {
        if (cells[from] - s->cells.first >= s->cells.n) continue;
        out->cells[out->n] = cells[from];
        out->at[out->n++] = from;
    }
    return from;
}

static uint32_t most_at_once(const backend_slice *s)
{
    size_t n = BYTES_AT_ONCE / s->cell_bytes;
    return n < 1 ? 1 : n > CELLS_AT_ONCE ? CELLS_AT_ONCE : (uint32_t)n;
}

/* Copies the rank's slice of cell i out of the bytes of a list of cells. */
static void cut_slice(const rank *r, const uint8_t *cells, uint32_t i, uint8_t *own)
{
    const backend_slice *s = &r->slice;
    size_t piece = s->cell_bytes / layers_of(r->all), step = s->n_slices * piece;
    const uint8_t *from = cells + i * s->n_slices * s->cell_bytes + s->place * piece;
    for (size_t at = 0; at < s->cell_bytes; at += piece, from += step)
        memcpy(own + at, from, piece);
}

/* Copies it back. */
static void join_slice(const rank *r, const uint8_t *own, uint8_t *cells, uint32_t i)
{
    const backend_slice *s = &r->slice;
    size_t piece = s->cell_bytes / layers_of(r->all), step = s->n_slices * piece;
    uint8_t *to = cells + i * s->n_slices * s->cell_bytes + s->place * piece;
    for (size_t at = 0; at < s->cell_bytes; at += piece, to += step) memcpy(to, own + at, piece);
}

/* One rank's part of a list of cells, which are copied to several places, `each` cells to one. */
typedef struct read_job {
    rank *r;
    const uint32_t *cells;
    uint32_t n, n_slots;
    uint8_t *const *to;
    uint32_t each;
    pthread_t thread;
    bool has_thread, good;
} read_job;

static void read_slices(read_job *j)
{
    const backend_slice *s = &j->r->slice;
    const backend *b = &j->r->backend;
    uint32_t most = most_at_once(s);
    uint8_t *buffer = malloc(most * s->cell_bytes);
    picked some;
    j->good = buffer != NULL;
    for (uint32_t i = 0; j->good && i < j->n;) {
        i = pick(s, j->cells, i, j->n, most, &some);
        if (some.n == 0) break;
        j->good = b->ops->read_cells(b->ctx, some.cells, some.n, j->n_slots, &buffer, some.n);
        for (uint32_t c = 0; j->good && c < some.n; c++)
            join_slice(j->r, buffer + c * s->cell_bytes, j->to[some.at[c] / j->each],
                       some.at[c] % j->each);
    }
    free(buffer);
}

static void *read_main(void *arg)
{
    thread_set_name("oct-cells");
    read_slices(arg);
    return NULL;
}

static bool write_slices(rank *r, const uint32_t *cells, uint32_t n, const uint8_t *from,
                         uint8_t *buffer)
{
    const backend_slice *s = &r->slice;
    const backend *b = &r->backend;
    picked some;
    for (uint32_t i = 0; i < n;) {
        i = pick(s, cells, i, n, most_at_once(s), &some);
        if (some.n == 0) break;
        for (uint32_t c = 0; c < some.n; c++)
            cut_slice(r, from, some.at[c], buffer + c * s->cell_bytes);
        if (!b->ops->write_cells(b->ctx, some.cells, some.n, buffer)) return false;
    }
    return true;
}

/* The bytes of ranks in other processes come over connections, so each has a thread that waits for
 * them. One that cannot be started is no reason to give up. */
bool ranks_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                      uint8_t *const *to, uint32_t each)
{
    backend_ranks *all = ctx;
    read_job *jobs = calloc(all->n_ranks, sizeof *jobs);
    bool good = jobs != NULL;
    for (uint32_t i = 0; good && i < all->n_ranks; i++) {
        jobs[i] = (read_job){.r = &all->ranks[i],
                             .cells = cells,
                             .n = n,
                             .n_slots = n_slots,
                             .to = to,
                             .each = each,
                             .good = true};
        if (all->driven && jobs[i].r->slice.gives)
            jobs[i].has_thread = pthread_create(&jobs[i].thread, NULL, read_main, &jobs[i]) == 0;
    }
    for (uint32_t i = 0; jobs && i < all->n_ranks; i++) {
        if (jobs[i].has_thread) pthread_join(jobs[i].thread, NULL);
        else if (good && jobs[i].r->slice.gives) read_slices(&jobs[i]);
        good &= jobs[i].good;
    }
    free(jobs);
    return good;
}

bool ranks_write_cells(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from)
{
    backend_ranks *all = ctx;
    const backend_slice *first = &all->ranks[0].slice;
    uint8_t *buffer = malloc(most_at_once(first) * first->cell_bytes);
    bool good = buffer != NULL;
    for (uint32_t i = 0; good && i < all->n_ranks; i++)
        good = write_slices(&all->ranks[i], cells, n, from, buffer);
    free(buffer);
    return good;
}
