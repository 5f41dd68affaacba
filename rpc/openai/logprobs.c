/* Writes tokens and their logprobs in the shapes of completions, chat and vLLM's
 * prompt_logprobs. */
#include "rpc/openai/internal.h"

#include <math.h>
#include <string.h>

/* The bytes of a token; none for ids that the weights have and the tokenizer has not. */
static void bytes_of(const tokenizer *t, uint32_t id, const char **bytes, size_t *n)
{
    if (status_ok(tok_token_bytes(t, id, bytes, n))) return;
    *bytes = "";
    *n = 0;
}

/* JSON has no -inf, so it is written as vLLM's floor. */
static void put_logprob(strbuf *out, float v)
{
    if (isinf(v)) strbuf_puts(out, "-9999.0");
    else strbuf_json_float(out, v);
}

static void comma_between(strbuf *out)
{
    if (out->size) strbuf_putc(out, ',');
}

static bool is_whole(const char *bytes, size_t n) { return utf8_valid((const uint8_t *)bytes, n); }

/* ---- completions ----------------------------------------------------------------------------- */

/* Writes a token's text. Bytes that are not whole characters are written as OpenAI does, so that no
 * two tokens look alike. */
static void put_text(strbuf *out, const char *bytes, size_t n)
{
    if (is_whole(bytes, n)) {
        strbuf_json_string(out, bytes, n);
        return;
    }
    strbuf_puts(out, "\"bytes:");
    for (size_t i = 0; i < n; i++) strbuf_printf(out, "\\\\x%02x", (unsigned char)bytes[i]);
    strbuf_putc(out, '"');
}

/* Writes a token as the request asks: its text, or "token_id:5", which every token has. */
static void put_token(strbuf *out, const tokenizer *t, const token_place *p, uint32_t id)
{
    const char *bytes;
    size_t n;
    if (p->by_id) {
        strbuf_printf(out, "\"token_id:%u\"", id);
        return;
    }
    bytes_of(t, id, &bytes, &n);
    put_text(out, bytes, n);
}

static bool same_text(const tokenizer *t, uint32_t a, uint32_t b)
{
    const char *x, *y;
    size_t n, m;
    if (a == b) return true;
    bytes_of(t, a, &x, &n);
    bytes_of(t, b, &y, &m);
    return n == m && memcmp(x, y, n) == 0;
}

/* True when the list already has a token with this text. The text is a JSON key, so only the first
 * of two tokens with the same text is listed. Ids differ. */
static bool stood_before(const tokenizer *t, const token_place *p, uint32_t at)
{
    if (p->by_id) return p->token == p->top_ids[at];
    if (same_text(t, p->token, p->top_ids[at])) return true;
    for (uint32_t i = 0; i < at; i++)
        if (same_text(t, p->top_ids[i], p->top_ids[at])) return true;
    return false;
}

static void put_member(strbuf *out, const tokenizer *t, const token_place *p, uint32_t id,
                       float logprob)
{
    put_token(out, t, p, id);
    strbuf_putc(out, ':');
    put_logprob(out, logprob);
}

static void put_tops(strbuf *out, const tokenizer *t, const token_place *p)
{
    if (isnan(p->logprob)) {
        strbuf_puts(out, "null");
        return;
    }
    strbuf_putc(out, '{');
    put_member(out, t, p, p->token, p->logprob);
    for (uint32_t i = 0; i < p->n_top; i++) {
        if (stood_before(t, p, i)) continue;
        strbuf_putc(out, ',');
        put_member(out, t, p, p->top_ids[i], p->top_logprobs[i]);
    }
    strbuf_putc(out, '}');
}

void completion_logprobs_add(completion_logprobs *l, const tokenizer *t, const token_place *p,
                             uint32_t offset)
{
    comma_between(&l->offsets);
    strbuf_printf(&l->offsets, "%u", offset);
    comma_between(&l->logprobs);
    put_logprob(&l->logprobs, p->logprob);
    comma_between(&l->tokens);
    put_token(&l->tokens, t, p, p->token);
    comma_between(&l->tops);
    put_tops(&l->tops, t, p);
}

static void take_list(strbuf *out, const char *before, strbuf *list)
{
    strbuf_puts(out, before);
    strbuf_append(out, list->data, list->size);
    strbuf_putc(out, ']');
    strbuf_clear(list);
}

void completion_logprobs_take(completion_logprobs *l, strbuf *out)
{
    take_list(out, "{\"text_offset\":[", &l->offsets);
    take_list(out, ",\"token_logprobs\":[", &l->logprobs);
    take_list(out, ",\"tokens\":[", &l->tokens);
    take_list(out, ",\"top_logprobs\":[", &l->tops);
    strbuf_putc(out, '}');
}

size_t completion_logprobs_size(const completion_logprobs *l)
{
    return l->offsets.size + l->logprobs.size + l->tokens.size + l->tops.size;
}

bool completion_logprobs_failed(const completion_logprobs *l)
{
    return l->offsets.failed || l->logprobs.failed || l->tokens.failed || l->tops.failed;
}

void completion_logprobs_destroy(completion_logprobs *l)
{
    strbuf_destroy(&l->offsets);
    strbuf_destroy(&l->logprobs);
    strbuf_destroy(&l->tokens);
    strbuf_destroy(&l->tops);
}

/* ---- chat ------------------------------------------------------------------------------------ */

/* The bytes are those of the token's text in either case. */
static void describe_token(strbuf *out, const tokenizer *t, const token_place *p, uint32_t id,
                           float logprob)
{
    const char *bytes;
    size_t n;
    bytes_of(t, id, &bytes, &n);
    strbuf_puts(out, "{\"token\":");
    if (p->by_id) put_token(out, t, p, id);
    else strbuf_json_string(out, bytes, n);
    strbuf_puts(out, ",\"logprob\":");
    put_logprob(out, logprob);
    strbuf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) strbuf_printf(out, i ? ",%u" : "%u", (unsigned char)bytes[i]);
    strbuf_putc(out, ']');
}

void chat_logprob_add(strbuf *out, const tokenizer *t, const token_place *p)
{
    comma_between(out);
    describe_token(out, t, p, p->token, p->logprob);
    strbuf_puts(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < p->n_top; i++) {
        if (i) strbuf_putc(out, ',');
        describe_token(out, t, p, p->top_ids[i], p->top_logprobs[i]);
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "]}");
}

/* ---- prompts --------------------------------------------------------------------------------- */

token_place prompt_place(const engine_prompt *p, uint32_t at, uint32_t n_top)
{
    size_t row = (size_t)at * p->n_top;
    return (token_place){
        .token = p->tokens[at],
        .logprob = p->logprobs[at],
        .rank = p->ranks[at],
        .n_top = n_top < p->n_top ? n_top : p->n_top,
        .top_ids = p->top_ids + row,
        .top_logprobs = p->top_logprobs + row,
    };
}

static void put_by_id(strbuf *out, const tokenizer *t, uint32_t id, float logprob, uint32_t rank)
{
    const char *bytes;
    size_t n;
    bytes_of(t, id, &bytes, &n);
    strbuf_printf(out, "\"%u\":{\"logprob\":", id);
    put_logprob(out, logprob);
    strbuf_printf(out, ",\"rank\":%u,\"decoded_token\":", rank);
    strbuf_json_string(out, bytes, n);
    strbuf_putc(out, '}');
}

void prompt_logprobs_put(strbuf *out, const tokenizer *t, const engine_prompt *p, uint32_t n_top)
{
    strbuf_putc(out, '[');
    for (uint32_t at = 0; p->logprobs && at < p->n_tokens; at++) {
        token_place place = prompt_place(p, at, n_top);
        if (at) strbuf_putc(out, ',');
        if (isnan(place.logprob)) {
            strbuf_puts(out, "null");
            continue;
        }
        strbuf_putc(out, '{');
        put_by_id(out, t, place.token, place.logprob, place.rank);
        for (uint32_t i = 0; i < place.n_top; i++) {
            if (place.top_ids[i] == place.token) continue;
            strbuf_putc(out, ',');
            put_by_id(out, t, place.top_ids[i], place.top_logprobs[i], i + 1);
        }
        strbuf_putc(out, '}');
    }
    strbuf_putc(out, ']');
}
