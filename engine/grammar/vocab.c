/* The vocabulary as tries, and the tokens that a JSON string takes wherever it stands.
 *
 * A safe character is any character but '"', '\', DEL and the controls below 0x20. A token of
 * whole safe characters is a safe token: nine of ten tokens are. They are allowed together wherever
 * every safe character is, so that a mask needs a walk over the others alone. */
#include "engine/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- tries ----------------------------------------------------------------------------------- */

static int by_bytes(const void *x, const void *y)
{
    const trie_word *a = x, *c = y;
    uint32_t n = a->n < c->n ? a->n : c->n;
    int order = n ? memcmp(a->bytes, c->bytes, n) : 0;
    if (order) return order;
    if (a->n != c->n) return a->n < c->n ? -1 : 1;
    return a->token < c->token ? -1 : a->token > c->token;
}

static uint32_t common_bytes(const trie_word *a, const trie_word *c)
{
    uint32_t n = a->n < c->n ? a->n : c->n, i = 0;
    while (i < n && a->bytes[i] == c->bytes[i]) i++;
    return i;
}

static bool allocate(trie *t, size_t nodes, uint32_t words)
{
    t->byte = malloc(nodes);
    t->depth = malloc(nodes * sizeof *t->depth);
    t->end = malloc(nodes * sizeof *t->end);
    t->first_token = malloc((nodes + 1) * sizeof *t->first_token);
    t->tokens = malloc((words + 1) * sizeof *t->tokens);
    return t->byte && t->depth && t->end && t->first_token && t->tokens;
}

/* Adds the nodes of sorted words. `path` has the open node of each depth. */
static void fill(trie *t, const trie_word *words, uint32_t n, uint32_t *path)
{
    uint32_t open = 0; // depth of the last node
    t->n = 1;
    t->byte[0] = 0;
    t->depth[0] = 0;
    t->first_token[0] = 0;
    path[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t keep = i ? common_bytes(&words[i - 1], &words[i]) : 0;
        for (; open > keep; open--) t->end[path[open]] = t->n;
        for (; open < words[i].n; open++) {
            path[open + 1] = t->n;
            t->byte[t->n] = words[i].bytes[open];
            t->depth[t->n] = (uint16_t)(open + 1);
            t->first_token[t->n++] = i;
        }
        t->tokens[i] = words[i].token;
    }
    for (;; open--) {
        t->end[path[open]] = t->n;
        if (open == 0) break;
    }
    t->first_token[t->n] = n;
}

bool trie_make(trie_word *words, uint32_t n, trie *out)
{
    size_t nodes = 1;
    uint32_t longest = 0;
    *out = (trie){0};
    for (uint32_t i = 1; i < n; i++) {
        if (by_bytes(&words[i - 1], &words[i]) <= 0) continue;
        qsort(words, n, sizeof *words, by_bytes);
        break;
    }
    for (uint32_t i = 0; i < n; i++) {
        nodes += words[i].n - (i ? common_bytes(&words[i - 1], &words[i]) : 0);
        if (words[i].n > longest) longest = words[i].n;
    }
    uint32_t *path = malloc(((size_t)longest + 1) * sizeof *path);
    bool ok = path && nodes < UINT32_MAX / 2 && allocate(out, nodes, n);
    out->deepest = longest;
    if (ok) fill(out, words, n, path);
    else trie_destroy(out);
    free(path);
    return ok;
}

void trie_destroy(trie *t)
{
    free(t->byte);
    free(t->depth);
    free(t->end);
    free(t->first_token);
    free(t->tokens);
    *t = (trie){0};
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* How many characters a text of whole safe characters has; 0 for another text. */
static uint32_t count_safe(const uint8_t *s, uint32_t n)
{
    uint32_t chars = 0, cp;
    for (uint32_t i = 0; i < n; chars++) {
        if (!safe_byte(s[i])) return 0;
        i += utf8_decode(s + i, n - i, &cp);
        if (cp == UINT32_MAX) return 0;
    }
    return chars;
}

static void find_children(const trie *t, uint32_t child[257])
{
    uint32_t at = 1;
    for (uint32_t c = 0; c < 256; c++) {
        child[c] = at;
        if (at < t->n && t->byte[at] == c) at = t->end[at];
    }
    child[256] = at;
}

static bool make_tries(grammar_vocab *v)
{
    trie_word *words = malloc(((size_t)v->n_tokens + 1) * sizeof *words);
    uint32_t n = 0;
    bool ok = words != NULL;
    for (uint32_t t = 0; ok && t < v->n_tokens; t++) {
        uint32_t size = v->first_byte[t + 1] - v->first_byte[t];
        if (size) words[n++] = (trie_word){v->bytes + v->first_byte[t], size, t};
    }
    v->n_words = n;
    ok = ok && trie_make(words, n, &v->all);
    for (uint32_t i = 0; ok && i < n; i++) {
        uint32_t chars = count_safe(words[i].bytes, words[i].n);
        v->safe_chars[words[i].token] = (uint16_t)(chars < UINT16_MAX ? chars : UINT16_MAX);
    }
    uint32_t unsafe = 0;
    for (uint32_t i = 0; ok && i < n; i++) { // in the order of their bytes
        if (v->safe_chars[words[i].token]) v->safe_sorted[v->n_safe++] = words[i].token;
        else words[unsafe++] = words[i];
    }
    ok = ok && trie_make(words, unsafe, &v->unsafe);
    free(words);
    if (!ok) return false;
    find_children(&v->all, v->all_child);
    find_children(&v->unsafe, v->unsafe_child);
    return true;
}

static bool make_masks(grammar_vocab *v)
{
    uint32_t words = grammar_mask_words(v->n_tokens), at = 0;
    v->safe_all = calloc(words, sizeof *v->safe_all);
    for (uint32_t n = 0; n <= LENGTHS_MAX; n++) v->safe[n] = calloc(words, sizeof *v->safe_all);
    for (uint32_t n = 0; n <= LENGTHS_MAX; n++)
        if (!v->safe[n] || !v->safe_all) return false;
    for (uint32_t i = 0; i < v->n_safe; i++) {
        uint32_t t = v->safe_sorted[i], chars = v->safe_chars[t];
        v->safe_all[t / 32] |= 1u << t % 32;
        for (uint32_t n = chars; n <= LENGTHS_MAX; n++) v->safe[n][t / 32] |= 1u << t % 32;
        if (chars > LENGTHS_MAX) v->safe_long[v->n_long++] = t;
        if (chars > v->longest) v->longest = chars;
    }
    for (uint32_t c = 0; c < 256; c++) {
        v->safe_first[c] = at;
        while (at < v->n_safe && v->bytes[v->first_byte[v->safe_sorted[at]]] == c) at++;
    }
    v->safe_first[256] = at;
    return true;
}

status grammar_vocab_create(const grammar_token *tokens, uint32_t n, grammar_vocab **out)
{
    size_t bytes = 0;
    *out = NULL;
    for (uint32_t t = 0; t < n; t++) {
        if (tokens[t].n > UINT16_MAX)
            return status_make(STATUS_LIMIT, "a token has more than 65,535 bytes");
        bytes += tokens[t].n;
    }
    if (bytes > UINT32_MAX / 2) return status_make(STATUS_LIMIT, "the tokens have too many bytes");
    grammar_vocab *v = calloc(1, sizeof *v);
    if (!v) return status_make(STATUS_NO_MEMORY, NULL);
    pthread_mutex_init(&v->lock, NULL);
    v->n_tokens = n;
    v->bytes = malloc(bytes + 1);
    v->first_byte = calloc((size_t)n + 1, sizeof *v->first_byte);
    v->safe_chars = calloc((size_t)n + 1, sizeof *v->safe_chars);
    v->safe_sorted = malloc(((size_t)n + 1) * sizeof *v->safe_sorted);
    v->safe_long = malloc(((size_t)n + 1) * sizeof *v->safe_long);
    bool ok = v->bytes && v->first_byte && v->safe_chars && v->safe_sorted && v->safe_long;
    for (uint32_t t = 0; ok && t < n; t++) {
        if (tokens[t].n) memcpy(v->bytes + v->first_byte[t], tokens[t].bytes, tokens[t].n);
        v->first_byte[t + 1] = v->first_byte[t] + tokens[t].n;
    }
    if (ok && make_tries(v) && make_masks(v)) {
        *out = v;
        return STATUS_IS_OK;
    }
    grammar_vocab_destroy(v);
    return status_make(STATUS_NO_MEMORY, NULL);
}

void grammar_vocab_destroy(grammar_vocab *v)
{
    if (!v) return;
    shared_parts_destroy(v);
    trie_destroy(&v->all);
    trie_destroy(&v->unsafe);
    for (uint32_t n = 0; n <= LENGTHS_MAX; n++) free(v->safe[n]);
    free(v->safe_all);
    free(v->safe_sorted);
    free(v->safe_long);
    free(v->safe_chars);
    free(v->bytes);
    free(v->first_byte);
    pthread_mutex_destroy(&v->lock);
    free(v);
}
