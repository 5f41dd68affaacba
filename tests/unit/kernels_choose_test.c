/* The default instruction set: the table of measured CPUs, and what timings on others decide. */
#include "kernels/choose.h"
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

/* Rows as in the table: ref, avx2, avx512, avx512vnni, avx512bf16, amx. */
enum { REF, AVX2, AVX512, VNNI, BF16, AMX, ROWS };

static void test_measured_models(void **state)
{
    (void)state;
    const kern_cpu zen5 = {"AuthenticAMD", 26, 2}, rapids = {"GenuineIntel", 6, 143};
    const kern_cpu other_vendor = {"GenuineIntel", 26, 2}, other_model = {"AuthenticAMD", 26, 3};
    assert_string_equal(kern_cpu_slow_isa(&zen5), "");
    assert_string_equal(kern_cpu_slow_isa(&rapids), "avx512bf16");
    assert_null(kern_cpu_slow_isa(&other_vendor));
    assert_null(kern_cpu_slow_isa(&other_model));
}

static void test_fastest_of_timings(void **state)
{
    (void)state;
    /* Each row is faster in a type, as on Zen 5. */
    kern_isa_times t[ROWS] = {[AVX2] = {true, 400, 400},
                              [AVX512] = {true, 200, 210},
                              [VNNI] = {true, 205, 60},
                              [BF16] = {true, 100, 63}};
    assert_int_equal(kern_isa_fastest(t, ROWS), BF16);
    /* vdpbf16ps at a third of the rate of f32, as on Sapphire Rapids; then with AMX. */
    t[BF16].bf16_ns = 600;
    assert_int_equal(kern_isa_fastest(t, ROWS), VNNI);
    t[AMX] = (kern_isa_times){true, 30, 30};
    assert_int_equal(kern_isa_fastest(t, ROWS), AMX);
    /* Wider registers at half of the clock gain nothing; the later of equals is kept. */
    kern_isa_times equal[ROWS] = {[AVX2] = {true, 200, 200}, [AVX512] = {true, 215, 190}};
    assert_int_equal(kern_isa_fastest(equal, ROWS), AVX512);
    equal[AVX512].bf16_ns = 300;
    assert_int_equal(kern_isa_fastest(equal, ROWS), AVX2);
    /* An instruction set that does not run is never taken. */
    kern_isa_times none[ROWS] = {0};
    assert_int_equal(kern_isa_fastest(none, ROWS), ROWS);
}

/* Timings themselves are not judged, because the machine may be busy. */
static void test_unknown_model_is_measured(void **state)
{
    (void)state;
    const kern_cpu unknown = {"of nobody", 1, 1};
    size_t n = kern_isa_count(), n_runs = 0, row = n;
    kern_isa_times times[KERN_ISAS_MOST];
    assert_true(status_ok(kern_isa_measure(times, n)));
    for (size_t i = 0; i < n; i++) {
        bool runs;
        kern_isa_at(i, &runs);
        assert_int_equal(times[i].runs, runs && i != REF);
        assert_int_equal(times[i].bf16_ns > 0, times[i].runs);
        assert_int_equal(times[i].int8_ns > 0, times[i].runs);
        n_runs += runs;
    }
    assert_true(status_ok(kern_isa_choose(&unknown, &row)));
    assert_true(row < n);
    bool runs;
    kern_isa_at(row, &runs);
    assert_true(runs);
    assert_int_equal(row == REF, n_runs == 1);
}

static void test_slow_isa_is_passed_over(void **state)
{
    (void)state;
    const kern_cpu zen5 = {"AuthenticAMD", 26, 2}, rapids = {"GenuineIntel", 6, 143};
    size_t row;
    bool has_bf16, has_amx = false;
    size_t n = kern_isa_count();
    if (n <= BF16) return; /* not an x86-64 CPU */
    assert_string_equal(kern_isa_at(BF16, &has_bf16), "avx512bf16");
    kern_isa_at(AMX, &has_amx);
    if (!has_bf16 || has_amx) return;
    assert_true(status_ok(kern_isa_choose(&zen5, &row)));
    assert_int_equal(row, BF16);
    assert_true(status_ok(kern_isa_choose(&rapids, &row)));
    assert_int_equal(row, VNNI);
}

/* A context is made of an ISA that runs here alone, and its facts are known of every one. */
static void test_isa_that_is_not_here(void **state)
{
    (void)state;
    thread_pool *pool;
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 1}, &pool)));
    for (size_t i = 0; i < kern_isa_count(); i++) {
        bool runs;
        char expected[64];
        error err = {{0}};
        kern_quant floats;
        kern_context *kc = NULL;
        const kern_options o = {.pool = pool, .isa = kern_isa_at(i, &runs)};
        assert_true(status_ok(kern_block_floats_of(&o, DTYPE_BF16, &floats, &err)));
        assert_int_equal(floats.bits, i == AVX2 ? 12 : 0);
        assert_int_equal(kern_create(&o, &kc, &err).code, runs ? STATUS_OK : STATUS_UNSUPPORTED);
        snprintf(expected, sizeof expected, "isa %s: this CPU lacks it", o.isa);
        if (runs) assert_int_equal(kern_block_floats(kc, DTYPE_BF16).bits, floats.bits);
        else assert_string_equal(err.text, expected);
        kern_destroy(kc);
    }
    thread_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured_models),
        cmocka_unit_test(test_fastest_of_timings),
        cmocka_unit_test(test_unknown_model_is_measured),
        cmocka_unit_test(test_slow_isa_is_passed_over),
        cmocka_unit_test(test_isa_that_is_not_here),
    };
    return cmocka_run_group_tests_name("kernels_choose", tests, NULL, NULL);
}
