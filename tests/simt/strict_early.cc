/* Kernels that start early with one defect each, and some without. */
#include "tests/simt/strict_test.h"

#include <stdlib.h>

/* W [THREADS] as weights lie, and memory that kernels of a step write: x [THREADS] and y. */
struct step_view {
    float *w, *x, *y;
};

static __global__ void make_weights(step_view v) { v.w[self()] = 1.0f; }
static __global__ void write_x(step_view v)
{
    await_previous();
    v.x[self()] = 1.0f;
}

static __global__ void early_right(step_view v)
{
    DYNAMIC_SHARED(to);
    __shared__ float some[THREADS];
    copy_async(to + self() * 16, v.w + self() / 4 * 4, true);
    copy_commit();
    some[self()] = v.w[self()] + v.w[THREADS]; /* which nothing wrote */
    vec16 four = load_once((const vec16 *)(v.w + self() / 4 * 4));
    copy_wait<0>();
    __syncthreads();
    await_previous();
    v.y[self()] = some[self() ^ 1] + v.x[self()] + float_of_bits(four.w[0]);
}
static __global__ void never_awaits(step_view v) { (void)v; }
static __global__ void one_ends_before(step_view v)
{
    if (self() == 5) return;
    await_previous();
    v.y[self()] = v.x[self()];
}
static __global__ void reads_ahead(step_view v)
{
    float x = v.x[self()];
    await_previous();
    v.y[self()] = x;
}
/* One thread of the last warp. */
static __global__ void one_reads_ahead(step_view v)
{
    float x = self() == THREADS - 1 ? v.x[0] : 0.0f;
    await_previous();
    v.y[self()] = x;
}
static __global__ void writes_ahead(step_view v)
{
    v.y[self()] = v.w[self()];
    await_previous();
}
static __global__ void writes_weights_ahead(step_view v)
{
    v.w[self()] = 1.0f;
    await_previous();
}
static __global__ void adds_ahead(step_view v)
{
    atomicAdd((unsigned *)v.w + self(), 1u);
    await_previous();
}
/* The copy is waited for behind the call, but may read before it. */
static __global__ void copies_ahead(step_view v)
{
    DYNAMIC_SHARED(to);
    copy_async(to + self() * 16, v.x + self() / 4 * 4, true);
    copy_commit();
    await_previous();
    copy_wait<0>();
    v.y[self()] = *(const float *)(to + self() * 16);
}
static __global__ void loads_ahead(step_view v)
{
    vec16 four = load_once((const vec16 *)(v.x + self() / 4 * 4));
    await_previous();
    v.y[self()] = float_of_bits(four.w[0]);
}
static __global__ void read_only_behind(step_view v)
{
    await_previous();
    v.y[self()] = float_of_bits(load_once((const vec16 *)(v.x + self() / 4 * 4)).w[0]);
}

/* copied: x comes from the host in place of a kernel before. */
static const struct planted_early {
    const char *name;
    void (*kernel)(step_view);
    const char *says;
    bool copied;
} of_steps[] = {
    {"early: nothing", early_right, NULL, false},
    {"early: nothing, x from the host", early_right, NULL, true},
    {"early: never awaits", never_awaits, "never called await_previous", false},
    {"early: a thread ends before", one_ends_before, "never called await_previous", false},
    {"early: reads ahead", reads_ahead, "ahead of await_previous", false},
    {"early: reads a copy ahead", reads_ahead, "ahead of await_previous", true},
    {"early: one thread reads ahead", one_reads_ahead, "ahead of await_previous", false},
    {"early: writes ahead", writes_ahead, "ahead of await_previous", false},
    {"early: writes weights ahead", writes_weights_ahead, "ahead of await_previous", false},
    {"early: adds ahead", adds_ahead, "ahead of await_previous", false},
    {"early: copies ahead", copies_ahead, "ahead of await_previous", false},
    {"early: reads once ahead", loads_ahead, "ahead of await_previous", false},
    {"early: read-only path behind", read_only_behind, "read-only path", false},
    {"early: read-only path to a copy", read_only_behind, "read-only path", true},
};

/* The last launch is the planted one. */
static void run_early(const planted_early *p)
{
    const gpu_api *api = octavo_cuda_api(GPU_API_VERSION);
    gpu *g;
    gpu_facts facts;
    char why[64];
    void *all[3];
    float host[THREADS] = {0};
    if (api->open(0, &g, &facts, why, sizeof why) != GPU_OK) exit(1);
    for (void *&at : all)
        if (api->alloc(g, (THREADS + 1) * sizeof(float), &at) != GPU_OK) exit(1);
    step_view v = {(float *)all[0], (float *)all[1], (float *)all[2]};
    LAUNCH(make_weights, 1, THREADS, 0, g, v);
    if (p->copied) (void)api->copy_in(g, v.x, host, sizeof host);
    else LAUNCH_EARLY(write_x, 1, THREADS, 0, g, v);
    LAUNCH_EARLY(p->kernel, 1, THREADS, THREADS * 16, g, v);
    for (void *at : all) api->release(g, at);
    api->close(g);
}

unsigned check_early(void)
{
    unsigned n_failed = 0;
    for (const planted_early &p : of_steps)
        n_failed += !is_found(p.name, p.says, [&]() { run_early(&p); });
    return n_failed;
}
