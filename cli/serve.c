/* `octavo serve`: serves a model over HTTP and gRPC until a signal ends it. */
#include "cli/serve.h"

#include "cli/cli.h"
#include "cli/waiter.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char serve_name[] = "octavo serve";

/* Tokens of KV events that are kept for subscribers that fall behind. */
enum { EVENT_TOKENS = 1 << 20 };
enum { LOOK_MS = 1000, DRAIN_LOOK_MS = 20 };

typedef struct serving {
    serve_flags flags;
    model_flags model_flags;
    retention_flags retention;
    serve_room room;
    loaded_model model;
    char *folder_name; // the default name
    waiter *waiter;
    int log_fd;
    uint32_t grpc_descriptors; // for gRPC's connections
    rpc_log *log;
    rpc_events *events;
    serve_stores stores;
    transfer *transfer;
    engine *engine;
    rpc_server *server;
} serving;

static const char about[] =
    "Serves a model over OpenAI-compatible HTTP and over gRPC (octavo.v1, vllm.grpc.engine,\n"
    "KServe v2, health, reflection). The log is JSON lines on stderr, one for each request.\n"
    "\n"
    "SIGTERM or Ctrl-C drains: health reports NOT_SERVING, new requests are refused, those in\n"
    "flight have --drain-timeout seconds to finish, and the exit status is 0. A second one\n"
    "stops at once (exit status 130). The exit status is 1 when the model's backend failed and\n"
    "could not be restarted.";

/* ---- checks across flags --------------------------------------------------------------------- */

static bool is_on(const char *address) { return strcmp(address, "none") != 0; }

static status check_flags(const serve_flags *f, error *err)
{
    if (!is_on(f->http) && !is_on(f->grpc))
        return error_set(err, STATUS_INVALID, "--http and --grpc are both none");
    if (!f->tls_cert != !f->tls_key)
        return error_set(err, STATUS_INVALID, "--tls-cert and --tls-key belong together");
    if (f->tls_client_ca && !f->tls_cert)
        return error_set(err, STATUS_INVALID, "--tls-client-ca needs --tls-cert");
    if (f->disk_cache && !*f->disk_cache)
        return error_set(err, STATUS_INVALID, "--disk-cache: names no folder");
    for (size_t i = 0; i < f->names.n; i++) {
        const char *name = f->names.items[i];
        if (!*name || !utf8_valid((const uint8_t *)name, strlen(name)))
            return error_set(err, STATUS_INVALID, "--served-model-name: must be a text in UTF-8");
    }
    return STATUS_IS_OK;
}

/* "models/demo/" is served as "demo". */
static status name_model(serving *s, error *err)
{
    if (s->flags.names.n) return STATUS_IS_OK;
    char *path = realpath(s->model_flags.dir, NULL);
    if (!path) return error_set(err, STATUS_IO, "%s: %s", s->model_flags.dir, strerror(errno));
    const char *slash = strrchr(path, '/');
    const char *base = slash && slash[1] ? slash + 1 : path;
    /* The name is to be valid in JSON and in metrics. */
    bool usable = utf8_valid((const uint8_t *)base, strlen(base));
    s->folder_name = strdup(usable ? base : "model");
    free(path);
    if (!s->folder_name) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    return arg_list_add(&s->flags.names, s->folder_name)
               ? STATUS_IS_OK
               : error_set(err, STATUS_NO_MEMORY, "out of memory");
}

static status open_log(serving *s, error *err)
{
    const char *path = s->flags.log_file;
    s->log_fd = STDERR_FILENO;
    const int flags = O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK;
    if (path) s->log_fd = open(path, O_WRONLY | flags, 0640);
    /* A FIFO without a reader keeps lines for a later one; once it is full, lines are dropped. */
    if (s->log_fd < 0 && errno == ENXIO) s->log_fd = open(path, O_RDWR | flags, 0640);
    if (s->log_fd < 0)
        return error_set(err, STATUS_IO, "--log-file: %s: %s", path, strerror(errno));
    status st = rpc_log_create(s->log_fd, s->flags.log_prompts, &s->log);
    return status_ok(st) ? st : error_set(err, st.code, "out of memory");
}

/* Raises the limit of descriptors: each client takes one, and the default soft limit is often
 * 1,024. A client for which no descriptor is free is not turned away but waits, even if it asks for
 * health. So HTTP and gRPC get descriptors of their own: where the hard limit is low, too, HTTP
 * gets three quarters of the room, and gRPC what is left. */
static void raise_descriptors(serving *s)
{
    enum { OTHERS = 256, OWN = 32 }; // files and gRPC's sockets; descriptors of an idle server
    enum { LINGERING = 64 };         // HTTP connections that end with an early refusal
    enum { GRPC_LEAST = 4, GRPC_MOST = 5120 }; // 4,095 connections, and those that wait
    struct rlimit r;
    char text[160];
    uint32_t *most = &s->flags.max_connections;
    s->grpc_descriptors = GRPC_LEAST;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0) return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    rlim_t all = r.rlim_max > OWN ? r.rlim_max - OWN : 0;
    all -= all / 8 < LINGERING ? all / 8 : LINGERING;
    rlim_t http = all * 3 / 4;
    bool is_low = r.rlim_max < (rlim_t)*most + OTHERS;
    if (!is_low) http = (rlim_t)*most + RPC_SURPLUS_CONNECTIONS;
    if (all - http > GRPC_LEAST)
        s->grpc_descriptors = (uint32_t)(all - http < GRPC_MOST ? all - http : GRPC_MOST);
    if (!is_low) return;
    rlim_t fit = http > 3 * RPC_SURPLUS_CONNECTIONS ? http - RPC_SURPLUS_CONNECTIONS : http * 2 / 3;
    if (fit < *most) *most = fit > 0 ? (uint32_t)fit : 1;
    snprintf(text, sizeof text,
             "%llu descriptors are few: %u HTTP connections at once, %u descriptors for gRPC's",
             (unsigned long long)r.rlim_max, *most, s->grpc_descriptors);
    rpc_log_note(s->log, "warning", "limits", text);
}

/* A step counts as stuck only after the time in which a CPU of 1 GFLOP/s a thread would be done: a
 * false alarm costs every request, a late one costs minutes. */
static int64_t step_timeout_us(const serving *s)
{
    enum { FLOPS_OF_A_THREAD = 1000000000, LEAST_S = 60 };
    if (s->flags.step_timeout_s != SERVE_STEP_TIMEOUT_AUTO)
        return (int64_t)s->flags.step_timeout_s * 1000000;
    if (s->model.on_gpu) return (int64_t)LEAST_S * 1000000;
    const model_config *c = &s->model.config;
    double rows = (double)s->model.prefill_chunk + s->model.max_batch;
    /* An operation a byte: two for a weight of 2 bytes, half of one for a weight of 4 bits. */
    double weights = (double)s->model.facts.weight_bytes;
    double attention = 4.0 * s->model.max_model_len * c->n_heads * c->head_dim * c->n_layers;
    double rate = (double)FLOPS_OF_A_THREAD * s->model.facts.n_threads;
    return (int64_t)((LEAST_S + rows * (weights + attention) / rate) * 1e6);
}

/* ---- starting -------------------------------------------------------------------------------- */

static void on_loss(void *ctx, const char *why) { engine_backend_lost(ctx, why); }

static void count_workers(void *ctx, rpc_workers *out)
{
    workers_counts c = workers_count(ctx);
    *out = (rpc_workers){c.n, c.up, c.lost};
}

static void on_trouble(void *log, const char *text) { rpc_log_note(log, "error", "backend", text); }

static status start_engine(serving *s, error *err)
{
    uint32_t page_tokens = s->model.options.geometry.page_tokens;
    status st = rpc_events_create(EVENT_TOKENS / page_tokens, page_tokens, &s->events);
    if (!status_ok(st)) return error_set(err, st.code, "out of memory");
    engine_options o = model_engine_options(&s->model, s->flags.max_requests);
    retention_flags_apply(&s->retention, &o);
    o.tokenizer_threads = s->flags.tokenizer_threads;
    o.identities_apart = serve_sharing_of(&s->flags) == SERVE_PREFIXES_APART;
    o.on_block = rpc_events_on_block;
    o.on_block_ctx = s->events;
    o.disk = s->stores.blocks;
    o.sessions = s->stores.sessions;
    o.embeddings = s->stores.embeddings;
    o.transfer = s->transfer;
    o.step_timeout_us = step_timeout_us(s);
    o.restart = model_restart;
    o.restart_ctx = &s->model;
    o.on_trouble = on_trouble;
    o.on_trouble_ctx = s->log;
    RETURN_IF_ERROR(engine_create(&o, &s->engine, err));
    if (s->model.workers) workers_on_loss(s->model.workers, on_loss, s->engine);
    return STATUS_IS_OK;
}

static rpc_model facts_of(const serving *s)
{
    const loaded_model *m = &s->model;
    const backend_info *info = m->backend.ops->info(m->backend.ctx);
    uint32_t n_pages = info->n_pages - 1;
    return (rpc_model){
        .names = s->flags.names.items,
        .n_names = s->flags.names.n,
        .dir = s->model_flags.dir,
        .architecture = m->config.architecture,
        .tokenizer = m->tokenizer,
        .chat = m->chat,
        .bos = m->bos.data ? m->bos.data : "",
        .eos = m->eos.data ? m->eos.data : "",
        .defaults = model_defaults(m),
        .eos_ids = m->config.stop_ids,
        .n_eos_ids = m->config.n_stop_ids,
        .bos_id = m->config.bos_id,
        .vocab_size = m->config.vocab_size,
        .max_model_len = m->max_model_len,
        .max_logical_len = m->max_logical_len,
        .page_tokens = m->options.geometry.page_tokens,
        .n_pages = n_pages,
        .n_blocks = n_pages / pkv_groups(&info->geometry),
        .max_batch = m->max_batch,
        .max_requests = s->flags.max_requests,
        .weight_dtype = dtype_name(m->options.weight_type),
        .kv_dtype = m->kv_name,
        .isa = m->facts.isa,
    };
}

/* Fills all options except those that are known only once the model is loaded. */
static rpc_options options_of(const serving *s)
{
    const serve_flags *f = &s->flags;
    return (rpc_options){
        .log = s->log,
        .version = OCTAVO_VERSION,
        .commit = OCTAVO_COMMIT,
        .http_address = is_on(f->http) ? f->http : NULL,
        .grpc_address = is_on(f->grpc) ? f->grpc : NULL,
        .kv_events_config = f->kv_events_config,
        .otlp_traces_endpoint = f->otlp_traces_endpoint,
        .kv_role = serve_kv_role(f),
        .tls_cert = f->tls_cert,
        .tls_key = f->tls_key,
        .tls_client_ca = f->tls_client_ca,
        .api_keys = f->keys.items,
        .n_api_keys = f->keys.n,
        .admin_keys = f->admin_keys.items,
        .n_admin_keys = f->admin_keys.n,
        .cors_origins = f->cors_origins.items,
        .n_cors_origins = f->cors_origins.n,
        .max_body_bytes = f->max_body,
        .body_memory_bytes = s->room.bodies,
        .max_connections = f->max_connections,
        .max_grpc_descriptors = s->grpc_descriptors,
        .max_streams = f->max_streams,
        .grpc_threads = f->grpc_threads,
        .tool_call_parser = f->tool_call_parser,
        .reasoning_parser = f->reasoning_parser,
        .responses_bytes = s->room.responses,
        .responses_ttl_us = (int64_t)f->responses_ttl_s * 1000000,
        .request_templates = f->request_templates,
        .no_ui = f->no_ui,
        .stall_timeout_us = (int64_t)f->stall_timeout_s * 1000000,
        .keepalive_timeout_us = (int64_t)f->keepalive_timeout_s * 1000000,
    };
}

static status check_server(const serving *s, error *err)
{
    rpc_options o = options_of(s);
    return rpc_server_check(&o, err);
}

static status start_server(serving *s, error *err)
{
    rpc_options o = options_of(s);
    o.engine = s->engine;
    o.model = facts_of(s);
    o.events = s->events;
    if (s->model.workers) {
        o.workers = count_workers;
        o.workers_ctx = s->model.workers;
    }
    return rpc_server_create(&o, &s->server, err);
}

static status start_serving(serving *s, error *err)
{
    RETURN_IF_ERROR(waiter_create(&s->waiter, err));
    RETURN_IF_ERROR(serve_read_keys(&s->flags, err));
    RETURN_IF_ERROR(open_log(s, err));
    raise_descriptors(s);
    RETURN_IF_ERROR(check_server(s, err));
    RETURN_IF_ERROR(serve_check_retention(&s->model_flags, &s->retention, err));
    RETURN_IF_ERROR(serve_check_memory(&s->model_flags, &s->flags, &s->room, err));
    if (s->room.bodies && s->room.swap < s->model_flags.swap_memory)
        s->model_flags.swap_memory = s->room.swap;
    if (s->room.bodies && s->room.embeds < s->model_flags.embed_memory)
        s->model_flags.embed_memory = s->room.embeds;
    serve_make_arenas();
    RETURN_IF_ERROR(model_open(&s->model_flags, true, &s->model, err));
    RETURN_IF_ERROR(name_model(s, err));
    model_log(&s->model, s->model_flags.dir);
    const serve_setup setup = {&s->flags, &s->model_flags, &s->retention, &s->model, s->log};
    RETURN_IF_ERROR(serve_open_stores(&setup, &s->stores, err));
    RETURN_IF_ERROR(serve_open_transfer(&s->flags, s->model.backend.ops->info(s->model.backend.ctx),
                                        s->room.transfer, &s->transfer, err));
    RETURN_IF_ERROR(start_engine(s, err));
    return start_server(s, err);
}

/* ---- the line that tells how to call it ------------------------------------------------------ */

/* Writes the host of "host:port" as a client on this machine would name it. */
static void put_host(const char *address, char *out, size_t size)
{
    const char *colon = strrchr(address, ':');
    int n = colon ? (int)(colon - address) : 0;
    bool any = n == 0 || strncmp(address, "0.0.0.0:", 8) == 0 || strncmp(address, "[::]:", 5) == 0;
    if (any) snprintf(out, size, "localhost");
    else snprintf(out, size, "%.*s", n, address);
}

static void log_addresses(const serving *s)
{
    const serve_flags *f = &s->flags;
    char host[256];
    if (is_on(f->http)) {
        put_host(f->http, host, sizeof host);
        fprintf(stderr,
                "octavo: HTTP at http%s://%s:%u, for example:\n"
                "  curl -N http%s://%s:%u/v1/completions%s \\\n"
                "    --json '{\"model\":\"%s\",\"prompt\":\"O Romeo, Romeo\",\"max_tokens\":40,"
                "\"stream\":true}'\n",
                f->tls_cert ? "s" : "", host, rpc_server_http_port(s->server),
                f->tls_cert ? "s" : "", host, rpc_server_http_port(s->server),
                f->keys.n ? " -H \"Authorization: Bearer $KEY\"" : "", f->names.items[0]);
    }
    if (is_on(f->grpc)) {
        put_host(f->grpc, host, sizeof host);
        fprintf(stderr,
                "octavo: gRPC at %s:%u, for example:\n"
                "  grpcurl %s%s-d '{\"prompt\":\"O Romeo, "
                "Romeo\",\"sampling\":{\"max_tokens\":40}}' \\\n"
                "    %s:%u octavo.v1.Inference/Generate\n",
                host, rpc_server_grpc_port(s->server), f->tls_cert ? "" : "-plaintext ",
                f->keys.n ? "-H \"authorization: Bearer $KEY\" " : "", host,
                rpc_server_grpc_port(s->server));
    }
}

/* ---- until the end --------------------------------------------------------------------------- */

/* Waits for a signal. False when the engine broke down for good. */
static bool serve_until_signal(serving *s)
{
    while (!waiter_interrupted(s->waiter)) {
        if (engine_get_stats(s->engine).state == ENGINE_BROKEN) return false;
        waiter_wait(s->waiter, -1, LOOK_MS);
    }
    return true;
}

static void drain_server(serving *s)
{
    int64_t until_us = clock_now_us() + (int64_t)s->flags.drain_timeout_s * 1000000;
    char text[128];
    snprintf(text, sizeof text, "%u requests in flight have %u s to finish",
             rpc_server_in_flight(s->server), s->flags.drain_timeout_s);
    rpc_log_note(s->log, "info", "drain", text);
    serve_notify_manager("STOPPING=1");
    rpc_server_drain(s->server);
    while (rpc_server_in_flight(s->server) > 0 && clock_now_us() < until_us)
        waiter_wait(s->waiter, -1, DRAIN_LOOK_MS);
    uint32_t left = rpc_server_in_flight(s->server);
    snprintf(text, sizeof text, "%u requests were aborted", left);
    rpc_log_note(s->log, left ? "warning" : "info", "stop", text);
    engine_save_at_end(s->engine, until_us);
    rpc_server_flush_until(s->server, until_us);
}

static int run_server(serving *s)
{
    error err = {{0}};
    /* The server goes on when its terminal closes. */
    signal(SIGHUP, SIG_IGN);
    status st = start_serving(s, &err);
    if (!status_ok(st)) return cli_complain(serve_name, CLI_FAILED, err.text);
    waiter_arm(s->waiter, true);
    if (!s->model_flags.quiet) log_addresses(s);
    rpc_log_note(s->log, "info", "start", OCTAVO_VERSION);
    serve_notify_manager("READY=1");
    bool fine = serve_until_signal(s);
    drain_server(s);
    return fine ? CLI_OK : cli_complain(serve_name, CLI_FAILED, "the backend failed");
}

static void close_all(serving *s)
{
    rpc_server_destroy(s->server);
    if (s->model.workers) workers_on_loss(s->model.workers, NULL, NULL);
    model_give_up(&s->model);
    engine_destroy(s->engine);
    transfer_close(s->transfer);
    serve_close_stores(&s->stores);
    rpc_events_destroy(s->events);
    model_close(&s->model);
    rpc_log_destroy(s->log);
    if (s->log && s->log_fd != STDERR_FILENO) close(s->log_fd);
    waiter_destroy(s->waiter);
    free(s->folder_name);
}

int cli_serve(cli_line *line)
{
    serving s = {0};
    const arg_group groups[] = {
        serve_flags_group(&s.flags),
        retention_flags_server_group(&s.retention),
        retention_flags_group(&s.retention),
        model_flags_group(&s.model_flags),
        workers_flags_group(&s.model_flags.workers),
    };
    const arg_command command = {
        .name = serve_name,
        .usage = "PATH [flags]",
        .about = about,
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
        .operand = "PATH",
        .operand_flag = "model",
        .environment = "OCTAVO_",
        .quiet = &s.model_flags.quiet,
    };
    error err = {{0}};
    int result;
    if (cli_parse(&command, line, NULL, &result)) {
        if (!s.model_flags.dir) result = cli_complain(serve_name, CLI_USAGE, "--model is missing");
        else if (!status_ok(serve_flags_join(&s.flags, &err)) ||
                 !status_ok(check_flags(&s.flags, &err)) ||
                 !status_ok(retention_flags_read(&s.retention, &err)))
            result = cli_complain(serve_name, CLI_USAGE, err.text);
        else result = run_server(&s);
    }
    close_all(&s);
    serve_flags_destroy(&s.flags);
    retention_flags_destroy(&s.retention);
    model_flags_destroy(&s.model_flags);
    return result;
}
