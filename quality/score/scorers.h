/* Scorers of answers, as in the benchmarks' own code (private to quality/). Scores are in [0,
 * 1]. */
#ifndef QUALITY_SCORE_SCORERS_H
#define QUALITY_SCORE_SCORERS_H

#include "quality/tasks/document.h"

enum { NUMBERED_FIRST = 9 }; // the first question that LongGenBench's form asks

typedef enum scorer_kind {
    SCORER_EXACT,         // equal but for white space around it
    SCORER_MATCH_ALL,     // RULER: share of references found anywhere, whatever their case
    SCORER_MATCH_PART,    // RULER: 1 if any reference is found
    SCORER_F1,            // LongBench: F1 over normalised words
    SCORER_ROUGE_L,       // LongBench: ROUGE-L as in the `rouge` package
    SCORER_CLASS,         // LongBench: the right class, shared among the classes that are named
    SCORER_FIRST_LINE_F1, // LongBench, few-shot tasks: F1 of the first line alone
    SCORER_FIRST_LINE_ROUGE,
    SCORER_FIRST_LINE_CLASS,
    SCORER_RETRIEVAL,     // LongBench: share of the answer's numbers that name the paragraph
    SCORER_COUNT,         // LongBench: share of the answer's numbers that are right
    SCORER_EDIT,          // LongBench: edit similarity of the first line of code
    SCORER_FIRST_NUMBER,  // InfiniteBench: the first number
    SCORER_CHOICE,        // InfiniteBench: the letter, or the words, of the right option
    SCORER_ANSWER_NUMBER, // GSM8K: the number behind "answer is", else the last one
    SCORER_NUMBERED,      // LongGenBench: share of "Answer_k: … answer is N" that are right
    SCORERS,
} scorer_kind;

const char *scorer_name(scorer_kind kind);

/* The best score over the references, except for match_all and numbered, which use all of them.
 * Negative when memory is out. */
double scorer_score(scorer_kind kind, const char *answer, const string_list *references,
                    const string_list *classes);
/* For SCORER_NUMBERED: whether question i (from 0) was answered right. */
bool scorer_numbered(const char *answer, size_t i, const char *reference);

#endif
