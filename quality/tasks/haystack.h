/* The haystacks in which needles are hidden, noise or the lines of a text, and random words, names
 * and numbers (private to quality/). */
#ifndef QUALITY_TASKS_HAYSTACK_H
#define QUALITY_TASKS_HAYSTACK_H

#include "quality/tasks/document.h"

extern const char haystack_noise[]; // the line of noise that RULER repeats

/* The lines of a text file, without blank ones. */
typedef struct haystack {
    char *text;
    const char **lines;
    size_t n_lines;
} haystack;

status haystack_load(const char *path, haystack *out, error *err);
void haystack_destroy(haystack *h);

/* A line to hide in front of line `slot` of the haystack. */
typedef struct hidden {
    const char *line;
    uint32_t slot; // 0 … the number of lines
} hidden;

/* Appends n lines of `from` (NULL: noise), each ended by a newline, with the hidden ones among
 * them; equal slots keep their order. */
void haystack_write(document *d, const haystack *from, rng *r, uint32_t n, const hidden *hide,
                    size_t n_hide);
/* Draws random slots in [0, n], ascending when asked for. */
void haystack_slots(rng *r, uint32_t n, hidden *hide, size_t n_hide, bool ascending);

/* Random strings in the document's arena. */
const char *random_digits(document *d, rng *r, uint32_t n);
const char *random_number(document *d, rng *r, uint32_t digits); // no leading zero
const char *random_letters(document *d, rng *r, uint32_t n, char first);
const char *random_uuid(document *d, rng *r);
const char *random_word(document *d, rng *r); // adjective-noun
/* Fills out[n] with different words; the same seed gives the same words. */
void random_vocabulary(document *d, rng *r, const char **out, size_t n);
void shuffle_strings(rng *r, const char **items, size_t n);

#endif
