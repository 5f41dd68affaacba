/* What the engine's files share (private to engine/).
 *
 *   any thread          engine_submit: checks, copies, counts; the job goes to the tokenizer
 * threads tokenizer threads   prepare.c: template, tokens, sched_check; then the inbox engine
 * thread       loop.c: inbox -> events -> sched_step -> backend -> choices -> streams reader
 * stream.c: reads the ring
 */
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

/* ---- one choice: tokens to text, and when to stop (choice.c; engine thread only) ------------- */

typedef struct choice_state {
    tok_stream detokeniser;
    strbuf held;       /* text not yet given out: it may be the start of a stop string */
    uint32_t n_tokens; /* sampled so far */
    engine_finish finish;
    int64_t stop_token;  /* -1 = none */
    int32_t stop_string; /* index into the request's, -1 = none */
    bool end_sent;       /* the scheduler has been told */
    int64_t first_token_us;
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

struct engine_stream {
    engine *engine;
    engine_request request; /* a copy */
    engine_notify notify;
    void *notify_ctx;
    _Atomic uint32_t references; /* the engine's and the reader's */
    _Atomic bool aborted;
    int64_t submit_us;

    /* Written by a tokenizer thread before the engine thread sees the stream. */
    uint32_t *tokens;
    uint32_t n_tokens;
    retention_policy policy;
    uint32_t max_new_tokens;
    uint32_t *stop_ids; /* EOS unless ignored, then the request's */
    uint32_t n_stop_ids;
    sched_request sched_request;

    /* Engine thread only. */
    uint64_t id;           /* generation << 32 | slot, once the scheduler knows it */
    choice_state *choices; /* [n] */
    uint32_t n_alive;
    bool paused;
    bool failed; /* its ends have been pushed; the scheduler's word is only awaited */
    int64_t added_us;
    int64_t selecting_us;

    /* Between engine thread and reader. */
    pthread_mutex_t lock;
    pthread_cond_t readable;
    ring_item *ring; /* [capacity] */
    uint32_t capacity, head, count;
    strbuf blob; /* what the queued items carry; blob_read bytes of it have been read */
    size_t blob_read;
    choice_end *ends;       /* [n] */
    uint32_t n_unread_ends; /* choices whose last item has not been read */
    bool resume_wanted;     /* the engine thread paused this stream and waits for room */
    error failure;          /* text of ENGINE_FINISH_ERROR */

    strbuf read_text; /* reader only: the last output's text */
};

status stream_create(engine *e, const engine_request *r, engine_stream **out);
void stream_unref(engine_stream *s);
/* Makes the ring, once the number of outputs is known. */
status stream_make_ring(engine_stream *s, uint32_t capacity);
/* Engine side. There is room in the ring (see pause_if_full); false when memory is out. */
bool stream_push(engine_stream *s, const ring_item *item, const step_sample *tops,
                 const char *text);
/* The last item of a choice; takes over end->report.kept_json. */
void stream_push_end(engine_stream *s, uint32_t choice, const choice_end *end);
/* Ends every choice that has not ended: aborted (STATUS_ABORTED), or with one error (copied). */
void stream_fail(engine_stream *s, status_code code, const char *text);

/* ---- numbers (metrics.c) --------------------------------------------------------------------- */

void metrics_observe(engine_metrics *m, engine_histogram_id id, double value);

/* ---- the engine ------------------------------------------------------------------------------ */

/* What other threads tell the engine thread. Each item holds a reference of its stream. */
typedef struct inbox_item {
    enum { INBOX_ADD, INBOX_ABORT, INBOX_RESUME } kind;
    engine_stream *stream;
} inbox_item;

typedef struct ending_choice {
    engine_stream *stream;
    uint32_t choice;
} ending_choice;

typedef struct inbox {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    inbox_item *items;
    size_t n, capacity;
    bool stop;
} inbox;

/* Streams between submit and the tokenizer threads. */
typedef struct prepare_queue {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    engine_stream **items; /* [max_requests], a ring */
    uint32_t head, count;
    bool stop;
} prepare_queue;

struct engine {
    engine_options o;
    backend backend; /* a copy: what it points to is borrowed */
    backend_info info;
    retention_limits limits;
    uint32_t *stop_ids;
    sched *sched;
    pthread_t thread;
    bool thread_started;
    pthread_t *workers;
    uint32_t n_workers;
    inbox inbox;
    prepare_queue prepare;

    _Atomic uint32_t n_live; /* submitted, not ended */
    _Atomic uint64_t next_seed;

    /* Engine thread only. */
    engine_stream **slots; /* [max_requests]: by the low half of an id */
    uint32_t *free_slots;
    uint32_t n_free_slots;
    uint32_t generation;
    sched_event *events;
    size_t n_events, events_capacity;
    ending_choice *ending; /* choices whose END is among the events */
    size_t n_ending, ending_capacity;
    inbox_item *drained;
    size_t n_drained, drained_capacity;
    strbuf text;
    engine_stream *
        *measured; /* [max_seqs]: streams whose measures the next sched_step selects by */
    uint32_t n_measured;
    bool broken;

    pthread_mutex_t stats_lock;
    engine_stats stats;
    engine_metrics metrics;
};

/* A request has ended so: others may come. Any thread. */
void engine_count_out(engine *e, engine_finish how);
/* Takes a reference of the stream. False when memory is out. */
bool inbox_put(engine *e, int kind, engine_stream *s);
void *engine_loop(void *e);
void *prepare_loop(void *e);

#endif
