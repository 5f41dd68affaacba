/* Safetensors folders with quantised weights: bit-equal to the libraries, logits, slices, and
 * refusals. Goldens: tests/golden/quantized/README.md. */
#include "base/sha256.h"
#include "model/config.h"
#include "model/load/quantized/quantized.h"
#include "tests/unit/model_folder.h"
#include "tests/unit/model_pass.h"

#define GOLDEN "tests/golden/quantized/"

typedef struct golden {
    const char *name;
    unsigned n_cuts; /* of 2 and 4 ranks, how many fit the model */
} golden;

static const golden goldens[] = {
    {"ct_fp8_tensor", 2},  {"ct_fp8_channel", 0},
    {"ct_fp8_block", 2},   {"ct_int4_group", 2},
    {"ct_int4_zeros", 2},  {"ct_int4_channel", 0},
    {"ct_int4_order", 2},  {"ct_int8_channel", 2},
    {"ct_int8_packed", 2}, {"ct_mixed", 2},
    {"fp8_block", 2},      {"fp8_block_bf16", 2},
    {"fp8_tensor", 2},     {"awq", 2},
    {"awq_experts", 2},    {"gptq4", 2},
    {"gptq4_order", 2},    {"gptq4_rows", 2},
    {"gptq8_order", 2},
};
enum { GOLDENS = sizeof goldens / sizeof *goldens };

/* ---- a folder's matched weights -------------------------------------------------------------- */

typedef struct matched {
    model_config config;
    safetensors files;
    quantized q;
    tensor_part *parts;
    size_t n;
} matched;

static status match(const char *dir, matched *m, error *err)
{
    tensor_slice whole;
    *m = (matched){0};
    RETURN_IF_ERROR(model_config_load(dir, NULL, 0, &m->config, err));
    RETURN_IF_ERROR(quantized_open(dir, &m->q, err));
    RETURN_IF_ERROR(safetensors_open(dir, &m->files, err));
    RETURN_IF_ERROR(tensor_slice_of(&m->config, 0, 1, &whole, err));
    RETURN_IF_ERROR(tensors_list(&m->config, &whole, &m->parts, &m->n, err));
    return tensors_match(&m->config, &m->files, m->q.scheme ? &m->q : NULL, m->parts, m->n, err);
}

static void matched_free(matched *m)
{
    quantized_close(&m->q);
    quantized_close(&m->q);
    safetensors_close(&m->files);
    free(m->parts);
}

static void hash_weight(const quantized_weight *w, char out[SHA256_HEX_BYTES])
{
    size_t bytes = w->cols * dtype_bytes(w->type);
    uint8_t *rows = malloc(3 * bytes);
    sha256 s;
    sha256_init(&s);
    for (size_t row = 0, n; row < w->rows; row += n) {
        n = w->rows - row < 3 ? w->rows - row : 3;
        quantized_rows(w, row, n, rows);
        sha256_add(&s, rows, n * bytes);
    }
    sha256_finish(&s, out);
    free(rows);
}

static void weights_are_bit_for_bit_the_libraries(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDENS; i++) {
        char dir[128], path[160];
        json_t *due;
        matched m;
        error err = {{0}};
        snprintf(dir, sizeof dir, GOLDEN "%s", goldens[i].name);
        snprintf(path, sizeof path, "%s/weights.json", dir);
        assert_true(status_ok(json_read_file(path, 1 << 20, &due, &err)));
        if (!status_ok(match(dir, &m, &err))) fail_msg("%s", err.text);
        for (size_t p = 0; p < m.n; p++) {
            const quantized_weight *w = m.parts[p].source.quantized;
            const json_t *is = json_object_get(due, m.parts[p].name);
            assert_true((w != NULL) == (is != NULL));
            if (!w) continue;
            char hash[SHA256_HEX_BYTES];
            hash_weight(w, hash);
            assert_string_equal(dtype_name(w->type),
                                json_string_value(json_object_get(is, "dtype")));
            if (strcmp(hash, json_string_value(json_object_get(is, "sha256"))) != 0)
                fail_msg("%s: %s: other bits", dir, m.parts[p].name);
        }
        matched_free(&m);
        json_decref(due);
    }
}

static void unpack_column(const quantized_weight *w, size_t row, size_t col, size_t n, float *out)
{
    (void)w;
    for (size_t i = 0; i < n; i++) out[i] = (float)(col + i + 1000 * row);
}

/* A row is made some columns at a time: groups and orders continue across these pieces. */
static void long_rows_keep_their_groups(void **state)
{
    (void)state;
    enum { COLS = 700, GROUP = 90, GROUPS = 8 };
    float scales[GROUPS], out[2 * COLS];
    int32_t order[COLS];
    for (int g = 0; g < GROUPS; g++) scales[g] = (float)(g + 1);
    for (int i = 0; i < COLS; i++) order[i] = i * 5 % GROUPS;
    quantized_weight w = {.rows = 2,
                          .cols = COLS,
                          .type = DTYPE_F32,
                          .group_rows = 1,
                          .group_cols = GROUP,
                          .n_groups = GROUPS,
                          .scale_step = 1,
                          .unpack = unpack_column};
    w.in[QUANTIZED_SCALES] = (quantized_bytes){(const uint8_t *)scales, sizeof scales};
    for (int with_order = 0; with_order < 2; with_order++) {
        if (with_order)
            w.in[QUANTIZED_ORDER] = (quantized_bytes){(const uint8_t *)order, sizeof order};
        quantized_rows(&w, 0, 2, (uint8_t *)out);
        for (int i = 0; i < 2 * COLS; i++) {
            int col = i % COLS, group = with_order ? order[col] : col / GROUP;
            assert_true(out[i] == (float)(col + 1000 * (i / COLS)) * scales[group]);
        }
    }
}

/* ---- logits ---------------------------------------------------------------------------------- */

static double folder_nmse(const char *name, uint8_t bits, unsigned n_ranks, const char *cache)
{
    char dir[128], tokens[160], logits[160];
    snprintf(dir, sizeof dir, GOLDEN "%s", name);
    snprintf(tokens, sizeof tokens, "%s/tokens.jsonl", dir);
    snprintf(logits, sizeof logits, "%s/logits.f32", dir);
    pass p = {.dir = dir,
              .kv_type = KERN_KV_F32,
              .precision = bits ? KERN_PRECISION_STANDARD : KERN_PRECISION_HIGH,
              .quant_bits = bits,
              .quant_group = 32,
              .page_tokens = 16,
              .layers_per_group = 1,
              .n_ranks = n_ranks,
              .n_threads = n_ranks,
              .chunk = 24,
              .cache_dir = cache};
    return golden_nmse(&p, tokens, logits);
}

static void logits_equal_hugging_face_on_their_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDENS; i++) {
        double e = folder_nmse(goldens[i].name, 0, 0, NULL);
        print_message("%s: NMSE %.2e\n", goldens[i].name, e);
        if (!(e < 1e-9)) fail_msg("%s: NMSE %.3e", goldens[i].name, e);
    }
}

/* Rows are cut inside blocks and words, columns inside groups and against their order. */
static void ranks_change_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDENS; i++) {
        char dir[128];
        model_config config;
        unsigned n_cuts = 0;
        snprintf(dir, sizeof dir, GOLDEN "%s", goldens[i].name);
        assert_true(status_ok(model_config_load(dir, NULL, 0, &config, NULL)));
        for (unsigned ranks = 2; ranks <= 4; ranks += 2) {
            if (!status_ok(model_ranks_check(&config, ranks, NULL))) continue;
            double e = folder_nmse(goldens[i].name, 0, ranks, NULL);
            if (!(e < 1e-9)) fail_msg("%s, %u ranks: NMSE %.3e", goldens[i].name, ranks, e);
            n_cuts++;
        }
        if (n_cuts != goldens[i].n_cuts) fail_msg("%s: %u cuts", dir, n_cuts);
    }
}

/* Weights requantised to the kernels' integers, and read back from their cache. */
static void integers_of_the_kernels_and_their_cache(void **state)
{
    (void)state;
    static const char *const names[] = {"awq", "gptq4_order", "fp8_tensor"};
    folder f;
    folder_make(&f);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double made = folder_nmse(names[i], 8, 0, f.dir), read = folder_nmse(names[i], 8, 0, f.dir);
        print_message("%s in 8 bits: NMSE %.2e\n", names[i], made);
        assert_true(made < 3e-3 && made == read);
    }
    folder_remove(&f);
}

/* ---- configurations that are refused --------------------------------------------------------- */

static void expect_config(const char *section, const char *what)
{
    static const char base[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"num_hidden_layers\": 1,"
        " \"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 50,"
        " \"max_position_embeddings\": 64, \"quantization_config\": ";
    strbuf text = {0};
    json_t *json;
    model_config c;
    error err = {{0}};
    strbuf_puts(&text, base);
    strbuf_puts(&text, section);
    strbuf_puts(&text, "}");
    if (!status_ok(json_read_text("config", text.data, text.size, &json, &err)))
        fail_msg("%s: %s", section, err.text);
    status s = model_config_read(json, "config", NULL, NULL, &c, &err);
    if (status_ok(s) != (what == NULL)) fail_msg("%s: %s", section, err.text);
    if (what && !strstr(err.text, what)) fail_msg("\"%s\" is not in \"%s\"", what, err.text);
    if (what && strncmp(err.text, "config: \"quantization_config\"", 29) != 0)
        fail_msg("%s", err.text);
    json_decref(json);
    strbuf_destroy(&text);
}

/* A compressed-tensors section: members of its one group's weights, of the group, of the
 * section. */
static void expect_ct(const char *weights, const char *group, const char *whole, const char *what)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"targets\": "
             "[\"Linear\"], \"weights\": {%s}%s}}%s}",
             weights, group, whole);
    expect_config(text, what);
}

static void unsupported_schemes_are_refused_by_name(void **state)
{
    (void)state;
    expect_config("[]", "must be an object");
    expect_config("{}", "\"quant_method\" is missing");
    expect_config("{\"quant_method\": \"bitsandbytes\"}", "\"bitsandbytes\" is not supported");
    expect_config("{\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}", "\"fmt\": \"e5m2\"");
    expect_config("{\"quant_method\": \"fp8\", \"activation_scheme\": \"x\"}", "\"x\" is not");
    expect_config("{\"quant_method\": \"fp8\", \"weight_block_size\": [128]}", "two sizes");
    expect_config("{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 0]}", "two sizes");
    expect_config("{\"quant_method\": \"fp8\", \"modules_to_not_convert\": [1]}", "list of names");
    expect_config("{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}", NULL);
    expect_config("{\"quant_method\": \"awq\"}", NULL);
    expect_config("{\"quant_method\": \"awq\", \"w_bit\": 4, \"q_group_size\": -1}", NULL);
    expect_config("{\"quant_method\": \"awq\", \"bits\": 3}", "\"bits\": 3 is not supported");
    expect_config("{\"quant_method\": \"awq\", \"version\": \"gemv\"}", "\"gemv\" is not");
    expect_config("{\"quant_method\": \"awq\", \"zero_point\": false}", "\"zero_point\": false");
    expect_config("{\"quant_method\": \"awq\", \"group_size\": 0}", "\"group_size\": 0");
    expect_config("{\"quant_method\": \"awq\", \"group_size\": -2}", "\"group_size\"");
    expect_config("{\"quant_method\": \"gptq\"}", NULL);
    expect_config("{\"quant_method\": \"gptq\", \"bits\": 3}", "\"bits\": 3 is not supported");
    expect_config("{\"quant_method\": \"gptq\", \"checkpoint_format\": \"marlin\"}", "\"marlin\"");
    expect_config("{\"quant_method\": \"gptq\", \"is_marlin_format\": true}", "is_marlin_format");
    expect_config("{\"quant_method\": \"gptq\", \"pack_dtype\": \"int16\"}", "\"int16\"");
    expect_config("{\"quant_method\": \"gptq\", \"dynamic\": {\"a\": {\"bits\": 8}}}",
                  "\"dynamic\"");
    expect_config("{\"quant_method\": \"gptq\", \"dynamic\": {}, \"adapter\": null}", NULL);
    expect_config("{\"quant_method\": \"gptq\", \"group_size\": 99999999999}", "\"group_size\"");
}

static void unsupported_ways_of_compressed_tensors(void **state)
{
    (void)state;
    static const char int4[] = "\"num_bits\": 4, \"group_size\": 32";
    expect_ct(int4, "", "", NULL);
    expect_ct("", "", "", NULL);
    expect_ct("\"num_bits\": 4, \"type\": \"float\"", "", "",
              "\"num_bits\" 4 of \"type\" \"float\"");
    expect_ct("\"num_bits\": 2", "", "", "\"num_bits\" 2");
    expect_ct("\"type\": \"complex\"", "", "", "\"complex\"");
    expect_ct("\"strategy\": \"tensor_group\", \"group_size\": 16", "", "", "\"tensor_group\"");
    expect_ct("\"strategy\": \"group\"", "", "", "\"group\"");
    expect_ct("\"strategy\": \"block\", \"block_structure\": [2, 2]", "", "", "\"block\"");
    expect_ct("\"strategy\": \"block\", \"type\": \"float\", \"block_structure\": \"8x8\"", "", "",
              "block_structure");
    expect_ct("\"symmetric\": false", "", "", "\"symmetric\": false");
    expect_ct("\"symmetric\": false, \"type\": \"float\", \"strategy\": \"channel\"", "", "",
              "\"symmetric\": false");
    expect_ct("\"dynamic\": true", "", "", "\"dynamic\"");
    expect_ct("\"magic\": 1", "", "", "\"g\": \"weights\": \"magic\" is not supported");
    expect_ct(int4, ", \"output_activations\": {}", "", "\"output_activations\"");
    expect_ct(int4, ", \"input_activations\": {\"num_bits\": 8}", "", NULL);
    expect_ct(int4, ", \"format\": \"marlin-24\"", "", "\"marlin-24\"");
    expect_ct("\"type\": \"float\"", ", \"format\": \"pack-quantized\"", "", "of floats");
    expect_ct(int4, "", ", \"format\": \"nvfp4-pack-quantized\"", "\"nvfp4-pack-quantized\"");
    expect_ct(int4, "", ", \"kv_cache_scheme\": {\"num_bits\": 8}", "\"kv_cache_scheme\"");
    expect_ct(int4, "", ", \"transform_config\": {\"a\": 1}", "\"transform_config\"");
    expect_ct(int4, "", ", \"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}", "sparse-24");
    expect_ct(int4, "", ", \"sparsity_config\": {\"a\": 1}", "\"sparsity_config\"");
    expect_ct(int4, "", ", \"sparsity_config\": {\"format\": \"dense\"}", NULL);
    expect_ct(int4, "", ", \"quantization_status\": \"calibration\"", "\"calibration\"");
    expect_ct(int4, "", ", \"ignore\": \"lm_head\"", "list of names");
    expect_ct(int4, "", ", \"ignore\": [\"re:(\"]", "\"re:(\"");
    expect_ct(int4, "", ", \"ignore\": [\"LlamaAttention\"]", "class \"LlamaAttention\"");
    expect_ct(int4, "", ", \"ignore\": [\"a\\nb\"]", "control characters");
    expect_ct(int4, ", \"format\": 7", "", "\"format\"");
    expect_config("{\"quant_method\": \"compressed-tensors\"}", "\"config_groups\" is missing");
    expect_config("{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"FP8\": "
                  "[\"Linear\"]}}",
                  "presets");
    expect_config("{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": "
                  "{\"targets\": [\"Linear\"]}}}",
                  "\"weights\": is missing");
    expect_config("{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": "
                  "{\"weights\": {}}}}",
                  "\"targets\" is missing");
    expect_config("{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": "
                  "{\"weights\": {}, \"targets\": [\"Embedding\"]}}}",
                  "class \"Embedding\"");
}

/* The message names the field, however long the path before it is. */
static void long_paths_leave_room_for_the_field(void **state)
{
    (void)state;
    char where[220];
    quantized q;
    error err = {{0}};
    memset(where, 'a', sizeof where - 1);
    where[sizeof where - 1] = 0;
    json_t *config = json_loads("{\"quantization_config\": {\"quant_method\": "
                                "\"compressed-tensors\", \"config_groups\": {\"g\": {\"targets\":"
                                " [\"Linear\"], \"weights\": {\"num_bits\": 3}}}}}",
                                0, NULL);
    assert_non_null(config);
    assert_false(status_ok(quantized_read(config, where, &q, &err)));
    assert_non_null(
        strstr(err.text, "aa: \"quantization_config\": \"g\": \"weights\": \"num_bits\""));
    json_decref(config);
}

/* ---- files that are refused ------------------------------------------------------------------ */

/* text with every `from` replaced by `to`. */
static void replaced(const char *text, size_t size, const char *from, const char *to, strbuf *out)
{
    size_t n = strlen(from), count = 0;
    for (size_t i = 0; i < size;) {
        bool here = i + n <= size && memcmp(text + i, from, n) == 0;
        if (here) strbuf_puts(out, to);
        else strbuf_putc(out, text[i]);
        i += here ? n : 1;
        count += here;
    }
    if (count == 0) fail_msg("no %s", from);
}

/* A golden with one change in its file (config.json, or model.safetensors, whose length must
 * stay). */
static void expect_changed(const char *name, const char *file, const char *const changes[4],
                           const char *what)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    folder f;
    matched m;
    error err = {{0}};
    folder_make(&f);
    for (size_t i = 0; i < 2; i++) {
        char path[160], *text;
        size_t n;
        snprintf(path, sizeof path, GOLDEN "%s/%s", name, files[i]);
        assert_true(status_ok(file_read(path, 1 << 20, &text, &n, &err)));
        for (int c = 0; c < 4 && changes[c] && strcmp(files[i], file) == 0; c += 2) {
            strbuf changed = {0};
            replaced(text, n, changes[c], changes[c + 1], &changed);
            free(text);
            text = changed.data;
            n = changed.size;
        }
        folder_write(&f, files[i], text, n);
        free(text);
    }
    status s = match(f.dir, &m, &err);
    if (status_ok(s) != (what == NULL)) fail_msg("%s, %s: %s", name, changes[1], err.text);
    if (what && !strstr(err.text, what)) fail_msg("\"%s\" is not in \"%s\"", what, err.text);
    matched_free(&m);
    folder_remove(&f);
}

static void expect_folder(const char *name, const char *file, const char *from, const char *to,
                          const char *what)
{
    expect_changed(name, file, (const char *const[4]){from, to}, what);
}

/* The order: a module's own name, then the first pattern that matches from the name's start, then
 * the module's kind. */
static void targets_have_an_order(void **state)
{
    (void)state;
    static const char config[] = "config.json", fp8[] = "\"re:.*self_attn.*\"";
    static const char linear[] = "\"Linear\"", later[] = "\"re:.*y.*\"", first[] = "\"re:.*.*\"";
    static const char own[] = "\"model.layers.0.self_attn.q_proj\"";
    expect_folder("ct_mixed", config, linear, later, NULL);
    expect_folder("ct_mixed", config, linear, first, "q_proj.weight_scale\" is [64, 1]");
    expect_changed("ct_mixed", config, (const char *const[4]){fp8, own, linear, later},
                   "layers.0.self_attn.k_proj.weight_scale\" is [32, 1]");
    expect_folder("ct_int4_group", config, "\"lm_head\"", "\"re:mlp.*\"", NULL);
}

/* Each pattern may take long to match a name; all patterns together have a limit of their own. */
static void patterns_share_what_they_may_cost(void **state)
{
    (void)state;
    for (int n = 1; n <= 60; n += 59) {
        strbuf list = {0};
        strbuf_puts(&list, "\"lm_head\"");
        for (int i = 0; i < n; i++) strbuf_printf(&list, ", \"re:.*.*.{0,31}[QZ](?#%d)\"", i);
        assert_false(list.failed);
        expect_folder("ct_mixed", "config.json", "\"lm_head\"", list.data,
                      n == 1 ? NULL : ", as others did");
        strbuf_destroy(&list);
    }
    expect_folder("ct_mixed", "config.json", "\"lm_head\"", "\"re:(.+)+(.+)+[A-Z]\"",
                  "config.json: \"quantization_config\": the pattern \"re:(.+)+(.+)+[A-Z]\" takes");
}

static void wrong_files_are_refused_by_name(void **state)
{
    (void)state;
    static const char config[] = "config.json", data[] = "model.safetensors";
    expect_folder("awq", data, "0.self_attn.q_proj.qzeros", "0.self_attn.q_proj.qzerox",
                  "q_proj.qzeros\" is missing");
    expect_folder("awq", data, "0.self_attn.q_proj.qweight", "0.self_attn.q_proj.qweighx",
                  "q_proj.weight\" is missing");
    expect_folder("awq", config, "\"group_size\": 32", "\"group_size\": 16", "makes it");
    expect_folder("awq", config, "\"group_size\": 32", "\"group_size\": 48", "do not divide");
    expect_folder("awq", config, "\"modules_to_not_convert\": null",
                  "\"modules_to_not_convert\": [\"model.layers.1.mlp.up_proj\"]",
                  "\"model.layers.1.mlp.up_proj\" is quantised in the files");
    expect_folder("fp8_block", config, "\"lm_head\"", "\"lm_hea.\"", NULL);
    expect_folder("ct_mixed", config, "o_pro[j]$", "[a-q]_proj", "is not to be");
    expect_folder("ct_mixed", config, "o_pro[j]$", "(a+)+(a+)+$", NULL);
    expect_folder("ct_mixed", config, "re:model\\\\.layers\\\\.0\\\\.self_attn\\\\.o_pro[j]$",
                  "re:(([a-z._0-9]+)+)+[A-Z]", "takes too long");
    expect_folder("ct_int4_group", config, "\"lm_head\"", "\"re:.*up\"", "is not to be");
    expect_folder("ct_int4_group", config, "\"Linear\"", "\"linear\"",
                  "q_proj.weight\" is missing");
    expect_folder("ct_int4_group", data, "weight_shape", "weight_shapf", "is not part of");
    expect_folder("ct_fp8_tensor", data, "F8_E4M3", "F8_E5M2", "F8_E5M2 is not supported");
    expect_folder("fp8_tensor", config, "\"activation_scheme\"",
                  "\"weight_block_size\": [4, 64], \"activation_scheme\"", "is [], config.json");
    expect_folder("ct_fp8_tensor", config, "\"strategy\": \"tensor\"", "\"strategy\": \"channel\"",
                  "is [1], config.json");
    expect_folder("fp8_tensor", config, "\"quant_method\": \"fp8\"",
                  "\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {"
                  "\"targets\": [\"Linear\"], \"weights\": {\"type\": \"float\", "
                  "\"strategy\": \"channel\"}}}",
                  "is [], config.json");
    expect_folder("fp8_tensor", data, "input_scale", "outpu_scale", "is not part of");
    expect_folder("fp8_block", config, "\"fp8\"", "\"awq\"", "F8_E4M3 is not supported");
}

/* Groups beyond the columns of a matrix, and a bias that the model has no place for. */
static void wrong_values_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const names[] = {"g_idx", "bias", "g_idx"};
    static const char *const whats[] = {"is in group 3 of", "bias", "is in group -1 of"};
    static const char *const folders[] = {"gptq4_order", "gptq4_rows", "gptq4_order"};
    for (size_t i = 0; i < 3; i++) {
        char path[160], full[96], *text;
        folder f;
        matched m;
        size_t n;
        error err = {{0}};
        snprintf(path, sizeof path, GOLDEN "%s", folders[i]);
        if (!status_ok(match(path, &m, &err))) fail_msg("%s", err.text);
        snprintf(full, sizeof full, "model.layers.1.mlp.down_proj.%s", names[i]);
        const safetensors_tensor *t = safetensors_find(&m.files, full);
        assert_non_null(t);
        snprintf(path, sizeof path, GOLDEN "%s/model.safetensors", folders[i]);
        assert_true(status_ok(file_read(path, 1 << 20, &text, &n, &err)));
        if (i < 2) text[t->begin + 4] = 3;
        else memset(text + t->begin + 4, 0xff, 4);
        matched_free(&m);
        folder_make(&f);
        folder_write(&f, "model.safetensors", text, n);
        free(text);
        snprintf(path, sizeof path, GOLDEN "%s/config.json", folders[i]);
        assert_true(status_ok(file_read(path, 1 << 20, &text, &n, &err)));
        folder_write(&f, "config.json", text, n);
        free(text);
        assert_false(status_ok(match(f.dir, &m, &err)));
        if (!strstr(err.text, full) || !strstr(err.text, whats[i])) fail_msg("%s", err.text);
        matched_free(&m);
        folder_remove(&f);
    }
}

static void inspection_prints_the_scheme(void **state)
{
    (void)state;
    static const struct {
        const char *name, *line;
    } rows[] = {
        {"awq", "quantization: awq: int4 with zero points, a scale for 32 columns\n"},
        {"gptq4_rows", "quantization: gptq: int4 with zero points, a scale for all columns\n"},
        {"fp8_block", "quantization: fp8: fp8, a scale for 48 rows x 32 columns\n"},
        {"ct_fp8_tensor", "quantization: compressed-tensors: fp8, a scale for all rows x all "
                          "columns\n"},
        {"ct_mixed", "quantization: compressed-tensors: fp8, a scale for all columns; int4, a "
                     "scale for 32 columns; int8, a scale for all columns\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[128];
        strbuf out = {0};
        error err = {{0}};
        snprintf(dir, sizeof dir, GOLDEN "%s", rows[i].name);
        if (!status_ok(model_inspect(dir, &out, &err))) fail_msg("%s", err.text);
        if (!strstr(out.data, rows[i].line)) fail_msg("no %s in\n%s", rows[i].line, out.data);
        assert_null(strstr(out.data, "problem"));
        assert_null(strstr(out.data, "unsupported"));
        strbuf_destroy(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_bit_for_bit_the_libraries),
        cmocka_unit_test(long_rows_keep_their_groups),
        cmocka_unit_test(logits_equal_hugging_face_on_their_weights),
        cmocka_unit_test(ranks_change_nothing),
        cmocka_unit_test(integers_of_the_kernels_and_their_cache),
        cmocka_unit_test(unsupported_schemes_are_refused_by_name),
        cmocka_unit_test(unsupported_ways_of_compressed_tensors),
        cmocka_unit_test(long_paths_leave_room_for_the_field),
        cmocka_unit_test(targets_have_an_order),
        cmocka_unit_test(patterns_share_what_they_may_cost),
        cmocka_unit_test(wrong_files_are_refused_by_name),
        cmocka_unit_test(wrong_values_are_refused_by_name),
        cmocka_unit_test(inspection_prints_the_scheme),
    };
    return cmocka_run_group_tests_name("model_quantized", tests, NULL, NULL);
}
