/* VllmEngine's Generate: when streaming it sends the tokens of each choice as they come (batch.h),
 * and at the end, or only then, a complete response for each choice. */
#include "rpc/services/batch.h"
#include "rpc/services/reports.h"
#include "rpc/services/vllm.h"

#include <stdlib.h>

typedef struct generate {
    generation *generation;
    bool stream, logprobs, prompt_logprobs;
    bool over;      // call_finish or call_fail was called
    bool chunk_due; // the run must be sent as a chunk
    output_batch batch;
    output_run run; // taken into its choice and not sent; n is 0: none
    uint32_t n;
    vllm_choice *choices; // [n]
    reports reports;
} generate;

static void destroy(generate *s)
{
    if (!s) return;
    batch_destroy(&s->batch);
    generation_release(s->generation);
    for (uint32_t i = 0; s->choices && i < s->n; i++) vllm_choice_destroy(&s->choices[i]);
    free(s->choices);
    reports_destroy(&s->reports);
    free(s);
}

/* ---- responses ------------------------------------------------------------------------------- */

static void fail_vllm_generate(rpc_call *c, generate *s, status_code code, const char *text)
{
    error err = {{0}};
    status st = error_set(&err, code, "%s", text);
    s->over = true;
    call_fail(c, st, &err);
}

static void send(rpc_call *c, Vllm__Grpc__Engine__GenerateStreamChunk *chunk,
                 Vllm__Grpc__Engine__GenerateComplete *complete)
{
    Vllm__Grpc__Engine__GenerateResponse m = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
    if (chunk) {
        m.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK;
        m.chunk = chunk;
    } else {
        m.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_COMPLETE;
        m.complete = complete;
    }
    call_send(c, &m.base);
}

/* Sends the tokens of the run as a chunk. False when memory is out. */
static bool send_chunk(rpc_call *c, generate *s, arena *memory)
{
    const generation_output *last = run_last(&s->run);
    vllm_choice *choice = &s->choices[last->index];
    engine_prompt prompt = generation_prompt(s->generation, last->request);
    Vllm__Grpc__Engine__GenerateStreamChunk chunk = VLLM__GRPC__ENGINE__GENERATE_STREAM_CHUNK__INIT;
    chunk.n_token_ids = choice->n - choice->n_sent;
    chunk.token_ids = vllm_choice_unsent(choice);
    chunk.prompt_tokens = prompt.n_tokens;
    chunk.completion_tokens = choice->n;
    chunk.cached_tokens = last->out.usage.cached_tokens;
    chunk.index = last->index;
    if (s->logprobs) {
        chunk.output_logprobs = vllm_choice_logprobs(choice, memory);
        if (!chunk.output_logprobs) return false;
    }
    if (s->prompt_logprobs && !choice->started && prompt.logprobs) {
        chunk.input_logprobs = vllm_prompt_logprobs(&prompt, memory);
        if (!chunk.input_logprobs) return false;
    }
    choice->started = true;
    send(c, &chunk, NULL);
    vllm_choice_sent(choice);
    return true;
}

static void fill_end(const engine_output *o, Vllm__Grpc__Engine__GenerateComplete *m)
{
    m->finish_reason = field_of(engine_finish_name(o->finish));
    m->prompt_tokens = o->usage.prompt_tokens;
    m->completion_tokens = o->usage.completion_tokens;
    m->cached_tokens = o->usage.cached_tokens;
    if (o->stop_string) {
        m->matched_stop_case = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR;
        m->matched_stop_str = field_of(o->stop_string);
    } else if (o->stop_token >= 0) {
        m->matched_stop_case = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID;
        m->matched_token_id = (uint32_t)o->stop_token;
    }
}

static void fill_transfer(const service *s, const engine_transfer *t,
                          Vllm__Grpc__Engine__KvTransferParams *place, strbuf *json,
                          Vllm__Grpc__Engine__GenerateComplete *m)
{
    if (!t) return;
    service_put_transfer(s, t, json);
    m->kv_transfer_params_json_opt_case =
        VLLM__GRPC__ENGINE__GENERATE_COMPLETE__KV_TRANSFER_PARAMS_JSON_OPT_KV_TRANSFER_PARAMS_JSON;
    m->kv_transfer_params_json = field_of(json->data ? json->data : "");
    if (!t->held) return;
    place->remote_host = field_of(t->host);
    place->remote_port = t->port;
    m->kv_transfer_params = place;
}

static bool fill_logprobs(const generate *s, const vllm_choice *choice, arena *memory,
                          Vllm__Grpc__Engine__GenerateComplete *m)
{
    engine_prompt prompt = generation_prompt(s->generation, run_last(&s->run)->request);
    if (s->logprobs && !s->stream) {
        m->output_logprobs = vllm_choice_logprobs(choice, memory);
        if (!m->output_logprobs) return false;
    }
    if (s->prompt_logprobs && !choice->started && prompt.logprobs) {
        m->input_logprobs = vllm_prompt_logprobs(&prompt, memory);
        if (!m->input_logprobs) return false;
    }
    return true;
}

/* Sends the complete response of the run's choice. False when memory is out. */
static bool send_complete(rpc_call *c, generate *s, arena *memory)
{
    const generation_output *last = run_last(&s->run);
    const vllm_choice *choice = &s->choices[last->index];
    Vllm__Grpc__Engine__GenerateComplete m;
    vllm__grpc__engine__generate_complete__init(&m);
    m.index = last->index;
    m.n_output_ids = choice->n;
    m.output_ids = (uint32_t *)(void *)choice->ids.data;
    fill_end(&last->out, &m);
    if (!fill_logprobs(s, choice, memory, &m)) return false;
    Vllm__Grpc__Engine__KvTransferParams place = VLLM__GRPC__ENGINE__KV_TRANSFER_PARAMS__INIT;
    strbuf params = {0};
    fill_transfer(call_service(c), last->out.transfer, &place, &params, &m);
    bool whole = !params.failed;
    if (whole) send(c, NULL, &m);
    strbuf_destroy(&params);
    return whole;
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Takes the tokens and the report of the run into its choice. */
static bool take_run(generate *s)
{
    vllm_choice *choice = &s->choices[run_last(&s->run)->index];
    bool ok = reports_keep(&s->reports, run_last(&s->run)->index, &run_last(&s->run)->out);
    uint32_t had = choice->n;
    for (uint32_t i = 0; i < s->run.n && ok; i++)
        if (s->run.outputs[i]->out.has_token)
            ok = vllm_choice_take(choice, &s->run.outputs[i]->out.sample, s->logprobs);
    s->chunk_due = s->stream && choice->n > had;
    return ok;
}

/* Ends the call after everything has been sent. */
static void finish(rpc_call *c, generate *s)
{
    s->over = true;
    if (reports_send(c, &s->reports)) call_finish(c, GRPC_STATUS_OK, NULL);
    else fail_vllm_generate(c, s, STATUS_NO_MEMORY, "octavo-report: out of memory");
}

/* Takes the next run. False when there is none, or the call has failed or is finished. */
static bool next_run(rpc_call *c, generate *s)
{
    status st = batch_next(&s->batch, s->generation, &s->run);
    if (status_ok(st) && s->run.n == 0) {
        if (generation_ended(s->generation)) finish(c, s);
        return false;
    }
    if (!status_ok(st) || !take_run(s)) {
        fail_vllm_generate(c, s, STATUS_NO_MEMORY, "request: out of memory");
        return false;
    }
    const engine_output *last = &run_last(&s->run)->out;
    if (last->finish == ENGINE_FINISH_ERROR)
        fail_vllm_generate(c, s, last->error_code, last->error_text);
    return !s->over;
}

/* Sends the next message for the run: its chunk, then, if its choice has ended, the complete
 * response. */
static void send_run(rpc_call *c, generate *s)
{
    bool ends = run_last(&s->run)->out.finish != ENGINE_FINISH_NONE, ok = true;
    bool chunk = s->chunk_due;
    arena memory;
    arena_init(&memory, 4096, 0);
    if (chunk) ok = send_chunk(c, s, &memory);
    else if (ends) ok = send_complete(c, s, &memory);
    arena_destroy(&memory);
    s->chunk_due = false;
    if (!chunk || !ends) s->run.n = 0;
    if (!ok) fail_vllm_generate(c, s, STATUS_NO_MEMORY, "logprobs: out of memory");
}

void vllm_generate_writable(rpc_call *c)
{
    generate *s = call_state(c);
    while (s && !s->over && call_can_send(c))
        if (s->run.n > 0 || next_run(c, s)) send_run(c, s);
        else break;
}

static status make_choices(generate *s, uint32_t n, error *err)
{
    s->n = n;
    s->choices = calloc(n, sizeof *s->choices);
    if (s->choices && reports_init(&s->reports, n)) return STATUS_IS_OK;
    return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
}

static status start_vllm_generate(rpc_call *c, const Vllm__Grpc__Engine__GenerateRequest *m,
                                  generate *s, error *err)
{
    char id[SERVICE_ID_BYTES_MAX + 1], identity[SERVICE_IDENTITY_BYTES];
    trace_headers trace;
    size_t n_retention = 0, n_retrieval = 0, n_session = 0;
    const char *retention = call_metadata(c, "octavo-retention", &n_retention);
    const char *retrieval = call_metadata(c, "octavo-retrieval", &n_retrieval);
    const char *session = call_metadata(c, "octavo-session", &n_session);
    RETURN_IF_ERROR(field_word("request_id", m->request_id, id, sizeof id, err));
    call_identity(c, identity);
    generation_options o = {.id = id,
                            .surface = "vllm",
                            .notify = call_wake,
                            .notify_ctx = c,
                            .identity = identity,
                            .trace = call_trace(c, &trace)};
    engine_request r;
    status st = vllm_request_of(call_service(c), m, retention, n_retention, &r, err);
    if (status_ok(st))
        st = field_retrieval("octavo-retrieval", call_bytes(retrieval, n_retrieval), &r.retrieval,
                             err);
    if (status_ok(st))
        st = field_session("octavo-session", call_bytes(session, n_session), &r, err);
    s->stream = m->stream;
    s->logprobs = r.logprobs >= 0;
    s->prompt_logprobs = r.prompt_logprobs >= 0;
    if (status_ok(st)) st = generation_start(call_service(c), &r, 1, &o, &s->generation, err);
    if (status_ok(st)) st = make_choices(s, r.n, err);
    engine_request_destroy(&r);
    return st;
}

void vllm_generate(rpc_call *c, const ProtobufCMessage *message)
{
    error err = {{0}};
    generate *s = calloc(1, sizeof *s);
    status st =
        s ? start_vllm_generate(c, (const Vllm__Grpc__Engine__GenerateRequest *)message, s, &err)
          : error_set(&err, STATUS_NO_MEMORY, "request: out of memory");
    if (status_ok(st)) {
        call_set_state(c, s);
        /* Routers wait for the initial metadata before they send the next request. */
        call_accept(c);
        return;
    }
    destroy(s);
    call_fail(c, st, &err);
}

void vllm_generate_ended(rpc_call *c) { destroy(call_state(c)); }
