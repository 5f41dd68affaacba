/* Searches of bytes. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include "base/status.h"

/* Finds the last place of `part` (length > 0) in the text; *at is NULL where there is none. Takes
 * time and, while it runs, memory in proportion to n + length, whatever the bytes are. */
status bytes_find_last(const char *text, size_t n, const char *part, size_t length,
                       const char **at);

#endif
