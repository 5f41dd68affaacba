/* Masses by page of rows that read few blocks, on the CPU backend: which pages have one, how large
 * it is, and that measuring changes nothing. */
#include "tests/unit/model_pass.h"

enum { TOKENS = 203, PROMPT = 187, PAGES = (TOKENS + 15) / 16 };

/* Dummy weights: 3 layers, 8 KV heads of one query head. */
static const pass shape = {
    .dir = "tests/golden/models/gqa4_tied_f32",
    .override = "num_key_value_heads=8",
    .kv_type = KERN_KV_F32,
    .precision = KERN_PRECISION_HIGH,
    .page_tokens = 16,
    .layers_per_group = 1,
    .heads_per_group = 1,
    .chunk = TOKENS,
    .n_threads = 2,
    .n_prompt = PROMPT,
    .mass_rows = 1,
    .layer_step = 1,
};

static const retrieval_spec spec = {.block_tokens = 16,
                                    .representative_num = 1,
                                    .group_heads = 1,
                                    .initial_tokens = 1,
                                    .local_tokens = 20,
                                    .top_blocks = 2,
                                    .layer_step = 1,
                                    .token_step = 1};

static retrieval_spec spec_of(retrieval_heads heads)
{
    retrieval_spec s = spec;
    s.heads = heads;
    s.group_heads = heads == RETRIEVAL_GROUP ? 2 : 1;
    s.block_tokens = heads == RETRIEVAL_SHARED ? 32 : 16;
    s.layer_step = 1 + (heads == RETRIEVAL_SHARED);
    s.token_step = 1 + 2 * (uint32_t)heads;
    return s;
}

static void get_tokens(const pass *p, uint32_t *tokens)
{
    error err;
    model_config config;
    assert_true(
        status_ok(model_config_load(p->dir, &p->override, p->override != NULL, &config, &err)));
    random_tokens(tokens, TOKENS, config.vocab_size);
}

static uint32_t tokens_of_page(uint32_t page)
{
    return page + 1 < PAGES ? 16 : TOKENS - 16 * (PAGES - 1);
}

/* The pages with a mass are those that the row's reading counts, and the mass of all of them in a
 * layer and KV head is that of its query heads. */
static void check_reads(const pass_result *r, uint32_t together)
{
    uint32_t heads = r->config.n_kv_heads, q_heads = r->config.n_heads / heads;
    uint64_t tokens = 0;
    const float *mass = r->mass;
    assert_int_equal(r->mass_floats, r->config.n_layers * heads * PAGES);
    for (uint32_t i = 0; i < r->config.n_layers * heads; i++, mass += PAGES) {
        double sum = 0;
        for (uint32_t page = 0; page < PAGES; page++) {
            if (mass[page] < 0) continue;
            sum += mass[page];
            if (i % heads % together == 0) tokens += tokens_of_page(page);
        }
        assert_true(fabs(sum - q_heads) < 1e-4);
        assert_true(mass[0] >= 0 && mass[PAGES - 1] >= 0); /* the first block, and its own */
    }
    const retrieval_reading *reading = &r->readings[TOKENS - 1];
    assert_int_equal(reading->lists, r->config.n_layers * heads / together);
    assert_int_equal(tokens, reading->tokens);
    assert_true(tokens < (uint64_t)reading->lists * TOKENS);
}

/* In the first layer a row has the query and keys that it has without retrieval, so its masses are
 * in the proportions of those; a KV head has one query head here. */
static void check_first_layer(const pass_result *few, const pass_result *all)
{
    const float *got = few->mass, *full = all->mass;
    for (uint32_t h = 0; h < few->config.n_kv_heads; h++, got += PAGES, full += PAGES) {
        double read = 0;
        for (uint32_t page = 0; page < PAGES; page++) read += got[page] >= 0 ? full[page] : 0;
        assert_true(read < 0.999);
        for (uint32_t page = 0; page < PAGES; page++)
            if (got[page] >= 0) assert_true(fabs(got[page] - full[page] / read) < 1e-4);
    }
}

static void masses_say_what_a_row_reads(void **state)
{
    (void)state;
    uint32_t tokens[TOKENS];
    get_tokens(&shape, tokens);
    pass_result all = run(&shape, tokens, TOKENS);
    size_t bytes = (size_t)TOKENS * all.config.vocab_size * sizeof(float);
    for (retrieval_heads heads = 0; heads < RETRIEVAL_HEAD_MODES; heads++) {
        pass p = shape;
        p.retrieval = spec_of(heads);
        pass_result got = run(&p, tokens, TOKENS);
        check_reads(&got, heads == RETRIEVAL_SHARED ? 8 : p.retrieval.group_heads);
        check_first_layer(&got, &all);
        p.mass_rows = 0;
        pass_result plain = run(&p, tokens, TOKENS);
        assert_memory_equal(plain.logits, got.logits, bytes);
        result_free(&plain);
        result_free(&got);
    }
    result_free(&all);
}

/* Layers that read everything measure all pages. */
static void dense_layers_read_all(void **state)
{
    (void)state;
    uint32_t tokens[TOKENS];
    pass p = shape;
    p.retrieval = spec_of(RETRIEVAL_SEPARATE);
    p.retrieval.dense_layers = 1;
    get_tokens(&p, tokens);
    pass_result got = run(&p, tokens, TOKENS);
    uint32_t unread = 0, layer = got.config.n_kv_heads * PAGES;
    for (size_t i = 0; i < got.mass_floats; i++) {
        if (i < layer) assert_true(got.mass[i] >= 0);
        else unread += got.mass[i] < 0;
    }
    assert_true(unread > 0);
    result_free(&got);
}

/* Ranks that hold a KV head together each have the mass of their own query heads. */
static void ranks_measure_what_one_does(void **state)
{
    (void)state;
    for (retrieval_heads heads = 0; heads < RETRIEVAL_HEAD_MODES; heads++) {
        uint32_t tokens[TOKENS];
        pass p = shape;
        if (SLOW && heads != RETRIEVAL_GROUP) continue;
        p.dir = "models/demo";
        p.override = NULL;
        p.retrieval = spec_of(heads);
        get_tokens(&p, tokens);
        pass_result one = run(&p, tokens, TOKENS);
        check_reads(&one, heads == RETRIEVAL_SHARED ? 4 : p.retrieval.group_heads);
        for (p.n_ranks = 2; p.n_ranks <= 8; p.n_ranks *= 2) {
            pass_result got = run(&p, tokens, TOKENS);
            assert_int_equal(one.mass_floats, got.mass_floats);
            for (size_t i = 0; i < one.mass_floats; i++) {
                assert_int_equal(one.mass[i] < 0, got.mass[i] < 0);
                if (one.mass[i] >= 0) assert_true(fabsf(one.mass[i] - got.mass[i]) < 1e-4f);
            }
            result_free(&got);
        }
        result_free(&one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masses_say_what_a_row_reads),
        cmocka_unit_test(dense_layers_read_all),
        cmocka_unit_test(ranks_measure_what_one_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
