/* Our status codes as gRPC's between coordinator and workers, one to one, so that what a worker
 * says comes out as it went in (private to rpc/worker). */
#ifndef RPC_WORKER_CODES_H
#define RPC_WORKER_CODES_H

#include "base/status.h"

#include <grpc/status.h>

grpc_status_code code_to_wire(status_code code);
/* What is no code of ours is STATUS_UNAVAILABLE when it says that a connection is gone or a
 * deadline over, else STATUS_INTERNAL. */
status_code code_from_wire(grpc_status_code code);

#endif
