#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

static void reverse(const char *from, size_t n, char *to)
{
    for (size_t i = 0; i < n; i++) to[i] = from[n - 1 - i];
}

/* The first place in the reversed text: memmem takes linear time, but asked again behind each place
 * that it finds, as in a text of one letter, it would take quadratic time. */
status bytes_find_last(const char *text, size_t n, const char *part, size_t length, const char **at)
{
    *at = NULL;
    if (length > n) return STATUS_IS_OK;
    char *reversed = malloc(n + length);
    if (!reversed) return status_make(STATUS_NO_MEMORY, NULL);
    reverse(text, n, reversed);
    reverse(part, length, reversed + n);
    const char *hit = memmem(reversed, n, reversed + n, length);
    if (hit) *at = text + (n - length - (size_t)(hit - reversed));
    free(reversed);
    return STATUS_IS_OK;
}
