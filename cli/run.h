/* The parts of `octavo run` (private to it). A session holds the model, its engine, and what every
 * request of this command line has in common. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "cli/cli.h"
#include "cli/model_open.h"
#include "cli/retention_flags.h"
#include "cli/run_output.h"
#include "cli/waiter.h"

typedef struct run_flags {
    const char *prompt, *prompts, *system;
    const char *retention; // METHOD:RATIO, or JSON; read into fields
    bool chat, json;
    json_t *fields; // sampling flags as members of a request; NULL when there are none
} run_flags;

typedef struct run_session {
    run_flags flags;
    retention_flags retention;
    loaded_model model;
    engine *engine;
    engine_defaults defaults;
    uint32_t max_requests; // most requests that this command keeps in the engine
    waiter *waiter;
} run_session;

static const char run_name[] = "octavo run"; // for complaints

/* Prepares a request with the command line's fields. */
static inline status run_request_init(const run_session *s, engine_request *r, error *err)
{
    engine_request_init(r, &s->defaults);
    if (!s->flags.fields) return STATUS_IS_OK;
    return engine_request_parse(s->flags.fields, "flags", NULL, r, err);
}

/* Runs --prompts. Returns the exit status. */
int run_batch(run_session *s);
/* Runs --prompt, with or without --chat. */
int run_prompt(run_session *s);
/* Runs --chat alone: turn by turn from stdin. */
int run_chat(run_session *s);

#endif
