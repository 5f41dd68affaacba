/* What a row of logits says about one token: the one place of this arithmetic, so that a token's
 * logprob has the same bits on every path. */
#ifndef BASE_LOGITS_H
#define BASE_LOGITS_H

#include <stdint.h>

/* The largest; equal ones: the lowest index; NaN never wins. n >= 1. */
uint32_t logits_argmax(const float *logits, uint32_t n);

typedef struct logit_score {
    float logprob; // log-softmax, summed in double in ascending order
    uint32_t rank; // 1 = no other is greater
    uint32_t n_top;
} logit_score;

/* Token `id` under logits [n], and the n_top likeliest, best first, equal ones by index; fewer when
 * n is less. */
logit_score logits_score(const float *logits, uint32_t n, uint32_t id, uint32_t n_top,
                         uint32_t *top_ids, float *top_logprobs);

#endif
