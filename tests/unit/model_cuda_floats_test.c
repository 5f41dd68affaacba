/* Checkpoints of e4m3 on the CUDA backend (over the emulator): their matrices stay 8 bits on the
 * device, and logits are those of the CPU backend, which widens them. */
#include "tests/unit/model_folder.h"
#include "tests/unit/model_pass.h"

#include "kernels/cuda/cuda_kernels.h"
#include "tests/simt/device.h"

enum { TOKENS = 24, HIDDEN = 192, HEADS = 4, KV_HEADS = 2, DIM = 32, VOCAB = 48, LAYERS = 2 };

/* ---- a checkpoint ---------------------------------------------------------------------------- */

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

static uint8_t *add_tensor(maker *m, const char *name, const char *type, size_t element,
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
static void add_plain(maker *m, const char *name, size_t rows, size_t cols)
{
    uint8_t *out = add_tensor(m, name, "BF16", 2, rows, cols);
    for (size_t i = 0; i < rows * (cols ? cols : 1); i++) {
        uint16_t half = bf16_from_f32(cols ? rng_normal(&m->random) / sqrtf((float)cols) : 1.0f);
        memcpy(out + 2 * i, &half, sizeof half);
    }
}

/* Scales of a matrix differ by up to 16 times, so that one that is taken for another shows. */
static float next_scale(maker *m, size_t cols)
{
    return ldexpf(1.0f + (float)rng_below(&m->random, 256) / 256.0f,
                  (int)rng_below(&m->random, 4) - 3) /
           sqrtf((float)cols);
}

static void add_scales(maker *m, const char *module, size_t rows, size_t cols)
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

static void add_floats(maker *m, const char *module, size_t rows, size_t cols)
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

static void add_layer(maker *m, unsigned l)
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

static void write_config(maker *m)
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

static folder make_model(const shape *s)
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

/* ---- bytes on the device --------------------------------------------------------------------- */

/* Bytes of a matrix that is kept: with `in` columns that share a scale; 0: all. */
static uint64_t kept(size_t rows, size_t cols, size_t in)
{
    size_t tall = (rows + 15) / 16 * 16, wide = (cols + 31) / 32 * 32;
    return tall * wide + tall * (in ? (cols + in - 1) / in : 1) * 4;
}

/* `in` of o and down, which ranks cut; qkv and gate_up have columns of the whole. */
static uint64_t device_bytes(const shape *s, uint32_t ranks, size_t in, size_t in_o, size_t in_down)
{
    size_t qkv = (HEADS + 2 * KV_HEADS) * DIM / ranks, heads = HEADS * DIM / ranks;
    size_t ffn = s->ffn / ranks, vocab = VOCAB / ranks, n = s->n_experts ? s->n_experts : 1;
    uint64_t layer = (uint64_t)(2 * HIDDEN + 2 * DIM) * 4 + kept(HIDDEN, heads, in_o);
    layer += s->plain_k ? (uint64_t)qkv * HIDDEN * 2 : kept(qkv, HIDDEN, in);
    layer += n * (kept(2 * ffn, HIDDEN, in) + kept(HIDDEN, ffn, in_down));
    layer += (uint64_t)s->n_experts * HIDDEN * 2;
    uint64_t all = layer * LAYERS + vocab * HIDDEN * 2 + HIDDEN * 4;
    return all + (s->head ? kept(vocab, HIDDEN, in) : 0);
}

static void check_bytes(const pass *p, uint32_t ranks, uint64_t due)
{
    error err;
    model_config config;
    backend b;
    gpu_facts facts = {.n_sms = 2, .shared_bytes = 163 << 10, .free_bytes = 1 << 30};
    assert_true(status_ok(model_config_load(p->dir, NULL, 0, &config, &err)));
    backend_cuda_options o = {.common = {.dir = p->dir,
                                         .config = &config,
                                         .weight_type = DTYPE_BF16,
                                         .n_threads = 1,
                                         .geometry = {.page_tokens = 16,
                                                      .layers_per_group = 1,
                                                      .heads_per_group = KV_HEADS},
                                         .kv_bytes = 1 << 20,
                                         .max_rows = 40,
                                         .max_seqs = 3,
                                         .max_model_len = 64},
                              .gpu_facts = &facts};
    backend_measures m;
    if (!status_ok(backend_cuda_measure(&o, ranks, &m, &err))) fail_msg("%s", err.text);
    assert_int_equal(m.weight_bytes, due);
    o.api = octavo_cuda_api(GPU_API_VERSION);
    if (!status_ok(backend_cuda_ranks_create(&o, ranks, &b, &err))) fail_msg("%s", err.text);
    assert_int_equal(backend_cuda_ranks_describe(&b).weight_bytes, due * ranks);
    b.ops->destroy(b.ctx);
}

/* ---- logits ---------------------------------------------------------------------------------- */

static pass pass_of(const folder *f, uint32_t chunk)
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

static pass on_gpu(pass p)
{
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.gpu_kv = GPU_KV_BF16;
    return p;
}

static void check_logits(pass p, uint32_t n, double limit)
{
    uint32_t *tokens = malloc(n * sizeof *tokens);
    random_tokens(tokens, n, VOCAB);
    pass_result cpu = run(&p, tokens, n);
    p = on_gpu(p);
    pass_result ours = run(&p, tokens, n);
    double e = nmse(ours.logits, cpu.logits, (size_t)n * VOCAB);
    print_message("%u rows at once, %u ranks: NMSE of logits %.1e (< %.0e)\n", p.chunk, p.n_ranks,
                  e, limit);
    assert_true(e < limit);
    result_free(&cpu);
    result_free(&ours);
    free(tokens);
    assert_int_equal(simt_allocations(), 0);
}

/* Blocks of 128 beside matrices of other sizes, whose last blocks are not whole. */
static const shape by_block = {.by = BY_BLOCK, .block = 128, .ffn = 160};

static void logits_of_every_scale(void **state)
{
    (void)state;
    static const struct {
        shape s;
        size_t in; /* columns that share a scale on the device */
    } cases[] = {{{.by = BY_TENSOR, .ffn = 96}, 0},
                 {{.by = BY_CHANNEL, .ffn = 96, .head = true}, 0},
                 {{.by = BY_BLOCK, .block = 128, .ffn = 160}, 128},
                 {{.by = BY_BLOCK, .block = 96, .ffn = 160, .plain_k = true}, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const shape *s = &cases[i].s;
        size_t in = cases[i].in, along = HEADS * DIM > s->block ? in : 0;
        folder f = make_model(s);
        pass p = pass_of(&f, 5);
        check_bytes(&p, 1, device_bytes(s, 1, in, along, in));
        check_logits(p, TOKENS, 2e-4);
        folder_remove(&f);
    }
}

/* Beyond 128 rows the library multiplies bf16, which are rounded as the CPU's are. */
static void many_rows(void **state)
{
    (void)state;
    folder f = make_model(&by_block);
    check_logits(pass_of(&f, 140), 140, 2e-4);
    folder_remove(&f);
}

static void experts(void **state)
{
    (void)state;
    static const shape s = {.by = BY_BLOCK, .block = 128, .ffn = 64, .n_experts = 4};
    folder f = make_model(&s);
    pass p = pass_of(&f, 7);
    check_bytes(&p, 1, device_bytes(&s, 1, 128, 0, 0));
    check_logits(p, TOKENS, 3e-2);
    folder_remove(&f);
}

/* A rank's 64 of o's columns are a block; its 96 of down's are one and a half, so that runs of 32
 * share a scale on both ranks; its 56 are no runs of 32, so that down is widened. */
static void ranks_cut_blocks(void **state)
{
    (void)state;
    static const size_t ffn[] = {192, 112};
    for (size_t i = 0; i < sizeof ffn / sizeof *ffn; i++) {
        shape s = {.by = BY_BLOCK, .block = 64, .ffn = ffn[i]};
        folder f = make_model(&s);
        pass p = pass_of(&f, 9);
        uint64_t due = device_bytes(&s, 2, 64, 64, 32);
        if (i == 1) due += LAYERS * ((uint64_t)HIDDEN * 56 * 2 - kept(HIDDEN, 56, 32));
        check_bytes(&p, 2, due);
        p.n_ranks = 2;
        check_logits(p, TOKENS, 2e-4);
        folder_remove(&f);
    }
}

/* The CPU's weights and the GPU's of one folder have a file each. */
static void the_cache_of_packed_weights(void **state)
{
    (void)state;
    uint32_t tokens[TOKENS];
    folder f = make_model(&by_block), cache;
    folder_make(&cache);
    pass p = pass_of(&f, 8), ours = on_gpu(p);
    random_tokens(tokens, TOKENS, VOCAB);
    pass_result made = run(&ours, tokens, TOKENS), cpu = run(&p, tokens, TOKENS);
    p.cache_dir = ours.cache_dir = cache.dir;
    for (int i = 0; i < 2; i++) { /* written, then read */
        pass_result r = run(&ours, tokens, TOKENS), s = run(&p, tokens, TOKENS);
        assert_memory_equal(r.logits, made.logits, TOKENS * VOCAB * sizeof(float));
        assert_memory_equal(s.logits, cpu.logits, TOKENS * VOCAB * sizeof(float));
        result_free(&r);
        result_free(&s);
    }
    result_free(&made);
    result_free(&cpu);
    folder_remove(&cache);
    folder_remove(&f);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void expect_failure(const shape *s, const char *what)
{
    error err = {{0}};
    backend b;
    model_config config;
    comm *group;
    comm_options self = {.kind = "self", .size = 1};
    folder f = make_model(s);
    assert_true(status_ok(comm_create(&self, &group, NULL)));
    assert_true(status_ok(model_config_load(f.dir, NULL, 0, &config, &err)));
    backend_cuda_options o = {.common = {.dir = f.dir,
                                         .config = &config,
                                         .weight_type = DTYPE_BF16,
                                         .n_threads = 1,
                                         .group = group,
                                         .geometry = {.page_tokens = 16,
                                                      .layers_per_group = 1,
                                                      .heads_per_group = KV_HEADS},
                                         .kv_bytes = 1 << 20,
                                         .max_rows = 8,
                                         .max_seqs = 2,
                                         .max_model_len = 64},
                              .api = octavo_cuda_api(GPU_API_VERSION)};
    assert_false(status_ok(backend_cuda_create(&o, &b, &err)));
    if (!strstr(err.text, what)) fail_msg("\"%s\" is not in \"%s\"", what, err.text);
    comm_destroy(group);
    folder_remove(&f);
    assert_int_equal(simt_allocations(), 0);
}

static void values_that_are_not_finite(void **state)
{
    (void)state;
    shape s = by_block;
    s.bad_value = true;
    expect_failure(&s, "q_proj.weight\": row 127 holds NaN");
    s = by_block;
    s.bad_scale = true;
    expect_failure(&s, "q_proj.weight\": row 0 holds NaN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_every_scale),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(experts),
        cmocka_unit_test(ranks_cut_blocks),
        cmocka_unit_test(the_cache_of_packed_weights),
        cmocka_unit_test(values_that_are_not_finite),
    };
    simt_be_late(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
