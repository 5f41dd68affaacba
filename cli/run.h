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
    const char *retrieval; // METHOD:TOKENS, or JSON; likewise
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

/* Makes the messages that a conversation begins with. NULL when --system is not UTF-8. */
json_t *run_messages_start(const run_session *s);
/* False when the text is not UTF-8. */
bool run_messages_add(json_t *messages, const char *role, const char *text, size_t n);
/* Generates the answer to the messages and prints it; reply (may be NULL) receives the text of its
 * first choice, too_long (may be NULL) whether the messages do not fit the context, which is then
 * not complained of. Ctrl-C ends the answer where the waiter is armed. */
int run_messages_answer(run_session *s, json_t *messages, json_int_t turn, strbuf *reply,
                        bool *too_long);
/* Changes --retention: METHOD:RATIO, a JSON object, or "full". Errors begin with `name`; the
 * retention is then what it was. */
status run_set_retention(run_session *s, const char *name, const char *text, error *err);

/* Runs --prompts. Returns the exit status. */
int run_batch(run_session *s);
/* Runs --prompt, with or without --chat. */
int run_prompt(run_session *s);
/* Runs --chat alone: turn by turn from stdin (run_chat.c). */
int run_chat(run_session *s);

#endif
