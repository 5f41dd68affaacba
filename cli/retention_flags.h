/* The flags of the engine's retention and its sessions: those that run and serve share, and serve's
 * own. */
#ifndef CLI_RETENTION_FLAGS_H
#define CLI_RETENTION_FLAGS_H

#include "cli/args.h"
#include "engine/engine.h"

typedef struct retention_flags {
    const char *pressure; // METHOD:RATIO, or JSON
    uint32_t max_sessions, session_ttl_s;
    /* Only `serve` has these. */
    const char *standard; // METHOD:RATIO, or JSON
    const char *allow;    // METHOD,METHOD,…
    /* The values above, parsed by retention_flags_read. */
    json_t *pressure_json, *standard_json;
    char *allow_text; // holds the texts of `allowed`
    arg_list allowed;
} retention_flags;

/* The tables, for arg_command. */
arg_group retention_flags_group(retention_flags *target);
arg_group retention_flags_server_group(retention_flags *target);
void retention_flags_destroy(retention_flags *f);

/* Parses the values. Errors name the flag. The engine checks names and fields of methods. */
status retention_flags_read(retention_flags *f, error *err);
/* Sets the engine's options; they borrow from *f. */
void retention_flags_apply(const retention_flags *f, engine_options *out);

#endif
