/* GGUF files: the values of every block type, logits, tokenizers, and malformed files. Goldens:
 * tools/make_gguf_goldens.py. */
#include "model/load/gguf/gguf_model.h"
#include "tests/unit/model_folder.h"
#include "tests/unit/model_pass.h"

#define GOLDEN "tests/golden/gguf/"

/* ---- values and logits ----------------------------------------------------------------------- */

static void blocks_are_bit_for_bit_the_packages(void **state)
{
    (void)state;
    static const char *const names[] = {"F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",
                                        "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
    enum { N = 1024 };
    gguf g;
    error err = {{0}};
    char *golden;
    size_t bytes;
    if (!status_ok(gguf_open(GOLDEN "types.gguf", &g, &err))) fail_msg("%s", err.text);
    assert_true(status_ok(file_read(GOLDEN "types.f32", 1 << 20, &golden, &bytes, &err)));
    assert_int_equal(bytes, sizeof names / sizeof *names * N * sizeof(float));
    for (size_t t = 0; t < sizeof names / sizeof *names; t++) {
        char name[32];
        float ours[N];
        snprintf(name, sizeof name, "%s.weight", names[t]);
        const gguf_tensor *tensor = gguf_find_tensor(&g, name);
        assert_non_null(tensor);
        const uint8_t *at = g.data + tensor->begin;
        for (size_t i = 0; i < N; i += tensor->type->elements, at += tensor->type->bytes)
            tensor->type->decode(at, ours + i);
        if (memcmp(ours, golden + t * sizeof ours, sizeof ours) != 0) fail_msg("%s", names[t]);
    }
    free(golden);
    gguf_close(&g);
}

static double file_nmse(const char *name, uint8_t bits, unsigned n_ranks)
{
    char file[128], logits[128];
    snprintf(file, sizeof file, GOLDEN "%s.gguf", name);
    snprintf(logits, sizeof logits, GOLDEN "%s.logits.f32", name);
    pass p = {.dir = file,
              .kv_type = KERN_KV_F32,
              .precision = bits ? KERN_PRECISION_STANDARD : KERN_PRECISION_HIGH,
              .quant_bits = bits,
              .quant_group = 32,
              .page_tokens = 16,
              .layers_per_group = 1,
              .n_ranks = n_ranks,
              .n_threads = n_ranks,
              .chunk = 64};
    return golden_nmse(&p, GOLDEN "tokens.jsonl", logits);
}

static void logits_equal_those_of_the_dequantised_models(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint8_t bits; /* what --quantize auto picks */
        double limit; /* of the NMSE */
    } rows[] = {{"llama_f16", 0, 1e-9}, {"llama_q8_0", 8, 3e-3}, {"llama_q4_0", 4, 1e-1},
                {"llama_k", 8, 3e-3},   {"qwen2_bf16", 0, 1e-9}, {"qwen3_mixed", 8, 3e-3}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[128];
        model_config c;
        error err = {{0}};
        snprintf(path, sizeof path, GOLDEN "%s.gguf", rows[i].name);
        if (!status_ok(model_config_load(path, NULL, 0, &c, &err))) fail_msg("%s", err.text);
        assert_int_equal(c.quant_bits, rows[i].bits);
        assert_int_equal(c.n_stop_ids, 2);
        double e = file_nmse(rows[i].name, 0, 0);
        double quantised = rows[i].bits ? file_nmse(rows[i].name, rows[i].bits, 0) : 0.0;
        print_message("%s: NMSE %.2e in f32, %.2e in %u bits\n", rows[i].name, e, quantised,
                      rows[i].bits);
        if (!(e < 1e-9 && quantised < rows[i].limit)) fail_msg("%s: NMSE %g", rows[i].name, e);
    }
}

/* Ranks cut rows of permuted pairs, and columns inside blocks. */
static void ranks_take_their_slices(void **state)
{
    (void)state;
    assert_true(file_nmse("llama_q8_0", 0, 2) < 1e-9);
}

/* ---- files made here ------------------------------------------------------------------------- */

typedef struct maker {
    strbuf file;
} maker;

static void put(maker *m, const void *data, size_t n) { strbuf_append(&m->file, data, n); }
static void put_u32(maker *m, uint32_t v) { put(m, &v, sizeof v); }
static void put_u64(maker *m, uint64_t v) { put(m, &v, sizeof v); }
static void put_text(maker *m, const char *text)
{
    put_u64(m, strlen(text));
    put(m, text, strlen(text));
}
static void put_head(maker *m, uint32_t version, uint64_t tensors, uint64_t values)
{
    *m = (maker){{0}};
    put(m, "GGUF", 4);
    put_u32(m, version);
    put_u64(m, tensors);
    put_u64(m, values);
}
static void put_u32_value(maker *m, const char *key, uint32_t v)
{
    put_text(m, key);
    put_u32(m, GGUF_U32);
    put_u32(m, v);
}
static void put_text_value(maker *m, const char *key, const char *v)
{
    put_text(m, key);
    put_u32(m, GGUF_STRING);
    put_text(m, v);
}
static void put_array(maker *m, const char *key, gguf_type type, uint64_t n)
{
    put_text(m, key);
    put_u32(m, GGUF_ARRAY);
    put_u32(m, type);
    put_u64(m, n);
}
static void put_tensor(maker *m, const char *name, uint32_t dims, uint64_t each, uint32_t type,
                       uint64_t offset)
{
    put_text(m, name);
    put_u32(m, dims);
    for (uint32_t i = 0; i < dims; i++) put_u64(m, each);
    put_u32(m, type);
    put_u64(m, offset);
}

static void expect(maker *m, const char *what)
{
    gguf g;
    error err = {{0}};
    uint8_t *exact = malloc(m->file.size); /* exact, so that over-reads are seen */
    memcpy(exact, m->file.data, m->file.size);
    status s = gguf_parse(&g, "file", exact, m->file.size, &err);
    if (status_ok(s) == (what != NULL)) fail_msg("%s: %s", what ? what : "must be right", err.text);
    if (what && !strstr(err.text, what)) fail_msg("\"%s\" is not in \"%s\"", what, err.text);
    gguf_close(&g);
    free(exact);
    strbuf_destroy(&m->file);
}

static void wrong_files_are_refused_by_name(void **state)
{
    (void)state;
    maker m;
    put_head(&m, 3, 0, 0), expect(&m, NULL);
    put_head(&m, 1, 0, 0), expect(&m, "version 1");
    put_head(&m, 3, UINT64_MAX, 0), expect(&m, "18446744073709551615 tensors");
    put_head(&m, 3, 0, 3), put_u32_value(&m, "a", 1), expect(&m, "3 keys");
    put_head(&m, 3, 0, 2), put_u32_value(&m, "a", 1), put_u32_value(&m, "a", 1);
    expect(&m, "\"a\" is there twice");
    put_head(&m, 3, 0, 1), put_text(&m, "k"), put_u32(&m, 99), put_u64(&m, 0);
    expect(&m, "\"k\": value type 99");
    put_head(&m, 3, 0, 1), put_text(&m, "k"), put_u32(&m, GGUF_STRING), put_u64(&m, 1ull << 63);
    expect(&m, "inside k");
    put_head(&m, 3, 0, 1), put_array(&m, "k", GGUF_U64, 1ull << 61), expect(&m, "inside k");
    put_head(&m, 3, 0, 1), put_array(&m, "k", GGUF_STRING, 1ull << 61), expect(&m, "inside k");
    put_head(&m, 3, 0, 1), put_array(&m, "k", GGUF_ARRAY, 1), expect(&m, "array of arrays");
    put_head(&m, 3, 0, 1), put_u32_value(&m, "general.alignment", 24), expect(&m, "power of two");
    put_head(&m, 3, 1, 0), put_tensor(&m, "t", 5, 1, 0, 0), expect(&m, "5 dimensions");
    put_head(&m, 3, 1, 0), put_tensor(&m, "t", 4, 1ull << 16, 0, 0), expect(&m, "overflow");
    put_head(&m, 3, 1, 0), put_tensor(&m, "t", 1, 0, 0, 0), expect(&m, "are 0");
    put_head(&m, 3, 1, 0), put_tensor(&m, "t", 1, 48, 2, 0), expect(&m, "blocks of 32");
    put_head(&m, 3, 1, 0), put_tensor(&m, "t", 1, 32, 77, 0), expect(&m, "type 77");
    put_head(&m, 3, 1, 0), put_tensor(&m, "t", 1, 32, 0, 8), expect(&m, "multiple of 32");
    put_head(&m, 3, 1, 0), put_tensor(&m, "t", 1, 32, 0, 1ull << 40), expect(&m, "truncated");
    put_head(&m, 3, 1, 0), put_tensor(&m, "a\nb", 1, 1, 0, 0), expect(&m, "printable");
    char zeros[4096] = {0};
    put_head(&m, 3, 2, 0), put_tensor(&m, "a", 1, 32, 0, 0), put_tensor(&m, "b", 1, 32, 0, 64);
    put(&m, zeros, sizeof zeros), expect(&m, "inside another");
    put_head(&m, 3, 2, 0), put_tensor(&m, "a", 1, 8, 0, 0), put_tensor(&m, "a", 1, 8, 0, 32);
    put(&m, zeros, sizeof zeros), expect(&m, "\"a\" is there twice");
}

static void config_error(maker *m, const char *what)
{
    gguf g;
    json_t *config;
    error err = {{0}};
    if (!status_ok(gguf_parse(&g, "file", (const uint8_t *)m->file.data, m->file.size, &err)))
        fail_msg("%s", err.text);
    assert_false(status_ok(gguf_config(&g, &config, &err)));
    if (!strstr(err.text, what)) fail_msg("\"%s\" is not in \"%s\"", what, err.text);
    gguf_close(&g);
    strbuf_destroy(&m->file);
}

static void unknown_models_are_refused_by_name(void **state)
{
    (void)state;
    maker m;
    put_head(&m, 3, 0, 0), config_error(&m, "\"general.architecture\" is missing");
    put_head(&m, 3, 0, 1), put_text_value(&m, "general.architecture", "rwkv7");
    config_error(&m, "\"rwkv7\" is not supported");
    put_head(&m, 3, 0, 1), put_text_value(&m, "general.architecture", "llama");
    config_error(&m, "\"llama.block_count\" is missing");
    put_head(&m, 3, 0, 2), put_text_value(&m, "general.architecture", "llama");
    put_text_value(&m, "llama.block_count", "two");
    config_error(&m, "\"llama.block_count\" must be one whole number");
    put_head(&m, 3, 0, 2), put_text_value(&m, "general.architecture", "llama");
    put_u32_value(&m, "split.count", 3), config_error(&m, "\"split.count\": one of 3 files");
}

static void put_f32_value(maker *m, const char *key, float v)
{
    put_text(m, key);
    put_u32(m, GGUF_F32);
    put(m, &v, sizeof v);
}

/* Writes the fields of a small model; `more` fields follow. */
static void put_model(maker *m, uint64_t more)
{
    put_head(m, 3, 0, 7 + more);
    put_text_value(m, "general.architecture", "llama");
    static const char *const keys[] = {"llama.block_count", "llama.embedding_length",
                                       "llama.feed_forward_length", "llama.attention.head_count",
                                       "llama.context_length"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) put_u32_value(m, keys[i], 64);
    put_f32_value(m, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

/* A field that would change the model's values is refused, though the reader does not use it. */
static void fields_that_mean_something_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const numbers[] = {"llama.rope.scale_linear",
                                          "llama.rope.scaling.attn_factor",
                                          "llama.rope.scaling.yarn_ext_factor",
                                          "llama.attention.scale",
                                          "llama.attention.clamp_kqv",
                                          "llama.final_logit_softcapping",
                                          "llama.residual_scale"};
    maker m;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        put_model(&m, 1), put_f32_value(&m, numbers[i], 0.5f);
        config_error(&m, numbers[i]);
    }
    put_model(&m, 1), put_u32_value(&m, "llama.expert_count", 8);
    config_error(&m, "\"llama.expert_count\": 8 is not supported");
    put_model(&m, 1), put_text(&m, "llama.attention.causal"), put_u32(&m, GGUF_BOOL);
    put(&m, "", 1), config_error(&m, "\"llama.attention.causal\": false");
    put_model(&m, 0), config_error(&m, "\"token_embd.weight\" is missing");
}

/* A file's texts take many times their size in memory. */
static void vocabularies_are_capped(void **state)
{
    (void)state;
    enum { N = (1 << 22) + 1 };
    maker m;
    gguf g;
    error err = {{0}};
    strbuf json = {0};
    put_head(&m, 3, 0, 2), put_text_value(&m, "tokenizer.ggml.model", "gpt2");
    put_array(&m, "tokenizer.ggml.tokens", GGUF_STRING, N);
    size_t from = m.file.size;
    assert_true(strbuf_reserve(&m.file, (size_t)N * 8));
    memset(m.file.data + from, 0, (size_t)N * 8);
    m.file.size += (size_t)N * 8;
    assert_true(status_ok(gguf_parse(&g, "file", (const uint8_t *)m.file.data, m.file.size, &err)));
    assert_int_equal(gguf_tokenizer_json(&g, &json, &err).code, STATUS_LIMIT);
    assert_non_null(strstr(err.text, "\"tokenizer.ggml.tokens\": more than"));
    strbuf_destroy(&json);
    gguf_close(&g);
    strbuf_destroy(&m.file);
}

/* ---- tokenizers ------------------------------------------------------------------------------ */

/* SentencePiece: the scores order the merges. */
static void put_pieces(maker *m)
{
    static const struct {
        const char *text;
        float score;
        int32_t type;
    } pieces[] = {{"<unk>", 0, 2},   {"<s>", 0, 3}, {"</s>", 0, 3}, {"<0xC3>", 0, 6},
                  {"<0xA9>", 0, 6},  {"a", -9, 1},  {"b", -9, 1},   {"c", -9, 1},
                  {"ab", -2, 1},     {"bc", -1, 1}, {"abc", -3, 1}, {"\u2581", -9, 1},
                  {"\u2581a", -4, 1}};
    enum { N = sizeof pieces / sizeof *pieces };
    put_head(m, 3, 0, 7);
    put_text_value(m, "tokenizer.ggml.model", "llama");
    put_u32_value(m, "tokenizer.ggml.bos_token_id", 1);
    put_u32_value(m, "tokenizer.ggml.eos_token_id", 2);
    put_u32_value(m, "tokenizer.ggml.unknown_token_id", 0);
    put_array(m, "tokenizer.ggml.tokens", GGUF_STRING, N);
    for (int i = 0; i < N; i++) put_text(m, pieces[i].text);
    put_array(m, "tokenizer.ggml.scores", GGUF_F32, N);
    for (int i = 0; i < N; i++) put(m, &pieces[i].score, sizeof pieces[i].score);
    put_array(m, "tokenizer.ggml.token_type", GGUF_I32, N);
    for (int i = 0; i < N; i++) put(m, &pieces[i].type, sizeof pieces[i].type);
}

static void sentencepiece_merges_by_score(void **state)
{
    (void)state;
    maker m;
    folder f;
    char path[128];
    error err = {{0}};
    tokenizer *t;
    put_pieces(&m);
    folder_make(&f);
    folder_write(&f, "x.gguf", m.file.data, m.file.size);
    snprintf(path, sizeof path, "%s/x.gguf", f.dir);
    if (!status_ok(model_tokenizer_load(path, &t, &err))) fail_msg("%s", err.text);
    tok_ids ids = {0};
    /* bos, then _abc: bc merges first, so ab never does, nor _a; e acute by bytes */
    assert_true(status_ok(tok_encode(t, "abc\u00e9", 5, true, &ids, &err)));
    static const uint32_t expected[] = {1, 11, 10, 3, 4};
    assert_int_equal(ids.n, sizeof expected / sizeof *expected);
    assert_memory_equal(ids.ids, expected, sizeof expected);
    strbuf text = {0};
    assert_true(status_ok(tok_decode(t, ids.ids, ids.n, true, &text, &err)));
    assert_string_equal(text.data, "abc\u00e9");
    strbuf_destroy(&text);
    tok_ids_destroy(&ids);
    tok_destroy(t);
    folder_remove(&f);
    strbuf_destroy(&m.file);
}

static void templates_and_byte_level_tokens(void **state)
{
    (void)state;
    error err = {{0}};
    tokenizer *t;
    chat_template *chat;
    strbuf bos = {0}, eos = {0};
    if (!status_ok(model_tokenizer_load(GOLDEN "llama_f16.gguf", &t, &err)))
        fail_msg("%s", err.text);
    assert_int_equal(tok_vocab_size(t), 64);
    assert_int_equal(tok_find(t, "t7", 2), 7);
    tok_ids ids = {0};
    assert_true(status_ok(tok_encode(t, "abc", 3, true, &ids, &err)));
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[0], 63);
    assert_int_equal(ids.ids[1], 55);
    tok_ids_destroy(&ids);
    tok_destroy(t);
    if (!status_ok(model_template_load(GOLDEN "llama_f16.gguf", &chat, &bos, &eos, &err)))
        fail_msg("%s", err.text);
    assert_non_null(chat);
    assert_string_equal(bos.data, "t1");
    assert_string_equal(eos.data, "t2");
    tmpl_destroy(chat);
    strbuf_destroy(&bos);
    strbuf_destroy(&eos);
}

static void inspection_prints_types(void **state)
{
    (void)state;
    strbuf out = {0};
    error err = {{0}};
    if (!status_ok(model_inspect(GOLDEN "llama_k.gguf", &out, &err))) fail_msg("%s", err.text);
    static const char *const lines[] = {
        "architecture: LlamaForCausalLM\n",
        "bytes of Q4_K: ", "bytes of Q6_K: ", "quantize: auto is int8\n", "chat template: yes\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(out.data, lines[i])) fail_msg("no \"%s\" in\n%s", lines[i], out.data);
    assert_null(strstr(out.data, "problem"));
    strbuf_destroy(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_bit_for_bit_the_packages),
        cmocka_unit_test(logits_equal_those_of_the_dequantised_models),
        cmocka_unit_test(ranks_take_their_slices),
        cmocka_unit_test(wrong_files_are_refused_by_name),
        cmocka_unit_test(unknown_models_are_refused_by_name),
        cmocka_unit_test(fields_that_mean_something_are_refused_by_name),
        cmocka_unit_test(vocabularies_are_capped),
        cmocka_unit_test(sentencepiece_merges_by_score),
        cmocka_unit_test(templates_and_byte_level_tokens),
        cmocka_unit_test(inspection_prints_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
