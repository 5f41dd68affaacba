/* model/load/weights.c: every weight of a small folder is where the forward pass reads it, whole
 * and in slices. */
#include "model/load/dummy.h"
#include "model/load/weights.h"
#include "tests/unit/model_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

enum { HIDDEN = 48, HEADS = 8, KV_HEADS = 2, HEAD_DIM = 16, FFN = 36, VOCAB = 50, LAYERS = 2 };

static const char config_json[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 48, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 16,"
    " \"intermediate_size\": 36, \"vocab_size\": 50, \"max_position_embeddings\": 512,"
    " \"torch_dtype\": \"bfloat16\"}";

/* ---- a folder of random weights -------------------------------------------------------------- */

typedef struct tensor {
    char name[96];
    size_t rows, cols; /* rows 0: a vector */
    dtype type;
    uint8_t *data;
    bool left_out;
} tensor;

typedef struct fixture {
    folder f;
    thread_pool *pool;
    kern_context *kernels;
    tensor tensors[32];
    size_t n;
} fixture;

static size_t count(const tensor *t) { return (t->rows ? t->rows : 1) * t->cols; }

static float value(const tensor *t, size_t i)
{
    uint16_t half;
    float f;
    if (t->type == DTYPE_F32) memcpy(&f, t->data + 4 * i, 4);
    if (t->type == DTYPE_F32) return f;
    memcpy(&half, t->data + 2 * i, 2);
    return t->type == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

/* The same random numbers for every type, rounded to it. */
static void fill(tensor *t, dtype type)
{
    rng r = rng_seed(hash_bytes(t->name, strlen(t->name), 5));
    t->type = type;
    t->data = realloc(t->data, count(t) * 4);
    for (size_t i = 0; i < count(t); i++) {
        float f = rng_normal(&r);
        uint16_t half = type == DTYPE_BF16 ? bf16_from_f32(f) : f16_from_f32(f);
        if (type == DTYPE_F32) memcpy(t->data + 4 * i, &f, 4);
        else memcpy(t->data + 2 * i, &half, 2);
    }
}

static void add(fixture *x, size_t rows, size_t cols, const char *pattern, int layer)
{
    tensor *t = &x->tensors[x->n++];
    *t = (tensor){.rows = rows, .cols = cols};
    snprintf(t->name, sizeof t->name, pattern, layer);
    fill(t, DTYPE_BF16);
}

static void append_entry(strbuf *header, const tensor *t, size_t from)
{
    static const char *const types[] = {"F32", "BF16", "F16"};
    strbuf_printf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", header->size > 1 ? "," : "",
                  t->name, types[t->type]);
    if (t->rows) strbuf_printf(header, "%zu,", t->rows);
    strbuf_printf(header, "%zu],\"data_offsets\":[%zu,%zu]}", t->cols, from,
                  from + count(t) * dtype_bytes(t->type));
}

/* Writes tensors [from, to) into one file; `padding` blanks behind the header move the data. */
static void write_some(const fixture *x, const char *name, size_t from, size_t to, unsigned padding)
{
    strbuf header = {0}, data = {0};
    strbuf_putc(&header, '{');
    for (size_t i = from; i < to; i++) {
        const tensor *t = &x->tensors[i];
        if (t->left_out) continue;
        append_entry(&header, t, data.size);
        strbuf_append(&data, t->data, count(t) * dtype_bytes(t->type));
    }
    strbuf_putc(&header, '}');
    while (padding--) strbuf_putc(&header, ' ');
    folder_safetensors(&x->f, name, header.data, data.data, data.size);
    strbuf_destroy(&header);
    strbuf_destroy(&data);
}

static void write_model(const fixture *x) { write_some(x, "model.safetensors", 0, x->n, 0); }

static int setup(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    folder_make(&x->f);
    folder_puts(&x->f, "config.json", config_json);
    thread_pool_options threads = {.n_threads = 2};
    assert_true(status_ok(thread_pool_create(&threads, &x->pool)));
    kern_options kernels = {.pool = x->pool};
    assert_true(status_ok(kern_create(&kernels, &x->kernels, NULL)));
    for (int l = 0; l < LAYERS; l++) {
        add(x, 0, HIDDEN, "model.layers.%d.input_layernorm.weight", l);
        add(x, HEADS * HEAD_DIM, HIDDEN, "model.layers.%d.self_attn.q_proj.weight", l);
        add(x, KV_HEADS * HEAD_DIM, HIDDEN, "model.layers.%d.self_attn.k_proj.weight", l);
        add(x, KV_HEADS * HEAD_DIM, HIDDEN, "model.layers.%d.self_attn.v_proj.weight", l);
        add(x, HIDDEN, HEADS * HEAD_DIM, "model.layers.%d.self_attn.o_proj.weight", l);
        add(x, 0, HIDDEN, "model.layers.%d.post_attention_layernorm.weight", l);
        add(x, FFN, HIDDEN, "model.layers.%d.mlp.gate_proj.weight", l);
        add(x, FFN, HIDDEN, "model.layers.%d.mlp.up_proj.weight", l);
        add(x, HIDDEN, FFN, "model.layers.%d.mlp.down_proj.weight", l);
    }
    add(x, VOCAB, HIDDEN, "model.embed_tokens.weight", 0);
    add(x, 0, HIDDEN, "model.norm.weight", 0);
    add(x, VOCAB, HIDDEN, "lm_head.weight", 0);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    fixture *x = *state;
    for (size_t i = 0; i < x->n; i++) free(x->tensors[i].data);
    kern_destroy(x->kernels);
    thread_pool_destroy(x->pool);
    folder_remove(&x->f);
    free(x);
    return 0;
}

static tensor *find(fixture *x, const char *pattern, uint32_t layer)
{
    char name[96];
    snprintf(name, sizeof name, pattern, layer);
    for (size_t i = 0; i < x->n; i++)
        if (strcmp(x->tensors[i].name, name) == 0) return &x->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* ---- loading --------------------------------------------------------------------------------- */

typedef struct how {
    const char *override; /* JSON over config.json */
    dtype type;
    bool dummy;
    uint64_t seed;
    int rank, size; /* size 0 = 1 */
    kern_quant quant;
    uint8_t attention_bits;
} how;

static status load(fixture *x, how h, model_weights *w, error *err)
{
    model_config c;
    RETURN_IF_ERROR(model_config_load(x->f.dir, &h.override, h.override ? 1 : 0, &c, err));
    weights_options options = {
        .dir = x->f.dir,
        .config = &c,
        .dummy = h.dummy,
        .dummy_seed = h.seed,
        .type = h.type,
        .quant = h.quant,
        .attention_bits = h.attention_bits,
        .kernels = x->kernels,
        .rank = h.rank,
        .size = h.size ? h.size : 1,
    };
    return weights_load(&options, w, err);
}

static model_weights loaded(fixture *x, how h)
{
    model_weights w;
    error err = {""};
    if (!status_ok(load(x, h, &w, &err))) fail_msg("%s", err.text);
    return w;
}

static float rounded(float f, dtype type)
{
    if (type == DTYPE_BF16) return bf16_to_f32(bf16_from_f32(f));
    if (type == DTYPE_F16) return f16_to_f32(f16_from_f32(f));
    return f;
}

/* Rows [row, row + n) of m are rows [first, first + n), columns [col, col + m->k) of t, rounded to
 * m's type. */
static void check_rows(fixture *x, const kern_matrix *m, size_t row, const tensor *t, size_t first,
                       size_t n, size_t col)
{
    float out[256];
    assert_true(m->k <= 256 && row + n <= m->n && (uintptr_t)m->data % 64 == 0);
    for (size_t i = 0; i < n; i++) {
        kern_matrix_row(x->kernels, m, row + i, out);
        for (size_t k = 0; k < m->k; k++) {
            float due = first + i < t->rows ? value(t, (first + i) * t->cols + col + k) : 0.0f;
            if (out[k] != rounded(due, m->type))
                fail_msg("%s: row %zu, column %zu: %g, due %g", t->name, first + i, col + k,
                         (double)out[k], (double)due);
        }
    }
}

static void check_vector(const float *v, const tensor *t)
{
    for (size_t i = 0; i < t->cols; i++) assert_true(v[i] == value(t, i));
}

/* Checks everything that a rank holds against the tensors, by the rules of weights.h. */
static void check_all(fixture *x, const model_weights *w, int rank, int size, bool tied)
{
    size_t q = HEADS / size * HEAD_DIM, ffn = FFN / size, tokens = (VOCAB + size - 1) / size;
    size_t kv = (KV_HEADS >= size ? KV_HEADS / size : 1) * HEAD_DIM;
    size_t first_kv = (size_t)rank * KV_HEADS / size * HEAD_DIM;
    for (uint32_t l = 0; l < LAYERS; l++) {
        const layer_weights *lw = &w->layers[l];
        assert_int_equal(lw->qkv.n, q + 2 * kv);
        assert_int_equal(lw->qkv.k, HIDDEN);
        check_rows(x, &lw->qkv, 0, find(x, "model.layers.%u.self_attn.q_proj.weight", l), rank * q,
                   q, 0);
        check_rows(x, &lw->qkv, q, find(x, "model.layers.%u.self_attn.k_proj.weight", l), first_kv,
                   kv, 0);
        check_rows(x, &lw->qkv, q + kv, find(x, "model.layers.%u.self_attn.v_proj.weight", l),
                   first_kv, kv, 0);
        assert_int_equal(lw->o.n, HIDDEN);
        assert_int_equal(lw->o.k, q);
        check_rows(x, &lw->o, 0, find(x, "model.layers.%u.self_attn.o_proj.weight", l), 0, HIDDEN,
                   rank * q);
        assert_int_equal(lw->gate_up.n, 2 * ffn);
        check_rows(x, &lw->gate_up, 0, find(x, "model.layers.%u.mlp.gate_proj.weight", l),
                   rank * ffn, ffn, 0);
        check_rows(x, &lw->gate_up, ffn, find(x, "model.layers.%u.mlp.up_proj.weight", l),
                   rank * ffn, ffn, 0);
        assert_int_equal(lw->down.k, ffn);
        check_rows(x, &lw->down, 0, find(x, "model.layers.%u.mlp.down_proj.weight", l), 0, HIDDEN,
                   rank * ffn);
        check_vector(lw->attn_norm, find(x, "model.layers.%u.input_layernorm.weight", l));
        check_vector(lw->ffn_norm, find(x, "model.layers.%u.post_attention_layernorm.weight", l));
    }
    assert_int_equal(w->slice.first_token, rank * tokens);
    assert_int_equal(w->embed.n, tokens);
    assert_int_equal(w->head.n, tokens);
    check_rows(x, &w->embed, 0, find(x, "model.embed_tokens.weight", 0), rank * tokens, tokens, 0);
    check_rows(x, &w->head, 0, find(x, tied ? "model.embed_tokens.weight" : "lm_head.weight", 0),
               rank * tokens, tokens, 0);
    assert_int_equal(tied, w->head.data == w->embed.data);
    check_vector(w->norm, find(x, "model.norm.weight", 0));
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void every_type_to_every_type(void **state)
{
    fixture *x = *state;
    static const dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    for (int s = 0; s < 3; s++) {
        for (size_t i = 0; i < x->n; i++) fill(&x->tensors[i], types[s]);
        write_model(x);
        for (int t = 0; t < 3; t++) {
            model_weights w = loaded(x, (how){.type = types[t]});
            /* 16-bit weights keep their type under f32 */
            dtype due = types[t] == DTYPE_F32 ? types[s] : types[t];
            assert_int_equal(w.embed.type, due);
            assert_int_equal(w.layers[1].qkv.type, due);
            check_all(x, &w, 0, 1, false);
            weights_destroy(&w);
            weights_destroy(&w);
        }
    }
}

static void parts_of_different_types(void **state)
{
    fixture *x = *state;
    fill(find(x, "model.layers.%u.self_attn.k_proj.weight", 0), DTYPE_F16);
    fill(find(x, "model.layers.%u.mlp.down_proj.weight", 1), DTYPE_F16);
    fill(find(x, "model.norm.weight", 0), DTYPE_F32);
    write_model(x);
    model_weights w = loaded(x, (how){.type = DTYPE_F32});
    assert_int_equal(w.layers[0].qkv.type, DTYPE_F32);
    assert_int_equal(w.layers[1].qkv.type, DTYPE_BF16);
    assert_int_equal(w.layers[1].down.type, DTYPE_F16);
    check_all(x, &w, 0, 1, false);
    weights_destroy(&w);
    w = loaded(x, (how){.type = DTYPE_BF16});
    assert_int_equal(w.layers[0].qkv.type, DTYPE_BF16);
    assert_int_equal(w.layers[1].down.type, DTYPE_BF16);
    check_all(x, &w, 0, 1, false);
    weights_destroy(&w);
}

static void slices_make_the_whole(void **state)
{
    fixture *x = *state;
    write_model(x);
    model_weights whole = loaded(x, (how){.type = DTYPE_BF16});
    for (int size = 2; size <= 4; size *= 2) {
        for (int rank = 0; rank < size; rank++) {
            model_weights w = loaded(x, (how){.type = DTYPE_BF16, .rank = rank, .size = size});
            check_all(x, &w, rank, size, false);
            assert_true(w.identity == whole.identity);
            assert_true(w.bytes < whole.bytes);
            weights_destroy(&w);
        }
    }
    weights_destroy(&whole);

    model_weights w;
    error err = {""};
    status s = load(x, (how){.type = DTYPE_BF16, .size = 3}, &w, &err);
    assert_int_equal(s.code, STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "\"num_attention_heads\" 8 cannot be cut for 3 ranks"));
    s = load(x, (how){.type = DTYPE_BF16, .size = 8}, &w, &err);
    assert_int_equal(s.code, STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "intermediate_size"));
}

static void shards_and_odd_addresses(void **state)
{
    fixture *x = *state;
    fill(find(x, "model.layers.%u.self_attn.o_proj.weight", 0), DTYPE_F32);
    for (unsigned padding = 0; padding < 4; padding++) {
        write_some(x, "model.safetensors", 0, x->n, padding);
        model_weights w = loaded(x, (how){.type = DTYPE_BF16});
        check_all(x, &w, 0, 1, false);
        weights_destroy(&w);
    }
    write_some(x, "a.safetensors", 0, 7, 1);
    write_some(x, "b.safetensors", 7, x->n, 0);
    folder_puts(&x->f, "model.safetensors", "not in the index");
    strbuf index = {0};
    strbuf_puts(&index, "{\"weight_map\":{");
    for (size_t i = 0; i < x->n; i++)
        strbuf_printf(&index, "%s\"%s\":\"%c.safetensors\"", i ? "," : "", x->tensors[i].name,
                      i < 7 ? 'a' : 'b');
    strbuf_puts(&index, "}}");
    folder_puts(&x->f, "model.safetensors.index.json", index.data);
    strbuf_destroy(&index);
    model_weights w = loaded(x, (how){.type = DTYPE_BF16});
    check_all(x, &w, 0, 1, false);
    weights_destroy(&w);
}

static void tied_head(void **state)
{
    fixture *x = *state;
    how tied = {.override = "tie_word_embeddings=true", .type = DTYPE_BF16};
    write_model(x); /* with a head, which must be ignored */
    model_weights w = loaded(x, tied);
    check_all(x, &w, 0, 1, true);
    uint64_t identity = w.identity;
    weights_destroy(&w);
    find(x, "lm_head.weight", 0)->left_out = true;
    write_model(x);
    w = loaded(x, tied);
    check_all(x, &w, 0, 1, true);
    assert_true(w.identity == identity);
    weights_destroy(&w);

    error err = {""};
    assert_int_equal(load(x, (how){.type = DTYPE_BF16}, &w, &err).code, STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "model.safetensors: tensor \"lm_head.weight\" is missing"));
}

static void refused(fixture *x, status_code code, const char *says)
{
    model_weights w;
    error err = {""};
    write_model(x);
    status s = load(x, (how){.type = DTYPE_BF16}, &w, &err);
    if (s.code != code || !strstr(err.text, says) || !strstr(err.text, "model.safetensors: "))
        fail_msg("due \"%s\", is %s: %s", says, status_text(s.code), err.text);
}

static void wrong_tensors(void **state)
{
    fixture *x = *state;
    tensor *down = find(x, "model.layers.%u.mlp.down_proj.weight", 1), kept = *down;
    down->left_out = true;
    refused(x, STATUS_CORRUPT, "tensor \"model.layers.1.mlp.down_proj.weight\" is missing");
    down->left_out = false;
    down->rows = FFN, down->cols = HIDDEN;
    refused(x, STATUS_CORRUPT,
            "tensor \"model.layers.1.mlp.down_proj.weight\" is [36, 48], config.json makes it [48, "
            "36]");
    down->rows = 0, down->cols = HIDDEN * FFN;
    refused(x, STATUS_CORRUPT, "is [1728], config.json makes it [48, 36]");
    *down = kept;

    tensor *norm = find(x, "model.norm.weight", 0);
    norm->rows = 1;
    refused(x, STATUS_CORRUPT, "is [1, 48], config.json makes it [48]");
    norm->rows = 48, norm->cols = 1;
    refused(x, STATUS_CORRUPT, "is [48, 1], config.json makes it [48]");
    norm->rows = 0, norm->cols = 48;

    /* An unused tensor: only buffers of old exporters are ignored. */
    add(x, 0, 8, "model.layers.%d.self_attn.rotary_emb.inv_freq", 0);
    add(x, 4, 8, "model.layers.%d.self_attn.rotary_emb.cos_cached", 1);
    write_model(x);
    model_weights w = loaded(x, (how){.type = DTYPE_BF16});
    check_all(x, &w, 0, 1, false);
    weights_destroy(&w);
    add(x, 0, HIDDEN, "model.layers.%d.self_attn.q_proj.bias", 1);
    refused(x, STATUS_UNSUPPORTED,
            "tensor \"model.layers.1.self_attn.q_proj.bias\" is not part of a LlamaForCausalLM");
}

static void unreadable_types(void **state)
{
    fixture *x = *state;
    static const char *const types[] = {"F8_E4M3", "I8", "F64"};
    for (int i = 0; i < 3; i++) {
        char text[256];
        size_t bytes = i == 2 ? 8 : 1;
        snprintf(text, sizeof text,
                 "{\"model.embed_tokens.weight\":{\"dtype\":\"%s\",\"shape\":[50,48],"
                 "\"data_offsets\":[0,%zu]}}",
                 types[i], 50 * 48 * bytes);
        uint8_t *data = calloc(50 * 48, bytes);
        folder_safetensors(&x->f, "model.safetensors", text, data, 50 * 48 * bytes);
        free(data);
        model_weights w;
        error err = {""};
        assert_int_equal(load(x, (how){.type = DTYPE_BF16}, &w, &err).code, STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.text, "\"model.embed_tokens.weight\": dtype"));
        assert_non_null(strstr(err.text, types[i]));
    }
}

static void identity_follows_content(void **state)
{
    fixture *x = *state;
    write_model(x);
    how plain = {.type = DTYPE_BF16};
    model_weights w = loaded(x, plain), v = loaded(x, plain);
    assert_true(w.identity == v.identity);
    weights_destroy(&v);
    v = loaded(x, (how){.type = DTYPE_BF16, .override = "rope_theta=20000"});
    assert_true(w.identity != v.identity);
    weights_destroy(&v);
    find(x, "model.layers.%u.self_attn.k_proj.weight", 1)->data[0] ^= 1;
    write_model(x);
    v = loaded(x, plain);
    assert_true(w.identity != v.identity);
    weights_destroy(&v);
    weights_destroy(&w);
}

/* ---- dummy weights --------------------------------------------------------------------------- */

static float *unpacked(fixture *x, const kern_matrix *m)
{
    float *out = malloc(m->n * m->k * sizeof *out);
    for (size_t i = 0; i < m->n; i++) kern_matrix_row(x->kernels, m, i, out + i * m->k);
    return out;
}

/* Copies the dummy model's values to the fixture's tensors, so that check_all can compare
 * slices. */
static void adopt(fixture *x, const char *pattern, uint32_t layer, const kern_matrix *m, size_t row)
{
    tensor *t = find(x, pattern, layer);
    fill(t, DTYPE_F32);
    float *all = unpacked(x, m);
    memcpy(t->data, all + row * m->k, count(t) * sizeof *all);
    free(all);
}

static void adopt_all(fixture *x, const model_weights *w)
{
    size_t q = HEADS * HEAD_DIM, kv = KV_HEADS * HEAD_DIM;
    for (uint32_t l = 0; l < LAYERS; l++) {
        const layer_weights *lw = &w->layers[l];
        adopt(x, "model.layers.%u.self_attn.q_proj.weight", l, &lw->qkv, 0);
        adopt(x, "model.layers.%u.self_attn.k_proj.weight", l, &lw->qkv, q);
        adopt(x, "model.layers.%u.self_attn.v_proj.weight", l, &lw->qkv, q + kv);
        adopt(x, "model.layers.%u.self_attn.o_proj.weight", l, &lw->o, 0);
        adopt(x, "model.layers.%u.mlp.gate_proj.weight", l, &lw->gate_up, 0);
        adopt(x, "model.layers.%u.mlp.up_proj.weight", l, &lw->gate_up, FFN);
        adopt(x, "model.layers.%u.mlp.down_proj.weight", l, &lw->down, 0);
    }
    adopt(x, "model.embed_tokens.weight", 0, &w->embed, 0);
    adopt(x, "lm_head.weight", 0, &w->head, 0);
    for (size_t i = 0; i < x->n; i++) {
        tensor *t = &x->tensors[i];
        if (t->rows > 0) continue;
        fill(t, DTYPE_F32);
        for (size_t k = 0; k < t->cols; k++) ((float *)(void *)t->data)[k] = 1.0f;
    }
}

static void dummy_slices_make_the_whole(void **state)
{
    fixture *x = *state;
    how dummy = {.type = DTYPE_F32, .dummy = true, .seed = 9};
    model_weights w = loaded(x, dummy); /* there is no weight file */
    assert_int_equal(w.embed.type, DTYPE_BF16);
    adopt_all(x, &w);
    check_all(x, &w, 0, 1, false);
    for (int size = 2; size <= 4; size *= 2) {
        for (int rank = 0; rank < size; rank++) {
            dummy.rank = rank, dummy.size = size;
            model_weights v = loaded(x, dummy);
            check_all(x, &v, rank, size, false);
            assert_true(v.identity == w.identity);
            weights_destroy(&v);
        }
    }
    model_weights v = loaded(x, (how){.type = DTYPE_F32, .dummy = true, .seed = 10});
    float a[HIDDEN], b[HIDDEN];
    kern_matrix_row(x->kernels, &w.embed, 3, a);
    kern_matrix_row(x->kernels, &v.embed, 3, b);
    assert_memory_not_equal(a, b, sizeof a);
    assert_true(v.identity != w.identity);
    weights_destroy(&v);
    weights_destroy(&w);
}

/* ---- quantised ------------------------------------------------------------------------------- */

/* Checks that the columns from `first` on, of the first rows of a, are all of b. */
static void check_columns(fixture *x, const kern_matrix *a, size_t first, const kern_matrix *b)
{
    float all[256], some[256];
    assert_true(a->k <= 256 && first + b->k <= a->k);
    assert_true(b->quant.bits == a->quant.bits && b->quant.group == a->quant.group);
    for (size_t i = 0; i < b->n; i++) {
        kern_matrix_row(x->kernels, a, i, all);
        kern_matrix_row(x->kernels, b, i, some);
        assert_memory_equal(all + first, some, b->k * sizeof *some);
    }
}

static void quantised_slices_make_the_whole(void **state)
{
    fixture *x = *state;
    how h = {.type = DTYPE_BF16, .dummy = true, .override = "intermediate_size=128"};
    h.quant = (kern_quant){4, 32};
    model_weights w = loaded(x, h);
    assert_int_equal(w.embed.quant.bits, 0);
    assert_int_equal(w.head.quant.bits, 8);
    for (int size = 2; size <= 4; size *= 2)
        for (int rank = 0; rank < size; rank++) {
            h.rank = rank, h.size = size;
            model_weights v = loaded(x, h);
            assert_true(v.identity == w.identity);
            for (uint32_t l = 0; l < LAYERS; l++) {
                const layer_weights *whole = &w.layers[l], *part = &v.layers[l];
                check_columns(x, &whole->o, (size_t)rank * part->o.k, &part->o);
                check_columns(x, &whole->down, (size_t)rank * part->down.k, &part->down);
                if (rank == 0) { /* its query heads come first */
                    kern_matrix q = part->qkv;
                    q.n = (size_t)HEADS / (size_t)size * HEAD_DIM;
                    check_columns(x, &whole->qkv, 0, &q);
                }
            }
            weights_destroy(&v);
        }
    h.rank = 0, h.size = 1;
    h.quant.bits = 8;
    model_weights v = loaded(x, h);
    assert_true(v.identity != w.identity);
    weights_destroy(&v);
    weights_destroy(&w);
}

/* Each matrix equals the one loaded when all matrices have its bits. */
static void mixed_bits_are_of_attention(void **state)
{
    fixture *x = *state;
    how h = {.type = DTYPE_BF16, .dummy = true, .quant = {4, 32}};
    model_weights four = loaded(x, h);
    h.attention_bits = 8;
    model_weights mixed = loaded(x, h);
    h = (how){.type = DTYPE_BF16, .dummy = true, .quant = {8, 32}};
    model_weights eight = loaded(x, h);
    const layer_weights *m = &mixed.layers[1], *a = &eight.layers[1], *b = &four.layers[1];
    const kern_matrix *is[] = {&m->qkv, &m->o, &m->gate_up, &m->down};
    const kern_matrix *as[] = {&a->qkv, &a->o, &b->gate_up, &b->down};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(is[i]->quant.bits, as[i]->quant.bits);
        assert_memory_equal(is[i]->data, as[i]->data, kern_matrix_size(as[i]));
    }
    assert_true(mixed.identity != four.identity && mixed.identity != eight.identity);
    weights_destroy(&four);
    weights_destroy(&mixed);
    weights_destroy(&eight);
}

/* The best ISA packs what the reference packs; a tied head is a copy. */
static void quantised_as_by_the_reference(void **state)
{
    fixture *x = *state;
    how h = {.type = DTYPE_BF16, .dummy = true, .override = "tie_word_embeddings=true"};
    kern_context *best = x->kernels, *ref = NULL;
    assert_true(status_ok(kern_create(&(kern_options){.pool = x->pool, .isa = "ref"}, &ref, NULL)));
    for (uint8_t bits = 4; bits <= 8; bits += 4) {
        h.quant = (kern_quant){bits, 64};
        model_weights a = loaded(x, h);
        x->kernels = ref;
        model_weights b = loaded(x, h);
        x->kernels = best;
        assert_ptr_not_equal(a.head.data, a.embed.data);
        const kern_matrix *as[] = {&a.head, &a.layers[1].qkv, &a.layers[1].down};
        const kern_matrix *bs[] = {&b.head, &b.layers[1].qkv, &b.layers[1].down};
        for (size_t i = 0; i < 3; i++)
            assert_memory_equal(as[i]->data, bs[i]->data, kern_matrix_size(as[i]));
        weights_destroy(&a);
        weights_destroy(&b);
    }
    kern_destroy(ref);
}

static void ranks_that_cut_a_group_are_refused(void **state)
{
    fixture *x = *state;
    how h = {.type = DTYPE_BF16, .dummy = true, .size = 2, .quant = {8, 32}};
    model_weights w;
    error err = {""};
    assert_int_equal(load(x, h, &w, &err).code, STATUS_UNSUPPORTED); /* 36 columns for two ranks */
    assert_non_null(strstr(err.text, "down_proj"));
    h.override = "intermediate_size=128";
    h.quant.group = 128;
    assert_int_equal(load(x, h, &w, &err).code, STATUS_UNSUPPORTED); /* 64 columns of o */
    assert_non_null(strstr(err.text, "o_proj"));
}

/* The mean of a[i] * a[i + lag], in units of the variance. */
static double correlation(const float *a, size_t n, size_t lag)
{
    double sum = 0.0;
    for (size_t i = lag; i < n; i++) sum += (double)a[i] * (double)a[i - lag];
    return sum / (double)(n - lag) * HIDDEN;
}

static void dummy_values_are_spread(void **state)
{
    fixture *x = *state;
    how dummy = {.type = DTYPE_F32, .dummy = true, .seed = 3, .override = "vocab_size=40000"};
    model_weights w = loaded(x, dummy);
    float *all = unpacked(x, &w.embed);
    size_t n = w.embed.n * w.embed.k;
    double sum = 0.0, below = 0.0, error5 = 5.0 / sqrt((double)n); /* five standard errors */
    for (size_t i = 0; i < n; i++) {
        double v = (double)all[i] * sqrt((double)HIDDEN); /* normal, deviation 1 */
        sum += v;
        below += v < -1.0;
    }
    assert_true(fabs(sum / (double)n) < error5);
    assert_true(fabs(below / (double)n - 0.1587) < 0.003); /* in steps of 1 / 256 */
    assert_true(fabs(correlation(all, n, 0) - 1.0) < error5 * sqrt(2.0) + 0.002); /* of bf16 */
    static const size_t lags[] = {1, 2, 7, 8, 16, HIDDEN, 2 * HIDDEN};
    for (int i = 0; i < 7; i++) assert_true(fabs(correlation(all, n, lags[i])) < error5);
    free(all);
    weights_destroy(&w);

    dummy_tensor t;
    dummy_tensor_init(&t, 1, "a", 100, DTYPE_F32);
    double square = 0.0;
    for (int i = 0; i < 256; i++) {
        float v;
        memcpy(&v, &t.table[i], sizeof v);
        square += (double)v * (double)v;
    }
    assert_true(fabs(square / 256.0 * 100.0 - 1.0) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_type_to_every_type, setup, teardown),
        cmocka_unit_test_setup_teardown(parts_of_different_types, setup, teardown),
        cmocka_unit_test_setup_teardown(slices_make_the_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(shards_and_odd_addresses, setup, teardown),
        cmocka_unit_test_setup_teardown(tied_head, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(unreadable_types, setup, teardown),
        cmocka_unit_test_setup_teardown(identity_follows_content, setup, teardown),
        cmocka_unit_test_setup_teardown(dummy_slices_make_the_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(dummy_values_are_spread, setup, teardown),
        cmocka_unit_test_setup_teardown(quantised_slices_make_the_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(mixed_bits_are_of_attention, setup, teardown),
        cmocka_unit_test_setup_teardown(quantised_as_by_the_reference, setup, teardown),
        cmocka_unit_test_setup_teardown(ranks_that_cut_a_group_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
