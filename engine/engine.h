/* engine: requests in, token streams out.
 *
 * What     the thread that drives scheduler and backend, and everything else a request needs:
 *          parsing of its JSON fields, chat template, tokenizing (a few worker threads),
 *          detokenising, stop strings and stop tokens, lengths, logprobs, bounded output rings,
 *          reports, metrics, and a watchdog over the backend. Front ends (cli, rpc) only enqueue
 *          and read.
 * Owner    the engine borrows backend, tokenizer and template (they must outlive it); a stream
 *          belongs to the submitter of the request and is released exactly once.
 * Threads  engine_submit, engine_tokenize, engine_flush_cache, engine_get_*: any thread. A stream
 *          is read by one thread at a time, which makes the text of what it reads unless the
 *          request has stop strings; engine_stream_abort may be called by any. `notify` is called
 *          from the engine's threads, under the stream's lock: it must not block or call back into
 *          the stream, and is not called after the release.
 * Units    microseconds of the monotonic clock; bytes of UTF-8.
 * Errors   a bad request is refused by engine_submit (STATUS_INVALID, STATUS_UNSUPPORTED, or
 *          STATUS_QUEUE_FULL at once when the bounded queue is full). A request that fails later
 *          ends its own stream; other requests go on. If a whole step fails or is stuck, the
 *          requests in flight fail (STATUS_UNAVAILABLE) and the backend is made again; until then
 *          engine_submit returns STATUS_UNAVAILABLE. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "backend/backend.h"
#include "base/base.h"
#include "disk/disk.h"
#include "disk/records.h"
#include "engine/grammar/grammar.h"
#include "engine/metrics.h"
#include "engine/request_fields.h"
#include "scheduler/scheduler.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "transfer/transfer.h"

typedef struct engine engine;
typedef struct engine_stream engine_stream;

typedef struct engine_options {
    const backend *backend; // copied; what it points to is borrowed
    const tokenizer *tokenizer;
    const chat_template *chat; // NULL = the model has no chat template
    const char *bos, *eos;     // texts for the template; "" = none
    uint32_t prefill_chunk;
    uint32_t max_model_len;
    uint32_t max_logical_len; // sched_options; 0 = max_model_len
    uint32_t max_requests;    // waiting and running; one more is refused with QUEUE_FULL
    sched_policy policy;
    bool prefix_cache;
    bool identities_apart;    // a request takes no prefix hit from another identity
    const uint32_t *stop_ids; // the model's EOS ids
    uint32_t n_stop_ids;
    uint32_t ring_capacity;     // unread outputs after which a stream's sequence is paused; 0 = 256
    uint32_t tokenizer_threads; // prepare requests, the shortest prompt first; 0 = 2
    /* Retention policies, as the JSON of a request gives them (borrowed while the engine is made).
     * Error texts begin with the name of the flag. */
    const json_t *retention;          // for requests without one; NULL = full
    const json_t *pressure_retention; // compress before preempt; NULL = never
    /* The heads that the method `reform` embeds tokens by (copied), and the most bytes of
     * embeddings over requests and sessions. Without heads requests of that method are refused. */
    const embed_head *embed_heads;
    uint32_t n_embed_heads;
    size_t embed_memory;
    const char *const *retention_allow;
    uint32_t n_retention_allow; // methods that requests may name; 0 = all
    uint32_t max_sessions;      // idle sessions kept at once; 0 = sessions are ignored
    int64_t session_ttl_us;     // 0 = an idle session stays until it makes room
    /* Keeps what sessions are made of again when they are in memory no more (borrowed); NULL: they
     * are forgotten then. Its `most` is max_sessions, its ttl_us session_ttl_us. */
    disk_records *sessions;
    /* Keeps the embeddings of sessions that leave memory (borrowed); NULL: they are forgotten then.
     * Its records are of these heads. */
    disk_records *embeddings;
    /* Called on the engine thread when a block enters or leaves the prefix cache. It gets no tokens
     * of blocks that were computed for a session, with a cache_salt, or for an identity that is
     * kept apart. May be NULL. */
    void (*on_block)(void *ctx, const pkv_block_event *event);
    void *on_block_ctx;
    /* The store that takes blocks which leave the prefix cache, and gives them back when they are
     * wanted again (borrowed); NULL: there is none. It has the backend's block_bytes and
     * block_identity. */
    disk_cache *disk;
    /* Hands prompts over to other servers and takes prompts over from them (borrowed); NULL: such
     * requests are refused. */
    transfer *transfer;
    /* The watchdog: a step that takes longer than this is stuck. It is reported, its requests fail,
     * the backend is asked to stop (backend_ops.interrupt) and is then made again. 0 = no
     * watchdog. */
    int64_t step_timeout_us;
    /* Destroys the failed backend, in which no call is running any more, and makes another like it.
     * Engine thread. NULL = a failed backend stays failed. STATUS_UNAVAILABLE and
     * STATUS_NO_MEMORY: something that the backend needs (a worker, memory) is not there yet;
     * restart is called again until it is there, or the engine is destroyed. */
    status (*restart)(void *ctx, backend *out, error *err);
    void *restart_ctx;
    /* Gets one line about trouble with the backend, for a log. Called from any of the engine's
     * threads. */
    void (*on_trouble)(void *ctx, const char *text);
    void *on_trouble_ctx;
    const allocator *alloc;
} engine_options;

/* Bytes that a token takes of embed_memory: its embedding by so many heads, and its id. */
static inline size_t reform_token_bytes(uint32_t n_heads, uint32_t head_dim)
{
    return (size_t)n_heads * head_dim * sizeof(uint16_t) + sizeof(uint32_t);
}

/* The fewest layers that a reading of method `reform` runs for these heads. */
static inline uint32_t reform_layers(const embed_head *heads, uint32_t n)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < n; i++)
        if (heads[i].layer > most) most = heads[i].layer;
    return most;
}

status engine_create(const engine_options *options, engine **out, error *err);
/* Checks the options' retention policies and names of methods as engine_create does, over pages of
 * this geometry: so they can be checked before there is a backend. Reads prefill_chunk and
 * n_embed_heads, too. */
status engine_check_retention(const engine_options *options, const pkv_geometry *geometry,
                              error *err);
/* Aborts what still runs and joins the threads. Every stream must have been released. */
void engine_destroy(engine *e);

/* ---- requests -------------------------------------------------------------------------------- */

enum {
    ENGINE_STOPS_MAX = 16,
    ENGINE_STOP_BYTES_MAX = 256,
    ENGINE_BAD_WORDS_MAX = 512,
    ENGINE_N_MAX = 128,
    ENGINE_SESSION_BYTES_MAX = 256,
    ENGINE_TRANSFER_ID_BYTES = 33, // 32 hexadecimal digits and a NUL
};

/* The form that the answer is held to (docs/structured.md). */
typedef struct engine_form {
    bool given;
    bool compact;
    grammar_kind kind;
    char *text; // the source, with a NUL behind it
    size_t n;
    char field[24]; // of the request, for messages
} engine_form;

/* One request, with OpenAI's field names. Fill it by engine_request_init, then by hand or by
 * engine_request_parse. Exactly one of prompt, messages and prompt_token_ids is given. */
typedef struct engine_request {
    char *prompt;
    size_t prompt_bytes;
    json_t *messages; // an array of {role, content}; content a string or a list of text parts
    json_t *tools;    // optional, for the template
    json_t *chat_template_kwargs; // variables for the template, an object; NULL = none
    char *chat_template;          // Jinja in place of the model's own; NULL = none
    uint32_t *prompt_token_ids;
    uint32_t n_prompt_token_ids;
    int32_t truncate_prompt_tokens; // 0 = all of them are taken, -1 = as many as fit
    /* The scalar fields: temperature, n, max_tokens (0 = as many as fit), … */
#define FIELD(kind, name, ...) ENGINE_TYPE_##kind name;
#include "engine/request_fields.inc"
    bool progress;            // the reader is told how far the prompt is (engine_output.progress)
    uint32_t open_max_tokens; // the most tokens where max_tokens is 0; 0 = as many as fit
    bool score_only; // generates nothing: max_tokens was given as 0, or pooling; requires either
    /* step_pooling: engine_stream_pooled has the last token's hidden state, or the mean over the
     * prompt's tokens (POOLING_SUM). Such a request is score_only and has no session. */
    uint32_t pooling;
    bool has_seed;
    char *stop[ENGINE_STOPS_MAX];
    uint32_t n_stop;
    uint32_t *stop_token_ids;
    uint32_t n_stop_token_ids;
    uint32_t *bias_ids; // logit_bias
    float *bias;
    uint32_t n_bias;
    uint32_t *allowed_token_ids; // the tokens that may be drawn; NULL = all
    uint32_t n_allowed_token_ids;
    json_t *bad_words; // texts that the answer never has, an array; NULL = none
    engine_form form;
    char *cache_salt;  // NULL = none; requests with different salts share no prefixes
    json_t *retention; // NULL = the engine's default
    json_t *retrieval; // NULL = every token reads everything
    /* The request continues from the pages that the last request of this session left, and leaves
     * its own. NULL = no session. A session belongs to (identity, cache_salt, session): no identity
     * reaches another's. */
    char *session;
    /* Disaggregated prefill. hands_over: once the first token is drawn, which is the only one, what
     * is kept of the prompt is held for another server (engine_output.transfer); the draw leaves
     * min_tokens out. takes_over: what another server holds so is fetched instead of computed. Both
     * belong to (identity, cache_salt) as a session does. */
    bool hands_over, takes_over;
    char transfer_host[TRANSFER_HOST_BYTES]; // takes_over: the server
    uint32_t transfer_port;
    char transfer_id[ENGINE_TRANSFER_ID_BYTES]; // takes_over: what it calls the prompt
    /* The client's identity, such as a digest of its API key; opaque; NULL = none. */
    char *identity;
} engine_request;

/* Default values of fields: the model's generation_config where it has a value, else OpenAI's. */
typedef struct engine_defaults {
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    uint32_t max_tokens; // 0 = as many as fit
} engine_defaults;

void engine_request_init(engine_request *r, const engine_defaults *defaults);
void engine_request_destroy(engine_request *r);
/* Reads the members of a JSON object into r. Unknown keys are refused by name, except those in
 * `also` (a NULL-terminated list of fields that the front end reads itself, such as "id" or
 * "stream"). */
status engine_request_parse(const json_t *json, const char *where, const char *const *also,
                            engine_request *r, error *err);
/* Two ways for front ends to hold the answer to a form that another `field` of theirs gives, which
 * messages name (its first 23 bytes). A request that has a form of another field refuses it.
 *   read_form  reads an object as `structured_outputs` has it
 *   set_form   copies a grammar's source: n bytes of UTF-8, not empty but for "any JSON object" */
status engine_request_read_form(engine_request *r, const char *field, const json_t *value,
                                error *err);
status engine_request_set_form(engine_request *r, const char *field, grammar_kind kind,
                               const char *text, size_t n, error *err);

/* Reads vLLM's kv_transfer_params, an object of which unknown members are left out. */
status engine_request_read_transfer(engine_request *r, const char *where, const char *field,
                                    const json_t *value, error *err);

/* The request's prompt (text, messages or ids) as token ids, as engine_submit would see it. Any
 * thread. */
status engine_tokenize(engine *e, const engine_request *r, tok_ids *out, error *err);

typedef void (*engine_notify)(void *ctx); /* something can be read, or the stream has ended */

/* Copies the request. Without a notify (NULL), use engine_stream_wait. */
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

/* How much of a prompt that takes several steps has been computed. */
typedef struct engine_progress {
    /* "prefill", or, of method reform, "read", "gather" and "recompute"; NULL = the output is a
     * token or an end. */
    const char *phase;
    uint32_t computed_tokens, total_tokens;
} engine_progress;

/* The outcome of a request's hands_over or takes_over. */
typedef struct engine_transfer {
    bool held;                         // another server can fetch the prompt, once
    char id[ENGINE_TRANSFER_ID_BYTES]; // the name by which a server fetches the held prompt
    const char *host;                  // the address where a server fetches it
    uint16_t port;
    bool received;                      // the prompt was fetched, not computed
    uint32_t tokens;                    // of the prompt
    uint64_t bytes;                     // held or received
    char note[TRANSFER_WHY_BYTES + 32]; // why the prompt is neither held nor received, else ""
} engine_transfer;

/* One token of one choice, its end, or progress. `text` is valid until the next read of this
 * stream, the other pointers until its release. */
typedef struct engine_output {
    uint32_t choice;
    bool has_token;
    step_sample sample; // token id, logprob, rank, top
    const char *text;   // bytes now certain: whole characters that cannot begin a stop string
    size_t text_bytes;
    engine_finish
        finish;         // not NONE: this is the choice's last output, and the fields below are set
    int64_t stop_token; // the stop token that ended it, or -1
    const char *stop_string; // the stop string that ended it, or NULL
    engine_usage usage;
    engine_timings timings;
    /* NULL when neither the request, nor its session, nor a default other than "full" asked for
     * retention. */
    const retention_report *report;
    const retrieval_totals *reading; // of the choice's rows; NULL when it reads everything
    const engine_transfer *transfer; // NULL unless the request hands its prompt over or takes it
    status_code error_code; // ENGINE_FINISH_ERROR: the kind of fault, and one line that says why
    const char *error_text;
    /* Given where a request asks for it, before its first token and at most ten times a second. A
     * slow reader gets the latest alone. Such an output is of choice 0 and has nothing else. */
    engine_progress progress;
} engine_output;

/* Reads without waiting. False when nothing can be read now. */
bool engine_stream_read(engine_stream *s, engine_output *out);
/* Reads, after waiting until something can be read or every choice has ended. False when all has
 * been read. */
bool engine_stream_wait(engine_stream *s, engine_output *out);
/* The prompt's tokens, also those that its retention method cuts before the model sees the prompt,
 * and their logprobs. Valid from the first output that was read until the release. */
typedef struct engine_prompt {
    const uint32_t *tokens; // [n_tokens]
    uint32_t n_tokens;
    /* NULL without prompt_logprobs, or when the request ended before its prompt was computed. The
     * first token has no logprob: NaN, rank 0, and zeros for its top. */
    const float *logprobs;     // [n_tokens]
    const uint32_t *ranks;     // [n_tokens]
    uint32_t n_top;            // = the request's prompt_logprobs
    const uint32_t *top_ids;   // [n_tokens, n_top]
    const float *top_logprobs; // [n_tokens, n_top]
} engine_prompt;

engine_prompt engine_stream_prompt(const engine_stream *s);
/* What engine_request.pooling asks for: f32 [*n] as the final norm leaves it, of any length. NULL
 * without pooling, or when the request ended before its prompt was computed. Valid as
 * engine_prompt is. */
const float *engine_stream_pooled(const engine_stream *s, uint32_t *n);
void engine_stream_abort(engine_stream *s);
/* Aborts what still runs and frees the stream. */
void engine_stream_release(engine_stream *s);

/* Appends the last map of the request's pages, a JSON object, and has the engine thread draw the
 * next one. Does not wait: false when there is no map yet, which one of the next calls gives.
 * *taken_us: when it was drawn. All who ask within a fifth of a second get the same map, and
 * drawing takes at most a hundredth of the engine thread's time. Any thread. */
bool engine_stream_pages(engine_stream *s, strbuf *out, int64_t *taken_us);

/* ---- the cache, and numbers ------------------------------------------------------------------ */

/* Forgets every cached block: requests submitted after this call hit nothing computed before it.
 * Sessions are no cache and stay. Unreferenced pages are free at once, referenced ones when their
 * sequences end. */
status engine_flush_cache(engine *e);
/* Forgets the session of (identity, cache_salt, session), which requests name likewise, in memory
 * and on disk: requests submitted after this call do not find it. Says nothing of whether there is
 * one. STATUS_QUEUE_FULL: too many sessions are being forgotten. */
status engine_forget_session(engine *e, const engine_request *r);
/* engine_destroy will write the blocks of the prefix cache and the embeddings that only memory has
 * into their stores, as far as that is done at this time of the monotonic clock. Any thread; does
 * nothing without them. */
void engine_save_at_end(engine *e, int64_t until_us);
/* Reports that the backend can make no step any more, so that it is made again now and not only
 * when the next request needs it. The report is about the backend that `restart` made last; reports
 * from before a call of restart are about the backend before. Any thread. */
void engine_backend_lost(engine *e, const char *why);

typedef enum engine_state {
    ENGINE_WORKING,
    ENGINE_RESTARTING, // the backend is stuck or being made again
    ENGINE_BROKEN,     // the backend could not be made again, or its stuck step never ends
} engine_state;

enum { ENGINE_TROUBLE_BYTES = 640 }; // longest text of engine_get_trouble

typedef struct engine_stats {
    engine_state state;
    uint32_t n_live;            // requests submitted and not ended, also those being tokenized
    uint64_t requests_prepared; // requests tokenized and passed to the engine thread
    sched_stats sched;
    uint64_t steps;
    /* Summed over steps: the backend's time, sched_step's, and that of giving tokens and ends to
     * streams and of publishing these numbers. */
    int64_t compute_us, schedule_us, tell_us;
    uint64_t requests_finished, requests_aborted, requests_failed;
    disk_counts disk;              // all 0 without one
    disk_record_counts records;    // all 0 without engine_options.sessions
    disk_record_counts embeddings; // likewise, of engine_options.embeddings
    transfer_counts transfer;      // likewise, of engine_options.transfer
    backend_tier tier;             // summed over steps
    size_t embed_bytes;            // of engine_options.embed_memory, taken by requests and sessions
} engine_stats;

engine_stats engine_get_stats(engine *e);
/* Writes why the state is not ENGINE_WORKING, such as what the engine waits for; "" while it is. */
void engine_get_trouble(engine *e, char *out, size_t size);
/* A copy of the counters and histograms (metrics.h). */
void engine_get_metrics(engine *e, engine_metrics *out);

#endif
