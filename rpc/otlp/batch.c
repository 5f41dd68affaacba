/* The body of a request: an ExportTraceServiceRequest with the spans of one process, and what the
 * answer to it says. */
#include "rpc/otlp/internal.h"

#include <limits.h>
#include <string.h>
#include <zlib.h>

enum { BLOCK_BYTES = 8192, GZIP_WINDOW_BITS = 15 + 16, GZIP_MEMORY = 8 };

static ProtobufCBinaryData bytes_of(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

/* ---- the message ----------------------------------------------------------------------------- */

static bool fill_resource(const otlp_config *c, arena *memory, Otlp__Resource *out)
{
    size_t n = c->resource.n;
    Otlp__KeyValue *pairs = arena_alloc_array(memory, n, sizeof *pairs);
    Otlp__AnyValue *values = arena_alloc_array(memory, n, sizeof *values);
    out->attributes = arena_alloc_array(memory, n, sizeof *out->attributes);
    if (!pairs || !values || !out->attributes) return false;
    for (size_t i = 0; i < n; i++) {
        otlp__key_value__init(&pairs[i]);
        otlp__any_value__init(&values[i]);
        pairs[i].key = bytes_of(c->resource.items[i].name);
        pairs[i].value = &values[i];
        values[i].value_case = OTLP__ANY_VALUE__VALUE_STRING_VALUE;
        values[i].string_value = bytes_of(c->resource.items[i].value);
        out->attributes[i] = &pairs[i];
    }
    out->n_attributes = n;
    return true;
}

static bool pack_plain(const otlp_config *c, const char *version, trace_span *first, size_t n,
                       arena *memory, strbuf *out)
{
    Otlp__ExportTraceServiceRequest request = OTLP__EXPORT_TRACE_SERVICE_REQUEST__INIT;
    Otlp__ResourceSpans of_resource = OTLP__RESOURCE_SPANS__INIT, *all[] = {&of_resource};
    Otlp__ScopeSpans of_scope = OTLP__SCOPE_SPANS__INIT, *scopes[] = {&of_scope};
    Otlp__Resource resource = OTLP__RESOURCE__INIT;
    Otlp__InstrumentationScope scope = OTLP__INSTRUMENTATION_SCOPE__INIT;
    of_scope.spans = arena_alloc_array(memory, n, sizeof *of_scope.spans);
    if (!of_scope.spans || !fill_resource(c, memory, &resource)) return false;
    for (trace_span *s = first; s; s = s->next) of_scope.spans[of_scope.n_spans++] = &s->message;
    scope.name = bytes_of("octavo");
    scope.version = bytes_of(version);
    of_scope.scope = &scope;
    of_resource.resource = &resource;
    of_resource.scope_spans = scopes;
    of_resource.n_scope_spans = 1;
    request.resource_spans = all;
    request.n_resource_spans = 1;
    size_t size = protobuf_c_message_get_packed_size(&request.base);
    if (!strbuf_reserve(out, size)) return false;
    out->size = protobuf_c_message_pack(&request.base, (uint8_t *)out->data);
    return true;
}

/* ---- compression ----------------------------------------------------------------------------- */

static bool compress_body(const strbuf *plain, strbuf *out)
{
    z_stream z = {.next_in = (Bytef *)plain->data, .avail_in = (uInt)plain->size};
    if (plain->size > UINT_MAX ||
        deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, GZIP_WINDOW_BITS, GZIP_MEMORY,
                     Z_DEFAULT_STRATEGY) != Z_OK)
        return false;
    size_t most = deflateBound(&z, plain->size);
    bool done = strbuf_reserve(out, most);
    if (done) {
        z.next_out = (Bytef *)out->data;
        z.avail_out = (uInt)most;
        done = deflate(&z, Z_FINISH) == Z_STREAM_END;
        out->size = z.total_out;
    }
    deflateEnd(&z);
    return done;
}

bool otlp_pack(const otlp_config *c, const char *version, trace_span *first, size_t n, strbuf *out)
{
    arena memory;
    strbuf plain = {0};
    arena_init(&memory, BLOCK_BYTES, 0);
    bool done = pack_plain(c, version, first, n, &memory, c->gzip ? &plain : out);
    if (done && c->gzip) done = compress_body(&plain, out);
    strbuf_destroy(&plain);
    arena_destroy(&memory);
    return done;
}

/* ---- the answer ------------------------------------------------------------------------------ */

uint64_t otlp_rejected(const char *answer, size_t n, char *why, size_t size)
{
    *why = '\0';
    Otlp__ExportTraceServiceResponse *m =
        otlp__export_trace_service_response__unpack(NULL, n, (const uint8_t *)answer);
    if (!m) return 0;
    uint64_t rejected = 0;
    const Otlp__ExportTracePartialSuccess *part = m->partial_success;
    if (part) {
        rejected = part->rejected_spans > 0 ? (uint64_t)part->rejected_spans : 0;
        size_t n_why = part->error_message.len < size ? part->error_message.len : size - 1;
        if (n_why) memcpy(why, part->error_message.data, n_why);
        why[n_why] = '\0';
    }
    otlp__export_trace_service_response__free_unpacked(m, NULL);
    return rejected;
}
