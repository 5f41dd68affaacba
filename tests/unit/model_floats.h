/* A small checkpoint of e4m3 in a folder, and passes through it, for tests of the CUDA backend over
 * the emulator. */
#ifndef TESTS_UNIT_MODEL_FLOATS_H
#define TESTS_UNIT_MODEL_FLOATS_H

#include "tests/unit/model_folder.h"
#include "tests/unit/model_pass.h"

#include "kernels/cuda/cuda_kernels.h"
#include "tests/simt/device.h"

enum { HIDDEN = 192, HEADS = 4, KV_HEADS = 2, DIM = 32, VOCAB = 48, LAYERS = 2 };

typedef enum scaled { BY_TENSOR, BY_CHANNEL, BY_BLOCK } scaled;

typedef struct shape {
    scaled by;
    size_t block, ffn; /* block: rows and columns */
    uint32_t n_experts;
    bool plain_k;   /* one of three parts of a matrix is in bf16 */
    bool head;      /* not tied, and quantised */
    bool bad_value; /* a NaN in the last matrix */
    bool bad_scale; /* an infinity there */
} shape;

typedef struct maker {
    folder f;
    const shape *s;
    strbuf header;
    uint8_t *data;
    size_t n, capacity;
    rng random;
} maker;

static inline uint8_t *add_tensor(maker *m, const char *name, const char *type, size_t element,
                                  size_t rows, size_t cols)
{
    size_t bytes = rows * (cols ? cols : 1) * element;
    while (m->n + bytes > m->capacity) {
        m->capacity = m->capacity ? 2 * m->capacity : 1 << 20;
        m->data = realloc(m->data, m->capacity);
    }
    strbuf_printf(&m->header, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [%zu", m->n ? ", " : "{",
                  name, type, rows);
    if (cols) strbuf_printf(&m->header, ", %zu", cols);
    strbuf_printf(&m->header, "], \"data_offsets\": [%zu, %zu]}", m->n, m->n + bytes);
    m->n += bytes;
    return m->data + m->n - bytes;
}

/* cols 0: a vector of ones. */
static inline void add_plain(maker *m, const char *name, size_t rows, size_t cols)
{
    uint8_t *out = add_tensor(m, name, "BF16", 2, rows, cols);
    for (size_t i = 0; i < rows * (cols ? cols : 1); i++) {
        uint16_t half = bf16_from_f32(cols ? rng_normal(&m->random) / sqrtf((float)cols) : 1.0f);
        memcpy(out + 2 * i, &half, sizeof half);
    }
}

/* Scales of a matrix differ by up to 16 times, so that one that is taken for another shows. */
static inline float next_scale(maker *m, size_t cols)
{
    return ldexpf(1.0f + (float)rng_below(&m->random, 256) / 256.0f,
                  (int)rng_below(&m->random, 4) - 3) /
           sqrtf((float)cols);
}

static inline void add_scales(maker *m, const char *module, size_t rows, size_t cols)
{
    const shape *s = m->s;
    char name[256];
    snprintf(name, sizeof name, "%s.weight_scale%s", module, s->by == BY_BLOCK ? "_inv" : "");
    if (s->by == BY_CHANNEL) {
        uint8_t *out = add_tensor(m, name, "BF16", 2, rows, 1);
        for (size_t i = 0; i < rows; i++) {
            uint16_t half = bf16_from_f32(next_scale(m, cols));
            memcpy(out + 2 * i, &half, sizeof half);
        }
        return;
    }
    bool blocks = s->by == BY_BLOCK;
    size_t down = blocks ? (rows + s->block - 1) / s->block : 1;
    size_t along = blocks ? (cols + s->block - 1) / s->block : 1;
    uint8_t *out = add_tensor(m, name, "F32", 4, down, blocks ? along : 0);
    for (size_t i = 0; i < down * along; i++) {
        float scale = next_scale(m, cols);
        memcpy(out + 4 * i, &scale, sizeof scale);
    }
    float infinite = INFINITY;
    if (s->bad_scale) memcpy(out + 4 * (down * along - 1), &infinite, sizeof infinite);
}

static inline void add_floats(maker *m, const char *module, size_t rows, size_t cols)
{
    char name[256];
    snprintf(name, sizeof name, "%s.weight", module);
    uint8_t *out = add_tensor(m, name, "F8_E4M3", 1, rows, cols);
    for (size_t i = 0; i < rows * cols; i++) /* 2^-5 to 2, of either sign, and some denormals */
        out[i] = (uint8_t)((rng_u32(&m->random) & 0x87) |
                           (i % 50 == 0 ? 0 : 2 + rng_below(&m->random, 6)) << 3);
    if (m->s->bad_value) out[rows * cols - 1] = 0xff;
    add_scales(m, module, rows, cols);
}

static inline void add_layer(maker *m, unsigned l)
{
    const shape *s = m->s;
    char at[64], name[112];
    snprintf(at, sizeof at, "model.layers.%u", l);
#define MODULE(what) (snprintf(name, sizeof name, "%s." what, at), name)
    add_plain(m, MODULE("input_layernorm.weight"), HIDDEN, 0);
    add_plain(m, MODULE("post_attention_layernorm.weight"), HIDDEN, 0);
    add_plain(m, MODULE("self_attn.q_norm.weight"), DIM, 0);
    add_plain(m, MODULE("self_attn.k_norm.weight"), DIM, 0);
    add_floats(m, MODULE("self_attn.q_proj"), HEADS * DIM, HIDDEN);
    if (s->plain_k) add_plain(m, MODULE("self_attn.k_proj.weight"), KV_HEADS * DIM, HIDDEN);
    else add_floats(m, MODULE("self_attn.k_proj"), KV_HEADS * DIM, HIDDEN);
    add_floats(m, MODULE("self_attn.v_proj"), KV_HEADS * DIM, HIDDEN);
    add_floats(m, MODULE("self_attn.o_proj"), HIDDEN, HEADS * DIM);
    if (s->n_experts) add_plain(m, MODULE("mlp.gate.weight"), s->n_experts, HIDDEN);
#undef MODULE
    for (uint32_t e = 0; e < (s->n_experts ? s->n_experts : 1); e++) {
        char mlp[96];
        if (s->n_experts) snprintf(mlp, sizeof mlp, "%s.mlp.experts.%u", at, e);
        else snprintf(mlp, sizeof mlp, "%s.mlp", at);
        snprintf(name, sizeof name, "%s.gate_proj", mlp);
        add_floats(m, name, s->ffn, HIDDEN);
        snprintf(name, sizeof name, "%s.up_proj", mlp);
        add_floats(m, name, s->ffn, HIDDEN);
        snprintf(name, sizeof name, "%s.down_proj", mlp);
        add_floats(m, name, HIDDEN, s->ffn);
    }
}

static inline void write_config(maker *m)
{
    const shape *s = m->s;
    strbuf text = {0};
    strbuf_printf(&text,
                  "{\"architectures\": [\"Qwen3%sForCausalLM\"], \"hidden_size\": %d, "
                  "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
                  "\"num_key_value_heads\": %d, \"head_dim\": %d, \"vocab_size\": %d, "
                  "\"intermediate_size\": %zu, \"moe_intermediate_size\": %zu, "
                  "\"num_experts\": %u, \"num_experts_per_tok\": 2, \"norm_topk_prob\": true, "
                  "\"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, "
                  "\"torch_dtype\": \"bfloat16\", \"tie_word_embeddings\": %s, "
                  "\"quantization_config\": ",
                  s->n_experts ? "Moe" : "", HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, VOCAB, s->ffn,
                  s->ffn, s->n_experts, s->head ? "false" : "true");
    if (s->by == BY_CHANNEL)
        strbuf_puts(&text, "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": "
                           "{\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, \"type\": "
                           "\"float\", \"strategy\": \"channel\"}}}}}");
    else if (s->by == BY_BLOCK)
        strbuf_printf(&text, "{\"quant_method\": \"fp8\", \"weight_block_size\": [%zu, %zu]}}",
                      s->block, s->block);
    else strbuf_puts(&text, "{\"quant_method\": \"fp8\"}}");
    folder_puts(&m->f, "config.json", text.data);
    strbuf_destroy(&text);
}

static inline folder make_model(const shape *s)
{
    maker m = {.s = s, .random = rng_seed(7)};
    folder_make(&m.f);
    write_config(&m);
    add_plain(&m, "model.embed_tokens.weight", VOCAB, HIDDEN);
    for (unsigned l = 0; l < LAYERS; l++) add_layer(&m, l);
    add_plain(&m, "model.norm.weight", HIDDEN, 0);
    if (s->head) add_floats(&m, "lm_head", VOCAB, HIDDEN);
    strbuf_puts(&m.header, "}");
    folder_safetensors(&m.f, "model.safetensors", m.header.data, m.data, m.n);
    strbuf_destroy(&m.header);
    free(m.data);
    return m.f;
}

static inline pass pass_of(const folder *f, uint32_t chunk)
{
    return (pass){.dir = f->dir,
                  .kv_type = KERN_KV_BF16,
                  .bf16 = true,
                  .precision = KERN_PRECISION_HIGH,
                  .page_tokens = 16,
                  .layers_per_group = 1,
                  .chunk = chunk,
                  .n_threads = 1};
}

static inline pass on_gpu(pass p)
{
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.gpu_kv = GPU_KV_BF16;
    return p;
}

#endif
