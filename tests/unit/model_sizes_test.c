/* model/sizes.c: what a rank is asked to load, and how ranks share the memory of their machine. */
#include "model/sizes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void draw(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    (void)done;
    (void)total;
}

static void a_rank_loads_what_the_options_say(void **state)
{
    (void)state;
    static const model_config theirs, own;
    const backend_options o = {.dir = "dir",
                               .config = &theirs,
                               .dummy_seed = 7,
                               .weight_type = DTYPE_BF16,
                               .quant_bits = 4,
                               .quant_attention = 8,
                               .quant_group = 64,
                               .ranks_here = 2,
                               .cache_dir = "cache",
                               .progress = draw};
    weights_options w = sizes_weights(&o, &own, 0, 4);
    assert_string_equal(w.dir, "dir");
    assert_string_equal(w.cache_dir, "cache");
    assert_ptr_equal(w.config, &own);
    assert_true(w.dummy_seed == 7 && w.type == DTYPE_BF16);
    assert_true(w.quant.bits == 4 && w.quant.group == 64 && w.attention_bits == 8);
    assert_true(w.rank == 0 && w.size == 4);
    assert_int_equal(w.ranks_here, 2); /* the other two ranks' weights lie on another machine */
    assert_non_null(w.progress);
    assert_null(sizes_weights(&o, &own, 1, 4).progress); /* one bar, of rank 0 */
}

/* 2 of 4 ranks on this machine: they need half of the tier, in slices of half a page. One page of
 * the memory is never handed out. */
static void host_pages_count_the_ranks_here(void **state)
{
    (void)state;
    const pkv_geometry g = {.page_tokens = 16,
                            .layers_per_group = 1,
                            .heads_per_group = 4,
                            .n_layers = 2,
                            .n_kv_heads = 4};
    uint64_t swap = 1 << 20, slice = 1 << 10, left = 512 << 10;
    assert_int_equal(sizes_for_ranks(swap, 4, 2), swap / 2);
    assert_int_equal(sizes_for_ranks(777, 4, 4), 777);
    assert_int_equal(sizes_host_pages(&g, swap, UINT64_MAX, 0, 4 * slice), 255);
    assert_int_equal(sizes_host_pages(&g, sizes_for_ranks(swap, 4, 2), UINT64_MAX, 0, 2 * slice),
                     255);
    /* Half of the machine's memory holds twice as many pages when half of the ranks share it. */
    assert_int_equal(sizes_host_pages(&g, swap, left, 0, 4 * slice), 63);
    assert_int_equal(sizes_host_pages(&g, sizes_for_ranks(swap, 4, 2), left, 0, 2 * slice), 127);
}

/* 8B-like: 32 layers of 218 million weights each beside a head of 525 million. */
static void logits_cost_what_the_shape_says(void **state)
{
    (void)state;
    model_config wide = {.n_layers = 32,
                         .hidden = 4096,
                         .n_heads = 32,
                         .n_kv_heads = 8,
                         .head_dim = 128,
                         .ffn = 14336,
                         .vocab_size = 128256};
    assert_int_equal(sizes_logit_row_cost(&wide, 1), 108);
    model_config narrow = {.n_layers = 4,
                           .hidden = 256,
                           .n_heads = 8,
                           .n_kv_heads = 4,
                           .head_dim = 32,
                           .ffn = 704,
                           .vocab_size = 128000};
    assert_int_equal(sizes_logit_row_cost(&narrow, 1), 2323);
    assert_int_equal(sizes_logit_row_cost(&narrow, 2), 3434); /* rank 0 scores for both */
    /* Only the experts that a row goes through count. */
    model_config sparse = narrow;
    sparse.n_experts = 64;
    sparse.experts_per_token = 2;
    sparse.expert_ffn = 320;
    sparse.shared_ffn = 64;
    for (uint32_t l = 0; l < sparse.n_layers; l++) sparse.layers[l] = LAYER_SPARSE;
    assert_in_range(sizes_logit_row_cost(&sparse, 1), 2200, 2323);
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(a_rank_loads_what_the_options_say),
        cmocka_unit_test(host_pages_count_the_ranks_here),
        cmocka_unit_test(logits_cost_what_the_shape_says),
    };
    return cmocka_run_group_tests(all, NULL, NULL);
}
