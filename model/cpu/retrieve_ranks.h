/* Gathers what selections need of other ranks (private to model/cpu/): numbers of KV heads that
 * share a selection and lie on several ranks (blocks' scores, masses and softmax sums), and query
 * heads of a KV head that several ranks copy.
 *
 * All ranks gather at the same places of a pass, as many numbers each: which rows select, and among
 * how many blocks, follows from the plan alone, and all else from what was gathered before. Numbers
 * are gathered by KV head and added by the caller, ascending, so every rank selects what one rank
 * alone would. */
#ifndef MODEL_CPU_RETRIEVE_RANKS_H
#define MODEL_CPU_RETRIEVE_RANKS_H

#include "comm/comm.h"
#include "model/cpu/kv_store.h"

typedef struct retrieve_ranks {
    comm *group; /* borrowed, as the store */
    const kv_store *store;
    uint32_t ranks, copies; /* ranks that hold the same KV head; 1: each KV head is on one */
    size_t row_floats;      /* of one rank's query heads of a KV head */
    float *parts, *queries; /* [ranks, rows, row_floats], [rows, copies, row_floats] */
    size_t parts_bytes, queries_bytes;
} retrieve_ranks;

/* q_heads: this rank's query heads of one of its KV heads. */
retrieve_ranks retrieve_ranks_of(comm *group, const kv_store *store, uint32_t q_heads);
void retrieve_ranks_free(retrieve_ranks *rr);
/* Whether KV heads that select together, `together` of them, lie on several ranks. */
static inline bool retrieve_ranks_cross(const retrieve_ranks *rr, uint32_t together)
{
    return rr->store->n_heads % together != 0;
}

/* ---- query heads ----------------------------------------------------------------------------- */

/* Gathers the query heads of this rank's only KV head, of rows whose own part lies at
 * qkv + rows[i] * width. */
status retrieve_ranks_queries(retrieve_ranks *rr, const float *qkv, size_t width,
                              const uint32_t *rows, uint32_t n_rows);
/* [copies, q_heads, head_dim] of the i-th of these rows. */
const float *retrieve_ranks_query(const retrieve_ranks *rr, uint32_t i);

/* ---- numbers of KV heads --------------------------------------------------------------------- */

/* Floats of all ranks, as many of each. Zeroed at first; freed by retrieve_gather_free. */
typedef struct retrieve_gather {
    size_t n;    /* floats of a rank */
    float *data; /* [ranks, n] */
    size_t bytes;
} retrieve_gather;

void retrieve_gather_free(retrieve_gather *g);
/* Makes room for n floats of each rank. */
status retrieve_gather_reserve(retrieve_gather *g, const retrieve_ranks *rr, size_t n);
/* This rank's, to be filled in before they are gathered. */
float *retrieve_gather_own(const retrieve_gather *g, const retrieve_ranks *rr);
/* Does nothing where there are none. */
status retrieve_gather_run(retrieve_gather *g, const retrieve_ranks *rr);
/* The n floats of a KV head of the model, where those of each rank's KV heads begin at `first`. */
const float *retrieve_gather_head(const retrieve_gather *g, const retrieve_ranks *rr,
                                  uint32_t kv_head, size_t first, size_t n);

#endif
