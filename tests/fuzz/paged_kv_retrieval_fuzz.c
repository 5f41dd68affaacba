/* Property: for any document, retrieval_parse accepts it or refuses it with one line about
 * "retrieval". For what it accepts and tables of any length with any scores: a
 * selection is ascending, within the table and within the spec's bound; it holds the first, the
 * last and exactly `top` of the other blocks; it is twice the same; a following row's list holds
 * it; the gathered pages have the slots that were promised.
 *
 * Input: two bytes of slots, one that picks a geometry, one that seeds the numbers; then JSON. */
#include "paged_kv/retrieval/retrieval.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

enum { HEADS = 4, PAGES = 256, SLOTS_MOST = PAGES * 16, LIST = PAGES + 8 };

static const pkv_geometry geometries[] = {
    {.page_tokens = 16,
     .n_layers = 6,
     .n_kv_heads = HEADS,
     .layers_per_group = 1,
     .heads_per_group = 1},
    {.page_tokens = 32,
     .n_layers = 3,
     .n_kv_heads = 2,
     .layers_per_group = 1,
     .heads_per_group = 2},
    {.page_tokens = 128,
     .n_layers = 4,
     .n_kv_heads = 1,
     .layers_per_group = 1,
     .heads_per_group = 1},
    {.page_tokens = 16,
     .n_layers = 6,
     .n_kv_heads = HEADS,
     .layers_per_group = 1,
     .heads_per_group = 1,
     .window = 50,
     .window_layers = {0x2d}},
};
enum { N_GEOMETRIES = sizeof geometries / sizeof geometries[0] };

/* A fuzz target runs one input at a time. */
static float scores[HEADS][PAGES];
static uint32_t pages[PAGES];

static void fill(uint8_t seed)
{
    static const float values[] = {
        0, 1, -1, 0.5f, 3, 2, -0.0f, 1e30f, __builtin_inff(), __builtin_nanf("")};
    uint32_t some = seed % 10 + 1u;
    for (uint32_t i = 0; i < HEADS * PAGES; i++)
        (&scores[0][0])[i] = values[hash_mix64(seed * 7919u + i) % some];
    for (uint32_t i = 0; i < PAGES; i++) pages[i] = i ^ (seed & 7);
}

static void check_list(const retrieval_spec *spec, uint32_t n_prompt, uint32_t n_slots,
                       const uint32_t *blocks, uint32_t n)
{
    retrieval_extent e = retrieval_extent_of(spec, n_prompt, n_slots);
    uint32_t between = 0;
    FUZZ_CHECK(e.first <= e.end && e.end <= e.n_blocks && e.top <= e.end - e.first);
    FUZZ_CHECK((e.end < e.n_blocks || e.first == e.end) && e.end <= n_slots / spec->block_tokens);
    FUZZ_CHECK(n <= retrieval_most_blocks(spec) && n == e.n_blocks - (e.end - e.first) + e.top);
    FUZZ_CHECK(blocks[n - 1] == e.n_blocks - 1);
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0) FUZZ_CHECK(blocks[i] > blocks[i - 1]);
        between += blocks[i] >= e.first && blocks[i] < e.end;
    }
    FUZZ_CHECK(between == e.top);
}

static void check_gathered(const retrieval_spec *spec, uint32_t page_tokens, uint32_t n_slots,
                           const uint32_t *blocks, uint32_t n)
{
    uint32_t out[PAGES], size = spec->block_tokens, last = (n_slots - 1) % size + 1;
    FUZZ_CHECK(retrieval_gather(spec, page_tokens, n_slots, pages, blocks, n, out) ==
               (n - 1) * size + last);
    for (uint32_t i = 0; i < n; i++)
        FUZZ_CHECK(out[i * (size / page_tokens)] == pages[blocks[i] * (size / page_tokens)]);
}

/* By masses that may be infinite or no numbers. */
static void preselect(const retrieval_spec *spec, uint32_t n_prompt, uint32_t n_heads,
                      uint64_t *left_out)
{
    static float mass[HEADS * SLOTS_MOST], pooled[HEADS][PAGES];
    static uint32_t keys[PAGES];
    const float *heads[HEADS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_heads * n_prompt; i++)
        mass[i] = (&scores[0][0])[i % (HEADS * PAGES)];
    for (uint32_t h = 0; h < n_heads; h++) {
        retrieval_pool_mass(spec, n_prompt, mass + (size_t)h * n_prompt, pooled[h]);
        heads[h] = pooled[h];
    }
    retrieval_preselect(spec, n_prompt, heads, n_heads, keys, left_out);
    for (uint32_t b = 0; b < n_prompt / spec->block_tokens; b++)
        n += left_out[b / 64] >> b % 64 & 1;
    FUZZ_CHECK(n == retrieval_left_out(spec, n_prompt));
}

static void select_for(const retrieval_spec *spec, const pkv_geometry *g, uint32_t n_slots,
                       uint32_t head, uint32_t n_heads)
{
    static uint32_t keys[PAGES], blocks[LIST], again[LIST];
    static uint64_t left_out[PAGES / 64 + 1];
    uint32_t n_prompt = n_slots - 1 - n_slots / 7;
    const float *heads[HEADS];
    for (uint32_t h = 0; h < n_heads; h++) heads[h] = scores[head + h];
    if (spec->preselect_blocks) preselect(spec, n_prompt, n_heads, left_out);
    const retrieval_query query = {n_slots, n_prompt, spec->preselect_blocks ? left_out : NULL,
                                   heads, n_heads};
    uint32_t n = retrieval_select(spec, &query, keys, blocks);
    check_list(spec, n_prompt, n_slots, blocks, n);
    memset(keys, 0xff, sizeof keys);
    FUZZ_CHECK(retrieval_select(spec, &query, keys, again) == n);
    FUZZ_CHECK(memcmp(blocks, again, n * sizeof *blocks) == 0);
    check_gathered(spec, g->page_tokens, n_slots, blocks, n);
    uint32_t later = retrieval_follow(spec, n_slots, n_slots + 5, again, n);
    FUZZ_CHECK(later >= n && later <= n + 1 && memcmp(blocks, again, n * sizeof *blocks) == 0);
    FUZZ_CHECK(again[later - 1] == (n_slots + 4) / spec->block_tokens);
}

static void run(const retrieval_spec *spec, const pkv_geometry *g, uint32_t n_slots)
{
    uint32_t step = retrieval_heads_together(spec, g);
    FUZZ_CHECK(step > 0 && g->n_kv_heads % step == 0);
    uint32_t selecting = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        uint32_t leader = retrieval_layer_leader(spec, g, l);
        FUZZ_CHECK(leader == RETRIEVAL_ALL ||
                   (leader <= l && retrieval_layer_leader(spec, g, leader) == leader));
        selecting += leader == l;
    }
    FUZZ_CHECK(selecting > 0);
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t leader = retrieval_token_leader(spec, i);
        FUZZ_CHECK(leader <= i && i - leader < spec->token_step);
    }
    for (uint32_t h = 0; h < g->n_kv_heads; h += step) select_for(spec, g, n_slots, h, step);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) return 0;
    const pkv_geometry *g = &geometries[data[2] % N_GEOMETRIES];
    uint32_t n_slots = (data[0] | (uint32_t)data[1] << 8) % SLOTS_MOST + 1;
    json_t *json;
    error err;
    if (!status_ok(json_read_text("doc", (const char *)data + 4, size - 4, &json, NULL))) return 0;
    retrieval_spec spec;
    if (!status_ok(retrieval_parse(json, g, &spec, &err))) {
        FUZZ_CHECK(strncmp(err.text, "retrieval", 9) == 0 && !strchr(err.text, '\n'));
    } else if (spec.block_tokens == 0) {
        FUZZ_CHECK(json_is_null(json));
    } else {
        FUZZ_CHECK(spec.block_tokens % g->page_tokens == 0 && spec.top_blocks > 0);
        fill(data[3]);
        run(&spec, g, n_slots);
    }
    json_decref(json);
    return 0;
}
