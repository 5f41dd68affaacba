/* The coordinator's side: addresses, TLS, the configuration of ranks, and the backend over all
 * ranks. */
#include "cli/workers/workers.h"

#include "rpc/worker.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Patience of one try to make the ranks; pauses between tries, and after a refusal. */
enum { PATIENCE_S = 5, AGAIN_MS = 500, REFUSED_MS = 2000, LOOK_MS = 20 };

struct workers {
    uint32_t n;
    bool is_local;
    workers_device device;
    uint32_t wait_s; /* until the ranks are first made; then 0: the engine tries again */
    workers_local local;
    char *text;             /* holds the texts of the addresses */
    const char **addresses; /* [n] */
    worker_config config;
    char model[4096];
    char isa[128]; /* of the first rank, when it was first made */
    worker_group *group;
    bool was_made;
    _Atomic bool given_up;
};

/* ---- addresses and workers ------------------------------------------------------------------- */

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "--workers: out of memory");
}

static status split_addresses(workers *w, const char *list, error *err)
{
    w->text = strdup(list);
    w->addresses = calloc(strlen(list) + 1, sizeof *w->addresses);
    if (!w->text || !w->addresses) return out_of_memory(err);
    char *rest = w->text;
    for (char *one; (one = strsep(&rest, ","));) {
        one += strspn(one, " ");
        one[strcspn(one, " ")] = '\0';
        if (!strchr(one, ':') || one[0] == ':')
            return error_set(err, STATUS_INVALID,
                             "--workers: '%.64s' is not host:port, unix:/path, local or threads",
                             one);
        for (uint32_t i = 0; i < w->n; i++)
            if (strcmp(w->addresses[i], one) == 0)
                return error_set(err, STATUS_INVALID, "--workers: '%.64s' is named twice", one);
        w->addresses[w->n++] = one;
    }
    return STATUS_IS_OK;
}

static status take_addresses(workers *w, const workers_flags *f, uint32_t *n_ranks, error *err)
{
    RETURN_IF_ERROR(split_addresses(w, f->where, err));
    if (*n_ranks == 1) *n_ranks = w->n;
    if (*n_ranks == w->n) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "--workers: %u addresses for --tp %u", w->n, *n_ranks);
}

/* The group reads the addresses whenever it makes a rank. */
static void put_local_addresses(workers *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        char *address = w->text + (size_t)i * WORKER_ADDRESS_MAX;
        workers_local_address(&w->local, i, address);
        w->addresses[i] = address;
    }
}

static status take_local(workers *w, uint32_t n, error *err)
{
    w->is_local = true;
    w->n = n;
    w->text = calloc(n, WORKER_ADDRESS_MAX);
    w->addresses = calloc(n, sizeof *w->addresses);
    if (!w->text || !w->addresses) return out_of_memory(err);
    RETURN_IF_ERROR(workers_local_start(&w->local, n, &w->given_up, err));
    put_local_addresses(w);
    return STATUS_IS_OK;
}

/* The supervisor restarts workers; this restarts the supervisor. */
static status mind_local(workers *w, error *err)
{
    if (!w->is_local || workers_local_minded(&w->local)) return STATUS_IS_OK;
    fprintf(stderr, "octavo: the supervisor of the local workers ended and is started again\n");
    workers_local_stop(&w->local);
    RETURN_IF_ERROR(workers_local_start(&w->local, w->n, &w->given_up, err));
    put_local_addresses(w);
    return STATUS_IS_OK;
}

static status check_tls(const workers_flags *f, bool by_address, error *err)
{
    int given = (f->cert != NULL) + (f->key != NULL) + (f->ca != NULL);
    if (given == 0 || (given == 3 && by_address)) return STATUS_IS_OK;
    if (!by_address)
        return error_set(err, STATUS_INVALID, "--workers-cert: goes with workers by address");
    return error_set(err, STATUS_INVALID,
                     "--workers-cert, --workers-key and --workers-ca go together");
}

/* The comm by which ranks add up. */
static const char *comm_of(const workers_device *d)
{
    return strcmp(d->name, "cuda") == 0 ? "nccl" : "ucx";
}

/* Whether processes can add up here: the libraries are opened only when needed. */
static bool has_comm(const workers_device *d)
{
    comm_options o = {.kind = comm_of(d), .rank = 1, .size = 2};
    comm *c = NULL;
    bool has = status_ok(comm_create(&o, &c, NULL));
    comm_destroy(c);
    return has;
}

/* Replaces a silent local rank: a stopped process would otherwise block the group until it is
 * continued. */
static void replace_silent(void *ctx, uint32_t rank)
{
    workers *w = ctx;
    workers_local_replace(&w->local, rank);
}

static status create(workers *w, const workers_flags *f, bool by_address, uint32_t *n_ranks,
                     error *err)
{
    RETURN_IF_ERROR(check_tls(f, by_address, err));
    if (by_address) RETURN_IF_ERROR(take_addresses(w, f, n_ranks, err));
    else RETURN_IF_ERROR(take_local(w, *n_ranks, err));
    w->wait_s = by_address ? f->wait_s : PATIENCE_S;
    int64_t patience_s = w->wait_s < PATIENCE_S ? w->wait_s : PATIENCE_S;
    worker_group_options o = {
        .patience_us = patience_s * 1000000 + 1, /* 0 would be the default */
        .silence_us = (int64_t)f->silence_ms * 1000,
        .addresses = w->addresses,
        .n = w->n,
        .tls = {f->cert, f->key, f->ca},
        .version = OCTAVO_VERSION,
        .config = &w->config,
        .on_silent = w->is_local ? replace_silent : NULL,
        .on_silent_ctx = w,
    };
    return worker_group_create(&o, &w->group, err);
}

/* Whether each local rank can have a GPU of its own. */
static bool has_devices(const workers_device *d, uint32_t n_ranks)
{
    if (strcmp(d->name, "cuda") != 0) return true;
    uint32_t n = backend_cuda_devices(), left = n > d->index ? n - d->index : 0;
    if (n == 0 || left >= n_ranks) return n > 0; /* without any GPU, opening one will tell why */
    fprintf(stderr, "octavo: --tp %u has %u GPU%s from cuda:%u on: all ranks are threads on it\n",
            n_ranks, left, left == 1 ? "" : "s", d->index);
    return false;
}

static bool can_be_local(const workers_device *d, uint32_t n_ranks)
{
    return n_ranks > 1 && has_devices(d, n_ranks) && has_comm(d);
}

status workers_create(const workers_flags *f, const workers_device *device, uint32_t *n_ranks,
                      workers **out, error *err)
{
    *out = NULL;
    const char *where = f->where ? f->where : "threads";
    bool local = strcmp(where, "local") == 0, is_auto = strcmp(where, "auto") == 0;
    bool threads = strcmp(where, "threads") == 0 || (is_auto && !can_be_local(device, *n_ranks));
    bool by_address = !threads && !local && !is_auto;
    if (threads) return check_tls(f, false, err);
    workers *w = calloc(1, sizeof *w);
    if (!w) return out_of_memory(err);
    w->device = *device;
    status s = create(w, f, by_address, n_ranks, err);
    if (status_ok(s)) *out = w;
    else workers_destroy(w);
    return s;
}

void workers_destroy(workers *w)
{
    if (!w) return;
    worker_group_destroy(w->group);
    workers_local_stop(&w->local);
    free(w->addresses);
    free(w->text);
    free(w);
}

/* ---- the backend ----------------------------------------------------------------------------- */

/* A worker has another working directory than this process, so paths are absolute. */
static const char *whole_path(const char *path, char out[4096])
{
    char *whole = realpath(path, NULL);
    snprintf(out, 4096, "%s", whole ? whole : path);
    free(whole);
    return out;
}

/* Local ranks divide the threads of one process; a worker on another machine has all of its own. */
static uint32_t threads_of_rank(const workers *w, uint32_t asked)
{
    if (!w->is_local) return asked;
    uint32_t all = asked ? asked : cpu_count_allowed();
    return all > w->n ? all / w->n : 1;
}

static status set_config(workers *w, const backend_options *o, const char *const *overrides,
                         size_t n_overrides, error *err)
{
    w->config = (worker_config){
        .size = w->n,
        .model = whole_path(o->dir, w->model),
        .overrides = overrides,
        .n_overrides = n_overrides,
        .dummy = o->dummy,
        .dummy_seed = o->dummy_seed,
        .comm = w->n > 1 ? comm_of(&w->device) : "self",
        .device = w->device.name,
        .device_index = w->device.index,
        .kv_type = w->device.kv_type,
        .kv_residual = o->kv_residual,
        .weight_type = dtype_name(o->weight_type),
        .quant_bits = o->quant_bits,
        .quant_attention = o->quant_attention,
        .quant_group = o->quant_group,
        .n_threads = threads_of_rank(w, o->n_threads),
        .isa = o->isa ? o->isa : "",
        .high_precision = o->precision == KERN_PRECISION_HIGH,
        .batch_invariant = w->device.batch_invariant,
        .geometry = o->geometry,
        .kv_bytes = o->kv_bytes,
        .swap_bytes = o->swap_bytes,
        .kv_disk = o->kv_disk ? o->kv_disk : "",
        .kv_disk_bytes = o->kv_disk_bytes,
        .max_rows = o->max_rows,
        .max_seqs = o->max_seqs,
        .max_model_len = o->max_model_len,
        .cache_dir = o->cache_dir ? o->cache_dir : "",
    };
    return model_fingerprints(o, &w->config.config_fingerprint, &w->config.weights_fingerprint,
                              err);
}

static backend_facts sum_facts(workers *w)
{
    backend_facts sum = {.isa = w->isa, .from_cache = true};
    for (uint32_t i = 0; i < w->n; i++) {
        const worker_facts *f = worker_group_facts(w->group, i);
        if (i == 0 && !*w->isa) snprintf(w->isa, sizeof w->isa, "%s", f->device);
        sum.n_threads += f->n_threads;
        sum.weight_bytes += f->weight_bytes;
        sum.page_bytes += f->page_bytes;
        sum.pool_bytes += f->pool_bytes;
        sum.disk_bytes += f->disk_bytes;
        sum.filling_bytes += f->filling_bytes;
        sum.swap_bytes += f->swap_bytes;
        if (f->load_us > sum.load_us) sum.load_us = f->load_us;
        if (!f->from_cache) sum.from_cache = false;
    }
    return sum;
}

/* Makes the ranks, and prints a line when the reason for waiting changes. */
static status make_ranks(const workers *w, backend *out, error *err)
{
    backend_ranks_options all = {
        .n_ranks = w->n, .make = worker_proxy_make, .ctx = w->group, .driven = true};
    int64_t until = clock_now_us() + (int64_t)w->wait_s * 1000000;
    char last_error[sizeof err->text] = "";
    for (;;) {
        status s = backend_ranks_create(&all, out, err);
        if (s.code != STATUS_UNAVAILABLE || clock_now_us() >= until) return s;
        if (strcmp(last_error, err->text) != 0)
            fprintf(stderr, "octavo: waiting for workers: %s\n", err->text);
        snprintf(last_error, sizeof last_error, "%s", err->text);
        usleep(AGAIN_MS * 1000);
    }
}

/* A group that has worked before waits for workers that refuse, too. A worker may have come back
 * with another model, another coordinator or too little memory, which its operator can mend
 * there. */
static status judge_again(workers *w, status s, error *err)
{
    if (status_ok(s) || !w->was_made) return s;
    if (s.code != STATUS_UNAVAILABLE) /* a refused try costs a worker more */
        for (int ms = 0; ms < REFUSED_MS && !atomic_load(&w->given_up); ms += LOOK_MS)
            usleep(LOOK_MS * 1000);
    if (atomic_load(&w->given_up)) return error_set(err, STATUS_ABORTED, "given up");
    return status_make(STATUS_UNAVAILABLE, NULL);
}

status workers_make_backend(workers *w, const backend_options *o, const char *const *overrides,
                            size_t n_overrides, backend *out, backend_facts *facts, error *err)
{
    RETURN_IF_ERROR(set_config(w, o, overrides, n_overrides, err));
    status s = mind_local(w, err);
    if (status_ok(s)) s = make_ranks(w, out, err);
    RETURN_IF_ERROR(judge_again(w, s, err));
    w->wait_s = 0;
    w->was_made = true;
    *facts = sum_facts(w);
    return STATUS_IS_OK;
}

void workers_on_loss(workers *w, void (*lost)(void *ctx, const char *why), void *ctx)
{
    worker_group_on_loss(w->group, lost, ctx);
}

void workers_give_up(workers *w)
{
    atomic_store(&w->given_up, true);
    worker_group_give_up(w->group);
}

workers_counts workers_count(workers *w)
{
    worker_counts c = worker_group_counts(w->group);
    return (workers_counts){c.n, c.up, c.lost};
}

void workers_log(const workers *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const worker_facts *f = worker_group_facts(w->group, i);
        fprintf(stderr, "octavo: rank %u at %s: %s, %u thread%s\n", i, w->addresses[i], f->device,
                f->n_threads, f->n_threads == 1 ? "" : "s");
        if (*f->sums) fprintf(stderr, "octavo: sums of rank %u: %s\n", i, f->sums);
    }
}
