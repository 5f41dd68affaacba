/* Makes a request from a question and a method. */
#include "quality/bm25.h"
#include "quality/campaign.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_TOKENS = 64 }; // most tokens that a chat template adds to a prompt that was cut

static const engine_defaults greedy = {.top_p = 1, .repetition_penalty = 1};

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

static bool by_template(const campaign *c, const source *s) { return c->o->chat && !s->raw; }

/* ---- parts of a request ---------------------------------------------------------------------- */

static json_t *message(const char *role, const char *text, size_t n)
{
    return json_pack("{s:s, s:s%}", "role", role, "content", text, n);
}

static status set_prompt(engine_request *r, const char *text, size_t n, bool templated, error *err)
{
    if (templated) {
        r->messages = json_array();
        if (!r->messages || json_array_append_new(r->messages, message("user", text, n)))
            return out_of_memory(err);
        r->add_special_tokens = false;
        return STATUS_IS_OK;
    }
    r->prompt = malloc(n + 1);
    if (!r->prompt) return out_of_memory(err);
    memcpy(r->prompt, text, n);
    r->prompt[n] = 0;
    r->prompt_bytes = n;
    return STATUS_IS_OK;
}

static status set_method(const campaign *c, const job *j, engine_request *r, error *err)
{
    const variant *v = &c->variants.items[j->arm == ARM_FULL ? 0 : j->column];
    bool full = j->arm == ARM_FULL || j->column == 0;
    if (!v->retention) return STATUS_IS_OK; /* rag-bm25 shortens the prompt instead */
    r->retention = json_copy_whole(v->retention);
    if (!r->retention) return out_of_memory(err);
    if (j->live->measured && !full &&
        json_object_set_new(r->retention, "report", json_string("positions")))
        return out_of_memory(err);
    return STATUS_IS_OK;
}

/* Names the session after its document, question and method, so that no two share one. */
static status set_session(const job *j, engine_request *r, error *err)
{
    if (j->arm != ARM_FIRST && j->arm != ARM_SESSION) return STATUS_IS_OK;
    char name[96];
    snprintf(name, sizeof name, "quality-%u-%u-%u-%u", j->live->row, j->live->number, j->pair,
             j->column);
    r->session = strdup(name);
    return r->session ? STATUS_IS_OK : out_of_memory(err);
}

static void init_request(const campaign *c, const job *j, engine_request *r)
{
    engine_request_init(r, &greedy);
    r->max_tokens = c->sources.items[j->live->row].max_new_tokens;
    if (j->live->measured) r->logprobs = SAMPLE_LOGPROBS_MAX;
}

/* ---- the prompt ------------------------------------------------------------------------------ */

static status count_prompt(const campaign *c, const source *s, const char *text, size_t n,
                           uint32_t *tokens, error *err)
{
    tok_ids ids = {0};
    engine_request r;
    engine_request_init(&r, &greedy);
    r.max_tokens = 1;
    status st = set_prompt(&r, text, n, by_template(c, s), err);
    if (status_ok(st)) st = engine_tokenize(c->o->engine, &r, &ids, err);
    *tokens = (uint32_t)ids.n;
    tok_ids_destroy(&ids);
    engine_request_destroy(&r);
    return st;
}

status ask_count(void *ctx, const char *text, size_t n, uint32_t *tokens, error *err)
{
    const campaign *c = ctx;
    return count_prompt(c, &c->sources.items[c->row], text, n, tokens, err);
}

/* A user's prompt that is too long loses its middle, as in LongBench. */
static status cut_middle(const campaign *c, const source *s, strbuf *text, error *err)
{
    if (s->task) return STATUS_IS_OK; /* a generated prompt fits */
    uint32_t reserved = s->max_new_tokens + TEMPLATE_TOKENS;
    uint32_t most =
        c->o->max_tokens > 2 * reserved ? c->o->max_tokens - reserved : c->o->max_tokens / 2;
    tok_ids ids = {0};
    status st = tok_encode(c->o->tokenizer, text->data, text->size, false, &ids, err);
    if (status_ok(st) && ids.n > most) {
        uint32_t half = most / 2;
        strbuf_clear(text);
        st = tok_decode(c->o->tokenizer, ids.ids, half, false, text, err);
        if (status_ok(st))
            st = tok_decode(c->o->tokenizer, ids.ids + (ids.n - half), half, false, text, err);
    }
    tok_ids_destroy(&ids);
    return st;
}

/* Replaces the context by its best chunks. */
static status shorten(const campaign *c, job *j, const question *q, strbuf *text, error *err)
{
    const document *d = j->live->doc;
    const variant *v = &c->variants.items[j->column];
    const source *s = &c->sources.items[j->live->row];
    RETURN_IF_ERROR(count_prompt(c, s, text->data, text->size, &j->whole_prompt, err));
    size_t n_context = d->context_to - d->context_from;
    tok_ids ids = {0};
    status st =
        tok_encode(c->o->tokenizer, d->text.data + d->context_from, n_context, false, &ids, err);
    uint32_t others = ids.n < j->whole_prompt ? j->whole_prompt - (uint32_t)ids.n : 0;
    tok_ids_destroy(&ids);
    RETURN_IF_ERROR(st);
    uint32_t budget = variant_budget(v, j->whole_prompt);
    strbuf_clear(text);
    strbuf_append(text, d->text.data, d->context_from);
    RETURN_IF_ERROR(bm25_choose(c->o->tokenizer, d->text.data + d->context_from, n_context,
                                q->query, budget > others ? budget - others : 0, text, err));
    strbuf_append(text, d->text.data + d->context_to, d->text.size - d->context_to);
    strbuf_puts(text, q->text);
    return STATUS_IS_OK;
}

static status write_prompt(const campaign *c, job *j, strbuf *text, error *err)
{
    const document *d = j->live->doc;
    const question *q = &d->questions[j->question];
    strbuf_append(text, d->text.data ? d->text.data : "", d->text.size);
    strbuf_puts(text, q->text);
    if (text->failed) return out_of_memory(err);
    RETURN_IF_ERROR(cut_middle(c, &c->sources.items[j->live->row], text, err));
    if (c->variants.items[j->column].rag) RETURN_IF_ERROR(shorten(c, j, q, text, err));
    return text->failed ? out_of_memory(err) : STATUS_IS_OK;
}

static status submit_question(const campaign *c, job *j, engine_request *r, error *err)
{
    RETURN_IF_ERROR(set_method(c, j, r, err));
    RETURN_IF_ERROR(set_session(j, r, err));
    return engine_submit(c->o->engine, r, c->o->hooks.notify, c->o->hooks.ctx, &j->stream, err);
}

status ask_first(campaign *c, job *j, error *err)
{
    const source *s = &c->sources.items[j->live->row];
    strbuf text = {0};
    engine_request r;
    init_request(c, j, &r);
    status st = write_prompt(c, j, &text, err);
    if (status_ok(st)) st = set_prompt(&r, text.data, text.size, by_template(c, s), err);
    if (status_ok(st)) st = submit_question(c, j, &r, err);
    engine_request_destroy(&r);
    strbuf_destroy(&text);
    return st;
}

/* ---- the second question --------------------------------------------------------------------- */

/* The exact tokens of the first turn, then the text between the turns, then the question. */
static status continue_tokens(const campaign *c, const second_turn *turn, const char *between,
                              const question *q, engine_request *r, error *err)
{
    strbuf text = {0};
    tok_ids ids = {0};
    strbuf_puts(&text, between);
    strbuf_puts(&text, q->text);
    status st = text.failed ? out_of_memory(err)
                            : tok_encode(c->o->tokenizer, text.data, text.size, false, &ids, err);
    size_t n = turn->n_tokens + ids.n;
    if (status_ok(st)) {
        r->prompt_token_ids = calloc(n, sizeof *r->prompt_token_ids);
        if (!r->prompt_token_ids) st = out_of_memory(err);
    }
    if (status_ok(st)) {
        memcpy(r->prompt_token_ids, turn->tokens, turn->n_tokens * sizeof *turn->tokens);
        memcpy(r->prompt_token_ids + turn->n_tokens, ids.ids, ids.n * sizeof *ids.ids);
        r->n_prompt_token_ids = (uint32_t)n;
    }
    tok_ids_destroy(&ids);
    strbuf_destroy(&text);
    return st;
}

static status continue_chat(const campaign *c, const job *j, const second_turn *turn,
                            const question *q, engine_request *r, error *err)
{
    const document *d = j->live->doc;
    strbuf text = {0};
    strbuf_append(&text, d->text.data ? d->text.data : "", d->text.size);
    strbuf_puts(&text, d->questions[turn->question].text);
    status st = text.failed ? out_of_memory(err)
                            : cut_middle(c, &c->sources.items[j->live->row], &text, err);
    if (status_ok(st)) st = set_prompt(r, text.data, text.size, true, err);
    strbuf_destroy(&text);
    RETURN_IF_ERROR(st);
    if (json_array_append_new(r->messages,
                              message("assistant", turn->answer, strlen(turn->answer))) ||
        json_array_append_new(r->messages, message("user", q->text, strlen(q->text))))
        return out_of_memory(err);
    return STATUS_IS_OK;
}

status ask_second(campaign *c, job *j, const second_turn *turn, error *err)
{
    const source *s = &c->sources.items[j->live->row];
    const question *q = &j->live->doc->questions[j->question];
    engine_request r;
    init_request(c, j, &r);
    status st = by_template(c, s) ? continue_chat(c, j, turn, q, &r, err)
                                  : continue_tokens(c, turn, s->between, q, &r, err);
    if (status_ok(st)) st = submit_question(c, j, &r, err);
    engine_request_destroy(&r);
    return st;
}
