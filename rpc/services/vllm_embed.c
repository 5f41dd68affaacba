/* VllmEngine's Embed: the vector that /v1/embeddings gives for the same tokens. */
#include "rpc/services/vllm.h"

#include <stdlib.h>

typedef struct embed {
    generation *generation;
    bool over; // call_reply or call_fail was called
} embed;

void vllm_embed_ended(rpc_call *c)
{
    embed *s = call_state(c);
    if (!s) return;
    generation_release(s->generation);
    free(s);
}

static status reply_vector(rpc_call *c, const embed *s, const generation_output *o, error *err)
{
    uint32_t n = 0;
    if (o->out.finish == ENGINE_FINISH_ERROR)
        return error_set(err, o->out.error_code, "%s", o->out.error_text);
    const float *values = generation_pooled(s->generation, 0, &n);
    if (!values) return error_set(err, STATUS_ABORTED, "the request was aborted");
    float *scaled = malloc(n * sizeof *scaled), scale = generation_scale_of(values, n);
    if (!scaled) return error_set(err, STATUS_NO_MEMORY, "embedding: out of memory");
    for (uint32_t i = 0; i < n; i++) scaled[i] = values[i] * scale;
    Vllm__Grpc__Engine__EmbedResponse m = VLLM__GRPC__ENGINE__EMBED_RESPONSE__INIT;
    m.n_embedding = n;
    m.embedding = scaled;
    m.prompt_tokens = o->out.usage.prompt_tokens;
    m.embedding_dim = n;
    call_reply(c, &m.base);
    free(scaled);
    return STATUS_IS_OK;
}

void vllm_embed_writable(rpc_call *c)
{
    embed *s = call_state(c);
    generation_output o;
    error err = {{0}};
    while (s && !s->over && generation_read(s->generation, &o)) {
        if (o.out.finish == ENGINE_FINISH_NONE) continue;
        status st = reply_vector(c, s, &o, &err);
        if (!status_ok(st)) call_fail(c, st, &err);
        s->over = true;
    }
}

static status start_embed(rpc_call *c, const Vllm__Grpc__Engine__EmbedRequest *m, embed *s,
                          error *err)
{
    char id[SERVICE_ID_BYTES_MAX + 1], identity[SERVICE_IDENTITY_BYTES];
    trace_headers trace;
    RETURN_IF_ERROR(field_word("request_id", m->request_id, id, sizeof id, err));
    if (!m->tokenized) return error_set(err, STATUS_INVALID, "tokenized: must be given");
    call_identity(c, identity);
    generation_options o = {.id = id,
                            .surface = "vllm",
                            .notify = call_wake,
                            .notify_ctx = c,
                            .identity = identity,
                            .trace = call_trace(c, &trace)};
    engine_request r;
    engine_request_init(&r, &call_service(c)->o.model.defaults);
    r.pooling = POOLING_LAST;
    r.score_only = true;
    r.max_tokens = 0;
    status st = field_ids("tokenized.input_ids", m->tokenized->input_ids, m->tokenized->n_input_ids,
                          &r.prompt_token_ids, &r.n_prompt_token_ids, err);
    if (status_ok(st)) st = generation_start(call_service(c), &r, 1, &o, &s->generation, err);
    engine_request_destroy(&r);
    return st;
}

void vllm_embed(rpc_call *c, const ProtobufCMessage *message)
{
    error err = {{0}};
    embed *s = calloc(1, sizeof *s);
    status st = s ? start_embed(c, (const Vllm__Grpc__Engine__EmbedRequest *)message, s, &err)
                  : error_set(&err, STATUS_NO_MEMORY, "request: out of memory");
    if (status_ok(st)) {
        call_set_state(c, s);
        return;
    }
    free(s);
    call_fail(c, st, &err);
}
