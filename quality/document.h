/* A document: one context, and questions about it that share it as a prefix (private to quality/).
 *
 * All of its strings lie in its arena. Out of memory is remembered in `failed`, so that generators
 * need not check every line. */
#ifndef QUALITY_DOCUMENT_H
#define QUALITY_DOCUMENT_H

#include "base/base.h"

/* A list of strings in the document's arena. */
typedef struct string_list {
    const char **items;
    size_t n, capacity;
} string_list;

typedef struct question {
    const char *text;       // the document's text and this are the prompt
    const char *query;      // what is asked for, without wording: what BM25 looks for
    string_list references; // right answers
    string_list needles;    // texts in the document that hold the answer
    float depth;            // of the first needle in the context, 0 to 1; below 0 = none
} question;

typedef struct document {
    arena memory;
    strbuf text;
    size_t context_from, context_to; // bytes of text that BM25 may choose from
    question *questions;
    size_t n_questions, question_capacity;
    string_list classes; // of a classification
    bool failed;
} document;

void document_init(document *d);
void document_destroy(document *d);
/* A copy in the document's memory; "" when memory is out. */
const char *document_copy(document *d, const char *text, size_t n);
const char *document_format(document *d, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void document_add(document *d, string_list *list, const char *item);
/* A new question, or NULL when memory is out. Pointers to earlier ones end their life. */
question *document_ask(document *d, const char *text, const char *query);
/* The bytes of the longest prompt. */
size_t document_longest(const document *d);

#endif
