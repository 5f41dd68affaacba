/* Scores one answer. */
#include "quality/score/scorers.h"

#include "base/number.h"
#include "quality/score/word_scores.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- small parts ----------------------------------------------------------------------------- */

typedef struct piece {
    const char *at;
    size_t n;
} piece;

static bool is_space(char c) { return isspace((unsigned char)c) != 0; }

static piece trimmed(const char *s, size_t n)
{
    while (n > 0 && is_space(s[n - 1])) n--;
    while (n > 0 && is_space(*s)) s++, n--;
    return (piece){s, n};
}

static bool is_same_piece(piece a, piece b) { return a.n == b.n && memcmp(a.at, b.at, a.n) == 0; }

/* The text up to its first newline that is not at the beginning. */
static piece first_line(const char *s)
{
    s += strspn(s, "\n");
    return (piece){s, strcspn(s, "\n")};
}

/* The next run of digits; n = 0 without one. */
static piece next_digits(const char *s)
{
    while (*s && !isdigit((unsigned char)*s)) s++;
    size_t n = 0;
    while (isdigit((unsigned char)s[n])) n++;
    return (piece){s, n};
}

/* The first number, as in "$1,234.50": digits, commas between digits, a fraction. n = 0 without
 * one. */
static piece next_number(const char *s)
{
    piece p = next_digits(s);
    if (p.n == 0) return p;
    for (;;) {
        const char *rest = p.at + p.n;
        bool joins = (*rest == ',' || *rest == '.') && isdigit((unsigned char)rest[1]);
        if (!joins && !isdigit((unsigned char)*rest)) break;
        p.n++;
    }
    if (p.at > s && p.at[-1] == '-') p.at--, p.n++;
    return p;
}

static double number_value(piece p)
{
    char text[64];
    size_t n = 0;
    for (size_t i = 0; i < p.n && n + 1 < sizeof text; i++)
        if (p.at[i] != ',') text[n++] = p.at[i];
    text[n] = 0;
    double value = 0;
    number_read(text, &value);
    return value;
}

/* ---- one reference --------------------------------------------------------------------------- */

typedef double (*score_one)(const char *answer, const char *reference, const string_list *classes);

static double score_exact(const char *answer, const char *reference, const string_list *classes)
{
    (void)classes;
    return is_same_piece(trimmed(answer, strlen(answer)), trimmed(reference, strlen(reference)));
}

static double score_match(const char *answer, const char *reference, const string_list *classes)
{
    (void)classes;
    return strcasestr(answer, reference) != NULL;
}

static double score_f1(const char *answer, const char *reference, const string_list *classes)
{
    (void)classes;
    return word_f1(answer, strlen(answer), reference);
}

static double score_rouge(const char *answer, const char *reference, const string_list *classes)
{
    (void)classes;
    return word_rouge_l(answer, strlen(answer), reference);
}

/* Classes that the answer names share the point. A class that is only a part of the right one does
 * not count. */
static double class_in(const char *answer, size_t n, const char *reference,
                       const string_list *classes)
{
    size_t named = 0;
    bool right = false;
    for (size_t i = 0; i < classes->n; i++) {
        const char *name = classes->items[i];
        if (!memmem(answer, n, name, strlen(name))) continue;
        bool exact = strcmp(name, reference) == 0;
        if (!exact && strstr(reference, name)) continue;
        named++;
        right |= exact;
    }
    return right ? 1.0 / (double)named : 0;
}

static double score_class(const char *answer, const char *reference, const string_list *classes)
{
    return class_in(answer, strlen(answer), reference, classes);
}

static double score_line_f1(const char *answer, const char *reference, const string_list *classes)
{
    (void)classes;
    piece line = first_line(answer);
    return word_f1(line.at, line.n, reference);
}

static double score_line_rouge(const char *answer, const char *reference,
                               const string_list *classes)
{
    (void)classes;
    piece line = first_line(answer);
    return word_rouge_l(line.at, line.n, reference);
}

static double score_line_class(const char *answer, const char *reference,
                               const string_list *classes)
{
    piece line = first_line(answer);
    return class_in(line.at, line.n, reference, classes);
}

static double share_of_numbers(const char *answer, piece right)
{
    size_t n = 0, n_right = 0;
    for (piece p = next_digits(answer); p.n > 0; p = next_digits(p.at + p.n)) {
        n++;
        n_right += is_same_piece(p, right);
    }
    return n ? (double)n_right / (double)n : 0;
}

/* A reference reads "Paragraph 12". */
static double score_retrieval(const char *answer, const char *reference, const string_list *classes)
{
    (void)classes;
    return share_of_numbers(answer, next_digits(reference));
}

static double score_count(const char *answer, const char *reference, const string_list *classes)
{
    (void)classes;
    return share_of_numbers(answer, trimmed(reference, strlen(reference)));
}

/* Edit similarity, 2 * common subsequence / both lengths, of the answer's first line that holds
 * neither a comment nor Markdown. */
static double score_edit(const char *answer, const char *reference, const string_list *classes)
{
    (void)classes;
    const char *line = answer + strspn(answer, "\n");
    piece candidate = {line, 0};
    while (*line) {
        size_t n = strcspn(line, "\n");
        if (!memchr(line, '`', n) && !memchr(line, '#', n) && !memmem(line, n, "//", 2)) {
            candidate = (piece){line, n};
            break;
        }
        line += n + (line[n] == '\n');
    }
    return byte_similarity(candidate.at, candidate.n, reference, strlen(reference));
}

static double score_first_number(const char *answer, const char *reference,
                                 const string_list *classes)
{
    (void)classes;
    return is_same_piece(next_digits(answer), trimmed(reference, strlen(reference)));
}

/* The last letter A to D that stands alone decides; without one the whole text is compared. */
static double score_choice(const char *answer, const char *reference, const string_list *classes)
{
    (void)classes;
    char letter = 0;
    for (const char *s = answer; *s; s++) {
        bool alone =
            (s == answer || !isalnum((unsigned char)s[-1])) && !isalnum((unsigned char)s[1]);
        if (*s >= 'A' && *s <= 'D' && alone) letter = *s;
    }
    if (letter && reference[0] == letter && reference[1] == 0) return 1;
    return letter ? 0 : score_exact(answer, reference, classes);
}

/* The number that ends an answer: behind the last "answer is", else the last of all. */
static double score_answer_number(const char *answer, const char *reference,
                                  const string_list *classes)
{
    (void)classes;
    const char *from = answer;
    for (const char *s = answer; (s = strcasestr(s, "answer is")) != NULL; s++) from = s;
    piece found = next_number(from);
    if (from == answer)
        for (piece p = found; p.n > 0; p = next_number(p.at + p.n)) found = p;
    piece right = next_number(reference);
    return found.n > 0 && right.n > 0 && number_value(found) == number_value(right);
}

bool scorer_numbered(const char *answer, size_t i, const char *reference)
{
    char label[32], next[32];
    snprintf(label, sizeof label, "Answer_%zu:", NUMBERED_FIRST + i);
    snprintf(next, sizeof next, "Answer_%zu:", NUMBERED_FIRST + i + 1);
    const char *from = strstr(answer, label);
    if (!from) return false;
    from += strlen(label);
    const char *end = strstr(from, next), *is = strstr(from, "answer is");
    if (!is || (end && is > end)) return false;
    piece found = next_number(is);
    return found.n > 0 && number_value(found) == number_value(next_number(reference));
}

static double score_numbered(const char *answer, const string_list *references)
{
    size_t right = 0;
    for (size_t i = 0; i < references->n; i++)
        right += scorer_numbered(answer, i, references->items[i]);
    return (double)right / (double)references->n;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    score_one one;
} scorers[SCORERS] = {
    [SCORER_EXACT] = {"exact", score_exact},
    [SCORER_MATCH_ALL] = {"match_all", score_match},
    [SCORER_MATCH_PART] = {"match_part", score_match},
    [SCORER_F1] = {"f1", score_f1},
    [SCORER_ROUGE_L] = {"rouge_l", score_rouge},
    [SCORER_CLASS] = {"class", score_class},
    [SCORER_FIRST_LINE_F1] = {"first_line_f1", score_line_f1},
    [SCORER_FIRST_LINE_ROUGE] = {"first_line_rouge_l", score_line_rouge},
    [SCORER_FIRST_LINE_CLASS] = {"first_line_class", score_line_class},
    [SCORER_RETRIEVAL] = {"retrieval", score_retrieval},
    [SCORER_COUNT] = {"count", score_count},
    [SCORER_EDIT] = {"edit", score_edit},
    [SCORER_FIRST_NUMBER] = {"first_number", score_first_number},
    [SCORER_CHOICE] = {"choice", score_choice},
    [SCORER_ANSWER_NUMBER] = {"answer_number", score_answer_number},
    [SCORER_NUMBERED] = {"numbered", NULL},
};

const char *scorer_name(scorer_kind kind) { return scorers[kind].name; }

double scorer_score(scorer_kind kind, const char *answer, const string_list *references,
                    const string_list *classes)
{
    if (references->n == 0) return 0;
    if (!scorers[kind].one) return score_numbered(answer, references);
    double best = 0, sum = 0;
    for (size_t i = 0; i < references->n; i++) {
        double score = scorers[kind].one(answer, references->items[i], classes);
        if (score < 0) return score;
        sum += score;
        if (score > best) best = score;
    }
    return kind == SCORER_MATCH_ALL ? sum / (double)references->n : best;
}
