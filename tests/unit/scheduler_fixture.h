/* A scheduler with a scripted backend, for scenarios whose plans are read as traces:
 *
 *   "1@0+16 2.1@40+1*"    request 1 computes 16 tokens from position 0; choice 1 of request 2
 * computes one token at 40 and samples. *3 = draws three times, m32 = measures the last 32 rows,
 * L = logits, e4 = embeddings of four heads, /1 = runs one layer, <2 = its token is the one that
 * the second share of the step before draws. */
#ifndef TESTS_UNIT_SCHEDULER_FIXTURE_H
#define TESTS_UNIT_SCHEDULER_FIXTURE_H

#include "scheduler/scheduler.h"

enum { FIXTURE_SEQS = 32, FIXTURE_EVENTS = 64, FIXTURE_SLOTS = 2048, FIXTURE_PROMPTS = 16 };

typedef struct test_heap {
    long blocks, calls;
    long fail_at; // the call that fails, -1 = none
} test_heap;

void *heap_resize(void *ctx, void *ptr, size_t size);

typedef struct fixture {
    test_heap heap;
    allocator alloc;
    sched *s;
    pkv_geometry geometry;
    int64_t now_us;
    sched_event events[FIXTURE_EVENTS];
    size_t n_events;
    const step_plan *plan; // in flight
    step_result result;
    step_seq_result seqs[FIXTURE_SEQS];
    step_sample samples[2 * FIXTURE_SEQS]; // step_most_draws
    float measures[4 * FIXTURE_SLOTS];     // two arrays of layers x KV heads = 2
    float second_more;                     // what the second half of each is larger by
    _Atomic uint32_t holders;              // of measures
    char trace[2048];
    uint32_t prompts[FIXTURE_PROMPTS][2048];
} fixture;

/* 4 sequences, chunks of 40, 2 groups, 100 blocks of 16. */
sched_options small_options(void);
fixture *begin(sched_options options);
/* Checks that the scheduler is empty and that nothing leaked. */
void finish(fixture *f);

/* A prompt that counts up from `first`, so that equal beginnings hit the prefix cache. The prompt's
 * memory stays valid until request id + FIXTURE_PROMPTS. */
sched_request request(fixture *f, uint64_t id, uint32_t first, uint32_t n_prompt, uint32_t max_new);
/* A request with chunkkv and a budget in tokens. */
sched_request retained(fixture *f, uint64_t id, uint32_t first, uint32_t n_prompt, uint32_t max_new,
                       uint32_t window, uint32_t budget);

/* A request with the policy that this JSON asks for. */
sched_request with_policy(fixture *f, uint64_t id, uint32_t first, uint32_t n_prompt,
                          uint32_t max_new, const char *json);
/* The request as a turn of session `key`. */
sched_request of_session(sched_request r, uint64_t key);

/* Adds an event for the next step. */
void post(fixture *f, sched_event event);
void add(fixture *f, const sched_request *r);
void end(fixture *f, uint64_t id, uint32_t choice);
/* Posts that the choice came to its own end. */
void finish_choice(fixture *f, uint64_t id);

/* The plan as text, valid until the next plan. */
const char *trace_of(fixture *f, const step_plan *plan);
/* Makes the result of the step in flight: page or slot i scores i, so that the last ones are kept;
 * samples are 500 + choice. */
void answer(fixture *f, status st);
/* Delivers the result of the step in flight and the posted events after it, and plans. */
const char *step(fixture *f);
/* Delivers the posted events while the step is in flight. */
void step_in_flight(fixture *f);

uint32_t used_pages(fixture *f);
sched_choice_info describe(fixture *f, uint64_t id, uint32_t choice);

#endif
