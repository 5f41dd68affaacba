/* The state of a backend that is a group of ranks (private to model/): backend_ranks.c makes and
 * runs the ranks, ranks_join.c makes one result of theirs, ranks_cells.c copies their K and V. */
#ifndef MODEL_BACKEND_RANKS_H
#define MODEL_BACKEND_RANKS_H

#include "model/embed_room.h"
#include "model/measured.h"
#include "model/model.h"

#include <pthread.h>
#include <stdatomic.h>

enum { FLIGHTS = 2 }; /* most steps in flight */

typedef struct rank {
    struct backend_ranks *all;
    uint32_t index;
    pthread_t thread;
    comm *comm;
    backend backend;                   /* ops is NULL until it is made */
    status status;                     /* of making it, then of the step that was collected last */
    status submitted[FLIGHTS];         /* of steps in flight */
    uint64_t n_submitted, n_collected; /* steps; of a thread's own rank */
    uint32_t failed;                   /* order of this failure within the group */
    error why;                         /* why it could not be made */
    const step_result *result;
    backend_slice slice; /* of cells, where all->info.block_bytes is not 0 */
} rank;

typedef struct backend_ranks {
    const backend_ranks_options *options; /* valid while the ranks are made */
    backend_info info;
    comm_group *group;
    rank *ranks; /* [n_ranks] */
    uint32_t n_ranks;
    bool driven;
    uint32_t n_started; /* threads */
    _Atomic bool interrupted;
    _Atomic uint32_t n_failures;

    pthread_mutex_t lock;
    pthread_cond_t ordered, done;
    uint64_t n_orders;  /* steps submitted */
    uint64_t n_asked;   /* steps that the caller collects, or has collected */
    uint32_t n_busy;    /* ranks that are making their backend */
    uint32_t n_resting; /* threads that have rested, and destroy what they have */
    bool stop;

    const step_plan *plans[FLIGHTS]; /* by the number of their order */
    const step_plan *plan;           /* that is collected */
    step_result result;
    step_seq_result *seq_results; /* [max_seqs] */
    retrieval_reading *readings;  /* [max_rows] */
    measured measures;
    embed_room embeddings;
    char trouble[sizeof(error)]; /* result.status.message */
} backend_ranks;

/* The rank whose failure is reported, or NULL. Among equals the first to fail. */
const rank *ranks_failed(const backend_ranks *all);
/* Sets what all->info says of blocks, by what the ranks' do. */
void ranks_know_blocks(backend_ranks *all);
/* backend_ops.read_cells and write_cells. A cell's bytes are the slices of the ranks that have it,
 * in their order. Ranks that compute elsewhere are read from at the same time. False: a rank could
 * not be reached. */
bool ranks_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                      uint8_t *const *to, uint32_t each);
bool ranks_write_cells(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from);
/* Makes all->result of what the ranks have collected of all->plan. */
void ranks_join(backend_ranks *all);

#endif
