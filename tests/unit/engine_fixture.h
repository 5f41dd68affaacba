/* An engine over a scripted backend and the demo tokenizer. The model's answers are written by the
 * test; its steps can be held, fail, or hang until the backend is told to give up. */
#ifndef TESTS_UNIT_ENGINE_FIXTURE_H
#define TESTS_UNIT_ENGINE_FIXTURE_H

#include "engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_SEQS = 8, MAX_ROWS = 128, SCRIPT_MAX = 4096, VOCAB = 1024 + 16 /* padded */ };

typedef struct scripted {
    backend_info info;
    uint32_t
        script[SCRIPT_MAX]; /* the token every choice samples at each index; the last one repeats */
    uint32_t n_script;
    _Atomic uint32_t steps;
    _Atomic uint32_t fail_at; /* this step fails; 0 = none */
    status failure;
    _Atomic bool refuse;      /* no step is taken while another is in flight */
    _Atomic uint32_t refused; /* the last that was not */
    _Atomic uint32_t lie_at;  /* this step lies about its tables; 0 = none */
    _Atomic bool hold;        /* steps wait while it is set */
    _Atomic uint32_t hold_at; /* this step sets it; 0 = none */
    _Atomic bool hang;    /* the next step of a sequence waits until it is interrupted, then while
                             `hold` */
    _Atomic bool hanging; /* it does */
    _Atomic bool collecting; /* a step is waited for */
    _Atomic uint32_t interrupts;
    const step_plan *plans[2]; /* in flight, the oldest first */
    uint32_t n_plans, most_plans;
    const step_plan *plan; /* that is collected */
    step_result result;
    step_seq_result seqs[MAX_SEQS];
    step_sample samples[2 * MAX_SEQS]; /* step_most_draws */
    float logits[VOCAB];               /* of a row that is scored */
    step_sample scores[MAX_ROWS];
    float masses[2 * 2 * (2048 / 16)]; /* zero: every page scores the same */
} scripted;

/* The logit of token `next` after `token` at `position`. */
float scripted_logit(uint32_t token, uint32_t position, uint32_t next);

typedef struct fixture {
    scripted model;
    backend backend;
    tokenizer *tokenizer;
    chat_template *chat;
    allocator alloc;
    _Atomic bool no_memory; /* for what the engine and its scheduler allocate */
    _Atomic long fail_in; /* so many of their allocations succeed, the next one fails; < 0 = none */
    engine_options options; /* what the engine was made with */
    engine *engine;
    uint32_t eos;
} fixture;

/* How many steps the next fixture's backend takes at once: 1 at first. */
extern uint32_t fixture_in_flight;
/* A fixture whose engine has not been made; start makes it by f->options. */
fixture *fixture_create(void);
void fixture_start(fixture *f);
int fixture_teardown(void **state);

/* A fifth of a millisecond. */
void nap(void);
/* The model answers with the tokens of `text`, then EOS. */
void answer(fixture *f, const char *text);
engine_request request(const char *json);
engine_stream *submit(fixture *f, const char *json);

/* A stream read to its end: the text of choice 0 and its last output. */
typedef struct reading {
    char text[8192];
    size_t bytes;
    uint32_t tokens, ends;
    engine_finish finish;
    status_code error_code;
    char error_text[512];
    char stop_string[64];
    int64_t stop_token;
    engine_usage usage;
} reading;

/* Does not release it. */
reading read_stream(engine_stream *s);
/* Does. */
reading read_all(engine_stream *s);
/* The request is refused at once, or ends with an error; the text names `word`. */
status_code expect_refused(fixture *f, const char *json, const char *word);

#endif
