/* octavo.v1's Generate, which sends a message for each token. */
#include "rpc/services/octavo_v1.h"

#include <math.h>
#include <stdlib.h>

/* Prompt tokens in one message: with logprobs and twenty alternatives each, about 100 kB. Without
 * logprobs a prompt is sent in one piece: it is as small as it was in the request. */
enum { PROMPT_PIECE = 256 };

typedef struct generate {
    generation *generation;
    bool logprobs;
    bool over;          // call_finish or call_fail was called
    bool has_output;    // `output` waits for the prompt's last piece
    bool prompt_sent;   // the whole prompt has been sent
    uint32_t prompt_at; // tokens of the prompt that have been sent
    generation_output output;
    strbuf report;
} generate;

/* ---- responses ------------------------------------------------------------------------------- */

static ProtobufCBinaryData token_bytes(const tokenizer *t, uint32_t id)
{
    const char *bytes = NULL;
    size_t n = 0;
    if (!status_ok(tok_token_bytes(t, id, &bytes, &n))) n = 0;
    return call_bytes(bytes, n);
}

static Octavo__V1__TopLogprob top_of(const tokenizer *t, uint32_t id, float logprob)
{
    Octavo__V1__TopLogprob top = OCTAVO__V1__TOP_LOGPROB__INIT;
    top.token_id = id;
    top.logprob = logprob;
    top.token = token_bytes(t, id);
    return top;
}

static Octavo__V1__TokenLogprob logprob_of(const tokenizer *t, uint32_t id, float logprob,
                                           uint32_t rank)
{
    Octavo__V1__TokenLogprob l = OCTAVO__V1__TOKEN_LOGPROB__INIT;
    l.token_id = id;
    l.logprob = isnan(logprob) ? 0 : logprob;
    l.rank = rank;
    l.token = token_bytes(t, id);
    return l;
}

static void fill_logprob(const tokenizer *t, const step_sample *s, octavo_v1_response *out)
{
    out->logprob = logprob_of(t, s->token, s->logprob, s->rank);
    for (uint32_t i = 0; i < s->n_top; i++) {
        out->tops[i] = top_of(t, s->top_ids[i], s->top_logprobs[i]);
        out->top_list[i] = &out->tops[i];
    }
    out->logprob.n_top = s->n_top;
    out->logprob.top = out->top_list;
    out->logprobs[0] = &out->logprob;
    out->message.n_logprobs = 1;
    out->message.logprobs = out->logprobs;
}

static void fill_end(const engine_output *o, strbuf *report, octavo_v1_response *out)
{
    Octavo__V1__GenerateResponse *m = &out->message;
    m->finish_reason = field_of(engine_finish_name(o->finish));
    if (o->stop_string) {
        m->matched_stop_case = OCTAVO__V1__GENERATE_RESPONSE__MATCHED_STOP_STOP_STRING;
        m->stop_string = field_of(o->stop_string);
    } else if (o->stop_token >= 0) {
        m->matched_stop_case = OCTAVO__V1__GENERATE_RESPONSE__MATCHED_STOP_STOP_TOKEN_ID;
        m->stop_token_id = (uint32_t)o->stop_token;
    }
    out->usage = (Octavo__V1__Usage)OCTAVO__V1__USAGE__INIT;
    out->usage.prompt_tokens = o->usage.prompt_tokens;
    out->usage.completion_tokens = o->usage.completion_tokens;
    out->usage.cached_tokens = o->usage.cached_tokens;
    m->usage = &out->usage;
    out->timings = (Octavo__V1__Timings)OCTAVO__V1__TIMINGS__INIT;
    out->timings.queue_ms = (double)o->timings.queue_us / 1000;
    out->timings.ttft_ms = (double)o->timings.ttft_us / 1000;
    out->timings.total_ms = (double)o->timings.total_us / 1000;
    m->timings = &out->timings;
    if (!o->report) return;
    strbuf_clear(report);
    retention_report_json(o->report, report);
    m->retention_json = call_bytes(report->data, report->size);
}

void octavo_v1_response_of(const tokenizer *t, const char *id, const generation_output *o,
                           bool logprobs, strbuf *report, octavo_v1_response *out)
{
    Octavo__V1__GenerateResponse *m = &out->message;
    *m = (Octavo__V1__GenerateResponse)OCTAVO__V1__GENERATE_RESPONSE__INIT;
    m->request_id = field_of(id);
    m->index = o->index;
    m->text = call_bytes(o->out.text, o->out.text_bytes);
    if (o->out.has_token) {
        out->token_id = o->out.sample.token;
        m->n_token_ids = 1;
        m->token_ids = &out->token_id;
        if (logprobs) fill_logprob(t, &o->out.sample, out);
    }
    if (o->out.finish != ENGINE_FINISH_NONE) fill_end(&o->out, report, out);
}

/* ---- the prompt ------------------------------------------------------------------------------ */

static bool fill_prompt_logprob(const tokenizer *t, const engine_prompt *p, uint32_t at,
                                arena *memory, Octavo__V1__TokenLogprob *out)
{
    *out = logprob_of(t, p->tokens[at], p->logprobs[at], p->ranks[at]);
    uint32_t n = p->ranks[at] ? p->n_top : 0;
    Octavo__V1__TopLogprob *tops = arena_alloc_array(memory, n, sizeof *tops);
    out->top = arena_alloc_array(memory, n, sizeof *out->top);
    if (!tops || !out->top) return false;
    for (uint32_t i = 0; i < n; i++) {
        size_t from = (size_t)at * p->n_top + i;
        tops[i] = top_of(t, p->top_ids[from], p->top_logprobs[from]);
        out->top[i] = &tops[i];
    }
    out->n_top = n;
    return true;
}

bool octavo_v1_prompt_of(const tokenizer *t, const engine_prompt *prompt, uint32_t from, uint32_t n,
                         arena *memory, Octavo__V1__Prompt *out)
{
    *out = (Octavo__V1__Prompt)OCTAVO__V1__PROMPT__INIT;
    out->n_token_ids = n;
    out->token_ids = (uint32_t *)(uintptr_t)(prompt->tokens + from);
    if (!prompt->logprobs) return true;
    Octavo__V1__TokenLogprob *list = arena_alloc_array(memory, n, sizeof *list);
    out->logprobs = arena_alloc_array(memory, n, sizeof *out->logprobs);
    if (!list || !out->logprobs) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (!fill_prompt_logprob(t, prompt, from + i, memory, &list[i])) return false;
        out->logprobs[i] = &list[i];
    }
    out->n_logprobs = n;
    return true;
}

/* Sends the next piece of the prompt. The last piece goes out together with `output`. */
static void send_with_prompt(rpc_call *c, generate *s, octavo_v1_response *response)
{
    engine_prompt prompt = generation_prompt(s->generation, s->output.request);
    uint32_t left = prompt.n_tokens - s->prompt_at;
    uint32_t n = prompt.logprobs && left > PROMPT_PIECE ? PROMPT_PIECE : left;
    Octavo__V1__GenerateResponse only_prompt = OCTAVO__V1__GENERATE_RESPONSE__INIT;
    only_prompt.request_id = response->message.request_id;
    Octavo__V1__GenerateResponse *m = n < left ? &only_prompt : &response->message;
    Octavo__V1__Prompt piece;
    arena memory;
    arena_init(&memory, 4096, 0);
    if (octavo_v1_prompt_of(call_service(c)->o.model.tokenizer, &prompt, s->prompt_at, n, &memory,
                            &piece)) {
        m->prompt = &piece;
        call_send(c, &m->base);
        s->prompt_at += n;
        s->has_output = n < left;
        s->prompt_sent = n == left;
    } else {
        error err = {{0}};
        s->over = true;
        call_fail(c, error_set(&err, STATUS_NO_MEMORY, "prompt_logprobs: out of memory"), &err);
    }
    arena_destroy(&memory);
}

/* ---- the call -------------------------------------------------------------------------------- */

static void send_output(rpc_call *c, generate *s)
{
    octavo_v1_response response;
    octavo_v1_response_of(call_service(c)->o.model.tokenizer, generation_id(s->generation),
                          &s->output, s->logprobs, &s->report, &response);
    if (s->report.failed) {
        error err = {{0}};
        s->over = true;
        call_fail(c, error_set(&err, STATUS_NO_MEMORY, "retention: its report: out of memory"),
                  &err);
        return;
    }
    if (!s->prompt_sent) {
        send_with_prompt(c, s, &response);
        return;
    }
    s->has_output = false;
    call_send(c, &response.message.base);
}

static void fail_octavo_generate(rpc_call *c, generate *s, const engine_output *o)
{
    error err = {{0}};
    status st = error_set(&err, o->error_code, "%s", o->error_text);
    s->over = true;
    call_fail(c, st, &err);
}

void octavo_v1_generate_writable(rpc_call *c)
{
    generate *s = call_state(c);
    while (s && !s->over && call_can_send(c)) {
        if (!s->has_output) s->has_output = generation_read(s->generation, &s->output);
        if (s->has_output && s->output.out.finish == ENGINE_FINISH_ERROR)
            fail_octavo_generate(c, s, &s->output.out);
        else if (s->has_output) send_output(c, s);
        else break;
    }
    if (!s || s->over || s->has_output || !generation_ended(s->generation)) return;
    s->over = true;
    call_finish(c, GRPC_STATUS_OK, NULL);
}

static status start_octavo_generate(rpc_call *c, const Octavo__V1__GenerateRequest *m, generate *s,
                                    error *err)
{
    char id[SERVICE_ID_BYTES_MAX + 1], identity[SERVICE_IDENTITY_BYTES];
    RETURN_IF_ERROR(field_word("request_id", m->request_id, id, sizeof id, err));
    call_identity(c, identity);
    generation_options o = {id, "octavo.v1", call_wake, c, identity, false};
    engine_request r;
    status st = octavo_v1_request_of(call_service(c), m, &r, err);
    s->logprobs = r.logprobs >= 0;
    if (status_ok(st)) st = generation_start(call_service(c), &r, 1, &o, &s->generation, err);
    engine_request_destroy(&r);
    return st;
}

void octavo_v1_generate(rpc_call *c, const ProtobufCMessage *message)
{
    error err = {{0}};
    generate *s = calloc(1, sizeof *s);
    status st = s ? start_octavo_generate(c, (const Octavo__V1__GenerateRequest *)message, s, &err)
                  : error_set(&err, STATUS_NO_MEMORY, "request: out of memory");
    if (status_ok(st)) {
        call_set_state(c, s);
        return;
    }
    free(s);
    call_fail(c, st, &err);
}

void octavo_v1_generate_ended(rpc_call *c)
{
    generate *s = call_state(c);
    if (!s) return;
    generation_release(s->generation);
    strbuf_destroy(&s->report);
    free(s);
}
