/* Where a prompt's question is: its last user message, or the end of it. */
#include "base/bytes.h"
#include "engine/internal.h"

#include <string.h>

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* The content of the last user message, without the white space around it, which templates may
 * drop. NULL: there is none. */
static const char *last_user_text(const json_t *messages, size_t *n)
{
    for (size_t i = json_array_size(messages); i-- > 0;) {
        const json_t *m = json_array_get(messages, i);
        if (!json_is_word(json_object_get(m, "role"), "user")) continue;
        const json_t *content = json_object_get(m, "content");
        const char *text = json_string_value(content);
        if (!text) return NULL;
        *n = json_string_length(content);
        while (*n > 0 && is_space(text[*n - 1])) --*n;
        while (*n > 0 && is_space(*text)) {
            text++;
            --*n;
        }
        return *n ? text : NULL;
    }
    return NULL;
}

status reform_find_message(const json_t *messages, const char *text, size_t n, question_place *out,
                           error *err)
{
    size_t length = 0;
    const char *content = last_user_text(messages, &length), *at = NULL;
    *out = (question_place){.known = false};
    if (content && !status_ok(bytes_find_last(text, n, content, length, &at)))
        return error_set(err, STATUS_NO_MEMORY, "messages: out of memory");
    if (at)
        *out = (question_place){
            .known = true, .bytes = length, .behind = n - (size_t)(at - text) - length};
    return STATUS_IS_OK;
}

/* The number of tokens at the end of ids [n] that hold the text's last `bytes` bytes. */
static uint32_t tokens_of_end(const tokenizer *t, const uint32_t *ids, uint32_t n, size_t bytes)
{
    uint32_t at = n;
    for (size_t had = 0; at > 0 && had < bytes; at--) {
        const char *text;
        size_t size = 0;
        if (status_ok(tok_token_bytes(t, ids[at - 1], &text, &size))) had += size;
    }
    return n - at;
}

status reform_find_question(const engine *e, const engine_stream *s, const question_place *place,
                            uint32_t *first, uint32_t *n, error *err)
{
    uint32_t asked = s->policy.query_tokens, end = s->n_tokens;
    *first = 0;
    if (place->known) {
        const tokenizer *t = e->o.tokenizer;
        /* A token that holds both template and message counts as the message's. */
        uint32_t all = tokens_of_end(t, s->tokens, end, place->behind + place->bytes);
        uint32_t behind = tokens_of_end(t, s->tokens, end, place->behind + 1) - 1;
        *first = end - all;
        end -= behind;
    } else if (!asked) {
        return error_set(err, STATUS_INVALID,
                         "retention.query_tokens: must be given: the prompt has no last user "
                         "message that would be the question");
    }
    if (asked && end - *first > asked) *first = end - asked;
    *n = end - *first;
    return STATUS_IS_OK;
}
