/* KServe's inference over HTTP. */
#include "rpc/services/kserve_http.h"

#include <stdlib.h>

struct kserve_answer {
    service *service;
    kserve_facts facts;
    char model[256];        // as the path names it
    uint32_t binary;        // bit i: output i goes out as bytes
    kserve_choice *choices; // [n]
    uint32_t n;
    reports reports;
    kserve_response response;
    size_t json_bytes;
    openai_error error; // status 0 = none
};

void kserve_answer_destroy(kserve_answer *a)
{
    if (!a) return;
    for (uint32_t i = 0; a->choices && i < a->n; i++) kserve_choice_destroy(&a->choices[i]);
    free(a->choices);
    reports_destroy(&a->reports);
    kserve_response_destroy(&a->response);
    free(a);
}

static status start_answer(service *s, const Inference__ModelInferRequest *m,
                           const generation_options *o, kserve_answer *a, generation **started,
                           error *err)
{
    RETURN_IF_ERROR(kserve_facts_of(s, m, &a->facts, err));
    if (a->facts.stream)
        return error_set(err, STATUS_UNSUPPORTED,
                         "stream: an answer over HTTP comes whole; use ModelStreamInfer of gRPC");
    ProtobufCBinaryData name = m->model_name.len ? m->model_name : field_of(s->o.model.names[0]);
    RETURN_IF_ERROR(field_word("model_name", name, a->model, sizeof a->model, err));
    generation_options options = *o;
    if (*a->facts.id) options.id = a->facts.id;
    RETURN_IF_ERROR(kserve_start(s, m, &a->facts, &options, started, &a->n, err));
    a->choices = calloc(a->n, sizeof *a->choices);
    if (a->choices && reports_init(&a->reports, a->n)) return STATUS_IS_OK;
    return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
}

status kserve_http_start(service *s, const kserve_body *body, const generation_options *o,
                         kserve_answer **out, generation **started, error *err)
{
    enum { BLOCK_BYTES = 16 << 10 };
    kserve_answer *a = calloc(1, sizeof *a);
    if (!a) return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
    Inference__ModelInferRequest m;
    arena memory;
    a->service = s;
    arena_init(&memory, BLOCK_BYTES, SIZE_MAX);
    status st = kserve_read_json(body, &memory, &m, &a->binary, err);
    if (status_ok(st)) st = start_answer(s, &m, o, a, started, err);
    arena_destroy(&memory);
    if (status_ok(st)) *out = a;
    else kserve_answer_destroy(a);
    return st;
}

static void fail_answer(kserve_answer *a, status_code code, const char *text)
{
    error err;
    if (a->error.status) return;
    snprintf(err.text, sizeof err.text, "%s", text ? text : "");
    openai_error_from(a->service, status_make(code, NULL), &err, &a->error);
}

void kserve_answer_take(kserve_answer *a, const generation_output *o)
{
    if (a->error.status || o->index >= a->n) return;
    bool ok = kserve_choice_take(&a->choices[o->index], o) &&
              reports_keep(&a->reports, o->index, &o->out);
    if (o->out.finish == ENGINE_FINISH_ERROR) fail_answer(a, o->out.error_code, o->out.error_text);
    else if (!ok) fail_answer(a, STATUS_NO_MEMORY, "request: out of memory");
}

void kserve_answer_finish(kserve_answer *a, strbuf *out)
{
    strbuf retention = {0}, retrieval = {0};
    if (a->error.status) return;
    kserve_response_begin(&a->response, a->model, a->facts.id);
    if (a->reports.n_given) {
        reports_json(&a->reports, SIZE_MAX, &retention);
        kserve_response_set_text(&a->response, "retention", &retention);
    }
    if (a->reports.n_readings) {
        reports_readings_json(&a->reports, SIZE_MAX, &retrieval);
        kserve_response_set_text(&a->response, "retrieval", &retrieval);
    }
    bool ok = kserve_response_fill(&a->response, a->choices, a->n, a->facts.outputs);
    size_t json = kserve_write_json(&a->response.message, a->binary, out);
    a->json_bytes = a->binary ? json : 0;
    out->failed |= !ok || retention.failed || retrieval.failed;
    strbuf_destroy(&retention);
    strbuf_destroy(&retrieval);
}

size_t kserve_answer_json_bytes(const kserve_answer *a) { return a->json_bytes; }

const openai_error *kserve_answer_error(const kserve_answer *a)
{
    return a->error.status ? &a->error : NULL;
}
