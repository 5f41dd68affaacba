#include "cli/retention_flags.h"

#include <stdlib.h>
#include <string.h>

static const arg_flag shared_flags[] = {
    ARG_ROW("max-sessions", "N", ARG_COUNT, retention_flags, max_sessions,
            "idle sessions that are kept for their next turn; the least recently used one of the "
            "API key that has most makes room, 0 keeps none",
            .max = 65536, .initial = "256"),
    ARG_ROW("session-ttl", "SECONDS", ARG_COUNT, retention_flags, session_ttl_s,
            "an idle session is dropped after so long; 0: only when it makes room for others",
            .max = 86400 * 30, .initial = "600"),
    ARG_ROW("pressure-retention", "METHOD:RATIO", ARG_TEXT, retention_flags, pressure,
            "when pages are short, requests with \"pressure\": true in their retention drop whole "
            "pages by this method, such as chunkkv:0.3, before any sequence is preempted; a JSON "
            "object gives the method's parts (default: off)"),
};

static const arg_flag server_flags[] = {
    ARG_ROW("retention", "METHOD:RATIO", ARG_TEXT, retention_flags, standard,
            "of requests that give none, such as chunkkv:0.25; a JSON object gives the method's "
            "parts; see octavo methods (default: full)"),
    ARG_ROW("retention-allow", "METHOD,METHOD", ARG_TEXT, retention_flags, allow,
            "methods that requests may name (default: all)"),
};

arg_group retention_flags_group(retention_flags *target)
{
    return (arg_group){"Sessions", shared_flags, sizeof shared_flags / sizeof shared_flags[0],
                       target};
}

arg_group retention_flags_server_group(retention_flags *target)
{
    return (arg_group){"Retention", server_flags, sizeof server_flags / sizeof server_flags[0],
                       target};
}

void retention_flags_destroy(retention_flags *f)
{
    json_decref(f->pressure_json);
    json_decref(f->standard_json);
    free(f->allow_text);
    free(f->allowed.items);
    *f = (retention_flags){0};
}

/* ---- values ---------------------------------------------------------------------------------- */

static status read_names(const char *flag, retention_flags *f, error *err)
{
    f->allow_text = strdup(f->allow);
    f->allowed.items = calloc(strlen(f->allow) + 1, sizeof *f->allowed.items);
    if (!f->allow_text || !f->allowed.items)
        return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", flag);
    char *rest = NULL;
    for (char *name = strtok_r(f->allow_text, ", ", &rest); name;
         name = strtok_r(NULL, ", ", &rest))
        f->allowed.items[f->allowed.n++] = name;
    if (f->allowed.n) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: names no method", flag);
}

status retention_flags_read(retention_flags *f, error *err)
{
    if (f->pressure)
        RETURN_IF_ERROR(
            retention_read_text("--pressure-retention", f->pressure, &f->pressure_json, err));
    if (f->standard)
        RETURN_IF_ERROR(retention_read_text("--retention", f->standard, &f->standard_json, err));
    return f->allow ? read_names("--retention-allow", f, err) : STATUS_IS_OK;
}

void retention_flags_apply(const retention_flags *f, engine_options *out)
{
    out->retention = f->standard_json;
    out->pressure_retention = f->pressure_json;
    out->retention_allow = f->allowed.items;
    out->n_retention_allow = (uint32_t)f->allowed.n;
    out->max_sessions = f->max_sessions;
    out->session_ttl_us = (int64_t)f->session_ttl_s * 1000000;
}
