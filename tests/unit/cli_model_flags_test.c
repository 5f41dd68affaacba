/* A model opened by flags, alone and as ranks, and remade as a restart does. */
#include "cli/model_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const model_flags demo = {.dir = "models/demo",
                                 .load_format = "auto",
                                 .dtype = "auto",
                                 .kv_dtype = "auto",
                                 .quantize = "none",
                                 .scheduling_policy = "fcfs",
                                 .device = "cpu",
                                 .quantize_group = 32,
                                 .threads = 2,
                                 .tp = 1,
                                 .page_tokens = 16,
                                 .max_batch = 2,
                                 .prefill_chunk = 64};

static void a_restart_makes_the_same_again(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, 8};
    static const uint64_t memories[] = {4 << 20, (4 << 20) + 12345, 0}; /* 0: the default share */
    for (size_t i = 0; i < 3; i++) {
        for (size_t j = 0; j < 3; j++) {
            model_flags f = demo;
            loaded_model m;
            error err = {{0}};
            f.tp = counts[i];
            f.kv_memory = memories[j];
            if (!status_ok(model_open(&f, false, &m, &err))) fail_msg("%s", err.text);
            backend_info before = *m.backend.ops->info(m.backend.ctx);
            backend fresh = {0};
            backend_facts facts = m.facts;
            if (f.kv_memory) assert_true(facts.pool_bytes <= f.kv_memory);
            for (int again = 0; again < 2; again++) {
                if (!status_ok(model_restart(&m, &fresh, &err))) fail_msg("%s", err.text);
                assert_ptr_equal(fresh.ctx, m.backend.ctx);
                const backend_info *info = fresh.ops->info(fresh.ctx);
                assert_int_equal(info->n_pages, before.n_pages);
                assert_true(info->identity == before.identity);
                assert_memory_equal(&info->geometry, &before.geometry, sizeof before.geometry);
                assert_int_equal(m.facts.pool_bytes, facts.pool_bytes);
                assert_int_equal(m.facts.n_threads, facts.n_threads);
            }
            model_close(&m);
        }
    }
}

/* The pool counts the bytes that pages take: 16 tokens of 32 dims, K and V, of a head. */
static void pages_are_of_the_type_asked_for(void **state)
{
    (void)state;
    static const struct {
        const char *dtype, *kv_dtype, *name;
        uint64_t page_bytes;
    } cases[] = {
        {"auto", "auto", "bf16", 2048}, {"f32", "auto", "f32", 4096},
        {"f32", "bf16", "bf16", 2048},  {"auto", "f16", "f16", 2048},
        {"auto", "f32", "f32", 4096},   {"auto", "int8", "int8", 1088},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model_flags f = demo;
        loaded_model m;
        error err = {{0}};
        f.dtype = cases[i].dtype;
        f.kv_dtype = cases[i].kv_dtype;
        f.kv_memory = 4 << 20;
        if (!status_ok(model_open(&f, false, &m, &err))) fail_msg("%s", err.text);
        assert_string_equal(kern_kv_name(m.kv_type), cases[i].name);
        assert_int_equal(m.facts.page_bytes, cases[i].page_bytes);
        size_t groups = pkv_groups(&m.backend.ops->info(m.backend.ctx)->geometry);
        assert_int_equal(m.backend.ops->info(m.backend.ctx)->n_pages,
                         (4 << 20) / (cases[i].page_bytes * groups) * groups);
        model_close(&m);
    }
}

static void a_cache_goes_with_files(void **state)
{
    (void)state;
    static const char *const quantised[] = {"none", "auto", "int4"};
    for (size_t i = 0; i < 3; i++) {
        model_flags f = demo;
        loaded_model m;
        error err = {{0}};
        f.weights_cache = "no/such/folder";
        f.quantize = quantised[i];
        assert_true(status_ok(model_open(&f, false, &m, &err))); /* it says that none was kept */
        model_close(&m);
        f.load_format = "dummy";
        assert_int_equal(model_open(&f, false, &m, &err).code, STATUS_INVALID);
        assert_non_null(strstr(err.text, "--weights-cache: "));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restart_makes_the_same_again),
        cmocka_unit_test(pages_are_of_the_type_asked_for),
        cmocka_unit_test(a_cache_goes_with_files),
    };
    return cmocka_run_group_tests_name("cli_model_flags", tests, NULL, NULL);
}
