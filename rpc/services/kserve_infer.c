/* KServe's ModelInfer and ModelStreamInfer. The requests of a stream are answered one by one. */
#include "rpc/services/batch.h"
#include "rpc/services/kserve.h"

#include <stdlib.h>

typedef struct infer {
    bool over; // call_finish or call_fail was called
    /* The request being answered. */
    generation *generation; // NULL = none
    output_batch batch;     // of a stream that sends each token
    kserve_facts facts;
    char model[256];        // the model's name in the request
    kserve_choice *choices; // [n]; a stream that sends each token uses the first only
    uint32_t n;
    reports reports;
    /* Why the request failed: sent as a response, since the stream goes on. */
    error failure;
    status_code failed; // STATUS_OK = it has not failed
    kserve_response response;
} infer;

static void end_request(infer *s)
{
    batch_destroy(&s->batch);
    generation_release(s->generation);
    s->generation = NULL;
    for (uint32_t i = 0; s->choices && i < s->n; i++) kserve_choice_destroy(&s->choices[i]);
    free(s->choices);
    s->choices = NULL;
    s->n = 0;
}

void kserve_infer_ended(rpc_call *c)
{
    infer *s = call_state(c);
    if (!s) return;
    end_request(s);
    reports_destroy(&s->reports);
    kserve_response_destroy(&s->response);
    free(s);
}

/* ---- starting -------------------------------------------------------------------------------- */

static status make_choices(infer *s, uint32_t n, error *err)
{
    s->n = n;
    s->choices = calloc(n, sizeof *s->choices);
    reports_destroy(&s->reports);
    if (s->choices && reports_init(&s->reports, n)) return STATUS_IS_OK;
    return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
}

static status start_all(rpc_call *c, const Inference__ModelInferRequest *m, infer *s, error *err)
{
    char identity[SERVICE_IDENTITY_BYTES];
    trace_headers trace;
    call_identity(c, identity);
    generation_options o = {.id = s->facts.id,
                            .surface = "kserve",
                            .notify = call_wake,
                            .notify_ctx = c,
                            .identity = identity,
                            .shares_id = true, // Triton's clients count: "0", "1", …
                            .trace = call_trace(c, &trace)};
    uint32_t n = 0;
    RETURN_IF_ERROR(kserve_start(call_service(c), m, &s->facts, &o, &s->generation, &n, err));
    return make_choices(s, n, err);
}

static status start_infer(rpc_call *c, const Inference__ModelInferRequest *m, infer *s, error *err)
{
    const service *serving = call_service(c);
    /* Set before the request can be refused: a refusal names model and id, too. */
    s->facts = (kserve_facts){0};
    snprintf(s->model, sizeof s->model, "%s", serving->o.model.names[0]);
    RETURN_IF_ERROR(kserve_facts_of(serving, m, &s->facts, err));
    if (m->model_name.len)
        RETURN_IF_ERROR(field_word("model_name", m->model_name, s->model, sizeof s->model, err));
    return start_all(c, m, s, err);
}

/* ---- responses ------------------------------------------------------------------------------- */

/* True when every output of the request has been taken. */
static bool is_answered(const infer *s)
{
    return generation_ended(s->generation) && batch_is_empty(&s->batch);
}

/* The reports of a response, which points to them. */
typedef struct report_texts {
    strbuf reports, readings;
} report_texts;

static void free_texts(report_texts *t)
{
    strbuf_destroy(&t->reports);
    strbuf_destroy(&t->readings);
}

/* Builds a response of n choices: all of the request, or new tokens of one choice of a stream that
 * sends each token. */
static bool build_response(infer *s, const kserve_choice *choices, uint32_t n, bool is_stream,
                           report_texts *texts)
{
    bool last = is_answered(s);
    kserve_response_begin(&s->response, s->model, s->facts.id);
    if (is_stream) kserve_response_set_bool(&s->response, "triton_final_response", last);
    if (last && s->reports.n_given) {
        reports_json(&s->reports, SIZE_MAX, &texts->reports);
        kserve_response_set_text(&s->response, "retention", &texts->reports);
    }
    if (last && s->reports.n_readings) {
        reports_readings_json(&s->reports, SIZE_MAX, &texts->readings);
        kserve_response_set_text(&s->response, "retrieval", &texts->readings);
    }
    return kserve_response_fill(&s->response, choices, n, s->facts.outputs) &&
           !texts->reports.failed && !texts->readings.failed;
}

static void fail_request(infer *s, status_code code, const char *text)
{
    s->failed = error_set(&s->failure, code, "%s", text).code;
}

static void take_infer_output(infer *s, const generation_output *o, kserve_choice *choice)
{
    bool ok = kserve_choice_take(choice, o) && reports_keep(&s->reports, o->index, &o->out);
    if (o->out.finish == ENGINE_FINISH_ERROR) fail_request(s, o->out.error_code, o->out.error_text);
    else if (!ok) fail_request(s, STATUS_NO_MEMORY, "request: out of memory");
}

/* Takes all outputs that are ready into their choices. */
static void take_all(infer *s)
{
    generation_output o;
    while (!s->failed && generation_read(s->generation, &o))
        take_infer_output(s, &o, &s->choices[o.index]);
}

/* Takes new tokens of one choice into the first of s->choices. False when there are none. */
static bool take_tokens(infer *s)
{
    output_run run;
    if (!status_ok(batch_next(&s->batch, s->generation, &run)))
        fail_request(s, STATUS_NO_MEMORY, "request: out of memory");
    kserve_choice_clear(&s->choices[0]);
    for (uint32_t i = 0; i < run.n && !s->failed; i++)
        take_infer_output(s, run.outputs[i], &s->choices[0]);
    return run.n > 0;
}

/* ---- ModelInfer ------------------------------------------------------------------------------ */

static infer *make_state(rpc_call *c)
{
    infer *s = calloc(1, sizeof *s);
    if (s) {
        call_set_state(c, s);
        return s;
    }
    error err = {{0}};
    call_fail(c, error_set(&err, STATUS_NO_MEMORY, "request: out of memory"), &err);
    return NULL;
}

void kserve_infer(rpc_call *c, const ProtobufCMessage *message)
{
    infer *s = make_state(c);
    if (!s) return;
    error err = {{0}};
    status st = start_infer(c, (const Inference__ModelInferRequest *)message, s, &err);
    if (status_ok(st) && s->facts.stream)
        st = error_set(&err, STATUS_INVALID,
                       "stream: ModelInfer has one answer; use "
                       "ModelStreamInfer");
    if (status_ok(st)) return;
    s->over = true;
    call_fail(c, st, &err);
}

void kserve_infer_writable(rpc_call *c)
{
    infer *s = call_state(c);
    if (!s || s->over) return;
    take_all(s);
    if (!s->failed && !is_answered(s)) return;
    report_texts texts = {0};
    s->over = true;
    if (!s->failed &&
        (!build_response(s, s->choices, s->n, false, &texts) || !reports_send(c, &s->reports)))
        fail_request(s, STATUS_NO_MEMORY, "request: out of memory");
    if (s->failed) call_fail(c, status_make(s->failed, NULL), &s->failure);
    else call_reply(c, &s->response.message.base);
    free_texts(&texts);
}

/* ---- ModelStreamInfer ------------------------------------------------------------------------ */

void kserve_stream_message(rpc_call *c, const ProtobufCMessage *message)
{
    infer *s = call_state(c);
    if (!s) s = make_state(c);
    if (!s) return;
    error err = {{0}};
    status st = start_infer(c, (const Inference__ModelInferRequest *)message, s, &err);
    if (!status_ok(st)) fail_request(s, st.code, err.text);
    call_wake(c);
}

void kserve_stream_half_closed(rpc_call *c)
{
    infer *s = call_state(c);
    if (s && s->over) return;
    if (s) s->over = true;
    if (!s || reports_send(c, &s->reports)) {
        call_finish(c, GRPC_STATUS_OK, NULL);
        return;
    }
    error err = {{0}};
    call_fail(c, error_set(&err, STATUS_NO_MEMORY, "octavo-report: out of memory"), &err);
}

/* Ends a request that has been answered, and asks for the stream's next one. */
static void next_request(rpc_call *c, infer *s)
{
    end_request(s);
    s->failed = STATUS_OK;
    call_receive(c);
}

static void send_failure(rpc_call *c, infer *s)
{
    Inference__ModelStreamInferResponse m = INFERENCE__MODEL_STREAM_INFER_RESPONSE__INIT;
    kserve_response_begin(&s->response, s->model, s->facts.id);
    kserve_response_set_bool(&s->response, "triton_final_response", true);
    m.error_message = field_of(s->failure.text);
    m.infer_response = &s->response.message;
    call_send(c, &m.base);
    next_request(c, s);
}

/* Sends the next response of a stream. False when there is nothing to send. */
static bool send_next(rpc_call *c, infer *s)
{
    bool each_token = s->facts.stream, due;
    if (each_token) {
        due = take_tokens(s);
    } else {
        take_all(s);
        due = is_answered(s);
    }
    if (s->failed || !due) return s->failed;
    report_texts texts = {0};
    if (build_response(s, s->choices, each_token ? 1 : s->n, true, &texts)) {
        Inference__ModelStreamInferResponse m = INFERENCE__MODEL_STREAM_INFER_RESPONSE__INIT;
        m.infer_response = &s->response.message;
        call_send(c, &m.base);
        if (is_answered(s)) next_request(c, s);
    } else {
        fail_request(s, STATUS_NO_MEMORY, "request: out of memory");
    }
    free_texts(&texts);
    return true;
}

void kserve_stream_writable(rpc_call *c)
{
    infer *s = call_state(c);
    if (!s) return;
    while (!s->over && call_can_send(c)) {
        if (s->failed) send_failure(c, s);
        else if (!s->generation || !send_next(c, s)) return;
    }
}
