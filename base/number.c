#include "base/number.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t count_digits(const char *text) { return strspn(text, "0123456789"); }

/* The end of the exponent that begins at `at`; `at` itself where none does. */
static const char *skip_exponent(const char *at)
{
    if (*at != 'e' && *at != 'E') return at;
    const char *digits = at + 1 + (at[1] == '+' || at[1] == '-');
    size_t n = count_digits(digits);
    return n ? digits + n : at;
}

const char *number_read(const char *text, double *out)
{
    const char *at = text + (*text == '+' || *text == '-');
    size_t whole = count_digits(at), fraction = 0;
    at += whole;
    if (whole == 1 && at[-1] == '0' && (*at == 'x' || *at == 'X')) return NULL;
    if (*at == '.') {
        fraction = count_digits(at + 1);
        at += 1 + fraction;
    }
    if (whole + fraction == 0) return NULL;
    /* The C library returns its own "C" locale, which is not to be freed, without making one. */
    double value = strtod_l(text, NULL, newlocale(LC_ALL_MASK, "C", (locale_t)0));
    if (!isfinite(value)) return NULL;
    *out = value;
    return skip_exponent(at);
}

const char *number_read_whole(const char *text, uint64_t *out)
{
    size_t digits = count_digits(text);
    errno = 0;
    unsigned long long value = strtoull(text, NULL, 10);
    if (digits == 0 || errno) return NULL;
    *out = value;
    return text + digits;
}
