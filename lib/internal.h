/* The structs of an engine and its requests, and helpers of both (private to lib/). */
#ifndef LIB_INTERNAL_H
#define LIB_INTERNAL_H

#include "base/base.h"
#include "cli/model_open.h"
#include "cli/retention_flags.h"
#include "lib/octavo.h"

#include <pthread.h>

struct octavo_engine {
    pthread_mutex_t lock; // of n_refs and requests
    size_t n_refs;        // the handle's, and one for each request
    octavo_request *requests;
    char **words; // the settings as a command line, ending with NULL; the flags point into it
    model_flags flags;
    retention_flags retention;
    void (*log)(void *ctx, const char *line); // NULL = none
    void *log_ctx;
    loaded_model model;
    engine *engine;
    engine_defaults defaults;
    uint32_t n_pages, page_tokens;
};

struct octavo_request {
    octavo_engine *engine;
    octavo_request *next, *previous; // in engine->requests
    engine_stream *stream;
    int fd;               // an eventfd
    _Atomic bool pending; // fd was written to since it was last cleared: saves system calls
    uint32_t n, n_ended;  // choices
    bool was_read;
    engine_output last;          // what the caller's pointers point to
    strbuf retention, retrieval; // reports of `last`
};

/* Enters a request into its engine, or takes it out and gives its reference back. */
void lib_enter(octavo_request *r);
void lib_leave(octavo_request *r);

/* ---- arguments (arguments.c) ----------------------------------------------------------------- */

/* STATUS_INVALID where the caller gave NULL. */
status lib_check_there(const void *given, const char *name, error *err);
/* Copies a struct that a caller gives, by the size that it begins with, into own [bytes]; members
 * that the caller's lacks become zero. */
status lib_take_struct(const void *given, const char *name, void *own, size_t bytes, error *err);
/* Copies the members of own [bytes] that the caller's struct has, and sets to zero those that only
 * the caller's has. False: its size was not set. */
bool lib_give_struct(void *given, const void *own, size_t bytes);
/* Makes a request of the caller's parameters, of which it copies all. The caller destroys it, also
 * on failure. */
status lib_read_params(const octavo_params *p, const engine_defaults *defaults, engine_request *out,
                       error *err);
/* Reads the settings, and the model's path, into e's flags. */
status lib_read_settings(const octavo_engine_options *o, octavo_engine *e, error *err);

/* The public status of s; writes its text where s is an error. */
octavo_status lib_tell(status s, const error *err, char *text, size_t text_bytes);
octavo_status lib_status(status_code code);

#endif
