/* Overlaps of words and bytes (private to quality/). All are in [0, 1], or negative when memory is
 * out. */
#ifndef QUALITY_WORD_SCORES_H
#define QUALITY_WORD_SCORES_H

#include <stddef.h>

/* Lower case, without punctuation and articles; words counted as often as both have them. */
double word_f1(const char *answer, size_t n, const char *reference);
/* ROUGE-L of summaries, as the `rouge` package computes it: sentences end at ".", words count
 * once, F leans to recall by precision / recall. */
double word_rouge_l(const char *answer, size_t n, const char *reference);
/* 2 * longest common subsequence / (n_a + n_b). */
double byte_similarity(const char *a, size_t n_a, const char *b, size_t n_b);

#endif
