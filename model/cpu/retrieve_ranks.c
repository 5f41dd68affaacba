#include "model/cpu/retrieve_ranks.h"

#include <stdlib.h>

retrieve_ranks retrieve_ranks_of(comm *group, const kv_store *store, uint32_t q_heads)
{
    uint32_t ranks = (uint32_t)comm_size(group);
    return (retrieve_ranks){.group = group,
                            .store = store,
                            .ranks = ranks,
                            .copies = ranks * store->n_heads / store->geometry.n_kv_heads,
                            .row_floats = (size_t)q_heads * store->shape.head_dim};
}

void retrieve_ranks_free(retrieve_ranks *rr)
{
    free(rr->parts);
    free(rr->queries);
}

static status reserve(float **data, size_t *bytes, size_t n)
{
    if (n <= *bytes / sizeof **data) return STATUS_IS_OK;
    float *grown = alloc_resize(NULL, *data, n, sizeof *grown);
    if (!grown) return status_make(STATUS_NO_MEMORY, "what retrieval gathers over ranks");
    *data = grown;
    *bytes = n * sizeof *grown;
    return STATUS_IS_OK;
}

/* ---- query heads ----------------------------------------------------------------------------- */

status retrieve_ranks_queries(retrieve_ranks *rr, const float *qkv, size_t width,
                              const uint32_t *rows, uint32_t n_rows)
{
    size_t row = rr->row_floats, n = n_rows * row;
    uint32_t rank = (uint32_t)comm_rank(rr->group), first = rank / rr->copies * rr->copies;
    RETURN_IF_ERROR(reserve(&rr->parts, &rr->parts_bytes, rr->ranks * n));
    RETURN_IF_ERROR(reserve(&rr->queries, &rr->queries_bytes, rr->copies * n));
    float *own = rr->parts + rank * n;
    for (uint32_t i = 0; i < n_rows; i++)
        memcpy(own + i * row, qkv + rows[i] * width, row * sizeof *own);
    RETURN_IF_ERROR(comm_all_gather(rr->group, own, n, rr->parts));
    for (uint32_t i = 0; i < n_rows; i++)
        for (uint32_t c = 0; c < rr->copies; c++)
            memcpy(rr->queries + (i * rr->copies + c) * row, rr->parts + (first + c) * n + i * row,
                   row * sizeof *own);
    return STATUS_IS_OK;
}

const float *retrieve_ranks_query(const retrieve_ranks *rr, uint32_t i)
{
    return rr->queries + i * rr->copies * rr->row_floats;
}

/* ---- numbers of KV heads --------------------------------------------------------------------- */

void retrieve_gather_free(retrieve_gather *g) { free(g->data); }

status retrieve_gather_reserve(retrieve_gather *g, const retrieve_ranks *rr, size_t n)
{
    g->n = n;
    return reserve(&g->data, &g->bytes, rr->ranks * n);
}

float *retrieve_gather_own(const retrieve_gather *g, const retrieve_ranks *rr)
{
    return g->data + (size_t)comm_rank(rr->group) * g->n;
}

status retrieve_gather_run(retrieve_gather *g, const retrieve_ranks *rr)
{
    if (g->n == 0) return STATUS_IS_OK;
    return comm_all_gather(rr->group, retrieve_gather_own(g, rr), g->n, g->data);
}

const float *retrieve_gather_head(const retrieve_gather *g, const retrieve_ranks *rr,
                                  uint32_t kv_head, size_t first, size_t n)
{
    uint32_t n_heads = rr->store->n_heads, rank = kv_head / n_heads * rr->copies;
    return g->data + rank * g->n + first + kv_head % n_heads * n;
}
