/* NCCL with one rank, on a GPU's own stream: cuda_nccl_check PLUGIN [LIBRARY]. With one rank the
 * collectives must leave its values unchanged, under the installed library. SKIPPED where there is
 * none. */
#include "comm/comm.h"
#include "kernels/cuda/cuda_kernels.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLOATS = 1 << 20, CONNECT_US = 30000000 };

static void give_up(const char *what, const char *why)
{
    printf("FAIL %s: %s\n", what, why);
    exit(2);
}

static void check_ok(const char *what, status s)
{
    if (!status_ok(s)) give_up(what, status_text(s.code));
    printf("PASS %s\n", what);
}

static const gpu_api *open_plugin(const char *file)
{
    void *plugin = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!plugin) give_up("plugin", dlerror());
    gpu_api_fn *entry;
    void *found = dlsym(plugin, GPU_API_SYMBOL);
    memcpy(&entry, &found, sizeof entry);
    const gpu_api *api = entry ? entry(GPU_API_VERSION) : NULL;
    if (!api) give_up("plugin", "another version");
    return api;
}

static comm *make_comm(const gpu_api *api, gpu *g, const char *library)
{
    error err = {""};
    comm *c = NULL;
    comm_options o = {.kind = "nccl", .size = 1, .stream = api->stream(g), .library = library};
    status s = comm_create(&o, &c, &err);
    if (s.code == STATUS_UNSUPPORTED) {
        printf("SKIPPED: %s\n", err.text);
        exit(0);
    }
    if (!status_ok(s)) give_up("comm", err.text);
    comm_address own = comm_own_address(c);
    s = comm_connect(c, &own, CONNECT_US, &err);
    if (!status_ok(s)) give_up("connect", err.text);
    return c;
}

/* Reads back on the stream, after the enqueued collectives. */
static void check_collectives(const gpu_api *api, gpu *g, comm *c)
{
    size_t bytes = FLOATS * sizeof(float), n_wrong = 0;
    void *in, *out, *x, *all;
    bool ready = api->alloc_host(g, bytes, &in) == GPU_OK &&
                 api->alloc_host(g, bytes, &out) == GPU_OK && api->alloc(g, bytes, &x) == GPU_OK &&
                 api->alloc(g, bytes, &all) == GPU_OK;
    if (!ready) give_up("memory", api->why(g));
    for (int i = 0; i < FLOATS; i++) ((float *)in)[i] = (float)i * 0.25f;
    if (api->copy_in(g, x, in, bytes) != GPU_OK) give_up("copy", api->why(g));
    check_ok("sum", comm_all_reduce_sum(c, x, FLOATS));
    check_ok("gather", comm_all_gather(c, x, FLOATS, all));
    check_ok("broadcast", comm_broadcast(c, all, bytes, 0));
    if (api->copy_out(g, out, all, bytes) != GPU_OK || api->wait(g) != GPU_OK)
        give_up("copy", api->why(g));
    check_ok("state", comm_check(c));
    for (int i = 0; i < FLOATS; i++) n_wrong += ((float *)out)[i] != ((float *)in)[i];
    if (n_wrong) give_up("values", "not those of one rank");
    printf("PASS values\n");
    api->release_host(g, in);
    api->release_host(g, out);
    api->release(g, x);
    api->release(g, all);
}

int main(int argc, char **argv)
{
    if (argc < 2) give_up("usage", "cuda_nccl_check liboctavo_cuda.so [libnccl.so]");
    const gpu_api *api = open_plugin(argv[1]);
    gpu *g;
    gpu_facts facts;
    char why[256];
    if (api->open(0, &g, &facts, why, sizeof why) != GPU_OK) give_up("device 0", why);
    comm *c = make_comm(api, g, argc > 2 ? argv[2] : NULL);
    check_collectives(api, g, c);
    comm_destroy(c);
    api->close(g);
    return 0;
}
