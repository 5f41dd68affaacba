/* Sources of prompts: a generated task at a length, or a user's file (private to quality/). */
#ifndef QUALITY_TASKS_SOURCES_H
#define QUALITY_TASKS_SOURCES_H

#include "quality/quality.h"
#include "quality/tasks/tasks.h"

/* A row of the results: a task at a length. */
typedef struct source {
    char name[64];
    uint32_t length;  // 0 = as long as the user's lines
    const task *task; // NULL = a user's file
    scorer_kind scorer;
    uint32_t max_new_tokens;
    bool raw;
    const char *between;
    /* The full cache's least score for the row to be compared. */
    float floor;
    bool independent;    // the questions about a document count as independent samples
    document *documents; // a user's documents, read at the start
    size_t n_documents;
} source;

typedef struct source_list {
    source *items;
    size_t n;
    haystack text;
    bool has_text;
} source_list;

status sources_create(const quality_options *o, source_list *out, error *err);
void sources_destroy(source_list *s);

/* user_data.c: appends a row for each dataset of the file to the list. */
status sources_add_file(const quality_options *o, const char *spec, const json_t *templates,
                        source_list *out, error *err);
source *sources_add(source_list *out); // a zeroed row, or NULL when memory is out

#endif
