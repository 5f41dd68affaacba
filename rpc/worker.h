/* rpc/worker: tensor-parallel ranks in other processes, behind gRPC (octavo.worker.v1).
 *
 * What     a worker serves one rank's backend to one coordinator at a time; a worker_group is the
 *          coordinator's side: for each rank a backend (scheduler/backend.h) whose steps are made
 *          by a worker. Ranks add up among themselves (comm/), never through the coordinator.
 * Owner    options are copied, what they point to is borrowed until the thing is destroyed, unless
 *          said otherwise. A group outlives the backends made by it.
 * Threads  a server has three (the completion queue, the one that makes steps, one that watches for
 *          heartbeats), a group one for heartbeats. Backends of a group:
 *          made on any threads at once, then driven and destroyed by one (backend_ranks_options
 *          .driven); interrupt: any.
 * Units    microseconds, bytes.
 * Errors   what a peer sends is checked field by field, and the error names the field. A rank that
 *          is lost is STATUS_UNAVAILABLE, with rank, address and reason: "rank 1 (10.0.0.2:7000):
 *          no heartbeat for 1.5 s". So is a worker that is not there (yet): making the ranks again
 *          later may work. Refusals (versions, another model, another coordinator) are not. */
#ifndef RPC_WORKER_H
#define RPC_WORKER_H

#include "comm/comm.h"
#include "scheduler/backend.h"

enum {
    WORKER_PROTOCOL = 6, // changes with proto/worker.proto
    WORKER_RANKS_MAX = 1024,
    WORKER_ADDRESS_BYTES_MAX = 64 << 10, // comm_own_address
};

/* PEM files: all three, or none (plain text). Each side shows `cert`, and takes a peer whose own
 * was signed by `ca`. */
typedef struct worker_tls {
    const char *cert, *key, *ca;
} worker_tls;

/* What a rank is to be: values, and names of what they stand for, so that a worker that lacks one
 * can say so. Texts are never NULL; "" = the default. */
typedef struct worker_config {
    uint32_t rank, size;
    const char *model;            // the folder or file, as the coordinator calls it
    const char *const *overrides; // "key=value"
    size_t n_overrides;
    uint64_t config_fingerprint;  // of config.json with the overrides
    uint64_t weights_fingerprint; // of the weights' headers; 0 = dummy
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
    bool high_precision; // of activations in products on a CPU
    pkv_geometry
        geometry; // page_tokens, layers_per_group, heads_per_group; the rest is the model's
    uint64_t kv_bytes, swap_bytes; // of all ranks
    uint32_t max_rows, max_seqs, max_model_len;
    const char *cache_dir;
} worker_config;

/* About a loaded rank, for reports: backend_cpu_facts, and where it runs. */
typedef struct worker_facts {
    char device[128]; // "cpu, avx2", "NVIDIA H200"
    uint32_t n_threads;
    uint64_t weight_bytes, page_bytes, pool_bytes, filling_bytes, swap_bytes;
    int64_t load_us;
    bool from_cache;
} worker_facts;

typedef comm_address worker_address;

/* ---- a worker -------------------------------------------------------------------------------- */

/* Who makes a rank. All but abort are called on the server's one step thread, in this order, and a
 * session always ends with reset, wherever it was. `error` texts go to the coordinator. */
typedef struct worker_host {
    void *ctx;
    /* Checks the config (borrowed for the call) and makes this rank's end of the comm; its address
     * is valid until reset. */
    status (*configure)(void *ctx, const worker_config *config, worker_address *out, error *err);
    /* Connects to all ranks, in rank order. STATUS_IO: one of them could not be reached. */
    status (*join)(void *ctx, const worker_address *all, uint32_t n, error *err);
    /* Makes the backend, which the server destroys before reset. */
    status (*load)(void *ctx, backend *out, worker_facts *facts, error *err);
    /* The session is over: what configure, join, load or a step of the backend waits for is to end
     * soon (comm_abort). Any thread, while one of them runs or between them, from the call of
     * configure until that of reset; never both at once. Must not block. */
    void (*abort)(void *ctx);
    /* Frees what configure, join and load have made. */
    void (*reset)(void *ctx);
    /* Whether it can tell where this rank is among the others (comm_waits). When: as abort. May be
     * NULL. */
    bool (*waits)(void *ctx, comm_wait *out);
} worker_host;

typedef struct worker_server_options {
    const char *address; // "host:port" (port 0: any free one), "unix:/path"
    worker_tls tls;
    const char *version; // of octavo: coordinators of another one are refused
    worker_host host;
    int64_t silence_us; // a coordinator without a heartbeat for so long is gone; 0 = 3 s
    size_t part_bytes; // a result of more bytes is sent in parts of so many, and a plan in parts is
                       // of such parts: the coordinator's option must be equal; 0 = 64 MiB
    /* One line about sessions, for a log; from any of the server's threads. NULL = nobody. */
    void (*tell)(void *ctx, const char *line);
    void *tell_ctx;
} worker_server_options;

typedef struct worker_server worker_server;

/* Listens, idle, when it returns. */
status worker_server_create(const worker_server_options *options, worker_server **out, error *err);
uint16_t worker_server_port(const worker_server *s); // of "host:port"
/* Ends the session, if there is one, and all threads. */
void worker_server_destroy(worker_server *s);

/* ---- a coordinator --------------------------------------------------------------------------- */

typedef struct worker_group_options {
    const char *const *addresses; // [n] in rank order: "host:port", "unix:/path"
    uint32_t n;
    worker_tls tls;
    const char *version;
    const worker_config *config; // rank and size are filled in; read whenever a rank is made
    int64_t silence_us;  // a worker without an answer to a heartbeat for so long is lost; 0 = 1.5 s
    int64_t patience_us; // how long a worker that is not free (yet) is asked again; 0 = 5 s
    size_t part_bytes;   // as worker_server_options.part_bytes
    /* Called for a worker that the group waits for and that takes connections, but has answered
     * nothing for four times silence_us: its process is stopped, or stuck. It is called on the
     * thread that makes a rank. May be NULL. */
    void (*on_silent)(void *ctx, uint32_t rank);
    void *on_silent_ctx;
} worker_group_options;

typedef struct worker_group worker_group;

/* Connects to nobody yet. */
status worker_group_create(const worker_group_options *options, worker_group **out, error *err);
/* After its backends. */
void worker_group_destroy(worker_group *g);
/* Tells of the first rank that is lost after all have been made, whether a step runs or not, on the
 * thread of heartbeats: `lost` must not block or call the group. NULL = nobody; what was told
 * before is not called any more when this returns. */
void worker_group_on_loss(worker_group *g, void (*lost)(void *ctx, const char *why), void *ctx);
/* Ranks that are being made, and all that are to be from now on, fail soon. Those that have been
 * made go on. Any thread. */
void worker_group_give_up(worker_group *g);

typedef struct worker_counts {
    uint32_t n, up; // up: answered when they were asked last
    uint64_t lost;  // so far: ranks that a session ended for
} worker_counts;

/* Any thread. */
worker_counts worker_group_counts(worker_group *g);
/* A backend_ranks_options.make; ctx is the group, and of `rank` only the rank is asked, and whether
 * it was aborted. To be called for all ranks at once, each on a thread of its own: they wait for
 * each other. When one fails, all do. */
status worker_proxy_make(void *group, comm *rank, backend *out, error *err);
/* Of a rank that has been made; valid until it is made again. */
const worker_facts *worker_group_facts(const worker_group *g, uint32_t rank);

#endif
