/* Tensor-parallel ranks in other processes (private to cli/): the flags beside --tp, the workers of
 * this machine, and the backend over all of them. */
#ifndef CLI_WORKERS_WORKERS_H
#define CLI_WORKERS_WORKERS_H

#include "cli/args.h"
#include "model/model.h"

typedef struct workers_flags {
    const char *where;           // NULL = "threads"; "auto", "threads", "local", or addresses
    const char *cert, *key, *ca; // PEM files
    uint32_t wait_s;             // for workers by address, at the start
    uint32_t silence_ms;         // silence after which a rank is lost; 0 = the default
} workers_flags;

/* The device that the ranks compute on, how they do, and the format of their pages. */
typedef struct workers_device {
    const char *name; // "cpu", "cuda"
    uint32_t index;   // for workers without --device; local ones take this one and the next
    const char *kv_type;
    bool batch_invariant; // on a GPU
} workers_device;

arg_group workers_flags_group(workers_flags *target);

typedef struct workers workers;

/* *out is NULL where the ranks are to be threads of this process. Local workers are started and
 * listen when it returns; connections are made with the backend. *n_ranks is --tp; when it is 1,
 * several addresses raise it. device: where the ranks will compute. */
status workers_create(const workers_flags *flags, const workers_device *device, uint32_t *n_ranks,
                      workers **out, error *err);
/* To be called after the backend is destroyed. Ends local workers. */
void workers_destroy(workers *w);
/* Makes the backend of `options` with its ranks at the workers (options->group is ignored), the
 * first time or again after it was destroyed. overrides are those of model_config_load. Once it was
 * made, any failure that can be mended where the workers are, a refusal included, is
 * STATUS_UNAVAILABLE: the call may be repeated at once. */
status workers_make_backend(workers *w, const backend_options *options,
                            const char *const *overrides, size_t n_overrides, backend *out,
                            backend_facts *facts, error *err);
/* Sets the function that is called when a rank is lost (worker_group_on_loss); NULL = none. */
void workers_on_loss(workers *w, void (*lost)(void *ctx, const char *why), void *ctx);
/* From now on making a backend fails soon, even one that is being made. Any thread. */
void workers_give_up(workers *w);
typedef struct workers_counts {
    uint32_t n, up; // as in worker_counts
    uint64_t lost;
} workers_counts;

/* Any thread. */
workers_counts workers_count(workers *w);
/* Prints a line on stderr for each rank: where and on what it runs. */
void workers_log(const workers *w);

/* ---- workers of this machine (workers_local.c) ----------------------------------------------- */

typedef struct workers_local {
    long supervisor; // process id; 0 = none
    int lifeline;    // closing it ends the workers; writing a number has that worker replaced
    uint32_t n;
    char folder[64]; // of the workers' sockets
} workers_local;

enum { WORKER_ADDRESS_MAX = 128 };

/* Starts n workers from this very executable; all listen when it returns. It ends soon once
 * given_up is set. */
status workers_local_start(workers_local *l, uint32_t n, const _Atomic bool *given_up, error *err);
/* Whether the supervisor still runs. One that is stopped (SIGSTOP) would start no worker again: it
 * is killed, with its workers. */
bool workers_local_minded(workers_local *l);
/* Has worker i killed and started again. */
void workers_local_replace(const workers_local *l, uint32_t i);
void workers_local_stop(workers_local *l);
void workers_local_address(const workers_local *l, uint32_t i, char out[WORKER_ADDRESS_MAX]);

#endif
