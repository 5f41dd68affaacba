/* Checks before any weights are read: whether a server fits the memory that it may take, and its
 * retention policies. */
#include "cli/serve.h"

#include <string.h>
#include <sys/resource.h>

status serve_check_needs(const backend_cpu_needs *needs, const memory_bound *bound, error *err)
{
    enum { TEXT = 32 };
    char all[TEXT], has[TEXT], weights[TEXT], pool[TEXT], buffers[TEXT], own[TEXT];
    uint64_t sum = needs->weights + needs->pool + needs->buffers + SERVE_OWN_BYTES;
    if (sum <= bound->bytes) return STATUS_IS_OK;
    format_bytes(all, sizeof all, sum);
    format_bytes(has, sizeof has, bound->bytes);
    format_bytes(weights, sizeof weights, needs->weights);
    format_bytes(pool, sizeof pool, needs->pool);
    format_bytes(buffers, sizeof buffers, needs->buffers);
    format_bytes(own, sizeof own, SERVE_OWN_BYTES);
    return error_set(err, STATUS_NO_MEMORY,
                     "memory: this server needs %s (weights %s, KV pages %s, step buffers %s, the "
                     "rest %s), and %s allows %s; --kv-memory and --max-batch make it smaller",
                     all, weights, pool, buffers, own, bound->what, has);
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

status serve_check_memory(const model_flags *flags, error *err)
{
    loaded_model m;
    backend_cpu_needs needs;
    struct rlimit space;
    uint64_t most = UINT64_MAX;
    const char *where = flags->workers.where ? flags->workers.where : "threads";
    if (!flags->dir || !computes_here(flags, where)) return STATUS_IS_OK;
    status s = model_describe(flags, &m, err);
    if (status_ok(s))
        s = backend_cpu_need(&m.options, m.n_ranks, memory_available_bytes(), &needs, err);
    model_close(&m);
    RETURN_IF_ERROR(s);
    /* Ranks that are processes have an address space each, so its limit binds only a single
     * process. */
    bool is_one = flags->tp == 1 || is_same_text(where, "threads");
    if (is_one && getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
        most = space.rlim_cur;
    memory_bound bound = memory_bound_of("", most);
    return serve_check_needs(&needs, &bound, err);
}

status serve_check_retention(const model_flags *flags, const retention_flags *retention, error *err)
{
    loaded_model m;
    pkv_geometry geometry;
    engine_options o = {.prefill_chunk = flags->prefill_chunk};
    retention_flags_apply(retention, &o);
    status s = model_describe(flags, &m, err);
    if (status_ok(s)) s = model_geometry(&m.options, &geometry, err);
    if (status_ok(s)) s = engine_check_retention(&o, &geometry, err);
    model_close(&m);
    return s;
}
