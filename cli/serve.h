/* The parts of `octavo serve` (private to cli/): flags, keys, memory, stores on disk, transfers,
 * and messages to the service manager. */
#ifndef CLI_SERVE_H
#define CLI_SERVE_H

#include "cli/args.h"
#include "cli/model_open.h"
#include "cli/retention_flags.h"
#include "rpc/rpc.h"

enum { SERVE_STEP_TIMEOUT_AUTO = UINT32_MAX, SERVE_PORT_OF_HTTP = UINT32_MAX };

typedef struct serve_flags {
    const char *http, *grpc; // "none" = off
    const char *host;        // NULL, or in place of the host of http
    uint32_t port;           // SERVE_PORT_OF_HTTP, or in place of its port
    char *http_text;         // what host and port make of http; http points to it
    arg_list names;
    uint32_t max_requests;
    arg_list keys, admin_keys, cors_origins;
    const char *key_file, *admin_key_file;
    char *key_file_text, *admin_key_file_text; // hold the keys of the files
    bool share_prefixes;
    const char *tls_cert, *tls_key, *tls_client_ca;
    uint64_t max_body;
    uint32_t max_connections, max_streams, grpc_threads, tokenizer_threads;
    uint32_t stall_timeout_s, keepalive_timeout_s, drain_timeout_s, step_timeout_s;
    const char *tool_call_parser, *reasoning_parser;
    uint64_t responses_memory;
    uint32_t responses_ttl_s;
    bool request_templates;
    bool no_ui;
    bool log_prompts;
    const char *log_file;
    const char *kv_events_config;     // NULL, or JSON
    const char *otlp_traces_endpoint; // NULL, or a URL
    const char *disk_cache;           // NULL, or a folder
    uint64_t disk_size;
    const char *transfer_listen; // NULL, or HOST:PORT
    arg_list transfer_peers;
    uint64_t transfer_memory;
    uint32_t transfer_ttl_s, transfer_timeout_s;
} serve_flags;

arg_group serve_flags_group(serve_flags *target);
void serve_flags_destroy(serve_flags *f);
/* Puts --host and --port into --http. */
status serve_flags_join(serve_flags *f, error *err);

/* Reads the files of keys and checks the keys of both kinds (serve_keys.c). A key in both lists is
 * refused: it would make a client an administrator. */
status serve_read_keys(serve_flags *f, error *err);

/* How API keys share cached prefixes. */
typedef enum serve_sharing {
    SERVE_PREFIXES_OPEN,   // there are no keys
    SERVE_PREFIXES_JOINED, // all keys hit the same prefixes
    SERVE_PREFIXES_APART,  // a key hits its own
} serve_sharing;

serve_sharing serve_sharing_of(const serve_flags *f);

/* Sends "READY=1" and the like to the service manager that started this process (sd_notify's
 * protocol); does nothing when none did. */
void serve_notify_manager(const char *message);

/* Memory that a server takes beside its backend and the bodies of requests: threads, connections,
 * requests. A server of the demo model was seen to take 4 MiB while idle, and 20 MiB with 64
 * clients. */
enum { SERVE_OWN_BYTES = 16 << 20 };

/* How a server shares the memory that its model leaves. */
typedef struct serve_room {
    uint64_t swap;      // the host tier
    uint64_t embeds;    // embeddings of method reform
    uint64_t transfer;  // transfer_options.bytes
    uint64_t responses; // rpc_options.responses_bytes
    uint64_t bodies;    // rpc_options.body_memory_bytes; 0 = not known, the model runs elsewhere
} serve_room;

/* The memory and disk space that a server wants beside its model. */
typedef struct serve_wants {
    uint64_t max_body;
    uint64_t disk_size; // of the prefix cache on disk; 0 = none
    uint64_t responses; // --responses-memory
    uint64_t transfer;  // --kv-transfer-memory; 0 where no prompts go from server to server
    uint64_t embeds;    // --embed-memory; 0 where the model has no heads for method reform
} serve_wants;

/* Shares the bound's memory: the host tier may have what the largest request leaves, embeddings
 * half of what is left then, prompts of other servers half of the rest, stored responses at their
 * most a quarter of what is left by them, and bodies what remains.
 * Refuses needs that exceed the bound, with figures, because the kernel would end such a server
 * under load. STATUS_NO_MEMORY. */
status serve_check_needs(const backend_cpu_needs *needs, const serve_wants *wants,
                         const memory_bound *bound, serve_room *out, error *err);
/* Checks retention policies and names of methods against the geometry of the model that the flags
 * choose. Reads the model's configuration, and no weights. */
status serve_check_retention(const model_flags *flags, const retention_flags *retention,
                             error *err);
/* Checks the needs of the model that the flags choose against the memory of this process, when the
 * model is to run on the CPUs of this machine. Reads no weights. */
status serve_check_memory(const model_flags *flags, const serve_flags *serving, serve_room *out,
                          error *err);

/* The flags of `octavo serve`, checked, and the model that they chose. */
typedef struct serve_setup {
    const serve_flags *flags;
    const model_flags *model_flags;
    const retention_flags *retention;
    const loaded_model *model;
    rpc_log *log;
} serve_setup;

/* Stores in the folder of --disk-cache; NULL: none are kept on disk. */
typedef struct serve_stores {
    disk_cache *blocks; // of the prefix cache
    disk_records *sessions, *embeddings;
} serve_stores;

/* Opens what the flags ask for (serve_disk.c). The setup's log outlives the stores. On failure
 * serve_close_stores closes what is open. */
status serve_open_stores(const serve_setup *setup, serve_stores *out, error *err);
void serve_close_stores(serve_stores *s);

/* Opens what hands prompts over to other servers and fetches theirs, within so many bytes
 * (serve_transfer.c). *out is NULL where the flags ask for neither. */
status serve_open_transfer(const serve_flags *flags, const backend_info *info, uint64_t bytes,
                           transfer **out, error *err);
/* vLLM's name of what the server does with prompts then; NULL = neither. */
const char *serve_kv_role(const serve_flags *flags);

/* Makes the allocator's arenas now, so that no thread's first allocation has to
 * (serve_arenas.c). */
void serve_make_arenas(void);

#endif
