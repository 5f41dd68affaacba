/* Which bf16 matrices of a model become block floats: those that products read and whose columns
 * are whole groups. */
#include "model/load/weights.h"
#include "tests/unit/model_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const kern_quant block_floats = {12, 64};

typedef struct fixture {
    thread_pool *pool;
    kern_context *kernels;
    folder cache;
} fixture;

static int setup(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 2}, &x->pool)));
    kern_options options = {.pool = x->pool};
    assert_true(status_ok(kern_create(&options, &x->kernels, NULL)));
    folder_make(&x->cache);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    fixture *x = *state;
    kern_destroy(x->kernels);
    thread_pool_destroy(x->pool);
    folder_remove(&x->cache);
    free(x);
    return 0;
}

/* Sets what to load: a folder with JSON over its config.json, which lives as long as *c. */
static weights_options wanted(fixture *x, const char *dir, const char *const *overrides, size_t n,
                              model_config *c)
{
    assert_true(status_ok(model_config_load(dir, overrides, n, c, NULL)));
    return (weights_options){.dir = dir,
                             .config = c,
                             .type = DTYPE_BF16,
                             .block_floats = block_floats,
                             .kernels = x->kernels,
                             .pool = x->pool,
                             .size = 1};
}

static model_weights loaded(const weights_options *o)
{
    model_weights w;
    weights_measures m;
    error err = {""};
    if (!status_ok(weights_load(o, &w, &err))) fail_msg("%s", err.text);
    assert_true(status_ok(weights_measure(o, &m, NULL)));
    assert_true(m.bytes == w.bytes);
    return w;
}

static void matrices_with_whole_groups(void **state)
{
    fixture *x = *state;
    model_config c;
    weights_options o = wanted(x, "models/demo", NULL, 0, &c);
    model_weights w = loaded(&o);
    for (uint32_t l = 0; l < c.n_layers; l++) {
        const layer_weights *layer = &w.layers[l];
        const kern_matrix *all[] = {&layer->qkv, &layer->o, &layer->gate_up, &layer->down};
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(all[i]->quant.bits, 12);
            assert_int_equal(all[i]->quant.group, 64);
        }
    }
    /* The embeddings are the head, too. */
    assert_int_equal(w.embed.quant.bits, 12);
    assert_ptr_equal(w.head.data, w.embed.data);

    /* Half of a row of `down` is 352 columns. The whole's groups are cut nowhere else. */
    o.size = 2;
    for (o.rank = 0; o.rank < 2; o.rank++) {
        model_weights half = loaded(&o);
        const layer_weights *layer = &half.layers[1];
        assert_int_equal(layer->down.quant.bits, 0);
        assert_int_equal(layer->o.quant.bits, 12);
        float all[256], some[128];
        kern_matrix_row(x->kernels, &w.layers[1].o, 3, all);
        kern_matrix_row(x->kernels, &layer->o, 3, some);
        assert_memory_equal(all + o.rank * 128, some, sizeof some);
        assert_true(half.identity == w.identity);
        weights_destroy(&half);
    }
    weights_destroy(&w);
}

static void other_types_stay(void **state)
{
    fixture *x = *state;
    model_config c;
    weights_options o = wanted(x, "models/demo", NULL, 0, &c);
    const dtype types[] = {DTYPE_F32, DTYPE_F16};
    for (size_t i = 0; i < 2; i++) {
        o.type = types[i];
        model_weights w = loaded(&o);
        assert_int_equal(w.layers[0].gate_up.quant.bits, 0);
        assert_int_equal(w.embed.quant.bits, 0);
        weights_destroy(&w);
    }
    o.type = DTYPE_BF16;
    o.quant = (kern_quant){8, 32};
    model_weights w = loaded(&o);
    assert_int_equal(w.layers[0].gate_up.quant.bits, 8);
    assert_int_equal(w.embed.quant.bits, 0);
    weights_destroy(&w);
    o.quant = o.block_floats = (kern_quant){0};
    w = loaded(&o);
    assert_int_equal(w.layers[0].gate_up.quant.bits, 0);
    weights_destroy(&w);
}

/* Routers choose experts, so they stay as they are, and so do embeddings that are only looked
 * up. */
static void experts_without_their_router(void **state)
{
    fixture *x = *state;
    static const char *const sizes[] = {"hidden_size=128", "intermediate_size=192"};
    model_config c;
    weights_options o = wanted(x, "tests/golden/models/mixtral_three_bf16", sizes, 2, &c);
    o.dummy = true;
    model_weights w = loaded(&o);
    for (uint32_t l = 0; l < c.n_layers; l++) {
        assert_int_equal(w.layers[l].router.quant.bits, 0);
        for (uint32_t e = 0; e < c.n_experts; e++) {
            assert_int_equal(w.layers[l].experts[e].gate_up.quant.bits, 12);
            assert_int_equal(w.layers[l].experts[e].down.quant.bits, 12);
        }
    }
    assert_int_equal(w.embed.quant.bits, 0);
    assert_int_equal(w.head.quant.bits, 12);
    weights_destroy(&w);
}

/* A cache of one form is not read as the other, and both stay in the folder. */
static void each_form_has_its_cache(void **state)
{
    fixture *x = *state;
    model_config c;
    weights_options o = wanted(x, "models/demo", NULL, 0, &c);
    o.cache_dir = x->cache.dir;
    for (int i = 0; i < 4; i++) {
        o.block_floats = i % 2 ? (kern_quant){0} : block_floats;
        model_weights w = loaded(&o);
        assert_true(w.from_cache == (i >= 2));
        assert_int_equal(w.layers[0].o.quant.bits, o.block_floats.bits);
        weights_destroy(&w);
    }
}

/* Kernels that prefer block floats and others read one cache of what has none. */
static void other_caches_are_shared(void **state)
{
    fixture *x = *state;
    model_config c;
    weights_options o = wanted(x, "models/demo", NULL, 0, &c);
    o.cache_dir = x->cache.dir;
    for (int form = 0; form < 2; form++) {
        o.quant = form == 0 ? (kern_quant){8, 32} : (kern_quant){0};
        o.type = form == 0 ? DTYPE_BF16 : DTYPE_F16;
        for (int i = 0; i < 2; i++) {
            o.block_floats = i ? (kern_quant){0} : block_floats;
            model_weights w = loaded(&o);
            assert_true(w.from_cache == (i == 1));
            weights_destroy(&w);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_with_whole_groups), cmocka_unit_test(other_types_stay),
        cmocka_unit_test(experts_without_their_router), cmocka_unit_test(each_form_has_its_cache),
        cmocka_unit_test(other_caches_are_shared)};
    return cmocka_run_group_tests_name("block floats", tests, setup, teardown);
}
