/* Ranks that add up on their devices: emulated GPUs, and a fake NCCL or kernels that reach the
 * other ranks' memory. With two ranks both have the bits of sums through the host, but where a
 * kernel sends bf16. */
#include "tests/unit/model_nccl.h"

enum { TOKENS = 30 };

#define GOLDEN "tests/golden/models/"

static const pass two = {.dir = GOLDEN "qwen3_f32",
                         .kv_type = KERN_KV_BF16,
                         .bf16 = true,
                         .page_tokens = 16,
                         .layers_per_group = 1,
                         .chunk = 12,
                         .n_threads = 2,
                         .n_ranks = RANKS,
                         .mass_rows = 4,
                         .layer_step = 1,
                         .max_model_len = 64,
                         .gpu_kv = GPU_KV_BF16};

/* bf16: the weights', which is also what kernels send. */
static void check_sums(bool bf16, bool peers, double limit)
{
    static const struct {
        const char *dir, *override;
    } models[] = {{GOLDEN "qwen3_f32", NULL},
                  {GOLDEN "internlm2_long_bf16", "vocab_size=63"},
                  {GOLDEN "mixtral_f32", "head_dim=32"},
                  {GOLDEN "gemma3_f32", "head_dim=32"}};
    void *library = open_nccl(FAKE_WELL);
    simt_refuse_shares(peers ? SIMT_REFUSE_NONE : SIMT_REFUSE_ALL);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        bool is_bf16 = strstr(models[i].dir, "bf16"); /* stored so, and sent so by kernels */
        if (peers && limit == 0 && is_bf16) continue;
        pass p = two;
        uint32_t tokens[TOKENS];
        p.dir = models[i].dir;
        p.override = models[i].override;
        p.gpu = octavo_cuda_api(GPU_API_VERSION);
        p.bf16 = bf16;
        random_tokens(tokens, TOKENS, 32);
        pass_result host = run(&p, tokens, TOKENS);
        p.make_ranks = make_ranks;
        uint64_t before = simt_counted().collectives;
        pass_result device = run(&p, tokens, TOKENS);
        uint64_t n = simt_counted().collectives - before, n_layers = host.config.n_layers;
        /* Three chunks; some collectives at the start, and the logits'. */
        assert_true(peers ? n < RANKS * 3 * 2 * n_layers : n >= RANKS * 3 * 2 * n_layers);
        leave();
        size_t bytes = (size_t)TOKENS * host.config.vocab_size * sizeof(float);
        assert_int_equal(host.mass_floats, device.mass_floats);
        if (limit == 0) {
            assert_memory_equal(host.logits, device.logits, bytes);
            assert_memory_equal(host.mass, device.mass, host.mass_floats * sizeof(float));
        }
        double e = nmse(device.logits, host.logits, bytes / sizeof(float));
        if (!(e <= limit)) fail_msg("%s: %g", p.dir, e);
        result_free(&host);
        result_free(&device);
        assert_int_equal(simt_allocations(), 0);
    }
    simt_refuse_shares(SIMT_REFUSE_NONE);
    dlclose(library);
}

static void sums_of_the_library_are_those_of_the_host(void **state)
{
    (void)state;
    check_sums(true, false, 0);
    check_sums(false, false, 0);
}

static void sums_of_kernels_are_those_of_the_host(void **state)
{
    (void)state;
    check_sums(false, true, 0);
    check_sums(true, true, 1e-3);
}

/* With --batch-invariant a row has the same bits in chunks of any size, whether kernels add up over
 * ranks or NCCL gathers. */
static void chunks_of_any_size(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {30, 7, 1};
    void *library = open_nccl(FAKE_WELL);
    for (int peers = 0; peers < 2; peers++) {
        uint32_t tokens[TOKENS];
        pass p = two;
        pass_result whole = {0};
        simt_refuse_shares(peers ? SIMT_REFUSE_NONE : SIMT_REFUSE_ALL);
        p.gpu = octavo_cuda_api(GPU_API_VERSION);
        p.make_ranks = make_ranks;
        p.batch_invariant = true;
        p.mass_rows = 0;
        random_tokens(tokens, TOKENS, 32);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            p.chunk = chunks[i];
            pass_result r = run(&p, tokens, TOKENS);
            leave();
            size_t bytes = (size_t)TOKENS * r.config.vocab_size * sizeof(float);
            if (i == 0) whole = r;
            else assert_memory_equal(r.logits, whole.logits, bytes);
            if (i > 0) result_free(&r);
        }
        result_free(&whole);
        assert_int_equal(simt_allocations(), 0);
    }
    simt_refuse_shares(SIMT_REFUSE_NONE);
    dlclose(library);
}

/* One device that shares nothing: no rank waits for flags. */
static void ranks_agree_on_who_adds_up(void **state)
{
    (void)state;
    void *library = open_nccl(FAKE_WELL);
    uint32_t tokens[TOKENS];
    pass p = two;
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    random_tokens(tokens, TOKENS, 32);
    pass_result host = run(&p, tokens, TOKENS);
    p.make_ranks = make_ranks;
    simt_refuse_shares(SIMT_REFUSE_SOME);
    pass_result device = run(&p, tokens, TOKENS);
    simt_refuse_shares(SIMT_REFUSE_NONE);
    leave();
    size_t bytes = (size_t)TOKENS * host.config.vocab_size * sizeof(float);
    assert_memory_equal(host.logits, device.logits, bytes);
    result_free(&host);
    result_free(&device);
    assert_int_equal(simt_allocations(), 0);
    dlclose(library);
}

/* ---- ranks that open GPUs themselves --------------------------------------------------------- */

static status make_own(const backend_cuda_options *o, uint32_t n, backend *out, error *err)
{
    backend_cuda_options each = *o;
    each.own_gpus = true;
    each.nccl = FAKE_NCCL;
    return backend_cuda_ranks_create(&each, n, out, err);
}

static void threads_have_a_gpu_each(void **state)
{
    (void)state;
    void *library = open_nccl(FAKE_WELL);
    uint32_t tokens[TOKENS];
    pass p = two;
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.bf16 = false;
    random_tokens(tokens, TOKENS, 32);
    pass_result host = run(&p, tokens, TOKENS);
    p.make_ranks = make_own;
    setenv("OCTAVO_TEST_DEVICES", "2", 1);
    pass_result device = run(&p, tokens, TOKENS);
    unsetenv("OCTAVO_TEST_DEVICES");
    size_t bytes = (size_t)TOKENS * host.config.vocab_size * sizeof(float);
    assert_memory_equal(host.logits, device.logits, bytes);
    result_free(&host);
    result_free(&device);
    assert_int_equal(simt_allocations(), 0);
    dlclose(library);
}

/* A device that is lost, at any time of a step, ends the step of the ranks that wait for it. */
static void a_lost_rank_ends_the_others(void **state)
{
    (void)state;
    void *library = open_nccl(FAKE_WELL);
    for (int peers = 0; peers < 2; peers++)
        for (int after = 0; after < 60; after += 7) {
            pass p = two;
            comm *group;
            comm_options self = {.kind = "self", .size = 1};
            model_config config;
            pkv *kv;
            uint32_t tokens[4] = {1, 2, 3, 4}, hit;
            sample_params greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
            p.gpu = octavo_cuda_api(GPU_API_VERSION);
            p.make_ranks = make_own;
            setenv("OCTAVO_TEST_DEVICES", "2", 1);
            simt_refuse_shares(peers ? SIMT_REFUSE_NONE : SIMT_REFUSE_ALL);
            assert_true(status_ok(comm_create(&self, &group, NULL)));
            backend b = open_backend(&p, group, &config);
            const backend_info *info = b.ops->info(b.ctx);
            assert_int_equal(info->max_in_flight, 2);
            pkv_options po = {.geometry = info->geometry, .n_pages = info->n_pages, .max_seqs = 2};
            assert_true(status_ok(pkv_create(&po, &kv)));
            assert_true(status_ok(pkv_seq_open(kv, 1, PKV_HEAD, tokens, 0, 0, 4, &hit)));
            assert_true(status_ok(pkv_seq_append(kv, 1, 4)));
            step_open open = {.seq = 1, .params = &greedy};
            step_seq seq = {.seq = 1, .n_tokens = 4, .n_samples = 1};
            step_plan plan = {.step = 1,
                              .deltas = pkv_take_deltas(kv),
                              .opens = &open,
                              .n_opens = 1,
                              .seqs = &seq,
                              .n_seqs = 1,
                              .tokens = tokens,
                              .n_tokens = 4,
                              .checksum = pkv_checksum(kv)};
            const step_result *r;
            simt_fail_after(after);
            assert_true(status_ok(b.ops->submit(b.ctx, &plan)));
            (void)b.ops->collect(b.ctx, &r);
            simt_fail_after(-1);
            assert_int_equal(r->status.code, STATUS_INTERNAL);
            assert_non_null(strstr(r->status.message, "as the test wants it"));
            b.ops->destroy(b.ctx);
            pkv_destroy(kv);
            comm_destroy(group);
            assert_int_equal(simt_allocations(), 0);
        }
    unsetenv("OCTAVO_TEST_DEVICES");
    simt_refuse_shares(SIMT_REFUSE_NONE);
    dlclose(library);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_the_library_are_those_of_the_host),
        cmocka_unit_test(sums_of_kernels_are_those_of_the_host),
        cmocka_unit_test(chunks_of_any_size),
        cmocka_unit_test(ranks_agree_on_who_adds_up),
        cmocka_unit_test(threads_have_a_gpu_each),
        cmocka_unit_test(a_lost_rank_ends_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
