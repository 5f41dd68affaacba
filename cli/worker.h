/* The parts of `octavo worker` (private to cli/). */
#ifndef CLI_WORKER_H
#define CLI_WORKER_H

#include "cli/cli.h"
#include "rpc/worker.h"

typedef struct worker_flags {
    const char *listen;
    const char *model;         // NULL: the folder that the coordinator names, which is trusted
    const char *weights_cache; // NULL: the coordinator's, where it is trusted
    uint32_t count, threads;
    uint32_t device; // GPU of the first of them
    const char *tls_cert, *tls_key, *tls_client_ca;
    const char *local; // of a coordinator on this machine: the folder of its sockets
} worker_flags;

enum { WORKER_ANY_DEVICE = UINT32_MAX /* the coordinator says */ };

/* Whether a worker with these flags knows its coordinator: by certificates, or because only the
 * process that started the worker has its socket. Only then may a coordinator name folders. */
static inline bool worker_trusts(const worker_flags *f)
{
    return f->tls_client_ca != NULL || f->local != NULL;
}

/* ---- worker_host.c: who makes a rank --------------------------------------------------------- */

typedef struct rank_host rank_host;

/* flags are borrowed; index: which of their workers this is. */
status rank_host_create(const worker_flags *flags, uint32_t index, rank_host **out);
void rank_host_destroy(rank_host *h);
/* The callbacks. */
worker_host rank_host_callbacks(rank_host *h);

/* ---- worker_count.c: several of them --------------------------------------------------------- */

/* Runs `run` in flags->count processes of its own, and again in place of one that has ended, until
 * SIGTERM or SIGINT, or with flags->local until stdin closes; one that ends by itself before it has
 * said that it listens ends all of them. In them `lifeline` is a descriptor that closes when they
 * are to end; the result is what their process is to end with. */
int workers_supervise(const worker_flags *flags,
                      int (*run)(const worker_flags *flags, uint32_t index, int lifeline));

/* In one of them. */
void worker_say_listening(int lifeline);

/* Where number `index` listens: at the next ports, or under the next names. */
status worker_address_of(const worker_flags *flags, uint32_t index, char *out, size_t size,
                         error *err);

#endif
