/* `octavo bench workers`: what a step costs more with ranks in other processes than with ranks that
 * are threads of this one, with a backend that computes nothing and with a model. */
#include "cli/bench/bench_seqs.h"
#include "cli/bench/bench_shape.h"
#include "cli/cli.h"

#include "rpc/worker.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char name[] = "octavo bench workers";

enum {
    ADDRESS_BYTES = 96,
    RANKS = 2,
    SEQS_MAX = 512,
    PAGES_OF_SEQ = 4800, /* of the backend that computes nothing */
    WARM = 50,
    WARM_MODEL = 2,
    CONTEXT = 64,
    CONTEXTS = 64, /* lengths of them where nothing is computed */
    LOGPROBS = 5,
    VOCAB = 32000,
    STEPS_MAX = 100000
};

static const char *const draws[] = {"greedy", "noise", "logprobs", NULL};

typedef struct workers_bench {
    model_flags model;
    uint32_t steps, seqs;
    const char *shape, *draws;
} workers_bench;

static const arg_flag flags_table[] = {
    ARG_ROW("shape", "NAME", ARG_OPTION, workers_bench, shape,
            "instead of --model: random bf16 weights of a known shape", .options = bench_shapes),
    ARG_ROW("seqs", "N", ARG_COUNT, workers_bench, seqs, "sequences that decode together", .min = 1,
            .max = SEQS_MAX, .initial = "64"),
    ARG_ROW("draws", "KIND", ARG_OPTION, workers_bench, draws,
            "how the model's tokens are drawn: greedy, by noise at temperature 1, or so with 5 "
            "logprobs",
            .initial = "greedy", .options = draws),
    ARG_ROW("steps", "N", ARG_COUNT, workers_bench, steps, "decode steps of each row", .min = 3,
            .max = STEPS_MAX, .initial = "500"),
};

/* ---- a backend that computes nothing --------------------------------------------------------- */

/* A model of 22 layers, pages of 16 tokens. */
static const backend_info null_info = {
    .name = "null",
    .vocab_size = VOCAB,
    .max_positions = 1 << 20,
    .max_rows = SEQS_MAX,
    .max_seqs = SEQS_MAX,
    .n_pages = PAGES_OF_SEQ * SEQS_MAX,
    .max_in_flight = 1,
    .geometry = {.page_tokens = 16,
                 .n_layers = 22,
                 .n_kv_heads = 4,
                 .layers_per_group = 1,
                 .heads_per_group = 1},
};

typedef struct null_backend {
    const step_plan *plan;
    step_result result;
    step_seq_result seqs[SEQS_MAX];
    step_sample samples[SEQS_MAX];
} null_backend;

static const backend_info *null_get_info(void *ctx)
{
    (void)ctx;
    return &null_info;
}

static status null_submit(void *ctx, const step_plan *plan)
{
    ((null_backend *)ctx)->plan = plan;
    return STATUS_IS_OK;
}

static status null_collect(void *ctx, const step_result **out)
{
    null_backend *b = ctx;
    const step_plan *p = b->plan;
    b->result = (step_result){
        .step = p->step, .seqs = b->seqs, .n_seqs = p->n_seqs, .checksum = p->checksum};
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        b->samples[i] = (step_sample){.token = p->tokens[i], .logprob = NAN};
        b->seqs[i] =
            (step_seq_result){.samples = &b->samples[i], .n_samples = p->seqs[i].n_samples};
    }
    *out = &b->result;
    return STATUS_IS_OK;
}

static void null_interrupt(void *ctx) { (void)ctx; }
static void null_destroy(void *ctx) { free(ctx); }

static const backend_ops null_ops = {
    .info = null_get_info,
    .submit = null_submit,
    .collect = null_collect,
    .interrupt = null_interrupt,
    .destroy = null_destroy,
};

static status null_make(void *ctx, comm *group, backend *out, error *err)
{
    (void)ctx;
    (void)group;
    null_backend *b = calloc(1, sizeof *b);
    if (!b) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    *out = (backend){&null_ops, b};
    return STATUS_IS_OK;
}

/* ---- workers with that backend --------------------------------------------------------------- */

static status host_configure(void *ctx, const worker_config *c, worker_address *out, error *err)
{
    (void)ctx;
    (void)c;
    (void)err;
    *out = (worker_address){"", 0};
    return STATUS_IS_OK;
}

static status host_join(void *ctx, const worker_address *all, uint32_t n, error *err)
{
    (void)ctx;
    (void)all;
    (void)n;
    (void)err;
    return STATUS_IS_OK;
}

static status host_load(void *ctx, backend *out, worker_facts *facts, error *err)
{
    *facts = (worker_facts){.device = "none"};
    return null_make(ctx, NULL, out, err);
}

static void host_nothing(void *ctx) { (void)ctx; }

/* Runs a worker's process; writes to `ready` once the worker listens. The process ends with its
 * parent. */
static void run_worker(const char *address, int ready)
{
    error err = {{0}};
    worker_server *server;
    worker_server_options o = {
        .address = address,
        .version = OCTAVO_VERSION,
        .host = {NULL, host_configure, host_join, host_load, host_nothing, host_nothing, NULL},
    };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!status_ok(worker_server_create(&o, &server, &err))) {
        fprintf(stderr, "%s: %s\n", name, err.text);
        _exit(1);
    }
    if (write(ready, "l", 1) != 1) _exit(1);
    for (;;) pause();
}

typedef struct null_workers {
    char folder[64];
    char addresses[RANKS][ADDRESS_BYTES];
    pid_t pids[RANKS];
    uint32_t n;
} null_workers;

static void stop_workers(null_workers *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        kill(w->pids[i], SIGKILL);
        waitpid(w->pids[i], NULL, 0);
        unlink(w->addresses[i] + strlen("unix:"));
    }
    rmdir(w->folder);
}

/* Forks the workers before gRPC starts anything in this process. */
static status start_workers(null_workers *w, error *err)
{
    int ready[2];
    char letter;
    const char *tmp = getenv("TMPDIR");
    snprintf(w->folder, sizeof w->folder, "%s/octavo-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(w->folder) || pipe(ready) != 0)
        return error_set(err, STATUS_IO, "workers: no folder for their sockets");
    for (; w->n < RANKS; w->n++) {
        char address[ADDRESS_BYTES];
        snprintf(address, sizeof address, "unix:%s/%u", w->folder, w->n);
        memcpy(w->addresses[w->n], address, sizeof address);
        pid_t pid = w->pids[w->n] = fork();
        if (pid == 0) run_worker(address, ready[1]);
        if (pid < 0) break; /* no process, and kill would take -1 for all of them */
    }
    close(ready[1]);
    uint32_t n = 0;
    while (n < RANKS && read(ready[0], &letter, 1) == 1) n++;
    close(ready[0]);
    return n == RANKS ? STATUS_IS_OK : error_set(err, STATUS_IO, "workers: they do not start");
}

/* ---- times ----------------------------------------------------------------------------------- */

typedef struct times {
    double p50, p90, p99;
} times;

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static times times_of(double *us, uint32_t n)
{
    qsort(us, n, sizeof *us, compare_times);
    return (times){us[n / 2], us[n * 9 / 10], us[(size_t)n * 99 / 100]};
}

/* model_us: of all steps; 0 where nothing is computed. */
typedef struct shares {
    double us, model_us;
} shares;

static void print_row(const char *what, times t, const times *beside, const shares *of)
{
    printf("%-34s %9.0f %9.0f %9.0f", what, t.p50, t.p90, t.p99);
    if (beside) printf(" %9.0f", t.p50 - beside->p50);
    if (of) printf(" %*s%9.1f", beside ? 0 : 10, "", 100 * (1 - of->model_us / of->us));
    printf("\n");
}

/* ---- steps of nothing ------------------------------------------------------------------------ */

static status run_plan(const backend *b, const step_plan *plan, error *err)
{
    const step_result *r = NULL;
    status s = b->ops->submit(b->ctx, plan);
    if (status_ok(s)) s = b->ops->collect(b->ctx, &r);
    if (status_ok(s)) s = r->status;
    return status_ok(s) ? s : error_set(err, s.code, "%s", s.message ? s.message : "a step failed");
}

static status time_null(const backend *b, const workers_bench *f, double *us, error *err)
{
    pkv_options o = {
        .geometry = null_info.geometry, .n_pages = PAGES_OF_SEQ * f->seqs, .max_seqs = SEQS_MAX};
    pkv *kv = NULL;
    uint32_t tokens[SEQS_MAX], hit;
    step_seq seqs[SEQS_MAX];
    rng r = rng_seed(1);
    status s = pkv_create(&o, &kv);
    for (uint32_t i = 0; status_ok(s) && i < f->seqs; i++) {
        s = pkv_seq_open(kv, i, PKV_HEAD, tokens, 0, 0, CONTEXT, &hit);
        if (status_ok(s)) s = pkv_seq_append(kv, i, CONTEXT + i % CONTEXTS);
    }
    for (uint32_t step = 0; status_ok(s) && step < WARM + f->steps; step++) {
        for (uint32_t i = 0; status_ok(s) && i < f->seqs; i++) {
            s = pkv_seq_append(kv, i, 1);
            tokens[i] = rng_below(&r, VOCAB);
            seqs[i] = (step_seq){.seq = i,
                                 .first_token = i,
                                 .n_tokens = 1,
                                 .position = CONTEXT + i % CONTEXTS + step,
                                 .n_samples = 1,
                                 .sample_index = step};
        }
        step_plan plan = {.step = step + 1,
                          .deltas = pkv_take_deltas(kv),
                          .seqs = seqs,
                          .n_seqs = f->seqs,
                          .tokens = tokens,
                          .n_tokens = f->seqs,
                          .checksum = pkv_checksum(kv)};
        int64_t begun = clock_now_ns();
        if (status_ok(s)) s = run_plan(b, &plan, err);
        if (step >= WARM) us[step - WARM] = (double)(clock_now_ns() - begun) * 1e-3;
    }
    pkv_destroy(kv);
    if (s.code != STATUS_NO_PAGES) return s;
    return error_set(err, s.code, "--steps: so many tokens of a sequence have no pages");
}

static status null_threads(const workers_bench *f, double *us, error *err)
{
    backend_ranks_options o = {.n_ranks = RANKS, .make = null_make};
    backend b;
    RETURN_IF_ERROR(backend_ranks_create(&o, &b, err));
    status s = time_null(&b, f, us, err);
    b.ops->destroy(b.ctx);
    return s;
}

static status null_processes(const null_workers *w, const workers_bench *f, double *us, error *err)
{
    const char *addresses[RANKS] = {w->addresses[0], w->addresses[1]};
    worker_config config = {.model = "",
                            .comm = "",
                            .device = "",
                            .kv_type = "",
                            .weight_type = "",
                            .isa = "",
                            .cache_dir = "",
                            .kv_disk = "",
                            .geometry = null_info.geometry,
                            .max_rows = SEQS_MAX,
                            .max_seqs = SEQS_MAX};
    worker_group_options g = {
        .addresses = addresses, .n = RANKS, .version = OCTAVO_VERSION, .config = &config};
    worker_group *group;
    backend b;
    RETURN_IF_ERROR(worker_group_create(&g, &group, err));
    backend_ranks_options o = {
        .n_ranks = RANKS, .driven = true, .make = worker_proxy_make, .ctx = group};
    status s = backend_ranks_create(&o, &b, err);
    if (status_ok(s)) {
        s = time_null(&b, f, us, err);
        b.ops->destroy(b.ctx);
    }
    worker_group_destroy(group);
    return s;
}

/* ---- steps of a model ------------------------------------------------------------------------ */

static status time_steps(const workers_bench *f, bench_seqs *b, double *us, shares *of, error *err)
{
    const step_result *r;
    if (strcmp(f->draws, "greedy") != 0) b->params.temperature = 1;
    if (strcmp(f->draws, "logprobs") == 0) b->params.n_logprobs = LOGPROBS;
    RETURN_IF_ERROR(bench_seqs_open(b, f->seqs, CONTEXT, err));
    *of = (shares){0};
    for (uint32_t step = 0; step < WARM_MODEL + f->steps; step++) {
        int64_t begun = clock_now_ns();
        RETURN_IF_ERROR(bench_seqs_step(b, 1, true, NULL, &r, err));
        double now = (double)(clock_now_ns() - begun) * 1e-3;
        if (step < WARM_MODEL) continue;
        us[step - WARM_MODEL] = now;
        of->us += now;
        of->model_us += (double)r->model_us;
    }
    return bench_seqs_close(b, err);
}

static status time_model(workers_bench *f, const char *where, double *us, shares *of, error *err)
{
    loaded_model m;
    bench_seqs b;
    f->model.workers.where = where;
    RETURN_IF_ERROR(model_open(&f->model, false, &m, err));
    status s = bench_seqs_create(&m, &b, err);
    if (status_ok(s)) {
        s = time_steps(f, &b, us, of, err);
        bench_seqs_destroy(&b);
    }
    model_close(&m);
    return s;
}

/* ---- the command ----------------------------------------------------------------------------- */

static status run_null(const workers_bench *f, double *us, error *err)
{
    null_workers w = {0};
    status s = start_workers(&w, err);
    times threads;
    if (status_ok(s)) s = null_threads(f, us, err);
    if (status_ok(s)) {
        threads = times_of(us, f->steps);
        print_row("nothing to compute, threads", threads, NULL, NULL);
        s = null_processes(&w, f, us, err);
    }
    if (status_ok(s))
        print_row("nothing to compute, workers", times_of(us, f->steps), &threads, NULL);
    stop_workers(&w);
    return s;
}

static status run_model(workers_bench *f, double *us, error *err)
{
    uint32_t most = CONTEXT + WARM_MODEL + f->steps + 1;
    shares of;
    f->model.tp = RANKS;
    if (f->model.max_batch < f->seqs) f->model.max_batch = f->seqs;
    if (f->model.max_model_len && f->model.max_model_len < most) f->model.max_model_len = most;
    RETURN_IF_ERROR(time_model(f, "threads", us, &of, err));
    times threads = times_of(us, f->steps);
    print_row("the model, threads", threads, NULL, &of);
    RETURN_IF_ERROR(time_model(f, "local", us, &of, err));
    print_row("the model, workers", times_of(us, f->steps), &threads, &of);
    return STATUS_IS_OK;
}

static status run_shape(workers_bench *f, double *us, error *err)
{
    bench_shape folder;
    RETURN_IF_ERROR(bench_shape_create(f->shape, &folder, err));
    f->model.dir = folder.dir;
    f->model.load_format = "dummy";
    status s = run_model(f, us, err);
    f->model.dir = NULL;
    bench_shape_remove(&folder);
    return s;
}

static int run_group(workers_bench *f)
{
    error err = {{0}};
    double *us = calloc(f->steps, sizeof *us);
    status s = us ? STATUS_IS_OK : error_set(&err, STATUS_NO_MEMORY, "out of memory");
    printf("%d ranks, a decode step of %u sequences, us:\n", RANKS, f->seqs);
    printf("%-34s %9s %9s %9s %9s %9s\n", "", "p50", "p90", "p99", "p50 more", "host %");
    if (status_ok(s)) s = run_null(f, us, &err);
    if (status_ok(s) && f->shape) s = run_shape(f, us, &err);
    else if (status_ok(s) && f->model.dir) s = run_model(f, us, &err);
    free(us);
    if (status_ok(s)) return CLI_OK;
    fprintf(stderr, "%s: %s\n", name, err.text);
    return CLI_FAILED;
}

int cli_bench_workers(cli_line *line)
{
    workers_bench f = {0};
    const arg_group groups[] = {
        {"Flags", flags_table, sizeof flags_table / sizeof flags_table[0], &f},
        model_flags_group(&f.model),
    };
    const arg_command command = {
        .name = name,
        .usage = "[PATH | --shape 0.6b] [flags]",
        .about = "What a step costs over two ranks in two processes, beside two ranks in threads: "
                 "with\n"
                 "backends that compute nothing (the messages alone), and with a model when one is "
                 "given.\n"
                 "host: the share of all steps' time in which no rank computes layers or logits, "
                 "because\n"
                 "steps are planned, sent and drawn, and ranks tell each other what they found.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
        .operand = "PATH",
        .operand_flag = "model",
        .quiet = &f.model.quiet,
    };
    int result;
    if (!cli_parse(&command, line, NULL, &result)) return result;
    result = f.model.dir && f.shape
                 ? cli_complain(name, CLI_USAGE, "--model and --shape exclude each other")
                 : run_group(&f);
    model_flags_destroy(&f.model);
    return cli_finish_output(name) ? result : CLI_FAILED;
}
