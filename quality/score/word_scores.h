/* Overlap of words and bytes (private to quality/). Scores are in [0, 1]; negative when memory is
 * out. */
#ifndef QUALITY_SCORE_WORD_SCORES_H
#define QUALITY_SCORE_WORD_SCORES_H

#include <stddef.h>

/* F1 over words in lower case, without punctuation and articles; a word counts as often as both
 * texts have it. */
double word_f1(const char *answer, size_t n, const char *reference);
/* ROUGE-L of summaries, as in the `rouge` package: sentences end at ".", words count once, and F
 * weights recall by precision / recall. */
double word_rouge_l(const char *answer, size_t n, const char *reference);
/* 2 * longest common subsequence / (n_a + n_b). */
double byte_similarity(const char *a, size_t n_a, const char *b, size_t n_b);

#endif
