#include "rpc/worker/codes.h"

static const grpc_status_code codes[] = {
    [STATUS_OK] = GRPC_STATUS_OK,
    [STATUS_NO_PAGES] = GRPC_STATUS_FAILED_PRECONDITION,
    [STATUS_QUEUE_FULL] = GRPC_STATUS_ALREADY_EXISTS,
    [STATUS_INVALID] = GRPC_STATUS_INVALID_ARGUMENT,
    [STATUS_UNSUPPORTED] = GRPC_STATUS_UNIMPLEMENTED,
    [STATUS_NOT_FOUND] = GRPC_STATUS_NOT_FOUND,
    [STATUS_CORRUPT] = GRPC_STATUS_DATA_LOSS,
    [STATUS_LIMIT] = GRPC_STATUS_OUT_OF_RANGE,
    [STATUS_NO_MEMORY] = GRPC_STATUS_RESOURCE_EXHAUSTED,
    [STATUS_IO] = GRPC_STATUS_ABORTED,
    [STATUS_ABORTED] = GRPC_STATUS_PERMISSION_DENIED,
    [STATUS_UNAVAILABLE] = GRPC_STATUS_UNAVAILABLE,
    [STATUS_INTERNAL] = GRPC_STATUS_INTERNAL,
};
enum { N_CODES = sizeof codes / sizeof *codes };

grpc_status_code code_to_wire(status_code code)
{
    return (size_t)code < N_CODES ? codes[code] : GRPC_STATUS_UNKNOWN;
}

status_code code_from_wire(grpc_status_code code)
{
    for (size_t i = 0; i < N_CODES; i++)
        if (codes[i] == code) return (status_code)i;
    return code == GRPC_STATUS_CANCELLED || code == GRPC_STATUS_DEADLINE_EXCEEDED
               ? STATUS_UNAVAILABLE
               : STATUS_INTERNAL;
}
