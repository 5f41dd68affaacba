/* Configurations of ranks, and what ranks say of themselves, from an untrusted peer: each error is
 * named. */
#include "tests/unit/rpc_worker_wire.h"

static worker_config a_config(void)
{
    static const char *const overrides[] = {"a=1", "b=\"x\""};
    return (worker_config){
        .rank = 1,
        .size = 2,
        .model = "models/demo",
        .overrides = overrides,
        .n_overrides = 2,
        .config_fingerprint = UINT64_MAX,
        .weights_fingerprint = 12,
        .dummy = true,
        .dummy_seed = 4,
        .comm = "ucx",
        .device = "cpu",
        .device_index = 3,
        .kv_type = "bf16",
        .weight_type = "f32",
        .kv_residual = 64,
        .quant_bits = 8,
        .quant_attention = 4,
        .quant_group = 64,
        .high_precision = true,
        .batch_invariant = true,
        .n_threads = 2,
        .isa = "",
        .geometry = info.geometry,
        .kv_bytes = UINT64_MAX - 1,
        .swap_bytes = 9,
        .max_rows = ROWS,
        .max_seqs = SEQS,
        .max_model_len = 256,
        .silence_ms = 3000,
        .cache_dir = "",
        .kv_disk = "/var/kv",
        .kv_disk_bytes = UINT64_MAX - 2,
    };
}

static status send_config(configure_message *m, const char *version, arena *a, worker_config *out,
                          error *err)
{
    return config_unpack((const configure_message *)travel(&m->base, a), version, a, out, err);
}

/* Compares field by field, since padding is undefined. */
static void assert_same_numbers(const worker_config *a, const worker_config *b)
{
    assert_int_equal(a->rank, b->rank);
    assert_int_equal(a->size, b->size);
    assert_int_equal(a->n_overrides, b->n_overrides);
    assert_int_equal(a->config_fingerprint, b->config_fingerprint);
    assert_int_equal(a->weights_fingerprint, b->weights_fingerprint);
    assert_int_equal(a->dummy, b->dummy);
    assert_int_equal(a->dummy_seed, b->dummy_seed);
    assert_int_equal(a->device_index, b->device_index);
    assert_int_equal(a->kv_residual, b->kv_residual);
    assert_int_equal(a->quant_bits, b->quant_bits);
    assert_int_equal(a->quant_attention, b->quant_attention);
    assert_int_equal(a->quant_group, b->quant_group);
    assert_int_equal(a->n_threads, b->n_threads);
    assert_int_equal(a->high_precision, b->high_precision);
    assert_int_equal(a->batch_invariant, b->batch_invariant);
    assert_memory_equal(&a->geometry, &b->geometry, sizeof a->geometry);
    assert_int_equal(a->kv_bytes, b->kv_bytes);
    assert_int_equal(a->swap_bytes, b->swap_bytes);
    assert_int_equal(a->max_rows, b->max_rows);
    assert_int_equal(a->max_seqs, b->max_seqs);
    assert_int_equal(a->max_model_len, b->max_model_len);
    assert_int_equal(a->silence_ms, b->silence_ms);
}

static void configs_come_out_as_they_went_in(void **state)
{
    (void)state;
    arena packing, a;
    configure_message m;
    worker_config from = a_config(), to;
    error err = {{0}};
    arena_init(&packing, 4096, 0);
    assert_true(status_ok(config_pack(&from, 5, "1.2.3", &packing, &m)));
    if (!status_ok(send_config(&m, "1.2.3", &a, &to, &err))) fail_msg("%s", err.text);
    assert_string_equal(from.model, to.model);
    assert_string_equal(from.comm, to.comm);
    assert_string_equal(from.device, to.device);
    assert_string_equal(from.kv_type, to.kv_type);
    assert_string_equal(from.weight_type, to.weight_type);
    assert_string_equal(from.isa, to.isa);
    assert_string_equal(from.cache_dir, to.cache_dir);
    assert_string_equal(from.kv_disk, to.kv_disk);
    assert_true(from.kv_disk_bytes == to.kv_disk_bytes);
    assert_string_equal(from.overrides[1], to.overrides[1]);
    assert_same_numbers(&from, &to);
    arena_destroy(&a);

    static const struct {
        uint32_t protocol, rank, size, max_seqs;
        const char *version, *word;
    } wrong[] = {
        {WORKER_PROTOCOL + 1, 0, 1, 1, "1.2.3", "protocol: the coordinator (octavo 1.2.3) speaks"},
        {WORKER_PROTOCOL, 0, 1, 1, "1.2.4",
         "version: the coordinator is octavo 1.2.4, this worker"},
        {WORKER_PROTOCOL, 2, 2, 1, "1.2.3", "rank: 2 of 2"},
        {WORKER_PROTOCOL, 0, 0, 1, "1.2.3", "size: 0"},
        {WORKER_PROTOCOL, 0, 5000, 1, "1.2.3", "size: 5000"},
        {WORKER_PROTOCOL, 0, 1, 0, "1.2.3", "max_seqs: 0"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        m.protocol = wrong[i].protocol;
        m.rank = wrong[i].rank;
        m.size = wrong[i].size;
        m.max_seqs = wrong[i].max_seqs;
        m.version = call_bytes(wrong[i].version, strlen(wrong[i].version));
        assert_false(status_ok(send_config(&m, "1.2.3", &a, &to, &err)));
        if (!strstr(err.text, wrong[i].word)) fail_msg("\"%s\"", err.text);
        arena_destroy(&a);
    }
    arena_destroy(&packing);
}

/* Numbers are neither truncated to a byte nor accepted beyond what a machine could have. */
static void absurd_numbers_are_refused(void **state)
{
    (void)state;
    arena packing, a;
    configure_message m;
    worker_config from = a_config(), to;
    error err = {{0}};
    arena_init(&packing, 4096, 0);
    assert_true(status_ok(config_pack(&from, 5, "1.2.3", &packing, &m)));
#define WRONG_CONFIG(field, value, word)                                                           \
    do {                                                                                           \
        configure_message wrong = m;                                                               \
        wrong.field = value;                                                                       \
        assert_false(status_ok(send_config(&wrong, "1.2.3", &a, &to, &err)));                      \
        if (!strstr(err.text, word)) fail_msg("%s: \"%s\"", #field, err.text);                     \
        arena_destroy(&a);                                                                         \
    } while (0)
    WRONG_CONFIG(quant_bits, 260, "quant_bits: 260 is not 0, 4 or 8");
    WRONG_CONFIG(quant_bits, 2, "quant_bits: 2 is not 0, 4 or 8");
    WRONG_CONFIG(silence_ms, 0, "silence_ms: 0 is not 1 to 7200000");
    WRONG_CONFIG(silence_ms, 7200001, "silence_ms: 7200001 is not 1 to 7200000");
    WRONG_CONFIG(quant_attention, UINT32_MAX, "quant_attention: 4294967295 is not 0, 4 or 8");
    WRONG_CONFIG(quant_group, 0, "quant_group: 0 is not 32, 64 or 128");
    WRONG_CONFIG(quant_group, 320, "quant_group: 320 is not 32, 64 or 128");
    WRONG_CONFIG(n_threads, 1025, "n_threads: 1025 is above 1024");
    arena_destroy(&packing);
}

static void results_of_a_rank_are_checked(void **state)
{
    (void)state;
    arena a;
    load_message m;
    rank_facts out;
    error err = {{0}};
    worker_config config = a_config();
    worker_facts facts = {.device = "cpu, avx2",
                          .n_threads = 2,
                          .pool_bytes = 1 << 20,
                          .disk_bytes = 9,
                          .sums = "by kernels"};
    arena_init(&a, 4096, 0);
    assert_true(status_ok(load_pack(&info, &facts, &a, &m)));
    if (!status_ok(load_unpack(&m, &config, &out, &err))) fail_msg("%s", err.text);
    assert_string_equal(out.info.name, "test");
    assert_string_equal(out.facts.device, "cpu, avx2");
    assert_string_equal(out.facts.sums, "by kernels");
    assert_int_equal(out.facts.disk_bytes, 9);
    assert_memory_equal(&out.info.geometry, &info.geometry, sizeof info.geometry);
    assert_true(out.info.identity == 77 && out.info.n_pages == PAGES);
    assert_int_equal(out.info.max_in_flight, 2);

#define WRONG_RANK(field, value, word)                                                             \
    do {                                                                                           \
        load_message wrong = m;                                                                    \
        geometry_message geometry = *m.geometry;                                                   \
        wrong.geometry = &geometry;                                                                \
        wrong.field = value;                                                                       \
        assert_false(status_ok(load_unpack(&wrong, &config, &out, &err)));                         \
        if (!strstr(err.text, word)) fail_msg("%s: \"%s\"", #field, err.text);                     \
    } while (0)
    WRONG_RANK(vocab_size, 0, "vocab_size: 0");
    WRONG_RANK(max_rows, 65, "max_rows: 65");
    WRONG_RANK(max_seqs, 15, "max_seqs: 15");
    WRONG_RANK(n_heads, 4097, "n_heads: 4097");
    WRONG_RANK(head_dim, 0, "head_dim: 0");
    WRONG_RANK(n_pages, 1, "n_pages: 1");
    WRONG_RANK(max_in_flight, 0, "max_in_flight: 0");
    WRONG_RANK(max_in_flight, 3, "max_in_flight: 3");
    WRONG_RANK(geometry, NULL, "geometry: it is missing");
    WRONG_RANK(geometry->n_layers, 0, "geometry.n_layers: 0");
    WRONG_RANK(geometry->n_kv_heads, 3, "geometry");
    WRONG_RANK(geometry->page_tokens, 32, "geometry.page_tokens: 32");
    WRONG_RANK(geometry->n_window_layers, 17, "geometry.window_layers: 17");

    /* Cells of a block are equal, fit a message, and are those of so many ranks. */
    uint64_t cells = pkv_groups(&info.geometry) / pkv_shares(&info.geometry);
    assert_int_equal(out.info.block_bytes, 0);
    WRONG_RANK(block_bytes, 1000 * cells + 1, "block_bytes: ");
    m.block_bytes = 1000 * cells;
    m.block_identity = 5;
    m.kv_identity = 6;
    m.kv_kind = 7;
    assert_true(status_ok(load_unpack(&m, &config, &out, &err)));
    assert_int_equal(out.info.block_bytes, 1000 * cells);
    assert_true(out.info.block_identity == 5 && out.info.kv_identity == 6);
    assert_true(out.info.kv_kind == 7);
    m.block_bytes = (cell_bytes_max + 1) * cells;
    assert_true(status_ok(load_unpack(&m, &config, &out, &err)));
    assert_int_equal(out.info.block_bytes, 0);
    arena_destroy(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs_come_out_as_they_went_in),
        cmocka_unit_test(absurd_numbers_are_refused),
        cmocka_unit_test(results_of_a_rank_are_checked),
    };
    return cmocka_run_group_tests_name("rpc_worker_config", tests, NULL, NULL);
}
