/* How calls fail: the gRPC code for each status code, and the trailing metadata with it. */
#include "rpc/grpc/internal.h"

#include "proto/proto.h"
#include <stdio.h>
#include <string.h>

/* STATUS_LIMIT concerns the request itself (a prompt that is too long), so no retry helps. */
static const struct {
    grpc_status_code code;
    bool is_passing; // the client is told when to try again
} codes[] = {
    [STATUS_OK] = {GRPC_STATUS_OK, false},
    [STATUS_NO_PAGES] = {GRPC_STATUS_RESOURCE_EXHAUSTED, true},
    [STATUS_QUEUE_FULL] = {GRPC_STATUS_RESOURCE_EXHAUSTED, true},
    [STATUS_INVALID] = {GRPC_STATUS_INVALID_ARGUMENT, false},
    [STATUS_UNSUPPORTED] = {GRPC_STATUS_UNIMPLEMENTED, false},
    [STATUS_NOT_FOUND] = {GRPC_STATUS_NOT_FOUND, false},
    [STATUS_CORRUPT] = {GRPC_STATUS_INVALID_ARGUMENT, false},
    [STATUS_LIMIT] = {GRPC_STATUS_INVALID_ARGUMENT, false},
    [STATUS_NO_MEMORY] = {GRPC_STATUS_RESOURCE_EXHAUSTED, true},
    [STATUS_IO] = {GRPC_STATUS_INTERNAL, false},
    [STATUS_ABORTED] = {GRPC_STATUS_CANCELLED, false},
    [STATUS_UNAVAILABLE] = {GRPC_STATUS_UNAVAILABLE, true},
    [STATUS_INTERNAL] = {GRPC_STATUS_INTERNAL, false},
};

grpc_status_code call_code_of(status_code code)
{
    return (size_t)code < sizeof codes / sizeof *codes ? codes[code].code : GRPC_STATUS_UNKNOWN;
}

const char *call_code_name(int code)
{
    static const char *const names[] = {
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    };
    return code >= 0 && (size_t)code < sizeof names / sizeof *names ? names[code] : "UNKNOWN";
}

size_t details_text(const char *text, char out[DETAILS_BYTES_MAX])
{
    size_t n = strlen(text), used = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        unsigned bytes = utf8_decode((const uint8_t *)text + i, n - i, &cp);
        if (used + bytes > DETAILS_BYTES_MAX) break;
        if (cp == UINT32_MAX) out[used] = '?';
        else memcpy(out + used, text + i, bytes);
        used += bytes;
        i += bytes;
    }
    return used;
}

/* Adds grpc-status-details-bin: a google.rpc.Status with a RetryInfo. */
static void add_retry_info(rpc_call *c, grpc_status_code code, const char *text, uint32_t seconds)
{
    Google__Rpc__Duration delay = GOOGLE__RPC__DURATION__INIT;
    Google__Rpc__RetryInfo info = GOOGLE__RPC__RETRY_INFO__INIT;
    Google__Rpc__Any any = GOOGLE__RPC__ANY__INIT, *anys = &any;
    Google__Rpc__Status whole = GOOGLE__RPC__STATUS__INIT;
    static const char type[] = "type.googleapis.com/google.rpc.RetryInfo";
    uint8_t packed_info[32], packed[DETAILS_BYTES_MAX + 128];
    char message[DETAILS_BYTES_MAX];

    delay.seconds = seconds;
    info.retry_delay = &delay;
    any.type_url = call_bytes(type, sizeof type - 1);
    any.value =
        (ProtobufCBinaryData){google__rpc__retry_info__pack(&info, packed_info), packed_info};
    whole.code = (int32_t)code;
    whole.message = call_bytes(message, details_text(text, message));
    whole.details = &anys;
    whole.n_details = 1;
    call_add_trailer(c, "grpc-status-details-bin", packed,
                     google__rpc__status__pack(&whole, packed));
}

static void add_retry(rpc_call *c, grpc_status_code code, const char *text)
{
    uint32_t seconds = service_retry_after_s(call_service(c));
    char ms[16];
    int n = snprintf(ms, sizeof ms, "%llu", seconds * 1000ull);
    call_add_trailer(c, "retry-after-ms", ms, (size_t)n);
    call_add_trailer(c, "grpc-retry-pushback-ms", ms,
                     (size_t)n); // gRPC's own retry policies read this key
    add_retry_info(c, code, text, seconds);
}

void call_fail(rpc_call *c, status s, const error *err)
{
    const char *text = err && err->text[0] ? err->text
                       : s.message         ? s.message
                                           : status_text(s.code);
    grpc_status_code code = call_code_of(s.code);
    if (call_service(c) && (size_t)s.code < sizeof codes / sizeof *codes &&
        codes[s.code].is_passing)
        add_retry(c, code, text);
    call_finish(c, code, text);
}
