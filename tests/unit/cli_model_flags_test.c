/* A model opened by flags, alone and as ranks, and made anew as a restart does it. */
#include "cli/model_flags.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const model_flags demo = {.dir = "models/demo",
                                 .load_format = "auto",
                                 .dtype = "auto",
                                 .quantize = "none",
                                 .quantize_group = 32,
                                 .threads = 2,
                                 .tp = 1,
                                 .page_tokens = 16,
                                 .kv_group_layers = 1,
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
            backend_cpu_facts facts = m.facts;
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_restart_makes_the_same_again)};
    return cmocka_run_group_tests_name("cli_model_flags", tests, NULL, NULL);
}
