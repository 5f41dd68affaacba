/* BM25 over chunks (Robertson and Zaragoza, 2009) with k1 = 1.5, b = 0.75 and the logarithm that is
 * never negative. Words are runs of letters and digits, in lower case. */
#include "quality/bm25.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TERMS_MAX = 64, TERM_BYTES = 64 };

typedef struct query_terms {
    char words[TERMS_MAX][TERM_BYTES];
    size_t n;
} query_terms;

typedef struct chunk {
    const char *text;
    size_t n;
    uint32_t words, tokens;
    uint16_t counts[TERMS_MAX];
    double score;
    bool chosen;
} chunk;

static bool is_word(char c) { return isalnum((unsigned char)c) || (unsigned char)c >= 0x80; }

/* Reads the next word of [*s, end) in lower case, cut at TERM_BYTES - 1; false at the end. */
static bool next_word(const char **s, const char *end, char out[TERM_BYTES])
{
    while (*s < end && !is_word(**s)) ++*s;
    size_t n = 0;
    for (; *s < end && is_word(**s); ++*s)
        if (n + 1 < TERM_BYTES) out[n++] = (char)tolower((unsigned char)**s);
    out[n] = 0;
    return n > 0;
}

static size_t find_term(const query_terms *q, const char *word)
{
    size_t i = 0;
    while (i < q->n && strcmp(q->words[i], word) != 0) i++;
    return i;
}

static void read_query(const char *text, query_terms *q)
{
    const char *end = text + strlen(text);
    char word[TERM_BYTES];
    while (q->n < TERMS_MAX && next_word(&text, end, word)) {
        if (find_term(q, word) == q->n) memcpy(q->words[q->n++], word, sizeof word);
    }
}

static void count_words(chunk *c, const query_terms *q)
{
    const char *s = c->text, *end = s + c->n;
    char word[TERM_BYTES];
    while (next_word(&s, end, word)) {
        c->words++;
        size_t i = find_term(q, word);
        if (i < q->n && c->counts[i] < UINT16_MAX) c->counts[i]++;
    }
}

static void score_chunks(chunk *chunks, size_t n, const query_terms *q)
{
    const double k1 = 1.5, b = 0.75;
    double words = 0;
    for (size_t i = 0; i < n; i++) words += chunks[i].words;
    double mean = words > 0 ? words / (double)n : 1;
    for (size_t t = 0; t < q->n; t++) {
        double with = 0;
        for (size_t i = 0; i < n; i++) with += chunks[i].counts[t] > 0;
        double weight = log(1 + ((double)n - with + 0.5) / (with + 0.5));
        for (size_t i = 0; i < n; i++) {
            double count = chunks[i].counts[t];
            double length = 1 - b + b * (double)chunks[i].words / mean;
            chunks[i].score += weight * count * (k1 + 1) / (count + k1 * length);
        }
    }
}

/* Selects the best chunks, the earlier of equal ones first, until the next would not fit. */
static void choose_chunks(chunk *chunks, size_t n, uint32_t tokens)
{
    for (uint32_t used = 0;;) {
        chunk *best = NULL;
        for (size_t i = 0; i < n; i++)
            if (!chunks[i].chosen && (!best || chunks[i].score > best->score)) best = &chunks[i];
        if (!best || (used > 0 && used + best->tokens > tokens)) return;
        best->chosen = true;
        used += best->tokens;
    }
}

/* Cuts the text into chunks. The bytes of its tokens make up the text, so chunks point into it. */
static status cut_chunks(const tokenizer *t, const tok_ids *ids, const char *text, size_t n,
                         chunk *chunks, error *err)
{
    size_t at = 0;
    for (size_t i = 0; i < ids->n; i++) {
        chunk *c = &chunks[i / BM25_CHUNK_TOKENS];
        const char *bytes;
        size_t size;
        RETURN_IF_ERROR(tok_token_bytes(t, ids->ids[i], &bytes, &size));
        if (c->tokens++ == 0) c->text = text + at;
        c->n += size;
        at += size;
        if (at > n)
            return error_set(err, STATUS_UNSUPPORTED,
                             "rag-bm25: this tokenizer changes the text it encodes");
    }
    return STATUS_IS_OK;
}

status bm25_choose(const tokenizer *t, const char *text, size_t n, const char *query,
                   uint32_t tokens, strbuf *out, error *err)
{
    tok_ids ids = {0};
    query_terms *q = calloc(1, sizeof *q);
    chunk *chunks = NULL;
    status st = tok_encode(t, text, n, false, &ids, err);
    size_t n_chunks = (ids.n + BM25_CHUNK_TOKENS - 1) / BM25_CHUNK_TOKENS;
    if (status_ok(st)) {
        chunks = calloc(n_chunks + 1, sizeof *chunks);
        if (!q || !chunks) st = error_set(err, STATUS_NO_MEMORY, "out of memory");
    }
    if (status_ok(st)) st = cut_chunks(t, &ids, text, n, chunks, err);
    if (status_ok(st)) {
        read_query(query, q);
        for (size_t i = 0; i < n_chunks; i++) count_words(&chunks[i], q);
        score_chunks(chunks, n_chunks, q);
        choose_chunks(chunks, n_chunks, tokens);
        for (size_t i = 0; i < n_chunks; i++)
            if (chunks[i].chosen) strbuf_append(out, chunks[i].text, chunks[i].n);
    }
    free(chunks);
    free(q);
    tok_ids_destroy(&ids);
    return st;
}
