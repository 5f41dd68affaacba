/* The flags that go with --tp. */
#include "cli/workers/workers.h"

static const arg_flag flags_table[] = {
    ARG_ROW(
        "workers", "WHERE", ARG_TEXT, workers_flags, where,
        "where the ranks of --tp run: host:port,host:port is an octavo worker for each, in rank "
        "order; local is processes of this machine, which start and end with this one; threads is "
        "threads of this process; auto is local with --tp above 1 where this build can",
        .initial = "auto"),
    ARG_ROW("workers-wait", "SECONDS", ARG_COUNT, workers_flags, wait_s,
            "how long to wait, at the start, for workers by address that are not there yet",
            .max = 86400, .initial = "30"),
    ARG_ROW(
        "workers-timeout", "MS", ARG_COUNT, workers_flags, silence_ms,
        "milliseconds without an answer to a heartbeat after which a rank in another process is "
        "lost and all requests fail; more where processes wait for a core longer than that",
        .min = 500, .max = 3600000, .initial = "1500"),
    ARG_ROW("workers-cert", "FILE", ARG_TEXT, workers_flags, cert,
            "certificate chain (PEM) to show to workers by address, which then speak TLS only"),
    ARG_ROW("workers-key", "FILE", ARG_TEXT, workers_flags, key, "its private key (PEM)"),
    ARG_ROW("workers-ca", "FILE", ARG_TEXT, workers_flags, ca,
            "CA that must have signed the workers' certificates (PEM)"),
};

arg_group workers_flags_group(workers_flags *target)
{
    return (arg_group){"Ranks in other processes", flags_table,
                       sizeof flags_table / sizeof flags_table[0], target};
}
