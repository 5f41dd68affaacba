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
    uint64_t most = (uint64_t)ceil_div(spec->initial_tokens, size) +
                    ceil_div(spec->local_tokens, size) + spec->top_blocks + 1 +
                    ceil_div(spec->token_step - 1, size);
    return most > UINT32_MAX ? UINT32_MAX : (uint32_t)most;
}

/* ---- representatives ------------------------------------------------------------------------- */

void retrieval_fixed_slots(const retrieval_spec *spec, uint32_t page_tokens, uint32_t page_index,
                           uint64_t slots[4])
{
    uint32_t n = spec->representative_num, from = page_index * page_tokens;
    memset(slots, 0, 4 * sizeof *slots);
    /* Key j lies at `from` or after it when 2j + 1 is at least 2n * from / block_tokens. */
    for (uint32_t j = ceil_div(2 * n * from, spec->block_tokens) / 2; j < n; j++) {
        uint32_t slot = (2 * j + 1) * spec->block_tokens / (2 * n) - from;
        if (slot >= page_tokens) return;
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

/* ---- scores ---------------------------------------------------------------------------------- */

/* A head's queries as one vector to multiply with a block's representative. A product with the
 * greater of q * largest and q * smallest is one with `largest` where q > 0 and with `smallest`
 * where q < 0, so even QUEST's sum over query heads needs one product for each block. Positive and
 * negative parts are summed apart, the others together. */
static void fold_queries(const retrieval_query *query, const retrieval_head *head, bool apart,
                         float *folded)
{
    size_t dim = query->head_dim;
    memset(folded, 0, (apart ? 2 : 1) * dim * sizeof *folded);
    for (uint32_t h = 0; h < query->q_heads; h++) {
        const float *q = head->q + h * dim;
        for (size_t d = 0; d < dim; d++) folded[(apart && !(q[d] >= 0) ? dim : 0) + d] += q[d];
    }
}

enum { LANES = 16, DIM_MOST = 256 };

/* Adds x . y to the lanes, each lane ascending. */
static void add_product(const float *x, const float *y, size_t n, float *lanes)
{
    for (size_t i = 0; i < n; i += LANES)
        for (size_t l = 0; l < LANES; l++) lanes[l] += x[i + l] * y[i + l];
}

static float sum_lanes(const float *lanes)
{
    float sum = 0;
    for (int l = 0; l < LANES; l++) sum += lanes[l];
    return sum;
}

static const float *representative_of(const retrieval_query *query, const retrieval_head *head,
                                      uint32_t page)
{
    return head->representatives + page * query->stride;
}

static float score_sums(const retrieval_query *query, const retrieval_head *head,
                        const uint32_t *pages, uint32_t n_pages, const float *folded)
{
    float lanes[LANES] = {0};
    for (uint32_t p = 0; p < n_pages; p++)
        add_product(folded, representative_of(query, head, pages[p]), query->head_dim, lanes);
    return sum_lanes(lanes);
}

static void merge_largest(const float *page, size_t dim, float *largest)
{
    for (size_t d = 0; d < dim; d++) largest[d] = page[d] > largest[d] ? page[d] : largest[d];
}

static void merge_smallest(const float *page, size_t dim, float *smallest)
{
    for (size_t d = 0; d < dim; d++) smallest[d] = page[d] < smallest[d] ? page[d] : smallest[d];
}

static float score_largest(const retrieval_query *query, const retrieval_head *head,
                           const uint32_t *pages, uint32_t n_pages, const float *folded)
{
    float lanes[LANES] = {0}, largest[DIM_MOST];
    size_t dim = query->head_dim;
    memcpy(largest, representative_of(query, head, pages[0]), dim * sizeof *largest);
    for (uint32_t p = 1; p < n_pages; p++)
        merge_largest(representative_of(query, head, pages[p]), dim, largest);
    add_product(folded, largest, dim, lanes);
    return sum_lanes(lanes);
}

static float score_box(const retrieval_query *query, const retrieval_head *head,
                       const uint32_t *pages, uint32_t n_pages, const float *folded)
{
    float lanes[LANES] = {0}, box[2 * DIM_MOST];
    size_t dim = query->head_dim;
    memcpy(box, representative_of(query, head, pages[0]), 2 * dim * sizeof *box);
    for (uint32_t p = 1; p < n_pages; p++) {
        const float *page = representative_of(query, head, pages[p]);
        merge_largest(page, dim, box);
        merge_smallest(page + dim, dim, box + dim);
    }
    add_product(folded, box, 2 * dim, lanes);
    return sum_lanes(lanes);
}

typedef float (*score_fn)(const retrieval_query *query, const retrieval_head *head,
                          const uint32_t *pages, uint32_t n_pages, const float *folded);

static const score_fn score_fns[RETRIEVAL_REPRESENTATIVES] = {[RETRIEVAL_MEAN] = score_sums,
                                                              [RETRIEVAL_MAX] = score_largest,
                                                              [RETRIEVAL_QUEST] = score_box,
                                                              [RETRIEVAL_FIX] = score_sums,
                                                              [RETRIEVAL_DYNAMIC] = score_sums};

/* ---- one selection --------------------------------------------------------------------------- */

/* Adds one head's scores of the candidates to scores [end - first]. */
static void add_scores(const retrieval_spec *spec, const retrieval_query *query,
                       const retrieval_extent *e, const retrieval_head *head, float *folded,
                       float *scores)
{
    uint32_t pages = spec->block_tokens / query->page_tokens;
    assert(query->head_dim <= DIM_MOST && query->head_dim % LANES == 0);
    fold_queries(query, head, spec->representative == RETRIEVAL_QUEST, folded);
    for (uint32_t b = e->first; b < e->end; b++)
        scores[b - e->first] += score_fns[spec->representative](
            query, head, head->pages + (size_t)b * pages, pages, folded);
}

static bool is_left_out(const retrieval_spec *spec, const retrieval_query *query, uint32_t block)
{
    return query->left_out && block < query->n_prompt / spec->block_tokens &&
           query->left_out[block / 64] >> block % 64 & 1;
}

/* Marks the candidates to read as KEY_SELECTED in scratch->keys. */
static void rank_candidates(const retrieval_spec *spec, const retrieval_query *query,
                            const retrieval_extent *e, const retrieval_scratch *scratch)
{
    uint32_t n = e->end - e->first;
    memset(scratch->scores, 0, n * sizeof *scratch->scores);
    for (uint32_t h = 0; h < query->n_heads; h++)
        add_scores(spec, query, e, &query->heads[h], scratch->folded, scratch->scores);
    for (uint32_t i = 0; i < n; i++)
        scratch->keys[i] = is_left_out(spec, query, e->first + i) ? (uint32_t)KEY_NONE
                                                                  : rank_key(scratch->scores[i]);
    rank_select(scratch->keys, n, e->top);
}

uint32_t retrieval_select(const retrieval_spec *spec, const retrieval_query *query,
                          const retrieval_scratch *scratch, uint32_t *blocks)
{
    retrieval_extent e = retrieval_extent_of(spec, query->n_prompt, query->n_slots);
    bool all = retrieval_reads_all(&e);
    uint32_t n = 0;
    if (!all) rank_candidates(spec, query, &e, scratch);
    for (uint32_t b = 0; b < e.n_blocks; b++) {
        bool candidate = !all && b >= e.first && b < e.end;
        if (!candidate || scratch->keys[b - e.first] == KEY_SELECTED) blocks[n++] = b;
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
