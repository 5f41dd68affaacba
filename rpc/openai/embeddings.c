/* POST /v1/embeddings: texts in, one vector of each out. A vector is pooled from the last hidden
 * states of the text's tokens, behind the final norm: that of the last token, or their mean. */
#include "rpc/openai/internal.h"

#include <stdlib.h>
#include <string.h>

enum { HELD_BYTES_MAX = 256 * 1024 * 1024 }; // of the vectors of one answer, as text

static const openai_name names[] = {
    {"prompt", "input", true},
    {"prompt_token_ids", "input", true},
    {NULL, NULL, false},
};

const openai_name *openai_names_of(const openai_call *c)
{
    if (c->vectors.pooling) return names;
    return c->form ? c->form->names : NULL;
}

/* ---- the body -------------------------------------------------------------------------------- */

static status refuse(error *err, const char *text)
{
    return error_set(err, STATUS_INVALID, "request: %s", text);
}

/* Reads a field that has one of two texts; *second tells which. */
static status read_choice(const json_t *body, const char *key, const char *const texts[2],
                          bool *second, error *err)
{
    const json_t *v = json_object_get(body, key);
    if (!v) return STATUS_IS_OK;
    *second = json_is_word(v, texts[1]);
    if (*second || json_is_word(v, texts[0])) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "request: %s: must be \"%s\" or \"%s\"", key, texts[0],
                     texts[1]);
}

static status read_vectors(const json_t *body, openai_vectors *out, error *err)
{
    static const char *const formats[] = {"float", "base64"}, *const poolings[] = {"last", "mean"};
    bool normalize = true, mean = false;
    if (!json_object_get(body, "input")) return refuse(err, "input: must be given");
    if (json_object_get(body, "dimensions"))
        return error_set(err, STATUS_UNSUPPORTED,
                         "request: dimensions: the model's vectors cannot be shortened");
    RETURN_IF_ERROR(read_choice(body, "encoding_format", formats, &out->base64, err));
    RETURN_IF_ERROR(read_choice(body, "pooling", poolings, &mean, err));
    RETURN_IF_ERROR(openai_read_bool(body, "normalize", &normalize, err));
    out->pooling = mean ? POOLING_SUM : POOLING_LAST;
    out->raw = !normalize;
    return STATUS_IS_OK;
}

/* The texts become a completion's prompts, and the fields that are read here are taken off. */
static status read_body(service *s, json_t *body, openai_call *out, error *err)
{
    static const char *const own[] = {"encoding_format", "pooling", "normalize", "user", "input"};
    RETURN_IF_ERROR(read_vectors(body, &out->vectors, err));
    if (json_object_set(body, "prompt", json_object_get(body, "input")) != 0)
        return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) json_object_del(body, own[i]);
    return openai_read_inputs(s, body, out, err);
}

bool openai_parse_embeddings(service *s, const char *body, size_t n, openai_call *out,
                             openai_error *failure)
{
    error err = {{0}};
    json_t *doc = NULL;
    const char *also[FIELDS_MAX];
    *out = (openai_call){.prompt_logprobs = -1};
    status st = openai_read_body(s, body, n, FOR_EMBEDDINGS, &doc, also, &err);
    if (status_ok(st)) st = read_body(s, doc, out, &err);
    json_decref(doc);
    if (status_ok(st)) return true;
    openai_call_destroy(out);
    openai_body_error(s, st, &err, failure);
    openai_rename(names, failure);
    return false;
}

/* ---- the answer ------------------------------------------------------------------------------ */

struct openai_embeddings {
    service *s;
    openai_call call;
    strbuf *vectors; // [call.n_requests] as the answer has them
    size_t held;
    uint32_t prompt_tokens;
    openai_error error;
};

openai_embeddings *openai_embeddings_create(service *s, openai_call *call)
{
    openai_embeddings *e = calloc(1, sizeof *e);
    strbuf *vectors = calloc(call->n_requests, sizeof *vectors);
    if (!e || !vectors) {
        free(e);
        free(vectors);
        openai_call_destroy(call);
        return NULL;
    }
    *e = (openai_embeddings){.s = s, .call = *call, .vectors = vectors};
    *call = (openai_call){0};
    return e;
}

void openai_embeddings_destroy(openai_embeddings *e)
{
    if (!e) return;
    for (uint32_t i = 0; i < e->call.n_requests; i++) strbuf_destroy(&e->vectors[i]);
    free(e->vectors);
    openai_call_destroy(&e->call);
    free(e);
}

static void fail(openai_embeddings *e, uint32_t request, status_code code, const char *text)
{
    error err;
    snprintf(err.text, sizeof err.text, "%s", text ? text : "");
    openai_error_from(e->s, status_make(code, NULL), &err, &e->error);
    openai_rename(names, &e->error);
    openai_place_prompt("input", e->call.n_requests, request, &e->error);
}

static void put_base64(const unsigned char *bytes, size_t n, strbuf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t b = i + 1 < n ? bytes[i + 1] : 0, c = i + 2 < n ? bytes[i + 2] : 0;
        uint32_t group = (uint32_t)bytes[i] << 16 | b << 8 | c;
        strbuf_putc(out, digits[group >> 18]);
        strbuf_putc(out, digits[group >> 12 & 63]);
        strbuf_putc(out, i + 1 < n ? digits[group >> 6 & 63] : '=');
        strbuf_putc(out, i + 2 < n ? digits[group & 63] : '=');
    }
}

static void put_vector(const openai_vectors *v, const float *values, uint32_t n, strbuf *out)
{
    float scale = v->raw ? 1.0f : generation_scale_of(values, n);
    unsigned char bytes[3 * sizeof(float)]; // three numbers fill groups of base64
    strbuf_putc(out, v->base64 ? '"' : '[');
    for (uint32_t i = 0; i < n; i++) {
        float value = values[i] * scale;
        if (!v->base64) {
            if (i) strbuf_putc(out, ',');
            strbuf_json_float(out, value);
            continue;
        }
        memcpy(bytes + i % 3 * sizeof value, &value, sizeof value);
        if (i % 3 == 2 || i + 1 == n) put_base64(bytes, (i % 3 + 1) * sizeof value, out);
    }
    strbuf_putc(out, v->base64 ? '"' : ']');
}

void openai_embeddings_take(openai_embeddings *e, const generation *g, const generation_output *o)
{
    uint32_t n = 0;
    if (e->error.status || o->out.finish == ENGINE_FINISH_NONE) return;
    if (o->out.finish == ENGINE_FINISH_ERROR) {
        fail(e, o->request, o->out.error_code, o->out.error_text);
        return;
    }
    const float *values = generation_pooled(g, o->request, &n);
    if (!values) {
        fail(e, o->request, STATUS_ABORTED, "the request was aborted");
        return;
    }
    strbuf *out = &e->vectors[o->request];
    strbuf_clear(out);
    put_vector(&e->call.vectors, values, n, out);
    e->prompt_tokens += o->out.usage.prompt_tokens;
    e->held += out->size;
    if (out->failed) fail(e, o->request, STATUS_NO_MEMORY, NULL);
    else if (e->held > HELD_BYTES_MAX) fail(e, o->request, STATUS_LIMIT, "the answer is too long");
}

void openai_embeddings_finish(openai_embeddings *e, strbuf *out)
{
    if (e->error.status) {
        openai_error_json(&e->error, out);
        return;
    }
    strbuf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < e->call.n_requests; i++) {
        const strbuf *vector = &e->vectors[i];
        if (i) strbuf_putc(out, ',');
        strbuf_printf(out, "{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i);
        strbuf_append(out, vector->size ? vector->data : "[]", vector->size ? vector->size : 2);
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "],\"model\":");
    strbuf_json_string(out, e->call.model, strlen(e->call.model));
    strbuf_printf(out, ",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}", e->prompt_tokens,
                  e->prompt_tokens);
}

const openai_error *openai_embeddings_error(const openai_embeddings *e)
{
    return e->error.status ? &e->error : NULL;
}
