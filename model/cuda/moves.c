/* Moves of slots within the pool, and of pages to and from the host tier. Slot moves of one grain
 * that follow one another are a batch, which is one launch: pages of one grain are the same cells
 * or have none in common. Moves of a batch that share a page are a chain and go one after the
 * other; chains go at the same time. */
#include "model/cuda/backend.h"
#include "model/cuda/retrieve.h"
#include "model/rope.h"

#include <stdlib.h>
#include <string.h>

/* ---- checks ---------------------------------------------------------------------------------- */

/* Whether a table of the grain may hold that page, in a tier of that many usable cells of which
 * `cells` are stored here. */
static bool is_page(const backend_cuda *b, pkv_grain grain, uint32_t page, uint32_t usable,
                    pkv_cells cells)
{
    if (grain > PKV_HEAD || !pkv_is_page(&b->info.geometry, usable, grain, page)) return false;
    return grain != PKV_HEAD || pkv_has_cell(cells, page);
}

static bool is_pool_page(const backend_cuda *b, pkv_grain grain, uint32_t page)
{
    return is_page(b, grain, page, b->info.n_pages - 1, b->cells);
}

static bool is_host_page(const backend_cuda *b, pkv_grain grain, uint32_t page)
{
    return b->info.n_host_pages > 0 && is_page(b, grain, page, b->info.n_host_pages, b->host_cells);
}

/* Whether this rank stores something of the move's pages. */
static bool is_ours(const backend_cuda *b, const pkv_move *m)
{
    return m->grain != PKV_HEAD || cuda_tables_has(&b->tables, m->group);
}

/* The place of a page's first cell among those stored here. */
static uint32_t place_of(pkv_grain grain, uint32_t page, pkv_cells cells)
{
    return grain == PKV_HEAD ? page - cells.first : page;
}

status cuda_moves_check(const backend_cuda *b, const pkv_move *m)
{
    uint32_t slots = b->pages.page_tokens;
    if (m->kind != PKV_MOVE_SLOTS) {
        bool out = m->kind == PKV_MOVE_OUT;
        bool ok = is_pool_page(b, m->grain, out ? m->src_page : m->dst_page) &&
                  is_host_page(b, m->grain, out ? m->dst_page : m->src_page);
        return ok ? STATUS_IS_OK
                  : status_make(STATUS_INVALID, "plan: a copy outside the pool or the host tier");
    }
    if (!is_pool_page(b, m->grain, m->src_page) || !is_pool_page(b, m->grain, m->dst_page) ||
        m->n_slots > slots || m->src_slot > slots - m->n_slots || m->dst_slot > slots - m->n_slots)
        return status_make(STATUS_INVALID, "plan: a move outside the pool");
    if (llabs(m->rotate) >= b->info.max_positions)
        return status_make(STATUS_INVALID, "plan: a move that rotates keys too far");
    return STATUS_IS_OK;
}

/* Adds the copies of a whole page to the host tier or back: the cells of one layer group at a time,
 * which follow one another in both. */
static status copy_page(backend_cuda *b, const pkv_move *m)
{
    bool out = m->kind == PKV_MOVE_OUT;
    uint32_t page = out ? m->src_page : m->dst_page, host = out ? m->dst_page : m->src_page;
    if (!is_ours(b, m)) return STATUS_IS_OK;
    RETURN_IF_ERROR(cuda_moves_check(b, m));
    page = place_of(m->grain, page, b->cells);
    host = place_of(m->grain, host, b->host_cells);
    uint32_t layers = m->grain == PKV_ALL ? b->pages.layer_groups : 1;
    uint32_t n = m->grain == PKV_HEAD ? 1 : b->pages.run_heads;
    for (uint32_t l = 0; l < layers; l++) {
        uint8_t *here = b->pages.data + page * b->pages.page_bytes;
        uint8_t *there = b->host + host * b->pages.page_bytes;
        RETURN_IF_ERROR(cuda_copies_begin(b, out, out ? host : page, n));
        RETURN_IF_ERROR(cuda_copies_add(b, out, here, there, n * b->pages.page_bytes));
        RETURN_IF_ERROR(cuda_sums_copy(b, out, page, host, n));
        if (!out) RETURN_IF_ERROR(cuda_retrieve_forget(b, page, n));
        page += b->pages.layer_stride;
        host += b->host_cells.n / b->pages.layer_groups;
    }
    return STATUS_IS_OK;
}

/* ---- rope shifts ----------------------------------------------------------------------------- */

void cuda_moves_rope_shift(const backend_cuda *b, int32_t by, float *cos_sin)
{
    float inv_freq[MODEL_HEAD_DIM_MAX / 2];
    uint32_t dim = b->config.head_dim;
    rope_frequencies(&b->config.rope, dim, inv_freq);
    rope_angles(inv_freq, dim, by < 0 ? 0u - (uint32_t)by : (uint32_t)by, cos_sin);
    for (uint32_t i = dim / 2; by < 0 && i < dim; i++) cos_sin[i] = -cos_sin[i];
}

static size_t count_rope_shifts(const pkv_deltas *d)
{
    size_t n = 0;
    for (size_t i = 0; i < d->n_moves; i++) n += d->moves[i].rotate != 0;
    return n;
}

/* ---- chains ---------------------------------------------------------------------------------- */

bool cuda_moves_reserve(cuda_moves *m, size_t n_pages, size_t n)
{
    if (!m->last) m->last = calloc(n_pages, sizeof *m->last);
    if (!m->last) return false;
    if (n <= m->capacity) return true;
    cuda_moves grown = {.last = m->last, .capacity = n + n / 2};
    grown.batch = calloc(grown.capacity, sizeof *grown.batch);
    grown.root = calloc(grown.capacity, sizeof *grown.root);
    grown.at = calloc(grown.capacity, sizeof *grown.at);
    grown.chains = calloc(grown.capacity, sizeof *grown.chains);
    bool ok = grown.batch && grown.root && grown.at && grown.chains;
    if (ok) m->last = NULL;
    else grown.last = NULL;
    cuda_moves_destroy(ok ? m : &grown);
    if (ok) *m = grown;
    return ok;
}

void cuda_moves_destroy(cuda_moves *m)
{
    free(m->last);
    free(m->batch);
    free(m->root);
    free(m->at);
    free(m->chains);
    *m = (cuda_moves){0};
}

static uint32_t root_of(uint32_t *root, uint32_t i)
{
    while (root[i] != i) i = root[i] = root[root[i]];
    return i;
}

/* Gives all moves of a chain one root, the first of them. */
static void link_moves(cuda_moves *m, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t pages[] = {m->batch[i].src_page, m->batch[i].dst_page};
        m->root[i] = i;
        for (int p = 0; p < 2; p++) {
            uint32_t *last = &m->last[pages[p]];
            if (*last) {
                uint32_t x = root_of(m->root, *last - 1), y = root_of(m->root, i);
                m->root[x < y ? y : x] = x < y ? x : y;
            }
            *last = i + 1;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        m->last[m->batch[i].src_page] = m->last[m->batch[i].dst_page] = 0;
}

uint32_t cuda_moves_sort(cuda_moves *m, uint32_t n, uint32_t first, gpu_move *moves,
                         gpu_chain *chains)
{
    uint32_t n_chains = 0;
    link_moves(m, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t root = root_of(m->root, i);
        if (root == i) {
            m->at[i] = n_chains;
            chains[n_chains++] = (gpu_chain){0, 0};
        }
        chains[m->at[root]].n++;
    }
    for (uint32_t c = 0, at = first; c < n_chains; at += chains[c++].n) chains[c].first = at;
    for (uint32_t c = 0; c < n_chains; c++) chains[c].n = 0;
    for (uint32_t i = 0; i < n; i++) {
        gpu_chain *chain = &chains[m->at[root_of(m->root, i)]];
        moves[chain->first + chain->n++] = m->batch[i];
    }
    return n_chains;
}

/* ---- a step ---------------------------------------------------------------------------------- */

size_t cuda_moves_bytes(const backend_cuda *b, const pkv_deltas *d)
{
    if (b->window) return 0; /* they have a pack of their own */
    return d->n_moves * (sizeof(gpu_move) + sizeof(gpu_chain)) +
           count_rope_shifts(d) * b->config.head_dim * sizeof(float);
}

/* The end of the batch that begins with a move; the move itself if it copies a page. */
static size_t batch_end(const pkv_deltas *d, size_t first)
{
    size_t i = first;
    while (i < d->n_moves && d->moves[i].kind == PKV_MOVE_SLOTS &&
           d->moves[i].grain == d->moves[first].grain)
        i++;
    return i;
}

status cuda_moves_pack(backend_cuda *b, const pkv_deltas *d)
{
    cuda_moves *m = &b->moves;
    uint32_t total = 0, n_chains = 0, n_rope_shifts = 0, n_batches = 0;
    if (d->n_moves == 0 || b->window) return STATUS_IS_OK;
    if (!cuda_moves_reserve(m, b->cells.n, d->n_moves))
        return status_make(STATUS_NO_MEMORY, "step buffers");
    gpu_move *moves = cuda_pack_take(&b->changes, d->n_moves * sizeof *moves, &m->d_moves);
    gpu_chain *chains = cuda_pack_take(&b->changes, d->n_moves * sizeof *chains, &m->d_chains);
    float *rope_shifts =
        cuda_pack_take(&b->changes, count_rope_shifts(d) * b->config.head_dim * sizeof *rope_shifts,
                       &m->d_rope_shifts);
    for (size_t i = 0; i < d->n_moves;) {
        size_t end = batch_end(d, i);
        uint32_t n = 0;
        if (end == i) { /* a page copy */
            i++;
            continue;
        }
        for (; i < end; i++) {
            const pkv_move *move = &d->moves[i];
            if (!is_ours(b, move)) continue;
            RETURN_IF_ERROR(cuda_moves_check(b, move));
            if (move->rotate)
                cuda_moves_rope_shift(b, move->rotate,
                                      rope_shifts + (size_t)n_rope_shifts * b->config.head_dim);
            m->batch[n++] = (gpu_move){place_of(move->grain, move->src_page, b->cells),
                                       place_of(move->grain, move->dst_page, b->cells),
                                       move->src_slot,
                                       move->dst_slot,
                                       move->n_slots,
                                       move->rotate ? ++n_rope_shifts : 0};
        }
        m->chains[n_batches] = cuda_moves_sort(m, n, total, moves, chains + n_chains);
        n_chains += m->chains[n_batches++];
        total += n;
    }
    return STATUS_IS_OK;
}

status cuda_moves_apply(backend_cuda *b, const pkv_deltas *d)
{
    const cuda_moves *m = &b->moves;
    const gpu_chain *chains = m->d_chains;
    uint32_t n_batches = 0;
    if (b->window) return cuda_window_moves(b, d);
    cuda_copies_drop(b); /* those of a plan that failed */
    for (size_t i = 0; i < d->n_moves;) {
        size_t end = batch_end(d, i);
        if (end == i) {
            RETURN_IF_ERROR(copy_page(b, &d->moves[i++]));
            continue;
        }
        RETURN_IF_ERROR(cuda_copies_send(b));
        uint32_t n = m->chains[n_batches++]; /* 0: none of the moves is of this rank's pages */
        if (n > 0)
            RETURN_IF_GPU_ERROR(b->device.api->move(b->device.g, &b->pages,
                                                    cuda_grain(d->moves[i].grain), m->d_moves,
                                                    chains, n, m->d_rope_shifts));
        chains += n;
        i = end;
    }
    return cuda_copies_send(b);
}
