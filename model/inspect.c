/* `octavo inspect`: reports what a folder holds, even if this build cannot run it. */
#include "model/config.h"
#include "model/family.h"
#include "model/load/gguf/gguf_model.h"
#include "model/load/quantized/quantized.h"
#include "model/load/tensors.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Reports a part's failure, which is not fatal. */
static void describe_problem(strbuf *out, status s, const error *err)
{
    strbuf_printf(out, "%s: %s\n", s.code == STATUS_UNSUPPORTED ? "unsupported" : "problem",
                  err->text);
}

/* ---- config.json ----------------------------------------------------------------------------- */

static void describe_rope(const char *key, const rope_config *r, strbuf *out)
{
    static const char *const names[] = {[ROPE_LINEAR] = "linear",
                                        [ROPE_DYNAMIC] = "dynamic",
                                        [ROPE_LLAMA3] = "llama3",
                                        [ROPE_YARN] = "yarn",
                                        [ROPE_LONGROPE] = "longrope"};
    strbuf_printf(out, "%s: theta %g", key, r->theta);
    if (r->kind != ROPE_DEFAULT) strbuf_printf(out, ", %s, factor %g", names[r->kind], r->factor);
    if (r->kind == ROPE_LLAMA3)
        strbuf_printf(out, ", low %g, high %g, original context %u", r->low_freq_factor,
                      r->high_freq_factor, r->original_max_positions);
    if (r->kind == ROPE_YARN || r->kind == ROPE_LONGROPE)
        strbuf_printf(out, ", original context %u, attention factor %g", r->original_max_positions,
                      r->attention_factor);
    strbuf_putc(out, '\n');
}

/* Lists the runs of layers that have the flag. */
static void describe_layers(const model_config *c, uint8_t flag, strbuf *out)
{
    for (uint32_t l = 0, end; l < c->n_layers; l = end + 1) {
        for (end = l; end < c->n_layers && c->layers[end] & flag;) end++;
        if (end == l + 1) strbuf_printf(out, " %u", l);
        else if (end > l) strbuf_printf(out, " %u-%u", l, end - 1);
    }
    strbuf_putc(out, '\n');
}

/* Reports what a plain Llama does not have. */
static void describe_extras(const model_config *c, strbuf *out)
{
    if (c->qkv_bias) strbuf_puts(out, "biases: q, k, v\n");
    if (c->qk_norm) strbuf_puts(out, "norms of heads: q, k\n");
    if (c->window) {
        strbuf_printf(out, "window: %u tokens, in layers", c->window);
        describe_layers(c, LAYER_WINDOW, out);
    }
    if (c->local_rope.theta != 0.0) {
        describe_rope("rope of layers with a window", &c->local_rope, out);
    }
    if (c->n_experts == 0) return;
    strbuf_printf(out, "experts: %u of ffn %u, %u for each token, in layers", c->n_experts,
                  c->expert_ffn, c->experts_per_token);
    describe_layers(c, LAYER_SPARSE, out);
    if (c->shared_ffn) strbuf_printf(out, "expert of every token: ffn %u\n", c->shared_ffn);
}

static void describe_sampling(const model_config *c, strbuf *out)
{
    const struct {
        const char *name;
        float value;
    } fields[] = {{"temperature", c->temperature},
                  {"top_p", c->top_p},
                  {"min_p", c->min_p},
                  {"repetition_penalty", c->repetition_penalty}};
    strbuf_printf(out, "sampling: do_sample %s", c->do_sample ? "true" : "false");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!isnan(fields[i].value))
            strbuf_printf(out, ", %s %g", fields[i].name, (double)fields[i].value);
    if (c->top_k >= 0) strbuf_printf(out, ", top_k %d", c->top_k);
    strbuf_putc(out, '\n');
}

static void describe_config(const model_config *c, strbuf *out)
{
    strbuf_printf(out, "architecture: %s\n", c->architecture);
    strbuf_printf(out, "layers: %u\nhidden: %u\nffn: %u\nvocabulary: %u\ncontext: %u\n",
                  c->n_layers, c->hidden, c->ffn, c->vocab_size, c->max_positions);
    strbuf_printf(out, "heads: %u query, %u key/value, %u elements each\n", c->n_heads,
                  c->n_kv_heads, c->head_dim);
    strbuf_printf(out, "tied embeddings: %s\n", c->tied_embeddings ? "yes" : "no");
    describe_rope("rope", &c->rope, out);
    describe_extras(c, out);
    strbuf_printf(out, "stored as: %s\n", dtype_name(c->stored));
    strbuf_printf(out, "kv bytes for each token: %zu in 16 bits\n",
                  (size_t)c->n_layers * c->n_kv_heads * c->head_dim * 2 * 2);
    strbuf_puts(out, "stop ids:");
    for (uint32_t i = 0; i < c->n_stop_ids; i++) strbuf_printf(out, " %u", c->stop_ids[i]);
    strbuf_puts(out, c->n_stop_ids ? "\n" : " none\n");
    if (c->bos_id >= 0) strbuf_printf(out, "bos id: %lld\n", (long long)c->bos_id);
    describe_sampling(c, out);
}

/* ---- weights --------------------------------------------------------------------------------- */

static void describe_tensors(const safetensors *st, strbuf *out)
{
    uint64_t bytes[SAFETENSORS_TYPES_N] = {0}, count[SAFETENSORS_TYPES_N] = {0}, parameters = 0;
    for (size_t i = 0; i < st->n_tensors; i++) {
        const safetensors_tensor *t = &st->tensors[i];
        uint64_t n = 1; /* cannot overflow: the reader checked the shape against the bytes */
        for (uint32_t d = 0; d < t->n_dims; d++) n *= t->shape[d];
        parameters += n;
        bytes[t->type] += t->bytes;
        count[t->type]++;
    }
    strbuf_printf(out, "files: %zu\nparameters: %llu in %zu tensors\n", st->n_files,
                  (unsigned long long)parameters, st->n_tensors);
    for (int t = 0; t < SAFETENSORS_TYPES_N; t++)
        if (count[t] > 0)
            strbuf_printf(out, "bytes of %s: %llu in %llu tensors\n",
                          safetensors_type_name((safetensors_type)t), (unsigned long long)bytes[t],
                          (unsigned long long)count[t]);
}

/* Counts tensors type by type, and names the types that this build cannot run. */
static void describe_gguf_tensors(const gguf *g, strbuf *out)
{
    enum { TYPES_MAX = 64 }; /* all type ids of the format are smaller */
    uint64_t bytes[TYPES_MAX] = {0}, count[TYPES_MAX] = {0}, parameters = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        const gguf_tensor *t = &g->tensors[i];
        parameters += t->bytes / t->type->bytes * t->type->elements;
        bytes[t->type->id] += t->bytes;
        count[t->type->id]++;
    }
    strbuf_printf(out, "parameters: %llu in %zu tensors\n", (unsigned long long)parameters,
                  g->n_tensors);
    for (uint32_t id = 0; id < TYPES_MAX; id++) {
        if (count[id] == 0) continue;
        const block_type *t = block_type_find(id);
        strbuf_printf(out, "bytes of %s: %llu in %llu tensors\n", t->name,
                      (unsigned long long)bytes[id], (unsigned long long)count[id]);
        if (!t->decode) strbuf_printf(out, "unsupported: tensors of type %s\n", t->name);
    }
}

/* Matches the configuration's tensors against st, or against g when st is NULL. */
static status match_tensors(const model_config *c, const safetensors *st, quantized *q,
                            const gguf *g, error *err)
{
    tensor_slice whole;
    tensor_part *parts;
    size_t n;
    RETURN_IF_ERROR(tensor_slice_of(c, 0, 1, &whole, err));
    RETURN_IF_ERROR(tensors_list(c, &whole, &parts, &n, err));
    status result = st ? tensors_match(c, st, q, parts, n, err) : gguf_match(c, g, parts, n, err);
    free(parts);
    return result;
}

static bool describe_file(const char *path, const model_config *c, strbuf *out)
{
    error err = {""};
    gguf g;
    status opened = gguf_open(path, &g, &err);
    if (!status_ok(opened)) {
        describe_problem(out, opened, &err);
        return false;
    }
    describe_gguf_tensors(&g, out);
    uint8_t bits = gguf_quant_bits(&g);
    if (bits) strbuf_printf(out, "quantize: auto is int%u\n", bits);
    status matched = c ? match_tensors(c, NULL, NULL, &g, &err) : STATUS_IS_OK;
    if (!status_ok(matched)) describe_problem(out, matched, &err);
    gguf_close(&g);
    return true;
}

/* c is NULL when config.json could not be read. */
static bool describe_weights(const char *dir, const model_config *c, strbuf *out)
{
    if (gguf_is_path(dir)) return describe_file(dir, c, out);
    error err = {""};
    safetensors st;
    status opened = safetensors_open(dir, &st, &err);
    if (!status_ok(opened)) {
        describe_problem(out, opened, &err);
        return false;
    }
    describe_tensors(&st, out);
    quantized q = {0};
    status matched = c && c->quantized ? quantized_open(dir, &q, &err) : STATUS_IS_OK;
    if (q.scheme) {
        strbuf_puts(out, "quantization: ");
        quantized_describe(&q, out);
        strbuf_putc(out, '\n');
    }
    if (c && status_ok(matched)) matched = match_tensors(c, &st, q.scheme ? &q : NULL, NULL, &err);
    if (!status_ok(matched)) describe_problem(out, matched, &err);
    quantized_close(&q);
    safetensors_close(&st);
    return true;
}

/* ---- tokenizer and template ------------------------------------------------------------------ */

static bool describe_tokenizer(const char *dir, strbuf *out)
{
    error err = {""};
    tokenizer *t;
    status loaded = model_tokenizer_load(dir, &t, &err);
    if (status_ok(loaded)) {
        strbuf_printf(out, "tokenizer: BPE, %u ids\n", tok_vocab_size(t));
        tok_destroy(t);
    } else if (loaded.code == STATUS_NOT_FOUND) {
        strbuf_puts(out, "tokenizer: none\n");
    } else {
        describe_problem(out, loaded, &err);
    }
    return loaded.code != STATUS_NOT_FOUND;
}

static void describe_template(const char *dir, strbuf *out)
{
    error err = {""};
    strbuf bos = {0}, eos = {0};
    chat_template *t = NULL;
    status loaded = model_template_load(dir, &t, &bos, &eos, &err);
    if (status_ok(loaded)) strbuf_printf(out, "chat template: %s\n", t ? "yes" : "none");
    else describe_problem(out, loaded, &err);
    tmpl_destroy(t);
    strbuf_destroy(&bos);
    strbuf_destroy(&eos);
}

status model_inspect(const char *dir, strbuf *out, error *err)
{
    model_config config;
    error config_error = {""};
    status read = model_config_load(dir, NULL, 0, &config, &config_error);
    if (status_ok(read)) describe_config(&config, out);
    else describe_problem(out, read, &config_error);

    bool weights = describe_weights(dir, status_ok(read) ? &config : NULL, out);
    bool tokens = describe_tokenizer(dir, out);
    describe_template(dir, out);
    if (!status_ok(read) && !weights && !tokens) /* the rest of out says why for each part */
        return error_set(err, read.code, "%s", config_error.text);
    return out->failed ? error_set(err, STATUS_NO_MEMORY, "%s: out of memory", dir) : STATUS_IS_OK;
}
