/* Checks before any weights are read: whether a server fits the memory that it may take, and its
 * retention policies. */
#include "cli/serve.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static status refuse_needs(const backend_cpu_needs *needs, uint64_t body, uint64_t disk,
                           uint64_t sum, const memory_bound *bound, error *err)
{
    enum { TEXT = 32 };
    char all[TEXT], has[TEXT], weights[TEXT], pool[TEXT], beside[TEXT], buffers[TEXT];
    char largest[TEXT], own[TEXT], stored[TEXT], cache[3 * TEXT] = "";
    format_bytes(all, sizeof all, sum);
    format_bytes(has, sizeof has, bound->bytes);
    format_bytes(weights, sizeof weights, needs->weights);
    format_bytes(pool, sizeof pool, needs->pool);
    format_bytes(beside, sizeof beside, needs->representatives + needs->retrieval);
    format_bytes(buffers, sizeof buffers, needs->buffers);
    format_bytes(largest, sizeof largest, body);
    format_bytes(own, sizeof own, SERVE_OWN_BYTES);
    format_bytes(stored, sizeof stored, disk);
    if (disk) snprintf(cache, sizeof cache, "buffers and index of the disk cache %s, ", stored);
    return error_set(
        err, STATUS_NO_MEMORY,
        "memory: this server needs %s (weights %s, KV pages %s, representatives and "
        "lists of retrieval %s, step buffers %s, %sa request of --max-body %s, the rest %s), "
        "and %s allows %s; --kv-memory, --max-batch%s and --max-body make it smaller",
        all, weights, pool, beside, buffers, cache, largest, own, bound->what, has,
        disk ? ", --disk-size" : "");
}

status serve_check_needs(const backend_cpu_needs *needs, const serve_wants *wants,
                         const memory_bound *bound, serve_room *out, error *err)
{
    uint64_t body = wants->max_body * RPC_BODY_FACTOR;
    uint64_t disk = wants->disk_size ? disk_memory(wants->disk_size, needs->block_bytes) : 0;
    uint64_t sum = needs->weights + needs->pool + needs->representatives + needs->retrieval +
                   needs->buffers + SERVE_OWN_BYTES + body + disk;
    if (sum > bound->bytes) return refuse_needs(needs, body, disk, sum, bound, err);
    uint64_t left = bound->bytes - sum;
    out->swap = needs->swap < left ? needs->swap : left;
    left -= out->swap;
    out->embeds = wants->embeds < left / 2 ? wants->embeds : left / 2;
    left -= out->embeds;
    out->transfer = wants->transfer < left / 2 ? wants->transfer : left / 2;
    left -= out->transfer;
    uint64_t most = left / 4 / RPC_RESPONSES_FACTOR;
    out->responses = wants->responses < most ? wants->responses : most;
    out->bodies = left - out->responses * RPC_RESPONSES_FACTOR + body;
    return STATUS_IS_OK;
}

static bool is_same_text(const char *a, const char *b) { return strcmp(a, b) == 0; }

/* Whether the model runs on the CPUs of this machine: workers by address have memory of their
 * own. */
static bool computes_here(const model_flags *f, const char *where)
{
    if (!is_same_text(where, "threads") && !is_same_text(where, "local") &&
        !is_same_text(where, "auto"))
        return false;
    if (is_same_text(f->device, "auto")) return backend_cuda_devices() == 0;
    return is_same_text(f->device, "cpu");
}

status serve_check_memory(const model_flags *flags, const serve_flags *serving, serve_room *out,
                          error *err)
{
    loaded_model m;
    backend_cpu_needs needs;
    struct rlimit space;
    uint64_t most = UINT64_MAX;
    const char *where = flags->workers.where ? flags->workers.where : "threads";
    bool transfers = serving->transfer_listen || serving->transfer_peers.n > 0;
    *out = (serve_room){.responses = serving->responses_memory,
                        .transfer = transfers ? serving->transfer_memory : 0};
    if (!flags->dir || !computes_here(flags, where)) return STATUS_IS_OK;
    status s = model_describe(flags, &m, err);
    if (status_ok(s))
        s = backend_cpu_need(&m.options, m.n_ranks, memory_available_bytes(), &needs, err);
    serve_wants wants = {.max_body = serving->max_body,
                         .disk_size = serving->disk_cache ? serving->disk_size : 0,
                         .responses = serving->responses_memory,
                         .transfer = out->transfer,
                         .embeds = m.embeds.n > 0 ? m.embed_memory : 0};
    model_close(&m);
    RETURN_IF_ERROR(s);
    /* Ranks that are processes have an address space each, so its limit binds only a single
     * process. */
    bool is_one = flags->tp == 1 || is_same_text(where, "threads");
    if (is_one && getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
        most = space.rlim_cur;
    memory_bound bound = memory_bound_of("", most);
    return serve_check_needs(&needs, &wants, &bound, out, err);
}

status serve_check_retention(const model_flags *flags, const retention_flags *retention, error *err)
{
    loaded_model m;
    pkv_geometry geometry;
    engine_options o = {.prefill_chunk = flags->prefill_chunk};
    retention_flags_apply(retention, &o);
    status s = model_describe(flags, &m, err);
    o.n_embed_heads = m.embeds.n;
    if (status_ok(s)) s = model_geometry(&m.options, m.n_ranks, &geometry, err);
    if (status_ok(s)) s = engine_check_retention(&o, &geometry, err);
    model_close(&m);
    return s;
}
