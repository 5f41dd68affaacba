/* Preselection: which blocks of the prompt later selections are limited to, by what the prompt's
 * end attends to. */
#include "paged_kv/retention/select.h" // rank_select
#include "paged_kv/retrieval/retrieval.h"

#include <string.h>

uint32_t retrieval_observed_rows(const retrieval_spec *spec, uint32_t n_prompt)
{
    if (!(retrieval_needs(spec) & RETRIEVAL_OBSERVES)) return 0;
    return smaller(n_prompt, spec->observed_rows);
}

/* The candidates that a row at the prompt's end would have. */
static retrieval_extent extent_at_end(const retrieval_spec *spec, uint32_t n_prompt)
{
    retrieval_spec plain = *spec;
    plain.preselect_blocks = 0;
    return retrieval_extent_of(&plain, n_prompt, n_prompt);
}

uint32_t retrieval_left_out(const retrieval_spec *spec, uint32_t n_prompt)
{
    if (spec->preselect_blocks == 0 || n_prompt == 0) return 0;
    retrieval_extent e = extent_at_end(spec, n_prompt);
    uint32_t n = e.end - e.first;
    return n > spec->preselect_blocks ? n - spec->preselect_blocks : 0;
}

void retrieval_pool_mass(const retrieval_spec *spec, uint32_t n_prompt, const float *mass,
                         float *out)
{
    uint32_t size = spec->block_tokens, more = size / 4;
    for (uint32_t b = 0; b < n_prompt / size; b++) {
        uint32_t from = b * size, to = from + size;
        from -= smaller(from, more);
        to += smaller(n_prompt - to, more);
        float sum = 0;
        for (uint32_t slot = from; slot < to; slot++) sum += mass[slot];
        out[b] = sum;
    }
}

void retrieval_preselect(const retrieval_spec *spec, uint32_t n_prompt, const float *const *pooled,
                         uint32_t n_heads, uint32_t *keys, uint64_t *left_out)
{
    uint32_t blocks = n_prompt / spec->block_tokens;
    retrieval_extent e = extent_at_end(spec, n_prompt);
    memset(left_out, 0, (blocks + 63) / 64 * sizeof *left_out);
    for (uint32_t b = e.first; b < e.end; b++) {
        float sum = 0;
        for (uint32_t h = 0; h < n_heads; h++) sum += pooled[h][b];
        keys[b - e.first] = rank_key(sum);
    }
    rank_select(keys, e.end - e.first, spec->preselect_blocks);
    for (uint32_t b = e.first; b < e.end; b++)
        if (keys[b - e.first] != KEY_SELECTED) left_out[b / 64] |= UINT64_C(1) << b % 64;
}
