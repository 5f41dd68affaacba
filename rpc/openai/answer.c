/* Builds an answer from outputs: a body at the end, or a frame for each token. */
#include "rpc/openai/internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The most that an answer may hold in memory: logprobs multiply with choices and tokens. */
enum { HELD_BYTES_MAX = 256 * 1024 * 1024 };

/* One choice while it is generated. */
typedef struct choice {
    bool begun;
    uint32_t n_tokens; // generated
    uint32_t prompt_tokens;
    double logprobs;                // summed over its tokens
    tok_stream place;               // decodes tokens to count characters, for text_offset
    uint32_t characters;            // in the text before the next token
    strbuf text;                    // not yet written
    talk talk;                      // chat whose text is taken apart: in place of text
    completion_logprobs completion; // completions: logprobs not yet written
    strbuf chat;                    // chat: logprobs not yet written
    strbuf token_ids;               // not yet written
    strbuf prompt;                  // members about the prompt, not yet written
    strbuf ending;                  // whole bodies: all members after the text
} choice;

struct openai_answer {
    service *s;
    openai_call call;
    char id[SERVICE_ID_BYTES_MAX + 1]; // the generation's
    strbuf head;                       // start of every frame, or of the body, up to `"choices":[`
    uint32_t n;                        // choices
    choice *choices;                   // [n]
    bool *counted;                     // [n_requests]: the request's prompt is counted in usage
    engine_usage usage;
    strbuf transfer; // whole bodies: kv_transfer_params; empty: none
    uint64_t seed;   // of the ids of tool calls
    size_t held;     // bytes that the choices of a whole body hold
    strbuf scratch;
    openai_error error; // status 0 = none
};

/* ---- life ------------------------------------------------------------------------------------ */

static void put_string(strbuf *out, const char *text)
{
    strbuf_json_string(out, text, strlen(text));
}

/* Writes program, version and ISA: answers to the same seed may differ where these differ. */
static void put_fingerprint(strbuf *out, const service *s)
{
    strbuf text = {0};
    strbuf_printf(&text, "octavo-%s-%s", s->o.version, s->o.model.isa);
    put_string(out, text.data ? text.data : "");
    out->failed |= text.failed;
    strbuf_destroy(&text);
}

static void put_head(const openai_answer *a, const char *id, strbuf *out)
{
    const openai_call *c = &a->call;
    const char *object = !c->chat    ? "text_completion"
                         : c->stream ? "chat.completion.chunk"
                                     : "chat.completion";
    strbuf name = {0};
    strbuf_printf(&name, "%s-%s", c->chat ? "chatcmpl" : "cmpl", id);
    strbuf_puts(out, c->stream ? "data: {\"id\":" : "{\"id\":");
    put_string(out, name.data ? name.data : "");
    out->failed |= name.failed;
    strbuf_destroy(&name);
    strbuf_printf(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object,
                  (long long)time(NULL));
    put_string(out, c->model);
    strbuf_puts(out, ",\"system_fingerprint\":");
    put_fingerprint(out, a->s);
    strbuf_puts(out, ",\"choices\":[");
}

/* Frees the prompts, of which the engine has a copy: requests may wait for a long time. */
static void forget_inputs(openai_call *c)
{
    for (uint32_t i = 0; i < c->n_requests; i++) {
        engine_request *r = &c->requests[i];
        if (!c->echo) {
            free(r->prompt);
            r->prompt = NULL;
            r->prompt_bytes = 0;
        }
        json_decref(r->messages);
        json_decref(r->tools);
        json_decref(r->chat_template_kwargs);
        free(r->chat_template);
        free(r->prompt_token_ids);
        r->messages = r->tools = r->chat_template_kwargs = NULL;
        r->chat_template = NULL;
        r->prompt_token_ids = NULL;
        r->n_prompt_token_ids = 0;
    }
}

openai_answer *openai_answer_create(service *s, openai_call *call, const char *id)
{
    openai_answer *a = calloc(1, sizeof *a);
    if (!a) {
        openai_call_destroy(call);
        return NULL;
    }
    a->s = s;
    a->call = *call;
    *call = (openai_call){0};
    forget_inputs(&a->call);
    a->n = a->call.n_requests * a->call.n_choices;
    a->choices = calloc(a->n, sizeof *a->choices);
    a->counted = calloc(a->call.n_requests, sizeof *a->counted);
    a->seed = hash_bytes(id, strlen(id), s->id_salt);
    snprintf(a->id, sizeof a->id, "%s", id);
    put_head(a, id, &a->head);
    if (a->choices && a->counted && !a->head.failed) return a;
    openai_answer_destroy(a);
    return NULL;
}

void openai_answer_destroy(openai_answer *a)
{
    if (!a) return;
    for (uint32_t i = 0; a->choices && i < a->n; i++) {
        choice *c = &a->choices[i];
        strbuf_destroy(&c->text);
        talk_destroy(&c->talk);
        completion_logprobs_destroy(&c->completion);
        strbuf_destroy(&c->chat);
        strbuf_destroy(&c->token_ids);
        strbuf_destroy(&c->prompt);
        strbuf_destroy(&c->ending);
    }
    strbuf_destroy(&a->head);
    strbuf_destroy(&a->scratch);
    strbuf_destroy(&a->transfer);
    free(a->choices);
    free(a->counted);
    openai_call_destroy(&a->call);
    free(a);
}

bool openai_answer_streams(const openai_answer *a) { return a->call.stream; }

const openai_error *openai_answer_error(const openai_answer *a)
{
    return a->error.status ? &a->error : NULL;
}

/* Makes this error the answer's; a stream shows it at once. */
static void fail_answer(openai_answer *a, uint32_t request, status_code code, const char *text,
                        strbuf *out)
{
    error err;
    snprintf(err.text, sizeof err.text, "%s", text ? text : "");
    openai_error_from(a->s, status_make(code, NULL), &err, &a->error);
    const openai_form *form = a->call.form;
    if (form) openai_rename(form->names, &a->error);
    else openai_place_prompt("prompt", a->call.n_requests, request, &a->error);
    if (!a->call.stream) return;
    if (form) {
        form->fail(a->call.writer, &a->error, out);
        return;
    }
    strbuf_puts(out, "data: ");
    openai_error_json(&a->error, out);
    strbuf_puts(out, "\n\n");
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void put_uint(strbuf *out, uint32_t v)
{
    char digits[10];
    unsigned at = sizeof digits;
    do digits[--at] = (char)('0' + v % 10);
    while (v /= 10);
    strbuf_append(out, digits + at, sizeof digits - at);
}

static void put_usage(strbuf *out, const engine_usage *u, bool details)
{
    strbuf_printf(out,
                  "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u",
                  u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens);
    if (details)
        strbuf_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%u}", u->cached_tokens);
    strbuf_putc(out, '}');
}

static void put_ids(strbuf *out, const uint32_t *ids, uint32_t n)
{
    strbuf_putc(out, '[');
    for (uint32_t i = 0; i < n; i++) {
        if (i) strbuf_putc(out, ',');
        put_uint(out, ids[i]);
    }
    strbuf_putc(out, ']');
}

static void put_transfer(const openai_answer *a, const generation_output *o, strbuf *out)
{
    if (o->out.finish == ENGINE_FINISH_NONE || !o->out.transfer) return;
    strbuf_puts(out, ",\"kv_transfer_params\":");
    service_put_transfer(a->s, o->out.transfer, out);
}

static const engine_request *request_of(const openai_answer *a, const generation_output *o)
{
    return &a->call.requests[o->index / a->call.n_choices];
}

/* Writes vLLM's stop_reason: the request's stop string or stop token; null for EOS. */
static void put_stop_reason(const engine_request *r, const engine_output *o, strbuf *out)
{
    if (o->stop_string) {
        put_string(out, o->stop_string);
        return;
    }
    for (uint32_t i = 0; i < r->n_stop_token_ids; i++)
        if (o->stop_token == (int64_t)r->stop_token_ids[i]) {
            put_uint(out, r->stop_token_ids[i]);
            return;
        }
    strbuf_puts(out, "null");
}

/* A choice that ended by itself and called tools has the finish_reason "tool_calls". */
static const char *finish_name(const choice *c, engine_finish finish)
{
    return finish == ENGINE_FINISH_STOP && c->talk.n_begun ? "tool_calls"
                                                           : engine_finish_name(finish);
}

static void put_finish(const openai_answer *a, const choice *c, const generation_output *o,
                       strbuf *out)
{
    if (o->out.finish == ENGINE_FINISH_NONE) {
        strbuf_puts(out, ",\"finish_reason\":null,\"stop_reason\":null");
        return;
    }
    strbuf_puts(out, ",\"finish_reason\":\"");
    strbuf_puts(out, finish_name(c, o->out.finish));
    strbuf_puts(out, "\",\"stop_reason\":");
    put_stop_reason(request_of(a, o), &o->out, out);
    if (o->out.report) {
        strbuf_puts(out, ",\"retention\":");
        retention_report_json(o->out.report, out);
    }
    if (o->out.reading) {
        strbuf_puts(out, ",\"retrieval\":");
        retrieval_report_json(o->out.reading, out);
    }
}

static void put_logprobs(const openai_answer *a, choice *c, strbuf *out)
{
    if (!a->call.logprobs) {
        strbuf_puts(out, ",\"logprobs\":null");
    } else if (!a->call.chat) {
        strbuf_puts(out, ",\"logprobs\":");
        completion_logprobs_take(&c->completion, out);
    } else {
        strbuf_puts(out, ",\"logprobs\":{\"content\":[");
        strbuf_append(out, c->chat.data, c->chat.size);
        strbuf_puts(out, "],\"refusal\":null}");
        strbuf_clear(&c->chat);
    }
}

static void put_buffered(strbuf *out, strbuf *from)
{
    strbuf_append(out, from->data, from->size);
    strbuf_clear(from);
}

/* Writes the members of a choice after its text. */
static void put_members(const openai_answer *a, choice *c, const generation_output *o, strbuf *out)
{
    put_logprobs(a, c, out);
    put_finish(a, c, o, out);
    if (a->call.return_token_ids) {
        strbuf_puts(out, ",\"token_ids\":[");
        put_buffered(out, &c->token_ids);
        strbuf_putc(out, ']');
    }
    if (!a->call.chat) put_buffered(out, &c->prompt);
}

/* ---- taking outputs -------------------------------------------------------------------------- */

static size_t held_by(const choice *c)
{
    return c->text.size + talk_bytes(&c->talk) + completion_logprobs_size(&c->completion) +
           c->chat.size + c->token_ids.size + c->prompt.size + c->ending.size;
}

static bool takes_apart(const openai_call *c) { return c->tools || c->reasoning || c->form; }

static void init_talk(const openai_answer *a, choice *c, const generation_output *o,
                      const engine_prompt *p)
{
    const openai_call *call = &a->call;
    const talk_options options = {
        .reasoning = call->reasoning,
        .begun = call->reasoning && reasoning_is_begun(call->reasoning, a->s->o.model.tokenizer, p),
        .hidden = call->hides_reasoning,
        .tools = call->tools,
        .one_call = call->one_call,
        .seed = a->seed + o->index,
    };
    talk_init(&c->talk, &options);
}

static void begin_choice(openai_answer *a, choice *c, const generation *g,
                         const generation_output *o)
{
    const engine_request *r = request_of(a, o);
    const openai_call *call = &a->call;
    engine_prompt p = generation_prompt(g, o->request);
    c->begun = true;
    if (takes_apart(call)) init_talk(a, c, o, &p);
    c->prompt_tokens = p.n_tokens;
    tok_stream_init(&c->place, a->s->o.model.tokenizer, r->skip_special_tokens);
    tok_stream_resume(&c->place);
    if (call->echo) {
        echo_text(a->s, r, &p, &c->text);
        c->characters = count_characters(c->text.data, c->text.size);
        if (call->logprobs)
            echo_logprobs(a->s, r, &p, c->characters, call->tokens_by_id, &c->completion);
    }
    /* Chat has one prompt, which a whole body describes once, beside the choices. */
    if (call->chat && !call->stream && o->index > 0) return;
    if (call->prompt_logprobs >= 0) {
        strbuf_puts(&c->prompt, ",\"prompt_logprobs\":");
        prompt_logprobs_put(&c->prompt, a->s->o.model.tokenizer, &p,
                            (uint32_t)call->prompt_logprobs);
    }
    if (call->return_token_ids) {
        strbuf_puts(&c->prompt, ",\"prompt_token_ids\":");
        put_ids(&c->prompt, p.tokens, p.n_tokens);
    }
}

static token_place sample_place(const engine_request *r, const step_sample *s)
{
    uint32_t n_top = r->logprobs > 0 ? (uint32_t)r->logprobs : 0;
    return (token_place){
        .token = s->token,
        .logprob = s->logprob,
        .rank = s->rank,
        .n_top = n_top < s->n_top ? n_top : s->n_top,
        .top_ids = s->top_ids,
        .top_logprobs = s->top_logprobs,
    };
}

/* Adds a token's logprobs. Its text may be held back as a possible stop string and come later, so
 * its offset is counted from the token's own bytes. */
static void take_completion_logprobs(openai_answer *a, choice *c, const token_place *p)
{
    completion_logprobs_add(&c->completion, a->s->o.model.tokenizer, p, c->characters);
    strbuf_clear(&a->scratch);
    if (p->token < tok_vocab_size(c->place.t) &&
        !status_ok(tok_stream_push(&c->place, p->token, &a->scratch)))
        a->scratch.failed = true;
    c->characters += count_characters(a->scratch.data, a->scratch.size);
}

static void take_token(openai_answer *a, choice *c, const generation_output *o)
{
    c->n_tokens++;
    c->logprobs += o->out.sample.logprob;
    if (a->call.logprobs) {
        token_place p = sample_place(request_of(a, o), &o->out.sample);
        p.by_id = a->call.tokens_by_id;
        if (a->call.chat) chat_logprob_add(&c->chat, a->s->o.model.tokenizer, &p);
        else take_completion_logprobs(a, c, &p);
    }
    if (a->call.return_token_ids) {
        if (c->token_ids.size) strbuf_putc(&c->token_ids, ',');
        put_uint(&c->token_ids, o->out.sample.token);
    }
}

static void count_usage(openai_answer *a, const generation_output *o)
{
    bool *counted = &a->counted[o->index / a->call.n_choices];
    a->usage.completion_tokens += o->out.usage.completion_tokens;
    if (*counted) return;
    *counted = true;
    a->usage.prompt_tokens += o->out.usage.prompt_tokens;
    a->usage.cached_tokens += o->out.usage.cached_tokens;
}

static bool out_of_memory(const openai_answer *a, const choice *c)
{
    return completion_logprobs_failed(&c->completion) || c->text.failed || talk_failed(&c->talk) ||
           c->chat.failed || c->token_ids.failed || c->prompt.failed || c->ending.failed ||
           a->scratch.failed || a->transfer.failed;
}

/* ---- frames ---------------------------------------------------------------------------------- */

static void put_text(choice *c, const generation_output *o, strbuf *out)
{
    if (c->text.size) {
        strbuf_append(&c->text, o->out.text, o->out.text_bytes);
        strbuf_json_string(out, c->text.data, c->text.size);
        strbuf_clear(&c->text);
    } else {
        strbuf_json_string(out, o->out.text, o->out.text_bytes);
    }
}

/* Writes what is new of the choice: a text, or the delta of a chat. */
static void put_news(const openai_answer *a, choice *c, const generation_output *o, bool first,
                     strbuf *out)
{
    if (!a->call.chat) {
        strbuf_puts(out, ",\"text\":");
        put_text(c, o, out);
        return;
    }
    strbuf_puts(out, ",\"delta\":{");
    if (takes_apart(&a->call)) {
        talk_put_delta(&c->talk, first, out);
        talk_clear(&c->talk);
    } else {
        strbuf_puts(out, first ? "\"role\":\"assistant\",\"content\":" : "\"content\":");
        put_text(c, o, out);
    }
    strbuf_putc(out, '}');
}

static void put_frame(openai_answer *a, choice *c, const generation_output *o, bool first,
                      strbuf *out)
{
    const openai_call *call = &a->call;
    strbuf_append(out, a->head.data, a->head.size);
    strbuf_puts(out, "{\"index\":");
    put_uint(out, o->index);
    put_news(a, c, o, first, out);
    put_members(a, c, o, out);
    strbuf_puts(out, "}]");
    put_buffered(out, &c->prompt);
    put_transfer(a, o, out);
    if (call->continuous_usage) {
        engine_usage so_far = {.prompt_tokens = c->prompt_tokens, .completion_tokens = c->n_tokens};
        strbuf_putc(out, ',');
        put_usage(out, &so_far, false);
    } else if (call->include_usage) {
        strbuf_puts(out, ",\"usage\":null");
    }
    strbuf_puts(out, "}\n\n");
}

/* An event with a name, which a client that knows only OpenAI's events may pass over. It has a
 * chunk's members, so that OpenAI's own client, which reads it, finds a chunk without choices. */
static void put_progress(const openai_answer *a, const generation_output *o, strbuf *out)
{
    const engine_progress *p = &o->out.progress;
    strbuf_puts(out, "event: octavo.progress\n");
    strbuf_append(out, a->head.data, a->head.size);
    strbuf_printf(out, "],\"progress\":{\"index\":%u,\"phase\":\"%s\",", o->index, p->phase);
    strbuf_printf(out, "\"computed_tokens\":%u,\"total_tokens\":%u}}\n\n", p->computed_tokens,
                  p->total_tokens);
}

static void take_text(const openai_answer *a, choice *c, const generation_output *o)
{
    if (takes_apart(&a->call)) {
        talk_take(&c->talk, o->out.text, o->out.text_bytes);
        if (o->out.finish != ENGINE_FINISH_NONE) talk_end(&c->talk);
    } else if (!a->call.stream) strbuf_append(&c->text, o->out.text, o->out.text_bytes);
}

/* A token whose text is held back has no frame of its own. */
static bool needs_frame(const openai_answer *a, const choice *c, const generation_output *o,
                        bool first)
{
    return first || !takes_apart(&a->call) || o->out.finish != ENGINE_FINISH_NONE ||
           !talk_is_empty(&c->talk);
}

static void take_whole(openai_answer *a, choice *c, const generation_output *o)
{
    if (o->out.finish == ENGINE_FINISH_NONE) return;
    put_members(a, c, o, &c->ending);
    /* It is about the prompt, which all choices share. */
    if (!a->transfer.size) put_transfer(a, o, &a->transfer);
}

/* Has the form write what an output brings. */
static void write_form(openai_answer *a, const generation *g, const generation_output *o,
                       strbuf *out)
{
    const openai_form *form = a->call.form;
    choice *c = a->choices;
    if (!c->begun) {
        begin_choice(a, c, g, o);
        form->begin(a->call.writer, &(form_begin){&a->call, a->id, c->prompt_tokens}, out);
    }
    take_text(a, c, o);
    form->take(a->call.writer, &c->talk, out);
    talk_clear(&c->talk);
    if (o->out.finish == ENGINE_FINISH_NONE) return;
    form->end(a->call.writer,
              &(form_end){o->out.finish, o->out.stop_string, o->out.usage, o->out.report,
                          o->out.reading, o->out.transfer},
              out);
}

static void take_form(openai_answer *a, const generation *g, const generation_output *o,
                      strbuf *out)
{
    write_form(a, g, o, a->call.stream ? out : &a->scratch);
    bool failed = a->scratch.failed || talk_failed(&a->choices->talk);
    strbuf_clear(&a->scratch);
    size_t held = a->call.form->held(a->call.writer);
    if (failed) fail_answer(a, o->request, STATUS_NO_MEMORY, NULL, out);
    else if (held > HELD_BYTES_MAX)
        fail_answer(a, o->request, STATUS_LIMIT, "the answer is too long", out);
}

void openai_answer_take(openai_answer *a, const generation *g, const generation_output *o,
                        strbuf *out)
{
    static const char too_much[] = "the answer is too long: ask for fewer choices or logprobs";
    if (a->error.status || o->index >= a->n) return;
    if (o->out.progress.phase) {
        put_progress(a, o, out);
        return;
    }
    choice *c = &a->choices[o->index];
    bool first = !c->begun;
    if (o->out.finish == ENGINE_FINISH_ERROR) {
        fail_answer(a, o->request, o->out.error_code, o->out.error_text, out);
        return;
    }
    if (a->call.form) {
        take_form(a, g, o, out);
        return;
    }
    size_t held = held_by(c);
    if (first) begin_choice(a, c, g, o);
    if (o->out.has_token) take_token(a, c, o);
    if (o->out.finish != ENGINE_FINISH_NONE) count_usage(a, o);
    take_text(a, c, o);
    if (!a->call.stream) {
        take_whole(a, c, o);
        a->held += held_by(c) - held;
    }
    if (out_of_memory(a, c)) fail_answer(a, o->request, STATUS_NO_MEMORY, NULL, out);
    else if (a->held > HELD_BYTES_MAX) fail_answer(a, o->request, STATUS_LIMIT, too_much, out);
    else if (a->call.stream && needs_frame(a, c, o, first)) put_frame(a, c, o, first, out);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void finish_stream(openai_answer *a, strbuf *out)
{
    if (a->call.form) return; /* its end or its error was the last event */
    if (a->call.include_usage && !a->error.status) {
        strbuf_append(out, a->head.data, a->head.size);
        strbuf_puts(out, "],");
        put_usage(out, &a->usage, true);
        strbuf_puts(out, "}\n\n");
    }
    strbuf_puts(out, "data: [DONE]\n\n");
}

static void put_whole_choice(const openai_call *call, const choice *c, uint32_t index, strbuf *out)
{
    strbuf_puts(out, index ? ",{\"index\":" : "{\"index\":");
    put_uint(out, index);
    strbuf_puts(out, call->chat ? ",\"message\":{" : ",\"text\":");
    if (takes_apart(call)) talk_put_message(&c->talk, out);
    else {
        if (call->chat) strbuf_puts(out, "\"role\":\"assistant\",\"content\":");
        strbuf_json_string(out, c->text.data ? c->text.data : "", c->text.size);
        if (call->chat) strbuf_puts(out, ",\"refusal\":null");
    }
    if (call->chat) strbuf_putc(out, '}');
    strbuf_append(out, c->ending.data, c->ending.size);
    strbuf_putc(out, '}');
}

/* The mean of the logprobs of a choice's tokens. */
static double score_of(const choice *c) { return c->n_tokens ? c->logprobs / c->n_tokens : 0; }

/* How many choices of the same request are better; of equal ones the first. */
static uint32_t place_of(const openai_answer *a, uint32_t at)
{
    uint32_t n = a->call.n_choices, first = at - at % n, better = 0;
    double own = score_of(&a->choices[at]);
    for (uint32_t i = first; i < first + n; i++) {
        double other = score_of(&a->choices[i]);
        better += other > own || (other == own && i < at);
    }
    return better;
}

/* Which of a request's choices the answer has, in its order: all of them, or the best ones. */
static void order_choices(const openai_answer *a, uint32_t request, uint32_t order[ENGINE_N_MAX])
{
    uint32_t n = a->call.n_choices, n_unseen = a->call.n_unseen;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = request * n + i, place = n_unseen ? place_of(a, at) : i;
        if (place < n - n_unseen) order[place] = at;
    }
}

static void put_request(const openai_answer *a, uint32_t request, strbuf *out)
{
    uint32_t order[ENGINE_N_MAX] = {0}, n = a->call.n_choices - a->call.n_unseen;
    order_choices(a, request, order);
    for (uint32_t i = 0; i < n; i++)
        put_whole_choice(&a->call, &a->choices[order[i]], request * n + i, out);
}

static void finish_whole(openai_answer *a, strbuf *out)
{
    if (a->error.status) {
        openai_error_json(&a->error, out);
        return;
    }
    if (a->call.form) {
        a->call.form->finish(a->call.writer, out);
        return;
    }
    strbuf_append(out, a->head.data, a->head.size);
    for (uint32_t i = 0; i < a->call.n_requests; i++) put_request(a, i, out);
    strbuf_puts(out, "],");
    put_usage(out, &a->usage, true);
    if (a->call.chat) put_buffered(out, &a->choices[0].prompt);
    put_buffered(out, &a->transfer);
    strbuf_putc(out, '}');
}

void openai_answer_finish(openai_answer *a, strbuf *out)
{
    if (a->call.stream) finish_stream(a, out);
    else finish_whole(a, out);
}

const char *openai_answer_starved(const openai_answer *a)
{
    return a->call.form ? a->call.form->starved : openai_starved;
}
