/* Documents and their strings. */
#include "quality/tasks/document.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void document_init(document *d)
{
    *d = (document){0};
    arena_init(&d->memory, 4096, 0);
}

void document_destroy(document *d)
{
    arena_destroy(&d->memory);
    strbuf_destroy(&d->text);
    *d = (document){0};
}

const char *document_copy(document *d, const char *text, size_t n)
{
    const char *copy = arena_strndup(&d->memory, text, n);
    if (copy) return copy;
    d->failed = true;
    return "";
}

const char *document_format(document *d, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *out = n < 0 ? NULL : arena_alloc(&d->memory, (size_t)n + 1);
    if (out) vsnprintf(out, (size_t)n + 1, format, again);
    va_end(again);
    if (out) return out;
    d->failed = true;
    return "";
}

void document_add(document *d, string_list *list, const char *item)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 4;
        const char **grown = arena_alloc_array(&d->memory, capacity, sizeof *grown);
        if (!grown) {
            d->failed = true;
            return;
        }
        if (list->n) memcpy(grown, list->items, list->n * sizeof *grown);
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->n++] = item;
}

question *document_ask(document *d, const char *text, const char *query)
{
    if (d->n_questions == d->question_capacity) {
        size_t capacity = d->question_capacity ? 2 * d->question_capacity : 4;
        question *grown = arena_alloc_array(&d->memory, capacity, sizeof *grown);
        if (!grown) {
            d->failed = true;
            return NULL;
        }
        if (d->n_questions) memcpy(grown, d->questions, d->n_questions * sizeof *grown);
        d->questions = grown;
        d->question_capacity = capacity;
    }
    question *q = &d->questions[d->n_questions++];
    *q = (question){.text = text, .query = query, .depth = -1};
    return q;
}

size_t document_longest(const document *d)
{
    size_t most = 0;
    for (size_t i = 0; i < d->n_questions; i++) {
        size_t n = strlen(d->questions[i].text);
        if (n > most) most = n;
    }
    return d->text.size + most;
}
