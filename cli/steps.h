/* A scheduler and a backend, driven step by step without an engine, for score and bench, which need
 * logits and times instead of text. */
#ifndef CLI_STEPS_H
#define CLI_STEPS_H

#include "cli/model_open.h"

typedef struct steps {
    backend *backend; // borrowed
    sched *sched;
    const step_plan *plan;
    const step_result *result; // the result of `plan`; NULL when the plan was empty
    int64_t schedule_us;       // time in sched_step during the last call
} steps;

/* max_model_len: most tokens in the prompt and output of a request. */
status steps_create(loaded_model *m, uint32_t max_model_len, bool prefix_cache, steps *out,
                    error *err);
void steps_destroy(steps *s);
/* Gives the last result and `events` to the scheduler, and runs its next plan. */
status steps_next(steps *s, const sched_event *events, size_t n_events, error *err);
/* Runs steps until nothing is left to do. */
status steps_drain(steps *s, error *err);

#endif
