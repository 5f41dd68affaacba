/* Chunks of few rows on long tables over the emulated GPU, whose attention is cut into parts. */
#include "tests/unit/model_pass.h"

#include "kernels/cuda/cuda_kernels.h"
#include "tests/simt/device.h"

static const pass small = {.dir = "tests/golden/models/qwen3_f32",
                           .kv_type = KERN_KV_BF16,
                           .bf16 = true,
                           .page_tokens = 16,
                           .layers_per_group = 1,
                           .mass_rows = 8,
                           .layer_step = 1,
                           .n_threads = 1};

/* A pass whose last step has few rows behind many, on a device of so many multiprocessors. */
static pass_result long_pass(const pass *p, const uint32_t *tokens, uint32_t n, uint32_t n_sms)
{
    simt_have_sms(n_sms);
    pass_result out = run(p, tokens, n);
    simt_have_sms(2);
    return out;
}

/* A chunk on a table of more than 1,024 slots is cut into parts where multiprocessors would be idle
 * without them: its rows' bits then differ, which shows that it was cut, and with --batch-invariant
 * they do not. */
static void chunks_on_long_tables(void **state)
{
    (void)state;
    enum { LONG = 1088, CHUNK = 524, LAST = LONG - 2 * CHUNK };
    static uint32_t tokens[LONG];
    pass p = small;
    p.override = "max_position_embeddings=1088";
    p.chunk = CHUNK;
    p.max_model_len = LONG;
    error err;
    model_config config;
    assert_true(status_ok(model_config_load(p.dir, &p.override, 1, &config, &err)));
    uint32_t vocab = config.vocab_size;
    size_t first = (size_t)(LONG - LAST) * vocab, n = (size_t)LAST * vocab;
    random_tokens(tokens, LONG, vocab);
    pass_result cpu = run(&p, tokens, LONG);
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.gpu_kv = GPU_KV_BF16;
    for (int invariant = 0; invariant < 2; invariant++) {
        p.batch_invariant = invariant;
        pass_result whole = long_pass(&p, tokens, LONG, 2);
        pass_result cut = long_pass(&p, tokens, LONG, 8);
        assert_memory_equal(whole.logits, cut.logits, first * sizeof(float));
        bool same = memcmp(whole.logits + first, cut.logits + first, n * sizeof(float)) == 0;
        assert_int_equal(same, invariant);
        double e = nmse(cut.logits + first, cpu.logits + first, n);
        double of_mass = nmse(cut.mass, cpu.mass, cpu.mass_floats);
        print_message("%s: NMSE of the last chunk's logits %.1e, of masses %.1e (< 1e-03)\n",
                      invariant ? "with --batch-invariant" : "cut", e, of_mass);
        assert_true(e < 1e-3 && of_mass < 1e-3);
        result_free(&whole);
        result_free(&cut);
    }
    result_free(&cpu);
    assert_int_equal(simt_allocations(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_on_long_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
