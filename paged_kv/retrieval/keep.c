/* Bytes that a backend keeps of a request that reads by retrieval, from step to step. */
#include "paged_kv/retrieval/retrieval.h"

/* Bytes of the structs around lists and bits that are kept: at least those of any backend. */
enum { REQUEST_BYTES = 256, CHOICE_BYTES = 256, LIST_BYTES = 32 };

static uint64_t list_bytes(const retrieval_spec *spec, const pkv_geometry *g, uint32_t n_runs,
                           uint32_t n_most)
{
    if (spec->token_step < 2) return 0;
    uint64_t all = (n_most + (uint64_t)spec->block_tokens - 1) / spec->block_tokens;
    uint64_t most = retrieval_most_blocks(spec), blocks = all < most ? all : most;
    return CHOICE_BYTES + (uint64_t)g->n_layers * n_runs * (LIST_BYTES + blocks * sizeof(uint32_t));
}

/* A bit for each block, and with DYNAMIC a bit for each slot, which begin anew with a word in each
 * block. */
static uint64_t bits_bytes(const retrieval_spec *spec, const pkv_geometry *g, uint32_t n_runs,
                           uint32_t n_prompt)
{
    uint64_t blocks = n_prompt / spec->block_tokens, words = 0;
    if (retrieval_left_out(spec, n_prompt) > 0) words += n_runs * ((blocks + 63) / 64);
    if (spec->representative == RETRIEVAL_DYNAMIC)
        words += g->n_kv_heads * blocks * ((spec->block_tokens + 63) / 64);
    return g->n_layers * words * sizeof(uint64_t);
}

uint64_t retrieval_kept_bytes(const retrieval_spec *spec, const pkv_geometry *g, uint32_t n_prompt,
                              uint32_t n_most, uint32_t n_choices)
{
    if (spec->block_tokens == 0 || !retrieval_keeps(spec)) return 0;
    uint32_t n_runs = g->n_kv_heads / retrieval_heads_together(spec, g);
    return REQUEST_BYTES + n_choices * list_bytes(spec, g, n_runs, n_most) +
           bits_bytes(spec, g, n_runs, n_prompt);
}
