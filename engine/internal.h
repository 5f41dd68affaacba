/* Shared by the engine's files (private to engine/).
 *
 *   any thread         engine_submit: checks, copies, counts; the stream goes to the tokenizers
 *   tokenizer threads  prepare.c: template, tokens, sched_check; then the inbox
 *   engine thread      loop.c: inbox -> events -> sched_step -> backend -> choices; tell.c: streams
 *   select threads     select.c: selections of retention that are long
 *   watchdog thread    watch.c: sleeps, unless a step is stuck
 *   reader             stream.c: reads the ring
 *
 * reform/ makes two requests of the scheduler of a stream of method `reform`: reading and answer.
 *
 * retention.c resolves a request's retention policy, its own or the engine's default; session.c
 * makes the key of the session that it continues, recall.c keeps sessions on disk. stream.h has
 * the streams, queues.h what threads hand to each other, and this header the engine itself.
 *
 * The engine thread owns each stream that the scheduler knows, except during its calls into the
 * backend. Then the holder of watch.lock owns the stream: the watchdog, to fail it, or the engine
 * thread when it returns (watch.c).
 *
 * A GPU would wait while tokens become text, so the loop submits first and tells after: a result's
 * tokens end their choices, the next step is planned and submitted, and then tell.c gives tokens,
 * ends and numbers to readers, before the loop waits for a step. */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/form.h"
#include "engine/queues.h"
#include "engine/recall.h"
#include "engine/reform/reform.h"
#include "engine/stream.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- requests (request.c) -------------------------------------------------------------------- */

/* Makes a copy that shares nothing with the original. */
status engine_request_copy(const engine_request *from, engine_request *to);
/* Checks the range of every field; errors name the field. */
status engine_request_check(const engine_request *r, const backend_info *info,
                            const chat_template *chat, error *err);

/* Refuses tools that the template does not read. */
status engine_check_tools(const engine_request *r, const chat_template *chat, error *err);

/* ---- the chat template (render.c) ------------------------------------------------------------ */

/* Appends the text of r's messages, which are normalised. */
status engine_render(const engine *e, const engine_request *r, strbuf *out, error *err);

/* ---- messages (messages.c) ------------------------------------------------------------------- */

/* Checks roles and contents. A list of text parts becomes one string; an assistant's content that
 * is null or absent becomes "". Changes the messages. */
status messages_normalise(json_t *messages, error *err);
/* Sets *out to the messages with the arguments of their tool calls as objects, which clients send
 * as strings: the same messages, with a reference more, where there are none to decode. */
status messages_with_objects(json_t *messages, json_t **out, error *err);

/* ---- retention (retention.c), sessions (session.c) ------------------------------------------- */

/* The retention policies and limits that the engine's options give. */
typedef struct retention_rules {
    retention_limits limits;
    retention_policy standard; /* for requests without a policy */
    bool reports_standard;     /* it is not "full": requests without a policy get a report too */
    retention_policy pressure;
    bool has_pressure;
    uint64_t allowed; /* bit i = requests may name preset i */
} retention_rules;

status retention_rules_make(const engine_options *o, const pkv_geometry *geometry,
                            retention_rules *out, error *err);
status retention_rules_apply(const retention_rules *rules, const engine_request *r,
                             retention_policy *out, error *err);

/* The key of (identity, cache_salt, session); {0, 0} without a session. */
void session_key(const engine_request *r, uint64_t out[2]);
/* A digest of the identity: whose session it is. */
uint64_t session_owner(const engine_request *r);
/* The salt of a request's prefixes: a digest of its cache_salt and, when `apart`, of its identity.
 * 0 stands for the prefixes that all requests share. */
uint64_t session_salt(const engine_request *r, bool apart);

/* ---- numbers (metrics.c; engine thread only) ------------------------------------------------- */

/* Sets up a row for each retention method. */
void metrics_init(engine_metrics *m);
void metrics_observe(engine_metrics *m, engine_histogram_id id, double value);
/* Counts a choice that ended. When no choice of the request is alive, it was the last one, and the
 * request is counted too. */
void metrics_choice(engine_metrics *m, const engine_stream *s, const choice_state *c,
                    const choice_end *end, const sched_choice_info *info);
/* Copies the engine thread's numbers to where other threads read them. */
void metrics_publish(engine *e);

/* ---- the prefix cache on disk (disk.c; all do nothing without one) --------------------------- */

/* Whether the engine can have the disk that its options give. */
status disk_check(const engine *e, error *err);
/* sched_options.has_block and forget_blocks */
bool disk_has_block(void *disk, const pkv_key *key);
void disk_forget_blocks(void *disk, const pkv_key *keys, uint32_t n);
/* Before the plan of the last sched_step call is submitted: stores the blocks that it takes the
 * pages of. */
void disk_save_lost(engine *e);
/* Begins the loads that the scheduler has made, when the moves of its plans are done. */
void disk_begin_loads(engine *e);
/* Tells the scheduler which loads have ended. */
void disk_take_back(engine *e, uint32_t n_loaded);
/* Stores the blocks that only memory has, until this time. No step is in flight. */
void disk_save_cached(engine *e, int64_t until_us);
/* Before the scheduler or the backend goes: ends all loads and waits until no thread has one. The
 * scheduler is not told. */
void disk_cancel(engine *e);

/* ---- the engine ------------------------------------------------------------------------------ */

typedef struct ending_choice {
    engine_stream *stream;
    uint32_t choice;
    choice_end end;
} ending_choice;

/* A sampled token whose reader has not been notified. Of the sample's top lists the first n_top
 * entries are set. */
typedef struct untold_token {
    engine_stream *stream;
    uint32_t choice;
    engine_finish finish; /* how it ends its choice; NONE: it does not */
    bool in_ring;
    step_sample sample;
} untold_token;

/* The backend call that the engine thread is in, and the watchdog thread that times it. */
typedef struct step_watch {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool thread_started, stop;
    int64_t started_us; /* 0 = the engine thread is not in the backend */
    uint64_t step;
    uint32_t n_seqs;
    bool abandoned; /* its requests have failed: its result is discarded */
    int64_t abandoned_us;
} step_watch;

enum { RESTARTS_MAX = 3 }; /* within RESTARTS_WITHIN_US; one more fails for good */
#define RESTARTS_WITHIN_US INT64_C(60000000)
enum { RESTART_PAUSE_US = 100000 }; /* between tries while a restart is not possible yet */

struct engine {
    engine_options o;
    backend backend; /* a copy; what it points to is borrowed */
    backend_info info;
    retention_rules retention;
    uint32_t *stop_ids;
    size_t bytes_per_token; /* from tok_bytes_per_token; 0 = no bound */
    size_t text_room;       /* from tok_stream_room */
    pthread_t thread;
    bool thread_started;
    pthread_t *workers;
    uint32_t n_workers;
    inbox inbox;
    prepare_queue prepare;
    select_queue selecting;
    hand_queue hands;
    reform_store embeddings;
    embed_head *embed_heads; /* [o.n_embed_heads] */
    uint32_t embed_layers;   /* that must run for them */
    form_cache forms;
    step_watch watch;

    _Atomic int state;           /* engine_state */
    _Atomic uint32_t n_live;     /* requests submitted and not ended */
    _Atomic uint64_t n_prepared; /* passed to the engine thread; under the inbox's lock */
    _Atomic uint64_t next_seed;
    _Atomic uint64_t n_submitted;
    _Atomic int64_t save_until_us; /* engine_save_at_end */

    /* Held for reading by the prepare threads, which call sched_check, and for writing by the
     * engine thread when it replaces the scheduler. */
    pthread_rwlock_t sched_lock;
    sched *sched;
    uint32_t n_backends; /* backends that were replaced so far; under sched_lock */

    /* Engine thread only, and the watchdog while it fails a step (see above). */
    engine_stream **slots; /* [max_requests], indexed by the low half of an id */
    uint32_t *free_slots;
    uint32_t n_free_slots;
    uint32_t generation;
    size_t n_choices; /* choices of the streams in `slots`, for which slots_make_room made room */
    sched_event *events;
    size_t n_events, events_capacity;
    made_selection *selected; /* [max_seqs] of the last inbox_drain */
    ended_load *loaded;       /* [max_seqs] likewise */
    /* Choices whose END is in `events`; the scheduler has taken the ENDs of the first n_ended. */
    ending_choice *ending;
    size_t n_ending, n_ended, ending_capacity;
    ending_choice *late; /* ends that are told once their sessions have been written */
    size_t n_late, late_capacity;
    untold_token *untold; /* [step_most_draws] of the last result */
    uint32_t n_untold;
    strbuf text;
    engine_stream *
        *measured; /* [max_seqs]: streams whose measures the next sched_step selects by */
    uint32_t n_measured;
    engine_stream *
        *prefilled; /* [max_seqs]: with rows in the last result, which ask for progress */
    uint32_t n_prefilled;
    engine_stream **readings; /* [max_seqs]: streams whose reading the next sched_step ends */
    uint32_t n_readings;
    const step_plan *in_flight[2]; /* oldest first */
    uint32_t n_in_flight;
    uint64_t n_plans;           /* plans submitted */
    const step_plan *collected; /* the plan of the last result */
    uint64_t behind_failed;     /* step in flight behind the last result, if that failed; else 0 */
    int64_t now_us;             /* when that result arrived */
    stream_list looks;          /* streams whose maps are to be drawn, linked by look_next */
    int64_t draw_us;            /* no map is drawn before */
    pkv_map *map;               /* what is drawn; NULL before the first */
    bool lost;                  /* the backend was reported lost: handled with no step in flight */
    engine_metrics counting;
    uint64_t steps;
    int64_t compute_us, schedule_us, tell_us;
    int64_t tended_us; // when idle sessions were looked at last
    backend_tier tier;
    sched_stats sums;                  /* counters of earlier schedulers */
    int64_t restarts_us[RESTARTS_MAX]; /* times of the last restarts: a ring */
    uint32_t n_restarts;
    bool stopping;

    pthread_mutex_t stats_lock;
    engine_stats stats;     /* published by the engine thread; ended requests are added directly */
    engine_metrics metrics; /* published by the engine thread */
    uint64_t choices_finished[ENGINE_FINISHES];
    uint64_t n_undefined; /* requests that failed because the model's numbers are not finite */
    char trouble[ENGINE_TROUBLE_BYTES]; /* "" = none since the backend was last made */
};

/* Steps that the backend takes before the first one is collected. */
static inline uint32_t engine_in_flight(const engine *e)
{
    return e->info.max_in_flight < 2 ? 1 : 2;
}

/* ---- what all files ask (state.c) ------------------------------------------------------------ */

/* Counts a request that ended this way and makes room for another one. Any thread. */
void engine_count_out(engine *e, engine_finish how);
/* Counts a choice that ended this way. Any thread. */
void engine_count_choice(engine *e, engine_finish how);
/* Counts a request that fails because the model's numbers are not finite. Any thread. */
void engine_count_undefined(engine *e);
/* UNAVAILABLE with the missing part and the reason while the backend is down. */
status engine_check_state(engine *e, error *err);
status engine_make_scheduler(engine *e, sched **out, error *err);

/* Fails the stream because what the model computed for it in the collected step is not finite:
 * `what` (logits, ...) of `where`. */
void loop_fail_undefined(engine *e, engine_stream *s, const char *what, const char *where);
/* Takes a token that another server drew as the first one of the stream's only choice. */
void loop_take_first(engine *e, engine_stream *s, const step_sample *sample);

/* Threads: the engine thread, and one that prepares requests. */
void *engine_loop(void *e);
void *prepare_loop(void *e);

/* ---- streams by slot (slots.c) --------------------------------------------------------------- */

/* Makes room for the events and ends of n_more further choices between two steps, so that adding
 * them cannot fail. False when memory is out. */
bool slots_make_room(engine *e, size_t n_more);
void slots_add_event(engine *e, sched_event event);
/* The stream of this id; NULL when it was forgotten. */
engine_stream *slots_find(const engine *e, uint64_t id);
/* Takes over the streams of the inbox. */
void slots_take_inbox(engine *e, const inbox_batch *batch);
/* The choice is over: the scheduler is told with the next step, the reader after that step. */
void slots_end_choice(engine *e, engine_stream *s, uint32_t choice, engine_finish finish);
/* Fails this request alone; the scheduler is told with the next step. */
void slots_fail_stream(engine *e, engine_stream *s, status st);
/* Ends all choices of the stream that go on, as slots_end_choice does. */
void slots_end_stream(engine *e, engine_stream *s, engine_finish finish);
/* Removes the stream from the engine. Its reader may still hold it. */
void slots_forget(engine *e, engine_stream *s);
/* Tells readers what was computed, then fails and forgets every stream that the scheduler knows. */
void slots_fail_all(engine *e, status_code code, const char *text);
/* Fails what is in the inbox of an engine without a backend. When the inbox is empty, waits up to
 * wait_us for news. */
void slots_refuse_added(engine *e, int64_t wait_us);

/* ---- what readers are told (tell.c) ---------------------------------------------------------- */

/* Puts a token into its stream's ring. A stop string may change token->finish, which is what
 * choice_take returned. A stream without memory for it fails. */
void tell_token(engine *e, untold_token *token);
/* Gives readers all tokens and ends that they have not been told, and publishes the numbers. */
void tell_all(engine *e);
/* After sched_step: tells readers that ask for it how far their prompts are. */
void tell_progress(engine *e);
/* Gives readers the ends that waited for their sessions to be written, or all that still do. */
void tell_late(engine *e, bool all);

/* ---- maps of pages (pages.c; engine thread only) --------------------------------------------- */

/* Takes over a list of streams. */
void pages_want(engine *e, const stream_list *looks);
/* Draws the map that was asked for first, if it is time for one. */
void pages_draw(engine *e);
/* wait_us, or less so that the next map is drawn in time. */
int64_t pages_wait(const engine *e, int64_t wait_us);
void pages_drop(engine *e);

/* ---- the backend under watch (watch.c) ------------------------------------------------------- */

status watch_start(engine *e);
void watch_stop(engine *e);
/* Submits a plan. False when the step was stuck or the backend failed: then all requests have been
 * failed, nothing is in flight, the plan's scheduler is gone, and the backend is new or broken. */
bool watch_submit(engine *e, const step_plan *plan);
/* Takes the result of the oldest step in flight (e->collected). NULL is as watch_submit's false. */
const step_result *watch_collect(engine *e);
/* Waits for the steps in flight and discards their results. */
void watch_drain(engine *e);
/* The backend was lost while no step was in flight: fails all requests and makes it again. */
void watch_lost(engine *e);

#endif
