/* Writes the events of a response, and the response itself.
 *
 * Events are written whether the call streams or not (an answer that comes whole drops them), so
 * that both forms have the same items. */
#include "rpc/openai/responses/responses.h"

#include "base/clock.h"
#include "rpc/openai/internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- parts ----------------------------------------------------------------------------------- */

static void put_string(strbuf *out, const char *text)
{
    strbuf_json_string(out, text, strlen(text));
}

static void put_buffer(strbuf *out, const strbuf *text)
{
    strbuf_json_string(out, text->data ? text->data : "", text->size);
    out->failed |= text->failed;
}

static void append(strbuf *out, const strbuf *from)
{
    strbuf_append(out, from->data ? from->data : "", from->size);
    out->failed |= from->failed;
}

/* ---- the response ---------------------------------------------------------------------------- */

static void put_usage(const response_writer *w, const engine_usage *u, strbuf *out)
{
    if (!u) {
        strbuf_puts(out, ",\"usage\":null");
        return;
    }
    strbuf_printf(out,
                  ",\"usage\":{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u},"
                  "\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":%u},"
                  "\"total_tokens\":%u}",
                  u->prompt_tokens, u->cached_tokens, u->completion_tokens, w->n_reasoning,
                  u->prompt_tokens + u->completion_tokens);
}

/* usage: NULL = not known yet. why: of an answer that is not complete; NULL = none. failure: NULL =
 * none. */
static void put_response(const response_writer *w, const char *state, const engine_usage *usage,
                         const char *why, const openai_error *failure, strbuf *out)
{
    strbuf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld", w->id,
                  (long long)w->created);
    strbuf_printf(out, ",\"status\":\"%s\",\"model\":", state);
    put_string(out, w->model);
    if (failure) {
        strbuf_puts(out, ",\"error\":{\"code\":\"server_error\",\"message\":");
        put_string(out, failure->message);
        strbuf_putc(out, '}');
    } else strbuf_puts(out, ",\"error\":null");
    if (why) strbuf_printf(out, ",\"incomplete_details\":{\"reason\":\"%s\"}", why);
    else strbuf_puts(out, ",\"incomplete_details\":null");
    strbuf_puts(out, ",\"output\":[");
    append(out, &w->output);
    strbuf_putc(out, ']');
    append(out, &w->echo);
    append(out, &w->reports);
    put_usage(w, usage, out);
    strbuf_putc(out, '}');
}

/* ---- events ---------------------------------------------------------------------------------- */

static void begin_event(response_writer *w, const char *type, strbuf *out)
{
    strbuf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%u", type, type,
                  w->sequence++);
}

static void end_event(strbuf *out) { strbuf_puts(out, "}\n\n"); }

static void put_state(response_writer *w, const char *type, const char *state, strbuf *out)
{
    begin_event(w, type, out);
    strbuf_puts(out, ",\"response\":");
    put_response(w, state, NULL, NULL, NULL, out);
    end_event(out);
}

/* ---- items ----------------------------------------------------------------------------------- */

typedef struct item_words {
    const char *prefix; // of the item's id
    const char *delta, *done;
} item_words;

static const item_words words[] = {
    [ITEM_REASONING] = {"rs", "response.reasoning_text.delta", "response.reasoning_text.done"},
    [ITEM_MESSAGE] = {"msg", "response.output_text.delta", "response.output_text.done"},
    [ITEM_CALL] = {"fc", "response.function_call_arguments.delta",
                   "response.function_call_arguments.done"},
};

static void put_item_id(const response_writer *w, strbuf *out)
{
    strbuf_printf(out, "\"%s_%s_%u\"", words[w->item].prefix, w->id + strlen("resp_"),
                  w->n_items - 1);
}

/* with: with the text so far. */
static void put_part(const response_writer *w, bool with, strbuf *out)
{
    if (w->item == ITEM_MESSAGE)
        strbuf_puts(out, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
    else strbuf_puts(out, "{\"type\":\"reasoning_text\",\"text\":");
    if (with) put_buffer(out, &w->text);
    else strbuf_puts(out, "\"\"");
    strbuf_putc(out, '}');
}

static void put_call(const response_writer *w, bool with, strbuf *out)
{
    strbuf_puts(out, ",\"type\":\"function_call\",\"call_id\":");
    put_buffer(out, &w->call_id);
    strbuf_puts(out, ",\"name\":");
    put_buffer(out, &w->name);
    strbuf_puts(out, ",\"arguments\":");
    if (with) put_buffer(out, &w->text);
    else strbuf_puts(out, "\"\"");
}

static void put_item(const response_writer *w, const char *state, bool with, strbuf *out)
{
    strbuf_puts(out, "{\"id\":");
    put_item_id(w, out);
    strbuf_printf(out, ",\"status\":\"%s\"", state);
    if (w->item == ITEM_CALL) put_call(w, with, out);
    else {
        strbuf_puts(out, w->item == ITEM_MESSAGE
                             ? ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                             : ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (with) put_part(w, true, out);
        strbuf_putc(out, ']');
    }
    strbuf_putc(out, '}');
}

/* An event about the item as a whole. */
static void put_item_event(response_writer *w, const char *type, const char *state, bool with,
                           strbuf *out)
{
    begin_event(w, type, out);
    strbuf_printf(out, ",\"output_index\":%u,\"item\":", w->n_items - 1);
    put_item(w, state, with, out);
    end_event(out);
}

/* Begins an event about what is inside the item. */
static void begin_inner(response_writer *w, const char *type, strbuf *out)
{
    begin_event(w, type, out);
    strbuf_printf(out, ",\"output_index\":%u,\"item_id\":", w->n_items - 1);
    put_item_id(w, out);
    if (w->item != ITEM_CALL) strbuf_puts(out, ",\"content_index\":0");
}

static void put_part_event(response_writer *w, const char *type, bool with, strbuf *out)
{
    if (w->item == ITEM_CALL) return;
    begin_inner(w, type, out);
    strbuf_puts(out, ",\"part\":");
    put_part(w, with, out);
    end_event(out);
}

static void begin_item(response_writer *w, int item, strbuf *out)
{
    w->item = item;
    w->n_items++;
    strbuf_clear(&w->text);
    put_item_event(w, "response.output_item.added", "in_progress", false, out);
    put_part_event(w, "response.content_part.added", false, out);
}

static void put_text_done(response_writer *w, strbuf *out)
{
    begin_inner(w, words[w->item].done, out);
    if (w->item == ITEM_CALL) {
        strbuf_puts(out, ",\"name\":");
        put_buffer(out, &w->name);
    }
    if (w->item == ITEM_MESSAGE) strbuf_puts(out, ",\"logprobs\":[]");
    strbuf_puts(out, w->item == ITEM_CALL ? ",\"arguments\":" : ",\"text\":");
    put_buffer(out, &w->text);
    end_event(out);
}

static void put_delta(response_writer *w, const strbuf *news, strbuf *out)
{
    begin_inner(w, words[w->item].delta, out);
    if (w->item == ITEM_MESSAGE) strbuf_puts(out, ",\"logprobs\":[]");
    strbuf_puts(out, ",\"delta\":");
    put_buffer(out, news);
    end_event(out);
    append(&w->text, news);
}

/* Adds a call to the message that the next turn begins with. */
static void keep_call(response_writer *w)
{
    strbuf *out = &w->calls;
    if (out->size) strbuf_putc(out, ',');
    strbuf_puts(out, "{\"id\":");
    put_buffer(out, &w->call_id);
    strbuf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
    put_buffer(out, &w->name);
    strbuf_puts(out, ",\"arguments\":");
    put_buffer(out, &w->text);
    strbuf_puts(out, "}}");
}

static void end_item(response_writer *w, const char *state, strbuf *out)
{
    if (w->item == ITEM_NONE) return;
    put_text_done(w, out);
    put_part_event(w, "response.content_part.done", true, out);
    put_item_event(w, "response.output_item.done", state, true, out);
    if (w->output.size) strbuf_putc(&w->output, ',');
    put_item(w, state, true, &w->output);
    if (w->item == ITEM_CALL) keep_call(w);
    else append(w->item == ITEM_MESSAGE ? &w->said : &w->thought, &w->text);
    w->item = ITEM_NONE;
}

static void write_text(response_writer *w, int item, const strbuf *news, strbuf *out)
{
    if (news->size == 0) return;
    if (w->item != (unsigned)item) {
        end_item(w, "completed", out);
        begin_item(w, item, out);
    }
    put_delta(w, news, out);
}

static void write_call(response_writer *w, const talk *t, const talk_call *c, strbuf *out)
{
    if (c->begins) {
        end_item(w, "completed", out);
        strbuf_clear(&w->name);
        strbuf_clear(&w->call_id);
        append(&w->name, &c->name);
        talk_put_id(t, c->number, &w->call_id);
        begin_item(w, ITEM_CALL, out);
    }
    if (c->arguments.size) put_delta(w, &c->arguments, out);
}

/* ---- the form -------------------------------------------------------------------------------- */

static void begin_response(void *writer, const form_begin *b, strbuf *out)
{
    response_writer *w = writer;
    w->model = b->call->model;
    w->created = (int64_t)time(NULL);
    put_state(w, "response.created", "in_progress", out);
    put_state(w, "response.in_progress", "in_progress", out);
}

static void write_news(void *writer, const talk *t, strbuf *out)
{
    response_writer *w = writer;
    w->n_tokens++;
    if (t->reasoning.size) w->n_reasoning = w->n_tokens;
    write_text(w, ITEM_REASONING, &t->reasoning, out);
    for (uint32_t i = 0; i < t->n_calls; i++) {
        write_text(w, ITEM_MESSAGE, &t->calls[i].before, out);
        write_call(w, t, &t->calls[i], out);
    }
    write_text(w, ITEM_MESSAGE, &t->content, out);
}

static void put_reports(response_writer *w, const form_end *e)
{
    if (e->report) {
        strbuf_puts(&w->reports, ",\"retention\":");
        retention_report_json(e->report, &w->reports);
    }
    if (e->reading) {
        strbuf_puts(&w->reports, ",\"retrieval\":");
        retrieval_report_json(e->reading, &w->reports);
    }
    if (e->transfer) {
        strbuf_puts(&w->reports, ",\"kv_transfer_params\":");
        service_put_transfer(w->s, e->transfer, &w->reports);
    }
}

/* Appends the answer's message to the request's own. */
static void end_turn(response_writer *w)
{
    strbuf *out = &w->turn;
    out->size--; /* the list's end */
    if (out->data[out->size - 1] != '[') strbuf_putc(out, ',');
    strbuf_puts(out, "{\"role\":\"assistant\",\"content\":");
    put_buffer(out, &w->said);
    if (w->thought.size) {
        strbuf_puts(out, ",\"reasoning_content\":");
        put_buffer(out, &w->thought);
    }
    if (w->calls.size) {
        strbuf_puts(out, ",\"tool_calls\":[");
        append(out, &w->calls);
        strbuf_putc(out, ']');
    }
    strbuf_puts(out, "}]");
}

/* A response that cannot be kept is answered all the same: it may be forgotten at any time. */
static void store_response(response_writer *w)
{
    end_turn(w);
    if (w->turn.failed || w->body.failed) return;
    const response_facts f = {.id = w->id,
                              .identity = w->identity,
                              .before = w->before,
                              .body = &w->body,
                              .turn = &w->turn,
                              .session = w->session,
                              .salt = w->salt};
    response_store_put(w->s->responses, &f, clock_now_us());
}

static void end_response(void *writer, const form_end *e, strbuf *out)
{
    response_writer *w = writer;
    bool stopped = e->finish == ENGINE_FINISH_STOP, cut = e->finish == ENGINE_FINISH_LENGTH;
    const char *type = stopped ? "response.completed" : "response.incomplete";
    const char *state = stopped ? "completed" : "incomplete";
    if (w->n_items == 0) begin_item(w, ITEM_MESSAGE, out);
    end_item(w, state, out);
    put_reports(w, e);
    put_response(w, stopped || cut ? state : "cancelled", &e->usage,
                 cut ? "max_output_tokens" : NULL, NULL, &w->body);
    begin_event(w, type, out);
    strbuf_puts(out, ",\"response\":");
    append(out, &w->body);
    end_event(out);
    if (w->store && (stopped || cut)) store_response(w);
}

static void fail_response(void *writer, const openai_error *why, strbuf *out)
{
    response_writer *w = writer;
    begin_event(w, "error", out);
    strbuf_puts(out, ",\"code\":\"server_error\",\"param\":null,\"message\":");
    put_string(out, why->message);
    end_event(out);
    begin_event(w, "response.failed", out);
    strbuf_puts(out, ",\"response\":");
    put_response(w, "failed", NULL, NULL, why, out);
    end_event(out);
}

static void finish_response(void *writer, strbuf *out)
{
    append(out, &((response_writer *)writer)->body);
}

static size_t held_by(const void *writer)
{
    const response_writer *w = writer;
    return w->text.size + w->output.size + w->said.size + w->thought.size + w->calls.size +
           w->body.size;
}

static void destroy_writer(void *writer)
{
    response_writer *w = writer;
    strbuf *const buffers[] = {&w->turn,    &w->echo,    &w->text, &w->name,
                               &w->call_id, &w->output,  &w->said, &w->thought,
                               &w->calls,   &w->reports, &w->body};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) strbuf_destroy(buffers[i]);
    if (w->before) response_store_release(w->s->responses, w->before);
    free(w->session);
    free(w->salt);
    free(w);
}

static const openai_name names[] = {
    {"messages", "input", true},
    {"max_tokens", "max_output_tokens", true},
    {"max_completion_tokens", "max_output_tokens", true},
    {"response_format", "text.format", true},
    {"reasoning_effort", "reasoning.effort", true},
    {".function", "", false},
    {NULL, NULL, false},
};

const openai_form response_form = {
    .names = names,
    .begin = begin_response,
    .take = write_news,
    .end = end_response,
    .fail = fail_response,
    .finish = finish_response,
    .held = held_by,
    .starved = "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"param\":null,"
               "\"message\":\"out of memory\",\"sequence_number\":0}\n\n",
    .destroy = destroy_writer,
};

/* ---- stored responses ------------------------------------------------------------------------ */

static void refuse_id(service *s, const char *id, openai_error *out)
{
    error text;
    status st = error_set(&text, STATUS_NOT_FOUND, "There is no response '%.64s'.", id);
    openai_error_from(s, st, &text, out);
}

bool openai_response(service *s, const char *identity, const char *id, strbuf *out,
                     openai_error *err)
{
    stored_response *r =
        s->responses ? response_store_get(s->responses, identity, id, clock_now_us()) : NULL;
    if (!r) {
        refuse_id(s, id, err);
        return false;
    }
    size_t n;
    const char *body = stored_body(r, &n);
    strbuf_append(out, body, n);
    response_store_release(s->responses, r);
    return true;
}

/* The pages of the conversation go, too: they hold what the response said. */
bool openai_delete_response(service *s, const char *identity, const char *id, strbuf *out,
                            openai_error *err)
{
    strbuf session = {0};
    stored_response *r =
        s->responses ? response_store_get(s->responses, identity, id, clock_now_us()) : NULL;
    bool ok = !r || !stored_session(r) ||
              openai_delete_session(s, identity, stored_salt(r), stored_session(r), &session, err);
    strbuf_destroy(&session);
    if (r) response_store_release(s->responses, r);
    if (!ok) return false;
    if (!s->responses || !response_store_delete(s->responses, identity, id)) {
        refuse_id(s, id, err);
        return false;
    }
    strbuf_puts(out, "{\"id\":");
    put_string(out, id);
    strbuf_puts(out, ",\"object\":\"response\",\"deleted\":true}");
    return true;
}

bool openai_open(service *s)
{
    openai_choose_parsers(s);
    s->tokenizer_info = tokenizer_info_read(s->o.model.dir);
    if (s->o.responses_bytes == 0) return true;
    s->responses = response_store_create(s->o.responses_bytes, s->o.responses_ttl_us);
    return s->responses != NULL;
}

void openai_close(service *s)
{
    response_store_destroy(s->responses);
    s->responses = NULL;
    free(s->tokenizer_info);
    s->tokenizer_info = NULL;
}
