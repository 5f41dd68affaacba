/* Matchers for the patterns that models in the field use. They find byte for byte what a
 * backtracking engine finds: the first alternative that matches, as long as greedy matching makes
 * it. */
#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/unicode.h"

#include <string.h>

/* The classes of one character and its length; both 0 behind the end. */
typedef struct scalar {
    unsigned class;
    unsigned length;
    uint32_t cp;
} scalar;

static inline scalar scalar_at(const uint8_t *text, size_t n, size_t at)
{
    scalar s = {0};
    if (at < n) {
        s.cp = tok_unicode_read(text + at, &s.length);
        s.class = tok_unicode_class(s.cp);
    }
    return s;
}

/* The end of the run of characters of any class in `classes` (or of none, when `inverted`). */
static inline size_t run_end(const uint8_t *text, size_t n, size_t at, unsigned classes,
                             bool inverted)
{
    while (at < n) {
        unsigned length;
        bool in = (tok_unicode_class(tok_unicode_read(text + at, &length)) & classes) != 0;
        if (in == inverted) break;
        at += length;
    }
    return at;
}

/* The end of 's 't 're 've 'm 'll 'd at the apostrophe at `at`, or 0. When case is ignored, the
 * long s (U+017F) is an s, as in the library's engine. */
static size_t contraction_end(const uint8_t *text, size_t n, size_t at, bool ignore_case)
{
    size_t left = n - at - 1;
    if (left == 0) return 0;
    uint8_t fold = ignore_case ? 0x20 : 0;
    uint8_t a = text[at + 1] | fold, b = left > 1 ? text[at + 2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
    if (ignore_case && left > 1 && text[at + 1] == 0xc5 && text[at + 2] == 0xbf) return at + 3;
    return 0;
}

/* The end of \s+(?!\S)|\s+ at white space: takes all of it at the end of the text, else all but its
 * last character unless that is the only one. *last_newline: the end of the last \r or \n in it, or
 * `at`. */
static size_t space_end(const uint8_t *text, size_t n, size_t at, size_t *last_newline)
{
    size_t end = at, last = at;
    *last_newline = at;
    while (end < n) {
        scalar s = scalar_at(text, n, end);
        if (!(s.class & UNICODE_SPACE)) return last > at ? last : end;
        last = end;
        end += s.length;
        if (s.cp == '\n' || s.cp == '\r') *last_newline = end;
    }
    return end;
}

size_t tok_split_gpt2(const uint8_t *text, size_t n, size_t at)
{
    if (text[at] == '\'') {
        size_t end = contraction_end(text, n, at, false);
        if (end > 0) return end;
    }
    size_t body = at + (text[at] == ' ');
    scalar s = scalar_at(text, n, body);
    unsigned all = UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SPACE;
    if (body < n && !(s.class & UNICODE_SPACE)) {
        unsigned class = s.class & (UNICODE_LETTER | UNICODE_NUMBER);
        if (class) return run_end(text, n, body, class, false);
        return run_end(text, n, body, all, true);
    }
    size_t newline;
    return space_end(text, n, at, &newline);
}

/* The end of at most `most` number characters at `at`. */
static size_t digits_end(const uint8_t *text, size_t n, size_t at, unsigned most)
{
    for (unsigned i = 0; i < most; i++) {
        scalar digit = scalar_at(text, n, at);
        if (!(digit.class & UNICODE_NUMBER)) break;
        at += digit.length;
    }
    return at;
}

/* The split of Llama 3 and Qwen, which differ in how many digits one piece may have. */
static inline size_t split_llama3(const uint8_t *text, size_t n, size_t at, unsigned digits_max)
{
    if (text[at] == '\'') {
        size_t end = contraction_end(text, n, at, true);
        if (end > 0) return end;
    }
    scalar s = scalar_at(text, n, at);
    if (s.class & UNICODE_LETTER) return run_end(text, n, at, UNICODE_LETTER, false);
    if (s.class & UNICODE_NUMBER) return digits_end(text, n, at, digits_max);
    if (s.cp != '\r' && s.cp != '\n') { /* [^\r\n\p{L}\p{N}]\p{L}+ */
        size_t letters = at + s.length;
        size_t end = run_end(text, n, letters, UNICODE_LETTER, false);
        if (end > letters) return end;
    }
    unsigned all = UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SPACE;
    size_t body = at + (s.cp == ' ');
    size_t end = run_end(text, n, body, all, true);
    if (end > body) {
        while (end < n && (text[end] == '\r' || text[end] == '\n')) end++;
        return end;
    }
    size_t newline;
    end = space_end(text, n, at, &newline);
    return newline > at ? newline : end; /* \s*[\r\n]+ has precedence */
}

static size_t split_llama3_3(const uint8_t *text, size_t n, size_t at)
{
    return split_llama3(text, n, at, 3);
}

static size_t split_llama3_1(const uint8_t *text, size_t n, size_t at)
{
    return split_llama3(text, n, at, 1);
}

/* The end of [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at `at`, or `at`. The first
 * run is as long as possible and leaves the second at least one character. */
static size_t capitalised_end(const uint8_t *text, size_t n, size_t at)
{
    size_t end = at, given = at; /* end of the last character that fits the second run */
    while (end < n) {
        scalar s = scalar_at(text, n, end);
        if (!(s.class & UNICODE_HEAD)) {
            if (s.class & UNICODE_TAIL) return run_end(text, n, end, UNICODE_TAIL, false);
            break;
        }
        end += s.length;
        if (s.class & UNICODE_TAIL) given = end;
    }
    return given;
}

/* The end of a word of tekken's pattern, which may have one character before it that is no letter,
 * number or line end; or 0. If no word ends in lower case, takes one of upper case only. */
static size_t tekken_word(const uint8_t *text, size_t n, size_t at)
{
    scalar s = scalar_at(text, n, at);
    bool prefix = !(s.class & (UNICODE_LETTER | UNICODE_NUMBER)) && s.cp != '\r' && s.cp != '\n';
    size_t from[2] = {at + s.length, at};
    for (unsigned i = !prefix; i < 2; i++) {
        size_t end = capitalised_end(text, n, from[i]);
        if (end > from[i]) return end;
    }
    for (unsigned i = !prefix; i < 2; i++) {
        size_t end = run_end(text, n, from[i], UNICODE_HEAD, false);
        if (end > from[i]) return end;
    }
    return 0;
}

/* The split of tekken and of o200k, which adds contractions at the end of a word and three digits
 * to a piece. */
static inline size_t split_words(const uint8_t *text, size_t n, size_t at, bool o200k)
{
    size_t end = tekken_word(text, n, at), more = 0;
    if (end > 0) {
        if (o200k && end < n && text[end] == '\'') more = contraction_end(text, n, end, true);
        return more > 0 ? more : end;
    }
    scalar s = scalar_at(text, n, at);
    if (s.class & UNICODE_NUMBER) return digits_end(text, n, at, o200k ? 3 : 1);
    size_t body = at + (s.cp == ' ');
    end = run_end(text, n, body, UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SPACE, true);
    if (end > body) {
        while (end < n && (text[end] == '\r' || text[end] == '\n' || text[end] == '/')) end++;
        return end;
    }
    size_t newline;
    end = space_end(text, n, at, &newline);
    return newline > at ? newline : end;
}

static size_t split_tekken(const uint8_t *text, size_t n, size_t at)
{
    return split_words(text, n, at, false);
}

static size_t split_o200k(const uint8_t *text, size_t n, size_t at)
{
    return split_words(text, n, at, true);
}

size_t tok_split_metaspace(const uint8_t *text, size_t n, size_t at)
{
    size_t end = at;
    while (n - end >= 3 && memcmp(text + end, TOK_METASPACE, 3) == 0) end += 3;
    const uint8_t *next = memmem(text + end, n - end, TOK_METASPACE, 3);
    return next ? (size_t)(next - text) : n;
}

#define LLAMA3_BEFORE "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define LLAMA3_AFTER  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define TEKKEN_PREFIX "[^\\r\\n\\p{L}\\p{N}]?"
#define CONTRACTION   "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define TEKKEN_AFTER  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TEKKEN_HEAD   "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN_TAIL   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

tok_split tok_split_find(const char *pattern, size_t n)
{
    static const struct {
        const char *pattern;
        tok_split split;
    } rows[] = {
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
         tok_split_gpt2},
        {LLAMA3_BEFORE "\\p{N}{1,3}" LLAMA3_AFTER, split_llama3_3},
        {LLAMA3_BEFORE "\\p{N}" LLAMA3_AFTER, split_llama3_1},
        {TEKKEN_PREFIX TEKKEN_HEAD "*" TEKKEN_TAIL "+|" TEKKEN_PREFIX TEKKEN_HEAD "+" TEKKEN_TAIL
                                   "*|\\p{N}" TEKKEN_AFTER,
         split_tekken},
        {TEKKEN_PREFIX TEKKEN_HEAD "*" TEKKEN_TAIL "+" CONTRACTION "|" TEKKEN_PREFIX TEKKEN_HEAD
                                   "+" TEKKEN_TAIL "*" CONTRACTION "|\\p{N}{1,3}" TEKKEN_AFTER,
         split_o200k},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strlen(rows[i].pattern) == n && memcmp(rows[i].pattern, pattern, n) == 0)
            return rows[i].split;
    return NULL;
}
