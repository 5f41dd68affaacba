/* Scores of a token in a row of logits. All paths use this arithmetic, so that a token's logprob
 * has the same bits on each. */
#ifndef BASE_LOGITS_H
#define BASE_LOGITS_H

#include <stdint.h>

/* The index of the largest logit; the lowest one among equals; NaN never wins. n >= 1. */
uint32_t logits_argmax(const float *logits, uint32_t n);

typedef struct logit_score {
    float logprob; // log-softmax, summed in double in ascending order
    uint32_t rank; // 1 = no other logit is greater
    uint32_t n_top;
} logit_score;

/* Scores token `id` under logits [n] and lists the n_top likeliest tokens, best first, equal ones
 * by index; fewer when n is less. */
logit_score logits_score(const float *logits, uint32_t n, uint32_t id, uint32_t n_top,
                         uint32_t *top_ids, float *top_logprobs);

#endif
