/* `echo`: completions that begin with their prompt. */
#include "rpc/openai/internal.h"

uint32_t count_characters(const char *text, size_t n)
{
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

static void push(tok_stream *d, uint32_t id, strbuf *text)
{
    if (id < tok_vocab_size(d->t) && !status_ok(tok_stream_push(d, id, text))) text->failed = true;
}

void echo_text(service *s, const engine_request *r, const engine_prompt *p, strbuf *out)
{
    tok_stream d;
    if (r->prompt) {
        strbuf_append(out, r->prompt, r->prompt_bytes);
        return;
    }
    tok_stream_init(&d, s->o.model.tokenizer, false);
    for (uint32_t i = 0; i < p->n_tokens; i++) push(&d, p->tokens[i], out);
    tok_stream_finish(&d, out);
}

/* True when the tokenizer put a BOS before the text: the BOS is not part of the echoed text. */
static bool has_added_bos(service *s, const engine_request *r, const engine_prompt *p,
                          uint32_t characters)
{
    if (!r->prompt || p->n_tokens == 0 || p->tokens[0] != s->o.model.bos_id) return false;
    engine_request as_ids = {0};
    strbuf whole = {0};
    echo_text(s, &as_ids, p, &whole);
    bool longer = count_characters(whole.data, whole.size) > characters;
    strbuf_destroy(&whole);
    return longer;
}

void echo_logprobs(service *s, const engine_request *r, const engine_prompt *p, uint32_t characters,
                   bool by_id, completion_logprobs *out)
{
    const tokenizer *t = s->o.model.tokenizer;
    uint32_t n_top = r->logprobs > 0 ? (uint32_t)r->logprobs : 0, offset = 0;
    bool skip = has_added_bos(s, r, p, characters);
    strbuf text = {0};
    tok_stream d;
    tok_stream_init(&d, t, false);
    for (uint32_t i = 0; p->logprobs && i < p->n_tokens; i++, skip = false) {
        token_place place = prompt_place(p, i, n_top);
        place.by_id = by_id;
        completion_logprobs_add(out, t, &place, offset < characters ? offset : characters);
        if (skip) continue;
        push(&d, p->tokens[i], &text);
        offset += count_characters(text.data, text.size);
        strbuf_clear(&text);
    }
    out->tokens.failed |= text.failed;
    strbuf_destroy(&text);
}
