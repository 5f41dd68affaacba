/* Takes a chat's text apart and writes the parts as OpenAI does. */
#include "rpc/openai/talk.h"

#include <stdlib.h>
#include <string.h>

/* ---- what the readers find ------------------------------------------------------------------- */

static void on_reasoning(void *ctx, const char *text, size_t n)
{
    talk *t = ctx;
    if (!t->o.hidden) strbuf_append(&t->reasoning, text, n);
}

static void on_content(void *ctx, const char *text, size_t n)
{
    strbuf_append(&((talk *)ctx)->content, text, n);
}

static talk_call *add_call(talk *t)
{
    if (t->n_calls == t->room) {
        uint32_t room = t->room ? 2 * t->room : 4;
        talk_call *grown = realloc(t->calls, room * sizeof *grown);
        if (!grown) {
            t->failed = true;
            return NULL;
        }
        memset(grown + t->room, 0, (room - t->room) * sizeof *grown);
        t->calls = grown;
        t->room = room;
    }
    talk_call *c = &t->calls[t->n_calls++];
    strbuf_clear(&c->before);
    strbuf_clear(&c->name);
    strbuf_clear(&c->arguments);
    return c;
}

static void on_call(void *ctx, const char *name, size_t n)
{
    talk *t = ctx;
    t->skipping = t->o.one_call && t->n_begun > 0;
    talk_call *c = t->skipping ? NULL : add_call(t);
    if (!c) return;
    c->number = t->n_begun++;
    c->begins = true;
    strbuf before = c->before;
    c->before = t->content;
    t->content = before;
    strbuf_append(&c->name, name, n);
}

static void on_arguments(void *ctx, const char *text, size_t n)
{
    talk *t = ctx;
    if (t->skipping || t->failed) return;
    talk_call *c = t->n_calls ? &t->calls[t->n_calls - 1] : add_call(t);
    if (!c) return;
    if (t->n_calls == 1 && !c->begins) c->number = t->n_begun - 1;
    strbuf_append(&c->arguments, text, n);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Takes the text that is not reasoning. */
static void on_answer(void *ctx, const char *text, size_t n)
{
    talk *t = ctx;
    if (t->o.tools) tool_reader_take(&t->reader, text, n);
    else strbuf_append(&t->content, text, n);
}

void talk_init(talk *t, const talk_options *o)
{
    const talk_sink sink = {t, on_content, on_call, on_arguments};
    *t = (talk){.o = *o};
    if (o->tools) tool_reader_init(&t->reader, o->tools, &sink);
    if (o->reasoning) reasoning_init(&t->thinker, o->reasoning, o->begun);
}

void talk_take(talk *t, const char *text, size_t n)
{
    const reasoning_sink sink = {t, on_reasoning, on_answer};
    if (t->o.reasoning) reasoning_take(&t->thinker, &sink, text, n);
    else on_answer(t, text, n);
}

void talk_end(talk *t)
{
    const reasoning_sink sink = {t, on_reasoning, on_answer};
    if (t->o.reasoning) reasoning_end(&t->thinker, &sink);
    if (t->o.tools) tool_reader_end(&t->reader);
}

bool talk_is_empty(const talk *t)
{
    return t->reasoning.size == 0 && t->content.size == 0 && t->n_calls == 0;
}

void talk_clear(talk *t)
{
    strbuf_clear(&t->reasoning);
    strbuf_clear(&t->content);
    for (uint32_t i = 0; i < t->n_calls; i++) t->calls[i].begins = false;
    t->n_calls = 0;
}

size_t talk_bytes(const talk *t)
{
    size_t n = t->reasoning.size + t->content.size + t->thinker.pending.size +
               tool_reader_bytes(&t->reader) + t->room * sizeof *t->calls;
    for (uint32_t i = 0; i < t->n_calls; i++)
        n += t->calls[i].before.size + t->calls[i].name.size + t->calls[i].arguments.size;
    return n;
}

bool talk_failed(const talk *t)
{
    bool failed = t->failed || t->reader.failed || t->thinker.pending.failed ||
                  t->reasoning.failed || t->content.failed;
    for (uint32_t i = 0; i < t->n_calls; i++)
        failed |=
            t->calls[i].before.failed || t->calls[i].name.failed || t->calls[i].arguments.failed;
    return failed;
}

void talk_destroy(talk *t)
{
    tool_reader_destroy(&t->reader);
    reasoning_destroy(&t->thinker);
    strbuf_destroy(&t->reasoning);
    strbuf_destroy(&t->content);
    for (uint32_t i = 0; i < t->room; i++) {
        strbuf_destroy(&t->calls[i].before);
        strbuf_destroy(&t->calls[i].name);
        strbuf_destroy(&t->calls[i].arguments);
    }
    free(t->calls);
}

/* ---- OpenAI's form --------------------------------------------------------------------------- */

static void put_string(strbuf *out, const strbuf *text)
{
    strbuf_json_string(out, text->data ? text->data : "", text->size);
}

/* Mistral's template refuses ids of another length than 9. */
void talk_put_id(const talk *t, uint32_t number, strbuf *out)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuv";
    unsigned n = t->o.tools ? t->o.tools->id_bytes : 0;
    if (n == 0) {
        strbuf_puts(out, "call_");
        n = 24;
    }
    for (unsigned i = 0; i < n; i++) {
        uint64_t word = hash_mix64(t->o.seed + ((uint64_t)number << 32) + i / 12 + 1);
        strbuf_putc(out, letters[word >> i % 12 * 5 & 31]);
    }
}

static void put_call(const talk *t, const talk_call *c, bool whole, strbuf *out)
{
    strbuf_putc(out, '{');
    if (!whole) strbuf_printf(out, "\"index\":%u,", c->number);
    if (c->begins) {
        strbuf_puts(out, "\"id\":\"");
        talk_put_id(t, c->number, out);
        strbuf_puts(out, "\",\"type\":\"function\",\"function\":{\"name\":");
        put_string(out, &c->name);
        strbuf_putc(out, ',');
    } else strbuf_puts(out, "\"function\":{");
    strbuf_puts(out, "\"arguments\":");
    put_string(out, &c->arguments);
    strbuf_puts(out, "}}");
}

static void put_calls(const talk *t, bool whole, strbuf *out)
{
    strbuf_puts(out, "\"tool_calls\":[");
    for (uint32_t i = 0; i < t->n_calls; i++) {
        if (i) strbuf_putc(out, ',');
        put_call(t, &t->calls[i], whole, out);
    }
    strbuf_putc(out, ']');
}

static void put_reasoning(const talk *t, strbuf *out)
{
    if (t->reasoning.size == 0) return;
    strbuf_puts(out, "\"reasoning_content\":");
    put_string(out, &t->reasoning);
    strbuf_putc(out, ',');
}

/* A message's content is one string, wherever its calls are. */
static size_t content_bytes(const talk *t)
{
    size_t n = t->content.size;
    for (uint32_t i = 0; i < t->n_calls; i++) n += t->calls[i].before.size;
    return n;
}

static void put_content(const talk *t, strbuf *out)
{
    strbuf all = {0};
    if (t->n_calls == 0) {
        put_string(out, &t->content);
        return;
    }
    for (uint32_t i = 0; i < t->n_calls; i++)
        strbuf_append(&all, t->calls[i].before.data, t->calls[i].before.size);
    strbuf_append(&all, t->content.data, t->content.size);
    put_string(out, &all);
    out->failed |= all.failed;
    strbuf_destroy(&all);
}

void talk_put_delta(const talk *t, bool first, strbuf *out)
{
    if (first) strbuf_puts(out, "\"role\":\"assistant\",");
    bool has_content = first || content_bytes(t) || (t->n_calls == 0 && t->reasoning.size == 0);
    put_reasoning(t, out);
    if (has_content) {
        strbuf_puts(out, "\"content\":");
        put_content(t, out);
        strbuf_putc(out, ',');
    }
    if (t->n_calls) put_calls(t, false, out);
    else out->size--; /* the last comma */
}

void talk_put_message(const talk *t, strbuf *out)
{
    strbuf_puts(out, "\"role\":\"assistant\",");
    put_reasoning(t, out);
    strbuf_puts(out, "\"content\":");
    if (content_bytes(t) == 0 && (t->n_calls || t->reasoning.size)) strbuf_puts(out, "null");
    else put_content(t, out);
    strbuf_puts(out, ",\"refusal\":null");
    if (t->n_calls == 0) return;
    strbuf_putc(out, ',');
    put_calls(t, true, out);
}
