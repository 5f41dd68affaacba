/* The synthetic retrieval tasks of `octavo heads` (docs/reform.md, section 5). */
#ifndef CLI_HEADS_TASKS_H
#define CLI_HEADS_TASKS_H

#include "base/base.h"
#include "text/tokenizer.h"

typedef enum heads_task { HEADS_PATTERN, HEADS_MULTI_HOP, HEADS_TASKS } heads_task;

const char *heads_task_name(heads_task task);

/* A text with facts hidden in it, and a question about one of them behind it. */
typedef struct heads_sample {
    tok_ids ids;
    bool *gold; // [n_context] tokens of the facts that the answer needs
    uint32_t n_context, n_gold;
    uint32_t capacity; // of gold
} heads_sample;

/* Makes a sample of about n_tokens tokens. lines [n_lines]: what the facts are hidden in, in a row
 * from a random one on; n_lines 0: sentences of random words. The sample's memory is used again. */
status heads_sample_make(heads_task task, const tokenizer *t, uint32_t n_tokens, rng *r,
                         const char *const *lines, size_t n_lines, heads_sample *out, error *err);
void heads_sample_destroy(heads_sample *s);

#endif
