/* F1, ROUGE-L and edit similarity. */
#include "quality/score/word_scores.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The words of a text; they point into a copy of it. */
typedef struct word_list {
    char *text;
    const char **words;
    size_t n;
} word_list;

static void words_free(word_list *w)
{
    free(w->text);
    free(w->words);
}

/* Splits at white space. False when memory is out. */
static bool words_split(const char *text, size_t n, word_list *out)
{
    *out = (word_list){strndup(text, n), calloc(n / 2 + 1, sizeof *out->words), 0};
    if (!out->text || !out->words) return false;
    char *rest = NULL;
    for (char *w = strtok_r(out->text, " \t\r\n\v\f", &rest); w;
         w = strtok_r(NULL, " \t\r\n\v\f", &rest))
        out->words[out->n++] = w;
    return true;
}

/* ---- F1 -------------------------------------------------------------------------------------- */

static bool article(const char *word)
{
    return strcmp(word, "a") == 0 || strcmp(word, "an") == 0 || strcmp(word, "the") == 0;
}

static bool words_normalised(const char *text, size_t n, word_list *out)
{
    char *plain = malloc(n + 1);
    if (!plain) {
        *out = (word_list){0};
        return false;
    }
    size_t k = 0;
    for (size_t i = 0; i < n && text[i]; i++)
        if (!ispunct((unsigned char)text[i])) plain[k++] = (char)tolower((unsigned char)text[i]);
    bool ok = words_split(plain, k, out);
    free(plain);
    size_t kept = 0;
    for (size_t i = 0; ok && i < out->n; i++)
        if (!article(out->words[i])) out->words[kept++] = out->words[i];
    out->n = kept;
    return ok;
}

static int by_text(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

static size_t common_words(word_list *a, word_list *b)
{
    qsort(a->words, a->n, sizeof *a->words, by_text);
    qsort(b->words, b->n, sizeof *b->words, by_text);
    size_t i = 0, j = 0, n = 0;
    while (i < a->n && j < b->n) {
        int order = strcmp(a->words[i], b->words[j]);
        n += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    return n;
}

double word_f1(const char *answer, size_t n, const char *reference)
{
    word_list a = {0}, b = {0};
    double score = -1;
    if (words_normalised(answer, n, &a) && words_normalised(reference, strlen(reference), &b)) {
        size_t both = common_words(&a, &b);
        score = both ? 2.0 * (double)both / (double)(a.n + b.n) : 0;
    }
    words_free(&a);
    words_free(&b);
    return score;
}

/* ---- ROUGE-L --------------------------------------------------------------------------------- */

/* The words of a text, where equal words have equal numbers, and its sentences. */
typedef struct numbered_text {
    uint32_t *ids;
    size_t n;
    size_t *ends; // end of each sentence, in words
    size_t n_sentences;
} numbered_text;

typedef struct dictionary {
    const char **words;
    size_t n;
} dictionary;

static uint32_t number_of(dictionary *d, const char *word)
{
    size_t i = 0;
    while (i < d->n && strcmp(d->words[i], word) != 0) i++;
    if (i == d->n) d->words[d->n++] = word;
    return (uint32_t)i;
}

/* Cuts `text` at the dots and numbers its words. `text` must outlive the dictionary, which has room
 * for all its words. */
static bool number_text(char *text, dictionary *d, numbered_text *out)
{
    size_t n = strlen(text);
    out->ids = calloc(n / 2 + 1, sizeof *out->ids);
    out->ends = calloc(n + 1, sizeof *out->ends);
    if (!out->ids || !out->ends) return false;
    char *dots = NULL;
    for (char *s = strtok_r(text, ".", &dots); s; s = strtok_r(NULL, ".", &dots)) {
        char *blanks = NULL;
        for (char *w = strtok_r(s, " \t\r\n\v\f", &blanks); w;
             w = strtok_r(NULL, " \t\r\n\v\f", &blanks))
            out->ids[out->n++] = number_of(d, w);
        out->ends[out->n_sentences++] = out->n;
    }
    return true;
}

/* Marks the words of one longest common subsequence, read back from the table's end; on a tie the
 * second text's word is skipped. */
static bool mark_common(const uint32_t *x, size_t n, const uint32_t *y, size_t m, bool *marks)
{
    uint32_t *table = calloc((n + 1) * (m + 1), sizeof *table);
    if (!table) return false;
#define CELL(i, j) table[(i) * (m + 1) + (j)]
    for (size_t i = 1; i <= n; i++)
        for (size_t j = 1; j <= m; j++) {
            uint32_t up = CELL(i - 1, j), left = CELL(i, j - 1);
            CELL(i, j) = x[i - 1] == y[j - 1] ? CELL(i - 1, j - 1) + 1 : up > left ? up : left;
        }
    for (size_t i = n, j = m; i > 0 && j > 0;) {
        if (x[i - 1] == y[j - 1]) {
            marks[x[i - 1]] = true;
            i--, j--;
        } else if (CELL(i - 1, j) > CELL(i, j - 1)) {
            i--;
        } else {
            j--;
        }
    }
#undef CELL
    free(table);
    return true;
}

static size_t different(const numbered_text *t, size_t n_words, bool *seen)
{
    size_t n = 0;
    memset(seen, 0, n_words * sizeof *seen);
    for (size_t i = 0; i < t->n; i++) {
        n += !seen[t->ids[i]];
        seen[t->ids[i]] = true;
    }
    return n;
}

/* ROUGE-L's F, or -1 when memory is out. A word of the reference is a hit once, if any sentence's
 * common subsequence has it. beta and 1e-12 are those of the `rouge` package. */
static double rouge_of(const numbered_text *a, const numbered_text *r, size_t n_words, bool *marks)
{
    double n_answer = (double)different(a, n_words, marks);
    double n_reference = (double)different(r, n_words, marks);
    if (n_answer == 0 || n_reference == 0) return 0;
    memset(marks, 0, n_words * sizeof *marks);
    for (size_t i = 0, from = 0; i < r->n_sentences; from = r->ends[i++])
        for (size_t j = 0, start = 0; j < a->n_sentences; start = a->ends[j++])
            if (!mark_common(r->ids + from, r->ends[i] - from, a->ids + start, a->ends[j] - start,
                             marks))
                return -1;
    double hits = 0;
    for (size_t i = 0; i < n_words; i++) hits += marks[i];
    double recall = hits / n_reference, precision = hits / n_answer;
    double beta = precision / (recall + 1e-12);
    return (1 + beta * beta) * recall * precision / (recall + beta * beta * precision + 1e-12);
}

double word_rouge_l(const char *answer, size_t n, const char *reference)
{
    char *a_text = strndup(answer, n), *r_text = strdup(reference);
    size_t most = (n + strlen(reference)) / 2 + 2;
    dictionary d = {calloc(most, sizeof *d.words), 0};
    bool *marks = calloc(most, sizeof *marks);
    numbered_text a = {0}, r = {0};
    double score = -1;
    if (a_text && r_text && d.words && marks && number_text(a_text, &d, &a) &&
        number_text(r_text, &d, &r))
        score = rouge_of(&a, &r, d.n, marks);
    free(a.ids);
    free(a.ends);
    free(r.ids);
    free(r.ends);
    free(marks);
    free(d.words);
    free(a_text);
    free(r_text);
    return score;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

double byte_similarity(const char *a, size_t n_a, const char *b, size_t n_b)
{
    if (n_a + n_b == 0) return 1;
    size_t *row = calloc(n_b + 1, sizeof *row);
    if (!row) return -1;
    for (size_t i = 0; i < n_a; i++) {
        size_t diagonal = 0;
        for (size_t j = 1; j <= n_b; j++) {
            size_t up = row[j];
            if (a[i] == b[j - 1]) row[j] = diagonal + 1;
            else if (row[j - 1] > up) row[j] = row[j - 1];
            diagonal = up;
        }
    }
    double common = (double)row[n_b];
    free(row);
    return 2 * common / (double)(n_a + n_b);
}
