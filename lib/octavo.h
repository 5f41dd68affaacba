/* octavo.h: run a language model inside a program, with a KV cache whose pages can be taken out.
 *
 *     octavo_engine_options o = octavo_engine_options_init();
 *     o.model = "models/demo";
 *     octavo_engine_open(&o, &engine, why, sizeof why);
 *     octavo_params p = octavo_params_init();
 *     p.prompt = "O Romeo, Romeo";
 *     p.retention = "chunkkv:0.25";
 *     octavo_submit(engine, &p, &request, why, sizeof why);
 *     octavo_output out = octavo_output_init();
 *     while (octavo_read(request, &out, -1) == OCTAVO_OK)
 *         fwrite(out.text, 1, out.text_bytes, stdout);
 *     octavo_request_release(request);
 *     octavo_engine_close(engine);
 *
 * Errors   Functions that can fail return an octavo_status. Those that take `error` write one line
 *          with a NUL there that says what is wrong and where, cut to error_bytes; it is untouched
 *          on success and may be NULL. On failure *out is left alone. NULL in place of an engine, a
 *          request or `out` is OCTAVO_INVALID.
 * Owner    What goes in is copied before the function returns. The caller releases each request
 *          and closes each engine, once. Pointers that come out are the library's, and say how long
 *          they live.
 * Threads  Functions of an engine: any thread, at any time until octavo_engine_close is called. A
 *          request is read by one thread at a time; octavo_abort may be called by any. The library
 *          has threads of its own, which block all signals. Nothing is shared between engines. A
 *          child made by fork() must not use its parent's.
 * Growth   Structs begin with their size, which *_init() sets. Programs go on with later versions
 *          of the library without being built again: structs grow at their ends alone, and zero in
 *          a new member means what there was before it. An older library refuses members that it
 *          does not know unless they are zero.
 * Units    Bytes of UTF-8, tokens, microseconds; timeouts in milliseconds. */
#ifndef OCTAVO_H
#define OCTAVO_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define OCTAVO_API __attribute__((visibility("default")))
#else
#define OCTAVO_API
#endif

/* Defines octavo_NAME_init, which gives an octavo_NAME with its size and zeros. */
#define OCTAVO_INIT(name)                                                                          \
    static inline octavo_##name octavo_##name##_init(void)                                         \
    {                                                                                              \
        octavo_##name zeros;                                                                       \
        memset(&zeros, 0, sizeof zeros);                                                           \
        zeros.size = sizeof zeros;                                                                 \
        return zeros;                                                                              \
    }

enum { OCTAVO_ERROR_BYTES = 512 }; /* room for every error text */

typedef enum octavo_status {
    OCTAVO_OK = 0,
    /* States of a request, not errors. */
    OCTAVO_TIMEOUT = 1, /* nothing could be read in that time */
    OCTAVO_END = 2,     /* everything has been read */
    /* Errors. */
    OCTAVO_INVALID = 16,     /* an argument, setting or field is wrong */
    OCTAVO_UNSUPPORTED = 17, /* this model, build or machine cannot do it */
    OCTAVO_NOT_FOUND = 18,
    OCTAVO_CORRUPT = 19,    /* a file or text is damaged */
    OCTAVO_LIMIT = 20,      /* more than a limit allows, such as a prompt beyond the context */
    OCTAVO_QUEUE_FULL = 21, /* too many requests wait: try later */
    OCTAVO_NO_MEMORY = 22,
    OCTAVO_IO = 23,
    OCTAVO_ABORTED = 24,
    OCTAVO_UNAVAILABLE = 25, /* the engine failed and is being made again, or closes */
    OCTAVO_INTERNAL = 26
} octavo_status;

/* The library's version, such as "0.1.0"; static. */
OCTAVO_API const char *octavo_version(void);
/* A status in words, such as "queue full"; static, never NULL. */
OCTAVO_API const char *octavo_status_text(octavo_status status);

/* ---- engines --------------------------------------------------------------------------------- */

/* A model with its KV pages, scheduler and threads. */
typedef struct octavo_engine octavo_engine;

typedef struct octavo_engine_options {
    size_t size;
    const char *model; /* a Hugging Face folder, or the path of a GGUF file */
    /* "NAME=VALUE", ending with NULL, or NULL: the flags of `octavo run` by their names, such as
     * "kv-memory=512M", "threads=4", "quantize=int8", "max-sessions=8" and "no-prefix-cache"
     * (docs/c.md). Errors name a setting as the flag. */
    const char *const *settings;
    /* Gets lines for a log, such as that the model has no chat template; NULL = they are lost.
     * Called from any thread; must not call the library. */
    void (*log)(void *ctx, const char *line);
    /* Called while weights are loaded, also when a failed backend is made again, by one thread at a
     * time; at the end done equals total. May be NULL. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx; /* of both */
} octavo_engine_options;
OCTAVO_INIT(engine_options)

/* Opens a model; takes as long as reading its weights. */
OCTAVO_API octavo_status octavo_engine_open(const octavo_engine_options *options,
                                            octavo_engine **out, char *error, size_t error_bytes);
/* Aborts what still runs. Requests can still be read, and must be released: the last release, or
 * this call when none is left, frees the engine and waits for its threads. NULL does nothing. */
OCTAVO_API void octavo_engine_close(octavo_engine *engine);

/* ---- requests -------------------------------------------------------------------------------- */

typedef struct octavo_request octavo_request;

/* Exactly one of prompt, messages and token_ids is given, here or in `fields`; a field that is
 * given twice is refused. */
typedef struct octavo_params {
    size_t size;
    const char *prompt;        /* text */
    const char *messages;      /* JSON: [{"role": "user", "content": "..."}, ...] */
    const uint32_t *token_ids; /* [n_token_ids] */
    size_t n_token_ids;
    /* Which KV pages stay (docs/retention.md): JSON, or METHOD:RATIO; NULL = the default. */
    const char *retention;
    /* Which blocks each token reads (docs/retrieval.md): JSON, METHOD or METHOD:TOKENS; NULL = each
     * reads everything. */
    const char *retrieval;
    /* The request goes on from the pages that the last request of this name left, and leaves its
     * own. A turn is submitted after the one before has ended. Needs the setting max-sessions above
     * 0, which is the default. */
    const char *session;
    uint32_t max_tokens; /* 0 = as many as the context has room for */
    /* JSON: an object with any other field of a request by its name over HTTP, such as
     * {"temperature": 0.7, "stop": ["\n"], "n": 2} (docs/api.md); NULL = none. */
    const char *fields;
} octavo_params;
OCTAVO_INIT(params)

/* Checks and queues a request. Its text is tokenised later: a prompt that does not fit ends the
 * request with an error. A request takes one file descriptor until it is released. */
OCTAVO_API octavo_status octavo_submit(octavo_engine *engine, const octavo_params *params,
                                       octavo_request **out, char *error, size_t error_bytes);

typedef enum octavo_finish {
    OCTAVO_FINISH_NONE = 0,   /* the choice goes on */
    OCTAVO_FINISH_STOP = 1,   /* a stop token or stop string */
    OCTAVO_FINISH_LENGTH = 2, /* max_tokens, or the context is full */
    OCTAVO_FINISH_ABORT = 3,  /* octavo_abort, or the engine was closed */
    OCTAVO_FINISH_ERROR = 4   /* error and error_text say why */
} octavo_finish;

/* A token of a choice, its end, or both. Pointers are valid until the next octavo_read of the
 * request. */
typedef struct octavo_output {
    size_t size;
    uint32_t choice;         /* 0 to n - 1 */
    uint32_t has_token;      /* 1: token is set */
    uint32_t token;          /* its id */
    uint32_t rank;           /* 1 = the most likely; with the field "logprobs" alone */
    float logprob;           /* NaN without the field "logprobs" */
    uint32_t n_top;          /* the field's value: likely tokens that are given beside the token */
    const uint32_t *top_ids; /* [n_top] */
    const float *top_logprobs; /* [n_top] */
    /* Text that is now certain: whole characters that are not part of a stop string. It may belong
     * to tokens before this one. No NUL behind it; "" when there is none. */
    const char *text;
    size_t text_bytes;
    /* Not OCTAVO_FINISH_NONE: this is the choice's last output, and what follows is set. */
    octavo_finish finish;
    octavo_status error;    /* with OCTAVO_FINISH_ERROR */
    const char *error_text; /* one line, or NULL */
    uint32_t prompt_tokens, completion_tokens;
    uint32_t cached_tokens;              /* of the prompt, found in the prefix cache */
    int64_t queue_us, ttft_us, total_us; /* since octavo_submit */
    const char *retention; /* JSON: the report, as over HTTP; NULL when nothing asked for one */
    const char *retrieval; /* JSON likewise; NULL when every token reads everything */
} octavo_output;
OCTAVO_INIT(output)

/* Reads the next output, waiting at most timeout_ms: 0 does not wait, -1 waits for as long as it
 * takes. OCTAVO_OK: *out is set. OCTAVO_TIMEOUT, OCTAVO_END: it has zeros. OCTAVO_INVALID: its size
 * is wrong. A request whose outputs nobody reads pauses, and its pages stay taken. */
OCTAVO_API octavo_status octavo_read(octavo_request *request, octavo_output *out, int timeout_ms);
/* A descriptor for poll(), epoll or an event loop: readable when octavo_read may have something,
 * until octavo_read has returned OCTAVO_TIMEOUT. The library's: it is only to be waited on, and
 * goes with the release. -1 for NULL. */
OCTAVO_API int octavo_request_fd(const octavo_request *request);
/* Ends every choice soon, which its last output tells; what was generated can still be read. NULL
 * does nothing. */
OCTAVO_API void octavo_abort(octavo_request *request);
/* Aborts what still runs and frees the request. NULL does nothing. */
OCTAVO_API void octavo_request_release(octavo_request *request);

/* The prompt's tokens. Pointers are valid until the release. */
typedef struct octavo_prompt {
    size_t size;
    const uint32_t *tokens; /* [n_tokens] */
    /* NULL without the field "prompt_logprobs". The first token has none: NaN and rank 0. */
    const float *logprobs;     /* [n_tokens] */
    const uint32_t *ranks;     /* [n_tokens], 1 = the most likely */
    const uint32_t *top_ids;   /* [n_tokens, n_top] */
    const float *top_logprobs; /* [n_tokens, n_top] */
    uint32_t n_tokens, n_top;
} octavo_prompt;
OCTAVO_INIT(prompt)

/* To be called after an output was read, by the thread that reads; OCTAVO_INVALID before. */
OCTAVO_API octavo_status octavo_request_prompt(const octavo_request *request, octavo_prompt *out);

/* ---- sessions, and numbers ------------------------------------------------------------------- */

/* Forgets a session: requests submitted after this call do not find it, and its pages become free.
 * Says nothing of whether there is one. */
OCTAVO_API octavo_status octavo_forget_session(octavo_engine *engine, const char *session,
                                               char *error, size_t error_bytes);

typedef struct octavo_stats {
    size_t size;
    /* Fixed when the model was opened. */
    uint32_t max_model_len; /* most tokens of prompt and answer together */
    uint32_t page_tokens;   /* tokens in a KV page */
    uint32_t pages;         /* KV pages of the pool */
    /* The state now. */
    uint32_t pages_used;     /* by sequences and sessions, each once */
    uint32_t pages_cached;   /* kept for prefix hits alone: free to others */
    uint32_t live;           /* requests submitted and not ended */
    uint32_t running;        /* choices */
    uint32_t waiting;        /* requests */
    uint32_t sessions;       /* idle, in memory */
    uint32_t working;        /* 0: the engine has failed, or is being made again */
    uint64_t logical_tokens; /* seen by sequences that hold pages */
    double kept_tokens;      /* what attention still reads of them */
    /* Since the engine was opened. */
    uint64_t steps;
    uint64_t prompt_tokens, generated_tokens;
    uint64_t cached_tokens; /* of prompts, found in the prefix cache */
    uint64_t pages_dropped; /* references to pages that retention gave up */
    uint64_t preemptions;
    uint64_t requests_finished, requests_aborted, requests_failed;
} octavo_stats;
OCTAVO_INIT(stats)

OCTAVO_API octavo_status octavo_get_stats(octavo_engine *engine, octavo_stats *out);

#ifdef __cplusplus
}
#endif

#endif
