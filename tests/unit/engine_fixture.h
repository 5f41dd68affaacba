/* An engine over a scripted backend and the demo tokenizer. The test scripts the model's answers;
 * steps can be held, fail, or hang until the backend is interrupted. */
#ifndef TESTS_UNIT_ENGINE_FIXTURE_H
#define TESTS_UNIT_ENGINE_FIXTURE_H

#include "engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    MAX_SEQS = 8,
    MAX_ROWS = 128,
    LAYERS_MAX = 64,
    SCRIPT_MAX = 4096,
    EMBED_DIM = 8,
    HIDDEN = 3,
    VOCAB = 1024 + 16, /* padded */
    UNDEFINED = 1039,  /* a token behind which logits and hidden states are NaN */
};

typedef struct scripted {
    backend_info info;
    uint32_t
        script[SCRIPT_MAX]; /* the token every choice samples at each index; the last one repeats */
    uint32_t n_script;
    _Atomic uint32_t steps;    /* with rows: others follow a request's end, which readers know of */
    _Atomic uint32_t fail_at;  /* this step fails; 0 = none */
    _Atomic bool fail_behind;  /* and the step after it */
    _Atomic bool fail_reading; /* the next step that embeds rows fails */
    status failure;
    _Atomic bool refuse;      /* steps are refused while another is in flight */
    _Atomic uint32_t refused; /* number of the last step that was refused */
    _Atomic uint32_t lie_at;  /* this step reports wrong checksums of its tables; 0 = none */
    _Atomic bool hold;        /* steps with rows wait while it is set */
    _Atomic uint32_t hold_at; /* this step sets it; 0 = none */
    _Atomic bool hang;        /* the next step with rows waits to be interrupted; see `hold` */
    _Atomic bool hang_submit; /* the next submit waits to be interrupted */
    _Atomic bool hanging;     /* a step hangs */
    _Atomic bool collecting;  /* a step with rows is being collected, or one hangs */
    _Atomic uint32_t interrupts;
    _Atomic bool gone;                    /* the test's restart lost the backend for good */
    _Atomic uint32_t writes, late_writes; /* blocks written, before and after that */
    _Atomic uint32_t reads;               /* calls that read blocks */
    _Atomic bool unreadable, unwritable;  /* a rank that has a part of them cannot be reached */
    _Atomic uint32_t faults;              /* so many first tokens from now on are undefined */
    const step_plan *plans[2];            /* in flight, the oldest first */
    uint32_t n_plans, most_plans;
    const step_plan *plan; /* being collected */
    step_result result;
    step_seq_result seqs[MAX_SEQS];
    step_sample samples[2 * MAX_SEQS]; /* step_most_draws */
    float logits[VOCAB];               /* of a scored row */
    step_sample scores[MAX_ROWS];
    uint16_t embeddings[MAX_ROWS * 2 * EMBED_DIM]; /* see scripted_embed */
    float pooled[MAX_SEQS][HIDDEN];                /* see scripted_state */
    _Atomic uint32_t embedded;                     /* rows */
    uint32_t drawn[SCRIPT_MAX], n_drawn;           /* tokens of the shares that drew last */
    float masses[LAYERS_MAX * 2 * (2048 / 16)];    /* zero: every page scores the same */
    _Atomic uint32_t holders;                      /* of masses */
} scripted;

/* A row's last hidden state: its token, its position and 1, or NaN. */
void scripted_state(uint32_t token, uint32_t position, float out[HIDDEN]);
/* A row's embedding [2 heads, EMBED_DIM]: each part is the unit vector of number token % EMBED_DIM.
 * So tokens of equal remainder are alike, and others are not at all. */
void scripted_embed(uint32_t token, uint16_t *out);
/* The logit of token `next` after `token` at `position`. */
float scripted_logit(uint32_t token, uint32_t position, uint32_t next);

typedef struct fixture {
    scripted model;
    backend backend;
    tokenizer *tokenizer;
    chat_template *chat;
    allocator alloc;
    _Atomic bool no_memory; /* allocations of the engine and its scheduler fail */
    _Atomic long fail_in;   /* allocations left before one fails; < 0 = none fails */
    engine_options options; /* the engine was made with these */
    engine *engine;
    uint32_t eos;
} fixture;

/* Steps in flight that the next fixture's backend takes: 1 at first. */
extern uint32_t fixture_in_flight;
/* A fixture without an engine; start makes the engine from f->options. */
fixture *fixture_create(void);
void fixture_start(fixture *f);
int fixture_teardown(void **state);

/* Sleeps for 200 microseconds. */
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

/* Does not release the stream. */
reading read_stream(engine_stream *s);
/* Reads the stream and releases it. */
reading read_all(engine_stream *s);
/* Expects that the request is refused at once or ends with an error whose text names `word`. */
status_code expect_refused(fixture *f, const char *json, const char *word);

#endif
