/* Bounds the text that one token can stand for, so that a text far too long is refused without
 * encoding it, and the text that one token becomes. */
#include "text/tokenizer/internal.h"

enum {
    NFC_SHRINKS = 4,       /* at most three: nine bytes of Hangul become three */
    METASPACE_SHRINKS = 3, /* a space of a token may be U+2581 in the text: three bytes */
    ANY_CHARACTER = 4,     /* most bytes that become one unknown token */
    REPAIR_GROWS = 3,      /* a byte may become U+FFFD */
    PENDING = 3,           /* bytes of an incomplete character */
};

/* The factor by which a normalizer shortens a text at most; 0 = it may leave nothing. */
static size_t shrinks(const tok_normalizer *step)
{
    if (step->run == tok_normalize_nfc) return NFC_SHRINKS;
    if (step->run != tok_normalize_replace || step->n_content >= step->n_pattern) return 1;
    return step->n_content ? (step->n_pattern + step->n_content - 1) / step->n_content : 0;
}

/* Whether bytes may become no token, or any number of them one token. */
static bool may_drop(const tokenizer *t)
{
    const tok_bpe_model *m = &t->bpe;
    const uint32_t *bytes = t->byte_level ? m->byte_id : m->fallback;
    for (size_t i = 0; i < 256; i++)
        if (bytes[i] == TOK_NONE && (t->byte_level || m->unk_id == TOK_NONE || m->fuse_unk))
            return true;
    for (unsigned i = 0; i < t->steps.n_steps; i++)
        if (t->steps.steps[i].behavior == TOK_REMOVED) return true;
    const tok_added_set *sets[] = {&t->raw_pass, &t->normalized_pass};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sets[k]->n_tokens; i++)
            if (sets[k]->tokens[i].lstrip || sets[k]->tokens[i].rstrip) return true;
    return false;
}

size_t tok_bytes_per_token(const tokenizer *t)
{
    size_t most = ANY_CHARACTER;
    if (may_drop(t)) return 0;
    for (uint32_t i = 0; i < t->n_ids; i++)
        if (t->entries[i].length > most) most = t->entries[i].length;
    if (!t->byte_level) most *= METASPACE_SHRINKS;
    for (unsigned i = 0; i < t->normalizers.n_steps; i++) {
        size_t factor = shrinks(&t->normalizers.steps[i]);
        if (__builtin_mul_overflow(most, factor, &most)) return 0;
    }
    return most;
}

size_t tok_stream_room(const tokenizer *t)
{
    size_t most = 0;
    for (uint32_t i = 0; i < t->n_ids; i++) {
        if (t->entries[i].length > most) most = t->entries[i].length;
        if (t->firsts && t->firsts[i].length > most) most = t->firsts[i].length;
    }
    return REPAIR_GROWS * (PENDING + most + PENDING);
}
