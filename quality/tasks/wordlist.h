/* Word lists (private to quality/): no two entries of a list are equal. */
#ifndef QUALITY_TASKS_WORDLIST_H
#define QUALITY_TASKS_WORDLIST_H

#include <stddef.h>

extern const char *const wordlist_nouns[], *const wordlist_adjectives[];
size_t wordlist_n_nouns(void);
size_t wordlist_n_adjectives(void);
/* Single capitalised words, none inside another: keys of needles, actors of word problems. */
extern const char *const wordlist_names[];
size_t wordlist_n_names(void);

#endif
