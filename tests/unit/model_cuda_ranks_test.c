/* Ranks that add up on their devices (model/cuda/ranks.c): emulated GPUs and a fake NCCL, which
 * also sums in rank order. The bits equal those of sums through the host. */
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

static void sums_on_the_device_are_those_of_the_host(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *override;
    } models[] = {{GOLDEN "qwen3_f32", NULL},
                  {GOLDEN "internlm2_long_bf16", "vocab_size=63"},
                  {GOLDEN "mixtral_f32", "head_dim=32"}};
    void *library = open_nccl(FAKE_WELL);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        pass p = two;
        uint32_t tokens[TOKENS];
        p.dir = models[i].dir;
        p.override = models[i].override;
        p.gpu = octavo_cuda_api(GPU_API_VERSION);
        random_tokens(tokens, TOKENS, 32);
        pass_result host = run(&p, tokens, TOKENS);
        p.make_ranks = make_ranks;
        pass_result device = run(&p, tokens, TOKENS);
        leave();
        size_t bytes = (size_t)TOKENS * host.config.vocab_size * sizeof(float);
        assert_memory_equal(host.logits, device.logits, bytes);
        assert_int_equal(host.mass_floats, device.mass_floats);
        assert_memory_equal(host.mass, device.mass, host.mass_floats * sizeof(float));
        result_free(&host);
        result_free(&device);
        assert_int_equal(simt_allocations(), 0);
    }
    dlclose(library);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_on_the_device_are_those_of_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
