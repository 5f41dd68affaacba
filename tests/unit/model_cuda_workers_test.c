/* Ranks at workers that meet on their (emulated) GPUs: with two steps in flight over the wire the
 * draws are those of one step after the other, of ranks that are threads, and of one rank; and
 * ranks that are lost or left with two steps. The workers are in this process. */
#include "tests/unit/model_ahead.h"

#include "model/cuda/backend.h"
#include "rpc/worker.h"

#include <pthread.h>

#define VERSION "0.0.1-test"

/* A rank at its worker. */
typedef struct hosted {
    pthread_mutex_t lock;
    gpu *gpu;
    gpu_facts facts;
    comm *comm;
    worker_server *server;
    char address[32];
} hosted;

static struct {
    backend_cuda_options options;
    uint32_t n;
    worker_config config;
    hosted ranks[RANKS];
    backend_ops ops;
    pthread_barrier_t rest;
    const char *addresses[RANKS];
    worker_group *group;
} site;

static status host_configure(void *ctx, const worker_config *c, worker_address *out, error *err)
{
    hosted *h = ctx;
    char why[64];
    comm *made = NULL;
    const gpu_api *api = site.options.api;
    if (api->open(0, &h->gpu, &h->facts, why, sizeof why) != GPU_OK)
        return error_set(err, STATUS_UNAVAILABLE, "%s", why);
    comm_options o = {.kind = c->comm,
                      .rank = (int)c->rank,
                      .size = (int)c->size,
                      .stream = api->stream(h->gpu),
                      .library = FAKE_NCCL};
    RETURN_IF_ERROR(comm_create(&o, &made, err));
    pthread_mutex_lock(&h->lock);
    h->comm = made;
    pthread_mutex_unlock(&h->lock);
    *out = comm_own_address(made);
    return STATUS_IS_OK;
}

static status host_join(void *ctx, const worker_address *all, uint32_t n, error *err)
{
    (void)n;
    return comm_connect(((hosted *)ctx)->comm, all, LONG_US, err);
}

/* Workers are processes elsewhere, whose memory outlasts them where others have opened it. Here no
 * worker frees what another one may still read. */
static void destroy_together(void *ctx)
{
    cuda_ops.rest(ctx);
    pthread_barrier_wait(&site.rest);
    cuda_ops.destroy(ctx);
}

static status host_load(void *ctx, backend *out, worker_facts *facts, error *err)
{
    hosted *h = ctx;
    backend_cuda_options o = site.options;
    o.common.group = h->comm;
    o.common.n_threads = 1;
    o.gpu = h->gpu;
    o.gpu_facts = &h->facts;
    *facts = (worker_facts){.device = "emulated"};
    RETURN_IF_ERROR(backend_cuda_create(&o, out, err));
    out->ops = &site.ops;
    return STATUS_IS_OK;
}

static void host_abort(void *ctx)
{
    hosted *h = ctx;
    pthread_mutex_lock(&h->lock);
    if (h->comm) comm_abort(h->comm);
    pthread_mutex_unlock(&h->lock);
}

static void host_reset(void *ctx)
{
    hosted *h = ctx;
    pthread_mutex_lock(&h->lock);
    comm *made = h->comm;
    h->comm = NULL;
    pthread_mutex_unlock(&h->lock);
    comm_destroy(made);
    if (h->gpu) site.options.api->close(h->gpu);
    h->gpu = NULL;
}

static status start_worker(hosted *h, error *err)
{
    worker_server_options o = {
        .address = "127.0.0.1:0",
        .version = VERSION,
        .host = {h, host_configure, host_join, host_load, host_abort, host_reset, NULL},
    };
    pthread_mutex_init(&h->lock, NULL);
    RETURN_IF_ERROR(worker_server_create(&o, &h->server, err));
    snprintf(h->address, sizeof h->address, "127.0.0.1:%u", worker_server_port(h->server));
    return STATUS_IS_OK;
}

static void set_config(const backend_options *o)
{
    site.config = (worker_config){.size = site.n,
                                  .model = o->dir,
                                  .comm = site.n > 1 ? "nccl" : "self",
                                  .device = "cuda",
                                  .kv_type = "",
                                  .weight_type = "",
                                  .isa = "",
                                  .geometry = o->geometry,
                                  .kv_bytes = o->kv_bytes,
                                  .max_rows = o->max_rows,
                                  .max_seqs = o->max_seqs,
                                  .max_model_len = o->max_model_len,
                                  .cache_dir = "",
                                  .kv_disk = ""};
}

/* pass.make_ranks. */
static status make_workers(const backend_cuda_options *o, uint32_t n, backend *out, error *err)
{
    site.options = *o;
    site.n = n;
    site.ops = cuda_ops;
    site.ops.destroy = destroy_together;
    pthread_barrier_init(&site.rest, NULL, n);
    set_config(&o->common);
    for (uint32_t i = 0; i < n; i++) {
        RETURN_IF_ERROR(start_worker(&site.ranks[i], err));
        site.addresses[i] = site.ranks[i].address;
    }
    worker_group_options g = {.addresses = site.addresses,
                              .n = n,
                              .version = VERSION,
                              .config = &site.config,
                              .silence_us = LONG_US};
    RETURN_IF_ERROR(worker_group_create(&g, &site.group, err));
    backend_ranks_options all = {
        .n_ranks = n, .driven = true, .make = worker_proxy_make, .ctx = site.group};
    return backend_ranks_create(&all, out, err);
}

static void leave_workers(void)
{
    worker_group_destroy(site.group);
    for (uint32_t i = 0; i < site.n; i++) {
        worker_server_destroy(site.ranks[i].server);
        pthread_mutex_destroy(&site.ranks[i].lock);
    }
    pthread_barrier_destroy(&site.rest);
    memset(&site, 0, sizeof site);
}

static pass at_workers(uint32_t n)
{
    pass p = wide;
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.n_ranks = n;
    p.make_ranks = make_workers;
    return p;
}

/* ---- the same draws -------------------------------------------------------------------------- */

/* Also those of ranks that are threads, with one step in flight. */
static void expect_draws_of_threads(const pass *workers, bool greedy)
{
    pass threads = *workers;
    threads.make_ranks = make_ranks;
    heard there = hear(workers, 2, greedy, 0, leave_workers);
    heard here = hear(&threads, 1, greedy, 0, leave);
    assert_true(there.stats.steps_ahead * 4 > there.stats.steps);
    expect_same(&here, &there);
}

static void ranks_at_workers_take_two(void **state)
{
    (void)state;
    void *library = open_nccl(FAKE_WELL);
    pass p = at_workers(RANKS);
    two_are_as_one(&p, false, leave_workers);
    expect_draws_of_threads(&p, true);
    dlclose(library);
}

static void a_single_worker_takes_two(void **state)
{
    (void)state;
    pass p = at_workers(1), alone = wide;
    alone.gpu = p.gpu;
    simt_be_late(1);
    heard there = hear(&p, 2, false, 0, leave_workers), here = hear(&alone, 1, false, 0, NULL);
    simt_be_late(0);
    assert_true(there.stats.steps_ahead * 4 > there.stats.steps);
    expect_same(&here, &there);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* A lost device fails both steps. Ranks can be destroyed with two steps in flight that were not
 * collected. */
static void a_lost_device_fails_both(void **state)
{
    (void)state;
    void *library = open_nccl(FAKE_WELL);
    house *h = malloc(sizeof *h);
    pass p = at_workers(RANKS);
    for (int lost = 0; lost < 2; lost++) {
        const step_result *r;
        open_house(h, &p, 2, false, leave_workers);
        fill(h);
        if (lost) simt_fail_after(0);
        for (int i = 0; lost && i < 2; i++) {
            assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
            assert_false(status_ok(r->status));
        }
        simt_fail_after(-1);
        close_house(h);
    }
    free(h);
    dlclose(library);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_at_workers_take_two),
        cmocka_unit_test(a_single_worker_takes_two),
        cmocka_unit_test(a_lost_device_fails_both),
    };
    return cmocka_run_group_tests_name("CUDA at workers, two steps in flight", tests, NULL, NULL);
}
