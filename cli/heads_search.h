/* How well each head finds the facts of samples (docs/reform.md, section 5). */
#ifndef CLI_HEADS_SEARCH_H
#define CLI_HEADS_SEARCH_H

#include "cli/heads_tasks.h"
#include "cli/model_open.h"
#include "cli/steps.h"

/* One head of the model and its mean normalised rank in each task: 0 is best, 0.5 is chance. */
typedef struct heads_score {
    embed_head head;
    double mnr[HEADS_TASKS];
} heads_score;

typedef struct heads_search {
    loaded_model *model; // borrowed
    steps steps;
    retention_policy policy; // by which samples are read
    heads_score *scores;     // [n]
    uint32_t n, dim;
    uint32_t n_samples[HEADS_TASKS];
    embed_head *heads; // [n] the heads of scores
    uint32_t at_once;  // heads embedded in one pass
    uint64_t next_id;
    /* Scratch of a sample: [tokens, heads at once, dim], and for one head. */
    uint16_t *values, *context, *question;
    float *found, *smooth;
    uint64_t *order;
    size_t capacity; // tokens
} heads_search;

/* retention: by which samples are read, chunk by chunk. max_tokens: of a sample. */
status heads_search_open(loaded_model *m, const json_t *retention, uint32_t max_tokens,
                         heads_search *out, error *err);
void heads_search_close(heads_search *h);
/* Reads a sample and adds each head's rank to its mean. */
status heads_search_add(heads_search *h, heads_task task, const heads_sample *sample, error *err);

/* The mean rank of the gold tokens among n, divided by n, where `found` says how well each token
 * matches: mean-pooled over 20 tokens first, into smooth [n]. order [n] is scratch. */
double heads_rank(const float *found, const bool *gold, uint32_t n, float *smooth, uint64_t *order);

enum { HEADS_OF_TASK = 2, HEADS_CHOSEN = HEADS_OF_TASK * HEADS_TASKS };

typedef struct heads_choice {
    uint32_t scores[HEADS_CHOSEN]; // indices into scores
    heads_task tasks[HEADS_CHOSEN];
    uint32_t n;
} heads_choice;

/* The two best heads of each task, no head twice. Those of the pattern task are in layers below
 * 70 % of the depth, so that few layers are run. Among equals the earlier one of scores. */
heads_choice heads_choose(const heads_score *scores, uint32_t n, uint32_t n_layers);

#endif
