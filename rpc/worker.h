/* rpc/worker: tensor-parallel ranks in other processes, behind gRPC (octavo.worker.v1).
 *
 * What     a worker serves one rank's backend to one coordinator at a time. A worker_group is the
 *          coordinator's side: for each rank a backend (backend/backend.h) whose steps a worker
 *          runs. Ranks add up among themselves (comm/), never through the coordinator.
 * Owner    options are copied; their pointers are borrowed until the server or group is destroyed,
 *          unless said otherwise. A group outlives the backends made by it.
 * Threads  a server has three: for the completion queue, for steps, and to watch for heartbeats. A
 *          group has one for heartbeats. A group's backends may be made on several threads at once;
 *          one thread then drives and destroys them (backend_ranks_options.driven). Any thread may
 *          interrupt them and copy cells.
 * Units    microseconds, bytes.
 * Errors   messages of a peer are checked field by field, and the error names the field. A lost
 *          rank is STATUS_UNAVAILABLE with rank, address and reason: "rank 1 (10.0.0.2:7000): no
 *          heartbeat for 1.5 s". A worker that does not listen (yet) is STATUS_UNAVAILABLE, too:
 *          making the ranks again later may work. Refusals (versions, another model, another
 *          coordinator) have other codes. */
#ifndef RPC_WORKER_H
#define RPC_WORKER_H

#include "backend/backend.h"
#include "comm/comm.h"

enum {
    WORKER_PROTOCOL = 25, // changes with proto/worker.proto
    WORKER_RANKS_MAX = 1024,
    WORKER_ADDRESS_BYTES_MAX = 64 << 10,
};

/* PEM files: all three, or none (plain text). Each side shows `cert`, and accepts a peer whose
 * certificate `ca` has signed. */
typedef struct worker_tls {
    const char *cert, *key, *ca;
} worker_tls;

/* The configuration of a rank. Types, comms, ISAs and devices are given by name, so that a worker
 * that lacks one can name it in its error. Texts are never NULL; "" = the default. */
typedef struct worker_config {
    uint32_t rank, size;
    const char *model;            // the folder or file, as the coordinator names it
    const char *const *overrides; // "key=value"
    size_t n_overrides;
    uint64_t config_fingerprint;  // of config.json with the overrides
    uint64_t weights_fingerprint; // of the weights' headers; 0 = dummy weights
    bool dummy;
    uint64_t dummy_seed;
    const char *comm;   // comm_options.kind: "ucx", "nccl"
    const char *device; // "cpu", "cuda"
    uint32_t device_index;
    const char *kv_type, *weight_type; // "bf16"
    uint32_t kv_residual;              // tokens
    uint32_t quant_bits, quant_attention, quant_group;
    uint32_t n_threads; // 0 = all that the worker may use
    const char *isa;
    bool high_precision;  // of activations in products
    bool batch_invariant; // on a GPU a row gets the same bits in every batch
    pkv_geometry
        geometry; // page_tokens, layers_per_group, heads_per_group; the model gives the rest
    uint64_t kv_bytes, swap_bytes; // over all ranks
    uint32_t max_rows, max_seqs, max_model_len;
    const char *cache_dir;
    const char *kv_disk;    // folder of the rank's part of a pool on disk
    uint64_t kv_disk_bytes; // over all ranks; 0 = the pool is in memory
    uint32_t silence_ms;    // the worker ends a session without a heartbeat for so long; not 0
} worker_config;

/* Facts about a loaded rank, for reports: those of backend_facts, and its device. */
typedef struct worker_facts {
    char device[128]; // "cpu, avx2", "NVIDIA H200"
    uint32_t n_threads;
    uint64_t weight_bytes, page_bytes, pool_bytes, disk_bytes, filling_bytes, swap_bytes;
    int64_t load_us;
    bool from_cache;
    char sums[224]; // as backend_facts.sums; empty: the ranks meet on their hosts
} worker_facts;

/* The address that a rank gives the others; only hosts read it. */
typedef comm_address worker_address;

/* ---- a worker -------------------------------------------------------------------------------- */

/* Callbacks that make a rank. All but abort and waits are called on the server's step thread, in
 * this order. Every session ends with reset, however far it came. Error texts are sent to the
 * coordinator. */
typedef struct worker_host {
    void *ctx;
    /* Checks the config (borrowed for the call) and makes this rank's end of the comm. The
     * address is valid until reset. */
    status (*configure)(void *ctx, const worker_config *config, worker_address *out, error *err);
    /* Connects to all ranks, in rank order. STATUS_IO: one of them could not be reached. */
    status (*join)(void *ctx, const worker_address *all, uint32_t n, error *err);
    /* Makes the backend, which the server destroys before it calls reset. */
    status (*load)(void *ctx, backend *out, worker_facts *facts, error *err);
    /* The session is over: makes a running configure, join, load or step return soon (comm_abort).
     * Called on any thread at any time from the call of configure until that of reset, but never
     * together with reset. Must not block. */
    void (*abort)(void *ctx);
    /* Frees everything that configure, join and load have made. */
    void (*reset)(void *ctx);
    /* Tells which rank this rank waits for (comm_waits); false when it cannot tell. Called under
     * the same conditions as abort. May be NULL. */
    bool (*waits)(void *ctx, comm_wait *out);
} worker_host;

typedef struct worker_server_options {
    const char *address; // "host:port" (port 0: any free one), "unix:/path"
    worker_tls tls;
    const char *version; // octavo's version: coordinators of another version are refused
    worker_host host;
    size_t part_bytes; // a larger result or plan is sent in parts of this size: the coordinator
                       // must have the same value; 0 = 64 MiB
    /* Gets a line about each change of a session, for a log. Called on any of the server's threads.
     * May be NULL. */
    void (*log_line)(void *ctx, const char *line);
    void *log_ctx;
} worker_server_options;

typedef struct worker_server worker_server;

/* The worker listens and is idle when this returns. */
status worker_server_create(const worker_server_options *options, worker_server **out, error *err);
uint16_t worker_server_port(const worker_server *s); // when it listens on "host:port"
/* Ends the session, if there is one, and joins all threads. */
void worker_server_destroy(worker_server *s);

/* ---- a coordinator --------------------------------------------------------------------------- */

typedef struct worker_group_options {
    const char *const *addresses; // [n] in rank order: "host:port", "unix:/path"
    uint32_t n;
    worker_tls tls;
    const char *version;
    const worker_config *config; // read whenever a rank is made; it fills rank, size, silence_ms
    /* A worker that answers no heartbeat for so long is lost; 0 = 1.5 s. A worker that gets none
     * for twice as long ends its session. */
    int64_t silence_us;
    int64_t patience_us; // how long Configure is repeated while a worker is busy; 0 = 5 s
    size_t part_bytes;   // as worker_server_options.part_bytes
    /* Called when a worker that the group waits for accepts connections but has answered nothing
     * for four times silence_us: its process is stopped or stuck. Called on the thread that makes
     * the rank. May be NULL. */
    void (*on_silent)(void *ctx, uint32_t rank);
    void *on_silent_ctx;
} worker_group_options;

typedef struct worker_group worker_group;

/* Makes a group, which connects to the workers when its ranks are made. */
status worker_group_create(const worker_group_options *options, worker_group **out, error *err);
/* Call it after the group's backends have been destroyed. */
void worker_group_destroy(worker_group *g);
/* Sets the callback for the first rank that is lost after all have been made, whether a step runs
 * or not. It is called on the heartbeats' thread, and must not block or call the group. NULL =
 * none. When this returns, the previous callback is not called any more. */
void worker_group_on_loss(worker_group *g, void (*lost)(void *ctx, const char *why), void *ctx);
/* Makes worker_proxy_make fail soon, in calls that run and in all later ones. Ranks that have been
 * made go on. Any thread. */
void worker_group_give_up(worker_group *g);

typedef struct worker_counts {
    uint32_t n, up; // up: workers that answered when they were last asked
    uint64_t lost;  // how many ranks have been lost so far
} worker_counts;

/* Any thread. */
worker_counts worker_group_counts(worker_group *g);
/* For backend_ranks_options.make; ctx is the group. `rank` gives the rank's number and tells
 * whether the making was aborted; it moves no data. Call it for all ranks at once, each on its own
 * thread, since they wait for each other. When one fails, all fail. */
status worker_proxy_make(void *group, comm *rank, backend *out, error *err);
/* The facts of a rank that has been made; valid until it is made again. */
const worker_facts *worker_group_facts(const worker_group *g, uint32_t rank);

#endif
