/* Workers in this process, whose ranks are CPU backends of the demo model, and a coordinator's
 * group of these workers. */
#ifndef TESTS_UNIT_RPC_WORKER_FIXTURE_H
#define TESTS_UNIT_RPC_WORKER_FIXTURE_H

#include "model/model.h"
#include "rpc/worker.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SITE_RANKS = 2, SITE_SEQS = 4, SITE_ROWS = 64, SITE_FINGERPRINT = 4711 };
#define SITE_VERSION "0.0.1-test"
#define SITE_LONG    INT64_C(300000000) /* microseconds: longer than any machine takes */

struct site;

/* A worker, and its rank, which stands between the server and its CPU backend. A rank that is ahead
 * takes two steps, as a GPU does: what is submitted is computed when it is collected. */
typedef struct site_rank {
    struct site *site;
    uint32_t index;
    worker_server *server;
    char address[128];
    comm *comm;
    backend inner;
    backend_info info;
    _Atomic uint32_t sessions, resets, reads; // reads: calls of read_cells
    _Atomic bool hold_configure; // the next configure waits until the session is aborted
    _Atomic bool hold;           // the next step waits until it is interrupted
    _Atomic bool hold_submit;    // the next submit likewise, which is then fine
    _Atomic bool holding;        // a step waits so
    _Atomic bool interrupted;
    _Atomic bool fails;   // the next step fails, once the others hold what they are to hold
    step_end end;         // of that step; where the rank does not end it alone, it has computed it
    _Atomic bool refuses; // the next submit of a second step fails
    step_result failure;
    bool ahead;
    const step_plan *plans[2];         // of a rank that is ahead: in flight
    uint64_t n_submitted, n_collected; // steps of it
    uint32_t drawn[SITE_SEQS];         // by the shares of the step that it has collected last
    char events[256];         // "S1 S2 C1": steps that were submitted, and whose collecting began
    _Atomic uint32_t n_asked; // how often the comm's wait was read
    pthread_mutex_t lock;
    bool waits;        // the comm reports how it waits:
    comm_wait wait;    // this wait,
    int64_t longer_us; // longer by this much at every reading
    char log[4096];    // lines that the server logged
} site_rank;

typedef struct site {
    uint32_t n;
    model_config model;
    worker_config config;
    worker_tls tls; // of the workers
    int64_t silence_us, patience_us;
    size_t part_bytes; // of both sides
    site_rank ranks[SITE_RANKS];
    const char *addresses[SITE_RANKS];
    worker_group_options options; // of the group
    worker_group *group;
    backend made; // by site_make, until it is destroyed; ops NULL = none
    pthread_mutex_t lock;
    comm_group *comms; // of this session's ranks
    uint32_t n_comms;
} site;

/* Options may be changed before site_start. */
site *site_create(uint32_t n);
/* Starts the workers that are not running, on `unix` sockets or any free port, and makes the
 * group. */
void site_start(site *s, bool on_unix);
void site_start_worker(site *s, uint32_t rank, const char *address);
/* One backend at a time. A test that fails may leave it behind; then site_destroy ends the program,
 * since a group cannot be destroyed while its ranks live, and the ranks use memory of the test's
 * stack. */
status site_make(site *s, backend *out, error *err);
/* site_make, but fails the test on an error. */
backend site_make_sure(site *s);
/* Calls site_make on a thread of its own; arg is a making. The making must fail: its backend is
 * returned to no caller. */
typedef struct making {
    site *site;
    status status;
    error why;
} making;
void *make_ranks(void *arg);
void site_destroy(site *s);
/* The same ranks as threads. */
backend site_local(site *s);
/* Waits until a worker has logged the line. This wait and the next two fail the test after a
 * minute. */
void site_await(site_rank *r, const char *line);
/* Waits until the rank's backend has been called so, and not otherwise, since it was loaded. */
void site_await_events(site_rank *r, const char *events);
/* Waits until the host or the backend of the rank is held; it stays so until interrupted. */
void site_await_held(site_rank *r);
void site_nap(void);

/* The bytes of a few steps, prefill and decode: tokens, logprobs, logits, measures, readings,
 * embeddings. */
typedef struct site_pass {
    pkv *kv;
    uint32_t step, length, token;
    step_seq seq;
    uint32_t tokens[64];
    sample_params params;
    step_open open;
    step_plan plan;
    retrieval_spec retrieval; // by which the generated tokens read
    embed_head embeds[3];     // of every row
    uint32_t head_dim, hidden;
} site_pass;

void pass_begin(site_pass *p, const backend *b);
/* The next step's plan. */
const step_plan *pass_plan(site_pass *p);
void pass_take(site_pass *p, const step_result *r, uint32_t vocab, strbuf *out);
void pass_end(site_pass *p);
/* Runs every step. Fails the test when a step fails. retrieval: NULL = all rows read everything. */
void pass_run(const backend *b, const retrieval_spec *retrieval, strbuf *out);

#endif
