/* Every GPU kernel against the CPU's reference, over seeded shapes: kernels_cuda_check PLUGIN
 * [--small] [GROUP], of the groups below. Prints a row for each, PASS or FAIL; the exit status is 0
 * when all pass. A lost device ends the process, so run one group to find the cause.
 * Built with OCTAVO_SIMT it needs neither plugin nor GPU (tests/simt/), and its shapes are small
 * unless OCTAVO_SOAK is set. */
#include "tests/cuda/check.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef OCTAVO_SIMT
#include "tests/simt/device.h"
#endif

static void give_up(const char *what, const char *why)
{
    printf("FAIL %s: %s\n", what, why);
    exit(2);
}

void check_ok(check *c, gpu_status s)
{
    if (s != GPU_OK) give_up("device", c->api->why(c->g));
}

void *check_memory(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) give_up("memory", "none left");
    return p;
}

void *check_device(check *c, const void *host, size_t bytes)
{
    void *device;
    check_ok(c, c->api->alloc(c->g, bytes, &device));
    if (host) {
        check_ok(c, c->api->copy_in(c->g, device, host, bytes));
        check_ok(c, c->api->wait(c->g));
    }
    return device;
}

void *check_output(check *c, size_t bytes)
{
    unsigned char *poison = check_memory(bytes, 1);
    memset(poison, 0xff, bytes); /* NaN in every float type; the largest of integers */
    void *device = check_device(c, poison, bytes);
    free(poison);
    return device;
}

void check_fetch(check *c, void *host, const void *device, size_t bytes)
{
    check_ok(c, c->api->copy_out(c->g, host, device, bytes));
    check_ok(c, c->api->wait(c->g));
}

void check_fill(check *c, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = rng_normal(&c->random);
}

void check_narrow(const float *x, size_t n, gpu_type type, void *out)
{
    for (size_t i = 0; i < n; i++) {
        if (type == GPU_F32) ((float *)out)[i] = x[i];
        else ((uint16_t *)out)[i] = type == GPU_BF16 ? bf16_from_f32(x[i]) : f16_from_f32(x[i]);
    }
}

void check_widen(const void *x, size_t n, gpu_type type, float *out)
{
    for (size_t i = 0; i < n; i++) {
        if (type == GPU_F32) {
            out[i] = ((const float *)x)[i];
            continue;
        }
        uint16_t h = ((const uint16_t *)x)[i];
        out[i] = type == GPU_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
    }
}

float check_e4m3(float x)
{
    int e;
    if (x == 0.0f) return x;
    (void)frexpf(x, &e);
    e = e - 1 < -6 ? -6 : e - 1;
    float v = ldexpf(rintf(ldexpf(x, 3 - e)), e - 3);
    return v > 448.0f ? 448.0f : v < -448.0f ? -448.0f : v;
}

void check_row(check *c, const char *name, const float *due, const float *got, size_t n,
               double limit)
{
    double off = 0.0, square = 0.0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)due[i];
        off += d * d;
        square += (double)due[i] * (double)due[i];
    }
    double nmse = square > 0.0 ? off / square : off;
    bool pass = nmse <= limit; /* false for NaN */
    c->n++;
    c->n_failed += !pass;
    printf("%s  %-52s %10.2e  <= %.0e\n", pass ? "PASS" : "FAIL", name, nmse, limit);
}

/* Removes its own arguments from argv. */
static const gpu_api *find_api(int *argc, char ***argv)
{
#ifdef OCTAVO_SIMT
    (*argv)++;
    (*argc)--;
    return octavo_cuda_api(GPU_API_VERSION);
#else
    if (*argc < 2) give_up("usage", "kernels_cuda_check liboctavo_cuda.so [--small] [GROUP]");
    char *plugin_path = (*argv)[1];
    *argv += 2;
    *argc -= 2;
    void *plugin = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    if (!plugin) give_up("plugin", dlerror());
    gpu_api_fn *entry;
    *(void **)&entry = dlsym(plugin, GPU_API_SYMBOL);
    const gpu_api *api = entry ? entry(GPU_API_VERSION) : NULL;
    if (!api) give_up("plugin", "another version");
    return api;
#endif
}

static const struct {
    const char *name;
    void (*check)(check *c);
} groups[] = {
    {"rows", check_rows},       {"products", check_products}, {"narrow", check_narrows},
    {"experts", check_experts}, {"pages", check_pages},       {"wide", check_wide},
    {"sample", check_sample},   {"retrieve", check_retrieve}, {"ranks", check_ranks},
    {"early", check_early},
};
enum { GROUPS = sizeof groups / sizeof groups[0] };

static gpu_facts open_device(check *c)
{
    gpu_facts facts;
    char why[256];
    if (c->api->open(0, &c->g, &facts, why, sizeof why) != GPU_OK) give_up("device 0", why);
    c->n_sms = facts.n_sms;
    c->compute = facts.compute;
    c->narrow_rows = facts.narrow_rows;
    c->narrow_groups = facts.narrow_groups;
    return facts;
}

#ifdef OCTAVO_SIMT
/* Products of e4m3 on the devices that have fewer of them, and of experts without wgmma, which
 * devices newer than 9.0 do not have either. */
static void check_other_devices(check *c, const char *only)
{
    static const uint32_t computes[] = {80, 89, 100};
    gpu *first = c->g;
    for (size_t i = 0; i < sizeof computes / sizeof *computes; i++) {
        simt_have_compute(computes[i]);
        open_device(c);
        if (!only || strcmp(only, "narrow") == 0) check_narrows(c);
        if (computes[i] != 89 && (!only || strcmp(only, "experts") == 0)) check_experts(c);
        c->api->close(c->g);
    }
    c->g = first;
}
#endif

int main(int argc, char **argv)
{
    check c = {.api = find_api(&argc, &argv)};
    const char *only = NULL;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0) c.small = true;
        else only = argv[i];
    }
#if defined(OCTAVO_SIMT) && !defined(OCTAVO_SIMT_STRICT)
    if (getenv("OCTAVO_SOAK")) c.small = false;
#endif
#ifdef OCTAVO_SIMT
    simt_have_compute(90); /* the kernels that only it has, too */
#endif
    error err;
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* a process that is killed has printed its rows */
    gpu_facts facts = open_device(&c);
    thread_pool_options threads = {.n_threads = cpu_count_allowed()};
    if (!status_ok(thread_pool_create(&threads, &c.pool))) give_up("threads", "none");
    kern_options options = {.pool = c.pool, .isa = "ref"};
    if (!status_ok(kern_create(&options, &c.ref, &err))) give_up("reference", err.text);
    c.random = rng_seed(1);
    printf("%s, %u multiprocessors, compute %u; mean squared difference to the CPU's reference\n",
           facts.name, facts.n_sms, facts.compute);
    for (int i = 0; i < GROUPS; i++)
        if (!only || strcmp(only, groups[i].name) == 0) groups[i].check(&c);
#ifdef OCTAVO_SIMT
    check_other_devices(&c, only);
#endif
    printf("%s: %u of %u pass\n", c.n_failed ? "FAIL" : "PASS", c.n - c.n_failed, c.n);
    kern_destroy(c.ref);
    thread_pool_destroy(c.pool);
    c.api->close(c.g);
    return c.n_failed != 0 || c.n == 0;
}
