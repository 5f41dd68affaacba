/* A worker's rank: makes a backend with a comm of its own, as the coordinator configures it, on
 * this machine's cores or on one of its GPUs. */
#include "cli/model_flags.h"
#include "cli/workers/worker.h"
#include "kernels/cuda/cuda_kernels.h"
#include "model/model.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

/* Longest time until all ranks have met. */
enum { CONNECT_US = 20 * 1000 * 1000 };
/* Bytes of machine_id at the start of a rank's address. */
enum { MACHINE_BYTES = sizeof(uint64_t) };

struct rank_host {
    const worker_flags *flags;
    uint32_t index;
    pthread_mutex_t lock; /* guards group */
    comm *group;
    _Atomic bool aborted; /* written under the lock */
    model_config config;
    backend_options options;
    char *dir, *isa, *cache_dir, *kv_disk;
    uint8_t *address;   /* what the other ranks are told: machine_id, then the comm's address */
    const gpu_api *api; /* NULL: the CPU */
    gpu *gpu;
    uint32_t gpu_ordinal;
    gpu_facts gpu_facts;
    uint8_t gpu_kv;
    bool batch_invariant;
};

/* ---- configure ------------------------------------------------------------------------------- */

static dtype dtype_named(const char *name)
{
    dtype t = DTYPE_F32;
    while (t < DTYPE_F16 && strcmp(dtype_name(t), name) != 0) t++;
    return t;
}

static status check_names(const worker_config *c, error *err)
{
    uint8_t gpu_kv;
    bool cuda = strcmp(c->device, "cuda") == 0;
    if (!cuda && strcmp(c->device, "cpu") != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "device: this worker has no \"%.32s\", only cpu and cuda", c->device);
    if (!cuda && strcmp(c->comm, "nccl") == 0)
        return error_set(err, STATUS_UNSUPPORTED, "comm: \"nccl\" goes with device cuda");
    if (cuda ? !gpu_kv_named(c->kv_type, &gpu_kv) : kern_kv_named(c->kv_type) == KERN_KV_FORMATS)
        return error_set(err, STATUS_UNSUPPORTED, "kv_type: \"%.32s\" is not known on %s",
                         c->kv_type, c->device);
    if (strcmp(dtype_name(dtype_named(c->weight_type)), c->weight_type) != 0)
        return error_set(err, STATUS_UNSUPPORTED, "weight_type: \"%.32s\" is not known",
                         c->weight_type);
    return STATUS_IS_OK;
}

/* Opens the GPU before the comm is made, because the comm puts its work on the GPU's stream. */
static status open_gpu(rank_host *h, const worker_config *c, error *err)
{
    char why[256] = "";
    const worker_flags *f = h->flags;
    uint32_t device = (f->device == WORKER_ANY_DEVICE ? c->device_index : f->device) + h->index;
    if (strcmp(c->device, "cuda") != 0) return STATUS_IS_OK;
    status s = backend_cuda_find(&h->api, err);
    if (!status_ok(s)) {
        error_prefix(err, "device");
        return status_make(STATUS_UNSUPPORTED, NULL); /* waiting would not help */
    }
    (void)gpu_kv_named(c->kv_type, &h->gpu_kv);
    h->batch_invariant = c->batch_invariant;
    h->gpu_ordinal = device;
    gpu_status opened = h->api->open(device, &h->gpu, &h->gpu_facts, why, sizeof why);
    if (opened == GPU_OK) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "device: cuda:%u: %s", device, why);
}

static char *copy_or_null(const char *text) { return *text ? strdup(text) : NULL; }

/* The folder of cached weights; "" = none. */
static const char *cache_dir_of(const worker_flags *f, const worker_config *c)
{
    if (f->weights_cache) return f->weights_cache;
    return worker_trusts(f) ? c->cache_dir : "";
}

/* The folder of a pool on disk; "" = the pool is in memory. */
static const char *kv_disk_of(const worker_flags *f, const worker_config *c)
{
    if (c->kv_disk_bytes == 0) return "";
    if (f->kv_disk) return f->kv_disk;
    return worker_trusts(f) ? c->kv_disk : "";
}

/* The file of a pool on disk fills a disk of this machine. */
static status check_disk(const worker_flags *f, const worker_config *c, error *err)
{
    uint64_t own = c->kv_disk_bytes / c->size;
    if (c->kv_disk_bytes == 0) return STATUS_IS_OK;
    if (strcmp(c->device, "cpu") != 0)
        return error_set(err, STATUS_UNSUPPORTED, "kv-disk: a pool on disk needs device cpu");
    if (!*kv_disk_of(f, c))
        return error_set(err, STATUS_INVALID,
                         "kv-disk: this worker has no folder for K and V on disk: its own "
                         "--kv-disk names one");
    if (f->kv_disk_size == 0 || own <= f->kv_disk_size) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "kv-disk-size: %llu bytes are wanted on this worker's disk, whose own "
                     "--kv-disk-size is %llu",
                     (unsigned long long)own, (unsigned long long)f->kv_disk_size);
}

static status take_texts(rank_host *h, const worker_config *c, error *err)
{
    h->dir = strdup(h->flags->model ? h->flags->model : c->model);
    h->isa = copy_or_null(c->isa);
    const char *cache_dir = cache_dir_of(h->flags, c);
    h->cache_dir = copy_or_null(cache_dir);
    const char *kv_disk = kv_disk_of(h->flags, c);
    h->kv_disk = copy_or_null(kv_disk);
    if (h->dir && !h->isa == !*c->isa && !h->cache_dir == !*cache_dir && !h->kv_disk == !*kv_disk)
        return STATUS_IS_OK;
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

/* Workers of one command share its cores. */
static uint32_t threads_of(const worker_flags *f, const worker_config *c)
{
    if (f->threads) return f->threads;
    if (c->n_threads || f->count == 1) return c->n_threads;
    uint32_t all = cpu_count_allowed();
    return all > f->count ? all / f->count : 1;
}

static void take_options(rank_host *h, const worker_config *c)
{
    kern_kv_format kv = kern_kv_named(c->kv_type);
    h->options = (backend_options){
        .dir = h->dir,
        .config = &h->config,
        .dummy = c->dummy,
        .dummy_seed = c->dummy_seed,
        .kv_type = kv == KERN_KV_FORMATS ? KERN_KV_BF16 : kv, /* only GPUs have fp8 pages */
        .kv_residual = c->kv_residual,
        .weight_type = dtype_named(c->weight_type),
        .quant_bits = (uint8_t)c->quant_bits,
        .quant_attention = (uint8_t)c->quant_attention,
        .quant_group = (uint8_t)c->quant_group,
        .n_threads = threads_of(h->flags, c),
        .isa = h->isa,
        .precision = c->high_precision ? KERN_PRECISION_HIGH : KERN_PRECISION_STANDARD,
        .geometry = c->geometry,
        .kv_bytes = c->kv_bytes,
        .swap_bytes = c->swap_bytes,
        .kv_disk = h->kv_disk,
        .kv_disk_bytes = c->kv_disk_bytes,
        .max_rows = c->max_rows,
        .max_seqs = c->max_seqs,
        .max_model_len = c->max_model_len,
        .cache_dir = h->cache_dir,
        .given_up = &h->aborted,
    };
}

/* Compares fingerprints: the model must be the coordinator's, as far as can be told without reading
 * the weights. */
static status check_model(const rank_host *h, const worker_config *c, error *err)
{
    uint64_t config, weights;
    RETURN_IF_ERROR(model_fingerprints(&h->options, &config, &weights, err));
    if (config != c->config_fingerprint)
        return error_set(err, STATUS_INVALID,
                         "model: the configuration in %s is not the coordinator's", h->dir);
    if (weights != c->weights_fingerprint)
        return error_set(err, STATUS_INVALID,
                         "model: names, shapes or types of the weights in %s are not the "
                         "coordinator's",
                         h->dir);
    return model_ranks_check(&h->config, c->size, err);
}

/* Identifies this machine: by the kernel's boot, and by the name that a container has of its
 * own. */
static uint64_t machine_id(void)
{
    struct utsname name;
    char *boot = NULL;
    size_t n = 0;
    uint64_t h = 0;
    if (status_ok(file_read("/proc/sys/kernel/random/boot_id", 256, &boot, &n, NULL)))
        h = hash_bytes(boot, n, h);
    free(boot);
    return uname(&name) == 0 ? hash_bytes(name.nodename, strlen(name.nodename), h) : h;
}

/* The ranks of a machine share its memory, so each rank tells the others which machine it is on. */
static status take_address(rank_host *h, worker_address *out, error *err)
{
    comm_address own = comm_own_address(h->group);
    uint64_t machine = machine_id();
    h->address = malloc(MACHINE_BYTES + own.n);
    if (!h->address) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    memcpy(h->address, &machine, MACHINE_BYTES);
    if (own.n) memcpy(h->address + MACHINE_BYTES, own.bytes, own.n);
    *out = (worker_address){h->address, MACHINE_BYTES + own.n};
    return STATUS_IS_OK;
}

static status configure_rank(void *ctx, const worker_config *c, worker_address *out, error *err)
{
    rank_host *h = ctx;
    comm *group = NULL;
    RETURN_IF_ERROR(check_names(c, err));
    RETURN_IF_ERROR(check_disk(h->flags, c, err));
    RETURN_IF_ERROR(take_texts(h, c, err));
    status s = model_config_load(h->dir, c->overrides, c->n_overrides, &h->config, err);
    if (!status_ok(s)) {
        error_prefix(err, "model");
        return s;
    }
    take_options(h, c);
    RETURN_IF_ERROR(check_model(h, c, err));
    RETURN_IF_ERROR(open_gpu(h, c, err));
    comm_options o = {.kind = c->comm,
                      .rank = (int)c->rank,
                      .size = (int)c->size,
                      .stream = h->gpu ? h->api->stream(h->gpu) : NULL};
    RETURN_IF_ERROR(comm_create(&o, &group, err));
    pthread_mutex_lock(&h->lock);
    h->group = h->options.group = group;
    if (atomic_load(&h->aborted)) comm_abort(group);
    pthread_mutex_unlock(&h->lock);
    return take_address(h, out, err);
}

/* ---- join, load ------------------------------------------------------------------------------ */

/* Takes the comms' addresses out of the ranks', and counts the ranks on this machine. */
static status read_addresses(rank_host *h, const worker_address *all, uint32_t n, comm_address *out,
                             error *err)
{
    h->options.ranks_here = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].n < MACHINE_BYTES)
            return error_set(err, STATUS_INVALID, "addresses: %zu bytes of rank %u", all[i].n, i);
        const uint8_t *bytes = all[i].bytes;
        out[i] = (comm_address){bytes + MACHINE_BYTES, all[i].n - MACHINE_BYTES};
        h->options.ranks_here += memcmp(bytes, h->address, MACHINE_BYTES) == 0;
    }
    return STATUS_IS_OK;
}

static status join_ranks(void *ctx, const worker_address *all, uint32_t n, error *err)
{
    rank_host *h = ctx;
    if (n != (uint32_t)comm_size(h->group))
        return error_set(err, STATUS_INVALID, "addresses: %u for %d ranks", n, comm_size(h->group));
    comm_address *addresses = calloc(n, sizeof *addresses);
    if (!addresses) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status s = read_addresses(h, all, n, addresses, err);
    if (status_ok(s)) s = comm_connect(h->group, addresses, CONNECT_US, err);
    free(addresses);
    return s;
}

static status make_cpu(rank_host *h, backend *out, backend_facts *facts, error *err)
{
    RETURN_IF_ERROR(backend_cpu_create(&h->options, out, err));
    *facts = backend_cpu_describe(out);
    return STATUS_IS_OK;
}

static status make_cuda(rank_host *h, backend *out, backend_facts *facts, error *err)
{
    backend_cuda_options o = {.common = h->options,
                              .api = h->api,
                              .ordinal = h->gpu_ordinal,
                              .kv = h->gpu_kv,
                              .batch_invariant = h->batch_invariant,
                              .gpu = h->gpu,
                              .gpu_facts = &h->gpu_facts};
    RETURN_IF_ERROR(backend_cuda_create(&o, out, err));
    *facts = backend_cuda_describe(out);
    return STATUS_IS_OK;
}

static status load_rank(void *ctx, backend *out, worker_facts *facts, error *err)
{
    rank_host *h = ctx;
    backend_facts f;
    RETURN_IF_ERROR(h->gpu ? make_cuda(h, out, &f, err) : make_cpu(h, out, &f, err));
    *facts = (worker_facts){
        .n_threads = f.n_threads,
        .weight_bytes = f.weight_bytes,
        .page_bytes = f.page_bytes,
        .pool_bytes = f.pool_bytes,
        .disk_bytes = f.disk_bytes,
        .filling_bytes = f.filling_bytes,
        .swap_bytes = f.swap_bytes,
        .load_us = f.load_us,
        .from_cache = f.from_cache,
    };
    snprintf(facts->device, sizeof facts->device, "%s", f.isa);
    snprintf(facts->sums, sizeof facts->sums, "%s", f.sums ? f.sums : "");
    return STATUS_IS_OK;
}

/* ---- the end --------------------------------------------------------------------------------- */

static void abort_session(void *ctx)
{
    rank_host *h = ctx;
    pthread_mutex_lock(&h->lock);
    atomic_store(&h->aborted, true);
    if (h->group) comm_abort(h->group);
    pthread_mutex_unlock(&h->lock);
}

static bool waits(void *ctx, comm_wait *out)
{
    rank_host *h = ctx;
    pthread_mutex_lock(&h->lock);
    bool can = h->group && comm_waits(h->group, out);
    pthread_mutex_unlock(&h->lock);
    return can;
}

static void reset(void *ctx)
{
    rank_host *h = ctx;
    pthread_mutex_lock(&h->lock);
    comm *group = h->group;
    h->group = NULL;
    atomic_store(&h->aborted, false);
    pthread_mutex_unlock(&h->lock);
    comm_destroy(group);
    if (h->gpu) h->api->close(h->gpu);
    h->api = NULL;
    h->gpu = NULL;
    free(h->dir);
    free(h->isa);
    free(h->cache_dir);
    free(h->kv_disk);
    free(h->address);
    h->dir = h->isa = h->cache_dir = h->kv_disk = NULL;
    h->address = NULL;
    h->options = (backend_options){0};
}

/* ---- life ------------------------------------------------------------------------------------ */

status rank_host_create(const worker_flags *flags, uint32_t index, rank_host **out)
{
    rank_host *h = calloc(1, sizeof *h);
    if (!h) return status_make(STATUS_NO_MEMORY, NULL);
    h->flags = flags;
    h->index = index;
    pthread_mutex_init(&h->lock, NULL);
    *out = h;
    return STATUS_IS_OK;
}

void rank_host_destroy(rank_host *h)
{
    if (!h) return;
    pthread_mutex_destroy(&h->lock);
    free(h);
}

worker_host rank_host_callbacks(rank_host *h)
{
    return (worker_host){
        .ctx = h,
        .configure = configure_rank,
        .join = join_ranks,
        .load = load_rank,
        .abort = abort_session,
        .reset = reset,
        .waits = waits,
    };
}
