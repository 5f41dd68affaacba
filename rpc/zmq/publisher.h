/* KV events over ZeroMQ, in vLLM's wire format, for routers that send a request to the server that
 * holds its prefix (private to rpc/).
 *
 * What     a PUB socket with a message for each event: topic, sequence number (8 bytes, big-endian,
 *          from 0), and in msgpack [seconds since 1970, [events], 0], where an event is a map with
 *          a "type". A ROUTER socket, where one is asked for, sends kept messages again. The event
 *          of a block whose tokens are private leaves its message without events.
 * Owner    a publisher borrows the events and the log, which must outlive it, and copies the rest.
 * Threads  one of its own (oct-events), which alone touches the sockets, and ZeroMQ's.
 * Errors   the configuration and addresses are tried at creation. A reader that is too slow misses
 *          messages and sees it by their numbers; nothing that a reader does fails a request.
 * Source   vllm/distributed/kv_events.py (events as maps since 0.24). */
#ifndef RPC_ZMQ_PUBLISHER_H
#define RPC_ZMQ_PUBLISHER_H

#include "rpc/rpc.h"

typedef struct publisher publisher;

/* Checks the JSON of --kv-events-config. has_keys: the server asks for API keys, so that an address
 * of other machines must not be listened on, since ZeroMQ asks for none. */
status publisher_check(const char *json, bool has_keys, error *err);
/* Listens or connects and starts the thread. *out is NULL when the JSON does not enable events. */
status publisher_create(const rpc_options *options, publisher **out, error *err);
/* Ends the thread; messages that are under way have 200 ms. */
void publisher_destroy(publisher *p);

#endif
