/* Takes the place of workers.c in a build without gRPC: ranks are threads. */
#include "cli/workers/workers.h"

#include <string.h>

status workers_create(const workers_flags *flags, const workers_device *device, uint32_t *n_ranks,
                      workers **out, error *err)
{
    (void)n_ranks, (void)device;
    *out = NULL;
    const char *where = flags->where;
    if (!where || strcmp(where, "threads") == 0 || strcmp(where, "auto") == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "--workers: built without gRPC (OCTAVO_RPC): only threads works");
}

void workers_destroy(workers *w) { (void)w; }

status workers_make_backend(workers *w, const backend_options *options,
                            const char *const *overrides, size_t n_overrides, backend *out,
                            backend_facts *facts, error *err)
{
    (void)w, (void)options, (void)overrides, (void)n_overrides, (void)out, (void)facts;
    return error_set(err, STATUS_UNSUPPORTED, "--workers: built without gRPC");
}

void workers_give_up(workers *w) { (void)w; }

void workers_log(const workers *w) { (void)w; }
