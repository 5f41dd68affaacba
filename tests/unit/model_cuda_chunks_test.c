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

/* Launches of a pass on a device of so many multiprocessors, which computes nothing. */
static uint64_t launches_of(const pass *p, const uint32_t *tokens, uint32_t n, uint32_t n_sms)
{
    uint64_t before = simt_counted().launches;
    simt_have_sms(n_sms);
    simt_be_idle(1);
    pass_result out = run(p, tokens, n);
    simt_be_idle(0);
    result_free(&out);
    return simt_counted().launches - before;
}

/* A chunk on a table of more than 1,024 slots is cut into parts where multiprocessors would be idle
 * without them: each layer then has a merge more. With --batch-invariant none is cut. */
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
    random_tokens(tokens, LONG, config.vocab_size);
    pass_result cpu = run(&p, tokens, LONG);
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.gpu_kv = GPU_KV_BF16;
    uint64_t whole = launches_of(&p, tokens, LONG, 2);
    assert_int_equal(launches_of(&p, tokens, LONG, 8), whole + config.n_layers);
    pass_result cut = run(&p, tokens, LONG); /* on eight, too */
    size_t first = (size_t)(LONG - LAST) * config.vocab_size, n = (size_t)LAST * config.vocab_size;
    double e = nmse(cut.logits + first, cpu.logits + first, n);
    double of_mass = nmse(cut.mass, cpu.mass, cpu.mass_floats);
    print_message("NMSE of the last chunk's logits %.1e, of masses %.1e (< 1e-03)\n", e, of_mass);
    assert_true(e < 1e-3 && of_mass < 1e-3);
    p.batch_invariant = true;
    whole = launches_of(&p, tokens, LONG, 2);
    assert_int_equal(launches_of(&p, tokens, LONG, 8), whole);
    result_free(&cpu);
    result_free(&cut);
    assert_int_equal(simt_allocations(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_on_long_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
