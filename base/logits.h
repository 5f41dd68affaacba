/* Scores of a token in a row of logits. All paths use this arithmetic, so that a token's logprob
 * has the same bits on each, also where several ranks have a part of the row each: no number here
 * depends on the order in which the row is read. */
#ifndef BASE_LOGITS_H
#define BASE_LOGITS_H

#include <stdbool.h>
#include <stdint.h>

/* The index of the largest logit; the lowest one among equals; NaN never wins, and the last one of
 * a row of nothing else is taken. n >= 1. */
uint32_t logits_argmax(const float *logits, uint32_t n);
/* What one pass over a row of logits finds: the index of the largest logit, that logit, and whether
 * any logit is NaN. */
typedef struct logits_peak {
    uint32_t index;
    float value; // -inf where every logit is NaN
    bool is_nan;
} logits_peak;
logits_peak logits_find_peak(const float *logits, uint32_t n);
/* Whether a row has a softmax: its largest logit is finite, and none is NaN. */
bool logits_are_defined(float largest, bool is_nan);
/* The largest logit that is not NaN, -inf where there is none. */
float logits_largest(const float *logits, uint32_t n);

/* exp(logit - max) in units of 2^-39, to the nearest one, where max is the row's largest logit. The
 * sum over a row of 2^24 logits fits, and is exact in any order. 0 where the difference is NaN. */
uint64_t logits_share(float logit, float max);
/* The sum of these over the logits [n] that are at or above `floor`. */
uint64_t logits_shares(const float *logits, uint32_t n, float max, float floor);
/* How many of logits [n] are greater. */
uint32_t logits_greater(const float *logits, uint32_t n, float than);
/* Lists the n_top largest, best first, equal ones by index, NaN last. Returns how many there are:
 * fewer than n_top when n is less. */
uint32_t logits_top(const float *logits, uint32_t n, uint32_t n_top, uint32_t *top_ids);
/* Whether `a` comes before b in such a list, whatever their indices. */
bool logits_before(float a, float b);

/* A row's exponentials, or those of a part of it. */
typedef struct logits_sum {
    uint64_t shares;
    bool is_nan; // there is no sum: a logit is NaN, or max is not finite
} logits_sum;
logits_sum logits_add_up(const float *logits, uint32_t n, float max);
/* log-softmax of a logit in the row whose largest logit and sum these are. */
float logits_logprob(float logit, float max, logits_sum sum);

typedef struct logit_score {
    float logprob; // log-softmax
    uint32_t rank; // 1 = no other logit is greater
    uint32_t n_top;
} logit_score;

/* Scores token `id` under logits [n] and lists the n_top likeliest tokens (logits_top). */
logit_score logits_score(const float *logits, uint32_t n, uint32_t id, uint32_t n_top,
                         uint32_t *top_ids, float *top_logprobs);

#endif
