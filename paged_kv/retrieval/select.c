/* Which layers, tokens and blocks: the pure part of retrieval. */
#include "paged_kv/retrieval/retrieval.h"

#include "paged_kv/retention/retention.h" // retention_selecting_layers
#include "paged_kv/retention/select.h"    // rank_select

#include <assert.h>
#include <string.h>

static uint32_t ceil_div(uint32_t n, uint32_t by) { return n / by + (n % by != 0); }

/* ---- layers and heads ------------------------------------------------------------------------ */

uint32_t retrieval_layer_leader(const retrieval_spec *spec, const pkv_geometry *geometry,
                                uint32_t layer)
{
    uint32_t index = retention_selecting_layers(geometry, layer);
    if (pkv_window_of(geometry, layer) > 0 || index < spec->dense_layers) return RETRIEVAL_ALL;
    uint32_t behind = (index - spec->dense_layers) % spec->layer_step;
    while (behind > 0) behind -= pkv_window_of(geometry, --layer) == 0;
    return layer;
}

uint32_t retrieval_first_leader(const retrieval_spec *spec, const pkv_geometry *geometry)
{
    uint32_t layer = 0;
    while (retrieval_layer_leader(spec, geometry, layer) != layer) layer++;
    return layer;
}

uint32_t retrieval_heads_together(const retrieval_spec *spec, const pkv_geometry *geometry)
{
    return spec->heads == RETRIEVAL_SHARED ? geometry->n_kv_heads : spec->group_heads;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

retrieval_extent retrieval_extent_of(const retrieval_spec *spec, uint32_t n_prompt,
                                     uint32_t n_slots)
{
    uint32_t size = spec->block_tokens, full = n_slots / size;
    uint32_t initial = ceil_div(spec->initial_tokens, size);
    uint32_t local = ceil_div(spec->local_tokens, size);
    retrieval_extent e = {.n_blocks = ceil_div(n_slots, size)};
    e.first = smaller(initial, full);
    e.end = full > local && full - local > e.first ? full - local : e.first;
    e.top = smaller(spec->top_blocks, e.end - e.first - retrieval_left_out(spec, n_prompt));
    e.exam = spec->epsilon > 0;
    return e;
}

uint32_t retrieval_tokens_read(const retrieval_spec *spec, uint32_t n_prompt, uint32_t n_slots)
{
    uint32_t i = n_slots - n_prompt - 1, since = i - retrieval_token_leader(spec, i);
    retrieval_extent e = retrieval_extent_of(spec, n_prompt, n_slots - since);
    return n_slots - (e.end - e.first - e.top) * spec->block_tokens;
}

uint32_t retrieval_most_blocks(const retrieval_spec *spec)
{
    uint32_t size = spec->block_tokens;
    if (spec->epsilon > 0) return UINT32_MAX;
    uint64_t most = (uint64_t)ceil_div(spec->initial_tokens, size) +
                    ceil_div(spec->local_tokens, size) + spec->top_blocks + 1 +
                    ceil_div(spec->token_step - 1, size);
    return most > UINT32_MAX ? UINT32_MAX : (uint32_t)most;
}

/* ---- representatives ------------------------------------------------------------------------- */

void retrieval_fixed_slots(const retrieval_spec *spec, uint64_t *slots)
{
    uint32_t n = spec->representative_num, size = spec->block_tokens;
    memset(slots, 0, ceil_div(size, 64) * sizeof *slots);
    for (uint32_t j = 0; j < n; j++) {
        uint32_t slot = (2 * j + 1) * size / (2 * n);
        slots[slot / 64] |= UINT64_C(1) << slot % 64;
    }
}

void retrieval_dynamic_slots(const retrieval_spec *spec, const float *mass, uint64_t *slots)
{
    uint32_t n = spec->block_tokens, keys[RETRIEVAL_BLOCK_MOST];
    assert(n <= RETRIEVAL_BLOCK_MOST);
    memset(slots, 0, ceil_div(n, 64) * sizeof *slots);
    for (uint32_t i = 0; i < n; i++) keys[i] = rank_key(mass[i]);
    rank_select(keys, n, spec->representative_num);
    for (uint32_t i = 0; i < n; i++)
        if (keys[i] == KEY_SELECTED) slots[i / 64] |= UINT64_C(1) << i % 64;
}

/* ---- one selection --------------------------------------------------------------------------- */

static bool is_left_out(const retrieval_spec *spec, const retrieval_query *query, uint32_t block)
{
    return query->left_out && block < query->n_prompt / spec->block_tokens &&
           query->left_out[block / 64] >> block % 64 & 1;
}

/* With DYNAMIC a block of the prompt is scored by the sum of its n chosen keys, and a later block,
 * in which no keys were chosen, by the sum of all its keys. That sum is scaled by n / block_tokens,
 * so that it counts as n of the keys do. */
static float weight_of(const retrieval_spec *spec, const retrieval_query *query, uint32_t block)
{
    bool is_late = block >= query->n_prompt / spec->block_tokens;
    if (spec->representative != RETRIEVAL_DYNAMIC || !is_late) return 1;
    return (float)spec->representative_num / (float)spec->block_tokens;
}

/* Marks the candidates to read as KEY_SELECTED in keys. */
static void rank_candidates(const retrieval_spec *spec, const retrieval_query *query,
                            const retrieval_extent *e, uint32_t *keys)
{
    uint32_t n = e->end - e->first;
    for (uint32_t i = 0; i < n; i++) {
        float sum = query->scores[0][i];
        for (uint32_t h = 1; h < query->n_heads; h++) sum += query->scores[h][i];
        sum *= weight_of(spec, query, e->first + i);
        keys[i] = is_left_out(spec, query, e->first + i) ? (uint32_t)KEY_NONE : rank_key(sum);
    }
    rank_select(keys, n, e->top);
}

uint32_t retrieval_select(const retrieval_spec *spec, const retrieval_query *query, uint32_t *keys,
                          uint32_t *blocks)
{
    retrieval_extent e = retrieval_extent_of(spec, query->n_prompt, query->n_slots);
    bool all = retrieval_reads_all(&e);
    uint32_t n = 0;
    if (!all) rank_candidates(spec, query, &e, keys);
    for (uint32_t b = 0; b < e.n_blocks; b++) {
        bool candidate = !all && b >= e.first && b < e.end;
        if (!candidate || keys[b - e.first] == KEY_SELECTED) blocks[n++] = b;
    }
    return n;
}

uint32_t retrieval_follow(const retrieval_spec *spec, uint32_t before, uint32_t n_slots,
                          uint32_t *blocks, uint32_t n)
{
    uint32_t end = ceil_div(n_slots, spec->block_tokens);
    for (uint32_t b = ceil_div(before, spec->block_tokens); b < end; b++) blocks[n++] = b;
    return n;
}

uint32_t retrieval_gather(const retrieval_spec *spec, uint32_t page_tokens, uint32_t n_slots,
                          const uint32_t *pages, const uint32_t *blocks, uint32_t n_blocks,
                          uint32_t *out)
{
    uint32_t size = spec->block_tokens, in_block = size / page_tokens;
    uint32_t n_pages = ceil_div(n_slots, page_tokens), n = 0;
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t from = blocks[i] * in_block, to = smaller(from + in_block, n_pages);
        memcpy(out + n, pages + from, (to - from) * sizeof *out);
        n += to - from;
    }
    return (n_blocks - 1) * size + (n_slots - 1) % size + 1;
}
