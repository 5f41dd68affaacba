/* Property: a configuration is refused in one line that names its place, or every field is inside
 * the limits that the rest of model/ relies on, and its tensors can be listed.
 *
 * Input: config.json, generation_config.json (empty = none) and an override, with NUL between
 * them. */
#include "model/config.h"
#include "model/load/tensors.h"
#include "model/rope.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <string.h>

static void check_rope(const rope_config *r)
{
    FUZZ_CHECK(r->theta >= 1.0 && isfinite(r->theta) && r->factor >= 1.0 && isfinite(r->factor));
    FUZZ_CHECK(r->attention_factor > 0.0 && isfinite(r->attention_factor));
    if (r->kind != ROPE_LLAMA3 && r->kind != ROPE_YARN && r->kind != ROPE_LONGROPE) return;
    FUZZ_CHECK(r->original_max_positions > 0);
    if (r->kind != ROPE_LLAMA3) return;
    FUZZ_CHECK(r->low_freq_factor > 0.0 && r->low_freq_factor < r->high_freq_factor);
}

/* Wrong frequencies would show only as nonsense in the model's answers: they must be finite. */
static void check_frequencies(const model_config *c)
{
    float inv_freq[MODEL_HEAD_DIM_MAX / 2];
    rope_frequencies(&c->rope, c->head_dim, inv_freq);
    for (uint32_t i = 0; i < c->head_dim / 2; i++) FUZZ_CHECK(isfinite(inv_freq[i]));
}

static void check_layers(const model_config *c)
{
    bool dense = false;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        bool sparse = c->layers[l] & LAYER_SPARSE;
        dense = dense || !sparse;
        FUZZ_CHECK(!(c->layers[l] & LAYER_WINDOW) || c->window > 0);
        FUZZ_CHECK(!sparse || (c->n_experts > 0 && c->expert_ffn > 0));
    }
    FUZZ_CHECK(dense == (c->ffn > 0));
    FUZZ_CHECK(c->n_experts == 0 ||
               (c->experts_per_token >= 1 && c->experts_per_token <= c->n_experts));
    FUZZ_CHECK(model_max_length(c) >= c->max_positions && model_max_length(c) <= 1u << 24);
}

static void check_sampling(const model_config *c)
{
    FUZZ_CHECK(isnan(c->temperature) || (c->temperature >= 0.0f && c->temperature <= 100.0f));
    FUZZ_CHECK(isnan(c->top_p) || (c->top_p > 0.0f && c->top_p <= 1.0f));
    FUZZ_CHECK(isnan(c->min_p) || (c->min_p >= 0.0f && c->min_p <= 1.0f));
    FUZZ_CHECK(isnan(c->repetition_penalty) ||
               (c->repetition_penalty > 0.0f && c->repetition_penalty <= 2.0f));
    FUZZ_CHECK(c->top_k >= -1);
}

static void check_config(const model_config *c)
{
    FUZZ_CHECK(c->family && strlen(c->architecture) > 0);
    FUZZ_CHECK(c->n_layers >= 1 && c->n_layers <= 1024);
    FUZZ_CHECK(c->hidden >= 1 && c->hidden <= 1u << 20);
    FUZZ_CHECK(c->n_kv_heads >= 1 && c->n_heads % c->n_kv_heads == 0 && c->n_heads <= 4096);
    FUZZ_CHECK(c->head_dim >= 16 && c->head_dim % 16 == 0 && c->head_dim <= 256);
    FUZZ_CHECK(c->vocab_size >= 1 && c->max_positions >= 1);
    FUZZ_CHECK(c->rms_eps >= 0.0f && c->rms_eps <= 1.0f);
    FUZZ_CHECK(c->n_stop_ids <= MODEL_STOPS_MAX);
    for (uint32_t i = 0; i < c->n_stop_ids; i++) FUZZ_CHECK(c->stop_ids[i] < c->vocab_size);
    FUZZ_CHECK(c->bos_id >= -1 && c->bos_id < c->vocab_size);
    check_layers(c);
    check_rope(&c->rope);
    check_frequencies(c);
    check_sampling(c);

    tensor_slice slice;
    tensor_part *parts;
    size_t n;
    FUZZ_CHECK(status_ok(tensor_slice_of(c, 0, 1, &slice, NULL)));
    FUZZ_CHECK(status_ok(tensors_list(c, &slice, &parts, &n, NULL)));
    for (size_t i = 0; i < n; i++) {
        const tensor_part *p = &parts[i];
        size_t run, last = tensor_part_row(p, p->n_rows - 1, &run);
        FUZZ_CHECK(p->n_rows > 0 && p->n_rows <= p->rows && last < p->rows && run == 1);
        FUZZ_CHECK(p->n_cols == p->cols && p->cols > 0);
        FUZZ_CHECK(strlen(p->name) < sizeof p->name - 1);
    }
    free(parts);
}

static bool one_line(const error *err, const char *start)
{
    return strncmp(err->text, start, strlen(start)) == 0 && !strchr(err->text, '\n');
}

/* NULL when the text is refused, which is allowed. */
static json_t *parsed(const char *where, const char *text, size_t n)
{
    json_t *json = NULL;
    error err = {""};
    status s = json_read_text(where, text, n, &json, &err);
    FUZZ_CHECK(status_ok(s) || one_line(&err, where));
    return json;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = calloc(1, size + 3); /* three strings, whatever the input */
    if (!text) return 0;
    if (size > 0) memcpy(text, data, size);
    const char *generation_text = text + strlen(text) + 1;
    const char *override = size > strlen(text) ? generation_text + strlen(generation_text) + 1 : "";
    if (size <= strlen(text)) generation_text = "";
    if (override > text + size) override = "";

    json_t *config = parsed("config", text, strlen(text));
    json_t *generation =
        *generation_text ? parsed("generation", generation_text, strlen(generation_text)) : NULL;
    error err = {""};
    if (json_is_object(config) && *override) {
        status s = model_config_override(config, override, &err);
        FUZZ_CHECK(status_ok(s) || one_line(&err, "override "));
    }
    model_config c;
    if (config) {
        status s = model_config_read(config, "config", generation, "generation", &c, &err);
        if (status_ok(s)) check_config(&c);
        else FUZZ_CHECK(one_line(&err, "config: ") || one_line(&err, "generation: "));
    }
    json_decref(config);
    json_decref(generation);
    free(text);
    return 0;
}
