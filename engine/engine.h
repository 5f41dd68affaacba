/* engine: requests in, token streams out.
 *
 * What     the thread that drives scheduler and backend, and around it everything a request needs:
 *          parsing of its JSON fields, chat template, tokenizing (a few worker threads),
 *          detokenising, stop strings and stop tokens, lengths, logprobs, bounded output rings,
 *          reports, metrics, and a watchdog over the backend. Front ends (cli, rpc) only enqueue
 *          and read.
 * Owner    the engine borrows backend, tokenizer and template (they must outlive it); a stream
 *          belongs to the submitter of the request and is released exactly once.
 * Threads  engine_submit, engine_tokenize, engine_flush_cache, engine_get_*: any thread. A stream
 *          is read by one thread at a time; engine_stream_abort by any. `notify` is called from the
 *          engine's threads, under the stream's lock: it must not block or call back into the
 *          stream, and is not called after the release.
 * Units    microseconds of the monotonic clock; bytes of UTF-8.
 * Errors   a bad request is refused by engine_submit (STATUS_INVALID, STATUS_UNSUPPORTED, or
 *          STATUS_QUEUE_FULL at once when the bounded queue is full) or, when it fails later, ends
 *          its own stream; others go on. A step that fails as a whole, or is stuck, fails the
 *          requests in flight (STATUS_UNAVAILABLE) and the backend is made anew; meanwhile
 *          engine_submit says STATUS_UNAVAILABLE. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/base.h"
#include "engine/metrics.h"
#include "scheduler/scheduler.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

typedef struct engine engine;
typedef struct engine_stream engine_stream;

typedef struct engine_options {
    const backend *backend; // copied; what it points to is borrowed
    const tokenizer *tokenizer;
    const chat_template *chat; // NULL = the model has none
    const char *bos, *eos;     // texts for the template; "" when none
    uint32_t prefill_chunk;
    uint32_t max_model_len;
    uint32_t max_requests; // waiting and running; more is QUEUE_FULL
    sched_policy policy;
    bool prefix_cache;
    bool identities_apart;    // a request hits no prefix that another identity computed
    const uint32_t *stop_ids; // the model's EOS ids
    uint32_t n_stop_ids;
    uint32_t
        ring_capacity; // outputs a stream may hold unread before its sequence is paused; 0 = 256
    uint32_t tokenizer_threads; // 0 = 2
    /* Retention, as JSON of a request (borrowed while the engine is made). Texts of errors begin
     * with the name of the flag. */
    const json_t *retention;          // of requests that give none; NULL = full
    const json_t *pressure_retention; // compress before preempt; NULL = never
    const char *const *retention_allow;
    uint32_t n_retention_allow; // methods that requests may name; 0 = all
    uint32_t max_sessions;      // idle ones kept at once; 0 = sessions are ignored
    int64_t session_ttl_us;
    /* Blocks entering and leaving the prefix cache, without their tokens when they were computed
     * for a session, with a cache_salt, or for an identity that is kept apart; called on the engine
     * thread. May be NULL. */
    void (*on_block)(void *ctx, const pkv_block_event *event);
    void *on_block_ctx;
    /* The watchdog: a step that takes longer than this is stuck. It is reported, its requests fail,
     * the backend is asked to give up (backend_ops.interrupt) and then made anew. 0 = none. */
    int64_t step_timeout_us;
    /* Destroys the failed backend, whose every call has returned, and makes another like it. Engine
     * thread. NULL = a failed backend stays failed. STATUS_UNAVAILABLE: what it needs (a worker) is
     * not there yet; it is asked again until it is, or the engine is destroyed. */
    status (*restart)(void *ctx, backend *out, error *err);
    void *restart_ctx;
    /* One line about trouble with the backend, for a log; from any of the engine's threads. */
    void (*on_trouble)(void *ctx, const char *text);
    void *on_trouble_ctx;
    const allocator *alloc;
} engine_options;

status engine_create(const engine_options *options, engine **out, error *err);
/* Ends what still runs, joins the threads. Every stream must have been released. */
void engine_destroy(engine *e);

/* ---- requests -------------------------------------------------------------------------------- */

enum {
    ENGINE_STOPS_MAX = 16,
    ENGINE_STOP_BYTES_MAX = 256,
    ENGINE_N_MAX = 128,
    ENGINE_SESSION_BYTES_MAX = 256,
};

/* One request, by OpenAI's names. Fill it by engine_request_init, then by hand or
 * engine_request_parse. Exactly one of prompt, messages and prompt_token_ids is given. */
typedef struct engine_request {
    char *prompt;
    size_t prompt_bytes;
    json_t *messages; // an array of {role, content}; content a string or a list of text parts
    json_t *tools;    // optional, for the template
    uint32_t *prompt_token_ids;
    uint32_t n_prompt_token_ids;
    uint32_t max_tokens; // 0 = what fits
    bool score_only;     // "max_tokens": 0 in JSON: generates nothing, needs prompt_logprobs
    uint32_t min_tokens;
    uint32_t n;
    float temperature, top_p, min_p;
    int32_t top_k; // -1 or 0 = all
    float presence_penalty, frequency_penalty, repetition_penalty;
    bool has_seed;
    uint64_t seed;
    int32_t logprobs;        // -1 = none, else the top n
    int32_t prompt_logprobs; // -1 = none, else the top n of each prompt token; takes no prefix hit
    char *stop[ENGINE_STOPS_MAX];
    uint32_t n_stop;
    uint32_t *stop_token_ids;
    uint32_t n_stop_token_ids;
    bool ignore_eos;
    bool include_stop_str_in_output;
    bool skip_special_tokens; // default true
    bool add_special_tokens;  // default true for prompt, false for messages
    uint32_t *bias_ids;       // logit_bias
    float *bias;
    uint32_t n_bias;
    int32_t priority;
    char *cache_salt;  // NULL = none; requests with different ones share no prefixes
    json_t *retention; // NULL = the engine's default
    /* Goes on from the pages that the last request of this session left, and leaves its own. NULL =
     * none. A session belongs to (identity, cache_salt, session): no identity reaches another's. */
    char *session;
    /* Who asks, such as a digest of the API key; opaque; NULL = no identity. */
    char *identity;
} engine_request;

/* Defaults: the model's generation_config where it says something, else OpenAI's. */
typedef struct engine_defaults {
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    uint32_t max_tokens; // 0 = what fits
} engine_defaults;

void engine_request_init(engine_request *r, const engine_defaults *defaults);
void engine_request_destroy(engine_request *r);
/* Reads the members of a JSON object into r. Unknown keys are refused by name, except those in
 * `also` (a NULL-terminated list: what the front end reads itself, such as "id" or "stream"). */
status engine_request_parse(const json_t *json, const char *where, const char *const *also,
                            engine_request *r, error *err);

/* The request's prompt (text, messages or ids) as token ids, as engine_submit would see it. Any
 * thread. */
status engine_tokenize(engine *e, const engine_request *r, tok_ids *out, error *err);

typedef void (*engine_notify)(void *ctx); /* something can be read, or the stream has ended */

/* Copies the request. notify may be NULL (then use engine_stream_wait). */
status engine_submit(engine *e, const engine_request *r, engine_notify notify, void *ctx,
                     engine_stream **out, error *err);

/* ---- streams --------------------------------------------------------------------------------- */

typedef enum engine_finish {
    ENGINE_FINISH_NONE,
    ENGINE_FINISH_STOP,
    ENGINE_FINISH_LENGTH,
    ENGINE_FINISH_ABORT,
    ENGINE_FINISH_ERROR,
} engine_finish;

const char *engine_finish_name(engine_finish f); /* "stop", "length", … */

typedef struct engine_usage {
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
} engine_usage;

typedef struct engine_timings {
    int64_t queue_us, ttft_us, total_us;
} engine_timings;

/* One token of one choice, or its end. Pointers are valid until the next read of this stream. */
typedef struct engine_output {
    uint32_t choice;
    bool has_token;
    step_sample sample; // token id, logprob, rank, top
    const char *text;   // the bytes now certain: whole characters, behind held-back stop prefixes
    size_t text_bytes;
    engine_finish
        finish;         // other than NONE: the last output of this choice; what follows is set too
    int64_t stop_token; // the stop token that ended it, or -1
    const char *stop_string; // the stop string that ended it, or NULL
    engine_usage usage;
    engine_timings timings;
    /* NULL when nothing asked for retention: neither the request, nor its session, nor a default
     * other than "full". */
    const retention_report *report;
    status_code error_code; // ENGINE_FINISH_ERROR: whose fault, and one line that says why
    const char *error_text;
} engine_output;

/* False when nothing can be read now. */
bool engine_stream_read(engine_stream *s, engine_output *out);
/* Waits until something can be read or every choice has ended; false when all has been read. */
bool engine_stream_wait(engine_stream *s, engine_output *out);
/* The prompt's tokens, those that its retention method cuts before the model sees the prompt too,
 * with what was measured of them. Valid from the first output that was read until the release. */
typedef struct engine_prompt {
    const uint32_t *tokens; // [n_tokens]
    uint32_t n_tokens;
    /* With prompt_logprobs, else NULL; NULL too when the request ended before its prompt did. The
     * first token has no logprob: NaN, and rank 0, and zeros for its top. */
    const float *logprobs;     // [n_tokens]
    const uint32_t *ranks;     // [n_tokens]
    uint32_t n_top;            // = the request's prompt_logprobs
    const uint32_t *top_ids;   // [n_tokens, n_top]
    const float *top_logprobs; // [n_tokens, n_top]
} engine_prompt;

engine_prompt engine_stream_prompt(const engine_stream *s);
void engine_stream_abort(engine_stream *s);
/* Aborts what still runs and frees the stream. */
void engine_stream_release(engine_stream *s);

/* ---- the cache, and numbers ------------------------------------------------------------------ */

/* Forgets every cached block: what is submitted after this call hits nothing computed before it
 * (sessions, which are no cache, go on). Unreferenced pages are free at once, referenced ones when
 * their sequences end. */
status engine_flush_cache(engine *e);
/* Reports that the backend can make no step any more, so that it is made again now, not when the
 * next request finds out. It is about the backend that restart made last: a report before restart
 * is called is about the one before. Any thread. */
void engine_backend_lost(engine *e, const char *why);

typedef enum engine_state {
    ENGINE_WORKING,
    ENGINE_RESTARTING, // the backend is stuck or being made anew
    ENGINE_BROKEN,     // it could not be made anew, or its stuck step does not even end
} engine_state;

enum { ENGINE_TROUBLE_BYTES = 640 }; // of engine_get_trouble's text, no more

typedef struct engine_stats {
    engine_state state;
    uint32_t n_live;            // requests submitted and not ended, tokenizing ones too
    uint64_t requests_prepared; // tokenized, and told to the engine thread
    sched_stats sched;
    uint64_t steps;
    int64_t compute_us, schedule_us; // summed over steps
    uint64_t requests_finished, requests_aborted, requests_failed;
} engine_stats;

engine_stats engine_get_stats(engine *e);
/* Why it is not ENGINE_WORKING, as on_trouble was told last: what it waits for. "" while it is. */
void engine_get_trouble(engine *e, char *out, size_t size);
/* A copy of the counters and histograms (metrics.h). */
void engine_get_metrics(engine *e, engine_metrics *out);

#endif
