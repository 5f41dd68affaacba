/* Moves of a pool part of which lies in host memory (window.h). Every move is made cell by cell:
 * cells in host memory come up to a frame, the device moves their slots, and they go down again. As
 * many moves as there are frames for go together. */
#include "model/cuda/backend.h"

#include <string.h>

enum { MOVES_MOST = 4096 }; /* together, of cells */

/* Moves that go together, of single cells. */
typedef struct gathered {
    backend_cuda *b;
    uint32_t n, n_shifts;
    int32_t shifts[MOVES_MOST]; /* rotations of keys */
    bool is_copying;            /* a copy to or from the host tier is under way */
} gathered;

/* Makes the gathered moves, and waits. */
static status make_moves(gathered *a)
{
    backend_cuda *b = a->b;
    cuda_device *d = &b->device;
    const gpu_move *d_moves;
    const gpu_chain *d_chains;
    const float *d_shifts;
    if (a->n == 0) return cuda_window_give_back(b->window);
    size_t dim = b->config.head_dim, shifts = a->n_shifts * dim * sizeof(float);
    size_t bytes = a->n * (sizeof(gpu_move) + sizeof(gpu_chain)) + shifts;
    RETURN_IF_ERROR(cuda_pack_begin(d, &b->moved, bytes + 3 * 64));
    gpu_move *moves = cuda_pack_take(&b->moved, a->n * sizeof *moves, &d_moves);
    gpu_chain *chains = cuda_pack_take(&b->moved, a->n * sizeof *chains, &d_chains);
    float *turns = cuda_pack_take(&b->moved, shifts, &d_shifts);
    for (uint32_t i = 0; i < a->n_shifts; i++)
        cuda_moves_rope_shift(b, a->shifts[i], turns + i * dim);
    uint32_t n = cuda_moves_sort(&b->moves, a->n, 0, moves, chains);
    RETURN_IF_ERROR(cuda_pack_send(d, &b->moved));
    RETURN_IF_ERROR(cuda_window_settle(b->window));
    RETURN_IF_GPU_ERROR(
        d->api->move(d->g, &b->pages, GPU_GRAIN_HEAD, d_moves, d_chains, n, d_shifts));
    a->n = a->n_shifts = 0;
    return cuda_window_give_back(b->window);
}

/* Adds the move of one cell. Not *fits: what is gathered is to be made first, to free frames. */
static status add_move(gathered *a, const pkv_move *m, uint32_t src, uint32_t dst, bool *fits)
{
    cuda_window *w = a->b->window;
    uint32_t from, to = 0;
    *fits = a->n < MOVES_MOST;
    if (!*fits) return STATUS_IS_OK;
    RETURN_IF_ERROR(cuda_window_lend(w, src, false, &from));
    if (from) RETURN_IF_ERROR(cuda_window_lend(w, dst, true, &to));
    *fits = from && to;
    if (!*fits) return STATUS_IS_OK;
    if (m->rotate && (a->n_shifts == 0 || a->shifts[a->n_shifts - 1] != m->rotate))
        a->shifts[a->n_shifts++] = m->rotate;
    a->b->moves.batch[a->n++] =
        (gpu_move){from, to, m->src_slot, m->dst_slot, m->n_slots, m->rotate ? a->n_shifts : 0};
    return STATUS_IS_OK;
}

/* Copies one cell to the host tier or back. Copies between host memories are made at once, when
 * those under way have ended. */
static status copy_cell(gathered *a, bool out, uint32_t cell, uint32_t host_cell)
{
    backend_cuda *b = a->b;
    const gpu_api *api = b->device.api;
    size_t bytes = b->pages.page_bytes;
    uint8_t *there = b->host + host_cell * bytes, *here = b->pages.data + cell * bytes;
    uint8_t *page = cuda_window_host_page(b->window, cell);
    if (!page) {
        a->is_copying = true;
        return cuda_status(out ? api->copy_out(b->device.g, there, here, bytes)
                               : api->copy_in(b->device.g, here, there, bytes));
    }
    if (a->is_copying) RETURN_IF_ERROR(cuda_wait(&b->device));
    a->is_copying = false;
    memcpy(out ? there : page, out ? page : there, bytes);
    return STATUS_IS_OK;
}

static status move_cell(gathered *a, const pkv_move *m, uint32_t src, uint32_t dst)
{
    bool fits;
    if (m->kind != PKV_MOVE_SLOTS) {
        bool out = m->kind == PKV_MOVE_OUT;
        RETURN_IF_ERROR(make_moves(a));
        return copy_cell(a, out, out ? src : dst, out ? dst : src);
    }
    RETURN_IF_ERROR(add_move(a, m, src, dst, &fits));
    if (fits) return STATUS_IS_OK;
    RETURN_IF_ERROR(make_moves(a));
    return add_move(a, m, src, dst, &fits);
}

/* A page is the cells of some layer groups, each of which has those of all head groups in a row. */
static status move_page(gathered *a, const pkv_move *m)
{
    const backend_cuda *b = a->b;
    uint32_t layers = m->grain == PKV_ALL ? b->pages.layer_groups : 1;
    uint32_t heads = m->grain == PKV_HEAD ? 1 : b->pages.run_heads;
    uint32_t here = b->pages.layer_stride, host = b->host_cells.n / b->pages.layer_groups;
    RETURN_IF_ERROR(cuda_moves_check(b, m));
    for (uint32_t l = 0; l < layers; l++) {
        uint32_t src = m->src_page + l * (m->kind == PKV_MOVE_IN ? host : here);
        uint32_t dst = m->dst_page + l * (m->kind == PKV_MOVE_OUT ? host : here);
        for (uint32_t h = 0; h < heads; h++) RETURN_IF_ERROR(move_cell(a, m, src + h, dst + h));
    }
    return STATUS_IS_OK;
}

status cuda_window_moves(backend_cuda *b, const pkv_deltas *d)
{
    gathered a = {.b = b};
    if (d->n_moves == 0) return STATUS_IS_OK;
    cuda_window_sizes sizes = cuda_window_sizes_of(b->window);
    if (!cuda_moves_reserve(&b->moves, sizes.n_here + 2 * (size_t)sizes.n_frames, MOVES_MOST))
        return status_make(STATUS_NO_MEMORY, "step buffers");
    status s = STATUS_IS_OK;
    for (size_t i = 0; status_ok(s) && i < d->n_moves; i++) s = move_page(&a, &d->moves[i]);
    status last = make_moves(&a); /* also after a failure: no frame stays lent */
    return status_ok(s) ? last : s;
}
