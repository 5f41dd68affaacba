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

/* What a server takes beside its backend: threads, connections, requests and their bodies. Of a
 * server of the demo model, 4 MiB were seen while it was idle, and 20 MiB with 64 clients. */
enum { SERVE_OWN_BYTES = 16 << 20 };

/* Refuses needs that exceed the bound, with figures: the kernel would end the server under load.
 * STATUS_NO_MEMORY. */
status serve_check_needs(const backend_cpu_needs *needs, const memory_bound *bound, error *err);
/* The same of the model that the flags choose, when it is to run on the CPUs of this machine, and
 * of what bounds the memory of this process. Nothing is loaded. */
status serve_check_memory(const model_flags *flags, error *err);

/* Makes the allocator's arenas now, so that no thread's first allocation has to (serve_arenas.c).
 */
void serve_make_arenas(void);

#endif
