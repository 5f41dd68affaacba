/* `octavo worker`: a rank for a coordinator in another process. */
#include "cli/workers/worker.h"

#include "cli/waiter.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char worker_name[] = "octavo worker";

static const char about[] =
    "Waits for a coordinator (octavo serve, run, score or bench with --workers) and computes a\n"
    "rank of its model; the coordinator names the model and the rank. When the coordinator ends\n"
    "or is lost the worker gives up the rank and waits for the next coordinator. All processes\n"
    "must be of the same version of octavo.\n"
    "\n"
    "Without --tls-* the worker reads the folder of --model alone, whichever a coordinator\n"
    "names, and writes to those of --weights-cache and --kv-disk alone. Any process that reaches\n"
    "--listen can still make the worker compute, fill the disk of --kv-disk up to --kv-disk-size,\n"
    "and end the steps of another coordinator. Such a worker belongs on a network of its own.\n"
    "\n"
    "  octavo worker --listen 10.0.0.2:7000 --model /models/llama\n"
    "  octavo serve --model /models/llama --tp 2 --workers 10.0.0.1:7000,10.0.0.2:7000";

static const arg_flag flags_table[] = {
    ARG_ROW("listen", "HOST:PORT", ARG_TEXT, worker_flags, listen,
            "where it listens: port 0 is any free one; unix:/path is a socket"),
    ARG_ROW("model", "PATH", ARG_TEXT, worker_flags, model,
            "where this machine has the model (default with --tls-*: the path that the coordinator "
            "was given; without them it must be given)",
            .also = "-m"),
    ARG_ROW("weights-cache", "DIR", ARG_TEXT, worker_flags, weights_cache,
            "where this machine keeps its weights as products read them (default with --tls-*: the "
            "coordinator's --weights-cache, else they are not kept)"),
    ARG_ROW("kv-disk", "DIR", ARG_TEXT, worker_flags, kv_disk,
            "where this machine has K and V that a coordinator's --kv-disk-size wants on disk, in "
            "a file that goes when the rank does (default with --tls-*: the coordinator's "
            "--kv-disk; without them, none)"),
    ARG_ROW("kv-disk-size", "BYTES", ARG_BYTES, worker_flags, kv_disk_size,
            "most bytes of that file of each worker: a coordinator that wants more is refused "
            "(default: no limit)",
            .min = 1, .max = 0x1p62),
    ARG_ROW("count", "N", ARG_COUNT, worker_flags, count,
            "number of workers, each a process of its own, at this port and the next ones; a "
            "worker that ends is restarted",
            .min = 1, .max = 64, .initial = "1"),
    ARG_ROW("device", "N", ARG_COUNT, worker_flags, device,
            "GPU of the first worker, when the coordinator asks for one; each next worker takes "
            "the next (default: the coordinator's --device cuda:N, else 0)",
            .max = 1023),
    ARG_ROW("threads", "N", ARG_COUNT, worker_flags, threads,
            "threads of each (default: the coordinator's --threads, else all allowed cores)",
            .min = 1, .max = 1024, .also = "-t"),
    ARG_ROW("tls-cert", "FILE", ARG_TEXT, worker_flags, tls_cert,
            "certificate chain (PEM): TLS only"),
    ARG_ROW("tls-key", "FILE", ARG_TEXT, worker_flags, tls_key, "its private key (PEM)"),
    ARG_ROW("tls-client-ca", "FILE", ARG_TEXT, worker_flags, tls_client_ca,
            "coordinators must show a certificate signed by one of these (PEM)"),
    ARG_ROW("local", "FOLDER", ARG_TEXT, worker_flags, local,
            "what --workers local starts: sockets in this folder, until stdin closes"),
};

static status check_flags(const worker_flags *f, error *err)
{
    int tls = (f->tls_cert != NULL) + (f->tls_key != NULL) + (f->tls_client_ca != NULL);
    char address[256];
    if (!f->listen == !f->local)
        return error_set(err, STATUS_INVALID, "--listen is missing%s",
                         f->local ? " no more with --local" : "");
    if (tls != 0 && tls != 3)
        return error_set(err, STATUS_INVALID,
                         "--tls-cert, --tls-key and --tls-client-ca go together");
    RETURN_IF_ERROR(worker_address_of(f, f->count - 1, address, sizeof address, err));
    if (!f->model && !worker_trusts(f))
        return error_set(err, STATUS_INVALID,
                         "--model is missing: without --tls-* no coordinator may name a folder");
    return STATUS_IS_OK;
}

static void log_line(void *ctx, const char *line)
{
    (void)ctx;
    fprintf(stderr, "octavo worker: %s\n", line);
}

/* Prints the line that scripts read, and the coordinator that starts local workers. */
static void print_address(const char *address, uint16_t port)
{
    const char *colon = strrchr(address, ':');
    if (strncmp(address, "unix:", 5) == 0) printf("listening at %s\n", address);
    else printf("listening at %.*s:%u\n", (int)(colon - address), address, port);
    cli_finish_output(worker_name);
}

static status serve_ranks(const worker_flags *f, uint32_t index, rank_host *host,
                          worker_server **out, error *err)
{
    char address[256];
    RETURN_IF_ERROR(worker_address_of(f, index, address, sizeof address, err));
    if (f->local) unlink(address + strlen("unix:")); /* the socket of a worker that was killed */
    worker_server_options o = {
        .address = address,
        .tls = {f->tls_cert, f->tls_key, f->tls_client_ca},
        .version = OCTAVO_VERSION,
        .host = rank_host_callbacks(host),
        .log_line = f->local ? NULL : log_line,
    };
    RETURN_IF_ERROR(worker_server_create(&o, out, err));
    print_address(address, worker_server_port(*out));
    return STATUS_IS_OK;
}

/* Waits for the end: a supervised process ends when its lifeline closes, another one (-1) by a
 * signal. */
static void await_end(waiter *w, int lifeline)
{
    struct pollfd polled = {.fd = lifeline, .events = POLLIN};
    if (lifeline >= 0)
        while (poll(&polled, 1, -1) <= 0) continue;
    else
        while (!waiter_interrupted(w)) waiter_wait(w, -1, -1);
}

static int run_one(const worker_flags *f, uint32_t index, int lifeline)
{
    error err = {{0}};
    rank_host *host = NULL;
    worker_server *server = NULL;
    waiter *w = NULL;
    status s = rank_host_create(f, index, &host);
    if (status_ok(s) && lifeline < 0) s = waiter_create(&w, &err);
    if (status_ok(s)) s = serve_ranks(f, index, host, &server, &err);
    if (status_ok(s)) {
        if (w) waiter_arm(w, true);
        else worker_print_listening(lifeline);
        await_end(w, lifeline);
    } else {
        cli_complain(worker_name, CLI_FAILED, *err.text ? err.text : status_text(s.code));
    }
    worker_server_destroy(server);
    rank_host_destroy(host);
    waiter_destroy(w);
    if (lifeline >= 0) close(lifeline);
    return status_ok(s) ? CLI_OK : CLI_FAILED;
}

int cli_worker(cli_line *line)
{
    worker_flags f = {.device = WORKER_ANY_DEVICE};
    const arg_group groups[] = {
        {"Worker", flags_table, sizeof flags_table / sizeof flags_table[0], &f},
    };
    const arg_command command = {
        .name = worker_name,
        .usage = "--listen HOST:PORT [flags]",
        .about = about,
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
        .environment = "OCTAVO_WORKER_",
    };
    error err = {{0}};
    int result;
    if (!cli_parse(&command, line, NULL, &result)) return result;
    if (!status_ok(check_flags(&f, &err))) return cli_complain(worker_name, CLI_USAGE, err.text);
    signal(SIGHUP, SIG_IGN);
    if (f.count > 1 || f.local) return workers_supervise(&f, run_one);
    return run_one(&f, 0, -1);
}
