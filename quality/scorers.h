/* How an answer is judged, as the benchmarks' own code does (private to quality/). Scores are in
 * [0, 1]. */
#ifndef QUALITY_SCORERS_H
#define QUALITY_SCORERS_H

#include "quality/document.h"

enum { NUMBERED_FIRST = 9 }; // the first question that LongGenBench's form asks

typedef enum scorer_kind {
    SCORER_EXACT,         // equal but for white space around it
    SCORER_MATCH_ALL,     // RULER: share of references found anywhere, whatever their case
    SCORER_MATCH_PART,    // RULER: any of them
    SCORER_F1,            // LongBench: F1 over normalised words
    SCORER_ROUGE_L,       // LongBench: ROUGE-L as the `rouge` package has it
    SCORER_CLASS,         // LongBench: the right class, shared among those that are named
    SCORER_FIRST_LINE_F1, // LongBench's few-shot tasks look at the first line only
    SCORER_FIRST_LINE_ROUGE,
    SCORER_FIRST_LINE_CLASS,
    SCORER_RETRIEVAL,     // LongBench: share of the numbers that are the paragraph's
    SCORER_COUNT,         // LongBench: share of the numbers that are the right one
    SCORER_EDIT,          // LongBench: edit similarity of the first line of code
    SCORER_FIRST_NUMBER,  // InfiniteBench: the first number
    SCORER_CHOICE,        // InfiniteBench: the letter, or the words, of the right option
    SCORER_ANSWER_NUMBER, // GSM8K: the number behind "answer is", else the last one
    SCORER_NUMBERED,      // LongGenBench: share of "Answer_k: … answer is N" that are right
    SCORERS,
} scorer_kind;

const char *scorer_name(scorer_kind kind);
/* SCORERS when there is none of that name. */
scorer_kind scorer_find(const char *name);

/* The best over the references, except for match_all and numbered, which take all of them. Negative
 * when memory is out. */
double scorer_score(scorer_kind kind, const char *answer, const string_list *references,
                    const string_list *classes);
/* SCORER_NUMBERED: whether the i-th question (from 0) was answered rightly. */
bool scorer_numbered(const char *answer, size_t i, const char *reference);

#endif
