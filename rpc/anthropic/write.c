/* Writes the events of a message, and the message itself.
 *
 * Events are written whether the call streams or not (an answer that comes whole drops them), so
 * that both forms have the same blocks. */
#include "rpc/anthropic/internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct message_writer {
    char *id;                                                          // the generation's
    const char *model;                                                 // the call's
    enum { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_CALL } block; // that is written
    uint32_t n_blocks;                                                 // begun
    bool calls;                                                        // a call has begun
    strbuf text, name, call_id;                                        // of the block
    strbuf content; // blocks that ended, with commas between them
    strbuf body;    // the whole message
} message_writer;

void *anthropic_writer(void) { return calloc(1, sizeof(message_writer)); }

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

static void begin_event(const char *type, strbuf *out)
{
    strbuf_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end_event(strbuf *out) { strbuf_puts(out, "}\n\n"); }

/* Writes the message up to its list of blocks. */
static void put_head(const message_writer *w, strbuf *out)
{
    strbuf name = {0};
    strbuf_printf(&name, "msg_%s", w->id ? w->id : "");
    strbuf_puts(out, "{\"id\":");
    put_buffer(out, &name);
    strbuf_destroy(&name);
    strbuf_puts(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    put_string(out, w->model);
    strbuf_puts(out, ",\"content\":[");
}

/* Tokens of the prompt that were found in the cache are counted apart. */
static void put_usage(const engine_usage *u, strbuf *out)
{
    strbuf_printf(out,
                  ",\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,"
                  "\"cache_read_input_tokens\":%u,\"output_tokens\":%u}",
                  u->prompt_tokens - u->cached_tokens, u->cached_tokens, u->completion_tokens);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* A call that was cut short has no input that is an object. */
static void put_input(const strbuf *text, strbuf *out)
{
    error ignored;
    json_t *input = NULL;
    if (text->size && status_ok(json_read_text("", text->data, text->size, &input, &ignored)) &&
        json_is_object(input))
        append(out, text);
    else strbuf_puts(out, "{}");
    json_decref(input);
}

/* with: with what it has so far. */
static void put_block(const message_writer *w, bool with, strbuf *out)
{
    static const strbuf empty = {0};
    const strbuf *text = with ? &w->text : &empty;
    if (w->block == BLOCK_TEXT) {
        strbuf_puts(out, "{\"type\":\"text\",\"text\":");
        put_buffer(out, text);
    } else if (w->block == BLOCK_THINKING) {
        strbuf_puts(out, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
        put_buffer(out, text);
    } else {
        strbuf_puts(out, "{\"type\":\"tool_use\",\"id\":");
        put_buffer(out, &w->call_id);
        strbuf_puts(out, ",\"name\":");
        put_buffer(out, &w->name);
        strbuf_puts(out, ",\"input\":");
        put_input(text, out);
    }
    strbuf_putc(out, '}');
}

static void begin_inner(const message_writer *w, const char *type, strbuf *out)
{
    begin_event(type, out);
    strbuf_printf(out, ",\"index\":%u", w->n_blocks - 1);
}

static void begin_block(message_writer *w, int block, strbuf *out)
{
    w->block = block;
    w->n_blocks++;
    strbuf_clear(&w->text);
    begin_inner(w, "content_block_start", out);
    strbuf_puts(out, ",\"content_block\":");
    put_block(w, false, out);
    end_event(out);
}

static void end_block(message_writer *w, strbuf *out)
{
    if (w->block == BLOCK_NONE) return;
    begin_inner(w, "content_block_stop", out);
    end_event(out);
    if (w->content.size) strbuf_putc(&w->content, ',');
    put_block(w, true, &w->content);
    w->block = BLOCK_NONE;
}

static void put_delta(message_writer *w, const strbuf *news, strbuf *out)
{
    static const char *const deltas[] = {
        [BLOCK_THINKING] = "\"thinking_delta\",\"thinking\":",
        [BLOCK_TEXT] = "\"text_delta\",\"text\":",
        [BLOCK_CALL] = "\"input_json_delta\",\"partial_json\":",
    };
    begin_inner(w, "content_block_delta", out);
    strbuf_printf(out, ",\"delta\":{\"type\":%s", deltas[w->block]);
    put_buffer(out, news);
    strbuf_putc(out, '}');
    end_event(out);
    append(&w->text, news);
}

static void write_text(message_writer *w, int block, const strbuf *news, strbuf *out)
{
    if (news->size == 0) return;
    if (w->block != (unsigned)block) {
        end_block(w, out);
        begin_block(w, block, out);
    }
    put_delta(w, news, out);
}

static void write_call(message_writer *w, const talk *t, const talk_call *c, strbuf *out)
{
    if (c->begins) {
        end_block(w, out);
        strbuf_clear(&w->name);
        strbuf_clear(&w->call_id);
        append(&w->name, &c->name);
        talk_put_id(t, c->number, &w->call_id);
        w->calls = true;
        begin_block(w, BLOCK_CALL, out);
    }
    if (c->arguments.size) put_delta(w, &c->arguments, out);
}

/* ---- the form -------------------------------------------------------------------------------- */

static void begin_message(void *writer, const form_begin *b, strbuf *out)
{
    message_writer *w = writer;
    w->model = b->call->model;
    w->id = strdup(b->id);
    out->failed |= !w->id;
    begin_event("message_start", out);
    strbuf_puts(out, ",\"message\":");
    put_head(w, out);
    strbuf_puts(out, "],\"stop_reason\":null,\"stop_sequence\":null");
    put_usage(&(engine_usage){.prompt_tokens = b->prompt_tokens}, out);
    strbuf_putc(out, '}');
    end_event(out);
}

static void write_news(void *writer, const talk *t, strbuf *out)
{
    message_writer *w = writer;
    write_text(w, BLOCK_THINKING, &t->reasoning, out);
    for (uint32_t i = 0; i < t->n_calls; i++) {
        write_text(w, BLOCK_TEXT, &t->calls[i].before, out);
        write_call(w, t, &t->calls[i], out);
    }
    write_text(w, BLOCK_TEXT, &t->content, out);
}

static const char *reason_of(const message_writer *w, const form_end *e)
{
    if (e->finish == ENGINE_FINISH_LENGTH) return "max_tokens";
    if (e->finish == ENGINE_FINISH_ABORT) return "pause_turn";
    if (w->calls) return "tool_use";
    return e->stop_string ? "stop_sequence" : "end_turn";
}

/* Why and where the message ended, as members of an object that is begun. */
static void put_reason(const message_writer *w, const form_end *e, strbuf *out)
{
    strbuf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason_of(w, e));
    if (e->stop_string) put_string(out, e->stop_string);
    else strbuf_puts(out, "null");
}

static void put_reports(const form_end *e, strbuf *out)
{
    if (e->report) {
        strbuf_puts(out, ",\"retention\":");
        retention_report_json(e->report, out);
    }
    if (e->reading) {
        strbuf_puts(out, ",\"retrieval\":");
        retrieval_report_json(e->reading, out);
    }
}

static void end_message(void *writer, const form_end *e, strbuf *out)
{
    message_writer *w = writer;
    end_block(w, out);
    begin_event("message_delta", out);
    strbuf_puts(out, ",\"delta\":{");
    put_reason(w, e, out);
    put_reports(e, out);
    strbuf_putc(out, '}');
    put_usage(&e->usage, out);
    end_event(out);
    begin_event("message_stop", out);
    end_event(out);
    put_head(w, &w->body);
    append(&w->body, &w->content);
    strbuf_puts(&w->body, "],");
    put_reason(w, e, &w->body);
    put_reports(e, &w->body);
    put_usage(&e->usage, &w->body);
    strbuf_putc(&w->body, '}');
}

static void fail_message(void *writer, const openai_error *why, strbuf *out)
{
    const message_writer *w = writer;
    strbuf_puts(out, "event: error\ndata: ");
    anthropic_put_error(why, w->id, out);
    strbuf_puts(out, "\n\n");
}

static void finish_message(void *writer, strbuf *out)
{
    append(out, &((message_writer *)writer)->body);
}

static size_t held_by(const void *writer)
{
    const message_writer *w = writer;
    return w->text.size + w->content.size + w->body.size;
}

static void destroy_writer(void *writer)
{
    message_writer *w = writer;
    strbuf_destroy(&w->text);
    strbuf_destroy(&w->name);
    strbuf_destroy(&w->call_id);
    strbuf_destroy(&w->content);
    strbuf_destroy(&w->body);
    free(w->id);
    free(w);
}

static const openai_name names[] = {
    {"stop", "stop_sequences", true},
    {"continue_final_message", "messages", true},
    {"response_format", "output_config.format", true},
    {"reasoning_effort", "output_config.effort", true},
    {".function.parameters", ".input_schema", false},
    {".function", "", false},
    {NULL, NULL, false},
};

const openai_form anthropic_form = {
    .names = names,
    .begin = begin_message,
    .take = write_news,
    .end = end_message,
    .fail = fail_message,
    .finish = finish_message,
    .held = held_by,
    .starved = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
               "\"message\":\"out of memory\"}}\n\n",
    .destroy = destroy_writer,
};
