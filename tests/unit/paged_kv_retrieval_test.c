/* Retrieval: requests and their refusals, and the blocks, layers and tokens of the oracle
 * (tools/retrieval_oracle.py). */
#include "base/half.h"
#include "kernels/represent.h"
#include "paged_kv/retrieval/retrieval.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/retrieval.json"

enum { HEADS_MOST = 8, DIM_MOST = 64, BLOCKS_MOST = 1024 };

static pkv_geometry geometry_of(uint32_t page_tokens, uint32_t n_layers, uint32_t n_kv_heads)
{
    return (pkv_geometry){.page_tokens = page_tokens,
                          .n_layers = n_layers,
                          .n_kv_heads = n_kv_heads,
                          .layers_per_group = 1,
                          .heads_per_group = 1};
}

static json_t *read_golden(const char *list)
{
    json_t *all;
    error err;
    if (!status_ok(json_read_file(GOLDEN, 1 << 20, &all, &err))) fail_msg("%s", err.text);
    json_t *rows = json_incref(json_object_get(all, list));
    json_decref(all);
    assert_true(json_array_size(rows) > 0);
    return rows;
}

static uint32_t number(const json_t *row, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(row, key));
}

static retrieval_spec spec_of(const json_t *row, const pkv_geometry *g)
{
    retrieval_spec spec;
    error err;
    if (!status_ok(retrieval_parse(json_object_get(row, "retrieval"), g, &spec, &err)))
        fail_msg("%s", err.text);
    return spec;
}

static void assert_list(const json_t *want, const uint32_t *have, uint32_t n)
{
    assert_int_equal(json_array_size(want), n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(json_integer_value(json_array_get(want, i)), have[i]);
}

/* ---- requests -------------------------------------------------------------------------------- */

static status parse_text(const char *text, const pkv_geometry *g, retrieval_spec *out, error *err)
{
    json_t *json;
    assert_true(status_ok(json_read_text("test", text, strlen(text), &json, NULL)));
    status s = retrieval_parse(json, g, out, err);
    json_decref(json);
    return s;
}

static void every_row_of_the_tables_can_be_asked_for(void **state)
{
    (void)state;
    const pkv_geometry g = geometry_of(16, 4, 4);
    size_t n;
    const retrieval_preset *presets = retrieval_presets(&n);
    for (size_t i = 0; i < n; i++) {
        char text[256];
        retrieval_spec spec;
        error err;
        assert_ptr_equal(retrieval_find(presets[i].name), &presets[i]);
        assert_true(presets[i].summary[0] && presets[i].source[0]);
        snprintf(text, sizeof text, "{\"method\":\"%s\"}", presets[i].name);
        if (!status_ok(parse_text(text, &g, &spec, &err))) fail_msg("%s", err.text);
        assert_memory_equal(&spec, &presets[i].defaults, sizeof spec);
    }
    assert_null(retrieval_find("no-such-method"));
    for (retrieval_part part = 0; part < RETRIEVAL_PARTS; part++) {
        for (size_t i = 0; i < retrieval_part_size(part); i++) {
            retrieval_option o = retrieval_part_option(part, i);
            const char *const names[] = {o.name, o.alias ? o.alias : o.name};
            assert_true(o.summary[0]);
            for (int a = 0; a < 2; a++) {
                char text[256];
                retrieval_spec spec;
                snprintf(text, sizeof text, "{\"method\":\"quest\",\"%s\":\"%s\"}",
                         retrieval_part_name(part), names[a]);
                assert_true(status_ok(parse_text(text, &g, &spec, NULL)));
                assert_int_equal(part == RETRIEVAL_PART_HEADS ? (size_t)spec.heads
                                                              : (size_t)spec.representative,
                                 i);
            }
        }
    }
}

static void fields_have_ktransformers_names_too(void **state)
{
    (void)state;
    const pkv_geometry g = geometry_of(16, 8, 4);
    retrieval_spec own, theirs;
    assert_true(status_ok(parse_text(
        "{\"method\":\"ktransformers\",\"block_tokens\":64,\"second_block_count\":9,"
        "\"representative_type\":\"FIX\",\"representative_num\":3,\"token_step\":4,"
        "\"layer_step\":2,\"dense_layer_num\":1,\"initial_tokens\":70,\"local_windows_len\":512,"
        "\"head_select_mode\":\"GROUP\",\"group_heads\":2,\"preselect_block\":true}",
        &g, &own, NULL)));
    const retrieval_spec want = {.block_tokens = 64,
                                 .representative = RETRIEVAL_FIX,
                                 .representative_num = 3,
                                 .heads = RETRIEVAL_GROUP,
                                 .group_heads = 2,
                                 .initial_tokens = 70,
                                 .local_tokens = 512,
                                 .top_blocks = 9,
                                 .preselect_blocks = 96,
                                 .observed_rows = 8,
                                 .dense_layers = 1,
                                 .layer_step = 2,
                                 .token_step = 4};
    assert_memory_equal(&own, &want, sizeof want);
    assert_true(status_ok(parse_text(
        "{\"method\":\"ktransformers\",\"block_size\":64,\"second_select_num\":9,\"anchor_type\":"
        "\"FIXED\",\"anchor_num\":3,\"token_step\":4,\"layer_step\":2,\"dense_layer_num\":1,"
        "\"initial_tokens\":70,\"local_windows_len\":512,\"head_select_mode\":\"GROUP\","
        "\"group_heads\":2,\"block_tokens\":null,\"preselect_block_count\":96,\"preselect\":true}",
        &g, &theirs, NULL)));
    assert_memory_equal(&theirs, &want, sizeof want);
    assert_true(status_ok(parse_text("null", &g, &own, NULL)));
    assert_int_equal(own.block_tokens, 0);
    assert_true(
        status_ok(parse_text("{\"method\":\"quest\",\"anchor_type\":\"FIX\"}", &g, &own, NULL)));
    assert_int_equal(own.representative_num, 5);
    assert_true(status_ok(
        parse_text("{\"method\":\"quest\",\"epsilon\":0.5,\"audit\":7}", &g, &own, NULL)));
    assert_true(own.epsilon == 0.5f && own.audit == 7);
    assert_int_equal(own.top_blocks, INT32_MAX);
    assert_true(status_ok(parse_text(
        "{\"method\":\"quest\",\"epsilon\":0.5,\"second_select_num\":3}", &g, &own, NULL)));
    assert_int_equal(own.top_blocks, 3);
}

/* At 16,512 tokens the blocks are shared out as the presets have them, with pages of any size. */
static void tokens_share_out_the_blocks(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t block, local, top;
    } cases[] = {
        {"{\"method\":\"quest\",\"tokens\":16512}", 128, 4096, 96},
        {"{\"method\":\"quest\",\"tokens\":4096}", 128, 7 * 128, 24},
        {"{\"method\":\"quest\",\"tokens\":4223}", 128, 7 * 128, 24},
        {"{\"method\":\"quest\",\"tokens\":384}", 128, 128, 1},
        {"{\"method\":\"quest\",\"tokens\":256,\"initial_tokens\":0}", 128, 128, 1},
        {"{\"tokens\":160,\"block_size\":16,\"initial_tokens\":17,\"method\":\"dynamic\"}", 16, 32,
         6},
        {"{\"method\":\"quest\",\"tokens\":2147483647,\"block_size\":16}", 16, 536870896,
         100663295},
        {"{\"method\":\"quest\",\"tokens\":1152,\"epsilon\":0.5}", 128, 256, 6},
    };
    const pkv_geometry g = geometry_of(16, 4, 4);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        retrieval_spec spec;
        error err;
        if (!status_ok(parse_text(cases[i].text, &g, &spec, &err))) fail_msg("%s", err.text);
        assert_int_equal(spec.block_tokens, cases[i].block);
        assert_int_equal(spec.local_tokens, cases[i].local);
        assert_int_equal(spec.top_blocks, cases[i].top);
        assert_true(status_ok(retrieval_spec_check(&spec, &g, &err)));
    }
    retrieval_spec spec;
    assert_true(status_ok(parse_text(cases[1].text, &g, &spec, NULL)));
    assert_int_equal(retrieval_tokens_read(&spec, 99999, 100000), 4096 + 100000 % 128);
    const pkv_geometry large = geometry_of(256, 4, 4);
    assert_true(status_ok(parse_text(cases[1].text, &large, &spec, NULL)));
    assert_int_equal(retrieval_tokens_read(&spec, 99999, 100000), 4096 + 100000 % 256);
}

/* An allocator of JSON values that has no memory. */
static void *no_memory(size_t n)
{
    (void)n;
    return NULL;
}

static void one_word_names_a_method(void **state)
{
    (void)state;
    static const char *const forms[][2] = {
        {"quest", "{\"method\":\"quest\"}"},
        {"quest:4096", "{\"method\":\"quest\",\"tokens\":4096}"},
        {"quest:2147483647", "{\"method\":\"quest\",\"tokens\":2147483647}"},
        {"{\"method\":\"dynamic\",\"audit\":7}", "{\"method\":\"dynamic\",\"audit\":7}"},
    };
    static const char *const refused[] = {
        "",          ":4096",       "quest:",           "quest:0",
        "quest:+16", "quest:4096 ", "quest:2147483648", "quest:99999999999999999999999"};
    error err;
    json_t *json;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        json_t *wanted;
        assert_true(status_ok(retrieval_read_text("--retrieval", forms[i][0], &json, &err)));
        assert_true(
            status_ok(json_read_text("test", forms[i][1], strlen(forms[i][1]), &wanted, NULL)));
        assert_true(json_equal(json, wanted));
        json_decref(wanted);
        json_decref(json);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char want[160];
        snprintf(want, sizeof want,
                 "--retrieval: '%s' must be METHOD or METHOD:TOKENS, such as quest:4096, or a JSON "
                 "object (methods: ktransformers, quest, dynamic)",
                 refused[i]);
        assert_int_equal(retrieval_read_text("--retrieval", refused[i], &json, &err).code,
                         STATUS_INVALID);
        assert_string_equal(err.text, want);
    }
    assert_int_equal(retrieval_read_text("r", "{\"method\"", &json, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "r: line 1"));
    assert_int_equal(retrieval_read_text("r", "\xff:1", &json, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "r: is not UTF-8");
    static const char *const words[] = {"quest", "quest:4096"};
    json_set_alloc_funcs(no_memory, free);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(retrieval_read_text("r", words[i], &json, &err).code, STATUS_NO_MEMORY);
        assert_string_equal(err.text, "r: out of memory");
    }
    json_set_alloc_funcs(malloc, free);
}

static void refusals_name_the_field(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"[]", "retrieval: must be an object, not an array"},
        {"{}", "retrieval.method: must be given"},
        {"{\"method\":\"infllm\"}",
         "retrieval.method: 'infllm' is unknown (have: ktransformers, quest, dynamic)"},
        {"{\"method\":\"quest\",\"threads_num\":64}", "retrieval.threads_num: unknown key"},
        {"{\"method\":\"quest\",\"block_size\":64,\"block_tokens\":64}",
         "retrieval.block_tokens and retrieval.block_size: two names of one field, of which only "
         "one can be given"},
        {"{\"method\":\"quest\",\"block_size\":72}",
         "retrieval.block_tokens is 72: must be a multiple of the server's pages of 16 tokens"},
        {"{\"method\":\"quest\",\"block_size\":8}",
         "retrieval: \"block_size\" is 8, must be between 16 and 4096"},
        {"{\"method\":\"quest\",\"local_windows_len\":0}",
         "retrieval: \"local_windows_len\" is 0, must be between 1 and 2147483647"},
        {"{\"method\":\"quest\",\"second_select_num\":0}",
         "retrieval: \"second_select_num\" is 0, must be between 1 and 2147483647"},
        {"{\"method\":\"quest\",\"dense_layer_num\":5}",
         "retrieval.dense_layer_num is 5: the model has 5 layers that can read less, and one of "
         "them must"},
        {"{\"method\":\"quest\",\"layer_step\":4}",
         "retrieval.layer_step is 4: only 3 layers read less"},
        {"{\"method\":\"quest\",\"group_heads\":2}",
         "retrieval.group_heads: needs head_select_mode 'GROUP'"},
        {"{\"method\":\"quest\",\"head_select_mode\":\"GROUP\",\"group_heads\":3}",
         "retrieval.group_heads is 3: must divide the model's 4 KV heads"},
        {"{\"method\":\"quest\",\"head_select_mode\":\"QHEAD\"}",
         "retrieval.head_select_mode: 'QHEAD' is unknown (have: SHARED, SEPARATE, GROUP)"},
        {"{\"method\":\"quest\",\"anchor_type\":\"LSH\"}",
         "retrieval.anchor_type: 'LSH' is unknown (have: MEAN, MAX, QUEST, FIX, DYNAMIC)"},
        {"{\"method\":\"quest\",\"anchor_num\":2}",
         "retrieval.anchor_num: needs representative_type 'FIX' or 'DYNAMIC'"},
        {"{\"method\":\"quest\",\"preselect_block_count\":8}",
         "retrieval.preselect_block_count: needs preselect_block"},
        {"{\"method\":\"quest\",\"preselect_block\":false,\"preselect_block_count\":8}",
         "retrieval.preselect_block_count: needs preselect_block"},
        {"{\"method\":\"quest\",\"observed_rows\":8}",
         "retrieval.observed_rows: needs preselect_block or representative_type 'DYNAMIC'"},
        {"{\"method\":\"dynamic\",\"observed_rows\":129}",
         "retrieval: \"observed_rows\" is 129, must be between 1 and 128"},
        {"{\"method\":\"quest\",\"preselect_block\":true,\"preselect_block_count\":0}",
         "retrieval: \"preselect_block_count\" is 0, must be between 1 and 2147483647"},
        {"{\"method\":\"dynamic\",\"anchor_num\":65}",
         "retrieval: \"anchor_num\" is 65, must be between 1 and 64"},
        {"{\"method\":\"dynamic\",\"block_size\":16,\"anchor_num\":17}",
         "retrieval.representative_num is 17: a block has 16 tokens"},
        {"{\"method\":\"ktransformers\",\"epsilon\":0.02}",
         "retrieval.epsilon: needs representative_type 'QUEST', layer_step 1, token_step 1 and no "
         "preselection"},
        {"{\"method\":\"quest\",\"epsilon\":0.02,\"layer_step\":2}",
         "retrieval.epsilon: needs representative_type 'QUEST', layer_step 1, token_step 1 and no "
         "preselection"},
        {"{\"method\":\"quest\",\"epsilon\":1}",
         "retrieval: \"epsilon\" is 1, must be between 1e-06 and 0.999"},
        {"{\"method\":\"quest\",\"tokens\":0}",
         "retrieval: \"tokens\" is 0, must be between 1 and 2147483647"},
        {"{\"method\":\"quest\",\"tokens\":383}",
         "retrieval.tokens is 383: must be at least 384, for 1 initial, one local and one selected "
         "block of 128 tokens"},
        {"{\"method\":\"quest\",\"tokens\":4096,\"initial_tokens\":2147483647}",
         "retrieval.tokens is 4096: must be at least 2147483904, for 16777216 initial, one local "
         "and one selected block of 128 tokens"},
        {"{\"method\":\"quest\",\"tokens\":4096,\"second_select_num\":8}",
         "retrieval.tokens and retrieval.second_select_num: only one of them can be given"},
        {"{\"method\":\"quest\",\"second_block_count\":8,\"tokens\":4096}",
         "retrieval.tokens and retrieval.second_block_count: only one of them can be given"},
        {"{\"method\":\"quest\",\"local_windows_len\":8,\"tokens\":4096}",
         "retrieval.tokens and retrieval.local_windows_len: only one of them can be given"},
        {"{\"method\":\"quest\",\"audit\":0}",
         "retrieval: \"audit\" is 0, must be between 1 and 2147483647"},
    };
    pkv_geometry g = geometry_of(16, 6, 4);
    g.window = 32;
    g.window_layers[0] = 2;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        retrieval_spec spec = {.block_tokens = 7};
        error err;
        status s = parse_text(cases[i][0], &g, &spec, &err);
        assert_int_equal(s.code, STATUS_INVALID);
        assert_string_equal(err.text, cases[i][1]);
        assert_int_equal(spec.block_tokens, 7);
    }
    g.window_layers[0] = 63;
    retrieval_spec spec;
    assert_int_equal(parse_text("{\"method\":\"quest\"}", &g, &spec, NULL).code, STATUS_INVALID);
}

/* ---- a table of the oracle ------------------------------------------------------------------- */

/* The oracle's generators: -2, -1.75, … 2, and, for the keys of "fine" cases, -2 to 2 by 1/512. */
static float value_at(uint64_t seed, uint64_t what, uint64_t i)
{
    return (float)((int)(hash_mix64(seed << 48 | what << 40 | i) % 17) - 8) / 4;
}

static float fine_at(uint64_t seed, uint64_t what, uint64_t i)
{
    return (float)((int)(hash_mix64(seed << 48 | what << 40 | i) % 2049) - 1024) / 512;
}

typedef struct tables {
    uint64_t seed;
    uint32_t n_slots, n_prompt, n_heads, q_heads, dim, n_blocks, size;
    bool fine;
    thread_pool *pool;
    kern_context *kc;
    float *q;                     // [heads, q_heads, dim]
    uint16_t *vectors, *smallest; // [blocks of all heads, dim]
    uint32_t *pages;              // [heads, n_blocks] where a block's vectors lie
    float scores[HEADS_MOST][BLOCKS_MOST];
    uint32_t keys[BLOCKS_MOST];
} tables;

/* The slots of a block whose keys a representative sums. */
static void summed_slots(const retrieval_spec *spec, const tables *t, uint32_t head, uint32_t block,
                         uint64_t *slots)
{
    memset(slots, 0xff, RETRIEVAL_BLOCK_MOST / 8);
    if (spec->representative == RETRIEVAL_FIX) retrieval_fixed_slots(spec, slots);
    bool is_late = (block + 1) * t->size > t->n_prompt;
    if (spec->representative != RETRIEVAL_DYNAMIC || is_late) return;
    float mass[RETRIEVAL_BLOCK_MOST];
    for (uint32_t i = 0; i < t->size; i++)
        mass[i] = value_at(t->seed, 3, (uint64_t)head * t->n_slots + block * t->size + i);
    retrieval_dynamic_slots(spec, mass, slots);
}

/* The bf16 next to x, which is not huge, towards `up` or down. */
static uint16_t bf16_beside(float x, bool up)
{
    float above = ldexpf(1, ilogbf(x == 0 ? 1 : x) - 7);
    float steps = x / above; /* a bf16 has 8 bits */
    return bf16_from_f32((up ? ceilf(steps) : floorf(steps)) * above);
}

/* Makes a block's representative of its keys, one dim after the other. */
static void represent(const retrieval_spec *spec, const tables *t, uint32_t head, uint32_t block,
                      size_t at)
{
    uint64_t slots[RETRIEVAL_BLOCK_MOST / 64];
    bool bounds = spec->representative == RETRIEVAL_QUEST || spec->representative == RETRIEVAL_MAX;
    summed_slots(spec, t, head, block, slots);
    for (uint32_t d = 0; d < t->dim; d++) {
        float sum = 0, largest = -INFINITY, smallest = INFINITY;
        for (uint32_t i = 0; i < t->size; i++) {
            uint64_t slot = (uint64_t)head * t->n_slots + block * t->size + i;
            float k = (t->fine ? fine_at : value_at)(t->seed, 2, slot * t->dim + d);
            if (slots[i / 64] >> i % 64 & 1) sum += k;
            largest = fmaxf(largest, k);
            smallest = fminf(smallest, k);
        }
        t->vectors[at + d] = bounds ? bf16_beside(largest, true) : bf16_from_f32(sum);
        t->smallest[at + d] = bf16_beside(smallest, false);
    }
}

/* Blocks of different heads are mixed, so that a wrong place is another head's. */
static tables *make_tables(const json_t *row, const retrieval_spec *spec)
{
    tables *t = calloc(1, sizeof *t);
    error err;
    t->seed = number(row, "seed");
    t->fine = json_is_true(json_object_get(row, "fine"));
    t->n_slots = number(row, "n_slots");
    t->n_prompt = number(row, "n_prompt");
    t->n_heads = number(row, "n_kv_heads");
    t->q_heads = number(row, "q_heads");
    t->dim = number(row, "head_dim");
    t->size = spec->block_tokens;
    t->n_blocks = t->n_slots / t->size;
    assert_true(t->n_heads <= HEADS_MOST && t->dim <= DIM_MOST && t->n_blocks <= BLOCKS_MOST);
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 1}, &t->pool)));
    if (!status_ok(kern_create(&(kern_options){.pool = t->pool}, &t->kc, &err)))
        fail_msg("%s", err.text);
    size_t q = (size_t)t->n_heads * t->q_heads * t->dim, n = (size_t)t->n_heads * t->n_blocks + 1;
    t->q = calloc(q, sizeof *t->q);
    t->pages = calloc(n, sizeof *t->pages);
    t->vectors = calloc(n * t->dim, sizeof *t->vectors);
    t->smallest = calloc(n * t->dim, sizeof *t->smallest);
    for (size_t i = 0; i < q; i++) t->q[i] = value_at(t->seed, 1, i);
    for (uint32_t h = 0; h < t->n_heads; h++)
        for (uint32_t b = 0; b < t->n_blocks; b++) {
            uint32_t at = 1 + (t->n_blocks - 1 - b) * t->n_heads + h;
            t->pages[h * t->n_blocks + b] = at;
            represent(spec, t, h, b, (size_t)at * t->dim);
        }
    return t;
}

/* Scores the candidates for every head. */
static void score_tables(tables *t, const retrieval_spec *spec)
{
    retrieval_extent e = retrieval_extent_of(spec, t->n_prompt, t->n_slots);
    kern_score_item items[HEADS_MOST];
    for (uint32_t h = 0; h < t->n_heads; h++)
        items[h] = (kern_score_item){
            .q = t->q + (size_t)h * t->q_heads * t->dim,
            .pages = t->pages + (size_t)h * t->n_blocks + e.first,
            .vectors = t->vectors,
            .smallest = spec->representative == RETRIEVAL_QUEST ? t->smallest : NULL,
            .scores = t->scores[h],
        };
    const kern_score_batch batch = {.head_dim = t->dim,
                                    .q_heads = t->q_heads,
                                    .block_pages = 1,
                                    .n_blocks = e.end - e.first,
                                    .stride = t->dim,
                                    .items = items,
                                    .n_items = t->n_heads};
    kern_score_blocks(t->kc, &batch);
}

static void free_tables(tables *t)
{
    kern_destroy(t->kc);
    thread_pool_destroy(t->pool);
    free(t->q);
    free(t->pages);
    free(t->vectors);
    free(t->smallest);
    free(t);
}

/* The blocks that heads [first, first + n) leave out, by their masses. */
static uint64_t *preselect(const retrieval_spec *spec, const tables *t, uint32_t first, uint32_t n)
{
    uint32_t n_prompt = t->n_prompt, keys[BLOCKS_MOST], left_out = 0;
    float *mass = calloc(n_prompt, sizeof *mass), pooled[HEADS_MOST][BLOCKS_MOST];
    const float *heads[HEADS_MOST];
    uint64_t *bits = malloc(BLOCKS_MOST / 8);
    for (uint32_t h = 0; h < n; h++) {
        for (uint32_t s = 0; s < n_prompt; s++)
            mass[s] = value_at(t->seed, 3, (uint64_t)(first + h) * t->n_slots + s);
        retrieval_pool_mass(spec, n_prompt, mass, pooled[h]);
        heads[h] = pooled[h];
    }
    memset(bits, 0xff, BLOCKS_MOST / 8);
    retrieval_preselect(spec, n_prompt, heads, n, keys, bits);
    for (uint32_t b = 0; b < n_prompt / spec->block_tokens; b++)
        left_out += bits[b / 64] >> b % 64 & 1;
    assert_int_equal(left_out, retrieval_left_out(spec, n_prompt));
    free(mass);
    return bits;
}

static void selections_are_the_oracles(void **state)
{
    (void)state;
    json_t *rows = read_golden("selections"), *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        pkv_geometry g = geometry_of(number(row, "page_tokens"), 4, number(row, "n_kv_heads"));
        retrieval_spec spec = spec_of(row, &g);
        tables *t = make_tables(row, &spec);
        score_tables(t, &spec);
        uint32_t step = retrieval_heads_together(&spec, &g), blocks[BLOCKS_MOST];
        const json_t *want = json_object_get(row, "blocks");
        assert_int_equal(json_array_size(want), t->n_heads / step);
        for (uint32_t h = 0; h < t->n_heads; h += step) {
            const float *scores[HEADS_MOST];
            for (uint32_t j = 0; j < step; j++) scores[j] = t->scores[h + j];
            uint64_t *left_out = NULL;
            if (spec.preselect_blocks) left_out = preselect(&spec, t, h, step);
            const retrieval_query query = {t->n_slots, t->n_prompt, left_out, scores, step};
            uint32_t n = retrieval_select(&spec, &query, t->keys, blocks);
            free(left_out);
            assert_list(json_array_get(want, h / step), blocks, n);
            assert_true(n <= retrieval_most_blocks(&spec));
            assert_int_equal(retrieval_tokens_read(&spec, t->n_prompt, t->n_slots),
                             (n - 1) * spec.block_tokens + (t->n_slots - 1) % spec.block_tokens +
                                 1);
        }
        free_tables(t);
    }
    json_decref(rows);
}

static void layers_follow_as_the_oracle_says(void **state)
{
    (void)state;
    json_t *rows = read_golden("layers"), *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        const char *windows = json_string_value(json_object_get(row, "windows"));
        pkv_geometry g = geometry_of(16, (uint32_t)strlen(windows), 2);
        g.window = 48;
        for (uint32_t l = 0; l < g.n_layers; l++)
            g.window_layers[0] |= (uint64_t)(windows[l] == '1') << l;
        retrieval_spec spec = spec_of(row, &g);
        const json_t *want = json_object_get(row, "leaders");
        for (uint32_t l = 0; l < g.n_layers; l++) {
            const json_t *leader = json_array_get(want, l);
            assert_int_equal(retrieval_layer_leader(&spec, &g, l),
                             json_is_null(leader) ? RETRIEVAL_ALL : json_integer_value(leader));
        }
    }
    json_decref(rows);
}

/* Scores are all equal, so a selection takes the first candidates. */
static void tokens_follow_as_the_oracle_says(void **state)
{
    (void)state;
    static const float zeros[BLOCKS_MOST];
    const pkv_geometry g = geometry_of(16, 4, 1);
    const float *scores = zeros;
    uint32_t keys[BLOCKS_MOST], blocks[BLOCKS_MOST], n = 0, before = 0;
    json_t *rows = read_golden("tokens"), *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        retrieval_spec spec = spec_of(row, &g);
        const json_t *want = json_object_get(row, "blocks");
        for (uint32_t t = 0; t < json_array_size(want); t++) {
            uint32_t n_slots = number(row, "n_prompt") + t + 1;
            const retrieval_query query = {n_slots, number(row, "n_prompt"), NULL, &scores, 1};
            if (retrieval_token_leader(&spec, t) == t)
                n = retrieval_select(&spec, &query, keys, blocks);
            else n = retrieval_follow(&spec, before, n_slots, blocks, n);
            before = n_slots;
            assert_list(json_array_get(want, t), blocks, n);
            assert_true(n <= retrieval_most_blocks(&spec));
        }
    }
    json_decref(rows);
}

/* ---- what the oracle does not show ----------------------------------------------------------- */

static void preset_blocks_are_whole_pages(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{16, 128}, {48, 144}, {96, 192}, {128, 128}, {256, 256}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const pkv_geometry g = geometry_of(sizes[i][0], 4, 4);
        retrieval_spec spec;
        error err;
        if (!status_ok(parse_text("{\"method\":\"quest\"}", &g, &spec, &err)))
            fail_msg("%s", err.text);
        assert_int_equal(spec.block_tokens, sizes[i][1]);
    }
}

static void fixed_keys_are_those_of_the_formula(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {16, 128, 144, 256, 4080, RETRIEVAL_BLOCK_MOST};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint32_t size = sizes[i];
        for (uint32_t n = 1; n <= RETRIEVAL_KEYS_MOST && n <= size; n++) {
            const retrieval_spec spec = {.block_tokens = size, .representative_num = n};
            bool want[RETRIEVAL_BLOCK_MOST] = {0};
            uint64_t slots[RETRIEVAL_BLOCK_MOST / 64];
            for (uint32_t j = 0; j < n; j++) want[(2 * j + 1) * size / (2 * n)] = true;
            retrieval_fixed_slots(&spec, slots);
            for (uint32_t s = 0; s < (size + 63) / 64 * 64; s++)
                assert_int_equal(slots[s / 64] >> s % 64 & 1, s < size && want[s]);
        }
    }
}

static void blocks_that_are_no_number_come_last(void **state)
{
    (void)state;
    const retrieval_spec spec = {.block_tokens = 16,
                                 .representative_num = 1,
                                 .group_heads = 1,
                                 .local_tokens = 16,
                                 .top_blocks = 2,
                                 .observed_rows = 128,
                                 .layer_step = 1,
                                 .token_step = 1};
    const float some[] = {NAN, -INFINITY, -3, NAN, 9}, more[] = {1, -1, 1, 1, 1};
    const float *const scores[] = {some, more};
    uint32_t keys[5], blocks[5];
    const retrieval_query query = {80, 79, NULL, scores, 2};
    assert_int_equal(retrieval_select(&spec, &query, keys, blocks), 3);
    assert_int_equal(blocks[0], 1);
    assert_int_equal(blocks[1], 2);
    assert_int_equal(blocks[2], 4);
}

static void gathered_pages_are_those_of_the_blocks(void **state)
{
    (void)state;
    const retrieval_spec spec = {.block_tokens = 48};
    uint32_t pages[20], out[20];
    for (uint32_t i = 0; i < 20; i++) pages[i] = 100 + i;
    const uint32_t some[] = {0, 2, 4}, all[] = {0, 1, 2, 3, 4};
    /* 200 slots: four full blocks, then 8 slots of page 12. */
    assert_int_equal(retrieval_gather(&spec, 16, 200, pages, some, 3, out), 104);
    const uint32_t want[] = {100, 101, 102, 106, 107, 108, 112};
    assert_memory_equal(out, want, sizeof want);
    assert_int_equal(retrieval_gather(&spec, 16, 200, pages, all, 5, out), 200);
    assert_memory_equal(out, pages, 13 * sizeof *pages);
    assert_int_equal(retrieval_gather(&spec, 16, 240, pages, all, 5, out), 240);
    assert_memory_equal(out, pages, 15 * sizeof *pages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_of_the_tables_can_be_asked_for),
        cmocka_unit_test(fields_have_ktransformers_names_too),
        cmocka_unit_test(tokens_share_out_the_blocks),
        cmocka_unit_test(one_word_names_a_method),
        cmocka_unit_test(refusals_name_the_field),
        cmocka_unit_test(selections_are_the_oracles),
        cmocka_unit_test(layers_follow_as_the_oracle_says),
        cmocka_unit_test(tokens_follow_as_the_oracle_says),
        cmocka_unit_test(preset_blocks_are_whole_pages),
        cmocka_unit_test(fixed_keys_are_those_of_the_formula),
        cmocka_unit_test(blocks_that_are_no_number_come_last),
        cmocka_unit_test(gathered_pages_are_those_of_the_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
