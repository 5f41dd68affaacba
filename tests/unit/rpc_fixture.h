/* A service over an engine whose model is scripted: the base of the tests of rpc/. */
#ifndef TESTS_UNIT_RPC_FIXTURE_H
#define TESTS_UNIT_RPC_FIXTURE_H

#include "rpc/service.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RPC_FIXTURE_SEQS = 8, RPC_FIXTURE_SCRIPT = 256, RPC_FIXTURE_MOST = 100 };

typedef struct rpc_fixture {
    backend_info info;
    uint32_t script[RPC_FIXTURE_SCRIPT]; // every choice samples these, then EOS
    uint32_t n_script;
    _Atomic bool hold; // steps wait while set
    const step_plan *plan;
    step_result result;
    step_seq_result seqs[RPC_FIXTURE_SEQS];
    step_sample samples[2 * RPC_FIXTURE_SEQS]; // step_most_draws

    backend backend;
    tokenizer *tokenizer;
    uint32_t eos;
    engine *engine;
    int log_fd; // of an unlinked file
    rpc_log *log;
    rpc_events *events;
    service service;
} rpc_fixture;

typedef struct rpc_fixture_options {
    uint32_t max_requests; // 0 = 64
    bool log_prompts;
    const char *const *keys;
    size_t n_keys;
    const char *const *admin_keys;
    size_t n_admin_keys;
    const char *model_name; // NULL = "demo"
} rpc_fixture_options;

rpc_fixture *rpc_fixture_create(const rpc_fixture_options *o);
void rpc_fixture_destroy(rpc_fixture *f);

/* The model answers with the tokens of `text`, then EOS. */
void rpc_fixture_answer(rpc_fixture *f, const char *text);
/* Makes a request from JSON fields. */
engine_request rpc_fixture_request(const char *json);
generation *rpc_fixture_start(rpc_fixture *f, const char *json, uint32_t n, const char *id);
void rpc_fixture_nap(void);
/* Waits until the engine is idle. */
void rpc_fixture_wait_idle(rpc_fixture *f);

/* The log's lines so far: an array of the parsed objects. */
json_t *rpc_fixture_log(rpc_fixture *f);

#endif
