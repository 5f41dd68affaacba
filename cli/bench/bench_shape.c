#include "cli/bench/bench_shape.h"

#include "base/number.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const bench_shapes[] = {"0.6b", "1.1b", NULL};

/* The shape of Qwen3 0.6B: a small model with many tokens, whose draws weigh the most. */
static const char shape_0_6b[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":151936,"
    "\"hidden_size\":1024,\"intermediate_size\":3072,\"num_hidden_layers\":28,"
    "\"num_attention_heads\":16,\"num_key_value_heads\":8,\"head_dim\":128,\"hidden_act\":\"silu\","
    "\"rms_norm_eps\":1e-6,\"rope_theta\":1000000.0,\"max_position_embeddings\":40960,"
    "\"tie_word_embeddings\":true,\"bos_token_id\":151643,\"eos_token_id\":151645,"
    "\"torch_dtype\":\"bfloat16\"}";

/* TinyLlama's shape, with room for long contexts. */
static const char shape_1_1b[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":32000,"
    "\"hidden_size\":2048,\"intermediate_size\":5632,\"num_hidden_layers\":22,"
    "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"hidden_act\":\"silu\","
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"max_position_embeddings\":40960,"
    "\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_token_id\":2,"
    "\"torch_dtype\":\"bfloat16\"}";

static const char *const configs[] = {shape_0_6b, shape_1_1b};

static void config_path(const bench_shape *shape, char *out, size_t size)
{
    snprintf(out, size, "%s/config.json", shape->dir);
}

status bench_shape_create(const char *name, bench_shape *out, error *err)
{
    size_t i = 0;
    while (strcmp(bench_shapes[i], name) != 0) i++;
    const char *base = getenv("TMPDIR");
    char path[sizeof out->dir + 16];
    snprintf(out->dir, sizeof out->dir, "%s/octavo-shape-XXXXXX",
             base && strlen(base) < 200 ? base : P_tmpdir);
    if (!mkdtemp(out->dir)) return error_set(err, STATUS_IO, "%s: %s", out->dir, strerror(errno));
    config_path(out, path, sizeof path);
    FILE *f = fopen(path, "we");
    bool ok = f && fputs(configs[i], f) >= 0;
    if (f && fclose(f) != 0) ok = false;
    if (ok) return STATUS_IS_OK;
    status st = error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    bench_shape_remove(out);
    return st;
}

void bench_shape_remove(bench_shape *shape)
{
    char path[sizeof shape->dir + 16];
    config_path(shape, path, sizeof path);
    unlink(path);
    rmdir(shape->dir);
}

status bench_list_read(const char *flag, const char *text, bench_list *out, error *err)
{
    out->n = 0;
    for (;;) {
        uint64_t v = 0;
        const char *end = number_read_whole(text, &v);
        if (!end || v == 0 || v > 1 << 20 || out->n == BENCH_LIST_MAX || (*end && *end != ','))
            return error_set(err, STATUS_INVALID,
                             "--%s: must be up to %d numbers with commas between", flag,
                             BENCH_LIST_MAX);
        out->values[out->n++] = (uint32_t)v;
        if (!*end) return STATUS_IS_OK;
        text = end + 1;
    }
}
