/* A document: one context, and questions about it that share it as a prefix (private to quality/).
 *
 * All of its strings lie in its arena. `failed` records that memory ran out, so that generators
 * need not check every line. */
#ifndef QUALITY_TASKS_DOCUMENT_H
#define QUALITY_TASKS_DOCUMENT_H

#include "base/base.h"

/* A list of strings in the document's arena. */
typedef struct string_list {
    const char **items;
    size_t n, capacity;
} string_list;

typedef struct question {
    const char *text;       // the prompt is the document's text and then this
    const char *query;      // the words that BM25 searches for: the question without its wording
    string_list references; // the right answers
    string_list needles;    // texts in the document that hold the answer
    float depth;            // of the first needle in the context, 0 to 1; below 0 = none
} question;

typedef struct document {
    arena memory;
    strbuf text;
    size_t context_from, context_to; // the bytes of text that BM25 may select from
    question *questions;
    size_t n_questions, question_capacity;
    string_list classes; // the classes, for a classification
    bool failed;
} document;

void document_init(document *d);
void document_destroy(document *d);
/* Copies a text into the document's arena; "" when memory is out. */
const char *document_copy(document *d, const char *text, size_t n);
const char *document_format(document *d, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void document_add(document *d, string_list *list, const char *item);
/* Adds a question; NULL when memory is out. Pointers to earlier questions become invalid. */
question *document_ask(document *d, const char *text, const char *query);
/* Bytes of the longest prompt. */
size_t document_longest(const document *d);

#endif
