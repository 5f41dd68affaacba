/* Maps status codes to gRPC's between coordinator and workers, one to one, so that a worker's code
 * arrives unchanged (private to rpc/worker). */
#ifndef RPC_WORKER_CODES_H
#define RPC_WORKER_CODES_H

#include "base/status.h"

#include <grpc/status.h>

grpc_status_code code_to_wire(status_code code);
/* A gRPC code that stands for no status code becomes STATUS_UNAVAILABLE if the call was cancelled
 * or its deadline passed, otherwise STATUS_INTERNAL. */
status_code code_from_wire(grpc_status_code code);

#endif
