/* reform: requests of the method `reform`, phase by phase (docs/reform.md; private to engine/).
 *
 * What     such a request is two requests of the scheduler under one stream: a reading, whose
 *          embeddings come back with the results of its steps, and the answer, an ordinary request
 *          whose prompt is the gathered tokens. Between them a select thread gathers. A prompt that
 *          fits into retention.gather_tokens is computed whole, without the first two.
 * Owner    a stream owns its reform_run. Embeddings are memory of the store, which bounds them over
 *          all requests and keeps those of sessions for their next turn.
 * Threads  reform_create: the one that submits. reform_prepare: a tokenizer thread. reform_gather:
 *          a select thread, which alone touches the run meanwhile. The rest: the engine thread. The
 *          store has a lock.
 * Units    microseconds of the monotonic clock; embeddings are f16 [tokens, dim], row-major. */
#ifndef ENGINE_REFORM_REFORM_H
#define ENGINE_REFORM_REFORM_H

#include "engine/engine.h"
#include "engine/reform/gather.h"

#include <pthread.h>

/* ---- the store (store.c) --------------------------------------------------------------------- */

/* The embeddings of a text's first n tokens: all that a later question of a session needs. */
typedef struct reform_text {
    uint32_t n, capacity;    // tokens
    uint32_t *tokens;        // [capacity]
    uint16_t *values;        // [capacity, dim]
    retention_policy policy; // that they were read under: another one would give others
} reform_text;

/* A request's hold on its session, from its submission on: while one is held, a deletion of the
 * session reaches it. */
typedef struct reform_claim {
    uint64_t key[2];
    uint64_t owner; // whose session it is (session_owner)
    bool forgotten;
    struct reform_claim *older, *newer;
} reform_claim;

/* An owner of sessions: how many it has, and the bytes of their texts. */
typedef struct reform_owner {
    uint64_t id;
    uint32_t n;
    size_t bytes;
    struct reform_owner *next;
} reform_owner;

typedef struct reform_session {
    uint64_t key[2];
    int64_t used_us;
    uint64_t
        version; // of the record on disk that it has, or will have once that is written; 0 = none
    reform_owner *owner;
    reform_text text;
    struct reform_session *older, *newer;
} reform_session;

typedef struct reform_store {
    pthread_mutex_t lock;
    size_t of_token;   // bytes of a token: its embedding and its id
    size_t most, used; // bytes, of requests and sessions
    size_t idle;       // those of sessions
    reform_claim *claims;
    reform_owner *owners;
    uint32_t max_sessions, n_sessions;
    int64_t ttl_us; // 0 = sessions have no end
    reform_session *oldest, *newest;
    disk_records *disk; // where sessions go to that leave memory; NULL: they are lost
    uint32_t dim;
} reform_store;

void reform_store_init(reform_store *s, const engine_options *o, uint32_t head_dim);
void reform_store_destroy(reform_store *s);
/* Makes room for n tokens in *text, which holds the first of them already or none. Sessions give
 * way, those first of the owner who has most, and of them those that were not used for longest. One
 * that is not on disk yet is waited for, for REFORM_LEAVE_US at most. STATUS_QUEUE_FULL: other
 * requests have the room; STATUS_LIMIT: there will never be so much. */
status reform_store_reserve(reform_store *s, reform_text *text, uint32_t n, error *err);
/* Gives up the text's memory. */
void reform_store_release(reform_store *s, reform_text *text);
/* Begins a claim, whose key and owner are filled in. */
void reform_store_claim(reform_store *s, reform_claim *claim);
/* Takes the session's text out of the store, cut to the tokens that it shares with these. False:
 * there is none that was read under this policy, or the session was forgotten since the claim. */
bool reform_store_take(reform_store *s, const reform_claim *claim, const retention_policy *policy,
                       const uint32_t *tokens, uint32_t n, reform_text *out);
/* Reads the session's text from disk into *text, which has no tokens and room for these n: as many
 * of them as the session shares. False: there are none, of this policy. Reads a file. */
bool reform_store_recall(reform_store *s, const reform_claim *claim, const retention_policy *policy,
                         const uint32_t *tokens, uint32_t n, reform_text *text);
/* Ends the claim: keeps the text as the session's, in place of what it had, unless that has all of
 * the text and more, or the session was forgotten meanwhile. Takes the text over in any case. */
void reform_store_keep(reform_store *s, reform_claim *claim, reform_text *text);
void reform_store_forget(reform_store *s, const uint64_t key[2]);
/* Bytes taken, by requests and sessions. */
size_t reform_store_used(reform_store *s);
/* Forgets the sessions whose time has passed, and has those written to disk that nobody has used
 * for REFORM_IDLE_US. Says whether any is left for either. */
bool reform_store_tend(reform_store *s, int64_t now_us);
/* Has all sessions written to disk, and waits for that until this time. */
void reform_store_save(reform_store *s, int64_t until_us);

/* A session that is asked again soon is not written in between; one that has to leave memory at
 * once makes a tokenizer thread wait for the disk. */
#define REFORM_IDLE_US  INT64_C(10000000)
#define REFORM_LEAVE_US INT64_C(2000000)

/* The parts of the store, with its lock held. */
reform_session *reform_store_find(const reform_store *s, const uint64_t key[2]);

/* ---- the store's sessions on disk (store_disk.c) --------------------------------------------- */

/* The source of the records: the store is `ctx`. */
bool reform_disk_copy(void *ctx, const disk_key *key, uint64_t version, uint64_t at, void *to,
                      size_t n);
/* With the lock held: has the session written, unless it is on disk or on its way there. Returns
 * whether it waits to be written. */
bool reform_disk_offer(reform_store *s, reform_session *x, int64_t now_us);
disk_key reform_disk_key(const uint64_t session[2]);

/* ---- a request (run.c) ----------------------------------------------------------------------- */

typedef enum reform_phase { REFORM_READ, REFORM_GATHER, REFORM_ANSWER } reform_phase;

typedef struct reform_run {
    reform_phase phase;
    gather_fields fields;
    retention_fields shown; // what the report says of the policy
    bool report_positions;
    uint32_t question, n_question; // where the question is in the prompt
    reform_claim claim;
    bool claimed;
    const char *session_note; // what the report says of the session; NULL = nothing
    reform_text text;         // of the prompt's tokens, as far as they are read
    uint32_t *read;           // [n_read] tokens of the reading
    uint32_t n_read;
    uint32_t n_before; // so many of them are read again, for what follows them alone
    uint32_t n_rows;   // of the reading, that have come back
    uint64_t read_id;  // the reading's id in the scheduler
    sched_request reading;
    uint32_t *kept;   // [n_kept] tokens of the prompt that are computed again, ascending; NULL: all
    uint32_t *prompt; // [n_kept] their ids
    uint32_t n_kept, n_gathered; // n_gathered: of them before the question
    status gathered;             // how gathering ended
    retention_gathering report;
    double scoring_ms; // of the reading
    uint64_t pages_dropped;
    int64_t queued_us,
        answer_us;              // queued: until the reading began, -1 = not yet; answer: its begin
    int64_t gather_us;          // when gathering was asked for, then how long it took
    bool selecting;             // a select thread has the run, or will
    struct engine_stream *next; // in the queue of the select threads
} reform_run;

/* The name of the run's phase, for engine_progress. */
const char *reform_phase_name(const reform_run *run);

/* The question in the text that the prompt was made of. */
typedef struct question_place {
    bool known;
    size_t bytes, behind; // of the question; of the text behind it
} question_place;

/* Where the last user message is in the text that the template made of the messages. */
status reform_find_message(const json_t *messages, const char *text, size_t n, question_place *out,
                           error *err);

/* ---- its phases ------------------------------------------------------------------------------ */

/* Refuses a policy of reform where no heads are known; for checks before there is an engine. */
status reform_check_known(const engine_options *o, const retention_policy *policy, error *err);
/* Engine creation: refuses heads that the backend does not have, and a default policy that every
 * request would be refused for. */
status reform_start(engine *e, error *err);
void reform_stop(engine *e);
/* engine_submit: whether the request may have this policy, if that is reform's. */
status reform_check(const engine *e, const engine_request *r, const retention_policy *policy,
                    error *err);
/* engine_submit: makes the run of a stream whose policy is reform's, and claims its session. */
status reform_create(engine *e, engine_stream *s);
/* Tokenizer thread, when the prompt's tokens are known: finds the question, takes the memory for
 * embeddings, and makes s->policy that of the answer. */
status reform_prepare(engine *e, engine_stream *s, const question_place *place, error *err);
/* Once s->sched_request is filled in: makes it the answer's, and the reading's beside it. */
void reform_fill(engine *e, engine_stream *s);
/* Where the question is (question.c). */
status reform_find_question(const engine *e, const engine_stream *s, const question_place *place,
                            uint32_t *first, uint32_t *n, error *err);
/* sched_check of both requests; the sched_lock is held, or this is the engine thread. */
status reform_check_fit(engine *e, engine_stream *s, error *err);
/* Engine thread: begins the first phase under s->id. */
void reform_begin(engine *e, engine_stream *s);
/* Takes embeddings of rows. The last ones end the reading. */
void reform_take_rows(engine *e, engine_stream *s, const step_seq *share,
                      const step_seq_result *got);
/* After sched_step: what it said of the readings that ended; their gathering begins. */
void reform_end_readings(engine *e);
/* A select thread. */
void reform_gather(engine_stream *s);
/* A stream has come back from it: the answer begins, if the engine still knows the stream. */
void reform_answer(engine *e, engine_stream *s, bool known);
/* The engine forgets the stream: what was read goes to its session now, since a reader may hold the
 * stream for long. While a select thread has it, reform_answer does the same. */
void reform_forget(engine_stream *s);
/* Makes what the scheduler says of a choice, or of nothing, the report of the whole request. */
void reform_describe(const engine *e, const engine_stream *s, sched_choice_info *info);
/* Frees the stream's run. What it has read stays for its session. */
void reform_release(engine_stream *s);

#endif
