#include "cli/nearest.h"

#include <stdint.h>
#include <string.h>

enum { LETTERS_MAX = 48 };

static void skip_dashes(const char **word, size_t *n)
{
    while (*n && **word == '-') ++*word, --*n;
}

static size_t find_least(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}

/* The edit distance of words of at most LETTERS_MAX letters, where two neighbours that are swapped
 * count once (optimal string alignment). */
static size_t measure_distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    uint8_t rows[3][LETTERS_MAX + 1]; // the row before the last one, the last one, this one
    uint8_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= n_b; j++) last[j] = (uint8_t)j;
    for (size_t i = 1; i <= n_a; i++) {
        row[0] = (uint8_t)i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t cost = find_least(last[j] + 1u, row[j - 1] + 1u,
                                     last[j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1u < cost)
                cost = before[j - 2] + 1u;
            row[j] = (uint8_t)cost;
        }
        uint8_t *spare = before;
        before = last;
        last = row;
        row = spare;
    }
    return last[n_b];
}

void nearest_start(nearest *near, const char *word, size_t n)
{
    skip_dashes(&word, &n);
    *near = (nearest){.word = word, .n = n, .distance = (n < 9 ? n : 9) / 3 + 1};
    if (n < 2 || n > LETTERS_MAX) near->distance = 0;
}

void nearest_try(nearest *near, const char *name, size_t n)
{
    skip_dashes(&name, &n);
    size_t difference = n > near->n ? n - near->n : near->n - n;
    if (n < 2 || n > LETTERS_MAX || difference >= near->distance) return;
    size_t distance = measure_distance(near->word, near->n, name, n);
    if (distance >= near->distance) return;
    near->distance = distance;
    near->best = name;
    near->best_n = n;
}
