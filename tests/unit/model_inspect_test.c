/* model/inspect.c: the output for a good folder, a broken one and none. */
#include "model/model.h"
#include "tests/unit/model_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const char *describe(const char *dir, strbuf *out)
{
    error err = {""};
    strbuf_clear(out);
    if (!status_ok(model_inspect(dir, out, &err))) fail_msg("%s: %s", dir, err.text);
    return out->data ? out->data : "";
}

static void has_line(const char *text, const char *line)
{
    size_t n = strlen(line);
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n')
        if (strncmp(at, line, n) == 0 && at[n] == '\n') return;
    fail_msg("no line \"%s\" in\n%.4000s", line, text);
}

static void good_folders(void **state)
{
    (void)state;
    strbuf out = {0};
    const char *text = describe("tests/golden/models/gqa8_bf16", &out);
    has_line(text, "architecture: LlamaForCausalLM");
    has_line(text, "heads: 8 query, 1 key/value, 48 elements each");
    has_line(text, "rope: theta 500000");
    has_line(text, "files: 2");
    has_line(text, "parameters: 107472 in 21 tensors");
    has_line(text, "bytes of BF16: 214944 in 21 tensors");
    has_line(text, "tokenizer: none");
    assert_null(strstr(text, "problem"));
    assert_null(strstr(text, "unsupported"));
    text = describe("tests/golden/models/llama3_rope_f32", &out);
    has_line(text, "rope: theta 10000, llama3, factor 8, low 1, high 4, original context 32");
    has_line(text, "tied embeddings: yes");
    strbuf_destroy(&out);
}

static void what_families_add(void **state)
{
    (void)state;
    strbuf out = {0};
    const char *text = describe("tests/golden/models/qwen3_moe_some_bf16", &out);
    has_line(text, "norms of heads: q, k");
    has_line(text, "experts: 9 of ffn 27, 4 for each token, in layers 1");
    text = describe("tests/golden/models/qwen2_window_bf16", &out);
    has_line(text, "biases: q, k, v");
    has_line(text, "window: 17 tokens, in layers 1-2");
    has_line(text,
             "rope: theta 1e+06, yarn, factor 4, original context 64, attention factor 1.13863");
    text = describe("tests/golden/models/qwen2_moe_f32", &out);
    has_line(text, "experts: 6 of ffn 12, 2 for each token, in layers 0-1");
    has_line(text, "expert of every token: ffn 28");
    text = describe("tests/golden/models/gemma3_f32", &out);
    has_line(text, "rope: theta 1e+06, linear, factor 8");
    has_line(text, "rope of layers with a window: theta 10000");
    has_line(text, "window: 11 tokens, in layers 0 2");
    text = describe("tests/golden/models/qwen3_layers_bf16", &out);
    has_line(text, "window: 5 tokens, in layers 0 2");
    text = describe("tests/golden/models/internlm2_long_bf16", &out);
    has_line(text, "rope: theta 10000, dynamic, factor 2.5");
    assert_null(strstr(text, "problem"));
    assert_null(strstr(text, "unsupported"));
    strbuf_destroy(&out);
}

static void unknown_things_are_named(void **state)
{
    (void)state;
    folder f;
    folder_make(&f);
    strbuf out = {0};
    error err = {""};
    assert_int_equal(model_inspect(f.dir, &out, &err).code, STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "config.json"));

    folder_puts(&f, "config.json", "{\"architectures\": [\"MambaForCausalLM\"]}");
    folder_puts(&f, "tokenizer.model", "");
    folder_safetensors(&f, "model.safetensors",
                       "{\"w\":{\"dtype\":\"I8\",\"shape\":[2,3],\"data_offsets\":[0,6]}}",
                       "abcdef", 6);
    const char *text = describe(f.dir, &out);
    assert_non_null(strstr(text, "unsupported: "));
    assert_non_null(strstr(text, "\"MambaForCausalLM\" is not supported\n"));
    has_line(text, "bytes of I8: 6 in 1 tensors");
    has_line(text, "parameters: 6 in 1 tensors");
    assert_non_null(strstr(text, "tokenizer.model: is no SentencePiece model\n"));

    folder_puts(&f, "config.json",
                "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64,"
                " \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"intermediate_size\": 9,"
                " \"vocab_size\": 10, \"max_position_embeddings\": 5, \"eos_token_id\": [3, 4]}");
    text = describe(f.dir, &out);
    has_line(text, "stop ids: 3 4");
    has_line(text, "context: 5");
    assert_non_null(strstr(text, "problem: "));
    assert_non_null(strstr(text, "tensor \"model.embed_tokens.weight\" is missing\n"));
    strbuf_destroy(&out);
    folder_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_folders),
        cmocka_unit_test(what_families_add),
        cmocka_unit_test(unknown_things_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
