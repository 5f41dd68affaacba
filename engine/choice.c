/* One choice's tokens become text; stop tokens, stop strings and lengths end it. */
#include "engine/internal.h"

#include <string.h>

void choice_init(choice_state *c, const tokenizer *t, bool skip_special)
{
    *c = (choice_state){.stop_token = -1, .stop_string = -1};
    tok_stream_init(&c->detokeniser, t, skip_special);
    tok_stream_resume(&c->detokeniser); /* the text continues where the prompt ends */
}

void choice_destroy(choice_state *c)
{
    strbuf_destroy(&c->held);
    grammar_matcher_destroy(c->matcher);
    forced_destroy(&c->forced);
    free(c->tail.ids);
}

/* Whether id is among the n sorted ids. */
static bool contains(const uint32_t *ids, uint32_t n, uint32_t id)
{
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (ids[middle] < id) low = middle + 1;
        else high = middle;
    }
    return low < n && ids[low] == id;
}

/* The index of the stop string that begins first in text, with its range [*at, *end). -1 = none. */
static int32_t find_stop(const engine_request *r, const strbuf *text, size_t *at, size_t *end)
{
    int32_t found = -1;
    for (uint32_t i = 0; i < r->n_stop; i++) {
        size_t length = strlen(r->stop[i]);
        const char *hit = text->size ? memmem(text->data, text->size, r->stop[i], length) : NULL;
        if (!hit || (found >= 0 && (size_t)(hit - text->data) >= *at)) continue;
        found = (int32_t)i;
        *at = (size_t)(hit - text->data);
        *end = *at + length;
    }
    return found;
}

/* How many of the last bytes of text could be the start of a stop string. */
static size_t held_back(const engine_request *r, const strbuf *text)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < r->n_stop; i++) {
        size_t length = strlen(r->stop[i]) - 1;
        if (length > text->size) length = text->size;
        for (; length > longest; length--)
            if (memcmp(text->data + text->size - length, r->stop[i], length) == 0) longest = length;
    }
    return longest;
}

static void give_out(choice_state *c, size_t n, strbuf *text)
{
    strbuf_append(text, c->held.data, n);
    c->held.size -= n;
    memmove(c->held.data, c->held.data + n, c->held.size);
}

engine_finish choice_take(choice_state *c, const engine_request *r, const uint32_t *stop_ids,
                          uint32_t n_stop_ids, uint32_t max_new_tokens, uint32_t token)
{
    c->n_tokens++;
    if (contains(stop_ids, n_stop_ids, token) && c->n_tokens > r->min_tokens) {
        c->stop_token = token;
        return ENGINE_FINISH_STOP;
    }
    return c->n_tokens >= max_new_tokens ? ENGINE_FINISH_LENGTH : ENGINE_FINISH_NONE;
}

status choice_text(choice_state *c, const engine_request *r, uint32_t token, engine_finish *finish,
                   strbuf *text)
{
    bool is_stop = *finish == ENGINE_FINISH_STOP;
    if (!is_stop) {
        /* Weights may be padded to more ids than the tokenizer has: the extra ids have no text. */
        if (token < tok_vocab_size(c->detokeniser.t))
            RETURN_IF_ERROR(tok_stream_push(&c->detokeniser, token, &c->held));
        size_t at = 0, end = 0;
        c->stop_string = c->n_tokens > r->min_tokens ? find_stop(r, &c->held, &at, &end) : -1;
        if (c->stop_string >= 0) {
            *finish = ENGINE_FINISH_STOP;
            if (c->held.size) give_out(c, r->include_stop_str_in_output ? end : at, text);
            return STATUS_IS_OK;
        }
    }
    if (*finish != ENGINE_FINISH_NONE) tok_stream_finish(&c->detokeniser, &c->held);
    size_t keep = *finish == ENGINE_FINISH_NONE ? held_back(r, &c->held) : 0;
    if (c->held.size > keep) give_out(c, c->held.size - keep, text);
    return c->held.failed || text->failed ? status_make(STATUS_NO_MEMORY, "output text")
                                          : STATUS_IS_OK;
}
