/* How much text a token can stand for, so that a text that is hopelessly long need not be encoded
 * to be refused. */
#include "text/tokenizer/internal.h"

enum {
    NFC_SHRINKS = 4,       /* three at most: of Hangul nine bytes become three */
    METASPACE_SHRINKS = 3, /* a token's spaces may be three bytes each in the text, U+2581 */
    ANY_CHARACTER = 4,     /* bytes of what becomes an unknown token */
};

/* By how much a normalizer shortens a text at most; 0 = it may leave nothing. */
static size_t shrinks(const tok_normalizer *step)
{
    if (step->run == tok_normalize_nfc) return NFC_SHRINKS;
    if (step->run != tok_normalize_replace || step->n_content >= step->n_pattern) return 1;
    return step->n_content ? (step->n_pattern + step->n_content - 1) / step->n_content : 0;
}

/* Bytes that become no token, or any number of them one. */
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
