/* Weights that are not finite are found anywhere, and named when a model is loaded. */
#include "model/load/finite.h"
#include "model/load/weights.h"
#include "tests/unit/model_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { ROWS = 37, COLS = 19 };

static void put(uint8_t *data, dtype type, size_t i, float v)
{
    uint16_t half = type == DTYPE_BF16 ? bf16_from_f32(v) : f16_from_f32(v);
    if (type == DTYPE_F32) memcpy(data + 4 * i, &v, 4);
    else memcpy(data + 2 * i, &half, 2);
}

/* The largest values of a type are finite, and elements outside the columns are not checked. */
static void every_element_is_looked_at(void **state)
{
    (void)state;
    const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    uint8_t bytes[ROWS * COLS * 4 + 1], *data = bytes + 1; /* at an odd address */
    for (size_t t = 0; t < 3; t++) {
        finite_rows rows = {data, types[t], ROWS, COLS, 3, COLS - 5};
        for (size_t i = 0; i < ROWS * COLS; i++) put(data, types[t], i, i % 2 ? -65504.0f : 0.0f);
        for (size_t i = 0; i < ROWS * COLS; i++) {
            size_t row = 0, col = i % COLS;
            put(data, types[t], i, bad[i % 3]);
            bool looked_at = col >= 3 && col < COLS - 2;
            assert_true(rows_are_finite(&rows, NULL, &row) == !looked_at);
            if (looked_at) assert_int_equal(row, i / COLS);
            put(data, types[t], i, 1.0f);
        }
    }
}

static void the_first_row_is_reported(void **state)
{
    (void)state;
    thread_pool *pool;
    thread_pool_options o = {.n_threads = 3};
    assert_true(status_ok(thread_pool_create(&o, &pool)));
    static uint8_t data[1000 * 8 * 2];
    for (size_t i = 999; i > 20; i -= 7) {
        size_t row = 0;
        put(data, DTYPE_BF16, i * 8 + i % 8, NAN);
        finite_rows rows = {data, DTYPE_BF16, 1000, 8, 0, 8};
        assert_false(rows_are_finite(&rows, pool, &row));
        assert_int_equal(row, i);
    }
    thread_pool_destroy(pool);
}

static status load(const folder *f, error *err)
{
    model_config config;
    kern_context *kernels;
    model_weights w;
    thread_pool *pool;
    RETURN_IF_ERROR(model_config_load(f->dir, NULL, 0, &config, err));
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 1}, &pool)));
    kern_options k = {.pool = pool};
    assert_true(status_ok(kern_create(&k, &kernels, err)));
    weights_options o = {
        .dir = f->dir, .config = &config, .type = DTYPE_BF16, .kernels = kernels, .size = 1};
    status s = weights_load(&o, &w, err);
    if (status_ok(s)) weights_destroy(&w);
    kern_destroy(kernels);
    thread_pool_destroy(pool);
    return s;
}

static void a_model_is_refused_by_name(void **state)
{
    (void)state;
    char *config, *weights;
    size_t n_config, n;
    error err = {""};
    folder f;
    assert_true(status_ok(file_read("models/demo/config.json", 1 << 20, &config, &n_config, &err)));
    assert_true(
        status_ok(file_read("models/demo/model.safetensors", 64 << 20, &weights, &n, &err)));
    folder_make(&f);
    folder_write(&f, "config.json", config, n_config);
    folder_write(&f, "model.safetensors", weights, n);
    if (!status_ok(load(&f, &err))) fail_msg("%s", err.text);
    put((uint8_t *)weights, DTYPE_BF16, n / 2 - 1, NAN); /* the last element of the last tensor */
    folder_write(&f, "model.safetensors", weights, n);
    assert_int_equal(load(&f, &err).code, STATUS_CORRUPT);
    if (!strstr(err.text, ": tensor \"model.") || !strstr(err.text, "holds NaN or infinity"))
        fail_msg("%s", err.text);
    folder_remove(&f);
    free(config);
    free(weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_looked_at),
        cmocka_unit_test(the_first_row_is_reported),
        cmocka_unit_test(a_model_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
