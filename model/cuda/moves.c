/* Moves of slots within the pool, and of pages to and from the host tier. The slot moves between
 * two page copies are a run, which is one launch. Moves of a run that share a page are a chain and
 * go one after the other; chains go at the same time. */
#include "model/cuda/backend.h"
#include "model/rope.h"

#include <stdlib.h>
#include <string.h>

/* ---- checks ---------------------------------------------------------------------------------- */

/* Copies a whole page to the host tier or back. */
static status copy_page(backend_cuda *b, const pkv_move *m)
{
    bool out = m->kind == PKV_MOVE_OUT;
    uint32_t page = out ? m->src_page : m->dst_page, host = out ? m->dst_page : m->src_page;
    if (page >= b->info.n_pages || host >= b->info.n_host_pages)
        return status_make(STATUS_INVALID, "plan: a copy outside the pool or the host tier");
    uint8_t *here = b->pages.data + page * b->pages.page_bytes;
    uint8_t *there = b->host + host * b->pages.page_bytes;
    const gpu_api *api = b->device.api;
    RETURN_IF_GPU_ERROR(out ? api->copy_out(b->device.g, there, here, b->pages.page_bytes)
                            : api->copy_in(b->device.g, here, there, b->pages.page_bytes));
    return cuda_sums_copy(b, m);
}

static status check_move(const backend_cuda *b, const pkv_move *m)
{
    uint32_t slots = b->pages.page_tokens;
    if (m->src_page >= b->info.n_pages || m->dst_page >= b->info.n_pages || m->n_slots > slots ||
        m->src_slot > slots - m->n_slots || m->dst_slot > slots - m->n_slots)
        return status_make(STATUS_INVALID, "plan: a move outside the pool");
    if (llabs(m->rotate) >= b->info.max_positions)
        return status_make(STATUS_INVALID, "plan: a move that rotates keys too far");
    return STATUS_IS_OK;
}

/* ---- rope shifts ----------------------------------------------------------------------------- */

/* Sets cos_sin to the rotation by `by` positions, backwards when negative. */
static void make_rope_shift(const backend_cuda *b, int32_t by, float *cos_sin)
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

static bool reserve_chains(backend_cuda *b, size_t n)
{
    cuda_moves *m = &b->moves;
    if (!m->last) m->last = calloc(b->info.n_pages, sizeof *m->last);
    if (!m->last) return false;
    if (n <= m->capacity) return true;
    cuda_moves grown = {.last = m->last, .capacity = n + n / 2};
    grown.run = calloc(grown.capacity, sizeof *grown.run);
    grown.root = calloc(grown.capacity, sizeof *grown.root);
    grown.at = calloc(grown.capacity, sizeof *grown.at);
    grown.chains = calloc(grown.capacity + 1, sizeof *grown.chains);
    bool ok = grown.run && grown.root && grown.at && grown.chains;
    if (ok) m->last = NULL;
    else grown.last = NULL;
    cuda_moves_destroy(ok ? m : &grown);
    if (ok) *m = grown;
    return ok;
}

void cuda_moves_destroy(cuda_moves *m)
{
    free(m->last);
    free(m->run);
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
        const uint32_t pages[] = {m->run[i].src_page, m->run[i].dst_page};
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
    for (uint32_t i = 0; i < n; i++) m->last[m->run[i].src_page] = m->last[m->run[i].dst_page] = 0;
}

/* Writes a run's moves chain by chain from moves[first] on. Returns the number of chains. */
static uint32_t sort_run(cuda_moves *m, uint32_t n, uint32_t first, gpu_move *moves,
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
        moves[chain->first + chain->n++] = m->run[i];
    }
    return n_chains;
}

/* ---- a step ---------------------------------------------------------------------------------- */

size_t cuda_moves_bytes(const backend_cuda *b, const pkv_deltas *d)
{
    return d->n_moves * (sizeof(gpu_move) + sizeof(gpu_chain)) +
           count_rope_shifts(d) * b->config.head_dim * sizeof(float);
}

status cuda_moves_pack(backend_cuda *b, const pkv_deltas *d)
{
    cuda_moves *m = &b->moves;
    uint32_t n = 0, total = 0, n_chains = 0, n_rope_shifts = 0, n_runs = 0;
    if (d->n_moves == 0) return STATUS_IS_OK;
    if (!reserve_chains(b, d->n_moves)) return status_make(STATUS_NO_MEMORY, "step buffers");
    gpu_move *moves = cuda_pack_take(&b->step, d->n_moves * sizeof *moves, &m->d_moves);
    gpu_chain *chains = cuda_pack_take(&b->step, d->n_moves * sizeof *chains, &m->d_chains);
    float *rope_shifts =
        cuda_pack_take(&b->step, count_rope_shifts(d) * b->config.head_dim * sizeof *rope_shifts,
                       &m->d_rope_shifts);
    for (size_t i = 0; i <= d->n_moves; i++) {
        const pkv_move *move = i < d->n_moves ? &d->moves[i] : NULL;
        if (move && move->kind == PKV_MOVE_SLOTS) {
            RETURN_IF_ERROR(check_move(b, move));
            if (move->rotate)
                make_rope_shift(b, move->rotate,
                                rope_shifts + (size_t)n_rope_shifts * b->config.head_dim);
            m->run[n++] =
                (gpu_move){move->src_page, move->dst_page, move->src_slot,
                           move->dst_slot, move->n_slots,  move->rotate ? ++n_rope_shifts : 0};
            continue;
        }
        m->chains[n_runs] = sort_run(m, n, total, moves, chains + n_chains);
        n_chains += m->chains[n_runs++];
        total += n;
        n = 0;
    }
    return STATUS_IS_OK;
}

status cuda_moves_apply(backend_cuda *b, const pkv_deltas *d)
{
    const cuda_moves *m = &b->moves;
    const gpu_chain *chains = m->d_chains;
    uint32_t n_runs = 0;
    for (size_t i = 0; i <= d->n_moves && d->n_moves; i++) {
        const pkv_move *move = i < d->n_moves ? &d->moves[i] : NULL;
        if (move && move->kind == PKV_MOVE_SLOTS) continue;
        uint32_t n = m->chains[n_runs++];
        RETURN_IF_GPU_ERROR(
            b->device.api->move(b->device.g, &b->pages, m->d_moves, chains, n, m->d_rope_shifts));
        chains += n;
        if (move) RETURN_IF_ERROR(copy_page(b, move));
    }
    return STATUS_IS_OK;
}
