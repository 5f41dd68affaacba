/* The table of generated tasks (private to quality/). A family of tasks is a file with rows of its
 * own. */
#ifndef QUALITY_TASKS_TASKS_H
#define QUALITY_TASKS_TASKS_H

#include "quality/score/scorers.h"
#include "quality/tasks/document.h"
#include "quality/tasks/haystack.h"

/* The input of a generator. */
typedef struct task_context {
    const haystack *text;   // NULL = noise lines
    uint32_t max_questions; // at most, about one document
    uint32_t target_tokens; // the length asked for; some wordings depend on it
} task_context;

typedef struct task task;

/* Writes a document of `size` units (lines, pairs, words …) and asks its questions. */
typedef void (*task_make)(const task *t, const task_context *ctx, rng *r, uint32_t size,
                          document *out);

struct task {
    const char *name, *summary;
    task_make make;
    const void *shape; // the family's own parameters
    scorer_kind scorer;
    uint32_t max_new_tokens;
    bool raw; // written in its model's own special tokens, so never put in a chat template
    const char *between; // text between an answer and the next question; NULL = one turn only
    uint32_t least_size; // fewest units with which the task makes sense
};

typedef struct task_family {
    const task *tasks;
    size_t n;
} task_family;

extern const task_family family_niah, family_tracking, family_words, family_infinite,
    family_arithmetic, family_demo;

/* The i-th task of all families, or NULL. */
const task *task_at(size_t i);
const task *task_find(const char *name, size_t n);

/* Counts the tokens of a prompt. */
typedef status (*count_tokens)(void *ctx, const char *text, size_t n, uint32_t *tokens, error *err);

/* Makes the largest document whose longest prompt, with the task's new tokens, fits into
 * ctx->target_tokens. The same seed gives the same document. */
status task_fit(const task *t, const task_context *ctx, uint64_t seed, count_tokens count,
                void *count_ctx, document *out, error *err);

#endif
