/* Tensor-parallel ranks in other processes (private to cli/): the flags beside --tp, workers of
 * this machine, and the backend over all of them. */
#ifndef CLI_WORKERS_H
#define CLI_WORKERS_H

#include "cli/args.h"
#include "model/model.h"

typedef struct workers_flags {
    const char *where;           // NULL = "threads"; "auto", "threads", "local", or addresses
    const char *cert, *key, *ca; // PEM files
    uint32_t wait_s;             // for workers by address, when it starts
    int64_t silence_us;          // of a rank, after which it is lost; no flag; 0 = the usual
} workers_flags;

/* What ranks compute on, and their pages there. */
typedef struct workers_device {
    const char *name; // "cpu", "cuda"
    uint32_t index;   // of a worker that has no --device; local ones take this one and the next
    const char *kv_type;
} workers_device;

arg_group workers_flags_group(workers_flags *target);

typedef struct workers workers;

/* *out is NULL where the ranks are to be threads of this process. Local workers are started, and
 * listen; nobody is connected to yet. *n_ranks is --tp; when it is 1, several addresses raise it.
 * device: what they will be made on. */
status workers_create(const workers_flags *flags, const workers_device *device, uint32_t *n_ranks,
                      workers **out, error *err);
/* After its backend. Local workers end. */
void workers_destroy(workers *w);
/* The backend of options (group is not looked at) with its ranks there; again after it was
 * destroyed. overrides as of model_config_load. Once it was made STATUS_UNAVAILABLE is whatever may
 * be mended where the workers are, refusals among it: it may be tried again at once. */
status workers_make_backend(workers *w, const backend_cpu_options *options,
                            const char *const *overrides, size_t n_overrides, backend *out,
                            backend_cpu_facts *facts, error *err);
/* Who hears of ranks that are lost (worker_group_on_loss); NULL = nobody any more. */
void workers_on_loss(workers *w, void (*lost)(void *ctx, const char *why), void *ctx);
/* A backend that is being made, and any from now on, fails soon. Any thread. */
void workers_give_up(workers *w);
typedef struct workers_counts {
    uint32_t n, up; // worker_counts
    uint64_t lost;
} workers_counts;

/* Any thread. */
workers_counts workers_count(workers *w);
/* A line on stderr for each rank: where and on what it runs. */
void workers_tell(const workers *w);

/* ---- workers of this machine (workers_local.c) ----------------------------------------------- */

typedef struct workers_local {
    long supervisor; // process id; 0 = none
    int lifeline;    // closed, it ends the workers; a number written to it has that worker replaced
    uint32_t n;
    char folder[64]; // of their sockets
} workers_local;

enum { WORKER_ADDRESS_MAX = 128 };

/* n of them, from this very executable: all listen when it returns. given_up: it ends soon. */
status workers_local_start(workers_local *l, uint32_t n, const _Atomic bool *given_up, error *err);
/* Whether somebody minds them. */
bool workers_local_minded(workers_local *l);
/* Has worker i killed and started again. */
void workers_local_replace(const workers_local *l, uint32_t i);
void workers_local_stop(workers_local *l);
void workers_local_address(const workers_local *l, uint32_t i, char out[WORKER_ADDRESS_MAX]);

#endif
