/* The headers that say which trace a request belongs to. */
#include "rpc/http/internal.h"

static enum MHD_Result take_field(void *headers, enum MHD_ValueKind kind, const char *name,
                                  size_t n_name, const char *value, size_t n_value)
{
    (void)kind;
    if (value) trace_headers_add(headers, name, n_name, value, n_value);
    return MHD_YES;
}

const trace_headers *http_trace(const exchange *e, trace_headers *out)
{
    *out = (trace_headers){0};
    if (!e->server->service->tracer) return NULL;
    MHD_get_connection_values_n(e->mhd, MHD_HEADER_KIND, take_field, out);
    return out;
}
