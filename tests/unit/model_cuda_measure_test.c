/* The result of backend_cuda_measure for a backend, compared with the backend itself (over the
 * emulator). */
#include "model/cuda/backend.h"
#include "tests/unit/model_nccl.h"

#define GOLDEN "tests/golden/models/"
enum { N_SMS = 2, SHARED_BYTES = 163 << 10 }; /* of the emulator */

typedef struct made {
    backend backend;
    comm *group;
    gpu *g;
    gpu_facts facts; /* the emulator's, or the case's own */
} made;

/* Makes one rank on a device opened here, with the free memory of the case. */
static void make_one(backend_cuda_options *o, uint64_t free_bytes, made *out)
{
    error err;
    char why[64];
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &out->group, &err)));
    assert_int_equal(o->api->open(0, &out->g, &out->facts, why, sizeof why), GPU_OK);
    assert_int_equal(out->facts.n_sms, N_SMS);
    out->facts.free_bytes = free_bytes;
    o->common.group = out->group;
    o->gpu = out->g;
    o->gpu_facts = &out->facts;
    if (!status_ok(backend_cuda_create(o, &out->backend, &err))) fail_msg("%s", err.text);
}

static void drop(const backend_cuda_options *o, made *m)
{
    m->backend.ops->destroy(m->backend.ctx);
    if (m->g) o->api->close(m->g);
    if (m->group) comm_destroy(m->group);
    assert_int_equal(simt_allocations(), 0);
}

static void check(const char *what, const backend_measures *m, uint32_t ranks, const backend *b,
                  backend_facts facts)
{
    const backend_info *info = b->ops->info(b->ctx);
    const struct {
        const char *name;
        uint64_t measured, made;
    } all[] = {
        {"weights", m->weight_bytes * ranks, facts.weight_bytes},
        {"page", m->page_bytes * ranks, facts.page_bytes},
        {"pool", m->n_pages * m->page_bytes * ranks, facts.pool_bytes},
        {"pages", m->n_pages, info->n_pages},
        {"host pages", m->n_host_pages, info->n_host_pages},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].measured != all[i].made)
            fail_msg("%s: %s: measured %llu, is %llu", what, all[i].name,
                     (unsigned long long)all[i].measured, (unsigned long long)all[i].made);
    assert_memory_equal(&m->geometry, &info->geometry, sizeof info->geometry);
}

typedef struct sizes_case {
    const char *dir;
    dtype type;
    uint8_t bits;
    gpu_kv_format kv;
    uint64_t kv_bytes, free_bytes;
    uint32_t ranks;
} sizes_case;

static void check_case(const sizes_case *k)
{
    static const char *const formats[] = {"bf16", "f16", "fp8", "int8"};
    char what[160];
    error err;
    model_config config;
    snprintf(what, sizeof what, "%s, int%u, %s, %u ranks", k->dir, k->bits, formats[k->kv],
             k->ranks);
    if (!status_ok(model_config_load(k->dir, NULL, 0, &config, &err))) fail_msg("%s", err.text);
    gpu_facts facts = {.n_sms = N_SMS, .shared_bytes = SHARED_BYTES, .free_bytes = k->free_bytes};
    backend_cuda_options o = {.common = {.dir = k->dir,
                                         .config = &config,
                                         .weight_type = k->type,
                                         .quant_bits = k->bits,
                                         .quant_group = 32,
                                         .n_threads = 1,
                                         .geometry = {.page_tokens = 16,
                                                      .layers_per_group = 1,
                                                      .heads_per_group = config.n_kv_heads},
                                         .kv_bytes = k->kv_bytes,
                                         .swap_bytes = (1 << 20) + 777,
                                         .max_rows = 40,
                                         .max_seqs = 3,
                                         .max_model_len = 64},
                              .kv = (uint8_t)k->kv,
                              .gpu_facts = &facts};
    backend_measures m;
    if (!status_ok(backend_cuda_measure(&o, k->ranks, &m, &err))) fail_msg("%s", err.text);
    assert_int_equal(simt_allocations(), 0);
    assert_true(m.fits && m.parameters > 0 && m.step_bytes > 0);
    made it = {0};
    o.api = octavo_cuda_api(GPU_API_VERSION);
    if (k->ranks == 1) {
        make_one(&o, k->free_bytes, &it);
        check(what, &m, 1, &it.backend, backend_cuda_describe(&it.backend));
    } else {
        if (!status_ok(backend_cuda_ranks_create(&o, k->ranks, &it.backend, &err)))
            fail_msg("%s", err.text);
        check(what, &m, k->ranks, &it.backend, backend_cuda_ranks_describe(&it.backend));
    }
    drop(&o, &it);
}

static void what_is_made(void **state)
{
    (void)state;
    static const sizes_case cases[] = {
        {"models/demo", DTYPE_BF16, 0, GPU_KV_BF16, (4 << 20) + 12345, 1 << 30, 1},
        {"models/demo", DTYPE_BF16, 4, GPU_KV_E4M3, (4 << 20) + 12345, 1 << 30, 2},
        {"models/demo", DTYPE_BF16, 8, GPU_KV_INT8, 0, 40 << 20, 1},
        {"models/demo", DTYPE_BF16, 0, GPU_KV_F16, 0, 60 << 20, 1},
        {GOLDEN "internlm2_long_bf16", DTYPE_BF16, 0, GPU_KV_BF16, 1 << 20, 1 << 30, 1},
        {GOLDEN "qwen3_f32", DTYPE_F32, 0, GPU_KV_BF16, 1 << 20, 1 << 30, 2},
        {GOLDEN "gemma3_layers_bf16", DTYPE_F32, 0, GPU_KV_INT8, 1 << 20, 1 << 30, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i]);
}

/* Pools that have what everything else on the device leaves: any difference of that changes their
 * number of pages. Ranks with a GPU each have memory in which they add up, and ranks on one GPU do
 * not. */
static void pools_of_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool own_gpus, invariant;
    } cases[] = {{"a GPU each", true, false},
                 {"a GPU each, batch-invariant", true, true},
                 {"one GPU", false, false}};
    enum { BESIDE = 1 << 20 }; /* for the pool, and what its share leaves */
    void *library = open_nccl(FAKE_WELL);
    error err;
    model_config config;
    assert_true(status_ok(model_config_load(GOLDEN "qwen3_f32", NULL, 0, &config, &err)));
    setenv("OCTAVO_TEST_DEVICES", "2", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gpu_facts facts = {.n_sms = N_SMS, .shared_bytes = SHARED_BYTES, .free_bytes = 1 << 30};
        backend_cuda_options o = {.common = {.dir = GOLDEN "qwen3_f32",
                                             .config = &config,
                                             .weight_type = DTYPE_F32,
                                             .n_threads = 1,
                                             .geometry = {.page_tokens = 16,
                                                          .layers_per_group = 1,
                                                          .heads_per_group = config.n_kv_heads},
                                             .max_rows = 40,
                                             .max_seqs = 300,
                                             .max_model_len = 64},
                                  .api = octavo_cuda_api(GPU_API_VERSION),
                                  .batch_invariant = cases[i].invariant,
                                  .gpu_facts = &facts,
                                  .own_gpus = cases[i].own_gpus,
                                  .nccl = FAKE_NCCL};
        backend_measures m;
        backend b;
        if (!status_ok(backend_cuda_measure(&o, RANKS, &m, &err))) fail_msg("%s", err.text);
        facts.free_bytes = m.weight_bytes + m.step_bytes + BESIDE;
        if (!status_ok(backend_cuda_measure(&o, RANKS, &m, &err))) fail_msg("%s", err.text);
        simt_have_memory(facts.free_bytes * (cases[i].own_gpus ? 1 : RANKS));
        if (!status_ok(backend_cuda_ranks_create(&o, RANKS, &b, &err))) fail_msg("%s", err.text);
        uint32_t n_pages = b.ops->info(b.ctx)->n_pages;
        if (m.n_pages == 0 || m.n_pages != n_pages)
            fail_msg("%s: measured %u pages, there are %u", cases[i].name, m.n_pages, n_pages);
        b.ops->destroy(b.ctx);
        assert_int_equal(simt_allocations(), 0);
    }
    simt_have_memory(1 << 30);
    unsetenv("OCTAVO_TEST_DEVICES");
    dlclose(library);
}

/* Rows of logits have room as a batch needs it, 256 at most; fewer where they would take more than
 * 1/32 of the memory that the weights leave; 64 at least. */
static void rows_of_logits(void **state)
{
    (void)state;
    error err;
    model_config config;
    assert_true(status_ok(model_config_load("models/demo", NULL, 0, &config, &err)));
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        uint64_t vocab = config.vocab_size, part = vocab / ranks;
        uint64_t row = 4 * (part + part * ranks + (ranks > 1 ? vocab : 0));
        if (ranks > 1) row += cuda_limits_bytes(ranks);
        uint64_t least = 0, weights = 0;
        const struct {
            uint64_t for_rows; /* of the memory that the weights leave */
            uint32_t due;
        } cases[] = {{1, 64}, {64, 64}, {103, 96}, {104, 104}, {256, 256}, {4000, 256}};
        assert_int_equal(vocab % ranks, 0);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            gpu_facts facts = {.n_sms = N_SMS,
                               .shared_bytes = SHARED_BYTES,
                               .free_bytes = weights + 32 * row * cases[i].for_rows};
            backend_cuda_options o = {.common = {.dir = "models/demo",
                                                 .config = &config,
                                                 .weight_type = DTYPE_BF16,
                                                 .geometry = {.page_tokens = 16,
                                                              .layers_per_group = 1,
                                                              .heads_per_group = config.n_kv_heads},
                                                 .kv_bytes = 1 << 20,
                                                 .max_rows = 512,
                                                 .max_seqs = 300,
                                                 .max_model_len = 64},
                                      .gpu_facts = &facts};
            backend_measures m;
            assert_true(status_ok(backend_cuda_measure(&o, ranks, &m, &err)));
            if (i == 0) least = m.step_bytes, weights = m.weight_bytes;
            uint64_t due = (uint64_t)(cases[i].due - 64) * (row + 4 * config.hidden);
            if (m.step_bytes - least != due)
                fail_msg("%u ranks, case %zu: %llu bytes more than with 64 rows, not %llu", ranks,
                         i, (unsigned long long)(m.step_bytes - least), (unsigned long long)due);
        }
    }
}

/* Refused: weights that do not fit, no room for a page of each table, and formats without
 * kernels. */
static void what_is_not(void **state)
{
    (void)state;
    error err;
    model_config config;
    assert_true(status_ok(model_config_load("models/demo", NULL, 0, &config, &err)));
    gpu_facts facts = {.n_sms = N_SMS, .shared_bytes = SHARED_BYTES, .free_bytes = 1 << 20};
    backend_cuda_options o = {.common = {.dir = "models/demo",
                                         .config = &config,
                                         .weight_type = DTYPE_BF16,
                                         .geometry = {.page_tokens = 16,
                                                      .layers_per_group = 1,
                                                      .heads_per_group = config.n_kv_heads},
                                         .max_rows = 40,
                                         .max_seqs = 3},
                              .gpu_facts = &facts};
    backend_measures m;
    assert_true(status_ok(backend_cuda_measure(&o, 1, &m, &err)));
    assert_true(!m.fits && m.n_pages == 0 && m.weight_bytes > 1 << 20);
    facts.free_bytes = m.weight_bytes + m.step_bytes;
    assert_true(status_ok(backend_cuda_measure(&o, 1, &m, &err)));
    assert_true(m.fits && m.n_pages == 0);
    assert_false(status_ok(backend_cuda_measure(&o, 3, &m, &err)));
    assert_non_null(strstr(err.text, "num_attention_heads"));
    config.head_dim = 48;
    o.common.dummy = true;
    assert_int_equal(backend_cuda_measure(&o, 1, &m, &err).code, STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "heads of 48 dims"));
    o.common.dummy = false;
    o.common.dir = "nowhere";
    assert_false(status_ok(backend_cuda_measure(&o, 1, &m, &err)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_made),
        cmocka_unit_test(pools_of_ranks),
        cmocka_unit_test(rows_of_logits),
        cmocka_unit_test(what_is_not),
    };
    return cmocka_run_group_tests_name("model_cuda_measure", tests, NULL, NULL);
}
