/* CUDA graphs of steps that only decode. The launches of a forward pass and its draws are captured
 * once for each shape of step, which is the number of rows and the kinds of draws and of measures,
 * with few lengths where these go over slots, and replayed afterwards. Steps of one shape differ
 * only in the contents of their arrays, which are copied to the same places before each replay. */
#include "model/cuda/backend.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { GRAPHS = 128 };

typedef struct entry {
    cuda_batch shape;
    gpu_graph *graph; /* NULL: seen but not captured */
    bool refused;     /* a capture failed: launches go one by one */
    uint64_t used;    /* when it was last used; 0: free */
} entry;

struct cuda_graphs {
    cuda_device *device;
    entry entries[GRAPHS];
    uint64_t now;
    void (*log_line)(void *ctx, const char *line); /* NULL: a failed capture was reported */
    void *log_ctx;
};

status cuda_graphs_create(cuda_device *d, const backend_options *o, cuda_graphs **out)
{
    cuda_graphs *all = calloc(1, sizeof *all);
    if (!all) return status_make(STATUS_NO_MEMORY, "graphs");
    all->device = d;
    all->log_line = o->log_line;
    all->log_ctx = o->log_ctx;
    *out = all;
    return STATUS_IS_OK;
}

void cuda_graphs_destroy(cuda_graphs *all)
{
    for (int i = 0; all && i < GRAPHS; i++) all->device->api->forget(all->entries[i].graph);
    free(all);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

uint32_t cuda_graphs_round(uint32_t n, uint32_t steps)
{
    uint32_t step = 1;
    while (step * steps * 2 < n) step *= 2;
    return (n + step - 1) / step * step;
}

/* Compares the calls that two groups make, without the lists' content, which is on the device.
 * Each sequence has one row, and lists are as long as the batch. */
static bool same_calls(const cuda_measure_group *a, const cuda_measure_group *b)
{
    const gpu_measured_list *x = &a->list, *y = &b->list;
    return cuda_compare_groups(a, b) == 0 && a->step == b->step && x->seqs == y->seqs &&
           !x->n_kept == !y->n_kept && x->longest == y->longest && !x->n_summed == !y->n_summed &&
           !x->n_paged == !y->n_paged;
}

static bool same_measures(const cuda_batch *a, const cuda_batch *b)
{
    bool same = !a->measure == !b->measure && a->n_measured == b->n_measured;
    for (uint32_t i = 0; same && i < a->n_measured; i++)
        same = same_calls(&a->measured[i], &b->measured[i]);
    return same && a->measures.values == b->measures.values &&
           a->measures.scratch == b->measures.scratch && a->measures.kept == b->measures.kept &&
           a->measures.kept_of == b->measures.kept_of &&
           a->measures.mean_ropes == b->measures.mean_ropes;
}

/* Compares what two batches draw, and where its arrays lie. */
static bool same_draws(const cuda_batch *a, const cuda_batch *b)
{
    const cuda_drawing *x = &a->drawing, *y = &b->drawing;
    if (!a->draw || !b->draw) return !a->draw && !b->draw;
    return x->moved == y->moved && x->n_rows == y->n_rows && x->n_draws == y->n_draws &&
           x->by_parts == y->by_parts && x->whole == y->whole && x->rows == y->rows &&
           x->draws == y->draws && x->masks == y->masks && x->edits == y->edits;
}

/* Compares all that launches take from a batch; their other arguments never change. All ranks
 * find the same answer: the numbers follow from the plan, and so does when memory moves.
 * An address alone might come back on one rank and not on another. */
static bool same_shape(const cuda_batch *a, const cuda_batch *b)
{
    return a->moved == b->moved && a->n_rows == b->n_rows && a->n_decode == b->n_decode &&
           a->n_prefill == b->n_prefill && a->n_cut == b->n_cut && a->whole == b->whole &&
           a->tokens == b->tokens && a->draws == b->draws && a->positions == b->positions &&
           a->row_seqs == b->row_seqs && a->lengths == b->lengths && a->seqs == b->seqs &&
           a->decode == b->decode && a->prefill == b->prefill &&
           a->tables.pages == b->tables.pages && same_measures(a, b) && same_draws(a, b);
}

/* The shape's entry, or the least recently used one, emptied. With GRAPHS entries, the least
 * recently used graph is no longer running. */
static entry *find_entry(cuda_graphs *all, const cuda_batch *batch)
{
    entry *oldest = &all->entries[0];
    for (int i = 0; i < GRAPHS; i++) {
        entry *e = &all->entries[i];
        if (e->used && same_shape(&e->shape, batch)) return e;
        if (e->used < oldest->used) oldest = e;
    }
    all->device->api->forget(oldest->graph);
    *oldest = (entry){.shape = *batch};
    return oldest;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Captures the entry's graph. After a failure, of any rank, the steps run launch by launch: ranks
 * that replay and ranks that launch would not make the same collectives. */
static status capture(cuda_graphs *all, cuda_forward *f, entry *e, const _Atomic bool *interrupted)
{
    cuda_device *d = all->device;
    gpu_status s = d->api->capture(d->g);
    if (s == GPU_OK) {
        status noted = cuda_forward_run(f, &e->shape, interrupted);
        s = d->api->captured(d->g, &e->graph);
        if (s == GPU_OK && !status_ok(noted)) {
            d->api->forget(e->graph);
            e->graph = NULL;
        }
    }
    uint32_t all_have = e->graph != NULL;
    const char *why = all_have ? "another rank captures none" : d->api->why(d->g);
    RETURN_IF_ERROR(cuda_smallest(d, &all_have));
    if (all_have || atomic_load(interrupted)) return STATUS_IS_OK;
    d->api->forget(e->graph);
    e->graph = NULL;
    e->refused = true;
    char line[320];
    snprintf(line, sizeof line, "cuda: some decode steps go without a graph: %s", why);
    if (all->log_line) all->log_line(all->log_ctx, line);
    all->log_line = NULL;
    return STATUS_IS_OK;
}

status cuda_graphs_run(cuda_graphs *all, cuda_forward *f, const cuda_batch *batch,
                       const _Atomic bool *interrupted)
{
    if (!batch->repeats) return cuda_forward_run(f, batch, interrupted);
    entry *e = find_entry(all, batch);
    bool seen = e->used > 0; /* a shape's first launches load kernels and choose algorithms */
    e->used = ++all->now;
    if (seen && !e->graph && !e->refused) RETURN_IF_ERROR(capture(all, f, e, interrupted));
    if (!e->graph) return cuda_forward_run(f, batch, interrupted);
    if (atomic_load(interrupted)) return status_make(STATUS_INTERNAL, "interrupted");
    return cuda_status(all->device->api->replay(all->device->g, e->graph));
}
