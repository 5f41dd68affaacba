/* The known name nearest to a mistyped one, for "did you mean". Nothing is copied. */
#ifndef CLI_NEAREST_H
#define CLI_NEAREST_H

#include <stddef.h>

typedef struct nearest {
    const char *word;
    size_t n;
    const char *best; // borrowed from nearest_try; NULL = none is near
    size_t best_n, distance;
} nearest;

/* Dashes before a word do not count. */
void nearest_start(nearest *near, const char *word, size_t n);
/* Remembers the name if it is nearer than those before: at most a third of the word's letters, and
 * three, are inserted, left out, replaced or swapped with their neighbour. */
void nearest_try(nearest *near, const char *name, size_t n);

#endif
