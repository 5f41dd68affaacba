/* octavo.v1's Generate, which sends the tokens of each choice as they come (batch.h). */
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
    bool prompt_sent;   // the whole prompt has been sent
    uint32_t prompt_at; // tokens of the prompt that have been sent
    output_batch batch;
    output_run run; // to be sent next, or to wait for the prompt's last piece; n is 0: none
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

static bool fill_logprob(const tokenizer *t, const step_sample *s, arena *memory,
                         Octavo__V1__TokenLogprob *out)
{
    *out = logprob_of(t, s->token, s->logprob, s->rank);
    Octavo__V1__TopLogprob *tops = arena_alloc_array(memory, s->n_top, sizeof *tops);
    out->top = arena_alloc_array(memory, s->n_top, sizeof *out->top);
    if (!tops || !out->top) return false;
    for (uint32_t i = 0; i < s->n_top; i++) {
        tops[i] = top_of(t, s->top_ids[i], s->top_logprobs[i]);
        out->top[i] = &tops[i];
    }
    out->n_top = s->n_top;
    return true;
}

static bool fill_tokens(const tokenizer *t, const output_run *run, bool logprobs, arena *memory,
                        Octavo__V1__GenerateResponse *m)
{
    Octavo__V1__TokenLogprob *list = arena_alloc_array(memory, logprobs ? run->n : 0, sizeof *list);
    m->token_ids = arena_alloc_array(memory, run->n, sizeof *m->token_ids);
    m->logprobs = arena_alloc_array(memory, logprobs ? run->n : 0, sizeof *m->logprobs);
    if (!list || !m->token_ids || !m->logprobs) return false;
    for (uint32_t i = 0; i < run->n; i++) {
        const engine_output *o = &run->outputs[i]->out;
        if (!o->has_token) continue;
        m->token_ids[m->n_token_ids++] = o->sample.token;
        if (!logprobs) continue;
        Octavo__V1__TokenLogprob *l = &list[m->n_logprobs];
        if (!fill_logprob(t, &o->sample, memory, l)) return false;
        m->logprobs[m->n_logprobs++] = l;
    }
    return true;
}

static bool fill_text(const output_run *run, arena *memory, Octavo__V1__GenerateResponse *m)
{
    size_t n = 0;
    for (uint32_t i = 0; i < run->n; i++) n += run->outputs[i]->out.text_bytes;
    char *text = arena_alloc(memory, n);
    if (!text) return false;
    m->text = call_bytes(text, n);
    for (uint32_t i = 0; i < run->n; i++) {
        const engine_output *o = &run->outputs[i]->out;
        memcpy(text, o->text, o->text_bytes);
        text += o->text_bytes;
    }
    return true;
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
    strbuf_clear(report);
    if (o->report) retention_report_json(o->report, report);
    size_t kept = report->size;
    if (o->reading) retrieval_report_json(o->reading, report);
    if (report->failed) return;
    if (o->report) m->retention_json = call_bytes(report->data, kept);
    if (o->reading) m->retrieval_json = call_bytes(report->data + kept, report->size - kept);
}

bool octavo_v1_response_of(const tokenizer *t, const char *id, const output_run *run, bool logprobs,
                           strbuf *report, arena *memory, octavo_v1_response *out)
{
    Octavo__V1__GenerateResponse *m = &out->message;
    const generation_output *last = run_last(run);
    *m = (Octavo__V1__GenerateResponse)OCTAVO__V1__GENERATE_RESPONSE__INIT;
    m->request_id = field_of(id);
    m->index = last->index;
    if (last->out.finish != ENGINE_FINISH_NONE) fill_end(&last->out, report, out);
    return fill_tokens(t, run, logprobs, memory, m) && fill_text(run, memory, m) && !report->failed;
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

/* Fills *out with the next piece of the prompt. False when memory is out. */
static bool next_piece(rpc_call *c, generate *s, arena *memory, Octavo__V1__Prompt *out)
{
    engine_prompt prompt = generation_prompt(s->generation, run_last(&s->run)->request);
    uint32_t left = prompt.n_tokens - s->prompt_at;
    uint32_t n = prompt.logprobs && left > PROMPT_PIECE ? PROMPT_PIECE : left;
    if (!octavo_v1_prompt_of(call_service(c)->o.model.tokenizer, &prompt, s->prompt_at, n, memory,
                             out))
        return false;
    s->prompt_at += n;
    s->prompt_sent = n == left;
    return true;
}

/* ---- the call -------------------------------------------------------------------------------- */

static void fail_octavo_generate(rpc_call *c, generate *s, status_code code, const char *text)
{
    error err = {{0}};
    status st = error_set(&err, code, "%s", text);
    s->over = true;
    call_fail(c, st, &err);
}

/* The prompt comes with the first token, because its logprobs are not all there before. */
static void send_progress(rpc_call *c, generate *s)
{
    const generation_output *o = run_last(&s->run);
    Octavo__V1__GenerateResponse m = OCTAVO__V1__GENERATE_RESPONSE__INIT;
    Octavo__V1__Progress progress = OCTAVO__V1__PROGRESS__INIT;
    m.request_id = field_of(generation_id(s->generation));
    m.index = o->index;
    progress.phase = field_of(o->out.progress.phase);
    progress.computed_tokens = o->out.progress.computed_tokens;
    progress.total_tokens = o->out.progress.total_tokens;
    m.progress = &progress;
    s->run.n = 0;
    call_send(c, &m.base);
}

/* Fills a message with the next piece of the prompt, while there is one, and with the run unless
 * more pieces follow. False when memory is out. */
static bool fill_message(rpc_call *c, generate *s, arena *memory, Octavo__V1__Prompt *piece,
                         octavo_v1_response *out)
{
    const char *id = generation_id(s->generation);
    bool with_prompt = !s->prompt_sent;
    if (with_prompt && !next_piece(c, s, memory, piece)) return false;
    if (s->prompt_sent) {
        if (!octavo_v1_response_of(call_service(c)->o.model.tokenizer, id, &s->run, s->logprobs,
                                   &s->report, memory, out))
            return false;
        s->run.n = 0;
    } else {
        out->message = (Octavo__V1__GenerateResponse)OCTAVO__V1__GENERATE_RESPONSE__INIT;
        out->message.request_id = field_of(id);
    }
    if (with_prompt) out->message.prompt = piece;
    return true;
}

static void send_run(rpc_call *c, generate *s)
{
    octavo_v1_response response;
    Octavo__V1__Prompt piece;
    arena memory;
    arena_init(&memory, 4096, 0);
    if (fill_message(c, s, &memory, &piece, &response)) call_send(c, &response.message.base);
    else fail_octavo_generate(c, s, STATUS_NO_MEMORY, "request: out of memory");
    arena_destroy(&memory);
}

/* Takes the next run to send. False when there is none, or the call has failed or is finished. */
static bool next_run(rpc_call *c, generate *s)
{
    status st = batch_next(&s->batch, s->generation, &s->run);
    const engine_output *last = s->run.n ? &run_last(&s->run)->out : NULL;
    if (!status_ok(st)) {
        fail_octavo_generate(c, s, st.code, "request: out of memory");
    } else if (last && last->finish == ENGINE_FINISH_ERROR) {
        fail_octavo_generate(c, s, last->error_code, last->error_text);
    } else if (!last && generation_ended(s->generation)) {
        s->over = true;
        call_finish(c, GRPC_STATUS_OK, NULL);
    }
    return last && !s->over;
}

void octavo_v1_generate_writable(rpc_call *c)
{
    generate *s = call_state(c);
    while (s && !s->over && call_can_send(c))
        if (s->run.n == 0 && !next_run(c, s)) break;
        else if (run_last(&s->run)->out.progress.phase) send_progress(c, s);
        else send_run(c, s);
}

static status start_octavo_generate(rpc_call *c, const Octavo__V1__GenerateRequest *m, generate *s,
                                    error *err)
{
    char id[SERVICE_ID_BYTES_MAX + 1], identity[SERVICE_IDENTITY_BYTES];
    trace_headers trace;
    RETURN_IF_ERROR(field_word("request_id", m->request_id, id, sizeof id, err));
    call_identity(c, identity);
    generation_options o = {.id = id,
                            .surface = "octavo.v1",
                            .notify = call_wake,
                            .notify_ctx = c,
                            .identity = identity,
                            .trace = call_trace(c, &trace)};
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
    batch_destroy(&s->batch);
    generation_release(s->generation);
    strbuf_destroy(&s->report);
    free(s);
}
