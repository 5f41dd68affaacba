/* Forced text and its tokens. */
#include "engine/forced.h"

#include <string.h>

/* The most bytes that are divided at once; a longer text gives several runs. */
enum { FORCED_BYTES = 1024 };

/* How many of the ids stand for the text as it is, within its first n bytes. */
static size_t count_whole(const tokenizer *t, const tok_ids *ids, const char *text, size_t n)
{
    for (size_t i = 0, at = 0; i < ids->n; i++) {
        const char *bytes;
        size_t size;
        if (tok_is_special(t, ids->ids[i]) ||
            !status_ok(tok_token_bytes(t, ids->ids[i], &bytes, &size)) || size == 0 ||
            size > n - at || memcmp(bytes, text + at, size) != 0)
            return i;
        at += size;
    }
    return ids->n;
}

void forced_find(const tokenizer *t, grammar_matcher *m, forced_run *run)
{
    strbuf text = {0};
    size_t settled = 0;
    run->known = true;
    run->ids.n = run->at = 0;
    status s = grammar_forced(m, FORCED_BYTES, &text, &settled);
    if (status_ok(s) && settled > 0) {
        s = tok_encode(t, text.data, text.size, false, &run->ids, NULL);
        run->ids.n = status_ok(s) ? count_whole(t, &run->ids, text.data, settled) : 0;
    }
    strbuf_destroy(&text);
}

void forced_take(forced_run *run, uint32_t token)
{
    if (forced_left(run) > 0 && run->ids.ids[run->at] == token) run->at++;
    else run->at = run->ids.n;
    run->known = forced_left(run) > 0;
}

uint32_t forced_count(uint32_t n, uint32_t room, uint32_t left)
{
    enum { KEPT = 3 }; // outputs: the drawn token, the next one, an end
    room = room > KEPT ? room - KEPT : 0;
    left -= left > 0;
    if (n > room) n = room;
    return n < left ? n : left;
}

void forced_destroy(forced_run *run)
{
    tok_ids_destroy(&run->ids);
    *run = (forced_run){0};
}
