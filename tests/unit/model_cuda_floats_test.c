/* Checkpoints of e4m3 on the CUDA backend (over the emulator): their matrices stay 8 bits on the
 * device, and logits are those of the CPU backend, which widens them. */
#include "tests/unit/model_floats.h"

enum { TOKENS = 24 };

/* ---- bytes on the device --------------------------------------------------------------------- */

/* Bytes of a matrix that is kept: with `in` columns that share a scale; 0: all. */
static uint64_t kept(size_t rows, size_t cols, size_t in)
{
    size_t tall = (rows + 15) / 16 * 16, wide = (cols + 31) / 32 * 32;
    return tall * wide + tall * (in ? (cols + in - 1) / in : 1) * 4;
}

/* `in` of o and down, which ranks cut; qkv and gate_up have columns of the whole. */
static uint64_t device_bytes(const shape *s, uint32_t ranks, size_t in, size_t in_o, size_t in_down)
{
    size_t qkv = (HEADS + 2 * KV_HEADS) * DIM / ranks, heads = HEADS * DIM / ranks;
    size_t ffn = s->ffn / ranks, vocab = VOCAB / ranks, n = s->n_experts ? s->n_experts : 1;
    uint64_t layer = (uint64_t)(2 * HIDDEN + 2 * DIM) * 4 + kept(HIDDEN, heads, in_o);
    layer += s->plain_k ? (uint64_t)qkv * HIDDEN * 2 : kept(qkv, HIDDEN, in);
    layer += n * (kept(2 * ffn, HIDDEN, in) + kept(HIDDEN, ffn, in_down));
    layer += (uint64_t)s->n_experts * HIDDEN * 2;
    uint64_t all = layer * LAYERS + vocab * HIDDEN * 2 + HIDDEN * 4;
    return all + (s->head ? kept(vocab, HIDDEN, in) : 0);
}

static void check_bytes(const pass *p, uint32_t ranks, uint64_t due)
{
    error err;
    model_config config;
    backend b;
    gpu_facts facts = {.n_sms = 2, .shared_bytes = 163 << 10, .free_bytes = 1 << 30};
    assert_true(status_ok(model_config_load(p->dir, NULL, 0, &config, &err)));
    backend_cuda_options o = {.common = {.dir = p->dir,
                                         .config = &config,
                                         .weight_type = DTYPE_BF16,
                                         .n_threads = 1,
                                         .geometry = {.page_tokens = 16,
                                                      .layers_per_group = 1,
                                                      .heads_per_group = KV_HEADS},
                                         .kv_bytes = 1 << 20,
                                         .max_rows = 40,
                                         .max_seqs = 3,
                                         .max_model_len = 64},
                              .gpu_facts = &facts};
    backend_measures m;
    if (!status_ok(backend_cuda_measure(&o, ranks, &m, &err))) fail_msg("%s", err.text);
    assert_int_equal(m.weight_bytes, due);
    o.api = octavo_cuda_api(GPU_API_VERSION);
    if (!status_ok(backend_cuda_ranks_create(&o, ranks, &b, &err))) fail_msg("%s", err.text);
    assert_int_equal(backend_cuda_ranks_describe(&b).weight_bytes, due * ranks);
    b.ops->destroy(b.ctx);
}

/* ---- logits ---------------------------------------------------------------------------------- */

static void check_logits(pass p, uint32_t n, double limit)
{
    uint32_t *tokens = malloc(n * sizeof *tokens);
    random_tokens(tokens, n, VOCAB);
    pass_result cpu = run(&p, tokens, n);
    p = on_gpu(p);
    pass_result ours = run(&p, tokens, n);
    double e = nmse(ours.logits, cpu.logits, (size_t)n * VOCAB);
    print_message("%u rows at once, %u ranks: NMSE of logits %.1e (< %.0e)\n", p.chunk, p.n_ranks,
                  e, limit);
    assert_true(e < limit);
    result_free(&cpu);
    result_free(&ours);
    free(tokens);
    assert_int_equal(simt_allocations(), 0);
}

/* Blocks of 128 beside matrices of other sizes, whose last blocks are not whole. */
static const shape by_block = {.by = BY_BLOCK, .block = 128, .ffn = 160};

static void logits_of_every_scale(void **state)
{
    (void)state;
    static const struct {
        shape s;
        size_t in; /* columns that share a scale on the device */
    } cases[] = {{{.by = BY_TENSOR, .ffn = 96}, 0},
                 {{.by = BY_CHANNEL, .ffn = 96, .head = true}, 0},
                 {{.by = BY_BLOCK, .block = 128, .ffn = 160}, 128},
                 {{.by = BY_BLOCK, .block = 96, .ffn = 160, .plain_k = true}, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const shape *s = &cases[i].s;
        size_t in = cases[i].in, along = HEADS * DIM > s->block ? in : 0;
        folder f = make_model(s);
        pass p = pass_of(&f, 5);
        check_bytes(&p, 1, device_bytes(s, 1, in, along, in));
        check_logits(p, TOKENS, 2e-4);
        folder_remove(&f);
    }
}

/* Beyond 128 rows the library multiplies bf16, which are rounded as the CPU's are. */
static void many_rows(void **state)
{
    (void)state;
    folder f = make_model(&by_block);
    check_logits(pass_of(&f, 140), 140, 2e-4);
    folder_remove(&f);
}

static void experts(void **state)
{
    (void)state;
    static const shape s = {.by = BY_BLOCK, .block = 128, .ffn = 64, .n_experts = 4};
    folder f = make_model(&s);
    pass p = pass_of(&f, 7);
    check_bytes(&p, 1, device_bytes(&s, 1, 128, 0, 0));
    check_logits(p, TOKENS, 3e-2);
    folder_remove(&f);
}

/* A rank's 64 of o's columns are a block; its 96 of down's are one and a half, so that runs of 32
 * share a scale on both ranks; its 56 are no runs of 32, so that down is widened. */
static void ranks_cut_blocks(void **state)
{
    (void)state;
    static const size_t ffn[] = {192, 112};
    for (size_t i = 0; i < sizeof ffn / sizeof *ffn; i++) {
        shape s = {.by = BY_BLOCK, .block = 64, .ffn = ffn[i]};
        folder f = make_model(&s);
        pass p = pass_of(&f, 9);
        uint64_t due = device_bytes(&s, 2, 64, 64, 32);
        if (i == 1) due += LAYERS * ((uint64_t)HIDDEN * 56 * 2 - kept(HIDDEN, 56, 32));
        check_bytes(&p, 2, due);
        p.n_ranks = 2;
        check_logits(p, TOKENS, 2e-4);
        folder_remove(&f);
    }
}

/* The CPU's weights and the GPU's of one folder have a file each. */
static void the_cache_of_packed_weights(void **state)
{
    (void)state;
    uint32_t tokens[TOKENS];
    folder f = make_model(&by_block), cache;
    folder_make(&cache);
    pass p = pass_of(&f, 8), ours = on_gpu(p);
    random_tokens(tokens, TOKENS, VOCAB);
    pass_result made = run(&ours, tokens, TOKENS), cpu = run(&p, tokens, TOKENS);
    p.cache_dir = ours.cache_dir = cache.dir;
    for (int i = 0; i < 2; i++) { /* written, then read */
        pass_result r = run(&ours, tokens, TOKENS), s = run(&p, tokens, TOKENS);
        assert_memory_equal(r.logits, made.logits, TOKENS * VOCAB * sizeof(float));
        assert_memory_equal(s.logits, cpu.logits, TOKENS * VOCAB * sizeof(float));
        result_free(&r);
        result_free(&s);
    }
    result_free(&made);
    result_free(&cpu);
    folder_remove(&cache);
    folder_remove(&f);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void expect_failure(const shape *s, const char *what)
{
    error err = {{0}};
    backend b;
    model_config config;
    comm *group;
    comm_options self = {.kind = "self", .size = 1};
    folder f = make_model(s);
    assert_true(status_ok(comm_create(&self, &group, NULL)));
    assert_true(status_ok(model_config_load(f.dir, NULL, 0, &config, &err)));
    backend_cuda_options o = {.common = {.dir = f.dir,
                                         .config = &config,
                                         .weight_type = DTYPE_BF16,
                                         .n_threads = 1,
                                         .group = group,
                                         .geometry = {.page_tokens = 16,
                                                      .layers_per_group = 1,
                                                      .heads_per_group = KV_HEADS},
                                         .kv_bytes = 1 << 20,
                                         .max_rows = 8,
                                         .max_seqs = 2,
                                         .max_model_len = 64},
                              .api = octavo_cuda_api(GPU_API_VERSION)};
    assert_false(status_ok(backend_cuda_create(&o, &b, &err)));
    if (!strstr(err.text, what)) fail_msg("\"%s\" is not in \"%s\"", what, err.text);
    comm_destroy(group);
    folder_remove(&f);
    assert_int_equal(simt_allocations(), 0);
}

static void values_that_are_not_finite(void **state)
{
    (void)state;
    shape s = by_block;
    s.bad_value = true;
    expect_failure(&s, "q_proj.weight\": row 127 holds NaN");
    s = by_block;
    s.bad_scale = true;
    expect_failure(&s, "q_proj.weight\": row 0 holds NaN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_every_scale),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(experts),
        cmocka_unit_test(ranks_cut_blocks),
        cmocka_unit_test(the_cache_of_packed_weights),
        cmocka_unit_test(values_that_are_not_finite),
    };
    simt_be_late(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
