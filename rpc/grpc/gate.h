/* Bounds how many connections gRPC has open. gRPC itself has no such bound, and its 1.51 stops
 * listening for ever when accept fails because no descriptor is free.
 *
 * gRPC shows each socket that it accepts to its "socket mutator". The gate counts them there, and
 * when all places are taken it lets the kernel drop what reaches the listening sockets: clients
 * that connect then wait, as they do at a full backlog, until gate_update finds a place.
 *
 * gRPC's public headers name the channel argument for a mutator but not its layout, so gate.c
 * repeats that of gRPC 1.51, Debian 12's. Check src/core/lib/iomgr/socket_mutator.h before building
 * against another version.
 *
 * Ownership  gate_close gives up the front's reference; gRPC's own keep the gate until its last
 *            socket is closed.
 * Threads    gRPC calls the mutator on any thread; the gate_ functions are for one thread. */
#ifndef RPC_GRPC_GATE_H
#define RPC_GRPC_GATE_H

#include "base/base.h"

#include <grpc/grpc.h>

typedef struct gate gate;

/* `descriptors`: how many descriptors gRPC's connections may take, at least GATE_DESCRIPTORS_MIN. A
 * fifth of them is for connections that are being accepted while the gate closes. NULL: no
 * memory. */
gate *gate_create(uint32_t descriptors);
enum { GATE_DESCRIPTORS_MIN = 4 };
/* The argument for grpc_server_create. */
grpc_arg gate_arg(gate *g);
/* Finds the listening sockets. Call it when gRPC listens. False: gRPC has shown none. */
bool gate_listening(gate *g);
/* Call it a few times a second while *is_full: opens the gate when there is a place again. Returns
 * how many places there are; *was_filled: the gate has closed since the last call. */
uint32_t gate_update(gate *g, bool *is_full, bool *was_filled);
void gate_close(gate *g);

#endif
