/* The parts of `octavo serve` (private to cli/): flags, and the word to whoever started it. */
#ifndef CLI_SERVE_H
#define CLI_SERVE_H

#include "cli/args.h"
#include "cli/model_flags.h"
#include "cli/retention_flags.h"
#include "rpc/rpc.h"

enum { SERVE_STEP_TIMEOUT_AUTO = UINT32_MAX };

typedef struct serve_flags {
    const char *http, *grpc; // "none" = off
    arg_list names;
    uint32_t max_requests;
    arg_list keys, admin_keys;
    const char *key_file, *admin_key_file;
    bool share_prefixes;
    const char *tls_cert, *tls_key, *tls_client_ca;
    uint64_t max_body;
    uint32_t max_connections, max_streams;
    uint32_t stall_timeout_s, keepalive_timeout_s, drain_timeout_s, step_timeout_s;
    bool log_prompts;
    const char *log_file;
} serve_flags;

arg_group serve_flags_group(serve_flags *target);
void serve_flags_destroy(serve_flags *f);

/* "READY=1" and the like, to the service manager that started us (sd_notify's protocol); nothing
 * happens when none did. */
void serve_tell_manager(const char *message);

/* Makes the allocator's arenas now, so that no thread's first allocation has to (serve_arenas.c).
 */
void serve_make_arenas(void);

#endif
