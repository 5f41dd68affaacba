/* Turns source text into tokens, with Jinja's rules for white space around tags (trim_blocks,
 * lstrip_blocks). */
#include "text/chat_template/ast.h"

#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

status lex_fail(error *err, status_code code, uint32_t line, const char *fmt, ...)
{
    char message[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    size_t n = strlen(message);
    for (size_t i = 0; i < n;) { /* one line of whole characters, wherever it was cut */
        uint32_t cp;
        size_t size = utf8_decode((const uint8_t *)message + i, n - i, &cp);
        if (cp < 0x20) message[i] = ' ';
        else if (cp == UINT32_MAX) message[i] = '?';
        i += size;
    }
    return error_set(err, code, "chat_template:%" PRIu32 ": %s", line, message);
}

status lex_init(lexer *l, arena *mem, const char *source, size_t n, error *err)
{
    *l = (lexer){.mem = mem, .err = err, .line = 1, .state = LEX_DATA, .line_starting = true};
    if (!utf8_valid((const uint8_t *)source, n))
        return lex_fail(err, STATUS_CORRUPT, 1, "the template is not UTF-8");
    char *s = arena_alloc(mem, n + 1);
    if (!s) return lex_fail(err, STATUS_NO_MEMORY, 1, "out of memory");
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            s[k++] = '\n';
            if (i + 1 < n && source[i + 1] == '\n') i++;
        } else {
            s[k++] = source[i];
        }
    }
    if (k > 0 && s[k - 1] == '\n') k--;
    l->s = s;
    l->n = k;
    return STATUS_IS_OK;
}

static char peek(const lexer *l, size_t ahead)
{
    return l->pos + ahead < l->n ? l->s[l->pos + ahead] : '\0';
}

static bool starts_with(const lexer *l, size_t at, const char *with)
{
    size_t n = strlen(with);
    return at + n <= l->n && memcmp(l->s + at, with, n) == 0;
}

/* The number of bytes of the white space character at `at`, or 0. */
static size_t space_at(const lexer *l, size_t at)
{
    uint32_t cp;
    if (at >= l->n) return 0;
    unsigned n = utf8_decode((const uint8_t *)l->s + at, l->n - at, &cp);
    return code_point_is_space(cp) ? n : 0;
}

static size_t skip_space(const lexer *l, size_t at)
{
    for (size_t n; (n = space_at(l, at)) > 0;) at += n;
    return at;
}

static void advance_to(lexer *l, size_t to)
{
    for (; l->pos < to; l->pos++)
        if (l->s[l->pos] == '\n') l->line++;
    l->line_starting = to > 0 && l->s[to - 1] == '\n';
}

/* The end of a tag whose closing `end` is at `at`, or 0. "-%}" takes the white space that follows,
 * "%}" one newline when trim is set. */
static size_t tag_end(const lexer *l, size_t at, const char *end, bool plus, bool trim)
{
    if (starts_with(l, at, "-") && starts_with(l, at + 1, end)) return skip_space(l, at + 3);
    if (plus && starts_with(l, at, "+") && starts_with(l, at + 1, end)) return at + 3;
    if (!starts_with(l, at, end)) return 0;
    return at + 2 + (trim && at + 2 < l->n && l->s[at + 2] == '\n');
}

static bool is_tag_start(const lexer *l, size_t at)
{
    return starts_with(l, at, "{%") || starts_with(l, at, "{{") || starts_with(l, at, "{#");
}

/* The text before a tag at `end`, without the white space that the tag's sign or lstrip_blocks
 * strips. */
static text data_before(const lexer *l, size_t end, char sign, bool block)
{
    text t = {l->s + l->pos, end - l->pos};
    if (sign == '-') return text_strip(t, (text){NULL, 0}, false, true);
    if (sign == '+' || !block) return t;
    size_t line = t.n;
    while (line > 0 && t.s[line - 1] != '\n') line--;
    if (line == 0 && !l->line_starting) return t;
    text rest = {t.s + line, t.n - line};
    if (text_strip(rest, (text){NULL, 0}, true, false).n == 0) t.n = line;
    return t;
}

/* The end of "{%- raw %}" at `at`, or 0. */
static size_t raw_begin_end(const lexer *l, size_t at)
{
    size_t i = at + 2;
    if (i < l->n && (l->s[i] == '-' || l->s[i] == '+')) i++;
    i = skip_space(l, i);
    if (!starts_with(l, i, "raw")) return 0;
    return tag_end(l, skip_space(l, i + 3), "%}", false, false);
}

static status lex_data(lexer *l, token *out)
{
    size_t at = l->pos;
    while (at < l->n && !is_tag_start(l, at)) at++;
    char sign = at + 2 < l->n ? l->s[at + 2] : '\0';
    out->kind = TOKEN_DATA;
    out->text = at < l->n ? data_before(l, at, sign, l->s[at + 1] != '{')
                          : (text){l->s + l->pos, l->n - l->pos};
    advance_to(l, at);
    l->state = LEX_TAG;
    return STATUS_IS_OK;
}

static status lex_comment(lexer *l)
{
    size_t i = l->pos + 2;
    if (i < l->n && (l->s[i] == '-' || l->s[i] == '+')) i++;
    for (; i < l->n; i++) {
        size_t end = tag_end(l, i, "#}", true, true);
        if (end) {
            advance_to(l, end);
            l->state = LEX_DATA;
            return STATUS_IS_OK;
        }
    }
    return lex_fail(l->err, STATUS_CORRUPT, l->line, "missing end of comment tag");
}

static status lex_tag(lexer *l, token *out)
{
    if (l->pos >= l->n) {
        out->kind = TOKEN_EOF;
        return STATUS_IS_OK;
    }
    if (starts_with(l, l->pos, "{#")) return lex_comment(l);
    bool variable = starts_with(l, l->pos, "{{");
    size_t raw = variable ? 0 : raw_begin_end(l, l->pos);
    if (raw) {
        advance_to(l, raw);
        l->state = LEX_RAW;
        return STATUS_IS_OK;
    }
    out->kind = variable ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN;
    out->text = (text){l->s + l->pos, 2};
    l->pos += 2;
    if (peek(l, 0) == '-' || peek(l, 0) == '+') l->pos++;
    l->state = variable ? LEX_VARIABLE : LEX_BLOCK;
    l->depth = 0;
    return STATUS_IS_OK;
}

static status lex_raw(lexer *l, token *out)
{
    for (size_t at = l->pos; at < l->n; at++) {
        if (!starts_with(l, at, "{%")) continue;
        size_t i = at + 2;
        char sign = i < l->n ? l->s[i] : '\0';
        if (sign == '-' || sign == '+') i++;
        i = skip_space(l, i);
        if (!starts_with(l, i, "endraw")) continue;
        size_t end = tag_end(l, skip_space(l, i + 6), "%}", true, true);
        if (!end) continue;
        out->kind = TOKEN_DATA;
        out->text = data_before(l, at, sign, true);
        advance_to(l, end);
        l->state = LEX_DATA;
        return STATUS_IS_OK;
    }
    return lex_fail(l->err, STATUS_CORRUPT, l->line, "missing end of raw directive");
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The end of digits from `at`, which single underscores may separate. */
static size_t digits_end(const lexer *l, size_t at)
{
    while (at < l->n && is_digit(l->s[at])) {
        at++;
        if (at + 1 < l->n && l->s[at] == '_' && is_digit(l->s[at + 1])) at++;
    }
    return at;
}

static unsigned digit_value(char c)
{
    if (is_digit(c)) return (unsigned)(c - '0');
    if (c >= 'a' && c <= 'f') return (unsigned)(c - 'a') + 10;
    if (c >= 'A' && c <= 'F') return (unsigned)(c - 'A') + 10;
    return 99;
}

/* Reads a number with a fraction or exponent; false when there is none at pos. */
static bool lex_float(lexer *l, token *out)
{
    if (l->pos > 0 && l->s[l->pos - 1] == '.') return false;
    size_t end = digits_end(l, l->pos);
    bool real = false;
    if (end + 1 < l->n && l->s[end] == '.' && is_digit(l->s[end + 1])) {
        end = digits_end(l, end + 1);
        real = true;
    }
    if (end < l->n && (l->s[end] == 'e' || l->s[end] == 'E')) {
        size_t e = end + 1;
        if (e < l->n && (l->s[e] == '+' || l->s[e] == '-')) e++;
        if (e < l->n && is_digit(l->s[e])) {
            end = digits_end(l, e);
            real = true;
        }
    }
    char buffer[128];
    size_t k = 0;
    if (!real || end - l->pos >= sizeof buffer) return false;
    for (size_t i = l->pos; i < end; i++)
        if (l->s[i] != '_') buffer[k++] = l->s[i];
    buffer[k] = '\0';
    out->kind = TOKEN_FLOAT;
    if (!number_read(buffer, &out->real)) out->real = HUGE_VAL; // Python's inf
    out->text = (text){l->s + l->pos, end - l->pos};
    l->pos = end;
    return true;
}

static status lex_integer(lexer *l, token *out)
{
    size_t i = l->pos;
    unsigned base = 10;
    char prefix = (char)(peek(l, 1) | 0x20);
    bool zero = peek(l, 0) == '0';
    if (zero && (prefix == 'x' || prefix == 'o' || prefix == 'b')) {
        unsigned wanted = prefix == 'x' ? 16 : prefix == 'o' ? 8 : 2;
        size_t first = l->pos + 2 + (peek(l, 2) == '_');
        if (first < l->n && digit_value(l->s[first]) < wanted) {
            base = wanted;
            i += 2;
        }
    }
    uint64_t v = 0;
    for (; i < l->n; i++) {
        if (l->s[i] == '_' && i + 1 < l->n && digit_value(l->s[i + 1]) < base) continue;
        if (digit_value(l->s[i]) >= base || (zero && base == 10 && l->s[i] != '0')) break;
        v = v * base + digit_value(l->s[i]);
        if (v > INT64_MAX || i - l->pos > 64)
            return lex_fail(l->err, STATUS_UNSUPPORTED, l->line,
                            "an integer literal does not fit 64 bits");
    }
    out->kind = TOKEN_INTEGER;
    out->integer = (int64_t)v;
    out->text = (text){l->s + l->pos, i - l->pos};
    l->pos = i;
    return STATUS_IS_OK;
}

static status lex_string(lexer *l, token *out)
{
    char quote = l->s[l->pos];
    size_t i = l->pos + 1;
    while (i < l->n && l->s[i] != quote) i += l->s[i] == '\\' ? 2 : 1;
    if (i >= l->n) return lex_fail(l->err, STATUS_CORRUPT, l->line, "a string literal has no end");
    out->kind = TOKEN_STRING;
    RETURN_IF_ERROR(lex_unescape(l, (text){l->s + l->pos + 1, i - l->pos - 1}, &out->text));
    advance_to(l, i + 1);
    return STATUS_IS_OK;
}

/* The number of bytes of the identifier character at `at`, or 0. */
static size_t name_char(const lexer *l, size_t at)
{
    if (at >= l->n) return 0;
    char c = l->s[at];
    if ((unsigned char)c < 0x80)
        return c == '_' || is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    text one = {l->s + at, text_char_size((text){l->s, l->n}, at)};
    return text_is_class(one, CLASS_ALNUM) ? one.n : 0;
}

static status lex_bracket(lexer *l, char c)
{
    if (c == '(' || c == '[' || c == '{') {
        if (l->depth == LEX_MAX_BRACKETS)
            return lex_fail(l->err, STATUS_LIMIT, l->line, "brackets nest deeper than %d",
                            LEX_MAX_BRACKETS);
        l->brackets[l->depth++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (l->depth == 0) return lex_fail(l->err, STATUS_CORRUPT, l->line, "unexpected '%c'", c);
        if (l->brackets[--l->depth] != c)
            return lex_fail(l->err, STATUS_CORRUPT, l->line, "unexpected '%c', expected '%c'", c,
                            l->brackets[l->depth]);
    }
    return STATUS_IS_OK;
}

static status lex_operator(lexer *l, token *out)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
        if (!starts_with(l, l->pos, two[i])) continue;
        out->op = OP(two[i][0], two[i][1]);
        out->text = (text){l->s + l->pos, 2};
        l->pos += 2;
        return STATUS_IS_OK;
    }
    char c = l->s[l->pos];
    if (!strchr("+-/*%~[](){}><=.:|,;", c)) {
        text t = {l->s, l->n};
        return lex_fail(l->err, STATUS_CORRUPT, l->line, "unexpected char '%.*s'",
                        (int)text_char_size(t, l->pos), l->s + l->pos);
    }
    RETURN_IF_ERROR(lex_bracket(l, c));
    out->op = OP1(c);
    out->text = (text){l->s + l->pos, 1};
    l->pos++;
    return STATUS_IS_OK;
}

/* Reads a token inside {{ }} or {% %}. */
static status lex_code(lexer *l, token *out)
{
    bool block = l->state == LEX_BLOCK;
    advance_to(l, skip_space(l, l->pos));
    out->line = l->line;
    if (l->pos >= l->n) {
        out->kind = TOKEN_EOF;
        return STATUS_IS_OK;
    }
    if (l->depth == 0) {
        size_t end =
            block ? tag_end(l, l->pos, "%}", true, true) : tag_end(l, l->pos, "}}", false, false);
        if (end) {
            out->kind = block ? TOKEN_BLOCK_END : TOKEN_VARIABLE_END;
            out->text = (text){l->s + l->pos, 2};
            advance_to(l, end);
            l->state = LEX_DATA;
            return STATUS_IS_OK;
        }
    }
    char c = peek(l, 0);
    if (is_digit(c)) return lex_float(l, out) ? STATUS_IS_OK : lex_integer(l, out);
    size_t end = l->pos;
    for (size_t n; (n = name_char(l, end)) > 0;) end += n;
    if (end > l->pos) {
        out->kind = TOKEN_NAME;
        out->text = (text){l->s + l->pos, end - l->pos};
        l->pos = end;
        return STATUS_IS_OK;
    }
    if (c == '\'' || c == '"') return lex_string(l, out);
    out->kind = TOKEN_OPERATOR;
    return lex_operator(l, out);
}

status lex_next(lexer *l, token *out)
{
    for (;;) {
        *out = (token){.kind = TOKEN_DATA, .line = l->line};
        switch (l->state) {
        case LEX_DATA: RETURN_IF_ERROR(lex_data(l, out)); break;
        case LEX_TAG:
            RETURN_IF_ERROR(lex_tag(l, out));
            if (out->kind == TOKEN_DATA) continue; /* a comment or start of raw */
            return STATUS_IS_OK;
        case LEX_RAW: RETURN_IF_ERROR(lex_raw(l, out)); break;
        case LEX_BLOCK:
        case LEX_VARIABLE: return lex_code(l, out);
        }
        if (out->text.n > 0) return STATUS_IS_OK;
    }
}
