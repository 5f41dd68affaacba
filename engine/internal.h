/* What the engine's files share (private to engine/).
 *
 *   any thread         engine_submit: checks, copies, counts; the stream goes to the tokenizers
 *   tokenizer threads  prepare.c: template, tokens, sched_check; then the inbox
 *   engine thread      loop.c: inbox -> events -> sched_step -> backend -> choices -> streams
 *   watchdog thread    watch.c: sleeps, unless a step is stuck
 *   reader             stream.c: reads the ring
 *
 * retention.c says what a request keeps: its own word or the engine's default; session.c whose
 * pages it goes on from.
 *
 * Who owns a stream that the scheduler knows: the engine thread, but for the time that it is with
 * the backend. Then the holder of watch.lock owns it: the watchdog to fail it, or the engine thread
 * as it comes back (watch.c). */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- requests (request.c) -------------------------------------------------------------------- */

/* A copy that shares nothing with the original. */
status engine_request_copy(const engine_request *from, engine_request *to);
/* Ranges of every field; errors name it. */
status engine_request_check(const engine_request *r, const backend_info *info, bool has_template,
                            error *err);

/* ---- retention (retention.c), sessions (session.c) ------------------------------------------- */

/* What the engine's options say. */
typedef struct retention_rules {
    retention_limits limits;
    retention_policy standard; /* of requests that give none */
    bool reports_standard;     /* it is not "full": those requests are told what it did */
    retention_policy pressure;
    bool has_pressure;
    uint64_t allowed; /* bit i = requests may name preset i */
} retention_rules;

status retention_rules_make(const engine_options *o, const backend_info *info, retention_rules *out,
                            error *err);
status retention_rules_apply(const retention_rules *rules, const engine_request *r,
                             retention_policy *out, error *err);

/* Stands for (identity, cache_salt, session); {0, 0} without a session. */
void session_key(const engine_request *r, uint64_t out[2]);
/* The salt of a request's prefixes: a digest of its cache_salt and, when `apart`, of its identity.
 * 0 stands for the prefixes that all requests share. */
uint64_t session_salt(const engine_request *r, bool apart);

/* ---- one choice: tokens to text, and when to stop (choice.c; engine thread only) ------------- */

typedef struct choice_state {
    tok_stream detokeniser;
    strbuf held;       /* text not yet given out: it may be the start of a stop string */
    uint32_t n_tokens; /* sampled so far */
    engine_finish finish;
    int64_t stop_token;  /* -1 = none */
    int32_t stop_string; /* index into the request's, -1 = none */
    bool end_sent;       /* the scheduler has been told */
    int64_t first_token_us, last_token_us;
} choice_state;

void choice_init(choice_state *c, const tokenizer *t, bool skip_special);
void choice_destroy(choice_state *c);
/* Takes one sampled token; appends to `text` what can be given out; sets c->finish when it is over.
 */
status choice_push(choice_state *c, const engine_request *r, const uint32_t *stop_ids,
                   uint32_t n_stop_ids, uint32_t max_new_tokens, uint32_t token, strbuf *text);

/* ---- a stream -------------------------------------------------------------------------------- */

/* A queued output. Its text and its top logprobs lie in the stream's blob, in this order: text,
 * ids, logprobs. */
typedef struct ring_item {
    uint32_t choice;
    bool has_token;
    bool is_last; /* of its choice: `ends[choice]` holds the rest */
    uint32_t token;
    float logprob;
    uint32_t rank;
    uint32_t n_top;
    uint32_t text_bytes;
    bool held; /* a last token: unseen by the reader until its end rides on it */
} ring_item;

/* How a choice ended. */
typedef struct choice_end {
    engine_finish finish;
    int64_t stop_token;
    int32_t stop_string;
    engine_usage usage;
    engine_timings timings;
    retention_report report;
    bool has_report;
    status_code error_code;
} choice_end;

/* What other threads tell the engine thread of a stream. */
enum { INBOX_ADD = 1, INBOX_ABORT = 2, INBOX_RESUME = 4 };

/* The prompt's logprobs, one row for each token; the first token has none. */
typedef struct prompt_scores {
    float *logprobs;   /* [n_tokens]; NULL before the first rows came */
    uint32_t *ranks;   /* [n_tokens] */
    uint32_t *top_ids; /* [n_tokens, n_top] */
    float *top_logprobs;
    uint32_t n_rows; /* that came so far */
    bool complete;
} prompt_scores;

struct engine_stream {
    engine *engine;
    engine_request request; /* a copy */
    engine_notify notify;
    void *notify_ctx;
    _Atomic uint32_t references; /* the engine's and the reader's */
    _Atomic bool aborted;
    int64_t submit_us;
    uint64_t arrival; /* counts submissions */

    /* Under prepare.lock: while a tokenizer has not begun with it. */
    engine_stream *prepare_next, *prepare_prev;
    bool awaits_prepare;

    /* Under inbox.lock. */
    unsigned told; /* INBOX_* bits; not 0 = in the inbox, which holds a reference */
    engine_stream *inbox_next;

    /* Written by a tokenizer thread before the engine thread sees the stream. */
    uint32_t *tokens;
    uint32_t n_tokens;
    retention_policy policy;
    bool has_report; /* its choices tell what they kept */
    uint32_t max_new_tokens;
    uint32_t *stop_ids; /* EOS unless ignored, and the request's: sorted */
    uint32_t n_stop_ids;
    uint32_t made_for; /* how many backends there had been when sched_check passed it */
    sched_request sched_request;

    /* Engine thread only. */
    unsigned taken; /* INBOX_* bits of the last drain */
    engine_stream *taken_next;
    uint64_t id;           /* generation << 32 | slot, once the scheduler knows it */
    choice_state *choices; /* [n] */
    uint32_t n_alive;      /* choices the scheduler runs */
    uint32_t n_untold;     /* choices whose end has not been pushed */
    bool paused;
    bool failed; /* its ends have been pushed; the scheduler's word is only awaited */
    int64_t added_us;
    int64_t first_token_us, last_token_us; /* of any choice */
    int64_t selecting_us;
    prompt_scores scores; /* the reader's from the first output on */

    /* Between engine thread and reader. */
    pthread_mutex_t lock;
    pthread_cond_t readable;
    ring_item *ring; /* [capacity] */
    uint32_t capacity, head, count;
    uint32_t limit; /* capacity grows up to it */
    strbuf blob;    /* what the queued items carry; blob_read bytes of it have been read */
    size_t blob_read;
    choice_end *ends;       /* [n] */
    uint32_t n_unread_ends; /* choices whose last item has not been read */
    bool resume_wanted;     /* the engine thread paused this stream and waits for room */
    error failure;          /* text of ENGINE_FINISH_ERROR */

    /* The last output's text, which is the reader's alone, and a buffer for a longer one: together
     * they have room for the text of every queued item, so that reading needs no memory. */
    strbuf read_text, spare_text;
};

status stream_create(engine *e, const engine_request *r, engine_stream **out);
void stream_unref(engine_stream *s);
/* Makes the ring, once the number of outputs is known: it starts small and grows to `limit`. */
status stream_make_ring(engine_stream *s, uint32_t limit);
/* Engine side. There is room in the ring (see pause_if_full); false when memory is out. */
bool stream_push(engine_stream *s, const ring_item *item, const step_sample *tops,
                 const char *text);
/* The last item of a choice; takes over end->report.kept_json. */
void stream_push_end(engine_stream *s, uint32_t choice, const choice_end *end);
/* What the choices that end by ENGINE_FINISH_ERROR say (copied). */
void stream_set_failure(engine_stream *s, status_code code, const char *text);
/* Ends every choice that has not ended: aborted (STATUS_ABORTED), or with one error (copied). */
void stream_fail(engine_stream *s, status_code code, const char *text);

/* ---- the prompt's logprobs (prompt.c; engine thread only) ------------------------------------ */

/* Takes the scores of the rows of one share. The scheduler asks for each row of a prompt once and
 * in order (the positions of a plan do not say which it is: some methods close them up); row i
 * scores token i + 1. False when memory is out. */
bool prompt_take_scores(engine_stream *s, uint32_t n_rows, const step_sample *scores);

/* ---- numbers (metrics.c; engine thread only) ------------------------------------------------- */

/* A row for each method. */
void metrics_init(engine_metrics *m);
void metrics_observe(engine_metrics *m, engine_histogram_id id, double value);
/* A choice has ended in order; it was the request's last one when no choice is alive. */
void metrics_choice(engine_metrics *m, const engine_stream *s, const choice_state *c,
                    const choice_end *end, const sched_choice_info *info);

/* ---- the inbox (inbox.c) --------------------------------------------------------------------- */

/* Streams about which the engine thread is told something. They are linked through themselves, so
 * that telling needs no memory. */
typedef struct inbox {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    engine_stream *first, *last;
    bool flush; /* the prefix cache: before all that is added now */
    bool lost;  /* the backend */
    bool stop;
    char lost_why[512];
} inbox;

/* Tells the engine thread one of INBOX_*. */
void inbox_put(engine *e, unsigned what, engine_stream *s);

/* What inbox_drain took out. */
typedef struct inbox_batch {
    engine_stream *first; /* linked by taken_next, a reference each */
    bool flush, lost, stop;
} inbox_batch;

/* Takes everything. While there is nothing it waits for so long; for ever when that is < 0. */
inbox_batch inbox_drain(engine *e, int64_t wait_us);

/* Streams between submit and the tokenizer threads. */
typedef struct prepare_queue {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    engine_stream *first, *last;
    bool stop;
} prepare_queue;

void prepare_put(engine *e, engine_stream *s);
/* Takes the stream out when no tokenizer has begun with it; the caller gets the queue's reference.
 */
bool prepare_take_back(engine *e, engine_stream *s);
/* Waits; NULL when the engine stops. The caller gets the queue's reference. */
engine_stream *prepare_next(engine *e);

/* ---- the engine ------------------------------------------------------------------------------ */

typedef struct ending_choice {
    engine_stream *stream;
    uint32_t choice;
    choice_end end;
} ending_choice;

/* The step that the engine thread is with the backend for, and the thread that minds it. */
typedef struct step_watch {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool thread_started, stop;
    int64_t started_us; /* 0 = it is not there */
    uint64_t step;
    uint32_t n_seqs;
    bool abandoned; /* its requests have been failed: its result is discarded */
    int64_t abandoned_us;
} step_watch;

enum { RESTARTS_MAX = 3 }; /* within RESTARTS_WITHIN_US; one more and the backend is given up */
#define RESTARTS_WITHIN_US INT64_C(60000000)
enum { RESTART_PAUSE_US = 100000 }; /* between tries of one that is not possible yet */

struct engine {
    engine_options o;
    backend backend; /* a copy: what it points to is borrowed */
    backend_info info;
    retention_rules retention;
    uint32_t *stop_ids;
    size_t bytes_per_token; /* tok_bytes_per_token; 0 = no bound */
    pthread_t thread;
    bool thread_started;
    pthread_t *workers;
    uint32_t n_workers;
    inbox inbox;
    prepare_queue prepare;
    step_watch watch;

    _Atomic int state;           /* engine_state */
    _Atomic uint32_t n_live;     /* submitted, not ended */
    _Atomic uint64_t n_prepared; /* told to the engine thread; counted under the inbox's lock */
    _Atomic uint64_t next_seed;
    _Atomic uint64_t n_submitted;

    /* Held for reading by the prepare threads, which ask sched_check; for writing by the thread
     * that replaces the scheduler. */
    pthread_rwlock_t sched_lock;
    sched *sched;
    uint32_t n_backends; /* so far; under sched_lock */

    /* Engine thread only (and the watchdog's while it fails a step: see above). */
    engine_stream **slots; /* [max_requests]: by the low half of an id */
    uint32_t *free_slots;
    uint32_t n_free_slots;
    uint32_t generation;
    size_t n_choices; /* of the streams in `slots`: loop_make_room has seen to their room */
    sched_event *events;
    size_t n_events, events_capacity;
    ending_choice *ending; /* choices whose END is among the events */
    size_t n_ending, ending_capacity;
    strbuf text;
    engine_stream *
        *measured; /* [max_seqs]: streams whose measures the next sched_step selects by */
    uint32_t n_measured;
    const step_plan *in_flight[2]; /* the oldest first */
    uint32_t n_in_flight;
    const step_plan *collected; /* whose result came last */
    int64_t now_us;             /* when that was */
    bool lost; /* the backend was reported lost: it matters when nothing is in flight */
    engine_metrics counting;
    uint64_t steps;
    int64_t compute_us, schedule_us;
    sched_stats sums;                  /* counters of the schedulers before this one */
    int64_t restarts_us[RESTARTS_MAX]; /* when the last ones were: a ring */
    uint32_t n_restarts;
    bool stopping;

    pthread_mutex_t stats_lock;
    engine_stats stats;     /* as the engine thread published them, but what ends is counted here */
    engine_metrics metrics; /* likewise */
    uint64_t choices_finished[ENGINE_FINISHES];
    char trouble[ENGINE_TROUBLE_BYTES]; /* "" = none since the backend was made */
};

/* Steps that the backend takes before the first is collected. */
static inline uint32_t engine_in_flight(const engine *e)
{
    return e->info.max_in_flight < 2 ? 1 : 2;
}
/* A request has ended so: others may come. Any thread. */
void engine_count_out(engine *e, engine_finish how);
/* One choice has. Any thread. */
void engine_count_choice(engine *e, engine_finish how);
/* UNAVAILABLE with the missing part and the reason while the backend is down. */
status engine_check_state(engine *e, error *err);
status engine_make_scheduler(engine *e, sched **out, error *err);
void *engine_loop(void *e);
void *prepare_loop(void *e);

/* ---- loop.c for watch.c ---------------------------------------------------------------------- */

/* Makes room for what the engine thread notes between two steps, with so many choices more than
 * there are: noting itself cannot fail. False when memory is out. */
bool loop_make_room(engine *e, size_t n_more);
/* Fails every stream that the scheduler knows, and forgets it. */
void loop_fail_all(engine *e, status_code code, const char *text);
/* Fails what is in the inbox of an engine without a backend; while there is nothing it waits for so
 * long. */
void loop_turn_away(engine *e, int64_t wait_us);
/* Copies the numbers to where others see them. */
void loop_publish(engine *e);

/* ---- the backend under watch (watch.c) ------------------------------------------------------- */

status watch_start(engine *e);
void watch_stop(engine *e);
/* Gives the backend the plan, unless it is empty, and takes the result of the oldest step in flight
 * (e->collected). NULL when the next step may be planned before that; or when the step is
 * discarded: it was stuck, or the backend has failed; then all requests have been failed, nothing
 * is in flight, the plan's scheduler is gone, and the backend is new or broken. */
const step_result *watch_run(engine *e, const step_plan *plan);
/* Waits for what is in flight, and takes nothing of it. */
void watch_drain(engine *e);
/* The backend was lost while it had nothing to do. */
void watch_lost(engine *e);

#endif
