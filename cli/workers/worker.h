/* The parts of `octavo worker` (private to cli/). */
#ifndef CLI_WORKERS_WORKER_H
#define CLI_WORKERS_WORKER_H

#include "cli/cli.h"
#include "rpc/worker.h"

typedef struct worker_flags {
    const char *listen;
    const char *model;         // NULL: the coordinator names the folder; only where it is trusted
    const char *weights_cache; // NULL: the coordinator's folder, where it is trusted
    const char *kv_disk;       // likewise
    uint64_t kv_disk_size;     // most bytes of the file in it; 0 = what the coordinator asks for
    uint32_t count, threads;
    uint32_t device; // GPU of the first worker
    const char *tls_cert, *tls_key, *tls_client_ca;
    const char *local; // with a coordinator on this machine: the folder of the sockets
} worker_flags;

enum { WORKER_ANY_DEVICE = UINT32_MAX /* the coordinator names the device */ };

/* Whether a worker with these flags can trust its coordinator: it has shown a certificate, or only
 * the process that started the worker can reach its socket. A coordinator that is not trusted may
 * not name folders. */
static inline bool worker_trusts(const worker_flags *f)
{
    return f->tls_client_ca != NULL || f->local != NULL;
}

/* ---- worker_host.c: makes a rank ------------------------------------------------------------- */

typedef struct rank_host rank_host;

/* flags are borrowed; index is the number of this worker among flags->count. */
status rank_host_create(const worker_flags *flags, uint32_t index, rank_host **out);
void rank_host_destroy(rank_host *h);
/* The host's callbacks for worker_server_create. */
worker_host rank_host_callbacks(rank_host *h);

/* ---- worker_count.c: several workers of one command ------------------------------------------ */

/* The supervisor: calls `run` in each of flags->count processes, and starts a process again when it
 * ends, until SIGTERM or SIGINT, or with flags->local until stdin closes. A process that exits
 * before it ever listened ends all of them.
 *
 * Returns twice: in the supervisor at the end, and in each process with the result of `run`; either
 * way with the exit status of the process. `lifeline` is a descriptor that closes when the process
 * is to end. */
int workers_supervise(const worker_flags *flags,
                      int (*run)(const worker_flags *flags, uint32_t index, int lifeline));

/* Called in a supervised process: tells the supervisor that the process listens. */
void worker_print_listening(int lifeline);

/* Writes the address of worker number `index`: the following ports, or names with a suffix. */
status worker_address_of(const worker_flags *flags, uint32_t index, char *out, size_t size,
                         error *err);

#endif
